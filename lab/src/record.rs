//! The record of a trial: one line of `trials.jsonl`.
//!
//! A report is computed only from these lines and the manifest.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use crate::measure::foreign::{FOREIGN_MARK, PRESSURE_MARK};

/// The file in a run's folder that contains one [`Record`] per line.
pub const TRIALS: &str = "trials.jsonl";

/// The median and the tails of a distribution, by metric.
pub const QUANTILES: [(&str, f64); 4] =
    [("p50_ms", 0.5), ("p90_ms", 0.9), ("p99_ms", 0.99), ("p999_ms", 0.999)];

/// The key of a trial in a run.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct TrialKey {
    /// The scenario's name in its file, such as `single-stream`.
    pub scenario: String,
    /// The point on the scenario's axes.
    pub point: Point,
    /// The subject as its `Display` writes it, such as `adit` or `openvpn`.
    pub subject: String,
    /// The round, counted from 1.
    pub round: u32,
}

impl fmt::Display for TrialKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}/{}/{}", self.scenario, self.point, self.subject, self.round)
    }
}

/// A point on a scenario's axes: `clients=5 link=offload`.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Point(pub BTreeMap<String, String>);

impl Point {
    /// Returns the value on one axis.
    pub fn get(&self, axis: &str) -> Option<&str> {
        self.0.get(axis).map(String::as_str)
    }
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pairs: Vec<String> =
            self.0.iter().map(|(axis, value)| format!("{axis}={value}")).collect();
        f.write_str(&pairs.join(" "))
    }
}

/// One line of `trials.jsonl`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// The key of the trial.
    pub key: TrialKey,
    /// The kind of scenario, as in its file: `throughput`, `loss`, ...
    pub kind: String,
    /// Whether this is one of the A/A trials that come first.
    #[serde(default)]
    pub a_a: bool,
    /// Unix time of the start, in milliseconds.
    pub started_ms: u64,
    /// The duration of the trial with all its preparation, in seconds.
    pub seconds: f64,
    /// The outcome.
    pub outcome: Outcome,
}

/// The outcome of a trial.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[allow(clippy::large_enum_variant)]
pub enum Outcome {
    /// Figures; see [`Measurement::invalid`] for whether they count.
    Measured(Measurement),
    /// The trial was not run; the text gives the reason, such as a peer that is not installed or a transport that a
    /// subject does not support.
    Skipped(String),
    /// The trial failed; the text says how.
    Failed(String),
}

/// The figures of one trial.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// The figures, by the names of [`crate::metric::ALL`].
    pub values: BTreeMap<String, f64>,
    /// The flows of traffic inside the common window.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub flows: Vec<Flow>,
    /// Distributions of times, by name, such as `idle` and `loaded`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub latencies: BTreeMap<String, Latency>,
    /// Counts by length, such as those of trains of packets.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub histograms: BTreeMap<String, BTreeMap<u32, u64>>,
    /// The samples, one every 100 ms.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub samples: Vec<Sample>,
    /// The share of the machine's time that the hypervisor took during the trial, 0 to 1.
    #[serde(default)]
    pub steal: f64,
    /// The share of the machine's time that other programs took during the trial, 0 to 1.
    #[serde(default)]
    pub foreign: f64,
    /// The share of the pause before the trial in which some program waited for a processor, 0 to 1.
    #[serde(default)]
    pub pressure: f64,
    /// The reasons why the figures must not be used; empty if they may be.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub invalid: Vec<String>,
    /// Notes for the reader, such as the relay's own ceiling and jitter.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

impl Measurement {
    /// Sets a figure; `name` is one of [`crate::metric::ALL`].
    pub fn set(&mut self, name: &str, value: f64) {
        debug_assert!(crate::metric::find(name).is_some(), "no metric is called {name}");
        self.values.insert(name.to_owned(), value);
    }

    /// Sets figures from a distribution: for each metric, the time within which the given share arrived. Shares that
    /// were not recorded are left out.
    pub fn set_times(&mut self, latency: &Latency, figures: &[(&str, f64)]) {
        for (name, share) in figures {
            if let Some(ms) = latency.at(*share) {
                self.set(name, ms);
            }
        }
    }

    /// Returns the disturbance by other programs, if it is large enough to mark the trial.
    pub fn disturbance(&self) -> Option<String> {
        let mut said = Vec::new();
        if self.foreign > FOREIGN_MARK {
            said.push(format!("other programs took {:.0} % of the machine", self.foreign * 100.0));
        }
        if self.pressure > PRESSURE_MARK {
            let percent = self.pressure * 100.0;
            said.push(format!(
                "programs waited for a CPU for {percent:.0} % of the pause before it"
            ));
        }
        (!said.is_empty()).then(|| said.join("; "))
    }

    /// Adds the figures of another part of the trial.
    pub fn merge(&mut self, other: Self) {
        self.values.extend(other.values);
        self.flows.extend(other.flows);
        self.latencies.extend(other.latencies);
        self.histograms.extend(other.histograms);
        self.samples.extend(other.samples);
        self.steal = self.steal.max(other.steal);
        self.foreign = self.foreign.max(other.foreign);
        self.pressure = self.pressure.max(other.pressure);
        self.invalid.extend(other.invalid);
        self.notes.extend(other.notes);
    }
}

/// One flow of traffic inside the window that all flows of the trial share.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// The direction and the client, such as `up 3`.
    pub name: String,
    /// The bytes of payload that arrived inside the window.
    pub bytes: u64,
    /// The time when it started, in seconds after the common start.
    pub start: f64,
    /// The share of the window between its first and its last arrival in it, 0 to 1.
    pub coverage: f64,
}

/// A distribution of times in milliseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The number of round trips measured.
    pub count: u64,
    /// The number of probes that never came back, if known.
    #[serde(default)]
    pub lost: u64,
    /// Pairs of `(share, ms)`, ascending, enough to draw the distribution; 0.5, 0.9, 0.99 and 0.999 are among them.
    pub quantiles: Vec<(f64, f64)>,
}

impl Latency {
    /// Returns the time within which this share arrived, if it was recorded.
    pub fn at(&self, share: f64) -> Option<f64> {
        self.quantiles.iter().find(|(q, _)| (q - share).abs() < 1e-9).map(|(_, ms)| *ms)
    }
}

/// One sample of the processes and the counters, taken every 100 ms.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the trial's start.
    pub at: f64,
    /// The processes by role: `server`, `client` (all clients together).
    pub processes: BTreeMap<String, ProcessSample>,
    /// The number of datagrams dropped so far at full sockets, in all namespaces together.
    pub socket_drops: u64,
    /// The number of packets dropped so far at the TUN devices, in all namespaces together.
    pub tun_drops: u64,
}

/// A sample of a role's processes. All figures are totals since they began, except for the last two.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ProcessSample {
    /// CPU seconds in user mode.
    pub user: f64,
    /// CPU seconds in the kernel.
    pub system: f64,
    /// Seconds in which it was ready to run but had no CPU.
    pub wait: f64,
    /// Voluntary and involuntary context switches.
    pub switches: u64,
    /// Proportional set size in KiB.
    pub pss_kib: u64,
    /// Open file descriptors.
    pub fds: u64,
}
