//! The steps from the first packet to the key exchange.

use adit_engine::{Instant, Link};
use zeroize::Zeroizing;

use super::{
    Attempt, INVITED_EVERY, MAX_ATTEMPTS, MAX_OF_ONE, MAX_RESETS, Out, PeerEngine, State, new_tls,
};
use crate::client::ClientEvent;
use crate::keys::{KeyMethod2, Randoms, Role};
use crate::p2p::negotiate::our_peer_info;
use crate::p2p::occ;
use crate::p2p::pending_streams::{Occupant, Vacancy};
use crate::packet::{Opcode, SessionId};
use crate::reason::Reason;
use crate::server::Refused;
use crate::session::{ControlChannel, Event, RESEND_WRAPPED_KEY, options_string};
use crate::wrap::{WrapConfig, Wrapper};

impl PeerEngine {
    /// Begins a handshake with a peer whose address is known.
    pub(super) fn begin(&mut self, now: Instant, link: Link, out: &mut Out) {
        match self.open(now, link) {
            Ok(Some(control_channel)) => {
                self.attempts.push(Attempt { control_channel, own: true, since: now });
                self.attempt_step(now, self.attempts.len().saturating_sub(1), Vec::new(), out);
            }
            // Under tls-crypt-v2 a server must wait for the client's key.
            Ok(None) => {}
            Err(reason) => self.lost(now, reason, out),
        }
    }

    pub(super) fn open(
        &mut self,
        now: Instant,
        link: Link,
    ) -> Result<Option<ControlChannel>, Reason> {
        let settings = &self.config.settings;
        let (wrapper, reset) = match self.config.tls.role() {
            Role::Client => {
                let reset = match settings.wrap {
                    WrapConfig::TlsCryptV2Client { .. } => Opcode::HardResetClientV3,
                    _ => Opcode::HardResetClientV2,
                };
                (Wrapper::client(&settings.wrap)?, reset)
            }
            Role::Server => match Wrapper::inviting(&settings.wrap)? {
                Some(wrapper) => (wrapper, Opcode::HardResetServerV2),
                None => return Ok(None),
            },
        };
        let tls = new_tls(&self.config.tls)?;
        let local = SessionId(self.random.bytes());
        Ok(Some(ControlChannel::open(now, link, local, reset, wrapper, tls, settings)))
    }

    /// Processes a server's reset that belongs to no known session. It is the answer to our reset,
    /// or announces that the server has restarted. A restart only starts one handshake in parallel
    /// with the session.
    pub(super) fn answered(
        &mut self,
        now: Instant,
        link: Link,
        session: SessionId,
        packet: &mut [u8],
        out: &mut Out,
    ) {
        let known = self.resets.contains(&session);
        if !known {
            self.resets.push_back(session);
        }
        if self.resets.len() > MAX_RESETS {
            self.resets.pop_front();
        }
        let waits = |attempt: &Attempt| {
            attempt.control_channel.remote().is_none()
                && attempt.control_channel.link.remote() == link.remote()
        };
        if let Some(at) = self.attempts.iter().position(waits) {
            return self.attempt_frame(now, at, packet, out);
        }
        let recent = self.invited.is_some_and(|at| now < at + INVITED_EVERY);
        // A reset that acknowledges one of our resets belongs to an earlier handshake.
        let unasked = Wrapper::client(&self.config.settings.wrap)
            .is_ok_and(|mut wrapper| wrapper.open(packet).is_ok_and(|c| c.remote.is_none()));
        if known || recent || !unasked || self.attempts.len() >= MAX_ATTEMPTS {
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        self.invited = Some(now);
        if let Ok(Some(control_channel)) = self.open(now, link) {
            self.attempts.push(Attempt { control_channel, own: false, since: now });
            self.attempt_step(now, self.attempts.len().saturating_sub(1), Vec::new(), out);
        }
    }

    /// Processes a client's reset that belongs to no known session. It is the answer to our
    /// invitation, or the start of a handshake.
    pub(super) fn reset(
        &mut self,
        now: Instant,
        link: Link,
        opcode: Opcode,
        packet: &mut [u8],
        out: &mut Out,
    ) {
        if self.keeps_session() {
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        let invited = |attempt: &Attempt| {
            attempt.control_channel.remote().is_none()
                && attempt.control_channel.link.remote() == link.remote()
        };
        if let Some(at) = self.attempts.iter().position(invited)
            && self.accepts(now, at, packet, out)
        {
            return;
        }
        let unix = self.clock.at(now);
        match self.responder.as_mut().map(|r| r.reset(now, unix, link, opcode, packet)) {
            Some(Ok(answer)) => out.send(link, answer),
            Some(Err(refused)) => self.refused(now, refused, out),
            None => self.dropped = self.dropped.saturating_add(1),
        }
    }

    /// Counts a refused packet from an unauthenticated sender. A key that is too old is reported,
    /// so that the operator learns why the peer cannot connect.
    fn refused(&mut self, now: Instant, refused: Refused, out: &mut Out) {
        self.dropped = self.dropped.saturating_add(1);
        if let Refused::KeyAge(error) = refused {
            self.budget.report_event(now, out, ClientEvent::Warning, || error.to_string());
        }
    }

    /// Passes a client's reset to one of our invitations. It answers only if the reset contains the
    /// invitation's id.
    fn accepts(&mut self, now: Instant, at: usize, packet: &[u8], out: &mut Out) -> bool {
        let Some(attempt) = self.attempts.get_mut(at) else { return false };
        let tls = &self.config.tls;
        // Unwrap a copy, because other invitations need the original packet.
        let mut copy = packet.to_vec();
        let events =
            attempt.control_channel.frame(now, &mut copy, || new_tls(tls), &self.config.settings);
        match events {
            Ok(events) => {
                self.attempt_step(now, at, events, out);
                true
            }
            Err(_) => false,
        }
    }

    /// Starts a handshake if an unauthenticated packet returns a cookie.
    pub(super) fn third_packet(
        &mut self,
        now: Instant,
        link: Link,
        session: SessionId,
        packet: &mut [u8],
        out: &mut Out,
    ) {
        let room = self.room_for(now, link);
        let has_room = || room != Vacancy::None;
        let unix = self.clock.at(now);
        let responder = self.responder.as_mut();
        let opened = responder.map(|r| r.third_packet(now, unix, link, session, packet, has_room));
        let (control, wrapper) = match opened {
            Some(Ok(opened)) => opened,
            Some(Err(refused)) => return self.refused(now, refused, out),
            None => {
                self.dropped = self.dropped.saturating_add(1);
                return;
            }
        };
        let (Some(local), Ok(tls)) = (control.remote, new_tls(&self.config.tls)) else { return };
        let ids = (local, control.session);
        let settings = &self.config.settings;
        let mut control_channel = ControlChannel::resume(now, link, ids, wrapper, tls, settings);
        out.event(ClientEvent::ServerAnswered(link, control.session));
        let refuse = || Err(Reason::Ignored("a renegotiation before there is a session"));
        let events = control_channel.take(now, &control, refuse, settings);
        self.make(room, out);
        // Remove unanswered invitations, which are useless now.
        self.attempts.retain(|a| !a.own || a.control_channel.remote().is_some());
        self.attempts.push(Attempt { control_channel, own: false, since: now });
        let at = self.attempts.len().saturating_sub(1);
        match events {
            Ok(events) => self.attempt_step(now, at, events, out),
            Err(reason) if reason.is_harmless_on(link) => {
                self.attempt_step(now, at, Vec::new(), out);
            }
            Err(reason) => self.attempt_failed(now, at, reason, out),
        }
    }

    /// Finds a place for a new handshake. Unauthenticated senders that hold handshakes open must
    /// neither block the peer nor evict its handshake.
    pub(super) fn room_for(&self, now: Instant, link: Link) -> Vacancy {
        let there = self.attempts.iter().map(|attempt| Occupant {
            link: attempt.control_channel.link,
            since: attempt.since,
            proven: attempt.is_proven(),
        });
        Vacancy::find(now, link, there, (MAX_ATTEMPTS, MAX_OF_ONE))
    }

    /// Ends the handshake that a new one replaces.
    pub(super) fn make(&mut self, room: Vacancy, out: &mut Out) {
        if let Vacancy::InPlaceOf(at) = room
            && at < self.attempts.len()
        {
            let gone = self.attempts.remove(at).control_channel.link;
            if gone.is_stream() {
                self.turn_away(gone, out);
            } else {
                self.dropped = self.dropped.saturating_add(1);
            }
        }
    }

    pub(super) fn attempt_frame(
        &mut self,
        now: Instant,
        at: usize,
        packet: &mut [u8],
        out: &mut Out,
    ) {
        let Some(attempt) = self.attempts.get_mut(at) else { return };
        let link = attempt.control_channel.link;
        // The session uses the keys of the first negotiation, so refuse a renegotiation before the
        // session exists.
        let refuse = || Err(Reason::Ignored("a renegotiation before there is a session"));
        match attempt.control_channel.frame(now, packet, refuse, &self.config.settings) {
            Ok(events) => self.attempt_step(now, at, events, out),
            Err(reason) if reason.is_harmless_on(link) => {
                self.dropped = self.dropped.saturating_add(1);
                self.attempt_step(now, at, Vec::new(), out);
            }
            Err(reason) => self.attempt_failed(now, at, reason, out),
        }
    }

    /// Handles the events of a handshake, and sends its output.
    pub(super) fn attempt_step(
        &mut self,
        now: Instant,
        at: usize,
        events: Vec<Event>,
        out: &mut Out,
    ) {
        let mut events = events.into_iter();
        while let Some(item) = events.next() {
            match self.handle_attempt_event(at, item, out) {
                Ok(false) => {}
                Ok(true) => {
                    // From here on, the control channel belongs to the session.
                    let result = self.admit(now, at, out);
                    return match result {
                        Ok(()) => {
                            let result = self.handle_events(now, events.collect(), out);
                            self.settle(now, result, out);
                        }
                        Err(reason) => self.attempt_failed(now, at, reason, out),
                    };
                }
                Err(reason) => return self.attempt_failed(now, at, reason, out),
            }
        }
        let unix = self.clock.at(now);
        let Some(attempt) = self.attempts.get_mut(at) else { return };
        if let Err(reason) = attempt.control_channel.flush(now, unix, out) {
            self.attempt_failed(now, at, reason, out);
        }
    }

    /// Handles an event. Returns true once both ends' keys are exchanged.
    fn handle_attempt_event(
        &mut self,
        at: usize,
        event: Event,
        out: &mut Out,
    ) -> Result<bool, Reason> {
        let role = self.role();
        let Some(attempt) = self.attempts.get_mut(at) else { return Ok(false) };
        let control_channel = &mut attempt.control_channel;
        match event {
            Event::Reset(payload) => {
                if role == Role::Client {
                    let resend = payload.starts_with(&RESEND_WRAPPED_KEY);
                    control_channel.newest().resend_wrapped_key = resend;
                }
                let session = control_channel.remote().unwrap_or_default();
                out.event(ClientEvent::ServerAnswered(control_channel.link, session));
                Ok(false)
            }
            Event::TlsReady if role == Role::Client => {
                let link = control_channel.link;
                let keys = self.our_keys(link, None);
                self.attempts.get_mut(at).map_or(Ok(()), |a| a.control_channel.send_keys(keys))?;
                Ok(false)
            }
            Event::Keys => {
                if role == Role::Server {
                    let link = control_channel.link;
                    let keys = self.our_keys(link, None);
                    self.attempts
                        .get_mut(at)
                        .map_or(Ok(()), |a| a.control_channel.send_keys(keys))?;
                }
                Ok(true)
            }
            // Ignore messages that arrive before the key exchange.
            Event::TlsReady | Event::Message(_) | Event::Failed(_) => Ok(false),
        }
    }

    pub(super) fn our_keys(
        &mut self,
        link: Link,
        cipher: Option<crate::negotiate::DataCipher>,
    ) -> KeyMethod2 {
        let role = self.role();
        let settings = &self.config.settings;
        let mut options = options_string(settings, role, link, cipher);
        options.listens = self.listens();
        let options = options.to_string();
        let pre_master = (role == Role::Client).then(|| Zeroizing::new(self.random.bytes()));
        KeyMethod2 {
            pre_master,
            randoms: Randoms { random1: self.random.bytes(), random2: self.random.bytes() },
            options: occ::with_inside(&options, &self.config.tunnel_addrs),
            username: String::new(),
            password: Zeroizing::default(),
            peer_info: our_peer_info(settings),
        }
    }

    /// Ends a failed handshake. If this end began it, the address that we dialled counts as failed
    /// too, unless there is a session.
    pub(super) fn attempt_failed(
        &mut self,
        now: Instant,
        at: usize,
        reason: Reason,
        out: &mut Out,
    ) {
        if at >= self.attempts.len() {
            return;
        }
        let mut attempt = self.attempts.remove(at);
        // Send a pending alert, which tells the peer the reason.
        let _ = attempt.control_channel.flush(now, self.clock.at(now), out);
        let dialled = matches!(self.state, State::Open(Some(_)));
        if self.session.is_none() && dialled && self.attempts.is_empty() {
            if self.config.settings.limits.exit_on_tls_failure {
                return self.stop(Reason::TlsExit(Box::new(reason)), out);
            }
            return self.lost(now, reason, out);
        }
        let link = attempt.control_channel.link;
        if self.pending.contains(link) {
            self.turn_away(link, out);
        }
        let from = link.remote();
        out.event(ClientEvent::Note(format!("TLS Error: handshake with {from} failed: {reason}")));
    }

    pub(super) fn tick_attempts(&mut self, now: Instant, out: &mut Out) {
        let late = |attempt: &Attempt| attempt.control_channel.expired(now);
        while let Some(at) = self.attempts.iter().position(late) {
            self.attempt_failed(now, at, Reason::HandshakeTimeout, out);
        }
        let unix = self.clock.at(now);
        let mut failed = None;
        for (at, attempt) in self.attempts.iter_mut().enumerate() {
            if let Err(reason) = attempt.control_channel.flush(now, unix, out) {
                failed = Some((at, reason));
            }
        }
        if let Some((at, reason)) = failed {
            self.attempt_failed(now, at, reason, out);
        }
    }
}
