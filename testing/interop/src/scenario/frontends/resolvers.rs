//! Debian's scripts for name servers, with the real resolvers: what they do under adit is what they do under openvpn.

use std::path::Path;

use super::super::Scenario;
use super::{add_user, furnish, start_bus, unpacked};
use crate::case::{Configs, READY, SETUP_LIMIT, dial, serve};
use crate::failure::{Result, ensure};
use crate::net::{Namespace, Pair};
use crate::peer::Program;
use crate::process::Daemon;
use crate::wait::until;

/// The pushed name servers and domains.
const PUSHES: &str = "push \"dhcp-option DNS 10.88.0.1\"\npush \"dhcp-option DNS 10.88.0.3\"\n\
     push \"dhcp-option DOMAIN corp.example\"";

/// Runs the client's file once with openvpn and once with adit. `look` returns the resolver's state, which must be the same with
/// both while the tunnel is up, and afterwards what it was before.
fn compare(
    scenario: &Scenario<'_>,
    pair: &Pair,
    configs: &Configs,
    look: impl Fn(&Namespace) -> Result<String>,
) -> Result<String> {
    let folder = scenario.folder();
    let before = look(&pair.client)?;
    let mut during = Vec::new();
    for program in [&Program::OpenVpn, scenario.client] {
        let mut server = serve(pair, folder, configs, scenario.server)?;
        server.wait_for(READY, SETUP_LIMIT)?;
        let mut client = dial(pair, folder, configs, program)?;
        client.wait_for(READY, SETUP_LIMIT)?;
        let shown = look(&pair.client)?;
        ensure(shown.contains("10.88.0.1") && shown.contains("corp.example"), || {
            client.failure(&format!("the resolver knows nothing: {shown}")).0
        })?;
        during.push(shown);
        client.stop()?;
        let after = look(&pair.client)?;
        ensure(after == before, || {
            client.failure(&format!("the resolver was\n{before}\nand now is\n{after}")).0
        })?;
        server.stop()?;
    }
    ensure(during.first() == during.get(1), || format!("not the same: {during:#?}"))?;
    Ok(String::new())
}

/// /etc/openvpn/update-resolv-conf with openresolv.
pub(in super::super) fn update_resolv_conf(scenario: &Scenario<'_>) -> Result<String> {
    let check = "resolvers/update-resolv-conf";
    let Some(root) = unpacked(check, "openresolv") else { return Ok("SKIPPED".into()) };
    let mut pair = Pair::new()?;
    let etc = scenario.folder().join("etc");
    let _log = furnish(&mut pair.client, &etc, &Program::OpenVpn, &root)?;
    let lan = "echo nameserver 192.0.2.1 | resolvconf -a veth0";
    pair.client.run("sh", &["-c", lan])?;
    let mut configs = scenario.configs();
    configs.server(PUSHES);
    configs.client("script-security 2\nup /etc/openvpn/update-resolv-conf");
    configs.client("down /etc/openvpn/update-resolv-conf");
    compare(scenario, &pair, &configs, |machine| machine.run("cat", &["/etc/resolv.conf"]))
}

/// /etc/openvpn/update-systemd-resolved with systemd-resolved.
pub(in super::super) fn update_systemd_resolved(scenario: &Scenario<'_>) -> Result<String> {
    let check = "resolvers/update-systemd-resolved";
    let Some(root) = unpacked(check, "frontends") else { return Ok("SKIPPED".into()) };
    let mut pair = Pair::new()?;
    let etc = scenario.folder().join("etc");
    let _log = furnish(&mut pair.client, &etc, &Program::OpenVpn, &root)?;
    let _bus = start_bus(&pair.client, &etc)?;
    let _resolved = start_resolved(&pair.client, &etc)?;
    let mut configs = scenario.configs();
    configs.server(PUSHES);
    let script = "/etc/openvpn/update-systemd-resolved";
    configs
        .client("script-security 2\nsetenv PATH /usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin");
    configs.client(&format!("up {script}\nup-restart\ndown {script}\ndown-pre"));
    compare(scenario, &pair, &configs, |machine| {
        let all = machine.run("resolvectl", &["dns"])? + &machine.run("resolvectl", &["domain"])?;
        // The number of the device changes.
        let plain = |line: &str| line.split_once(" (").map_or(line, |(_, rest)| rest).to_owned();
        Ok(all.lines().map(plain).collect::<Vec<_>>().join("\n"))
    })
}

/// Starts systemd-resolved, whose user its package would create.
fn start_resolved(machine: &Namespace, etc: &Path) -> Result<Daemon> {
    add_user(etc, "systemd-resolve", 4244)?;
    machine.run("mkdir", &["-p", "/run/systemd/resolve"])?;
    machine.run("chown", &["systemd-resolve:", "/run/systemd/resolve"])?;
    let mut resolved = Daemon::spawn("resolved", machine.command("/lib/systemd/systemd-resolved"))?;
    until("systemd-resolved answers", SETUP_LIMIT, || {
        Ok(machine.run("resolvectl", &["dns"]).is_ok())
    })
    .map_err(|e| resolved.failure(&e.to_string()))?;
    let ended = resolved.ended()?;
    ensure(ended.is_none(), || resolved.failure("it has ended").0)?;
    Ok(resolved)
}
