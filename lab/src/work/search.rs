//! The search for the highest rate with little loss.

use std::time::Duration;

use adit_testbed::failure::Result;

use super::open_loop::{over, sockets};
use super::{Route, Sizes, UdpMeasured, Window};

/// The parameters of a search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Search {
    /// The highest share of lost datagrams that still counts as carried, 0 to 1.
    pub loss_limit: f64,
    /// The first rate tried, in datagrams a second.
    pub first_pps: f64,
    /// The duration of a probe.
    pub probe: Duration,
    /// The duration of the last probe. It must confirm the result.
    pub confirm: Duration,
}

impl Search {
    /// Creates the usual search for this loss, which begins at 2,000 a second, with probes of 0.3 s and a confirmation
    /// of 1 s.
    pub fn at(loss_limit: f64) -> Self {
        let (probe, confirm) = (Duration::from_millis(300), Duration::from_secs(1));
        Self { loss_limit, first_pps: 2_000.0, probe, confirm }
    }
}

/// One rate that was tried.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Probe {
    /// The scheduled rate in datagrams a second.
    pub pps: f64,
    /// The share of lost datagrams, 0 to 1.
    pub loss: f64,
    /// Whether the generator kept its schedule.
    pub kept: bool,
}

/// The reason why the search ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// Above the rate, more is lost.
    Loss,
    /// Above the rate, the generator does not keep its schedule, so the path may carry more.
    Generator,
}

/// The result of a search.
#[derive(Debug, Clone, PartialEq)]
pub struct SearchResult {
    /// The rate in datagrams a second, all flows together; 0 if even the smallest rate loses too much.
    pub pps: f64,
    /// The payload of the confirming probe that arrived, in megabits a second.
    pub mbps: f64,
    /// The reason why no higher rate was found.
    pub limit: Limit,
    /// All probes in order.
    pub probes: Vec<Probe>,
}

/// The time before each probe's window, in which queues fill or a token bucket is emptied.
const WARMUP: Duration = Duration::from_millis(100);
/// The time after a probe's last datagram from which datagrams still in flight count as lost.
const GRACE: Duration = Duration::from_millis(300);

/// Searches for the highest rate with a loss of at most [`Search::loss_limit`]. Doubles the rate until too much is
/// lost, narrows the interval to 5 %, and confirms the result with a longer probe.
///
/// # Errors
/// As [`super::udp_open_loop`].
pub fn udp_search(routes: &[Route<'_>], sizes: Sizes, search: &Search) -> Result<SearchResult> {
    let pairs = sockets(routes)?;
    let mut last = UdpMeasured::default();
    let mut probe = |pps: f64, step: Step| {
        let length = match step {
            Step::Probe => search.probe,
            Step::Confirm => search.confirm,
        };
        let window = Window { warmup: WARMUP, length };
        last = over(&pairs, routes, &window, pps, sizes, GRACE, &mut |_| Ok(()))?;
        Ok(Probe { pps, loss: last.loss(), kept: last.kept })
    };
    let found = highest(search.loss_limit, search.first_pps, &mut probe)?;
    let mbps = if found.pps > 0.0 { last.measured.mbps() } else { 0.0 };
    Ok(SearchResult { mbps, ..found })
}

/// The purpose of a probe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Probe,
    Confirm,
}

/// The interval is narrow enough when its ends differ by this factor.
const NARROW: f64 = 1.05;
/// The factor by which a rate that was not confirmed is lowered, and which is squared each time this does not suffice.
const LOWER: f64 = 0.95;
/// The range of rates that are tried.
const RATES: std::ops::RangeInclusive<f64> = 50.0..=20e6;

/// Runs the search. The last call of `probe` confirms the result, unless that is 0.
fn highest(
    loss_limit: f64,
    first: f64,
    probe: &mut dyn FnMut(f64, Step) -> Result<Probe>,
) -> Result<SearchResult> {
    let mut tries = SearchState { loss_limit, probes: Vec::new(), limit: Limit::Loss, probe };
    let mut good = first.clamp(*RATES.start(), *RATES.end());
    let mut bad = good;
    if tries.carries(good, Step::Probe)? {
        loop {
            bad = good * 2.0;
            if bad > *RATES.end() || !tries.carries(bad, Step::Probe)? {
                break;
            }
            good = bad;
        }
    } else {
        loop {
            good = bad / 2.0;
            if good < *RATES.start() {
                return Ok(tries.found(0.0));
            }
            if tries.carries(good, Step::Probe)? {
                break;
            }
            bad = good;
        }
    }
    while bad / good > NARROW {
        let middle = (good * bad).sqrt();
        if tries.carries(middle, Step::Probe)? {
            good = middle;
        } else {
            bad = middle;
        }
    }
    let mut lower = LOWER;
    while good >= *RATES.start() {
        if tries.carries(good, Step::Confirm)? {
            return Ok(tries.found(good));
        }
        good *= lower;
        lower *= lower;
    }
    Ok(tries.found(0.0))
}

struct SearchState<'a> {
    loss_limit: f64,
    probes: Vec<Probe>,
    /// The limit of the last rate that was too high.
    limit: Limit,
    probe: &'a mut dyn FnMut(f64, Step) -> Result<Probe>,
}

impl SearchState<'_> {
    /// Returns whether this rate is carried. A single failure may be caused by a pause of the machine, so two in a row
    /// are required.
    fn carries(&mut self, pps: f64, step: Step) -> Result<bool> {
        let mut limit = Limit::Generator;
        for _ in 0..2 {
            let probe = (self.probe)(pps, step)?;
            self.probes.push(probe);
            if probe.kept && probe.loss <= self.loss_limit {
                return Ok(true);
            }
            // Loss shows the limit of the path, even if the generator also fell behind.
            if probe.loss > self.loss_limit {
                limit = Limit::Loss;
            }
            let hopeless = probe.loss > self.loss_limit + HOPELESS;
            if hopeless {
                break;
            }
        }
        self.limit = limit;
        Ok(false)
    }

    fn found(self, pps: f64) -> SearchResult {
        SearchResult { pps, mbps: 0.0, limit: self.limit, probes: self.probes }
    }
}

/// A loss so far above the limit that no pause of the machine explains it.
const HOPELESS: f64 = 0.1;

#[cfg(test)]
mod tests {
    use super::*;

    /// Simulates a path that carries `capacity` and loses any excess, and a generator that can send at most `most`.
    fn path(capacity: f64, most: f64) -> impl FnMut(f64, Step) -> Result<Probe> {
        move |pps, _| {
            let offered = pps.min(most);
            let loss = (1.0 - capacity / offered).max(0.0);
            Ok(Probe { pps, loss, kept: offered >= 0.98 * pps })
        }
    }

    fn within(found: f64, low: f64, high: f64) {
        assert!((low..=high).contains(&found), "{found} is not in {low}..={high}");
    }

    #[test]
    fn finds_the_capacity_from_below_and_from_above() {
        for first in [100.0, 2_000.0, 1_000_000.0] {
            let found = highest(0.0, first, &mut path(54_321.0, f64::MAX)).unwrap();
            within(found.pps, 54_321.0 / NARROW, 54_321.0);
            assert_eq!(found.limit, Limit::Loss);
            assert!(found.probes.len() < 40, "{}", found.probes.len());
        }
    }

    #[test]
    fn a_loss_limit_allows_a_little_more() {
        let capacity = 10_000.0;
        let found = highest(0.1, 2_000.0, &mut path(capacity, f64::MAX)).unwrap();
        within(found.pps, capacity / 0.9 / NARROW, capacity / 0.9);
    }

    #[test]
    fn the_result_is_what_was_confirmed_last() {
        let mut confirmed = Vec::new();
        let mut inner = path(54_321.0, f64::MAX);
        let found = highest(0.0, 2_000.0, &mut |pps, step| {
            if step == Step::Confirm {
                confirmed.push(pps);
            }
            inner(pps, step)
        });
        let found = found.unwrap();
        assert_eq!(confirmed, [found.pps]);
        assert_eq!(found.probes.last().unwrap().pps, found.pps);
    }

    #[test]
    fn a_generator_that_falls_behind_ends_the_search_and_is_named() {
        let found = highest(0.0, 2_000.0, &mut path(f64::MAX, 100_000.0)).unwrap();
        assert_eq!(found.limit, Limit::Generator);
        within(found.pps, 100_000.0 / NARROW, 100_000.0 / 0.98);
    }

    #[test]
    fn loss_names_the_path_even_where_the_generator_also_fell_behind_once() {
        let mut calls = 0;
        let found = highest(0.0, 2_000.0, &mut |pps, _| {
            calls += 1;
            let too_much = pps > 30_000.0;
            let loss = if too_much && calls % 2 == 0 { 0.05 } else { 0.0 };
            Ok(Probe { pps, loss, kept: !too_much || calls % 2 == 0 })
        });
        assert_eq!(found.unwrap().limit, Limit::Loss);
    }

    #[test]
    fn one_stray_loss_does_not_end_the_search() {
        let mut inner = path(50_000.0, f64::MAX);
        let mut calls = 0;
        let found = highest(0.0, 2_000.0, &mut |pps, step| {
            calls += 1;
            let clean = inner(pps, step)?;
            // Every third probe loses a datagram although the path is not full.
            Ok(if calls % 3 == 0 { Probe { loss: clean.loss.max(0.001), ..clean } } else { clean })
        });
        within(found.unwrap().pps, 50_000.0 / NARROW, 50_000.0);
    }

    #[test]
    fn a_rate_that_short_probes_carry_and_long_ones_do_not_is_lowered() {
        let found = highest(0.0, 2_000.0, &mut |pps, step| match step {
            Step::Probe => path(50_000.0, f64::MAX)(pps, step),
            Step::Confirm => path(45_000.0, f64::MAX)(pps, step),
        });
        within(found.unwrap().pps, 45_000.0 * LOWER * LOWER, 45_000.0);
    }

    #[test]
    fn a_path_that_tires_soon_is_still_given_a_rate_that_was_confirmed() {
        let tired = |capacity: f64| {
            highest(0.0, 2_000.0, &mut |pps, step| match step {
                Step::Probe => path(50_000.0, f64::MAX)(pps, step),
                Step::Confirm => path(capacity, f64::MAX)(pps, step),
            })
            .unwrap()
        };
        within(tired(12_000.0).pps, 4_000.0, 12_000.0);
        let dead = tired(0.0);
        assert!(dead.pps == 0.0 && dead.probes.len() < 40, "{dead:?}");
    }

    #[test]
    fn a_path_that_carries_nothing_is_found_so_in_the_end() {
        let found = highest(0.0, 2_000.0, &mut path(0.0, f64::MAX)).unwrap();
        assert_eq!((found.pps, found.limit), (0.0, Limit::Loss));
    }

    #[test]
    fn without_any_limit_it_ends_all_the_same() {
        let found = highest(0.0, 2_000.0, &mut path(f64::MAX, f64::MAX)).unwrap();
        within(found.pps, 9e6, 40e6);
    }
}
