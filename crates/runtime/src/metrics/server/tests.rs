use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use super::super::table::{self, Kind, Metric};
use super::super::{DEFAULT_PEERS, SLICE, Samples};
use super::*;
use crate::control::{CertificateReport, FlowTotals, StatusReport, TrainReport};

/// An instance with a number of peers, which counts the work of the control thread.
struct Control {
    peers: u64,
    queries: usize,
    longest_slice: usize,
}

impl Control {
    fn answer(&mut self, query: Query) {
        self.queries += 1;
        match query {
            Query::Head(reply) => {
                let report = StatusReport {
                    role: "server".into(),
                    instance: "server".into(),
                    version: "1".into(),
                    certificate: Some(CertificateReport {
                        whose: "own".into(),
                        not_after: 99,
                        days_left: 1,
                    }),
                    drops: [("no-route".to_owned(), 3)].into(),
                    connections: Some(FlowTotals { now: 2, limit: 10, ..FlowTotals::default() }),
                    offloads: [("udp-gso".to_owned(), true)].into(),
                    trains: TrainReport {
                        sent: [(1, 2)].into(),
                        sent_packets: 2,
                        relayed: [(9, 2)].into(),
                        relayed_packets: 20,
                        ..TrainReport::default()
                    },
                    ..StatusReport::default()
                };
                let mut samples = Samples::default();
                samples.count(&table::HANDSHAKES, ["success", ""], 7);
                let _ = reply.send(Head { report, samples });
            }
            Query::Peers(after, reply) => {
                let first = after.map_or(0, |after| after + 1);
                let slice: Vec<PeerSample> = (first..self.peers).take(SLICE).map(peer).collect();
                self.longest_slice = self.longest_slice.max(slice.len());
                let _ = reply.send(slice);
            }
        }
    }
}

fn peer(id: u64) -> PeerSample {
    PeerSample {
        id,
        name: format!("client-{id}"),
        proto: "udp",
        connected: true,
        since: Some(1),
        last_seen: Some(2),
        received: (3, 4),
        sent: (5, 6),
        round_trip: None,
        path_mtu: Some(1400),
        lag: None,
    }
}

fn config(path: &Path, names: Names) -> Config {
    let listen = Endpoint::Unix(path.to_owned());
    Config { listen, allow: Vec::new(), peers: DEFAULT_PEERS, names }
}

/// Sends a request as it is, and returns the response.
fn exchange(path: &Path, request: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).unwrap();
    // The server may close the connection before it has read everything.
    let _ = stream.write_all(request);
    let mut response = String::new();
    let _ = stream.read_to_string(&mut response);
    response
}

/// Serves `control` while `ask` runs on another thread.
async fn serving<T: Send + 'static>(
    config: &Config,
    control: &mut Control,
    ask: impl FnOnce() -> T + Send + 'static,
) -> T {
    let mut server = Listener::open(config).unwrap().serve().unwrap();
    let asked = tokio::task::spawn_blocking(ask);
    tokio::pin!(asked);
    loop {
        tokio::select! {
            answer = &mut asked => return answer.unwrap(),
            query = server.next() => control.answer(query),
        }
    }
}

#[tokio::test]
async fn ten_thousand_peers_are_read_in_slices_and_most_of_them_are_added_up() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.metrics");
    let mut control = Control { peers: 10_000, queries: 0, longest_slice: 0 };
    let config = config(&path, Names::Adit);
    let at = path.clone();
    let response = serving(&config, &mut control, move || {
        exchange(&at, b"GET /metrics HTTP/1.1\r\nHost: adit\r\n\r\n")
    })
    .await;
    let (head, text) = response.split_once("\r\n\r\n").unwrap();
    assert!(head.starts_with("HTTP/1.1 200"), "{head}");
    assert!(head.contains("content-type: application/openmetrics-text; version=1.0.0"), "{head}");
    // The head, 79 slices and an empty one.
    assert_eq!((control.queries, control.longest_slice), (81, SLICE));
    let series = |name: &str| text.lines().filter(|line| line.starts_with(name)).count();
    assert_eq!(series("adit_peer_received_bytes_total{"), 1001);
    assert!(text.contains("adit_peer_received_bytes_total{peer=\"other\"} 36000\n"));
    assert!(text.contains("adit_peers_connected{server=\"server\",proto=\"udp\"} 10000\n"));
    // A thousand peers with eight series each.
    assert!(text.len() < 700_000, "{} bytes", text.len());
    assert!(text.ends_with("# EOF\n"));
    assert!(!path.exists(), "the socket is removed at the end");
}

#[tokio::test]
async fn a_scrape_has_what_the_status_report_has() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.metrics");
    let mut control = Control { peers: 1, queries: 0, longest_slice: 0 };
    let config = config(&path, Names::Adit);
    let text = serving(&config, &mut control, move || {
        exchange(&path, b"GET /metrics HTTP/1.1\r\nHost: adit\r\n\r\n")
    })
    .await;
    for line in [
        "adit_build_info{version=\"1\",revision=\"",
        "adit_certificate_expiry_timestamp_seconds{kind=\"own\",name=\"\"} 99\n",
        "adit_conntrack_entries 2\n",
        "adit_conntrack_limit 10\n",
        "adit_conntrack_dropped_total{reason=\"table-full\"} 0\n",
        "adit_dropped_packets_total{direction=\"sent\",reason=\"no-route\"} 3\n",
        "adit_handshakes_total{result=\"success\",reason=\"\"} 7\n",
        "adit_offload_enabled{offload=\"udp-gso\"} 1\n",
        "adit_path_mtu_bytes{peer=\"client-0\"} 1400\n",
        "adit_peer_connected_timestamp_seconds{peer=\"client-0\"} 1\n",
        "adit_peer_last_seen_timestamp_seconds{peer=\"client-0\"} 2\n",
        "adit_peer_sent_packets_total{peer=\"client-0\"} 5\n",
        "adit_train_segments_bucket{direction=\"sent\",le=\"1.0\"} 2\n",
        "adit_train_segments_bucket{direction=\"relayed\",le=\"16.0\"} 2\n",
        "process_resident_memory_bytes ",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[tokio::test]
async fn a_scraper_that_knows_only_the_older_format_gets_it() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.metrics");
    let mut control = Control { peers: 0, queries: 0, longest_slice: 0 };
    let config = config(&path, Names::Adit);
    let is_plain = serving(&config, &mut control, move || {
        let accepted = [
            "text/plain",
            "text/plain;version=0.0.4;q=0.5,*/*;q=0.1",
            "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.5",
            "*/*",
        ];
        accepted.map(|kinds| {
            let request = format!("GET /metrics HTTP/1.1\r\nHost: a\r\nAccept: {kinds}\r\n\r\n");
            let response = exchange(&path, request.as_bytes());
            let plain = response.contains("content-type: text/plain; version=0.0.4");
            assert_eq!(plain, response.contains("# TYPE adit_build_info gauge"), "{response}");
            assert_eq!(!plain, response.ends_with("# EOF\n"), "{response}");
            plain
        })
    })
    .await;
    assert_eq!(is_plain, [true, true, false, false]);
}

#[tokio::test]
async fn other_requests_get_an_answer_and_endless_ones_an_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.metrics");
    let mut control = Control { peers: 1, queries: 0, longest_slice: 0 };
    let config = config(&path, Names::Adit);
    let statuses = serving(&config, &mut control, move || {
        let long = [b"GET /metrics HTTP/1.1\r\nx: ".as_slice(), &vec![b'a'; 100_000]].concat();
        let requests: [&[u8]; 5] = [
            b"GET / HTTP/1.1\r\nHost: adit\r\n\r\n",
            b"POST /metrics HTTP/1.1\r\nHost: adit\r\nContent-Length: 0\r\n\r\n",
            b"{\"do\":\"status\"}\n",
            &long,
            b"GET /metrics HTTP/1.0\r\n\r\n",
        ];
        requests.map(|request| exchange(&path, request).chars().skip(9).take(3).collect::<String>())
    })
    .await;
    assert_eq!(statuses, ["404", "405", "400", "431", "200"]);
    // Only the last request reached the control thread.
    assert_eq!(control.queries, 3);
}

#[tokio::test]
async fn the_names_of_the_openvpn_exporter_are_served_instead() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("a.metrics");
    let mut control = Control { peers: 2, queries: 0, longest_slice: 0 };
    let config = config(&path, Names::Openvpn);
    let text = serving(&config, &mut control, move || {
        exchange(&path, b"GET /metrics HTTP/1.1\r\nHost: adit\r\n\r\n")
    })
    .await;
    assert!(text.contains("content-type: text/plain; version=0.0.4"), "{text}");
    for line in [
        "openvpn_up{status_path=\"server\"} 1\n",
        "openvpn_server_connected_clients{status_path=\"server\"} 2\n",
        "openvpn_server_client_received_bytes_total{status_path=\"server\",common_name=\"client-1\"} 4\n",
        "openvpn_server_client_sent_bytes_total{status_path=\"server\",common_name=\"client-1\"} 6\n",
    ] {
        assert!(text.contains(line), "{line}: {text}");
    }
    assert!(!text.contains("adit_"), "{text}");
}

#[tokio::test]
async fn a_port_is_served_to_this_machine() {
    // The port is free again when it is closed here.
    let free = BlockingTcp::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let listen = Endpoint::Tcp(free);
    let config = Config { listen, allow: Vec::new(), peers: 1, names: Names::Adit };
    let mut control = Control { peers: 0, queries: 0, longest_slice: 0 };
    let text = serving(&config, &mut control, move || {
        let mut stream = std::net::TcpStream::connect(free).unwrap();
        stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: adit\r\n\r\n").unwrap();
        let mut text = String::new();
        stream.read_to_string(&mut text).unwrap();
        text
    })
    .await;
    assert!(text.starts_with("HTTP/1.1 200") && text.ends_with("# EOF\n"), "{text}");
}

/// Checks that the table's names can be declared; promtool checks the text in the interop test metrics/scrape.
#[test]
fn every_metric_can_be_written() {
    let mut samples = Samples::default();
    let write = |samples: &mut Samples, metric: &'static Metric| match metric.kind {
        Kind::Histogram => {
            let value = super::super::Durations::default();
            match metric.labels.len() {
                0 => samples.durations(metric, [], &value),
                _ => samples.durations(metric, ["a"], &value),
            }
        }
        _ => match metric.labels.len() {
            0 => samples.count(metric, [], 1),
            1 => samples.count(metric, ["a"], 1),
            2 => samples.count(metric, ["a", "b"], 1),
            _ => samples.count(metric, ["a", "b", "c"], 1),
        },
    };
    table::ALL.iter().for_each(|metric| write(&mut samples, metric));
    let text = samples.text();
    for metric in table::ALL {
        assert!(text.contains(&format!("# TYPE {} {}\n", metric.name, metric.kind.name())));
    }
}
