//! An internet of hosts behind NAT boxes, in virtual time.
//!
//! A host or a box is on a network: either the public network or the inside of a box. A datagram climbs from its
//! sender's network through the boxes until a network has its destination, is in flight for the link's delay, and on
//! arrival descends through the boxes of its destination.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use adit_engine::{Instant, Random};

use crate::impairment::Impairment;
use crate::nat::{Mapping, NatBehaviour, NatBox};
use crate::pipe::Pipe;

/// The size of the IP and UDP headers, by family.
const HEADERS: [usize; 2] = [28, 48];

/// A host of an [`Internet`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct HostId(usize);

/// A box of an [`Internet`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BoxId(usize);

/// A datagram that arrived at a host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    /// The host.
    pub host: HostId,
    /// The source address, as the host sees it.
    pub from: SocketAddr,
    /// The host's own address.
    pub to: SocketAddr,
    /// The payload.
    pub payload: Vec<u8>,
}

/// Hosts, the boxes between them and the links.
#[derive(Debug)]
pub struct Internet {
    boxes: Vec<Site>,
    /// The addresses of each host, each on its network.
    hosts: Vec<Vec<(IpAddr, Option<BoxId>)>>,
    links: BTreeMap<LinkId, Link>,
    /// When the next datagram of each link arrives.
    arrivals: BTreeSet<(Instant, LinkId)>,
    default: Impairment,
    random: Random,
}

#[derive(Debug)]
struct Site {
    nat: NatBox,
    /// The network in front of the box.
    outside: Option<BoxId>,
    /// Whether the hosts behind the box are prevented from reaching each other directly.
    isolated: bool,
}

/// The sending host, and the address to which it sends.
type LinkId = (HostId, IpAddr);

#[derive(Debug)]
struct Link {
    pipe: Pipe<InTransit>,
    mtu: usize,
    /// The link's entry in [`Internet::arrivals`].
    arrival: Option<Instant>,
}

/// A datagram that has climbed to the network of its destination.
#[derive(Clone, Debug)]
struct InTransit {
    network: Option<BoxId>,
    from: SocketAddr,
    to: SocketAddr,
    payload: Vec<u8>,
}

impl Internet {
    /// Creates an internet whose links have this impairment unless another one is set.
    pub fn new(default: Impairment, seed: [u8; 32]) -> Self {
        Self {
            boxes: Vec::new(),
            hosts: Vec::new(),
            links: BTreeMap::new(),
            arrivals: BTreeSet::new(),
            default,
            random: Random::new(seed),
        }
    }

    /// Adds a box with an external address on the network inside `outside`, or on the public network.
    pub fn add_box(
        &mut self,
        external: IpAddr,
        behaviour: NatBehaviour,
        outside: Option<BoxId>,
    ) -> BoxId {
        let nat = NatBox::new(external, behaviour, self.random.bytes());
        self.boxes.push(Site { nat, outside, isolated: false });
        BoxId(self.boxes.len() - 1)
    }

    /// Keeps the hosts behind a box from reaching each other directly, as guest networks do.
    pub fn isolate(&mut self, site: BoxId) {
        self.boxes[site.0].isolated = true;
    }

    /// Returns a box.
    pub fn nat(&mut self, site: BoxId) -> &mut NatBox {
        &mut self.boxes[site.0].nat
    }

    /// Adds a host with these addresses, each on the network inside a box or on the public network.
    pub fn add_host(&mut self, addresses: &[(IpAddr, Option<BoxId>)]) -> HostId {
        self.hosts.push(addresses.to_vec());
        HostId(self.hosts.len() - 1)
    }

    /// Moves a host to other addresses. Datagrams to its previous addresses are lost.
    pub fn move_host(&mut self, host: HostId, addresses: &[(IpAddr, Option<BoxId>)]) {
        self.hosts[host.0] = addresses.to_vec();
    }

    /// Sets the impairment of a host's datagrams to an address.
    pub fn set_impairment(&mut self, host: HostId, to: IpAddr, impairment: Impairment) {
        self.link(host, to).pipe.set_impairment(impairment);
    }

    /// Sets the largest IP packet that a host can send to an address.
    pub fn set_mtu(&mut self, host: HostId, to: IpAddr, mtu: usize) {
        self.link(host, to).mtu = mtu;
    }

    /// Sends a datagram from a port of a host, as from a socket that is not bound to an address.
    pub fn send(
        &mut self,
        now: Instant,
        host: HostId,
        port: u16,
        to: SocketAddr,
        payload: Vec<u8>,
    ) {
        // The address of the family that is on the same network as the destination, or else the first.
        let own = self.hosts[host.0].iter().filter(|(ip, _)| ip.is_ipv4() == to.is_ipv4());
        if let Some((ip, _)) = own.min_by_key(|(_, network)| !self.is_on(*network, to.ip())) {
            self.send_from(now, host, SocketAddr::new(*ip, port), to, payload);
        }
    }

    /// Sends a datagram from an address of a host. Fragments do not exist, so a datagram above the MTU is lost.
    pub fn send_from(
        &mut self,
        now: Instant,
        host: HostId,
        from: SocketAddr,
        to: SocketAddr,
        payload: Vec<u8>,
    ) {
        let headers = HEADERS[usize::from(to.is_ipv6())];
        if self.link(host, to.ip()).mtu < headers + payload.len() {
            return;
        }
        let mut own = self.hosts[host.0].iter();
        let Some((_, network)) = own.find(|(ip, _)| *ip == from.ip()).copied() else { return };
        if let Some(packet) = self.climb(now, network, from, to, payload) {
            self.link(host, to.ip()).pipe.push(now, packet);
            self.update_arrival((host, to.ip()));
        }
    }

    /// Returns when the next datagram arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.arrivals.first().map(|(at, _)| *at)
    }

    /// Returns a datagram that has arrived.
    pub fn pop(&mut self, now: Instant) -> Option<Delivery> {
        loop {
            let (_, id) = *self.arrivals.first().filter(|(at, _)| *at <= now)?;
            let packet = self.links.get_mut(&id).and_then(|link| link.pipe.pop(now))?;
            self.update_arrival(id);
            if let Some(delivery) = self.descend(now, packet) {
                return Some(delivery);
            }
        }
    }

    fn update_arrival(&mut self, id: LinkId) {
        let Some(link) = self.links.get_mut(&id) else { return };
        let next = link.pipe.next_arrival();
        let before = std::mem::replace(&mut link.arrival, next);
        if before != next {
            before.map(|at| self.arrivals.remove(&(at, id)));
            next.map(|at| self.arrivals.insert((at, id)));
        }
    }

    fn link(&mut self, host: HostId, to: IpAddr) -> &mut Link {
        let seed = self.random.bytes();
        let default = &self.default;
        let new = || Link { pipe: Pipe::new(default.clone(), seed), mtu: 1500, arrival: None };
        self.links.entry((host, to)).or_insert_with(new)
    }

    /// Moves a packet outwards until a network has its destination.
    fn climb(
        &mut self,
        now: Instant,
        mut network: Option<BoxId>,
        mut from: SocketAddr,
        to: SocketAddr,
        payload: Vec<u8>,
    ) -> Option<InTransit> {
        while let Some(inside) = network {
            let site = &mut self.boxes[inside.0];
            let hairpin = site.nat.external() == to.ip();
            let direct = !site.isolated && !hairpin;
            if direct && self.is_on(network, to.ip()) {
                break;
            }
            let site = &mut self.boxes[inside.0];
            from = site.nat.outbound(now, from, to)?;
            if hairpin && !site.nat.behaviour().hairpin {
                return None;
            }
            network = site.outside;
        }
        Some(InTransit { network, from, to, payload })
    }

    /// Moves a packet inwards to its host.
    fn descend(&mut self, now: Instant, packet: InTransit) -> Option<Delivery> {
        let InTransit { mut network, from, mut to, payload } = packet;
        loop {
            let host =
                self.hosts.iter().position(|addresses| addresses.contains(&(to.ip(), network)));
            if let Some(host) = host {
                return Some(Delivery { host: HostId(host), from, to, payload });
            }
            let inner = (0..self.boxes.len()).find(|inner| {
                let site = &self.boxes[*inner];
                site.outside == network && self.is_behind(BoxId(*inner), to.ip())
            })?;
            to = self.boxes[inner].nat.inbound(now, from, to)?;
            network = Some(BoxId(inner));
        }
    }

    /// Returns whether a packet to this address enters a box.
    fn is_behind(&self, site: BoxId, ip: IpAddr) -> bool {
        let nat = &self.boxes[site.0].nat;
        if nat.behaviour().mapping != Mapping::None {
            return nat.external() == ip;
        }
        self.hosts.iter().flatten().any(|(own, network)| *own == ip && *network == Some(site))
    }

    /// Returns whether a network has a host or a box with this address.
    fn is_on(&self, network: Option<BoxId>, ip: IpAddr) -> bool {
        let mut hosts = self.hosts.iter().flatten();
        hosts.any(|(own, of)| *own == ip && *of == network)
            || self.boxes.iter().any(|site| site.outside == network && site.nat.external() == ip)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);
    const DELAY: Duration = Duration::from_millis(10);

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    fn internet() -> Internet {
        Internet::new(Impairment { delay: DELAY, ..Default::default() }, [1; 32])
    }

    /// Sends a datagram and returns it as it arrives.
    fn exchange(net: &mut Internet, host: HostId, port: u16, to: SocketAddr) -> Option<Delivery> {
        net.send(NOW, host, port, to, b"hello".to_vec());
        assert_eq!(net.pop(NOW), None, "the link has a delay");
        net.pop(NOW + DELAY)
    }

    #[test]
    fn a_server_sees_the_external_address_and_its_answer_comes_back() {
        let mut net = internet();
        let server = net.add_host(&[(ip("198.51.100.1"), None)]);
        let site = net.add_box(ip("203.0.113.7"), NatBehaviour::PORT_RESTRICTED, None);
        let host = net.add_host(&[(ip("10.0.0.2"), Some(site))]);
        let seen = exchange(&mut net, host, 1194, "198.51.100.1:53".parse().unwrap()).unwrap();
        assert_eq!((seen.host, seen.from.ip()), (server, ip("203.0.113.7")));
        assert_eq!(seen.payload, b"hello");
        let answer = exchange(&mut net, server, 53, seen.from).unwrap();
        assert_eq!((answer.host, answer.to), (host, "10.0.0.2:1194".parse().unwrap()));
        assert_eq!(answer.from, "198.51.100.1:53".parse().unwrap());
        assert_eq!(exchange(&mut net, server, 54, seen.from), None, "another port");
    }

    #[test]
    fn packets_cross_two_boxes() {
        let mut net = internet();
        let server = net.add_host(&[(ip("198.51.100.1"), None)]);
        let outer = net.add_box(ip("203.0.113.7"), NatBehaviour::PORT_RESTRICTED, None);
        let inner = net.add_box(ip("100.64.0.9"), NatBehaviour::PORT_RESTRICTED, Some(outer));
        let host = net.add_host(&[(ip("10.0.0.2"), Some(inner))]);
        let seen = exchange(&mut net, host, 1194, "198.51.100.1:53".parse().unwrap()).unwrap();
        assert_eq!(seen.from.ip(), ip("203.0.113.7"));
        let answer = exchange(&mut net, server, 53, seen.from).unwrap();
        assert_eq!((answer.host, answer.to), (host, "10.0.0.2:1194".parse().unwrap()));
    }

    #[test]
    fn hosts_of_one_box_meet_directly_or_by_hairpin() {
        for (hairpin, isolated) in [(false, false), (false, true), (true, true)] {
            let mut net = internet();
            let server = net.add_host(&[(ip("198.51.100.1"), None)]);
            let behaviour = NatBehaviour { hairpin, ..NatBehaviour::FULL_CONE };
            let site = net.add_box(ip("203.0.113.7"), behaviour, None);
            let [a, b] = ["10.0.0.2", "10.0.0.3"].map(|own| net.add_host(&[(ip(own), Some(site))]));
            if isolated {
                net.isolate(site);
            }
            let seen = exchange(&mut net, b, 1194, "198.51.100.1:53".parse().unwrap()).unwrap();
            assert_eq!(seen.host, server);
            let by_hairpin = exchange(&mut net, a, 1194, seen.from);
            assert_eq!(by_hairpin.is_some(), hairpin);
            if let Some(packet) = by_hairpin {
                assert_eq!((packet.host, packet.from.ip()), (b, ip("203.0.113.7")));
            }
            let direct = exchange(&mut net, a, 1194, "10.0.0.3:1194".parse().unwrap());
            assert_eq!(direct.map(|packet| packet.host), (!isolated).then_some(b));
        }
    }

    #[test]
    fn equal_private_addresses_of_two_sites_are_two_hosts() {
        let mut net = internet();
        let sites = ["203.0.113.7", "203.0.113.8"]
            .map(|external| net.add_box(ip(external), NatBehaviour::FULL_CONE, None));
        let own = sites.map(|site| net.add_host(&[(ip("10.0.0.2"), Some(site))]));
        let neighbour = net.add_host(&[(ip("10.0.0.3"), Some(sites[1]))]);
        let packet = exchange(&mut net, neighbour, 1, "10.0.0.2:1194".parse().unwrap()).unwrap();
        assert_eq!(packet.host, own[1]);
    }

    #[test]
    fn datagrams_above_the_mtu_and_to_moved_hosts_are_lost() {
        let mut net = internet();
        let a = net.add_host(&[(ip("198.51.100.1"), None)]);
        let b = net.add_host(&[(ip("198.51.100.2"), None)]);
        let to: SocketAddr = "198.51.100.2:1194".parse().unwrap();
        net.set_mtu(a, to.ip(), 28 + 5);
        assert!(exchange(&mut net, a, 1, to).is_some());
        net.set_mtu(a, to.ip(), 28 + 4);
        assert!(exchange(&mut net, a, 1, to).is_none());
        net.set_mtu(a, to.ip(), 1500);
        net.move_host(b, &[(ip("198.51.100.3"), None)]);
        assert!(exchange(&mut net, a, 1, to).is_none());
        assert!(exchange(&mut net, a, 1, "198.51.100.3:1".parse().unwrap()).is_some());
    }

    #[test]
    fn families_do_not_mix() {
        let mut net = internet();
        net.add_host(&[(ip("198.51.100.1"), None)]);
        let site = net.add_box(ip("2001:db8:1::1"), NatBehaviour::FIREWALL, None);
        let v6 = net.add_host(&[(ip("2001:db8:1::2"), Some(site))]);
        let other = net.add_host(&[(ip("2001:db8:2::2"), None)]);
        assert_eq!(exchange(&mut net, v6, 1194, "198.51.100.1:1".parse().unwrap()), None);
        let (a, b): (SocketAddr, SocketAddr) =
            ("[2001:db8:1::2]:1194".parse().unwrap(), "[2001:db8:2::2]:1194".parse().unwrap());
        assert_eq!(exchange(&mut net, other, 1194, a), None, "the firewall");
        assert!(exchange(&mut net, v6, 1194, b).is_some());
        assert_eq!(exchange(&mut net, other, 1194, a).unwrap().host, v6);
    }
}
