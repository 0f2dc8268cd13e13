//! Tests of streams through proxies, and of a port shared with a web server.

use std::fs;
use std::io::{Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::path::Path;
use std::sync::mpsc;
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::Duration;

use super::Scenario;
use crate::case::{Configs, Tunnel};
use crate::failure::{Context, Result, ensure};
use crate::net::{End, Namespace, Pair};
use crate::process::Daemon;
use crate::wait::{ScaledInstant, until};

/// The server's address. Only the proxy's host can reach it.
const HIDDEN: &str = "198.18.0.1";
/// Another address of the proxy's host, which is behind a router.
const PROXY: Ipv4Addr = Ipv4Addr::new(198, 18, 7, 1);
/// The other address at which a proxy accepts datagrams.
const RELAY: Ipv4Addr = Ipv4Addr::new(198, 18, 8, 1);
/// The port of tinyproxy.
pub(super) const HTTP_PORT: u16 = 8888;
/// The port of microsocks and dante.
pub(super) const SOCKS_PORT: u16 = 1080;
/// The login of tinyproxy and microsocks.
pub(super) const LOGIN: &str = "ann\nsecret\n";

/// Creates a server behind the proxy's host, and configurations to reach it over TCP.
fn behind(scenario: &Scenario<'_>) -> Result<(Pair, Configs)> {
    let pair = Pair::new()?;
    for address in [HIDDEN, &PROXY.to_string(), &RELAY.to_string()] {
        pair.server.run("ip", &["address", "add", &format!("{address}/32"), "dev", "lo"])?;
    }
    let mut configs = over_tcp(scenario);
    let near = End::Server.outer(false).to_string();
    configs.client = configs.client.replace(&format!("remote {near}"), &format!("remote {HIDDEN}"));
    let login = scenario.folder().join("login");
    fs::write(&login, LOGIN)?;
    Ok((pair, configs))
}

/// Reverts the changes of [`over_tcp`].
fn over_udp(configs: &mut Configs) {
    for lines in [&mut configs.server, &mut configs.client] {
        *lines = lines
            .replace("proto tcp4-server", "proto udp4")
            .replace("proto tcp4-client", "proto udp4");
    }
}

fn over_tcp(scenario: &Scenario<'_>) -> Configs {
    let mut configs = scenario.configs();
    configs.server = configs.server.replace("proto udp4", "proto tcp4-server");
    configs.client = configs.client.replace("proto udp4", "proto tcp4-client");
    configs.client = configs.client.replace("explicit-exit-notify 1\n", "");
    configs
}

/// `http-proxy` with Basic authentication, through tinyproxy.
pub(super) fn http(scenario: &Scenario<'_>) -> Result<String> {
    let (pair, mut configs) = behind(scenario)?;
    let proxy = tinyproxy(scenario.folder(), &pair.server)?;
    configs.client(&http_proxy(scenario));
    through(scenario, pair, &configs, proxy, HTTP_PORT)
}

/// The same server in two `<connection>` blocks. Without the proxy it cannot be reached.
pub(super) fn http_in_a_block(scenario: &Scenario<'_>) -> Result<String> {
    let (pair, mut configs) = behind(scenario)?;
    let proxy = tinyproxy(scenario.folder(), &pair.server)?;
    let lines = configs.client.lines().filter(|line| !line.starts_with("remote "));
    configs.client = lines.map(|line| format!("{line}\n")).collect();
    let block = |more: &str| {
        format!(
            "<connection>\nremote {HIDDEN} 1194 tcp4-client\nconnect-timeout 2\n{more}\n</connection>"
        )
    };
    configs.client(&block(""));
    configs.client(&block(&http_proxy(scenario)));
    through(scenario, pair, &configs, proxy, HTTP_PORT)
}

fn http_proxy(scenario: &Scenario<'_>) -> String {
    let (near, login) = (End::Server.outer(false), scenario.folder().join("login"));
    format!("http-proxy {near} {HTTP_PORT} {} basic", login.display())
}

/// Starts tinyproxy on `host`, with its configuration in `folder`.
pub(super) fn tinyproxy(folder: &Path, host: &Namespace) -> Result<Daemon> {
    let path = folder.join("tinyproxy.conf");
    let text = format!(
        "Port {HTTP_PORT}\nListen 0.0.0.0\nTimeout 600\nMaxClients 20\nAllow 0.0.0.0/0\nConnectPort 1194\n\
         BasicAuth ann secret\nDisableViaHeader Yes\n"
    );
    fs::write(&path, text)?;
    let mut command = host.command("tinyproxy");
    command.arg("-d").arg("-c").arg(&path);
    Daemon::spawn("tinyproxy", command)
}

/// `socks-proxy` with user name and password, through microsocks.
pub(super) fn socks(scenario: &Scenario<'_>) -> Result<String> {
    let (pair, mut configs) = behind(scenario)?;
    let proxy = microsocks(&pair.server)?;
    configs.client(&socks_proxy(scenario));
    through(scenario, pair, &configs, proxy, SOCKS_PORT)
}

fn microsocks(host: &Namespace) -> Result<Daemon> {
    let mut command = host.command("microsocks");
    command.args(["-p", &SOCKS_PORT.to_string(), "-u", "ann", "-P", "secret"]);
    Daemon::spawn("microsocks", command)
}

fn socks_proxy(scenario: &Scenario<'_>) -> String {
    let (near, login) = (End::Server.outer(false), scenario.folder().join("login"));
    format!("socks-proxy {near} {SOCKS_PORT} {}", login.display())
}

/// `socks-proxy` over UDP, through dante, which relays datagrams.
pub(super) fn socks_udp(scenario: &Scenario<'_>) -> Result<String> {
    let (pair, configs, proxy) = relayed(scenario)?;
    through(scenario, pair, &configs, proxy, SOCKS_PORT)
}

/// The proxy ends and starts again, which loses the association. The client reconnects at once, long before its
/// timeout.
fn relay_restarts(scenario: &Scenario<'_>) -> Result<String> {
    let (pair, mut configs, proxy) = relayed(scenario)?;
    configs.client("connect-retry 1 2");
    let port = SocketAddr::new(End::Server.outer(false), SOCKS_PORT);
    wait_for_port(&pair.client, port)?;
    let mut tunnel =
        Tunnel::start(pair, scenario.folder(), &configs, scenario.server, scenario.client)?;
    tunnel.ping_all(4)?;
    end(&tunnel.pair.server, proxy)?;
    let _proxy = dante(scenario.folder(), &tunnel.pair.server, &relay_addresses())?;
    let back = ScaledInstant::now();
    tunnel.client.wait_for_nth(crate::case::READY, 2, Duration::from_secs(15))?;
    super::ping_until(&tunnel.pair.client, tunnel.server_inner.v4, Duration::from_secs(10))?;
    ensure(tunnel.client.count("nactivity timeout") == 0, || {
        tunnel.client.failure("it missed the server").0
    })?;
    Ok(format!("back after {} ms", back.elapsed().as_millis()))
}

/// Returns the proxy's addresses, and those from which it connects to servers.
fn relay_addresses() -> ([IpAddr; 2], Vec<String>) {
    let near = End::Server.outer(false);
    ([near, PROXY.into()], vec!["lo".to_owned(), near.to_string()])
}

/// Creates a server behind dante, and configurations to reach it over UDP.
fn relayed(scenario: &Scenario<'_>) -> Result<(Pair, Configs, Daemon)> {
    let (pair, mut configs) = behind(scenario)?;
    over_udp(&mut configs);
    for end in [&pair.server, &pair.client] {
        end.run("ip", &["link", "set", "lo", "up"])?;
    }
    let proxy = dante(scenario.folder(), &pair.server, &relay_addresses())?;
    configs.client(&format!("socks-proxy {} {SOCKS_PORT}", End::Server.outer(false)));
    Ok((pair, configs, proxy))
}

/// Starts dante on `host`, with its configuration in `folder`, at these addresses, and with the addresses or devices
/// from which it connects to servers.
pub(super) fn dante(
    folder: &Path,
    host: &Namespace,
    (internal, external): &([IpAddr; 2], Vec<String>),
) -> Result<Daemon> {
    let path = folder.join("danted.conf");
    let internal: String = internal
        .iter()
        .map(|address| format!("internal: {address} port = {SOCKS_PORT}\n"))
        .collect();
    let external: String = external.iter().map(|from| format!("external: {from}\n")).collect();
    let text = format!(
        "logoutput: stderr\n{internal}{external}external.rotation: route\nclientmethod: none\n\
         socksmethod: none\nuser.privileged: root\nuser.unprivileged: root\n\
         client pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 }}\n\
         socks pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 command: udpassociate }}\n\
         socks pass {{ from: 0.0.0.0/0 to: 0.0.0.0/0 command: udpreply }}\n"
    );
    fs::write(&path, text)?;
    let mut command = host.command("danted");
    command.arg("-f").arg(&path);
    Daemon::spawn("danted", command)
}

/// The way in which all traffic is routed into the tunnel.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Routing {
    /// Two half-size default routes in the main table, as openvpn sets them.
    Main,
    /// A separate table of adit, for packets without a mark.
    Rules,
}

/// The scenarios that openvpn in adit's place fails, because it has no rules, does not restore its host route, and does
/// not notice that a relay has ended.
pub(super) const ADIT_ALONE: &[(&str, super::ScenarioFn)] = &[
    ("socks-proxy-udp-restarts", relay_restarts),
    ("http-proxy-all-traffic", |scenario| http_with_all_traffic(scenario, Routing::Main)),
    ("http-proxy-all-traffic-by-rules", |scenario| http_with_all_traffic(scenario, Routing::Rules)),
    ("socks-proxy-all-traffic", |scenario| socks_with_all_traffic(scenario, Routing::Main)),
    ("socks-proxy-all-traffic-by-rules", |scenario| {
        socks_with_all_traffic(scenario, Routing::Rules)
    }),
    ("socks-proxy-udp-all-traffic", |scenario| relay_with_all_traffic(scenario, Routing::Main)),
    ("socks-proxy-udp-all-traffic-by-rules", |scenario| {
        relay_with_all_traffic(scenario, Routing::Rules)
    }),
    ("socks-proxy-udp-relay-on-another-host", relay_on_another_host),
];

/// A proxy that accepts datagrams and connections at different addresses. Both stay outside the tunnel.
fn relay_on_another_host(scenario: &Scenario<'_>) -> Result<String> {
    let (pair, mut configs) = behind(scenario)?;
    over_udp(&mut configs);
    let near = End::Server.outer(false);
    pair.client.run("ip", &["route", "add", "default", "via", &near.to_string()])?;
    let proxy = two_addresses(&pair.server)?;
    configs.client(&format!("socks-proxy {PROXY} {SOCKS_PORT}\nredirect-gateway def1"));
    let tunnel =
        Tunnel::start(pair, scenario.folder(), &configs, scenario.server, scenario.client)?;
    tunnel.ping_all(4)?;
    let way = |to: &str| tunnel.pair.client.run("ip", &["route", "get", to]);
    ensure(way("198.51.100.1")?.contains(" dev tun"), || "not all traffic".to_owned())?;
    for address in [PROXY, RELAY] {
        let way = way(&address.to_string())?;
        ensure(!way.contains(" dev tun"), || tunnel.client.failure(&way).0)?;
    }
    // The proxy's thread ends with the client's connection.
    drop(tunnel);
    proxy.join().map_err(|_| "the proxy panicked")??;
    Ok(String::new())
}

/// Starts a SOCKS 5 proxy for one client, which sends its datagrams to [`RELAY`].
fn two_addresses(host: &Namespace) -> Result<JoinHandle<Result<()>>> {
    const HEADER: usize = 10;
    let (ready, wait) = mpsc::channel();
    let proxy = host.thread(move || {
        let listener = TcpListener::bind((PROXY, SOCKS_PORT))?;
        let (near, far) = (UdpSocket::bind((RELAY, 0))?, UdpSocket::bind("0.0.0.0:0")?);
        // The receiver is gone only if the other thread stopped waiting.
        let _ = ready.send(());
        let (mut control, _) = listener.accept()?;
        control.read_exact(&mut [0; 3])?;
        control.write_all(&[5, 0])?;
        control.read_exact(&mut [0; 10])?;
        let port = near.local_addr()?.port().to_be_bytes();
        control.write_all(&[&[5, 0, 0, 1][..], &RELAY.octets(), &port].concat())?;
        control.set_nonblocking(true)?;
        for socket in [&near, &far] {
            socket.set_read_timeout(Some(Duration::from_millis(200)))?;
        }
        let (client, back) = (Arc::new(OnceLock::new()), near.try_clone()?);
        let (to, from_servers) = (Arc::clone(&client), far.try_clone()?);
        let over = Arc::new(OnceLock::new());
        let ended = Arc::clone(&over);
        let inward = std::thread::spawn(move || {
            let mut buffer = [0; 65536];
            while ended.get().is_none() {
                let Ok((length, from)) = from_servers.recv_from(&mut buffer) else { continue };
                let (SocketAddr::V4(from), Some(to)) = (from, to.get()) else { continue };
                let header = [&[0, 0, 0, 1][..], &from.ip().octets(), &from.port().to_be_bytes()];
                let data = buffer.get(..length).unwrap_or_default();
                let _ = back.send_to(&[&header.concat()[..], data].concat(), to);
            }
        });
        let mut buffer = [0; 65536];
        while !matches!(control.read(&mut [0]), Ok(0)) {
            let Ok((length, from)) = near.recv_from(&mut buffer) else { continue };
            let _ = client.set(from);
            let packet = buffer.get(..length).unwrap_or_default();
            let Some((&[_, _, _, _, a, b, c, d, high, low], data)) =
                packet.split_first_chunk::<HEADER>()
            else {
                continue;
            };
            let to = (Ipv4Addr::new(a, b, c, d), u16::from_be_bytes([high, low]));
            let _ = far.send_to(data, to);
        }
        let _ = over.set(());
        inward.join().map_err(|_| "the proxy's other direction panicked")?;
        Ok(())
    })?;
    wait.recv_timeout(Duration::from_secs(5)).context("the proxy did not start")?;
    Ok(proxy)
}

fn http_with_all_traffic(scenario: &Scenario<'_>, routing: Routing) -> Result<String> {
    let (pair, mut configs) = behind(scenario)?;
    let _proxy = tinyproxy(scenario.folder(), &pair.server)?;
    configs.client(&http_proxy(scenario));
    all_traffic(scenario, pair, configs, HTTP_PORT, routing)
}

fn socks_with_all_traffic(scenario: &Scenario<'_>, routing: Routing) -> Result<String> {
    let (pair, mut configs) = behind(scenario)?;
    let _proxy = microsocks(&pair.server)?;
    configs.client(&socks_proxy(scenario));
    all_traffic(scenario, pair, configs, SOCKS_PORT, routing)
}

fn relay_with_all_traffic(scenario: &Scenario<'_>, routing: Routing) -> Result<String> {
    let (pair, configs, _proxy) = relayed(scenario)?;
    all_traffic(scenario, pair, configs, SOCKS_PORT, routing)
}

/// The proxy's address stays outside the tunnel, although a route into the tunnel covers it. If another program routes
/// it into the tunnel, the transport's packets are dropped and counted there, and afterwards the tunnel works again.
fn all_traffic(
    scenario: &Scenario<'_>,
    pair: Pair,
    mut configs: Configs,
    port: u16,
    routing: Routing,
) -> Result<String> {
    let near = End::Server.outer(false);
    pair.client.run("ip", &["route", "add", "default", "via", &near.to_string()])?;
    wait_for_port(&pair.client, SocketAddr::new(PROXY.into(), port))?;
    configs.client = configs.client.replace(&format!("proxy {near}"), &format!("proxy {PROXY}"));
    configs.client("redirect-gateway def1 ipv6\nroute 198.18.7.0 255.255.255.0");
    if routing == Routing::Rules {
        configs.client("policy-routing on");
    }
    let tunnel =
        Tunnel::start(pair, scenario.folder(), &configs, scenario.server, scenario.client)?;
    tunnel.ping_all(4)?;
    let (inside, client, laptop) = (tunnel.server_inner.v4, &tunnel.client, &tunnel.pair.client);
    let ip = |line: &str| laptop.run("ip", &line.split(' ').collect::<Vec<_>>());
    let others = ip("route get 198.51.100.1")?;
    ensure(others.contains(" dev tun"), || format!("not all traffic: {others}"))?;
    let outside = || -> Result<bool> {
        // With rules, the mark selects the table.
        let mark = if routing == Routing::Rules { " mark 0xad17" } else { "" };
        Ok(!ip(&format!("route get {PROXY}{mark}"))?.contains(" dev tun"))
    };
    ensure(outside()?, || client.failure("the proxy is in the tunnel").0)?;
    ip(&format!("route replace {PROXY}/32 dev tun0"))?;
    let limit = Duration::from_secs(20);
    until("recursive packets are dropped and counted", limit, || {
        let _ = crate::traffic::silent(laptop, inside)?;
        Ok(client.count("recursive routing: ") > 0)
    })
    .map_err(|failure| client.failure(&failure.0))?;
    ip(&format!("route delete {PROXY}/32 dev tun0"))?;
    let took = super::ping_until(laptop, inside, Duration::from_secs(40))
        .map_err(|failure| client.failure(&failure.0))?;
    ensure(outside()?, || client.failure("the proxy is in the tunnel again").0)?;
    Ok(format!("back after {} ms", took.as_millis()))
}

fn through(
    scenario: &Scenario<'_>,
    pair: Pair,
    configs: &Configs,
    proxy: Daemon,
    port: u16,
) -> Result<String> {
    let address = SocketAddr::new(End::Server.outer(false), port);
    wait_for_port(&pair.client, address)?;
    let tunnel = Tunnel::start(pair, scenario.folder(), configs, scenario.server, scenario.client)
        .map_err(|failure| format!("{failure}\n{}", proxy.failure("the proxy")))?;
    tunnel.ping_all(4)?;
    needs(&tunnel, proxy)
}

/// A static key over TCP, point to point. The dialling end must use tinyproxy.
pub(super) fn http_point_to_point(scenario: &Scenario<'_>) -> Result<String> {
    let (pair, _) = behind(scenario)?;
    let proxy = tinyproxy(scenario.folder(), &pair.server)?;
    let mut configs = super::p2p::secret_on_stream(scenario, false, false);
    let near = End::Server.outer(false);
    configs.client = configs.client.replace(&format!("remote {near}"), &format!("remote {HIDDEN}"));
    configs.client(&http_proxy(scenario));
    wait_for_port(&pair.client, SocketAddr::new(near, HTTP_PORT))?;
    let tunnel = super::p2p::start_on_stream(scenario, &configs, pair)?;
    needs(&tunnel, proxy)
}

/// Ends the proxy, after which the tunnel must end.
fn needs(tunnel: &Tunnel, proxy: Daemon) -> Result<String> {
    end(&tunnel.pair.server, proxy)?;
    let address = tunnel.server_inner.v4;
    let end = ScaledInstant::now() + Duration::from_secs(10);
    while !crate::traffic::silent(&tunnel.pair.client, address)? {
        ensure(ScaledInstant::now() < end, || {
            tunnel.client.failure("it does not need the proxy").0
        })?;
    }
    Ok(String::new())
}

/// Kills a proxy.
fn end(host: &Namespace, mut proxy: Daemon) -> Result<()> {
    // Its helpers are killed first, because they would continue without it. Not all proxies have helpers.
    let _ = host.run("pkill", &["-KILL", "-P", &proxy.pid().to_string()]);
    proxy.signal(nix::sys::signal::Signal::SIGKILL)?;
    proxy.wait_exit(Duration::from_secs(5)).map(drop)
}

/// Waits until a proxy can be reached.
pub(super) fn wait_for_port(from: &Namespace, address: SocketAddr) -> Result<()> {
    let connected = from.thread(move || {
        for _ in 0..50 {
            if TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok() {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(false)
    })?;
    let connected = connected.join().map_err(|_| "a thread panicked")??;
    ensure(connected, || format!("nobody listens on {address}"))
}

/// `port-share`. A browser that connects to the tunnel's port reaches the web server, while a client has its tunnel
/// through the same port.
pub(super) fn port_share(scenario: &Scenario<'_>) -> Result<String> {
    let pair = Pair::new()?;
    let mut configs = over_tcp(scenario);
    configs.server("port-share 127.0.0.1 8080");
    pair.server.run("ip", &["link", "set", "lo", "up"])?;
    let (ready, wait) = mpsc::channel();
    let web = pair.server.thread(move || -> Result<()> {
        let listener = TcpListener::bind("127.0.0.1:8080")?;
        // The receiver is gone only if the other thread stopped waiting.
        let _ = ready.send(());
        for _ in 0..2 {
            let (mut connection, _) = listener.accept()?;
            let mut request = [0; 18];
            connection.read_exact(&mut request)?;
            connection.write_all(b"HTTP/1.0 200 OK\r\n\r\nhello")?;
        }
        Ok(())
    })?;
    wait.recv_timeout(Duration::from_secs(5)).context("the web server did not start")?;
    let tunnel =
        Tunnel::start(pair, scenario.folder(), &configs, scenario.server, scenario.client)?;
    for _ in 0..2 {
        let page = tunnel.pair.client.thread(|| -> Result<String> {
            let mut connection = TcpStream::connect("192.0.2.1:1194")?;
            connection.set_read_timeout(Some(Duration::from_secs(10)))?;
            connection.write_all(b"GET / HTTP/1.0\r\n\r\n")?;
            let mut page = String::new();
            connection.read_to_string(&mut page)?;
            Ok(page)
        })?;
        let page = page.join().map_err(|_| "the browser panicked")??;
        ensure(page.ends_with("hello"), || tunnel.server.failure(&format!("got {page:?}")).0)?;
        tunnel.ping_all(4)?;
    }
    web.join().map_err(|_| "the web server panicked")??;
    Ok(String::new())
}
