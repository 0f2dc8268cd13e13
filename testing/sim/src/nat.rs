//! NAT boxes and firewalls, defined by their behaviour (RFC 4787): how a box treats a packet, without a surrounding
//! network.

use std::collections::HashMap;
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use adit_engine::{Instant, Random};

/// The maximum number of bindings of a box.
const MAX_BINDINGS: usize = 16_384;

/// The lowest port that a box assigns.
const FIRST_PORT: u16 = 1024;

/// Selects the packets of one internal address and port that share an external port.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Mapping {
    /// Addresses are not translated: a firewall.
    None,
    /// All packets.
    EndpointIndependent,
    /// Packets to the same address.
    AddressDependent,
    /// Packets to the same address and port.
    AddressAndPortDependent,
}

/// How an external port is chosen.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum PortChoice {
    /// The next free port.
    Sequential,
    /// A random free port.
    Random,
}

/// Selects the packets that may enter through a binding.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Filtering {
    /// All packets.
    None,
    /// Packets from an address to which the binding has sent a packet.
    Address,
    /// Packets from an address and port to which the binding has sent a packet.
    AddressAndPort,
}

/// The behaviour of a box.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct NatBehaviour {
    /// The packets that share an external port.
    pub mapping: Mapping,
    /// How that port is chosen.
    pub ports: PortChoice,
    /// The packets that may enter.
    pub filtering: Filtering,
    /// Whether an internal host can reach another one by its external address.
    pub hairpin: bool,
    /// Whether UDP passes.
    pub udp: bool,
    /// The time after which an unused binding, or an unused permission to enter, expires.
    pub timeout: Duration,
}

impl NatBehaviour {
    /// A NAT with endpoint-independent mapping that any host may enter through a binding.
    pub const FULL_CONE: Self = Self {
        mapping: Mapping::EndpointIndependent,
        ports: PortChoice::Random,
        filtering: Filtering::None,
        hairpin: false,
        udp: true,
        timeout: Duration::from_secs(60),
    };
    /// A NAT with endpoint-independent mapping that filters by address.
    pub const ADDRESS_RESTRICTED: Self = Self { filtering: Filtering::Address, ..Self::FULL_CONE };
    /// A NAT with endpoint-independent mapping that filters by address and port.
    pub const PORT_RESTRICTED: Self =
        Self { filtering: Filtering::AddressAndPort, ..Self::FULL_CONE };
    /// A NAT with a random port for each destination. It filters by address and port.
    pub const SYMMETRIC_RANDOM: Self =
        Self { mapping: Mapping::AddressAndPortDependent, ..Self::PORT_RESTRICTED };
    /// A NAT with the next port for each destination. It filters by address and port.
    pub const SYMMETRIC_SEQUENTIAL: Self =
        Self { ports: PortChoice::Sequential, ..Self::SYMMETRIC_RANDOM };
    /// A firewall without NAT that lets responses enter.
    pub const FIREWALL: Self = Self { mapping: Mapping::None, ..Self::PORT_RESTRICTED };
    /// A NAT that drops UDP.
    pub const NO_UDP: Self = Self { udp: false, ..Self::PORT_RESTRICTED };
}

/// A NAT box with one external address.
#[derive(Debug)]
pub struct NatBox {
    external: IpAddr,
    behaviour: NatBehaviour,
    bindings: HashMap<BindingKey, Binding>,
    by_external: HashMap<SocketAddr, BindingKey>,
    next_port: u16,
    random: Random,
    counters: NatCounters,
}

/// The counters of a box.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct NatCounters {
    /// The number of bindings that were created.
    pub bindings: u64,
    /// The number of packets from outside without a binding.
    pub unknown: u64,
    /// The number of packets from outside that the filtering dropped.
    pub filtered: u64,
    /// The number of packets that were dropped because the box had no free binding.
    pub exhausted: u64,
}

/// An internal address and port, and the part of the destination on which the mapping depends.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Hash)]
struct BindingKey {
    internal: SocketAddr,
    address: Option<IpAddr>,
    port: Option<u16>,
}

#[derive(Debug)]
struct Binding {
    external: SocketAddr,
    used: Instant,
    /// The destinations so far, with the time of the last packet to each.
    destinations: HashMap<SocketAddr, Instant>,
}

impl NatBox {
    /// Creates a box without bindings.
    pub fn new(external: IpAddr, behaviour: NatBehaviour, seed: [u8; 32]) -> Self {
        let mut random = Random::new(seed);
        let next_port = FIRST_PORT + random.below(40_000) as u16;
        Self {
            external,
            behaviour,
            bindings: HashMap::new(),
            by_external: HashMap::new(),
            next_port,
            random,
            counters: NatCounters::default(),
        }
    }

    /// Returns the external address; a firewall does not use it.
    pub fn external(&self) -> IpAddr {
        self.external
    }

    /// Returns the behaviour.
    pub fn behaviour(&self) -> NatBehaviour {
        self.behaviour
    }

    /// Translates a packet from inside. Returns its new source address, or `None` if the box drops it.
    pub fn outbound(
        &mut self,
        now: Instant,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Option<SocketAddr> {
        if !self.behaviour.udp {
            return None;
        }
        let key = self.key(from, to);
        self.expire(now, &key);
        if !self.bindings.contains_key(&key) {
            let Some(external) = self.new_external(now, from) else {
                self.counters.exhausted += 1;
                return None;
            };
            self.counters.bindings += 1;
            self.by_external.insert(external, key);
            self.bindings
                .insert(key, Binding { external, used: now, destinations: HashMap::new() });
        }
        let binding = self.bindings.get_mut(&key)?;
        binding.used = now;
        binding.destinations.insert(to, now);
        Some(binding.external)
    }

    /// Translates a packet from outside. Returns its internal destination, or `None` if the box drops it.
    pub fn inbound(
        &mut self,
        now: Instant,
        from: SocketAddr,
        to: SocketAddr,
    ) -> Option<SocketAddr> {
        let key = self.by_external.get(&to).copied();
        if let Some(key) = key {
            self.expire(now, &key);
        }
        let Some((key, binding)) = key.and_then(|key| Some((key, self.bindings.get(&key)?))) else {
            self.counters.unknown += 1;
            return None;
        };
        let timeout = self.behaviour.timeout;
        let mut recent = binding
            .destinations
            .iter()
            .filter(|(_, at)| now.since(**at) < timeout)
            .map(|(destination, _)| destination);
        let allowed = match self.behaviour.filtering {
            Filtering::None => true,
            Filtering::Address => recent.any(|destination| destination.ip() == from.ip()),
            Filtering::AddressAndPort => recent.any(|destination| *destination == from),
        };
        if !allowed {
            self.counters.filtered += 1;
            return None;
        }
        Some(key.internal)
    }

    /// Forgets all bindings, as after a restart.
    pub fn forget(&mut self) {
        self.bindings.clear();
        self.by_external.clear();
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> NatCounters {
        self.counters
    }

    fn key(&self, internal: SocketAddr, to: SocketAddr) -> BindingKey {
        let (address, port) = match self.behaviour.mapping {
            Mapping::None | Mapping::EndpointIndependent => (None, None),
            Mapping::AddressDependent => (Some(to.ip()), None),
            Mapping::AddressAndPortDependent => (Some(to.ip()), Some(to.port())),
        };
        BindingKey { internal, address, port }
    }

    fn expire(&mut self, now: Instant, key: &BindingKey) {
        let expired = |binding: &Binding| now.since(binding.used) >= self.behaviour.timeout;
        if self.bindings.get(key).is_some_and(expired)
            && let Some(binding) = self.bindings.remove(key)
        {
            self.by_external.remove(&binding.external);
        }
    }

    fn new_external(&mut self, now: Instant, internal: SocketAddr) -> Option<SocketAddr> {
        if self.behaviour.mapping == Mapping::None {
            return Some(internal);
        }
        if self.bindings.len() >= MAX_BINDINGS {
            let timeout = self.behaviour.timeout;
            self.bindings.retain(|_, binding| now.since(binding.used) < timeout);
            self.by_external.retain(|_, key| self.bindings.contains_key(key));
            if self.bindings.len() >= MAX_BINDINGS {
                return None;
            }
        }
        // The loop ends, because not all ports are taken.
        loop {
            let port = match self.behaviour.ports {
                PortChoice::Sequential => {
                    let port = self.next_port;
                    self.next_port = port.checked_add(1).unwrap_or(FIRST_PORT);
                    port
                }
                PortChoice::Random => {
                    FIRST_PORT + self.random.below(u32::from(u16::MAX - FIRST_PORT) + 1) as u16
                }
            };
            let external = SocketAddr::new(self.external, port);
            if !self.by_external.contains_key(&external) {
                return Some(external);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
    const SECOND: Duration = Duration::from_secs(1);

    fn nat(behaviour: NatBehaviour) -> NatBox {
        NatBox::new("203.0.113.7".parse().unwrap(), behaviour, [1; 32])
    }

    fn address(text: &str) -> SocketAddr {
        text.parse().unwrap()
    }

    fn inside() -> SocketAddr {
        address("10.0.0.2:1194")
    }

    /// Three destinations: two ports of one address, and another address.
    fn destinations() -> [SocketAddr; 3] {
        ["198.51.100.1:1194", "198.51.100.1:443", "198.51.100.2:1194"].map(address)
    }

    fn external_ports(behaviour: NatBehaviour) -> [u16; 3] {
        let mut nat = nat(behaviour);
        let first = destinations().map(|to| nat.outbound(NOW, inside(), to).unwrap().port());
        let again = destinations().map(|to| nat.outbound(NOW, inside(), to).unwrap().port());
        assert_eq!(first, again, "a mapping that is in use does not change");
        first
    }

    #[test]
    fn mapping_depends_on_what_it_says() {
        let [a, b, c] = external_ports(NatBehaviour::FULL_CONE);
        assert!(a == b && b == c);
        let by_address =
            NatBehaviour { mapping: Mapping::AddressDependent, ..NatBehaviour::FULL_CONE };
        let [a, b, c] = external_ports(by_address);
        assert!(a == b && b != c);
        let [a, b, c] = external_ports(NatBehaviour::SYMMETRIC_RANDOM);
        assert!(a != b && b != c && a != c);
        assert!(b.abs_diff(a) > 1 || c.abs_diff(b) > 1, "random: {a} {b} {c}");
        let [a, b, c] = external_ports(NatBehaviour::SYMMETRIC_SEQUENTIAL);
        assert_eq!([b, c], [a + 1, a + 2]);
    }

    #[test]
    fn two_internal_sockets_have_two_ports() {
        let mut nat = nat(NatBehaviour::FULL_CONE);
        let [to, ..] = destinations();
        let other = address("10.0.0.3:1194");
        let ports = [inside(), other].map(|from| nat.outbound(NOW, from, to).unwrap());
        assert_ne!(ports[0], ports[1]);
        assert_eq!(nat.inbound(NOW, to, ports[0]), Some(inside()));
        assert_eq!(nat.inbound(NOW, to, ports[1]), Some(other));
    }

    #[test]
    fn filtering_depends_on_what_it_says() {
        let entered = |behaviour| {
            let mut nat = nat(behaviour);
            let external = nat.outbound(NOW, inside(), destinations()[0]).unwrap();
            destinations().map(|from| nat.inbound(NOW, from, external).is_some())
        };
        assert_eq!(entered(NatBehaviour::FULL_CONE), [true, true, true]);
        assert_eq!(entered(NatBehaviour::ADDRESS_RESTRICTED), [true, true, false]);
        assert_eq!(entered(NatBehaviour::PORT_RESTRICTED), [true, false, false]);
        assert_eq!(entered(NatBehaviour::SYMMETRIC_RANDOM), [true, false, false]);
        assert_eq!(entered(NatBehaviour::SYMMETRIC_SEQUENTIAL), [true, false, false]);
        assert_eq!(entered(NatBehaviour::FIREWALL), [true, false, false]);
    }

    #[test]
    fn a_firewall_keeps_addresses_and_lets_answers_in() {
        let mut firewall = nat(NatBehaviour::FIREWALL);
        let (inside, peer) = (address("[2001:db8:1::2]:1194"), address("[2001:db8:2::2]:1194"));
        assert_eq!(firewall.inbound(NOW, peer, inside), None);
        assert_eq!(firewall.outbound(NOW, inside, peer), Some(inside));
        assert_eq!(firewall.inbound(NOW, peer, inside), Some(inside));
    }

    #[test]
    fn unused_mappings_and_permissions_expire() {
        let behaviour = NatBehaviour { timeout: SECOND * 30, ..NatBehaviour::PORT_RESTRICTED };
        let mut nat = nat(behaviour);
        let [first, second, _] = destinations();
        let external = nat.outbound(NOW, inside(), first).unwrap();
        nat.outbound(NOW + SECOND * 20, inside(), second);
        assert!(nat.inbound(NOW + SECOND * 29, first, external).is_some());
        assert!(nat.inbound(NOW + SECOND * 30, first, external).is_none(), "the permission");
        assert!(nat.inbound(NOW + SECOND * 49, second, external).is_some());
        assert!(nat.inbound(NOW + SECOND * 50, second, external).is_none(), "the mapping");
        let later = nat.outbound(NOW + SECOND * 51, inside(), second).unwrap();
        assert_ne!(later, external);
        let counters = nat.counters();
        assert_eq!((counters.bindings, counters.filtered, counters.unknown), (2, 1, 1));
    }

    #[test]
    fn a_box_without_udp_drops_everything() {
        let mut nat = nat(NatBehaviour::NO_UDP);
        assert_eq!(nat.outbound(NOW, inside(), destinations()[0]), None);
        assert_eq!(nat.inbound(NOW, destinations()[0], address("203.0.113.7:1194")), None);
    }

    #[test]
    fn bindings_are_bounded() {
        let mut nat = nat(NatBehaviour::SYMMETRIC_RANDOM);
        let to = |n: usize| {
            let [a, b] = u16::try_from(n).unwrap().to_be_bytes();
            SocketAddr::from(([198, 51, a, b], 1194))
        };
        assert!((0..MAX_BINDINGS).all(|n| nat.outbound(NOW, inside(), to(n)).is_some()));
        assert_eq!(nat.outbound(NOW, inside(), to(MAX_BINDINGS)), None);
        assert_eq!(nat.counters().exhausted, 1);
        let later = NOW + NatBehaviour::SYMMETRIC_RANDOM.timeout;
        assert!(nat.outbound(later, inside(), to(MAX_BINDINGS)).is_some());
        nat.forget();
        assert!(nat.outbound(later, inside(), to(0)).is_some());
    }
}
