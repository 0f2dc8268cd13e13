//! The ids of the data channels in our data plane.

use std::collections::HashMap;
use std::ops::RangeInclusive;

use adit_engine::{PeerId, Random};

use super::SessionNumber;

/// The ids of a node's data channels.
#[derive(Debug)]
pub(super) struct ChannelIds {
    /// The ids that further channels may have.
    allowed: RangeInclusive<u32>,
    /// The number of workers. Each gets the packets of the ids that equal its index modulo this number.
    workers: usize,
    /// The sessions of the ids in use; `None` until the data plane has removed the channel.
    in_use: HashMap<PeerId, Option<SessionNumber>>,
}

impl ChannelIds {
    pub(super) fn new(allowed: RangeInclusive<u32>, workers: usize) -> Self {
        Self { allowed, workers: workers.max(1), in_use: HashMap::new() }
    }

    /// Sets the ids that further channels may have.
    pub(super) fn allow(&mut self, ids: RangeInclusive<u32>) {
        self.allowed = ids;
    }

    /// Returns whether at least half of the ids are in use.
    pub(super) fn are_scarce(&self) -> bool {
        self.in_use.len() >= self.count() / 2
    }

    /// Returns the session of a channel that the data plane may still know.
    pub(super) fn session(&self, id: PeerId) -> Option<SessionNumber> {
        self.in_use.get(&id).copied().flatten()
    }

    /// Reserves random ids for the channels of a session, for a different worker each as far as possible. Returns `None`
    /// if there are not enough.
    pub(super) fn reserve(
        &mut self,
        number: SessionNumber,
        count: usize,
        random: &mut Random,
    ) -> Option<Vec<PeerId>> {
        let mut ids: Vec<PeerId> = Vec::new();
        for channel in 0..count {
            let worker = ids.first().map(|first| (first.0 as usize + channel) % self.workers);
            let Some(id) = self.free(worker, random).or_else(|| self.free(None, random)) else {
                self.release(&ids);
                return None;
            };
            self.in_use.insert(id, Some(number));
            ids.push(id);
        }
        Some(ids)
    }

    /// Releases ids that the data plane does not know.
    pub(super) fn release(&mut self, ids: &[PeerId]) {
        for id in ids {
            self.in_use.remove(id);
        }
    }

    /// Keeps the ids of an ended session in use until the data plane has removed its channels.
    pub(super) fn retire(&mut self, ids: &[PeerId]) {
        self.in_use.extend(ids.iter().map(|id| (*id, None)));
    }

    /// Releases an id of [`Self::retire`], whose channel the data plane has removed.
    pub(super) fn removed(&mut self, id: PeerId) {
        if self.in_use.get(&id) == Some(&None) {
            self.in_use.remove(&id);
        }
    }

    /// Shrinks the table to its contents.
    pub(super) fn shrink_to_fit(&mut self) {
        self.in_use.shrink_to_fit();
    }

    /// Returns a free random id: of this worker, or of any worker.
    fn free(&self, worker: Option<usize>, random: &mut Random) -> Option<PeerId> {
        let (first, size) = (*self.allowed.start(), u32::try_from(self.count()).ok()?);
        let start = u64::from(random.below(size));
        let mut candidates = (0..u64::from(size)).filter_map(|n| {
            let offset = u32::try_from(start.saturating_add(n) % u64::from(size)).ok()?;
            Some(PeerId(first.saturating_add(offset)))
        });
        let of_worker =
            |id: &PeerId| worker.is_none_or(|worker| id.0 as usize % self.workers == worker);
        candidates.find(|id| of_worker(id) && !self.in_use.contains_key(id))
    }

    fn count(&self) -> usize {
        let count = self.allowed.end().saturating_sub(*self.allowed.start()).saturating_add(1);
        usize::try_from(count).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SESSION: SessionNumber = SessionNumber(1);

    #[test]
    fn the_ids_of_a_session_are_divided_among_the_workers() {
        let mut random = Random::new([1; 32]);
        let mut ids = ChannelIds::new(100..=199, 4);
        let reserved = ids.reserve(SESSION, 8, &mut random).unwrap();
        let of = |worker: u32| reserved.iter().filter(|id| id.0 % 4 == worker).count();
        assert_eq!([of(0), of(1), of(2), of(3)], [2; 4]);
        assert!(reserved.iter().all(|id| ids.session(*id) == Some(SESSION)));
    }

    #[test]
    fn an_id_of_another_worker_is_better_than_none_and_all_or_none_are_reserved() {
        let mut random = Random::new([1; 32]);
        let mut ids = ChannelIds::new(100..=103, 2);
        assert!(!ids.are_scarce());
        assert_eq!(ids.reserve(SESSION, 5, &mut random), None);
        assert!(!ids.are_scarce(), "nothing stays reserved");
        let mut reserved = ids.reserve(SESSION, 4, &mut random).unwrap();
        reserved.sort();
        assert_eq!(reserved, (100..=103).map(PeerId).collect::<Vec<_>>());
        assert!(ids.are_scarce());
    }

    #[test]
    fn the_id_of_a_removed_channel_is_free_once_the_data_plane_has_removed_it() {
        let mut random = Random::new([1; 32]);
        let mut ids = ChannelIds::new(7..=7, 1);
        ids.reserve(SESSION, 1, &mut random).unwrap();
        ids.removed(PeerId(7));
        assert_eq!(ids.session(PeerId(7)), Some(SESSION), "its session has not ended");
        ids.retire(&[PeerId(7)]);
        assert_eq!(ids.session(PeerId(7)), None);
        assert_eq!(ids.reserve(SESSION, 1, &mut random), None);
        ids.removed(PeerId(7));
        assert_eq!(ids.reserve(SESSION, 1, &mut random), Some(vec![PeerId(7)]));
    }
}
