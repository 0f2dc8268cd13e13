//! `info`: a node, or the subnets that contain an address.

use std::fmt::Write as _;

use adit_linux::clock::local_offset;
use adit_runtime::fault::Fault;
use adit_tinc::aead::AES_256_GCM_NUMBER;
use adit_tinc::name::NodeName;
use adit_tinc::subnet::Subnet;
use serde::Serialize;
use time::OffsetDateTime;
use time::macros::format_description;

use super::lists::milliseconds;
use crate::control::rows::{EdgeRow, Endpoint, NodeRow, SubnetRow, options, status};

/// What is known about a node, or about an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum About {
    /// A node.
    Node {
        /// The node.
        node: Box<NodeRow>,
        /// The nodes that it has connections with.
        edges: Vec<String>,
        /// Its subnets.
        subnets: Vec<String>,
    },
    /// The subnets that contain an address, or that are the one asked for.
    Subnets(Vec<SubnetRow>),
}

/// Finds a node by its name, or subnets by themselves or an address in them.
///
/// # Errors
/// Fails if there is none.
pub fn info(
    item: &str,
    nodes: Vec<NodeRow>,
    edges: &[EdgeRow],
    subnets: Vec<SubnetRow>,
) -> Result<About, Fault> {
    if item.parse::<NodeName>().is_ok() {
        let found = nodes.into_iter().find(|node| node.name == item);
        let node = found.ok_or_else(|| Fault::operator(format!("Unknown node {item}.")))?;
        let edges = edges.iter().filter(|edge| edge.from == item).map(|edge| edge.to.clone());
        let subnets = subnets.into_iter().filter(|row| row.owner == item).map(|row| row.subnet);
        return Ok(About::Node {
            node: Box::new(node),
            edges: edges.collect(),
            subnets: subnets.collect(),
        });
    }
    let wanted: Subnet = item
        .parse()
        .map_err(|_| Fault::operator("Argument is not a node name, subnet or address."))?;
    let is_address = !item.contains(['/', '#']);
    let matches = |row: &SubnetRow| {
        row.subnet.parse::<Subnet>().is_ok_and(|subnet| {
            if is_address {
                subnet.contains(wanted.address())
            } else {
                subnet.address() == wanted.address()
                    && subnet.prefix() == wanted.prefix()
                    && (!item.contains('#') || subnet.weight() == wanted.weight())
            }
        })
    };
    let found: Vec<SubnetRow> = subnets.into_iter().filter(matches).collect();
    if found.is_empty() {
        let kind = if is_address { "address" } else { "subnet" };
        return Err(Fault::operator(format!("Unknown {kind} {item}.")));
    }
    Ok(About::Subnets(found))
}

impl About {
    /// Formats it as tinc does.
    pub fn text(&self) -> String {
        match self {
            Self::Node { node, edges, subnets } => node_text(node, edges, subnets),
            Self::Subnets(rows) => rows.iter().fold(String::new(), |mut text, row| {
                // Writing to a string does not fail.
                let _ = writeln!(text, "Subnet: {}\nOwner:  {}", row.subnet, row.owner);
                text
            }),
        }
    }
}

fn node_text(node: &NodeRow, edges: &[String], subnets: &[String]) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let mut line = |name: &str, value: &str| {
        let space = if value.is_empty() { "" } else { " " };
        let _ = writeln!(text, "{:<13}{space}{value}", format!("{name}:"));
    };
    line("Node", &node.name);
    line("Node ID", &node.id);
    line("Address", &node.address.to_string());
    let since = match node.last_change {
        0 => "never".to_owned(),
        unix => local_time(unix),
    };
    line(if node.has(status::REACHABLE) { "Online since" } else { "Last seen" }, &since);
    let bits = [
        (status::VALID_KEY, "validkey"),
        (status::WAITING_FOR_KEY, "waitingforkey"),
        (status::VISITED, "visited"),
        (status::REACHABLE, "reachable"),
        (status::INDIRECT, "indirect"),
        (status::SPTPS, "sptps"),
        (status::UDP_CONFIRMED, "udp_confirmed"),
    ];
    line("Status", &set(node.status, &bits));
    let bits = [
        (options::INDIRECT, "indirect"),
        (options::TCP_ONLY, "tcponly"),
        (options::PMTU_DISCOVERY, "pmtu_discovery"),
        (options::CLAMP_MSS, "clamp_mss"),
    ];
    line("Options", &set(node.options, &bits));
    line("Protocol", &format!("17.{}", node.options >> 24));
    // tinc has only one cipher, and no line for it.
    if node.cipher == AES_256_GCM_NUMBER {
        line("Cipher", "AES-256-GCM");
    }
    line("Reachability", &reachability(node));
    if is_direct(node) {
        line("PMTU", &node.mtu.to_string());
        if node.rtt >= 0 {
            line("RTT", &milliseconds(node.rtt));
        }
    }
    for (name, count) in [("RX", node.received), ("TX", node.sent)] {
        line(name, &format!("{} packets  {} bytes", count.packets, count.bytes));
    }
    line("Edges", &edges.join(" "));
    line("Subnets", &subnets.join(" "));
    text
}

fn set(word: u32, bits: &[(u32, &str)]) -> String {
    let names = bits.iter().filter(|(bit, _)| word & bit != 0).map(|(_, name)| *name);
    names.collect::<Vec<_>>().join(" ")
}

/// Returns whether datagrams reach the node itself.
fn is_direct(node: &NodeRow) -> bool {
    node.has(status::REACHABLE)
        && node.address.host != Endpoint::MYSELF
        && node.via == node.name
        && node.has(status::VALID_KEY)
        && node.min_mtu > 0
}

fn reachability(node: &NodeRow) -> String {
    if node.address.host == Endpoint::MYSELF {
        "can reach itself".to_owned()
    } else if !node.has(status::REACHABLE) {
        "unreachable".to_owned()
    } else if node.via != node.name {
        format!("indirectly via {}", node.via)
    } else if !node.has(status::VALID_KEY) {
        "unknown".to_owned()
    } else if is_direct(node) {
        "directly with UDP".to_owned()
    } else if node.next_hop == node.name {
        "directly with TCP".to_owned()
    } else {
        format!("none, forwarded via {}", node.next_hop)
    }
}

fn local_time(unix: i64) -> String {
    let offset = u64::try_from(unix).map_or(0, local_offset);
    let time = OffsetDateTime::from_unix_timestamp(unix.saturating_add(offset)).ok();
    let format = format_description!("[year]-[month]-[day] [hour]:[minute]:[second]");
    time.and_then(|time| time.format(&format).ok()).unwrap_or_else(|| unix.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOB: &str = "bob 0416a26ba554 127.0.0.1 port 6552 0 0 0 0 700000c 8da bob bob 1 1518 18 1518 1795699583 261 2 36 0 0";
    const CAROL: &str =
        "carol ecbec19886c1 unknown port unknown 0 0 0 0 0 820 - - -1 1518 0 1518 0 -1 0 0 0 0";

    fn about(item: &str) -> Result<About, Fault> {
        let nodes = vec![BOB.parse().unwrap(), CAROL.parse().unwrap()];
        let edges = ["bob alice 127.0.0.1 port 1 127.0.0.1 port 2 700000c 2".parse().unwrap()];
        let subnets =
            ["10.2.3.4 bob", "10.2.0.0/16#5 bob", "0.0.0.0/0 dave", "224.0.0.0/4 (broadcast)"];
        let subnets = subnets.map(|row| row.parse().unwrap()).to_vec();
        info(item, nodes, &edges, subnets)
    }

    /// What tinc 1.1pre18 prints for the same rows.
    #[test]
    fn a_node_is_described_as_by_tinc() {
        let text = about("bob").unwrap().text();
        let since = local_time(1_795_699_583);
        let expected = format!(
            "Node:         bob
Node ID:      0416a26ba554
Address:      127.0.0.1 port 6552
Online since: {since}
Status:       validkey visited reachable sptps udp_confirmed
Options:      pmtu_discovery clamp_mss
Protocol:     17.7
Reachability: directly with UDP
PMTU:         1518
RTT:          0.261
RX:           2 packets  36 bytes
TX:           0 packets  0 bytes
Edges:        alice
Subnets:      10.2.3.4 10.2.0.0/16#5
"
        );
        assert_eq!(text, expected);
        let text = about("carol").unwrap().text();
        assert!(text.contains("Last seen:    never\nStatus:       indirect\nOptions:"), "{text}");
        assert!(text.contains("Protocol:     17.0\nReachability: unreachable\nRX:"), "{text}");
    }

    #[test]
    fn a_cipher_that_tinc_lacks_has_a_line() {
        let row = BOB.replace(" 0 0 0 0 ", " 901 0 0 0 ");
        let node = About::Node {
            node: Box::new(row.parse().unwrap()),
            edges: Vec::new(),
            subnets: Vec::new(),
        };
        let text = node.text();
        assert!(text.contains("17.7\nCipher:       AES-256-GCM\nReachability:"), "{text}");
    }

    #[test]
    fn each_way_to_a_node_has_its_words() {
        let words = |status: u32, via: &str, next: &str, host: &str, min_mtu: u16| {
            let line = format!(
                "bob 0 {host} port 1 0 0 0 0 0 {status:x} {next} {via} 1 1518 {min_mtu} 1518 0 -1 0 0 0 0"
            );
            reachability(&line.parse().unwrap())
        };
        let known = status::REACHABLE | status::VALID_KEY;
        assert_eq!(words(known, "bob", "bob", "MYSELF", 0), "can reach itself");
        assert_eq!(words(0, "-", "-", "x", 0), "unreachable");
        assert_eq!(words(known, "dave", "dave", "x", 0), "indirectly via dave");
        assert_eq!(words(status::REACHABLE, "bob", "bob", "x", 0), "unknown");
        assert_eq!(words(known, "bob", "bob", "x", 600), "directly with UDP");
        assert_eq!(words(known, "bob", "bob", "x", 0), "directly with TCP");
        assert_eq!(words(known, "bob", "dave", "x", 0), "none, forwarded via dave");
    }

    #[test]
    fn an_address_is_in_each_subnet_that_contains_it() {
        let owners = |item: &str| about(item).map(|about| about.text()).map_err(|f| f.to_string());
        assert_eq!(
            owners("10.2.3.4").unwrap(),
            "Subnet: 10.2.3.4\nOwner:  bob\nSubnet: 10.2.0.0/16#5\nOwner:  bob\nSubnet: 0.0.0.0/0\nOwner:  dave\n"
        );
        assert_eq!(owners("10.2.0.0/16").unwrap(), "Subnet: 10.2.0.0/16#5\nOwner:  bob\n");
        assert_eq!(owners("10.2.0.0/16#6").unwrap_err(), "Unknown subnet 10.2.0.0/16#6.");
        assert_eq!(owners("fd00::1").unwrap_err(), "Unknown address fd00::1.");
        assert_eq!(owners("erin").unwrap_err(), "Unknown node erin.");
        assert_eq!(owners("!").unwrap_err(), "Argument is not a node name, subnet or address.");
    }
}
