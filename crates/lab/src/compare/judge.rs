//! The tests. See the head of [`super`] for what they are and why.

use std::collections::BTreeMap;

use super::{
    ALPHA_OVERALL, ALPHA_ROW, ALPHA_SCENARIO, Comparison, FLOOR, FLOOR_ABSOLUTE,
    FLOOR_INSTRUCTIONS, Outcome, Test,
};
use crate::metric::{self, Better};
use crate::record::Point;
use crate::stats::{Cell, ENOUGH, Row, Summary, mean, percent, t_quantile, two_sided_p, variance};

/// The normal distribution, for all that is asked of it here.
const NORMAL: f64 = 1e5;

/// What a figure is a sign of.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Aspect {
    Speed,
    Cpu,
    Latency,
    Memory,
}

impl Aspect {
    fn name(self) -> &'static str {
        match self {
            Aspect::Speed => "speed",
            Aspect::Cpu => "CPU",
            Aspect::Latency => "latency",
            Aspect::Memory => "memory",
        }
    }

    /// Of a metric, and whether it is steady enough to be averaged into it: the tails of latencies would drown their middles.
    fn of(metric: &str) -> Option<(Aspect, bool)> {
        Some(match metric {
            "up_mbps"
            | "down_mbps"
            | "sum_mbps"
            | "requests_per_s"
            | "rate_at_no_loss_pps"
            | "rate_at_half_percent_pps"
            | "handshakes_per_s" => (Aspect::Speed, true),
            "mb_per_cpu_s"
            | "server_cpu_s_per_gb"
            | "client_cpu_s_per_gb"
            | "cpu_ms_per_handshake"
            | "server_cpu_percent" => (Aspect::Cpu, true),
            "p50_ms" | "p90_ms" | "idle_p50_ms" | "loaded_p50_ms" => (Aspect::Latency, true),
            "p99_ms" | "p999_ms" | "idle_p99_ms" | "loaded_p99_ms" => (Aspect::Latency, false),
            "kib_per_client" | "server_pss_mib" | "client_pss_mib" => (Aspect::Memory, true),
            _ => return None,
        })
    }
}

/// A figure of a row in both runs.
#[derive(Debug, Clone)]
struct Series<'a> {
    row: &'a Row,
    metric: &'static str,
    better: Better,
    cells: [&'a Cell; 2],
    relative_to: Option<&'a str>,
    /// The logarithms by round, signed so that more is better; None where a figure is not above zero.
    logs: Option<[BTreeMap<u32, f64>; 2]>,
}

/// By how much B is better than A, as a logarithm, and how sure that is.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Estimate {
    difference: f64,
    /// The square of the standard error.
    error: f64,
    df: f64,
    rounds: (usize, usize),
}

/// Compares the runs A and B by the rules in the head of the parent module. The same two runs always give the same answer.
#[must_use]
pub fn compare(a: &Summary, b: &Summary) -> Comparison {
    let relative = all_series(a, b, true);
    let absolute = all_series(a, b, false);
    let judged = |series: &&Series| series.row.subject.starts_with("adit");
    let (adit, controls): (Vec<&Series>, Vec<&Series>) = relative.iter().partition(judged);
    let peers: Vec<&Series> = absolute.iter().filter(|series| !judged(series)).collect();
    let ratios: Vec<&Series> = controls.into_iter().filter(|s| s.relative_to.is_some()).collect();
    let unsteady = Unsteady { ratios: Movement::of(&ratios), absolute: Movement::of(&peers) };

    let mut groups = by_scenario(&adit, &unsteady);
    let mut overall = over_all(&groups, &unsteady);
    let mut rows: Vec<Test> =
        adit.iter().filter_map(|series| row_test(series, &unsteady)).collect();
    holm(groups.iter_mut().map(|group| &mut group.test).collect(), ALPHA_SCENARIO);
    holm(overall.iter_mut().collect(), ALPHA_OVERALL);
    holm(rows.iter_mut().collect(), ALPHA_ROW);
    rows.extend(adit.iter().filter_map(|series| certain(series)));
    rows.sort_by_key(|test| test.scenario.clone());
    let scenarios: Vec<Test> = groups.into_iter().map(|group| group.test).collect();
    let drift =
        by_scenario(&peers, &Unsteady::default()).into_iter().map(|group| group.test).collect();
    let all = || overall.iter().chain(&scenarios).chain(&rows);
    Comparison {
        verdict: verdict(&overall, &scenarios, &rows),
        worse: all().any(|test| test.outcome == Outcome::Worse),
        warnings: warnings(a, b, &rows),
        overall,
        scenarios,
        rows,
        drift,
    }
}

/// All figures with a direction of the rows that both runs have, in ratios to the reference where there is one if `relative`.
fn all_series<'a>(a: &'a Summary, b: &'a Summary, relative: bool) -> Vec<Series<'a>> {
    let mut all = Vec::new();
    for row in a.rows.iter().filter(|row| row.invalid.is_none()) {
        let Some(twin) = same_row(b, row, &row.subject) else { continue };
        let reference = reference(a, b, row).filter(|[r, _]| relative && r.subject != row.subject);
        for (name, cell) in &row.values {
            let Some(metric) = metric::find(name).filter(|m| m.better != Better::Neither) else {
                continue;
            };
            let Some(other) = twin.values.get(name) else { continue };
            let bases =
                reference.and_then(|[a, b]| Some([a.values.get(name)?, b.values.get(name)?]));
            // A reference with a zero among its figures is none for this one.
            let bases = bases
                .filter(|bases| bases.iter().all(|base| base.by_round.values().all(|x| *x > 0.0)));
            let sign = if metric.better == Better::Higher { 1.0 } else { -1.0 };
            let logs = |cell: &Cell, base: Option<&Cell>| -> Option<BTreeMap<u32, f64>> {
                let rounds = cell.by_round.iter().filter_map(|(round, figure)| {
                    let base = base.map_or(Some(1.0), |base| base.by_round.get(round).copied())?;
                    Some((*round, figure, base))
                });
                rounds
                    .map(|(n, figure, base)| {
                        (*figure > 0.0).then(|| (n, sign * (figure / base).ln()))
                    })
                    .collect()
            };
            let (first, second) =
                (logs(cell, bases.map(|b| b[0])), logs(other, bases.map(|b| b[1])));
            all.push(Series {
                row,
                metric: metric.name,
                better: metric.better,
                cells: [cell, other],
                relative_to: bases.and(reference).map(|[r, _]| r.subject.as_str()),
                logs: first.zip(second).map(|(a, b)| [a, b]),
            });
        }
    }
    all
}

fn same_row<'a>(run: &'a Summary, row: &Row, subject: &str) -> Option<&'a Row> {
    let mut valid = run.rows.iter().filter(|other| other.invalid.is_none());
    valid.find(|o| o.scenario == row.scenario && o.point == row.point && o.subject == subject)
}

/// The reference for a row in A and in B: `openvpn`, or else the first subject that both have there and that is not adit itself.
fn reference<'a>(a: &'a Summary, b: &'a Summary, row: &Row) -> Option<[&'a Row; 2]> {
    let here = |other: &&Row| other.scenario == row.scenario && other.point == row.point;
    let others = a.rows.iter().filter(here).map(|other| other.subject.as_str());
    let others = others.filter(|subject| !subject.starts_with("adit") && *subject != "openvpn");
    let mut names = std::iter::once("openvpn").chain(others);
    names.find_map(|name| Some([same_row(a, row, name)?, same_row(b, row, name)?]))
}

/// How far programs that are the same in both runs moved between them, in ratios and in absolute figures.
#[derive(Debug, Default)]
struct Unsteady {
    ratios: Movement,
    absolute: Movement,
}

impl Unsteady {
    fn of(&self, relative: bool) -> &Movement {
        if relative { &self.ratios } else { &self.absolute }
    }
}

/// The variance between runs beyond the noise inside them, by the method of moments: of scenarios' aspects and of rows' figures.
#[derive(Debug, Default)]
struct Movement {
    aspects: BTreeMap<Aspect, f64>,
    metrics: BTreeMap<&'static str, f64>,
}

impl Movement {
    /// From series of unchanged programs.
    fn of(series: &[&Series]) -> Movement {
        let (mut aspects, mut metrics) = (BTreeMap::new(), BTreeMap::new());
        let excess = |e: &Estimate| e.difference * e.difference - e.error;
        for group in by_scenario(series, &Unsteady::default()) {
            aspects.entry(group.aspect).or_insert_with(Vec::new).push(excess(&group.estimate));
        }
        for one in series {
            if let Some(estimate) = estimate(&[one]) {
                metrics.entry(one.metric).or_insert_with(Vec::new).push(excess(&estimate));
            }
        }
        let variance = |excess: Vec<f64>| mean(&excess).unwrap_or(0.0).max(0.0);
        Movement {
            aspects: aspects.into_iter().map(|(aspect, e)| (aspect, variance(e))).collect(),
            metrics: metrics.into_iter().map(|(metric, e)| (metric, variance(e))).collect(),
        }
    }

    fn aspect(&self, aspect: Aspect) -> f64 {
        self.aspects.get(&aspect).copied().unwrap_or(0.0)
    }

    fn metric(&self, metric: &str) -> f64 {
        self.metrics.get(metric).copied().unwrap_or(0.0)
    }
}

/// One aspect of one subject in one scenario.
struct Group {
    aspect: Aspect,
    estimate: Estimate,
    test: Test,
}

fn by_scenario(series: &[&Series], unsteady: &Unsteady) -> Vec<Group> {
    let mut groups: BTreeMap<(&str, &str, Aspect, Option<&str>), Vec<&Series>> = BTreeMap::new();
    for series in series.iter().filter(|series| series.metric != "instructions") {
        if let Some((aspect, true)) = Aspect::of(series.metric) {
            let key = (
                series.row.scenario.as_str(),
                series.row.subject.as_str(),
                aspect,
                series.relative_to,
            );
            groups.entry(key).or_default().push(series);
        }
    }
    let groups =
        groups.into_iter().filter_map(|((scenario, subject, aspect, relative_to), members)| {
            let estimate =
                estimate(&members)?.widened(unsteady.of(relative_to.is_some()).aspect(aspect));
            let test = Test {
                scenario: scenario.to_owned(),
                point: None,
                subject: subject.to_owned(),
                what: aspect.name().to_owned(),
                ..estimate.test(relative_to)
            };
            Some(Group { aspect, estimate, test })
        });
    groups.collect()
}

/// The average of some series, round by round, B against A. Each is centred first, so that a round in which one of them is missing is
/// no different from the others. None with fewer than three rounds in a run.
fn estimate(series: &[&Series]) -> Option<Estimate> {
    let mut rounds: [BTreeMap<u32, Vec<f64>>; 2] = Default::default();
    for logs in series.iter().filter_map(|series| series.logs.as_ref()) {
        let means = [0, 1].map(|run: usize| mean(&logs[run].values().copied().collect::<Vec<_>>()));
        let [Some(a), Some(b)] = means else { continue };
        let centre = f64::midpoint(a, b);
        for (run, logs) in rounds.iter_mut().zip(logs) {
            for (round, log) in logs {
                run.entry(*round).or_default().push(log - centre);
            }
        }
    }
    let [a, b] = rounds.map(|run| run.values().filter_map(|logs| mean(logs)).collect::<Vec<f64>>());
    welch(&a, &b)
}

/// Welch's comparison of two means. None with fewer than three figures on a side.
#[allow(clippy::cast_precision_loss)]
fn welch(a: &[f64], b: &[f64]) -> Option<Estimate> {
    if a.len() < ENOUGH || b.len() < ENOUGH {
        return None;
    }
    let (n_a, n_b) = (a.len() as f64, b.len() as f64);
    let (e_a, e_b) = (variance(a)? / n_a, variance(b)? / n_b);
    let error = e_a + e_b;
    let df = error * error / (e_a * e_a / (n_a - 1.0) + e_b * e_b / (n_b - 1.0));
    // Without any scatter the fraction is 0/0, and the degrees of freedom do not matter.
    let df = if df.is_finite() { df } else { n_a + n_b - 2.0 };
    Some(Estimate { difference: mean(b)? - mean(a)?, error, df, rounds: (a.len(), b.len()) })
}

impl Estimate {
    fn widened(self, movement: f64) -> Estimate {
        Estimate { error: self.error + movement, ..self }
    }

    fn p(&self) -> f64 {
        match (self.difference.abs() < 1e-12, self.error > 0.0) {
            (true, _) => 1.0,
            (false, false) => 0.0,
            (false, true) => two_sided_p(self.difference / self.error.sqrt(), self.df),
        }
    }

    /// A test without its place.
    fn test(&self, relative_to: Option<&str>) -> Test {
        Test {
            scenario: String::new(),
            point: None,
            subject: String::new(),
            what: String::new(),
            better_by_percent: Some(percent(self.difference)),
            uncertainty_percent: Some(percent(t_quantile(0.975, self.df) * self.error.sqrt())),
            p: self.p(),
            medians: None,
            rounds: self.rounds,
            relative_to: relative_to.map(str::to_owned),
            outcome: Outcome::Same,
        }
    }
}

/// Each aspect over the scenarios with a reference, where there are at least two: Stouffer's sum, in which a scenario that scatters
/// wildly counts no more than a quiet one. The difference is their mean, weighted by the inverse of their squared errors.
#[allow(clippy::cast_precision_loss)]
fn over_all(groups: &[Group], unsteady: &Unsteady) -> Vec<Test> {
    let mut by_subject: BTreeMap<(&str, Aspect), Vec<&Group>> = BTreeMap::new();
    for group in groups.iter().filter(|group| group.test.relative_to.is_some()) {
        by_subject.entry((&group.test.subject, group.aspect)).or_default().push(group);
    }
    by_subject.retain(|_, groups| groups.len() >= 2);
    let tests = by_subject.into_iter().map(|((subject, aspect), groups)| {
        let count = groups.len() as f64;
        let sum: f64 = groups.iter().map(|group| group.z()).sum();
        let weight = |group: &&&Group| 1.0 / group.estimate.error.max(1e-12);
        let weights: f64 = groups.iter().map(|g| weight(&g)).sum();
        let weighted: f64 = groups.iter().map(|g| weight(&g) * g.estimate.difference).sum();
        // The machine's movement is common to the scenarios: it does not average out.
        let error = 1.0 / weights + unsteady.ratios.aspect(aspect);
        let rounds =
            |of: fn(&Estimate) -> usize| groups.iter().map(|g| of(&g.estimate)).max().unwrap_or(0);
        let rounds = (rounds(|e| e.rounds.0), rounds(|e| e.rounds.1));
        let mean = Estimate { difference: weighted / weights, error, df: NORMAL, rounds };
        let p = two_sided_p(sum / count.sqrt(), NORMAL).max(mean.p());
        let relative_to = groups.first().and_then(|group| group.test.relative_to.as_deref());
        Test {
            subject: subject.to_owned(),
            what: aspect.name().to_owned(),
            p,
            ..mean.test(relative_to)
        }
    });
    tests.collect()
}

impl Group {
    /// The place on the normal distribution that is as improbable as this test, with its sign.
    fn z(&self) -> f64 {
        let p = self.test.p.clamp(1e-12, 1.0);
        t_quantile(1.0 - p / 2.0, NORMAL) * self.estimate.difference.signum()
    }
}

/// The test of one figure of one row; None where there are no logarithms to compare.
fn row_test(series: &Series, unsteady: &Unsteady) -> Option<Test> {
    if series.metric == "instructions" || is_count(series) {
        return None;
    }
    let movement = unsteady.of(series.relative_to.is_some()).metric(series.metric);
    let estimate = estimate(&[series])?.widened(movement);
    Some(located(series, estimate.test(series.relative_to)))
}

fn located(series: &Series, test: Test) -> Test {
    Test {
        scenario: series.row.scenario.clone(),
        point: Some(text(&series.row.point)),
        subject: series.row.subject.clone(),
        what: series.metric.to_owned(),
        medians: Some((series.cells[0].median, series.cells[1].median)),
        ..test
    }
}

fn text(point: &Point) -> String {
    point.to_string()
}

/// Whether a figure counts things, of which none is a good or a bad number and no basis of a ratio.
fn is_count(series: &Series) -> bool {
    matches!(series.metric, "refused" | "stuck" | "misconfigured" | "survived")
        || series.logs.is_none()
}

/// The tests that need no statistics: instructions and counts.
fn certain(series: &Series) -> Option<Test> {
    let sign = if series.better == Better::Higher { 1.0 } else { -1.0 };
    let [a, b] =
        series.cells.map(|cell| cell.by_round.values().map(|x| sign * x).collect::<Vec<_>>());
    let (difference, outcome) = if series.metric == "instructions" {
        let difference = percent((series.cells[0].median / series.cells[1].median).ln());
        let outcome = match difference.abs() > FLOOR_INSTRUCTIONS {
            true if difference < 0.0 => Outcome::Worse,
            true => Outcome::Better,
            false => Outcome::Same,
        };
        (Some(difference), outcome)
    } else if is_count(series) {
        let all = |better: fn(f64, f64) -> bool| b.iter().all(|b| a.iter().all(|a| better(*b, *a)));
        let agree = |run: &[f64]| run.windows(2).all(|two| two[0].total_cmp(&two[1]).is_eq());
        // Were it chance, one side would have to agree five times and the other to disagree with it five times.
        let outcome = match (agree(&a), agree(&b)) {
            (true, _) if all(|b, a| b < a) => Outcome::Worse,
            (_, true) if all(|b, a| b > a) => Outcome::Better,
            _ => Outcome::Same,
        };
        (None, outcome)
    } else {
        return None;
    };
    let nothing = Estimate { difference: 0.0, error: 0.0, df: 1.0, rounds: (a.len(), b.len()) };
    let p = if outcome == Outcome::Same { 1.0 } else { 0.0 };
    let test = nothing.test(None);
    Some(located(
        series,
        Test { better_by_percent: difference, uncertainty_percent: None, p, outcome, ..test },
    ))
}

/// Holm's method (Scandinavian Journal of Statistics 6, 1979): the probability that any of these is called a difference though none is one stays
/// below `alpha`. Below the floor nothing is called one.
#[allow(clippy::cast_precision_loss)]
pub(super) fn holm(mut tests: Vec<&mut Test>, alpha: f64) {
    tests.sort_by(|a, b| a.p.total_cmp(&b.p));
    let count = tests.len();
    for (i, test) in tests.into_iter().enumerate() {
        if test.p > alpha / (count - i) as f64 {
            return;
        }
        let floor = if test.relative_to.is_some() { FLOOR } else { FLOOR_ABSOLUTE };
        let difference = test.better_by_percent.unwrap_or(0.0);
        // A loss of x percent is as far from 0 as the gain that makes up for it.
        let beyond = (difference / 100.0).ln_1p().abs() > (floor / 100.0).ln_1p();
        test.outcome = match beyond {
            true if difference < 0.0 => Outcome::Worse,
            true => Outcome::Better,
            false => Outcome::Same,
        };
    }
}

/// In one sentence.
fn verdict(overall: &[Test], scenarios: &[Test], rows: &[Test]) -> String {
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
        // Rows are named only where their scenario is not.
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

/// Whether `slower` and `faster` are the words for it.
fn is_speed(test: &Test) -> bool {
    let aspects = [Aspect::Speed, Aspect::Cpu, Aspect::Latency];
    let named =
        aspects.iter().any(|aspect| aspect.name() == test.what) || test.what == "instructions";
    named || Aspect::of(&test.what).is_some_and(|(aspect, _)| aspects.contains(&aspect))
}

/// `mp-1 adit speed -8.1 %`.
fn phrase(test: &Test) -> String {
    let point = test.point.as_deref().unwrap_or_default();
    let words = [test.scenario.as_str(), point, &test.subject, &test.what];
    let words: Vec<&str> = words.into_iter().filter(|word| !word.is_empty()).collect();
    match test.better_by_percent {
        Some(difference) => format!("{} {difference:+.1} %", words.join(" ")),
        None => words.join(" "),
    }
}

/// What could not be compared, and how the rest was.
fn warnings(a: &Summary, b: &Summary, rows: &[Test]) -> Vec<String> {
    let mut warnings = Vec::new();
    let adit = |row: &&Row| row.subject.starts_with("adit") && row.skipped.is_none();
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
            "absolute figures were compared where no reference ran beside adit, so that differences below {FLOOR_ABSOLUTE} % say nothing there: {}",
            scenarios.join(", ")
        ));
    }
    warnings
}
