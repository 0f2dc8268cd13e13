//! The requirements that a packet must meet for a rule to matter: the matches before any other statement of the rule. A rule that first
//! counts, limits or logs has none, because it must be visited.

use std::collections::{BTreeMap, HashMap};
use std::rc::Rc;

use crate::compile::index::{Demand, Index, MAX_DIMS};
use crate::compile::segments::{complement, greatest, intersection, merged};
use crate::ruleset::{
    Field, Kind, Members, Range, Rule, RuleVerdict, SetId, Statement, Table, Test,
};

/// The minimum number of rules for which a chain is indexed; with fewer, visiting each rule is faster.
const INDEXED: usize = 12;
/// The minimum number of rules that must constrain a field for it to become a dimension.
const USES: usize = 4;
/// The maximum number of ranges of one rule in one field; for a rule with more, only the field's presence is required.
/// Visiting the rule then costs one lookup in its set.
const RANGES: usize = 1024;
/// The maximum number of ranges of all rules of a chain in one field; beyond it, only the field's presence is required.
const ALL_RANGES: usize = 1 << 18;

/// The requirements of one rule, by field.
type Demands = BTreeMap<Field, Rc<Vec<Range>>>;

/// Returns whether the elements of a set change while the rules are in force: they may be anything.
type SetIsDynamic<'a> = &'a dyn Fn(SetId) -> bool;

/// The ranges of sets, computed once for all rules that name them, or `None` if there are too many.
type RangeCache = HashMap<(SetId, usize), Option<Rc<Vec<Range>>>>;

/// Builds the index of a chain's rules and the field of each dimension; `None` if there is no benefit.
pub(crate) fn index(
    table: &Table,
    rules: &[Rule],
    changes: SetIsDynamic<'_>,
) -> Option<(Index, Vec<Field>)> {
    if rules.len() < INDEXED {
        return None;
    }
    let mut known = RangeCache::new();
    let all: Vec<Demands> =
        rules.iter().map(|rule| demands(table, rule, changes, &mut known)).collect();
    let mut uses: BTreeMap<Field, usize> = BTreeMap::new();
    for field in all.iter().flat_map(Demands::keys) {
        let uses = uses.entry(*field).or_default();
        *uses = uses.saturating_add(1);
    }
    let mut fields: Vec<(Field, usize)> =
        uses.into_iter().filter(|(_, uses)| *uses >= USES).collect();
    fields.sort_by_key(|(_, uses)| std::cmp::Reverse(*uses));
    fields.truncate(MAX_DIMS);
    if fields.is_empty() {
        return None;
    }
    let fields: Vec<Field> = fields.into_iter().map(|(field, _)| field).collect();
    let bits: Vec<u8> = fields.iter().map(|field| bits(*field)).collect();
    let mut left = [ALL_RANGES; MAX_DIMS];
    let entry = |demands: &Demands| {
        let mut entry = Vec::new();
        for ((dim, field), left) in fields.iter().enumerate().zip(&mut left) {
            if let Some(ranges) = demands.get(field) {
                let ranges = match left.checked_sub(ranges.len()) {
                    Some(rest) => {
                        *left = rest;
                        ranges.to_vec()
                    }
                    None => vec![present(*field)],
                };
                entry.push(Demand { dim, ranges });
            }
        }
        entry
    };
    let entries: Vec<Vec<Demand>> = all.iter().map(entry).collect();
    Some((Index::new(&bits, &entries), fields))
}

/// Returns the width of a field's value; connection states are bits of one byte.
fn bits(field: Field) -> u8 {
    match field.kind() {
        Kind::CtState => 8,
        kind => kind.bits(),
    }
}

/// Requires only that the packet has the field.
fn present(field: Field) -> Range {
    Range { first: 0, last: greatest(bits(field)) }
}

fn demands(
    table: &Table,
    rule: &Rule,
    changes: SetIsDynamic<'_>,
    known: &mut RangeCache,
) -> Demands {
    let mut demands = Demands::new();
    for statement in &rule.statements {
        match statement {
            Statement::Match(one) => {
                for (part, field) in one.key.iter().enumerate() {
                    let concatenated = one.key.len() > 1;
                    // If a concatenation must not be a member, each of its parts on its own may have any value.
                    let any = match &one.test {
                        Test::Set(set) => changes(*set),
                        _ => false,
                    };
                    let ranges = if any || (one.negate && concatenated) {
                        None
                    } else {
                        tested(table, *field, part, &one.test, known)
                    };
                    demand(&mut demands, *field, ranges, one.negate);
                }
            }
            Statement::VerdictMap { key, map } => {
                for (part, field) in key.iter().enumerate() {
                    let ranges = members(table, *map, part, known);
                    demand(&mut demands, *field, ranges, false);
                }
            }
            Statement::Verdict(RuleVerdict::Continue) => {}
            _ => break,
        }
    }
    demands
}

/// Adds a requirement; without ranges, it requires only the field's presence.
fn demand(demands: &mut Demands, field: Field, ranges: Option<Rc<Vec<Range>>>, negate: bool) {
    let all = present(field);
    let ranges = match ranges {
        Some(ranges) if negate => Rc::new(complement(&ranges, all.last)),
        Some(ranges) => ranges,
        None => Rc::new(vec![all]),
    };
    let both = match demands.get(&field) {
        Some(known) => intersection(known, &ranges),
        // Reduced to the field's possible values.
        None => intersection(&[all], &ranges),
    };
    let both = if both.len() > RANGES { vec![all] } else { both };
    demands.insert(field, Rc::new(both));
}

/// Returns the values of `field` that pass the test's part, or a superset; `None` for any value.
fn tested(
    table: &Table,
    field: Field,
    part: usize,
    test: &Test,
    known: &mut RangeCache,
) -> Option<Rc<Vec<Range>>> {
    let ranges = match test {
        Test::Within(ranges) => merged(ranges.get(part).copied().into_iter().collect()),
        Test::Set(set) => return members(table, *set, part, known),
        Test::Masked { mask, value } => masked(field, *mask, *value)?,
        Test::AnyOf(any) => few(field, |value| value & any != 0)?,
    };
    Some(Rc::new(ranges))
}

fn members(
    table: &Table,
    set: SetId,
    part: usize,
    known: &mut RangeCache,
) -> Option<Rc<Vec<Range>>> {
    let find = || {
        let Members::Fixed(elements) = &table.sets.get(set.0)?.members else { return None };
        let ranges = elements.iter().filter_map(|element| element.key.get(part).copied());
        let ranges = merged(ranges.collect());
        (ranges.len() <= RANGES).then(|| Rc::new(ranges))
    };
    known.entry((set, part)).or_insert_with(find).clone()
}

/// Returns the values of a narrow field that pass, found by trying all of them.
fn few(field: Field, passes: impl Fn(u128) -> bool) -> Option<Vec<Range>> {
    if bits(field) > 8 {
        return None;
    }
    let all = 0..=greatest(bits(field));
    Some(merged(all.filter(|value| passes(*value)).map(Range::single).collect()))
}

/// Returns the ranges of a masked value; a mask of leading ones is a prefix.
fn masked(field: Field, mask: u128, value: u128) -> Option<Vec<Range>> {
    let all = greatest(bits(field));
    let rest = all & !mask;
    if rest & rest.wrapping_add(1) != 0 {
        return few(field, |found| found & mask == value);
    }
    if value & !(mask & all) != 0 {
        return Some(Vec::new());
    }
    Some(vec![Range { first: value, last: value | rest }])
}
