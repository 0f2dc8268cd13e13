//! Processes packets from unauthenticated senders: resets and returned cookies.

use adit_engine::{Instant, Link, PeerId};

use super::{IDS_AT_LEAST, MAX_PEER_ID, Out, ServerEngine};
use crate::data_format::Command;
use crate::packet::{Control, Opcode, SessionId};
use crate::server::client::{Client, Stage};
use crate::server::event::ServerEvent;
use crate::server::responder::Refused;
use crate::session::{Budget, ControlChannel};
use crate::tls::TlsSession;
use crate::wrap::{WrapConfig, WrapError, Wrapper};

impl ServerEngine {
    /// Answers the reset of an unauthenticated sender, and keeps no state about it.
    pub(super) fn reset(
        &mut self,
        now: Instant,
        link: Link,
        opcode: Opcode,
        packet: &mut [u8],
        out: &mut Out,
    ) {
        let unix = self.clock.at(now);
        match self.responder.reset(now, unix, link, opcode, packet) {
            Ok(answer) => {
                self.counters.resets_answered += 1;
                out.send(link, answer);
            }
            Err(refused) => self.refused(now, link, refused, out),
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
        let handshakes = &mut self.handshakes;
        let room = || handshakes.take(link.remote().ip());
        let len = packet.len();
        let unix = self.clock.at(now);
        match self.responder.third_packet(now, unix, link, session, packet, room) {
            Ok((control, wrapper)) => self.begin(now, link, (&control, len), wrapper, out),
            Err(refused) => self.refused(now, link, refused, out),
        }
    }

    /// Counts a refused packet from an unauthenticated sender.
    pub(super) fn refused(&mut self, now: Instant, link: Link, refused: Refused, out: &mut Out) {
        let counters = &mut self.counters;
        let counter = match refused {
            Refused::Unchecked => &mut counters.unauthenticated_unchecked,
            Refused::Unauthentic => return self.unauthentic(now, link, out),
            Refused::KeyAge(error) => return self.key_age(now, link, error, out),
            Refused::NoReset => &mut counters.unauthenticated_bad,
            Refused::AnswersUsedUp => &mut counters.resets_limited,
            Refused::KeyNotKept => &mut counters.half_open_refused,
            Refused::BadCookie => &mut counters.cookies_bad,
            Refused::UsedCookie => &mut counters.cookies_used,
            Refused::StartsUsedUp => &mut counters.starts_limited,
            Refused::NoRoom => &mut counters.handshakes_refused,
            Refused::Failed => return,
        };
        *counter += 1;
    }

    fn unauthentic(&mut self, now: Instant, link: Link, out: &mut Out) {
        self.counters.unauthenticated_bad += 1;
        // Without a wrapping, no packet can be authentic.
        if !matches!(self.config.settings.wrap, WrapConfig::None) && self.log_limiter.allow(now) {
            out.event(ServerEvent::Unauthentic(link));
        }
    }

    /// Reports a key that was refused because of its age, at most a few times a second. For a
    /// stream, the event about its end already reports this.
    fn key_age(&mut self, now: Instant, link: Link, error: WrapError, out: &mut Out) {
        self.counters.keys_expired += 1;
        if !link.is_stream() && self.log_limiter.allow(now) {
            out.event(ServerEvent::HandshakeFailed(link, error.into()));
        }
    }

    pub(super) fn begin(
        &mut self,
        now: Instant,
        link: Link,
        (first, len): (&Control<'_>, usize),
        wrapper: Wrapper,
        out: &mut Out,
    ) {
        // A stream has no cookie.
        let accepted = self.streams.accepted(link);
        let local = match accepted {
            Some(_) => Some(SessionId(self.random.bytes())),
            None => first.remote,
        };
        let (Some(local), Some(peer)) = (local, self.free_peer_id()) else {
            self.handshakes.release(link.remote().ip());
            return;
        };
        let tls = match TlsSession::server(&self.config.tls) {
            Ok(tls) => tls,
            Err(error) => {
                self.handshakes.release(link.remote().ip());
                out.event(ServerEvent::HandshakeFailed(link, error.into()));
                return;
            }
        };
        let ids = (local, first.session);
        let settings = &self.config.settings;
        let mut control_channel = match accepted {
            Some(accepted) => {
                let give_up = accepted + settings.hand_window;
                ControlChannel::accept(now, link, ids, wrapper, tls, give_up)
            }
            None => ControlChannel::resume(now, link, ids, wrapper, tls, settings),
        };
        control_channel.traffic.received(len);
        let (session, stage) = (first.session, Stage::Negotiating);
        let number = self.next_session;
        self.next_session = self.next_session.wrapping_add(1);
        let client = Client {
            control_channel,
            session,
            number,
            began: accepted.unwrap_or(now),
            requested: false,
            stage,
            scheduled: None,
            budget: Budget::default(),
        };
        self.clients.insert(peer, Box::new(client));
        match accepted {
            Some(_) => self.streams.begun(link, peer),
            None => drop(self.by_session.insert((link.remote(), session), peer)),
        }
        out.plane(Command::AdmitLink(link));
        if !self.verify_key(peer, first, out) {
            self.start(now, peer, first, out);
        }
    }

    /// Starts a handshake with the client's first packet.
    pub(super) fn start(&mut self, now: Instant, peer: PeerId, first: &Control<'_>, out: &mut Out) {
        let Some(client) = self.clients.get(&peer) else { return };
        let link = client.control_channel.link;
        out.event(ServerEvent::HandshakeStarted(link, first.session));
        self.step(now, peer, out, |client, tls, settings| {
            client.control_channel.take(now, first, || Ok(TlsSession::server(tls)?), settings)
        });
    }

    pub(super) fn free_peer_id(&mut self) -> Option<PeerId> {
        let sessions = self.clients.len().saturating_add(self.departing.len());
        (0..=sessions).find_map(|_| {
            let id = PeerId(self.next_peer);
            self.next_peer = id_after(self.next_peer, self.first_peer, sessions);
            let free = !self.clients.contains_key(&id) && !self.departing.contains_key(&id);
            free.then_some(id)
        })
    }
}

/// Returns the id to try next when `sessions` ids from `first` on are in use. Tables have entries up
/// to the highest id, so it must not grow with the number of clients that ever connected.
fn id_after(id: u32, first: u32, sessions: usize) -> u32 {
    let count = u32::try_from(sessions.saturating_mul(2)).unwrap_or(u32::MAX).max(IDS_AT_LEAST);
    let highest = first.saturating_add(count).min(MAX_PEER_ID);
    if id >= highest { first } else { id + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_round_but_not_soon_and_not_before_there_are_enough_for_all() {
        let round = |sessions| {
            (0..).scan(0, move |id, _: u32| {
                *id = id_after(*id, 0, sessions);
                (*id != 0).then_some(*id)
            })
        };
        assert_eq!(round(3).last(), Some(IDS_AT_LEAST));
        assert_eq!(round(100_000).last(), Some(200_000));
        assert_eq!(id_after(MAX_PEER_ID - 1, 0, usize::MAX), MAX_PEER_ID);
        assert_eq!(id_after(MAX_PEER_ID, 0, usize::MAX), 0);
        let first = 1 << 16;
        assert_eq!(id_after(first + IDS_AT_LEAST, first, 3), first);
        assert_eq!(id_after(first + IDS_AT_LEAST - 1, first, 3), first + IDS_AT_LEAST);
        assert_eq!(id_after(MAX_PEER_ID, first, usize::MAX), first);
    }
}
