//! Differences that are wanted. Each has its name and its reason in docs/filter.md.

use super::adit::Made;
use super::case::{Mode, Seen, Sent};
use super::frame::{ARP, IPV4, IPV6};
use super::packets::WITHIN;

/// The name of the wanted difference that this one is, if it is one. Some show only in counters: these frames are taken
/// out though both did the same with them.
#[must_use]
pub fn wanted(mode: Mode, sent: &Sent, kernel: Seen, adit: &Made) -> Option<&'static str> {
    if adit.why.starts_with("malformed") {
        return Some("malformed");
    }
    if atomic(&sent.frame) {
        return Some("atomic fragment");
    }
    if sent.what == WITHIN && adit.why.starts_with("piece: refused") {
        return Some("a piece within another");
    }
    if adit.why == "piece: uneven" && ethertype(&sent.frame, 12) == Some(IPV6) {
        return Some("uneven piece of IPv6");
    }
    let answered = matches!(adit.seen, Seen::Answered(_));
    if answered && kernel == Seen::Nothing && !adit.checked {
        return Some("answers about other protocols");
    }
    if mode == Mode::Bridge {
        return bridged(&sent.frame);
    }
    None
}

/// An IPv6 packet in one piece (RFC 6946): the kernel takes its fragment header away, adit leaves it there.
fn atomic(frame: &[u8]) -> bool {
    let v6 = ethertype(frame, 12) == Some(IPV6) && frame.get(20) == Some(&44);
    v6 && frame.get(56..58).is_some_and(|word| word[0] == 0 && word[1] & !6 == 0)
}

fn ethertype(frame: &[u8], at: usize) -> Option<u16> {
    frame.get(at..at + 2).map(|bytes| u16::from_be_bytes([bytes[0], bytes[1]]))
}

fn bridged(frame: &[u8]) -> Option<&'static str> {
    let tagged = ethertype(frame, 12) == Some(0x8100);
    let at = if tagged { 18 } else { 14 };
    let word = |from: usize| ethertype(frame, at + from).map(usize::from);
    let (length, protocol) = match ethertype(frame, at - 2)? {
        ARP if tagged => return Some("ARP and ICMP behind a tag"),
        IPV4 => (word(2)?, frame.get(at + 9)?),
        IPV6 => (40 + word(4)?, frame.get(at + 6)?),
        _ => return None,
    };
    if frame.len() > at + length {
        return Some("padding");
    }
    // Behind which extension header ICMPv6 stands does not matter here.
    let icmp = [1, 58, 0, 43, 60].contains(protocol);
    (tagged && icmp).then_some("ARP and ICMP behind a tag")
}
