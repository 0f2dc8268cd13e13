//! The metrics of a trial: their names in `trials.jsonl`, their titles, and which direction is better.

/// The direction in which a figure is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Better {
    /// More is better.
    Higher,
    /// Less is better.
    Lower,
    /// The figure describes the trial and is not compared.
    Neither,
}

/// One metric.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Metric {
    /// Its name in `trials.jsonl`.
    pub name: &'static str,
    /// Its title in tables and plots, with its unit.
    pub title: &'static str,
    /// The direction in which it is better.
    pub better: Better,
    /// The number of decimals.
    pub digits: usize,
}

const fn metric(name: &'static str, title: &'static str, better: Better, digits: usize) -> Metric {
    Metric { name, title, better, digits }
}

use Better::{Higher, Lower, Neither};

/// All metrics, in the order of the columns of a table.
pub const ALL: &[Metric] = &[
    metric("up_mbps", "up Mb/s", Higher, 0),
    metric("down_mbps", "down Mb/s", Higher, 0),
    metric("sum_mbps", "sum Mb/s", Higher, 0),
    metric("mb_per_cpu_s", "Mb per CPU-s", Higher, 0),
    metric("server_cpu_s_per_gb", "server CPU-s/Gb", Lower, 3),
    metric("client_cpu_s_per_gb", "client CPU-s/Gb", Lower, 3),
    metric("requests_per_s", "requests/s", Higher, 0),
    metric("rate_at_no_loss_pps", "packets/s at 0 % loss", Higher, 0),
    metric("rate_at_half_percent_pps", "packets/s at 0.5 % loss", Higher, 0),
    metric("p50_ms", "p50 ms", Lower, 3),
    metric("p90_ms", "p90 ms", Lower, 3),
    metric("p99_ms", "p99 ms", Lower, 3),
    metric("p999_ms", "p99.9 ms", Lower, 3),
    metric("idle_p50_ms", "idle p50 ms", Lower, 3),
    metric("idle_p90_ms", "idle p90 ms", Lower, 3),
    metric("idle_p99_ms", "idle p99 ms", Lower, 3),
    // A trial has a few hundred round trips, so the worst thousandth is shown but not compared.
    metric("idle_p999_ms", "idle p99.9 ms", Neither, 3),
    metric("loaded_p50_ms", "loaded p50 ms", Lower, 3),
    metric("loaded_p90_ms", "loaded p90 ms", Lower, 3),
    metric("loaded_p99_ms", "loaded p99 ms", Lower, 3),
    metric("loaded_p999_ms", "loaded p99.9 ms", Neither, 3),
    metric("loss_percent", "loss %", Neither, 2),
    metric("handshakes_per_s", "handshakes/s", Higher, 0),
    metric("cpu_ms_per_handshake", "CPU ms/handshake", Lower, 3),
    metric("kib_per_client", "KiB per client", Lower, 0),
    metric("server_pss_mib", "server PSS MiB", Lower, 1),
    metric("server_anon_mib", "server's own memory MiB", Lower, 2),
    metric("client_pss_mib", "client PSS MiB", Lower, 1),
    metric("server_cpu_percent", "server CPU %", Lower, 1),
    metric("refused", "refused", Lower, 0),
    metric("stuck", "stuck clients", Lower, 0),
    metric("misconfigured", "wrong pushed state", Lower, 0),
    metric("generator_percent", "clients' thread %", Neither, 0),
    metric("recovery_s", "recovery s", Lower, 2),
    metric("survived", "survived", Higher, 0),
    // Near zero, and so not compared by ratios.
    metric("cost_percent", "cost of the polling %", Neither, 2),
    metric("commands_per_s", "commands/s", Neither, 0),
    metric("cpu_us_per_command", "CPU us/command", Lower, 1),
    metric("scrapes_per_s", "scrapes/s", Neither, 1),
    metric("cpu_us_per_scrape", "CPU us/scrape", Lower, 0),
    metric("cpu_us_per_message", "CPU us/message", Lower, 0),
    metric("control_pps", "control packets/s", Neither, 0),
    metric("hostile_pps", "hostile packets/s", Neither, 0),
    metric("instructions", "instructions", Lower, 0),
    metric("database_cpu_s_per_gb", "database CPU-s/Gb", Lower, 3),
    metric("nodes_cpu_s_per_gb", "nodes CPU-s/Gb", Lower, 3),
    metric("database_pss_mib", "database PSS MiB", Lower, 1),
    metric("nodes_pss_mib", "nodes PSS MiB", Lower, 1),
    metric("wal_per_byte", "log bytes per byte", Lower, 2),
    metric("disk_per_byte", "table bytes per byte", Lower, 2),
    metric("flush_ms", "the disk's flush ms", Neither, 3),
    metric("rows_found", "rows found", Neither, 0),
    metric("disk_peak_mib", "disk peak MiB", Lower, 0),
    metric("disk_growth_mib_per_min", "disk growth MiB/min", Lower, 1),
    metric("direct_mbps", "direct Mb/s", Higher, 0),
    metric("relayed_mbps", "relayed Mb/s", Higher, 0),
    metric("relayed_percent", "relayed, % of direct", Higher, 0),
    metric("relay_cpu_s_per_gb", "relay CPU-s/Gb", Lower, 3),
    metric("jain", "Jain's index", Neither, 3),
    metric("skew_percent", "start skew %", Neither, 2),
    metric("coverage_percent", "coverage %", Neither, 1),
    metric("largest_frame", "largest frame B", Neither, 0),
    metric("relay_ceiling_mbps", "relay's ceiling Mb/s", Neither, 0),
    metric("relay_jitter_ms", "relay's jitter ms", Neither, 3),
];

/// Returns the metric with this name.
pub fn find(name: &str) -> Option<&'static Metric> {
    ALL.iter().find(|metric| metric.name == name)
}
