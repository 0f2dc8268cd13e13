//! The messages between neighbours: lines of text in records of a stream.
//!
//! A line is a number for its kind, and words with single spaces between them. Words after the last one that a kind defines are ignored, but
//! repeated where the line is passed on. The identification is a line as well, but precedes the session: see [`Id`].

use std::fmt::Write as _;

use adit_engine::Random;

use crate::aead::AES_256_GCM_NUMBER;
use crate::keys::PublicKey;
use crate::name::NodeName;
use crate::subnet::{MAX_TEXT, Subnet};

mod fields;
mod id;
mod options;
mod seen;
mod token;

use fields::Fields;
pub use id::{Id, IdError, Identity, Lines, MAJOR};
pub use options::{MINOR, Options};
pub use seen::SeenLines;
pub use token::{AddressToken, Token};

/// Length of the longest word, bytes.
pub const MAX_FIELD: usize = 2048;

/// Length of the longest line that tinc sends or reads, bytes.
pub const MAX_LINE: usize = 2175;

/// Length of the longest line that is accepted: other implementations may add words.
const MAX_ACCEPTED: usize = 8192;

/// Length of the longest frame in a message, bytes. Builds of tinc with jumbo frames have the same limit.
pub const MAX_FRAME: usize = 9018;

/// Length of the longest datagram in a message, with the identifiers of its two ends.
pub const MAX_RELAYED: usize = 12 + crate::sptps::DATAGRAM_OVERHEAD + MAX_FRAME;

/// The shortest path MTU with which UDP counts as working.
pub const MIN_MTU: u16 = 512;

/// The reason why bytes are not a message. It ends the connection, because both sides would disagree about what follows, unless the neighbour may only
/// have passed the line on: see [`Message::is_passed_on`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// The line is empty, or does not begin with a number.
    #[error("the message has no number")]
    NoNumber,
    /// The kind is unknown, or has no place after the handshake.
    #[error("unexpected message {0}")]
    Unexpected(u32),
    /// A word is missing.
    #[error("message {0} is too short")]
    Short(u32),
    /// A word is not what it must be.
    #[error("message {0} has no valid {1}")]
    Field(u32, &'static str),
    /// The line, or a word in it, is too long.
    #[error("a message of {0} bytes is too long")]
    TooLong(usize),
    /// An edge leads from a node to itself.
    #[error("an edge leads from a node to itself")]
    Loop,
}

/// The content of an edge's announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EdgeInfo {
    /// Where the first node sees the second one: its address, and its UDP port.
    pub address: AddressToken,
    /// The agreed options, with the minor version of the second node.
    pub options: Options,
    /// The cost.
    pub weight: i32,
    /// The first node's own end of the connection, with its UDP port.
    pub local: Option<AddressToken>,
}

/// A request in REQ_KEY that concerns the two nodes alone. Texts are decoded only by the node that they are for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyRequest {
    /// Starts a session.
    Session {
        /// Its first handshake record, in base64.
        record: Token,
        /// The node offers AES-256-GCM.
        offers_aes: bool,
    },
    /// Asks for the public key.
    AskPublicKey,
    /// Answers with the public key.
    PublicKey(Token),
    /// A datagram, in base64, for neighbours without SPTPS_PACKET.
    Datagram(Token),
    /// A request of an unknown kind.
    Unknown(u32),
}

/// A message between neighbours.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    /// The first message of both sides: its UDP port, the weight that it proposes, and its options.
    Ack {
        /// The UDP port.
        udp_port: Token,
        /// The proposed weight of the edge.
        weight: i32,
        /// The options.
        options: Options,
    },
    /// Asks to close the connection.
    TermReq,
    /// Asks for a [`Message::Pong`].
    Ping,
    /// Answers a [`Message::Ping`].
    Pong,
    /// A node has a subnet. Flooded.
    AddSubnet(NodeName, Subnet),
    /// A node no longer has a subnet. Flooded.
    DelSubnet(NodeName, Subnet),
    /// A node has a connection to another one. Flooded.
    AddEdge(NodeName, NodeName, EdgeInfo),
    /// A node no longer has a connection to another one. Flooded.
    DelEdge(NodeName, NodeName),
    /// A node of tinc 1.0 has a new key. Flooded.
    KeyChanged(NodeName),
    /// A request of the first node to the second one; `None` asks a node of tinc 1.0 for its key.
    ReqKey(NodeName, NodeName, Option<KeyRequest>),
    /// An answer of the first node to the second one.
    AnsKey {
        /// The node that answers.
        from: NodeName,
        /// The node that asked.
        to: NodeName,
        /// A handshake record, in base64.
        key: Token,
        /// The node offers AES-256-GCM.
        offers_aes: bool,
        /// The compression that the first node wants to receive.
        compression: i32,
        /// Where a node on the way sees the first one.
        reflexive: Option<AddressToken>,
    },
    /// The next record is a frame of this length.
    Packet(u16),
    /// This many bytes follow outside the records: a datagram, after the identifiers of its destination and source.
    SptpsPacket(u16),
    /// Where a node sees the first node, for the second one.
    UdpInfo(NodeName, NodeName, AddressToken),
    /// The size of packets that reach the first node, for the second one. Sizes below [`MIN_MTU`] mean nothing.
    MtuInfo(NodeName, NodeName, i32),
}

const ACK: u32 = 4;
const TERMREQ: u32 = 7;
const PING: u32 = 8;
const PONG: u32 = 9;
const ADD_SUBNET: u32 = 10;
const DEL_SUBNET: u32 = 11;
const ADD_EDGE: u32 = 12;
const DEL_EDGE: u32 = 13;
const KEY_CHANGED: u32 = 14;
const REQ_KEY: u32 = 15;
const ANS_KEY: u32 = 16;
const PACKET: u32 = 17;
const REQ_PUBKEY: u32 = 19;
const ANS_PUBKEY: u32 = 20;
const SPTPS_PACKET: u32 = 21;
const UDP_INFO: u32 = 22;
const MTU_INFO: u32 = 23;

/// The word of a REQ_KEY that offers AES-256-GCM. It follows the record, where tinc reads nothing. A node on the way may add the words of an address
/// before or after it, and cannot take it for one.
const OFFER: &[u8] = b"aes-256-gcm";

/// The cipher in an ANS_KEY that offers AES-256-GCM. A word at the end of the line would take the place of the address that a node on the way adds. Nodes of tinc 1.1 write -1 here, and do not read it.
const OFFERED_CIPHER: i32 = AES_256_GCM_NUMBER;

/// The cipher in an ANS_KEY of tinc 1.1.
const NO_CIPHER: i32 = -1;

impl Message {
    /// Reads a line, with or without its newline.
    ///
    /// # Errors
    /// Fails if the line is no message.
    pub fn parse(line: &[u8]) -> Result<Self, MessageError> {
        if line.len() > MAX_ACCEPTED {
            return Err(MessageError::TooLong(line.len()));
        }
        // tinc 1.0 closes the connection of a node that passes on a longer one.
        if line.len() > MAX_LINE && Self::is_passed_on(line) {
            return Err(MessageError::TooLong(line.len()));
        }
        let mut fields = Fields::new(line)?;
        Ok(match fields.kind() {
            ACK => Self::Ack {
                udp_port: fields.token("port")?,
                weight: fields.number("weight")?,
                options: fields.options()?,
            },
            TERMREQ => Self::TermReq,
            PING => Self::Ping,
            PONG => Self::Pong,
            ADD_SUBNET => {
                fields.skip_nonce()?;
                Self::AddSubnet(fields.name()?, fields.subnet()?)
            }
            DEL_SUBNET => {
                fields.skip_nonce()?;
                Self::DelSubnet(fields.name()?, fields.subnet()?)
            }
            ADD_EDGE => Self::parse_edge(&mut fields)?,
            DEL_EDGE => {
                fields.skip_nonce()?;
                Self::DelEdge(fields.name()?, fields.name()?)
            }
            KEY_CHANGED => {
                fields.skip_nonce()?;
                Self::KeyChanged(fields.name()?)
            }
            REQ_KEY => Self::parse_request(&mut fields)?,
            ANS_KEY => Self::parse_answer(&mut fields)?,
            PACKET => Self::Packet(fields.length(0..=MAX_FRAME)?),
            SPTPS_PACKET => Self::SptpsPacket(fields.length(12..=MAX_RELAYED)?),
            UDP_INFO => Self::UdpInfo(fields.name()?, fields.name()?, fields.address()?),
            MTU_INFO => Self::MtuInfo(fields.name()?, fields.name()?, fields.number("MTU")?),
            kind => return Err(MessageError::Unexpected(kind)),
        })
    }

    fn parse_edge(fields: &mut Fields<'_>) -> Result<Self, MessageError> {
        fields.skip_nonce()?;
        let (from, to) = (fields.name()?, fields.name()?);
        let address = fields.address()?;
        let (options, weight) = (fields.options()?, fields.number("weight")?);
        // One word more is no address.
        let local = if fields.is_empty() { None } else { Some(fields.address()?) };
        if from == to {
            return Err(MessageError::Loop);
        }
        Ok(Self::AddEdge(from, to, EdgeInfo { address, options, weight, local }))
    }

    fn parse_request(fields: &mut Fields<'_>) -> Result<Self, MessageError> {
        let (from, to) = (fields.name()?, fields.name()?);
        let request = if fields.is_empty() {
            None
        } else {
            Some(match fields.unsigned("request")? {
                REQ_KEY => KeyRequest::Session {
                    record: fields.token("record")?,
                    offers_aes: fields.any_is(OFFER),
                },
                REQ_PUBKEY => KeyRequest::AskPublicKey,
                ANS_PUBKEY => KeyRequest::PublicKey(fields.token("key")?),
                SPTPS_PACKET => KeyRequest::Datagram(fields.token("datagram")?),
                kind => KeyRequest::Unknown(kind),
            })
        };
        Ok(Self::ReqKey(from, to, request))
    }

    fn parse_answer(fields: &mut Fields<'_>) -> Result<Self, MessageError> {
        let (from, to) = (fields.name()?, fields.name()?);
        let key = fields.token("key")?;
        let offers_aes = fields.number("cipher")? == OFFERED_CIPHER;
        // The digest and length of the MAC belong to tinc 1.0's sessions.
        for name in ["digest", "MAC length"] {
            let _: i32 = fields.number(name)?;
        }
        let compression = fields.number("compression")?;
        let reflexive = if fields.is_empty() { None } else { fields.address().ok() };
        Ok(Self::AnsKey { from, to, key, offers_aes, compression, reflexive })
    }

    /// Returns the node that a message for one other node comes from.
    pub fn sender(&self) -> Option<&NodeName> {
        match self {
            Self::ReqKey(from, ..)
            | Self::AnsKey { from, .. }
            | Self::UdpInfo(from, ..)
            | Self::MtuInfo(from, ..) => Some(from),
            _ => None,
        }
    }

    /// Returns whether a line, which may be invalid, is of a kind that neighbours pass on for others.
    pub fn is_passed_on(line: &[u8]) -> bool {
        let kind = Fields::new(line).map(|fields| fields.kind());
        kind.is_ok_and(|kind| matches!(kind, ADD_SUBNET..=ANS_KEY | UDP_INFO | MTU_INFO))
    }

    /// Returns whether the message is flooded: passed on to all neighbours but the one that it came from.
    pub const fn is_flooded(&self) -> bool {
        matches!(
            self,
            Self::AddSubnet(..)
                | Self::DelSubnet(..)
                | Self::AddEdge(..)
                | Self::DelEdge(..)
                | Self::KeyChanged(..)
        )
    }

    /// Returns whether a line is of a kind for which no session and no packet waits.
    pub fn can_wait(line: &[u8]) -> bool {
        let kind = Fields::new(line).map(|fields| fields.kind());
        kind.is_ok_and(|kind| matches!(kind, PING | ADD_SUBNET..=KEY_CHANGED | UDP_INFO | MTU_INFO))
    }

    /// Returns the first minor version whose nodes understand the message. A node must not send it to others, which would close the
    /// connection.
    pub const fn needs_minor(&self) -> u8 {
        match self {
            Self::UdpInfo(..) => 5,
            Self::MtuInfo(..) => 6,
            Self::SptpsPacket(_) => 7,
            _ => 0,
        }
    }

    /// Appends the line with its newline. A flooded message gets a random number, by which nodes tell two equal ones apart.
    pub fn write(&self, random: &mut Random, out: &mut Vec<u8>) {
        let mut line = Line(out);
        match self {
            Self::Ack { udp_port, weight, options } => {
                line.number(ACK).token(udp_port).text(*weight).hex(options.0);
            }
            Self::TermReq => {
                line.number(TERMREQ);
            }
            Self::Ping => {
                line.number(PING);
            }
            Self::Pong => {
                line.number(PONG);
            }
            Self::AddSubnet(owner, subnet) => {
                line.number(ADD_SUBNET).nonce(random).text(owner).text(subnet);
            }
            Self::DelSubnet(owner, subnet) => {
                line.number(DEL_SUBNET).nonce(random).text(owner).text(subnet);
            }
            Self::AddEdge(from, to, edge) => {
                line.number(ADD_EDGE).nonce(random).text(from).text(to).address(&edge.address);
                line.hex(edge.options.0).text(edge.weight);
                if let Some(local) = &edge.local {
                    line.address(local);
                }
            }
            Self::DelEdge(from, to) => {
                line.number(DEL_EDGE).nonce(random).text(from).text(to);
            }
            Self::KeyChanged(name) => {
                line.number(KEY_CHANGED).nonce(random).text(name);
            }
            Self::ReqKey(from, to, request) => {
                line.number(REQ_KEY).text(from).text(to);
                match request {
                    None => {}
                    Some(KeyRequest::Session { record, offers_aes }) => {
                        line.text(REQ_KEY).token(record);
                        if *offers_aes {
                            line.word(OFFER);
                        }
                    }
                    Some(KeyRequest::AskPublicKey) => {
                        line.text(REQ_PUBKEY);
                    }
                    Some(KeyRequest::PublicKey(key)) => {
                        line.text(ANS_PUBKEY).token(key);
                    }
                    Some(KeyRequest::Datagram(datagram)) => {
                        line.text(SPTPS_PACKET).token(datagram);
                    }
                    Some(KeyRequest::Unknown(kind)) => {
                        line.text(*kind);
                    }
                }
            }
            Self::AnsKey { from, to, key, offers_aes, compression, reflexive } => {
                let cipher = if *offers_aes { OFFERED_CIPHER } else { NO_CIPHER };
                line.number(ANS_KEY).text(from).text(to).token(key).text(cipher).text("-1 -1");
                line.text(*compression);
                if let Some(address) = reflexive {
                    line.address(address);
                }
            }
            Self::Packet(len) => {
                line.number(PACKET).text(*len);
            }
            Self::SptpsPacket(len) => {
                line.number(SPTPS_PACKET).text(*len);
            }
            Self::UdpInfo(from, to, address) => {
                line.number(UDP_INFO).text(from).text(to).address(address);
            }
            Self::MtuInfo(from, to, mtu) => {
                line.number(MTU_INFO).text(from).text(to).text(*mtu);
            }
        }
        out.push(b'\n');
    }
}

/// Returns the handshake record or datagram in a word of REQ_KEY or ANS_KEY.
pub fn decode_record(token: &Token) -> Option<zeroize::Zeroizing<Vec<u8>>> {
    crate::base64::decode(token.as_bytes())
}

/// Returns the public key in a word.
pub fn decode_public_key(token: &Token) -> Option<PublicKey> {
    std::str::from_utf8(token.as_bytes()).ok()?.parse().ok()
}

/// Writes the words of a line.
struct Line<'a>(&'a mut Vec<u8>);

impl Line<'_> {
    /// Appends the first word.
    fn number(&mut self, kind: u32) -> &mut Self {
        self.0.extend_from_slice(kind.to_string().as_bytes());
        self
    }

    fn text(&mut self, value: impl std::fmt::Display) -> &mut Self {
        let mut word = String::new();
        // Writing to a string does not fail.
        let _ = write!(word, " {value}");
        self.0.extend_from_slice(word.as_bytes());
        self
    }

    fn hex(&mut self, value: u32) -> &mut Self {
        self.text(format_args!("{value:x}"))
    }

    fn nonce(&mut self, random: &mut Random) -> &mut Self {
        self.hex(u32::from_be_bytes(random.bytes()))
    }

    fn token(&mut self, token: &Token) -> &mut Self {
        self.word(token.as_bytes())
    }

    fn word(&mut self, word: &[u8]) -> &mut Self {
        self.0.push(b' ');
        self.0.extend_from_slice(word);
        self
    }

    fn address(&mut self, address: &AddressToken) -> &mut Self {
        self.token(&address.host).token(&address.port)
    }
}

#[cfg(test)]
mod tests;
