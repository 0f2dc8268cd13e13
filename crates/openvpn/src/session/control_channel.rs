//! The control channel of one session: unwraps packets, sorts them to the negotiation they belong
//! to, and sends what the negotiations want sent.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::time::Duration;

use adit_engine::command::Counters;
use adit_engine::{Instant, Link, Outbox, UnixTime};

use super::budget::{Bucket, RENEGOTIATIONS};
use super::key_negotiation::{Event, KeyNegotiation};
use super::{Fault, Settings};
use crate::keys::{DYNAMIC_TLS_CRYPT_LABEL, DataKeys, KeyMethod2, Role};
use crate::packet::{Acks, Control, KEY_ID_MASK, Opcode, SessionId};
use crate::reliable::{Received, Reliable};
use crate::tls::TlsSession;
use crate::wrap::Wrapper;

/// Largest control packet with IP and UDP headers, as the reference implementation has it.
const CONTROL_MTU: usize = 1250;
/// IPv6 and UDP headers.
const OUTER_HEADERS: usize = 48;
/// After a second negotiation that failed another one begins so much later.
const AGAIN: Duration = Duration::from_secs(10);
/// Acknowledgements that ride on a message at most.
const ACKS: usize = 4;

pub(crate) struct ControlChannel {
    pub(crate) link: Link,
    role: Role,
    local: SessionId,
    remote: Option<SessionId>,
    wrapper: Wrapper,
    rewrapping: Rewrapping,
    newest: KeyNegotiation,
    /// The one before: answers retransmissions, and carries messages until the newest is complete.
    former: Option<KeyNegotiation>,
    /// How often both ends together may renegotiate.
    pace: Bucket,
    postponed: Option<Postponed>,
    /// Keys were exchanged or made.
    soiled: bool,
    /// Renegotiations of the peer that had to wait.
    pub(crate) put_off: u64,
    /// There is a session, whose keys live for so long without a new negotiation.
    established: Option<Duration>,
    failing: Option<Failing>,
    /// Its authentic packets.
    pub(crate) traffic: Counters,
}

/// Negotiations of a session that fail one after the other.
#[derive(Copy, Clone)]
struct Failing {
    since: Instant,
    /// When to begin another one.
    again: Instant,
}

/// The peer's request to renegotiate, which waits for [`ControlChannel::pace`]. It is kept, because on a stream nothing comes
/// twice.
struct Postponed {
    until: Instant,
    session: SessionId,
    remote: Option<SessionId>,
    key_id: u8,
    message: Option<u32>,
}

/// What renegotiations are wrapped by.
enum Rewrapping {
    /// What the first negotiation is.
    None,
    /// Dynamic tls-crypt, whose keys were not needed yet: many sessions end before their first renegotiation.
    Wanted,
    /// Dynamic tls-crypt.
    Made(Wrapper),
}

impl ControlChannel {
    /// Begins with a reset, towards a peer that has not answered yet. A client's; or, with the reset of
    /// a server, the invitation of one end of two: a client with an older session learns by it that
    /// this end has forgotten that session.
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

    /// A server's, continuing after the stateless exchange of resets.
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

    /// A server's over a stream, whose address needs no cookie: it begins at the client's reset, and
    /// both resets are messages of it.
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

    /// A session whose first negotiation begins.
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
            rewrapping: Rewrapping::None,
            newest,
            former: None,
            pace: Bucket::new(RENEGOTIATIONS),
            postponed: None,
            soiled: false,
            put_off: 0,
            established: None,
            failing: None,
            traffic: Counters::default(),
        }
    }

    /// The peer's session id, once it has said one.
    pub(crate) fn remote(&self) -> Option<SessionId> {
        self.remote
    }

    /// The negotiation that is under way or was last completed.
    pub(crate) fn newest(&mut self) -> &mut KeyNegotiation {
        &mut self.newest
    }

    /// The newest negotiation, to look at.
    pub(crate) fn negotiation(&self) -> &KeyNegotiation {
        &self.newest
    }

    /// Unwraps a packet and works on it. An `Err(Fault::Packet)` says that the packet is bad, every
    /// other one that the session is.
    pub(crate) fn frame(
        &mut self,
        now: Instant,
        packet: &mut [u8],
        next_tls: impl FnOnce() -> Result<TlsSession, Fault>,
        settings: &Settings,
    ) -> Result<Vec<Event>, Fault> {
        let renegotiation = packet.first().is_some_and(|byte| byte & KEY_ID_MASK != 0);
        if renegotiation {
            self.make_rewrapper()?;
        }
        let wrapper = match &mut self.rewrapping {
            Rewrapping::Made(rewrapper) if renegotiation => rewrapper,
            _ => &mut self.wrapper,
        };
        let len = packet.len();
        let control = wrapper.open(packet)?;
        self.traffic.received(len);
        self.take(now, &control, next_tls, settings)
    }

    /// Works on an unwrapped packet.
    pub(crate) fn take(
        &mut self,
        now: Instant,
        control: &Control<'_>,
        next_tls: impl FnOnce() -> Result<TlsSession, Fault>,
        settings: &Settings,
    ) -> Result<Vec<Event>, Fault> {
        self.belongs_here(control)?;
        if control.opcode == Opcode::SoftResetV1 && self.may_begin(control.key_id) {
            if self.postponed.is_some() {
                return Ok(Vec::new());
            }
            let tls = next_tls()?;
            if let Err(until) = self.may_renegotiate(now) {
                self.put_off = self.put_off.saturating_add(1);
                let &Control { session, remote, key_id, message, .. } = control;
                self.postponed = Some(Postponed { until, session, remote, key_id, message });
                return Ok(Vec::new());
            }
            self.renegotiate_as(now, control.key_id, tls, settings)?;
        }
        let tolerates = self.tolerates(control.key_id);
        let negotiation = match &mut self.former {
            _ if self.newest.key_id == control.key_id => &mut self.newest,
            Some(former) if former.key_id == control.key_id => former,
            _ => return Err(Fault::Ignored("a key id that is not in use")),
        };
        if negotiation.failed {
            return Err(Fault::Ignored("a packet of a negotiation that has failed"));
        }
        negotiation.reliable.acknowledged(now, &control.acks);
        let mut events = Vec::new();
        if let Some(id) = control.message
            && negotiation.reliable.received(id, control.opcode, control.payload) == Received::New
        {
            // The peer's keys may be in it.
            self.soiled |= !negotiation.is_complete();
            match negotiation.advance(&mut events) {
                Err(fault) if tolerates && !fault.is_harmless() => {
                    self.fail(now, control.key_id);
                    events.push(Event::Failed(fault));
                }
                result => result?,
            }
        }
        Ok(events)
    }

    /// Says that there is a session, whose keys may live for so long without a new negotiation. From now on a packet that
    /// anybody could have written ends no more than the negotiation that it claims to belong to.
    pub(crate) fn establish(&mut self, lifetime: Duration) {
        self.established = Some(lifetime);
    }

    /// Whether packets of this negotiation could be anybody's, and must not end the session. A stream is its ends' alone, as far
    /// as TCP goes.
    fn tolerates(&self, key_id: u8) -> bool {
        let rewrapped = key_id != 0 && !matches!(self.rewrapping, Rewrapping::None);
        let authentic = rewrapped || self.wrapper.authenticates() || self.link.is_stream();
        self.established.is_some() && !authentic
    }

    /// Whether the peer may begin a negotiation with this key id: the next one; or, where the newest has failed before both
    /// ends' keys were exchanged, the same once more.
    fn may_begin(&self, key_id: u8) -> bool {
        let newest = &self.newest;
        let again = newest.failed && !newest.is_complete() && key_id == newest.key_id;
        again || key_id == next_key_id(newest.key_id) && (newest.is_complete() || newest.failed)
    }

    /// Ends a negotiation, and not the session.
    fn fail(&mut self, now: Instant, key_id: u8) {
        if self.newest.key_id != key_id {
            self.former = None;
            return;
        }
        self.newest.failed = true;
        let (since, again) = match self.failing {
            Some(Failing { since, .. }) => (since, now + AGAIN),
            None => (now, now),
        };
        self.failing = Some(Failing { since, again: again.max(self.pace.next(now)) });
    }

    /// Fails the negotiation under way, which authenticated another identity than the session's. Returns the fault to report
    /// where anyone could have written this negotiation.
    ///
    /// # Errors
    /// The fault, where only the peer can have written it: it ends the session.
    pub(crate) fn reject(&mut self, now: Instant, fault: Fault) -> Result<Fault, Fault> {
        let key_id = self.newest.key_id;
        if !self.tolerates(key_id) {
            return Err(fault);
        }
        self.fail(now, key_id);
        Ok(fault)
    }

    /// When to negotiate again because the newest negotiation has failed.
    pub(crate) fn recovers_at(&self) -> Option<Instant> {
        self.failing.filter(|_| self.newest.failed).map(|failing| failing.again)
    }

    /// Whether the present negotiation follows one that failed, which the peer may have completed: its keys are used
    /// at once.
    pub(crate) fn is_recovering(&self) -> bool {
        self.failing.is_some()
    }

    /// Works on the peer's request to renegotiate that had to wait, once it is due.
    pub(crate) fn resume_postponed(
        &mut self,
        now: Instant,
        next_tls: impl FnOnce() -> Result<TlsSession, Fault>,
        settings: &Settings,
    ) -> Result<Vec<Event>, Fault> {
        let due = self.postponed.take_if(|postponed| postponed.until <= now);
        let Some(Postponed { session, remote, key_id, message, .. }) = due else {
            return Ok(Vec::new());
        };
        let opcode = Opcode::SoftResetV1;
        let acks = Acks::default();
        let reset = Control { opcode, key_id, session, acks, remote, message, payload: &[] };
        self.take(now, &reset, next_tls, settings)
    }

    /// Whether no negotiation is under way.
    pub(crate) fn is_idle(&self) -> bool {
        self.newest.is_complete()
    }

    /// Whether a renegotiation may begin now; otherwise when.
    pub(crate) fn may_renegotiate(&self, now: Instant) -> Result<(), Instant> {
        match self.pace.next(now) {
            at if at > now => Err(at),
            _ => Ok(()),
        }
    }

    fn belongs_here(&mut self, control: &Control<'_>) -> Result<(), Fault> {
        if control.remote.is_some_and(|remote| remote != self.local) {
            return Err(Fault::Foreign("a session id that is not ours"));
        }
        match self.remote {
            Some(remote) if remote == control.session => Ok(()),
            Some(_) => Err(Fault::Foreign("a session id that is not the peer's")),
            // Without an acknowledgement of our reset anybody could have sent it, but not into our
            // connection. Of two points on TCP both begin at once, and so both resets come without.
            None if self.is_answer(control.opcode)
                && (control.remote.is_some() || self.link.is_stream()) =>
            {
                self.remote = Some(control.session);
                Ok(())
            }
            None => Err(Fault::Foreign("a packet before the peer's reset")),
        }
    }

    /// Whether it is the other end's reset.
    fn is_answer(&self, opcode: Opcode) -> bool {
        match self.role {
            Role::Client => opcode == Opcode::HardResetServerV2,
            Role::Server => opcode == Opcode::HardResetClientV2,
        }
    }

    /// Begins another negotiation with a soft reset.
    pub(crate) fn renegotiate(
        &mut self,
        now: Instant,
        tls: TlsSession,
        settings: &Settings,
    ) -> Result<(), Fault> {
        let key_id = match self.newest.failed && !self.newest.has_sent_keys() {
            true => self.newest.key_id,
            false => next_key_id(self.newest.key_id),
        };
        self.renegotiate_as(now, key_id, tls, settings)
    }

    fn renegotiate_as(
        &mut self,
        now: Instant,
        key_id: u8,
        tls: TlsSession,
        settings: &Settings,
    ) -> Result<(), Fault> {
        self.make_rewrapper()?;
        let _ = self.pace.take(now);
        // The peer's request is for the same key id: it is a part of this renegotiation.
        if let Some(postponed) = &mut self.postponed {
            postponed.until = now;
        }
        let reliable = reliable(self.link, settings);
        let give_up = now + settings.hand_window;
        let next = KeyNegotiation::open(
            now,
            (self.role, key_id),
            Opcode::SoftResetV1,
            tls,
            reliable,
            give_up,
        );
        let mut former = std::mem::replace(&mut self.newest, next);
        match former.failed {
            true => self.newest.inherit(&mut former),
            false => self.former = Some(former),
        }
        Ok(())
    }

    /// Sends our key message on the newest negotiation.
    pub(crate) fn send_keys(&mut self, keys: KeyMethod2) -> Result<(), Fault> {
        self.soiled = true;
        self.newest.send_keys(keys)
    }

    /// Sends a control message; while a negotiation is under way it waits for its end.
    pub(crate) fn send_message(&mut self, message: Vec<u8>) -> Result<bool, Fault> {
        self.newest.send_message(message)
    }

    /// From now on renegotiations have a wrapping of their own, from keys of the first one, which is complete.
    pub(crate) fn wrap_renegotiations(&mut self) {
        self.rewrapping = Rewrapping::Wanted;
        // Anybody could make the first negotiation fail, and its keys cannot be had from then on.
        if !self.wrapper.authenticates() {
            let _ = self.make_rewrapper();
        }
    }

    /// Before the first renegotiation begins: while the newest negotiation is the first one.
    fn make_rewrapper(&mut self) -> Result<(), Fault> {
        if matches!(self.rewrapping, Rewrapping::Wanted) {
            let exported = self.newest.export(DYNAMIC_TLS_CRYPT_LABEL)?;
            self.rewrapping = Rewrapping::Made(self.wrapper.renegotiation(&exported)?);
        }
        Ok(())
    }

    /// The keys of the newest negotiation.
    pub(crate) fn data_keys(&mut self, exporter: bool) -> Result<DataKeys, Fault> {
        let remote = self.remote.ok_or(Fault::Protocol("no session id of the peer"))?;
        let (client, server) = match self.role {
            Role::Client => (self.local, remote),
            Role::Server => (remote, self.local),
        };
        self.soiled = true;
        self.newest.data_keys(exporter, client, server)
    }

    /// Whether keys were exchanged or made since this was asked last: copies may lie on the stack.
    pub(crate) fn take_soiled(&mut self) -> bool {
        std::mem::take(&mut self.soiled)
    }

    /// Sends what is due: messages with acknowledgements, or acknowledgements alone. Those wait a moment while keys are
    /// exchanged, because what answers the peer's flight takes them along.
    pub(crate) fn flush<E>(
        &mut self,
        now: Instant,
        unix: UnixTime,
        out: &mut Outbox<E>,
    ) -> Result<(), Fault> {
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
        let packet = CONTROL_MTU - OUTER_HEADERS;
        let room = packet.saturating_sub(self.wrapper.overhead(Opcode::ControlV1, ACKS));
        let room_with_key =
            packet.saturating_sub(self.wrapper.overhead(Opcode::ControlWkcV1, ACKS));
        let negotiations = self.former.iter_mut().chain([&mut self.newest]);
        for negotiation in negotiations.filter(|negotiation| !negotiation.failed) {
            negotiation.fill(now, room, room_with_key)?;
            let (local, remote, key_id) = (self.local, self.remote, negotiation.key_id);
            // What answers a flight takes its acknowledgements along. On a stream the first part of a flight waits for
            // none: a peer without TCP_NODELAY sends the rest when TCP, too, has an answer.
            let patient = match self.link.is_stream() {
                true => !negotiation.is_complete() && negotiation.remote_keys().is_some(),
                false => !negotiation.is_complete(),
            };
            let wrapper = match &mut self.rewrapping {
                Rewrapping::Made(rewrapper) if key_id != 0 => rewrapper,
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

    /// Whether the newest negotiation took too long; or, where negotiations may fail without an end of the session, whether
    /// they have failed for as long as keys may live.
    pub(crate) fn expired(&self, now: Instant) -> bool {
        if let Some((failing, lifetime)) = self.failing.zip(self.established)
            && failing.since + lifetime <= now
        {
            return true;
        }
        let late = !self.newest.is_complete() && self.newest.give_up <= now;
        late && !self.newest.failed && !self.tolerates(self.newest.key_id)
    }

    /// Whether all we sent has been acknowledged.
    pub(crate) fn all_acknowledged(&self) -> bool {
        self.newest.failed
            || self.newest.reliable.all_acknowledged() && !self.newest.tls().wants_write()
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
        let postponed = self.postponed.as_ref().map(|postponed| postponed.until);
        let postponed = postponed.map(|at| (at, "a delayed renegotiation"));
        retransmit.chain(give_up).chain(again).chain(postponed).min()
    }
}

fn reliable(link: Link, settings: &Settings) -> Reliable {
    match link.is_stream() {
        true => Reliable::over_stream(),
        false => Reliable::new(settings.first_timeout()),
    }
}

/// Key ids go 0, 1 .. 7, 1 .. 7: zero is for the first negotiation alone.
pub(crate) fn next_key_id(key_id: u8) -> u8 {
    if key_id >= 7 { 1 } else { key_id.saturating_add(1) }
}
