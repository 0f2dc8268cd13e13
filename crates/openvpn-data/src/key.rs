//! A data channel key in use: its packet ids, its replay window and its limits.
//!
//! The key's [`Format`] determines the layout and protection of packets; a burst or a run of packets selects it once,
//! so that each format has its own loops.

mod aead;
mod block;
mod epoch;
mod saved;

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use adit_crypto::aead::AeadError;
use adit_engine::SecretBytes;
use adit_openvpn::data_format::{DataKey, KeyLimits, OpenVpn, PeerSpec, Protection};
use crossbeam_utils::CachePadded;

pub use saved::fuzz as fuzz_saved_key;

use super::SenderState;
use adit_dataplane::DropReason;
use adit_dataplane::format::{self, FormatKey, Opened, Seal as _, SealBurst};

/// AES-GCM's limit: blocks and packets together, after which confidentiality weakens.
const GCM_LIMIT: u64 = 1 << 36;
/// A new key is requested with an eighth of the limit left: two minutes at 9 Gb/s.
const GCM_NEAR: u64 = GCM_LIMIT / 8 * 7;
/// A new key is requested at this packet id.
const ID_NEAR: u64 = 0xff00_0000;
/// The last packet id that may be used: packet ids never wrap.
const ID_LAST: u64 = 0xffff_ffff;
/// The number of failed authentications after which a new key is requested.
const FAILED_NEAR: u64 = 1 << 35;
/// The number of failed authentications after which the key opens no more packets.
const FAILED_LIMIT: u64 = 1 << 36;

/// The maximum number of bytes that any format adds to a packet: the header with a peer-id, packet id and time, and the
/// longest envelope.
pub(crate) const MAX_OVERHEAD: usize = 4 + 8 + adit_crypto::block::MAX_ADDED;

/// A key in use, shared by both directions.
#[derive(Debug)]
pub struct Key {
    id: u8,
    format: KeyFormat,
    limits: KeyLimits,
    /// What the key was prepared from, if another process can continue with it.
    material: Option<Box<saved::Material>>,
    /// The next packet id to send. Written only through a [`BurstUsage`], under the peer's TX lock.
    next_id: AtomicU64,
    failed: AtomicU64,
    /// The usage in each direction, on separate cache lines, because one worker may seal while another opens.
    sealed: CachePadded<Usage>,
    opened: CachePadded<Usage>,
}

/// The usage of a key in one direction.
#[derive(Debug, Default)]
struct Usage {
    /// Blocks and packets, for GCM's limit.
    blocks: AtomicU64,
    /// Bytes, which like packets count towards the configured limits.
    bytes: AtomicU64,
    packets: AtomicU64,
}

/// Layout, cryptography and replay protection.
#[derive(Debug)]
// An explicit tag is read faster than one hidden in a field.
#[repr(u8)]
#[expect(clippy::large_enum_variant, reason = "nearly all keys are of the largest")]
enum KeyFormat {
    Aead(aead::Aead),
    Epoch(Box<epoch::Epoch>),
    Block(Box<block::BlockKey>),
}

/// Seals packets under one key. Dropping it always writes the usage back.
#[derive(Debug)]
pub enum Sealer<'k> {
    Aead(aead::AeadSealer<'k>),
    Epoch(epoch::EpochSealer<'k>),
    Block(block::BlockSealer<'k>),
}

/// Opens packets under one key. Holds the lock of its replay window, so it must live for one run only.
pub enum Opener<'k> {
    Aead(aead::AeadOpener<'k>),
    Epoch(epoch::EpochOpener<'k>),
    Block(block::BlockOpener<'k>),
}

impl format::Sealer for Sealer<'_> {
    fn overhead(&self) -> usize {
        match self {
            Self::Aead(sealer) => sealer.overhead(),
            Self::Epoch(sealer) => sealer.overhead(),
            Self::Block(sealer) => sealer.overhead(),
        }
    }

    #[inline]
    fn run<B: SealBurst>(&mut self, burst: B) -> B::Output {
        match self {
            Self::Aead(sealer) => burst.run(sealer),
            Self::Epoch(sealer) => burst.run(sealer),
            Self::Block(sealer) => burst.run(sealer),
        }
    }
}

impl format::Opener for Opener<'_> {
    #[inline(always)]
    fn open<'p>(&mut self, datagram: &'p mut [u8]) -> Result<Opened<'p>, DropReason> {
        match self {
            Self::Aead(opener) => opener.open(datagram),
            Self::Epoch(opener) => opener.open(datagram),
            Self::Block(opener) => opener.open(datagram),
        }
    }
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

/// Returns the part of GCM's limit, in blocks and packets, that a text of this length uses.
#[inline]
fn gcm_blocks(len: usize) -> u64 {
    (len as u64).div_ceil(16).saturating_add(1)
}

impl Key {
    fn prepare(key: &DataKey, replay_window: u32) -> Result<Self, AeadError> {
        let format = match key.protection {
            Protection::Aead(cipher) => {
                KeyFormat::Aead(aead::Aead::new(cipher, &key.seal, &key.open, replay_window)?)
            }
            Protection::Epoch(cipher) => {
                let epoch = epoch::Epoch::new(cipher, &key.seal, &key.open, replay_window)?;
                KeyFormat::Epoch(Box::new(epoch))
            }
            // A configuration that leads here is refused earlier; if it were not, no packet must be accepted.
            Protection::Block(suite) if suite.digest.is_none() => return Err(AeadError),
            Protection::Block(suite) => {
                let block = block::BlockKey::new(suite, &key.seal, &key.open, replay_window, None)?;
                KeyFormat::Block(Box::new(block))
            }
            Protection::Static(suite) => {
                let time = Some(block::unix_time());
                let block = block::BlockKey::new(suite, &key.seal, &key.open, replay_window, time)?;
                KeyFormat::Block(Box::new(block))
            }
        };
        let passes = matches!(key.protection, Protection::Aead(_) | Protection::Block(_));
        let material = passes.then(|| saved::Material::of(key));
        Ok(Self::of(key.key_id & 7, format, key.limits, material))
    }

    fn of(
        id: u8,
        format: KeyFormat,
        limits: KeyLimits,
        material: Option<Box<saved::Material>>,
    ) -> Self {
        Self {
            id,
            format,
            limits,
            material,
            next_id: AtomicU64::new(1),
            failed: AtomicU64::new(0),
            sealed: CachePadded::default(),
            opened: CachePadded::default(),
        }
    }

    #[inline]
    fn burst_usage(&self) -> BurstUsage<'_> {
        BurstUsage { key: self, next_id: self.next_id.load(Relaxed), used: 0, packets: 0, bytes: 0 }
    }

    #[cfg(test)]
    pub fn preset(&self, next_id: u64, sealed: u64, failed: u64) {
        self.next_id.store(next_id, Relaxed);
        self.sealed.blocks.store(sealed, Relaxed);
        self.failed.store(failed, Relaxed);
    }
}

impl FormatKey for Key {
    type Types = OpenVpn;
    type Tx = SenderState;
    type Sealer<'k> = Sealer<'k>;
    type Opener<'k> = Opener<'k>;

    fn new(key: &DataKey, replay_window: u32) -> Option<Self> {
        Self::prepare(key, replay_window).ok()
    }

    #[inline]
    fn id(&self) -> u8 {
        self.id
    }

    /// Returns whether packets have no opcode, as with a static key.
    fn is_headerless(&self) -> bool {
        matches!(&self.format, KeyFormat::Block(block) if block.is_static())
    }

    #[inline(always)]
    fn sealer(&self, spec: &PeerSpec) -> Sealer<'_> {
        match &self.format {
            KeyFormat::Aead(aead) => Sealer::Aead(aead.sealer(self, spec.layout.wire_id)),
            KeyFormat::Epoch(epoch) => Sealer::Epoch(epoch.sealer(self, spec.layout.wire_id)),
            KeyFormat::Block(block) => Sealer::Block(block.sealer(self, spec.layout.wire_id)),
        }
    }

    #[inline(always)]
    fn opener(&self) -> Opener<'_> {
        match &self.format {
            KeyFormat::Aead(aead) => Opener::Aead(aead.opener(self)),
            KeyFormat::Epoch(epoch) => Opener::Epoch(epoch.opener()),
            KeyFormat::Block(block) => Opener::Block(block.opener()),
        }
    }

    /// Restarts the packet ids of a static key from 1, under a later time, on each new stream. The other end may have forgotten the ids of
    /// the last stream, and to OpenVPN an id that does not follow its predecessor is an attack.
    fn begin_stream(&self, tx: &mut SenderState, stream: u64) {
        if let KeyFormat::Block(block) = &self.format
            && tx.stream.replace(stream) != Some(stream)
        {
            block.restart_count(self);
        }
    }

    fn count_opened(&self, packets: u64, bytes: u64) {
        self.opened.add((bytes / 16).saturating_add(packets), packets, bytes);
    }

    fn near_limit(&self) -> bool {
        let reached = |limit: u64, count: &AtomicU64| limit != 0 && count.load(Relaxed) >= limit;
        let reached_by_both = |limit: u64, count: fn(&Usage) -> &AtomicU64| {
            let count = |usage| count(usage).load(Relaxed);
            limit != 0 && count(&self.sealed).saturating_add(count(&self.opened)) >= limit
        };
        let near = match &self.format {
            KeyFormat::Aead(aead) => {
                let gcm = aead.is_gcm();
                reached(ID_NEAR, &self.next_id)
                    || (gcm && reached(GCM_NEAR, &self.sealed.blocks))
                    || (gcm && reached(GCM_NEAR, &self.opened.blocks))
                    || reached(FAILED_NEAR, &self.failed)
            }
            KeyFormat::Epoch(epoch) => epoch.near_end(),
            // A static key has no successor; its packet ids restart with a later time.
            KeyFormat::Block(block) => !block.is_static() && reached(ID_NEAR, &self.next_id),
        };
        near || reached_by_both(self.limits.bytes, |usage| &usage.bytes)
            || reached_by_both(self.limits.packets, |usage| &usage.packets)
    }

    fn save(&self) -> Option<SecretBytes> {
        saved::save(self)
    }

    fn resume(saved: &SecretBytes, replay_window: u32) -> Option<Self> {
        saved::resume(saved, replay_window)
    }
}

impl Usage {
    fn of([blocks, bytes, packets]: [u64; 3]) -> Self {
        Self { blocks: blocks.into(), bytes: bytes.into(), packets: packets.into() }
    }

    /// Returns the blocks, bytes and packets.
    fn counts(&self) -> [u64; 3] {
        [&self.blocks, &self.bytes, &self.packets].map(|count| count.load(Relaxed))
    }

    #[inline]
    fn add(&self, blocks: u64, packets: u64, bytes: u64) {
        self.blocks.fetch_add(blocks, Relaxed);
        self.packets.fetch_add(packets, Relaxed);
        self.bytes.fetch_add(bytes, Relaxed);
    }
}

impl BurstUsage<'_> {
    /// Returns the next packet id. It is used up even if sealing fails, so a nonce is never used twice.
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
pub(super) mod tests {
    use super::*;
    use adit_engine::{Link, SocketId};
    use adit_openvpn::data_format::PacketLayout;

    use crate::packet;
    use adit_crypto::{Cipher, DirectionKey};
    use adit_dataplane::ReplayCheck;
    use adit_dataplane::format::Opener as _;

    /// Returns the settings of a peer. A key reads only the peer-id.
    pub(crate) fn spec(wire_id: Option<u32>) -> PeerSpec {
        let link = Link::datagram(SocketId(0), None, ([192, 0, 2, 1], 1194).into());
        let layout = PacketLayout { wire_id, ..PacketLayout::default() };
        PeerSpec { layout, ..PeerSpec::plain(link) }
    }

    fn key(cipher: Cipher, limits: KeyLimits) -> Key {
        let half = DirectionKey { cipher: [1; 64], hmac: [2; 64] };
        let protection = Protection::Aead(cipher);
        let key = DataKey { key_id: 0, protection, seal: half.clone(), open: half, limits };
        Key::new(&key, 64).unwrap()
    }

    fn seal(key: &Key, len: usize) -> Result<Vec<u8>, DropReason> {
        let mut out = vec![0; len + packet::OVERHEAD];
        let Sealer::Aead(mut sealer) = key.sealer(&spec(Some(1))) else { panic!() };
        sealer.seal(&vec![0; len], &mut out).map(|_| out)
    }

    /// CVE-2017-7479: a peer that kept sending triggered an assertion at the other end when its packet ids were used
    /// up.
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

    #[test]
    fn a_close_limit_is_reported_before_it_is_reached() {
        for (next_id, sealed, failed) in [(ID_NEAR, 0, 0), (1, GCM_NEAR, 0), (1, 0, FAILED_NEAR)] {
            let key = key(Cipher::Aes256Gcm, KeyLimits::default());
            key.preset(next_id - 1, sealed.saturating_sub(1), failed.saturating_sub(1));
            assert!(!key.near_limit());
            key.preset(next_id, sealed, failed);
            assert!(key.near_limit());
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
