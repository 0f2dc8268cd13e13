//! Sessions that continue in another process, such as a newer version of the program.
//!
//! ```text
//!   old process: pause ──► is_quiet? ──► save ──► the rest is told to connect again
//!   new process: restore ──► Resumed ... ──► a renegotiation of each session within a minute
//! ```
//!
//! The data plane passes the keys, the packet ids, the replay windows and what is on its way in streams. A session that
//! is in the middle of an exchange does not continue.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::collections::HashMap;
use std::time::Duration;

use adit_engine::command::{Counters, Float, PeerRates};
use adit_engine::{Instant, Link, PeerId, SecretBytes, auth};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::route_ownership::addresses_of;
use super::{MAX_PEER_ID, Out, ServerEngine};
use crate::data_format::{Command, Framing};
use crate::negotiate::{IvProto, PeerInfo};
use crate::packet::SessionId;
use crate::reason::Reason;
use crate::server::auth_token::Token;
use crate::server::client::{Client, ClientToken, ConnectedClient, Stage};
use crate::server::event::{ClientInfo, ServerEvent};
use crate::server::pool::Lease;
use crate::session::{
    Budget, ControlChannel, DataChannel, PeerTerms, SavedControlChannel, SavedDataChannel,
};
use crate::tls::TlsSession;

/// The time in which the sessions of another process renegotiate, each at a random moment, so that the handshakes of
/// thousands of clients do not delay each other.
const RENEGOTIATED_WITHIN: Duration = Duration::from_secs(60);
/// The earliest of these renegotiations.
const FIRST_RENEGOTIATION: Duration = Duration::from_secs(1);

/// The sessions of a server and what belongs to all of them, for another process.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedServer {
    next_peer: u32,
    next_session: u64,
    /// The secret of cookies, so that handshakes can begin in one process and go on in the other.
    cookies: SecretBytes,
    sessions: Vec<SavedSession>,
}

/// A session, without the state that the data plane has.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct SavedSession {
    control: SavedControlChannel,
    session: SessionId,
    requested: bool,
    info: ClientInfo,
    sent_username: Option<String>,
    data: SavedDataChannel,
    lease: Lease,
    grant: auth::ClientParams,
    rates: PeerRates,
    prefixes: Vec<IpNet>,
    framing: Framing,
    options: Vec<String>,
    push: Vec<String>,
    asked: bool,
    token: Option<(Token, Option<Instant>)>,
    /// The traffic of its data channel.
    traffic: Counters,
}

impl SavedServer {
    /// Returns the peers of the sessions.
    pub fn peers(&self) -> impl Iterator<Item = PeerId> {
        self.sessions.iter().map(|session| session.info.peer)
    }

    /// Returns the links of the sessions.
    pub fn links(&self) -> impl Iterator<Item = Link> {
        self.sessions.iter().map(|session| session.control.link)
    }

    /// Returns the traffic of the sessions so far, in both channels.
    pub fn traffic(&self) -> impl Iterator<Item = (PeerId, Counters)> {
        let total = |session: &SavedSession| session.traffic.plus(session.control.traffic);
        self.sessions.iter().map(move |session| (session.info.peer, total(session)))
    }

    /// Sets the traffic of the sessions' data channels so far.
    pub fn set_traffic(&mut self, traffic: impl Fn(PeerId) -> Option<Counters>) {
        for session in &mut self.sessions {
            session.traffic = traffic(session.info.peer).unwrap_or_default();
        }
    }
}

impl ServerEngine {
    /// Stops beginning handshakes and renegotiations, because the sessions will continue in another process. Peers
    /// repeat their requests to that one.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// Returns whether no handshake and no exchange on a control channel is in progress.
    pub fn is_quiet(&self) -> bool {
        self.handshakes.total() == 0
            && self
                .clients
                .values()
                .all(|client| client.connected().is_none() || client.control_channel.is_quiet())
    }

    /// Removes the sessions that another process can continue, and returns them, the oldest first. Their peers remain in the
    /// data plane, and must not send anything from now on. Of the sessions over streams, only the oldest `streams` are
    /// removed; see [`Self::stream_sessions`].
    pub fn save(&mut self, streams: usize) -> SavedServer {
        let clients = self.clients.iter();
        let mut peers: Vec<_> = clients
            .map(|(peer, client)| (client.number, *peer, client.control_channel.link))
            .collect();
        peers.sort_unstable_by_key(|(number, peer, _)| (*number, *peer));
        let (mut sessions, mut room) = (Vec::new(), streams);
        for (_, peer, link) in peers {
            if link.is_stream() && room == 0 {
                continue;
            }
            if let Some(saved) = self.clients.get_mut(&peer).and_then(|client| saved(client)) {
                room = room.saturating_sub(usize::from(link.is_stream()));
                if let Some(at) = self.clients.remove(&peer).and_then(|client| client.scheduled) {
                    self.timers.remove(&(at, peer));
                }
                sessions.push(saved);
            }
        }
        SavedServer {
            next_peer: self.next_peer,
            next_session: self.next_session,
            cookies: SecretBytes::of(self.responder.cookie_secret().as_slice()),
            sessions,
        }
    }

    /// Returns the number of sessions over streams, without those that were saved.
    pub fn stream_sessions(&self) -> usize {
        let streams =
            self.clients.values().filter(|client| client.control_channel.link.is_stream());
        streams.filter(|client| client.connected().is_some()).count()
    }

    /// Continues the sessions of another process. The data plane must get their keys from the same process, after it
    /// has performed the outputs. Sessions that do not fit the configuration are left out, with the reason as a warning.
    /// Returns the peers of the others, with their links.
    pub fn restore(
        &mut self,
        now: Instant,
        saved: SavedServer,
        out: &mut Out,
    ) -> Vec<(PeerId, Link)> {
        let SavedServer { next_peer, next_session, cookies, sessions } = saved;
        self.next_peer = next_peer.clamp(self.first_peer, MAX_PEER_ID);
        self.next_session = self.next_session.max(next_session);
        if let Some(secret) = cookies.array() {
            self.responder.set_cookie_secret(secret, self.config.settings.hand_window);
        }
        let mut restored = Vec::new();
        for session in sessions {
            let (peer, link) = (session.info.peer, session.control.link);
            let name = session.info.identity.common_name.clone();
            match self.restore_session(now, session, out) {
                Ok(()) => restored.push((peer, link)),
                Err(reason) => {
                    let text = format!("{name}: the session was not taken over: {reason}");
                    out.event(ServerEvent::Warning(None, text));
                }
            }
        }
        restored
    }

    fn restore_session(
        &mut self,
        now: Instant,
        saved: SavedSession,
        out: &mut Out,
    ) -> Result<(), Reason> {
        let SavedSession { control, session, requested, info, data, lease, grant, .. } = saved;
        let (peer, link) = (info.peer, control.link);
        let address = (link.remote(), session);
        if peer.0 < self.first_peer
            || peer.0 > MAX_PEER_ID
            || control.remote != session
            || info.session >= self.next_session
            || self.clients.contains_key(&peer)
            || self.by_session.contains_key(&address)
        {
            return Err(Reason::Protocol("its ids are not valid"));
        }
        let traffic = saved.traffic.plus(control.traffic);
        let tls = TlsSession::server(&self.config.tls)?;
        let again = self.renegotiation_time(now);
        let settings = &self.config.settings;
        let control_channel = ControlChannel::restore(now, control, tls, settings, again)?;
        if !self.pool.restore(peer, lease) {
            return Err(Reason::NoFreeAddress);
        }
        let proto = PeerInfo::from_entries(&info.peer_info).proto();
        let (framing, prefixes) = (saved.framing, saved.prefixes);
        let inactive = grant.inactive.or(settings.limits.inactive);
        let terms = |protection| PeerTerms {
            peer,
            link,
            wire_id: proto.has(IvProto::DATA_V2).then_some(peer.0),
            float: Float::if_allowed(
                !link.is_stream() && (settings.float || proto.has(IvProto::DATA_V2)),
            ),
            framing,
            protection,
            channel_of: None,
            vlan: grant.vlan,
        };
        // The filter must know the client before the data plane does.
        let addresses = addresses_of(peer, &info.identity, &grant, prefixes.clone());
        let mut commands = Out::new();
        let routes = (prefixes.clone(), inactive);
        let data = DataChannel::restore(now, &data, terms, routes, (peer, settings), &mut commands);
        let Some(data) = data else {
            self.pool.release(peer, lease);
            return Err(Reason::Protocol("its cipher is unknown"));
        };
        out.event(addresses);
        out.plane(Command::AdmitLink(link));
        while let Some(command) = commands.pop() {
            out.push(command);
        }
        if saved.rates != PeerRates::default() {
            out.plane(Command::SetRates(peer, saved.rates));
        }
        if link.is_stream() {
            self.streams.restore(link, peer);
        }
        self.ownership.restore(peer, &prefixes);
        let name = &info.identity.common_name;
        if !self.config.duplicate_cn && !info.check && !name.is_empty() {
            self.by_name.insert(name.clone(), peer);
        }
        out.event(ServerEvent::Resumed(Box::new(info.clone()), traffic));
        self.by_session.insert(address, peer);
        let number = info.session;
        let connected = ConnectedClient {
            info,
            sent_username: saved.sent_username,
            data,
            lease,
            grant,
            rates: saved.rates,
            prefixes,
            framing,
            options: saved.options,
            push: saved.push,
            asked: saved.asked,
            token: saved.token.map(|(token, renew_at)| ClientToken { token, renew_at }),
            reauthorization: None,
            stations: HashMap::new(),
        };
        let client = Client {
            control_channel,
            session,
            number,
            began: now,
            requested,
            stage: Stage::Connected(Box::new(connected)),
            scheduled: None,
            budget: Budget::default(),
        };
        self.clients.insert(peer, Box::new(client));
        self.schedule(peer);
        Ok(())
    }

    /// Returns a random time for the renegotiation of a session.
    fn renegotiation_time(&mut self, now: Instant) -> Instant {
        let within = RENEGOTIATED_WITHIN.min(self.config.settings.tran_window);
        let spread = u32::try_from(within.saturating_sub(FIRST_RENEGOTIATION).as_millis());
        let delay = self.random.below(spread.unwrap_or(u32::MAX).saturating_add(1));
        now + FIRST_RENEGOTIATION + Duration::from_millis(delay.into())
    }
}

/// Returns the state of a client whose session another process can continue.
fn saved(client: &mut Client) -> Option<SavedSession> {
    let connected = client.connected()?;
    let passes = client.control_channel.is_quiet()
        && connected.reauthorization.is_none()
        && !connected.info.check;
    if !passes {
        return None;
    }
    // The session may not know its keys for renegotiations.
    let control = client.control_channel.save().ok()?;
    let (session, requested) = (client.session, client.requested);
    let connected = client.connected()?;
    let token = connected.token.as_ref().map(|token| (token.token, token.renew_at));
    Some(SavedSession {
        control,
        session,
        requested,
        info: connected.info.clone(),
        sent_username: connected.sent_username.clone(),
        data: connected.data.save(),
        lease: connected.lease,
        grant: connected.grant.clone(),
        rates: connected.rates,
        prefixes: connected.prefixes.clone(),
        framing: connected.framing,
        options: connected.options.clone(),
        push: connected.push.clone(),
        asked: connected.asked,
        token,
        traffic: Counters::default(),
    })
}
