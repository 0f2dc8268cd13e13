//! The names of the common OpenVPN exporter, which reads OpenVPN's status file, for existing dashboards.
//!
//! Its labels with addresses, user names and times are left out.

use std::fmt::{self, Write};

use super::samples::write_labels;
use super::scrape::Peers;
use crate::clock::unix_time;
use crate::control::StatusReport;

/// Formats the metrics in the older text format, in which these names are valid.
pub(super) fn text(report: &StatusReport, peers: &Peers) -> String {
    let mut text = String::new();
    // Writing to a String cannot fail.
    let _ = write(&mut text, report, peers);
    text
}

fn write(out: &mut String, report: &StatusReport, peers: &Peers) -> fmt::Result {
    let status_path = [("status_path", report.instance.as_str())];
    let mut single = |name: &str, kind: &str, help: &str, value: u64| {
        head(out, name, kind, help)?;
        out.push_str(name);
        write_labels(out, &status_path)?;
        writeln!(out, " {value}")
    };
    single("openvpn_up", "gauge", "Whether scraping OpenVPN's metrics was successful.", 1)?;
    let updated = "UNIX timestamp at which the OpenVPN statistics were updated.";
    single("openvpn_status_update_time_seconds", "gauge", updated, unix_time().0)?;
    let sum = |of: fn(&super::PeerSample) -> u64| {
        peers.named.values().map(of).fold(0, u64::saturating_add)
    };
    // A point-to-point end has one session and no names of clients.
    if matches!(report.role.as_str(), "client" | "peer") {
        let counters = [
            ("openvpn_client_tcp_udp_read_bytes_total", sum(|peer| peer.received.1)),
            ("openvpn_client_tcp_udp_write_bytes_total", sum(|peer| peer.sent.1)),
        ];
        for (name, value) in counters {
            single(name, "counter", "Total amount of TCP/UDP traffic, in bytes.", value)?;
        }
        return Ok(());
    }
    let help = "Number of connected clients.";
    single("openvpn_server_connected_clients", "gauge", help, peers.total())?;
    for (name, help, of) in [
        (
            "openvpn_server_client_received_bytes_total",
            "Amount of data received over a connection on the VPN server, in bytes.",
            (|peer| peer.received.1) as fn(&super::PeerSample) -> u64,
        ),
        (
            "openvpn_server_client_sent_bytes_total",
            "Amount of data sent over a connection on the VPN server, in bytes.",
            |peer| peer.sent.1,
        ),
    ] {
        head(out, name, "counter", help)?;
        for (client, peer) in &peers.named {
            out.push_str(name);
            write_labels(out, &[("status_path", &report.instance), ("common_name", client)])?;
            writeln!(out, " {}", of(peer))?;
        }
    }
    let name = "openvpn_server_route_last_reference_time_seconds";
    head(out, name, "gauge", "Time at which a route was last referenced, in seconds.")?;
    for (client, peer) in &peers.named {
        let Some(seen) = peer.last_seen else { continue };
        out.push_str(name);
        write_labels(out, &[("status_path", &report.instance), ("common_name", client)])?;
        writeln!(out, " {seen}")?;
    }
    Ok(())
}

fn head(out: &mut String, name: &str, kind: &str, help: &str) -> fmt::Result {
    writeln!(out, "# HELP {name} {help}\n# TYPE {name} {kind}")
}

#[cfg(test)]
mod tests {
    use super::super::PeerSample;
    use super::*;

    /// A point-to-point end has the client's names, which need no common name.
    #[test]
    fn an_end_with_one_session_has_the_names_of_a_client() {
        let mut peers = Peers::default();
        let sample = PeerSample {
            id: 1,
            name: "server".into(),
            proto: "udp",
            connected: true,
            since: None,
            last_seen: Some(2),
            received: (3, 4),
            sent: (5, 6),
            round_trip: None,
            path_mtu: None,
            lag: None,
        };
        peers.add(vec![sample], 1);
        let of = |role: &str| {
            let instance = "a".to_owned();
            text(&StatusReport { role: role.into(), instance, ..StatusReport::default() }, &peers)
        };
        assert!(of("server").contains("openvpn_server_connected_clients{status_path=\"a\"} 1\n"));
        for role in ["client", "peer"] {
            let text = of(role);
            assert!(!text.contains("openvpn_server_"), "{role}: {text}");
            for line in [
                "openvpn_client_tcp_udp_read_bytes_total{status_path=\"a\"} 4\n",
                "openvpn_client_tcp_udp_write_bytes_total{status_path=\"a\"} 6\n",
            ] {
                assert!(text.contains(line), "{role}: {text}");
            }
        }
    }
}
