//! The streams of a node's sessions. A stream carries one session, from its first packet to its end.
//!
//! TCP has proved the sender's address, so there is no cookie and the session begins with the reset. Incoming streams without a member's
//! session are limited in number, in total and per network, and in time.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use adit_engine::{AddressQuota, Instant, Link};
use adit_openvpn::data_format::Output;

use super::engine::{Out, SessionEngine, SessionNumber};

/// The maximum number of incoming streams without a member's session.
pub(super) const MAX_PENDING: usize = 256;

/// The number of free places required for each stream that a network already has.
const FREE_PER_STREAM: usize = 7;

/// The time limit for a stream's first packet to arrive.
pub(super) const FIRST_PACKET: Duration = Duration::from_secs(5);

/// All streams of a node.
#[derive(Debug)]
pub(super) struct Streams {
    by_link: HashMap<Link, State>,
    /// The streams on which no packet has arrived, ordered by the time at which they will be closed.
    silent: BTreeSet<(Instant, Link)>,
    pending: AddressQuota,
}

#[derive(Copy, Clone, Debug)]
enum State {
    /// No packet has arrived.
    Silent { accepted: Instant, until: Instant },
    /// The session is not with a member, or is not established yet.
    Pending(SessionNumber),
    /// The stream carries a session with a member, or this node opened it.
    Session(SessionNumber),
}

impl Streams {
    pub(super) fn new() -> Self {
        Self {
            by_link: HashMap::new(),
            silent: BTreeSet::new(),
            pending: AddressQuota::new(MAX_PENDING, FREE_PER_STREAM),
        }
    }

    /// Returns when the next silent stream is closed.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.silent.first().map(|(until, _)| *until)
    }

    /// Records that a session begins on a stream.
    pub(super) fn begun(&mut self, link: Link, number: SessionNumber) {
        let state = match self.by_link.get(&link) {
            Some(State::Silent { until, .. }) => {
                self.silent.remove(&(*until, link));
                State::Pending(number)
            }
            _ => State::Session(number),
        };
        self.by_link.insert(link, state);
    }

    /// Records that a session on a stream is with a member.
    pub(super) fn established(&mut self, link: Link) {
        if let Some(state) = self.by_link.get_mut(&link)
            && let State::Pending(number) = *state
        {
            *state = State::Session(number);
            self.pending.release(link.remote().ip());
        }
    }

    /// Removes a stream. Returns whether there was one.
    pub(super) fn forget(&mut self, link: Link) -> bool {
        let Some(state) = self.by_link.remove(&link) else { return false };
        if let State::Silent { until, .. } = state {
            self.silent.remove(&(until, link));
        }
        if !matches!(state, State::Session(_)) {
            self.pending.release(link.remote().ip());
        }
        true
    }
}

impl SessionEngine {
    /// Takes an incoming stream.
    pub(super) fn stream_up(&mut self, now: Instant, link: Link, out: &mut Out) {
        if !link.is_stream() || self.streams.by_link.contains_key(&link) {
            return;
        }
        if !self.streams.pending.take(link.remote().ip()) {
            self.counters.streams_refused = self.counters.streams_refused.saturating_add(1);
            return out.push(Output::Hangup(link));
        }
        let until = now + FIRST_PACKET;
        self.streams.by_link.insert(link, State::Silent { accepted: now, until });
        self.streams.silent.insert((until, link));
    }

    /// Processes a packet of a stream. It belongs to the stream's session, whatever its session id.
    pub(super) fn stream_packet(
        &mut self,
        now: Instant,
        link: Link,
        packet: &mut [u8],
        out: &mut Out,
    ) {
        let accepted = match self.streams.by_link.get(&link).copied() {
            Some(State::Pending(number) | State::Session(number)) => {
                return self.session_packet(now, number, packet, out);
            }
            Some(State::Silent { accepted, .. }) => accepted,
            None => {
                // The stream was closed while the packet was in transit.
                self.counters.dropped = self.counters.dropped.saturating_add(1);
                return;
            }
        };
        let times = (self.unix(now), accepted);
        let (listener, random) = (&mut self.listener, &mut self.random);
        match listener.first_of_stream(now, times, link, packet, random, out) {
            Some((record, events)) => self.accepted(now, record, events, out),
            None => self.hang_up(link, out),
        }
    }

    /// Closes a stream that carries no session.
    pub(super) fn hang_up(&mut self, link: Link, out: &mut Out) {
        if self.streams.forget(link) {
            out.push(Output::Hangup(link));
        }
    }

    /// Closes the streams that have been silent for too long.
    pub(super) fn end_silent(&mut self, now: Instant, out: &mut Out) {
        while let Some(&(until, link)) = self.streams.silent.first()
            && until <= now
        {
            self.counters.streams_silent = self.counters.streams_silent.saturating_add(1);
            self.hang_up(link, out);
        }
    }
}
