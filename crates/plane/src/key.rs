//! A data channel key in use: its packet ids, its replay window and its limits.
//!
//! How packets look and what protects them is the key's [`Format`]; a burst or a run of packets asks
//! for it once, so that each format has loops of its own.

mod aead;
mod block;
mod epoch;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use adit_crypto::aead::AeadError;
use adit_engine::command::{DataKey, KeyLimits, Protection};

use crate::peer::{KeyOrigin, Tx};
use crate::replay::ReplayCheck;
use crate::stats::DropReason;
use crossbeam_utils::CachePadded;

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

/// Bytes that the widest format adds to a packet: the header with a peer-id, packet id and time,
/// and the longest envelope.
pub(crate) const MAX_OVERHEAD: usize = 4 + 8 + adit_crypto::block::MAX_ADDED;

/// A key of one slot, shared by both directions.
#[derive(Debug)]
pub(crate) struct Key {
    pub id: u8,
    /// Which key of the peer it is: later ones have higher numbers.
    pub generation: u64,
    /// The peer that it is for: [`Tx::owner`].
    owner: u64,
    format: Format,
    limits: KeyLimits,
    /// Next packet id to send. Written only through a [`BurstUsage`], under the peer's TX lock.
    next_id: AtomicU64,
    failed: AtomicU64,
    used: AtomicBool,
    warned: AtomicBool,
    /// One worker may seal while another opens.
    sealed: CachePadded<Usage>,
    opened: CachePadded<Usage>,
}

/// The usage of a key in one direction.
#[derive(Debug, Default)]
struct Usage {
    /// Blocks and packets, for GCM's limit.
    blocks: AtomicU64,
    /// For the configured limits, as packets are.
    bytes: AtomicU64,
    packets: AtomicU64,
}

/// Layout, cryptography and replay protection.
#[derive(Debug)]
// With a tag of its own, which is read faster than one hidden in a field.
#[repr(u8)]
#[expect(clippy::large_enum_variant, reason = "nearly all keys are of the largest")]
enum Format {
    Aead(aead::Aead),
    Epoch(Box<epoch::Epoch>),
    Block(Box<block::Block>),
}

/// Seals packets under one key while the peer's TX lock is held. What it used is written back when
/// it is dropped, whatever happens in between. The second field is the sequence number of the peer's last fragmented packet.
#[derive(Debug)]
pub struct Sealer<'k>(pub(crate) SealerKind<'k>, pub(crate) &'k mut u8);

#[derive(Debug)]
pub(crate) enum SealerKind<'k> {
    Aead(aead::AeadSealer<'k>),
    Epoch(epoch::EpochSealer<'k>),
    Block(block::BlockSealer<'k>),
}

/// Sealing in one format.
pub(crate) trait Seal {
    /// Most bytes that sealing adds.
    fn overhead(&self) -> usize;

    /// Seals one packet into the start of `out` under the next packet id; returns its length.
    fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> Result<usize, DropReason>;
}

/// Opens packets under one key; holds the lock of its replay window, so only for one run.
pub(crate) enum Opener<'k> {
    Aead(aead::AeadOpener<'k>),
    Epoch(epoch::EpochOpener<'k>),
    Block(block::BlockOpener<'k>),
}

impl Sealer<'_> {
    /// Most bytes that sealing adds.
    pub fn overhead(&self) -> usize {
        match &self.0 {
            SealerKind::Aead(sealer) => sealer.overhead(),
            SealerKind::Epoch(sealer) => sealer.overhead(),
            SealerKind::Block(sealer) => sealer.overhead(),
        }
    }
}

impl Open for Opener<'_> {
    #[inline(always)]
    fn open<'p>(&mut self, datagram: &'p mut [u8]) -> Result<Opened<'p>, DropReason> {
        match self {
            Self::Aead(opener) => opener.open(datagram),
            Self::Epoch(opener) => opener.open(datagram),
            Self::Block(opener) => opener.open(datagram),
        }
    }
}

/// The content of a datagram: its position in the replay window, its packet id and the plaintext.
pub(crate) type Opened<'p> = (ReplayCheck, u64, &'p mut [u8]);

/// Opening in one format.
pub(crate) trait Open {
    /// Opens one datagram in place, unless it was seen before.
    fn open<'p>(&mut self, datagram: &'p mut [u8]) -> Result<Opened<'p>, DropReason>;
}

/// The usage of a key by one burst.
#[derive(Debug)]
pub(crate) struct BurstUsage<'k> {
    key: &'k Key,
    next_id: u64,
    used: u64,
    packets: u64,
    bytes: u64,
}

/// Returns how much of GCM's limit, in blocks and packets, a text of this length uses.
#[inline]
fn gcm_blocks(len: usize) -> u64 {
    (len as u64).div_ceil(16).saturating_add(1)
}

impl Key {
    pub fn new(key: &DataKey, replay_window: u32, origin: KeyOrigin) -> Result<Self, AeadError> {
        let format = match key.protection {
            Protection::Aead(cipher) => {
                Format::Aead(aead::Aead::new(cipher, &key.seal, &key.open, replay_window)?)
            }
            Protection::Epoch(cipher) => {
                let epoch = epoch::Epoch::new(cipher, &key.seal, &key.open, replay_window)?;
                Format::Epoch(Box::new(epoch))
            }
            // A configuration that leads here is refused before; if one did, nothing must come in.
            Protection::Block(suite) if suite.digest.is_none() => return Err(AeadError),
            Protection::Block(suite) => {
                let block = block::Block::new(suite, &key.seal, &key.open, replay_window, None)?;
                Format::Block(Box::new(block))
            }
            Protection::Static(suite) => {
                let time = Some(block::unix_time());
                let block = block::Block::new(suite, &key.seal, &key.open, replay_window, time)?;
                Format::Block(Box::new(block))
            }
        };
        Ok(Self {
            id: key.key_id & 7,
            generation: origin.generation,
            owner: origin.owner,
            format,
            limits: key.limits,
            next_id: AtomicU64::new(1),
            failed: AtomicU64::new(0),
            used: AtomicBool::new(false),
            warned: AtomicBool::new(false),
            sealed: CachePadded::default(),
            opened: CachePadded::default(),
        })
    }

    /// The right to seal under this key for as long as the peer's TX lock is held: packet ids come
    /// out in the order in which packets are sent.
    #[inline(always)]
    pub fn sealer<'k>(&'k self, lock: &'k mut Tx, wire_id: Option<u32>) -> Sealer<'k> {
        // Under another peer's lock two workers could give one id to two packets.
        assert_eq!(self.owner, lock.owner(), "a key is used under the lock of another peer");
        let sealing = match &self.format {
            Format::Aead(aead) => SealerKind::Aead(aead.sealer(self, wire_id)),
            Format::Epoch(epoch) => SealerKind::Epoch(epoch.sealer(self, wire_id)),
            Format::Block(block) => SealerKind::Block(block.sealer(self, wire_id)),
        };
        Sealer(sealing, &mut lock.sequence)
    }

    /// Packets go to this stream next, under the same lock as [`Key::sealer`]. On each new one the count
    /// of a static key restarts from 1 under a later time: the other end may have forgotten what
    /// came on the last, and OpenVPN takes a number that does not follow for an attack.
    pub fn begin_stream(&self, lock: &mut Tx, stream: u64) {
        if let Format::Block(block) = &self.format
            && lock.stream.replace(stream) != Some(stream)
        {
            block.restart_count(self);
        }
    }

    /// The right to open packets, until the next run.
    #[inline(always)]
    pub fn opener(&self) -> Opener<'_> {
        match &self.format {
            Format::Aead(aead) => Opener::Aead(aead.opener(self)),
            Format::Epoch(epoch) => Opener::Epoch(epoch.opener()),
            Format::Block(block) => Opener::Block(block.opener()),
        }
    }

    /// Whether every datagram from the peer is a data packet: its packets have no opcode.
    pub fn is_static(&self) -> bool {
        matches!(&self.format, Format::Block(block) if block.is_static())
    }

    #[inline]
    fn burst_usage(&self) -> BurstUsage<'_> {
        BurstUsage { key: self, next_id: self.next_id.load(Relaxed), used: 0, packets: 0, bytes: 0 }
    }

    /// Counts authentic packets of a burst. `bytes` are those on the wire.
    pub fn count_opened(&self, packets: u64, bytes: u64) {
        self.opened.add((bytes / 16).saturating_add(packets), packets, bytes);
    }

    /// Returns, once, whether an authentic packet was received under this key.
    pub fn first_use(&self) -> bool {
        !self.used.load(Relaxed) && !self.used.swap(true, Relaxed)
    }

    /// Returns, once, whether a limit is close.
    pub fn near_limit(&self) -> bool {
        let reached = |limit: u64, count: &AtomicU64| limit != 0 && count.load(Relaxed) >= limit;
        let reached_by_both = |limit: u64, count: fn(&Usage) -> &AtomicU64| {
            let count = |usage| count(usage).load(Relaxed);
            limit != 0 && count(&self.sealed).saturating_add(count(&self.opened)) >= limit
        };
        let near = match &self.format {
            Format::Aead(aead) => {
                let gcm = aead.is_gcm();
                reached(ID_NEAR, &self.next_id)
                    || (gcm && reached(GCM_NEAR, &self.sealed.blocks))
                    || (gcm && reached(GCM_NEAR, &self.opened.blocks))
                    || reached(FAILED_NEAR, &self.failed)
            }
            Format::Epoch(epoch) => epoch.near_end(),
            // A static key has no successor; its packet ids restart with a later time.
            Format::Block(block) => !block.is_static() && reached(ID_NEAR, &self.next_id),
        };
        let near = near
            || reached_by_both(self.limits.bytes, |usage| &usage.bytes)
            || reached_by_both(self.limits.packets, |usage| &usage.packets);
        near && !self.warned.swap(true, Relaxed)
    }

    #[cfg(test)]
    pub fn preset(&self, next_id: u64, sealed: u64, failed: u64) {
        self.next_id.store(next_id, Relaxed);
        self.sealed.blocks.store(sealed, Relaxed);
        self.failed.store(failed, Relaxed);
    }
}

impl Usage {
    #[inline]
    fn add(&self, blocks: u64, packets: u64, bytes: u64) {
        self.blocks.fetch_add(blocks, Relaxed);
        self.packets.fetch_add(packets, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }
}

impl BurstUsage<'_> {
    /// The next packet id. It is spent even if sealing fails: a nonce is never tried twice.
    #[inline]
    fn next_id(&mut self) -> Result<u32, DropReason> {
        let id = u32::try_from(self.next_id).map_err(|_| DropReason::KeyExhausted)?;
        self.next_id = u64::from(id).saturating_add(1);
        Ok(id)
    }

    #[inline]
    fn sealed(&mut self, len: usize) {
        self.packets = self.packets.saturating_add(1);
        self.bytes = self.bytes.saturating_add(len as u64);
    }
}

impl Drop for BurstUsage<'_> {
    #[inline]
    fn drop(&mut self) {
        debug_assert!(self.next_id <= ID_LAST + 1);
        self.key.next_id.store(self.next_id, Relaxed);
        self.key.sealed.add(self.used, self.packets, self.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet;
    use adit_crypto::{Cipher, DirectionKey};

    fn key(cipher: Cipher, limits: KeyLimits) -> Key {
        let half = DirectionKey { cipher: [1; 64], hmac: [2; 64] };
        let protection = Protection::Aead(cipher);
        let key = DataKey { key_id: 0, protection, seal: half.clone(), open: half, limits };
        Key::new(&key, 64, KeyOrigin::default()).unwrap()
    }

    fn seal(key: &Key, len: usize) -> Result<Vec<u8>, DropReason> {
        let mut out = vec![0; len + packet::OVERHEAD];
        let mut tx = Tx::default();
        let SealerKind::Aead(mut sealer) = key.sealer(&mut tx, Some(1)).0 else { panic!() };
        sealer.seal(&vec![0; len], &mut out).map(|_| out)
    }

    /// CVE-2017-7479: a peer that kept on sending drove the other end into an assertion where the ids
    /// end.
    #[test]
    fn cve_2017_7479_packet_ids_start_at_one_and_never_wrap() {
        let key = key(Cipher::ChaCha20Poly1305, KeyLimits::default());
        assert_eq!(packet::parse(&mut seal(&key, 9).unwrap()).unwrap().packet_id, 1);
        assert_eq!(packet::parse(&mut seal(&key, 9).unwrap()).unwrap().packet_id, 2);
        key.preset(0xffff_ffff, 0, 0);
        assert_eq!(packet::parse(&mut seal(&key, 9).unwrap()).unwrap().packet_id, u32::MAX);
        for _ in 0..3 {
            assert_eq!(seal(&key, 9), Err(DropReason::KeyExhausted));
        }
    }

    /// Two workers that use one key under two locks would give one id to two packets.
    #[test]
    #[should_panic(expected = "under the lock of another peer")]
    fn a_key_is_never_used_under_the_lock_of_another_peer() {
        let spec = || adit_engine::command::PeerSpec {
            float: false,
            ..adit_engine::command::PeerSpec::plain(adit_engine::Link::datagram(
                Default::default(),
                None,
                ([192, 0, 2, 1], 1).into(),
            ))
        };
        let peer = |id| crate::peer::Peer::new(adit_engine::PeerId(id), spec(), Default::default());
        let (own, other) = (peer(1), peer(2));
        let half = DirectionKey { cipher: [1; 64], hmac: [2; 64] };
        let protection = Protection::Aead(Cipher::Aes256Gcm);
        let limits = KeyLimits::default();
        let key = DataKey { key_id: 0, protection, seal: half.clone(), open: half, limits };
        let key = Key::new(&key, 64, own.next_key_origin()).unwrap();
        drop(key.sealer(&mut own.lock_tx(), None));
        drop(key.sealer(&mut other.lock_tx(), None));
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
        let mut again = seal(&key, 9).unwrap();
        let open = |datagram: &mut [u8]| {
            let Opener::Aead(mut opener) = key.opener() else { panic!() };
            opener.open(datagram).map(|(place, ..)| place)
        };
        assert_eq!(open(&mut sealed), Ok(ReplayCheck::Newest));
        key.preset(3, 0, FAILED_LIMIT);
        assert_eq!(open(&mut again), Err(DropReason::KeyExhausted));
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
