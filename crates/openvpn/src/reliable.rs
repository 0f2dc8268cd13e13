//! The reliability layer of the control channel: ordered, acknowledged messages over datagrams.
//!
//! Each key negotiation has its own message ids, which start at 0. As in OpenVPN, a packet carries
//! at most 8 acknowledgements, the send window is 6, and an id is acknowledged again when a
//! duplicate arrives, because the first acknowledgement may have been lost.
//!
//! Retransmission follows the measured round trip (RFC 6298) instead of starting with 2 seconds and
//! doubling. On a path that loses a tenth of the packets, a handshake therefore takes a second
//! instead of a minute.

#![deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used)]

use std::collections::VecDeque;
use std::time::Duration;

use adit_engine::Instant;

use crate::packet::{Acks, Opcode};

/// The maximum number of messages in flight. Peers of 2.4 and 2.5 buffer 8, newer ones 12, so 6
/// always fit.
const SEND_WINDOW: usize = 6;
/// The number of messages accepted ahead of the next one.
const RECEIVE_WINDOW: u32 = 12;
/// The maximum number of acknowledgements that wait for a packet to carry them.
const MAX_PENDING_ACKS: usize = 16;
/// The maximum number of acknowledgements that are repeated in later packets in case the first copy
/// was lost.
const MAX_RECENT_ACKS: usize = 8;
/// The maximum number of acknowledgements in a packet with a message; a bare acknowledgement
/// carries up to 8.
const ACKS_WITH_MESSAGE: usize = 4;
/// How long a few acknowledgements may wait for a message to carry them during a handshake. The rest of the peer's flight usually arrives
/// in this time, and our answer to it can carry them.
const ACK_PATIENCE: Duration = Duration::from_millis(10);
/// The number of acknowledgements that may wait: less than any peer's send window.
const PATIENT_ACKS: usize = 2;
/// The number of later messages whose acknowledgement causes a message to be retransmitted at once.
const FAST_RETRANSMIT: u8 = 3;
/// The bounds of the retransmission timeout.
const MIN_TIMEOUT: Duration = Duration::from_millis(200);
const MAX_TIMEOUT: Duration = Duration::from_secs(4);

/// The due time of a message that is never retransmitted.
const NEVER: Instant = Instant::from_nanos(u64::MAX);

/// The outcome of receiving a message.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// The message is kept; it may be ready to [`Reliable::pop`].
    New,
    /// The message was received before; it is acknowledged again.
    Duplicate,
    /// The message is beyond the window; it is neither kept nor acknowledged.
    OutOfWindow,
}

#[derive(Debug)]
struct UnackedMessage {
    id: u32,
    opcode: Opcode,
    payload: Vec<u8>,
    /// The time of the next transmission.
    due: Instant,
    /// The time of the first transmission, for measuring the round trip; `None` before it.
    first_sent: Option<Instant>,
    transmissions: u32,
    later_acks: u8,
}

/// A message due for transmission.
#[derive(Debug)]
pub(crate) struct DueMessage<'a> {
    pub(crate) id: u32,
    pub(crate) opcode: Opcode,
    pub(crate) payload: &'a [u8],
}

#[derive(Debug)]
pub(crate) struct Reliable {
    next_send: u32,
    outstanding: VecDeque<UnackedMessage>,
    next_receive: u32,
    received: VecDeque<Option<(Opcode, Vec<u8>)>>,
    pending_acks: VecDeque<u32>,
    recent_acks: VecDeque<u32>,
    /// The time until which acknowledgements may wait.
    acks_due: Option<Instant>,
    /// The retransmission timer; `None` over a stream, where each message is sent only once.
    timeout: Option<RoundTrip>,
}

impl Reliable {
    /// Creates a channel. `initial` is the retransmission timeout until a round trip has been
    /// measured.
    pub(crate) fn new(initial: Duration) -> Self {
        Self::resume(initial, 0)
    }

    /// Creates a channel in which both directions continue at `next`. The earlier messages were
    /// exchanged in the stateless part of the handshake.
    pub(crate) fn resume(initial: Duration, next: u32) -> Self {
        Self {
            next_send: next,
            outstanding: VecDeque::new(),
            next_receive: next,
            received: VecDeque::new(),
            pending_acks: VecDeque::new(),
            recent_acks: VecDeque::new(),
            acks_due: None,
            timeout: Some(RoundTrip::new(initial)),
        }
    }

    /// Creates a channel over a stream. It still sends acknowledgements, because peers expect them,
    /// but never retransmits.
    pub(crate) fn over_stream() -> Self {
        Self { timeout: None, ..Self::new(Duration::ZERO) }
    }

    /// Returns whether another message fits into the send window.
    pub(crate) fn can_send(&self) -> bool {
        self.outstanding.len() < SEND_WINDOW && self.next_send != u32::MAX
    }

    /// Returns whether every message that was sent is acknowledged.
    pub(crate) fn all_acknowledged(&self) -> bool {
        self.outstanding.is_empty()
    }

    /// Queues a message for immediate transmission. Call [`Self::can_send`] first, because a
    /// message beyond the window is refused.
    pub(crate) fn push(&mut self, now: Instant, opcode: Opcode, payload: Vec<u8>) -> bool {
        if !self.can_send() {
            return false;
        }
        self.outstanding.push_back(UnackedMessage {
            id: self.next_send,
            opcode,
            payload,
            due: now,
            first_sent: None,
            transmissions: 0,
            later_acks: 0,
        });
        self.next_send = self.next_send.saturating_add(1);
        true
    }

    /// Processes the acknowledgements of a packet.
    pub(crate) fn acknowledged(&mut self, now: Instant, acks: &Acks) {
        for id in acks.iter() {
            let Some(at) = self.outstanding.iter().position(|m| m.id == id) else { continue };
            let Some(message) = self.outstanding.remove(at) else { continue };
            // Karn's rule: an acknowledgement of a retransmitted message gives no measurement.
            if let (1, Some(sent)) = (message.transmissions, message.first_sent)
                && let Some(timeout) = &mut self.timeout
            {
                timeout.sample(now.since(sent));
            }
            let repeats = self.timeout.is_some();
            for earlier in self.outstanding.iter_mut().filter(|m| repeats && m.id < id) {
                earlier.later_acks = earlier.later_acks.saturating_add(1);
                if earlier.later_acks == FAST_RETRANSMIT {
                    earlier.due = now;
                }
            }
        }
    }

    /// Processes a received message.
    pub(crate) fn received(&mut self, id: u32, opcode: Opcode, payload: &[u8]) -> Received {
        let Some(ahead) = id.checked_sub(self.next_receive) else {
            self.acknowledge(id);
            self.acknowledge_at_once();
            return Received::Duplicate;
        };
        if ahead >= RECEIVE_WINDOW {
            return Received::OutOfWindow;
        }
        let at = ahead as usize;
        while self.received.len() <= at {
            self.received.push_back(None);
        }
        self.acknowledge(id);
        match self.received.get_mut(at) {
            Some(slot @ None) => {
                *slot = Some((opcode, payload.to_vec()));
                Received::New
            }
            _ => {
                self.acknowledge_at_once();
                Received::Duplicate
            }
        }
    }

    /// Returns the next message in order, if it has arrived.
    pub(crate) fn pop(&mut self) -> Option<(Opcode, Vec<u8>)> {
        let message = self.received.front_mut()?.take()?;
        self.received.pop_front();
        self.next_receive = self.next_receive.saturating_add(1);
        Some(message)
    }

    fn acknowledge(&mut self, id: u32) {
        if !self.pending_acks.contains(&id) && self.pending_acks.len() < MAX_PENDING_ACKS {
            self.pending_acks.push_back(id);
        }
    }

    /// Makes waiting acknowledgements due, because a peer that retransmits is waiting for them.
    fn acknowledge_at_once(&mut self) {
        self.acks_due = Some(Instant::from_nanos(0));
    }

    /// Returns whether acknowledgements wait to be sent.
    pub(crate) fn owes_acks(&self) -> bool {
        !self.pending_acks.is_empty()
    }

    /// Returns whether acknowledgements must be sent without a message. If `patient` is true, a few
    /// of them may wait.
    pub(crate) fn acks_are_due(&mut self, now: Instant, patient: bool) -> bool {
        if !self.owes_acks() {
            self.acks_due = None;
            return false;
        }
        let due = *self.acks_due.get_or_insert(now + ACK_PATIENCE);
        !patient || due <= now || self.pending_acks.len() > PATIENT_ACKS
    }

    /// Takes the acknowledgements for the next packet: waiting ones, then recent ones.
    pub(crate) fn take_acks(&mut self, with_message: bool) -> Acks {
        let limit = if with_message { ACKS_WITH_MESSAGE } else { MAX_RECENT_ACKS };
        let mut acks = Acks::default();
        let mut taken = 0;
        while taken < limit {
            let Some(id) = self.pending_acks.pop_front() else { break };
            let _fits = acks.push(id);
            taken += 1;
            self.recent_acks.retain(|&recent| recent != id);
            self.recent_acks.push_front(id);
        }
        self.recent_acks.truncate(MAX_RECENT_ACKS);
        if self.pending_acks.is_empty() {
            self.acks_due = None;
        }
        for &id in self.recent_acks.iter().skip(taken).take(limit.saturating_sub(taken)) {
            let _fits = acks.push(id);
        }
        acks
    }

    /// Returns the next message that is due and marks it as sent now.
    pub(crate) fn transmit(&mut self, now: Instant) -> Option<DueMessage<'_>> {
        let timeout = self.timeout.as_ref().map(RoundTrip::current);
        let message = self.outstanding.iter_mut().find(|m| m.due <= now)?;
        message.transmissions = message.transmissions.saturating_add(1);
        message.first_sent.get_or_insert(now);
        message.due = match timeout {
            Some(timeout) => now + backed_off(timeout, message.transmissions),
            None => NEVER,
        };
        Some(DueMessage { id: message.id, opcode: message.opcode, payload: &message.payload })
    }

    /// Returns whether a message is due.
    pub(crate) fn has_due(&self, now: Instant) -> bool {
        self.outstanding.iter().any(|m| m.due <= now)
    }

    /// Returns the time when the next message or acknowledgement is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        let messages = self.outstanding.iter().map(|m| m.due).filter(|&due| due != NEVER);
        messages.chain(self.acks_due).min()
    }
}

/// Multiplies the timeout by 1.5 for each transmission. This is less than the usual 2, because a
/// control channel has too few packets to congest the network, and users notice a slow handshake.
fn backed_off(timeout: Duration, transmissions: u32) -> Duration {
    let mut wait = timeout;
    for _ in 1..transmissions.min(16) {
        wait = (wait + wait / 2).min(MAX_TIMEOUT);
    }
    wait.min(MAX_TIMEOUT)
}

/// The retransmission timeout of RFC 6298.
#[derive(Debug)]
struct RoundTrip {
    initial: Duration,
    smoothed: Option<(Duration, Duration)>,
}

impl RoundTrip {
    fn new(initial: Duration) -> Self {
        Self { initial: initial.max(MIN_TIMEOUT), smoothed: None }
    }

    fn sample(&mut self, rtt: Duration) {
        self.smoothed = Some(match self.smoothed {
            None => (rtt, rtt / 2),
            Some((srtt, var)) => ((srtt * 7 + rtt) / 8, (var * 3 + srtt.abs_diff(rtt)) / 4),
        });
    }

    fn current(&self) -> Duration {
        match self.smoothed {
            None => self.initial,
            Some((srtt, var)) => (srtt + var * 4).clamp(MIN_TIMEOUT, MAX_TIMEOUT),
        }
    }
}

#[cfg(test)]
#[allow(clippy::expect_used)]
mod tests {
    use super::*;

    const START: Instant = Instant::from_nanos(1_000_000_000);

    fn acks(ids: &[u32]) -> Acks {
        Acks::from_slice(ids).expect("few enough")
    }

    fn sender(messages: usize) -> Reliable {
        let mut r = Reliable::new(Duration::from_secs(1));
        (0..messages).for_each(|n| assert!(r.push(START, Opcode::ControlV1, vec![n as u8])));
        r
    }

    fn sent(r: &mut Reliable, now: Instant) -> Vec<u32> {
        std::iter::from_fn(|| r.transmit(now).map(|due| due.id)).collect()
    }

    #[test]
    fn the_window_is_bounded() {
        let mut r = sender(SEND_WINDOW);
        assert!(!r.push(START, Opcode::ControlV1, vec![]));
        assert_eq!(sent(&mut r, START), [0, 1, 2, 3, 4, 5]);
        r.acknowledged(START, &acks(&[3]));
        assert!(r.push(START, Opcode::ControlV1, vec![]));
    }

    #[test]
    fn retransmits_after_the_measured_round_trip_not_before() {
        let mut r = sender(1);
        assert_eq!(sent(&mut r, START), [0]);
        r.acknowledged(START + Duration::from_millis(100), &acks(&[0]));
        let now = START + Duration::from_secs(5);
        r.push(now, Opcode::ControlV1, vec![]);
        assert_eq!(sent(&mut r, now), [1]);
        // With an srtt of 100 ms and a variance of 50 ms, the timeout is 300 ms.
        assert_eq!(sent(&mut r, now + Duration::from_millis(299)), []);
        assert_eq!(sent(&mut r, now + Duration::from_millis(300)), [1]);
    }

    #[test]
    fn no_timeout_is_so_short_that_sending_never_ends() {
        let mut r = Reliable::new(Duration::ZERO);
        assert!(r.push(START, Opcode::ControlV1, vec![]));
        assert!(r.transmit(START).is_some());
        assert!(!r.has_due(START));
    }

    #[test]
    fn three_later_acknowledgements_retransmit_at_once() {
        let mut r = sender(4);
        sent(&mut r, START);
        r.acknowledged(START, &acks(&[1, 2]));
        assert_eq!(sent(&mut r, START), []);
        r.acknowledged(START, &acks(&[3]));
        assert_eq!(sent(&mut r, START), [0]);
        assert_eq!(sent(&mut r, START), [], "once only");
    }

    #[test]
    fn over_a_stream_nothing_is_sent_twice_and_no_timer_runs() {
        let mut r = Reliable::over_stream();
        (0..5).for_each(|n| assert!(r.push(START, Opcode::ControlV1, vec![n])));
        assert_eq!(sent(&mut r, START), [0, 1, 2, 3, 4]);
        r.acknowledged(START, &acks(&[1, 2, 3, 4]));
        assert_eq!(r.deadline(), None);
        assert_eq!(sent(&mut r, START + Duration::from_secs(3600)), []);
        assert!(!r.all_acknowledged());
        r.acknowledged(START, &acks(&[0]));
        assert!(r.all_acknowledged());
    }

    #[test]
    fn delivers_in_order_and_acknowledges_duplicates_again() {
        let mut r = Reliable::new(Duration::from_secs(1));
        assert_eq!(r.received(1, Opcode::ControlV1, b"b"), Received::New);
        assert!(r.pop().is_none());
        assert_eq!(r.received(0, Opcode::ControlV1, b"a"), Received::New);
        assert_eq!(r.received(1, Opcode::ControlV1, b"b"), Received::Duplicate);
        assert_eq!(r.pop().map(|m| m.1), Some(b"a".to_vec()));
        assert_eq!(r.pop().map(|m| m.1), Some(b"b".to_vec()));
        assert_eq!(r.take_acks(true).iter().collect::<Vec<_>>(), [1, 0]);
        assert!(!r.owes_acks());
        assert_eq!(r.received(0, Opcode::ControlV1, b"a"), Received::Duplicate);
        assert!(r.owes_acks(), "the first acknowledgement may have been lost");
        assert!(r.pop().is_none(), "a duplicate is never delivered");
    }

    #[test]
    fn a_few_acknowledgements_wait_for_an_answer_and_no_longer_than_that() {
        let mut r = Reliable::new(Duration::from_secs(1));
        let later = START + ACK_PATIENCE;
        assert!(!r.acks_are_due(START, true), "nothing was received");
        assert_eq!(r.deadline(), None);
        r.received(0, Opcode::ControlV1, b"a");
        assert!(!r.acks_are_due(START, true));
        assert_eq!(r.deadline(), Some(later));
        assert!(r.acks_are_due(START, false), "nothing more is awaited");
        assert!(r.acks_are_due(later, true), "long enough");
        // The answer carries the acknowledgement.
        r.push(START, Opcode::ControlV1, vec![]);
        assert_eq!(r.take_acks(true).iter().collect::<Vec<_>>(), [0]);
        assert_eq!(sent(&mut r, START), [0]);
        assert!(!r.acks_are_due(later, true));
        assert_eq!(r.deadline(), Some(START + Duration::from_secs(1)));
    }

    #[test]
    fn many_acknowledgements_and_those_of_duplicates_wait_for_nothing() {
        let mut r = Reliable::new(Duration::from_secs(1));
        for id in 0..3 {
            assert!(!r.acks_are_due(START, true), "{id}");
            r.received(id, Opcode::ControlV1, b"");
        }
        assert!(r.acks_are_due(START, true), "the peer's window is half full");
        r.take_acks(false);
        r.received(2, Opcode::ControlV1, b"");
        assert!(r.acks_are_due(START, true), "the first one may be lost");
        r.take_acks(false);
        r.received(5, Opcode::ControlV1, b"");
        assert!(!r.acks_are_due(START, true));
        r.received(5, Opcode::ControlV1, b"");
        assert!(r.acks_are_due(START, true), "a duplicate of one that is ahead");
    }

    #[test]
    fn messages_beyond_the_window_are_neither_kept_nor_acknowledged() {
        let mut r = Reliable::new(Duration::from_secs(1));
        assert_eq!(r.received(RECEIVE_WINDOW, Opcode::ControlV1, b"x"), Received::OutOfWindow);
        assert!(!r.owes_acks());
        assert_eq!(r.received(RECEIVE_WINDOW - 1, Opcode::ControlV1, b"x"), Received::New);
    }

    #[test]
    fn backs_off_up_to_a_bound() {
        let mut r = sender(1);
        let mut now = START;
        let mut gaps = Vec::new();
        for _ in 0..12 {
            assert_eq!(sent(&mut r, now), [0]);
            let next = r.deadline().unwrap_or(now);
            gaps.push(next.since(now));
            now = next;
        }
        assert_eq!(gaps.first(), Some(&Duration::from_secs(1)));
        assert!(gaps.is_sorted());
        assert_eq!(gaps.last(), Some(&MAX_TIMEOUT));
    }
}
