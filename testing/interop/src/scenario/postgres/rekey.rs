//! Tests of a new network key under traffic, while a node is down, and with a database that restores the old state.

use std::fs;

use serde_json::Value;

use super::super::{Scenario, ScenarioFn};
use super::faults::{Both, flows, lost};
use super::testbed::{LIMIT, Plan, PostgresTestbed, invitation, until};
use crate::failure::{Context, Result, ensure};

pub(super) const SCENARIOS: &[(&str, ScenarioFn)] =
    &[("rekey", rekey), ("rekey-node-down", node_down), ("rekey-put-back", put_back)];

/// Waits until these nodes have the key of that generation.
fn have(bed: &PostgresTestbed, nodes: &[usize], generation: u64) -> Result<()> {
    bed.blame(until("each node has the new key", LIMIT, || {
        for at in nodes {
            let status = bed.node(*at)?.status()?;
            if status.pointer("/key_generation").and_then(Value::as_u64) != Some(generation) {
                return Ok(false);
            }
        }
        Ok(true)
    }))
}

/// Returns the number of connections that each node has made.
fn opened(bed: &PostgresTestbed) -> Result<Vec<Option<u64>>> {
    let mut opened = Vec::new();
    for node in &bed.nodes {
        let status = node.status()?;
        for side in ["/reader/opened", "/writer/opened"] {
            opened.push(status.pointer(side).and_then(Value::as_u64));
        }
    }
    Ok(opened)
}

/// Checks that the packets that a node has received yield no findings.
fn verified(bed: &PostgresTestbed, at: usize) -> Result<String> {
    bed.node(at)?.adit(&["verify"])
}

/// Datagrams continue in both directions; no connection is lost, and the log can be verified with both keys.
fn rekey(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::new(scenario, 2, &Plan::default())?;
    let both = Both::start(&bed)?;
    flows(&bed)?;
    let connections = opened(&bed)?;
    let said = bed.node(0)?.adit(&["rekey"])?;
    ensure(said.contains("generation 2, for: n1, n2."), || said.clone())?;
    have(&bed, &[0, 1], 2)?;
    for at in [0, 1] {
        bed.node_mut(at)?.running()?.wait_for("generation 2 seals sent packets", LIMIT)?;
    }
    flows(&bed)?;
    let both = both.finish(&bed, u32::MAX)?;
    let late = bed.all_accounted(0, 1)? + bed.all_accounted(1, 0)?;
    let gaps = bed.number(
        "SELECT count(*) FROM (SELECT seq - lag(seq) OVER (PARTITION BY stream ORDER BY seq) AS step FROM adit.packet) x \
         WHERE step <> 1",
    )?;
    ensure(gaps == 0, || format!("{gaps} gaps in the numbers"))?;
    for (at, other) in [(0, "n2"), (1, "n1")] {
        let refused = bed.node(at)?.count(other, "/received/drops/old-key")?;
        ensure(refused == 0, || format!("{refused} rows refused for their key"))?;
        verified(&bed, at)?;
    }
    let now = opened(&bed)?;
    // On a machine that is too busy, a query exceeds its time limit, and the node connects again; its log says so.
    let mut timeouts = 0;
    for at in [0, 1] {
        timeouts += bed.node_mut(at)?.running()?.count("the database did not answer in time");
    }
    let reconnected = now.iter().zip(&connections).filter(|(now, before)| now != before).count();
    ensure(reconnected <= timeouts, || {
        bed.failure_with_logs(&format!("{connections:?} connections, then {now:?}"))
    })?;
    // At least one epoch under each key, in each stream.
    let epochs =
        bed.number("SELECT min(c) FROM (SELECT count(*) c FROM adit.epoch GROUP BY stream) x")?;
    ensure(epochs >= 2, || format!("a stream has {epochs} epochs"))?;
    Ok(format!("{}, {late} rows late", lost(both)))
}

/// A node that was down receives the key when it starts; one that was killed before it had written the key to its file
/// receives it again; one that was removed does not return.
fn node_down(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::new(scenario, 3, &Plan::default())?;
    bed.reach(1, 2)?;
    bed.node_mut(2)?.stop()?;
    let open = invitation(&bed.node(0)?.adit(&["invite"])?)?;
    bed.node(0)?.adit(&["rekey"])?;
    bed.node(0)?.adit(&["rekey"])?;
    have(&bed, &[0, 1], 3)?;
    let said = bed.node(2)?.refused(&["join", &open, "-n", "other", "--name", "x"])?;
    ensure(said.contains("has got a new key since this invitation was made"), || said.clone())?;
    for round in 0..2 {
        bed.node_mut(2)?.spawn()?;
        bed.node_mut(2)?.wait_up()?;
        have(&bed, &[2], 3)?;
        bed.reach(2, 0)?;
        bed.reach(1, 2)?;
        bed.node_mut(2)?.kill()?;
        let file = bed.node(2)?.file("network.keys")?;
        if round == 0 {
            fs::remove_file(file)?;
        }
    }
    bed.node_mut(2)?.spawn()?;
    bed.node_mut(2)?.wait_up()?;
    bed.reach(2, 1)?;
    verified(&bed, 2)?;
    // Removed while it is running, and restored by the database.
    let said = bed.node(0)?.adit(&["remove", "n3", "--yes"])?;
    ensure(said.contains("generation 4, for: n1, n2."), || said.clone())?;
    have(&bed, &[0, 1], 4)?;
    bed.sql("UPDATE adit.node SET removed = NULL WHERE name = 'n3'; ALTER ROLE adit_admin_node_n3 LOGIN; \
             GRANT adit_admin_nodes TO adit_admin_node_n3; NOTIFY adit_nodes")?;
    // The removal is covered by its row's MAC.
    let told = bed.node_mut(0)?.running()?.wait_for("node n3 is not contacted", LIMIT)?;
    let keys = fs::read_to_string(bed.node(2)?.file("network.keys")?).context("network.keys")?;
    let count = keys.lines().filter(|line| line.starts_with("key ")).count();
    ensure(count == 3, || format!("the removed node has {count} keys"))?;
    bed.reach(0, 1)?;
    Ok(told)
}

/// The database shows the rows from before the rekey. Nodes do not return to the old key.
fn put_back(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::new(scenario, 2, &Plan::default())?;
    let save = |name: &str| {
        bed.sql(&format!(
            "CREATE TABLE public.network_{name} AS SELECT mac, generation FROM adit.network; \
             CREATE TABLE public.node_{name} AS SELECT id, mac FROM adit.node"
        ))
    };
    let show = |name: &str| {
        format!(
            "UPDATE adit.network n SET mac = o.mac, generation = o.generation FROM public.network_{name} o; \
             UPDATE adit.node n SET mac = o.mac FROM public.node_{name} o WHERE o.id = n.id; NOTIFY adit_nodes"
        )
    };
    save("old")?;
    bed.node(0)?.adit(&["rekey"])?;
    have(&bed, &[0, 1], 2)?;
    save("new")?;
    bed.sql(&show("old"))?;
    for at in [0, 1] {
        let told = bed.node_mut(at)?.running()?.wait_for("not trusted", LIMIT);
        bed.blame(told)?;
    }
    // After a restart, a node has the new key in its file.
    bed.node_mut(1)?.kill()?;
    bed.node_mut(1)?.spawn()?;
    let told = bed.node_mut(1)?.running()?.wait_for("not trusted", LIMIT)?;
    bed.sql(&show("new"))?;
    bed.reach(0, 1)?;
    bed.reach(1, 0)?;
    Ok(told)
}
