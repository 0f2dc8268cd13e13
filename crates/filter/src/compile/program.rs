//! Rules as flat lists of operations, which an evaluator runs.

use std::collections::HashMap;

use crate::compile::demands;
use crate::compile::index::Index;
use crate::compile::lookup::Lookup;
use crate::compile::{CounterNumbers, LiveSetSlots};
use crate::ruleset::{
    ChainId, Counter, Field, Log, Match, Members, Range, Reject, Rule, RuleVerdict, Ruleset, SetId,
    Statement, Table, Test,
};

/// One step of a rule. Tests of fields of up to 64 bits are self-contained; the others refer to their data.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Op {
    Equal {
        field: Field,
        negate: bool,
        value: u64,
    },
    Within {
        field: Field,
        negate: bool,
        first: u64,
        last: u64,
    },
    Masked {
        field: Field,
        negate: bool,
        mask: u64,
        value: u64,
    },
    AnyOf {
        field: Field,
        negate: bool,
        bits: u64,
    },
    Wide {
        field: Field,
        negate: bool,
        test: u32,
    },
    In {
        field: Field,
        negate: bool,
        set: u32,
    },
    Live {
        field: Field,
        negate: bool,
        slot: u32,
    },
    ConcatLive {
        negate: bool,
        key: u32,
        slot: u32,
    },
    Concat {
        negate: bool,
        key: u32,
        test: u32,
    },
    ConcatIn {
        negate: bool,
        key: u32,
        set: u32,
    },
    Count(u32),
    Limit(u32),
    Log(u32),
    Accept,
    Drop,
    Return,
    Jump(u32),
    Goto(u32),
    Reject(Reject),
    Map {
        field: Field,
        map: u32,
    },
    ConcatMap {
        key: u32,
        map: u32,
    },
    /// Never matches: a map without verdicts.
    Never,
}

/// A test of a field of more than 64 bits.
#[derive(Copy, Clone, Debug)]
pub(crate) enum WideTest {
    Within(Range),
    Masked { mask: u128, value: u128 },
    AnyOf(u128),
}

/// A rule's operations and its name.
#[derive(Copy, Clone, Debug)]
pub(crate) struct RuleAt {
    pub first: u32,
    pub end: u32,
    pub handle: u32,
}

#[derive(Debug)]
pub(crate) struct ChainAt {
    /// The number of its first rule.
    pub first: u32,
    pub end: u32,
    pub index: Option<Box<(Index, Vec<Field>)>>,
}

/// All rules of all tables, with chains numbered consecutively.
#[derive(Debug, Default)]
pub(crate) struct Program {
    pub chains: Vec<ChainAt>,
    pub rules: Vec<RuleAt>,
    pub ops: Vec<Op>,
    pub wide: Vec<WideTest>,
    pub keys: Vec<Vec<Field>>,
    pub concats: Vec<Vec<Range>>,
    pub sets: Vec<Lookup>,
    /// The operation for each verdict, by map.
    pub verdicts: Vec<Vec<Op>>,
    pub logs: Vec<Log>,
    /// Whether any rule uses an interface.
    pub asks_ports: bool,
}

impl Program {
    pub(crate) fn new(ruleset: &Ruleset, numbers: &CounterNumbers, slots: &LiveSetSlots) -> Self {
        let mut program = Self::default();
        let mut first_chain = 0usize;
        for (at, table) in ruleset.tables.iter().enumerate() {
            let sets = HashMap::new();
            let mut writer =
                Writer { program: &mut program, table, at, first_chain, sets, numbers, slots };
            for chain in 0..table.chains.len() {
                writer.chain(ChainId(chain));
            }
            first_chain = first_chain.saturating_add(table.chains.len());
        }
        program.ops.shrink_to_fit();
        program.rules.shrink_to_fit();
        program
    }

    /// Returns the approximate number of bytes on the heap.
    pub(crate) fn size(&self) -> usize {
        let indexes = self.chains.iter().filter_map(|chain| chain.index.as_ref());
        let indexes: usize = indexes.map(|index| index.0.size()).sum();
        let sets: usize = self.sets.iter().map(Lookup::size).sum();
        let ops = self.ops.len().saturating_mul(size_of::<Op>());
        let rules = self.rules.len().saturating_mul(size_of::<RuleAt>());
        indexes.saturating_add(sets).saturating_add(ops).saturating_add(rules)
    }
}

/// Writes one table's rules.
struct Writer<'a> {
    program: &'a mut Program,
    table: &'a Table,
    at: usize,
    first_chain: usize,
    /// The compiled sets of this table, and their numbers.
    sets: HashMap<SetId, u32>,
    numbers: &'a CounterNumbers,
    slots: &'a LiveSetSlots,
}

impl Writer<'_> {
    fn chain(&mut self, id: ChainId) {
        let Some(chain) = self.table.chains.get(id.0) else { return };
        let first = self.program.rules.len() as u32;
        for (at, rule) in chain.rules.iter().enumerate() {
            self.rule(id, at, rule);
        }
        let end = self.program.rules.len() as u32;
        let (at, slots) = (self.at, self.slots);
        let changes = |set: SetId| slots.by_set.contains_key(&(at, set));
        let index = demands::index(self.table, &chain.rules, &changes).map(Box::new);
        self.program.chains.push(ChainAt { first, end, index });
    }

    fn rule(&mut self, chain: ChainId, at: usize, rule: &Rule) {
        let first = self.program.ops.len() as u32;
        let numbers = self.numbers.first(self.at, chain, at);
        let (mut counter, mut bucket) = (numbers.counter as u32, numbers.bucket as u32);
        for statement in &rule.statements {
            let op = match statement {
                Statement::Match(one) => self.test(one),
                Statement::Counter(Counter::Own(_)) => {
                    counter = counter.saturating_add(1);
                    Op::Count(counter.saturating_sub(1))
                }
                Statement::Counter(Counter::Named(id)) => {
                    Op::Count(self.numbers.named(self.at, *id) as u32)
                }
                Statement::Limit(_) => {
                    bucket = bucket.saturating_add(1);
                    Op::Limit(bucket.saturating_sub(1))
                }
                Statement::Log(log) => {
                    self.program.logs.push(log.clone());
                    Op::Log(self.program.logs.len().saturating_sub(1) as u32)
                }
                Statement::Verdict(RuleVerdict::Continue) => continue,
                Statement::Verdict(verdict) => self.verdict(*verdict),
                Statement::VerdictMap { key, map } => self.map(key, *map),
                Statement::Reject(how) => Op::Reject(*how),
            };
            self.program.ops.push(op);
        }
        let end = self.program.ops.len() as u32;
        self.program.rules.push(RuleAt { first, end, handle: rule.handle });
    }

    /// Converts a verdict; [`RuleVerdict::Continue`] becomes an operation without a decision.
    fn verdict(&self, verdict: RuleVerdict) -> Op {
        let chain = |id: ChainId| self.first_chain.saturating_add(id.0) as u32;
        match verdict {
            RuleVerdict::Accept => Op::Accept,
            RuleVerdict::Drop => Op::Drop,
            RuleVerdict::Continue => Op::Never,
            RuleVerdict::Return => Op::Return,
            RuleVerdict::Jump(id) => Op::Jump(chain(id)),
            RuleVerdict::Goto(id) => Op::Goto(chain(id)),
        }
    }

    fn test(&mut self, one: &Match) -> Op {
        self.asked(&one.key);
        let negate = one.negate;
        let [field] = one.key.as_slice() else { return self.concatenated(one) };
        let field = *field;
        let narrow = field.kind().bits() <= 64;
        // A value beyond the field's range can never match.
        let cut = |value: u128| u64::try_from(value).unwrap_or(u64::MAX);
        let wide = match &one.test {
            Test::Set(set) => return self.member(field, negate, *set),
            Test::Within(ranges) => match ranges.first() {
                Some(range) if narrow && range.first <= u128::from(u64::MAX) => {
                    let (first, last) = (cut(range.first), cut(range.last));
                    return if first == last {
                        Op::Equal { field, negate, value: first }
                    } else {
                        Op::Within { field, negate, first, last }
                    };
                }
                Some(range) => WideTest::Within(*range),
                None => return Op::Never,
            },
            Test::Masked { mask, value } => match u64::try_from(*value) {
                Ok(value) if narrow => {
                    return Op::Masked { field, negate, mask: *mask as u64, value };
                }
                _ => WideTest::Masked { mask: *mask, value: *value },
            },
            Test::AnyOf(bits) if narrow => {
                return Op::AnyOf { field, negate, bits: *bits as u64 };
            }
            Test::AnyOf(bits) => WideTest::AnyOf(*bits),
        };
        self.program.wide.push(wide);
        let test = self.program.wide.len().saturating_sub(1) as u32;
        Op::Wide { field, negate, test }
    }

    fn member(&mut self, field: Field, negate: bool, set: SetId) -> Op {
        match self.slots.by_set.get(&(self.at, set)) {
            Some(slot) => Op::Live { field, negate, slot: *slot as u32 },
            None => Op::In { field, negate, set: self.set(set) },
        }
    }

    fn concatenated(&mut self, one: &Match) -> Op {
        let (negate, key) = (one.negate, self.key(&one.key));
        match &one.test {
            Test::Set(set) => match self.slots.by_set.get(&(self.at, *set)) {
                Some(slot) => Op::ConcatLive { negate, key, slot: *slot as u32 },
                None => Op::ConcatIn { negate, key, set: self.set(*set) },
            },
            Test::Within(ranges) => {
                self.program.concats.push(ranges.clone());
                let test = self.program.concats.len().saturating_sub(1) as u32;
                Op::Concat { negate, key, test }
            }
            Test::Masked { .. } | Test::AnyOf(_) => Op::Never,
        }
    }

    fn map(&mut self, key: &[Field], map: SetId) -> Op {
        self.asked(key);
        if self.slots.by_set.contains_key(&(self.at, map)) {
            return Op::Never;
        }
        let map = self.set(map);
        match key {
            [field] => Op::Map { field: *field, map },
            key => Op::ConcatMap { key: self.key(key), map },
        }
    }

    fn asked(&mut self, key: &[Field]) {
        let asks = key.iter().any(|field| matches!(field, Field::IifName | Field::OifName));
        self.program.asks_ports |= asks;
    }

    fn key(&mut self, key: &[Field]) -> u32 {
        let known = self.program.keys.iter().position(|known| known == key);
        let at = known.unwrap_or_else(|| {
            self.program.keys.push(key.to_vec());
            self.program.keys.len().saturating_sub(1)
        });
        at as u32
    }

    /// Returns the number of a set, and compiles it at its first use.
    fn set(&mut self, id: SetId) -> u32 {
        if let Some(number) = self.sets.get(&id) {
            return *number;
        }
        let (parts, elements) = match self.table.sets.get(id.0) {
            Some(set) => match &set.members {
                Members::Fixed(elements) => (set.key.len(), elements.as_slice()),
                _ => (1, [].as_slice()),
            },
            None => (1, [].as_slice()),
        };
        let (lookup, verdicts) = Lookup::new(parts, elements);
        let number = self.program.sets.len() as u32;
        self.program.sets.push(lookup);
        let ops = verdicts.iter().map(|verdict| self.verdict(*verdict)).collect();
        self.program.verdicts.push(ops);
        self.sets.insert(id, number);
        number
    }
}
