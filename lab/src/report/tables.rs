//! Each scenario's tables: results, client statistics, server statistics and the conditions of the trials.

use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};

use super::document::{Section, Table, Text, Tone, is_of};
use super::ends::{PER_CLIENT, RoleSamples, SAMPLED, Spread, spreads};
use super::kinds::{intro, judged_by, primary};
use super::number::{number, percent, times_with_interval, with_interval};
use super::{Run, layout, notes, order, trains};
use crate::metric::{self, Better, Metric};
use crate::record::{Measurement, Outcome, Record};
use crate::stats::{Cell, Growth, Row, Verdict};

/// Returns all scenarios in the order of the plan.
pub(super) fn sections(run: &Run) -> Vec<Section> {
    let mut names: Vec<&str> = Vec::new();
    for record in run.records.iter().filter(|record| !record.a_a) {
        if !names.contains(&record.key.scenario.as_str()) {
            names.push(&record.key.scenario);
        }
    }
    let plan = &run.manifest.plan.text;
    // The rounds are shuffled, so the order is that of the plan's text; scenarios that are not in it are sorted by
    // name.
    names.sort_by_key(|name| (place_in_plan(plan, name).unwrap_or(usize::MAX), *name));
    names.into_iter().map(|name| section(run, name)).collect()
}

/// Returns the position of the line `name = "..."`; a scenario without a name has the name of its kind.
fn place_in_plan(plan: &str, name: &str) -> Option<usize> {
    let says = |line: &str, key: &str| {
        line.split_once('=').is_some_and(|(known, value)| {
            known.trim() == key && value.trim().trim_matches(['"', '\'']) == name
        })
    };
    let place = |key: &str| plan.lines().position(|line| says(line, key));
    place("name").or_else(|| place("kind"))
}

fn section(run: &Run, name: &str) -> Section {
    let scenario = Scenario::of(run, name);
    let kind = scenario.kind.clone();
    let tables = [
        scenario.results(),
        scenario.ratios(),
        scenario.client_statistics(),
        scenario.server_statistics(),
        scenario.growth(),
        scenario.conditions(),
        notes::relay_table(&scenario),
        trains::table(&scenario),
    ];
    Section {
        name: name.to_owned(),
        intro: intro(&kind),
        kind,
        same: scenario.same.iter().map(|(axis, value)| format!("{axis} {value}")).collect(),
        tables: tables.into_iter().flatten().flat_map(layout::fit).collect(),
        notes: [scenario.gaps(), notes::of(&scenario.records)].concat(),
    }
}

/// Returns which direction is better; figures of a later version are shown without a verdict.
pub(super) fn better(name: &str) -> Better {
    metric::find(name).map_or(Better::Neither, |m| m.better)
}

/// Returns the figure's title, with its unit.
pub(super) fn title(name: &str) -> String {
    metric::find(name).map_or_else(|| name.to_owned(), |m| m.title.to_owned())
}

/// Returns the number of decimals of the figure.
pub(super) fn digits(name: &str) -> usize {
    metric::find(name).map_or(2, |m: &Metric| m.digits)
}

/// One scenario's rows and raw records.
pub(super) struct Scenario<'a> {
    pub name: String,
    pub kind: String,
    /// The measured rows, in the order of the tables.
    pub rows: Vec<&'a Row>,
    /// The rows that were not measured, which are gaps in the results.
    skipped: Vec<&'a Row>,
    /// The names of the axes on which the points differ.
    pub axes: Vec<&'a str>,
    /// The other axes with their only value, printed once instead of in each row.
    same: Vec<(&'a str, &'a str)>,
    /// The names of the metrics that are present, in the order of the columns.
    pub metrics: Vec<&'a str>,
    records: Vec<&'a Record>,
    fits: Vec<&'a Growth>,
}

impl<'a> Scenario<'a> {
    pub(super) fn of(run: &'a Run, name: &str) -> Self {
        let of_name = run.summary.rows.iter().filter(|row| row.scenario == name);
        let (mut rows, skipped): (Vec<&Row>, Vec<&Row>) =
            of_name.partition(|row| row.skipped.is_none());
        rows.sort_by(|a, b| in_order(a, b));
        let mut axes: BTreeMap<&str, BTreeSet<Option<&str>>> = BTreeMap::new();
        for axis in rows.iter().flat_map(|row| row.point.0.keys()) {
            axes.insert(axis, rows.iter().map(|row| row.point.get(axis)).collect());
        }
        let (differing, same): (Vec<_>, Vec<_>) =
            axes.into_iter().partition(|(_, values)| values.len() > 1);
        let one = |values: BTreeSet<Option<&'a str>>| values.into_iter().flatten().next();
        let same = same.into_iter().filter_map(|(axis, values)| Some((axis, one(values)?)));
        let names: BTreeSet<&str> =
            rows.iter().flat_map(|row| row.values.keys()).map(String::as_str).collect();
        let place = |name: &str| metric::ALL.iter().position(|m| m.name == name);
        let mut metrics: Vec<&str> = names.into_iter().collect();
        metrics.sort_by_key(|name| (place(name).unwrap_or(usize::MAX), *name));
        let records = run.records.iter().filter(|r| !r.a_a && r.key.scenario == name);
        let records: Vec<&Record> = records.collect();
        Scenario {
            name: name.to_owned(),
            kind: records.first().map(|record| record.kind.clone()).unwrap_or_default(),
            rows,
            skipped,
            axes: differing.into_iter().map(|(axis, _)| axis).collect(),
            same: same.collect(),
            metrics,
            records,
            fits: run.summary.growth.iter().filter(|growth| growth.scenario == name).collect(),
        }
    }

    pub(super) fn primary(&self) -> Option<&'a str> {
        primary(&self.kind, &self.metrics)
    }

    /// Returns the fits of the figures' growth with the number of clients.
    pub(super) fn fits(&self) -> &[&'a Growth] {
        &self.fits
    }

    /// Returns the measurements of those rounds of a row that count.
    pub(super) fn measured(&self, row: &Row) -> Vec<(u32, &'a Measurement)> {
        let of_row = self.records.iter().filter(|record| is_of(record, row));
        let counted = of_row.filter(|record| row.rounds.contains(&record.key.round));
        let measured = counted.filter_map(|record| match &record.outcome {
            Outcome::Measured(measurement) => Some((record.key.round, measurement)),
            _ => None,
        });
        measured.collect()
    }

    /// Returns whether a figure is among the scenario's main results. Other figures of one end have separate tables.
    fn is_result(&self, name: &str) -> bool {
        const SHOWN: &[&str] = &[
            "loss_percent",
            "control_pps",
            "cost_percent",
            "commands_per_s",
            "scrapes_per_s",
            "hostile_pps",
            "idle_p999_ms",
            "loaded_p999_ms",
        ];
        let judged = better(name) != Better::Neither || SHOWN.contains(&name);
        let wanted = judged_by(&self.kind).contains(&name);
        wanted || ((judged || metric::find(name).is_none()) && !is_of_end(name))
    }

    /// Returns the figures of one end that are not main results.
    fn of_end(&self, prefix: &str) -> Vec<&'a str> {
        let metrics = self.metrics.iter().copied();
        metrics.filter(|name| name.starts_with(prefix) && !self.is_result(name)).collect()
    }

    /// Returns the columns that name a row.
    pub(super) fn stubs(&self, row: &Row) -> Vec<Text> {
        let mut stubs: Vec<Text> =
            self.axes.iter().map(|axis| row.point.get(axis).unwrap_or("–").into()).collect();
        stubs.push(match row.invalid {
            None => row.subject.as_str().into(),
            Some(_) if row.skipped.is_some() => Text::toned(row.subject.as_str(), Tone::Weak),
            Some(_) => Text::toned(format!("{} (not valid)", row.subject), Tone::Bad),
        });
        stubs
    }

    pub(super) fn table(
        &self,
        title: &str,
        columns: Vec<String>,
        rows: Vec<Vec<Text>>,
    ) -> Option<Table> {
        let stubs = self.axes.iter().copied().chain(["subject"]).map(str::to_owned);
        (!columns.is_empty() && !rows.is_empty()).then(|| Table {
            title: title.to_owned(),
            stubs: self.axes.len() + 1,
            head: stubs.chain(columns).collect(),
            rows,
        })
    }

    /// Returns the main results of the scenario. A subject that could not be measured has a row with a gap.
    fn results(&self) -> Option<Table> {
        let mut metrics: Vec<&str> =
            self.metrics.iter().copied().filter(|name| self.is_result(name)).collect();
        if self.kind == "connections" {
            // The times are meaningless without the rate at which they were taken, so the rate comes first.
            metrics.sort_by_key(|name| !judged_by(&self.kind).contains(name));
        }
        let titles = metrics.iter().map(|name| title(name));
        let primary = self.primary();
        let detectable = |row: &Row| row.values.get(primary?)?.sdd_percent;
        let with_sdd = self.rows.iter().any(|row| detectable(row).is_some());
        let sdd = primary.filter(|_| with_sdd).map(|name| format!("detectable in {}", title(name)));
        let last = sdd.into_iter().chain(["rounds".to_owned()]);
        let columns = titles.chain(last).collect();
        let mut all: Vec<&Row> = self.rows.iter().chain(&self.skipped).copied().collect();
        all.sort_by(|a, b| in_order(a, b));
        let rows = all.into_iter().map(|row| {
            let mut cells = self.stubs(row);
            if let Some(reason) = &row.skipped {
                cells.push(Text::toned(format!("not measured: {reason}"), Tone::Weak));
                return cells;
            }
            cells.extend(metrics.iter().map(|name| figure(row, name)));
            if with_sdd {
                cells.push(detectable(row).map_or_else(|| "–".to_owned(), percent).into());
            }
            let all = row.rounds.len() + row.not_counted.len();
            cells.push(match row.rounds.len() {
                counted if counted == all => counted.to_string().into(),
                counted => Text::toned(format!("{counted} of {all}"), Tone::Weak),
            });
            cells
        });
        self.table("Results", columns, rows.collect()).filter(|_| !metrics.is_empty())
    }

    /// Explains the gaps, for the text below the tables.
    fn gaps(&self) -> Vec<String> {
        let mut gaps: Vec<String> = Vec::new();
        for row in &self.skipped {
            let reason = row.skipped.as_deref().unwrap_or_default();
            let line = format!("{}: not measured: {reason}", row.subject);
            if !gaps.contains(&line) {
                gaps.push(line);
            }
        }
        gaps
    }

    /// Returns whether a ratio adds information that no other column has.
    fn is_compared(&self, name: &str) -> bool {
        const COUNTS: [&str; 5] = ["survived", "stuck", "refused", "misconfigured", "recovery_s"];
        let judged = judged_by(&self.kind);
        match name {
            _ if self.primary() == Some(name) || judged.first() == Some(&name) => true,
            // If there is a sum, its parts add little.
            "up_mbps" | "down_mbps" => !self.metrics.contains(&"sum_mbps"),
            // The share of a CPU is comparable only at the same rate.
            "server_cpu_percent" => judged.contains(&name),
            // Each subject's times are taken at its own highest rate.
            "p50_ms" | "p90_ms" | "p99_ms" | "p999_ms" => self.kind != "connections",
            // In scenarios of this kind the rate is given.
            "sum_mbps" => self.kind != "growth",
            // These kinds report the cost of each end; others have it in separate tables.
            _ if is_of_end(name) && !["throughput", "growth"].contains(&self.kind.as_str()) => {
                false
            }
            "server_pss_mib" => !self.metrics.contains(&"server_anon_mib"),
            _ => !COUNTS.contains(&name),
        }
    }

    /// Returns the figures next to the reference's, most important first.
    fn ratios(&self) -> Option<Table> {
        let reference = self.reference()?;
        let primary = self.primary().filter(|name| better(name) != Better::Neither)?;
        let has = |name: &str| {
            let mut cells = self.rows.iter().filter_map(|row| row.values.get(name));
            cells.any(|cell| cell.ratio.is_some())
        };
        let others = self.metrics.iter().copied().filter(|name| *name != primary);
        let mut others: Vec<&str> =
            others.filter(|name| self.is_compared(name) && has(name)).collect();
        others.sort_by_key(|name| !judged_by(&self.kind).contains(name));
        let mut columns = vec![title(primary), "detectable".to_owned()];
        columns.extend(others.iter().map(|name| title(name)));
        let some = |row: &&&Row| row.values.values().any(|cell| cell.ratio.is_some());
        let compared = self.rows.iter().filter(|row| !row.is_reference).filter(some);
        let rows = compared.map(|row| {
            let ratio = row.values.get(primary).and_then(|cell| cell.ratio.as_ref());
            let sdd = ratio.and_then(|ratio| ratio.sdd_percent);
            let mut cells = self.stubs(row);
            cells.push(beside(row, primary));
            cells.push(sdd.map_or_else(|| "–".to_owned(), percent).into());
            cells.extend(others.iter().map(|name| beside(row, name)));
            cells
        });
        self.table(&format!("Compared with {reference}"), columns, rows.collect())
    }

    fn reference(&self) -> Option<&'a str> {
        let reference = self.rows.iter().find(|row| row.is_reference)?;
        let others = self.rows.iter().any(|row| !row.is_reference);
        others.then_some(reference.subject.as_str())
    }

    /// Builds a table of the minimum, mean and maximum per client, if there are several clients.
    fn client_statistics(&self) -> Option<Table> {
        let metrics: Vec<&str> = self.of_end("client_");
        let all = self.rows.iter().map(|row| self.per_client(row)).collect::<Vec<_>>();
        let any = all.iter().any(|by_direction| !by_direction.is_empty());
        let mut columns: Vec<String> = Vec::new();
        // If the number of clients is an axis, it already has a column.
        let counted = self.axes.contains(&"clients");
        let per_client = PER_CLIENT.into_iter().filter(|name| !(counted && *name == "clients"));
        let per_client: Vec<String> = per_client.filter(|_| any).map(str::to_owned).collect();
        columns.extend(per_client.iter().cloned());
        columns.extend(metrics.iter().map(|name| title(name)));
        let mut rows = Vec::new();
        for (row, by_direction) in self.rows.iter().zip(all) {
            let mut figures = metrics.iter().map(|name| figure(row, name)).collect::<Vec<_>>();
            let bare = metrics.iter().all(|name| !row.values.contains_key(*name));
            if by_direction.is_empty() && !bare {
                let gaps = vec!["–".into(); per_client.len()];
                rows.push([self.stubs(row), gaps, figures.clone()].concat());
            }
            // "up" before "down".
            for (direction, spread) in by_direction.iter().rev() {
                rows.push([self.stubs(row), spread.cells(direction, !counted), figures].concat());
                // The processes serve both directions, so their figures are printed once.
                figures = vec!["".into(); metrics.len()];
            }
        }
        let mut table = self.table("Client statistics", columns, rows)?;
        table.stubs += usize::from(any);
        Some(table)
    }

    fn per_client(&self, row: &Row) -> BTreeMap<String, Spread> {
        let mut rounds: BTreeMap<String, Vec<Spread>> = BTreeMap::new();
        for (_, measurement) in self.measured(row) {
            for (direction, spread) in spreads(measurement) {
                rounds.entry(direction).or_default().push(spread);
            }
        }
        let medians = rounds.into_iter().map(|(direction, all)| (direction, Spread::median(&all)));
        medians.filter(|(_, spread)| spread.clients > 1).collect()
    }

    /// Returns the statistics of the server's processes and of the sockets, including the samples.
    fn server_statistics(&self) -> Option<Table> {
        let metrics: Vec<&str> = self.of_end("server_");
        let sampled: Vec<Option<RoleSamples>> =
            self.rows.iter().map(|row| self.sampled(row)).collect();
        let any = sampled.iter().any(Option::is_some);
        let mut columns: Vec<String> = metrics.iter().map(|name| title(name)).collect();
        // The highest PSS is already among the samples.
        let wanted = |name: &str| {
            any && !(name == "highest PSS" && self.metrics.contains(&"server_pss_mib"))
        };
        columns.extend(SAMPLED.into_iter().filter(|name| wanted(name)).map(str::to_owned));
        let mut rows = Vec::new();
        for (row, sampled) in self.rows.iter().zip(sampled) {
            if sampled.is_none() && metrics.iter().all(|name| !row.values.contains_key(*name)) {
                continue;
            }
            let figures = metrics.iter().map(|name| figure(row, name)).collect::<Vec<_>>();
            let gaps = || vec!["–".into(); SAMPLED.len()];
            let sampled = sampled.map_or_else(gaps, |sampled| sampled.cells());
            let sampled = SAMPLED.into_iter().zip(sampled).filter(|(name, _)| wanted(name));
            let sampled: Vec<Text> = sampled.map(|(_, cell)| cell).collect();
            rows.push([self.stubs(row), figures, sampled].concat());
        }
        self.table("Server statistics", columns, rows)
    }

    fn sampled(&self, row: &Row) -> Option<RoleSamples> {
        let all: Vec<RoleSamples> = self
            .measured(row)
            .into_iter()
            .filter_map(|(_, m)| RoleSamples::of(m, "server"))
            .collect();
        RoleSamples::median(&all)
    }

    fn growth(&self) -> Option<Table> {
        let axes: Vec<&str> = self.axes.iter().copied().filter(|axis| *axis != "clients").collect();
        let mut fits = self.fits.clone();
        fits.sort_by(|a, b| {
            order::points(&a.point, &b.point).then_with(|| order::subjects(&a.subject, &b.subject))
        });
        let rows = fits.into_iter().map(|fit| {
            let exponent = fit.log_log.as_ref().map_or_else(
                || "–".to_owned(),
                |line| {
                    let (low, high) = (line.interval.low, line.interval.high);
                    format!("{} [{}, {}]", number(line.slope, 2), number(low, 2), number(high, 2))
                },
            );
            let verdict = if fit.above_linear {
                Text::toned("above linear", Tone::Bad)
            } else {
                Text::toned("not above linear", Tone::Good)
            };
            let mut stubs: Vec<Text> =
                axes.iter().map(|axis| fit.point.get(axis).unwrap_or("–").into()).collect();
            stubs.extend([fit.subject.as_str().into(), title(&fit.metric).into()]);
            let per_client = with_interval(fit.linear.slope, Some(fit.linear.interval), 3);
            stubs.extend([per_client.into(), exponent.into(), verdict]);
            stubs
        });
        let head = axes.iter().copied().chain([
            "subject",
            "figure",
            "each client adds",
            "exponent",
            "verdict",
        ]);
        let rows: Vec<Vec<Text>> = rows.collect();
        (!rows.is_empty()).then(|| Table {
            title: "Growth with the clients".into(),
            stubs: axes.len() + 2,
            head: head.map(str::to_owned).collect(),
            rows,
        })
    }

    /// Returns the conditions of the trials, which are not compared.
    fn conditions(&self) -> Option<Table> {
        // The relay has a separate table, and Jain's index is next to its clients.
        let elsewhere = |name: &str| name.starts_with("relay_") || name == "jain";
        let neither = |name: &&str| {
            better(name) == Better::Neither && !self.is_result(name) && !elsewhere(name)
        };
        let metrics: Vec<&str> = self.metrics.iter().copied().filter(neither).collect();
        let columns = metrics.iter().map(|name| title(name)).collect();
        let any = |row: &&&Row| metrics.iter().any(|name| row.values.contains_key(*name));
        let rows = self.rows.iter().filter(any).map(|row| {
            let plain = |name: &&str| {
                let cell = row.values.get(*name);
                cell.map_or_else(|| "–".to_owned(), |cell| number(cell.median, digits(name))).into()
            };
            [self.stubs(row), metrics.iter().map(plain).collect()].concat()
        });
        self.table("Conditions", columns, rows.collect())
    }
}

/// Returns whether a figure describes the processes of one end.
fn is_of_end(name: &str) -> bool {
    name.starts_with("server_") || name.starts_with("client_")
}

/// Compares rows by point, then by subject.
fn in_order(a: &Row, b: &Row) -> Ordering {
    order::points(&a.point, &b.point).then_with(|| order::subjects(&a.subject, &b.subject))
}

fn figure(row: &Row, name: &str) -> Text {
    match row.values.get(name) {
        Some(cell) => with_interval(cell.median, cell.interval, digits(name)).into(),
        None => Text::toned("–", Tone::Weak),
    }
}

/// Returns the ratio to the reference and its meaning.
fn beside(row: &Row, name: &str) -> Text {
    if row.is_reference {
        return Text::toned("reference", Tone::Weak);
    }
    let Some(ratio) = row.values.get(name).and_then(|cell: &Cell| cell.ratio.as_ref()) else {
        return Text::toned("–", Tone::Weak);
    };
    let tone = match ratio.verdict {
        Verdict::Ahead => Tone::Good,
        Verdict::Behind => Tone::Bad,
        Verdict::InsideTheNoise | Verdict::Invalid => Tone::Weak,
    };
    let figures = times_with_interval(ratio.median, ratio.interval);
    let verdict = match ratio.verdict {
        Verdict::InsideTheNoise => "noise".to_owned(),
        other => other.to_string(),
    };
    Text::toned(format!("{figures} {verdict}"), tone)
}
