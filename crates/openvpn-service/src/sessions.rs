use std::collections::BTreeMap;
use std::time::Duration;

use adit_engine::command::Counters;
use adit_engine::{Instant, PeerId};
use adit_openvpn::server::{ClientInfo, ServerEvent};
use adit_openvpn::session::PathReport;

use adit_runtime::clock::unix_time;
use adit_runtime::control::PeerReport;

/// The minimum interval over which rates are averaged.
const RATE_WINDOW: Duration = Duration::from_secs(4);

/// The connected clients, with their counters.
#[derive(Debug, Default)]
pub struct Sessions {
    open: BTreeMap<PeerId, Session>,
}

/// One connected client.
#[derive(Clone, Debug)]
pub struct Session {
    /// The engine's description of the client; its link follows floats.
    pub info: ClientInfo,
    /// Traffic so far.
    pub counters: Counters,
    /// Since when the data key is in use.
    pub key_since: Instant,
    /// When its counter of received packets last changed, in seconds since 1970.
    pub heard: u64,
    /// The state of the path to the client.
    pub path: PathReport,
    sample: Sample,
}

/// The counters at an earlier time, and the rates since the sample before that.
#[derive(Copy, Clone, Debug, Default)]
struct Sample {
    at: Instant,
    counters: Counters,
    rx_bps: u64,
    tx_bps: u64,
}

impl Sessions {
    /// Iterates over the sessions in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Session> {
        self.open.values()
    }

    /// Iterates over the sessions with higher ids than `id`, in the order of their ids.
    pub(super) fn after(&self, id: Option<u64>) -> impl Iterator<Item = &Session> {
        let after = id.map_or(Some(0), |id| u32::try_from(id).ok()?.checked_add(1));
        after.into_iter().flat_map(|first| self.open.range(PeerId(first)..)).map(|(_, it)| it)
    }

    /// Returns a peer's session.
    pub fn get(&self, peer: PeerId) -> Option<&Session> {
        self.open.get(&peer)
    }

    /// Returns the number of sessions.
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// Returns whether there are no sessions.
    pub fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// Releases the memory of an empty table. A tree would keep its root.
    pub(super) fn release_memory(&mut self) {
        if self.open.is_empty() {
            self.open = BTreeMap::new();
        }
    }

    pub(super) fn record(&mut self, now: Instant, event: &ServerEvent) {
        match event {
            ServerEvent::ClientUp(info) => {
                self.begin(now, info, Counters::default(), info.since.0);
            }
            ServerEvent::Resumed(info, traffic) => self.begin(now, info, *traffic, unix_time().0),
            ServerEvent::ClientDown(peer, ..) => {
                self.open.remove(peer);
            }
            ServerEvent::Floated(peer, link) => {
                if let Some(session) = self.open.get_mut(peer) {
                    session.info.link = *link;
                }
            }
            ServerEvent::Path(peer, path) => {
                if let Some(session) = self.open.get_mut(peer) {
                    session.path = *path;
                }
            }
            ServerEvent::Rekeyed(peer, _) => {
                if let Some(session) = self.open.get_mut(peer) {
                    session.key_since = now;
                }
            }
            ServerEvent::Accepted(_)
            | ServerEvent::Addresses(_)
            | ServerEvent::Ending(_)
            | ServerEvent::StationForgotten(_)
            | ServerEvent::HandshakeStarted(..)
            | ServerEvent::Told { .. }
            | ServerEvent::Reverified(..)
            | ServerEvent::HandshakeFailed(..)
            | ServerEvent::Refused(..)
            | ServerEvent::Unauthentic(_)
            | ServerEvent::UsedElsewhere(_)
            | ServerEvent::ChallengeResponse { .. }
            | ServerEvent::Note(..)
            | ServerEvent::Warning(..) => {}
        }
    }

    fn begin(&mut self, now: Instant, info: &ClientInfo, counters: Counters, heard: u64) {
        let session = Session {
            counters,
            key_since: now,
            heard,
            path: PathReport::default(),
            sample: Sample { at: now, counters, ..Sample::default() },
            info: info.clone(),
        };
        self.open.insert(info.peer, session);
    }

    /// Reads the counters again.
    pub(super) fn refresh(
        &mut self,
        now: Instant,
        unix: u64,
        counters: impl Fn(PeerId) -> Option<Counters>,
    ) {
        for (peer, session) in &mut self.open {
            let Some(fresh) = counters(*peer) else { continue };
            if fresh.rx_packets != session.counters.rx_packets {
                session.heard = unix;
            }
            session.counters = fresh;
            session.sample.advance(now, fresh);
        }
    }
}

impl Sample {
    fn advance(&mut self, now: Instant, fresh: Counters) {
        let passed = now.since(self.at);
        if passed < RATE_WINDOW {
            return;
        }
        let rate = |bytes: u64| {
            let bits = u128::from(bytes) * 8 * 1_000_000_000;
            u64::try_from(bits / passed.as_nanos().max(1)).unwrap_or(u64::MAX)
        };
        self.rx_bps = rate(fresh.rx_bytes.saturating_sub(self.counters.rx_bytes));
        self.tx_bps = rate(fresh.tx_bytes.saturating_sub(self.counters.tx_bytes));
        self.at = now;
        self.counters = fresh;
    }
}

impl Session {
    /// Formats the name and address of a client for log lines: `client/192.0.2.7:5000`.
    pub fn label(&self) -> String {
        format!("{}/{}", self.info.identity.common_name, self.info.link.remote())
    }

    pub(super) fn report(&self, now: Instant) -> PeerReport {
        let info = &self.info;
        let value = |key: &str| {
            info.peer_info.iter().find(|(name, _)| name == key).map(|(_, value)| value.clone())
        };
        let inside = [info.ipv4.map(|ip| ip.to_string()), info.ipv6.map(|ip| ip.to_string())];
        PeerReport {
            id: info.peer.0,
            name: info.identity.common_name.clone(),
            username: info.username.clone(),
            address: info.link.remote().to_string(),
            transport: if info.link.is_stream() { "tcp" } else { "udp" }.into(),
            tunnel: inside.into_iter().flatten().collect(),
            cipher: info.cipher.name().to_owned(),
            tls: info.tls.clone(),
            program: value("IV_GUI_VER").or_else(|| value("IV_VER")),
            since: info.since.0,
            key_age_s: now.since(self.key_since).as_secs(),
            rx_packets: self.counters.rx_packets,
            rx_bytes: self.counters.rx_bytes,
            tx_packets: self.counters.tx_packets,
            tx_bytes: self.counters.tx_bytes,
            rx_bps: self.sample.rx_bps,
            tx_bps: self.sample.tx_bps,
            path_mtu: self.path.mtu,
            mss: Some(self.path.mss4).filter(|mss| *mss != 0),
        }
    }
}
