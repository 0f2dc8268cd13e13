//! Budgets for unauthenticated senders, one for each network that their packets claim to come from.
//!
//! OpenVPN has one global counter, so a single attacker who stays at the limit locks out all
//! clients. Here each /32 and /64 has its own bucket, in a table of fixed size. A part of the table
//! uses memory only after a packet has charged one of its buckets.

use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;
use std::time::Duration;

use adit_engine::{Instant, Network, Rate, TokenBucket};

/// The number of buckets. Networks with the same hash share one.
const BUCKETS: usize = 16_384;
/// The number of buckets that are allocated together, which fill a page of 4 KiB.
const SHELF: usize = 512;
/// The time in which an empty bucket refills.
const REFILL: Duration = Duration::from_secs(10);

/// A fixed table of token buckets.
#[derive(Debug)]
pub(crate) struct AddressLimiter<H = RandomState> {
    shelves: [Option<Box<[TokenBucket; SHELF]>>; BUCKETS / SHELF],
    hasher: H,
    rate: Rate,
}

impl AddressLimiter<RandomState> {
    // The hash key comes from the system and not from the engine's seed. It only determines which
    // networks share a bucket, and an attacker must not be able to predict that.
    /// Creates buckets with this capacity each.
    pub(crate) fn new(burst: u32) -> Self {
        Self::with_rate(Rate::new(burst.into(), REFILL))
    }

    /// Creates buckets of this rate each.
    pub(crate) fn with_rate(rate: Rate) -> Self {
        Self { shelves: NONE, hasher: RandomState::new(), rate }
    }
}

const NONE: [Option<Box<[TokenBucket; SHELF]>>; BUCKETS / SHELF] =
    [const { None }; BUCKETS / SHELF];

impl<H: BuildHasher> AddressLimiter<H> {
    fn place(&self, address: IpAddr) -> (usize, usize) {
        let at = self.hasher.hash_one(Network::of(address)) as usize % BUCKETS;
        (at / SHELF, at % SHELF)
    }

    /// Returns the bucket of `address`, unless its shelf is in its initial state.
    fn known(&self, address: IpAddr) -> Option<&TokenBucket> {
        let (shelf, at) = self.place(address);
        self.shelves.get(shelf)?.as_ref()?.get(at)
    }

    /// Returns the bucket of `address`, and allocates its shelf if necessary.
    fn bucket(&mut self, address: IpAddr) -> Option<&TokenBucket> {
        let (shelf, at) = self.place(address);
        let shelf = self.shelves.get_mut(shelf)?;
        shelf.get_or_insert_with(|| Box::new([const { TokenBucket::new() }; SHELF])).get(at)
    }

    /// Releases the memory of shelves whose buckets are back in their initial state, because
    /// everything has been paid back.
    pub(crate) fn release_memory(&mut self, now: Instant) {
        for shelf in &mut self.shelves {
            *shelf = shelf.take().filter(|shelf| !shelf.iter().all(|bucket| bucket.is_full(now)));
        }
    }

    /// Returns whether the bucket of `address` allows one more answer, and charges the bucket if it
    /// does.
    pub(crate) fn allow(&mut self, now: Instant, address: IpAddr) -> bool {
        let rate = self.rate;
        self.bucket(address).is_some_and(|bucket| bucket.take_whole(now, rate).is_ok())
    }

    /// Returns whether the bucket of `address` is used up.
    pub(crate) fn is_used_up(&self, now: Instant, address: IpAddr) -> bool {
        self.known(address).is_some_and(|bucket| bucket.next_whole(now, self.rate) > now)
    }

    /// Refunds an answer that led to a session.
    pub(crate) fn refund(&self, address: IpAddr) {
        if let Some(bucket) = self.known(address) {
            bucket.refund(self.rate);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::hash::{BuildHasherDefault, DefaultHasher};

    fn limiter() -> AddressLimiter<BuildHasherDefault<DefaultHasher>> {
        AddressLimiter { shelves: NONE, hasher: Default::default(), rate: Rate::new(10, REFILL) }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_attacker_at_the_limit_locks_out_only_its_own_network() {
        let mut l = limiter();
        let now = Instant::from_nanos(0) + Duration::from_secs(1000);
        assert_eq!((0..100).filter(|_| l.allow(now, ip("192.0.2.1"))).count(), 10);
        assert!(l.allow(now, ip("192.0.2.2")));
        assert_eq!((0..100).filter(|_| l.allow(now, ip("2001:db8::1"))).count(), 10);
        assert!(!l.allow(now, ip("2001:db8::ffff")), "the same /64");
        assert!(l.allow(now, ip("2001:db8:0:1::1")));
    }

    #[test]
    fn buckets_drain_with_time_and_by_refund() {
        let mut l = limiter();
        let now = Instant::from_nanos(0) + Duration::from_secs(1000);
        while l.allow(now, ip("192.0.2.1")) {}
        l.refund(ip("192.0.2.1"));
        assert!(l.allow(now, ip("192.0.2.1")));
        assert!(!l.allow(now + Duration::from_millis(900), ip("192.0.2.1")));
        assert!(l.allow(now + Duration::from_millis(1000), ip("192.0.2.1")));
        assert!(!l.allow(now + Duration::from_millis(1000), ip("192.0.2.1")));
    }

    #[test]
    fn memory_is_given_back_once_all_is_paid_back_without_more_answers_for_anyone() {
        let mut l = limiter();
        let now = Instant::from_nanos(0) + Duration::from_secs(1000);
        let taken = |l: &AddressLimiter<_>| l.shelves.iter().flatten().count();
        assert_eq!(taken(&l), 0);
        while l.allow(now, ip("192.0.2.1")) {}
        l.release_memory(now);
        assert_eq!(taken(&l), 1);
        assert!(!l.allow(now, ip("192.0.2.1")), "what was taken is not forgotten");
        l.release_memory(now + Duration::from_millis(9_999));
        assert_eq!(taken(&l), 1);
        l.release_memory(now + Duration::from_secs(10));
        assert_eq!(taken(&l), 0);
        assert!((0..20_000_u32).all(|n| l.allow(now, IpAddr::V4(n.into()))));
        assert_eq!(taken(&l), BUCKETS / SHELF, "bounded");
    }
}
