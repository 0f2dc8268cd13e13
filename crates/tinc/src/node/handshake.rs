//! How a connection becomes a neighbour's: the identification and the ACK.

use std::net::SocketAddr;

use super::connections::{Liveness, Meta, Next, State};
use super::{CloseReason, ConnectionId, Event, Node, Output};
use crate::config::HostConfig;
use crate::legacy::check_version;
use crate::meta::{AddressToken, EdgeInfo, Id, Identity, Message, Options, Token};
use crate::name::NodeName;
use crate::sptps::{CipherChoice, Params, Role, Stream, meta_label};

impl Node {
    /// Checks the peer's identification, and starts the session.
    pub(super) fn identified(
        &mut self,
        id: ConnectionId,
        line: &[u8],
        input: &mut &[u8],
    ) -> Result<(), CloseReason> {
        let peer = Id::parse(line)?;
        let Some(connection) = self.connections.get_mut(&id) else { return Ok(()) };
        let name = match &peer.identity {
            Identity::Node(name) => name.clone(),
            Identity::Control(_) => return Err(CloseReason::Control),
            Identity::Joining(_) if connection.dialled.is_some() => {
                return Err(CloseReason::OutOfTurn);
            }
            Identity::Joining(key) => {
                let rest = std::mem::take(input).to_vec();
                let (address, key) = (connection.remote, *key);
                self.connections.remove(&id);
                self.outputs.push_back(Output::Join { connection: id, address, key, rest });
                return Ok(());
            }
        };
        if name == self.own {
            return Err(CloseReason::OwnName);
        }
        if let Some(dialled) = &connection.dialled
            && *dialled != name
        {
            return Err(CloseReason::OtherNode(name, dialled.clone()));
        }
        let host = self.hosts.get(&name).ok_or_else(|| CloseReason::UnknownNode(name.clone()))?;
        let key = *check_version(&name, &peer, host.public_key.as_ref())?;
        let (role, label) = if connection.dialled.is_some() {
            (Role::Initiator, meta_label(self.own.as_str(), name.as_str()))
        } else {
            connection.identified = self.now;
            Id::of(self.own.clone()).write(&mut connection.out);
            (Role::Responder, meta_label(name.as_str(), self.own.as_str()))
        };
        let options = own_options(&self.config.own, host);
        let cipher = host.cipher.or(self.config.own.cipher).unwrap_or_default();
        let cipher = CipherChoice::Fixed(cipher);
        let params = Params { role, key: self.key.clone(), peer: key, label, cipher };
        let stream = Stream::start(params, &mut self.random, &mut connection.out);
        let meta = Meta { node: name, stream, next: Next::Message, options, weight: 0 };
        connection.state = State::Handshake(meta);
        self.unsent.insert(id);
        Ok(())
    }

    /// The session of a connection is established: sends the ACK, unless another connection with the same node remains.
    ///
    /// If two nodes connect to each other at once, each would keep the connection whose ACK came last. These are different ones, so both would
    /// end. The one that the node with the greater name opened remains: the other one gets no ACK, so tinc, which has no such rule, keeps the
    /// same.
    pub(super) fn established(&mut self, id: ConnectionId) -> Result<(), CloseReason> {
        let Some(connection) = self.connections.get(&id) else { return Ok(()) };
        let Some(meta) = connection.meta() else { return Ok(()) };
        let dialled = connection.dialled.is_some();
        let remains = dialled == (self.own > meta.node);
        if !dialled {
            self.started.proved(connection.remote.ip());
        }
        let (now, timeout) = (self.now, self.config.ping_timeout);
        let rivals = self.connections.iter().filter(|(other, it)| {
            **other != id
                && it.dialled.is_some() != dialled
                && it.is_authenticated()
                && it.meta().is_some_and(|theirs| theirs.node == meta.node)
                && now.since(it.started) < timeout
        });
        let rivals: Vec<(ConnectionId, bool)> =
            rivals.map(|(id, it)| (*id, it.is_active())).collect();
        if !rivals.is_empty() && !remains {
            return Err(CloseReason::Simultaneous);
        }
        for (rival, _) in rivals.into_iter().filter(|(_, active)| !active) {
            self.close(rival, CloseReason::Simultaneous);
        }
        self.send_ack(id);
        Ok(())
    }

    fn send_ack(&mut self, id: ConnectionId) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let elapsed = self.now.since(connection.identified).as_millis();
        let elapsed = i32::try_from(elapsed).unwrap_or(i32::MAX);
        let Some(meta) = connection.meta_mut() else { return };
        let configured = self.hosts.get(&meta.node).and_then(|host| host.weight);
        let weight = configured.or(self.config.own.weight).unwrap_or(elapsed);
        meta.weight = weight;
        let Some(udp_port) = Token::new(self.udp_port.to_string().as_bytes()) else { return };
        let ack = Message::Ack { udp_port, weight, options: meta.options };
        self.send(id, &ack);
    }

    /// The peer's ACK arrived: it is a neighbour now.
    pub(super) fn acknowledged(
        &mut self,
        id: ConnectionId,
        udp_port: &Token,
        theirs: i32,
        offered: Options,
    ) {
        let Some(connection) = self.connections.get(&id) else { return };
        let Some(meta) = connection.meta() else { return };
        let (node, options, remote) = (meta.node.clone(), meta.options, connection.remote);
        let ours = meta.weight;
        if let Some(old) = self.active.get(&node).copied() {
            // The other side keeps the newer connection as well, and starts its session for packets again when the graph changes.
            self.remove_connection(old, CloseReason::Replaced, false);
            self.compute();
        }
        self.abandon_attempts(&node, id);
        let Some(connection) = self.connections.get_mut(&id) else { return };
        let dialled = connection.dialled.is_some();
        let local = connection.local;
        let took = self.now.since(connection.started);
        let old = std::mem::replace(&mut connection.state, State::Dialling);
        if let State::Handshake(meta) = old {
            let liveness = Liveness { pinged: self.now, unanswered: 0 };
            connection.state = State::Active(meta, liveness);
        }
        self.active.insert(node.clone(), id);
        if let Some(outgoing) = self.outgoing.get_mut(&node) {
            outgoing.connected();
        }
        if dialled {
            self.remember_address(&node, remote);
        }
        self.event(Event::Connected { node: node.clone(), address: remote, took });
        self.start_topology_sync(id);
        let mut merged = options.merge(offered);
        let host = self.hosts.get(&node);
        if let Some(clamp) = host.and_then(|host| host.clamp_mss) {
            merged.0 &= !Options::CLAMP_MSS;
            merged.0 |= if clamp { Options::CLAMP_MSS } else { 0 };
        }
        let weight = i64::from(ours).saturating_add(theirs.into()) / 2;
        let port = std::str::from_utf8(udp_port.as_bytes()).ok().and_then(|port| port.parse().ok());
        let edge = EdgeInfo {
            address: match port {
                Some(port) => AddressToken::from(SocketAddr::new(remote.ip(), port)),
                None => AddressToken { port: udp_port.clone(), ..AddressToken::from(remote) },
            },
            options: merged,
            weight: i32::try_from(weight).unwrap_or(0),
            local: local.map(|local| SocketAddr::new(local.ip(), self.udp_port).into()),
        };
        let own = self.own.clone();
        if self.learn_node(&node, &node) && self.graph.add_edge(&own, &node, edge.clone()).is_ok() {
            self.graph_changed = true;
            self.flood(&Message::AddEdge(own, node, edge), None);
        }
    }

    /// Ends other attempts with a node that now is a neighbour. Attempts whose ACK was sent remain: the peer may have chosen them.
    fn abandon_attempts(&mut self, node: &NodeName, except: ConnectionId) {
        let attempts = self.connections.iter().filter(|(id, connection)| {
            **id != except
                && connection.dialled.as_ref() == Some(node)
                && !connection.is_authenticated()
        });
        let attempts: Vec<ConnectionId> = attempts.map(|(id, _)| *id).collect();
        for id in attempts {
            self.remove_connection(id, CloseReason::Replaced, true);
        }
    }
}

/// Returns the options that a node proposes to a neighbour: the node's own settings, and those in the neighbour's host file.
fn own_options(own: &HostConfig, host: &HostConfig) -> Options {
    let tcp_only = own.tcp_only || host.tcp_only;
    let flag = |set: bool, flag: u32| if set { flag } else { 0 };
    let pmtu_discovery = own.pmtu_discovery.unwrap_or(true) && host.pmtu_discovery.unwrap_or(true);
    let clamp_mss = own.clamp_mss.unwrap_or(true);
    Options::new(
        flag(own.indirect_data || host.indirect_data, Options::INDIRECT)
            | flag(tcp_only, Options::TCP_ONLY)
            | flag(pmtu_discovery && !tcp_only, Options::PMTU_DISCOVERY)
            | flag(clamp_mss, Options::CLAMP_MSS),
    )
}
