//! Tests of the auditor's view of the log, and of the detection of tampering.

use std::process::Command;
use std::time::Duration;

use super::super::{Scenario, ScenarioFn};
use super::testbed::{ADMIN, DATABASE, LIMIT, Plan, PostgresTestbed, until};
use crate::failure::{Context, Result, ensure};
use crate::net::Namespace;
use crate::postgres::PORT;
use crate::process::output;
use crate::traffic::ping;

pub(super) const SCENARIOS: &[(&str, ScenarioFn)] =
    &[("verify", verify), ("export", export), ("standby", standby)];

/// The time within which a sender signs the packets that it sent, even on a busy machine.
const SIGNED: Duration = Duration::from_secs(3);

const AUDITOR: &str = "auditor";
const PASSWORD: &str = "Very5ecret-of-the-auditor";

/// Creates a network with an auditor, sends pings of both families, and ends its nodes; returns it with the auditor's
/// arguments.
fn passed(scenario: &Scenario<'_>, audit: &str) -> Result<(PostgresTestbed, [String; 4])> {
    let key = scenario.folder().join("auditor.key").display().to_string();
    let init = ["--audit", audit, "--auditor", &key];
    let mut bed = PostgresTestbed::new(scenario, 2, &Plan { init: &init, ..Plan::default() })?;
    for to in [bed.node(1)?.v4()?, bed.node(1)?.v6()?] {
        ensure(ping(&bed.node(0)?.space, to, 56, 5)? == 5, || {
            bed.failure_with_logs("pings were lost")
        })?;
    }
    std::thread::sleep(SIGNED);
    for node in &mut bed.nodes {
        node.stop()?;
    }
    bed.cluster.create(AUDITOR, PASSWORD, "")?;
    let tag = bed.sql("SELECT tag FROM adit.network")?;
    bed.sql(&format!("GRANT adit_{tag}_auditors TO {AUDITOR}"))?;
    let url = format!("{}?sslmode=disable", bed.cluster.url(DATABASE, AUDITOR, PASSWORD, ADMIN));
    Ok((bed, ["--url".into(), url, "--key".into(), key]))
}

/// Returns the output of `verify`, and whether it had no findings.
fn verified(bed: &PostgresTestbed, words: &[String]) -> Result<(String, bool)> {
    let words: Vec<&str> = ["verify"].into_iter().chain(words.iter().map(String::as_str)).collect();
    let done = bed.node(1)?.command(&words).output().context("adit postgres verify")?;
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    ensure(matches!(done.status.code(), Some(0 | 1)), || {
        format!("{}: {said}{}", done.status, String::from_utf8_lossy(&done.stderr))
    })?;
    Ok((said, done.status.success()))
}

fn verify(scenario: &Scenario<'_>) -> Result<String> {
    let (bed, auditor) = passed(scenario, "headers")?;
    // The nodes were idle for a second before they ended.
    let (said, right) = verified(&bed, &auditor)?;
    ensure(right && said.contains("nothing found") && !said.contains("not signed"), || {
        said.clone()
    })?;
    let (said, right) = verified(&bed, &[])?;
    ensure(right && said.contains("n1 > n2") && !said.contains("n2 > n1"), || said.clone())?;

    let sender = bed.number("SELECT id FROM adit.node WHERE name = 'n1'")?;
    let leaf = format!("adit.packet_{sender}_1");
    bed.sql(&format!("CREATE TABLE saved AS TABLE {leaf}"))?;
    // Some rows are at the end of a batch and others are not, because each ping of an idle network is a separate batch.
    let row = bed.number(&format!("SELECT min(seq) + 3 FROM {leaf}"))?;
    let next = row + 1;
    let altered = |seq: i64| format!("row {seq} was altered");
    let cases = [
        (
            format!("UPDATE {leaf} SET src = '1.2.3.4' WHERE seq = {row}"),
            "column src says 1.2.3.4".to_owned(),
        ),
        (
            format!("UPDATE {leaf} SET src = '1.2.0.0/16' WHERE seq = {row}"),
            "column src says nothing".to_owned(),
        ),
        (
            format!("UPDATE {leaf} SET len = len + 1 WHERE seq = {row}"),
            "column len says".to_owned(),
        ),
        (
            format!("UPDATE {leaf} SET epoch = epoch + 1 WHERE seq = {row}"),
            "column epoch says".to_owned(),
        ),
        (
            format!(
                "UPDATE {leaf} SET payload = set_byte(payload, 30, 1 # get_byte(payload, 30)) WHERE seq = {row}"
            ),
            altered(row),
        ),
        (
            format!(
                "UPDATE {leaf} SET tag = set_byte(tag, 0, 1 # get_byte(tag, 0)) WHERE seq = {row}"
            ),
            altered(row),
        ),
        (
            format!(
                "UPDATE {leaf} SET seq = CASE seq WHEN {row} THEN {next} ELSE {row} END WHERE seq IN ({row}, {next})"
            ),
            altered(next),
        ),
        (format!("DELETE FROM {leaf} WHERE seq = {row}"), format!("row {row} is missing")),
        (
            format!("DELETE FROM {leaf} WHERE seq BETWEEN {row} AND {next}"),
            format!("rows {row} to {next} are missing"),
        ),
        (
            format!("INSERT INTO {leaf} SELECT * FROM {leaf} WHERE seq = {row}"),
            format!("row {row} exists more than once"),
        ),
        (
            format!(
                "UPDATE {leaf} SET chain = set_byte(chain, 0, 1 # get_byte(chain, 0)) WHERE seq = (SELECT min(seq) FROM {leaf} WHERE chain IS NOT NULL)"
            ),
            "the chain is broken".to_owned(),
        ),
    ];
    for (edit, expected) in &cases {
        bed.sql(edit)?;
        let (said, right) = verified(&bed, &auditor)?;
        ensure(!right && said.contains(expected), || format!("{edit}: no {expected:?} in {said}"))?;
        bed.sql(&format!("TRUNCATE {leaf}; INSERT INTO {leaf} SELECT * FROM saved"))?;
    }
    let (said, right) = verified(&bed, &auditor)?;
    ensure(right, || format!("after all was put back: {said}"))?;
    // The node's own observations are compared with the log. The end is cut off together with all its signatures, and a
    // node is removed.
    let cut = format!("SELECT min(seq) FROM {leaf} WHERE chain IS NOT NULL AND seq >= {row}");
    bed.sql(&format!("DELETE FROM {leaf} WHERE seq > ({cut}); DELETE FROM adit.checkpoint"))?;
    let (said, right) = verified(&bed, &auditor)?;
    ensure(right && said.contains("not signed"), || format!("an auditor cannot know: {said}"))?;
    let (said, right) = verified(&bed, &[])?;
    ensure(!right && said.contains("this node received row"), || said.clone())?;
    bed.sql(&format!("TRUNCATE {leaf}; INSERT INTO {leaf} SELECT * FROM saved"))?;
    let (said, right) = verified(&bed, &[])?;
    ensure(right, || format!("after all was put back: {said}"))?;
    bed.sql(
        "UPDATE adit.epoch SET signature = set_byte(signature, 0, 1 # get_byte(signature, 0))",
    )?;
    let (said, right) = verified(&bed, &auditor)?;
    ensure(!right && said.contains("has not signed"), || said.clone())?;
    Ok(format!("{} things done to the log, each named", cases.len() + 1))
}

/// Returns tcpdump's output for an export with these arguments.
fn tcpdump_output(
    bed: &PostgresTestbed,
    scenario: &Scenario<'_>,
    words: &[&str],
) -> Result<String> {
    let file = scenario.folder().join("log.pcapng").display().to_string();
    let mut all = vec!["export", "--since", "1h", "--pcapng", &file];
    all.extend(words);
    bed.node(1)?.adit(&all)?;
    let mut command = Command::new("tcpdump");
    command.args(["-n", "-v", "-r", &file]);
    output(command)
}

fn export(scenario: &Scenario<'_>) -> Result<String> {
    let (bed, auditor) = passed(scenario, "headers")?;
    let auditor: Vec<&str> = auditor.iter().map(String::as_str).collect();
    let count = |said: &str, what: &str| said.matches(what).count();
    // The node sees the packets that it received, and the auditor sees both directions. Without the key, only headers
    // are visible.
    let own = tcpdump_output(&bed, scenario, &[])?;
    let (requests, replies) = (count(&own, "ICMP echo request"), count(&own, "ICMP echo reply"));
    ensure(requests >= 5 && replies == 0, || format!("{requests} and {replies}: {own}"))?;
    let both = tcpdump_output(&bed, scenario, &auditor)?;
    let (requests, replies) = (count(&both, "ICMP echo request"), count(&both, "ICMP echo reply"));
    ensure(requests >= 5 && replies >= 5, || format!("{requests} and {replies}: {both}"))?;
    ensure(count(&both, "ICMP6, echo re") >= 10, || both.clone())?;
    let url = auditor.get(..2).context("a URL")?;
    let bare = tcpdump_output(&bed, scenario, url)?;
    ensure(count(&bare, "10.9.0.1 > 10.9.0.2") >= 5 && count(&bare, "length 84") >= 10, || {
        bare.clone()
    })?;
    let one_way = [url, &["--from", "n2"]].concat();
    let one_way = tcpdump_output(&bed, scenario, &one_way)?;
    ensure(count(&one_way, "10.9.0.1 > 10.9.0.2") == 0, || one_way.clone())?;
    // Both show lines for the same packets.
    let all = [&["tail", "-n", "1000"], &auditor[..]].concat();
    let lines = bed.node(1)?.adit(&all)?;
    ensure(count(&lines, "10.9.0.1 > 10.9.0.2 ICMP 84 bytes") >= 5, || lines.clone())?;
    // No packet is old enough, so the file has a section without an interface, which Wireshark opens and tcpdump
    // refuses.
    let file = scenario.folder().join("before.pcapng");
    let name = file.display().to_string();
    let before = ["export", "--since", "1h", "--until", "59m", "--pcapng", &name];
    bed.node(1)?.adit(&[&before, &auditor[..]].concat())?;
    let bytes = std::fs::metadata(&file).context("the empty export")?.len();
    ensure(bytes < 200, || format!("{bytes} bytes of a time without packets"))?;
    Ok(format!("{} packets", both.lines().count()))
}

/// An auditor reads a standby, which accepts no writes, while the database continues; what the standby lacks is
/// reported.
fn standby(scenario: &Scenario<'_>) -> Result<String> {
    let (bed, auditor) = passed(scenario, "headers")?;
    let second = Namespace::new("second")?;
    bed.attach(&second, "192.0.2.2/24")?;
    let follower = bed.cluster.standby(&scenario.folder().join("pg2"), &second)?;
    let rows = bed.number("SELECT count(*) FROM adit.packet")?;
    until("the standby has the rows", LIMIT, || {
        Ok(follower.number(ADMIN, "SELECT count(*) FROM adit.packet").is_ok_and(|n| n == rows))
    })?;
    let [_, url, option, key] = auditor;
    let there = url.replace("192.0.2.1", "192.0.2.2");
    let both =
        url.replace(&format!("192.0.2.1:{PORT}"), &format!("192.0.2.1:{PORT},192.0.2.2:{PORT}"));
    for url in [
        there.clone(),
        format!("{there}&target_session_attrs=standby"),
        format!("{both}&target_session_attrs=prefer-standby"),
        format!("{both}&target_session_attrs=read-only"),
    ] {
        let words = ["--url".into(), url.clone(), option.clone(), key.clone()];
        let (said, right) = verified(&bed, &words)?;
        ensure(right && said.contains(&format!("{rows} rows")), || format!("{url}: {said}"))?;
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let read = tcpdump_output(&bed, scenario, &words)?;
        ensure(read.contains("ICMP echo request"), || format!("{url}: {read}"))?;
        let lines = bed.node(1)?.adit(&[&["tail", "-n", "100"], &words[..]].concat())?;
        ensure(lines.contains("ICMP 84 bytes"), || format!("{url}: {lines}"))?;
    }
    // The primary is not a standby, and the error says so.
    let words = format!("{url}&target_session_attrs=standby");
    let said = bed.node(1)?.refused(&["verify", "--url", &words, &option, &key])?;
    ensure(said.contains("no standby"), || said.clone())?;
    Ok(format!("{rows} rows of a standby"))
}
