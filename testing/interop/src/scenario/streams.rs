//! Tests of tunnels over TCP: each wrapping, broken connections, several listeners in one process, and unauthenticated clients that hold
//! connections open.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpStream};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Scenario, ping_until};
use crate::case::{Configs, READY, SETUP_LIMIT, Tunnel, dial, inner_addrs, rekeys, serve};
use crate::failure::{Context, Result, ensure};
use crate::matrix::Wrapping;
use crate::net::{End, Namespace, Pair, Star};
use crate::peer::Program;
use crate::pki::PkiTool;
use crate::process::{Daemon, command_line};
use crate::traffic::{Stream, ping, tcp};
use crate::wait::ScaledInstant;

/// The log line of every program at both ends when a TCP connection ends under a session; a number follows.
const CUT: &str = "Connection reset, restarting [";

/// Creates plain configurations over TCP.
fn configs(scenario: &Scenario<'_>, wrapping: Wrapping, v6: bool) -> Configs {
    let mut configs = Configs::new(&scenario.env.pki, PkiTool::OpenSslEc, v6);
    configs.wrap(&scenario.env.pki, wrapping);
    let (family, server) = if v6 { ("udp6", "tcp6-server") } else { ("udp4", "tcp4-server") };
    configs.server = configs.server.replace(&format!("proto {family}"), &format!("proto {server}"));
    let client = server.replace("server", "client");
    configs.client = configs.client.replace(&format!("proto {family}"), &format!("proto {client}"));
    // openvpn 2.5 refuses the directive over TCP.
    configs.client = configs.client.replace("explicit-exit-notify 1\n", "");
    configs.client("connect-retry 1 2");
    for (program, lines) in
        [(scenario.server, &mut configs.server), (scenario.client, &mut configs.client)]
    {
        // The kernel's module, if present, is a different implementation.
        if program.may_offload() {
            lines.push_str("disable-dco\n");
        }
    }
    configs
}

pub(super) fn bare4(scenario: &Scenario<'_>) -> Result<String> {
    rekeyed(scenario, Wrapping::None, false, true)
}
pub(super) fn bare6(scenario: &Scenario<'_>) -> Result<String> {
    rekeyed(scenario, Wrapping::None, true, false)
}
pub(super) fn auth4(scenario: &Scenario<'_>) -> Result<String> {
    rekeyed(scenario, Wrapping::TlsAuth, false, false)
}
pub(super) fn auth6(scenario: &Scenario<'_>) -> Result<String> {
    rekeyed(scenario, Wrapping::TlsAuth, true, true)
}
pub(super) fn crypt4(scenario: &Scenario<'_>) -> Result<String> {
    rekeyed(scenario, Wrapping::TlsCrypt, false, true)
}
pub(super) fn crypt6(scenario: &Scenario<'_>) -> Result<String> {
    rekeyed(scenario, Wrapping::TlsCrypt, true, false)
}
pub(super) fn own4(scenario: &Scenario<'_>) -> Result<String> {
    rekeyed(scenario, Wrapping::TlsCryptV2, false, false)
}
pub(super) fn own6(scenario: &Scenario<'_>) -> Result<String> {
    rekeyed(scenario, Wrapping::TlsCryptV2, true, true)
}

/// Runs a tunnel through two rekeys that one end initiates, under traffic that must arrive without loss.
fn rekeyed(
    scenario: &Scenario<'_>,
    wrapping: Wrapping,
    v6: bool,
    client_rekeys: bool,
) -> Result<String> {
    let mut configs = configs(scenario, wrapping, v6);
    let (often, never) = ("reneg-sec 5\nhand-window 5", "reneg-sec 0");
    let (at_server, at_client) = if client_rekeys { (never, often) } else { (often, never) };
    configs.server(at_server);
    configs.client(at_client);
    let mut tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    let to = tunnel.server_inner.newest();
    let up = Stream::start(&tunnel.pair.client, &tunnel.pair.server, to, 1400)?;
    let end = ScaledInstant::now() + Duration::from_secs(40);
    while rekeys(&tunnel.server).min(rekeys(&tunnel.client)) < 2 {
        ensure(ScaledInstant::now() < end, || {
            let (server, client) = (tunnel.server.failure(""), tunnel.client.failure(""));
            format!("too few rekeys\n{server}\n{client}")
        })?;
        std::thread::sleep(Duration::from_millis(100));
    }
    std::thread::sleep(Duration::from_millis(1500));
    let delivery = up.finish()?;
    let dropped = tunnel.pair.dropped()?;
    ensure(
        delivery.duplicated == 0
            && delivery.corrupted == 0
            && u64::from(delivery.sent - delivery.received) <= dropped,
        || format!("across rekeys: {delivery:?}, the kernel dropped {dropped}"),
    )?;
    tcp(&tunnel.pair.client, &tunnel.pair.server, tunnel.server_inner.v4, 3_000_000)?;
    tcp(&tunnel.pair.server, &tunnel.pair.client, tunnel.client_inner.v4, 3_000_000)?;
    tunnel.client.stop()?;
    tunnel.server.wait_for(CUT, Duration::from_secs(5))?;
    tunnel.server.stop()?;
    Ok(format!("{} datagrams", delivery.sent))
}

/// Resets every connection at the server's port for as long as `while_cut` runs.
fn cut<T>(server: &Namespace, while_cut: impl FnOnce() -> Result<T>) -> Result<T> {
    let chain = "{ type filter hook input priority -300 ; }";
    server.run("nft", &["add", "table", "inet", "cut"])?;
    server.run("nft", &["add", "chain", "inet", "cut", "input", chain])?;
    let rule = "tcp dport 1194 reject with tcp reset";
    server.run("nft", &["add", "rule", "inet", "cut", "input", rule])?;
    let done = while_cut();
    server.run("nft", &["delete", "table", "inet", "cut"])?;
    done
}

/// A host on the path resets the connection during a transfer; both ends notice, and the client reconnects on its own
/// with the same address.
pub(super) fn connection_reset(scenario: &Scenario<'_>) -> Result<String> {
    let configs = configs(scenario, Wrapping::TlsCrypt, false);
    let mut tunnel = scenario.tunnel(&configs)?;
    tunnel.ping_all(4)?;
    let (former, inside) = (tunnel.client_inner.v4, tunnel.server_inner.v4);
    let Tunnel { server, client, pair, .. } = &mut tunnel;
    cut(&pair.server, || {
        // The end that sends first matches the rule.
        let _ = crate::traffic::silent(&pair.client, inside)?;
        client.wait_for(CUT, Duration::from_secs(10)).map(drop)
    })?;
    client
        .wait_for_nth(READY, 2, SETUP_LIMIT)
        .map_err(|e| format!("{e}\n{}", server.failure("")))?;
    let took = ping_until(&pair.client, inside, Duration::from_secs(10))?;
    let now = inner_addrs(&pair.client)?.v4;
    ensure(now == former, || format!("had {former}, has {now}"))?;
    Ok(format!("back after {} ms", took.as_millis()))
}

/// Either end is killed. The kernel reports it to the other, which need not wait for a timeout.
pub(super) fn killed(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = configs(scenario, Wrapping::TlsCryptV2, false);
    // The timeouts are so long that they cannot cause any of the reactions here.
    configs.server = configs.server.replace("keepalive 2 20", "keepalive 60 600");
    let mut tunnel = scenario.tunnel(&configs)?;
    tunnel.client.signal(Signal::SIGKILL)?;
    tunnel.client.wait_exit(Duration::from_secs(5))?;
    tunnel.server.wait_for(CUT, Duration::from_secs(5))?;
    tunnel.client = dial(&tunnel.pair, scenario.folder(), &configs, scenario.client)?;
    tunnel.client.wait_for(READY, SETUP_LIMIT)?;
    tunnel.ping_all(4)?;
    tunnel.server.signal(Signal::SIGKILL)?;
    tunnel.server.wait_exit(Duration::from_secs(5))?;
    tunnel.client.wait_for(CUT, Duration::from_secs(5))?;
    tunnel.server = serve(&tunnel.pair, scenario.folder(), &configs, scenario.server)?;
    tunnel.server.wait_for(READY, SETUP_LIMIT)?;
    tunnel.client.wait_for_nth(READY, 2, SETUP_LIMIT)?;
    let took = ping_until(&tunnel.pair.client, tunnel.server_inner.v4, Duration::from_secs(10))?;
    tunnel.ping_all(4)?;
    Ok(format!("back, first answer after {} ms", took.as_millis()))
}

/// UDP is blocked on the path, as in many hotels. The client tries the same server's TCP port next.
pub(super) fn fallback(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = configs(scenario, Wrapping::TlsCrypt, false);
    configs.client = configs.client.replace("proto tcp4-client\n", "").replace(
        "remote 192.0.2.1 1194",
        "remote 192.0.2.1 1195 udp4\nremote 192.0.2.1 1194 tcp4-client\nserver-poll-timeout 3",
    );
    let pair = Pair::new()?;
    let chain = "{ type filter hook input priority -300 ; }";
    pair.server.run("nft", &["add", "table", "inet", "block"])?;
    pair.server.run("nft", &["add", "chain", "inet", "block", "input", chain])?;
    let rule = "udp dport 1195 drop";
    pair.server.run("nft", &["add", "rule", "inet", "block", "input", rule])?;
    let tunnel =
        Tunnel::start(pair, scenario.folder(), &configs, scenario.server, scenario.client)?;
    tunnel.ping_all(4)?;
    Ok(String::new())
}

/// One process with two UDP ports and two TCP ports. Its clients share one network, and one of them changes the
/// transport.
pub(super) fn several_listeners(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server("duplicate-cn\nclient-to-client");
    configs.server = configs.server.replace("proto udp4\n", "").replace("port 1194\n", "");
    configs.server(
        "local * 1194 udp4\nlocal 192.0.2.1 1195 udp4\nlocal * 1194 tcp4\nlocal 192.0.2.1 443 tcp4",
    );
    let ports = [(1194, "udp4"), (1195, "udp4"), (1194, "tcp4-client"), (443, "tcp4-client")];
    let star = Star::new(4)?;
    let path = |name: &str| scenario.folder().join(name);
    fs::write(path("server.conf"), &configs.server)?;
    let command = scenario.server.command(&star.server, &path("server.conf"));
    let mut server = Daemon::spawn("server", command)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let (mut clients, mut inner) = (Vec::new(), Vec::new());
    for (namespace, (port, proto)) in star.clients.iter().zip(ports) {
        let file = path(&format!("client-{port}-{proto}.conf"));
        let remote = format!("remote 192.0.2.1 {port} {proto}");
        let lines = configs.client.replace("remote 192.0.2.1 1194", &remote);
        fs::write(&file, lines.replace("proto udp4\n", ""))?;
        let mut client = Daemon::spawn("client", scenario.client.command(namespace, &file))?;
        client
            .wait_for(READY, SETUP_LIMIT)
            .map_err(|e| format!("{e}\n{}", server.failure("meanwhile")))?;
        inner.push(inner_addrs(namespace)?.v4);
        clients.push(client);
    }
    let mut distinct = inner.clone();
    distinct.sort();
    distinct.dedup();
    ensure(distinct.len() == ports.len(), || format!("one pool for all: {inner:?}"))?;
    for (from, namespace) in star.clients.iter().enumerate() {
        for (to, address) in inner.iter().enumerate().filter(|(to, _)| *to != from) {
            ping_until(namespace, *address, Duration::from_secs(5))
                .map_err(|e| format!("client {from} to {to}: {e}"))?;
        }
    }
    let at = |n: usize| star.clients.get(n).context("four were asked for");
    let address = |n: usize| inner.get(n).copied().context("four were asked for");
    tcp(at(0)?, at(3)?, address(3)?, 2_000_000)?;
    tcp(at(3)?, at(1)?, address(1)?, 2_000_000)?;
    tcp(at(2)?, at(3)?, address(3)?, 2_000_000)?;
    Ok(String::new())
}

/// Opens connections to the server from the client's namespace, which send nothing.
fn silent(pair: &Pair, count: usize) -> Result<Vec<TcpStream>> {
    let server = SocketAddr::new(End::Server.outer(false), 1194);
    let opened = pair.client.thread(move || {
        let timeout = Duration::from_secs(2);
        Ok((0..count).filter_map(|_| TcpStream::connect_timeout(&server, timeout).ok()).collect())
    })?;
    opened.join().map_err(|_| "a thread panicked")?
}

/// A thousand connections send a byte every few seconds and never a packet. A real client can connect meanwhile, and
/// they are closed after ten seconds.
pub(super) fn slow_unauthenticated(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = configs(scenario, Wrapping::TlsCrypt, false);
    configs.server("max-clients 20");
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut strangers = silent(&pair, 1000)?;
    // The first byte of a length.
    strangers.iter_mut().for_each(|stream| drop(stream.write_all(&[0])));
    ensure(strangers.len() > 500, || format!("{} connections", strangers.len()))?;
    let before = server.cpu_seconds()?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    client.wait_for(READY, SETUP_LIMIT).map_err(|e| format!("{e}\n{}", server.failure("")))?;
    let inner = inner_addrs(&pair.server)?.v4;
    ensure(ping(&pair.client, inner, 56, 4)? == 4, || "pings are missing".into())?;
    let end = ScaledInstant::now() + Duration::from_secs(30);
    for stranger in &mut strangers {
        stranger.set_read_timeout(Some(
            end.saturating_duration_since(ScaledInstant::now()).max(Duration::from_millis(1)),
        ))?;
        let ended = matches!(stranger.read(&mut [0; 64]), Ok(0) | Err(_));
        ensure(ended && ScaledInstant::now() < end, || "a stranger is still there".into())?;
    }
    ensure(ping(&pair.client, inner, 56, 4)? == 4, || "pings are missing".into())?;
    let spent = server.cpu_seconds()? - before;
    ensure(spent < 5.0, || format!("{spent} s of CPU"))?;
    Ok(format!("{} strangers, {spent:.2} s of CPU", strangers.len()))
}

/// No descriptors are left. The server neither ends nor spins, and accepts clients again when some are free.
pub(super) fn no_descriptors(scenario: &Scenario<'_>) -> Result<String> {
    let configs = configs(scenario, Wrapping::TlsCrypt, false);
    let pair = Pair::new()?;
    let file = scenario.folder().join("server.conf");
    fs::write(&file, &configs.server)?;
    let Program::Adit(path) = scenario.server else { return Err("this is about adit".into()) };
    let mut command = pair.server.command("prlimit");
    command.arg("--nofile=64:64").arg(path).arg("openvpn").arg("--config").arg(&file);
    let shown = command_line(&command);
    let mut server = Daemon::spawn("server", command)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let strangers = silent(&pair, 100)?;
    server
        .wait_for("cannot accept TCP connections", Duration::from_secs(10))
        .map_err(|e| format!("$ {shown}\n{e}"))?;
    let before = server.cpu_seconds()?;
    std::thread::sleep(Duration::from_secs(3));
    let spent = server.cpu_seconds()? - before;
    ensure(spent < 1.0, || format!("{spent} s of CPU in 3 s: it spins"))?;
    ensure(server.count("cannot accept TCP connections") == 1, || server.failure("").0)?;
    drop(strangers);
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    client.wait_for(READY, SETUP_LIMIT).map_err(|e| format!("{e}\n{}", server.failure("")))?;
    let inner: IpAddr = inner_addrs(&pair.server)?.v4;
    ensure(ping(&pair.client, inner, 56, 4)? == 4, || "pings are missing".into())?;
    Ok(format!("{spent:.2} s of CPU without descriptors"))
}

/// A client of another protocol, and invalid lengths, at the port of a tunnel. The tunnel continues.
pub(super) fn other_protocols(scenario: &Scenario<'_>) -> Result<String> {
    let tunnel = scenario.tunnel(&configs(scenario, Wrapping::TlsCrypt, false))?;
    let noise: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        &[0, 0, 1, 2, 3],
        &[0xff; 4000],
        // A well-formed frame with a reset that is not authenticated.
        &[0, 14, 7 << 3, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0],
    ];
    for bytes in noise {
        let mut stream = silent(&tunnel.pair, 1)?.pop().context("a connection")?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        stream.write_all(bytes)?;
        let ended = match stream.read(&mut [0; 64]) {
            Ok(0) => true,
            Ok(_) => false,
            Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
        };
        ensure(ended, || tunnel.server.failure(&format!("answered {bytes:?}")).0)?;
    }
    tunnel.ping_all(4)?;
    ensure(tunnel.client.count(READY) == 1, || tunnel.client.failure("").0)?;
    Ok(String::new())
}
