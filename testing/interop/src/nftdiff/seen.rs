//! Determines the result for a frame from the frames that came out.

use super::case::{FrameResult, Mode, Notification};
use super::frame::{IPV4, IPV6, Side};

/// Returns the result for `sent`, which arrived at `side`, given the frames that came out.
pub fn judge(mode: Mode, side: Side, sent: &[u8], came: &[(Side, Vec<u8>)]) -> FrameResult {
    let mut seen = FrameResult::Nothing;
    for (at, frame) in came {
        if mode == Mode::Bridge {
            seen = if *at == side.other() {
                FrameResult::Passed
            } else {
                FrameResult::Answered(answer(network(frame)))
            };
            continue;
        }
        // The kernel itself sends multicast packets; multicast packets are not routed.
        if frame.first().is_none_or(|byte| byte & 1 == 1) || !is_ip(frame) {
            continue;
        }
        // An answer has another source, whatever its path.
        if source(frame).is_some() && source(frame) == source(sent) {
            seen = FrameResult::Passed;
        } else {
            seen = FrameResult::Answered(frame.get(14..).map_or(Notification::Strange, answer));
        }
    }
    seen
}

/// Returns the payload of a frame, after one VLAN tag or none.
pub fn network(frame: &[u8]) -> &[u8] {
    let tagged = frame.get(12..14) == Some(&[0x81, 0]);
    frame.get(if tagged { 18 } else { 14 }..).unwrap_or_default()
}

fn is_ip(frame: &[u8]) -> bool {
    let ethertype = [IPV4.to_be_bytes(), IPV6.to_be_bytes()];
    frame.get(12..14).is_some_and(|bytes| ethertype.iter().any(|ip| ip == bytes))
}

fn source(frame: &[u8]) -> Option<&[u8]> {
    match frame.get(14)? >> 4 {
        4 => frame.get(26..30),
        6 => frame.get(22..38),
        _ => None,
    }
}

/// Returns the contents of an IP packet that is an answer.
pub fn answer(packet: &[u8]) -> Notification {
    read(packet).unwrap_or(Notification::Strange)
}

fn read(packet: &[u8]) -> Option<Notification> {
    let (protocol, at) = match packet.first()? >> 4 {
        4 => (*packet.get(9)?, usize::from(packet.first()? & 15) * 4),
        6 => (*packet.get(6)?, 40),
        _ => return None,
    };
    let word =
        |from: usize| packet.get(at + from..at + from + 4).and_then(|bytes| bytes.try_into().ok());
    match protocol {
        6 => Some(Notification::Reset {
            seq: u32::from_be_bytes(word(4)?),
            ack: u32::from_be_bytes(word(8)?),
            flags: *packet.get(at + 13)?,
        }),
        1 | 58 => Some(Notification::Error {
            v6: protocol == 58,
            kind: *packet.get(at)?,
            code: *packet.get(at + 1)?,
        }),
        _ => None,
    }
}
