//! TLS over TCP in point-to-point mode, at the end that listens.
//!
//! As over UDP, handshakes run in parallel with the session, each on its own connection, because
//! the other end may have crashed and reconnected before this end noticed. Only a handshake that
//! authenticates replaces the session, and its connection replaces the session's.

use adit_engine::{Instant, Link};

use super::{Attempt, Out, PeerEngine, State};
use crate::client::ClientEvent;
use crate::data_format::Output;
use crate::keys::Role;
use crate::p2p::pending_streams::{QueueFull, Vacancy};
use crate::reason::Reason;

impl PeerEngine {
    /// Returns whether this end accepts connections.
    pub(super) fn listens(&self) -> bool {
        self.config.remote_policy.accepts.is_some()
    }

    /// Processes an accepted connection.
    pub(super) fn accepted(&mut self, now: Instant, link: Link, out: &mut Out) {
        let from = self.config.remote_policy.accepts.as_deref().unwrap_or_default();
        let welcome = from.is_empty() || from.contains(&link.remote().ip().to_canonical());
        if !welcome || self.keeps_session() || !matches!(self.state, State::Open(_)) {
            self.dropped = self.dropped.saturating_add(1);
            return out.push(Output::Hangup(link));
        }
        let attempts = &self.attempts;
        let proven =
            |link| attempts.iter().any(|a| a.control_channel.link == link && a.is_proven());
        match self.pending.admit(now, link, proven) {
            Ok(None) => {}
            Ok(Some(gone)) => self.turn_away(gone, out),
            Err(QueueFull) => return self.turn_away(link, out),
        }
        if self.role() == Role::Client
            && let Ok(Some(control_channel)) = self.open(now, link)
        {
            let room = self.room_for(now, link);
            if room == Vacancy::None {
                return self.turn_away(link, out);
            }
            self.make(room, out);
            self.attempts.push(Attempt { control_channel, own: false, since: now });
            self.attempt_step(now, self.attempts.len().saturating_sub(1), Vec::new(), out);
        }
    }

    /// Processes the end of a connection.
    pub(super) fn ended(&mut self, now: Instant, link: Link, out: &mut Out) {
        self.pending.remove(link);
        self.attempts.retain(|attempt| attempt.control_channel.link != link);
        if self.session_on(link) {
            self.lost(now, Reason::ConnectionReset, out);
        }
    }

    /// Returns whether the session uses this connection.
    pub(super) fn session_on(&self, link: Link) -> bool {
        self.session.as_ref().is_some_and(|session| session.control_channel.link == link)
    }

    /// Returns whether this connection is the session's, or may become the session's.
    pub(super) fn knows(&self, link: Link) -> bool {
        self.session_on(link) || self.pending.contains(link)
    }

    /// Ends a connection without a session.
    pub(super) fn turn_away(&mut self, link: Link, out: &mut Out) {
        self.pending.remove(link);
        self.attempts.retain(|attempt| attempt.control_channel.link != link);
        self.dropped = self.dropped.saturating_add(1);
        out.push(Output::Hangup(link));
    }

    /// Records that this connection now carries the session, because its handshake has become the session.
    pub(super) fn taken(&mut self, link: Link, former: Option<Link>, out: &mut Out) {
        if link.is_stream() {
            self.pending.remove(link);
            // Other handshakes must start again.
            self.hang_up_all(out);
        }
        if let Some(former) = former.filter(|former| *former != link && former.is_stream()) {
            out.push(Output::Hangup(former));
            let text = format!("the peer reconnected from {}", link.remote());
            out.event(ClientEvent::Note(text));
        }
    }

    /// Ends the connections that have waited too long.
    pub(super) fn tick_streams(&mut self, now: Instant, out: &mut Out) {
        while let Some(link) = self.pending.expired(now) {
            self.turn_away(link, out);
        }
    }

    /// Ends all connections without a session.
    pub(super) fn hang_up_all(&mut self, out: &mut Out) {
        while let Some(link) = self.pending.pop() {
            out.push(Output::Hangup(link));
        }
    }
}
