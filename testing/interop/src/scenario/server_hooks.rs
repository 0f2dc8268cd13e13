//! Tests of the programs that a server runs for its clients.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{IpAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use super::variables::{Variables, read_dumps, same};
use super::{Scenario, ping_until};
use crate::case::{Configs, READY, SETUP_LIMIT, Tunnel, dial, inner_addrs, rekeys, serve};
use crate::failure::{Context, Result, ensure};
use crate::file;
use crate::matrix::Wrapping;
use crate::net::{Pair, Star};
use crate::peer::Program;
use crate::pki::PkiTool;
use crate::process::{Daemon, run};
use crate::wait::{ScaledInstant, until};

pub(super) const SOON: Duration = Duration::from_secs(10);

/// The password, which must not be in any log.
pub(super) const PASSWORD: &str = "open $esame; '\"x";

/// Writes a program. Its text follows `#!/bin/sh`; `$OUT` is the scenario's folder.
pub(super) fn script(scenario: &Scenario<'_>, name: &str, text: &str) -> Result<String> {
    let path = scenario.folder().join(name);
    let out = scenario.folder().display();
    file::write(&path, format!("#!/bin/sh\nOUT='{out}'\n{text}\n"), 0o755)?;
    Ok(path.display().to_string())
}

/// Creates the client's file with a user name and a password. Returns its directive.
pub(super) fn login(scenario: &Scenario<'_>, password: &str) -> Result<String> {
    let path = scenario.folder().join("login");
    file::write(&path, format!("alice\n{password}\n"), 0o600)?;
    Ok(format!("auth-user-pass {}", path.display()))
}

pub(super) fn read(scenario: &Scenario<'_>, name: &str) -> String {
    fs::read_to_string(scenario.folder().join(name)).unwrap_or_default()
}

/// Starts both ends of a connection that is refused, and returns the client's log.
fn refused(scenario: &Scenario<'_>, configs: &Configs, text: &str) -> Result<Daemon> {
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, scenario.folder(), configs, scenario.client)?;
    client.wait_for(text, SETUP_LIMIT).map_err(|f| meanwhile(&f.0, &server))?;
    client.wait_exit(SOON)?;
    ensure(client.count(READY) == 0, || meanwhile(&client.failure("it was let in").0, &server))?;
    ensure(!server.log().contains(PASSWORD), || server.failure("the password is in the log").0)?;
    server.stop()?;
    Ok(server)
}

/// Starts both ends of a connection, exchanges packets and ends it.
fn connected(scenario: &Scenario<'_>, configs: &Configs) -> Result<Daemon> {
    let mut tunnel = scenario.tunnel(configs)?;
    tunnel.ping_all(4)?;
    tunnel.client.stop()?;
    tunnel.server.stop()?;
    let log = tunnel.server.log();
    ensure(!log.contains(PASSWORD), || tunnel.server.failure("the password is in the log").0)?;
    Ok(tunnel.server)
}

pub(super) fn meanwhile(failure: &str, other: &Daemon) -> String {
    format!("{failure}\n{}", other.failure("meanwhile"))
}

/// A program that gets the password in its environment lets the right one in, and no other.
pub(super) fn password_by_env(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let check = script(
        scenario,
        "check",
        "[ $# = 1 ] || exit 3\n[ \"$1\" = argument ] || exit 4\n\
         [ \"$username\" = alice ] && [ \"$password\" = \"$(cat $OUT/right)\" ]",
    )?;
    fs::write(scenario.folder().join("right"), PASSWORD)?;
    configs.server(&format!(
        "script-security 3\nauth-user-pass-verify \"{check} argument\" via-env\nuser nobody\ngroup nogroup"
    ));
    configs.client(&login(scenario, "wrong")?);
    refused(scenario, &configs, "AUTH_FAILED")?;
    login(scenario, PASSWORD)?;
    connected(scenario, &configs)?;
    Ok(String::new())
}

/// A program that gets the password in a file: two lines, for the server's user alone, and gone afterwards.
pub(super) fn password_by_file(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let check = script(
        scenario,
        "check",
        "[ -z \"$password\" ] || exit 5\necho \"$1 $(stat -c %a \"$1\")\" > $OUT/file\n\
         [ \"$(cat \"$1\")\" = \"$(cat $OUT/right)\" ]",
    )?;
    let folder = scenario.folder();
    fs::write(folder.join("right"), format!("alice\n{PASSWORD}\n"))?;
    configs.server(&format!(
        "script-security 2\nauth-user-pass-verify {check} via-file\ntmp-dir {}",
        folder.display()
    ));
    configs.client(&login(scenario, "wrong")?);
    refused(scenario, &configs, "AUTH_FAILED")?;
    login(scenario, PASSWORD)?;
    connected(scenario, &configs)?;
    let told = read(scenario, "file");
    let (path, mode) = told.trim().rsplit_once(' ').ok_or("the program was not run")?;
    ensure(Path::new(path).starts_with(folder) && mode == "600", || {
        format!("the file was {told}")
    })?;
    ensure(!Path::new(path).exists(), || format!("{path} is still there"))?;
    Ok(String::new())
}

/// A program answers three seconds later. Before it does, the client has no options and no tunnel.
pub(super) fn password_deferred(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let check = script(
        scenario,
        "check",
        "(sleep 3; date +%s%N > $OUT/answered; printf 1 > \"$auth_control_file\") >/dev/null 2>&1 &\nexit 2",
    )?;
    configs.server(&format!("script-security 2\nauth-user-pass-verify {check} via-file"));
    configs.client(&login(scenario, PASSWORD)?);
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    // The key exchange is complete, and the client asks for its options.
    client.wait_for("Peer Connection Initiated", SETUP_LIMIT)?;
    let answered = scenario.folder().join("answered");
    while !answered.exists() {
        ensure(client.count("PUSH_REPLY") == 0 && client.count(READY) == 0, || {
            meanwhile(&client.failure("options before the answer").0, &server)
        })?;
        std::thread::sleep(Duration::from_millis(20));
    }
    client.wait_for(READY, SETUP_LIMIT).map_err(|f| meanwhile(&f.0, &server))?;
    ping_until(&pair.client, "10.88.0.1".parse().context("an address")?, SOON)?;
    Ok(String::new())
}

/// A program refuses later, with a text for the user.
pub(super) fn password_deferred_refused(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let check = script(
        scenario,
        "check",
        "(sleep 1; echo 'locked until noon' > \"$auth_failed_reason_file\"; printf 0 > \"$auth_control_file\") \
         >/dev/null 2>&1 &\nexit 2",
    )?;
    configs.server(&format!("script-security 2\nauth-user-pass-verify {check} via-file"));
    configs.client(&login(scenario, PASSWORD)?);
    refused(scenario, &configs, "AUTH_FAILED,locked until noon")?;
    Ok(String::new())
}

/// A program refuses at once, with a text that has control characters.
pub(super) fn password_refused_with_a_text(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let check = script(
        scenario,
        "check",
        "echo 'your licence has expired' > \"$auth_failed_reason_file\"; exit 1",
    )?;
    configs.server(&format!("script-security 2\nauth-user-pass-verify {check} via-file"));
    configs.client(&login(scenario, PASSWORD)?);
    refused(scenario, &configs, "AUTH_FAILED,your licence has expired")?;
    Ok(String::new())
}

/// A one-time password: the program accepts it once, and a token replaces it in renegotiations. With `external-auth`
/// the program decides on each of them, and gets the state of the token.
pub(super) fn token(scenario: &Scenario<'_>) -> Result<String> {
    let check = script(
        scenario,
        "check",
        "echo \"$session_state\" >> $OUT/states\n[ \"$session_state\" = Authenticated ] || mkdir $OUT/used",
    )?;
    for external in [false, true] {
        let mut configs = scenario.configs();
        let tokens = if external { "auth-gen-token 0 external-auth" } else { "auth-gen-token" };
        configs.server(&format!(
            "script-security 2\nauth-user-pass-verify {check} via-file\n{tokens}\nreneg-sec 5\nhand-window 4"
        ));
        configs.client(&login(scenario, PASSWORD)?);
        configs.client("reneg-sec 0");
        let tunnel = scenario.tunnel(&configs)?;
        until("the keys are renegotiated twice", SETUP_LIMIT, || Ok(rekeys(&tunnel.server) >= 2))
            .map_err(|f| meanwhile(&tunnel.server.failure(&f.0).0, &tunnel.client))?;
        tunnel.ping_all(4)?;
        let states = read(scenario, "states");
        let expected = if external { states.lines().nth(2) == Some("Authenticated") } else { true };
        let count = states.lines().count();
        ensure(expected && (external || count == 1), || format!("the program was run: {states}"))?;
        for name in ["states", "used"] {
            let path = scenario.folder().join(name);
            if path.is_dir() { fs::remove_dir(path)? } else { fs::remove_file(path)? }
        }
    }
    Ok(String::new())
}

/// A program asks for a second factor. The client answers it, and another program checks the answer.
pub(super) fn challenge(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let check = script(
        scenario,
        "check",
        "printf '60\\ncrtext\\nCR_TEXT:E,R:code?' > \"$auth_pending_file\"\nexit 2",
    )?;
    let response = script(
        scenario,
        "response",
        "cat \"$1\" > $OUT/answer\n\
         if [ \"$(base64 -d < \"$1\")\" = 123456 ]; then printf 1; else printf 0; fi > \"$auth_control_file\"",
    )?;
    configs.server(&format!(
        "script-security 2\nauth-user-pass-verify {check} via-file\nclient-crresponse {response}"
    ));
    configs.client(&login(scenario, PASSWORD)?);
    configs.client("setenv IV_SSO crtext\npush-peer-info\nmanagement 127.0.0.1 7777");
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    // "123456", "000000"
    for (code, text) in [("MTIzNDU2", READY), ("MDAwMDAw", "AUTH_FAILED")] {
        let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
        client.wait_for("AUTH_PENDING", SETUP_LIMIT).map_err(|f| meanwhile(&f.0, &server))?;
        let answering = pair.client.thread(move || {
            let mut management = TcpStream::connect("127.0.0.1:7777")?;
            management.set_read_timeout(Some(SOON))?;
            writeln!(management, "cr-response {code}")?;
            let mut told = String::new();
            let mut lines = BufReader::new(management);
            while !told.contains("SUCCESS") {
                ensure(lines.read_line(&mut told)? > 0, || format!("not taken: {told}"))?;
            }
            Ok(())
        })?;
        answering.join().map_err(|_| "the answering thread panicked")??;
        client.wait_for(text, SETUP_LIMIT).map_err(|f| meanwhile(&f.0, &server))?;
        let response = read(scenario, "answer");
        ensure(response.trim() == code, || {
            meanwhile(&client.failure(&format!("{response:?} instead of {code}")).0, &server)
        })?;
        client.stop()?;
    }
    Ok(String::new())
}

/// A program writes an address, a route and a network behind the client into the file that is its last argument.
pub(super) fn connect_pushes(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server("script-security 2\nroute 10.50.1.0 255.255.255.0");
    let connect = script(scenario, "connect", &format!("[ $# = 2 ] || exit 3\n{WRITE_SETTINGS}"))?;
    configs.server(&format!("client-connect \"{connect} first\""));
    let tunnel = scenario.tunnel(&configs)?;
    has_settings(&tunnel)
}

const WRITE_SETTINGS: &str = "cat > \"$client_connect_config_file\" <<END\n\
                              ifconfig-push 10.88.0.77 255.255.255.0\niroute 10.50.1.0 255.255.255.0\n\
                              push \"route 10.60.0.0 255.255.0.0\"\nEND";

fn has_settings(tunnel: &Tunnel) -> Result<String> {
    let inner = inner_addrs(&tunnel.pair.client)?;
    ensure(inner.v4.to_string() == "10.88.0.77", || format!("{inner:?}"))?;
    let known = tunnel.pair.client.run("ip", &["route"])?;
    ensure(known.contains("10.60.0.0/16"), || format!("the pushed route is missing: {known}"))?;
    tunnel.ping_all(4)?;
    tunnel.pair.client.run("ip", &["address", "add", "10.50.1.1/24", "dev", "lo"])?;
    ping_until(&tunnel.pair.server, "10.50.1.1".parse().context("an address")?, SOON)?;
    Ok(String::new())
}

/// The same, two seconds after the program has ended.
pub(super) fn connect_deferred(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server("script-security 2\nroute 10.50.1.0 255.255.255.0");
    let later = script(
        scenario,
        "later",
        &format!("sleep 2\n{WRITE_SETTINGS}\nprintf 1 > \"$client_connect_deferred_file\""),
    )?;
    let connect = script(
        scenario,
        "connect",
        &format!("printf 2 > \"$client_connect_deferred_file\"\n{later} >/dev/null 2>&1 &\nexit 0"),
    )?;
    configs.server(&format!("client-connect {connect}"));
    let tunnel = scenario.tunnel(&configs)?;
    has_settings(&tunnel)
}

/// A client is refused: by the exit status of `client-connect`, by its file, later, and by the client's own file. As
/// with openvpn, `client-disconnect` follows, with the address that the client would have had.
pub(super) fn connect_refuses(scenario: &Scenario<'_>) -> Result<String> {
    const LATER: &str = "printf 2 > \"$client_connect_deferred_file\"\n\
        (sleep 1; printf 0 > \"$client_connect_deferred_file\") >/dev/null 2>&1 &";
    const REFUSALS: [(&str, &str); 4] =
        [("", "exit 1"), ("", "echo disable > \"$1\""), ("", LATER), ("disable\n", "exit 0")];
    let folder = scenario.folder();
    let files = folder.join("ccd");
    fs::create_dir_all(&files)?;
    let mut configs = scenario.configs();
    let connect = script(scenario, "connect", "echo connect >> $OUT/calls\n. $OUT/refusal")?;
    let disconnect = script(
        scenario,
        "disconnect",
        "echo \"disconnect $ifconfig_pool_remote_ip\" >> $OUT/calls",
    )?;
    configs.server(&format!(
        "script-security 2\nclient-connect {connect}\nclient-disconnect {disconnect}\nclient-config-dir {}",
        files.display()
    ));
    let calls = |program: &Program| -> Result<Vec<String>> {
        let pair = Pair::new()?;
        let mut server = serve(&pair, folder, &configs, program)?;
        server.wait_for(READY, SETUP_LIMIT)?;
        let mut calls = Vec::new();
        for (file, text) in REFUSALS {
            fs::write(files.join("client"), file)?;
            fs::write(folder.join("refusal"), text)?;
            fs::write(folder.join("calls"), "")?;
            let mut client = dial(&pair, folder, &configs, scenario.client)?;
            client.wait_for("AUTH_FAILED", SETUP_LIMIT).map_err(|f| meanwhile(&f.0, &server))?;
            client.wait_exit(SOON)?;
            ensure(client.count(READY) == 0, || meanwhile(&client.failure("let in").0, &server))?;
            until("client-disconnect is run", SOON, || {
                Ok(read(scenario, "calls").contains("disconnect"))
            })
            .map_err(|f| meanwhile(&f.0, &server))?;
            calls.push(read(scenario, "calls"));
        }
        server.stop()?;
        Ok(calls)
    };
    let (theirs, ours) = (calls(&Program::OpenVpn)?, calls(scenario.server)?);
    ensure(theirs == ours, || format!("openvpn runs {theirs:?}, adit {ours:?}"))?;
    ensure(ours.iter().any(|calls| !calls.starts_with("connect")), || format!("{ours:?}"))?;
    Ok(String::new())
}

/// The end of a session is reported with its traffic and duration: of a client that leaves, and when the server ends.
pub(super) fn disconnect(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let disconnect = script(
        scenario,
        "disconnect",
        "echo \"$common_name $bytes_received $bytes_sent $time_duration $# $script_type\" >> $OUT/left",
    )?;
    configs.server(&format!("script-security 2\nclient-disconnect {disconnect}"));
    let mut tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    std::thread::sleep(Duration::from_millis(1500));
    tunnel.client.stop()?;
    until("client-disconnect is run", SOON, || Ok(!read(scenario, "left").is_empty()))
        .map_err(|f| tunnel.server.failure(&f.0).0)?;
    let told = read(scenario, "left");
    let words: Vec<&str> = told.split_whitespace().collect();
    let number = |place: usize| words.get(place).and_then(|word| word.parse::<u64>().ok());
    let plausible = number(1).is_some_and(|bytes| bytes > 12_000)
        && number(2).is_some_and(|bytes| bytes > 12_000)
        && number(3).is_some_and(|seconds| seconds >= 1);
    ensure(
        words.first() == Some(&"client") && plausible && words[4..] == ["0", "client-disconnect"],
        || format!("implausible: {told}"),
    )?;
    tunnel.client = dial(&tunnel.pair, scenario.folder(), &configs, scenario.client)?;
    tunnel.client.wait_for(READY, SETUP_LIMIT)?;
    tunnel.server.stop()?;
    until("client-disconnect is run at the end", SOON, || {
        Ok(read(scenario, "left").lines().count() == 2)
    })
    .map_err(|f| tunnel.server.failure(&f.0).0)?;
    Ok(told.trim().to_owned())
}

/// Addresses and networks are reported before a client has them and after it has lost them. A network that the program
/// rejects is not routed.
pub(super) fn learn_address(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let files = scenario.folder().join("ccd");
    fs::create_dir_all(&files)?;
    fs::write(
        files.join("client"),
        "iroute 10.50.1.0 255.255.255.0\niroute 10.50.2.0 255.255.255.0\n",
    )?;
    let learn = script(
        scenario,
        "learn",
        "echo \"$script_type $*\" >> $OUT/learned\n[ \"$2\" != 10.50.2.0/24 ]",
    )?;
    configs.server(&format!("script-security 2\nclient-config-dir {}", files.display()));
    configs.server(&format!("learn-address {learn}\nroute 10.50.0.0 255.255.0.0"));
    let mut tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    for address in ["10.50.1.1/24", "10.50.2.1/24"] {
        tunnel.pair.client.run("ip", &["address", "add", address, "dev", "lo"])?;
    }
    let ip = |text: &str| -> Result<IpAddr> { text.parse().context(text) };
    ping_until(&tunnel.pair.server, ip("10.50.1.1")?, SOON)?;
    ensure(crate::traffic::silent(&tunnel.pair.server, ip("10.50.2.1")?)?, || {
        "the rejected network is routed".to_owned()
    })?;
    tunnel.client.stop()?;
    let deleted =
        |address: &str| read(scenario, "learned").contains(&format!("delete {address}\n"));
    until("the addresses are deleted", Duration::from_secs(30), || {
        Ok(deleted("10.88.0.2") && deleted("10.50.1.0/24"))
    })
    .map_err(|f| format!("{f}: {}", read(scenario, "learned")))?;
    let learned = read(scenario, "learned");
    for line in ["add 10.88.0.2 client", "add 10.50.1.0/24 client", "add 10.50.2.0/24 client"] {
        let line = format!("learn-address {line}\n");
        ensure(learned.contains(&line), || format!("{line} is missing: {learned}"))?;
    }
    ensure(!learned.contains("delete 10.50.2.0/24"), || format!("never learned: {learned}"))?;
    Ok(String::new())
}

/// A program checks each certificate, the root's first, and refuses one by its subject.
pub(super) fn tls_verify(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let verify = script(
        scenario,
        "verify",
        "echo \"$1|$2\" >> $OUT/verified\nopenssl x509 -in \"$peer_cert\" -noout -subject >> $OUT/exported\n\
         [ \"$1\" != 0 ] || [ \"$(cat $OUT/allowed)\" = \"$2\" ]",
    )?;
    let folder = scenario.folder();
    configs.server(&format!(
        "script-security 2\ntls-verify {verify}\ntls-export-cert {}",
        folder.display()
    ));
    let allowed = folder.join("allowed");
    fs::write(&allowed, "CN=somebody else")?;
    let pair = Pair::new()?;
    let mut server = serve(&pair, folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, folder, &configs, scenario.client)?;
    // openvpn refuses during the TLS handshake, adit before it accepts the client.
    let refused = server.wait_for_any(&["verify script error"], SETUP_LIMIT);
    refused.map_err(|f| meanwhile(&f.0, &client))?;
    std::thread::sleep(Duration::from_secs(1));
    ensure(client.count(READY) == 0, || client.failure("it was let in").0)?;
    client.signal(nix::sys::signal::Signal::SIGTERM)?;
    client.wait_exit(SOON)?;
    let verified = read(scenario, "verified");
    let subjects: Vec<&str> = verified.lines().take(2).collect();
    let [root, leaf] = subjects.as_slice() else { return Err("it was not run twice".into()) };
    ensure(root.starts_with("1|") && leaf.starts_with("0|"), || {
        format!("not in order: {verified}")
    })?;
    let exported = read(scenario, "exported");
    ensure(exported.lines().nth(1).is_some_and(|line| line.ends_with("CN = client")), || exported)?;
    fs::write(&allowed, leaf.trim_start_matches("0|"))?;
    let mut client = dial(&pair, folder, &configs, scenario.client)?;
    client.wait_for(READY, SETUP_LIMIT).map_err(|f| meanwhile(&f.0, &server))?;
    ping_until(&pair.client, "10.88.0.1".parse().context("an address")?, SOON)?;
    until("the files of the programs are removed", SOON, || {
        let mut names = fs::read_dir(folder)?.filter_map(|entry| Some(entry.ok()?.file_name()));
        Ok(!names.any(|name| name.to_string_lossy().starts_with("openvpn_")))
    })?;
    Ok((*leaf).to_owned())
}

/// A program checks the metadata of the client's own key, and gets nothing but that.
pub(super) fn tls_crypt_v2_verify(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = Configs::new(&scenario.env.pki, PkiTool::OpenSslEc, false);
    configs.wrap(&scenario.env.pki, Wrapping::TlsCryptV2);
    let folder = scenario.folder();
    let key = |name: &str| scenario.env.pki.wrapping_key(name).display().to_string();
    let own = folder.join("own.key");
    run(
        "openvpn",
        &[
            "--tls-crypt-v2",
            &key("v2-server.key"),
            "--genkey",
            "tls-crypt-v2-client",
            &own.display().to_string(),
            // "device 42"
            "ZGV2aWNlIDQy",
        ],
    )?;
    configs.client = configs.client.replace(&key("v2-client.key"), &own.display().to_string());
    let verify = script(
        scenario,
        "verify",
        "env | cut -d= -f1 | sort | tr '\\n' ' ' > $OUT/names\ncp \"$metadata_file\" $OUT/metadata\n\
         [ \"$metadata_type\" = 0 ] && [ \"$(cat \"$metadata_file\")\" = \"$(cat $OUT/allowed)\" ]",
    )?;
    configs.server(&format!("script-security 2\ntls-crypt-v2-verify {verify}"));
    let allowed = folder.join("allowed");
    fs::write(&allowed, "device 43")?;
    let pair = Pair::new()?;
    let mut server = serve(&pair, folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, folder, &configs, scenario.client)?;
    until("the program is run", SOON, || Ok(!read(scenario, "metadata").is_empty()))
        .map_err(|f| meanwhile(&f.0, &server))?;
    std::thread::sleep(Duration::from_secs(1));
    ensure(client.count(READY) == 0, || client.failure("it was let in").0)?;
    client.signal(nix::sys::signal::Signal::SIGTERM)?;
    client.wait_exit(SOON)?;
    // It is refused before TLS begins.
    ensure(client.count("VERIFY OK") == 0, || client.failure("the server answered").0)?;
    ensure(read(scenario, "metadata") == "device 42", || read(scenario, "metadata"))?;
    let names = read(scenario, "names");
    ensure(!names.contains("untrusted_ip"), || format!("more variables than documented: {names}"))?;
    fs::write(&allowed, "device 42")?;
    let mut client = dial(&pair, folder, &configs, scenario.client)?;
    client.wait_for(READY, SETUP_LIMIT).map_err(|f| meanwhile(&f.0, &server))?;
    Ok(names.trim().to_owned())
}

/// A program that takes ten seconds for one client delays no other one.
pub(super) fn slow_program(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    // The first client waits.
    let connect = script(
        scenario,
        "connect",
        "if mkdir $OUT/first 2>/dev/null; then sleep 10; date > $OUT/waited; fi",
    )?;
    configs.server(&format!("script-security 2\nduplicate-cn\nclient-connect {connect}"));
    let star = Star::new(2)?;
    let path = |name: &str| scenario.folder().join(name);
    fs::write(path("server.conf"), &configs.server)?;
    fs::write(path("client.conf"), &configs.client)?;
    let mut server =
        Daemon::spawn("server", scenario.server.command(&star.server, &path("server.conf")))?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let [first, second, ..] = star.clients.as_slice() else {
        return Err("two were asked for".into());
    };
    let mut slow = Daemon::spawn("slow", scenario.client.command(first, &path("client.conf")))?;
    until("the first program runs", SETUP_LIMIT, || Ok(path("first").exists()))
        .map_err(|f| meanwhile(&f.0, &server))?;
    let begin = ScaledInstant::now();
    let mut quick = Daemon::spawn("quick", scenario.client.command(second, &path("client.conf")))?;
    quick.wait_for(READY, SETUP_LIMIT).map_err(|f| meanwhile(&f.0, &server))?;
    let took = begin.elapsed();
    ensure(!path("waited").exists(), || "the second client waited for the first one".to_owned())?;
    ping_until(second, "10.88.0.1".parse().context("an address")?, SOON)?;
    slow.wait_for(READY, SETUP_LIMIT).map_err(|f| meanwhile(&f.0, &server))?;
    ping_until(first, "10.88.0.1".parse().context("an address")?, SOON)?;
    Ok(format!("the other one took {} ms", took.as_millis()))
}

/// All programs get the same variables from adit as from openvpn 2.6.
pub(super) fn environment(scenario: &Scenario<'_>) -> Result<String> {
    let theirs = variables(scenario, &Program::OpenVpn)?;
    let ours = variables(scenario, scenario.server)?;
    same(&theirs, &ours)
}

/// Runs a session at a server of this kind, and returns the variables of each program.
fn variables(scenario: &Scenario<'_>, server: &Program) -> Result<Variables> {
    let folder = scenario.folder().join("dumps");
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir(&folder)?;
    let dump = script(
        scenario,
        "dump",
        "name=$script_type\n\
         case $script_type in tls-verify) name=$name-$1;; learn-address) name=$name-$1-$2;; esac\n\
         env -0 > $OUT/dumps/$name\necho \"$#\" > $OUT/dumps/$name.count",
    )?;
    let mut configs = scenario.configs();
    configs.server("script-security 3\nsetenv own value\nsetenv-safe safe value");
    configs.server(&format!("tls-verify {dump}\nauth-user-pass-verify {dump} via-env"));
    configs
        .server(&format!("client-connect {dump}\nclient-disconnect {dump}\nlearn-address {dump}"));
    configs.client(&login(scenario, PASSWORD)?);
    configs.client("push-peer-info\nsetenv UV_ID device7");
    configs.client(
        "setenv UV_ODD \"a b+c,d;e(f)g%h#i!j~k*l&m|n<o>p[q]r{s}t'u?v$w`x^y=z:0/1@2-3.4_5\"",
    );
    let pair = Pair::new()?;
    let mut tunnel = Tunnel::start(pair, scenario.folder(), &configs, server, scenario.client)?;
    tunnel.ping_all(4)?;
    tunnel.client.stop()?;
    until("the last program is run", SOON, || Ok(folder.join("client-disconnect.count").exists()))
        .map_err(|f| tunnel.server.failure(&f.0).0)?;
    std::thread::sleep(Duration::from_secs(1));
    tunnel.server.stop()?;
    read_dumps(&folder)
}
