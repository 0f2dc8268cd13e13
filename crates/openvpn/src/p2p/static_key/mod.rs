//! A shared key without TLS (`secret`). There is no handshake and no session, only authentic
//! packets.
//!
//! The peer is added to the data plane once and stays there for the engine's life, even across
//! restarts. Because there is only one key, its replay window must record every packet that was
//! ever accepted.

mod streams;

use adit_engine::command::{Float, KeySlot};
use adit_engine::{Engine, Instant, Link, PeerId, SocketId, UnixTime};

use super::config::StaticConfig;
use super::occ;
use super::pending_streams::PendingStreams;
use crate::client::{ClientEvent, Next, Remotes};
use crate::data_format::{
    Command, DataKey, Input, KeyLimits, Notice, OpenVpn, Outbox, Output, Protection,
};
use crate::reason::Reason;
use crate::session::{
    Budget, ExitNotices, Idle, PeerTerms, all_routes, framing_action, inner_mtu, is_exit_notice,
    session_end,
};

type Out = Outbox<ClientEvent>;

/// The only peer.
const PEER: PeerId = PeerId(0);
/// A ping, in plaintext.
const PING: [u8; 16] = [
    0x2a, 0x18, 0x7b, 0xf3, 0x64, 0x1e, 0xb4, 0xcb, 0x07, 0xed, 0x2d, 0x0a, 0x98, 0x1f, 0xc7, 0x48,
];

/// One end of a tunnel under a static key.
pub struct StaticEngine {
    config: StaticConfig,
    remotes: Remotes,
    state: State,
    /// The link to the other end, if known.
    link: Option<Link>,
    /// Whether the data plane has the peer.
    added: bool,
    /// Whether an authentic packet has arrived since the last restart.
    heard: bool,
    /// The connections other than the one in use, if this end listens for them.
    pending: PendingStreams,
    /// When the connection in use was accepted.
    since: Instant,
    /// `session-timeout`.
    ends: Option<Instant>,
    /// `inactive`, once the data plane has the peer.
    idle: Option<Idle>,
    /// The number of control packets (this mode has none), and of connections that were not the peer's.
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
    /// Packets can flow.
    Open,
    Exiting(ExitNotices),
    Stopped,
}

/// Returns the link to use while the address is unknown. Its socket or stream does not exist, so
/// nothing is sent.
fn nowhere(stream: bool) -> Link {
    let unspecified = std::net::SocketAddr::from(([0, 0, 0, 0], 0));
    if stream {
        Link::stream(u64::MAX, unspecified)
    } else {
        Link::datagram(SocketId(u16::MAX), None, unspecified)
    }
}

impl StaticEngine {
    /// Creates an engine that begins at its first input.
    pub fn new(config: StaticConfig) -> Self {
        let remotes = Remotes::new(&config.remote_policy).steady();
        let pending = PendingStreams::new(config.settings.hand_window);
        Self {
            config,
            remotes,
            state: State::New,
            link: None,
            added: false,
            heard: false,
            pending,
            since: Instant::default(),
            ends: None,
            idle: None,
            dropped: 0,
            budget: Budget::default(),
        }
    }

    /// Sets the wall clock, which this engine does not use.
    pub fn set_unix_time(&mut self, _now: Instant, _unix_time: UnixTime) {}

    /// Returns the number of control packets, which this mode does not have, and of connections
    /// that were not the peer's.
    pub fn dropped(&self) -> u64 {
        self.dropped
    }

    /// Restarts, and resolves the other end's name again.
    pub fn restart(&mut self, now: Instant, out: &mut Out) {
        self.begin_again(now, Reason::RestartRequested, out);
    }

    /// Processes a change of the path to the other end, or its recovery after an outage. During a wait or an attempt this end restarts at
    /// once. A connection ends if it is `stale`: its local address is gone.
    pub fn path_changed(&mut self, now: Instant, stale: bool, out: &mut Out) {
        match &mut self.state {
            State::Waiting { until } => *until = now,
            State::Dialing => self.start(now, out),
            State::Open if stale && self.link.is_some_and(|link| link.is_stream()) => {
                self.begin_again(now, Reason::NetworkChanged, out);
                if let State::Waiting { until } = &mut self.state {
                    *until = now;
                }
            }
            State::New | State::Open | State::Exiting(_) | State::Stopped => {}
        }
    }

    /// Ends for good, after exit notices if they are configured.
    pub fn shutdown(&mut self, now: Instant, out: &mut Out) {
        self.end(now, Reason::EndRequested, out);
    }

    fn end(&mut self, now: Instant, why: Reason, out: &mut Out) {
        match (&self.state, self.config.settings.exit_notify) {
            (State::Stopped, _) => {}
            // Closing the connection is notice enough.
            (State::Open, Some(times)) if self.link.is_some_and(|link| !link.is_stream()) => {
                self.state = State::Exiting(ExitNotices::on_data_channel(now, times, why));
                self.tick(now, out);
            }
            _ => self.stop(why, out),
        }
    }

    fn stop(&mut self, why: Reason, out: &mut Out) {
        if std::mem::take(&mut self.added) {
            out.plane(Command::DelPeer(PEER));
        }
        self.hang_up_all(out);
        self.state = State::Stopped;
        out.event(ClientEvent::Stopped(why));
    }

    fn start(&mut self, now: Instant, out: &mut Out) {
        self.begin_times(now);
        match self.remotes.current() {
            Some(remote) => {
                let target = remote.target.clone();
                out.event(ClientEvent::Connecting(format!("{}:{}", target.host, target.port)));
                out.push(Output::Dial(target));
                self.state = State::Dialing;
            }
            None => self.open(now, None, out),
        }
    }

    /// Starts the timers that make this end exit, as OpenVPN does on a restart.
    fn begin_times(&mut self, now: Instant) {
        self.ends = session_end(now, self.config.settings.limits.session);
        if let Some(idle) = &mut self.idle {
            idle.begin_anew(now);
        }
    }

    /// Returns whether the peer may have any address.
    fn floats(&self) -> bool {
        self.config.settings.float || self.config.remote_policy.remotes.is_empty()
    }

    fn open(&mut self, now: Instant, link: Option<Link>, out: &mut Out) {
        self.state = State::Open;
        self.link = link;
        let to = link.unwrap_or_else(|| nowhere(self.listens()));
        if !std::mem::replace(&mut self.added, true) {
            self.add(to, out);
            let settings = &self.config.settings;
            let to = (to, Protection::Static(self.config.suite), settings);
            self.idle = Idle::watch(now, settings.limits.inactive, PEER, to);
        } else {
            let protection = Protection::Static(self.config.suite);
            out.plane(Command::SetLink(PEER, to));
            out.plane(Command::SetMtu(PEER, inner_mtu(&self.config.settings, to, protection)));
            // The keepalive timeout starts here.
            out.plane(Command::SetKeepalive(PEER, self.config.settings.keepalive));
        }
        if to.is_stream() && !self.listens() {
            // The listening end cannot know whose connection this is before a packet arrives.
            out.plane(Command::SendData(PEER, PING.to_vec()));
        }
    }

    /// Adds the peer to the data plane, with its key.
    fn add(&self, to: Link, out: &mut Out) {
        let settings = &self.config.settings;
        let protection = Protection::Static(self.config.suite);
        let terms = PeerTerms {
            peer: PEER,
            link: to,
            wire_id: None,
            float: Float::if_allowed(self.floats()),
            framing: settings.framing,
            protection,
            channel_of: None,
            vlan: None,
        };
        terms.add_peer(settings, all_routes(), out);
        let (seal, open) = match self.config.direction {
            Some(direction) => self.config.key.directed(direction),
            None => {
                let [first, _] = self.config.key.halves();
                (first.clone(), first)
            }
        };
        let limits = KeyLimits::default();
        let key = DataKey { key_id: 0, protection, seal, open, limits };
        out.plane(Command::InstallKey(PEER, KeySlot::Primary, Box::new(key)));
    }

    /// Records that the other end has proved that it has the key.
    fn peer_has_key(&mut self, out: &mut Out) {
        let State::Open = self.state else { return };
        if self.listens() && self.link.is_none() {
            // The peer's connection has already ended.
            return;
        }
        if std::mem::replace(&mut self.heard, true) {
            return;
        }
        self.remotes.succeeded();
        if self.listens() {
            // Send a ping, so that the other end gets its first packet just as early.
            out.plane(Command::SendData(PEER, PING.to_vec()));
        }
        let mut tunnel = self.config.tunnel_addrs.tunnel();
        tunnel.peer = Some(PEER);
        tunnel.mtu = Some(self.config.settings.tun_mtu);
        tunnel.remote = self.link.map(|link| link.remote());
        out.event(ClientEvent::Up(Box::new(tunnel)));
    }

    fn begin_again(&mut self, now: Instant, reason: Reason, out: &mut Out) {
        match self.state {
            State::Stopped => return,
            State::Exiting(_) => return self.gone(out),
            _ => {}
        }
        if self.listens() {
            self.begin_times(now);
            return self.next_connection(now, reason, out);
        }
        let succeeded = std::mem::take(&mut self.heard);
        out.event(ClientEvent::Restarting(reason));
        if self.config.remote_policy.remotes.is_empty() {
            // The peer may return from any address, to which the answers are sent.
            self.begin_times(now);
            return self.open(now, self.link, out);
        }
        let next =
            if succeeded { Next::After(self.remotes.after_loss()) } else { self.remotes.advance() };
        if let Some(link) = self.link.take() {
            out.plane(Command::SetLink(PEER, nowhere(link.is_stream())));
            out.push(Output::Hangup(link));
        }
        match next {
            Next::After(wait) => self.state = State::Waiting { until: now + wait },
            Next::Exhausted => self.stop(Reason::RetriesExhausted, out),
        }
    }

    fn notice(&mut self, now: Instant, notice: Notice, out: &mut Out) {
        match notice {
            Notice::KeyFirstUse(PEER, _) | Notice::PeerActive(PEER) => self.peer_has_key(out),
            Notice::Floated(PEER, link) if self.listens() => self.moved(now, link, out),
            Notice::Floated(PEER, link) if matches!(self.state, State::Open) => {
                self.link = Some(link);
                if self.heard {
                    self.budget.report_event(now, out, ClientEvent::Note, || {
                        format!("the peer moved to {}", link.remote())
                    });
                }
            }
            // Silence has an effect only after a peer has connected.
            Notice::PeerSilent(PEER)
                if self.link.is_some() && self.config.settings.limits.exit_when_silent =>
            {
                self.end(now, Reason::PingExit, out);
            }
            Notice::Traffic(PEER, traffic)
                if self.idle.as_mut().is_some_and(|idle| idle.record_traffic(now, traffic)) =>
            {
                self.end(now, Reason::Inactive, out);
            }
            Notice::PeerSilent(PEER) if self.link.is_some() => {
                self.begin_again(now, Reason::PingRestart, out);
            }
            Notice::Violation(PEER, wrong) => {
                out.event(ClientEvent::Warning(format!("the peer: {}", framing_action(wrong))));
            }
            Notice::InBand(PEER, message) if is_exit_notice(&message) => {
                self.begin_again(now, Reason::RemoteExit, out);
            }
            Notice::InBand(PEER, message) => {
                let stream = self.link.is_some_and(|link| link.is_stream());
                if let Some(answer) = occ::reply(&message, &self.config, stream) {
                    out.plane(Command::SendData(PEER, answer));
                }
            }
            Notice::Unreachable(link, errno)
                if self.link.is_some_and(|ours| ours.remote() == link.remote()) =>
            {
                out.event(ClientEvent::Unreachable(link, errno));
            }
            _ => {}
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Out) {
        match &mut self.state {
            State::New => self.start(now, out),
            State::Waiting { until } if *until <= now => self.start(now, out),
            State::Exiting(notices) => {
                let over = notices.tick(now, PEER, out);
                if over {
                    return self.gone(out);
                }
            }
            _ => {}
        }
        self.tick_streams(now, out);
        self.tick_limits(now, out);
    }

    fn tick_limits(&mut self, now: Instant, out: &mut Out) {
        if !matches!(self.state, State::Dialing | State::Open) {
            return;
        }
        if self.ends.is_some_and(|at| at <= now) {
            return self.end(now, Reason::SessionTimeout, out);
        }
        if let Some(idle) = &mut self.idle {
            idle.tick(now, out);
        }
    }

    fn limits_deadline(&self) -> Option<(Instant, &'static str)> {
        let running = matches!(self.state, State::Dialing | State::Open);
        let ends = self.ends.map(|at| (at, "session-timeout"));
        let idle = self.idle.as_ref().map(Idle::deadline);
        ends.into_iter().chain(idle).min().filter(|_| running)
    }

    /// Stops the engine after its exit notices.
    fn gone(&mut self, out: &mut Out) {
        let why = match &self.state {
            State::Exiting(notices) => notices.reason.clone(),
            _ => Reason::EndRequested,
        };
        self.stop(why, out);
    }
}

impl Engine for StaticEngine {
    type Event = ClientEvent;
    type Format = OpenVpn;

    fn handle(&mut self, now: Instant, input: Input<'_>, out: &mut Out) {
        match input {
            Input::Tick => self.tick(now, out),
            Input::ControlPacket(..) => self.dropped = self.dropped.saturating_add(1),
            Input::LinkUp(link) if self.listens() => self.accepted(now, link, out),
            Input::LinkDown(link) if self.listens() => self.ended(now, link, out),
            Input::LinkUp(link) if matches!(self.state, State::Dialing) => {
                self.open(now, Some(link), out);
            }
            Input::LinkUp(link) => out.push(Output::Hangup(link)),
            Input::DialFailed(reason) if matches!(self.state, State::Dialing) => {
                self.begin_again(now, Reason::DialFailed(reason), out);
            }
            Input::LinkDown(link) if self.link == Some(link) => {
                self.begin_again(now, Reason::ConnectionReset, out);
            }
            Input::Notice(notice) => self.notice(now, notice, out),
            Input::LinkDown(_) | Input::DialFailed(_) | Input::AuthResponse(..) => {}
        }
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        let of_state = match &self.state {
            State::New => Some((Instant::default(), "start")),
            State::Waiting { until } => Some((*until, "connect-retry")),
            State::Exiting(notices) => Some(notices.deadline()),
            State::Dialing | State::Open | State::Stopped => None,
        };
        let streams = self.streams_deadline().map(|at| (at, "connections that wait"));
        let rest = streams.into_iter().chain(self.limits_deadline()).min();
        of_state.or(rest)
    }
}
