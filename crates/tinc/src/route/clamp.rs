//! Lowers the MSS of TCP connections to what the path carries.

use adit_wire::ip::{Ip, V4_LEN, V6_LEN};
use adit_wire::mss;
use adit_wire::transport::TCP_LEN;

use super::Path;

/// The protocol numbers of IPv4 and IPv6 packets inside of IP packets.
const IP_IN_IP: [u8; 2] = [4, 41];

/// Lowers the MSS in a packet, whose IP packet begins at `ip_at`, and which `before` bytes more precede in a frame. It looks into one IP packet
/// inside of the outer one.
pub(super) fn clamp(packet: &mut [u8], ip_at: usize, before: usize, path: &Path<'_>) {
    if !path.clamp_mss || path.mtu == 0 {
        return;
    }
    let clamp_at = |packet: &mut [u8], at: usize| {
        let room = usize::from(path.mtu).saturating_sub(before).saturating_sub(at);
        let limit = |header: usize| {
            let mss = room.saturating_sub(header).saturating_sub(TCP_LEN);
            u16::try_from(mss).unwrap_or(u16::MAX)
        };
        let inner = packet.get_mut(at..).unwrap_or_default();
        mss::clamp(inner, limit(V4_LEN), limit(V6_LEN))
    };
    if clamp_at(packet, ip_at) {
        return;
    }
    if let Some(inner) = inner_packet(packet.get(ip_at..).unwrap_or_default()) {
        clamp_at(packet, ip_at.saturating_add(inner));
    }
}

/// Returns where the IP packet in an IP packet begins.
fn inner_packet(packet: &[u8]) -> Option<usize> {
    // One byte suffices to decide the common case.
    let protocol = match packet.first()? >> 4 {
        4 => packet.get(9)?,
        _ => packet.get(6)?,
    };
    if !IP_IN_IP.contains(protocol) {
        return None;
    }
    let ip = Ip::parse(packet)?;
    (!ip.fragment).then_some(ip.header_len)
}
