//! The verbs by which control changes the data plane, and the notices that come back.
//!
//! They are those of the kernel's own `ovpn` offload and a few more, so that a kernel backend can
//! stand behind them one day.

use std::time::Duration;

use adit_crypto::{BlockCipher, Cipher, Digest, DirectionKey};
use ipnet::IpNet;

use crate::Link;

/// A peer of the data plane: one session. Also the 24-bit peer-id that the peer writes into the
/// packets it sends to us, where the protocol has one.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Ord, PartialOrd, Hash)]
pub struct PeerId(pub u32);

/// A change of the data plane.
#[derive(Debug)]
pub enum Command {
    /// A new peer, without keys or routes yet.
    AddPeer(PeerId, PeerSpec),
    /// A new address for a peer, as the control channel learned it.
    SetLink(PeerId, Link),
    /// New keepalive times; the timeout begins anew, and what comes next is [`Notice::PeerActive`].
    SetKeepalive(PeerId, Keepalive),
    /// New inner MTU handling (pushed options arrive after the peer was added).
    SetMtu(PeerId, InnerMtu),
    /// Send the peer a message that it answers if it arrives, as an IP packet of this many bytes that
    /// nobody on the way may fragment; 0 sends none. Answered by [`Notice::ProbeResult`], unless it left and there is
    /// nothing to say of it.
    ProbePath(PeerId, u16),
    /// Tell how much has passed so far. Answered by [`Notice::Traffic`].
    ReadTraffic(PeerId),
    /// Remove a peer with its keys and routes. Answered by [`Notice::PeerGone`].
    DelPeer(PeerId),
    /// Put a key into a slot. Both slots decrypt; only the primary encrypts.
    InstallKey(PeerId, KeySlot, Box<DataKey>),
    /// Exchange primary and secondary: from now on packets leave under the newer key.
    SwapKeys(PeerId),
    /// Forget a key.
    DelKey(PeerId, KeySlot),
    /// The prefixes behind a peer: destinations that are sent to it, and the only sources that are
    /// accepted from it. Replaces the former set.
    SetRoutes(PeerId, Vec<IpNet>),
    /// Send a message on the data channel (an exit notice, say), under the primary key.
    SendData(PeerId, Vec<u8>),
    /// Control packets from this address belong to a peer that has proved its address; they no
    /// longer share a queue with strangers.
    AdmitLink(Link),
    /// The address is a stranger's again.
    DismissLink(Link),
}

/// What the data plane must know of a peer.
#[derive(Clone, Debug)]
pub struct PeerSpec {
    /// Where its packets go.
    pub link: Link,
    /// The peer-id written into packets to it; `None` sends DATA_V1, which has none.
    pub wire_id: Option<u32>,
    /// Whether it may move to another address after a packet that authenticates.
    pub float: bool,
    /// How many bytes of compression framing stand before each inner packet.
    pub framing: Framing,
    /// The longest packet that may come of a compressed one; `None`: compressed packets are dropped.
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
    /// A peer of which nothing is configured: it may move, and its packets are of the plainest form.
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

/// Keepalive of one peer; zero switches a timer off.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Keepalive {
    /// Ping after this long without sending.
    pub interval: Duration,
    /// Report [`Notice::PeerSilent`] after this long without hearing anything authentic.
    pub timeout: Duration,
}

/// `inactive`: end a session in which little passes.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Inactive {
    /// So long without enough.
    pub after: Duration,
    /// Enough: so many bytes of the tunnel's packets, both directions together; 0: any packet.
    pub bytes: u64,
}

/// Size limits inside the tunnel.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct InnerMtu {
    /// Largest TCP segment to let through SYNs unchanged, IPv4 (0: leave SYNs alone).
    pub mss4: u16,
    /// The same for IPv6.
    pub mss6: u16,
    /// The largest inner packet that the path carries in one piece, where it was found to be narrower
    /// than the first link: whoever sends larger ones is told by ICMP. 0: nobody is told.
    pub largest: u16,
}

/// What is wrong with a packet inside the encryption.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum FramingError {
    /// It is compressed: we never decompress.
    Compressed,
    /// It has not the compression framing that was agreed on.
    Framing,
    /// It has not the fragment header that was agreed on.
    Fragment,
}

/// What came of [`Command::ProbePath`].
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct ProbeResult {
    /// Bytes of the IP packet that left; 0: none did.
    pub size: u16,
    /// The largest IP packet to the peer in the kernel's opinion, from the device and from ICMP (which
    /// anybody on the path can forge); 0: it has none, or was not asked.
    pub kernel: u16,
}

/// The two places for keys.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum KeySlot {
    /// Encrypts and decrypts.
    Primary,
    /// Only decrypts: the next key before it is used, or the last one after.
    Secondary,
}

/// A data channel key as it is installed.
#[derive(Debug)]
pub struct DataKey {
    /// The 3-bit id in each packet's first byte.
    pub key_id: u8,
    /// The packet format and its algorithms.
    pub protection: Protection,
    /// For packets we send.
    pub seal: DirectionKey,
    /// For packets we receive.
    pub open: DirectionKey,
    /// When to ask for another key.
    pub limits: KeyLimits,
}

/// How the data packets under one key are laid out and protected.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub enum Protection {
    /// DATA_V1 or DATA_V2 with an AEAD and a 32-bit packet id before the tag: OpenVPN 2.4 and later.
    Aead(Cipher),
    /// DATA_V2 with an AEAD, a 64-bit packet id that names an epoch, and the tag at the end; the
    /// keys are derived anew for each epoch: OpenVPN 2.7.
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
    /// What encrypts; `None` for `cipher none`.
    pub cipher: Option<BlockCipher>,
    /// What authenticates; `None` for `auth none`.
    pub digest: Option<Digest>,
}

impl Protection {
    /// The name of the cipher, as OpenVPN prints it.
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

/// What the data plane reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Notice {
    /// An authentic message on the data channel that is not a packet or a ping (OCC).
    InBand(PeerId, Vec<u8>),
    /// An authentic, newest packet came from another address; the plane answers there from now on.
    Floated(PeerId, Link),
    /// The first authentic packet under a key.
    KeyFirstUse(PeerId, u8),
    /// A key came close to a limit.
    KeyNearLimit(PeerId, u8),
    /// Nothing authentic came for the keepalive timeout.
    PeerSilent(PeerId),
    /// The first authentic packet since [`Notice::PeerSilent`] or [`Command::SetKeepalive`].
    PeerActive(PeerId),
    /// What a client sent there cannot arrive, says the other host or a router (ICMP): the errno,
    /// `ECONNREFUSED` where nothing listens. Anybody on the path can forge it: good for advice, not
    /// for decisions.
    Unreachable(Link, i32),
    /// A packet of the peer was compressed, or framed in another way than agreed. Said once per peer.
    FramingError(PeerId, FramingError),
    /// A probe of the path was sent, or could not be.
    ProbeResult(PeerId, ProbeResult),
    /// How much has passed so far, asked for by [`Command::ReadTraffic`].
    Traffic(PeerId, Traffic),
    /// The peer is removed; its final counters.
    PeerGone(PeerId, Counters),
}

/// What passed between us and one peer, both directions together.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Data packets.
    pub packets: u64,
    /// Bytes of these on the wire (UDP payload).
    pub bytes: u64,
    /// Packets among them that were no packets of the tunnel: pings and messages.
    pub in_band_packets: u64,
    /// What these had inside the encryption, bytes.
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

    /// Both together.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            rx_packets: self.rx_packets.saturating_add(other.rx_packets),
            rx_bytes: self.rx_bytes.saturating_add(other.rx_bytes),
            tx_packets: self.tx_packets.saturating_add(other.tx_packets),
            tx_bytes: self.tx_bytes.saturating_add(other.tx_bytes),
        }
    }

    /// What came since these were `earlier`.
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
