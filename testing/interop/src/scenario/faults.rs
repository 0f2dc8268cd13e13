//! Tests that operator mistakes and machine faults lead to a message that says what to do, and to the right exit code.

use std::fs;
use std::process::Command;
use std::time::Duration;

use super::{Scenario, ScenarioFn};
use crate::case::Configs;
use crate::failure::{Result, ensure};
use crate::net::Pair;
use crate::process::{Daemon, command_line};

/// The exit code for usage and configuration, as in openvpn.
const OPERATOR: i32 = 1;
/// The exit code for everything else.
const FAILED: i32 = 1;

/// The scenarios of this module.
pub(super) const SCENARIOS: &[(&str, ScenarioFn)] = &[
    ("unknown-directive", unknown_directive),
    ("later-directive", later_directive),
    ("bad-number", bad_number),
    ("missing-file", missing_file),
    ("no-config", no_config),
    ("wrong-password", wrong_password),
    ("no-password", no_password),
    ("wrapping-key-of-another-kind", wrapping_key_of_another_kind),
    ("own-certificate-of-version-1", own_certificate_of_version_1),
    ("port-in-use", port_in_use),
    ("no-tun-device", no_tun_device),
    ("tun-device-removed", tun_device_removed),
    ("no-rights", no_rights),
];

/// Runs the command, which must end on its own with this code and log all these words.
fn expect(command: Command, code: i32, words: &[&str]) -> Result<String> {
    let shown = command_line(&command);
    let mut daemon = Daemon::spawn("adit", command)?;
    let status = daemon.wait_exit(Duration::from_secs(15))?;
    // The last lines may still be in the pipe.
    std::thread::sleep(Duration::from_millis(100));
    let said = daemon.log();
    let lower = said.to_lowercase();
    for word in words {
        ensure(lower.contains(&word.to_lowercase()), || {
            format!("$ {shown}\nlacks \"{word}\":\n{said}")
        })?;
    }
    ensure(!lower.contains("panicked"), || format!("$ {shown}\n{said}"))?;
    ensure(status.code() == Some(code), || {
        format!("$ {shown}\nended with {status}, not {code}:\n{said}")
    })?;
    Ok(said.lines().last().unwrap_or_default().chars().take(160).collect())
}

/// Returns the server's command with this configuration file, in a separate namespace.
fn server(scenario: &Scenario<'_>, pair: &Pair, config: &str) -> Result<Command> {
    let path = scenario.folder().join("server.conf");
    fs::write(&path, config)?;
    Ok(scenario.server.command(&pair.server, &path))
}

/// Returns the client's command with this configuration file, in a separate namespace.
fn client(scenario: &Scenario<'_>, pair: &Pair, config: &str) -> Result<Command> {
    let path = scenario.folder().join("client.conf");
    fs::write(&path, config)?;
    Ok(scenario.client.command(&pair.client, &path))
}

/// Returns the line number, from 1, of the last line of a configuration.
fn last_line(config: &str) -> String {
    format!(":{}", config.lines().count())
}

fn unknown_directive(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server("keepalve 10 60");
    let line = format!("server.conf{}", last_line(&configs.server));
    let pair = Pair::new()?;
    expect(server(scenario, &pair, &configs.server)?, OPERATOR, &[&line, "keepalve"])
}

/// A directive that `openvpn` supports and adit does not is refused by name, never ignored.
fn later_directive(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server("client-nat snat 10.88.0.0 255.255.255.0 10.99.0.0");
    let line = format!("server.conf{}", last_line(&configs.server));
    let pair = Pair::new()?;
    expect(server(scenario, &pair, &configs.server)?, OPERATOR, &[&line, "client-nat"])
}

fn bad_number(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server("max-clients many");
    let line = format!("server.conf{}", last_line(&configs.server));
    let pair = Pair::new()?;
    expect(server(scenario, &pair, &configs.server)?, OPERATOR, &[&line, "max-clients", "many"])
}

fn missing_file(scenario: &Scenario<'_>) -> Result<String> {
    let Configs { server: text, .. } = scenario.configs();
    let text = text.replace("/server.crt", "/nowhere.crt");
    let pair = Pair::new()?;
    expect(server(scenario, &pair, &text)?, OPERATOR, &["cert", "nowhere.crt"])
}

fn no_config(scenario: &Scenario<'_>) -> Result<String> {
    let pair = Pair::new()?;
    let path = scenario.folder().join("nothing.conf");
    expect(scenario.server.command(&pair.server, &path), OPERATOR, &["nothing.conf"])
}

fn wrong_password(scenario: &Scenario<'_>) -> Result<String> {
    let password = scenario.folder().join("password");
    fs::write(&password, "guess\n")?;
    let mut configs = scenario.configs();
    configs.client = configs.client.replace("/client.key", "/client-pkcs8.key");
    configs.client(&format!("askpass {}", password.display()));
    let pair = Pair::new()?;
    expect(client(scenario, &pair, &configs.client)?, OPERATOR, &["client-pkcs8.key", "password"])
}

/// Standard input is not a terminal, so the program must not wait for an answer that cannot arrive.
fn no_password(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.client = configs.client.replace("/client.key", "/client-pkcs8.key");
    let pair = Pair::new()?;
    expect(client(scenario, &pair, &configs.client)?, OPERATOR, &["client-pkcs8.key", "askpass"])
}

fn wrapping_key_of_another_kind(scenario: &Scenario<'_>) -> Result<String> {
    let configs = scenario.configs();
    let v2 = scenario.env.pki.wrapping_key("v2-client.key").display().to_string();
    let fixed = scenario.env.pki.wrapping_key("static.key").display().to_string();
    let pair = Pair::new()?;
    let text = configs.client.replace(&fixed, &v2);
    expect(client(scenario, &pair, &text)?, OPERATOR, &["v2-client.key", "Static key"])
}

/// A certificate from a plain `openssl x509 -req` on older systems.
fn own_certificate_of_version_1(scenario: &Scenario<'_>) -> Result<String> {
    let configs = scenario.configs();
    let text = configs.client.replace("/client.crt", "/v1.crt").replace("/client.key", "/v1.key");
    let pair = Pair::new()?;
    expect(client(scenario, &pair, &text)?, OPERATOR, &["v1.crt", "version"])
}

fn port_in_use(scenario: &Scenario<'_>) -> Result<String> {
    let pair = Pair::new()?;
    let mut first = Daemon::spawn("server", server(scenario, &pair, &scenario.configs().server)?)?;
    first.wait_for(crate::case::READY, crate::case::SETUP_LIMIT)?;
    // Use the same port with another network, so that there is no other conflict.
    let text = scenario.configs().server.replace("10.88.", "10.89.").replace("fd88:", "fd89:");
    expect(server(scenario, &pair, &text)?, FAILED, &["1194", "in use"])
}

fn no_tun_device(scenario: &Scenario<'_>) -> Result<String> {
    let pair = Pair::new()?;
    let inner = server(scenario, &pair, &scenario.configs().server)?;
    // /dev/net disappears in a mount namespace of this one command.
    let mut command = Command::new("unshare");
    command.args(["--mount", "sh", "-c", "mount -t tmpfs none /dev/net && exec \"$@\"", "sh"]);
    command.arg(inner.get_program()).args(inner.get_args());
    expect(command, FAILED, &["/dev/net/tun", "modprobe tun"])
}

/// A server whose device is deleted reports it and exits, so that the service manager restarts it.
fn tun_device_removed(scenario: &Scenario<'_>) -> Result<String> {
    let pair = Pair::new()?;
    let mut running =
        Daemon::spawn("server", server(scenario, &pair, &scenario.configs().server)?)?;
    running.wait_for(crate::case::READY, crate::case::SETUP_LIMIT)?;
    pair.server.run("ip", &["link", "delete", "tun0"])?;
    let status = running.wait_exit(Duration::from_secs(5))?;
    let said = running.log();
    ensure(status.code() == Some(FAILED) && said.contains("the TUN device was removed"), || {
        format!("{status}\n{said}")
    })?;
    Ok(said.lines().last().unwrap_or_default().into())
}

fn no_rights(scenario: &Scenario<'_>) -> Result<String> {
    let pair = Pair::new()?;
    let folder = scenario.folder();
    let inner = server(scenario, &pair, &scenario.configs().server)?;
    let mut words = inner.get_args();
    // ip netns exec NAME needs root itself; the privileges are dropped after it.
    let mut command = Command::new(inner.get_program());
    command.args(words.by_ref().take(3));
    command.args([
        "setpriv",
        "--inh-caps=-all",
        "--ambient-caps=-all",
        "--bounding-set=-all",
        "--",
    ]);
    command.args(words).current_dir(folder);
    expect(command, FAILED, &["tun", "root"])
}
