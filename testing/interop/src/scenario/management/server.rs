//! Conversations with a server.

use std::path::Path;
use std::time::Duration;

use super::super::Scenario;
use super::{PLAIN, SOON, Shown, Talk, clients, counters, lines, plain, same};
use crate::case::{Configs, READY, SETUP_LIMIT, dial, inner_addrs, serve};
use crate::failure::{Result, ensure};
use crate::net::Pair;
use crate::peer::Program;
use crate::process::Daemon;
use crate::traffic::{ping, tcp};
use crate::wait::until;

/// The time for a client of a session that was ended: openvpn does not tell it, so its ping-restart must expire.
const BACK: Duration = Duration::from_secs(90);

/// A server with a connected client.
fn server_talk(scenario: &Scenario<'_>, server: &Program, name: &str) -> Result<Shown> {
    let folder = scenario.folder().join(name);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("management");
    let mut configs = scenario.configs();
    configs.server(&format!("disable-dco\nmanagement {} unix", path.display()));
    configs.client("disable-dco\nconnect-retry 1 1");
    let pair = Pair::new()?;
    let mut server = serve(&pair, &folder, &configs, server)?;
    let mut client = None;
    let talked = server_conversation(scenario, &folder, &configs, &pair, &mut server, &mut client);
    talked.map_err(|e| {
        let of_client = client.as_ref().map(|client| client.failure("").0).unwrap_or_default();
        format!("{name}: {e}\n{}\n{of_client}", server.failure("")).into()
    })
}

fn server_conversation(
    scenario: &Scenario<'_>,
    folder: &Path,
    configs: &Configs,
    pair: &Pair,
    server: &mut Daemon,
    client: &mut Option<Daemon>,
) -> Result<Shown> {
    let mut talk = Talk::connect(&folder.join("management"))?;
    let mut shown = vec![talk.wait(">INFO:")?];
    server.wait_for(READY, SETUP_LIMIT)?;
    shown.extend(lines("state all", talk.ask("state all")?));
    let client = client.insert(dial(pair, folder, configs, scenario.client)?);
    client.wait_for(READY, SETUP_LIMIT)?;
    ping(&pair.client, inner_addrs(&pair.server)?.v4, 56, 2)?;
    for version in ["status 1", "status 2", "status 3"] {
        let reply = talk.ask(version)?;
        // The title differs, and the queue length is openvpn's own.
        let reply =
            reply.iter().filter(|line| !line.starts_with("TITLE") && !line.contains("queue"));
        let mut rows: Vec<String> = reply.map(|line| counters(line)).collect();
        // The order of routes is that of openvpn's hash table.
        rows.sort_unstable();
        shown.extend(rows);
    }
    let load = talk.ask("load-stats")?;
    shown.extend(load.iter().map(|line| counters(line)));
    talk.send("bytecount 1")?;
    shown.push(counters(&talk.wait(">BYTECOUNT_CLI:")?));
    talk.ask("bytecount 0")?;
    for command in PLAIN.iter().chain(&[
        "kill",
        "kill nobody",
        "kill 192.0.2.99:1194",
        "kill 192.0.2.99:0",
        "kill x:7",
        "client-kill x",
        "client-kill 77",
        "client-deny 0",
        "status 9",
    ]) {
        shown.extend(lines(command, talk.ask(command)?));
    }
    shown.extend(lines("kill client", talk.ask("kill client")?));
    until("the client comes back", BACK, || Ok(clients(&mut talk)? == ["1"]))?;
    shown.extend(lines("client-kill", talk.ask("client-kill 1")?));
    until("the client comes back again", BACK, || Ok(clients(&mut talk)? == ["2"]))?;
    talk.ask("state on")?;
    talk.send("signal SIGTERM")?;
    shown.push(plain(&talk.wait_state("EXITING")?));
    server.wait_exit(SOON)?;
    Ok(shown)
}

/// The conversation with adit as a server is that with openvpn as a server.
pub(in crate::scenario) fn server(scenario: &Scenario<'_>) -> Result<String> {
    let of_openvpn = server_talk(scenario, &Program::OpenVpn, "openvpn")?;
    let of_adit = server_talk(scenario, scenario.server, "adit")?;
    same(&of_openvpn, &of_adit)?;
    Ok(format!("{} lines", of_adit.len()))
}

/// A management client that stops reading stalls nothing, and is disconnected.
pub(in crate::scenario) fn client_that_does_not_read(scenario: &Scenario<'_>) -> Result<String> {
    let path = scenario.folder().join("management");
    let mut configs = scenario.configs();
    configs.server(&format!("management {} unix", path.display()));
    let tunnel = scenario.tunnel(&configs)?;
    let mut talk = Talk::connect(&path)?;
    talk.ask("log on")?;
    // More than the interface keeps for a client. The reply is never read.
    talk.send("test 1000000")?;
    tcp(&tunnel.pair.client, &tunnel.pair.server, tunnel.server_inner.v4, 6_000_000)?;
    tunnel.ping_all(4)?;
    // The next client does not wait for it.
    let mut next = Talk::connect(&path)?;
    next.wait(">INFO:")?;
    ensure(tunnel.server.log().contains("did not read its lines"), || {
        tunnel.server.failure("the client was not disconnected").0
    })?;
    let reply = next.ask("load-stats")?;
    ensure(reply.concat().starts_with("SUCCESS: nclients=1,"), || format!("{reply:?}"))?;
    Ok(String::new())
}

/// Many commands a second during a bulk transfer. Returns the processor time that they cost.
pub(in crate::scenario) fn many_commands(scenario: &Scenario<'_>) -> Result<String> {
    let path = scenario.folder().join("management");
    let mut configs = scenario.configs();
    configs.server(&format!("management {} unix", path.display()));
    let tunnel = scenario.tunnel(&configs)?;
    let transfer =
        || tcp(&tunnel.pair.client, &tunnel.pair.server, tunnel.server_inner.v4, 60_000_000);
    let cpu = |from: f64| tunnel.server.cpu_seconds().map(|now| now - from);
    let before = cpu(0.0)?;
    transfer()?;
    let alone = cpu(before)?;
    let mut talk = Talk::connect(&path)?;
    talk.wait(">INFO:")?;
    let before = cpu(0.0)?;
    let mut count = 0_u32;
    std::thread::scope(|scope| -> Result<()> {
        let moving = scope.spawn(|| transfer().map_err(|e| e.to_string()));
        while !moving.is_finished() {
            for command in ["load-stats", "state", "status 2", "pid", "hold"] {
                talk.ask(command)?;
                count += 1;
            }
            talk.transcript.clear();
            std::thread::sleep(Duration::from_millis(10));
        }
        match moving.join() {
            Ok(moved) => Ok(moved.map(drop)?),
            Err(_) => Err("the transfer failed".into()),
        }
    })?;
    let with = cpu(before)?;
    ensure(count > 0, || "no command was answered".to_owned())?;
    Ok(format!("{count} commands, {alone:.2} s of processor time without, {with:.2} s with them"))
}
