//! Clients of the control socket that follow the log or the packets. A client that does not read loses lines and packets, which are
//! counted; neither the log nor a packet ever waits for it.

use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_linux::process::StartReport;
use adit_runtime::log;
use tokio::sync::mpsc;
use tracing::Level;

use super::clients::ClientId;
use crate::control::Kind;
use crate::control::server::item;

/// The number of bytes of log lines or packets that wait for a client. Further ones are dropped for it, and counted.
const MAX_WAITING: usize = 1 << 20;

/// Length of an Ethernet header, bytes.
const ETHERNET: usize = 14;

/// Sends bytes to a client.
#[derive(Clone, Debug)]
pub(super) struct ClientSender {
    pub(super) writer: mpsc::UnboundedSender<Vec<u8>>,
    /// The number of bytes that wait.
    pub(super) backlog: Arc<AtomicUsize>,
}

impl ClientSender {
    /// Sends bytes to the client, unless more than `limit` would wait then. Returns whether it will get them.
    pub(super) fn send(&self, bytes: Vec<u8>, limit: usize) -> bool {
        let len = bytes.len();
        if self.backlog.fetch_add(len, Relaxed).saturating_add(len) > limit
            || self.writer.send(bytes).is_err()
        {
            self.backlog.fetch_sub(len, Relaxed);
            return false;
        }
        true
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The clients that read the log, and the process that waits for the start.
#[derive(Debug, Default)]
pub(super) struct LogFollowers {
    clients: Mutex<Vec<(ClientId, Option<u8>, ClientSender)>>,
    start: Mutex<Option<StartReport>>,
    /// The debug level of the daemon.
    level: AtomicU8,
    dropped: AtomicU64,
}

impl LogFollowers {
    pub(super) fn new(level: u8, start: Option<StartReport>) -> Self {
        Self { level: level.into(), start: Mutex::new(start), ..Self::default() }
    }

    /// Passes on a line. It is called for each one, while the log is locked.
    pub(super) fn line(&self, level: Level, verb: u64, text: &str) {
        if level <= Level::WARN
            && let Some(report) = lock(&self.start).as_mut()
        {
            report.note(&format!("tincd: {text}"));
        }
        let own = self.level.load(Relaxed);
        for (_, wanted, sender) in lock(&self.clients).iter() {
            // The levels of adit's log begin at 1 where tinc's begin at 0.
            if verb <= u64::from(wanted.unwrap_or(own)).saturating_add(1) {
                let mut bytes = Vec::new();
                item(Kind::Log, text.as_bytes(), &mut bytes);
                if !sender.send(bytes, MAX_WAITING) {
                    self.dropped.fetch_add(1, Relaxed);
                }
            }
        }
    }

    /// Ends the process that waits for the start.
    pub(super) fn ready(&self) {
        if let Some(report) = lock(&self.start).take() {
            report.ready();
        }
    }

    /// Changes the debug level of the daemon.
    pub(super) fn set_level(&self, level: u8) {
        self.level.store(level, Relaxed);
    }

    /// Adds a client that reads lines of this debug level; `None`: of the daemon's.
    pub(super) fn add(&self, id: ClientId, level: Option<u8>, sender: ClientSender) {
        let mut clients = lock(&self.clients);
        clients.retain(|(other, ..)| *other != id);
        clients.push((id, level, sender));
        let most = most_wanted(&clients);
        // The log is locked while it passes on a line, and setting the level locks it.
        drop(clients);
        log::set_observed(most);
    }

    pub(super) fn remove(&self, id: ClientId) {
        let mut clients = lock(&self.clients);
        let before = clients.len();
        clients.retain(|(other, ..)| *other != id);
        let (removed, most) = (clients.len() < before, most_wanted(&clients));
        drop(clients);
        if removed {
            log::set_observed(most);
        }
    }

    /// Returns the number of lines that were dropped because a client did not read.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

/// Returns the highest level of the log that a client asked for itself.
fn most_wanted(clients: &[(ClientId, Option<u8>, ClientSender)]) -> u8 {
    let levels = clients.iter().filter_map(|(_, level, _)| *level);
    levels.map(|level| level.saturating_add(1)).max().unwrap_or(0)
}

/// The clients that read copies of packets.
#[derive(Debug)]
pub(super) struct PacketFollowers {
    clients: Mutex<Vec<(ClientId, usize, ClientSender)>>,
    /// Whether there are any, so that a packet costs one load otherwise.
    any: AtomicBool,
    /// Whether packets are those of IP, without an Ethernet header.
    headless: bool,
    dropped: AtomicU64,
}

impl PacketFollowers {
    pub(super) fn new(headless: bool) -> Self {
        Self {
            clients: Mutex::default(),
            any: AtomicBool::new(false),
            headless,
            dropped: AtomicU64::new(0),
        }
    }

    /// Returns whether a client wants copies.
    pub(super) fn is_followed(&self) -> bool {
        self.any.load(Relaxed)
    }

    /// Passes on a copy of a packet, as a frame.
    #[inline]
    pub(super) fn copy(&self, packet: &[u8]) {
        if self.any.load(Relaxed) {
            self.send(packet);
        }
    }

    #[cold]
    fn send(&self, packet: &[u8]) {
        let mut frame = Vec::with_capacity(packet.len().saturating_add(ETHERNET));
        if self.headless {
            frame.extend_from_slice(&header(packet));
        }
        frame.extend_from_slice(packet);
        for (_, length, sender) in lock(&self.clients).iter() {
            let mut bytes = Vec::new();
            item(Kind::Pcap, frame.get(..*length).unwrap_or(&frame), &mut bytes);
            if !sender.send(bytes, MAX_WAITING) {
                self.dropped.fetch_add(1, Relaxed);
            }
        }
    }

    /// Adds a client that reads the first `length` bytes of each packet; 0: all.
    pub(super) fn add(&self, id: ClientId, length: u16, sender: ClientSender) {
        let length = if length == 0 { usize::MAX } else { length.into() };
        let mut clients = lock(&self.clients);
        clients.retain(|(other, ..)| *other != id);
        clients.push((id, length, sender));
        self.any.store(true, Relaxed);
    }

    pub(super) fn remove(&self, id: ClientId) {
        let mut clients = lock(&self.clients);
        clients.retain(|(other, ..)| *other != id);
        self.any.store(!clients.is_empty(), Relaxed);
    }

    /// Returns the number of packets that were dropped because a client did not read.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Relaxed)
    }
}

/// Returns the Ethernet header that tinc gives a packet without one: no addresses, and the type of its version.
fn header(packet: &[u8]) -> [u8; ETHERNET] {
    let kind: u16 = match packet.first().map(|byte| byte >> 4) {
        Some(6) => 0x86dd,
        _ => 0x0800,
    };
    let mut header = [0; ETHERNET];
    if let Some(place) = header.last_chunk_mut() {
        *place = kind.to_be_bytes();
    }
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sender() -> (ClientSender, mpsc::UnboundedReceiver<Vec<u8>>) {
        let (writer, items) = mpsc::unbounded_channel();
        (ClientSender { writer, backlog: Arc::default() }, items)
    }

    fn all(items: &mut mpsc::UnboundedReceiver<Vec<u8>>) -> Vec<String> {
        let items = std::iter::from_fn(|| items.try_recv().ok());
        items.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).collect()
    }

    #[test]
    fn a_client_gets_the_lines_of_its_level() {
        let followers = LogFollowers::new(1, None);
        let ((own, mut of_own), (five, mut of_five)) = (sender(), sender());
        followers.add(1, None, own);
        followers.add(2, Some(5), five);
        followers.line(Level::INFO, 2, "two");
        followers.line(Level::INFO, 6, "six");
        assert_eq!(all(&mut of_own), ["18 15 3\ntwo"]);
        assert_eq!(all(&mut of_five), ["18 15 3\ntwo", "18 15 3\nsix"]);
        followers.set_level(5);
        followers.remove(2);
        followers.line(Level::INFO, 6, "six");
        assert_eq!((all(&mut of_own).len(), all(&mut of_five).len()), (1, 0));
    }

    #[test]
    fn a_client_that_does_not_read_loses_lines_and_only_they_are_counted() {
        let followers = LogFollowers::new(0, None);
        let ((silent, mut unread), (busy, mut read)) = (sender(), sender());
        followers.add(1, None, silent);
        followers.add(2, None, busy.clone());
        let line = "x".repeat(1000);
        let mut lines = 0;
        while followers.dropped() == 0 {
            followers.line(Level::INFO, 1, &line);
            lines += 1;
            let taken: usize = all(&mut read).iter().map(String::len).sum();
            busy.backlog.fetch_sub(taken, Relaxed);
            assert!(lines < 2 * MAX_WAITING / line.len(), "nothing was dropped");
        }
        assert_eq!(all(&mut unread).len(), lines - 1);
    }

    #[test]
    fn packets_are_frames_cut_to_the_length_that_a_client_asked_for() {
        let followers = PacketFollowers::new(true);
        let ((whole, mut all_of_it), (short, mut first)) = (sender(), sender());
        followers.copy(b"before");
        followers.add(1, 0, whole);
        followers.add(2, 15, short);
        followers.copy(&[0x60, 1, 2]);
        let frame = [&[0; 12][..], &[0x86, 0xdd, 0x60, 1, 2]].concat();
        let expected = |len: usize| [format!("18 14 {len}\n").as_bytes(), &frame[..len]].concat();
        assert_eq!(all_of_it.try_recv(), Ok(expected(17)));
        assert_eq!(first.try_recv(), Ok(expected(15)));
        followers.remove(1);
        followers.remove(2);
        followers.copy(&[0x45]);
        assert!(all_of_it.try_recv().is_err() && first.try_recv().is_err());
        assert_eq!(header(&[0x45])[12..], [8, 0]);
    }

    #[test]
    fn a_client_that_does_not_read_loses_packets() {
        let followers = PacketFollowers::new(false);
        let (sender, mut items) = sender();
        followers.add(1, 0, sender);
        let packet = [0; 1500];
        let packets = 2 * MAX_WAITING / packet.len();
        (0..packets).for_each(|_| followers.copy(&packet));
        let waiting = all(&mut items);
        assert_eq!(waiting.len() as u64 + followers.dropped(), packets as u64);
        assert!(waiting.iter().map(String::len).sum::<usize>() <= MAX_WAITING * 2);
        assert!(followers.dropped() > 0);
    }
}
