//! A data channel key in use: its packet ids, its replay window and its limits.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use adit_crypto::Cipher;
use adit_crypto::aead::{OpenKey, Refused, SealKey};
use adit_engine::verbs::{DataKey, KeyLimits, Protection};

use crate::packet::Prefix;
use crate::peer::Tx;
use crate::replay::Window;
use crate::stats::DropReason;

/// AES-GCM's limit: blocks and packets together, after which confidentiality weakens.
const GCM_LIMIT: u64 = 1 << 36;
/// Ask for a new key with an eighth of the limit left: two minutes at 9 Gb/s.
const GCM_NEAR: u64 = GCM_LIMIT / 8 * 7;
/// Ask for a new key at this packet id.
const ID_NEAR: u64 = 0xff00_0000;
/// Last packet id that may be used: they never wrap.
const ID_LAST: u64 = 0xffff_ffff;
/// Forgery attempts after which to ask for a new key.
const FAILED_NEAR: u64 = 1 << 35;
/// Forgery attempts after which the key opens nothing any more.
const FAILED_LIMIT: u64 = 1 << 36;

/// A key of one slot, shared by both directions.
#[derive(Debug)]
pub(crate) struct Key {
    pub id: u8,
    /// Which key of the peer it is: later ones have higher numbers.
    pub generation: u64,
    seal: SealKey,
    open: OpenKey,
    gcm: bool,
    limits: KeyLimits,
    /// Next packet id to send. Written only through [`Sealer`], under the peer's TX lock.
    next_id: AtomicU64,
    /// Blocks and packets sealed, for GCM's limit.
    sealed: AtomicU64,
    /// Blocks and packets opened.
    opened: AtomicU64,
    /// Bytes and packets of both directions, for the configured limits.
    bytes: AtomicU64,
    packets: AtomicU64,
    failed: AtomicU64,
    used: AtomicBool,
    warned: AtomicBool,
    pub replay: Mutex<Window>,
}

/// Blocks and packets that a text of this length uses up.
#[inline]
fn usage(len: usize) -> u64 {
    (len as u64).div_ceil(16).saturating_add(1)
}

impl Key {
    pub fn new(key: &DataKey, replay_window: u32, generation: u64) -> Result<Self, Refused> {
        let Protection::Aead(cipher) = key.protection else { return Err(Refused) };
        Ok(Self {
            id: key.key_id & 7,
            generation,
            seal: SealKey::new(cipher, &key.seal)?,
            open: OpenKey::new(cipher, &key.open)?,
            gcm: !matches!(cipher, Cipher::ChaCha20Poly1305),
            limits: key.limits,
            next_id: AtomicU64::new(1),
            sealed: AtomicU64::new(0),
            opened: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
            packets: AtomicU64::new(0),
            failed: AtomicU64::new(0),
            used: AtomicBool::new(false),
            warned: AtomicBool::new(false),
            replay: Mutex::new(Window::new(replay_window)),
        })
    }

    /// The right to seal under this key for as long as the peer's TX lock is held: packet ids come
    /// out in the order in which packets are sent.
    pub fn sealer<'k>(&'k self, _lock: &'k mut Tx, wire_id: Option<u32>) -> Sealer<'k> {
        let sealed = self.sealed.load(Relaxed);
        Sealer {
            key: self,
            prefix: Prefix::new(self.id, wire_id),
            next_id: self.next_id.load(Relaxed),
            budget: if self.gcm { GCM_LIMIT.saturating_sub(sealed) } else { u64::MAX },
            used: 0,
            packets: 0,
            bytes: 0,
        }
    }

    /// Opens a packet in place.
    #[inline]
    pub fn open(&self, packet: crate::packet::Sealed<'_>) -> Result<(), DropReason> {
        if self.failed.load(Relaxed) >= FAILED_LIMIT {
            return Err(DropReason::KeyExhausted);
        }
        self.open.open(packet.packet_id, packet.aad, packet.tag, packet.text).map_err(|Refused| {
            self.failed.fetch_add(1, Relaxed);
            DropReason::BadTag
        })
    }

    /// Counts authentic packets of a burst. `bytes` are those on the wire.
    pub fn count_opened(&self, packets: u64, bytes: u64) {
        self.opened.fetch_add((bytes / 16).saturating_add(packets), Relaxed);
        self.count(packets, bytes);
    }

    fn count(&self, packets: u64, bytes: u64) {
        self.packets.fetch_add(packets, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }

    /// Whether this is the first authentic packet; says so once.
    pub fn first_use(&self) -> bool {
        !self.used.load(Relaxed) && !self.used.swap(true, Relaxed)
    }

    /// Whether a limit has come close; says so once.
    pub fn near_limit(&self) -> bool {
        let reached = |limit: u64, count: &AtomicU64| limit != 0 && count.load(Relaxed) >= limit;
        let near = reached(ID_NEAR, &self.next_id)
            || (self.gcm && (reached(GCM_NEAR, &self.sealed) || reached(GCM_NEAR, &self.opened)))
            || reached(FAILED_NEAR, &self.failed)
            || reached(self.limits.bytes, &self.bytes)
            || reached(self.limits.packets, &self.packets);
        near && !self.warned.swap(true, Relaxed)
    }

    #[cfg(test)]
    pub fn preset(&self, next_id: u64, sealed: u64, failed: u64) {
        self.next_id.store(next_id, Relaxed);
        self.sealed.store(sealed, Relaxed);
        self.failed.store(failed, Relaxed);
    }
}

/// Seals packets under one key while the peer's TX lock is held. What it used is written back when
/// it is dropped, whatever happens in between.
#[derive(Debug)]
pub struct Sealer<'k> {
    key: &'k Key,
    prefix: Prefix,
    next_id: u64,
    budget: u64,
    used: u64,
    packets: u64,
    bytes: u64,
}

impl Sealer<'_> {
    /// Bytes that sealing adds.
    #[inline]
    pub fn overhead(&self) -> usize {
        self.prefix.overhead()
    }

    /// Seals one packet into the start of `out` under the next packet id; returns its length.
    #[inline]
    pub fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> Result<usize, DropReason> {
        let used = self.used.saturating_add(usage(plain.len()));
        let id = u32::try_from(self.next_id).map_err(|_| DropReason::KeyExhausted)?;
        if used > self.budget {
            return Err(DropReason::KeyExhausted);
        }
        // The id is spent even if sealing fails: a nonce is never tried twice.
        self.next_id = u64::from(id).saturating_add(1);
        self.used = used;
        let len =
            self.prefix.seal(&self.key.seal, id, plain, out).ok_or(DropReason::TunMalformed)?;
        self.packets = self.packets.saturating_add(1);
        self.bytes = self.bytes.saturating_add(len as u64);
        Ok(len)
    }
}

impl Drop for Sealer<'_> {
    fn drop(&mut self) {
        debug_assert!(self.next_id <= ID_LAST + 1);
        self.key.next_id.store(self.next_id, Relaxed);
        self.key.sealed.fetch_add(self.used, Relaxed);
        self.key.count(self.packets, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet;
    use adit_crypto::KeyHalf;

    fn key(cipher: Cipher, limits: KeyLimits) -> Key {
        let half = KeyHalf { cipher: [1; 64], hmac: [2; 64] };
        let protection = Protection::Aead(cipher);
        let key = DataKey { key_id: 0, protection, seal: half.clone(), open: half, limits };
        Key::new(&key, 64, 0).unwrap()
    }

    fn seal(key: &Key, len: usize) -> Result<Vec<u8>, DropReason> {
        let mut out = vec![0; len + packet::OVERHEAD];
        key.sealer(&mut Tx::default(), Some(1)).seal(&vec![0; len], &mut out).map(|_| out)
    }

    #[test]
    fn packet_ids_start_at_one_and_never_wrap() {
        let key = key(Cipher::ChaCha20Poly1305, KeyLimits::default());
        assert_eq!(packet::parse(&mut seal(&key, 9).unwrap()).unwrap().packet_id, 1);
        assert_eq!(packet::parse(&mut seal(&key, 9).unwrap()).unwrap().packet_id, 2);
        key.preset(0xffff_ffff, 0, 0);
        assert_eq!(packet::parse(&mut seal(&key, 9).unwrap()).unwrap().packet_id, u32::MAX);
        for _ in 0..3 {
            assert_eq!(seal(&key, 9), Err(DropReason::KeyExhausted));
        }
    }

    #[test]
    fn nearness_is_told_once_and_before_the_limit() {
        for (next_id, sealed, failed) in [(ID_NEAR, 0, 0), (1, GCM_NEAR, 0), (1, 0, FAILED_NEAR)] {
            let key = key(Cipher::Aes256Gcm, KeyLimits::default());
            key.preset(next_id - 1, sealed.saturating_sub(1), failed.saturating_sub(1));
            assert!(!key.near_limit());
            key.preset(next_id, sealed, failed);
            assert!(key.near_limit());
            assert!(!key.near_limit());
            assert!(seal(&key, 9).is_ok());
        }
    }

    #[test]
    fn gcm_stops_at_its_limit_and_chacha_has_none() {
        let gcm = key(Cipher::Aes128Gcm, KeyLimits::default());
        gcm.preset(1, GCM_LIMIT - 2, 0);
        assert!(seal(&gcm, 16).is_ok(), "exactly the last block and packet");
        assert_eq!(seal(&gcm, 0), Err(DropReason::KeyExhausted));
        let chacha = key(Cipher::ChaCha20Poly1305, KeyLimits::default());
        chacha.preset(1, GCM_LIMIT * 2, 0);
        assert!(seal(&chacha, 16).is_ok());
        assert!(!chacha.near_limit());
    }

    #[test]
    fn a_key_under_attack_opens_nothing_at_the_limit() {
        let key = key(Cipher::Aes256Gcm, KeyLimits::default());
        let mut sealed = seal(&key, 9).unwrap();
        let mut again = sealed.clone();
        assert_eq!(key.open(packet::parse(&mut sealed).unwrap()), Ok(()));
        key.preset(2, 0, FAILED_LIMIT);
        let refused = key.open(packet::parse(&mut again).unwrap());
        assert_eq!(refused, Err(DropReason::KeyExhausted));
    }

    #[test]
    fn configured_limits_count_both_directions() {
        let key = key(Cipher::Aes256Gcm, KeyLimits { bytes: 0, packets: 3 });
        seal(&key, 9).unwrap();
        key.count_opened(1, 50);
        assert!(!key.near_limit());
        seal(&key, 9).unwrap();
        assert!(key.near_limit());
        let key = self::key(Cipher::Aes256Gcm, KeyLimits { bytes: 100, packets: 0 });
        key.count_opened(1, 99);
        assert!(!key.near_limit());
        key.count_opened(1, 1);
        assert!(key.near_limit());
    }
}
