//! Round trips, idle and during bulk.

use std::time::Duration;

use adit_testbed::failure::Result;

use super::lab::Lab;
use super::stage::{Direction, Stage};
use crate::plan::Settings;
use crate::record::{Latency, Measurement};
use crate::subject::Subject;
use crate::work::{Echo, Window, echo_latency, tcp_bulk};

/// Probes a second: enough for a p99.9 in a few seconds, few enough to leave a tunnel idle.
const RATE: f64 = 500.0;

pub(super) fn run(lab: &mut Lab, settings: &Settings, subject: &Subject) -> Result<Measurement> {
    let bed = lab.bed(settings)?;
    let stage = lab.stage(bed, settings, subject)?;
    measure(&stage, settings)
}

/// Round trips of the first client, idle and beside its bulk.
pub(super) fn measure(stage: &Stage, settings: &Settings) -> Result<Measurement> {
    let mut measurement = Measurement::default();
    let window = Window { warmup: settings.warmup, length: settings.length };
    let idle = idle(stage, &window)?;
    put(&mut measurement, idle, "idle");
    let client = stage.bed.clients.first().ok_or("a bed without clients")?;
    let echo = Echo::start(client, &stage.bed.server, stage.tunnels.server_inner.v4, RATE)?;
    let routes = stage.routes(Direction::Up, 1);
    let priced = stage.priced(|edge| {
        tcp_bulk(&routes, &window, &mut |which| {
            echo.edge(which);
            edge(which)
        })
    })?;
    put(&mut measurement, echo.finish()?, "loaded");
    measurement.set("up_mbps", priced.measured.mbps());
    priced.put_flows(&mut measurement);
    priced.usage.put(&mut measurement, priced.gigabits());
    Ok(measurement)
}

/// Round trips of the first client with nothing else under way.
pub(super) fn idle(stage: &Stage, window: &Window) -> Result<Latency> {
    let client = stage.bed.clients.first().ok_or("a bed without clients")?;
    let window = Window { warmup: window.warmup.min(Duration::from_millis(200)), ..*window };
    echo_latency(client, &stage.bed.server, stage.tunnels.server_inner.v4, RATE, &window)
        .map_err(|failure| stage.broken(&failure))
}

fn put(measurement: &mut Measurement, latency: Latency, name: &str) {
    for (quantile, share) in [("p50", 0.5), ("p90", 0.9), ("p99", 0.99), ("p999", 0.999)] {
        if let Some(ms) = latency.at(share) {
            measurement.set(&format!("{name}_{quantile}_ms"), ms);
        }
    }
    measurement.latencies.insert(name.to_owned(), latency);
}
