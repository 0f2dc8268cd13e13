//! The end of a session with an exit notice to the peer (`explicit-exit-notify`).

use std::time::Duration;

use adit_engine::{Instant, PeerId};

use super::common::exit_notice;
use crate::data_format::{Command, Outbox};
use crate::reason::Reason;

/// How often exit notices on the data channel are repeated.
const EVERY: Duration = Duration::from_millis(200);
/// The time to wait for the acknowledgement of EXIT on the control channel, for each attempt.
const PATIENCE: Duration = Duration::from_secs(1);

/// The announcement that this end exits. It is EXIT on the control channel, which the peer acknowledges, or repeated
/// notices on the data channel.
#[derive(Debug)]
pub(crate) struct ExitNotices {
    left: u8,
    next: Instant,
    /// The reason why the engine ends.
    pub(crate) reason: Reason,
}

impl ExitNotices {
    /// Sends notices on the data channel, the first one at the next tick.
    pub(crate) fn on_data_channel(now: Instant, attempts: u8, reason: Reason) -> Self {
        Self { left: attempts.max(1), next: now, reason }
    }

    /// Waits for the acknowledgement of EXIT, which the caller has sent.
    pub(crate) fn on_control_channel(now: Instant, attempts: u8, reason: Reason) -> Self {
        let patience = PATIENCE.saturating_mul(attempts.max(1).into());
        Self { left: 0, next: now + patience, reason }
    }

    /// Sends the notice that is due. Returns whether the wait after the last notice is over.
    pub(crate) fn tick<E>(&mut self, now: Instant, peer: PeerId, out: &mut Outbox<E>) -> bool {
        if self.next > now {
            return false;
        }
        let Some(left) = self.left.checked_sub(1) else { return true };
        self.left = left;
        self.next = now + EVERY;
        out.plane(Command::SendData(peer, exit_notice()));
        false
    }

    /// Returns when the next step is due.
    pub(crate) fn deadline(&self) -> (Instant, &'static str) {
        (self.next, "exit notice")
    }
}
