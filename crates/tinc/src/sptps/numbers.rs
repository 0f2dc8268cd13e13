//! The sequence numbers of a session, in both directions.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::window::{ReplayWindow, WindowSize};
use super::{Error, HARD_LIMIT};

/// The sequence numbers of a datagram session, which the session shares with a layer that seals and opens records itself. So no number is used
/// twice, and no record is accepted twice, whichever of the two handles it.
#[derive(Debug)]
pub struct Numbers {
    /// The number of the next record to send. It has more bits than a sequence number, so it never overflows.
    next: AtomicU64,
    window: Mutex<ReplayWindow>,
}

impl Numbers {
    pub(super) fn new(window: WindowSize) -> Self {
        Self { next: AtomicU64::new(0), window: Mutex::new(ReplayWindow::new(window, 0)) }
    }

    /// Takes the number of the next record to send.
    ///
    /// # Errors
    /// The numbers are used up: a new session is required.
    #[inline]
    pub fn take(&self) -> Result<u32, Error> {
        let number = u32::try_from(self.next.fetch_add(1, Relaxed));
        number.ok().filter(|number| *number < HARD_LIMIT).ok_or(Error::Exhausted)
    }

    /// Locks the replay window.
    pub fn window(&self) -> MutexGuard<'_, ReplayWindow> {
        // The window is consistent between calls, so a panic elsewhere does not matter.
        self.window.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns how many numbers were taken.
    pub(super) fn taken(&self) -> u64 {
        self.next.load(Relaxed)
    }

    /// Sets the next number, for tests of its limits.
    #[cfg(test)]
    pub(super) fn set(&self, next: u32) {
        self.next.store(next.into(), Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_and_never_start_again() {
        let numbers = Numbers::new(WindowSize::DEFAULT);
        assert_eq!((numbers.take(), numbers.take()), (Ok(0), Ok(1)));
        numbers.set(HARD_LIMIT - 1);
        assert_eq!(numbers.take(), Ok(HARD_LIMIT - 1));
        numbers.set(u32::MAX);
        for _ in 0..3 {
            assert_eq!(numbers.take(), Err(Error::Exhausted));
        }
    }
}
