//! Round trips.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use adit_linux::clock::boottime;
use adit_linux::poll::{Events, Interest, Poller};
use adit_linux::udp::{RecvBatch, UdpSocket};
use adit_testbed::failure::{Result, ensure};
use adit_testbed::net::Namespace;

use super::run::{LOOK, be_punctual};
use super::sequence::Header;
use super::sockets::{UdpPair, datagrams, nanos};
use super::{Edge, Route, Times, Window, open_loop};
use crate::record::Latency;

/// The payload of a probe. With its headers, the probe is about the size of a ping.
const PROBE: usize = 56;
/// The time after the last probe in which an echo may still arrive.
const GRACE: Duration = Duration::from_secs(1);
/// The maximum number of probes of one [`Echo`]: more than an hour at 1000 a second. After that it only receives.
const MOST: usize = 4_000_000;

/// Probes and their echoes between two hosts, on separate threads, until [`Echo::finish`]. The probes are sent by a
/// fixed schedule that does not wait for echoes, and each round trip is measured from the intended time.
#[derive(Debug)]
pub struct Echo {
    shared: EchoGuard,
    prober: JoinHandle<Result<Vec<ProbeTime>>>,
    echoer: JoinHandle<Result<()>>,
}

#[derive(Debug)]
struct Shared {
    /// Set when no more probes are to be sent.
    enough: AtomicBool,
    /// Set when echoes are no longer awaited either.
    over: AtomicBool,
    begin: AtomicU64,
    end: AtomicU64,
}

/// Ends the threads on drop, even if [`Echo::finish`] is not called.
#[derive(Debug)]
struct EchoGuard(Arc<Shared>);

impl Drop for EchoGuard {
    fn drop(&mut self) {
        self.0.over.store(true, Ordering::Relaxed);
    }
}

/// A probe, with its intended time, and its round-trip time once its echo has arrived.
#[derive(Debug, Clone, Copy)]
struct ProbeTime {
    intended: u64,
    took: Option<u64>,
}

impl Echo {
    /// Starts to send `rate` small UDP datagrams a second from `from` to `address` in `to`, which sends each one back
    /// at once.
    ///
    /// # Errors
    /// A socket cannot be made, or the rate is not positive.
    pub fn start(from: &Namespace, to: &Namespace, address: IpAddr, rate: f64) -> Result<Self> {
        ensure(rate.is_finite() && rate > 0.0, || {
            format!("{rate} probes a second cannot be sent: write a number above 0")
        })?;
        let UdpPair { near, far, target } = datagrams(from, to, address)?;
        let shared = Arc::new(Shared {
            enough: AtomicBool::new(false),
            over: AtomicBool::new(false),
            begin: AtomicU64::new(0),
            end: AtomicU64::new(u64::MAX),
        });
        let prober = Prober {
            socket: near,
            target,
            interval: 1e9 / rate,
            start: boottime(),
            trips: Vec::new(),
            back: 0,
        };
        let (for_prober, for_echoer) = (Arc::clone(&shared), Arc::clone(&shared));
        Ok(Self {
            shared: EchoGuard(shared),
            prober: std::thread::spawn(move || prober.run(&for_prober)),
            echoer: std::thread::spawn(move || echo(&far, &for_echoer)),
        })
    }

    /// Begins or ends the window of the probes that count.
    pub fn edge(&self, edge: Edge) {
        let edge = match edge {
            Edge::Begin => &self.shared.0.begin,
            Edge::End => &self.shared.0.end,
        };
        edge.store(boottime(), Ordering::Relaxed);
    }

    /// Stops, and returns the round-trip times of the probes that were scheduled between the edges (all probes if there
    /// were no edges), and the number of probes without an echo within a second after the last.
    ///
    /// # Errors
    /// A socket failed during the measurement.
    pub fn finish(self) -> Result<Latency> {
        self.shared.0.enough.store(true, Ordering::Relaxed);
        let join = "an echo thread panicked";
        let trips = self.prober.join().unwrap_or_else(|_| Err(join.into()));
        self.shared.0.over.store(true, Ordering::Relaxed);
        self.echoer.join().unwrap_or_else(|_| Err(join.into()))?;
        let (begin, end) = (&self.shared.0.begin, &self.shared.0.end);
        Ok(summary(&trips?, begin.load(Ordering::Relaxed)..end.load(Ordering::Relaxed)))
    }
}

fn summary(trips: &[ProbeTime], counts: std::ops::Range<u64>) -> Latency {
    let mut times = Times::new();
    let mut lost = 0;
    for trip in trips.iter().filter(|trip| counts.contains(&trip.intended)) {
        match trip.took {
            Some(took) => times.record(took),
            None => lost += 1,
        }
    }
    times.latency(lost)
}

struct Prober {
    socket: UdpSocket,
    target: std::net::SocketAddr,
    interval: f64,
    start: u64,
    trips: Vec<ProbeTime>,
    /// The number of echoes that have arrived.
    back: usize,
}

impl Prober {
    fn run(mut self, shared: &Shared) -> Result<Vec<ProbeTime>> {
        be_punctual();
        let poller = Poller::new()?;
        poller.add(&self.socket, 0, Interest::READ)?;
        let (mut events, mut batch) = (Events::new(), RecvBatch::new(16));
        let mut deadline = None;
        loop {
            let now = boottime();
            if shared.over.load(Ordering::Relaxed) {
                return Ok(self.trips);
            }
            if shared.enough.load(Ordering::Relaxed) {
                let deadline = *deadline.get_or_insert(now + nanos(GRACE));
                if now >= deadline || self.back == self.trips.len() {
                    return Ok(self.trips);
                }
            } else {
                self.send(now);
            }
            let next = self.intended(self.trips.len()).saturating_sub(boottime());
            let timeout =
                if deadline.is_some() { LOOK } else { Duration::from_nanos(next).min(LOOK) };
            poller.wait_precisely(&mut events, timeout)?;
            // A failed read is an ICMP error about a probe, which counts as lost.
            if !events.is_empty() && self.socket.recv_burst(&mut batch).is_ok() {
                let at = boottime();
                for received in batch.datagrams_mut() {
                    self.arrived(at, received.data);
                }
            }
        }
    }

    fn intended(&self, number: usize) -> u64 {
        self.start + (number as f64 * self.interval) as u64
    }

    /// Sends the probes that are due.
    fn send(&mut self, now: u64) {
        let mut probe = [0; PROBE];
        while self.trips.len() < MOST {
            let number = self.trips.len();
            let intended = self.intended(number);
            if intended > now {
                return;
            }
            let header = Header { number: number as u64, intended }.to_bytes();
            if let Some(place) = probe.first_chunk_mut() {
                *place = header;
            }
            // A probe that cannot be sent, for example while a tunnel is down, counts as lost.
            let _ = self.socket.send_to(self.target, None, &probe);
            self.trips.push(ProbeTime { intended, took: None });
        }
    }

    fn arrived(&mut self, at: u64, datagram: &[u8]) {
        let Some(header) = Header::read(datagram) else { return };
        let trip =
            usize::try_from(header.number).ok().and_then(|number| self.trips.get_mut(number));
        let Some(trip) = trip.filter(|trip| trip.intended == header.intended) else { return };
        if trip.took.is_none() {
            trip.took = Some(at.saturating_sub(header.intended));
            self.back += 1;
        }
    }
}

/// Sends every datagram back.
fn echo(socket: &UdpSocket, shared: &Shared) -> Result<()> {
    let poller = Poller::new()?;
    poller.add(socket, 0, Interest::READ)?;
    let (mut events, mut batch) = (Events::new(), RecvBatch::new(16));
    while !shared.over.load(Ordering::Relaxed) {
        if poller.wait(&mut events, Some(LOOK))? > 0 {
            return_all(socket, &mut batch);
        }
    }
    Ok(())
}

fn return_all(socket: &UdpSocket, batch: &mut RecvBatch) {
    if socket.recv_burst(batch).is_ok() {
        for received in batch.datagrams_mut() {
            // An echo that cannot be sent is a lost probe.
            let _ = socket.send_to(received.remote, None, received.data);
        }
    }
}

/// Measures round trips on an otherwise idle path, with an [`Echo`] for one window.
///
/// # Errors
/// As [`Echo`].
pub fn echo_latency(
    from: &Namespace,
    to: &Namespace,
    address: IpAddr,
    rate: f64,
    window: &Window,
) -> Result<Latency> {
    let echo = Echo::start(from, to, address, rate)?;
    std::thread::sleep(window.warmup);
    echo.edge(Edge::Begin);
    std::thread::sleep(window.length);
    echo.edge(Edge::End);
    echo.finish()
}

/// Returns the names of the routes on which no echo arrived within `limit`, with probes every 100 ms.
///
/// # Errors
/// A socket cannot be made.
pub fn unreachable(routes: &[Route<'_>], limit: Duration) -> Result<Vec<String>> {
    let pairs = open_loop::sockets(routes)?;
    let poller = Poller::new()?;
    for (index, pair) in (0..).zip(&pairs) {
        poller.add(&pair.far, 2 * index, Interest::READ)?;
        poller.add(&pair.near, 2 * index + 1, Interest::READ)?;
    }
    let (mut events, mut batch) = (Events::new(), RecvBatch::new(16));
    let mut answered = vec![false; pairs.len()];
    let end = boottime() + nanos(limit);
    let mut next = 0;
    while answered.contains(&false) && boottime() < end {
        if boottime() >= next {
            for (pair, _) in pairs.iter().zip(&answered).filter(|(_, answered)| !**answered) {
                // A probe that cannot be sent now is repeated.
                let _ = pair.near.send_to(pair.target, None, &[0; PROBE]);
            }
            next = boottime() + 100_000_000;
        }
        let until = next.min(end).saturating_sub(boottime());
        poller.wait(&mut events, Some(Duration::from_nanos(until)))?;
        for event in events.iter() {
            let index = usize::try_from(event.token / 2).unwrap_or(usize::MAX);
            let Some((pair, answered)) = pairs.get(index).zip(answered.get_mut(index)) else {
                continue;
            };
            if event.token % 2 == 0 {
                return_all(&pair.far, &mut batch);
            } else {
                *answered |= pair.near.recv_burst(&mut batch).is_ok();
            }
        }
    }
    let silent = routes.iter().zip(answered).filter(|(_, answered)| !answered);
    Ok(silent.map(|(route, _)| route.name.clone()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_probes_between_the_edges_count_whether_they_came_back_or_not() {
        let trips =
            [(5, Some(9)), (10, Some(2_000_000)), (15, None), (19, Some(4_000_000)), (20, None)];
        let trips = trips.map(|(intended, took)| ProbeTime { intended, took });
        let latency = summary(&trips, 10..20);
        assert_eq!((latency.count, latency.lost), (2, 1));
        assert!((latency.at(1.0).unwrap() - 4.0).abs() < 0.01);
        assert_eq!(summary(&trips, 0..u64::MAX).lost, 2);
    }
}
