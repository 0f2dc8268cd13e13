//! Finds the entries (rules of a chain, elements of a set) that can match, without testing each of them.
//!
//! An entry requires that the value of some dimensions (an address, a port) is in some ranges. Entries that constrain
//! the same dimensions form a group. Per dimension, a tree finds the interval between all ends of ranges that contains
//! a value, and a table has the entries of each group that accept the interval. A value that no entry of a group
//! accepts, or that is missing, ends the search in the group at once; otherwise the sets of all dimensions are
//! intersected, no further than to the first candidate that is needed.
//!
//! ```text
//!   value ──tree──► interval ──► row: [ group 0: none | group 1: entries 3, 17 | group 2: bits... ]
//! ```
//!
//! Sets are lists while they are short and bits with a summary (one for 64) when not; equal ones are kept once. Memory: at most [`BUDGET`]
//! for the sets of a dimension. To stay within it, first lists may be longer, and then the dimension's ranges are given up, so that only
//! the value's presence is required.

mod build;

use crate::compile::tree::AnyTree;
use crate::ruleset::Range;

/// The maximum number of dimensions.
pub(crate) const MAX_DIMS: usize = 12;
/// The maximum number of groups; beyond it, the least used dimension is dropped.
const MAX_GROUPS: usize = 24;
/// The maximum number of bytes for the sets of one dimension.
const BUDGET: usize = 8 << 20;
/// Sets of at most this many entries are lists, unless that exceeds the budget.
const LIST: usize = 16;

/// A requirement of an entry for one dimension.
#[derive(Clone, Debug)]
pub(crate) struct Demand {
    /// The dimension.
    pub dim: usize,
    /// The ranges of the value: sorted and disjoint. If there are none, the entry never matches.
    pub ranges: Vec<Range>,
}

/// The entries of a group that accept an interval.
#[derive(Copy, Clone, Debug, Eq, Hash, PartialEq)]
struct Cell(u32);

impl Cell {
    const NONE: Self = Self(0);
    const ALL: Self = Self(1);

    fn list(at: usize) -> Self {
        Self((at as u32).wrapping_add(1) << 1)
    }

    fn bits(at: usize) -> Self {
        Self((at as u32).wrapping_add(1) << 1 | 1)
    }

    fn is_list(self) -> bool {
        self.0 & 1 == 0
    }

    fn at(self) -> usize {
        (self.0 >> 1).wrapping_sub(1) as usize
    }
}

#[derive(Debug)]
struct Dimension {
    tree: AnyTree,
    /// By interval: the start of its row in `cells`.
    rows: Vec<u32>,
    /// One cell for each group that uses the dimension.
    cells: Vec<Cell>,
}

#[derive(Debug)]
struct Group {
    /// The dimensions and the group's index in their rows.
    dims: Vec<(usize, usize)>,
    /// The group's entries, in ascending order.
    members: Vec<u32>,
    /// The number of 64-bit words of a set of bits, and of its summary.
    words: usize,
    summary: usize,
}

/// The sets of all dimensions.
#[derive(Debug, Default)]
struct Pool {
    /// The lists, each a length and that many indices in the group.
    lists: Vec<u32>,
    /// The sets of bits, each a summary and the bits.
    words: Vec<u64>,
}

/// The search structure.
#[derive(Debug)]
pub(crate) struct Index {
    dims: Vec<Dimension>,
    groups: Vec<Group>,
    pool: Pool,
}

/// A search in one group that has candidates: 64 bytes.
#[derive(Copy, Clone)]
struct Cursor<'a> {
    group: &'a Group,
    /// The sets that restrict it; if one of them is a list, the shortest list comes first.
    cells: [Cell; CELLS],
    count: usize,
    /// The number of the next candidate.
    next: u32,
    /// The position in the list or in the members.
    at: u32,
    /// The unread words of a summary word, and the unread bits of a word.
    summary_at: u32,
    word_at: u32,
    summary: u64,
    word: u64,
}

/// The maximum number of sets that a search intersects; more would only save visits of a few candidates.
const CELLS: usize = 4;
/// The number of groups with candidates that always have space. More are rare, and space for them would have to be cleared.
const FEW: usize = 4;

const UNKNOWN: u32 = u32::MAX;
const ABSENT: u32 = u32::MAX - 1;

impl Index {
    /// Calls `visit` with the numbers of all entries whose requirements are met, in ascending order, until it returns a
    /// value. It may also be called with entries whose dimensions were dropped. `value` is called at most once for each
    /// dimension.
    #[inline]
    pub(crate) fn search<R>(
        &self,
        mut value: impl FnMut(usize) -> Option<u128>,
        mut visit: impl FnMut(u32) -> Option<R>,
    ) -> Option<R> {
        let mut rows = [UNKNOWN; MAX_DIMS];
        let mut live = [None; FEW];
        match self.open_all(&mut live, &mut rows, &mut value)? {
            1 => {
                let only = live.first_mut()?.as_mut()?;
                loop {
                    if let Some(found) = visit(only.next) {
                        return Some(found);
                    }
                    if !self.advance(only) {
                        return None;
                    }
                }
            }
            count if count <= FEW => self.visit_all(&mut live, &mut visit),
            _ => {
                let mut live = [None; MAX_GROUPS];
                self.open_all(&mut live, &mut rows, &mut value)?;
                self.visit_all(&mut live, &mut visit)
            }
        }
    }

    /// Fills `live` with the groups that have candidates, as far as there is space; returns their number, or `None` if
    /// there are none.
    #[inline]
    fn open_all<'a>(
        &'a self,
        live: &mut [Option<Cursor<'a>>],
        rows: &mut [u32; MAX_DIMS],
        value: &mut impl FnMut(usize) -> Option<u128>,
    ) -> Option<usize> {
        let mut count = 0usize;
        for group in &self.groups {
            let Some(cursor) = self.open(group, rows, value) else { continue };
            match live.get_mut(count) {
                Some(slot) => *slot = Some(cursor),
                None => return Some(usize::MAX),
            }
            count = count.wrapping_add(1);
        }
        (count != 0).then_some(count)
    }

    fn visit_all<R>(
        &self,
        live: &mut [Option<Cursor<'_>>],
        visit: &mut impl FnMut(u32) -> Option<R>,
    ) -> Option<R> {
        loop {
            let first = live.iter_mut().flatten().min_by_key(|cursor| cursor.next)?;
            if first.next == u32::MAX {
                return None;
            }
            if let Some(found) = visit(first.next) {
                return Some(found);
            }
            if !self.advance(first) {
                first.next = u32::MAX;
            }
        }
    }

    /// Creates the search in `group`, at its first candidate.
    #[inline]
    fn open<'a>(
        &'a self,
        group: &'a Group,
        rows: &mut [u32; MAX_DIMS],
        value: &mut impl FnMut(usize) -> Option<u128>,
    ) -> Option<Cursor<'a>> {
        let mut cells = [Cell::NONE; CELLS];
        let (mut count, mut shortest) = (0usize, u32::MAX);
        for (at, slot) in &group.dims {
            let dim = self.dims.get(*at)?;
            let row = rows.get_mut(*at)?;
            if *row == UNKNOWN {
                let found = value(*at).and_then(|value| dim.rows.get(dim.tree.find(value)));
                *row = found.copied().unwrap_or(ABSENT);
            }
            if *row == ABSENT {
                return None;
            }
            let cell = *dim.cells.get((*row as usize).wrapping_add(*slot))?;
            if cell == Cell::NONE {
                return None;
            }
            if cell == Cell::ALL {
                continue;
            }
            let list = cell.is_list().then(|| self.pool.lists.get(cell.at())).flatten();
            match (list, cells.get_mut(count)) {
                (Some(length), room) if *length < shortest => {
                    shortest = *length;
                    if let Some(room) = room {
                        *room = cell;
                        cells.swap(0, count);
                        count = count.wrapping_add(1);
                    } else {
                        let [first, ..] = &mut cells;
                        *first = cell;
                    }
                }
                (_, Some(room)) => {
                    *room = cell;
                    count = count.wrapping_add(1);
                }
                (_, None) => {}
            }
        }
        let (at, summary_at, word_at, summary, word) = (0, u32::MAX, 0, 0, 0);
        let next = 0;
        let mut cursor =
            Cursor { group, cells, count, next, at, summary_at, word_at, summary, word };
        self.advance(&mut cursor).then_some(cursor)
    }

    /// Advances to the next candidate; returns `false` at the end.
    #[inline]
    fn advance(&self, cursor: &mut Cursor<'_>) -> bool {
        let cells = cursor.cells.get(..cursor.count).unwrap_or_default();
        let place = match cells.split_first() {
            None => {
                cursor.at = cursor.at.wrapping_add(1);
                Some(cursor.at.wrapping_sub(1) as usize)
            }
            Some((list, others)) if list.is_list() => {
                self.next_of_list(cursor.group, &mut cursor.at, *list, others)
            }
            Some(_) => self.next_of_bits(cursor),
        };
        match place.and_then(|place| cursor.group.members.get(place)) {
            Some(next) => {
                cursor.next = *next;
                true
            }
            None => false,
        }
    }

    #[inline]
    fn next_of_list(
        &self,
        group: &Group,
        at: &mut u32,
        list: Cell,
        others: &[Cell],
    ) -> Option<usize> {
        let list = self.list(list);
        loop {
            let place = *list.get(*at as usize)?;
            *at = at.wrapping_add(1);
            if others.iter().all(|cell| self.has(group, *cell, place)) {
                return Some(place as usize);
            }
        }
    }

    fn list(&self, cell: Cell) -> &[u32] {
        let tail = self.pool.lists.get(cell.at()..).unwrap_or_default();
        let Some((length, list)) = tail.split_first() else { return &[] };
        list.get(..*length as usize).unwrap_or_default()
    }

    fn has(&self, group: &Group, cell: Cell, place: u32) -> bool {
        if cell.is_list() {
            return self.list(cell).binary_search(&place).is_ok();
        }
        let at = cell.at().wrapping_add(group.summary).wrapping_add((place >> 6) as usize);
        self.pool.words.get(at).is_some_and(|word| word >> (place & 63) & 1 == 1)
    }

    #[inline]
    fn next_of_bits(&self, cursor: &mut Cursor<'_>) -> Option<usize> {
        let cells = cursor.cells.get(..cursor.count)?;
        let all = |at: usize| {
            let word = |cell: &Cell| self.pool.words.get(cell.at().wrapping_add(at)).copied();
            cells.iter().fold(u64::MAX, |both, cell| both & word(cell).unwrap_or(0))
        };
        loop {
            if cursor.word != 0 {
                let bit = cursor.word.trailing_zeros();
                cursor.word &= cursor.word.wrapping_sub(1);
                return Some((cursor.word_at << 6 | bit) as usize);
            }
            if cursor.summary != 0 {
                let bit = cursor.summary.trailing_zeros();
                cursor.summary &= cursor.summary.wrapping_sub(1);
                cursor.word_at = cursor.summary_at << 6 | bit;
                cursor.word = all(cursor.group.summary.wrapping_add(cursor.word_at as usize));
                continue;
            }
            cursor.summary_at = cursor.summary_at.wrapping_add(1);
            if cursor.summary_at as usize >= cursor.group.summary {
                return None;
            }
            cursor.summary = all(cursor.summary_at as usize);
        }
    }

    /// Returns the approximate heap size in bytes.
    pub(crate) fn size(&self) -> usize {
        let dim = |dim: &Dimension| {
            let cells = dim.rows.len().saturating_add(dim.cells.len()).saturating_mul(4);
            dim.tree.size().saturating_add(cells)
        };
        let group = |group: &Group| group.members.len().saturating_mul(4);
        let pool = self.pool.lists.len().saturating_mul(4);
        let pool = pool.saturating_add(self.pool.words.len().saturating_mul(8));
        let dims: usize = self.dims.iter().map(dim).sum();
        let groups: usize = self.groups.iter().map(group).sum();
        pool.saturating_add(dims).saturating_add(groups)
    }
}

/// Applies SplitMix64's finisher.
pub(crate) fn mixed(number: u64) -> u64 {
    let number = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let number = (number ^ number >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let number = (number ^ number >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
    number ^ number >> 31
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::compile::segments::merged;

    fn candidates(index: &Index, values: &[Option<u128>]) -> Vec<u32> {
        let mut found = Vec::new();
        index.search(
            |dim| values[dim],
            |entry| {
                found.push(entry);
                None::<()>
            },
        );
        found
    }

    fn naive(entries: &[Vec<Demand>], values: &[Option<u128>]) -> Vec<u32> {
        let met = |demand: &Demand| {
            let value = values[demand.dim];
            value.is_some_and(|value| demand.ranges.iter().any(|range| range.contains(value)))
        };
        let all = entries.iter().enumerate();
        all.filter(|(_, demands)| demands.iter().all(met)).map(|(at, _)| at as u32).collect()
    }

    fn demands() -> impl Strategy<Value = Vec<Demand>> {
        let range = prop_oneof![
            (0u128..40).prop_map(Range::single),
            (0u128..40, 0u128..=255)
                .prop_map(|(first, more)| Range { first, last: (first + more).min(255) }),
            Just(Range { first: 0, last: 255 }),
        ];
        let ranges = prop::collection::vec(range, 0..4);
        prop::collection::btree_map(0usize..4, ranges, 0..4).prop_map(|demands| {
            let demand = |(dim, ranges)| Demand { dim, ranges: merged(ranges) };
            demands.into_iter().map(demand).collect()
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn finds_exactly_those_whose_demands_are_met(
            entries in prop::collection::vec(demands(), 0..300),
            queries in prop::collection::vec(
                prop::collection::vec(prop::option::weighted(0.9, 0u128..60), 4), 30),
        ) {
            // Widths on both sides of the trees' limits.
            let index = Index::new(&[8, 8, 64, 128], &entries);
            for query in queries {
                prop_assert_eq!(candidates(&index, &query), naive(&entries, &query));
            }
        }
    }

    /// Builds entries of which each accepts about half of all values, so that sets become bits.
    fn wide(count: u128) -> Vec<Vec<Demand>> {
        let entry = |at: u128| {
            let (first, second) = (at * 7 % 1000, at * 13 % 1000);
            let ranges = |first| vec![Range { first, last: first + 20_000 }];
            vec![
                Demand { dim: 0, ranges: ranges(first) },
                Demand { dim: 1, ranges: ranges(second) },
            ]
        };
        (0..count).map(entry).collect()
    }

    #[test]
    fn sets_of_bits_intersect_beyond_one_summary_word() {
        let entries = wide(9_000);
        let index = Index::new(&[16, 16], &entries);
        assert!(index.pool.words.len() > 9_000 / 64);
        for query in [[Some(500), Some(400)], [Some(20_500), Some(3)], [Some(20_999), Some(20_998)]]
        {
            assert_eq!(candidates(&index, &query), naive(&entries, &query));
        }
    }

    #[test]
    fn memory_keeps_to_its_budget_where_sets_are_large_and_all_differ() {
        // 40,000 nested ranges: 80,000 intervals with 20,000 entries each would take 200 MB.
        let ranges = |at: u128| vec![Range { first: at, last: 200_000 - at }];
        let entries: Vec<_> =
            (0..40_000).map(|at| vec![Demand { dim: 0, ranges: ranges(at) }]).collect();
        let index = Index::new(&[32], &entries);
        assert!(index.size() < BUDGET * 2, "{}", index.size());
        assert_eq!(candidates(&index, &[Some(5)]).len(), 40_000, "given up: all are candidates");
        assert!(candidates(&index, &[None]).is_empty(), "but the value must be there");
    }

    #[test]
    fn more_combinations_of_dimensions_than_groups_are_still_found() {
        let demand = |dim| Demand { dim, ranges: vec![Range::single(1)] };
        let entry = |bits: u32| (0..8).filter(|dim| bits >> dim & 1 == 1).map(demand).collect();
        let entries: Vec<Vec<Demand>> = (0..256).map(entry).collect();
        let index = Index::new(&[8; 8], &entries);
        assert!(index.groups.len() <= MAX_GROUPS);
        let found = candidates(&index, &[Some(1); 8]);
        assert_eq!(found, (0..256).collect::<Vec<_>>());
    }
}
