//! The log lines of `verb 6` and above, about control packets, commands and notices of the data plane, timers, and the
//! engine's inputs. Packets of the data channel are never logged individually. Below these levels, each call costs one
//! load of an atomic, and data packets cause no calls.

use std::time::Duration;

use adit_engine::command::{Float, KeySlot, PeerSpec, Splice};
use adit_engine::{Command, DataFormat, Input, Instant, Link, Notice, Rate};
use adit_wire::ethernet::Mac;

use crate::log::wanted;
use crate::say;

/// The lowest verbosity at which each control packet is named.
const NAMES: u8 = 6;
/// The lowest verbosity at which sessions and keys in the data plane are traced.
const KEYS: u8 = 7;
/// The lowest verbosity at which the bytes of control packets on the wire are shown. They are encrypted except for the
/// header.
const BYTES: u8 = 8;
/// The lowest verbosity at which negotiated parameters and all other commands and notices of the data plane are logged.
const DETAILS: u8 = 9;
/// The lowest verbosity at which timers are shown.
const TIMERS: u8 = 10;
/// The lowest verbosity at which every input of the engine is shown, with its outcome.
const INPUTS: u8 = 11;
/// The maximum number of bytes shown.
const MAX_SHOWN: usize = 128;
/// The maximum number of routes shown.
const MAX_LISTED: usize = 16;
const SECOND: Duration = Duration::from_secs(1);

pub(super) fn read(link: &Link, frame: &[u8]) {
    if wanted(NAMES.into()) {
        line("READ", "from", link, frame);
    }
}

pub(super) fn write(link: &Link, frame: &[u8]) {
    if wanted(NAMES.into()) {
        line("WRITE", "to", link, frame);
    }
}

#[cold]
fn line(what: &str, preposition: &str, link: &Link, frame: &[u8]) {
    let protocol = if link.is_stream() { "TCP" } else { "UDP" };
    let (length, remote) = (frame.len(), link.remote());
    say!(NAMES, "{protocol} {what} [{length}] {preposition} {remote}: {}", name(frame));
    if wanted(BYTES.into()) {
        let shown = frame.get(..MAX_SHOWN).unwrap_or(frame);
        let hex: String = shown.iter().map(|byte| format!("{byte:02x}")).collect();
        let more = if shown.len() < length { "..." } else { "" };
        say!(BYTES, "{protocol} {what} DATA {hex}{more}");
    }
}

/// Traces a command to the data plane.
pub(super) fn command<F: DataFormat>(op: &Command<F>) {
    if !wanted(KEYS.into()) {
        return;
    }
    match op {
        Command::AddPeer(peer, spec) => {
            say!(KEYS, "peer {}: added, at {}", peer.0, spec.link.remote());
            say!(DETAILS, "peer {}: {}", peer.0, negotiated(spec));
        }
        Command::SetLink(peer, link) => say!(KEYS, "peer {}: now at {}", peer.0, link.remote()),
        Command::SetRelay(peer, relay) => {
            say!(KEYS, "peer {}: now by way of peer {}", peer.0, relay.0);
        }
        Command::AllowStation(peer, mac, allowed) => {
            say!(KEYS, "peer {}: station {}: allowed: {allowed}", peer.0, Mac(*mac));
        }
        Command::AddSplice(Splice { id, to, limit, .. }) => {
            let (from, limit) = (id.from.0, limit.map(|limit| limit.most_in(SECOND)));
            let limit = limit.map_or(String::new(), |bytes| format!(", {bytes} bytes a second"));
            say!(DETAILS, "peer {from}: packets with {} go to peer {}{limit}", id.label, to.0);
        }
        Command::DelSplice(id) => {
            say!(DETAILS, "peer {}: packets with {} stay here", id.from.0, id.label);
        }
        Command::LimitSplices(limit) => {
            let bytes =
                limit.map_or_else(|| "all".into(), |limit| limit.most_in(SECOND).to_string());
            say!(DETAILS, "relayed bytes in a second: {bytes}");
        }
        Command::DelPeer(peer) => say!(KEYS, "peer {}: removed", peer.0),
        Command::InstallKey(peer, slot, key) => {
            let id = F::key_id(key);
            say!(KEYS, "peer {}: key {id} installed: {}", peer.0, place(*slot));
            say!(DETAILS, "peer {}: key {id}: {key}", peer.0);
        }
        Command::SwapKeys(peer) => {
            say!(KEYS, "peer {}: the other key encrypts from now on", peer.0);
        }
        Command::DelKey(peer, slot) => {
            say!(KEYS, "peer {}: key forgotten: {}", peer.0, place(*slot));
        }
        Command::SetRoutes(peer, routes) => {
            let shown: Vec<String> =
                routes.iter().take(MAX_LISTED).map(ToString::to_string).collect();
            let more = if routes.len() > shown.len() { ", ..." } else { "" };
            say!(DETAILS, "peer {}: routes: {}{more}", peer.0, shown.join(", "));
        }
        Command::SetKeepalive(peer, keepalive) => {
            let (ping, silent) = (keepalive.interval, keepalive.timeout);
            say!(DETAILS, "peer {}: ping after {ping:?}, lost after {silent:?}", peer.0);
        }
        Command::SetMtu(peer, mtu) => say!(
            DETAILS,
            "peer {}: mss {} (IPv4), {} (IPv6), largest packet {}",
            peer.0,
            mtu.mss4,
            mtu.mss6,
            mtu.largest
        ),
        Command::SetRates(peer, rates) => {
            let rate = |rate: Option<Rate>| {
                rate.map_or_else(|| "all".into(), |rate| rate.most_in(SECOND).to_string())
            };
            let (received, sent) = (rate(rates.received), rate(rates.sent));
            say!(DETAILS, "peer {}: bytes in a second: {received} received, {sent} sent", peer.0);
        }
        Command::ProbePath(peer, size) => {
            say!(DETAILS, "peer {}: path probed with {size} bytes", peer.0);
        }
        Command::SendData(peer, message) => {
            say!(DETAILS, "peer {}: {} bytes sent on the data channel", peer.0, message.len());
        }
        Command::AdmitLink(link) => say!(DETAILS, "{}: address admitted", link.remote()),
        Command::DismissLink(link) => say!(DETAILS, "{}: address dismissed", link.remote()),
        Command::ReadTraffic(peer) => say!(INPUTS, "peer {}: traffic requested", peer.0),
    }
}

/// Traces a notice from the data plane.
pub(super) fn notice<F: DataFormat>(notice: &Notice<F>) {
    if !wanted(KEYS.into()) {
        return;
    }
    match notice {
        Notice::KeyFirstUse(peer, key) => {
            say!(KEYS, "peer {}: first packet under key {key}", peer.0);
        }
        Notice::KeyNearLimit(peer, key) => say!(KEYS, "peer {}: key {key} near its limit", peer.0),
        Notice::Floated(peer, link) => say!(KEYS, "peer {}: moved to {}", peer.0, link.remote()),
        Notice::PeerSilent(peer) => say!(KEYS, "peer {}: silent for the keepalive timeout", peer.0),
        Notice::PeerActive(peer) => say!(KEYS, "peer {}: active again", peer.0),
        Notice::PeerGone(peer, counters) => say!(
            KEYS,
            "peer {}: removed; {} packets received, {} sent",
            peer.0,
            counters.rx_packets,
            counters.tx_packets
        ),
        Notice::ProbeResult(peer, probed) => say!(
            DETAILS,
            "peer {}: probe of {} bytes left, the kernel's path MTU is {}",
            peer.0,
            probed.size,
            probed.kernel
        ),
        Notice::InBand(peer, message) => {
            say!(DETAILS, "peer {}: {} bytes received on the data channel", peer.0, message.len());
        }
        Notice::Violation(peer, what) => say!(DETAILS, "peer {}: misframed: {what:?}", peer.0),
        Notice::Unreachable(link, errno) => {
            let error = std::io::Error::from_raw_os_error(*errno);
            say!(DETAILS, "{}: unreachable: {error}", link.remote());
        }
        Notice::Unrouted(address) => say!(INPUTS, "{address}: no peer has a route"),
        Notice::StationHeard(peer, mac) => say!(KEYS, "peer {}: station {}", peer.0, Mac(*mac)),
        Notice::StationForgotten(peer, mac) => {
            say!(KEYS, "peer {}: station {} forgotten", peer.0, Mac(*mac));
        }
        Notice::Traffic(peer, traffic) => {
            say!(INPUTS, "peer {}: {} bytes so far", peer.0, traffic.bytes);
        }
    }
}

fn place(slot: KeySlot) -> &'static str {
    match slot {
        KeySlot::Primary => "primary, encrypts and decrypts",
        KeySlot::Secondary => "secondary, decrypts",
    }
}

fn negotiated<F: DataFormat>(spec: &PeerSpec<F>) -> String {
    let (ping, silent) = (spec.keepalive.interval, spec.keepalive.timeout);
    format!(
        "{}, float {}, replay window {}, ping after {ping:?}, lost after {silent:?}",
        spec.layout,
        match spec.float {
            Float::Refuse => "no",
            Float::Accept => "several paths",
            Float::Follow => "yes",
        },
        spec.replay_window
    )
}

/// Returns whether timers are shown.
pub(super) fn timers() -> bool {
    wanted(TIMERS.into())
}

/// Traces the next deadline, before the driver sleeps.
pub(super) fn sleeps(now: Instant, deadline: Option<(Instant, &'static str)>) {
    match deadline {
        Some((at, why)) => {
            let left = at.since(now);
            say!(TIMERS, "timer: {why} in {:.3} s", left.as_secs_f64());
        }
        None => say!(TIMERS, "timer: none"),
    }
}

/// Traces a deadline that has passed.
pub(super) fn fires(deadline: Option<(Instant, &'static str)>) {
    if let Some((_, why)) = deadline {
        say!(TIMERS, "timer: {why}: now");
    }
}

/// Returns whether inputs are traced, and must therefore be timed.
pub(super) fn inputs() -> bool {
    wanted(INPUTS.into())
}

/// Returns the kind of an input.
pub(super) fn kind<F: DataFormat>(input: &Input<'_, F>) -> &'static str {
    match input {
        Input::Tick => "timer",
        Input::ControlPacket(..) => "control packet",
        Input::LinkUp(_) => "link up",
        Input::DialFailed(_) => "dialling failed",
        Input::LinkDown(_) => "link down",
        Input::Notice(_) => "data plane's report",
        Input::AuthResponse(..) => "answer to a question",
    }
}

/// Traces the outcome of an input.
#[cold]
pub(super) fn handled(kind: &str, outputs: usize, took: Duration) {
    say!(INPUTS, "input: {kind}: {} us, outputs: {outputs}", took.as_micros());
}

/// Formats the opcode and key id as openvpn does.
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
