//! Evaluation: packet and state in, verdict out. An [`Evaluator`] belongs to one worker, so it counts without atomics.
//! It flushes its counts once per burst.
//!
//! The order is that of nftables: the base chains of bridge tables, then those of the tables of the packet's own
//! family, each group by priority and then in the order of the file. `accept` ends only its base chain; `drop` and
//! `reject` are final.

pub(crate) mod read_field;
pub(crate) mod run;
pub(crate) mod token_bucket;
mod trace;
pub(crate) mod verdict_cache;
pub(crate) mod walk;

#[cfg(test)]
mod read_field_tests;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::Arc;

pub use trace::{Mismatch, RuleEnd, RuleLocation, Step, Trace};
pub use verdict_cache::VerdictCache;

use run::Run;
use verdict_cache::LocalEvaluations;

use crate::Nanos;
use crate::compile::Filter;
use crate::packet::Packet;
use crate::ruleset::{CtDirection, CtState, Log, Reject};

/// An interface's name, padded with zeros to 16 bytes and read as a big-endian number. Zero means no interface.
#[derive(Copy, Clone, Debug, Default, Eq, Hash, PartialEq)]
pub struct IfName(pub u128);

impl IfName {
    /// Creates the name from the first 16 bytes of `name`.
    pub fn new(name: &str) -> Self {
        let mut bytes = [0; 16];
        bytes.iter_mut().zip(name.bytes()).for_each(|(to, from)| *to = from);
        Self(u128::from_be_bytes(bytes))
    }
}

/// The metadata of a packet.
#[derive(Copy, Clone, Debug)]
pub struct Context {
    /// The time, for limits.
    pub now: Nanos,
    /// The interface on which the packet arrived.
    pub iif: IfName,
    /// The interface on which it will leave.
    pub oif: IfName,
    /// The state of the packet's connection.
    pub state: CtState,
    /// The packet's direction in its connection.
    pub direction: CtDirection,
    /// The transport protocol of the packet's connection; `None` without one.
    pub protocol: Option<u8>,
}

/// The verdict on a packet.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub enum Verdict {
    /// The packet passes.
    Accept,
    /// The packet is dropped.
    Drop,
    /// The packet is dropped and its sender is notified.
    Reject(Reject),
}

/// A verdict and the rule that reached it.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
pub struct Evaluation {
    /// The verdict on the packet.
    pub verdict: Verdict,
    /// The handle of the rule that decided in the last base chain; `None` if a policy decided or if no chain applies to
    /// the packet.
    pub by: Option<u32>,
}

/// A receiver of packets from `log` statements. It is called during evaluation, so it must not block.
pub trait LogSink {
    /// Logs the packet for the rule with this handle.
    fn log(&mut self, rule: u32, log: &Log, packet: &Packet<'_>);
}

/// Discards the packets.
impl LogSink for () {
    fn log(&mut self, _: u32, _: &Log, _: &Packet<'_>) {}
}

/// Evaluates packets by a [`Filter`] for one worker.
#[derive(Debug)]
pub struct Evaluator {
    filter: Arc<Filter>,
    live: Arc<crate::compile::LiveSets>,
    counts: crate::compile::Pending,
    recall: LocalEvaluations,
    /// The counters that the current packet incremented.
    counted: Vec<u32>,
}

impl Evaluator {
    /// Creates an evaluator for one worker. It takes 20 bytes for each counter of the rules.
    pub fn new(filter: Arc<Filter>) -> Self {
        let (live, counts) = (filter.live(), filter.pending());
        Self { filter, live, counts, recall: LocalEvaluations::default(), counted: Vec::new() }
    }

    /// Returns the rules that this evaluator applies.
    pub fn filter(&self) -> &Arc<Filter> {
        &self.filter
    }

    /// Evaluates one packet, counts it, and logs it if a rule requires it.
    ///
    /// `verdict_cache` is the flow's own slot for this direction, if it has one. An established flow whose evaluation
    /// depends only on properties that all its packets share is not evaluated again.
    pub fn evaluate(
        &mut self,
        packet: &Packet<'_>,
        context: &Context,
        verdict_cache: Option<&mut VerdictCache>,
        logs: &mut dyn LogSink,
    ) -> Evaluation {
        let filter = &*self.filter;
        filter.refresh(&mut self.live);
        let (traces, ports) = (filter.traces(), filter.program().asks_ports);
        let generation = self.live.generation;
        let slot = verdict_cache.and_then(|verdict_cache| {
            Some((verdict_cache, self.recall.now(traces, generation, ports, packet, context)?))
        });
        if let Some((verdict_cache, now)) = &slot
            && let Some(kept) = self.recall.recall(traces, verdict_cache, *now)
        {
            self.counts.decided(kept.decided);
            if !kept.counters.is_empty() {
                let (segments, bytes) = walk::measure(packet);
                for counter in &kept.counters {
                    self.counts.add(*counter as usize, segments, bytes);
                }
            }
            return kept.evaluation;
        }
        let unsteady = Cell::new(slot.is_none());
        self.counted.clear();
        let mut run = Run {
            filter,
            program: filter.program(),
            live: &self.live,
            packet,
            context,
            counts: &mut self.counts,
            logs,
            unsteady: &unsteady,
            counted: slot.is_some().then_some(&mut self.counted),
            dry: false,
        };
        let (evaluation, decided) = run.evaluate(filter.starts(packet));
        self.counts.decided(decided);
        if let Some((verdict_cache, now)) = slot
            && !unsteady.get()
            && let Some(kept) = self.recall.keep(traces, now, (evaluation, decided), &self.counted)
        {
            *verdict_cache = kept;
        }
        evaluation
    }

    /// Returns the generation of the rules and members that the evaluator uses from now on.
    #[inline]
    pub(crate) fn generation(&mut self) -> u32 {
        self.filter.refresh(&mut self.live);
        self.live.generation
    }

    /// Returns the verdict on a packet without counting, logging or taking tokens; limits are treated as not exceeded.
    #[cold]
    pub(crate) fn would(&mut self, packet: &Packet<'_>, context: &Context) -> Evaluation {
        let filter = &*self.filter;
        let mut run = Run {
            filter,
            program: filter.program(),
            live: &self.live,
            packet,
            context,
            counts: &mut self.counts,
            logs: &mut (),
            unsteady: &Cell::new(true),
            counted: None,
            dry: true,
        };
        run.evaluate(filter.starts(packet)).0
    }

    /// Returns whether the cache is valid for this packet.
    #[cfg(any(test, feature = "oracle"))]
    pub(crate) fn remembers(
        &mut self,
        packet: &Packet<'_>,
        context: &Context,
        verdict_cache: &VerdictCache,
    ) -> bool {
        self.filter.refresh(&mut self.live);
        let (traces, ports) = (self.filter.traces(), self.filter.program().asks_ports);
        let now = self.recall.now(traces, self.live.generation, ports, packet, context);
        now.is_some_and(|now| self.recall.recall(traces, verdict_cache, now).is_some())
    }

    /// Adds the counts of this evaluator to the filter's. Call it once per burst.
    pub fn flush(&mut self) {
        self.filter.add(&mut self.counts);
    }
}

impl Drop for Evaluator {
    fn drop(&mut self) {
        self.flush();
    }
}
