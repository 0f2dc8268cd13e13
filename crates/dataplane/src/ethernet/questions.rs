//! Stations that the control plane must allow (`learn-address`).
//!
//! The control plane is asked once about each new station of a peer, and about one that moves to another peer. Until it
//! allows the station, the station's frames are dropped. After a refusal they are dropped for a while, and then it is
//! asked again.

use std::collections::HashMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::Duration;

use adit_engine::{Instant, PeerId};
use adit_wire::ethernet::Mac;

/// The maximum number of stations of one peer that wait for an answer or were refused.
const MAX_QUESTIONS: usize = 64;

/// The time after which the control plane is asked again about a refused station.
const REFUSED_FOR: Duration = Duration::from_secs(10);

/// The stations that wait for an answer or were refused. Read once per flow and burst of a station that is not allowed,
/// and written when there is a new question or an answer.
#[derive(Debug, Default)]
pub(crate) struct StationQuestions(RwLock<HashMap<PeerId, Vec<Question>>>);

#[derive(Debug)]
struct Question {
    mac: Mac,
    /// When the station was refused; `None` while the answer is pending.
    refused: Option<Instant>,
}

impl Question {
    fn is_settled(&self, now: Instant) -> bool {
        self.refused.is_none_or(|at| now.since(at) < REFUSED_FOR)
    }
}

impl StationQuestions {
    /// Returns whether the control plane must be asked about a station now. `alive` returns whether the peer is still in
    /// the table of peers.
    pub(crate) fn ask(
        &self,
        mac: Mac,
        peer: PeerId,
        now: Instant,
        alive: impl Fn() -> bool,
    ) -> bool {
        if !may_ask(&self.read(), mac, peer, now) {
            return false;
        }
        let mut all = self.write();
        // Another worker may have asked while this one waited for the lock.
        if !may_ask(&all, mac, peer, now) || !alive() {
            return false;
        }
        let questions = all.entry(peer).or_default();
        questions.retain(|question| question.is_settled(now));
        questions.push(Question { mac, refused: None });
        true
    }

    /// Records the answer about a station.
    pub(crate) fn answer(&self, mac: Mac, peer: PeerId, allowed: bool, now: Instant) {
        let mut all = self.write();
        let Some(questions) = all.get_mut(&peer) else { return };
        if allowed {
            questions.retain(|question| question.mac != mac);
        } else if let Some(question) = questions.iter_mut().find(|question| question.mac == mac) {
            question.refused = Some(now);
        }
        if questions.is_empty() {
            all.remove(&peer);
        }
    }

    /// Forgets the questions about a peer's stations.
    pub(crate) fn remove(&self, peer: PeerId) {
        self.write().remove(&peer);
    }

    fn read(&self) -> RwLockReadGuard<'_, HashMap<PeerId, Vec<Question>>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, HashMap<PeerId, Vec<Question>>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

fn may_ask(all: &HashMap<PeerId, Vec<Question>>, mac: Mac, peer: PeerId, now: Instant) -> bool {
    let Some(questions) = all.get(&peer) else { return true };
    let settled = || questions.iter().filter(|question| question.is_settled(now));
    settled().all(|question| question.mac != mac) && settled().count() < MAX_QUESTIONS
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: PeerId = PeerId(1);
    const B: PeerId = PeerId(2);

    fn mac(number: u32) -> Mac {
        let [a, b, c, d] = number.to_be_bytes();
        Mac([2, 0, a, b, c, d])
    }

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(0) + Duration::from_secs(seconds)
    }

    fn ask(questions: &StationQuestions, station: u32, peer: PeerId, seconds: u64) -> bool {
        questions.ask(mac(station), peer, at(seconds), || true)
    }

    #[test]
    fn each_station_of_each_peer_is_asked_about_once_until_the_answer() {
        let questions = StationQuestions::default();
        assert!(ask(&questions, 1, A, 0));
        assert!(!ask(&questions, 1, A, 1000));
        assert!(ask(&questions, 2, A, 0) && ask(&questions, 1, B, 0));
        questions.answer(mac(1), A, true, at(0));
        assert!(ask(&questions, 1, A, 0), "it may move away and come back");
        questions.answer(mac(1), B, false, at(0));
        assert!(!ask(&questions, 1, B, 9));
        assert!(ask(&questions, 1, B, 10));
        questions.remove(A);
        assert!(ask(&questions, 2, A, 10), "of the next peer with this number");
        assert!(!questions.ask(mac(7), A, at(10), || false), "a peer that is gone");
        assert!(ask(&questions, 7, A, 10));
    }

    #[test]
    fn a_peer_that_makes_addresses_up_causes_few_questions() {
        let questions = StationQuestions::default();
        let asked = (0..10_000).filter(|n| ask(&questions, *n, A, 0)).count();
        assert_eq!(asked, MAX_QUESTIONS);
        // A full list is not locked for writing.
        let reading = questions.read();
        assert!(!ask(&questions, 20_000, A, 0));
        drop(reading);
        assert!(ask(&questions, 0, B, 0), "another peer");
        (0..10_000).for_each(|n| questions.answer(mac(n), A, false, at(0)));
        assert!(!ask(&questions, 20_000, A, 9));
        assert!(ask(&questions, 20_000, A, 10));
    }
}
