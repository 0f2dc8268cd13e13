//! The control thread's interface to the data plane.

mod commands;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use adit_engine::command::{Counters, SpliceId};
use adit_engine::{Instant, Link, PeerId, SocketId, Vlans};
use adit_linux::poll::{EventFd, Poller};
use adit_linux::tcp::TcpStream;
use adit_linux::tun::{TunDevice, TunQueue};
use adit_linux::udp::UdpSocket;
use adit_wire::ethernet::Mac;
use arc_swap::ArcSwapOption;
use ipnet::IpNet;

use crate::egress::Arena;
use crate::ethernet::{MacTotals, SourceGuard, StationQuestions, Switch};
use crate::filter_hook::FilterConfig;
use crate::format::Format;
use crate::recursion::{Own, OwnPort, OwnTransport};
use crate::relay::Relay;
use crate::shared::{Failure, NO_SWEEP, Shared};
use crate::sockets::{Group, grouped};
use crate::stats::{DropReason, Offloads, Stats, Totals};
use crate::stream::{Stream, StreamOptions};
use crate::tables::Tables;
use crate::unrouted::Unrouted;
use crate::upcall::{self, Upcalls};
use crate::worker::{Tun, Worker};

/// The parameters of a plane.
#[derive(Debug)]
pub struct PlaneConfig {
    /// The TUN device; `None` for `dev null`.
    pub tun: Option<TunDevice>,
    /// The initial sockets; more can be added. Several sockets with the same id share its port, one for each worker
    /// (see [`UdpSocket::bind_group`]).
    pub sockets: Vec<(SocketId, Arc<UdpSocket>)>,
    /// The treatment of packets from one peer to another.
    pub relay: Relay,
    /// The offloads that may be used; each can be switched off separately.
    pub gates: Offloads,
    /// Client mode, in which all packets come from one server. Control packets never count as unauthenticated, peers
    /// are found by address, and a full socket stops reading the TUN device instead of dropping.
    pub client: bool,
    /// `dev tap`: the device and the peers carry Ethernet frames, which find their peer by MAC address.
    pub ethernet: bool,
}

/// A plane without workers, the state that it shares with them, and its upcalls.
type IdlePlane<F> = (Plane<F>, Arc<Shared<F>>, Upcalls<<F as Format>::Types>);

/// A running data plane. Dropping it stops the workers.
pub struct Plane<F: Format> {
    pub(crate) shared: Arc<Shared<F>>,
    workers: Vec<JoinHandle<()>>,
    /// The arena in which the control plane seals its own messages.
    arena: Mutex<Arena>,
}

impl<F: Format> std::fmt::Debug for Plane<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Plane").field("workers", &self.workers.len()).finish_non_exhaustive()
    }
}

/// A thread that waits to receive the worker that it will run.
type IdleThread<F> = (mpsc::Sender<Worker<F>>, JoinHandle<()>);

/// Starts as many threads as requested or as the system allows, before any resource is divided among them.
fn start_threads<F: Format>(wanted: usize) -> io::Result<Vec<IdleThread<F>>> {
    let mut threads: Vec<IdleThread<F>> = Vec::with_capacity(wanted);
    for index in 0..wanted {
        let (start, worker) = mpsc::channel::<Worker<F>>();
        let builder = std::thread::Builder::new().name(format!("plane-{index}"));
        let spawned = builder.spawn(move || {
            if let Ok(worker) = worker.recv() {
                let confined = adit_linux::privileges::confine_worker();
                // A panic of a worker ends the process, and so must every failure to drop privileges.
                assert!(confined.is_ok(), "the worker's filter of system calls: {confined:?}");
                worker.run();
            }
        });
        match spawned {
            Ok(thread) => threads.push((start, thread)),
            Err(error) if threads.is_empty() => return Err(error),
            Err(_) => break,
        }
    }
    Ok(threads)
}

impl<F: Format> Plane<F> {
    /// Spawns the workers: one for each TUN queue or for each socket of one id, whichever is more, and at least one. There are fewer if the
    /// system allows no more threads (see [`Plane::workers`]). A socket whose id no other socket shares is served by the first worker; all
    /// workers may send through it. `clock` must be the control thread's.
    pub fn start(
        config: PlaneConfig,
        clock: fn() -> Instant,
    ) -> io::Result<(Self, Upcalls<F::Types>)> {
        Self::start_filtered(config, None, clock)
    }

    /// Does the same as [`Plane::start`], with rules that filter packets. Packets between peers are evaluated too: with
    /// [`Relay::Deny`], only packets that a rule accepts pass; with [`Relay::Direct`], so do packets that a policy
    /// accepts, and with [`Relay::Clients`] those of clients. With [`Relay::Kernel`] they are evaluated on their way to the device and again on their way back from
    /// it.
    pub fn start_filtered(
        config: PlaneConfig,
        filtered: Option<FilterConfig>,
        clock: fn() -> Instant,
    ) -> io::Result<(Self, Upcalls<F::Types>)> {
        let PlaneConfig { tun, sockets, relay, gates, client, ethernet } = config;
        let granted = tun.as_ref().map(|tun| tun.offloads).unwrap_or_default();
        let gates = Offloads {
            tun_tso: gates.tun_tso && granted.tso,
            tun_uso: gates.tun_uso && granted.uso,
            ..gates
        };
        let mut queues: Vec<Arc<TunQueue>> =
            tun.map(|tun| tun.queues).unwrap_or_default().into_iter().map(Arc::new).collect();
        let sockets = grouped(sockets);
        let shared_ports = sockets.iter().map(Group::len).max().unwrap_or(0);
        let threads = start_threads(queues.len().max(shared_ports).max(1))?;
        let count = threads.len();
        // A queue without a reader would keep the packets that the kernel puts into it.
        queues.truncate(count);
        let (mut plane, shared, upcalls) =
            Self::idle(relay, client, !queues.is_empty(), ethernet, gates, count, clock)?;
        if let Some(filtered) = filtered {
            plane.set_filter(filtered);
        }
        if let Some(queue) = queues.first() {
            restrict_tun(queue, granted, gates);
            if let (Some(switch), Ok(mac)) = (&shared.ethernet, queue.mac()) {
                switch.macs.set_own(Mac(mac));
            }
        }
        sockets.into_iter().for_each(|group| plane.add_group(group));
        for (index, (start, thread)) in threads.into_iter().enumerate() {
            let worker = Worker::new(Arc::clone(&shared), index, Tun::of_worker(&queues, index))?;
            // The thread waits for nothing else.
            let _ = start.send(worker);
            plane.workers.push(thread);
        }
        Ok((plane, upcalls))
    }

    /// Creates a plane without workers.
    pub(crate) fn idle(
        relay: Relay,
        client: bool,
        has_tun: bool,
        ethernet: bool,
        gates: Offloads,
        workers: usize,
        clock: fn() -> Instant,
    ) -> io::Result<IdlePlane<F>> {
        let (sender, upcalls) = upcall::channel()?;
        let shared = Arc::new(Shared {
            tables: Tables::default(),
            stats: Stats::new(gates, workers),
            upcalls: sender,
            relay,
            has_clients: AtomicBool::new(false),
            client,
            own: ArcSwapOption::empty(),
            has_tun,
            ethernet: ethernet.then(Switch::default),
            unrouted: OnceLock::new(),
            hand_up: OnceLock::new(),
            filtered: OnceLock::new(),
            clock,
            stop: AtomicBool::new(false),
            failure: OnceLock::new(),
            needs_scratch: AtomicBool::new(false),
            copies_tos: AtomicBool::new(false),
            release_requests: AtomicU64::new(0),
            retired_keys: AtomicU64::new(0),
            sweep_at: AtomicU64::new(NO_SWEEP),
            wake: (0..workers).map(|_| EventFd::new()).collect::<io::Result<_>>()?,
            pollers: (0..workers)
                .map(|_| Poller::new().map(Arc::new))
                .collect::<io::Result<_>>()?,
        });
        let arena = Mutex::new(Arena::new::<F>(0));
        Ok((Self { shared: Arc::clone(&shared), workers: Vec::new(), arena }, shared, upcalls))
    }

    /// Creates another handle of a plane without workers.
    pub(crate) fn another_worker(&self) -> Self {
        let arena = Mutex::new(Arena::new::<F>(0));
        Self { shared: Arc::clone(&self.shared), workers: Vec::new(), arena }
    }

    /// From now on, drops packets of this transport that come back through the device; `None` drops none.
    pub fn set_own_transport(&self, own: Option<OwnTransport>) {
        self.set_own(own.map(Own::Transport));
    }

    /// Does the same for a tunnel whose packets this host sends from one UDP port.
    pub fn set_own_port(&self, own: OwnPort) {
        self.set_own(Some(Own::Port(own)));
    }

    fn set_own(&self, own: Option<Own>) {
        let former = self.shared.own.load();
        if former.as_deref() != own.as_ref() {
            self.shared.own.store(own.map(Arc::new));
        }
    }

    /// Adds a socket, or replaces the sockets with the same id.
    pub fn add_socket(&self, id: SocketId, socket: Arc<UdpSocket>) {
        self.add_sockets(id, vec![socket]);
    }

    /// Does the same as [`Plane::add_socket`] with several sockets that share a port: every worker receives from its
    /// own. The previous sockets of this id are closed as soon as no worker uses them; packets still queued in them are
    /// lost, as with a single socket.
    pub fn add_sockets(&self, id: SocketId, sockets: Vec<Arc<UdpSocket>>) {
        self.add_group(Group::new(id, sockets));
    }

    fn add_group(&self, group: Group) {
        if !self.shared.stats.gates.udp_gro.load(Ordering::Relaxed) {
            // On failure, coalescing stays on. Splitting is then slower but still correct.
            group.of_worker(0, 1).for_each(|socket| drop(socket.set_gro(false)));
        }
        self.shared.tables.sockets.rcu(|sockets| {
            let mut sockets = Vec::clone(sockets);
            sockets.retain(|other| other.id != group.id);
            sockets.push(group.clone());
            sockets
        });
        self.wake();
    }

    /// Stops serving a socket. It is closed when its last user drops it.
    pub fn remove_socket(&self, id: SocketId) {
        self.shared.tables.sockets.rcu(|sockets| {
            let mut sockets = Vec::clone(sockets);
            sockets.retain(|group| group.id != id);
            sockets
        });
        self.wake();
    }

    /// Starts to serve a stream, which the plane then owns. `link` must be [`Link::stream`] with an id below 2^62 that
    /// was never used before.
    pub fn add_stream(
        &self,
        link: Link,
        stream: TcpStream,
        options: StreamOptions,
    ) -> io::Result<()> {
        let streams = &self.shared.tables.streams;
        let stream = Stream::open(link, stream, options, self.shared.poller_of(&link)?)?;
        streams.insert(Arc::clone(&stream));
        stream.watch().inspect_err(|_| drop(streams.remove(stream.id)))
    }

    /// Sends the queued control packets, as far as the socket accepts them, and closes the stream.
    pub fn remove_stream(&self, link: Link) {
        let streams = &self.shared.tables.streams;
        if let Some(stream) = link.stream_id().and_then(|id| streams.remove(id)) {
            stream.drain();
            stream.end();
            self.shared.tables.dismiss(&link);
            // Workers may be waiting for room in it.
            self.wake();
        }
    }

    /// Sends a whole control packet on a stream, ahead of all data that is not yet partly sent. Returns `false` if
    /// there is no such stream or its queue is full (counted).
    pub fn send_control(&self, link: Link, frame: &[u8]) -> bool {
        let Some(stream) = self.shared.tables.streams.of(&link) else { return false };
        let taken = stream.send_control(frame);
        if !taken {
            self.shared.stats.drop(DropReason::ControlFull);
        }
        taken
    }

    /// Returns the counters of a peer's traffic so far.
    pub fn counters(&self, id: PeerId) -> Option<Counters> {
        self.shared.tables.peers.load().get(id).map(|peer| peer.counters())
    }

    /// Passes on the splices that had packets since the last call, and their number. Packets that could not be sent are among them.
    pub fn take_spliced(&self, take: impl FnMut(SpliceId, u64)) {
        self.shared.tables.splices.take_packets(take);
    }

    /// Returns the number of pings and messages received from a peer so far, and their bytes inside the encryption.
    pub fn in_band_received(&self, id: PeerId) -> Option<(u64, u64)> {
        self.shared.tables.peers.load().get(id).map(|peer| peer.in_band_received())
    }

    /// Returns the current link of a peer, after any change of its address.
    pub fn link(&self, id: PeerId) -> Option<Link> {
        self.shared.tables.peers.load().get(id).map(|peer| peer.settings.load().link)
    }

    /// Returns whether a stream's peer has yet to acknowledge some of the sent data.
    pub fn is_unacknowledged(&self, link: Link) -> bool {
        self.shared.tables.streams.of(&link).is_some_and(|stream| stream.is_unacknowledged())
    }

    /// Returns the number of workers.
    pub fn workers(&self) -> usize {
        self.workers.len()
    }

    /// Returns the reason why the plane has stopped moving packets, if it has. The upcalls' descriptor becomes readable
    /// when that happens: check this after each drain.
    pub fn failure(&self) -> Option<Failure> {
        self.shared.failure.get().copied()
    }

    /// Returns the drops, train lengths and offloads since the start.
    pub fn totals(&self) -> Totals {
        self.shared.stats.totals()
    }

    /// Filters packets from now on. The firewall stays for the lifetime of the plane; its rules can be replaced.
    pub fn set_filter(&self, filtered: FilterConfig) {
        // A second call changes nothing.
        let _ = self.shared.filtered.set(filtered);
        self.shared.wake_all();
    }

    /// Reports destinations without a route, of packets from the device and from clients ([`Relay::Clients`]), as
    /// [`Notice::Unrouted`](adit_engine::Notice::Unrouted). With a TAP device, these are the destinations of frames to
    /// unknown stations, and the addresses that ARP and neighbour discovery look for.
    pub fn report_unrouted(&self) {
        // A second call changes nothing.
        let _ = self.shared.unrouted.set(Unrouted::default());
    }

    /// With a TAP device: from now on, a peer without routes gets no frames, and none are accepted from it. An address in
    /// these networks is accepted as the source of a packet, as the sender in ARP, and as the target of a neighbour
    /// advertisement, only from the peer that has a route to it.
    pub fn guard_sources(&self, networks: Vec<IpNet>) {
        if let Some(switch) = &self.shared.ethernet {
            // A second call changes nothing.
            let _ = switch.guard.set(SourceGuard::new(networks));
        }
    }

    /// With a TAP device: from now on, a station's frames are dropped until
    /// [`Command::AllowStation`](adit_engine::Command::AllowStation) allows it.
    pub fn ask_about_stations(&self) {
        if let Some(switch) = &self.shared.ethernet {
            // A second call changes nothing.
            let _ = switch.questions.set(StationQuestions::default());
        }
    }

    /// With a TAP device: sorts frames into VLANs. Must precede the first peer. A peer without a VLAN of its own has the
    /// native one. Peers send and get frames without a tag, or with a priority tag.
    pub fn sort_into_vlans(&self, vlans: Vlans) {
        if let Some(switch) = &self.shared.ethernet {
            // A second call changes nothing.
            let _ = switch.vlans.set(vlans);
        }
    }

    /// Sets the limits of `max-routes-per-client` and `stale-routes-check`: the maximum number of stations behind one
    /// peer, and the time after which a silent station is removed. Has no effect on a plane without a TAP device.
    pub fn limit_macs(&self, per_peer: usize, age: Option<Duration>) {
        if let Some(switch) = &self.shared.ethernet {
            switch.macs.limit(per_peer, age);
            self.wake();
        }
    }

    /// Gives the tunnel's datagrams the type of service of the packets in them (`passtos`): of those from the device, and of
    /// those that the control plane sends.
    pub fn copy_tos(&self) {
        self.shared.copies_tos.store(true, Ordering::Relaxed);
    }

    /// Returns the counters of the table of stations; `None` without a TAP device.
    pub fn mac_totals(&self) -> Option<MacTotals> {
        self.shared.ethernet.as_ref().map(|switch| switch.macs.totals())
    }

    /// Shrinks the tables to their contents, after many clients have disconnected.
    pub fn shrink(&self) {
        self.shared.tables.release_memory();
        self.shared.upcalls.release_memory();
    }

    /// Also releases the workers' buffers, which take megabytes after heavy traffic; meant for a server without
    /// clients. The next packets cost a little more.
    pub fn release_memory(&self) {
        self.shrink();
        let mut arena = self.arena.lock().unwrap_or_else(PoisonError::into_inner);
        arena.clear();
        arena.release_memory();
        drop(arena);
        self.shared.release_requests.fetch_add(1, Ordering::Relaxed);
        self.wake();
    }

    /// Stops the workers and closes the TUN device.
    pub fn shutdown(self) {
        drop(self);
    }

    /// Makes worker 0 check the peers' timers soon. After the machine resumes from sleep they are overdue, but the
    /// worker's timeout did not advance.
    pub fn resumed(&self) {
        self.wake();
    }

    fn wake(&self) {
        self.shared.wake_all();
    }
}

impl<F: Format> Plane<F> {
    pub(crate) fn join_workers(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.wake();
        for worker in self.workers.drain(..) {
            // The worker's panic guard has already reported any panic.
            let _ = worker.join();
        }
    }
}

impl<F: Format> Drop for Plane<F> {
    fn drop(&mut self) {
        self.join_workers();
    }
}

/// Switches off the offloads of the device that are not granted. If the device refuses, it still delivers
/// super-packets, which are split anyway.
fn restrict_tun(queue: &TunQueue, granted: adit_linux::tun::TunOffloads, gates: Offloads) {
    let wanted = adit_linux::tun::TunOffloads { tso: gates.tun_tso, uso: gates.tun_uso, ..granted };
    if wanted != granted {
        let _ = queue.set_offloads(wanted);
    }
}
