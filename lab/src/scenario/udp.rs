//! Datagrams on a fixed schedule, to find the highest rates with little or no loss, and the delay at half of the
//! lossless rate.

use adit_testbed::failure::{Failure, Result};

use super::runner::Runner;
use super::trial_run::Direction;
use crate::plan::{Packet, Settings};
use crate::record::{Latency, Measurement, QUANTILES};
use crate::subject::Subject;
use crate::work::{Limit, Search, Sizes, Window, udp_open_loop, udp_search};

pub(super) fn run(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
) -> Result<Measurement> {
    let sizes = match settings.packet {
        Packet::Bytes(bytes) => Sizes::Fixed(bytes),
        Packet::Imix => Sizes::Imix,
        Packet::Jumbo => Sizes::Jumbo,
        Packet::Super => {
            return Err(Failure(
                "super-packets are TCP's: packet = \"super\" is for in-memory".to_owned(),
            ));
        }
    };
    let testbed = runner.testbed(settings)?;
    let run = runner.start(testbed, settings, subject)?;
    let routes = run.routes(Direction::Up, 1);
    let mut measurement = Measurement::default();
    let mut highest = 0.0_f64;
    for (limit, metric) in [(0.005, "rate_at_half_percent_pps"), (0.0, "rate_at_no_loss_pps")] {
        let found = udp_search(&routes, sizes, &Search::at(limit))
            .map_err(|failure| run.broken(&failure))?;
        // A rate that is carried without loss is also carried at 99.5 %, whatever the first search found.
        let less = measurement.values.get("rate_at_half_percent_pps").copied();
        if less.is_some_and(|less| less < found.pps) {
            measurement.set("rate_at_half_percent_pps", found.pps);
        }
        measurement.set(metric, found.pps);
        if found.limit == Limit::Generator {
            let text = format!("at {} % loss the generator was the limit", limit * 100.0);
            measurement.notes.push(text);
        }
        highest = found.pps;
    }
    if highest > 0.0 {
        let window = Window { warmup: settings.warmup, length: settings.length };
        let mut delay = Latency::default();
        let cost = run.measure_cost(|edge| {
            let sent = udp_open_loop(&routes, &window, highest / 2.0, sizes, edge)?;
            delay = sent.latency;
            Ok(sent.measured)
        })?;
        measurement.set("sum_mbps", cost.measured.mbps());
        measurement.set_times(&delay, &QUANTILES);
        measurement.latencies.insert("one way at half the rate".to_owned(), delay);
        cost.put_flows(&mut measurement);
        cost.usage.put(&mut measurement, cost.gigabits());
    }
    Ok(measurement)
}
