//! The status report of a node.

use std::collections::BTreeMap;
use std::time::Duration;

use adit_postgres::sender;

use super::Node;
use super::directory::{Directory, VerifiedNode};
use super::health::Side;
use adit_runtime::control::{
    LinkReport, NodeReport, PostgresReport, StatusReport, StreamReport, TunReport,
};
use adit_runtime::metrics::{PeerSample, SLICE, Samples, table};
use adit_runtime::say;

impl Node {
    /// Completes the report for `adit status`.
    pub(super) fn complete(&self, report: &mut StatusReport) {
        let settings = &self.shared.settings;
        let postgres = self.postgres();
        let packet_size = postgres.packet_size;
        if !(postgres.writer.up && postgres.reader.up) {
            report.state = "connecting".into();
        }
        let counters = &self.shared.counters;
        let sent = self.sent();
        for (name, count) in [
            ("network-unknown", counters.too_early.get()),
            ("position-unwritten", counters.unwritten.get()),
            ("device-refused", counters.refused.get()),
            ("queue-full", sent.dropped.full),
            ("queue-codel", sent.dropped.codel),
            ("queue-old", sent.dropped.old),
            ("no-route", sent.dropped.no_route),
            ("malformed", sent.dropped.malformed),
            ("stream-closed", sent.dropped.closed),
            ("commit-in-doubt", sent.in_doubt),
        ] {
            count_in(&mut report.drops, name, count);
        }
        for node in &postgres.nodes {
            for (name, count) in &node.received.drops {
                count_in(&mut report.drops, name, *count);
            }
        }
        report.endpoints = vec![settings.database.clone()];
        report.tun = Some(TunReport {
            name: settings.device.clone(),
            mtu: u32::try_from(packet_size).unwrap_or(0),
            addresses: settings.addresses.iter().map(ToString::to_string).collect(),
        });
        report.workers = 1;
        report.postgres = Some(postgres);
    }

    /// Adds the metrics that a status report does not have.
    pub(super) fn measure_database(&self, samples: &mut Samples) {
        let (sent, counters) = (self.sent(), &self.shared.counters);
        samples.count(&table::POSTGRES_COMMITS, ["success"], sent.batches);
        samples.count(&table::POSTGRES_COMMITS, ["failure"], counters.failed_commits.get());
        samples.durations(&table::POSTGRES_COMMIT_DURATION, [], &counters.commits.borrow());
        samples.count(&table::POSTGRES_ROWS, ["sent"], sent.packets);
        let receivers = self.shared.receivers.borrow();
        let received = receivers.values().map(|receiver| receiver.stats().packets);
        samples.count(&table::POSTGRES_ROWS, ["received"], received.fold(0, u64::saturating_add));
    }

    /// Returns the next nodes for the metrics.
    pub(super) fn nodes_after(&self, after: Option<u64>) -> Vec<PeerSample> {
        let directory = self.shared.directory.borrow().clone();
        let Some(directory) = directory else { return Vec::new() };
        let mut nodes: Vec<PeerSample> = directory
            .nodes
            .iter()
            .map(|node| {
                let receivers = self.shared.receivers.borrow();
                let stats = receivers.get(&node.incoming).map(|receiver| receiver.stats());
                PeerSample {
                    id: u64::try_from(node.record.id.0).unwrap_or_default(),
                    name: node.record.name.clone(),
                    proto: "database",
                    connected: true,
                    received: stats.map(|stats| (stats.packets, stats.bytes)).unwrap_or_default(),
                    lag: stats.and_then(|stats| stats.lag_ms).map(Duration::from_millis),
                    ..PeerSample::default()
                }
            })
            .filter(|node| after.is_none_or(|after| node.id > after))
            .collect();
        nodes.sort_by_key(|node| node.id);
        nodes.truncate(SLICE);
        nodes
    }

    fn sent(&self) -> sender::Stats {
        self.shared.sender.borrow().as_ref().map(sender::Sender::stats).unwrap_or_default()
    }

    fn postgres(&self) -> PostgresReport {
        let (shared, settings) = (&self.shared, &self.shared.settings);
        let sent = self.sent();
        let counters = &shared.counters;
        let directory = shared.directory.borrow().clone();
        let network = directory.as_ref().map(|directory| directory.settings.current());
        PostgresReport {
            network: self.network.clone(),
            node: settings.name.clone(),
            id: settings.node.0,
            durability: shared.durability().to_string(),
            audit: network.map(|network| network.audit.to_string()).unwrap_or_default(),
            packet_size: settings.packet_size(network),
            key_generation: shared.ring.borrow().generation().0,
            settings: network.map_or(0, |network| network.serial),
            unsettled: directory.as_ref().and_then(|directory| directory.unsettled.clone()),
            writer: self.link(Side::Writer),
            reader: self.link(Side::Reader),
            queue_bytes: sent.queued as u64,
            batches: sent.batches,
            rows: sent.packets,
            commit_us: u64::try_from(sent.commit.as_micros()).unwrap_or(u64::MAX),
            pages: counters.pages.get(),
            empty_pages: counters.empty_pages.get(),
            notifications: counters.notifications.get(),
            nodes: directory.as_ref().map(|directory| self.nodes(directory)).unwrap_or_default(),
        }
    }

    fn link(&self, side: Side) -> LinkReport {
        let health = self.shared.health.borrow();
        let one = health.side(side);
        LinkReport { up: one.up, opened: one.opened, trouble: one.trouble.clone() }
    }

    fn nodes(&self, directory: &Directory) -> Vec<NodeReport> {
        let refused = directory.refused.iter().map(|(name, reason)| NodeReport {
            name: name.clone(),
            refused: Some(reason.clone()),
            ..NodeReport::default()
        });
        directory.nodes.iter().map(|node| self.node(node)).chain(refused).collect()
    }

    fn node(&self, node: &VerifiedNode) -> NodeReport {
        let given = self.shared.sender.borrow().as_ref().and_then(|s| s.given(node.outgoing));
        let (epoch, seq) = given.unwrap_or_default();
        let mut received = StreamReport { stream: node.incoming.0, ..StreamReport::default() };
        if let Some(receiver) = self.shared.receivers.borrow().get(&node.incoming) {
            let (stats, position) = (receiver.stats(), receiver.position());
            received.epoch = position.epoch.0;
            received.seq = position.seq.0;
            received.packets = stats.packets;
            received.bytes = stats.bytes;
            for (name, count) in [
                ("expired", stats.expired),
                ("skipped", stats.skipped),
                ("forged", stats.forged),
                ("repeated", stats.repeated),
                ("old-key", stats.old_key),
                ("wrong-source", stats.wrong_source),
                ("wrong-destination", stats.wrong_destination),
                ("missing", stats.missing),
                ("epoch-refused", stats.epochs_refused),
            ] {
                count_in(&mut received.drops, name, count);
            }
        }
        NodeReport {
            id: node.record.id.0,
            name: node.record.name.clone(),
            addresses: node.addresses().iter().map(ToString::to_string).collect(),
            subnets: node.record.subnets.iter().map(ToString::to_string).collect(),
            refused: None,
            sent: StreamReport {
                stream: node.outgoing.0,
                epoch: epoch.0,
                seq: seq.0,
                ..StreamReport::default()
            },
            received,
        }
    }

    /// Writes the report to the log, on a signal.
    pub(super) fn log_report(&self) {
        let report = self.postgres();
        say!(
            1,
            "{} rows in {} batches, the last commit took {} us; {} pages, {} of them empty; {} notifications; {} bytes wait",
            report.rows,
            report.batches,
            report.commit_us,
            report.pages,
            report.empty_pages,
            report.notifications,
            report.queue_bytes
        );
        for node in &report.nodes {
            say!(
                1,
                "{}: sent up to {}, received {} packets up to {}; {:?}",
                node.name,
                node.sent.seq,
                node.received.packets,
                node.received.seq,
                node.received.drops
            );
        }
    }
}

fn count_in(drops: &mut BTreeMap<String, u64>, name: &str, count: u64) {
    if count > 0 {
        *drops.entry(name.to_owned()).or_insert(0) += count;
    }
}
