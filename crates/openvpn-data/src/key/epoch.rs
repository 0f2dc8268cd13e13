//! The data format of OpenVPN 2.7. Both ends replace its keys on their own, long before a renegotiation.
//!
//! ```text
//! header 4 (1 without a peer-id) | epoch 2 | counter 6 | ciphertext | tag 16
//! AAD: everything before the ciphertext (without a peer-id: the packet id alone)
//! ```
//!
//! Each direction counts its own epochs. An end moves to the next epoch before its cipher's limit;
//! the other end follows when it has opened a packet of a later epoch. Only packets of the next few
//! epochs are accepted, so a forger cannot make us derive keys.

use std::collections::VecDeque;
use std::mem;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use adit_crypto::aead::{AeadError, TAG_LEN};
use adit_crypto::epoch::{EpochKey, EpochSecret};
use adit_crypto::{Cipher, DirectionKey};
use adit_engine::SecretBytes;
use serde::{Deserialize, Serialize};

use super::aead::is_gcm;
use super::{BurstUsage, FAILED_LIMIT, FAILED_NEAR, GCM_LIMIT, GCM_NEAR, Key, gcm_blocks};
use crate::packet::{self, Prefix};
use adit_dataplane::DropReason;
use adit_dataplane::format::{Opened, Opener, Seal};
use adit_dataplane::{ReplayCheck, ReplayWindow};

const ID_LEN: usize = 8;
/// The number of bits of the counter in a packet id.
const COUNTER_BITS: u32 = 48;
const COUNTER_LAST: u64 = (1 << COUNTER_BITS) - 1;
/// The counter at which sealing moves to the next epoch; a burst is far shorter than the rest.
const COUNTER_NEAR: u64 = COUNTER_LAST - (1 << 40);
/// The number of epochs after the current one whose packets are accepted.
const FUTURE: usize = 4;
/// The epoch at which either direction makes us renegotiate.
const NEAR_END: u32 = 0xf000;

#[derive(Debug)]
pub(super) struct Epoch {
    cipher: Cipher,
    /// The sending state. Locked under the peer's TX lock, for one burst.
    send: Mutex<SendState>,
    /// The receiving state. Locked for one run.
    receive: Mutex<ReceiveState>,
    /// The minimum epoch for our packets: the one that the peer has reached.
    due: AtomicU32,
    /// The later of the epochs of both directions.
    reached: AtomicU32,
}

/// The state of an [`Epoch`], for another process.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct SavedEpochs {
    /// The secret of the epoch of our packets.
    seal: SecretBytes,
    seal_epoch: u16,
    next: u64,
    sealed: u64,
    /// The secret of the peer's epoch.
    open: SecretBytes,
    open_epoch: u16,
    /// The newest counter received in it.
    newest: u64,
    failed: u64,
}

#[derive(Debug)]
struct SendState {
    secret: EpochSecret,
    epoch: u16,
    key: EpochKey,
    /// The next counter to send.
    next: u64,
    /// The blocks and packets sealed in this epoch.
    sealed: u64,
}

#[derive(Debug)]
struct ReceiveState {
    retiring: Option<ReceiveKey>,
    current: ReceiveKey,
    /// The epochs that follow the current one, in order. At most [`FUTURE`].
    future: VecDeque<ReceiveKey>,
    /// The secret of the last of these epochs.
    last: EpochSecret,
    /// The secret of the current epoch, from which another process derives the keys again.
    current_secret: EpochSecret,
    replay_window: u32,
}

/// The key that opens the packets of one epoch.
#[derive(Debug)]
struct ReceiveKey {
    epoch: u16,
    key: EpochKey,
    window: ReplayWindow,
    failed: u64,
}

/// Seals one burst.
#[derive(Debug)]
pub struct EpochSealer<'k> {
    burst_usage: BurstUsage<'k>,
    send: MutexGuard<'k, SendState>,
    prefix: Prefix,
    gcm: bool,
}

/// Opens one run.
pub struct EpochOpener<'k> {
    epoch: &'k Epoch,
    receive: MutexGuard<'k, ReceiveState>,
}

impl Epoch {
    pub(super) fn new(
        cipher: Cipher,
        seal: &DirectionKey,
        open: &DirectionKey,
        replay_window: u32,
    ) -> Result<Self, AeadError> {
        let secret = EpochSecret::first(seal)?;
        let send = SendState { key: secret.key(cipher)?, secret, epoch: 1, next: 1, sealed: 0 };
        let secret = EpochSecret::first(open)?;
        let current = ReceiveKey::new(1, secret.key(cipher)?, replay_window);
        Self::of(cipher, send, (secret, current), replay_window)
    }

    fn of(
        cipher: Cipher,
        send: SendState,
        (secret, current): (EpochSecret, ReceiveKey),
        replay_window: u32,
    ) -> Result<Self, AeadError> {
        let reached = send.epoch.max(current.epoch);
        let due = AtomicU32::new(current.epoch.into());
        let mut receive = ReceiveState {
            retiring: None,
            current,
            future: VecDeque::with_capacity(FUTURE),
            last: secret.clone(),
            current_secret: secret,
            replay_window,
        };
        receive.refill(cipher)?;
        Ok(Self {
            cipher,
            send: Mutex::new(send),
            receive: Mutex::new(receive),
            due,
            reached: AtomicU32::new(reached.into()),
        })
    }

    pub(super) fn cipher(&self) -> Cipher {
        self.cipher
    }

    /// Returns the state of both directions.
    pub(super) fn save(&self) -> SavedEpochs {
        let send = self.send.lock().unwrap_or_else(PoisonError::into_inner);
        let receive = self.receive.lock().unwrap_or_else(PoisonError::into_inner);
        SavedEpochs {
            seal: SecretBytes::of(send.secret.as_bytes()),
            seal_epoch: send.epoch,
            next: send.next,
            sealed: send.sealed,
            open: SecretBytes::of(receive.current_secret.as_bytes()),
            open_epoch: receive.current.epoch,
            newest: receive.current.window.newest(),
            failed: receive.current.failed,
        }
    }

    /// Continues with the epochs of another process. Packets of the peer's previous epoch are refused.
    pub(super) fn resume(cipher: Cipher, saved: &SavedEpochs, replay_window: u32) -> Option<Self> {
        let &SavedEpochs { seal_epoch, next, sealed, open_epoch, newest, failed, .. } = saved;
        if seal_epoch == 0 || open_epoch == 0 || next == 0 || next > COUNTER_LAST.checked_add(1)? {
            return None;
        }
        let secret = EpochSecret::new(*saved.seal.array()?);
        let key = secret.key(cipher).ok()?;
        let send = SendState { secret, epoch: seal_epoch, key, next, sealed };
        let secret = EpochSecret::new(*saved.open.array()?);
        let window = ReplayWindow::after(newest, replay_window);
        let current =
            ReceiveKey { epoch: open_epoch, key: secret.key(cipher).ok()?, window, failed };
        Self::of(cipher, send, (secret, current), replay_window).ok()
    }

    /// Moves our packets to this epoch.
    #[cfg(test)]
    pub(super) fn advance_to(&self, epoch: u32) {
        self.follow(epoch);
    }

    pub(super) fn sealer<'k>(&'k self, key: &'k Key, wire_id: Option<u32>) -> EpochSealer<'k> {
        let mut send = self.send.lock().unwrap_or_else(PoisonError::into_inner);
        let gcm = is_gcm(self.cipher);
        let mut due = self.due.load(Relaxed);
        if send.next >= COUNTER_NEAR || (gcm && send.sealed >= GCM_NEAR) {
            due = due.max(u32::from(send.epoch).saturating_add(1));
        }
        while u32::from(send.epoch) < due {
            // At the last epoch, or if the library fails, the key is used until its limit.
            if send.advance(self.cipher).is_err() {
                break;
            }
            self.reached.fetch_max(send.epoch.into(), Relaxed);
        }
        EpochSealer {
            burst_usage: key.burst_usage(),
            send,
            prefix: Prefix::new(key.id, wire_id),
            gcm,
        }
    }

    pub(super) fn opener(&self) -> EpochOpener<'_> {
        let receive = self.receive.lock().unwrap_or_else(PoisonError::into_inner);
        EpochOpener { epoch: self, receive }
    }

    /// Returns whether the epochs are nearly used up.
    pub(super) fn near_end(&self) -> bool {
        self.reached.load(Relaxed) >= NEAR_END
    }

    /// Moves our packets to this epoch or a later one.
    fn follow(&self, epoch: u32) {
        if self.due.load(Relaxed) < epoch {
            self.due.fetch_max(epoch, Relaxed);
        }
    }
}

impl SendState {
    fn advance(&mut self, cipher: Cipher) -> Result<(), AeadError> {
        let epoch = self.epoch.checked_add(1).ok_or(AeadError)?;
        let secret = self.secret.next()?;
        let key = secret.key(cipher)?;
        *self = Self { secret, epoch, key, next: 1, sealed: 0 };
        Ok(())
    }
}

impl ReceiveKey {
    fn new(epoch: u16, key: EpochKey, replay_window: u32) -> Self {
        Self { epoch, key, window: ReplayWindow::new(replay_window), failed: 0 }
    }
}

impl ReceiveState {
    /// Returns the key of an epoch and the epoch's age.
    fn find(&mut self, epoch: u16) -> Option<(EpochAge, &mut ReceiveKey)> {
        if epoch == self.current.epoch {
            return Some((EpochAge::Current, &mut self.current));
        }
        if let Some(retiring) = self.retiring.as_mut().filter(|key| key.epoch == epoch) {
            return Some((EpochAge::Retiring, retiring));
        }
        let ahead = epoch.checked_sub(self.current.epoch)?.checked_sub(1)?;
        let future = self.future.get_mut(usize::from(ahead))?;
        Some((EpochAge::Future(usize::from(ahead)), future))
    }

    /// Makes the peer's new epoch the current one, and discards keys older than the previous one.
    fn promote(&mut self, ahead: usize, cipher: Cipher) {
        let mut skipped = self.future.drain(..=ahead);
        let Some(newest) = skipped.next_back() else { return };
        drop(skipped);
        for _ in 0..=ahead {
            // The library fails here only if it failed to derive these keys before.
            if let Ok(next) = self.current_secret.next() {
                self.current_secret = next;
            }
        }
        self.retiring = Some(mem::replace(&mut self.current, newest));
        // If the library fails, fewer epochs are accepted; the next promotion tries again.
        let _ = self.refill(cipher);
    }

    fn refill(&mut self, cipher: Cipher) -> Result<(), AeadError> {
        while self.future.len() < FUTURE {
            let last = self.future.back().unwrap_or(&self.current).epoch;
            let Some(epoch) = last.checked_add(1) else { return Ok(()) };
            let secret = self.last.next()?;
            let key = secret.key(cipher)?;
            self.last = secret;
            self.future.push_back(ReceiveKey::new(epoch, key, self.replay_window));
        }
        Ok(())
    }
}

#[derive(Copy, Clone, Debug, Eq, PartialEq)]
enum EpochAge {
    Retiring,
    Current,
    /// Its distance from the current epoch.
    Future(usize),
}

impl Seal for EpochSealer<'_> {
    fn overhead(&self) -> usize {
        self.prefix.head().len().saturating_add(ID_LEN + TAG_LEN)
    }

    fn seal(&mut self, plain: &[u8], out: &mut [u8]) -> Result<usize, DropReason> {
        let send = &mut *self.send;
        let sealed = send.sealed.saturating_add(gcm_blocks(plain.len()));
        let counter = send.next;
        if counter > COUNTER_LAST || (self.gcm && sealed > GCM_LIMIT) {
            return Err(DropReason::KeyExhausted);
        }
        // Used up even if sealing fails, so a nonce is never used twice.
        send.next = counter.saturating_add(1);
        send.sealed = sealed;
        let id = u64::from(send.epoch) << COUNTER_BITS | counter;
        let len =
            self.prefix.seal_epoch(&send.key, id, plain, out).ok_or(DropReason::TunMalformed)?;
        self.burst_usage.sealed(len);
        Ok(len)
    }
}

impl Opener for EpochOpener<'_> {
    #[inline(never)]
    fn open<'p>(&mut self, datagram: &'p mut [u8]) -> Result<Opened<'p>, DropReason> {
        let packet::EpochSealed { packet_id, aad, tag, text } =
            packet::parse_epoch(datagram).ok_or(DropReason::Short)?;
        let epoch = (packet_id >> COUNTER_BITS) as u16;
        let counter = packet_id & COUNTER_LAST;
        let (age, key) = self.receive.find(epoch).ok_or(DropReason::UnknownKey)?;
        let replay = key.window.check(counter).ok_or(DropReason::Replayed)?;
        if key.failed >= FAILED_LIMIT {
            return Err(DropReason::KeyExhausted);
        }
        if key.key.open(packet_id, aad, tag, text).is_err() {
            key.failed = key.failed.saturating_add(1);
            if key.failed >= FAILED_NEAR {
                // The peer will follow us into an epoch whose key is not yet under attack.
                self.epoch.follow(u32::from(epoch).saturating_add(1));
            }
            return Err(DropReason::BadTag);
        }
        key.window.accept(counter);
        match age {
            EpochAge::Current => Ok((replay, packet_id, text)),
            EpochAge::Retiring => Ok((ReplayCheck::Late, packet_id, text)),
            EpochAge::Future(ahead) => {
                self.receive.promote(ahead, self.epoch.cipher);
                self.epoch.follow(epoch.into());
                self.epoch.reached.fetch_max(epoch.into(), Relaxed);
                Ok((ReplayCheck::Newest, packet_id, text))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::tests::spec;
    use crate::key::{Opener, Sealer};
    use adit_dataplane::format::{FormatKey as _, Opener as _};
    use adit_openvpn::data_format::{DataKey, KeyLimits, Protection};

    fn end(cipher: Cipher, first: bool) -> Key {
        let half = |byte| DirectionKey { cipher: [byte; 64], hmac: [byte; 64] };
        let (one, other) = (half(1), half(2));
        let (seal, open) = if first { (one, other) } else { (other, one) };
        let protection = Protection::Epoch(cipher);
        let limits = KeyLimits::default();
        Key::new(&DataKey { key_id: 3, protection, seal, open, limits }, 64).unwrap()
    }

    fn pair() -> (Key, Key) {
        (end(Cipher::Aes128Gcm, true), end(Cipher::Aes128Gcm, false))
    }

    fn epoch_of(key: &Key) -> &Epoch {
        let super::super::KeyFormat::Epoch(epoch) = &key.format else { panic!() };
        epoch
    }

    fn seal(key: &Key) -> Result<Vec<u8>, DropReason> {
        let mut out = vec![0; 100];
        let Sealer::Epoch(mut sealer) = key.sealer(&spec(Some(7))) else { panic!() };
        assert_eq!(sealer.overhead(), 28);
        let len = sealer.seal(b"packet", &mut out)?;
        out.truncate(len);
        Ok(out)
    }

    fn open(key: &Key, packet: &[u8]) -> Result<ReplayCheck, DropReason> {
        let Opener::Epoch(mut opener) = key.opener() else { panic!() };
        let mut packet = packet.to_vec();
        let (place, _, text) = opener.open(&mut packet)?;
        assert_eq!(text, b"packet");
        Ok(place)
    }

    /// Returns the epoch and counter of a packet.
    fn id(packet: &[u8]) -> (u16, u64) {
        let id = packet::parse_epoch(&mut packet.to_vec()).unwrap().packet_id;
        ((id >> 48) as u16, id & COUNTER_LAST)
    }

    fn to_epoch(key: &Key, epoch: u32) {
        epoch_of(key).follow(epoch);
    }

    #[test]
    fn epochs_begin_with_1_and_so_do_their_counters() {
        let (one, _) = pair();
        assert_eq!(id(&seal(&one).unwrap()), (1, 1));
        assert_eq!(id(&seal(&one).unwrap()), (1, 2));
        to_epoch(&one, 2);
        assert_eq!(id(&seal(&one).unwrap()), (2, 1));
    }

    #[test]
    fn a_limit_of_the_cipher_begins_another_epoch_in_time() {
        for (sealed, next, moves) in [
            (GCM_NEAR - 1, 9, false),
            (GCM_NEAR, 9, true),
            (0, COUNTER_NEAR - 1, false),
            (0, COUNTER_NEAR, true),
        ] {
            let (one, other) = pair();
            {
                let mut send = epoch_of(&one).send.lock().unwrap();
                (send.sealed, send.next) = (sealed, next);
            }
            let packet = seal(&one).unwrap();
            assert_eq!(id(&packet), if moves { (2, 1) } else { (1, next) });
            assert_eq!(open(&other, &packet), Ok(ReplayCheck::Newest));
        }
        let chacha = end(Cipher::ChaCha20Poly1305, true);
        epoch_of(&chacha).send.lock().unwrap().sealed = GCM_LIMIT * 2;
        assert_eq!(id(&seal(&chacha).unwrap()).0, 1, "it has no such limit");
    }

    #[test]
    fn at_the_last_epoch_a_key_stops_at_its_limits() {
        let (one, _) = pair();
        {
            let mut send = epoch_of(&one).send.lock().unwrap();
            (send.epoch, send.next) = (u16::MAX, COUNTER_LAST);
        }
        assert_eq!(id(&seal(&one).unwrap()), (u16::MAX, COUNTER_LAST));
        assert_eq!(seal(&one), Err(DropReason::KeyExhausted));
        let (one, _) = pair();
        {
            let mut send = epoch_of(&one).send.lock().unwrap();
            (send.epoch, send.sealed) = (u16::MAX, GCM_LIMIT - 2);
        }
        assert!(seal(&one).is_ok(), "exactly the last block and packet");
        assert_eq!(seal(&one), Err(DropReason::KeyExhausted));
    }

    #[test]
    fn a_later_epoch_of_the_peer_is_followed_and_the_one_before_still_opens() {
        let (one, other) = pair();
        let (early, late) = (seal(&one).unwrap(), seal(&one).unwrap());
        assert_eq!(open(&other, &early), Ok(ReplayCheck::Newest));
        to_epoch(&one, 3);
        let next = seal(&one).unwrap();
        assert_eq!(id(&next), (3, 1));
        assert_eq!(open(&other, &next), Ok(ReplayCheck::Newest));
        assert_eq!(id(&seal(&other).unwrap()), (3, 1), "our packets follow");
        // The key that was current is retired but keeps its replay window.
        assert_eq!(open(&other, &late), Ok(ReplayCheck::Late));
        assert_eq!(open(&other, &late), Err(DropReason::Replayed));
        assert_eq!(open(&other, &early), Err(DropReason::Replayed));
        assert_eq!(open(&other, &next), Err(DropReason::Replayed));
        to_epoch(&one, 4);
        assert_eq!(open(&other, &seal(&one).unwrap()), Ok(ReplayCheck::Newest));
        assert_eq!(open(&other, &late), Err(DropReason::UnknownKey), "one epoch back, not two");
    }

    #[test]
    fn four_epochs_ahead_are_awaited_and_no_more() {
        let (one, other) = pair();
        to_epoch(&one, 6);
        assert_eq!(open(&other, &seal(&one).unwrap()), Err(DropReason::UnknownKey));
        let (one, _) = pair();
        to_epoch(&one, 5);
        assert_eq!(open(&other, &seal(&one).unwrap()), Ok(ReplayCheck::Newest));
        to_epoch(&one, 9);
        assert_eq!(open(&other, &seal(&one).unwrap()), Ok(ReplayCheck::Newest), "four again");
        assert_eq!(epoch_of(&other).receive.lock().unwrap().future.len(), FUTURE);
    }

    /// CVE-2025-15497: a valid packet at the edge of the accepted epochs crashed the other end.
    #[test]
    fn cve_2025_15497_the_last_epochs_are_followed_to_their_end() {
        let (one, other) = pair();
        epoch_of(&one).send.lock().unwrap().epoch = 65_530;
        {
            let mut receive = epoch_of(&other).receive.lock().unwrap();
            let ReceiveState { current, future, .. } = &mut *receive;
            let all = std::iter::once(current).chain(future);
            all.zip(65_530..).for_each(|(key, epoch)| key.epoch = epoch);
        }
        assert_eq!(open(&other, &seal(&one).unwrap()), Ok(ReplayCheck::Newest));
        for (due, left) in [(65_534, 1), (65_535, 0), (70_000, 0)] {
            to_epoch(&one, due);
            let packet = seal(&one).unwrap();
            assert_eq!(u32::from(id(&packet).0), due.min(65_535));
            assert_eq!(open(&other, &packet), Ok(ReplayCheck::Newest));
            assert_eq!(open(&other, &packet), Err(DropReason::Replayed));
            assert_eq!(epoch_of(&other).receive.lock().unwrap().future.len(), left);
        }
        assert!(one.near_limit() && other.near_limit(), "long before, a new key was asked for");
    }

    #[test]
    fn a_forged_later_epoch_moves_nothing() {
        let (one, other) = pair();
        to_epoch(&one, 4);
        let mut forged = seal(&one).unwrap();
        *forged.last_mut().unwrap() ^= 1;
        assert_eq!(open(&other, &forged), Err(DropReason::BadTag));
        assert_eq!(id(&seal(&other).unwrap()).0, 1);
        assert_eq!(epoch_of(&other).receive.lock().unwrap().current.epoch, 1);
    }

    #[test]
    fn a_key_under_attack_is_left_for_another_epoch() {
        let (one, other) = pair();
        epoch_of(&other).receive.lock().unwrap().current.failed = FAILED_NEAR - 1;
        let mut forged = seal(&one).unwrap();
        forged[20] ^= 1;
        assert_eq!(open(&other, &forged), Err(DropReason::BadTag));
        let ours = seal(&other).unwrap();
        assert_eq!(id(&ours).0, 2);
        assert_eq!(open(&one, &ours), Ok(ReplayCheck::Newest));
        assert_eq!(id(&seal(&one).unwrap()).0, 2, "the peer follows");
        // Otherwise the receiver opens no packets at the end.
        let (one, other) = pair();
        epoch_of(&other).receive.lock().unwrap().current.failed = FAILED_LIMIT;
        assert_eq!(open(&other, &seal(&one).unwrap()), Err(DropReason::KeyExhausted));
    }

    #[test]
    fn near_the_last_epoch_another_key_is_asked_for() {
        let (one, other) = pair();
        to_epoch(&one, NEAR_END - 1);
        seal(&one).unwrap();
        assert!(!one.near_limit());
        to_epoch(&one, NEAR_END);
        seal(&one).unwrap();
        assert!(one.near_limit());
        // Alternatively, the peer follows. Its packets may be up to four epochs ahead each time.
        assert!(!other.near_limit());
        let (ahead, _) = pair();
        for epoch in (5..NEAR_END + 4).step_by(FUTURE) {
            to_epoch(&ahead, epoch);
            assert_eq!(open(&other, &seal(&ahead).unwrap()), Ok(ReplayCheck::Newest));
        }
        assert!(other.near_limit());
    }
}
