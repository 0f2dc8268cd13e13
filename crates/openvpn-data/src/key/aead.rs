//! The present format: an AEAD, with a 32-bit packet id before the tag.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Mutex, MutexGuard, PoisonError};

use adit_crypto::aead::{AeadError, OpenKey, SealKey};
use adit_crypto::{Cipher, DirectionKey};

use super::{BurstUsage, FAILED_LIMIT, GCM_LIMIT, Key, gcm_blocks};
use crate::packet::{self, Prefix};
use adit_dataplane::DropReason;
use adit_dataplane::ReplayWindow;
use adit_dataplane::format::{Opened, Opener, Seal};
use crossbeam_utils::CachePadded;

#[derive(Debug)]
pub(super) struct Aead {
    seal: SealKey,
    open: OpenKey,
    cipher: Cipher,
    gcm: bool,
    replay: CachePadded<Mutex<ReplayWindow>>,
}

/// Seals one burst.
#[derive(Debug)]
pub struct AeadSealer<'k> {
    burst_usage: BurstUsage<'k>,
    seal: &'k SealKey,
    prefix: Prefix,
    budget: u64,
}

/// Opens one run.
pub struct AeadOpener<'k> {
    key: &'k Key,
    open: &'k OpenKey,
    window: MutexGuard<'k, ReplayWindow>,
}

impl Aead {
    pub(super) fn new(
        cipher: Cipher,
        seal: &DirectionKey,
        open: &DirectionKey,
        replay_window: u32,
    ) -> Result<Self, AeadError> {
        Ok(Self {
            seal: SealKey::new(cipher, seal)?,
            open: OpenKey::new(cipher, open)?,
            cipher,
            gcm: is_gcm(cipher),
            replay: CachePadded::new(Mutex::new(ReplayWindow::new(replay_window))),
        })
    }

    pub(super) fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Returns the newest packet id received.
    pub(super) fn newest(&self) -> u64 {
        self.replay.lock().unwrap_or_else(PoisonError::into_inner).newest()
    }

    /// Refuses all packets up to this id.
    pub(super) fn received_up_to(&mut self, newest: u64, replay_window: u32) {
        self.replay = CachePadded::new(Mutex::new(ReplayWindow::after(newest, replay_window)));
    }

    pub(super) fn is_gcm(&self) -> bool {
        self.gcm
    }

    #[inline]
    pub(super) fn sealer<'k>(&'k self, key: &'k Key, wire_id: Option<u32>) -> AeadSealer<'k> {
        let sealed = key.sealed.blocks.load(Relaxed);
        AeadSealer {
            burst_usage: key.burst_usage(),
            seal: &self.seal,
            prefix: Prefix::new(key.id, wire_id),
            budget: if self.gcm { GCM_LIMIT.saturating_sub(sealed) } else { u64::MAX },
        }
    }

    #[inline]
    pub(super) fn opener<'k>(&'k self, key: &'k Key) -> AeadOpener<'k> {
        let window = self.replay.lock().unwrap_or_else(PoisonError::into_inner);
        AeadOpener { key, open: &self.open, window }
    }
}

/// Returns whether the cipher is AES-GCM, which weakens after [`GCM_LIMIT`].
pub(super) fn is_gcm(cipher: Cipher) -> bool {
    !matches!(cipher, Cipher::ChaCha20Poly1305)
}

impl Seal for AeadSealer<'_> {
    #[inline]
    fn overhead(&self) -> usize {
        self.prefix.overhead()
    }

    #[inline(always)]
    fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> Result<usize, DropReason> {
        let used = self.burst_usage.used.saturating_add(gcm_blocks(plain.len()));
        if used > self.budget {
            return Err(DropReason::KeyExhausted);
        }
        let id = self.burst_usage.next_id()?;
        self.burst_usage.used = used;
        let len = self.prefix.seal(self.seal, id, plain, out).ok_or(DropReason::TunMalformed)?;
        self.burst_usage.sealed(len);
        Ok(len)
    }
}

impl Opener for AeadOpener<'_> {
    #[inline(always)]
    fn open<'p>(&mut self, datagram: &'p mut [u8]) -> Result<Opened<'p>, DropReason> {
        let packet::SealedPacket { packet_id, aad, tag, text } =
            packet::parse(datagram).ok_or(DropReason::Short)?;
        let id = u64::from(packet_id);
        let replay = self.window.check(id).ok_or(DropReason::Replayed)?;
        if self.key.failed.load(Relaxed) >= FAILED_LIMIT {
            return Err(DropReason::KeyExhausted);
        }
        if self.open.open(packet_id, aad, tag, text).is_err() {
            self.key.failed.fetch_add(1, Relaxed);
            return Err(DropReason::BadTag);
        }
        self.window.accept(id);
        Ok((replay, id, text))
    }
}
