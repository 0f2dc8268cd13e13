//! `dump graph` and `dump digraph`: the net in Graphviz's language.

use std::fmt::Write as _;

use crate::control::rows::{EdgeRow, Endpoint, NodeRow, status};

/// Whether both directions of a connection are shown.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Direction {
    /// One line without direction.
    Undirected,
    /// Two arrows.
    Directed,
}

/// Formats the net. Unreachable nodes are red, those that datagrams reach green, those that only relays or TCP reach orange, and those
/// that were not tried yet black.
pub fn graph(nodes: &[NodeRow], edges: &[EdgeRow], direction: Direction) -> String {
    let (kind, arrow) = match direction {
        Direction::Undirected => ("graph", "--"),
        Direction::Directed => ("digraph", "->"),
    };
    let mut text = format!("{kind} {{\n");
    for node in nodes {
        let own = node.address.host == Endpoint::MYSELF;
        let style = if own { ", style = \"filled\"" } else { "" };
        let (name, color) = (&node.name, color(node, own));
        // Writing to a string does not fail.
        let _ = writeln!(text, " \"{name}\" [label = \"{name}\", color = \"{color}\"{style}];");
    }
    for EdgeRow { from, to, weight, .. } in edges {
        if direction == Direction::Undirected && from < to {
            continue;
        }
        // Programs that draw it pull light edges together. tinc computes with single precision, and prints all digits.
        #[expect(clippy::cast_precision_loss, reason = "as tinc does")]
        let pull = 1.0 + 65_536.0 / *weight as f32;
        let _ = writeln!(text, " \"{from}\" {arrow} \"{to}\" [w = {pull:.6}, weight = {pull:.6}];");
    }
    text + "}\n"
}

fn color(node: &NodeRow, own: bool) -> &'static str {
    if own {
        "green"
    } else if !node.has(status::REACHABLE) {
        "red"
    } else if node.via != node.name {
        "orange"
    } else if !node.has(status::VALID_KEY) {
        "black"
    } else if node.min_mtu > 0 {
        "green"
    } else {
        "orange"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(name: &str, host: &str, status: u32, via: &str, min_mtu: u16) -> NodeRow {
        let line = format!(
            "{name} 0 {host} port 655 0 0 0 0 0 {status:x} {via} {via} 1 1518 {min_mtu} 1518 0 -1 0 0 0 0"
        );
        line.parse().unwrap()
    }

    /// What tinc 1.1pre18 prints for the same nodes.
    #[test]
    fn a_graph_is_that_of_tinc() {
        let nodes = [
            node("a", "MYSELF", 0x858, "a", 0),
            node("b", "127.0.0.1", 0x858, "b", 0),
            node("c", "127.0.0.1", 0x878, "b", 0),
            node("d", "unknown", 0x20, "-", 0),
            node("e", "127.0.0.1", 0x8da, "e", 18),
            node("f", "127.0.0.1", 0x85a, "f", 0),
        ];
        let edge = |line: &str| line.parse().unwrap();
        let edges = [
            edge("a b 127.0.0.1 port 1 127.0.0.1 port 2 700000c 2"),
            edge("b a 127.0.0.1 port 2 127.0.0.1 port 1 700000c 2"),
            edge("c b 127.0.0.1 port 2 127.0.0.1 port 1 700000c 0"),
        ];
        let head = " \"a\" [label = \"a\", color = \"green\", style = \"filled\"];
 \"b\" [label = \"b\", color = \"black\"];
 \"c\" [label = \"c\", color = \"orange\"];
 \"d\" [label = \"d\", color = \"red\"];
 \"e\" [label = \"e\", color = \"green\"];
 \"f\" [label = \"f\", color = \"orange\"];
";
        let line = |from: &str, arrow: &str, to: &str, pull: &str| {
            format!(" \"{from}\" {arrow} \"{to}\" [w = {pull}, weight = {pull}];\n")
        };
        let pull = "32769.000000";
        assert_eq!(
            graph(&nodes, &edges, Direction::Undirected),
            format!(
                "graph {{\n{head}{}{}}}\n",
                line("b", "--", "a", pull),
                line("c", "--", "b", "inf")
            )
        );
        assert_eq!(
            graph(&nodes, &edges, Direction::Directed),
            format!(
                "digraph {{\n{head}{}{}{}}}\n",
                line("a", "->", "b", pull),
                line("b", "->", "a", pull),
                line("c", "->", "b", "inf")
            )
        );
    }
}
