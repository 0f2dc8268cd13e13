//! Queues of packets that wait for a commit. They contain whole super-packets, one queue per stream, and share a limit.
//!
//! If the queues are full, the oldest packet of the longest queue is dropped, so a stream that cannot be written takes
//! no space from the others. CoDel (RFC 8289) shortens a standing queue when packets are taken from it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use adit_engine::Instant;
use adit_wire::VnetHeader;

use crate::StreamId;
use crate::limits::{EXPIRED_MS, QUEUE_BYTES, SUPER_PACKET};

/// The numbers of packets that were not sent, by reason.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct DropCounts {
    /// Dropped from the front of the longest queue because the queues were full.
    pub full: u64,
    /// Dropped by CoDel (RFC 8289), because the queue was long for too long.
    pub codel: u64,
    /// Dropped because a receiver would no longer deliver them ([`EXPIRED_MS`]).
    pub old: u64,
    /// Dropped because no node owns the destination.
    pub no_route: u64,
    /// Dropped because it is not an IP packet, is longer than the packet size, or cannot be segmented as the device
    /// requests.
    pub malformed: u64,
    /// Dropped because the stream was removed, or refused by the seal.
    pub closed: u64,
}

/// Adds one.
pub(crate) fn count(counter: &mut u64) {
    *counter = counter.saturating_add(1);
}

/// Returns the time that is `by` after `at`, with saturation.
pub(crate) fn later(at: Instant, by: Duration) -> Instant {
    let by = u64::try_from(by.as_nanos()).unwrap_or(u64::MAX);
    Instant::from_nanos(at.as_nanos().saturating_add(by))
}

/// The sizes of buffers. With a single size, a queue of small packets would take a multiple of their length.
const CLASSES: [usize; 4] = [256, 2048, 16384, SUPER_PACKET.next_power_of_two()];

/// A waiting super-packet.
#[derive(Debug)]
pub(crate) struct Waiting {
    at: Instant,
    class: usize,
    pub(crate) vnet: VnetHeader,
    pub(crate) bytes: Vec<u8>,
}

/// The buffers of waiting packets, and those kept for later ones.
#[derive(Debug)]
struct Pool {
    free: [Vec<Vec<u8>>; CLASSES.len()],
    /// The memory of all buffers, in use or free; never more than `limit`.
    memory: usize,
    limit: usize,
}

impl Pool {
    fn take(&mut self, class: usize) -> Option<Vec<u8>> {
        if let Some(buffer) = self.free.get_mut(class)?.pop() {
            return Some(buffer);
        }
        let size = *CLASSES.get(class)?;
        // Start with the largest ones, because they free memory soonest.
        for (free, each) in self.free.iter_mut().zip(CLASSES).rev() {
            while self.memory.saturating_add(size) > self.limit && free.pop().is_some() {
                self.memory = self.memory.saturating_sub(each);
            }
        }
        let memory = self.memory.saturating_add(size);
        if memory > self.limit {
            return None;
        }
        self.memory = memory;
        Some(Vec::with_capacity(size))
    }

    fn give(&mut self, class: usize, mut buffer: Vec<u8>) {
        buffer.clear();
        if let Some(free) = self.free.get_mut(class) {
            free.push(buffer);
        }
    }
}

/// The queue of one stream.
#[derive(Debug, Default)]
struct Flow {
    waiting: VecDeque<Waiting>,
    /// The memory of these packets' buffers.
    memory: usize,
    codel: Codel,
    /// Whether CoDel has already accepted the first packet, which did not fit into the batch.
    passed: bool,
}

impl Flow {
    fn pop(&mut self) -> Option<Waiting> {
        self.passed = false;
        let first = self.waiting.pop_front()?;
        self.memory = self.memory.saturating_sub(CLASSES.get(first.class).copied().unwrap_or(0));
        Some(first)
    }
}

/// The maximum times for which packets may wait.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct CodelParams {
    pub(crate) target: Duration,
    pub(crate) interval: Duration,
}

impl CodelParams {
    /// Returns parameters for commits of this duration. Packets that arrive during a commit wait for its end, and then
    /// for their own commit.
    pub(crate) fn for_commits_of(commit: Duration) -> Self {
        let target = commit.saturating_mul(2).max(Duration::from_millis(5));
        Self { target, interval: target.saturating_mul(2).max(Duration::from_millis(100)) }
    }
}

/// The state of CoDel (RFC 8289, section 5).
#[derive(Debug, Default)]
struct Codel {
    /// The time when the queue will have been above target for an interval.
    first_above: Option<Instant>,
    dropping: bool,
    drop_next: Instant,
    count: u32,
    last_count: u32,
}

impl Codel {
    /// Returns whether a packet that waited for `sojourn`, with `left` bytes behind it, may be dropped.
    fn may_drop(
        &mut self,
        now: Instant,
        sojourn: Duration,
        left: usize,
        params: CodelParams,
    ) -> bool {
        if sojourn < params.target || left <= SUPER_PACKET {
            self.first_above = None;
            return false;
        }
        match self.first_above {
            None => {
                self.first_above = Some(later(now, params.interval));
                false
            }
            Some(at) => now >= at,
        }
    }

    fn next(&self, from: Instant, interval: Duration) -> Instant {
        later(from, interval.div_f64(f64::from(self.count.max(1)).sqrt()))
    }

    /// Returns whether to drop this packet.
    fn should_drop(&mut self, now: Instant, above: bool, interval: Duration) -> bool {
        if !above {
            self.dropping = false;
            return false;
        }
        if self.dropping {
            if now < self.drop_next {
                return false;
            }
            self.count = self.count.saturating_add(1);
            self.drop_next = self.next(self.drop_next, interval);
            return true;
        }
        self.dropping = true;
        // The last drops were recent, so continue at their rate.
        let delta = self.count.saturating_sub(self.last_count);
        let recent = now.since(self.drop_next) < interval.saturating_mul(16);
        self.count = if delta > 1 && recent { delta } else { 1 };
        self.last_count = self.count;
        self.drop_next = self.next(now, interval);
        true
    }
}

/// The queues of all streams.
#[derive(Debug)]
pub(crate) struct Queues {
    flows: BTreeMap<StreamId, Flow>,
    pool: Pool,
    pub(crate) dropped: DropCounts,
}

impl Queues {
    pub(crate) fn new() -> Self {
        let pool = Pool { free: Default::default(), memory: 0, limit: QUEUE_BYTES };
        Self { flows: BTreeMap::new(), pool, dropped: DropCounts::default() }
    }

    pub(crate) fn add(&mut self, stream: StreamId) {
        self.flows.entry(stream).or_default();
    }

    pub(crate) fn remove(&mut self, stream: StreamId) {
        let Some(mut flow) = self.flows.remove(&stream) else { return };
        while let Some(waiting) = flow.pop() {
            count(&mut self.dropped.closed);
            self.recycle(waiting);
        }
    }

    /// Returns the memory of all buffers in bytes.
    pub(crate) fn memory(&self) -> usize {
        self.pool.memory
    }

    pub(crate) fn is_waiting(&self, stream: StreamId) -> bool {
        self.flows.get(&stream).is_some_and(|flow| !flow.waiting.is_empty())
    }

    /// Copies `packet` to the end of its stream's queue.
    pub(crate) fn push(&mut self, now: Instant, stream: StreamId, vnet: VnetHeader, packet: &[u8]) {
        if !self.flows.contains_key(&stream) {
            return count(&mut self.dropped.no_route);
        }
        let class = CLASSES.iter().position(|size| packet.len() <= *size);
        let Some(class) = class.filter(|_| packet.len() <= SUPER_PACKET) else {
            return count(&mut self.dropped.malformed);
        };
        let mut bytes = loop {
            if let Some(buffer) = self.pool.take(class) {
                break buffer;
            }
            if !self.drop_oldest() {
                return count(&mut self.dropped.full);
            }
        };
        bytes.extend_from_slice(packet);
        if let Some(flow) = self.flows.get_mut(&stream) {
            flow.memory = flow.memory.saturating_add(CLASSES.get(class).copied().unwrap_or(0));
            flow.waiting.push_back(Waiting { at: now, class, vnet, bytes });
        }
    }

    /// Makes room by dropping the oldest packet of the stream whose packets take the most memory.
    fn drop_oldest(&mut self) -> bool {
        let longest = self.flows.values_mut().max_by_key(|flow| flow.memory);
        let Some(oldest) = longest.and_then(Flow::pop) else { return false };
        count(&mut self.dropped.full);
        self.recycle(oldest);
        true
    }

    /// Drops packets that are too old for any receiver to deliver.
    pub(crate) fn age(&mut self, now: Instant) {
        for flow in self.flows.values_mut() {
            while flow.waiting.front().is_some_and(|first| is_old(now, first)) {
                let Some(Waiting { class, bytes, .. }) = flow.pop() else { break };
                count(&mut self.dropped.old);
                self.pool.give(class, bytes);
            }
        }
    }

    /// Drops packets from the front that are too old or that CoDel selects. Returns the split of the first remaining
    /// one, and its length.
    pub(crate) fn drop_expired(
        &mut self,
        now: Instant,
        stream: StreamId,
        params: CodelParams,
    ) -> Option<(VnetHeader, usize)> {
        let flow = self.flows.get_mut(&stream)?;
        while let Some(first) = flow.waiting.front() {
            if flow.passed {
                return Some((first.vnet, first.bytes.len()));
            }
            let own = CLASSES.get(first.class).copied().unwrap_or(0);
            let behind = flow.memory.saturating_sub(own);
            let old = is_old(now, first);
            let above = flow.codel.may_drop(now, now.since(first.at), behind, params);
            if old {
                count(&mut self.dropped.old);
            } else if flow.codel.should_drop(now, above, params.interval) {
                count(&mut self.dropped.codel);
            } else {
                flow.passed = true;
                continue;
            }
            if let Some(first) = flow.pop() {
                self.pool.give(first.class, first.bytes);
            }
        }
        (flow.codel.first_above, flow.codel.dropping) = (None, false);
        None
    }

    /// Returns the packet that [`Self::drop_expired`] has reported. Give it back with [`Self::recycle`].
    pub(crate) fn pop(&mut self, stream: StreamId) -> Option<Waiting> {
        self.flows.get_mut(&stream)?.pop()
    }

    pub(crate) fn recycle(&mut self, waiting: Waiting) {
        self.pool.give(waiting.class, waiting.bytes);
    }
}

fn is_old(now: Instant, waiting: &Waiting) -> bool {
    now.since(waiting.at) > Duration::from_millis(EXPIRED_MS)
}

#[cfg(test)]
mod tests;
