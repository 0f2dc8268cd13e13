//! The plain types of OpenVPN's data format, on which the engines and the data plane agree for each peer and key.

use std::fmt;

use adit_crypto::{BlockCipher, Cipher, Digest, DirectionKey};
use adit_engine::DataFormat;
use serde::{Deserialize, Serialize};

use crate::negotiate::DataCipher;

/// OpenVPN's data format, as the parameter of types that are generic over a data format.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum OpenVpn {}

impl DataFormat for OpenVpn {
    type Layout = PacketLayout;
    type Key = DataKey;
    type Violation = FramingError;

    fn key_id(key: &DataKey) -> u8 {
        key.key_id
    }
}

/// A command to OpenVPN's data plane.
pub type Command = adit_engine::Command<OpenVpn>;
/// The settings of a peer in OpenVPN's data plane.
pub type PeerSpec = adit_engine::command::PeerSpec<OpenVpn>;
/// A report of OpenVPN's data plane.
pub type Notice = adit_engine::Notice<OpenVpn>;
/// An input of one of OpenVPN's engines.
pub type Input<'a> = adit_engine::Input<'a, OpenVpn>;
/// An output of one of OpenVPN's engines.
pub type Output<E> = adit_engine::Output<E, OpenVpn>;
/// The outputs of one of OpenVPN's engines.
pub type Outbox<E> = adit_engine::Outbox<E, OpenVpn>;

/// The layout of a peer's packets.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct PacketLayout {
    /// The peer-id written into packets to the peer; `None` sends DATA_V1, which has none.
    pub wire_id: Option<u32>,
    /// The compression framing around each inner packet.
    pub framing: Framing,
    /// The longest packet to decompress to. With `None`, compressed packets are dropped.
    pub decompress: Option<u16>,
    /// The largest encapsulated packet, fragments included (`fragment`, datagrams only). With `None`, packets carry no
    /// fragment header.
    pub fragment: Option<u16>,
}

impl fmt::Display for PacketLayout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let id = self.wire_id.map_or("none".to_owned(), |id| id.to_string());
        let fragment = self.fragment.map_or("none".to_owned(), |size| format!("{size} bytes"));
        write!(f, "peer-id {id}, framing {:?}, fragments {fragment}", self.framing)
    }
}

/// The compression framing of each packet. A peer that requested a compression header gets the "not compressed" form.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq, Hash, Serialize, Deserialize)]
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

/// A data channel key to install.
#[derive(Debug)]
pub struct DataKey {
    /// The 3-bit id in each packet's first byte.
    pub key_id: u8,
    /// The packet format and its algorithms.
    pub protection: Protection,
    /// The key material that seals the packets to the peer.
    pub seal: DirectionKey,
    /// The key material that opens the packets of the peer.
    pub open: DirectionKey,
    /// When to report [`adit_engine::Notice::KeyNearLimit`].
    pub limits: KeyLimits,
}

/// Never prints the key itself.
impl fmt::Display for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let format = match self.protection {
            Protection::Aead(_) => "AEAD",
            Protection::Epoch(_) => "AEAD with epochs",
            Protection::Block(_) => "CBC and HMAC",
            Protection::Static(_) => "CBC and HMAC, static key",
        };
        let limit = |limit: u64| if limit == 0 { "none".to_owned() } else { limit.to_string() };
        write!(
            f,
            "{}, format: {format}, limit of bytes: {}, of packets: {}",
            self.protection.cipher_name(),
            limit(self.limits.bytes),
            limit(self.limits.packets)
        )
    }
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
    /// CBC and HMAC without an opcode, and with a time in the packet id, for static keys (`secret`). The data plane
    /// treats every datagram from the peer's address as data.
    Static(BlockSuite),
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

/// A [`Protection`] by names, for another process.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct SavedProtection {
    cipher: DataCipher,
    epoch: bool,
    /// The digest of a block cipher.
    digest: Option<String>,
}

impl SavedProtection {
    /// Describes the protection of a session's packets.
    pub fn of(protection: Protection) -> Self {
        let digest = match protection {
            Protection::Block(suite) | Protection::Static(suite) => suite.digest,
            Protection::Aead(_) | Protection::Epoch(_) => None,
        };
        Self {
            cipher: protection.into(),
            epoch: matches!(protection, Protection::Epoch(_)),
            digest: digest.map(|digest| digest.name().to_owned()),
        }
    }

    /// Returns the protection. Packets of a block cipher without a known digest would not be authenticated, so there is
    /// none then.
    pub fn protection(&self) -> Option<Protection> {
        let digest = self.digest.as_deref().unwrap_or_default();
        let protection = self.cipher.protection(digest, self.epoch);
        let authentic = !matches!(protection, Protection::Block(suite) if suite.digest.is_none());
        authentic.then_some(protection)
    }
}

/// The algorithms of encrypt-then-MAC.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub struct BlockSuite {
    /// The cipher; `None` for `cipher none`.
    pub cipher: Option<BlockCipher>,
    /// The digest that authenticates packets; `None` for `auth none`.
    pub digest: Option<Digest>,
}

/// Soft limits of a key; reaching one reports [`adit_engine::Notice::KeyNearLimit`] once. Zero means none beyond the
/// cipher's own (2^36 blocks and packets, packet id 0xFF000000), which the data plane always enforces.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct KeyLimits {
    /// Bytes, both directions together (`reneg-bytes`).
    pub bytes: u64,
    /// Packets, both directions together (`reneg-pkts`).
    pub packets: u64,
}
