//! A client's status report and its answers on the control socket.

use super::engines::DrivenEngine;
use super::{Hooks, Running};
use adit_openvpn_service::tun_report;
use adit_runtime::clock::{now, unix_time};
use adit_runtime::control::{PeerReport, Request, Response, StatusReport};
use adit_runtime::plane_backend::fill_totals;

impl<E: DrivenEngine> Running<E> {
    pub(super) fn answer(&mut self, request: Request, hooks: &mut dyn Hooks) -> Response {
        match request {
            Request::Status => Response::Status(Box::new(self.report(hooks))),
            Request::Stop => Response::Done { count: 1 },
            Request::Reload
            | Request::ReloadClients
            | Request::Kick { .. }
            | Request::FilterShow { .. }
            | Request::FilterReload { .. }
            | Request::FilterFlush { .. }
            | Request::FilterElement { .. }
            | Request::FilterCapture { .. } => Response::Error {
                message: "this is a client: it can be asked for its status, or to stop".into(),
            },
        }
    }

    fn report(&mut self, hooks: &mut dyn Hooks) -> StatusReport {
        self.refresh();
        let uptime = now().since(self.started).as_secs();
        let mut report = StatusReport {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            role: self.role.into(),
            instance: self.instance.clone(),
            state: if self.peer.is_some() { "running" } else { "connecting" }.into(),
            pid: std::process::id(),
            started: unix_time().0.saturating_sub(uptime),
            uptime_s: uptime,
            endpoints: vec![self.server.clone()],
            tun: tun_report(&self.host),
            certificate: hooks.certificate(),
            routing: self.routing.clone(),
            ..StatusReport::default()
        };
        if let (Some(peer), Some(tunnel)) = (self.peer, &self.tunnel) {
            // It may have moved since.
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
        fill_totals(&mut report, self.driver.backend().plane());
        report
    }
}
