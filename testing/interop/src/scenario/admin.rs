//! Tests of an administrator's settings: individual clients, addresses, topologies and fingerprints.

use std::fs;
use std::net::IpAddr;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Scenario, ping_until};
use crate::case::{Configs, HANDSHAKE, READY, SETUP_LIMIT, Tunnel, dial, inner_addrs, serve};
use crate::failure::{Context, Result, ensure};
use crate::file;
use crate::net::{Namespace, Pair, Star};
use crate::peer::Program;
use crate::process::{Daemon, run};
use crate::wait::ScaledInstant;

const SOON: Duration = Duration::from_secs(10);

/// Creates configurations of a server with per-client files, and their directory.
fn with_files(scenario: &Scenario<'_>) -> Result<(Configs, std::path::PathBuf)> {
    let folder = scenario.folder().join("ccd");
    fs::create_dir_all(&folder)?;
    let mut configs = scenario.configs();
    configs.server(&format!("client-config-dir {}", folder.display()));
    Ok((configs, folder))
}

fn routes(namespace: &Namespace) -> Result<String> {
    namespace.run("ip", &["route"])
}

fn has_address(namespace: &Namespace, address: &str) -> Result<()> {
    let inner = inner_addrs(namespace)?;
    ensure(inner.v4.to_string() == address, || format!("{address} was expected: {inner:?}"))
}

fn ip(text: &str) -> Result<IpAddr> {
    text.parse().context(text)
}

/// A client has a fixed address, a network behind it and separate routes; each end reaches the other's side.
pub(super) fn fixed_address_and_network(scenario: &Scenario<'_>) -> Result<String> {
    let (mut configs, folder) = with_files(scenario)?;
    configs.server("route 10.50.1.0 255.255.255.0\nroute-ipv6 fd50::/64");
    // All clients receive it except the one with that network.
    configs.server("push \"route 10.50.1.0 255.255.255.0\"");
    // The file is read after the privileges are dropped.
    configs.server("user nobody\ngroup nogroup");
    fs::write(
        folder.join("client"),
        "ifconfig-push 10.88.0.77 255.255.255.0\nifconfig-ipv6-push fd88::77/64\n\
         iroute 10.50.1.0 255.255.255.0\niroute-ipv6 fd50::/64\npush \"route 10.60.0.0 255.255.0.0\"\n",
    )?;
    let tunnel = scenario.tunnel(&configs)?;
    has_address(&tunnel.pair.client, "10.88.0.77")?;
    let inner = inner_addrs(&tunnel.pair.client)?;
    ensure(inner.v6 == Some(ip("fd88::77")?), || format!("{inner:?}"))?;
    let known = routes(&tunnel.pair.client)?;
    ensure(known.contains("10.60.0.0/16"), || {
        format!("the client's own route is missing: {known}")
    })?;
    ensure(!known.contains("10.50.1.0"), || {
        format!("the client got a route into the tunnel for its own network: {known}")
    })?;
    tunnel.ping_all(4)?;
    for address in ["10.50.1.1/24", "fd50::1/64"] {
        tunnel.pair.client.run("ip", &["address", "add", address, "dev", "lo", "nodad"])?;
    }
    // Ping from the server to a host behind the client, and from that host, whose address is not the client's.
    ping_until(&tunnel.pair.server, ip("10.50.1.1")?, SOON)?;
    ping_until(&tunnel.pair.server, ip("fd50::1")?, SOON)?;
    let server = tunnel.server_inner.v4.to_string();
    tunnel.pair.client.run("ping", &["-c", "1", "-W", "5", "-I", "10.50.1.1", &server])?;
    Ok(String::new())
}

/// `push-reset` removes all of the common options, `push-remove` those with the given prefix.
pub(super) fn push_reset_and_remove(scenario: &Scenario<'_>) -> Result<String> {
    let (mut configs, folder) = with_files(scenario)?;
    configs.server("push \"route 10.61.0.0 255.255.0.0\"\npush \"route 10.62.0.0 255.255.0.0\"");
    let file = folder.join("client");
    // openvpn's manual says that a reset also removes the topology; a file with a reset must push it again.
    fs::write(
        &file,
        "push-reset\npush \"topology subnet\"\npush \"route-gateway 10.88.0.1\"\n\
         push \"route 10.63.0.0 255.255.0.0\"\n",
    )?;
    let mut tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    let expect = |namespace: &Namespace, yes: &[&str], no: &[&str]| -> Result<()> {
        let known = routes(namespace)?;
        let right = yes.iter().all(|r| known.contains(r)) && !no.iter().any(|r| known.contains(r));
        ensure(right, || format!("{yes:?} and not {no:?} were expected: {known}"))
    };
    expect(&tunnel.pair.client, &["10.63.0.0/16"], &["10.61.0.0/16", "10.62.0.0/16"])?;
    fs::write(&file, "push-remove \"route 10.61\"\n")?;
    tunnel.client.stop()?;
    // The file is read for each connection.
    tunnel.client = dial(&tunnel.pair, scenario.folder(), &configs, scenario.client)?;
    tunnel.client.wait_for(READY, SETUP_LIMIT)?;
    expect(&tunnel.pair.client, &["10.62.0.0/16"], &["10.61.0.0/16", "10.63.0.0/16"])?;
    ping_until(&tunnel.pair.client, tunnel.server_inner.v4, SOON)?;
    Ok(String::new())
}

/// A client's file first contains `disable`, and later does not.
pub(super) fn disabled(scenario: &Scenario<'_>) -> Result<String> {
    let (configs, folder) = with_files(scenario)?;
    fs::write(folder.join("client"), "disable\n")?;
    refused_then_let_in(scenario, &configs, || Ok(fs::write(folder.join("client"), "# enabled\n")?))
}

/// `ccd-exclusive` without a file for the client, although the default file exists; then with one.
pub(super) fn exclusive(scenario: &Scenario<'_>) -> Result<String> {
    let (mut configs, folder) = with_files(scenario)?;
    configs.server("ccd-exclusive");
    fs::write(folder.join("DEFAULT"), "# for all\n")?;
    refused_then_let_in(scenario, &configs, || Ok(fs::write(folder.join("client"), "")?))
}

fn refused_then_let_in(
    scenario: &Scenario<'_>,
    configs: &Configs,
    change: impl Fn() -> Result<()>,
) -> Result<String> {
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, scenario.folder(), configs, scenario.client)?;
    client
        .wait_for("AUTH_FAILED", SETUP_LIMIT)
        .map_err(|e| format!("{e}\n{}", server.failure("meanwhile")))?;
    client.wait_exit(SOON)?;
    ensure(client.count(READY) == 0, || client.failure("it was let in").0)?;
    change()?;
    let mut client = dial(&pair, scenario.folder(), configs, scenario.client)?;
    client
        .wait_for(READY, SETUP_LIMIT)
        .map_err(|e| format!("{e}\n{}", server.failure("meanwhile")))?;
    ping_until(&pair.client, ip("10.88.0.1")?, SOON)?;
    Ok(String::new())
}

/// A client whose file has an invalid line is refused; adit names the line, and serves the others.
pub(super) fn file_that_is_wrong(scenario: &Scenario<'_>) -> Result<String> {
    let (configs, folder) = with_files(scenario)?;
    fs::write(folder.join("client"), "# first line\nup /bin/sh\n")?;
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    client.wait_for("AUTH_FAILED", SETUP_LIMIT)?;
    server.wait_for("ccd/client:2: up: ", SOON)?;
    fs::remove_file(folder.join("client"))?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    client.wait_for(READY, SETUP_LIMIT)?;
    Ok(String::new())
}

/// Checks that the device has this address, with the other end's as its peer address.
fn has_ends(namespace: &Namespace, address: &str, far: &str) -> Result<()> {
    let shown = namespace.run("ip", &["address", "show", "dev", "tun0"])?;
    let both = format!("inet {address} peer {far}/32");
    ensure(shown.contains(&both), || format!("{both} was expected: {shown}"))
}

/// Each end's device has the addresses of both ends.
fn with_topology(
    scenario: &Scenario<'_>,
    topology: &str,
    address: &str,
    far: &str,
) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server = configs.server.replace("topology subnet", topology);
    let tunnel = scenario.tunnel(&configs)?;
    has_ends(&tunnel.pair.client, address, far)?;
    has_ends(&tunnel.pair.server, "10.88.0.1", "10.88.0.2")?;
    tunnel.ping_all(4)?;
    Ok(String::new())
}

/// Four addresses for each client, so the second client's first would be 10.88.0.10.
pub(super) fn net30(scenario: &Scenario<'_>) -> Result<String> {
    with_topology(scenario, "topology net30", "10.88.0.6", "10.88.0.5")
}

/// Without a `topology` directive the topology is net30, as in 2.6.
pub(super) fn no_topology(scenario: &Scenario<'_>) -> Result<String> {
    with_topology(scenario, "", "10.88.0.6", "10.88.0.5")
}

/// Single addresses, with the server's as the peer address.
pub(super) fn p2p(scenario: &Scenario<'_>) -> Result<String> {
    with_topology(scenario, "topology p2p", "10.88.0.4", "10.88.0.1")
}

/// A fixed address from `ifconfig-push` with net30, outside the pool.
pub(super) fn net30_with_fixed_address(scenario: &Scenario<'_>) -> Result<String> {
    let (mut configs, folder) = with_files(scenario)?;
    configs.server = configs.server.replace("topology subnet", "topology net30");
    fs::write(folder.join("client"), "ifconfig-push 10.88.0.34 10.88.0.33\n")?;
    let tunnel = scenario.tunnel(&configs)?;
    has_ends(&tunnel.pair.client, "10.88.0.34", "10.88.0.33")?;
    tunnel.ping_all(4)?;
    Ok(String::new())
}

/// The file contains a client's lease in openvpn's format, and the client has the same address after a restart of both.
pub(super) fn leases_survive(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    let file = scenario.folder().join("ipp.txt");
    configs.server(&format!("ifconfig-pool-persist {} 1", file.display()));
    for (topology, line, address) in [
        ("topology subnet", "client,10.88.0.123,", "10.88.0.123"),
        ("topology net30", "client,10.88.0.40,", "10.88.0.42"),
    ] {
        configs.server = configs.server.replace("topology subnet", topology);
        fs::write(&file, format!("other,10.88.0.8,\n{line}\n"))?;
        let tunnel = scenario.tunnel(&configs)?;
        has_address(&tunnel.pair.client, address)?;
        tunnel.ping_all(4)?;
        let end = ScaledInstant::now() + SOON;
        // openvpn adds the IPv6 address, but the line still begins like this.
        while !fs::read_to_string(&file)?
            .lines()
            .any(|l| l.starts_with(line) && l.len() > line.len())
        {
            ensure(ScaledInstant::now() < end, || {
                format!("{line} was expected: {}", fs::read_to_string(&file).unwrap_or_default())
            })?;
            std::thread::sleep(Duration::from_millis(100));
        }
        let Tunnel { mut server, mut client, pair, .. } = tunnel;
        client.stop()?;
        server.stop()?;
        let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
        server.wait_for(READY, SETUP_LIMIT)?;
        let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
        client.wait_for(READY, SETUP_LIMIT)?;
        has_address(&pair.client, address)?;
    }
    Ok(String::new())
}

/// Creates a self-signed certificate with its key in `folder`; returns its fingerprint as `openssl` prints it.
fn self_signed(folder: &Path, name: &str) -> Result<String> {
    let path = |suffix: &str| folder.join(format!("{name}.{suffix}")).display().to_string();
    let (cert, key, subject) = (path("crt"), path("key"), format!("/CN={name}"));
    #[rustfmt::skip]
    run("openssl", &[
        "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "30",
        "-subj", &subject, "-keyout", &key, "-out", &cert,
    ])?;
    let shown = run("openssl", &["x509", "-fingerprint", "-sha256", "-noout", "-in", &cert])?;
    let fingerprint = shown.trim().split('=').nth(1).context("no fingerprint")?;
    Ok(fingerprint.to_owned())
}

/// Both ends have each other's self-signed certificate, and there is no authority; another certificate is refused.
pub(super) fn fingerprints(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder();
    let (server, client) = (self_signed(folder, "srv")?, self_signed(folder, "cli")?);
    let other = self_signed(folder, "other")?;
    let own = |name: &str| {
        let path = folder.join(name).display().to_string();
        format!("cert {path}.crt\nkey {path}.key\n")
    };
    let strip = |config: &str| -> String {
        let drop = ["ca ", "cert ", "key ", "remote-cert-tls", "verify-x509-name"];
        config
            .lines()
            .filter(|l| !drop.iter().any(|d| l.starts_with(d)))
            .map(|l| format!("{l}\n"))
            .collect()
    };
    let plain = scenario.configs();
    let configs = Configs {
        server: format!(
            "{}{}<peer-fingerprint>\n# those who may in\n{other}\n{client}\n</peer-fingerprint>\n",
            strip(&plain.server),
            own("srv")
        ),
        client: format!("{}{}peer-fingerprint {server}\n", strip(&plain.client), own("cli")),
    };
    let mut tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    // A server whose list contains only another client; a client that expects another server.
    let wrong = [
        Configs {
            server: configs.server.replace(&format!("{client}\n"), ""),
            client: configs.client.clone(),
        },
        Configs { server: configs.server.clone(), client: configs.client.replace(&server, &other) },
    ];
    for configs in wrong {
        tunnel.client.stop()?;
        tunnel.server.stop()?;
        tunnel.server = serve(&tunnel.pair, folder, &configs, scenario.server)?;
        tunnel.server.wait_for(READY, SETUP_LIMIT)?;
        tunnel.client = dial(&tunnel.pair, folder, &configs, scenario.client)?;
        let signs = ["fingerprint", "tls_error", "tls error", "tls handshake failed", "alert"];
        let end = ScaledInstant::now() + SETUP_LIMIT;
        let moment = Duration::from_millis(100);
        while tunnel.server.wait_for_any(&signs, moment).is_err() {
            if let Err(failure) = tunnel.client.wait_for_any(&signs, moment) {
                ensure(ScaledInstant::now() < end, || failure.0)?;
            } else {
                break;
            }
        }
        ensure(tunnel.client.count(READY) == 0, || tunnel.client.failure("it came in").0)?;
    }
    Ok(String::new())
}

/// A full server tells a client when it may try again.
pub(super) fn full(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server("duplicate-cn\nmax-clients 1");
    let star = Star::new(2)?;
    let path = |name: &str| scenario.folder().join(name);
    fs::write(path("server.conf"), &configs.server)?;
    fs::write(path("client.conf"), &configs.client)?;
    let command = scenario.server.command(&star.server, &path("server.conf"));
    let mut server = Daemon::spawn("server", command)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let [first, second] = star.clients.as_slice() else { return Err("two were asked for".into()) };
    let mut one = Daemon::spawn("first", scenario.client.command(first, &path("client.conf")))?;
    one.wait_for(READY, SETUP_LIMIT)?;
    let mut two = Daemon::spawn("second", scenario.client.command(second, &path("client.conf")))?;
    two.wait_for("AUTH_FAILED,TEMP", SETUP_LIMIT)
        .map_err(|e| format!("{e}\n{}", server.failure("meanwhile")))?;
    // It must keep running and wait, whereas a plain refusal would have ended it.
    std::thread::sleep(Duration::from_secs(2));
    two.signal(Signal::SIGTERM)?;
    two.wait_exit(SOON)?;
    ensure(ping_ok(first)?, || one.failure("the first lost its tunnel").0)?;
    Ok(String::new())
}

fn ping_ok(from: &Namespace) -> Result<bool> {
    Ok(crate::traffic::ping(from, ip("10.88.0.1")?, 56, 2)? == 2)
}

/// The number of seconds in a day.
const DAY: u32 = 24 * 60 * 60;

/// Returns the time of day in seconds at which a program logged a line: `2026-11-22 21:25:12 ...`.
fn logged_at(line: &str) -> Result<u32> {
    let time = line.split(' ').nth(1).unwrap_or_default();
    let parts: Vec<u32> = time.split(':').filter_map(|part| part.parse().ok()).collect();
    let [hours, minutes, seconds] = parts.try_into().map_err(|_| format!("no time in {line}"))?;
    Ok((hours * 60 + minutes) * 60 + seconds)
}

/// An openvpn server sends AUTH_FAILED,TEMP. The client waits that long, and comes back to this
/// server or goes on to the next one, as the message says.
pub(super) fn auth_failed_temporary(scenario: &Scenario<'_>) -> Result<String> {
    let folder = scenario.folder();
    let mark = folder.join("seen");
    let credentials = folder.join("credentials");
    fs::write(&credentials, "ali\nopen sesame\n")?;
    let mut configs = scenario.configs();
    let script = configs.check_passwords(folder, "exit 1")?;
    configs.client(&format!(
        "auth-user-pass {}\nremote 192.0.2.1 1195\nconnect-timeout 2\nconnect-retry 1 20",
        credentials.display()
    ));
    let script_says = |text: &str| -> Result<()> { file::write(&script, text, 0o755) };
    let pair = Pair::new()?;
    let mut server = serve(&pair, folder, &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    for (advance, elsewhere) in [("no", false), ("remote", true)] {
        let _ = fs::remove_file(&mark);
        script_says(&format!(
            "#!/bin/sh\n[ -e {mark} ] && exit 0\ntouch {mark}\n\
                 echo 'TEMP[backoff 5,advance {advance}]:later' > \"$auth_failed_reason_file\"\nexit 1\n",
            mark = mark.display()
        ))?;
        let mut client = dial(&pair, folder, &configs, scenario.client)?;
        let refused = client
            .wait_for("AUTH_FAILED,TEMP", SETUP_LIMIT)
            .map_err(|e| format!("{e}\n{}", server.failure("meanwhile")))?;
        let ready = client.wait_for(READY, SETUP_LIMIT)?;
        // Measure by the client's own clock, because on a busy machine this process may read the client's log late.
        let waited = (logged_at(&ready)? + DAY - logged_at(&refused)?) % DAY;
        ensure(waited >= 5, || format!("it waited {waited} of five seconds"))?;
        let tried = client.log().contains("192.0.2.1:1195");
        ensure(tried == elsewhere, || client.failure(&format!("advance {advance}")).0)?;
        ping_until(&pair.client, ip("10.88.0.1")?, SOON)?;
        client.stop()?;
    }
    Ok(String::new())
}

/// A client is configured with compression, and its server migrates it to no compression.
pub(super) fn compress_migrate(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server("compress migrate");
    for line in ["comp-lzo no", "compress stub-v2", ""] {
        let mut configs = configs.clone();
        configs.client(line);
        let tunnel = scenario.tunnel(&configs)?;
        tunnel.ping_all(4)?;
    }
    Ok(String::new())
}

/// Changed options reach a connected client while its tunnel stays up. The options of a 2.7 server are changed through its management
/// socket.
pub(super) fn push_update(scenario: &Scenario<'_>) -> Result<String> {
    use std::io::Write;
    let mut configs = scenario.configs();
    let socket = scenario.folder().join("management");
    configs.server(&format!(
        "management {} unix\npush \"route 10.61.0.0 255.255.0.0\"",
        socket.display()
    ));
    configs.server("disable-dco");
    let tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    let known = routes(&tunnel.pair.client)?;
    ensure(known.contains("10.61.0.0/16"), || known.clone())?;
    let management = std::os::unix::net::UnixStream::connect(&socket).context("management")?;
    let client = &tunnel.pair.client;
    let until = |command: &str, done: &dyn Fn(&str) -> bool| -> Result<()> {
        writeln!(&management, "push-update-broad \"{command}\"")?;
        let end = ScaledInstant::now() + SOON;
        loop {
            let known = routes(client)?;
            if done(&known) {
                return Ok(());
            }
            ensure(ScaledInstant::now() < end, || {
                format!("{command} had no effect: {known}\n{}", tunnel.client.failure(""))
            })?;
            std::thread::sleep(Duration::from_millis(100));
        }
    };
    until("route 10.62.0.0 255.255.0.0, route 10.63.0.0 255.255.0.0", &|known| {
        known.contains("10.62.0.0/16")
            && known.contains("10.63.0.0/16")
            && !known.contains("10.61.0.0/16")
    })?;
    until("-route, ?new-thing of the future", &|known| !known.contains("10.62.0.0/16"))?;
    tunnel.ping_all(4)?;
    ensure(tunnel.client.count(READY) == 1, || tunnel.client.failure("it began again").0)?;
    ensure(!tunnel.client.log().contains("estarting"), || tunnel.client.failure("it restarted").0)?;
    Ok(String::new())
}

/// `adit server` with changed settings. `adit reload` changes the routes of a connected 2.7 client.
pub(super) fn reload_reaches_clients(scenario: &Scenario<'_>) -> Result<String> {
    let Program::Adit(adit) = scenario.server else { return Err("adit serves here".into()) };
    let (pair, folder) = (Pair::new()?, scenario.folder());
    let settings = folder.join("vpn/server.toml");
    let path = |name: &str| folder.join(name).display().to_string();
    let (vpn, profile) = (path("vpn"), path("laptop.ovpn"));
    let adit = adit.display().to_string();
    let ask = |line: &str| {
        let words: Vec<&str> = line.split(' ').chain(["--dir", &vpn]).collect();
        pair.server.run(&adit, &words)
    };
    ask("server init --host 192.0.2.1 --network 10.88.0.0/24 --network6 fd88::/64")?;
    ask(&format!("server client add laptop -o {profile}"))?;
    let mut command = pair.server.command(&adit);
    command.args(["server", "run", "--dir", &vpn]);
    let mut server = Daemon::spawn("server", command)?;
    server.wait_for("the server is up", SETUP_LIMIT)?;
    let mut options: Vec<std::ffi::OsString> = vec!["--config".into(), profile.into()];
    options.extend(["--dev", "tun0", "--verb", "3", "--disable-dco"].map(Into::into));
    let mut client = Daemon::spawn("client", scenario.client.command_with(&pair.client, &options))?;
    client.wait_for(READY, SETUP_LIMIT)?;
    let first = ping_until(&pair.client, ip("10.88.0.1")?, SOON);
    first.map_err(|e| format!("{e}\n{}\n{}", client.log(), server.failure("")))?;
    for (from, to, there) in [
        ("routes = []", "routes = [\"10.62.0.0/16\", \"10.63.0.0/16\"]", true),
        ("routes = [\"10.62.0.0/16\", \"10.63.0.0/16\"]", "routes = []", false),
    ] {
        let text = fs::read_to_string(&settings)?;
        ensure(text.contains(from), || format!("{from} is not in the settings: {text}"))?;
        fs::write(&settings, text.replace(from, to))?;
        ask("reload")?;
        let end = ScaledInstant::now() + SOON;
        loop {
            let known = routes(&pair.client)?;
            if ["10.62.0.0/16", "10.63.0.0/16"].iter().all(|net| known.contains(net) == there) {
                break;
            }
            ensure(ScaledInstant::now() < end, || {
                format!(
                    "{to} had no effect: {known}\n{}\n{}",
                    client.failure(""),
                    server.failure("")
                )
            })?;
            std::thread::sleep(Duration::from_millis(100));
        }
        // openvpn 2.7 removes the device's addresses for a moment.
        while !ping_ok(&pair.client).unwrap_or(false) {
            ensure(ScaledInstant::now() < end, || client.failure("no ping after an update").0)?;
            std::thread::sleep(Duration::from_millis(100));
        }
    }
    // It reopens its device each time, but the session is the same.
    ensure(client.count(HANDSHAKE) == 1, || client.failure("it began again").0)?;
    Ok(String::new())
}
