//! Rules for forwarding between a tunnel and other networks, with source NAT.

use std::net::IpAddr;
use std::{io, iter};

use ipnet::IpNet;

use super::nftables::{
    Chain, Expression, FORWARD, Family, OwnedTable, POSTROUTING, REGISTER, attribute, nested,
    number,
};

/// The priorities of filters and of source NAT among the chains of a hook.
const FILTER: i32 = 0;
const SOURCE_NAT: i32 = 100;
const META_IN_NAME: u32 = 6;
const META_OUT_NAME: u32 = 7;
const NETWORK_HEADER: u32 = 1;
const CT_STATE: u32 = 0;
const ESTABLISHED: u32 = 2;
const RELATED: u32 = 4;
const VERDICT_REGISTER: u32 = 0;
const NAME_LEN: usize = 16;

/// Rules for packets that the kernel forwards from or to a tunnel's device. Towards the tunnel, only replies and
/// packets from the accepted networks pass.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardRules {
    /// The tunnel's device.
    pub inside: String,
    /// Packets to these networks are forwarded.
    pub accepted: Vec<IpNet>,
    /// Of the others, packets to these networks are dropped.
    pub dropped: Vec<IpNet>,
    /// Whether packets to anywhere else are forwarded.
    pub others: bool,
    /// Packets from these networks leave with the address of the interface that they leave through.
    pub masquerade: Vec<IpNet>,
    /// Packets to these networks keep their source.
    pub untranslated: Vec<IpNet>,
}

/// The installed rules. Dropping this removes them.
#[derive(Debug)]
pub struct InstalledRules {
    _tables: [OwnedTable; 2],
}

impl ForwardRules {
    /// Installs the rules in the calling thread's network namespace.
    ///
    /// # Errors
    /// The kernel has no nftables, does not support tables owned by a socket (before 5.12), or refuses the change.
    pub fn install(&self) -> io::Result<InstalledRules> {
        let table = |family| {
            let nat = self.forwards().then(|| self.source_nat(family));
            let chains: Vec<Chain> = iter::once(self.forward(family)).chain(nat).collect();
            OwnedTable::start(family, &chains)
        };
        Ok(InstalledRules { _tables: [table(Family::Ipv4)?, table(Family::Ipv6)?] })
    }

    /// Returns whether any packet from the tunnel is forwarded. If none is, there are no replies to recognise and no addresses to
    /// replace, and the kernel need not track connections. Tracking costs a fifth of the time that the tunnel's own packets take.
    fn forwards(&self) -> bool {
        self.others || !self.accepted.is_empty()
    }

    fn forward(&self, family: Family) -> Chain {
        let inward = || name(META_OUT_NAME, Relation::Equal, &self.inside).to_vec();
        let elsewhere = || name(META_IN_NAME, Relation::NotEqual, &self.inside).to_vec();
        let mut rules = Vec::new();
        if self.forwards() {
            rules.push([inward(), answer().to_vec(), vec![verdict(true)]].concat());
        }
        for network in self.accepted.iter().filter(|net| family.has(net)) {
            let from = address(Address::Source, *network).to_vec();
            rules.push([inward(), elsewhere(), from, vec![verdict(true)]].concat());
        }
        rules.push([inward(), vec![verdict(false)]].concat());
        rules.push([elsewhere(), vec![verdict(true)]].concat());
        for (networks, accepts) in [(&self.accepted, true), (&self.dropped, false)] {
            for network in networks.iter().filter(|net| family.has(net)) {
                let to = address(Address::Destination, *network).to_vec();
                rules.push([to, vec![verdict(accepts)]].concat());
            }
        }
        if !self.others {
            rules.push(vec![verdict(false)]);
        }
        Chain { name: "forward", kind: "filter", hook: FORWARD, priority: FILTER, rules }
    }

    fn source_nat(&self, family: Family) -> Chain {
        let of_family = self.masquerade.iter().filter(|net| family.has(net));
        let rule = |network: &IpNet| {
            let from = address(Address::Source, *network).to_vec();
            let leaves = name(META_OUT_NAME, Relation::NotEqual, &self.inside).to_vec();
            [from, leaves, vec![Expression::new("masq", &[])]].concat()
        };
        let keep = |network: &IpNet| {
            [address(Address::Destination, *network).to_vec(), vec![verdict(true)]].concat()
        };
        let kept = self.untranslated.iter().filter(|net| family.has(net)).map(keep);
        let rules = kept.chain(of_family.map(rule)).collect();
        Chain { name: "masquerade", kind: "nat", hook: POSTROUTING, priority: SOURCE_NAT, rules }
    }
}

impl Family {
    fn has(self, network: &IpNet) -> bool {
        network.addr().is_ipv6() == matches!(self, Self::Ipv6)
    }
}

#[derive(Copy, Clone)]
enum Relation {
    Equal = 0,
    NotEqual = 1,
}

#[derive(Copy, Clone)]
enum Address {
    Source,
    Destination,
}

/// Matches an interface's name.
fn name(key: u32, relation: Relation, name: &str) -> [Expression; 2] {
    let mut padded = name.as_bytes().to_vec();
    padded.resize(NAME_LEN, 0);
    let load = Expression::new("meta", &[number(1, REGISTER), number(2, key)]);
    [load, compare(relation, &padded)]
}

/// Matches a packet of an existing connection, or about one.
fn answer() -> [Expression; 3] {
    let state = [number(1, REGISTER), number(2, CT_STATE)];
    let begun = (ESTABLISHED | RELATED).to_ne_bytes();
    let and =
        [number(1, REGISTER), number(2, REGISTER), number(3, 4), data(4, &begun), data(5, &[0; 4])];
    [
        Expression::new("ct", &state),
        Expression::new("bitwise", &and),
        compare(Relation::NotEqual, &[0; 4]),
    ]
}

/// Matches an address of a packet in a network.
fn address(which: Address, network: IpNet) -> [Expression; 3] {
    let octets = |ip| match ip {
        IpAddr::V4(ip) => ip.octets().to_vec(),
        IpAddr::V6(ip) => ip.octets().to_vec(),
    };
    let (address, mask) = (octets(network.network()), octets(network.netmask()));
    let offset: u32 = match (which, network.addr().is_ipv6()) {
        (Address::Source, false) => 12,
        (Address::Destination, false) => 16,
        (Address::Source, true) => 8,
        (Address::Destination, true) => 24,
    };
    let len = u32::try_from(address.len()).unwrap_or(0);
    let load = [number(1, REGISTER), number(2, NETWORK_HEADER), number(3, offset), number(4, len)];
    let nothing = vec![0; mask.len()];
    let and = [
        number(1, REGISTER),
        number(2, REGISTER),
        number(3, len),
        data(4, &mask),
        data(5, &nothing),
    ];
    [
        Expression::new("payload", &load),
        Expression::new("bitwise", &and),
        compare(Relation::Equal, &address),
    ]
}

fn compare(relation: Relation, value: &[u8]) -> Expression {
    Expression::new("cmp", &[number(1, REGISTER), number(2, relation as u32), data(3, value)])
}

fn verdict(accepts: bool) -> Expression {
    let code = nested(2, &[number(1, accepts.into())]);
    Expression::new("immediate", &[number(1, VERDICT_REGISTER), nested(2, &[code])])
}

fn data(kind: u16, value: &[u8]) -> Vec<u8> {
    nested(kind, &[attribute(1, value)])
}

#[cfg(test)]
mod tests {
    use std::net::UdpSocket;
    use std::time::Duration;

    use crate::net::{Address, Net, Route};
    use crate::netns::NetNs;

    use super::*;

    /// Creates a host behind a router that forwards, and a host in front of it, with both address families.
    fn routed() -> (NetNs, NetNs, NetNs) {
        let [host, router, outside] = [(); 3].map(|()| NetNs::unnamed().unwrap());
        host.connect("eth", &router, "inside").unwrap();
        router.connect("outside", &outside, "eth").unwrap();
        let add = async |net: &Net, link: &str, addresses: [&str; 2]| {
            let link = net.link(link).await?.index;
            for address in addresses {
                net.add_address(&Address::new(link, address.parse().unwrap())).await?;
            }
            Ok::<(), crate::net::NetError>(())
        };
        let configured = host.configure(async |net| {
            add(net, "eth", ["10.7.0.2/24", "fd07::2/64"]).await?;
            for (to, via) in [("0.0.0.0/0", "10.7.0.1"), ("::/0", "fd07::1")] {
                net.add_route(&Route::via(to.parse().unwrap(), via.parse().unwrap())).await?;
            }
            Ok::<(), crate::net::NetError>(())
        });
        configured.unwrap().unwrap();
        let configured = router.configure(async |net| {
            add(net, "inside", ["10.7.0.1/24", "fd07::1/64"]).await?;
            add(net, "outside", ["192.0.2.1/24", "2001:db8::1/64"]).await
        });
        configured.unwrap().unwrap();
        router.set_sysctl("net.ipv4.ip_forward", "1").unwrap();
        router.set_sysctl("net.ipv6.conf.all.forwarding", "1").unwrap();
        let configured = outside
            .configure(async |net| add(net, "eth", ["192.0.2.2/24", "2001:db8::2/64"]).await);
        configured.unwrap().unwrap();
        (host, router, outside)
    }

    /// Returns the sender of a datagram from `host` to an address of `outside`.
    fn seen(host: &NetNs, outside: &NetNs, to: &str) -> Option<IpAddr> {
        seen_within(50, host, outside, to)
    }

    fn seen_within(tries: u32, host: &NetNs, outside: &NetNs, to: &str) -> Option<IpAddr> {
        let to: IpAddr = to.parse().unwrap();
        let receiver = outside.run(|| UdpSocket::bind((to, 0))).unwrap().ok()?;
        receiver.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let to = receiver.local_addr().unwrap();
        let any = if to.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
        let sender = host.run(|| UdpSocket::bind(any)).unwrap().unwrap();
        // The addresses may be tentative, and the neighbours unknown.
        (0..tries).find_map(|_| {
            let _ = sender.send_to(b"x", to);
            receiver.recv_from(&mut [0; 9]).ok().map(|(_, from)| from.ip())
        })
    }

    fn inside() -> ForwardRules {
        ForwardRules { inside: "inside".into(), ..ForwardRules::default() }
    }

    fn nets(texts: &[&str]) -> Vec<IpNet> {
        texts.iter().map(|text| text.parse().unwrap()).collect()
    }

    fn route_back(outside: &NetNs) {
        let routes = [("10.7.0.0/24", "192.0.2.1"), ("fd07::/64", "2001:db8::1")];
        let added = outside.configure(async |net| {
            for (to, via) in routes {
                net.add_route(&Route::via(to.parse().unwrap(), via.parse().unwrap())).await?;
            }
            Ok::<(), crate::net::NetError>(())
        });
        added.unwrap().unwrap();
    }

    #[test]
    fn packets_of_a_network_leave_with_the_routers_address_until_the_end() {
        adit_testbed::needs_root!();
        let (host, router, outside) = routed();
        let rules = ForwardRules {
            masquerade: nets(&["10.7.0.0/24", "fd07::/64"]),
            others: true,
            ..inside()
        };
        let rules = router.run(|| rules.install()).unwrap().unwrap();
        for (to, router) in [("192.0.2.2", "192.0.2.1"), ("2001:db8::2", "2001:db8::1")] {
            assert_eq!(seen(&host, &outside, to), router.parse().ok());
        }
        drop(rules);
        route_back(&outside);
        // A program started by another test has a copy of the table's socket until it calls `exec`.
        let own = "10.7.0.2".parse().ok();
        assert!((0..60).any(|_| seen(&host, &outside, "192.0.2.2") == own), "it stays as it was");
    }

    #[test]
    fn packets_of_other_networks_keep_their_address() {
        adit_testbed::needs_root!();
        let (host, router, outside) = routed();
        let rules = ForwardRules { masquerade: nets(&["10.8.0.0/16"]), others: true, ..inside() };
        let first = router.run(|| rules.install()).unwrap().unwrap();
        route_back(&outside);
        assert_eq!(seen(&host, &outside, "192.0.2.2"), "10.7.0.2".parse().ok());
        // So do packets to networks that have a route back.
        let rules = ForwardRules {
            masquerade: nets(&["10.7.0.0/24", "fd07::/64"]),
            untranslated: nets(&["192.0.2.0/24"]),
            others: true,
            ..inside()
        };
        let _second = router.run(|| rules.install()).unwrap().unwrap();
        drop(first);
        assert_eq!(seen(&host, &outside, "192.0.2.2"), "10.7.0.2".parse().ok());
        assert_eq!(seen(&host, &outside, "2001:db8::2"), "2001:db8::1".parse().ok());
    }

    #[test]
    fn connections_are_tracked_only_if_something_is_forwarded() {
        adit_testbed::needs_root!();
        let (host, router, _) = routed();
        let tracked = |rules: ForwardRules| {
            let _rules = router.run(|| rules.install()).unwrap().unwrap();
            assert!(seen(&host, &router, "10.7.0.1").is_some());
            let count = || std::fs::read_to_string("/proc/sys/net/netfilter/nf_conntrack_count");
            router.run(count).unwrap().map_or(0, |count| count.trim().parse().unwrap())
        };
        assert_eq!(tracked(ForwardRules { masquerade: nets(&["10.7.0.0/24"]), ..inside() }), 0u32);
        assert!(tracked(ForwardRules { others: true, ..inside() }) > 0);
    }

    #[test]
    fn accepted_and_undropped_destinations_are_reached() {
        adit_testbed::needs_root!();
        let (host, router, outside) = routed();
        route_back(&outside);
        let reached = |rules: ForwardRules| {
            let _rules = router.run(|| rules.install()).unwrap().unwrap();
            let is_seen = |to| seen_within(3, &host, &outside, to).is_some();
            ["192.0.2.2", "2001:db8::2"].map(is_seen)
        };
        for to in ["192.0.2.2", "2001:db8::2"] {
            assert!(seen(&host, &outside, to).is_some(), "forwarded without rules");
        }
        let accepted = nets(&["192.0.2.0/24"]);
        assert_eq!(reached(ForwardRules { accepted, ..inside() }), [true, false]);
        let accepted = nets(&["2001:db8::/64", "192.0.3.0/24"]);
        assert_eq!(reached(ForwardRules { accepted, ..inside() }), [false, true]);
        // Towards the tunnel, only answers and packets from the accepted networks pass.
        let inwards = |accepted: &[&str]| {
            let rules = ForwardRules { accepted: nets(accepted), others: true, ..inside() };
            let _rules = router.run(|| rules.install()).unwrap().unwrap();
            seen_within(3, &outside, &host, "10.7.0.2").is_some()
        };
        assert!(!inwards(&["192.0.3.0/24"]) && inwards(&["192.0.2.0/24"]));
        let dropped = nets(&["192.0.0.0/16"]);
        let others = ForwardRules { dropped: dropped.clone(), others: true, ..inside() };
        assert_eq!(reached(others.clone()), [false, true]);
        let accepted = nets(&["192.0.2.2/32"]);
        assert_eq!(reached(ForwardRules { accepted, ..others }), [true, true]);
    }
}
