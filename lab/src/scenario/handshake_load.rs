//! Trials that measure connecting clients instead of traffic.

use adit_testbed::failure::Result;

use super::connections::{self, ConnectionsSpec, Pattern};
use super::control::{self, ControlSpec};
use super::overload::{self, OverloadSpec};
use super::processes;
use super::runner::Runner;
use super::tinc_control;
use crate::plan::{Clientele, Settings, Storm};
use crate::record::Measurement;
use crate::subject::Subject;
use crate::testbed::{LinkMode, Testbed};
use crate::work::Window;

/// The number of sessions per host in a search for the sustained rate.
const SESSIONS_OF_A_SEARCH: usize = 6;

pub(super) fn connections(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
) -> Result<Measurement> {
    if settings.clientele == Clientele::Processes {
        return processes(runner, settings, subject);
    }
    let pattern = match settings.storm {
        Storm::Cold => Pattern::Cold,
        Storm::Reconnect => Pattern::Storm,
    };
    let spec = ConnectionsSpec {
        hosts: settings.hosts,
        sessions: settings.sessions.into(),
        pattern,
        ..ConnectionsSpec::default()
    };
    let testbed = Testbed::pair(LinkMode::Offload)?;
    let measurement = connections::connections(runner.toolchain(), &testbed, subject, &spec)?;
    // The rate of clients that all connect at once is not a sustained rate.
    let sustained = measurement.values.get("handshakes_per_s").filter(|_| pattern == Pattern::Cold);
    if let Some(rate) = sustained {
        runner.sustained.insert(subject.clone(), *rate);
    }
    Ok(measurement)
}

/// Measures all clients as real `openvpn` processes, started at once.
fn processes(runner: &mut Runner, settings: &Settings, subject: &Subject) -> Result<Measurement> {
    let testbed = runner.testbed(&Settings { clients: settings.hosts, ..settings.clone() })?;
    processes::processes(runner.toolchain(), &testbed, subject, settings.sessions.into())
}

pub(super) fn overload(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
) -> Result<Measurement> {
    let sustained = match runner.sustained.get(subject) {
        Some(rate) => *rate,
        None => {
            let spec = ConnectionsSpec {
                hosts: settings.hosts,
                sessions: SESSIONS_OF_A_SEARCH,
                ..ConnectionsSpec::default()
            };
            let testbed = Testbed::pair(LinkMode::Offload)?;
            let found = connections::connections(runner.toolchain(), &testbed, subject, &spec)?;
            let rate = found.values.get("handshakes_per_s").copied().ok_or("no sustained rate")?;
            runner.sustained.insert(subject.clone(), rate);
            rate
        }
    };
    let spec = OverloadSpec {
        hosts: settings.hosts,
        sessions: settings.sessions.into(),
        overload: settings.length,
        calm: settings.length,
        ..OverloadSpec::of(sustained)
    };
    let testbed = Testbed::pair(LinkMode::Offload)?;
    overload::overload(runner.toolchain(), &testbed, subject, &spec)
}

pub(super) fn control(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
) -> Result<Measurement> {
    if let Subject::Tinc(_) = subject {
        return tinc_control::run(runner, settings, subject);
    }
    let testbed = runner.testbed(&Settings { clients: 1, ..settings.clone() })?;
    let window = Window { warmup: settings.warmup, length: settings.length };
    let spec = ControlSpec { window, ..ControlSpec::of(settings.rate.into()) };
    control::control(runner.toolchain(), &testbed, subject, &spec)
}
