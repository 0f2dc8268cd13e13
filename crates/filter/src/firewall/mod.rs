//! The complete firewall: the interface through which a bridge or a tunnel has each frame evaluated.
//!
//! ```text
//!   frame ──► headers ──► pieces held until whole ──► connection ──► rules ──► FrameVerdict
//! ```
//!
//! A process has one [`Firewall`]; each of its threads has a [`Worker`], and evaluates in bursts. The rules and the
//! time are the same for all packets of a burst, and counts are flushed at its end. A new rule set is installed as a
//! whole, between bursts, so no packet sees half of two.

mod frame_context;
mod log;
mod saved;
mod stats;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_wire::{Gso, VnetHeader};
use arc_swap::{ArcSwap, Cache};

pub use frame_context::{Flush, FrameContext, Peers};
pub use log::{LogQueue, LogRecord};
pub use saved::{Resumed, SavedState};
pub use stats::{Drop, Stats};

use self::log::Writer;
use self::stats::{Pending, Totals};
use crate::compile::{Filter, IpRange, name_of};
use crate::conntrack::{self, Crossing, MAX_FIRST, Path, Tracked, Tracker, first_packet};
use crate::elements::{Change, Delta, ElementError, ElementTotals, Elements, SetName, may_change};
use crate::evaluate::{Context, Evaluator, Verdict};
use crate::fragment::{self, Assembled, Outcome, Reassembler};
use crate::packet::{Malformed, Packet};
use crate::rejection::{self, MAX_REJECTION};
use crate::ruleset::{CtDirection, CtState, Element, Members, Reject, Set, SetId};
use crate::{Nanos, evaluate};

/// The number of ICMP errors that all workers together may send in a second, as in Linux (`icmp_msgs_per_sec`).
const ERRORS_PER_SECOND: u32 = 1000;
/// The same limit for TCP resets. They are smaller than the packets that they answer, but a flood of SYNs would keep
/// workers busy.
const RESETS_PER_SECOND: u32 = 10_000;

/// The memory limits of a firewall.
#[derive(Clone, Debug, Default)]
pub struct Limits {
    /// The limits of connections.
    pub track: conntrack::Limits,
    /// The limits of fragments.
    pub fragments: fragment::Limits,
}

/// A firewall: the rules in force, with all of their state.
#[derive(Debug)]
pub struct Firewall {
    filter: ArcSwap<Filter>,
    tracker: Tracker,
    /// The limits of connections, unless a rule file sets others.
    track: conntrack::Limits,
    /// The held fragments. They are rare, and those of one packet may reach different workers.
    fragments: Mutex<Reassembler>,
    /// The state that a new rule set needs from its first packet on.
    known: Mutex<ExternalState>,
    logs: LogQueue,
    totals: Totals,
    /// The rate limit of ICMP errors.
    errors: SharedRateLimit,
    /// The rate limit of TCP resets.
    resets: SharedRateLimit,
}

/// State that does not come from the rule file.
#[derive(Debug, Default)]
struct ExternalState {
    /// The addresses of clients and groups.
    members: HashMap<Members, Vec<IpRange>>,
    /// The elements of sets that change.
    elements: Elements,
}

impl Firewall {
    /// Creates a firewall with `filter` in force. `seed` must be random: it keeps senders from choosing their flows'
    /// places in the tables.
    pub fn new(filter: Filter, limits: Limits, seed: [u8; 16]) -> Arc<Self> {
        let mut known = ExternalState::default();
        known.elements.adopt(sets_of(&filter));
        Arc::new(Self {
            tracker: Tracker::new(limits.track.stated(&filter.ruleset().limits), seed),
            track: limits.track,
            fragments: Mutex::new(Reassembler::new(limits.fragments)),
            known: Mutex::new(known),
            logs: LogQueue::default(),
            totals: Totals::default(),
            errors: SharedRateLimit::default(),
            resets: SharedRateLimit::default(),
            filter: ArcSwap::from_pointee(filter),
        })
    }

    /// Replaces the rules, from every worker's next burst on. Each flow is evaluated again when its next packet
    /// arrives. It continues if its first packet would be accepted; otherwise it ends.
    ///
    /// Counters and limits continue for rules that are in both rule sets, and added elements stay in sets of the same
    /// name.
    pub fn replace(&self, mut filter: Filter) {
        let mut known = lock(&self.known);
        known.elements.adopt(sets_of(&filter));
        let changing = sets_of(&filter).filter(|(name, _)| known.elements.knows(name)).count();
        // Sets that were changed must be in a form that can change again, which takes a second compilation.
        if changing != filter.slots_by_name().count()
            && let Ok(other) =
                Filter::compile_with(filter.ruleset().clone(), &|name| known.elements.knows(name))
        {
            filter = other;
        }
        self.install(filter, &known);
    }

    fn install(&self, mut filter: Filter, known: &ExternalState) {
        filter.carry_on(&self.filter.load());
        filter.set_all_members(&known.members);
        for (slot, name) in filter.slots_by_name() {
            filter.fill(slot, known.elements.keys(&name));
        }
        self.tracker.resize(&self.track.stated(&filter.ruleset().limits));
        self.filter.store(Arc::new(filter));
    }

    /// Changes elements of a set of the rules in force, either completely or not at all. No packet sees a partial
    /// change. Returns the number of changed elements.
    ///
    /// The first change of a set without timeouts compiles the rules again; each later one takes a few microseconds.
    ///
    /// # Errors
    /// One of the elements cannot be added or deleted.
    pub fn change_elements(
        &self,
        table: usize,
        set: SetId,
        change: Change,
        elements: Vec<Element>,
        now: Nanos,
    ) -> Result<usize, ElementError> {
        let mut known = lock(&self.known);
        let filter = self.filter.load_full();
        let table_of = filter.ruleset().tables.get(table).ok_or(ElementError::Changed)?;
        let set_of = table_of.sets.get(set.0).ok_or(ElementError::Changed)?;
        if !may_change(set_of) {
            return Err(ElementError::Changed);
        }
        let name = name_of(table_of, set_of);
        let (count, delta) = known.elements.change(name, set_of, change, elements, now)?;
        if delta.is_empty() {
            return Ok(count);
        }
        match filter.slot(table, set) {
            Some(slot) => filter.change(&[(slot, &delta)]),
            None => {
                let ruleset = filter.ruleset().clone();
                let other = Filter::compile_with(ruleset, &|name| known.elements.knows(name));
                self.install(other.map_err(|_| ElementError::Changed)?, &known);
            }
        }
        Ok(count)
    }

    /// Returns the present elements of a set of the rules in force; `None` if they have not changed since the file was
    /// read.
    pub fn elements(&self, table: usize, set: SetId, now: Nanos) -> Option<Vec<Element>> {
        let filter = self.filter.load();
        let table = filter.ruleset().tables.get(table)?;
        lock(&self.known).elements.list(&name_of(table, table.sets.get(set.0)?), now)
    }

    /// Returns the number of elements added while rules were in force, with the counters of their changes.
    pub fn element_totals(&self) -> ElementTotals {
        lock(&self.known).elements.totals()
    }

    /// Removes expired elements; returns true if there are more.
    fn expire_elements(&self, now: Nanos) -> bool {
        let mut known = lock(&self.known);
        let (changed, more) = known.elements.expire(now);
        if !changed.is_empty() {
            let filter = self.filter.load();
            let slots: HashMap<SetName, usize> =
                filter.slots_by_name().map(|(slot, name)| (name, slot)).collect();
            let changed: Vec<(usize, &Delta)> = changed
                .iter()
                .filter_map(|(name, delta)| Some((*slots.get(name)?, delta)))
                .collect();
            filter.change(&changed);
        }
        more
    }

    /// Replaces the addresses of a client or a group; with none, it is removed. Later rule sets use them too.
    pub fn set_members(&self, who: &Members, addresses: Vec<IpRange>) {
        let mut known = lock(&self.known);
        self.filter.load().set_members(who, &addresses);
        if addresses.is_empty() {
            known.members.remove(who)
        } else {
            known.members.insert(who.clone(), addresses)
        };
    }

    /// Returns the rules in force.
    pub fn filter(&self) -> Arc<Filter> {
        self.filter.load_full()
    }

    /// Returns the connections.
    pub fn tracker(&self) -> &Tracker {
        &self.tracker
    }

    /// Returns the queue of logged packets.
    pub fn logs(&self) -> &LogQueue {
        &self.logs
    }

    /// Returns the results for all packets so far.
    pub fn stats(&self) -> Stats {
        let fragments = lock(&self.fragments).stats();
        self.totals.read(self.tracker.stats(), fragments, self.logs.lost())
    }

    /// From now on, assigns this address or network to a client: flows from all of its addresses count as those of one
    /// source. `None` removes the assignment.
    pub fn set_owner(&self, address: IpAddr, length: u8, client: Option<&str>) {
        self.tracker.set_network(address, length, client);
    }

    /// From now on, assigns a tunnel peer to this client: flows from and to it are that client's, and no other client's
    /// packets belong to them, whatever their addresses. They continue when the client reconnects as another peer.
    /// `None` removes the assignment.
    pub fn set_peer(&self, peer: u32, client: Option<&str>) {
        self.tracker.set_peer(peer, client);
    }

    /// Ends flows, and returns their number.
    pub fn flush(&self, which: Flush<'_>) -> u64 {
        let within = |all: &[IpRange], address: IpAddr| all.iter().any(|one| one.contains(address));
        match which {
            Flush::All => self.tracker.flush(|_| true),
            Flush::Addresses(all) => self
                .tracker
                .flush(|flow| flow.addresses.into_iter().any(|address| within(all, address))),
            Flush::Client(name, all) => {
                let number = self.tracker.clients().number(name);
                self.tracker.flush(|flow| {
                    let mut ends = flow.addresses.into_iter().zip(flow.clients);
                    ends.any(|(address, client)| match client {
                        0 => within(all, address),
                        client => Some(client) == number,
                    })
                })
            }
        }
    }

    /// Removes expired state. Bursts do so too; this method is for times without packets. Returns true if more remains
    /// to be removed.
    pub fn sweep(&self, now: Nanos) -> bool {
        lock(&self.fragments).expire(now);
        let more = self.expire_elements(now);
        self.tracker.sweep(now) || more
    }

    /// Creates a worker for one thread.
    pub fn worker(self: &Arc<Self>) -> Worker {
        Worker {
            evaluator: Evaluator::new(self.filter()),
            peers: Cache::new(self.tracker.clients().peers()),
            firewall: Arc::clone(self),
            answer: Box::new([0; MAX_REJECTION]),
            pending: self.totals.pending(),
        }
    }
}

/// Returns the named sets of rules.
fn sets_of(filter: &Filter) -> impl Iterator<Item = (SetName, &Set)> {
    filter.ruleset().tables.iter().flat_map(|table| {
        let named = table.sets.iter().filter(|set| set.name.is_some());
        named.map(move |set| (name_of(table, set), set))
    })
}

/// One thread's state for evaluation. It takes about 2 KiB, and 20 bytes for each counter of the rules.
#[derive(Debug)]
pub struct Worker {
    firewall: Arc<Firewall>,
    evaluator: Evaluator,
    /// The clients of tunnel peers.
    peers: Cache<Arc<ArcSwap<conntrack::Peers>>, Arc<conntrack::Peers>>,
    answer: Box<[u8; MAX_REJECTION]>,
    pending: Pending,
}

impl Worker {
    /// Begins a burst: a run of packets that are treated as arriving at `now`.
    ///
    /// Until it is dropped, the burst holds locks that other workers may need, so the thread must not block.
    pub fn burst(&mut self, now: Nanos) -> Burst<'_> {
        let filter = self.firewall.filter.load();
        if !Arc::ptr_eq(&filter, self.evaluator.filter()) {
            self.evaluator = Evaluator::new(Arc::clone(&filter));
        }
        let Self { firewall, evaluator, peers, answer, pending } = self;
        let track = filter.tracks().then(|| firewall.tracker.burst(now));
        Burst { now, firewall, evaluator, peers: peers.load(), answer, pending, track }
    }

    /// Returns the worker's firewall.
    pub fn firewall(&self) -> &Arc<Firewall> {
        &self.firewall
    }
}

/// The treatment of a frame.
#[derive(Debug)]
pub enum FrameVerdict<'b> {
    /// Forward it unchanged.
    Pass,
    /// Drop it.
    Drop,
    /// Drop it, and send this frame back where it came from, with the VLAN tag that was next to it.
    Reply(&'b [u8]),
    /// Do not forward the frame: it is a fragment whose packet is still incomplete.
    Held,
    /// Forward these fragments in its place: all fragments of a packet, of which this was the last to arrive.
    Release(Assembled),
}

impl FrameVerdict<'_> {
    /// Returns whether the frame may be forwarded unchanged.
    pub fn passes(&self) -> bool {
        matches!(self, Self::Pass)
    }
}

/// A run of packets.
#[derive(Debug)]
pub struct Burst<'w> {
    now: Nanos,
    firewall: &'w Firewall,
    evaluator: &'w mut Evaluator,
    peers: &'w conntrack::Peers,
    answer: &'w mut [u8; MAX_REJECTION],
    pending: &'w mut Pending,
    /// Present only if the rules use connections.
    track: Option<conntrack::Burst<'w>>,
}

impl Burst<'_> {
    /// Evaluates one frame, or one super-packet as a whole.
    #[inline]
    pub fn evaluate(&mut self, frame: &[u8], frame_context: &FrameContext) -> FrameVerdict<'_> {
        self.evaluate_as(frame, frame_context, false)
    }

    /// Evaluates a frame as [`Burst::evaluate`] does, for traffic that is forbidden unless a rule accepts it: a policy
    /// of `accept` is not enough.
    pub fn evaluate_explicit(
        &mut self,
        frame: &[u8],
        frame_context: &FrameContext,
    ) -> FrameVerdict<'_> {
        self.evaluate_as(frame, frame_context, true)
    }

    #[inline]
    fn evaluate_as(
        &mut self,
        frame: &[u8],
        frame_context: &FrameContext,
        explicit: bool,
    ) -> FrameVerdict<'_> {
        let packet = match Packet::parse(
            frame,
            frame_context.layer,
            frame_context.vlan,
            &frame_context.vnet,
        ) {
            Ok(packet) => packet,
            Err(why) => {
                self.pending.malformed(why);
                return FrameVerdict::Drop;
            }
        };
        // The kernel splits the whole super-packet into segments, whatever length was evaluated.
        let more = frame_context.vnet.gso != Gso::None && packet.bytes.len() != frame.len();
        if more || !packet.sum_spares_headers(&frame_context.vnet) {
            self.pending.malformed(Malformed::Offload);
            return FrameVerdict::Drop;
        }
        if packet.ip().is_some_and(|ip| ip.fragment.is_some()) {
            return self.piece(&packet, frame_context, explicit);
        }
        match self.decide(&packet, frame_context, explicit) {
            Ok(()) => FrameVerdict::Pass,
            Err(reject) => self.refuse(&packet, reject),
        }
    }

    /// Returns the verdict. `Err` states how the sender is notified, if it is.
    #[inline]
    fn decide(
        &mut self,
        packet: &Packet<'_>,
        frame_context: &FrameContext,
        explicit: bool,
    ) -> Result<(), Option<Reject>> {
        let mut tracked = None;
        if let Some(track) = &mut self.track {
            let path = Path {
                crossing: Crossing::between(frame_context.iif, frame_context.oif),
                clients: [frame_context.peers.from, frame_context.peers.to]
                    .map(|peer| self.peers.client(peer)),
            };
            track.set_generation(self.evaluator.generation());
            let mut found = track.look(packet, path);
            if found.stale {
                found = self.again(packet, frame_context, path, found, explicit);
            }
            tracked = Some(found);
        }
        let context = Context {
            now: self.now,
            iif: frame_context.iif,
            oif: frame_context.oif,
            state: tracked.map_or(CtState::UNTRACKED, |tracked| tracked.state),
            direction: tracked.map_or(CtDirection::Original, |tracked| tracked.direction),
            protocol: tracked.and_then(|tracked| tracked.protocol),
        };
        let verdict_cache = match (&mut self.track, &tracked) {
            (Some(track), Some(tracked)) => track.verdict_cache(tracked),
            _ => None,
        };
        let mut writer = Writer { queue: &self.firewall.logs, now: self.now, frame_context };
        let evaluate::Evaluation { verdict, by } =
            self.evaluator.evaluate(packet, &context, verdict_cache, &mut writer);
        match verdict {
            Verdict::Accept if explicit && by.is_none() => {
                self.pending.drop(Drop::Unasked);
                return Err(None);
            }
            Verdict::Accept => {}
            Verdict::Drop => {
                self.pending.drop(Drop::Rules);
                return Err(None);
            }
            Verdict::Reject(how) => {
                self.pending.drop(Drop::Rules);
                return Err(Some(how));
            }
        }
        if let (Some(track), Some(tracked)) = (&mut self.track, &tracked)
            && !track.confirm(tracked, packet)
        {
            self.pending.drop(Drop::TableFull);
            return Err(None);
        }
        self.pending.pass(packet.length());
        Ok(())
    }

    /// Evaluates the flow of a packet again, from its record, as if it were new. The flow continues unchanged, or it
    /// ends and the packet is looked up again.
    #[cold]
    fn again(
        &mut self,
        packet: &Packet<'_>,
        frame_context: &FrameContext,
        path: Path,
        tracked: Tracked,
        explicit: bool,
    ) -> Tracked {
        let Some(track) = &mut self.track else { return tracked };
        let Some(ends) = track.ends(&tracked) else { return tracked };
        let (iif, oif) = match tracked.direction {
            CtDirection::Original => (frame_context.iif, frame_context.oif),
            CtDirection::Reply => (frame_context.oif, frame_context.iif),
        };
        let direction = CtDirection::Original;
        let protocol = Some(ends.protocol);
        let context = Context { now: self.now, iif, oif, state: CtState::NEW, direction, protocol };
        let mut bytes = [0; MAX_FIRST];
        let written = first_packet(&ends, packet, tracked.direction, &mut bytes);
        let first = written.and_then(|len| bytes.get(..len)).and_then(|bytes| {
            Packet::parse(bytes, frame_context.layer, frame_context.vlan, &VnetHeader::default())
                .ok()
        });
        let accepted = first.is_some_and(|first| {
            let evaluate::Evaluation { verdict, by } = self.evaluator.would(&first, &context);
            verdict == Verdict::Accept && (by.is_some() || !explicit)
        });
        track.reevaluated(&tracked, accepted);
        if accepted {
            return tracked;
        }
        track.look(packet, path)
    }

    #[cold]
    fn refuse(&mut self, packet: &Packet<'_>, how: Option<Reject>) -> FrameVerdict<'_> {
        let Some(how) = how else { return FrameVerdict::Drop };
        let allowed = match how {
            Reject::TcpReset => self.firewall.resets.take(self.now, RESETS_PER_SECOND),
            _ => self.firewall.errors.take(self.now, ERRORS_PER_SECOND),
        };
        if !allowed {
            self.pending.suppressed();
            return FrameVerdict::Drop;
        }
        match rejection::reject(packet, how, self.answer) {
            Some(len) => {
                self.pending.answered();
                FrameVerdict::Reply(self.answer.get(..len).unwrap_or(&[]))
            }
            None => FrameVerdict::Drop,
        }
    }

    /// Holds a fragment until its packet is complete, and evaluates the packet as a whole: all of its fragments pass or
    /// none.
    #[cold]
    fn piece(
        &mut self,
        packet: &Packet<'_>,
        frame_context: &FrameContext,
        explicit: bool,
    ) -> FrameVerdict<'_> {
        let mut fragments = lock(&self.firewall.fragments);
        let assembled =
            match fragments.push(packet, &frame_context.vnet, frame_context.zone, self.now) {
                Outcome::Whole(assembled) => assembled,
                Outcome::Held => return FrameVerdict::Held,
                Outcome::Dropped(_) | Outcome::NotAPiece => {
                    self.pending.drop(Drop::Fragment);
                    return FrameVerdict::Drop;
                }
            };
        drop(fragments);
        let plain = VnetHeader::default();
        let whole =
            match Packet::parse(assembled.whole(), frame_context.layer, frame_context.vlan, &plain)
            {
                Ok(whole) => whole,
                Err(why) => {
                    self.pending.malformed(why);
                    return FrameVerdict::Drop;
                }
            };
        match self.decide(&whole, frame_context, explicit) {
            Ok(()) => FrameVerdict::Release(assembled),
            Err(how) => self.refuse(&whole, how),
        }
    }
}

impl std::ops::Drop for Burst<'_> {
    fn drop(&mut self) {
        self.evaluator.flush();
        self.firewall.totals.add(self.pending);
    }
}

/// The rate limit shared by all workers: the current second in the upper half, and the number sent in it in the lower
/// half.
#[derive(Debug, Default)]
struct SharedRateLimit(AtomicU64);

impl SharedRateLimit {
    fn take(&self, now: Nanos, most: u32) -> bool {
        let second = (now.0 / 1_000_000_000) << 32;
        let next = |used: u64| {
            // A worker whose burst began in the previous second counts in this one.
            let used = if used < second { second } else { used };
            ((used & u64::from(u32::MAX)) < u64::from(most)).then(|| used.saturating_add(1))
        };
        self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}

/// Locks a mutex. No code here panics while it holds a lock; if a thread did, it must not stop the others.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
