//! One page of `adit top`, for output that is not a terminal.

use std::cmp::Reverse;

use adit_app_server::Overview;
use adit_runtime::control::{PeerReport, StatusReport};
use adit_runtime::paths::Paths;

use super::super::{drops, no_session, page, ports, since, title};
use crate::args::SortKey;
use crate::text::{bytes, count, rate, row, span, table_of_names};

pub(in crate::status) fn top_page(machine: &Overview, paths: &Paths, sort: SortKey) -> String {
    if machine.reports.is_empty() {
        return page(machine, paths);
    }
    let pages: Vec<String> =
        machine.reports.iter().map(|report| top_report(report, sort)).collect();
    pages.join("\n")
}

/// Prints the title, the totals, and a line for each session.
fn top_report(report: &StatusReport, sort: SortKey) -> String {
    let mut text = title(report);
    if report.problem.is_some() {
        return text;
    }
    text.push_str(&drops(&report.drops));
    #[cfg(feature = "mesh")]
    if let Some(mesh) = &report.mesh {
        return text + &crate::mesh::show::in_top(mesh, sort);
    }
    #[cfg(feature = "tinc")]
    if let Some(tinc) = &report.tinc {
        return text + &crate::tinc::status::nodes(tinc);
    }
    match (&report.bridge, &report.postgres) {
        (Some(bridge), _) => return text + &ports(bridge),
        #[cfg(feature = "postgres")]
        (_, Some(postgres)) => return text + &crate::postgres::show::in_status(postgres),
        _ => {}
    }
    if report.peers.is_empty() {
        return text + &no_session(report);
    }
    let sum = |of: fn(&PeerReport) -> u64| report.peers.iter().map(of).fold(0, u64::saturating_add);
    text.push_str(&format!(
        "  {}: received {}, {}; sent {}, {}\n",
        count(report.peers.len(), "session"),
        bytes(sum(|peer| peer.rx_bytes)),
        rate(sum(|peer| peer.rx_bps)),
        bytes(sum(|peer| peer.tx_bytes)),
        rate(sum(|peer| peer.tx_bps))
    ));
    let mut rows = vec![row(["  NAME", "INSIDE", "RECEIVED", "", "SENT", "", "CONNECTED"])];
    for peer in sorted(&report.peers, sort) {
        rows.push(vec![
            format!("  {}", peer.name),
            peer.tunnel.first().cloned().unwrap_or_default(),
            bytes(peer.rx_bytes),
            rate(peer.rx_bps),
            bytes(peer.tx_bytes),
            rate(peer.tx_bps),
            span(since(peer)),
        ]);
    }
    text + &table_of_names(rows)
}

pub(in crate::status) fn sorted(peers: &[PeerReport], sort: SortKey) -> Vec<&PeerReport> {
    let mut sorted: Vec<&PeerReport> = peers.iter().collect();
    sorted.sort_by_key(|peer| peer.name.clone());
    match sort {
        SortKey::Name => {}
        SortKey::Rate => {
            sorted.sort_by_key(|peer| Reverse(peer.rx_bps.saturating_add(peer.tx_bps)));
        }
        SortKey::Traffic => {
            sorted.sort_by_key(|peer| Reverse(peer.rx_bytes.saturating_add(peer.tx_bytes)));
        }
        SortKey::Received => sorted.sort_by_key(|peer| Reverse((peer.rx_bps, peer.rx_bytes))),
        SortKey::Sent => sorted.sort_by_key(|peer| Reverse((peer.tx_bps, peer.tx_bytes))),
        SortKey::Connected => sorted.sort_by_key(|peer| Reverse(since(peer))),
    }
    sorted
}
