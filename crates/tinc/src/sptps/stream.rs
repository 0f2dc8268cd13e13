//! The stream form of a session, over a TCP connection.
//!
//! A record is `length 2 | type 1 | data`, and after the first handshake `length 2 | sealed(type 1 | data) | tag 16`. The length
//! is that of the data, and is not authenticated.

use adit_engine::Random;

use super::handshake::{Handshake, KEX_LEN, OwnKex, SIG_LEN, Step};
use super::{CipherChoice, Error, Event, HANDSHAKE, HARD_LIMIT, Params};
use crate::aead::{Key, TAG_LEN};

/// The number of bytes by which a sealed record is longer than its data.
pub const STREAM_OVERHEAD: usize = LENGTH + 1 + TAG_LEN;

/// Length of the length field.
const LENGTH: usize = 2;

/// A record of the application, or an event.
#[derive(Debug, PartialEq, Eq)]
pub enum Received<'a> {
    /// A record of the application: its type, and its data.
    Record(u8, &'a [u8]),
    /// The session changed.
    Event(Event),
}

/// A session over a TCP connection.
///
/// The first error ends the session, and the connection must be closed.
#[derive(Debug)]
pub struct Stream {
    handshake: Handshake,
    send: Direction,
    receive: Direction,
    /// The receiving key after the next ACK.
    next: Option<Key>,
    /// The record that is being received: at most one of the largest length. Returned records borrow it.
    partial: Vec<u8>,
    /// `partial` is a record that was returned, and not the start of another.
    complete: bool,
    ended: bool,
}

/// One direction: every record has a sequence number, also before there is a key.
#[derive(Debug, Default)]
struct Direction {
    key: Option<Key>,
    seqno: u32,
}

impl Direction {
    fn next_seqno(&mut self) -> Result<u32, Error> {
        let seqno = self.seqno;
        if seqno >= HARD_LIMIT {
            return Err(Error::Exhausted);
        }
        self.seqno = seqno.saturating_add(1);
        Ok(seqno)
    }
}

impl Stream {
    /// Starts a session, and appends its first record to `out`. Neither side waits for the other's. The sides of a stream agree on nothing: without
    /// a fixed cipher, it is ChaCha20-Poly1305.
    pub fn start(params: Params, random: &mut Random, out: &mut Vec<u8>) -> Self {
        Self::start_with(params, OwnKex::generate(random), out)
    }

    pub(super) fn start_with(mut params: Params, own: OwnKex, out: &mut Vec<u8>) -> Self {
        if params.cipher == CipherChoice::Agree {
            params.cipher = CipherChoice::default();
        }
        let (handshake, message) = Handshake::start(params, own);
        let mut stream = Self {
            handshake,
            send: Direction::default(),
            receive: Direction::default(),
            next: None,
            partial: Vec::new(),
            complete: false,
            ended: false,
        };
        // The first record has no key, and fits.
        let sent = stream.put(HANDSHAKE, &message, out);
        debug_assert_eq!(sent, Ok(()));
        stream
    }

    /// Returns whether the application may send records.
    pub fn is_established(&self) -> bool {
        self.handshake.is_established() && !self.ended
    }

    /// Appends a record of the application to `out`.
    ///
    /// # Errors
    /// Fails if the session is not established or has ended, the type is above 127, or the data is longer than 65,535
    /// bytes.
    pub fn send(&mut self, kind: u8, data: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        if self.ended {
            return Err(Error::Ended);
        }
        if !self.handshake.is_established() {
            return Err(Error::NotEstablished);
        }
        if kind >= HANDSHAKE {
            return Err(Error::UnexpectedType(kind));
        }
        self.put(kind, data, out)
    }

    /// Starts the exchange of new keys, and appends its first record to `out`.
    ///
    /// # Errors
    /// Fails if a handshake is in progress, or if the session has ended.
    pub fn rekey(&mut self, random: &mut Random, out: &mut Vec<u8>) -> Result<(), Error> {
        self.rekey_with(OwnKex::generate(random), out)
    }

    pub(super) fn rekey_with(&mut self, own: OwnKex, out: &mut Vec<u8>) -> Result<(), Error> {
        if self.ended {
            return Err(Error::Ended);
        }
        let message = self.handshake.rekey(own)?;
        self.put(HANDSHAKE, &message, out)
    }

    /// Takes bytes from the front of `input` up to the end of the next record of the application or event, and appends answers to
    /// `out`. Returns `None` when the input is used up. A record may say that the bytes after it belong to no record; they are still
    /// in `input`.
    ///
    /// # Errors
    /// The first error ends the session.
    pub fn receive<'a>(
        &'a mut self,
        input: &mut &[u8],
        random: &mut Random,
        out: &mut Vec<u8>,
    ) -> Result<Option<Received<'a>>, Error> {
        self.receive_with(input, &mut || OwnKex::generate(random), out)
    }

    pub(super) fn receive_with<'a>(
        &'a mut self,
        input: &mut &[u8],
        fresh: &mut dyn FnMut() -> OwnKex,
        out: &mut Vec<u8>,
    ) -> Result<Option<Received<'a>>, Error> {
        if self.ended {
            return Err(Error::Ended);
        }
        let received = self.next_record(input, fresh, out);
        self.ended = received.is_err();
        Ok(match received? {
            None => None,
            Some(Next::Event(event)) => Some(Received::Event(event)),
            Some(Next::Record(kind)) => Some(Received::Record(kind, self.data())),
        })
    }

    /// Returns the data of the complete record.
    fn data(&self) -> &[u8] {
        let end = self.partial.len().saturating_sub(TAG_LEN);
        self.partial.get(LENGTH.saturating_add(1)..end).unwrap_or_default()
    }

    fn next_record(
        &mut self,
        input: &mut &[u8],
        fresh: &mut dyn FnMut() -> OwnKex,
        out: &mut Vec<u8>,
    ) -> Result<Option<Next>, Error> {
        while self.fill(input)? {
            let seqno = self.receive.next_seqno()?;
            let body = self.partial.get_mut(LENGTH..).unwrap_or_default();
            let body = match &self.receive.key {
                None => body,
                Some(key) => {
                    let at = body.len().saturating_sub(TAG_LEN);
                    let (body, tag) = body.split_at_mut_checked(at).ok_or(Error::Length(0))?;
                    key.open(seqno, body, tag).map_err(|_| Error::Forged)?;
                    body
                }
            };
            let (kind, data) = body.split_first().ok_or(Error::Length(0))?;
            match *kind {
                HANDSHAKE => {
                    let steps = self.handshake.receive(data, &mut *fresh)?;
                    if let Some(event) = self.perform(steps, out)? {
                        return Ok(Some(Next::Event(event)));
                    }
                }
                kind if kind > HANDSHAKE || self.receive.key.is_none() => {
                    return Err(Error::UnexpectedType(kind));
                }
                kind => return Ok(Some(Next::Record(kind))),
            }
        }
        Ok(None)
    }

    /// Adds input to the record that is being received. Returns whether it is complete.
    fn fill(&mut self, input: &mut &[u8]) -> Result<bool, Error> {
        if std::mem::take(&mut self.complete) {
            self.partial.clear();
        }
        loop {
            let wanted = self.record_len()?;
            let missing = wanted.saturating_sub(self.partial.len());
            if missing == 0 {
                self.complete = true;
                return Ok(true);
            }
            let (now, later) = input.split_at_checked(missing).unwrap_or((input, &[]));
            if now.is_empty() {
                return Ok(false);
            }
            self.partial.extend_from_slice(now);
            *input = later;
        }
    }

    /// Returns the length of the record that is being received, or of its length field while this is incomplete.
    fn record_len(&self) -> Result<usize, Error> {
        let Some(len) = self.partial.first_chunk::<LENGTH>() else { return Ok(LENGTH) };
        let len = usize::from(u16::from_be_bytes(*len));
        let tag = if self.receive.key.is_some() { TAG_LEN } else { 0 };
        // An unauthenticated peer makes this side store no more than its handshake.
        if self.receive.key.is_none() && len != KEX_LEN && len != SIG_LEN {
            return Err(Error::Length(len));
        }
        Ok(len.saturating_add(LENGTH).saturating_add(1).saturating_add(tag))
    }

    fn perform(&mut self, steps: Vec<Step>, out: &mut Vec<u8>) -> Result<Option<Event>, Error> {
        let mut event = None;
        for step in steps {
            match step {
                Step::Send(message) => self.put(HANDSHAKE, &message, out)?,
                Step::Expect(key) => self.next = Some(key),
                Step::SwitchSending(key) => self.send.key = Some(key),
                Step::SwitchReceiving => {
                    let first = self.receive.key.is_none();
                    self.receive.key = self.next.take();
                    event = Some(if first { Event::Established } else { Event::Rekeyed });
                }
            }
        }
        Ok(event)
    }

    fn put(&mut self, kind: u8, data: &[u8], out: &mut Vec<u8>) -> Result<(), Error> {
        let len = u16::try_from(data.len()).map_err(|_| Error::TooLong(data.len()))?;
        let seqno = self.send.next_seqno()?;
        out.extend_from_slice(&len.to_be_bytes());
        let start = out.len();
        out.push(kind);
        out.extend_from_slice(data);
        if let Some(key) = &self.send.key {
            let sealed = key.seal(seqno, out.get_mut(start..).unwrap_or_default());
            let Ok(tag) = sealed else {
                out.truncate(start.saturating_sub(LENGTH));
                return Err(Error::Library);
            };
            out.extend_from_slice(&tag);
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn handshake_role(&self) -> super::Role {
        self.handshake.role()
    }

    /// Sets the next sequence number of both directions, for tests of its limit.
    #[cfg(test)]
    pub(super) fn set_seqno(&mut self, seqno: u32) {
        self.send.seqno = seqno;
        self.receive.seqno = seqno;
    }
}

/// A received record, whose data is in the buffer.
enum Next {
    Record(u8),
    Event(Event),
}
