//! A static key over TCP, at the end that listens.
//!
//! One of the accepted connections is in use. It is the first connection, or the latest on which an
//! authentic packet arrived that was not a replay. So an unauthenticated connection, or one with
//! replayed packets, cannot displace it. If the other end has crashed and reconnected before this
//! end noticed, its new connection replaces the old one.

use adit_engine::{Instant, Link};

use super::{Out, PEER, State, StaticEngine, nowhere};
use crate::client::ClientEvent;
use crate::data_format::{Command, Output};
use crate::p2p::pending_streams::QueueFull;
use crate::reason::Reason;

impl StaticEngine {
    /// Returns whether this end accepts connections.
    pub(super) fn listens(&self) -> bool {
        self.config.remote_policy.accepts.is_some()
    }

    /// Processes an accepted connection.
    pub(super) fn accepted(&mut self, now: Instant, link: Link, out: &mut Out) {
        let from = self.config.remote_policy.accepts.as_deref().unwrap_or_default();
        let welcome = from.is_empty() || from.contains(&link.remote().ip().to_canonical());
        if !welcome || !matches!(self.state, State::Open) {
            self.dropped = self.dropped.saturating_add(1);
            return out.push(Output::Hangup(link));
        }
        if self.link.is_none() {
            return self.take(now, link, out);
        }
        let gone = match self.pending.admit(now, link, |_| false) {
            Ok(gone) => gone,
            Err(QueueFull) => Some(link),
        };
        if let Some(gone) = gone {
            self.dropped = self.dropped.saturating_add(1);
            out.push(Output::Hangup(gone));
        }
    }

    /// Uses a connection until another one proves to be the peer's. It cannot wait for a packet,
    /// because without `ping` each end may wait for the other's first one.
    fn take(&mut self, now: Instant, link: Link, out: &mut Out) {
        self.since = now;
        self.open(now, Some(link), out);
    }

    /// Records that the data plane has received an authentic, new packet on another connection and
    /// uses that connection now.
    pub(super) fn moved(&mut self, now: Instant, link: Link, out: &mut Out) {
        if self.pending.remove(link) {
            if let Some(former) = self.link.replace(link).filter(|former| *former != link) {
                out.push(Output::Hangup(former));
            }
            if self.heard {
                self.budget.report_event(now, out, ClientEvent::Note, || {
                    format!("the peer reconnected from {}", link.remote())
                });
            }
        }
        // The connection may have ended in the meantime, or this end may have chosen another one at
        // the same moment.
        out.plane(Command::SetLink(PEER, self.link.unwrap_or_else(|| nowhere(true))));
    }

    /// Processes the end of a connection.
    pub(super) fn ended(&mut self, now: Instant, link: Link, out: &mut Out) {
        if self.pending.remove(link) {
            self.dropped = self.dropped.saturating_add(1);
        } else if self.link == Some(link) {
            self.begin_again(now, Reason::ConnectionReset, out);
        }
    }

    /// Switches to another waiting connection, because the one in use has become useless.
    pub(super) fn next_connection(&mut self, now: Instant, reason: Reason, out: &mut Out) {
        let succeeded = std::mem::take(&mut self.heard);
        if let Some(link) = self.link.take() {
            out.plane(Command::SetLink(PEER, nowhere(true)));
            out.push(Output::Hangup(link));
            out.event(if succeeded {
                ClientEvent::Restarting(reason)
            } else {
                ClientEvent::Note(format!(
                    "a connection from {} ended before it proved to be the peer's: {reason}",
                    link.remote().ip()
                ))
            });
        }
        if let Some(next) = self.pending.pop() {
            self.take(now, next, out);
        }
    }

    /// Ends connections that have waited too long or that block others.
    pub(super) fn tick_streams(&mut self, now: Instant, out: &mut Out) {
        while let Some(link) = self.pending.expired(now) {
            self.dropped = self.dropped.saturating_add(1);
            out.push(Output::Hangup(link));
        }
        if self.unproved_until().is_some_and(|until| until <= now) {
            self.next_connection(now, Reason::Unproven, out);
        }
    }

    /// Returns the time until which the connection in use may be silent; `None` if no other
    /// connection waits.
    fn unproved_until(&self) -> Option<Instant> {
        let crowded = self.link.is_some() && !self.heard && !self.pending.is_empty();
        crowded.then(|| self.since + self.config.settings.hand_window)
    }

    pub(super) fn streams_deadline(&self) -> Option<Instant> {
        [self.unproved_until(), self.pending.deadline()].into_iter().flatten().min()
    }

    /// Ends all connections.
    pub(super) fn hang_up_all(&mut self, out: &mut Out) {
        self.link.take().into_iter().for_each(|link| out.push(Output::Hangup(link)));
        while let Some(link) = self.pending.pop() {
            out.push(Output::Hangup(link));
        }
    }
}
