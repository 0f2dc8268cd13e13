//! Measures the cost of processes and of the machine during traffic. Figures are sampled every 100 ms, and are exact at
//! the edges of the window.
//!
//! CPU time is read from the processes' own clocks, which count nanoseconds and include threads that have ended. If
//! there are many processes or hosts, figures that take longer to read are read in turns, so that the measurement takes
//! far less than one per cent of a CPU.

pub mod foreign;
mod join;
mod proc;
mod watch;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit_testbed::failure::{Failure, Result};

use crate::record::{Measurement, Sample};
use crate::testbed::{Counters, Drops, Testbed};
use watch::Watch;

/// The interval between samples.
const EVERY: Duration = Duration::from_millis(100);

/// The share taken by the hypervisor above which a trial is marked.
pub const STEAL_MARK: f64 = 0.01;

/// The two ends of the window that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// The start of the window, before which nothing counts.
    Begin,
    /// The end of the window, after which nothing counts.
    End,
}

/// Watches processes and counters from its start.
#[derive(Debug)]
pub struct Meter {
    watch: Arc<Mutex<Watch>>,
    orders: mpsc::Sender<SamplerCommand>,
    thread: JoinHandle<Result<()>>,
}

/// Commands to the sampling thread.
enum SamplerCommand {
    /// Read everything, because the window has just begun or ended.
    Edge(Edge),
    /// Read everything a last time.
    Stop,
}

/// The cost of the window.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    /// The seconds between the edges, or from start to stop if there were no edges.
    pub seconds: f64,
    /// The cost of the processes, by role.
    pub roles: BTreeMap<String, RoleUsage>,
    /// The samples of the whole time, not only of the window.
    pub samples: Vec<Sample>,
    /// The share of the machine's time that the hypervisor took in the window, 0 to 1.
    pub steal: f64,
    /// The packets dropped in the window.
    pub drops: Drops,
}

/// The cost of the processes of one role in the window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RoleUsage {
    /// CPU seconds in user mode.
    pub user: f64,
    /// CPU seconds in the kernel on the processes' behalf.
    pub system: f64,
    /// Seconds in which threads were ready to run but had no CPU.
    pub wait: f64,
    /// Context switches.
    pub switches: u64,
    /// Proportional set size at the stop, in KiB.
    pub pss_kib: u64,
    /// The part of it that is not backed by a file, in KiB. It is not shared, so it grows with the data that the
    /// process keeps.
    pub anon_kib: u64,
    /// Open file descriptors at the stop.
    pub fds: u64,
    /// The number of processes.
    pub processes: usize,
    /// The number of these that ended before the window did.
    pub ended: usize,
}

impl RoleUsage {
    /// Returns user and system time together. The sum is exact, while the split between the two is the kernel's
    /// estimate.
    pub fn cpu(&self) -> f64 {
        self.user + self.system
    }
}

impl Meter {
    /// Starts to sample; `processes` are the process ids by role (`server`, `client`, ...).
    ///
    /// # Errors
    /// A process has ended, or the kernel's counters cannot be read.
    pub fn start(processes: &[(&str, Vec<u32>)], testbed: &Testbed) -> Result<Self> {
        Self::watch(processes, Some(testbed.counters()))
    }

    fn watch(processes: &[(&str, Vec<u32>)], counters: Option<Arc<Counters>>) -> Result<Self> {
        let watch = Arc::new(Mutex::new(Watch::new(processes, counters)?));
        let (orders, listen) = mpsc::channel();
        let shared = Arc::clone(&watch);
        let thread = std::thread::Builder::new()
            .name("meter".to_owned())
            .spawn(move || sample(&shared, &listen))?;
        Ok(Self { watch, orders, thread })
    }

    /// Marks one end of the window as now. Returns as soon as the clocks are read; the sampling thread reads the slower
    /// figures right afterwards.
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub fn edge(&mut self, edge: Edge) -> Result<()> {
        lock(&self.watch).clocks(edge)?;
        self.orders
            .send(SamplerCommand::Edge(edge))
            .map_err(|_| Failure::from("the sampling has ended"))
    }

    /// Ends the sampling. If there was no [`Edge::End`], the window ends here.
    ///
    /// # Errors
    /// As [`Meter::edge`].
    pub fn stop(self) -> Result<Usage> {
        // If the thread has ended with a failure, joining it returns the failure.
        let _ = self.orders.send(SamplerCommand::Stop);
        self.thread.join().map_err(|_| Failure::from("the sampling thread panicked"))??;
        lock(&self.watch).usage()
    }
}

/// Runs the sampling thread. It also ends if its [`Meter`] is dropped without a stop.
fn sample(watch: &Mutex<Watch>, orders: &mpsc::Receiver<SamplerCommand>) -> Result<()> {
    let mut due = Instant::now();
    loop {
        match orders.recv_timeout(due.saturating_duration_since(Instant::now())) {
            Ok(SamplerCommand::Edge(edge)) => lock(watch).details(edge)?,
            Ok(SamplerCommand::Stop) => return lock(watch).finish(),
            Err(mpsc::RecvTimeoutError::Disconnected) => return Ok(()),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                lock(watch).tick()?;
                // Missed samples are skipped.
                due = (due + EVERY).max(Instant::now());
            }
        }
    }
}

fn lock(watch: &Mutex<Watch>) -> MutexGuard<'_, Watch> {
    watch.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Usage {
    /// Returns the CPU seconds of all roles together in the window.
    pub fn cpu_seconds(&self) -> f64 {
        self.roles.values().map(RoleUsage::cpu).sum()
    }

    /// Writes the costs of the roles `server` and `client` per gigabit that arrived in the window (0: no traffic was
    /// counted, and no ratios are written), the samples, the steal and notes for the reader.
    pub fn put(&self, measurement: &mut Measurement, gigabits: f64) {
        for (role, cost, memory) in [
            ("server", "server_cpu_s_per_gb", "server_pss_mib"),
            ("client", "client_cpu_s_per_gb", "client_pss_mib"),
        ] {
            let Some(usage) = self.roles.get(role).filter(|usage| usage.processes > 0) else {
                continue;
            };
            if gigabits > 0.0 {
                measurement.set(cost, usage.cpu() / gigabits);
            }
            measurement.set(memory, usage.pss_kib as f64 / 1024.0);
            if role == "server" {
                measurement.set("server_anon_mib", usage.anon_kib as f64 / 1024.0);
            }
            if role == "server" && self.seconds > 0.0 {
                measurement.set("server_cpu_percent", usage.cpu() / self.seconds * 100.0);
            }
        }
        let cpu = self.cpu_seconds();
        if gigabits > 0.0 && cpu > 0.0 {
            measurement.set("mb_per_cpu_s", gigabits * 1000.0 / cpu);
        }
        for (role, usage) in self.roles.iter().filter(|(_, usage)| usage.ended > 0) {
            let of = usage.processes;
            measurement.invalid.push(format!(
                "{} of {of} processes of the role {role} ended before the window did",
                usage.ended
            ));
        }
        if self.steal > STEAL_MARK {
            let percent = self.steal * 100.0;
            measurement
                .notes
                .push(format!("marked: the hypervisor took {percent:.1} % of the machine's time"));
        }
        let Drops { sockets, tun, veths } = self.drops;
        if sockets + tun + veths > 0 {
            measurement.notes.push(format!(
                "dropped in the window: {sockets} datagrams at full sockets, {tun} packets at TUN devices, {veths} at the \
                 veths' ends"
            ));
        }
        measurement.samples.extend(self.samples.iter().cloned());
        measurement.steal = measurement.steal.max(self.steal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_has_the_cpu_time_that_was_spent_in_it() {
        let own = std::process::id();
        let mut meter = Meter::watch(&[("server", vec![own]), ("client", vec![])], None).unwrap();
        let mut process = proc::Process::new(own).unwrap();
        let mut spend = |seconds: f64| {
            process.look_at_clock();
            let until = process.cpu + seconds;
            loop {
                process.look_at_clock();
                if process.cpu >= until {
                    return process.cpu;
                }
                std::hint::black_box((0..10_000u64).fold(1u64, |a, n| a.wrapping_mul(31) ^ n));
            }
        };
        let outer_begin = spend(0.1);
        meter.edge(Edge::Begin).unwrap();
        let (begin, end) = (spend(0.0), spend(0.05));
        meter.edge(Edge::End).unwrap();
        let outer_end = spend(0.0);
        let after = spend(0.1);
        let usage = meter.stop().unwrap();
        let server = usage.roles["server"];
        // Other tests may run in this process, so its CPU time may exceed what was used here.
        assert!(server.cpu() >= end - begin, "{server:?}");
        assert!(server.cpu() <= outer_end - outer_begin, "{server:?}");
        assert!(server.pss_kib > 100 && server.fds >= 3);
        assert_eq!((server.processes, server.ended), (1, 0));
        assert_eq!(usage.roles["client"], RoleUsage::default());
        assert!(usage.seconds > 0.0 && !usage.samples.is_empty());
        let last = &usage.samples[usage.samples.len() - 1].processes["server"];
        assert!(last.user + last.system >= after, "{last:?} {after}");
    }

    #[test]
    fn without_edges_everything_counts() {
        let meter = Meter::watch(&[("server", vec![std::process::id()])], None).unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let usage = meter.stop().unwrap();
        assert!(usage.seconds >= 0.005, "{}", usage.seconds);
    }

    fn usage() -> Usage {
        let role = |user, system, pss_kib| RoleUsage {
            user,
            system,
            pss_kib,
            anon_kib: pss_kib / 4,
            processes: 1,
            ..RoleUsage::default()
        };
        Usage {
            seconds: 5.0,
            roles: [("server", role(1.0, 2.0, 10_240)), ("client", role(0.5, 0.5, 2048))]
                .map(|(name, role)| (name.to_owned(), role))
                .into(),
            ..Usage::default()
        }
    }

    #[test]
    fn costs_are_per_gigabit() {
        let mut measurement = Measurement::default();
        usage().put(&mut measurement, 20.0);
        let expected = [
            ("server_cpu_s_per_gb", 0.15),
            ("client_cpu_s_per_gb", 0.05),
            ("mb_per_cpu_s", 5000.0),
            ("server_cpu_percent", 60.0),
            ("server_pss_mib", 10.0),
            ("server_anon_mib", 2.5),
            ("client_pss_mib", 2.0),
        ];
        for (name, value) in expected {
            assert!((measurement.values[name] - value).abs() < 1e-9, "{name}: {measurement:?}");
        }
        assert!(measurement.notes.is_empty() && measurement.invalid.is_empty());
    }

    #[test]
    fn nothing_is_divided_by_nothing() {
        let mut measurement = Measurement::default();
        usage().put(&mut measurement, 0.0);
        assert!(!measurement.values.contains_key("mb_per_cpu_s"));
        assert!(!measurement.values.contains_key("server_cpu_s_per_gb"));
        let mut bare = Measurement::default();
        Usage { seconds: 5.0, ..Usage::default() }.put(&mut bare, 20.0);
        assert!(bare.values.is_empty(), "{bare:?}");
    }

    #[test]
    fn what_spoils_a_trial_is_said() {
        let mut usage = usage();
        usage.steal = 0.013;
        usage.drops = Drops { sockets: 3, tun: 4, veths: 5 };
        usage.roles.get_mut("client").unwrap().ended = 1;
        let mut measurement = Measurement { steal: 0.001, ..Measurement::default() };
        usage.put(&mut measurement, 1.0);
        assert!((measurement.steal - 0.013).abs() < 1e-9);
        let notes = measurement.notes.join("\n");
        assert!(notes.contains("marked") && notes.contains("1.3 %"), "{notes}");
        assert!(notes.contains("3 datagrams") && notes.contains("4 packets"), "{notes}");
        assert!(measurement.invalid[0].contains("client"), "{measurement:?}");
    }
}
