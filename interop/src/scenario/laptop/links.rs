//! Links that fail, networks that change, and sleep.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::Control::Passes;
use super::{BOTH, Connected, Day, IMPATIENT, PATIENCE, Scene, Setup};
use crate::failure::{Failure, Result, ensure};
use crate::laptop::{Access, Probe, WEB};
use crate::net::Namespace;

/// The scenes of this module.
pub(super) const SCENES: &[Scene] =
    &[("carrier-lost", BOTH, Passes, carrier_lost), ("suspend", BOTH, Passes, suspend)];

/// How long the link is down.
const FLAP: Duration = Duration::from_secs(3);
/// The share of one core that a client without a network may use; it should use next to none.
const IDLE: f64 = 0.2;

/// Programs on the laptop that go on sending while there is no network.
struct Chatter {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Result<()>>>,
}

impl Chatter {
    fn start(laptop: &Namespace) -> Result<Chatter> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = laptop.thread(move || {
            while !stopped.load(Ordering::Relaxed) {
                Probe::send_once(WEB);
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        })?;
        Ok(Chatter { stop, thread: Some(thread) })
    }
}

impl Drop for Chatter {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What happened between the loss of the network and the first answer through the tunnel.
struct Recovery {
    /// The client's share of one core while there was no network.
    cpu: f64,
    took: Duration,
}

impl Connected<'_> {
    /// Takes the network away, gives it back after `length`, and waits for an answer through the tunnel.
    fn outage(
        &self,
        take: impl FnOnce() -> Result<()>,
        length: Duration,
        give: impl FnOnce() -> Result<()>,
    ) -> Result<Recovery> {
        take()?;
        let cpu = {
            let _chatter = Chatter::start(&self.internet.laptop)?;
            let before = self.cpu_seconds()?;
            std::thread::sleep(length);
            (self.cpu_seconds()? - before) / length.as_secs_f64()
        };
        give()?;
        let took = self.back(PATIENCE).map_err(|failure| {
            let text = format!("{:.0} % of a core in the outage, then: ", cpu * 100.0);
            Failure(format!("{text}{failure}"))
        })?;
        ensure(cpu < IDLE, || {
            let text = format!("{:.0} % of a core without a network", cpu * 100.0);
            self.with_logs(Failure(text)).0
        })?;
        self.ensure_no_leak()?;
        Ok(Recovery { cpu, took })
    }
}

impl fmt::Display for Recovery {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Recovery { cpu, took } = self;
        write!(f, "back after {} ms, {:.0} % of a core meanwhile", took.as_millis(), cpu * 100.0)
    }
}

/// The carrier is lost for three seconds, as when Wi-Fi fails; the interface keeps its address and routes.
fn carrier_lost(day: &Day<'_>) -> Result<String> {
    let day = day.connect(Setup::default())?;
    let switch = |on| day.internet.switch_carrier(Access::Home, on);
    let recovery = day.outage(|| switch(false), FLAP, || switch(true))?;
    day.end()?;
    Ok(recovery.to_string())
}

/// The laptop sleeps for longer than the server may be silent.
fn suspend(day: &Day<'_>) -> Result<String> {
    let day = day.connect(Setup { profile: IMPATIENT, ..Setup::default() })?;
    day.signal_all(Signal::SIGSTOP)?;
    std::thread::sleep(Duration::from_secs(6));
    day.signal_all(Signal::SIGCONT)?;
    let took = day.back(PATIENCE)?;
    day.ensure_no_leak()?;
    day.end()?;
    Ok(format!("back after {} ms", took.as_millis()))
}
