//! Renders a comparison for human readers.

use std::fmt::Write as _;

use super::{Comparison, Test};
use crate::metric;
use crate::table::table;

/// Renders the comparison; the first line is the verdict.
pub(super) fn render(comparison: &Comparison) -> String {
    let mut text = format!("{}\n", comparison.verdict);
    for warning in &comparison.warnings {
        // Writing to a String cannot fail.
        let _ = write!(text, "\nWarning: {warning}\n");
    }
    section(&mut text, "Over all scenarios", &comparison.overall, "");
    section(&mut text, "By scenario", &comparison.scenarios, "");
    let (within, of) = comparison.within_sdd;
    let agreement = match of {
        0 => String::new(),
        _ => format!(
            "{within} of {of} figures agree within the smallest detectable difference that the runs print (SDD).\n\n"
        ),
    };
    section(&mut text, "By row", &comparison.rows, &agreement);
    let drift = "Of programs that are the same in both runs, in absolute figures: how far the machine itself moved. Not judged.\n\n";
    section(&mut text, "Drift of the machine", &comparison.drift, drift);
    text += "\n\"Better by\" is B's figure relative to A's, with the sign set so that negative is worse, followed by half the width of its 95 % interval. If \
             a subject is named under \"reference\", both figures are ratios to it, round by round; otherwise they are absolute. WORSE and better are \
             reported only if they hold with all tests of this page taken together.\n";
    text
}

fn section(text: &mut String, title: &str, tests: &[Test], note: &str) {
    if tests.is_empty() {
        return;
    }
    let with_medians = tests.iter().any(|test| test.medians.is_some());
    let mut head = vec!["where", "subject", "what"];
    if with_medians {
        head.extend(["A", "B", "SDD %"]);
    }
    head.extend(["better by %", "+-", "rounds", "reference", "B is"]);
    let rows: Vec<Vec<String>> = tests.iter().map(|test| row(test, with_medians)).collect();
    let _ = write!(text, "\n## {title}\n\n{note}{}", table(&head, &rows));
}

fn row(test: &Test, with_medians: bool) -> Vec<String> {
    let place = match (test.scenario.as_str(), test.point.as_deref().unwrap_or_default()) {
        ("", _) => "all".to_owned(),
        (scenario, "") => scenario.to_owned(),
        (scenario, point) => format!("{scenario} {point}"),
    };
    let known = metric::find(&test.what);
    let what = known.map_or(test.what.as_str(), |metric| metric.title);
    let mut row = vec![place, test.subject.clone(), what.to_owned()];
    if with_medians {
        let digits = known.map_or(3, |metric| metric.digits);
        let medians = test.medians.map(|(a, b)| [format!("{a:.digits$}"), format!("{b:.digits$}")]);
        row.extend(medians.unwrap_or_default());
        row.push(test.sdd_percent.map_or("-".into(), |percent| format!("{percent:.1}")));
    }
    let difference = test.better_by_percent.map_or("-".into(), |percent| format!("{percent:+.1}"));
    let uncertainty =
        test.uncertainty_percent.map_or("-".into(), |percent| format!("{percent:.1}"));
    row.extend([
        difference,
        uncertainty,
        format!("{}+{}", test.rounds.0, test.rounds.1),
        test.relative_to.clone().unwrap_or_else(|| "-".into()),
        test.outcome.to_string(),
    ]);
    row
}

#[cfg(test)]
mod tests {
    use super::super::Outcome;
    use super::*;

    #[test]
    fn the_verdict_comes_first_and_rows_line_up() {
        let test = Test {
            scenario: "mp-1".into(),
            point: Some("clients=5".into()),
            subject: "adit".into(),
            what: "up_mbps".into(),
            better_by_percent: Some(-8.14),
            uncertainty_percent: Some(1.2),
            sdd_percent: Some(2.5),
            p: 1e-6,
            medians: Some((9000.4, 8267.0)),
            rounds: (5, 5),
            relative_to: Some("openvpn".into()),
            outcome: Outcome::Worse,
        };
        let comparison = Comparison {
            verdict: "B is slower".into(),
            worse: true,
            overall: vec![],
            scenarios: vec![],
            rows: vec![test],
            within_sdd: (0, 1),
            drift: vec![],
            warnings: vec!["the kernel differs".into()],
        };
        let text = render(&comparison);
        assert!(
            text.starts_with(
                "B is slower\n\nWarning: the kernel differs\n\n## By row\n\n0 of 1 figures agree"
            ),
            "{text}"
        );
        let row = "| mp-1 clients=5 |    adit | up Mb/s | 9000 | 8267 |   2.5 |        -8.1 | 1.2 |    5+5 |   openvpn | WORSE |";
        assert!(text.contains(row), "{text}");
        assert!(!text.contains("Over all"));
    }
}
