//! Tests of the database on its own, without adit. If these fail, the testbed is at fault.

use std::fs;
use std::net::SocketAddr;
use std::sync::atomic::Ordering::Relaxed;

use super::super::{Scenario, ScenarioFn};
use super::testbed::{ADMIN, DATABASE, LIMIT, PASSWORD, PostgresTestbed, until};
use crate::failure::{Result, ensure};
use crate::net::Namespace;
use crate::postgres::proxy::Proxy;
use crate::postgres::{Certificate, Options, PORT, StopMode, programs};

pub(super) const SCENARIOS: &[(&str, ScenarioFn)] = &[("the-database-itself", itself)];

fn itself(scenario: &Scenario<'_>) -> Result<String> {
    let files = scenario.folder().join("tls");
    fs::create_dir(&files)?;
    let certificate = Certificate::new(&files, &scenario.env.pki, &["IP:192.0.2.1"])?;
    let options = Options { certificate: Some(&certificate), ..Options::default() };
    let mut bed = PostgresTestbed::bare(scenario, 2, &options)?;
    let psql = programs()?.join("psql").display().to_string();
    let ask = |node: usize, port: u16, more: &str, sql: &str| {
        let url = format!("postgres://{ADMIN}:{PASSWORD}@{DATABASE}:{port}/{ADMIN}?{more}");
        bed.node(node)?.space.run(&psql, &["-XAtq", &url, "-c", sql])
    };
    // TLS with the right name and authority, and a wrong authority.
    let authority = certificate.authority.display();
    let checked = format!("sslmode=verify-full&sslrootcert={authority}");
    let sealed =
        ask(0, PORT, &checked, "SELECT ssl FROM pg_stat_ssl WHERE pid = pg_backend_pid()")?;
    ensure(sealed.trim() == "t", || format!("TLS: {sealed}"))?;
    let other = format!("sslmode=verify-full&sslrootcert={}", scenario.pki("stranger-ca.crt"));
    ensure(ask(0, PORT, &other, "SELECT 1").is_err(), || "any authority will do".to_owned())?;
    // Nodes reach only the database.
    let there = bed.node(0)?.space.run("ping", &["-c", "1", "-W", "1", "192.0.2.12"]);
    ensure(there.is_err(), || "one node reaches the other directly".to_owned())?;
    // A path on which only notifications are lost.
    let proxy = Proxy::start(
        &bed.database,
        SocketAddr::new(DATABASE, 6432),
        SocketAddr::new(DATABASE, PORT),
    )?;
    let script = "LISTEN here; NOTIFY here; SELECT 7";
    for (mute, heard) in [(false, true), (true, false)] {
        proxy.link.mute.store(mute, Relaxed);
        let url = format!("postgres://{ADMIN}:{PASSWORD}@{DATABASE}:6432/{ADMIN}?sslmode=disable");
        let said = bed.node(1)?.space.run(&psql, &["-XAt", &url, "-c", script])?;
        ensure(said.contains('7') && said.contains("Asynchronous") == heard, || {
            format!("notifications left out: {mute}; psql said: {said}")
        })?;
    }
    proxy.link.closed.store(true, Relaxed);
    ensure(ask(1, 6432, "sslmode=disable", "SELECT 1").is_err(), || {
        "a closed way is open".to_owned()
    })?;
    full(&bed)?;
    follows(scenario, &mut bed)?;
    Ok("TLS, a way, a small disk, a follower".into())
}

fn full(bed: &PostgresTestbed) -> Result<()> {
    bed.cluster.limited_tablespace("small", 16)?;
    bed.sql("CREATE TABLE fills (t text) TABLESPACE small")?;
    let fill = "INSERT INTO fills SELECT repeat(md5(n::text), 50) FROM generate_series(1, 20000) n";
    let said = bed.sql(fill).map_or_else(|failure| failure.0, |_| "it fitted".to_owned());
    ensure(said.contains("53100"), || format!("a full disk: {said}"))?;
    bed.sql("DROP TABLE fills").map(drop)
}

fn follows(scenario: &Scenario<'_>, bed: &mut PostgresTestbed) -> Result<()> {
    // A standby's tablespaces would be in the same place as the primary's.
    bed.sql("DROP TABLESPACE small")?;
    let second = Namespace::new("second")?;
    bed.attach(&second, "192.0.2.2/24")?;
    let follower = bed.cluster.standby(&scenario.folder().join("pg2"), &second)?;
    bed.sql("CREATE TABLE kept (n int); INSERT INTO kept VALUES (7)")?;
    until("the row is at the follower", LIMIT, || {
        Ok(follower.sql(ADMIN, "SELECT n FROM kept").is_ok_and(|said| said == "7"))
    })?;
    ensure(follower.sql(ADMIN, "DROP TABLE kept").is_err(), || {
        "a follower takes writes".to_owned()
    })?;
    bed.cluster.stop_service(StopMode::Killed)?;
    follower.promote()?;
    follower.sql(ADMIN, "DROP TABLE kept").map(drop)
}
