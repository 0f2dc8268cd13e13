//! The middle host of a line: a user-space relay that runs an impairment model for each direction.
//!
//! ```text
//! client's host                      this process                      server's host
//! +------------+      +-------------------------------------+      +------------+
//! | TUN "veth0"| <--> | fd   pipe: lose, delay, double   fd  | <--> | TUN "veth0"|
//! +------------+      +-------------------------------------+      +------------+
//! ```
//!
//! The ends of the line are TUN devices whose descriptors the relay holds. Every packet passes separately and whole (a
//! device without offloads has the kernel cut super-packets and finish checksums), no third IP stack has to forward it,
//! and each descriptor serves both to read and to write packets. The relay's own delay is measured for every packet, as
//! the time between its intended arrival and its writing. The time until a packet is read is not included in that
//! figure; it is the time to wake up from the same sleep as for a delayed packet, and is of the same size.

use std::io::{self, IoSlice};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use adit_engine::Instant;
use adit_linux::clock::boottime;
use adit_linux::poll::EventFd;
use adit_linux::process::set_nice;
use adit_linux::tun::{TunDevice, TunOffloads, TunOptions, TunQueue, VNET_LEN};
use adit_sim::{Impairment, Pipe};
use adit_testbed::failure::{Context, Failure, Result};
use adit_testbed::net::{Namespace, VETH};
use hdrhistogram::Histogram;
use nix::poll::{PollFd, PollFlags, ppoll};
use nix::sys::time::TimeSpec;

use crate::record::{Latency, Measurement};

/// The length of the sender's queue while the relay is busy, in packets, as is usual for a network card.
const QUEUE: u32 = 1000;

/// The number of packets that are moved in one direction before the other direction, the timers and other threads have
/// their turn.
const BATCH: usize = 32;

/// The maximum length of a packet.
const LONGEST: usize = 1 << 16;

/// The shares of [`Relay::lateness`].
const SHARES: [f64; 13] =
    [0.0, 0.01, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 0.999, 0.9999, 1.0];

/// The relay of a [`super::Testbed::line`].
#[derive(Debug)]
pub struct Relay {
    state: Arc<Mutex<State>>,
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// Counters of one direction of a relay, in packets. `sent + duplicated` is the sum of all others except `reordered`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct RelayCounters {
    /// The number of packets taken from the sender.
    pub sent: u64,
    /// The number of packets lost by impairment.
    pub lost: u64,
    /// The number of packets that arrived twice.
    pub duplicated: u64,
    /// The number of packets that were held back out of order.
    pub reordered: u64,
    /// The number of packets dropped because too many were in flight.
    pub overflowed: u64,
    /// The number of packets handed to the receiver.
    pub delivered: u64,
    /// The number of packets that the receiver's kernel did not accept.
    pub refused: u64,
    /// The number of packets that are in flight.
    pub under_way: u64,
}

impl Relay {
    /// Starts a relay between the client's and the server's [`end`], which must be up.
    pub(super) fn start(
        ends: [TunQueue; 2],
        impairment: [Impairment; 2],
        seed: u64,
    ) -> Result<Self> {
        let stop = Arc::new(EventFd::new().context("an event's descriptor")?);
        let state = Arc::new(Mutex::new(State::new(impairment, seed)?));
        let (shared, stopped) = (Arc::clone(&state), Arc::clone(&stop));
        let thread = std::thread::Builder::new().name("relay".to_owned()).spawn(move || {
            if let Err(error) = run(&ends, &shared, &stopped) {
                lock(&shared).broken = Some(error.to_string());
            }
        })?;
        Ok(Self { state, stop, thread: Some(thread) })
    }

    /// Changes the impairment from now on: `[from the client, from the server]`. Packets in flight arrive as before.
    pub fn set_impairment(&self, impairment: [Impairment; 2]) {
        let mut state = lock(&self.state);
        for (lane, impairment) in state.lanes.iter_mut().zip(impairment) {
            lane.pipe.set_impairment(impairment);
        }
    }

    /// Returns the counters so far: `[from the client, from the server]`.
    ///
    /// # Errors
    /// The relay has ended; the error says why.
    pub fn counters(&self) -> Result<[RelayCounters; 2]> {
        let state = lock(&self.state);
        match &state.broken {
            Some(why) => Err(Failure(format!("the relay has ended: {why}"))),
            None => Ok(state.counters()),
        }
    }

    /// Returns the distribution of the delays in excess of the intended ones, in both directions, since the start or
    /// the last [`Relay::reset`].
    pub fn lateness(&self) -> Latency {
        lock(&self.state).lateness()
    }

    /// Discards the lateness so far. Call it at the start of the window.
    pub fn reset(&self) {
        lock(&self.state).lateness.reset();
    }

    /// Writes `relay_jitter_ms` (the 99th percentile of the lateness), the distribution as `relay`, a note with it and the
    /// counters, and a reason for invalidity if the relay broke.
    pub fn put(&self, measurement: &mut Measurement) {
        let lateness = self.lateness();
        let at = |share| lateness.at(share).unwrap_or_default();
        let counters = match self.counters() {
            Ok(counters) => counters,
            Err(failure) => {
                measurement.invalid.push(failure.0);
                return;
            }
        };
        measurement.notes.push(format!(
            "the relay handed packets over {:.3} ms (median), {:.3} ms (p99), {:.3} ms (most) later than intended",
            at(0.5),
            at(0.99),
            at(1.0)
        ));
        for (way, c) in ["up", "down"].iter().zip(counters) {
            measurement.notes.push(format!(
                "relay {way}: {} sent, {} lost, {} duplicated, {} reordered, {} overflowed, {} refused",
                c.sent, c.lost, c.duplicated, c.reordered, c.overflowed, c.refused
            ));
        }
        if lateness.count > 0 {
            measurement.set("relay_jitter_ms", at(0.99));
            measurement.latencies.insert("relay".to_owned(), lateness);
        }
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.stop.signal();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has already been printed.
            let _ = thread.join();
        }
    }
}

/// The state shared by the thread and the callers. The thread holds the lock for one batch and never while it sleeps.
#[derive(Debug)]
struct State {
    lanes: [RelayDirection; 2],
    /// The lateness in nanoseconds.
    lateness: Histogram<u64>,
    broken: Option<String>,
}

/// The state of one direction.
#[derive(Debug)]
struct RelayDirection {
    pipe: Pipe<Vec<u8>>,
    delivered: u64,
    refused: u64,
}

impl State {
    fn new(impairment: [Impairment; 2], seed: u64) -> Result<Self> {
        let [up, down] = impairment;
        let lane = |impairment, way| {
            let mut bytes = [way; 32];
            bytes[..8].copy_from_slice(&seed.to_le_bytes());
            RelayDirection { pipe: Pipe::new(impairment, bytes), delivered: 0, refused: 0 }
        };
        // Up to a minute; longer times are recorded as a minute.
        let lateness = Histogram::new_with_bounds(1, 60_000_000_000, 2).context("a histogram")?;
        Ok(Self { lanes: [lane(up, 0), lane(down, 1)], lateness, broken: None })
    }

    fn counters(&self) -> [RelayCounters; 2] {
        self.lanes.each_ref().map(|lane| {
            let of_pipe = lane.pipe.counters();
            RelayCounters {
                sent: of_pipe.sent,
                lost: of_pipe.lost,
                duplicated: of_pipe.duplicated,
                reordered: of_pipe.reordered,
                overflowed: of_pipe.overflowed,
                delivered: lane.delivered,
                refused: lane.refused,
                under_way: lane.pipe.in_flight() as u64,
            }
        })
    }

    fn lateness(&self) -> Latency {
        let count = self.lateness.len();
        let ms = |share| self.lateness.value_at_quantile(share) as f64 / 1e6;
        let shares = SHARES.iter().filter(|_| count > 0);
        Latency { count, lost: 0, quantiles: shares.map(|share| (*share, ms(*share))).collect() }
    }

    /// Returns the time of the next work that does not depend on a new packet.
    fn next(&self) -> Option<Instant> {
        self.lanes.iter().filter_map(|lane| lane.pipe.next_arrival()).min()
    }
}

impl RelayDirection {
    /// Takes packets from the sender; returns whether there may be more.
    fn take(&mut self, from: &TunQueue, buffer: &mut [u8]) -> io::Result<bool> {
        let mut vnet = [0; VNET_LEN];
        for _ in 0..BATCH {
            match from.read(&mut vnet, buffer) {
                Ok(length) => {
                    let packet = buffer.get(..length).unwrap_or_default().to_vec();
                    self.pipe.push(now(), packet);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        Ok(true)
    }

    /// Delivers packets that are due; returns whether there are more.
    fn deliver(&mut self, to: &TunQueue, lateness: &mut Histogram<u64>) -> bool {
        for _ in 0..BATCH {
            let Some(arrival) = self.pipe.next_arrival() else { return false };
            let Some(packet) = self.pipe.pop(now()) else { return false };
            // With an empty header, the packet needs no further processing.
            match to.write(&[IoSlice::new(&[0; VNET_LEN]), IoSlice::new(&packet)]) {
                Ok(_) => self.delivered += 1,
                // The interface is down, or there is no memory, so the packet is lost, as on any other cable.
                Err(_) => self.refused += 1,
            }
            let late = u64::try_from(now().since(arrival).as_nanos()).unwrap_or(u64::MAX);
            lateness.saturating_record(late.max(1));
        }
        true
    }
}

/// Makes the device of one end in a namespace, without addresses and down.
pub(super) fn end(namespace: &Namespace) -> Result<TunQueue> {
    let options = TunOptions {
        name: Some(VETH.to_owned()),
        offloads: TunOffloads::NONE,
        ..TunOptions::default()
    };
    let handle = namespace.handle()?;
    let mut device = handle.run(|| TunDevice::open(&options))?.context(namespace.name())?;
    let index = device.ifindex;
    handle
        .configure(async |net| net.set_txqueuelen(index, QUEUE).await)?
        .context(namespace.name())?;
    device.queues.pop().context("a TUN device without queues")
}

/// Runs the relay.
fn run(ends: &[TunQueue; 2], state: &Mutex<State>, stop: &EventFd) -> io::Result<()> {
    // The relay replaces a cable, which does not wait for the programs at its ends.
    set_nice(-20)?;
    // For ordinary threads, the kernel combines timers that are within 50 microseconds.
    nix::sys::prctl::set_timerslack(1)?;
    let mut buffer = vec![0; LONGEST];
    let mut ready = [true, true];
    loop {
        let (mut busy, next) = {
            let mut state = lock(state);
            let State { lanes, lateness, .. } = &mut *state;
            let mut busy = false;
            let [client, server] = ends;
            let ways = [(client, server), (server, client)];
            for ((lane, ready), (from, to)) in lanes.iter_mut().zip(&mut ready).zip(ways) {
                if *ready {
                    *ready = lane.take(from, &mut buffer)?;
                }
                busy |= lane.deliver(to, lateness) | *ready;
            }
            (busy, state.next())
        };
        let sleep = next.map(|next| next.since(now()));
        busy |= sleep.is_some_and(|sleep| sleep.is_zero());
        let sleep = if busy { Some(Duration::ZERO) } else { sleep };
        if wait(ends, stop, sleep, &mut ready)? {
            return Ok(());
        }
    }
}

/// Sleeps until a packet can be read or the time has passed; returns whether the relay must end.
fn wait(
    ends: &[TunQueue; 2],
    stop: &EventFd,
    sleep: Option<Duration>,
    ready: &mut [bool; 2],
) -> io::Result<bool> {
    let [client, server] = ends.each_ref().map(AsFd::as_fd);
    let mut fds = [client, server, stop.as_fd()].map(|fd| PollFd::new(fd, PollFlags::POLLIN));
    // `ppoll` takes nanoseconds; epoll's timeout takes milliseconds.
    match ppoll(&mut fds, sleep.map(TimeSpec::from), None) {
        Ok(_) => {}
        Err(nix::Error::EINTR) => return Ok(false),
        Err(error) => return Err(error.into()),
    }
    let [client, server, stop] = fds.map(|fd| fd.any().unwrap_or(true));
    ready[0] |= client;
    ready[1] |= server;
    Ok(stop)
}

fn now() -> Instant {
    Instant::from_nanos(boottime())
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_late_is_told_in_milliseconds() {
        let mut state = State::new(Default::default(), 1).unwrap();
        assert_eq!(state.lateness(), Latency::default());
        for n in 1..=1000u64 {
            state.lateness.saturating_record(n * 1_000_000);
        }
        let lateness = state.lateness();
        assert_eq!(lateness.count, 1000);
        for (share, ms) in [(0.5, 500.0), (0.99, 990.0), (1.0, 1000.0)] {
            let got = lateness.at(share).unwrap();
            assert!((got / ms - 1.0).abs() < 0.02, "{share}: {got}");
        }
    }

    #[test]
    fn directions_do_not_share_their_fate() {
        let loss = adit_sim::Loss::Random(0.5);
        let rough = Impairment { loss, ..Default::default() };
        let lost = |seed| {
            let mut state = State::new([rough.clone(), rough.clone()], seed).unwrap();
            let mut fate = |way: usize| -> Vec<bool> {
                let pipe = &mut state.lanes[way].pipe;
                (0..64)
                    .map(|_| {
                        let before = pipe.counters().lost;
                        pipe.push(Instant::default(), Vec::new());
                        pipe.counters().lost > before
                    })
                    .collect()
            };
            [fate(0), fate(1)]
        };
        assert_eq!(lost(7), lost(7));
        assert_ne!(lost(7)[0], lost(7)[1]);
        assert_ne!(lost(7), lost(8));
    }
}
