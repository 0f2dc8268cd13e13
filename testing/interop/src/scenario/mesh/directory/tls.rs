//! A directory that accepts connections over TLS only.

use std::fs;

use super::super::super::Scenario;
use super::{COUNT, DirectoryTestbed, PASSWORD};
use crate::failure::{Result, ensure};
use crate::file;
use crate::postgres::{Certificate, Certificates, Options};

/// The connections of nodes, with TLS and without.
const CONNECTIONS: &str = "SELECT count(*) FILTER (WHERE ssl), count(*) FILTER (WHERE NOT ssl) \
    FROM pg_stat_activity JOIN pg_stat_ssl USING (pid) WHERE usename ~ '^adit_mesh_'";

/// Ends the connections of nodes.
const END_CONNECTIONS: &str =
    "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename ~ '^adit_mesh_'";

/// Commands and nodes connect only to the server whose certificate has its name and is signed by the right authority.
pub(in super::super) fn tls(scenario: &Scenario<'_>) -> Result<String> {
    let Certificates { right, other, stranger } =
        Certificates::new(scenario.folder(), &scenario.env.pki, [11, 0, 0, 99].into())?;
    // A node without root's rights gets this file from its helper.
    let authority = scenario.folder().join("authority.crt");
    fs::copy(&right.authority, &authority)?;
    file::set_mode(&authority, 0o600)?;
    let options = Options { certificate: Some(&right), only_tls: true, ..Options::default() };
    let parameters = format!("sslmode=verify-full&sslrootcert={}", authority.display());
    let mut all = DirectoryTestbed::with(scenario, options, &parameters)?;
    let wrong = [(&other, "is not for 11.0.0.99"), (&stranger, "an authority that is not known")];
    let url = all.url();
    for (certificate, reason) in wrong {
        present(&all, certificate)?;
        let refusal = all.machine(0).refused(&["directory", "postgres", &url, "--init"])?;
        ensure(refusal.contains(reason), || format!("refused by: {refusal}"))?;
        // The text begins with the command.
        ensure(!refusal.replace(&url, "URL").contains(PASSWORD), || {
            "the password is in the refusal".into()
        })?;
    }
    present(&all, &right)?;
    let plain = all.url_with("sslmode=disable");
    let refusal = all.machine(0).refused(&["directory", "postgres", &plain, "--init"])?;
    ensure(refusal.contains("pg_hba.conf"), || format!("refused by: {refusal}"))?;
    all.init(0)?;
    let (_, own) = all.make_role(1)?;
    all.use_role(1, &own)?;
    (0..2).try_for_each(|at| all.cut_off(at))?;
    all.set_group("web")?;
    all.wait_for_group(1, "web")?;
    let connections = all.sql(CONNECTIONS)?;
    ensure(connections == "2|0", || format!("connections with and without TLS: {connections}"))?;
    // A running node does not send its password to another server either.
    for (certificate, reason) in wrong {
        present(&all, certificate)?;
        all.sql(END_CONNECTIONS)?;
        (0..2).try_for_each(|at| all.bed.wait_for_line(at, reason))?;
    }
    let before = all.sql(COUNT)?;
    all.set_group("db")?;
    let connections = all.sql(CONNECTIONS)?;
    ensure(connections == "0|0" && all.sql(COUNT)? == before && !all.knows(1, "db")?, || {
        format!("{connections} connections to a wrong server")
    })?;
    present(&all, &right)?;
    all.wait_for_group(1, "db")?;
    (0..2).try_for_each(|at| all.wait_until_complete(at))?;
    Ok("each connection was encrypted, and went to the right server".into())
}

/// Makes the database present a certificate to new connections.
fn present(all: &DirectoryTestbed, certificate: &Certificate) -> Result<()> {
    all.cluster.install(certificate)?;
    all.cluster.reload()
}
