//! Connects to members, in each possible way.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adit_engine::{Instant, Link};

use super::peer::{Attempt, Peer, Way};
use super::record::Record;
use super::relayed_links::Relayed;
use super::streams::{DIAL_TIMEOUT, UDP_RETRY};
use super::{Node, NodeEvent, Out};
use crate::path::{
    self, Candidate, MAIN_SOCKET, MAX_RELAYS, PathFinder, is_private, relays_of,
    standing_neighbours,
};
use crate::roster::Layer;
use crate::session::KeyHash;

/// How long a node keeps trying to connect to a member after a packet for it.
pub(super) const WANTED: Duration = Duration::from_secs(30);

/// The time after which a node tries another way if the peer does not answer.
const WAY_TIMEOUT: Duration = Duration::from_millis(1000);

/// The time limit for a handshake with a peer that has answered.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// The longest pause between two failed rounds, with and without packets for the member.
const WANTED_PAUSE: Duration = Duration::from_secs(5);
const UNWANTED_PAUSE: Duration = Duration::from_secs(60);

/// The maximum size of a mesh of Ethernet frames whose members all keep sessions with each other, so that a broadcast reaches all of them.
/// In a larger mesh, it reaches only members with a session.
pub const MAX_BROADCAST_DOMAIN: usize = 64;

/// The number of neighbours that a node asks for the endpoint of another node.
const MAX_ASKED: usize = 4;

impl Node {
    /// Connects to a member, unless there is a session.
    pub fn connect(&mut self, now: Instant, peer: &KeyHash, out: &mut Out) {
        if *peer == self.own || !self.is_valid_member(now, peer) {
            return;
        }
        self.add_peer(now, *peer, out);
        let Some(known) = self.peers.get_mut(peer) else { return };
        let was_wanted = known.wanted_until > now;
        known.wanted_until = now + WANTED;
        if known.session.is_some() {
            return;
        }
        let is_new = known.attempt.is_none();
        known.attempt.get_or_insert_default();
        if !was_wanted {
            // The attempt to reach a standing neighbour may pause for long.
            self.try_again(now, peer);
        }
        if is_new {
            // The relays with which the other node is registered.
            for relay in relays_of(&self.mesh, peer, &self.relays()) {
                if relay != self.own && self.live(&relay).is_none() {
                    self.connect(now, &relay, out);
                }
            }
            self.finder_input(now, peer, path::Input::DataSent, out);
            self.next_step(now, *peer);
        }
    }

    /// Makes a member a peer, unless it is one already.
    pub(super) fn add_peer(&mut self, now: Instant, key: KeyHash, out: &mut Out) {
        if self.peers.contains_key(&key) {
            return;
        }
        let random = adit_engine::Random::new(self.random.bytes::<32>());
        let finder = PathFinder::new(self.own, key, random, self.punch_budget.clone());
        let peer = Peer::new(finder);
        self.by_tag.insert(peer.tag(), key);
        self.peers.insert(key, peer);
        self.tell_local(now, &key, out);
        self.tell_relays(now, &key, out);
    }

    /// Forgets a member that has no session and that nothing waits for.
    pub(super) fn forget_peer(&mut self, key: &KeyHash, out: &mut Out) {
        if let Some(peer) = self.peers.remove(key) {
            if !peer.search_sockets.is_empty() {
                out.event(NodeEvent::CloseSockets(peer.search_sockets.clone()));
            }
            self.by_tag.remove(&peer.tag());
            peer.scheduled.map(|at| self.finder_timers.remove(&(at, *key)));
        }
    }

    /// Chooses the standing neighbours, once an hour and after each change of the roster. In a broadcast domain, these are
    /// all members.
    pub(super) fn choose_neighbours(&mut self, now: Instant) {
        let hour = self.hour(now);
        if self.neighbours_of == Some(hour) {
            return;
        }
        self.neighbours_of = Some(hour);
        let members: Vec<KeyHash> = self.valid_members(now).collect();
        let relays = self.relays();
        let own = if is_broadcast_domain(self.changes.genesis().layer, members.len()) {
            members
        } else {
            standing_neighbours(&self.mesh, &self.own, &members, &relays, hour)
        };
        self.standing = own.into_iter().collect();
        for (key, peer) in &self.peers {
            if let Some(live) = &peer.session {
                let stands = self.stands(now, key);
                self.sessions.set_standing(live.number, stands);
            }
        }
    }

    /// Returns whether either end of a session has chosen the other as a standing neighbour.
    pub(super) fn stands(&self, now: Instant, peer: &KeyHash) -> bool {
        let relays = self.relays();
        // Check this first: it avoids hashing all members, because a relay is the neighbour of many.
        self.standing.contains(peer)
            || relays_of(&self.mesh, peer, &relays).contains(&self.own)
            || {
                let members: Vec<KeyHash> = self.valid_members(now).collect();
                let hour = self.hour(now);
                standing_neighbours(&self.mesh, peer, &members, &relays, hour).contains(&self.own)
            }
    }

    fn hour(&self, now: Instant) -> u64 {
        self.unix(now).0 / 3600
    }

    /// Takes the next step of each attempt that is due, and begins missing attempts.
    pub(super) fn connect_due(&mut self, now: Instant, out: &mut Out) {
        let is_connected = |key: &&KeyHash| {
            self.peers
                .get(*key)
                .is_some_and(|peer| peer.session.is_some() || peer.attempt.is_some())
        };
        let missing: Vec<KeyHash> =
            self.standing.iter().filter(|key| !is_connected(key)).copied().collect();
        for key in missing {
            if key != self.own && self.is_valid_member(now, &key) {
                self.add_peer(now, key, out);
                self.peers.entry(key).and_modify(|peer| {
                    peer.attempt.get_or_insert_default();
                });
            }
        }
        self.extend_answered(now);
        let is_due = |peer: &Peer| peer.attempt.as_ref().is_some_and(|it| it.until <= now);
        let due: Vec<KeyHash> =
            self.peers.iter().filter(|(_, peer)| is_due(peer)).map(|(key, _)| *key).collect();
        for key in due {
            self.next_step(now, key);
        }
        let standing = &self.standing;
        let unused = |(key, peer): (&KeyHash, &Peer)| {
            let idle = peer.session.is_none() && peer.attempt.is_none();
            (idle && peer.wanted_until <= now && !standing.contains(key)).then_some(*key)
        };
        let unused: Vec<KeyHash> = self.peers.iter().filter_map(unused).collect();
        unused.iter().for_each(|key| self.forget_peer(key, out));
    }

    /// Tries the next way to reach a member.
    pub(super) fn next_step(&mut self, now: Instant, key: KeyHash) {
        let Some(attempt) = self.peers.get_mut(&key).and_then(|peer| peer.attempt.as_mut()) else {
            return;
        };
        if let Some(number) = attempt.number.take() {
            self.sessions.disconnect(now, number, &mut self.session_outputs);
        }
        let on_stream = self.live(&key).is_some_and(|live| live.link.is_stream());
        let wanted = on_stream
            || self.standing.contains(&key)
            || self.peers.get(&key).is_some_and(|peer| peer.wanted_until > now);
        if !wanted {
            self.peers.entry(key).and_modify(|peer| peer.attempt = None);
            return;
        }
        let ways = match self.peers.get_mut(&key).and_then(|peer| peer.attempt.as_mut()) {
            Some(attempt) if !attempt.ways.is_empty() => std::mem::take(&mut attempt.ways),
            _ if on_stream => self.direct_ways(&key),
            _ => self.ways(now, &key),
        };
        let Some((&way, rest)) = ways.split_first() else {
            let pause = self.end_round(now, key);
            if let Some(attempt) = self.peers.get_mut(&key).and_then(|peer| peer.attempt.as_mut()) {
                attempt.until = now + pause;
            }
            return;
        };
        let rest = rest.to_vec();
        let last = rest.is_empty();
        let standing = self.standing.contains(&key);
        let (sessions, outputs) = (&mut self.sessions, &mut self.session_outputs);
        let (begun, dials, timeout) = match way {
            Way::Link(link) if on_stream => {
                let begun = sessions.reconnect(now, key, link, standing, outputs);
                (begun.ok(), None, WAY_TIMEOUT)
            }
            Way::Link(link) => {
                let begun = sessions.connect(now, key, link, standing, outputs);
                (begun.ok(), None, WAY_TIMEOUT)
            }
            Way::Stream(to) => {
                (None, self.streams.dial(to, key).then_some(to), DIAL_TIMEOUT + WAY_TIMEOUT)
            }
        };
        let pause = match (last, on_stream) {
            (false, _) => Duration::ZERO,
            (true, true) => UDP_RETRY,
            (true, false) => self.end_round(now, key),
        };
        if let Some(attempt) = self.peers.get_mut(&key).and_then(|peer| peer.attempt.as_mut()) {
            (attempt.number, attempt.dials, attempt.ways) = (begun, dials, rest);
            (attempt.until, attempt.pause) = (now + timeout + pause, pause);
        }
    }

    /// Gives up a way to a member that leads nowhere. The next one follows at once, but the next round after a pause: otherwise a member that is down
    /// would be dialled as fast as its relay answers.
    pub(super) fn way_failed(&mut self, now: Instant, key: &KeyHash) {
        let Some(attempt) = self.peers.get_mut(key).and_then(|peer| peer.attempt.as_mut()) else {
            return;
        };
        attempt.until = now + attempt.pause;
        self.next_tick = now;
        if let Some(number) = attempt.number.take() {
            self.sessions.disconnect(now, number, &mut self.session_outputs);
        }
    }

    /// Asks others where a member is whose last way has been tried, and returns the pause before the next round. It grows with each round.
    fn end_round(&mut self, now: Instant, key: KeyHash) -> Duration {
        self.ask_where(now, key);
        let random = Duration::from_millis(u64::from(self.random.below(500)));
        let Some(peer) = self.peers.get_mut(&key) else { return random };
        let longest = if peer.wanted_until > now { WANTED_PAUSE } else { UNWANTED_PAUSE };
        let Some(attempt) = peer.attempt.as_mut() else { return random };
        attempt.failures = attempt.failures.saturating_add(1);
        let pause = Duration::from_millis(500) * 2_u32.saturating_pow(attempt.failures.min(8));
        pause.min(longest) + random
    }

    /// Gives an attempt whose peer has answered the time to complete its handshake, which the session limits.
    fn extend_answered(&mut self, now: Instant) {
        for attempt in self.peers.values_mut().filter_map(|peer| peer.attempt.as_mut()) {
            if attempt.number.is_some_and(|number| self.sessions.is_answered(number)) {
                attempt.until = now + HANDSHAKE_TIMEOUT;
            }
        }
    }

    /// Restarts an attempt's round, because there may be a better way now.
    pub(super) fn try_again(&mut self, now: Instant, key: &KeyHash) {
        if let Some(attempt) = self.peers.get_mut(key).and_then(|peer| peer.attempt.as_mut())
            && !attempt.number.is_some_and(|number| self.sessions.is_answered(number))
            && attempt.dials.is_none()
        {
            *attempt = Attempt { number: attempt.number, ..Attempt::default() };
            self.next_tick = now;
        }
    }

    /// Returns the ways to reach a member, best first. Without UDP, streams follow the best address.
    fn ways(&mut self, now: Instant, key: &KeyHash) -> Vec<Way> {
        let relays = self.legs_to(key).into_iter().take(MAX_RELAYS);
        let mut ways: Vec<Way> = relays
            .map(|leg| self.relayed_link(Relayed { relay: leg.relay, peer: *key }))
            .map(Way::Link)
            .collect();
        let mut direct = self.direct_ways(key);
        if self.is_without_udp(now) {
            let at = direct.len().min(1);
            let streams = self.stream_addresses(key).into_iter().map(Way::Stream);
            direct.splice(at..at, streams);
        }
        ways.extend(direct);
        ways
    }

    /// Returns a member's addresses, best first.
    pub(super) fn direct_ways(&self, key: &KeyHash) -> Vec<Way> {
        let mut addresses: Vec<SocketAddr> = Vec::new();
        let endpoint = self.endpoints.get(key).map_or(&[][..], |it| &it.candidates);
        let direct = endpoint.iter().filter(|candidate| candidate.takes_datagrams());
        addresses.extend(direct.map(Candidate::address));
        addresses.extend(self.hints.get(key).into_iter().flatten());
        addresses.sort_by_key(|address| self.preference(*address));
        let mut seen = BTreeSet::new();
        addresses.retain(|address| seen.insert(*address) && !self.own_addresses.contains(address));
        let link = |to| Way::Link(Link::datagram(MAIN_SOCKET, None, to));
        addresses.into_iter().map(link).collect()
    }

    /// Ranks an address for dialling: addresses on the same network come first.
    pub(super) fn preference(&self, address: SocketAddr) -> u8 {
        let same_network = self.own_addresses.iter().any(|own| match (own.ip(), address.ip()) {
            (IpAddr::V4(own), IpAddr::V4(other)) => own.octets()[..3] == other.octets()[..3],
            (IpAddr::V6(own), IpAddr::V6(other)) => own.segments()[..4] == other.segments()[..4],
            _ => false,
        });
        match (same_network, is_private(address.ip())) {
            (true, _) => 0,
            (false, false) => 1,
            (false, true) => 2,
        }
    }

    /// Asks some neighbours for a member's endpoint.
    fn ask_where(&mut self, now: Instant, node: KeyHash) {
        let sessions = self.peers.values().filter_map(|peer| peer.session.as_ref());
        let asked: Vec<_> = sessions.map(|live| live.number).take(MAX_ASKED).collect();
        let record = Record::Where { node }.encode();
        for number in asked {
            self.sessions.send(now, number, &record, &mut self.session_outputs);
        }
    }
}

/// Returns whether all members of a mesh keep sessions with each other.
fn is_broadcast_domain(layer: Layer, members: usize) -> bool {
    layer == Layer::Ethernet && members <= MAX_BROADCAST_DOMAIN
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_members_of_a_small_mesh_of_frames_all_keep_sessions() {
        assert!(is_broadcast_domain(Layer::Ethernet, MAX_BROADCAST_DOMAIN));
        assert!(!is_broadcast_domain(Layer::Ethernet, MAX_BROADCAST_DOMAIN + 1));
        assert!(!is_broadcast_domain(Layer::Ip, 2));
    }
}
