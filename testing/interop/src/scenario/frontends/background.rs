//! `adit up` and `adit server start` under a real systemd, with adit's own units.

use std::fs;

use super::super::Scenario;
use super::systemd::Systemd;
use super::units::UNITS;
use super::{add_user, furnish, unpacked};
use crate::case::SETUP_LIMIT;
use crate::failure::{Context, Result, ensure};
use crate::net::{Namespace, Pair};
use crate::peer::Program;
use crate::skip::skip;
use crate::traffic::ping;
use crate::wait::until;

/// The units of adit. Their output goes to the journal.
const OWN: [&str; 2] = ["adit-connect@.service", "adit-server.service"];

/// The units of the journal.
const JOURNAL: [&str; 2] = ["systemd-journald.service", "systemd-journald.socket"];

/// A machine with a systemd.
struct Machine<'a> {
    namespace: &'a Namespace,
    systemd: Systemd,
}

impl Machine<'_> {
    /// Runs `adit`. Fails if its exit code is not 0.
    fn adit(&self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let text = self.systemd.run(self.namespace, &[&["/usr/bin/adit"], &words[..]].concat());
        text.map_err(|e| self.systemd.explain(self.namespace, &format!("adit {line}: {e}")).into())
    }

    fn expect(&self, unit: &str, name: &str, expected: &str) -> Result<()> {
        self.systemd.expect(self.namespace, unit, name, expected)
    }
}

/// Clients and the server in the background, under systemd.
pub(in super::super) fn under_systemd(scenario: &Scenario<'_>) -> Result<String> {
    let check = "units/background";
    let Some(root) = unpacked(check, "frontends") else { return Ok("SKIPPED".into()) };
    let Program::Adit(_) = scenario.server else {
        skip(check, "it is about adit's own commands");
        return Ok("SKIPPED".into());
    };
    let mut pair = Pair::new()?;
    let mut folders = Vec::new();
    for (namespace, role) in [(&mut pair.server, "server"), (&mut pair.client, "client")] {
        let etc = scenario.folder().join(role);
        // Its system log is not needed.
        let _log = furnish(namespace, &etc, scenario.server, &root)?;
        add_user(&etc, "adit", 61_900)?;
        namespace.run("ln", &["-s", "/usr/sbin/openvpn", "/usr/bin/adit"])?;
        folders.push(etc);
    }
    let mut machines = Vec::new();
    for (namespace, etc) in [&pair.server, &pair.client].into_iter().zip(&folders) {
        let Some(systemd) = Systemd::start(check, &root, namespace, etc)? else {
            return Ok("SKIPPED".into());
        };
        let units = etc.join("units");
        for name in OWN {
            fs::copy(format!("packaging/{name}"), units.join(name)).context(name)?;
        }
        for name in JOURNAL {
            fs::copy(root.join(UNITS).join(name), units.join(name)).context(name)?;
        }
        systemd.systemctl(namespace, &["daemon-reload"])?;
        systemd.systemctl(namespace, &["start", "systemd-journald.socket"])?;
        machines.push(Machine { namespace, systemd });
    }
    let [server, client] = machines.as_slice() else { return Err("two machines".into()) };

    server.adit("server init --host 192.0.2.1 --network 10.73.0.0/24")?;
    server.adit("server start")?;
    server.expect("adit-server.service", "ActiveState", "active")?;
    let text = server.adit("server status")?;
    ensure(text.contains("kept running by adit-server.service"), || text.clone())?;
    server.adit("server client add laptop -o /etc/laptop.ovpn")?;
    let [at_server, at_client] = folders.as_slice() else { return Err("two folders".into()) };
    fs::copy(at_server.join("laptop.ovpn"), at_client.join("laptop.ovpn"))?;

    let unit = "adit-connect@laptop.service";
    let text = client.adit("up /etc/laptop.ovpn")?;
    ensure(text.contains("laptop is up: 10.73.0.2"), || text.clone())?;
    client.expect(unit, "ActiveState", "active")?;
    let inside = "10.73.0.1".parse().context("an address")?;
    ensure(ping(client.namespace, inside, 56, 4)? == 4, || {
        client.systemd.explain(client.namespace, "no ping")
    })?;
    let text = client.adit("list --json")?;
    ensure(text.contains("\"up\"") && text.contains("\"systemd\""), || text.clone())?;
    let text = client.adit("logs laptop -n 20")?;
    ensure(text.contains("connected: 10.73.0.2"), || text.clone())?;
    // A crash: systemd starts it again.
    client.systemd.systemctl(client.namespace, &["kill", "-s", "KILL", unit])?;
    until("the restart", SETUP_LIMIT, || {
        let restarts = client.systemd.property(client.namespace, unit, "NRestarts")?;
        Ok(restarts == "1" && client.adit("list")?.contains("laptop  up"))
    })?;
    client.adit("down laptop")?;
    client.expect(unit, "ActiveState", "inactive")?;
    client.expect(unit, "Result", "success")?;
    ensure(client.adit("list")?.contains("laptop  stopped"), || "it is not stopped".into())?;
    // A client that cannot connect keeps trying; the reason is that of its journal.
    let profile = at_client.join("adit/connect/laptop.ovpn");
    let text = fs::read_to_string(&profile)?;
    fs::write(&profile, format!("{text}\nbind-dev missing0\n"))?;
    let failed = client.adit("up laptop --wait 2");
    ensure(failed.is_err_and(|e| e.0.contains("missing0")), || "no reason".into())?;
    client.adit("down laptop")?;
    client.expect(unit, "ActiveState", "inactive")?;

    server.adit("server enable")?;
    server.adit("server disable")?;
    server.adit("server stop")?;
    server.expect("adit-server.service", "ActiveState", "inactive")?;
    server.expect("adit-server.service", "Result", "success")?;
    let text = server.adit("server logs -n 50")?;
    ensure(text.contains("the server is up"), || text.clone())?;
    Ok(String::new())
}
