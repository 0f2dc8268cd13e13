//! Whether memory grows with what was carried.

use adit_testbed::failure::Result;

use super::lab::Lab;
use super::stage::Direction;
use crate::plan::Settings;
use crate::record::Measurement;
use crate::subject::Subject;
use crate::work::{Window, tcp_bulk};

pub(super) fn run(lab: &mut Lab, settings: &Settings, subject: &Subject) -> Result<Measurement> {
    let bed = lab.bed(settings)?;
    let stage = lab.stage(bed, settings, subject)?;
    let window = Window { warmup: settings.warmup, length: settings.length.max(STEP) };
    let mut measurement = Measurement::default();
    let (mut gigabits, mut seconds) = (0.0, 0.0);
    let mut last = None;
    let mut direction = Direction::Up;
    while gigabits < f64::from(settings.gigabytes) * 8.0 {
        let routes = stage.routes(direction, 1);
        let priced = stage.priced(|edge| tcp_bulk(&routes, &window, edge))?;
        if !priced.measured.invalid.is_empty() {
            measurement.invalid.extend(priced.measured.invalid);
            break;
        }
        gigabits += priced.gigabits();
        seconds += priced.measured.seconds;
        last = Some(priced.usage);
        direction = if direction == Direction::Up { Direction::Down } else { Direction::Up };
    }
    measurement.set("sum_mbps", gigabits * 1e3 / seconds);
    // Of the last stretch alone: its memory is what counts here, and its samples are few.
    if let Some(usage) = last {
        usage.put(&mut measurement, 0.0);
    }
    Ok(measurement)
}

/// Of one direction before it turns.
const STEP: std::time::Duration = std::time::Duration::from_secs(5);
