//! `adit postgres` on every host, as an operator would set it up: `init` on the first, `join` on the others, `up` on all.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use adit_testbed::failure::{Context, Failure, Result};
use adit_testbed::net::Namespace;
use adit_testbed::process::{Daemon, output};
use serde_json::Value;

use super::super::start::SETUP_LIMIT;
use super::found::{DirectionCounts, StoredPackets};
use super::{DatabasePrograms, Nodes, Scheme, Toolchain};
use crate::testbed::Database;

/// The network inside.
const NETWORK: &str = "10.88.0.0/16";
/// The output of `up` when its device exists. A later test shows whether packets pass.
const READY: &str = "packets of up to";
/// The interval between two reads of the counters, which must agree.
const STILL: Duration = Duration::from_millis(500);

/// A node's host and files.
#[derive(Debug)]
pub(super) struct NodeLocation {
    program: PathBuf,
    host: String,
    folder: PathBuf,
}

impl NodeLocation {
    fn new(program: &Path, host: &Namespace, folder: PathBuf) -> Self {
        Self { program: program.to_owned(), host: host.name().to_owned(), folder }
    }

    fn adit(&self) -> Command {
        let mut command = Command::new("ip");
        command.args(["netns", "exec", &self.host]).arg(&self.program);
        command
    }

    /// Returns the command `adit postgres VERB` on this host.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.adit();
        command.arg("postgres").args(arguments).arg("--dir").arg(&self.folder);
        command
    }

    fn run(&self, arguments: &[&str]) -> Result<String> {
        output(self.command(arguments))
    }

    fn status(&self) -> Result<Value> {
        let mut command = self.adit();
        command.args(["status", "--json", "--dir"]).arg(&self.folder);
        let said = output(command)?;
        serde_json::from_str(&said).map_err(|error| Failure(format!("its status: {error}: {said}")))
    }
}

pub(super) fn start(
    toolchain: &Toolchain,
    scheme: Scheme,
    database: &Database,
    count: usize,
    options: &[&str],
) -> Result<Nodes> {
    let program = toolchain.adit(None)?;
    let folder = toolchain.scratch()?;
    let hosts = database.testbed().clients.get(..count).context("a testbed with too few hosts")?;
    let mut nodes = Nodes::none(scheme);
    let mut invited = String::new();
    for (index, host) in hosts.iter().enumerate() {
        let name = format!("n{}", index + 1);
        let at = NodeLocation::new(&program, host, folder.path().join(&name));
        if index == 0 {
            let url = database.url();
            let first = ["init", &url, "--network", NETWORK, "--name", &name];
            invited = at.run(&[first.as_slice(), options].concat())?;
            nodes.configs.push(("options of init".to_owned(), options.join(" ")));
        } else {
            at.run(&["join", invitation(&invited)?, "--name", &name])?;
            let first = nodes.places.first().context("a first node")?;
            invited = first.run(&["invite"])?;
        }
        let mut daemon = Daemon::spawn(&name, at.command(&["up"]))?;
        daemon.wait_for(READY, SETUP_LIMIT)?;
        nodes.daemons.push(daemon);
        let sql = format!("SELECT host(address4) FROM adit.node WHERE name = '{name}'");
        let told = database.cluster().sql(&database.name(), &sql)?;
        nodes.inner.push(told.trim().parse().map_err(|_| format!("{told:?} is no address"))?);
        nodes.places.push(at);
    }
    nodes.folder = Some(folder);
    Ok(nodes)
}

/// Returns the URL with its token from the output of `init` or `invite`.
fn invitation(said: &str) -> Result<&str> {
    let mut words = said.split_whitespace().map(|word| word.trim_matches(['\'', '"']));
    words
        .find(|word| word.starts_with("postgres") && word.contains('#'))
        .with_context(|| format!("no URL with a token in {said:?}"))
}

trait ErrorContext<T> {
    fn with_context(self, what: impl FnOnce() -> String) -> Result<T>;
}

impl<T> ErrorContext<T> for Option<T> {
    fn with_context(self, what: impl FnOnce() -> String) -> Result<T> {
        self.ok_or_else(|| Failure(what()))
    }
}

/// A node's report of the packets of one stream that it delivered.
#[derive(Debug, Clone, PartialEq, Eq)]
struct DeliveryReport {
    stream: u64,
    packets: u64,
    bytes: u64,
}

/// Returns the streams from which a node has received packets, according to its status.
fn received(status: &Value) -> Result<Vec<DeliveryReport>> {
    let processes = status.as_array().map(Vec::as_slice).unwrap_or_default();
    let nodes = processes.iter().find_map(|process| process.pointer("/postgres/nodes"));
    let nodes = nodes.and_then(Value::as_array).context("its status has no nodes")?;
    let number = |of: &Value, key: &str| {
        of.get(key)
            .and_then(Value::as_u64)
            .with_context(|| format!("its status has no {key}: {of}"))
    };
    let mut all = Vec::new();
    for node in nodes {
        let stream = node.get("received").context("a node of its status has nothing received")?;
        let one = DeliveryReport {
            stream: number(stream, "stream")?,
            packets: number(stream, "packets")?,
            bytes: number(stream, "bytes")?,
        };
        if one.packets > 0 {
            all.push(one);
        }
    }
    Ok(all)
}

/// Returns the reports of all nodes, once the counters no longer change.
fn settled(nodes: &Nodes) -> Result<Vec<DeliveryReport>> {
    let mut last: Option<Vec<DeliveryReport>> = None;
    loop {
        let mut now = Vec::new();
        for at in &nodes.places {
            now.extend(received(&at.status()?)?);
        }
        if last.as_ref() == Some(&now) {
            return Ok(now);
        }
        last = Some(now);
        std::thread::sleep(STILL);
    }
}

/// Counts the packets in the stream's leaves, to compare them with the deliveries that each node reports.
pub(super) fn found(nodes: &Nodes, database: &Database) -> Result<StoredPackets> {
    let mut found = StoredPackets::default();
    for DeliveryReport { stream, packets, bytes } in settled(nodes)? {
        found.delivered_bytes += bytes;
        let sql = format!(
            "SELECT count(*), coalesce(sum(len), 0) FROM adit.packet WHERE stream = {stream}"
        );
        let told = database.cluster().sql(&database.name(), &sql)?;
        let numbers: Vec<u128> = told.trim().split('|').filter_map(|n| n.parse().ok()).collect();
        let [rows, stored] = *numbers else {
            return Err(Failure(format!("{told:?} is no count and bytes")));
        };
        found.take(&DirectionCounts {
            name: format!("stream {stream}"),
            delivered: u128::from(packets),
            rows,
            sums: vec![(u128::from(bytes), stored)],
        });
    }
    if let DatabasePrograms::Adit(options) = nodes.scheme.ends()
        && options.contains(&"--audit")
    {
        super::content::check(nodes, database, &mut found)?;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_invitation_is_found_among_words() {
        let said = "Made the network.\nOn the next node:\n  adit postgres join 'postgres://h:5432/d#adit1-abc'\n";
        assert_eq!(invitation(said).unwrap(), "postgres://h:5432/d#adit1-abc");
        assert!(invitation("postgres://h:5432/d").is_err());
    }

    #[test]
    fn only_streams_of_which_something_came_are_looked_for() {
        let status =
            |nodes: Value| serde_json::json!([{"role": "postgres", "postgres": {"nodes": nodes}}]);
        let two = serde_json::json!([
            {"received": {"stream": 3, "packets": 7, "bytes": 700}},
            {"received": {"stream": 0, "packets": 0, "bytes": 0}},
        ]);
        assert_eq!(
            received(&status(two)).unwrap(),
            [DeliveryReport { stream: 3, packets: 7, bytes: 700 }]
        );
        assert!(received(&serde_json::json!([])).is_err());
        assert!(received(&status(serde_json::json!([{"received": {"stream": 3}}]))).is_err());
    }
}
