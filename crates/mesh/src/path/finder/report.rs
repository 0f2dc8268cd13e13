//! The explanation of the paths to a peer, as data for programs and as text for operators.

use std::fmt;
use std::net::SocketAddr;

use adit_engine::Instant;
use serde::Serialize;

use super::super::KeyHash;
use super::super::candidate::{Candidate, CandidateKind};
use super::super::nat::NatKind;
use super::path_state::{Origin, PathState};
use super::port_search::Stage;
use super::{PathCounters, PathFinder, Round, Route};

/// The paths to a peer: offered, tried, and in use. [`fmt::Display`] prints it as lines of text.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Report {
    /// The path that carries data.
    pub current: Option<PathReport>,
    /// The reason why data does not go directly, if it does not.
    pub relayed_because: Option<RelayReason>,
    /// The direct path that was lost last, unless another has replaced it.
    pub lost: Option<LostReport>,
    /// This node.
    pub own: NodeReport,
    /// The peer, once it has made an offer.
    pub peer: Option<NodeReport>,
    /// Every remembered path that was tried.
    pub paths: Vec<PathReport>,
    /// The last port search.
    pub port_search: Option<SearchReport>,
    /// The counters.
    pub counters: PathCounters,
}

/// A node in a [`Report`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NodeReport {
    /// The NAT in front of it.
    pub nat: NatReport,
    /// Its candidates.
    pub candidates: Vec<CandidateReport>,
}

/// A NAT in a [`Report`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct NatReport {
    /// The mapping behaviour.
    #[serde(flatten)]
    pub kind: NatKind,
    /// The addresses at which other nodes see the node.
    pub seen: Vec<SocketAddr>,
}

/// A candidate in a [`Report`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CandidateReport {
    /// The address.
    pub address: SocketAddr,
    /// The origin: own, mapped, observed, relay, tcp/443.
    pub kind: String,
}

/// A path in a [`Report`].
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PathReport {
    /// The route.
    #[serde(flatten)]
    pub route: RouteReport,
    /// Whether it answers.
    pub answers: bool,
    /// The number of probes.
    pub probes: u32,
    /// The round trip in milliseconds.
    pub rtt_ms: Option<f64>,
    /// The largest IP packet, once known.
    pub mtu: Option<u16>,
    /// The remaining probation after a loss, in seconds.
    pub probation_s: Option<u64>,
}

/// A route in a [`Report`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "via", rename_all = "snake_case")]
pub enum RouteReport {
    /// Datagrams to the peer.
    Direct {
        /// The peer's address.
        to: SocketAddr,
        /// The source of this address.
        origin: String,
    },
    /// A TCP connection to the peer.
    Stream {
        /// The peer's address.
        to: SocketAddr,
    },
    /// A relay.
    Relay {
        /// The relay's key hash in hexadecimal.
        relay: String,
        /// Whether the session with the relay runs over TCP.
        tcp: bool,
    },
}

/// A path that was lost, in a [`Report`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct LostReport {
    /// The peer's address.
    pub to: SocketAddr,
    /// The time since the loss, in seconds.
    pub seconds_ago: u64,
}

/// A port search in a [`Report`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SearchReport {
    /// The state.
    pub state: SearchState,
    /// The number of probes sent.
    pub probes: u32,
}

/// The state of a [`SearchReport`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum SearchState {
    /// The node has begun too many searches within a minute.
    Refused,
    /// It is in progress.
    Running,
    /// It has found a path.
    Found,
    /// It has ended without a path.
    NotFound,
}

/// The reason why no direct path carries data.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "reason", rename_all = "snake_case")]
pub enum RelayReason {
    /// No relay answers this node over UDP.
    OwnUdpBlocked,
    /// No relay answers the peer over UDP.
    PeerUdpBlocked,
    /// The peer has not answered an offer yet.
    NoOffer,
    /// A lost path answers again, but is still on probation.
    Probation {
        /// The peer's address.
        to: SocketAddr,
        /// The remaining probation in seconds.
        seconds: u64,
    },
    /// Probes have been sent and may still be answered.
    Probing,
    /// One node has only IPv6 addresses and the other has only IPv4 addresses.
    NoCommonFamily,
    /// Both ends are behind symmetric NAT.
    BothSymmetric {
        /// The addresses at which other nodes see this node.
        own: Vec<SocketAddr>,
        /// The addresses at which other nodes see the peer.
        peer: Vec<SocketAddr>,
    },
    /// One end is behind symmetric NAT, and the other end's NAT filters by port.
    OneSymmetric {
        /// Whether it is this node.
        own: bool,
        /// The addresses at which other nodes see the end behind symmetric NAT.
        seen: Vec<SocketAddr>,
        /// The port search.
        search: Option<SearchReport>,
    },
    /// No candidate answers although the NATs would allow it.
    NoAnswer,
}

impl Report {
    pub(super) fn new(finder: &PathFinder, now: Instant) -> Self {
        let path = |path: &PathState| PathReport::new(finder, path, now);
        let current = finder.current.and_then(|route| finder.path(route));
        let relayed = current.is_none_or(|path| !path.is_direct());
        let lost =
            finder.lost.map(|(to, at)| LostReport { to, seconds_ago: now.since(at).as_secs() });
        Self {
            current: current.map(path),
            relayed_because: relayed.then(|| RelayReason::new(finder, now)),
            lost,
            own: NodeReport::new(finder.nat.kind, &finder.nat.seen, &finder.candidates),
            peer: finder.remote.as_ref().map(|remote| {
                NodeReport::new(remote.nat, &observed(&remote.candidates), &remote.candidates)
            }),
            paths: finder.paths.iter().map(path).collect(),
            port_search: SearchReport::new(finder),
            counters: finder.counters,
        }
    }
}

impl NodeReport {
    fn new(kind: NatKind, seen: &[SocketAddr], candidates: &[Candidate]) -> Self {
        let report = |candidate: &Candidate| CandidateReport {
            address: candidate.address(),
            kind: candidate.kind().to_string(),
        };
        Self {
            nat: NatReport { kind, seen: seen.to_vec() },
            candidates: candidates.iter().map(report).collect(),
        }
    }
}

impl PathReport {
    fn new(finder: &PathFinder, path: &PathState, now: Instant) -> Self {
        let route = match path.route {
            Route::Direct { to, .. } => RouteReport::Direct { to, origin: path.origin.to_string() },
            Route::Stream { to, .. } => RouteReport::Stream { to },
            Route::Relay(relay) => RouteReport::Relay {
                relay: hex(&relay),
                tcp: finder.leg(relay).is_some_and(|leg| leg.stream),
            },
        };
        Self {
            route,
            answers: path.alive,
            probes: path.attempts,
            rtt_ms: path.rtt.map(|rtt| rtt.as_secs_f64() * 1000.0),
            mtu: path.mtu,
            probation_s: probation(path, now),
        }
    }
}

impl SearchReport {
    fn new(finder: &PathFinder) -> Option<Self> {
        let state = match finder.search.stage {
            Stage::None => return None,
            Stage::Refused => SearchState::Refused,
            Stage::Done { found: true } => SearchState::Found,
            Stage::Done { found: false } => SearchState::NotFound,
            Stage::Opening { .. } | Stage::Sockets { .. } | Stage::Guessing { .. } => {
                SearchState::Running
            }
        };
        Some(Self { state, probes: finder.search.tried })
    }
}

impl RelayReason {
    /// Returns the most specific reason that applies.
    fn new(finder: &PathFinder, now: Instant) -> Self {
        let own = finder.nat.kind;
        if own == NatKind::UdpBlocked {
            return Self::OwnUdpBlocked;
        }
        let Some(remote) = &finder.remote else { return Self::NoOffer };
        if remote.nat == NatKind::UdpBlocked {
            return Self::PeerUdpBlocked;
        }
        for path in &finder.paths {
            if let (Route::Direct { to, .. }, Some(seconds)) = (path.route, probation(path, now)) {
                return Self::Probation { to, seconds };
            }
        }
        if matches!(finder.round, Round::Punching { .. }) {
            return Self::Probing;
        }
        let has = |list: &[Candidate], ipv6: bool| {
            list.iter().any(|c| c.takes_datagrams() && c.address().is_ipv6() == ipv6)
        };
        let common = |ipv6| has(&finder.candidates, ipv6) && has(&remote.candidates, ipv6);
        if !common(false) && !common(true) {
            return Self::NoCommonFamily;
        }
        let (own_seen, peer_seen) = (finder.nat.seen.clone(), observed(&remote.candidates));
        let search = SearchReport::new(finder);
        match (own.is_symmetric(), remote.nat.is_symmetric()) {
            (true, true) => Self::BothSymmetric { own: own_seen, peer: peer_seen },
            (true, false) => Self::OneSymmetric { own: true, seen: own_seen, search },
            (false, true) => Self::OneSymmetric { own: false, seen: peer_seen, search },
            (false, false) => Self::NoAnswer,
        }
    }
}

fn probation(path: &PathState, now: Instant) -> Option<u64> {
    let until = path.held_until.filter(|until| path.alive && *until > now)?;
    Some(until.since(now).as_secs())
}

fn observed(candidates: &[Candidate]) -> Vec<SocketAddr> {
    let observed = candidates.iter().filter(|c| c.kind() == CandidateKind::Observed);
    observed.map(Candidate::address).collect()
}

fn hex(hash: &KeyHash) -> String {
    hash.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Observed addresses in the form "203.0.113.7 maps ports 40001, 40077".
struct Ports<'a>(&'a [SocketAddr]);

impl fmt::Display for Ports<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(first) = self.0.first() else { return f.write_str("no address observed") };
        let same_ip = self.0.iter().filter(|address| address.ip() == first.ip());
        let mut ports: Vec<u16> = same_ip.map(SocketAddr::port).collect();
        ports.sort_unstable();
        ports.dedup();
        let noun = if ports.len() == 1 { "port" } else { "ports" };
        let ports: Vec<String> = ports.iter().map(u16::to_string).collect();
        write!(f, "{} maps {noun} {}", first.ip(), ports.join(", "))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.current {
            Some(path) => writeln!(f, "current      {path}")?,
            None => writeln!(f, "current      none")?,
        }
        if let Some(reason) = &self.relayed_because {
            let is_stream = |path: &PathReport| matches!(path.route, RouteReport::Stream { .. });
            let what = if self.current.as_ref().is_some_and(is_stream) { "TCP" } else { "relayed" };
            writeln!(f, "{what:<12} {reason}")?;
        }
        if let Some(LostReport { to, seconds_ago }) = &self.lost {
            writeln!(f, "lost         direct to {to}, {seconds_ago} s ago")?;
        }
        write!(f, "this node    {}", self.own)?;
        match &self.peer {
            Some(peer) => write!(f, "peer         {peer}")?,
            None => writeln!(f, "peer         no offer yet")?,
        }
        let labels = std::iter::once("tried").chain(std::iter::repeat(""));
        for (path, label) in self.paths.iter().zip(labels) {
            writeln!(f, "{label:<12} {path}")?;
        }
        if let Some(search) = &self.port_search {
            writeln!(f, "port search  {search}")?;
        }
        Ok(())
    }
}

impl fmt::Display for NodeReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.nat.seen[..] {
            [] => writeln!(f, "{}", self.nat.kind)?,
            seen => writeln!(f, "{}: {}", self.nat.kind, Ports(seen))?,
        }
        for CandidateReport { address, kind } in &self.candidates {
            writeln!(f, "             {address} ({kind})")?;
        }
        Ok(())
    }
}

impl fmt::Display for PathReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.route)?;
        match self.rtt_ms {
            Some(rtt) if self.answers => write!(f, ", {rtt:.0} ms")?,
            None if self.answers => f.write_str(", not measured yet")?,
            _ => write!(f, ", no answer to {} probes", self.probes)?,
        }
        if let Some(mtu) = self.mtu {
            write!(f, ", MTU {mtu}")?;
        }
        if let Some(rest) = self.probation_s {
            write!(f, ", on probation for {rest} s")?;
        }
        Ok(())
    }
}

impl fmt::Display for RouteReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Direct { to, origin } => write!(f, "direct to {to} ({origin})"),
            Self::Stream { to } => write!(f, "TCP to {to}"),
            Self::Relay { relay, tcp } => {
                let short = relay.get(..8).unwrap_or(relay);
                write!(f, "relay {short}{}", if *tcp { " over TCP" } else { "" })
            }
        }
    }
}

impl fmt::Display for SearchReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.state {
            SearchState::Refused => f.write_str("refused: too many searches within a minute"),
            SearchState::Running => write!(f, "running: {} probes sent", self.probes),
            SearchState::Found => write!(f, "found a path with {} probes", self.probes),
            SearchState::NotFound => write!(f, "found no path with {} probes", self.probes),
        }
    }
}

impl fmt::Display for RelayReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::OwnUdpBlocked => f.write_str("UDP gets no answer from any relay"),
            Self::PeerUdpBlocked => f.write_str("the peer gets no answer over UDP"),
            Self::NoOffer => {
                f.write_str("the peer has not answered the offer of a direct path yet")
            }
            Self::Probation { to, seconds } => {
                write!(
                    f,
                    "the path to {to} was lost and answers again: {seconds} s of probation left"
                )
            }
            Self::Probing => f.write_str("probes for a direct path are in progress"),
            Self::NoCommonFamily => {
                f.write_str("one end has IPv6 addresses only and the other IPv4 addresses only")
            }
            Self::BothSymmetric { own, peer } => write!(
                f,
                "both ends are behind symmetric NAT: here {}; at the peer {}",
                Ports(own),
                Ports(peer)
            ),
            Self::OneSymmetric { own, seen, search } => {
                let end = if *own { "this node" } else { "the peer" };
                write!(f, "{end} is behind symmetric NAT: {}", Ports(seen))?;
                match search {
                    None => Ok(()),
                    Some(search) => write!(f, "; port search: {search}"),
                }
            }
            Self::NoAnswer => f.write_str(
                "no candidate answers: a firewall at one end may drop UDP between the two",
            ),
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Offered(kind) => write!(f, "{kind}"),
            Self::Reflexive => f.write_str("source of the peer's probes"),
            Self::PortSearch => f.write_str("port search"),
            Self::Session => f.write_str("address of the session"),
            Self::Relay => f.write_str("relay"),
        }
    }
}
