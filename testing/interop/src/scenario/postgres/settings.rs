//! Tests of changes to a running network: its settings, its auditor and its members.

use std::fs;
use std::process::Command;

use super::super::{Scenario, ScenarioFn};
use super::testbed::{ADMIN, DATABASE, LIMIT, Plan, PostgresTestbed, invitation, until};
use crate::failure::{Result, ensure};
use crate::process::output;
use crate::traffic::ping;

pub(super) const SCENARIOS: &[(&str, ScenarioFn)] =
    &[("settings", settings), ("auditor-later", auditor_later), ("removed", removed)];

const AUDITOR: &str = "auditor";
const PASSWORD: &str = "Very5ecret-of-the-auditor";

/// Waits until both of two nodes use the settings of that number.
fn settled(bed: &mut PostgresTestbed, serial: u32) -> Result<()> {
    for at in 0..2 {
        let line = format!("network settings: serial {serial} in force");
        bed.node_mut(at)?.running()?.wait_for(&line, LIMIT)?;
    }
    bed.reach(0, 1)?;
    bed.reach(1, 0)
}

fn pinged(bed: &PostgresTestbed, size: usize) -> Result<()> {
    let to = bed.node(1)?.v4()?;
    ensure(ping(&bed.node(0)?.space, to, size, 7)? == 7, || {
        bed.failure_with_logs("pings were lost")
    })
}

/// Two running nodes follow the first one's signed settings, and nothing else.
fn settings(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::new(scenario, 2, &Plan::default())?;
    let open = "SELECT count(*) FROM adit.packet WHERE len IS NOT NULL";
    ensure(bed.number(open)? > 0, || "no row shows a length".into())?;
    let words = ["set", "--audit", "none", "--packet-size", "1400", "--durability", "relaxed"];
    let said = bed.node(1)?.refused(&words)?;
    ensure(said.contains("only node 1"), || said)?;
    let said = bed.node(0)?.adit(&words)?;
    ensure(said.contains("Settings 2"), || said)?;
    settled(&mut bed, 2)?;
    for node in &bed.nodes {
        until("the device has the MTU of the settings", LIMIT, || {
            Ok(node.space.run("ip", &["link"])?.contains("mtu 1400"))
        })?;
    }
    let before = bed.number(open)?;
    pinged(&bed, 56)?;
    bed.sql("CREATE TABLE public.kept AS SELECT * FROM adit.settings")?;
    let forgeries = [
        (
            "UPDATE adit.settings SET audit = 'full' WHERE serial = 2",
            "row 2 is not the one that was seen before",
        ),
        ("DELETE FROM adit.settings WHERE serial = 2", "row 2 was seen before"),
        (
            "UPDATE adit.settings SET audit = 'full' WHERE serial = 1",
            "row 1 is not the one that the next row names",
        ),
        ("DELETE FROM adit.settings", "there are none"),
        (
            "INSERT INTO adit.settings SELECT 3, made, packet_size, 'full', durability, retention_bytes, retention_age, \
             auditor_key, previous, signature FROM adit.settings WHERE serial = 2",
            "row 2 is not the one that the next row names",
        ),
    ];
    for (forgery, reason) in forgeries {
        bed.sql(&format!("{forgery}; NOTIFY adit_nodes"))?;
        for at in 0..2 {
            let told = bed.node_mut(at)?.running()?.wait_for(reason, LIMIT)?;
            ensure(told.contains("serial 2 stays in force"), || told)?;
        }
        pinged(&bed, 56)?;
        let said = bed.node(0)?.refused(&["set", "--retention", "3GB"])?;
        ensure(said.contains(reason), || format!("{forgery}: the owner says {said}"))?;
        bed.sql(
            "DELETE FROM adit.settings; INSERT INTO adit.settings SELECT * FROM public.kept; NOTIFY adit_nodes",
        )?;
    }
    let shown = bed.number(open)?;
    ensure(shown == before, || format!("{before} and then {shown} rows show a length"))?;
    // A node that starts does not accept them either.
    bed.sql("DELETE FROM adit.settings WHERE serial = 2")?;
    let node = bed.node_mut(1)?;
    node.kill()?;
    node.spawn()?;
    node.running()?.wait_for("row 2 was seen before", LIMIT)?;
    bed.sql("INSERT INTO adit.settings SELECT * FROM public.kept WHERE serial = 2")?;
    bed.reach(0, 1)?;
    for node in &bed.nodes {
        let said = node.adit(&["verify"])?;
        ensure(said.contains("nothing found"), || said)?;
    }
    Ok(format!("{} forgeries refused", forgeries.len()))
}

/// Returns tcpdump's output for everything that the auditor can open.
fn opened(bed: &PostgresTestbed, scenario: &Scenario<'_>, auditor: &[&str]) -> Result<String> {
    let file = scenario.folder().join("log.pcapng").display().to_string();
    let words = [&["export", "--since", "1h", "--pcapng", &file], auditor].concat();
    bed.node(1)?.adit(&words)?;
    let mut command = Command::new("tcpdump");
    command.args(["-n", "-v", "-r", &file]);
    output(command)
}

/// An auditor can read both directions from the time it was added until it was removed.
fn auditor_later(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed =
        PostgresTestbed::new(scenario, 2, &Plan { init: &["--audit", "none"], ..Plan::default() })?;
    pinged(&bed, 300)?;
    let key = scenario.folder().join("later.key").display().to_string();
    bed.node(0)?.adit(&["auditor", "add", &key])?;
    settled(&mut bed, 2)?;
    pinged(&bed, 200)?;
    bed.node(0)?.adit(&["auditor", "remove"])?;
    settled(&mut bed, 3)?;
    pinged(&bed, 400)?;
    let other = scenario.folder().join("other.key").display().to_string();
    bed.node(0)?.adit(&["auditor", "add", &other])?;
    settled(&mut bed, 4)?;
    pinged(&bed, 500)?;
    bed.cluster.create(AUDITOR, PASSWORD, "")?;
    let tag = bed.sql("SELECT tag FROM adit.network")?;
    bed.sql(&format!("GRANT adit_{tag}_auditors TO {AUDITOR}"))?;
    let url = format!("{}?sslmode=disable", bed.cluster.url(DATABASE, AUDITOR, PASSWORD, ADMIN));
    // Bytes of the ICMP message: the data and 8 more.
    for (key, sees) in [(&key, 208), (&other, 508)] {
        let words = ["--url", &url, "--key", key];
        let seen = opened(&bed, scenario, &words)?;
        for size in [208, 308, 408, 508] {
            let lines = |what: &str| {
                let end = format!("length {size}");
                seen.lines().filter(|line| line.contains(what) && line.ends_with(&end)).count()
            };
            let (requests, replies) = (lines("ICMP echo request"), lines("ICMP echo reply"));
            // A ping whose reply is late is sent again.
            let right = |count: usize| if size == sees { count >= 7 } else { count == 0 };
            ensure(right(requests) && right(replies), || {
                format!("{requests} requests and {replies} replies of {size} bytes: {seen}")
            })?;
        }
        let said = bed.node(1)?.adit(&[&["verify"], &words[..]].concat())?;
        ensure(!said.contains("finding"), || said)?;
    }
    Ok("two auditors, each with its own time".into())
}

/// The database cannot restore a removed node; its name and addresses are assigned again.
fn removed(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::new(scenario, 3, &Plan::default())?;
    bed.sql("CREATE TABLE public.before AS SELECT * FROM adit.node")?;
    bed.node(0)?.adit(&["remove", "n3", "--yes", "--keep-key"])?;
    bed.node_mut(2)?.stop()?;
    for at in 0..2 {
        bed.node_mut(at)?.running()?.wait_for("node n3 has left the network", LIMIT)?;
    }
    bed.sql("CREATE TABLE public.after AS SELECT * FROM adit.node")?;
    let change =
        |what: &str| format!("UPDATE adit.node SET {what} WHERE id = 3; NOTIFY adit_nodes");
    bed.sql(&change("removed = NULL"))?;
    for at in 0..2 {
        let said = "node n3 is not contacted: its MAC is wrong";
        bed.node_mut(at)?.running()?.wait_for(said, LIMIT)?;
    }
    // Try this repeatedly.
    for _ in 0..20 {
        for what in ["removed = now()", "removed = NULL"] {
            bed.sql(&change(what))?;
            std::thread::sleep(std::time::Duration::from_millis(250));
        }
    }
    let warnings = bed.node_mut(0)?.running()?.log().matches("n3 is not contacted").count();
    ensure(warnings <= 8, || format!("{warnings} warnings"))?;
    // The state before the removal is restored, including the MAC, on a node that saw the removal, before and after a
    // restart.
    bed.sql(&change("removed = NULL, mac = (SELECT mac FROM public.before b WHERE b.id = 3)"))?;
    let node = bed.node_mut(1)?;
    node.kill()?;
    node.spawn()?;
    node.running()?.wait_for("node n3 is not contacted: it was removed", LIMIT)?;
    bed.sql(&change(
        "(removed, mac) = (SELECT a.removed, a.mac FROM public.after a WHERE a.id = 3)",
    ))?;
    // The machine is reinstalled.
    let dir = bed.node(2)?.dir.clone();
    fs::remove_dir_all(&dir)?;
    fs::create_dir(&dir)?;
    let told = bed.node(0)?.adit(&["invite"])?;
    bed.node(2)?.adit(&["join", &invitation(&told)?, "--name", "n3"])?;
    ensure(bed.node(2)?.v4()?.to_string() == "10.9.0.3", || "another address".into())?;
    let node = bed.node_mut(2)?;
    node.spawn()?;
    node.wait_up()?;
    bed.reach(0, 2)?;
    bed.reach(2, 1)?;
    let said = bed.node(0)?.adit(&["verify"])?;
    let lines = ["n3#3 > n1 (stream 196609)", "n3 > n1 (stream 262145)"];
    ensure(lines.iter().all(|line| said.contains(line)) && !said.contains("finding"), || {
        said.clone()
    })?;
    let logged =
        bed.sql("SELECT DISTINCT \"from\" FROM adit.log WHERE \"to\" = 'n1' ORDER BY 1")?;
    let names: Vec<&str> = logged.split_whitespace().collect();
    ensure(names == ["n2", "n3", "n3#3"], || logged.clone())?;
    let file = scenario.folder().join("one.pcapng").display().to_string();
    bed.node(0)?.adit(&["export", "--since", "1h", "--from", "n3#3", "--pcapng", &file])?;
    Ok(format!("{warnings} warnings"))
}
