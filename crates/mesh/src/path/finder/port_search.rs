//! The search for a port of a symmetric NAT.
//!
//! A symmetric NAT assigns a different port for each destination, so the port that relays see is useless to a peer whose own NAT filters by
//! port. The node behind the symmetric NAT therefore opens many sockets, each of which gets a port towards the peer, and the peer guesses
//! ports until it hits one of them. With 256 of 64,512 ports open, 1,024 random guesses succeed with a probability of 98 %.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adit_engine::{Instant, Rate, SocketId, TokenBucket};

use super::super::candidate::{CandidateKind, is_private};
use super::super::nat::NatKind;
use super::super::probe::ProbeKind;
use super::{MAIN_SOCKET, Output, PathFinder, Route};

/// The number of sockets on the side of the symmetric NAT.
pub const SEARCH_SOCKETS: usize = 256;

/// The maximum number of ports that the other side tries.
pub const MAX_GUESSES: u32 = 1024;

/// The interval of the guesses: 100 a second.
const GUESS_INTERVAL: Duration = Duration::from_millis(10);

/// The number of ports after the last known one that are tried first, if the NAT assigns ports in sequence.
const PREDICTED: u32 = 512;

/// The lowest port to guess.
const FIRST_PORT: u16 = 1024;

/// The number of sockets that send probes in one batch.
const SOCKETS_AT_ONCE: usize = 32;

/// The interval between these batches.
const SOCKET_INTERVAL: Duration = Duration::from_millis(20);

/// The time after which the sockets send again, so a lost packet costs no mapping.
const REFRESH: Duration = Duration::from_secs(5);

/// The duration of a search: enough for all guesses even if the other side starts later.
const SEARCH: Duration = Duration::from_secs(13);

/// The minimum time between two searches with the same peer.
const REPEAT: Duration = Duration::from_secs(600);

/// The limit on a node's searches with all peers.
const SEARCH_RATE: Rate = Rate::new(4, Duration::from_secs(60));

/// The budget of a node for port searches. All of its peers share it.
#[derive(Debug, Default)]
pub struct PunchBudget(TokenBucket);

/// The state of the search with one peer.
#[derive(Debug, Default)]
pub(super) struct PortSearch {
    pub(super) stage: Stage,
    began: Instant,
    /// The address of the peer's NAT.
    peer: Option<IpAddr>,
    /// Whether sockets of this search may be open.
    sockets_open: bool,
    /// The number of probes sent.
    pub(super) tried: u32,
}

/// The stage of a [`PortSearch`].
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// There has been no search.
    #[default]
    None,
    /// The node's budget did not allow it.
    Refused,
    /// The node is opening sockets.
    Opening { target: SocketAddr, until: Instant },
    /// The node sends probes from many sockets.
    Sockets { target: SocketAddr, sockets: Vec<SocketId>, next: usize, at: Instant, until: Instant },
    /// The node guesses ports, first those after a known one if the NAT assigns them in sequence.
    Guessing { ip: IpAddr, after: Option<u16>, at: Instant, until: Instant },
    /// The search has ended.
    Done { found: bool },
}

impl Stage {
    /// Returns the end of a search that is in progress.
    fn until(&self) -> Option<Instant> {
        match self {
            Self::Opening { until, .. }
            | Self::Sockets { until, .. }
            | Self::Guessing { until, .. } => Some(*until),
            Self::None | Self::Refused | Self::Done { .. } => None,
        }
    }
}

impl PortSearch {
    pub(super) fn due(&self) -> Option<Instant> {
        let until = self.stage.until()?;
        match &self.stage {
            Stage::Sockets { at, .. } => Some(until.min(*at)),
            Stage::Guessing { at, .. } if self.tried < MAX_GUESSES => Some(until.min(*at)),
            _ => Some(until),
        }
    }
}

impl PathFinder {
    /// Begins a search if exactly one side is behind a symmetric NAT.
    pub(super) fn begin_search(&mut self, now: Instant, out: &mut Vec<Output>) {
        let Some(remote) = &self.remote else { return };
        let (own, peer) = (self.nat.kind, remote.nat);
        let blocked = own == NatKind::UdpBlocked || peer == NatKind::UdpBlocked;
        if own.is_symmetric() == peer.is_symmetric() || blocked {
            return;
        }
        let public = |kind: CandidateKind| {
            let mut candidates = remote.candidates.iter().rev();
            let found = candidates.find(|candidate| {
                let ip = candidate.address().ip();
                candidate.kind() == kind && ip.is_ipv4() && !is_private(ip)
            });
            found.map(|candidate| candidate.address())
        };
        let target = public(CandidateKind::Mapped)
            .or_else(|| public(CandidateKind::Observed))
            .or_else(|| public(CandidateKind::Own));
        let Some(target) = target.filter(|target| self.may_search(now, target.ip())) else {
            return;
        };
        let observed = remote.candidates.iter().filter(|c| c.kind() == CandidateKind::Observed);
        let highest = observed.map(|candidate| candidate.address().port()).max();
        let after = highest.filter(|_| peer == NatKind::Symmetric { sequential: true });
        // The socket that an earlier search kept is no longer needed.
        self.close_search(None, out);
        self.search = PortSearch { began: now, peer: Some(target.ip()), ..PortSearch::default() };
        let until = now + SEARCH;
        if self.budget.0.take_whole(now, SEARCH_RATE).is_err() {
            self.counters.limited += 1;
            self.search.stage = Stage::Refused;
        } else if own.is_symmetric() {
            self.search.stage = Stage::Opening { target, until };
            self.search.sockets_open = true;
            out.push(Output::OpenSockets(SEARCH_SOCKETS));
        } else {
            self.search.stage = Stage::Guessing { ip: target.ip(), after, at: now, until };
        }
    }

    /// Returns whether a search is allowed: once for each address of the peer, and again after the path that it found was lost.
    fn may_search(&self, now: Instant, peer: IpAddr) -> bool {
        match self.search.stage {
            _ if self.search.peer != Some(peer) => true,
            Stage::None | Stage::Refused => true,
            Stage::Done { found } => found && now.since(self.search.began) >= REPEAT,
            Stage::Opening { .. } | Stage::Sockets { .. } | Stage::Guessing { .. } => false,
        }
    }

    pub(super) fn on_sockets(
        &mut self,
        now: Instant,
        mut sockets: Vec<SocketId>,
        out: &mut Vec<Output>,
    ) {
        let Stage::Opening { target, until } = self.search.stage else {
            // These sockets are too late.
            out.push(Output::CloseSockets { keep: None });
            return;
        };
        sockets.truncate(SEARCH_SOCKETS);
        self.search.stage = Stage::Sockets { target, sockets, next: 0, at: now, until };
    }

    pub(super) fn advance_search(&mut self, now: Instant, out: &mut Vec<Output>) {
        while self.search.due().is_some_and(|at| at <= now) {
            if self.search.stage.until().is_some_and(|until| until <= now) {
                let alive = self.paths.iter().filter(|path| path.alive).map(|path| path.route);
                let mut found: Vec<Route> =
                    alive.filter(|it| it.search_socket().is_some()).collect();
                found.sort_by_key(|route| Some(*route) != self.current);
                let found = found.first().and_then(|route| route.search_socket());
                return self.close_search(found, out);
            }
            match &mut self.search.stage {
                Stage::Sockets { target, sockets, next, at, .. } => {
                    let to = *target;
                    let turn: Vec<SocketId> =
                        sockets.iter().skip(*next).take(SOCKETS_AT_ONCE).copied().collect();
                    *next += SOCKETS_AT_ONCE;
                    *at = now + SOCKET_INTERVAL;
                    if *next >= sockets.len() {
                        *next = 0;
                        *at = now + REFRESH;
                    }
                    for socket in turn {
                        self.search.tried += 1;
                        let route = Route::Direct { socket, to };
                        self.send_probe(now, route, ProbeKind::Probe, out);
                    }
                }
                Stage::Guessing { ip, after, at, .. } => {
                    let (ip, after) = (*ip, *after);
                    *at = now + GUESS_INTERVAL;
                    let to = SocketAddr::new(ip, self.guess(after));
                    self.search.tried += 1;
                    let route = Route::Direct { socket: MAIN_SOCKET, to };
                    self.send_probe(now, route, ProbeKind::Probe, out);
                }
                Stage::Opening { .. } | Stage::None | Stage::Refused | Stage::Done { .. } => return,
            }
        }
    }

    /// Ends any search, and closes its sockets except the one that found a path.
    pub(super) fn close_search(&mut self, keep: Option<SocketId>, out: &mut Vec<Output>) {
        if self.search.stage.until().is_some() {
            let found = self.paths.iter().any(|path| path.is_direct() && path.alive);
            self.search.stage = Stage::Done { found };
        }
        if !self.search.sockets_open {
            return;
        }
        let keep = keep.filter(|socket| *socket != MAIN_SOCKET);
        self.search.sockets_open = keep.is_some();
        out.push(Output::CloseSockets { keep });
        let closed = |route: Route| route.search_socket().is_some_and(|of| Some(of) != keep);
        self.paths.retain(|path| !closed(path.route));
        self.outstanding.retain(|_, waiting| !closed(waiting.route));
    }

    /// Returns the next port to try.
    fn guess(&mut self, after: Option<u16>) -> u16 {
        let ports = u32::from(u16::MAX - FIRST_PORT) + 1;
        let offset = match after {
            Some(after) if self.search.tried < PREDICTED => {
                let after = u32::from(after.saturating_sub(FIRST_PORT));
                (after + 1 + self.search.tried) % ports
            }
            _ => self.random.below(ports),
        };
        FIRST_PORT.saturating_add(u16::try_from(offset).unwrap_or_default())
    }
}

impl Route {
    /// Returns the socket of a path that a port search at this end found.
    pub(super) fn search_socket(self) -> Option<SocketId> {
        match self {
            Self::Direct { socket, .. } => (socket != MAIN_SOCKET).then_some(socket),
            Self::Stream { .. } | Self::Relay(_) => None,
        }
    }
}
