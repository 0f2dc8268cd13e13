//! UDP on a fixed schedule that does not wait for responses.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use adit_linux::clock::boottime;
use adit_linux::poll::{Events, Interest, Poller};
use adit_linux::udp::{RecvBatch, SendScratch, Train};
use adit_testbed::failure::{Context, Result, ensure};

use super::run::{LOOK, SharedTrial, be_punctual, sleep_until, together};
use super::sequence::{ArrivalKind, Header, ReceivedSet, Schedule};
use super::sockets::{SPARE_FILES, UdpPair, allow_files, datagrams, nanos};
use super::window::{FlowResult, Frame, judge};
use super::{Edge, Measured, Route, Sizes, Times, Window};
use crate::record::Latency;

/// The time after the last send in which a datagram may still arrive.
const GRACE: Duration = Duration::from_secs(1);
/// The share of the intended rate below which the generator has not kept its schedule.
const KEPT: f64 = 0.98;
/// The limit on the median lateness, in milliseconds. A generator that exceeds both this and half of the latency has
/// measured itself.
const LATE: f64 = 1.0;
/// The sender's shortest sleep in nanoseconds. Above 20,000 datagrams a second it sends a few at a time, because
/// otherwise sleeping would take more CPU time than sending, and the subject would lack it.
const NAP: u64 = 50_000;
/// The maximum number of datagrams of one flow in one system call, when the sender is late.
const BATCH: usize = 64;

/// The result of sending datagrams on a fixed schedule.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct UdpMeasured {
    /// The payload that arrived in the window, by flow.
    pub measured: Measured,
    /// The rate of the schedule, all flows together, in datagrams a second.
    pub intended_pps: f64,
    /// The rate at which they were actually sent.
    pub offered_pps: f64,
    /// Whether at least 98 % of the datagrams scheduled for the window were sent.
    pub kept: bool,
    /// The number of datagrams sent, of those scheduled inside the window.
    pub sent: u64,
    /// The number of these that arrived, each counted once.
    pub received: u64,
    /// The number of these that had not arrived a second after the last was sent, including those that the sender's
    /// kernel refused.
    pub lost: u64,
    /// The number of datagrams, including the warm-up, that the sender's kernel refused because its buffers were full.
    pub refused: u64,
    /// The number of these that arrived again.
    pub duplicated: u64,
    /// The number of these that arrived after a datagram that was sent later on the same flow.
    pub reordered: u64,
    /// The one-way delay, from the intended time of sending to the arrival.
    pub latency: Latency,
    /// The lateness of the generator itself, from the intended time to the system call.
    pub lateness: Latency,
}

impl UdpMeasured {
    /// Returns the share of lost datagrams, 0 to 1.
    pub fn loss(&self) -> f64 {
        if self.sent > 0 { self.lost as f64 / self.sent as f64 } else { 0.0 }
    }
}

/// Sends `rate_pps` datagrams a second, over all routes in turn. The schedule is fixed in advance. A late sender sends
/// at once, and the latency counts from the intended time, so that a delay does not hide the delays of later datagrams.
/// A datagram that the kernel refuses for lack of buffer space is not sent again and counts as lost. The trial is
/// invalid if the generator sent fewer than 98 %, or if its own lateness makes up most of the latency.
///
/// # Errors
/// A socket cannot be made, in which case the error names the flow, or `edge` fails.
pub fn udp_open_loop(
    routes: &[Route<'_>],
    window: &Window,
    rate_pps: f64,
    sizes: Sizes,
    edge: &mut dyn FnMut(Edge) -> Result<()>,
) -> Result<UdpMeasured> {
    let pairs = sockets(routes)?;
    over(&pairs, routes, window, rate_pps, sizes, GRACE, edge)
}

/// Sockets for all routes.
pub(super) fn sockets(routes: &[Route<'_>]) -> Result<Vec<UdpPair>> {
    allow_files(2 * routes.len() + SPARE_FILES)?;
    let one = |route: &Route<'_>| {
        datagrams(route.from, route.to, route.to_address).context(format!("flow {}", route.name))
    };
    routes.iter().map(one).collect()
}

/// Runs [`udp_open_loop`] over existing sockets, with a different grace period.
pub(super) fn over(
    pairs: &[UdpPair],
    routes: &[Route<'_>],
    window: &Window,
    rate_pps: f64,
    sizes: Sizes,
    grace: Duration,
    edge: &mut dyn FnMut(Edge) -> Result<()>,
) -> Result<UdpMeasured> {
    ensure(rate_pps.is_finite() && rate_pps > 0.0, || {
        format!("a rate of {rate_pps} datagrams a second cannot be sent: write one above 0")
    })?;
    let done = EndSignal::default();
    let accounts: Vec<FlowResult> =
        routes.iter().map(|route| FlowResult::new(&route.name)).collect();
    let (frame, sent, mut received) = together(
        window,
        edge,
        |course| {
            let schedule = Schedule::new(&course.frame, pairs.len(), rate_pps);
            Sender::new(pairs, accounts.clone(), schedule, sizes).run(course, &done)
        },
        |course| {
            let schedule = Schedule::new(&course.frame, pairs.len(), rate_pps);
            Receiver::new(pairs, accounts.clone(), schedule, course.frame).run(course, &done, grace)
        },
    )?;
    for (account, sent) in received.accounts.iter_mut().zip(&sent.accounts) {
        account.started = sent.started;
        account.broken.clone_from(&sent.broken);
    }
    Ok(outcome(&frame, rate_pps, &sent, &received))
}

fn outcome(frame: &Frame, rate: f64, sent: &SendResult, received: &ReceiveResult) -> UdpMeasured {
    let mut measured = judge(frame, &received.accounts);
    let kept = sent.inside as f64 >= KEPT * sent.intended as f64;
    if !kept {
        measured.invalid.push(format!(
            "the generator sent only {} of {} datagrams: it is the limit here, ask for a lower rate",
            sent.inside, sent.intended
        ));
    }
    let (late, latency) = (sent.lateness.at(0.5), received.times.at(0.5));
    if late > LATE && late > latency / 2.0 {
        measured.invalid.push(format!(
            "the generator was {late:.1} ms late at the median, so that the median latency of {latency:.1} ms is mostly its own: \
             ask for a lower rate"
        ));
    }
    let lost = sent.inside.saturating_sub(received.new);
    UdpMeasured {
        measured,
        intended_pps: rate,
        offered_pps: sent.inside as f64 / frame.seconds(),
        kept,
        sent: sent.inside,
        received: received.new,
        lost,
        refused: sent.refused,
        duplicated: received.again,
        reordered: received.late,
        latency: received.times.latency(lost),
        lateness: sent.lateness.latency(0),
    }
}

/// The sender's message that the receiver may end, with the time of the sender's end (0: not yet), and the number of
/// arrivals at which none is missing.
#[derive(Debug, Default)]
struct EndSignal {
    at: AtomicU64,
    expected: AtomicU64,
}

struct SendResult {
    accounts: Vec<FlowResult>,
    /// The number of datagrams sent, of those scheduled in the window.
    inside: u64,
    /// The number of datagrams scheduled in the window.
    intended: u64,
    refused: u64,
    lateness: Times,
}

struct Sender<'a> {
    pairs: &'a [UdpPair],
    schedule: Schedule,
    sizes: Sizes,
    /// The buffers of the datagrams of a batch; only their headers change.
    slots: Vec<Vec<u8>>,
    scratch: SendScratch,
    sent: SendResult,
}

impl<'a> Sender<'a> {
    fn new(
        pairs: &'a [UdpPair],
        accounts: Vec<FlowResult>,
        schedule: Schedule,
        sizes: Sizes,
    ) -> Self {
        let slots = vec![vec![0x5a; usize::from(u16::MAX)]; BATCH];
        let sent =
            SendResult { accounts, inside: 0, intended: 0, refused: 0, lateness: Times::new() };
        Sender { pairs, schedule, sizes, slots, scratch: SendScratch::new(BATCH), sent }
    }

    fn run(mut self, course: &SharedTrial, done: &EndSignal) -> Result<SendResult> {
        be_punctual();
        let (frame, total) = (course.frame, self.schedule.total());
        self.sent.intended = total - self.schedule.due(frame.begin - 1);
        // Datagrams that are due just before the end may be sent just after it; a longer backlog is not sent.
        let last = frame.end + (frame.end - frame.begin) / 100;
        let most = (BATCH * self.pairs.len()) as u64;
        let mut next = 0;
        while next < total && !course.stopped() {
            let now = boottime();
            if now >= last {
                break;
            }
            let due = self.schedule.due(now).min(next + most);
            if due == next {
                let next = self.schedule.time(next).max(now + NAP);
                sleep_until(next.min(now + nanos(LOOK)));
                continue;
            }
            for flow in 0..self.pairs.len() {
                self.burst(&frame, flow, next, due);
            }
            next = due;
        }
        done.expected.store(next - self.sent.refused, Ordering::Relaxed);
        done.at.store(boottime(), Ordering::Release);
        Ok(self.sent)
    }

    /// Sends the datagrams of one flow in this range of the schedule.
    fn burst(&mut self, frame: &Frame, flow: usize, from: u64, to: u64) {
        let Some((pair, account)) = self.pairs.get(flow).zip(self.sent.accounts.get_mut(flow))
        else {
            return;
        };
        let (schedule, flow) = (&self.schedule, flow as u64);
        let numbers = schedule.of_flow(flow, from)..schedule.of_flow(flow, to);
        let now = boottime();
        let mut trains = Vec::with_capacity(self.slots.len());
        for (number, slot) in numbers.zip(&mut self.slots) {
            let intended = schedule.time(schedule.place(flow, number));
            if account.started.is_none() {
                // The flows take turns, so the offset of a flow in the first round is not lateness.
                account.sent(now.saturating_sub(intended - frame.start));
            }
            if frame.contains(intended) {
                self.sent.inside += 1;
                self.sent.lateness.record(now.saturating_sub(intended));
            }
            let header = Header { number, intended }.to_bytes();
            if let Some(place) = slot.first_chunk_mut() {
                *place = header;
            }
            let size = self.sizes.payload(number, pair.target.ip());
            let payload = slot.get(..size).unwrap_or_default();
            trains.push(Train { to: pair.target, from: None, segment: 0, tos: None, payload });
        }
        if let Err(stop) = pair.near.send_trains(&trains, &mut self.scratch) {
            self.sent.refused += (trains.len() - stop.sent) as u64;
            if !full(&stop.error) {
                account.broken.get_or_insert(stop.error.to_string());
            }
        }
    }
}

/// Returns whether the error only means that the buffers are full.
fn full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::WouldBlock || error.raw_os_error() == Some(nix::libc::ENOBUFS)
}

struct ReceiveResult {
    accounts: Vec<FlowResult>,
    /// The number of datagrams scheduled in the window that arrived, without repetitions.
    new: u64,
    again: u64,
    late: u64,
    times: Times,
}

struct Receiver<'a> {
    pairs: &'a [UdpPair],
    frame: Frame,
    schedule: Schedule,
    seen: Vec<ReceivedSet>,
    /// The number of all datagrams that have arrived, including the warm-up.
    all: u64,
    received: ReceiveResult,
}

impl<'a> Receiver<'a> {
    fn new(
        pairs: &'a [UdpPair],
        accounts: Vec<FlowResult>,
        schedule: Schedule,
        frame: Frame,
    ) -> Self {
        let total = schedule.total();
        let seen =
            (0..pairs.len() as u64).map(|f| ReceivedSet::none_of(schedule.of_flow(f, total)));
        let received = ReceiveResult { accounts, new: 0, again: 0, late: 0, times: Times::new() };
        Receiver { pairs, frame, schedule, seen: seen.collect(), all: 0, received }
    }

    fn run(
        mut self,
        course: &SharedTrial,
        done: &EndSignal,
        grace: Duration,
    ) -> Result<ReceiveResult> {
        let poller = Poller::new()?;
        for (token, pair) in (0..).zip(self.pairs) {
            poller.add(&pair.far, token, Interest::READ)?;
        }
        let (mut events, mut batch) = (Events::new(), RecvBatch::new(BATCH));
        // The sender ends soon after the window; this makes it certain.
        let latest = course.frame.end + nanos(grace) + nanos(Duration::from_secs(5));
        loop {
            let (now, ended) = (boottime(), done.at.load(Ordering::Acquire));
            let complete = self.all >= done.expected.load(Ordering::Relaxed);
            let over = ended > 0 && (complete || now >= ended + nanos(grace));
            if over || now >= latest || course.stopped() {
                return Ok(self.received);
            }
            poller.wait(&mut events, Some(Duration::from_millis(10)))?;
            for event in events.iter() {
                let index = usize::try_from(event.token).unwrap_or(usize::MAX);
                let Some(pair) = self.pairs.get(index) else { continue };
                // An error here is a pending ICMP error; the datagram that caused it counts as lost.
                if pair.far.recv_burst(&mut batch).is_ok() {
                    let at = boottime();
                    for received in batch.datagrams_mut() {
                        self.arrived(index, at, received.data);
                    }
                }
            }
        }
    }

    fn arrived(&mut self, flow: usize, at: u64, datagram: &[u8]) {
        let received = &mut self.received;
        let both = self.seen.get_mut(flow).zip(received.accounts.get_mut(flow));
        let (Some(header), Some((seen, account))) = (Header::read(datagram), both) else { return };
        if self.schedule.time(self.schedule.place(flow as u64, header.number)) != header.intended {
            // It belongs to an earlier schedule over the same sockets.
            return;
        }
        let inside = self.frame.contains(header.intended);
        match seen.arrive(header.number) {
            ArrivalKind::New { late } => {
                self.all += 1;
                account.arrived(&self.frame, at, datagram.len() as u64);
                if inside {
                    received.new += 1;
                    received.late += u64::from(late);
                    received.times.record(at.saturating_sub(header.intended));
                }
            }
            ArrivalKind::Again => received.again += u64::from(inside),
            ArrivalKind::Foreign => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: Frame = Frame { start: 0, begin: 1_000_000_000, end: 3_000_000_000 };

    fn sent(inside: u64, intended: u64) -> SendResult {
        let mut account = FlowResult::new("up 1");
        account.sent(0);
        SendResult { accounts: vec![account], inside, intended, refused: 3, lateness: Times::new() }
    }

    fn received(new: u64) -> ReceiveResult {
        let mut account = FlowResult::new("up 1");
        account.sent(0);
        account.arrived(&FRAME, FRAME.begin, 500);
        ReceiveResult { accounts: vec![account], new, again: 1, late: 2, times: Times::new() }
    }

    #[test]
    fn loss_is_of_what_was_sent_and_not_of_what_was_to_be() {
        let outcome = outcome(&FRAME, 500.0, &sent(990, 1000), &received(891));
        assert_eq!((outcome.sent, outcome.lost, outcome.latency.lost), (990, 99, 99));
        assert!((outcome.loss() - 0.1).abs() < 1e-9);
        assert!((outcome.offered_pps - 495.0).abs() < 1e-9);
        assert!(outcome.kept && outcome.measured.invalid.is_empty(), "{outcome:?}");
    }

    #[test]
    fn a_generator_that_falls_behind_is_named_as_the_limit() {
        let outcome = outcome(&FRAME, 500.0, &sent(979, 1000), &received(979));
        assert!(!outcome.kept);
        let expected = "the generator sent only 979 of 1000 datagrams: it is the limit here, ask for a lower rate";
        assert_eq!(outcome.measured.invalid, [expected]);
    }

    #[test]
    fn a_late_generator_does_not_pass_for_a_slow_path() {
        let with = |late: u64, latency: u64| {
            let (mut sent, mut received) = (sent(1000, 1000), received(1000));
            sent.lateness.record(late * 1_000_000);
            received.times.record(latency * 1_000_000);
            outcome(&FRAME, 500.0, &sent, &received).measured.invalid
        };
        assert_eq!(with(4, 10), Vec::<String>::new());
        assert_eq!(with(0, 0), Vec::<String>::new());
        let invalid = with(8, 10);
        assert!(invalid.iter().any(|why| why.contains("8.0 ms late")), "{invalid:?}");
    }

    #[test]
    fn arrivals_count_by_their_intended_time_and_their_bytes_by_their_own() {
        let schedule = Schedule::new(&FRAME, 1, 10.0);
        let mut receiver = Receiver::new(&[], vec![FlowResult::new("up 1")], schedule, FRAME);
        receiver.seen = vec![ReceivedSet::none_of(schedule.total())];
        let mut arrive = |number: u64, at: u64| {
            let intended = schedule.time(number);
            receiver.arrived(0, at, &Header { number, intended }.to_bytes());
        };
        arrive(9, 1_000_000_001); // intended in the warm-up, arrives in the window
        arrive(11, 1_150_000_000);
        arrive(10, 1_160_000_000);
        arrive(10, 1_170_000_000);
        arrive(29, 3_000_000_000); // intended in the window, arrives after it
        receiver.arrived(0, 1_200_000_000, b"short");
        let of_another_schedule = Header { number: 12, intended: 1_200_000_001 };
        receiver.arrived(0, 1_250_000_000, &of_another_schedule.to_bytes());
        let received = receiver.received;
        assert_eq!((received.new, received.again, received.late), (3, 1, 1));
        assert_eq!(received.accounts.first().unwrap().bytes, 3 * 16);
        assert!((received.times.at(1.0) - 160.0).abs() < 0.5, "{}", received.times.at(1.0));
    }
}
