//! The formats before AEAD: CBC and HMAC, with an opcode (TLS) or without (static keys).
//!
//! ```text
//! Block:   DATA_V1 or DATA_V2 header | HMAC | IV | encrypted: packet id 4 | packet
//! Static:                              HMAC | IV | encrypted: packet id 4 | time 4 | packet
//! ```
//!
//! A static key outlives its packet ids and the process: ids count up within a time stamp, and a later time stamp
//! restarts the count (`openvpn-wire-protocol`, data channel, CBC mode).

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use adit_crypto::DirectionKey;
use adit_crypto::aead::AeadError;
use adit_crypto::block::{OpenBlock, SealBlock};
use adit_openvpn::data_format::BlockSuite;

use super::{BurstUsage, ID_NEAR, Key};
use crate::packet::{self, Prefix};
use adit_dataplane::DropReason;
use adit_dataplane::format::{Opened, Opener, Seal};
use adit_dataplane::{ReplayCheck, ReplayWindow};

const ID_LEN: usize = 4;
const TIME_LEN: usize = 4;

#[derive(Debug)]
pub(super) struct BlockKey {
    suite: BlockSuite,
    seal: SealBlock,
    open: OpenBlock,
    replay: Mutex<TimedWindow>,
    /// For static keys, the time that packet ids are counted under now, in seconds since 1970. Written under the peer's TX lock.
    time: Option<AtomicU32>,
}

/// A replay window that restarts with each later time. Without times, every time is 0.
#[derive(Debug)]
struct TimedWindow {
    time: u32,
    window: ReplayWindow,
}

/// Seals one burst.
#[derive(Debug)]
pub struct BlockSealer<'k> {
    burst_usage: BurstUsage<'k>,
    seal: &'k SealBlock,
    /// The header; `None` for static keys.
    prefix: Option<Prefix>,
    time: u32,
}

/// Opens one run.
pub struct BlockOpener<'k> {
    open: &'k OpenBlock,
    window: MutexGuard<'k, TimedWindow>,
    timed: bool,
}

/// Returns the seconds since 1970; the wire format has 32 bits for them.
pub(super) fn unix_time() -> u32 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    u32::try_from(since.as_secs()).unwrap_or(u32::MAX)
}

impl BlockKey {
    /// Creates the keys. `time` is when a static key came into use.
    pub(super) fn new(
        suite: BlockSuite,
        seal: &DirectionKey,
        open: &DirectionKey,
        replay_window: u32,
        time: Option<u32>,
    ) -> Result<Self, AeadError> {
        Ok(Self {
            suite,
            seal: SealBlock::new(suite.cipher, suite.digest, seal)?,
            open: OpenBlock::new(suite.cipher, suite.digest, open)?,
            replay: Mutex::new(TimedWindow { time: 0, window: ReplayWindow::new(replay_window) }),
            time: time.map(AtomicU32::new),
        })
    }

    pub(super) fn suite(&self) -> BlockSuite {
        self.suite
    }

    /// Returns the newest packet id received.
    pub(super) fn newest(&self) -> u64 {
        self.replay.lock().unwrap_or_else(PoisonError::into_inner).window.newest()
    }

    /// Refuses all packets up to this id. The key is not static.
    pub(super) fn received_up_to(&mut self, newest: u64, replay_window: u32) {
        let window = ReplayWindow::after(newest, replay_window);
        self.replay = Mutex::new(TimedWindow { time: 0, window });
    }

    pub(super) fn is_static(&self) -> bool {
        self.time.is_some()
    }

    /// Restarts the count from 1 under a later time. Called only under the peer's TX lock.
    pub(super) fn restart_count(&self, key: &Key) {
        let Some(current) = &self.time else { return };
        if key.next_id.load(Relaxed) > 1 {
            let time = current.load(Relaxed);
            current.store(unix_time().max(time.saturating_add(1)), Relaxed);
            key.next_id.store(1, Relaxed);
        }
    }

    pub(super) fn sealer<'k>(&'k self, key: &'k Key, wire_id: Option<u32>) -> BlockSealer<'k> {
        let mut burst_usage = key.burst_usage();
        let mut time = 0;
        if let Some(current) = &self.time {
            time = current.load(Relaxed);
            if burst_usage.next_id >= ID_NEAR {
                // Long before the ids end: a burst is far shorter than the rest.
                time = unix_time().max(time.saturating_add(1));
                current.store(time, Relaxed);
                burst_usage.next_id = 1;
            }
        }
        let prefix = (!self.is_static()).then(|| Prefix::new(key.id, wire_id));
        BlockSealer { burst_usage, seal: &self.seal, prefix, time }
    }

    pub(super) fn opener(&self) -> BlockOpener<'_> {
        let window = self.replay.lock().unwrap_or_else(PoisonError::into_inner);
        BlockOpener { open: &self.open, window, timed: self.is_static() }
    }
}

impl Seal for BlockSealer<'_> {
    fn overhead(&self) -> usize {
        let head = match &self.prefix {
            Some(prefix) => prefix.head().len().saturating_add(ID_LEN),
            None => ID_LEN + TIME_LEN,
        };
        self.seal.overhead().saturating_add(head)
    }

    fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> Result<usize, DropReason> {
        let id = self.burst_usage.next_id()?;
        let number = u64::from(self.time) << 32 | u64::from(id);
        let mut head = [0; ID_LEN + TIME_LEN];
        let (id_bytes, time_bytes) = head.split_at_mut(ID_LEN);
        id_bytes.copy_from_slice(&id.to_be_bytes());
        time_bytes.copy_from_slice(&self.time.to_be_bytes());
        let (prefix, head) = match &self.prefix {
            Some(prefix) => (prefix.head(), &*id_bytes),
            None => (&[][..], &head[..]),
        };
        let sealed = out.split_at_mut_checked(prefix.len()).and_then(|(lead, rest)| {
            lead.copy_from_slice(prefix);
            let len = self.seal.seal(number, head, plain, rest)?;
            prefix.len().checked_add(len)
        });
        let len = sealed.ok_or(DropReason::TunMalformed)?;
        self.burst_usage.sealed(len);
        Ok(len)
    }
}

impl TimedWindow {
    fn check(&self, time: u32, id: u32) -> Option<ReplayCheck> {
        if time > self.time && id != 0 {
            return Some(ReplayCheck::Newest);
        }
        if time == self.time { self.window.check(id.into()) } else { None }
    }

    fn accept(&mut self, time: u32, id: u32) {
        if time > self.time {
            self.time = time;
            self.window.clear();
        }
        self.window.accept(id.into());
    }
}

impl Opener for BlockOpener<'_> {
    #[inline(never)]
    fn open<'p>(&mut self, datagram: &'p mut [u8]) -> Result<Opened<'p>, DropReason> {
        let start = if self.timed { 0 } else { packet::header_len(datagram) };
        let envelope = datagram.get_mut(start..).ok_or(DropReason::Short)?;
        let text = self.open.open(envelope).map_err(|AeadError| DropReason::BadTag)?;
        let (id, text) = text.split_first_chunk_mut::<ID_LEN>().ok_or(DropReason::Short)?;
        let id = u32::from_be_bytes(*id);
        let (time, text) = if self.timed {
            let (time, text) = text.split_first_chunk_mut::<TIME_LEN>().ok_or(DropReason::Short)?;
            (u32::from_be_bytes(*time), text)
        } else {
            (0, text)
        };
        let replay = self.window.check(time, id).ok_or(DropReason::Replayed)?;
        self.window.accept(time, id);
        Ok((replay, u64::from(time) << 32 | u64::from(id), text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::tests::spec;
    use crate::key::{ID_LAST, Opener, Sealer};
    use adit_crypto::{BlockCipher, Digest};
    use adit_dataplane::format::{FormatKey as _, Opener as _};
    use adit_openvpn::data_format::{DataKey, KeyLimits, Protection};

    const SUITE: BlockSuite =
        BlockSuite { cipher: Some(BlockCipher::Aes256Cbc), digest: Some(Digest::Sha1) };

    fn key(protection: Protection) -> Key {
        let half = DirectionKey { cipher: [1; 64], hmac: [2; 64] };
        let limits = KeyLimits::default();
        let key = DataKey { key_id: 0, protection, seal: half.clone(), open: half, limits };
        Key::new(&key, 64).unwrap()
    }

    fn at_time(key: &Key, time: u32) {
        let super::super::KeyFormat::Block(block) = &key.format else { panic!() };
        block.time.as_ref().unwrap().store(time, Relaxed);
    }

    fn time(key: &Key) -> u32 {
        let super::super::KeyFormat::Block(block) = &key.format else { panic!() };
        block.time.as_ref().unwrap().load(Relaxed)
    }

    fn seal(key: &Key) -> Result<Vec<u8>, DropReason> {
        let mut out = vec![0; 200];
        let Sealer::Block(mut sealer) = key.sealer(&spec(Some(7))) else { panic!() };
        let len = sealer.seal(b"packet", &mut out)?;
        assert!(len <= 6 + sealer.overhead());
        out.truncate(len);
        Ok(out)
    }

    fn open(key: &Key, packet: &[u8]) -> Result<ReplayCheck, DropReason> {
        let Opener::Block(mut opener) = key.opener() else { panic!() };
        opener.open(&mut packet.to_vec()).map(|(place, _, text)| {
            assert_eq!(text, b"packet");
            place
        })
    }

    #[test]
    fn packet_ids_never_wrap_under_keys_that_are_renegotiated() {
        let key = key(Protection::Block(SUITE));
        key.preset(ID_NEAR - 1, 0, 0);
        assert!(!key.near_limit());
        seal(&key).unwrap();
        assert!(key.near_limit());
        key.preset(ID_LAST, 0, 0);
        assert!(seal(&key).is_ok());
        assert_eq!(seal(&key), Err(DropReason::KeyExhausted));
    }

    #[test]
    fn under_a_static_key_they_begin_again_with_a_later_time() {
        let sender = key(Protection::Static(SUITE));
        let receiver = key(Protection::Static(SUITE));
        // A clock that was set back must not repeat a time.
        at_time(&sender, u32::MAX - 9);
        let before = seal(&sender).unwrap();
        assert_eq!(open(&receiver, &before), Ok(ReplayCheck::Newest));
        sender.preset(ID_NEAR, 0, 0);
        let after = seal(&sender).unwrap();
        assert_eq!(time(&sender), u32::MAX - 8);
        assert!(!sender.near_limit(), "no other key can be asked for");
        assert_eq!(open(&receiver, &after), Ok(ReplayCheck::Newest));
        assert_eq!(open(&receiver, &after), Err(DropReason::Replayed));
        assert_eq!(open(&receiver, &before), Err(DropReason::Replayed), "of an earlier time");
    }

    #[test]
    fn a_restart_of_the_peer_is_a_later_time_and_its_former_packets_stay_out() {
        let receiver = key(Protection::Static(SUITE));
        let former = key(Protection::Static(SUITE));
        at_time(&former, 1000);
        let sealed: Vec<_> = (0..3).map(|_| seal(&former).unwrap()).collect();
        assert_eq!(open(&receiver, &sealed[0]), Ok(ReplayCheck::Newest));
        assert_eq!(open(&receiver, &sealed[2]), Ok(ReplayCheck::Newest));
        let restarted = key(Protection::Static(SUITE));
        at_time(&restarted, 1001);
        let first = seal(&restarted).unwrap();
        assert_eq!(open(&receiver, &first), Ok(ReplayCheck::Newest));
        // The packet is in the window of its own time stamp, but a later time stamp has replaced that window.
        assert_eq!(open(&receiver, &sealed[1]), Err(DropReason::Replayed));
        assert_eq!(open(&receiver, &first), Err(DropReason::Replayed));
    }

    #[test]
    fn what_is_negotiated_is_authenticated_or_there_is_no_key() {
        let half = DirectionKey { cipher: [1; 64], hmac: [2; 64] };
        let suite = BlockSuite { digest: None, ..SUITE };
        let key = |protection| {
            let limits = KeyLimits::default();
            let (seal, open) = (half.clone(), half.clone());
            Key::new(&DataKey { key_id: 0, protection, seal, open, limits }, 64)
        };
        assert!(key(Protection::Block(suite)).is_none());
        // For `secret` with `auth none`, the operator requests this explicitly, at both ends.
        assert!(key(Protection::Static(suite)).is_some());
    }

    #[test]
    fn a_key_that_comes_into_use_has_the_time_of_now() {
        let now = unix_time();
        let time = time(&key(Protection::Static(SUITE)));
        assert!(now > 1_700_000_000 && (now..=now + 60).contains(&time));
    }
}
