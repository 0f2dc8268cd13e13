//! The flooded lines that a node has received, so that it passes each on once.

use std::collections::HashSet;
use std::time::Duration;

use adit_crypto::sha256;
use adit_engine::Instant;

/// The number of lines in each of the two generations.
const MOST: usize = 65_536;

/// The hash of a line. Its length makes it impossible to find a line that hides another one.
type LineHash = [u8; 16];

/// Remembers lines for a time, in two generations: when the time is over, the newer one becomes the older one.
#[derive(Debug)]
pub struct SeenLines {
    keep: Duration,
    newer: HashSet<LineHash>,
    older: HashSet<LineHash>,
    /// When the newer generation began.
    since: Instant,
    forgotten_early: u64,
}

impl SeenLines {
    /// Creates a memory that keeps each line for at least the time given, and at most for twice that time.
    pub fn new(keep: Duration) -> Self {
        let (newer, older) = (HashSet::new(), HashSet::new());
        Self { keep, newer, older, since: Instant::default(), forgotten_early: 0 }
    }

    /// Remembers a line, and returns whether it is new. The newline does not count.
    pub fn insert(&mut self, now: Instant, line: &[u8]) -> bool {
        let Some(hash) = hash(line) else { return true };
        self.expire(now);
        if self.newer.contains(&hash) || self.older.contains(&hash) {
            return false;
        }
        if self.newer.len() >= MOST {
            self.forgotten_early = self.forgotten_early.saturating_add(self.older.len() as u64);
            self.rotate(now);
        }
        self.newer.insert(hash)
    }

    /// Forgets a line that was just remembered.
    pub fn forget(&mut self, line: &[u8]) {
        if let Some(hash) = hash(line) {
            self.newer.remove(&hash);
        }
    }

    /// Forgets lines whose time is over.
    pub fn expire(&mut self, now: Instant) {
        let age = now.since(self.since);
        if age < self.keep {
            return;
        }
        if age >= self.keep.saturating_mul(2) {
            self.newer = HashSet::new();
        }
        self.rotate(now);
    }

    fn rotate(&mut self, now: Instant) {
        self.older = std::mem::take(&mut self.newer);
        self.since = now;
    }

    /// Returns the number of lines that were forgotten before their time, because there were too many.
    pub fn forgotten_early(&self) -> u64 {
        self.forgotten_early
    }
}

fn hash(line: &[u8]) -> Option<LineHash> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    let [hash, _] = *sha256(&[line]).as_chunks::<16>().0 else { return None };
    Some(hash)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEEP: Duration = Duration::from_secs(60);

    fn at(seconds: u64) -> Instant {
        Instant::from_nanos(1_000_000_000_000) + Duration::from_secs(seconds)
    }

    /// Specification 7.1.
    #[test]
    fn a_line_is_remembered_at_least_for_its_time() {
        for first in [0, 1, 59, 60] {
            let mut seen = SeenLines::new(KEEP);
            assert!(seen.insert(at(0), b"12 0 other"));
            assert!(seen.insert(at(first), b"10 1f alice 10.0.0.0/8\n"));
            assert!(!seen.insert(at(first + 30), b"10 1f alice 10.0.0.0/8"), "the same line");
            assert!(seen.insert(at(first + 30), b"10 20 alice 10.0.0.0/8\n"), "another number");
            assert!(!seen.insert(at(first + 59), b"10 1f alice 10.0.0.0/8\n"));
            assert!(seen.insert(at(first + 181), b"10 1f alice 10.0.0.0/8\n"), "long ago");
        }
    }

    #[test]
    fn a_flood_of_lines_takes_bounded_memory() {
        let mut seen = SeenLines::new(KEEP);
        let lines = u32::try_from(MOST).unwrap() * 2 + 1;
        assert!((0..lines).all(|number| seen.insert(at(0), &number.to_be_bytes())));
        assert!(seen.newer.len() <= MOST && seen.older.len() <= MOST);
        assert_eq!(seen.forgotten_early(), MOST as u64);
        assert!(!seen.insert(at(0), &(lines - 1).to_be_bytes()));
    }
}
