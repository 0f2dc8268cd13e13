//! A client's status report.

use super::Running;
use super::engines::DrivenEngine;
use adit_engine::command::Counters;
use adit_openvpn_service::tun_report;
use adit_runtime::clock::now;
use adit_runtime::control::{PeerReport, StatusReport};
use adit_runtime::metrics::PeerSample;
use adit_runtime::plane_backend::fill_totals;

impl<E: DrivenEngine> Running<'_, E> {
    /// Completes the report for `adit status`.
    pub(super) fn complete(&mut self, report: &mut StatusReport) {
        self.refresh();
        if self.peer.is_none() {
            report.state = "connecting".into();
        }
        report.endpoints = vec![self.server.clone()];
        report.tun = tun_report(&self.host);
        report.certificate = self.hooks.certificate();
        report.routing.clone_from(&self.routing);
        if self.peer.is_some() && self.tunnel.is_some() {
            report.dns = Some(self.host.dns_in_use());
        }
        fill_totals(report, self.driver.backend().plane());
    }

    /// Returns the session's traffic on both channels.
    fn session_traffic(&self) -> Counters {
        self.session.plus(self.driver.control_traffic().since(self.past_control))
    }

    /// Returns the session for the metrics.
    pub(super) fn peer_sample(&mut self) -> Option<PeerSample> {
        self.refresh();
        let peer = self.peer?;
        let traffic = self.session_traffic();
        Some(PeerSample {
            id: peer.0.into(),
            // The server's address is not a label.
            name: "server".into(),
            proto: if self.stream { "tcp" } else { "udp" },
            connected: true,
            since: Some(self.since),
            last_seen: None,
            received: (traffic.rx_packets, traffic.rx_bytes),
            sent: (traffic.tx_packets, traffic.tx_bytes),
            round_trip: None,
            path_mtu: self.path.mtu,
            lag: None,
        })
    }

    /// Returns the session for `adit status`.
    pub(super) fn peer_report(&self) -> Option<PeerReport> {
        let (peer, tunnel) = (self.peer?, self.tunnel.as_ref()?);
        // The server may have moved since then.
        let link = self.driver.backend().plane().link(peer);
        let remote = self.relay.or(link.map(|link| link.remote())).or(tunnel.remote);
        let inside = [
            tunnel.ipv4.map(|net| net.addr().to_string()),
            tunnel.ipv6.map(|net| net.addr().to_string()),
        ];
        let session = self.session_traffic();
        Some(PeerReport {
            id: peer.0,
            name: self.server.clone(),
            address: remote.map(|remote| remote.to_string()).unwrap_or_default(),
            transport: if self.stream { "tcp" } else { "udp" }.into(),
            tunnel: inside.into_iter().flatten().collect(),
            cipher: tunnel.cipher.map_or(self.fixed_cipher, |c| c.name()).to_owned(),
            tls: self.tls.clone(),
            since: self.since,
            key_age_s: now().since(self.key_since).as_secs(),
            rx_packets: session.rx_packets,
            rx_bytes: session.rx_bytes,
            tx_packets: session.tx_packets,
            tx_bytes: session.tx_bytes,
            path_mtu: self.path.mtu,
            mss: Some(self.path.mss4).filter(|mss| *mss != 0),
            ..PeerReport::default()
        })
    }
}
