//! Round trips, idle and during bulk traffic.

use std::time::Duration;

use adit_testbed::failure::Result;

use super::runner::Runner;
use super::trial_run::{Direction, TrialRun};
use crate::plan::Settings;
use crate::record::{Latency, Measurement};
use crate::subject::Subject;
use crate::work::{Echo, Window, echo_latency, tcp_bulk};

/// The number of probes a second: high enough for a p99.9 in a few seconds, and low enough to leave a tunnel idle.
const RATE: f64 = 500.0;

pub(super) fn run(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
) -> Result<Measurement> {
    let testbed = runner.testbed(settings)?;
    let run = runner.start(testbed, settings, subject)?;
    measure(&run, settings)
}

/// Measures round trips of the first client, idle and during its bulk transfer.
pub(super) fn measure(run: &TrialRun, settings: &Settings) -> Result<Measurement> {
    let mut measurement = Measurement::default();
    let window = Window { warmup: settings.warmup, length: settings.length };
    let idle = idle(run, &window)?;
    put(&mut measurement, idle, "idle");
    let client = run.testbed.clients.first().ok_or("a testbed without clients")?;
    let echo = Echo::start(client, &run.testbed.server, run.tunnels.server_inner.v4, RATE)?;
    let routes = run.routes(Direction::Up, 1);
    let cost = run.measure_cost(|edge| {
        tcp_bulk(&routes, &window, &mut |which| {
            echo.edge(which);
            edge(which)
        })
    })?;
    put(&mut measurement, echo.finish()?, "loaded");
    measurement.set("up_mbps", cost.measured.mbps());
    cost.put_flows(&mut measurement);
    cost.usage.put(&mut measurement, cost.gigabits());
    Ok(measurement)
}

/// Measures round trips of the first client without other traffic.
pub(super) fn idle(run: &TrialRun, window: &Window) -> Result<Latency> {
    let client = run.testbed.clients.first().ok_or("a testbed without clients")?;
    let window = Window { warmup: window.warmup.min(Duration::from_millis(200)), ..*window };
    echo_latency(client, &run.testbed.server, run.tunnels.server_inner.v4, RATE, &window)
        .map_err(|failure| run.broken(&failure))
}

fn put(measurement: &mut Measurement, latency: Latency, name: &str) {
    for (quantile, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)] {
        if let Some(ms) = latency.at(share) {
            measurement.set(&format!("{name}_{quantile}_ms"), ms);
        }
    }
    measurement.latencies.insert(name.to_owned(), latency);
}
