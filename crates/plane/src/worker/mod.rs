//! A worker thread: waits for one packet, takes what else is there without waiting, and flushes
//! when nothing more comes or a cap is reached. There is no timer for batching.

mod keepalive;
mod receive;
mod transmit;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use std::{io, mem};

use adit_engine::{Instant, PeerId, SocketId};
use adit_linux::poll::{Event, Events, Interest, Poller};
use adit_linux::tun::TunQueue;
use adit_linux::udp::RecvBatch;
use adit_wire::merge::Merger;

use crate::control::{Failure, Shared};
use crate::egress::MAX_PACKET;
use crate::tables::Sockets;
use transmit::Transmitter;

/// Buffers per `recvmmsg`, and packets that may merge where the kernel does not coalesce. 4 MiB, of
/// which only what datagrams reach is ever touched.
const RECV_SLOTS: usize = 64;
/// Timers are looked at no more often than this, however many peers there are.
const SWEEP_GRAIN: Duration = Duration::from_millis(100);

const TOKEN_WAKE: u64 = 0;
const TOKEN_TUN: u64 = 1;
const TOKEN_SOCKET: u64 = 2;

/// One worker.
pub(crate) struct Worker {
    shared: Arc<Shared>,
    index: usize,
    tun: Option<TunQueue>,
    poller: Poller,
    /// The sockets watched, by position of their token.
    sockets: Arc<Sockets>,
    batch: RecvBatch,
    merger: Merger<'static>,
    relays: Vec<(PeerId, &'static [u8])>,
    /// One super-packet as it was read.
    packet: Box<[u8]>,
    transmitter: Transmitter,
    next_sweep: Option<Instant>,
}

impl Worker {
    pub fn new(shared: Arc<Shared>, index: usize, tun: Option<TunQueue>) -> io::Result<Self> {
        let poller = Poller::new()?;
        if let Some(wake) = shared.wake.get(index) {
            poller.add(wake, TOKEN_WAKE, Interest::READ)?;
        }
        if let Some(tun) = &tun {
            poller.add(tun, TOKEN_TUN, Interest::READ)?;
        }
        let mut worker = Self {
            transmitter: Transmitter::new(Arc::clone(&shared)),
            shared,
            index,
            tun,
            poller,
            sockets: Arc::default(),
            batch: RecvBatch::new(RECV_SLOTS),
            merger: Merger::default(),
            relays: Vec::new(),
            packet: vec![0; MAX_PACKET].into(),
            next_sweep: None,
        };
        worker.watch_sockets();
        Ok(worker)
    }

    /// Runs until the plane stops.
    pub fn run(mut self) {
        let _alarm = Alarm(Arc::clone(&self.shared));
        let mut events = Events::new();
        while !self.shared.stop.load(Ordering::Acquire) {
            let timeout = self.timeout();
            if self.poller.wait(&mut events, timeout).is_err() {
                // Only a broken epoll set gets here; do not spin on it.
                std::thread::sleep(Duration::from_millis(100));
            }
            for event in events.iter() {
                self.dispatch(event);
            }
            self.sweep_if_due();
        }
    }

    fn dispatch(&mut self, event: Event) {
        match event.token {
            TOKEN_WAKE => self.woken(),
            TOKEN_TUN => self.tun_turn(),
            token => {
                let at = token.wrapping_sub(TOKEN_SOCKET) as usize;
                if let Some((id, socket)) = self.sockets.get(at).cloned() {
                    if event.writable {
                        self.resume(id);
                    }
                    if event.failed {
                        self.socket_errors(id, &socket);
                    }
                    if event.readable {
                        self.socket_turn(id, &socket);
                    }
                }
            }
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let due = self.next_sweep?;
        Some(due.since((self.shared.clock)()))
    }

    /// Control changed something that this thread must look at.
    fn woken(&mut self) {
        if let Some(wake) = self.shared.wake.get(self.index) {
            wake.drain();
        }
        self.watch_sockets();
        let soon = (self.shared.clock)() + SWEEP_GRAIN;
        self.next_sweep = Some(self.next_sweep.map_or(soon, |next| next.min(soon)));
    }

    /// The first worker serves the sockets.
    fn watch_sockets(&mut self) {
        if self.index != 0 {
            return;
        }
        let new = self.shared.tables.sockets.load_full();
        let old = mem::replace(&mut self.sockets, Arc::clone(&new));
        if Arc::ptr_eq(&old, &new) {
            return;
        }
        for (_, socket) in old.iter() {
            // Not in the set if it could not be added.
            let _ = self.poller.remove(socket);
        }
        for (at, (_, socket)) in new.iter().enumerate() {
            let _ = self.poller.add(socket, TOKEN_SOCKET + at as u64, Interest::READ);
        }
        if let Some(id) = self.transmitter.blocked_on() {
            // The socket may be gone, or its interest was just reset to reading only.
            self.resume(id);
        }
    }

    /// A client's socket is full: the TUN device must wait, so that its queue can act. Or it has
    /// room again.
    fn hold_tun(&self, held: bool, socket: SocketId) {
        let (tun_interest, socket_interest) =
            if held { (Interest::NONE, Interest::BOTH) } else { (Interest::READ, Interest::READ) };
        if let Some(tun) = &self.tun {
            let _ = self.poller.modify(tun, TOKEN_TUN, tun_interest);
        }
        let at = self.sockets.iter().position(|(id, _)| *id == socket);
        if let Some((at, (_, socket))) = at.and_then(|at| Some((at, self.sockets.get(at)?))) {
            let _ = self.poller.modify(socket, TOKEN_SOCKET + at as u64, socket_interest);
        }
    }

    /// Sends what waits for a socket that has room again.
    fn resume(&mut self, id: SocketId) {
        if self.transmitter.blocked_on() == Some(id) {
            let held = !self.transmitter.resume();
            self.hold_tun(held, id);
        }
    }

    /// Seals and sends what the TUN device has, up to a cap.
    fn tun_turn(&mut self) {
        let Some(tun) = &self.tun else { return };
        let alive = self.transmitter.tun_turn(tun, &mut self.packet);
        if let Some(id) = self.transmitter.blocked_on() {
            self.hold_tun(true, id);
        }
        if !alive {
            // The device was removed under us: reading it again would spin.
            let _ = self.poller.remove(tun);
            self.tun = None;
            self.shared.fail(Failure::TunGone);
        }
    }
}

/// Tells control if the thread that holds it panics.
struct Alarm(Arc<Shared>);

impl Drop for Alarm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Failure::WorkerDied);
        }
    }
}
