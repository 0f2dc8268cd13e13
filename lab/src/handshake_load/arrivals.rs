//! The outcome of each client of a schedule, and figures computed from it.

use std::time::Duration;

use hdrhistogram::Histogram;

use super::pushed::AppliedConfig;
use crate::record::Latency;

/// One client of a schedule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Arrival {
    /// The scheduled start, from the start of the run.
    pub intended: Duration,
    /// The time from the intended start until the client was connected, including any delay of the actual start; `None`
    /// if it never connected.
    pub latency: Option<Duration>,
}

/// The outcome of one run of a schedule.
#[derive(Debug, Clone, Default)]
pub struct LoadOutcome {
    /// The clients, in the order of the schedule.
    pub arrivals: Vec<Arrival>,
    /// The number of times that a client restarted or gave up, by reason.
    pub setbacks: Vec<(String, u64)>,
    /// The configuration that each client received at each connect, including clients that have since left.
    pub told: Vec<AppliedConfig>,
    /// Addresses that a client received while another connected client still had them, with the names of both clients.
    pub shared: Vec<String>,
    /// The CPU time of the client pool, including its sockets, in seconds.
    pub cpu: f64,
    /// The duration of the run, in seconds.
    pub seconds: f64,
}

impl LoadOutcome {
    /// Returns the number of clients that connected.
    pub fn up(&self) -> usize {
        self.arrivals.iter().filter(|arrival| arrival.latency.is_some()).count()
    }

    /// Returns the share that never connected, 0 to 1.
    pub fn unfinished(&self) -> f64 {
        share(self.arrivals.len() - self.up(), self.arrivals.len())
    }

    /// Returns the number of clients per second, from the first intended start until the last client was connected.
    pub fn rate(&self) -> f64 {
        let ends = self.arrivals.iter().filter_map(|a| Some(a.intended + a.latency?));
        let first = self.arrivals.iter().map(|arrival| arrival.intended).min().unwrap_or_default();
        let took = ends.max().unwrap_or_default().saturating_sub(first).as_secs_f64();
        if took > 0.0 { count(self.up()) / took } else { 0.0 }
    }

    /// Returns the number of setbacks, whatever the reason.
    pub fn refused(&self) -> u64 {
        self.setbacks.iter().map(|(_, times)| times).sum()
    }

    /// Returns the share of one core that the clients took, 0 to 1.
    pub fn generator_share(&self) -> f64 {
        if self.seconds > 0.0 { self.cpu / self.seconds } else { 0.0 }
    }
}

pub(crate) fn count(number: usize) -> f64 {
    number as f64
}

fn share(part: usize, whole: usize) -> f64 {
    if whole == 0 { 0.0 } else { count(part) / count(whole) }
}

/// The shares at which a distribution is recorded.
const SHARES: [f64; 14] =
    [0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9999, 1.0];

/// Returns the latency distribution of the clients that connected; the others are counted as `lost`.
pub fn latency<'a>(arrivals: impl IntoIterator<Item = &'a Arrival>) -> Latency {
    // Three significant digits; the range grows as needed. `new` fails only for an invalid precision.
    let Ok(mut histogram) = Histogram::<u64>::new(3) else { return Latency::default() };
    let mut lost = 0;
    for arrival in arrivals {
        match arrival.latency {
            Some(time) => {
                let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
                // A histogram that resizes itself accepts every value.
                let _ = histogram.record(micros);
            }
            None => lost += 1,
        }
    }
    let at = |share: f64| (share, histogram.value_at_quantile(share) as f64 / 1e3);
    let quantiles = if histogram.is_empty() { Vec::new() } else { SHARES.map(at).to_vec() };
    Latency { count: histogram.len(), lost, quantiles }
}

/// Returns the server's recovery time: from `after` until the first `window` whose clients all connected, 99 % of them within `limit`.
/// `None` if there was no such window during the run.
pub fn recovery(
    arrivals: &[Arrival],
    after: Duration,
    window: Duration,
    limit: Duration,
) -> Option<Duration> {
    let calm: Vec<&Arrival> = arrivals.iter().filter(|arrival| arrival.intended >= after).collect();
    let end = calm.last()?.intended;
    calm.iter().enumerate().find_map(|(index, first)| {
        let until = first.intended + window;
        let inside = || calm.iter().skip(index).take_while(|arrival| arrival.intended < until);
        // A window that extends beyond the run proves nothing.
        let whole = until <= end + window / 10;
        let distribution = latency(inside().copied());
        let good = distribution.lost == 0
            && distribution.at(0.99).is_some_and(|ms| ms <= limit.as_secs_f64() * 1e3);
        (whole && good).then(|| first.intended.saturating_sub(after))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arrival(intended_ms: u64, latency_ms: Option<u64>) -> Arrival {
        Arrival {
            intended: Duration::from_millis(intended_ms),
            latency: latency_ms.map(Duration::from_millis),
        }
    }

    #[test]
    fn figures_of_a_run() {
        let arrivals = vec![
            arrival(0, Some(10)),
            arrival(100, Some(300)),
            arrival(200, None),
            arrival(300, Some(20)),
        ];
        let setbacks = vec![("a".to_owned(), 2), ("b".to_owned(), 1)];
        let ran =
            LoadOutcome { arrivals, setbacks, cpu: 0.1, seconds: 0.5, ..LoadOutcome::default() };
        assert_eq!((ran.up(), ran.refused()), (3, 3));
        assert!((ran.unfinished() - 0.25).abs() < 1e-9);
        // The last client was connected after 400 ms.
        assert!((ran.rate() - 7.5).abs() < 1e-9, "{}", ran.rate());
        assert!((ran.generator_share() - 0.2).abs() < 1e-9);
        let latency = latency(&ran.arrivals);
        assert_eq!((latency.count, latency.lost), (3, 1));
        assert!((latency.at(0.5).unwrap_or_default() - 20.0).abs() < 0.1);
        assert!((latency.at(0.99).unwrap_or_default() - 300.0).abs() < 0.5);
    }

    #[test]
    fn recovers_when_the_last_slow_one_is_past() {
        let second = Duration::from_secs(1);
        // Ten clients start each second. They are slow until 2.4 s, although the overload ended at 1 s.
        let arrivals: Vec<Arrival> = (0..60)
            .map(|n| arrival(n * 100, Some(if n * 100 <= 2400 { 500 } else { 5 })))
            .collect();
        let after = recovery(&arrivals, second, second, Duration::from_millis(10));
        assert_eq!(after, Some(Duration::from_millis(1500)));
    }

    #[test]
    fn a_client_that_never_came_up_holds_recovery_back() {
        let second = Duration::from_secs(1);
        let arrivals: Vec<Arrival> =
            (0..40).map(|n| arrival(n * 100, (n != 15).then_some(5))).collect();
        let after = recovery(&arrivals, second, second, Duration::from_millis(10));
        assert_eq!(after, Some(Duration::from_millis(600)));
    }

    #[test]
    fn no_recovery_is_claimed_without_a_whole_window() {
        let second = Duration::from_secs(1);
        let arrivals: Vec<Arrival> =
            (0..20).map(|n| arrival(n * 100, Some(if n < 15 { 500 } else { 5 }))).collect();
        assert_eq!(recovery(&arrivals, second, second, Duration::from_millis(10)), None);
    }
}
