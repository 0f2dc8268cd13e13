//! A line that delays, reorders and loses frames, in user space: not every kernel has netem.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use adit_linux::poll::{Events, Interest, Poller};
use adit_linux::tun::plain_tap;

use crate::failure::{Context, Result};
use crate::net::{Namespace, ip};

/// The maximum delay until the thread notices that the line is gone, or that conditions have changed.
const PATIENCE: Duration = Duration::from_millis(50);

/// The maximum number of waiting frames. Further ones are lost and counted.
const MAX_WAITING: usize = 4096;

/// The maximum length of a frame.
const MAX_FRAME: usize = 2048;

/// The conditions in each direction. Each frame is delayed by `delay` and a random time of up to `jitter`, so later frames may overtake.
#[derive(Debug, Clone, Copy, Default)]
pub struct Conditions {
    /// The share of lost frames, in percent.
    pub loss: u32,
    /// The delay of every frame.
    pub delay: Duration,
    /// The maximum additional delay.
    pub jitter: Duration,
}

/// Counts the frames in both directions.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// Frames that arrived.
    pub delivered: u64,
    /// Frames that arrived before an earlier one.
    pub overtook: u64,
    /// Frames that were lost.
    pub lost: u64,
}

#[derive(Debug, Default)]
struct Shared {
    stop: AtomicBool,
    loss: AtomicU64,
    delay_us: AtomicU64,
    jitter_us: AtomicU64,
    delivered: AtomicU64,
    overtook: AtomicU64,
    lost: AtomicU64,
}

/// A line between two namespaces. Dropping it removes its interfaces.
#[derive(Debug)]
pub struct Line {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Line {
    /// Connects two namespaces with an interface of this name in each. Both are down, and frames cross without delay at
    /// first.
    ///
    /// # Errors
    /// The kernel refused an interface.
    pub fn new(ends: [(&Namespace, &str); 2]) -> Result<Self> {
        let open = |(space, name): (&Namespace, &str)| -> Result<File> {
            let tap = space.handle()?.run(|| plain_tap(name))?.context(name)?;
            Ok(File::from(tap))
        };
        let [one, other] = ends;
        let taps = [open(one)?, open(other)?];
        for (space, name) in ends {
            ip(Some(space), [format!("link set {name} mtu 1500")].into_iter())?;
        }
        let shared = Arc::new(Shared::default());
        let poller = Poller::new()?;
        for (token, tap) in (0..).zip(&taps) {
            poller.add(tap, token, Interest::READ)?;
        }
        let forwarder = Forwarder {
            shared: Arc::clone(&shared),
            taps,
            waiting: BinaryHeap::new(),
            arrived: 0,
            delivered: [0; 2],
            random: 0x9e37_79b9_7f4a_7c15,
        };
        let thread = std::thread::spawn(move || forwarder.run(&poller));
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Changes the conditions for further frames.
    pub fn set(&self, conditions: Conditions) {
        let micros = |time: Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.shared.loss.store(conditions.loss.into(), Ordering::Relaxed);
        self.shared.delay_us.store(micros(conditions.delay), Ordering::Relaxed);
        self.shared.jitter_us.store(micros(conditions.jitter), Ordering::Relaxed);
    }

    /// Returns the counts so far.
    pub fn counts(&self) -> LineCounts {
        LineCounts {
            delivered: self.shared.delivered.load(Ordering::Relaxed),
            overtook: self.shared.overtook.load(Ordering::Relaxed),
            lost: self.shared.lost.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread cannot be reported here.
            let _ = thread.join();
        }
    }
}

/// A waiting frame: its due time, its number, its destination, its bytes.
type Waiting = Reverse<(Instant, u64, usize, Vec<u8>)>;

struct Forwarder {
    shared: Arc<Shared>,
    taps: [File; 2],
    waiting: BinaryHeap<Waiting>,
    arrived: u64,
    /// The highest number delivered to each end.
    delivered: [u64; 2],
    random: u64,
}

impl Forwarder {
    fn run(mut self, poller: &Poller) {
        let mut events = Events::new();
        while !self.shared.stop.load(Ordering::Relaxed) {
            let due = self.waiting.peek().map(|Reverse((due, ..))| *due);
            let wait = due.map_or(PATIENCE, |due| due.saturating_duration_since(Instant::now()));
            if poller.wait_precisely(&mut events, wait.min(PATIENCE)).is_err() {
                return;
            }
            for event in events.iter() {
                self.read(usize::try_from(event.token).unwrap_or_default());
            }
            self.deliver();
        }
    }

    /// Reads one frame from an end that is readable.
    fn read(&mut self, end: usize) {
        let mut frame = vec![0; MAX_FRAME];
        let Some(tap) = self.taps.get_mut(end) else { return };
        // An interface that is down delivers no frames.
        let Ok(len) = tap.read(&mut frame) else { return };
        frame.truncate(len);
        self.arrived += 1;
        let is_lost = self.next_random() % 100 < self.shared.loss.load(Ordering::Relaxed);
        if is_lost || self.waiting.len() >= MAX_WAITING {
            self.shared.lost.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let jitter = self.next_random() % (self.shared.jitter_us.load(Ordering::Relaxed) + 1);
        let delay = self.shared.delay_us.load(Ordering::Relaxed) + jitter;
        let due = Instant::now() + Duration::from_micros(delay);
        self.waiting.push(Reverse((due, self.arrived, 1 - end.min(1), frame)));
    }

    fn deliver(&mut self) {
        let now = Instant::now();
        while self.waiting.peek().is_some_and(|Reverse((due, ..))| *due <= now) {
            let Some(Reverse((_, number, to, frame))) = self.waiting.pop() else { return };
            let (Some(tap), Some(last)) = (self.taps.get_mut(to), self.delivered.get_mut(to))
            else {
                return;
            };
            let counter = match tap.write(&frame) {
                Ok(_) if number < *last => &self.shared.overtook,
                Ok(_) => &self.shared.delivered,
                Err(_) => &self.shared.lost,
            };
            counter.fetch_add(1, Ordering::Relaxed);
            *last = number.max(*last);
        }
    }

    /// Returns the next number of a generator whose quality does not matter: SplitMix64 (Steele, Lea and Flood, 2014).
    fn next_random(&mut self) -> u64 {
        self.random = self.random.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.random;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }
}
