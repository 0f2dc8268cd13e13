//! Checks the privileges of a process according to /proc.

use std::collections::HashMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::until;

const NONE: &str = "0000000000000000";

/// Reads /proc/PID/status.
pub(crate) fn status(pid: u32) -> HashMap<String, String> {
    let text = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let words = |value: &str| value.split_whitespace().collect::<Vec<_>>().join(" ");
    text.lines().filter_map(|l| l.split_once(':')).map(|(k, v)| (k.to_owned(), words(v))).collect()
}

/// Checks that a process does not run as root's user or group, has no capabilities, and cannot get any.
pub(crate) fn assert_without_rights(pid: u32) {
    let status = status(pid);
    for ids in ["Uid", "Gid", "Groups"] {
        assert!(!status[ids].split(' ').any(|id| id == "0"), "{ids}: {}", status[ids]);
    }
    for set in ["CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb"] {
        assert_eq!(status[set], NONE, "{set}");
    }
    assert_eq!((status["NoNewPrivs"].as_str(), status["Seccomp"].as_str()), ("1", "2"));
}

/// Checks that the helper has exactly the privileges that it needs.
pub(crate) fn assert_helper(pid: u32) {
    let status = status(pid);
    assert_eq!(status["Uid"], "0 0 0 0");
    // NET_ADMIN, NET_RAW, NET_BIND_SERVICE, DAC_OVERRIDE, CHOWN and FOWNER.
    let allowed: u64 = 1 << 12 | 1 << 13 | 1 << 10 | 1 << 1 | 1 << 0 | 1 << 3;
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        let held = u64::from_str_radix(&status[set], 16).unwrap();
        assert_eq!(held & !allowed, 0, "{set}: {held:x}");
    }
    assert_eq!((status["NoNewPrivs"].as_str(), status["Seccomp"].as_str()), ("1", "2"));
    let fields = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    let session = fields.rsplit_once(')').unwrap().1.split_whitespace().nth(3).unwrap();
    assert_eq!(session, pid.to_string(), "a session of its own");
    println!("helper's resident memory: {}", status["VmRSS"]);
}

/// Returns whether the user of a process can read a file.
pub(crate) fn can_read(pid: u32, path: &Path) -> bool {
    let status = status(pid);
    let id = |name: &str| status[name].split(' ').next().unwrap().parse::<u32>().unwrap();
    let groups: Vec<u32> = status["Groups"].split(' ').filter_map(|g| g.parse().ok()).collect();
    assert_eq!(groups, [id("Gid")]);
    let mut cat = Command::new("cat");
    // Changing the user drops the capabilities of this test.
    cat.arg(path).uid(id("Uid")).gid(id("Gid"));
    cat.output().unwrap().status.success()
}

/// Returns the ids of a process's threads.
pub(crate) fn tasks(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten();
    tasks.map(|task| task.file_name().to_str().unwrap().parse().unwrap()).collect()
}

/// Checks that no thread has privileges, and that workers, whose names begin with `worker`, have a narrower filter.
/// Returns the number of workers.
pub(crate) fn assert_all_without_rights(pid: u32, worker: &str) -> usize {
    let own = filters(pid);
    let mut workers = 0;
    for task in tasks(pid) {
        assert_without_rights(task);
        // In this order, because a worker has its name before it narrows the filter, which it does before it touches a
        // packet.
        let held = filters(task);
        let name = status(task)["Name"].clone();
        if name.starts_with(worker) {
            let narrowed = own.map(|own| own + 1);
            until(&format!("{name} has a narrower filter"), || filters(task) == narrowed);
            workers += 1;
        } else {
            assert_eq!(held, own, "{name}");
        }
    }
    workers
}

/// Returns how many filters of system calls a thread has, if the kernel tells.
fn filters(pid: u32) -> Option<u32> {
    status(pid).get("Seccomp_filters").map(|filters| filters.parse().unwrap())
}
