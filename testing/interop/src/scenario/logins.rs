//! Tests of user names, passwords, challenges and tokens.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::Scenario;
use crate::case::{Configs, HANDSHAKE, READY, SETUP_LIMIT, dial, serve};
use crate::failure::{Result, ensure};
use crate::net::Pair;
use crate::peer::Program;
use crate::process::{Daemon, command_line};

/// The time for a few renegotiations.
const REKEYED: Duration = Duration::from_secs(60);

/// The user's password, which must not reach a log.
const PASSWORD: &str = "open sesame";

/// Writes a check of passwords, whose argument is the file with the user name and the password, and the client's file
/// with them.
fn with_check(scenario: &Scenario<'_>, configs: &mut Configs, check: &str) -> Result<()> {
    let folder = scenario.folder();
    let (script, login) = (folder.join("check"), folder.join("login"));
    fs::write(&script, format!("#!/bin/sh\nOUT='{}'\n{check}\n", folder.display()))?;
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755))?;
    fs::write(&login, format!("alice\n{PASSWORD}\n"))?;
    fs::set_permissions(&login, fs::Permissions::from_mode(0o600))?;
    configs.server(&format!(
        "script-security 2\nauth-user-pass-verify {} via-file\ntmp-dir {}",
        script.display(),
        folder.display()
    ));
    configs.client(&format!("auth-user-pass {}", login.display()));
    Ok(())
}

/// The check of a password that is right.
const RIGHT: &str = "grep -qx 'open sesame' \"$1\" && grep -qx alice \"$1\"";

/// Checks that adit's ends have logged neither the password nor a token.
fn is_secret(scenario: &Scenario<'_>, server: &Daemon, client: &Daemon) -> Result<()> {
    let ends = [(scenario.server, server), (scenario.client, client)];
    for (_, daemon) in ends.iter().filter(|(program, _)| matches!(program, Program::Adit(_))) {
        for secret in [PASSWORD, "SESS_ID_AT_"] {
            ensure(!daemon.log().contains(secret), || daemon.failure("a secret is in the log").0)?;
        }
    }
    Ok(())
}

/// A token replaces the password in renegotiations and for another connection, although the password is not accepted
/// any more.
pub(super) fn token(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let once = format!("[ ! -e $OUT/used ] && touch $OUT/used && {RIGHT}");
    with_check(scenario, &mut configs, &once)?;
    // openvpn wants a renewal time of two hand-windows.
    configs.server("auth-gen-token 600 120");
    configs.both("reneg-sec 10");
    let mut tunnel = scenario.tunnel(&configs)?;
    ensure(scenario.folder().join("used").exists(), || "the password was not checked".into())?;
    tunnel.server.wait_for_nth(HANDSHAKE, 3, REKEYED)?;
    tunnel.ping_all(3)?;
    tunnel.client.signal(Signal::SIGUSR1)?;
    let (client, server) = (&mut tunnel.client, &tunnel.server);
    client
        .wait_for_nth(READY, 2, SETUP_LIMIT)
        .map_err(|f| format!("{}\n{}", f.0, server.failure("meanwhile").0))?;
    tunnel.ping_all(3)?;
    ensure(tunnel.client.count("AUTH_FAILED") == 0, || tunnel.client.failure("refused").0)?;
    is_secret(scenario, &tunnel.server, &tunnel.client)?;
    Ok(String::new())
}

/// A client without a certificate is known by its user name.
pub(super) fn password_alone(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    with_check(scenario, &mut configs, RIGHT)?;
    configs.server("verify-client-cert none\nusername-as-common-name");
    let own = |line: &str| !line.starts_with("cert ") && !line.starts_with("key ");
    let lines: Vec<&str> = configs.client.lines().filter(|line| own(line)).collect();
    configs.client = lines.join("\n") + "\n";
    let status = scenario.folder().join("status");
    configs.server(&format!("status {} 1\nstatus-version 2", status.display()));
    let tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    crate::wait::until("the user in the status file", SETUP_LIMIT, || {
        Ok(fs::read_to_string(&status).is_ok_and(|text| text.contains("CLIENT_LIST,alice,")))
    })?;
    is_secret(scenario, &tunnel.server, &tunnel.client)?;
    Ok(String::new())
}

/// A server answers the password with a challenge (CRV1), and the next attempt answers the challenge.
pub(super) fn dynamic_challenge(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let check = "if grep -q '^CRV1::stateid::$' \"$1\"; then exit 0; fi\n\
                 printf 'CRV1::stateid:YWxpY2U=:Confirm on your phone' > \"$auth_failed_reason_file\"\n\
                 exit 1";
    with_check(scenario, &mut configs, check)?;
    configs.client("auth-retry interact");
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    client
        .wait_for(READY, SETUP_LIMIT)
        .map_err(|f| format!("{}\n{}", f.0, server.failure("meanwhile").0))?;
    is_secret(scenario, &server, &client)?;
    Ok(String::new())
}

/// A file with the user name and password is read for each attempt with `auth-nocache`.
pub(super) fn password_file_read_again(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    with_check(scenario, &mut configs, "grep -qxf $OUT/right \"$1\"")?;
    let (login, right) = (scenario.folder().join("login"), scenario.folder().join("right"));
    fs::write(&right, PASSWORD)?;
    configs.client("auth-nocache\nuser nobody\ngroup nogroup");
    let mut tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    fs::write(&right, "another one")?;
    fs::write(&login, "alice\nanother one\n")?;
    tunnel.client.signal(Signal::SIGUSR1)?;
    let (client, server) = (&mut tunnel.client, &tunnel.server);
    client
        .wait_for_nth(READY, 2, SETUP_LIMIT)
        .map_err(|f| format!("{}\n{}", f.0, server.failure("meanwhile").0))?;
    Ok(String::new())
}

/// A client asks its terminal for the answer to `static-challenge`, and sends it with the password.
pub(super) fn static_challenge(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    // The base64 of the password and of the code.
    with_check(scenario, &mut configs, "grep -qx 'SCRV1:b3BlbiBzZXNhbWU=:MTIzNDU2' \"$1\"")?;
    configs.client("static-challenge \"Your code\" 1");
    let folder = scenario.folder();
    fs::write(folder.join("answer"), "123456\n")?;
    let pair = Pair::new()?;
    let mut server = serve(&pair, folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let path = folder.join("client.conf");
    fs::write(&path, &configs.client)?;
    // A prompt needs a controlling terminal.
    let line = command_line(&scenario.client.command(&pair.client, &path));
    let mut terminal = Command::new("sh");
    let answer = folder.join("answer");
    terminal.args(["-c", &format!("exec script -qfec '{line}' /dev/null < {}", answer.display())]);
    let mut client = Daemon::spawn("client at a terminal", terminal)?;
    client
        .wait_for(READY, SETUP_LIMIT)
        .map_err(|f| format!("{}\n{}", f.0, server.failure("meanwhile").0))?;
    ensure(client.log().contains("CHALLENGE: Your code"), || client.failure("no prompt").0)?;
    is_secret(scenario, &server, &client)?;
    Ok(String::new())
}
