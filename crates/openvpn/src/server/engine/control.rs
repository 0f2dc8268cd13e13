//! The control channels of clients. They turn packets into messages and messages into packets.

use adit_engine::{Instant, Link, PeerId};

use super::{Out, ServerEngine};
use crate::negotiate::{ControlMessage, PushPart, ReplyItem};
use crate::packet::{Header, Opcode, split_front};
use crate::reason::Reason;
use crate::server::client::{Client, Stage};
use crate::server::event::ServerEvent;
use crate::session::budget::MESSAGES_PER_RECORD;
use crate::session::{Event, Settings};
use crate::tls::{ServerTls, TlsSession};

impl ServerEngine {
    pub(super) fn say(
        &mut self,
        now: Instant,
        peer: PeerId,
        message: &ControlMessage,
        out: &mut Out,
    ) {
        let unix = self.clock.at(now);
        if let Some(client) = self.clients.get_mut(&peer)
            && client.connected().is_some()
        {
            let _ = client.control_channel.send_message(message.encode());
            let _ = client.control_channel.flush(now, unix, out);
            report_control_message(peer, client, message.to_string(), out);
        }
    }

    pub(super) fn frame(&mut self, now: Instant, link: Link, packet: &mut [u8], out: &mut Out) {
        if link.is_stream() {
            return self.stream_frame(now, link, packet, out);
        }
        let Ok((Header { opcode, .. }, session, _)) = split_front(packet) else {
            self.counters.unauthenticated_bad += 1;
            return;
        };
        if let Some(&peer) = self.by_session.get(&(link.remote(), session)) {
            return self.session_frame(now, peer, packet, out);
        }
        match opcode {
            // The peer repeats the packet, to the process that continues the sessions.
            _ if self.paused => self.counters.delayed += 1,
            Opcode::HardResetClientV2 | Opcode::HardResetClientV3 => {
                self.reset(now, link, opcode, packet, out);
            }
            Opcode::ControlV1 | Opcode::AckV1 | Opcode::ControlWkcV1 => {
                self.third_packet(now, link, session, packet, out);
            }
            _ => self.counters.unauthenticated_bad += 1,
        }
    }

    pub(super) fn session_frame(
        &mut self,
        now: Instant,
        peer: PeerId,
        packet: &mut [u8],
        out: &mut Out,
    ) {
        if self.hold_packet(peer, packet) {
            return;
        }
        let paused = self.paused;
        self.step(now, peer, out, |client, tls, settings| {
            // The client must be accepted with the data in its authorization request. Until it has
            // a session, refuse a different certificate and further attempts.
            let may_begin = client.may_renegotiate() && !paused;
            client.control_channel.frame(now, packet, || next_tls(may_begin, tls), settings)
        });
    }

    /// Passes input to a client, handles the resulting events, sends its output, and removes the
    /// client if a step failed.
    pub(super) fn step(
        &mut self,
        now: Instant,
        peer: PeerId,
        out: &mut Out,
        take: impl FnOnce(&mut Client, &ServerTls, &Settings) -> Result<Vec<Event>, Reason>,
    ) {
        let unix = self.clock.at(now);
        let Some(client) = self.clients.get_mut(&peer) else { return };
        let events = take(client, &self.config.tls, &self.config.settings);
        self.counters.delayed += std::mem::take(&mut client.control_channel.put_off);
        let result = events.and_then(|events| {
            events.into_iter().try_for_each(|item| self.handle_event(now, peer, item, out))
        });
        let Some(client) = self.clients.get_mut(&peer) else { return };
        let settled = client.control_channel.settle(now, unix, result, out);
        self.soiled |= client.control_channel.take_soiled();
        match settled {
            Ok(false) => {}
            Ok(true) => self.counters.session_bad += 1,
            Err(reason) if reason.is_harmless() => {
                self.counters.session_bad += 1;
                return self.remove(peer, Reason::OutOfStep(Box::new(reason)), out);
            }
            Err(reason) => return self.remove(peer, reason, out),
        }
        self.schedule(peer);
    }

    pub(super) fn handle_event(
        &mut self,
        now: Instant,
        peer: PeerId,
        event: Event,
        out: &mut Out,
    ) -> Result<(), Reason> {
        match event {
            Event::Reset(_) | Event::TlsReady => Ok(()),
            Event::Keys => self.keys_arrived(now, peer, out),
            Event::Failed(reason) => {
                self.forget_reauthorization(peer);
                self.counters.renegotiations_failed += 1;
                self.report(now, peer, out, ServerEvent::Warning, || reason.in_session());
                Ok(())
            }
            Event::Message(record) => self.record(now, peer, &record, out),
        }
    }

    /// Reads the control messages in one TLS record, within the client's budget.
    pub(super) fn record(
        &mut self,
        now: Instant,
        peer: PeerId,
        record: &[u8],
        out: &mut Out,
    ) -> Result<(), Reason> {
        let Some(client) = self.clients.get_mut(&peer) else { return Ok(()) };
        if !client.budget.may_read(now) {
            self.counters.messages_excess += 1;
            return Ok(());
        }
        let mut messages = ControlMessage::parse_record(record);
        for message in messages.by_ref().take(MESSAGES_PER_RECORD) {
            match message {
                Ok(message) => self.message(now, peer, message, out)?,
                Err(error) => {
                    self.report(now, peer, out, ServerEvent::Warning, || error.to_string());
                }
            }
        }
        self.counters.messages_excess += u64::from(messages.next().is_some());
        Ok(())
    }

    /// Reports a message of a client, within its budget.
    pub(super) fn report(
        &mut self,
        now: Instant,
        peer: PeerId,
        out: &mut Out,
        event: impl FnOnce(Option<PeerId>, String) -> ServerEvent,
        text: impl FnOnce() -> String,
    ) {
        let budget = self.clients.get_mut(&peer).map(|client| &mut client.budget);
        if let Some(text) = budget.and_then(|budget| budget.report(now, text)) {
            out.event(event(Some(peer), text));
        }
    }

    pub(super) fn message(
        &mut self,
        now: Instant,
        peer: PeerId,
        message: ControlMessage,
        out: &mut Out,
    ) -> Result<(), Reason> {
        match message {
            ControlMessage::PushRequest => {
                // The first request may cross the unrequested reply. A later one is a repetition.
                if let Some(client) = self.clients.get_mut(&peer)
                    && let Stage::Connected(connected) = &mut client.stage
                    && std::mem::replace(&mut connected.asked, true)
                {
                    self.push_again(now, peer, out)?;
                }
            }
            // The acknowledgement is still sent, so that the client need not repeat its message.
            ControlMessage::Exit => return Err(Reason::RemoteExit),
            ControlMessage::ChallengeResponse(text) => {
                self.challenge_response(now, peer, text, out);
            }
            other => {
                let text = || format!("ignored control message '{other}'");
                self.report(now, peer, out, ServerEvent::Note, text);
            }
        }
        Ok(())
    }

    /// Sends a client its options again, now or as soon as its budget allows.
    pub(super) fn push_again(
        &mut self,
        now: Instant,
        peer: PeerId,
        out: &mut Out,
    ) -> Result<(), Reason> {
        let Some(client) = self.clients.get_mut(&peer) else { return Ok(()) };
        if !client.budget.may_push(now) {
            self.counters.delayed += 1;
            return Ok(());
        }
        send_push(peer, client, out)
    }
}

/// Creates the TLS session of a renegotiation.
pub(super) fn next_tls(may_begin: bool, tls: &ServerTls) -> Result<TlsSession, Reason> {
    if may_begin {
        Ok(TlsSession::server(tls)?)
    } else {
        Err(Reason::Ignored("a renegotiation before there is a session, or during another one"))
    }
}

/// Sends a client its options.
pub(super) fn send_push(peer: PeerId, client: &mut Client, out: &mut Out) -> Result<(), Reason> {
    let Stage::Connected(connected) = &client.stage else { return Ok(()) };
    for bundle in &connected.push {
        client.control_channel.send_message(terminated(bundle))?;
    }
    for bundle in &connected.push {
        // The log must not contain a token.
        let text = match (&connected.token, bundle.strip_prefix("PUSH_REPLY,")) {
            (Some(_), Some(options)) => {
                format!("PUSH_REPLY,{}", PushPart::<ReplyItem>::lex(options))
            }
            _ => bundle.clone(),
        };
        report_control_message(peer, client, text, out);
    }
    Ok(())
}

/// Reports a control message that was sent to a client to the driver.
pub(super) fn report_control_message(
    peer: PeerId,
    client: &Client,
    message: String,
    out: &mut Out,
) {
    let identity = client.control_channel.negotiation().tls().peer();
    let name = identity.map(|identity| identity.common_name.clone()).unwrap_or_default();
    out.event(ServerEvent::Told { peer, link: client.control_channel.link, name, message });
}

/// Terminates a control message with NUL.
pub(super) fn terminated(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    bytes
}
