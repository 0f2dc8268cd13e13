//! Plugins: one whose arguments say what it does, and those that Debian packages with openvpn.

pub(super) mod services;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use adit_testbed::plugin;

use super::Scenario;
use crate::case::{Configs, READY, SETUP_LIMIT, Tunnel, dial, serve};
use crate::failure::{Context, Result, ensure};
use crate::file;
use crate::net::Pair;
use crate::peer::Program;
use crate::process::{Daemon, run};
use crate::wait::until;

const SOON: Duration = Duration::from_secs(20);

/// The kinds of calls, by the numbers of the interface.
const AUTH: u32 = 5;
const CONNECT: u32 = 6;
const CONNECT_V2: u32 = 9;

/// All calls that exist.
const EVERYTHING: &str = "mask=0xf7ff";

/// The server drops its privileges before a client connects.
const UNPRIVILEGED: &str = "user nobody\ngroup nogroup";

/// Returns the line of the test plugin, which logs its calls into the scenario's folder.
fn test_plugin(scenario: &Scenario<'_>, words: &str) -> Result<String> {
    let folder = scenario.folder();
    file::set_mode(folder, 0o777)?;
    let object = plugin::build(folder, 3, &[])?;
    let object = object.file_name().unwrap_or_default().to_string_lossy().into_owned();
    // openvpn has a limit for the length of a line.
    Ok(format!(
        "tmp-dir {0}\ncd {0}\nplugin ./{object} \"log=calls go=go {words}\"",
        folder.display()
    ))
}

fn calls(scenario: &Scenario<'_>) -> String {
    fs::read_to_string(scenario.folder().join("calls")).unwrap_or_default()
}

/// Adds a user name and a password to the client.
fn with_password(scenario: &Scenario<'_>, configs: &mut Configs, password: &str) -> Result<()> {
    let credentials = scenario.folder().join("credentials");
    fs::write(&credentials, format!("ali\n{password}\n"))?;
    configs.client(&format!("auth-user-pass {}", credentials.display()));
    Ok(())
}

/// Starts both ends, and waits until the client has the text in its log.
fn refused(scenario: &Scenario<'_>, configs: &Configs, text: &str) -> Result<(Daemon, Daemon)> {
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, scenario.folder(), configs, scenario.client)?;
    client
        .wait_for(text, SETUP_LIMIT)
        .map_err(|failure| format!("{failure}\n{}", server.failure("meanwhile")))?;
    ensure(client.count(READY) == 0, || client.failure("it was let in").0)?;
    client.wait_exit(SOON)?;
    Ok((server, client))
}

/// A plugin accepts a password.
pub(super) fn accepts(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    with_password(scenario, &mut configs, "open sesame")?;
    let line = test_plugin(scenario, "mask=0x20")?;
    configs.server(&format!("{line}\n{UNPRIVILEGED}"));
    let tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    let seen = calls(scenario);
    for text in ["call 5 env username=ali", "call 5 env password=open sesame"] {
        ensure(seen.lines().any(|line| line == text), || format!("no {text:?} in\n{seen}"))?;
    }
    ensure(!seen.contains("call 5 uid=0"), || format!("it was called as root\n{seen}"))?;
    ensure(!tunnel.server.log().contains("sesame"), || "the log has the password".into())?;
    Ok(String::new())
}

/// A plugin refuses a password with a reason.
pub(super) fn refuses(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    with_password(scenario, &mut configs, "open simsim")?;
    let action = format!("mask=0x20 on={AUTH}:reason");
    configs.server(&test_plugin(scenario, &action)?);
    refused(scenario, &configs, "AUTH_FAILED,the account is locked")?;
    Ok(String::new())
}

/// A plugin answers later: the client is not admitted before that.
pub(super) fn deferred(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    with_password(scenario, &mut configs, "open sesame")?;
    let action = format!("mask=0x20 on={AUTH}:defer1");
    let line = test_plugin(scenario, &action)?;
    configs.server(&format!("{line}\n{UNPRIVILEGED}"));
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    until("the plugin is called", SETUP_LIMIT, || Ok(calls(scenario).contains("call 5 uid")))?;
    std::thread::sleep(Duration::from_secs(2));
    ensure(client.count(READY) == 0, || client.failure("it did not wait").0)?;
    fs::write(scenario.folder().join("go"), "")?;
    client
        .wait_for(READY, SETUP_LIMIT)
        .map_err(|failure| format!("{failure}\n{}", server.failure("meanwhile")))?;
    Ok(String::new())
}

/// A plugin refuses later.
pub(super) fn deferred_refusal(scenario: &Scenario<'_>) -> Result<String> {
    fs::write(scenario.folder().join("go"), "")?;
    let mut configs = scenario.configs();
    with_password(scenario, &mut configs, "open simsim")?;
    let action = format!("mask=0x20 on={AUTH}:defer0reason");
    configs.server(&test_plugin(scenario, &action)?);
    refused(scenario, &configs, "AUTH_FAILED,too late")?;
    Ok(String::new())
}

/// The two versions of the call for a connected client add routes.
pub(super) fn client_connect(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let actions = format!("mask=0x240 on={CONNECT}:connect on={CONNECT_V2}:list");
    let line = test_plugin(scenario, &actions)?;
    configs.server(&format!("{line}\n{UNPRIVILEGED}"));
    let tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    let known = tunnel.pair.client.run("ip", &["route"])?;
    for route in ["10.7.0.0/16", "10.9.0.0/16"] {
        ensure(known.contains(route), || format!("{route} is missing: {known}"))?;
    }
    Ok(String::new())
}

/// The same, with answers that come later, and with a refusal.
pub(super) fn client_connect_deferred(scenario: &Scenario<'_>) -> Result<String> {
    fs::write(scenario.folder().join("go"), "")?;
    let mut configs = scenario.configs();
    let actions =
        format!("mask=0x4240 on={CONNECT}:connectdefer1 on={CONNECT_V2}:defer on=14:again");
    configs.server(&test_plugin(scenario, &actions)?);
    let tunnel = scenario.tunnel(&configs)?;
    let known = tunnel.pair.client.run("ip", &["route"])?;
    for route in ["10.6.0.0/16", "10.9.0.0/16"] {
        ensure(known.contains(route), || format!("{route} is missing: {known}"))?;
    }
    Ok(String::new())
}

/// A plugin or a program refuses a client that connects: the same calls and programs follow as with openvpn.
pub(super) fn client_connect_refused(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder();
    let program = |name: &str, status: u8| -> Result<String> {
        let path = folder.join(name);
        file::write(
            &path,
            format!("#!/bin/sh\necho {name} >> {}/run\nexit {status}\n", folder.display()),
            0o755,
        )?;
        Ok(path.display().to_string())
    };
    let (connect, disconnect) = (program("connect", 1)?, program("disconnect", 0)?);
    let mut shown = Vec::new();
    for refusing in ["refuse", "nothing"] {
        let first = test_plugin(scenario, &format!("mask=0xc0 on={CONNECT}:{refusing}"))?;
        let second = first.lines().last().unwrap_or_default();
        let second = second.replace("log=calls", "log=others").replace("refuse", "nothing");
        let mut configs = scenario.configs();
        configs.server(&format!(
            "{first}\n{second}\nscript-security 2\nclient-connect {connect}\nclient-disconnect {disconnect}"
        ));
        let mut seen = Vec::new();
        for server in [&Program::OpenVpn, scenario.server] {
            ["calls", "others", "run"]
                .iter()
                .try_for_each(|name| fs::write(folder.join(name), ""))?;
            let pair = Pair::new()?;
            let mut server = serve(&pair, folder, &configs, server)?;
            server.wait_for(READY, SETUP_LIMIT)?;
            let mut client = dial(&pair, folder, &configs, scenario.client)?;
            client.wait_for("AUTH_FAILED", SETUP_LIMIT)?;
            let log = |name| fs::read_to_string(folder.join(name)).unwrap_or_default();
            until("the program for the end is run", SOON, || Ok(log("run").contains("disconnect")))
                .map_err(|failure| server.failure(&failure.0).0)?;
            client.wait_exit(SOON)?;
            server.stop()?;
            let called = |name| -> Vec<String> {
                let called = |line: &str| line.starts_with("call ") && line.contains(" uid=");
                let number = |line: &str| line.split(' ').nth(1).unwrap_or_default().to_owned();
                log(name).lines().filter(|line| called(line)).map(number).collect()
            };
            seen.push((called("calls"), called("others"), log("run")));
        }
        ensure(seen.first() == seen.last(), || format!("openvpn and adit differ: {seen:?}"))?;
        shown.extend(seen.pop());
    }
    ensure(shown.iter().all(|(first, second, _)| first == second && first.len() == 2), || {
        format!("both plugins get both calls: {shown:?}")
    })?;
    Ok(String::new())
}

/// What openvpn gives its plugins, adit gives them too: the same calls with the same arguments and variables.
pub(super) fn calls_and_variables(scenario: &Scenario<'_>) -> Result<String> {
    let adit = observed(scenario, scenario.server)?;
    let openvpn = observed(scenario, scenario.client)?;
    let is_new = |line: &&String| !is_known_difference(line);
    let missing: Vec<&String> = openvpn.difference(&adit).filter(is_new).collect();
    let further: Vec<&String> = adit.difference(&openvpn).filter(is_new).collect();
    ensure(missing.is_empty() && further.is_empty(), || {
        format!("adit lacks {missing:#?}\nand has in addition {further:#?}")
    })?;
    Ok(format!("{} lines", adit.len()))
}

/// The differences between the two programs, and the reason of each.
fn is_known_difference(line: &str) -> bool {
    const KNOWN: [&str; 9] = [
        // adit leaves out OPENVPN_PLUGIN_ENABLE_PF, which openvpn 2.6 no longer calls either.
        "known=",
        // openvpn keeps the names of files that are removed after the check of the password.
        " env auth_control_file=",
        " env auth_pending_file=",
        " env auth_failed_reason_file=",
        // openvpn's own addresses of the other end, where a server has none.
        " env ifconfig_ipv6_remote=",
        " env ifconfig_pool_local_ip6=",
        // openvpn sets them only if there are routes.
        " env route_net_gateway=",
        " env route_vpn_gateway=",
        // openvpn sets it after the first call.
        "call 0 env redirect_gateway=",
    ];
    KNOWN.iter().any(|text| line.contains(text))
}

/// Variables whose values differ in each run, or with the program.
const VARYING: [&str; 6] =
    ["daemon_pid", "daemon_start_time", "time_ascii", "time_unix", "time_duration", "bytes_"];

/// Further such variables, whose values are secrets, ports or names of files.
const UNPREDICTABLE: [&str; 8] = [
    "exported_keying_material",
    "untrusted_port",
    "trusted_port",
    "auth_control_file",
    "auth_pending_file",
    "auth_failed_reason_file",
    "client_connect_config_file",
    "client_connect_deferred_file",
];

/// Runs a server with a client and returns what the plugin has seen, without what varies.
fn observed(scenario: &Scenario<'_>, server: &Program) -> Result<BTreeSet<String>> {
    let _ = fs::remove_file(scenario.folder().join("calls"));
    let mut configs = scenario.configs();
    with_password(scenario, &mut configs, "open sesame")?;
    let action = format!("{EVERYTHING} on=4:depth");
    configs.server(&test_plugin(scenario, &action)?);
    configs.server("keying-material-exporter EXPORTER-test 32");
    let tunnel = Tunnel::start(Pair::new()?, scenario.folder(), &configs, server, scenario.client)?;
    let Tunnel { mut server, mut client, pair: _pair, .. } = tunnel;
    client.stop()?;
    until("the client is gone", SOON, || Ok(calls(scenario).contains("call 7 uid")))?;
    server.stop()?;
    let seen = calls(scenario);
    ensure(seen.lines().last() == Some("close"), || format!("not closed: {seen}"))?;
    Ok(seen.lines().map(without_what_varies).collect())
}

fn without_what_varies(line: &str) -> String {
    let varies =
        VARYING.iter().chain(&UNPREDICTABLE).any(|name| line.contains(&format!(" {name}")));
    match line.split_once('=') {
        Some((name, _)) if varies => format!("{name}=..."),
        // The client's port.
        _ if line.contains(" arg 1=[AF_INET]") => {
            line.rsplit_once(' ').map_or(line, |(address, _)| address).to_owned()
        }
        _ if line.contains("openvpn_cc_") => "a file".into(),
        _ if line.starts_with("call ") && line.contains(" uid=") => {
            // The memory of clients is made at different times.
            line.split(" client=").next().unwrap_or_default().to_owned()
        }
        _ if line.starts_with("new ") || line.starts_with("end ") => "a client".into(),
        _ => line.to_owned(),
    }
}

/// A plugin crashes: the server ends with a failure, and admits no client.
pub(super) fn crash(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    with_password(scenario, &mut configs, "open sesame")?;
    let action = format!("mask=0x20 on={AUTH}:crash");
    configs.server(&test_plugin(scenario, &action)?);
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    let status = server.wait_exit(SETUP_LIMIT)?;
    ensure(!status.success(), || server.failure("it ended as if nothing had happened").0)?;
    ensure(client.count(READY) == 0, || client.failure("it was let in").0)?;
    if matches!(scenario.server, Program::Adit(_)) {
        server.wait_for("a plugin has crashed", SOON)?;
    }
    Ok(String::new())
}

/// A server in the background, which is another process than the one that opened the plugin.
pub(super) fn background(scenario: &Scenario<'_>) -> Result<String> {
    let file = |name: &str| scenario.folder().join(name);
    let read = |name: &str| fs::read_to_string(file(name)).unwrap_or_default();
    let mut configs = scenario.configs();
    let line = test_plugin(scenario, "mask=0x1")?;
    configs.server(&format!(
        "{line}\ndaemon\nlog {}\nwritepid {}",
        file("server.log").display(),
        file("pid").display()
    ));
    let pair = Pair::new()?;
    let mut first = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    ensure(first.wait_exit(SOON)?.success(), || first.failure("it failed").0)?;
    until("the server is ready", SETUP_LIMIT, || Ok(read("server.log").contains(READY)))?;
    // The process of the plugins would end within 10 seconds after the network process.
    std::thread::sleep(Duration::from_secs(12));
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    client
        .wait_for(READY, SETUP_LIMIT)
        .map_err(|failure| format!("{failure}\n{}", read("server.log")))?;
    run("kill", &[read("pid").trim()])?;
    until("the plugin is closed", SOON, || Ok(calls(scenario).ends_with("close\n")))?;
    Ok(String::new())
}

/// Creates a folder for /etc in which PAM knows the service `vpn` and the user `ali`.
fn etc_with_a_user(scenario: &Scenario<'_>) -> Result<std::path::PathBuf> {
    let etc = scenario.folder().join("etc");
    fs::create_dir(&etc)?;
    run("cp", &["-a", "/etc/.", &etc.display().to_string()])?;
    let append = |name: &str, line: String| -> Result<()> {
        let path = etc.join(name);
        let text = fs::read_to_string(&path).context(path.display())?;
        fs::write(&path, format!("{text}{line}\n"))?;
        Ok(())
    };
    append("passwd", "ali:x:4242:4242::/nonexistent:/usr/sbin/nologin".into())?;
    let hash = run("openssl", &["passwd", "-6", "open sesame"])?;
    append("shadow", format!("ali:{}:19000:0:99999:7:::", hash.trim()))?;
    let service = "auth required pam_unix.so\naccount required pam_unix.so\n";
    fs::write(etc.join("pam.d/vpn"), service)?;
    Ok(etc)
}

/// Debian's plugin for PAM, with the C library's user database: a right and a wrong password.
fn pam(scenario: &Scenario<'_>, lines: &str) -> Result<String> {
    let etc = etc_with_a_user(scenario)?;
    let folder = scenario.folder();
    let mut configs = scenario.configs();
    with_password(scenario, &mut configs, "open sesame")?;
    configs.server(&format!(
        "plugin {} \"vpn login USERNAME password PASSWORD\"\ntmp-dir /tmp\n{UNPRIVILEGED}\n{lines}",
        debian_plugin("openvpn-plugin-auth-pam.so")?
    ));
    let mut pair = Pair::new()?;
    pair.server.separate_files(&etc)?;
    let mut tunnel = Tunnel::start(pair, folder, &configs, scenario.server, scenario.client)?;
    tunnel.ping_all(4)?;
    tunnel.client.stop()?;
    with_password(scenario, &mut configs, "open simsim")?;
    let mut client = dial(&tunnel.pair, folder, &configs, scenario.client)?;
    client
        .wait_for("AUTH_FAILED", SETUP_LIMIT)
        .map_err(|failure| format!("{failure}\n{}", tunnel.server.failure("meanwhile")))?;
    ensure(client.count(READY) == 0, || client.failure("it was let in").0)?;
    Ok(String::new())
}

pub(super) fn auth_pam(scenario: &Scenario<'_>) -> Result<String> {
    pam(scenario, "")
}

pub(super) fn auth_pam_deferred(scenario: &Scenario<'_>) -> Result<String> {
    pam(scenario, "setenv deferred_auth_pam 1")
}

/// Debian's plugin that runs a program as root when the tunnel goes down, although the server is an unprivileged user.
pub(super) fn down_root(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder();
    let (script, seen) = (folder.join("down.sh"), folder.join("down"));
    file::write(
        &script,
        format!("#!/bin/sh\n{{ id -u; echo \"$dev\"; }} > {}\n", seen.display()),
        0o755,
    )?;
    let mut configs = scenario.configs();
    configs.server(&format!(
        "script-security 2\nplugin {} \"{}\"\n{UNPRIVILEGED}",
        debian_plugin("openvpn-plugin-down-root.so")?,
        script.display()
    ));
    let mut tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    tunnel.server.stop()?;
    until("the program has run", SOON, || {
        Ok(fs::read_to_string(&seen).is_ok_and(|text| text.lines().count() == 2))
    })
    .map_err(|failure| format!("{failure}\n{}", tunnel.server.failure("meanwhile")))?;
    let text = fs::read_to_string(&seen)?;
    ensure(text == "0\ntun0\n", || format!("it saw {text:?}"))?;
    Ok(String::new())
}

/// Returns the path of a plugin of Debian's package openvpn.
fn debian_plugin(name: &str) -> Result<String> {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/usr/lib"];
    let paths = folders.map(|folder| format!("{folder}/openvpn/plugins/{name}"));
    let found = paths.into_iter().find(|path| Path::new(path).exists());
    found.context(format!("{name} is missing: install openvpn with scripts/deps.sh"))
}
