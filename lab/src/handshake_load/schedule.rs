//! The times when clients start, relative to the start of a run. They do not depend on the server.

use std::time::Duration;

/// Returns evenly spaced times: the first at once, `rate` a second, none at or after `length`.
pub fn steady(rate: f64, length: Duration) -> Vec<Duration> {
    phases(&[(rate, length)])
}

/// Returns `count` equal times, so that all clients start at once.
pub fn burst(count: usize) -> Vec<Duration> {
    vec![Duration::ZERO; count]
}

/// Returns the times of several phases in sequence, each with a rate and a length; a rate of 0 is a
/// pause.
pub fn phases(phases: &[(f64, Duration)]) -> Vec<Duration> {
    let mut all = Vec::new();
    let mut start = Duration::ZERO;
    for (rate, length) in phases {
        if *rate > 0.0 {
            // Each time is computed from the start of the phase, so rounding errors do not
            // accumulate.
            all.extend(
                (0_u32..)
                    .map(|n| Duration::from_secs_f64(f64::from(n) / rate))
                    .take_while(|at| at < length)
                    .map(|at| start + at),
            );
        }
        start += *length;
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_spaced_evenly_and_ends_before_its_length() {
        let at = steady(4.0, Duration::from_secs(1));
        assert_eq!(at, [0, 250, 500, 750].map(Duration::from_millis));
        assert_eq!(steady(300.0, Duration::from_secs(2)).len(), 600);
    }

    #[test]
    fn phases_follow_each_other_and_pauses_count() {
        let second = Duration::from_secs(1);
        let at = phases(&[(2.0, second), (0.0, second), (1.0, 2 * second)]);
        assert_eq!(at, [0, 500, 2000, 3000].map(Duration::from_millis));
    }

    #[test]
    fn a_burst_is_one_instant() {
        assert_eq!(burst(3), [Duration::ZERO; 3]);
    }
}
