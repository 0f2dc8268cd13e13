//! Trials in which clients come, not bytes.

use std::rc::Rc;
use std::time::{Duration, Instant};

use adit_interop::failure::Result;

use super::connections::{self, ConnectionsSpec, Pattern};
use super::control::{self, ControlSpec};
use super::lab::Lab;
use super::overload::{self, OverloadSpec};
use crate::bed::{Bed, LinkMode};
use crate::measure::Meter;
use crate::plan::{Clientele, Settings, Storm};
use crate::record::Measurement;
use crate::subject::Subject;

/// Sessions of a host that a search for the sustained rate makes.
const SESSIONS_OF_A_SEARCH: usize = 6;

pub(super) fn connections(lab: &mut Lab, settings: &Settings, subject: &Subject) -> Result<Measurement> {
    if settings.clientele == Clientele::Processes {
        return processes(lab, settings, subject);
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
    let bed = Bed::pair(LinkMode::Offload)?;
    let measurement = connections::connections(lab.kit(), &bed, subject, &spec)?;
    if let Some(rate) = measurement.values.get("handshakes_per_s") {
        lab.sustained.insert(subject.clone(), *rate);
    }
    Ok(measurement)
}

/// All clients as processes of their own, started at once, until all of them pass traffic.
fn processes(lab: &mut Lab, settings: &Settings, subject: &Subject) -> Result<Measurement> {
    let clients = settings.hosts.saturating_mul(settings.sessions).min(250);
    let bed = lab.bed(&Settings { clients, link: LinkMode::Offload, ..settings.clone() })?;
    let begun = Instant::now();
    let stage = lab.stage(bed, settings, subject)?;
    let seconds = begun.elapsed().as_secs_f64();
    let mut measurement = Measurement::default();
    measurement.set("handshakes_per_s", f64::from(clients) / seconds);
    let meter = Meter::start(&stage.tunnels.processes(), &stage.bed)?;
    std::thread::sleep(Duration::from_millis(300));
    meter.stop()?.put(&mut measurement, 0.0);
    measurement.notes.push(format!(
        "{clients} client processes on the server's own cores, from the first start until the last passed traffic: \
         {seconds:.1} s"
    ));
    Ok(measurement)
}

pub(super) fn overload(lab: &mut Lab, settings: &Settings, subject: &Subject) -> Result<Measurement> {
    let sustained = match lab.sustained.get(subject) {
        Some(rate) => *rate,
        None => {
            let spec = ConnectionsSpec {
                hosts: settings.hosts,
                sessions: SESSIONS_OF_A_SEARCH,
                ..ConnectionsSpec::default()
            };
            let bed = Bed::pair(LinkMode::Offload)?;
            let found = connections::connections(lab.kit(), &bed, subject, &spec)?;
            let rate = found.values.get("handshakes_per_s").copied().ok_or("no sustained rate")?;
            lab.sustained.insert(subject.clone(), rate);
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
    let bed = Bed::pair(LinkMode::Offload)?;
    overload::overload(lab.kit(), &bed, subject, &spec)
}

pub(super) fn control(lab: &mut Lab, settings: &Settings, subject: &Subject) -> Result<Measurement> {
    let bed = lab.bed(&Settings { clients: 1, ..settings.clone() })?;
    let spec = ControlSpec { rate: settings.rate.into(), length: settings.length };
    control::control(lab.kit(), &Rc::clone(&bed), subject, &spec)
}
