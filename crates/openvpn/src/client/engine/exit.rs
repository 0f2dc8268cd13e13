//! Ends a client, with its exit notices.

use adit_engine::Instant;

use super::{ClientEngine, ExitingSession, Out, State};
use crate::negotiate::ControlMessage;
use crate::reason::Reason;
use crate::session::ExitNotices;

impl ClientEngine {
    /// Ends the client for good, after an exit notice if one is configured.
    pub fn shutdown(&mut self, now: Instant, out: &mut Out) {
        self.end(now, Reason::EndRequested, out);
    }

    pub(super) fn end(&mut self, now: Instant, why: Reason, out: &mut Out) {
        match std::mem::replace(&mut self.state, State::Stopped) {
            State::Up(mut tunnel) if tunnel.exit_attempts.is_some() => {
                let attempts = tunnel.exit_attempts.unwrap_or(1);
                let notices = if tunnel.exit_by_control {
                    let message = ControlMessage::Exit.encode();
                    let _ = tunnel.control_channel.send_message(message);
                    let _ = tunnel.control_channel.flush(now, self.clock.at(now), out);
                    ExitNotices::on_control_channel(now, attempts, why)
                } else {
                    ExitNotices::on_data_channel(now, attempts, why)
                };
                let leaving = ExitingSession { tunnel, notices };
                self.state = State::Exiting(Box::new(leaving));
                self.tick(now, out);
            }
            State::Stopped => {}
            former => {
                self.state = former;
                self.stop(why, out);
            }
        }
    }

    /// Stops the client after its exit notices.
    pub(super) fn gone(&mut self, out: &mut Out) {
        let why = match &self.state {
            State::Exiting(leaving) => leaving.notices.reason.clone(),
            _ => Reason::EndRequested,
        };
        self.stop(why, out);
    }

    pub(super) fn tick_exit(&mut self, now: Instant, out: &mut Out) {
        let State::Exiting(leaving) = &mut self.state else { return };
        let ExitingSession { tunnel, notices } = &mut **leaving;
        let acknowledged = tunnel.exit_by_control && tunnel.control_channel.all_acknowledged();
        let over = notices.tick(now, tunnel.data.peer, out);
        if over || acknowledged || tunnel.control_channel.expired(now) {
            return self.gone(out);
        }
        self.settle(now, Ok(()), out);
    }
}
