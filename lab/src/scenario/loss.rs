//! Bulk traffic and round trips through a host that loses, holds back and delays packets.

use std::rc::Rc;
use std::time::Duration;

use adit_sim::{Impairment, Loss};
use adit_testbed::failure::Result;

use super::latency::idle;
use super::runner::Runner;
use super::trial_run::{Direction, TrialRun};
use crate::plan::{Pattern, Settings};
use crate::record::Measurement;
use crate::subject::Subject;
use crate::testbed::Testbed;
use crate::work::{Edge, Window, tcp_bulk, unreachable};

/// The delay of each direction. Without any delay, TCP recovers from a loss faster than on any real
/// path.
const DELAY: Duration = Duration::from_millis(5);
/// The maximum time for which a packet is held back. Dozens of packets overtake it meanwhile.
const HELD: Duration = Duration::from_millis(5);
/// The average number of packets in a burst.
const BURST: f64 = 10.0;
/// The time after which a silent tunnel counts as dead.
const SILENCE: Duration = Duration::from_secs(10);
/// The duration of the round-trip measurement before the bulk traffic.
const TRIPS: Duration = Duration::from_millis(700);
/// The window for the relay's own ceiling.
const LOOK: Window = Window { warmup: Duration::from_millis(300), length: Duration::from_secs(1) };

pub(super) fn run(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
    round: u32,
) -> Result<Measurement> {
    let ceiling = ceiling(runner, settings)?;
    // The relay drops packets with the same numbers for every subject of a round.
    let testbed = Rc::new(Testbed::line([delayed(), delayed()], u64::from(round))?);
    let run = runner.start(testbed, settings, subject)?;
    let relay = run.testbed.relay().ok_or("a line without a relay")?;
    let rough = impairment(settings.pattern, settings.loss / 100.0);
    relay.set_impairment([rough.clone(), rough]);
    let mut measurement = Measurement::default();
    let window = Window { warmup: settings.warmup, length: settings.length };
    let trips = idle(&run, &Window { length: TRIPS, ..window })?;
    measurement.set_times(&trips, &[("p50_ms", 0.5), ("p99_ms", 0.99)]);
    measurement.latencies.insert("impaired".to_owned(), trips);
    let routes = run.routes(Direction::Up, 1);
    let cost = run.measure_cost(|edge| {
        tcp_bulk(&routes, &window, &mut |which| {
            if which == Edge::Begin {
                relay.reset();
            }
            edge(which)
        })
    })?;
    measurement.set("sum_mbps", cost.measured.mbps());
    cost.put_flows(&mut measurement);
    cost.usage.put(&mut measurement, cost.gigabits());
    survive(&run, &mut measurement)?;
    measurement.set("relay_ceiling_mbps", ceiling);
    relay.put(&mut measurement);
    Ok(measurement)
}

/// Returns the impairment that all points share: the delay in each direction.
fn delayed() -> Impairment {
    Impairment { delay: DELAY, ..Impairment::default() }
}

/// Returns the impairment under which `share` of the packets, 0 to 1, are affected by the pattern.
fn impairment(pattern: Pattern, share: f64) -> Impairment {
    match pattern {
        Pattern::Random => Impairment { loss: Loss::Random(share), ..delayed() },
        Pattern::Bursts => Impairment { loss: Loss::bursts(share, BURST), ..delayed() },
        Pattern::Reorder => Impairment { reorder: share, reorder_by: HELD, ..delayed() },
    }
}

/// Checks that the tunnel still carries packets.
fn survive(run: &TrialRun, measurement: &mut Measurement) -> Result<()> {
    let silent = unreachable(&run.routes(Direction::Up, 1), SILENCE)?;
    measurement.set("survived", if silent.is_empty() { 1.0 } else { 0.0 });
    Ok(())
}

/// Returns the rate of one stream without a tunnel, through a relay that does not impair packets.
fn ceiling(runner: &mut Runner, settings: &Settings) -> Result<f64> {
    if let Some(ceiling) = runner.relay_ceiling {
        return Ok(ceiling);
    }
    let testbed = Rc::new(Testbed::line([Impairment::default(), Impairment::default()], 0)?);
    let run = runner.start(testbed, settings, &Subject::Bare)?;
    let measured = tcp_bulk(&run.routes(Direction::Up, 1), &LOOK, &mut |_| Ok(()))?;
    runner.relay_ceiling = Some(measured.mbps());
    Ok(measured.mbps())
}
