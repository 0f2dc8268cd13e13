//! The ends of sessions about which their clients are notified.
//!
//! The message goes over the control channel, which repeats it until the client acknowledges it. The session itself
//! ends at once: its keys and addresses are gone.

use adit_engine::{Instant, PeerId};

use super::{EndedSession, Out, REFUSAL_PATIENCE, ServerEngine};
use crate::negotiate::ControlMessage;
use crate::reason::Reason;
use crate::server::client::Stage;
use crate::server::event::ServerEvent;

/// The maximum number of ended sessions whose clients have not acknowledged the message. Beyond this number, the message
/// is sent once and counted.
pub(super) const MAX_ENDED: usize = 256;

impl ServerEngine {
    /// Ends a client with a message, which is repeated until the client acknowledges it.
    pub(super) fn end_with(
        &mut self,
        now: Instant,
        peer: PeerId,
        message: &ControlMessage,
        reason: Reason,
        out: &mut Out,
    ) {
        self.say(now, peer, message, out);
        let Some(client) = self.clients.get_mut(&peer) else { return };
        // A stream delivers what was sent before its end.
        if client.connected().is_none() || client.control_channel.link.is_stream() {
            return self.remove(peer, reason, out);
        }
        if self.ended >= MAX_ENDED {
            self.counters.ended_unconfirmed += 1;
            return self.remove(peer, reason, out);
        }
        let until = now + REFUSAL_PATIENCE;
        let ended = Stage::Ended { until, reason: reason.clone() };
        let connected = match std::mem::replace(&mut client.stage, ended) {
            Stage::Connected(connected) => connected,
            other => {
                client.stage = other;
                return;
            }
        };
        self.ended += 1;
        if self.config.checks.connect && client.requested {
            out.event(ServerEvent::Ending(client.number));
        }
        let departing = EndedSession { reason, control: client.control_channel.traffic };
        self.end_session(peer, *connected, departing, out);
        self.schedule(peer);
    }
}
