//! Code that the demos of several apps share: two ends in namespaces of this host, traffic between them, and
//! measurements.

pub mod ends;
pub mod interrupt;
pub mod traffic;
pub mod usage;

use std::io;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use crate::fault::Fault;
use ends::End;
use interrupt::Interrupt;
use traffic::Meter;

/// The number of pings to try, because the first ones may be lost during ARP and neighbour discovery.
pub const PING_ATTEMPTS: u16 = 5;
/// The duration of the round-trip measurement.
const ROUND_TRIP_TIME: Duration = Duration::from_secs(1);
/// How often progress is shown.
pub const TELL_EVERY: Duration = Duration::from_millis(250);
/// The time at the start of a transfer that is not measured, because of TCP's slow start.
const WARM_UP: Duration = Duration::from_millis(300);

/// The options of a demo.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// Whether to keep the tunnel running until the user interrupts.
    pub hold: bool,
    /// The duration of each bulk transfer.
    pub duration: Duration,
    /// The path of this program, which is both server and client.
    pub program: PathBuf,
}

/// A step of a demo.
#[derive(Clone, Debug)]
pub enum Step {
    /// A stage begins.
    Stage(String),
    /// The stage is done, with this result.
    Done(String),
    /// A transfer is in progress, with the elapsed fraction of its time and the latest rate in Mb/s.
    Bulk(f64, f64),
}

/// Returns the round-trip time of the first answered ping. While an address is still being set up, a ping to it fails
/// at once.
///
/// # Errors
/// Fails if none of `attempts` pings was answered, or the user interrupted.
pub fn ping(
    end: &End,
    to: IpAddr,
    attempts: u16,
    interrupt: &Interrupt,
) -> Result<Duration, Fault> {
    let mut problem = String::new();
    for sequence in 0..attempts {
        interrupt.check()?;
        match traffic::ping(&end.ns, to, sequence) {
            Ok(time) => return Ok(time),
            Err(error) => {
                problem = error.to_string();
                thread::sleep(TELL_EVERY);
            }
        }
    }
    Err(Fault::environment(format!(
        "{to} does not answer through the tunnel: {problem}; the log of this end:\n{}",
        end.last_words()
    )))
}

/// Measures round trips of small datagrams. Returns the median and the 99th percentile in seconds, and the number of
/// round trips.
///
/// # Errors
/// Fails if no datagram came back, or the user interrupted.
pub fn round_trips(
    client: &End,
    server: &End,
    interrupt: &Interrupt,
) -> Result<(f64, f64, usize), Fault> {
    let times = traffic::round_trips(
        &client.ns,
        &server.ns,
        server.ipv4,
        ROUND_TRIP_TIME,
        interrupt.flag(),
    )
    .map_err(|error| Fault::environment(format!("round trips: {error}")))?;
    interrupt.check()?;
    if times.is_empty() {
        return Err(Fault::environment("no datagram came back through the tunnel"));
    }
    let at = |percent: usize| {
        let index = times.len().saturating_mul(percent) / 100;
        times.get(index).or(times.last()).map_or(0.0, Duration::as_secs_f64)
    };
    Ok((at(50), at(99), times.len()))
}

/// The results of a transfer after its warm-up.
pub struct Rates {
    /// The received payload in Mb/s.
    pub megabits_per_second: f64,
    /// The CPU-seconds of the two processes per Gb of payload.
    pub cpu_per_gigabit: [f64; 2],
}

/// Runs a transfer until it has been measured. `pids` are the processes whose CPU time is measured.
///
/// # Errors
/// Fails if the transfer failed, or the user interrupted.
pub fn transfer(
    what: &str,
    meter: &Meter,
    pids: [u32; 2],
    duration: Duration,
    interrupt: &Interrupt,
    tell: &mut dyn FnMut(Step),
    traffic: impl FnOnce() -> io::Result<()> + Send,
) -> Result<Rates, Fault> {
    tell(Step::Stage(what.to_owned()));
    let rates = thread::scope(|scope| {
        let running = scope.spawn(traffic);
        let rates = measure(meter, pids, duration, interrupt, tell);
        meter.stop.store(true, Relaxed);
        let ended = running.join().unwrap_or_else(|_| Err(io::Error::other("panicked")));
        ended.map_err(|error| Fault::environment(format!("{what}: {error}")))?;
        rates
    })?;
    tell(Step::Done(format!("{:.0} Mb/s", rates.megabits_per_second)));
    Ok(rates)
}

/// Measures a running transfer after its warm-up.
fn measure(
    meter: &Meter,
    pids: [u32; 2],
    duration: Duration,
    interrupt: &Interrupt,
    tell: &mut dyn FnMut(Step),
) -> Result<Rates, Fault> {
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
    let seconds = started.elapsed().as_secs_f64();
    let received = meter.received.load(Relaxed).saturating_sub(first);
    let gigabits = received as f64 * 8.0 / 1e9;
    let [server, client] = pids.map(usage::cpu);
    let [server_before, client_before] = cpu;
    let cpu = [server.saturating_sub(server_before), client.saturating_sub(client_before)];
    let per_gigabit =
        |cpu: Duration| if gigabits > 0.0 { cpu.as_secs_f64() / gigabits } else { 0.0 };
    Ok(Rates {
        megabits_per_second: gigabits * 1000.0 / seconds,
        cpu_per_gigabit: cpu.map(per_gigabit),
    })
}
