//! The limits on the cost that each member may cause this node. They belong to the member and not to its session, so a
//! member that connects again has no more than before.

use std::collections::BTreeMap;
use std::time::Duration;

use adit_engine::{Instant, Rate, TokenBucket};

use crate::session::KeyHash;
use crate::sync::Budget;

/// The budget for one member's records. A relay forwards records of many members, so the burst is large.
const RECORDS: Rate = Rate::new(8000, Duration::from_secs(8));

/// The budget for endpoints that one member signs: one in 10 s on average, and a burst that covers two quick restarts.
const ENDPOINTS: Rate = Rate::one_in(Duration::from_secs(10), 3);

/// How long a member is reported after it exceeded a limit.
const NAMED: Duration = Duration::from_secs(600);

/// The number of members with an entry. Items of members without one are dropped: see [`Limits::untracked`].
const MAX_LIMITED: usize = 16_384;

/// Counts the items of a member that were dropped because it exceeded a limit.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Excess {
    /// Records of all kinds.
    pub records: u64,
    /// Endpoints that the member signed.
    pub endpoints: u64,
    /// Changes that the member sent.
    pub changes: u64,
}

impl Excess {
    /// Returns whether no item was dropped.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

/// The limits of all members.
#[derive(Debug, Default)]
pub(super) struct Limits {
    by_member: BTreeMap<KeyHash, Member>,
    /// Dropped items of members without an entry.
    untracked: u64,
    /// Dropped items of all members.
    total: Excess,
}

#[derive(Debug, Default)]
struct Member {
    records: TokenBucket,
    endpoints: TokenBucket,
    /// The remaining budget for changes, while there is no session.
    sync: Option<Budget>,
    excess: Excess,
    exceeded_at: Option<Instant>,
}

impl Limits {
    /// Charges a record to the member that sent it. Returns whether it may be processed.
    pub(super) fn take_record(&mut self, now: Instant, from: &KeyHash) -> bool {
        let is_allowed = |member: &Member| member.records.take(now, 1, RECORDS);
        self.take(now, from, is_allowed, |excess| &mut excess.records)
    }

    /// Charges an endpoint to the member that signed it. Returns whether it may be used.
    pub(super) fn take_endpoint(&mut self, now: Instant, signer: &KeyHash) -> bool {
        let is_allowed = |member: &Member| member.endpoints.take_whole(now, ENDPOINTS).is_ok();
        self.take(now, signer, is_allowed, |excess| &mut excess.endpoints)
    }

    fn take(
        &mut self,
        now: Instant,
        key: &KeyHash,
        is_allowed: impl FnOnce(&Member) -> bool,
        counter: impl Fn(&mut Excess) -> &mut u64,
    ) -> bool {
        let Some(member) = self.entry(key) else {
            self.untracked = self.untracked.saturating_add(1);
            return false;
        };
        let allowed = is_allowed(member);
        if !allowed {
            self.exceeded(now, key, 1, counter);
        }
        allowed
    }

    fn entry(&mut self, key: &KeyHash) -> Option<&mut Member> {
        if self.by_member.len() >= MAX_LIMITED && !self.by_member.contains_key(key) {
            return None;
        }
        Some(self.by_member.entry(*key).or_default())
    }

    /// Counts changes that exceeded a member's budget.
    pub(super) fn changes_dropped(&mut self, now: Instant, from: &KeyHash, count: u64) {
        if count > 0 {
            self.exceeded(now, from, count, |excess| &mut excess.changes);
        }
    }

    fn exceeded(
        &mut self,
        now: Instant,
        key: &KeyHash,
        count: u64,
        counter: impl Fn(&mut Excess) -> &mut u64,
    ) {
        let total = counter(&mut self.total);
        *total = total.saturating_add(count);
        if let Some(member) = self.entry(key) {
            let own = counter(&mut member.excess);
            *own = own.saturating_add(count);
            member.exceeded_at = Some(now);
        }
    }

    /// Keeps a member's remaining budget for changes until its next session.
    pub(super) fn keep_budget(&mut self, key: &KeyHash, budget: Budget) {
        if let Some(member) = self.entry(key) {
            member.sync = Some(budget);
        }
    }

    /// Returns the budget that was left after the member's last session.
    pub(super) fn take_budget(&mut self, key: &KeyHash) -> Option<Budget> {
        self.by_member.get_mut(key).and_then(|member| member.sync.take())
    }

    /// Forgets a node that is no longer a member.
    pub(super) fn forget(&mut self, key: &KeyHash) {
        self.by_member.remove(key);
    }

    /// Returns the drops of a member, if it exceeded a limit in the last minutes.
    pub(super) fn excess(&self, now: Instant, key: &KeyHash) -> Excess {
        let member = self.by_member.get(key);
        let recent = member.filter(|it| it.exceeded_at.is_some_and(|at| now.since(at) < NAMED));
        recent.map(|member| member.excess).unwrap_or_default()
    }

    /// Returns the drops of all members, and the drops of members without an entry.
    pub(super) fn totals(&self) -> (Excess, u64) {
        (self.total, self.untracked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: KeyHash = [1; 32];
    const B: KeyHash = [2; 32];
    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

    #[test]
    fn records_beyond_the_rate_are_dropped_of_the_member_that_sends_them() {
        let mut limits = Limits::default();
        assert!((0..8000).all(|_| limits.take_record(NOW, &A)));
        assert!(!limits.take_record(NOW, &A));
        assert!(limits.take_record(NOW, &B), "another member");
        assert_eq!(limits.excess(NOW, &A), Excess { records: 1, ..Excess::default() });
        assert!(limits.excess(NOW, &B).is_none());
        assert!(limits.take_record(NOW + Duration::from_millis(1), &A), "a thousand a second");
    }

    #[test]
    fn endpoints_are_limited_to_one_in_ten_seconds() {
        let mut limits = Limits::default();
        assert!((0..3).all(|_| limits.take_endpoint(NOW, &A)));
        assert!(!limits.take_endpoint(NOW + Duration::from_secs(9), &A));
        assert!(limits.take_endpoint(NOW + Duration::from_secs(10), &A));
        assert!(!limits.take_endpoint(NOW + Duration::from_secs(10), &A));
        assert!(limits.take_endpoint(NOW, &B), "another member");
        assert_eq!(limits.excess(NOW, &A).endpoints, 2);
    }

    #[test]
    fn a_member_is_named_for_ten_minutes_after_it_exceeded_a_limit() {
        let mut limits = Limits::default();
        limits.changes_dropped(NOW, &A, 7);
        assert_eq!(limits.excess(NOW + Duration::from_secs(599), &A).changes, 7);
        assert!(limits.excess(NOW + NAMED, &A).is_none());
        assert_eq!(limits.totals().0.changes, 7);
        limits.forget(&A);
        assert!(limits.excess(NOW, &A).is_none());
    }

    #[test]
    fn members_beyond_the_bound_have_no_room() {
        let mut limits = Limits::default();
        for n in 0..MAX_LIMITED {
            let mut key = [7; 32];
            key[..8].copy_from_slice(&n.to_be_bytes());
            assert!(limits.take_record(NOW, &key));
        }
        assert!(!limits.take_record(NOW, &A));
        assert_eq!(limits.totals().1, 1);
        let mut known = [7; 32];
        known[..8].copy_from_slice(&0_usize.to_be_bytes());
        limits.forget(&known);
        assert!(limits.take_record(NOW, &A));
    }
}
