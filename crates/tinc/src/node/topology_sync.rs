//! Sends the topology to a new neighbour.

use super::{ConnectionId, Node};
use crate::meta::Message;
use crate::name::NodeName;

/// The number of waiting bytes on a connection below which more of the topology is sent to a new neighbour.
const MAX_SYNC_QUEUE: usize = 4 << 20;

impl Node {
    /// Sends the whole topology to a new neighbour.
    pub(super) fn start_topology_sync(&mut self, id: ConnectionId) {
        if self.config.tunnel_server {
            self.send_subnets(id, &self.own.clone());
            return;
        }
        let first = self.graph.nodes().next().cloned();
        if let Some(connection) = self.connections.get_mut(&id) {
            connection.sync_next = first;
        }
        self.syncing.insert(id);
        self.continue_topology_sync();
    }

    /// Sends more of the topology to new neighbours, as far as their queues have room: what a node has invented must not fill them.
    pub(super) fn continue_topology_sync(&mut self) {
        for id in self.syncing.clone() {
            loop {
                let connection =
                    self.connections.get(&id).filter(|it| it.queued() < MAX_SYNC_QUEUE);
                let Some(name) = connection.and_then(|it| it.sync_next.clone()) else { break };
                self.send_subnets(id, &name);
                let edges: Vec<Message> = self
                    .graph
                    .edges_of(&name)
                    .map(|(to, edge)| Message::AddEdge(name.clone(), to.clone(), edge.clone()))
                    .collect();
                edges.iter().for_each(|message| self.send(id, message));
                let next = self.graph.node_after(&name).cloned();
                if let Some(connection) = self.connections.get_mut(&id) {
                    connection.sync_next = next;
                }
            }
            if self.connections.get(&id).is_none_or(|connection| connection.sync_next.is_none()) {
                self.syncing.remove(&id);
            }
        }
    }

    fn send_subnets(&mut self, id: ConnectionId, owner: &NodeName) {
        let subnets: Vec<Message> = self
            .subnets
            .of(owner)
            .map(|subnet| Message::AddSubnet(owner.clone(), *subnet))
            .collect();
        subnets.iter().for_each(|message| self.send(id, message));
    }
}
