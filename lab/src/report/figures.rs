//! The plots of a scenario, chosen by its kind and by the metrics that were measured.

use std::collections::{BTreeMap, BTreeSet};

use super::Run;
use super::chart::{Axis, Bar, Line, Marks, Scale, bars, lines};
use super::number::{number, percent, with_interval};
use super::tables::{Scenario, digits, title};
use super::{order, trains};
use crate::record::{Latency, Point};
use crate::stats::{Growth, Row, median};

/// One plot with its title, caption and legend.
pub(super) struct Figure {
    pub title: String,
    pub caption: String,
    pub svg: String,
    /// The colour and name of each line; empty if the plot itself names them.
    pub legend: Vec<(usize, String)>,
}

/// The colour of each subject, the same in all plots of a page.
pub(super) type Styles = BTreeMap<String, usize>;

/// The number of plots in one scenario above which the rest are folded away.
const AT_ONCE: usize = 8;

/// Returns all plots of a scenario, the most informative first, then the details.
pub(super) fn of(run: &Run, name: &str, styles: &Styles) -> (Vec<Figure>, Vec<Figure>) {
    let scenario = Scenario::of(run, name);
    let plots = Plots { scenario: &scenario, styles };
    let mut all = match scenario.kind.as_str() {
        "throughput" => plots.bars(&["sum_mbps", "mb_per_cpu_s"]),
        "udp" => plots.bars(&["rate_at_no_loss_pps", "rate_at_half_percent_pps"]),
        "loss" => plots.curves("loss", &["sum_mbps"], &Scale::Log),
        "growth" => plots.growth(),
        "connections" => {
            plots.bars(&["handshakes_per_s", "cpu_ms_per_handshake", "kib_per_client"])
        }
        "overload" => plots.bars(&["recovery_s"]),
        "hostile" => plots.bars(&["loaded_p99_ms", "up_mbps"]),
        "control" | "management" | "scrape" => plots.bars(&["sum_mbps"]),
        "postgres" => plots.bars(&["sum_mbps", "idle_p50_ms", "wal_per_byte"]),
        "soak" => plots.bars(&["disk_peak_mib"]),
        "volume" => plots.curves("gigabytes", &["server_pss_mib"], &Scale::Linear),
        "in-memory" => plots.bars(&["sum_mbps"]),
        "handshakes" => plots.bars(&["handshakes_per_s"]),
        _ => Vec::new(),
    };
    all.extend(plots.distributions());
    all.extend(plots.histograms());
    let mut more = all.split_off(all.len().min(AT_ONCE));
    more.extend(plots.over_time());
    (all, more)
}

pub(super) struct Plots<'a> {
    pub(super) scenario: &'a Scenario<'a>,
    styles: &'a Styles,
}

impl Plots<'_> {
    pub(super) fn style(&self, subject: &str) -> usize {
        self.styles.get(subject).copied().unwrap_or_default()
    }

    /// Returns the axes on which points differ; the others are omitted.
    pub(super) fn varying(&self) -> Vec<&str> {
        self.scenario.axes.clone()
    }

    /// Formats `clients 5, cipher AES-256-GCM` from the requested axes.
    pub(super) fn place(point: &Point, axes: &[&str]) -> String {
        let parts = axes.iter().filter_map(|axis| Some(format!("{axis} {}", point.get(axis)?)));
        parts.collect::<Vec<_>>().join(", ")
    }

    /// Draws bars for each metric that is present, with one figure per link mode.
    fn bars(&self, metrics: &[&str]) -> Vec<Figure> {
        let links: Vec<Option<&str>> =
            unique(self.scenario.rows.iter().map(|row| row.point.get("link")));
        let mut figures = Vec::new();
        for link in &links {
            for metric in metrics {
                figures.extend(self.bars_of(metric, *link, links.len() > 1));
            }
        }
        figures
    }

    fn bars_of(&self, metric: &str, link: Option<&str>, several: bool) -> Vec<Figure> {
        /// The maximum number of bars in one figure; the rest go into the next.
        const MOST: usize = 36;
        let axes: Vec<&str> = self.varying().into_iter().filter(|axis| *axis != "link").collect();
        let rows = self.scenario.rows.iter().filter(|row| row.point.get("link") == link);
        let mut groups: Vec<(String, Vec<Bar>)> = Vec::new();
        for row in rows {
            let Some(bar) = self.bar(row, metric) else { continue };
            let heading = Self::place(&row.point, &axes);
            match groups.last_mut() {
                Some((last, bars)) if *last == heading => bars.push(bar),
                _ => groups.push((heading, vec![bar])),
            }
        }
        let mut pages: Vec<Vec<(String, Vec<Bar>)>> = Vec::new();
        for group in groups {
            let count =
                |page: &Vec<(String, Vec<Bar>)>| page.iter().map(|g| g.1.len()).sum::<usize>();
            match pages.last_mut() {
                Some(page) if count(page) + group.1.len() <= MOST => page.push(group),
                _ => pages.push(vec![group]),
            }
        }
        let place = link.filter(|_| several).map_or(String::new(), |link| format!(", link {link}"));
        let name = format!("{}{place}", title(metric));
        let figure = |page: Vec<(String, Vec<Bar>)>| Figure {
            svg: bars(&format!("{name} of {}: {}", self.scenario.name, in_words(&page)), &page),
            title: name.clone(),
            caption: if page.iter().flat_map(|(_, bars)| bars).all(|bar| bar.valid) {
                "Medians of the rounds; the whiskers are 95 % intervals.".into()
            } else {
                "Medians of the rounds; the whiskers are 95 % intervals. Hollow: not a valid result.".into()
            },
            legend: Vec::new(),
        };
        pages.into_iter().map(figure).collect()
    }

    fn bar(&self, row: &Row, metric: &str) -> Option<Bar> {
        let cell = row.values.get(metric)?;
        let shown = with_interval(cell.median, cell.interval, digits(metric));
        // The whiskers show wide intervals; the end of a bar has no room for both bounds.
        let text = match shown.split_once(" [") {
            Some((median, _)) => median.to_owned(),
            None => shown,
        };
        Some(Bar {
            label: row.subject.clone(),
            style: self.style(&row.subject),
            value: cell.median,
            interval: cell.interval,
            text,
            valid: row.invalid.is_none(),
        })
    }

    /// Plots a metric against one axis, with a line per subject and a figure for each point on the other axes.
    fn curves(&self, axis: &str, metrics: &[&str], scale: &Scale) -> Vec<Figure> {
        let mut figures = Vec::new();
        for metric in metrics {
            for (place, rows) in self.beside(axis) {
                let values: BTreeSet<&str> =
                    rows.iter().filter_map(|row| row.point.get(axis)).collect();
                let mut values: Vec<String> = values.into_iter().map(str::to_owned).collect();
                values.sort_by(|a, b| order::values(a, b));
                let at = |row: &Row| {
                    let own = row.point.get(axis)?;
                    let index = values.iter().position(|value| value == own)?;
                    Some(f64::from(u32::try_from(index).ok()?))
                };
                let mut series = self.series(&rows, metric, &at);
                series.extend(self.ceiling(&rows, metric, &at));
                let y = Axis::new(title(metric), scale.clone());
                let figure = format!("{} against {axis}{}", title(metric), after_comma(&place));
                let caption = match scale {
                    Scale::Log => "Medians with 95 % intervals; each step upwards is a multiple.",
                    _ => "Medians with 95 % intervals.",
                };
                let unit = if axis == "loss" && !values.iter().any(|v| v.contains('%')) {
                    " %"
                } else {
                    ""
                };
                let x = Axis::new(format!("{axis}{unit}"), Scale::Named(values.clone()));
                figures.extend(drawn(&figure, caption.to_owned(), &x, &y, &series));
            }
        }
        figures
    }

    /// Returns the relay's own maximum, if it was measured. No line can be above it.
    fn ceiling(
        &self,
        rows: &[&Row],
        metric: &str,
        at: &dyn Fn(&Row) -> Option<f64>,
    ) -> Option<Line> {
        let mut by_place: BTreeMap<u64, (f64, Vec<f64>)> = BTreeMap::new();
        for row in rows.iter().filter(|_| metric == "sum_mbps") {
            if let (Some(x), Some(cell)) = (at(row), row.values.get("relay_ceiling_mbps")) {
                by_place.entry(x.to_bits()).or_insert((x, Vec::new())).1.push(cell.median);
            }
        }
        let points = by_place.into_values().filter_map(|(x, all)| Some((x, median(&all)?)));
        let mut points: Vec<(f64, f64)> = points.collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        (!points.is_empty()).then(|| Line {
            name: "the relay’s ceiling".into(),
            style: order::BOUND,
            intervals: Vec::new(),
            points,
            dashed: true,
            marks: Marks::None,
        })
    }

    /// Returns the rows grouped by their position on all other axes.
    fn beside(&self, axis: &str) -> Vec<(String, Vec<&Row>)> {
        let others: Vec<&str> = self.varying().into_iter().filter(|other| *other != axis).collect();
        let mut places: Vec<(String, Vec<&Row>)> = Vec::new();
        for row in self.scenario.rows.iter().filter(|row| row.point.get(axis).is_some()) {
            let place = Self::place(&row.point, &others);
            match places.iter_mut().find(|(known, _)| *known == place) {
                Some((_, rows)) => rows.push(row),
                None => places.push((place, vec![row])),
            }
        }
        places
    }

    fn series(&self, rows: &[&Row], metric: &str, at: &dyn Fn(&Row) -> Option<f64>) -> Vec<Line> {
        let mut subjects: Vec<&str> = rows.iter().map(|row| row.subject.as_str()).collect();
        subjects.sort_by(|a, b| order::subjects(a, b));
        subjects.dedup();
        let line = |subject: &str| {
            let mut points = Vec::new();
            let mut intervals = Vec::new();
            for row in rows.iter().filter(|row| row.subject == subject) {
                if let (Some(x), Some(cell)) = (at(row), row.values.get(metric)) {
                    points.push((x, cell.median));
                    intervals.push(cell.interval);
                }
            }
            let style = self.style(subject);
            Line {
                name: subject.to_owned(),
                style,
                points,
                intervals,
                dashed: false,
                marks: Marks::All,
            }
        };
        subjects.into_iter().map(line).filter(|line| !line.points.is_empty()).collect()
    }

    /// Plots metrics against the clients, with the fitted lines dashed.
    fn growth(&self) -> Vec<Figure> {
        let clients = |row: &Row| order::leading_number(row.point.get("clients")?);
        let mut figures = Vec::new();
        // Plot the process's own memory if it is known, because PSS divides shared code among the processes and so
        // falls as their number grows.
        let own = self.scenario.metrics.contains(&"server_anon_mib");
        let memory = if own { "server_anon_mib" } else { "server_pss_mib" };
        for metric in ["server_cpu_percent", memory] {
            for (place, rows) in self.beside("clients") {
                let mut series = self.series(&rows, metric, &clients);
                for line in &mut series {
                    line.marks = Marks::Alone;
                }
                let of_place = |fit: &&&Growth| {
                    fit.metric == metric
                        && rows.iter().any(|row| same_but_clients(&row.point, &fit.point))
                };
                let mut fits: Vec<&Growth> =
                    self.scenario.fits().iter().filter(of_place).copied().collect();
                fits.sort_by(|a, b| order::subjects(&a.subject, &b.subject));
                let told: Vec<String> = fits.iter().map(|fit| fit_in_words(fit)).collect();
                series.extend(fits.iter().map(|fit| self.fit_line(fit)));
                let figure = format!("{} against clients{}", title(metric), after_comma(&place));
                let x = Axis::new("clients", Scale::Linear);
                let y = Axis::new(title(metric), Scale::Linear);
                let caption = if told.is_empty() {
                    "Too few points for a fit.".to_owned()
                } else {
                    format!("Dashed: the fit. {}.", told.join("; "))
                };
                figures.extend(drawn(&figure, caption, &x, &y, &series));
            }
        }
        figures
    }

    fn fit_line(&self, fit: &Growth) -> Line {
        let least = fit.points.iter().map(|p| p.0).fold(f64::INFINITY, f64::min);
        let most = fit.points.iter().map(|p| p.0).fold(0.0, f64::max);
        let line = fit.linear;
        // A cost cannot be negative, so the line begins where it crosses zero.
        let crossing = -line.intercept / line.slope;
        let begins = line.intercept + line.slope * least < 0.0 && crossing < most;
        let least = if begins { least.max(crossing) } else { least };
        let points = [least, most].map(|n| (n, line.intercept + line.slope * n)).to_vec();
        Line {
            name: fit.subject.clone(),
            style: self.style(&fit.subject),
            intervals: Vec::new(),
            points,
            dashed: true,
            marks: Marks::None,
        }
    }

    /// Plots the distributions of latencies, with one figure for each point and name.
    fn distributions(&self) -> Vec<Figure> {
        let axes = self.varying();
        let mut plots: Vec<(String, Vec<Line>)> = Vec::new();
        for row in &self.scenario.rows {
            let measured = self.scenario.measured(row);
            let names: BTreeSet<&String> =
                measured.iter().flat_map(|(_, m)| m.latencies.keys()).collect();
            // The relay's lateness is in the relay's table.
            for name in names.into_iter().filter(|name| *name != "relay") {
                let rounds: Vec<&Latency> =
                    measured.iter().filter_map(|(_, m)| m.latencies.get(name)).collect();
                let line = Line {
                    name: row.subject.clone(),
                    style: self.style(&row.subject),
                    points: distribution(&rounds),
                    intervals: Vec::new(),
                    dashed: false,
                    marks: Marks::Shares,
                };
                let figure =
                    format!("Latency, {name}{}", after_comma(&Self::place(&row.point, &axes)));
                match plots.iter_mut().find(|(known, _)| *known == figure) {
                    Some((_, lines)) => lines.push(line),
                    None => plots.push((figure, vec![line])),
                }
            }
        }
        let x = Axis::new("ms, at most", Scale::Log);
        let y = Axis::new("share of all", Scale::Nines);
        let better = match self.scenario.kind.as_str() {
            "connections" => "each subject at its own highest rate",
            _ => "further left is better",
        };
        let caption = format!(
            "How many came within which time: {better}. The scale is stretched towards the top, so that the slowest can be \
             distinguished. Medians of the rounds."
        );
        let drawn =
            |(figure, lines): (String, Vec<Line>)| drawn(&figure, caption.clone(), &x, &y, &lines);
        plots.into_iter().filter_map(drawn).collect()
    }

    /// Plots the histograms of the train lengths, with one figure for each row.
    fn histograms(&self) -> Vec<Figure> {
        let axes = self.varying();
        let mut figures = Vec::new();
        for row in &self.scenario.rows {
            let totals = trains::totals(self.scenario, row);
            let style = self.style(&row.subject);
            let groups: Vec<(String, Vec<Bar>)> = totals
                .into_iter()
                .map(|(name, counts)| (name.to_owned(), share_bars(&counts, style)))
                .filter(|(_, bars)| !bars.is_empty())
                .collect();
            if groups.is_empty() {
                continue;
            }
            let place = after_comma(&Self::place(&row.point, &axes));
            let title = format!("Trains of packets, {}{place}", row.subject);
            figures.push(Figure {
                svg: bars(&format!("{title}: {}", in_words(&groups)), &groups),
                title,
                caption: "Share of the trains by how many packets they had.".into(),
                legend: Vec::new(),
            });
        }
        figures
    }
}

/// Returns a figure with these lines; `None` if there are no lines.
pub(super) fn drawn(
    title: &str,
    caption: String,
    x: &Axis,
    y: &Axis,
    series: &[Line],
) -> Option<Figure> {
    let mut legend: Vec<(usize, String)> = Vec::new();
    for line in series {
        if !legend.iter().any(|(_, name)| *name == line.name) {
            legend.push((line.style, line.name.clone()));
        }
    }
    let names: Vec<&str> = legend.iter().map(|(_, name)| name.as_str()).collect();
    let label = format!("{title}, of {}. {caption}", names.join(", "));
    (!series.is_empty()).then(|| Figure {
        svg: lines(&label, x, y, series),
        title: title.to_owned(),
        caption,
        legend,
    })
}

pub(super) fn unique<T: PartialEq>(all: impl Iterator<Item = T>) -> Vec<T> {
    let mut seen = Vec::new();
    for one in all {
        if !seen.contains(&one) {
            seen.push(one);
        }
    }
    seen
}

pub(super) fn after_comma(place: &str) -> String {
    if place.is_empty() { String::new() } else { format!(", {place}") }
}

/// Returns the bars as text, for readers who cannot see them.
fn in_words(groups: &[(String, Vec<Bar>)]) -> String {
    let group = |(heading, bars): &(String, Vec<Bar>)| {
        let all: Vec<String> =
            bars.iter().map(|bar| format!("{} {}", bar.label, bar.text)).collect();
        let heading = if heading.is_empty() { String::new() } else { format!("{heading}: ") };
        heading + &all.join(", ")
    };
    groups.iter().map(group).collect::<Vec<_>>().join("; ")
}

fn same_but_clients(point: &Point, without: &Point) -> bool {
    let mut others = point.clone();
    others.0.remove("clients");
    others == *without
}

fn fit_in_words(fit: &Growth) -> String {
    let exponent = fit.log_log.as_ref().map_or(String::new(), |line| {
        let (low, high) = (line.interval.low, line.interval.high);
        format!(", exponent {} [{}, {}]", number(line.slope, 2), number(low, 2), number(high, 2))
    });
    let flag = if fit.above_linear { ", above linear" } else { "" };
    format!("{}: {} a client{exponent}{flag}", fit.subject, number(fit.linear.slope, 3))
}

/// Returns the median of the rounds at each share that all rounds have.
fn distribution(rounds: &[&Latency]) -> Vec<(f64, f64)> {
    let Some(first) = rounds.first() else { return Vec::new() };
    let shares = first.quantiles.iter().map(|(share, _)| *share).filter(|share| *share < 1.0);
    let points = shares.filter_map(|share| {
        let all: Vec<f64> = rounds.iter().filter_map(|round| round.at(share)).collect();
        (all.len() == rounds.len()).then(|| median(&all)).flatten().map(|ms| (ms, share))
    });
    points.collect()
}

/// Returns the shares of lengths, in classes that double in size.
fn share_bars(counts: &BTreeMap<u32, u64>, style: usize) -> Vec<Bar> {
    let mut classes: BTreeMap<u32, u64> = BTreeMap::new();
    for (length, count) in counts {
        *classes.entry(length.max(&1).next_power_of_two()).or_default() += count;
    }
    let all: u64 = classes.values().sum();
    let bars = classes.into_iter().filter(|_| all > 0).map(|(top, count)| {
        let value = 100.0 * count as f64 / all as f64;
        let label = match top {
            1 | 2 => top.to_string(),
            _ => format!("{}–{top}", top / 2 + 1),
        };
        Bar { label, style, value, interval: None, text: percent(value), valid: true }
    });
    bars.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn trains_are_classed_by_doubling() {
        let counts = BTreeMap::from([(1, 10), (2, 10), (3, 5), (4, 15), (33, 20), (64, 40)]);
        let bars = share_bars(&counts, 2);
        let told: Vec<(&str, &str)> =
            bars.iter().map(|b| (b.label.as_str(), b.text.as_str())).collect();
        assert_eq!(told, [("1", "10 %"), ("2", "10 %"), ("3–4", "20 %"), ("33–64", "60 %")]);
        assert!(share_bars(&BTreeMap::new(), 2).is_empty());
    }

    #[test]
    fn a_distribution_is_the_median_of_the_rounds() {
        let round = |ms: f64| Latency {
            count: 9,
            lost: 0,
            quantiles: vec![(0.5, ms), (0.9, 2.0 * ms), (1.0, 99.0)],
        };
        let rounds = [round(1.0), round(5.0), round(2.0)];
        assert_eq!(distribution(&rounds.iter().collect::<Vec<_>>()), [(2.0, 0.5), (4.0, 0.9)]);
    }
}
