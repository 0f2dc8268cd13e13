//! The commands of `adit tinc` that talk to a running daemon.

use std::time::{SystemTime, UNIX_EPOCH};

use adit_app_tinc::control::Kind;
use adit_app_tinc::control::client::{Client, done, reload};
use adit_app_tinc::control::rows::{ConnectionRow, EdgeRow, NodeRow, SubnetRow};
use adit_app_tinc::report::{self, Direction};
use adit_app_tinc::{Console, Net, invitations, is_node_name, stop};
use adit_runtime::fault::Fault;

use super::args::{Command, Dump};
use super::{json, write_all};
use crate::print;

/// The bytes of a packet that are printed if the user names no number.
const WHOLE: u16 = u16::MAX;

/// Runs a command whose answer is a code.
pub(super) fn ask(net: &Net, command: &Command, console: &mut Console<'_>) -> Result<(), Fault> {
    match command {
        Command::Stop if stop(net)? => Ok(()),
        Command::Stop => Err(Fault::environment("The daemon did not end in time.")),
        Command::Reload => reload(net),
        Command::Pid => {
            // Checks that it runs.
            let client = Client::connect(net)?;
            console.print(&format!("{}\n", client.pid));
            Ok(())
        }
        Command::Purge => call(net, Kind::Purge, "", "Could not purge old information."),
        Command::Retry => call(net, Kind::Retry, "", "Could not retry outgoing connections."),
        Command::Disconnect { node } => {
            if !is_node_name(node) {
                return Err(Fault::operator("Invalid name for node."));
            }
            call(net, Kind::Disconnect, node, &format!("Could not disconnect {node}."))
        }
        Command::Debug { level } => {
            let old = Client::connect(net)?.call(Kind::Debug, &level.to_string())?;
            if *level < 0 {
                console.print(&format!("Level {old}.\n"));
            } else {
                console.note(&format!("Old level {old}, new level {level}."));
            }
            Ok(())
        }
        Command::Pcap { length } => pcap(net, *length),
        Command::Log { level } => {
            let level = level.map(|level| level.to_string()).unwrap_or_else(|| "-1".to_owned());
            Client::connect(net)?.follow(Kind::Log, &level, |line| {
                write_all(line) && (line.ends_with(b"\n") || write_all(b"\n"))
            })
        }
        command => Err(Fault::ours(format!("{command:?} is no request to the daemon"))),
    }
}

fn call(net: &Net, kind: Kind, argument: &str, problem: &str) -> Result<(), Fault> {
    done(Client::connect(net)?.call(kind, argument)?, problem)
}

/// Prints copies of packets as a file for programs such as tcpdump.
fn pcap(net: &Net, length: u16) -> Result<(), Fault> {
    let mut client = Client::connect(net)?;
    let longest = if length == 0 { WHOLE } else { length };
    let mut header = Vec::new();
    // The magic number for microseconds, version 2.4, UTC, Ethernet.
    header.extend_from_slice(&0xa1b2_c3d4_u32.to_ne_bytes());
    header.extend_from_slice(&2_u16.to_ne_bytes());
    header.extend_from_slice(&4_u16.to_ne_bytes());
    for word in [0, 0, u32::from(longest), 1] {
        header.extend_from_slice(&word.to_ne_bytes());
    }
    if !write_all(&header) {
        return Ok(());
    }
    client.follow(Kind::Pcap, &length.to_string(), |packet| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
        let seconds = u32::try_from(now.as_secs()).unwrap_or(u32::MAX);
        let mut record = Vec::with_capacity(packet.len() + 16);
        for word in [seconds, now.subsec_micros(), len, len] {
            record.extend_from_slice(&word.to_ne_bytes());
        }
        record.extend_from_slice(packet);
        write_all(&record)
    })
}

/// Runs `dump`.
pub(super) fn dump(net: &Net, words: &[Dump], console: &mut Console<'_>) -> Result<(), Fault> {
    if *words == [Dump::Invitations] {
        let found = invitations(net)?;
        if found.is_empty() {
            console.note("No outstanding invitations.");
        }
        for invitation in found {
            console.print(&format!("{} {}\n", invitation.file, invitation.node));
        }
        return Ok(());
    }
    let (what, reachable) = what(words)?;
    let mut client = Client::connect(net)?;
    let text = match what {
        Dump::Edges => report::edges(&client.list(Kind::Edges)?),
        Dump::Subnets => report::subnets(&client.list(Kind::Subnets)?),
        Dump::Connections => report::connections(&client.list(Kind::Connections)?),
        Dump::Graph | Dump::Digraph => {
            let direction =
                if what == Dump::Graph { Direction::Undirected } else { Direction::Directed };
            report::graph(&client.list(Kind::Nodes)?, &client.list(Kind::Edges)?, direction)
        }
        Dump::Nodes | Dump::Reachable | Dump::Invitations => {
            report::nodes(&client.list(Kind::Nodes)?, reachable)
        }
    };
    console.print(&text);
    Ok(())
}

/// Runs `dump --json`.
pub(super) fn dump_json(net: &Net, words: &[Dump]) -> Result<(), Fault> {
    if *words == [Dump::Invitations] {
        return json(&invitations(net)?);
    }
    let (what, reachable) = what(words)?;
    let mut client = Client::connect(net)?;
    match what {
        Dump::Edges => json(&client.list::<EdgeRow>(Kind::Edges)?),
        Dump::Subnets => json(&client.list::<SubnetRow>(Kind::Subnets)?),
        Dump::Connections => json(&client.list::<ConnectionRow>(Kind::Connections)?),
        Dump::Graph | Dump::Digraph => Err(Fault::operator(
            "A graph has no JSON form. Use dump nodes --json and dump edges --json.",
        )),
        Dump::Nodes | Dump::Reachable | Dump::Invitations => {
            let mut rows: Vec<NodeRow> = client.list(Kind::Nodes)?;
            rows.retain(|row| !reachable || row.is_reachable());
            json(&rows)
        }
    }
}

/// Returns the list that the words name, and whether it has only reachable nodes.
fn what(words: &[Dump]) -> Result<(Dump, bool), Fault> {
    match words {
        [Dump::Reachable, Dump::Nodes] => Ok((Dump::Nodes, true)),
        [what] if *what != Dump::Reachable => Ok((*what, false)),
        [Dump::Reachable, ..] => Err(Fault::operator("`reachable' only supported for nodes.")),
        _ => Err(Fault::operator("Invalid number of arguments.")),
    }
}

/// Runs `info`.
pub(super) fn info(net: &Net, item: &str, as_json: bool) -> Result<(), Fault> {
    let mut client = Client::connect(net)?;
    let (nodes, edges, subnets) =
        (client.list(Kind::Nodes)?, client.list(Kind::Edges)?, client.list(Kind::Subnets)?);
    let about = report::info(item, nodes, &edges, subnets)?;
    if as_json {
        return json(&about);
    }
    print(&about.text());
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nodes_can_be_limited_to_reachable_ones() {
        assert_eq!(what(&[Dump::Nodes]).unwrap(), (Dump::Nodes, false));
        assert_eq!(what(&[Dump::Reachable, Dump::Nodes]).unwrap(), (Dump::Nodes, true));
        for words in
            [&[Dump::Reachable][..], &[Dump::Reachable, Dump::Edges], &[Dump::Nodes, Dump::Edges]]
        {
            assert!(what(words).is_err(), "{words:?}");
        }
    }
}
