//! Runs compiled rules on one packet.

use std::cell::Cell;

use crate::compile::{Filter, LiveSets, MAX_PARTS, Op, Pending, Program, RuleAt, Start, WideTest};
use crate::evaluate::read_field::read;
use crate::evaluate::walk::{measure, rejectable};
use crate::evaluate::{Context, Evaluation, LogSink, RuleLocation, Verdict};
use crate::packet::Packet;
use crate::ruleset::{Field, Policy, Range, Ruleset};

/// The evaluation of one packet.
pub(crate) struct Run<'a, 'p> {
    pub filter: &'a Filter,
    pub program: &'a Program,
    pub live: &'a LiveSets,
    pub packet: &'a Packet<'p>,
    pub context: &'a Context,
    pub counts: &'a mut Pending,
    pub logs: &'a mut dyn LogSink,
    /// Set when the result depends on a property that may differ between packets of one flow.
    pub unsteady: &'a Cell<bool>,
    /// The counters that were incremented, if the caller wants them.
    pub counted: Option<&'a mut Vec<u32>>,
    /// Only the verdict is needed: the run counts and logs nothing, and treats limits as not exceeded.
    pub dry: bool,
}

/// The early end of a chain.
enum ChainEnd {
    Decided(Verdict, u32),
    Return,
    Goto(u32),
}

/// The step that follows a rule.
enum Next {
    Rule,
    End(ChainEnd),
    Jump(u32),
}

impl Run<'_, '_> {
    /// Evaluates these base chains. Also returns the number of the counter of the last one's verdict.
    #[inline]
    pub(crate) fn evaluate(&mut self, bases: &[Start]) -> (Evaluation, u32) {
        let (mut by, mut counter) = (None, 0);
        for Start { chain, policy, verdicts } in bases {
            let (verdict, rule) = match self.chain(*chain) {
                Some((verdict, rule)) => (verdict, Some(rule)),
                None if *policy == Policy::Accept => (Verdict::Accept, None),
                None => (Verdict::Drop, None),
            };
            (by, counter) = (rule, *verdicts);
            if verdict != Verdict::Accept {
                return (Evaluation { verdict, by }, counter.saturating_add(1));
            }
        }
        (Evaluation { verdict: Verdict::Accept, by }, counter)
    }

    /// Evaluates a chain; returns `None` at its end or after a return. The compiler has bounded the depth of jumps.
    fn chain(&mut self, mut number: u32) -> Option<(Verdict, u32)> {
        loop {
            let chain = self.program.chains.get(number as usize)?;
            let end = match &chain.index {
                None => {
                    let rules = chain.first as usize..chain.end as usize;
                    let rules = self.program.rules.get(rules)?;
                    rules.iter().find_map(|rule| self.visit(rule))
                }
                Some(index) => {
                    let (index, fields) = &**index;
                    let (packet, context, unsteady) = (self.packet, self.context, self.unsteady);
                    let value = |dim: usize| {
                        let field = *fields.get(dim)?;
                        let value = read(field, packet, context);
                        note(field, value.is_some(), unsteady);
                        value
                    };
                    let (rules, first) = (&self.program.rules, chain.first);
                    index.search(value, |at| {
                        rules.get(first.wrapping_add(at) as usize).and_then(|rule| self.visit(rule))
                    })
                }
            };
            match end {
                Some(ChainEnd::Decided(verdict, rule)) => return Some((verdict, rule)),
                Some(ChainEnd::Goto(other)) => number = other,
                Some(ChainEnd::Return) | None => return None,
            }
        }
    }

    /// Executes a rule and its jumps.
    #[inline]
    fn visit(&mut self, rule: &RuleAt) -> Option<ChainEnd> {
        match self.rule(rule) {
            Next::Rule => None,
            Next::End(end) => Some(end),
            Next::Jump(chain) => {
                self.chain(chain).map(|(verdict, rule)| ChainEnd::Decided(verdict, rule))
            }
        }
    }

    #[inline]
    fn rule(&mut self, rule: &RuleAt) -> Next {
        let ops = self.program.ops.get(rule.first as usize..rule.end as usize);
        for op in ops.unwrap_or_default() {
            let matched = match *op {
                Op::Count(counter) => {
                    self.count(counter);
                    true
                }
                Op::Limit(bucket) => self.limit(bucket),
                Op::Log(log) => {
                    self.log(rule.handle, log);
                    true
                }
                Op::Map { field, map } => {
                    let found = self.read(field).map_or(0, |value| self.find(map, &[value]));
                    match self.verdict(map, found) {
                        Some(op) => match decide(op, rule.handle, self.packet) {
                            Some(next) => return next,
                            None => true,
                        },
                        None => false,
                    }
                }
                Op::ConcatMap { key, map } => {
                    match self.verdict(map, self.find_concatenated(key, map).unwrap_or(0)) {
                        Some(op) => match decide(op, rule.handle, self.packet) {
                            Some(next) => return next,
                            None => true,
                        },
                        None => false,
                    }
                }
                Op::Never => false,
                test @ (Op::Equal { .. }
                | Op::Within { .. }
                | Op::Masked { .. }
                | Op::AnyOf { .. }
                | Op::Wide { .. }
                | Op::In { .. }
                | Op::Live { .. }
                | Op::ConcatLive { .. }
                | Op::Concat { .. }
                | Op::ConcatIn { .. }) => self.test(test),
                op => match decide(op, rule.handle, self.packet) {
                    Some(next) => return next,
                    None => false,
                },
            };
            if !matched {
                return Next::Rule;
            }
        }
        Next::Rule
    }

    /// Compares a field. A packet that lacks the field matches neither a comparison nor its negation.
    #[inline]
    fn test(&self, op: Op) -> bool {
        let passes = |field, negate: bool, test: &dyn Fn(u64) -> bool| {
            self.narrow(field).is_some_and(|value| test(value) != negate)
        };
        match op {
            Op::Equal { field, negate, value } => {
                self.narrow(field).is_some_and(|found| (found == value) != negate)
            }
            Op::Within { field, negate, first, last } => {
                passes(field, negate, &|found| first <= found && found <= last)
            }
            Op::Masked { field, negate, mask, value } => {
                passes(field, negate, &|found| found & mask == value)
            }
            Op::AnyOf { field, negate, bits } => passes(field, negate, &|found| found & bits != 0),
            Op::In { field, negate, set } => {
                self.read(field).is_some_and(|value| (self.find(set, &[value]) != 0) != negate)
            }
            Op::Live { field, negate, slot } => {
                self.read(field).is_some_and(|value| self.live.has(slot, value) != negate)
            }
            Op::Wide { field, negate, test } => self.wide(field, test) == Some(!negate),
            Op::ConcatLive { negate, key, slot } => {
                let found = self.with_key(key, |key| self.live.has_key(slot, key));
                found == Some(!negate)
            }
            Op::Concat { negate, key, test } => self.within(key, test) == Some(!negate),
            Op::ConcatIn { negate, key, set } => {
                self.find_concatenated(key, set).is_some_and(|found| (found != 0) != negate)
            }
            _ => false,
        }
    }

    #[inline]
    fn narrow(&self, field: Field) -> Option<u64> {
        self.read(field).map(|value| value as u64)
    }

    #[inline]
    fn read(&self, field: Field) -> Option<u128> {
        let value = read(field, self.packet, self.context);
        note(field, value.is_some(), self.unsteady);
        value
    }

    #[inline(never)]
    fn wide(&self, field: Field, test: u32) -> Option<bool> {
        let value = self.read(field)?;
        Some(match *self.program.wide.get(test as usize)? {
            WideTest::Within(range) => range.contains(value),
            WideTest::Masked { mask, value: wanted } => value & mask == wanted,
            WideTest::AnyOf(bits) => value & bits != 0,
        })
    }

    fn find(&self, set: u32, key: &[u128]) -> u32 {
        self.program.sets.get(set as usize).map_or(0, |set| set.find(key))
    }

    fn with_key<R>(&self, key: u32, with: impl FnOnce(&[u128]) -> R) -> Option<R> {
        let fields = self.program.keys.get(key as usize)?;
        let mut values = [0; MAX_PARTS];
        let values = values.get_mut(..fields.len())?;
        for (value, field) in values.iter_mut().zip(fields) {
            *value = self.read(*field)?;
        }
        Some(with(values))
    }

    #[inline(never)]
    fn find_concatenated(&self, key: u32, set: u32) -> Option<u32> {
        self.with_key(key, |key| self.find(set, key))
    }

    #[inline(never)]
    fn within(&self, key: u32, test: u32) -> Option<bool> {
        let ranges: &[Range] = self.program.concats.get(test as usize)?;
        self.with_key(key, |key| {
            ranges.iter().zip(key).all(|(range, value)| range.contains(*value))
        })
    }

    /// Returns the operation of a map's verdict; `None` if there was none.
    fn verdict(&self, map: u32, found: u32) -> Option<Op> {
        let verdicts = self.program.verdicts.get(map as usize)?;
        verdicts.get(found.checked_sub(1)? as usize).copied()
    }

    #[inline]
    fn count(&mut self, counter: u32) {
        if self.dry {
            return;
        }
        let (segments, bytes) = measure(self.packet);
        self.counts.add(counter as usize, segments, bytes);
        if let Some(counted) = &mut self.counted {
            counted.push(counter);
        }
    }

    #[inline(never)]
    fn limit(&mut self, bucket: u32) -> bool {
        self.unsteady.set(true);
        if self.dry {
            let bucket = self.filter.bucket(bucket as usize);
            return bucket.is_none_or(super::token_bucket::TokenBucket::matches_below);
        }
        let (segments, bytes) = measure(self.packet);
        let take = |bucket: &super::token_bucket::TokenBucket| {
            bucket.take(self.context.now, segments, bytes)
        };
        self.filter.bucket(bucket as usize).is_none_or(take)
    }

    #[inline(never)]
    fn log(&mut self, rule: u32, log: u32) {
        self.unsteady.set(true);
        if self.dry {
            return;
        }
        if let Some(log) = self.program.logs.get(log as usize) {
            self.logs.log(rule, log, self.packet);
        }
    }
}

/// Returns the result of a deciding operation; `None` if it does not apply or lets the rule continue.
#[inline]
fn decide(op: Op, handle: u32, packet: &Packet<'_>) -> Option<Next> {
    Some(match op {
        Op::Accept => Next::End(ChainEnd::Decided(Verdict::Accept, handle)),
        Op::Drop => Next::End(ChainEnd::Decided(Verdict::Drop, handle)),
        Op::Return => Next::End(ChainEnd::Return),
        Op::Goto(chain) => Next::End(ChainEnd::Goto(chain)),
        Op::Jump(chain) => Next::Jump(chain),
        Op::Reject(how) if rejectable(how, packet) => {
            Next::End(ChainEnd::Decided(Verdict::Reject(how), handle))
        }
        _ => return None,
    })
}

/// Records the use of a field that differs between the packets of a flow (in one direction and state, between the same
/// interfaces). If a field is missing from one packet, it is missing from the whole flow, except for a VLAN tag.
#[inline]
fn note(field: Field, there: bool, unsteady: &Cell<bool>) {
    let vlan = matches!(field, Field::VlanId | Field::VlanPcp | Field::VlanType);
    if !steady(field) && (there || vlan) {
        unsteady.set(true);
    }
}

/// Returns whether a field has the same value in all packets of a flow.
#[inline]
fn steady(field: Field) -> bool {
    matches!(
        field,
        Field::IifName
            | Field::OifName
            | Field::EtherType
            | Field::MetaProtocol
            | Field::MetaNfproto
            | Field::MetaL4proto
            | Field::IpSaddr
            | Field::IpDaddr
            | Field::IpProtocol
            | Field::IpVersion
            | Field::Ip6Saddr
            | Field::Ip6Daddr
            | Field::Ip6Version
            | Field::TcpSport
            | Field::TcpDport
            | Field::UdpSport
            | Field::UdpDport
            | Field::ThSport
            | Field::ThDport
            | Field::CtState
            | Field::CtDirection
            | Field::CtProtocol
    )
}

/// Returns a base chain's number in the program, and its policy.
pub(crate) fn base(ruleset: &Ruleset, place: RuleLocation) -> (u32, Policy) {
    let tables = &ruleset.tables;
    let before = tables.iter().take(place.table).map(|table| table.chains.len());
    let number = before.fold(place.chain.0, usize::saturating_add);
    let chain = tables.get(place.table).and_then(|table| table.chains.get(place.chain.0));
    let policy = chain.and_then(|chain| chain.base).map_or(Policy::Accept, |base| base.policy);
    (number as u32, policy)
}
