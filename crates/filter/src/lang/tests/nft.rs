//! What is printed, the kernel's own nftables takes, too. In a network namespace of its own.

use std::io::Write;
use std::process::{Command, Stdio};

use proptest::test_runner::{Config, TestRunner};

use super::*;

/// Why nftables does not take a text; `None` if it does.
fn refusal(text: &str) -> Option<String> {
    let mut child = Command::new("unshare")
        .args(["-n", "nft", "-c", "-f", "-"])
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let told = String::from_utf8_lossy(&output.stderr).into_owned();
    (!output.status.success()).then_some(told)
}

/// Whether nft can be asked here: it is there, and namespaces can be made.
fn can_ask(test: &str) -> bool {
    let asked = Command::new("unshare").args(["-n", "nft", "--version"]).output();
    let can = asked.is_ok_and(|output| output.status.success());
    if !can {
        eprintln!("{test}: skipped, needs nft and the right to make a network namespace");
    }
    can
}

#[test]
fn nft_takes_the_forms_and_what_is_printed_of_them() {
    if !can_ask("nft_takes_the_forms_and_what_is_printed_of_them") {
        return;
    }
    // Clients and groups are adit's own.
    let written = FORMS.replace("\\\n", "");
    let mut lines = written.lines().filter(|l| !l.contains("@client:") && !l.contains("@group:"));
    let foreign: String = lines.by_ref().flat_map(|l| [l, "\n"]).collect();
    assert_eq!(refusal(&foreign), None);
    let printed = good(&foreign).to_string();
    assert_eq!(refusal(&printed), None, "{printed}");
}

#[test]
fn nft_takes_any_rule_set_that_is_printed() {
    if !can_ask("nft_takes_any_rule_set_that_is_printed") {
        return;
    }
    let config = Config { cases: 100, failure_persistence: None, ..Config::default() };
    TestRunner::new(config)
        .run(&random::rulesets(true), |ruleset| {
            let printed = ruleset.to_string();
            prop_assert_eq!(refusal(&printed), None, "{}", printed);
            Ok(())
        })
        .unwrap();
}
