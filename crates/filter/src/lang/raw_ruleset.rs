//! A table during parsing: objects that were named but may not be defined yet.

use std::collections::HashMap;

use super::lex::Span;
use crate::ruleset::{
    Chain, ChainId, CounterId, Family, Kind, Members, NamedCounter, Rule, Set, SetId, Table,
};

#[derive(Debug)]
pub(super) struct RawRuleset {
    pub table: Table,
    pub sets: Vec<SetNote>,
    pub chains: Vec<Definition>,
    pub counters: Vec<Definition>,
    /// Lookups, which are checked after everything is read.
    pub lookups: Vec<Lookup>,
    pub jumps: Vec<Jump>,
    /// Rules that `insert` puts before all others of a chain, the last one first.
    pub inserted: HashMap<usize, Vec<Rule>>,
    set_names: HashMap<String, usize>,
    chain_names: HashMap<String, usize>,
    counter_names: HashMap<String, usize>,
    whos: HashMap<(Members, Kind), usize>,
    definitions: usize,
}

/// The position where an object was defined, or first named.
#[derive(Copy, Clone, Debug)]
pub(super) struct Definition {
    pub at: Span,
    pub defined: bool,
    /// The index of the definition in its table.
    pub order: usize,
}

impl Definition {
    const fn named(at: Span) -> Self {
        Self { at, defined: false, order: 0 }
    }
}

#[derive(Debug)]
pub(super) struct SetNote {
    pub note: Definition,
    /// The position of each element.
    pub places: Vec<Span>,
}

#[derive(Debug)]
pub(super) struct Lookup {
    pub set: SetId,
    pub kinds: Vec<Kind>,
    pub map: bool,
    pub at: Span,
}

#[derive(Debug)]
pub(super) struct Jump {
    /// The chain, or the set whose element, the jump comes from.
    pub from: From,
    pub to: ChainId,
    pub at: Span,
}

#[derive(Copy, Clone, Debug)]
pub(super) enum From {
    Chain(usize),
    Set(usize),
}

impl RawRuleset {
    pub(super) fn new(family: Family, name: &str) -> Self {
        Self {
            table: Table {
                family,
                name: name.to_owned(),
                sets: Vec::new(),
                chains: Vec::new(),
                counters: Vec::new(),
            },
            sets: Vec::new(),
            chains: Vec::new(),
            counters: Vec::new(),
            lookups: Vec::new(),
            jumps: Vec::new(),
            inserted: HashMap::new(),
            set_names: HashMap::new(),
            chain_names: HashMap::new(),
            counter_names: HashMap::new(),
            whos: HashMap::new(),
            definitions: 0,
        }
    }

    /// Returns a chain by its name, which may be defined later.
    pub(super) fn chain(&mut self, name: &str, at: Span) -> usize {
        if let Some(&id) = self.chain_names.get(name) {
            return id;
        }
        let id = self.table.chains.len();
        let name = name.to_owned();
        self.chain_names.insert(name.clone(), id);
        self.table.chains.push(Chain {
            name,
            base: None,
            rules: Vec::<Rule>::new(),
            comment: None,
        });
        self.chains.push(Definition::named(at));
        id
    }

    /// Returns a named set or map, which may be defined later.
    pub(super) fn set(&mut self, name: &str, at: Span) -> usize {
        if let Some(&id) = self.set_names.get(name) {
            return id;
        }
        let id = self.push_set(Set { name: Some(name.to_owned()), ..Set::default() }, at, false);
        self.set_names.insert(name.to_owned(), id);
        id
    }

    pub(super) fn push_set(&mut self, set: Set, at: Span, defined: bool) -> usize {
        let id = self.table.sets.len();
        self.table.sets.push(set);
        let places = Vec::new();
        let note = Definition { defined, ..Definition::named(at) };
        self.sets.push(SetNote { note, places });
        id
    }

    /// Returns the set of addresses of a client, node or group; one set, however often it is used.
    pub(super) fn who(&mut self, members: Members, kind: Kind, at: Span) -> usize {
        let key = (members, kind);
        if let Some(&id) = self.whos.get(&key) {
            return id;
        }
        let members = key.0.clone();
        let set = Set { key: vec![kind], interval: true, members, ..Set::default() };
        let id = self.push_set(set, at, true);
        self.whos.insert(key, id);
        id
    }

    /// Returns a named counter, which may be defined later.
    pub(super) fn counter(&mut self, name: &str, at: Span) -> CounterId {
        if let Some(&id) = self.counter_names.get(name) {
            return CounterId(id);
        }
        let id = self.table.counters.len();
        self.counter_names.insert(name.to_owned(), id);
        let start = crate::ruleset::Count::default();
        self.table.counters.push(NamedCounter { name: name.to_owned(), start });
        self.counters.push(Definition::named(at));
        CounterId(id)
    }

    /// Records that an object is defined here; returns whether this is its first definition.
    pub(super) fn define(
        &mut self,
        what: impl FnOnce(&mut Self) -> Option<&mut Definition>,
        at: Span,
    ) -> bool {
        let order = self.definitions.saturating_add(1);
        self.definitions = order;
        match what(self) {
            Some(note) if !note.defined => {
                *note = Definition { at, defined: true, order };
                true
            }
            _ => false,
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.table.chains.is_empty() && self.table.sets.is_empty() && self.table.counters.is_empty()
    }
}
