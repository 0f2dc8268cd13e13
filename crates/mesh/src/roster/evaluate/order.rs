//! The causal order of changes, with constant-time comparison.
//!
//! The changes of a signer form a lane, and each branch of a fork forms another one. Each change records the part of
//! each lane on which it depends. A change without new heads shares this clock with its predecessor, so memory is
//! proportional to the changes that name heads, times the chains.

use std::collections::BTreeMap;
use std::rc::Rc;

use crate::roster::chains::Changes;
use crate::roster::change::{Action, Change, ChangeHash};
use crate::session::KeyHash;

/// The changes of a set, each after those that it depends on. Changes are named by their index in this order.
pub(super) struct Order<'a> {
    items: Vec<Item<'a>>,
    index: BTreeMap<ChangeHash, usize>,
    lanes: Vec<Lane>,
    lanes_of: BTreeMap<KeyHash, Vec<usize>>,
    /// For each change at which a chain forks, the signer's changes that directly follow it.
    forks: Vec<Vec<usize>>,
}

struct Item<'a> {
    change: &'a Change,
    previous: Option<usize>,
    lane: usize,
    position: u32,
    /// For each other lane, the number of its changes on which this one depends.
    clock: Rc<Vec<u32>>,
}

struct Lane {
    /// The change after which this branch begins.
    parent: Option<usize>,
    items: Vec<usize>,
}

impl<'a> Order<'a> {
    pub(super) fn new(changes: &'a Changes) -> Self {
        let mut order = Self {
            items: Vec::with_capacity(changes.len()),
            index: BTreeMap::new(),
            lanes: Vec::new(),
            lanes_of: BTreeMap::new(),
            forks: Vec::new(),
        };
        let mut following = BTreeMap::<_, Vec<usize>>::new();
        for change in changes.in_causal_order() {
            let index = order.items.len();
            order.push(change);
            let after = (change.signer(), change.body().previous);
            following.entry(after).or_default().push(index);
        }
        order.forks = following.into_values().filter(|next| next.len() > 1).collect();
        order
    }

    fn push(&mut self, change: &'a Change) {
        let index = self.items.len();
        let previous = self.find(&change.body().previous);
        let lane = previous.map(|previous| self.items[previous].lane);
        let continued = lane.filter(|lane| self.lanes[*lane].items.last().copied() == previous);
        let lane = continued.unwrap_or_else(|| {
            self.lanes.push(Lane { parent: previous, items: Vec::new() });
            self.lanes_of.entry(change.signer()).or_default().push(self.lanes.len() - 1);
            self.lanes.len() - 1
        });
        let heads: Vec<_> = change.body().heads.iter().filter_map(|head| self.find(head)).collect();
        let clock = match previous {
            Some(previous) if heads.is_empty() && continued.is_some() => {
                Rc::clone(&self.items[previous].clock)
            }
            _ => {
                let mut clock = vec![0; self.lanes.len()];
                for parent in heads.into_iter().chain(previous) {
                    let parent = &self.items[parent];
                    for (ours, theirs) in clock.iter_mut().zip(parent.clock.iter()) {
                        *ours = (*ours).max(*theirs);
                    }
                    clock[parent.lane] = clock[parent.lane].max(parent.position + 1);
                }
                Rc::new(clock)
            }
        };
        let position = continued.and(previous).map_or(0, |at| self.items[at].position + 1);
        self.lanes[lane].items.push(index);
        self.index.insert(change.hash(), index);
        self.items.push(Item { change, previous, lane, position, clock });
    }

    pub(super) fn len(&self) -> usize {
        self.items.len()
    }

    pub(super) fn change(&self, at: usize) -> &'a Change {
        self.items[at].change
    }

    pub(super) fn action(&self, at: usize) -> &'a Action {
        self.items[at].change.action()
    }

    pub(super) fn signer(&self, at: usize) -> KeyHash {
        self.items[at].change.signer()
    }

    pub(super) fn number(&self, at: usize) -> u32 {
        self.items[at].change.body().number
    }

    pub(super) fn previous(&self, at: usize) -> Option<usize> {
        self.items[at].previous
    }

    pub(super) fn find(&self, hash: &ChangeHash) -> Option<usize> {
        self.index.get(hash).copied()
    }

    /// Returns each fork: the changes that follow the same change of the same signer.
    pub(super) fn forks(&self) -> &[Vec<usize>] {
        &self.forks
    }

    /// Returns the number of changes of a lane on which this one depends.
    fn seen(&self, at: usize, lane: usize) -> u32 {
        let item = &self.items[at];
        if lane == item.lane { item.position } else { item.clock.get(lane).copied().unwrap_or(0) }
    }

    /// Returns whether the second change depends on the first.
    pub(super) fn is_before(&self, first: usize, second: usize) -> bool {
        self.seen(second, self.items[first].lane) > self.items[first].position
    }

    /// Returns whether a change is `last` or one of its predecessors in its chain.
    pub(super) fn is_within(&self, at: usize, last: Option<usize>) -> bool {
        let item = &self.items[at];
        let mut last = last.map(|last| &self.items[last]);
        while let Some(end) = last {
            if end.lane == item.lane {
                return item.position <= end.position;
            }
            last = self.lanes[end.lane].parent.map(|parent| &self.items[parent]);
        }
        false
    }

    /// Returns the highest number in a signer's chain that a change depends on.
    pub(super) fn seen_number(&self, at: usize, signer: &KeyHash) -> u32 {
        let lanes = self.lanes_of.get(signer).into_iter().flatten();
        let last = lanes.filter_map(|lane| {
            let seen = self.seen(at, *lane).checked_sub(1)?;
            self.lanes[*lane].items.get(usize::try_from(seen).ok()?)
        });
        last.map(|last| self.number(*last)).max().unwrap_or(0)
    }
}

/// The seniority of a signer: genesis order, then depth of the grant, then hash. The lowest value is the most senior.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Rank {
    pub(super) depth: u32,
    /// The signer's place in the genesis, if the genesis names it.
    pub(super) place: usize,
    /// The first key. It remains the same when keys are replaced.
    pub(super) origin: KeyHash,
}

impl Order<'_> {
    /// Returns whether the second change replaces the first, because it is later, or concurrent and by a more senior signer.
    pub(super) fn replaces(&self, first: (usize, Rank), second: (usize, Rank)) -> bool {
        if self.is_before(first.0, second.0) || self.is_before(second.0, first.0) {
            return self.is_before(first.0, second.0);
        }
        self.is_preferred(second, first)
    }

    /// Returns whether the first change keeps what the second also claims, because it is earlier, or concurrent and by a more senior
    /// signer.
    pub(super) fn holds(&self, first: (usize, Rank), second: (usize, Rank)) -> bool {
        if self.is_before(first.0, second.0) || self.is_before(second.0, first.0) {
            return self.is_before(first.0, second.0);
        }
        !self.is_preferred(second, first)
    }

    fn is_preferred(&self, one: (usize, Rank), other: (usize, Rank)) -> bool {
        (one.1, self.change(one.0).hash()) < (other.1, self.change(other.0).hash())
    }
}
