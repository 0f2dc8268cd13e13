//! The tests. The documentation of [`super`] describes and explains them.

use std::collections::{BTreeMap, BTreeSet};

use super::estimate::{Estimate, RunVariance, estimate, holm};
use super::series::{Aspect, Series, all_series};
use super::wording::{verdict, warnings};
use super::{
    ALPHA_OVERALL, ALPHA_ROW, ALPHA_SCENARIO, Comparison, FLOOR_INSTRUCTIONS, Outcome, Test,
};
use crate::metric::Better;
use crate::stats::{Cell, Summary, percent, t_quantile, two_sided_p};
use crate::subject::has_adit;

/// Degrees of freedom at which Student's distribution is practically the normal one.
const NORMAL: f64 = 1e5;

/// Compares the runs A and B by the rules in the documentation of the parent module. The result is deterministic.
pub fn compare(a: &Summary, b: &Summary) -> Comparison {
    let relative = all_series(a, b, true);
    let absolute = all_series(a, b, false);
    let judged = |series: &&Series<'_>| has_adit(&series.row.subject);
    let (adit, controls): (Vec<&Series<'_>>, Vec<&Series<'_>>) = relative.iter().partition(judged);
    let peers: Vec<&Series<'_>> = absolute.iter().filter(|series| !judged(series)).collect();
    let ratios: Vec<&Series<'_>> =
        controls.into_iter().filter(|s| s.relative_to.is_some()).collect();
    let unsteady =
        BaselineMovement { ratios: MovementSet::of(&ratios), absolute: MovementSet::of(&peers) };
    let common = gathered(over_all(&by_scenario(&ratios, &unsteady), &Movements::new()));

    let mut groups = by_scenario(&adit, &unsteady);
    let mut overall = over_all(&groups, &common);
    let mut rows: Vec<Test> =
        adit.iter().filter_map(|series| row_test(series, &unsteady)).collect();
    let tests = |groups: &mut [Group], alpha| {
        holm(groups.iter_mut().map(|group| &mut group.test).collect(), alpha);
    };
    tests(&mut groups, ALPHA_SCENARIO);
    tests(&mut overall, ALPHA_OVERALL);
    holm(rows.iter_mut().collect(), ALPHA_ROW);
    rows.extend(adit.iter().filter_map(|series| certain(series)));
    rows.sort_by_key(|test| test.scenario.clone());
    let tests = |groups: Vec<Group>| groups.into_iter().map(|group| group.test).collect::<Vec<_>>();
    let drift = tests(by_scenario(&peers, &BaselineMovement::default()));
    let (overall, scenarios) = (tests(overall), tests(groups));
    let within_sdd = within_sdd(&rows);
    let all = || overall.iter().chain(&scenarios).chain(&rows);
    Comparison {
        verdict: verdict(&overall, &scenarios, &rows),
        worse: all().any(|test| test.outcome == Outcome::Worse),
        warnings: warnings(a, b, &rows),
        overall,
        scenarios,
        rows,
        within_sdd,
        drift,
    }
}

/// Returns the number of rows' figures that agree within their SDD, and the number compared.
fn within_sdd(rows: &[Test]) -> (usize, usize) {
    let log = |percent: f64| (percent / 100.0).ln_1p().abs();
    let both = rows.iter().filter_map(|test| Some((test.better_by_percent?, test.sdd_percent?)));
    let agree: Vec<bool> = both.map(|(off, sdd)| log(off) <= log(sdd)).collect();
    (agree.iter().filter(|agree| **agree).count(), agree.len())
}

/// The drift of unchanged programs between the runs, in ratios and in absolute figures.
#[derive(Debug, Default)]
struct BaselineMovement {
    ratios: MovementSet,
    absolute: MovementSet,
}

impl BaselineMovement {
    fn of(&self, relative: bool) -> &MovementSet {
        if relative { &self.ratios } else { &self.absolute }
    }
}

type Movements = BTreeMap<Aspect, RunVariance>;

/// The drift of the aspects of a scenario, and of single figures of a row.
#[derive(Debug, Default)]
struct MovementSet {
    aspects: Movements,
    metrics: BTreeMap<&'static str, RunVariance>,
}

impl MovementSet {
    /// Computes the drift from series of unchanged programs.
    fn of(series: &[&Series<'_>]) -> Self {
        let of = |one: &&Series<'_>| Some((one.metric, one.row.subject.clone(), estimate(&[one])?));
        Self {
            aspects: gathered(by_scenario(series, &BaselineMovement::default())),
            metrics: movements(series.iter().filter_map(of)),
        }
    }

    fn aspect(&self, aspect: Aspect) -> RunVariance {
        self.aspects.get(&aspect).copied().unwrap_or_default()
    }

    fn metric(&self, metric: &str) -> RunVariance {
        self.metrics.get(metric).copied().unwrap_or_default()
    }
}

/// Returns the drift that groups of unchanged programs show, by aspect.
fn gathered(groups: Vec<Group>) -> Movements {
    movements(groups.into_iter().map(|group| (group.aspect, group.test.subject, group.estimate)))
}

/// Groups the drift of these programs by the key of each measurement.
fn movements<K: Ord>(all: impl Iterator<Item = (K, String, Estimate)>) -> BTreeMap<K, RunVariance> {
    let mut by_kind: BTreeMap<K, (BTreeSet<String>, Vec<Estimate>)> = BTreeMap::new();
    for (kind, program, estimate) in all {
        let (programs, estimates) = by_kind.entry(kind).or_default();
        programs.insert(program);
        estimates.push(estimate);
    }
    let movement =
        |(programs, estimates): (BTreeSet<_>, Vec<_>)| RunVariance::of(&estimates, programs.len());
    by_kind.into_iter().map(|(kind, seen)| (kind, movement(seen))).collect()
}

/// One aspect of one subject in one scenario.
struct Group {
    aspect: Aspect,
    estimate: Estimate,
    test: Test,
}

fn by_scenario(series: &[&Series<'_>], unsteady: &BaselineMovement) -> Vec<Group> {
    let mut groups: BTreeMap<(&str, &str, Aspect, Option<&str>), Vec<&Series<'_>>> =
        BTreeMap::new();
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

/// Returns each aspect over the scenarios with a reference, if there are at least two. This is Stouffer's sum, in which
/// a scenario with much noise counts no more than a quiet one. The difference is their mean, weighted by the inverse of
/// their squared errors. `common`, the drift of unchanged programs over all their scenarios, is added to its error,
/// because it does not average out.
fn over_all(groups: &[Group], common: &Movements) -> Vec<Group> {
    let mut by_subject: BTreeMap<(&str, Aspect), Vec<&Group>> = BTreeMap::new();
    for group in groups.iter().filter(|group| group.test.relative_to.is_some()) {
        by_subject.entry((&group.test.subject, group.aspect)).or_default().push(group);
    }
    by_subject.retain(|_, groups| groups.len() >= 2);
    let tests = by_subject.into_iter().map(|((subject, aspect), groups)| {
        let sum: f64 = groups.iter().map(|group| group.z()).sum();
        let stouffer = two_sided_p(sum / (groups.len() as f64).sqrt(), NORMAL);
        let estimate = weighted(&groups).widened(common.get(&aspect).copied().unwrap_or_default());
        let relative_to = groups.first().and_then(|group| group.test.relative_to.as_deref());
        let test = Test {
            subject: subject.to_owned(),
            what: aspect.name().to_owned(),
            p: stouffer.max(estimate.p()),
            ..estimate.test(relative_to)
        };
        Group { aspect, estimate, test }
    });
    tests.collect()
}

/// Returns the mean of estimates, weighted by the inverse of their squared errors.
fn weighted(groups: &[&Group]) -> Estimate {
    let all = || groups.iter().map(|group| &group.estimate);
    let weight = |estimate: &Estimate| 1.0 / estimate.error.max(1e-12);
    let weights: f64 = all().map(weight).sum();
    let sum: f64 = all().map(|estimate| weight(estimate) * estimate.difference).sum();
    let rounds = (all().map(|e| e.rounds.0).max(), all().map(|e| e.rounds.1).max());
    Estimate {
        difference: sum / weights,
        error: 1.0 / weights,
        df: NORMAL,
        rounds: (rounds.0.unwrap_or(0), rounds.1.unwrap_or(0)),
    }
}

impl Group {
    /// Returns the position on the normal distribution that is as improbable as this test, with its sign.
    fn z(&self) -> f64 {
        let p = self.test.p.clamp(1e-12, 1.0);
        t_quantile(1.0 - p / 2.0, NORMAL) * self.estimate.difference.signum()
    }
}

/// Returns the test of one figure of one row; `None` if there are no logarithms to compare.
fn row_test(series: &Series<'_>, unsteady: &BaselineMovement) -> Option<Test> {
    if series.metric == "instructions" || is_count(series) {
        return None;
    }
    let movement = unsteady.of(series.relative_to.is_some()).metric(series.metric);
    let estimate = estimate(&[series])?.widened(movement);
    Some(located(series, estimate.test(series.relative_to)))
}

fn located(series: &Series<'_>, test: Test) -> Test {
    // The compared value: the ratio if there is one.
    let relative = |cell: &&Cell| {
        let ratio = cell.ratio.as_ref().filter(|_| series.relative_to.is_some());
        ratio.and_then(|ratio| ratio.sdd_percent).or(cell.sdd_percent)
    };
    let sdd: Vec<f64> = series.cells.iter().filter_map(relative).collect();
    Test {
        scenario: series.row.scenario.clone(),
        point: Some(series.row.point.to_string()),
        subject: series.row.subject.clone(),
        what: series.metric.to_owned(),
        sdd_percent: sdd.into_iter().reduce(f64::max),
        medians: Some((series.cells[0].median, series.cells[1].median)),
        ..test
    }
}

/// Returns whether a figure is a count that is normally zero and cannot be the basis of a ratio.
fn is_count(series: &Series<'_>) -> bool {
    matches!(series.metric, "refused" | "stuck" | "misconfigured" | "survived")
        || series.logs.is_none()
}

/// Returns the result for figures that need no statistics: instructions and counts.
fn certain(series: &Series<'_>) -> Option<Test> {
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
        // By chance alone, one side would have to agree five times, and the other to differ from it five times.
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
