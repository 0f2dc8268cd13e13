//! Tests of user names, passwords, challenges and tokens.

use std::fs;
use std::process::Command;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Scenario, ping_until};
use crate::case::{Configs, HANDSHAKE, READY, SETUP_LIMIT, dial, serve};
use crate::failure::{Context, Result, ensure};
use crate::file;
use crate::net::{End, Pair};
use crate::peer::Program;
use crate::process::{Daemon, command_line, run};
use crate::sandbox::text;

/// The time for a few renegotiations.
const REKEYED: Duration = Duration::from_secs(60);

/// The time for a client that tries a server which is gone before the next one.
const MOVED: Duration = Duration::from_secs(90);

/// The user's password, which must not reach a log.
const PASSWORD: &str = "open sesame";

/// Writes a check of passwords, whose argument is the file with the user name and the password, and the client's file
/// with them.
fn with_check(scenario: &Scenario<'_>, configs: &mut Configs, check: &str) -> Result<()> {
    let folder = scenario.folder();
    let login = folder.join("login");
    file::write(&login, format!("alice\n{PASSWORD}\n"), 0o600)?;
    configs.check_passwords(folder, check)?;
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

/// A password that is refused in a renegotiation ends the session: the client gets AUTH_FAILED and exits, and the
/// server forgets it.
pub(super) fn refused_in_a_renegotiation(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let once = format!("[ ! -e $OUT/used ] && touch $OUT/used && {RIGHT}");
    with_check(scenario, &mut configs, &once)?;
    let status = scenario.folder().join("status");
    configs.server(&format!("reneg-sec 10\nstatus {} 1\nstatus-version 2", status.display()));
    configs.client("reneg-sec 0");
    let mut tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    let listed = |wanted: bool| -> Result<bool> {
        let text = fs::read_to_string(&status).unwrap_or_default();
        Ok(text.contains("\nEND") && text.contains("CLIENT_LIST,client,") == wanted)
    };
    crate::wait::until("the client in the status file", SETUP_LIMIT, || listed(true))?;
    let (client, server) = (&mut tunnel.client, &tunnel.server);
    client
        .wait_for("AUTH_FAILED", REKEYED)
        .map_err(|f| format!("{}\n{}", f.0, server.failure("meanwhile").0))?;
    client.wait_exit(SETUP_LIMIT)?;
    ensure(client.count(READY) == 1, || client.failure("it connected again").0)?;
    crate::wait::until("the end of the session", SETUP_LIMIT, || listed(false))?;
    ensure(scenario.folder().join("used").exists(), || "the password was not checked".into())?;
    Ok(String::new())
}

/// A server accepts the tokens of another one with the same `auth-gen-token-secret`, of which one is adit and one
/// openvpn. The client, which is of the second server's kind, moves from one to the other by its token alone.
pub(super) fn token_of_another_server(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let folder = scenario.folder();
    with_check(scenario, &mut configs, &format!("echo >> $OUT/calls\n{RIGHT}"))?;
    let secret = folder.join("tokens.key");
    run("openvpn", &["--genkey", "auth-token", text(&secret)])?;
    configs.server(&format!(
        "auth-gen-token 600 120\nauth-gen-token-secret {}\nreneg-sec 10",
        secret.display()
    ));
    configs.client(&format!("remote {} 1195", End::Server.outer(false)));
    configs.client("connect-timeout 5\nconnect-retry 1 2\nreneg-sec 0");
    let other = configs
        .server
        .replace("port 1194", "port 1195")
        .replace("10.88.0.0", "10.89.0.0")
        .replace("fd88::", "fd89::");
    let path = folder.join("second.conf");
    fs::write(&path, other)?;
    let mut tunnel = scenario.tunnel(&configs)?;
    let second = scenario.client.command(&tunnel.pair.server, &path);
    let mut second = Daemon::spawn("second server", second)?;
    second.wait_for(READY, SETUP_LIMIT)?;
    tunnel.server.stop()?;
    tunnel.client.signal(Signal::SIGUSR1)?;
    tunnel
        .client
        .wait_for_nth(READY, 2, MOVED)
        .map_err(|f| format!("{}\n{}", f.0, second.failure("meanwhile").0))?;
    ping_until(&tunnel.pair.client, "10.89.0.1".parse().context("an address")?, REKEYED)?;
    // The token that the second server made is accepted in its renegotiations.
    second.wait_for_nth(HANDSHAKE, 3, REKEYED)?;
    ping_until(&tunnel.pair.client, "10.89.0.1".parse().context("an address")?, REKEYED)?;
    let calls = fs::read_to_string(folder.join("calls"))?;
    ensure(calls.lines().count() == 1, || second.failure("the password was checked again").0)?;
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
