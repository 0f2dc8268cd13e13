//! The same total rate over more and more clients: what each of them costs the server.

use adit_testbed::failure::Result;

use super::lab::Lab;
use super::stage::Direction;
use crate::plan::Settings;
use crate::record::Measurement;
use crate::subject::Subject;
use crate::work::{Sizes, Window, udp_open_loop};

/// Of a datagram, as an IP packet: fits every tunnel whole.
const PACKET: u16 = 1300;

pub(super) fn run(lab: &mut Lab, settings: &Settings, subject: &Subject) -> Result<Measurement> {
    let bed = lab.bed(settings)?;
    let stage = lab.stage(bed, settings, subject)?;
    let routes = stage.routes(Direction::Up, 1);
    let rate = settings.total_mbps * 1e6 / 8.0 / f64::from(PACKET);
    let window = Window { warmup: settings.warmup, length: settings.length };
    let mut lost = 0.0;
    let priced = stage.priced(|edge| {
        let sent = udp_open_loop(&routes, &window, rate, Sizes::Fixed(PACKET), edge)?;
        lost = sent.loss();
        Ok(sent.measured)
    })?;
    let mut measurement = Measurement::default();
    measurement.set("sum_mbps", priced.measured.mbps());
    measurement.set("loss_percent", lost * 100.0);
    if let Some(server) = priced.usage.roles.get("server") {
        let seconds = priced.usage.seconds;
        measurement.set("server_cpu_percent", (server.user + server.system) / seconds * 100.0);
    }
    priced.put_flows(&mut measurement);
    priced.usage.put(&mut measurement, priced.gigabits());
    Ok(measurement)
}
