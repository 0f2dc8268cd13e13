//! Connections to an end that listens, until one proves to be the other end's.
//!
//! A connection is the other end's once something authentic and new came on it. Until then it waits
//! here, beside the one that is in use: it takes nothing from that, and not much from us.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use adit_engine::{Instant, Link};

/// Connections that may wait.
const MAX_WAITING: usize = 16;
/// Of them from one address or /64, which is the other end with a former try or two.
const MAX_OF_ONE: usize = 4;
/// One /48 may have as much as so many addresses.
const SITE: usize = 2;
/// What is younger is not given up for a newcomer from another network.
const PROTECTED: Duration = Duration::from_secs(5);

/// Where a newcomer finds a place.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Vacancy {
    /// One is free.
    Free,
    /// That of the one with this number.
    InPlaceOf(usize),
    /// Nowhere.
    None,
}

/// One of those among which a newcomer wants a place.
#[derive(Copy, Clone, Debug)]
pub(super) struct Occupant {
    pub(super) link: Link,
    pub(super) since: Instant,
    /// Its address is proven, and a handshake has begun.
    pub(super) proven: bool,
}

impl Vacancy {
    /// Finds a place among what is there, the oldest first, of which there are at most so many in all and of one address. A
    /// network that has its share replaces its own oldest. In a full table a newcomer replaces the oldest that has proven
    /// nothing, or else the oldest of all unless that is still young: strangers push no handshake out before there was
    /// time to finish it.
    pub(super) fn find(
        now: Instant,
        link: Link,
        there: impl Iterator<Item = Occupant> + Clone,
        (most, of_one): (usize, usize),
    ) -> Self {
        let ip = link.remote().ip();
        for (length, share) in [(64, of_one), (48, of_one.saturating_mul(SITE))] {
            let mut same = there
                .clone()
                .enumerate()
                .filter(|(_, other)| is_near(other.link.remote().ip(), ip, length));
            let oldest = same.next();
            if let Some((at, _)) = oldest
                && same.count().saturating_add(1) >= share
            {
                return Self::InPlaceOf(at);
            }
        }
        if there.clone().count() < most {
            return Self::Free;
        }
        let may_go = |other: Occupant| !other.proven || other.since + PROTECTED <= now;
        let unproven = there.clone().position(|other| !other.proven);
        match unproven.or_else(|| there.clone().position(may_go)) {
            Some(at) => Self::InPlaceOf(at),
            None => Self::None,
        }
    }
}

/// Whether two addresses are the same, or of IPv6 have a prefix of this length in common.
fn is_near(a: IpAddr, b: IpAddr, length: u32) -> bool {
    match (a.to_canonical(), b.to_canonical()) {
        (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a) ^ u128::from(b)).leading_zeros() >= length,
        (a, b) => a == b,
    }
}

/// There is no place.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct Full;

#[derive(Debug)]
pub(super) struct PendingStreams {
    /// The oldest first, with when it came.
    waiting: VecDeque<(Link, Instant)>,
    patience: Duration,
}

impl PendingStreams {
    /// One in which a connection may wait for so long.
    pub(super) fn new(patience: Duration) -> Self {
        Self { waiting: VecDeque::new(), patience }
    }

    /// Takes a connection in. Returns the one that has to go for it. `proven` tells on which of them a handshake has begun.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        link: Link,
        proven: impl Fn(Link) -> bool,
    ) -> Result<Option<Link>, Full> {
        let there: Vec<Occupant> = self
            .waiting
            .iter()
            .map(|&(link, since)| Occupant { link, since, proven: proven(link) })
            .collect();
        let there = there.iter().copied();
        let gone = match Vacancy::find(now, link, there, (MAX_WAITING, MAX_OF_ONE)) {
            Vacancy::Free => None,
            Vacancy::InPlaceOf(at) => self.waiting.remove(at),
            Vacancy::None => return Err(Full),
        };
        self.waiting.push_back((link, now));
        Ok(gone.map(|(link, _)| link))
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

    fn admit(pending: &mut PendingStreams, seconds: u64, link: Link) -> Result<Option<Link>, Full> {
        pending.admit(at(seconds), link, |_| false)
    }

    #[test]
    fn one_address_crowds_out_itself_and_many_the_oldest() {
        let mut pending = PendingStreams::new(PATIENCE);
        assert_eq!(admit(&mut pending, 0, link(0, 200)), Ok(None));
        for id in 1..=4 {
            assert_eq!(admit(&mut pending, id, link(id, 1)), Ok(None));
        }
        assert_eq!(admit(&mut pending, 5, link(5, 1)), Ok(Some(link(1, 1))));
        for id in 6..=16 {
            assert_eq!(admit(&mut pending, id, link(id, id as u8)), Ok(None));
        }
        assert_eq!(admit(&mut pending, 17, link(17, 17)), Ok(Some(link(0, 200))));
        assert_eq!(pending.waiting.len(), MAX_WAITING);
    }

    #[test]
    fn a_young_handshake_is_not_pushed_out() {
        let mut pending = PendingStreams::new(PATIENCE);
        for id in 0..16 {
            assert_eq!(admit(&mut pending, 10, link(id, id as u8)), Ok(None));
        }
        // The first three have begun one.
        let begun = |link: Link| link.remote().ip() < IpAddr::from([192, 0, 2, 3]);
        assert_eq!(pending.admit(at(11), link(20, 20), begun), Ok(Some(link(3, 3))));
        // All have.
        assert_eq!(pending.admit(at(14), link(21, 21), |_| true), Err(Full));
        assert_eq!(pending.admit(at(15), link(21, 21), |_| true), Ok(Some(link(0, 0))));
        assert_eq!(pending.waiting.len(), MAX_WAITING);
    }

    #[test]
    fn one_site_of_ipv6_crowds_out_itself_alone() {
        let mut pending = PendingStreams::new(PATIENCE);
        let site = |id: u64| {
            let ip = IpAddr::from([0x2001, 0xdb8, 0, id as u16, 0, 0, 0, 1]);
            Link::stream(id, (ip, 4000).into())
        };
        assert_eq!(admit(&mut pending, 0, link(999, 1)), Ok(None));
        for id in 0..8 {
            assert_eq!(admit(&mut pending, 1, site(id)), Ok(None));
        }
        for id in 8..200 {
            assert_eq!(admit(&mut pending, 2, site(id)), Ok(Some(site(id - 8))));
        }
        assert_eq!(pending.waiting.len(), 9);
    }

    #[test]
    fn no_stranger_waits_for_ever() {
        let mut pending = PendingStreams::new(PATIENCE);
        admit(&mut pending, 1, link(1, 1)).expect("room");
        admit(&mut pending, 2, link(2, 2)).expect("room");
        assert_eq!(pending.deadline(), Some(at(61)));
        assert_eq!(pending.expired(at(60)), None);
        assert_eq!(pending.expired(at(61)), Some(link(1, 1)));
        assert_eq!(pending.expired(at(61)), None);
        assert!(pending.remove(link(2, 2)) && !pending.remove(link(2, 2)));
        assert!(pending.is_empty() && pending.deadline().is_none() && pending.pop().is_none());
    }
}
