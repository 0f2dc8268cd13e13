//! Tests of many nodes at one database.

use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::super::{Scenario, ScenarioFn};
use super::testbed::{DATABASE, Plan, PostgresTestbed};
use crate::failure::{Context, Result, ensure};
use crate::postgres::proxy::Proxy;
use crate::postgres::{Options, PORT};
use crate::traffic::ping;

pub(super) const LONG: &[(&str, ScenarioFn)] = &[("forty-idle-nodes", forty_idle_nodes)];

const NODES: u8 = 40;
/// The delay of each answer of the database.
const DELAY_MS: u64 = 20;
const WAY: u16 = 6432;
/// How long queries are counted.
const COUNTED: Duration = Duration::from_secs(20);
/// The maximum number of queries a second of an idle node; 100 nodes together stay below 200.
const MOST: f64 = 2.0;

/// Forty idle nodes, 20 ms from the database, send few queries, and a node still reaches another at once.
fn forty_idle_nodes(scenario: &Scenario<'_>) -> Result<String> {
    let settings = [("max_connections", "200")];
    let mut bed = PostgresTestbed::bare(
        scenario,
        NODES,
        &Options { settings: &settings, ..Options::default() },
    )?;
    let at = SocketAddr::new(DATABASE, WAY);
    let proxy = Proxy::start(&bed.database, at, SocketAddr::new(DATABASE, PORT))?;
    let hosts = format!("{DATABASE}:{WAY}");
    let init = ["--durability", "relaxed"];
    bed.found(&Plan { hosts: Some(&hosts), init: &init, ..Plan::default() })?;
    bed.up()?;
    proxy.link.delay_ms.store(DELAY_MS, Relaxed);
    // By then startup has finished, and no stream is still active.
    sleep(Duration::from_secs(15));
    let transactions = |bed: &PostgresTestbed| {
        bed.number("SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()")
    };
    let (before, begun) = (transactions(&bed)?, Instant::now());
    sleep(COUNTED);
    let counted = transactions(&bed)? - before;
    let rate =
        f64::from(i32::try_from(counted).context("a count")?) / begun.elapsed().as_secs_f64();
    ensure(rate > 1.0, || format!("{counted} queries: the nodes do not run"))?;
    ensure(rate < MOST * f64::from(NODES), || {
        bed.failure_with_logs(&format!("{rate:.0} queries a second"))
    })?;
    let answers = ping(&bed.node(0)?.space, bed.node(39)?.v4()?, 56, 10)?;
    ensure(answers >= 8, || {
        bed.failure_with_logs(&format!("{answers} of 10 pings were answered"))
    })?;
    let connections =
        bed.number("SELECT count(*) FROM pg_stat_activity WHERE usename ~ '_node_'")?;
    let backends = bed
        .sql("SELECT string_agg(pid::text, ' ') FROM pg_stat_activity WHERE usename ~ '_node_'")?;
    let (mut private, mut number) = (0, 0);
    for pid in backends.split(' ') {
        if let Ok(kib) = private_kib(pid) {
            (private, number) = (private + kib, number + 1);
        }
    }
    let mut own = 0;
    for node in &mut bed.nodes {
        own += private_kib(&node.running()?.pid().to_string())?;
    }
    let tables = bed.sql("SELECT count(*) FILTER (WHERE relkind = 'r'), count(*) FILTER (WHERE relkind IN ('v', 'S')) FROM pg_class WHERE relnamespace = 'adit'::regnamespace")?;
    Ok(format!(
        "{rate:.1} queries a second of {NODES} nodes; {connections} connections of {} KiB private memory each; {} KiB private memory \
         of a node; {tables} tables, and views and sequences",
        private / number.max(1),
        own / u64::from(NODES)
    ))
}

/// Returns the memory that a process shares with no other.
fn private_kib(pid: &str) -> Result<u64> {
    let text = fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
    let lines = text.lines().filter(|line| line.starts_with("Private_"));
    Ok(lines.filter_map(|line| line.split_whitespace().nth(1)?.parse::<u64>().ok()).sum())
}
