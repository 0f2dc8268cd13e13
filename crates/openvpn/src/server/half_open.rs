//! The only state that a server keeps about an unauthenticated sender.
//!
//! A tls-crypt-v2 client older than 2.6 sends its wrapped key only with its reset. The server
//! cannot read its next packet without the key, so it stores the key when the reset arrives, in a
//! small table with few entries per network. Because a single datagram from any address takes an
//! entry, a full table evicts its oldest key for a new one, which does little harm because a client
//! needs its key only for one round trip.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::{AddressQuota, Instant};

use crate::packet::SessionId;
use crate::wrap::Wrapper;

/// The maximum number of keys kept at once.
const MAX_HALF_OPEN: usize = 256;
/// The number of free entries that entitle a network to one more key. A /32 or /64 can have 16 keys
/// in an otherwise empty table.
const FREE_PER_KEY: usize = 15;

type Key = (SocketAddr, SessionId);

#[derive(Debug)]
pub(crate) struct HalfOpen {
    entries: HashMap<Key, (Instant, Wrapper)>,
    shares: AddressQuota,
    lifetime: Duration,
    forgotten: u64,
}

impl HalfOpen {
    pub(crate) fn new(lifetime: Duration) -> Self {
        let shares = AddressQuota::new(MAX_HALF_OPEN, FREE_PER_KEY);
        Self { entries: HashMap::new(), shares, lifetime, forgotten: 0 }
    }

    /// Keeps a client's key. Returns false if its network has too many.
    pub(crate) fn insert(&mut self, now: Instant, key: Key, wrapper: Wrapper) -> bool {
        self.expire(now);
        if self.entries.contains_key(&key) {
            self.entries.insert(key, (now + self.lifetime, wrapper));
            return true;
        }
        if self.entries.len() >= MAX_HALF_OPEN {
            let oldest = self.entries.iter().min_by_key(|(_, (until, _))| *until);
            if let Some(oldest) = oldest.map(|(key, _)| *key) {
                self.remove(&oldest);
                self.forgotten = self.forgotten.saturating_add(1);
            }
        }
        let kept = self.shares.take(key.0.ip());
        if kept {
            self.entries.insert(key, (now + self.lifetime, wrapper));
        }
        kept
    }

    /// Returns the number of keys that a full table evicted before they expired.
    pub(crate) fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn expire(&mut self, now: Instant) {
        let shares = &mut self.shares;
        self.entries.retain(|(address, _), (until, _)| {
            let kept = *until > now;
            if !kept {
                shares.release(address.ip());
            }
            kept
        });
    }

    /// Removes the expired keys, and shrinks the table to its contents.
    pub(crate) fn release_memory(&mut self, now: Instant) {
        self.expire(now);
        self.entries.shrink_to_fit();
        self.shares.shrink_to_fit();
    }

    pub(crate) fn get_mut(&mut self, now: Instant, key: &Key) -> Option<&mut Wrapper> {
        self.entries.get_mut(key).filter(|(until, _)| *until > now).map(|(_, wrapper)| wrapper)
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Wrapper> {
        let (_, wrapper) = self.entries.remove(key)?;
        self.shares.release(key.0.ip());
        Some(wrapper)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wrap::WrapConfig;
    use std::net::IpAddr;

    fn wrapper() -> Wrapper {
        Wrapper::client(&WrapConfig::None).expect("no wrapping always works")
    }

    fn key(ip: [u8; 4], n: u8) -> Key {
        (SocketAddr::new(IpAddr::from(ip), 1000), SessionId([n; 8]))
    }

    #[test]
    fn one_network_cannot_fill_the_table() {
        let mut h = HalfOpen::new(Duration::from_secs(60));
        let now = Instant::from_nanos(0);
        let kept = (0..200).filter(|&n| h.insert(now, key([192, 0, 2, 1], n), wrapper())).count();
        assert_eq!(kept, 16);
        assert!(h.insert(now, key([192, 0, 2, 2], 0), wrapper()));
    }

    #[test]
    fn the_table_is_bounded_and_empties_with_time() {
        let mut h = HalfOpen::new(Duration::from_secs(60));
        let now = Instant::from_nanos(0);
        let networks = (0..=255).flat_map(|a| (0..4).map(move |b| [10, 0, a, b]));
        for ip in networks {
            assert!(h.insert(now, key(ip, 1), wrapper()));
        }
        assert_eq!((h.entries.len(), h.shares.total()), (MAX_HALF_OPEN, MAX_HALF_OPEN));
        assert_eq!(h.forgotten(), 1024 - MAX_HALF_OPEN as u64);
        let later = now + Duration::from_secs(60);
        assert!(h.get_mut(later, &key([10, 0, 255, 3], 1)).is_none());
        assert!(h.insert(later, key([10, 9, 9, 9], 1), wrapper()));
        assert_eq!((h.entries.len(), h.shares.total()), (1, 1));
    }

    #[test]
    fn a_flood_in_many_names_forgets_the_oldest_key_and_not_the_newest() {
        let mut h = HalfOpen::new(Duration::from_secs(60));
        let ms = |n: u32| Instant::from_nanos(0) + Duration::from_millis(n.into());
        let forged = |n: u32| key((0x0a00_0000 + n).to_be_bytes(), 1);
        (0..1000).for_each(|n| assert!(h.insert(ms(n), forged(n), wrapper())));
        let client = key([192, 0, 2, 1], 1);
        assert!(h.insert(ms(1000), client, wrapper()));
        (1001..1200).for_each(|n| assert!(h.insert(ms(n), forged(n), wrapper())));
        assert!(h.get_mut(ms(1200), &client).is_some(), "for longer than a round trip");
        (1200..1300).for_each(|n| assert!(h.insert(ms(n), forged(n), wrapper())));
        assert!(h.get_mut(ms(1300), &client).is_none());
    }
}
