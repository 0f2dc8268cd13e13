//! Counters. Each worker writes its own, with relaxed atomics, once per burst or dropped packet.

use std::array;
use std::cell::Cell;
use std::fmt;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use crossbeam_utils::CachePadded;

macro_rules! drop_reasons {
    ($($(#[doc = $doc:literal])+ $variant:ident = $name:literal,)+) => {
        /// The reason why a packet was dropped.
        #[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
        pub enum DropReason {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl DropReason {
            /// All reasons, in the order of their discriminants.
            pub const ALL: &'static [Self] = &[$(Self::$variant,)+];

            /// Returns a short name for `status` and logs.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)+
                }
            }
        }
    };
}

drop_reasons! {
    /// The datagram was empty.
    Empty = "empty",
    /// Too short for its header.
    Short = "short",
    /// Neither data nor control, because the header is not valid.
    UnknownKind = "unknown-kind",
    /// A control packet longer than any peer may send.
    ControlTooLong = "control-too-long",
    /// No peer has this peer-id, or this address if packets carry no peer-id.
    UnknownPeer = "unknown-peer",
    /// The peer has no key with this id.
    UnknownKey = "unknown-key",
    /// Authentication failed.
    BadTag = "bad-tag",
    /// Seen before, or too far behind the newest.
    Replayed = "replayed",
    /// From an address other than the peer's, and the peer may not float.
    WrongAddress = "wrong-address",
    /// Compressed in a way that was not agreed.
    Compressed = "compressed",
    /// Compressed, and malformed or too long when decompressed.
    BadCompression = "bad-compression",
    /// The negotiated compression header is missing.
    BadFraming = "bad-framing",
    /// The negotiated fragment header is missing, or a fragment contradicts others.
    BadFragment = "bad-fragment",
    /// A packet with missing fragments.
    FragmentLost = "fragment-lost",
    /// More packets were reassembled in one burst than there are buffers.
    FragmentsFull = "fragments-full",
    /// Too large for the maximum number of fragments.
    TooManyFragments = "too-many-fragments",
    /// Not an IP packet.
    NotIp = "not-ip",
    /// Too short for an Ethernet frame.
    NotEthernet = "not-ethernet",
    /// The peer has as many stations behind it as it may, or there are too many in all.
    MacsFull = "macs-full",
    /// A frame of a station that the control plane has not allowed (`learn-address`).
    MacNotAllowed = "mac-not-allowed",
    /// A frame with a VLAN tag from a peer, or a frame that the device may not carry (`vlan-accept`).
    WrongVlan = "wrong-vlan",
    /// A frame for a station behind the peer that sent it.
    SamePeer = "same-peer",
    /// More flooded frames than the rate limit allows.
    FloodLimited = "flood-limited",
    /// The source address does not belong to the peer.
    SourceSpoofed = "source-spoofed",
    /// The packet filter dropped it; `adit filter show` gives the reason.
    Filtered = "filtered",
    /// From one peer to another, which the configuration forbids.
    PeerToPeer = "peer-to-peer",
    /// More relayed bytes than the limit of the splice, or of all together, allows.
    RelayLimited = "relay-limited",
    /// A relayed packet is larger than the path to its receiver carries. A relay never fragments.
    RelayTooLong = "relay-too-long",
    /// More bytes from or to the peer than its rate allows.
    RateLimited = "rate-limited",
    /// No peer owns the destination.
    NoRoute = "no-route",
    /// IPv6 link-local or multicast: hosts send such packets on any interface that comes up, and a
    /// routed tunnel has no use for them.
    LocalScope = "local-scope",
    /// A packet of the tunnel's own transport that a route led back into the tunnel.
    Recursive = "recursive",
    /// The peer has no key to encrypt with, yet.
    NoKey = "no-key",
    /// The key has used up its packet ids or its cipher's limit.
    KeyExhausted = "key-exhausted",
    /// There is no TUN device (`dev null`).
    NoTun = "no-tun",
    /// The TUN device refused the packet.
    TunRefused = "tun-refused",
    /// The TUN device delivered a malformed packet.
    TunMalformed = "tun-malformed",
    /// The socket's buffer is full.
    SocketFull = "socket-full",
    /// The kernel refused to send, because of a missing route, a firewall, or an interface that is
    /// down.
    SendFailed = "send-failed",
    /// The peer's socket no longer exists.
    NoSocket = "no-socket",
    /// A packet's length on a stream was 0 or above the maximum.
    BadLength = "bad-length",
    /// A stream's peer receives packets more slowly than they arrive (`tcp-queue-limit`).
    StreamFull = "stream-full",
    /// Too many control packets were queued for a stream.
    ControlFull = "control-full",
    /// Too long for a stream, whose length fields have 16 bits.
    TooLong = "too-long",
    /// The queue of control packets of known peers was full.
    ControlQueueFull = "frames-full",
    /// The queue of unauthenticated control packets was full.
    UnauthenticatedQueueFull = "strangers-full",
    /// The queue of notices was full.
    NoticesFull = "notices-full",
    /// The queue of packets that no peer takes was full.
    HandUpFull = "hand-up-full",
}

impl DropReason {
    /// Returns the drop reason for a packet whose source or destination has no owner: `otherwise`,
    /// unless the address has no meaning beyond its own link.
    pub(crate) fn of_unowned(address: IpAddr, otherwise: Self) -> Self {
        let local = match address {
            IpAddr::V4(v4) => v4.is_multicast() || v4.is_link_local(),
            IpAddr::V6(v6) => v6.is_multicast() || v6.is_unicast_link_local(),
        };
        if local { Self::LocalScope } else { otherwise }
    }
}

const REASONS: usize = DropReason::ALL.len();

impl fmt::Display for DropReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The number of batches of each length, in powers of two.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Histogram {
    /// Batches of 1, 2, 3-4, 5-8, 9-16, 17-32, 33-64 and more.
    pub buckets: [u64; Self::BUCKETS],
    /// The total number of batches.
    pub batches: u64,
    /// The total number of packets.
    pub packets: u64,
}

impl Histogram {
    /// Number of buckets.
    pub const BUCKETS: usize = 8;
    /// The lengths in each bucket.
    pub const LABELS: [&'static str; Self::BUCKETS] =
        ["1", "2", "3-4", "5-8", "9-16", "17-32", "33-64", "65+"];

    /// Returns the average number of packets per batch.
    pub fn mean(&self) -> f64 {
        if self.batches == 0 { 0.0 } else { self.packets as f64 / self.batches as f64 }
    }
}

/// The offloads that are, or may be, in use.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Offloads {
    /// Trains of datagrams sent to the UDP socket (`UDP_SEGMENT`).
    pub udp_gso: bool,
    /// Coalesced datagrams received from the UDP socket (`UDP_GRO`).
    pub udp_gro: bool,
    /// TCP super-packets to and from the TUN device.
    pub tun_tso: bool,
    /// UDP super-packets to and from the TUN device.
    pub tun_uso: bool,
}

impl Offloads {
    /// All of them.
    pub const ALL: Self = Self { udp_gso: true, udp_gro: true, tun_tso: true, tun_uso: true };
    /// None of them.
    pub const NONE: Self = Self { udp_gso: false, udp_gro: false, tun_tso: false, tun_uso: false };
}

impl Default for Offloads {
    fn default() -> Self {
        Self::ALL
    }
}

/// The plane's counters since its start.
#[derive(Clone, Debug, Default)]
pub struct Totals {
    /// Dropped packets, indexed like [`DropReason::ALL`].
    pub drops: Vec<(DropReason, u64)>,
    /// Datagrams per sent train.
    pub sent: Histogram,
    /// Relayed datagrams per train that was sent, unread; not among `sent`.
    pub spliced: Histogram,
    /// Datagrams per received buffer.
    pub received: Histogram,
    /// Packets per read from the TUN device.
    pub tun_read: Histogram,
    /// Packets per write to the TUN device.
    pub tun_written: Histogram,
    /// Offloads in force now.
    pub offloads: Offloads,
    /// The numbers of offloads that were switched off at run time, by offload and reason.
    pub downgrades: Vec<(&'static str, &'static str, u64)>,
    /// The CPU time of each worker.
    pub busy: Vec<Duration>,
}

thread_local! {
    /// The worker whose counters this thread writes; outside the workers, control's counters are
    /// used.
    static WORKER: Cell<usize> = const { Cell::new(usize::MAX) };
}

/// The live counters.
#[derive(Debug)]
pub(crate) struct Stats {
    workers: Box<[CachePadded<Counters>]>,
    control: CachePadded<Counters>,
    pub gates: EnabledOffloads,
}

/// The counters of one thread.
#[derive(Debug)]
pub(crate) struct Counters {
    /// The id of the worker's thread, or 0 before it runs.
    thread: AtomicI32,
    drops: [AtomicU64; REASONS],
    pub sent: LiveHistogram,
    pub spliced: LiveHistogram,
    pub received: LiveHistogram,
    pub tun_read: LiveHistogram,
    pub tun_written: LiveHistogram,
}

/// The offloads in force; a downgrade at run time clears one.
#[derive(Debug)]
pub(crate) struct EnabledOffloads {
    pub udp_gso: AtomicBool,
    pub udp_gro: AtomicBool,
    pub tun_tso: AtomicBool,
    pub tun_uso: AtomicBool,
    /// The number of downgrades of each kind.
    downgrades: [AtomicU64; DOWNGRADES.len()],
}

/// The kinds of downgrades: the offload and the reason, in the order of [`Downgrade`].
const DOWNGRADES: [(&str, &str); 4] =
    [("udp-gso", "device"), ("udp-gso", "invalid"), ("tun-tso", "refused"), ("tun-uso", "refused")];

/// The reason to switch an offload off.
#[derive(Copy, Clone, Debug)]
pub(crate) enum Downgrade {
    /// A device refused a train whose datagrams it then sent (EIO).
    GsoDevice,
    /// The kernel refused several trains whose datagrams it then sent (EINVAL).
    GsoInvalid,
    /// The TUN device refused a TCP super-packet, but not its segments.
    TsoRefused,
    /// The TUN device refused a UDP super-packet, but not its segments.
    UsoRefused,
}

impl EnabledOffloads {
    /// Switches an offload off.
    pub(crate) fn downgrade(&self, why: Downgrade) {
        let gate = match why {
            Downgrade::GsoDevice | Downgrade::GsoInvalid => &self.udp_gso,
            Downgrade::TsoRefused => &self.tun_tso,
            Downgrade::UsoRefused => &self.tun_uso,
        };
        // Several workers may notice it at the same time.
        if gate.swap(false, Relaxed)
            && let Some(count) = self.downgrades.get(why as usize)
        {
            count.fetch_add(1, Relaxed);
        }
    }
}

#[derive(Debug, Default)]
pub(crate) struct LiveHistogram {
    buckets: [AtomicU64; Histogram::BUCKETS],
    packets: AtomicU64,
}

impl LiveHistogram {
    /// Counts one batch.
    #[inline]
    pub(crate) fn record(&self, packets: usize) {
        if packets == 0 {
            return;
        }
        let bucket = (packets.saturating_sub(1)).checked_ilog2().map_or(0, |log| log as usize + 1);
        if let Some(bucket) = self.buckets.get(bucket.min(Histogram::BUCKETS - 1)) {
            bucket.fetch_add(1, Relaxed);
        }
        self.packets.fetch_add(packets as u64, Relaxed);
    }

    /// Counts batches of one packet each.
    #[inline]
    pub(crate) fn record_single(&self, packets: usize) {
        if let Some(bucket) = self.buckets.first() {
            bucket.fetch_add(packets as u64, Relaxed);
        }
        self.packets.fetch_add(packets as u64, Relaxed);
    }

    fn add_to(&self, sum: &mut Histogram) {
        for (sum, live) in sum.buckets.iter_mut().zip(&self.buckets) {
            *sum = sum.wrapping_add(live.load(Relaxed));
        }
        sum.batches = sum.buckets.iter().sum();
        sum.packets = sum.packets.wrapping_add(self.packets.load(Relaxed));
    }
}

impl Default for Counters {
    fn default() -> Self {
        Self {
            thread: AtomicI32::new(0),
            drops: array::from_fn(|_| AtomicU64::new(0)),
            sent: LiveHistogram::default(),
            spliced: LiveHistogram::default(),
            received: LiveHistogram::default(),
            tun_read: LiveHistogram::default(),
            tun_written: LiveHistogram::default(),
        }
    }
}

impl Stats {
    pub(crate) fn new(gates: Offloads, workers: usize) -> Self {
        Self {
            workers: (0..workers).map(|_| CachePadded::default()).collect(),
            control: CachePadded::default(),
            gates: EnabledOffloads {
                udp_gso: AtomicBool::new(gates.udp_gso),
                udp_gro: AtomicBool::new(gates.udp_gro),
                tun_tso: AtomicBool::new(gates.tun_tso),
                tun_uso: AtomicBool::new(gates.tun_uso),
                downgrades: array::from_fn(|_| AtomicU64::new(0)),
            },
        }
    }

    /// Attributes the further counts of this thread to the worker with this index.
    pub(crate) fn count_as(&self, worker: usize) {
        WORKER.set(worker);
        if let Some(counters) = self.workers.get(worker) {
            counters.thread.store(adit_linux::clock::thread_id(), Relaxed);
        }
    }

    /// Returns the counters of this thread.
    #[inline]
    pub(crate) fn own(&self) -> &Counters {
        self.workers.get(WORKER.get()).unwrap_or(&self.control)
    }

    /// Counts one dropped packet.
    pub(crate) fn drop(&self, reason: DropReason) {
        self.drop_many(reason, 1);
    }

    /// Counts dropped packets.
    pub(crate) fn drop_many(&self, reason: DropReason, packets: usize) {
        if let Some(counter) = self.own().drops.get(reason as usize) {
            counter.fetch_add(packets as u64, Relaxed);
        }
    }

    pub(crate) fn totals(&self) -> Totals {
        let mut totals = Totals {
            drops: DropReason::ALL.iter().map(|reason| (*reason, 0)).collect(),
            offloads: Offloads {
                udp_gso: self.gates.udp_gso.load(Relaxed),
                udp_gro: self.gates.udp_gro.load(Relaxed),
                tun_tso: self.gates.tun_tso.load(Relaxed),
                tun_uso: self.gates.tun_uso.load(Relaxed),
            },
            downgrades: DOWNGRADES
                .iter()
                .zip(&self.gates.downgrades)
                .map(|((offload, reason), count)| (*offload, *reason, count.load(Relaxed)))
                .collect(),
            busy: self.workers.iter().map(|worker| worker.busy()).collect(),
            ..Totals::default()
        };
        for counters in self.workers.iter().chain([&self.control]) {
            counters.add_to(&mut totals);
        }
        totals
    }
}

impl Counters {
    /// Returns the CPU time of the thread.
    fn busy(&self) -> Duration {
        adit_linux::clock::thread_cpu(self.thread.load(Relaxed)).unwrap_or_default()
    }

    fn add_to(&self, totals: &mut Totals) {
        for ((_, sum), live) in totals.drops.iter_mut().zip(&self.drops) {
            *sum = sum.wrapping_add(live.load(Relaxed));
        }
        self.sent.add_to(&mut totals.sent);
        self.spliced.add_to(&mut totals.spliced);
        self.received.add_to(&mut totals.received);
        self.tun_read.add_to(&mut totals.tun_read);
        self.tun_written.add_to(&mut totals.tun_written);
    }
}

impl Totals {
    /// Returns the number of packets that were dropped for a reason.
    pub fn dropped(&self, reason: DropReason) -> u64 {
        self.drops.iter().find(|(r, _)| *r == reason).map_or(0, |(_, count)| *count)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_meaning_beyond_its_link_is_no_forgery() {
        let reason =
            |ip: &str| DropReason::of_unowned(ip.parse().expect("ip"), DropReason::SourceSpoofed);
        for local in ["fe80::1", "ff02::2", "224.0.0.251", "169.254.1.1"] {
            assert_eq!(reason(local), DropReason::LocalScope, "{local}");
        }
        for other in ["fd00::1", "2001:db8::1", "10.0.0.1", "192.0.2.1"] {
            assert_eq!(reason(other), DropReason::SourceSpoofed, "{other}");
        }
    }

    #[test]
    fn batches_fall_into_the_bucket_of_their_label() {
        let live = LiveHistogram::default();
        let read = || {
            let mut sum = Histogram::default();
            live.add_to(&mut sum);
            sum
        };
        for (packets, bucket) in
            [(1, 0), (2, 1), (3, 2), (4, 2), (5, 3), (64, 6), (65, 7), (999, 7)]
        {
            let before = read().buckets[bucket];
            live.record(packets);
            assert_eq!(read().buckets[bucket], before + 1, "{packets}");
        }
        live.record(0);
        assert_eq!((read().batches, read().packets), (8, 1143));
    }

    #[test]
    fn each_reason_has_its_counter() {
        let stats = Stats::new(Offloads::ALL, 1);
        for (i, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(*reason as usize, i);
            stats.drop_many(*reason, i + 1);
        }
        for (i, reason) in DropReason::ALL.iter().enumerate() {
            assert_eq!(stats.totals().dropped(*reason), i as u64 + 1);
        }
    }

    #[test]
    fn a_downgrade_counts_once_however_many_workers_notice_it() {
        let stats = Stats::new(Offloads::ALL, 1);
        for why in [Downgrade::GsoInvalid, Downgrade::GsoDevice, Downgrade::UsoRefused] {
            stats.gates.downgrade(why);
        }
        let totals = stats.totals();
        let counts = totals.downgrades.iter().map(|(_, _, count)| *count).collect::<Vec<_>>();
        assert_eq!(counts, [0, 1, 0, 1]);
        let Offloads { udp_gso, udp_gro, tun_tso, tun_uso } = totals.offloads;
        assert_eq!([udp_gso, udp_gro, tun_tso, tun_uso], [false, true, true, false]);
    }

    #[test]
    fn a_worker_is_as_busy_as_its_thread() {
        let stats = Stats::new(Offloads::ALL, 2);
        stats.count_as(1);
        std::hint::black_box((0..100_000).sum::<u64>());
        let busy = stats.totals().busy;
        assert!(busy[0].is_zero() && !busy[1].is_zero(), "{busy:?}");
    }

    #[test]
    fn what_each_thread_counted_is_added_up() {
        let stats = Stats::new(Offloads::ALL, 3);
        std::thread::scope(|scope| {
            // The last index belongs to no worker of this plane.
            for worker in 0..4 {
                let stats = &stats;
                scope.spawn(move || {
                    stats.count_as(worker);
                    stats.own().sent.record(10 + worker);
                    stats.drop_many(DropReason::NoRoute, 1 << worker);
                });
            }
        });
        stats.own().sent.record(1);
        stats.drop(DropReason::NoRoute);
        let each = stats.workers.iter().chain([&stats.control]);
        let packets = |counters: &CachePadded<Counters>| counters.sent.packets.load(Relaxed);
        assert_eq!(each.map(packets).collect::<Vec<_>>(), [10, 11, 12, 13 + 1]);
        let totals = stats.totals();
        assert_eq!((totals.sent.batches, totals.sent.packets), (5, 47));
        assert_eq!(totals.dropped(DropReason::NoRoute), 16);
    }
}
