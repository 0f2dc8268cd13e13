//! Tests of PgBouncer between the nodes and the database: it works in session mode, and is refused in transaction mode.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::super::{Scenario, ScenarioFn};
use super::testbed::{ADMIN, DATABASE, LIMIT, PASSWORD, Plan, PostgresTestbed};
use crate::failure::{Result, ensure};
use crate::postgres::{Options, PORT};
use crate::process::{Daemon, run};
use crate::skip::skip;

pub(super) const SCENARIOS: &[(&str, ScenarioFn)] =
    &[("pgbouncer-session", session), ("pgbouncer-transaction", transaction)];

/// The port on which it listens.
const POOL: u16 = 6432;
/// The folder into which scripts/pgbouncer.sh unpacks it.
const UNPACKED: &str = "target/roots/pgbouncer";

/// Returns the program, and the folder of its libraries if it is not installed.
fn program() -> Option<(PathBuf, Option<PathBuf>)> {
    let installed = Path::new("/usr/sbin/pgbouncer");
    if installed.exists() {
        return Some((installed.to_owned(), None));
    }
    let root = Path::new(UNPACKED).canonicalize().ok()?;
    let mut folders = fs::read_dir(root.join("usr/lib")).ok()?.flatten().map(|entry| entry.path());
    let libraries = folders.find(|path| path.to_string_lossy().ends_with("-linux-gnu"));
    let program = root.join("usr/sbin/pgbouncer");
    program.exists().then_some((program, libraries))
}

/// Starts it in the database's namespace. It requires no password, because authentication is not tested here, and nodes
/// join one by one.
fn start(scenario: &Scenario<'_>, bed: &PostgresTestbed, mode: &str) -> Result<Option<Daemon>> {
    let Some((program, libraries)) = program() else {
        skip(
            &format!("postgres/pgbouncer-{mode}"),
            "no pgbouncer: scripts/pgbouncer.sh fetches it",
        );
        return Ok(None);
    };
    let folder = scenario.folder().join("pool");
    fs::create_dir(&folder)?;
    let file = folder.join("pgbouncer.ini");
    let settings = format!(
        "[databases]\n* = host=127.0.0.1 port={PORT}\n[pgbouncer]\nlisten_addr = {DATABASE}\nlisten_port = {POOL}\n\
         auth_type = scram-sha-256\nauth_query = SELECT usename, passwd FROM pg_shadow WHERE usename = $1\nauth_user = postgres\n\
         auth_file = {0}/users\npool_mode = {mode}\nunix_socket_dir =\nlogfile = {0}/log\n\
         server_reset_query = DISCARD ALL\nmax_client_conn = 100\n",
        folder.display()
    );
    fs::write(&file, settings)?;
    fs::write(folder.join("users"), "\"postgres\" \"pool\"\n")?;
    bed.sql("ALTER ROLE postgres PASSWORD 'pool'")?;
    run("chown", &["-R", "nobody", &folder.display().to_string()])?;
    let mut command: Command = bed.database.command("setpriv");
    command.args(["--reuid", "nobody", "--clear-groups", "--"]).arg(program).arg(&file);
    if let Some(libraries) = libraries {
        command.env("LD_LIBRARY_PATH", libraries);
    }
    let mut daemon = Daemon::spawn("pgbouncer", command)?;
    daemon.wait_for("listening on", LIMIT)?;
    Ok(Some(daemon))
}

fn session(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::bare(scenario, 2, &Options::default())?;
    let Some(pool) = start(scenario, &bed, "session")? else { return Ok("SKIPPED".into()) };
    let hosts = format!("{DATABASE}:{POOL}");
    bed.found(&Plan { hosts: Some(&hosts), ..Plan::default() })?;
    bed.up()?;
    let direct = bed.number(
        "SELECT count(*) FROM pg_stat_activity WHERE usename ~ '_node_' AND client_addr <> '127.0.0.1'",
    )?;
    ensure(direct == 0, || format!("{direct} connections of nodes go around the pooler"))?;
    // The session of a process that has ended is reused, and must not keep the process's lock.
    let node = bed.node_mut(1)?;
    node.kill()?;
    node.spawn()?;
    node.wait_up()?;
    bed.reach(0, 1)?;
    bed.reach(1, 0)?;
    drop(pool);
    Ok("a network through it, also after a restart of a node".into())
}

fn transaction(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = PostgresTestbed::bare(scenario, 2, &Options::default())?;
    let Some(pool) = start(scenario, &bed, "transaction")? else { return Ok("SKIPPED".into()) };
    let url = format!("postgres://{ADMIN}:{PASSWORD}@{DATABASE}:{POOL}/{ADMIN}?sslmode=disable");
    let said = bed.node(0)?.refused(&["init", &url, "--network", "10.9.0.0/24", "--name", "n1"])?;
    ensure(said.contains("pool_mode = session"), || format!("init: {said}"))?;
    ensure(bed.number("SELECT count(*) FROM pg_namespace WHERE nspname = 'adit'")? == 0, || {
        "init left a schema behind".to_owned()
    })?;
    // The nodes of a network that was created without PgBouncer are directed to it later.
    bed.found(&Plan::default())?;
    for node in &bed.nodes {
        let file = node.file("node.toml")?;
        let text = fs::read_to_string(&file)?;
        let there = format!("{DATABASE}:{PORT}");
        ensure(text.contains(&there), || format!("no {there} in {text}"))?;
        fs::write(&file, text.replace(&there, &format!("{DATABASE}:{POOL}")))?;
    }
    let node = bed.node_mut(0)?;
    node.spawn()?;
    let told = node.running()?.wait_for_any(&["pool_mode = session"], LIMIT)?;
    let epochs = bed.number("SELECT count(*) FROM adit.epoch")?;
    ensure(epochs == 0, || format!("{epochs} epochs were opened through the pooler"))?;
    drop(pool);
    Ok(told.chars().take(60).collect())
}
