//! The same total rate over an increasing number of clients, to measure the server's cost per
//! client.

use adit_testbed::failure::Result;

use super::runner::Runner;
use super::trial_run::Direction;
use crate::plan::Settings;
use crate::record::Measurement;
use crate::subject::Subject;
use crate::work::{Sizes, Window, udp_open_loop};

/// The size of a datagram as an IP packet. It fits into every tunnel without fragmentation.
const PACKET: u16 = 1300;

pub(super) fn run(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
) -> Result<Measurement> {
    let testbed = runner.testbed(settings)?;
    let run = runner.start(testbed, settings, subject)?;
    let routes = run.routes(Direction::Up, 1);
    let rate = settings.total_mbps * 1e6 / 8.0 / f64::from(PACKET);
    let window = Window { warmup: settings.warmup, length: settings.length };
    let mut lost = 0.0;
    let cost = run.measure_cost(|edge| {
        let sent = udp_open_loop(&routes, &window, rate, Sizes::Fixed(PACKET), edge)?;
        lost = sent.loss();
        Ok(sent.measured)
    })?;
    let mut measurement = Measurement::default();
    measurement.set("sum_mbps", cost.measured.mbps());
    measurement.set("loss_percent", lost * 100.0);
    if let Some(server) = cost.usage.roles.get("server") {
        let seconds = cost.usage.seconds;
        measurement.set("server_cpu_percent", (server.user + server.system) / seconds * 100.0);
    }
    cost.put_flows(&mut measurement);
    cost.usage.put(&mut measurement, cost.gigabits());
    Ok(measurement)
}
