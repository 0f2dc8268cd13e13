//! The replay window of a datagram session.

use super::Error;

/// The number of records in a row that are dropped because they are too far ahead. tinc drops as many with its usual window; more would
/// make an outage longer.
const MOST_TOO_FAR_AHEAD: u16 = 4;

/// The length of a replay window, in bytes of one bit per record, as in `ReplayWindow` of `tinc.conf`.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct WindowSize(u16);

impl WindowSize {
    /// The largest size, bytes.
    pub const MAX: u16 = 8192;

    /// The size of a node that does not set `ReplayWindow`: 4096 records. tinc's window has 128, which two trains of packets overtake when
    /// they are opened by different threads.
    pub const DEFAULT: Self = Self(512);

    /// Creates a size. 0 switches the check off.
    pub const fn new(bytes: u16) -> Option<Self> {
        if bytes <= Self::MAX { Some(Self(bytes)) } else { None }
    }

    /// Returns the number of records in the window.
    pub(super) const fn records(self) -> u64 {
        (self.0 as u64).saturating_mul(8)
    }
}

/// Remembers which of the last records have not arrived yet.
#[derive(Clone, Debug)]
pub struct ReplayWindow {
    size: WindowSize,
    /// A bit for each record of the window, by its number modulo the length: set while the record is missing.
    missing: Box<[u8]>,
    /// The highest accepted sequence number plus 1. It has more bits than a sequence number, so it never overflows.
    next: u64,
    /// The number of records in a row that were dropped because they are too far ahead.
    too_far_ahead: u16,
}

impl ReplayWindow {
    /// Creates a window that expects `next`, and regards all earlier records as received.
    pub fn new(size: WindowSize, next: u32) -> Self {
        let missing = vec![0; usize::from(size.0)].into_boxed_slice();
        Self { size, missing, next: u64::from(next), too_far_ahead: 0 }
    }

    /// Accepts the number of an authentic record once.
    ///
    /// # Errors
    /// Fails if the record was received before, is older than the window, or is so far ahead that it would empty the
    /// window. After four of the latter in a row, or a quarter as many as the window has bytes, the next one is accepted:
    /// the path has lost more packets than the window holds.
    pub fn accept(&mut self, seqno: u32) -> Result<(), Error> {
        let number = u64::from(seqno);
        if self.size.0 == 0 {
            self.next = self.next.max(number.saturating_add(1));
            return Ok(());
        }
        let records = self.size.records();
        if number >= self.next.saturating_add(records) {
            if self.too_far_ahead < MOST_TOO_FAR_AHEAD.min(self.size.0 / 4) {
                self.too_far_ahead = self.too_far_ahead.saturating_add(1);
                return Err(Error::TooFarAhead(seqno));
            }
            self.missing.fill(u8::MAX);
        } else if number >= self.next {
            for skipped in self.next..number {
                self.mark(skipped, true);
            }
        } else if number < self.oldest() || !self.is_missing(number) {
            return Err(Error::Replayed(seqno));
        }
        self.mark(number, false);
        self.next = self.next.max(number.saturating_add(1));
        self.too_far_ahead = 0;
        Ok(())
    }

    /// Returns whether the window would refuse this number as repeated or too old. Unlike [`ReplayWindow::accept`], it also serves for a record
    /// that is not authentic.
    pub fn is_repeated(&self, seqno: u32) -> bool {
        let number = u64::from(seqno);
        let in_past = self.size.0 > 0 && number < self.next;
        in_past && (number < self.oldest() || !self.is_missing(number))
    }

    /// Returns whether a number is higher than all that were accepted.
    pub fn is_newest(&self, seqno: u32) -> bool {
        u64::from(seqno) >= self.next
    }

    /// Marks the number of an authentic record that has its own protection from replay.
    pub(super) fn advance(&mut self, seqno: u32) {
        let number = u64::from(seqno);
        if number >= self.next && self.size.0 > 0 {
            let first = number.saturating_sub(self.size.records()).max(self.next);
            for skipped in first..number {
                self.mark(skipped, true);
            }
        }
        if number >= self.oldest() {
            self.mark(number, false);
        }
        self.next = self.next.max(number.saturating_add(1));
    }

    /// Returns the highest accepted number plus 1.
    pub(super) fn next(&self) -> u64 {
        self.next
    }

    /// Returns the number of the oldest record that the window can still accept.
    fn oldest(&self) -> u64 {
        self.next.saturating_sub(self.size.records())
    }

    /// Returns the byte and the bit of a record.
    fn place(&self, number: u64) -> Option<(usize, u8)> {
        let at = number.checked_rem(self.size.records())?;
        Some((usize::try_from(at / 8).ok()?, 1_u8.checked_shl(u32::try_from(at % 8).ok()?)?))
    }

    fn is_missing(&self, number: u64) -> bool {
        let Some((byte, bit)) = self.place(number) else { return false };
        self.missing.get(byte).is_some_and(|bits| bits & bit != 0)
    }

    fn mark(&mut self, number: u64, missing: bool) {
        let Some((byte, bit)) = self.place(number) else { return };
        if let Some(bits) = self.missing.get_mut(byte) {
            if missing { *bits |= bit } else { *bits &= !bit }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    /// The size of a node of tinc that does not set `ReplayWindow`.
    const TINCS: WindowSize = WindowSize(16);

    /// Specification 4.7, with numbers of records instead of bits.
    #[test]
    fn a_record_is_accepted_once_and_only_within_the_window() {
        let mut window = ReplayWindow::new(TINCS, 2);
        assert_eq!(window.accept(1), Err(Error::Replayed(1)), "part of the handshake");
        assert_eq!(window.accept(2), Ok(()));
        assert_eq!(window.accept(2), Err(Error::Replayed(2)));
        assert_eq!(window.accept(129), Ok(()));
        assert_eq!(window.accept(3), Ok(()), "the next number is 130, and the window has 128");
        assert_eq!(window.accept(3), Err(Error::Replayed(3)));
        assert_eq!(window.accept(131), Ok(()));
        assert_eq!(window.accept(130), Ok(()));
        assert_eq!(window.accept(4), Ok(()));
        assert_eq!(window.accept(132), Ok(()));
        assert_eq!(window.accept(4), Err(Error::Replayed(4)), "too old");
        assert_eq!(window.accept(5), Ok(()));
    }

    #[test]
    fn a_long_window_drops_no_more_records_that_are_too_far_ahead() {
        let mut window = ReplayWindow::new(WindowSize(WindowSize::MAX), 2);
        for number in 100_000..100_004 {
            assert_eq!(window.accept(number), Err(Error::TooFarAhead(number)));
        }
        assert_eq!(window.accept(100_004), Ok(()));
    }

    #[test]
    fn the_fifth_record_in_a_row_that_is_too_far_ahead_is_accepted() {
        let mut window = ReplayWindow::new(TINCS, 2);
        for number in 1000..1003 {
            assert_eq!(window.accept(number), Err(Error::TooFarAhead(number)));
        }
        assert_eq!(window.accept(2), Ok(()), "ends the row");
        for number in 1000..1004 {
            assert_eq!(window.accept(number), Err(Error::TooFarAhead(number)));
        }
        assert_eq!(window.accept(1004), Ok(()));
        assert_eq!(window.accept(1000), Ok(()), "everything before it is missing");
        assert_eq!(window.accept(1004), Err(Error::Replayed(1004)));
        assert_eq!(window.accept(877), Ok(()));
        assert_eq!(window.accept(876), Err(Error::Replayed(876)));
    }

    #[test]
    fn no_number_comes_after_the_last_one() {
        let mut window = ReplayWindow::new(TINCS, u32::MAX - 1);
        assert_eq!(window.accept(u32::MAX), Ok(()));
        assert_eq!(window.accept(0), Err(Error::Replayed(0)));
        assert_eq!(window.accept(u32::MAX - 1), Ok(()));
        assert_eq!(window.accept(u32::MAX), Err(Error::Replayed(u32::MAX)));
    }

    #[test]
    fn a_window_of_no_bytes_accepts_everything() {
        let mut window = ReplayWindow::new(WindowSize::new(0).unwrap(), 2);
        assert!([7, 7, 1_000_000, 3, 0].into_iter().all(|number| window.accept(number).is_ok()));
        assert!(!window.is_repeated(7));
        assert_eq!(WindowSize::new(WindowSize::MAX + 1), None);
    }

    #[test]
    fn a_handshake_record_moves_the_window_without_the_limit() {
        let mut window = ReplayWindow::new(TINCS, 2);
        window.advance(5000);
        assert_eq!(window.accept(5000), Err(Error::Replayed(5000)));
        assert_eq!(window.accept(4873), Ok(()));
        assert_eq!(window.accept(4872), Err(Error::Replayed(4872)));
        window.advance(4900);
        assert_eq!(window.accept(4900), Err(Error::Replayed(4900)));
        window.advance(100);
        assert_eq!(window.accept(5001), Ok(()));
    }

    proptest! {
        /// Whatever arrives in whatever order, no number is accepted twice, and each within the window once.
        #[test]
        fn the_window_agrees_with_a_set(
            bytes in 1..5_u16,
            steps in proptest::collection::vec(-40..60_i64, 1..200),
        ) {
            let mut window = ReplayWindow::new(WindowSize::new(bytes).unwrap(), 100);
            let mut next = 100_i64;
            let mut accepted: BTreeSet<i64> = (0..next).collect();
            let records = i64::from(bytes) * 8;
            for step in steps {
                let number = next + step;
                let expected = number >= next - records && !accepted.contains(&number);
                let seqno = u32::try_from(number).unwrap();
                prop_assert_eq!(window.is_newest(seqno), number >= next);
                let is_repeated = window.is_repeated(seqno);
                let result = window.accept(seqno);
                prop_assert_eq!(is_repeated, matches!(result, Err(Error::Replayed(_))));
                match result {
                    Err(Error::TooFarAhead(_)) => prop_assert!(number >= next + records),
                    _ if number >= next + records => prop_assert!(result.is_ok()),
                    _ => prop_assert_eq!(result.is_ok(), expected, "{} {}", number, next),
                }
                if result.is_ok() {
                    prop_assert!(accepted.insert(number));
                    next = next.max(number + 1);
                }
            }
        }
    }
}
