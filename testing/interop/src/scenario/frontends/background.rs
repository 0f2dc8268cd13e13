//! `adit up` and `adit server start` under a real systemd, with adit's own units.

use std::fs;
use std::path::{Path, PathBuf};

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
const OWN: [&str; 2] = ["adit-connect@.service", SERVER];

const SERVER: &str = "adit-server.service";

/// The units of the journal.
const JOURNAL: [&str; 2] = ["systemd-journald.service", "systemd-journald.socket"];

/// A machine with a systemd.
pub(super) struct Machine<'a> {
    pub(super) namespace: &'a Namespace,
    pub(super) systemd: Systemd,
}

impl<'a> Machine<'a> {
    /// Starts systemd with adit's units. `None` if it cannot run here.
    pub(super) fn boot(
        check: &str,
        namespace: &'a Namespace,
        etc: &Path,
        root: &Path,
    ) -> Result<Option<Self>> {
        let Some(systemd) = Systemd::start(check, root, namespace, etc)? else { return Ok(None) };
        let units = etc.join("units");
        for name in OWN {
            fs::copy(format!("packaging/{name}"), units.join(name)).context(name)?;
        }
        for name in JOURNAL {
            fs::copy(root.join(UNITS).join(name), units.join(name)).context(name)?;
        }
        systemd.systemctl(namespace, &["daemon-reload"])?;
        systemd.systemctl(namespace, &["start", "systemd-journald.socket"])?;
        Ok(Some(Self { namespace, systemd }))
    }

    /// Runs `adit`. Fails if its exit code is not 0.
    pub(super) fn adit(&self, line: &str) -> Result<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let text = self.systemd.run(self.namespace, &[&["/usr/bin/adit"], &words[..]].concat());
        text.map_err(|e| self.systemd.explain(self.namespace, &format!("adit {line}: {e}")).into())
    }

    fn expect(&self, unit: &str, name: &str, expected: &str) -> Result<()> {
        self.systemd.expect(self.namespace, unit, name, expected)
    }
}

/// Makes both namespaces machines of their own, with adit. Returns their folders `/etc`.
pub(super) fn prepare(
    scenario: &Scenario<'_>,
    pair: &mut Pair,
    root: &Path,
) -> Result<[PathBuf; 2]> {
    Ok([
        prepare_machine(scenario, &mut pair.server, "server", scenario.server, root)?,
        prepare_machine(scenario, &mut pair.client, "client", scenario.server, root)?,
    ])
}

/// Makes a namespace a machine of its own, with adit, and with `openvpn` under the name openvpn. Returns its folder `/etc`.
pub(super) fn prepare_machine(
    scenario: &Scenario<'_>,
    namespace: &mut Namespace,
    role: &str,
    openvpn: &Program,
    root: &Path,
) -> Result<PathBuf> {
    let Program::Adit(adit) = scenario.server else { return Err("adit serves here".into()) };
    let adit = adit.canonicalize().context(adit.display())?;
    let etc = scenario.folder().join(role);
    // Its system log is not needed.
    let _log = furnish(namespace, &etc, openvpn, root)?;
    add_user(&etc, "adit", 61_900)?;
    // Not a link: a program that is called openvpn behaves like it.
    let mount = ": > /usr/bin/adit && mount --bind \"$1\" /usr/bin/adit";
    namespace.run("sh", &["-c", mount, "sh", &adit.display().to_string()])?;
    Ok(etc)
}

/// Starts systemd with adit's units on both machines. `None` if it cannot run here.
pub(super) fn boot<'a>(
    check: &str,
    pair: &'a Pair,
    folders: &[PathBuf; 2],
    root: &Path,
) -> Result<Option<[Machine<'a>; 2]>> {
    let [at_server, at_client] = folders;
    let Some(server) = Machine::boot(check, &pair.server, at_server, root)? else {
        return Ok(None);
    };
    let Some(client) = Machine::boot(check, &pair.client, at_client, root)? else {
        return Ok(None);
    };
    Ok(Some([server, client]))
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
    let folders = prepare(scenario, &mut pair, &root)?;
    let Some(machines) = boot(check, &pair, &folders, &root)? else {
        return Ok("SKIPPED".into());
    };
    let [server, client] = &machines;

    server.adit("server init --host 192.0.2.1 --network 10.73.0.0/24")?;
    server.adit("server start")?;
    server.expect(SERVER, "ActiveState", "active")?;
    let text = server.adit("server status")?;
    ensure(text.contains("kept running by adit-server.service"), || text.clone())?;
    server.adit("server client add laptop -o /etc/laptop.ovpn")?;
    let [at_server, at_client] = &folders;
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
    server.expect(SERVER, "UnitFileState", "enabled")?;
    let text = server.adit("server logs -n 50")?;
    ensure(text.contains("the server is up"), || text.clone())?;
    // The machine starts again.
    drop(machines);
    let Some(server) = Machine::boot(check, &pair.server, at_server, &root)? else {
        return Ok("SKIPPED".into());
    };
    started_at_boot(&server)?;
    Ok(String::new())
}

/// Checks that the server has started with the machine, and ends it.
fn started_at_boot(server: &Machine<'_>) -> Result<()> {
    server.systemd.systemctl(server.namespace, &["start", "multi-user.target"])?;
    until("the server that starts with the machine", SETUP_LIMIT, || {
        Ok(server.adit("server status").is_ok())
    })
    .map_err(|failure| server.systemd.explain(server.namespace, &failure.0))?;
    let text = server.adit("server status")?;
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    ensure(words.contains("starts with the machine"), || text.clone())?;
    server.adit("server disable")?;
    server.expect(SERVER, "UnitFileState", "disabled")?;
    server.adit("server stop")?;
    server.expect(SERVER, "ActiveState", "inactive")?;
    server.expect(SERVER, "Result", "success")
}
