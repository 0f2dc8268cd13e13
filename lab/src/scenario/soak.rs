//! A steady rate through a database with limited retention, to check whether its disk fills up.

use std::fmt::Write as _;
use std::time::{Duration, Instant};

use adit_testbed::failure::{Context, Result};
use adit_testbed::net::Namespace;
use adit_testbed::process::Daemon;

use super::postgres::ratio;
use super::runner::Runner;
use crate::plan::Settings;
use crate::record::{Flow, Measurement};
use crate::stats::line;
use crate::subject::Subject;
use crate::subject::database::Nodes;
use crate::testbed::Database;

/// The retention of the network.
const RETENTION: &[&str] = &["--retention", "1GB"];
/// How often the disk is read.
const EVERY: Duration = Duration::from_secs(5);
/// The time that iperf3 may take beyond its `--time`.
const GRACE: Duration = Duration::from_secs(30);
/// The number of samples in a line of the report.
const IN_NOTE: usize = 30;

/// One sample of the disk.
#[derive(Debug, Clone, Copy)]
struct DiskSample {
    seconds: f64,
    tables: f64,
    log: f64,
}

impl DiskSample {
    fn all(&self) -> f64 {
        self.tables + self.log
    }
}

pub(super) fn run(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
) -> Result<Measurement> {
    let scheme = subject.database().context("not a tunnel through a database")?;
    let (toolchain, database) = runner.database()?;
    let mut nodes = Nodes::start(toolchain, scheme, database, 2, RETENTION)?;
    let done = soak(database, &nodes, settings);
    let (mut measurement, looks) = done.map_err(|failure| nodes.blame(&failure))?;
    judge(&mut measurement, &looks);
    let found = nodes.found(database)?;
    measurement.notes.extend(nodes.notes.iter().cloned());
    measurement.notes.extend(found.notes);
    runner.keep_configs(subject, nodes.configs.clone());
    Ok(measurement)
}

/// Runs the traffic and samples the disk meanwhile.
fn soak(
    database: &Database,
    nodes: &Nodes,
    settings: &Settings,
) -> Result<(Measurement, Vec<DiskSample>)> {
    let [from, to, ..] = database.testbed().clients.as_slice() else {
        return Err("a testbed without two nodes".into());
    };
    let inner = nodes.inner.get(1).context("the second node's address")?.to_string();
    let (mut server, mut client) = traffic(from, to, &inner, settings)?;
    let began = Instant::now();
    let mut looks = Vec::new();
    while began.elapsed() < settings.length {
        looks.push(DiskSample {
            seconds: began.elapsed().as_secs_f64(),
            tables: ratio(database.disk_bytes()?, MIB),
            log: ratio(database.log_files()?, MIB),
        });
        std::thread::sleep(EVERY.min(settings.length.saturating_sub(began.elapsed())));
    }
    let status = client.wait_exit(GRACE)?;
    let (bytes, seconds) = crate::work::iperf3_figures(&client)
        .map_err(|failure| client.failure(&format!("{status}: {failure}")))?;
    server.wait_exit(GRACE)?;
    let mut measurement = Measurement::default();
    measurement.set("sum_mbps", ratio(bytes, 125_000) / seconds);
    let name = "up".to_owned();
    measurement.flows.push(Flow { name, bytes, start: 0.0, coverage: 1.0 });
    Ok((measurement, looks))
}

const MIB: u64 = 1 << 20;

fn traffic(
    from: &Namespace,
    to: &Namespace,
    address: &str,
    settings: &Settings,
) -> Result<(Daemon, Daemon)> {
    let mut command = to.command("iperf3");
    command.args(["--server", "--one-off", "--forceflush", "--bind", address]);
    let mut server = Daemon::spawn("iperf3's server", command)?;
    server.wait_for("listening", Duration::from_secs(10))?;
    let mut command = from.command("iperf3");
    let (seconds, rate) = (settings.length.as_secs().max(1), settings.total_mbps);
    // Leave out the report of each second, which would be long for half an hour.
    command.args(["--client", address, "--json", "--interval", "0"]);
    command.args(["--time", &seconds.to_string(), "--bitrate", &format!("{rate}M")]);
    Ok((server, Daemon::spawn("iperf3's client", command)?))
}

/// Records the peak, and the growth per minute in the second half, when the retention has taken
/// effect.
fn judge(measurement: &mut Measurement, looks: &[DiskSample]) {
    let peak = looks.iter().map(DiskSample::all).fold(0.0, f64::max);
    measurement.set("disk_peak_mib", peak);
    let second = looks.get(looks.len() / 2..).unwrap_or_default();
    let points: Vec<(f64, f64)> =
        second.iter().map(|look| (look.seconds / 60.0, look.all())).collect();
    if let Some(growth) = line(&points) {
        measurement.set("disk_growth_mib_per_min", growth.slope);
    }
    for (what, of) in [
        ("tables and log", DiskSample::all as fn(&DiskSample) -> f64),
        ("tables", |look| look.tables),
    ] {
        let mut line = format!("MiB on disk, {what}, at second:");
        for look in looks.iter().step_by(looks.len().div_ceil(IN_NOTE).max(1)) {
            // Writing to a String cannot fail.
            let _ = write!(line, " {:.0}: {:.0},", look.seconds, of(look));
        }
        measurement.notes.push(line.trim_end_matches(',').to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn looks(tables: impl Fn(f64) -> f64) -> Vec<DiskSample> {
        let at = |n: u32| f64::from(n) * 5.0;
        (0..120).map(|n| DiskSample { seconds: at(n), tables: tables(at(n)), log: 80.0 }).collect()
    }

    #[test]
    fn what_fills_up_and_then_stays_does_not_grow() {
        let mut measurement = Measurement::default();
        judge(&mut measurement, &looks(|seconds| (seconds * 25.0).min(1000.0)));
        assert!((measurement.values["disk_peak_mib"] - 1080.0).abs() < 1.0);
        assert!(measurement.values["disk_growth_mib_per_min"].abs() < 0.1);
        assert!(measurement.notes[0].contains("0: 80, 20: 580"), "{:?}", measurement.notes);
    }

    #[test]
    fn what_goes_on_growing_is_told_by_the_minute() {
        let mut measurement = Measurement::default();
        judge(&mut measurement, &looks(|seconds| seconds * 2.0));
        assert!((measurement.values["disk_growth_mib_per_min"] - 120.0).abs() < 0.1);
    }
}
