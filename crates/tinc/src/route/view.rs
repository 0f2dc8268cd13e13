//! The router's view of the net.

use crate::graph::{Graph, SubnetTable};
use crate::meta::Options;
use crate::name::NodeName;
use crate::subnet::{Subnet, SubnetAddress};

/// How a reachable node is reached.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Path<'a> {
    /// The neighbour on the way.
    pub next_hop: &'a NodeName,
    /// The node that datagrams are sent to: the node itself, or a relay. It is never the own node: then it is the neighbour.
    pub via: &'a NodeName,
    /// Length of the longest frame that reaches `via`, bytes; 0 if it is unknown.
    pub mtu: u16,
    /// The MSS of TCP connections is lowered to what fits.
    pub clamp_mss: bool,
}

/// The facts about the net that a router needs.
pub trait View {
    /// Returns the own node.
    fn own(&self) -> &NodeName;

    /// Returns the node that has an address, and its subnet, as [`SubnetTable::lookup`] does.
    fn owner(&self, address: SubnetAddress) -> Option<(&NodeName, &Subnet)>;

    /// Returns how a node is reached; `None` if it is unreachable.
    fn path(&self, node: &NodeName) -> Option<Path<'_>>;

    /// Returns the neighbours in the tree along which packets to many nodes travel.
    fn tree(&self) -> impl Iterator<Item = &NodeName>;

    /// Returns the nodes to which packets are sent without a relay.
    fn direct_nodes(&self) -> impl Iterator<Item = &NodeName>;
}

/// The view of a node with a graph and a table of subnets.
#[derive(Copy, Clone, Debug)]
pub struct Topology<'a, M> {
    /// The nodes and edges.
    pub graph: &'a Graph,
    /// The subnets.
    pub subnets: &'a SubnetTable,
    /// The neighbours in the tree; see [`tree_neighbours`].
    pub tree: &'a [NodeName],
    /// Returns the length of the longest frame that reaches a node directly, in bytes; 0 if it is unknown.
    pub mtu: M,
}

/// Returns the neighbours in the minimum spanning tree. Call it after a change of the graph.
pub fn tree_neighbours(graph: &Graph) -> Vec<NodeName> {
    let own = graph.own();
    let other = |(from, to): (NodeName, NodeName)| match (from == *own, to == *own) {
        (true, _) => Some(to),
        (_, true) => Some(from),
        _ => None,
    };
    graph.tree().into_iter().filter_map(other).collect()
}

impl<M: Fn(&NodeName) -> u16> View for Topology<'_, M> {
    fn own(&self) -> &NodeName {
        self.graph.own()
    }

    fn owner(&self, address: SubnetAddress) -> Option<(&NodeName, &Subnet)> {
        self.subnets.lookup(address, |owner| self.graph.route(owner).is_some())
    }

    fn path(&self, node: &NodeName) -> Option<Path<'_>> {
        let route = self.graph.route(node)?;
        let via = if route.via == *self.own() { &route.next_hop } else { &route.via };
        let options = self.graph.route(via).map_or(route.options, |route| route.options);
        Some(Path {
            next_hop: &route.next_hop,
            via,
            mtu: (self.mtu)(via),
            clamp_mss: options.has(Options::CLAMP_MSS),
        })
    }

    fn tree(&self) -> impl Iterator<Item = &NodeName> {
        self.tree.iter()
    }

    fn direct_nodes(&self) -> impl Iterator<Item = &NodeName> {
        let own = self.own();
        self.graph.nodes().filter(move |node| {
            *node != own && self.path(node).is_some_and(|path| path.via == *node)
        })
    }
}
