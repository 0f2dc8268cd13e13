//! How clients end, and the state that they leave on the laptop.

use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Control::{Fails, Passes};
use super::{BOTH, CONNECT, Connected, Day, IN_VAIN, PATIENCE, Scene, Setup, family, is_alive};
use crate::failure::{Context, Failure, Result, ensure};
use crate::laptop::{Access, Answer, WEB, WEB6};
use crate::wait::Moment;

/// The scenes of this module.
pub(super) const SCENES: &[Scene] = &[
    ("strict-reverse-path", BOTH, Passes, strict_reverse_path),
    ("orderly-end", BOTH, Passes, orderly),
    ("killed", BOTH, Fails("leaves its host route behind"), killed),
    ("half-killed", BOTH, Fails("leaves its host route behind"), half_killed),
    ("kill-switch", CONNECT, Fails("has none"), kill_switch),
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

/// The client and all its processes are killed. The next start undoes what they did, or `adit doctor --fix`.
fn killed(day: &Day<'_>) -> Result<String> {
    let setup = Setup { access: Access::Cafe, dns: true, ..Setup::default() };
    let mut day = day.connect(setup)?;
    day.kill_all()?;
    day.client = day.day.dial(&day.internet.laptop, setup.options)?;
    day.wait_connected(1)?;
    day.kill_all()?;
    let said = day.internet.laptop.run(&day.day.adit()?, &["doctor", "--fix"]);
    let changes = day.before.changes(&day.internet.state()?);
    ensure(changes.is_empty(), || {
        day.with_logs(Failure(format!("after doctor --fix remain:{changes}\n{said:?}"))).0
    })?;
    Ok(String::new())
}

/// The process that faces the network is killed; what it had started undoes everything at once.
fn half_killed(day: &Day<'_>) -> Result<String> {
    let mut day =
        day.connect(day.with_dns(Setup { access: Access::Cafe, dns: true, ..Setup::default() }))?;
    let family = family(day.client.pid())?;
    let facing = family.iter().copied().find(|pid| is_unprivileged(*pid));
    let facing = facing.context("no process of the client runs under another user than root")?;
    kill(Pid::from_raw(i32::try_from(facing).context("process id")?), Signal::SIGKILL)?;
    day.client.wait_exit(PATIENCE)?;
    let started = Moment::now();
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

/// With a kill switch nothing gets out when the client ends, in order or killed, until `adit connect --release`.
fn kill_switch(day: &Day<'_>) -> Result<String> {
    let setup = Setup { access: Access::Cafe, options: &["--kill-switch"], ..Setup::default() };
    let mut day = day.connect(setup)?;
    day.client.stop().map_err(|failure| day.with_server(failure))?;
    day.ensure_nothing_gets_out()?;
    day.release()?;
    day.client = day.day.dial(&day.internet.laptop, setup.options)?;
    day.wait_connected(1)?;
    day.kill_all()?;
    day.ensure_nothing_gets_out()?;
    // The tunnel itself gets out, and the kill switch is on again afterwards.
    day.client = day.day.dial(&day.internet.laptop, setup.options)?;
    day.wait_connected(1)?;
    day.client.stop().map_err(|failure| day.with_server(failure))?;
    day.ensure_nothing_gets_out()?;
    day.release()?;
    Ok(String::new())
}

impl Connected<'_> {
    fn kill_all(&mut self) -> Result<()> {
        let killed = family(self.client.pid())?;
        self.signal_all(Signal::SIGKILL)?;
        self.client.wait_exit(PATIENCE)?;
        let started = Moment::now();
        while killed.iter().any(|pid| is_alive(*pid)) {
            ensure(started.elapsed() < PATIENCE, || "a killed process does not end".to_owned())?;
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Turns the kill switch off, after which the laptop is as before.
    fn release(&self) -> Result<()> {
        let adit = self.day.adit()?;
        self.internet.laptop.run(&adit, &["connect", "--release"])?;
        let when = "after the release";
        self.internet.ensure_restored(&self.before, when).map_err(|f| self.with_logs(f))?;
        let (seen, _) = self.internet.probe().until_answered(WEB, PATIENCE)?;
        ensure(seen == IpAddr::V4(self.setup.access.outside()), || format!("{when}: {seen}"))
    }

    /// Neither at once nor a moment later does a request of either family reach the host outside.
    fn ensure_nothing_gets_out(&self) -> Result<()> {
        let (start, probe) = (Instant::now(), self.internet.probe());
        while start.elapsed() < Duration::from_secs(1) {
            for to in [IpAddr::V4(WEB), IpAddr::V6(WEB6)] {
                let answer = probe.udp(to, IN_VAIN)?;
                ensure(!matches!(answer, Answer::From(_)), || {
                    self.with_logs(format!("LEAK: after the client's end: {answer:?}").into()).0
                })?;
            }
        }
        let out = self.internet.visits().into_iter().find(|visit| visit.at > start);
        ensure(out.is_none(), || format!("LEAK: after the client's end came {out:?}"))
    }
}
