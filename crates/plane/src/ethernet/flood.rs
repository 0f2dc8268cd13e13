//! How many copies of frames for everybody are sent: one frame becomes as many datagrams as there
//! are peers, and a peer that may send one may send many.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use adit_engine::Instant;

/// Copies that all peers together, or the device, may cause in a second: a fraction of what one core
/// seals and sends.
pub(crate) const TOTAL_COPIES_PER_SECOND: u64 = 100_000;
/// Copies that one peer may cause in a second, so that it leaves something to the others.
pub(crate) const PEER_COPIES_PER_SECOND: u64 = 20_000;

const SECOND: u64 = 1_000_000_000;
/// How much of a second's worth may be used at once: all.
const BURST: u64 = SECOND;

/// The generic cell rate algorithm: the time at which what was taken so far is paid for.
#[derive(Debug, Default)]
pub(crate) struct Bucket(AtomicU64);

impl Bucket {
    /// Takes `copies` at this rate; `false` if too many were taken lately. A frame is sent to all or
    /// to none, so one that costs more than is left is let through, and the next ones wait for it.
    pub fn take(&self, now: Instant, copies: usize, per_second: u64) -> bool {
        let now = now.as_nanos();
        let cost = SECOND.saturating_mul(copies as u64).checked_div(per_second).unwrap_or(BURST);
        let taken = self.0.fetch_update(Relaxed, Relaxed, |paid| {
            let from = paid.max(now);
            (from.saturating_sub(now) < BURST).then(|| from.saturating_add(cost))
        });
        taken.is_ok()
    }
}

/// Bytes of frames for everybody that are kept in one turn.
const MAX_KEPT: usize = 128 << 10;

/// Frames for everybody, whole: what the device handed out is destroyed when it is cut, and each peer
/// needs it.
#[derive(Debug, Default)]
pub(crate) struct Floods {
    bytes: Vec<u8>,
    /// Where each frame ends.
    ends: Vec<usize>,
}

impl Floods {
    /// Keeps one frame; `false` if there are too many.
    pub fn add(&mut self, frame: &[u8]) -> bool {
        if self.bytes.len().saturating_add(frame.len()) > MAX_KEPT {
            return false;
        }
        self.bytes.extend_from_slice(frame);
        self.ends.push(self.bytes.len());
        true
    }

    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    pub fn len(&self) -> usize {
        self.ends.len()
    }

    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    pub fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let starts = std::iter::once(&0).chain(&self.ends);
        starts.zip(&self.ends).filter_map(|(start, end)| self.bytes.get(*start..*end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn frames_come_back_as_they_were_kept_up_to_the_bound() {
        let mut floods = Floods::default();
        let frames = [vec![1; 42], vec![2; 60_000], vec![], vec![3; 1514]];
        assert!(frames.iter().all(|frame| floods.add(frame)));
        assert!(!floods.add(&[4; MAX_KEPT - 60_000]));
        assert!(floods.add(&[5]), "what is shorter may still fit");
        let got: Vec<&[u8]> = floods.iter().collect();
        assert_eq!(got, [&frames[0][..], &frames[1], &frames[2], &frames[3], &[5]]);
        floods.clear();
        assert!(floods.is_empty() && floods.iter().next().is_none());
    }

    #[test]
    fn a_second_s_worth_at_once_and_then_the_rate() {
        let bucket = Bucket::default();
        let start = Instant::from_nanos(5 * SECOND);
        let take = |at: Duration| bucket.take(start + at, 10, 1000);
        let taken = |at: Duration| (0..1000).filter(|_| take(at)).count();
        assert_eq!(taken(Duration::ZERO), 100);
        assert_eq!(taken(Duration::from_millis(100)), 10);
        assert_eq!(taken(Duration::from_secs(10)), 100, "what is not used is not saved up");
    }

    #[test]
    fn a_frame_for_more_peers_than_the_rate_passes_and_is_paid_for() {
        let bucket = Bucket::default();
        let take = |s: u64| bucket.take(Instant::from_nanos(s * SECOND), 3000, 1000);
        assert!(take(10));
        assert!(!take(11));
        assert!(!take(12));
        assert!(take(13));
    }
}
