//! The lengths of the trains of packets, totalled over all rounds.

use std::collections::BTreeMap;

use super::document::{Table, Text};
use super::number::number;
use super::tables::Scenario;
use crate::stats::Row;

/// Returns, for each histogram by name, how many trains had at least this many packets but fewer than the next length.
pub(super) fn totals<'a>(
    scenario: &Scenario<'a>,
    row: &Row,
) -> BTreeMap<&'a str, BTreeMap<u32, u64>> {
    let mut totals: BTreeMap<&str, BTreeMap<u32, u64>> = BTreeMap::new();
    for (_, measurement) in scenario.measured(row) {
        for (name, counts) in &measurement.histograms {
            let total = totals.entry(name).or_default();
            for (length, count) in counts {
                *total.entry(*length).or_default() += count;
            }
        }
    }
    totals
}

/// Returns a line for each row and each of its histograms.
pub(super) fn table(scenario: &Scenario<'_>) -> Option<Table> {
    let mut lines = Vec::new();
    let mut lengths: Vec<u32> = Vec::new();
    for row in &scenario.rows {
        let totals = totals(scenario, row);
        lengths.extend(totals.values().flat_map(|counts| counts.keys()));
        lines.extend(totals.into_iter().map(|(name, counts)| (row, name, counts)));
    }
    lengths.sort_unstable();
    lengths.dedup();
    let rows = lines.into_iter().map(|(row, name, counts)| {
        let count = |length| number(counts.get(length).copied().unwrap_or(0) as f64, 0);
        let mut cells = scenario.stubs(row);
        cells.push(Text::from(name));
        cells.extend(lengths.iter().map(|length| Text::from(count(length))));
        cells
    });
    let rows: Vec<Vec<Text>> = rows.collect();
    let packets = lengths.iter().map(|length| format!("{length} and more"));
    let columns = ["packets in a train".to_owned()].into_iter().chain(packets).collect();
    scenario.table("Trains of packets", columns, rows)
}
