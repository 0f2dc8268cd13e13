//! Keys that are with the management client, or whose password it has.

use std::path::Path;

use super::super::Scenario;
use super::{SOON, Shown, Talk, lines, same};
use crate::case::{READY, SETUP_LIMIT, dial, serve};
use crate::failure::{Context, Result, ensure};
use crate::net::Pair;
use crate::peer::Program;

/// The encrypted key of a client is opened with a password of the management client.
pub(in crate::scenario) fn key_password(scenario: &Scenario<'_>) -> Result<String> {
    let path = scenario.folder().join("management");
    let mut configs = scenario.configs();
    let key = scenario.pki("client.key");
    let sealed = scenario.folder().join("sealed.key");
    let sealed = sealed.display().to_string();
    crate::process::run(
        "openssl",
        &["pkcs8", "-topk8", "-in", &key, "-out", &sealed, "-passout", "pass:open sesame"],
    )?;
    configs.client = configs.client.replace(&key, &sealed);
    configs.client(&format!("management {} unix\nmanagement-query-passwords", path.display()));
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    let mut talk = Talk::connect(&path)?;
    let asked = talk.wait(">PASSWORD:")?;
    ensure(asked == ">PASSWORD:Need 'Private Key' password", || asked.clone())?;
    talk.send("password \"Private Key\" \"open sesame\"")?;
    client.wait_for(READY, SETUP_LIMIT)?;
    client.stop()?;
    // A wrong password ends the client.
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    let mut talk = Talk::connect(&path)?;
    talk.wait(">PASSWORD:Need")?;
    talk.send("password \"Private Key\" wrong")?;
    let refused = talk.wait(">PASSWORD:Verification")?;
    ensure(refused == ">PASSWORD:Verification Failed: 'Private Key'", || refused.clone())?;
    let status = client.wait_exit(SOON)?;
    ensure(!status.success(), || client.failure("it went on").0)?;
    Ok(String::new())
}

/// A client whose key and certificate are with its management client, which signs with the `openssl` command.
pub(in crate::scenario) fn external_key(scenario: &Scenario<'_>) -> Result<String> {
    let of_openvpn = signing_talk(scenario, &Program::OpenVpn, "openvpn")?;
    let of_adit = signing_talk(scenario, scenario.client, "adit")?;
    same(&of_openvpn, &of_adit)?;
    Ok(String::new())
}

fn signing_talk(scenario: &Scenario<'_>, client: &Program, name: &str) -> Result<Shown> {
    let folder = scenario.folder().join(name);
    std::fs::create_dir_all(&folder)?;
    let path = folder.join("management");
    let mut configs = scenario.configs();
    let (cert, key) = (scenario.pki("client.crt"), scenario.pki("client.key"));
    let own = |line: &&str| !line.contains(&cert) && !line.contains(&key);
    configs.client = configs.client.lines().filter(own).map(|line| format!("{line}\n")).collect();
    configs.client(&format!(
        "management {} unix\nmanagement-external-key\nmanagement-external-cert test:hint\n\
         management-hold\ndisable-dco",
        path.display()
    ));
    let pair = Pair::new()?;
    let mut server = serve(&pair, &folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, &folder, &configs, client)?;
    let talked = || -> Result<Shown> {
        let mut shown = Vec::new();
        let mut talk = Talk::connect(&path)?;
        talk.send("version 3")?;
        talk.ask("state on")?;
        shown.extend(lines("pk-sig", talk.ask("pk-sig")?));
        talk.ask("hold release")?;
        shown.push(talk.wait(">NEED-CERTIFICATE:")?);
        talk.send("certificate")?;
        let certificate = std::fs::read_to_string(&cert)?;
        let from = certificate.find("-----BEGIN").context("no certificate")?;
        for line in certificate[from..].lines() {
            talk.send(line)?;
        }
        talk.send("END")?;
        shown.push(talk.wait("SUCCESS: ")?);
        let asked = talk.wait(">PK_SIGN:")?;
        let (data, algorithm) = asked
            .strip_prefix(">PK_SIGN:")
            .and_then(|rest| rest.split_once(','))
            .context("a request to sign has no algorithm")?;
        shown.push(algorithm.to_owned());
        talk.send("pk-sig")?;
        for line in sign(&folder, &key, data)?.lines() {
            talk.send(line)?;
        }
        talk.send("END")?;
        shown.push(talk.wait("SUCCESS: ")?);
        talk.wait_state("CONNECTED")?;
        Ok(shown)
    };
    let shown = talked()
        .map_err(|e| format!("{name}: {e}\n{}\n{}", client.failure(""), server.failure("")))?;
    client.stop()?;
    Ok(shown)
}

/// Signs a digest in base64 by an EC key. Returns base64.
fn sign(folder: &Path, key: &str, data: &str) -> Result<String> {
    let path = |name: &str| folder.join(name).display().to_string();
    std::fs::write(path("data.base64"), format!("{data}\n"))?;
    let (data, signature) = (path("data"), path("signature"));
    let run = |args: &[&str]| crate::process::run("openssl", args);
    run(&["base64", "-d", "-A", "-in", &path("data.base64"), "-out", &data])?;
    run(&["pkeyutl", "-sign", "-inkey", key, "-in", &data, "-out", &signature])?;
    run(&["base64", "-in", &signature])
}
