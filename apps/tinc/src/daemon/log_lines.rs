//! The log lines of a node's events, in tinc's words.

use adit_runtime::say;
use adit_tinc::node::Event;

/// Logs an event.
pub(super) fn log(event: &Event) {
    match event {
        Event::Connected { node, address, .. } => {
            say!(2, "Connection with {node} ({} port {}) activated", address.ip(), address.port());
        }
        Event::Disconnected { node, address, reason } => {
            let node = node.as_ref().map_or("<unknown>", |node| node.as_str());
            let (host, port) = (address.ip(), address.port());
            say!(2, "Closing connection with {node} ({host} port {port}): {reason}");
        }
        Event::Reachable { node, reachable: true } => say!(2, "Node {node} became reachable"),
        Event::Reachable { node, reachable: false } => say!(2, "Node {node} became unreachable"),
        Event::SessionEstablished(node) => say!(3, "Session with {node}: established"),
        Event::KeysRenewed(node) => say!(3, "Session with {node}: new keys"),
        Event::SessionRestarted(node) => say!(3, "Session with {node}: restarted"),
        Event::HandshakeFailed { node, error } => {
            tracing::warn!("Session with {node}: handshake failed: {error}");
        }
        Event::UdpConfirmed { node, address } => {
            say!(3, "UDP address of {node} set to {} port {}", address.ip(), address.port());
        }
        Event::UdpLost(node) => say!(3, "UDP no longer reaches {node}: packets go over TCP"),
        Event::MtuFixed { node, mtu } => say!(3, "Fixing PMTU of {node} to {mtu}"),
        Event::KeyLearned { node, key } => {
            tracing::warn!("Learned the key of {node} over the net, on trust: {key}");
        }
        Event::NameConflict => {
            tracing::warn!("Another node seems to have this node's name: give one of them another");
        }
        Event::IdCollision { known, refused } => {
            tracing::warn!(
                "Nodes {known} and {refused} have the same identifier: {refused} is refused"
            );
        }
        Event::LineRefused { node, error } => {
            tracing::warn!("Neighbour {node} sent or passed on an invalid line: {error}");
        }
        Event::Excess { node, excess } => {
            tracing::warn!("Neighbour {node} exceeds a limit: {excess}");
        }
    }
}
