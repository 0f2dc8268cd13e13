//! Measures the round trip to a member: sends a record in its session, over the session's path.

use std::collections::BTreeMap;
use std::time::Duration;

use adit_engine::Instant;

use super::record::Record;
use super::{Node, Out, RouteKind};
use crate::session::KeyHash;

/// The number of pings that are unanswered, or whose answer has not been fetched.
const MAX_PINGS: usize = 64;

/// The time after which a ping is forgotten.
const LASTS: Duration = Duration::from_secs(10);

/// The answer to a ping.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Pong {
    /// The round trip.
    pub rtt: Duration,
    /// The path of the answer.
    pub route: RouteKind,
}

/// The pings of the last seconds.
#[derive(Debug, Default)]
pub(super) struct Pings(BTreeMap<u64, Ping>);

#[derive(Debug)]
struct Ping {
    to: KeyHash,
    at: Instant,
    answer: Option<Pong>,
}

impl Node {
    /// Connects to a member, and sends it a ping once there is a session. Returns the number of the ping, or `None` if
    /// there is no session yet, or no room for another ping.
    pub fn ping(&mut self, now: Instant, to: &KeyHash, out: &mut Out) -> Option<u64> {
        self.connect(now, to, out);
        self.pings.0.retain(|_, ping| now.since(ping.at) < LASTS);
        if self.pings.0.len() >= MAX_PINGS {
            return None;
        }
        let nonce = u64::from_be_bytes(self.random.bytes::<8>());
        if !self.send_record(now, to, &Record::Ping { nonce }) {
            return None;
        }
        self.pings.0.insert(nonce, Ping { to: *to, at: now, answer: None });
        Some(nonce)
    }

    /// Returns the answer to a ping, if it has arrived.
    pub fn pong(&self, nonce: u64) -> Option<Pong> {
        self.pings.0.get(&nonce).and_then(|ping| ping.answer)
    }

    /// Processes the answer of a member. No other member can answer in its place, and only the first answer counts.
    pub(super) fn ponged(&mut self, now: Instant, from: &KeyHash, nonce: u64) {
        let route = self.peer(now, from).route;
        if let Some(ping) = self.pings.0.get_mut(&nonce)
            && ping.to == *from
        {
            ping.answer.get_or_insert(Pong { rtt: now.since(ping.at), route });
        }
    }
}

#[cfg(test)]
impl Pings {
    /// Returns the pings of a node that has sent one.
    pub(super) fn sent(nonce: u64, to: KeyHash, at: Instant) -> Self {
        Self([(nonce, Ping { to, at, answer: None })].into())
    }
}
