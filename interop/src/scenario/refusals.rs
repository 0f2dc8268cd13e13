//! Peers that must not come in, and that are told or shown why.

use std::time::Duration;

use super::Stage;
use crate::cell::{Configs, READY, SETUP, dial, inner_of, serve};
use crate::failure::{Context, Result, ensure};
use crate::net::Pair;
use crate::peer::Program;
use crate::process::Daemon;

const PATIENCE: Duration = Duration::from_secs(15);
/// How openvpn begins its refusals.
const STOCK: &[&str] = &["verify error", "verify x509name error", "verify eku error", "tls error"];

/// Who refuses.
enum Judge {
    Server,
    Client,
}

/// The tunnel must not come up; the judge says one of `reasons` (lower case) if it is adit.
fn refuse(stage: &Stage<'_>, configs: &Configs, judge: &Judge, reasons: &[&str]) -> Result<String> {
    let pair = Pair::new()?;
    let mut server = serve(&pair, stage.folder(), configs, stage.server)?;
    server.wait_for(READY, SETUP)?;
    let mut client = dial(&pair, stage.folder(), configs, stage.client)?;
    let (program, daemon) = match judge {
        Judge::Server => (stage.server, &mut server),
        Judge::Client => (stage.client, &mut client),
    };
    let line = match program {
        Program::Adit(_) => daemon.wait_for_any(reasons, PATIENCE)?,
        // openvpn says it in words of its own; all of them have this in common.
        _ => daemon.wait_for_any(STOCK, PATIENCE)?,
    };
    std::thread::sleep(Duration::from_millis(1500));
    let admitted = inner_of(&pair.client).is_ok();
    ensure(!admitted && client.count(READY) == 0, || {
        format!("{}\n{}", client.failure("came in"), server.failure("let it in"))
    })?;
    server.stop()?;
    Ok(line.chars().take(160).collect())
}

/// Gives the client another certificate.
fn with_client(stage: &Stage<'_>, name: &str) -> Configs {
    let mut configs = stage.configs();
    configs.client = configs
        .client
        .replace("/client.crt", &format!("/{name}.crt"))
        .replace("/client.key", &format!("/{name}.key"));
    configs
}

pub(super) fn client_expired(stage: &Stage<'_>) -> Result<String> {
    // A client may also notice by itself and not even dial; so may adit.
    let configs = with_client(stage, "expired");
    refuse(stage, &configs, &Judge::Server, &["expired"])
}

pub(super) fn client_of_the_future(stage: &Stage<'_>) -> Result<String> {
    let configs = with_client(stage, "future");
    refuse(stage, &configs, &Judge::Server, &["is valid from 2040"])
}

pub(super) fn client_of_another_authority(stage: &Stage<'_>) -> Result<String> {
    let configs = with_client(stage, "stranger");
    refuse(stage, &configs, &Judge::Server, &["same ca"])
}

pub(super) fn client_revoked(stage: &Stage<'_>) -> Result<String> {
    let mut configs = with_client(stage, "revoked");
    configs.server(&format!("crl-verify {}", stage.pki("crl.pem")));
    refuse(stage, &configs, &Judge::Server, &["revoked"])
}

pub(super) fn server_of_another_name(stage: &Stage<'_>) -> Result<String> {
    let mut configs = stage.configs();
    configs.client = configs
        .client
        .replace("verify-x509-name server name", "verify-x509-name other.example name");
    refuse(stage, &configs, &Judge::Client, &["other.example"])
}

/// A client's certificate that serves: what `remote-cert-tls` is there for.
pub(super) fn server_without_server_usage(stage: &Stage<'_>) -> Result<String> {
    let mut configs = stage.configs();
    configs.server =
        configs.server.replace("/server.crt", "/client.crt").replace("/server.key", "/client.key");
    configs.client = configs.client.replace("verify-x509-name server name", "");
    refuse(stage, &configs, &Judge::Client, &["serverauth", "server authentication", "key usage"])
}

/// Another tls-crypt key: the server says nothing to a stranger, and the client says that no one answers.
pub(super) fn another_wrapping_key(stage: &Stage<'_>) -> Result<String> {
    let mut configs = stage.configs();
    let other = stage.folder().join("other.key");
    crate::process::run("openvpn", &["--genkey", "secret", &other.display().to_string()])?;
    let line = configs.client.lines().find(|line| line.starts_with("tls-crypt "));
    let line = line.context("no tls-crypt in the config")?.to_owned();
    configs.client = configs.client.replace(&line, &format!("tls-crypt {}", other.display()));
    configs.client("hand-window 5\nserver-poll-timeout 5\nconnect-retry 1 1");
    let pair = Pair::new()?;
    let mut server = serve(&pair, stage.folder(), &configs, stage.server)?;
    server.wait_for(READY, SETUP)?;
    let mut capture = Daemon::spawn("tcpdump", pair.tcpdump())?;
    capture.wait_for("listening on", Duration::from_secs(5))?;
    let client = dial(&pair, stage.folder(), &configs, stage.client)?;
    let said = client.wait_for_any(
        &["tls key negotiation failed", "no answer", "did not answer", "timed out", "timeout"],
        PATIENCE,
    )?;
    let answers = capture.count("192.0.2.1.1194 > ");
    ensure(answers == 0, || capture.failure("the server answered a stranger").0)?;
    Ok(said.chars().take(160).collect())
}

/// What a plain `openssl x509 -req` makes on older systems. openvpn takes it; adit says how to make it again.
pub(super) fn client_of_version_1(stage: &Stage<'_>) -> Result<String> {
    refuse(stage, &with_client(stage, "v1"), &Judge::Server, &["version 1", "x.509 v1"])
}
