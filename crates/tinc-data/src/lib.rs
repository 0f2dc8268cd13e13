//! The data format of tinc 1.1 for the data plane: datagrams between two nodes that reach each other directly.
//!
//! ```text
//! destination 6 | source 6 | sequence number 4 | sealed: type 1, data | tag 16
//! ```
//!
//! The destination is zero: the receiver. Datagrams with another destination pass on unread where a splice names both identifiers
//! ([`SpliceLabel::Nodes`]); all others are the control plane's. So are the records that are not packets, which in router mode are IP packets
//! (type 0) and in switch mode Ethernet frames (type 2): in-band messages, which begin with their type.
//!
//! Entry points for fuzzing, none of which may panic on any input: [`LoopbackPlane::open`](adit_dataplane::loopback::LoopbackPlane::open),
//! [`packet::parse`].

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(
        clippy::indexing_slicing,
        clippy::unwrap_used,
        clippy::expect_used,
        clippy::panic,
        clippy::arithmetic_side_effects
    )
)]

mod key;
pub mod packet;

use std::convert::Infallible;
use std::fmt;
use std::io;

use adit_dataplane::format::{self, Format, Header, InBand, Kind, Origin};
use adit_dataplane::{DropReason, PlaneConfig, Scratch};
use adit_engine::command::SpliceLabel;
use adit_engine::{DataFormat, Instant};
use adit_tinc::name::NodeId;
use adit_tinc::sptps::SharedSession;

use packet::{FRAME, IDS, OVERHEAD, PACKET, Packets};

/// A data plane for tinc.
pub type Plane = adit_dataplane::Plane<TincFormat>;

/// A data plane for tinc without threads, sockets and devices.
pub type LoopbackPlane = adit_dataplane::loopback::LoopbackPlane<TincFormat>;

/// The receiving end of the upcalls of a data plane for tinc.
pub type Upcalls = adit_dataplane::Upcalls<Tinc>;

/// An event of a data plane for tinc.
pub type Upcall = adit_dataplane::Upcall<Tinc>;

/// The settings of a peer.
pub type PeerSpec = adit_engine::command::PeerSpec<Tinc>;

/// A command to a data plane for tinc.
pub type Command = adit_engine::Command<Tinc>;

/// Starts a data plane for tinc, like [`Plane::start`].
///
/// Compiles the workers in this crate, once and for speed: callers of the generic function would each compile them, for size.
///
/// # Errors
/// The system refuses a resource that a worker needs.
#[inline(never)]
pub fn start(config: PlaneConfig, clock: fn() -> Instant) -> io::Result<(Plane, Upcalls)> {
    Plane::start(config, clock)
}

/// The marker of tinc's types.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub enum Tinc {}

impl DataFormat for Tinc {
    type Layout = Layout;
    type Key = DataKey;
    type Violation = Infallible;

    fn key_id(_: &DataKey) -> u8 {
        0
    }
}

/// The layout of packets, which has no options.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Layout;

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SPTPS")
    }
}

/// A session to install, and its two nodes. A peer has one key, which is replaced as a whole.
#[derive(Debug)]
pub struct DataKey {
    /// The session, whose sequence numbers its owner and the data plane share.
    pub session: SharedSession,
    /// This node.
    pub own: NodeId,
    /// The other node.
    pub peer: NodeId,
    /// Whether a relay passes on the datagrams between the two.
    pub relayed: bool,
    /// The packets in the session.
    pub packets: Packets,
}

impl fmt::Display for DataKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.session.send.cipher().fmt(f)
    }
}

/// tinc's data format.
#[derive(Copy, Clone, Debug, Default)]
pub struct TincFormat;

impl Format for TincFormat {
    type Types = Tinc;
    type Key = key::Key;
    type Tx = ();
    type Reassembly = ();
    type Encapsulation = ();

    const MAX_GROWTH: usize = OVERHEAD;
    /// The plane sends no pings of its own, because the node probes its paths itself.
    const PING: &'static [u8] = &[];

    #[inline]
    fn header(datagram: &[u8]) -> Option<Header> {
        if datagram.is_empty() {
            return None;
        }
        Some(match datagram.first_chunk::<IDS>() {
            // Peers are found by their address. The key then compares the source.
            Some(ids) if ids.starts_with(&NodeId::DIRECT.0) => {
                Header { kind: Kind::Data { peer: None, key: 0 }, len: IDS }
            }
            Some(ids) => Header { kind: Kind::Transit(SpliceLabel::Nodes(*ids)), len: IDS },
            None => Header { kind: Kind::Control, len: datagram.len() },
        })
    }

    fn encapsulation(_: &PeerSpec) -> Option<()> {
        None
    }

    fn fragments(_: &PeerSpec) -> bool {
        false
    }

    fn needs_scratch(_: &PeerSpec) -> bool {
        false
    }

    fn growth((): (), overhead: usize) -> usize {
        overhead
    }

    fn message_growth((): ()) -> usize {
        0
    }

    fn encapsulate(
        (): (),
        (): &mut (),
        packet: &[u8],
        _: usize,
        _: &mut Vec<u8>,
        mut seal: impl FnMut(&[u8]) -> Result<(), DropReason>,
    ) -> Result<(), DropReason> {
        seal(packet)
    }

    fn decapsulate<'a>(
        _: &PeerSpec,
        _: Option<&mut ()>,
        _: Origin,
        text: &'a mut [u8],
        _: &mut Scratch<'_, 'a>,
    ) -> Result<Option<&'a mut [u8]>, format::Rejected<Tinc>> {
        Ok(Some(text))
    }

    fn take_lost((): &mut ()) -> usize {
        0
    }

    #[inline(always)]
    fn in_band(text: &[u8]) -> Option<InBand> {
        (!packet::is_packet(text)).then_some(InBand::Message)
    }

    #[inline(always)]
    fn packet(text: &mut [u8]) -> &mut [u8] {
        packet::packet(text)
    }

    fn packet_to_send(message: &[u8]) -> &[u8] {
        match message {
            [PACKET | FRAME, packet @ ..] => packet,
            _ => &[],
        }
    }

    /// The node measures the path with its own probes.
    fn size_request(_: usize) -> Vec<u8> {
        Vec::new()
    }

    fn size_reply(_: u16, _: u16) -> Vec<u8> {
        Vec::new()
    }
}
