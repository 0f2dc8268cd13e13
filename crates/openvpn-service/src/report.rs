//! The parts of a status report that servers, clients and nodes of a mesh have in common.

use adit_openvpn::server::ServerCounters;
use adit_runtime::control::TunReport;
use adit_runtime::host::HostHandle;

/// Returns the counts of packets that a server's engine dropped or refused, by their names in a status report.
pub fn server_drops(counters: &ServerCounters) -> [(&'static str, u64); 20] {
    [
        ("reset-limited", counters.resets_limited),
        ("stranger-bad", counters.unauthenticated_bad),
        ("stranger-unchecked", counters.unauthenticated_unchecked),
        ("key-expired", counters.keys_expired),
        ("cookie-bad", counters.cookies_bad),
        ("cookie-used", counters.cookies_used),
        ("cookie-forgotten", counters.cookies_forgotten),
        ("start-limited", counters.starts_limited),
        ("half-open-refused", counters.half_open_refused),
        ("half-open-forgotten", counters.half_open_forgotten),
        ("handshake-refused", counters.handshakes_refused),
        ("held-excess", counters.held_excess),
        ("control-bad", counters.session_bad),
        ("control-delayed", counters.delayed),
        ("control-excess", counters.messages_excess),
        ("end-unconfirmed", counters.ended_unconfirmed),
        ("replaced-untold", counters.replaced_unnotified),
        ("stream-refused", counters.streams_refused),
        ("stream-silent", counters.streams_silent),
        ("stream-bad", counters.streams_bad),
    ]
}

/// Returns the device, for a status report; `None` before it is set up.
pub fn tun_report(host: &HostHandle) -> Option<TunReport> {
    let (name, plan) = (host.device()?, host.plan()?);
    Some(TunReport {
        name: name.to_owned(),
        mtu: u32::from(plan.mtu),
        addresses: plan.addresses.iter().map(ToString::to_string).collect(),
    })
}
