//! A worker thread. It blocks for one packet, drains the rest without blocking, and flushes when nothing is left or a
//! limit is reached. There is no timer for batching.

mod filter;
mod keepalive;
mod receive;
mod stream;
mod too_big;
mod transmit;

use std::io;
use std::mem;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use adit_engine::{Instant, SocketId};
use adit_linux::memory::release;
use adit_linux::poll::{Event, Events, Interest, Poller};
use adit_linux::tun::TunQueue;
use adit_linux::udp::{RecvBatch, UdpSocket};
use adit_wire::merge::Merger;

use crate::egress::MAX_PACKET;
use crate::filter_hook::{FilterHook, Relayed};
use crate::format::Format;
use crate::shared::{Failure, Shared};
use crate::sockets::{Sockets, find_socket};
use crossbeam_utils::CachePadded;
use transmit::Transmitter;

/// The number of buffers per `recvmmsg`, and of packets that may merge if the kernel does not coalesce. The buffers
/// take 4 MiB, but only pages that datagrams reach are ever touched.
const RECV_SLOTS: usize = 64;
/// The minimum interval between checks of the timers, however many peers there are.
const SWEEP_GRAIN: Duration = Duration::from_millis(100);

const TOKEN_WAKE: u64 = 0;
const TOKEN_TUN: u64 = 1;
const TOKEN_SOCKET: u64 = 2;
/// The poller token of a full socket that another worker receives from.
const TOKEN_FULL: u64 = u64::MAX;

/// A worker's own handle to the shared state. It is cloned with each burst; if the workers cloned one common `Arc`,
/// they would contend for its reference count.
#[derive(Clone)]
struct SharedRef<F: Format>(Arc<CachePadded<Arc<Shared<F>>>>);

impl<F: Format> SharedRef<F> {
    fn new(shared: Arc<Shared<F>>) -> Self {
        Self(Arc::new(CachePadded::new(shared)))
    }
}

impl<F: Format> Deref for SharedRef<F> {
    type Target = Shared<F>;

    #[inline(always)]
    fn deref(&self) -> &Shared<F> {
        &self.0
    }
}

/// One worker.
pub(crate) struct Worker<F: Format> {
    shared: SharedRef<F>,
    index: usize,
    tun: Option<Tun>,
    /// The TUN device is not read because a client's socket is full.
    held: bool,
    poller: Arc<Poller>,
    /// The published sockets that `sockets` was built from.
    published: Arc<Sockets>,
    /// The sockets that this worker receives from, indexed by their tokens.
    sockets: Vec<(SocketId, Arc<UdpSocket>)>,
    /// A client's socket that is watched for room.
    full: Option<Arc<UdpSocket>>,
    batch: RecvBatch,
    merger: Merger<'static>,
    relays: Vec<Relayed<'static>>,
    /// The bytes received from a stream; empty until there is one.
    stream_buffer: Vec<u8>,
    /// Buffers for reassembled and decompressed packets; empty until a peer may send such packets.
    scratch: Vec<Vec<u8>>,
    /// The buffer for one super-packet from the TUN device.
    packet: Box<[u8]>,
    transmitter: Transmitter<F>,
    /// The packet filter, if there are rules.
    filter_hook: Option<Box<FilterHook>>,
    next_sweep: Option<Instant>,
    /// The value of [`Shared::release_requests`] that was last acted on.
    release_requests: u64,
    /// The value of [`Shared::retired_keys`] last acted on.
    retired_keys: u64,
}

impl<F: Format> Worker<F> {
    pub(crate) fn new(shared: Arc<Shared<F>>, index: usize, tun: Option<Tun>) -> io::Result<Self> {
        let shared = SharedRef::new(shared);
        let poller = shared.pollers.get(index).cloned().ok_or(io::ErrorKind::InvalidInput)?;
        if let Some(wake) = shared.wake.get(index) {
            poller.add(wake, TOKEN_WAKE, Interest::READ)?;
        }
        if let Some(tun) = tun.as_ref().filter(|tun| tun.reads) {
            poller.add(&*tun.queue, TOKEN_TUN, Interest::READ)?;
        }
        let mut worker = Self {
            transmitter: Transmitter::new(shared.clone(), index),
            filter_hook: shared.filter_hook(),
            shared,
            index,
            tun,
            held: false,
            poller,
            published: Arc::default(),
            sockets: Vec::new(),
            full: None,
            batch: RecvBatch::new(RECV_SLOTS),
            merger: Merger::default(),
            relays: Vec::new(),
            stream_buffer: Vec::new(),
            scratch: Vec::new(),
            packet: vec![0; MAX_PACKET].into(),
            next_sweep: None,
            release_requests: 0,
            retired_keys: 0,
        };
        worker.watch_sockets();
        Ok(worker)
    }

    /// Runs until the plane stops.
    pub(crate) fn run(mut self) {
        let _panic_guard = PanicGuard(Arc::<Shared<F>>::clone(&self.shared.0));
        self.shared.stats.count_as(self.index);
        let mut events = Events::new();
        while !self.shared.stop.load(Ordering::Acquire) {
            let timeout = self.timeout();
            if self.poller.wait(&mut events, timeout).is_err() {
                // Only a broken epoll set causes this error; do not spin on it.
                std::thread::sleep(Duration::from_millis(100));
            }
            for event in events.iter() {
                self.dispatch(event);
            }
            self.sweep_if_due();
            // Called from this stack frame, above all code that works with keys.
            let retired_keys = self.shared.retired_keys.load(Ordering::Relaxed);
            if retired_keys != mem::replace(&mut self.retired_keys, retired_keys) {
                adit_crypto::scrub_packet_stack();
            }
        }
    }

    fn dispatch(&mut self, event: Event) {
        match event.token {
            TOKEN_WAKE => self.woken(),
            TOKEN_TUN => self.tun_turn(),
            TOKEN_FULL => self.resume(),
            token if token & stream::TOKEN != 0 => self.stream_event(token & !stream::TOKEN, event),
            token => {
                let at = token.wrapping_sub(TOKEN_SOCKET) as usize;
                if let Some((id, socket)) = self.sockets.get(at).cloned() {
                    if event.writable && self.transmitter.blocked_on() == Some(id) {
                        self.resume();
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

    /// Handles a wake-up by the control plane.
    fn woken(&mut self) {
        if let Some(wake) = self.shared.wake.get(self.index) {
            wake.drain();
        }
        if self.filter_hook.is_none() {
            self.filter_hook = self.shared.filter_hook();
        }
        self.watch_sockets();
        if self.transmitter.is_parked() {
            self.tun_turn();
        } else {
            self.update_interest();
        }
        let release_requests = self.shared.release_requests.load(Ordering::Relaxed);
        if release_requests != mem::replace(&mut self.release_requests, release_requests) {
            self.release_memory();
        }
        let soon = (self.shared.clock)() + SWEEP_GRAIN;
        self.plan_sweep(Some(self.next_sweep.map_or(soon, |next| next.min(soon))));
    }

    /// Releases the memory of all empty buffers.
    fn release_memory(&mut self) {
        self.batch.release_memory();
        // Pages are released but the buffer is kept: the allocator might place a new one in an arena that it never shrinks.
        release(&mut self.stream_buffer);
        self.scratch = Vec::new();
        self.merger = Merger::default();
        self.relays = Vec::new();
        if !self.transmitter.is_parked() {
            release(&mut self.packet);
        }
        self.transmitter.release_memory();
        adit_linux::memory::trim();
    }

    /// Receives from this worker's share of the sockets that the control plane published last.
    fn watch_sockets(&mut self) {
        let new = self.shared.tables.sockets.load_full();
        if Arc::ptr_eq(&self.published, &new) {
            return;
        }
        self.full = None;
        for group in self.published.iter() {
            for socket in group.of_worker(0, 1) {
                // Not in the set if it belongs to another worker, or could not be added.
                let _ = self.poller.remove(socket);
            }
        }
        let workers = self.shared.wake.len();
        let own = new.iter().flat_map(|group| {
            group.of_worker(self.index, workers).map(|socket| (group.id, Arc::clone(socket)))
        });
        self.sockets = own.collect();
        self.published = new;
        for (at, (_, socket)) in self.sockets.iter().enumerate() {
            let _ = self.poller.add(socket, TOKEN_SOCKET + at as u64, Interest::READ);
        }
        if self.transmitter.blocked_on().is_some() {
            // The socket may have been removed, or is no longer watched for space.
            self.resume();
        }
    }

    /// Sends the packets that waited for a full socket, and the packets held back meanwhile.
    fn resume(&mut self) {
        self.transmitter.resume();
        self.resume_reading();
    }

    /// Continues after a socket or stream has space again: parked packets go first.
    fn resume_reading(&mut self) {
        if self.transmitter.is_parked() {
            self.tun_turn();
        } else {
            self.update_interest();
        }
    }

    /// Seals and sends the packets that the TUN device has, up to a cap.
    fn tun_turn(&mut self) {
        let Some(tun) = &self.tun else { return };
        let filter_hook = self.filter_hook.as_deref_mut();
        let alive = self.transmitter.tun_turn(&tun.queue, &mut self.packet, filter_hook);
        if !alive {
            // The device was removed: reading it again would spin.
            let _ = self.poller.remove(&*tun.queue);
            self.tun = None;
            self.shared.fail(Failure::TunGone);
        }
        self.update_interest();
    }

    /// Updates what the poller watches. While a client's socket is full, the TUN device is not read, so that its queue
    /// applies backpressure, and the worker with sealed packets watches the socket for space.
    fn update_interest(&mut self) {
        let blocked = self.transmitter.blocked_on();
        let held = blocked.is_some()
            || self.transmitter.is_parked()
            || self.transmitter.waits_for_stream();
        if held != self.held {
            self.held = held;
            let interest = if held { Interest::NONE } else { Interest::READ };
            if let Some(tun) = self.tun.as_ref().filter(|tun| tun.reads) {
                let _ = self.poller.modify(&*tun.queue, TOKEN_TUN, interest);
            }
        }
        if blocked.is_some() == self.full.is_some() {
            return;
        }
        if let Some(socket) = self.full.take() {
            self.watch_for_room(&socket, false);
        } else if let Some(id) = blocked
            && let Some(socket) = find_socket(&self.published, id, self.index).cloned()
        {
            // If the socket is missing, the control plane has removed it and has woken this thread to notice.
            self.watch_for_room(&socket, true);
            self.full = Some(socket);
        }
    }

    /// Watches a socket for space. If this worker receives from it, its poller already has it.
    fn watch_for_room(&self, socket: &Arc<UdpSocket>, watch: bool) {
        let own = self.sockets.iter().position(|(_, own)| Arc::ptr_eq(own, socket));
        // Fails only for a socket that could not be added before.
        let _ = match (own, watch) {
            (Some(at), _) => {
                let interest = if watch { Interest::BOTH } else { Interest::READ };
                self.poller.modify(socket, TOKEN_SOCKET + at as u64, interest)
            }
            (None, true) => self.poller.add(socket, TOKEN_FULL, Interest::WRITE),
            (None, false) => self.poller.remove(socket),
        };
    }
}

/// A worker's TUN queue.
pub(crate) struct Tun {
    queue: Arc<TunQueue>,
    /// This worker reads the queue. Workers beyond the number of queues only write.
    reads: bool,
}

impl Tun {
    /// Returns the queue of a worker; `None` without a device.
    pub(crate) fn of_worker(queues: &[Arc<TunQueue>], worker: usize) -> Option<Self> {
        let queue = queues.get(worker.checked_rem(queues.len())?)?;
        Some(Self { queue: Arc::clone(queue), reads: worker < queues.len() })
    }
}

/// Reports a panic of the thread that holds it to the control plane.
struct PanicGuard<F: Format>(Arc<Shared<F>>);

impl<F: Format> Drop for PanicGuard<F> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Failure::WorkerDied);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::Plane;
    use crate::relay::Relay;
    use crate::stats::Offloads;
    use crate::trivial::Trivial;
    use adit_engine::command::{Keepalive, PeerSpec};
    use adit_engine::{Command, Link, PeerId};

    #[test]
    fn a_worker_that_panics_is_told_of_and_one_that_ends_is_not() {
        let clock = || Instant::from_nanos(1);
        let (plane, shared, _upcalls) =
            Plane::<Trivial>::idle(Relay::Kernel, false, false, false, Offloads::ALL, 2, clock)
                .unwrap();
        let panic_guard = PanicGuard(Arc::clone(&shared));
        std::thread::spawn(move || drop(panic_guard)).join().unwrap();
        assert_eq!(plane.failure(), None);
        let panic_guard = PanicGuard(shared);
        let worker = std::thread::spawn(move || {
            let _panic_guard = panic_guard;
            std::panic::resume_unwind(Box::new("a bug of ours"));
        });
        assert!(worker.join().is_err());
        assert_eq!(plane.failure(), Some(Failure::WorkerDied));
    }

    fn added(id: u32, interval: u64) -> Command<Trivial> {
        let spec = PeerSpec {
            layout: id as u16,
            keepalive: Keepalive {
                interval: Duration::from_secs(interval),
                timeout: Duration::from_secs(4 * interval),
            },
            ..PeerSpec::plain(Link::datagram(
                SocketId(0),
                None,
                ([192, 0, 2, 1], 1 + id as u16).into(),
            ))
        };
        Command::AddPeer(PeerId(id), spec)
    }

    #[test]
    fn a_peer_that_comes_wakes_the_first_worker_alone_and_only_if_it_would_look_too_late() {
        let clock = || Instant::from_nanos(1_000_000_000);
        let (plane, shared, _upcalls) =
            Plane::<Trivial>::idle(Relay::Kernel, false, false, false, Offloads::ALL, 2, clock)
                .unwrap();
        let mut worker = Worker::new(Arc::clone(&shared), 0, None).unwrap();
        let woken = || [0, 1].map(|index: usize| shared.wake[index].drain());
        plane.apply(added(1, 10));
        assert_eq!(woken(), [true, false], "no sweep was planned");
        worker.woken();
        worker.next_sweep = Some(clock());
        worker.sweep_if_due();
        assert_eq!(worker.next_sweep, Some(clock() + Duration::from_secs(10)));
        plane.apply(added(2, 10));
        plane.apply(added(3, 0));
        assert_eq!(woken(), [false, false], "it is looked after in time");
        plane.apply(added(4, 9));
        assert_eq!(woken(), [true, false], "it wants to be looked after before");
        // The state in the middle of a sweep.
        worker.plan_sweep(None);
        plane.apply(added(5, 10));
        assert_eq!(woken(), [true, false], "it may have been overlooked");
    }
}
