//! Changes of the configuration while a node runs.

use std::collections::{BTreeMap, BTreeSet};

use adit_engine::Instant;

use super::limits::Started;
use super::{CloseReason, ConnectionId, Node};
use crate::config::{HostConfig, ServerConfig};
use crate::name::NodeName;
use crate::sptps::CipherChoice;
use crate::subnet::Subnet;

impl Node {
    /// Takes over the settings of `tinc.conf` that may change while a node runs: the nodes to connect to, `AutoConnect`,
    /// `LearnKeys`, `LegacyNodes`, `LocalDiscovery`, `Weight`, and all times and limits. Connections that this node opened to nodes that it no
    /// longer has to connect to are closed.
    pub fn configure(&mut self, now: Instant, server: &ServerConfig) {
        self.now = now;
        let own = &mut self.config;
        own.auto_connect = server.auto_connect;
        own.key_expire = server.key_expire;
        own.learn_keys = server.learn_keys;
        own.legacy_nodes = server.legacy_nodes;
        own.local_discovery = server.local_discovery;
        if own.max_connection_burst != server.max_connection_burst {
            own.max_connection_burst = server.max_connection_burst;
            self.started = Started::new(server.max_connection_burst);
        }
        own.max_output_buffer_size = server.max_output_buffer_size;
        own.max_timeout = server.max_timeout;
        own.mtu_info_interval = server.mtu_info_interval;
        own.own.weight = server.own.weight;
        own.ping_interval = server.ping_interval;
        own.ping_timeout = server.ping_timeout;
        own.udp_discovery = server.udp_discovery;
        own.udp_discovery_interval = server.udp_discovery_interval;
        own.udp_discovery_keepalive_interval = server.udp_discovery_keepalive_interval;
        own.udp_discovery_timeout = server.udp_discovery_timeout;
        own.udp_info_interval = server.udp_info_interval;
        let old = std::mem::replace(&mut own.connect_to, server.connect_to.clone());
        for node in old.iter().filter(|node| !server.connect_to.contains(node)) {
            self.stop_connecting(node);
        }
        for node in &server.connect_to {
            self.add_outgoing(node, false);
        }
        if !server.auto_connect {
            self.forget_choices();
        }
        self.start_rounds();
        self.finish();
    }

    /// No longer keeps a connection with a node. One that the other node opened remains.
    fn stop_connecting(&mut self, node: &NodeName) {
        self.outgoing.remove(node);
        let opened = self.connections.iter();
        let opened = opened.filter(|(_, connection)| connection.dialled.as_ref() == Some(node));
        let opened: Vec<ConnectionId> = opened.map(|(id, _)| *id).collect();
        for id in opened {
            self.close(id, CloseReason::Requested);
        }
    }

    /// Takes the host files and this node's subnets as they are now. Connections with nodes whose host file changed or vanished are closed.
    /// Subnets that were announced by [`Node::add_subnet`] remain.
    pub fn reload(
        &mut self,
        now: Instant,
        hosts: BTreeMap<NodeName, HostConfig>,
        own_subnets: &[Subnet],
    ) {
        self.now = now;
        let changed = self.connections.iter().filter_map(|(id, connection)| {
            let node = &connection.meta()?.node;
            (self.hosts.get(node) != hosts.get(node)).then_some(*id)
        });
        let changed: Vec<ConnectionId> = changed.collect();
        let choices: Vec<(NodeName, CipherChoice)> =
            self.peers.keys().map(|name| (name.clone(), self.cipher_choice(name))).collect();
        let old = std::mem::replace(&mut self.hosts, hosts);
        for id in changed {
            self.close(id, CloseReason::HostChanged);
        }
        self.recent.retain(|name, _| self.hosts.contains_key(name));
        if self.config.strict_subnets {
            self.replace_host_subnets(&old);
        }
        self.finish();
        for (name, choice) in choices {
            // The other node may be reloaded later: until then no session is established.
            if choice != self.cipher_choice(&name) && self.peers.contains_key(&name) {
                self.start_session(&name);
            }
        }
        self.finish();
        let old = std::mem::replace(&mut self.config.own.subnets, own_subnets.to_vec());
        for subnet in old.iter().filter(|subnet| !own_subnets.contains(subnet)) {
            self.remove_subnet(now, *subnet);
        }
        for subnet in own_subnets {
            self.add_subnet(now, *subnet);
        }
    }

    /// With `StrictSubnets`, replaces the subnets of the old host files by those of the new ones.
    fn replace_host_subnets(&mut self, old: &BTreeMap<NodeName, HostConfig>) {
        let mut names: BTreeSet<NodeName> = old.keys().chain(self.hosts.keys()).cloned().collect();
        names.remove(&self.own);
        for name in &names {
            let listed = |hosts: &BTreeMap<NodeName, HostConfig>| {
                hosts.get(name).map(|host| host.subnets.clone()).unwrap_or_default()
            };
            let (before, after) = (listed(old), listed(&self.hosts));
            for subnet in before.iter().filter(|subnet| !after.contains(subnet)) {
                self.subnet_script(false, name, *subnet);
                self.subnets.remove(name, subnet);
            }
            self.add_host_subnets(name, &after);
        }
    }

    fn add_host_subnets(&mut self, name: &NodeName, subnets: &[Subnet]) {
        for subnet in subnets {
            if self.subnets.insert(name, *subnet) == Ok(true) {
                self.subnet_script(true, name, *subnet);
            }
        }
    }

    /// Adds the host file of a new node, such as one that has accepted an invitation. It replaces a key that came over the net.
    pub fn add_host(&mut self, now: Instant, name: &NodeName, host: HostConfig) {
        self.now = now;
        if *name == self.own {
            return;
        }
        if self.config.strict_subnets {
            self.add_host_subnets(name, &host.subnets);
        }
        let key = host.public_key;
        let old = self.hosts.insert(name.clone(), host);
        if old.is_some_and(|old| old.public_key != key) {
            let ids = self
                .connections
                .iter()
                .filter(|(_, connection)| connection.meta().is_some_and(|meta| meta.node == *name));
            let ids: Vec<ConnectionId> = ids.map(|(id, _)| *id).collect();
            for id in ids {
                self.close(id, CloseReason::HostChanged);
            }
        }
        self.finish();
    }
}
