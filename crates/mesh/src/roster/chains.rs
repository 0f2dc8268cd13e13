//! The set of changes that a node has: one chain per signer.
//!
//! Changes arrive in any order. A change is added as soon as everything that it names is present; until then it waits. The result depends
//! only on the changes, unless a bound refuses some of them, which is counted. Neighbours send changes in causal order
//! ([`Changes::after`]), so their changes do not have to wait.
//!
//! A chain opens with a change whose signer is an admin of the genesis, or whose causal past contains a grant or rotation to the signer. So
//! no other key can fill the set.
//!
//! Two different changes after the same one are a fork. All branches are kept as proof, up to [`MAX_BRANCHES`].

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use adit_crypto::sha256;
use adit_engine::UnixTime;

use super::change::{Action, Body, Change, ChangeHash, MAX_HEADS, Rotation};
use super::genesis::Genesis;
use super::object::ObjectError;
use crate::session::{KeyHash, MeshId};

/// The number of chains, and so of keys that ever had a right.
pub const MAX_CHAINS: usize = 1024;

/// The number of changes in one chain, with all its branches.
pub const MAX_CHAIN: usize = 16_384;

/// The number of changes in all chains.
pub const MAX_CHANGES: usize = 65_536;

/// The number of branches of a chain after forks.
pub const MAX_BRANCHES: usize = 8;

/// The number of changes that wait for earlier ones.
pub const MAX_WAITING: usize = 1024;

/// The number of waiting changes of one signer.
pub const MAX_WAITING_PER_SIGNER: usize = 256;

/// All changes of a mesh that a node has.
#[derive(Clone, Debug)]
pub struct Changes {
    genesis: Genesis,
    mesh: MeshId,
    /// The hash of the genesis.
    root: ChangeHash,
    stored: BTreeMap<ChangeHash, Stored>,
    chains: BTreeMap<KeyHash, Chain>,
    /// The changes that directly follow a change of the same signer. More than one is a fork.
    next: BTreeMap<(KeyHash, ChangeHash), Vec<ChangeHash>>,
    /// The grants and rotations to a key.
    openers: BTreeMap<KeyHash, Vec<ChangeHash>>,
    waiting: Waiting,
    counters: ChangeCounters,
}

#[derive(Clone, Debug)]
struct Stored {
    change: Change,
    /// One more than the greatest height of the changes that it names.
    height: u32,
}

#[derive(Clone, Debug, Default)]
struct Chain {
    len: usize,
    tips: BTreeSet<ChangeHash>,
}

/// Changes that name others that have not arrived.
#[derive(Clone, Debug, Default)]
struct Waiting {
    changes: BTreeMap<ChangeHash, Change>,
    /// The changes that wait for each missing change.
    missing: BTreeMap<ChangeHash, BTreeSet<ChangeHash>>,
    per_signer: BTreeMap<KeyHash, usize>,
}

/// The last change of a chain or branch.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Head {
    /// The hash of the signer's key.
    pub signer: KeyHash,
    /// The number of the change.
    pub number: u32,
    /// The hash of the change.
    pub hash: ChangeHash,
}

/// The result of inserting a change.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Insertion {
    /// The change was added, and so was this number of changes that waited for it.
    Added(usize),
    /// The change had arrived before.
    Known,
    /// The change waits for others that it names.
    Waiting,
}

/// The reason why a change is not added.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InsertError {
    /// The change names a previous one of another signer, or one with another number.
    #[error("the change does not continue its signer's chain")]
    Previous,
    /// The change names its own signer's chain among the other chains' heads.
    #[error("the change names a head of its own chain")]
    OwnHead,
    /// The signer had no right when it began its chain.
    #[error("the signer never had a right")]
    Signer,
    /// The set has too many chains or changes.
    #[error("the set of changes is full")]
    Full,
    /// The chain has too many branches.
    #[error("the chain has too many branches")]
    Branches,
    /// Too many changes wait for others.
    #[error("too many changes wait for earlier ones")]
    Waiting,
}

/// Counts the results of [`Changes::insert`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ChangeCounters {
    /// Changes that were added.
    pub added: u64,
    /// Changes that were not valid: see [`InsertError`].
    pub invalid: u64,
    /// Changes that exceeded a bound on chains, changes or branches.
    pub full: u64,
    /// Changes for which there was no room to wait.
    pub not_waiting: u64,
}

/// The proof that a key was used twice: two different changes after the same one.
#[derive(Copy, Clone, Debug)]
pub struct Fork<'a> {
    /// The hash of the signer's key.
    pub signer: KeyHash,
    /// One of the changes.
    pub one: &'a Change,
    /// The other change.
    pub other: &'a Change,
}

/// The reason why a signer cannot sign another change.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraftError {
    /// The signer's chain has a fork because the key is in use elsewhere.
    #[error("the chain of this key has two branches: the key is in use elsewhere")]
    Forked,
    /// The chain is full.
    #[error("the chain of this key is full")]
    Full,
}

impl Changes {
    /// Creates the set of a new mesh.
    ///
    /// # Errors
    /// Fails if a field of the genesis is outside its bounds.
    pub fn new(genesis: Genesis) -> Result<Self, ObjectError> {
        Ok(Self {
            mesh: genesis.mesh_id()?,
            root: genesis.hash()?,
            genesis,
            stored: BTreeMap::new(),
            chains: BTreeMap::new(),
            next: BTreeMap::new(),
            openers: BTreeMap::new(),
            waiting: Waiting::default(),
            counters: ChangeCounters::default(),
        })
    }

    /// Returns the genesis.
    pub fn genesis(&self) -> &Genesis {
        &self.genesis
    }

    /// Returns the id of the mesh.
    pub fn mesh(&self) -> &MeshId {
        &self.mesh
    }

    /// Returns the number of changes, except those that wait.
    pub fn len(&self) -> usize {
        self.stored.len()
    }

    /// Returns whether there is no change.
    pub fn is_empty(&self) -> bool {
        self.stored.is_empty()
    }

    /// Returns the number of changes that wait for others.
    pub fn waiting(&self) -> usize {
        self.waiting.changes.len()
    }

    /// Returns the counters.
    pub fn counters(&self) -> ChangeCounters {
        self.counters
    }

    /// Returns a change by its hash.
    pub fn get(&self, hash: &ChangeHash) -> Option<&Change> {
        self.stored.get(hash).map(|stored| &stored.change)
    }

    /// Adds a change, and those that waited for it.
    ///
    /// # Errors
    /// Fails if the change cannot be part of the set, or if a bound is reached.
    pub fn insert(&mut self, change: Change) -> Result<Insertion, InsertError> {
        self.insert_into(change, &mut Vec::new())
    }

    /// Does the same as [`Self::insert`], and appends the hashes of all changes that are now in the set to `added`, in causal
    /// order.
    ///
    /// # Errors
    /// As [`Self::insert`].
    pub fn insert_into(
        &mut self,
        change: Change,
        added: &mut Vec<ChangeHash>,
    ) -> Result<Insertion, InsertError> {
        let hash = change.hash();
        if self.stored.contains_key(&hash) || self.waiting.changes.contains_key(&hash) {
            return Ok(Insertion::Known);
        }
        if let Some(missing) = self.first_missing(&change) {
            let result = self.waiting.add(missing, change);
            return self.counted(result).map(|()| Insertion::Waiting);
        }
        let result = self.add(change);
        self.counted(result)?;
        let mut others: usize = 0;
        let mut next = added.len();
        added.push(hash);
        while let Some(arrived) = added.get(next).copied() {
            next = next.saturating_add(1);
            for change in self.waiting.take(&arrived) {
                let hash = change.hash();
                if let Some(missing) = self.first_missing(&change) {
                    // The original set had room for it.
                    let _ = self.waiting.add(missing, change);
                    continue;
                }
                let result = self.add(change);
                if self.counted(result).is_ok() {
                    others = others.saturating_add(1);
                    added.push(hash);
                }
            }
        }
        Ok(Insertion::Added(others))
    }

    /// Adds all changes of another set.
    pub fn merge(&mut self, other: &Self) {
        let waiting = other.waiting.changes.values();
        for change in other.in_causal_order().into_iter().chain(waiting) {
            // The counters include failures.
            let _ = self.insert(change.clone());
        }
    }

    fn counted<T>(&mut self, result: Result<T, InsertError>) -> Result<T, InsertError> {
        let counter = match &result {
            Ok(_) => return result,
            Err(InsertError::Full | InsertError::Branches) => &mut self.counters.full,
            Err(InsertError::Waiting) => &mut self.counters.not_waiting,
            Err(InsertError::Previous | InsertError::OwnHead | InsertError::Signer) => {
                &mut self.counters.invalid
            }
        };
        *counter = counter.saturating_add(1);
        result
    }

    /// Returns a change that this one names but the set lacks.
    fn first_missing(&self, change: &Change) -> Option<ChangeHash> {
        let body = change.body();
        let previous = (body.previous != self.root).then_some(&body.previous);
        previous
            .into_iter()
            .chain(&body.heads)
            .find(|hash| !self.stored.contains_key(*hash))
            .copied()
    }

    /// Adds a change whose predecessors are all in the set.
    fn add(&mut self, change: Change) -> Result<(), InsertError> {
        let (body, signer, hash) = (change.body(), change.signer(), change.hash());
        self.check_links(&change)?;
        let after = (signer, body.previous);
        let is_branch = self.next.contains_key(&after);
        match self.chains.get(&signer) {
            None if self.chains.len() >= MAX_CHAINS => return Err(InsertError::Full),
            Some(chain) if chain.len >= MAX_CHAIN => return Err(InsertError::Full),
            Some(chain) if is_branch && chain.tips.len() >= MAX_BRANCHES => {
                return Err(InsertError::Branches);
            }
            _ if self.stored.len() >= MAX_CHANGES => return Err(InsertError::Full),
            _ => {}
        }
        let chain = self.chains.entry(signer).or_default();
        chain.len = chain.len.saturating_add(1);
        chain.tips.remove(&body.previous);
        chain.tips.insert(hash);
        // Almost always the only one.
        self.next.entry(after).or_insert_with(|| Vec::with_capacity(1)).push(hash);
        if let Action::Grant { key, .. } | Action::Rotate(Rotation { new: key, .. }) = &body.action
        {
            self.openers.entry(*key).or_default().push(hash);
        }
        let named = body.heads.iter().chain([&body.previous]);
        let height =
            named.filter_map(|named| self.stored.get(named)).map(|named| named.height).max();
        let height = height.map_or(0, |height| height.saturating_add(1));
        self.counters.added = self.counters.added.saturating_add(1);
        self.stored.insert(hash, Stored { change, height });
        Ok(())
    }

    fn check_links(&self, change: &Change) -> Result<(), InsertError> {
        let (body, signer) = (change.body(), change.signer());
        if body.previous == self.root {
            if body.number != 1 {
                return Err(InsertError::Previous);
            }
        } else {
            let previous = self.get(&body.previous).ok_or(InsertError::Previous)?;
            let number = previous.body().number.checked_add(1);
            if previous.signer() != signer || number != Some(body.number) {
                return Err(InsertError::Previous);
            }
        }
        if body.heads.iter().any(|head| self.get(head).is_some_and(|head| head.signer() == signer))
        {
            return Err(InsertError::OwnHead);
        }
        if body.number > 1 || self.genesis.admins.contains(&signer) {
            return Ok(());
        }
        let openers: BTreeSet<_> = self.openers.get(&signer).into_iter().flatten().collect();
        if openers.is_empty() {
            return Err(InsertError::Signer);
        }
        let mut past = BTreeSet::new();
        body.heads.iter().for_each(|head| self.extend_past(&mut past, head));
        if past.is_disjoint(&openers) { Err(InsertError::Signer) } else { Ok(()) }
    }

    /// Adds a change and everything that it depends on.
    fn extend_past<'a>(&'a self, past: &mut BTreeSet<&'a ChangeHash>, from: &'a ChangeHash) {
        let mut open = vec![from];
        while let Some(hash) = open.pop() {
            let Some((hash, stored)) = self.stored.get_key_value(hash) else { continue };
            if past.insert(hash) {
                let body = stored.change.body();
                open.push(&body.previous);
                open.extend(&body.heads);
            }
        }
    }

    /// Returns the heads of all chains, sorted.
    pub fn heads(&self) -> Vec<Head> {
        let mut heads: Vec<_> = self
            .chains
            .iter()
            .flat_map(|(signer, chain)| chain.tips.iter().map(|hash| (*signer, *hash)))
            .filter_map(|(signer, hash)| {
                Some(Head { signer, number: self.get(&hash)?.body().number, hash })
            })
            .collect();
        heads.sort_unstable();
        heads
    }

    /// Returns a digest of all heads. Sets with the same changes have the same digest.
    pub fn digest(&self) -> [u8; 32] {
        let mut bytes = Vec::new();
        for head in self.heads() {
            bytes.extend(head.signer);
            bytes.extend(head.number.to_be_bytes());
            bytes.extend(head.hash);
        }
        sha256(&[b"adit mesh heads 1", &self.mesh, &bytes])
    }

    /// Returns the changes for which others wait, at most [`MAX_WAITING`].
    pub fn missing(&self) -> Vec<ChangeHash> {
        self.waiting.missing.keys().copied().collect()
    }

    /// Returns the changes that a neighbour with these [`Self::heads`] and [`Self::missing`] changes lacks, in causal
    /// order.
    ///
    /// A chain of which the neighbour has more is left out, unless the neighbour lacks a change in it. The neighbour sends the rest of the
    /// chain; if that is another branch, the next call returns ours.
    pub fn after(&self, heads: &[Head], missing: &[ChangeHash]) -> Vec<&Change> {
        let asked: BTreeSet<_> =
            missing.iter().filter_map(|hash| self.get(hash)).map(Change::signer).collect();
        let mut theirs = BTreeMap::<_, Vec<&Head>>::new();
        for head in heads {
            theirs.entry(head.signer).or_default().push(head);
        }
        let mut lacking = BTreeMap::new();
        for (signer, chain) in &self.chains {
            let theirs = theirs.get(signer).map_or(&[][..], Vec::as_slice);
            let known: Vec<_> = theirs
                .iter()
                .map(|head| &head.hash)
                .filter(|hash| self.get(hash).is_some_and(|change| change.signer() == *signer))
                .collect();
            let ours = chain.tips.iter().filter_map(|hash| self.get(hash));
            let longest = ours.map(|change| change.body().number).max();
            let is_longer = theirs.iter().any(|head| Some(head.number) > longest);
            if known.is_empty() && is_longer && !asked.contains(signer) {
                continue;
            }
            let mut has: BTreeSet<_> = known.iter().copied().collect();
            if chain.tips.len() > 1 {
                for hash in known {
                    has.extend(self.chain_back_from(hash).map(|(hash, _)| hash));
                }
            }
            for tip in &chain.tips {
                for (hash, stored) in self.chain_back_from(tip) {
                    if has.contains(hash)
                        || lacking.insert((stored.height, *hash), stored).is_some()
                    {
                        break;
                    }
                }
            }
        }
        lacking.into_values().map(|stored| &stored.change).collect()
    }

    /// Returns a change and its predecessors in its chain, latest first.
    fn chain_back_from<'a>(
        &'a self,
        hash: &'a ChangeHash,
    ) -> impl Iterator<Item = (&'a ChangeHash, &'a Stored)> {
        let first = self.stored.get_key_value(hash);
        std::iter::successors(first, |(_, stored)| {
            self.stored.get_key_value(&stored.change.body().previous)
        })
    }

    /// Returns all changes in an order in which each follows those that it depends on. The order depends only on the
    /// changes.
    pub fn in_causal_order(&self) -> Vec<&Change> {
        let mut all: Vec<_> = self
            .stored
            .iter()
            .map(|(hash, stored)| (stored.height, hash, &stored.change))
            .collect();
        all.sort_unstable_by_key(|(height, hash, _)| (*height, *hash));
        all.into_iter().map(|(_, _, change)| change).collect()
    }

    /// Returns the proof of each fork.
    pub fn forks(&self) -> impl Iterator<Item = Fork<'_>> {
        self.next.iter().filter_map(|((signer, _), next)| {
            let mut next: Vec<_> = next.iter().collect();
            next.sort_unstable();
            let [one, other, ..] = next.as_slice() else { return None };
            Some(Fork { signer: *signer, one: self.get(one)?, other: self.get(other)? })
        })
    }

    /// Returns the content of a signer's next change, after everything that is in the set.
    ///
    /// A signer must first fetch its own chain from its neighbours; otherwise a key restored from a backup continues an old chain, which is
    /// a fork.
    ///
    /// # Errors
    /// Fails if the signer's chain has a fork or is full.
    pub fn draft(
        &self,
        signer: KeyHash,
        time: UnixTime,
        action: Action,
    ) -> Result<Body, DraftError> {
        let tips = self.chains.get(&signer).map(|chain| &chain.tips);
        let mut tips = tips.into_iter().flatten();
        let (tip, more) = (tips.next(), tips.next());
        if more.is_some() {
            return Err(DraftError::Forked);
        }
        let mut past = BTreeSet::new();
        tip.into_iter().for_each(|tip| self.extend_past(&mut past, tip));
        // A grant comes first, because the chain cannot open without one; then the heads on which most others depend.
        let openers = self.openers.get(&signer).into_iter().flatten().take(MAX_HEADS / 2);
        let others = self.chains.iter().filter(|(other, _)| **other != signer);
        let mut others: Vec<_> = others.flat_map(|(_, chain)| &chain.tips).collect();
        others.sort_unstable_by_key(|hash| Reverse(self.stored.get(*hash).map(|s| s.height)));
        let mut heads = BTreeSet::new();
        for head in openers.chain(others) {
            if heads.len() < MAX_HEADS && !past.contains(head) {
                heads.insert(*head);
                self.extend_past(&mut past, head);
            }
        }
        let previous = tip.and_then(|tip| self.get(tip));
        let last = previous.map_or(0, |change| change.body().number);
        Ok(Body {
            number: last.checked_add(1).ok_or(DraftError::Full)?,
            previous: previous.map_or(self.root, Change::hash),
            // The time never goes back within a chain.
            time: previous.map_or(time, |previous| time.max(previous.body().time)),
            heads,
            action,
        })
    }
}

impl Waiting {
    fn add(&mut self, missing: ChangeHash, change: Change) -> Result<(), InsertError> {
        let of_signer = self.per_signer.entry(change.signer()).or_default();
        if self.changes.len() >= MAX_WAITING || *of_signer >= MAX_WAITING_PER_SIGNER {
            if *of_signer == 0 {
                self.per_signer.remove(&change.signer());
            }
            return Err(InsertError::Waiting);
        }
        *of_signer = of_signer.saturating_add(1);
        self.missing.entry(missing).or_default().insert(change.hash());
        self.changes.insert(change.hash(), change);
        Ok(())
    }

    /// Removes the changes that waited for one that has arrived.
    fn take(&mut self, arrived: &ChangeHash) -> Vec<Change> {
        let hashes = self.missing.remove(arrived).unwrap_or_default();
        let mut taken = Vec::with_capacity(hashes.len());
        for change in hashes.iter().filter_map(|hash| self.changes.remove(hash)) {
            if let Some(of_signer) = self.per_signer.get_mut(&change.signer()) {
                *of_signer = of_signer.saturating_sub(1);
                if *of_signer == 0 {
                    self.per_signer.remove(&change.signer());
                }
            }
            taken.push(change);
        }
        taken
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::roster::testing::{NOW, Signer, admit, genesis, grant_admin, name, shuffled, write};
    use crate::roster::{Genesis, NodeInfo};

    /// Returns three admins and a set of changes in which each of them has a chain.
    fn three() -> (Vec<Signer>, Changes) {
        let signers: Vec<_> = (1..=3).map(Signer::new).collect();
        let mut changes = Changes::new(genesis(&signers[..1], 1)).unwrap();
        write(&mut changes, &signers[0], grant_admin(&signers[1]));
        write(&mut changes, &signers[1], grant_admin(&signers[2]));
        for round in 0..4 {
            for (at, signer) in signers.iter().enumerate() {
                write(&mut changes, signer, admit(10 * round + at as u8));
            }
        }
        (signers, changes)
    }

    #[test]
    fn the_order_of_arrival_does_not_matter() {
        let (signers, changes) = three();
        let all: Vec<_> = changes.in_causal_order().into_iter().cloned().collect();
        for seed in 0..50 {
            let mut other = Changes::new(genesis(&signers[..1], 1)).unwrap();
            for change in shuffled(&all, seed) {
                other.insert(change).unwrap();
            }
            assert_eq!(other.digest(), changes.digest());
            assert_eq!(other.in_causal_order(), changes.in_causal_order());
            assert_eq!((other.waiting(), other.len()), (0, all.len()));
            assert!(other.waiting.missing.is_empty() && other.waiting.per_signer.is_empty());
        }
    }

    #[test]
    fn a_change_waits_for_what_it_names() {
        let (signers, changes) = three();
        let all: Vec<_> = changes.in_causal_order().into_iter().cloned().collect();
        let mut other = Changes::new(genesis(&signers[..1], 1)).unwrap();
        for change in all[1..].iter().rev() {
            assert_eq!(other.insert(change.clone()), Ok(Insertion::Waiting));
            assert_eq!(other.insert(change.clone()), Ok(Insertion::Known));
        }
        assert!(other.is_empty());
        let last = other.insert(all[0].clone());
        assert_eq!(last, Ok(Insertion::Added(all.len() - 1)));
        assert_eq!(other.insert(all[0].clone()), Ok(Insertion::Known));
    }

    #[test]
    fn a_neighbour_gets_what_it_lacks_and_nothing_else() {
        let (signers, changes) = three();
        let all: Vec<_> = changes.in_causal_order().into_iter().cloned().collect();
        for count in 0..=all.len() {
            let mut other = Changes::new(genesis(&signers[..1], 1)).unwrap();
            for change in &all[..count] {
                other.insert(change.clone()).unwrap();
            }
            assert_eq!(changes.after(&other.heads(), &[]), all[count..].iter().collect::<Vec<_>>());
            assert!(other.after(&changes.heads(), &[]).is_empty(), "the neighbour has more");
        }
    }

    fn fetch(to: &mut Changes, from: &Changes) {
        for change in from.after(&to.heads(), &to.missing()) {
            to.insert(change.clone()).unwrap();
        }
    }

    #[test]
    fn a_fork_is_proved_by_two_changes_and_reaches_all_neighbours() {
        for (here, there) in [(1, 1), (1, 3), (3, 1)] {
            let (signers, changes) = three();
            let (mut one, mut other) = (changes.clone(), changes.clone());
            for n in 0..here {
                write(&mut one, &signers[1], admit(100 + n));
            }
            for n in 0..there {
                write(&mut other, &signers[1], admit(200 + n));
            }
            assert_eq!(one.forks().count(), 0);
            for _ in 0..2 {
                fetch(&mut one, &other);
                fetch(&mut other, &one);
            }
            assert_eq!(one.digest(), other.digest(), "{here} {there}");
            let fork = one.forks().next().unwrap();
            assert_eq!(fork.signer, signers[1].hash);
            assert_eq!(fork.one.body().previous, fork.other.body().previous);
            assert_ne!(fork.one.hash(), fork.other.hash());
            let draft = one.draft(signers[1].hash, UnixTime(0), admit(1));
            assert_eq!(draft, Err(DraftError::Forked));
        }
    }

    #[test]
    fn a_neighbour_with_one_branch_gets_the_other_alone() {
        let (signers, changes) = three();
        let (mut all, mut other) = (changes.clone(), changes);
        write(&mut all, &signers[1], admit(100));
        let hash = write(&mut other, &signers[1], admit(200));
        let one = all.clone();
        all.merge(&other);
        let lacking: Vec<_> = all.after(&one.heads(), &[]).into_iter().map(Change::hash).collect();
        assert_eq!(lacking, [hash]);
    }

    /// Each set has more of one chain than the other, including a branch on which its other changes depend.
    #[test]
    fn missing_changes_are_asked_for() {
        let (signers, changes) = three();
        let (mut one, mut other) = (changes.clone(), changes);
        for (set, first, second) in [(&mut one, 0, 1), (&mut other, 1, 0)] {
            write(set, &signers[first], admit(100));
            write(set, &signers[second], admit(101));
            write(set, &signers[second], admit(102));
        }
        fetch(&mut one, &other);
        fetch(&mut other, &one);
        assert!(one.waiting() > 0 && other.waiting() > 0);
        for _ in 0..2 {
            fetch(&mut one, &other);
            fetch(&mut other, &one);
        }
        assert_eq!(one.digest(), other.digest());
        assert_eq!((one.waiting(), one.forks().count()), (0, 2));
    }

    #[test]
    fn time_does_not_go_back_within_a_chain() {
        let (signers, changes) = three();
        let time = |at| changes.draft(signers[1].hash, UnixTime(at), admit(1)).unwrap().time;
        assert_eq!(time(0), NOW);
        assert_eq!(time(NOW.0 + 1), UnixTime(NOW.0 + 1));
    }

    #[test]
    fn each_link_is_checked() {
        let (signers, changes) = three();
        let body = changes.draft(signers[1].hash, UnixTime(0), admit(99)).unwrap();
        let refused = |signer: &Signer, edit: &dyn Fn(&mut Body)| {
            let mut body = body.clone();
            edit(&mut body);
            changes.clone().insert(signer.sign(changes.mesh(), body))
        };
        assert_eq!(refused(&signers[1], &|_| {}), Ok(Insertion::Added(0)));
        let own = changes.heads().into_iter().find(|head| head.signer == signers[1].hash).unwrap();
        let (root, stranger) = (changes.root, Signer::new(77));
        let grant = changes.in_causal_order()[0].hash();
        type Edit<'a> = &'a dyn Fn(&mut Body);
        let cases: [(&Signer, Edit<'_>, InsertError); 6] = [
            (&signers[1], &|body| body.number += 1, InsertError::Previous),
            (&signers[1], &|body| body.previous = root, InsertError::Previous),
            (&signers[0], &|_| {}, InsertError::Previous),
            (&signers[1], &|body| body.heads = [own.hash].into(), InsertError::OwnHead),
            (&stranger, &|body| (body.number, body.previous) = (1, root), InsertError::Signer),
            (
                &signers[2],
                // The causal past contains a grant, but to another key.
                &|body| {
                    (body.number, body.previous, body.heads) = (1, root, [grant].into());
                },
                InsertError::Signer,
            ),
        ];
        for (signer, edit, error) in cases {
            assert_eq!(refused(signer, edit), Err(error));
        }
    }

    #[test]
    fn waiting_changes_are_bounded_and_counted() {
        let signer = Signer::new(1);
        let mut changes = Changes::new(genesis(std::slice::from_ref(&signer), 1)).unwrap();
        let mut waiting = |signer: &Signer, n: u32| {
            let previous = sha256(&[&n.to_be_bytes()]);
            let action = Action::Admit { key: [1; 32], node: NodeInfo::named(name("a")) };
            let body = Body { number: n, previous, time: UnixTime(0), heads: [].into(), action };
            changes.insert(signer.sign(&changes.mesh.clone(), body))
        };
        let most = MAX_WAITING_PER_SIGNER as u32;
        for n in 2..most + 2 {
            assert_eq!(waiting(&signer, n), Ok(Insertion::Waiting));
        }
        assert_eq!(waiting(&signer, most + 2), Err(InsertError::Waiting));
        for at in 2..5 {
            for n in 2..most + 2 {
                assert_eq!(waiting(&Signer::new(at), n), Ok(Insertion::Waiting));
            }
        }
        assert_eq!(waiting(&Signer::new(9), 2), Err(InsertError::Waiting), "of all signers");
        assert_eq!(changes.waiting(), MAX_WAITING);
        assert_eq!(changes.counters().not_waiting, 2);
    }

    #[test]
    fn branches_are_bounded_and_counted() {
        let (signers, changes) = three();
        let mut all = changes.clone();
        for n in 0..MAX_BRANCHES as u8 {
            let mut branch = changes.clone();
            write(&mut branch, &signers[1], admit(100 + n));
            all.merge(&branch);
        }
        assert_eq!(all.counters().full, 0);
        let mut branch = changes.clone();
        write(&mut branch, &signers[1], admit(200));
        all.merge(&branch);
        assert_eq!(all.counters().full, 1);
        assert_eq!(all.forks().count(), 1);
    }

    #[test]
    fn a_change_names_the_latest_heads_and_its_grant() {
        let signers: Vec<_> = (1..=100).map(Signer::new).collect();
        let mut changes = Changes::new(genesis(&signers[..1], 1)).unwrap();
        for signer in &signers[1..] {
            write(&mut changes, &signers[0], grant_admin(signer));
        }
        // Each chain has a head that no other chain names.
        let before = changes.clone();
        for (at, signer) in signers[1..99].iter().enumerate() {
            let mut alone = before.clone();
            write(&mut alone, signer, admit(at as u8));
            changes.merge(&alone);
        }
        let mut last = changes.clone();
        let hash = write(&mut last, &signers[99], admit(200));
        assert_eq!(last.get(&hash).unwrap().body().heads.len(), MAX_HEADS);
        let hash = write(&mut last, &signers[99], admit(201));
        assert_eq!(last.get(&hash).unwrap().body().heads.len(), 98 - (MAX_HEADS - 1));
        let hash = write(&mut last, &signers[99], admit(202));
        assert_eq!(last.get(&hash).unwrap().body().heads.len(), 0);
    }

    #[test]
    fn another_genesis_is_another_set() {
        let signer = Signer::new(1);
        let one = Changes::new(genesis(std::slice::from_ref(&signer), 1)).unwrap();
        let genesis = Genesis { random: [1; 32], ..one.genesis().clone() };
        let other = Changes::new(genesis).unwrap();
        assert_ne!(one.digest(), other.digest());
    }
}
