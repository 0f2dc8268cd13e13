//! One key negotiation: resets, a TLS handshake over the reliability layer, and key method 2.
//!
//! The first negotiation of a session and each renegotiation have their own message ids and TLS
//! session. After the key exchange, control messages use the same TLS session until the next
//! negotiation.
//!
//! In a session with records ([`crate::records`]), each end's first record, its hello, replaces key
//! method 2, and further records replace control messages.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::collections::VecDeque;

use adit_engine::Instant;
use zeroize::Zeroizing;

use crate::keys::{DATA_KEYS_LABEL, DataKeys, EXPORTED_LEN, KeyMethod2, PrfInput, Randoms, Role};
use crate::packet::{Opcode, SessionId};
use crate::reason::Reason;
use crate::records::{self, MAX_RECORD, RecordReader, frame};
use crate::reliable::Reliable;
use crate::tls::{MAX_MESSAGE, TlsSession};

/// The maximum number of control messages queued until the end of the key exchange.
const MAX_WAITING: usize = 16;
/// The maximum number of bytes of queued records.
const MAX_WAITING_BYTES: usize = 256 * 1024;
/// The number of unsent TLS bytes at which no more records are passed to TLS.
const MAX_UNSENT: usize = 64 * 1024;

/// An event that a negotiation reports to its session.
#[derive(Debug)]
pub(crate) enum Event {
    /// The peer's reset arrived, with this payload.
    Reset(Vec<u8>),
    /// The TLS handshake is complete.
    TlsReady,
    /// The peer's key method 2 message or hello arrived.
    Keys,
    /// A control message or a record arrived.
    Message(Zeroizing<Vec<u8>>),
    /// A negotiation failed because of a packet that anyone could have forged. The session
    /// continues with its current keys and negotiates again.
    Failed(Reason),
}

pub(crate) struct KeyNegotiation {
    pub(crate) key_id: u8,
    role: Role,
    pub(crate) reliable: Reliable,
    tls: TlsSession,
    /// The time when an incomplete negotiation is abandoned.
    pub(crate) give_up: Instant,
    peer_was_reset: bool,
    announced_tls: bool,
    sent_keys: bool,
    /// The local secrets, until the data keys are derived.
    local: Option<Secrets>,
    /// The peer's message. It is kept without its secrets after the data keys are derived.
    remote: Option<KeyMethod2>,
    /// The state of a session with records.
    records: Option<Records>,
    waiting: VecDeque<Zeroizing<Vec<u8>>>,
    /// Whether the TLS session cannot continue.
    pub(super) failed: bool,
    /// Whether the next message must carry the wrapped client key (tls-crypt-v2 after a stateless
    /// reset).
    pub(crate) resend_wrapped_key: bool,
}

/// The records of a negotiation.
#[derive(Default)]
struct Records {
    reader: RecordReader,
    /// The peer's hello.
    hello: Option<Zeroizing<Vec<u8>>>,
    /// Whether our records are held back until the peer has those of the previous negotiation.
    held: bool,
    /// The number of queued bytes.
    waiting: usize,
}

/// The parts of our key method 2 message from which the data keys are derived.
struct Secrets {
    pre_master: Option<Zeroizing<[u8; 48]>>,
    randoms: Randoms,
}

impl KeyNegotiation {
    /// Creates a negotiation that begins with our reset as message 0.
    pub(crate) fn open(
        now: Instant,
        (role, key_id): (Role, u8),
        reset: Opcode,
        tls: TlsSession,
        mut reliable: Reliable,
        give_up: Instant,
    ) -> Self {
        reliable.push(now, reset, Vec::new());
        Self::new((role, key_id), tls, reliable, give_up, false)
    }

    /// Continues a server's negotiation after the stateless exchange of resets.
    pub(crate) fn resume(tls: TlsSession, reliable: Reliable, give_up: Instant) -> Self {
        Self::new((Role::Server, 0), tls, reliable, give_up, true)
    }

    /// Creates a server's negotiation in place of a complete one of another process. Its TLS session does not exist any
    /// more, so the negotiation counts as failed, which the next one repairs.
    pub(crate) fn taken_over(
        key_id: u8,
        tls: TlsSession,
        reliable: Reliable,
        now: Instant,
    ) -> Self {
        let randoms = Randoms { random1: [0; 32], random2: [0; 32] };
        let remote = KeyMethod2 {
            pre_master: None,
            randoms,
            options: String::new(),
            username: String::new(),
            password: Zeroizing::default(),
            peer_info: String::new(),
        };
        Self {
            sent_keys: true,
            remote: Some(remote),
            failed: true,
            ..Self::new((Role::Server, key_id), tls, reliable, now, true)
        }
    }

    fn new(
        (role, key_id): (Role, u8),
        tls: TlsSession,
        reliable: Reliable,
        give_up: Instant,
        peer_was_reset: bool,
    ) -> Self {
        Self {
            key_id,
            role,
            reliable,
            tls,
            give_up,
            peer_was_reset,
            announced_tls: false,
            sent_keys: false,
            local: None,
            remote: None,
            records: None,
            waiting: VecDeque::new(),
            failed: false,
            resend_wrapped_key: false,
        }
    }

    /// Makes the negotiation exchange records instead of key method 2 and control messages. If
    /// `held` is true, our records are held back until [`Self::hold_records`] releases them.
    pub(super) fn use_records(&mut self, held: bool) {
        self.records = Some(Records { held, ..Records::default() });
    }

    /// Holds our records back, or releases them.
    pub(super) fn hold_records(&mut self, hold: bool) {
        if let Some(records) = &mut self.records {
            records.held = hold;
        }
    }

    /// Returns whether the peer has received all our data, including queued data.
    pub(super) fn is_drained(&self) -> bool {
        self.waiting.is_empty() && !self.tls.wants_write() && self.reliable.all_acknowledged()
    }

    /// Returns the peer's hello.
    pub(crate) fn remote_hello(&self) -> Option<&[u8]> {
        self.records.as_ref()?.hello.as_ref().map(|hello| hello.as_slice())
    }

    /// Returns whether both key messages, or both hellos, have been exchanged.
    pub(crate) fn is_complete(&self) -> bool {
        self.sent_keys && (self.remote.is_some() || self.remote_hello().is_some())
    }

    /// Returns whether our key message was sent, so that the peer may have completed the
    /// negotiation.
    pub(super) fn has_sent_keys(&self) -> bool {
        self.sent_keys
    }

    /// Takes over the queued messages of a failed negotiation.
    pub(super) fn inherit(&mut self, failed: &mut Self) {
        self.waiting = std::mem::take(&mut failed.waiting);
    }

    pub(crate) fn tls(&self) -> &TlsSession {
        &self.tls
    }

    pub(crate) fn remote_keys(&self) -> Option<&KeyMethod2> {
        self.remote.as_ref()
    }

    /// Takes the peer's password, if it sent one. Authorization is its last use.
    pub(crate) fn take_password(&mut self) -> Option<Zeroizing<String>> {
        let password = std::mem::take(&mut self.remote.as_mut()?.password);
        (!password.is_empty()).then_some(password)
    }

    /// Processes the messages that have arrived in order.
    pub(crate) fn advance(&mut self, events: &mut Vec<Event>) -> Result<(), Reason> {
        while let Some((opcode, payload)) = self.reliable.pop() {
            match opcode {
                Opcode::ControlV1 | Opcode::ControlWkcV1 => {
                    self.tls.feed(&payload)?;
                    self.read(events)?;
                }
                _ if self.peer_was_reset => return Err(Reason::Protocol("a second reset")),
                _ => {
                    self.peer_was_reset = true;
                    events.push(Event::Reset(payload));
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, events: &mut Vec<Event>) -> Result<(), Reason> {
        if !self.announced_tls && !self.tls.is_handshaking() {
            self.announced_tls = true;
            events.push(Event::TlsReady);
        }
        while let Some(message) = self.tls.read()? {
            if let Some(records) = &mut self.records {
                for record in records.reader.read(&message)? {
                    if records.hello.is_none() {
                        records.hello = Some(record);
                        events.push(Event::Keys);
                    } else {
                        events.push(Event::Message(record));
                    }
                }
            } else if self.remote.is_none() {
                let sender = match self.role {
                    Role::Client => Role::Server,
                    Role::Server => Role::Client,
                };
                self.remote = Some(KeyMethod2::parse(&message, sender)?);
                events.push(Event::Keys);
            } else {
                events.push(Event::Message(message));
            }
        }
        Ok(())
    }

    /// Sends our key method 2 message, followed by the queued messages.
    pub(crate) fn send_keys(&mut self, keys: KeyMethod2) -> Result<(), Reason> {
        self.tls.write(&keys.encode()?)?;
        self.sent_keys = true;
        self.local = Some(Secrets { pre_master: keys.pre_master, randoms: keys.randoms });
        Ok(())
    }

    /// Sends a control message once the keys are exchanged. Returns false if too many are waiting.
    pub(crate) fn send_message(&mut self, message: Vec<u8>) -> Result<bool, Reason> {
        if self.waiting.len() >= MAX_WAITING {
            return Ok(false);
        }
        self.waiting.push_back(Zeroizing::new(message));
        self.release_waiting()?;
        Ok(true)
    }

    /// Sends our hello.
    pub(crate) fn send_hello(&mut self, hello: &[u8]) -> Result<(), Reason> {
        self.tls.write(&frame(hello)?)?;
        self.sent_keys = true;
        Ok(())
    }

    /// Sends a record once the hellos are exchanged. Returns false if too many bytes are waiting.
    pub(crate) fn send_record(&mut self, record: &[u8]) -> Result<bool, Reason> {
        let framed = frame(record)?;
        let Some(records) = &mut self.records else { return Ok(false) };
        let waiting = records.waiting.saturating_add(framed.len());
        if waiting > MAX_WAITING_BYTES {
            return Ok(false);
        }
        records.waiting = waiting;
        let parts = framed.chunks(MAX_MESSAGE).map(|part| Zeroizing::new(part.to_vec()));
        self.waiting.extend(parts);
        self.release_waiting()?;
        Ok(true)
    }

    /// Returns the length of the longest record for which there is room.
    pub(crate) fn record_room(&self) -> usize {
        self.records.as_ref().map_or(0, |records| {
            let free = MAX_WAITING_BYTES.saturating_sub(records.waiting);
            free.saturating_sub(records::HEADER).min(MAX_RECORD)
        })
    }

    fn release_waiting(&mut self) -> Result<(), Reason> {
        let held = self.records.as_ref().is_some_and(|records| records.held);
        if !self.is_complete() || self.failed || held {
            return Ok(());
        }
        while (self.records.is_none() || self.tls.outgoing_len() < MAX_UNSENT)
            && let Some(message) = self.waiting.pop_front()
        {
            self.tls.write(&message)?;
            if let Some(records) = &mut self.records {
                records.waiting = records.waiting.saturating_sub(message.len());
            }
        }
        Ok(())
    }

    /// Announces that this end sends nothing more.
    pub(super) fn close(&mut self) -> Result<(), Reason> {
        Ok(self.tls.close()?)
    }

    /// Moves TLS bytes into the send window. `room` is the maximum payload of a packet,
    /// `room_with_key` that of a packet that also carries the wrapped client key.
    pub(crate) fn fill(
        &mut self,
        now: Instant,
        room: usize,
        room_with_key: usize,
    ) -> Result<(), Reason> {
        if !self.peer_was_reset {
            return Ok(());
        }
        self.release_waiting()?;
        while self.reliable.can_send() && (self.tls.wants_write() || self.resend_wrapped_key) {
            let (opcode, room) = if std::mem::take(&mut self.resend_wrapped_key) {
                (Opcode::ControlWkcV1, room_with_key)
            } else {
                (Opcode::ControlV1, room)
            };
            self.reliable.push(now, opcode, self.tls.pull(room));
        }
        Ok(())
    }

    /// Derives the data keys from the TLS exporter or, for older peers, with the PRF. It can be
    /// called only once, because it erases the exchanged secrets.
    pub(crate) fn data_keys(
        &mut self,
        exporter: bool,
        client_session: SessionId,
        server_session: SessionId,
    ) -> Result<DataKeys, Reason> {
        let keys = self.derive(exporter, client_session, server_session);
        self.local = None;
        if let Some(remote) = &mut self.remote {
            remote.forget_secrets();
        }
        keys
    }

    fn derive(
        &self,
        exporter: bool,
        client_session: SessionId,
        server_session: SessionId,
    ) -> Result<DataKeys, Reason> {
        if exporter {
            return Ok(DataKeys::from_exporter(&*self.export(DATA_KEYS_LABEL)?, self.role));
        }
        let (Some(local), Some(remote)) = (&self.local, &self.remote) else {
            return Err(Reason::Protocol("data keys before the key exchange"));
        };
        let (pre_master, client, server) = match self.role {
            Role::Client => (&local.pre_master, &local.randoms, &remote.randoms),
            Role::Server => (&remote.pre_master, &remote.randoms, &local.randoms),
        };
        let Some(pre_master) = pre_master else {
            return Err(Reason::Protocol("a key exchange without a pre-master secret"));
        };
        let input = PrfInput { pre_master, client, server, client_session, server_session };
        Ok(DataKeys::from_prf(&input, self.role)?)
    }

    /// Exports key material from the TLS session.
    pub(crate) fn export(&self, label: &[u8]) -> Result<Zeroizing<[u8; EXPORTED_LEN]>, Reason> {
        let mut material = Zeroizing::new([0; EXPORTED_LEN]);
        self.tls.export(label, material.as_mut_slice())?;
        Ok(material)
    }
}
