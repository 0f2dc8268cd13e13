//! Tests of how clients end, and of the state that they leave on the laptop.

use std::fs;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Control::{Fails, Passes};
use super::{
    BOTH, CONNECT, ConnectedLaptop, Laptop, NO_REPLY_WAIT, Scenario, Setup, TIMEOUT, family,
    is_alive,
};
use crate::failure::{Context, Failure, Result, ensure};
use crate::laptop::{Access, Answer, WEB, WEB6};
use crate::wait::ScaledInstant;

/// The scenarios of this module.
pub(super) const SCENARIOS: &[Scenario] = &[
    ("strict-reverse-path", BOTH, Passes, strict_reverse_path),
    ("orderly-end", BOTH, Passes, orderly),
    ("killed", BOTH, Fails("leaves its host route behind"), killed),
    ("half-killed", BOTH, Fails("leaves its host route behind"), half_killed),
    ("kill-switch", CONNECT, Fails("has none"), kill_switch),
];

/// The access interface accepts only packets whose source is routed through it (`rp_filter` 1).
fn strict_reverse_path(laptop: &Laptop<'_>) -> Result<String> {
    let setup = Setup { access: Access::Cafe, ..Setup::default() };
    let laptop = laptop.connect_after(setup, |internet| {
        let laptop = internet.laptop.handle()?;
        for name in ["all", "default", Access::Cafe.interface()] {
            laptop.set_sysctl(&format!("net.ipv4.conf.{name}.rp_filter"), "1")?;
        }
        Ok(())
    })?;
    laptop.back(TIMEOUT)?;
    laptop.ensure_no_leak()?;
    laptop.end()?;
    Ok(String::new())
}

/// The client ends on request.
fn orderly(laptop: &Laptop<'_>) -> Result<String> {
    let laptop = laptop.connect(Setup {
        access: Access::Cafe,
        dns: true,
        ipv6: true,
        ..Setup::default()
    })?;
    laptop.ensure_no_leak()?;
    laptop.end()?;
    Ok(String::new())
}

/// The client and all its processes are killed. The next start or `adit doctor --fix` undoes their changes.
fn killed(laptop: &Laptop<'_>) -> Result<String> {
    let setup = Setup { access: Access::Cafe, dns: true, ..Setup::default() };
    let mut laptop = laptop.connect(setup)?;
    laptop.kill_all()?;
    laptop.client = laptop.laptop.dial(&laptop.internet.laptop, setup.options)?;
    laptop.wait_connected(1)?;
    laptop.kill_all()?;
    let said = laptop.internet.laptop.run(&laptop.laptop.adit()?, &["doctor", "--fix"]);
    let changes = laptop.before.changes(&laptop.internet.state()?);
    ensure(changes.is_empty(), || {
        laptop.with_logs(Failure(format!("after doctor --fix remain:{changes}\n{said:?}"))).0
    })?;
    Ok(String::new())
}

/// The process that faces the network is killed; its helper undoes everything at once.
fn half_killed(laptop: &Laptop<'_>) -> Result<String> {
    let mut laptop = laptop.connect(laptop.with_dns(Setup {
        access: Access::Cafe,
        dns: true,
        ..Setup::default()
    }))?;
    let family = family(laptop.client.pid())?;
    let facing = family.iter().copied().find(|pid| is_unprivileged(*pid));
    let facing = facing.context("no process of the client runs under another user than root")?;
    kill(Pid::from_raw(i32::try_from(facing).context("process id")?), Signal::SIGKILL)?;
    laptop.client.wait_exit(TIMEOUT)?;
    let started = ScaledInstant::now();
    loop {
        let changes = laptop.before.changes(&laptop.internet.state()?);
        if changes.is_empty() {
            return Ok(format!("undone after {} ms", started.elapsed().as_millis()));
        }
        ensure(started.elapsed() < TIMEOUT, || {
            laptop.with_logs(Failure(format!("after the kill remain:{changes}"))).0
        })?;
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// Returns whether none of a process's user ids is root's.
fn is_unprivileged(pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    let uids = status.lines().find_map(|line| line.strip_prefix("Uid:")).unwrap_or_default();
    !uids.is_empty() && uids.split_whitespace().all(|uid| uid != "0")
}

/// With a kill switch no traffic leaves when the client ends, in order or killed, until `adit connect --release`.
fn kill_switch(laptop: &Laptop<'_>) -> Result<String> {
    let setup = Setup { access: Access::Cafe, options: &["--kill-switch"], ..Setup::default() };
    let mut laptop = laptop.connect(setup)?;
    laptop.client.stop().map_err(|failure| laptop.with_server(failure))?;
    laptop.ensure_nothing_gets_out()?;
    laptop.release()?;
    laptop.client = laptop.laptop.dial(&laptop.internet.laptop, setup.options)?;
    laptop.wait_connected(1)?;
    laptop.kill_all()?;
    laptop.ensure_nothing_gets_out()?;
    // The tunnel's own traffic leaves, and the kill switch is on again afterwards.
    laptop.client = laptop.laptop.dial(&laptop.internet.laptop, setup.options)?;
    laptop.wait_connected(1)?;
    laptop.client.stop().map_err(|failure| laptop.with_server(failure))?;
    laptop.ensure_nothing_gets_out()?;
    laptop.release()?;
    Ok(String::new())
}

impl ConnectedLaptop<'_> {
    fn kill_all(&mut self) -> Result<()> {
        let killed = family(self.client.pid())?;
        self.signal_all(Signal::SIGKILL)?;
        self.client.wait_exit(TIMEOUT)?;
        let started = ScaledInstant::now();
        while killed.iter().any(|pid| is_alive(*pid)) {
            ensure(started.elapsed() < TIMEOUT, || "a killed process does not end".to_owned())?;
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Turns the kill switch off, after which the laptop is in its former state.
    fn release(&self) -> Result<()> {
        let adit = self.laptop.adit()?;
        self.internet.laptop.run(&adit, &["connect", "--release"])?;
        let when = "after the release";
        self.internet.ensure_restored(&self.before, when).map_err(|f| self.with_logs(f))?;
        let (seen, _) = self.internet.probe().until_answered(WEB, TIMEOUT)?;
        ensure(seen == IpAddr::V4(self.setup.access.outside()), || format!("{when}: {seen}"))
    }

    /// Checks that no request of either family reaches the host outside, neither at once nor a moment later.
    fn ensure_nothing_gets_out(&self) -> Result<()> {
        let (start, probe) = (Instant::now(), self.internet.probe());
        while start.elapsed() < Duration::from_secs(1) {
            for to in [IpAddr::V4(WEB), IpAddr::V6(WEB6)] {
                let answer = probe.udp(to, NO_REPLY_WAIT)?;
                ensure(!matches!(answer, Answer::From(_)), || {
                    self.with_logs(format!("LEAK: after the client's end: {answer:?}").into()).0
                })?;
            }
        }
        let out = self.internet.visits().into_iter().find(|visit| visit.at > start);
        ensure(out.is_none(), || format!("LEAK: after the client's end came {out:?}"))
    }
}
