//! Keys on tokens of SoftHSM, with the PIN from a management client or from a file.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_testbed::token::{CONFIG, NO_SOFTHSM, PIN, Tokens};

use super::Scenario;
use super::management::{Shown, Talk, lines, same};
use crate::case::{Configs, READY, SETUP_LIMIT, inner_addrs};
use crate::failure::{Context, Result, ensure};
use crate::file;
use crate::matrix::Wrapping;
use crate::net::{Namespace, Pair};
use crate::peer::Program;
use crate::pki::PkiTool;
use crate::process::{Daemon, output, run};
use crate::skip::skip;
use crate::traffic::ping;

const SOON: Duration = Duration::from_secs(20);

/// The label of the token, and the id of its key.
const OFFICE: &str = "office";
const ID: &str = "01";

/// An end whose key is on a token.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Holder {
    Client,
    Server,
}

/// A token and the configurations of a tunnel of which one end has its key there.
struct Setup {
    store: Tokens,
    folder: PathBuf,
    configs: Configs,
    holder: Holder,
    /// The path of the management interface of that end.
    interface: PathBuf,
}

impl Setup {
    /// Puts the key of an end on a token. `None` without SoftHSM.
    fn new(
        scenario: &Scenario<'_>,
        name: &str,
        holder: Holder,
        pki_tool: PkiTool,
    ) -> Result<Option<Self>> {
        let folder = scenario.folder().join(name);
        fs::create_dir_all(&folder)?;
        let Some(store) = Tokens::new(&folder)? else {
            skip("tokens", NO_SOFTHSM);
            return Ok(None);
        };
        let end = if holder == Holder::Client { "client" } else { "server" };
        let pki = &scenario.env.pki;
        let [key, cert] = ["key", "crt"].map(|kind| pki.file(pki_tool, &format!("{end}.{kind}")));
        store.initialize(OFFICE)?;
        store.import(OFFICE, ID, (&key, &cert), false)?;
        let mut configs = Configs::new(pki, pki_tool, false);
        configs.wrap(pki, Wrapping::TlsCrypt);
        let own = |line: &&str| !line.contains(&text(&cert)) && !line.contains(&text(&key));
        let lines = match holder {
            Holder::Client => &mut configs.client,
            Holder::Server => &mut configs.server,
        };
        *lines = lines.lines().filter(own).map(|line| format!("{line}\n")).collect();
        let interface = folder.join("management");
        Ok(Some(Self { store, folder, configs, holder, interface }))
    }

    /// Adds lines to the file of the end with the token.
    fn add(&mut self, lines: &str) {
        match self.holder {
            Holder::Client => self.configs.client(lines),
            Holder::Server => self.configs.server(lines),
        }
    }

    fn add_module(&mut self, module: &Path) {
        self.add(&format!("pkcs11-providers {}", module.display()));
    }

    fn add_management(&mut self) {
        let path = self.interface.display().to_string();
        self.add(&format!("management {path} unix\nmanagement-query-passwords"));
    }

    /// Writes the file of an end and starts its program.
    fn start(&self, end: Holder, program: &Program, namespace: &Namespace) -> Result<Daemon> {
        let (name, text) = match end {
            Holder::Client => ("client", &self.configs.client),
            Holder::Server => ("server", &self.configs.server),
        };
        let path = self.folder.join(format!("{name}.conf"));
        fs::write(&path, text)?;
        let mut command = program.command(namespace, &path);
        command.env(CONFIG, self.store.config());
        Daemon::spawn(&format!("{name} ({})", program.label()), command)
    }

    /// Returns the id of the only certificate, as a program prints it.
    fn id(&self, program: &Program, namespace: &Namespace) -> Result<String> {
        let shown = show(program, namespace, &self.store, &[])?;
        let line = shown.lines().find_map(|line| line.trim().strip_prefix("Serialized id:"));
        Ok(line.context("no id is shown")?.trim().to_owned())
    }
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

/// Returns what `--show-pkcs11-ids` prints.
fn show(program: &Program, namespace: &Namespace, store: &Tokens, more: &[&str]) -> Result<String> {
    let mut words = vec!["--show-pkcs11-ids".into(), store.module().into_os_string()];
    words.extend(more.iter().map(Into::into));
    let mut command = program.command_with(namespace, &words);
    command.env(CONFIG, store.config());
    output(command)
}

/// The ids that adit prints are those that openvpn prints, whatever the label, and without authorities.
pub(super) fn ids(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder();
    let Some(store) = Tokens::new(folder)? else {
        skip("tokens/ids", NO_SOFTHSM);
        return Ok("SKIPPED".into());
    };
    let pki = |name: &str| scenario.env.pki.file(PkiTool::OpenSslEc, name);
    let pair = |name: &str| (pki(&format!("{name}.key")), pki(&format!("{name}.crt")));
    for (label, id, name) in [
        (OFFICE, ID, "client"),
        (" !\"#$%&'()*+,-./0123456789:;<=>", "0a1b", "server"),
        ("?@[\\]^_`{|}~ \u{e9}", "ff", "stranger"),
    ] {
        store.initialize(label)?;
        let (key, cert) = pair(name);
        store.import(label, id, (&key, &cert), false)?;
    }
    let (key, cert) = pair("ca");
    store.import(OFFICE, "05", (&key, &cert), false)?;
    let pair = Pair::new()?;
    let blocks = |program: &Program| -> Result<Vec<String>> {
        let shown = show(program, &pair.client, &store, &[])?;
        let blocks = shown.split("\n\n").filter(|block| block.starts_with("Certificate"));
        let mut blocks: Vec<String> = blocks.map(|block| block.trim_end().to_owned()).collect();
        blocks.sort();
        Ok(blocks)
    };
    let (of_openvpn, of_adit) = (blocks(&Program::OpenVpn)?, blocks(scenario.client)?);
    ensure(of_openvpn.len() == 3, || format!("openvpn shows {of_openvpn:#?}"))?;
    same(&of_openvpn, &of_adit)?;
    Ok(format!("{} ids", of_adit.len()))
}

/// Tunnels of which one end has its RSA or EC key on a token, with TLS 1.3 and 1.2.
fn tunnels(scenario: &Scenario<'_>, holder: Holder) -> Result<String> {
    for (number, (pki_tool, version)) in [
        (PkiTool::OpenSslEc, "1.3"),
        (PkiTool::OpenSslEc, "1.2"),
        (PkiTool::EasyRsa, "1.3"),
        (PkiTool::EasyRsa, "1.2"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("tunnel-{number}");
        let Some(mut setup) = Setup::new(scenario, &name, holder, pki_tool)? else {
            return Ok("SKIPPED".into());
        };
        let pair = Pair::new()?;
        let id = setup.id(&Program::OpenVpn, &pair.client)?;
        setup.add_module(&setup.store.module());
        setup.add(&format!("pkcs11-id '{id}'"));
        setup.add_management();
        setup.configs.both(&format!("tls-version-min {version}\ntls-version-max {version}"));
        let tunnel = tunnel(scenario, &setup, &pair);
        tunnel.map_err(|e| format!("{pki_tool:?} with TLS {version}: {e}"))?;
    }
    Ok(String::new())
}

/// Starts both ends, and enters the PIN by management.
fn tunnel(scenario: &Scenario<'_>, setup: &Setup, pair: &Pair) -> Result<()> {
    let mut server = setup.start(Holder::Server, scenario.server, &pair.server)?;
    let enter = || -> Result<Talk> {
        let mut talk = Talk::connect(&setup.interface)?;
        let asked = talk.wait(">PASSWORD:")?;
        ensure(asked == ">PASSWORD:Need 'office token' password", || asked.clone())?;
        talk.send(&format!("password \"office token\" {PIN}"))?;
        talk.wait("SUCCESS: 'office token' password entered")?;
        Ok(talk)
    };
    let with_log = |daemon: &Daemon, failure: crate::failure::Failure| {
        crate::failure::Failure(format!("{failure}\n{}", daemon.failure("meanwhile")))
    };
    // openvpn asks for the PIN during the first handshake.
    let early = setup.holder == Holder::Server && matches!(scenario.server, Program::Adit(_));
    let _early = if early { Some(enter().map_err(|e| with_log(&server, e))?) } else { None };
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = setup.start(Holder::Client, scenario.client, &pair.client)?;
    let _late = if early { None } else { Some(enter().map_err(|e| with_log(&client, e))?) };
    client.wait_for(READY, SETUP_LIMIT).map_err(|e| with_log(&server, e))?;
    let to = inner_addrs(&pair.server)?.v4;
    ensure(ping(&pair.client, to, 56, 4)? == 4, || "pings are lost".to_owned())?;
    client.stop()?;
    server.stop()?;
    Ok(())
}

/// A client whose key is on a token.
pub(super) fn client(scenario: &Scenario<'_>) -> Result<String> {
    tunnels(scenario, Holder::Client)
}

/// A server whose key is on a token.
pub(super) fn server(scenario: &Scenario<'_>) -> Result<String> {
    tunnels(scenario, Holder::Server)
}

/// A server that has dropped its privileges signs with the PIN in a file, and in each renegotiation.
pub(super) fn unprivileged(scenario: &Scenario<'_>) -> Result<String> {
    // openvpn does not read a PIN from a file.
    let Program::Adit(_) = scenario.server else { return Ok("adit alone".into()) };
    let setup = Setup::new(scenario, "unprivileged", Holder::Server, PkiTool::OpenSslEc)?;
    let Some(mut setup) = setup else { return Ok("SKIPPED".into()) };
    let pair = Pair::new()?;
    let id = setup.id(scenario.server, &pair.server)?;
    let pin = setup.folder.join("pin");
    file::write(&pin, format!("{PIN}\n"), 0o600)?;
    run("chmod", &["-R", "a+rwX", &text(&setup.folder.join("tokens"))])?;
    for folder in [scenario.folder(), &setup.folder] {
        file::set_mode(folder, 0o777)?;
    }
    setup.add_module(&setup.store.module());
    setup.add(&format!(
        "pkcs11-id '{id}'\naskpass {}\nuser nobody\ngroup nogroup\nreneg-sec 5",
        pin.display()
    ));
    let mut server = setup.start(Holder::Server, scenario.server, &pair.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let host = run("pgrep", &["-x", "-P", &server.pid().to_string(), "adit-tokens"])?;
    let status = fs::read_to_string(format!("/proc/{}/status", host.trim()))?;
    let uids = status.lines().find(|line| line.starts_with("Uid:")).unwrap_or_default();
    ensure(uids.split_whitespace().skip(1).all(|uid| uid != "0"), || uids.to_owned())?;
    let mut client = setup.start(Holder::Client, scenario.client, &pair.client)?;
    client
        .wait_for(READY, SETUP_LIMIT)
        .map_err(|e| format!("{e}\n{}", server.failure("meanwhile")))?;
    crate::wait::until("the key is negotiated again", SETUP_LIMIT, || {
        Ok(server.count("TLS: soft reset") > 0)
    })
    .map_err(|e| format!("{e}\n{}", server.failure("meanwhile")))?;
    let to = inner_addrs(&pair.server)?.v4;
    ensure(ping(&pair.client, to, 56, 4)? == 4, || "pings are lost".to_owned())?;
    Ok(String::new())
}

/// The server's token blocks: handshakes fail, traffic of other clients goes on, and all works again with the token.
pub(super) fn blocks(scenario: &Scenario<'_>) -> Result<String> {
    let Program::Adit(_) = scenario.server else { return Ok("adit alone".into()) };
    let setup = Setup::new(scenario, "blocks", Holder::Server, PkiTool::OpenSslEc)?;
    let Some(mut setup) = setup else { return Ok("SKIPPED".into()) };
    let pair = Pair::new()?;
    let id = setup.id(scenario.server, &pair.server)?;
    let pin = setup.folder.join("pin");
    fs::write(&pin, PIN)?;
    let module = setup.store.faulty_module()?;
    setup.add_module(&module);
    setup.add(&format!("pkcs11-id '{id}'\naskpass {}\nduplicate-cn", pin.display()));
    setup.configs.client("hand-window 8\nconnect-retry 1 1");
    let mut server = setup.start(Holder::Server, scenario.server, &pair.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut first = setup.start(Holder::Client, scenario.client, &pair.client)?;
    first
        .wait_for(READY, SETUP_LIMIT)
        .map_err(|e| format!("{e}\n{}", server.failure("meanwhile")))?;
    setup.store.fault("block", true)?;
    setup.configs.client = setup.configs.client.replace("dev tun", "dev tun1");
    let mut second = setup.start(Holder::Client, scenario.client, &pair.client)?;
    let to = inner_addrs(&pair.server)?.v4;
    ensure(ping(&pair.client, to, 56, 4)? == 4, || "pings are lost".to_owned())?;
    server.wait_for("no signature: the token did not answer within 10 s", SETUP_LIMIT)?;
    ensure(second.count(READY) == 0, || second.failure("it is connected").0)?;
    setup.store.fault("block", false)?;
    second
        .wait_for(READY, SETUP_LIMIT)
        .map_err(|e| format!("{e}\n{}", server.failure("meanwhile")))?;
    ensure(first.count("Restart pause") == 0, || first.failure("it connected again").0)?;
    Ok(String::new())
}

/// `adit connect` uses a token too.
pub(super) fn connect(scenario: &Scenario<'_>) -> Result<String> {
    let Program::Adit(adit) = scenario.client else { return Ok("adit alone".into()) };
    let setup = Setup::new(scenario, "connect", Holder::Client, PkiTool::OpenSslEc)?;
    let Some(mut setup) = setup else { return Ok("SKIPPED".into()) };
    let pair = Pair::new()?;
    let id = setup.id(scenario.client, &pair.client)?;
    let pin = setup.folder.join("pin");
    fs::write(&pin, PIN)?;
    setup.add_module(&setup.store.module());
    setup.add(&format!("pkcs11-id '{id}'\naskpass {}", pin.display()));
    let mut server = setup.start(Holder::Server, scenario.server, &pair.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let profile = setup.folder.join("profile.ovpn");
    fs::write(&profile, &setup.configs.client)?;
    let mut command = pair.client.command(&text(adit));
    command.args(["connect", "--check"]).arg(&profile).env(CONFIG, setup.store.config());
    output(command).map_err(|e| format!("{e}\n{}", server.failure("meanwhile")))?;
    Ok(String::new())
}

/// The management client chooses the certificate and enters the PIN, in the same conversation as with openvpn.
pub(super) fn management(scenario: &Scenario<'_>) -> Result<String> {
    let setup = Setup::new(scenario, "chosen", Holder::Client, PkiTool::OpenSslEc)?;
    let Some(mut setup) = setup else { return Ok("SKIPPED".into()) };
    setup.add_module(&setup.store.module());
    setup.add("pkcs11-id-management\ndisable-dco");
    setup.add_management();
    let pair = Pair::new()?;
    let mut server = setup.start(Holder::Server, scenario.server, &pair.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let talked = |program: &Program| -> Result<Shown> {
        let mut client = setup.start(Holder::Client, program, &pair.client)?;
        let shown = choose(&setup.interface).map_err(|e| format!("{e}\n{}", client.failure("")))?;
        client.wait_for(READY, SETUP_LIMIT)?;
        client.stop()?;
        Ok(shown)
    };
    same(&talked(&Program::OpenVpn)?, &talked(scenario.client)?)?;
    // A token that is not there is asked for.
    let other = "SoftHSM\\x20project/SoftHSM\\x20v2/0000000000000000/home/01";
    setup.configs.client =
        setup.configs.client.replace("-id-management", &format!("-id '{other}'"));
    let missing = |program: &Program| -> Result<Shown> {
        let mut client = setup.start(Holder::Client, program, &pair.client)?;
        let mut talk = Talk::connect(&setup.interface)?;
        let mut shown = Vec::new();
        for answer in ["ok", "cancel"] {
            shown.push(talk.wait(">NEED-OK:")?);
            let command = format!("needok token-insertion-request {answer}");
            shown.extend(lines(&command, talk.ask(&command)?));
        }
        let status = client.wait_exit(SOON)?;
        ensure(!status.success(), || client.failure("it ended as if nothing had happened").0)?;
        Ok(shown)
    };
    same(&missing(&Program::OpenVpn)?, &missing(scenario.client)?)?;
    Ok(String::new())
}

fn choose(interface: &Path) -> Result<Shown> {
    let mut talk = Talk::connect(interface)?;
    let mut shown = vec![talk.wait(">NEED-STR:")?];
    talk.send("pkcs11-id-count")?;
    shown.push(talk.wait(">PKCS11ID-COUNT:")?);
    for number in ["0", "7"] {
        talk.send(&format!("pkcs11-id-get {number}"))?;
        shown.push(talk.wait(">PKCS11ID-ENTRY:")?);
    }
    let entry = shown.get(2).context("no entry")?;
    let id = entry.split('\'').nth(3).context("no id")?.to_owned();
    for command in [
        "needstr other x".to_owned(),
        "needok pkcs11-id-request ok".to_owned(),
        format!("needstr pkcs11-id-request \"{}\"", id.replace('\\', "\\\\")),
    ] {
        shown.extend(lines(&command, talk.ask(&command)?));
    }
    for pin in ["9999", PIN] {
        shown.push(talk.wait(">PASSWORD:")?);
        let command = format!("password \"office token\" {pin}");
        shown.extend(lines(&command, talk.ask(&command)?));
    }
    Ok(shown)
}

/// The module crashes during a signature: the client ends with a failure.
pub(super) fn crash(scenario: &Scenario<'_>) -> Result<String> {
    let setup = Setup::new(scenario, "crash", Holder::Client, PkiTool::OpenSslEc)?;
    let Some(mut setup) = setup else { return Ok("SKIPPED".into()) };
    let pair = Pair::new()?;
    let id = setup.id(&Program::OpenVpn, &pair.client)?;
    let module = setup.store.faulty_module()?;
    setup.add_module(&module);
    setup.add(&format!("pkcs11-id '{id}'"));
    setup.add_management();
    setup.store.fault("crash", true)?;
    let mut server = setup.start(Holder::Server, scenario.server, &pair.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = setup.start(Holder::Client, scenario.client, &pair.client)?;
    let mut talk = Talk::connect(&setup.interface)?;
    talk.wait(">PASSWORD:Need 'office token' password")?;
    talk.send(&format!("password \"office token\" {PIN}"))?;
    let status = client.wait_exit(SETUP_LIMIT)?;
    ensure(!status.success(), || client.failure("it ended as if nothing had happened").0)?;
    ensure(client.count(READY) == 0, || client.failure("it was let in").0)?;
    if matches!(scenario.client, Program::Adit(_)) {
        client.wait_for("a PKCS#11 module has crashed", SOON)?;
    }
    Ok(String::new())
}
