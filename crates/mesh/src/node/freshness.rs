//! Whether a node may rely on its roster: which members it has compared it with, and when.
//!
//! A node that was away may have missed that a member was removed, and the removed node may be the first to connect. So before such a node
//! installs routes to a peer, it compares its roster with two members other than that peer. Without an answer it installs them after
//! [`PATIENCE`], and the peer is stale. If a maximum age is set, a peer also loses its routes when the roster has not been compared with
//! any other member for that long, so an isolated pair does not trust each other forever.

use std::time::Duration;

use adit_engine::{Instant, UnixTime};

use super::{Node, NodeEvent, Out};
use crate::session::KeyHash;

/// The time without a comparison after which a node counts as having been away.
pub(super) const AWAY: Duration = Duration::from_secs(600);

/// The time in which other members must answer a node that was away.
pub(super) const PATIENCE: Duration = Duration::from_secs(2);

/// The number of members other than the peer with which a node that was away compares its roster.
const OTHERS: usize = 2;

/// The number of remembered comparisons: enough whichever member is the peer.
const MAX_COMPARED: usize = OTHERS + 1;

/// The minimum time between two [`NodeEvent::Compared`], which cause a write to the disk.
const TELL: Duration = Duration::from_secs(60);

/// The comparisons of a node's roster with other members' rosters.
#[derive(Debug, Default)]
pub(super) struct Freshness {
    /// The members of the last comparisons, latest first.
    compared: Vec<(KeyHash, UnixTime)>,
    check: Check,
    max_age: Option<Duration>,
    told_at: Option<UnixTime>,
}

/// The state of the comparisons after an absence.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
enum Check {
    /// The node was not away, or has compared its roster since.
    #[default]
    None,
    /// The node waits for answers.
    Waiting { since: UnixTime, until: Instant },
    /// The time limit for answers has passed.
    Over { since: UnixTime },
}

/// What a node permits a peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Trust {
    /// Whether it gets routes.
    pub(super) is_open: bool,
    /// Whether too few others have confirmed the roster since this node was away.
    pub(super) is_stale: bool,
    /// Whether the last comparison with another member is too old.
    pub(super) is_expired: bool,
}

#[cfg(test)]
impl Trust {
    /// Permits a peer everything, without a check.
    pub(super) const FULL: Self = Self { is_open: true, is_stale: false, is_expired: false };
}

impl Freshness {
    /// Continues with the comparisons of an earlier run, ignoring those in the future.
    pub(super) fn new(
        mut compared: Vec<(KeyHash, UnixTime)>,
        max_age: Option<Duration>,
        unix: UnixTime,
    ) -> Self {
        compared.retain(|(_, at)| *at <= unix);
        compared.sort_by_key(|(_, at)| std::cmp::Reverse(*at));
        compared.truncate(MAX_COMPARED);
        Self { compared, max_age, ..Self::default() }
    }

    /// Records that the roster is the same as that of a member.
    fn compared(&mut self, with: KeyHash, unix: UnixTime) {
        self.forget(&with);
        self.compared.insert(0, (with, unix));
        self.compared.truncate(MAX_COMPARED);
    }

    /// Forgets a node that is no longer a member.
    fn forget(&mut self, key: &KeyHash) {
        self.compared.retain(|(other, _)| other != key);
    }

    /// Begins a check if the node was away.
    fn connected(&mut self, now: Instant, unix: UnixTime) {
        let waits = matches!(self.check, Check::Waiting { .. });
        let is_recent =
            |(_, at): &(KeyHash, UnixTime)| unix.0.saturating_sub(at.0) < AWAY.as_secs();
        if !waits && !self.compared.iter().any(is_recent) {
            self.check = Check::Waiting { since: unix, until: now + PATIENCE };
        }
    }

    /// Ends the check if its time limit has passed, or if it has compared its roster with enough of `others`, which are
    /// all members except this node.
    fn advance(&mut self, now: Instant, others: usize) {
        let (Check::Waiting { since, .. } | Check::Over { since }) = self.check else { return };
        if self.since(since, None) >= others.min(MAX_COMPARED) {
            self.check = Check::None;
        } else if let Check::Waiting { since, until } = self.check
            && until <= now
        {
            self.check = Check::Over { since };
        }
    }

    /// Returns the number of members other than `peer` that were compared with since a time.
    fn since(&self, since: UnixTime, peer: Option<&KeyHash>) -> usize {
        let is_other = |(key, at): &&(KeyHash, UnixTime)| Some(key) != peer && *at >= since;
        self.compared.iter().filter(is_other).count()
    }

    /// Returns this node's permissions for a peer. `others` is the number of all members except this node.
    fn trust(&self, peer: &KeyHash, unix: UnixTime, others: usize) -> Trust {
        let besides = others.saturating_sub(1);
        let lacks = |since| self.since(since, Some(peer)) < OTHERS.min(besides);
        let (waits, is_stale) = match self.check {
            Check::None => (false, false),
            Check::Waiting { since, .. } => (lacks(since), false),
            Check::Over { since } => (false, lacks(since)),
        };
        let is_expired = besides > 0
            && self.max_age.is_some_and(|age| {
                let since = UnixTime(unix.0.saturating_sub(age.as_secs()));
                self.since(since, Some(peer)) == 0
            });
        Trust { is_open: !waits && !is_expired, is_stale, is_expired }
    }

    /// Returns when the check ends without answers.
    pub(super) fn deadline(&self) -> Option<Instant> {
        match self.check {
            Check::Waiting { until, .. } => Some(until),
            Check::None | Check::Over { .. } => None,
        }
    }

    /// Returns whether permissions may change with time alone.
    pub(super) fn has_timer(&self) -> bool {
        self.max_age.is_some() || self.deadline().is_some()
    }

    /// Returns whether the comparisons should be written to the disk.
    fn is_worth_telling(&mut self, unix: UnixTime) -> bool {
        let early = self.told_at.is_some_and(|at| unix.0.saturating_sub(at.0) < TELL.as_secs());
        if !early {
            self.told_at = Some(unix);
        }
        !early
    }

    /// Forgets comparisons in the future, after the clock was set back.
    pub(super) fn clock_set(&mut self, unix: UnixTime) {
        self.compared.retain(|(_, at)| *at <= unix);
        self.told_at = None;
        if let Check::Waiting { since, .. } | Check::Over { since } = &mut self.check {
            *since = (*since).min(unix);
        }
    }
}

impl Node {
    /// Returns the last comparisons, to be kept across a restart.
    pub fn compared(&self) -> &[(KeyHash, UnixTime)] {
        &self.freshness.compared
    }

    /// Begins a session with a peer, and returns this node's permissions for it.
    pub(super) fn trust_of_new(&mut self, now: Instant, key: &KeyHash) -> Trust {
        self.freshness.connected(now, self.unix(now));
        self.freshness.advance(now, self.others(now));
        self.freshness.trust(key, self.unix(now), self.others(now))
    }

    /// Records that a member has the same roster.
    pub(super) fn has_same_roster(&mut self, now: Instant, key: KeyHash, out: &mut Out) {
        let unix = self.unix(now);
        self.freshness.compared(key, unix);
        if self.freshness.is_worth_telling(unix) {
            out.event(NodeEvent::Compared);
        }
        self.update_trust(now, out);
    }

    pub(super) fn forget_comparison(&mut self, key: &KeyHash) {
        self.freshness.forget(key);
    }

    /// Adds and removes routes to peers, as the comparisons permit.
    pub(super) fn update_trust(&mut self, now: Instant, out: &mut Out) {
        let (unix, others) = (self.unix(now), self.others(now));
        self.freshness.advance(now, others);
        let mut changed = Vec::new();
        for (key, peer) in &mut self.peers {
            let Some(live) = &mut peer.session else { continue };
            let trust = self.freshness.trust(key, unix, others);
            let former = std::mem::replace(&mut live.trust, trust);
            if former != trust {
                changed.push((*key, former.is_open != trust.is_open));
            }
        }
        for (key, _) in changed.iter().filter(|(_, routes)| *routes) {
            self.set_routes(key, out);
        }
        if !changed.is_empty() {
            out.event(NodeEvent::Trust);
        }
    }

    /// Returns the number of all other members.
    fn others(&self, now: Instant) -> usize {
        self.valid_members(now).filter(|key| *key != self.own).count()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: KeyHash = [1; 32];
    const B: KeyHash = [2; 32];
    const C: KeyHash = [3; 32];
    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
    const UNIX: UnixTime = UnixTime(1_800_000_000);

    fn after(seconds: u64) -> UnixTime {
        UnixTime(UNIX.0 + seconds)
    }

    fn fresh(compared: &[(KeyHash, UnixTime)], max_age: Option<u64>) -> Freshness {
        Freshness::new(compared.to_vec(), max_age.map(Duration::from_secs), UNIX)
    }

    #[test]
    fn a_node_that_was_away_needs_two_others_besides_the_peer() {
        let mut it = fresh(&[(A, UnixTime(UNIX.0 - 600))], None);
        it.connected(NOW, UNIX);
        it.compared(A, UNIX);
        it.advance(NOW, 4);
        assert!(!it.trust(&A, UNIX, 4).is_open, "the peer itself");
        it.compared(B, UNIX);
        it.advance(NOW, 4);
        assert!(!it.trust(&A, UNIX, 4).is_open && !it.trust(&B, UNIX, 4).is_open, "one other");
        assert!(it.trust(&C, UNIX, 4).is_open, "two others");
        it.compared(C, UNIX);
        it.advance(NOW, 4);
        assert_eq!(it.trust(&A, UNIX, 4), Trust::FULL);
        assert_eq!(it.check, Check::None);
    }

    #[test]
    fn without_answers_the_node_goes_on_and_the_peer_is_stale() {
        let mut it = fresh(&[], None);
        it.connected(NOW, UNIX);
        it.advance(NOW + PATIENCE - Duration::from_nanos(1), 4);
        assert!(!it.trust(&A, UNIX, 4).is_open);
        it.advance(NOW + PATIENCE, 4);
        let stale = Trust { is_stale: true, ..Trust::FULL };
        assert_eq!(it.trust(&A, after(2), 4), stale);
        it.compared(B, after(9));
        it.compared(C, after(9));
        assert_eq!(it.trust(&A, after(9), 4), Trust::FULL);
        assert_eq!(it.trust(&B, after(9), 4), stale, "only one other");
    }

    #[test]
    fn a_short_absence_and_a_mesh_of_two_need_no_answer() {
        let mut it = fresh(&[(A, UnixTime(UNIX.0 - 599))], None);
        it.connected(NOW, UNIX);
        assert_eq!(it.check, Check::None);
        let mut pair = fresh(&[], None);
        pair.connected(NOW, UNIX);
        assert_eq!(pair.trust(&A, UNIX, 1), Trust::FULL);
    }

    #[test]
    fn a_greatest_age_counts_from_the_last_comparison_with_another_member() {
        let mut it = fresh(&[(B, UNIX)], Some(3600));
        it.compared(A, after(3600));
        assert!(it.trust(&A, after(3600), 3).is_open);
        let cut = it.trust(&A, after(3601), 3);
        assert!(cut.is_expired && !cut.is_open);
        assert!(it.trust(&B, after(3601), 3).is_open, "A is another member for B");
        assert!(it.trust(&A, after(3601), 1).is_open, "there is no other member");
        it.compared(C, after(3700));
        assert!(it.trust(&A, after(3700), 3).is_open);
    }

    #[test]
    fn a_time_that_has_not_come_yet_is_no_comparison() {
        let it = fresh(&[(A, after(1)), (B, UNIX)], None);
        assert_eq!(it.compared, [(B, UNIX)]);
        let mut it = fresh(&[], None);
        it.compared(A, after(100));
        it.clock_set(after(99));
        assert!(it.compared.is_empty());
    }

    #[test]
    fn a_bounded_number_of_members_is_remembered() {
        let mut it = fresh(&[], None);
        for n in 0..9 {
            it.compared([n; 32], after(n.into()));
        }
        assert_eq!(it.compared.len(), MAX_COMPARED);
        assert_eq!(it.compared[0], ([8; 32], after(8)));
    }
}
