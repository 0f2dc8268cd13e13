//! The figures of two runs side by side.

use std::collections::BTreeMap;

use crate::metric::{self, Better};
use crate::stats::{Cell, Row, Summary};
use crate::subject::has_adit;

/// The aspect that a figure indicates.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Aspect {
    Speed,
    Cpu,
    Latency,
    Memory,
}

impl Aspect {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Speed => "speed",
            Self::Cpu => "CPU",
            Self::Latency => "latency",
            Self::Memory => "memory",
        }
    }

    /// Returns the aspect of a metric, and whether the metric is steady enough to be averaged into the aspect. The
    /// tails of latencies would dominate their medians.
    pub(super) fn of(metric: &str) -> Option<(Self, bool)> {
        Some(match metric {
            "up_mbps"
            | "down_mbps"
            | "sum_mbps"
            | "requests_per_s"
            | "rate_at_no_loss_pps"
            | "rate_at_half_percent_pps"
            | "handshakes_per_s" => (Self::Speed, true),
            "mb_per_cpu_s"
            | "server_cpu_s_per_gb"
            | "client_cpu_s_per_gb"
            | "cpu_ms_per_handshake"
            | "server_cpu_percent" => (Self::Cpu, true),
            "p50_ms" | "p90_ms" | "idle_p50_ms" | "idle_p90_ms" | "loaded_p50_ms"
            | "loaded_p90_ms" => (Self::Latency, true),
            "p99_ms" | "p999_ms" | "idle_p99_ms" | "loaded_p99_ms" => (Self::Latency, false),
            "kib_per_client" | "server_anon_mib" | "server_pss_mib" | "client_pss_mib" => {
                (Self::Memory, true)
            }
            _ => return None,
        })
    }
}

/// A figure of a row in both runs.
#[derive(Debug, Clone)]
pub(super) struct Series<'a> {
    pub(super) row: &'a Row,
    pub(super) metric: &'static str,
    pub(super) better: Better,
    pub(super) cells: [&'a Cell; 2],
    pub(super) relative_to: Option<&'a str>,
    /// The logarithms by round, signed so that more is better; `None` if a figure is not positive.
    pub(super) logs: Option<[BTreeMap<u32, f64>; 2]>,
}

/// Returns all figures that have a direction, of the rows that both runs have. If `relative` is set, they are ratios to
/// the reference where there is one.
pub(super) fn all_series<'a>(a: &'a Summary, b: &'a Summary, relative: bool) -> Vec<Series<'a>> {
    let mut all = Vec::new();
    for row in a.rows.iter().filter(|row| row.invalid.is_none()) {
        let Some(twin) = same_row(b, row, &row.subject) else { continue };
        let reference = reference(a, b, row).filter(|[r, _]| relative && r.subject != row.subject);
        for (name, cell) in &row.values {
            let Some(metric) = metric::find(name).filter(|m| m.better != Better::Neither) else {
                continue;
            };
            let Some(other) = twin.values.get(name) else { continue };
            let bases =
                reference.and_then(|[a, b]| Some([a.values.get(name)?, b.values.get(name)?]));
            // A reference with a figure of zero cannot be used here, because the ratio would be infinite.
            let bases = bases
                .filter(|bases| bases.iter().all(|base| base.by_round.values().all(|x| *x > 0.0)));
            let sign = if metric.better == Better::Higher { 1.0 } else { -1.0 };
            let logs = |cell: &Cell, base: Option<&Cell>| -> Option<BTreeMap<u32, f64>> {
                let rounds = cell.by_round.iter().filter_map(|(round, figure)| {
                    let base = base.map_or(Some(1.0), |base| base.by_round.get(round).copied())?;
                    Some((*round, figure, base))
                });
                rounds
                    .map(|(n, figure, base)| {
                        (*figure > 0.0).then(|| (n, sign * (figure / base).ln()))
                    })
                    .collect()
            };
            let (first, second) =
                (logs(cell, bases.map(|b| b[0])), logs(other, bases.map(|b| b[1])));
            all.push(Series {
                row,
                metric: metric.name,
                better: metric.better,
                cells: [cell, other],
                relative_to: bases.and(reference).map(|[r, _]| r.subject.as_str()),
                logs: first.zip(second).map(|(a, b)| [a, b]),
            });
        }
    }
    all
}

pub(super) fn same_row<'a>(run: &'a Summary, row: &Row, subject: &str) -> Option<&'a Row> {
    let mut valid = run.rows.iter().filter(|other| other.invalid.is_none());
    valid.find(|o| o.scenario == row.scenario && o.point == row.point && o.subject == subject)
}

/// Returns the reference for a row in A and in B: `openvpn`, or else the first subject other than adit that both runs
/// have at this point.
fn reference<'a>(a: &'a Summary, b: &'a Summary, row: &Row) -> Option<[&'a Row; 2]> {
    let here = |other: &&Row| other.scenario == row.scenario && other.point == row.point;
    let others = a.rows.iter().filter(here).map(|other| other.subject.as_str());
    let others = others.filter(|subject| !has_adit(subject) && *subject != "openvpn");
    let mut names = std::iter::once("openvpn").chain(others);
    names.find_map(|name| Some([same_row(a, row, name)?, same_row(b, row, name)?]))
}
