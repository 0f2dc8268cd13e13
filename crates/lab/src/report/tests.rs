//! The whole way from a folder to its reports.

use super::fixture::Fixture;
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

/// To look at the page: `cargo test -p adit-lab --lib example_page -- --ignored --nocapture`.
#[test]
#[ignore = "writes an example for a person to look at"]
fn example_page() {
    let dir = std::env::temp_dir().join("adit-lab-example");
    std::fs::create_dir_all(&dir).unwrap();
    Fixture::full(42).write(&dir);
    write(&dir).unwrap();
    println!("{}", dir.join("report.html").display());
}
