//! OpenVPN's data format for the data plane: headers, compression framing, fragments, in-band messages and keys.
//!
//! Entry points for fuzzing, none of which may panic on any input: [`packet::parse`], [`packet::parse_epoch`],
//! [`framing::strip`], [`LoopbackPlane`].

#![forbid(unsafe_code)]
#![cfg_attr(
    not(test),
    deny(clippy::indexing_slicing, clippy::unwrap_used, clippy::expect_used, clippy::panic)
)]

#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
pub mod decompress;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
pub mod fragment;
pub mod framing;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
mod key;
#[cfg_attr(not(test), deny(clippy::arithmetic_side_effects))]
pub mod packet;

#[doc(hidden)]
pub use key::fuzz_saved_key;

use std::io;

use adit_dataplane::format::{self, Format, Header, InBand, Kind, Origin};
use adit_dataplane::{DropReason, FilterConfig, MAX_PACKET, PlaneConfig, Scratch};
use adit_engine::Instant;
use adit_openvpn::data_format::{Framing, FramingError, OpenVpn, PacketLayout, PeerSpec};

use fragment::{FragmentResult, Fragments, Reassembler};
use framing::{Compression, OCC, OCC_MTU_REPLY, OCC_MTU_REQUEST, PING, UnframedPacket};
use packet::{DATA_V1, DATA_V2, DataHeader};

/// A data plane for OpenVPN.
pub type Plane = adit_dataplane::Plane<OpenVpnFormat>;

/// A data plane for OpenVPN without threads, sockets and devices.
pub type LoopbackPlane = adit_dataplane::loopback::LoopbackPlane<OpenVpnFormat>;

/// Starts a data plane for OpenVPN, filtered if `rules` is present; in other respects like [`Plane::start_filtered`].
///
/// Compiles the workers in this crate, once and for speed: callers of the generic function would each compile them, for
/// size.
///
/// # Errors
/// The system refuses a resource that a worker needs.
#[inline(never)]
pub fn start(
    config: PlaneConfig,
    rules: Option<FilterConfig>,
    clock: fn() -> Instant,
) -> io::Result<(Plane, Upcalls)> {
    Plane::start_filtered(config, rules, clock)
}

/// An event of a data plane for OpenVPN.
pub type Upcall = adit_dataplane::Upcall<OpenVpn>;

/// The receiving end of the upcalls of a data plane for OpenVPN.
pub type Upcalls = adit_dataplane::Upcalls<OpenVpn>;

/// The reason why an authenticated text contains no packet.
type Rejected = format::Rejected<OpenVpn>;

/// OpenVPN's data format.
#[derive(Copy, Clone, Debug, Default)]
pub struct OpenVpnFormat;

/// The sender's state for one peer.
#[derive(Debug, Default)]
pub struct SenderState {
    /// The sequence number of the last fragmented packet.
    sequence: u8,
    /// The stream that packets of a static key were last sent to.
    stream: Option<u64>,
}

/// The bytes added inside the encryption.
#[derive(Copy, Clone, Debug, Default)]
pub struct Encapsulation {
    framing: Framing,
    /// The maximum length of an encapsulated packet, if longer ones are sent in fragments.
    fragment: Option<u16>,
}

impl Format for OpenVpnFormat {
    type Types = OpenVpn;
    type Key = key::Key;
    type Tx = SenderState;
    type Reassembly = Reassembler;
    type Encapsulation = Encapsulation;

    const MAX_GROWTH: usize =
        fragment::MAX_FRAGMENTS * (key::MAX_OVERHEAD + fragment::HEADER) + framing::MAX_ADDED;
    const PING: &'static [u8] = &PING;

    #[inline]
    fn header(datagram: &[u8]) -> Option<Header> {
        let header = DataHeader::parse(datagram)?;
        let kind = match header.opcode {
            DATA_V1 | DATA_V2 => Kind::Data { peer: header.peer_id, key: header.key_id },
            3 | 4 | 5 | 7 | 8 | 10 | 11 => Kind::Control,
            _ => Kind::Unknown,
        };
        Some(Header { kind, len: header.len() })
    }

    #[inline]
    fn encapsulation(spec: &PeerSpec) -> Option<Encapsulation> {
        let PacketLayout { framing, fragment, .. } = spec.layout;
        let any = framing != Framing::None || fragment.is_some();
        any.then_some(Encapsulation { framing, fragment })
    }

    #[inline]
    fn fragments(spec: &PeerSpec) -> bool {
        spec.layout.fragment.is_some()
    }

    fn needs_scratch(spec: &PeerSpec) -> bool {
        spec.layout.fragment.is_some() || spec.layout.decompress.is_some()
    }

    fn growth(encapsulation: Encapsulation, overhead: usize) -> usize {
        let each = overhead.saturating_add(fragment::HEADER);
        let all = if encapsulation.fragment.is_some() {
            each.saturating_mul(fragment::MAX_FRAGMENTS)
        } else {
            each
        };
        all.saturating_add(framing::MAX_ADDED)
    }

    fn message_growth(encapsulation: Encapsulation) -> usize {
        // In-band messages never need escaping.
        match encapsulation.framing {
            Framing::None | Framing::StubV2 => 0,
            Framing::LzoStub | Framing::SwapStub => 1,
        }
    }

    fn encapsulate(
        encapsulation: Encapsulation,
        tx: &mut SenderState,
        packet: &[u8],
        overhead: usize,
        scratch: &mut Vec<u8>,
        mut seal: impl FnMut(&[u8]) -> Result<(), DropReason>,
    ) -> Result<(), DropReason> {
        scratch.resize(fragment::HEADER + MAX_PACKET + framing::MAX_ADDED, 0);
        let text =
            framed(encapsulation.framing, packet, scratch).ok_or(DropReason::TunMalformed)?;
        let Some(limit) = encapsulation.fragment else {
            return seal(text.get(fragment::HEADER..).unwrap_or(&[]));
        };
        let most = usize::from(limit).saturating_sub(overhead.saturating_add(fragment::HEADER));
        let mut fragments =
            Fragments::new(text, most, &mut tx.sequence).ok_or(DropReason::TooManyFragments)?;
        while let Some(fragment) = fragments.next() {
            seal(fragment)?;
        }
        Ok(())
    }

    fn decapsulate<'a>(
        spec: &PeerSpec,
        reassembly: Option<&mut Reassembler>,
        origin: Origin,
        text: &'a mut [u8],
        scratch: &mut Scratch<'_, 'a>,
    ) -> Result<Option<&'a mut [u8]>, Rejected> {
        let framed = match reassembly {
            None => text,
            Some(reassembler) => match reassemble(reassembler, origin, text, scratch)? {
                Some(framed) => framed,
                None => return Ok(None),
            },
        };
        match framing::strip(spec.layout.framing, framed) {
            Ok(UnframedPacket::Plain(packet)) => Ok(Some(packet)),
            Ok(UnframedPacket::Compressed(compression, text)) => {
                decompress(spec.layout.decompress, compression, text, scratch).map(Some)
            }
            Err(error) => Err(rejected(error)),
        }
    }

    fn take_lost(reassembly: &mut Reassembler) -> usize {
        reassembly.take_lost()
    }

    #[inline(always)]
    fn in_band(text: &[u8]) -> Option<InBand> {
        if text.first() == PING.first() && *text == PING {
            return Some(InBand::Ping);
        }
        if text.first() == OCC.first() && text.starts_with(&OCC) {
            let request = text.get(OCC.len()) == Some(&OCC_MTU_REQUEST);
            return Some(if request { InBand::SizeRequest } else { InBand::Message });
        }
        None
    }

    fn size_request(len: usize) -> Vec<u8> {
        let mut message = [&OCC[..], &[OCC_MTU_REQUEST]].concat();
        message.resize(len.max(message.len()), 0);
        message
    }

    fn size_reply(received: u16, sent: u16) -> Vec<u8> {
        let sizes = [received.to_be_bytes(), sent.to_be_bytes()].concat();
        [&OCC[..], &[OCC_MTU_REPLY], &sizes].concat()
    }
}

/// Frames a packet, leaving space for a fragment header before it.
fn framed<'s>(framing: Framing, packet: &[u8], scratch: &'s mut [u8]) -> Option<&'s mut [u8]> {
    let len = framing::frame(framing, packet, scratch.get_mut(fragment::HEADER..)?)?.len();
    scratch.get_mut(..len.checked_add(fragment::HEADER)?)
}

fn reassemble<'a>(
    reassembler: &mut Reassembler,
    origin: Origin,
    text: &'a mut [u8],
    scratch: &mut Scratch<'_, 'a>,
) -> Result<Option<&'a mut [u8]>, Rejected> {
    let buffer = scratch.take()?;
    let whole = match reassembler.push(text, origin, buffer) {
        FragmentResult::Complete => return Ok(Some(buffer)),
        FragmentResult::Whole(packet) => Ok(Some(packet)),
        FragmentResult::Waiting => Ok(None),
        FragmentResult::Bad => Err(rejected(FramingError::Fragment)),
    };
    scratch.give_back(buffer);
    whole
}

#[cold]
#[inline(never)]
fn decompress<'a>(
    most: Option<u16>,
    compression: Compression,
    text: &[u8],
    scratch: &mut Scratch<'_, 'a>,
) -> Result<&'a mut [u8], Rejected> {
    let most = most.ok_or(rejected(FramingError::Compressed))?;
    let packet = decompress::decompress(compression, text, most, scratch.take()?);
    packet.ok_or(DropReason::BadCompression.into())
}

fn rejected(error: FramingError) -> Rejected {
    let reason = match error {
        FramingError::Compressed => DropReason::Compressed,
        FramingError::Framing => DropReason::BadFraming,
        FramingError::Fragment => DropReason::BadFragment,
    };
    Rejected { reason, violation: Some(error) }
}
