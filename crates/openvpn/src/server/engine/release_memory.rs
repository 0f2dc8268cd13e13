//! Releasing the memory of tables that held clients that have gone.

use adit_engine::Instant;

use super::ServerEngine;

impl ServerEngine {
    /// Shrinks every table to its contents. Otherwise a nearly empty table keeps its peak allocation. Call it after many
    /// clients have left: the next clients let the tables grow again.
    pub fn release_memory(&mut self, now: Instant) {
        self.clients.shrink_to_fit();
        self.by_session.shrink_to_fit();
        self.by_ticket.shrink_to_fit();
        self.by_name.shrink_to_fit();
        self.checks.shrink_to_fit();
        self.disputes.release_memory(now);
        self.departing.shrink_to_fit();
        if self.timers.is_empty() {
            // An emptied tree keeps its root.
            self.timers = Default::default();
        }
        self.responder.release_memory(now);
        self.handshakes.shrink_to_fit();
        self.streams.release_memory();
        self.pool.release_memory();
        self.ownership.release_memory();
    }
}
