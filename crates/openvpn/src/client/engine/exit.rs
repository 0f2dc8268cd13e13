//! The end of a client, with its exit notices.

use std::time::Duration;

use adit_engine::{Command, Instant};

use super::{ClientEngine, Exiting, Out, State};
use crate::negotiate::ControlMessage;
use crate::reason::Reason;
use crate::session::exit_notice;

/// The interval at which exit notices on the data channel are repeated.
const EXIT_NOTICE_EVERY: Duration = Duration::from_millis(200);
/// The time to wait for the acknowledgement of an exit notice on the control channel.
const EXIT_PATIENCE: Duration = Duration::from_secs(1);

impl ClientEngine {
    /// Ends the client for good, after an exit notice if one is configured.
    pub fn shutdown(&mut self, now: Instant, out: &mut Out) {
        self.end(now, Reason::EndRequested, out);
    }

    pub(super) fn end(&mut self, now: Instant, why: Reason, out: &mut Out) {
        match std::mem::replace(&mut self.state, State::Stopped) {
            State::Up(mut tunnel) if tunnel.exit_attempts.is_some() => {
                let attempts = tunnel.exit_attempts.unwrap_or(1).max(1);
                let mut notices_left = attempts;
                if tunnel.exit_by_control {
                    let message = ControlMessage::Exit.encode();
                    let _ = tunnel.control_channel.send_message(message);
                    let _ = tunnel.control_channel.flush(now, self.clock.at(now), out);
                    notices_left = 0;
                }
                let next =
                    if notices_left > 0 { now } else { now + EXIT_PATIENCE * attempts.into() };
                let leaving = Exiting { tunnel: *tunnel, notices_left, next, why };
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
            State::Exiting(leaving) => leaving.why.clone(),
            _ => Reason::EndRequested,
        };
        self.stop(why, out);
    }

    pub(super) fn tick_exit(&mut self, now: Instant, out: &mut Out) {
        let State::Exiting(leaving) = &mut self.state else { return };
        let acknowledged =
            leaving.tunnel.exit_by_control && leaving.tunnel.control_channel.all_acknowledged();
        if leaving.notices_left > 0 && leaving.next <= now {
            leaving.notices_left -= 1;
            leaving.next = now + EXIT_NOTICE_EVERY;
            out.plane(Command::SendData(leaving.tunnel.data.peer, exit_notice()));
        } else if acknowledged || leaving.next <= now || leaving.tunnel.control_channel.expired(now)
        {
            return self.gone(out);
        }
        self.settle(now, Ok(()), out);
    }
}
