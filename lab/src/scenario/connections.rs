//! Measures the number of clients a second that a server accepts: stepped up until it refuses or delays, or all at one
//! instant.

use std::time::Duration;

use adit_testbed::failure::{Result, ensure};

use crate::handshake_load::arrivals::{count, latency};
use crate::handshake_load::schedule::{burst, steady};
use crate::handshake_load::steps::{Next, Plan, Step};
use crate::handshake_load::{LoadGenerator, LoadOutcome};
use crate::record::Measurement;
use crate::subject::{Subject, Toolchain};
use crate::testbed::Testbed;

/// The arrival pattern of the clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    /// One after the other, at rates that are stepped up.
    Cold,
    /// All lose their sessions at once, without a word, and come back at one instant.
    Storm,
}

/// One trial.
#[derive(Debug, Clone)]
pub struct ConnectionsSpec {
    /// Hosts, each with an address of its own.
    pub hosts: u16,
    /// Clients of each host.
    pub sessions: usize,
    /// The arrival pattern.
    pub pattern: Pattern,
    /// The time for which each rate is offered.
    pub step: Duration,
    /// The plan by which rates are stepped up, and the condition under which a rate is not sustained.
    pub plan: Plan,
}

impl Default for ConnectionsSpec {
    fn default() -> Self {
        Self {
            hosts: 50,
            sessions: 2,
            pattern: Pattern::Cold,
            step: Duration::from_millis(500),
            plan: Plan::default(),
        }
    }
}

/// The time limit of clients of a storm.
const STORM: Duration = Duration::from_secs(20);
/// The time limit of the last clients of a step: longer than a limit on p99, shorter than a retransmission.
const STRAGGLERS: Duration = Duration::from_millis(500);
/// The time limit of a server to complete the rest of a step.
const SETTLE: Duration = Duration::from_secs(1);
/// Clients before anything is counted: they find cold caches and pages that were never touched.
const WARM_UP: usize = 10;

/// Figures: `handshakes_per_s`, `cpu_ms_per_handshake`, `p50_ms`, `p99_ms` and `refused` at the highest rate that was
/// sustained (or in the storm), `kib_per_client`, `misconfigured`, `generator_percent`; the distribution `handshake`.
///
/// # Errors
/// The subject has no server for OpenVPN's clients, it did not come up, or it sustains not even a few clients a second.
pub fn connections(
    toolchain: &Toolchain,
    testbed: &Testbed,
    subject: &Subject,
    spec: &ConnectionsSpec,
) -> Result<Measurement> {
    let load = LoadGenerator::set(toolchain, testbed, subject, spec.hosts, spec.sessions)?;
    load.metered(testbed, || measure(&load, spec))
}

fn measure(load: &LoadGenerator, spec: &ConnectionsSpec) -> Result<Measurement> {
    let mut measurement = Measurement::default();
    fill(load, spec, &mut measurement)?;
    let (ran, cpu) = match spec.pattern {
        Pattern::Cold => {
            load.pool.disconnect_all()?;
            step_up(load, spec, &mut measurement)?
        }
        Pattern::Storm => {
            let (ran, cpu) = load.measure_cpu(|pool| pool.reconnect_all(STORM))?;
            load.check(&ran, &mut measurement)?;
            (ran, cpu)
        }
    };
    put(&ran, cpu, &mut measurement);
    Ok(measurement)
}

/// Lets all clients come at a leisurely rate, and measures what memory each takes.
fn fill(load: &LoadGenerator, spec: &ConnectionsSpec, measurement: &mut Measurement) -> Result<()> {
    let warm = load.pool.run(burst(WARM_UP.min(load.slots)), STORM)?;
    ensure(warm.up() > 0, || {
        load.server.daemon().failure(&format!("no client comes up: {:?}", warm.setbacks)).0
    })?;
    load.pool.disconnect_all()?;
    let before = load.server.memory_kib()?;
    let length = Duration::from_secs_f64(count(load.slots) / spec.plan.first);
    let mut schedule = steady(spec.plan.first, length);
    schedule.truncate(load.slots);
    let filled = load.pool.run(schedule, STORM)?;
    let grown = load.server.memory_kib()?.saturating_sub(before);
    measurement.set("kib_per_client", grown as f64 / count(filled.up().max(1)));
    load.check(&filled, measurement)?;
    Ok(())
}

/// Offers one rate after the other. Returns the run at the highest that was sustained, and the server's CPU in it.
fn step_up(
    load: &LoadGenerator,
    spec: &ConnectionsSpec,
    measurement: &mut Measurement,
) -> Result<(LoadOutcome, f64)> {
    let mut steps: Vec<Step> = Vec::new();
    let mut runs: Vec<(LoadOutcome, f64)> = Vec::new();
    let best = loop {
        match spec.plan.next(&steps) {
            Next::Done(best) => break best,
            Next::Try(rate) => {
                let Plan { p99, unfinished, .. } = spec.plan;
                let schedule = steady(rate, spec.step);
                let (ran, cpu) = load.measure_cpu(|pool| {
                    pool.run_until_late(schedule, STRAGGLERS, p99, unfinished.max(0.01))
                })?;
                load.check(&ran, measurement)?;
                let step = Step::of(rate, &ran);
                if !spec.plan.sustains(&step) {
                    // Abandoned handshakes are still in the server's queue.
                    load.pool.drop_all()?;
                    load.settle(SETTLE)?;
                }
                steps.push(step);
                runs.push((ran, cpu));
            }
        }
    };
    let offered: Vec<String> = steps.iter().map(|step| describe(&spec.plan, step)).collect();
    measurement.notes.push(format!("offered a second: {}", offered.join("; ")));
    match best {
        Some(best) => Ok(runs.swap_remove(best)),
        None => Err(load.server.daemon().failure("not even a few clients a second are sustained")),
    }
}

fn describe(plan: &Plan, step: &Step) -> String {
    // No other figure is known of an unsustained step: it was broken off.
    let Step { offered, achieved, p99_ms, .. } = *step;
    if plan.sustains(step) {
        format!("{offered:.0} sustained ({achieved:.0} up a second, p99 {p99_ms:.0} ms)")
    } else {
        format!("{offered:.0} not sustained")
    }
}

/// Records the figures of one run.
fn put(ran: &LoadOutcome, cpu: f64, measurement: &mut Measurement) {
    let distribution = latency(&ran.arrivals);
    measurement.set("handshakes_per_s", ran.rate());
    measurement.set("cpu_ms_per_handshake", cpu * 1e3 / count(ran.up().max(1)));
    for (name, share) in [("p50_ms", 0.5), ("p99_ms", 0.99)] {
        if let Some(ms) = distribution.at(share) {
            measurement.set(name, ms);
        }
    }
    measurement.set("refused", ran.refused() as f64);
    measurement.set("generator_percent", ran.generator_share() * 100.0);
    let reasons = ran.setbacks.iter().map(|(reason, times)| format!("{times} x {reason}"));
    measurement.notes.extend(reasons.take(5));
    if distribution.lost > 0 {
        measurement.notes.push(format!("{} clients never came up", distribution.lost));
    }
    if ran.generator_share() > BUSY {
        measurement.notes.push(format!(
            "the clients' thread was busy for {:.0} % of the time: the server may sustain more",
            ran.generator_share() * 100.0
        ));
    }
    measurement.latencies.insert("handshake".to_owned(), distribution);
}

/// Above this share of a core the clients may be the limit, and not the server.
const BUSY: f64 = 0.85;
