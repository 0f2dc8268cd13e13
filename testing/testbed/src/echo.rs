//! Echo requests and their replies, counted until the last reply has had enough time.
//!
//! The program `ping` waits 50 ms, or twice the longest round trip, for the last reply: on a busy machine a reply in
//! transit then counts as lost.

use std::io::Read;
use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

use socket2::{Domain, Protocol, SockAddr, Socket, Type};

use crate::failure::{Context, Result};
use crate::net::Namespace;
use crate::pattern;
use crate::wait::ScaledInstant;

/// The time limit for all answers to [`ping`].
const TIMEOUT: Duration = Duration::from_secs(8);
/// The time to wait for an answer that must not arrive. An answer takes a millisecond.
const NO_REPLY_WAIT: Duration = Duration::from_millis(600);
/// The time limit for replies that are still missing when the last request of [`echo_all`] is sent.
const LATE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(50);
const POLL_INTERVAL: Duration = Duration::from_millis(10);
/// Type, code, checksum, identifier, sequence number.
const HEADER: usize = 8;

/// Sends requests with `size` bytes from inside `from` until `count` replies have arrived or eight seconds have passed
/// on [`ScaledInstant`]'s clock; returns the number of replies.
///
/// # Errors
/// The socket could not be opened.
pub fn ping(from: &Namespace, to: IpAddr, size: usize, count: u32) -> Result<u32> {
    ping_within(from, to, size, count, TIMEOUT)
}

/// Returns whether requests remain unanswered, as expected.
///
/// # Errors
/// The socket could not be opened.
pub fn silent(from: &Namespace, to: IpAddr) -> Result<bool> {
    Ok(ping_within(from, to, 56, 1, NO_REPLY_WAIT)? == 0)
}

fn ping_within(
    from: &Namespace,
    to: IpAddr,
    size: usize,
    count: u32,
    limit: Duration,
) -> Result<u32> {
    let answered = from.thread(move || {
        let mut session = Session::open(to, size)?;
        let (end, mut next) = (ScaledInstant::now() + limit, Instant::now());
        while session.times.len() < count as usize && ScaledInstant::now() < end {
            if Instant::now() >= next {
                session.send();
                next = Instant::now() + PAUSE;
            }
            session.listen(next);
        }
        Ok(u32::try_from(session.times.len()).unwrap_or(u32::MAX).min(count))
    })?;
    answered.join().unwrap_or_else(|_| Err("a thread that sends requests panicked".into()))
}

/// Requests and answers of several hosts.
#[derive(Debug, Clone, Default)]
pub struct Echoes {
    /// The number of requests that were sent.
    pub sent: u64,
    /// The round trips in milliseconds, sorted.
    pub times: Vec<f64>,
}

impl Echoes {
    /// Returns the number of requests without an answer.
    pub fn lost(&self) -> u64 {
        self.sent.saturating_sub(self.times.len() as u64)
    }

    /// Returns the 99th percentile of the round trips.
    pub fn p99(&self) -> Option<f64> {
        self.percentile(99)
    }

    /// Returns the median of the round trips.
    pub fn median(&self) -> Option<f64> {
        self.percentile(50)
    }

    fn percentile(&self, percent: usize) -> Option<f64> {
        let last = self.times.len().checked_sub(1)?;
        self.times.get((self.times.len() * percent / 100).min(last)).copied()
    }
}

/// Makes all hosts send `count` requests at the same time, one every `pause`, and waits for the answers.
///
/// # Errors
/// A socket could not be opened.
pub fn echo_all(from: &[&Namespace], to: IpAddr, count: u32, pause: Duration) -> Result<Echoes> {
    let work = move || {
        let mut session = Session::open(to, 56)?;
        let mut next = Instant::now();
        for _ in 0..count {
            session.send();
            next += pause;
            while Instant::now() < next {
                session.listen(next);
            }
        }
        let end = ScaledInstant::now() + LATE;
        while session.times.len() < session.sent.len() && ScaledInstant::now() < end {
            session.listen(Instant::now() + POLL_INTERVAL);
        }
        Ok(session)
    };
    let running = from.iter().map(|space| space.thread(work)).collect::<Result<Vec<_>>>()?;
    let mut all = Echoes::default();
    for thread in running {
        let session = thread.join().unwrap_or_else(|_| Err("a thread panicked".into()))?;
        all.sent += session.sent.len() as u64;
        all.times.extend(session.times);
    }
    all.times.sort_by(f64::total_cmp);
    Ok(all)
}

/// The requests of one host.
struct Session {
    /// Not connected, because a connected socket would keep the host's current address, which may not be the tunnel's
    /// yet.
    socket: Socket,
    to: SockAddr,
    v6: bool,
    id: u16,
    size: usize,
    /// The time of each request; `None` once it is answered.
    sent: Vec<Option<Instant>>,
    /// The round trips in milliseconds.
    times: Vec<f64>,
}

impl Session {
    fn open(to: IpAddr, size: usize) -> Result<Self> {
        static NEXT: AtomicU16 = AtomicU16::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let (domain, protocol) = match to {
            IpAddr::V4(_) => (Domain::IPV4, Protocol::ICMPV4),
            IpAddr::V6(_) => (Domain::IPV6, Protocol::ICMPV6),
        };
        let socket = Socket::new(domain, Type::RAW, Some(protocol)).context("an ICMP socket")?;
        socket.set_read_timeout(Some(POLL_INTERVAL))?;
        let to = SocketAddr::new(to, 0);
        Ok(Self {
            socket,
            to: to.into(),
            v6: to.is_ipv6(),
            id,
            size,
            sent: Vec::new(),
            times: Vec::new(),
        })
    }

    /// Sends a request. A request that the kernel refuses does not count as sent: there may be no route yet, and a
    /// later request may succeed.
    fn send(&mut self) {
        let number = u16::try_from(self.sent.len()).unwrap_or(u16::MAX);
        let request = request(self.v6, self.id, number, self.size);
        let at = Instant::now();
        if self.socket.send_to(&request, &self.to).is_ok() {
            self.sent.push(Some(at));
        }
    }

    /// Receives until the given time, or until one reply has arrived. The kernel reports neighbours that are slow to
    /// answer as unreachable, which may be temporary.
    fn listen(&mut self, until: Instant) {
        let mut buffer = [0; 65536];
        loop {
            match (&self.socket).read(&mut buffer) {
                Ok(length) => {
                    self.take(buffer.get(..length).unwrap_or_default());
                    // The caller may now have the reply that it waits for.
                    return;
                }
                // The error may belong to an earlier request, and each error is reported once.
                Err(_) if Instant::now() >= until => return,
                Err(_) => {}
            }
        }
    }

    fn take(&mut self, packet: &[u8]) {
        let arrived = Instant::now();
        let number = answer(self.v6, self.id, self.size, packet);
        let slot = number.and_then(|number| self.sent.get_mut(usize::from(number)));
        if let Some(sent) = slot.and_then(Option::take) {
            self.times.push(arrived.saturating_duration_since(sent).as_secs_f64() * 1e3);
        }
    }
}

/// Builds an echo request; the kernel adds the checksum of ICMPv6.
fn request(v6: bool, id: u16, number: u16, size: usize) -> Vec<u8> {
    let [id, number] = [id, number].map(u16::to_be_bytes);
    let mut packet = vec![if v6 { 128 } else { 8 }, 0, 0, 0, id[0], id[1], number[0], number[1]];
    packet.extend(pattern::bytes(0, size));
    if !v6 {
        let sum = checksum(&packet).to_be_bytes();
        packet.splice(2..4, sum);
    }
    packet
}

/// Returns the number of the request that a packet answers, if it answers one of these with the same content.
fn answer(v6: bool, id: u16, size: usize, packet: &[u8]) -> Option<u16> {
    // Raw IPv4 sockets receive the IP header.
    let header = if v6 { 0 } else { usize::from(packet.first()? & 15) * 4 };
    let message = packet.get(header..)?;
    let (fields, content) = message.split_at_checked(HEADER)?;
    let [kind, 0, _, _, id0, id1, number0, number1] = *fields else { return None };
    let same = kind == if v6 { 129 } else { 0 }
        && u16::from_be_bytes([id0, id1]) == id
        && content.len() == size
        && pattern::matches(0, content);
    same.then(|| u16::from_be_bytes([number0, number1]))
}

fn checksum(bytes: &[u8]) -> u16 {
    let words = bytes.chunks(2).map(|pair| match *pair {
        [high, low] => u32::from(u16::from_be_bytes([high, low])),
        [high] => u32::from(u16::from_be_bytes([high, 0])),
        _ => 0,
    });
    let mut sum: u32 = words.sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn as_answer(v6: bool, mut packet: Vec<u8>) -> Vec<u8> {
        packet[0] = if v6 { 129 } else { 0 };
        let header = if v6 { Vec::new() } else { [vec![0x45], vec![0; 19]].concat() };
        [header, packet].concat()
    }

    #[test]
    fn takes_its_own_answers_and_no_others() {
        for v6 in [false, true] {
            let sent = request(v6, 7, 300, 57);
            let whole = as_answer(v6, sent.clone());
            assert_eq!(answer(v6, 7, 57, &whole), Some(300));
            assert_eq!(answer(v6, 8, 57, &whole), None, "of another session");
            assert_eq!(answer(v6, 7, 56, &whole), None, "of another size");
            let mut changed = whole.clone();
            *changed.last_mut().unwrap() ^= 1;
            assert_eq!(answer(v6, 7, 57, &changed), None);
            let not_one = [vec![0x45; if v6 { 0 } else { 20 }], sent].concat();
            assert_eq!(answer(v6, 7, 57, &not_one), None, "a request");
            for cut in 0..whole.len() {
                assert_eq!(answer(v6, 7, 57, &whole[..cut]), None);
            }
        }
    }

    #[test]
    fn a_request_of_ipv4_has_its_checksum() {
        // The sum over a packet including its checksum is all ones, so its checksum is zero.
        for size in [0, 1, 56, 3000] {
            assert_eq!(checksum(&request(false, 0xfefe, 0xffff, size)), 0, "{size}");
        }
    }

    #[test]
    fn counts_what_is_lost_and_finds_the_percentile() {
        let times = (1..=200).map(f64::from).collect();
        let echoes = Echoes { sent: 203, times };
        assert_eq!((echoes.lost(), echoes.p99()), (3, Some(199.0)));
        assert_eq!(echoes.median(), Some(101.0));
        assert_eq!(Echoes { sent: 1, times: vec![5.0] }.p99(), Some(5.0));
        assert_eq!(Echoes::default().p99(), None);
    }
}
