//! The table of all metrics. The text, docs/metrics.md, the dashboard and the alert rules are checked against it.

/// The type of a metric in OpenMetrics.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A number that only increases while the process runs.
    Counter,
    /// A number that also decreases.
    Gauge,
    /// The numbers of observations up to certain values.
    Histogram,
    /// The labels are the information; the value is 1.
    Info,
}

impl Kind {
    /// Returns the name of the type.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
            Self::Info => "info",
        }
    }

    /// Returns the suffix of a sample's name.
    pub(super) const fn suffix(self) -> &'static str {
        match self {
            Self::Counter => "_total",
            Self::Info => "_info",
            Self::Gauge | Self::Histogram => "",
        }
    }
}

/// A family of metrics.
#[derive(Debug, PartialEq, Eq)]
pub struct Metric {
    /// The name, without the suffix of its type.
    pub name: &'static str,
    /// The type.
    pub kind: Kind,
    /// The unit, with which the name ends; empty if there is none.
    pub unit: &'static str,
    /// The names of the labels, in order.
    pub labels: &'static [&'static str],
    /// The meaning, in one sentence.
    pub help: &'static str,
}

impl Metric {
    /// Returns the name of a sample, which queries use; that of a histogram's bucket has a further suffix.
    pub fn sample_name(&self) -> String {
        format!("{}{}", self.name, self.kind.suffix())
    }
}

/// Declares the metrics, and the list of all.
macro_rules! metrics {
    ($($constant:ident: $kind:ident $name:literal $unit:literal [$($label:literal),*] $help:literal;)+) => {
        $(
            #[doc = concat!("`", $name, "`: ", $help)]
            pub static $constant: Metric = Metric {
                name: $name,
                kind: Kind::$kind,
                unit: $unit,
                labels: &[$($label),*],
                help: $help,
            };
        )+

        /// All metrics, in the order of the text.
        pub static ALL: &[&Metric] = &[$(&$constant),+];
    };
}

metrics! {
    BUILD: Info "adit_build" "" ["version", "revision"]
        "The version of the program, and the commit of its source, which only packages know.";
    RELOAD_SUCCESSFUL: Gauge "adit_config_last_reload_successful" "" []
        "Whether the last attempt to read the configuration succeeded: 1 or 0.";
    RELOAD_TIME: Gauge "adit_config_last_reload_success_timestamp_seconds" "seconds" []
        "The time of the last successful attempt to read the configuration.";
    CERTIFICATE_EXPIRY: Gauge "adit_certificate_expiry_timestamp_seconds" "seconds" ["kind", "name"]
        "The end of a certificate's validity: of the own one or of the authority, whichever is first, and of the first client.";
    PEERS: Gauge "adit_peers_connected" "" ["server", "proto"]
        "The number of connected peers.";
    PEER_CONNECTED: Gauge "adit_peer_connected_timestamp_seconds" "seconds" ["peer"]
        "The time when the session with the peer began.";
    PEER_RECEIVED_BYTES: Counter "adit_peer_received_bytes" "bytes" ["peer"]
        "Bytes received from the peer in its current session.";
    PEER_SENT_BYTES: Counter "adit_peer_sent_bytes" "bytes" ["peer"]
        "Bytes sent to the peer in its current session.";
    PEER_RECEIVED_PACKETS: Counter "adit_peer_received_packets" "" ["peer"]
        "Data packets received from the peer in its current session.";
    PEER_SENT_PACKETS: Counter "adit_peer_sent_packets" "" ["peer"]
        "Data packets sent to the peer in its current session.";
    PEER_LAST_SEEN: Gauge "adit_peer_last_seen_timestamp_seconds" "seconds" ["peer"]
        "The time of the last authentic packet of the peer, accurate to a second.";
    PEER_ROUND_TRIP: Gauge "adit_peer_round_trip_seconds" "seconds" ["peer"]
        "The measured round trip to the peer.";
    PATH_MTU: Gauge "adit_path_mtu_bytes" "bytes" ["peer"]
        "The largest IP packet that the path to the peer carries unfragmented.";
    HANDSHAKES: Counter "adit_handshakes" "" ["result", "reason"]
        "Handshakes that ended. The reason of a failed one is a stable name.";
    HANDSHAKE_DURATION: Histogram "adit_handshake_duration_seconds" "seconds" []
        "The time from a peer's first packet to its session.";
    REKEYS: Counter "adit_rekeys" "" ["result"]
        "Renegotiations of data keys that ended.";
    AUTH_REQUESTS: Counter "adit_auth_requests" "" ["kind", "result"]
        "Requests to an authorizer (registry, password check, script, provider) that ended.";
    AUTH_DURATION: Histogram "adit_auth_duration_seconds" "seconds" ["kind"]
        "The time from a request to an authorizer to its response.";
    DROPPED: Counter "adit_dropped_packets" "" ["direction", "reason"]
        "Dropped packets and refused handshakes.";
    QUEUE_LENGTH: Gauge "adit_queue_length" "" ["queue"]
        "The number of entries in a queue or table.";
    QUEUE_LIMIT: Gauge "adit_queue_limit" "" ["queue"]
        "The maximum number of entries in a queue or table.";
    WORKER_BUSY: Counter "adit_worker_busy_seconds" "seconds" ["worker"]
        "CPU time of a thread that moves packets.";
    TRAIN_SEGMENTS: Histogram "adit_train_segments" "" ["direction"]
        "Datagrams per system call.";
    OFFLOAD_ENABLED: Gauge "adit_offload_enabled" "" ["offload"]
        "Whether an offload is in use: 1 or 0.";
    OFFLOAD_DOWNGRADES: Counter "adit_offload_downgrades" "" ["offload", "reason"]
        "Offloads that were switched off because the kernel or a driver refused them.";
    FILTER_VERDICTS: Counter "adit_filter_verdicts" "" ["table", "chain", "verdict"]
        "Evaluated packets by verdict and the last base chain that evaluated them. Without names: packets that no chain evaluates, and packets dropped for another reason than rules or a policy.";
    FILTER_RULE_PACKETS: Counter "adit_filter_rule_packets" "" ["table", "chain", "handle"]
        "Packets that matched a rule with a counter, by the rule's handle in `adit filter show`.";
    CONNTRACK_ENTRIES: Gauge "adit_conntrack_entries" "" []
        "Tracked connections.";
    CONNTRACK_LIMIT: Gauge "adit_conntrack_limit" "" []
        "The maximum number of tracked connections.";
    CONNTRACK_DROPPED: Counter "adit_conntrack_dropped" "" ["reason"]
        "Connections that were refused or evicted for lack of space.";
    MESH_MEMBERS: Gauge "adit_mesh_members" "" []
        "Members of the mesh, this node included.";
    MESH_PEERS: Gauge "adit_mesh_peers" "" ["path"]
        "Other members, by the path to them.";
    MESH_PATH_CHANGES: Counter "adit_mesh_path_changes" "" ["from", "to", "reason"]
        "Changes of the path to a member.";
    MESH_ROSTER_CHANGES: Counter "adit_mesh_roster_changes" "" ["kind"]
        "Changes of the mesh that this node received or signed.";
    POSTGRES_COMMITS: Counter "adit_postgres_commits" "" ["result"]
        "Commits of batches of packets.";
    POSTGRES_COMMIT_DURATION: Histogram "adit_postgres_commit_duration_seconds" "seconds" []
        "The duration of successful commits.";
    POSTGRES_ROWS: Counter "adit_postgres_rows" "" ["direction"]
        "Rows written to the database and read from it.";
    POSTGRES_LAG: Gauge "adit_postgres_lag_seconds" "seconds" ["peer"]
        "The age of the oldest row in the last page that was read from the peer, by the database's clock.";
    TINC_NODES: Gauge "adit_tinc_nodes" "" []
        "Nodes of the tinc net that this node knows, itself included.";
    TINC_SESSIONS: Gauge "adit_tinc_sessions" "" ["cipher"]
        "Sessions for packets with other nodes of the tinc net, by cipher. A node of tinc 1.0 has none.";
    TINC_LEARNED_KEYS: Counter "adit_tinc_learned_keys" "" []
        "Keys of nodes that were learned over the tinc net, on trust.";
    TINC_NAME_CONFLICT: Gauge "adit_tinc_name_conflict" "" []
        "Whether another node of the tinc net seems to have this node's name: 1 or 0.";
    EVENTS: Counter "adit_events" "" ["receiver", "result"]
        "Events for the program of `on-event` and the webhook: delivered, failed, or dropped because its queue was full.";
    PROCESS_CPU: Counter "process_cpu_seconds" "seconds" []
        "CPU time of the process.";
    PROCESS_MEMORY: Gauge "process_resident_memory_bytes" "bytes" []
        "Private resident memory of the process.";
    PROCESS_VIRTUAL: Gauge "process_virtual_memory_bytes" "bytes" []
        "Virtual memory of the process.";
    PROCESS_FDS: Gauge "process_open_fds" "" []
        "Open file descriptors of the process.";
    PROCESS_MAX_FDS: Gauge "process_max_fds" "" []
        "The maximum number of open file descriptors.";
    PROCESS_THREADS: Gauge "process_threads" "" []
        "Threads of the process.";
    PROCESS_START: Gauge "process_start_time_seconds" "seconds" []
        "The start time of the process.";
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashSet};

    use super::*;

    #[test]
    fn names_are_unique_and_end_with_their_unit() {
        let mut names = HashSet::new();
        for metric in ALL {
            assert!(names.insert(metric.name), "{} occurs twice", metric.name);
            assert!(metric.name.ends_with(metric.unit), "{}", metric.name);
            assert!(metric.help.ends_with('.') && !metric.help.contains('\n'), "{}", metric.name);
            let word = |c: char| c.is_ascii_lowercase() || c == '_';
            assert!(metric.name.chars().all(word), "{}", metric.name);
            assert!(!metric.name.ends_with("_total") && !metric.name.ends_with("_info"));
        }
    }

    /// Returns the table of docs/metrics.md.
    fn documented() -> String {
        let mut text = String::from("| metric | type | labels | meaning |\n|---|---|---|---|\n");
        for metric in ALL {
            let labels: Vec<String> =
                metric.labels.iter().map(|label| format!("`{label}`")).collect();
            let (name, kind) = (metric.sample_name(), metric.kind.name());
            text.push_str(&format!(
                "| `{name}` | {kind} | {} | {} |\n",
                labels.join(", "),
                metric.help
            ));
        }
        text
    }

    /// `UPDATE_DOCS=1 cargo test -p adit-runtime --lib metrics` writes the table.
    #[test]
    fn the_manual_has_every_metric() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/metrics.md");
        let text = std::fs::read_to_string(path).unwrap();
        let (before, rest) = text.split_once("<!-- metrics -->\n").unwrap();
        let (table, after) = rest.split_once("<!-- end -->").unwrap();
        if std::env::var_os("UPDATE_DOCS").is_some() {
            let text = format!("{before}<!-- metrics -->\n{}<!-- end -->{after}", documented());
            std::fs::write(path, text).unwrap();
        } else {
            assert_eq!(
                table,
                documented(),
                "run UPDATE_DOCS=1 cargo test -p adit-runtime --lib metrics"
            );
        }
    }

    fn packaged(file: &str) -> String {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/metrics/");
        std::fs::read_to_string(format!("{folder}{file}")).unwrap()
    }

    /// Returns the dashboard's panels.
    fn panels() -> Vec<serde_json::Value> {
        let dashboard: serde_json::Value =
            serde_json::from_str(&packaged("dashboard.json")).unwrap();
        dashboard["panels"].as_array().unwrap().clone()
    }

    /// Returns the values of a panel's queries under a key.
    fn of_targets(panel: &serde_json::Value, key: &str) -> Vec<String> {
        let targets = panel["targets"].as_array().unwrap();
        targets.iter().map(|target| target[key].as_str().unwrap().to_owned()).collect()
    }

    /// Returns the metrics by the names of their samples.
    fn by_sample() -> BTreeMap<String, &'static Metric> {
        let samples = ALL.iter().flat_map(|metric| match metric.kind {
            Kind::Histogram => ["_bucket", "_count", "_sum"]
                .map(|suffix| (format!("{}{suffix}", metric.name), *metric))
                .to_vec(),
            _ => vec![(metric.sample_name(), *metric)],
        });
        samples.collect()
    }

    fn words(text: &str) -> impl Iterator<Item = &str> {
        text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
    }

    /// A query for a metric that does not exist shows nothing and never alerts.
    #[test]
    fn dashboard_and_alert_rules_name_only_metrics_that_exist() {
        let known = by_sample();
        let queries = panels().into_iter().flat_map(|panel| of_targets(&panel, "expr"));
        let mut found = 0;
        for text in queries.chain([packaged("alerts.yml"), packaged("alerts.test.yml")]) {
            let named = |word: &&str| word.starts_with("adit_") || word.starts_with("process_");
            for word in words(&text).filter(named) {
                assert!(known.contains_key(word), "{word} is no metric");
                found += 1;
            }
        }
        assert!(found > 80, "{found} names");
    }

    /// A label that a metric does not have matches nothing, and a legend with one is empty.
    #[test]
    fn queries_and_legends_use_the_labels_of_their_metrics() {
        let known = by_sample();
        for panel in panels() {
            for (query, legend) in
                of_targets(&panel, "expr").iter().zip(of_targets(&panel, "legendFormat"))
            {
                let metrics: Vec<&Metric> =
                    words(query).filter_map(|word| known.get(word).copied()).collect();
                let has = |label: &str| {
                    ["instance", "le"].contains(&label)
                        || metrics.iter().any(|metric| metric.labels.contains(&label))
                };
                let groups = query.split(" by (").skip(1).filter_map(|rest| rest.split(')').next());
                let matchers = query.split(['{', ',']).skip(1).filter_map(|part| {
                    let end = part.find(['=', '!'])?;
                    part.get(..end).filter(|label| words(label).count() == 1)
                });
                let shown = legend.split("{{").skip(1).filter_map(|rest| rest.split("}}").next());
                for label in groups.flat_map(|group| group.split(", ")).chain(matchers).chain(shown)
                {
                    assert!(has(label), "{}: {label} in {query}, {legend}", panel["title"]);
                }
            }
        }
    }

    /// Grafana draws panels of the same place over each other, and keeps one of those with the same number.
    #[test]
    fn panels_have_numbers_and_places_of_their_own() {
        let (mut ids, mut places) = (HashSet::new(), HashSet::new());
        for panel in panels() {
            assert!(ids.insert(panel["id"].as_u64().unwrap()), "{}", panel["title"]);
            let place = &panel["gridPos"];
            let [x, y, w, h] = ["x", "y", "w", "h"].map(|key| place[key].as_u64().unwrap());
            assert!(x + w <= 24, "{}", panel["title"]);
            for (column, row) in (x..x + w).flat_map(|x| (y..y + h).map(move |y| (x, y))) {
                assert!(places.insert((column, row)), "{} is over another", panel["title"]);
            }
        }
    }

    /// Each kind of instance has panels and alerts of its own.
    #[test]
    fn every_alert_has_a_test_and_every_kind_of_instance_a_panel() {
        let (rules, tests) = (packaged("alerts.yml"), packaged("alerts.test.yml"));
        let alerts: Vec<&str> =
            rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
        assert!(alerts.len() > 12, "{alerts:?}");
        for alert in alerts {
            let tested = format!("        alertname: {alert}\n        exp_alerts:\n");
            assert!(tests.contains(&tested), "no test lets {alert} fire");
        }
        let queries: Vec<String> =
            panels().iter().flat_map(|panel| of_targets(panel, "expr")).collect();
        let queries = queries.join("\n");
        for kind in
            ["adit_filter_", "adit_conntrack_", "adit_mesh_", "adit_postgres_", "adit_tinc_"]
        {
            assert!(queries.contains(kind), "no panel shows {kind}");
        }
        for kind in ["adit_conntrack_", "adit_mesh_", "adit_postgres_", "adit_tinc_"] {
            assert!(rules.contains(kind), "no rule is about {kind}");
        }
    }

    #[test]
    fn no_label_can_contain_an_address_a_port_or_a_time() {
        let allowed = HashSet::from([
            "version",
            "revision",
            "kind",
            "name",
            "server",
            "proto",
            "peer",
            "result",
            "reason",
            "direction",
            "queue",
            "worker",
            "offload",
            "table",
            "chain",
            "verdict",
            "handle",
            "path",
            "receiver",
            "cipher",
            "from",
            "to",
        ]);
        for metric in ALL {
            assert!(metric.labels.iter().all(|label| allowed.contains(label)), "{}", metric.name);
        }
    }
}
