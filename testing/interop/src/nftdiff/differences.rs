//! The intended differences. docs/filter.md gives the name and the reason of each.

use std::collections::BTreeMap;

use super::adit::{AditResult, RESET_IGNORED};
use super::case::{FrameResult, Mode, Notification, SentFrame};
use super::compare::{Case, ResultPair};
use super::frame::{ARP, IPV4, IPV6};
use super::packets::{NO_CHECKSUM, WITHIN};

/// Returns the frames of a case whose difference is intended, and its name.
pub fn all(case: &Case, both: &ResultPair) -> BTreeMap<usize, &'static str> {
    let frames = case.frames.iter().zip(&both.seen).enumerate();
    let named =
        |(at, (sent, (kernel, adit))): (usize, (&SentFrame, &(FrameResult, AditResult)))| {
            wanted(case.mode, sent, *kernel, adit).map(|name| (at, name))
        };
    frames.filter_map(named).collect()
}

/// Returns frames that both treated alike but after which the kernel has another state of their connection. Called only
/// if something differs. `states` are the kernel's states of each frame.
pub fn traces(both: &ResultPair, states: &[String]) -> BTreeMap<usize, &'static str> {
    let until = both.differs().unwrap_or(both.seen.len());
    let name = |((kernel, adit), state): (&(FrameResult, AditResult), &String)| {
        let control = adit.flags.is_some_and(|flags| flags & (FIN | SYN | RST) != 0);
        if control && adit.why.starts_with("invalid:") && state.contains("invalid") {
            return Some("an invalid segment leaves no trace");
        }
        let reset = matches!(kernel, FrameResult::Answered(Notification::Reset { .. }))
            && *kernel == adit.seen;
        (reset && state.contains("established")).then_some("own resets are not tracked")
    };
    let frames = both.seen.iter().zip(states).take(until).enumerate();
    frames.filter_map(|(at, frame)| name(frame).map(|name| (at, name))).collect()
}

/// Returns the name of the intended difference, if this is one. Some show only in counters. These frames are removed
/// although both treated them alike.
pub fn wanted(
    mode: Mode,
    sent: &SentFrame,
    kernel: FrameResult,
    adit: &AditResult,
) -> Option<&'static str> {
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
    // RFC 5961 3.2 and RFC 9293 3.10.7.3: the kernel accepts any number within the window.
    let is_reset = adit.flags.is_some_and(|flags| flags & RST != 0);
    let refused = ["invalid: Reset", "invalid: Sequence"].contains(&adit.why.as_str());
    if is_reset && refused || adit.why == RESET_IGNORED {
        return Some(RESET);
    }
    // RFC 8200 8.1: the checksum is not optional there.
    if adit.why == "invalid: Checksum" && sent.what == NO_CHECKSUM {
        return Some("UDP over IPv6 without checksum");
    }
    let answered = matches!(adit.seen, FrameResult::Answered(_));
    if answered
        && kernel == FrameResult::Nothing
        && (!adit.checked || is_router_discovery(&sent.frame))
    {
        return Some("answers about other protocols");
    }
    if kernel != adit.seen && adit.seen == FrameResult::Nothing && is_redirect6(&sent.frame) {
        return Some("answers to an ICMPv6 redirect");
    }
    if mode == Mode::Bridge {
        return bridged(&sent.frame);
    }
    None
}

const FIN: u8 = 1;
const SYN: u8 = 2;
const RST: u8 = 4;

/// The most frequent of the differences. [`super::run`] makes sure that resets are accepted too.
pub const RESET: &str = "a reset that is not exact";

/// Returns whether a frame is an ICMPv6 redirect without extension headers.
fn is_redirect6(frame: &[u8]) -> bool {
    ethertype(frame, 12) == Some(IPV6) && frame.get(20) == Some(&58) && frame.get(54) == Some(&137)
}

/// Returns whether a frame is an ICMP router advertisement or solicitation (RFC 1256), which the kernel takes for an
/// error.
fn is_router_discovery(frame: &[u8]) -> bool {
    let at = 14 + usize::from(frame.get(14).copied().unwrap_or(0) & 15) * 4;
    let icmp = ethertype(frame, 12) == Some(IPV4) && frame.get(23) == Some(&1);
    icmp && matches!(frame.get(at), Some(9 | 10))
}

/// Returns whether a frame is an atomic IPv6 fragment (RFC 6946). The kernel removes its fragment header, and adit
/// keeps it.
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
    // It does not matter here which extension header precedes ICMPv6.
    let icmp = [1, 58, 0, 43, 60].contains(protocol);
    (tagged && icmp).then_some("ARP and ICMP behind a tag")
}

#[cfg(test)]
mod tests {
    /// The document lists every name that this file returns, with a reason.
    #[test]
    fn every_wanted_difference_is_documented() {
        let document = include_str!("../../../../docs/filter-differences.md");
        let code = include_str!("differences.rs");
        let mut names = 0;
        let returned = code.split("ome(\"").skip(1).filter_map(|rest| rest.split_once("\")"));
        for name in returned.map(|(name, _)| name).chain([RESET]) {
            names += 1;
            let row = document.lines().find(|line| line.starts_with(&format!("| {name} |")));
            assert!(row.is_some_and(|row| row.matches('|').count() == 5), "{name}");
        }
        assert!(names >= 9);
    }
    use super::*;
    use crate::nftdiff::frame::Side;

    fn named(what: &'static str, why: &str, flags: u8) -> Option<&'static str> {
        let sent = SentFrame { side: Side::A, frame: vec![0; 60], what: what.into() };
        let made = AditResult {
            seen: FrameResult::Nothing,
            why: why.to_owned(),
            checked: true,
            flags: Some(flags),
        };
        wanted(Mode::Route, &sent, FrameResult::Passed, &made)
    }

    #[test]
    fn only_a_reset_that_is_not_where_it_should_be_is_taken_out() {
        assert!(named("RST far outside", "invalid: Reset", RST).is_some());
        assert_eq!(named("RST", "invalid: Acknowledgement", RST), None);
        assert_eq!(named("RST", "invalid: Checksum", RST), None);
        assert_eq!(named("data", "invalid: Reset", 16), None);
    }

    #[test]
    fn a_verdict_of_the_rules_is_never_a_wanted_difference() {
        assert_eq!(named("data", "CtState(2) Reply Some(6)", 16), None);
        assert_eq!(named("data", "no state", 16), None);
        assert_eq!(named("data", "invalid: Sequence", 16), None);
        assert_eq!(named("UDP", "invalid: Checksum", 0), None);
        assert_eq!(named("pieces in order", "piece: refused", 0), None);
    }
}
