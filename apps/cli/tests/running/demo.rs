//! Tests that `adit demo` works, and leaves nothing behind however it ends.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use adit_testbed::test_process::until;

const ADIT: &str = env!("CARGO_BIN_EXE_adit");

/// A lock that allows one demo at a time, because each test counts what demos leave behind.
static ALONE: Mutex<()> = Mutex::new(());

/// Returns the namespaces and directories of the demo with this process id.
fn traces(pid: u32) -> Vec<String> {
    let prefix = format!("adit-demo-{pid}");
    let mut found = Vec::new();
    for folder in ["/run", "/run/netns"] {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let name = entry.file_name().to_string_lossy().into_owned();
            if name.starts_with(&prefix) {
                found.push(format!("{folder}/{name}"));
            }
        }
    }
    found
}

/// Counts the processes whose command line contains the demo's directory.
fn processes(pid: u32) -> usize {
    let folder = format!("/run/adit-demo-{pid}/");
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter_map(|entry| fs::read(entry.path().join("cmdline")).ok())
        .filter(|line| String::from_utf8_lossy(line).contains(&folder))
        .count()
}

fn start(arguments: &[&str]) -> Child {
    Command::new(ADIT)
        .arg("demo")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap()
}

fn signal(child: &Child, name: &str) {
    let pid = child.id().to_string();
    assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
}

#[test]
fn it_works_and_cleans_up() {
    adit_testbed::needs_root!();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let demo = start(&["--seconds", "1", "--json"]);
    let pid = demo.id();
    let output = demo.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["pings"].as_array().unwrap().len(), 4);
    let transfers = report["transfers"].as_array().unwrap();
    assert_eq!(transfers.len(), 4);
    for transfer in transfers {
        assert!(transfer["megabits_per_second"].as_f64().unwrap() > 0.0, "{transfer}");
    }
    assert!(report["round_trips"].as_u64().unwrap() > 0);
    assert!(report["server_memory"].as_u64().unwrap() > 0);
    assert_eq!(traces(pid), Vec::<String>::new());
    assert_eq!(processes(pid), 0);
}

#[test]
fn interrupted_at_any_point_it_cleans_up() {
    adit_testbed::needs_root!();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    for (name, signal_at) in [("INT", 0), ("TERM", 1), ("HUP", 2)] {
        let mut demo = start(&["--seconds", "30"]);
        let pid = demo.id();
        until("it has begun", || traces(pid).len() >= 2);
        until("as many processes run", || processes(pid) >= signal_at);
        signal(&demo, name);
        assert_eq!(demo.wait().unwrap().code(), Some(1), "{name}");
        assert_eq!(traces(pid), Vec::<String>::new(), "{name}");
        assert_eq!(processes(pid), 0, "{name}");
    }
}

#[test]
fn what_a_killed_demo_leaves_the_next_one_removes() {
    adit_testbed::needs_root!();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut killed = start(&["--seconds", "30"]);
    let pid = killed.id();
    until("both ends run", || processes(pid) == 2);
    signal(&killed, "KILL");
    killed.wait().unwrap();
    until("the ends follow it", || processes(pid) == 0);
    assert!(!traces(pid).is_empty());

    let next = start(&["--seconds", "30"]);
    until("it has swept", || traces(pid).is_empty());
    signal(&next, "INT");
    let next_pid = next.id();
    next.wait_with_output().unwrap();
    assert_eq!(traces(next_pid), Vec::<String>::new());
}

#[test]
fn held_it_stays_up_until_it_is_told_to_end() {
    adit_testbed::needs_root!();
    let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
    let demo = start(&["--seconds", "1", "--hold"]);
    let pid = demo.id();
    let folder = format!("/run/adit-demo-{pid}/server");
    let status = || {
        let mut command = Command::new(ADIT);
        command.args(["status", "--dir", &folder]).output().unwrap()
    };
    until("a client is connected", || String::from_utf8_lossy(&status().stdout).contains("demo "));
    // Wait until all transfers are complete: four of one second, and a round of pings.
    std::thread::sleep(Duration::from_secs(10));
    assert!(status().status.success());
    signal(&demo, "INT");
    let output = demo.wait_with_output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(String::from_utf8_lossy(&output.stderr).contains("ip netns exec"));
    assert_eq!(traces(pid), Vec::<String>::new());
}
