//! The one thing a server remembers of a stranger.
//!
//! A tls-crypt-v2 client older than 2.6 sends its wrapped key only with its reset. Without the key
//! its next packet cannot be read, so the key is kept from the reset on: in a small table, with few
//! places for each network.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::Instant;

use super::handshakes::Network;
use crate::packet::SessionId;
use crate::wrap::Wrapper;

/// Keys kept at once.
const MAX_HALF_OPEN: usize = 256;
/// Keys kept for one /32 or /64.
const MAX_PER_NETWORK: usize = 16;

type Key = (SocketAddr, SessionId);

#[derive(Debug)]
pub(crate) struct HalfOpen {
    entries: HashMap<Key, (Instant, Wrapper)>,
    lifetime: Duration,
}

impl HalfOpen {
    pub(crate) fn new(lifetime: Duration) -> Self {
        Self { entries: HashMap::new(), lifetime }
    }

    /// Keeps a client's key. False if there is no place for it.
    pub(crate) fn insert(&mut self, now: Instant, key: Key, wrapper: Wrapper) -> bool {
        self.entries.retain(|_, (until, _)| *until > now);
        let network = Network::of(key.0.ip());
        let of_network = |(address, _): &&Key| Network::of(address.ip()) == network;
        if !self.entries.contains_key(&key)
            && (self.entries.len() >= MAX_HALF_OPEN
                || self.entries.keys().filter(of_network).count() >= MAX_PER_NETWORK)
        {
            return false;
        }
        self.entries.insert(key, (now + self.lifetime, wrapper));
        true
    }

    /// Forgets the keys that nobody can use any more, and makes the table as small as what is left.
    pub(crate) fn rest(&mut self, now: Instant) {
        self.entries.retain(|_, (until, _)| *until > now);
        self.entries.shrink_to_fit();
    }

    pub(crate) fn get_mut(&mut self, now: Instant, key: &Key) -> Option<&mut Wrapper> {
        self.entries.get_mut(key).filter(|(until, _)| *until > now).map(|(_, wrapper)| wrapper)
    }

    pub(crate) fn remove(&mut self, key: &Key) -> Option<Wrapper> {
        self.entries.remove(key).map(|(_, wrapper)| wrapper)
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
        assert_eq!(kept, MAX_PER_NETWORK);
        assert!(h.insert(now, key([192, 0, 2, 2], 0), wrapper()));
    }

    #[test]
    fn the_table_is_bounded_and_empties_with_time() {
        let mut h = HalfOpen::new(Duration::from_secs(60));
        let now = Instant::from_nanos(0);
        let networks = (0..=255).flat_map(|a| (0..4).map(move |b| [10, 0, a, b]));
        let kept = networks.filter(|&ip| h.insert(now, key(ip, 1), wrapper())).count();
        assert_eq!(kept, MAX_HALF_OPEN);
        let later = now + Duration::from_secs(60);
        assert!(h.get_mut(later, &key([10, 0, 0, 0], 1)).is_none());
        assert!(h.insert(later, key([10, 9, 9, 9], 1), wrapper()));
    }
}
