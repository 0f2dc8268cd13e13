//! Connections to an end that listens, until one proves that it belongs to the other end.
//!
//! The proof is an authentic and new packet on the connection. Until one arrives, the connection
//! waits in this table. It takes nothing away from the connection in use and consumes few
//! resources.

use std::collections::VecDeque;
use std::net::IpAddr;
use std::time::Duration;

use adit_engine::{Instant, Link};

/// The maximum number of waiting connections.
const MAX_WAITING: usize = 16;
/// The maximum number of waiting connections from one address or /64, with room for the other end's earlier attempts.
const MAX_OF_ONE: usize = 4;
/// The share of one /48, as a multiple of an address's share.
const SITE: usize = 2;
/// The age up to which a newcomer from another network cannot displace a connection.
const PROTECTED: Duration = Duration::from_secs(5);

/// The place for a newcomer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Vacancy {
    /// A place is free.
    Free,
    /// The place of the entry with this index.
    InPlaceOf(usize),
    /// The table is full.
    None,
}

/// One of the entries among which a newcomer needs a place.
#[derive(Copy, Clone, Debug)]
pub(super) struct Occupant {
    pub(super) link: Link,
    pub(super) since: Instant,
    /// Whether its address is proven and a handshake has begun.
    pub(super) proven: bool,
}

impl Vacancy {
    /// Finds a place among the entries, which are ordered by age, the oldest first. Their number is
    /// limited in total and per address. If a network has used up its share, its newcomer replaces
    /// its own oldest entry. In a full table a newcomer replaces the oldest entry that has proven
    /// nothing, or else the oldest of all entries unless it is still young. So unauthenticated
    /// senders cannot evict a handshake before it has had time to finish.
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

/// Returns whether two addresses are the same or, for IPv6, have a prefix of this length in common.
fn is_near(a: IpAddr, b: IpAddr, length: u32) -> bool {
    match (a.to_canonical(), b.to_canonical()) {
        (IpAddr::V6(a), IpAddr::V6(b)) => (u128::from(a) ^ u128::from(b)).leading_zeros() >= length,
        (a, b) => a == b,
    }
}

/// The error for a full table.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) struct QueueFull;

#[derive(Debug)]
pub(super) struct PendingStreams {
    /// The connections with the times of their arrival, the oldest first.
    waiting: VecDeque<(Link, Instant)>,
    patience: Duration,
}

impl PendingStreams {
    /// Creates a table in which a connection may wait for up to `patience`.
    pub(super) fn new(patience: Duration) -> Self {
        Self { waiting: VecDeque::new(), patience }
    }

    /// Admits a connection. Returns the connection that must end to make room for it. `proven`
    /// returns whether a handshake has begun on a connection.
    pub(super) fn admit(
        &mut self,
        now: Instant,
        link: Link,
        proven: impl Fn(Link) -> bool,
    ) -> Result<Option<Link>, QueueFull> {
        let there: Vec<Occupant> = self
            .waiting
            .iter()
            .map(|&(link, since)| Occupant { link, since, proven: proven(link) })
            .collect();
        let there = there.iter().copied();
        let gone = match Vacancy::find(now, link, there, (MAX_WAITING, MAX_OF_ONE)) {
            Vacancy::Free => None,
            Vacancy::InPlaceOf(at) => self.waiting.remove(at),
            Vacancy::None => return Err(QueueFull),
        };
        self.waiting.push_back((link, now));
        Ok(gone.map(|(link, _)| link))
    }

    /// Removes a connection, and returns whether it was present.
    pub(super) fn remove(&mut self, link: Link) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|(waiting, _)| *waiting != link);
        self.waiting.len() != before
    }

    /// Returns whether a connection is present.
    pub(super) fn contains(&self, link: Link) -> bool {
        self.waiting.iter().any(|(waiting, _)| *waiting == link)
    }

    /// Removes the connection that has waited longest.
    pub(super) fn pop(&mut self) -> Option<Link> {
        self.waiting.pop_front().map(|(link, _)| link)
    }

    /// Removes a connection that has waited too long.
    pub(super) fn expired(&mut self, now: Instant) -> Option<Link> {
        let (_, since) = self.waiting.front()?;
        if *since + self.patience > now { None } else { self.pop() }
    }

    /// Returns when the next connection will have waited too long.
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

    fn admit(
        pending: &mut PendingStreams,
        seconds: u64,
        link: Link,
    ) -> Result<Option<Link>, QueueFull> {
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
        // A handshake has begun on the first three.
        let begun = |link: Link| link.remote().ip() < IpAddr::from([192, 0, 2, 3]);
        assert_eq!(pending.admit(at(11), link(20, 20), begun), Ok(Some(link(3, 3))));
        // A handshake has begun on all connections.
        assert_eq!(pending.admit(at(14), link(21, 21), |_| true), Err(QueueFull));
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
