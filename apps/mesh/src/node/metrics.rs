//! The metrics of a node that a status report does not have.

use std::collections::{BTreeMap, HashMap};

use adit_engine::command::Counters;
use adit_mesh::node::{NodeEvent, RouteKind};
use adit_mesh::path::Route;
use adit_mesh::roster::Action;
use adit_mesh::session::{KeyHash, Reason};
use adit_openvpn_service::HandshakeStats;
use adit_runtime::clock::{now, unix_time};
use adit_runtime::metrics::{PeerSample, SLICE, Samples, table};

use super::Running;

/// Counters of events.
#[derive(Debug, Default)]
pub(super) struct NodeStats {
    handshakes: HandshakeStats,
    /// The last path to each member that has one.
    paths: HashMap<KeyHash, &'static str>,
    path_changes: BTreeMap<[&'static str; 3], u64>,
    roster_changes: BTreeMap<&'static str, u64>,
}

impl NodeStats {
    /// Takes note of an event of the node.
    pub(super) fn record(&mut self, event: &NodeEvent) {
        match event {
            NodeEvent::Connected { .. } => self.handshakes.succeeded(None),
            NodeEvent::Disconnected { peer, reason } => {
                self.paths.remove(peer);
                match reason {
                    Reason::Failed(_)
                    | Reason::BadHello(_)
                    | Reason::WrongHello
                    | Reason::NotMember => {
                        self.handshakes.failed(reason.name());
                    }
                    _ => {}
                }
            }
            NodeEvent::Path { peer, route } => {
                let to = match route {
                    Route::Direct { .. } => "direct",
                    Route::Stream { .. } => "stream",
                    Route::Relay(_) => "relay",
                };
                let from = self.paths.insert(*peer, to).unwrap_or("none");
                let reason = match (from, to) {
                    ("none", _) => "connected",
                    (from, to) if from == to => "address",
                    (_, "direct") => "better",
                    _ => "lost",
                };
                let count = self.path_changes.entry([from, to, reason]).or_default();
                *count = count.saturating_add(1);
            }
            _ => {}
        }
    }

    /// Counts a change of the mesh.
    pub(super) fn changed(&mut self, action: &Action) {
        let kind = match action {
            Action::Admit { .. } => "admit",
            Action::Revoke(_) => "revoke",
            Action::SetPolicy(_) => "policy",
            Action::Grant { .. } => "grant",
            Action::SetNames { .. } => "describe",
            Action::SetThreshold(_) => "threshold",
            Action::Rotate(_) => "rotate",
            Action::Approve(_) => "approve",
        };
        let count = self.roster_changes.entry(kind).or_default();
        *count = count.saturating_add(1);
    }

    /// Adds the counters to the samples.
    pub(super) fn measure(&self, samples: &mut Samples) {
        self.handshakes.measure(0, samples);
        for ([from, to, reason], count) in &self.path_changes {
            samples.count(&table::MESH_PATH_CHANGES, [from, to, reason], *count);
        }
        for (kind, count) in &self.roster_changes {
            samples.count(&table::MESH_ROSTER_CHANGES, [kind], *count);
        }
    }
}

impl Running {
    /// Returns the next members for the metrics, in the order of their keys' hashes.
    pub(super) fn members_after(&self, after: Option<u64>) -> Vec<PeerSample> {
        let node = self.driver.engine();
        let mut keys: Vec<(u64, KeyHash)> = node.peers().map(|key| (number(&key), key)).collect();
        keys.retain(|(number, _)| after.is_none_or(|after| *number > after));
        keys.sort_unstable();
        keys.truncate(SLICE);
        keys.into_iter().map(|(number, key)| self.member_sample(number, &key)).collect()
    }

    fn member_sample(&self, id: u64, key: &KeyHash) -> PeerSample {
        let (node, plane) = (self.driver.engine(), self.driver.backend().plane());
        let peer = node.peer(now(), key);
        let path = match peer.route {
            RouteKind::None => "none",
            RouteKind::Connecting => "connecting",
            RouteKind::Direct(_) if peer.stream => "stream",
            RouteKind::Direct(_) => "direct",
            RouteKind::Relay(_) => "relay",
            RouteKind::Leaf(_) => "leaf",
        };
        let channels = node.channels(key).iter().filter_map(|channel| plane.counters(*channel));
        let traffic = channels.fold(Counters::default(), Counters::plus);
        PeerSample {
            id,
            name: self.name(key),
            proto: path,
            connected: peer.connected_for.is_some(),
            since: peer.connected_for.map(|age| unix_time().0.saturating_sub(age.as_secs())),
            last_seen: None,
            received: (traffic.rx_packets, traffic.rx_bytes),
            sent: (traffic.tx_packets, traffic.tx_bytes),
            round_trip: peer.rtt,
            path_mtu: None,
            lag: None,
        }
    }
}

/// Returns the first bytes of the hash of a member's key.
fn number(key: &KeyHash) -> u64 {
    let mut first = [0; 8];
    first.iter_mut().zip(key.iter()).for_each(|(to, from)| *to = *from);
    u64::from_be_bytes(first)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_handshakes_and_changes_are_counted_by_kind() {
        let mut stats = NodeStats::default();
        let (peer, relay) = ([1; 32], [2; 32]);
        for event in [
            NodeEvent::Connected { peer, via: None, stream: false },
            NodeEvent::Path { peer, route: Route::Relay(relay) },
            NodeEvent::Disconnected { peer, reason: Reason::Idle },
            NodeEvent::Path { peer, route: Route::Relay(relay) },
            NodeEvent::Disconnected { peer: relay, reason: Reason::NotMember },
        ] {
            stats.record(&event);
        }
        stats.changed(&Action::SetThreshold(2));
        let mut samples = Samples::default();
        stats.measure(&mut samples);
        let text = samples.text();
        for line in [
            "adit_handshakes_total{result=\"success\",reason=\"\"} 1\n",
            "adit_handshakes_total{result=\"failure\",reason=\"not-a-member\"} 1\n",
            "adit_mesh_path_changes_total{from=\"none\",to=\"relay\",reason=\"connected\"} 2\n",
            "adit_mesh_roster_changes_total{kind=\"threshold\"} 1\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn members_are_in_the_order_of_their_hashes() {
        let mut low = [0; 32];
        low[7] = 1;
        assert!(number(&low) == 1 && number(&[1; 32]) > number(&low));
    }
}
