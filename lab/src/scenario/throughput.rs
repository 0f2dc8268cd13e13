//! Bulk traffic from all clients at once, first up and then down.

use std::time::Duration;

use adit_testbed::failure::Result;

use super::runner::Runner;
use super::trial_run::{Direction, MeasuredCost, TrialRun};
use crate::measure::Usage;
use crate::plan::{Settings, Workload};
use crate::record::{Latency, Measurement, QUANTILES};
use crate::subject::Subject;
use crate::work::{Edge, Measured, Window, iperf3, requests, tcp_bulk};

/// The size of a request and of its answer.
const MESSAGE: usize = 16 * 1024;
/// Long enough for TCP to send its largest frames.
const LOOK: Window =
    Window { warmup: Duration::from_millis(100), length: Duration::from_millis(200) };

pub(super) fn run(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
    round: u32,
) -> Result<Measurement> {
    let testbed = runner.testbed(settings)?;
    let run = runner.start(testbed, settings, subject)?;
    let mut measurement = Measurement::default();
    // Every round has the same testbeds and subjects, so one check of each is enough, and does not disturb the other
    // rounds. A bridge does not change the testbed's veth pair, because the devices of its hosts were set up with the
    // subject.
    if round == 1 && !matches!(subject, Subject::Bridge(_) | Subject::Wired(_)) {
        look(&run, &mut measurement)?;
    }
    if settings.workload == Workload::Requests {
        return request(&run, settings, measurement);
    }
    let mut usage: Option<Usage> = None;
    let (mut sum, mut gigabits) = (0.0, 0.0);
    for (direction, metric) in [(Direction::Up, "up_mbps"), (Direction::Down, "down_mbps")] {
        let cost = bulk(&run, settings, direction)?;
        measurement.set(metric, cost.measured.mbps());
        sum += cost.measured.mbps();
        gigabits += cost.gigabits();
        cost.put_flows(&mut measurement);
        usage = Some(match usage {
            None => cost.usage,
            Some(before) => before.then(cost.usage),
        });
    }
    measurement.set("sum_mbps", sum);
    if let Some(usage) = usage {
        usage.put(&mut measurement, gigabits);
    }
    measurement.notes.extend(run.tunnels.notes.iter().cloned());
    Ok(measurement)
}

fn window(settings: &Settings) -> Window {
    Window { warmup: settings.warmup, length: settings.length }
}

/// Measures one direction.
fn bulk(run: &TrialRun, settings: &Settings, direction: Direction) -> Result<MeasuredCost> {
    let window = window(settings);
    run.measure_cost(|edge| match settings.workload {
        Workload::Iperf3 => by_iperf3(run, &window, direction, edge),
        Workload::Tcp | Workload::Requests => {
            tcp_bulk(&run.routes(direction, settings.streams), &window, edge)
        }
    })
}

fn by_iperf3(
    run: &TrialRun,
    window: &Window,
    direction: Direction,
    edge: &mut dyn FnMut(Edge) -> Result<()>,
) -> Result<Measured> {
    let client = run.testbed.clients.first().ok_or("a testbed without clients")?;
    let inner = run.tunnels.server_inner.v4;
    iperf3(client, &run.testbed.server, inner, window, direction == Direction::Down, edge)
}

/// Measures requests, which go up while responses arrive down, so there is one window.
fn request(
    run: &TrialRun,
    settings: &Settings,
    mut measurement: Measurement,
) -> Result<Measurement> {
    let routes = run.routes(Direction::Up, settings.streams);
    let mut times = Latency::default();
    let cost = run.measure_cost(|edge| {
        let (measured, latency) = requests(&routes, &window(settings), MESSAGE, edge)?;
        times = latency;
        Ok(measured)
    })?;
    measurement.set("sum_mbps", cost.measured.mbps());
    measurement.set("requests_per_s", times.count as f64 / cost.measured.seconds);
    measurement.set_times(&times, &QUANTILES);
    measurement.latencies.insert("requests".to_owned(), times);
    cost.put_flows(&mut measurement);
    cost.usage.put(&mut measurement, cost.gigabits());
    Ok(measurement)
}

/// Returns the largest frame of a short bulk transfer through the first client's tunnel.
pub(super) fn largest(run: &TrialRun) -> Result<u64> {
    run.testbed.largest_frame(|| {
        let routes = run.routes(Direction::Up, 1);
        let one = routes.get(..1).unwrap_or_default();
        tcp_bulk(one, &LOOK, &mut |_| Ok(())).map(drop)
    })
}

/// Checks that the testbed's label is true.
fn look(run: &TrialRun, measurement: &mut Measurement) -> Result<()> {
    let largest = largest(run)?;
    measurement.set("largest_frame", largest as f64);
    if let Err(why) = run.testbed.check_mode(largest) {
        measurement.invalid.push(why);
    }
    Ok(())
}
