//! Tests with known answers, and simulated runs that show how often a comparison errs.

use std::collections::BTreeMap;
use std::process::ExitCode;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};

use super::{Arguments, Comparison, Outcome, Test, compare};
use crate::record::{self, Measurement, Point, Record, TrialKey};
use crate::stats::{Cell, Row, Summary, logs, median, percent, sd, smallest_detectable};

/// Returns a normally distributed number, by the method of Box and Muller.
fn normal(random: &mut ChaCha8Rng) -> f64 {
    let mut uniform = || ((random.next_u64() >> 11) as f64 + 0.5) / (1_u64 << 53) as f64;
    (-2.0 * uniform().ln()).sqrt() * (std::f64::consts::TAU * uniform()).cos()
}

fn cell(figures: &[f64]) -> Cell {
    let spread = logs(figures).and_then(|logs| sd(&logs));
    let sdd = spread.and_then(|sd| smallest_detectable(sd, figures.len()));
    Cell {
        median: median(figures).unwrap(),
        interval: None,
        by_round: (1..).zip(figures.iter().copied()).collect(),
        sdd_percent: sdd.map(percent),
        ratio: None,
    }
}

fn row(scenario: &str, point: usize, subject: &str, values: BTreeMap<String, Cell>) -> Row {
    Row {
        scenario: scenario.into(),
        kind: "throughput".into(),
        point: Point([("clients".to_owned(), point.to_string())].into()),
        subject: subject.into(),
        is_reference: subject == "openvpn",
        values,
        rounds: (1..=5).collect(),
        marked: vec![],
        not_counted: vec![],
        skipped: None,
        invalid: None,
    }
}

fn of(rows: Vec<Row>) -> Summary {
    Summary { rows, ..Summary::default() }
}

fn one(name: &str, figures: &[f64]) -> BTreeMap<String, Cell> {
    [(name.to_owned(), cell(figures))].into()
}

/// A plan similar to `standard`: scenarios with their points, 20 points and four figures each, so that adit has 80.
const PLAN: [(&str, usize); 10] = [
    ("single", 1),
    ("wire", 2),
    ("many", 3),
    ("latency", 1),
    ("loss", 5),
    ("connections", 1),
    ("growth", 4),
    ("cipher", 1),
    ("jumbo", 1),
    ("outer-v6", 1),
];
const FIGURES: [(&str, f64); 4] =
    [("up_mbps", 1.0), ("down_mbps", 1.0), ("server_cpu_s_per_gb", -1.0), ("p99_ms", -1.0)];

/// The parameters of a simulated run.
#[derive(Clone)]
struct Machine {
    /// The minimum and the maximum noise of one figure from round to round; it is different for each point.
    noise: (f64, f64),
    /// The offset of a whole run, the same for all subjects.
    drift: f64,
    /// The offset of one subject in one whole run, different in each scenario.
    moody: f64,
    /// The offset of one subject in one whole run, the same in all scenarios.
    common: f64,
    /// The slowdown of adit, by scenario (empty: everywhere).
    slower: Option<(&'static str, f64)>,
}

fn simulate(machine: &Machine, random: &mut ChaCha8Rng) -> Summary {
    let drift = machine.drift * normal(random);
    let common = [0; 4].map(|_| machine.common * normal(random));
    let mut rows = Vec::new();
    for (scenario, points) in PLAN {
        let moods = common.map(|common| common + machine.moody * normal(random));
        for point in 0..points {
            let rounds = [0; 5].map(|_| 0.02 * normal(random));
            let spread = machine.noise.1 - machine.noise.0;
            // It differs from point to point, but is the same in both runs.
            let place = f64::from(u8::try_from((point * 7 + scenario.len()) % 5).unwrap()) / 4.0;
            let noise = machine.noise.0 + spread * place;
            for (subject, mood) in ["adit", "bare", "openvpn", "tinc"].into_iter().zip(moods) {
                let slower = match machine.slower {
                    Some((at, by)) if subject == "adit" && (at.is_empty() || at == scenario) => {
                        (1.0 - by).ln()
                    }
                    _ => 0.0,
                };
                let values = FIGURES.map(|(name, sign)| {
                    let figures = rounds.map(|round| {
                        1000.0
                            * (sign * (drift + mood + round + slower + noise * normal(random)))
                                .exp()
                    });
                    (name.to_owned(), cell(&figures))
                });
                rows.push(row(scenario, point, subject, values.into()));
            }
        }
    }
    of(rows)
}

/// Returns the share of this many pairs of runs for which `found` holds; the second run of each pair has the slower
/// build.
fn share(machine: &Machine, pairs: u32, found: impl Fn(&Comparison) -> bool) -> f64 {
    let mut random = ChaCha8Rng::seed_from_u64(4711);
    let before = Machine { slower: None, ..machine.clone() };
    let mut count = 0;
    for _ in 0..pairs {
        let (a, b) = (simulate(&before, &mut random), simulate(machine, &mut random));
        count += u32::from(found(&compare(&a, &b)));
    }
    f64::from(count) / f64::from(pairs)
}

const STEADY: Machine =
    Machine { noise: (0.01, 0.05), drift: 0.05, moody: 0.0, common: 0.0, slower: None };

fn any(comparison: &Comparison) -> bool {
    let tests = comparison.overall.iter().chain(&comparison.scenarios).chain(&comparison.rows);
    tests.clone().any(|test| test.outcome != Outcome::Same)
}

fn worse_in(comparison: &Comparison, scenario: &str) -> bool {
    let tests = comparison.scenarios.iter().chain(&comparison.rows);
    tests.clone().any(|test| test.scenario == scenario && test.outcome == Outcome::Worse)
}

#[test]
fn an_unchanged_build_is_rarely_flagged() {
    let flagged = share(&STEADY, 200, any);
    assert!(flagged <= 0.05, "{flagged} of all comparisons are false alarms");
}

/// Each subject is faster or slower throughout a run, and its five rounds agree with each other. Only the unchanged
/// programs reveal this; nothing within a run does.
#[test]
fn nor_is_it_on_a_moody_machine() {
    let machines = [
        Machine { moody: 0.01, ..STEADY },
        Machine { moody: 0.03, ..STEADY },
        Machine { common: 0.01, ..STEADY },
        Machine { common: 0.03, ..STEADY },
    ];
    let flagged = machines.map(|machine| share(&machine, 50, any));
    assert!(flagged.iter().sum::<f64>() / 4.0 <= 0.05, "{flagged:?}");
    assert!(flagged.iter().all(|share| *share <= 0.1), "{flagged:?}");
}

#[test]
fn ten_percent_in_one_scenario_is_found_there() {
    for scenario in ["many", "single"] {
        let machine = Machine { noise: (0.02, 0.02), slower: Some((scenario, 0.1)), ..STEADY };
        let found = share(&machine, 30, |c| c.worse && worse_in(c, scenario));
        assert!(found >= 0.9, "{found} in {scenario}");
    }
}

#[test]
fn three_percent_everywhere_is_found() {
    let machine = Machine { slower: Some(("", 0.03)), ..STEADY };
    let found = share(&machine, 40, |c| c.worse);
    assert!(found >= 0.8, "{found}");
    let better = |c: &Comparison| c.overall.iter().any(|test| test.outcome == Outcome::Better);
    assert!(share(&machine, 20, better) < 0.01);
}

/// The noise of a ratio's difference is 0.9 times that of one figure, and the SDD is twice as large, so the larger SDD
/// of two runs is exceeded about once in thirty.
#[test]
fn two_runs_of_the_same_build_agree_within_the_sdd_they_print() {
    let mut random = ChaCha8Rng::seed_from_u64(17);
    let (mut within, mut all) = (0, 0);
    for _ in 0..20 {
        let runs = [0; 2].map(|_| simulate(&STEADY, &mut random));
        let got = compare(&runs[0], &runs[1]).within_sdd;
        (within, all) = (within + got.0, all + got.1);
    }
    assert_eq!(all, 20 * 80);
    let count = |n: usize| f64::from(u32::try_from(n).unwrap());
    let share = count(within) / count(all);
    assert!((0.94..0.995).contains(&share), "{share}");
}

#[test]
fn less_than_the_floor_is_never_called_slower() {
    let machine = Machine { noise: (0.0005, 0.0005), slower: Some(("", 0.015)), ..STEADY };
    assert!(share(&machine, 20, any) < 0.01);
}

fn find<'a>(tests: &'a [Test], what: &str) -> &'a Test {
    tests.iter().find(|test| test.what == what).unwrap_or_else(|| panic!("no {what} in {tests:?}"))
}

#[test]
fn a_drift_of_all_subjects_is_none_of_adit() {
    let run = |factor: f64| {
        let scaled = |figures: [f64; 5]| one("up_mbps", &figures.map(|figure| figure * factor));
        of(vec![
            row("mp-1", 5, "adit", scaled([1000.0, 1010.0, 990.0, 1005.0, 995.0])),
            row("mp-1", 5, "openvpn", scaled([100.0, 101.0, 99.0, 100.5, 99.5])),
        ])
    };
    let got = compare(&run(1.0), &run(0.7));
    assert_eq!(got.verdict, "no difference beyond what these runs can tell");
    assert!(!got.worse);
    let row = find(&got.rows, "up_mbps");
    assert_eq!(row.relative_to.as_deref(), Some("openvpn"));
    assert!(row.better_by_percent.unwrap().abs() < 1e-9);
    assert_eq!(row.medians, Some((1000.0, 700.0)));
    // The drift that is shown is openvpn's: 30 % slower.
    assert_eq!(got.drift.len(), 1);
    assert!((find(&got.drift, "speed").better_by_percent.unwrap() + 30.0).abs() < 1e-9);
}

/// Logarithms of A 0 0.01 0.02, of B 0.20 0.21 0.22: difference 0.2, error sqrt(2 * 1e-4/3), df 4, t = 24.5, two-sided
/// p = 1.65e-5.
#[test]
fn welch_by_hand() {
    let of =
        |figures: [f64; 3]| of(vec![row("s", 1, "adit", one("p99_ms", &figures.map(f64::exp)))]);
    let got = compare(&of([0.0, 0.01, 0.02]), &of([0.20, 0.21, 0.22]));
    let test = find(&got.rows, "p99_ms");
    assert!((test.p - 1.65e-5).abs() < 2e-7, "{}", test.p);
    assert!((test.better_by_percent.unwrap() - 100.0 * (-0.2_f64).exp_m1()).abs() < 1e-9);
    // t(0.975, 4) * 0.0081650 = 0.022670.
    assert!((test.uncertainty_percent.unwrap() - 2.2929).abs() < 1e-3);
    assert_eq!(
        (test.outcome, test.relative_to.as_deref(), test.rounds),
        (Outcome::Worse, None, (3, 3))
    );
    assert_eq!(
        got.verdict,
        "B is slower than A in 1 of 1 scenarios: s clients=1 adit p99_ms -18.1 %"
    );
    assert!(got.warnings[0].starts_with("absolute figures"), "{:?}", got.warnings);
}

/// 0.01, 0.02 and 0.03 at 5 %: the first is below 0.05/3, the second not above 0.05/2, the third not above 0.05. With
/// 0.03 in the second place, the procedure stops there.
#[test]
fn holms_method() {
    let test = |p: f64| Test {
        scenario: String::new(),
        point: None,
        subject: String::new(),
        what: String::new(),
        better_by_percent: Some(-50.0),
        uncertainty_percent: None,
        sdd_percent: None,
        p,
        medians: None,
        rounds: (5, 5),
        relative_to: None,
        outcome: Outcome::Same,
    };
    let flagged = |ps: [f64; 3]| {
        let mut tests = ps.map(test);
        super::estimate::holm(tests.iter_mut().collect(), 0.05);
        tests.map(|test| test.outcome == Outcome::Worse)
    };
    assert_eq!(flagged([0.03, 0.01, 0.02]), [true, true, true]);
    assert_eq!(flagged([0.03, 0.01, 0.03]), [false, true, false]);
    assert_eq!(flagged([0.02, 0.02, 0.02]), [false, false, false]);
}

#[test]
fn instructions_repeat_so_any_difference_counts() {
    let run = |count: f64| {
        let mut only = row("instructions", 1, "adit", one("instructions", &[count]));
        only.kind = "instructions".into();
        of(vec![only])
    };
    let outcome = |b: f64| compare(&run(1e6), &run(b));
    assert_eq!(outcome(1_004_000.0).rows[0].outcome, Outcome::Same);
    assert!(
        (outcome(1_004_000.0).rows[0].better_by_percent.unwrap() + 0.398).abs() < 1e-3,
        "it is shown"
    );
    assert_eq!(outcome(990_000.0).rows[0].outcome, Outcome::Better);
    let slower = outcome(1_010_000.0);
    assert!(slower.worse);
    assert_eq!(
        slower.verdict,
        "B is slower than A in 1 of 1 scenarios: instructions clients=1 adit instructions -1.0 %"
    );
}

#[test]
fn counts_are_worse_where_all_of_b_is_worse_than_a_steady_a() {
    let run =
        |name: &str, figures: &[f64]| of(vec![row("overload", 1, "adit", one(name, figures))]);
    let outcome =
        |name: &str, a: &[f64], b: &[f64]| compare(&run(name, a), &run(name, b)).rows[0].outcome;
    assert_eq!(outcome("stuck", &[0.0; 5], &[2.0, 1.0, 4.0, 1.0, 3.0]), Outcome::Worse);
    assert_eq!(outcome("stuck", &[0.0; 5], &[2.0, 0.0, 4.0, 1.0, 3.0]), Outcome::Same);
    assert_eq!(outcome("stuck", &[1.0, 2.0, 1.0, 3.0, 1.0], &[0.0; 5]), Outcome::Better);
    assert_eq!(outcome("survived", &[1.0; 3], &[0.0; 3]), Outcome::Worse);
    assert_eq!(outcome("survived", &[1.0; 3], &[1.0; 3]), Outcome::Same);
    // If one of the times is zero, they have no logarithms, and a difference between them is not reported as slower.
    assert_eq!(outcome("recovery_s", &[0.0, 0.2, 0.1], &[0.2, 0.1, 0.3]), Outcome::Same);
}

#[test]
fn what_has_no_counterpart_is_named() {
    let a = of(vec![row("x", 1, "adit", one("up_mbps", &[1.0; 5]))]);
    let mut broken = a.clone();
    broken.rows[0].invalid = Some("2 of 5 rounds".into());
    let got = compare(&a, &broken);
    assert_eq!(got.verdict, "nothing to compare: the runs share no valid result of adit");
    assert!(got.warnings[0].contains("no valid counterpart") && !got.worse);
    assert!(got.warnings[0].contains("x clients=1 adit"), "{:?}", got.warnings);
}

/// One of four rounds in A lacks the point that is ten times faster. Centring keeps that round's average where it
/// belongs.
#[test]
fn a_missing_figure_moves_no_average() {
    let run = |fast: &[f64]| {
        of(vec![
            row("x", 1, "adit", one("up_mbps", fast)),
            row("x", 2, "adit", one("up_mbps", &[10.0, 10.1, 9.9, 10.0])),
        ])
    };
    let got = compare(&run(&[100.0, 101.0, 99.0]), &run(&[100.0, 101.0, 99.0, 100.0]));
    let speed = find(&got.scenarios, "speed");
    assert!(speed.better_by_percent.unwrap().abs() < 0.2, "{speed:?}");
    assert_eq!(speed.rounds, (4, 4));
}

/// Covers the whole path from the trials in two folders to the exit code.
#[test]
fn two_folders() {
    let folder = |adit: f64| {
        let dir = tempfile::tempdir().unwrap();
        let mut lines = String::new();
        for round in 1..=5 {
            for (subject, mbps) in [("adit", adit), ("openvpn", 700.0)] {
                let mut measured = Measurement::default();
                measured.set("sum_mbps", mbps * (1.0 + 0.002 * f64::from(round)));
                let key = TrialKey {
                    scenario: "single-stream".into(),
                    point: Point([("link".to_owned(), "offload".to_owned())].into()),
                    subject: subject.into(),
                    round,
                };
                let record = Record {
                    key,
                    kind: "throughput".into(),
                    a_a: false,
                    started_ms: 0,
                    seconds: 1.0,
                    outcome: record::Outcome::Measured(measured),
                };
                lines += &(serde_json::to_string(&record).unwrap() + "\n");
            }
        }
        std::fs::write(dir.path().join("trials.jsonl"), lines).unwrap();
        dir
    };
    let (fast, slow) = (folder(9000.0), folder(8000.0));
    let exit = |a: &tempfile::TempDir, b: &tempfile::TempDir, json| {
        let paths = Arguments { a: a.path().into(), b: b.path().into(), json };
        format!("{:?}", super::run(&paths).unwrap())
    };
    let code = |code: ExitCode| format!("{code:?}");
    assert_eq!(exit(&fast, &fast, false), code(ExitCode::SUCCESS));
    assert_eq!(exit(&fast, &slow, false), code(ExitCode::FAILURE));
    assert_eq!(exit(&slow, &fast, true), code(ExitCode::SUCCESS));
    let nowhere = Arguments { a: fast.path().join("no"), b: slow.path().into(), json: false };
    assert!(super::run(&nowhere).unwrap_err().0.contains("name the folder"));
}
