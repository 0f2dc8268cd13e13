//! Measures whether memory grows with the amount of data transferred.

use adit_testbed::failure::Result;

use super::runner::Runner;
use super::trial_run::Direction;
use crate::plan::Settings;
use crate::record::Measurement;
use crate::subject::Subject;
use crate::work::{Window, tcp_bulk};

pub(super) fn run(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
) -> Result<Measurement> {
    let testbed = runner.testbed(settings)?;
    let run = runner.start(testbed, settings, subject)?;
    let window = Window { warmup: settings.warmup, length: settings.length.max(STEP) };
    let mut measurement = Measurement::default();
    let (mut gigabits, mut seconds) = (0.0, 0.0);
    let mut last = None;
    let mut direction = Direction::Up;
    while gigabits < f64::from(settings.gigabytes) * 8.0 {
        let routes = run.routes(direction, 1);
        let cost = run.measure_cost(|edge| tcp_bulk(&routes, &window, edge))?;
        if !cost.measured.invalid.is_empty() {
            measurement.invalid.extend(cost.measured.invalid);
            break;
        }
        gigabits += cost.gigabits();
        seconds += cost.measured.seconds;
        last = Some(cost.usage);
        direction = if direction == Direction::Up { Direction::Down } else { Direction::Up };
    }
    measurement.set("sum_mbps", gigabits * 1e3 / seconds);
    // Keep only the usage of the last stretch, whose memory is relevant and whose samples are few.
    if let Some(usage) = last {
        usage.put(&mut measurement, 0.0);
    }
    Ok(measurement)
}

/// The duration of each direction before the other begins.
const STEP: std::time::Duration = std::time::Duration::from_secs(5);
