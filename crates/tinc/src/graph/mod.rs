//! The topology of a net: nodes and edges, who is reachable and how, and the tree for packets to many nodes.
//!
//! An edge is one direction of a connection between two nodes, as its first node announced it. It counts only if the other node has
//! announced the reverse edge. All nodes see the same edges and compute the same results, so the details of the order here are part of the
//! protocol.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::SocketAddr;

use crate::meta::{EdgeInfo, Options};
use crate::name::NodeName;

mod subnets;

pub use subnets::{MAX_SUBNETS, SubnetTable};

/// The number of nodes that a graph can have.
pub const MAX_NODES: usize = 16_384;

/// The number of edges that a graph can have.
pub const MAX_EDGES: usize = 131_072;

/// The graph or a table is full. The announcement is not stored, and counted.
#[derive(Copy, Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the net has too many nodes, edges or subnets")]
pub struct Full;

/// The effect of an edge's announcement.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum EdgeChange {
    /// The edge is new.
    Added,
    /// The edge has other values than before.
    Updated,
    /// The edge is known with these values. The announcement is not passed on.
    Equal,
}

/// How a reachable node is reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Route {
    /// The number of edges on the way.
    pub distance: u32,
    /// The sum of their weights.
    pub weight: i64,
    /// The neighbour on the way; the node itself if it is one. Messages go through it.
    pub next_hop: NodeName,
    /// The last node on the way to which datagrams may be sent directly; usually the node itself.
    pub via: NodeName,
    /// An edge on the way says that only neighbours send to its end directly.
    pub indirect: bool,
    /// The options of the last edge, with the node's minor version.
    pub options: Options,
    /// The node's address in the last edge.
    pub address: Option<SocketAddr>,
}

/// A node that became reachable or unreachable.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reachability {
    /// The node.
    pub node: NodeName,
    /// Whether it is reachable now.
    pub reachable: bool,
}

/// The nodes and edges of a net, from the view of one node.
#[derive(Clone, Debug)]
pub struct Graph {
    own: NodeName,
    nodes: BTreeMap<NodeName, Node>,
    edges: usize,
    refused: u64,
}

#[derive(Clone, Debug, Default)]
struct Node {
    edges: BTreeMap<NodeName, EdgeInfo>,
    route: Option<Route>,
}

impl Graph {
    /// Creates the graph of a node that knows only itself.
    pub fn new(own: NodeName) -> Self {
        let mut graph = Self { own: own.clone(), nodes: BTreeMap::new(), edges: 0, refused: 0 };
        let node = Node { route: Some(graph.own_route()), ..Node::default() };
        graph.nodes.insert(own, node);
        graph
    }

    /// Returns the node's own name.
    pub fn own(&self) -> &NodeName {
        &self.own
    }

    /// Adds a node without edges, unless it is known.
    ///
    /// # Errors
    /// The graph is full.
    pub fn add_node(&mut self, name: &NodeName) -> Result<(), Full> {
        if self.nodes.contains_key(name) {
            return Ok(());
        }
        if self.nodes.len() >= MAX_NODES {
            self.refused = self.refused.saturating_add(1);
            return Err(Full);
        }
        self.nodes.insert(name.clone(), Node::default());
        Ok(())
    }

    /// Returns the number of nodes and edges.
    pub fn size(&self) -> usize {
        self.nodes.len().saturating_add(self.edges)
    }

    /// Returns whether a node is known.
    pub fn contains(&self, name: &NodeName) -> bool {
        self.nodes.contains_key(name)
    }

    /// Removes the nodes that are not reachable and have no edges in either direction. Returns their names.
    pub fn remove_unused(&mut self) -> Vec<NodeName> {
        let named: BTreeSet<NodeName> =
            self.nodes.values().flat_map(|node| node.edges.keys()).cloned().collect();
        let mut removed = Vec::new();
        self.nodes.retain(|name, node| {
            let is_unused = node.edges.is_empty() && node.route.is_none() && !named.contains(name);
            if is_unused {
                removed.push(name.clone());
            }
            !is_unused
        });
        removed
    }

    /// Adds or updates an edge. Call [`Graph::compute`] after a batch of changes.
    ///
    /// # Errors
    /// The graph is full.
    pub fn add_edge(
        &mut self,
        from: &NodeName,
        to: &NodeName,
        edge: EdgeInfo,
    ) -> Result<EdgeChange, Full> {
        if let Some(known) = self.nodes.get_mut(from).and_then(|node| node.edges.get_mut(to)) {
            // An announcement without a usable local address does not change the known one.
            let local = edge.local.as_ref().filter(|local| local.socket().is_some());
            let equal = known.address == edge.address
                && known.options == edge.options
                && known.weight == edge.weight
                && local.is_none_or(|local| known.local.as_ref() == Some(local));
            if equal {
                return Ok(EdgeChange::Equal);
            }
            let local = local.cloned().or_else(|| known.local.take());
            *known = EdgeInfo { local, ..edge };
            return Ok(EdgeChange::Updated);
        }
        if self.edges >= MAX_EDGES {
            self.refused = self.refused.saturating_add(1);
            return Err(Full);
        }
        self.add_node(from)?;
        self.add_node(to)?;
        self.edges = self.edges.saturating_add(1);
        self.nodes.entry(from.clone()).or_default().edges.insert(to.clone(), edge);
        Ok(EdgeChange::Added)
    }

    /// Removes an edge. Returns whether it was known.
    pub fn remove_edge(&mut self, from: &NodeName, to: &NodeName) -> bool {
        let known = self.nodes.get_mut(from).is_some_and(|node| node.edges.remove(to).is_some());
        if known {
            self.edges = self.edges.saturating_sub(1);
        }
        known
    }

    /// Returns an edge.
    pub fn edge(&self, from: &NodeName, to: &NodeName) -> Option<&EdgeInfo> {
        self.nodes.get(from)?.edges.get(to)
    }

    /// Returns the names of all nodes, in their order.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeName> {
        self.nodes.keys()
    }

    /// Returns the name of the first node after this one, in the order of names.
    pub fn node_after(&self, name: &NodeName) -> Option<&NodeName> {
        let later = (std::ops::Bound::Excluded(name), std::ops::Bound::Unbounded);
        self.nodes.range::<NodeName, _>(later).next().map(|(name, _)| name)
    }

    /// Returns the edges of a node, in the order of the names that they lead to.
    pub fn edges_of(&self, from: &NodeName) -> impl Iterator<Item = (&NodeName, &EdgeInfo)> {
        self.nodes.get(from).into_iter().flat_map(|node| &node.edges)
    }

    /// Returns how a node is reached, as of the last [`Graph::compute`]; `None` if it is unreachable.
    pub fn route(&self, name: &NodeName) -> Option<&Route> {
        self.nodes.get(name)?.route.as_ref()
    }

    /// Returns the number of announcements that were not stored because the graph was full.
    pub fn refused(&self) -> u64 {
        self.refused
    }

    fn own_route(&self) -> Route {
        Route {
            distance: 0,
            weight: 0,
            next_hop: self.own.clone(),
            via: self.own.clone(),
            indirect: false,
            options: Options::new(0),
            address: None,
        }
    }

    /// Computes the routes to all nodes. Returns the nodes that became reachable or unreachable, in the order of their names.
    ///
    /// The fewest edges win, then the lowest sum of weights. A way without an indirect edge takes precedence over one with, even if it is
    /// longer, but only for where datagrams go.
    pub fn compute(&mut self) -> Vec<Reachability> {
        // A node is visited again when its route improves. Weights that a node invents could make that happen very often.
        let routes = self.search(self.edges.saturating_mul(8).saturating_add(64));
        let mut changes = Vec::new();
        for (name, node) in &mut self.nodes {
            let route = routes.get(name).cloned();
            if route.is_some() != node.route.is_some() {
                changes.push(Reachability { node: name.clone(), reachable: route.is_some() });
            }
            node.route = route;
        }
        changes
    }

    /// Searches from the node itself, and stops after a number of improvements.
    fn search(&self, mut left: usize) -> BTreeMap<NodeName, Route> {
        let mut routes = BTreeMap::from([(self.own.clone(), self.own_route())]);
        let mut queue = VecDeque::from([self.own.clone()]);
        while let Some(name) = queue.pop_front() {
            let (Some(node), Some(here)) = (self.nodes.get(&name), routes.get(&name).cloned())
            else {
                continue;
            };
            for (to, edge) in &node.edges {
                if *to == self.own || self.edge(to, &name).is_none() {
                    continue;
                }
                let known = routes.get(to);
                let Some(route) = self.improve(&name, &here, to, edge, known) else { continue };
                if left == 0 {
                    return routes;
                }
                left = left.saturating_sub(1);
                routes.insert(to.clone(), route);
                queue.push_back(to.clone());
            }
        }
        routes
    }

    /// Returns the route to `to` by an edge from `name`, unless the known one remains.
    fn improve(
        &self,
        name: &NodeName,
        here: &Route,
        to: &NodeName,
        edge: &EdgeInfo,
        known: Option<&Route>,
    ) -> Option<Route> {
        let indirect = here.indirect || edge.options.has(Options::INDIRECT);
        let distance = here.distance.saturating_add(1);
        let weight = here.weight.saturating_add(edge.weight.into());
        let lighter =
            known.is_some_and(|known| known.distance == distance && weight < known.weight);
        if known.is_some_and(|known| (!known.indirect || indirect) && !lighter) {
            return None;
        }
        let (next_hop, weight) = match known {
            // The way to a relay remains, although datagrams take another one.
            Some(known) if !lighter => (known.next_hop.clone(), known.weight),
            _ if *name == self.own => (to.clone(), weight),
            _ => (here.next_hop.clone(), weight),
        };
        Some(Route {
            distance,
            weight,
            next_hop,
            via: if indirect { here.via.clone() } else { to.clone() },
            indirect,
            options: edge.options,
            // Only this node's own edges have addresses that it has seen.
            address: if *name == self.own { edge.address.socket() } else { edge.address.remote() },
        })
    }

    /// Computes the minimum spanning tree, along which packets to many nodes travel. Returns its edges. A connection is part of the tree if its
    /// edge or the reverse one is.
    ///
    /// The tree grows from the first node of the lightest edge whose first node is reachable. Edges are in the order of their weights, and
    /// then of their names.
    pub fn tree(&self) -> BTreeSet<(NodeName, NodeName)> {
        let mut tree = BTreeSet::new();
        let edges = self.nodes.iter().flat_map(|(from, node)| {
            node.edges.iter().map(move |(to, edge)| (edge.weight, from, to))
        });
        let reachable = |name: &NodeName| self.route(name).is_some();
        let Some((_, start, _)) = edges.filter(|(_, from, _)| reachable(from)).min() else {
            return tree;
        };
        let mut visited = BTreeSet::new();
        let mut frontier = BTreeSet::new();
        let mut next = Some(start);
        while let Some(name) = next {
            visited.insert(name);
            // Both directions of a connection may have their own weights.
            for (to, edge) in self.edges_of(name) {
                if let Some(back) = self.edge(to, name) {
                    frontier.insert((edge.weight, name, to));
                    frontier.insert((back.weight, to, name));
                }
            }
            next = None;
            while let Some((_, from, to)) = frontier.pop_first() {
                let new = match (visited.contains(from), visited.contains(to)) {
                    (true, false) => to,
                    (false, true) => from,
                    _ => continue,
                };
                tree.insert((from.clone(), to.clone()));
                next = Some(new);
                break;
            }
        }
        tree
    }
}

#[cfg(test)]
mod tests;
