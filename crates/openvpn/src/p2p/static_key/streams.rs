//! A static key over TCP, at the end that listens.
//!
//! Of the connections that come, one is in use: the first, or whichever the other end has last proved
//! to be its own, by an authentic packet that never came before. A stranger's connection, or one on
//! which captured packets are played again, takes nothing from it; the other end itself, back from a
//! death that this end has not noticed, takes the place of its former connection.

use adit_engine::{Command, Instant, Link, Output};

use super::{Out, PEER, State, StaticEngine, nowhere};
use crate::client::ClientEvent;
use crate::p2p::pending_streams::Full;

impl StaticEngine {
    /// Whether connections are waited for.
    pub(super) fn listens(&self) -> bool {
        self.config.remote_policy.accepts.is_some()
    }

    /// A connection came.
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
            Err(Full) => Some(link),
        };
        if let Some(gone) = gone {
            self.dropped = self.dropped.saturating_add(1);
            out.push(Output::Hangup(gone));
        }
    }

    /// Uses a connection until another one proves to be the peer's: without `ping` both ends may
    /// wait for the other's first packet.
    fn take(&mut self, now: Instant, link: Link, out: &mut Out) {
        self.since = now;
        self.open(now, Some(link), out);
    }

    /// The plane had an authentic, new packet on another connection, and uses that now.
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
        // It may have ended since, or this end have taken another one in the same moment.
        out.plane(Command::SetLink(PEER, self.link.unwrap_or_else(|| nowhere(true))));
    }

    /// A connection ended.
    pub(super) fn ended(&mut self, now: Instant, link: Link, out: &mut Out) {
        if self.pending.remove(link) {
            self.dropped = self.dropped.saturating_add(1);
        } else if self.link == Some(link) {
            self.begin_again(now, "connection reset".into(), out);
        }
    }

    /// The connection in use is of no use any more.
    pub(super) fn next_connection(&mut self, now: Instant, reason: String, out: &mut Out) {
        let succeeded = std::mem::take(&mut self.heard);
        if let Some(link) = self.link.take() {
            out.plane(Command::SetLink(PEER, nowhere(true)));
            out.push(Output::Hangup(link));
            out.event(match succeeded {
                true => ClientEvent::Restarting(reason),
                false => ClientEvent::Note(format!(
                    "a connection from {} ended before it proved to be the peer's: {reason}",
                    link.remote().ip()
                )),
            });
        }
        if let Some(next) = self.pending.pop() {
            self.take(now, next, out);
        }
    }

    /// Ends what has waited too long, or kept others waiting.
    pub(super) fn tick_streams(&mut self, now: Instant, out: &mut Out) {
        while let Some(link) = self.pending.expired(now) {
            self.dropped = self.dropped.saturating_add(1);
            out.push(Output::Hangup(link));
        }
        if self.unproved_until().is_some_and(|until| until <= now) {
            self.next_connection(now, "it said nothing, and others wait".into(), out);
        }
    }

    /// Until when the connection in use may say nothing: for ever, where no other waits.
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
