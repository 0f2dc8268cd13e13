//! The end that accepts sessions, which keeps no state about senders that have not returned a
//! cookie.

use std::fmt;
use std::sync::Arc;

use adit_engine::{AddressQuota, Instant, Link, Random, UnixTime};

use super::{RecordEvent, RecordSession, RecordSettings};
use crate::data_format::Outbox;
use crate::keys::{Role, StaticKey};
use crate::packet::{Header, Opcode, SessionId, split_front};
use crate::reason::Reason;
use crate::server::{Refused, Responder};
use crate::session::{Settings, WallClock};
use crate::tls::RecordTls;
use crate::wrap::WrapConfig;

/// The maximum number of handshakes in progress.
const MAX_HANDSHAKES: usize = 1024;
/// The number of free places that entitle a network to one more handshake.
const FREE_PER_HANDSHAKE: usize = 7;

/// Accepts sessions, over datagrams and over streams.
pub struct RecordListener {
    responder: Responder,
    handshakes: AddressQuota,
    tls: RecordTls,
    settings: Arc<Settings>,
    /// The number of packets refused.
    refused: u64,
}

impl RecordListener {
    /// Creates a listener whose senders must know `wrap`, its tls-crypt key.
    ///
    /// # Errors
    /// The cryptographic library failed.
    pub fn new(
        wrap: StaticKey,
        tls: RecordTls,
        settings: &RecordSettings,
        random: &mut Random,
    ) -> Result<Self, Reason> {
        let wrap = WrapConfig::TlsCrypt { key: wrap };
        let settings = Settings { wrap, ..settings.settings(Role::Server) };
        let responder = Responder::new(&settings, true, random)?;
        let handshakes = AddressQuota::new(MAX_HANDSHAKES, FREE_PER_HANDSHAKE);
        Ok(Self { responder, handshakes, tls, settings: Arc::new(settings), refused: 0 })
    }

    /// Processes a control packet of no known session. If it returns a cookie, a session starts,
    /// and the caller reports its end to [`Self::finished`].
    pub fn packet<E>(
        &mut self,
        now: Instant,
        unix: UnixTime,
        link: Link,
        packet: &mut [u8],
        out: &mut Outbox<E>,
    ) -> Option<(RecordSession, Vec<RecordEvent>)> {
        self.start(now, unix, link, packet, out).unwrap_or_else(|_refused| {
            self.refused = self.refused.saturating_add(1);
            None
        })
    }

    fn start<E>(
        &mut self,
        now: Instant,
        unix: UnixTime,
        link: Link,
        packet: &mut [u8],
        out: &mut Outbox<E>,
    ) -> Result<Option<(RecordSession, Vec<RecordEvent>)>, Refused> {
        let front = split_front(packet).map_err(|_| Refused::Unauthentic)?;
        let (Header { opcode, .. }, session, _) = front;
        let address = link.remote().ip();
        match opcode {
            Opcode::HardResetClientV2 => {
                let answer = self.responder.reset(now, unix, link, opcode, packet)?;
                out.send(link, answer);
                Ok(None)
            }
            Opcode::ControlV1 | Opcode::AckV1 => {
                let handshakes = &mut self.handshakes;
                let room = || handshakes.take(address);
                let (control, wrapper) =
                    self.responder.third_packet(now, unix, link, session, packet, room)?;
                let context = (&self.tls, &self.settings, WallClock::new(now, unix));
                let started = RecordSession::accept(now, link, (&control, wrapper), context, out);
                if started.is_err() {
                    self.handshakes.release(address);
                }
                started.map(Some).map_err(|_| Refused::Failed)
            }
            _ => Err(Refused::Unauthentic),
        }
    }

    /// Processes the first packet of a stream, which must be a reset, and starts a session. The caller reports its end with
    /// [`Self::finished`]. TCP has proved the sender's address, so there is no cookie. The session must be ready one hand-window after the
    /// stream was accepted.
    pub fn first_of_stream<E>(
        &mut self,
        now: Instant,
        (unix, accepted): (UnixTime, Instant),
        link: Link,
        packet: &mut [u8],
        random: &mut Random,
        out: &mut Outbox<E>,
    ) -> Option<(RecordSession, Vec<RecordEvent>)> {
        let address = link.remote().ip();
        let is_reset = split_front(packet)
            .is_ok_and(|(header, ..)| header.opcode == Opcode::HardResetClientV2);
        let handshakes = &mut self.handshakes;
        let room = || handshakes.take(address);
        let opened = if is_reset {
            self.responder.stream_reset(now, unix, link, packet, room)
        } else {
            Err(Refused::NoReset)
        };
        let started = opened.and_then(|(control, wrapper)| {
            let context = (&self.tls, &self.settings, WallClock::new(now, unix));
            let local = (SessionId(random.bytes()), accepted);
            let started =
                RecordSession::accept_stream(now, link, local, (&control, wrapper), context, out);
            if started.is_err() {
                self.handshakes.release(address);
            }
            started.map_err(|_| Refused::Failed)
        });
        if started.is_err() {
            self.refused = self.refused.saturating_add(1);
        }
        started.ok()
    }

    /// Records that a handshake has ended, with or without a session.
    pub fn finished(&mut self, link: Link, established: bool) {
        self.handshakes.release(link.remote().ip());
        if established {
            self.responder.refund(link);
        }
    }

    /// Returns the number of handshakes in progress.
    pub fn handshakes(&self) -> usize {
        self.handshakes.total()
    }

    /// Returns the number of packets refused.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    /// Shrinks the tables to their contents.
    pub fn release_memory(&mut self, now: Instant) {
        self.responder.release_memory(now);
        self.handshakes.shrink_to_fit();
    }
}

// Implemented by hand to keep the keys in it out of the logs.
impl fmt::Debug for RecordListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RecordListener")
            .field("handshakes", &self.handshakes.total())
            .field("refused", &self.refused)
            .finish_non_exhaustive()
    }
}
