//! The representation of a packet as a row.

mod columns;
pub mod copy;
pub mod decode;
mod rebuild;

use std::net::IpAddr;

use crate::{EpochNo, Seq, StreamId};

pub use columns::columns;
pub use rebuild::rebuild;

/// The length of the AEAD's tag in bytes.
pub const TAG_LEN: usize = 16;

/// The length of the chain's value in bytes.
pub const CHAIN_LEN: usize = 32;

/// The columns that describe a packet. The audit policy determines which of them are set.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// The length of the IP packet.
    pub len: Option<i32>,
    /// The source port of TCP, UDP, UDP-Lite, SCTP or DCCP.
    pub sport: Option<i32>,
    /// The destination port of these protocols, or the type and code of ICMP as `type << 8 | code`.
    pub dport: Option<i32>,
    /// The IP protocol after any extension headers.
    pub proto: Option<i16>,
    /// The TCP flags.
    pub flags: Option<i16>,
    /// The source address.
    pub src: Option<IpAddr>,
    /// The destination address.
    pub dst: Option<IpAddr>,
}

/// An untrusted row from the database.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// The row's number.
    pub seq: Seq,
    /// The epoch of its key.
    pub epoch: EpochNo,
    /// The stream of the row.
    pub stream: StreamId,
    /// The columns in the clear.
    pub columns: Columns,
    /// The AEAD's tag. It may have any length.
    pub tag: &'a [u8],
    /// The chain's value, on the last row of a batch, which may have any length.
    pub chain: Option<&'a [u8]>,
    /// The packet, sealed or (with audit policy full) in the clear.
    pub payload: &'a [u8],
}
