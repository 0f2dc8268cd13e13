//! The status report of a bridge.

use std::collections::BTreeMap;

use adit_bridge::{Drop, PortSpec, Side};

use super::Running;
use super::rules::Rules;
use adit_runtime::control::{BridgeReport, PortReport, StatusReport};
use adit_runtime::say;

impl Running {
    /// Completes the report for `adit status`.
    pub(super) fn complete(&mut self, report: &mut StatusReport) {
        let totals = self.bridge.totals();
        let drops = &mut report.drops;
        let mut ports = Vec::new();
        for ((side, totals), missing) in Side::BOTH.into_iter().zip(&totals.sides).zip(self.missing)
        {
            let spec = self.opener.spec(side);
            let kind = if matches!(spec, PortSpec::Tap(_)) { "tap" } else { "interface" };
            let here: BTreeMap<String, u64> = Drop::ALL
                .iter()
                .zip(totals.drops)
                .filter(|(_, count)| *count > 0)
                .map(|(drop, count)| (drop.name().to_owned(), count))
                .collect();
            // Drops by the rules and the router are listed by reason below.
            let counted_below = [Drop::Rules.name(), Drop::Unrouted.name()];
            for (reason, count) in
                here.iter().filter(|(name, _)| !counted_below.contains(&name.as_str()))
            {
                *drops.entry(reason.clone()).or_insert(0) += count;
            }
            ports.push(PortReport {
                name: spec.name().to_owned(),
                kind: kind.to_owned(),
                present: !missing,
                frames: totals.frames,
                bytes: totals.bytes,
                large: totals.large,
                forwarded: totals.forwarded,
                drops: here,
            });
        }
        let mut bridge = BridgeReport { mode: "relay".into(), ports, ..BridgeReport::default() };
        if let Some(rules) = &self.rules {
            let stats = rules.firewall().stats();
            for (reason, count) in &stats.dropped {
                *drops.entry(reason.name().to_owned()).or_insert(0) += count;
            }
            bridge.mode = "filter".into();
            bridge.rules_file = Some(rules.file().display().to_string());
            bridge.rules = rules.count();
            bridge.flows = stats.track.flows;
            bridge.flows_limit = stats.track.limit;
        }
        if let Some(routed) = &self.routed {
            bridge.mode = "routed".into();
            routed.report(drops);
        }
        report.endpoints = Side::BOTH.map(|side| self.opener.spec(side).to_string()).into();
        report.workers = self.bridge.workers();
        report.connections = self.rules.as_ref().map(Rules::connections);
        report.bridge = Some(bridge);
    }

    /// Writes the report to the log, on a signal.
    pub(super) fn log_report(&mut self) {
        let mut report = StatusReport::default();
        self.complete(&mut report);
        for port in report.bridge.iter().flat_map(|bridge| &bridge.ports) {
            let PortReport { name, frames, bytes, forwarded, drops, .. } = port;
            say!(1, "{name}: {frames} frames, {bytes} bytes in; {forwarded} forwarded; {drops:?}");
        }
    }
}
