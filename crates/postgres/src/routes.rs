//! The addresses of each node. They determine a packet's destination and each peer's allowed sources (WireGuard's allowed-ips).
//!
//! The tables are rebuilt from the verified node records whenever a node is added or removed. This is rare compared with look-ups.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use prefix_trie::PrefixMap;

use crate::limits::{PEERS, PREFIXES};
use crate::{NodeId, StreamId};

/// Another node according to its verified record, with the streams between it and this one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Peer {
    /// The peer.
    pub node: NodeId,
    /// The stream from this node to the peer.
    pub outgoing: StreamId,
    /// The stream from the peer to this node.
    pub incoming: StreamId,
    /// The peer's addresses in the network.
    pub addresses: Vec<IpAddr>,
    /// The networks behind the peer.
    pub subnets: Vec<IpNet>,
}

/// The owner of a prefix.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Owner {
    Me,
    Peer { outgoing: StreamId, incoming: StreamId },
}

/// A stream as reported by the database, with its number, sender and receiver. These values are not authenticated.
pub type StreamEnds = (StreamId, NodeId, NodeId);

/// Returns the trustworthy streams from and to `me`, in ascending order. A number that is reported with different ends
/// is left out. Otherwise an attacker who controls the database could deliver one node's packets to another, or let a
/// node send with another's addresses.
pub fn unambiguous(me: NodeId, told: impl IntoIterator<Item = StreamEnds>) -> Vec<StreamEnds> {
    let mut streams: BTreeMap<StreamId, Option<(NodeId, NodeId)>> = BTreeMap::new();
    for (stream, from, to) in told {
        let of_me = (from == me) != (to == me);
        if stream.0 <= 0 || !of_me {
            continue;
        }
        let ends = streams.entry(stream).or_insert(Some((from, to)));
        *ends = ends.filter(|ends| *ends == (from, to));
    }
    streams
        .into_iter()
        .filter_map(|(stream, ends)| ends.map(|(from, to)| (stream, from, to)))
        .collect()
}

/// Returns the outgoing and the incoming streams in `former` that are not in `now`, or that belong to another node now.
/// Their queues, keys and epochs are obsolete.
pub fn removed_streams(former: &[Peer], now: &[Peer]) -> (Vec<StreamId>, Vec<StreamId>) {
    let outgoing: BTreeSet<_> = now.iter().map(|peer| (peer.outgoing, peer.node)).collect();
    let incoming: BTreeSet<_> = now.iter().map(|peer| (peer.incoming, peer.node)).collect();
    let gone = former.iter().filter(|peer| !outgoing.contains(&(peer.outgoing, peer.node)));
    let left = former.iter().filter(|peer| !incoming.contains(&(peer.incoming, peer.node)));
    (gone.map(|peer| peer.outgoing).collect(), left.map(|peer| peer.incoming).collect())
}

/// The longest-prefix tables for both address families.
#[derive(Clone, Debug, Default)]
pub struct Routes {
    v4: PrefixMap<Ipv4Net, Owner>,
    v6: PrefixMap<Ipv6Net, Owner>,
    entered: usize,
    left_out: usize,
}

impl Routes {
    /// Creates the routes of a node that owns `addresses` and `subnets` among `peers`. If two nodes claim the same
    /// prefix, this node takes precedence, otherwise the one with the lower [`NodeId`], which is older. At most
    /// [`PEERS`] nodes and [`PREFIXES`] prefixes are used; see [`Self::left_out`].
    pub fn new(addresses: &[IpAddr], subnets: &[IpNet], peers: &[Peer]) -> Self {
        let mut routes = Self::default();
        routes.enter(Owner::Me, addresses, subnets);
        let mut sorted: Vec<&Peer> = peers.iter().collect();
        sorted.sort_by_key(|peer| peer.node);
        for (index, peer) in sorted.into_iter().enumerate() {
            if index < PEERS {
                let owner = Owner::Peer { outgoing: peer.outgoing, incoming: peer.incoming };
                routes.enter(owner, &peer.addresses, &peer.subnets);
            } else {
                let claimed = peer.addresses.len().saturating_add(peer.subnets.len());
                routes.left_out = routes.left_out.saturating_add(claimed);
            }
        }
        routes
    }

    fn enter(&mut self, owner: Owner, addresses: &[IpAddr], subnets: &[IpNet]) {
        let hosts = addresses.iter().map(|address| IpNet::from(*address));
        for prefix in hosts.chain(subnets.iter().copied()) {
            let free = match prefix {
                IpNet::V4(net) => self.v4.get(&net.trunc()).is_none(),
                IpNet::V6(net) => self.v6.get(&net.trunc()).is_none(),
            };
            if !free || self.entered >= PREFIXES {
                self.left_out = self.left_out.saturating_add(1);
                continue;
            }
            self.entered = self.entered.saturating_add(1);
            match prefix {
                IpNet::V4(net) => _ = self.v4.insert(net.trunc(), owner),
                IpNet::V6(net) => _ = self.v6.insert(net.trunc(), owner),
            }
        }
    }

    #[inline]
    fn owner(&self, address: IpAddr) -> Option<Owner> {
        match address {
            IpAddr::V4(address) => self.v4.get_lpm(&address.into()).map(|(_, owner)| *owner),
            IpAddr::V6(address) => self.v6.get_lpm(&address.into()).map(|(_, owner)| *owner),
        }
    }

    /// Returns the stream to the owner of `destination`, or `None` if there is no owner or the owner is this node.
    #[inline]
    pub fn to(&self, destination: IpAddr) -> Option<StreamId> {
        match self.owner(destination)? {
            Owner::Me => None,
            Owner::Peer { outgoing, .. } => Some(outgoing),
        }
    }

    /// Returns whether a packet from `source` may arrive in `stream`, whose sender must own the longest matching
    /// prefix.
    #[inline]
    pub fn may_come(&self, stream: StreamId, source: IpAddr) -> bool {
        matches!(self.owner(source), Some(Owner::Peer { incoming, .. }) if incoming == stream)
    }

    /// Returns whether a packet to `destination` is for this node.
    #[inline]
    pub fn is_mine(&self, destination: IpAddr) -> bool {
        self.owner(destination) == Some(Owner::Me)
    }

    /// Returns the number of prefixes that are not routed, because another node owns them or a limit was reached.
    pub fn left_out(&self) -> usize {
        self.left_out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(node: i32, addresses: &[&str], subnets: &[&str]) -> Peer {
        Peer {
            node: NodeId(node),
            outgoing: StreamId(node * 10),
            incoming: StreamId(node * 10 + 1),
            addresses: addresses.iter().map(|a| a.parse().unwrap()).collect(),
            subnets: subnets.iter().map(|s| s.parse().unwrap()).collect(),
        }
    }

    fn ip(text: &str) -> IpAddr {
        text.parse().unwrap()
    }

    /// Creates the routes of node 1.
    fn routes(peers: &[Peer]) -> Routes {
        Routes::new(&[ip("10.9.0.1"), ip("fd00::1")], &["192.168.1.0/24".parse().unwrap()], peers)
    }

    #[test]
    fn the_longest_prefix_owns_an_address_in_both_directions() {
        let routes = routes(&[
            peer(2, &["10.9.0.2", "fd00::2"], &["10.0.0.0/8", "::/0"]),
            peer(3, &["10.9.0.3", "fd00::3"], &["10.5.0.0/16", "fd01::/64"]),
        ]);
        for (address, node) in [
            ("10.9.0.2", 2),
            ("10.9.0.3", 3),
            ("10.9.0.4", 2),
            ("10.5.0.1", 3),
            ("fd00::3", 3),
            ("fd01::9", 3),
            ("2001:db8::1", 2),
        ] {
            assert_eq!(routes.to(ip(address)), Some(StreamId(node * 10)), "{address}");
            for sender in [2, 3] {
                assert_eq!(
                    routes.may_come(StreamId(sender * 10 + 1), ip(address)),
                    sender == node,
                    "{address} {sender}"
                );
                assert!(
                    !routes.may_come(StreamId(sender * 10), ip(address)),
                    "an outgoing stream brings nothing"
                );
            }
            assert!(!routes.is_mine(ip(address)));
        }
        assert_eq!(routes.left_out(), 0);
    }

    #[test]
    fn what_is_this_nodes_is_sent_to_no_node_and_comes_from_none() {
        let routes = routes(&[peer(2, &["10.9.0.2"], &["0.0.0.0/0", "::/0"])]);
        for mine in ["10.9.0.1", "fd00::1", "192.168.1.77"] {
            assert!(routes.is_mine(ip(mine)));
            assert_eq!(routes.to(ip(mine)), None);
            assert!(!routes.may_come(StreamId(21), ip(mine)));
        }
    }

    #[test]
    fn what_no_node_owns_goes_nowhere() {
        let routes = routes(&[peer(2, &["10.9.0.2"], &[])]);
        for nobodys in ["10.9.0.3", "255.255.255.255", "224.0.0.1", "ff02::1", "0.0.0.0"] {
            assert_eq!(routes.to(ip(nobodys)), None);
            assert!(!routes.may_come(StreamId(21), ip(nobodys)));
            assert!(!routes.is_mine(ip(nobodys)));
        }
    }

    #[test]
    fn a_prefix_claimed_twice_stays_with_the_first_claimant() {
        let routes = routes(&[
            peer(3, &["10.9.0.2", "10.9.0.1"], &["10.7.0.9/16", "192.168.1.0/24"]),
            peer(2, &["10.9.0.2"], &["10.7.0.0/16"]),
        ]);
        assert_eq!(routes.to(ip("10.9.0.2")), Some(StreamId(20)));
        assert_eq!(routes.to(ip("10.7.1.1")), Some(StreamId(20)));
        assert!(routes.is_mine(ip("10.9.0.1")) && routes.is_mine(ip("192.168.1.1")));
        assert_eq!(routes.left_out(), 4);
    }

    #[test]
    fn more_than_the_limits_is_left_out_and_counted() {
        let peers: Vec<Peer> = (2..PEERS as i32 + 12)
            .map(|node| peer(node, &[&format!("10.8.{}.{}", node / 256, node % 256)], &[]))
            .collect();
        let full = routes(&peers);
        assert_eq!(full.left_out(), 10);
        assert_eq!(full.to(ip("10.8.0.2")), Some(StreamId(20)));
        let many = Peer {
            subnets: (0..PREFIXES as u32 + 5)
                .map(|n| IpNet::new(IpAddr::V4((n << 8).into()), 24).unwrap())
                .collect(),
            ..peer(2, &[], &[])
        };
        // This node has three prefixes itself, one of which the peer claims too.
        assert_eq!(routes(&[many]).left_out(), 3 + 5);
    }

    #[test]
    fn a_number_that_is_told_of_two_nodes_is_neithers() {
        let of = |stream, from, to| (StreamId(stream), NodeId(from), NodeId(to));
        let told = [of(5, 1, 2), of(6, 2, 1), of(7, 3, 1), of(8, 1, 3), of(5, 1, 3), of(7, 2, 1)];
        assert_eq!(unambiguous(NodeId(1), told), [of(6, 2, 1), of(8, 1, 3)]);
        // A stream that is reported with different ends has no owner, even if a later report repeats the first.
        let told = [of(5, 1, 2), of(5, 1, 3), of(5, 1, 2)];
        assert_eq!(unambiguous(NodeId(1), told), []);
        // Both directions have the same number.
        assert_eq!(unambiguous(NodeId(1), [of(5, 1, 2), of(5, 2, 1)]), []);
        // The same report twice is not a contradiction.
        assert_eq!(unambiguous(NodeId(1), [of(5, 1, 2), of(5, 1, 2)]), [of(5, 1, 2)]);
    }

    #[test]
    fn streams_of_others_to_oneself_and_without_a_number_are_none() {
        let of = |stream, from, to| (StreamId(stream), NodeId(from), NodeId(to));
        for told in [of(0, 1, 2), of(-5, 1, 2), of(5, 2, 3), of(5, 1, 1)] {
            assert_eq!(unambiguous(NodeId(1), [told]), [], "{told:?}");
        }
    }

    #[test]
    fn a_stream_departs_with_its_node_with_its_number_and_when_it_becomes_anothers() {
        let (two, three) = (peer(2, &[], &[]), peer(3, &[], &[]));
        let both = [two.clone(), three.clone()];
        assert_eq!(removed_streams(&both, &both), (vec![], vec![]));
        assert_eq!(removed_streams(&both, &both[1..]), (vec![StreamId(20)], vec![StreamId(21)]));
        let other_way_back = Peer { incoming: StreamId(99), ..two.clone() };
        assert_eq!(
            removed_streams(&both, &[other_way_back, three.clone()]),
            (vec![], vec![StreamId(21)])
        );
        let swapped = [
            Peer { outgoing: three.outgoing, ..two.clone() },
            Peer { outgoing: two.outgoing, ..three.clone() },
        ];
        assert_eq!(removed_streams(&both, &swapped), (vec![StreamId(20), StreamId(30)], vec![]));
    }
}
