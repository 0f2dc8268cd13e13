//! Decides which networks pass between a mesh and a tinc net.
//!
//! tinc's topology is unsigned: any node of the net can claim any subnet. So its subnets change nothing in the mesh. The mesh reaches a subnet
//! only if this machine's settings and the signed networks behind this node both contain it.
//!
//! Several members may be guests in the same net. Each announces the mesh's IPv6 network there, which no other net has, and so recognizes the
//! others. It takes nothing from them, because it would come back from the mesh itself, and would outlive its origin.

use std::collections::BTreeSet;

use adit_runtime::control::{RefusedSubnet, TincSubnet};
use adit_runtime::netinfo::overlap;
use ipnet::IpNet;

/// The number of networks that are announced in the tinc net.
pub(crate) const MAX_ANNOUNCED: usize = 1024;

/// The number of subnets of the tinc net that the mesh reaches. Each is two rules of the kernel's filter.
pub(crate) const MAX_REACHED: usize = 256;

/// The number of refused subnets that the status names.
const MAX_REFUSED: usize = 64;

/// What a guest knows of its mesh.
#[derive(Clone, Debug, Default)]
pub(crate) struct Mesh {
    /// This node's name.
    pub(crate) node: String,
    /// The networks of the members' addresses. The last one is the IPv6 network.
    pub(crate) own: Vec<IpNet>,
    /// The networks behind this node, as signed.
    pub(crate) granted: BTreeSet<IpNet>,
    /// The networks behind the other members.
    pub(crate) others: BTreeSet<IpNet>,
    /// The networks of the tinc net that the settings let the mesh reach.
    pub(crate) networks: Vec<IpNet>,
}

/// The outcome.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Exchange {
    /// The networks that are announced in the tinc net.
    pub(crate) announced: Vec<IpNet>,
    /// The subnets of the tinc net that the mesh reaches.
    pub(crate) reached: BTreeSet<IpNet>,
    /// The subnets that it does not reach.
    pub(crate) refused: Vec<RefusedSubnet>,
    /// Other guests of the same mesh.
    pub(crate) guests: Vec<String>,
    /// The number of networks for which there was no room.
    pub(crate) left_out: usize,
}

impl Exchange {
    /// Compares the mesh with the subnets of the tinc net's nodes.
    pub(crate) fn new(mesh: &Mesh, subnets: &[TincSubnet]) -> Self {
        let mut this = Self::default();
        let marks = |subnet: &&TincSubnet| mesh.own.last() == Some(&subnet.net);
        let guests: BTreeSet<&str> =
            subnets.iter().filter(marks).map(|subnet| subnet.owner.as_str()).collect();
        let of_the_net = || subnets.iter().filter(|it| !guests.contains(it.owner.as_str()));
        for subnet in of_the_net() {
            match mesh.refusal(subnet.net) {
                None => {
                    this.reached.insert(subnet.net);
                }
                Some(reason) if this.refused.len() < MAX_REFUSED => {
                    this.refused.push(RefusedSubnet { subnet: subnet.clone(), reason });
                }
                Some(_) => this.left_out = this.left_out.saturating_add(1),
            }
        }
        this.reached = without_contained(&this.reached);
        while this.reached.len() > MAX_REACHED {
            this.reached.pop_last();
            this.left_out = this.left_out.saturating_add(1);
        }
        // Whatever the tinc net has itself comes from there.
        let is_known = |net: &IpNet| {
            net.prefix_len() == 0
                || mesh.networks.iter().any(|known| known.contains(net))
                || of_the_net().any(|known| known.net.prefix_len() > 0 && known.net.contains(net))
        };
        let others = mesh.others.iter().filter(|net| !is_known(net));
        this.announced = mesh.own.iter().chain(others).copied().collect();
        this.left_out =
            this.left_out.saturating_add(this.announced.len().saturating_sub(MAX_ANNOUNCED));
        this.announced.truncate(MAX_ANNOUNCED);
        this.guests = guests.into_iter().map(str::to_owned).collect();
        this
    }
}

impl Mesh {
    /// Returns the reason why the mesh does not reach a subnet of the tinc net.
    fn refusal(&self, net: IpNet) -> Option<String> {
        if net.prefix_len() == 0 {
            return Some("the mesh takes no default route from tinc".to_owned());
        }
        if self.own.iter().any(|own| overlap(own, &net)) {
            return Some("it overlaps the addresses of the mesh".to_owned());
        }
        if !self.networks.iter().any(|known| known.contains(&net)) {
            return Some("it is in none of the `networks` of [tinc] in mesh.toml".to_owned());
        }
        if !self.granted.iter().any(|granted| granted.contains(&net)) {
            let all = self.granted.iter().chain([&net]);
            let all: Vec<String> = all.map(|net| format!(" --subnet {net}")).collect();
            return Some(format!(
                "the mesh has no such network behind this node; on a machine with an admin's key: sudo adit mesh set {}{}",
                self.node,
                all.concat()
            ));
        }
        None
    }
}

/// Returns whether a network behind this node belongs to the tinc net, and is reached only while that has it.
pub(crate) fn is_of_tinc(networks: &[IpNet], net: &IpNet) -> bool {
    networks.iter().any(|known| overlap(known, net))
}

/// Leaves out the networks that others contain.
fn without_contained(nets: &BTreeSet<IpNet>) -> BTreeSet<IpNet> {
    let is_contained = |net: &IpNet| nets.iter().any(|other| other != net && other.contains(net));
    nets.iter().filter(|net| !is_contained(net)).copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn net(text: &str) -> IpNet {
        text.parse().unwrap()
    }

    fn nets<T: FromIterator<IpNet>>(texts: &[&str]) -> T {
        texts.iter().map(|text| net(text)).collect()
    }

    fn subnets(of: &[(&str, &str)]) -> Vec<TincSubnet> {
        of.iter()
            .map(|(owner, text)| TincSubnet { owner: (*owner).into(), net: net(text) })
            .collect()
    }

    /// A mesh with networks behind other members, in which this node may have 10.20.0.0/16.
    fn mesh() -> Mesh {
        Mesh {
            node: "gate".into(),
            own: nets(&["100.87.0.0/16", "fd01::/64"]),
            granted: nets(&["10.20.0.0/16", "192.168.1.0/24"]),
            others: nets(&["192.168.77.0/24", "0.0.0.0/0"]),
            networks: nets(&["10.20.0.0/16", "10.30.0.0/16"]),
        }
    }

    #[test]
    fn each_side_learns_the_others_networks() {
        let exchange = Exchange::new(&mesh(), &subnets(&[("bob", "10.20.3.0/24")]));
        let announced: Vec<IpNet> = nets(&["100.87.0.0/16", "fd01::/64", "192.168.77.0/24"]);
        assert_eq!(exchange.announced, announced);
        assert_eq!(exchange.reached, nets(&["10.20.3.0/24"]));
        assert_eq!((exchange.refused.len(), exchange.left_out), (0, 0));
        let gone = Exchange::new(&mesh(), &[]);
        assert!(gone.reached.is_empty() && gone.announced == announced);
    }

    #[test]
    fn a_subnet_beyond_the_rights_is_refused_by_name() {
        let refused = |text: &str| {
            let exchange = Exchange::new(&mesh(), &subnets(&[("bob", text)]));
            assert!(exchange.reached.is_empty(), "{text}");
            exchange.refused[0].reason.clone()
        };
        assert!(refused("0.0.0.0/0").contains("default route"));
        assert!(refused("100.87.3.0/24").contains("addresses of the mesh"));
        assert!(refused("100.0.0.0/8").contains("addresses of the mesh"));
        assert!(refused("fd01::1/128").contains("addresses of the mesh"));
        assert!(refused("10.99.0.0/16").contains("mesh.toml"));
        assert!(refused("10.0.0.0/8").contains("mesh.toml"));
        let command = refused("10.30.1.0/24");
        let all = "set gate --subnet 10.20.0.0/16 --subnet 192.168.1.0/24 --subnet 10.30.1.0/24";
        assert!(command.contains(all), "{command}");
    }

    #[test]
    fn nothing_is_announced_back_to_where_it_was_learned() {
        let mut mesh = mesh();
        // Another guest has these networks in the mesh.
        mesh.others.extend(nets::<Vec<_>>(&["10.20.0.0/16", "10.20.9.0/24", "172.16.5.0/24"]));
        let exchange = Exchange::new(&mesh, &subnets(&[("bob", "172.16.0.0/16")]));
        assert_eq!(exchange.announced[2..], nets::<Vec<_>>(&["192.168.77.0/24"]));
    }

    #[test]
    fn a_default_route_in_the_net_hides_no_network_of_the_mesh() {
        let exchange = Exchange::new(&mesh(), &subnets(&[("bob", "0.0.0.0/0")]));
        assert!(exchange.announced.contains(&net("192.168.77.0/24")));
    }

    #[test]
    fn what_another_guest_of_the_same_mesh_announces_is_not_taken() {
        let other = [("gate2", "fd01::/64"), ("gate2", "10.20.3.0/24"), ("gate2", "100.87.0.0/16")];
        let exchange = Exchange::new(&mesh(), &subnets(&other));
        assert_eq!(exchange.guests, ["gate2"]);
        assert!(exchange.reached.is_empty() && exchange.refused.is_empty(), "{exchange:?}");
        // Nor does it keep this node from announcing the same network.
        let with_lan = [&other[..], &[("gate2", "192.168.77.0/24")]].concat();
        let exchange = Exchange::new(&mesh(), &subnets(&with_lan));
        assert!(exchange.announced.contains(&net("192.168.77.0/24")));
    }

    /// Two guests whose knowledge of each other is late by one round: a subnet that its owner withdraws disappears on both.
    #[test]
    fn a_withdrawn_subnet_does_not_live_on_between_two_guests() {
        let gates = ["gate1", "gate2"];
        let announced_by = |exchange: &Exchange, gate: &str| -> Vec<TincSubnet> {
            let of = |net: &IpNet| TincSubnet { owner: gate.into(), net: *net };
            exchange.announced.iter().map(of).collect()
        };
        let mut of_bob = subnets(&[("bob", "10.20.3.0/24"), ("bob", "172.16.0.0/24")]);
        let mut last = [Exchange::default(), Exchange::default()];
        for round in 0..6 {
            if round == 3 {
                of_bob.clear();
            }
            let next = [0, 1].map(|at: usize| {
                let other = 1 - at;
                let mut mesh = mesh();
                mesh.others.extend(last[other].reached.iter());
                let seen = [of_bob.clone(), announced_by(&last[other], gates[other])].concat();
                Exchange::new(&mesh, &seen)
            });
            last = next;
            let expected = if round < 3 { 1 } else { 0 };
            for exchange in &last {
                assert_eq!(exchange.reached.len(), expected, "round {round}");
                assert!(!exchange.announced.contains(&net("10.20.3.0/24")), "round {round}");
            }
        }
    }

    #[test]
    fn each_list_has_a_bound() {
        let many = |count: usize, second: u8| -> Vec<TincSubnet> {
            let net = |n: usize| format!("10.{second}.{}.{}/32", n / 256, n % 256);
            (0..count)
                .map(|n| TincSubnet { owner: "bob".into(), net: net(n * 2).parse().unwrap() })
                .collect()
        };
        let exchange = Exchange::new(&mesh(), &many(MAX_REACHED + 5, 20));
        assert_eq!((exchange.reached.len(), exchange.left_out), (MAX_REACHED, 5));
        let exchange = Exchange::new(&mesh(), &many(MAX_REFUSED + 7, 99));
        assert_eq!((exchange.refused.len(), exchange.left_out), (MAX_REFUSED, 7));
        let others = many(MAX_ANNOUNCED, 50).into_iter().map(|subnet| subnet.net).collect();
        let exchange = Exchange::new(&Mesh { others, ..mesh() }, &[]);
        assert_eq!((exchange.announced.len(), exchange.left_out), (MAX_ANNOUNCED, 2));
    }

    #[test]
    fn a_subnet_within_another_needs_no_rules_of_its_own() {
        let both = subnets(&[("bob", "10.20.0.0/17"), ("carol", "10.20.3.0/24")]);
        assert_eq!(Exchange::new(&mesh(), &both).reached, nets(&["10.20.0.0/17"]));
    }

    #[test]
    fn a_network_that_overlaps_the_nets_is_tincs() {
        let networks: Vec<IpNet> = nets(&["10.20.0.0/16"]);
        for (text, is_tincs) in [
            ("10.20.0.0/16", true),
            ("10.20.1.0/24", true),
            ("10.0.0.0/8", true),
            ("10.21.0.0/16", false),
        ] {
            assert_eq!(is_of_tinc(&networks, &net(text)), is_tincs, "{text}");
        }
    }
}
