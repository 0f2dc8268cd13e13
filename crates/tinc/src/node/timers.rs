//! The timers of a node.

use std::time::Duration;

use adit_engine::Instant;

use super::{CloseReason, ConnectionId, Node, after};
use crate::name::NodeName;

/// The time between two looks at all connections and nodes.
const SECOND: Duration = Duration::from_secs(1);

/// For how long a neighbour's PING must be past before its path is kept alive.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(5);

/// The time after which to continue with what waits for a budget or for room in a queue.
const CONTINUE: Duration = Duration::from_millis(20);

impl Node {
    /// Returns when to call [`Node::tick`] again.
    pub fn deadline(&self) -> Instant {
        let dial = self.outgoing.values().filter_map(super::outgoing::Outgoing::due).min();
        let held = self.held_until();
        let waits = self.graph_changed || !self.syncing.is_empty();
        let soon = waits.then(|| after(self.now, CONTINUE));
        [dial, held, soon].into_iter().flatten().fold(self.next_second, Instant::min)
    }

    /// Time has passed.
    pub fn tick(&mut self, now: Instant) {
        self.now = now;
        if now >= self.next_second {
            self.check_suspended();
            self.next_second = after(now, SECOND);
            self.seen.expire(now);
            self.check_contradictions();
            self.check_connections();
            self.check_udp();
            self.check_sessions();
            self.keep_neighbours();
            self.choose_connections();
        }
        self.start_rounds();
        self.release_held();
        self.finish();
    }

    /// Closes all connections after a suspension: the other ends have given them up.
    fn check_suspended(&mut self) {
        let asleep = self.now.since(self.next_second);
        if asleep <= self.config.udp_discovery_timeout.saturating_mul(2) {
            return;
        }
        let ids: Vec<ConnectionId> = self.connections.keys().copied().collect();
        for id in ids {
            self.close(id, CloseReason::Suspended);
        }
    }

    /// Keeps the UDP paths to neighbours.
    fn keep_neighbours(&mut self) {
        self.refresh();
        let now = self.now;
        let quiet = self.active.iter().filter(|(_, id)| {
            self.connections.get(id).is_some_and(|it| it.is_quiet(now, KEEPALIVE_AFTER))
        });
        let quiet: Vec<NodeName> = quiet.map(|(name, _)| name.clone()).collect();
        for name in quiet {
            self.try_path(&name, false);
        }
    }
}
