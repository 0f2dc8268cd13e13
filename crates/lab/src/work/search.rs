//! The highest rate with hardly any loss.

use std::time::Duration;

use adit_interop::failure::Result;

use super::{Route, Sizes};

/// How to search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Search {
    /// The highest share of lost datagrams that still counts as carried, 0 to 1.
    pub loss_limit: f64,
    /// The first rate tried, in datagrams a second.
    pub first_pps: f64,
    /// How long a probe measures.
    pub probe: Duration,
    /// How long the last one measures, which must confirm the result.
    pub confirm: Duration,
}

impl Search {
    /// The usual search at this loss: from 2,000 a second, probes of 0.3 s, confirmed for 1 s.
    #[must_use]
    pub fn at(loss_limit: f64) -> Search {
        let (probe, confirm) = (Duration::from_millis(300), Duration::from_secs(1));
        Search { loss_limit, first_pps: 2_000.0, probe, confirm }
    }
}

/// One try.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probe {
    /// The schedule's rate in datagrams a second.
    pub pps: f64,
    /// The lost share, 0 to 1.
    pub loss: f64,
    /// Whether the generator kept its schedule.
    pub kept: bool,
}

/// What ended the search.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Above it more is lost.
    Loss,
    /// Above it the generator does not keep its schedule: the path may carry more.
    Generator,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct Highest {
    /// Datagrams a second, all flows together; 0 if even the smallest rate loses too much.
    pub pps: f64,
    /// Payload of the confirming probe that arrived, in megabits a second.
    pub mbps: f64,
    /// What lies above.
    pub limit: Limit,
    /// All tries in their order.
    pub probes: Vec<Probe>,
}

/// Searches the highest rate at which no more than [`Search::loss_limit`] is lost: doubles until too much is, then halves the
/// interval, then confirms.
///
/// # Errors
/// As [`super::udp_open_loop`].
pub fn udp_search(routes: &[Route<'_>], sizes: Sizes, search: &Search) -> Result<Highest> {
    let _ = (routes, sizes, search);
    Err("the search is not built yet".into())
}
