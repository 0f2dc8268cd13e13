//! Round trips and bulk of an honest client while another peer does its worst.

use std::net::SocketAddr;

use adit_testbed::failure::{Context, Result};

use super::lab::Lab;
use super::latency;
use super::stage::Stage;
use crate::hostile::{Adversary, Scene, local_port};
use crate::plan::{Hostile, Settings};
use crate::record::Measurement;
use crate::storm::{config, scene};
use crate::subject::Subject;

/// Addresses of the adversary's own.
const SOURCES: u16 = 32;
/// What it does a second where the plan says nothing: a tenth of what one thread can send.
const RATE: u32 = 4000;

/// Figures: those of the kind `latency`, which are the honest client's, `loss_percent` of its probes and `hostile_pps`.
pub(super) fn run(lab: &mut Lab, settings: &Settings, subject: &Subject) -> Result<Measurement> {
    let bed = lab.bed(&Settings { clients: 1, ..settings.clone() })?;
    let stage = lab.stage(bed, settings, subject)?;
    let adversary = adversary(lab, &stage, settings)?;
    let mut measurement = latency::measure(&stage, settings)?;
    if let Some(adversary) = adversary {
        let counts = adversary.finish().map_err(|failure| stage.broken(&failure))?;
        measurement.set("hostile_pps", counts.rate());
        measurement.notes.push(format!("the adversary sent {counts}"));
    }
    let (lost, all) = measurement.latencies.values().fold((0, 0), |(lost, all), latency| {
        (lost + latency.lost, all + latency.lost + latency.count)
    });
    #[allow(clippy::cast_precision_loss)]
    measurement.set("loss_percent", lost as f64 * 100.0 / all.max(1) as f64);
    Ok(measurement)
}

fn adversary(lab: &Lab, stage: &Stage, settings: &Settings) -> Result<Option<Adversary>> {
    if settings.hostile == Hostile::None {
        return Ok(None);
    }
    let client = stage.bed.clients.first().context("a bed without a client")?;
    let listing = client.run("cat", &["/proc/net/udp"])?;
    let port = local_port(&listing).context("the honest client has no UDP socket")?;
    let scene = Scene {
        sources: scene::hosts_on(&stage.bed, client, SOURCES, &lab.kit().scratch()?)?,
        honest: SocketAddr::new(stage.bed.client_outer(0, false), port),
        server: SocketAddr::new(stage.bed.server_outer(false), config::PORT),
    };
    let rate = if settings.rate == 0 { RATE } else { settings.rate };
    let config = config::client(lab.kit().keys())?;
    let adversary = match settings.hostile {
        Hostile::None => return Ok(None),
        Hostile::Client => Adversary::client(client, config, scene, rate.into()),
        Hostile::Stranger => Adversary::stranger(client, config, scene, rate.into()),
    };
    adversary.map(Some).map_err(|failure| stage.broken(&failure))
}
