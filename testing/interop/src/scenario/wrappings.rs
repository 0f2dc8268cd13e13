//! Tests of one server for clients with their own keys and for clients with the shared key.

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use super::Scenario;
use crate::case::{Configs, READY, SETUP_LIMIT, inner_addrs};
use crate::failure::{Context, Result, ensure};
use crate::matrix::Wrapping;
use crate::net::{Namespace, Star};
use crate::pki::PkiTool;
use crate::process::Daemon;
use crate::traffic::{ping, tcp};
use crate::wait::until;

/// `tls-auth` and `tls-crypt-v2` at one server.
pub(super) fn own_keys_and_tls_auth(scenario: &Scenario<'_>) -> Result<String> {
    together(scenario, Wrapping::TlsAuth)
}

/// `tls-crypt` and `tls-crypt-v2` at one server.
pub(super) fn own_keys_and_tls_crypt(scenario: &Scenario<'_>) -> Result<String> {
    together(scenario, Wrapping::TlsCrypt)
}

/// A client of each kind is connected at the same time, reaches the server and the other one, and rekeys.
fn together(scenario: &Scenario<'_>, shared: Wrapping) -> Result<String> {
    let pki = &scenario.env.pki;
    let plain = Configs::new(pki, PkiTool::OpenSslEc, false);
    let with = |wrapping| {
        let mut configs = plain.clone();
        configs.wrap(pki, wrapping);
        configs
    };
    let (by_shared, by_own) = (with(shared), with(Wrapping::TlsCryptV2));
    let line = by_own.server.lines().find(|line| line.starts_with("tls-crypt-v2 "));
    let line = line.context("no tls-crypt-v2 in the config")?;
    let server = format!(
        "{}{line}\nduplicate-cn\nclient-to-client\nreneg-sec 6\nhand-window 5\n",
        by_shared.server
    );
    let path = |name: &str| scenario.folder().join(name);
    fs::write(path("server.conf"), server)?;
    fs::write(path("shared.conf"), format!("{}reneg-sec 0\n", by_shared.client))?;
    fs::write(path("own.conf"), format!("{}reneg-sec 0\n", by_own.client))?;
    let star = Star::new(2)?;
    let command = scenario.server.command(&star.server, &path("server.conf"));
    let mut server = Daemon::spawn("server", command)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let [first, second] = star.clients.as_slice() else { return Err("two were asked for".into()) };
    let start = |name: &str, host: &Namespace| {
        Daemon::spawn(name, scenario.client.command(host, &path(&format!("{name}.conf"))))
    };
    let mut clients = [start("shared", first)?, start("own", second)?];
    for client in &mut clients {
        client
            .wait_for(READY, SETUP_LIMIT)
            .map_err(|failure| format!("{failure}\n{}", server.failure("meanwhile")))?;
    }
    let carries = || -> Result<()> {
        let addresses = [inner_addrs(first)?.v4, inner_addrs(second)?.v4];
        let inside: IpAddr = "10.88.0.1".parse().context("an address")?;
        for (host, to) in [(first, inside), (second, inside), (first, addresses[1])] {
            let answers = ping(host, to, 1000, 4)?;
            ensure(answers == 4, || {
                server.failure(&format!("{answers} of 4 pings from {} to {to}", host.name())).0
            })?;
        }
        for host in [first, second] {
            tcp(host, &star.server, inside, 1_000_000)?;
        }
        Ok(())
    };
    carries()?;
    let limit = Duration::from_secs(60);
    until("both clients have had two rekeys", limit, || {
        Ok(clients.iter().all(|client| crate::case::rekeys(client) >= 2))
    })
    .map_err(|failure| {
        let said = clients.iter().map(|client| client.failure("meanwhile").0);
        format!("{failure}\n{}", said.collect::<Vec<_>>().join("\n"))
    })?;
    carries()?;
    for client in &clients {
        ensure(client.count(READY) == 1, || client.failure("it connected again").0)?;
    }
    Ok(String::new())
}
