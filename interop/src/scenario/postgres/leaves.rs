//! Leaves come and go under traffic: nothing is lost at their edges, and the disk they take is bounded.

use super::super::{Scene, Stage};
use super::bed::{Bed, Plan};
use super::faults::{Both, flows};
use crate::failure::{Failure, Result, ensure};
use crate::traffic::tcp;

pub(super) const SCENES: &[(&str, Scene)] = &[("rotation", rotation), ("retention", retention)];

/// A leaf of a network with little retention.
const LEAF: i64 = 8 << 20;

fn rotation(stage: &Stage<'_>) -> Result<String> {
    let init = ["--durability", "relaxed", "--retention", "1GB"];
    let bed = Bed::new(stage, 2, &Plan { init: &init, ..Plan::default() })?;
    // Small leaves, without a retention that is as small: the settings are the network's, which nodes have checked.
    let both = Both::start(&bed)?;
    flows(&bed)?;
    let (one, two) = (bed.node(0)?, bed.node(1)?);
    tcp(&one.space, &two.space, two.v4()?, 40_000_000)
        .map_err(|failure| Failure(bed.told(&failure.0)))?;
    let both = both.finish(&bed, u32::MAX)?;
    let leaves = bed.number("SELECT max(no) FROM adit.leaf")?;
    Ok(format!("{leaves} leaves, {both:?}"))
}

fn retention(stage: &Stage<'_>) -> Result<String> {
    let init = ["--durability", "relaxed", "--retention", "32MB"];
    let bed = Bed::new(stage, 2, &Plan { init: &init, ..Plan::default() })?;
    let both = Both::start(&bed)?;
    flows(&bed)?;
    let mut most = 0;
    for _ in 0..8 {
        let (one, two) = (bed.node(0)?, bed.node(1)?);
        tcp(&one.space, &two.space, two.v4()?, 12_000_000)
            .map_err(|failure| Failure(bed.told(&failure.0)))?;
        most = most.max(bed.number("SELECT bytes FROM adit.usage()")?);
    }
    let both = both.finish(&bed, 0)?;
    let dropped = bed.number("SELECT count(*) FROM adit.leaf WHERE dropped IS NOT NULL")?;
    let leaves = bed.number("SELECT count(*) FROM adit.leaf")?;
    ensure(dropped >= 3, || bed.told(&format!("{dropped} of {leaves} leaves were dropped")))?;
    // What is kept, the two leaves that are written to, and what came between two looks.
    ensure(most <= (32 << 20) + 4 * LEAF, || format!("the leaves took {most} bytes"))?;
    let keys = bed.number(
        "SELECT count(*) FROM adit.wrap w JOIN adit.epoch e ON e.stream = w.stream AND e.no = w.epoch \
         JOIN adit.leaf l ON l.stream = e.stream AND l.no = e.leaf WHERE l.dropped IS NOT NULL",
    )?;
    ensure(keys == 0, || format!("{keys} keys of dropped leaves are still there"))?;
    let tables = bed.number(
        "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname ~ '^packet_[0-9]+_[0-9]+$'",
    )?;
    ensure(tables == leaves - dropped, || {
        format!("{tables} tables for {} leaves", leaves - dropped)
    })?;
    let received: u32 = both.iter().map(|delivery| delivery.received).sum();
    Ok(format!(
        "{dropped} of {leaves} leaves dropped, {} MiB at most, {received} datagrams and none lost",
        most >> 20
    ))
}
