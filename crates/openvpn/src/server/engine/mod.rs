mod admission;
mod authorization;
mod control;
mod counters;
mod endings;
mod handshake_listener;
mod key_verification;
mod release_memory;
mod route_ownership;
mod saved;
mod session_replacement;
mod stations;
mod streams;
mod timers;
mod tokens;
mod update;

use std::collections::{BTreeSet, HashMap};
use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::command::Counters;
use adit_engine::{AddressQuota, Engine, Instant, Link, PeerId, Random, Seed, UnixTime, auth};

use super::client::{AuthorizingClient, Client, Stage};
use super::config::ServerConfig;
use super::event::{ClientInfo, ServerEvent};
use super::log_limiter::LogLimiter;
use super::pool::Pool;
use super::responder::Responder;
use crate::data_format::{Command, Input, Notice, OpenVpn, Outbox, Output};
use crate::negotiate::{ControlMessage, Restart};
use crate::packet::SessionId;
use crate::reason::Reason;
use crate::session::{NoticeOutcome, PathReport, WallClock, framing_action, is_exit_notice};
use crate::tls::ServerTls;
use crate::wrap::WrapError;
pub use counters::ServerCounters;
use key_verification::{FREE_PER_VERIFICATION, MAX_VERIFICATIONS};
pub use saved::SavedServer;
use streams::Streams;

pub(super) type Out = Outbox<ServerEvent>;

/// The maximum peer id. Peer ids have 24 bits, and a value of all ones means none.
const MAX_PEER_ID: u32 = 0x00ff_fffe;
/// The minimum number of other ids that are used before an id is reused. The last packet of its
/// previous owner is long gone by then.
const IDS_AT_LEAST: u32 = 0xffff;
/// The maximum number of concurrent handshakes.
pub const MAX_HANDSHAKES: usize = 4096;
/// The number of free places that entitle a network to one more handshake.
const FREE_PER_HANDSHAKE: usize = 7;
/// The time that a refused client has to acknowledge its refusal.
const REFUSAL_PATIENCE: Duration = Duration::from_secs(5);

/// A session that has ended and whose final counters the data plane has not reported yet.
struct EndedSession {
    reason: Reason,
    /// The traffic of its control channel.
    control: Counters,
}

/// The message to a client whose session is ended.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Disconnect {
    /// RESTART: the client may connect again.
    Restart,
    /// HALT: the client exits.
    Halt,
}

/// An OpenVPN server.
pub struct ServerEngine {
    pub(super) config: ServerConfig,
    pub(super) random: Random,
    pub(super) clock: WallClock,
    responder: Responder,
    log_limiter: LogLimiter,
    /// The handshakes in progress.
    handshakes: AddressQuota,
    /// Those whose tls-crypt-v2 key is being verified.
    verifications: AddressQuota,
    streams: Streams,
    pool: Pool,
    ownership: route_ownership::RouteOwnership,
    /// Boxed because a client takes kilobytes, and the capacity of a table can be twice the number
    /// of its entries and does not shrink.
    clients: HashMap<PeerId, Box<Client>>,
    by_session: HashMap<(SocketAddr, SessionId), PeerId>,
    by_ticket: HashMap<auth::RequestId, PeerId>,
    /// The session of each name that has one.
    by_name: HashMap<String, PeerId>,
    /// The check in progress of each name that has one (`adit connect --check`).
    checks: HashMap<String, PeerId>,
    disputes: session_replacement::NameConflicts,
    /// The number of clients in [`Stage::Ended`].
    ended: usize,
    /// Peers removed from the data plane, which has not reported their final counters yet.
    departing: HashMap<PeerId, EndedSession>,
    timers: BTreeSet<(Instant, PeerId)>,
    /// The lowest id of a client.
    first_peer: u32,
    next_peer: u32,
    next_ticket: u64,
    /// The number of the next session.
    next_session: u64,
    counters: ServerCounters,
    /// Whether copies of keys may remain on the stack.
    soiled: bool,
    /// Whether handshakes and renegotiations are left to another process.
    paused: bool,
}

impl ServerEngine {
    /// Creates a server, which waits for resets.
    ///
    /// # Errors
    /// Fails if the wrapping is for a client.
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
            log_limiter: LogLimiter::default(),
            handshakes: AddressQuota::new(MAX_HANDSHAKES, FREE_PER_HANDSHAKE),
            verifications: AddressQuota::new(MAX_VERIFICATIONS, FREE_PER_VERIFICATION),
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
            ended: 0,
            departing: HashMap::new(),
            timers: BTreeSet::new(),
            first_peer: 0,
            next_peer: 0,
            next_ticket: 0,
            next_session: 0,
            counters: ServerCounters::default(),
            soiled: false,
            paused: false,
            config,
        })
    }

    /// Gives clients ids from `first` on, because the data plane has other peers with lower ids.
    #[must_use]
    pub fn with_ids_from(mut self, first: PeerId) -> Self {
        (self.first_peer, self.next_peer) = (first.0, first.0);
        self
    }

    /// Sets the wall clock.
    pub fn set_unix_time(&mut self, now: Instant, unix_time: UnixTime) {
        self.clock = WallClock::new(now, unix_time);
    }

    /// Replaces the certificates or the CRL, for new handshakes and for renegotiations.
    pub fn set_tls(&mut self, tls: ServerTls) {
        self.config.tls = tls;
    }

    /// Returns the connected clients.
    pub fn clients(&self) -> impl Iterator<Item = &ClientInfo> {
        self.clients.values().filter_map(|client| Some(&client.connected()?.info))
    }

    /// Returns the control channel's traffic of a connected client, from the packet that began its
    /// handshake.
    pub fn control_traffic(&self, peer: PeerId) -> Option<Counters> {
        let client = self.clients.get(&peer)?;
        client.connected().map(|_| client.control_channel.traffic)
    }

    /// Returns the number of handshakes in progress.
    pub fn handshakes(&self) -> usize {
        self.handshakes.total()
    }

    /// Returns the number of streams without a session.
    pub fn pending_streams(&self) -> usize {
        self.streams.pending()
    }

    /// Returns the common names with the address that each had last.
    pub fn leases(&self) -> impl Iterator<Item = (&str, Vec<ipnet::IpNet>)> {
        self.pool.remembered().map(|(name, lease)| (name, lease.prefixes()))
    }

    /// Returns the numbers of dropped packets and refused handshakes.
    pub fn counters(&self) -> ServerCounters {
        let (half_open_forgotten, cookies_forgotten) = self.responder.forgotten();
        ServerCounters { half_open_forgotten, cookies_forgotten, ..self.counters }
    }

    /// Ends a client's session, and tells the client whether to reconnect. Returns false if there
    /// is no such client.
    pub fn kick(
        &mut self,
        now: Instant,
        peer: PeerId,
        disconnect: Disconnect,
        reason: &str,
        out: &mut Out,
    ) -> bool {
        self.disconnect(now, peer, disconnect, Reason::Kicked(reason.to_owned()), out)
    }

    /// Ends a client's session for `reason`.
    fn disconnect(
        &mut self,
        now: Instant,
        peer: PeerId,
        disconnect: Disconnect,
        reason: Reason,
        out: &mut Out,
    ) -> bool {
        match self.clients.get(&peer).map(|client| &client.stage) {
            None | Some(Stage::Ended { .. }) => return false,
            Some(_) => {}
        }
        let message = match disconnect {
            Disconnect::Restart => ControlMessage::Restart(Restart::default()),
            Disconnect::Halt => ControlMessage::Halt(reason.wire_text()),
        };
        self.end_with(now, peer, &message, reason, out);
        true
    }

    /// Notifies all clients that the server restarts, if `explicit-exit-notify` is configured, and
    /// ends their sessions.
    pub fn shutdown(&mut self, now: Instant, out: &mut Out) {
        let notify = self.config.settings.exit_notify;
        let peers: Vec<_> = self.clients.keys().copied().collect();
        for peer in peers {
            if let Some(kind) = notify {
                let restart = Restart { next_server: kind >= 2, ..Restart::default() };
                self.say(now, peer, &ControlMessage::Restart(restart), out);
            }
            self.remove(peer, Reason::Shutdown, out);
        }
    }

    /// Ends a handshake or a session.
    fn remove(&mut self, peer: PeerId, reason: Reason, out: &mut Out) {
        let Some(client) = self.clients.remove(&peer) else { return };
        let reported = matches!(client.stage, Stage::Replaced(_) | Stage::Ended { .. });
        if self.config.checks.connect && client.requested && !reported {
            out.event(ServerEvent::Ending(client.number));
        }
        let link = client.control_channel.link;
        self.remove_packet_entry(link, client.session, peer);
        if let Some(at) = client.scheduled {
            self.timers.remove(&(at, peer));
        }
        out.plane(Command::DismissLink(link));
        match client.stage {
            Stage::Connected(connected) => {
                let departing = EndedSession { reason, control: client.control_channel.traffic };
                self.end_session(peer, *connected, departing, out);
            }
            Stage::Replaced(_) => self.disputes.notified(),
            Stage::Ended { .. } => self.ended = self.ended.saturating_sub(1),
            stage => {
                self.handshakes.release(link.remote().ip());
                let identity = client.control_channel.negotiation().tls().peer();
                let stage = match stage {
                    Stage::VerifyingKey(verification) => {
                        self.by_ticket.remove(&verification.request);
                        self.verifications.release(link.remote().ip());
                        Stage::Negotiating
                    }
                    Stage::Authorizing(waiting) => {
                        let AuthorizingClient { request, negotiated, reservation, .. } = *waiting;
                        self.by_ticket.remove(&request);
                        self.cancel(peer, &negotiated, reservation);
                        Stage::Negotiating
                    }
                    stage => stage,
                };
                match (stage, identity) {
                    // The refusal was reported when it happened.
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
                if let Some(EndedSession { reason, control }) = self.departing.remove(&peer) {
                    out.event(ServerEvent::ClientDown(peer, reason, counters.plus(control)));
                }
            }
            Notice::PeerSilent(peer) => {
                if self.clients.contains_key(&peer) {
                    self.remove(peer, Reason::ClientSilent, out);
                }
            }
            Notice::InBand(peer, ref message) if is_exit_notice(message) => {
                self.remove(peer, Reason::RemoteExit, out);
            }
            Notice::StationHeard(peer, mac) => self.station_heard(peer, mac, out),
            Notice::StationForgotten(peer, mac) => {
                if let Some(station) = self.station(peer, mac) {
                    out.event(ServerEvent::StationForgotten(station));
                }
            }
            Notice::Floated(peer, link) => self.floated(now, peer, link, out),
            Notice::Violation(peer, wrong) => {
                out.event(ServerEvent::Warning(Some(peer), framing_action(wrong).into()));
            }
            Notice::KeyFirstUse(peer, _)
            | Notice::KeyNearLimit(peer, _)
            | Notice::Traffic(peer, _)
            | Notice::InBand(peer, _)
            | Notice::ProbeResult(peer, _) => {
                let client = self.clients.get_mut(&peer);
                let Some(Stage::Connected(connected)) = client.map(|client| &mut client.stage)
                else {
                    return;
                };
                match connected.data.notice(now, &notice, &self.config.settings, out) {
                    NoticeOutcome::Nothing | NoticeOutcome::KeyNearLimit => {}
                    NoticeOutcome::Path(report) => self.found_path(now, peer, report, out),
                    NoticeOutcome::Inactive => return self.remove(peer, Reason::Inactive, out),
                }
                self.schedule(peer);
            }
            Notice::PeerActive(_) | Notice::Unreachable(..) | Notice::Unrouted(_) => {}
        }
    }

    fn floated(&mut self, now: Instant, peer: PeerId, link: Link, out: &mut Out) {
        let Some(client) = self.clients.get_mut(&peer) else { return };
        // Only clients over datagrams can move.
        if link.is_stream() || client.control_channel.link.is_stream() {
            return;
        }
        if !client.budget.may_move(now, link) {
            self.counters.delayed += 1;
            return self.schedule(peer);
        }
        let former = std::mem::replace(&mut client.control_channel.link, link);
        if let Stage::Connected(connected) = &mut client.stage {
            connected.info.link = link;
            connected.data.moved(now, link);
        }
        let session = client.session;
        self.remove_packet_entry(former, session, peer);
        self.by_session.insert((link.remote(), session), peer);
        out.plane(Command::DismissLink(former));
        out.plane(Command::AdmitLink(link));
        self.schedule(peer);
        out.event(ServerEvent::Floated(peer, link));
    }

    /// Reports a finding about the path to a client, within its budget, because the client's
    /// answers cause the finding.
    fn found_path(&mut self, now: Instant, peer: PeerId, report: PathReport, out: &mut Out) {
        let Some(client) = self.clients.get_mut(&peer) else { return };
        if client.budget.report(now, String::new).is_some() {
            out.event(ServerEvent::Path(peer, report));
        }
    }

    /// Removes the entry for a client's packets, unless it has become another client's.
    fn remove_packet_entry(&mut self, link: Link, session: SessionId, peer: PeerId) {
        let key = (link.remote(), session);
        if self.by_session.get(&key) == Some(&peer) {
            self.by_session.remove(&key);
        }
    }
}

impl ServerEngine {
    /// Handles the input in a separate function, so that the caller can scrub this stack frame
    /// afterwards.
    #[inline(never)]
    fn work(&mut self, now: Instant, input: Input<'_>, out: &mut Out) {
        match input {
            Input::Tick => {}
            Input::ControlPacket(link, packet) => self.frame(now, link, packet, out),
            Input::Notice(notice) => self.notice(now, notice, out),
            Input::AuthResponse(ticket, reply) => self.answer(now, ticket, reply, out),
            Input::LinkUp(link) => self.stream_up(now, link, out),
            Input::LinkDown(link) if link.is_stream() => self.stream_down(link, out),
            Input::LinkDown(link) => {
                let lost: Vec<_> = self
                    .clients
                    .iter()
                    .filter(|(_, client)| client.control_channel.link == link)
                    .map(|(&peer, _)| peer)
                    .collect();
                for peer in lost {
                    self.remove(peer, Reason::ConnectionReset, out);
                }
            }
            Input::DialFailed(_) => {}
        }
        self.tick(now, out);
    }
}

impl Engine for ServerEngine {
    type Event = ServerEvent;
    type Format = OpenVpn;

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
