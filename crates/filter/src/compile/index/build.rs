//! The construction of an index: entries are grouped by the dimensions that they constrain, and each dimension is swept over the ends of
//! all ranges.

use std::collections::HashMap;

use super::{
    BUDGET, Cell, Demand, Dimension, Group, Index, LIST, MAX_DIMS, MAX_GROUPS, Pool, mixed,
};
use crate::compile::segments::greatest;
use crate::compile::tree::AnyTree;

impl Index {
    /// Builds an index of `entries` with these requirements, for dimensions whose values have this many bits. An entry
    /// without requirements is always visited. At most [`MAX_DIMS`] dimensions.
    pub(crate) fn new(bits: &[u8], entries: &[Vec<Demand>]) -> Self {
        let (mut groups, places) = grouped(entries);
        let mut pool = Pool::default();
        let mut dims = Vec::new();
        for (dim, bits) in bits.iter().enumerate().take(MAX_DIMS) {
            let mut members = Vec::new();
            for (at, group) in groups.iter_mut().enumerate() {
                if let Some(own) = group.dims.iter_mut().find(|own| own.0 == dim) {
                    own.1 = members.len();
                    members.push(at);
                }
            }
            dims.push(
                Builder::new(dim, *bits, &groups, members, entries, &places).build(&mut pool),
            );
        }
        pool.lists.shrink_to_fit();
        pool.words.shrink_to_fit();
        Self { dims, groups, pool }
    }
}

/// The group of each entry and the entry's index in it; `None` for an entry that never matches.
type GroupIndices = Vec<Option<(usize, u32)>>;

fn grouped(entries: &[Vec<Demand>]) -> (Vec<Group>, GroupIndices) {
    let mut uses = [0usize; MAX_DIMS];
    let signature = |demands: &Vec<Demand>| {
        let never = demands.iter().any(|demand| demand.ranges.is_empty());
        let bits = demands.iter().filter(|demand| demand.dim < MAX_DIMS);
        (!never).then(|| bits.fold(0u32, |bits, demand| bits | 1 << (demand.dim & 31)))
    };
    let mut signatures: Vec<Option<u32>> = entries.iter().map(signature).collect();
    for demand in entries.iter().flatten() {
        if let Some(uses) = uses.get_mut(demand.dim) {
            *uses = uses.saturating_add(1);
        }
    }
    loop {
        let mut distinct: Vec<u32> = signatures.iter().flatten().copied().collect();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() <= MAX_GROUPS {
            let mut groups: Vec<Group> = distinct.iter().map(|bits| Group::new(*bits)).collect();
            let mut places = Vec::with_capacity(entries.len());
            for (entry, signature) in signatures.iter().enumerate() {
                let at = signature.and_then(|bits| distinct.binary_search(&bits).ok());
                places.push(at.and_then(|at| Some((at, groups.get_mut(at)?.add(entry as u32)))));
            }
            groups.iter_mut().for_each(Group::measure);
            return (groups, places);
        }
        let used = uses.iter().enumerate().filter(|(_, uses)| **uses > 0);
        let Some((least, _)) = used.min_by_key(|(_, uses)| **uses) else { continue };
        for bits in signatures.iter_mut().flatten() {
            *bits &= !(1 << (least & 31));
        }
        if let Some(uses) = uses.get_mut(least) {
            *uses = 0;
        }
    }
}

impl Group {
    fn new(signature: u32) -> Self {
        let dims = (0..MAX_DIMS).filter(|dim| signature >> (dim & 31) & 1 == 1);
        let dims = dims.map(|dim| (dim, 0)).collect();
        Self { dims, members: Vec::new(), words: 0, summary: 0 }
    }

    fn add(&mut self, entry: u32) -> u32 {
        self.members.push(entry);
        self.members.len().saturating_sub(1) as u32
    }

    fn measure(&mut self) {
        self.words = self.members.len().div_ceil(64);
        self.summary = self.words.div_ceil(64);
    }
}

/// A dimension under construction: a sweep over the ends of all ranges.
struct Builder<'a> {
    bits: u8,
    groups: Vec<&'a Group>,
    /// The ends of ranges: the value, the slot, the index, and whether the range begins (true) or ends there.
    events: Vec<(u128, usize, u32, bool)>,
}

/// The entries of a group that accept the current interval.
struct ActiveEntries {
    bits: Vec<u64>,
    count: usize,
    /// A hash of the entries, to find equal sets: the sum of a random number for each entry.
    hash: u128,
    cell: Cell,
    changed: bool,
}

impl<'a> Builder<'a> {
    fn new(
        dim: usize,
        bits: u8,
        groups: &'a [Group],
        members: Vec<usize>,
        entries: &[Vec<Demand>],
        places: &GroupIndices,
    ) -> Self {
        let slots: HashMap<usize, usize> =
            members.iter().enumerate().map(|(slot, group)| (*group, slot)).collect();
        let greatest = greatest(bits);
        let mut events = Vec::new();
        for (demands, place) in entries.iter().zip(places) {
            let Some((group, place)) = place else { continue };
            let Some(slot) = slots.get(group) else { continue };
            let own = demands.iter().filter(|demand| demand.dim == dim);
            for range in own.flat_map(|demand| &demand.ranges) {
                events.push((range.first, *slot, *place, true));
                if range.last < greatest {
                    events.push((range.last.saturating_add(1), *slot, *place, false));
                }
            }
        }
        events.sort_unstable();
        Self { bits, groups: members.iter().filter_map(|at| groups.get(*at)).collect(), events }
    }

    fn build(&self, pool: &mut Pool) -> Dimension {
        let mut list = LIST;
        let (lists, words) = (pool.lists.len(), pool.words.len());
        // The last attempt allows lists of any length, which gives the smallest form.
        while list <= 1 << 20 {
            if let Some(dim) = self.sweep(list, pool) {
                return dim;
            }
            pool.lists.truncate(lists);
            pool.words.truncate(words);
            list = list.saturating_mul(8);
        }
        let cells = vec![Cell::ALL; self.groups.len()];
        Dimension { tree: AnyTree::new(self.bits, Vec::new()), rows: vec![0], cells }
    }

    /// Sweeps the intervals; returns `None` if the result exceeds the budget.
    fn sweep(&self, list: usize, pool: &mut Pool) -> Option<Dimension> {
        let limit = size(pool).saturating_add(BUDGET);
        let mut active: Vec<ActiveEntries> =
            self.groups.iter().map(|group| ActiveEntries::new(group)).collect();
        let mut known: HashMap<(usize, u128), Cell> = HashMap::new();
        let mut row_at: HashMap<Vec<Cell>, u32> = HashMap::new();
        let (mut starts, mut rows, mut cells) = (Vec::new(), Vec::new(), Vec::new());
        let mut events = self.events.iter().peekable();
        let mut at = 0u128;
        loop {
            while let Some((_, slot, place, begins)) = events.next_if(|event| event.0 == at) {
                if let Some(active) = active.get_mut(*slot) {
                    active.change(*place, *begins);
                }
            }
            let mut row = Vec::with_capacity(active.len());
            for (slot, (active, group)) in active.iter_mut().zip(&self.groups).enumerate() {
                row.push(active.cell(slot, group, list, pool, &mut known));
            }
            if size(pool) > limit {
                return None;
            }
            let place = *row_at.entry(row).or_insert_with_key(|row| {
                cells.extend_from_slice(row);
                cells.len().saturating_sub(row.len()) as u32
            });
            if rows.last() != Some(&place) {
                starts.push(at);
                rows.push(place);
            }
            match events.peek() {
                Some(event) => at = event.0,
                None => break,
            }
        }
        let dim = Dimension { tree: AnyTree::new(self.bits, starts), rows, cells };
        Some(dim)
    }
}

fn size(pool: &Pool) -> usize {
    pool.lists.len().saturating_mul(4).saturating_add(pool.words.len().saturating_mul(8))
}

impl ActiveEntries {
    fn new(group: &Group) -> Self {
        let bits = vec![0; group.words];
        Self { bits, count: 0, hash: 0, cell: Cell::NONE, changed: false }
    }

    fn change(&mut self, place: u32, begins: bool) {
        let Some(word) = self.bits.get_mut((place >> 6) as usize) else { return };
        let bit = 1u64 << (place & 63);
        if (*word & bit != 0) == begins {
            return;
        }
        *word ^= bit;
        let (high, low) = (mixed(u64::from(place) << 1), mixed(u64::from(place) << 1 | 1));
        self.hash ^= u128::from(high) << 64 | u128::from(low);
        self.count =
            if begins { self.count.saturating_add(1) } else { self.count.saturating_sub(1) };
        self.changed = true;
    }

    fn cell(
        &mut self,
        slot: usize,
        group: &Group,
        list: usize,
        pool: &mut Pool,
        known: &mut HashMap<(usize, u128), Cell>,
    ) -> Cell {
        if self.changed {
            self.changed = false;
            self.cell = if self.count == 0 {
                Cell::NONE
            } else if self.count == group.members.len() {
                Cell::ALL
            } else {
                *known.entry((slot, self.hash)).or_insert_with(|| self.keep(group, list, pool))
            };
        }
        self.cell
    }

    fn keep(&self, group: &Group, list: usize, pool: &mut Pool) -> Cell {
        if self.count <= list {
            let at = pool.lists.len();
            pool.lists.push(self.count as u32);
            for (at, word) in self.bits.iter().enumerate() {
                let mut word = *word;
                while word != 0 {
                    pool.lists.push((at as u32) << 6 | word.trailing_zeros());
                    word &= word.wrapping_sub(1);
                }
            }
            return Cell::list(at);
        }
        let at = pool.words.len();
        for chunk in self.bits.chunks(64) {
            let summary = chunk.iter().enumerate();
            let bit = |(at, word): (usize, &u64)| u64::from(*word != 0) << (at & 63);
            pool.words.push(summary.map(bit).fold(0, |sum, bit| sum | bit));
        }
        pool.words.resize(at.saturating_add(group.summary), 0);
        pool.words.extend_from_slice(&self.bits);
        Cell::bits(at)
    }
}
