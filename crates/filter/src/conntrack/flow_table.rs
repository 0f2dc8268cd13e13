//! The storage of flows: slots that never move, an index of them that grows by one bucket at a time (linear hashing, W.
//! Litwin 1980), and a queue for each class. No single insertion pays for growing the whole table.

use super::flow::{Class, Flow, NONE, seconds};
use super::flow_key::FlowKey;
use super::hash::Seed;
use crate::Nanos;

/// The number of flows that are allocated at a time.
pub(super) const SEGMENT: u32 = 256;
/// The number of buckets that are allocated at a time.
const CHUNK: u32 = 1024;
/// The initial number of buckets; a power of two.
const FIRST_BUCKETS: u32 = 64;

#[derive(Debug)]
pub(super) struct FlowTable {
    seed: Seed,
    segments: Vec<Box<[Flow]>>,
    /// The first free slot.
    free: u32,
    chunks: Vec<Box<[u32]>>,
    buckets: u32,
    queues: [Queue; Class::COUNT],
    len: u32,
}

/// The flows of a class, in the order in which they were queued.
#[derive(Copy, Clone, Debug)]
struct Queue {
    oldest: u32,
    newest: u32,
    len: u32,
}

const EMPTY: Queue = Queue { oldest: NONE, newest: NONE, len: 0 };

impl FlowTable {
    pub(super) fn new(seed: Seed) -> Self {
        Self {
            seed,
            segments: Vec::new(),
            free: NONE,
            chunks: Vec::new(),
            buckets: 0,
            queues: [EMPTY; Class::COUNT],
            len: 0,
        }
    }

    pub(super) const fn len(&self) -> u32 {
        self.len
    }

    pub(super) fn class_len(&self, class: Class) -> u32 {
        self.queue(class).len
    }

    /// Returns the number of slots, including free ones.
    pub(super) fn slots(&self) -> u32 {
        u32::try_from(self.segments.len()).unwrap_or(u32::MAX).saturating_mul(SEGMENT)
    }

    /// Returns the allocated bytes.
    pub(super) fn bytes(&self) -> usize {
        let flows = self.segments.len().saturating_mul(SEGMENT as usize);
        let buckets = self.chunks.len().saturating_mul(CHUNK as usize);
        flows
            .saturating_mul(size_of::<Flow>())
            .saturating_add(buckets.saturating_mul(size_of::<u32>()))
            .saturating_add(self.segments.capacity().saturating_mul(size_of::<Box<[Flow]>>()))
            .saturating_add(self.chunks.capacity().saturating_mul(size_of::<Box<[u32]>>()))
    }

    #[inline]
    pub(super) fn get(&self, slot: u32) -> Option<&Flow> {
        self.segments.get((slot / SEGMENT) as usize)?.get((slot % SEGMENT) as usize)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, slot: u32) -> Option<&mut Flow> {
        self.segments.get_mut((slot / SEGMENT) as usize)?.get_mut((slot % SEGMENT) as usize)
    }

    /// Returns the flows of an existing segment, including free slots.
    pub(super) fn segment(&self, index: usize) -> Option<&[Flow]> {
        self.segments.get(index).map(|segment| &**segment)
    }

    #[inline]
    pub(super) fn find(&self, key: &FlowKey, hash: u64) -> Option<u32> {
        let mut slot = self.head(bucket(hash, self.buckets));
        while let Some(flow) = self.get(slot) {
            if flow.key == *key {
                return Some(slot);
            }
            slot = flow.chain;
        }
        None
    }

    /// Inserts a flow that does not exist yet; returns `None` if no more slots can be numbered.
    pub(super) fn insert(&mut self, flow: Flow, hash: u64, now: Nanos) -> Option<u32> {
        let slot = self.take_slot()?;
        // Twice as many buckets as flows keep chains near one flow; two new ones per insertion reach that.
        let wanted = self.len.saturating_add(1).saturating_mul(2).max(FIRST_BUCKETS);
        while self.buckets < FIRST_BUCKETS {
            self.split();
        }
        for _ in 0..2 {
            if self.buckets < wanted {
                self.split();
            }
        }
        let bucket = bucket(hash, self.buckets);
        let (chain, class) = (self.head(bucket), flow.class);
        if let Some(place) = self.get_mut(slot) {
            *place = flow;
            place.chain = chain;
        }
        self.set_head(bucket, slot);
        self.len = self.len.saturating_add(1);
        self.push(slot, class, now);
        Some(slot)
    }

    /// Removes a flow.
    pub(super) fn remove(&mut self, slot: u32) -> Option<Flow> {
        let flow = *self.get(slot)?;
        if flow.class == Class::Free {
            return None;
        }
        self.unlink(slot);
        self.unchain(slot, &flow);
        let free = self.free;
        if let Some(place) = self.get_mut(slot) {
            *place = Flow::empty();
            place.chain = free;
        }
        self.free = slot;
        self.len = self.len.saturating_sub(1);
        Some(flow)
    }

    /// Returns the flow that was queued longest ago in a class.
    pub(super) fn oldest(&self, class: Class) -> Option<u32> {
        let slot = self.queue(class).oldest;
        (slot != NONE).then_some(slot)
    }

    /// Moves a flow to the end of a class's queue.
    pub(super) fn requeue(&mut self, slot: u32, class: Class, now: Nanos) {
        self.unlink(slot);
        self.push(slot, class, now);
    }

    fn take_slot(&mut self) -> Option<u32> {
        if self.free == NONE {
            let first = u32::try_from(self.segments.len()).ok()?.checked_mul(SEGMENT)?;
            let last = first.checked_add(SEGMENT)?;
            let mut segment = vec![Flow::empty(); SEGMENT as usize].into_boxed_slice();
            for (flow, next) in segment.iter_mut().zip(first.saturating_add(1)..last) {
                flow.chain = next;
            }
            self.segments.push(segment);
            self.free = first;
        }
        let slot = self.free;
        self.free = self.get(slot)?.chain;
        Some(slot)
    }

    fn queue(&self, class: Class) -> Queue {
        self.queues.get(class as usize).copied().unwrap_or(EMPTY)
    }

    fn push(&mut self, slot: u32, class: Class, now: Nanos) {
        let newest = self.queue(class).newest;
        if let Some(flow) = self.get_mut(slot) {
            flow.class = class;
            flow.queued = seconds(now);
            flow.older = newest;
            flow.newer = NONE;
        }
        if let Some(before) = self.get_mut(newest) {
            before.newer = slot;
        }
        if let Some(queue) = self.queues.get_mut(class as usize) {
            if newest == NONE {
                queue.oldest = slot;
            }
            queue.newest = slot;
            queue.len = queue.len.saturating_add(1);
        }
    }

    fn unlink(&mut self, slot: u32) {
        let Some(&Flow { class, newer, older, .. }) = self.get(slot) else { return };
        if let Some(flow) = self.get_mut(newer) {
            flow.older = older;
        }
        if let Some(flow) = self.get_mut(older) {
            flow.newer = newer;
        }
        if let Some(queue) = self.queues.get_mut(class as usize) {
            if queue.oldest == slot {
                queue.oldest = newer;
            }
            if queue.newest == slot {
                queue.newest = older;
            }
            queue.len = queue.len.saturating_sub(1);
        }
    }

    fn unchain(&mut self, slot: u32, flow: &Flow) {
        let bucket = bucket(flow.key.hash(&self.seed), self.buckets);
        let mut before = self.head(bucket);
        if before == slot {
            return self.set_head(bucket, flow.chain);
        }
        while let Some(other) = self.get_mut(before) {
            if other.chain == slot {
                other.chain = flow.chain;
                return;
            }
            before = other.chain;
        }
    }

    fn head(&self, bucket: u32) -> u32 {
        self.chunks
            .get((bucket / CHUNK) as usize)
            .and_then(|chunk| chunk.get((bucket % CHUNK) as usize))
            .copied()
            .unwrap_or(NONE)
    }

    fn set_head(&mut self, bucket: u32, slot: u32) {
        let chunk = self.chunks.get_mut((bucket / CHUNK) as usize);
        if let Some(head) = chunk.and_then(|chunk| chunk.get_mut((bucket % CHUNK) as usize)) {
            *head = slot;
        }
    }

    /// Adds one bucket, and moves into it its part of the flows from the bucket that served both.
    fn split(&mut self) {
        let new = self.buckets;
        if (new / CHUNK) as usize >= self.chunks.len() {
            self.chunks.push(vec![NONE; CHUNK as usize].into_boxed_slice());
        }
        self.buckets = new.saturating_add(1);
        if new == 0 {
            return;
        }
        // `new` without its highest bit.
        let old = new & !(1u32 << new.ilog2());
        let (mut stay, mut go) = (NONE, NONE);
        let mut slot = self.head(old);
        let (seed, buckets) = (self.seed, self.buckets);
        while let Some(flow) = self.get_mut(slot) {
            let chain = flow.chain;
            let list =
                if bucket(flow.key.hash(&seed), buckets) == new { &mut go } else { &mut stay };
            flow.chain = *list;
            *list = slot;
            slot = chain;
        }
        self.set_head(old, stay);
        self.set_head(new, go);
    }
}

/// Returns the bucket of a hash in a table of this many buckets. A bucket that does not exist yet is still part of the
/// bucket with the same number less its highest bit.
#[inline]
fn bucket(hash: u64, buckets: u32) -> u32 {
    let mask = buckets.checked_next_power_of_two().unwrap_or(u32::MAX).saturating_sub(1);
    let bucket = hash as u32 & mask;
    if bucket < buckets { bucket } else { bucket & mask >> 1 }
}
