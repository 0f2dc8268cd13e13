//! The loop of one worker thread.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use adit_filter::FrameVerdict;
use adit_linux::clock;
use adit_linux::packet::FrameBatch;
use adit_linux::poll::{EventFd, Events, Interest, Poller};
use adit_linux::tun::VNET_LEN;

use crate::counters::{Counters, Drop, SideTotals};
use crate::hook::{Hook, HookVerdict};
use crate::port::{FrameError, Queue, QueueError, Side};
use crate::routed::Outgoing;

/// The maximum number of frames in a burst. If each had 64 KiB, they would exceed a core's cache, so the batch then
/// takes fewer.
const SLOTS: usize = 64;

/// The number of frames read from a TAP device at once.
const TAP_BURST: usize = 16;

/// The number of bytes after which reading from a TAP device stops, if the other port can send several frames with one
/// call.
const TO_SOCKET: usize = 256 << 10;

/// The same limit if the other port is a TAP device too. Each frame is then written by a separate call, preferably
/// while it is in the cache.
const TO_TAP: usize = 16 << 10;

/// The header of a frame that is complete.
const PLAIN: [u8; VNET_LEN] = [0; VNET_LEN];

/// The number of bursts from each port before the worker checks for commands.
const ROUNDS: usize = 256;

/// How long a burst may wait for space in the other port's queue before it is dropped. Meanwhile its own port is not read, so its queue
/// slows the senders down, and brief congestion loses nothing. A port that is stuck for longer is broken.
const PATIENCE: Duration = Duration::from_millis(200);

/// The command queue's token; the tokens of the ports are their sides' indices.
const COMMANDS: u64 = 2;

/// A command from the control thread to a worker.
#[derive(Debug)]
pub(crate) enum Command {
    /// Replaces a lost queue.
    Attach(Side, Arc<Queue>),
    /// Ends the worker.
    Stop,
}

/// The commands for one worker. There are few: an operator gives them, or an interface returns.
#[derive(Debug)]
pub(crate) struct CommandQueue {
    pending: Mutex<Vec<Command>>,
    wakeup: EventFd,
}

impl CommandQueue {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { pending: Mutex::new(Vec::new()), wakeup: EventFd::new()? })
    }

    pub(crate) fn push(&self, command: Command) {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner).push(command);
        self.wakeup.signal();
    }

    fn take(&self) -> Vec<Command> {
        self.wakeup.drain();
        std::mem::take(&mut *self.pending.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

/// The lost ports, for the control thread.
#[derive(Debug)]
pub(crate) struct LinkState {
    sides: [AtomicBool; 2],
    wakeup: EventFd,
}

impl LinkState {
    pub(crate) fn new() -> std::io::Result<Self> {
        Ok(Self { sides: Default::default(), wakeup: EventFd::new()? })
    }

    fn report(&self, side: Side) {
        if let Some(lost) = self.sides.get(side.index()) {
            lost.store(true, Ordering::Release);
        }
        self.wakeup.signal();
    }

    /// Returns the ports that were reported since the last call.
    pub(crate) fn take(&self) -> [bool; 2] {
        self.wakeup.drain();
        std::array::from_fn(|at| {
            self.sides.get(at).is_some_and(|lost| lost.swap(false, Ordering::AcqRel))
        })
    }

    pub(crate) fn wakeup(&self) -> &EventFd {
        &self.wakeup
    }
}

/// Frames in transit from one port to the other.
struct Direction {
    batch: FrameBatch,
    /// Fragments of complete packets that were accepted. They are sent before the batch, and nothing is received
    /// meanwhile, so there are at most the packets of one burst.
    released: VecDeque<Vec<u8>>,
    /// The rules' answers to the burst.
    answers: ReturnedFrames,
    /// The rest of a burst that waits for space, with its deadline.
    waiting: Option<PendingBurst>,
    counted: SideTotals,
}

/// Frames to be returned to the side that a burst came from, kept until no lock is held.
#[derive(Default)]
struct ReturnedFrames {
    bytes: Vec<u8>,
    /// The end of each frame.
    ends: Vec<usize>,
}

impl ReturnedFrames {
    #[cold]
    fn push(&mut self, frame: &[u8]) {
        self.bytes.extend_from_slice(frame);
        self.ends.push(self.bytes.len());
    }

    fn send(&mut self, queue: &Queue) {
        let mut from = 0;
        for end in &self.ends {
            let frame = self.bytes.get(from..*end).unwrap_or_default();
            // The sender may get no answer, as in any congested network.
            let _ = queue.send_one(&PLAIN, frame);
            from = *end;
        }
        self.bytes.clear();
        self.ends.clear();
    }
}

/// The rest of a burst.
#[derive(Copy, Clone)]
struct PendingBurst {
    from: usize,
    /// The number of fragments to be sent before it.
    released: usize,
    /// Its deadline on the boot clock, in nanoseconds.
    until: u64,
}

/// The state of one thread.
pub(crate) struct Worker {
    pub poller: Poller,
    pub commands: Arc<CommandQueue>,
    pub link_state: Arc<LinkState>,
    pub counters: Arc<Counters>,
    queues: [Option<Arc<Queue>>; 2],
    ways: [Direction; 2],
    hook: Hook,
}

/// Whether the worker continues.
#[derive(PartialEq, Eq)]
enum Next {
    Go,
    Stop,
}

impl Worker {
    /// Creates a worker that is ready to run. All steps that can fail have then succeeded.
    pub(crate) fn new(
        queues: [Arc<Queue>; 2],
        hook: Hook,
        commands: Arc<CommandQueue>,
        link_state: Arc<LinkState>,
        counters: Arc<Counters>,
    ) -> std::io::Result<Self> {
        let poller = Poller::new()?;
        poller.add(&commands.wakeup, COMMANDS, Interest::READ)?;
        for (token, queue) in (0..).zip(&queues) {
            poller.add(queue.as_ref(), token, Interest::READ)?;
        }
        let way = || Direction {
            batch: FrameBatch::new(SLOTS),
            released: VecDeque::new(),
            answers: ReturnedFrames::default(),
            waiting: None,
            counted: SideTotals::default(),
        };
        let queues = queues.map(Some);
        Ok(Self { poller, commands, link_state, counters, queues, ways: [way(), way()], hook })
    }

    /// Runs until it is asked to stop.
    pub(crate) fn run(mut self) {
        let mut events = Events::new();
        loop {
            // The only error is that of a descriptor that is not an epoll set.
            let _ = self.poller.wait(&mut events, self.sleep_limit());
            let mut ready = [false; 2];
            for event in events.iter() {
                match event.token {
                    COMMANDS => {
                        if self.run_commands() == Next::Stop {
                            return;
                        }
                    }
                    token => {
                        let side = if token == 0 { Side::A } else { Side::B };
                        if event.writable {
                            self.resume(side.other());
                        }
                        if let Some(ready) = ready.get_mut(side.index()) {
                            *ready = event.readable;
                        }
                    }
                }
            }
            self.give_up_waiting();
            self.flush_router();
            self.drain(ready);
        }
    }

    /// Receives bursts in turn from the ports that are ready, until they have no more frames.
    fn drain(&mut self, [mut a, mut b]: [bool; 2]) {
        for _ in 0..ROUNDS {
            a = a && self.burst(Side::A);
            b = b && self.burst(Side::B);
            if !a && !b {
                break;
            }
        }
        for (side, way) in Side::BOTH.into_iter().zip(&mut self.ways) {
            self.counters.add(side, &mut way.counted);
        }
    }

    /// Moves one burst from a port; returns false if there was none, or no space for it.
    fn burst(&mut self, from: Side) -> bool {
        let BurstContext { way, here, there, hook } = self.moving(from);
        let (Some(here), None) = (here, way.waiting) else { return false };
        let bytes = match there.as_deref() {
            Some(Queue::Packet(_)) => TO_SOCKET,
            _ => TO_TAP,
        };
        let count = match here.receive(&mut way.batch, TAP_BURST, bytes) {
            Ok(count) => count,
            Err(QueueError::Frame(_)) => {
                way.counted.dropped(Drop::Refused, 1);
                return true;
            }
            // The port is down; when it is up again, it becomes readable.
            Err(QueueError::WouldBlock | QueueError::Down) => return false,
            Err(QueueError::Lost) => {
                self.lose(from);
                return false;
            }
        };
        way.counted.dropped(Drop::Unusable, way.batch.take_unusable());
        // A burst that filled all slots may have left frames behind.
        let more = !way.batch.is_drained();
        way.evaluate(hook, from, count, here, there.as_deref());
        match way.forward(there.as_deref(), 0) {
            PartialSend::AtEnd => more,
            PartialSend::Full => {
                self.watch();
                false
            }
            PartialSend::Lost => {
                self.lose(from.other());
                more
            }
        }
    }

    /// Borrows the state that a burst from one side needs.
    fn moving(&mut self, from: Side) -> BurstContext<'_> {
        let ([way_a, way_b], [a, b]) = (&mut self.ways, &self.queues);
        let hook = &mut self.hook;
        match from {
            Side::A => BurstContext { way: way_a, here: a, there: b, hook },
            Side::B => BurstContext { way: way_b, here: b, there: a, hook },
        }
    }

    /// Continues with a burst that waited, now that there is space.
    fn resume(&mut self, from: Side) {
        let BurstContext { way, there, .. } = self.moving(from);
        let Some(waiting) = way.waiting.take() else { return };
        let stopped = way.forward(there.as_deref(), waiting.from);
        if let (PartialSend::Full, Some(still)) = (&stopped, &mut way.waiting) {
            // If nothing was sent, the deadline of the waiting frame still applies; otherwise the next frame gets a new
            // one.
            if (still.from, still.released) == (waiting.from, waiting.released) {
                still.until = waiting.until;
            }
        }
        match stopped {
            PartialSend::Lost => self.lose(from.other()),
            PartialSend::AtEnd | PartialSend::Full => self.watch(),
        }
    }

    /// Drops bursts whose deadline has passed.
    fn give_up_waiting(&mut self) {
        let mut gave_up = false;
        for way in &mut self.ways {
            if way.waiting.is_some_and(|waiting| clock::boottime() >= waiting.until) {
                way.drop_waiting(Drop::QueueFull);
                gave_up = true;
            }
        }
        if gave_up {
            self.watch();
        }
    }

    /// Returns the maximum time to sleep.
    fn sleep_limit(&self) -> Option<Duration> {
        let until = self.ways.iter().filter_map(|way| way.waiting).map(|w| w.until).min();
        let until = until.into_iter().chain(self.hook.wake()).min()?;
        Some(Duration::from_nanos(until.saturating_sub(clock::boottime())))
    }

    /// Sends the router's own frames when they are due.
    fn flush_router(&self) {
        let now = clock::boottime();
        if self.hook.wake().is_none_or(|at| now < at) {
            return;
        }
        for Outgoing { to, vnet, frame } in self.hook.tick(now) {
            if let Some(Some(queue)) = self.queues.get(to.index()) {
                // The router repeats requests to neighbours, and senders repeat lost packets.
                let _ = queue.send_one(&vnet, &frame);
            }
        }
    }

    /// Watches the ports that can be served now. A port whose last burst waits is not read, and the port that the burst
    /// waits for is watched for space.
    fn watch(&self) {
        let [waits_a, waits_b] = self.ways.each_ref().map(|way| way.waiting.is_some());
        let interests = [(!waits_a, waits_b), (!waits_b, waits_a)];
        for ((token, queue), (read, write)) in (0..).zip(&self.queues).zip(interests) {
            if let Some(queue) = queue {
                // Fails only for a descriptor that is not in the set, and these are.
                let _ = self.poller.modify(queue.as_ref(), token, Interest { read, write });
            }
        }
    }

    /// Detaches a port until it is replaced.
    fn lose(&mut self, side: Side) {
        let Some(queue) = self.queues.get_mut(side.index()).and_then(Option::take) else { return };
        let _ = self.poller.remove(queue.as_ref());
        let towards = self.moving(side.other()).way;
        towards.drop_waiting(Drop::PortDown);
        self.watch();
        self.link_state.report(side);
    }

    /// Runs the pending commands.
    fn run_commands(&mut self) -> Next {
        for command in self.commands.take() {
            match command {
                Command::Stop => return Next::Stop,
                Command::Attach(side, fresh) => {
                    self.lose_quietly(side);
                    let token = side.index() as u64;
                    // If the kernel lacks a resource, the port stays lost and is tried again.
                    match self.poller.add(fresh.as_ref(), token, Interest::READ) {
                        Ok(()) => {
                            if let Some(place) = self.queues.get_mut(side.index()) {
                                *place = Some(fresh);
                            }
                            self.watch();
                        }
                        Err(_) => self.link_state.report(side),
                    }
                }
            }
        }
        Next::Go
    }

    /// Detaches a queue that is about to be replaced.
    fn lose_quietly(&mut self, side: Side) {
        if let Some(queue) = self.queues.get_mut(side.index()).and_then(Option::take) {
            let _ = self.poller.remove(queue.as_ref());
        }
    }
}

impl FrameError {
    /// Returns the counted reason why a frame was not accepted.
    #[cold]
    fn counted(self, frame: &[u8]) -> Drop {
        const VLAN: &[u8] = &[0x81, 0x00];
        const SERVICE_VLAN: &[u8] = &[0x88, 0xa8];
        let kind = |at: usize| frame.get(at..at.saturating_add(2)).unwrap_or(&[]);
        let tags = kind(12) == SERVICE_VLAN
            || (kind(12) == VLAN && [VLAN, SERVICE_VLAN].contains(&kind(16)));
        match self {
            Self::Refused => Drop::Refused,
            Self::TooLong if tags => Drop::Tags,
            Self::TooLong => Drop::TooLong,
            Self::Full => Drop::QueueFull,
        }
    }
}

/// The state that a burst needs.
struct BurstContext<'a> {
    way: &'a mut Direction,
    here: &'a Option<Arc<Queue>>,
    there: &'a Option<Arc<Queue>>,
    hook: &'a mut Hook,
}

/// The reason why sending a burst stopped.
enum PartialSend {
    /// The whole burst is finished.
    AtEnd,
    /// The rest waits for space.
    Full,
    /// The port is lost; the rest is dropped.
    Lost,
}

impl Direction {
    /// Evaluates the burst by the rules. Answers are sent after the release of locks that other workers may wait for,
    /// and packets whose last fragment has arrived are sent with the burst.
    fn evaluate(
        &mut self,
        hook: &mut Hook,
        from: Side,
        count: usize,
        here: &Queue,
        there: Option<&Queue>,
    ) {
        let mut burst = hook.burst(from, clock::boottime());
        let Self { batch, counted, released, answers, .. } = self;
        for at in 0..count {
            let Some(mut frame) = batch.frame(at) else { break };
            // The frame was marked as unusable and counted when it was received.
            if frame.bytes.is_empty() {
                continue;
            }
            counted.frames = counted.frames.wrapping_add(1);
            counted.bytes = counted.bytes.wrapping_add(frame.bytes.len() as u64);
            let [_, gso_type, ..] = *frame.vnet;
            counted.large = counted.large.wrapping_add(u64::from(gso_type != 0));
            match burst.evaluate(&mut frame) {
                HookVerdict::Filtered(FrameVerdict::Pass) => {
                    *frame.keep = true;
                    counted.forwarded = counted.forwarded.wrapping_add(1);
                }
                HookVerdict::Filtered(FrameVerdict::Drop) => counted.dropped(Drop::Rules, 1),
                HookVerdict::Filtered(FrameVerdict::Reply(bytes)) => {
                    counted.dropped(Drop::Rules, 1);
                    answers.push(bytes);
                }
                HookVerdict::Filtered(FrameVerdict::Held) | HookVerdict::Consumed => {
                    counted.held = counted.held.wrapping_add(1);
                }
                HookVerdict::Filtered(FrameVerdict::Release(assembled)) => {
                    released.extend(assembled.pieces().map(<[u8]>::to_vec));
                }
                HookVerdict::Unrouted => counted.dropped(Drop::Unrouted, 1),
            }
        }
        let outgoing = burst.finish();
        answers.send(here);
        for Outgoing { to, vnet, frame } in outgoing {
            let queue = if to == from { Some(here) } else { there };
            if let Some(queue) = queue {
                // The router repeats requests to neighbours, and senders repeat lost packets.
                let _ = queue.send_one(&vnet, &frame);
            }
        }
    }

    /// Sends the released fragments, and the kept frames of the burst from `from` on.
    fn forward(&mut self, there: Option<&Queue>, mut from: usize) -> PartialSend {
        let to = self.batch.len();
        let Some(queue) = there else {
            self.drop_rest(from, Drop::PortDown);
            return PartialSend::AtEnd;
        };
        if !self.released.is_empty()
            && let Some(stopped) = self.release(queue, from)
        {
            return stopped;
        }
        while from < to {
            let (done, trouble) = queue.send(&mut self.batch, from, to);
            from = from.saturating_add(done);
            let why = match trouble {
                None => break,
                Some(QueueError::WouldBlock) => return self.wait(from),
                Some(QueueError::Lost) => {
                    self.drop_rest(from, Drop::PortDown);
                    return PartialSend::Lost;
                }
                Some(QueueError::Down) => {
                    self.drop_rest(from, Drop::PortDown);
                    break;
                }
                Some(QueueError::Frame(trouble)) => {
                    trouble.counted(self.batch.frame(from).map_or(&[], |frame| &*frame.bytes))
                }
            };
            self.not_sent(why, 1);
            from = from.saturating_add(1);
        }
        PartialSend::AtEnd
    }

    /// Sends released fragments as long as there is space.
    #[cold]
    fn release(&mut self, queue: &Queue, from: usize) -> Option<PartialSend> {
        while let Some(piece) = self.released.front() {
            let why = match queue.send_one(&PLAIN, piece) {
                // Held fragments are counted when they are sent.
                Ok(()) => {
                    self.counted.forwarded = self.counted.forwarded.wrapping_add(1);
                    None
                }
                Err(QueueError::WouldBlock) => return Some(self.wait(from)),
                Err(QueueError::Lost) => {
                    self.drop_rest(from, Drop::PortDown);
                    return Some(PartialSend::Lost);
                }
                Err(QueueError::Down) => Some(Drop::PortDown),
                Err(QueueError::Frame(trouble)) => Some(trouble.counted(piece)),
            };
            if let Some(why) = why {
                self.counted.dropped(why, 1);
            }
            self.released.pop_front();
        }
        None
    }

    /// Keeps the rest of the burst until there is space.
    fn wait(&mut self, from: usize) -> PartialSend {
        let until = clock::boottime().saturating_add(PATIENCE.as_nanos() as u64);
        self.waiting = Some(PendingBurst { from, released: self.released.len(), until });
        PartialSend::Full
    }

    fn drop_waiting(&mut self, why: Drop) {
        if let Some(waiting) = self.waiting.take() {
            self.drop_rest(waiting.from, why);
        }
    }

    fn drop_rest(&mut self, from: usize, why: Drop) {
        self.counted.dropped(why, self.released.len() as u64);
        self.released.clear();
        let kept = (from..self.batch.len()).filter(|at| self.batch.is_kept(*at)).count();
        self.not_sent(why, kept as u64);
    }

    /// Counts frames that could not be sent.
    fn not_sent(&mut self, why: Drop, n: u64) {
        self.counted.dropped(why, n);
        self.counted.forwarded = self.counted.forwarded.wrapping_sub(n);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_that_are_too_long_are_counted_by_their_tags() {
        let frame = |types: &[[u8; 2]]| {
            let mut frame = vec![0; 12];
            types.iter().for_each(|kind| frame.extend([kind[0], kind[1], 0, 5]));
            frame
        };
        let (q, ad, ip) = ([0x81, 0], [0x88, 0xa8], [8, 0]);
        for (types, tags) in [
            (&[ip][..], false),
            (&[q, ip], false),
            (&[q, q, ip], true),
            (&[ad, ip], true),
            (&[ad, q, ip], true),
            (&[q], false),
        ] {
            let (bytes, why) = (frame(types), if tags { Drop::Tags } else { Drop::TooLong });
            assert_eq!(FrameError::TooLong.counted(&bytes), why, "{types:?}");
            assert_eq!(FrameError::Full.counted(&bytes), Drop::QueueFull);
        }
        assert_eq!(FrameError::TooLong.counted(&[]), Drop::TooLong);
    }
}
