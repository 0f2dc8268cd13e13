//! Tests of the last line of `make test`: skipped checks are counted and named, and make CI fail.

use std::fs;
use std::path::Path;
use std::process::Command;

use adit_testbed::skip;

/// Returns the exit code and output lines of scripts/summary.sh for these skipped checks.
fn summary(skipped: &[(&str, &str)], ci: bool) -> (Option<i32>, Vec<String>) {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("skipped");
    fs::write(&file, "").unwrap();
    for (check, why) in skipped {
        skip::record(&file, check, why).unwrap();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/summary.sh");
    let mut command = Command::new(script);
    command.arg(&file).arg("in 9 s").env_remove("ADIT_NO_SKIPS");
    if ci {
        command.env("ADIT_NO_SKIPS", "1");
    }
    let output = command.output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    (output.status.code(), text.lines().map(str::to_owned).collect())
}

#[test]
fn nothing_skipped_passes_everywhere() {
    let expected = (Some(0), vec!["all checks passed, none skipped, in 9 s".to_owned()]);
    assert_eq!(summary(&[], false), expected);
    assert_eq!(summary(&[], true), expected);
}

#[test]
fn a_skipped_check_is_counted_and_named_and_fails_ci_alone() {
    let skipped = [("deny", "no cargo-deny"), ("dns::tests::openresolv", "no root: of openresolv")];
    let (code, lines) = summary(&skipped, false);
    assert_eq!(code, Some(0));
    let last = lines.last().unwrap();
    assert!(last.starts_with("the other checks passed, 2 skipped ("), "{last}");
    assert!(
        last.contains("no cargo-deny: deny") && last.contains("dns::tests::openresolv"),
        "{last}"
    );
    let (code, lines) = summary(&skipped, true);
    assert_eq!(code, Some(1));
    let last = lines.last().unwrap();
    assert!(last.starts_with("FAILED: 2 checks were skipped") && last.contains("deny"), "{last}");
}

#[test]
fn many_of_one_reason_are_named_above_the_last_line() {
    let names = ["a", "b", "c", "d", "e", "f"].map(|name| (name, skip::NEEDS_ROOT));
    // A test that is skipped twice, in two binaries with the same name, counts once.
    let (code, lines) = summary(&[&names[..], &names[..1]].concat(), false);
    assert_eq!(code, Some(0));
    for (name, _) in names {
        assert!(lines.contains(&format!("skipped: {name}: needs root")), "{lines:?}");
    }
    let last = lines.last().unwrap();
    assert_eq!(last, "the other checks passed, 6 skipped (needs root: 6 named above), in 9 s");
}
