//! Offers more clients than a server can sustain, and then few. Measures how long the server takes to recover, and
//! checks the configuration that each client received.

use std::time::Duration;

use adit_testbed::failure::Result;

use crate::handshake_load::LoadGenerator;
use crate::handshake_load::arrivals::{count, latency, recovery};
use crate::handshake_load::schedule::{phases, steady};
use crate::record::Measurement;
use crate::subject::{Subject, Toolchain};
use crate::testbed::Testbed;

/// The parameters of one trial.
#[derive(Debug, Clone)]
pub struct OverloadSpec {
    /// The number of hosts, each with a separate address.
    pub hosts: u16,
    /// The maximum number of simultaneous clients of each host; further clients wait, and their time counts.
    pub sessions: usize,
    /// The rate that this server sustains, in clients a second (`handshakes_per_s` of [`super::connections`]).
    pub sustained: f64,
    /// The offered rate, as a multiple of `sustained`.
    pub factor: f64,
    /// The duration of the overload.
    pub overload: Duration,
    /// The rate offered before and afterwards, as a multiple of `sustained`.
    pub calm_factor: f64,
    /// The duration of the calm period afterwards.
    pub calm: Duration,
}

impl OverloadSpec {
    /// Returns a trial with 150 % of the sustained rate for 10 s, then 10 % for 10 s.
    pub fn of(sustained: f64) -> Self {
        Self {
            hosts: 50,
            sessions: 20,
            sustained,
            factor: 1.5,
            overload: Duration::from_secs(10),
            calm_factor: 0.1,
            calm: Duration::from_secs(10),
        }
    }
}

/// The time before the overload in which the normal latency is measured.
const BEFORE: Duration = Duration::from_secs(2);
/// The server counts as recovered when all clients of a window of this length connect in time.
const WINDOW: Duration = Duration::from_secs(1);
/// The time limit for the last clients. They keep trying until then.
const TIMEOUT: Duration = Duration::from_secs(15);
/// A p99 below this counts as that of an idle server, because pauses of the machine itself are of this size.
const FLOOR: Duration = Duration::from_millis(10);

/// Measures `recovery_s` (missing if the server did not recover within `calm`), `stuck`, `misconfigured`, `refused`,
/// `handshakes_per_s` during the overload, `idle_p99_ms` before and `loaded_p50_ms`, `loaded_p99_ms` during it, and the
/// distributions `idle`, `loaded`, `after`.
///
/// # Errors
/// The subject has no server for OpenVPN's clients, or it did not become ready.
pub fn overload(
    toolchain: &Toolchain,
    testbed: &Testbed,
    subject: &Subject,
    spec: &OverloadSpec,
) -> Result<Measurement> {
    let load = LoadGenerator::set(toolchain, testbed, subject, spec.hosts, spec.sessions)?;
    load.metered(testbed, || measure(&load, spec))
}

fn measure(load: &LoadGenerator, spec: &OverloadSpec) -> Result<Measurement> {
    let mut measurement = Measurement::default();
    let (calm, much) = (spec.sustained * spec.calm_factor, spec.sustained * spec.factor);
    let before = load.pool.run(steady(calm, BEFORE), TIMEOUT)?;
    let schedule = phases(&[(much, spec.overload), (calm, spec.calm)]);
    let (ran, cpu) = load.measure_cpu(|pool| pool.run(schedule, TIMEOUT))?;
    let loaded = || ran.arrivals.iter().filter(|arrival| arrival.intended < spec.overload);
    let after = ran.arrivals.iter().filter(|arrival| arrival.intended >= spec.overload);
    let (idle, busy, after) = (latency(&before.arrivals), latency(loaded()), latency(after));
    let idle_p99 = idle.at(0.99).unwrap_or_default();
    measurement.set("idle_p99_ms", idle_p99);
    for (name, share) in [("loaded_p50_ms", 0.5), ("loaded_p99_ms", 0.99)] {
        if let Some(ms) = busy.at(share) {
            measurement.set(name, ms);
        }
    }
    let limit = Duration::from_secs_f64(idle_p99 * 2.0 / 1e3).max(FLOOR);
    match recovery(&ran.arrivals, spec.overload, WINDOW, limit) {
        Some(time) => measurement.set("recovery_s", time.as_secs_f64()),
        None => measurement.notes.push(format!(
            "not recovered within {:.0} s: p99 is still above {:.1} ms",
            spec.calm.as_secs_f64(),
            limit.as_secs_f64() * 1e3
        )),
    }
    let ends = loaded().filter_map(|arrival| Some(arrival.intended + arrival.latency?));
    let in_time = ends.filter(|end| *end < spec.overload).count();
    measurement.set("handshakes_per_s", count(in_time) / spec.overload.as_secs_f64());
    measurement.set("cpu_ms_per_handshake", cpu * 1e3 / count(ran.up().max(1)));
    measurement.set("stuck", count(ran.arrivals.len() - ran.up()));
    measurement.set("refused", ran.refused() as f64);
    measurement.set("generator_percent", ran.generator_share() * 100.0);
    let reasons = ran.setbacks.iter().map(|(reason, times)| format!("{times} x {reason}"));
    measurement.notes.extend(reasons.take(5));
    for (name, distribution) in [("idle", idle), ("loaded", busy), ("after", after)] {
        measurement.latencies.insert(name.to_owned(), distribution);
    }
    load.check(&ran, &mut measurement)?;
    Ok(measurement)
}
