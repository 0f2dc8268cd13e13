//! Limits on failed logins, for each address and for each user name. The more fail, the longer is the pause.

use std::collections::HashMap;
use std::hash::Hash;
use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use adit_engine::Instant;

/// The maximum number of addresses, and of user names, with recent failures.
const MAX_ENTRIES: usize = 4096;
/// The maximum length of a user name that is recorded, in bytes. No user has a longer one.
const MAX_NAME: usize = 64;
/// How long failures are remembered after the last pause.
const MEMORY: Duration = Duration::from_secs(15 * 60);

/// The failures under one user name that cause no pause, and the longest pause. The pause is short, so that an attacker
/// cannot keep a user out for long.
const USER: Bounds = Bounds { free: 5, longest: Duration::from_secs(5 * 60) };
/// The same for one address. Many users may share it.
const ADDRESS: Bounds = Bounds { free: 20, longest: Duration::from_secs(15 * 60) };

#[derive(Copy, Clone, Debug)]
struct Bounds {
    free: u32,
    longest: Duration,
}

/// The recent failures.
#[derive(Debug)]
pub(super) struct LoginLimits {
    addresses: Failures<IpAddr>,
    users: Failures<String>,
}

impl Default for LoginLimits {
    fn default() -> Self {
        Self { addresses: Failures::new(ADDRESS), users: Failures::new(USER) }
    }
}

impl LoginLimits {
    /// Begins an attempt, which counts as a failure until [`Self::succeeded`]. Attempts at the same time therefore cannot
    /// exceed the limit together. Returns the remaining pause if there is one; such an attempt does not count.
    pub(super) fn begin(
        &mut self,
        now: Instant,
        address: Option<IpAddr>,
        user: &str,
    ) -> Result<(), Duration> {
        let (block, user) = (address.map(block), recorded(user));
        let pause = self.users.pause(now, &user);
        let other = block.and_then(|block| self.addresses.pause(now, &block));
        if let Some(pause) = pause.max(other) {
            return Err(pause);
        }
        self.users.fail(now, user);
        if let Some(block) = block {
            self.addresses.fail(now, block);
        }
        Ok(())
    }

    /// The attempt was not a failure. The user's earlier failures are forgotten; those of the address are not, because
    /// otherwise an attacker with one account could erase the failures of its guesses at other accounts.
    pub(super) fn succeeded(&mut self, now: Instant, address: Option<IpAddr>, user: &str) {
        self.users.entries.remove(&recorded(user));
        self.withdrawn(now, address, user);
    }

    /// The attempt was neither a success nor a failure.
    pub(super) fn withdrawn(&mut self, now: Instant, address: Option<IpAddr>, user: &str) {
        self.users.withdraw(now, &recorded(user));
        if let Some(block) = address.map(block) {
            self.addresses.withdraw(now, &block);
        }
    }

    /// Returns the number of entries that were dropped to make room.
    pub(super) fn dropped(&self) -> u64 {
        self.addresses.dropped.saturating_add(self.users.dropped)
    }
}

/// Returns the network that shares a limit: a single IPv4 address, or a /64 of IPv6.
fn block(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(six) => Ipv6Addr::from_bits(six.to_bits() & (u128::MAX << 64)).into(),
        four => four,
    }
}

/// Cuts an overlong name, so that the table's memory is bounded.
fn recorded(user: &str) -> String {
    let mut end = user.len().min(MAX_NAME);
    while !user.is_char_boundary(end) {
        end = end.saturating_sub(1);
    }
    user.get(..end).unwrap_or_default().to_owned()
}

#[derive(Debug)]
struct Failures<K> {
    entries: HashMap<K, Failure>,
    bounds: Bounds,
    dropped: u64,
}

#[derive(Copy, Clone, Debug)]
struct Failure {
    count: u32,
    /// The end of the pause.
    until: Instant,
}

impl<K: Eq + Hash + Clone> Failures<K> {
    fn new(bounds: Bounds) -> Self {
        Self { entries: HashMap::new(), bounds, dropped: 0 }
    }

    fn pause(&self, now: Instant, key: &K) -> Option<Duration> {
        let left = self.entries.get(key)?.until.since(now);
        (!left.is_zero()).then_some(left)
    }

    fn fail(&mut self, now: Instant, key: K) {
        if !self.entries.contains_key(&key) {
            self.make_room(now);
        }
        let bounds = self.bounds;
        let entry = self.entries.entry(key).or_insert(Failure { count: 0, until: now });
        if now.since(entry.until) > MEMORY {
            entry.count = 0;
        }
        entry.count = entry.count.saturating_add(1);
        entry.until = now + bounds.pause(entry.count);
    }

    fn withdraw(&mut self, now: Instant, key: &K) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        entry.count = entry.count.saturating_sub(1);
        entry.until = now;
        if entry.count == 0 {
            self.entries.remove(key);
        }
    }

    /// Removes what is too old, and otherwise the entry whose pause ends first.
    fn make_room(&mut self, now: Instant) {
        if self.entries.len() < MAX_ENTRIES {
            return;
        }
        self.entries.retain(|_, entry| now.since(entry.until) <= MEMORY);
        if self.entries.len() < MAX_ENTRIES {
            return;
        }
        let first = self.entries.iter().min_by_key(|(_, entry)| (entry.until, entry.count));
        if let Some(key) = first.map(|(key, _)| key.clone()) {
            self.entries.remove(&key);
            self.dropped = self.dropped.saturating_add(1);
        }
    }
}

impl Bounds {
    /// Returns the pause after this many failures: none at first, then 1 s, doubled by each further failure.
    fn pause(self, failures: u32) -> Duration {
        let Some(beyond) = failures.checked_sub(self.free).filter(|beyond| *beyond > 0) else {
            return Duration::ZERO;
        };
        let seconds = 1_u64.checked_shl(beyond.saturating_sub(1)).unwrap_or(u64::MAX);
        Duration::from_secs(seconds.min(self.longest.as_secs()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_nanos(1_000_000_000_000);

    fn ip(text: &str) -> Option<IpAddr> {
        Some(text.parse().unwrap())
    }

    fn at(seconds: u64) -> Instant {
        START + Duration::from_secs(seconds)
    }

    /// Every attempt comes from another address, so only the limit of the user counts.
    #[test]
    fn failures_under_one_name_make_a_growing_pause() {
        let mut limits = LoginLimits::default();
        let mut last = 0;
        let mut attempt = |limits: &mut LoginLimits, seconds| {
            last += 1;
            limits.begin(at(seconds), ip(&format!("192.0.2.{last}")), "alice")
        };
        for _ in 0..5 {
            attempt(&mut limits, 0).unwrap();
        }
        // The sixth failure causes the first pause.
        attempt(&mut limits, 0).unwrap();
        assert_eq!(attempt(&mut limits, 0), Err(Duration::from_secs(1)));
        // Attempts during the pause do not extend it.
        assert_eq!(attempt(&mut limits, 0), Err(Duration::from_secs(1)));
        attempt(&mut limits, 1).unwrap();
        assert_eq!(attempt(&mut limits, 1), Err(Duration::from_secs(2)));
        limits.begin(at(1), ip("192.0.2.250"), "bob").unwrap();
        let mut seconds = 3;
        for _ in 0..20 {
            attempt(&mut limits, seconds).unwrap();
            seconds += 300;
        }
        let longest = attempt(&mut limits, seconds - 300).unwrap_err();
        assert_eq!(longest, Duration::from_secs(300));
        attempt(&mut limits, seconds + 16 * 60).unwrap();
        attempt(&mut limits, seconds + 16 * 60).unwrap();
    }

    /// Every attempt has another name, so only the limit of the address counts.
    #[test]
    fn failures_from_one_address_make_a_pause() {
        for (addresses, other) in [
            (["192.0.2.1", "::ffff:192.0.2.1"], "192.0.2.2"),
            (["2001:db8::1", "2001:db8::ffff:1:2:3"], "2001:db8:0:1::1"),
        ] {
            let mut limits = LoginLimits::default();
            for attempt in 0..21 {
                let address = addresses[attempt % 2];
                limits.begin(START, ip(address), &format!("user{attempt}")).unwrap();
            }
            for address in addresses {
                assert_eq!(limits.begin(START, ip(address), "new"), Err(Duration::from_secs(1)));
            }
            limits.begin(START, ip(other), "new").unwrap();
            // A valid login of an attacker's own account does not end it.
            limits.begin(at(1), ip(addresses[0]), "mallory").unwrap();
            limits.succeeded(at(1), ip(addresses[0]), "mallory");
            limits.begin(at(1), ip(addresses[0]), "new2").unwrap();
            assert!(limits.begin(at(1), ip(addresses[0]), "new3").is_err());
        }
    }

    #[test]
    fn a_success_ends_the_pauses_of_its_user() {
        let mut limits = LoginLimits::default();
        for round in 0..10 {
            for _ in 0..5 {
                limits.begin(START, None, "alice").unwrap();
            }
            limits.begin(START, None, "alice").unwrap();
            assert!(limits.begin(START, None, "alice").is_err(), "{round}");
            limits.succeeded(START, None, "alice");
        }
    }

    #[test]
    fn an_attempt_that_was_withdrawn_does_not_count() {
        let mut limits = LoginLimits::default();
        for _ in 0..100 {
            limits.begin(START, ip("192.0.2.1"), "alice").unwrap();
            limits.withdrawn(START, ip("192.0.2.1"), "alice");
        }
        assert!(limits.users.entries.is_empty() && limits.addresses.entries.is_empty());
    }

    #[test]
    fn the_tables_are_bounded_and_long_names_are_cut() {
        let mut limits = LoginLimits::default();
        for _ in 0..6 {
            limits.begin(START, None, "victim").unwrap();
        }
        for attempt in 0..u32::try_from(MAX_ENTRIES).unwrap() + 100 {
            let address = IpAddr::from(attempt.to_be_bytes());
            limits.begin(START, Some(address), &format!("user{attempt}")).unwrap();
        }
        assert_eq!(limits.users.entries.len(), MAX_ENTRIES);
        assert_eq!(limits.addresses.entries.len(), MAX_ENTRIES);
        assert_eq!(limits.dropped(), 201);
        assert!(limits.begin(START, None, "victim").is_err(), "a flood of names ended the pause");
        assert_eq!(recorded(&"ä".repeat(100)).len(), 64);
        assert_eq!(recorded(&"€".repeat(100)).len(), 63);
    }
}
