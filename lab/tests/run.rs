//! Runs `adit-lab` as a user would: from the plan to the report, killed and resumed.

use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::Duration;

use adit_testbed::wait::ScaledInstant;
use tempfile::TempDir;

/// Returns whether the test runs as root; otherwise reports it as skipped.
fn has_root(test: &str) -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        adit_testbed::skip::skip(test, adit_testbed::skip::NEEDS_ROOT);
    }
    root
}

fn lab(dir: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_adit-lab"));
    command.current_dir(dir).args(arguments).stdin(Stdio::null());
    // adit is never found here, whether or not it is built: the missing subject is named and left
    // out.
    command.env("ADIT", "/nonexistent/adit");
    command
}

fn finish(mut command: Command) -> Output {
    command.output().expect("adit-lab starts")
}

/// A plan of trials that need no peer and take half a second.
const PLAN: &str = "name = \"tiny\"\nrounds = 3\na-a = { scenario = \"link\", subject = \"bare\" }\n\
    [[scenario]]\nname = \"link\"\nkind = \"throughput\"\nsubjects = [\"bare\", \"adit-tcp\"]\nwarmup = 0.05\nseconds = 0.2\n\
    [[scenario]]\nkind = \"handshakes\"\nseconds = 0.1\n";

fn plan() -> TempDir {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("tiny.toml"), PLAN).unwrap();
    dir
}

fn lines(dir: &Path) -> Vec<serde_json::Value> {
    let text = fs::read_to_string(dir.join("out/trials.jsonl")).unwrap_or_default();
    text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

#[test]
fn a_run_ends_with_a_report_and_names_what_it_skipped() {
    if !has_root("a_run_ends_with_a_report") {
        return;
    }
    let dir = plan();
    let done = finish(lab(dir.path(), &["run", "tiny.toml", "--out", "out"]));
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    assert!(said.contains("without adit-tcp: "), "{said}");
    let lines = lines(dir.path());
    assert_eq!(lines.len(), 6 + 3 * 3);
    let skipped = lines.iter().filter(|line| line.pointer("/outcome/skipped").is_some()).count();
    assert_eq!(skipped, 3, "adit-tcp once a round");
    let measured = lines.iter().find_map(|line| line.pointer("/outcome/measured/values/sum_mbps"));
    assert!(measured.and_then(serde_json::Value::as_f64).unwrap() > 0.0);
    for file in ["report.md", "report.html", "manifest.json"] {
        assert!(dir.path().join("out").join(file).exists(), "{file}");
    }
    let again = finish(lab(dir.path(), &["run", "tiny.toml", "--out", "out"]));
    assert!(!again.status.success(), "a folder with a run is not overwritten");
}

#[test]
fn a_killed_run_leaves_nothing_behind_and_can_be_resumed() {
    if !has_root("a_killed_run") {
        return;
    }
    let dir = plan();
    let mut run = lab(dir.path(), &["run", "tiny.toml", "--out", "out"]);
    let mut run = run.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let killed = run.id();
    let begun = ScaledInstant::now();
    while lines(dir.path()).len() < 2 {
        assert!(begun.elapsed() < Duration::from_secs(60), "no trial ended");
        std::thread::sleep(Duration::from_millis(20));
    }
    let inside = children(run.id());
    assert!(!inside.is_empty(), "a run has processes of its own");
    run.kill().unwrap();
    run.wait().unwrap();
    let begun = ScaledInstant::now();
    while inside.iter().any(|pid| Path::new(&format!("/proc/{pid}")).exists()) {
        assert!(begun.elapsed() < Duration::from_secs(10), "processes outlive the run");
        std::thread::sleep(Duration::from_millis(20));
    }
    let before = lines(dir.path()).len();
    assert!(before < 15);
    let done = finish(lab(dir.path(), &["run", "--resume", "out"]));
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    assert_eq!(lines(dir.path()).len(), 15, "each trial has one line");
    let own = format!("adit-sandbox-{killed}-");
    let mut left = fs::read_dir(std::env::temp_dir()).unwrap().flatten();
    assert!(!left.any(|entry| entry.file_name().to_string_lossy().starts_with(&own)));
}

/// Returns all descendants of this process.
fn children(pid: u32) -> Vec<u32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let own = fs::read_to_string(path).unwrap_or_default();
    let own: Vec<u32> = own.split_whitespace().filter_map(|word| word.parse().ok()).collect();
    own.iter().flat_map(|child| [vec![*child], children(*child)].concat()).collect()
}

#[test]
fn a_mistake_in_a_plan_is_named_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let text =
        "name = \"wrong\"\n[[scenario]]\nkind = \"loss\"\nsubjects = [\"adit\"]\nclimbers = 3\n";
    fs::write(dir.path().join("wrong.toml"), text).unwrap();
    let done = finish(lab(dir.path(), &["run", "wrong.toml"]));
    assert!(!done.status.success());
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.starts_with("adit-lab: wrong.toml:5: unknown field `climbers`"), "{said}");
}
