//! Tests of access to a network: authentication, invitations, and secrets that must not be visible.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::super::{Scenario, ScenarioFn};
use super::testbed::{
    ADMIN, DATABASE, LIMIT, Node, PASSWORD, Plan, PostgresTestbed, invitation, until,
};
use crate::failure::{Context, Result, ensure};
use crate::postgres::{Certificates, Options, PORT};

pub(super) const SCENARIOS: &[(&str, ScenarioFn)] =
    &[("tls", tls), ("join", join), ("secrets", secrets), ("up-twice", up_twice)];

/// Certificates are checked against an authority and a name, by every command.
fn tls(scenario: &Scenario<'_>) -> Result<String> {
    let Certificates { right, other, stranger } =
        Certificates::new(scenario.folder(), &scenario.env.pki, DATABASE)?;
    let options = Options { certificate: Some(&right), only_tls: true, ..Options::default() };
    let mut bed = PostgresTestbed::bare(scenario, 2, &options)?;
    let parameters = format!("sslmode=verify-full&sslrootcert={}", right.authority.display());
    let plan = Plan { parameters: &parameters, ..Plan::default() };
    let url = bed.url(&plan);
    let init = ["init", &url, "--network", "10.9.0.0/24", "--name", "n1"];
    for (wrong, words) in
        [(&other, ["name", "192.0.2.1"].as_slice()), (&stranger, ["certificate"].as_slice())]
    {
        bed.cluster.install(wrong)?;
        bed.cluster.reload()?;
        let said = bed.node(0)?.refused(&init)?;
        ensure(words.iter().any(|word| said.contains(word)), || format!("refused by: {said}"))?;
        ensure(!said.contains(PASSWORD), || "the password is in the refusal".to_owned())?;
    }
    // Without encryption the server refuses and reports it.
    let plain = bed.url(&Plan { parameters: "sslmode=disable", ..Plan::default() });
    let said =
        bed.node(0)?.refused(&["init", &plain, "--network", "10.9.0.0/24", "--name", "n1"])?;
    ensure(said.contains("pg_hba") || said.contains("encrypt"), || format!("refused by: {said}"))?;
    bed.cluster.install(&right)?;
    bed.cluster.reload()?;
    bed.found(&plan)?;
    bed.up()?;
    let open = bed.number(
        "SELECT count(*) FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE usename ~ 'node' AND NOT ssl",
    )?;
    let sealed = bed.number("SELECT count(*) FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE ssl AND usename ~ 'node'")?;
    ensure(open == 0 && sealed >= 4, || format!("{sealed} connections with TLS, {open} without"))?;
    // A running node, too, does not reconnect to another server.
    bed.cluster.install(&other)?;
    bed.cluster.reload()?;
    bed.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename ~ 'node'")?;
    let node = bed.node_mut(1)?;
    node.running()?.wait_for_any(&["certificate", "not valid for"], LIMIT)?;
    bed.cluster.install(&right)?;
    bed.cluster.reload()?;
    bed.reach(0, 1)?;
    Ok(format!("{sealed} connections, all of them checked"))
}

/// A token admits one machine, once.
fn join(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::bare(scenario, 3, &Options::default())?;
    let whole = bed.url(&Plan::default());
    let said = bed.node(1)?.refused(&["up"])?;
    ensure(said.contains("adit postgres"), || format!("no remedy in: {said}"))?;
    let init = ["init", &whole, "--network", "10.9.0.0/24", "--name", "n1", "--offline"];
    bed.sql("CREATE SCHEMA adit")?;
    let said = bed.node(0)?.refused(&init)?;
    ensure(said.contains("is not a network's"), || format!("another schema: {said}"))?;
    bed.sql("DROP SCHEMA adit")?;
    let told = bed.node(0)?.adit(&init)?;
    let url = invitation(&told)?;
    let again = bed.node(0)?.adit(&["init", &whole, "--network", "10.9.0.0/24", "--name", "n1"])?;
    ensure(again.contains("already"), || format!("init again: {again}"))?;
    let again =
        bed.node(2)?.refused(&["init", &whole, "--network", "10.9.0.0/24", "--name", "x"])?;
    ensure(again.contains("already") || again.contains("join"), || {
        format!("init elsewhere: {again}")
    })?;
    // A mistyped letter is detected before the database is contacted.
    let mut broken = url.clone();
    let last = broken.pop().unwrap_or_default();
    broken.push(if last == 'a' { 'b' } else { 'a' });
    let said = bed.node(1)?.refused(&["join", &broken, "--name", "n2"])?;
    ensure(said.contains("token"), || format!("a broken token: {said}"))?;
    bed.node(1)?.adit(&["join", &url, "--name", "n2"])?;
    let said = bed.node(2)?.refused(&["join", &url, "--name", "n3"])?;
    ensure(["used", "invit", "joined"].iter().any(|word| said.contains(word)), || {
        format!("a token that is used up: {said}")
    })?;
    // From now on a node is running, and the database does not contain a key of the network.
    bed.node_mut(0)?.spawn()?;
    bed.node_mut(0)?.wait_up()?;
    let fresh = invitation(&bed.node(0)?.adit(&["invite"])?)?;
    let keys = "SELECT count(*) FROM adit.invitation WHERE offline IS NOT NULL OR enc IS NOT NULL";
    ensure(bed.number(keys)? == 0, || "an invitation holds the network's key".into())?;
    let said = bed.node(2)?.refused(&["join", &fresh, "--name", "n2"])?;
    ensure(said.contains("n2"), || format!("a name that is taken: {said}"))?;
    let said = bed.node(2)?.refused(&["join", &fresh, "--name", "Not A Name"])?;
    ensure(said.contains("name"), || format!("a name that cannot be: {said}"))?;
    bed.node(2)?.adit(&["join", &fresh, "--name", "n3"])?;
    let nodes = bed.number("SELECT count(*) FROM adit.node WHERE mac IS NOT NULL")?;
    ensure(nodes == 3, || format!("{nodes} nodes are registered"))?;
    let left = bed.number(
        "SELECT count(*) FROM adit.invitation WHERE node IS NOT NULL AND num_nonnulls(key, offline, asked, proof, enc, sealed) > 0",
    )?;
    ensure(left == 0, || format!("{left} used invitations still hold keys"))?;
    bed.node_mut(2)?.spawn()?;
    bed.node_mut(2)?.wait_up()?;
    bed.reach(0, 2)?;
    Ok("once each".into())
}

fn secrets(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::bare(scenario, 2, &Options::default())?;
    // From here on the administrator's own password has been set by a statement.
    let settings =
        [("log_statement", "all"), ("log_min_duration_statement", "0"), ("log_connections", "on")];
    bed.cluster.configure(&settings)?;
    let before = bed.cluster.log()?.len();
    bed.cluster.reload()?;
    bed.found(&Plan::default())?;
    let invited = bed.node(0)?.adit(&["invite"])?;
    let token = invitation(&invited)?;
    let token = token.rsplit('#').next().unwrap_or_default().to_owned();
    bed.up()?;
    bed.node(0)?.adit(&["rekey"])?;
    let has_keys = |node: &Node| node.file("network.keys").is_ok();
    until("each node has the new key in a file", LIMIT, || Ok(bed.nodes.iter().all(has_keys)))?;
    let mut hidden = vec![PASSWORD.to_owned(), token];
    for node in &bed.nodes {
        let text = fs::read_to_string(node.file("node.key")?)?;
        hidden.extend(
            text.lines().filter_map(|line| line.split_once(" = ")).map(|(_, v)| v.to_owned()),
        );
        let text = fs::read_to_string(node.file("network.keys")?)?;
        let keys = text.lines().filter_map(|line| line.strip_prefix("key "));
        hidden.extend(keys.map(str::to_owned));
    }
    hidden.retain(|secret| secret.len() >= 8);
    ensure(hidden.len() >= 10, || format!("only {} secrets were found to look for", hidden.len()))?;
    let log = bed.cluster.log()?;
    ensure(log.len() > before + 1000, || format!("the server logs nothing: {log}"))?;
    let mut places = vec![("the server's log".to_owned(), log)];
    for node in &mut bed.nodes {
        let daemon = node.running()?;
        let pid = daemon.pid();
        places.push((format!("{}'s log", daemon.pid()), daemon.log()));
        for file in ["cmdline", "environ"] {
            let bytes = fs::read(format!("/proc/{pid}/{file}"))?;
            places.push((format!("{file} of up"), String::from_utf8_lossy(&bytes).into_owned()));
        }
    }
    places.push(("what the tables hold".to_owned(), bed.sql("SELECT * FROM adit.network; SELECT * FROM adit.settings; SELECT * FROM adit.node; SELECT * FROM adit.invitation; SELECT * FROM adit.epoch; SELECT * FROM adit.wrap; SELECT * FROM adit.rekey; SELECT * FROM adit.rekey_wrap")?));
    for (place, text) in &places {
        if let Some(found) = hidden.iter().find(|secret| text.contains(secret.as_str())) {
            return Err(format!(
                "{place}: {}... is to be seen",
                found.get(..3).unwrap_or_default()
            )
            .into());
        }
    }
    let mut files = 0;
    for node in &bed.nodes {
        files += check_files(&node.dir, &hidden)?;
    }
    masked(&bed)?;
    Ok(format!("{} secrets, {} places, {files} files", hidden.len(), places.len()))
}

/// Checks that files with a secret are accessible only to their owner.
fn check_files(folder: &Path, hidden: &[String]) -> Result<usize> {
    let mut seen = 0;
    for entry in fs::read_dir(folder)?.flatten() {
        let (path, meta) = (entry.path(), entry.metadata()?);
        if meta.is_dir() {
            seen += check_files(&path, hidden)?;
        } else if meta.is_file() {
            let text = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
            let secret = hidden.iter().any(|secret| text.contains(secret.as_str()));
            let mode = meta.permissions().mode() & 0o777;
            ensure(!secret || mode == 0o600, || format!("{} has mode {mode:o}", path.display()))?;
            seen += 1;
        }
    }
    Ok(seen)
}

/// Checks that a URL with a password on the command line is not visible while the command runs. The database is
/// stopped, so that it runs for a while.
fn masked(bed: &PostgresTestbed) -> Result<()> {
    bed.cluster.pause()?;
    let url = format!("postgres://{ADMIN}:{PASSWORD}@{DATABASE}:{PORT}/other?sslmode=disable");
    let command = bed.node(0)?.command(&["init", &url, "--network", "10.8.0.0/24", "-n", "other"]);
    let daemon = crate::process::Daemon::spawn("init", command)?;
    let path = format!("/proc/{}/cmdline", daemon.pid());
    let outcome = until("the password is masked", std::time::Duration::from_secs(5), || {
        let shown = String::from_utf8_lossy(&fs::read(&path)?).into_owned();
        // Until the program itself runs, its parent shows these arguments.
        Ok(shown.contains("postgres") && !shown.starts_with("ip\0") && !shown.contains(PASSWORD))
    });
    let still = fs::read(&path).is_ok_and(|bytes| !bytes.is_empty());
    bed.cluster.resume()?;
    outcome?;
    ensure(still, || daemon.failure("ended before it was looked at").0)
}

fn up_twice(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::bare(scenario, 3, &Options::default())?;
    let mut spare = bed.nodes.pop().context("three machines were asked for")?;
    bed.found(&Plan::default())?;
    bed.up()?;
    let said = bed.node(1)?.refused(&["up"])?;
    ensure(said.contains("already") || said.contains("runs"), || format!("up twice: {said}"))?;
    bed.reach(0, 1)?;
    // A copy of the node's files on another machine. Each stream may have only one writer.
    spare.dir = scenario.folder().join("copy");
    let (from, to) = (bed.node(1)?.dir.display().to_string(), spare.dir.display().to_string());
    crate::process::run("cp", &["-a", &from, &to])?;
    spare.spawn()?;
    spare.wait_up()?;
    // A stream belongs to its writer from the first packet on.
    let mut pings = spare.space.command("ping");
    pings.args(["-c", "3", "-i", "0.3", "-W", "1", &bed.node(0)?.v4()?.to_string()]);
    let _ = pings.output()?;
    let told = spare.running()?.wait_for_any(&["another process is this node"], LIMIT)?;
    bed.reach(0, 1)?;
    drop(spare);
    Ok(told.chars().take(60).collect())
}
