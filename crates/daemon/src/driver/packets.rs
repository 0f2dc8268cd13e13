//! Lines about single control packets, from `verb 6` on. Packets of the data channel are never logged one by
//! one.

use adit_engine::Link;

use crate::say;

/// From here on each control packet is named.
const NAMES: u8 = 6;
/// From here on its bytes are shown: what is on the wire, encrypted but for the header.
const BYTES: u8 = 8;
/// Bytes that are shown at most.
const MAX_SHOWN: usize = 128;

pub(super) fn read(link: &Link, frame: &[u8]) {
    if crate::log::wanted(NAMES.into()) {
        line("READ", "from", link, frame);
    }
}

pub(super) fn write(link: &Link, frame: &[u8]) {
    if crate::log::wanted(NAMES.into()) {
        line("WRITE", "to", link, frame);
    }
}

#[cold]
fn line(what: &str, preposition: &str, link: &Link, frame: &[u8]) {
    let protocol = if link.is_stream() { "TCP" } else { "UDP" };
    let (length, remote) = (frame.len(), link.remote());
    say!(NAMES, "{protocol} {what} [{length}] {preposition} {remote}: {}", name(frame));
    if crate::log::wanted(BYTES.into()) {
        let shown = frame.get(..MAX_SHOWN).unwrap_or(frame);
        let hex: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
        let more = if shown.len() < length { "..." } else { "" };
        say!(BYTES, "{protocol} {what} DATA {hex}{more}");
    }
}

/// Opcode and key id as openvpn names them.
fn name(frame: &[u8]) -> String {
    let Some(first) = frame.first() else { return "empty".into() };
    let opcode = match first >> 3 {
        1 => "P_CONTROL_HARD_RESET_CLIENT_V1",
        2 => "P_CONTROL_HARD_RESET_SERVER_V1",
        3 => "P_CONTROL_SOFT_RESET_V1",
        4 => "P_CONTROL_V1",
        5 => "P_ACK_V1",
        7 => "P_CONTROL_HARD_RESET_CLIENT_V2",
        8 => "P_CONTROL_HARD_RESET_SERVER_V2",
        10 => "P_CONTROL_HARD_RESET_CLIENT_V3",
        11 => "P_CONTROL_WKC_V1",
        other => return format!("opcode {other} kid={}", first & 7),
    };
    format!("{opcode} kid={}", first & 7)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packets_are_named_by_their_first_byte() {
        assert_eq!(name(&[0x38, 1, 2]), "P_CONTROL_HARD_RESET_CLIENT_V2 kid=0");
        assert_eq!(name(&[5 << 3 | 3]), "P_ACK_V1 kid=3");
        assert_eq!(name(&[31 << 3 | 1]), "opcode 31 kid=1");
        assert_eq!(name(&[]), "empty");
    }
}
