//! `adit tinc top`: the screen of `adit top` with the nodes of a net.

use std::time::Duration;

use adit_app_tinc::Net;
use adit_app_tinc::control::Kind;
use adit_app_tinc::control::client::Client;
use adit_app_tinc::control::rows::{NodeRow, SubnetRow, TrafficRow, status};
use adit_runtime::fault::Fault;
use adit_runtime::log::clean;

use super::json;
use crate::args::SortKey;
use crate::print;
use crate::status::top::{Row, Seen, full_screen, has_screen};
use crate::text::{bytes, count, now, row, table_of_names};

/// Prints the counters once.
pub(super) fn as_json(net: &Net) -> Result<(), Fault> {
    json(&Client::connect(net)?.list::<TrafficRow>(Kind::Traffic)?)
}

/// Shows the nodes until a key ends it, in the order of their names at first, as tinc does. Without a terminal, prints them once.
pub(super) fn show(net: &Net, every: Duration) -> Result<(), Fault> {
    let mut client = Client::connect(net)?;
    if !has_screen() {
        let nodes: Vec<NodeRow> = client.list(Kind::Nodes)?;
        print(&page(&nodes));
        return Ok(());
    }
    let title = match &net.name {
        Some(net) => format!("tinc {net}"),
        None => "tinc".to_owned(),
    };
    let seen = look(&mut client, &title)?;
    full_screen(seen, SortKey::Name, every, move || look(&mut client, &title)).map(drop)
}

fn look(client: &mut Client, title: &str) -> Result<Seen, Fault> {
    let (nodes, subnets) = (client.list(Kind::Nodes)?, client.list(Kind::Subnets)?);
    Ok(seen(&nodes, &subnets, &client.name, title))
}

fn seen(nodes: &[NodeRow], subnets: &[SubnetRow], own: &str, title: &str) -> Seen {
    let reachable = nodes.iter().filter(|node| node.is_reachable()).count();
    let line =
        format!("{title}: node {own}, {}, {reachable} reachable", count(nodes.len(), "node"));
    let rows = nodes.iter().map(|node| {
        let owned = subnets.iter().filter(|subnet| subnet.owner == node.name);
        let owned: Vec<&str> = owned.map(|subnet| subnet.subnet.as_str()).collect();
        let since = u64::try_from(node.last_change).unwrap_or(0);
        let micros = u64::try_from(node.rtt).ok();
        Row {
            key: (0, node.name.clone()),
            instance: title.to_owned(),
            name: clean(&node.name),
            inside: clean(&owned.join(" ")),
            received: node.received.bytes,
            sent: node.sent.bytes,
            connected: node.is_reachable().then(|| now().saturating_sub(since)),
            details: vec![
                ("address", clean(&node.address.to_string())),
                ("path", path(node, own)),
                ("round trip", micros.map(|it| format!("{it} µs")).unwrap_or_default()),
                (
                    "packets",
                    format!("{} received, {} sent", node.received.packets, node.sent.packets),
                ),
                ("path MTU", node.mtu.to_string()),
            ]
            .into_iter()
            .filter(|(_, value)| !value.is_empty())
            .collect(),
        }
    });
    Seen { instances: vec![line], rows: rows.collect() }
}

/// Describes how packets get to a node.
fn path(node: &NodeRow, own: &str) -> String {
    if node.name == own {
        "this node".to_owned()
    } else if !node.is_reachable() {
        "not reachable".to_owned()
    } else if node.via != node.name && node.via != own {
        format!("through {}", clean(&node.via))
    } else if node.has(status::UDP_CONFIRMED) {
        "UDP".to_owned()
    } else {
        "TCP".to_owned()
    }
}

fn page(nodes: &[NodeRow]) -> String {
    let mut rows = vec![row(["NODE", "IN PACKETS", "IN BYTES", "OUT PACKETS", "OUT BYTES"])];
    for node in nodes {
        rows.push(vec![
            clean(&node.name),
            node.received.packets.to_string(),
            bytes(node.received.bytes),
            node.sent.packets.to_string(),
            bytes(node.sent.bytes),
        ]);
    }
    table_of_names(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes() -> Vec<NodeRow> {
        let lines = [
            "alice 0a 0 port 0 0 0 0 0 700000c 58 alice alice 0 1518 0 1518 100 -1 0 0 0 0",
            "bob 0b 192.0.2.7 port 655 0 0 0 0 700000c da bob bob 1 1451 1451 1451 100 1500 7 1000 8 2000",
            "carol 0c unknown port unknown 0 0 0 0 0 0 - - -1 0 0 0 0 -1 0 0 0 0",
        ];
        lines.iter().map(|line| line.parse().unwrap()).collect()
    }

    #[test]
    fn each_node_is_a_row() {
        let subnets = ["10.2.0.0/16 bob".parse().unwrap()];
        let seen = seen(&nodes(), &subnets, "alice", "tinc vpn");
        assert_eq!(seen.instances, ["tinc vpn: node alice, 3 nodes, 2 reachable"]);
        let [alice, bob, carol] = &seen.rows[..] else { panic!("{seen:?}") };
        assert_eq!((bob.inside.as_str(), bob.received, bob.sent), ("10.2.0.0/16", 1000, 2000));
        assert!(bob.connected.is_some() && carol.connected.is_none());
        let path = |row: &Row| {
            row.details.iter().find(|(name, _)| *name == "path").map(|(_, value)| value.clone())
        };
        assert_eq!(path(alice).as_deref(), Some("this node"));
        assert_eq!(path(bob).as_deref(), Some("UDP"));
        assert_eq!(path(carol).as_deref(), Some("not reachable"));
        let relayed = NodeRow { via: "dave".into(), ..nodes().remove(1) };
        assert_eq!(super::path(&relayed, "alice"), "through dave");
    }

    #[test]
    fn without_a_terminal_there_is_one_page() {
        let page = page(&nodes());
        assert!(
            page.starts_with("NODE   IN PACKETS  IN BYTES  OUT PACKETS  OUT BYTES\n"),
            "{page}"
        );
        assert!(page.contains("\nbob    7           1 kB      8            2 kB\n"), "{page}");
    }
}
