//! Computes the members of a mesh slowly and plainly, straight from the rules. The scenarios use only part of the rules: node keys sign
//! nothing, and only the first admin ends another admin's chain.

use std::collections::{BTreeMap, BTreeSet};

use adit_mesh::roster::{Action, Change, Changes};
use adit_mesh::session::KeyHash;

/// The keys that follow from a set of changes.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Naive {
    pub(crate) members: BTreeSet<KeyHash>,
    /// The keys ended by a revocation that counts.
    pub(crate) revoked: BTreeSet<KeyHash>,
}

/// Returns the members and the revoked keys; `first` is the first admin.
pub(crate) fn evaluate(changes: &Changes, first: KeyHash) -> Naive {
    let all = changes.in_causal_order();
    let ends = ends(&all, first);
    let forks = forks(&all);
    let number = |change: &Change| change.body().number;
    let before_the_end =
        |change: &&&Change| ends.get(&change.signer()).is_none_or(|end| number(change) <= *end);
    let before_a_fork =
        |change: &&&Change| forks.get(&change.signer()).is_none_or(|fork| number(change) < *fork);
    let mut naive = Naive::default();
    for change in all.iter().filter(before_the_end).filter(before_a_fork) {
        if let Action::Admit { key, .. } = change.action() {
            naive.members.insert(*key);
        }
    }
    // A revocation overrides every admission, and counts even if the chain forked.
    for change in all.iter().filter(before_the_end) {
        if let Action::Revoke(revocation) = change.action() {
            naive.members.remove(&revocation.key);
            naive.revoked.insert(revocation.key);
        }
    }
    naive
}

/// Returns the number of the last change that counts, for each signer whose key the first admin has revoked.
fn ends(all: &[&Change], first: KeyHash) -> BTreeMap<KeyHash, u32> {
    let mut ends: BTreeMap<KeyHash, u32> = BTreeMap::new();
    for change in all.iter().filter(|change| change.signer() == first) {
        let Action::Revoke(revocation) = change.action() else { continue };
        let last = all.iter().find(|change| Some(change.hash()) == revocation.last);
        let end = last.map_or(0, |last| last.body().number);
        let known = ends.entry(revocation.key).or_insert(end);
        *known = end.min(*known);
    }
    ends
}

/// Returns the first number that a signer used twice.
fn forks(all: &[&Change]) -> BTreeMap<KeyHash, u32> {
    let (mut seen, mut forks) = (BTreeSet::new(), BTreeMap::new());
    for change in all {
        let (signer, number) = (change.signer(), change.body().number);
        if !seen.insert((signer, number)) {
            let first = forks.entry(signer).or_insert(number);
            *first = number.min(*first);
        }
    }
    forks
}
