//! `dump nodes`, `dump edges`, `dump subnets` and `dump connections`: a row is a line.

use std::fmt::Write as _;

use crate::control::rows::{ConnectionRow, EdgeRow, NodeRow, SubnetRow, status};

/// Formats nodes, or only the reachable ones.
pub fn nodes(rows: &[NodeRow], reachable: bool) -> String {
    let mut text = String::new();
    for row in rows.iter().filter(|row| !reachable || row.has(status::REACHABLE)) {
        let NodeRow { name, id, address, cipher, digest, mac_length, compression, .. } = row;
        let NodeRow { options, status, next_hop, via, distance, mtu, .. } = row;
        let NodeRow { min_mtu, max_mtu, received, sent, rtt, .. } = row;
        // Writing to a string does not fail.
        let _ = write!(
            text,
            "{name} id {id} at {address} cipher {cipher} digest {digest} maclength {mac_length} compression {compression} \
             options {options:x} status {status:04x} nexthop {next_hop} via {via} distance {distance} \
             pmtu {mtu} (min {min_mtu} max {max_mtu}) rx {} {} tx {} {}",
            received.packets, received.bytes, sent.packets, sent.bytes
        );
        if *rtt >= 0 {
            let _ = write!(text, " rtt {}", milliseconds(*rtt));
        }
        text.push('\n');
    }
    text
}

/// Formats a round trip in microseconds.
pub(super) fn milliseconds(rtt: i64) -> String {
    format!("{}.{:03}", rtt / 1000, rtt % 1000)
}

/// Formats edges.
pub fn edges(rows: &[EdgeRow]) -> String {
    let mut text = String::new();
    for EdgeRow { from, to, address, local, options, weight } in rows {
        let _ = writeln!(
            text,
            "{from} to {to} at {address} local {local} options {options:x} weight {weight}"
        );
    }
    text
}

/// Formats subnets.
pub fn subnets(rows: &[SubnetRow]) -> String {
    let mut text = String::new();
    for SubnetRow { subnet, owner } in rows {
        let _ = writeln!(text, "{subnet} owner {owner}");
    }
    text
}

/// Formats connections.
pub fn connections(rows: &[ConnectionRow]) -> String {
    let mut text = String::new();
    for ConnectionRow { name, address, options, socket, status } in rows {
        let _ = writeln!(
            text,
            "{name} at {address} options {options:x} socket {socket} status {status:x}"
        );
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What tinc 1.1pre18 prints for the same rows.
    #[test]
    fn lists_are_those_of_tinc() {
        let bob = "bob 0416a26ba554 127.0.0.1 port 6552 0 0 0 0 700000c 8da bob bob 1 1518 18 1518 1795699757 261 2 36 0 0";
        let carol =
            "carol ecbec19886c1 unknown port unknown 0 0 0 0 0 20 - - -1 1518 0 1518 0 -1 0 0 0 0";
        let rows = [bob.parse().unwrap(), carol.parse().unwrap()];
        let first = "bob id 0416a26ba554 at 127.0.0.1 port 6552 cipher 0 digest 0 maclength 0 compression 0 options 700000c status 08da nexthop bob via bob distance 1 pmtu 1518 (min 18 max 1518) rx 2 36 tx 0 0 rtt 0.261\n";
        let second = "carol id ecbec19886c1 at unknown port unknown cipher 0 digest 0 maclength 0 compression 0 options 0 status 0020 nexthop - via - distance -1 pmtu 1518 (min 0 max 1518) rx 0 0 tx 0 0\n";
        assert_eq!(nodes(&rows, false), format!("{first}{second}"));
        assert_eq!(nodes(&rows, true), first);
        let edge = "a b 127.0.0.1 port 6552 127.0.0.1 port 6551 700000c 2".parse().unwrap();
        assert_eq!(
            edges(&[edge]),
            "a to b at 127.0.0.1 port 6552 local 127.0.0.1 port 6551 options 700000c weight 2\n"
        );
        let subnet = "10.1.0.0/16 alice".parse().unwrap();
        assert_eq!(subnets(&[subnet]), "10.1.0.0/16 owner alice\n");
        let connection = "<control> localhost port unix 0 11 200".parse().unwrap();
        assert_eq!(
            connections(&[connection]),
            "<control> at localhost port unix options 0 socket 11 status 200\n"
        );
    }
}
