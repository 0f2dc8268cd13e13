//! TCP as the last resort to reach a node, with the rules for when to try and when to abandon it.
//!
//! Reachable nodes accept streams at a port, which their endpoints and tokens name. A node that gets no answer over UDP from any relay
//! opens a stream to such a node and runs their session over it. From time to time it tries UDP again; a new session over UDP, with new
//! keys, then replaces the one on the stream. Sessions with other members, which the relay only forwards, are not affected.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::num::NonZeroU16;
use std::time::Duration;

use adit_engine::{Instant, Link};
use adit_openvpn::data_format::Output;

use super::peer::{Attempt, Peer, Way};
use super::{Node, NodeEvent, Out};
use crate::path::{self, Candidate, CandidateKind};
use crate::session::KeyHash;

/// The time without an answer over UDP from any relay after which streams are tried.
pub(crate) const NO_UDP: Duration = Duration::from_secs(3);

/// How often UDP is tried while a session is on a stream.
pub(super) const UDP_RETRY: Duration = Duration::from_secs(30);

/// The time limit for opening a stream.
pub const DIAL_TIMEOUT: Duration = Duration::from_secs(5);

/// The number of streams that a node opens at the same time.
const MAX_DIALS: usize = 16;

/// The number of this node's addresses for streams that it announces.
const MAX_ADDRESSES: usize = 4;

/// The state of a node's streams, without their sessions.
#[derive(Debug, Default)]
pub(super) struct Streams {
    /// The port at which this node accepts streams.
    pub(super) port: Option<NonZeroU16>,
    /// Addresses at which members accept streams that no endpoint contains, such as those of the token.
    hints: BTreeMap<KeyHash, Vec<SocketAddr>>,
    /// The time since which no relay has answered over UDP.
    silent_since: Option<Instant>,
    /// Whether attempts were restarted because this has lasted for [`NO_UDP`].
    has_begun: bool,
    /// The streams being opened, with their members.
    dialled: BTreeMap<SocketAddr, KeyHash>,
    /// Those of them that have not been requested from the driver.
    wanted: Vec<SocketAddr>,
}

impl Streams {
    pub(super) fn new(hints: Vec<(KeyHash, Vec<SocketAddr>)>) -> Self {
        Self { hints: hints.into_iter().collect(), ..Self::default() }
    }

    /// Begins to open a stream. Returns whether there was room.
    pub(super) fn dial(&mut self, to: SocketAddr, peer: KeyHash) -> bool {
        if self.dialled.len() >= MAX_DIALS || self.dialled.contains_key(&to) {
            return false;
        }
        self.dialled.insert(to, peer);
        self.wanted.push(to);
        true
    }

    /// Forgets a node that is no longer a member.
    pub(super) fn forget(&mut self, node: &KeyHash) {
        self.hints.remove(node);
    }
}

impl Node {
    /// Sets the port at which this node accepts streams, or `None` to accept none.
    pub fn set_stream_port(&mut self, now: Instant, port: Option<NonZeroU16>, out: &mut Out) {
        if std::mem::replace(&mut self.streams.port, port) != port {
            self.announce_endpoint(now, out);
        }
    }

    /// Returns whether no relay answers this node over UDP.
    pub fn is_without_udp(&self, now: Instant) -> bool {
        self.streams.silent_since.is_some_and(|since| now.since(since) >= NO_UDP)
    }

    /// Returns the addresses to announce, those for streams first.
    pub(super) fn endpoint_candidates(&self, now: Instant) -> Vec<Candidate> {
        let datagrams = self.addresses(now);
        let mut streams: Vec<Candidate> = Vec::new();
        for candidate in &datagrams {
            let at =
                self.streams.port.map(|port| SocketAddr::new(candidate.address().ip(), port.get()));
            let stream = at.and_then(|at| Candidate::new(at, CandidateKind::Stream));
            if let Some(stream) = stream.filter(|stream| !streams.contains(stream))
                && streams.len() < MAX_ADDRESSES
            {
                streams.push(stream);
            }
        }
        streams.extend(datagrams);
        streams.truncate(path::MAX_CANDIDATES);
        streams
    }

    /// Returns the addresses at which a member may accept streams, best first.
    pub(super) fn stream_addresses(&self, key: &KeyHash) -> Vec<SocketAddr> {
        let endpoint = self.endpoints.get(key).map_or(&[][..], |it| &it.candidates);
        let streams = endpoint.iter().filter(|it| it.kind() == CandidateKind::Stream);
        let hints = self.streams.hints.get(key).into_iter().flatten().copied();
        let mut all: Vec<SocketAddr> = Vec::new();
        for address in streams.map(Candidate::address).chain(hints) {
            let is_own = self.own_addresses.iter().any(|own| own.ip() == address.ip());
            if !is_own && !all.contains(&address) {
                all.push(address);
            }
        }
        all.sort_by_key(|address| self.preference(*address));
        all
    }

    /// Records whether relays answer over UDP.
    pub(super) fn watch_udp(&mut self, now: Instant, out: &mut Out) {
        // For each relay with a session over UDP, the time since its last answer.
        let relays: Vec<(KeyHash, Option<Duration>)> = self
            .peers
            .iter()
            .filter(|(key, peer)| {
                let live = peer.session.as_ref();
                live.is_some_and(|live| self.is_direct_datagram(live.link)) && self.is_relay(key)
            })
            .map(|(key, peer)| (*key, peer.finder.lost_for(now)))
            .collect();
        if relays.iter().any(|(_, lost)| lost.is_none()) {
            (self.streams.silent_since, self.streams.has_begun) = (None, false);
            if self.nat.clear_udp_blocked() {
                self.tell_local_to_all(now, out);
                self.try_udp_soon(now);
            }
        } else {
            let silent = relays.iter().filter_map(|(_, lost)| *lost).min().unwrap_or_default();
            let silent = u64::try_from(silent.as_nanos()).unwrap_or_default();
            let since = Instant::from_nanos(now.as_nanos().saturating_sub(silent));
            self.streams.silent_since.get_or_insert(since);
            if self.is_without_udp(now) && !std::mem::replace(&mut self.streams.has_begun, true) {
                self.try_streams(now);
            }
        }
        // Idle relays are checked rarely, so check now whether only this relay is lost or all of UDP.
        let is_lost = |peer: &Peer| peer.session.is_some() && peer.finder.lost_for(now).is_some();
        if self.peers.values().any(is_lost) {
            for (key, _) in relays {
                self.finder_input(now, &key, path::Input::DataSent, out);
            }
        }
    }

    /// Returns whether a link is a direct datagram path.
    fn is_direct_datagram(&self, link: Link) -> bool {
        !link.is_stream() && self.relayed.way(link).is_none()
    }

    /// Restarts the attempts that can use a stream, because the time for datagrams is over.
    fn try_streams(&mut self, now: Instant) {
        let waits = |peer: &Peer| peer.attempt.is_some() && peer.session.is_none();
        let waiting = self.peers.iter().filter(|(_, peer)| waits(peer));
        let waiting: Vec<KeyHash> = waiting.map(|(key, _)| *key).collect();
        for key in waiting {
            if self.stream_addresses(&key).is_empty() {
                continue;
            }
            self.try_again(now, &key);
            let ways = self.stream_ways(&key);
            if let Some(attempt) = self.peers.get_mut(&key).and_then(|peer| peer.attempt.as_mut())
                && attempt.ways.is_empty()
            {
                attempt.ways = ways;
            }
        }
    }

    /// Returns the addresses of a member, those for streams first.
    fn stream_ways(&self, key: &KeyHash) -> Vec<Way> {
        let streams = self.stream_addresses(key).into_iter().map(Way::Stream);
        streams.chain(self.direct_ways(key)).collect()
    }

    /// Continues after the end of a session on a stream that this node opened: opens another stream unless UDP answers again.
    pub(super) fn on_stream_ended(&mut self, now: Instant, key: &KeyHash) {
        let ways = self.stream_ways(key);
        let attempt = self.peers.get_mut(key).and_then(|peer| peer.attempt.as_mut());
        match attempt {
            Some(attempt) if attempt.number.is_none() => {
                *attempt = Attempt { ways, ..Attempt::default() };
            }
            Some(attempt) => attempt.until = attempt.until.min(now + DIAL_TIMEOUT),
            None => {}
        }
    }

    /// Tries UDP now with the peers whose sessions are on streams.
    fn try_udp_soon(&mut self, now: Instant) {
        for peer in self.peers.values_mut() {
            let on_stream = peer.session.as_ref().is_some_and(|live| live.link.is_stream());
            if let Some(attempt) =
                peer.attempt.as_mut().filter(|it| on_stream && it.number.is_none())
            {
                attempt.until = now;
            }
        }
    }

    /// Continues after a session was established on a stream that this node opened: schedules the next attempt over UDP.
    pub(super) fn on_stream_established(&mut self, now: Instant, key: &KeyHash, out: &mut Out) {
        if let Some(peer) = self.peers.get_mut(key) {
            peer.attempt = Some(Attempt { until: now + UDP_RETRY, ..Attempt::default() });
        }
        if self.is_without_udp(now) && self.nat.set_udp_blocked() {
            self.tell_local_to_all(now, out);
        }
    }

    /// Tries UDP with a peer whose session is on a stream, because one of the peer's addresses answers.
    pub(super) fn try_udp_at(&mut self, now: Instant, key: &KeyHash, link: Link) {
        let on_stream = self.live(key).is_some_and(|live| live.link.is_stream());
        if let Some(attempt) = self.peers.get_mut(key).and_then(|peer| peer.attempt.as_mut())
            && on_stream
            && attempt.number.is_none()
        {
            attempt.ways = vec![Way::Link(link)];
            attempt.until = now;
            self.next_tick = now;
        }
    }

    /// Requests the streams that attempts wait for from the driver.
    pub(super) fn dial_wanted(&mut self, out: &mut Out) {
        for to in std::mem::take(&mut self.streams.wanted) {
            out.event(NodeEvent::OpenStream(to));
        }
    }

    /// Takes the stream that [`NodeEvent::OpenStream`] requested, or `None` if it could not be opened.
    pub fn stream_opened(
        &mut self,
        now: Instant,
        to: SocketAddr,
        stream: Option<Link>,
        out: &mut Out,
    ) {
        let key = self.streams.dialled.remove(&to);
        let attempt = key.and_then(|key| {
            let attempt = self.peers.get_mut(&key)?.attempt.as_mut();
            Some((key, attempt.filter(|attempt| attempt.dials == Some(to))?))
        });
        let (Some((key, attempt)), Some(link)) = (attempt, stream) else {
            if let Some(link) = stream {
                out.push(Output::Hangup(link));
            } else if let Some(key) = key {
                self.stream_failed(now, &key, to);
            }
            return;
        };
        attempt.dials = None;
        let standing = self.standing.contains(&key);
        let begun = self.sessions.connect(now, key, link, standing, &mut self.session_outputs);
        match (begun, self.peers.get_mut(&key).and_then(|peer| peer.attempt.as_mut())) {
            (Ok(number), Some(attempt)) if self.sessions.link(number) == Some(link) => {
                attempt.number = Some(number);
            }
            // There is already a session, or none is possible.
            _ => out.push(Output::Hangup(link)),
        }
        self.advance(now, out);
    }

    /// Takes the next step of an attempt whose stream could not be opened.
    fn stream_failed(&mut self, now: Instant, key: &KeyHash, to: SocketAddr) {
        if let Some(attempt) = self.peers.get_mut(key).and_then(|peer| peer.attempt.as_mut())
            && attempt.dials.take_if(|dialled| *dialled == to).is_some()
        {
            self.way_failed(now, key);
        }
    }
}
