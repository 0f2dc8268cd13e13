//! Tests that killed processes recover, and that no packet is delivered twice.

use std::time::Duration;

use super::super::{Scenario, ScenarioFn};
use super::testbed::{LIMIT, Plan, PostgresTestbed, until};
use crate::failure::{Result, ensure};
use crate::postgres::StopMode;
use crate::traffic::{Delivery, Stream};

pub(super) const SCENARIOS: &[(&str, ScenarioFn)] = &[
    ("kill-node", kill_node),
    ("kill-database-strict", kill_database_strict),
    ("kill-database-relaxed", kill_database_relaxed),
    ("kill-database-volatile", kill_database_volatile),
    ("kill-backend", kill_backend),
];

/// Numbered datagrams in both directions, up from the first node to the second, and down.
pub(super) struct Both {
    up: Stream,
    down: Stream,
}

impl Both {
    pub(super) fn start(bed: &PostgresTestbed) -> Result<Self> {
        let (one, two) = (bed.node(0)?, bed.node(1)?);
        Ok(Self {
            up: Stream::start(&one.space, &two.space, two.v4()?, 1400)?,
            down: Stream::start(&two.space, &one.space, one.v6()?, 7000)?,
        })
    }

    /// Ends both directions, and checks that no datagram was repeated or changed, and that at most `most_lost` of a
    /// direction did not arrive.
    pub(super) fn finish(self, bed: &PostgresTestbed, most_lost: u32) -> Result<[Delivery; 2]> {
        let both = [self.up.finish()?, self.down.finish()?];
        for delivery in &both {
            let Delivery { sent, received, duplicated, corrupted } = *delivery;
            ensure(duplicated == 0 && corrupted == 0 && received > 0, || {
                bed.failure_with_logs(&format!(
                    "{duplicated} repeated, {corrupted} changed of {received} datagrams"
                ))
            })?;
            ensure(sent - received <= most_lost, || {
                bed.failure_with_logs(&format!("{} of {sent} datagrams were lost", sent - received))
            })?;
        }
        Ok(both)
    }
}

/// Waits until new datagrams arrive at both nodes.
pub(super) fn flows(bed: &PostgresTestbed) -> Result<()> {
    let counts = || -> Result<[u64; 2]> {
        let counted = |at: usize, other: &str| bed.node(at)?.count(other, "/received/packets");
        Ok([counted(0, "n2")?, counted(1, "n1")?])
    };
    let before = counts()?;
    bed.blame(until("datagrams arrive at both ends", LIMIT, || {
        let now = counts()?;
        Ok(now.iter().zip(before).all(|(now, before)| *now > before + 20))
    }))
}

pub(super) fn lost(both: [Delivery; 2]) -> String {
    let [up, down] = both.map(|delivery| delivery.sent - delivery.received);
    let [sent, back] = both.map(|delivery| delivery.sent);
    format!("{up} of {sent} and {down} of {back} datagrams lost, none came twice")
}

fn kill_node(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::new(scenario, 2, &Plan::default())?;
    let both = Both::start(&bed)?;
    flows(&bed)?;
    for at in [1, 0] {
        let node = bed.node_mut(at)?;
        node.kill()?;
        node.spawn()?;
        node.wait_up()?;
        // A node that has just started counts from zero.
        std::thread::sleep(Duration::from_millis(300));
        flows(&bed)?;
    }
    let both = both.finish(&bed, u32::MAX)?;
    let epochs =
        bed.number("SELECT min(m) FROM (SELECT max(no) m FROM adit.epoch GROUP BY stream) x")?;
    ensure(epochs >= 2, || format!("a stream's last epoch is {epochs}: a restart opens another"))?;
    Ok(lost(both))
}

fn kill_database(scenario: &Scenario<'_>, durability: &str) -> Result<String> {
    let init = ["--durability", durability, "--audit", "full"];
    let mut bed = PostgresTestbed::new(scenario, 2, &Plan { init: &init, ..Plan::default() })?;
    let both = Both::start(&bed)?;
    flows(&bed)?;
    for how in [StopMode::Killed, StopMode::Immediate] {
        bed.cluster.stop_service(how)?;
        // This is long enough for the contents of the queues to expire.
        std::thread::sleep(Duration::from_millis(700));
        bed.cluster.resume_service()?;
        flows(&bed)?;
    }
    let both = both.finish(&bed, u32::MAX)?;
    let [up, _] = both;
    // The number is at the beginning of a datagram, after the 28 bytes of IPv4 and UDP.
    let logged = bed.number(
        "SELECT count(DISTINCT substr(payload, 29, 4)) FROM adit.packet WHERE proto = 17 AND dport = 4000 \
         AND family(dst) = 4 AND substr(payload, 29, 4) <> '\\xffffffff'",
    )?;
    // Delivered rows had been flushed, so the crash did not lose them.
    ensure(durability != "strict" || logged >= i64::from(up.received), || {
        format!("{} datagrams were delivered, {logged} are in the tables", up.received)
    })?;
    Ok(format!("{}, {logged} of {} in the tables", lost(both), up.received))
}

fn kill_database_strict(scenario: &Scenario<'_>) -> Result<String> {
    kill_database(scenario, "strict")
}

fn kill_database_relaxed(scenario: &Scenario<'_>) -> Result<String> {
    kill_database(scenario, "relaxed")
}

fn kill_database_volatile(scenario: &Scenario<'_>) -> Result<String> {
    kill_database(scenario, "volatile")
}

fn kill_backend(scenario: &Scenario<'_>) -> Result<String> {
    let bed = PostgresTestbed::new(scenario, 2, &Plan::default())?;
    let both = Both::start(&bed)?;
    flows(&bed)?;
    let mut ended = 0;
    for _ in 0..5 {
        ended += bed.number(
            "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE usename ~ '_node_'",
        )?;
        std::thread::sleep(Duration::from_millis(400));
    }
    flows(&bed)?;
    let both = both.finish(&bed, u32::MAX)?;
    Ok(format!("{ended} backends ended, {}", lost(both)))
}
