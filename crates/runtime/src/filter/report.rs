//! The report that `adit filter show` displays.

use std::collections::BTreeMap;

use adit_filter::conntrack::{FlowInfo, TrackStats};
use adit_filter::firewall::Drop;
use adit_filter::lang::{CounterOwner, listing};
use adit_filter::ruleset::{Count, Family, Table};
use adit_filter::{Counts, Filter, Nanos, elements};

use super::LiveFilter;
use crate::clock::now;
use crate::control::{AddedElements, FilterReport, FlowReport, FlowTotals, RuleCounter};
use crate::metrics::{Samples, table};

/// The maximum number of rules with a metric of their own, and of base chains. The other rules are added up.
const MAX_MEASURED: usize = 1000;

/// The maximum number of listed connections.
const MAX_LISTED: usize = 10_000;

impl LiveFilter {
    /// Returns the totals of the connection table.
    pub fn connections(&self) -> FlowTotals {
        totals(&self.firewall.tracker().stats())
    }

    /// Adds the filter's metrics that a status report does not have: verdicts, and the counters of rules.
    pub fn measure(&self, samples: &mut Samples) {
        let filter = self.firewall.filter();
        self.measure_verdicts(&filter, samples);
        let counters = counters(&filter, &filter.counts());
        let (own, others) = counters.split_at(counters.len().min(MAX_MEASURED));
        for rule in own {
            let labels = [rule.table.as_str(), &rule.chain, &rule.handle.to_string()];
            samples.count(&table::FILTER_RULE_PACKETS, labels, rule.packets);
        }
        if !others.is_empty() {
            let packets = others.iter().map(|rule| rule.packets).fold(0, u64::saturating_add);
            samples.count(&table::FILTER_RULE_PACKETS, ["", "", "other"], packets);
        }
    }

    /// Adds the verdicts of base chains, and of packets that no chain decided about.
    fn measure_verdicts(&self, filter: &Filter, samples: &mut Samples) {
        let stats = self.firewall.stats();
        let others = stats.dropped.iter().filter(|(why, _)| *why != Drop::Rules);
        let others = others.map(|(_, count)| *count).fold(0, u64::saturating_add);
        for verdicts in filter.verdicts().iter().take(MAX_MEASURED) {
            let named = verdicts.chain.and_then(|(table, chain)| {
                let table = filter.ruleset().tables.get(table)?;
                Some((table_name(table), table.chains.get(chain.0)?.name.as_str()))
            });
            let dropped = if named.is_some() { verdicts.dropped } else { others };
            let (table, chain) = named.unwrap_or_default();
            for (verdict, count) in [("accept", verdicts.accepted), ("drop", dropped)] {
                samples.count(&table::FILTER_VERDICTS, [table.as_str(), chain, verdict], count);
            }
        }
    }

    /// Returns the report that identifies the filter.
    pub(super) fn identification(&self) -> FilterReport {
        FilterReport {
            file: self.file.clone(),
            since: self.since,
            reloads: self.reloads,
            ..FilterReport::default()
        }
    }

    pub(super) fn report(&self, flows: bool) -> FilterReport {
        let filter = self.firewall.filter();
        let (counts, stats) = (filter.counts(), self.firewall.stats());
        let live = |counted| match counted {
            CounterOwner::Rule(handle) => counts.rule(handle),
            CounterOwner::Named { table, counter } => counts.named(table, counter),
        };
        let lost = [("captured-packets", stats.logs_lost), ("log-lines", self.lines.lost)];
        let moment = Nanos(now().as_nanos());
        let elements = |table, set| self.firewall.elements(table, set, moment);
        FilterReport {
            rules: listing(filter.ruleset(), &live, &elements),
            counters: counters(&filter, &counts),
            flows: totals(&stats.track),
            drops: self.drops(),
            members: self.names(&filter),
            lost: named(lost),
            elements: added(&self.firewall.element_totals()),
            list: flows.then(|| self.flows()),
            ..self.identification()
        }
    }

    fn drops(&self) -> BTreeMap<String, u64> {
        let stats = self.firewall.stats();
        let track = stats.track.invalid.iter();
        let invalid = track.map(|(why, count)| (format!("ct-{}", words(why)), *count));
        let dropped = stats.dropped.iter().map(|(why, count)| (why.name().to_owned(), *count));
        dropped.chain(invalid).filter(|(_, count)| *count > 0).collect()
    }

    fn names(&self, filter: &Filter) -> BTreeMap<String, Vec<String>> {
        let of = |who| self.members.of(who).iter().map(ToString::to_string).collect();
        filter.wanted().filter_map(|who| Some((who.label()?, of(who)))).collect()
    }

    fn flows(&self) -> Vec<FlowReport> {
        let moment = Nanos(now().as_nanos());
        let (mut all, mut cursor) = (Vec::new(), Some(0));
        while let Some(at) = cursor.filter(|_| all.len() < MAX_LISTED) {
            let (some, next) = self.firewall.tracker().flows(moment, at);
            all.extend(some.iter().map(flow));
            cursor = next;
        }
        all.truncate(MAX_LISTED);
        all
    }
}

fn counters(filter: &Filter, counts: &Counts) -> Vec<RuleCounter> {
    let mut all = Vec::new();
    for table in &filter.ruleset().tables {
        for chain in &table.chains {
            for rule in &chain.rules {
                let Some(Count { packets, bytes }) = counts.rule(rule.handle) else { continue };
                all.push(RuleCounter {
                    table: table_name(table),
                    chain: chain.name.clone(),
                    handle: rule.handle,
                    line: rule.line,
                    packets,
                    bytes,
                });
            }
        }
    }
    all
}

fn table_name(table: &Table) -> String {
    format!("{} {}", family(table.family), table.name)
}

fn family(family: Family) -> &'static str {
    match family {
        Family::Ip => "ip",
        Family::Ip6 => "ip6",
        Family::Inet => "inet",
        Family::Bridge => "bridge",
    }
}

fn added(totals: &elements::ElementTotals) -> AddedElements {
    AddedElements {
        now: totals.added,
        limit: elements::MAX_ADDED as u64,
        refused: totals.refused,
        expired: totals.expired,
    }
}

fn totals(track: &TrackStats) -> FlowTotals {
    FlowTotals {
        now: track.flows,
        limit: track.limit,
        bytes: track.bytes,
        states: track.states.iter().map(|(state, count)| (words(state), *count)).collect(),
        entered: track.entered,
        expired: track.expired,
        evicted: track.evicted,
        evicted_share: track.evicted_share,
        withdrawn: track.withdrawn,
        refused_full: track.refused_full,
        refused_source: track.refused_source,
    }
}

fn flow(flow: &FlowInfo) -> FlowReport {
    let end = |(address, port): (std::net::IpAddr, u16)| match flow.protocol {
        6 | 17 | 33 | 132 | 136 => std::net::SocketAddr::new(address, port).to_string(),
        _ => address.to_string(),
    };
    FlowReport {
        protocol: match flow.protocol {
            1 => "icmp".into(),
            6 => "tcp".into(),
            17 => "udp".into(),
            58 => "icmpv6".into(),
            132 => "sctp".into(),
            other => other.to_string(),
        },
        source: end(flow.source),
        destination: end(flow.destination),
        vlans: flow.vlans.into_iter().filter(|id| *id != 0).collect(),
        clients: if flow.clients.iter().any(Option::is_some) {
            flow.clients.iter().map(|name| name.as_deref().unwrap_or("").into()).collect()
        } else {
            Vec::new()
        },
        state: words(&flow.state),
        age_s: flow.age.as_secs(),
        left_s: flow.left.as_secs(),
        packets: flow.packets,
        bytes: flow.bytes,
    }
}

fn named<const N: usize>(counts: [(&str, u64); N]) -> BTreeMap<String, u64> {
    let some = counts.into_iter().filter(|(_, count)| *count > 0);
    some.map(|(name, count)| (name.to_owned(), count)).collect()
}

/// Returns a variant's name in lower case with hyphens, so `SynSent` becomes `syn-sent`.
fn words(variant: &impl std::fmt::Debug) -> String {
    let mut text = String::new();
    for c in format!("{variant:?}").chars() {
        if c.is_ascii_uppercase() && !text.is_empty() {
            text.push('-');
        }
        text.push(c.to_ascii_lowercase());
    }
    text
}
