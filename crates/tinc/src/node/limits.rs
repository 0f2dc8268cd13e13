//! The limits of what one neighbour can make a node store and do.
//!
//! Topology is unsigned, so an entry is counted for the neighbour that announced it first. A neighbour may be the only way to the whole net,
//! so its share is half of each table; the other half remains for all others. Announcements beyond a limit are dropped, counted, and
//! reported with the neighbour's name.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::hash::Hash;
use std::net::IpAddr;
use std::time::Duration;

use adit_engine::{AddressQuota, Instant, Rate, TokenBucket};

use super::count;
use crate::graph::{MAX_EDGES, MAX_NODES, MAX_SUBNETS};
use crate::name::NodeName;
use crate::subnet::Subnet;

/// The number of lines about the topology that a neighbour may send at once, and then a second: a new connection begins with all of it.
const LINES: Rate = Rate::new(LINES_AT_ONCE, Duration::from_secs(LINES_AT_ONCE / LINES_PER_SECOND));
const LINES_AT_ONCE: u64 = 65_536;
const LINES_PER_SECOND: u64 = 2_048;

/// The time between two reports about a neighbour.
const REPORT_INTERVAL: Duration = Duration::from_secs(60);

/// A limit that a neighbour exceeds.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, thiserror::Error)]
pub enum Excess {
    /// Nodes.
    #[error("too many nodes")]
    Nodes,
    /// Edges.
    #[error("too many edges")]
    Edges,
    /// Subnets.
    #[error("too many subnets")]
    Subnets,
    /// Lines in a period.
    #[error("too many lines about the topology")]
    Lines,
}

/// The limits, by neighbour.
#[derive(Debug)]
pub(super) struct Limits {
    pub(super) nodes: Share<NodeName>,
    pub(super) edges: Share<(NodeName, NodeName)>,
    pub(super) subnets: Share<(NodeName, Subnet)>,
    neighbours: BTreeMap<NodeName, Neighbour>,
}

#[derive(Debug, Default)]
struct Neighbour {
    lines: TokenBucket,
    dropped: u64,
    reported: Option<Instant>,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            nodes: Share::new(MAX_NODES / 2),
            edges: Share::new(MAX_EDGES / 2),
            subnets: Share::new(MAX_SUBNETS / 2),
            neighbours: BTreeMap::new(),
        }
    }
}

impl Limits {
    /// Counts a line. Returns whether the neighbour may send it.
    pub(super) fn line(&mut self, now: Instant, neighbour: &NodeName) -> bool {
        self.neighbour(neighbour).lines.take_whole(now, LINES).is_ok()
    }

    /// Counts an announcement that was dropped. Returns whether to report it now.
    pub(super) fn exceeded(&mut self, now: Instant, neighbour: &NodeName) -> bool {
        count(&mut self.neighbour(neighbour).dropped);
        self.may_report(now, neighbour)
    }

    /// Returns whether to report something about a neighbour now.
    pub(super) fn may_report(&mut self, now: Instant, neighbour: &NodeName) -> bool {
        let neighbour = self.neighbour(neighbour);
        let due = neighbour.reported.is_none_or(|at| now.since(at) >= REPORT_INTERVAL);
        if due {
            neighbour.reported = Some(now);
        }
        due
    }

    /// Returns the number of announcements of a neighbour that were dropped.
    pub(super) fn dropped(&self, neighbour: &NodeName) -> u64 {
        self.neighbours.get(neighbour).map_or(0, |neighbour| neighbour.dropped)
    }

    /// Only nodes with a host file are neighbours, which bounds their number.
    fn neighbour(&mut self, name: &NodeName) -> &mut Neighbour {
        self.neighbours.entry(name.clone()).or_default()
    }
}

/// The inbound connections that began a short while ago, and whose peers have not proved who they are. One address gets at most half of them, so that
/// one stranger cannot keep all others away.
#[derive(Debug)]
pub(super) struct Started {
    all: TokenBucket,
    places: AddressQuota,
    taken: VecDeque<(Instant, IpAddr)>,
    /// For how long a connection has its place.
    keep: Duration,
}

impl Started {
    /// Creates the limits. `burst` is `MaxConnectionBurst`, of which one comes back each second.
    pub(super) fn new(burst: u32) -> Self {
        // In the time in which a connection keeps its place, twice as many begin at most.
        let most = usize::try_from(burst).unwrap_or(usize::MAX).saturating_mul(2);
        let (all, places) = (TokenBucket::new(), AddressQuota::new(most, 3));
        Self { all, places, taken: VecDeque::new(), keep: Duration::from_secs(burst.into()) }
    }

    /// Counts a connection. Returns whether it may begin.
    pub(super) fn take(&mut self, now: Instant, rate: Rate, from: IpAddr) -> bool {
        while let Some((at, old)) = self.taken.front().copied()
            && now.since(at) >= self.keep
        {
            self.taken.pop_front();
            self.places.release(old);
        }
        if !self.places.take(from) {
            return false;
        }
        if self.all.take_whole(now, rate).is_err() {
            self.places.release(from);
            return false;
        }
        self.taken.push_back((now, from));
        true
    }

    /// The peer of a connection has proved who it is.
    pub(super) fn proved(&mut self, from: IpAddr) {
        if let Some(at) = self.taken.iter().position(|(_, taken)| *taken == from) {
            self.taken.remove(at);
            self.places.release(from);
        }
    }
}

/// The entries of a table, by the neighbour that announced them.
#[derive(Debug)]
pub(super) struct Share<K> {
    most: usize,
    announced_by: HashMap<K, NodeName>,
    taken: HashMap<NodeName, usize>,
}

impl<K: Eq + Hash> Share<K> {
    pub(super) fn new(most: usize) -> Self {
        Self { most, announced_by: HashMap::new(), taken: HashMap::new() }
    }

    /// Counts a new entry for a neighbour, unless it has too many. Returns whether it did.
    pub(super) fn take(&mut self, key: K, neighbour: &NodeName) -> bool {
        if self.announced_by.contains_key(&key) {
            return true;
        }
        let taken = self.taken.entry(neighbour.clone()).or_default();
        if *taken >= self.most {
            return false;
        }
        *taken = taken.saturating_add(1);
        self.announced_by.insert(key, neighbour.clone());
        true
    }

    /// Removes an entry.
    pub(super) fn release(&mut self, key: &K) {
        let Some(neighbour) = self.announced_by.remove(key) else { return };
        let Some(taken) = self.taken.get_mut(&neighbour) else { return };
        *taken = taken.saturating_sub(1);
        if *taken == 0 {
            self.taken.remove(&neighbour);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    #[test]
    fn a_neighbour_gets_its_share_and_no_more() {
        let mut share = Share::new(2);
        assert!(share.take(1, &name("bob")) && share.take(2, &name("bob")));
        assert!(!share.take(3, &name("bob")), "the share is used up");
        assert!(share.take(2, &name("bob")), "counted already");
        assert!(share.take(3, &name("carol")), "another neighbour's share");
        share.release(&1);
        assert!(share.take(4, &name("bob")));
        share.release(&9);
        [2, 3, 4].iter().for_each(|key| share.release(key));
        assert!(share.announced_by.is_empty() && share.taken.is_empty());
    }

    #[test]
    fn a_neighbour_that_sends_too_many_lines_is_named_once_a_minute() {
        let mut limits = Limits::default();
        let now = Instant::from_nanos(1_000_000_000_000);
        let bob = name("bob");
        assert!((0..LINES_AT_ONCE).all(|_| limits.line(now, &bob)));
        assert!(!limits.line(now, &bob));
        assert!(limits.line(now, &name("carol")));
        assert!(limits.line(now + Duration::from_secs(1), &bob));
        assert!(limits.exceeded(now, &bob));
        assert!(!limits.exceeded(now, &bob));
        assert!(limits.exceeded(now + REPORT_INTERVAL, &bob));
        assert_eq!(limits.dropped(&bob), 3);
    }
}
