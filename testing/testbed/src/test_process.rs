//! Processes for the programs' own tests, in namespaces without names, whose failures are panics.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use adit_linux::net::Address;
use adit_linux::netns::NetNs;

use crate::wait::ScaledInstant;

const TIMEOUT: Duration = Duration::from_secs(30);

/// A process that does not outlive the test.
#[derive(Debug)]
pub struct TestProcess {
    /// The process.
    pub child: Child,
    log: PathBuf,
}

impl TestProcess {
    /// Starts a program with `dir` as its working directory. Its output is appended to the file `log` there.
    ///
    /// # Panics
    /// It cannot be started.
    pub fn program(ns: &NetNs, program: &str, args: &[&str], dir: &Path, log: &str) -> Self {
        let log = dir.join(log);
        let output = File::options().create(true).append(true).open(&log).unwrap();
        let child = ns
            .command(program)
            .unwrap()
            .args(args)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    /// Returns its output so far.
    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Sends a signal by its name, such as `TERM`.
    ///
    /// # Panics
    /// The process no longer exists.
    pub fn signal(&mut self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Ends it by SIGTERM and returns its exit code.
    pub fn end(&mut self) -> Option<i32> {
        self.signal("TERM");
        until("the process ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }
}

impl Drop for TestProcess {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}:\n{}", self.log.display(), self.log());
        }
    }
}

/// Returns the helper of a process, if it has one.
pub fn helper_of(pid: u32) -> Option<u32> {
    let parent = pid.to_string();
    fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let text = fs::read_to_string(entry.path().join("status")).ok()?;
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let is_it = field("Name:")?.trim() == "adit-helper" && field("PPid:")?.trim() == parent;
        is_it.then_some(pid)
    })
}

/// Kills a process and its helper. The helper comes first, because otherwise it would undo the changes of the process
/// at once.
pub fn kill_with_helper(running: &mut TestProcess) {
    let pid = running.child.id();
    let helper = helper_of(pid).unwrap();
    let pids = [helper, pid].map(|pid| pid.to_string());
    assert!(Command::new("kill").arg("-9").args(pids).status().unwrap().success());
    running.child.wait().unwrap();
    until("the helper has ended", || !alive(helper));
}

/// Returns whether a process is running; a zombie is not.
pub fn alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|text| {
        !text.lines().any(|line| line.starts_with("State:") && line.contains('Z'))
    })
}

/// Waits until a condition holds; a test that waits too long fails.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = ScaledInstant::now();
    while !condition() {
        assert!(started.elapsed() < TIMEOUT, "not in {TIMEOUT:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// Gives a device an address.
///
/// # Panics
/// The kernel refuses.
pub fn address(ns: &NetNs, device: &str, net: &str) {
    let net = net.parse().unwrap();
    ns.configure(async |handle| {
        let link = handle.link(device).await?;
        handle.add_address(&Address::new(link.index, net)).await
    })
    .unwrap()
    .unwrap();
}

/// Returns whether an address answers one of a few pings from within a namespace.
pub fn answers(ns: &NetNs, address: &str) -> bool {
    let mut ping = ns.command("ping").unwrap();
    ping.args(["-c", "1", "-W", "1", address]).stdout(Stdio::null()).stderr(Stdio::null());
    (0..3).any(|_| ping.status().unwrap().success())
}
