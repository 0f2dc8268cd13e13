//! Connections to an end that listens, while nobody knows whose they are.
//!
//! A connection is the other end's once something authentic and new came on it. Until then it waits
//! here, beside the one that is in use: it takes nothing from that, and not much from us.

use std::collections::VecDeque;
use std::time::Duration;

use adit_engine::{Instant, Link};

/// Connections that may wait.
const MAX_WAITING: usize = 16;
/// Of them from one address, which is the other end with a former try or two.
const MAX_OF_ONE: usize = 4;

#[derive(Debug)]
pub(super) struct Lobby {
    /// The oldest first, with when it came.
    waiting: VecDeque<(Link, Instant)>,
    patience: Duration,
}

impl Lobby {
    /// One in which a connection may wait for so long.
    pub(super) fn new(patience: Duration) -> Self {
        Self { waiting: VecDeque::new(), patience }
    }

    /// Takes a connection in. Returns the one that has to go for it: the oldest from the same address
    /// if there are many of these, else the oldest of all.
    pub(super) fn admit(&mut self, now: Instant, link: Link) -> Option<Link> {
        let ip = link.remote().ip();
        let same = |(other, _): &(Link, Instant)| other.remote().ip() == ip;
        let crowded = self.waiting.iter().filter(|waiting| same(waiting)).count() >= MAX_OF_ONE;
        let oldest = match crowded {
            true => self.waiting.iter().position(same),
            false => (self.waiting.len() >= MAX_WAITING).then_some(0),
        };
        let gone = oldest.and_then(|at| self.waiting.remove(at));
        self.waiting.push_back((link, now));
        gone.map(|(link, _)| link)
    }

    /// Whether it was here.
    pub(super) fn remove(&mut self, link: Link) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(waiting, _)| *waiting != link);
        self.waiting.len() != before
    }

    /// Whether it is here.
    pub(super) fn contains(&self, link: Link) -> bool {
        self.waiting.iter().any(|(waiting, _)| *waiting == link)
    }

    /// The one that has waited longest.
    pub(super) fn pop(&mut self) -> Option<Link> {
        self.waiting.pop_front().map(|(link, _)| link)
    }

    /// One that has waited too long.
    pub(super) fn expired(&mut self, now: Instant) -> Option<Link> {
        let (_, since) = self.waiting.front()?;
        if *since + self.patience > now { None } else { self.pop() }
    }

    /// When the next one has waited too long.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.waiting.front().map(|(_, since)| *since + self.patience)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(seconds * 1_000_000_000)
    }

    fn link(id: u64, host: u8) -> Link {
        Link::stream(id, ([192, 0, 2, host], 4000).into())
    }

    #[test]
    fn one_address_crowds_out_itself_and_many_the_oldest() {
        let mut lobby = Lobby::new(PATIENCE);
        assert_eq!(lobby.admit(at(0), link(0, 200)), None);
        for id in 1..=4 {
            assert_eq!(lobby.admit(at(id), link(id, 1)), None);
        }
        assert_eq!(lobby.admit(at(5), link(5, 1)), Some(link(1, 1)));
        for id in 6..=16 {
            assert_eq!(lobby.admit(at(id), link(id, id as u8)), None);
        }
        assert_eq!(lobby.admit(at(17), link(17, 17)), Some(link(0, 200)));
        assert_eq!(lobby.waiting.len(), MAX_WAITING);
    }

    #[test]
    fn nobody_waits_for_ever() {
        let mut lobby = Lobby::new(PATIENCE);
        lobby.admit(at(1), link(1, 1));
        lobby.admit(at(2), link(2, 2));
        assert_eq!(lobby.deadline(), Some(at(61)));
        assert_eq!(lobby.expired(at(60)), None);
        assert_eq!(lobby.expired(at(61)), Some(link(1, 1)));
        assert_eq!(lobby.expired(at(61)), None);
        assert!(lobby.remove(link(2, 2)) && !lobby.remove(link(2, 2)));
        assert!(lobby.is_empty() && lobby.deadline().is_none() && lobby.pop().is_none());
    }
}
