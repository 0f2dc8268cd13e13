//! Generates random rule sets and packets from bytes, and compares the compiled rules with the rules in source form.
//! For this crate's tests and for the fuzzer; the feature is not meant for production.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::arithmetic_side_effects,
    reason = "test code"
)]

mod frames;
mod rules;

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::sync::Arc;

pub use frames::{Frame, frame};
pub use rules::ruleset;

use crate::evaluate::token_bucket::TokenBucket;
use crate::evaluate::walk::{Effects, measure, walk};
use crate::evaluate::{Context, Evaluation, Evaluator, LogSink, Step, Verdict, VerdictCache};
use crate::packet::Packet;
use crate::ruleset::{Log, Members, Ruleset};
use crate::{Filter, IpRange};

/// Random choices that are read from bytes; all are zero once the bytes are used up.
#[derive(Debug)]
pub struct Source<'a> {
    bytes: &'a [u8],
}

impl<'a> Source<'a> {
    /// Creates choices from these bytes.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes }
    }

    /// Returns one of `0..count`.
    pub fn below(&mut self, count: usize) -> usize {
        let mut number = 0;
        for _ in 0..if count > 256 { 2 } else { 1 } {
            let Some((first, rest)) = self.bytes.split_first() else { break };
            number = number << 8 | usize::from(*first);
            self.bytes = rest;
        }
        number % count
    }

    /// Returns true in one of `count` cases.
    pub fn once_in(&mut self, count: usize) -> bool {
        !self.bytes.is_empty() && self.below(count) == count - 1
    }

    /// Returns one of the items.
    pub fn pick<T: Copy>(&mut self, of: &[T]) -> T {
        of[self.below(of.len())]
    }

    /// Returns whether all bytes are used up.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// The effects of the reference evaluation, which runs on a separate filter.
struct Reference<'a, 'p> {
    packet: &'a Packet<'p>,
    context: &'a Context,
    counts: &'a mut HashMap<usize, (u64, u64)>,
    logs: &'a mut Logged,
}

impl Effects for Reference<'_, '_> {
    fn count(&mut self, counter: usize) {
        let (segments, bytes) = measure(self.packet);
        let count = self.counts.entry(counter).or_default();
        *count = (count.0 + segments, count.1 + bytes);
    }

    fn limit(&mut self, bucket: &TokenBucket) -> bool {
        let (segments, bytes) = measure(self.packet);
        bucket.take(self.context.now, segments, bytes)
    }

    fn log(&mut self, rule: u32, log: &Log) {
        LogSink::log(self.logs, rule, log, self.packet);
    }

    fn step(&mut self, _: impl FnOnce() -> Step) {}
}

#[derive(Debug, Default, PartialEq)]
struct Logged(Vec<(u32, Log)>);

impl LogSink for Logged {
    fn log(&mut self, rule: u32, log: &Log, _: &Packet<'_>) {
        self.0.push((rule, log.clone()));
    }
}

/// Counts the cases that make the comparison meaningful.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Coverage {
    /// The number of packets evaluated.
    pub packets: u64,
    /// The number of packets decided by a rule.
    pub by_rule: u64,
    /// The number of packets dropped or rejected.
    pub refused: u64,
    /// The number of packets evaluated from a flow's cache.
    pub remembered: u64,
    /// The number of packets logged.
    pub logged: u64,
}

/// Evaluates `packets` with the reference, with the compiled rules, and with the compiled rules and caches; panics if
/// the results differ in verdict, rule, counters or log. `source` chooses when members of clients' sets change.
pub fn agree(
    ruleset: &Ruleset,
    packets: &[(Frame, Context)],
    source: &mut Source<'_>,
    seen: &mut Coverage,
) {
    // The generator creates no inconsistent rule sets.
    let compile = || Arc::new(Filter::compile(ruleset.clone()).unwrap());
    let (reference, plain, remembering) = (compile(), compile(), compile());
    let starts = reference.count_list();
    let mut evaluator = Evaluator::new(plain.clone());
    let mut recalling = [Evaluator::new(remembering.clone()), Evaluator::new(remembering.clone())];
    let (mut counts, mut logs) = (HashMap::new(), Default::default());
    let (mut plain_logs, mut recalled_logs) = (Logged::default(), Logged::default());
    let mut memos: HashMap<_, VerdictCache> = HashMap::new();
    for (frame, context) in packets {
        if source.once_in(8) {
            change_members(&[&reference, &plain, &remembering], source);
        }
        let Ok(packet) = frame.parse() else { continue };
        let mut effects =
            Reference { packet: &packet, context, counts: &mut counts, logs: &mut logs };
        let expected = walk(&reference, &reference.live(), &packet, context, &mut effects);
        let found = evaluator.evaluate(&packet, context, None, &mut plain_logs);
        assert_eq!(found, expected, "compiled: {packet:?} {context:?}\n{ruleset:#?}");
        let flow = packet.ip().map(|ip| {
            let bytes = packet.transport_bytes();
            let ports = bytes.get(..4).map(<[u8]>::to_vec);
            let direction = context.direction as u8;
            (ip.source, ip.destination, ip.protocol, ports, direction, context.protocol)
        });
        let verdict_cache = flow.map(|flow| memos.entry(flow).or_default());
        let recalling = &mut recalling[source.below(2)];
        seen.remembered += u64::from(
            verdict_cache
                .as_ref()
                .is_some_and(|verdict_cache| recalling.remembers(&packet, context, verdict_cache)),
        );
        let found = recalling.evaluate(&packet, context, verdict_cache, &mut recalled_logs);
        assert_eq!(found, expected, "with a verdict_cache: {packet:?} {context:?}\n{ruleset:#?}");
        note(seen, expected);
    }
    evaluator.flush();
    recalling.iter_mut().for_each(Evaluator::flush);
    assert_eq!(plain_logs, logs, "logs\n{ruleset:#?}");
    assert_eq!(recalled_logs, logs, "logs with memos\n{ruleset:#?}");
    seen.logged += logs.0.len() as u64;
    for filter in [plain, remembering] {
        let totals = filter.count_list();
        assert_eq!(totals.len(), starts.len());
        for (counter, (start, total)) in starts.iter().zip(totals).enumerate() {
            let (packets, bytes) = counts.get(&counter).copied().unwrap_or_default();
            let expected = (start.packets + packets, start.bytes + bytes);
            assert_eq!((total.packets, total.bytes), expected, "counter {counter}\n{ruleset:#?}");
        }
    }
}

fn note(seen: &mut Coverage, evaluation: Evaluation) {
    seen.packets += 1;
    seen.by_rule += u64::from(evaluation.by.is_some());
    seen.refused += u64::from(evaluation.verdict != Verdict::Accept);
}

fn change_members(filters: &[&Arc<Filter>], source: &mut Source<'_>) {
    let wanted: Vec<Members> = filters[0].wanted().cloned().collect();
    if wanted.is_empty() {
        return;
    }
    let who = &wanted[source.below(wanted.len())];
    let mut addresses = Vec::new();
    for _ in 0..source.below(4) {
        let v4 = IpAddr::V4(Ipv4Addr::from_bits(0x0a00_0000 + source.below(16) as u32));
        let v6 = IpAddr::V6(Ipv6Addr::from_bits((0xfd << 120) + source.below(16) as u128));
        addresses.push(match source.below(3) {
            0 => IpRange::from(v4),
            1 => IpRange::from(v6),
            _ => IpRange::prefix(v4, 29),
        });
    }
    for filter in filters {
        assert!(filter.set_members(who, &addresses));
    }
}

/// Generates a rule set and packets from the same bytes and compares the results: the entry point of a fuzzer.
pub fn compare(bytes: &[u8], seen: &mut Coverage) {
    let mut source = Source::new(bytes);
    let ruleset = ruleset(&mut source);
    let mut packets: Vec<(Frame, Context)> = Vec::new();
    let mut now = 0;
    while !source.is_empty() && packets.len() < 200 {
        now += source.below(1000) as u64 * 1_000_000;
        let again = packets.len().checked_sub(1 + source.below(6));
        let next = match again {
            Some(known) if source.once_in(2) => frames::again(&packets[known], &mut source, now),
            _ => frame(&mut source, now),
        };
        packets.push(next);
    }
    // The packets have used up all bytes; the same bytes choose the changes and their times.
    agree(&ruleset, &packets, &mut Source::new(bytes), seen);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::test_runner::{TestCaseResult, TestRunner};

    use super::*;

    /// The compiled rules, with and without caches, give the same results as the rules in source form.
    #[test]
    fn compiled_rules_judge_as_the_written_ones() {
        let seen = std::cell::Cell::new(Coverage::default());
        let mut runner = TestRunner::new(ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::with_cases(1500)
        });
        let bytes = prop::collection::vec(any::<u8>(), 0..3000);
        let outcome = runner.run(&bytes, |bytes| -> TestCaseResult {
            let mut counts = seen.get();
            compare(&bytes, &mut counts);
            seen.set(counts);
            Ok(())
        });
        outcome.unwrap_or_else(|error| panic!("{error}"));
        let Coverage { packets, by_rule, refused, remembered, logged } = seen.get();
        assert!(packets > 20_000, "{:?}", seen.get());
        let enough = [by_rule, refused, packets - refused].iter().all(|one| *one > packets / 10);
        assert!(enough && remembered > packets / 50 && logged > 100, "{:?}", seen.get());
    }
}
