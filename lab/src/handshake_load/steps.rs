//! The search for the highest rate that the server sustains.

use std::time::Duration;

use super::arrivals::{LoadOutcome, latency};

/// The parameters of the search.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The first rate, in clients a second.
    pub first: f64,
    /// The factor from one rate to the next.
    pub factor: f64,
    /// The number of times that the gap between the last good and the first bad rate is halved (geometrically).
    pub refinements: usize,
    /// The highest rate that is tried.
    pub highest: f64,
    /// A rate is not sustained if the 99th percentile of the latency is above this.
    pub p99: Duration,
    /// A rate is not sustained if a larger share of the clients never connected.
    pub unfinished: f64,
}

impl Default for Plan {
    fn default() -> Self {
        Self {
            first: 200.0,
            factor: 2.0,
            refinements: 3,
            highest: 20_000.0,
            p99: Duration::from_millis(100),
            unfinished: 0.01,
        }
    }
}

/// One rate that was tried.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Step {
    /// The offered rate, in clients a second.
    pub offered: f64,
    /// The achieved rate, in clients a second.
    pub achieved: f64,
    /// The 99th percentile of the latency of the clients that connected, in milliseconds.
    pub p99_ms: f64,
    /// The share that never connected.
    pub unfinished: f64,
}

impl Step {
    /// Returns the step of a run at this rate.
    pub fn of(offered: f64, ran: &LoadOutcome) -> Self {
        let p99_ms = latency(&ran.arrivals).at(0.99).unwrap_or(f64::INFINITY);
        Self { offered, achieved: ran.rate(), p99_ms, unfinished: ran.unfinished() }
    }
}

/// The next action of the search.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Next {
    /// Offer this rate.
    Try(f64),
    /// Stop. Contains the index of the highest rate that was sustained, if any was.
    Done(Option<usize>),
}

impl Plan {
    /// Returns whether the server sustained this rate.
    pub fn sustains(&self, step: &Step) -> bool {
        step.p99_ms <= self.p99.as_secs_f64() * 1e3 && step.unfinished <= self.unfinished
    }

    /// Returns the next action after these steps. A rate fails only when it fails twice, because otherwise a single
    /// pause of a shared machine would be mistaken for the server's limit.
    pub fn next(&self, steps: &[Step]) -> Next {
        let mut good: Option<usize> = None;
        let mut bad: Option<f64> = None;
        let mut bad_rates = 0;
        for (index, step) in steps.iter().enumerate() {
            let rate = step.offered;
            if self.sustains(step) {
                if good.and_then(|best| steps.get(best)).is_none_or(|best| rate > best.offered) {
                    good = Some(index);
                }
            } else if steps.iter().take(index).any(|earlier| same(earlier.offered, rate)) {
                bad = Some(bad.map_or(rate, |lowest| lowest.min(rate)));
                bad_rates += 1;
            } else if steps.len() == index + 1 {
                return Next::Try(rate);
            }
        }
        let best = good.and_then(|best| steps.get(best)).map(|step| step.offered);
        // The number of refinements so far: the rates tried after the first failure.
        let refined = match bad {
            None => 0,
            Some(_) => self.refined(steps),
        };
        match (best, bad) {
            (None, None) => Next::Try(self.first),
            // Even the first rate failed, so try lower ones a few times.
            (None, Some(lowest)) if bad_rates <= self.refinements => {
                Next::Try(lowest / self.factor)
            }
            (None, Some(_)) => Next::Done(None),
            (Some(rate), None) if rate < self.highest => {
                Next::Try((rate * self.factor).min(self.highest))
            }
            (Some(rate), Some(lowest)) if refined < self.refinements && rate < lowest => {
                Next::Try((rate * lowest).sqrt())
            }
            (Some(_), _) => Next::Done(good),
        }
    }

    /// Returns the number of rates that were tried after the first one that failed twice.
    fn refined(&self, steps: &[Step]) -> usize {
        let failed = steps.iter().enumerate().position(|(index, step)| {
            !self.sustains(step)
                && steps.iter().take(index).any(|earlier| same(earlier.offered, step.offered))
        });
        let after: Vec<f64> =
            steps.iter().skip(failed.map_or(0, |at| at + 1)).map(|step| step.offered).collect();
        let first_of = |index: usize, rate: f64| !after.iter().take(index).any(|r| same(*r, rate));
        after.iter().enumerate().filter(|(index, rate)| first_of(*index, **rate)).count()
    }
}

fn same(a: f64, b: f64) -> bool {
    (a - b).abs() < 1e-6
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plan() -> Plan {
        Plan { first: 100.0, refinements: 2, ..Plan::default() }
    }

    /// Runs the plan against a server that sustains this many clients a second, and returns the offered rates and the
    /// outcome.
    fn against(plan: &Plan, capacity: f64, hiccup_at: Option<usize>) -> (Vec<f64>, Option<f64>) {
        let mut steps: Vec<Step> = Vec::new();
        loop {
            match plan.next(&steps) {
                Next::Try(offered) => {
                    let slow = offered > capacity || hiccup_at == Some(steps.len());
                    let p99_ms = if slow { 900.0 } else { 5.0 };
                    steps.push(Step { offered, achieved: offered, p99_ms, unfinished: 0.0 });
                    assert!(steps.len() < 50, "no end: {steps:?}");
                }
                Next::Done(best) => {
                    let rates = steps.iter().map(|step| step.offered).collect();
                    return (rates, best.map(|best| steps[best].offered));
                }
            }
        }
    }

    #[test]
    fn doubles_until_it_fails_twice_and_halves_the_gap() {
        let (rates, best) = against(&plan(), 700.0, None);
        let rounded: Vec<i64> = rates.iter().map(|rate| rate.round() as i64).collect();
        // 400 is sustained, 800 is not; 566 and 673 are sustained.
        assert_eq!(rounded, [100, 200, 400, 800, 800, 566, 673]);
        assert!((best.unwrap() - 672.717).abs() < 0.01);
    }

    #[test]
    fn one_pause_of_the_machine_is_no_limit() {
        let (rates, best) = against(&plan(), 700.0, Some(1));
        assert_eq!(rates.get(1..3), Some(&[200.0, 200.0][..]));
        assert!((best.unwrap() - 672.717).abs() < 0.01);
    }

    #[test]
    fn looks_below_the_first_rate_and_gives_up() {
        let (_, best) = against(&plan(), 30.0, None);
        assert_eq!(best, Some(25.0));
        let (rates, best) = against(&plan(), 0.0, None);
        assert_eq!((rates.len(), best), (6, None));
    }

    #[test]
    fn stops_at_the_highest_rate() {
        let plan = Plan { highest: 1000.0, ..plan() };
        let (rates, best) = against(&plan, 1e9, None);
        assert_eq!((rates, best), (vec![100.0, 200.0, 400.0, 800.0, 1000.0], Some(1000.0)));
    }

    #[test]
    fn unfinished_clients_are_not_borne_however_fast_the_others_were() {
        let step = Step { offered: 100.0, achieved: 98.0, p99_ms: 1.0, unfinished: 0.02 };
        assert!(!plan().sustains(&step));
        assert!(plan().sustains(&Step { unfinished: 0.01, ..step }));
        assert!(!plan().sustains(&Step { unfinished: 0.0, p99_ms: 100.1, ..step }));
    }
}
