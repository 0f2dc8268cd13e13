//! Plots the samples of a trial over time.

use super::chart::{Axis, Line, Marks, Scale};
use super::figures::{Figure, Plots, after_comma, drawn, unique};
use crate::record::{Measurement, Point};
use crate::stats::Row;

/// A figure that is computed from one sample to the next, as pairs of seconds and the figure at
/// that time.
type Trace = fn(&Measurement, &str) -> Vec<(f64, f64)>;

impl Plots<'_> {
    /// Plots CPU and memory in the round nearest to the median, at the first and the last point.
    pub(super) fn over_time(&self) -> Vec<Figure> {
        let axes = self.varying();
        let points: Vec<&Point> = unique(self.scenario.rows.iter().map(|row| &row.point));
        let ends = [points.first(), points.last().filter(|_| points.len() > 1)];
        let cpu: (&str, Trace) = ("CPU %", cpu_percent);
        let memory: (&str, Trace) = ("PSS MiB", pss_mib);
        let mut figures = Vec::new();
        for point in ends.into_iter().flatten() {
            for role in ["server", "client"] {
                for (unit, trace) in [cpu, memory] {
                    let rows = self.scenario.rows.iter().filter(|row| row.point == **point);
                    let series: Vec<Line> =
                        rows.filter_map(|row| self.trace(row, role, trace)).collect();
                    let place = after_comma(&Self::place(point, &axes));
                    let owner = if role == "server" { "server" } else { "all clients" };
                    let figure = format!("{unit} over time, {owner}{place}");
                    let caption =
                        "The round nearest to the median, from samples every 100 ms.".to_owned();
                    let scale = if far_apart(&series) { Scale::Log } else { Scale::Linear };
                    let (x, y) = (Axis::new("seconds", Scale::Span), Axis::new(unit, scale));
                    figures.extend(drawn(&figure, caption, &x, &y, &series));
                }
            }
        }
        figures
    }

    fn trace(&self, row: &Row, role: &str, trace: Trace) -> Option<Line> {
        let cell = row.values.get(self.scenario.primary()?)?;
        let distance = |round: u32| {
            cell.by_round.get(&round).map_or(f64::INFINITY, |figure| (figure - cell.median).abs())
        };
        let rounds = self.scenario.measured(row);
        let nearest = rounds.iter().min_by(|a, b| distance(a.0).total_cmp(&distance(b.0)))?;
        let points = trace(nearest.1, role);
        (points.len() > 1).then(|| Line {
            name: row.subject.clone(),
            style: self.style(&row.subject),
            points,
            intervals: Vec::new(),
            dashed: false,
            marks: Marks::None,
        })
    }
}

/// Returns whether the lowest lines would coincide with the axis, for example if one has 2 MiB and
/// the other 300.
fn far_apart(series: &[Line]) -> bool {
    let highest = series.iter().map(|line| line.points.iter().map(|p| p.1).fold(0.0, f64::max));
    let highest: Vec<f64> = highest.collect();
    let most = highest.iter().copied().fold(0.0, f64::max);
    highest.iter().any(|own| *own > 0.0 && most > 20.0 * own)
}

/// Computes the percentage over three samples, because the kernel counts CPU time in ticks.
fn cpu_percent(measurement: &Measurement, role: &str) -> Vec<(f64, f64)> {
    let totals: Vec<(f64, f64)> = measurement
        .samples
        .iter()
        .filter_map(|s| s.processes.get(role).map(|p| (s.at, p.user + p.system)))
        .collect();
    let spans = totals.iter().zip(totals.iter().skip(3));
    let shares = spans.filter(|(from, to)| to.0 > from.0).map(|(from, to)| {
        (f64::midpoint(from.0, to.0), 100.0 * (to.1 - from.1).max(0.0) / (to.0 - from.0))
    });
    shares.collect()
}

fn pss_mib(measurement: &Measurement, role: &str) -> Vec<(f64, f64)> {
    let samples = measurement.samples.iter();
    samples.filter_map(|s| Some((s.at, s.processes.get(role)?.pss_kib as f64 / 1024.0))).collect()
}
