//! TLS in point-to-point mode, with one peer, keys from TLS and no pushed options.
//!
//! Handshakes run in parallel with the session, because the peer may have restarted while this end
//! still considers the session alive. Only a handshake that authenticates replaces the session, so
//! an unauthenticated sender cannot end it.

mod admission;
mod handshake;
mod restart;
mod streams;

use std::collections::VecDeque;
use std::time::Duration;

use adit_engine::{Engine, Instant, Link, PeerId, Random, Seed, UnixTime};

use super::config::{PeerConfig, PeerTls};
use super::pending_streams::PendingStreams;
use crate::client::{ClientEvent, Remotes};
use crate::data_format::{Input, Notice, OpenVpn, Outbox, Output};
use crate::keys::Role;
use crate::negotiate::ControlMessage;
use crate::packet::{Opcode, SessionId, split_front};
use crate::reason::Reason;
use crate::server::Responder;
use crate::session::{
    Budget, ControlChannel, DataChannel, Event, ExitNotices, NoticeOutcome, WallClock,
    framing_action, is_exit_notice,
};
use crate::tls::{PeerIdentity, TlsSession};
use crate::wrap::{WrapError, Wrapper};

type Out = Outbox<ClientEvent>;

/// The maximum number of concurrent handshakes. One is the peer's; the others leave room for
/// unauthenticated senders that claim to be the peer.
const MAX_ATTEMPTS: usize = 64;
/// The maximum number of handshakes from one address or /64.
const MAX_OF_ONE: usize = 2;
/// The minimum interval between handshakes that a server's unsolicited resets start.
const INVITED_EVERY: Duration = Duration::from_secs(5);
/// The maximum number of ids of servers' resets that are recorded.
const MAX_RESETS: usize = 64;

/// One end of a point-to-point tunnel with TLS.
pub struct PeerEngine {
    config: PeerConfig,
    random: Random,
    clock: WallClock,
    remotes: Remotes,
    /// The stateless responder of a `tls-server`.
    responder: Option<Responder>,
    state: State,
    attempts: Vec<Attempt>,
    /// The connections without a session, if this end listens for them.
    pending: PendingStreams,
    session: Option<Session>,
    /// `session-timeout`, counted from the start and from each restart, as in OpenVPN.
    ends: Option<Instant>,
    /// `ping-exit` while the other end is being dialled and there is no session with pings.
    silent_at: Option<Instant>,
    /// The data plane's peer id for the next session. Consecutive sessions have different ids.
    next_peer: PeerId,
    /// The time when an unsolicited reset last started a handshake.
    invited: Option<Instant>,
    /// The ids in servers' resets, the newest last. A captured reset that is replayed has no
    /// effect.
    resets: VecDeque<SessionId>,
    /// The number of packets dropped because they were not authentic or did not belong to the
    /// session.
    dropped: u64,
    /// The amount of work that the peer may still cause.
    budget: Budget,
}

enum State {
    /// The state before the first input.
    New,
    /// The state between two attempts.
    Waiting {
        until: Instant,
    },
    Dialing,
    /// Open to a peer whose address is configured; `None` if any sender is accepted.
    Open(Option<Link>),
    /// The end of a session, with its exit notices.
    Exiting(ExitNotices),
    Stopped,
}

/// A handshake.
struct Attempt {
    control_channel: ControlChannel,
    /// Whether this end began the handshake. If so, the address that we dialled fails with it.
    own: bool,
    since: Instant,
}

impl Attempt {
    /// Returns whether the other end has answered, which proves its address over datagrams.
    fn is_proven(&self) -> bool {
        self.control_channel.remote().is_some()
    }
}

/// A session with its data channel.
struct Session {
    control_channel: ControlChannel,
    data: DataChannel,
    exit_by_control: bool,
    identity: PeerIdentity,
}

impl Session {
    /// Returns whether the peer has acknowledged EXIT on the control channel.
    fn exit_is_acknowledged(&self) -> bool {
        self.exit_by_control && self.control_channel.all_acknowledged()
    }
}

impl PeerEngine {
    /// Creates an engine that begins at its first input.
    ///
    /// # Errors
    /// Fails if the wrapping belongs to the other role.
    pub fn new(
        config: PeerConfig,
        seed: impl Into<Seed>,
        now: Instant,
        unix_time: UnixTime,
    ) -> Result<Self, WrapError> {
        let mut random = Random::new(seed);
        let responder = match config.tls.role() {
            Role::Server => {
                Some(Responder::new(&config.settings, config.force_cookie, &mut random)?)
            }
            Role::Client => Wrapper::client(&config.settings.wrap).map(|_| None)?,
        };
        Ok(Self {
            remotes: match config.tls.role() {
                Role::Server => Remotes::new(&config.remote_policy).steady(),
                Role::Client => Remotes::new(&config.remote_policy),
            },
            responder,
            random,
            clock: WallClock::new(now, unix_time),
            pending: PendingStreams::new(config.settings.hand_window),
            config,
            state: State::New,
            attempts: Vec::new(),
            session: None,
            ends: None,
            silent_at: None,
            next_peer: PeerId(0),
            invited: None,
            resets: VecDeque::new(),
            dropped: 0,
            budget: Budget::default(),
        })
    }

    /// Sets the wall clock.
    pub fn set_unix_time(&mut self, now: Instant, unix_time: UnixTime) {
        self.clock = WallClock::new(now, unix_time);
    }

    /// Replaces our certificate or the authorities of the same role, starting with the next
    /// negotiation.
    pub fn set_tls(&mut self, tls: PeerTls) {
        if tls.role() == self.role() {
            self.config.tls = tls;
        }
    }

    /// Returns the number of packets dropped because they were not authentic or belonged to no
    /// handshake or session.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Returns the number of handshakes in progress.
    pub fn handshakes(&self) -> usize {
        self.attempts.len()
    }

    fn role(&self) -> Role {
        self.config.tls.role()
    }

    /// Returns whether to process packets from this link.
    fn may_come_from(&self, link: Link) -> bool {
        match &self.state {
            State::Open(None) => !self.listens() || self.knows(link),
            State::Open(Some(ours)) => {
                self.config.settings.float
                    || (ours.socket(), ours.remote()) == (link.socket(), link.remote())
            }
            State::Exiting(_) => self
                .session
                .as_ref()
                .is_some_and(|session| session.control_channel.link.remote() == link.remote()),
            _ => false,
        }
    }

    fn frame(&mut self, now: Instant, link: Link, packet: &mut [u8], out: &mut Out) {
        let dropped = self.dropped;
        self.take(now, link, packet, out);
        if self.dropped == dropped && self.silent_at.is_some() {
            self.restart_ping_exit(now);
        }
        // A stream neither loses nor alters packets, so a packet that does not belong there ends
        // the connection.
        if self.dropped != dropped && self.pending.contains(link) {
            self.turn_away(link, out);
        }
    }

    fn take(&mut self, now: Instant, link: Link, packet: &mut [u8], out: &mut Out) {
        let front = split_front(packet).map(|(header, session, _)| (header.opcode, session));
        let (Ok((opcode, session)), true) = (front, self.may_come_from(link)) else {
            self.dropped = self.dropped.saturating_add(1);
            return;
        };
        if self.session.as_ref().is_some_and(|s| s.control_channel.remote() == Some(session)) {
            return self.session_frame(now, packet, out);
        }
        let known = |attempt: &Attempt| {
            attempt.control_channel.remote() == Some(session)
                && attempt.control_channel.link.remote() == link.remote()
        };
        if let Some(at) = self.attempts.iter().position(known) {
            return self.attempt_frame(now, at, packet, out);
        }
        if matches!(self.state, State::Exiting(_)) {
            self.dropped = self.dropped.saturating_add(1);
            return;
        }
        match (self.role(), opcode) {
            (Role::Client, Opcode::HardResetServerV2) => {
                self.answered(now, link, session, packet, out);
            }
            (Role::Server, Opcode::HardResetClientV2 | Opcode::HardResetClientV3) => {
                self.reset(now, link, opcode, packet, out);
            }
            (Role::Server, Opcode::ControlV1 | Opcode::AckV1 | Opcode::ControlWkcV1) => {
                self.third_packet(now, link, session, packet, out);
            }
            _ => self.dropped = self.dropped.saturating_add(1),
        }
    }

    fn session_frame(&mut self, now: Instant, packet: &mut [u8], out: &mut Out) {
        let Some(session) = &mut self.session else { return };
        let tls = &self.config.tls;
        let events =
            session.control_channel.frame(now, packet, || new_tls(tls), &self.config.settings);
        let result = events.and_then(|events| self.handle_events(now, events, out));
        self.settle(now, result, out);
    }

    fn handle_events(
        &mut self,
        now: Instant,
        events: Vec<Event>,
        out: &mut Out,
    ) -> Result<(), Reason> {
        events.into_iter().try_for_each(|item| self.handle_event(now, item, out))
    }

    /// Handles an event of the session's control channel.
    fn handle_event(&mut self, now: Instant, event: Event, out: &mut Out) -> Result<(), Reason> {
        let role = self.role();
        match event {
            Event::Reset(_) => Ok(()),
            Event::TlsReady if role == Role::Client => self.send_keys_in_session(),
            Event::TlsReady => Ok(()),
            Event::Failed(reason) => {
                self.budget.report_event(now, out, ClientEvent::Warning, || reason.in_session());
                Ok(())
            }
            Event::Keys => {
                if let Some(reason) = self.check_identity(now)? {
                    return self.handle_event(now, Event::Failed(reason), out);
                }
                if role == Role::Server {
                    self.send_keys_in_session()?;
                }
                self.rekeyed(now, out)
            }
            Event::Message(record) => {
                ControlMessage::parse_record(&record).try_for_each(|message| match message {
                    Ok(ControlMessage::Exit) => Err(Reason::RemoteExit),
                    Ok(other) => {
                        let text = || format!("ignored control message '{other}'");
                        self.budget.report_event(now, out, ClientEvent::Note, text);
                        Ok(())
                    }
                    Err(error) => {
                        self.budget
                            .report_event(now, out, ClientEvent::Warning, || error.to_string());
                        Ok(())
                    }
                })
            }
        }
    }

    /// Sends the output of a step of the session, and ends the session if the step failed.
    fn settle(&mut self, now: Instant, result: Result<(), Reason>, out: &mut Out) {
        let unix = self.clock.at(now);
        let Some(session) = &mut self.session else { return };
        match session.control_channel.settle(now, unix, result, out) {
            Ok(false) => {}
            Ok(true) => self.dropped = self.dropped.saturating_add(1),
            Err(reason) => self.lost(now, reason, out),
        }
    }

    fn notice(&mut self, now: Instant, notice: Notice, out: &mut Out) {
        if let Notice::Unreachable(link, errno) = notice {
            if matches!(&self.state, State::Open(Some(ours)) if ours.remote() == link.remote()) {
                out.event(ClientEvent::Unreachable(link, errno));
            }
            return;
        }
        let Some(session) = &mut self.session else { return };
        if notice.peer() != Some(session.data.peer) {
            return;
        }
        match notice {
            Notice::PeerSilent(_) if self.config.settings.limits.exit_when_silent => {
                self.end(now, Reason::PingExit, out);
            }
            Notice::PeerSilent(_) => {
                self.lost(now, Reason::PingRestart, out);
            }
            Notice::InBand(_, ref message) if is_exit_notice(message) => {
                self.lost(now, Reason::RemoteExit, out);
            }
            Notice::Floated(_, link) => {
                session.control_channel.link = link;
                session.data.moved(now, link);
                let text = || format!("the peer moved to {}", link.remote());
                self.budget.report_event(now, out, ClientEvent::Note, text);
            }
            Notice::Violation(_, wrong) => {
                out.event(ClientEvent::Warning(format!("the peer: {}", framing_action(wrong))));
            }
            _ => match session.data.notice(now, &notice, &self.config.settings, out) {
                NoticeOutcome::Nothing => {}
                NoticeOutcome::KeyNearLimit => self.tick(now, out),
                NoticeOutcome::Inactive => self.end(now, Reason::Inactive, out),
                // The peer's answers to MTU probes cause these notices.
                NoticeOutcome::Path(report) => {
                    if self.budget.report(now, String::new).is_some() {
                        out.event(ClientEvent::Path(report));
                    }
                }
            },
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Out) {
        match &mut self.state {
            State::New => return self.start(now, out),
            State::Waiting { until } if *until <= now => return self.start(now, out),
            State::Exiting(notices) => {
                let over = self.session.as_ref().is_none_or(|session| {
                    session.exit_is_acknowledged() || notices.tick(now, session.data.peer, out)
                });
                if over {
                    return self.gone(out);
                }
            }
            State::Dialing | State::Open(_) => {
                if self.ends.is_some_and(|at| at <= now) {
                    return self.end(now, Reason::SessionTimeout, out);
                }
                if self.session.is_none() && self.silent_at.is_some_and(|at| at <= now) {
                    return self.end(now, Reason::PingExit, out);
                }
            }
            _ => {}
        }
        self.tick_attempts(now, out);
        self.tick_session(now, out);
        self.tick_streams(now, out);
    }

    fn limits_deadline(&self) -> Option<(Instant, &'static str)> {
        let running = matches!(self.state, State::Dialing | State::Open(_));
        let ends = self.ends.map(|at| (at, "session-timeout"));
        let silent = self.silent_at.filter(|_| self.session.is_none());
        ends.into_iter().chain(silent.map(|at| (at, "ping-exit"))).min().filter(|_| running)
    }

    fn tick_session(&mut self, now: Instant, out: &mut Out) {
        let Some(session) = &mut self.session else { return };
        if session.control_channel.expired(now) {
            return self.settle(now, Err(Reason::HandshakeTimeout), out);
        }
        let (tls, settings) = (&self.config.tls, &self.config.settings);
        let control_channel = &mut session.control_channel;
        let (report, wanted) = session.data.tick(now, control_channel, settings, out);
        report.into_iter().for_each(|report| out.event(ClientEvent::Path(report)));
        let events = control_channel.next_negotiation(now, wanted, || new_tls(tls), settings);
        let result = events.and_then(|events| self.handle_events(now, events, out));
        self.settle(now, result, out);
    }
}

fn new_tls(tls: &PeerTls) -> Result<TlsSession, Reason> {
    Ok(match tls {
        PeerTls::Client(tls) => TlsSession::client(tls)?,
        PeerTls::Server(tls) => TlsSession::server(tls)?,
    })
}

impl PeerEngine {
    /// Handles the input in a separate function, so that the caller can scrub this stack frame
    /// afterwards.
    #[inline(never)]
    fn work(&mut self, now: Instant, input: Input<'_>, out: &mut Out) {
        match input {
            Input::Tick => self.tick(now, out),
            Input::ControlPacket(link, packet) => self.frame(now, link, packet, out),
            Input::LinkUp(link) if self.listens() => self.accepted(now, link, out),
            Input::LinkDown(link) if self.listens() => self.ended(now, link, out),
            Input::LinkUp(link) if matches!(self.state, State::Dialing) => {
                self.state = State::Open(Some(link));
                self.restart_ping_exit(now);
                self.begin(now, link, out);
            }
            Input::LinkUp(link) => out.push(Output::Hangup(link)),
            Input::DialFailed(reason) if matches!(self.state, State::Dialing) => {
                self.lost(now, Reason::DialFailed(reason), out);
            }
            Input::LinkDown(link) if matches!(self.state, State::Open(Some(ours)) if ours == link) =>
            {
                self.lost(now, Reason::ConnectionReset, out);
            }
            Input::Notice(notice) => self.notice(now, notice, out),
            Input::LinkDown(_) | Input::DialFailed(_) | Input::AuthResponse(..) => {}
        }
        // Stop waiting once the exit notice is acknowledged.
        if matches!(self.state, State::Exiting(_))
            && self.session.as_ref().is_none_or(Session::exit_is_acknowledged)
        {
            self.gone(out);
        }
    }
}

impl Engine for PeerEngine {
    type Event = ClientEvent;
    type Format = OpenVpn;

    fn handle(&mut self, now: Instant, input: Input<'_>, out: &mut Out) {
        let frame = matches!(input, Input::ControlPacket(..));
        self.work(now, input, out);
        if frame {
            // The stack may hold copies of keys.
            adit_crypto::scrub_stack();
        }
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        let state = match &self.state {
            State::New => Some((Instant::default(), "start")),
            State::Waiting { until } => Some((*until, "connect-retry")),
            State::Exiting(notices) => Some(notices.deadline()),
            State::Dialing | State::Open(_) | State::Stopped => None,
        };
        let attempts =
            self.attempts.iter().filter_map(|attempt| attempt.control_channel.deadline());
        let session = self.session.as_ref();
        let data = session.and_then(|session| session.data.deadline());
        let control_channel = session.and_then(|session| session.control_channel.deadline());
        let pending = self.pending.deadline().map(|at| (at, "connections that wait"));
        let limits = self.limits_deadline();
        let own = [state, data, control_channel, pending, limits];
        attempts.chain(own.into_iter().flatten()).min()
    }
}
