//! `adit postgres status`, `adit postgres peers`, and the nodes in `adit status`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use adit_app_postgres::status::{self, DatabaseStatus, NetworkStatus, NodeStatus};
use adit_runtime::control::{LinkReport, PostgresReport, StatusReport};
use adit_runtime::fault::Fault;
use clap::Args;

use super::NodeSelector;
use crate::text::{bytes, rate, row, span, table};
use crate::{print, print_json};

/// The interval over which rates are computed.
const SAMPLE: Duration = Duration::from_secs(1);

/// The options of the commands that show a network.
#[derive(Debug, Args)]
pub(crate) struct Show {
    #[command(flatten)]
    here: NodeSelector,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,
}

pub(crate) fn status(options: &Show) -> Result<ExitCode, Fault> {
    let status = status::collect(&options.here.paths()?)?;
    if options.json {
        print_json(&status)?;
    } else {
        print(&page(&status));
    }
    Ok(end(&status))
}

pub(crate) fn peers(options: &Show) -> Result<ExitCode, Fault> {
    let paths = options.here.paths()?;
    let before = (status::running(&paths.control_socket())?, Instant::now());
    if before.0.is_some() {
        std::thread::sleep(SAMPLE);
    }
    let status = status::collect(&paths)?;
    let rates = match (before, &status.running) {
        ((Some(before), at), Some(now)) => rates(&before, now, at.elapsed()),
        _ => BTreeMap::new(),
    };
    if options.json {
        print_json(&json(&status, &rates))?;
    } else {
        print(&peers_page(&status, &rates));
    }
    Ok(end(&status))
}

/// Returns the exit code. It tells scripts whether packets can pass.
fn end(status: &NetworkStatus) -> ExitCode {
    if status.running.is_some() && status.database.is_some() {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

/// The traffic between two nodes per second.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
struct Rates {
    sent_packets: u64,
    received_packets: u64,
    received_bits: u64,
}

fn rates(before: &StatusReport, now: &StatusReport, between: Duration) -> BTreeMap<i32, Rates> {
    let nodes = |report: &StatusReport| report.postgres.clone().unwrap_or_default().nodes;
    let per_second = |before: u64, now: u64| {
        (now.saturating_sub(before) as f64 / between.as_secs_f64().max(0.001)).round() as u64
    };
    let seq = |seq: i64| u64::try_from(seq).unwrap_or(0);
    let before: BTreeMap<i32, _> = nodes(before).into_iter().map(|node| (node.id, node)).collect();
    let rates = nodes(now).into_iter().filter_map(|now| {
        let before = before.get(&now.id)?;
        let rates = Rates {
            sent_packets: per_second(seq(before.sent.seq), seq(now.sent.seq)),
            received_packets: per_second(before.received.packets, now.received.packets),
            received_bits: per_second(before.received.bytes, now.received.bytes).saturating_mul(8),
        };
        Some((now.id, rates))
    });
    rates.collect()
}

fn json(status: &NetworkStatus, rates: &BTreeMap<i32, Rates>) -> serde_json::Value {
    let database = status.database.as_ref();
    let nodes = database.map(|database| database.nodes.as_slice()).unwrap_or_default();
    let nodes = nodes.iter().map(|node| {
        serde_json::json!({
            "database": node,
            "running": said_by_node(status, node.id),
            "per_second": rates.get(&node.id),
        })
    });
    serde_json::json!({
        "network": status.network,
        "node": status.node,
        "peers": nodes.collect::<Vec<_>>(),
        "refused": database.map(|database| &database.refused),
        "trouble": status.trouble,
    })
}

fn said_by_node(status: &NetworkStatus, id: i32) -> Option<&adit_runtime::control::NodeReport> {
    status.running.as_ref()?.postgres.as_ref()?.nodes.iter().find(|node| node.id == id)
}

fn page(status: &NetworkStatus) -> String {
    let mut text =
        format!("network {}, node {} (number {})", status.network, status.node, status.id);
    text.push_str(&format!(": {}\n", status.addresses.join(", ")));
    if !status.subnets.is_empty() {
        text.push_str(&format!("  networks behind it: {}\n", status.subnets.join(", ")));
    }
    text.push_str(&format!("  database: {} as {}\n", status.url, status.role));
    match (&status.database, &status.trouble) {
        (Some(database), _) => text.push_str(&database_lines(database)),
        (None, trouble) => {
            let trouble = trouble.as_deref().unwrap_or("it was not queried");
            text.push_str(&format!("    cannot be queried: {trouble}\n"));
        }
    }
    match &status.running {
        Some(report) => text.push_str(&running_lines(report)),
        None => text.push_str("  not running; start it with: adit postgres up\n"),
    }
    text.push_str(&short_table(status));
    text
}

fn database_lines(database: &DatabaseStatus) -> String {
    let tls = database.tls.as_deref().unwrap_or("without TLS");
    let auditor = if database.auditor { ", with an auditor" } else { "" };
    let age = match database.retention_age_s {
        0 => String::new(),
        age => format!(", {}", span(age)),
    };
    format!(
        "    PostgreSQL {}, {tls}, answers in {}\n    settings {}: durability {}, audit {}{auditor}, packets of at most {} bytes, network key {}\n    keeps {} \
         of at most {}{age}, in {} leaf tables; {} of it are records and keys of epochs\n",
        database.version,
        millis(database.round_trip_us),
        database.settings,
        database.durability,
        database.audit,
        database.packet_size,
        database.key_generation,
        bytes(database.bytes),
        bytes(database.retention_bytes),
        database.leaves,
        bytes(database.key_bytes),
    )
}

fn running_lines(report: &StatusReport) -> String {
    let mut text =
        format!("  {}, process {}, up {}\n", report.state, report.pid, span(report.uptime_s));
    if let Some(tun) = &report.tun {
        let addresses = tun.addresses.join(", ");
        text.push_str(&format!("  device {} mtu {}: {addresses}\n", tun.name, tun.mtu));
    }
    if let Some(postgres) = &report.postgres {
        text.push_str(&work(postgres));
    }
    if !report.drops.is_empty() {
        text.push_str(&format!("  dropped packets: {}\n", pairs(&report.drops)));
    }
    text
}

/// Describes the activity of the two connections.
fn work(postgres: &PostgresReport) -> String {
    let link = |link: &LinkReport| match (&link.trouble, link.up) {
        (_, true) => format!("connected, opened {}", times(link.opened)),
        (Some(trouble), false) => format!("not connected: {trouble}"),
        (None, false) => "connecting".into(),
    };
    let per_batch = postgres.rows as f64 / postgres.batches.max(1) as f64;
    let unsettled = postgres.unsettled.as_ref();
    let unsettled = unsettled.map(|reason| format!("  {reason}\n")).unwrap_or_default();
    format!(
        "{unsettled}  durability {}, audit {}, packets of at most {} bytes, network key {}\n  writes: {}; {} rows in {} batches ({per_batch:.1} each), a \
         commit takes {}; its queue takes {} of memory\n  reads: {}; {} pages, {} of them empty, {} notifications\n",
        postgres.durability,
        postgres.audit,
        postgres.packet_size,
        postgres.key_generation,
        link(&postgres.writer),
        postgres.rows,
        postgres.batches,
        millis(postgres.commit_us),
        bytes(postgres.queue_bytes),
        link(&postgres.reader),
        postgres.pages,
        postgres.empty_pages,
        postgres.notifications,
    )
}

fn times(count: u64) -> String {
    if count == 1 { "once".into() } else { format!("{count} times") }
}

fn millis(micros: u64) -> String {
    match micros {
        0 => "-".into(),
        _ => format!("{:.1} ms", micros as f64 / 1000.0),
    }
}

fn format_age(age_ms: Option<u64>) -> String {
    match age_ms {
        None => "-".into(),
        Some(age) if age < 10_000 => format!("{:.1} s ago", age as f64 / 1000.0),
        Some(age) => format!("{} ago", span(age / 1000)),
    }
}

fn pairs(counts: &BTreeMap<String, u64>) -> String {
    let pairs: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    pairs.join(", ")
}

fn short_table(status: &NetworkStatus) -> String {
    let Some(database) = &status.database else {
        return status
            .running
            .as_ref()
            .and_then(|r| r.postgres.as_ref())
            .map_or_else(String::new, nodes);
    };
    if database.nodes.is_empty() && database.refused.is_empty() {
        return "  no other node has joined\n".into();
    }
    let mut rows =
        vec![row(["  NAME", "ADDRESS", "SENT UP TO", "RECEIVED UP TO", "LAST SEEN", "DROPPED"])];
    for node in &database.nodes {
        let drops = said_by_node(status, node.id).map(|said| pairs(&said.received.drops));
        rows.push(vec![
            format!("  {}", node.name),
            node.addresses.join(", "),
            node.sent.seq.to_string(),
            node.received.seq.to_string(),
            format_age(node.received.age_ms),
            drops.filter(|drops| !drops.is_empty()).unwrap_or_else(|| "-".into()),
        ]);
    }
    let refused = |(name, why): (&String, &String)| format!("  {name} is not trusted: {why}\n");
    table(&rows) + &database.refused.iter().map(refused).collect::<String>()
}

/// Lists the other nodes according to the running one, for `adit status`, which does not query a
/// database.
pub(crate) fn nodes(postgres: &PostgresReport) -> String {
    if postgres.nodes.is_empty() {
        return "  no other node is known\n".into();
    }
    let mut rows =
        vec![row(["  NAME", "ADDRESS", "SENT UP TO", "RECEIVED", "PACKETS", "UP TO", "DROPPED"])];
    for node in &postgres.nodes {
        let drops = match &node.refused {
            Some(why) => format!("all: {why}"),
            None if node.received.drops.is_empty() => "-".into(),
            None => pairs(&node.received.drops),
        };
        rows.push(vec![
            format!("  {}", node.name),
            node.addresses.join(", "),
            node.sent.seq.to_string(),
            bytes(node.received.bytes),
            node.received.packets.to_string(),
            node.received.seq.to_string(),
            drops,
        ]);
    }
    table(&rows)
}

/// Describes a node of a network through a database for `adit status`.
pub(crate) fn in_status(postgres: &PostgresReport) -> String {
    format!("  node {} of network {}\n", postgres.node, postgres.network)
        + &work(postgres)
        + &nodes(postgres)
}

fn peers_page(status: &NetworkStatus, rates: &BTreeMap<i32, Rates>) -> String {
    let Some(database) = &status.database else {
        let trouble = status.trouble.as_deref().unwrap_or_default();
        return format!("the database cannot be queried: {trouble}\n");
    };
    if database.nodes.is_empty() && database.refused.is_empty() {
        return "no other node has joined\n".into();
    }
    let rates = |id| rates.get(&id).copied();
    let peer = |node: &NodeStatus| peer(status, node, rates(node.id));
    let mut text: String = database.nodes.iter().map(peer).collect::<Vec<_>>().join("\n");
    for (name, why) in &database.refused {
        text.push_str(&format!("\n{name}: not trusted, nothing is sent there: {why}\n"));
    }
    text
}

fn peer(status: &NetworkStatus, node: &NodeStatus, rates: Option<Rates>) -> String {
    let said = said_by_node(status, node.id);
    let mut text = format!("{} (number {}): {}", node.name, node.id, node.addresses.join(", "));
    if !node.subnets.is_empty() {
        text.push_str(&format!("; networks behind it: {}", node.subnets.join(", ")));
    }
    let key = |age: Option<u64>| {
        age.map_or_else(String::new, |age| format!(", its key {} old", span(age)))
    };
    let (sent, received) = (&node.sent, &node.received);
    text.push_str(&format!(
        "\n  sent:     stream {}, leaf {}, epoch {}{}; committed up to {}",
        sent.stream,
        sent.leaf,
        sent.epoch,
        key(sent.epoch_age_s),
        sent.seq
    ));
    if let Some(rates) = rates {
        text.push_str(&format!(", {} packets/s", rates.sent_packets));
    }
    text.push_str(&format!(
        "\n  received: stream {}, leaf {}, epoch {}{}; {} in the database, the last {}",
        received.stream,
        received.leaf,
        received.epoch,
        key(received.epoch_age_s),
        received.seq,
        format_age(received.age_ms)
    ));
    if let Some(said) = said {
        text.push_str(&format!(
            "\n            read up to {}; {} in {} packets",
            said.received.seq,
            bytes(said.received.bytes),
            said.received.packets
        ));
        if let Some(rates) = rates {
            let speed = rate(rates.received_bits);
            text.push_str(&format!(", {} packets/s, {speed}", rates.received_packets));
        }
        if !said.received.drops.is_empty() {
            text.push_str(&format!("\n  dropped:  {}", pairs(&said.received.drops)));
        }
        if let Some(why) = &said.refused {
            text.push_str(&format!("\n  not believed: {why}"));
        }
    }
    text.push('\n');
    text
}

#[cfg(test)]
mod tests {
    use adit_app_postgres::status::StreamStatus;
    use adit_runtime::control::{NodeReport, StreamReport};

    use super::*;

    fn stream(seq: i64) -> StreamStatus {
        StreamStatus {
            stream: 2,
            leaf: 3,
            epoch: 4,
            epoch_age_s: Some(65),
            seq,
            age_ms: Some(1500),
        }
    }

    fn said(seq: i64, packets: u64) -> PostgresReport {
        let received = StreamReport {
            seq,
            packets,
            bytes: packets * 1000,
            drops: [("forged".to_owned(), 2)].into(),
            ..StreamReport::default()
        };
        let sent = StreamReport { seq, ..StreamReport::default() };
        let node =
            NodeReport { id: 2, name: "spoke".into(), sent, received, ..NodeReport::default() };
        let link = LinkReport { up: true, opened: 1, trouble: None };
        PostgresReport {
            network: "vpn".into(),
            node: "hub".into(),
            durability: "strict".into(),
            audit: "headers".into(),
            writer: link.clone(),
            reader: LinkReport { up: false, opened: 2, trouble: Some("the disk is full".into()) },
            rows: 30,
            batches: 4,
            commit_us: 1234,
            nodes: vec![node],
            ..PostgresReport::default()
        }
    }

    fn status(running: bool) -> NetworkStatus {
        let node = NodeStatus {
            id: 2,
            name: "spoke".into(),
            addresses: vec!["10.9.0.2".into()],
            subnets: vec!["192.168.7.0/24".into()],
            sent: stream(90),
            received: stream(80),
        };
        let database = DatabaseStatus {
            version: "15.8".into(),
            tls: Some("TLSv1.3 TLS_AES_256_GCM_SHA384".into()),
            round_trip_us: 400,
            bytes: 34_000_000,
            retention_bytes: 1_000_000_000,
            retention_age_s: 30 * 86_400,
            leaves: 6,
            settings: 3,
            nodes: vec![node],
            refused: [("mallory".to_owned(), "its MAC is wrong".to_owned())].into(),
            ..DatabaseStatus::default()
        };
        let report = StatusReport {
            state: "running".into(),
            pid: 42,
            postgres: Some(said(70, 60)),
            drops: [("queue-old".to_owned(), 3)].into(),
            ..StatusReport::default()
        };
        NetworkStatus {
            network: "vpn".into(),
            node: "hub".into(),
            id: 1,
            addresses: vec!["10.9.0.1/24".into()],
            running: running.then_some(report),
            url: "postgres://db/vpn".into(),
            role: "adit_vpn_node_hub".into(),
            database: Some(database),
            ..NetworkStatus::default()
        }
    }

    fn holds(text: &str, words: &[&str]) {
        for words in words {
            assert!(text.contains(words), "{words} is missing in:\n{text}");
        }
    }

    #[test]
    fn a_status_says_how_it_stands_with_database_and_node() {
        let text = page(&status(true));
        holds(
            &text,
            &[
                "network vpn, node hub (number 1): 10.9.0.1/24",
                "postgres://db/vpn as adit_vpn_node_hub",
                "PostgreSQL 15.8, TLSv1.3 TLS_AES_256_GCM_SHA384, answers in 0.4 ms",
                "settings 3: durability ",
                "keeps 34 MB of at most 1 GB, 30 d, in 6 leaf tables",
                "running, process 42",
                "writes: connected, opened once; 30 rows in 4 batches (7.5 each), a commit takes 1.2 ms",
                "reads: not connected: the disk is full",
                "queue-old 3",
                "spoke",
                "1.5 s ago",
                "forged 2",
                "mallory is not trusted: its MAC is wrong",
            ],
        );
        holds(&page(&status(false)), &["not running; start it with: adit postgres up", "spoke"]);
    }

    #[test]
    fn a_database_that_does_not_answer_is_said_and_what_the_node_knows_is_shown() {
        let mut status = status(true);
        status.database = None;
        status.trouble = Some("db:5432: connection refused".into());
        holds(&page(&status), &["cannot be queried: db:5432: connection refused", "spoke"]);
        holds(&peers_page(&status, &BTreeMap::new()), &["connection refused"]);
        assert_eq!(end(&status), ExitCode::FAILURE);
    }

    #[test]
    fn a_peer_is_shown_with_its_streams_and_rates() {
        let now = status(true);
        let before = StatusReport { postgres: Some(said(20, 10)), ..StatusReport::default() };
        let rates = rates(&before, now.running.as_ref().unwrap(), Duration::from_secs(2));
        let expected = Rates { sent_packets: 25, received_packets: 25, received_bits: 200_000 };
        assert_eq!(rates, [(2, expected)].into());
        holds(
            &peers_page(&now, &rates),
            &[
                "spoke (number 2): 10.9.0.2; networks behind it: 192.168.7.0/24\n",
                "sent:     stream 2, leaf 3, epoch 4, its key 1 min 5 s old; committed up to 90, 25 packets/s\n",
                "80 in the database, the last 1.5 s ago\n",
                "read up to 70; 60 kB in 60 packets, 25 packets/s, 200 kb/s\n",
                "dropped:  forged 2\n",
                "mallory: not trusted",
            ],
        );
        let json = json(&now, &rates);
        assert_eq!(json.pointer("/peers/0/per_second/received_bits"), Some(&200_000.into()));
        assert_eq!(json.pointer("/peers/0/database/received/seq"), Some(&80.into()));
        assert_eq!(json.pointer("/peers/0/running/received/drops/forged"), Some(&2.into()));
    }

    #[test]
    fn the_general_status_shows_a_node_and_a_refused_one() {
        let mut postgres = said(70, 60);
        postgres.nodes.push(NodeReport {
            name: "mallory".into(),
            refused: Some("its keys have changed".into()),
            ..NodeReport::default()
        });
        holds(
            &in_status(&postgres),
            &["node hub of network vpn", "spoke", "60 kB", "all: its keys have changed"],
        );
    }
}
