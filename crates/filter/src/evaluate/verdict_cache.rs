//! The evaluation that a flow's record caches, and its meaning.
//!
//! An evaluation can be cached if everything that it depended on is the same for all packets of the flow in that
//! direction: addresses, ports, interfaces, the connection's state, members of sets. A rule prevents this if it looked
//! at a length, a flag or a MAC address, took tokens from a limit, or logged.
//!
//! A cached evaluation is a number. It denotes a verdict, the rule that reached it, and the counters to increment.
//! Equal evaluations are stored once for all evaluators of a filter ([`EvaluationStore`]), and each evaluator has a
//! copy of those that it has used ([`LocalEvaluations`]).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::{Arc, Mutex, MutexGuard};

use crate::evaluate::{Context, Evaluation, IfName, Verdict};
use crate::packet::{Packet, Transport};
use crate::ruleset::{CtDirection, CtState};

/// A cached evaluation of one direction of a flow, in the flow's record: 9 bytes. It is valid for one generation of one
/// filter only; its owner need not clear it when rules change.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
#[repr(C, packed)]
pub struct VerdictCache {
    /// The filter's generation for which the entry is valid; 0 for none.
    pub(crate) generation: u32,
    /// The cached evaluation: below [`MAX_TRACES`].
    trace: u16,
    /// The pair of interfaces for which the entry is valid.
    ports: u16,
    /// The connection's state for which the entry is valid, with two bits that no cached state has: the direction, and
    /// whether there is an Ethernet header.
    state: u8,
}

/// The maximum number of different cached evaluations; flows with others are evaluated packet by packet.
pub(crate) const MAX_TRACES: usize = 1 << 16;
/// The maximum number of counters of one cached evaluation.
const MAX_COUNTERS: usize = 1024;
/// The maximum number of counters of all cached evaluations.
const MAX_ALL_COUNTERS: usize = 1 << 20;
/// The maximum number of pairs of interfaces that are distinguished.
const MAX_PORTS: usize = 4096;

/// An evaluation and its counters.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(crate) struct CachedEvaluation {
    pub evaluation: Evaluation,
    /// The number of the counter of its base chain's verdict.
    pub decided: u32,
    pub counters: Box<[u32]>,
}

impl CachedEvaluation {
    fn is(&self, (evaluation, decided): (Evaluation, u32), counters: &[u32]) -> bool {
        self.evaluation == evaluation && self.decided == decided && *self.counters == *counters
    }
}

#[derive(Debug, Default)]
struct EvaluationTable {
    all: Vec<Arc<CachedEvaluation>>,
    by_hash: HashMap<u64, u16, Plain>,
    counters: usize,
    ports: Vec<(IfName, IfName)>,
}

/// The cached evaluations of all evaluators of a filter.
#[derive(Debug, Default)]
pub(crate) struct EvaluationStore(Mutex<EvaluationTable>);

impl EvaluationStore {
    fn lock(&self) -> MutexGuard<'_, EvaluationTable> {
        self.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Returns the number of this evaluation; `None` if there is no space, or if a different one has the same hash.
    fn intern(
        &self,
        hash: u64,
        (evaluation, decided): (Evaluation, u32),
        counters: &[u32],
    ) -> Option<u16> {
        let mut table = self.lock();
        if let Some(number) = table.by_hash.get(&hash) {
            let kept = table.all.get(usize::from(*number))?;
            return kept.is((evaluation, decided), counters).then_some(*number);
        }
        let all = table.counters.saturating_add(counters.len());
        if table.all.len() >= MAX_TRACES || all > MAX_ALL_COUNTERS {
            return None;
        }
        table.counters = all;
        let number = u16::try_from(table.all.len()).ok()?;
        let counters = counters.into();
        table.all.push(Arc::new(CachedEvaluation { evaluation, decided, counters }));
        table.by_hash.insert(hash, number);
        Some(number)
    }

    fn ports(&self, pair: (IfName, IfName)) -> Option<u16> {
        let mut table = self.lock();
        let known = table.ports.iter().position(|known| *known == pair);
        let at = match known {
            Some(at) => at,
            None if table.ports.len() < MAX_PORTS => {
                table.ports.push(pair);
                table.ports.len().saturating_sub(1)
            }
            None => return None,
        };
        u16::try_from(at).ok()
    }
}

/// One evaluator's copy of cached evaluations.
#[derive(Debug, Default)]
pub(crate) struct LocalEvaluations {
    all: Vec<Arc<CachedEvaluation>>,
    by_hash: HashMap<u64, u16, Plain>,
    /// The pairs of interfaces of the last packets in both directions.
    ports: [Option<((IfName, IfName), u16)>; 2],
}

/// The values that a cache entry must have to be valid now.
#[derive(Copy, Clone)]
pub(crate) struct CacheStamp {
    generation: u32,
    ports: u16,
    state: u8,
}

/// Returns whether packets like this one get the same evaluation unless a variable property matters: true for TCP and
/// UDP of a known flow. Errors about a flow have other addresses than the flow. A flow is the same with and without
/// VLAN tags, but `ether type` and the fields of tags are not: frames with tags are evaluated each time.
fn repeats(packet: &Packet<'_>, context: &Context) -> bool {
    let plain = packet.ether.is_none_or(|ether| ether.outer == ether.ethertype);
    let transport = matches!(packet.transport, Transport::Tcp(_) | Transport::Udp(_));
    let state = matches!(context.state, CtState::NEW | CtState::ESTABLISHED);
    transport && state && plain && !packet.is_fragment()
}

impl LocalEvaluations {
    /// Returns the values that a cache entry must have to be valid; `None` if nothing can be cached for this packet.
    // Whether the compiler chooses to do so depends on unrelated code; calls cost each packet of a flow a tenth more instructions.
    #[inline(always)]
    pub(crate) fn now(
        &mut self,
        traces: &EvaluationStore,
        generation: u32,
        asks_ports: bool,
        packet: &Packet<'_>,
        context: &Context,
    ) -> Option<CacheStamp> {
        if !repeats(packet, context) {
            return None;
        }
        let ports = if asks_ports { self.pair(traces, (context.iif, context.oif))? } else { 0 };
        let direction = if context.direction == CtDirection::Reply { 0x80 } else { 0 };
        let frame = if packet.ether.is_some() { 0x20 } else { 0 };
        Some(CacheStamp { generation, ports, state: context.state.0 | direction | frame })
    }

    #[inline]
    fn pair(&mut self, traces: &EvaluationStore, pair: (IfName, IfName)) -> Option<u16> {
        let known = self.ports.iter().flatten().find(|known| known.0 == pair);
        if let Some((_, number)) = known {
            return Some(*number);
        }
        let number = traces.ports(pair)?;
        self.ports.swap(0, 1);
        let [first, _] = &mut self.ports;
        *first = Some((pair, number));
        Some(number)
    }

    /// Returns the cached evaluation, if it is valid.
    #[inline(always)]
    pub(crate) fn recall(
        &mut self,
        traces: &EvaluationStore,
        verdict_cache: &VerdictCache,
        now: CacheStamp,
    ) -> Option<&CachedEvaluation> {
        let holds = verdict_cache.generation == now.generation
            && verdict_cache.ports == now.ports
            && verdict_cache.state == now.state;
        if !holds {
            return None;
        }
        let at = usize::from(verdict_cache.trace);
        if at >= self.all.len() {
            // Another evaluator stored it.
            let table = traces.lock();
            self.all.extend_from_slice(table.all.get(self.all.len()..).unwrap_or_default());
        }
        self.all.get(at).map(|kept| &**kept)
    }

    /// Caches an evaluation.
    pub(crate) fn keep(
        &mut self,
        traces: &EvaluationStore,
        now: CacheStamp,
        evaluation: (Evaluation, u32),
        counters: &[u32],
    ) -> Option<VerdictCache> {
        if counters.len() > MAX_COUNTERS {
            return None;
        }
        let hash = hash(evaluation, counters);
        let CacheStamp { generation, ports, state } = now;
        let verdict_cache = |trace| VerdictCache { generation, trace, ports, state };
        if let Some(number) = self.by_hash.get(&hash)
            && let Some(kept) = self.all.get(usize::from(*number))
            && kept.is(evaluation, counters)
        {
            return Some(verdict_cache(*number));
        }
        let number = traces.intern(hash, evaluation, counters)?;
        let table = traces.lock();
        self.all.extend_from_slice(table.all.get(self.all.len()..).unwrap_or_default());
        self.by_hash.insert(hash, number);
        Some(verdict_cache(number))
    }
}

fn hash((evaluation, decided): (Evaluation, u32), counters: &[u32]) -> u64 {
    use crate::compile::mixed;
    let verdict = match evaluation.verdict {
        Verdict::Accept => 1,
        Verdict::Drop => 2,
        Verdict::Reject(_) => 3,
    };
    let by = evaluation.by.map_or(0, |by| u64::from(by).wrapping_add(1));
    let fold = |hash: u64, counter: &u32| mixed(hash ^ u64::from(*counter));
    counters.iter().fold(fold(mixed(by << 2 | verdict), &decided), fold)
}

/// A hasher for keys that are hashes already.
#[derive(Debug, Default)]
pub(crate) struct Identity(u64);

type Plain = BuildHasherDefault<Identity>;

impl Hasher for Identity {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.0 = self.0 << 8 | u64::from(*byte));
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number;
    }
}

#[cfg(test)]
mod tests {
    use adit_wire::VnetHeader;

    use super::*;
    use crate::Nanos;
    use crate::packet::Layer;
    use crate::testing::{ether, ip, udp};

    #[test]
    fn what_a_plain_frame_was_judged_says_nothing_of_a_tagged_one() {
        let context = Context {
            now: Nanos(1),
            iif: IfName::new("a"),
            oif: IfName::new("b"),
            state: CtState::ESTABLISHED,
            direction: CtDirection::Original,
            protocol: Some(17),
        };
        let datagram = ip(false, 17, &udp(false, b"x"));
        let repeats = |types: &[u16], beside: Option<u16>| {
            let frame = ether(types, &datagram);
            let vnet = VnetHeader::default();
            let packet = Packet::parse(&frame, Layer::Ethernet, beside, &vnet).unwrap();
            repeats(&packet, &context)
        };
        assert!(repeats(&[0x0800], None));
        assert!(!repeats(&[0x8100, 0x0800], None));
        assert!(!repeats(&[0x88a8, 0x8100, 0x0800], None));
        assert!(!repeats(&[0x0800], Some(7)));
    }
}
