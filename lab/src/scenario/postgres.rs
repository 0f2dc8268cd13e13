//! One stream and idle round trips between two hosts that can reach only a database, and the rows that they leave in
//! it.

use std::time::Duration;

use adit_testbed::failure::{Context, Result};

use super::runner::Runner;
use crate::measure::{Meter, RoleUsage, Usage};
use crate::plan::Settings;
use crate::record::Measurement;
use crate::subject::Subject;
use crate::subject::database::Nodes;
use crate::testbed::Database;
use crate::work::{Measured, Window, echo_latency, iperf3};

/// The number of round trips a second. Each takes two or more transactions in the well-known scheme, so a much higher
/// rate would itself be a load.
const RATE: f64 = 50.0;
/// The window of the idle round trips: long enough for a few hundred, and so for a 99th percentile.
const IDLE: Window = Window { warmup: Duration::from_millis(500), length: Duration::from_secs(6) };

/// Twice the default retention, because otherwise a fast trial would drop its first rows before they are counted.
const RETENTION: &[&str] = &["--retention", "2GB"];

pub(super) fn run(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
) -> Result<Measurement> {
    let scheme = subject.database().context("not a tunnel through a database")?;
    let (toolchain, database) = runner.database()?;
    let count = 2 + usize::from(settings.idle);
    let mut nodes = Nodes::start(toolchain, scheme, database, count, RETENTION)?;
    let window = Window { warmup: settings.warmup, length: settings.length };
    let done = measure(database, &mut nodes, &window);
    let mut measurement = done.map_err(|failure| nodes.blame(&failure))?;
    measurement.notes.extend(nodes.notes.iter().cloned());
    runner.keep_configs(subject, nodes.configs.clone());
    Ok(measurement)
}

fn measure(database: &Database, nodes: &mut Nodes, window: &Window) -> Result<Measurement> {
    let mut measurement = Measurement::default();
    measurement.set("flush_ms", database.flush_ms()?);
    let (log, disk) = (database.log_bytes()?, database.disk_bytes()?);
    let [from, to, ..] = database.testbed().clients.as_slice() else {
        return Err("a testbed without two nodes".into());
    };
    let inner = *nodes.inner.get(1).context("the second node's address")?;
    let idle = echo_latency(from, to, inner, RATE, &IDLE)?;
    for (name, share) in [("idle_p50_ms", 0.5), ("idle_p90_ms", 0.9), ("idle_p99_ms", 0.99)] {
        if let Some(ms) = idle.at(share) {
            measurement.set(name, ms);
        }
    }
    measurement.latencies.insert("idle".to_owned(), idle);
    let mut meter = Meter::start(&roles(database, nodes)?, database.testbed())?;
    let measured = iperf3(from, to, inner, window, false, &mut |edge| meter.edge(edge))?;
    let usage = meter.stop()?;
    put(&mut measurement, &measured, &usage);
    let found = nodes.found(database)?;
    let delivered = found.delivered_bytes;
    if delivered > 0 {
        let share = |bytes: u64| ratio(bytes, delivered);
        measurement.set("wal_per_byte", share(database.log_bytes()?.saturating_sub(log)));
        measurement.set("disk_per_byte", share(database.disk_bytes()?.saturating_sub(disk)));
    }
    measurement.set("rows_found", found.rows as f64);
    measurement.invalid.extend(found.invalid);
    measurement.notes.extend(found.notes);
    Ok(measurement)
}

/// Returns the server's processes and the nodes'. The backends are those that exist once all nodes have connected.
pub(super) fn roles(database: &Database, nodes: &Nodes) -> Result<Vec<(&'static str, Vec<u32>)>> {
    let nodes = nodes.daemons.iter().map(adit_testbed::process::Daemon::pid).collect();
    Ok(vec![("database", database.pids()?), ("nodes", nodes)])
}

fn put(measurement: &mut Measurement, measured: &Measured, usage: &Usage) {
    let mbps = measured.mbps();
    let gigabits = mbps * measured.seconds / 1e3;
    measurement.set("sum_mbps", mbps);
    measurement.flows.extend(measured.flows.iter().cloned());
    measurement.invalid.extend(measured.invalid.iter().cloned());
    for (role, cost, memory) in [
        ("database", "database_cpu_s_per_gb", "database_pss_mib"),
        ("nodes", "nodes_cpu_s_per_gb", "nodes_pss_mib"),
    ] {
        let used = usage.roles.get(role).copied().unwrap_or_default();
        if gigabits > 0.0 {
            measurement.set(cost, RoleUsage::cpu(&used) / gigabits);
        }
        measurement.set(memory, ratio(used.pss_kib, 1024));
    }
    usage.put(measurement, gigabits);
}

pub(super) fn ratio(bytes: u64, of: u64) -> f64 {
    bytes as f64 / of as f64
}
