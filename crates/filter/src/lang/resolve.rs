//! Checks that are possible only after everything is read: names, jumps, overlapping elements. Then all objects are
//! numbered in the order in which they are printed, so a printed file parses to the same numbers.

use std::collections::HashMap;

use super::diagnostic::similar;
use super::lex::{Span, SyntaxError};
use super::raw_ruleset::{From, RawRuleset, SetNote};
use super::{MAX_JUMPS, names};
use crate::ruleset::{
    Counter, Element, Kind, Match, Members, Range, RuleVerdict, Ruleset, Set, Statement, Test,
};

/// The maximum number of comparisons of elements of a concatenation, to find overlapping ones.
const MAX_COMPARISONS: usize = 1 << 26;

pub(super) fn finish(drafts: Vec<RawRuleset>, errors: &mut Vec<SyntaxError>) -> Ruleset {
    let mut ruleset = Ruleset::default();
    let mut handle = 0_u32;
    for mut draft in drafts {
        for (chain, rules) in std::mem::take(&mut draft.inserted) {
            if let Some(chain) = draft.table.chains.get_mut(chain) {
                chain.rules.splice(0..0, rules.into_iter().rev());
            }
        }
        undefined(&draft, errors);
        lookups(&draft, errors);
        jumps(&draft, errors);
        for (set, note) in draft.table.sets.iter_mut().zip(&draft.sets) {
            elements(set, note, errors);
        }
        number(&mut draft);
        for rule in draft.table.chains.iter_mut().flat_map(|c| &mut c.rules) {
            handle = handle.saturating_add(1);
            rule.handle = handle;
        }
        ruleset.tables.push(draft.table);
    }
    ruleset
}

fn undefined(draft: &RawRuleset, errors: &mut Vec<SyntaxError>) {
    let table = &draft.table;
    let mut tell = |what: &str, name: &str, at: Span, known: &[&str], form: String| {
        let error = SyntaxError::new(at, format!("there is no {what} `{name}` in this table"));
        errors.push(match similar(name, known.iter().copied()) {
            Some(meant) => error.hint(format!("did you mean `{meant}`?")),
            None => error.hint(form),
        });
    };
    let chains: Vec<&str> = table
        .chains
        .iter()
        .zip(&draft.chains)
        .filter(|(_, n)| n.defined)
        .map(|(c, _)| &*c.name)
        .collect();
    for (chain, note) in table.chains.iter().zip(&draft.chains).filter(|(_, n)| !n.defined) {
        tell("chain", &chain.name, note.at, &chains, format!("chain {} {{ ... }}", chain.name));
    }
    let sets: Vec<&str> = table
        .sets
        .iter()
        .zip(&draft.sets)
        .filter(|(_, n)| n.note.defined)
        .filter_map(|(s, _)| s.name.as_deref())
        .collect();
    for (set, note) in table.sets.iter().zip(&draft.sets).filter(|(_, n)| !n.note.defined) {
        let name = set.name.as_deref().unwrap_or("");
        tell("set", name, note.note.at, &sets, format!("set {name} {{ type ipv4_addr; }}"));
    }
    let counters: Vec<&str> = table
        .counters
        .iter()
        .zip(&draft.counters)
        .filter(|(_, n)| n.defined)
        .map(|(c, _)| &*c.name)
        .collect();
    for (counter, note) in table.counters.iter().zip(&draft.counters).filter(|(_, n)| !n.defined) {
        tell(
            "counter",
            &counter.name,
            note.at,
            &counters,
            format!("counter {} {{ }}", counter.name),
        );
    }
}

fn lookups(draft: &RawRuleset, errors: &mut Vec<SyntaxError>) {
    for lookup in &draft.lookups {
        let set = draft.table.sets.get(lookup.set.0).zip(draft.sets.get(lookup.set.0));
        let Some((set, _)) = set.filter(|(_, note)| note.note.defined) else {
            continue;
        };
        let name = set.name.as_deref().unwrap_or("");
        if set.map != lookup.map {
            let (is, hint) = if set.map {
                ("a map", format!("vmap @{name}"))
            } else {
                ("a set", format!("@{name}, without `vmap`"))
            };
            errors.push(SyntaxError::new(lookup.at, format!("`{name}` is {is}")).hint(hint));
        } else if set.key != lookup.kinds && !set.key.is_empty() {
            let message = format!(
                "`{name}` has keys of type {}; this looks up {}",
                types(&set.key),
                types(&lookup.kinds)
            );
            errors.push(SyntaxError::new(lookup.at, message).hint("a set of that type"));
        }
    }
}

fn types(key: &[Kind]) -> String {
    let parts = key.iter().map(|&kind| match names::type_name(kind) {
        Some(name) => name.to_owned(),
        None => format!("integer of {} bits", kind.bits()),
    });
    parts.collect::<Vec<_>>().join(" . ")
}

/// Checks that jumps lead to chains without a hook, form no loop, and are not too deep.
fn jumps(draft: &RawRuleset, errors: &mut Vec<SyntaxError>) {
    let table = &draft.table;
    // Through a map, a chain jumps to all targets of the map's elements.
    let mut by_map: HashMap<usize, Vec<(usize, Span)>> = HashMap::new();
    let mut edges: Vec<Vec<(usize, Span)>> = vec![Vec::new(); table.chains.len()];
    for jump in &draft.jumps {
        let target = table.chains.get(jump.to.0);
        if let Some(chain) = target.filter(|c| c.base.is_some()) {
            let error = SyntaxError::new(jump.at, format!("`{}` is a base chain", chain.name));
            errors.push(error.hint("a chain without `type filter hook forward`"));
        }
        match jump.from {
            From::Chain(from) => {
                if let Some(list) = edges.get_mut(from) {
                    list.push((jump.to.0, jump.at));
                }
            }
            From::Set(set) => by_map.entry(set).or_default().push((jump.to.0, jump.at)),
        }
    }
    for (chain, edges) in table.chains.iter().zip(&mut edges) {
        let mut maps: Vec<usize> = chain
            .rules
            .iter()
            .flat_map(|r| &r.statements)
            .filter_map(|s| match s {
                Statement::VerdictMap { map, .. } => Some(map.0),
                _ => None,
            })
            .collect();
        maps.sort_unstable();
        maps.dedup();
        edges.extend(maps.iter().filter_map(|m| by_map.get(m)).flatten().copied());
        edges.sort_unstable_by_key(|e| e.0);
        edges.dedup_by_key(|e| e.0);
    }
    depths(draft, &edges, errors);
}

/// Walks the graph of jumps without recursion, because a file may nest them arbitrarily.
fn depths(draft: &RawRuleset, edges: &[Vec<(usize, Span)>], errors: &mut Vec<SyntaxError>) {
    #[derive(Copy, Clone)]
    enum State {
        New,
        Open,
        /// The length of the longest path from here, in jumps.
        Done(usize),
    }
    let name = |chain: usize| draft.table.chains.get(chain).map_or("", |c| &c.name);
    let mut states = vec![State::New; edges.len()];
    for start in 0..edges.len() {
        let mut stack = vec![(start, 0_usize, 0_usize)];
        while let Some((chain, next, longest)) = stack.pop() {
            if next == 0 && matches!(states.get(chain), Some(State::Done(_))) {
                continue;
            }
            let Some(state) = states.get_mut(chain) else {
                continue;
            };
            let Some(&(to, at)) = edges.get(chain).and_then(|e| e.get(next)) else {
                *state = State::Done(longest);
                if let Some((_, _, above)) = stack.last_mut() {
                    *above = longest.saturating_add(1).max(*above);
                }
                continue;
            };
            *state = State::Open;
            let on = next.saturating_add(1);
            match states.get(to) {
                Some(State::Open) => {
                    let message = format!(
                        "a jump in a circle: `{}` comes back to `{}`",
                        name(chain),
                        name(to)
                    );
                    errors.push(
                        SyntaxError::new(at, message).hint("a chain further on, or `return`"),
                    );
                    stack.push((chain, on, longest));
                }
                Some(&State::Done(depth)) => {
                    let longest = depth.saturating_add(1).max(longest);
                    stack.push((chain, on, longest));
                }
                _ => {
                    stack.push((chain, on, longest));
                    stack.push((to, 0, 0));
                }
            }
        }
    }
    for (chain, state) in states.iter().enumerate() {
        let base = draft.table.chains.get(chain).is_some_and(|c| c.base.is_some());
        if let (true, State::Done(depth)) = (base, state)
            && *depth > MAX_JUMPS
            && let Some(note) = draft.chains.get(chain)
        {
            let message =
                format!("from `{}`, jumps go {depth} deep; {MAX_JUMPS} are allowed", name(chain));
            errors.push(SyntaxError::new(note.at, message).hint("fewer chains between"));
        }
    }
}

/// Checks duplicates, overlaps and the size of a set.
fn elements(set: &mut Set, note: &SetNote, errors: &mut Vec<SyntaxError>) {
    let map = set.map;
    let parts = set.key.len();
    // Elements within a rule are only another way to write a comparison.
    let auto_merge = set.auto_merge || (set.name.is_none() && !map);
    let Members::Fixed(list) = &mut set.members else {
        return;
    };
    let mut placed: Vec<(Element, Span)> =
        std::mem::take(list).into_iter().zip(note.places.iter().copied()).collect();
    let mut seen: HashMap<Vec<Range>, Option<RuleVerdict>> = HashMap::with_capacity(placed.len());
    placed.retain(|(element, at)| match seen.insert(element.key.clone(), element.verdict) {
        None => true,
        Some(before) => {
            if before != element.verdict {
                let message = "this key has another verdict already";
                errors.push(SyntaxError::new(*at, message).hint("one verdict for each key"));
            }
            false
        }
    });
    if parts == 1 && auto_merge && !map {
        placed = merge(placed);
    } else {
        match overlap(&placed, parts == 1, map) {
            Some(Overlap::At(at, other)) => {
                let message = format!("this overlaps with the element in line {}", other.line);
                let hint =
                    if map { "ranges that do not overlap" } else { "`auto-merge;` in the set" };
                errors.push(SyntaxError::new(at, message).hint(hint));
            }
            Some(Overlap::Unknown) => {
                let message = "too many ranges that may overlap";
                errors.push(SyntaxError::new(note.note.at, message).hint("several maps"));
            }
            None => {}
        }
    }
    if let Some(size) = set.size
        && placed.len() as u64 > size
    {
        errors.push(SyntaxError::new(
            note.note.at,
            format!("{} elements in a set of size {size}", placed.len()),
        ));
    }
    *list = placed.into_iter().map(|(element, _)| element).collect();
}

/// Merges ranges that overlap or touch, if any overlap; otherwise all stay unchanged.
fn merge(placed: Vec<(Element, Span)>) -> Vec<(Element, Span)> {
    if overlap(&placed, true, false).is_none() {
        return placed;
    }
    let mut sorted = placed;
    let range = |e: &Element| e.key.first().copied().unwrap_or(Range::single(0));
    sorted.sort_by_key(|(e, _)| range(e));
    let mut merged: Vec<(Element, Span)> = Vec::with_capacity(sorted.len());
    for (element, at) in sorted {
        let next = range(&element);
        if let Some((last, _)) = merged.last_mut()
            && let Some(range) = last.key.first_mut()
            && next.first <= range.last
        {
            range.last = range.last.max(next.last);
            continue;
        }
        merged.push((element, at));
    }
    merged
}

enum Overlap {
    /// The later element, and the earlier element that it overlaps.
    At(Span, Span),
    /// There were too many elements to compare.
    Unknown,
}

/// Returns an element that overlaps with another. For concatenations, only those of a map must not overlap.
fn overlap(placed: &[(Element, Span)], single: bool, map: bool) -> Option<Overlap> {
    if !single && !map {
        return None;
    }
    let mut order: Vec<&(Element, Span)> = placed.iter().collect();
    order.sort_by_key(|(e, _)| e.key.first().copied());
    // The previous elements that reach the first part of the current one. Equal keys were already removed, so two keys
    // of single values need no comparison.
    let (mut ranged, mut plain) = (Vec::new(), Vec::new());
    let mut work = 0_usize;
    for current in order {
        let start = current.0.key.first()?.first;
        let reaches = |(e, _): &&(Element, Span)| e.key.first().is_some_and(|r| r.last >= start);
        let wide = current.0.key.iter().any(|r| r.first != r.last);
        ranged.retain(reaches);
        work = work.saturating_add(ranged.len());
        if wide {
            plain.retain(reaches);
            work = work.saturating_add(plain.len());
        }
        // Without this distinction, a list of addresses would be compared with itself.
        let singles: &[_] = if wide { &plain } else { &[] };
        let others = ranged.iter().chain(singles);
        let cross = |(e, _): &&&(Element, Span)| {
            let mut both = e.key.iter().zip(&current.0.key);
            both.all(|(a, b)| a.first <= b.last && b.first <= a.last)
        };
        if let Some(other) = others.into_iter().find(cross) {
            let (later, earlier) = in_order(current.1, other.1);
            return Some(Overlap::At(later, earlier));
        }
        if work > MAX_COMPARISONS {
            return Some(Overlap::Unknown);
        }
        if wide { &mut ranged } else { &mut plain }.push(current);
    }
    None
}

fn in_order(a: Span, b: Span) -> (Span, Span) {
    if (a.file, a.line, a.column) < (b.file, b.line, b.column) { (b, a) } else { (a, b) }
}

/// Numbers named objects in the order of their definitions, and then sets within rules in the order of the rules.
fn number(draft: &mut RawRuleset) {
    let table = &mut draft.table;
    let chains = Renumbering::of(draft.chains.iter().map(|n| Some(n.order)));
    let counters = Renumbering::of(draft.counters.iter().map(|n| Some(n.order)));
    let named = table.sets.iter().zip(&draft.sets);
    let mut sets = Renumbering::of(named.map(|(s, n)| s.name.is_some().then_some(n.note.order)));
    table.chains = chains.sort(std::mem::take(&mut table.chains));
    table.counters = counters.sort(std::mem::take(&mut table.counters));
    let rules = table.chains.iter_mut().flat_map(|c| &mut c.rules);
    for statement in rules.flat_map(|r| &mut r.statements) {
        match statement {
            Statement::Match(Match { test: Test::Set(id), .. })
            | Statement::VerdictMap { map: id, .. } => id.0 = sets.place(id.0),
            Statement::Verdict(verdict) => renumber(verdict, &chains),
            Statement::Counter(Counter::Named(id)) => id.0 = counters.known(id.0),
            _ => {}
        }
    }
    table.sets = sets.sort(std::mem::take(&mut table.sets));
    for set in &mut table.sets {
        if let Members::Fixed(list) = &mut set.members {
            list.iter_mut().filter_map(|e| e.verdict.as_mut()).for_each(|v| renumber(v, &chains));
        }
    }
}

fn renumber(verdict: &mut RuleVerdict, chains: &Renumbering) {
    if let RuleVerdict::Jump(id) | RuleVerdict::Goto(id) = verdict {
        id.0 = chains.known(id.0);
    }
}

/// The new index of each old index.
struct Renumbering {
    old: Vec<usize>,
    new: HashMap<usize, usize>,
}

impl Renumbering {
    /// Orders entries that have a rank; the others are left out until they are used.
    fn of(ranks: impl Iterator<Item = Option<usize>>) -> Self {
        let mut ranked: Vec<(usize, usize)> =
            ranks.enumerate().filter_map(|(index, rank)| Some((rank?, index))).collect();
        ranked.sort_unstable();
        let old: Vec<usize> = ranked.into_iter().map(|(_, index)| index).collect();
        let new = old.iter().enumerate().map(|(new, &old)| (old, new)).collect();
        Self { old, new }
    }

    fn known(&self, old: usize) -> usize {
        self.new.get(&old).copied().unwrap_or(0)
    }

    /// Returns the new index, which follows all others if the entry was not used before.
    fn place(&mut self, old: usize) -> usize {
        let next = self.old.len();
        let place = *self.new.entry(old).or_insert(next);
        if place == next {
            self.old.push(old);
        }
        place
    }

    fn sort<T>(&self, list: Vec<T>) -> Vec<T> {
        let mut list: Vec<Option<T>> = list.into_iter().map(Some).collect();
        self.old.iter().filter_map(|&old| list.get_mut(old)?.take()).collect()
    }
}
