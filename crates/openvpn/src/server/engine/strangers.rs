//! Packets of people the server does not know: resets, and the cookies that come back.

use adit_engine::{Instant, Link, Op, PeerId};

use super::{IDS_AT_LEAST, MAX_PEER_ID, Out, ServerEngine};
use crate::packet::{Acks, Control, Opcode, SessionId};
use crate::server::client::{Client, Stage};
use crate::server::event::ServerEvent;
use crate::session::{Budget, Conversation, RESEND_WRAPPED_KEY};
use crate::tls::TlsSession;
use crate::wrap::{First, WrapConfig, Wrapper};

impl ServerEngine {
    /// A stranger's reset: one answer, and nothing is remembered.
    pub(super) fn reset(
        &mut self,
        now: Instant,
        link: Link,
        opcode: Opcode,
        packet: &mut [u8],
        out: &mut Out,
    ) {
        if !self.limiter.allow(now, link.remote().ip()) {
            self.counters.resets_limited += 1;
            return;
        }
        let unix = self.clock.at(now);
        let Ok(First { control, early_negotiation, mut wrapper, .. }) =
            self.wrap.open_first(packet)
        else {
            return self.unauthentic(now, link, out);
        };
        if control.message != Some(0) || control.key_id != 0 || !control.acks.is_empty() {
            self.counters.strangers_bad += 1;
            return;
        }
        let client = control.session;
        let cookie = self.cookies.bake(now, link.remote(), client);
        let acks = Acks::from_slice(&[0]).unwrap_or_default();
        let answer = Control {
            opcode: Opcode::HardResetServerV2,
            key_id: 0,
            session: cookie,
            acks,
            remote: Some(client),
            message: Some(0),
            payload: if early_negotiation { &RESEND_WRAPPED_KEY } else { &[] },
        };
        let mut frame = Vec::new();
        if wrapper.seal(&answer, unix, &mut frame).is_err() {
            return;
        }
        if opcode == Opcode::HardResetClientV3 && !early_negotiation {
            // It cannot send its key again, so the key has to be remembered.
            let kept = !self.config.force_cookie
                && self.half_open.insert(now, (link.remote(), client), wrapper);
            if !kept {
                self.counters.half_open_refused += 1;
                return;
            }
        }
        self.counters.resets_answered += 1;
        out.send(link, frame);
    }

    /// A stranger's packet that may bring a cookie back: from here on there is a handshake.
    pub(super) fn third_packet(
        &mut self,
        now: Instant,
        link: Link,
        (opcode, session): (Opcode, SessionId),
        packet: &mut [u8],
        out: &mut Out,
    ) {
        // Unwrapping a client's key costs more than the other wrappings' checks: it is limited too.
        if opcode == Opcode::ControlWkcV1 && !self.limiter.allow(now, link.remote().ip()) {
            self.counters.resets_limited += 1;
            return;
        }
        let key = (link.remote(), session);
        let opened = match self.half_open.get_mut(now, &key) {
            Some(wrapper) => wrapper.open(packet).map(|control| (control, None)),
            None => self.wrap.open_first(packet).map(|first| (first.control, Some(first.wrapper))),
        };
        let Ok((control, wrapper)) = opened else {
            return self.unauthentic(now, link, out);
        };
        if !self.cookies.returned(now, link.remote(), &control) {
            self.counters.cookies_bad += 1;
            return;
        }
        let Some(mut wrapper) = wrapper.or_else(|| self.half_open.remove(&key)) else { return };
        if !self.handshakes.begin(link.remote().ip()) {
            self.counters.handshakes_refused += 1;
            return;
        }
        // Packet id 1 went out with the answer to the reset.
        wrapper.set_next_id(2);
        self.begin(now, link, &control, wrapper, out);
    }

    pub(super) fn unauthentic(&mut self, now: Instant, link: Link, out: &mut Out) {
        self.counters.strangers_bad += 1;
        // Without a wrapping nothing could have been authentic.
        if !matches!(self.config.settings.wrap, WrapConfig::None) && self.naming.allow(now) {
            out.event(ServerEvent::Unauthentic(link));
        }
    }

    pub(super) fn begin(
        &mut self,
        now: Instant,
        link: Link,
        first: &Control<'_>,
        wrapper: Wrapper,
        out: &mut Out,
    ) {
        // Over a stream there was no cookie to come back.
        let accepted = self.streams.accepted(link);
        let local = match accepted {
            Some(_) => Some(SessionId(self.random.bytes())),
            None => first.remote,
        };
        let (Some(local), Some(peer)) = (local, self.free_peer_id()) else {
            self.handshakes.end(link.remote().ip());
            return;
        };
        let tls = match TlsSession::server(&self.config.tls) {
            Ok(tls) => tls,
            Err(error) => {
                self.handshakes.end(link.remote().ip());
                out.event(ServerEvent::HandshakeFailed(link, error.to_string()));
                return;
            }
        };
        let ids = (local, first.session);
        let settings = &self.config.settings;
        let conversation = match accepted {
            Some(accepted) => {
                let give_up = accepted + settings.hand_window;
                Conversation::accept(now, link, ids, wrapper, tls, give_up)
            }
            None => Conversation::resume(now, link, ids, wrapper, tls, settings),
        };
        let (session, stage) = (first.session, Stage::Negotiating);
        let client =
            Client { conversation, session, stage, scheduled: None, budget: Budget::default() };
        self.clients.insert(peer, Box::new(client));
        match accepted {
            Some(_) => self.streams.begun(link, peer),
            None => drop(self.by_session.insert((link.remote(), session), peer)),
        }
        out.plane(Op::AdmitLink(link));
        out.event(ServerEvent::HandshakeStarted(link, first.session));
        self.step(now, peer, out, |client, tls, settings| {
            client.conversation.take(now, first, || Ok(TlsSession::server(tls)?), settings)
        });
    }

    pub(super) fn free_peer_id(&mut self) -> Option<PeerId> {
        let sessions = self.clients.len().saturating_add(self.departing.len());
        (0..=sessions).find_map(|_| {
            let id = PeerId(self.next_peer);
            self.next_peer = id_after(self.next_peer, sessions);
            let free = !self.clients.contains_key(&id) && !self.departing.contains_key(&id);
            free.then_some(id)
        })
    }
}

/// The id to try next, where so many are taken. Tables have places up to the highest id, so it does not grow with all who
/// ever came.
fn id_after(id: u32, sessions: usize) -> u32 {
    let highest = u32::try_from(sessions.saturating_mul(2)).unwrap_or(u32::MAX);
    if id >= highest.clamp(IDS_AT_LEAST, MAX_PEER_ID) { 0 } else { id + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_round_but_not_soon_and_not_before_there_are_enough_for_all() {
        let round = |sessions| {
            (0..).scan(0, move |id, _: u32| {
                *id = id_after(*id, sessions);
                (*id != 0).then_some(*id)
            })
        };
        assert_eq!(round(3).last(), Some(IDS_AT_LEAST));
        assert_eq!(round(100_000).last(), Some(200_000));
        assert_eq!(id_after(MAX_PEER_ID - 1, usize::MAX), MAX_PEER_ID);
        assert_eq!(id_after(MAX_PEER_ID, usize::MAX), 0);
    }
}
