mod control;
mod exit;
mod pull;
mod questions;
mod restart;
mod update;

use std::time::Duration;

use adit_engine::auth::Challenge;
use adit_engine::{Engine, Instant, Link, Random, Seed, UnixTime};

use super::config::{ClientConfig, Credentials};
use super::event::ClientEvent;
use super::remotes::Remotes;
use crate::data_format::{Input, Notice, OpenVpn, Outbox, Output};
use crate::negotiate::{ControlMessage, PushAssembler, ReplyItem};
use crate::p2p::RemotePolicy;
use crate::reason::Reason;
use crate::session::{
    Budget, ControlChannel, DataChannel, ExitNotices, NoticeOutcome, WallClock, framing_action,
    is_exit_notice,
};
use crate::tls::{ClientTls, TlsSession};
use questions::Question;

type Out = Outbox<ClientEvent>;

/// How often PUSH_REQUEST is repeated, as OpenVPN's servers expect.
const PUSH_REQUEST_EVERY: Duration = Duration::from_secs(5);

/// The time to wait for a late alert. In TLS 1.3 a server reads the client's certificate only after
/// the client has finished its handshake.
const ALERT_PATIENCE: Duration = Duration::from_secs(2);

/// An OpenVPN client.
pub struct ClientEngine {
    config: ClientConfig,
    random: Random,
    clock: WallClock,
    remotes: Remotes,
    state: State,
    /// The user name and the token that replace the credentials.
    token: Option<Credentials>,
    /// The user name that was sent last.
    username: String,
    /// The challenge of the server that the next attempt answers.
    challenge: Option<Challenge>,
    /// The server's text of the last refusal, if the credentials must be asked for again.
    rejected: Option<String>,
    /// The question that waits for its response.
    question: Option<Question>,
    next_request: u64,
    /// The amount of work that the server may still cause.
    budget: Budget,
    /// The number of packets dropped because they were not authentic or did not belong to the
    /// session.
    dropped: u64,
}

enum State {
    /// The state before the first input.
    New,
    /// The state between two attempts.
    Waiting {
        until: Instant,
    },
    /// The state before an attempt, until the user name and password are known.
    Asking,
    Dialing,
    Connecting(Box<Attempt>),
    Up(Box<Tunnel>),
    Exiting(Box<ExitingSession>),
    Stopped,
}

impl State {
    /// Returns the control channel of the attempt or session.
    fn control_channel(&mut self) -> Option<&mut ControlChannel> {
        match self {
            Self::Connecting(attempt) => Some(&mut attempt.control_channel),
            Self::Up(tunnel) => Some(&mut tunnel.control_channel),
            Self::Exiting(leaving) => Some(&mut leaving.tunnel.control_channel),
            Self::New | Self::Waiting { .. } | Self::Asking | Self::Dialing | Self::Stopped => None,
        }
    }
}

/// An attempt, from the first reset to the pushed options.
struct Attempt {
    control_channel: ControlChannel,
    /// The time by which the server must answer; `None` once it has answered.
    answer_by: Option<Instant>,
    /// `ping-exit`: when the program ends unless a packet arrives.
    silent_at: Option<Instant>,
    /// `session-timeout`.
    ends: Option<Instant>,
    pull: Option<PullRequest>,
    /// The time until which a check with a server that does not support checks waits for an alert.
    checked_at: Option<Instant>,
}

/// The request for options.
struct PullRequest {
    assembler: PushAssembler<ReplyItem>,
    next_request: Instant,
    give_up: Instant,
}

/// A session with its data channel.
struct Tunnel {
    control_channel: ControlChannel,
    data: DataChannel,
    exit_by_control: bool,
    exit_attempts: Option<u8>,
    /// `ping-exit`: whether a silent server ends the client rather than only the session.
    exit_when_silent: bool,
    server: String,
    update: update::OptionUpdates,
}

/// The end of a session, with its exit notices.
struct ExitingSession {
    /// Stays in its box, because moving it would leave copies of its keys on the stack.
    tunnel: Box<Tunnel>,
    notices: ExitNotices,
}

impl ClientEngine {
    /// Creates a client that begins to dial at its first input.
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
        let remotes = Remotes::new(&RemotePolicy {
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
            token: None,
            username: String::new(),
            challenge: None,
            rejected: None,
            question: None,
            next_request: 0,
            budget: Budget::default(),
            dropped: 0,
        }
    }

    /// Sets the wall clock.
    pub fn set_unix_time(&mut self, now: Instant, unix_time: UnixTime) {
        self.clock = WallClock::new(now, unix_time);
    }

    /// Replaces our certificate or the authorities, starting with the next negotiation.
    pub fn set_tls(&mut self, tls: ClientTls) {
        self.config.tls = tls;
    }

    /// Returns the number of packets dropped because they were not authentic or did not belong to
    /// the session.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Sends a message to the server on the control channel, such as the response to a challenge. Returns false before
    /// the key exchange is complete.
    pub fn say(&mut self, now: Instant, message: &ControlMessage, out: &mut Out) -> bool {
        let control_channel = match &mut self.state {
            State::Up(tunnel) => &mut tunnel.control_channel,
            State::Connecting(attempt) if attempt.pull.is_some() => &mut attempt.control_channel,
            _ => return false,
        };
        let result = control_channel.send_message(message.encode()).map(|_| ());
        self.settle(now, result, out);
        true
    }

    fn notice(&mut self, now: Instant, notice: Notice, out: &mut Out) {
        if let Notice::Unreachable(link, errno) = notice {
            return self.unreachable(link, errno, out);
        }
        let State::Up(tunnel) = &mut self.state else { return };
        if notice.peer() != Some(tunnel.data.peer) {
            return;
        }
        match notice {
            Notice::PeerSilent(_) if tunnel.exit_when_silent => {
                self.end(now, Reason::PingExit, out);
            }
            Notice::PeerSilent(_) => {
                self.lost(now, Reason::PingRestart, out);
            }
            Notice::InBand(_, ref message) if is_exit_notice(message) => {
                self.lost(now, Reason::RemoteExit, out);
            }
            Notice::Floated(_, link) if !link.is_stream() => {
                tunnel.control_channel.link = link;
                tunnel.data.moved(now, link);
            }
            Notice::Violation(_, wrong) => {
                out.event(ClientEvent::Warning(format!("the server: {}", framing_action(wrong))));
            }
            _ => match tunnel.data.notice(now, &notice, tunnel.update.settings(), out) {
                NoticeOutcome::Nothing => {}
                NoticeOutcome::KeyNearLimit => self.tick(now, out),
                NoticeOutcome::Inactive => self.end(now, Reason::Inactive, out),
                // The server's answers to MTU probes cause these notices.
                NoticeOutcome::Path(report) => {
                    if self.budget.report(now, String::new).is_some() {
                        out.event(ClientEvent::Path(report));
                    }
                }
            },
        }
    }

    fn unreachable(&self, link: Link, errno: i32, out: &mut Out) {
        let ours = match &self.state {
            State::Connecting(attempt) => attempt.control_channel.link,
            State::Up(tunnel) => tunnel.control_channel.link,
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
                    return self.failed(now, Reason::NoAnswer, out);
                }
                if attempt.ends.is_some_and(|at| at <= now) {
                    return self.stop(Reason::SessionTimeout, out);
                }
                if attempt.silent_at.is_some_and(|at| at <= now) {
                    return self.stop(Reason::PingExit, out);
                }
                if attempt.control_channel.expired(now) {
                    return self.settle(now, Err(Reason::HandshakeTimeout), out);
                }
                if attempt.pull.as_ref().is_some_and(|pull| pull.give_up <= now) {
                    return self.failed(now, Reason::NoPushReply, out);
                }
                let result = self.request_options(now);
                self.settle(now, result, out);
            }
            State::Up(tunnel) => {
                if tunnel.data.is_over(now) {
                    return self.end(now, Reason::SessionTimeout, out);
                }
                if tunnel.control_channel.expired(now) {
                    return self.settle(now, Err(Reason::HandshakeTimeout), out);
                }
                let control_channel = &mut tunnel.control_channel;
                let (report, wanted) =
                    tunnel.data.tick(now, control_channel, tunnel.update.settings(), out);
                report.into_iter().for_each(|report| out.event(ClientEvent::Path(report)));
                let (tls, settings) = (&self.config.tls, &self.config.settings);
                let next_tls = || Ok(TlsSession::client(tls)?);
                let events = control_channel.next_negotiation(now, wanted, next_tls, settings);
                let result = events.and_then(|events| self.handle_events(now, events, out));
                self.settle(now, result, out);
            }
            State::Exiting(_) => self.tick_exit(now, out),
            State::Waiting { .. } | State::Asking | State::Dialing | State::Stopped => {}
        }
    }
}

/// Returns whether a packet from one link may be answered to a control channel on the other. For a
/// stream, both must be the same connection.
fn same_path(ours: Link, link: Link) -> bool {
    if ours.is_stream() || link.is_stream() {
        ours == link
    } else {
        (ours.socket(), ours.remote()) == (link.socket(), link.remote())
    }
}

/// The maximum duration of an external authentication.
const MAX_AUTH_PENDING: Duration = Duration::from_secs(600);

impl ClientEngine {
    /// Handles the input in a separate function, so that the caller can scrub this stack frame
    /// afterwards.
    #[inline(never)]
    fn work(&mut self, now: Instant, input: Input<'_>, out: &mut Out) {
        match input {
            Input::Tick => self.tick(now, out),
            Input::ControlPacket(link, packet) => self.frame(now, link, packet, out),
            Input::LinkUp(link) if matches!(self.state, State::Dialing) => {
                self.connect(now, link, out);
            }
            Input::LinkUp(link) => out.push(Output::Hangup(link)),
            Input::DialFailed(reason) if matches!(self.state, State::Dialing) => {
                self.failed(now, Reason::DialFailed(reason), out);
            }
            // Ignore the end of a link that belonged to an earlier attempt.
            Input::LinkDown(link) => match &self.state {
                State::Up(tunnel) if tunnel.control_channel.link == link => {
                    self.cut_off(now, out);
                }
                State::Connecting(attempt) if attempt.control_channel.link == link => {
                    self.failed(now, Reason::ConnectionReset, out);
                }
                State::Exiting(leaving) if leaving.tunnel.control_channel.link == link => {
                    self.gone(out);
                }
                _ => {}
            },
            Input::Notice(notice) => self.notice(now, notice, out),
            Input::AuthResponse(request, response) => self.answered(now, request, response, out),
            Input::DialFailed(_) => {}
        }
        // Stop waiting once the exit notice is acknowledged.
        if let State::Exiting(leaving) = &self.state
            && leaving.tunnel.exit_by_control
            && leaving.tunnel.control_channel.all_acknowledged()
        {
            self.gone(out);
        }
    }
}

impl Engine for ClientEngine {
    type Event = ClientEvent;
    type Format = OpenVpn;

    fn handle(&mut self, now: Instant, input: Input<'_>, out: &mut Out) {
        let frame = matches!(input, Input::ControlPacket(..) | Input::AuthResponse(..));
        self.work(now, input, out);
        if frame {
            // The stack may hold copies of keys.
            adit_crypto::scrub_stack();
        }
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        match &self.state {
            State::New => Some((Instant::default(), "start")),
            State::Waiting { until } => Some((*until, "connect-retry")),
            State::Asking | State::Dialing | State::Stopped => None,
            State::Connecting(attempt) => {
                let answer = attempt.answer_by.map(|at| (at, "server-poll-timeout"));
                let pull = attempt.pull.as_ref();
                let request =
                    pull.map(|pull| (pull.next_request.min(pull.give_up), "push request"));
                let silent = attempt.silent_at.map(|at| (at, "ping-exit"));
                let ends = attempt.ends.map(|at| (at, "session-timeout"));
                let control_channel = attempt.control_channel.deadline();
                let checked = attempt.checked_at.map(|at| (at, "check"));
                [answer, request, silent, ends, control_channel, checked]
                    .into_iter()
                    .flatten()
                    .min()
            }
            State::Up(tunnel) => {
                let (control_channel, data) =
                    (tunnel.control_channel.deadline(), tunnel.data.deadline());
                control_channel.into_iter().chain(data).min()
            }
            State::Exiting(leaving) => {
                let next = Some(leaving.notices.deadline());
                [next, leaving.tunnel.control_channel.deadline()].into_iter().flatten().min()
            }
        }
    }
}
