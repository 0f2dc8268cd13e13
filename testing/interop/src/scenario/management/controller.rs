//! The whole of a controller's profile: the management interface decides, programs push and refuse, and the tunnel works.
//! The same expectations hold with openvpn and with adit as the server.

use std::fs;
use std::path::Path;

use super::super::{Scenario, ping_until};
use super::{SOON, Shown, Talk, clients, counters, lines, plain, same};
use crate::case::{Configs, READY, SETUP_LIMIT, dial, inner_addrs, serve};
use crate::failure::{Context, Result, ensure};
use crate::file;
use crate::matrix::Wrapping;
use crate::net::Pair;
use crate::peer::Program;
use crate::process::Daemon;
use crate::wait::until;

pub(in crate::scenario) fn over_udp(scenario: &Scenario<'_>) -> Result<String> {
    profile(scenario, false)
}

pub(in crate::scenario) fn over_tcp(scenario: &Scenario<'_>) -> Result<String> {
    profile(scenario, true)
}

fn profile(scenario: &Scenario<'_>, stream: bool) -> Result<String> {
    let of_openvpn = run(scenario, &Program::OpenVpn, "openvpn", stream)?;
    let of_adit = run(scenario, scenario.server, "adit", stream)?;
    same(&of_openvpn, &of_adit)?;
    Ok(format!("{} lines", of_adit.len()))
}

/// `client-connect` of the controller: it knows clients by their certificate and by its own variable, tells the client
/// who it is, and refuses it while there is a file `closed`.
const CONNECT: &str = "[ -e closed ] && exit 1\n\
    [ \"$CONTROLLER\" = north ] && [ \"$X509_0_CN\" = client ] && [ -n \"$X509_1_CN\" ] || exit 1\n\
    [ \"$IV_PLAT\" = linux ] && [ \"$trusted_ip\" = \"$untrusted_ip\" ] || exit 1\n\
    echo \"push \\\"echo $X509_0_CN at $ifconfig_pool_remote_ip\\\"\" >> \"$1\"\n\
    echo 'push \"route 10.66.0.0 255.255.0.0\"' >> \"$1\"\n\
    echo 'push \"dhcp-option DNS 10.88.0.1\"' >> \"$1\"\n";

const DISCONNECT: &str = "echo \"$common_name $X509_0_CN ${time_duration:+ended}\" >> ended\n";

/// Writes a program. It runs in the folder.
fn program(folder: &Path, name: &str, text: &str) -> Result<String> {
    let path = folder.join(name);
    file::write(&path, format!("#!/bin/sh\ncd '{}'\n{text}", folder.display()), 0o755)?;
    Ok(path.display().to_string())
}

fn files(scenario: &Scenario<'_>, folder: &Path, stream: bool) -> Result<Configs> {
    let mut configs = scenario.configs();
    configs.wrap(&scenario.env.pki, Wrapping::TlsCrypt);
    if stream {
        configs.server = configs.server.replace("proto udp4", "proto tcp4-server");
        configs.client = configs.client.replace("proto udp4", "proto tcp4-client");
        configs.client = configs.client.replace("explicit-exit-notify 1\n", "");
    }
    let connect = program(folder, "connect", CONNECT)?;
    let disconnect = program(folder, "disconnect", DISCONNECT)?;
    configs.server(&format!(
        "management {} unix\nmanagement-hold\nmanagement-client-auth\nauth-user-pass-optional\n\
         tls-version-min 1.3\ndisable-dco\nscript-security 2\nsetenv CONTROLLER north\n\
         client-connect {connect}\nclient-disconnect {disconnect}\n\
         push \"dhcp-option DOMAIN corp.example\"\npush \"dhcp-option DNS6 fd88::1\"\n\
         push \"route 10.67.0.0 255.255.0.0\"\npush \"route-ipv6 fd67::/48\"",
        folder.join("server.sock").display()
    ));
    configs.client(&format!(
        "management {} unix\ntls-version-min 1.3\ndisable-dco\npush-peer-info\nconnect-retry 1 1",
        folder.join("client.sock").display()
    ));
    Ok(configs)
}

fn run(scenario: &Scenario<'_>, server: &Program, name: &str, stream: bool) -> Result<Shown> {
    let folder = scenario.folder().join(name);
    fs::create_dir_all(&folder)?;
    let configs = files(scenario, &folder, stream)?;
    let pair = Pair::new()?;
    let mut server = serve(&pair, &folder, &configs, server)?;
    let mut client = None;
    let driven = drive(scenario, &folder, &configs, &pair, &mut server, &mut client);
    driven.map_err(|e| {
        let of_client = client.as_ref().map(|client| client.failure("").0).unwrap_or_default();
        format!("{name}: {e}\n{}\n{of_client}", server.failure("")).into()
    })
}

/// Drives the server as the controller does. Returns what both programs must show alike.
fn drive(
    scenario: &Scenario<'_>,
    folder: &Path,
    configs: &Configs,
    pair: &Pair,
    server: &mut Daemon,
    client: &mut Option<Daemon>,
) -> Result<Shown> {
    let mut talk = Talk::connect(&folder.join("server.sock"))?;
    let mut shown = vec![talk.wait(">HOLD:")?];
    talk.ask("hold release")?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let client = client.insert(dial(pair, folder, configs, scenario.client)?);
    let key = asked(&mut talk)?;
    talk.send(&format!("client-auth {key}"))?;
    talk.send("push \"echo from the controller\"")?;
    talk.send("END")?;
    shown.push(talk.wait_any(&["SUCCESS:", "ERROR:"])?);
    client.wait_for(READY, SETUP_LIMIT)?;
    shown.extend(pushed(client)?);
    let echoes = Talk::connect(&folder.join("client.sock"))?.ask("echo all")?;
    shown.extend(lines("echo all", echoes));
    talk.wait(">CLIENT:ESTABLISHED,0")?;
    let inner = inner_addrs(&pair.server)?;
    for address in std::iter::once(inner.v4).chain(inner.v6) {
        ping_until(&pair.client, address, SOON)?;
    }
    let tls = client.log();
    ensure(tls.contains("TLSv1.3"), || client.failure("it is not TLS 1.3").0)?;
    for version in ["status 2", "status 3"] {
        let reply = talk.ask(version)?;
        let rows = reply.iter().filter(|line| line.starts_with("CLIENT_LIST"));
        shown.extend(rows.map(|line| counters(line)));
    }
    talk.send("bytecount 1")?;
    shown.push(counters(&talk.wait(">BYTECOUNT_CLI:0,")?));
    talk.ask("bytecount 0")?;
    // The client is killed, and the program refuses it when it comes back.
    fs::write(folder.join("closed"), "")?;
    shown.extend(lines("client-kill", talk.ask("client-kill 0")?));
    let key = replaced(&mut talk)?;
    talk.send(&format!("client-auth-nt {key}"))?;
    talk.wait("SUCCESS:")?;
    let refused = client.wait_exit(SETUP_LIMIT)?;
    ensure(client.log().contains("AUTH_FAILED"), || {
        client.failure(&format!("it was not refused, and ended by {refused}")).0
    })?;
    until("the session's end reaches the program", SOON, || {
        Ok(fs::read_to_string(folder.join("ended")).is_ok_and(|text| !text.is_empty()))
    })?;
    // openvpn also runs it for the client that was refused.
    let ended = fs::read_to_string(folder.join("ended"))?;
    shown.extend(ended.lines().next().map(str::to_owned));
    until("no client has a session", SOON, || Ok(clients(&mut talk)?.is_empty()))?;
    talk.ask("state on")?;
    talk.send("signal SIGTERM")?;
    shown.push(plain(&talk.wait_state("EXITING")?));
    server.wait_exit(SOON)?;
    Ok(shown)
}

/// Waits for a request about a client. Returns its numbers.
fn asked(talk: &mut Talk) -> Result<String> {
    let asked = talk.wait(">CLIENT:CONNECT,")?;
    talk.wait(">CLIENT:ENV,END")?;
    Ok(asked.trim_start_matches(">CLIENT:CONNECT,").replace(',', " "))
}

/// Waits until the first client has gone and the next one asks, in any order: openvpn keeps a client that was killed for
/// a while. Returns the numbers of the next one.
fn replaced(talk: &mut Talk) -> Result<String> {
    let (mut gone, mut key) = (false, None);
    while !gone || key.is_none() {
        let line = talk.wait_any(&[">CLIENT:DISCONNECT,0", ">CLIENT:CONNECT,"])?;
        match line.strip_prefix(">CLIENT:CONNECT,") {
            Some(numbers) => key = Some(numbers.replace(',', " ")),
            None => gone = true,
        }
    }
    Ok(key.unwrap_or_default())
}

/// Returns the options that a client got, sorted, without those of the session.
fn pushed(client: &Daemon) -> Result<Vec<String>> {
    let log = client.log();
    let line = log.lines().rev().find(|line| line.contains("'PUSH_REPLY,"));
    let reply = line.and_then(|line| line.split_once("'PUSH_REPLY,")).context("no PUSH_REPLY")?.1;
    let reply = reply.trim_end_matches(['\'', '\n']);
    let own = ["route", "dhcp-option", "echo", "ifconfig", "topology", "ping"];
    let options = reply.split(',').filter(|option| own.iter().any(|name| option.starts_with(name)));
    let mut options: Vec<String> = options.map(str::to_owned).collect();
    options.sort();
    Ok(options)
}
