//! A node of a mesh: its roster, its sessions, and the paths to other members, as one sans-IO engine.
//!
//! ```text
//!   packets, notices ─► SessionEngine ─► records ─┬─► RosterSync ─► Changes ─► Roster ─┐
//!                                                 ├─► PathFinder of a peer             ├─► who may connect, routes
//!                                                 ├─► relay for others                 │
//!                                                 └─► Responder (a node joins) ────────┘
//! ```
//!
//! # Sessions
//!
//! A node keeps sessions with its standing neighbours and connects to others when there is a packet for them. It reaches a member through a
//! relay that both have a session with, or at the addresses of the member's endpoint. A session over a relay is like any other: a relayed
//! link takes the place of an address, and its packets travel as records in the sessions with the relay. The relay's data plane splices the
//! data unread.
//!
//! # Paths
//!
//! Each peer has a [`path::PathFinder`]. The session follows the path that the finder chooses; keys do not depend on it.

mod apps;
mod connect;
mod endpoint;
mod freshness;
mod joining;
mod limits;
mod membership;
mod paths;
mod peer;
mod ping;
mod policy;
mod record;
mod relayed_links;
mod relaying;
mod report;
mod sessions;
mod streams;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use adit_crypto::sign::SigningKey;
use adit_engine::{Engine, Instant, PeerId, Random, Seed, SocketId, UnixTime};
use adit_openvpn::data_format::{Command, Input, Notice, OpenVpn, Outbox, Output};
use adit_openvpn::server::ServerEvent;

use self::apps::Apps;
use self::endpoint::{Endpoint, Endpoints};
use self::freshness::Freshness;
use self::limits::Limits;
use self::peer::Peer;
use self::ping::Pings;
use self::policy::Policies;
use self::relayed_links::RelayedLinks;
use self::relaying::Relaying;
use self::streams::Streams;
use crate::join::{JoinCounters, JoinRefusal, Responder};
use crate::path::{self, NatObserver, Probe, PunchBudget, Tag};
use crate::roster::{ChangeHash, Changes, Layer, Roster};
use crate::session::{
    self, KeyHash, MeshId, Policy, Reason, SessionConfig, SessionEngine, SessionNumber,
};
use crate::sync::RosterSync;
use crate::token::Invitations;

pub use apps::{AppsConfig, FIRST_APP, LeafError, NewLeaf, leaf_key};
pub use connect::MAX_BROADCAST_DOMAIN;
pub use joining::{JoinEvent, JoinFailure, Joining};
pub use limits::Excess;
pub use membership::{InviteError, SignError, Signed};
pub use ping::Pong;
pub use policy::{MAX_POLICY, PolicyState};
pub use relaying::RelayLimits;
pub use report::{NodeCounters, PeerReport, RouteKind};
pub use sessions::{destinations, routes_of};
pub use streams::DIAL_TIMEOUT;
pub(crate) use streams::NO_UDP;

type Out = Outbox<NodeEvent>;

/// The interval of work without exact timing: attempts, traffic, neighbours.
const TICK: Duration = Duration::from_millis(500);

/// How often neighbours compare digests of their rosters even if nothing changed.
const COMPARE: Duration = Duration::from_secs(300);

/// The time after which records that did not fit are sent again.
const RETRY: Duration = Duration::from_millis(20);

/// The parts of a node.
#[derive(Debug)]
pub struct NodeConfig {
    /// The node's key.
    pub key: SigningKey,
    /// The key of an admin, if this node signs with one.
    pub admin: Option<SigningKey>,
    /// The changes of the mesh.
    pub changes: Changes,
    /// The invitations of this node.
    pub invitations: Invitations,
    /// The result of [`Node::endpoints`] in an earlier run.
    pub endpoints: Vec<Vec<u8>>,
    /// Addresses at which members may be reached, such as those of the token.
    pub hints: Vec<(KeyHash, Vec<SocketAddr>)>,
    /// Addresses at which members may accept streams, such as those of the token.
    pub stream_hints: Vec<(KeyHash, Vec<SocketAddr>)>,
    /// The times when sessions are renewed and end. The genesis decides what they carry.
    pub policy: Policy,
    /// The limits of the data that this node relays.
    pub relay_limits: RelayLimits,
    /// The text of the mesh's policy, as kept by an earlier run.
    pub policy_text: Option<String>,
    /// The result of [`Node::compared`] in an earlier run.
    pub compared: Vec<(KeyHash, UnixTime)>,
    /// The time without a comparison with another member after which a peer loses its routes, or `None` for never.
    pub max_age: Option<Duration>,
}

impl NodeConfig {
    /// Creates the configuration of a node that knows its roster and nothing of an earlier run.
    #[must_use]
    pub fn new(key: SigningKey, changes: Changes) -> Self {
        Self {
            key,
            admin: None,
            invitations: Invitations::new(*changes.mesh()),
            changes,
            endpoints: Vec::new(),
            hints: Vec::new(),
            stream_hints: Vec::new(),
            policy: Policy::default(),
            relay_limits: RelayLimits::default(),
            policy_text: None,
            compared: Vec::new(),
            max_age: None,
        }
    }
}

/// An event of a node.
#[derive(Debug)]
pub enum NodeEvent {
    /// These changes are new. Store them before performing the outputs that follow.
    Added(Vec<ChangeHash>),
    /// Members, their names, addresses or subnets have changed.
    Roster,
    /// The invitations have changed.
    Invitations,
    /// The known endpoints have changed.
    Endpoints,
    /// The policy has changed, or its text has arrived: see [`Node::policy`].
    Policy,
    /// The roster was compared with that of another member: see [`Node::compared`].
    Compared,
    /// A peer has become stale, or has lost or regained its routes: see [`PeerReport`].
    Trust,
    /// There is a session with a member.
    Connected {
        /// The member.
        peer: KeyHash,
        /// The relay, if the session uses one.
        via: Option<KeyHash>,
        /// Whether the session is on a stream.
        stream: bool,
    },
    /// The session with a member ended.
    Disconnected {
        /// The member.
        peer: KeyHash,
        /// The reason.
        reason: Reason,
    },
    /// Data to a member takes another path.
    Path {
        /// The member.
        peer: KeyHash,
        /// The path.
        route: path::Route,
    },
    /// A port search needs this many new sockets: see [`Node::sockets_opened`].
    OpenSockets {
        /// The member.
        peer: KeyHash,
        /// The number of sockets, each with its own port.
        count: usize,
    },
    /// A session needs a stream to this address: see [`Node::stream_opened`].
    OpenStream(SocketAddr),
    /// These sockets of [`Node::sockets_opened`] are no longer needed.
    CloseSockets(Vec<SocketId>),
    /// An event of the server for OpenVPN apps.
    App(Box<ServerEvent>),
    /// A node joined with one of this node's invitations.
    Admitted(KeyHash),
    /// A node could not join with an invitation.
    NotAdmitted(JoinRefusal),
    /// A joiner waits for an approval: see [`Node::pending`].
    Waiting(KeyHash),
    /// This node is no longer a member.
    Removed,
}

/// A node of a mesh. See [the module](self).
pub struct Node {
    own: KeyHash,
    mesh: MeshId,
    key: SigningKey,
    admin: Option<SigningKey>,
    random: Random,
    base: (Instant, UnixTime),
    sessions: SessionEngine,
    /// The sessions' pending outputs.
    session_outputs: Outbox<session::Event>,
    changes: Changes,
    roster: Roster,
    sync: RosterSync,
    /// The sessions that may have roster records to send.
    unsent: BTreeSet<SessionNumber>,
    invitations: Invitations,
    joins: JoinCounters,
    responders: BTreeMap<SessionNumber, Responder>,
    peers: BTreeMap<KeyHash, Peer>,
    by_session: HashMap<SessionNumber, KeyHash>,
    by_channel: HashMap<PeerId, KeyHash>,
    by_tag: HashMap<Tag, KeyHash>,
    finder_timers: BTreeSet<(Instant, KeyHash)>,
    standing: BTreeSet<KeyHash>,
    relayed: RelayedLinks,
    relaying: Relaying,
    freshness: Freshness,
    limits: Limits,
    pings: Pings,
    policies: Policies,
    /// The server for OpenVPN apps, while this node serves them.
    apps: Option<Apps>,
    /// The member that gets the packets for all other destinations.
    exit: Option<KeyHash>,
    endpoints: Endpoints,
    hints: BTreeMap<KeyHash, Vec<SocketAddr>>,
    streams: Streams,
    /// The sockets of further channels.
    channel_sockets: Vec<SocketId>,
    own_addresses: Vec<SocketAddr>,
    mapped_addresses: Vec<SocketAddr>,
    nat: NatObserver,
    own_endpoint: Option<Endpoint>,
    endpoint_at: Option<Instant>,
    punch_budget: Arc<PunchBudget>,
    next_tick: Instant,
    next_compare: Instant,
    /// When the next membership of a node or an app ends.
    next_expiry: Option<UnixTime>,
    /// The hour for which the current neighbours were chosen.
    neighbours_of: Option<u64>,
    retry_at: Option<Instant>,
    has_begun: bool,
    is_removed: bool,
    counters: NodeCounters,
}

impl Node {
    /// Creates a node. It starts to connect to its neighbours with the first input.
    ///
    /// # Errors
    /// The cryptographic library failed.
    pub fn new(
        config: NodeConfig,
        seed: impl Into<Seed>,
        now: Instant,
        unix: UnixTime,
    ) -> Result<Self, Reason> {
        let mut random = Random::new(seed);
        let mesh = *config.changes.mesh();
        let copy = SigningKey::from_seed(config.key.seed()).map_err(adit_openvpn::Reason::from)?;
        let ethernet = config.changes.genesis().layer == Layer::Ethernet;
        let policy = Policy { ethernet, ..config.policy };
        let session_config = SessionConfig { key: copy, mesh, policy, ids: relaying::MEMBER_IDS };
        let sessions = SessionEngine::new(session_config, random.bytes::<32>(), now, unix)?;
        let mut endpoints = Endpoints::default();
        for bytes in &config.endpoints {
            if let Ok(endpoint) = Endpoint::decode(&mesh, bytes)
                && endpoints.is_newer(&endpoint)
            {
                endpoints.put(endpoint, |_| false);
            }
        }
        let mut node = Self {
            own: sessions.key_hash(),
            mesh,
            key: config.key,
            admin: config.admin,
            random,
            base: (now, unix),
            sessions,
            session_outputs: Outbox::new(),
            roster: Roster::evaluate(&config.changes),
            changes: config.changes,
            sync: RosterSync::default(),
            unsent: BTreeSet::new(),
            invitations: config.invitations,
            joins: JoinCounters::default(),
            responders: BTreeMap::new(),
            peers: BTreeMap::new(),
            by_session: HashMap::new(),
            by_channel: HashMap::new(),
            by_tag: HashMap::new(),
            finder_timers: BTreeSet::new(),
            standing: BTreeSet::new(),
            relayed: RelayedLinks::default(),
            relaying: Relaying::new(config.relay_limits),
            freshness: Freshness::new(config.compared, config.max_age, unix),
            limits: Limits::default(),
            pings: Pings::default(),
            policies: Policies::default(),
            apps: None,
            exit: None,
            endpoints,
            hints: config.hints.into_iter().collect(),
            streams: Streams::new(config.stream_hints),
            channel_sockets: Vec::new(),
            own_addresses: Vec::new(),
            mapped_addresses: Vec::new(),
            nat: NatObserver::new(Vec::new()),
            own_endpoint: None,
            endpoint_at: None,
            punch_budget: Arc::new(PunchBudget::default()),
            next_tick: now,
            next_compare: now + COMPARE,
            next_expiry: None,
            neighbours_of: None,
            retry_at: None,
            has_begun: false,
            is_removed: false,
            counters: NodeCounters::default(),
        };
        if let Some(text) = config.policy_text {
            node.policies.put(text, None);
        }
        node.sessions.set_ids(relaying::ids(node.is_relay(&node.own)));
        let members: Vec<KeyHash> = node.valid_members(now).collect();
        members.into_iter().for_each(|member| node.sessions.admit(member));
        node.set_next_expiry(now);
        Ok(node)
    }

    /// Returns the hash of the node's key.
    pub fn key_hash(&self) -> KeyHash {
        self.own
    }

    /// Returns the roster.
    pub fn roster(&self) -> &Roster {
        &self.roster
    }

    /// Returns the changes that make the roster.
    pub fn changes(&self) -> &Changes {
        &self.changes
    }

    /// Returns the invitations, to be kept across a restart.
    pub fn invitations(&self) -> &Invitations {
        &self.invitations
    }

    /// Returns the known endpoints, to be kept across a restart.
    pub fn endpoints(&self) -> Vec<Vec<u8>> {
        self.endpoints.iter().map(|endpoint| endpoint.encoded().to_vec()).collect()
    }

    /// Returns the number of sessions with other members.
    pub fn connections(&self) -> usize {
        self.by_session.len()
    }

    /// Ends all sessions.
    pub fn close(&mut self, now: Instant, out: &mut Out) {
        self.stop_apps(now, out);
        let sessions: Vec<SessionNumber> = self.by_session.keys().copied().collect();
        for number in sessions {
            self.sessions.disconnect(now, number, &mut self.session_outputs);
        }
        while let Some(output) = self.session_outputs.pop() {
            self.perform(now, output, out);
        }
    }

    /// Sets the wall clock.
    pub fn set_unix_time(&mut self, now: Instant, unix: UnixTime) {
        self.base = (now, unix);
        self.sessions.set_unix_time(now, unix);
        self.set_apps_unix_time(now, unix);
        self.freshness.clock_set(unix);
        self.next_compare = now;
        // Checks all members in the next tick, because the clock may have passed several ends in either direction.
        self.next_expiry = Some(UnixTime(0));
    }

    fn unix(&self, now: Instant) -> UnixTime {
        let (base, unix) = self.base;
        UnixTime(unix.0.saturating_add(now.since(base).as_secs()))
    }

    fn input(&mut self, now: Instant, input: Input<'_>, out: &mut Out) {
        if self.is_for_apps(&input) {
            return self.apps_input(now, input, out);
        }
        match input {
            Input::ControlPacket(link, packet) => match Probe::tag_of(packet) {
                Some(tag) => self.probe_arrived(now, tag, link, packet, out),
                None if link.socket().is_some_and(|it| self.channel_sockets.contains(&it)) => {
                    self.counters.unknown_probes = self.counters.unknown_probes.saturating_add(1);
                }
                None => {
                    let input = Input::ControlPacket(link, packet);
                    self.sessions.handle(now, input, &mut self.session_outputs);
                }
            },
            Input::Notice(Notice::Unrouted(address)) => self.unrouted(now, address, out),
            Input::Notice(notice) => {
                if let Notice::Traffic(channel, traffic) = &notice {
                    self.traffic(now, *channel, *traffic, out);
                }
                self.sessions.handle(now, Input::Notice(notice), &mut self.session_outputs);
            }
            Input::Tick => {}
            other => self.sessions.handle(now, other, &mut self.session_outputs),
        }
    }

    /// Does all work that is due.
    fn advance(&mut self, now: Instant, out: &mut Out) {
        if self.sessions.due().is_some_and(|at| at <= now) {
            self.sessions.handle(now, Input::Tick, &mut self.session_outputs);
        }
        if self.apps.as_ref().and_then(Apps::deadline).is_some_and(|(at, _)| at <= now) {
            self.apps_input(now, Input::Tick, out);
        }
        if self.next_tick <= now {
            self.next_tick = now + TICK;
            self.tick(now, out);
        }
        self.finders_due(now, out);
        if self.freshness.deadline().is_some_and(|at| at <= now) {
            self.update_trust(now, out);
        }
        loop {
            while let Some(output) = self.session_outputs.pop() {
                self.perform(now, output, out);
            }
            self.send_waiting(now);
            if self.session_outputs.is_empty() {
                break;
            }
        }
        self.dial_wanted(out);
    }

    fn tick(&mut self, now: Instant, out: &mut Out) {
        if !std::mem::replace(&mut self.has_begun, true) {
            out.plane(Command::LimitSplices(self.relaying.limits().in_all));
        }
        if self.next_compare <= now {
            self.next_compare = now + COMPARE;
            self.sync.compare();
            self.unsent.extend(self.by_session.keys());
        }
        if self.next_expiry.is_some_and(|end| end < self.unix(now)) {
            self.check_expiry(now, out);
        }
        self.choose_neighbours(now);
        self.watch_udp(now, out);
        self.end_lost(now);
        self.connect_due(now, out);
        self.announce_endpoint(now, out);
        self.fetch_policy(now);
        self.read_traffic();
        if self.freshness.has_timer() {
            self.update_trust(now, out);
        }
    }

    /// Performs an output of the sessions.
    fn perform(&mut self, now: Instant, output: Output<session::Event>, out: &mut Out) {
        match output {
            Output::Send(link, packet) => match self.relayed.way(link) {
                Some(way) => self.send_packet(now, way, packet),
                None => out.send(link, packet),
            },
            Output::Plane(command) => self.command(command, out),
            Output::Event(event) => self.session_event(now, event, out),
            Output::Hangup(link) => out.push(Output::Hangup(link)),
            // Mesh sessions dial no names, and identify their peers by the roster.
            Output::Dial(_) | Output::AuthRequest(..) => {}
        }
    }

    /// Passes a command to the data plane, with a relayed link replaced by the link to the relay.
    fn command(&mut self, command: Command, out: &mut Out) {
        let through = |node: &Self, link| {
            let way = node.relayed.way(link)?;
            node.first_channel(&way.relay)
        };
        match command {
            Command::AdmitLink(link) | Command::DismissLink(link)
                if self.relayed.way(link).is_some() => {}
            Command::AddPeer(channel, spec) => {
                let relay = through(self, spec.link);
                out.plane(Command::AddPeer(channel, spec));
                relay.into_iter().for_each(|relay| out.plane(Command::SetRelay(channel, relay)));
            }
            Command::SetLink(channel, link) if self.relayed.way(link).is_some() => {
                let relay = through(self, link);
                relay.into_iter().for_each(|relay| out.plane(Command::SetRelay(channel, relay)));
            }
            command => out.plane(command),
        }
    }

    /// Connects to the member that has an address, or a subnet that contains it.
    fn unrouted(&mut self, now: Instant, address: IpAddr, out: &mut Out) {
        let by_subnet = || {
            let contains = |net: &&ipnet::IpNet| net.contains(&address);
            let longest = |member: &crate::roster::Member| {
                member.subnets.iter().filter(contains).map(ipnet::IpNet::prefix_len).max()
            };
            let members =
                self.roster.members().filter_map(|member| Some((longest(member)?, member)));
            members.max_by_key(|(len, member)| (*len, member.key)).map(|(_, member)| member)
        };
        let member = self.roster.by_address(address).or_else(by_subnet);
        // A leaf is reached through its gateway.
        let way = member.map(|member| member.leaf_of.unwrap_or(member.key));
        if let Some(key) = way.or(self.exit) {
            self.connect(now, &key, out);
        }
    }

    /// Sends packets for all destinations outside the mesh to this member, which must be a gateway. With `None` they are dropped.
    pub fn set_exit(&mut self, exit: Option<KeyHash>, out: &mut Out) {
        let former = std::mem::replace(&mut self.exit, exit);
        if former != exit {
            former.iter().chain(&exit).for_each(|key| self.set_routes(key, out));
        }
    }
}

impl Engine for Node {
    type Event = NodeEvent;
    type Format = OpenVpn;

    fn handle(&mut self, now: Instant, input: Input<'_>, out: &mut Out) {
        self.input(now, input, out);
        self.advance(now, out);
    }

    fn deadline(&self) -> Option<(Instant, &'static str)> {
        let finders = self.finder_timers.first().map(|(at, _)| (*at, "paths"));
        let retry = self.retry_at.map(|at| (at, "records that wait"));
        let own = Some((self.next_tick, "the node's own work"));
        let apps = self.apps.as_ref().and_then(Apps::deadline);
        let check = self.freshness.deadline().map(|at| (at, "comparisons"));
        [self.sessions.deadline(), apps, finders, retry, own, check].into_iter().flatten().min()
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("peers", &self.peers).finish_non_exhaustive()
    }
}

/// For the fuzzer: decodes a member's record and an endpoint, and checks that encoding the results gives the same bytes.
#[doc(hidden)]
pub fn fuzz(bytes: &[u8]) {
    if let Ok(record) = record::Record::decode(bytes) {
        assert_eq!(*record.encode(), bytes);
    }
    if let Ok(endpoint) = Endpoint::decode(&[0; 16], bytes) {
        assert_eq!(endpoint.encoded(), bytes);
    }
}
