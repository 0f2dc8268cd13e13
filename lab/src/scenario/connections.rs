//! Measures the number of clients a second that a server accepts, either at increasing rates until it refuses or delays
//! clients, or with all clients at the same instant.

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
    /// Clients connect one after the other, at increasing rates.
    Cold,
    /// All clients lose their sessions at once, without an exit message, and reconnect at the same instant.
    Storm,
}

/// The parameters of one trial.
#[derive(Debug, Clone)]
pub struct ConnectionsSpec {
    /// The number of hosts, each with a separate address.
    pub hosts: u16,
    /// The number of clients of each host.
    pub sessions: usize,
    /// The arrival pattern.
    pub pattern: Pattern,
    /// How long each rate is offered.
    pub step: Duration,
    /// The parameters of the search, including the conditions under which a rate is not sustained.
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

/// The time limit for the clients of a storm.
const STORM: Duration = Duration::from_secs(20);
/// The time limit for the last clients of a step: longer than any limit on p99, and shorter than a retransmission.
const STRAGGLERS: Duration = Duration::from_millis(500);
/// The time limit for a server to complete the rest of a step.
const SETTLE: Duration = Duration::from_secs(1);
/// The number of clients before the measurement begins. They meet cold caches and untouched pages.
const WARM_UP: usize = 10;

/// Measures `handshakes_per_s`, `cpu_ms_per_handshake`, `p50_ms`, `p99_ms` and `refused` at the highest rate that was
/// sustained (or in the storm), `kib_per_client`, `misconfigured`, `generator_percent` and the distribution
/// `handshake`.
///
/// # Errors
/// The subject has no server for OpenVPN's clients, the server did not become ready, or it does not even sustain a few
/// clients a second.
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

/// Connects all clients at a moderate rate, and measures the memory per client.
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

/// Offers one rate after the other. Returns the run at the highest rate that was sustained, and the server's CPU time
/// in it.
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
    // An unsustained step has no other figures, because it ended early.
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

/// Above this share of a core, the client pool rather than the server may be the limit.
const BUSY: f64 = 0.85;
