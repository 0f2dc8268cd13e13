use std::fmt;

use serde::{Deserialize, Serialize};

use super::PacketError;

/// The bits of a packet's first byte that hold the key id.
pub const KEY_ID_MASK: u8 = 0x07;

/// The kind of a packet: the upper five bits of its first byte.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
#[repr(u8)]
pub enum Opcode {
    /// The packet that starts a rekey.
    SoftResetV1 = 3,
    /// TLS bytes.
    ControlV1 = 4,
    /// Acknowledgements only.
    AckV1 = 5,
    /// Data without a peer-id.
    DataV1 = 6,
    /// A client's first packet.
    HardResetClientV2 = 7,
    /// A server's first packet.
    HardResetServerV2 = 8,
    /// Data with a peer-id.
    DataV2 = 9,
    /// A client's first packet under tls-crypt-v2, followed by its wrapped key.
    HardResetClientV3 = 10,
    /// TLS bytes followed by the wrapped key of a tls-crypt-v2 client.
    ControlWkcV1 = 11,
}

impl Opcode {
    /// All opcodes.
    pub const ALL: [Self; 9] = [
        Self::SoftResetV1,
        Self::ControlV1,
        Self::AckV1,
        Self::DataV1,
        Self::HardResetClientV2,
        Self::HardResetServerV2,
        Self::DataV2,
        Self::HardResetClientV3,
        Self::ControlWkcV1,
    ];

    /// Returns the opcode with that number. 1 and 2 (key method 1) are refused like unknown
    /// numbers.
    pub fn from_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|opcode| opcode.number() == number)
    }

    /// Returns the opcode's number.
    pub const fn number(self) -> u8 {
        self as u8
    }

    /// Returns whether a packet with this opcode carries tunnelled packets.
    pub const fn is_data(self) -> bool {
        matches!(self, Self::DataV1 | Self::DataV2)
    }

    /// Returns whether this opcode starts a session.
    pub const fn is_hard_reset(self) -> bool {
        matches!(self, Self::HardResetClientV2 | Self::HardResetServerV2 | Self::HardResetClientV3)
    }

    /// Returns whether a tls-crypt-v2 client's wrapped key follows in clear.
    pub const fn carries_wrapped_key(self) -> bool {
        matches!(self, Self::HardResetClientV3 | Self::ControlWkcV1)
    }

    /// Returns the name in OpenVPN's logs.
    pub const fn name(self) -> &'static str {
        match self {
            Self::SoftResetV1 => "P_CONTROL_SOFT_RESET_V1",
            Self::ControlV1 => "P_CONTROL_V1",
            Self::AckV1 => "P_ACK_V1",
            Self::DataV1 => "P_DATA_V1",
            Self::HardResetClientV2 => "P_CONTROL_HARD_RESET_CLIENT_V2",
            Self::HardResetServerV2 => "P_CONTROL_HARD_RESET_SERVER_V2",
            Self::DataV2 => "P_DATA_V2",
            Self::HardResetClientV3 => "P_CONTROL_HARD_RESET_CLIENT_V3",
            Self::ControlWkcV1 => "P_CONTROL_WKC_V1",
        }
    }
}

impl fmt::Display for Opcode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The first byte of a packet.
#[derive(Copy, Clone, Debug, Eq, PartialEq, Hash)]
pub struct Header {
    /// The kind of packet.
    pub opcode: Opcode,
    /// The key id, 0 to 7.
    pub key_id: u8,
}

impl Header {
    /// Parses a packet's first byte.
    ///
    /// # Errors
    /// Fails for an unknown opcode, and for a hard reset with a key id other than 0.
    pub fn parse(byte: u8) -> Result<Self, PacketError> {
        let number = byte >> 3;
        let opcode = Opcode::from_number(number).ok_or(PacketError::BadOpcode(number))?;
        let key_id = byte & KEY_ID_MASK;
        if opcode.is_hard_reset() && key_id != 0 {
            return Err(PacketError::BadKeyId(key_id));
        }
        Ok(Self { opcode, key_id })
    }

    /// Returns the byte that this header encodes to.
    pub const fn byte(self) -> u8 {
        self.opcode.number() << 3 | (self.key_id & KEY_ID_MASK)
    }
}

/// The id of one end of a session, which that end chooses at random and which is never zero.
#[derive(Copy, Clone, Default, Eq, PartialEq, Ord, PartialOrd, Hash, Serialize, Deserialize)]
pub struct SessionId(pub [u8; 8]);

impl SessionId {
    /// The length in bytes.
    pub const LEN: usize = 8;

    /// Returns whether the id is all zeros, which neither end may choose.
    pub fn is_zero(&self) -> bool {
        self.0 == [0; Self::LEN]
    }
}

impl fmt::Display for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for SessionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SessionId({self})")
    }
}
