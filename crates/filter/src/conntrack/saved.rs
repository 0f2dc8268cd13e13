//! Flows that continue in another process of the same machine, such as a newer version of the program.
//!
//! The rules of that process decide about each flow when its next packet arrives, as after a change of rules.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

use super::clients::Client;
use super::flow::{Flow, SavedFlow};
use super::{Tracker, lock};
use crate::Nanos;

/// The maximum number of flows that pass to another process. A flow takes about 400 bytes as text.
pub const MAX_SAVED: usize = 262_144;

/// The flows of a [`Tracker`], for another process.
#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedFlows {
    /// The names of clients. Flows refer to them by position, from 1 on.
    clients: Vec<String>,
    flows: Vec<SavedFlow>,
    /// The number of flows that do not pass: beyond [`MAX_SAVED`], or of clients without a number of their own.
    left_out: u64,
}

/// The result of [`Tracker::resume`].
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Resumed {
    /// The number of flows that continue.
    pub continued: u64,
    /// The number of flows that do not. Their next packets are those of new flows.
    pub left_out: u64,
}

/// The clients of flows, with their positions in [`SavedFlows::clients`] by number.
#[derive(Default)]
struct Positions {
    names: Vec<String>,
    by_number: HashMap<Client, Client>,
}

impl Positions {
    /// Returns the position of a client; 0 for none. `None` if the client has no number of its own.
    fn of(&mut self, tracker: &Tracker, number: Client) -> Option<Client> {
        if number == 0 {
            return Some(0);
        }
        if let Some(position) = self.by_number.get(&number) {
            return Some(*position);
        }
        let name = tracker.clients().name(number)?;
        self.names.push(name.to_string());
        let position = Client::try_from(self.names.len()).ok()?;
        self.by_number.insert(number, position);
        Some(position)
    }
}

impl Tracker {
    /// Returns the flows that have not expired, for another process.
    pub fn save(&self, now: Nanos) -> SavedFlows {
        let mut saved = SavedFlows::default();
        let mut positions = Positions::default();
        for shard in &self.shards {
            let shard = lock(shard);
            for flow in shard.open(now) {
                let flow = (saved.flows.len() < MAX_SAVED)
                    .then(|| flow.save(|client| positions.of(self, client)))
                    .flatten();
                match flow {
                    Some(flow) => saved.flows.push(flow),
                    None => saved.left_out = saved.left_out.saturating_add(1),
                }
            }
        }
        saved.clients = positions.names;
        saved
    }

    /// Continues the flows of another process. Flows that exist already, or for which there is no room, are left out.
    pub fn resume(&self, saved: SavedFlows, now: Nanos) -> Resumed {
        let SavedFlows { clients, mut flows, left_out } = saved;
        let numbers: Vec<Client> =
            clients.iter().map(|name| self.number(Some(name.as_str()))).collect();
        let number = |position: Client| match position.checked_sub(1) {
            None => Some(0),
            Some(index) => {
                let number = numbers.get(usize::from(index)).copied()?;
                // Otherwise it would share its flows with other clients.
                self.clients().name(number).is_some().then_some(number)
            }
        };
        let mut resumed = Resumed { continued: 0, left_out };
        // Those that have been silent longest are the first to be evicted.
        flows.sort_by_key(SavedFlow::seen);
        for flow in &flows {
            let continues =
                Flow::resume(flow, number, now).is_some_and(|flow| self.enter(flow, now));
            let count = if continues { &mut resumed.continued } else { &mut resumed.left_out };
            *count = count.saturating_add(1);
        }
        resumed
    }

    fn enter(&self, flow: Flow, now: Nanos) -> bool {
        let hash = flow.key.hash(&self.seed);
        let shard = self.shard_of(hash).and_then(|index| self.shards.get(index));
        shard.is_some_and(|shard| lock(shard).resume(flow, hash, now))
    }
}
