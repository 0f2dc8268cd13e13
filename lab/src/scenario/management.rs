//! Bulk traffic while a management client sends commands to the server, to measure what the commands cost.
//!
//! One tunnel carries all slices of a trial. In every second pair of slices the order is reversed, so a drift of the machine
//! affects the slices with commands as much as those without.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;
use std::time::{Duration, Instant};

use adit_testbed::failure::{Context, Failure, Result, ensure};

use super::runner::Runner;
use super::trial_run::{Direction, MeasuredCost, TrialRun};
use crate::measure::Meter;
use crate::plan::Settings;
use crate::record::Measurement;
use crate::subject::Subject;
use crate::work::{Edge, Window, tcp_bulk};

/// The commands, which are repeated in this order: those with which controllers and exporters poll a server.
const COMMANDS: [&str; 4] = ["status 2", "load-stats", "state", "pid"];

/// The number of slices with commands, and of those without.
const SLICES: u32 = 8;

/// The time limit for a reply.
const REPLY_LIMIT: Duration = Duration::from_secs(10);

/// The sums of the slices of one state.
#[derive(Debug, Default)]
struct Sums {
    gigabits: f64,
    seconds: f64,
    server_cpu: f64,
    polled: Polled,
}

/// The commands that were answered, and the time that they took.
#[derive(Debug, Clone, Copy, Default)]
struct Polled {
    commands: u64,
    seconds: f64,
}

impl Sums {
    fn add(&mut self, cost: &MeasuredCost, polled: Polled) {
        self.gigabits += cost.gigabits();
        self.seconds += cost.measured.seconds;
        self.server_cpu += cost.usage.roles.get("server").map_or(0.0, |role| role.cpu());
        self.polled.commands = self.polled.commands.saturating_add(polled.commands);
        self.polled.seconds += polled.seconds;
    }

    fn mbps(&self) -> f64 {
        self.gigabits * 1e3 / self.seconds
    }
}

/// Measures `sum_mbps` (with commands), `cost_percent` (the throughput that the commands cost), `commands_per_s` (that were
/// answered), `server_cpu_s_per_gb` (with commands) and `cpu_us_per_command` (of the server, without traffic).
pub(super) fn run(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
) -> Result<Measurement> {
    let testbed = runner.testbed(&Settings { clients: 1, ..settings.clone() })?;
    let folder = runner.toolchain().scratch()?;
    let socket = folder.path().join("management");
    let line = format!("management {} unix", socket.display());
    let run = runner.start_with(testbed, settings, subject, vec![line])?;
    measure(&run, settings, &socket).map_err(|failure| run.broken(&failure))
}

fn measure(run: &TrialRun, settings: &Settings, socket: &Path) -> Result<Measurement> {
    let rate = settings.rate;
    let mut client = ManagementClient::connect(socket)?;
    let mut measurement = Measurement::default();
    if rate > 0 {
        measurement.set("cpu_us_per_command", idle(run, settings, &mut client)?);
    }
    let window = Window { warmup: settings.warmup, length: settings.length / SLICES };
    let mut routes = run.routes(Direction::Up, 1);
    routes.extend(run.routes(Direction::Down, 1));
    let (mut with, mut without) = (Sums::default(), Sums::default());
    for slice in 0..2 * SLICES {
        let bulk = || run.measure_cost(|edge| tcp_bulk(&routes, &window, edge));
        // ABBA
        let commands = matches!(slice % 4, 1 | 2);
        let (cost, polled) =
            if commands { client.while_polling(rate, bulk)? } else { (bulk()?, Polled::default()) };
        measurement.invalid.extend(cost.measured.invalid.iter().cloned());
        if commands { &mut with } else { &mut without }.add(&cost, polled);
    }
    ensure(without.gigabits > 0.0 && with.gigabits > 0.0, || "nothing was transferred".to_owned())?;
    measurement.set("sum_mbps", with.mbps());
    measurement.set("cost_percent", (1.0 - with.mbps() / without.mbps()) * 100.0);
    measurement.set("server_cpu_s_per_gb", with.server_cpu / with.gigabits);
    measurement.set("commands_per_s", with.polled.commands as f64 / with.polled.seconds);
    measurement.notes.extend(run.tunnels.notes.iter().cloned());
    Ok(measurement)
}

/// Returns the server's CPU time for a command without other work, in microseconds.
fn idle(run: &TrialRun, settings: &Settings, client: &mut ManagementClient) -> Result<f64> {
    let length = settings.length / SLICES;
    let mut meter = Meter::start(&run.tunnels.processes(), &run.testbed)?;
    let ((), polled) = client.while_polling(settings.rate, || {
        meter.edge(Edge::Begin)?;
        thread::sleep(length);
        meter.edge(Edge::End)
    })?;
    let usage = meter.stop()?;
    let cpu = usage.roles.get("server").map_or(0.0, |role| role.cpu());
    ensure(polled.commands > 0, || "no command was answered".to_owned())?;
    Ok(cpu * 1e6 / polled.commands as f64)
}

/// A management client, which reads the reply to a command before it sends the next.
struct ManagementClient {
    stream: BufReader<UnixStream>,
    sent: usize,
}

impl ManagementClient {
    fn connect(path: &Path) -> Result<Self> {
        let stream = UnixStream::connect(path).context(path.display())?;
        stream.set_read_timeout(Some(REPLY_LIMIT))?;
        Ok(Self { stream: BufReader::new(stream), sent: 0 })
    }

    /// Sends this many commands a second while `work` runs. Returns its outcome.
    fn while_polling<T>(
        &mut self,
        rate: u32,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<(T, Polled)> {
        let began = Instant::now();
        let stop = AtomicBool::new(false);
        thread::scope(|scope| {
            let polling = scope.spawn(|| self.poll(rate, &stop));
            let outcome = work();
            stop.store(true, Relaxed);
            let commands =
                polling.join().map_err(|_| Failure::from("the polling thread panicked"))??;
            Ok((outcome?, Polled { commands, seconds: began.elapsed().as_secs_f64() }))
        })
    }

    fn poll(&mut self, rate: u32, stop: &AtomicBool) -> Result<u64> {
        let Some(every) = Duration::from_secs(1).checked_div(rate) else { return Ok(0) };
        let mut due = Instant::now();
        let mut count = 0;
        while !stop.load(Relaxed) {
            thread::sleep(due.saturating_duration_since(Instant::now()));
            due += every;
            self.command()?;
            count += 1;
        }
        Ok(count)
    }

    fn command(&mut self) -> Result<()> {
        let command = COMMANDS.get(self.sent % COMMANDS.len()).copied().unwrap_or("pid");
        self.sent = self.sent.wrapping_add(1);
        writeln!(self.stream.get_mut(), "{command}")?;
        let mut line = String::new();
        loop {
            line.clear();
            let count = self.stream.read_line(&mut line).context(command)?;
            ensure(count > 0, || "the management interface has ended".to_owned())?;
            let text = line.trim_end();
            ensure(!text.starts_with("ERROR:"), || format!("{command}: {text}"))?;
            if text == "END" || text.starts_with("SUCCESS:") {
                return Ok(());
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Answers each command with a notification and a block or a line.
    fn answer(stream: &UnixStream) -> std::io::Result<()> {
        let mut to = stream;
        for line in BufReader::new(stream).lines() {
            to.write_all(b">BYTECOUNT_CLI:0,1,2\n")?;
            match line?.as_str() {
                "pid" | "load-stats" => to.write_all(b"SUCCESS: pid=7\n")?,
                _ => to.write_all(b"TITLE\nEND\n")?,
            }
        }
        Ok(())
    }

    #[test]
    fn every_command_is_answered_before_the_next() {
        let (near, far) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || {
            let _ = answer(&far);
        });
        let mut client = ManagementClient { stream: BufReader::new(near), sent: 0 };
        let worked = client.while_polling(1000, || {
            thread::sleep(Duration::from_millis(50));
            Ok("done")
        });
        let (outcome, polled) = worked.unwrap();
        assert!(outcome == "done" && polled.commands > 0 && polled.seconds > 0.0);
        assert_eq!(client.sent as u64, polled.commands);
        // A rate of 0 sends nothing.
        assert_eq!(client.while_polling(0, || Ok(())).unwrap().1.commands, 0);
        let failed = client.while_polling(10, || Err::<(), _>(Failure::from("broken")));
        assert!(failed.is_err());
        drop(client);
        server.join().unwrap();
    }
}
