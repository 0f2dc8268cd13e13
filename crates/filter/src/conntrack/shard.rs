//! A part of the table, under one lock: the effect of a packet on its flow, and eviction.

use super::clients::{Client, Clients};
use super::flow::{Class, Flow, seconds, sixteenths, source_hash};
use super::flow_key::{FlowKey, FlowTuple};
use super::flow_table::{FlowTable, SEGMENT};
use super::hash::Seed;
use super::tcp::{Outcome, Segment, State, Tcp};
use super::{FlowEnds, FlowInfo, Invalid, Limits, Timeouts};
use crate::Nanos;
use crate::packet::Packet;
use crate::ruleset::{CtDirection, CtState};
use adit_wire::ip::{ICMP, ICMPV6, TCP, UDP};
use std::time::Duration;

/// The maximum number of flows that are checked for expiry at once.
const SWEEP: u32 = 64;
/// The interval of these checks.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// The maximum number of seconds until a flow is checked again.
const LOOK_AGAIN: u16 = 300;
/// The flow that has been silent longest among this many of the longest-queued flows is evicted.
const CANDIDATES: usize = 8;
/// The number of slots, including free ones, that are sampled to find a flow of a source that exceeds its share.
const SAMPLE: u32 = 64;
const SAMPLE_SLOTS: u32 = 512;
/// The distance between samples, modulo the number of slots: a prime, so that a full round visits every slot.
const STRIDE: u64 = 2_654_435_761;
/// How long a full table refuses flows without searching for space.
const FULL_FOR: Duration = Duration::from_millis(1);
/// UDP: a flow that still has packets after this many sixteenths of a second is a stream.
const STREAM_AGE: u32 = 2 * 16;

#[derive(Debug)]
pub(super) struct Shard {
    table: FlowTable,
    seed: Seed,
    sources: Sources,
    timeouts: Timeouts,
    most: u32,
    most_unanswered: u32,
    /// The number of flows that one source keeps when the table is full.
    share: u32,
    /// The start of the next sample.
    hand: u32,
    next_sweep: Nanos,
    full_until: Nanos,
    pub(super) counts: Counts,
}

/// Counters since the start.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct Counts {
    pub(super) entered: u64,
    pub(super) expired: u64,
    pub(super) evicted: u64,
    pub(super) evicted_share: u64,
    pub(super) withdrawn: u64,
    pub(super) refused_full: u64,
    pub(super) refused_source: u64,
}

/// The result for a packet of a known flow.
pub(super) enum FlowMatch {
    /// The packet belongs to the flow.
    Known(CtState, CtDirection),
    /// The packet ends the flow.
    Last(CtState, CtDirection),
    /// The packet cannot belong to the flow.
    Invalid(Invalid),
    /// The flow has ended; this packet starts another one.
    Over,
}

impl Shard {
    pub(super) fn new(limits: &Limits, seed: Seed) -> Self {
        let mut shard = Self {
            table: FlowTable::new(seed),
            seed,
            sources: Sources::new(),
            timeouts: limits.timeouts.clone(),
            most: 0,
            most_unanswered: 0,
            share: 0,
            hand: 0,
            next_sweep: Nanos(0),
            full_until: Nanos(0),
            counts: Counts::default(),
        };
        shard.resize(limits);
        shard
    }

    /// Applies this shard's part of the limits.
    pub(super) fn resize(&mut self, limits: &Limits) {
        let part = |whole: usize| {
            let part = whole.div_ceil(limits.shards.max(1));
            // Slot numbers have 32 bits, and there are twice as many buckets.
            u32::try_from(part).unwrap_or(u32::MAX).min(1 << 30)
        };
        self.most = part(limits.flows);
        self.most_unanswered = part(limits.unanswered_per_source);
        self.share = part(limits.source_share());
    }

    pub(super) fn table(&mut self) -> &mut FlowTable {
        &mut self.table
    }

    pub(super) fn bytes(&self) -> usize {
        self.table.bytes().saturating_add(Sources::BYTES)
    }

    /// Checks for expired flows, at most once a second.
    #[inline]
    pub(super) fn tick(&mut self, now: Nanos) {
        if now >= self.next_sweep {
            let more = self.sweep(now, SWEEP);
            self.next_sweep = if more { now } else { now.after(SWEEP_EVERY) };
        }
    }

    /// Checks up to `budget` flows; returns true if more need checking.
    pub(super) fn sweep(&mut self, now: Nanos, mut budget: u32) -> bool {
        for class in Class::ALL {
            let timeout = class.timeout(&self.timeouts).as_secs().max(1);
            let again = u16::try_from(timeout).unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
            while let Some(slot) = self.table.oldest(class) {
                let Some(flow) = self.table.get(slot) else { break };
                if seconds(now).wrapping_sub(flow.queued) < again {
                    break;
                }
                let Some(left) = budget.checked_sub(1) else { return true };
                budget = left;
                if self.is_over(flow, now) {
                    self.forget(slot);
                    self.counts.expired = self.counts.expired.saturating_add(1);
                } else {
                    self.table.requeue(slot, class, now);
                }
            }
        }
        false
    }

    /// Returns the slot of a flow that has not expired.
    #[inline]
    pub(super) fn find(&mut self, way: &FlowTuple, hash: u64, now: Nanos) -> Option<u32> {
        let slot = self.table.find(&way.key, hash)?;
        if self.table.get(slot).is_some_and(|flow| self.is_over(flow, now)) {
            self.forget(slot);
            self.counts.expired = self.counts.expired.saturating_add(1);
            return None;
        }
        Some(slot)
    }

    #[inline]
    fn is_over(&self, flow: &Flow, now: Nanos) -> bool {
        now.since(flow.seen) >= self.timeout(flow)
    }

    #[inline]
    fn timeout(&self, flow: &Flow) -> Duration {
        let timeout = flow.class.timeout(&self.timeouts);
        let stuck = flow.class == Class::Established && flow.stuck();
        if stuck { timeout.min(self.timeouts.stuck) } else { timeout }
    }

    /// Updates a flow from one of its packets.
    #[inline]
    pub(super) fn advance(
        &mut self,
        slot: u32,
        downwards: bool,
        packet: &Packet<'_>,
        segment: Option<&Segment<'_>>,
        now: Nanos,
    ) -> FlowMatch {
        let Some(flow) = self.table.get_mut(slot) else { return FlowMatch::Over };
        let direction = flow.direction(downwards);
        let answered = flow.answered();
        let answering = answered || direction == CtDirection::Reply;
        let state = if answering { CtState::ESTABLISHED } else { CtState::NEW };
        let (class, refresh) = match segment {
            None => (stateless_class(flow, answered, answering, now), true),
            Some(segment) => match flow.tcp.segment(segment, direction, answered, flow.assured()) {
                Outcome::Accept(accepted) => {
                    if accepted.assured {
                        flow.set_assured();
                    }
                    flow.set_stuck(accepted.stuck);
                    (tcp_class(flow.tcp.state, answered), accepted.refresh)
                }
                Outcome::Ignore => (flow.class, false),
                Outcome::Invalid(reason) => return FlowMatch::Invalid(reason),
                Outcome::Reopen => {
                    self.forget(slot);
                    return FlowMatch::Over;
                }
                Outcome::Gone => {
                    self.forget(slot);
                    return FlowMatch::Last(state, direction);
                }
            },
        };
        if refresh {
            flow.seen = now;
        }
        if answering {
            flow.set_answered();
        }
        flow.count(direction, packet.segments().into(), packet.length() as u64);
        let before = flow.class;
        if class != before {
            if before.unanswered() != class.unanswered() {
                let source = flow.source_hash(&self.seed);
                self.sources.answered(source, before.unanswered());
            }
            self.table.requeue(slot, class, now);
        }
        FlowMatch::Known(state, direction)
    }

    /// Enters the flow of a packet, unless it exists; returns false if there is no space.
    pub(super) fn enter(
        &mut self,
        way: &FlowTuple,
        hash: u64,
        packet: &Packet<'_>,
        (owner, generation): (Client, u32),
        now: Nanos,
    ) -> bool {
        if self.find(way, hash, now).is_some() {
            return true;
        }
        let source = source_hash(&way.key, way.downwards, owner, &self.seed);
        let has = self.sources.count(source).unanswered;
        if has >= self.most_unanswered.saturating_add(self.others()) {
            self.counts.refused_source = self.counts.refused_source.saturating_add(1);
            return false;
        }
        if self.table.len() >= self.most && !self.make_room(source, now) {
            self.counts.refused_full = self.counts.refused_full.saturating_add(1);
            return false;
        }
        let (class, tcp) = match way.key.protocol() {
            TCP => match Segment::of(packet).map(|segment| Tcp::start(&segment)) {
                Some(tcp) => (tcp_class(tcp.state, false), tcp),
                None => return false,
            },
            UDP => (Class::Udp, Tcp::EMPTY),
            ICMP | ICMPV6 => (Class::Icmp, Tcp::EMPTY),
            _ => (Class::Other, Tcp::EMPTY),
        };
        let mut flow = Flow::new(way.key, way.downwards, class, tcp, now);
        (flow.generation, flow.owner) = (generation, owner);
        flow.count(CtDirection::Original, packet.segments().into(), packet.length() as u64);
        if self.table.insert(flow, hash, now).is_none() {
            self.counts.refused_full = self.counts.refused_full.saturating_add(1);
            return false;
        }
        self.sources.add(source, class.unanswered());
        self.counts.entered = self.counts.entered.saturating_add(1);
        true
    }

    /// Returns the flows that have not expired.
    pub(super) fn open(&self, now: Nanos) -> impl Iterator<Item = &Flow> {
        let segments = (0..).map_while(|index| self.table.segment(index));
        segments.flatten().filter(move |flow| flow.class != Class::Free && !self.is_over(flow, now))
    }

    /// Enters a flow of another process, unless it exists or has expired; returns false then, or if there is no space.
    pub(super) fn resume(&mut self, flow: Flow, hash: u64, now: Nanos) -> bool {
        if self.table.find(&flow.key, hash).is_some()
            || self.is_over(&flow, now)
            || self.table.len() >= self.most
        {
            return false;
        }
        let source = flow.source_hash(&self.seed);
        let entered = self.table.insert(flow, hash, now).is_some();
        if entered {
            self.sources.add(source, flow.class.unanswered());
            self.counts.entered = self.counts.entered.saturating_add(1);
        }
        entered
    }

    /// Returns whether another generation accepted a flow.
    #[inline]
    pub(super) fn is_stale(&self, slot: u32, generation: u32) -> bool {
        self.table.get(slot).is_some_and(|flow| flow.generation != generation)
    }

    /// Records the generation that accepted a flow; `None` ends the flow.
    pub(super) fn reevaluated(&mut self, slot: u32, key: &FlowKey, generation: Option<u32>) {
        let Some(flow) = self.table.get_mut(slot).filter(|flow| flow.key == *key) else { return };
        match generation {
            Some(generation) => flow.generation = generation,
            None => {
                self.forget(slot);
                self.counts.withdrawn = self.counts.withdrawn.saturating_add(1);
            }
        }
    }

    /// Ends the flows of one segment of slots whose ends match, and returns their number; `None` after the last
    /// segment.
    pub(super) fn flush(
        &mut self,
        segment: usize,
        matches: &impl Fn(&FlowEnds) -> bool,
    ) -> Option<u64> {
        let first = u32::try_from(segment).ok()?.checked_mul(SEGMENT)?;
        let flows = self.table.segment(segment)?.iter().zip(first..);
        let ended = flows.filter(|(flow, _)| flow.class != Class::Free && matches(&flow.between()));
        let ended: Vec<u32> = ended.map(|(_, slot)| slot).collect();
        ended.iter().for_each(|slot| self.forget(*slot));
        self.counts.withdrawn = self.counts.withdrawn.saturating_add(ended.len() as u64);
        Some(ended.len() as u64)
    }

    fn forget(&mut self, slot: u32) {
        if let Some(flow) = self.table.remove(slot) {
            let source = flow.source_hash(&self.seed);
            self.sources.remove(source, flow.class.unanswered());
        }
    }

    /// Returns twice the average amount that other sources add to a source's counts, so that a flood from forged
    /// addresses does not count against every source.
    fn others(&self) -> u32 {
        (self.table.len() / Sources::WIDTH).saturating_mul(2)
    }

    /// Evicts a flow to make room for one of `source`. Returns false if none can be evicted.
    ///
    /// Expired flows are evicted first. Unanswered flows that take more than a quarter of the table are a flood: then
    /// the oldest of them is evicted. Next is a flow of the source that has the most flows, if it exceeds both its
    /// share and the number of `source`; a source beyond its share replaces only its own flows. Last are unanswered and
    /// half-open flows, and established ones that were silent for [`Timeouts::IDLE`].
    fn make_room(&mut self, source: u64, now: Nanos) -> bool {
        const OVER: [Class; 2] = [Class::Close, Class::TimeWait];
        const UNANSWERED: [Class; 6] = [
            Class::SynSent,
            Class::SynRecv,
            Class::PickedUp,
            Class::Udp,
            Class::Icmp,
            Class::Other,
        ];
        const HALF: [Class; 6] = [
            Class::UdpAnswered,
            Class::IcmpAnswered,
            Class::OtherAnswered,
            Class::LastAck,
            Class::CloseWait,
            Class::FinWait,
        ];
        if now < self.full_until {
            return false;
        }
        let waiting = UNANSWERED.iter().map(|class| self.table.class_len(*class)).sum::<u32>();
        let first: &[&[Class]] =
            if waiting > self.most / 4 { &[&OVER, &UNANSWERED] } else { &[&OVER] };
        let mut victim = self.oldest_of(first);
        if victim.is_none() {
            let own = self.sources.count(source).all.saturating_sub(self.others());
            let selfish = own >= self.share;
            victim = self.heaviest(selfish.then_some(source), own.max(self.share));
            if victim.is_some() {
                self.counts.evicted_share = self.counts.evicted_share.saturating_add(1);
            } else if selfish {
                return false;
            }
        }
        let victim =
            victim.or_else(|| self.oldest_of(&[&UNANSWERED, &HALF])).or_else(|| self.idle(now));
        let Some(victim) = victim else {
            self.full_until = now.after(FULL_FOR);
            return false;
        };
        self.forget(victim);
        self.counts.evicted = self.counts.evicted.saturating_add(1);
        true
    }

    /// Returns a flow of the first non-empty group, from the most frequent class in it.
    fn oldest_of(&self, groups: &[&[Class]]) -> Option<u32> {
        groups.iter().find_map(|group| {
            let longest = group.iter().max_by_key(|class| self.table.class_len(**class))?;
            self.silent_longest(*longest)
        })
    }

    /// Returns a flow of `own`, or of the source that has the most flows, if it has more than `least`: the one in a
    /// sample that has been silent longest. A source with a large part of the table is in each sample.
    fn heaviest(&mut self, own: Option<u64>, least: u32) -> Option<u32> {
        let others = self.others();
        let mut best: Option<(u32, std::cmp::Reverse<u64>, u32)> = None;
        let mut left = SAMPLE;
        for _ in 0..SAMPLE_SLOTS.min(self.table.slots()) {
            let slot = self.hand;
            let next = u64::from(slot).saturating_add(STRIDE);
            self.hand = next.checked_rem(self.table.slots().into()).unwrap_or(0) as u32;
            let Some(flow) = self.table.get(slot).filter(|flow| flow.class != Class::Free) else {
                continue;
            };
            left = left.saturating_sub(1);
            if left == 0 {
                break;
            }
            let source = flow.source_hash(&self.seed);
            let count = self.sources.count(source).all.saturating_sub(others);
            let fits = own.map_or(count > least, |own| own == source);
            let rank = (count, std::cmp::Reverse(flow.seen.0), slot);
            if fits && best.is_none_or(|best| rank > best) {
                best = Some(rank);
            }
        }
        best.map(|(.., slot)| slot)
    }

    /// Returns the flow that has been silent longest among the longest-queued flows of a class.
    fn silent_longest(&self, class: Class) -> Option<u32> {
        let mut best: Option<(u32, Nanos)> = None;
        let mut slot = self.table.oldest(class)?;
        for _ in 0..CANDIDATES {
            let Some(flow) = self.table.get(slot) else { break };
            if best.is_none_or(|(_, seen)| flow.seen < seen) {
                best = Some((slot, flow.seen));
            }
            slot = flow.newer;
        }
        best.map(|(slot, _)| slot)
    }

    /// Returns an established flow that was silent for a long time.
    fn idle(&mut self, now: Nanos) -> Option<u32> {
        for class in [Class::UdpStream, Class::Established] {
            for _ in 0..CANDIDATES {
                let Some(slot) = self.table.oldest(class) else { break };
                let flow = self.table.get(slot)?;
                if self.is_over(flow, now) || now.since(flow.seen) >= Timeouts::IDLE {
                    return Some(slot);
                }
                self.table.requeue(slot, class, now);
            }
        }
        None
    }

    /// Returns the flows of one segment of slots; `None` after the last.
    pub(super) fn describe(
        &self,
        segment: usize,
        clients: &Clients,
        now: Nanos,
    ) -> Option<Vec<FlowInfo>> {
        let flows = self.table.segment(segment)?.iter();
        let there = flows.filter(|flow| flow.class != Class::Free && !self.is_over(flow, now));
        Some(there.map(|flow| self.info(flow, clients, now)).collect())
    }

    fn info(&self, flow: &Flow, clients: &Clients, now: Nanos) -> FlowInfo {
        let [source, destination] = flow.key.ends(flow.downwards());
        let age = sixteenths(now).wrapping_sub(flow.born);
        FlowInfo {
            protocol: flow.key.protocol(),
            source,
            destination,
            vlans: flow.key.vlans(),
            clients: flow.key.clients(flow.downwards()).map(|number| clients.name(number)),
            state: flow.class.state(),
            assured: matches!(flow.class, Class::Established | Class::UdpStream),
            age: Duration::from_nanos(u64::from(age).saturating_mul(62_500_000)),
            left: self.timeout(flow).saturating_sub(now.since(flow.seen)),
            packets: flow.packets,
            bytes: flow.bytes,
        }
    }
}

/// Returns the class of a flow whose protocol is stateless.
fn stateless_class(flow: &Flow, answered: bool, answering: bool, now: Nanos) -> Class {
    match flow.class {
        class if !answering => class,
        Class::Udp => Class::UdpAnswered,
        Class::UdpAnswered if answered && sixteenths(now).wrapping_sub(flow.born) > STREAM_AGE => {
            Class::UdpStream
        }
        Class::Icmp => Class::IcmpAnswered,
        Class::Other => Class::OtherAnswered,
        class => class,
    }
}

const fn tcp_class(state: State, answered: bool) -> Class {
    match state {
        State::None | State::SynSent | State::BothSynSent => Class::SynSent,
        State::SynRecv => Class::SynRecv,
        State::Established if answered => Class::Established,
        State::Established => Class::PickedUp,
        State::FinWait => Class::FinWait,
        State::CloseWait => Class::CloseWait,
        State::LastAck => Class::LastAck,
        State::TimeWait => Class::TimeWait,
        State::Close => Class::Close,
    }
}

/// The number of flows of each source, in a fixed amount of memory. Each source has two counters that it shares with
/// others, and the smaller one is never too low.
#[derive(Debug)]
struct Sources {
    rows: [Box<[Count]>; 2],
}

/// The flows of one source.
#[derive(Copy, Clone, Debug, Default)]
struct Count {
    all: u32,
    /// The number of flows of this source without an answer.
    unanswered: u32,
}

impl Sources {
    const WIDTH: u32 = 4096;
    const BYTES: usize = Self::WIDTH as usize * 2 * size_of::<Count>();

    fn new() -> Self {
        let row = || vec![Count::default(); Self::WIDTH as usize].into_boxed_slice();
        Self { rows: [row(), row()] }
    }

    fn place(source: u64, row: usize) -> usize {
        let half = if row == 0 { source as u32 } else { (source >> 32) as u32 };
        (half % Self::WIDTH) as usize
    }

    fn places(&mut self, source: u64) -> impl Iterator<Item = &mut Count> {
        let rows = self.rows.iter_mut().enumerate();
        rows.filter_map(move |(row, counts)| counts.get_mut(Self::place(source, row)))
    }

    fn count(&self, source: u64) -> Count {
        let rows = self.rows.iter().enumerate();
        let counts = rows.filter_map(|(row, counts)| counts.get(Self::place(source, row)));
        let least = |least: Option<Count>, count: &Count| {
            let least = least.unwrap_or(*count);
            let (all, unanswered) = (least.all, least.unanswered);
            Some(Count { all: all.min(count.all), unanswered: unanswered.min(count.unanswered) })
        };
        counts.fold(None, least).unwrap_or_default()
    }

    fn add(&mut self, source: u64, unanswered: bool) {
        for count in self.places(source) {
            count.all = count.all.saturating_add(1);
            count.unanswered = count.unanswered.saturating_add(unanswered.into());
        }
    }

    fn remove(&mut self, source: u64, unanswered: bool) {
        for count in self.places(source) {
            count.all = count.all.saturating_sub(1);
            count.unanswered = count.unanswered.saturating_sub(unanswered.into());
        }
    }

    /// Records that a flow of the source is now answered, or unanswered again.
    fn answered(&mut self, source: u64, now: bool) {
        for count in self.places(source) {
            count.unanswered = if now {
                count.unanswered.saturating_sub(1)
            } else {
                count.unanswered.saturating_add(1)
            };
        }
    }
}
