//! State shared by the control thread and the workers.

use std::io;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, OnceLock};

use adit_engine::command::{Float, PeerSpec};
use adit_engine::{Instant, Link, Notice, PeerId, VlanId, Vlans};
use adit_linux::poll::{EventFd, Poller};
use adit_linux::udp::Train;
use adit_wire::ethernet::Ethernet;
use adit_wire::neighbour;
use arc_swap::ArcSwapOption;

use crate::egress::{Arena, PacketShape};
use crate::ethernet::{OnDevice, Switch};
use crate::filter_hook::{FilterConfig, FilterHook};
use crate::format::Format;
use crate::hand_up::HandUp;
use crate::key::Key;
use crate::peer::{Peer, Tx};
use crate::recursion::Own;
use crate::relay::Relay;
use crate::routes::Routes;
use crate::sockets::find_socket;
use crate::stats::{DropReason, Stats};
use crate::tables::{PeerTable, Tables};
use crate::unrouted::Unrouted;
use crate::upcall::UpcallSender;

/// The reason why a plane has stopped moving packets.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Failure {
    /// The TUN device was removed.
    TunGone,
    /// A worker panicked, which is a bug in adit.
    WorkerDied,
}

impl std::fmt::Display for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::TunGone => "the TUN device was removed",
            Self::WorkerDied => "a thread of the data plane died",
        })
    }
}

/// The value of [`Shared::sweep_at`] when no sweep is planned.
pub(crate) const NO_SWEEP: u64 = u64::MAX;

/// State shared by the control thread and the workers.
pub(crate) struct Shared<F: Format> {
    pub tables: Tables<F>,
    pub stats: Stats,
    pub upcalls: UpcallSender<F::Types>,
    pub relay: Relay,
    /// Set once a client of [`Relay::Clients`] has existed. Until then, no lookup for relaying is needed.
    pub has_clients: AtomicBool,
    pub client: bool,
    /// The transport of the tunnel, whose packets must not enter it.
    pub own: ArcSwapOption<Own>,
    pub has_tun: bool,
    /// The switch of a plane with a TAP device.
    pub ethernet: Option<Switch>,
    /// Set if the control plane wants reports of destinations without a route.
    pub unrouted: OnceLock<Unrouted>,
    /// Set if the control plane wants what no peer takes.
    pub hand_up: OnceLock<HandUp>,
    /// The packet filter, if any.
    pub filtered: OnceLock<FilterConfig>,
    pub clock: fn() -> Instant,
    pub stop: AtomicBool,
    /// The reason why packets no longer move; set once.
    pub failure: OnceLock<Failure>,
    /// Set once a peer may send fragmented or compressed packets.
    pub needs_scratch: AtomicBool,
    /// Whether the tunnel's packets get the type of service of those inside.
    pub copies_tos: AtomicBool,
    /// The number of times that the workers were asked to release their buffers.
    pub release_requests: AtomicU64,
    /// The number of times that keys were retired. The workers then clear their stacks, which may hold copies.
    pub retired_keys: AtomicU64,
    /// When worker 0 checks the peers' timers next, in nanoseconds; with [`NO_SWEEP`], not before it is woken.
    pub sweep_at: AtomicU64,
    /// Wakes the workers to check sockets, timers and `stop`.
    pub wake: Vec<EventFd>,
    /// The poller of each worker. Shared, so that any thread can wait for room in a stream.
    pub pollers: Vec<Arc<Poller>>,
}

impl<F: Format> Shared<F> {
    /// Returns whether packets may go from peer to peer inside the plane. If the relay setting forbids it, a filter may
    /// still have rules that allow it.
    pub(crate) fn may_relay(&self) -> bool {
        match self.relay {
            Relay::Direct | Relay::Clients(_) => true,
            Relay::Deny => self.filtered.get().is_some(),
            Relay::Kernel => false,
        }
    }

    /// Returns the replay window of a peer's keys.
    pub(crate) fn replay_window(&self, peer: &Peer<F>) -> u32 {
        let PeerSpec { replay_window, link, float, .. } = **peer.settings.load();
        // A stream reorders nothing, unless it is one of several paths.
        let in_order = link.is_stream() && float != Float::Accept;
        if in_order { 1 } else { replay_window }
    }

    /// Returns whether packets of peers may be for other peers.
    #[inline]
    pub(crate) fn relays(&self) -> bool {
        match self.relay {
            Relay::Kernel => false,
            Relay::Direct | Relay::Deny => true,
            Relay::Clients(_) => self.has_clients.load(Ordering::Relaxed),
        }
    }

    /// Returns how frames are sorted into VLANs, if they are.
    #[inline]
    pub(crate) fn vlans(&self) -> Option<&Vlans> {
        self.ethernet.as_ref()?.vlans.get()
    }

    /// Returns the VLAN of a peer's frames.
    #[inline]
    pub(crate) fn vlan_of(&self, peers: &PeerTable<F>, peer: PeerId) -> Option<VlanId> {
        self.vlans()?;
        peers.get(peer)?.vlan
    }

    /// Returns the tag with which the device carries frames of a VLAN, if it has one.
    #[inline]
    pub(crate) fn device_tag(&self, vlan: Option<VlanId>) -> Option<VlanId> {
        OnDevice::of(self.vlans()?, vlan?).tag()
    }

    /// Returns the reason to drop a packet without a route from the device, and reports its destination.
    #[cold]
    pub(crate) fn unrouted(&self, destination: IpAddr) -> DropReason {
        let reason = DropReason::of_unowned(destination, DropReason::NoRoute);
        if reason == DropReason::NoRoute
            && let Some(unrouted) = self.unrouted.get()
            && unrouted.is_due((self.clock)(), destination)
        {
            self.upcalls.notice(&self.stats, Notice::Unrouted(destination));
        }
        reason
    }

    /// Reports the address that the sender of a flooded frame from the device wants to reach, unless a peer has a route
    /// to it. So a control plane that connects on demand connects while the sender looks for the station.
    #[cold]
    pub(crate) fn report_wanted(&self, routes: &Routes, frame: &[u8]) {
        if self.unrouted.get().is_some()
            && let Some(header) = Ethernet::parse(frame)
            && let Some(wanted) = neighbour::wanted(&header, frame)
            && routes.owner(wanted).is_none()
        {
            let _ = self.unrouted(wanted);
        }
    }

    /// Creates the filter hook of one worker.
    pub(crate) fn filter_hook(&self) -> Option<Box<FilterHook>> {
        let ethernet = self.ethernet.is_some();
        self.filtered.get().map(|filtered| Box::new(FilterHook::new(filtered, ethernet)))
    }
}

impl<F: Format> Shared<F> {
    /// Wakes all workers.
    pub(crate) fn wake_all(&self) {
        self.wake.iter().for_each(EventFd::signal);
    }

    /// Makes worker 0 check the peers' timers by `due`. Wakes it only if its next check is later, because a wake-up
    /// costs a context switch per new client. The peer must already be in the table.
    pub(crate) fn expect_sweep(&self, due: Option<Instant>) {
        // Pairs with the fence in the sweep: either the sweep finds the peer, or this load finds that a sweep is
        // running.
        fence(Ordering::SeqCst);
        let planned = self.sweep_at.load(Ordering::Relaxed);
        if due.is_some_and(|due| due.as_nanos() < planned)
            && let Some(first) = self.wake.first()
        {
            first.signal();
        }
    }

    /// Returns the poller of the worker that owns a stream.
    pub(crate) fn poller_of(&self, link: &Link) -> io::Result<Arc<Poller>> {
        let workers = self.pollers.len() as u64;
        let owner = link.stream_id().and_then(|id| id.checked_rem(workers));
        let poller = owner.and_then(|owner| self.pollers.get(owner as usize));
        poller.cloned().ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Reports to the control plane that the data plane has failed.
    pub(crate) fn fail(&self, failure: Failure) {
        if self.failure.set(failure).is_ok() {
            self.upcalls.raise();
        }
    }

    /// Seals and sends one message that did not come from the TUN device. Uses and empties `arena`.
    pub(crate) fn send_message(
        &self,
        peer: &Peer<F>,
        tx: &mut Tx<F>,
        message: &[u8],
        arena: &mut Arena,
    ) -> Result<(), DropReason> {
        let spec = peer.settings.load();
        if spec.link.is_stream() {
            return self.send_on_stream(peer, tx, message, arena);
        }
        let sockets = self.tables.sockets.load();
        let socket = spec.link.socket().and_then(|id| find_socket(&sockets, id, 0));
        let socket = socket.ok_or(DropReason::NoSocket)?;
        let keys = peer.keys.load();
        let key = keys.primary.as_ref().ok_or(DropReason::NoKey)?;
        seal_message(key, &spec, tx, message, arena)?;
        let copies_tos = self.copies_tos.load(Ordering::Relaxed);
        let tos = if copies_tos { self.tos(F::packet_to_send(message)) } else { None };
        let (to, from) = (spec.link.remote(), spec.link.local());
        for span in arena.spans() {
            let payload = arena.bytes(span);
            let sent = socket.send(&Train { to, from, segment: 0, tos, payload });
            sent.map_err(|error| match error.kind() {
                io::ErrorKind::WouldBlock => DropReason::SocketFull,
                _ => DropReason::SendFailed,
            })?;
            peer.sent((self.clock)(), 1, payload.len() as u64);
        }
        peer.count_in_band(message.len());
        self.notify_near_limit(peer, key);
        Ok(())
    }

    /// Returns the type of service of a packet, or of that in a frame.
    fn tos(&self, packet: &[u8]) -> Option<u8> {
        match &self.ethernet {
            None => adit_wire::ip::tos(packet),
            Some(_) => adit_wire::ethernet::tos(packet),
        }
    }

    /// Notifies the control plane, once, that a key is close to a limit.
    pub(crate) fn notify_near_limit(&self, peer: &Peer<F>, key: &Key<F>) {
        if key.near_limit() {
            self.upcalls.notice(&self.stats, Notice::KeyNearLimit(peer.id, key.id()));
        }
    }
}

/// Seals one message into the emptied arena.
pub(crate) fn seal_message<F: Format>(
    key: &Key<F>,
    spec: &PeerSpec<F::Types>,
    tx: &mut Tx<F>,
    message: &[u8],
    arena: &mut Arena,
) -> Result<(), DropReason> {
    arena.clear();
    let mut sealer = key.sealer(tx, spec);
    sealer.begin_messages();
    arena
        .message(&mut sealer, message, &PacketShape::of(spec, 1))
        .ok_or(DropReason::ControlTooLong)?
}
