//! Bulk from all clients at once: up, and then down.

use std::time::Duration;

use adit_testbed::failure::Result;

use super::lab::Lab;
use super::stage::{Direction, Priced, Stage};
use crate::measure::Usage;
use crate::plan::{Settings, Workload};
use crate::record::{Latency, Measurement, QUANTILES};
use crate::subject::Subject;
use crate::work::{Edge, Measured, Window, iperf3, requests, tcp_bulk};

/// Of a request and of its answer.
const MESSAGE: usize = 16 * 1024;
/// Long enough for TCP to send its largest frames.
const LOOK: Window =
    Window { warmup: Duration::from_millis(100), length: Duration::from_millis(200) };

pub(super) fn run(
    lab: &mut Lab,
    settings: &Settings,
    subject: &Subject,
    round: u32,
) -> Result<Measurement> {
    let bed = lab.bed(settings)?;
    let stage = lab.stage(bed, settings, subject)?;
    let mut measurement = Measurement::default();
    // Every round has the same beds and subjects: one look each is enough, and disturbs no other round.
    // A bridge leaves the bed's cable alone: its hosts' devices were set up with the subject.
    if round == 1 && !matches!(subject, Subject::Bridge(_) | Subject::Wired(_)) {
        look(&stage, &mut measurement)?;
    }
    if settings.workload == Workload::Requests {
        return request(&stage, settings, measurement);
    }
    let mut usage: Option<Usage> = None;
    let (mut sum, mut gigabits) = (0.0, 0.0);
    for (direction, metric) in [(Direction::Up, "up_mbps"), (Direction::Down, "down_mbps")] {
        let priced = bulk(&stage, settings, direction)?;
        measurement.set(metric, priced.measured.mbps());
        sum += priced.measured.mbps();
        gigabits += priced.gigabits();
        priced.put_flows(&mut measurement);
        usage = Some(match usage {
            None => priced.usage,
            Some(before) => before.then(priced.usage),
        });
    }
    measurement.set("sum_mbps", sum);
    if let Some(usage) = usage {
        usage.put(&mut measurement, gigabits);
    }
    measurement.notes.extend(stage.tunnels.notes.iter().cloned());
    Ok(measurement)
}

fn window(settings: &Settings) -> Window {
    Window { warmup: settings.warmup, length: settings.length }
}

/// One direction.
fn bulk(stage: &Stage, settings: &Settings, direction: Direction) -> Result<Priced> {
    let window = window(settings);
    stage.priced(|edge| match settings.workload {
        Workload::Iperf3 => by_iperf3(stage, &window, direction, edge),
        Workload::Tcp | Workload::Requests => {
            tcp_bulk(&stage.routes(direction, settings.streams), &window, edge)
        }
    })
}

fn by_iperf3(
    stage: &Stage,
    window: &Window,
    direction: Direction,
    edge: &mut dyn FnMut(Edge) -> Result<()>,
) -> Result<Measured> {
    let client = stage.bed.clients.first().ok_or("a bed without clients")?;
    let inner = stage.tunnels.server_inner.v4;
    iperf3(client, &stage.bed.server, inner, window, direction == Direction::Down, edge)
}

/// Requests go up and answers come down at once, so there is one window.
fn request(
    stage: &Stage,
    settings: &Settings,
    mut measurement: Measurement,
) -> Result<Measurement> {
    let routes = stage.routes(Direction::Up, settings.streams);
    let mut times = Latency::default();
    let priced = stage.priced(|edge| {
        let (measured, latency) = requests(&routes, &window(settings), MESSAGE, edge)?;
        times = latency;
        Ok(measured)
    })?;
    measurement.set("sum_mbps", priced.measured.mbps());
    #[allow(clippy::cast_precision_loss)]
    measurement.set("requests_per_s", times.count as f64 / priced.measured.seconds);
    measurement.set_times(&times, &QUANTILES);
    measurement.latencies.insert("requests".to_owned(), times);
    priced.put_flows(&mut measurement);
    priced.usage.put(&mut measurement, priced.gigabits());
    Ok(measurement)
}

/// The largest frame of a short bulk through the first client's tunnel.
pub(super) fn largest(stage: &Stage) -> Result<u64> {
    stage.bed.largest_frame(|| {
        let routes = stage.routes(Direction::Up, 1);
        let one = routes.get(..1).unwrap_or_default();
        tcp_bulk(one, &LOOK, &mut |_| Ok(())).map(drop)
    })
}

/// Whether the bed's label is true.
fn look(stage: &Stage, measurement: &mut Measurement) -> Result<()> {
    let largest = largest(stage)?;
    #[allow(clippy::cast_precision_loss)]
    measurement.set("largest_frame", largest as f64);
    if let Err(why) = stage.bed.check_mode(largest) {
        measurement.invalid.push(why);
    }
    Ok(())
}
