//! Collects the samples of one scrape.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use adit_dataplane::DropReason;
use adit_engine::auth;

use super::process;
use super::samples::{Durations, Histogram, Samples};
use super::table;
use crate::control::StatusReport;

/// The maximum number of peers that the control thread describes at a time.
pub const SLICE: usize = 128;

/// The label of the peers that are added up.
const OTHER: &str = "other";

/// What the control thread knows apart from the peers.
#[derive(Debug, Default)]
pub struct Head {
    /// The status report without its peers.
    pub report: StatusReport,
    /// The samples that a status report does not have.
    pub samples: Samples,
}

/// A peer.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct PeerSample {
    /// A number that no other peer has. Peers are described in ascending order of these numbers.
    pub id: u64,
    /// The name in its certificate, or of the node.
    pub name: String,
    /// `udp`, `tcp`, or the path of a mesh's member.
    pub proto: &'static str,
    /// Whether there is a session. Members of a mesh exist without one.
    pub connected: bool,
    /// The beginning of its session, in seconds since 1970.
    pub since: Option<u64>,
    /// The time of its last packet, in seconds since 1970.
    pub last_seen: Option<u64>,
    /// The data packets and bytes received.
    pub received: (u64, u64),
    /// The data packets and bytes sent.
    pub sent: (u64, u64),
    /// The round trip.
    pub round_trip: Option<Duration>,
    /// The MTU of the path.
    pub path_mtu: Option<u16>,
    /// The age of the oldest row in the last page that was read from a node of a network in a database.
    pub lag: Option<Duration>,
}

/// The counters of authorization requests by kind.
#[derive(Clone, Debug, Default)]
pub struct AuthStats {
    results: BTreeMap<(&'static str, &'static str), u64>,
    durations: BTreeMap<&'static str, Durations>,
}

impl AuthStats {
    /// Returns the kind of a request.
    pub fn kind(request: &auth::Request) -> &'static str {
        match request {
            auth::Request::VerifyKey(_) => "verify-key",
            auth::Request::Authorize(_) => "authorize",
            auth::Request::Connect(_) => "connect",
            auth::Request::Learn(_) => "learn",
            auth::Request::VerifyServer(_) => "verify-server",
            auth::Request::Credentials(_) => "credentials",
        }
    }

    /// Counts a response, unless it only extends the time.
    pub fn record(&mut self, kind: &'static str, response: &auth::Response, took: Duration) {
        let result = match response {
            auth::Response::Pending { .. } => return,
            auth::Response::Reject(_) => "rejected",
            auth::Response::Later(_) => "rejected-for-now",
            auth::Response::Accept(_) | auth::Response::Credentials { .. } => "accepted",
        };
        let count = self.results.entry((kind, result)).or_default();
        *count = count.saturating_add(1);
        self.durations.entry(kind).or_default().record(took);
    }

    /// Adds the counters to the samples.
    pub fn measure(&self, samples: &mut Samples) {
        for ((kind, result), count) in &self.results {
            samples.count(&table::AUTH_REQUESTS, [kind, result], *count);
        }
        for (kind, durations) in &self.durations {
            samples.durations(&table::AUTH_DURATION, [kind], durations);
        }
    }
}

/// The sum of the peers without samples of their own.
///
/// When one of them disconnects, their sum decreases. A counter must not: the next scrape would look as if everything had
/// been transferred again.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct OtherPeers {
    last: [u64; 4],
    lost: [u64; 4],
}

impl OtherPeers {
    fn add(&mut self, sums: [u64; 4]) -> [u64; 4] {
        let mut shown = [0; 4];
        for (((sum, last), lost), shown) in
            sums.iter().zip(&mut self.last).zip(&mut self.lost).zip(&mut shown)
        {
            *lost = lost.saturating_add(last.saturating_sub(*sum));
            *last = *sum;
            *shown = sum.saturating_add(*lost);
        }
        shown
    }
}

/// The peers of one scrape.
#[derive(Debug, Default)]
pub(super) struct Peers {
    /// Those with samples of their own, by name. Sessions of the same name are added up.
    pub(super) named: BTreeMap<String, PeerSample>,
    other: [u64; 4],
    others: usize,
    /// The number of peers by protocol or path.
    protos: BTreeMap<&'static str, u64>,
    total: u64,
    connected: u64,
    ids: HashSet<u64>,
}

impl Peers {
    /// Adds a slice. At most `limit` names have samples of their own.
    pub(super) fn add(&mut self, slice: Vec<PeerSample>, limit: usize) {
        for peer in slice {
            // A table may have changed between two slices.
            if !self.ids.insert(peer.id) {
                continue;
            }
            self.total = self.total.saturating_add(1);
            self.connected = self.connected.saturating_add(peer.connected.into());
            let count = self.protos.entry(peer.proto).or_default();
            *count = count.saturating_add(1);
            if !self.named.contains_key(&peer.name) && self.named.len() >= limit {
                self.others = self.others.saturating_add(1);
                let (received, sent) = (peer.received, peer.sent);
                let values = [received.0, received.1, sent.0, sent.1];
                for (sum, value) in self.other.iter_mut().zip(values) {
                    *sum = sum.saturating_add(value);
                }
                continue;
            }
            match self.named.get_mut(&peer.name) {
                Some(known) => merge(known, &peer),
                None => drop(self.named.insert(peer.name.clone(), peer)),
            }
        }
    }

    /// Returns the number of all peers.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Adds the samples of all peers.
    pub(super) fn measure(
        &self,
        samples: &mut Samples,
        report: &StatusReport,
        other: &mut OtherPeers,
    ) {
        let mesh = report.role == "mesh";
        for (proto, count) in &self.protos {
            if mesh {
                samples.count(&table::MESH_PEERS, [proto], *count);
            } else {
                samples.count(&table::PEERS, [&report.instance, proto], *count);
            }
        }
        if mesh {
            samples.count(&table::PEERS, [&report.instance, "udp"], self.connected);
            // This node is a member too.
            samples.count(&table::MESH_MEMBERS, [], self.total.saturating_add(1));
        } else if self.protos.is_empty() && report.role != "bridge" {
            samples.count(&table::PEERS, [&report.instance, "udp"], 0);
        }
        for (name, peer) in self.named.iter().filter(|(_, peer)| peer.connected) {
            let label = [name.as_str()];
            if let Some(since) = peer.since {
                samples.count(&table::PEER_CONNECTED, label, since);
            }
            if let Some(seen) = peer.last_seen {
                samples.count(&table::PEER_LAST_SEEN, label, seen);
            }
            let (received, sent) = (peer.received, peer.sent);
            traffic(samples, name, [received.0, received.1, sent.0, sent.1]);
            if let Some(round_trip) = peer.round_trip {
                samples.real(&table::PEER_ROUND_TRIP, label, round_trip.as_secs_f64());
            }
            if let Some(lag) = peer.lag {
                samples.real(&table::POSTGRES_LAG, label, lag.as_secs_f64());
            }
            if let Some(mtu) = peer.path_mtu {
                samples.count(&table::PATH_MTU, label, mtu.into());
            }
        }
        let sums = other.add(self.other);
        if self.others > 0 || sums != [0; 4] {
            traffic(samples, OTHER, sums);
        }
    }
}

fn traffic(samples: &mut Samples, name: &str, values: [u64; 4]) {
    let metrics = [
        &table::PEER_RECEIVED_PACKETS,
        &table::PEER_RECEIVED_BYTES,
        &table::PEER_SENT_PACKETS,
        &table::PEER_SENT_BYTES,
    ];
    for (metric, value) in metrics.into_iter().zip(values) {
        samples.count(metric, [name], value);
    }
}

/// Adds a further session of the same name.
fn merge(known: &mut PeerSample, peer: &PeerSample) {
    let add = |a: (u64, u64), b: (u64, u64)| (a.0.saturating_add(b.0), a.1.saturating_add(b.1));
    known.received = add(known.received, peer.received);
    known.sent = add(known.sent, peer.sent);
    known.since = known.since.into_iter().chain(peer.since).min();
    known.last_seen = known.last_seen.into_iter().chain(peer.last_seen).max();
    known.connected |= peer.connected;
    known.round_trip = known.round_trip.or(peer.round_trip);
    known.lag = known.lag.into_iter().chain(peer.lag).max();
    known.path_mtu = known.path_mtu.into_iter().chain(peer.path_mtu).min();
}

/// Adds the samples that follow from a status report.
pub(super) fn measure_report(samples: &mut Samples, report: &StatusReport) {
    let revision = option_env!("ADIT_REVISION").unwrap_or("unknown");
    samples.count(&table::BUILD, [&report.version, revision], 1);
    for (certificate, client) in [(&report.certificate, false), (&report.client_certificate, true)]
    {
        let Some(certificate) = certificate else { continue };
        let (kind, name) = match certificate.whose.as_str() {
            name if client => ("client", name),
            whose @ ("own" | "ca") => (whose, ""),
            name => ("peer", name),
        };
        samples.count(&table::CERTIFICATE_EXPIRY, [kind, name], certificate.not_after);
    }
    for (reason, count) in &report.drops {
        samples.count(&table::DROPPED, [direction(reason), reason], *count);
    }
    for (offload, enabled) in &report.offloads {
        samples.count(&table::OFFLOAD_ENABLED, [offload], (*enabled).into());
    }
    if let Some(flows) = &report.connections {
        samples.count(&table::CONNTRACK_ENTRIES, [], flows.now);
        samples.count(&table::CONNTRACK_LIMIT, [], flows.limit);
        for (reason, count) in [
            ("table-full", flows.refused_full),
            ("source-limit", flows.refused_source),
            ("evicted", flows.evicted),
        ] {
            samples.count(&table::CONNTRACK_DROPPED, [reason], count);
        }
    }
    if !report.offloads.is_empty() {
        let trains = &report.trains;
        for (direction, buckets, packets) in [
            ("sent", &trains.sent, trains.sent_packets),
            ("received", &trains.received, trains.received_packets),
            ("relayed", &trains.relayed, trains.relayed_packets),
        ] {
            // Most programs relay nothing.
            if direction == "relayed" && packets == 0 {
                continue;
            }
            samples.histogram(&table::TRAIN_SEGMENTS, [direction], segments(buckets, packets));
        }
    }
    process::measure(samples, report.started);
}

/// Converts the histogram of a status report, whose keys are lower bounds.
fn segments(buckets: &BTreeMap<u32, u64>, packets: u64) -> Histogram {
    let uppers = [1_u32, 2, 4, 8, 16, 32, 64];
    let mut counts = vec![0_u64; uppers.len() + 1];
    for (lower, count) in buckets {
        let at = uppers.iter().take_while(|upper| lower > *upper).count();
        if let Some(bucket) = counts.get_mut(at) {
            *bucket = bucket.saturating_add(*count);
        }
    }
    Histogram {
        bounds: uppers.iter().map(|upper| f64::from(*upper)).collect(),
        buckets: counts,
        sum: packets as f64,
    }
}

/// Returns the direction of the packets that are dropped for a reason: `sent` to peers, `received` from them, or `both`.
pub fn direction(reason: &str) -> &'static str {
    use DropReason::{
        ControlFull, Filtered, KeyExhausted, LocalScope, NoKey, NoRoute, NoSocket, Recursive,
        SendFailed, SocketFull, StreamFull, TooLong, TooManyFragments, TunMalformed,
    };
    let sent = [
        NoRoute,
        Recursive,
        NoKey,
        KeyExhausted,
        TunMalformed,
        SocketFull,
        SendFailed,
        NoSocket,
        StreamFull,
        ControlFull,
        TooLong,
        TooManyFragments,
    ];
    // A node of a network in a database.
    let rows = [
        "network-unknown",
        "queue-full",
        "queue-codel",
        "queue-old",
        "malformed",
        "stream-closed",
        "commit-in-doubt",
    ];
    // A node of a tinc net.
    let tinc_sent =
        ["unreachable", "no-session", "not-held", "not-sent", "no-subnet", "indirect", "too-big"];
    let tinc_both = ["not-relayed", "not-forwarded", "ttl-exceeded", "packet-copies-not-read"];
    if sent.iter().any(|known| known.name() == reason)
        || rows.contains(&reason)
        || tinc_sent.contains(&reason)
    {
        "sent"
    } else if [Filtered, LocalScope].iter().any(|known| known.name() == reason)
        || tinc_both.contains(&reason)
    {
        "both"
    } else {
        "received"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(id: u64, name: &str, bytes: u64) -> PeerSample {
        PeerSample {
            id,
            name: name.into(),
            proto: "udp",
            connected: true,
            received: (1, bytes),
            ..PeerSample::default()
        }
    }

    fn text(peers: &Peers, other: &mut OtherPeers) -> String {
        let mut samples = Samples::default();
        peers.measure(
            &mut samples,
            &StatusReport { instance: "server".into(), ..StatusReport::default() },
            other,
        );
        samples.text()
    }

    #[test]
    fn peers_beyond_the_limit_are_added_up_and_their_sum_never_decreases() {
        let mut other = OtherPeers::default();
        let mut peers = Peers::default();
        peers.add(vec![peer(1, "a", 10), peer(2, "b", 20), peer(3, "c", 30), peer(4, "d", 40)], 2);
        let shown = text(&peers, &mut other);
        assert!(shown.contains("adit_peer_received_bytes_total{peer=\"a\"} 10\n"), "{shown}");
        assert!(shown.contains("adit_peer_received_bytes_total{peer=\"other\"} 70\n"), "{shown}");
        assert!(!shown.contains("\"c\"") && !shown.contains("\"d\""), "{shown}");
        assert!(
            shown.contains("adit_peers_connected{server=\"server\",proto=\"udp\"} 4\n"),
            "{shown}"
        );
        // One of the others is gone, and one has received more.
        let mut peers = Peers::default();
        peers.add(vec![peer(1, "a", 10), peer(2, "b", 20), peer(3, "c", 35)], 2);
        let shown = text(&peers, &mut other);
        assert!(shown.contains("{peer=\"other\"} 70\n"), "{shown}");
        let mut peers = Peers::default();
        peers.add(vec![peer(1, "a", 10), peer(2, "b", 20), peer(3, "c", 45)], 2);
        assert!(text(&peers, &mut other).contains("{peer=\"other\"} 80\n"));
    }

    #[test]
    fn sessions_of_one_name_are_one_series_and_no_peer_counts_twice() {
        let mut peers = Peers::default();
        peers.add(vec![peer(1, "a", 10), peer(2, "a", 20)], 10);
        peers.add(vec![peer(2, "a", 20), peer(3, "b", 1)], 10);
        let shown = text(&peers, &mut OtherPeers::default());
        assert_eq!(
            shown.matches("adit_peer_received_bytes_total{peer=\"a\"} 30\n").count(),
            1,
            "{shown}"
        );
        assert!(shown.contains("proto=\"udp\"} 3\n"), "{shown}");
    }

    #[test]
    fn a_node_of_a_database_has_a_lag() {
        let mut peers = Peers::default();
        let lag = Some(Duration::from_millis(1500));
        peers.add(vec![PeerSample { lag, ..peer(1, "a", 10) }, peer(2, "b", 20)], 10);
        let shown = text(&peers, &mut OtherPeers::default());
        assert!(shown.contains("adit_postgres_lag_seconds{peer=\"a\"} 1.5\n"), "{shown}");
        assert_eq!(shown.matches("adit_postgres_lag_seconds{").count(), 1, "{shown}");
    }

    #[test]
    fn trains_have_the_upper_bounds_of_their_buckets() {
        let histogram = segments(&BTreeMap::from([(1, 5), (2, 1), (3, 2), (65, 4)]), 300);
        assert_eq!(histogram.buckets, [5, 1, 2, 0, 0, 0, 0, 4]);
        assert_eq!((histogram.bounds.last(), histogram.sum), (Some(&64.0), 300.0));
    }

    #[test]
    fn each_reason_has_a_direction() {
        let of = |reason: DropReason| direction(reason.name());
        assert_eq!(of(DropReason::NoRoute), "sent");
        assert_eq!(of(DropReason::BadTag), "received");
        assert_eq!(of(DropReason::Filtered), "both");
        assert_eq!(direction("queue-codel"), "sent");
        assert_eq!(direction("reset-limited"), "received");
        assert_eq!(direction("no-subnet"), "sent");
        assert_eq!(direction("packet-copies-not-read"), "both");
        assert_eq!(direction("unknown-senders"), "received");
    }
}
