//! The rights of signers, as a function of the changes that each of them has seen.
//!
//! Only some changes matter for rights: grants, thresholds, approvals of them, the revocation or rotation of keys that
//! ever had a right, and the first changes of each branch of a fork. A [`View`] is computed from those alone; changes
//! with the same past have the same view.

use std::collections::{BTreeMap, BTreeSet};

use super::authorize::{Refusal, Standing, Usage, authorize};
use super::order::{Order, Rank};
use super::revocations;
use crate::roster::chains::Changes;
use crate::roster::change::{Action, ChangeHash, Revocation, Right, Rotation};
use crate::roster::genesis::Genesis;
use crate::session::{KeyHash, MeshId};

/// The rights that follow from a set of changes.
#[derive(Debug, Default)]
pub(super) struct View {
    /// The rights of each key that has one.
    pub(super) rights: BTreeMap<KeyHash, Held>,
    /// Keys whose rights have ended.
    pub(super) ended: BTreeSet<KeyHash>,
    /// The number of admins who must approve important changes.
    pub(super) threshold: u8,
    /// For each signer with a fork, the number of changes before it.
    pub(super) prefixes: BTreeMap<KeyHash, u32>,
    /// For each signer whose key has ended, the ends of its chain.
    pub(super) pins: BTreeMap<KeyHash, Vec<Pin>>,
}

/// The rights of one key.
#[derive(Clone, Debug, Default)]
pub(super) struct Held {
    /// The seniority as an admin.
    pub(super) admin: Option<Rank>,
    /// The grant of the right to invite, and the seniority.
    pub(super) inviter: Option<(usize, Rank)>,
    /// The granting change and its signer's seniority. They decide between two grants to invite.
    granter: Option<(usize, Rank)>,
}

/// The end of a chain.
#[derive(Copy, Clone, Debug)]
pub(super) struct Pin {
    /// The revocation or rotation.
    pub(super) by: usize,
    /// Its signer's seniority.
    pub(super) rank: Rank,
    /// The last valid change.
    pub(super) last: Option<usize>,
}

/// Which changes count, and the view of all of them together.
pub(super) struct Authority<'o, 'a> {
    pub(super) order: &'o Order<'a>,
    pub(super) genesis: &'o Genesis,
    pub(super) mesh: MeshId,
    /// For each change, the signer's right in its own view.
    pub(super) standings: Vec<Result<Standing, Refusal>>,
    /// For each change, the part of the limits that its chain had used.
    pub(super) usages: Vec<Usage>,
    /// For each change, those that approve it.
    approvals: BTreeMap<ChangeHash, Vec<usize>>,
    /// For each fork, the changes that follow it.
    fork_of: BTreeMap<usize, usize>,
}

impl<'o, 'a> Authority<'o, 'a> {
    /// Determines each signer's right in its own view, and the view of all changes.
    pub(super) fn new(order: &'o Order<'a>, changes: &'o Changes) -> (Self, View) {
        let mut this = Self {
            order,
            genesis: changes.genesis(),
            mesh: *changes.mesh(),
            standings: Vec::with_capacity(order.len()),
            usages: Vec::with_capacity(order.len()),
            approvals: BTreeMap::new(),
            fork_of: BTreeMap::new(),
        };
        for (fork, next) in order.forks().iter().enumerate() {
            this.fork_of.extend(next.iter().map(|at| (*at, fork)));
        }
        for at in 0..order.len() {
            if let Action::Approve(hash) = order.action(at) {
                this.approvals.entry(*hash).or_default().push(at);
            }
        }
        let relevant = this.select();
        let mut views = Vec::<View>::new();
        let mut by_past = BTreeMap::<Vec<usize>, usize>::new();
        let mut view_of = Vec::<usize>::with_capacity(order.len());
        for at in 0..order.len() {
            let previous = order.previous(at).filter(|previous| {
                order.change(at).body().heads.is_empty()
                    && relevant.binary_search(previous).is_err()
            });
            let view = previous.map(|previous| view_of[previous]).unwrap_or_else(|| {
                let seen = relevant.iter().copied().filter(|seen| order.is_before(*seen, at));
                let seen: Vec<_> = seen.collect();
                *by_past.entry(seen).or_insert_with_key(|seen| {
                    views.push(this.view(seen));
                    views.len() - 1
                })
            });
            view_of.push(view);
            let mut usage = Usage::after(order, &this.usages, at);
            let standing = authorize(&this, &views[view], at, &mut usage);
            this.standings.push(standing);
            this.usages.push(usage);
        }
        let all: Vec<_> = (0..order.len()).collect();
        let view = this.view(&all);
        (this, view)
    }

    /// Returns the changes that matter for rights.
    fn select(&self) -> Vec<usize> {
        let keys = self.keys_with_rights();
        let matters = |at: usize| match self.order.action(at) {
            Action::Grant { .. } | Action::SetThreshold(_) => true,
            Action::Revoke(Revocation { key, .. }) => keys.contains(key),
            Action::Rotate(Rotation { old, .. }) => keys.contains(old),
            _ => false,
        };
        let all = 0..self.order.len();
        let approves = |at: usize| match self.order.action(at) {
            Action::Approve(hash) => self.order.find(hash).is_some_and(matters),
            _ => false,
        };
        all.filter(|at| matters(*at) || approves(*at) || self.fork_of.contains_key(at)).collect()
    }

    /// Returns all keys to which any change gives a right.
    fn keys_with_rights(&self) -> BTreeSet<KeyHash> {
        let mut keys = BTreeSet::new();
        let mut successors = BTreeMap::<_, Vec<KeyHash>>::new();
        let mut open = self.genesis.admins.clone();
        for at in 0..self.order.len() {
            match self.order.action(at) {
                Action::Grant { key, .. } => open.push(*key),
                Action::Rotate(Rotation { old, new, .. }) => {
                    successors.entry(*old).or_default().push(*new);
                }
                _ => {}
            }
        }
        while let Some(key) = open.pop() {
            if keys.insert(key) {
                open.extend(successors.get(&key).into_iter().flatten());
            }
        }
        keys
    }

    /// Computes the rights that follow from a set of changes.
    fn view(&self, seen: &[usize]) -> View {
        let mut view = View { prefixes: self.prefixes(seen), ..View::default() };
        let counting = revocations::resolve(self, seen);
        for by in &counting {
            let Some((key, last)) = ends(self.order.action(*by)) else { continue };
            let Ok(standing) = &self.standings[*by] else { continue };
            let last = last.and_then(|last| self.order.find(&last));
            view.ended.insert(key);
            view.pins.entry(key).or_default().push(Pin { by: *by, rank: standing.rank, last });
        }
        view.rights = self.rights(seen, &view);
        let admins = view.rights.values().filter(|held| held.admin.is_some()).count();
        let threshold = self.threshold(seen, &view);
        // If there are fewer admins than the threshold, all of them together can act.
        view.threshold = threshold.min(u8::try_from(admins).unwrap_or(u8::MAX)).max(1);
        view
    }

    fn rights(&self, seen: &[usize], view: &View) -> BTreeMap<KeyHash, Held> {
        let mut rights = BTreeMap::<KeyHash, Held>::new();
        for (place, key) in self.genesis.admins.iter().enumerate() {
            let rank = Rank { depth: 0, place, origin: *key };
            rights.insert(*key, Held { admin: Some(rank), ..Held::default() });
        }
        let transfers = self.transfers(seen, view);
        for at in seen {
            let Ok(standing) = &self.standings[*at] else { continue };
            match self.order.action(*at) {
                Action::Grant { key, right } if self.is_in_force(view, seen, *at) => {
                    let depth = standing.rank.depth.saturating_add(1);
                    let rank = Rank { depth, place: 0, origin: *key };
                    let held = rights.entry(*key).or_default();
                    match right {
                        Right::Admin => {
                            held.admin = Some(held.admin.map_or(rank, |admin| admin.min(rank)));
                        }
                        Right::Inviter(_) => {
                            let new = (*at, standing.rank);
                            if held.granter.is_none_or(|old| self.order.replaces(old, new)) {
                                held.inviter = Some((*at, rank));
                                held.granter = Some(new);
                            }
                        }
                    }
                }
                Action::Rotate(Rotation { old, new, .. }) if transfers.get(old) == Some(at) => {
                    if let Some(held) = rights.get(old).cloned() {
                        rights.insert(*new, held);
                    }
                }
                _ => {}
            }
        }
        rights.retain(|key, _| !view.ended.contains(key));
        rights
    }

    fn threshold(&self, seen: &[usize], view: &View) -> u8 {
        let mut current = None;
        for at in seen {
            if let (Action::SetThreshold(threshold), Ok(standing)) =
                (self.order.action(*at), &self.standings[*at])
            {
                let new = (*at, standing.rank);
                let replaces = current.is_none_or(|(old, _)| self.order.replaces(old, new));
                if replaces && self.is_in_force(view, seen, *at) {
                    current = Some((new, *threshold));
                }
            }
        }
        current.map_or(self.genesis.threshold, |(_, threshold)| threshold)
    }

    /// Returns the rotation that names the successor of each replaced key. A revocation whose signer had not seen the rotation takes
    /// precedence.
    pub(super) fn transfers(&self, seen: &[usize], view: &View) -> BTreeMap<KeyHash, usize> {
        let mut transfers = BTreeMap::<KeyHash, usize>::new();
        for at in seen.iter().copied() {
            let Action::Rotate(Rotation { old, .. }) = self.order.action(at) else { continue };
            let beaten = view.pins.get(old).into_iter().flatten().any(|pin| {
                matches!(self.order.action(pin.by), Action::Revoke(_))
                    && !self.order.is_before(at, pin.by)
            });
            if beaten || !self.is_in_force(view, seen, at) {
                continue;
            }
            let rank = |at: usize| self.standings[at].as_ref().ok().map(|standing| standing.rank);
            let Some(new) = rank(at) else { continue };
            let kept = transfers.get(old).and_then(|kept| Some((*kept, rank(*kept)?)));
            if kept.is_none_or(|kept| !self.order.holds(kept, (at, new))) {
                transfers.insert(*old, at);
            }
        }
        transfers
    }

    /// Returns the number of changes before the branches, for each signer whose chain has two branches in this set.
    fn prefixes(&self, seen: &[usize]) -> BTreeMap<KeyHash, u32> {
        let mut branches = BTreeMap::<usize, usize>::new();
        let mut prefixes = BTreeMap::new();
        for at in seen {
            let Some(fork) = self.fork_of.get(at) else { continue };
            let branches = branches.entry(*fork).or_default();
            *branches += 1;
            if *branches > 1 {
                let prefix = self.order.number(*at).saturating_sub(1);
                let known = prefixes.entry(self.order.signer(*at)).or_insert(prefix);
                *known = prefix.min(*known);
            }
        }
        prefixes
    }

    /// Returns whether a change is authorized, and neither after the end of its chain nor after a fork.
    pub(super) fn stands(&self, view: &View, at: usize) -> Result<(), Refusal> {
        let standing = self.standings[at].as_ref().map_err(|refusal| *refusal)?;
        let signer = self.order.signer(at);
        let pins = view.pins.get(&signer).map_or(&[][..], Vec::as_slice);
        if pins.iter().any(|pin| pin.by != at && !self.order.is_within(at, pin.last)) {
            return Err(Refusal::Ended);
        }
        let forked =
            view.prefixes.get(&signer).is_some_and(|prefix| self.order.number(at) > *prefix);
        let chosen =
            pins.iter().any(|pin| pin.rank < standing.rank && self.order.is_within(at, pin.last));
        if forked && !chosen { Err(Refusal::Forked) } else { Ok(()) }
    }

    fn is_in_force(&self, view: &View, seen: &[usize], at: usize) -> bool {
        self.in_force(view, seen, at).is_ok()
    }

    /// Returns whether a change is valid in a view ([`Self::stands`]) and enough admins approve it.
    pub(super) fn in_force(&self, view: &View, seen: &[usize], at: usize) -> Result<(), Refusal> {
        self.stands(view, at)?;
        let approvals = self.approvals(at).iter().copied();
        let approvals = approvals.filter(|approval| seen.binary_search(approval).is_ok());
        let approvals = approvals.filter(|approval| self.stands(view, *approval).is_ok());
        if self.is_approved(at, approvals) { Ok(()) } else { Err(Refusal::Unapproved) }
    }

    /// Returns the changes that approve one.
    pub(super) fn approvals(&self, at: usize) -> &[usize] {
        self.approvals.get(&self.order.change(at).hash()).map_or(&[], Vec::as_slice)
    }

    /// Returns whether these approvals are enough for a change, both by the threshold that its signer saw and by the threshold that the
    /// last necessary approver saw. An admin's signature counts as its approval.
    pub(super) fn is_approved(&self, at: usize, approvals: impl Iterator<Item = usize>) -> bool {
        let Ok(standing) = &self.standings[at] else { return false };
        let signers = usize::from(standing.by_admin);
        if signers >= usize::from(standing.needs) {
            return true;
        }
        // Count by first keys, so an admin who replaces its key cannot approve twice.
        let mut thresholds = BTreeMap::<KeyHash, u8>::new();
        for approval in approvals {
            let Ok(approval) = &self.standings[approval] else { continue };
            if approval.rank.origin != standing.rank.origin {
                let least = thresholds.entry(approval.rank.origin).or_insert(approval.threshold);
                *least = approval.threshold.min(*least);
            }
        }
        let mut thresholds: Vec<_> = thresholds.into_values().collect();
        thresholds.sort_unstable();
        let mut approvers = thresholds.into_iter().zip(signers + 1..);
        approvers.any(|(threshold, count)| count >= usize::from(threshold.max(standing.needs)))
    }
}

/// Returns the key that a change ends, and the last valid change of that key.
pub(super) fn ends(action: &Action) -> Option<(KeyHash, Option<ChangeHash>)> {
    match action {
        Action::Revoke(Revocation { key, last, .. }) => Some((*key, *last)),
        Action::Rotate(Rotation { old, last, .. }) => Some((*old, *last)),
        _ => None,
    }
}
