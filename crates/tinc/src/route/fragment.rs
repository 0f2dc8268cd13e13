//! Splits IPv4 packets into fragments (RFC 791, 3.2).

use adit_wire::checksum::Sum;
use adit_wire::ip::{Ip, V4_LEN};

/// The bit that says that more fragments follow.
const MORE: u16 = 0x2000;
/// The bits with the offset, in units of 8 bytes.
const OFFSET: u16 = 0x1fff;
/// Length of the longest header, bytes.
const MAX_HEADER: usize = 60;

/// How to split a packet.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct FragmentPlan {
    /// Where the IP packet begins. The bytes before it, an Ethernet header, precede each fragment.
    pub ip_at: usize,
    /// Length of the longest fragment, from its IP header on, bytes.
    pub size: usize,
}

/// The fragments of a packet, in order.
#[derive(Debug)]
pub struct Fragments<'p> {
    link: &'p [u8],
    /// The header of the first fragment. Later ones have only the options that must be in each.
    first: &'p [u8],
    later: Vec<u8>,
    payload: &'p [u8],
    /// The flags and the offset of the packet, which may be a fragment itself.
    flags: u16,
    sent: usize,
    size: usize,
    buffer: Vec<u8>,
}

impl<'p> Fragments<'p> {
    /// Splits a packet. Returns `None` if it is no IPv4 packet, or the fragments are too short for any payload.
    pub fn new(packet: &'p [u8], plan: FragmentPlan) -> Option<Self> {
        let (link, packet) = packet.split_at_checked(plan.ip_at)?;
        let ip = Ip::parse(packet).filter(|ip| ip.source.is_ipv4())?;
        let packet = packet.get(..ip.total_len)?;
        let (first, payload) = packet.split_at_checked(ip.header_len)?;
        if plan.size < ip.header_len.checked_add(8)? {
            return None;
        }
        let flags = u16::from_be_bytes(*first.get(6..)?.first_chunk()?);
        let later = later_header(first)?;
        let (size, sent, buffer) = (plan.size, 0, Vec::new());
        Some(Self { link, first, later, payload, flags, sent, size, buffer })
    }

    /// Returns the next fragment, with the bytes before the IP packet.
    pub fn next_fragment(&mut self) -> Option<&[u8]> {
        let rest = self.payload.get(self.sent..).filter(|rest| !rest.is_empty())?;
        let header = if self.sent == 0 { self.first } else { &self.later };
        let room = self.size.checked_sub(header.len())?;
        let (part, is_last) = match rest.get(..room) {
            // Each offset is a multiple of 8.
            Some(part) if rest.len() > room => (part.get(..room & !7)?, false),
            _ => (rest, true),
        };
        self.buffer.clear();
        self.buffer.extend_from_slice(self.link);
        self.buffer.extend_from_slice(header);
        self.buffer.extend_from_slice(part);
        let units = u16::try_from(self.sent.checked_div(8)?).ok()?;
        let offset = (self.flags & OFFSET).checked_add(units).filter(|all| *all <= OFFSET)?;
        let more = if is_last { self.flags & MORE } else { MORE };
        let flags = self.flags & !(OFFSET | MORE) | more | offset;
        let length = u16::try_from(header.len().checked_add(part.len())?).ok()?;
        let out = self.buffer.get_mut(self.link.len()..)?;
        put(out, 2, length)?;
        put(out, 6, flags)?;
        put(out, 10, 0)?;
        let sum = Sum::new().bytes(out.get(..header.len())?).finish();
        put(out, 10, sum)?;
        self.sent = self.sent.checked_add(part.len())?;
        Some(&self.buffer)
    }
}

fn put(bytes: &mut [u8], at: usize, value: u16) -> Option<()> {
    *bytes.get_mut(at..)?.first_chunk_mut()? = value.to_be_bytes();
    Some(())
}

/// Returns the header of the fragments after the first one: with only the options whose copied flag is set.
fn later_header(first: &[u8]) -> Option<Vec<u8>> {
    const END: u8 = 0;
    const NO_OPERATION: u8 = 1;
    let (fixed, mut options) = first.split_at_checked(V4_LEN)?;
    let mut header = Vec::with_capacity(MAX_HEADER);
    header.extend_from_slice(fixed);
    while let [kind, rest @ ..] = options {
        options = match *kind {
            END => break,
            NO_OPERATION => rest,
            kind => {
                let length = rest.first().map_or(0, |length| usize::from(*length));
                // A damaged option ends them, as for a host that reads them.
                let Some((option, rest)) = options.split_at_checked(length).filter(|_| length >= 2)
                else {
                    break;
                };
                if kind & 0x80 != 0 {
                    header.extend_from_slice(option);
                }
                rest
            }
        };
    }
    header.resize(header.len().next_multiple_of(4), END);
    let words = u8::try_from(header.len().checked_div(4)?).ok()?;
    let version = header.first_mut()?;
    *version = *version & 0xf0 | words;
    Some(header)
}
