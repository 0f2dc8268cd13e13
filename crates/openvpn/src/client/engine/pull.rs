//! The request for options, and the messages that the server sends on its own initiative.

use crate::negotiate::DataCipher;
use adit_engine::command::{Float, Keepalive};
use adit_engine::{Instant, Link, PeerId};

use super::update::OptionUpdates;
use super::{ClientEngine, MAX_AUTH_PENDING, Out, PUSH_REQUEST_EVERY, State, Tunnel};
use crate::client::event::{ClientEvent, TunnelConfig};
use crate::negotiate::{
    ControlMessage, FilterAction, PushAssembler, PushPart, PushRefused, PushedOption,
    PushedOptions, RemoteOptions, ReplyItem, RouteContext,
};
use crate::reason::Reason;
use crate::session::{Agreement, DataChannel, PeerTerms, Settings, all_routes};

impl ClientEngine {
    pub(super) fn request_options(&mut self, now: Instant) -> Result<(), Reason> {
        let State::Connecting(attempt) = &mut self.state else { return Ok(()) };
        let Some(pull) = &mut attempt.pull else { return Ok(()) };
        if pull.next_request <= now {
            pull.next_request = now + PUSH_REQUEST_EVERY;
            attempt.control_channel.send_message(ControlMessage::PushRequest.encode())?;
        }
        Ok(())
    }

    pub(super) fn message(
        &mut self,
        now: Instant,
        message: ControlMessage,
        out: &mut Out,
    ) -> Result<(), Reason> {
        match message {
            ControlMessage::PushReply(part) => return self.push_reply(now, &part, out),
            ControlMessage::PushUpdate(part) => self.push_update(now, &part, out),
            ControlMessage::AuthFailed(failed) if failed.temporary => {
                let reason = Reason::AuthFailedForNow(failed.reason);
                self.failed_with(now, reason, failed.advance, failed.backoff, out);
            }
            ControlMessage::AuthFailed(failed) => self.auth_failed(now, failed, out),
            ControlMessage::AuthPending(timeout) => {
                let wait = timeout.unwrap_or(self.config.settings.hand_window);
                let wait = wait.min(MAX_AUTH_PENDING);
                if let State::Connecting(attempt) = &mut self.state
                    && let Some(pull) = &mut attempt.pull
                {
                    pull.give_up = now + wait;
                }
                let text = || "the server waits for an external authentication".into();
                if let Some(text) = self.budget.report(now, text) {
                    out.event(ClientEvent::Note(text));
                    out.event(ClientEvent::AuthPending(wait));
                }
            }
            ControlMessage::Restart(restart) => {
                let reason = Reason::ServerRestart(restart.reason);
                if restart.next_server {
                    self.failed(now, reason, out);
                } else {
                    self.lost(now, reason, out);
                }
            }
            ControlMessage::Halt(reason) => self.stop(Reason::Halted(reason), out),
            ControlMessage::Exit => self.lost(now, Reason::RemoteExit, out),
            ControlMessage::Info(text) | ControlMessage::InfoPre(text) => {
                let note = || format!("Info command was pushed by server ('{text}')");
                if let Some(note) = self.budget.report(now, note) {
                    out.event(ClientEvent::Note(note));
                    out.event(ClientEvent::ServerInfo(text));
                }
            }
            other => {
                let text = || format!("ignored control message '{other}'");
                self.budget.report_event(now, out, ClientEvent::Note, text);
            }
        }
        Ok(())
    }

    pub(super) fn push_reply(
        &mut self,
        now: Instant,
        part: &str,
        out: &mut Out,
    ) -> Result<(), Reason> {
        if matches!(self.state, State::Up(_)) {
            self.token_renewed(now, part, out);
            return Ok(());
        }
        let State::Connecting(attempt) = &mut self.state else { return Ok(()) };
        let Some(pull) = &mut attempt.pull else { return Ok(()) };
        let part = PushPart::lex(part);
        out.event(ClientEvent::Pushed(format!("PUSH_REPLY,{part}")));
        let items = match pull.assembler.add(part) {
            Ok(None) => return Ok(()),
            Ok(Some(items)) => items,
            Err(error) => {
                self.failed(now, error.into(), out);
                return Ok(());
            }
        };
        let echoes = self.echoes(&items);
        match PushedOptions::from_reply(items, &self.config.pull_filters) {
            Ok((pushed, options)) => {
                echoes.into_iter().for_each(|text| out.event(ClientEvent::Echo(text)));
                self.come_up(now, options, pushed, out)
            }
            Err(error @ PushRefused::Unsupported { .. }) => {
                self.stop(error.into(), out);
                Ok(())
            }
            Err(error) => {
                self.failed(now, error.into(), out);
                Ok(())
            }
        }
    }

    /// Returns the texts of `echo` that no filter leaves out.
    fn echoes(&self, items: &[ReplyItem]) -> Vec<String> {
        let accepts = |option: &&PushedOption| {
            option.name() == "echo"
                && matches!(self.config.pull_filters.decide(option), FilterAction::Accept)
        };
        let options = items.iter().filter_map(|item| item.0.as_ref().ok());
        options.filter(accepts).map(|option| option.args().join(" ")).collect()
    }

    /// Takes the new token of a session. Other options that arrive after the first reply have no effect.
    fn token_renewed(&mut self, now: Instant, part: &str, out: &mut Out) {
        let mut assembler = PushAssembler::<ReplyItem>::default();
        let Ok(Some(items)) = assembler.add(PushPart::lex(part)) else { return };
        let Ok((pushed, _)) = PushedOptions::from_reply(items, &self.config.pull_filters) else {
            return;
        };
        let Some(login) = self.remember_token(&pushed) else { return };
        let text = || "the server has renewed the token".into();
        if let Some(text) = self.budget.report(now, text) {
            out.event(ClientEvent::Note(text));
            out.event(ClientEvent::Token(login));
        }
    }

    pub(super) fn come_up(
        &mut self,
        now: Instant,
        options: Vec<PushedOption>,
        pushed: PushedOptions,
        out: &mut Out,
    ) -> Result<(), Reason> {
        let Some(cipher) = self.cipher(&pushed) else {
            let reason = match pushed.cipher {
                Some(cipher) => Reason::CipherNotAllowed(cipher),
                None => Reason::NoCipherPushed,
            };
            self.stop(reason, out);
            return Ok(());
        };
        // The steps that can fail come first, while a failure still ends only the attempt.
        let State::Connecting(attempt) = &mut self.state else { return Ok(()) };
        let keys = attempt.control_channel.data_keys(pushed.tls_ekm)?;
        if pushed.dyn_tls_crypt {
            attempt.control_channel.wrap_renegotiations();
        }
        let State::Connecting(attempt) = std::mem::replace(&mut self.state, State::Dialing) else {
            return Ok(());
        };
        let remote = attempt.control_channel.negotiation().remote_keys();
        let theirs = remote.map(|remote| RemoteOptions::parse(&remote.options));
        let ethernet = self.config.settings.ethernet;
        if let Some(warning) = theirs.and_then(|theirs| theirs.device_mismatch(ethernet)) {
            out.event(ClientEvent::Warning(warning));
        }
        for note in &pushed.notes {
            out.event(ClientEvent::Note(note.clone()));
        }
        // Ignored as in OpenVPN: a server may push this option without using it itself, and in that
        // case all packets pass.
        if let (Some(option), None) = (&pushed.fragment, self.config.settings.fragment) {
            out.event(ClientEvent::Warning(format!(
                "the server pushes \"{option}\", which cannot be pushed: ignored; if packets do not pass, \
                 write {option} into this configuration, or have it removed from the server's"
            )));
        }
        if pushed.redirect_private.is_some() {
            let note = "redirect-private was pushed and is left out: the host route it would set is \
                        made with every redirected route";
            out.event(ClientEvent::Note(note.into()));
        }
        if pushed.send_buffer.or(pushed.receive_buffer).is_some() {
            let note = "pushed socket buffer sizes are left out: sndbuf and rcvbuf set them here";
            out.event(ClientEvent::Note(note.into()));
        }
        let mut control_channel = attempt.control_channel;
        control_channel.establish(self.config.settings.tran_window);
        let server = control_channel
            .negotiation()
            .tls()
            .peer()
            .map(|p| p.subject.clone())
            .unwrap_or_default();
        let mut settings = self.config.settings.clone();
        if let Some(after) = pushed.reneg_sec {
            settings.renegotiation.after = after;
            settings.renegotiation.earliest = after;
        }
        settings.framing = pushed.framing.unwrap_or(settings.framing);
        let largest = settings.tun_mtu_max.max(settings.tun_mtu);
        if let Some(mtu) = pushed.tun_mtu.filter(|mtu| *mtu > largest) {
            out.event(ClientEvent::Warning(format!(
                "the server pushes tun-mtu {mtu}: {largest} is used, tun-mtu-max allows no more"
            )));
        }
        settings.tun_mtu = pushed_mtu(&settings, &pushed);
        settings.keepalive = Keepalive {
            interval: pushed.ping.unwrap_or(self.config.keepalive.interval),
            timeout: pushed.ping_timeout.unwrap_or(self.config.keepalive.timeout),
        };
        let peer = PeerId(pushed.peer_id.unwrap_or(0));
        let link = control_channel.link;
        let agreement = Agreement {
            terms: PeerTerms {
                peer,
                link,
                wire_id: pushed.peer_id,
                float: Float::if_allowed(settings.float && !link.is_stream()),
                framing: settings.framing,
                protection: cipher.protection(&settings.auth, pushed.epoch),
                channel_of: None,
                vlan: None,
            },
            routes: all_routes(),
            keys,
            exporter: pushed.tls_ekm,
            inactive: pushed.inactive.or(settings.limits.inactive),
            timeout: pushed.session_timeout.or(settings.limits.session),
        };
        let data = DataChannel::establish(now, agreement, &settings, &mut self.random, out);
        if let Some(login) = self.remember_token(&pushed) {
            out.event(ClientEvent::Token(login));
        }
        self.remotes.succeeded();
        self.state = State::Up(Box::new(Tunnel {
            control_channel,
            data,
            exit_by_control: pushed.cc_exit,
            // Closing the stream is notice enough. OpenVPN also ignores the option on streams.
            exit_attempts: pushed
                .exit_notify
                .or(settings.exit_notify)
                .filter(|_| !link.is_stream()),
            exit_when_silent: match pushed.ping_timeout {
                Some(_) => pushed.exit_on_timeout,
                None => settings.limits.exit_when_silent,
            },
            server,
            update: OptionUpdates::new(options, settings.clone()),
        }));
        let config = tunnel_config(peer, cipher, link, settings.tun_mtu, pushed);
        out.event(ClientEvent::Up(Box::new(config)));
        Ok(())
    }

    /// Returns the cipher of the session. This is the pushed cipher if we allow it or it is our
    /// fallback. If the server pushes none, it is the configured fallback or the cipher in the
    /// server's options string.
    pub(super) fn cipher(&self, pushed: &PushedOptions) -> Option<DataCipher> {
        let settings = &self.config.settings;
        if let Some(cipher) = pushed.cipher {
            // A server of version 2.5 that does not negotiate still pushes its cipher.
            let allowed = settings.ciphers.contains(&cipher);
            return (allowed || settings.cipher_fallback == Some(cipher)).then_some(cipher);
        }
        let State::Connecting(attempt) = &self.state else { return None };
        let remote = attempt.control_channel.negotiation().remote_keys()?;
        let named = RemoteOptions::parse(&remote.options)
            .cipher()
            .and_then(DataCipher::from_name)
            .filter(|cipher| settings.ciphers.contains(cipher));
        named.or(settings.cipher_fallback)
    }
}

/// Returns the MTU of a session: the pushed one, but at most `tun-mtu-max`.
pub(super) fn pushed_mtu(configured: &Settings, pushed: &PushedOptions) -> u16 {
    let largest = configured.tun_mtu_max.max(configured.tun_mtu);
    pushed.tun_mtu.map_or(configured.tun_mtu, |mtu| mtu.min(largest))
}

pub(super) fn tunnel_config(
    peer: PeerId,
    cipher: DataCipher,
    link: Link,
    mtu: u16,
    pushed: PushedOptions,
) -> TunnelConfig {
    let context = RouteContext {
        remote: Some(link.remote().ip()),
        gateway4: pushed.gateway4,
        gateway6: pushed.gateway6,
        metric: pushed.route_metric,
    };
    TunnelConfig {
        peer: Some(peer),
        ipv4: pushed.ipv4,
        far4: pushed.far4,
        ipv6: pushed.ipv6,
        gateway4: pushed.gateway4,
        gateway6: pushed.gateway6,
        routes4: pushed.routes4.iter().filter_map(|route| route.resolve(&context)).collect(),
        named_routes: pushed.named_routes,
        routes6: pushed.routes6.iter().filter_map(|route| route.resolve(&context)).collect(),
        redirect_gateway: pushed.redirect_gateway,
        block_ipv6: pushed.block_ipv6,
        dns: pushed.dns,
        environment: pushed.environment,
        mtu: Some(mtu),
        cipher: Some(cipher),
        remote: Some(link.remote()),
    }
}
