//! Conversations with a client.

use std::path::Path;
use std::time::Duration;

use super::super::Scenario;
use super::{PLAIN, SOON, Shown, Talk, counters, lines, plain, same, states};
use crate::case::{READY, SETUP_LIMIT, dial, serve};
use crate::failure::{Context, Result, ensure};
use crate::net::Pair;
use crate::peer::Program;
use crate::process::Daemon;

/// A client that waits for `hold release` and for its password, and restarts.
fn client_talk(scenario: &Scenario<'_>, client: &Program, name: &str) -> Result<Shown> {
    let folder = scenario.folder().join(name);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("management");
    let mut configs = scenario.configs();
    configs.server("disable-dco\npush \"echo forget-passwords\"");
    configs.client(&format!(
        "management {} unix\nmanagement-hold\nmanagement-query-passwords\nauth-user-pass\n\
         disable-dco\necho of the file",
        path.display()
    ));
    let pair = Pair::new()?;
    let mut server = serve(&pair, &folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, &folder, &configs, client)?;
    let talked = client_conversation(&path, &mut client);
    talked
        .map_err(|e| format!("{name}: {e}\n{}\n{}", client.failure(""), server.failure("")).into())
}

fn client_conversation(path: &Path, client: &mut Daemon) -> Result<Shown> {
    let mut talk = Talk::connect(path)?;
    let mut shown = Vec::new();
    shown.push(talk.wait(">INFO:")?);
    shown.push(talk.wait(">HOLD:")?);
    for command in ["state", "state on", "echo on", "hold off"] {
        let reply = talk.ask(command)?;
        shown.extend(lines(command, reply));
    }
    shown.extend(lines("hold release", talk.ask("hold release")?));
    shown.push(talk.wait(">PASSWORD:")?);
    for command in [
        "password \"Private Key\" x",
        "username \"Auth\" \"alice\"",
        "password \"Auth\" \"a \\\"b\\\" c\"",
    ] {
        shown.extend(lines(command, talk.ask(command)?));
    }
    let echo = talk.wait(">ECHO:")?;
    shown.push(plain(&echo));
    let connected = talk.wait_state("CONNECTED")?;
    shown.push(plain(&connected));
    for command in
        PLAIN.iter().chain(&["state", "echo all", "status", "kill x", "client-auth-nt 0 0"])
    {
        let reply = talk.ask(command)?;
        if *command == "status" {
            shown.extend(reply.iter().map(|line| counters(line)));
        } else {
            shown.extend(lines(command, reply));
        }
    }
    let pid = talk.ask("pid")?;
    ensure(pid == [format!("SUCCESS: pid={}", client.pid())], || format!("{pid:?}"))?;
    talk.send("bytecount 1")?;
    shown.push(counters(&talk.wait(">BYTECOUNT:")?));
    talk.ask("bytecount 0")?;
    // A restart by the user holds again.
    for command in ["hold on", "signal SIGUSR1"] {
        shown.extend(lines(command, talk.ask(command)?));
    }
    shown.push(plain(&talk.wait_state("RECONNECTING")?));
    let hold = talk.wait(">HOLD:")?;
    shown.push(hold.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned());
    talk.ask("hold release")?;
    talk.wait_state("CONNECTED")?;
    // Another client waits until this one leaves.
    let mut second = Talk::connect(path)?;
    std::thread::sleep(Duration::from_millis(300));
    second.read()?;
    ensure(second.transcript.is_empty(), || format!("{:?}", second.transcript))?;
    let states = states(&talk);
    shown.extend(states);
    talk.send("quit")?;
    shown.push(second.wait(">INFO:")?);
    second.ask("state on")?;
    shown.extend(lines("signal SIGTERM", second.ask("signal SIGTERM")?));
    shown.push(plain(&second.wait_state("EXITING")?));
    client.wait_exit(SOON)?;
    ensure(!path.exists(), || "the socket stays after the end".to_owned())?;
    Ok(shown)
}

/// The conversation with adit as a client is that with openvpn as a client.
pub(in crate::scenario) fn client(scenario: &Scenario<'_>) -> Result<String> {
    let of_openvpn = client_talk(scenario, &Program::OpenVpn, "openvpn")?;
    let of_adit = client_talk(scenario, scenario.client, "adit")?;
    same(&of_openvpn, &of_adit)?;
    Ok(format!("{} lines", of_adit.len()))
}

/// `management-query-remote`: the second server is skipped to, and then another address is given.
pub(in crate::scenario) fn query_remote(scenario: &Scenario<'_>) -> Result<String> {
    let of_openvpn = remote_talk(scenario, &Program::OpenVpn, "openvpn")?;
    let of_adit = remote_talk(scenario, scenario.client, "adit")?;
    same(&of_openvpn, &of_adit)?;
    Ok(String::new())
}

fn remote_talk(scenario: &Scenario<'_>, client: &Program, name: &str) -> Result<Shown> {
    let folder = scenario.folder().join(name);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("management");
    let mut configs = scenario.configs();
    let server = configs.client.lines().find_map(|line| line.strip_prefix("remote "));
    let server = server.and_then(|rest| rest.split(' ').next()).context("no remote")?.to_owned();
    configs.client = configs.client.replace(&format!("remote {server} 1194"), "");
    configs.client("remote 192.0.2.77 1194\nremote 192.0.2.78 1195\nremote 192.0.2.79 1196");
    configs.client(&format!("management {} unix\nmanagement-query-remote", path.display()));
    configs.client("management-hold\ndisable-dco");
    let pair = Pair::new()?;
    let mut daemon = serve(&pair, &folder, &configs, scenario.server)?;
    daemon.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, &folder, &configs, client)?;
    let talked = || -> Result<Shown> {
        let mut talk = Talk::connect(&path)?;
        let mut shown = Vec::new();
        talk.wait(">HOLD:")?;
        talk.ask("state on")?;
        talk.send("hold release")?;
        shown.push(talk.wait(">REMOTE:")?);
        for command in ["remote-entry-count", "remote-entry-get all", "remote-entry-get 1"] {
            shown.extend(lines(command, talk.ask(command)?));
        }
        talk.send("remote SKIP")?;
        shown.push(talk.wait(">REMOTE:")?);
        talk.send(&format!("remote MOD {server} 1194"))?;
        talk.wait_state("CONNECTED")?;
        Ok(shown)
    };
    let shown = talked().map_err(|e| format!("{name}: {e}\n{}", client.failure("")))?;
    client.stop()?;
    Ok(shown)
}

/// A client whose password is questioned, forgotten and refused by a server with `management-client-auth`.
pub(in crate::scenario) fn challenge(scenario: &Scenario<'_>) -> Result<String> {
    let of_openvpn = challenge_talk(scenario, &Program::OpenVpn, "openvpn")?;
    let of_adit = challenge_talk(scenario, scenario.client, "adit")?;
    same(&of_openvpn, &of_adit)?;
    Ok(format!("{} lines", of_adit.len()))
}

fn challenge_talk(scenario: &Scenario<'_>, client: &Program, name: &str) -> Result<Shown> {
    let folder = scenario.folder().join(name);
    std::fs::create_dir_all(&folder)?;
    let (at_server, at_client) = (folder.join("server.sock"), folder.join("client.sock"));
    let mut configs = scenario.configs();
    configs.server(&format!(
        "management {} unix\nmanagement-client-auth\ndisable-dco",
        at_server.display()
    ));
    configs.client(&format!(
        "management {} unix\nmanagement-hold\nmanagement-query-passwords\nauth-user-pass\n\
         disable-dco\npush-peer-info\nsetenv IV_SSO webauth,openurl,crtext",
        at_client.display()
    ));
    let pair = Pair::new()?;
    let mut server = serve(&pair, &folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, &folder, &configs, client)?;
    let talked = || -> Result<Shown> {
        let (mut server, mut client) = (Talk::connect(&at_server)?, Talk::connect(&at_client)?);
        challenge_conversation(&mut server, &mut client)
    };
    let shown = talked()
        .map_err(|e| format!("{name}: {e}\n{}\n{}", client.failure(""), server.failure("")))?;
    client.stop()?;
    Ok(shown)
}

fn challenge_conversation(server: &mut Talk, client: &mut Talk) -> Result<Shown> {
    let mut shown = Vec::new();
    client.wait(">HOLD:")?;
    for command in ["state on", "auth-retry", "auth-retry interact", "auth-retry", "hold release"] {
        shown.extend(lines(command, client.ask(command)?));
    }
    log_in(client, &mut shown)?;
    let asked = asked_about(server)?;
    let pending = format!("client-pending-auth {asked} \"CR_TEXT:R,E:PIN, please\" 30");
    server.ask(&pending)?;
    shown.push(plain(&client.wait_state("AUTH_PENDING")?));
    shown.push(client.wait(">INFOMSG:")?);
    shown.extend(lines("cr-response", client.ask("cr-response MTIzNA==")?));
    let response = server.wait(">CLIENT:CR_RESPONSE,")?;
    ensure(response.ends_with(",MTIzNA=="), || response.clone())?;
    server.ask(&format!("client-auth-nt {asked}"))?;
    client.wait_state("CONNECTED")?;
    // The password is asked for again after it was forgotten, and after it was refused.
    for command in ["forget-passwords", "hold on", "signal SIGUSR1"] {
        shown.extend(lines(command, client.ask(command)?));
    }
    shown.push(plain(&client.wait_state("RECONNECTING")?));
    client.wait(">HOLD:")?;
    client.ask("hold release")?;
    log_in(client, &mut shown)?;
    let asked = asked_about(server)?;
    server.ask(&format!("client-deny {asked} \"a reason\" \"come back later\""))?;
    shown.push(client.wait(">PASSWORD:Verification")?);
    shown.push(plain(&client.wait_state("RECONNECTING")?));
    client.wait(">HOLD:")?;
    client.ask("hold off")?;
    client.ask("hold release")?;
    log_in(client, &mut shown)?;
    let asked = asked_about(server)?;
    // Single sign-on: the management client opens the page.
    for method in ["WEB_AUTH:proxy,hidden:", "OPEN_URL:"] {
        let page = format!("{method}https://example.org/login?a=1&b=2");
        server.ask(&format!("client-pending-auth {asked} {page} 30"))?;
        shown.push(plain(&client.wait_state("AUTH_PENDING")?));
        let told = client.wait(">INFOMSG:")?;
        ensure(told == format!(">INFOMSG:{page}"), || told.clone())?;
        shown.push(told);
    }
    server.ask(&format!("client-auth-nt {asked}"))?;
    client.wait_state("CONNECTED")?;
    // GET_CONFIG is entered once a second, so that a fast server's answer precedes it.
    shown.extend(states(client).into_iter().filter(|name| !name.contains("GET_CONFIG")));
    Ok(shown)
}

/// Answers the question for a password.
fn log_in(client: &mut Talk, shown: &mut Shown) -> Result<()> {
    shown.push(client.wait(">PASSWORD:Need")?);
    for command in ["username \"Auth\" alice", "password \"Auth\" secret"] {
        shown.extend(lines(command, client.ask(command)?));
    }
    Ok(())
}

/// Waits for a client's request, and returns the numbers of the client and its key.
fn asked_about(server: &mut Talk) -> Result<String> {
    let asked = server.wait(">CLIENT:CONNECT,")?;
    server.wait(">CLIENT:ENV,END")?;
    let numbers = asked.trim_start_matches(">CLIENT:CONNECT,");
    Ok(numbers.replace(',', " "))
}

/// `management-up-down`, and the token that a server pushes.
pub(in crate::scenario) fn up_down(scenario: &Scenario<'_>) -> Result<String> {
    let of_openvpn = up_down_talk(scenario, &Program::OpenVpn, "openvpn")?;
    let of_adit = up_down_talk(scenario, scenario.client, "adit")?;
    same(&of_openvpn, &of_adit)?;
    Ok(format!("{} lines", of_adit.len()))
}

fn up_down_talk(scenario: &Scenario<'_>, client: &Program, name: &str) -> Result<Shown> {
    let folder = scenario.folder().join(name);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("management");
    let mut configs = scenario.configs();
    configs.server("disable-dco\npush \"route 10.77.0.0 255.255.0.0\"\npush \"auth-token secret\"");
    configs.client = configs.client.replace("persist-tun\n", "");
    configs.client(&format!(
        "management {} unix\nmanagement-hold\nmanagement-query-passwords\nmanagement-up-down\n\
         auth-user-pass\ndisable-dco\nsetenv SITE north\nconnect-retry 1 1",
        path.display()
    ));
    let pair = Pair::new()?;
    let mut server = serve(&pair, &folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, &folder, &configs, client)?;
    let talked = up_down_conversation(&path, &mut client);
    let shown = talked
        .map_err(|e| format!("{name}: {e}\n{}\n{}", client.failure(""), server.failure("")))?;
    let folder = folder.display().to_string();
    let pid = |line: &&String| !line.starts_with(">UPDOWN:ENV,daemon_pid=");
    Ok(shown.iter().filter(pid).map(|line| plain(&line.replace(&folder, "@"))).collect())
}

fn up_down_conversation(path: &Path, client: &mut Daemon) -> Result<Shown> {
    let mut talk = Talk::connect(path)?;
    talk.wait(">HOLD:")?;
    for command in ["state on", "hold off", "hold release"] {
        talk.ask(command)?;
    }
    log_in(&mut talk, &mut Vec::new())?;
    talk.wait_state("CONNECTED")?;
    // The tunnel goes down and comes up again.
    talk.ask("signal SIGUSR1")?;
    talk.wait_state("CONNECTED")?;
    talk.send("signal SIGTERM")?;
    talk.wait_state("EXITING")?;
    client.wait_exit(SOON)?;
    let wanted = [">UPDOWN:", ">PASSWORD:Auth-Token"];
    let shown = talk.transcript.iter().filter(|line| wanted.iter().any(|w| line.starts_with(w)));
    Ok(shown.cloned().collect())
}
