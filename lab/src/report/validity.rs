//! Determines whether the figures of a run can be trusted, and how far.

use std::collections::{BTreeMap, BTreeSet};

use super::document::{Table, Text, Tone, Validity, capital, count_a_a, is_of, notices};
use super::number::{number, percent, times_with_interval};
use super::{Run, order};
use crate::metric;
use crate::record::Outcome;
use crate::stats::Row;

/// Collects everything that supports or undermines the figures.
pub(super) fn of(run: &Run) -> Validity {
    let rows = &run.summary.rows;
    let measured = rows.iter().filter(|row| row.skipped.is_none());
    let bad = measured.clone().filter(|row| row.invalid.is_some()).count();
    let measured = measured.count();
    let different = run.summary.a_a.iter().flat_map(|row| row.values.values());
    let different = different.filter(|cell| cell.different).count();
    let unfinished = !notices(run).is_empty();
    let mut said = vec![match (bad, measured) {
        (_, 0) => "Nothing was measured.".to_owned(),
        (0, 1) => "The one result is valid.".to_owned(),
        (0, all) => format!("All {all} results are valid."),
        (bad, all) => format!("{bad} of {all} results are not valid; they are marked."),
    }];
    said.push(match (run.summary.a_a.len(), different) {
        (0, _) => "No A/A was run, so a difference may be the machine's.".to_owned(),
        (_, 0) => "A/A found no difference where there is none.".to_owned(),
        (_, 1) => {
            "A/A found a difference where there is none: distrust small differences.".to_owned()
        }
        (_, n) => {
            format!("A/A found {n} differences where there is none: distrust small differences.")
        }
    });
    if let Some((least, most)) = detectable(run) {
        let (least, most) = (percent(least), percent(most));
        said.push(if least == most {
            format!("The smallest detectable difference in throughput is {most}.")
        } else {
            format!("The smallest detectable difference in throughput is between {least} and {most}, by row.")
        });
    }
    Validity {
        good: bad == 0 && measured > 0 && different == 0 && !unfinished && count_a_a(run) > 0,
        verdict: said.join(" "),
        // The number of invalid trials is already printed.
        warnings: run
            .summary
            .warnings
            .iter()
            .filter(|text| !text.contains("results are invalid"))
            .map(|text| sentence(text))
            .collect(),
        tables: [a_a(run), skipped(run), trials(run)].into_iter().flatten().collect(),
    }
}

fn sentence(text: &str) -> String {
    let end = if text.ends_with('.') { "" } else { "." };
    capital(text) + end
}

fn detectable(run: &Run) -> Option<(f64, f64)> {
    let cells = run.summary.rows.iter().filter_map(|row| row.values.get("sum_mbps"));
    let mut all: Vec<f64> = cells.filter_map(|cell| cell.sdd_percent).collect();
    all.sort_by(f64::total_cmp);
    Some((*all.first()?, *all.last()?))
}

fn a_a(run: &Run) -> Option<Table> {
    let mut rows = Vec::new();
    for row in &run.summary.a_a {
        for m in metric::ALL {
            let Some(cell) = row.values.get(m.name) else { continue };
            let found = if cell.different {
                Text::toned("differs", Tone::Bad)
            } else {
                Text::toned("none", Tone::Good)
            };
            rows.push(vec![
                place(&row.scenario, &row.point.to_string()).into(),
                row.subject.as_str().into(),
                m.title.into(),
                number(f64::from(u32::try_from(cell.pairs).unwrap_or(u32::MAX)), 0).into(),
                times_with_interval(cell.ratio, cell.interval).into(),
                cell.sdd_percent.map_or_else(|| "–".to_owned(), percent).into(),
                found,
            ]);
        }
    }
    let head = ["where", "subject", "figure", "pairs", "second / first", "detectable", "found"];
    table("A/A: the same subject against itself", 3, &head, rows)
}

/// Groups skipped trials by reason, so that one missing peer is one line.
fn skipped(run: &Run) -> Option<Table> {
    let mut reasons: BTreeMap<(String, String), BTreeSet<String>> = BTreeMap::new();
    for (subject, entry) in &run.manifest.subjects {
        if let Some(reason) = &entry.skipped {
            reasons.entry((subject.clone(), reason.clone())).or_default();
        }
    }
    for row in &run.summary.rows {
        if let Some(reason) = &row.skipped {
            let key = (row.subject.clone(), reason.clone());
            reasons.entry(key).or_default().insert(row.scenario.clone());
        }
    }
    let mut rows: Vec<_> = reasons.into_iter().collect();
    rows.sort_by(|((a, _), _), ((b, _), _)| order::subjects(a, b));
    let rows = rows.into_iter().map(|((subject, reason), scenarios)| {
        let scenarios: Vec<String> = scenarios.into_iter().collect();
        let scenarios = if scenarios.is_empty() { "all".to_owned() } else { scenarios.join(", ") };
        vec![subject.into(), scenarios.into(), reason.into()]
    });
    table("Skipped", 3, &["subject", "scenarios", "why"], rows.collect())
}

/// The places and the subjects that share a scenario, rounds, state and reason.
type ValidityMarks = BTreeMap<(String, String, String), Vec<(String, String, String)>>;

fn trials(run: &Run) -> Option<Table> {
    let mut all = ValidityMarks::new();
    for row in run.summary.rows.iter().filter(|row| row.skipped.is_none()) {
        let mut push = |round: &str, state: &str, why: &str| {
            let key = (row.scenario.clone(), state.to_owned(), why.to_owned());
            let own = (row.point.to_string(), row.subject.clone(), round.to_owned());
            all.entry(key).or_default().push(own);
        };
        if let Some(why) = &row.invalid {
            push("all", "result not valid", why);
        }
        for (round, why) in &row.not_counted {
            push(&round.to_string(), "not counted", why);
        }
        for (round, why) in disturbances(run, row) {
            push(&round.to_string(), "marked", &why);
        }
        for round in &row.marked {
            let steal = percent(100.0 * steal(run, row, *round));
            push(
                &round.to_string(),
                "marked",
                &format!("the hypervisor took {steal} of the machine's time"),
            );
        }
    }
    let rows = all.into_iter().map(|((scenario, state, why), of)| {
        let points: BTreeSet<&str> = of.iter().map(|(point, _, _)| point.as_str()).collect();
        let at = match points.first() {
            Some(point) if points.len() == 1 => place(&scenario, point),
            _ => format!("{scenario}, {} points", points.len()),
        };
        let joined = |mut names: Vec<&str>, order: fn(&str, &str) -> std::cmp::Ordering| {
            names.sort_by(|a, b| order(a, b));
            names.dedup();
            names.join(", ")
        };
        let subjects = joined(of.iter().map(|own| own.1.as_str()).collect(), order::subjects);
        let rounds = joined(of.iter().map(|own| own.2.as_str()).collect(), order::values);
        let tone = if state == "marked" { Tone::Weak } else { Tone::Bad };
        vec![at.into(), subjects.into(), rounds.into(), Text::toned(state, tone), why.into()]
    });
    table(
        "Trials that are marked or do not count",
        5,
        &["where", "subject", "round", "state", "why"],
        rows.collect(),
    )
}

fn disturbances(run: &Run, row: &Row) -> Vec<(u32, String)> {
    let of_row = run.records.iter().filter(|record| !record.a_a && is_of(record, row));
    let disturbed = of_row.filter_map(|record| match &record.outcome {
        Outcome::Measured(measurement) => Some((record.key.round, measurement.disturbance()?)),
        _ => None,
    });
    disturbed.collect()
}

fn steal(run: &Run, row: &Row, round: u32) -> f64 {
    let mut of_row = run.records.iter().filter(|record| !record.a_a && is_of(record, row));
    match of_row.find(|record| record.key.round == round).map(|record| &record.outcome) {
        Some(Outcome::Measured(measurement)) => measurement.steal,
        _ => 0.0,
    }
}

fn place(scenario: &str, point: &str) -> String {
    if point.is_empty() { scenario.to_owned() } else { format!("{scenario} {point}") }
}

fn table(title: &str, stubs: usize, head: &[&str], rows: Vec<Vec<Text>>) -> Option<Table> {
    let head = head.iter().map(|&name| name.to_owned()).collect();
    (!rows.is_empty()).then(|| Table { title: title.to_owned(), stubs, head, rows })
}
