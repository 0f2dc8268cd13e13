mod leaving;
mod pull;
mod update;

use std::time::Duration;

use adit_engine::{
    Engine, Input, Instant, Link, Notice, Op, Outbox, Output, PeerId, Random, Seed, UnixTime,
};
use zeroize::Zeroizing;

use super::PATH_CHANGED;
use super::config::{ClientConfig, Credentials};
use super::event::{ClientEvent, Stop};
use super::remotes::{Next, Remotes};
use crate::keys::{KeyMethod2, Randoms, Role};
use crate::negotiate::{AdvanceTo, ControlMessage, LocalInfo, PushAssembler, ReplyItem};
use crate::p2p::Reach;
use crate::packet::{Opcode, SessionId};
use crate::session::{
    Budget, Conversation, Fault, Heard, Idle, KeySchedule, RESEND_WRAPPED_KEY, Sizes, WallClock,
    failed_negotiation, is_exit_notice, misframed, options_string, session_end, silence_end,
};
use crate::tls::{ClientTls, TlsSession};
use crate::wrap::{WrapConfig, Wrapper};

type Out = Outbox<ClientEvent>;

/// PUSH_REQUEST is repeated this often, as stock servers expect.
const PUSH_REQUEST_EVERY: Duration = Duration::from_secs(5);

/// In TLS 1.3 a server reads the client's certificate after the client is done, and its alert comes late.
const ALERT_PATIENCE: Duration = Duration::from_secs(2);

/// An OpenVPN client.
pub struct ClientEngine {
    config: ClientConfig,
    random: Random,
    clock: WallClock,
    remotes: Remotes,
    state: State,
    /// The configured credentials, while a token stands in for them.
    own_credentials: Option<Credentials>,
    /// What the server may still cause.
    budget: Budget,
    /// Packets that were dropped because they were not authentic or did not belong.
    dropped: u64,
}

enum State {
    /// Until the first input.
    New,
    /// Between two attempts.
    Waiting {
        until: Instant,
    },
    Dialing,
    Connecting(Box<Attempt>),
    Up(Box<Tunnel>),
    Leaving(Box<Leaving>),
    Stopped,
}

/// From the first reset to the pushed options.
struct Attempt {
    conversation: Conversation,
    /// The server must answer by then; `None` once it has.
    answer_by: Option<Instant>,
    /// `ping-exit`: the program ends then unless something comes.
    silent_at: Option<Instant>,
    /// `session-timeout`.
    ends: Option<Instant>,
    pull: Option<Pull>,
    /// A check that goes no further: it waits until then for an alert.
    checked_at: Option<Instant>,
}

/// Asking for options.
struct Pull {
    assembler: PushAssembler<ReplyItem>,
    next_request: Instant,
    give_up: Instant,
}

/// A session with its data channel.
struct Tunnel {
    conversation: Conversation,
    peer: PeerId,
    schedule: KeySchedule,
    sizes: Sizes,
    exporter: bool,
    exit_by_control: bool,
    exit_attempts: Option<u8>,
    /// `ping-exit`: a silent server ends the client and not only the session.
    exit_when_silent: bool,
    /// `session-timeout`.
    ends: Option<Instant>,
    /// `inactive`.
    idle: Option<Idle>,
    server: String,
    update: update::Updates,
}

/// Saying good-bye.
struct Leaving {
    tunnel: Tunnel,
    notices_left: u8,
    next: Instant,
    why: Stop,
}

impl ClientEngine {
    /// A client that begins to dial at its first input.
    pub fn new(
        config: ClientConfig,
        seed: impl Into<Seed>,
        now: Instant,
        unix_time: UnixTime,
    ) -> Self {
        let mut config = config;
        if config.check {
            config.tls = config.tls.for_check();
        }
        let remotes = Remotes::new(&Reach {
            accepts: None,
            remotes: config.remotes.clone(),
            connect_retry: config.connect_retry,
            connect_retry_max: config.connect_retry_max,
        });
        let random = Random::new(seed);
        let clock = WallClock::new(now, unix_time);
        Self {
            config,
            random,
            clock,
            remotes,
            state: State::New,
            own_credentials: None,
            budget: Budget::default(),
            dropped: 0,
        }
    }

    /// The wall clock was set.
    pub fn set_unix_time(&mut self, now: Instant, unix_time: UnixTime) {
        self.clock = WallClock::new(now, unix_time);
    }

    /// Another certificate or other authorities: from the next negotiation on.
    pub fn set_tls(&mut self, tls: ClientTls) {
        self.config.tls = tls;
    }

    /// Packets dropped because they were not authentic or did not belong to the session.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Says something to the server on the control channel. False if there is no session.
    pub fn say(&mut self, now: Instant, message: &ControlMessage, out: &mut Out) -> bool {
        let State::Up(tunnel) = &mut self.state else { return false };
        let result = tunnel.conversation.send_message(message.encode()).map(|_| ());
        self.settle(now, result, out);
        true
    }

    /// Ends the session and begins again with the same server.
    pub fn restart(&mut self, now: Instant, out: &mut Out) {
        self.lost(now, "restart requested".into(), out);
    }

    /// The machine reaches the server another way than before, or again after an outage. What waits
    /// or is under way begins at once; a session goes on, and looks for the path's MTU. A stream that
    /// is `stale`, since its own address is gone, ends.
    pub fn path_changed(&mut self, now: Instant, stale: bool, out: &mut Out) {
        match &mut self.state {
            State::Waiting { until } => *until = now,
            State::Dialing => self.dial(out),
            State::Connecting(_) => {
                self.leave(out);
                out.event(ClientEvent::Restarting(PATH_CHANGED.into()));
                self.dial(out);
            }
            State::Up(tunnel) if stale && tunnel.conversation.link.is_stream() => {
                self.lost(now, PATH_CHANGED.into(), out);
                self.state = State::Waiting { until: now };
            }
            State::Up(tunnel) => tunnel.sizes.moved(now, tunnel.conversation.link),
            State::New | State::Leaving(_) | State::Stopped => {}
        }
    }

    fn stop(&mut self, why: Stop, out: &mut Out) {
        self.leave(out);
        self.state = State::Stopped;
        out.event(ClientEvent::Stopped(why));
    }

    /// Takes down what the state has in the world.
    fn leave(&mut self, out: &mut Out) {
        let link = match std::mem::replace(&mut self.state, State::Stopped) {
            State::Connecting(attempt) => attempt.conversation.link,
            State::Up(tunnel) => take_down(&tunnel, out),
            State::Leaving(leaving) => take_down(&leaving.tunnel, out),
            State::New | State::Waiting { .. } | State::Dialing | State::Stopped => return,
        };
        out.push(Output::Hangup(link));
    }

    /// The session is lost: again from the same server.
    fn lost(&mut self, now: Instant, reason: String, out: &mut Out) {
        if matches!(self.state, State::Leaving(_)) {
            // We were going anyway; a farewell that crossed ours must not bring us back.
            return self.gone(out);
        }
        self.leave(out);
        out.event(ClientEvent::Restarting(reason));
        self.state = State::Waiting { until: now + self.remotes.after_loss() };
    }

    /// The stream of a session ended: from the next server, which may be the same one by another
    /// transport.
    fn cut_off(&mut self, now: Instant, out: &mut Out) {
        let wait = self.remotes.move_on();
        self.lost(now, CUT_OFF.into(), out);
        if let State::Waiting { until } = &mut self.state {
            *until = now + wait;
        }
    }

    /// The attempt failed: on to the next server.
    fn failed(&mut self, now: Instant, reason: String, out: &mut Out) {
        self.failed_with(now, reason, AdvanceTo::Address, None, out);
    }

    fn failed_with(
        &mut self,
        now: Instant,
        reason: String,
        advance: AdvanceTo,
        at_least: Option<Duration>,
        out: &mut Out,
    ) {
        if matches!(self.state, State::Leaving(_)) {
            return self.gone(out);
        }
        self.leave(out);
        let next = match advance {
            AdvanceTo::Stay => Next::After(self.remotes.after_loss()),
            AdvanceTo::Address | AdvanceTo::Remote => self.remotes.advance(),
        };
        match next {
            Next::Exhausted => {
                out.event(ClientEvent::Restarting(reason));
                self.stop(Stop::RetriesExhausted, out);
            }
            Next::After(wait) => {
                out.event(ClientEvent::Restarting(reason));
                // A server may ask for patience, but not for more than `connect-retry` has; so in stock.
                let (first, longest) = self.config.connect_retry;
                let asked = at_least.unwrap_or_default().min(longest.max(first));
                self.state = State::Waiting { until: now + wait.max(asked) };
            }
        }
    }

    fn dial(&mut self, out: &mut Out) {
        let Some(remote) = self.remotes.current() else {
            return self.stop(Stop::RetriesExhausted, out);
        };
        let target = remote.target.clone();
        out.event(ClientEvent::Connecting(format!("{}:{}", target.host, target.port)));
        out.push(Output::Dial(target));
        self.state = State::Dialing;
    }

    /// The path of the attempt or session.
    fn link(&self) -> Option<Link> {
        match &self.state {
            State::Connecting(attempt) => Some(attempt.conversation.link),
            State::Up(tunnel) => Some(tunnel.conversation.link),
            State::Leaving(leaving) => Some(leaving.tunnel.conversation.link),
            State::New | State::Waiting { .. } | State::Dialing | State::Stopped => None,
        }
    }

    fn connect(&mut self, now: Instant, link: Link, out: &mut Out) {
        let settings = &self.config.settings;
        let attempt = Wrapper::client(&settings.wrap).map_err(Fault::from).and_then(|wrapper| {
            let reset = match settings.wrap {
                WrapConfig::TlsCryptV2Client { .. } => Opcode::HardResetClientV3,
                _ => Opcode::HardResetClientV2,
            };
            let local = SessionId(self.random.bytes());
            let tls = TlsSession::client(&self.config.tls)?;
            let mut conversation =
                Conversation::open(now, link, local, reset, wrapper, tls, settings);
            conversation.flush(now, self.clock.at(now), out)?;
            Ok(conversation)
        });
        match attempt {
            Ok(conversation) => {
                let own = self.remotes.current().and_then(|remote| remote.target.wait);
                let answer_by = Some(now + own.unwrap_or(self.config.server_poll_timeout));
                let limits = &self.config.settings.limits;
                let silent_at = silence_end(now, limits, self.config.keepalive);
                let ends = session_end(now, limits.session);
                let attempt = Attempt {
                    conversation,
                    answer_by,
                    silent_at,
                    ends,
                    pull: None,
                    checked_at: None,
                };
                self.state = State::Connecting(Box::new(attempt));
            }
            Err(fault) => {
                out.push(Output::Hangup(link));
                self.failed(now, fault.to_string(), out);
            }
        }
    }

    fn frame(&mut self, now: Instant, link: Link, packet: &mut [u8], out: &mut Out) {
        let up = matches!(self.state, State::Up(_));
        let conversation = match &mut self.state {
            State::Connecting(attempt) => &mut attempt.conversation,
            State::Up(tunnel) => &mut tunnel.conversation,
            State::Leaving(leaving) => &mut leaving.tunnel.conversation,
            State::New | State::Waiting { .. } | State::Dialing | State::Stopped => {
                self.dropped = self.dropped.saturating_add(1);
                return;
            }
        };
        let elsewhere = !same_path(conversation.link, link);
        // `float`: a server with several addresses may give its first answer from another one. In a
        // session the data plane sees who moved, by packets that are authentic.
        let first = !up && conversation.remote().is_none();
        let streams = conversation.link.is_stream() || link.is_stream();
        if elsewhere && !(first && self.config.settings.float && !streams) {
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        let tls = &self.config.tls;
        let next_tls = || match up {
            true => Ok(TlsSession::client(tls)?),
            // The options make the first negotiation's keys: it must be the only one until then.
            false => Err(Fault::Ignored("a renegotiation before there is a session")),
        };
        let heard = conversation.frame(now, packet, next_tls, &self.config.settings);
        if elsewhere && conversation.remote().is_some() {
            conversation.link = link;
        }
        if let (State::Connecting(attempt), Ok(_)) = (&mut self.state, &heard) {
            attempt.silent_at =
                silence_end(now, &self.config.settings.limits, self.config.keepalive);
        }
        let result = heard.and_then(|heard| self.hear_all(now, heard, out));
        self.settle(now, result, out);
    }

    /// Sends what a step produced, and ends the session if it failed.
    fn settle(&mut self, now: Instant, result: Result<(), Fault>, out: &mut Out) {
        let unix = self.clock.at(now);
        let link = self.link();
        let flushed = match &mut self.state {
            State::Connecting(attempt) => attempt.conversation.flush(now, unix, out),
            State::Up(tunnel) => tunnel.conversation.flush(now, unix, out),
            State::Leaving(leaving) => leaving.tunnel.conversation.flush(now, unix, out),
            State::New | State::Waiting { .. } | State::Dialing | State::Stopped => Ok(()),
        };
        match result.and(flushed) {
            Ok(()) => {}
            Err(fault) if link.is_none_or(|link| fault.is_harmless_on(link)) => {
                self.dropped = self.dropped.saturating_add(1)
            }
            // A session that is up goes on without the new key until its end.
            Err(fault)
                if self.config.settings.limits.exit_on_tls_failure
                    && matches!(self.state, State::Connecting(_)) =>
            {
                self.stop(Stop::HandshakeFailed(fault.to_string()), out);
            }
            Err(fault) => match self.state {
                State::Up(_) => self.lost(now, fault.to_string(), out),
                State::Connecting(_) => self.failed(now, fault.to_string(), out),
                _ => {}
            },
        }
    }

    fn hear_all(&mut self, now: Instant, heard: Vec<Heard>, out: &mut Out) -> Result<(), Fault> {
        heard.into_iter().try_for_each(|item| self.hear(now, item, out))
    }

    fn hear(&mut self, now: Instant, heard: Heard, out: &mut Out) -> Result<(), Fault> {
        match heard {
            Heard::Reset(payload) => {
                if let State::Connecting(attempt) = &mut self.state {
                    attempt.answer_by = None;
                    let resend = payload.starts_with(&RESEND_WRAPPED_KEY);
                    attempt.conversation.newest().resend_wrapped_key = resend;
                    let (link, session) =
                        (attempt.conversation.link, attempt.conversation.remote());
                    out.event(ClientEvent::ServerAnswered(link, session.unwrap_or_default()));
                }
                Ok(())
            }
            Heard::TlsReady if self.ends_here() => {
                if let State::Connecting(attempt) = &mut self.state {
                    attempt.checked_at = Some(now + ALERT_PATIENCE);
                }
                Ok(())
            }
            Heard::TlsReady => self.send_keys(),
            Heard::Failed(fault) => {
                self.budget
                    .report_event(now, out, ClientEvent::Warning, || failed_negotiation(&fault));
                Ok(())
            }
            Heard::Keys => self.keys_exchanged(now, out),
            Heard::Message(record) => {
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

    /// A check whose server does not take part in it.
    fn ends_here(&self) -> bool {
        match &self.state {
            State::Connecting(attempt) => {
                self.config.check && !attempt.conversation.exchange().tls().is_check()
            }
            _ => false,
        }
    }

    /// No alert came: the server accepted the certificate.
    fn checked(&mut self, out: &mut Out) {
        if let State::Connecting(attempt) = &self.state {
            let tls = attempt.conversation.exchange().tls();
            let server = tls.peer().cloned().unwrap_or_default();
            out.event(ClientEvent::Authenticated { server, tls: tls.description() });
        }
        self.stop(Stop::Checked, out);
    }

    fn send_keys(&mut self) -> Result<(), Fault> {
        let settings = &self.config.settings;
        let (conversation, cipher) = match &mut self.state {
            State::Connecting(attempt) => (&mut attempt.conversation, None),
            State::Up(tunnel) => (&mut tunnel.conversation, Some(tunnel.schedule.cipher())),
            _ => return Ok(()),
        };
        let options = options_string(settings, Role::Client, conversation.link, cipher).to_string();
        let peer_info = LocalInfo {
            ciphers: &settings.ciphers,
            pull: true,
            max_mtu: settings.tun_mtu_max.max(settings.tun_mtu),
            dynamic_tls_crypt: settings.dynamic_tls_crypt,
            version: env!("CARGO_PKG_VERSION"),
            full: settings.push_peer_info,
            extra: &settings.peer_info,
        };
        let (username, password) = match &self.config.credentials {
            Some(c) => (c.username.clone(), c.password.clone()),
            None => Default::default(),
        };
        let randoms = Randoms { random1: self.random.bytes(), random2: self.random.bytes() };
        conversation.send_keys(KeyMethod2 {
            pre_master: Some(Zeroizing::new(self.random.bytes())),
            randoms,
            options,
            username,
            password,
            peer_info: peer_info.encode(),
        })
    }

    fn keys_exchanged(&mut self, now: Instant, out: &mut Out) -> Result<(), Fault> {
        match &mut self.state {
            State::Connecting(attempt) => {
                let tls = attempt.conversation.exchange().tls();
                let server = tls.peer().cloned().unwrap_or_default();
                out.event(ClientEvent::Authenticated { server, tls: tls.description() });
                attempt.pull = Some(Pull {
                    assembler: PushAssembler::default(),
                    next_request: now,
                    give_up: now + self.config.settings.hand_window,
                });
                self.request_options(now)
            }
            State::Up(tunnel) => {
                let tls = tunnel.conversation.exchange().tls();
                let server = tls.peer().cloned().unwrap_or_default();
                if tls.peer().is_some() && server.subject != tunnel.server {
                    let fault = Fault::Protocol("another certificate in a renegotiation");
                    let fault = tunnel.conversation.reject(now, fault)?;
                    return self.hear(now, Heard::Failed(fault), out);
                }
                out.event(ClientEvent::Reverified { server, tls: tls.description() });
                let keys = tunnel.conversation.data_keys(tunnel.exporter)?;
                let key_id = tunnel.conversation.exchange().key_id;
                tunnel.schedule.install_next(now, key_id, &mut self.random, keys, out);
                if tunnel.conversation.is_recovering() {
                    tunnel.schedule.first_use(now, key_id, out);
                }
                out.event(ClientEvent::Rekeyed { key_id, cipher: tunnel.schedule.cipher() });
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn notice(&mut self, now: Instant, notice: Notice, out: &mut Out) {
        if let Notice::Unreachable(link, errno) = notice {
            return self.unreachable(link, errno, out);
        }
        let State::Up(tunnel) = &mut self.state else { return };
        let ours = tunnel.peer;
        match notice {
            Notice::PeerSilent(peer) if peer == ours && tunnel.exit_when_silent => {
                self.end(now, Stop::Silent, out);
            }
            Notice::Traffic(peer, traffic)
                if peer == ours
                    && tunnel.idle.as_mut().is_some_and(|idle| idle.hear(now, traffic)) =>
            {
                self.end(now, Stop::Inactive, out);
            }
            Notice::PeerSilent(peer) if peer == ours => {
                self.lost(now, "Inactivity timeout (--ping-restart), restarting".into(), out);
            }
            Notice::InBand(peer, ref message) if peer == ours && is_exit_notice(message) => {
                self.lost(now, "remote-exit".into(), out);
            }
            Notice::KeyFirstUse(peer, key_id) if peer == ours => {
                tunnel.schedule.first_use(now, key_id, out);
            }
            Notice::KeyNearLimit(peer, key_id) if peer == ours => {
                tunnel.schedule.near_limit(now, key_id);
                self.tick(now, out);
            }
            Notice::Floated(peer, link) if peer == ours && !link.is_stream() => {
                tunnel.conversation.link = link;
                tunnel.sizes.moved(now, link);
            }
            Notice::Misframed(peer, wrong) if peer == ours => {
                out.event(ClientEvent::Warning(format!("the server: {}", misframed(wrong))));
            }
            Notice::InBand(peer, _) | Notice::Probed(peer, _) if peer == ours => {
                let settings = tunnel.update.settings();
                let report = tunnel.sizes.notice(now, &notice, settings, out);
                // The server's answers are what finds the path.
                let report = report.filter(|_| self.budget.report(now, String::new).is_some());
                report.into_iter().for_each(|report| out.event(ClientEvent::Path(report)));
            }
            _ => {}
        }
    }

    fn unreachable(&self, link: Link, errno: i32, out: &mut Out) {
        let ours = match &self.state {
            State::Connecting(attempt) => attempt.conversation.link,
            State::Up(tunnel) => tunnel.conversation.link,
            _ => return,
        };
        if same_path(ours, link) {
            out.event(ClientEvent::Unreachable(link, errno));
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Out) {
        match &mut self.state {
            State::New => self.dial(out),
            State::Waiting { until } if *until <= now => self.dial(out),
            State::Connecting(attempt) => {
                if attempt.checked_at.is_some_and(|at| at <= now) {
                    return self.checked(out);
                }
                if attempt.answer_by.is_some_and(|by| by <= now) {
                    let reason = "the server did not answer (server-poll-timeout)";
                    return self.failed(now, reason.into(), out);
                }
                if attempt.ends.is_some_and(|at| at <= now) {
                    return self.stop(Stop::SessionTimeout, out);
                }
                if attempt.silent_at.is_some_and(|at| at <= now) {
                    return self.stop(Stop::Silent, out);
                }
                if attempt.conversation.expired(now) {
                    return self.settle(now, Err(Fault::TimedOut), out);
                }
                if attempt.pull.as_ref().is_some_and(|pull| pull.give_up <= now) {
                    let reason = "no reply from server to push requests";
                    return self.failed(now, reason.into(), out);
                }
                let result = self.request_options(now);
                self.settle(now, result, out);
            }
            State::Up(tunnel) => {
                if tunnel.ends.is_some_and(|at| at <= now) {
                    return self.end(now, Stop::SessionTimeout, out);
                }
                if let Some(idle) = &mut tunnel.idle {
                    idle.tick(now, out);
                }
                if tunnel.conversation.expired(now) {
                    return self.settle(now, Err(Fault::TimedOut), out);
                }
                let report = tunnel.sizes.tick(now, tunnel.update.settings(), out);
                report.into_iter().for_each(|report| out.event(ClientEvent::Path(report)));
                let (tls, settings) = (&self.config.tls, &self.config.settings);
                let next_tls = || Ok(TlsSession::client(tls)?);
                let heard = match tunnel.schedule.wants_key(now, &tunnel.conversation, out) {
                    true => next_tls()
                        .and_then(|tls| tunnel.conversation.renegotiate(now, tls, settings))
                        .map(|()| Vec::new()),
                    false => tunnel.conversation.resume_postponed(now, next_tls, settings),
                };
                let result = heard.and_then(|heard| self.hear_all(now, heard, out));
                self.settle(now, result, out);
            }
            State::Leaving(_) => self.tick_leaving(now, out),
            State::Waiting { .. } | State::Dialing | State::Stopped => {}
        }
    }
}

/// The stream ended, by whomever.
const CUT_OFF: &str = "connection reset";

/// Whether a packet from one link may be answered to a conversation on the other. A stream is the
/// same only if it is the very same connection.
fn same_path(ours: Link, link: Link) -> bool {
    match ours.is_stream() || link.is_stream() {
        true => ours == link,
        false => (ours.socket(), ours.remote()) == (link.socket(), link.remote()),
    }
}

/// An external authentication may take this long at most.
const MAX_AUTH_PENDING: Duration = Duration::from_secs(600);

impl ClientEngine {
    /// A function of its own, so that what it leaves on the stack lies below its caller.
    #[inline(never)]
    fn work(&mut self, now: Instant, input: Input<'_>, out: &mut Out) {
        match input {
            Input::Tick => self.tick(now, out),
            Input::Frame(link, packet) => self.frame(now, link, packet, out),
            Input::LinkUp(link) if matches!(self.state, State::Dialing) => {
                self.connect(now, link, out);
            }
            Input::LinkUp(link) => out.push(Output::Hangup(link)),
            Input::DialFailed(reason) if matches!(self.state, State::Dialing) => {
                self.failed(now, reason, out);
            }
            // That of an attempt which is over says nothing about this one.
            Input::LinkDown(link) => match &self.state {
                State::Up(tunnel) if tunnel.conversation.link == link => {
                    self.cut_off(now, out);
                }
                State::Connecting(attempt) if attempt.conversation.link == link => {
                    self.failed(now, CUT_OFF.into(), out);
                }
                State::Leaving(leaving) if leaving.tunnel.conversation.link == link => {
                    self.gone(out);
                }
                _ => {}
            },
            Input::Notice(notice) => self.notice(now, notice, out),
            Input::DialFailed(_) | Input::Answer(..) => {}
        }
        // The end of the exit notice's wait may be its acknowledgement.
        if let State::Leaving(leaving) = &self.state
            && leaving.tunnel.exit_by_control
            && leaving.tunnel.conversation.all_acknowledged()
        {
            self.gone(out);
        }
    }
}

impl Engine for ClientEngine {
    type Event = ClientEvent;

    fn handle(&mut self, now: Instant, input: Input<'_>, out: &mut Out) {
        let frame = matches!(input, Input::Frame(..));
        self.work(now, input, out);
        if frame {
            // Copies of keys may lie there.
            adit_crypto::scrub_stack();
        }
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        match &self.state {
            State::New => Some((Instant::default(), "start")),
            State::Waiting { until } => Some((*until, "connect-retry")),
            State::Dialing | State::Stopped => None,
            State::Connecting(attempt) => {
                let answer = attempt.answer_by.map(|at| (at, "server-poll-timeout"));
                let pull = attempt.pull.as_ref();
                let request =
                    pull.map(|pull| (pull.next_request.min(pull.give_up), "push request"));
                let silent = attempt.silent_at.map(|at| (at, "ping-exit"));
                let ends = attempt.ends.map(|at| (at, "session-timeout"));
                let conversation = attempt.conversation.deadline();
                let checked = attempt.checked_at.map(|at| (at, "check"));
                [answer, request, silent, ends, conversation, checked].into_iter().flatten().min()
            }
            State::Up(tunnel) => {
                let ends = tunnel.ends.map(|at| (at, "session-timeout"));
                let schedule = tunnel.schedule.deadline();
                let sizes = tunnel.sizes.deadline();
                let idle = tunnel.idle.as_ref().map(Idle::deadline);
                let conversation = tunnel.conversation.deadline();
                [ends, schedule, sizes, idle, conversation].into_iter().flatten().min()
            }
            State::Leaving(leaving) => {
                let next = Some((leaving.next, "exit notice"));
                [next, leaving.tunnel.conversation.deadline()].into_iter().flatten().min()
            }
        }
    }
}

fn take_down(tunnel: &Tunnel, out: &mut Out) -> Link {
    out.plane(Op::DelPeer(tunnel.peer));
    tunnel.conversation.link
}
