//! The verdict and the warnings in words.

use super::series::{Aspect, same_row};
use super::{FLOOR_ABSOLUTE, Outcome, Test};
use crate::stats::{Row, Summary};
use crate::subject::has_adit;

/// Returns the verdict in one sentence.
pub(super) fn verdict(overall: &[Test], scenarios: &[Test], rows: &[Test]) -> String {
    let mut names: Vec<&str> =
        scenarios.iter().chain(rows).map(|test| test.scenario.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    if names.is_empty() {
        return "nothing to compare: the runs share no valid result of adit".into();
    }
    let part = |outcome: Outcome, word: &str| {
        let found = |tests: &[Test]| -> Vec<Test> {
            tests.iter().filter(|test| test.outcome == outcome).cloned().collect()
        };
        let (everywhere, mut found_in, in_rows) = (found(overall), found(scenarios), found(rows));
        // Rows are named only if their scenario is not.
        let known = |row: &Test, all: &[Test]| all.iter().any(|test| test.scenario == row.scenario);
        let extra: Vec<Test> = in_rows.into_iter().filter(|row| !known(row, &found_in)).collect();
        found_in.extend(extra);
        let mut places: Vec<&str> = found_in.iter().map(|test| test.scenario.as_str()).collect();
        places.sort_unstable();
        places.dedup();
        let list = found_in.iter().map(phrase).collect::<Vec<_>>().join(", ");
        let whole = everywhere.iter().map(phrase).collect::<Vec<_>>().join(", ");
        match (places.len(), everywhere.is_empty()) {
            (0, true) => None,
            (0, false) => Some(format!("{word} than A over all scenarios together: {whole}")),
            (n, true) => Some(format!("{word} than A in {n} of {} scenarios: {list}", names.len())),
            (n, false) => Some(format!(
                "{word} than A over all scenarios together ({whole}), and in {n} of {}: {list}",
                names.len()
            )),
        }
    };
    let slow = |test: &&Test| test.outcome == Outcome::Worse && !is_speed(test);
    let worse = overall.iter().chain(scenarios).chain(rows).any(|test| slow(&test));
    let better = overall.iter().chain(scenarios).chain(rows);
    let better = better.clone().any(|test| test.outcome == Outcome::Better && !is_speed(test));
    let worse = part(Outcome::Worse, if worse { "worse" } else { "slower" });
    let better = part(Outcome::Better, if better { "better" } else { "faster" });
    match (worse, better) {
        (None, None) => "no difference beyond what these runs can tell".into(),
        (Some(one), None) | (None, Some(one)) => format!("B is {one}"),
        (Some(worse), Some(better)) => format!("B is {worse}; B is {better}"),
    }
}

/// Returns whether `slower` and `faster` are the right words for this test.
fn is_speed(test: &Test) -> bool {
    let aspects = [Aspect::Speed, Aspect::Cpu, Aspect::Latency];
    let named =
        aspects.iter().any(|aspect| aspect.name() == test.what) || test.what == "instructions";
    named || Aspect::of(&test.what).is_some_and(|(aspect, _)| aspects.contains(&aspect))
}

/// Formats `mp-1 adit speed -8.1 %`.
fn phrase(test: &Test) -> String {
    let point = test.point.as_deref().unwrap_or_default();
    let words = [test.scenario.as_str(), point, &test.subject, &test.what];
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    match test.better_by_percent {
        Some(difference) => format!("{} {difference:+.1} %", words.join(" ")),
        None => words.join(" "),
    }
}

/// Returns warnings about figures that could not be compared, and about the way in which the others
/// were compared.
pub(super) fn warnings(a: &Summary, b: &Summary, rows: &[Test]) -> Vec<String> {
    let mut warnings = Vec::new();
    let adit = |row: &&Row| has_adit(&row.subject) && row.skipped.is_none();
    for (name, one, other) in [("A", a, b), ("B", b, a)] {
        let rows = one.rows.iter().filter(adit);
        let missing = rows
            .filter(|row| row.invalid.is_some() || same_row(other, row, &row.subject).is_none());
        let missing: Vec<String> =
            missing.map(|row| format!("{} {} {}", row.scenario, row.point, row.subject)).collect();
        if !missing.is_empty() {
            warnings.push(format!(
                "{} results of {name} have no valid counterpart and are not compared: {}",
                missing.len(),
                missing.join("; ")
            ));
        }
    }
    let absolute = |test: &&Test| test.relative_to.is_none() && test.uncertainty_percent.is_some();
    let mut scenarios: Vec<&str> =
        rows.iter().filter(absolute).map(|test| test.scenario.as_str()).collect();
    scenarios.sort_unstable();
    scenarios.dedup();
    if !scenarios.is_empty() {
        warnings.push(format!(
            "absolute figures were compared where no reference ran in the same round, so differences below {FLOOR_ABSOLUTE} % mean nothing there: {}",
            scenarios.join(", ")
        ));
    }
    warnings
}
