//! The control channel, from packets to messages, and the key exchange.

use adit_engine::{Instant, Link};
use zeroize::Zeroizing;

use super::{ALERT_PATIENCE, ClientEngine, Out, PullRequest, State, same_path};
use crate::client::{ClientEvent, Credentials};
use crate::keys::{KeyMethod2, Randoms, Role};
use crate::negotiate::{ControlMessage, LocalInfo, PushAssembler};
use crate::reason::Reason;
use crate::session::{Event, RESEND_WRAPPED_KEY, options_string, silence_end};
use crate::tls::TlsSession;

impl ClientEngine {
    pub(super) fn frame(&mut self, now: Instant, link: Link, packet: &mut [u8], out: &mut Out) {
        let up = matches!(self.state, State::Up(_));
        let Some(control_channel) = self.state.control_channel() else {
            self.dropped = self.dropped.saturating_add(1);
            return;
        };
        let elsewhere = !same_path(control_channel.link, link);
        // `float`: a server with several addresses may send its first answer from a different one.
        // Once a session is up, the data plane detects a new address from authentic packets.
        let first = !up && control_channel.remote().is_none();
        let streams = control_channel.link.is_stream() || link.is_stream();
        if elsewhere && !(first && self.config.settings.float && !streams) {
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        let tls = &self.config.tls;
        let next_tls = || {
            if up {
                Ok(TlsSession::client(tls)?)
            } else {
                Err(Reason::Ignored("a renegotiation before there is a session"))
            }
        };
        let events = control_channel.frame(now, packet, next_tls, &self.config.settings);
        if elsewhere && control_channel.remote().is_some() {
            control_channel.link = link;
        }
        if let (State::Connecting(attempt), Ok(_)) = (&mut self.state, &events) {
            attempt.silent_at =
                silence_end(now, &self.config.settings.limits, self.config.keepalive);
        }
        let result = events.and_then(|events| self.handle_events(now, events, out));
        self.settle(now, result, out);
    }

    /// Sends the output of a step, and ends the session if the step failed.
    pub(super) fn settle(&mut self, now: Instant, result: Result<(), Reason>, out: &mut Out) {
        let unix = self.clock.at(now);
        let settled = match self.state.control_channel() {
            Some(control_channel) => control_channel.settle(now, unix, result, out),
            None => Ok(result.is_err()),
        };
        match settled {
            Ok(false) => {}
            Ok(true) => self.dropped = self.dropped.saturating_add(1),
            // The current key of an established session stays in use until it expires.
            Err(reason)
                if self.config.settings.limits.exit_on_tls_failure
                    && matches!(self.state, State::Connecting(_)) =>
            {
                self.stop(Reason::TlsExit(Box::new(reason)), out);
            }
            Err(reason) => match self.state {
                State::Up(_) => self.lost(now, reason, out),
                State::Connecting(_) => self.failed(now, reason, out),
                _ => {}
            },
        }
    }

    pub(super) fn handle_events(
        &mut self,
        now: Instant,
        events: Vec<Event>,
        out: &mut Out,
    ) -> Result<(), Reason> {
        events.into_iter().try_for_each(|item| self.handle_event(now, item, out))
    }

    pub(super) fn handle_event(
        &mut self,
        now: Instant,
        event: Event,
        out: &mut Out,
    ) -> Result<(), Reason> {
        match event {
            Event::Reset(payload) => {
                if let State::Connecting(attempt) = &mut self.state {
                    attempt.answer_by = None;
                    let resend = payload.starts_with(&RESEND_WRAPPED_KEY);
                    attempt.control_channel.newest().resend_wrapped_key = resend;
                    let (link, session) =
                        (attempt.control_channel.link, attempt.control_channel.remote());
                    out.event(ClientEvent::ServerAnswered(link, session.unwrap_or_default()));
                }
                Ok(())
            }
            Event::TlsReady if self.ends_here() => {
                if let State::Connecting(attempt) = &mut self.state {
                    attempt.checked_at = Some(now + ALERT_PATIENCE);
                }
                Ok(())
            }
            Event::TlsReady => self.tls_ready(out),
            Event::Failed(reason) => {
                self.budget.report_event(now, out, ClientEvent::Warning, || reason.in_session());
                Ok(())
            }
            Event::Keys => self.keys_exchanged(now, out),
            Event::Message(record) => {
                ControlMessage::parse_record(&record).try_for_each(|message| match message {
                    Ok(message) => self.message(now, message, out),
                    Err(error) => {
                        self.budget
                            .report_event(now, out, ClientEvent::Warning, || error.to_string());
                        Ok(())
                    }
                })
            }
        }
    }

    /// Returns whether this is a check with a server that does not support checks.
    pub(super) fn ends_here(&self) -> bool {
        match &self.state {
            State::Connecting(attempt) => {
                self.config.check && !attempt.control_channel.negotiation().tls().is_check()
            }
            _ => false,
        }
    }

    /// Ends a check without an alert: the server accepted the certificate.
    pub(super) fn checked(&mut self, out: &mut Out) {
        if let State::Connecting(attempt) = &self.state {
            let tls = attempt.control_channel.negotiation().tls();
            let server = tls.peer().cloned().unwrap_or_default();
            out.event(ClientEvent::Authenticated {
                server,
                tls: tls.description(),
                certificates: self.config.settings.certificates_of(tls),
            });
        }
        self.stop(Reason::Checked, out);
    }

    pub(super) fn send_keys(&mut self) -> Result<(), Reason> {
        let Credentials { username, password } = self.take_login();
        let settings = &self.config.settings;
        let (control_channel, cipher) = match &mut self.state {
            State::Connecting(attempt) => (&mut attempt.control_channel, None),
            State::Up(tunnel) => (&mut tunnel.control_channel, Some(tunnel.data.schedule.cipher())),
            _ => return Ok(()),
        };
        let options =
            options_string(settings, Role::Client, control_channel.link, cipher).to_string();
        let peer_info = LocalInfo {
            ciphers: &settings.ciphers,
            pull: true,
            max_mtu: settings.tun_mtu_max.max(settings.tun_mtu),
            dynamic_tls_crypt: settings.dynamic_tls_crypt,
            version: env!("CARGO_PKG_VERSION"),
            full: settings.push_peer_info,
            extra: &settings.peer_info,
        };
        let randoms = Randoms { random1: self.random.bytes(), random2: self.random.bytes() };
        control_channel.send_keys(KeyMethod2 {
            pre_master: Some(Zeroizing::new(self.random.bytes())),
            randoms,
            options,
            username,
            password,
            peer_info: peer_info.encode(),
        })
    }

    pub(super) fn keys_exchanged(&mut self, now: Instant, out: &mut Out) -> Result<(), Reason> {
        match &mut self.state {
            State::Connecting(attempt) => {
                let tls = attempt.control_channel.negotiation().tls();
                let server = tls.peer().cloned().unwrap_or_default();
                out.event(ClientEvent::Authenticated {
                    server,
                    tls: tls.description(),
                    certificates: self.config.settings.certificates_of(tls),
                });
                attempt.pull = Some(PullRequest {
                    assembler: PushAssembler::default(),
                    next_request: now,
                    give_up: now + self.config.settings.hand_window,
                });
                self.request_options(now)
            }
            State::Up(tunnel) => {
                let tls = tunnel.control_channel.negotiation().tls();
                let server = tls.peer().cloned().unwrap_or_default();
                if tls.peer().is_some() && server.subject != tunnel.server {
                    let reason = Reason::Protocol("another certificate in a renegotiation");
                    let reason = tunnel.control_channel.reject(now, reason)?;
                    return self.handle_event(now, Event::Failed(reason), out);
                }
                out.event(ClientEvent::Reverified { server, tls: tls.description() });
                let control_channel = &mut tunnel.control_channel;
                let random = &mut self.random;
                let key_id = tunnel.data.rekey(now, Role::Client, control_channel, random, out)?;
                out.event(ClientEvent::Rekeyed { key_id, cipher: tunnel.data.schedule.cipher() });
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
