//! Generates traffic and measures how much of it arrives.
//!
//! Every generator follows the same steps. Its sockets are made inside the namespaces by short-lived threads (a socket
//! stays in the namespace in which it was made). All connections are established. Only then is a common start
//! announced, a few milliseconds ahead, for which all flows wait. One thread sends for all flows and one receives for
//! all, so that a hundred flows cost little more than one. Only data that arrives inside the window counts, by the
//! receiver's time stamps. Every wait has a limit, so a dead tunnel results in a failure or an invalid trial instead of
//! a hang.
//!
//! [`window`] does the accounting and has no I/O.

mod bulk;
mod echo;
mod iperf;
mod sequence;

mod open_loop;
mod requests;
mod run;
mod search;
mod sizes;
mod sockets;
mod times;
pub mod window;

use std::net::IpAddr;
use std::time::Duration;

use adit_testbed::net::Namespace;

pub use crate::measure::Edge;
use crate::record::{Flow, Measurement};

pub use bulk::tcp_bulk;
pub use echo::{Echo, echo_latency, unreachable};
pub use iperf::{iperf3, iperf3_figures};
pub use open_loop::{UdpMeasured, udp_open_loop};
pub use requests::requests;
pub use search::{Limit, Probe, Search, SearchResult, udp_search};
pub use sizes::Sizes;
pub use times::Times;

/// One flow from one host to another. Several streams between two hosts are several routes.
#[derive(Debug, Clone)]
pub struct Route<'a> {
    /// The direction and the client, such as `up 3`, for records and messages.
    pub name: String,
    /// The sender's host.
    pub from: &'a Namespace,
    /// The receiver's host.
    pub to: &'a Namespace,
    /// The receiver's address, as the sender sees it.
    pub to_address: IpAddr,
}

/// The measured window, which begins `warmup` after the common start and lasts for `length`. All data that arrives in
/// it counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// The time from the common start whose arrivals do not count.
    pub warmup: Duration,
    /// The length of the window.
    pub length: Duration,
}

/// The data that arrived inside the window.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Measured {
    /// The flows, in the order of the routes.
    pub flows: Vec<Flow>,
    /// The window's length.
    pub seconds: f64,
    /// The spread of the flows' starts as a share of the window.
    pub skew: f64,
    /// The reasons why this trial does not count; empty if it does.
    pub invalid: Vec<String>,
}

impl Measured {
    /// Returns the throughput of all flows together, in megabits (10^6) of payload a second.
    pub fn mbps(&self) -> f64 {
        self.mbps_of("")
    }

    /// Returns the same for the flows whose name begins with `prefix`, such as `up`.
    pub fn mbps_of(&self, prefix: &str) -> f64 {
        let flows = self.flows.iter().filter(|flow| flow.name.starts_with(prefix));
        let bytes: u64 = flows.map(|flow| flow.bytes).sum();
        if self.seconds > 0.0 { bytes as f64 * 8.0 / 1e6 / self.seconds } else { 0.0 }
    }

    /// Computes Jain's index of the flows' bytes: 1 if all got the same, 1/n if one of n got everything.
    pub fn jain(&self) -> f64 {
        let bytes: Vec<f64> = self.flows.iter().map(|flow| flow.bytes as f64).collect();
        crate::stats::jain(&bytes)
    }

    /// Returns the smallest coverage of a flow, 0 to 1.
    pub fn coverage(&self) -> f64 {
        self.flows.iter().map(|flow| flow.coverage).reduce(f64::min).unwrap_or(0.0)
    }

    /// Adds these figures, flows and reasons to those of a trial: `up_mbps` and `down_mbps` if flows have these names,
    /// `sum_mbps`, and the notes of the window.
    pub fn put(&self, into: &mut Measurement) {
        for (prefix, name) in [("up", "up_mbps"), ("down", "down_mbps")] {
            if self.flows.iter().any(|flow| flow.name.starts_with(prefix)) {
                into.set(name, self.mbps_of(prefix));
            }
        }
        into.set("sum_mbps", self.mbps());
        into.set("jain", self.jain());
        into.set("skew_percent", self.skew * 100.0);
        into.set("coverage_percent", self.coverage() * 100.0);
        into.flows.extend(self.flows.iter().cloned());
        into.invalid.extend(self.invalid.iter().cloned());
    }
}
