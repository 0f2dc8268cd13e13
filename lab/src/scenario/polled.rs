//! Bulk traffic while the server is polled, to measure what the polling costs.
//!
//! One tunnel carries all slices of a trial. In every second pair of slices the order is reversed, so a drift of the machine
//! affects the slices with polling as much as those without.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use adit_testbed::failure::{Failure, Result, ensure};

use super::trains::Trains;
use super::trial_run::{Direction, MeasuredCost, TrialRun};
use crate::measure::Meter;
use crate::plan::Settings;
use crate::record::Measurement;
use crate::work::{Edge, Window, tcp_bulk};

/// The number of slices with polling, and of those without.
const SLICES: u32 = 8;

/// The time limit for a reply.
pub(super) const REPLY_LIMIT: Duration = Duration::from_secs(10);

/// A client that polls a server.
pub(super) trait Poller: Send {
    /// The metrics of the answered requests a second, and of the server's CPU time for one of them in microseconds.
    const METRICS: [&'static str; 2];

    /// Sends a request, and waits for the reply to it, if there is one.
    ///
    /// # Errors
    /// The server has ended, or the reply is wrong.
    fn request(&mut self) -> Result<()>;

    /// Returns the server's trains since its start, between two slices; none if they are not of interest, or the server does not count them.
    ///
    /// # Errors
    /// The server has ended.
    fn trains(&mut self) -> Result<Trains> {
        Ok(Trains::new())
    }
}

/// The sums of the slices of one state.
#[derive(Debug, Default)]
struct Sums {
    gigabits: f64,
    seconds: f64,
    server_cpu: f64,
    polled: Polled,
    trains: Trains,
}

/// The requests that were answered, and the time that they took.
#[derive(Debug, Clone, Copy, Default)]
struct Polled {
    requests: u64,
    seconds: f64,
}

impl Sums {
    fn add(&mut self, cost: &MeasuredCost, polled: Polled) {
        self.gigabits += cost.gigabits();
        self.seconds += cost.measured.seconds;
        self.server_cpu += cost.usage.roles.get("server").map_or(0.0, |role| role.cpu());
        self.polled.requests = self.polled.requests.saturating_add(polled.requests);
        self.polled.seconds += polled.seconds;
    }

    /// Adds the trains of a slice.
    fn add_trains(&mut self, before: &Trains, after: &Trains) {
        for (name, counts) in after {
            let before = before.get(name);
            let sums = self.trains.entry(name.clone()).or_default();
            for (length, count) in counts {
                let earlier = before.and_then(|before| before.get(length)).copied().unwrap_or(0);
                let sum = sums.entry(*length).or_default();
                *sum = sum.saturating_add(count.saturating_sub(earlier));
            }
        }
    }

    fn mbps(&self) -> f64 {
        self.gigabits * 1e3 / self.seconds
    }
}

/// Measures `sum_mbps` (with polling), `cost_percent` (the throughput that the polling costs), `server_cpu_s_per_gb` (with polling),
/// the poller's own metrics, and the server's trains, which have names of their own while it is polled.
///
/// # Errors
/// A slice failed, or nothing was transferred.
pub(super) fn measure<P: Poller>(
    run: &TrialRun,
    settings: &Settings,
    mut poller: P,
) -> Result<Measurement> {
    let rate = settings.rate;
    let mut measurement = Measurement::default();
    let [per_second, cpu] = P::METRICS;
    if rate > 0 {
        measurement.set(cpu, idle(run, settings, &mut poller)?);
    }
    let window = Window { warmup: settings.warmup, length: settings.length / SLICES };
    let mut routes = run.routes(Direction::Up, 1);
    routes.extend(run.routes(Direction::Down, 1));
    let (mut with, mut without) = (Sums::default(), Sums::default());
    let mut counted = poller.trains()?;
    for slice in 0..2 * SLICES {
        let bulk = || run.measure_cost(|edge| tcp_bulk(&routes, &window, edge));
        // ABBA
        let polls = matches!(slice % 4, 1 | 2);
        let (cost, polled) = if polls {
            while_polling(&mut poller, rate, bulk)?
        } else {
            (bulk()?, Polled::default())
        };
        measurement.invalid.extend(cost.measured.invalid.iter().cloned());
        let sums = if polls { &mut with } else { &mut without };
        sums.add(&cost, polled);
        let trains = poller.trains()?;
        sums.add_trains(&counted, &trains);
        counted = trains;
    }
    ensure(without.gigabits > 0.0 && with.gigabits > 0.0, || "nothing was transferred".to_owned())?;
    measurement.set("sum_mbps", with.mbps());
    measurement.set("cost_percent", (1.0 - with.mbps() / without.mbps()) * 100.0);
    measurement.set("server_cpu_s_per_gb", with.server_cpu / with.gigabits);
    measurement.set(per_second, with.polled.requests as f64 / with.polled.seconds);
    measurement.notes.extend(run.tunnels.notes.iter().cloned());
    let polled =
        with.trains.into_iter().map(|(name, counts)| (format!("{name} while polled"), counts));
    measurement.histograms = without.trains.into_iter().chain(polled).collect();
    Ok(measurement)
}

/// Returns the server's CPU time for a request without other work, in microseconds.
fn idle(run: &TrialRun, settings: &Settings, poller: &mut impl Poller) -> Result<f64> {
    let length = settings.length / SLICES;
    let mut meter = Meter::start(&run.tunnels.processes(), &run.testbed)?;
    let ((), polled) = while_polling(poller, settings.rate, || {
        meter.edge(Edge::Begin)?;
        thread::sleep(length);
        meter.edge(Edge::End)
    })?;
    let usage = meter.stop()?;
    let cpu = usage.roles.get("server").map_or(0.0, |role| role.cpu());
    ensure(polled.requests > 0, || "no request was answered".to_owned())?;
    Ok(cpu * 1e6 / polled.requests as f64)
}

/// Sends this many requests a second while `work` runs. Returns its outcome.
fn while_polling<T>(
    poller: &mut impl Poller,
    rate: u32,
    work: impl FnOnce() -> Result<T>,
) -> Result<(T, Polled)> {
    let began = Instant::now();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let polling = scope.spawn(|| poll(poller, rate, &stop));
        let outcome = work();
        stop.store(true, Relaxed);
        let requests =
            polling.join().map_err(|_| Failure::from("the polling thread panicked"))??;
        Ok((outcome?, Polled { requests, seconds: began.elapsed().as_secs_f64() }))
    })
}

fn poll(poller: &mut impl Poller, rate: u32, stop: &AtomicBool) -> Result<u64> {
    let Some(every) = Duration::from_secs(1).checked_div(rate) else { return Ok(0) };
    let mut due = Instant::now();
    let mut count = 0;
    while !stop.load(Relaxed) {
        thread::sleep(due.saturating_duration_since(Instant::now()));
        due += every;
        poller.request()?;
        count += 1;
    }
    Ok(count)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Counts(u64);

    impl Poller for Counts {
        const METRICS: [&'static str; 2] = ["commands_per_s", "cpu_us_per_command"];

        fn request(&mut self) -> Result<()> {
            self.0 += 1;
            Ok(())
        }
    }

    #[test]
    fn the_poller_runs_as_long_as_the_work() {
        let mut poller = Counts::default();
        let worked = while_polling(&mut poller, 1000, || {
            thread::sleep(Duration::from_millis(50));
            Ok("done")
        });
        let (outcome, polled) = worked.unwrap();
        assert!(outcome == "done" && polled.requests > 0 && polled.seconds > 0.0);
        assert_eq!(poller.0, polled.requests);
        // A rate of 0 sends nothing.
        assert_eq!(while_polling(&mut poller, 0, || Ok(())).unwrap().1.requests, 0);
        assert!(while_polling(&mut poller, 10, || Err::<(), _>(Failure::from("broken"))).is_err());
    }
}
