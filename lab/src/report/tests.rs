//! Tests of the complete path from a folder to its reports.

use super::fixture::{Fixture, manifest};
use super::manifest::SubjectEntry;
use super::*;

fn reports(fixture: &Fixture) -> (String, String) {
    let dir = tempfile::tempdir().unwrap();
    fixture.write(dir.path());
    write(dir.path()).unwrap();
    let read = |name: &str| std::fs::read_to_string(dir.path().join(name)).unwrap();
    (read("report.md"), read("report.html"))
}

#[test]
fn every_scenario_is_in_both_reports() {
    let fixture = Fixture::full(1);
    let (md, html) = reports(&fixture);
    for record in fixture.records.iter().filter(|record| !record.a_a) {
        let name = &record.key.scenario;
        assert!(
            md.contains(&format!("\n## {name}\n")) && html.contains(&format!(">{name}<")),
            "{name}"
        );
    }
}

/// Computed by hand: openvpn's median is 700 and adit's 2,100, three times as much in each round; the first client has
/// a quarter.
#[test]
fn the_markdown_of_a_small_run() {
    let (md, _) = reports(&Fixture::small());
    let expected = include_str!("expected.md");
    assert!(md == expected, "report/expected.md differs; now it is:\n{md}");
}

#[test]
fn an_unfinished_run_says_so_at_the_top() {
    let dir = tempfile::tempdir().unwrap();
    let mut fixture = Fixture::small();
    fixture.manifest.finished_ms = None;
    fixture.manifest.trials_planned = 40;
    fixture.write(dir.path());
    let path = dir.path().join(TRIALS);
    let whole = std::fs::read_to_string(&path).unwrap();
    std::fs::write(&path, &whole[..whole.len() - 30]).unwrap();
    write(dir.path()).unwrap();
    let md = std::fs::read_to_string(dir.path().join("report.md")).unwrap();
    let html = std::fs::read_to_string(dir.path().join("report.html")).unwrap();
    let top = md.split("\n## ").next().unwrap();
    for sentence in [
        "This run is unfinished: 14 of 40 trials are here.",
        "Unreadable in trials.jsonl, as a killed run leaves it: line 15.",
    ] {
        assert!(top.contains(sentence), "{top}");
        assert!(html.split("<main>").next().unwrap().contains(sentence));
    }
}

#[test]
fn a_folder_without_trials_is_an_error_and_one_with_none_is_a_report() {
    let dir = tempfile::tempdir().unwrap();
    manifest().write(dir.path()).unwrap();
    assert!(write(dir.path()).unwrap_err().to_string().contains(TRIALS));
    std::fs::write(dir.path().join(TRIALS), "").unwrap();
    write(dir.path()).unwrap();
    let md = std::fs::read_to_string(dir.path().join("report.md")).unwrap();
    assert!(md.contains("Nothing was measured."), "{md}");
}

/// Text from data is escaped wherever a run can contain text.
#[test]
fn nothing_from_data_becomes_markup() {
    const EVIL: &str = "\"><script>alert(1)</script><img src=x onerror='1'>|`";
    let mut fixture = Fixture::full(3);
    for record in &mut fixture.records {
        if record.key.subject == "tinc" {
            record.key.subject = EVIL.into();
        }
        if record.key.scenario == "udp" {
            record.key.scenario = EVIL.into();
            record.kind = EVIL.into();
        }
        record.key.point.0.values_mut().filter(|v| *v == "imix").for_each(|v| *v = EVIL.into());
        if let crate::record::Outcome::Measured(m) = &mut record.outcome {
            m.notes.push(EVIL.into());
            m.latencies =
                std::mem::take(&mut m.latencies).into_values().map(|l| (EVIL.into(), l)).collect();
            m.histograms =
                std::mem::take(&mut m.histograms).into_values().map(|h| (EVIL.into(), h)).collect();
            m.values.insert(EVIL.into(), 1.0);
            m.invalid.iter_mut().for_each(|why| *why = EVIL.into());
        }
    }
    let m = &mut fixture.manifest;
    for text in [
        &mut m.plan.name,
        &mut m.plan.text,
        &mut m.command,
        &mut m.machine.cpu,
        &mut m.machine.kernel,
    ] {
        *text = EVIL.into();
    }
    m.tools.insert(EVIL.into(), EVIL.into());
    m.links.insert(EVIL.into(), EVIL.into());
    let entry = SubjectEntry {
        version: EVIL.into(),
        configs: vec![(EVIL.into(), EVIL.into())],
        skipped: Some(EVIL.into()),
    };
    m.subjects.insert(EVIL.into(), entry);
    let (md, html) = reports(&fixture);
    // The page itself has neither scripts nor images.
    for tag in ["<script", "<img", "\"><s"] {
        assert!(!html.contains(tag), "{tag} in the page");
    }
    assert!(html.contains("&lt;script&gt;alert(1)"));
    let indented = |line: &&str| !line.starts_with("    ");
    assert!(md.lines().filter(indented).all(|line| !line.contains("<script")), "in report.md");
    assert_balanced(&html);
}

#[test]
fn the_page_needs_nothing_but_itself() {
    let (_, html) = reports(&Fixture::full(5));
    for reference in [
        "http://", "https://", "<script", "<link", "<iframe", "<object", "src=", "url(", "@import",
        "data:",
    ] {
        assert!(!html.contains(reference), "{reference} in the page");
    }
    for href in html.split("href=\"").skip(1) {
        assert!(href.starts_with('#'), "{}", &href[..40]);
    }
    assert_balanced(&html);
}

#[test]
fn figures_and_tables_say_what_they_are() {
    let (_, html) = reports(&Fixture::full(6));
    let count = |text: &str| html.matches(text).count();
    assert!(count("<figure>") > 20);
    assert_eq!(count("<figure>"), count("<figcaption>"));
    assert_eq!(count("<figure>"), count("role=\"img\" aria-label=\""));
    assert_eq!(count("<table"), count("<thead>"));
    assert_eq!(count("<th"), count("<th scope=") + count("<thead>"));
    assert!(html.contains("<html lang=\"en\">"));
    assert!(!html.contains("NaN") && !html.contains("inf\""), "a figure is none");
}

/// Asserts that every opened element is closed, in order, which suffices to show that data did not break the page.
fn assert_balanced(html: &str) {
    const VOID: [&str; 2] = ["meta", "!DOCTYPE"];
    let mut open: Vec<&str> = Vec::new();
    for tag in html.split('<').skip(1) {
        let name = tag.split([' ', '>', '\n']).next().unwrap();
        let own_end = tag.split('>').next().unwrap().ends_with('/');
        match name.strip_prefix('/') {
            Some(name) => assert_eq!(open.pop(), Some(name), "<{}", &tag[..tag.len().min(60)]),
            None if own_end || VOID.contains(&name) => {}
            None => open.push(name),
        }
    }
    assert!(open.is_empty(), "{open:?}");
}

/// Writes an example page: `cargo test -p adit-lab --lib example_page -- --ignored --nocapture`.
#[test]
#[ignore = "writes an example for a person to look at"]
fn example_page() {
    let dir = std::env::temp_dir().join("adit-lab-example");
    std::fs::create_dir_all(&dir).unwrap();
    Fixture::full(42).write(&dir);
    write(&dir).unwrap();
    println!("{}", dir.join("report.html").display());
}
