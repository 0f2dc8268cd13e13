mod admission;
mod ownership;
mod replaced;
mod rest;
mod strangers;
mod streams;
mod update;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::verbs::Counters;
use adit_engine::{
    Engine, Input, Instant, Link, Notice, Op, Outbox, Output, PeerId, Random, Seed, Shares, Ticket,
    UnixTime,
};

use super::client::{Client, Stage};
use super::config::ServerConfig;
use super::event::{ClientInfo, ServerEvent};
use super::naming::Naming;
use super::pool::Pool;
use super::responder::Responder;
use crate::negotiate::{ControlMessage, Restart};
use crate::packet::{Header, Opcode, SessionId, split_front};
use crate::session::budget::MESSAGES_PER_RECORD;
use crate::session::{
    Fault, Heard, KeySchedule, PathReport, Settings, WallClock, failed_negotiation, is_exit_notice,
    misframed,
};
use crate::tls::{ServerTls, TlsSession};
use crate::wrap::WrapError;
use streams::Streams;

pub(super) type Out = Outbox<ServerEvent>;

/// Peer ids are 24 bits, and all ones means none.
const MAX_PEER_ID: u32 = 0x00ff_fffe;
/// Ids come round after so many lives or more: long after anything of the former owner's is under way.
const IDS_AT_LEAST: u32 = 0xffff;
/// Handshakes at once.
const MAX_HANDSHAKES: usize = 4096;
/// Each network may have one handshake for so many places that are free.
const FREE_PER_HANDSHAKE: usize = 7;
/// How long a refused client may take to acknowledge its refusal.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(5);

/// Why sessions end by themselves.
const INACTIVE: &str = "inactive: too little passed through the tunnel";
const SESSION_OVER: &str = "session-timeout is over";

/// What the server dropped or refused, by reason.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerCounters {
    /// Resets answered.
    pub resets_answered: u64,
    /// Resets not answered: their network had too many.
    pub resets_limited: u64,
    /// Packets of strangers that were malformed or not authentic.
    pub strangers_bad: u64,
    /// Packets of strangers that were dropped unchecked: their network had sent too many bad ones.
    pub strangers_unchecked: u64,
    /// Packets of strangers under a tls-crypt-v2 key that `tls-crypt-v2-max-age` refuses.
    pub keys_expired: u64,
    /// Packets of strangers without a valid cookie.
    pub cookies_bad: u64,
    /// Packets of strangers whose cookie had started a handshake before.
    pub cookies_used: u64,
    /// Used cookies that a full table forgot before they expired.
    pub cookies_forgotten: u64,
    /// Handshakes refused because too many had started, of their network or in all.
    pub starts_limited: u64,
    /// Clients older than 2.6 with tls-crypt-v2 that the half-open table or `force-cookie` refused.
    pub half_open_refused: u64,
    /// Keys of such clients that a full table forgot for newer ones.
    pub half_open_forgotten: u64,
    /// Handshakes refused because too many were under way.
    pub handshakes_refused: u64,
    /// Streams refused because too many without a session were open, in all or from their network.
    pub streams_refused: u64,
    /// Streams ended because their first packet did not come in time.
    pub streams_silent: u64,
    /// Streams ended because they did not begin with an authentic reset.
    pub streams_bad: u64,
    /// Packets within a session that were malformed, not authentic or replayed.
    pub session_bad: u64,
    /// Renegotiations, moves and push replies that were delayed, because their client had used up its budget.
    pub delayed: u64,
    /// Control messages that were not read: more in one record, or more records, than a client's budget has.
    pub messages_excess: u64,
    /// Replaced sessions whose clients were not told, because too many were being told already.
    pub replaced_unnotified: u64,
}

/// A session that has ended, whose final counters the data plane has not given yet.
struct Departing {
    reason: String,
    /// Its control channel.
    control: Counters,
}

/// What a client is told when its session is ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Farewell {
    /// RESTART: it may connect again.
    ComeBack,
    /// HALT: it ends.
    StayAway,
}

/// An OpenVPN server.
pub struct ServerEngine {
    pub(super) config: ServerConfig,
    pub(super) random: Random,
    pub(super) clock: WallClock,
    responder: Responder,
    naming: Naming,
    /// Handshakes under way.
    handshakes: Shares,
    streams: Streams,
    pool: Pool,
    ownership: ownership::Ownership,
    /// Boxed: each is kilobytes, and a table has room for twice as many as it holds, and keeps it.
    clients: HashMap<PeerId, Box<Client>>,
    by_session: HashMap<(SocketAddr, SessionId), PeerId>,
    by_ticket: HashMap<Ticket, PeerId>,
    /// The session of each name, where a name has one.
    by_name: HashMap<String, PeerId>,
    /// The check of each name that has one under way (`adit connect --check`).
    checks: HashMap<String, PeerId>,
    disputes: replaced::Disputes,
    /// Removed from the data plane, which has not told their final counters yet.
    departing: HashMap<PeerId, Departing>,
    timers: BTreeSet<(Instant, PeerId)>,
    next_peer: u32,
    next_ticket: u64,
    counters: ServerCounters,
    /// Copies of keys may lie on the stack.
    soiled: bool,
}

impl ServerEngine {
    /// A server that waits for resets.
    ///
    /// # Errors
    /// The wrapping is a client's.
    pub fn new(
        config: ServerConfig,
        seed: impl Into<Seed>,
        now: Instant,
        unix_time: UnixTime,
    ) -> Result<Self, WrapError> {
        let mut random = Random::new(seed);
        let responder = Responder::new(&config.settings, config.force_cookie, &mut random)?;
        let pool = Pool::new(config.network4.clone(), config.network6.clone(), &config.leases);
        Ok(Self {
            responder,
            naming: Naming::default(),
            handshakes: Shares::new(MAX_HANDSHAKES, FREE_PER_HANDSHAKE),
            streams: Streams::new(),
            pool,
            ownership: Default::default(),
            clock: WallClock::new(now, unix_time),
            random,
            clients: HashMap::new(),
            by_session: HashMap::new(),
            by_ticket: HashMap::new(),
            by_name: HashMap::new(),
            checks: HashMap::new(),
            disputes: Default::default(),
            departing: HashMap::new(),
            timers: BTreeSet::new(),
            next_peer: 0,
            next_ticket: 0,
            counters: ServerCounters::default(),
            soiled: false,
            config,
        })
    }

    /// The wall clock was set.
    pub fn set_unix_time(&mut self, now: Instant, unix_time: UnixTime) {
        self.clock = WallClock::new(now, unix_time);
    }

    /// Other certificates or another CRL: for new handshakes and for renegotiations.
    pub fn set_tls(&mut self, tls: ServerTls) {
        self.config.tls = tls;
    }

    /// The connected clients.
    pub fn clients(&self) -> impl Iterator<Item = &ClientInfo> {
        self.clients.values().filter_map(|client| Some(&client.connected()?.info))
    }

    /// The control channel's traffic of a connected client, from the packet on that began its handshake.
    pub fn control_traffic(&self, peer: PeerId) -> Option<Counters> {
        let client = self.clients.get(&peer)?;
        client.connected().map(|_| client.conversation.traffic)
    }

    /// Handshakes under way.
    pub fn handshakes(&self) -> usize {
        self.handshakes.total()
    }

    /// Streams without a session.
    pub fn strange_streams(&self) -> usize {
        self.streams.strangers()
    }

    /// Common names and the address each had last.
    pub fn leases(&self) -> impl Iterator<Item = (&str, Vec<ipnet::IpNet>)> {
        self.pool.remembered().map(|(name, lease)| (name, lease.prefixes()))
    }

    /// What was dropped or refused.
    pub fn counters(&self) -> ServerCounters {
        let (half_open_forgotten, cookies_forgotten) = self.responder.forgotten();
        ServerCounters { half_open_forgotten, cookies_forgotten, ..self.counters }
    }

    /// Ends a client's session, and tells it whether to come back. False if there is no such client.
    pub fn kick(
        &mut self,
        now: Instant,
        peer: PeerId,
        farewell: Farewell,
        reason: &str,
        out: &mut Out,
    ) -> bool {
        if !self.clients.contains_key(&peer) {
            return false;
        }
        let message = match farewell {
            Farewell::ComeBack => ControlMessage::Restart(Restart::default()),
            Farewell::StayAway => ControlMessage::Halt(reason.to_owned()),
        };
        self.say(now, peer, &message, out);
        self.remove(peer, reason.to_owned(), out);
        true
    }

    /// Tells all clients that the server restarts, where `explicit-exit-notify` says so, and ends
    /// their sessions.
    pub fn shutdown(&mut self, now: Instant, out: &mut Out) {
        let notify = self.config.settings.exit_notify;
        let peers: Vec<_> = self.clients.keys().copied().collect();
        for peer in peers {
            if let Some(kind) = notify {
                let restart = Restart { next_server: kind >= 2, ..Restart::default() };
                self.say(now, peer, &ControlMessage::Restart(restart), out);
            }
            self.remove(peer, "the server ends".into(), out);
        }
    }

    fn say(&mut self, now: Instant, peer: PeerId, message: &ControlMessage, out: &mut Out) {
        let unix = self.clock.at(now);
        if let Some(client) = self.clients.get_mut(&peer)
            && client.connected().is_some()
        {
            let _ = client.conversation.send_message(message.encode());
            let _ = client.conversation.flush(now, unix, out);
            told(peer, client, message.to_string(), out);
        }
    }

    fn frame(&mut self, now: Instant, link: Link, packet: &mut [u8], out: &mut Out) {
        if link.is_stream() {
            return self.stream_frame(now, link, packet, out);
        }
        let Ok((Header { opcode, .. }, session, _)) = split_front(packet) else {
            self.counters.strangers_bad += 1;
            return;
        };
        if let Some(&peer) = self.by_session.get(&(link.remote(), session)) {
            return self.session_frame(now, peer, packet, out);
        }
        match opcode {
            Opcode::HardResetClientV2 | Opcode::HardResetClientV3 => {
                self.reset(now, link, opcode, packet, out);
            }
            Opcode::ControlV1 | Opcode::AckV1 | Opcode::ControlWkcV1 => {
                self.third_packet(now, link, session, packet, out);
            }
            _ => self.counters.strangers_bad += 1,
        }
    }

    fn session_frame(&mut self, now: Instant, peer: PeerId, packet: &mut [u8], out: &mut Out) {
        self.step(now, peer, out, |client, tls, settings| {
            // What was asked about a client must be what it is let in with: no other certificate, and
            // no further attempts, until it has a session.
            let connected = client.connected().is_some();
            client.conversation.frame(now, packet, || next_tls(connected, tls), settings)
        });
    }

    /// Lets a client take something, works on what it heard, sends what came of it, and ends it if
    /// that failed.
    fn step(
        &mut self,
        now: Instant,
        peer: PeerId,
        out: &mut Out,
        take: impl FnOnce(&mut Client, &ServerTls, &Settings) -> Result<Vec<Heard>, Fault>,
    ) {
        let unix = self.clock.at(now);
        let Some(client) = self.clients.get_mut(&peer) else { return };
        let heard = take(client, &self.config.tls, &self.config.settings);
        self.counters.delayed += std::mem::take(&mut client.conversation.put_off);
        let result = heard.and_then(|heard| {
            heard.into_iter().try_for_each(|item| self.hear(now, peer, item, out))
        });
        let Some(client) = self.clients.get_mut(&peer) else { return };
        let flushed = client.conversation.flush(now, unix, out);
        self.soiled |= client.conversation.take_soiled();
        match result.and(flushed) {
            Ok(()) => {}
            Err(fault) if fault.is_harmless_on(client.conversation.link) => {
                self.counters.session_bad += 1;
            }
            Err(fault) if fault.is_harmless() => {
                self.counters.session_bad += 1;
                let why = format!("the TCP connection is out of step: {fault}");
                return self.remove(peer, why, out);
            }
            Err(fault) => return self.remove(peer, fault.to_string(), out),
        }
        self.schedule(peer);
    }

    fn hear(
        &mut self,
        now: Instant,
        peer: PeerId,
        heard: Heard,
        out: &mut Out,
    ) -> Result<(), Fault> {
        match heard {
            Heard::Reset(_) | Heard::TlsReady => Ok(()),
            Heard::Keys => self.keys_arrived(now, peer, out),
            Heard::Failed(fault) => {
                self.report(now, peer, out, ServerEvent::Warning, || failed_negotiation(&fault));
                Ok(())
            }
            Heard::Message(record) => self.record(now, peer, &record, out),
        }
    }

    /// Reads the control messages in one TLS record, as far as the client's budget goes.
    fn record(
        &mut self,
        now: Instant,
        peer: PeerId,
        record: &[u8],
        out: &mut Out,
    ) -> Result<(), Fault> {
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
                    self.report(now, peer, out, ServerEvent::Warning, || error.to_string())
                }
            }
        }
        self.counters.messages_excess += u64::from(messages.next().is_some());
        Ok(())
    }

    /// Reports what a client said, as far as its budget goes.
    fn report(
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

    fn message(
        &mut self,
        now: Instant,
        peer: PeerId,
        message: ControlMessage,
        out: &mut Out,
    ) -> Result<(), Fault> {
        match message {
            ControlMessage::PushRequest => {
                // The first request crosses the unrequested answer; a later one is a repetition.
                if let Some(client) = self.clients.get_mut(&peer)
                    && let Stage::Connected(connected) = &mut client.stage
                    && std::mem::replace(&mut connected.asked, true)
                {
                    self.push_again(now, peer, out)?;
                }
            }
            // The acknowledgement still goes out, so that the client need not repeat it and wait.
            ControlMessage::Exit => return Err(Fault::Exit),
            // Nobody asked, and what it says may be a secret.
            ControlMessage::ChallengeResponse(_) => {
                let text = "ignored CR_RESPONSE: no challenge is open";
                self.report(now, peer, out, ServerEvent::Note, || text.into());
            }
            other => {
                let text = || format!("ignored control message '{other}'");
                self.report(now, peer, out, ServerEvent::Note, text);
            }
        }
        Ok(())
    }

    /// Sends a client its options once more, now or as soon as its budget allows.
    fn push_again(&mut self, now: Instant, peer: PeerId, out: &mut Out) -> Result<(), Fault> {
        let Some(client) = self.clients.get_mut(&peer) else { return Ok(()) };
        if !client.budget.may_push(now) {
            self.counters.delayed += 1;
            return Ok(());
        }
        send_push(peer, client, out)
    }

    /// Ends a handshake or a session.
    fn remove(&mut self, peer: PeerId, reason: String, out: &mut Out) {
        let Some(client) = self.clients.remove(&peer) else { return };
        let link = client.conversation.link;
        self.unfile(link, client.session, peer);
        if let Some(at) = client.scheduled {
            self.timers.remove(&(at, peer));
        }
        out.plane(Op::DismissLink(link));
        match client.stage {
            Stage::Connected(connected) => {
                let departing = Departing { reason, control: client.conversation.traffic };
                self.end_session(peer, *connected, departing, out);
            }
            Stage::Replaced(_) => self.disputes.notified(),
            stage => {
                if let Stage::Authorizing { ticket, .. } = &stage {
                    self.by_ticket.remove(ticket);
                }
                self.handshakes.give_back(link.remote().ip());
                let identity = client.conversation.exchange().tls().peer();
                match (stage, identity) {
                    // Told when it was refused.
                    (Stage::Refused { .. }, Some(_)) => {}
                    _ => out.event(ServerEvent::HandshakeFailed(link, reason)),
                }
            }
        }
        if self.streams.forget(link) {
            out.push(Output::Hangup(link));
        }
    }

    fn notice(&mut self, now: Instant, notice: Notice, out: &mut Out) {
        match notice {
            Notice::PeerGone(peer, counters) => {
                if let Some(Departing { reason, control }) = self.departing.remove(&peer) {
                    out.event(ServerEvent::ClientDown(peer, reason, counters.plus(control)));
                }
            }
            Notice::PeerSilent(peer) => {
                if self.clients.contains_key(&peer) {
                    self.remove(peer, "ping-restart: nothing heard from the client".into(), out);
                }
            }
            Notice::InBand(peer, ref message) if is_exit_notice(message) => {
                self.remove(peer, "remote-exit".into(), out);
            }
            Notice::Traffic(peer, traffic) => {
                let client = self.clients.get_mut(&peer);
                if let Some(Stage::Connected(connected)) = client.map(|client| &mut client.stage) {
                    if connected.idle.as_mut().is_some_and(|idle| idle.hear(now, traffic)) {
                        return self.remove(peer, INACTIVE.into(), out);
                    }
                    self.schedule(peer);
                }
            }
            Notice::Floated(peer, link) => self.floated(now, peer, link, out),
            Notice::KeyFirstUse(peer, key_id) => {
                if let Some(schedule) = self.key_schedule(peer) {
                    schedule.first_use(now, key_id, out);
                    self.schedule(peer);
                }
            }
            Notice::KeyNearLimit(peer, key_id) => {
                if let Some(schedule) = self.key_schedule(peer) {
                    schedule.near_limit(now, key_id);
                    self.schedule(peer);
                }
            }
            Notice::Misframed(peer, wrong) => {
                out.event(ServerEvent::Warning(Some(peer), misframed(wrong).into()));
            }
            Notice::InBand(peer, _) | Notice::Probed(peer, _) => {
                let settings = &self.config.settings;
                let client = self.clients.get_mut(&peer);
                if let Some(Stage::Connected(connected)) = client.map(|client| &mut client.stage) {
                    let report = connected.sizes.notice(now, &notice, settings, out);
                    self.found_path(now, peer, report, out);
                    self.schedule(peer);
                }
            }
            Notice::PeerHeard(_) | Notice::Unreachable(..) => {}
        }
    }

    fn key_schedule(&mut self, peer: PeerId) -> Option<&mut KeySchedule> {
        match &mut self.clients.get_mut(&peer)?.stage {
            Stage::Connected(connected) => Some(&mut connected.schedule),
            _ => None,
        }
    }

    fn floated(&mut self, now: Instant, peer: PeerId, link: Link, out: &mut Out) {
        let Some(client) = self.clients.get_mut(&peer) else { return };
        // Only datagrams move.
        if link.is_stream() || client.conversation.link.is_stream() {
            return;
        }
        if !client.budget.may_move(now, link) {
            self.counters.delayed += 1;
            return self.schedule(peer);
        }
        let former = std::mem::replace(&mut client.conversation.link, link);
        if let Stage::Connected(connected) = &mut client.stage {
            connected.info.link = link;
            connected.sizes.moved(now, link);
        }
        let session = client.session;
        self.unfile(former, session, peer);
        self.by_session.insert((link.remote(), session), peer);
        out.plane(Op::DismissLink(former));
        out.plane(Op::AdmitLink(link));
        self.schedule(peer);
        out.event(ServerEvent::Floated(peer, link));
    }

    /// Reports what was found of the path to a client, as far as its budget goes: its answers are what finds it.
    fn found_path(
        &mut self,
        now: Instant,
        peer: PeerId,
        report: Option<PathReport>,
        out: &mut Out,
    ) {
        let (Some(report), Some(client)) = (report, self.clients.get_mut(&peer)) else { return };
        if client.budget.report(now, String::new).is_some() {
            out.event(ServerEvent::Path(peer, report));
        }
    }

    /// Forgets where a client's packets come from, unless another one has taken the place.
    fn unfile(&mut self, link: Link, session: SessionId, peer: PeerId) {
        let key = (link.remote(), session);
        if self.by_session.get(&key) == Some(&peer) {
            self.by_session.remove(&key);
        }
    }

    /// Puts a client where it belongs in the timer table.
    fn schedule(&mut self, peer: PeerId) {
        let Some(client) = self.clients.get_mut(&peer) else { return };
        let next = client.deadline().map(|(at, _)| at);
        let former = std::mem::replace(&mut client.scheduled, next);
        if former == next {
            return;
        }
        if let Some(at) = former {
            self.timers.remove(&(at, peer));
        }
        if let Some(at) = next {
            self.timers.insert((at, peer));
        }
    }

    fn tick(&mut self, now: Instant, out: &mut Out) {
        self.end_silent(now, out);
        // Each client once: one that is due again at once must not hold up the others.
        let due: Vec<_> = self.timers.range(..=(now, PeerId(u32::MAX))).copied().collect();
        for (at, peer) in due {
            if self.timers.remove(&(at, peer))
                && let Some(client) = self.clients.get_mut(&peer)
            {
                client.scheduled = None;
                self.tick_client(now, peer, out);
            }
        }
    }

    fn tick_client(&mut self, now: Instant, peer: PeerId, out: &mut Out) {
        let Some(client) = self.clients.get_mut(&peer) else { return };
        if client.conversation.expired(now) {
            return self.remove(peer, Fault::TimedOut.to_string(), out);
        }
        match &mut client.stage {
            Stage::Replaced(notified)
                if notified.until <= now || client.conversation.all_acknowledged() =>
            {
                return self.tick_replaced(now, peer, out);
            }
            Stage::Refused { until, reason }
                if *until <= now || client.conversation.all_acknowledged() =>
            {
                let reason = reason.clone();
                return self.remove(peer, reason, out);
            }
            Stage::Authorizing { until, .. } if *until <= now => {
                let reason = "the authorization took longer than the hand-window";
                return self.remove(peer, reason.into(), out);
            }
            Stage::Connected(connected) if connected.ends.is_some_and(|at| at <= now) => {
                // It may connect anew at once: the end is that of this session.
                self.kick(now, peer, Farewell::ComeBack, SESSION_OVER, out);
                return;
            }
            Stage::Connected(connected) => {
                if let Some(idle) = &mut connected.idle {
                    idle.tick(now, out);
                }
                let report = connected.sizes.tick(now, &self.config.settings, out);
                let wanted = connected.schedule.wants_key(now, &client.conversation, out);
                self.found_path(now, peer, report, out);
                if wanted {
                    return self.step(now, peer, out, |client, tls, settings| {
                        let tls = TlsSession::server(tls)?;
                        client.conversation.renegotiate(now, tls, settings)?;
                        Ok(Vec::new())
                    });
                }
                self.tick_delayed(now, peer, out);
            }
            _ => {}
        }
        self.step(now, peer, out, |client, tls, settings| {
            let connected = client.connected().is_some();
            client.conversation.resume_postponed(now, || next_tls(connected, tls), settings)
        });
    }

    /// Does what a client's budget delayed.
    fn tick_delayed(&mut self, now: Instant, peer: PeerId, out: &mut Out) {
        let Some(client) = self.clients.get(&peer) else { return };
        if let Some(link) = client.budget.due_move(now) {
            self.floated(now, peer, link, out);
        }
        if self.clients.get(&peer).is_some_and(|client| client.budget.push_is_due(now)) {
            let result = self.push_again(now, peer, out);
            self.step(now, peer, out, |_, _, _| result.map(|()| Vec::new()));
        }
    }
}

/// The TLS session of a renegotiation.
fn next_tls(connected: bool, tls: &ServerTls) -> Result<TlsSession, Fault> {
    match connected {
        true => Ok(TlsSession::server(tls)?),
        false => Err(Fault::Ignored("a renegotiation before there is a session")),
    }
}

/// Sends a client its options.
fn send_push(peer: PeerId, client: &mut Client, out: &mut Out) -> Result<(), Fault> {
    let Stage::Connected(connected) = &client.stage else { return Ok(()) };
    for bundle in &connected.push {
        client.conversation.send_message(terminated(bundle))?;
    }
    connected.push.iter().for_each(|bundle| told(peer, client, bundle.clone(), out));
    Ok(())
}

/// Tells the driver of a control message to a client.
fn told(peer: PeerId, client: &Client, message: String, out: &mut Out) {
    let identity = client.conversation.exchange().tls().peer();
    let name = identity.map(|identity| identity.common_name.clone()).unwrap_or_default();
    out.event(ServerEvent::Told { peer, link: client.conversation.link, name, message });
}

/// Control messages end in NUL.
fn terminated(text: &str) -> Vec<u8> {
    let mut bytes = text.as_bytes().to_vec();
    bytes.push(0);
    bytes
}

impl ServerEngine {
    /// A function of its own, so that what it leaves on the stack lies below its caller.
    #[inline(never)]
    fn work(&mut self, now: Instant, input: Input<'_>, out: &mut Out) {
        match input {
            Input::Tick => {}
            Input::Frame(link, packet) => self.frame(now, link, packet, out),
            Input::Notice(notice) => self.notice(now, notice, out),
            Input::Answer(ticket, reply) => self.answer(now, ticket, reply, out),
            Input::LinkUp(link) => self.stream_up(now, link, out),
            Input::LinkDown(link) if link.is_stream() => self.stream_down(link, out),
            Input::LinkDown(link) => {
                let lost: Vec<_> = self
                    .clients
                    .iter()
                    .filter(|(_, client)| client.conversation.link == link)
                    .map(|(&peer, _)| peer)
                    .collect();
                for peer in lost {
                    self.remove(peer, "connection reset".into(), out);
                }
            }
            Input::DialFailed(_) => {}
        }
        self.tick(now, out);
    }
}

impl Engine for ServerEngine {
    type Event = ServerEvent;

    fn handle(&mut self, now: Instant, input: Input<'_>, out: &mut Out) {
        self.work(now, input, out);
        if std::mem::take(&mut self.soiled) {
            adit_crypto::scrub_stack();
        }
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        let silent = self.streams.deadline().map(|at| (at, "first packet of a stream"));
        let client = self.timers.first().map(|&(at, peer)| {
            let deadline = self.clients.get(&peer).and_then(|client| client.deadline());
            (at, deadline.map_or("timer", |(_, why)| why))
        });
        silent.into_iter().chain(client).min()
    }

    fn due(&self) -> Option<Instant> {
        let client = self.timers.first().map(|&(at, _)| at);
        self.streams.deadline().into_iter().chain(client).min()
    }
}
