//! The search for a direct path to one peer, and the choice of the path that carries data.
//!
//! ```text
//!   relay at once ──► offers both ways ──► probes at the same time ──► a path answers ──► it carries data
//!                                                    │                                        │
//!                          one side symmetric: search for its port                three probes lost: relay
//! ```
//!
//! The finder is sans-IO: [`PathFinder::handle`] takes time and messages and appends [`Output`]s, and [`PathFinder::deadline`] says when to
//! call again. Keys are not tied to paths, so a change of path never ends a session.

mod channel_ports;
mod choice;
mod mtu;
mod offers;
mod path_state;
mod port_search;
mod probing;
mod report;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use adit_engine::{Instant, Random, SocketId, TokenBucket};
use zeroize::Zeroizing;

use self::channel_ports::ChannelPorts;
use self::offers::{Remote, Round};
use self::path_state::{Origin, PathState};
use self::port_search::PortSearch;
pub use self::port_search::{MAX_GUESSES, PunchBudget, SEARCH_SOCKETS};
use self::probing::Outstanding;
pub use self::report::{
    CandidateReport, LostReport, NatReport, NodeReport, PathReport, RelayReason, Report,
    RouteReport, SearchReport, SearchState,
};
use super::KeyHash;
use super::candidate::{Candidate, CandidateKind, MAX_CANDIDATES};
use super::nat::{NatInfo, NatKind};
use super::probe::Tag;
use super::record::Record;

/// The socket from which the node sends to all of its peers.
pub const MAIN_SOCKET: SocketId = SocketId(0);

/// The maximum number of remembered paths to one peer.
pub const MAX_PATHS: usize = 32;

/// The maximum number of relays that serve one peer.
pub const MAX_RELAYS: usize = 4;

/// The time after the last packet to the peer during which its path is checked often.
const ACTIVE: Duration = Duration::from_secs(10);

/// A way to the peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// Datagrams from one of the node's sockets to an address.
    Direct {
        /// The socket.
        socket: SocketId,
        /// The peer's address.
        to: SocketAddr,
    },
    /// A TCP connection to the peer.
    Stream {
        /// The driver's id of the connection.
        id: u64,
        /// The peer's address.
        to: SocketAddr,
    },
    /// Through a relay.
    Relay(KeyHash),
}

/// The node's session with a relay that also serves the peer.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct RelayLeg {
    /// The relay.
    pub relay: KeyHash,
    /// Whether the session runs over TCP.
    pub stream: bool,
    /// The round trip to the relay.
    pub rtt: Duration,
    /// The largest packet that both legs carry.
    pub mtu: u16,
}

/// An input of a [`PathFinder`].
#[derive(Clone, Debug)]
pub enum Input<'a> {
    /// Time has passed.
    Tick,
    /// The node's own addresses and its NAT, at the beginning and after each change.
    Local {
        /// The candidates. If there are more than [`MAX_CANDIDATES`], addresses of interfaces are left out first.
        candidates: Vec<Candidate>,
        /// The NAT.
        nat: NatInfo,
    },
    /// The relays that serve both nodes, best first, at the beginning and after each change.
    Relays(Vec<RelayLeg>),
    /// A session with the peer was established over this direct path.
    Established {
        /// The socket.
        socket: SocketId,
        /// The peer's address.
        to: SocketAddr,
    },
    /// A session with the peer was established over this connection.
    EstablishedStream {
        /// The driver's id of the connection.
        id: u64,
        /// The other end's address.
        to: SocketAddr,
    },
    /// A record arrived in a session.
    Record {
        /// The authenticated sender.
        from: KeyHash,
        /// The relay that forwarded it; `None` if it arrived in the peer's own session.
        via: Option<KeyHash>,
        /// The record.
        bytes: &'a [u8],
    },
    /// A datagram that looks like a probe arrived.
    Datagram {
        /// The socket.
        socket: SocketId,
        /// The source address.
        from: SocketAddr,
        /// The destination address, if the socket has more than one.
        local: Option<IpAddr>,
        /// The datagram.
        bytes: &'a [u8],
    },
    /// Data for the peer was sent since the last such input, or waits for a path; pass this about twice a second. The first one starts the
    /// search: data goes through the first relay, and the node offers its addresses to the peer.
    DataSent,
    /// The answer to [`Output::OpenSockets`]; empty if they could not be opened.
    SocketsOpened(Vec<SocketId>),
    /// A session with the peer was established through this relay.
    EstablishedRelay(KeyHash),
    /// A probe arrived on the connection of a session.
    StreamData {
        /// The driver's id of the connection.
        id: u64,
        /// The other end's address.
        from: SocketAddr,
        /// The probe.
        bytes: &'a [u8],
    },
    /// The connection with this id ended.
    StreamDown(u64),
    /// The sockets of the further channels of the session that was just established, each with its own port.
    ChannelPorts(Vec<SocketId>),
}

/// An action that a [`PathFinder`] requests.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send a record to the peer, through a relay or in the peer's own session.
    SendRecord {
        /// The relay.
        via: Option<KeyHash>,
        /// The record.
        bytes: Vec<u8>,
    },
    /// Send a probe over a direct path or a connection, with DF set.
    SendProbe {
        /// The path.
        route: Route,
        /// The source address. Only an echo has one: the address at which its probe arrived.
        local: Option<IpAddr>,
        /// The probe.
        bytes: Vec<u8>,
    },
    /// Send data to the peer over this route from now on.
    UsePath(Route),
    /// The largest IP packet that a route carries has changed.
    SetMtu {
        /// The route.
        route: Route,
        /// The size of the IP packet.
        mtu: u16,
    },
    /// Open this many sockets and report them with [`Input::SocketsOpened`].
    OpenSockets(usize),
    /// Close the sockets of [`Output::OpenSockets`], except for one that carries data.
    CloseSockets {
        /// The socket to keep.
        keep: Option<SocketId>,
    },
    /// Report to [`super::NatObserver`] that the peer sees the main socket at this address.
    Observed(SocketAddr),
    /// Send a further channel of the session from another socket, to the same address as the first channel.
    UsePort {
        /// The number of the channel; the first one is 0.
        channel: usize,
        /// The socket, or `None` for that of the first channel.
        socket: Option<SocketId>,
    },
}

/// The counters of a [`PathFinder`].
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct PathCounters {
    /// Probes sent, of any kind.
    pub probes: u64,
    /// Echoes that matched a probe.
    pub echoes: u64,
    /// Changes of the path that carries data.
    pub switches: u64,
    /// Records that did not decode.
    pub malformed: u64,
    /// Records and offers from a node other than the peer.
    pub wrong_sender: u64,
    /// Offers with a sequence number or a tag that was used before.
    pub replayed_offers: u64,
    /// Offers, probes and sockets beyond a limit.
    pub limited: u64,
    /// Probes that were not authentic, or arrived before the peer's offer.
    pub not_authentic: u64,
    /// Probes that arrived twice.
    pub replayed_probes: u64,
    /// Echoes that no waiting probe matches.
    pub unknown_echoes: u64,
    /// Echoes with the number of a probe but different random bytes.
    pub wrong_nonces: u64,
    /// Echoes from an address other than the probe's destination.
    pub wrong_addresses: u64,
}

/// The paths to one peer.
///
/// ```
/// use std::sync::Arc;
/// use std::time::Duration;
///
/// use adit_engine::{Instant, Random};
/// use adit_mesh::path::{Input, Output, PathFinder, PunchBudget, RelayLeg, RelayReason, Route};
///
/// let (own, peer, relay) = ([1; 32], [2; 32], [3; 32]);
/// let budget = Arc::new(PunchBudget::default());
/// let mut finder = PathFinder::new(own, peer, Random::new([0; 32]), budget);
/// let leg = RelayLeg { relay, stream: false, rtt: Duration::from_millis(20), mtu: 1400 };
/// let now = Instant::from_nanos(1_000_000_000);
/// let mut out = Vec::new();
/// finder.handle(now, Input::Relays(vec![leg]), &mut out);
/// finder.handle(now, Input::DataSent, &mut out);
///
/// // An offer to the peer, and the first path.
/// let route = Route::Relay(relay);
/// let [offer, mtu, path] = &out[..] else { panic!("{out:?}") };
/// assert!(matches!(offer, Output::SendRecord { via: Some(_), .. }));
/// assert_eq!(*mtu, Output::SetMtu { route, mtu: 1400 });
/// assert_eq!(*path, Output::UsePath(route));
///
/// // Without an answer, the offer is repeated.
/// assert_eq!(finder.deadline(), Some((now + Duration::from_secs(1), "offers and probes of a round")));
/// assert_eq!(finder.report(now).relayed_because, Some(RelayReason::NoOffer));
/// ```
#[derive(Debug)]
pub struct PathFinder {
    own: KeyHash,
    peer: KeyHash,
    random: Random,
    /// Shared by all peers of the node.
    budget: Arc<PunchBudget>,
    tag: Tag,
    secret: Zeroizing<[u8; 32]>,
    candidates: Vec<Candidate>,
    nat: NatInfo,
    legs: Vec<RelayLeg>,
    remote: Option<Remote>,
    /// The peer's tags before its last restarts.
    former_tags: VecDeque<Tag>,
    last_sequence: u64,
    round: Round,
    failed_rounds: u32,
    offers: TokenBucket,
    echoes: TokenBucket,
    paths: Vec<PathState>,
    current: Option<Route>,
    /// The time when it was chosen.
    current_since: Instant,
    /// Until this time a better path takes over at once.
    settle_until: Instant,
    data_sent_at: Option<Instant>,
    /// Probes that wait for an echo, by number.
    outstanding: BTreeMap<u64, Outstanding>,
    last_number: u64,
    search: PortSearch,
    channel_ports: ChannelPorts,
    /// The direct path that was lost last, and when.
    lost: Option<(SocketAddr, Instant)>,
    counters: PathCounters,
}

impl PathFinder {
    /// Creates a finder of paths between two nodes.
    pub fn new(own: KeyHash, peer: KeyHash, mut random: Random, budget: Arc<PunchBudget>) -> Self {
        let tag = Tag(random.bytes());
        let secret = Zeroizing::new(random.bytes());
        Self {
            own,
            peer,
            random,
            budget,
            tag,
            secret,
            candidates: Vec::new(),
            nat: NatInfo::default(),
            legs: Vec::new(),
            remote: None,
            former_tags: VecDeque::new(),
            last_sequence: 0,
            round: Round::Idle { again: None },
            failed_rounds: 0,
            offers: TokenBucket::new(),
            echoes: TokenBucket::new(),
            paths: Vec::new(),
            current: None,
            current_since: Instant::default(),
            settle_until: Instant::default(),
            data_sent_at: None,
            outstanding: BTreeMap::new(),
            last_number: 0,
            search: PortSearch::default(),
            channel_ports: ChannelPorts::default(),
            lost: None,
            counters: PathCounters::default(),
        }
    }

    /// Returns the tag of probes for this finder, by which the caller finds it: see [`super::Probe::tag_of`].
    pub fn tag(&self) -> Tag {
        self.tag
    }

    /// Handles one input and appends its outputs in the order in which they must be performed.
    pub fn handle(&mut self, now: Instant, input: Input<'_>, out: &mut Vec<Output>) {
        match input {
            Input::Tick => {}
            Input::Local { candidates, nat } => self.set_local(now, candidates, nat, out),
            Input::Relays(legs) => self.set_relays(now, legs),
            Input::Established { socket, to } => {
                self.on_established(now, Route::Direct { socket, to });
            }
            Input::ChannelPorts(sockets) => self.set_channel_ports(now, sockets),
            Input::EstablishedRelay(relay) => {
                if let Some(path) = self.path_mut(Route::Relay(relay)) {
                    path.revive();
                }
            }
            Input::EstablishedStream { id, to } => {
                self.on_established(now, Route::Stream { id, to });
            }
            Input::Record { from, via, bytes } => self.on_record(now, from, via, bytes, out),
            Input::Datagram { socket, from, local, bytes } => {
                let from = SocketAddr::new(from.ip().to_canonical(), from.port());
                self.on_probe(now, Route::Direct { socket, to: from }, local, bytes, out);
            }
            Input::DataSent => self.on_data_sent(now, out),
            Input::SocketsOpened(sockets) => self.on_sockets(now, sockets, out),
            Input::StreamData { id, from, bytes } => {
                self.on_probe(now, Route::Stream { id, to: from }, None, bytes, out);
            }
            Input::StreamDown(id) => {
                let is_it = |route| matches!(route, Route::Stream { id: of, .. } if of == id);
                self.paths.retain(|path| !is_it(path.route));
                self.current = self.current.filter(|route| !is_it(*route));
            }
        }
        self.advance(now, out);
    }

    /// Returns when to call again with [`Input::Tick`], and why.
    pub fn deadline(&self) -> Option<(Instant, &'static str)> {
        let probes = self.paths.iter().filter_map(|path| self.path_due(path));
        let mtu = self.paths.iter().filter_map(|path| self.mtu_due(path));
        let held = self.paths.iter().filter(|path| path.alive).filter_map(|path| path.held_until);
        let deadlines = [
            (self.round_due(), "offers and probes of a round"),
            (probes.min(), "the check of a path"),
            (mtu.min(), "the path MTU"),
            (held.min(), "the end of a path's probation"),
            (self.search.due(), "the search for a port"),
            (self.channel_ports_due(), "the ports of channels"),
        ];
        deadlines.into_iter().filter_map(|(at, reason)| Some((at?, reason))).min()
    }

    /// Returns the route that carries data.
    pub fn current(&self) -> Option<Route> {
        self.current
    }

    /// Returns for how long no path has answered a probe, if the path that carries data is lost.
    pub fn lost_for(&self, now: Instant) -> Option<Duration> {
        let current = self.path(self.current?)?;
        let since = current.lost_since();
        let since = since.filter(|_| self.paths.iter().all(|path| !path.alive));
        // A path without an answer may just have been chosen because the previous one is gone.
        since.map(|at| now.since(at.max(self.current_since)))
    }

    /// Returns the round trip of the route that carries data, if it has been measured.
    pub fn current_rtt(&self) -> Option<Duration> {
        self.path(self.current?)?.rtt
    }

    /// Returns the counters.
    pub fn counters(&self) -> PathCounters {
        self.counters
    }

    /// Explains the state of the paths to an operator.
    pub fn report(&self, now: Instant) -> Report {
        Report::new(self, now)
    }

    /// Performs everything that is due.
    fn advance(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.expire_probes(now);
        self.check_paths(now, out);
        self.advance_round(now, out);
        self.advance_search(now, out);
        self.select(now, out);
        self.advance_channel_ports(now, out);
        self.advance_mtu(now, out);
    }

    fn set_local(
        &mut self,
        now: Instant,
        mut candidates: Vec<Candidate>,
        nat: NatInfo,
        out: &mut Vec<Output>,
    ) {
        let own = |candidate: &&Candidate| candidate.kind() == CandidateKind::Own;
        // A host with containers has many interfaces, few of which are of use to another host.
        candidates.sort_unstable_by_key(|candidate| {
            let own = candidate.kind() == CandidateKind::Own;
            (own, candidate.address().is_ipv4(), *candidate)
        });
        candidates.dedup();
        candidates.truncate(MAX_CANDIDATES);
        let gone = self.candidates.iter().filter(own).any(|old| !candidates.contains(old));
        let changed = self.nat.kind != nat.kind
            || !reachable_at(&self.candidates, nat.kind).eq(reachable_at(&candidates, nat.kind));
        self.candidates = candidates;
        self.nat = nat;
        if gone {
            self.restart(now, out);
        } else if changed && self.is_in_use() {
            self.ask_soon(now);
        }
    }

    /// Returns to a relay and searches again, after a change of the network.
    fn restart(&mut self, now: Instant, out: &mut Vec<Output>) {
        self.paths.retain(|path| !path.is_direct());
        self.outstanding.clear();
        self.failed_rounds = 0;
        self.lost = None;
        self.close_search(None, out);
        self.search = PortSearch::default();
        if self.is_in_use() {
            self.select(now, out);
            self.ask(now, out);
            // The answer may go to the former address until the peer sees a probe from the new one.
            self.probe_candidates(now, out);
        }
    }

    fn set_relays(&mut self, now: Instant, mut legs: Vec<RelayLeg>) {
        legs.truncate(MAX_RELAYS);
        let is_leg = |route: &Route| match route {
            Route::Relay(relay) => legs.iter().any(|leg| leg.relay == *relay),
            _ => true,
        };
        self.paths.retain(|path| is_leg(&path.route));
        for leg in &legs {
            let route = Route::Relay(leg.relay);
            if !self.paths.iter().any(|path| path.route == route) {
                let mut path = PathState::new(now, route, Origin::Relay);
                path.alive = true;
                self.paths.push(path);
            }
        }
        self.legs = legs;
    }

    fn on_record(
        &mut self,
        now: Instant,
        from: KeyHash,
        via: Option<KeyHash>,
        bytes: &[u8],
        out: &mut Vec<Output>,
    ) {
        let Ok(record) = Record::decode(bytes) else {
            self.counters.malformed += 1;
            return;
        };
        if from != self.peer {
            self.counters.wrong_sender += 1;
            return;
        }
        match record {
            Record::Offer(offer) => self.on_offer(now, via, *offer, out),
            Record::Observed(address) => out.push(Output::Observed(address)),
            Record::Probe(probe) => {
                if let Some(relay) = via {
                    self.on_probe(now, Route::Relay(relay), None, &probe, out);
                }
            }
        }
    }

    fn on_data_sent(&mut self, now: Instant, out: &mut Vec<Output>) {
        let was_active = self.is_active(now);
        let first = self.data_sent_at.replace(now).is_none();
        if first && self.remote.is_none() {
            self.ask(now, out);
        }
        // An idle path is checked rarely, so its loss may not have been noticed.
        if !was_active && let Some(path) = self.current.and_then(|route| self.path_mut(route)) {
            path.probe_at = now;
        }
        if !was_active {
            self.recheck_channel_ports(now);
        }
    }

    fn on_established(&mut self, now: Instant, route: Route) {
        if self.add_path(now, route, Origin::Session)
            && let Some(path) = self.path_mut(route)
        {
            path.revive();
        }
    }

    /// Returns whether either node has begun to use the paths.
    fn is_in_use(&self) -> bool {
        self.data_sent_at.is_some() || self.remote.is_some()
    }

    fn is_active(&self, now: Instant) -> bool {
        self.data_sent_at.is_some_and(|at| now.since(at) < ACTIVE)
    }

    fn path_mut(&mut self, route: Route) -> Option<&mut PathState> {
        self.paths.iter_mut().find(|path| path.route == route)
    }

    fn path(&self, route: Route) -> Option<&PathState> {
        self.paths.iter().find(|path| path.route == route)
    }

    fn leg(&self, relay: KeyHash) -> Option<&RelayLeg> {
        self.legs.iter().find(|leg| leg.relay == relay)
    }
}

/// Returns the candidates at which another node may reach this one. A symmetric NAT opens a different port for each node, so observed ports
/// are useless to others.
fn reachable_at(candidates: &[Candidate], nat: NatKind) -> impl Iterator<Item = &Candidate> {
    let is_symmetric = nat.is_symmetric();
    candidates
        .iter()
        .filter(move |candidate| !is_symmetric || candidate.kind() != CandidateKind::Observed)
}
