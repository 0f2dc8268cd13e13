//! A client's status report.

use super::Running;
use super::engines::DrivenEngine;
use adit_openvpn_service::tun_report;
use adit_runtime::clock::now;
use adit_runtime::control::{PeerReport, StatusReport};
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
        if let (Some(peer), Some(tunnel)) = (self.peer, &self.tunnel) {
            // The server may have moved since then.
            let link = self.driver.backend().plane().link(peer);
            let remote = self.relay.or(link.map(|link| link.remote())).or(tunnel.remote);
            report.dns = Some(self.host.dns_in_use());
            let inside = [
                tunnel.ipv4.map(|net| net.addr().to_string()),
                tunnel.ipv6.map(|net| net.addr().to_string()),
            ];
            let control = self.driver.control_traffic().since(self.past_control);
            let session = self.session.plus(control);
            report.peers.push(PeerReport {
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
            });
        }
        fill_totals(report, self.driver.backend().plane());
    }
}
