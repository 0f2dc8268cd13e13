//! The traffic between this node and each peer.

use std::collections::BTreeMap;
use std::time::Duration;

use adit_engine::Instant;
use adit_engine::command::Counters;
use adit_mesh::session::KeyHash;

/// The minimum time between the two samples of a rate.
const WINDOW: Duration = Duration::from_millis(900);

/// The counters of the sessions with all peers. A peer without a session has none.
#[derive(Debug, Default)]
pub(super) struct Rates(BTreeMap<KeyHash, Sample>);

/// The traffic with one peer.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Sample {
    at: Option<Instant>,
    pub(super) rx_bytes: u64,
    pub(super) tx_bytes: u64,
    /// In bits per second.
    pub(super) rx_bps: u64,
    /// In bits per second.
    pub(super) tx_bps: u64,
}

impl Rates {
    /// Takes a sample of the counters of all sessions' channels.
    pub(super) fn sample(
        &mut self,
        now: Instant,
        sessions: impl Iterator<Item = (KeyHash, Vec<Counters>)>,
    ) {
        let mut former = std::mem::take(&mut self.0);
        for (peer, channels) in sessions {
            let mut sample = former.remove(&peer).unwrap_or_default();
            sample.advance(now, &channels);
            self.0.insert(peer, sample);
        }
    }

    /// Returns the traffic with a peer.
    pub(super) fn of(&self, peer: &KeyHash) -> Sample {
        self.0.get(peer).copied().unwrap_or_default()
    }
}

impl Sample {
    fn advance(&mut self, now: Instant, channels: &[Counters]) {
        let passed = self.at.map(|at| now.since(at));
        if passed.is_some_and(|passed| passed < WINDOW) {
            return;
        }
        let sum = |of: fn(&Counters) -> u64| channels.iter().map(of).fold(0, u64::saturating_add);
        let (rx, tx) = (sum(|it| it.rx_bytes), sum(|it| it.tx_bytes));
        let rate = |before: u64, after: u64| {
            let bits = u128::from(after.saturating_sub(before)) * 8 * 1_000_000_000;
            let nanos = passed.map_or(0, |passed| passed.as_nanos());
            bits.checked_div(nanos).and_then(|rate| u64::try_from(rate).ok()).unwrap_or_default()
        };
        (self.rx_bps, self.tx_bps) = (rate(self.rx_bytes, rx), rate(self.tx_bytes, tx));
        (self.rx_bytes, self.tx_bytes, self.at) = (rx, tx, Some(now));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Instant = Instant::from_nanos(1_000_000_000_000);

    fn counters(rx_bytes: u64, tx_bytes: u64) -> Counters {
        Counters { rx_bytes, tx_bytes, ..Counters::default() }
    }

    #[test]
    fn rates_are_those_since_the_last_sample_over_all_channels() {
        let mut rates = Rates::default();
        let peer = [1; 32];
        rates.sample(NOW, [(peer, vec![counters(1000, 0)])].into_iter());
        assert_eq!((rates.of(&peer).rx_bytes, rates.of(&peer).rx_bps), (1000, 0));
        let later = NOW + Duration::from_secs(2);
        let both = vec![counters(2000, 50), counters(1000, 50)];
        rates.sample(later, [(peer, both.clone())].into_iter());
        let sample = rates.of(&peer);
        assert_eq!((sample.rx_bps, sample.tx_bps), (8000, 400));
        rates.sample(later + Duration::from_millis(1), [(peer, both)].into_iter());
        assert_eq!(rates.of(&peer), sample, "too early for another one");
        // A new session counts from zero.
        rates.sample(later + Duration::from_secs(1), [(peer, vec![counters(10, 0)])].into_iter());
        assert_eq!((rates.of(&peer).rx_bytes, rates.of(&peer).rx_bps), (10, 0));
        rates.sample(later, std::iter::empty());
        assert_eq!(rates.of(&peer), Sample::default());
    }
}
