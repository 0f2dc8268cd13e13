//! The datagram form of a session, for packets between any two nodes.
//!
//! A record is `sequence number 4 | type 1 | data`, and after the first handshake
//! `sequence number 4 | sealed(type 1 | data) | tag 16`. Handshake records travel in messages between neighbours, in order; records of the
//! application travel in datagrams, which may be lost, reordered and repeated.
//!
//! All records of a direction share one sequence of numbers. So a rekey's ACK, the last record under the old key, also tells under which key
//! every other record is sealed: up to its number under the old one, and after it under the new one.

use std::sync::Arc;

use adit_engine::Random;

use super::handshake::{Handshake, OwnKex, Step};
use super::numbers::Numbers;
use super::window::WindowSize;
use super::{CipherChoice, Error, Event, HANDSHAKE, HARD_LIMIT, Params};
use crate::aead::{Cipher, Key, TAG_LEN};

/// The number of bytes by which a sealed record is longer than its data.
pub const DATAGRAM_OVERHEAD: usize = SEQNO + 1 + TAG_LEN;

/// The number of records after which a new session should replace this one, long before it has used its sequence numbers.
const SOFT_LIMIT: u64 = 1 << 31;

/// The number of records of one direction after which AES-256-GCM needs new keys. With the longest records, these are 2^36 blocks.
const AES_RECORDS: u64 = 1 << 29;

/// Length of the sequence number.
const SEQNO: usize = 4;

/// The number of records after the ACK of a tolerant peer that may still be under the old key, because another layer seals them.
const MAX_LATE: u32 = 4096;

/// Length of the longest record that can be opened while there are two keys for it: longer than any packet.
const MAX_COPY: usize = 2048;

/// A session for packets between two nodes.
///
/// A record that is refused changes nothing.
#[derive(Debug)]
pub struct Datagram {
    handshake: Handshake,
    send_key: Option<Key>,
    /// The number of times that keys changed.
    generation: u32,
    /// The numbers of the first records under the current keys: to send, and to receive.
    keyed_at: (u64, u64),
    numbers: Arc<Numbers>,
    receive: ReceiveKeys,
    window_size: WindowSize,
    /// The lowest sequence number that the peer's next handshake record can have. Before the first keys it has exactly this
    /// number.
    next_handshake: u32,
}

/// A session that another layer shares: it seals and opens records of the application itself.
#[derive(Clone, Debug)]
pub struct SharedSession {
    /// The key of records to send.
    pub send: Key,
    /// The keys of records that arrive.
    pub receive: ReceiveKeys,
    /// The sequence numbers.
    pub numbers: Arc<Numbers>,
    generation: u32,
}

impl SharedSession {
    /// Returns whether both are the same session with the same keys.
    pub fn is_same(&self, other: &Self) -> bool {
        self.is_continued_by(other) && self.generation == other.generation
    }

    /// Returns whether both are the same session, and this one may be in use until the other one, with its later keys, is.
    pub fn is_continued_by(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.numbers, &other.numbers)
    }
}

/// The keys of the records that may arrive.
#[derive(Clone, Debug, Default)]
pub struct ReceiveKeys {
    current: Option<Key>,
    /// The key after the next ACK. Records under it may overtake the ACK.
    next: Option<Key>,
    previous: Option<Previous>,
}

/// The key before the last ACK.
#[derive(Clone, Debug)]
struct Previous {
    key: Key,
    /// The number of the ACK.
    ack: u32,
    /// The number of the last record that may be under the key.
    last: u32,
}

impl ReceiveKeys {
    /// Decrypts a record in place.
    ///
    /// # Errors
    /// The record is not authentic. `data` is then undefined.
    #[inline]
    pub fn open(&self, seqno: u32, data: &mut [u8], tag: &[u8]) -> Result<(), Error> {
        let current = self.current.as_ref().ok_or(Error::NotEstablished)?;
        let (first, second) = match (&self.previous, &self.next) {
            (Some(previous), _) if seqno <= previous.ack => (&previous.key, None),
            (_, Some(next)) => (current, Some(next)),
            (Some(previous), None) if seqno <= previous.last => (current, Some(&previous.key)),
            (_, None) => (current, None),
        };
        match second {
            None => first.open(seqno, data, tag).map_err(|_| Error::Forged),
            Some(second) => open_by_either([first, second], seqno, data, tag),
        }
    }

    /// Switches to the next key. `ack` is the number of the ACK, which is the last record under the current one, but for a number of `late` ones.
    fn switch(&mut self, ack: u32, late: u32) {
        let (next, last) = (self.next.take(), ack.saturating_add(late));
        let previous = std::mem::replace(&mut self.current, next);
        self.previous = previous.map(|key| Previous { key, ack, last });
    }
}

/// Decrypts a record under the first of two keys that fits. The first attempt may alter the data, so a copy of it is kept.
#[inline(never)]
fn open_by_either(keys: [&Key; 2], seqno: u32, data: &mut [u8], tag: &[u8]) -> Result<(), Error> {
    let [first, second] = keys;
    let mut copy = [0; MAX_COPY];
    let copy = copy.get_mut(..data.len()).ok_or(Error::TooLong(data.len()))?;
    copy.copy_from_slice(data);
    if first.open(seqno, data, tag).is_ok() {
        return Ok(());
    }
    data.copy_from_slice(copy);
    second.open(seqno, data, tag).map_err(|_| Error::Forged)
}

impl Datagram {
    /// Starts a session. Returns it, and its first handshake record.
    pub fn start(params: Params, window: WindowSize, random: &mut Random) -> (Self, Vec<u8>) {
        let own = match params.cipher {
            CipherChoice::Fixed(_) => OwnKex::generate(random),
            CipherChoice::Agree => OwnKex::generate_marked(random),
        };
        Self::start_with(params, window, own)
    }

    pub(super) fn start_with(params: Params, window: WindowSize, own: OwnKex) -> (Self, Vec<u8>) {
        let (handshake, message) = Handshake::start(params, own);
        let mut session = Self {
            handshake,
            send_key: None,
            generation: 0,
            keyed_at: (0, 0),
            numbers: Arc::new(Numbers::new(window)),
            receive: ReceiveKeys::default(),
            window_size: window,
            next_handshake: 0,
        };
        let mut record = Vec::new();
        // The first record has no key, and fits.
        let sent = session.put(HANDSHAKE, &message, &mut record);
        debug_assert_eq!(sent, Ok(()));
        (session, record)
    }

    /// Returns whether the application may send records.
    pub fn is_established(&self) -> bool {
        self.handshake.is_established()
    }

    /// Returns whether a new session should replace this one, because its sequence numbers will end.
    pub fn needs_replacement(&self) -> bool {
        self.numbers.taken() >= SOFT_LIMIT || self.numbers.window().next() >= SOFT_LIMIT
    }

    /// Returns whether the cipher should not be used for many more records under the current keys.
    pub fn needs_rekey(&self) -> bool {
        let (sent, received) = (self.numbers.taken(), self.numbers.window().next());
        let (first_sent, first_received) = self.keyed_at;
        self.cipher() == Some(Cipher::Aes256Gcm)
            && (sent.saturating_sub(first_sent) >= AES_RECORDS
                || received.saturating_sub(first_received) >= AES_RECORDS)
    }

    /// Takes note that the peer offers AES-256-GCM. Its offer travels with its first handshake record, which is handled afterwards.
    pub fn peer_offers(&mut self) {
        self.handshake.peer_offers();
    }

    /// Returns the cipher, once it is known: at the latest when the session is established.
    pub fn cipher(&self) -> Option<Cipher> {
        self.handshake.cipher()
    }

    /// Returns whether the peer may be unable to decrypt records that are sent now. In a rekey with tinc this is the time from this side's ACK to the
    /// peer's: tinc discards a record under the new key that overtakes this side's ACK.
    pub fn must_hold_records(&self) -> bool {
        self.handshake.has_sent_ack() && !self.is_peer_tolerant()
    }

    /// Returns whether the peer may already seal under a key that this side does not know yet.
    pub fn awaits_receive_key(&self) -> bool {
        self.handshake.awaits_keys() && !self.is_peer_tolerant()
    }

    /// Returns whether records may be sealed at any time during a rekey, whatever they overtake.
    pub fn is_peer_tolerant(&self) -> bool {
        self.handshake.is_peer_tolerant()
    }

    /// Starts the exchange of new keys. Returns the handshake record to send.
    ///
    /// # Errors
    /// Fails if a handshake is in progress, or the sequence numbers are used up.
    pub fn rekey(&mut self, random: &mut Random) -> Result<Vec<u8>, Error> {
        self.rekey_with(OwnKex::generate(random))
    }

    pub(super) fn rekey_with(&mut self, own: OwnKex) -> Result<Vec<u8>, Error> {
        if self.numbers.taken() >= HARD_LIMIT.into() {
            return Err(Error::Exhausted);
        }
        let message = self.handshake.rekey(own)?;
        let mut record = Vec::new();
        self.put(HANDSHAKE, &message, &mut record)?;
        Ok(record)
    }

    /// Handles a handshake record, and appends the handshake records to send in answer to `out`.
    ///
    /// Handshake records arrive in order but may be overtaken by any number of datagrams, so the replay window does not apply to
    /// them: each must have a higher number than the one before.
    ///
    /// # Errors
    /// The record is refused, and changed nothing.
    pub fn receive_handshake(
        &mut self,
        record: &[u8],
        random: &mut Random,
        out: &mut Vec<Vec<u8>>,
    ) -> Result<Option<Event>, Error> {
        self.receive_handshake_with(record, &mut || OwnKex::generate(random), out)
    }

    pub(super) fn receive_handshake_with(
        &mut self,
        record: &[u8],
        fresh: &mut dyn FnMut() -> OwnKex,
        out: &mut Vec<Vec<u8>>,
    ) -> Result<Option<Event>, Error> {
        let (seqno, body) = self.open_handshake(record)?;
        let message = body.get(1..).unwrap_or_default();
        // An answer has at most two records.
        if self.numbers.taken() >= HARD_LIMIT.saturating_sub(1).into() {
            return Err(Error::Exhausted);
        }
        let steps = self.handshake.receive(message, fresh)?;
        self.next_handshake = seqno.saturating_add(1);
        self.numbers.window().advance(seqno);
        self.perform(seqno, steps, out)
    }

    /// Checks whether a handshake record is authentic, as far as there are keys, and the next one or later.
    ///
    /// # Errors
    /// The record would be refused.
    pub fn check_handshake(&self, record: &[u8]) -> Result<(), Error> {
        self.open_handshake(record).map(drop)
    }

    /// Returns the number of a handshake record, and its type and message.
    fn open_handshake(&self, record: &[u8]) -> Result<(u32, Vec<u8>), Error> {
        let (seqno, body) = split_seqno(record)?;
        let mut body = body.to_vec();
        if self.receive.current.is_some() {
            if seqno < self.next_handshake {
                return Err(Error::Replayed(seqno));
            }
            let at = body.len().saturating_sub(TAG_LEN);
            let tag = body.split_off(at);
            self.receive.open(seqno, &mut body, &tag)?;
        } else if seqno != self.next_handshake {
            return Err(Error::OutOfOrder(seqno));
        }
        match body.first() {
            None => Err(Error::Length(record.len())),
            Some(&HANDSHAKE) => Ok((seqno, body)),
            Some(kind) => Err(Error::UnexpectedType(*kind)),
        }
    }

    fn perform(
        &mut self,
        seqno: u32,
        steps: Vec<Step>,
        out: &mut Vec<Vec<u8>>,
    ) -> Result<Option<Event>, Error> {
        let mut event = None;
        for step in steps {
            match step {
                Step::Send(message) => {
                    let mut record = Vec::new();
                    self.put(HANDSHAKE, &message, &mut record)?;
                    out.push(record);
                }
                Step::Expect(key) => {
                    self.receive.next = Some(key);
                    self.generation = self.generation.wrapping_add(1);
                }
                Step::SwitchSending(key) => {
                    self.send_key = Some(key);
                    self.generation = self.generation.wrapping_add(1);
                }
                Step::SwitchReceiving => {
                    let first = self.receive.current.is_none();
                    let late = if self.is_peer_tolerant() { MAX_LATE } else { 0 };
                    self.receive.switch(seqno, late);
                    self.keyed_at = (self.numbers.taken(), self.numbers.window().next());
                    self.generation = self.generation.wrapping_add(1);
                    event = Some(if first { Event::Established } else { Event::Rekeyed });
                }
            }
        }
        Ok(event)
    }

    /// Appends a sealed record of the application to `out`.
    ///
    /// # Errors
    /// Fails if the session is not established, the type is above 127, the data is longer than 65,535 bytes, or the sequence
    /// numbers are used up.
    pub fn seal(&mut self, kind: u8, data: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        if self.send_key.is_none() {
            return Err(Error::NotEstablished);
        }
        if kind >= HANDSHAKE {
            return Err(Error::UnexpectedType(kind));
        }
        self.put(kind, data, out)
    }

    /// Returns what another layer needs to seal and open records of the application. `None` before the first keys and, unless the peer is tolerant,
    /// during a rekey, when the order of records among handshake records matters.
    ///
    /// The other layer must stop to seal before a handshake record is handled or sent, unless the peer is tolerant: then it may seal on and get the new
    /// keys a moment later. Records must be sent in the order of their numbers.
    pub fn share(&self) -> Option<SharedSession> {
        let send = self.send_key.clone().filter(|_| self.receive.current.is_some())?;
        if self.handshake.is_in_progress() && !self.is_peer_tolerant() {
            return None;
        }
        let (receive, numbers) = (self.receive.clone(), Arc::clone(&self.numbers));
        Some(SharedSession { send, receive, numbers, generation: self.generation })
    }

    /// Opens a record of the application in place. Returns its type and its data.
    ///
    /// # Errors
    /// The record is refused, and changed nothing but the count of records that are too far ahead.
    pub fn open<'a>(&mut self, record: &'a mut [u8]) -> Result<(u8, &'a [u8]), Error> {
        if self.receive.current.is_none() {
            return Err(Error::NotEstablished);
        }
        let len = record.len();
        if len < DATAGRAM_OVERHEAD {
            return Err(Error::Length(len));
        }
        let (seqno, _) = split_seqno(record)?;
        let (_, body) = record.split_at_mut_checked(SEQNO).ok_or(Error::Length(len))?;
        let at = body.len().saturating_sub(TAG_LEN);
        let (body, tag) = body.split_at_mut_checked(at).ok_or(Error::Length(len))?;
        self.receive.open(seqno, body, tag)?;
        let (kind, data) = body.split_first().ok_or(Error::Length(len))?;
        if *kind >= HANDSHAKE {
            return Err(Error::UnexpectedType(*kind));
        }
        self.numbers.window().accept(seqno)?;
        // No record under the previous key can be accepted any more.
        if self.receive.previous.as_ref().is_some_and(|it| self.is_past(it.last)) {
            self.receive.previous = None;
        }
        Ok((*kind, data))
    }

    /// Returns whether the window has moved past a number. Without a window, a window of the usual size counts.
    fn is_past(&self, number: u32) -> bool {
        let records = self.window_size.records().max(WindowSize::DEFAULT.records());
        self.numbers.window().next().saturating_sub(records) > u64::from(number)
    }

    fn put(&mut self, kind: u8, data: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        if data.len() > usize::from(u16::MAX) {
            return Err(Error::TooLong(data.len()));
        }
        let seqno = self.numbers.take()?;
        out.extend_from_slice(&seqno.to_be_bytes());
        let start = out.len();
        out.push(kind);
        out.extend_from_slice(data);
        if let Some(key) = &self.send_key {
            let sealed = key.seal(seqno, out.get_mut(start..).unwrap_or_default());
            let Ok(tag) = sealed else {
                out.truncate(start.saturating_sub(SEQNO));
                return Err(Error::Library);
            };
            out.extend_from_slice(&tag);
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn knows_previous_key(&self) -> bool {
        self.receive.previous.is_some()
    }

    /// Sets the next sequence number, for tests of its limits.
    #[cfg(test)]
    pub(crate) fn set_seqno(&self, seqno: u32) {
        self.numbers.set(seqno);
    }
}

/// Splits a record into its sequence number and its body.
fn split_seqno(record: &[u8]) -> Result<(u32, &[u8]), Error> {
    let (seqno, body) = record.split_first_chunk::<SEQNO>().ok_or(Error::Length(record.len()))?;
    Ok((u32::from_be_bytes(*seqno), body))
}
