//! Tests of [`summarise`] with known answers.

use super::*;
use crate::record::TrialKey;

fn trial(subject: &str, round: u32, figures: &[(&str, f64)]) -> Record {
    let point = Point([("clients".to_owned(), "5".to_owned())].into());
    let mut measured = Measurement::default();
    for (name, figure) in figures {
        measured.set(name, *figure);
    }
    Record {
        key: TrialKey { scenario: "mp-1".into(), point, subject: subject.into(), round },
        kind: "throughput".into(),
        a_a: false,
        started_ms: 0,
        seconds: 1.0,
        outcome: Outcome::Measured(measured),
    }
}

fn measured(record: &mut Record) -> &mut Measurement {
    match &mut record.outcome {
        Outcome::Measured(measured) => measured,
        _ => panic!("it was not measured"),
    }
}

fn rounds(subject: &str, name: &str, figures: &[f64]) -> Vec<Record> {
    (1..).zip(figures).map(|(round, figure)| trial(subject, round, &[(name, *figure)])).collect()
}

fn find<'a>(summary: &'a Summary, subject: &str) -> &'a Row {
    summary.rows.iter().find(|row| row.subject == subject).unwrap()
}

#[test]
fn ratios_are_of_the_same_round_and_cancel_what_both_suffered() {
    // The machine halves its speed from round to round; adit stays at ten times openvpn.
    let mut all = rounds("openvpn", "up_mbps", &[800.0, 400.0, 200.0, 100.0, 50.0]);
    all.extend(rounds("adit", "up_mbps", &[8000.0, 4040.0, 1980.0, 1010.0, 495.0]));
    all.reverse();
    let summary = summarise(&all);
    let adit = &find(&summary, "adit").values["up_mbps"];
    let ratio = adit.ratio.as_ref().unwrap();
    assert_eq!((ratio.reference.as_str(), ratio.pairs), ("openvpn", 5));
    assert!((ratio.median - 10.0).abs() < 1e-9);
    let interval = ratio.interval.unwrap();
    assert!(interval.low > 9.8 && interval.high < 10.2, "{interval:?}");
    assert!((adit.median - 1980.0).abs() < 1e-9);
    // The logarithms are ln 2 apart: s = ln 2 * sqrt(2.5), and the SDD (3.1949 * s * sqrt(0.4)) is 815 %, still below
    // ten times.
    let sdd = adit.sdd_percent.unwrap();
    assert!((700.0..900.0).contains(&sdd), "{sdd}");
    assert_eq!(ratio.verdict, Verdict::Ahead);
    assert!(find(&summary, "openvpn").is_reference && !find(&summary, "adit").is_reference);
    assert_eq!(find(&summary, "openvpn").values["up_mbps"].ratio, None);
}

#[test]
fn nothing_inside_the_noise_is_called_a_win() {
    let verdict = |name: &str, figures: &[f64]| {
        let mut all = rounds("openvpn", name, &[100.0, 100.0, 100.0, 100.0, 100.0]);
        all.extend(rounds("adit", name, figures));
        find(&summarise(&all), "adit").values[name].ratio.clone().unwrap().verdict
    };
    assert_eq!(verdict("up_mbps", &[110.0, 112.0, 111.0, 109.0, 111.0]), Verdict::Ahead);
    assert_eq!(verdict("up_mbps", &[90.0, 91.0, 89.0, 90.5, 90.0]), Verdict::Behind);
    // For CPU time, less is better.
    assert_eq!(verdict("p50_ms", &[90.0, 91.0, 89.0, 90.5, 90.0]), Verdict::Ahead);
    // Four of five rounds are better, one is not: the interval contains 1.
    assert_eq!(verdict("up_mbps", &[105.0, 104.0, 99.0, 103.0, 106.0]), Verdict::InsideTheNoise);
    // Always better, and by more than the interval, but by less than the SDD: s = 1 %, SDD 2 %, difference 1.5 %.
    let slight = [101.0, 102.5, 100.5, 101.5, 102.9];
    assert_eq!(verdict("up_mbps", &slight), Verdict::InsideTheNoise);
    // Two pairs are too few for a verdict.
    assert_eq!(verdict("up_mbps", &[200.0, 201.0]), Verdict::Invalid);
}

#[test]
fn invalid_and_broken_trials_do_not_count() {
    let mut all = rounds("adit", "up_mbps", &[100.0, 101.0, 5.0, 102.0, 7.0]);
    measured(&mut all[2]).invalid.push("start skew of 3 %".into());
    all[4].outcome = Outcome::Failed("the server died".into());
    let summary = summarise(&all);
    let row = find(&summary, "adit");
    assert_eq!(row.rounds, [1, 2, 4]);
    assert!((row.values["up_mbps"].median - 101.0).abs() < 1e-9);
    let reasons = [(3, "start skew of 3 %".to_owned()), (5, "failed: the server died".to_owned())];
    assert_eq!(row.not_counted, reasons);
    assert_eq!(row.invalid, None);
    measured(&mut all[0]).invalid.push("coverage of 40 %".into());
    let summary = summarise(&all);
    let row = find(&summary, "adit");
    assert!(row.invalid.as_ref().unwrap().starts_with("2 of 5 rounds"), "{row:?}");
    assert!((row.values["up_mbps"].median - 101.5).abs() < 1e-9, "it is shown all the same");
    assert!(summary.warnings.iter().any(|w| w.starts_with("1 of 1 results")), "{summary:?}");
}

#[test]
fn stolen_time_marks_a_trial() {
    let mut all = rounds("adit", "up_mbps", &[100.0, 50.0, 102.0, 101.0]);
    measured(&mut all[1]).steal = 0.011;
    measured(&mut all[0]).steal = 0.01;
    let summary = summarise(&all);
    let row = find(&summary, "adit");
    assert_eq!(
        (row.rounds.as_slice(), row.marked.as_slice()),
        ([1, 3, 4].as_slice(), [2].as_slice())
    );
    assert_eq!(row.invalid, None);
    // With only two unmarked rounds, none is left out, and the result is invalid.
    measured(&mut all[0]).steal = 0.2;
    let summary = summarise(&all);
    let row = find(&summary, "adit");
    assert_eq!(
        (row.rounds.as_slice(), row.marked.as_slice()),
        ([1, 2, 3, 4].as_slice(), [1, 2].as_slice())
    );
    assert!(row.invalid.is_some());
}

#[test]
fn what_was_skipped_says_why() {
    let mut all = rounds("adit", "up_mbps", &[1.0, 1.0, 1.0]);
    let mut tinc = trial("tinc", 1, &[]);
    tinc.outcome = Outcome::Skipped("install tinc".into());
    all.push(tinc);
    let summary = summarise(&all);
    let row = find(&summary, "tinc");
    assert_eq!(
        (row.skipped.as_deref(), row.invalid.as_deref()),
        (Some("install tinc"), Some("install tinc"))
    );
    assert!(summary.warnings.is_empty(), "{summary:?}");
    // Without openvpn the first measured subject is the reference.
    assert!(find(&summary, "adit").is_reference);
}

#[test]
fn over_another_transport_openvpn_over_the_same_is_the_reference() {
    let mut all = rounds("adit-tcp", "up_mbps", &[8.0, 8.0, 8.0]);
    all.extend(rounds("openvpn-tcp/adit-tcp", "up_mbps", &[2.0, 2.0, 2.0]));
    all.extend(rounds("openvpn-tcp", "up_mbps", &[1.0, 1.0, 1.0]));
    let summary = summarise(&all);
    assert!(find(&summary, "openvpn-tcp").is_reference);
    assert!(!find(&summary, "openvpn-tcp/adit-tcp").is_reference);
}

#[test]
fn instructions_need_one_round() {
    let mut one = trial("adit", 1, &[("instructions", 4711.0)]);
    one.kind = "instructions".into();
    assert_eq!(summarise(&[one]).rows[0].invalid, None);
}

fn a_a(side: &str, figures: &[f64]) -> Vec<Record> {
    let mut all = rounds(&format!("adit#{side}"), "up_mbps", figures);
    all.iter_mut().for_each(|record| record.a_a = true);
    all
}

#[test]
fn a_a_gives_the_noise_to_the_rows() {
    let mut all = a_a("a", &[100.0, 104.0, 98.0, 96.0, 102.0]);
    all.extend(a_a("b", &[102.0, 97.0, 99.0, 103.0, 99.0]));
    // These three happened to agree to 0.1 %: their own SDD would be far too small.
    all.extend(rounds("adit", "up_mbps", &[100.0, 100.1, 100.0, 100.1, 100.0]));
    let summary = summarise(&all);
    assert_eq!(summary.rows.len(), 1, "A/A is no row");
    let twin = &summary.a_a[0];
    assert_eq!((twin.subject.as_str(), twin.scenario.as_str()), ("adit", "mp-1"));
    let cell = &twin.values["up_mbps"];
    assert_eq!((cell.pairs, cell.different), (5, false));
    let sdd = summary.rows[0].values["up_mbps"].sdd_percent.unwrap();
    assert!((sdd - cell.sdd_percent.unwrap()).abs() < 1e-9, "{sdd}");
    // The sides' logarithms have variances of 1.0e-3 and 6.0e-4: s = 2.8 %, SDD 5.9 %.
    assert!((5.4..6.4).contains(&sdd), "{sdd}");
    assert!(summary.warnings.is_empty());
}

#[test]
fn a_machine_that_is_not_steady_is_told() {
    let mut all = a_a("a", &[100.0, 101.0, 99.0, 100.0, 100.0]);
    all.extend(a_a("b", &[110.0, 111.0, 109.0, 111.0, 110.0]));
    let summary = summarise(&all);
    assert!(summary.a_a[0].values["up_mbps"].different);
    assert!(summary.warnings[0].contains("+10.0 % in up Mb/s (5 pairs)"), "{:?}", summary.warnings);
}

#[test]
fn growth_above_linear_is_flagged() {
    let mut all = Vec::new();
    for (clients, square, line) in
        [(1.0, 1.0, 12.0), (5.0, 25.0, 20.0), (20.0, 400.0, 50.0), (100.0, 1e4, 210.0)]
    {
        for round in 1..=3 {
            let figures = [("server_cpu_percent", square), ("server_anon_mib", line)];
            let mut record = trial("adit", round, &figures);
            record.kind = "growth".into();
            record.key.point.0.insert("clients".into(), f64::to_string(&clients));
            all.push(record);
        }
    }
    let summary = summarise(&all);
    let points: Vec<_> = summary.rows.iter().map(|row| row.point.get("clients").unwrap()).collect();
    assert_eq!(points, ["1", "5", "20", "100"], "by number");
    let of = |name: &str| summary.growth.iter().find(|growth| growth.metric == name).unwrap();
    let (cpu, memory) = (of("server_cpu_percent"), of("server_anon_mib"));
    assert!((cpu.log_log.unwrap().slope - 2.0).abs() < 1e-9 && cpu.above_linear);
    // 10 MiB, and 2 more for each client.
    assert!(
        (memory.linear.slope - 2.0).abs() < 1e-9 && (memory.linear.intercept - 10.0).abs() < 1e-9
    );
    assert!(!memory.above_linear);
    assert_eq!(memory.points.len(), 12);
    assert!(summary.warnings.iter().any(|w| w.contains("exponent 2.00")), "{:?}", summary.warnings);
}

#[test]
fn a_run_on_a_machine_with_other_work_says_so_and_keeps_its_figures() {
    let mut all = rounds("adit", "up_mbps", &[100.0, 101.0, 99.0]);
    measured(&mut all[0]).foreign = 0.2;
    measured(&mut all[1]).pressure = 0.5;
    let summary = summarise(&all);
    assert_eq!(summary.rows[0].rounds, [1, 2, 3]);
    let said = summary.warnings.join("\n");
    assert!(said.contains("not quiet") && said.contains("2 of 3 trials"), "{said}");
    measured(&mut all[0]).foreign = 0.01;
    measured(&mut all[1]).pressure = 0.0;
    assert!(summarise(&all).warnings.is_empty());
}
