//! The metrics of an OpenVPN server that a status report does not have.

use std::collections::BTreeMap;
use std::time::Duration;

use adit_openvpn::server::ServerEvent;
use adit_runtime::metrics::{Durations, PeerSample, SLICE, Samples, table};

use super::Sessions;

/// The outcomes of handshakes and renegotiations.
#[derive(Debug, Default)]
pub struct HandshakeStats {
    successful: u64,
    /// The numbers of failed handshakes by the stable name of the reason.
    failed: BTreeMap<&'static str, u64>,
    durations: Durations,
    rekeys: u64,
}

impl HandshakeStats {
    /// Counts a handshake that led to a session, with its duration if it is known.
    pub fn succeeded(&mut self, took: Option<Duration>) {
        self.successful = self.successful.saturating_add(1);
        if let Some(took) = took {
            self.durations.record(took);
        }
    }

    /// Counts a handshake that failed, by the stable name of the reason.
    pub fn failed(&mut self, reason: &'static str) {
        let count = self.failed.entry(reason).or_default();
        *count = count.saturating_add(1);
    }

    /// Counts a new data key.
    pub fn rekeyed(&mut self) {
        self.rekeys = self.rekeys.saturating_add(1);
    }

    /// Takes note of an event of the engine.
    pub(super) fn record(&mut self, event: &ServerEvent) {
        match event {
            ServerEvent::ClientUp(info) => self.succeeded(Some(info.handshake)),
            ServerEvent::HandshakeFailed(_, reason) | ServerEvent::Refused(_, _, reason) => {
                self.failed(reason.name());
            }
            ServerEvent::Rekeyed(..) => self.rekeyed(),
            _ => {}
        }
    }

    /// Adds the counters to the samples. `rekeys_failed` is the number of renegotiations that failed.
    pub fn measure(&self, rekeys_failed: u64, samples: &mut Samples) {
        samples.count(&table::HANDSHAKES, ["success", ""], self.successful);
        for (reason, count) in &self.failed {
            samples.count(&table::HANDSHAKES, ["failure", reason], *count);
        }
        samples.durations(&table::HANDSHAKE_DURATION, [], &self.durations);
        samples.count(&table::REKEYS, ["success"], self.rekeys);
        samples.count(&table::REKEYS, ["failure"], rekeys_failed);
    }
}

/// Returns the next clients for the metrics, with the counters that the last tick read.
pub(super) fn sample_peers(sessions: &Sessions, after: Option<u64>) -> Vec<PeerSample> {
    let next = sessions.after(after).take(SLICE);
    next.map(|session| {
        let counters = &session.counters;
        PeerSample {
            id: session.info.peer.0.into(),
            name: session.info.identity.common_name.clone(),
            proto: if session.info.link.is_stream() { "tcp" } else { "udp" },
            connected: true,
            since: Some(session.info.since.0),
            last_seen: Some(session.heard),
            received: (counters.rx_packets, counters.rx_bytes),
            sent: (counters.tx_packets, counters.tx_bytes),
            round_trip: None,
            path_mtu: session.path.mtu,
            lag: None,
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use adit_engine::{Instant, Link, PeerId, SocketId};
    use adit_openvpn::server::ClientInfo;
    use adit_openvpn::{Reason, tls::PeerIdentity};

    use super::*;

    fn info(peer: u32) -> ClientInfo {
        ClientInfo {
            peer: PeerId(peer),
            identity: PeerIdentity { common_name: format!("c{peer}"), ..PeerIdentity::default() },
            handshake: Duration::from_millis(20),
            ..crate::log_limits::tests::info()
        }
    }

    #[test]
    fn handshakes_are_counted_by_reason_and_timed() {
        let mut stats = HandshakeStats::default();
        let link = Link::datagram(SocketId(0), None, ([192, 0, 2, 1], 1).into());
        for event in [
            ServerEvent::ClientUp(Box::new(info(1))),
            ServerEvent::HandshakeFailed(link, Reason::HandshakeTimeout),
            ServerEvent::HandshakeFailed(link, Reason::HandshakeTimeout),
            ServerEvent::Refused(link, Box::default(), Reason::Rejected("no \u{1b}".into())),
            ServerEvent::Rekeyed(PeerId(1), 1),
        ] {
            stats.record(&event);
        }
        let mut samples = Samples::default();
        stats.measure(2, &mut samples);
        let text = samples.text();
        for line in [
            "adit_handshakes_total{result=\"success\",reason=\"\"} 1\n",
            "adit_handshakes_total{result=\"failure\",reason=\"handshake-timeout\"} 2\n",
            "adit_handshakes_total{result=\"failure\",reason=\"rejected\"} 1\n",
            "adit_handshake_duration_seconds_bucket{le=\"0.025\"} 1\n",
            "adit_rekeys_total{result=\"success\"} 1\n",
            "adit_rekeys_total{result=\"failure\"} 2\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn clients_come_in_slices_in_the_order_of_their_ids() {
        let mut sessions = Sessions::default();
        for peer in (0..300).rev() {
            let up = ServerEvent::ClientUp(Box::new(info(peer)));
            sessions.record(Instant::default(), &up);
        }
        let (mut after, mut all, mut slices) = (None, Vec::new(), 0);
        loop {
            let slice = sample_peers(&sessions, after);
            let Some(last) = slice.last() else { break };
            assert!(slice.len() <= SLICE);
            (after, slices) = (Some(last.id), slices + 1);
            all.extend(slice.into_iter().map(|peer| peer.id));
        }
        assert_eq!((slices, all), (3, (0..300).collect::<Vec<u64>>()));
    }
}
