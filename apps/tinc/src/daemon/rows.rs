//! The rows of `tinc dump`, from the state of a node.

use std::collections::HashMap;

use adit_tinc::aead::{AES_256_GCM_NUMBER, Cipher};
use adit_tinc::config::ServerConfig;
use adit_tinc::meta::{AddressToken, Options};
use adit_tinc::name::NodeName;
use adit_tinc::node::{ConnectionInfo, Node, NodeInfo};

use crate::control::rows::{
    ConnectionRow, Count, EdgeRow, Endpoint, NodeRow, SubnetRow, TrafficRow, status,
};

/// The owner of the subnets of packets to many nodes.
const BROADCAST: &str = "(broadcast)";

/// The subnets of packets to many nodes, which every node has.
const BROADCAST_SUBNETS: [&str; 4] =
    ["ff:ff:ff:ff:ff:ff", "255.255.255.255", "224.0.0.0/4", "ff00::/8"];

/// The first minor version that has sessions.
pub(super) const SPTPS_MINOR: u8 = 2;

/// When each node became reachable or unreachable, in seconds since 1970.
pub(super) type Changes = HashMap<NodeName, i64>;

fn unknown() -> Endpoint {
    Endpoint { host: "unknown".to_owned(), port: "unknown".to_owned() }
}

pub(super) fn nodes(node: &Node, port: u16, started: i64, changes: &Changes) -> Vec<NodeRow> {
    let own = node.name();
    let row = |info: NodeInfo| {
        let is_own = info.name == *own;
        let address = if is_own {
            Endpoint { host: Endpoint::MYSELF.to_owned(), port: port.to_string() }
        } else {
            info.address.map_or_else(unknown, |address| Endpoint {
                host: address.ip().to_string(),
                port: address.port().to_string(),
            })
        };
        let name =
            |name: Option<NodeName>| name.map_or_else(|| "-".to_owned(), |name| name.to_string());
        let last = if is_own { started } else { changes.get(&info.name).copied().unwrap_or(0) };
        let (mtu, min_mtu, max_mtu) = info.mtu;
        let traffic = &info.traffic;
        NodeRow {
            status: status_of(&info, is_own),
            id: info.id.0.iter().map(|byte| format!("{byte:02x}")).collect(),
            address,
            cipher: match info.cipher {
                Some(Cipher::Aes256Gcm) => AES_256_GCM_NUMBER,
                Some(Cipher::ChaCha20Poly1305) | None => 0,
            },
            digest: 0,
            mac_length: 0,
            compression: 0,
            options: info.options.0,
            next_hop: name(info.next_hop),
            via: name(info.via),
            distance: info
                .distance
                .map_or(-1, |distance| i32::try_from(distance).unwrap_or(i32::MAX)),
            mtu: mtu.into(),
            min_mtu: min_mtu.into(),
            max_mtu: max_mtu.into(),
            last_change: last,
            rtt: info
                .round_trip
                .map_or(-1, |rtt| i64::try_from(rtt.as_micros()).unwrap_or(i64::MAX)),
            received: Count { packets: traffic.packets_in, bytes: traffic.bytes_in },
            sent: Count { packets: traffic.packets_out, bytes: traffic.bytes_out },
            name: info.name.to_string(),
        }
    };
    node.node_infos().into_iter().map(row).collect()
}

fn status_of(info: &NodeInfo, is_own: bool) -> u32 {
    let mut bits = 0;
    let mut set = |bit, on: bool| bits |= if on { bit } else { 0 };
    set(status::VALID_KEY, info.session);
    set(status::REACHABLE | status::VISITED, info.reachable);
    let indirect = info.via.as_ref().is_none_or(|via| *via != info.name);
    set(status::INDIRECT, indirect && !is_own);
    set(status::SPTPS, is_own || info.options.minor() >= SPTPS_MINOR);
    set(status::UDP_CONFIRMED, info.udp_confirmed);
    bits
}

pub(super) fn edges(node: &Node) -> Vec<EdgeRow> {
    let graph = node.graph();
    let endpoint = |token: &AddressToken| Endpoint {
        host: token.host.to_string(),
        port: token.port.to_string(),
    };
    graph
        .nodes()
        .flat_map(|from| graph.edges_of(from).map(move |(to, edge)| (from, to, edge)))
        .map(|(from, to, edge)| EdgeRow {
            from: from.to_string(),
            to: to.to_string(),
            address: endpoint(&edge.address),
            local: edge.local.as_ref().map_or_else(unknown, endpoint),
            options: edge.options.0,
            weight: edge.weight,
        })
        .collect()
}

pub(super) fn subnets(node: &Node, server: &ServerConfig) -> Vec<SubnetRow> {
    let configured = server.broadcast_subnets.iter().map(ToString::to_string);
    let broadcast = BROADCAST_SUBNETS.iter().map(|subnet| (*subnet).to_owned()).chain(configured);
    let broadcast = broadcast.map(|subnet| SubnetRow { subnet, owner: BROADCAST.to_owned() });
    let owned = node.graph().nodes().flat_map(|owner| {
        node.subnets()
            .of(owner)
            .map(move |subnet| SubnetRow { subnet: subnet.to_string(), owner: owner.to_string() })
    });
    broadcast.chain(owned).collect()
}

pub(super) fn connections(node: &Node, controls: usize) -> Vec<ConnectionRow> {
    let row = |info: ConnectionInfo| {
        let graph = node.graph();
        let edge = info.node.as_ref().and_then(|to| graph.edge(node.name(), to));
        ConnectionRow {
            name: info.node.map_or_else(|| "<unknown>".to_owned(), |name| name.to_string()),
            address: Endpoint {
                host: info.address.ip().to_string(),
                port: info.address.port().to_string(),
            },
            options: edge.map_or(Options(0), |edge| edge.options).0,
            // Its own number, which means nothing to other programs.
            socket: i32::try_from(info.connection.0).unwrap_or(i32::MAX),
            status: if info.active { status::ACTIVE } else { 0 },
        }
    };
    let control = || ConnectionRow {
        name: "<control>".to_owned(),
        address: Endpoint { host: "localhost".to_owned(), port: "unix".to_owned() },
        options: 0,
        socket: 0,
        status: status::CONTROL,
    };
    let neighbours = node.connection_infos().into_iter().map(row);
    neighbours.chain(std::iter::repeat_with(control).take(controls)).collect()
}

pub(super) fn traffic(node: &Node) -> Vec<TrafficRow> {
    let row = |info: NodeInfo| TrafficRow {
        name: info.name.to_string(),
        received: Count { packets: info.traffic.packets_in, bytes: info.traffic.bytes_in },
        sent: Count { packets: info.traffic.packets_out, bytes: info.traffic.bytes_out },
    };
    node.node_infos().into_iter().map(row).collect()
}
