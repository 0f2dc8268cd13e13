//! Releases the memory of tables after clients have left.

use adit_engine::Instant;

use super::ServerEngine;

impl ServerEngine {
    /// Shrinks every table to its contents. Otherwise a nearly empty table keeps its peak allocation. Call it after
    /// many clients have left. The tables grow again with the next clients.
    pub fn release_memory(&mut self, now: Instant) {
        self.clients.shrink_to_fit();
        self.by_session.shrink_to_fit();
        self.by_ticket.shrink_to_fit();
        self.by_name.shrink_to_fit();
        self.checks.shrink_to_fit();
        self.disputes.release_memory(now);
        self.departing.shrink_to_fit();
        if self.timers.is_empty() {
            // An empty B-tree keeps its root node.
            self.timers = Default::default();
        }
        self.responder.release_memory(now);
        self.handshakes.shrink_to_fit();
        self.verifications.shrink_to_fit();
        self.streams.release_memory();
        self.pool.release_memory();
        self.ownership.release_memory();
    }
}
