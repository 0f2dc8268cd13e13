//! Dialling, end and restart of a client.

use std::time::Duration;

use adit_engine::{Instant, Link};

use super::{Attempt, ClientEngine, Out, State, Tunnel};
use crate::client::{ClientEvent, Next};
use crate::data_format::{Command, Output};
use crate::negotiate::AdvanceTo;
use crate::packet::{Opcode, SessionId};
use crate::reason::Reason;
use crate::session::{ControlChannel, session_end, silence_end};
use crate::tls::TlsSession;
use crate::wrap::{WrapConfig, Wrapper};

impl ClientEngine {
    /// Ends the session and connects to the same server again.
    pub fn restart(&mut self, now: Instant, out: &mut Out) {
        self.lost(now, Reason::RestartRequested, out);
    }

    /// Processes a change of the path to the server, or its recovery after an outage. During a wait or an attempt the client restarts at
    /// once. A session continues and searches for the path's MTU again. A session over a stream ends if the stream is `stale`: its local
    /// address is gone.
    pub fn path_changed(&mut self, now: Instant, stale: bool, out: &mut Out) {
        match &mut self.state {
            State::Waiting { until } => *until = now,
            State::Asking => {}
            State::Dialing => self.dial(out),
            State::Connecting(_) => {
                self.leave(out);
                out.event(ClientEvent::Restarting(Reason::NetworkChanged));
                self.dial(out);
            }
            State::Up(tunnel) if stale && tunnel.control_channel.link.is_stream() => {
                self.lost(now, Reason::NetworkChanged, out);
                self.state = State::Waiting { until: now };
            }
            State::Up(tunnel) => tunnel.data.moved(now, tunnel.control_channel.link),
            State::New | State::Exiting(_) | State::Stopped => {}
        }
    }

    pub(super) fn stop(&mut self, why: Reason, out: &mut Out) {
        self.leave(out);
        self.state = State::Stopped;
        out.event(ClientEvent::Stopped(why));
    }

    /// Removes everything that the state set up outside the engine.
    pub(super) fn leave(&mut self, out: &mut Out) {
        self.question = None;
        let link = match std::mem::replace(&mut self.state, State::Stopped) {
            State::Connecting(attempt) => attempt.control_channel.link,
            State::Up(tunnel) => take_down(&tunnel, out),
            State::Exiting(leaving) => take_down(&leaving.tunnel, out),
            State::New
            | State::Waiting { .. }
            | State::Asking
            | State::Dialing
            | State::Stopped => return,
        };
        out.push(Output::Hangup(link));
    }

    /// Ends a lost session and connects to the same server again.
    pub(super) fn lost(&mut self, now: Instant, reason: Reason, out: &mut Out) {
        if matches!(self.state, State::Exiting(_)) {
            // We were ending anyway. An exit message from the server that crossed ours must not
            // make us reconnect.
            return self.gone(out);
        }
        self.leave(out);
        out.event(ClientEvent::Restarting(reason));
        self.state = State::Waiting { until: now + self.remotes.after_loss() };
    }

    /// Continues with the next server after the session's stream ended. The next server may be the
    /// same one over another transport.
    pub(super) fn cut_off(&mut self, now: Instant, out: &mut Out) {
        let wait = self.remotes.move_on();
        self.lost(now, Reason::ConnectionReset, out);
        if let State::Waiting { until } = &mut self.state {
            *until = now + wait;
        }
    }

    /// Ends a failed attempt and continues with the next server.
    pub(super) fn failed(&mut self, now: Instant, reason: Reason, out: &mut Out) {
        self.failed_with(now, reason, AdvanceTo::Address, None, out);
    }

    pub(super) fn failed_with(
        &mut self,
        now: Instant,
        reason: Reason,
        advance: AdvanceTo,
        at_least: Option<Duration>,
        out: &mut Out,
    ) {
        if matches!(self.state, State::Exiting(_)) {
            return self.gone(out);
        }
        self.leave(out);
        let next = match advance {
            AdvanceTo::Stay => Next::After(self.remotes.after_loss()),
            AdvanceTo::Address | AdvanceTo::Remote => self.remotes.advance(),
        };
        match next {
            Next::Exhausted => {
                out.event(ClientEvent::Restarting(reason));
                self.stop(Reason::RetriesExhausted, out);
            }
            Next::After(wait) => {
                out.event(ClientEvent::Restarting(reason));
                // A server may request a longer wait, but not longer than the longest of
                // `connect-retry`, as in OpenVPN.
                let (first, longest) = self.config.connect_retry;
                let asked = at_least.unwrap_or_default().min(longest.max(first));
                self.state = State::Waiting { until: now + wait.max(asked) };
            }
        }
    }

    pub(super) fn dial(&mut self, out: &mut Out) {
        if self.lacks_credentials() {
            return self.ask_before_dialling(out);
        }
        let Some(remote) = self.remotes.current() else {
            return self.stop(Reason::RetriesExhausted, out);
        };
        let target = remote.target.clone();
        out.event(ClientEvent::Connecting(format!("{}:{}", target.host, target.port)));
        out.push(Output::Dial(target));
        self.state = State::Dialing;
    }

    pub(super) fn connect(&mut self, now: Instant, link: Link, out: &mut Out) {
        let settings = &self.config.settings;
        let attempt = Wrapper::client(&settings.wrap).map_err(Reason::from).and_then(|wrapper| {
            let reset = match settings.wrap {
                WrapConfig::TlsCryptV2Client { .. } => Opcode::HardResetClientV3,
                _ => Opcode::HardResetClientV2,
            };
            let local = SessionId(self.random.bytes());
            let tls = TlsSession::client(&self.config.tls)?;
            let mut control_channel =
                ControlChannel::open(now, link, local, reset, wrapper, tls, settings);
            control_channel.flush(now, self.clock.at(now), out)?;
            Ok(control_channel)
        });
        match attempt {
            Ok(control_channel) => {
                let own = self.remotes.current().and_then(|remote| remote.target.wait);
                let answer_by = Some(now + own.unwrap_or(self.config.server_poll_timeout));
                let limits = &self.config.settings.limits;
                let silent_at = silence_end(now, limits, self.config.keepalive);
                let ends = session_end(now, limits.session);
                let attempt = Attempt {
                    control_channel,
                    answer_by,
                    silent_at,
                    ends,
                    pull: None,
                    checked_at: None,
                };
                self.state = State::Connecting(Box::new(attempt));
            }
            Err(reason) => {
                out.push(Output::Hangup(link));
                self.failed(now, reason, out);
            }
        }
    }
}

pub(super) fn take_down(tunnel: &Tunnel, out: &mut Out) -> Link {
    out.plane(Command::DelPeer(tunnel.data.peer));
    tunnel.control_channel.link
}
