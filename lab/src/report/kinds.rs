//! The purpose of each kind of scenario, and the figures that compare its subjects.

use super::tables::better;
use crate::metric::Better;

/// Describes the scenario for a reader who does not know it.
pub(super) fn intro(kind: &str) -> &'static str {
    match kind {
        "throughput" => {
            "Bulk transfer: what the receivers counted inside the window that all flows share. Medians of the rounds, \
             with 95 % intervals."
        }
        "udp" => {
            "Datagrams sent at a fixed rate whatever comes back, and the highest rates at which nothing, and at most \
             0.5 %, was lost."
        }
        "latency" => {
            "Round trips from the time when each was meant to start, idle and during a bulk transfer."
        }
        "loss" => {
            "Bulk transfer over a link that loses or reorders packets; the relay that does it has a ceiling and a \
             jitter of its own."
        }
        "growth" => "The same total rate over more and more clients: what the server spends.",
        "connections" => {
            "Clients that connect at once, up to where the server refuses or delays. The times are those at each subject's own \
             highest rate, so they are not compared."
        }
        "overload" => {
            "Half as many clients again as the server can take, then a tenth: how it recovers."
        }
        "control" => {
            "Bulk transfer while the control channel is busy, and how long the trains of packets were."
        }
        "management" => {
            "Bulk transfer in both directions at once, in short slices: alone, and while a management client polls the server. The \
             cost is the throughput that the slices with commands lack."
        }
        "scrape" => {
            "Bulk transfer in both directions at once, in short slices: alone, and while the server's metrics are scraped. The cost is \
             the throughput that the slices with scrapes lack."
        }
        "hostile" => {
            "An honest client's round trips, from the time when each was meant to start, idle and during its own bulk \
             transfer, while another peer attacks the server: none (the control), a client with a certificate, or a stranger. \
             The adversary acts at the same rate for each subject."
        }
        "relay" => {
            "One TCP stream between two members of a mesh, in each direction in turn: on their direct path, and then through a \
             third member, because they reach only that one; and what it costs the third one."
        }
        "volume" => "Memory after more and more was carried.",
        "postgres" => {
            "One TCP stream between two hosts that reach only a database, by the receiver's count, and idle round trips; what \
             database and nodes spent; what the database wrote for each byte that was delivered; and whether its tables have \
             every packet."
        }
        "soak" => {
            "A steady rate through a database that keeps 1 GB: its disk use over time, the write-ahead log included."
        }
        "in-memory" => "Sealing and opening without any I/O.",
        "handshakes" => "Handshakes between two engines without any I/O.",
        "instructions" => "Instructions under callgrind, which repeat exactly.",
        _ => "Medians of the rounds, with 95 % intervals.",
    }
}

/// Returns the figures that compare the subjects of a scenario of this kind; the first that is present is the most important.
pub(super) fn judged_by(kind: &str) -> &'static [&'static str] {
    match kind {
        "udp" => &["rate_at_no_loss_pps", "rate_at_half_percent_pps"],
        "latency" | "hostile" => &["loaded_p99_ms", "p99_ms", "idle_p99_ms"],
        "growth" => &["server_cpu_percent", "server_anon_mib"],
        "connections" | "handshakes" => &["handshakes_per_s", "cpu_ms_per_handshake"],
        "overload" => &["recovery_s", "stuck"],
        "relay" => &["relayed_mbps", "direct_mbps", "relayed_percent", "relay_cpu_s_per_gb"],
        "volume" => &["server_pss_mib"],
        "postgres" => &["sum_mbps", "idle_p50_ms", "idle_p99_ms"],
        "soak" => &["disk_growth_mib_per_min", "disk_peak_mib"],
        _ => &["sum_mbps", "up_mbps", "down_mbps", "requests_per_s"],
    }
}

/// Returns the figure that compares the subjects of a scenario of this kind.
pub(super) fn primary<'a>(kind: &str, present: &[&'a str]) -> Option<&'a str> {
    let wanted = judged_by(kind);
    let found = wanted.iter().find_map(|name| present.iter().find(|other| *other == name));
    let judged = || present.iter().find(|name| better(name) != Better::Neither);
    found.or_else(judged).or_else(|| present.first()).copied()
}
