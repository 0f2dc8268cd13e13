//! Clients that connect over streams.
//!
//! TCP's own handshake has proved the address, so there is no cookie, and the control channel
//! begins with the reset. A stream before authentication costs a file descriptor, so such streams
//! are limited in duration and, both in total and per network, in number.

use std::collections::{BTreeSet, HashMap};
use std::time::Duration;

use adit_engine::{AddressQuota, Instant, Link, PeerId};

use super::{FREE_PER_HANDSHAKE, MAX_HANDSHAKES, Out, ServerEngine};
use crate::data_format::Output;
use crate::packet::{Opcode, split_front};
use crate::reason::Reason;
use crate::server::event::ServerEvent;
use crate::server::log_limiter::LogLimiter;
use crate::server::responder::Refused;

/// The time in which a stream's first packet must arrive. OpenVPN's clients send it at once.
const FIRST_PACKET: Duration = Duration::from_secs(10);

/// All streams of a server.
pub(super) struct Streams {
    by_link: HashMap<Link, State>,
    /// The streams on which no packet has arrived, by the time of their closing.
    silent: BTreeSet<(Instant, Link)>,
    /// The streams without a session. Their number is limited in total and per network, like that
    /// of handshakes.
    pending: AddressQuota,
    /// Limits the log lines about accepted streams.
    log_limiter: LogLimiter,
}

#[derive(Copy, Clone)]
enum State {
    /// No packet has arrived yet.
    Silent { accepted: Instant, until: Instant },
    /// The stream carries a handshake.
    Handshake(PeerId),
    /// The stream carries a session.
    Session(PeerId),
}

impl Streams {
    pub(super) fn new() -> Self {
        Self {
            by_link: HashMap::new(),
            silent: BTreeSet::new(),
            pending: AddressQuota::new(MAX_HANDSHAKES, FREE_PER_HANDSHAKE),
            log_limiter: LogLimiter::default(),
        }
    }

    /// Returns the number of streams without a session.
    pub(super) fn pending(&self) -> usize {
        self.pending.total()
    }

    /// Returns when the next silent stream will be closed.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.silent.first().map(|&(until, _)| until)
    }

    /// Returns when a stream was accepted, if it is still silent.
    pub(super) fn accepted(&self, link: Link) -> Option<Instant> {
        match self.by_link.get(&link)? {
            State::Silent { accepted, .. } => Some(*accepted),
            _ => None,
        }
    }

    /// Records that a control channel has begun.
    pub(super) fn begun(&mut self, link: Link, peer: PeerId) {
        if let Some(State::Silent { until, .. }) = self.by_link.insert(link, State::Handshake(peer))
        {
            self.silent.remove(&(until, link));
        }
    }

    /// Records that the stream's client has a session.
    pub(super) fn authenticated(&mut self, link: Link) {
        if let Some(state) = self.by_link.get_mut(&link)
            && let State::Handshake(peer) = *state
        {
            *state = State::Session(peer);
            self.pending.release(link.remote().ip());
        }
    }

    /// Records the stream of a session that began in another process. Returns false if there is such a stream already.
    pub(super) fn restore(&mut self, link: Link, peer: PeerId) -> bool {
        self.by_link.insert(link, State::Session(peer)).is_none()
    }

    /// Shrinks the tables to their contents.
    pub(super) fn release_memory(&mut self) {
        self.by_link.shrink_to_fit();
        if self.silent.is_empty() {
            self.silent = BTreeSet::new();
        }
        self.pending.shrink_to_fit();
    }

    /// Removes a stream. Returns false if there is none.
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

impl ServerEngine {
    /// Processes an accepted stream.
    pub(super) fn stream_up(&mut self, now: Instant, link: Link, out: &mut Out) {
        if !link.is_stream() || self.streams.by_link.contains_key(&link) {
            return;
        }
        if !self.streams.pending.take(link.remote().ip()) {
            self.counters.streams_refused += 1;
            out.event(ServerEvent::HandshakeFailed(link, Reason::TooManyStreams));
            return out.push(Output::Hangup(link));
        }
        let until = now + FIRST_PACKET.min(self.config.settings.hand_window);
        self.streams.by_link.insert(link, State::Silent { accepted: now, until });
        self.streams.silent.insert((until, link));
        if self.streams.log_limiter.allow(now) {
            out.event(ServerEvent::Accepted(link));
        }
    }

    /// Processes the end of a stream that this end did not close.
    pub(super) fn stream_down(&mut self, link: Link, out: &mut Out) {
        match self.streams.by_link.get(&link).copied() {
            Some(State::Handshake(peer) | State::Session(peer)) => {
                self.remove(peer, Reason::ConnectionReset, out);
            }
            Some(State::Silent { .. }) => {
                self.streams.forget(link);
                out.push(Output::Hangup(link));
            }
            None => {}
        }
    }

    pub(super) fn stream_frame(
        &mut self,
        now: Instant,
        link: Link,
        packet: &mut [u8],
        out: &mut Out,
    ) {
        match self.streams.by_link.get(&link).copied() {
            Some(State::Silent { .. }) => self.first_packet(now, link, packet, out),
            Some(State::Handshake(peer) | State::Session(peer)) => {
                self.session_frame(now, peer, packet, out);
            }
            // The stream was closed while this packet was in transit.
            None => self.counters.unauthenticated_bad += 1,
        }
    }

    /// Processes the first packet of a stream, which must be a reset and starts a handshake.
    fn first_packet(&mut self, now: Instant, link: Link, packet: &mut [u8], out: &mut Out) {
        let reset = split_front(packet).is_ok_and(|(header, ..)| {
            matches!(header.opcode, Opcode::HardResetClientV2 | Opcode::HardResetClientV3)
        });
        if !reset {
            self.counters.streams_bad += 1;
            return self.hang_up(link, Reason::NoReset, out);
        }
        let handshakes = &mut self.handshakes;
        let room = || handshakes.take(link.remote().ip());
        let (unix, len) = (self.clock.at(now), packet.len());
        let (control, wrapper) = match self.responder.stream_reset(now, unix, link, packet, room) {
            Ok(opened) => opened,
            Err(refused) => {
                let reason = match refused {
                    Refused::NoRoom => Reason::TooManyHandshakes,
                    Refused::StartsUsedUp => Reason::TooManyStarts,
                    Refused::NoReset => Reason::ResetNotFirst,
                    Refused::KeyAge(error) => error.into(),
                    _ => Reason::ResetUnauthentic,
                };
                self.refused(now, link, refused, out);
                let limited = matches!(refused, Refused::NoRoom | Refused::StartsUsedUp);
                self.counters.streams_bad += u64::from(!limited);
                return self.hang_up(link, reason, out);
            }
        };
        self.begin(now, link, (&control, len), wrapper, out);
        // There was no room, or TLS failed.
        if self.streams.accepted(link).is_some() {
            self.hang_up(link, Reason::NoHandshake, out);
        }
    }

    fn hang_up(&mut self, link: Link, reason: Reason, out: &mut Out) {
        if self.streams.forget(link) {
            out.event(ServerEvent::HandshakeFailed(link, reason));
            out.push(Output::Hangup(link));
        }
    }

    /// Ends the streams that have been silent for too long.
    pub(super) fn end_silent(&mut self, now: Instant, out: &mut Out) {
        while let Some(&(until, link)) = self.streams.silent.first() {
            if until > now {
                break;
            }
            self.counters.streams_silent += 1;
            self.hang_up(link, Reason::SilentStream, out);
        }
    }
}
