//! How clients end, and the state that they leave on the laptop.

use std::fs;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Control::{Fails, Passes};
use super::{BOTH, Day, PATIENCE, Scene, Setup, family};
use crate::failure::{Context, Failure, Result, ensure};
use crate::laptop::Access;

/// The scenes of this module.
pub(super) const SCENES: &[Scene] = &[
    ("strict-reverse-path", BOTH, Passes, strict_reverse_path),
    ("orderly-end", BOTH, Passes, orderly),
    ("half-killed", BOTH, Fails("leaves its host route behind"), half_killed),
    ("killed", BOTH, Fails("leaves its host route behind"), killed),
];

/// The access interface takes only packets whose source is routed by it (`rp_filter` 1).
fn strict_reverse_path(day: &Day<'_>) -> Result<String> {
    let setup = Setup { access: Access::Cafe, ..Setup::default() };
    let day = day.connect_after(setup, |internet| {
        let laptop = internet.laptop.handle()?;
        for name in ["all", "default", Access::Cafe.interface()] {
            laptop.set_sysctl(&format!("net.ipv4.conf.{name}.rp_filter"), "1")?;
        }
        Ok(())
    })?;
    day.back(PATIENCE)?;
    day.ensure_no_leak()?;
    day.end()?;
    Ok(String::new())
}

/// The client ends when it is asked to.
fn orderly(day: &Day<'_>) -> Result<String> {
    let day =
        day.connect(Setup { access: Access::Cafe, dns: true, ipv6: true, ..Setup::default() })?;
    day.ensure_no_leak()?;
    day.end()?;
    Ok(String::new())
}

/// The client and all its processes are killed; the next start undoes what they did.
fn killed(day: &Day<'_>) -> Result<String> {
    let mut day = day.connect(Setup { access: Access::Cafe, dns: true, ..Setup::default() })?;
    day.signal_all(Signal::SIGKILL)?;
    day.client.wait_exit(PATIENCE)?;
    day.client = day.day.dial(&day.internet.laptop, day.setup.options)?;
    day.wait_connected(1)?;
    day.end()?;
    Ok(String::new())
}

/// The process that faces the network is killed; what it had started undoes everything at once.
fn half_killed(day: &Day<'_>) -> Result<String> {
    let mut day = day.connect(Setup { access: Access::Cafe, dns: true, ..Setup::default() })?;
    let family = family(day.client.pid())?;
    let facing = family.iter().copied().find(|pid| is_unprivileged(*pid));
    let facing = facing.context("no process of the client runs under another user than root")?;
    kill(Pid::from_raw(i32::try_from(facing).context("process id")?), Signal::SIGKILL)?;
    day.client.wait_exit(PATIENCE)?;
    let started = Instant::now();
    loop {
        let changes = day.before.changes(&day.internet.state()?);
        if changes.is_empty() {
            return Ok(format!("undone after {} ms", started.elapsed().as_millis()));
        }
        ensure(started.elapsed() < PATIENCE, || {
            day.with_logs(Failure(format!("after the kill remain:{changes}"))).0
        })?;
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Whether all user ids of a process are other than root's.
fn is_unprivileged(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    !uids.is_empty() && uids.split_whitespace().all(|uid| uid != "0")
}
