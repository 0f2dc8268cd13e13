//! The commands by which the control plane changes the data plane, and the notices that come back.
//!
//! The set is that of the kernel's own `ovpn` offload and a few more, so that the kernel can serve as a data plane one day.

use std::time::Duration;

use adit_crypto::{BlockCipher, Cipher, Digest, DirectionKey};
use ipnet::IpNet;

use crate::Link;

/// A peer of the data plane: one session. Also the 24-bit peer-id that the peer writes into the
/// packets it sends to us, where the protocol has one.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct PeerId(pub u32);

/// A command to the data plane.
#[derive(Debug)]
pub enum Command {
    /// Adds a peer without keys and routes.
    AddPeer(PeerId, PeerSpec),
    /// Sets a peer's address, as learned from the control channel.
    SetLink(PeerId, Link),
    /// Sets the keepalive times and restarts the timeout. The next authentic packet is reported by [`Notice::PeerActive`].
    SetKeepalive(PeerId, Keepalive),
    /// Sets the inner MTU handling. Pushed options arrive after the peer was added.
    SetMtu(PeerId, InnerMtu),
    /// Sends an MTU probe: an IP packet of exactly this size with DF set (0: none). Answered by [`Notice::ProbeResult`] if
    /// the probe could not be sent or the kernel knows a path MTU.
    ProbePath(PeerId, u16),
    /// Reads a peer's traffic counters. Answered by [`Notice::Traffic`].
    ReadTraffic(PeerId),
    /// Removes a peer with its keys and routes. Answered by [`Notice::PeerGone`].
    DelPeer(PeerId),
    /// Installs a key in a slot. Both slots decrypt; only the primary one encrypts.
    InstallKey(PeerId, KeySlot, Box<DataKey>),
    /// Swaps primary and secondary: packets sent from now on use the newer key.
    SwapKeys(PeerId),
    /// Deletes a key.
    DelKey(PeerId, KeySlot),
    /// Replaces the prefixes behind a peer: the destinations sent to it, and the only sources accepted from it.
    SetRoutes(PeerId, Vec<IpNet>),
    /// Sends an in-band message, such as an exit notice, under the primary key.
    SendData(PeerId, Vec<u8>),
    /// Marks a link as validated: its control packets no longer share a queue with those of unauthenticated senders.
    AdmitLink(Link),
    /// Marks a link as not validated.
    DismissLink(Link),
}

/// The settings of a peer in the data plane.
#[derive(Clone, Debug)]
pub struct PeerSpec {
    /// The link that packets to it are sent on.
    pub link: Link,
    /// The peer-id written into packets to it; `None` sends DATA_V1, which has none.
    pub wire_id: Option<u32>,
    /// Whether it may move to another address after a packet that authenticates.
    pub float: bool,
    /// The compression framing around each inner packet.
    pub framing: Framing,
    /// The longest packet to decompress to. `None`: compressed packets are dropped.
    pub decompress: Option<u16>,
    /// The largest encapsulated packet, fragments included; `None`: packets carry no fragment header
    /// (`fragment`, datagrams only).
    pub fragment: Option<u16>,
    /// Ping and timeout.
    pub keepalive: Keepalive,
    /// Size limits inside the tunnel.
    pub mtu: InnerMtu,
    /// Replay window in packets (at least 1).
    pub replay_window: u32,
}

impl PeerSpec {
    /// Creates the settings of a peer without options: it may float, and its packets are neither framed nor fragmented.
    #[must_use]
    pub fn plain(link: Link) -> Self {
        Self {
            link,
            wire_id: None,
            float: true,
            framing: Framing::default(),
            decompress: None,
            fragment: None,
            keepalive: Keepalive::default(),
            mtu: InnerMtu::default(),
            replay_window: 64,
        }
    }
}

/// Compression stubs: a peer that asked for a compression header gets the "not compressed" form.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Hash)]
pub enum Framing {
    /// Nothing before the packet.
    #[default]
    None,
    /// `comp-lzo no`: one byte FA.
    LzoStub,
    /// `compress`, `compress stub`: FB replaces the first byte, which moves to the end.
    SwapStub,
    /// `compress stub-v2`: nothing, but a leading 0x50 is escaped as 50 00.
    StubV2,
}

/// The keepalive times of a peer. Zero disables a timer.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Keepalive {
    /// Ping after this long without sending.
    pub interval: Duration,
    /// Report [`Notice::PeerSilent`] after this long without an authentic packet.
    pub timeout: Duration,
}

/// `inactive`: ends a session with little traffic.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Inactive {
    /// The time in which there must be enough traffic.
    pub after: Duration,
    /// Bytes of inner packets that are enough, both directions together. 0: any packet.
    pub bytes: u64,
}

/// Size limits inside the tunnel.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct InnerMtu {
    /// Largest TCP segment to let through SYNs unchanged, IPv4 (0: leave SYNs alone).
    pub mss4: u16,
    /// The same for IPv6.
    pub mss6: u16,
    /// The largest inner packet that the path carries unfragmented, where it was found to be smaller than the first link's
    /// MTU. Senders of larger packets get an ICMP error. 0: no errors are sent.
    pub largest: u16,
}

/// A violation of the agreed framing inside the encryption.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum FramingError {
    /// The packet is compressed, and decompression was not agreed.
    Compressed,
    /// The compression framing is not the agreed one.
    Framing,
    /// The fragment header is not the agreed one.
    Fragment,
}

/// The result of [`Command::ProbePath`].
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct ProbeResult {
    /// Size of the IP packet that was sent. 0: none was.
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
    /// Only decrypts: the next key before it is used, or the last one after.
    Secondary,
}

/// A data channel key to install.
#[derive(Debug)]
pub struct DataKey {
    /// The 3-bit id in each packet's first byte.
    pub key_id: u8,
    /// The packet format and its algorithms.
    pub protection: Protection,
    /// The id in packets that we send.
    pub seal: DirectionKey,
    /// The id in packets that we receive.
    pub open: DirectionKey,
    /// When to report [`Notice::KeyNearLimit`].
    pub limits: KeyLimits,
}

/// How the data packets under one key are laid out and protected.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum Protection {
    /// DATA_V1 or DATA_V2 with an AEAD and a 32-bit packet id before the tag: OpenVPN 2.4 and later.
    Aead(Cipher),
    /// DATA_V2 with an AEAD, a 64-bit packet id that names an epoch, and the tag at the end. Each epoch derives its own
    /// keys: OpenVPN 2.7.
    Epoch(Cipher),
    /// DATA_V1 or DATA_V2 with CBC and HMAC: peers without AEAD.
    Block(BlockSuite),
    /// CBC and HMAC without an opcode, the packet id with a time: static keys (`secret`). The plane
    /// takes every datagram from the peer's address as data.
    Static(BlockSuite),
}

/// Encrypt-then-MAC.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub struct BlockSuite {
    /// The cipher; `None` for `cipher none`.
    pub cipher: Option<BlockCipher>,
    /// The digest that authenticates packets; `None` for `auth none`.
    pub digest: Option<Digest>,
}

impl Protection {
    /// Returns the name of the cipher, as OpenVPN prints it.
    pub const fn cipher_name(self) -> &'static str {
        match self {
            Self::Aead(cipher) | Self::Epoch(cipher) => cipher.name(),
            Self::Block(BlockSuite { cipher, .. }) | Self::Static(BlockSuite { cipher, .. }) => {
                match cipher {
                    Some(cipher) => cipher.name(),
                    None => "none",
                }
            }
        }
    }
}

/// Soft limits of a key; reaching one reports [`Notice::KeyNearLimit`] once. Zero means none beyond
/// the cipher's own (2^36 blocks and packets, packet id 0xFF000000), which the plane always keeps.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct KeyLimits {
    /// Bytes, both directions together (`reneg-bytes`).
    pub bytes: u64,
    /// Packets, both directions together (`reneg-pkts`).
    pub packets: u64,
}

/// A report of the data plane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// An authentic in-band message other than a ping (OCC).
    InBand(PeerId, Vec<u8>),
    /// The newest authentic packet came from another address. The plane sends there from now on.
    Floated(PeerId, Link),
    /// The first authentic packet under a key.
    KeyFirstUse(PeerId, u8),
    /// A key came close to a limit.
    KeyNearLimit(PeerId, u8),
    /// No authentic packet arrived within the keepalive timeout.
    PeerSilent(PeerId),
    /// The first authentic packet since [`Notice::PeerSilent`] or [`Command::SetKeepalive`].
    PeerActive(PeerId),
    /// ICMP reported that a client's packets cannot arrive at this address, with the errno (`ECONNREFUSED` if nothing
    /// listens). Any host on the path can forge this, so it may inform the user but not decide anything.
    Unreachable(Link, i32),
    /// A packet was compressed or framed in another way than agreed. Reported once per peer.
    FramingError(PeerId, FramingError),
    /// The result of an MTU probe.
    ProbeResult(PeerId, ProbeResult),
    /// The traffic so far, requested by [`Command::ReadTraffic`].
    Traffic(PeerId, Traffic),
    /// The peer was removed. These are its final counters.
    PeerGone(PeerId, Counters),
}

impl Notice {
    /// Returns the peer that the notice is about, if it is about one.
    pub fn peer(&self) -> Option<PeerId> {
        match *self {
            Self::InBand(peer, _)
            | Self::Floated(peer, _)
            | Self::KeyFirstUse(peer, _)
            | Self::KeyNearLimit(peer, _)
            | Self::PeerSilent(peer)
            | Self::PeerActive(peer)
            | Self::FramingError(peer, _)
            | Self::ProbeResult(peer, _)
            | Self::Traffic(peer, _)
            | Self::PeerGone(peer, _) => Some(peer),
            Self::Unreachable(..) => None,
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
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
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
