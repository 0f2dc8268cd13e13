//! Computes a [`Summary`] from trials.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use super::{
    AaCell, AaRow, Cell, Growth, Ratio, Row, Summary, Verdict, interval_of_median, line, log_log,
    logs, median, percent, smallest_detectable, variance,
};
use crate::metric::{self, Better};
use crate::record::{Measurement, Outcome, Point, Record};
use crate::subject::Subject;

/// The number of unmarked rounds that make a result valid.
pub const ENOUGH: usize = 3;

/// The share of stolen time above which a trial is marked.
pub const STEAL_LIMIT: f64 = 0.01;

/// The metrics whose growth with the number of clients is fitted. These are totals, which may at most double when the
/// clients do.
const GROWING: [&str; 5] = [
    "server_cpu_percent",
    "server_cpu_s_per_gb",
    "client_cpu_s_per_gb",
    // The PSS is left out, because the more clients share code on this machine, the less of it counts for each.
    "server_anon_mib",
    "client_pss_mib",
];

/// Summarises the trials of a run by the rules in the documentation of [`crate::stats`]. If two records have the same
/// key, the later one counts.
pub fn summarise(records: &[Record]) -> Summary {
    let (a_a, others): (Vec<&Record>, Vec<&Record>) = records.iter().partition(|record| record.a_a);
    let (a_a, noise) = summarise_a_a(&rows(&a_a));
    let mut rows = rows(&others);
    for row in &mut rows {
        for (name, cell) in &mut row.values {
            set_sdd(cell, noise.get(name).copied());
        }
    }
    for at_point in rows.chunk_by_mut(|a, b| a.scenario == b.scenario && a.point == b.point) {
        compare_with_reference(at_point);
    }
    let growth = growth(&rows);
    let mut warnings = warnings(&rows, &a_a, &growth);
    warnings.extend(disturbed(records));
    Summary { rows, a_a, growth, warnings }
}

/// Compares two points: numeric values by size, others as text; `clients=5` comes before `clients=20`.
pub fn by_point(a: &Point, b: &Point) -> Ordering {
    let value = |a: &str, b: &str| match (a.parse::<f64>(), b.parse::<f64>()) {
        (Ok(a), Ok(b)) => a.total_cmp(&b),
        _ => a.cmp(b),
    };
    let pairs = a.0.iter().zip(&b.0);
    let first = pairs.map(|((ka, va), (kb, vb))| ka.cmp(kb).then_with(|| value(va, vb)));
    first.fold(Ordering::Equal, Ordering::then).then(a.0.len().cmp(&b.0.len()))
}

/// Compares two subjects by the order of [`Subject`]; unknown ones come last, by name.
fn by_subject(a: &str, b: &str) -> Ordering {
    let known = |name: &str| name.parse::<Subject>().ok();
    match (known(a), known(b)) {
        (Some(a), Some(b)) => a.cmp(&b),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => a.cmp(b),
    }
}

/// Returns one row for each scenario, point and subject, in this order, without ratios and SDD.
fn rows(records: &[&Record]) -> Vec<Row> {
    let mut groups: BTreeMap<(&str, &Point, &str), BTreeMap<u32, &Record>> = BTreeMap::new();
    for record in records {
        let key = (record.key.scenario.as_str(), &record.key.point, record.key.subject.as_str());
        groups.entry(key).or_default().insert(record.key.round, record);
    }
    let mut rows: Vec<Row> = groups.into_values().filter_map(|trials| row(&trials)).collect();
    rows.sort_by(|a, b| {
        let points = || by_point(&a.point, &b.point).then_with(|| a.point.cmp(&b.point));
        a.scenario
            .cmp(&b.scenario)
            .then_with(points)
            .then_with(|| by_subject(&a.subject, &b.subject))
    });
    rows
}

/// Returns the row of one group of trials by round; `None` if there are no trials.
fn row(trials: &BTreeMap<u32, &Record>) -> Option<Row> {
    let first = trials.values().next()?;
    let mut valid: BTreeMap<u32, &Measurement> = BTreeMap::new();
    let (mut not_counted, mut skipped) = (Vec::new(), None);
    for (round, record) in trials {
        match &record.outcome {
            Outcome::Measured(measured) if measured.invalid.is_empty() => {
                valid.insert(*round, measured);
            }
            Outcome::Measured(measured) => not_counted.push((*round, measured.invalid.join("; "))),
            Outcome::Failed(why) => not_counted.push((*round, format!("failed: {why}"))),
            Outcome::Skipped(why) => skipped = Some(why.clone()),
        }
    }
    let marked: Vec<u32> =
        valid.iter().filter(|(_, m)| m.steal > STEAL_LIMIT).map(|(round, _)| *round).collect();
    let unmarked = valid.len() - marked.len();
    if unmarked >= ENOUGH {
        valid.retain(|_, m| m.steal <= STEAL_LIMIT);
    }
    let enough = if first.kind == "instructions" { 1 } else { ENOUGH };
    let all = trials.len();
    let invalid = (unmarked < enough).then(|| match &skipped {
        Some(why) => why.clone(),
        None => format!(
            "{unmarked} of {all} rounds valid and without steal above 1 %, and it takes {enough}"
        ),
    });
    let mut by_metric: BTreeMap<String, BTreeMap<u32, f64>> = BTreeMap::new();
    for (round, measured) in &valid {
        for (name, figure) in measured.values.iter().filter(|(_, figure)| figure.is_finite()) {
            by_metric.entry(name.clone()).or_default().insert(*round, *figure);
        }
    }
    Some(Row {
        scenario: first.key.scenario.clone(),
        kind: first.kind.clone(),
        point: first.key.point.clone(),
        subject: first.key.subject.clone(),
        is_reference: false,
        values: by_metric
            .into_iter()
            .filter_map(|(name, rounds)| Some((name, cell(rounds)?)))
            .collect(),
        rounds: valid.into_keys().collect(),
        marked,
        not_counted,
        skipped,
        invalid,
    })
}

fn cell(by_round: BTreeMap<u32, f64>) -> Option<Cell> {
    let figures: Vec<f64> = by_round.values().copied().collect();
    Some(Cell {
        median: median(&figures)?,
        interval: interval_of_median(&figures),
        by_round,
        sdd_percent: None,
        ratio: None,
    })
}

/// Returns the variance of the logarithms of a cell's figures.
fn variance_of_logs(cell: &Cell) -> Option<f64> {
    variance(&logs(&cell.by_round.values().copied().collect::<Vec<_>>())?)
}

/// Sets the SDD by the larger of two spreads: the cell's own and that of A/A.
fn set_sdd(cell: &mut Cell, a_a: Option<f64>) {
    let own = variance_of_logs(cell).map(f64::sqrt);
    let sd = own.map(|own| own.max(a_a.unwrap_or(0.0)));
    cell.sdd_percent = sd.and_then(|sd| smallest_detectable(sd, cell.by_round.len())).map(percent);
}

/// Fills in the ratios of the rows of one scenario and point.
fn compare_with_reference(rows: &mut [Row]) {
    // openvpn over the same transport as adit, if openvpn itself is not measured; otherwise the first subject.
    let kinds: [fn(&str) -> bool; 3] = [
        |subject| subject == "openvpn",
        |subject| subject.starts_with("openvpn-") && !subject.contains('/'),
        |_| true,
    ];
    let measured = || rows.iter().filter(|row| !row.values.is_empty());
    let name = kinds.iter().find_map(|kind| measured().find(|row| kind(&row.subject)));
    let name = name.map(|row| row.subject.clone());
    let Some(reference) = rows.iter().find(|row| Some(&row.subject) == name.as_ref()).cloned()
    else {
        return;
    };
    if rows.len() < 2 {
        return;
    }
    for row in rows {
        row.is_reference = row.subject == reference.subject;
        if row.is_reference {
            continue;
        }
        let valid = row.invalid.is_none() && reference.invalid.is_none();
        for (name, cell) in &mut row.values {
            let better = metric::find(name).map_or(Better::Neither, |metric| metric.better);
            let other = reference.values.get(name).filter(|_| better != Better::Neither);
            cell.ratio =
                other.and_then(|other| ratio(cell, other, better, valid)).map(|mut ratio| {
                    ratio.reference.clone_from(&reference.subject);
                    ratio
                });
        }
    }
}

/// Returns `cell` over `other`, round by round; `None` if they share no round or a figure is not above zero.
fn ratio(cell: &Cell, other: &Cell, better: Better, valid: bool) -> Option<Ratio> {
    let pairs = paired(&other.by_round, &cell.by_round);
    let middle = median(&pairs).filter(|_| logs(&pairs).is_some())?;
    let interval = interval_of_median(&pairs);
    let verdict = match interval {
        Some(interval) if valid && pairs.len() >= ENOUGH => {
            let beyond = differs(middle, interval, cell.sdd_percent);
            match (beyond, (middle > 1.0) == (better == Better::Higher)) {
                (false, _) => Verdict::InsideTheNoise,
                (true, true) => Verdict::Ahead,
                (true, false) => Verdict::Behind,
            }
        }
        _ => Verdict::Invalid,
    };
    let spread = logs(&pairs).and_then(|logs| super::sd(&logs));
    let sdd = spread.and_then(|sd| smallest_detectable(sd, pairs.len())).map(percent);
    Some(Ratio {
        reference: String::new(),
        median: middle,
        interval,
        pairs: pairs.len(),
        sdd_percent: sdd,
        verdict,
    })
}

/// Returns `second / first` for each round that both have.
fn paired(first: &BTreeMap<u32, f64>, second: &BTreeMap<u32, f64>) -> Vec<f64> {
    second.iter().filter_map(|(round, figure)| Some(figure / first.get(round)?)).collect()
}

/// Returns whether a ratio is beyond the noise: its interval excludes 1 and it is off by more than the SDD. A ratio of 0.5 is off by as
/// much as a ratio of 2. Without an SDD there is no verdict.
fn differs(ratio: f64, interval: super::Interval, sdd_percent: Option<f64>) -> bool {
    let Some(sdd) = sdd_percent else { return false };
    !interval.contains(1.0) && ratio.ln().abs() > (sdd / 100.0).ln_1p()
}

/// Summarises A/A, and returns the spread of the logarithms of each metric (the largest if there are several).
fn summarise_a_a(rows: &[Row]) -> (Vec<AaRow>, BTreeMap<String, f64>) {
    let mut noise: BTreeMap<String, f64> = BTreeMap::new();
    let mut all = Vec::new();
    for first in rows {
        let Some(subject) = first.subject.strip_suffix("#a") else { continue };
        let twin = format!("{subject}#b");
        let same = |row: &&Row| {
            row.scenario == first.scenario && row.point == first.point && row.subject == twin
        };
        let Some(second) = rows.iter().find(same) else { continue };
        let mut values = BTreeMap::new();
        for (name, a) in &first.values {
            let directed =
                metric::find(name).is_some_and(|metric| metric.better != Better::Neither);
            let Some(b) = second.values.get(name).filter(|_| directed) else { continue };
            let Some((cell, sd)) = a_a_cell(a, b) else { continue };
            values.insert(name.clone(), cell);
            if let Some(sd) = sd {
                let largest = noise.entry(name.clone()).or_insert(sd);
                *largest = largest.max(sd);
            }
        }
        all.push(AaRow {
            scenario: first.scenario.clone(),
            point: first.point.clone(),
            subject: subject.to_owned(),
            values,
        });
    }
    (all, noise)
}

/// Returns one metric of A/A and the spread of its logarithms, pooled over both sides.
fn a_a_cell(a: &Cell, b: &Cell) -> Option<(AaCell, Option<f64>)> {
    let pairs = paired(&a.by_round, &b.by_round);
    let ratio = median(&pairs).filter(|_| logs(&pairs).is_some())?;
    let interval = interval_of_median(&pairs);
    let pooled = variance_of_logs(a).zip(variance_of_logs(b));
    let sd = pooled.map(|(a, b)| f64::midpoint(a, b).sqrt());
    let sdd_percent = sd.and_then(|sd| smallest_detectable(sd, pairs.len())).map(percent);
    let different = pairs.len() >= ENOUGH
        && interval.is_some_and(|interval| differs(ratio, interval, sdd_percent));
    Some((AaCell { pairs: pairs.len(), ratio, interval, sdd_percent, different }, sd))
}

/// Returns the fits of all scenarios of the kind `growth`.
fn growth(rows: &[Row]) -> Vec<Growth> {
    type Curves = BTreeMap<(String, Point, String, &'static str), Vec<(f64, f64)>>;
    let mut curves = Curves::new();
    for row in rows.iter().filter(|row| row.kind == "growth" && row.invalid.is_none()) {
        let Some(clients) = row.point.get("clients").and_then(|n| n.parse::<f64>().ok()) else {
            continue;
        };
        let mut point = row.point.clone();
        point.0.remove("clients");
        for name in GROWING {
            let Some(cell) = row.values.get(name) else { continue };
            let key = (row.scenario.clone(), point.clone(), row.subject.clone(), name);
            let figures = cell.by_round.values().map(|figure| (clients, *figure));
            curves.entry(key).or_default().extend(figures);
        }
    }
    let fits = curves.into_iter().filter_map(|((scenario, point, subject, metric), points)| {
        let linear = line(&points)?;
        let log_log = log_log(&points);
        let above_linear = log_log.is_some_and(|fit| fit.interval.low > 1.0);
        Some(Growth {
            scenario,
            point,
            subject,
            metric: metric.to_owned(),
            points,
            linear,
            log_log,
            above_linear,
        })
    });
    fits.collect()
}

/// Returns a warning if other programs were active on the machine during the run.
fn disturbed(records: &[Record]) -> Option<String> {
    let measured = records.iter().filter_map(|record| match &record.outcome {
        Outcome::Measured(measured) => Some(measured),
        _ => None,
    });
    let (all, disturbed) = measured.fold((0_usize, 0_usize), |(all, disturbed), measured| {
        (all + 1, disturbed + usize::from(measured.disturbance().is_some()))
    });
    (disturbed > 0).then(|| {
        format!(
            "the machine was not quiet: other programs were at work in {disturbed} of {all} trials"
        )
    })
}

/// Returns the warnings that precede all figures.
fn warnings(rows: &[Row], a_a: &[AaRow], growth: &[Growth]) -> Vec<String> {
    let title = |name: &str| metric::find(name).map_or(name.to_owned(), |m| m.title.to_owned());
    let mut warnings = Vec::new();
    for row in a_a {
        for (name, cell) in row.values.iter().filter(|(_, cell)| cell.different) {
            warnings.push(format!(
                "A/A: {} differs from itself by {:+.1} % in {} ({} pairs): this machine is not steady, so that differences of this size say nothing",
                row.subject, (cell.ratio - 1.0) * 100.0, title(name), cell.pairs
            ));
        }
    }
    let marked: usize = rows.iter().map(|row| row.marked.len()).sum();
    if marked > 0 {
        warnings.push(format!(
            "the hypervisor took more than 1 % of the machine's time in {marked} trials"
        ));
    }
    let invalid = rows.iter().filter(|row| row.invalid.is_some() && row.skipped.is_none()).count();
    if invalid > 0 {
        warnings.push(format!(
            "{invalid} of {} results are invalid: see the reason next to each",
            rows.len()
        ));
    }
    for growth in growth.iter().filter(|growth| growth.above_linear) {
        let exponent = growth.log_log.map_or(f64::NAN, |fit| fit.slope);
        warnings.push(format!(
            "{} of {} grows faster than the clients in {}: exponent {exponent:.2}",
            title(&growth.metric),
            growth.subject,
            growth.scenario
        ));
    }
    warnings
}

#[cfg(test)]
#[path = "summarise_tests.rs"]
mod tests;
