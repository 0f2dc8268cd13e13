//! Tests of several clients at one server.

use std::fs;
use std::time::Duration;

use super::{Scenario, ping_until};
use crate::case::{InnerAddrs, READY, SETUP_LIMIT, inner_addrs};
use crate::failure::{Result, ensure};
use crate::net::Star;
use crate::process::Daemon;
use crate::traffic::{ping, silent, tcp};

/// Three clients with one certificate (`duplicate-cn`) at a server with `client-to-client`; one leaves, the others stay.
pub(super) fn clients_reach_each_other(scenario: &Scenario<'_>) -> Result<String> {
    meet(scenario, "topology subnet")
}

/// The same with a network of four addresses for each client.
pub(super) fn clients_with_four_addresses_each(scenario: &Scenario<'_>) -> Result<String> {
    meet(scenario, "topology net30")
}

fn meet(scenario: &Scenario<'_>, topology: &str) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server = configs.server.replace("topology subnet", topology);
    configs.server("duplicate-cn\nclient-to-client\nmax-clients 3");
    let star = Star::new(3)?;
    let path = |name: &str| scenario.folder().join(name);
    fs::write(path("server.conf"), &configs.server)?;
    fs::write(path("client.conf"), &configs.client)?;
    let command = scenario.server.command(&star.server, &path("server.conf"));
    let mut server = Daemon::spawn("server", command)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut clients = Vec::new();
    let mut inner: Vec<InnerAddrs> = Vec::new();
    for namespace in &star.clients {
        let command = scenario.client.command(namespace, &path("client.conf"));
        let mut client = Daemon::spawn("client", command)?;
        client
            .wait_for(READY, SETUP_LIMIT)
            .map_err(|e| format!("{e}\n{}", server.failure("meanwhile")))?;
        inner.push(inner_addrs(namespace)?);
        clients.push(client);
    }
    let timeout = Duration::from_secs(5);
    for (from, namespace) in star.clients.iter().enumerate() {
        for (to, address) in inner.iter().enumerate().filter(|(to, _)| *to != from) {
            ping_until(namespace, address.v4, timeout)?;
            ping_until(namespace, address.newest(), timeout)?;
            let got = ping(namespace, address.v4, 3000, 2)?;
            ensure(got == 2, || format!("client {from} to {to}: {got} of 2 large pings"))?;
        }
    }
    let [first, second, ..] = star.clients.as_slice() else {
        return Err("three were asked for".into());
    };
    let [_, at_second, at_third] = inner.as_slice() else {
        return Err("three were asked for".into());
    };
    tcp(first, second, at_second.v4, 1_000_000)?;
    if let Some(mut third) = clients.pop() {
        third.stop()?;
    }
    std::thread::sleep(Duration::from_millis(500));
    ensure(silent(first, at_third.v4)?, || "the third answers after its end".to_owned())?;
    ensure(ping(first, at_second.v4, 56, 4)? == 4, || {
        server.failure("the third took the others with it").0
    })?;
    Ok(String::new())
}
