//! Differences that are wanted. Each has its name and its reason in docs/filter.md.

use std::collections::BTreeMap;

use super::adit::{Made, RESET_IGNORED};
use super::case::{Mode, Seen, Sent};
use super::compare::{Both, Case};
use super::frame::{ARP, IPV4, IPV6};
use super::packets::{NO_CHECKSUM, WITHIN};

/// The frames of a case whose difference is wanted, and its name.
#[must_use]
pub fn all(case: &Case, both: &Both) -> BTreeMap<usize, &'static str> {
    let frames = case.frames.iter().zip(&both.seen).enumerate();
    let named = |(at, (sent, (kernel, adit))): (usize, (&Sent, &(Seen, Made)))| {
        wanted(case.mode, sent, *kernel, adit).map(|name| (at, name))
    };
    frames.filter_map(named).collect()
}

/// Segments that are invalid to both and yet change what the kernel thinks of the connection. To be asked for only
/// when something differs: `states` are what the kernel says of each frame.
#[must_use]
pub fn traces(case: &Case, both: &Both, states: &[String]) -> BTreeMap<usize, &'static str> {
    let frames = case.frames.iter().zip(&both.seen).zip(states).enumerate();
    let invalid = |((sent, (_, adit)), state): &((&Sent, &(Seen, Made)), &String)| {
        let control = tcp_flags(&sent.frame).is_some_and(|flags| flags & 7 != 0);
        control && adit.why.starts_with("invalid:") && state.contains("invalid")
    };
    frames.filter(|(_, frame)| invalid(frame)).map(|(at, _)| (at, TRACE)).collect()
}

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
    // RFC 5961 3.2 and RFC 9293 3.10.7.3: the kernel is content with a number within the window.
    let refused = ["invalid: Reset", "invalid: Sequence"].contains(&adit.why.as_str());
    let is_reset = tcp_flags(&sent.frame).is_some_and(|flags| flags & 4 != 0);
    let other = is_reset && !RIGHT_RESETS.contains(&&*sent.what);
    if refused && other || adit.why == RESET_IGNORED {
        return Some("a reset that is not exact");
    }
    // RFC 8200 8.1: the checksum is not optional there.
    if adit.why == "invalid: Checksum" && sent.what == NO_CHECKSUM {
        return Some("UDP over IPv6 without checksum");
    }
    let answered = matches!(adit.seen, Seen::Answered(_));
    if answered && kernel == Seen::Nothing && (!adit.checked || is_router_discovery(&sent.frame)) {
        return Some("answers about other protocols");
    }
    if mode == Mode::Bridge {
        return bridged(&sent.frame);
    }
    None
}

const TRACE: &str = "an invalid segment leaves no trace";

/// What the generator calls resets that both must let end a conversation, whatever its state.
const RIGHT_RESETS: [&str; 2] = ["RST", "refused"];

/// ICMP router advertisements and solicitations (RFC 1256), which the kernel takes for errors.
fn is_router_discovery(frame: &[u8]) -> bool {
    let at = 14 + usize::from(frame.get(14).copied().unwrap_or(0) & 15) * 4;
    let icmp = ethertype(frame, 12) == Some(IPV4) && frame.get(23) == Some(&1);
    icmp && matches!(frame.get(at), Some(9 | 10))
}

/// The flags of a frame without tags or extension headers that carries TCP.
fn tcp_flags(frame: &[u8]) -> Option<u8> {
    let (protocol, at) = match frame.get(14).map(|byte| byte >> 4) {
        Some(4) => (frame.get(23), 14 + usize::from(frame[14] & 15) * 4),
        _ => (frame.get(20), 54),
    };
    if protocol == Some(&6) { frame.get(at + 13).copied() } else { None }
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

#[cfg(test)]
mod tests {
    /// Every name that this file returns stands in the document, with a reason.
    #[test]
    fn every_wanted_difference_is_documented() {
        let document = include_str!("../../../docs/filter-differences.md");
        let code = include_str!("differences.rs");
        let mut names = 0;
        let returned = code.split("Some(\"").skip(1).filter_map(|rest| rest.split_once("\")"));
        for name in returned.map(|(name, _)| name).chain([super::TRACE]) {
            names += 1;
            let row = document.lines().find(|line| line.starts_with(&format!("| {name} |")));
            assert!(row.is_some_and(|row| row.matches('|').count() == 5), "{name}");
        }
        assert!(names >= 9);
    }
}
