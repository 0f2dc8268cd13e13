//! `adit-lab row-notify` at both ends.

use std::time::Duration;

use adit_testbed::failure::{Context, Failure, Result, ensure};
use adit_testbed::process::Daemon;

use super::super::copy;
use super::super::start::{SETUP_LIMIT, inner};
use super::found::{DirectionCounts, StoredPackets};
use super::{Nodes, Rows, Scheme};
use crate::rows::{CounterValues, MARK, READY, TABLE, TRIGGER};
use crate::testbed::Database;

/// The number of connections of each end, in addition to the one that listens. On two cores, 4 to 45 made no
/// difference, and 2 reached only a third.
const POOL: &str = "16";
/// The time limit for reading the counters.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The prefix length of the network that contains both ends.
const PREFIX: u8 = 16;

pub(super) fn start(
    scheme: Scheme,
    rows: Rows,
    database: &Database,
    count: usize,
) -> Result<Nodes> {
    ensure(count == 2, || {
        format!("{} has two ends: leave it out where nodes idle", scheme.name())
    })?;
    let Rows { form, synchronous_commit, mtu } = rows;
    let (cluster, name) = (database.cluster(), database.name());
    let role = crate::testbed::ROLE;
    if form != "notify" {
        cluster.sql_as(role, &name, TABLE)?;
    }
    if form == "trigger" {
        cluster.sql_as(role, &name, TRIGGER)?;
    }
    let program = copy::program()?;
    let url = format!("{}&options=-c%20synchronous_commit%3D{synchronous_commit}", database.url());
    let addresses = [inner(0)?.v4, inner(1)?.v4];
    let mut nodes = Nodes::none(scheme);
    nodes.inner = addresses.to_vec();
    for (index, (host, own)) in database.testbed().clients.iter().zip(addresses).enumerate() {
        let peer = addresses.get(1 - index).context("a peer")?;
        let mut command = host.command(&program.to_string_lossy());
        command.args(["row-notify", "--tun", "tun0", "--form", form, "--pool", POOL, "--mtu", mtu]);
        command.args([format!("--address={own}/{PREFIX}"), format!("--peer={peer}")]);
        command.args(["--database", &url]);
        if index == 0 {
            nodes.configs.push(("command".to_owned(), copy::shown(&command)));
        }
        let mut daemon = Daemon::spawn(&format!("node {}", index + 1), command)?;
        daemon.wait_for(READY, SETUP_LIMIT)?;
        nodes.daemons.push(daemon);
    }
    Ok(nodes)
}

/// Returns both ends' counters once they no longer change.
fn pages(nodes: &mut Nodes) -> Result<Vec<CounterValues>> {
    let mut last: Option<Vec<CounterValues>> = None;
    loop {
        let now: Vec<CounterValues> = nodes.daemons.iter_mut().map(page).collect::<Result<_>>()?;
        if last.as_ref() == Some(&now) {
            return Ok(now);
        }
        last = Some(now);
        std::thread::sleep(Duration::from_millis(500));
    }
}

fn page(daemon: &mut Daemon) -> Result<CounterValues> {
    let before = daemon.count(MARK);
    daemon.signal(nix::sys::signal::Signal::SIGUSR1)?;
    daemon.wait_for_nth(MARK, before + 1, TIMEOUT)?.trim().parse().map_err(Failure)
}

/// Counts the other end's packets in the table, to compare them with the deliveries that the ends report.
pub(super) fn found(nodes: &mut Nodes, rows: Rows, database: &Database) -> Result<StoredPackets> {
    let pages = pages(nodes)?;
    let stored = rows.form != "notify";
    let mut found = StoredPackets::default();
    for (index, sender) in nodes.inner.iter().enumerate() {
        let page = pages.get(1 - index).context("two ends")?;
        found.delivered_bytes += page.bytes;
        if page.dropped > 0 {
            found.notes.push(format!("{} packets found too many others waiting", page.dropped));
        }
        if !stored {
            found.notes.push("nothing is stored".to_owned());
            continue;
        }
        let sql = format!(
            "SELECT count(*), coalesce(sum(length(payload)), 0), \
             coalesce(sum(('x' || encode(substr(sha256(payload), 1, 7), 'hex'))::bit(56)::bigint), 0) \
             FROM raw_packet WHERE sender = '{sender}'"
        );
        let told = database.cluster().sql(&database.name(), &sql)?;
        let numbers: Vec<u128> = told.trim().split('|').filter_map(|n| n.parse().ok()).collect();
        let [rows, bytes, hashes] = *numbers else {
            return Err(Failure(format!("{told:?} is no count, bytes and hash")));
        };
        let way = DirectionCounts {
            name: format!("from {sender}"),
            delivered: u128::from(page.delivered),
            rows,
            sums: vec![(u128::from(page.bytes), bytes), (page.hashes, hashes)],
        };
        found.take(&way);
    }
    found.notes.dedup();
    Ok(found)
}
