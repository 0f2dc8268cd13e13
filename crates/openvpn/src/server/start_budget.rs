//! The rate at which handshakes may start, and the rule that each cookie starts at most one.

use std::collections::{HashSet, VecDeque};
use std::net::IpAddr;
use std::time::Duration;

use adit_engine::{AddressQuota, Instant};

use crate::packet::SessionId;

/// The number of handshakes that may start in any [`WINDOW`]; those that led to a session are
/// refunded.
const MAX_STARTS: usize = 5000;
/// The number of remaining starts that entitle a network to one handshake. An IPv4 address or a /64
/// can start 500.
const LEFT_PER_START: usize = 9;
/// The period in which starts are counted.
const WINDOW: Duration = Duration::from_secs(10);
/// The maximum number of used cookies that are recorded.
const MAX_USED: usize = 16_384;

/// The budget for handshakes from proven addresses. It exists because each handshake costs the
/// single control thread at least a signature.
#[derive(Debug)]
pub(crate) struct StartBudget {
    shares: AddressQuota,
    /// The starts, oldest first.
    started: VecDeque<(Instant, IpAddr)>,
}

impl StartBudget {
    pub(crate) fn new() -> Self {
        Self { shares: AddressQuota::new(MAX_STARTS, LEFT_PER_START), started: VecDeque::new() }
    }

    /// Returns whether a handshake from this address may start, and counts it if so.
    pub(crate) fn start(&mut self, now: Instant, address: IpAddr) -> bool {
        self.expire(now);
        let starts = self.shares.take(address);
        if starts {
            self.started.push_back((now, address));
        }
        starts
    }

    /// Refunds a start that led to a session.
    pub(crate) fn refund(&mut self, address: IpAddr) {
        if let Some(at) = self.started.iter().rposition(|(_, started)| *started == address) {
            self.started.remove(at);
            self.shares.release(address);
        }
    }

    fn expire(&mut self, now: Instant) {
        while let Some((at, address)) = self.started.front()
            && *at + WINDOW <= now
        {
            self.shares.release(*address);
            self.started.pop_front();
        }
    }

    /// Shrinks the tables to their contents.
    pub(crate) fn release_memory(&mut self, now: Instant) {
        self.expire(now);
        self.started.shrink_to_fit();
        self.shares.shrink_to_fit();
    }
}

/// The cookies that have started a handshake, until they expire.
///
/// A full table evicts the oldest cookie. That cookie could start another handshake, for which its
/// network's [`StartBudget`] is charged. No client is refused for this reason.
#[derive(Debug)]
pub(crate) struct UsedCookies {
    used: HashSet<SessionId>,
    /// The cookies, oldest first, with their expiry times.
    order: VecDeque<(Instant, SessionId)>,
    lifetime: Duration,
    forgotten: u64,
}

impl UsedCookies {
    /// Creates a table that keeps each cookie for its lifetime.
    pub(crate) fn new(lifetime: Duration) -> Self {
        Self { used: HashSet::new(), order: VecDeque::new(), lifetime, forgotten: 0 }
    }

    /// Returns whether a cookie has started a handshake.
    pub(crate) fn contains(&self, cookie: SessionId) -> bool {
        self.used.contains(&cookie)
    }

    /// Records a cookie.
    pub(crate) fn insert(&mut self, now: Instant, cookie: SessionId) {
        self.expire(now);
        if !self.used.insert(cookie) {
            return;
        }
        self.order.push_back((now + self.lifetime, cookie));
        if self.order.len() > MAX_USED
            && let Some((_, oldest)) = self.order.pop_front()
        {
            self.used.remove(&oldest);
            self.forgotten = self.forgotten.saturating_add(1);
        }
    }

    /// Returns the number of cookies that a full table evicted before they expired.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn expire(&mut self, now: Instant) {
        while let Some((until, cookie)) = self.order.front()
            && *until <= now
        {
            self.used.remove(cookie);
            self.order.pop_front();
        }
    }

    /// Shrinks the tables to their contents.
    pub(crate) fn release_memory(&mut self, now: Instant) {
        self.expire(now);
        self.used.shrink_to_fit();
        self.order.shrink_to_fit();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Instant {
        Instant::from_nanos(ms * 1_000_000)
    }

    fn ip(n: u32) -> IpAddr {
        IpAddr::V4(n.into())
    }

    #[test]
    fn an_address_has_its_share_of_the_starts_in_a_window() {
        let mut budget = StartBudget::new();
        let started = |budget: &mut StartBudget, ms, n| {
            (0..10_000).filter(|_| budget.start(at(ms), ip(n))).count()
        };
        assert_eq!(started(&mut budget, 1000, 1), 500);
        assert!(budget.start(at(1000), ip(2)), "another address");
        assert_eq!(started(&mut budget, 10_999, 1), 0);
        budget.refund(ip(1));
        assert_eq!(started(&mut budget, 10_999, 1), 1, "one led to a session");
        assert!(started(&mut budget, 11_000, 1) > 490, "the window is over");
    }

    #[test]
    fn all_starts_are_bounded_and_many_networks_leave_some() {
        let mut budget = StartBudget::new();
        let started = (0..100_000).filter(|n| budget.start(at(0), ip(*n))).count();
        assert_eq!((started, budget.started.len()), (MAX_STARTS, MAX_STARTS));
        let mut budget = StartBudget::new();
        (0..30).for_each(|n| while budget.start(at(0), ip(n)) {});
        assert!((100..200).all(|n| budget.start(at(0), ip(n))));
        budget.release_memory(at(60_000));
        assert_eq!((budget.shares.total(), budget.started.capacity()), (0, 0));
    }

    #[test]
    fn used_cookies_are_known_until_they_expire_within_a_bound() {
        let mut used = UsedCookies::new(Duration::from_secs(90));
        let cookie = |n: u64| SessionId(n.to_be_bytes());
        used.insert(at(0), cookie(1));
        used.insert(at(10), cookie(1));
        assert!(used.contains(cookie(1)) && !used.contains(cookie(2)));
        used.insert(at(89_999), cookie(2));
        assert!(used.contains(cookie(1)));
        used.insert(at(90_000), cookie(3));
        assert!(!used.contains(cookie(1)) && used.contains(cookie(2)));
        assert_eq!(used.forgotten(), 0);
        let many = 20_000;
        (10..10 + many).for_each(|n| used.insert(at(90_000), cookie(n)));
        assert_eq!((used.used.len(), used.order.len()), (MAX_USED, MAX_USED));
        assert_eq!(used.forgotten(), many + 2 - MAX_USED as u64);
        assert!(used.contains(cookie(9 + many)), "the newest are kept");
        used.release_memory(at(500_000));
        assert_eq!((used.used.capacity(), used.order.capacity()), (0, 0));
    }
}
