//! Executes rules in source form, statement by statement. This defines the meaning of a rule set. The compiled form is
//! compared with it, and `explain` shows it. It is slow and simple.

use crate::compile::{Filter, LiveSets};
use crate::evaluate::read_field::read;
use crate::evaluate::token_bucket::TokenBucket;
use crate::evaluate::{Context, Evaluation, Mismatch, RuleEnd, RuleLocation, Step, Trace, Verdict};
use crate::packet::{Packet, Transport};
use crate::ruleset::{
    ChainId, Counter, Field, Log, Match, Members, Policy, Range, Reject, Rule, RuleVerdict, SetId,
    Statement, Table, Test,
};

/// The effects of rules other than decisions.
pub(crate) trait Effects {
    /// Counts the packet.
    fn count(&mut self, counter: usize);
    /// Returns whether a limit matches.
    fn limit(&mut self, bucket: &TokenBucket) -> bool;
    /// Logs the packet.
    fn log(&mut self, rule: u32, log: &Log);
    /// Records a step.
    fn step(&mut self, step: impl FnOnce() -> Step);
}

/// The position at which a chain continues after its jump returns.
#[derive(Copy, Clone)]
struct Frame {
    chain: ChainId,
    next: usize,
}

/// The step that follows a rule.
enum Next {
    Rule,
    Verdict(RuleVerdict),
    Reject(Reject),
}

struct Walk<'a, 'p, E> {
    filter: &'a Filter,
    live: &'a LiveSets,
    packet: &'a Packet<'p>,
    context: &'a Context,
    effects: &'a mut E,
}

/// Evaluates by executing every rule.
pub(crate) fn walk<E: Effects>(
    filter: &Filter,
    live: &LiveSets,
    packet: &Packet<'_>,
    context: &Context,
    effects: &mut E,
) -> Evaluation {
    let mut walk = Walk { filter, live, packet, context, effects };
    let mut evaluation = Evaluation { verdict: Verdict::Accept, by: None };
    for place in filter.bases(packet) {
        evaluation = walk.base(*place);
        if evaluation.verdict != Verdict::Accept {
            break;
        }
    }
    evaluation
}

/// Evaluates as [`walk`] does and records every step, without taking tokens, counting or logging.
pub(crate) fn explain(
    filter: &Filter,
    live: &LiveSets,
    packet: &Packet<'_>,
    context: &Context,
) -> Trace {
    let mut notes = TraceRecorder { steps: Vec::new(), packet, context };
    let Evaluation { verdict, by } = walk(filter, live, packet, context, &mut notes);
    Trace { steps: notes.steps, verdict, by }
}

struct TraceRecorder<'a, 'p> {
    steps: Vec<Step>,
    packet: &'a Packet<'p>,
    context: &'a Context,
}

impl Effects for TraceRecorder<'_, '_> {
    fn count(&mut self, _: usize) {}

    fn limit(&mut self, bucket: &TokenBucket) -> bool {
        let (segments, bytes) = measure(self.packet);
        bucket.would(self.context.now, segments, bytes)
    }

    fn log(&mut self, _: u32, _: &Log) {}

    fn step(&mut self, step: impl FnOnce() -> Step) {
        self.steps.push(step());
    }
}

impl<E: Effects> Walk<'_, '_, E> {
    fn base(&mut self, place: RuleLocation) -> Evaluation {
        let accept = |by| Evaluation { verdict: Verdict::Accept, by };
        let drop = |by| Evaluation { verdict: Verdict::Drop, by };
        let Some(table) = self.filter.ruleset().tables.get(place.table) else {
            return accept(None);
        };
        self.effects.step(|| Step::Base(place));
        let mut stack: Vec<Frame> = Vec::new();
        let mut at = Frame { chain: place.chain, next: 0 };
        loop {
            let chain = table.chains.get(at.chain.0);
            let Some(rule) = chain.and_then(|chain| chain.rules.get(at.next)) else {
                let Some(back) = stack.pop() else { break };
                at = back;
                self.effects.step(|| Step::Back(RuleLocation { chain: at.chain, ..place }));
                continue;
            };
            let here = RuleLocation { chain: at.chain, ..place };
            let index = at.next;
            at.next = at.next.saturating_add(1);
            match self.rule(table, here, index, rule) {
                Next::Rule | Next::Verdict(RuleVerdict::Continue) => {}
                Next::Verdict(RuleVerdict::Accept) => return accept(Some(rule.handle)),
                Next::Verdict(RuleVerdict::Drop) => return drop(Some(rule.handle)),
                Next::Reject(how) => {
                    let verdict = Verdict::Reject(how);
                    return Evaluation { verdict, by: Some(rule.handle) };
                }
                Next::Verdict(RuleVerdict::Return) => {
                    let Some(back) = stack.pop() else { break };
                    at = back;
                    self.effects.step(|| Step::Back(RuleLocation { chain: at.chain, ..place }));
                }
                Next::Verdict(RuleVerdict::Jump(chain)) => {
                    stack.push(at);
                    at = Frame { chain, next: 0 };
                }
                Next::Verdict(RuleVerdict::Goto(chain)) => at = Frame { chain, next: 0 },
            }
        }
        let base = table.chains.get(place.chain.0).and_then(|chain| chain.base);
        let policy = base.map_or(Policy::Accept, |base| base.policy);
        self.effects.step(|| Step::Policy(place, policy));
        match policy {
            Policy::Accept => accept(None),
            Policy::Drop => drop(None),
        }
    }

    fn rule(&mut self, table: &Table, place: RuleLocation, index: usize, rule: &Rule) -> Next {
        let (end, next) = self.statements(table, place, index, rule);
        let handle = rule.handle;
        self.effects.step(|| Step::Rule { place, index, handle, end });
        next
    }

    fn statements(
        &mut self,
        table: &Table,
        place: RuleLocation,
        index: usize,
        rule: &Rule,
    ) -> (RuleEnd, Next) {
        let first = self.filter.first(place, index);
        let (mut counter, mut bucket) = (first.counter, first.bucket);
        for (statement, what) in rule.statements.iter().enumerate() {
            let fields: &[Field] = match what {
                Statement::Match(one) => &one.key,
                Statement::VerdictMap { key, .. } => key,
                _ => &[],
            };
            let matched = match what {
                Statement::Match(one) => self.matches(table, place.table, one),
                Statement::Counter(Counter::Own(_)) => {
                    self.effects.count(counter);
                    counter = counter.saturating_add(1);
                    true
                }
                Statement::Counter(Counter::Named(id)) => {
                    self.effects.count(self.filter.named(place.table, *id));
                    true
                }
                Statement::Limit(_) => {
                    let found = self.filter.bucket(bucket);
                    bucket = bucket.saturating_add(1);
                    found.is_none_or(|bucket| self.effects.limit(bucket))
                }
                Statement::Log(log) => {
                    self.effects.log(rule.handle, log);
                    true
                }
                Statement::Verdict(RuleVerdict::Continue) => true,
                Statement::Verdict(verdict) => {
                    return (RuleEnd::Verdict(*verdict), Next::Verdict(*verdict));
                }
                Statement::VerdictMap { key, map } => {
                    match self.key(key).and_then(|key| self.look_up(table, *map, &key)) {
                        Some(RuleVerdict::Continue) => true,
                        Some(verdict) => {
                            return (RuleEnd::Verdict(verdict), Next::Verdict(verdict));
                        }
                        None => false,
                    }
                }
                Statement::Reject(how) => {
                    if rejectable(*how, self.packet) {
                        return (RuleEnd::Reject(*how), Next::Reject(*how));
                    }
                    false
                }
            };
            if !matched {
                let value = |field: &Field| (*field, read(*field, self.packet, self.context));
                let values = fields.iter().map(value).collect();
                return (RuleEnd::NoMatch(Mismatch { statement, values }), Next::Rule);
            }
        }
        (RuleEnd::Undecided, Next::Rule)
    }

    fn key(&self, fields: &[Field]) -> Option<Vec<u128>> {
        fields.iter().map(|field| read(*field, self.packet, self.context)).collect()
    }

    fn matches(&self, table: &Table, table_at: usize, one: &Match) -> bool {
        let Some(key) = self.key(&one.key) else { return false };
        let single = key.first().copied().unwrap_or(0);
        let found = match &one.test {
            Test::Within(ranges) => within(ranges, &key),
            Test::Set(id) => self.member(table, table_at, *id, &key),
            Test::Masked { mask, value } => single & mask == *value,
            Test::AnyOf(bits) => single & bits != 0,
        };
        found != one.negate
    }

    fn member(&self, table: &Table, table_at: usize, id: SetId, key: &[u128]) -> bool {
        if let Some(slot) = self.filter.slot(table_at, id) {
            return match key {
                [value] => self.live.has(slot as u32, *value),
                key => self.live.has_key(slot as u32, key),
            };
        }
        match table.sets.get(id.0).map(|set| &set.members) {
            Some(Members::Fixed(elements)) => {
                elements.iter().any(|element| within(&element.key, key))
            }
            _ => false,
        }
    }

    fn look_up(&self, table: &Table, id: SetId, key: &[u128]) -> Option<RuleVerdict> {
        let Members::Fixed(elements) = &table.sets.get(id.0)?.members else { return None };
        elements.iter().find(|element| within(&element.key, key))?.verdict
    }
}

fn within(ranges: &[Range], key: &[u128]) -> bool {
    ranges.len() == key.len() && ranges.iter().zip(key).all(|(range, value)| range.contains(*value))
}

/// Returns whether a rule with this `reject` decides about a packet.
///
/// The forms that name a protocol match that protocol only. Plain `reject` and `icmpx` match every packet: if the
/// sender cannot be notified, as for ARP in a bridge, the packet is dropped, as `nft_reject_bridge` does.
pub(crate) fn rejectable(how: Reject, packet: &Packet<'_>) -> bool {
    let from = |v4: bool| packet.ip().is_some_and(|ip| ip.source.is_ipv4() == v4);
    match how {
        Reject::TcpReset => matches!(packet.transport, Transport::Tcp(_)),
        Reject::Icmp(_) => from(true),
        Reject::Icmpv6(_) => from(false),
        Reject::Icmpx(_) => true,
    }
}

/// Returns the amounts that counters and limits use: segments, and bytes from the network header on.
pub(crate) fn measure(packet: &Packet<'_>) -> (u64, u64) {
    (packet.segments().into(), packet.length() as u64)
}
