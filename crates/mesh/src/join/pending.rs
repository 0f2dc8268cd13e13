//! The joiners that wait until an operator approves them.

#![cfg_attr(not(test), deny(clippy::arithmetic_side_effects, clippy::indexing_slicing))]

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use adit_engine::UnixTime;

use crate::roster::Label;
use crate::session::KeyHash;

/// The number of joiners that wait at the same time.
pub const MAX_PENDING: usize = 32;

/// The number of joiners that wait with one invitation. It is more than one, so that a thief who uses the token first does not lock out its
/// owner.
pub const MAX_PER_INVITATION: usize = 4;

/// The number of remembered refusals.
const MAX_REFUSED: usize = 64;

/// The time after its last request at which a joiner no longer counts as waiting.
const SILENT: Duration = Duration::from_secs(60);

/// A waiting joiner with a valid secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PendingJoiner {
    /// The hash of the key that it has proved.
    pub key: KeyHash,
    /// Its future name.
    pub name: Label,
    /// The invitation that it uses.
    pub secret_hash: [u8; 32],
    /// The time of its first request.
    pub since: UnixTime,
    /// The time of its last request.
    asked: UnixTime,
}

/// Counts the outcomes of joiners that need an approval.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct PendingCounters {
    /// Joiners for which there was no room.
    pub full: u64,
    /// Joiners that stopped asking.
    pub gave_up: u64,
    /// Joiners that the operator refused.
    pub refused: u64,
}

/// The reason why a joiner cannot wait.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum NotPending {
    /// Too many joiners wait.
    Full,
    /// The operator refused this key.
    Refused,
}

/// All joiners that wait.
#[derive(Clone, Debug, Default)]
pub struct Pending {
    by_key: BTreeMap<KeyHash, PendingJoiner>,
    refused: VecDeque<KeyHash>,
    /// A joiner that has not been reported yet.
    new: Option<KeyHash>,
    counters: PendingCounters,
}

impl Pending {
    /// Returns the joiners that wait.
    pub fn iter(&self, now: UnixTime) -> impl Iterator<Item = &PendingJoiner> {
        self.by_key.values().filter(move |it| !is_silent(it, now))
    }

    /// Returns the counters.
    pub fn counters(&self) -> PendingCounters {
        self.counters
    }

    /// Returns a joiner that has begun to wait since the last call.
    pub(crate) fn take_new(&mut self) -> Option<KeyHash> {
        self.new.take()
    }

    /// Adds a joiner, or records that it still waits.
    pub(super) fn ask(
        &mut self,
        key: KeyHash,
        name: Label,
        secret_hash: [u8; 32],
        now: UnixTime,
    ) -> Result<(), NotPending> {
        if self.refused.contains(&key) {
            return Err(NotPending::Refused);
        }
        let before = self.by_key.len();
        self.by_key.retain(|_, it| !is_silent(it, now));
        let gone = before.saturating_sub(self.by_key.len()) as u64;
        self.counters.gave_up = self.counters.gave_up.saturating_add(gone);
        if let Some(known) = self.by_key.get_mut(&key) {
            (known.name, known.secret_hash, known.asked) = (name, secret_hash, now);
            return Ok(());
        }
        let same = self.by_key.values().filter(|it| it.secret_hash == secret_hash).count();
        if self.by_key.len() >= MAX_PENDING || same >= MAX_PER_INVITATION {
            self.counters.full = self.counters.full.saturating_add(1);
            return Err(NotPending::Full);
        }
        self.by_key.insert(key, PendingJoiner { key, name, secret_hash, since: now, asked: now });
        self.new = Some(key);
        Ok(())
    }

    /// Returns a joiner that waits.
    pub fn get(&self, key: &KeyHash, now: UnixTime) -> Option<&PendingJoiner> {
        self.by_key.get(key).filter(|it| !is_silent(it, now))
    }

    /// Removes an admitted joiner.
    pub(crate) fn remove(&mut self, key: &KeyHash) {
        self.by_key.remove(key);
    }

    /// Refuses a joiner permanently. Returns whether it waited.
    pub(crate) fn refuse(&mut self, key: &KeyHash) -> bool {
        let waited = self.by_key.remove(key).is_some();
        if waited {
            if self.refused.len() >= MAX_REFUSED {
                self.refused.pop_front();
            }
            self.refused.push_back(*key);
            self.counters.refused = self.counters.refused.saturating_add(1);
        }
        waited
    }
}

fn is_silent(joiner: &PendingJoiner, now: UnixTime) -> bool {
    now.0.saturating_sub(joiner.asked.0) > SILENT.as_secs()
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: UnixTime = UnixTime(1_800_000_000);

    fn after(seconds: u64) -> UnixTime {
        UnixTime(NOW.0 + seconds)
    }

    fn ask(
        pending: &mut Pending,
        n: u8,
        invitation: u8,
        now: UnixTime,
    ) -> Result<bool, NotPending> {
        pending.ask([n; 32], Label::new("laptop").unwrap(), [invitation; 32], now)?;
        Ok(pending.take_new().is_some())
    }

    #[test]
    fn a_joiner_waits_while_it_asks() {
        let mut pending = Pending::default();
        assert_eq!(ask(&mut pending, 1, 1, NOW), Ok(true));
        assert_eq!(ask(&mut pending, 1, 1, after(60)), Ok(false));
        assert_eq!(pending.get(&[1; 32], after(120)).unwrap().since, NOW);
        assert!(pending.get(&[1; 32], after(121)).is_none());
        assert_eq!(pending.iter(after(121)).count(), 0);
        assert_eq!(ask(&mut pending, 1, 1, after(121)), Ok(true), "it waits again");
        assert_eq!(pending.counters().gave_up, 1);
    }

    #[test]
    fn joiners_with_one_invitation_are_limited_and_make_room() {
        let mut pending = Pending::default();
        for n in 0..MAX_PER_INVITATION as u8 {
            assert_eq!(ask(&mut pending, n, 1, after(n.into())), Ok(true));
        }
        assert_eq!(ask(&mut pending, 99, 1, after(9)), Err(NotPending::Full));
        assert_eq!(ask(&mut pending, 99, 2, after(9)), Ok(true), "another invitation");
        assert_eq!(ask(&mut pending, 0, 1, after(9)), Ok(false), "one that waits");
        assert_eq!(ask(&mut pending, 98, 1, after(62)), Ok(true), "the second one has gone");
        assert_eq!(pending.counters().full, 1);
    }

    #[test]
    fn joiners_are_limited_in_all() {
        let mut pending = Pending::default();
        for n in 0..MAX_PENDING as u8 {
            assert_eq!(ask(&mut pending, n, n, NOW), Ok(true));
        }
        assert_eq!(ask(&mut pending, 99, 99, NOW), Err(NotPending::Full));
    }

    #[test]
    fn a_refused_joiner_does_not_wait_again() {
        let mut pending = Pending::default();
        ask(&mut pending, 1, 1, NOW).unwrap();
        assert!(pending.refuse(&[1; 32]) && !pending.refuse(&[2; 32]));
        assert_eq!(ask(&mut pending, 1, 1, NOW), Err(NotPending::Refused));
        assert_eq!(ask(&mut pending, 2, 1, NOW), Ok(true), "another key");
        for n in 0..MAX_REFUSED as u8 {
            ask(&mut pending, 100 + n, 100 + n, NOW).unwrap();
            pending.refuse(&[100 + n; 32]);
        }
        assert_eq!(pending.refused.len(), MAX_REFUSED);
    }
}
