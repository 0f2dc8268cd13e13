//! The counters of a worker, and their sum over all workers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::port::Side;

/// The reason why a frame was not forwarded. The rules have their own counters.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Drop {
    /// The rules dropped it.
    Rules,
    /// The other port's interface is switched off or removed.
    PortDown,
    /// The other port's queue was full for too long.
    QueueFull,
    /// Longer than the other port's MTU.
    TooLong,
    /// Longer than the other port's MTU because of VLAN tags: the kernel allows only one 802.1Q tag beyond the MTU.
    Tags,
    /// The kernel refused the frame's offload header, or could not describe the frame.
    Refused,
    /// Truncated, or sent by the host.
    Unusable,
    /// Not read in time: the kernel dropped it before the bridge saw it.
    Overrun,
    /// Not forwarded by the router, which counts the reasons itself.
    Unrouted,
}

impl Drop {
    /// All reasons, in the order of the counters.
    pub const ALL: [Self; 9] = [
        Self::Rules,
        Self::PortDown,
        Self::QueueFull,
        Self::TooLong,
        Self::Tags,
        Self::Refused,
        Self::Unusable,
        Self::Overrun,
        Self::Unrouted,
    ];

    /// Returns its name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Rules => "rules",
            Self::PortDown => "port-down",
            Self::QueueFull => "queue-full",
            Self::TooLong => "too-long",
            Self::Tags => "too-long-with-tags",
            Self::Refused => "refused-by-kernel",
            Self::Unusable => "unusable",
            Self::Overrun => "overrun",
            Self::Unrouted => "unrouted",
        }
    }
}

/// The totals of frames received by one port.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SideTotals {
    /// Frames received; a super-packet counts as one.
    pub frames: u64,
    /// The number of bytes in the received frames.
    pub bytes: u64,
    /// The number of super-packets among them.
    pub large: u64,
    /// Frames sent by the other port.
    pub forwarded: u64,
    /// Fragments that were held until their packet was complete; they count as forwarded when they are sent. For a
    /// router, also packets addressed to it, and packets queued for a neighbour.
    pub held: u64,
    /// Frames dropped, in the order of [`Drop::ALL`].
    pub drops: [u64; Drop::ALL.len()],
}

impl SideTotals {
    /// Counts `n` frames dropped for one reason.
    pub(crate) fn dropped(&mut self, why: Drop, n: u64) {
        if let Some(count) = self.drops.get_mut(why as usize) {
            *count = count.wrapping_add(n);
        }
    }

    fn numbers_mut(&mut self) -> impl Iterator<Item = &mut u64> {
        let Self { frames, bytes, large, forwarded, held, drops } = self;
        [frames, bytes, large, forwarded, held].into_iter().chain(drops)
    }
}

/// The totals of frames received by each port.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// The totals by receiving port.
    pub sides: [SideTotals; 2],
}

/// One worker's counters. Only the worker writes them, once for each burst, and any thread may read them.
#[derive(Debug, Default)]
#[repr(align(128))]
pub(crate) struct Counters {
    sides: [[AtomicU64; 5 + Drop::ALL.len()]; 2],
}

impl Counters {
    /// Adds the counts of a burst and resets them.
    pub(crate) fn add(&self, side: Side, burst: &mut SideTotals) {
        let Some(counters) = self.sides.get(side.index()) else { return };
        for (counter, number) in counters.iter().zip(burst.numbers_mut()) {
            if *number != 0 {
                // No other thread writes, so no read-modify-write across cores is needed.
                counter.store(counter.load(Relaxed).wrapping_add(*number), Relaxed);
                *number = 0;
            }
        }
    }

    /// Adds the counters to a sum.
    pub(crate) fn add_to(&self, totals: &mut Totals) {
        for (side, counters) in totals.sides.iter_mut().zip(&self.sides) {
            for (number, counter) in side.numbers_mut().zip(counters) {
                *number = number.wrapping_add(counter.load(Relaxed));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bursts_add_up_under_their_names() {
        let counters = Counters::default();
        for _ in 0..2 {
            let mut burst = SideTotals { frames: 3, bytes: 300, ..SideTotals::default() };
            burst.dropped(Drop::TooLong, 1);
            counters.add(Side::B, &mut burst);
            assert_eq!(burst, SideTotals::default());
        }
        let mut totals = Totals::default();
        counters.add_to(&mut totals);
        counters.add_to(&mut totals);
        assert_eq!(totals.sides[0], SideTotals::default());
        assert_eq!((totals.sides[1].frames, totals.sides[1].bytes), (12, 1200));
        let named: Vec<_> =
            Drop::ALL.iter().zip(totals.sides[1].drops).filter(|(_, n)| *n > 0).collect();
        assert_eq!(named, [(&Drop::TooLong, 4)]);
        assert!(Drop::ALL.iter().enumerate().all(|(at, drop)| *drop as usize == at));
    }
}
