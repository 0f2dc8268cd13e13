//! What the demos of several apps share: two ends in namespaces of this machine, traffic between them, figures.

pub mod ends;
pub mod interrupt;
pub mod traffic;
pub mod usage;

use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use crate::fault::Fault;
use interrupt::Interrupt;
use traffic::Meter;

/// Pings that are tried: before the first ping arrives, ARP and neighbour discovery may lose some.
pub const PING_ATTEMPTS: u16 = 5;
/// How long round trips are measured.
pub const ROUND_TRIP_TIME: Duration = Duration::from_secs(1);
/// How often progress is shown.
pub const TELL_EVERY: Duration = Duration::from_millis(250);
/// What is not measured of a transfer: slow start is over by then.
const WARM_UP: Duration = Duration::from_millis(300);

/// Options of a demo.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// Leave it up until the user interrupts.
    pub hold: bool,
    /// For each bulk transfer.
    pub duration: Duration,
    /// The program itself, which is server and client.
    pub program: PathBuf,
}

/// A step of a demo.
#[derive(Clone, Debug)]
pub enum Step {
    /// This begins.
    Stage(String),
    /// The stage is done, with this result.
    Done(String),
    /// A transfer is under way: share of its time, Mb/s of the last moments.
    Bulk(f64, f64),
}

/// The measured part of a transfer, after its warm-up.
pub struct Measured {
    /// Bytes of payload.
    pub received: u64,
    /// How long it took.
    pub elapsed: Duration,
    /// CPU time of the two processes.
    pub cpu: [Duration; 2],
}

/// Watches a running transfer after its warm-up.
///
/// # Errors
/// The user interrupted.
pub fn measure(
    meter: &Meter,
    pids: [u32; 2],
    duration: Duration,
    interrupt: &Interrupt,
    tell: &mut dyn FnMut(Step),
) -> Result<Measured, Fault> {
    thread::sleep(WARM_UP);
    let started = Instant::now();
    let first = meter.received.load(Relaxed);
    let cpu = pids.map(usage::cpu);
    let mut last = (first, started);
    while started.elapsed() < duration && !meter.stop.load(Relaxed) {
        interrupt.check()?;
        thread::sleep(TELL_EVERY.min(duration.saturating_sub(started.elapsed())));
        let (now, received) = (Instant::now(), meter.received.load(Relaxed));
        let megabits = received.saturating_sub(last.0) as f64 * 8.0 / 1e6;
        let seconds = now.duration_since(last.1).as_secs_f64().max(1e-6);
        last = (received, now);
        let share = started.elapsed().as_secs_f64() / duration.as_secs_f64();
        tell(Step::Bulk(share.min(1.0), megabits / seconds));
    }
    let elapsed = started.elapsed();
    let received = meter.received.load(Relaxed).saturating_sub(first);
    let [server, client] = pids.map(usage::cpu);
    let [server_before, client_before] = cpu;
    let cpu = [server.saturating_sub(server_before), client.saturating_sub(client_before)];
    Ok(Measured { received, elapsed, cpu })
}
