//! The pauses between attempts.

use std::time::Duration;

/// The approximate length of the first pause.
const SHORTEST: Duration = Duration::from_millis(50);

/// The longest pause.
const LONGEST: Duration = Duration::from_secs(3);

/// Growing pauses with a random part, so that not all nodes connect at the same moment when a database becomes
/// available again.
#[derive(Clone, Debug)]
pub struct Backoff {
    next: Duration,
    noise: Jitter,
}

impl Backoff {
    /// Creates pauses whose random part follows from a seed.
    pub fn new(seed: u64) -> Self {
        Self { next: SHORTEST, noise: Jitter::new(seed) }
    }

    /// Returns the pause before the next attempt: between half of the current length and the full length.
    pub fn pause(&mut self) -> Duration {
        let length = self.next;
        self.next = (length * 2).min(LONGEST);
        length / 2 + self.noise.below(length / 2)
    }

    /// Resets the pause after a success.
    pub fn reset(&mut self) {
        self.next = SHORTEST;
    }
}

/// A random number generator only for pauses (xorshift64*). An attacker gains nothing by guessing them.
#[derive(Clone, Debug)]
pub struct Jitter(u64);

impl Jitter {
    /// Creates a generator from a seed.
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    /// Returns a random duration shorter than `limit`.
    pub fn below(&mut self, limit: Duration) -> Duration {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        let bits = self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 32;
        let nanos = u64::try_from(limit.as_nanos()).unwrap_or(u64::MAX);
        Duration::from_nanos(((u128::from(nanos) * u128::from(bits)) >> 32) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_never_leave_their_range() {
        for seed in 0..50 {
            let mut backoff = Backoff::new(seed);
            let mut length = SHORTEST;
            for _ in 0..12 {
                let pause = backoff.pause();
                assert!(pause >= length / 2 && pause <= length, "{pause:?} of {length:?}");
                length = (length * 2).min(LONGEST);
            }
            assert_eq!(length, LONGEST);
            backoff.reset();
            assert!(backoff.pause() <= SHORTEST);
        }
    }

    #[test]
    fn two_nodes_do_not_pause_alike() {
        let pauses = |seed| {
            let mut backoff = Backoff::new(seed);
            (0..4).map(|_| backoff.pause()).collect::<Vec<_>>()
        };
        assert_ne!(pauses(0x1234_5678_9abc_def1), pauses(0x0fed_cba9_8765_4321));
    }
}
