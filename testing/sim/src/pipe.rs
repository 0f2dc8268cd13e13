use std::cmp::Reverse;
use std::collections::BinaryHeap;

use adit_engine::{Instant, Random};

use crate::impairment::{Impairment, ImpairmentState};

/// The maximum number of packets in flight; further ones are dropped, as by a router's queue.
const MAX_IN_FLIGHT: usize = 65_536;

/// One direction of a link.
#[derive(Debug)]
pub struct Pipe<P> {
    impairment: ImpairmentState,
    in_flight: BinaryHeap<Reverse<InFlight<P>>>,
    /// The arrival time of the last packet that was not held back: jitter does not reorder packets.
    last_arrival: Instant,
    sequence: u64,
    counters: PipeCounters,
}

/// The counters of a pipe.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct PipeCounters {
    /// The number of packets sent into the pipe.
    pub sent: u64,
    /// The number of packets lost by impairment.
    pub lost: u64,
    /// The number of packets that arrive twice.
    pub duplicated: u64,
    /// The number of packets held back, so that later ones may overtake them.
    pub reordered: u64,
    /// The number of packets dropped because too many were in flight.
    pub overflowed: u64,
}

#[derive(Debug)]
struct InFlight<P> {
    arrival: Instant,
    sequence: u64,
    packet: P,
}

impl<P> InFlight<P> {
    fn key(&self) -> (Instant, u64) {
        (self.arrival, self.sequence)
    }
}

impl<P> PartialEq for InFlight<P> {
    fn eq(&self, other: &Self) -> bool {
        self.key() == other.key()
    }
}

impl<P> Eq for InFlight<P> {}

impl<P> PartialOrd for InFlight<P> {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl<P> Ord for InFlight<P> {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key().cmp(&other.key())
    }
}

impl<P: Clone> Pipe<P> {
    /// Creates a pipe with its own randomness.
    pub fn new(impairment: Impairment, seed: [u8; 32]) -> Self {
        Self {
            impairment: ImpairmentState::new(impairment, Random::new(seed)),
            in_flight: BinaryHeap::new(),
            last_arrival: Instant::default(),
            sequence: 0,
            counters: PipeCounters::default(),
        }
    }

    /// Changes the impairment of packets that are sent from now on. Those in flight arrive as before, and later packets
    /// overtake them only by [`Impairment::reorder`].
    pub fn set_impairment(&mut self, impairment: Impairment) {
        self.impairment.change(impairment);
    }

    /// Sends a packet.
    pub fn push(&mut self, now: Instant, packet: P) {
        self.counters.sent += 1;
        let outcome = self.impairment.next_outcome(now);
        if outcome.lost {
            self.counters.lost += 1;
            return;
        }
        let in_order = (now + outcome.delay).max(self.last_arrival);
        if outcome.held.is_zero() {
            self.last_arrival = in_order;
        } else {
            self.counters.reordered += 1;
        }
        if outcome.duplicated {
            self.counters.duplicated += 1;
            self.insert(in_order, packet.clone());
        }
        self.insert(in_order + outcome.held, packet);
    }

    fn insert(&mut self, arrival: Instant, packet: P) {
        if self.in_flight.len() >= MAX_IN_FLIGHT {
            self.counters.overflowed += 1;
            return;
        }
        self.sequence += 1;
        self.in_flight.push(Reverse(InFlight { arrival, sequence: self.sequence, packet }));
    }

    /// Returns when the next packet arrives.
    pub fn next_arrival(&self) -> Option<Instant> {
        self.in_flight.peek().map(|Reverse(first)| first.arrival)
    }

    /// Returns a packet that has arrived.
    pub fn pop(&mut self, now: Instant) -> Option<P> {
        if self.next_arrival()? > now {
            return None;
        }
        self.in_flight.pop().map(|Reverse(first)| first.packet)
    }

    /// Returns the number of packets in flight.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// Returns the counters so far.
    pub fn counters(&self) -> PipeCounters {
        self.counters
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::impairment::Loss;
    use std::time::Duration;

    const MS: Duration = Duration::from_millis(1);

    fn deliver(impairment: Impairment) -> (Vec<u32>, PipeCounters) {
        let mut pipe = Pipe::new(impairment, [1; 32]);
        let start = Instant::from_nanos(0);
        (0..1000).for_each(|n| pipe.push(start + MS * n, n));
        let got = std::iter::from_fn(|| pipe.pop(start + MS * 10_000)).collect();
        (got, pipe.counters())
    }

    #[test]
    fn an_unimpaired_pipe_keeps_everything_in_order_and_in_time() {
        let delay = MS * 7;
        let mut pipe = Pipe::new(Impairment { delay, ..Default::default() }, [1; 32]);
        let start = Instant::from_nanos(0);
        pipe.push(start, 1);
        assert_eq!(pipe.pop(start + MS * 6), None);
        assert_eq!(pipe.next_arrival(), Some(start + MS * 7));
        assert_eq!(pipe.pop(start + MS * 7), Some(1));
        let (got, _) = deliver(Impairment { delay, jitter: MS * 50, ..Default::default() });
        assert!(got.is_sorted(), "jitter alone does not reorder");
        assert_eq!(got.len(), 1000);
    }

    #[test]
    fn an_impairment_can_change_while_packets_are_under_way() {
        let with = |delay, loss| Impairment { delay, loss, ..Default::default() };
        let mut pipe = Pipe::new(with(MS * 50, Loss::None), [1; 32]);
        let start = Instant::from_nanos(0);
        pipe.push(start, 1);
        pipe.set_impairment(with(MS, Loss::Random(1.0)));
        pipe.push(start + MS, 2);
        pipe.set_impairment(with(MS, Loss::None));
        pipe.push(start + MS * 2, 3);
        pipe.push(start + MS * 60, 4);
        assert_eq!(pipe.pop(start + MS * 49), None, "the delay of a packet under way has changed");
        let got: Vec<u32> = std::iter::from_fn(|| pipe.pop(start + MS * 50)).collect();
        assert_eq!(got, [1, 3], "the shorter delay must not overtake");
        assert_eq!((pipe.next_arrival(), pipe.in_flight()), (Some(start + MS * 61), 1));
        let counters = pipe.counters();
        assert_eq!((counters.sent, counters.lost), (4, 1));
    }

    #[test]
    fn a_burst_ends_with_the_impairment_that_had_it() {
        let loss = Loss::Bursts { begin: 1.0, end: 0.0 };
        let mut pipe = Pipe::new(Impairment { loss, ..Default::default() }, [1; 32]);
        let start = Instant::from_nanos(0);
        pipe.push(start, 1);
        pipe.set_impairment(Impairment::default());
        pipe.push(start, 2);
        let later = Loss::Bursts { begin: 0.0, end: 0.0 };
        pipe.set_impairment(Impairment { loss: later, ..Default::default() });
        pipe.push(start, 3);
        let got: Vec<u32> = std::iter::from_fn(|| pipe.pop(start)).collect();
        assert_eq!(got, [2, 3]);
    }

    #[test]
    fn reordering_and_duplication_lose_nothing() {
        let rough =
            Impairment { duplicate: 0.2, reorder: 0.2, reorder_by: MS * 30, ..Default::default() };
        let (mut got, counters) = deliver(rough);
        assert!(!got.is_sorted());
        assert_eq!(got.len() as u64, 1000 + counters.duplicated);
        assert!((150..250).contains(&counters.reordered), "{counters:?}");
        got.sort_unstable();
        got.dedup();
        assert!(got.into_iter().eq(0..1000));
    }
}
