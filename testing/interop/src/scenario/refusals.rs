//! Tests of peers that must be refused, and of the reason that each end reports.

use std::fs;
use std::time::Duration;

use super::Scenario;
use super::server_hooks::{SOON, meanwhile};
use crate::case::{Configs, READY, SETUP_LIMIT, dial, inner_addrs, serve};
use crate::failure::{Context, Result, ensure};
use crate::net::Pair;
use crate::peer::Program;
use crate::process::{Daemon, run};

const TIMEOUT: Duration = Duration::from_secs(15);
/// The beginnings of openvpn's refusals.
const OPENVPN: &[&str] =
    &["verify error", "verify x509name error", "verify eku error", "tls error"];

/// The end that refuses.
enum Refuser {
    Server,
    Client,
}

/// Checks that the tunnel does not come up; the refuser logs one of `reasons` (lower case) if it is adit.
fn refuse(
    scenario: &Scenario<'_>,
    configs: &Configs,
    refuser: &Refuser,
    reasons: &[&str],
) -> Result<String> {
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, scenario.folder(), configs, scenario.client)?;
    let (program, daemon) = match refuser {
        Refuser::Server => (scenario.server, &mut server),
        Refuser::Client => (scenario.client, &mut client),
    };
    let line = match program {
        Program::Adit(_) => daemon.wait_for_any(reasons, TIMEOUT)?,
        // openvpn's refusals have different texts, but share this part.
        _ => daemon.wait_for_any(OPENVPN, TIMEOUT)?,
    };
    std::thread::sleep(Duration::from_millis(1500));
    let admitted = inner_addrs(&pair.client).is_ok();
    ensure(!admitted && client.count(READY) == 0, || {
        format!("{}\n{}", client.failure("came in"), server.failure("let it in"))
    })?;
    server.stop()?;
    Ok(line.chars().take(160).collect())
}

/// Gives the client another certificate.
fn with_client(scenario: &Scenario<'_>, name: &str) -> Configs {
    let mut configs = scenario.configs();
    configs.client = configs
        .client
        .replace("/client.crt", &format!("/{name}.crt"))
        .replace("/client.key", &format!("/{name}.key"));
    configs
}

pub(super) fn client_expired(scenario: &Scenario<'_>) -> Result<String> {
    // A client may also notice this on its own and not dial at all, and so may adit.
    let configs = with_client(scenario, "expired");
    refuse(scenario, &configs, &Refuser::Server, &["expired"])
}

pub(super) fn client_of_the_future(scenario: &Scenario<'_>) -> Result<String> {
    let configs = with_client(scenario, "future");
    refuse(scenario, &configs, &Refuser::Server, &["is valid from 2040"])
}

pub(super) fn client_of_another_authority(scenario: &Scenario<'_>) -> Result<String> {
    let configs = with_client(scenario, "stranger");
    refuse(scenario, &configs, &Refuser::Server, &["same ca"])
}

pub(super) fn client_revoked(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = with_client(scenario, "revoked");
    configs.server(&format!("crl-verify {}", scenario.pki("crl.pem")));
    refuse(scenario, &configs, &Refuser::Server, &["revoked"])
}

pub(super) fn server_of_another_name(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.client = configs
        .client
        .replace("verify-x509-name server name", "verify-x509-name other.example name");
    refuse(scenario, &configs, &Refuser::Client, &["other.example"])
}

/// A server presents a client's certificate, which `remote-cert-tls` must detect.
pub(super) fn server_without_server_usage(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server =
        configs.server.replace("/server.crt", "/client.crt").replace("/server.key", "/client.key");
    configs.client = configs.client.replace("verify-x509-name server name", "");
    refuse(
        scenario,
        &configs,
        &Refuser::Client,
        &["serverauth", "server authentication", "key usage"],
    )
}

/// Another tls-crypt key. The server does not answer an unauthenticated sender, and the client reports that there is no
/// answer.
pub(super) fn another_wrapping_key(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let other = scenario.folder().join("other.key");
    run("openvpn", &["--genkey", "secret", &other.display().to_string()])?;
    let line = configs.client.lines().find(|line| line.starts_with("tls-crypt "));
    let line = line.context("no tls-crypt in the config")?.to_owned();
    configs.client = configs.client.replace(&line, &format!("tls-crypt {}", other.display()));
    configs.client("hand-window 5\nserver-poll-timeout 5\nconnect-retry 1 1");
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut capture = Daemon::spawn("tcpdump", pair.tcpdump())?;
    capture.wait_for("listening on", Duration::from_secs(5))?;
    let client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    let said = client.wait_for_any(
        &["tls key negotiation failed", "no answer", "did not answer", "timed out", "timeout"],
        TIMEOUT,
    )?;
    let answers = capture.count("192.0.2.1.1194 > ");
    ensure(answers == 0, || capture.failure("the server answered a stranger").0)?;
    Ok(said.chars().take(160).collect())
}

/// A certificate from a plain `openssl x509 -req` on older systems. openvpn accepts it; adit reports how to create it
/// again.
pub(super) fn client_of_version_1(scenario: &Scenario<'_>) -> Result<String> {
    refuse(scenario, &with_client(scenario, "v1"), &Refuser::Server, &["version 1", "x.509 v1"])
}

/// `crl-verify DIRECTORY dir`: a file with the serial number of a certificate revokes it.
pub(super) fn crl_directory(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let folder = scenario.folder();
    let revoked = folder.join("revoked");
    fs::create_dir(&revoked)?;
    configs.server(&format!("crl-verify {} dir\nuser nobody\ngroup nogroup", revoked.display()));
    let mut tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    tunnel.client.stop()?;
    let certificate = scenario.pki("client.crt");
    let told = run("openssl", &["x509", "-in", &certificate, "-noout", "-text"])?;
    let number = serial(&told).ok_or("no serial number")?;
    fs::write(revoked.join(&number), "")?;
    let mut client = dial(&tunnel.pair, folder, &configs, scenario.client)?;
    let text = ["verify crl: "];
    tunnel.server.wait_for_any(&text, SETUP_LIMIT).map_err(|f| meanwhile(&f.0, &client))?;
    std::thread::sleep(Duration::from_secs(1));
    ensure(client.count(READY) == 0, || client.failure("it was let in").0)?;
    client.signal(nix::sys::signal::Signal::SIGTERM)?;
    client.wait_exit(SOON)?;
    Ok(number)
}

/// Returns the serial number in openssl's text as a decimal number.
pub(super) fn serial(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("Serial Number:")?;
    let (line, rest) = rest.split_once('\n')?;
    if let Some(small) = line.split_whitespace().next() {
        return Some(small.to_owned());
    }
    let hex = rest.lines().next()?.trim().replace(':', "");
    // The number has up to 160 bits.
    let mut digits = vec![0_u8];
    for nibble in hex.chars() {
        let mut carry = nibble.to_digit(16)?;
        for digit in &mut digits {
            carry += u32::from(*digit) * 16;
            *digit = u8::try_from(carry % 10).ok()?;
            carry /= 10;
        }
        while carry > 0 {
            digits.push(u8::try_from(carry % 10).ok()?);
            carry /= 10;
        }
    }
    Some(digits.iter().rev().map(|digit| char::from(b'0' + digit)).collect())
}
