//! Round trips and bulk traffic of an honest client during an attack by another peer.

use std::net::SocketAddr;

use adit_testbed::failure::{Context, Result};

use super::latency;
use super::runner::Runner;
use super::trial_run::TrialRun;
use crate::handshake_load::{config, load_generator};
use crate::hostile::{Adversary, Target, local_port};
use crate::plan::{Hostile, Settings};
use crate::record::Measurement;
use crate::subject::Subject;

/// The number of the adversary's own addresses.
const SOURCES: u16 = 32;
/// The adversary's rate per second if the plan sets none: a tenth of the rate at which one thread can send.
const RATE: u32 = 4000;

/// Measures the figures of the kind `latency` for the honest client, `loss_percent` of its probes, and `hostile_pps`.
pub(super) fn run(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
) -> Result<Measurement> {
    let testbed = runner.testbed(&Settings { clients: 1, ..settings.clone() })?;
    let run = runner.start(testbed, settings, subject)?;
    let adversary = adversary(runner, &run, settings)?;
    let mut measurement = latency::measure(&run, settings)?;
    if let Some(adversary) = adversary {
        let counts = adversary.finish().map_err(|failure| run.broken(&failure))?;
        measurement.set("hostile_pps", counts.rate());
        measurement.notes.push(format!("the adversary sent {counts}"));
    }
    let (lost, all) = measurement.latencies.values().fold((0, 0), |(lost, all), latency| {
        (lost + latency.lost, all + latency.lost + latency.count)
    });
    measurement.set("loss_percent", lost as f64 * 100.0 / all.max(1) as f64);
    Ok(measurement)
}

fn adversary(runner: &Runner, run: &TrialRun, settings: &Settings) -> Result<Option<Adversary>> {
    if settings.hostile == Hostile::None {
        return Ok(None);
    }
    let client = run.testbed.clients.first().context("a testbed without a client")?;
    let listing = client.run("cat", &["/proc/net/udp"])?;
    let port = local_port(&listing).context("the honest client has no UDP socket")?;
    let load = Target {
        sources: load_generator::hosts_on(
            &run.testbed,
            client,
            SOURCES,
            &runner.toolchain().scratch()?,
        )?,
        honest: SocketAddr::new(run.testbed.client_outer(0, false), port),
        server: SocketAddr::new(run.testbed.server_outer(false), config::PORT),
    };
    let rate = if settings.rate == 0 { RATE } else { settings.rate };
    let config = config::client(runner.toolchain().keys())?;
    let adversary = match settings.hostile {
        Hostile::None => return Ok(None),
        Hostile::Client => Adversary::client(client, config, load, rate.into()),
        Hostile::Unauthenticated => Adversary::unauthenticated(client, config, load, rate.into()),
    };
    adversary.map(Some).map_err(|failure| run.broken(&failure))
}
