//! Bulk traffic between two members of a mesh: on their direct path, and then through a relay, when they can reach nothing else.

use std::rc::Rc;

use adit_testbed::failure::{Context, Result};

use super::runner::Runner;
use super::trial_run::TrialRun;
use crate::measure::{Meter, RoleUsage};
use crate::plan::Settings;
use crate::record::Measurement;
use crate::subject::{MemberPath, Subject};
use crate::testbed::Testbed;
use crate::work::{Route, Window, tcp_bulk};

/// The figures of one path.
struct PathCost {
    /// The sum of both directions, in Mb/s.
    mbps: f64,
    /// The CPU time of the relay, in seconds for each gigabit.
    relay_cpu_s_per_gb: f64,
}

pub(super) fn run(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
) -> Result<Measurement> {
    let mut measurement = Measurement::default();
    let direct = one_path(runner, settings, subject, MemberPath::Direct, &mut measurement)?;
    let relayed = one_path(runner, settings, subject, MemberPath::Relay, &mut measurement)?;
    measurement.set("direct_mbps", direct.mbps);
    measurement.set("relayed_mbps", relayed.mbps);
    if direct.mbps > 0.0 {
        measurement.set("relayed_percent", relayed.mbps / direct.mbps * 100.0);
    }
    measurement.set("relay_cpu_s_per_gb", relayed.relay_cpu_s_per_gb);
    Ok(measurement)
}

/// Measures both directions, one after the other, on new tunnels.
fn one_path(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
    path: MemberPath,
    measurement: &mut Measurement,
) -> Result<PathCost> {
    let testbed = Rc::new(Testbed::members(settings.link, path)?);
    let run = runner.start_members(testbed, settings, subject, path)?;
    let window = Window { warmup: settings.warmup, length: settings.length };
    let (mut mbps, mut gigabits, mut cpu) = (0.0, 0.0, 0.0);
    for (name, from, to) in [("up", 0, 1), ("down", 1, 0)] {
        let routes = [route(&run, name, path, from, to)?];
        let mut meter = Meter::start(&run.tunnels.processes(), &run.testbed)?;
        let measured = tcp_bulk(&routes, &window, &mut |edge| meter.edge(edge))
            .map_err(|failure| run.broken(&failure))?;
        let usage = meter.stop()?;
        mbps += measured.mbps();
        gigabits += measured.mbps() * measured.seconds / 1e3;
        cpu += usage.roles.get("server").map_or(0.0, RoleUsage::cpu);
        measurement.steal = measurement.steal.max(usage.steal);
        measurement.flows.extend(measured.flows);
        measurement.invalid.extend(measured.invalid);
    }
    for note in &run.tunnels.notes {
        if !measurement.notes.contains(note) {
            measurement.notes.push(note.clone());
        }
    }
    Ok(PathCost { mbps, relay_cpu_s_per_gb: if gigabits > 0.0 { cpu / gigabits } else { 0.0 } })
}

/// Returns the route between two members, counted from 0.
fn route<'a>(
    run: &'a TrialRun,
    direction: &str,
    path: MemberPath,
    from: usize,
    to: usize,
) -> Result<Route<'a>> {
    let host = |at: usize| run.testbed.clients.get(at).context("a member");
    let inner = run.tunnels.client_inner.get(to).context("a member's address")?;
    Ok(Route {
        name: format!("{direction} {path}"),
        from: host(from)?,
        to: host(to)?,
        to_address: inner.v4,
    })
}
