//! The NAT in front of a node, inferred from the addresses at which other nodes see it (RFC 4787, RFC 5780).

use std::fmt;
use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::Instant;

use super::KeyHash;

/// The maximum number of recorded observers. The one that was confirmed longest ago is evicted, but not within `CONFIRMED`. Otherwise the
/// known addresses of a node with more peers would change all the time.
pub const MAX_OBSERVERS: usize = 8;

/// The time after which an observation expires. Many NATs drop a mapping earlier.
const OBSERVATION_LIFETIME: Duration = Duration::from_secs(600);

/// How long an observation counts as confirmed: two intervals of the probes that keep a path open.
const CONFIRMED: Duration = Duration::from_secs(60);

/// Ports of one NAT that are at most this far apart count as sequential.
const SEQUENTIAL_STEP: u16 = 64;

/// The mapping behaviour of a NAT, as far as it decides which paths are possible.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Hash, serde::Serialize)]
#[serde(tag = "nat", rename_all = "snake_case")]
pub enum NatKind {
    /// Fewer than two nodes have reported an address.
    #[default]
    Unknown,
    /// Other nodes see one of the node's own addresses.
    None,
    /// All nodes see the same address.
    EndpointIndependent,
    /// Each destination sees a different port.
    Symmetric {
        /// Each destination sees a different port, assigned in sequence.
        sequential: bool,
    },
    /// UDP does not leave the node's network.
    UdpBlocked,
}

/// The known properties of the NAT in front of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NatInfo {
    /// The mapping behaviour.
    pub kind: NatKind,
    /// The addresses where other nodes see the node, in the order of their first appearance.
    pub seen: Vec<SocketAddr>,
}

/// The observations of one socket by other nodes.
#[derive(Debug)]
pub struct NatObserver {
    /// The addresses that the socket has on its own machine.
    own: Vec<SocketAddr>,
    /// The latest observation of each observer, in the order of their first appearance.
    observations: Vec<Observation>,
    udp_blocked: bool,
}

#[derive(Copy, Clone, Debug)]
struct Observation {
    observer: KeyHash,
    seen: SocketAddr,
    at: Instant,
}

impl NatKind {
    /// Returns whether each destination sees a different port.
    pub fn is_symmetric(self) -> bool {
        matches!(self, Self::Symmetric { .. })
    }

    pub(super) fn to_wire(self) -> u8 {
        match self {
            Self::Unknown => 0,
            Self::None => 1,
            Self::EndpointIndependent => 2,
            Self::Symmetric { sequential: false } => 3,
            Self::Symmetric { sequential: true } => 4,
            Self::UdpBlocked => 5,
        }
    }

    pub(super) fn from_wire(value: u8) -> Option<Self> {
        Some(match value {
            0 => Self::Unknown,
            1 => Self::None,
            2 => Self::EndpointIndependent,
            3 => Self::Symmetric { sequential: false },
            4 => Self::Symmetric { sequential: true },
            5 => Self::UdpBlocked,
            _ => return None,
        })
    }
}

impl fmt::Display for NatKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Unknown => "NAT not known yet",
            Self::None => "no NAT",
            Self::EndpointIndependent => "NAT with one port for all destinations",
            Self::Symmetric { sequential: true } => "symmetric NAT with sequential ports",
            Self::Symmetric { sequential: false } => "symmetric NAT with random ports",
            Self::UdpBlocked => "no UDP",
        })
    }
}

impl NatObserver {
    /// Creates an observer of a socket with these addresses on its own machine.
    pub fn new(own: Vec<SocketAddr>) -> Self {
        Self { own, observations: Vec::new(), udp_blocked: false }
    }

    /// Records the address at which another node sees the socket. IPv6 is left out, because it has no NAT to classify.
    pub fn observe(&mut self, now: Instant, observer: KeyHash, seen: SocketAddr) {
        if seen.is_ipv6() {
            return;
        }
        self.udp_blocked = false;
        // A confirmed one keeps its place, so that the order is that of the NAT's mappings.
        let same = |old: &&mut Observation| old.observer == observer && old.seen == seen;
        if let Some(known) = self.observations.iter_mut().find(same) {
            known.at = now;
            return;
        }
        self.observations
            .retain(|old| old.observer != observer && now.since(old.at) < OBSERVATION_LIFETIME);
        if self.observations.len() >= MAX_OBSERVERS {
            let oldest = self.observations.iter().enumerate().min_by_key(|(_, old)| old.at);
            match oldest.map(|(index, old)| (index, now.since(old.at))) {
                Some((index, age)) if age >= CONFIRMED => drop(self.observations.remove(index)),
                _ => return,
            }
        }
        self.observations.push(Observation { observer, seen, at: now });
    }

    /// Records that no relay answers over UDP although one answers over TCP. Returns whether that is new.
    pub fn set_udp_blocked(&mut self) -> bool {
        self.observations.clear();
        !std::mem::replace(&mut self.udp_blocked, true)
    }

    /// Records that a relay answers over UDP. Returns whether that is new.
    pub fn clear_udp_blocked(&mut self) -> bool {
        std::mem::take(&mut self.udp_blocked)
    }

    /// Classifies the NAT by recent observations.
    pub fn classify(&self, now: Instant) -> NatInfo {
        let recent = |old: &&Observation| now.since(old.at) < OBSERVATION_LIFETIME;
        let seen: Vec<SocketAddr> =
            self.observations.iter().filter(recent).map(|observation| observation.seen).collect();
        NatInfo { kind: self.kind(&seen), seen }
    }

    fn kind(&self, seen: &[SocketAddr]) -> NatKind {
        if self.udp_blocked {
            return NatKind::UdpBlocked;
        }
        if seen.iter().any(|seen| self.own.contains(seen)) {
            return NatKind::None;
        }
        let Some((first, others)) = seen.split_first() else { return NatKind::Unknown };
        if others.is_empty() {
            return NatKind::Unknown;
        }
        if others.iter().all(|other| other == first) {
            return NatKind::EndpointIndependent;
        }
        let sequential = seen.iter().zip(others).all(|(earlier, later)| {
            let step = later.port().abs_diff(earlier.port());
            earlier.ip() == later.ip() && step <= SEQUENTIAL_STEP
        });
        NatKind::Symmetric { sequential }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000_000_000);

    fn classify(seen: &[&str]) -> NatInfo {
        let mut nat = NatObserver::new(vec!["10.0.0.2:1194".parse().unwrap()]);
        for (seen, observer) in seen.iter().zip(0..) {
            nat.observe(NOW, [observer; 32], seen.parse().unwrap());
        }
        nat.classify(NOW)
    }

    #[test]
    fn two_observers_tell_the_mapping() {
        let kind = |seen: &[&str]| classify(seen).kind;
        assert_eq!(kind(&[]), NatKind::Unknown);
        assert_eq!(kind(&["203.0.113.7:40001"]), NatKind::Unknown);
        let same = ["203.0.113.7:40001"; 2];
        assert_eq!(kind(&same), NatKind::EndpointIndependent);
        assert_eq!(kind(&["10.0.0.2:1194"]), NatKind::None);
        let ports = |ports: [u16; 2]| {
            let seen = ports.map(|port| format!("203.0.113.7:{port}"));
            kind(&seen.each_ref().map(String::as_str))
        };
        assert_eq!(ports([40001, 40002]), NatKind::Symmetric { sequential: true });
        assert_eq!(ports([40001, 40065]), NatKind::Symmetric { sequential: true });
        assert_eq!(ports([40001, 40066]), NatKind::Symmetric { sequential: false });
        let pool = ["203.0.113.7:40001", "203.0.113.8:40001"];
        assert_eq!(kind(&pool), NatKind::Symmetric { sequential: false }, "a pool of addresses");
    }

    #[test]
    fn one_observer_alone_does_not_make_a_nat_symmetric() {
        let mut nat = NatObserver::new(Vec::new());
        for port in [40001, 50001] {
            nat.observe(NOW, [1; 32], SocketAddr::from(([203, 0, 113, 7], port)));
        }
        assert_eq!(nat.classify(NOW).kind, NatKind::Unknown);
        assert_eq!(nat.classify(NOW).seen.len(), 1, "the latest");
    }

    #[test]
    fn observations_are_bounded_and_expire() {
        let mut nat = NatObserver::new(Vec::new());
        for observer in 0..100 {
            nat.observe(NOW, [observer; 32], "203.0.113.7:40001".parse().unwrap());
        }
        assert_eq!(nat.classify(NOW).seen.len(), MAX_OBSERVERS);
        assert_eq!(nat.classify(NOW + OBSERVATION_LIFETIME).kind, NatKind::Unknown);
    }

    #[test]
    fn a_confirmed_observation_keeps_its_place_and_a_new_observer_takes_that_of_a_silent_one() {
        let mut nat = NatObserver::new(Vec::new());
        let mut see = |seconds: u64, observer: u8, port: u16| {
            let now = NOW + Duration::from_secs(seconds);
            nat.observe(now, [observer; 32], SocketAddr::from(([203, 0, 113, 7], port)));
            nat.classify(now).seen.iter().map(SocketAddr::port).collect::<Vec<_>>()
        };
        for observer in 1..=8 {
            see(0, observer, 40_000 + u16::from(observer));
        }
        let first: Vec<u16> = (40_001..=40_008).collect();
        assert_eq!(see(10, 1, 40_001), first, "confirmed");
        assert_eq!(see(20, 9, 40_009), first, "no room");
        (1..=7).for_each(|observer| drop(see(50, observer, 40_000 + u16::from(observer))));
        assert_eq!(see(59, 9, 40_009), first, "the last one is not silent for long enough");
        let last: Vec<u16> = (40_001..=40_007).chain([40_009]).collect();
        assert_eq!(see(60, 9, 40_009), last);
        assert_eq!(see(61, 1, 40_010).last(), Some(&40_010), "a new mapping");
    }

    #[test]
    fn blocked_udp_is_reported_until_udp_works() {
        let mut nat = NatObserver::new(Vec::new());
        nat.set_udp_blocked();
        assert_eq!(nat.classify(NOW).kind, NatKind::UdpBlocked);
        nat.observe(NOW, [1; 32], "203.0.113.7:40001".parse().unwrap());
        assert_eq!(nat.classify(NOW).kind, NatKind::Unknown);
    }

    #[test]
    fn kinds_keep_their_numbers_on_the_wire() {
        for number in 0..=5 {
            assert_eq!(NatKind::from_wire(number).map(NatKind::to_wire), Some(number));
        }
        assert_eq!(NatKind::from_wire(6), None);
    }
}
