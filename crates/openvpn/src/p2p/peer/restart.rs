//! Start, end and restart of one end of a point-to-point tunnel.

use adit_engine::Instant;

use super::{Out, PeerEngine, State};
use crate::client::{ClientEvent, Next};
use crate::data_format::{Command, Output};
use crate::negotiate::ControlMessage;
use crate::reason::Reason;
use crate::session::{ExitNotices, session_end, silence_end};

impl PeerEngine {
    /// Ends the session and restarts.
    pub fn restart(&mut self, now: Instant, out: &mut Out) {
        self.lost(now, Reason::RestartRequested, out);
    }

    /// Processes a change of the path to the other end, or its recovery after an outage. During a wait or an attempt this end restarts at
    /// once. A session continues and searches for the path's MTU again. A connection ends if it is `stale`: its local address is gone.
    pub fn path_changed(&mut self, now: Instant, stale: bool, out: &mut Out) {
        match (&mut self.state, &mut self.session) {
            (State::Waiting { until }, _) => *until = now,
            (State::Dialing, _) => self.start(now, out),
            (State::Open(_), Some(session))
                if stale && session.control_channel.link.is_stream() =>
            {
                self.lost(now, Reason::NetworkChanged, out);
                if let State::Waiting { until } = &mut self.state {
                    *until = now;
                }
            }
            (State::Open(_), Some(session)) => {
                session.data.moved(now, session.control_channel.link);
            }
            (State::Open(Some(_)), None) => {
                self.take_down(out);
                out.event(ClientEvent::Restarting(Reason::NetworkChanged));
                self.start(now, out);
            }
            // The other ends restart their handshakes on their own.
            (State::Open(None), None) => {}
            (State::New | State::Exiting(_) | State::Stopped, _) => {}
        }
    }

    /// Ends for good, after an exit notice if one is configured.
    pub fn shutdown(&mut self, now: Instant, out: &mut Out) {
        self.end(now, Reason::EndRequested, out);
    }

    pub(super) fn end(&mut self, now: Instant, why: Reason, out: &mut Out) {
        let times = self.config.settings.exit_notify;
        match (&mut self.session, &self.state, times) {
            (_, State::Stopped, _) => {}
            // Closing the connection is notice enough.
            (Some(session), State::Open(_), Some(times))
                if !session.control_channel.link.is_stream() =>
            {
                let notices = if session.exit_by_control {
                    let _ = session.control_channel.send_message(ControlMessage::Exit.encode());
                    ExitNotices::on_control_channel(now, times, why)
                } else {
                    ExitNotices::on_data_channel(now, times, why)
                };
                self.state = State::Exiting(notices);
                self.tick(now, out);
            }
            _ => self.stop(why, out),
        }
    }

    /// Stops the engine once its exit notices have been sent.
    pub(super) fn gone(&mut self, out: &mut Out) {
        let why = match &self.state {
            State::Exiting(notices) => notices.reason.clone(),
            _ => Reason::EndRequested,
        };
        self.stop(why, out);
    }

    pub(super) fn stop(&mut self, why: Reason, out: &mut Out) {
        self.take_down(out);
        self.hang_up_all(out);
        self.state = State::Stopped;
        out.event(ClientEvent::Stopped(why));
    }

    /// Removes everything set up outside the engine.
    pub(super) fn take_down(&mut self, out: &mut Out) {
        if !self.listens() {
            self.attempts.clear();
        }
        let session = self.session.take();
        if let Some(session) = &session {
            out.plane(Command::DelPeer(session.data.peer));
        }
        let link = match (&self.state, session) {
            (State::Open(Some(link)), _) => Some(*link),
            (State::Exiting(_), Some(session)) => Some(session.control_channel.link),
            (State::Open(None), Some(session)) if session.control_channel.link.is_stream() => {
                Some(session.control_channel.link)
            }
            _ => None,
        };
        if let Some(link) = link {
            out.push(Output::Hangup(link));
        }
    }

    /// Restarts after a session was lost or, if this end dials, after the handshake failed.
    pub(super) fn lost(&mut self, now: Instant, reason: Reason, out: &mut Out) {
        match self.state {
            State::Stopped => return,
            // This end was ending anyway.
            State::Exiting(_) => return self.gone(out),
            _ => {}
        }
        let had_session = self.session.is_some();
        self.take_down(out);
        out.event(ClientEvent::Restarting(reason));
        if self.config.remote_policy.remotes.is_empty() {
            self.begin_times(now);
            self.state = State::Open(None);
            return;
        }
        let next = if had_session {
            Next::After(self.remotes.after_loss())
        } else {
            self.remotes.advance()
        };
        match next {
            Next::After(wait) => self.state = State::Waiting { until: now + wait },
            Next::Exhausted => {
                self.state = State::Dialing;
                self.stop(Reason::RetriesExhausted, out);
            }
        }
    }

    pub(super) fn begin_times(&mut self, now: Instant) {
        self.ends = session_end(now, self.config.settings.limits.session);
    }

    /// Restarts the time of `ping-exit`, because a packet arrived or may arrive from now on.
    pub(super) fn restart_ping_exit(&mut self, now: Instant) {
        let settings = &self.config.settings;
        self.silent_at = silence_end(now, &settings.limits, settings.keepalive);
    }

    pub(super) fn start(&mut self, now: Instant, out: &mut Out) {
        self.begin_times(now);
        let Some(remote) = self.remotes.current() else {
            self.state = State::Open(None);
            return;
        };
        let target = remote.target.clone();
        out.event(ClientEvent::Connecting(format!("{}:{}", target.host, target.port)));
        out.push(Output::Dial(target));
        self.state = State::Dialing;
    }
}
