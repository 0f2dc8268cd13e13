//! The search for the path MTU to a node. All lengths are those of the data in a record.

use std::time::Duration;

use adit_engine::Instant;

use super::after;
use super::payload::MAX_PACKET;
use crate::meta::MIN_MTU;

/// The largest MTU.
pub(super) const MAX_MTU: u16 = MAX_PACKET as u16;

/// The time between two probes of a search.
const SEARCH_INTERVAL: Duration = Duration::from_millis(333);

/// The time until a probe of the fixed MTU is sent again.
const AGAIN: Duration = Duration::from_secs(1);

/// The number of probes of the fixed MTU without an answer after which the search starts again.
const MAX_LOST: u8 = 3;

/// The number of probes of a search.
const PROBES: u8 = 20;

/// The search begins again after each eight probes, with the largest.
const ROUND: u8 = 8;

/// The path MTU to a node.
#[derive(Clone, Debug)]
pub(super) struct PathMtu {
    /// The largest length that has arrived.
    pub(super) min: u16,
    /// The largest length that may arrive.
    pub(super) max: u16,
    /// The length for packets.
    pub(super) mtu: u16,
    phase: Phase,
    next: Instant,
    /// The configured bound.
    bound: u16,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Phase {
    /// This many probes were sent.
    Searching(u8),
    /// This many probes of the MTU have no answer.
    Fixed(u8),
}

/// The probes to send now.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(super) enum Probes {
    None,
    One(u16),
    /// The MTU, and one byte more.
    Two(u16, u16),
}

impl PathMtu {
    pub(super) fn new(bound: Option<u16>, now: Instant) -> Self {
        let bound = bound.unwrap_or(MAX_MTU).min(MAX_MTU);
        Self { min: 0, max: bound, mtu: bound, phase: Phase::Searching(0), next: now, bound }
    }

    /// Returns whether the MTU is known.
    pub(super) fn is_fixed(&self) -> bool {
        matches!(self.phase, Phase::Fixed(_))
    }

    /// Starts again from nothing.
    pub(super) fn reset(&mut self, now: Instant) {
        *self = Self { mtu: self.mtu.max(MIN_MTU), ..Self::new(Some(self.bound), now) };
    }

    /// Another node on the way reported an MTU. Returns whether it was taken.
    pub(super) fn reported(&mut self, mtu: u16) -> bool {
        let takes = !self.is_fixed();
        if takes {
            self.mtu = mtu.clamp(MIN_MTU, self.bound);
        }
        takes
    }

    /// A record of this length was too long for the network.
    pub(super) fn too_big(&mut self, len: u16) {
        if len > 0 && self.max >= len {
            self.max = len.saturating_sub(1).max(MIN_MTU);
            self.mtu = self.mtu.min(self.max);
            self.min = self.min.min(self.max);
        }
    }

    /// A probe of this length arrived. Returns whether this decided the MTU.
    pub(super) fn answered(&mut self, len: u16, now: Instant, interval: Duration) -> bool {
        let len = len.min(self.bound);
        match self.phase {
            Phase::Fixed(_) if len > self.max => {
                // The path has become wider.
                (self.min, self.max) = (len, self.bound);
                (self.phase, self.next) = (Phase::Searching(1), now);
                self.fix_if_done(now, interval)
            }
            Phase::Fixed(_) => {
                if len == self.max {
                    (self.phase, self.next) = (Phase::Fixed(0), after(now, interval));
                }
                false
            }
            Phase::Searching(_) => {
                self.min = self.min.max(len);
                self.max = self.max.max(self.min);
                self.fix_if_done(now, interval)
            }
        }
    }

    fn fix_if_done(&mut self, now: Instant, interval: Duration) -> bool {
        let exhausted = self.phase == Phase::Searching(PROBES);
        if self.is_fixed() || !(exhausted || self.min >= self.max) || self.min < MIN_MTU {
            return false;
        }
        (self.mtu, self.max) = (self.min, self.min);
        (self.phase, self.next) = (Phase::Fixed(0), after(now, interval));
        true
    }

    /// Returns the probes to send now. Call it while datagrams reach the node.
    pub(super) fn probes(&mut self, now: Instant, interval: Duration) -> Probes {
        if now < self.next {
            return Probes::None;
        }
        if self.fix_if_done(now, interval) {
            return Probes::None;
        }
        match self.phase {
            Phase::Searching(PROBES) => {
                // Nothing of the least useful length arrives. Try again later.
                (self.phase, self.next) = (Phase::Searching(0), after(now, interval));
                Probes::None
            }
            Phase::Searching(sent) => {
                self.phase = Phase::Searching(sent.saturating_add(1));
                self.next = after(now, SEARCH_INTERVAL);
                Probes::One(self.guess(sent))
            }
            Phase::Fixed(MAX_LOST) => {
                self.reset(now);
                Probes::None
            }
            Phase::Fixed(lost) => {
                self.phase = Phase::Fixed(lost.saturating_add(1));
                self.next = after(now, AGAIN);
                let more = self.max.saturating_add(1);
                if more > self.bound { Probes::One(self.max) } else { Probes::Two(self.max, more) }
            }
        }
    }

    /// Returns the length of a probe: the largest guess first, and one byte more than what is proven last.
    fn guess(&self, sent: u8) -> u16 {
        let from = self.min.max(MIN_MTU);
        let range = f64::from(self.max.saturating_sub(from));
        let cycle = f64::from(ROUND.saturating_sub(1).saturating_sub(sent % ROUND));
        // Most paths are a little narrower than the largest MTU.
        let scale = if self.max == MAX_MTU { 0.97 } else { 1.0 };
        let offset = range.powf(scale * cycle / f64::from(ROUND.saturating_sub(1))).round();
        // The value is between 1 and the range, so it fits.
        from.saturating_add(offset as u16).min(self.max.max(MIN_MTU))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERVAL: Duration = Duration::from_secs(60);

    fn start() -> Instant {
        Instant::from_nanos(1_000_000_000_000)
    }

    #[test]
    fn one_probe_is_enough_for_a_length_that_is_known_beforehand() {
        let mut mtu = PathMtu::new(None, start());
        mtu.too_big(1440);
        assert_eq!(mtu.probes(start(), INTERVAL), Probes::One(1439));
        assert!(mtu.answered(1439, start(), INTERVAL));
        assert_eq!(mtu.mtu, 1439);
    }

    /// Searches on a path that carries `width` bytes. Returns the MTU and the number of probes.
    fn search(width: u16, told: bool) -> (u16, usize) {
        let mut mtu = PathMtu::new(None, start());
        let (mut now, mut probes) = (start(), 0);
        for _ in 0..1000 {
            if mtu.is_fixed() {
                break;
            }
            if let Probes::One(len) = mtu.probes(now, INTERVAL) {
                probes += 1;
                if len <= width {
                    mtu.answered(len, now, INTERVAL);
                } else if told {
                    mtu.too_big(len);
                }
            }
            now = now + Duration::from_millis(100);
        }
        assert!(mtu.is_fixed(), "{mtu:?}");
        (mtu.mtu, probes)
    }

    /// Specification 11.3.
    #[test]
    fn the_search_finds_the_width_of_the_path() {
        let (mtu, probes) = search(1518, false);
        assert!(mtu >= 1510 && probes <= usize::from(PROBES), "{mtu} after {probes}");
        for width in [512, 576, 1000, 1280, 1400, 1439, 1443, 1500] {
            let (mtu, probes) = search(width, true);
            assert!(mtu <= width && probes <= usize::from(PROBES), "{width}: {mtu}");
            assert!(mtu + mtu / 8 >= width, "{width}: {mtu}");
            if width > 512 {
                let (mtu, _) = search(width, false);
                assert!(mtu <= width && mtu + mtu / 3 >= width, "{width} in silence: {mtu}");
            }
        }
    }

    /// Specification 11.3: guesses fall within each eight probes, to one byte more than proven.
    #[test]
    fn the_guesses_are_those_of_the_specification() {
        let mut mtu = PathMtu::new(None, start());
        mtu.max = 1439;
        let guesses: Vec<u16> = (0..9).map(|sent| mtu.guess(sent)).collect();
        assert_eq!(guesses, [1439, 861, 644, 562, 531, 519, 515, 513, 1439]);
        mtu.max = MAX_MTU;
        assert_eq!(mtu.guess(0), 512 + 818);
    }

    #[test]
    fn a_fixed_mtu_is_checked_and_given_up_after_three_losses() {
        let mut mtu = PathMtu::new(None, start());
        mtu.max = 1400;
        assert!(mtu.answered(1400, start(), INTERVAL));
        let mut now = start() + INTERVAL;
        assert_eq!(mtu.probes(start() + INTERVAL / 2, INTERVAL), Probes::None);
        assert_eq!(mtu.probes(now, INTERVAL), Probes::Two(1400, 1401));
        mtu.answered(1400, now, INTERVAL);
        assert_eq!(mtu.probes(now + AGAIN, INTERVAL), Probes::None, "answered");
        now = now + INTERVAL;
        for _ in 0..3 {
            assert_eq!(mtu.probes(now, INTERVAL), Probes::Two(1400, 1401));
            now = now + AGAIN;
        }
        assert_eq!(mtu.probes(now, INTERVAL), Probes::None);
        assert_eq!((mtu.min, mtu.max, mtu.mtu, mtu.is_fixed()), (0, 1518, 1400, false));
    }

    #[test]
    fn a_longer_answer_than_the_fixed_mtu_starts_a_search() {
        let mut mtu = PathMtu::new(None, start());
        mtu.max = 1400;
        assert!(mtu.answered(1400, start(), INTERVAL));
        assert!(!mtu.answered(1401, start(), INTERVAL));
        assert_eq!((mtu.min, mtu.max, mtu.is_fixed()), (1401, 1518, false));
        let mut bounded = PathMtu::new(Some(1300), start());
        assert_eq!(bounded.probes(start(), INTERVAL), Probes::One(1300));
        assert!(bounded.answered(1300, start(), INTERVAL));
        assert_eq!(bounded.probes(start() + INTERVAL, INTERVAL), Probes::One(1300));
    }

    /// Specification 11.3: below 512 bytes, UDP does not work.
    #[test]
    fn short_answers_fix_nothing() {
        let mut mtu = PathMtu::new(None, start());
        let mut now = start();
        for _ in 0..25 {
            mtu.probes(now, INTERVAL);
            mtu.answered(18, now, INTERVAL);
            now = now + SEARCH_INTERVAL;
        }
        assert!(!mtu.is_fixed());
        mtu.too_big(100);
        assert_eq!(mtu.max, MIN_MTU);
    }

    /// Specification 11.5.
    #[test]
    fn a_report_counts_only_until_the_mtu_is_known() {
        let mut mtu = PathMtu::new(None, start());
        assert!(mtu.reported(1200) && mtu.mtu == 1200);
        assert!(mtu.reported(100) && mtu.mtu == MIN_MTU);
        mtu.max = 1400;
        assert!(mtu.answered(1400, start(), INTERVAL));
        assert!(!mtu.reported(1200) && mtu.mtu == 1400);
    }
}
