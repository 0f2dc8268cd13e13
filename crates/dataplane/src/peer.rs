//! One peer: settings and keys as snapshots, counters, and the TX lock.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU16, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use adit_engine::command::{Counters, KeySlot, PeerSpec, Traffic};
use adit_engine::{Instant, Link, PeerId, Rate, TokenBucket, VlanId};
use arc_swap::ArcSwap;

use crate::format::Format;
use crate::key::Key;
use crossbeam_utils::CachePadded;

/// The maximum number of control-plane messages that are queued while the peer's socket is full.
pub(crate) const MAX_PENDING_MESSAGES: usize = 16;

#[derive(Debug)]
pub(crate) struct Peer<F: Format> {
    pub id: PeerId,
    /// The first channel to the same remote end, whose routes and address apply to all channels: this peer itself, unless it is a further
    /// channel.
    pub first: PeerId,
    /// The VLAN of its frames. Every peer has one if the plane sorts frames into VLANs, and none has one otherwise.
    pub vlan: Option<VlanId>,
    pub settings: ArcSwap<PeerSpec<F::Types>>,
    pub keys: ArcSwap<Keys<F>>,
    /// A number unique among all peers of the process: [`Tx::owner`].
    owner: u64,
    /// The number of keys installed so far.
    generations: AtomicU64,
    /// Generation of the newest key that the peer has used.
    newest_used: AtomicU64,
    /// The length of the longest datagram received and authenticated.
    pub longest_received: AtomicU16,
    /// The length of the longest datagram sent.
    pub longest_sent: AtomicU16,
    /// A violation by this peer was reported.
    pub violation_reported: AtomicBool,
    /// Control requested [`adit_engine::Notice::PeerActive`].
    activity_wanted: AtomicBool,
    /// The pings and messages among the packets in both directions, and their bytes inside the encryption.
    in_band_packets: AtomicU64,
    in_band_bytes: AtomicU64,
    in_band_rx_packets: AtomicU64,
    in_band_rx_bytes: AtomicU64,
    // Usually one worker both receives from the peer and sends to it, but packets from other peers are sent by those
    // peers' workers.
    tx: CachePadded<TxState<F>>,
    rx: CachePadded<RxState<F>>,
}

/// State that changes with each burst to the peer.
#[derive(Debug)]
struct TxState<F: Format> {
    /// Serialises packet ids and sends; see [`Tx`].
    lock: Mutex<Tx<F>>,
    last: AtomicU64,
    packets: AtomicU64,
    bytes: AtomicU64,
    /// The limit on packets to the peer.
    rate: TokenBucket,
}

/// State that changes with each run from the peer.
#[derive(Debug)]
struct RxState<F: Format> {
    last: AtomicU64,
    /// Silence was reported and nothing was received since.
    silent: AtomicBool,
    packets: AtomicU64,
    bytes: AtomicU64,
    /// The limit on copies of frames that this peer floods.
    floods: TokenBucket,
    /// The limit on moves to another address.
    moves: TokenBucket,
    /// The limit on packets from the peer.
    rate: TokenBucket,
    /// Incomplete packets. Locked once per received run, after the replay window.
    reassembly: Mutex<F::Reassembly>,
}

/// Identifies a key among all keys of all peers.
#[derive(Copy, Clone, Debug, Default)]
pub(crate) struct KeyOrigin {
    /// The peer that the key belongs to: [`Tx::owner`].
    pub owner: u64,
    /// The number of the key within its peer; later keys have higher numbers.
    pub generation: u64,
}

/// Both key slots.
#[derive(Clone, Debug, Default)]
pub(crate) struct Keys<F: Format> {
    pub primary: Option<Arc<Key<F>>>,
    pub secondary: Option<Arc<Key<F>>>,
}

/// The state guarded by the TX lock. The holder may allocate packet ids of this peer, and keeps the lock until the packets
/// are sent.
#[derive(Debug, Default)]
pub(crate) struct Tx<F: Format> {
    /// The peer of this lock. Keys are used under the lock of their own peer only.
    owner: u64,
    /// A client's socket is full and the worker's arena holds sealed packets; nothing may overtake them.
    pub blocked: bool,
    /// Workers wait for the end of `blocked` and must be woken then.
    pub parked: bool,
    /// Messages of the control plane, to be sealed after the blocked packets. At most [`MAX_PENDING_MESSAGES`].
    pub waiting: VecDeque<Vec<u8>>,
    /// Trains with datagrams of at least this length are sent as single datagrams, because they exceed the path MTU. 0
    /// if no such length is known.
    pub oversize: usize,
    /// The size of the last path probe.
    pub probed: u16,
    /// State that the format keeps.
    pub format: F::Tx,
}

impl<F: Format> Tx<F> {
    /// Returns the number of the peer that this lock belongs to.
    pub(crate) fn owner(&self) -> u64 {
        self.owner
    }
}

impl<F: Format> Keys<F> {
    /// Returns the key with an id; the keys in both slots decrypt.
    #[inline]
    pub(crate) fn find(&self, id: u8) -> Option<&Arc<Key<F>>> {
        [&self.primary, &self.secondary].into_iter().flatten().find(|key| key.id() == id)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.primary.is_none() && self.secondary.is_none()
    }

    pub(crate) fn has(&self, slot: KeySlot) -> bool {
        match slot {
            KeySlot::Primary => self.primary.is_some(),
            KeySlot::Secondary => self.secondary.is_some(),
        }
    }

    pub(crate) fn slot(&mut self, slot: KeySlot) -> &mut Option<Arc<Key<F>>> {
        match slot {
            KeySlot::Primary => &mut self.primary,
            KeySlot::Secondary => &mut self.secondary,
        }
    }
}

impl<F: Format> Peer<F> {
    pub(crate) fn new(id: PeerId, spec: PeerSpec<F::Types>, now: Instant) -> Self {
        /// The next owner number. Zero belongs to no peer.
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let owner = NEXT.fetch_add(1, Relaxed);
        Self {
            id,
            first: spec.channel_of.unwrap_or(id),
            vlan: spec.vlan,
            owner,
            settings: ArcSwap::from_pointee(spec),
            keys: ArcSwap::default(),
            generations: AtomicU64::new(0),
            newest_used: AtomicU64::new(0),
            longest_received: AtomicU16::new(0),
            longest_sent: AtomicU16::new(0),
            violation_reported: AtomicBool::new(false),
            activity_wanted: AtomicBool::new(false),
            in_band_packets: AtomicU64::new(0),
            in_band_bytes: AtomicU64::new(0),
            in_band_rx_packets: AtomicU64::new(0),
            in_band_rx_bytes: AtomicU64::new(0),
            tx: CachePadded::new(TxState {
                lock: Mutex::new(Tx { owner, ..Tx::default() }),
                last: AtomicU64::new(now.as_nanos()),
                packets: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
                rate: TokenBucket::default(),
            }),
            rx: CachePadded::new(RxState {
                last: AtomicU64::new(now.as_nanos()),
                silent: AtomicBool::new(false),
                packets: AtomicU64::new(0),
                bytes: AtomicU64::new(0),
                floods: TokenBucket::default(),
                moves: TokenBucket::default(),
                rate: TokenBucket::default(),
                reassembly: Mutex::default(),
            }),
        }
    }

    /// Returns whether this peer is the first channel to its remote end, or the only one.
    pub(crate) fn is_first(&self) -> bool {
        self.first == self.id
    }

    /// Takes the TX lock. Never hold two at once, because two workers that relay between the same two peers would
    /// deadlock.
    pub(crate) fn lock_tx(&self) -> MutexGuard<'_, Tx<F>> {
        self.tx.lock.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Locks the reassembly of fragments.
    pub(crate) fn lock_reassembly(&self) -> MutexGuard<'_, F::Reassembly> {
        self.rx.reassembly.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the limit on copies of frames that this peer floods.
    pub(crate) fn floods(&self) -> &TokenBucket {
        &self.rx.floods
    }

    /// Returns the limit on moves to another address.
    pub(crate) fn moves(&self) -> &TokenBucket {
        &self.rx.moves
    }

    /// Takes a packet from the peer into account. Returns whether it is within the limit.
    pub(crate) fn takes_received(&self, now: Instant, bytes: usize, limit: Rate) -> bool {
        self.rx.rate.take(now, bytes, limit)
    }

    /// Returns whether a packet to the peer exceeds its limit. If not, takes it into account.
    #[inline]
    pub(crate) fn exceeds_rate(
        &self,
        spec: &PeerSpec<F::Types>,
        clock: fn() -> Instant,
        bytes: usize,
    ) -> bool {
        spec.rates.sent.is_some_and(|limit| !self.tx.rate.take(clock(), bytes, limit))
    }

    /// Changes the settings with `change`.
    pub(crate) fn update(&self, change: impl Fn(&mut PeerSpec<F::Types>)) {
        self.settings.rcu(|old| {
            let mut new = PeerSpec::clone(old);
            change(&mut new);
            new
        });
    }

    /// Returns whether `link` is the peer's known path. The local address counts only if the peer's link names one.
    #[inline]
    pub(crate) fn same_path(spec: &PeerSpec<F::Types>, link: &Link) -> bool {
        spec.link == *link
            // A stream is a connection: another connection from the same port is a different one.
            || (!link.is_stream()
                && spec.link.local().is_none()
                && spec.link.socket() == link.socket()
                && spec.link.remote() == link.remote())
    }

    /// Returns the origin of the next key to be installed.
    pub(crate) fn next_key_origin(&self) -> KeyOrigin {
        KeyOrigin { owner: self.owner, generation: self.generations.fetch_add(1, Relaxed) }
    }

    /// Records that the peer has used a key.
    pub(crate) fn used(&self, key: &Key<F>) {
        if self.newest_used.load(Relaxed) < key.generation {
            self.newest_used.fetch_max(key.generation, Relaxed);
        }
    }

    /// Returns whether the peer has used no later key. Once it has, an attacker may have held back packets under an earlier key, even if
    /// they are authentic and have new ids.
    pub(crate) fn is_newest(&self, key: &Key<F>) -> bool {
        self.newest_used.load(Relaxed) <= key.generation
    }

    pub(crate) fn count_received(&self, now: Instant, packets: u64, bytes: u64) {
        self.rx.last.store(now.as_nanos(), Relaxed);
        self.rx.silent.store(false, Relaxed);
        self.rx.packets.fetch_add(packets, Relaxed);
        self.rx.bytes.fetch_add(bytes, Relaxed);
    }

    /// Records that the timeout expired. Returns whether this is the first expiry since the last packet.
    pub(crate) fn mark_silent(&self) -> bool {
        self.activity_wanted.store(true, Relaxed);
        !self.rx.silent.swap(true, Relaxed)
    }

    /// Restarts the timeout.
    pub(crate) fn restart_timeout(&self, now: Instant) {
        self.rx.last.store(now.as_nanos(), Relaxed);
        self.rx.silent.store(false, Relaxed);
        self.activity_wanted.store(true, Relaxed);
    }

    /// Clears the flag for a pending activity request; returns whether it was set.
    pub(crate) fn take_activity_wanted(&self) -> bool {
        self.activity_wanted.load(Relaxed) && self.activity_wanted.swap(false, Relaxed)
    }

    pub(crate) fn sent(&self, now: Instant, packets: u64, bytes: u64) {
        self.tx.last.store(now.as_nanos(), Relaxed);
        self.tx.packets.fetch_add(packets, Relaxed);
        self.tx.bytes.fetch_add(bytes, Relaxed);
    }

    pub(crate) fn last_sent(&self) -> Instant {
        Instant::from_nanos(self.tx.last.load(Relaxed))
    }

    pub(crate) fn last_heard(&self) -> Instant {
        Instant::from_nanos(self.rx.last.load(Relaxed))
    }

    /// Counts an in-band message, received or sent.
    pub(crate) fn count_in_band(&self, len: usize) {
        self.in_band_packets.fetch_add(1, Relaxed);
        self.in_band_bytes.fetch_add(len as u64, Relaxed);
    }

    /// Counts a received ping or message.
    pub(crate) fn count_in_band_received(&self, len: usize) {
        self.count_in_band(len);
        self.in_band_rx_packets.fetch_add(1, Relaxed);
        self.in_band_rx_bytes.fetch_add(len as u64, Relaxed);
    }

    /// Returns the number of received pings and messages, and their bytes inside the encryption.
    pub(crate) fn in_band_received(&self) -> (u64, u64) {
        (self.in_band_rx_packets.load(Relaxed), self.in_band_rx_bytes.load(Relaxed))
    }

    /// Returns the counters of pings and messages: in both directions, and received.
    pub(crate) fn in_band(&self) -> [u64; 4] {
        self.in_band_counters().map(|counter| counter.load(Relaxed))
    }

    /// Sets the counters that the peer had in another process.
    pub(crate) fn restore_counters(&self, traffic: Counters, in_band: [u64; 4]) {
        let Counters { rx_packets, rx_bytes, tx_packets, tx_bytes } = traffic;
        self.rx.packets.fetch_add(rx_packets, Relaxed);
        self.rx.bytes.fetch_add(rx_bytes, Relaxed);
        self.tx.packets.fetch_add(tx_packets, Relaxed);
        self.tx.bytes.fetch_add(tx_bytes, Relaxed);
        for (counter, count) in self.in_band_counters().into_iter().zip(in_band) {
            counter.fetch_add(count, Relaxed);
        }
    }

    fn in_band_counters(&self) -> [&AtomicU64; 4] {
        [
            &self.in_band_packets,
            &self.in_band_bytes,
            &self.in_band_rx_packets,
            &self.in_band_rx_bytes,
        ]
    }

    pub(crate) fn traffic(&self) -> Traffic {
        let Counters { rx_packets, rx_bytes, tx_packets, tx_bytes } = self.counters();
        Traffic {
            packets: rx_packets.saturating_add(tx_packets),
            bytes: rx_bytes.saturating_add(tx_bytes),
            in_band_packets: self.in_band_packets.load(Relaxed),
            in_band_bytes: self.in_band_bytes.load(Relaxed),
        }
    }

    pub(crate) fn counters(&self) -> Counters {
        Counters {
            rx_packets: self.rx.packets.load(Relaxed),
            rx_bytes: self.rx.bytes.load(Relaxed),
            tx_packets: self.tx.packets.load(Relaxed),
            tx_bytes: self.tx.bytes.load(Relaxed),
        }
    }
}
