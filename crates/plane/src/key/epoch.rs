//! The format of OpenVPN 2.7: keys that both ends replace by themselves, long before a renegotiation.
//!
//! ```text
//! header 4 (1 without a peer-id) | epoch 2 | counter 6 | ciphertext | tag 16
//! AAD: everything before the ciphertext (without a peer-id: the packet id alone)
//! ```
//!
//! Each direction counts its own epochs. An end moves on before its cipher's limit; the other end
//! follows when it has opened a packet of a later epoch. Only the next few epochs are awaited, so
//! that a forger cannot make us derive keys.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use adit_crypto::aead::{Refused, TAG_LEN};
use adit_crypto::epoch::{EpochKey, EpochSecret};
use adit_crypto::{Cipher, KeyHalf};

use super::aead::is_gcm;
use super::{
    FAILED_LIMIT, FAILED_NEAR, GCM_LIMIT, GCM_NEAR, Key, Ledger, Open, Opened, Seal, usage,
};
use crate::packet::{self, Prefix};
use crate::replay::{Place, Window};
use crate::stats::DropReason;

const ID_LEN: usize = 8;
/// Bits of the counter in a packet id.
const COUNTER_BITS: u32 = 48;
const COUNTER_LAST: u64 = (1 << COUNTER_BITS) - 1;
/// Move on to another epoch at this counter; a burst is far shorter than what is left.
const COUNTER_NEAR: u64 = COUNTER_LAST - (1 << 40);
/// Epochs after the current one that are awaited.
const FUTURE: usize = 4;
/// Renegotiate when either direction comes here.
const NEAR_END: u32 = 0xf000;

#[derive(Debug)]
pub(super) struct Epoch {
    cipher: Cipher,
    /// Locked under the peer's TX lock, for one burst.
    send: Mutex<Sending>,
    /// Locked for one run.
    receive: Mutex<Receiving>,
    /// The epoch that our packets should have at least: what the peer has reached.
    due: AtomicU32,
    /// The later of the epochs of both directions.
    reached: AtomicU32,
}

#[derive(Debug)]
struct Sending {
    secret: EpochSecret,
    epoch: u16,
    key: EpochKey,
    /// Next counter to send.
    next: u64,
    /// Blocks and packets sealed in this epoch.
    sealed: u64,
}

#[derive(Debug)]
struct Receiving {
    retiring: Option<Received>,
    current: Received,
    /// The epochs right after the current one, in order. At most [`FUTURE`].
    future: VecDeque<Received>,
    /// The secret of the last of them.
    last: EpochSecret,
    replay_window: u32,
}

/// What opens the packets of one epoch.
#[derive(Debug)]
struct Received {
    epoch: u16,
    key: EpochKey,
    window: Window,
    failed: u64,
}

/// Seals one burst.
#[derive(Debug)]
pub(crate) struct EpochSealer<'k> {
    ledger: Ledger<'k>,
    send: MutexGuard<'k, Sending>,
    prefix: Prefix,
    gcm: bool,
}

/// Opens one run.
pub(crate) struct EpochOpener<'k> {
    epoch: &'k Epoch,
    receive: MutexGuard<'k, Receiving>,
}

impl Epoch {
    pub fn new(
        cipher: Cipher,
        seal: &KeyHalf,
        open: &KeyHalf,
        replay_window: u32,
    ) -> Result<Self, Refused> {
        let secret = EpochSecret::first(seal)?;
        let send = Sending { key: secret.key(cipher)?, secret, epoch: 1, next: 1, sealed: 0 };
        let last = EpochSecret::first(open)?;
        let current = Received::new(1, last.key(cipher)?, replay_window);
        let future = VecDeque::with_capacity(FUTURE);
        let mut receive = Receiving { retiring: None, current, future, last, replay_window };
        receive.refill(cipher)?;
        Ok(Self {
            cipher,
            send: Mutex::new(send),
            receive: Mutex::new(receive),
            due: AtomicU32::new(1),
            reached: AtomicU32::new(1),
        })
    }

    pub fn sealer<'k>(&'k self, key: &'k Key, wire_id: Option<u32>) -> EpochSealer<'k> {
        let mut send = self.send.lock().unwrap_or_else(PoisonError::into_inner);
        let gcm = is_gcm(self.cipher);
        let mut due = self.due.load(Relaxed);
        if send.next >= COUNTER_NEAR || (gcm && send.sealed >= GCM_NEAR) {
            due = due.max(u32::from(send.epoch).saturating_add(1));
        }
        while u32::from(send.epoch) < due {
            // At the last epoch, or if the library fails: the key goes on until its limit.
            if send.advance(self.cipher).is_err() {
                break;
            }
            self.reached.fetch_max(send.epoch.into(), Relaxed);
        }
        EpochSealer { ledger: key.ledger(), send, prefix: Prefix::new(key.id, wire_id), gcm }
    }

    pub fn opener(&self) -> EpochOpener<'_> {
        let receive = self.receive.lock().unwrap_or_else(PoisonError::into_inner);
        EpochOpener { epoch: self, receive }
    }

    /// Whether the epochs come to their end.
    pub fn near_end(&self) -> bool {
        self.reached.load(Relaxed) >= NEAR_END
    }

    /// Our packets should have this epoch or a later one.
    fn follow(&self, epoch: u32) {
        if self.due.load(Relaxed) < epoch {
            self.due.fetch_max(epoch, Relaxed);
        }
    }
}

impl Sending {
    fn advance(&mut self, cipher: Cipher) -> Result<(), Refused> {
        let epoch = self.epoch.checked_add(1).ok_or(Refused)?;
        let secret = self.secret.next()?;
        let key = secret.key(cipher)?;
        *self = Self { secret, epoch, key, next: 1, sealed: 0 };
        Ok(())
    }
}

impl Received {
    fn new(epoch: u16, key: EpochKey, replay_window: u32) -> Self {
        Self { epoch, key, window: Window::new(replay_window), failed: 0 }
    }
}

impl Receiving {
    /// Which place the key of an epoch has.
    fn find(&mut self, epoch: u16) -> Option<(Age, &mut Received)> {
        if epoch == self.current.epoch {
            return Some((Age::Current, &mut self.current));
        }
        if let Some(retiring) = self.retiring.as_mut().filter(|key| key.epoch == epoch) {
            return Some((Age::Retiring, retiring));
        }
        let ahead = epoch.checked_sub(self.current.epoch)?.checked_sub(1)?;
        let future = self.future.get_mut(usize::from(ahead))?;
        Some((Age::Future(usize::from(ahead)), future))
    }

    /// The peer has moved on: forget what is older than the epoch it left.
    fn promote(&mut self, ahead: usize, cipher: Cipher) {
        let mut skipped = self.future.drain(..=ahead);
        let Some(newest) = skipped.next_back() else { return };
        drop(skipped);
        self.retiring = Some(mem::replace(&mut self.current, newest));
        // If the library fails, fewer epochs are awaited; the next promotion tries again.
        let _ = self.refill(cipher);
    }

    fn refill(&mut self, cipher: Cipher) -> Result<(), Refused> {
        while self.future.len() < FUTURE {
            let last = self.future.back().unwrap_or(&self.current).epoch;
            let Some(epoch) = last.checked_add(1) else { return Ok(()) };
            let secret = self.last.next()?;
            let key = secret.key(cipher)?;
            self.last = secret;
            self.future.push_back(Received::new(epoch, key, self.replay_window));
        }
        Ok(())
    }
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum Age {
    Retiring,
    Current,
    /// How many epochs lie between it and the current one.
    Future(usize),
}

impl Seal for EpochSealer<'_> {
    fn overhead(&self) -> usize {
        self.prefix.head().len().saturating_add(ID_LEN + TAG_LEN)
    }

    fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> Result<usize, DropReason> {
        let send = &mut *self.send;
        let sealed = send.sealed.saturating_add(usage(plain.len()));
        let counter = send.next;
        if counter > COUNTER_LAST || (self.gcm && sealed > GCM_LIMIT) {
            return Err(DropReason::KeyExhausted);
        }
        // Spent even if sealing fails: a nonce is never tried twice.
        send.next = counter.saturating_add(1);
        send.sealed = sealed;
        let id = u64::from(send.epoch) << COUNTER_BITS | counter;
        let len =
            self.prefix.seal_epoch(&send.key, id, plain, out).ok_or(DropReason::TunMalformed)?;
        self.ledger.sealed(len);
        Ok(len)
    }
}

impl Open for EpochOpener<'_> {
    #[inline(never)]
    fn open<'p>(&mut self, datagram: &'p mut [u8]) -> Opened<'p> {
        let packet::EpochSealed { packet_id, aad, tag, text } =
            packet::parse_epoch(datagram).ok_or(DropReason::Short)?;
        let epoch = (packet_id >> COUNTER_BITS) as u16;
        let counter = packet_id & COUNTER_LAST;
        let (age, key) = self.receive.find(epoch).ok_or(DropReason::UnknownKey)?;
        let place = key.window.check(counter).ok_or(DropReason::Replayed)?;
        if key.failed >= FAILED_LIMIT {
            return Err(DropReason::KeyExhausted);
        }
        if key.key.open(packet_id, aad, tag, text).is_err() {
            key.failed = key.failed.saturating_add(1);
            if key.failed >= FAILED_NEAR {
                // The peer follows us into an epoch whose key is not under attack yet.
                self.epoch.follow(u32::from(epoch).saturating_add(1));
            }
            return Err(DropReason::BadTag);
        }
        key.window.accept(counter);
        match age {
            Age::Current => Ok((place, packet_id, text)),
            Age::Retiring => Ok((Place::Late, packet_id, text)),
            Age::Future(ahead) => {
                self.receive.promote(ahead, self.epoch.cipher);
                self.epoch.follow(epoch.into());
                self.epoch.reached.fetch_max(epoch.into(), Relaxed);
                Ok((Place::Newest, packet_id, text))
            }
        }
    }
}
