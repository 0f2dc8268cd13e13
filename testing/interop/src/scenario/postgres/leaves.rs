//! Tests of leaves that are created and dropped under traffic: nothing is lost at their edges, and their disk space is bounded.

use super::super::{Scenario, ScenarioFn};
use super::faults::{Both, flows};
use super::testbed::{LIMIT, Plan, PostgresTestbed, until};
use crate::failure::{Context, Failure, Result, ensure};
use crate::traffic::tcp;

pub(super) const SCENARIOS: &[(&str, ScenarioFn)] =
    &[("rotation", rotation), ("retention", retention)];

/// A leaf of a network with little retention.
const LEAF: i64 = 8 << 20;

fn rotation(scenario: &Scenario<'_>) -> Result<String> {
    // Leaves of 32 MiB; on a busy machine the other traffic takes several times the transfer itself, and none may be dropped.
    let init = ["--durability", "relaxed", "--retention", "512MiB"];
    let bed = PostgresTestbed::new(scenario, 2, &Plan { init: &init, ..Plan::default() })?;
    let both = Both::start(&bed)?;
    flows(&bed)?;
    let (one, two) = (bed.node(0)?, bed.node(1)?);
    tcp(&one.space, &two.space, two.v4()?, 96_000_000)
        .map_err(|failure| Failure(bed.failure_with_logs(&failure.0)))?;
    both.finish(&bed, u32::MAX)?;
    let leaves =
        bed.number("SELECT max(c) FROM (SELECT count(*) c FROM adit.leaf GROUP BY sender) x")?;
    ensure(leaves >= 3, || bed.failure_with_logs(&format!("{leaves} leaves")))?;
    let late = bed.all_accounted(0, 1)? + bed.all_accounted(1, 0)?;
    let edges = bed.number(
        "SELECT count(*) FROM (SELECT seq - lag(seq) OVER (PARTITION BY stream ORDER BY seq) AS step FROM adit.packet) x \
         WHERE step <> 1",
    )?;
    ensure(edges == 0, || format!("{edges} gaps in the numbers"))?;
    Ok(format!("{leaves} leaves, {late} rows late"))
}

/// Rows that the retention has dropped are not a finding, even when their records are gone too, as they are a day
/// later; rows that were dropped early are one.
fn expired_is_no_finding(bed: &PostgresTestbed) -> Result<()> {
    let verify = || bed.node(1)?.command(&["verify"]).output().context("adit postgres verify");
    let right = |when: &str| {
        let done = verify()?;
        let said = String::from_utf8_lossy(&done.stdout).into_owned();
        ensure(done.status.success(), || format!("{when}: {said}"))
    };
    right("leaves are dropped")?;
    let epochs = bed.number("SELECT count(*) FROM adit.epoch")?;
    bed.sql("UPDATE adit.leaf SET dropped = dropped - interval '2 days'")?;
    bed.sql("SELECT count(*) FROM adit.expire()")?;
    let left = bed.number("SELECT count(*) FROM adit.epoch")?;
    ensure(left < epochs, || format!("{left} of {epochs} records are left"))?;
    right("their records are gone")
}

fn retention(scenario: &Scenario<'_>) -> Result<String> {
    let init = ["--durability", "relaxed", "--retention", "64MiB"];
    let bed = PostgresTestbed::new(scenario, 2, &Plan { init: &init, ..Plan::default() })?;
    let both = Both::start(&bed)?;
    flows(&bed)?;
    let mut most = 0;
    for _ in 0..10 {
        let (one, two) = (bed.node(0)?, bed.node(1)?);
        tcp(&one.space, &two.space, two.v4()?, 12_000_000)
            .map_err(|failure| Failure(bed.failure_with_logs(&failure.0)))?;
        most = most.max(bed.number("SELECT bytes FROM adit.usage()")?);
    }
    let both = both.finish(&bed, u32::MAX)?;
    // A node checks at most every ten seconds; until then the traffic determines the size. In addition to the
    // retention, only the leaves that are being written remain.
    let bound = (64 << 20) + 3 * LEAF;
    bed.blame(until("the leaves fit the retention", LIMIT, || {
        Ok(bed.number("SELECT bytes FROM adit.usage()")? <= bound)
    }))?;
    let dropped = || bed.number("SELECT count(*) FROM adit.leaf WHERE dropped IS NOT NULL");
    let leaves = || bed.number("SELECT count(*) FROM adit.leaf");
    // A node may be dropping or adding a leaf right now.
    bed.blame(until("each remaining leaf has a table", LIMIT, || {
        let tables = bed.number(
            "SELECT count(*) FROM pg_class WHERE relkind = 'r' AND relname ~ '^packet_[0-9]+_[0-9]+$'",
        )?;
        Ok(tables == leaves()? - dropped()?)
    }))?;
    let (dropped, leaves) = (dropped()?, leaves()?);
    ensure(dropped >= 3, || {
        bed.failure_with_logs(&format!("{dropped} of {leaves} leaves were dropped"))
    })?;
    let keys = bed.number(
        "SELECT count(*) FROM adit.wrap w JOIN adit.epoch e ON e.stream = w.stream AND e.no = w.epoch \
         JOIN adit.leaf l ON l.sender = e.stream / 65536 AND l.no = e.leaf WHERE l.dropped IS NOT NULL",
    )?;
    ensure(keys == 0, || format!("{keys} keys of dropped leaves are still there"))?;
    expired_is_no_finding(&bed)?;
    let received: u32 = both.iter().map(|delivery| delivery.received).sum();
    Ok(format!(
        "{dropped} of {leaves} leaves dropped, {} MiB at most, {received} datagrams meanwhile",
        most >> 20
    ))
}
