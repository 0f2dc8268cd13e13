//! The commands of the control plane that change the data plane, and the data plane's notices.
//!
//! The commands are those of the kernel's own `ovpn` offload plus a few more, so that the kernel can serve as a data
//! plane one day.

use std::fmt::{self, Debug, Display, Formatter};
use std::net::IpAddr;
use std::time::Duration;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::{Link, Rate, VlanId};

/// A peer of the data plane: one session, or one channel of it. If the protocol has a 24-bit peer-id, the peer writes this number into the
/// packets that it sends to this end.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct PeerId(pub u32);

/// The plain types of a data format, on which a protocol's engine and its data plane agree and which drivers pass
/// through.
///
/// A protocol implements this trait for a marker type, which has no values. The supertraits let the types that are
/// generic over the marker derive theirs.
pub trait DataFormat: Copy + Debug + Eq + 'static {
    /// The layout of a peer's packets. The default is the format without options.
    type Layout: Clone + Debug + Default + Display + Send + Sync;
    /// A key to install. Its `Display` text, which is for the log, does not contain the key itself.
    type Key: Debug + Display + Send;
    /// A violation of the agreed layout inside the encryption.
    type Violation: Copy + Debug + Eq + Send;

    /// Returns the id of a key in packets and notices.
    fn key_id(key: &Self::Key) -> u8;
}

/// The maximum number of channels to one remote end ([`PeerSpec::channel_of`]).
pub const MAX_CHANNELS: usize = 16;

/// A command to the data plane.
#[derive(Debug)]
pub enum Command<F: DataFormat> {
    /// Adds a peer without keys and routes. Answered by [`Notice::PeerGone`] if its id is too high, or if the remote end has too many
    /// channels.
    AddPeer(PeerId, PeerSpec<F>),
    /// Sets a peer's address, as learned from the control channel.
    SetLink(PeerId, Link),
    /// Sends a peer's packets to the current address of another peer, which relays them, and accepts packets from that
    /// address.
    SetRelay(PeerId, PeerId),
    /// Sets the keepalive times and restarts the timeout. The next authentic packet is reported by [`Notice::PeerActive`].
    SetKeepalive(PeerId, Keepalive),
    /// Sets the inner MTU handling, because pushed options arrive after the peer was added.
    SetMtu(PeerId, InnerMtu),
    /// Sets the limits on a peer's speed. They begin with full buckets only when the peer is added.
    SetRates(PeerId, PeerRates),
    /// Sends an MTU probe: an IP packet of exactly this size with DF set (0: none). Answered by [`Notice::ProbeResult`] if
    /// the probe could not be sent or the kernel knows a path MTU.
    ProbePath(PeerId, u16),
    /// Reads a peer's traffic counters. Answered by [`Notice::Traffic`].
    ReadTraffic(PeerId),
    /// Removes a peer with its keys and routes. Answered by [`Notice::PeerGone`].
    DelPeer(PeerId),
    /// Installs a key in a slot. Both slots decrypt; only the primary one encrypts.
    InstallKey(PeerId, KeySlot, Box<F::Key>),
    /// Swaps primary and secondary: packets sent from now on use the newer key.
    SwapKeys(PeerId),
    /// Deletes a key.
    DelKey(PeerId, KeySlot),
    /// Replaces the prefixes behind a peer: the destinations sent to it, and the only sources accepted from it.
    SetRoutes(PeerId, Vec<IpNet>),
    /// Allows or refuses a station behind a peer, in response to [`Notice::StationHeard`].
    AllowStation(PeerId, [u8; 6], bool),
    /// Adds a splice, or replaces the one with the same id. If there is no space for it, its packets are dropped and
    /// counted.
    AddSplice(Splice),
    /// Removes a splice. The splices from and to a peer are removed with the peer.
    DelSplice(SpliceId),
    /// Limits the bytes of all splices together; `None` removes the limit.
    LimitSplices(Option<Rate>),
    /// Sends an in-band message, such as an exit notice, under the primary key.
    SendData(PeerId, Vec<u8>),
    /// Marks a link as validated: its control packets no longer share a queue with those of unauthenticated senders.
    AdmitLink(Link),
    /// Marks a link as not validated.
    DismissLink(Link),
}

/// The settings of a peer in the data plane.
#[derive(Clone, Debug)]
pub struct PeerSpec<F: DataFormat> {
    /// The link on which packets are sent to it.
    pub link: Link,
    /// The layout of its packets.
    pub layout: F::Layout,
    /// The treatment of its packets from other addresses.
    pub float: Float,
    /// Ping and timeout.
    pub keepalive: Keepalive,
    /// Size limits inside the tunnel.
    pub mtu: InnerMtu,
    /// The limits on its speed.
    pub rates: PeerRates,
    /// Replay window in packets (at least 1).
    pub replay_window: u32,
    /// If this peer is a further channel to a remote end: the end's first channel. All channels share the first one's routes and address,
    /// and each flow takes one of them. At most [`MAX_CHANNELS`] in all.
    pub channel_of: Option<PeerId>,
    /// The VLAN of its frames, if the plane sorts frames into VLANs.
    pub vlan: Option<VlanId>,
}

impl<F: DataFormat> PeerSpec<F> {
    /// Creates the settings of a peer without options. It may float, and its packets have the format's default layout.
    #[must_use]
    pub fn plain(link: Link) -> Self {
        Self {
            link,
            layout: F::Layout::default(),
            float: Float::Follow,
            keepalive: Keepalive::default(),
            mtu: InnerMtu::default(),
            rates: PeerRates::default(),
            replay_window: 64,
            channel_of: None,
            vlan: None,
        }
    }
}

/// The treatment of packets from an address that is not the peer's own.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub enum Float {
    /// They are dropped.
    #[default]
    Refuse,
    /// Authentic ones are accepted, and the peer keeps its address: it has several paths, and the control plane chooses. A relay's stream
    /// may be one of these paths. So even on a stream, packets that fail authentication or are repeated are dropped without ending the
    /// stream, and the replay window is as for datagrams.
    Accept,
    /// The newest authentic one moves the peer to its address.
    Follow,
}

impl Float {
    /// Returns [`Float::Follow`] if the peer may move, and otherwise [`Float::Refuse`].
    pub const fn if_allowed(may_move: bool) -> Self {
        if may_move { Self::Follow } else { Self::Refuse }
    }
}

/// An order to forward sealed packets from one peer to another, unread, as the relay of a session between the two.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct Splice {
    /// The packets to forward.
    pub id: SpliceId,
    /// The peer to whose address the packets are sent.
    pub to: PeerId,
    /// The packets are not sent on: they belong to the session with `to`, which is reached through a relay. Without its key they are control
    /// packets. Only for labels of [`SpliceLabel::Nodes`].
    pub ends_here: bool,
    /// The rate, in bytes, above which packets are dropped, or `None` for no limit.
    pub limit: Option<Rate>,
    /// The lengths of the packets to forward. To others, the splice does not apply.
    pub lengths: SplicedLengths,
}

impl Splice {
    /// Creates a splice that forwards all packets.
    pub const fn new(id: SpliceId, to: PeerId) -> Self {
        let lengths = SplicedLengths { shortest: 0, longest: u16::MAX };
        Self { id, to, ends_here: false, limit: None, lengths }
    }
}

/// The lengths of the packets that a [`Splice`] forwards, in bytes.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct SplicedLengths {
    /// The length of the shortest.
    pub shortest: u16,
    /// The length of the longest.
    pub longest: u16,
}

impl SplicedLengths {
    /// Returns whether packets between these two lengths are forwarded.
    pub fn contain(&self, shortest: usize, longest: usize) -> bool {
        usize::from(self.shortest) <= shortest && longest <= usize::from(self.longest)
    }
}

/// Identifies the packets of a [`Splice`].
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub struct SpliceId {
    /// The peer from whose address the packets arrive.
    pub from: PeerId,
    /// The session that the packets belong to.
    pub label: SpliceLabel,
}

/// The bytes in the header of sealed packets that tell their session from others.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum SpliceLabel {
    /// A peer-id, chosen by the end that receives the packets.
    PeerId(u32),
    /// The identifiers of the receiver and of the sender, of 6 bytes each.
    Nodes([u8; 12]),
}

impl Display for SpliceLabel {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        match self {
            Self::PeerId(id) => write!(f, "id {id}"),
            Self::Nodes(ids) => {
                f.write_str("ids ")?;
                ids.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }
    }
}

/// The keepalive times of a peer. Zero disables a timer.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Keepalive {
    /// Ping after this long without sending.
    pub interval: Duration,
    /// Report [`Notice::PeerSilent`] after this long without an authentic packet.
    pub timeout: Duration,
}

/// Size limits inside the tunnel.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct InnerMtu {
    /// The largest MSS that an IPv4 SYN may announce; larger values are lowered to it (0: leaves SYNs unchanged).
    pub mss4: u16,
    /// The same for IPv6.
    pub mss6: u16,
    /// The largest inner packet that the path carries unfragmented, if it was found to be smaller than the first link's
    /// MTU. Senders of larger packets get an ICMP error. With 0, no errors are sent.
    pub largest: u16,
}

/// The limits on a peer's speed, in bytes of the packets inside the tunnel. Packets beyond a limit are dropped; pings and other in-band
/// messages always pass. The default has no limits.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Serialize, Deserialize)]
pub struct PeerRates {
    /// The limit on packets from the peer.
    pub received: Option<Rate>,
    /// The limit on packets to the peer.
    pub sent: Option<Rate>,
}

/// The result of [`Command::ProbePath`].
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct ProbeResult {
    /// Size of the IP packet that was sent. 0 if no packet was sent.
    pub size: u16,
    /// The kernel's path MTU to the peer, from the device and from ICMP, which any host on the path can forge. 0: unknown,
    /// or not queried.
    pub kernel: u16,
}

/// The two key slots of a peer.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum KeySlot {
    /// Encrypts and decrypts.
    Primary,
    /// Only decrypts: the next key before it is used, or the previous key afterwards.
    Secondary,
}

/// A report of the data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice<F: DataFormat> {
    /// An authentic in-band message other than a ping.
    InBand(PeerId, Vec<u8>),
    /// The newest authentic packet came from another address. The data plane sends there from now on.
    Floated(PeerId, Link),
    /// The first authentic packet under a key.
    KeyFirstUse(PeerId, u8),
    /// A key approached a limit.
    KeyNearLimit(PeerId, u8),
    /// No authentic packet arrived within the keepalive timeout.
    PeerSilent(PeerId),
    /// The first authentic packet since [`Notice::PeerSilent`] or [`Command::SetKeepalive`].
    PeerActive(PeerId),
    /// ICMP reported that a client's packets cannot reach this address, with the errno (`ECONNREFUSED` if nothing
    /// listens). Any host on the path can forge this, so it may inform the user but not decide anything.
    Unreachable(Link, i32),
    /// An authentic packet did not have the agreed layout. Reported once per peer.
    Violation(PeerId, F::Violation),
    /// The result of an MTU probe.
    ProbeResult(PeerId, ProbeResult),
    /// The traffic so far, requested by [`Command::ReadTraffic`].
    Traffic(PeerId, Traffic),
    /// The peer was removed. These are its final counters.
    PeerGone(PeerId, Counters),
    /// A packet from the tunnel device, or from a client of a mesh node, had a destination without a route. Reported about once a second
    /// for each destination, if the plane was asked to.
    Unrouted(IpAddr),
    /// A peer sent a frame of a station that needs [`Command::AllowStation`]. Reported once until the answer, and only if
    /// the plane was asked to.
    StationHeard(PeerId, [u8; 6]),
    /// A station that was allowed has been silent for too long, and is forgotten.
    StationForgotten(PeerId, [u8; 6]),
}

impl<F: DataFormat> Notice<F> {
    /// Returns the peer that the notice is about, if it is about one.
    pub fn peer(&self) -> Option<PeerId> {
        match *self {
            Self::InBand(peer, _)
            | Self::Floated(peer, _)
            | Self::KeyFirstUse(peer, _)
            | Self::KeyNearLimit(peer, _)
            | Self::PeerSilent(peer)
            | Self::PeerActive(peer)
            | Self::Violation(peer, _)
            | Self::ProbeResult(peer, _)
            | Self::Traffic(peer, _)
            | Self::StationHeard(peer, _)
            | Self::StationForgotten(peer, _)
            | Self::PeerGone(peer, _) => Some(peer),
            Self::Unreachable(..) | Self::Unrouted(_) => None,
        }
    }
}

/// The traffic of one peer, both directions together.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Data packets.
    pub packets: u64,
    /// Bytes of these on the wire (UDP payload).
    pub bytes: u64,
    /// The in-band messages among them: pings and others.
    pub in_band_packets: u64,
    /// Bytes of these inside the encryption.
    pub in_band_bytes: u64,
}

/// Traffic of one peer, in one channel or in both.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counters {
    /// Packets received and authenticated.
    pub rx_packets: u64,
    /// Bytes of these on the wire (UDP payload).
    pub rx_bytes: u64,
    /// Packets sent.
    pub tx_packets: u64,
    /// Bytes of these on the wire (UDP payload).
    pub tx_bytes: u64,
}

impl Counters {
    /// Counts a received packet.
    pub fn received(&mut self, bytes: usize) {
        self.rx_packets = self.rx_packets.saturating_add(1);
        self.rx_bytes = self.rx_bytes.saturating_add(bytes as u64);
    }

    /// Counts a sent packet.
    pub fn sent(&mut self, bytes: usize) {
        self.tx_packets = self.tx_packets.saturating_add(1);
        self.tx_bytes = self.tx_bytes.saturating_add(bytes as u64);
    }

    /// Adds two sets of counters.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            rx_packets: self.rx_packets.saturating_add(other.rx_packets),
            rx_bytes: self.rx_bytes.saturating_add(other.rx_bytes),
            tx_packets: self.tx_packets.saturating_add(other.tx_packets),
            tx_bytes: self.tx_bytes.saturating_add(other.tx_bytes),
        }
    }

    /// Returns the difference to an earlier state.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self {
            rx_packets: self.rx_packets.saturating_sub(earlier.rx_packets),
            rx_bytes: self.rx_bytes.saturating_sub(earlier.rx_bytes),
            tx_packets: self.tx_packets.saturating_sub(earlier.tx_packets),
            tx_bytes: self.tx_bytes.saturating_sub(earlier.tx_bytes),
        }
    }
}
