//! The schedule of the datagrams, and the record of those that arrived. No I/O.

use super::window::Frame;

/// The time when each datagram must leave. It is fixed in advance, with all flows in turn at equal intervals.
#[derive(Debug, Clone, Copy)]
pub(super) struct Schedule {
    start: u64,
    end: u64,
    flows: u64,
    interval: f64,
}

impl Schedule {
    /// Creates a sequence from the common start to the window's end. `pps` is the rate of all flows
    /// together, above 0.
    pub(super) fn new(frame: &Frame, flows: usize, pps: f64) -> Self {
        let flows = flows.max(1) as u64;
        Self { start: frame.start, end: frame.end, flows, interval: 1e9 / pps }
    }

    /// Returns when the datagram at this index of the whole order must leave.
    pub(super) fn time(&self, place: u64) -> u64 {
        self.start.saturating_add((place as f64 * self.interval) as u64)
    }

    /// Returns the number of datagrams that are due by now.
    pub(super) fn due(&self, now: u64) -> u64 {
        let until = now.min(self.end.saturating_sub(1));
        if until < self.start {
            return 0;
        }
        let mut due = ((until - self.start) as f64 / self.interval) as u64;
        // The division may be off by one; the exact times are decisive.
        while self.time(due) <= until {
            due += 1;
        }
        while due > 0 && self.time(due - 1) > until {
            due -= 1;
        }
        due
    }

    /// Returns the total number of datagrams.
    pub(super) fn total(&self) -> u64 {
        self.due(u64::MAX)
    }

    /// Returns the number of datagrams of flow `flow` among the first `places` of the order.
    pub(super) fn of_flow(&self, flow: u64, places: u64) -> u64 {
        (places + self.flows - 1).saturating_sub(flow) / self.flows
    }

    /// Returns the index in the whole order of the flow's datagram with this number.
    pub(super) fn place(&self, flow: u64, number: u64) -> u64 {
        number.saturating_mul(self.flows).saturating_add(flow)
    }
}

/// The classification of an arrival.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ArrivalKind {
    /// The first datagram with this number.
    New {
        /// Whether a datagram with a higher number arrived before.
        late: bool,
    },
    /// A datagram with this number arrived before.
    Again,
    /// The schedule contains no such number.
    Foreign,
}

/// The datagrams of one flow that have arrived, with one bit for each possible number.
#[derive(Debug, Clone)]
pub(super) struct ReceivedSet {
    bits: Vec<u64>,
    numbers: u64,
    highest: Option<u64>,
}

impl ReceivedSet {
    /// Creates an empty set for this many datagrams.
    pub(super) fn none_of(numbers: u64) -> Self {
        let words = usize::try_from(numbers.div_ceil(64)).unwrap_or(0);
        Self { bits: vec![0; words], numbers, highest: None }
    }

    /// Records an arrival.
    pub(super) fn arrive(&mut self, number: u64) -> ArrivalKind {
        let word = usize::try_from(number / 64).ok().and_then(|index| self.bits.get_mut(index));
        let Some(word) = word.filter(|_| number < self.numbers) else {
            return ArrivalKind::Foreign;
        };
        let bit = 1 << (number % 64);
        if *word & bit != 0 {
            return ArrivalKind::Again;
        }
        *word |= bit;
        let late = self.highest.is_some_and(|highest| highest > number);
        self.highest = self.highest.max(Some(number));
        ArrivalKind::New { late }
    }
}

/// The header of each datagram.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Header {
    /// The number within the flow, from 0.
    pub number: u64,
    /// The time when it was to be sent, by the boot clock.
    pub intended: u64,
}

impl Header {
    /// The length on the wire: that of two big-endian numbers.
    pub(super) const LENGTH: usize = 16;

    /// Encodes the header as it is sent.
    pub(super) fn to_bytes(self) -> [u8; Self::LENGTH] {
        let both = u128::from(self.number) << 64 | u128::from(self.intended);
        both.to_be_bytes()
    }

    /// Decodes the beginning of a datagram; `None` if it is too short.
    pub(super) fn read(datagram: &[u8]) -> Option<Self> {
        let both = u128::from_be_bytes(*datagram.first_chunk()?);
        let low = |n: u128| u64::try_from(n & u128::from(u64::MAX)).unwrap_or_default();
        Some(Self { number: low(both >> 64), intended: low(both) })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::Window;
    use super::*;

    fn schedule(flows: usize, pps: f64) -> (Frame, Schedule) {
        let window = Window { warmup: Duration::from_millis(100), length: Duration::from_secs(1) };
        let frame = Frame::new(5_000_000_000, &window);
        (frame, Schedule::new(&frame, flows, pps))
    }

    #[test]
    fn a_schedule_keeps_its_rate_to_the_datagram() {
        let (frame, schedule) = schedule(1, 1000.0);
        assert_eq!(schedule.total(), 1100);
        assert_eq!(schedule.time(0), frame.start);
        assert_eq!(schedule.due(frame.start - 1), 0);
        assert_eq!(schedule.due(frame.start), 1);
        assert_eq!(schedule.due(frame.start + 999_999), 1);
        assert_eq!(schedule.due(frame.start + 1_000_000), 2);
        let inside = (0..schedule.total()).filter(|place| frame.contains(schedule.time(*place)));
        assert_eq!(inside.count(), 1000);
    }

    #[test]
    fn due_and_time_agree_at_odd_rates() {
        for pps in [3.0, 7777.7, 123_456.0, 999_983.0] {
            let (_, schedule) = schedule(3, pps);
            for place in (0..schedule.total()).step_by(97) {
                assert_eq!(schedule.due(schedule.time(place)), place + 1, "{pps} {place}");
                assert_eq!(schedule.due(schedule.time(place) - 1), place, "{pps} {place}");
            }
        }
    }

    #[test]
    fn flows_take_turns() {
        let (_, schedule) = schedule(3, 100.0);
        assert_eq!([0, 1, 2].map(|flow| schedule.of_flow(flow, 0)), [0, 0, 0]);
        assert_eq!([0, 1, 2].map(|flow| schedule.of_flow(flow, 4)), [2, 1, 1]);
        assert_eq!([0, 1, 2].map(|flow| schedule.of_flow(flow, 6)), [2, 2, 2]);
        assert_eq!(schedule.place(1, 1), 4);
    }

    #[test]
    fn tells_new_late_again_and_foreign_apart() {
        let mut seen = ReceivedSet::none_of(100);
        assert_eq!(seen.arrive(0), ArrivalKind::New { late: false });
        assert_eq!(seen.arrive(2), ArrivalKind::New { late: false });
        assert_eq!(seen.arrive(1), ArrivalKind::New { late: true });
        assert_eq!(seen.arrive(2), ArrivalKind::Again);
        assert_eq!(seen.arrive(99), ArrivalKind::New { late: false });
        assert_eq!(seen.arrive(100), ArrivalKind::Foreign);
        assert_eq!(seen.arrive(u64::MAX), ArrivalKind::Foreign);
    }

    #[test]
    fn a_header_comes_back_as_it_went() {
        let header = Header { number: 7, intended: u64::MAX - 1 };
        assert_eq!(Header::read(&header.to_bytes()), Some(header));
        assert_eq!(Header::read(&[0; 15]), None);
    }
}
