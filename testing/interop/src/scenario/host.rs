//! Tests of directives that concern the process, its keys and its sockets.

use std::ffi::OsString;
use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::Scenario;
use crate::case::{Configs, READY, SETUP_LIMIT, dial, inner_addrs};
use crate::failure::{Result, ensure};
use crate::file;
use crate::matrix::Wrapping;
use crate::net::{Pair, VETH};
use crate::peer::Program;
use crate::pki::{PASSWORD, PkiTool};
use crate::process::{Daemon, output};
use crate::sandbox::text;
use crate::traffic::{ping, tcp};
use crate::wait::until;

const SOON: Duration = Duration::from_secs(10);
/// The server's address in the tunnel.
const SERVER: Ipv4Addr = Ipv4Addr::new(10, 88, 0, 1);

/// Checks that a process is confined to a directory.
fn confined(daemon: &Daemon, root: &Path) -> Result<()> {
    let link = format!("/proc/{}/root", daemon.pid());
    until("the root directory is the configured one", SOON, || {
        Ok(fs::read_link(&link).is_ok_and(|found| found == root))
    })
}

/// Both ends change their root directory. The server then reads a client's file and the list of revoked certificates from
/// inside it.
pub(super) fn chroot(scenario: &Scenario<'_>) -> Result<String> {
    let (jail, cell) = (scenario.folder().join("jail"), scenario.folder().join("cell"));
    fs::create_dir_all(jail.join("etc/clients"))?;
    fs::create_dir_all(jail.join("tmp"))?;
    fs::create_dir_all(cell.join("tmp"))?;
    fs::write(jail.join("etc/clients/client"), "ifconfig-push 10.88.0.77 255.255.255.0\n")?;
    fs::copy(scenario.pki("crl.pem"), jail.join("crl.pem"))?;
    file::set_mode(jail.join("crl.pem"), 0o644)?;
    let mut configs = scenario.configs();
    configs.server(&format!("chroot {}", jail.display()));
    configs.server("client-config-dir /etc/clients\ncrl-verify crl.pem");
    configs.client(&format!("chroot {}", cell.display()));
    configs.both("user nobody\ngroup nogroup");
    let mut tunnel = scenario.tunnel(&configs)?;
    let given = inner_addrs(&tunnel.pair.client)?.v4.to_string();
    ensure(given == "10.88.0.77", || {
        tunnel.server.failure(&format!("the client has {given}, not that of its file")).0
    })?;
    tunnel.ping_all(4)?;
    confined(&tunnel.server, &jail)?;
    confined(&tunnel.client, &cell)?;
    tunnel.client.stop()?;
    tunnel.server.stop()?;
    Ok(String::new())
}

/// The client has its certificate, key and authority in one file with a password, and the server has no curve but the largest.
pub(super) fn pkcs12_and_large_curve(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder();
    let mut command = Command::new("openssl");
    command.current_dir(folder).args(["pkcs12", "-export"]);
    for (option, name) in [("-in", "client.crt"), ("-inkey", "client.key"), ("-certfile", "ca.crt")]
    {
        let path = scenario.pki(name);
        command.args([option, path.as_str()]);
    }
    output({
        command.args(["-out", "client.p12", "-passout", &format!("pass:{PASSWORD}")]);
        command
    })?;
    fs::write(folder.join("password"), format!("{PASSWORD}\n"))?;
    let mut configs = scenario.configs();
    let from_files =
        |line: &&str| !["ca ", "cert ", "key "].iter().any(|directive| line.starts_with(directive));
    configs.client = configs.client.lines().filter(from_files).map(|l| format!("{l}\n")).collect();
    let path = |name: &str| folder.join(name).display().to_string();
    configs.client(&format!("pkcs12 {}\naskpass {}", path("client.p12"), path("password")));
    configs.server("tls-groups secp521r1");
    scenario.tunnel(&configs)?.ping_all(4)?;
    // A wrong password ends the client.
    fs::write(folder.join("password"), "wrong\n")?;
    let pair = Pair::new()?;
    let mut client = dial(&pair, folder, &configs, scenario.client)?;
    let status = client.wait_exit(SETUP_LIMIT)?;
    ensure(!status.success(), || client.failure("ended as if nothing were wrong").0)?;
    Ok(String::new())
}

/// adit wraps a client's key with metadata, and the two programs use it.
pub(super) fn key_with_metadata(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder();
    let Some(Program::Adit(adit)) =
        [scenario.server, scenario.client].into_iter().find(|p| matches!(p, Program::Adit(_)))
    else {
        return Err("adit is at neither end".into());
    };
    let server_key = scenario.env.pki.wrapping_key("v2-server.key");
    let client_key = folder.join("client.key");
    let mut command = Command::new(adit);
    command.args(["openvpn", "--tls-crypt-v2", text(&server_key)]);
    command.args(["--genkey", "tls-crypt-v2-client", text(&client_key), "dXNlcj1hbGljZQ=="]);
    output(command)?;
    let mut configs = Configs::new(&scenario.env.pki, PkiTool::OpenSslEc, false);
    configs.wrap(&scenario.env.pki, Wrapping::None);
    configs.server(&format!("tls-crypt-v2 {}", server_key.display()));
    configs.client(&format!("tls-crypt-v2 {}", client_key.display()));
    scenario.tunnel(&configs)?.ping_all(2)?;
    Ok(String::new())
}

/// adit makes a device that outlives the client, which uses it, and removes it.
pub(super) fn persistent_device(scenario: &Scenario<'_>) -> Result<String> {
    let Some(adit) =
        [scenario.server, scenario.client].into_iter().find(|p| matches!(p, Program::Adit(_)))
    else {
        return Err("adit is at neither end".into());
    };
    let pair = Pair::new()?;
    let alone = |mode: &str| {
        let words: [OsString; 5] = [mode, "--dev", "tun7", "--user", "nobody"].map(Into::into);
        output(adit.command_with(&pair.client, &words))
    };
    let exists = || pair.client.run("ip", &["link", "show", "tun7"]).is_ok();
    let said = alone("--mktun")?;
    ensure(said.contains("Persist state set to: ON") && exists(), || format!("not made: {said}"))?;
    let mut configs = scenario.configs();
    configs.client = configs.client.replace("dev tun\n", "dev tun7\n");
    let mut server = crate::case::serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    client.wait_for(READY, SETUP_LIMIT)?;
    until(
        "the tunnel carries packets",
        SOON,
        || Ok(ping(&pair.client, SERVER.into(), 56, 1)? > 0),
    )?;
    client.stop()?;
    ensure(exists(), || client.failure("the device is gone with the client").0)?;
    let said = alone("--rmtun")?;
    ensure(said.contains("Persist state set to: OFF"), || said.clone())?;
    until("the device is gone", SOON, || Ok(!exists()))?;
    server.stop()?;
    Ok(String::new())
}

/// No router may fragment the datagrams of either end.
pub(super) fn no_fragmentation(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.both("mtu-disc yes");
    let pair = Pair::new()?;
    let mut server = crate::case::serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let capture = |filter: &str| -> Result<Daemon> {
        let mut command = pair.client.command("tcpdump");
        command.args(["-lni", VETH, "--immediate-mode", filter]);
        let mut capture = Daemon::spawn("tcpdump", command)?;
        capture.wait_for("listening on", SOON)?;
        Ok(capture)
    };
    let fragmentable = capture("udp port 1194 and ip[6] & 0x40 = 0")?;
    let whole = capture("udp port 1194 and ip[6] & 0x40 != 0")?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    client.wait_for(READY, SETUP_LIMIT)?;
    let sent =
        |capture: &Daemon| [capture.count("192.0.2.1.1194 > "), capture.count(" > 192.0.2.1.1194")];
    until("both ends have sent data", SOON, || {
        ping(&pair.client, SERVER.into(), 56, 2)?;
        Ok(sent(&whole).iter().all(|count| *count > 4))
    })?;
    let wrong = sent(&fragmentable);
    ensure(wrong == [0, 0], || format!("{wrong:?} datagrams may be fragmented"))?;
    client.stop()?;
    server.stop()?;
    Ok(String::new())
}

/// The client sends no faster than its limit, and receives without one.
pub(super) fn rate_limit(scenario: &Scenario<'_>) -> Result<String> {
    const RATE: u32 = 50_000;
    const BYTES: usize = 250_000;
    let mut configs = scenario.configs();
    configs.client(&format!("shaper {RATE}"));
    let tunnel = scenario.tunnel(&configs)?;
    let (server, client) = (&tunnel.pair.server, &tunnel.pair.client);
    tcp(server, client, tunnel.client_inner.v4, 6_000_000)?;
    let started = std::time::Instant::now();
    tcp(client, server, tunnel.server_inner.v4, BYTES)?;
    // A part of the last packets may still wait in the socket of the receiver, and a burst is free.
    let least = Duration::from_secs(2);
    let took = started.elapsed();
    ensure(took >= least, || format!("{BYTES} bytes took {took:?} at {RATE} a second"))?;
    Ok(format!("{} ms", took.as_millis()))
}

/// The server pushes a route to a name, which the client looks up because it allows that.
pub(super) fn pushed_name(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server("push \"route localhost 255.255.255.255 vpn_gateway 77\"");
    configs.client("allow-pull-fqdn");
    let tunnel = scenario.tunnel(&configs)?;
    let mut routes = String::new();
    until("the name's address is routed", SOON, || {
        routes = tunnel.pair.client.run("ip", &["route"])?;
        let wanted = |line: &str| line.starts_with("127.0.0.1 ") && line.contains("metric 77");
        Ok(routes.lines().any(wanted))
    })
    .map_err(|failure| format!("{failure}: {routes}"))?;
    tunnel.ping_all(2)?;
    Ok(String::new())
}
