//! Tests of a database that is down, stuck, slow, full or replaced: queues stay bounded, and traffic resumes when it is back.

use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use serde_json::Value;

use super::super::{Scenario, ScenarioFn};
use super::faults::{Both, flows, lost};
use super::testbed::{ADMIN, DATABASE, LIMIT, Node, Plan, PostgresTestbed, until};
use crate::failure::{Context, Result, ensure};
use crate::net::Namespace;
use crate::postgres::proxy::Proxy;
use crate::postgres::{Cluster, Options, PORT, StopMode};
use crate::traffic::echo_all;
use crate::wait::ScaledInstant;

pub(super) const SCENARIOS: &[(&str, ScenarioFn)] = &[
    ("stopped", stopped),
    ("frozen", frozen),
    ("disk-full", disk_full),
    ("lost-notifications", lost_notifications),
    ("slow-database", slow_database),
    ("connection-cut", connection_cut),
    ("failover", failover),
];

pub(super) const LONG: &[(&str, ScenarioFn)] = &[("ten-minutes-away", ten_minutes_away)];

/// The maximum number of bytes in a node's queue.
const QUEUE: u64 = 64 << 20;
/// The port of the proxy.
const WAY: u16 = 6432;

fn number(node: &Node, pointer: &str) -> Result<u64> {
    Ok(node.status()?.pointer(pointer).and_then(Value::as_u64).unwrap_or(0))
}

fn stopped(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::new(scenario, 2, &Plan::default())?;
    let both = Both::start(&bed)?;
    flows(&bed)?;
    bed.cluster.stop_service(StopMode::Fast)?;
    // This is longer than the lifetime of packets.
    std::thread::sleep(Duration::from_secs(4));
    for node in &bed.nodes {
        let status = node.status()?;
        let trouble = status.pointer("/writer/trouble").and_then(Value::as_str);
        ensure(trouble.is_some(), || format!("status says nothing of the database: {status}"))?;
        let waits = number(node, "/queue_bytes")?;
        ensure(waits < QUEUE, || format!("{waits} bytes wait"))?;
    }
    bed.cluster.resume_service()?;
    flows(&bed)?;
    Ok(lost(both.finish(&bed, u32::MAX)?))
}

/// A database hangs without closing its connections. Rows that it accepts afterwards are too old to be delivered.
fn frozen(scenario: &Scenario<'_>) -> Result<String> {
    let bed = PostgresTestbed::new(scenario, 2, &Plan::default())?;
    let both = Both::start(&bed)?;
    flows(&bed)?;
    bed.cluster.pause()?;
    std::thread::sleep(Duration::from_secs(5));
    bed.cluster.resume()?;
    flows(&bed)?;
    let both = both.finish(&bed, u32::MAX)?;
    Ok(lost(both))
}

/// Ten minutes without a database under traffic. Memory stays bounded, and traffic resumes within seconds.
fn ten_minutes_away(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::new(scenario, 2, &Plan::default())?;
    let both = Both::start(&bed)?;
    flows(&bed)?;
    std::thread::sleep(Duration::from_secs(2));
    bed.cluster.stop_service(StopMode::Fast)?;
    std::thread::sleep(Duration::from_secs(20));
    let memory = |bed: &mut PostgresTestbed| -> Result<Vec<u64>> {
        bed.nodes.iter_mut().map(|node| node.running()?.rss_kib()).collect()
    };
    let early = memory(&mut bed)?;
    for minute in 1..=10 {
        std::thread::sleep(Duration::from_secs(58));
        let now = memory(&mut bed)?;
        let grown = now.iter().zip(&early).any(|(now, early)| *now > early + 16 * 1024);
        ensure(!grown, || format!("minute {minute}: {now:?} KiB after {early:?} KiB"))?;
    }
    let late = memory(&mut bed)?;
    let cpu: Vec<f64> =
        bed.nodes.iter_mut().map(|node| node.running()?.cpu_seconds()).collect::<Result<_>>()?;
    bed.cluster.resume_service()?;
    let begun = ScaledInstant::now();
    flows(&bed)?;
    let took = begun.elapsed();
    ensure(took < Duration::from_secs(8), || format!("traffic took {took:?} to come back"))?;
    let both = both.finish(&bed, u32::MAX)?;
    Ok(format!(
        "back after {took:.1?}; {early:?} and {late:?} KiB, CPU {cpu:.1?} s; {}",
        lost(both)
    ))
}

/// Leaves on a small disk that another program fills up.
fn disk_full(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::bare(scenario, 2, &Options::default())?;
    let space = bed.cluster.limited_tablespace("small", 64)?;
    bed.sql(&format!("GRANT CREATE ON TABLESPACE small TO {ADMIN} WITH GRANT OPTION"))?;
    bed.found(&Plan { init: &["--tablespace", "small"], ..Plan::default() })?;
    bed.up()?;
    let both = Both::start(&bed)?;
    flows(&bed)?;
    let ballast = space.join("ballast");
    // Write until nothing more fits, to the last block.
    let mut written = 0_u64;
    let mut file = fs::File::create(&ballast)?;
    let chunk = vec![0; 64 << 10];
    until("both writers say that the disk is full", LIMIT, || {
        while std::io::Write::write(&mut file, &chunk).is_ok_and(|n| n > 0) {
            written += chunk.len() as u64;
        }
        let mut troubled = 0;
        for node in &bed.nodes {
            let status = node.status()?;
            let said =
                status.pointer("/writer/trouble").and_then(Value::as_str).unwrap_or_default();
            troubled += usize::from(said.contains("space") || said.contains("full"));
        }
        Ok(troubled == 2)
    })?;
    for node in &bed.nodes {
        let waits = number(node, "/queue_bytes")?;
        ensure(waits < QUEUE, || format!("{waits} bytes wait"))?;
    }
    drop(file);
    fs::remove_file(&ballast)?;
    flows(&bed)?;
    let both = both.finish(&bed, u32::MAX)?;
    Ok(format!("{} MiB of ballast, {}", written >> 20, lost(both)))
}

/// Starts a proxy, which the nodes use as their database.
fn on_the_way(
    scenario: &Scenario<'_>,
    settings: &[(&str, &str)],
) -> Result<(PostgresTestbed, Proxy)> {
    let mut bed = PostgresTestbed::bare(scenario, 2, &Options { settings, ..Options::default() })?;
    let at = SocketAddr::new(DATABASE, WAY);
    let proxy = Proxy::start(&bed.database, at, SocketAddr::new(DATABASE, PORT))?;
    let hosts = format!("{DATABASE}:{WAY}");
    bed.found(&Plan { hosts: Some(&hosts), parameters: "sslmode=disable", ..Plan::default() })?;
    bed.up()?;
    Ok((bed, proxy))
}

/// Without notifications packets arrive later, but all arrive except those that a busy machine makes too old.
fn lost_notifications(scenario: &Scenario<'_>) -> Result<String> {
    let (bed, proxy) = on_the_way(scenario, &[])?;
    proxy.link.mute.store(true, Relaxed);
    let both = Both::start(&bed)?;
    flows(&bed)?;
    std::thread::sleep(Duration::from_secs(1));
    // A second's datagrams in one page exceed a socket's buffer, so the nodes' counters show how many arrived.
    let both = both.finish(&bed, u32::MAX)?;
    let late = bed.all_accounted(0, 1)? + bed.all_accounted(1, 0)?;
    let muted = proxy.link.muted.load(Relaxed);
    ensure(muted > 0, || "no notification was left out".to_owned())?;
    let (one, two) = (bed.node(0)?, bed.node(1)?);
    let median = || {
        let echoes = echo_all(&[&one.space], two.v4()?, 20, Duration::from_millis(20))?;
        echoes.median().context("no answer at all")
    };
    let slow = median()?;
    proxy.link.mute.store(false, Relaxed);
    let fast = median()?;
    Ok(format!(
        "{muted} left out, {late} rows late, {}; pings {slow:.0} ms without, {fast:.1} ms with them",
        lost(both)
    ))
}

/// Every response of the database is delayed; batches grow instead of a queue.
fn slow_database(scenario: &Scenario<'_>) -> Result<String> {
    let (bed, proxy) = on_the_way(scenario, &[])?;
    proxy.link.delay_ms.store(40, Relaxed);
    let both = Both::start(&bed)?;
    flows(&bed)?;
    std::thread::sleep(Duration::from_secs(2));
    for node in &bed.nodes {
        let waits = number(node, "/queue_bytes")?;
        ensure(waits < QUEUE, || format!("{waits} bytes wait"))?;
    }
    let both = both.finish(&bed, u32::MAX)?;
    let late = bed.all_accounted(0, 1)? + bed.all_accounted(1, 0)?;
    let sent: u64 = both.iter().map(|delivery| u64::from(delivery.sent)).sum();
    // With a queue instead of batches, most of them would be late.
    ensure(late * 4 < sent, || bed.failure_with_logs(&format!("{late} of {sent} rows were late")))?;
    Ok(lost(both))
}

fn connection_cut(scenario: &Scenario<'_>) -> Result<String> {
    let (bed, proxy) = on_the_way(scenario, &[])?;
    let both = Both::start(&bed)?;
    flows(&bed)?;
    for _ in 0..4 {
        proxy.link.closed.store(true, Relaxed);
        proxy.link.cut();
        std::thread::sleep(Duration::from_millis(300));
        proxy.link.closed.store(false, Relaxed);
        flows(&bed)?;
    }
    Ok(lost(both.finish(&bed, u32::MAX)?))
}

/// The database dies and its standby takes over. The nodes have the addresses of both.
fn failover(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::bare(scenario, 2, &Options::default())?;
    let second = Namespace::new("second")?;
    bed.attach(&second, "192.0.2.2/24")?;
    let follower = bed.cluster.standby(&scenario.folder().join("pg2"), &second)?;
    let hosts = format!("{DATABASE}:{PORT},192.0.2.2:{PORT}");
    bed.found(&Plan { hosts: Some(&hosts), ..Plan::default() })?;
    bed.up()?;
    let both = Both::start(&bed)?;
    flows(&bed)?;
    let caught_up = |follower: &Cluster, bed: &PostgresTestbed| -> Result<bool> {
        let written = bed.sql("SELECT pg_current_wal_flush_lsn()")?;
        let there =
            follower.sql(ADMIN, &format!("SELECT pg_last_wal_replay_lsn() >= '{written}'"))?;
        Ok(there == "t")
    };
    until("the follower has caught up", LIMIT, || caught_up(&follower, &bed))?;
    bed.cluster.stop_service(StopMode::Killed)?;
    std::thread::sleep(Duration::from_millis(500));
    follower.promote()?;
    flows(&bed)?;
    let both = both.finish(&bed, u32::MAX)?;
    let there = follower
        .number(ADMIN, "SELECT count(*) FROM adit.packet WHERE ts > now() - interval '5 s'")?;
    ensure(there > 0, || "the second database has no new rows".to_owned())?;
    Ok(lost(both))
}
