//! The control channel of one session. It unwraps packets, passes them to their negotiations, and sends the negotiations' output.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

mod renegotiation;
mod saved;

use std::time::Duration;

use adit_engine::command::Counters;
use adit_engine::{Instant, Link, TokenBucket, UnixTime};

use super::Settings;
use super::key_negotiation::{Event, KeyNegotiation};
use crate::data_format::Outbox;
use crate::keys::{DataKeys, KeyMethod2, Metadata, Role};
use crate::packet::{Acks, Control, KEY_ID_MASK, Opcode, SessionId};
use crate::reason::Reason;
use crate::reliable::{Received, Reliable};
use crate::tls::TlsSession;
use crate::wrap::Wrapper;
use renegotiation::{NegotiationFailures, PostponedRenegotiation, RenegotiationWrapping};
pub(crate) use saved::SavedControlChannel;

/// The size of the largest control packet with IP and UDP headers, as in OpenVPN.
const CONTROL_MTU: usize = 1250;
/// The size of IPv6 and UDP headers.
const OUTER_HEADERS: usize = 48;
/// The maximum number of acknowledgements in a packet with a message.
const ACKS: usize = 4;

pub(crate) struct ControlChannel {
    pub(crate) link: Link,
    role: Role,
    local: SessionId,
    remote: Option<SessionId>,
    wrapper: Wrapper,
    rewrapping: RenegotiationWrapping,
    /// Whether negotiations exchange records instead of key method 2 and control messages.
    records: bool,
    newest: KeyNegotiation,
    /// The previous negotiation. It answers retransmissions and carries messages until the newest is complete.
    former: Option<KeyNegotiation>,
    /// The rate at which both ends together may renegotiate.
    pace: TokenBucket,
    postponed: Option<PostponedRenegotiation>,
    /// Whether keys were exchanged or derived.
    soiled: bool,
    /// The number of the peer's renegotiations that were delayed.
    pub(crate) put_off: u64,
    /// The lifetime of the session's keys without a new negotiation; `None` before the session is established.
    established: Option<Duration>,
    failing: Option<NegotiationFailures>,
    /// The authentic packets of the control channel.
    pub(crate) traffic: Counters,
}

impl ControlChannel {
    /// Creates a control channel that begins with a reset to the peer. It is either a client's reset, or the server's reset of a
    /// point-to-point end that invites the other. From the latter, a client with an older session learns that this end has lost that
    /// session.
    pub(crate) fn open(
        now: Instant,
        link: Link,
        local: SessionId,
        reset: Opcode,
        wrapper: Wrapper,
        tls: TlsSession,
        settings: &Settings,
    ) -> Self {
        let reliable = reliable(link, settings);
        let give_up = now + settings.hand_window;
        let role = match reset {
            Opcode::HardResetServerV2 => Role::Server,
            _ => Role::Client,
        };
        let newest = KeyNegotiation::open(now, (role, 0), reset, tls, reliable, give_up);
        Self::begin(link, role, (local, None), wrapper, newest)
    }

    /// Continues a server's session after the stateless exchange of resets.
    pub(crate) fn resume(
        now: Instant,
        link: Link,
        (local, remote): (SessionId, SessionId),
        wrapper: Wrapper,
        tls: TlsSession,
        settings: &Settings,
    ) -> Self {
        let reliable = Reliable::resume(settings.first_timeout(), 1);
        let newest = KeyNegotiation::resume(tls, reliable, now + settings.hand_window);
        Self::begin(link, Role::Server, (local, Some(remote)), wrapper, newest)
    }

    /// Begins a server's session over a stream with the client's reset. The address needs no cookie, and both resets
    /// are messages of the session.
    pub(crate) fn accept(
        now: Instant,
        link: Link,
        (local, remote): (SessionId, SessionId),
        wrapper: Wrapper,
        tls: TlsSession,
        give_up: Instant,
    ) -> Self {
        let reset = Opcode::HardResetServerV2;
        let reliable = Reliable::over_stream();
        let newest = KeyNegotiation::open(now, (Role::Server, 0), reset, tls, reliable, give_up);
        Self::begin(link, Role::Server, (local, Some(remote)), wrapper, newest)
    }

    /// Creates a session and begins its first negotiation.
    fn begin(
        link: Link,
        role: Role,
        (local, remote): (SessionId, Option<SessionId>),
        wrapper: Wrapper,
        newest: KeyNegotiation,
    ) -> Self {
        Self {
            link,
            role,
            local,
            remote,
            wrapper,
            rewrapping: RenegotiationWrapping::None,
            records: false,
            newest,
            former: None,
            pace: TokenBucket::default(),
            postponed: None,
            soiled: false,
            put_off: 0,
            established: None,
            failing: None,
            traffic: Counters::default(),
        }
    }

    /// Makes the session exchange records instead of key method 2 and control messages.
    pub(crate) fn with_records(mut self) -> Self {
        self.records = true;
        self.newest.use_records(false);
        self
    }

    /// Returns the peer's session id, once known.
    pub(crate) fn remote(&self) -> Option<SessionId> {
        self.remote
    }

    /// Returns the negotiation in progress or the last completed one.
    pub(crate) fn newest(&mut self) -> &mut KeyNegotiation {
        &mut self.newest
    }

    /// Returns a shared reference to the newest negotiation.
    pub(crate) fn negotiation(&self) -> &KeyNegotiation {
        &self.newest
    }

    /// Unwraps and processes a packet. `Err(Reason::Packet)` means that only the packet is bad. Every other error
    /// concerns the session.
    pub(crate) fn frame(
        &mut self,
        now: Instant,
        packet: &mut [u8],
        next_tls: impl FnOnce() -> Result<TlsSession, Reason>,
        settings: &Settings,
    ) -> Result<Vec<Event>, Reason> {
        let renegotiation = packet.first().is_some_and(|byte| byte & KEY_ID_MASK != 0);
        if renegotiation {
            self.make_rewrapper()?;
        }
        let wrapper = match &mut self.rewrapping {
            RenegotiationWrapping::Made(rewrapper) if renegotiation => rewrapper,
            _ => &mut self.wrapper,
        };
        let len = packet.len();
        let control = wrapper.open(packet)?;
        self.traffic.received(len);
        self.take(now, &control, next_tls, settings)
    }

    /// Processes an unwrapped packet.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        control: &Control<'_>,
        next_tls: impl FnOnce() -> Result<TlsSession, Reason>,
        settings: &Settings,
    ) -> Result<Vec<Event>, Reason> {
        self.belongs_here(control)?;
        if control.opcode == Opcode::SoftResetV1 && self.may_begin(control.key_id) {
            if self.postponed.is_some() {
                return Ok(Vec::new());
            }
            let tls = next_tls()?;
            if let Err(until) = self.may_renegotiate(now) {
                self.postpone(until, control);
                return Ok(Vec::new());
            }
            self.renegotiate_as(now, control.key_id, tls, settings)?;
        }
        let tolerates = self.tolerates(control.key_id);
        let negotiation = match &mut self.former {
            _ if self.newest.key_id == control.key_id => &mut self.newest,
            Some(former) if former.key_id == control.key_id => former,
            _ => return Err(Reason::Ignored("a key id that is not in use")),
        };
        if negotiation.failed {
            return Err(Reason::Ignored("a packet of a negotiation that has failed"));
        }
        negotiation.reliable.acknowledged(now, &control.acks);
        let mut events = Vec::new();
        if let Some(id) = control.message
            && negotiation.reliable.received(id, control.opcode, control.payload) == Received::New
        {
            // The message may contain the peer's keys.
            self.soiled |= !negotiation.is_complete();
            match negotiation.advance(&mut events) {
                Err(reason) if tolerates && !reason.is_harmless() => {
                    self.fail(now, control.key_id);
                    events.push(Event::Failed(reason));
                }
                result => result?,
            }
        }
        Ok(events)
    }

    /// Returns whether no negotiation is in progress.
    pub(crate) fn is_idle(&self) -> bool {
        self.newest.is_complete()
    }

    fn belongs_here(&mut self, control: &Control<'_>) -> Result<(), Reason> {
        if control.remote.is_some_and(|remote| remote != self.local) {
            return Err(Reason::Foreign("a session id that is not ours"));
        }
        match self.remote {
            Some(remote) if remote == control.session => Ok(()),
            Some(_) => Err(Reason::Foreign("a session id that is not the peer's")),
            // A reset that does not acknowledge ours could come from anyone, except within our own connection. Over
            // TCP, both point-to-point ends begin at once, so neither reset acknowledges the other.
            None if self.is_answer(control.opcode)
                && (control.remote.is_some() || self.link.is_stream()) =>
            {
                self.remote = Some(control.session);
                Ok(())
            }
            None => Err(Reason::Foreign("a packet before the peer's reset")),
        }
    }

    /// Returns whether the opcode is that of the other end's reset.
    fn is_answer(&self, opcode: Opcode) -> bool {
        match self.role {
            Role::Client => opcode == Opcode::HardResetServerV2,
            Role::Server => opcode == Opcode::HardResetClientV2,
        }
    }

    /// Returns whether the newest negotiation has failed.
    pub(crate) fn has_failed(&self) -> bool {
        self.newest.failed
    }

    /// Returns the metadata of the tls-crypt-v2 key that the client brought.
    pub(crate) fn key_metadata(&self) -> Option<&Metadata> {
        self.wrapper.metadata.as_deref()
    }

    /// Sends our key message on the newest negotiation.
    pub(crate) fn send_keys(&mut self, keys: KeyMethod2) -> Result<(), Reason> {
        self.soiled = true;
        self.newest.send_keys(keys)
    }

    /// Sends a control message. During a negotiation, the message is queued until the negotiation ends.
    pub(crate) fn send_message(&mut self, message: Vec<u8>) -> Result<bool, Reason> {
        self.newest.send_message(message)
    }

    /// Sends our hello on the newest negotiation.
    pub(crate) fn send_hello(&mut self, hello: &[u8]) -> Result<(), Reason> {
        self.soiled = true;
        self.newest.send_hello(hello)
    }

    /// Sends a record. During a negotiation, the record is queued until the negotiation ends. Returns false if the
    /// queue is full.
    pub(crate) fn send_record(&mut self, record: &[u8]) -> Result<bool, Reason> {
        self.newest.send_record(record)
    }

    /// Returns the length of the longest record for which there is room.
    pub(crate) fn record_room(&self) -> usize {
        self.newest.record_room()
    }

    /// Announces that this end sends nothing more.
    pub(crate) fn close(&mut self) -> Result<(), Reason> {
        self.newest.close()
    }

    /// Returns whether the peer announced that it sends nothing more.
    pub(crate) fn is_closed(&self) -> bool {
        self.former.iter().chain([&self.newest]).any(|negotiation| negotiation.tls().is_closed())
    }

    /// Returns the keys of the newest negotiation.
    pub(crate) fn data_keys(&mut self, exporter: bool) -> Result<DataKeys, Reason> {
        let remote = self.remote.ok_or(Reason::Protocol("no session id of the peer"))?;
        let (client, server) = match self.role {
            Role::Client => (self.local, remote),
            Role::Server => (remote, self.local),
        };
        self.soiled = true;
        self.newest.data_keys(exporter, client, server)
    }

    /// Returns whether keys were exchanged or derived since the last call. If so, copies of them may remain on the
    /// stack.
    pub(crate) fn take_soiled(&mut self) -> bool {
        std::mem::take(&mut self.soiled)
    }

    /// Sends the messages and acknowledgements that are due. During a key exchange, bare acknowledgements are delayed
    /// briefly, because the answer to the peer's flight can carry them.
    pub(crate) fn flush<E>(
        &mut self,
        now: Instant,
        unix: UnixTime,
        out: &mut Outbox<E>,
    ) -> Result<(), Reason> {
        if self.tolerates(self.newest.key_id)
            && !self.newest.failed
            && !self.newest.is_complete()
            && self.newest.give_up <= now
        {
            self.fail(now, self.newest.key_id);
        }
        if self.newest.is_complete() && !self.newest.failed {
            self.failing = None;
        }
        // Keep the order of records across negotiations too.
        let drained = self.former.as_ref().is_none_or(KeyNegotiation::is_drained);
        self.newest.hold_records(!drained);
        let packet = CONTROL_MTU - OUTER_HEADERS;
        let room = packet.saturating_sub(self.wrapper.overhead(Opcode::ControlV1, ACKS));
        let room_with_key =
            packet.saturating_sub(self.wrapper.overhead(Opcode::ControlWkcV1, ACKS));
        let negotiations = self.former.iter_mut().chain([&mut self.newest]);
        for negotiation in negotiations.filter(|negotiation| !negotiation.failed) {
            negotiation.fill(now, room, room_with_key)?;
            let (local, remote, key_id) = (self.local, self.remote, negotiation.key_id);
            // The answer to a flight carries its acknowledgements. On a stream, acknowledge the first part of a flight
            // at once, because a peer without TCP_NODELAY sends the rest only after TCP has received an
            // acknowledgement.
            let patient = if self.link.is_stream() {
                !negotiation.is_complete() && negotiation.remote_keys().is_some()
            } else {
                !negotiation.is_complete()
            };
            let wrapper = match &mut self.rewrapping {
                RenegotiationWrapping::Made(rewrapper) if key_id != 0 => rewrapper,
                _ => &mut self.wrapper,
            };
            let mut send = |opcode, message, payload: &[u8], acks: Acks| {
                let remote = if acks.is_empty() { None } else { remote };
                let control =
                    Control { opcode, key_id, session: local, acks, remote, message, payload };
                let mut frame = Vec::new();
                if wrapper.seal(&control, unix, &mut frame).is_ok() {
                    self.traffic.sent(frame.len());
                    out.send(self.link, frame);
                }
            };
            loop {
                let acks = match remote {
                    Some(_) if negotiation.reliable.has_due(now) => {
                        negotiation.reliable.take_acks(true)
                    }
                    _ => Acks::default(),
                };
                let Some(due) = negotiation.reliable.transmit(now) else { break };
                send(due.opcode, Some(due.id), due.payload, acks);
            }
            let alone = negotiation.reliable.acks_are_due(now, patient);
            while alone && remote.is_some() && negotiation.reliable.owes_acks() {
                let acks = negotiation.reliable.take_acks(false);
                send(Opcode::AckV1, None, &[], acks);
            }
        }
        Ok(())
    }

    /// Sends the output of a step that had this result. Returns true if the step refused a packet without harm to the
    /// session.
    ///
    /// # Errors
    /// Returns the reason why the session ends.
    pub(crate) fn settle<E>(
        &mut self,
        now: Instant,
        unix: UnixTime,
        result: Result<(), Reason>,
        out: &mut Outbox<E>,
    ) -> Result<bool, Reason> {
        let flushed = self.flush(now, unix, out);
        match result.and(flushed) {
            Ok(()) => Ok(false),
            Err(reason) if reason.is_harmless_on(self.link) => Ok(true),
            Err(reason) => Err(reason),
        }
    }

    /// Returns whether every message that we sent has been acknowledged.
    pub(crate) fn all_acknowledged(&self) -> bool {
        self.newest.failed
            || self.newest.reliable.all_acknowledged() && !self.newest.tls().wants_write()
    }

    /// Returns whether the peer has acknowledged all messages, including those that wait for the end of a negotiation.
    pub(crate) fn is_drained(&self) -> bool {
        self.newest.failed || self.newest.is_drained()
    }

    pub(crate) fn deadline(&self) -> Option<(Instant, &'static str)> {
        let under_way = !self.newest.is_complete() && !self.newest.failed;
        let give_up = under_way.then_some((self.newest.give_up, "handshake"));
        let again = self.recovers_at().map(|at| (at, "another negotiation"));
        let retransmit = self
            .former
            .iter()
            .chain([&self.newest])
            .filter(|negotiation| !negotiation.failed)
            .filter_map(|negotiation| negotiation.reliable.deadline())
            .map(|at| (at, "retransmit"));
        let postponed = self.postponed_until().map(|at| (at, "a delayed renegotiation"));
        retransmit.chain(give_up).chain(again).chain(postponed).min()
    }
}

fn reliable(link: Link, settings: &Settings) -> Reliable {
    if link.is_stream() { Reliable::over_stream() } else { Reliable::new(settings.first_timeout()) }
}
