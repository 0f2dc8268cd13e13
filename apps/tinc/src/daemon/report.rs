//! The state of a daemon for `adit status`, `adit top` and metrics.

use std::collections::{BTreeMap, HashSet};

use adit_engine::Instant;
use adit_runtime::clock::{now, unix_time};
use adit_runtime::control::{StatusReport, TincNode, TincReport};
use adit_runtime::metrics::{Durations, PeerSample, SLICE, Samples, table};
use adit_tinc::aead::Cipher;
use adit_tinc::config::Mode;
use adit_tinc::name::{NodeId, NodeName};
use adit_tinc::node::{CloseReason, Event, MAX_CONNECTIONS, MAX_UNAUTHENTICATED, NodeInfo, Totals};
use adit_tinc::route::DropReason;

use super::rows::{Changes, SPTPS_MINOR};
use super::running::Running;

/// Counters of events.
#[derive(Debug, Default)]
pub(super) struct Statistics {
    successful: u64,
    failed: BTreeMap<&'static str, u64>,
    durations: Durations,
    rekeys: u64,
    /// The neighbours with a connection, whose end is no failed handshake.
    neighbours: HashSet<NodeName>,
    pub(super) learned_keys: u64,
}

impl Statistics {
    /// Takes note of an event.
    pub(super) fn record(&mut self, event: &Event) {
        match event {
            Event::Connected { node, took, .. } => {
                self.successful = self.successful.saturating_add(1);
                self.durations.record(*took);
                self.neighbours.insert(node.clone());
            }
            Event::Disconnected { node, reason, .. } => {
                let was_connected = node.as_ref().is_some_and(|node| self.neighbours.remove(node));
                if let Some(name) = failure(reason).filter(|_| !was_connected) {
                    let count = self.failed.entry(name).or_default();
                    *count = count.saturating_add(1);
                }
            }
            Event::KeysRenewed(_) => self.rekeys = self.rekeys.saturating_add(1),
            Event::KeyLearned { .. } => self.learned_keys = self.learned_keys.saturating_add(1),
            _ => {}
        }
    }

    /// Adds the counters to the samples.
    pub(super) fn measure(&self, samples: &mut Samples) {
        samples.count(&table::HANDSHAKES, ["success", ""], self.successful);
        for (reason, count) in &self.failed {
            samples.count(&table::HANDSHAKES, ["failure", reason], *count);
        }
        samples.durations(&table::HANDSHAKE_DURATION, [], &self.durations);
        samples.count(&table::REKEYS, ["success"], self.rekeys);
        samples.count(&table::TINC_LEARNED_KEYS, [], self.learned_keys);
    }
}

/// Adds what a node knows and has to the samples. Each cipher has a sample, also without sessions.
fn measure_node(totals: &Totals, samples: &mut Samples) {
    samples.count(&table::TINC_NODES, [], totals.nodes as u64);
    for cipher in [Cipher::ChaCha20Poly1305, Cipher::Aes256Gcm] {
        let sessions = totals.sessions.get(&cipher).copied().unwrap_or(0);
        samples.count(&table::TINC_SESSIONS, [&cipher.to_string()], sessions as u64);
    }
    for (queue, length, limit) in [
        ("connections", totals.connections, MAX_CONNECTIONS),
        ("handshakes", totals.unauthenticated, MAX_UNAUTHENTICATED),
    ] {
        samples.count(&table::QUEUE_LENGTH, [queue], length as u64);
        samples.count(&table::QUEUE_LIMIT, [queue], limit as u64);
    }
}

/// Returns the stable name of a reason for which a handshake fails.
fn failure(reason: &CloseReason) -> Option<&'static str> {
    Some(match reason {
        CloseReason::Id(_) => "malformed-id",
        CloseReason::Session(_) => "session",
        CloseReason::Message(_) | CloseReason::OutOfTurn => "message",
        CloseReason::Version(_) => "version",
        CloseReason::OwnName => "own-name",
        CloseReason::UnknownNode(_) => "unknown-node",
        CloseReason::OtherNode(..) => "other-node",
        CloseReason::Control => "control",
        CloseReason::HandshakeTimeout => "handshake-timeout",
        _ => return None,
    })
}

/// Returns the stable name of a reason for which the router drops a packet.
fn drop_name(reason: DropReason) -> &'static str {
    match reason {
        DropReason::Malformed => "malformed",
        DropReason::Unknown => "no-subnet",
        DropReason::Own => "own",
        DropReason::Unreachable => "unreachable",
        DropReason::NotForwarded => "not-forwarded",
        DropReason::Indirect => "indirect",
        DropReason::Loop => "loop",
        DropReason::TtlExceeded => "ttl-exceeded",
        DropReason::TooBig => "too-big",
        DropReason::NoReceiver => "no-receiver",
        DropReason::Neighbour => "neighbour",
    }
}

/// Returns the way of packets to a node.
fn path(info: &NodeInfo) -> &'static str {
    match &info.via {
        None => "none",
        Some(_) if info.options.minor() < SPTPS_MINOR => "legacy",
        Some(via) if *via != info.name => "relay",
        Some(_) if info.udp_confirmed => "udp",
        Some(_) => "tcp",
    }
}

fn since(info: &NodeInfo, changes: &Changes) -> u64 {
    let since = changes.get(&info.name).copied().unwrap_or(0);
    u64::try_from(since).unwrap_or(0)
}

fn describe(info: NodeInfo, subnets: Vec<String>, changes: &Changes) -> TincNode {
    let path = path(&info);
    TincNode {
        reachable: info.reachable,
        since: since(&info, changes),
        via: info.via.as_ref().filter(|_| path == "relay").map(ToString::to_string),
        path: path.to_owned(),
        address: info.address.map(|address| address.to_string()),
        subnets,
        cipher: info.cipher.map(|cipher| cipher.to_string()),
        rtt_us: info.round_trip.map(|rtt| u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX)),
        rx_packets: info.traffic.packets_in,
        rx_bytes: info.traffic.bytes_in,
        tx_packets: info.traffic.packets_out,
        tx_bytes: info.traffic.bytes_out,
        name: info.name.to_string(),
    }
}

/// Returns the number of a node in metrics, its identifier.
fn number(id: NodeId) -> u64 {
    id.0.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

/// Returns the identifier with a number.
fn from_number(number: u64) -> NodeId {
    let [_, _, id @ ..] = number.to_be_bytes();
    NodeId(id)
}

/// Describes a node for the metrics. `at` is the current time, by both clocks.
fn sample(info: &NodeInfo, changes: &Changes, at: (Instant, u64)) -> PeerSample {
    let traffic = &info.traffic;
    let heard = info.heard.map(|heard| at.1.saturating_sub(at.0.since(heard).as_secs()));
    PeerSample {
        id: number(info.id),
        name: info.name.to_string(),
        proto: path(info),
        connected: true,
        since: Some(since(info, changes)),
        last_seen: heard,
        received: (traffic.packets_in, traffic.bytes_in),
        sent: (traffic.packets_out, traffic.bytes_out),
        round_trip: info.round_trip,
        path_mtu: (info.udp_confirmed && info.mtu.0 > 0).then_some(info.mtu.0),
        lag: None,
    }
}

impl Running {
    /// Completes a status report, except for the other nodes.
    pub(super) fn complete(&self, report: &mut StatusReport) {
        let counters = self.node.counters();
        let data = self.data.counters();
        let (lines, copies) = self.clients.dropped();
        let counted = [
            ("refused-connections", counters.refused_connections),
            ("unreachable", counters.unreachable),
            ("too-long", counters.too_long),
            ("no-session", counters.no_session),
            ("not-held", counters.not_held),
            ("queue-full", counters.queue_full),
            ("unknown-senders", counters.unknown_senders),
            ("not-relayed", counters.not_relayed),
            ("refused-records", counters.refused_records),
            ("refused-packets", counters.refused_packets),
            ("refused-handshakes", counters.refused_handshakes),
            ("removed-cipher-offers", counters.removed_offers),
            ("refused-lines", counters.refused_lines),
            ("not-written", data.not_written),
            ("not-sent", data.not_sent),
            ("scripts-skipped", self.scripts.skipped()),
            ("refused-joins", self.joins.refused()),
            ("log-lines-not-read", lines),
            ("packet-copies-not-read", copies),
        ];
        let routed = self.data.router.drops().map(|(reason, count)| (drop_name(reason), count));
        for (name, count) in counted.into_iter().chain(routed).filter(|(_, count)| *count > 0) {
            let total = report.drops.entry(name.to_owned()).or_default();
            *total = total.saturating_add(count);
        }
        report.endpoints = vec![format!("port {}", self.port)];
        let mode = match self.server.mode {
            Mode::Router => "router",
            Mode::Switch => "switch",
            Mode::Hub => "hub",
        };
        let device = &self.data.device.name;
        report.tinc = Some(Box::new(TincReport {
            net: self.net.name.clone(),
            node: self.node.name().to_string(),
            mode: mode.to_owned(),
            device: Some(device.clone()).filter(|name| !name.is_empty()),
            name_conflict: self.node.name_conflict_until().is_some(),
            learned_keys: self.statistics.learned_keys,
            nodes: Vec::new(),
        }));
    }

    /// Adds the other nodes to a status report.
    pub(super) fn complete_nodes(&self, report: &mut StatusReport) {
        let Some(tinc) = &mut report.tinc else { return };
        let others =
            self.node.node_infos().into_iter().filter(|info| info.name != *self.node.name());
        let described = others.map(|info| {
            let subnets = self.node.subnets().of(&info.name).map(ToString::to_string).collect();
            describe(info, subnets, &self.changes)
        });
        tinc.nodes = described.collect();
    }

    /// Adds the node's own metrics that a status report does not have.
    pub(super) fn measure_node(&self, samples: &mut Samples) {
        self.statistics.measure(samples);
        measure_node(&self.node.totals(), samples);
        samples.count(&table::REKEYS, ["failure"], self.node.counters().stuck_rekeys);
        let conflict = self.node.name_conflict_until().is_some();
        samples.count(&table::TINC_NAME_CONFLICT, [], conflict.into());
    }

    /// Returns the next reachable nodes for the metrics, in the order of their identifiers.
    pub(super) fn nodes_after(&self, after: Option<u64>) -> Vec<PeerSample> {
        let at = (now(), unix_time().0);
        let infos = self.node.reachable_after(after.map(from_number)).take(SLICE);
        infos.map(|info| sample(&info, &self.changes, at)).collect()
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use adit_tinc::meta::Options;
    use adit_tinc::node::Traffic;

    use super::*;

    fn name(text: &str) -> NodeName {
        text.parse().unwrap()
    }

    fn info(text: &str) -> NodeInfo {
        NodeInfo {
            name: name(text),
            id: name(text).id(),
            reachable: true,
            address: None,
            options: Options(0x0700_000c),
            next_hop: Some(name(text)),
            via: Some(name(text)),
            distance: Some(1),
            session: true,
            cipher: None,
            udp_confirmed: true,
            mtu: (1451, 1451, 1451),
            round_trip: None,
            traffic: Traffic { packets_in: 1, bytes_in: 2, packets_out: 3, bytes_out: 4 },
            heard: Some(Instant::default()),
            dropped_announcements: 0,
        }
    }

    #[test]
    fn handshakes_are_counted_by_their_result() {
        let mut statistics = Statistics::default();
        let address = "192.0.2.1:655".parse().unwrap();
        let ended = |node: Option<&str>, reason| Event::Disconnected {
            node: node.map(name),
            address,
            reason,
        };
        for event in [
            ended(None, CloseReason::HandshakeTimeout),
            ended(None, CloseReason::UnknownNode(name("mallory"))),
            Event::Connected { node: name("bob"), address, took: Duration::from_millis(20) },
            Event::KeysRenewed(name("bob")),
            // The end of a connection is no failed handshake, nor is a refused dial.
            ended(Some("bob"), CloseReason::OutOfTurn),
            ended(Some("bob"), CloseReason::Closed),
        ] {
            statistics.record(&event);
        }
        let mut samples = Samples::default();
        statistics.measure(&mut samples);
        let text = samples.text();
        let is_handshake = |line: &&str| line.starts_with("adit_handshakes_total");
        let lines: Vec<&str> = text.lines().filter(is_handshake).collect();
        let line = |result: &str, reason: &str| {
            format!("adit_handshakes_total{{result=\"{result}\",reason=\"{reason}\"}} 1")
        };
        let failed = |reason: &str| line("failure", reason);
        let expected = [line("success", ""), failed("handshake-timeout"), failed("unknown-node")];
        assert_eq!(lines, expected);
        for line in [
            "adit_handshake_duration_seconds_bucket{le=\"0.025\"} 1\n",
            "adit_rekeys_total{result=\"success\"} 1\n",
            "adit_tinc_learned_keys_total 0\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn each_cipher_has_a_number_of_sessions() {
        let sessions = [(Cipher::Aes256Gcm, 3)].into();
        let totals = Totals { nodes: 5, sessions, connections: 2, unauthenticated: 1 };
        let mut samples = Samples::default();
        measure_node(&totals, &mut samples);
        let text = samples.text();
        for line in [
            "adit_tinc_nodes 5\n",
            "adit_tinc_sessions{cipher=\"ChaCha20-Poly1305\"} 0\n",
            "adit_tinc_sessions{cipher=\"AES-256-GCM\"} 3\n",
            "adit_queue_length{queue=\"connections\"} 2\n",
            "adit_queue_length{queue=\"handshakes\"} 1\n",
            "adit_queue_limit{queue=\"handshakes\"} 64\n",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
    }

    #[test]
    fn the_path_of_packets_is_named() {
        let bob = info("bob");
        assert_eq!(path(&bob), "udp");
        assert_eq!(path(&NodeInfo { udp_confirmed: false, ..bob.clone() }), "tcp");
        let relayed = NodeInfo { via: Some(name("carol")), ..bob.clone() };
        assert_eq!(describe(relayed, Vec::new(), &Changes::new()).via.as_deref(), Some("carol"));
        assert_eq!(path(&NodeInfo { via: None, ..bob.clone() }), "none");
        assert_eq!(path(&NodeInfo { options: Options(0xc), ..bob }), "legacy");
    }

    #[test]
    fn a_node_in_metrics_has_its_identifier_and_counters() {
        let changes = Changes::from([(name("bob"), 100)]);
        let at = Instant::default() + Duration::from_millis(2900);
        let sample = sample(&info("bob"), &changes, (at, 1000));
        // Specification 20.1.
        assert_eq!(sample.id, 0x0416_a26b_a554);
        assert_eq!(from_number(sample.id), name("bob").id());
        assert_eq!((sample.received, sample.sent), ((1, 2), (3, 4)));
        assert_eq!((sample.since, sample.path_mtu, sample.proto), (Some(100), Some(1451), "udp"));
        assert_eq!(sample.last_seen, Some(998));
    }
}
