//! Drives the path finders, and manages this node's own addresses.

use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::{Instant, Link, SocketId};
use adit_openvpn::data_format::Command;
use zeroize::Zeroizing;

use super::record::{Content, Record};
use super::relayed_links::Relayed;
use super::{Endpoint, Node, NodeEvent, Out};
use crate::path::{
    self, Candidate, CandidateKind, MAIN_SOCKET, MAX_RELAYS, NatObserver, RelayLeg, Route, Tag,
    is_private, relays_of,
};
use crate::session::KeyHash;

/// The assumed round trip to a relay, until it has been measured.
const UNKNOWN_RTT: Duration = Duration::from_millis(50);

/// The size of the IP packets that every relay carries.
const RELAYED_MTU: u16 = 1400;

/// The minimum time between two endpoints of this node.
const ENDPOINT_INTERVAL: Duration = Duration::from_secs(10);

impl Node {
    /// Sets this node's own addresses, with its port, and the addresses that its router maps to it.
    pub fn set_addresses(
        &mut self,
        now: Instant,
        own: Vec<SocketAddr>,
        mapped: Vec<SocketAddr>,
        out: &mut Out,
    ) {
        if own != self.own_addresses {
            self.nat = NatObserver::new(own.clone());
        }
        (self.own_addresses, self.mapped_addresses) = (own, mapped);
        self.local_changed(now, out);
    }

    /// Returns the addresses at which others may reach this node, most useful first.
    pub(super) fn addresses(&self, now: Instant) -> Vec<Candidate> {
        let of = |addresses: Vec<SocketAddr>, kind| {
            addresses.into_iter().filter_map(move |at| Candidate::new(at, kind))
        };
        let own = of(self.own_addresses.clone(), CandidateKind::Own);
        let mapped = of(self.mapped_addresses.clone(), CandidateKind::Mapped);
        let observed = of(self.nat.classify(now).seen, CandidateKind::Observed);
        let mut all: Vec<Candidate> = Vec::new();
        for candidate in own.chain(mapped).chain(observed) {
            if !all.iter().any(|known| known.address() == candidate.address()) {
                all.push(candidate);
            }
        }
        all.sort_by_key(|candidate| is_private(candidate.address().ip()));
        all
    }

    fn local_changed(&mut self, now: Instant, out: &mut Out) {
        self.tell_local_to_all(now, out);
        self.announce_endpoint(now, out);
    }

    pub(super) fn tell_local_to_all(&mut self, now: Instant, out: &mut Out) {
        let keys: Vec<KeyHash> = self.peers.keys().copied().collect();
        for key in keys {
            self.tell_local(now, &key, out);
        }
    }

    /// Passes this node's addresses to the peer's path finder.
    pub(super) fn tell_local(&mut self, now: Instant, key: &KeyHash, out: &mut Out) {
        let (candidates, nat) = (self.addresses(now), self.nat.classify(now));
        self.finder_input(now, key, path::Input::Local { candidates, nat }, out);
    }

    /// Passes the relays that serve both ends to the peer's path finder.
    pub(super) fn tell_relays(&mut self, now: Instant, key: &KeyHash, out: &mut Out) {
        let legs = self.legs_to(key);
        self.finder_input(now, key, path::Input::Relays(legs), out);
    }

    pub(super) fn tell_relays_to_all(&mut self, now: Instant, out: &mut Out) {
        let keys: Vec<KeyHash> = self.peers.keys().copied().collect();
        for key in keys {
            self.tell_relays(now, &key, out);
        }
    }

    /// Returns the relays that this node has a direct session with, and where either end is registered. The path to a relay is always
    /// direct.
    pub(super) fn legs_to(&self, key: &KeyHash) -> Vec<RelayLeg> {
        if self.is_relay(key) || self.is_relay(&self.own) {
            return Vec::new();
        }
        let relays = self.relays();
        let mut serving = relays_of(&self.mesh, key, &relays);
        serving.extend(relays_of(&self.mesh, &self.own, &relays));
        let mut legs: Vec<RelayLeg> = Vec::new();
        for relay in serving {
            let Some(peer) = self.peers.get(&relay) else { continue };
            let direct = peer.session.as_ref().filter(|live| self.relayed.way(live.link).is_none());
            let Some(live) = direct else { continue };
            if legs.iter().any(|leg| leg.relay == relay) {
                continue;
            }
            let rtt = peer.finder.current_rtt().unwrap_or(UNKNOWN_RTT);
            let stream = live.link.is_stream();
            legs.push(RelayLeg { relay, stream, rtt, mtu: RELAYED_MTU });
        }
        legs.truncate(MAX_RELAYS);
        legs
    }

    /// Signs this node's addresses again if they have changed, and sends them to the peers.
    pub(super) fn announce_endpoint(&mut self, now: Instant, out: &mut Out) {
        let mut candidates = self.endpoint_candidates(now);
        // Leave out ports that a symmetric NAT opened for single nodes: no other node can use them, and they change all the time.
        if self.nat.classify(now).kind.is_symmetric() {
            candidates.retain(|candidate| candidate.kind() != CandidateKind::Observed);
        }
        let known = self.own_endpoint.as_ref();
        let unchanged = known.is_some_and(|known| known.candidates == candidates);
        let early = self.endpoint_at.is_some_and(|at| now < at + ENDPOINT_INTERVAL);
        if unchanged || early || candidates.is_empty() {
            return;
        }
        // Number endpoints by the clock, so those from after a restart are newer.
        let after = known.map_or(0, |known| known.sequence.saturating_add(1));
        let sequence = self.unix(now).0.max(after);
        let Some(endpoint) = Endpoint::sign(&self.mesh, &self.key, sequence, candidates) else {
            return;
        };
        self.endpoint_at = Some(now);
        let record = Record::Endpoint(endpoint.encoded().to_vec());
        self.own_endpoint = Some(endpoint);
        let peers: Vec<KeyHash> = self.connected().collect();
        for peer in peers {
            self.send_record(now, &peer, &record);
        }
        out.event(NodeEvent::Endpoints);
    }

    /// Takes a datagram that looks like a probe.
    pub(super) fn probe_arrived(
        &mut self,
        now: Instant,
        tag: Tag,
        link: Link,
        bytes: &[u8],
        out: &mut Out,
    ) {
        let key = self.by_tag.get(&tag).copied();
        let (from, local) = (link.remote(), link.local());
        let of_session = |key: &KeyHash| self.live(key).is_some_and(|live| live.link == link);
        let (key, input) = match (key, link.socket(), link.stream_id()) {
            (Some(key), Some(socket), _) => {
                (key, path::Input::Datagram { socket, from, local, bytes })
            }
            (Some(key), _, Some(id)) if of_session(&key) => {
                (key, path::Input::StreamData { id, from, bytes })
            }
            _ => {
                self.counters.unknown_probes = self.counters.unknown_probes.saturating_add(1);
                return;
            }
        };
        self.finder_input(now, &key, input, out);
    }

    /// Passes an input to the peer's path finder, and performs its outputs.
    pub(super) fn finder_input(
        &mut self,
        now: Instant,
        key: &KeyHash,
        input: path::Input<'_>,
        out: &mut Out,
    ) {
        let Some(peer) = self.peers.get_mut(key) else { return };
        let mut outputs = Vec::new();
        peer.finder.handle(now, input, &mut outputs);
        let next = peer.finder.deadline().map(|(at, _)| at);
        let former = std::mem::replace(&mut peer.scheduled, next);
        if former != next {
            former.map(|at| self.finder_timers.remove(&(at, *key)));
            next.map(|at| self.finder_timers.insert((at, *key)));
        }
        for output in outputs {
            self.finder_output(now, key, output, out);
        }
    }

    /// Takes the sockets that [`NodeEvent::OpenSockets`] requested: fewer, or none, if opening them failed. The packets that they receive
    /// belong to this node.
    pub fn sockets_opened(
        &mut self,
        now: Instant,
        peer: &KeyHash,
        sockets: Vec<SocketId>,
        out: &mut Out,
    ) {
        match self.peers.get_mut(peer) {
            Some(peer) => peer.search_sockets.extend(&sockets),
            None => return out.event(NodeEvent::CloseSockets(sockets)),
        }
        self.finder_input(now, peer, path::Input::SocketsOpened(sockets), out);
    }

    /// Sets the sockets for the further channels of later sessions, one for each, each with its own port. They accept only the echoes of
    /// this node's probes.
    pub fn set_channel_sockets(&mut self, sockets: Vec<SocketId>) {
        self.channel_sockets = sockets;
    }

    pub(super) fn finders_due(&mut self, now: Instant, out: &mut Out) {
        let due = self.finder_timers.range(..=(now, [u8::MAX; 32]));
        let due: Vec<KeyHash> = due.map(|(_, key)| *key).collect();
        for key in due {
            self.finder_input(now, &key, path::Input::Tick, out);
        }
    }

    fn finder_output(&mut self, now: Instant, key: &KeyHash, output: path::Output, out: &mut Out) {
        match output {
            path::Output::SendRecord { via: Some(relay), bytes } => {
                let content = Content::Path(Zeroizing::new(bytes));
                self.send_record(now, &relay, &Record::Forward { to: *key, content });
            }
            path::Output::SendRecord { via: None, bytes } => {
                if let Some(number) = self.live(key).map(|live| live.number) {
                    self.sessions.send(now, number, &bytes, &mut self.session_outputs);
                }
            }
            path::Output::SendProbe { route: Route::Direct { socket, to }, local, bytes } => {
                out.send(Link::datagram(socket, local, to), bytes);
            }
            path::Output::UsePath(route) => self.use_path(now, key, route, out),
            path::Output::Observed(seen) => self.observed(now, key, seen, out),
            path::Output::OpenSockets(count) => {
                out.event(NodeEvent::OpenSockets { peer: *key, count });
            }
            path::Output::CloseSockets { keep } => {
                let Some(peer) = self.peers.get_mut(key) else { return };
                let keeps = |socket: &SocketId| Some(*socket) == keep;
                let (kept, closed) = std::mem::take(&mut peer.search_sockets)
                    .into_iter()
                    .partition::<Vec<_>, _>(keeps);
                peer.search_sockets = kept;
                if !closed.is_empty() {
                    out.event(NodeEvent::CloseSockets(closed));
                }
            }
            path::Output::UsePort { channel, socket } => {
                let Some(live) = self.live(key) else { return };
                if let Some(id) = live.channels.get(channel)
                    && live.link.socket() == Some(MAIN_SOCKET)
                {
                    let socket = socket.unwrap_or(MAIN_SOCKET);
                    let link = Link::datagram(socket, None, live.link.remote());
                    out.plane(Command::SetLink(*id, link));
                }
            }
            path::Output::SendProbe { route: Route::Stream { id, to }, bytes, .. } => {
                out.send(Link::stream(id, to), bytes);
            }
            path::Output::SendProbe { route: Route::Relay(_), .. } => {}
            // The session itself finds the packet size that its path carries.
            path::Output::SetMtu { .. } => {}
        }
    }

    /// Moves the session with a peer to another path.
    pub(super) fn use_path(&mut self, now: Instant, key: &KeyHash, route: Route, out: &mut Out) {
        let link = match route {
            Route::Direct { socket, to } => Link::datagram(socket, None, to),
            Route::Relay(relay) => self.relayed_link(Relayed { relay, peer: *key }),
            Route::Stream { id, to } => Link::stream(id, to),
        };
        if link.is_stream() || self.live(key).is_some_and(|live| live.link.is_stream()) {
            // A session cannot move from a stream to datagrams; a new session replaces it.
            if matches!(route, Route::Direct { .. }) {
                self.try_udp_at(now, key, link);
            }
            return;
        }
        let Some(live) = self.peers.get_mut(key).and_then(|peer| peer.session.as_mut()) else {
            return;
        };
        let number = live.number;
        let was_direct = self.relayed.way(live.link).is_none();
        if std::mem::replace(&mut live.link, link) == link {
            return;
        }
        self.sessions.set_link(now, number, link, &mut self.session_outputs);
        out.event(NodeEvent::Path { peer: *key, route });
        if self.is_relay(key) && was_direct != matches!(route, Route::Direct { .. }) {
            self.tell_relays_to_all(now, out);
        }
    }

    /// Records the address at which a peer sees this node.
    fn observed(&mut self, now: Instant, key: &KeyHash, seen: SocketAddr, out: &mut Out) {
        // A peer on the same site does not see the NAT in front of the site.
        let near = self.live(key).is_some_and(|live| is_private(live.link.remote().ip()));
        if near && self.own_addresses.contains(&seen) {
            return;
        }
        let before = self.nat.classify(now);
        self.nat.observe(now, *key, seen);
        if self.nat.classify(now) != before {
            self.local_changed(now, out);
        }
    }
}
