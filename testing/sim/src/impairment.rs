use std::time::Duration;

use adit_engine::{Instant, Random};

/// The impairment of packets on a link.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Impairment {
    /// The model of packet loss.
    pub loss: Loss,
    /// The share of packets that arrive twice, 0 to 1.
    pub duplicate: f64,
    /// The share of packets that are held back by up to `reorder_by`, 0 to 1.
    pub reorder: f64,
    /// The maximum delay of a reordered packet.
    pub reorder_by: Duration,
    /// The one-way delay.
    pub delay: Duration,
    /// The maximum additional delay. It is evenly distributed from zero; the order is kept.
    pub jitter: Duration,
}

/// A model of packet loss.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Loss {
    /// No loss.
    #[default]
    None,
    /// Each packet is lost with this probability, independently.
    Random(f64),
    /// The model of Gilbert and Elliott: a good state that loses no packet and a bad one that loses all. A pause of 100
    /// ms ends the bad one.
    Bursts {
        /// The probability, per packet, of entering the bad state.
        begin: f64,
        /// The probability, per packet, of returning to the good state: bursts last `1 / end` packets on average.
        end: f64,
    },
}

impl Loss {
    /// Creates bursts that lose this share of all packets (below 1) and are this many packets long on average (at least
    /// 1).
    pub fn bursts(share: f64, mean_length: f64) -> Self {
        let end = 1.0 / mean_length.max(1.0);
        // In the long run the share of bad packets is begin / (begin + end).
        Self::Bursts { begin: (share * end / (1.0 - share)).min(1.0), end }
    }
}

/// The pause that ends a burst. If it were counted only in packets, a burst would last for minutes when a sender backs
/// off.
const PAUSE: Duration = Duration::from_millis(100);

/// The random decisions about one packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct PacketOutcome {
    pub(crate) lost: bool,
    pub(crate) duplicated: bool,
    /// How long it is held back, out of order.
    pub(crate) held: Duration,
    /// How long it is delayed, in order.
    pub(crate) delay: Duration,
}

/// The state of an impairment.
#[derive(Debug)]
pub(crate) struct ImpairmentState {
    impairment: Impairment,
    random: Random,
    in_burst: bool,
    last: Instant,
}

impl ImpairmentState {
    pub(crate) fn new(impairment: Impairment, random: Random) -> Self {
        Self { impairment, random, in_burst: false, last: Instant::default() }
    }

    /// Applies another impairment from the next packet on; a burst in progress ends unless the new one has bursts too.
    pub(crate) fn change(&mut self, impairment: Impairment) {
        self.in_burst &= matches!(impairment.loss, Loss::Bursts { .. });
        self.impairment = impairment;
    }

    pub(crate) fn next_outcome(&mut self, now: Instant) -> PacketOutcome {
        if now.since(self.last) > PAUSE {
            self.in_burst = false;
        }
        self.last = now;
        let Impairment { duplicate, reorder, reorder_by, delay, jitter, .. } = self.impairment;
        let lost = self.loses();
        let duplicated = self.chance(duplicate);
        let held = if self.chance(reorder) { self.up_to(reorder_by) } else { Duration::ZERO };
        PacketOutcome { lost, duplicated, held, delay: delay + self.up_to(jitter) }
    }

    fn loses(&mut self) -> bool {
        match self.impairment.loss {
            Loss::None => false,
            Loss::Random(share) => self.chance(share),
            Loss::Bursts { begin, end } => {
                let turn = if self.in_burst { end } else { begin };
                self.in_burst ^= self.chance(turn);
                self.in_burst
            }
        }
    }

    fn chance(&mut self, probability: f64) -> bool {
        f64::from(self.random.below(1 << 30)) < probability * f64::from(1 << 30)
    }

    fn up_to(&mut self, longest: Duration) -> Duration {
        let micros = u32::try_from(longest.as_micros()).unwrap_or(u32::MAX);
        Duration::from_micros(self.random.below(micros.saturating_add(1)).into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(impairment: Impairment, count: usize) -> Vec<PacketOutcome> {
        let mut state = ImpairmentState::new(impairment, Random::new([9; 32]));
        (0..count).map(|_| state.next_outcome(Instant::default())).collect()
    }

    #[test]
    fn a_burst_does_not_outlast_a_pause() {
        // The first burst never ends on its own, and the second never begins.
        let endless = Loss::Bursts { begin: 1.0, end: 0.0 };
        let mut state = ImpairmentState::new(
            Impairment { loss: endless, ..Default::default() },
            Random::new([1; 32]),
        );
        let start = Instant::from_nanos(5_000_000_000);
        assert!(state.next_outcome(start).lost);
        state.impairment.loss = Loss::Bursts { begin: 0.0, end: 0.0 };
        assert!(state.next_outcome(start + PAUSE).lost, "still the same burst");
        assert!(!state.next_outcome(start + PAUSE * 2 + Duration::from_millis(1)).lost);
    }

    #[test]
    fn loses_the_share_it_is_told_to() {
        let loss = Loss::Random(0.1);
        let lost = outcomes(Impairment { loss, ..Default::default() }, 100_000);
        let lost = lost.iter().filter(|outcome| outcome.lost).count();
        assert!((9_700..10_300).contains(&lost), "{lost} of 100000");
    }

    #[test]
    fn bursts_have_their_mean_length_and_share() {
        let loss = Loss::Bursts { begin: 0.01, end: 0.2 };
        let outcomes = outcomes(Impairment { loss, ..Default::default() }, 200_000);
        let bursts = outcomes.chunk_by(|a, b| a.lost == b.lost).filter(|run| run[0].lost).count();
        let lost = outcomes.iter().filter(|outcome| outcome.lost).count();
        let mean = lost as f64 / bursts as f64;
        assert!((4.7..5.3).contains(&mean), "mean burst {mean}, expected 1 / 0.2");
        let share = lost as f64 / outcomes.len() as f64;
        assert!((0.043..0.053).contains(&share), "share {share}, expected 0.01 / 0.21");
    }

    #[test]
    fn bursts_can_be_asked_for_by_share_and_length() {
        assert_eq!(Loss::bursts(0.0, 4.0), Loss::Bursts { begin: 0.0, end: 0.25 });
        for (share, length) in [(0.1, 5.0), (0.01, 10.0), (0.5, 2.0)] {
            let loss = Loss::bursts(share, length);
            let outcomes = outcomes(Impairment { loss, ..Default::default() }, 400_000);
            let lost = outcomes.iter().filter(|outcome| outcome.lost).count();
            let bursts =
                outcomes.chunk_by(|a, b| a.lost == b.lost).filter(|run| run[0].lost).count();
            let (got, mean) = (lost as f64 / 400_000.0, lost as f64 / bursts as f64);
            assert!((got / share - 1.0).abs() < 0.1, "share {got}, expected {share}");
            assert!((mean / length - 1.0).abs() < 0.1, "mean {mean}, expected {length}");
        }
    }

    #[test]
    fn the_same_seed_decides_the_same() {
        let rough = Impairment {
            loss: Loss::Random(0.3),
            duplicate: 0.3,
            reorder: 0.3,
            reorder_by: Duration::from_millis(30),
            delay: Duration::from_millis(10),
            jitter: Duration::from_millis(5),
        };
        assert_eq!(outcomes(rough.clone(), 1000), outcomes(rough, 1000));
    }
}
