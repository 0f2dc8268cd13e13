//! A packet as a row.

mod columns;
pub mod copy;
pub mod decode;
mod rebuild;

use std::net::IpAddr;

use crate::{EpochNo, Seq, StreamId};

pub use columns::columns;
pub use rebuild::rebuild;

/// Length of the AEAD's tag, bytes.
pub const TAG_LEN: usize = 16;

/// Length of the chain's value, bytes.
pub const CHAIN_LEN: usize = 32;

/// The columns that tell about a packet; which of them are given is the audit policy's.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Columns {
    /// Length of the IP packet.
    pub len: Option<i32>,
    /// Source port of TCP, UDP, UDP-Lite, SCTP, DCCP.
    pub sport: Option<i32>,
    /// Destination port of these; type and code of ICMP as `type << 8 | code`.
    pub dport: Option<i32>,
    /// IP protocol, behind extension headers.
    pub proto: Option<i16>,
    /// TCP flags.
    pub flags: Option<i16>,
    /// Source address.
    pub src: Option<IpAddr>,
    /// Destination address.
    pub dst: Option<IpAddr>,
}

/// A row from the database, which is not trusted.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Row<'a> {
    /// Its number.
    pub seq: Seq,
    /// The epoch of its key.
    pub epoch: EpochNo,
    /// The stream of the row.
    pub stream: StreamId,
    /// The columns in the clear.
    pub columns: Columns,
    /// The AEAD's tag; any length.
    pub tag: &'a [u8],
    /// Padding, on the last row of a batch; any length.
    pub chain: Option<&'a [u8]>,
    /// The packet, sealed or (audit policy full) in the clear.
    pub payload: &'a [u8],
}
