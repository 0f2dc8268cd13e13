//! The messages about the topology, which every node passes on.

use super::contradictions::Claim;
use super::{ConnectionId, Excess, Node};
use crate::graph::EdgeChange;
use crate::meta::{EdgeInfo, Message};
use crate::name::NodeName;
use crate::subnet::Subnet;

/// The number of announced subnets with the same addresses. For a packet to them, the search for a reachable owner may look at all.
const MAX_RIVALS: usize = 1024;

/// A line about the topology, as it arrived.
#[derive(Copy, Clone)]
pub(super) struct Announcement<'a> {
    pub(super) connection: ConnectionId,
    /// The neighbour at the other end. It may only have passed the line on.
    pub(super) neighbour: &'a NodeName,
    pub(super) line: &'a [u8],
}

impl Node {
    /// Handles a message about the topology.
    pub(super) fn flooded(&mut self, announced: Announcement<'_>, message: Message) {
        if !self.seen.insert(self.now, announced.line) {
            return;
        }
        if !self.limits.line(self.now, announced.neighbour) {
            return self.dropped(announced, Excess::Lines);
        }
        match message {
            Message::AddSubnet(owner, subnet) => self.add_subnet_of(announced, &owner, subnet),
            Message::DelSubnet(owner, subnet) => self.del_subnet_of(announced, &owner, subnet),
            Message::AddEdge(from, to, edge) => self.add_edge(announced, &from, &to, edge),
            Message::DelEdge(from, to) => self.del_edge(announced, &from, &to),
            // Nodes with sessions have nothing to forget.
            _ => self.pass_on(announced),
        }
    }

    /// Drops a line of a neighbour that exceeds a limit. The same line may still come from another one.
    fn dropped(&mut self, announced: Announcement<'_>, excess: Excess) {
        self.seen.forget(announced.line);
        self.exceeded(announced.neighbour, excess);
    }

    /// Forwards a line as it came. A node with `TunnelServer` keeps its neighbours apart.
    fn pass_on(&mut self, Announcement { connection, line, .. }: Announcement<'_>) {
        if self.config.tunnel_server {
            return;
        }
        if line.ends_with(b"\n") {
            return self.forward(line, Some(connection));
        }
        self.forward(&[line, b"\n"].concat(), Some(connection));
    }

    /// Returns whether `TunnelServer` hides a message about this node.
    fn is_hidden(&self, node: &NodeName, announced: Announcement<'_>) -> bool {
        self.config.tunnel_server && *node != self.own && node != announced.neighbour
    }

    fn add_subnet_of(&mut self, announced: Announcement<'_>, owner: &NodeName, subnet: Subnet) {
        if self.is_hidden(owner, announced) || self.subnets.contains(owner, &subnet) {
            return;
        }
        if *owner == self.own {
            let answer = Message::DelSubnet(owner.clone(), subnet);
            return self.contradict(announced.connection, Claim::Subnet(subnet), &answer);
        }
        if self.config.tunnel_server {
            return;
        }
        if !self.learn_node(owner, announced.neighbour) {
            return self.seen.forget(announced.line);
        }
        if !self.config.strict_subnets {
            let key = (owner.clone(), subnet);
            let rivals = self.subnets.rivals(&subnet);
            if rivals >= MAX_RIVALS || !self.limits.subnets.take(key.clone(), announced.neighbour) {
                return self.dropped(announced, Excess::Subnets);
            }
            if self.subnets.insert(owner, subnet).is_err() {
                self.limits.subnets.release(&key);
                return self.dropped(announced, Excess::Subnets);
            }
        }
        self.pass_on(announced);
        if !self.config.strict_subnets {
            self.subnet_script(true, owner, subnet);
        }
    }

    fn del_subnet_of(&mut self, announced: Announcement<'_>, owner: &NodeName, subnet: Subnet) {
        if self.is_hidden(owner, announced) {
            return;
        }
        let known = self.subnets.contains(owner, &subnet);
        if *owner == self.own {
            if known {
                let answer = Message::AddSubnet(owner.clone(), subnet);
                self.contradict(announced.connection, Claim::Subnet(subnet), &answer);
            }
            return;
        }
        if self.config.strict_subnets {
            return self.pass_on(announced);
        }
        if known {
            self.pass_on(announced);
            self.forget_subnet(owner, subnet);
        }
    }

    /// Removes a subnet of another node.
    pub(super) fn forget_subnet(&mut self, owner: &NodeName, subnet: Subnet) {
        self.subnet_script(false, owner, subnet);
        self.subnets.remove(owner, &subnet);
        self.limits.subnets.release(&(owner.clone(), subnet));
    }

    fn add_edge(
        &mut self,
        announced: Announcement<'_>,
        from: &NodeName,
        to: &NodeName,
        edge: EdgeInfo,
    ) {
        if self.is_hidden(from, announced) && self.is_hidden(to, announced) {
            return;
        }
        if *from == self.own {
            return self.own_edge_claimed(announced.connection, to, &edge);
        }
        let neighbour = announced.neighbour;
        if !self.learn_node(from, neighbour) || !self.learn_node(to, neighbour) {
            return self.seen.forget(announced.line);
        }
        let key = (from.clone(), to.clone());
        let known = self.graph.edge(from, to).is_some();
        if !known && !self.limits.edges.take(key.clone(), neighbour) {
            return self.dropped(announced, Excess::Edges);
        }
        match self.graph.add_edge(from, to, edge) {
            Ok(EdgeChange::Equal) => {}
            Ok(EdgeChange::Added | EdgeChange::Updated) => {
                self.graph_changed = true;
                self.pass_on(announced);
            }
            Err(_) => {
                self.limits.edges.release(&key);
                self.dropped(announced, Excess::Edges);
            }
        }
    }

    fn del_edge(&mut self, announced: Announcement<'_>, from: &NodeName, to: &NodeName) {
        if self.is_hidden(from, announced) && self.is_hidden(to, announced) {
            return;
        }
        if *from == self.own {
            return self.own_edge_withdrawn(announced.connection, to);
        }
        if self.graph.edge(from, to).is_none() {
            return;
        }
        self.pass_on(announced);
        self.remove_edge(from, to);
    }

    /// Removes an edge of another node.
    pub(super) fn remove_edge(&mut self, from: &NodeName, to: &NodeName) {
        if self.graph.remove_edge(from, to) {
            self.limits.edges.release(&(from.clone(), to.clone()));
            self.graph_changed = true;
        }
    }
}
