//! Tests of point-to-point tunnels, with a static key, or with TLS but without a server.

use std::io::Write;
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{Scenario, ping_until};
use crate::case::{Configs, HANDSHAKE, READY, SETUP_LIMIT, Tunnel, dial, inner_addrs_on, serve};
use crate::failure::{Result, ensure};
use crate::matrix::Wrapping;
use crate::net::{End, Namespace, Pair};
use crate::peer::Program;
use crate::process::Daemon;
use crate::traffic::tcp;

/// The maximum interruption of traffic after an end was killed, which includes silence, openvpn's wait, and a
/// handshake.
const RECOVERY: Duration = Duration::from_secs(30);

/// Which end knows the other's address.
#[derive(Clone, Copy)]
enum Addresses {
    /// Both ends know the other's address.
    Both,
    /// Only the second end knows the address of the first, which waits.
    OfFirst,
}

/// A static key over TCP. The first end listens, and the second dials.
pub(super) fn secret_on_stream(scenario: &Scenario<'_>, v6: bool, tap: bool) -> Configs {
    let mut configs = Configs::default();
    let (family, device) = (if v6 { 6 } else { 4 }, if tap { "tap" } else { "tun" });
    configs.both(&format!("dev {device}\nverb 3\nping 1\nping-restart 6\ncipher AES-256-CBC"));
    configs.server(&format!("proto tcp{family}-server"));
    configs.client(&format!("proto tcp{family}-client\nremote {}", End::Server.outer(v6)));
    configs.client("connect-retry 1 2\nnobind");
    let (one, other) = ("10.88.0.1", "10.88.0.2");
    let mask = "255.255.255.0";
    configs.server(&format!("ifconfig {one} {}", if tap { mask } else { other }));
    configs.client(&format!("ifconfig {other} {}", if tap { mask } else { one }));
    let key = scenario.env.pki.wrapping_key("static.key").display().to_string();
    configs.server(&format!("secret {key} 0"));
    configs.client(&format!("secret {key} 1"));
    allow_secret(scenario, &mut configs);
    configs
}

/// Writes both ends' addresses, timers and `remote`s.
fn ends(scenario: &Scenario<'_>, v6: bool, known: Addresses) -> Configs {
    let proto = if v6 { "udp6" } else { "udp4" };
    let mut configs = Configs::default();
    configs.both(&format!("dev tun\nproto {proto}\nverb 3\nping 1\nping-restart 6"));
    configs.server("ifconfig 10.88.0.1 10.88.0.2\nifconfig-ipv6 fd88::1/64 fd88::2");
    configs.client("ifconfig 10.88.0.2 10.88.0.1\nifconfig-ipv6 fd88::2/64 fd88::1");
    configs.client(&format!("remote {}", End::Server.outer(v6)));
    match known {
        Addresses::Both => configs.server(&format!("remote {}", End::Client.outer(v6))),
        Addresses::OfFirst => configs.client("nobind"),
    }
    allow_secret(scenario, &mut configs);
    configs
}

fn allow_secret(scenario: &Scenario<'_>, configs: &mut Configs) {
    for (program, server) in [(scenario.server, true), (scenario.client, false)] {
        // openvpn 2.7 requires it.
        if matches!(program, Program::Root { suite: "sid", .. }) {
            let line = "allow-deprecated-insecure-static-crypto";
            if server { configs.server(line) } else { configs.client(line) }
        }
    }
}

fn secret(scenario: &Scenario<'_>, v6: bool, known: Addresses, directed: bool) -> Configs {
    let mut configs = ends(scenario, v6, known);
    let key = scenario.env.pki.wrapping_key("static.key").display().to_string();
    let (one, other) = if directed { (" 0", " 1") } else { ("", "") };
    configs.server(&format!("secret {key}{one}"));
    configs.client(&format!("secret {key}{other}"));
    configs.both("cipher AES-256-CBC");
    configs
}

fn tls(scenario: &Scenario<'_>, v6: bool, known: Addresses, wrapping: Wrapping) -> Configs {
    let mut configs = ends(scenario, v6, known);
    configs.server("tls-server\ndh none\nreneg-sec 6");
    configs.client("tls-client\nremote-cert-tls server");
    for (word, name) in [("cert", "crt"), ("key", "key")] {
        configs.server(&format!("{word} {}", scenario.pki(&format!("server.{name}"))));
        configs.client(&format!("{word} {}", scenario.pki(&format!("client.{name}"))));
    }
    configs.both(&format!("ca {}", scenario.pki("ca.crt")));
    configs.wrap(&scenario.env.pki, wrapping);
    configs
}

/// Starts both ends; neither is ready before the other has sent something.
fn start(scenario: &Scenario<'_>, configs: &Configs) -> Result<Tunnel> {
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), configs, scenario.server)?;
    let mut client = dial(&pair, scenario.folder(), configs, scenario.client)?;
    ready(&mut server, &mut client)?;
    tunnel_of(pair, server, client, "tun0")
}

fn ready(server: &mut Daemon, client: &mut Daemon) -> Result<()> {
    [client, server].into_iter().try_for_each(|end| end.wait_for(READY, SETUP_LIMIT).map(drop))
}

/// Assembles a tunnel of two ends that are ready.
fn tunnel_of(pair: Pair, server: Daemon, client: Daemon, device: &str) -> Result<Tunnel> {
    let (server_inner, client_inner) =
        (inner_addrs_on(&pair.server, device)?, inner_addrs_on(&pair.client, device)?);
    Ok(Tunnel { server, client, pair, server_inner, client_inner })
}

fn transfers(tunnel: &Tunnel) -> Result<()> {
    let Tunnel { pair, server_inner, client_inner, .. } = tunnel;
    tcp(&pair.client, &pair.server, server_inner.v4, 1_000_000)?;
    tcp(&pair.server, &pair.client, client_inner.v4, 1_000_000)?;
    Ok(())
}

/// Stops the machine from sending errors for closed ports, as if the end had died or a NAT had forgotten it. openvpn
/// pings the dead end's port until its timeout. If each ping causes an ICMP error, the error makes its next `sendto`
/// fail; with `ping 1` that is the response to each new peer, every time, for as long as these packets prevent the
/// timeout.
fn say_nothing_of_closed_ports(namespace: &Namespace) -> Result<()> {
    for (family, protocol, to) in
        [("-4", "icmp", "192.0.2.0/24"), ("-6", "ipv6-icmp", "2001:db8::/32")]
    {
        let rule = [family, "rule", "add", "to", to, "ipproto", protocol, "blackhole"];
        namespace.run("ip", &rule)?;
    }
    Ok(())
}

/// Sends traffic, then kills each end, which reconnects after a restart.
fn live_and_die(scenario: &Scenario<'_>, configs: &Configs, mut tunnel: Tunnel) -> Result<String> {
    tunnel.ping_all(3)?;
    transfers(&tunnel)?;
    say_nothing_of_closed_ports(&tunnel.pair.client)?;
    let mut told = Vec::new();
    for end in [End::Client, End::Server] {
        let daemon = match end {
            End::Client => &mut tunnel.client,
            End::Server => &mut tunnel.server,
        };
        daemon.signal(Signal::SIGKILL)?;
        daemon.wait_exit(Duration::from_secs(5))?;
        // The packet ids of a static key start again with each second.
        std::thread::sleep(Duration::from_millis(1100));
        let revived = match end {
            End::Client => {
                tunnel.client = dial(&tunnel.pair, scenario.folder(), configs, scenario.client)?;
                &mut tunnel.client
            }
            End::Server => {
                tunnel.server = serve(&tunnel.pair, scenario.folder(), configs, scenario.server)?;
                &mut tunnel.server
            }
        };
        if let Err(failure) = revived.wait_for(READY, SETUP_LIMIT) {
            let (server, client) = (tunnel.server.failure(""), tunnel.client.failure(""));
            return Err(format!("{failure}\n{server}\n{client}").into());
        }
        for namespace in [&tunnel.pair.client, &tunnel.pair.server] {
            // A new TAP device has a different hardware address. Without a TAP device this command fails.
            let _ = namespace.run("ip", &["neighbour", "flush", "dev", "tap0"]);
        }
        let took = ping_until(&tunnel.pair.client, tunnel.server_inner.v4, RECOVERY)
            .and_then(|took| {
                ping_until(&tunnel.pair.server, tunnel.client_inner.v4, RECOVERY).map(|_| took)
            })
            .map_err(|failure| {
                let (server, client) = (tunnel.server.failure(""), tunnel.client.failure(""));
                format!("{failure}\n{server}\n{client}")
            })?;
        told.push(format!("{end:?} back in {} ms", took.as_millis()));
        transfers(&tunnel)?;
    }
    Ok(told.join(", "))
}

fn static_key(
    scenario: &Scenario<'_>,
    v6: bool,
    known: Addresses,
    directed: bool,
) -> Result<String> {
    let configs = secret(scenario, v6, known, directed);
    let tunnel = start(scenario, &configs)?;
    live_and_die(scenario, &configs, tunnel)
}

pub(super) fn static4(scenario: &Scenario<'_>) -> Result<String> {
    static_key(scenario, false, Addresses::Both, true)
}

pub(super) fn static6(scenario: &Scenario<'_>) -> Result<String> {
    static_key(scenario, true, Addresses::Both, false)
}

fn static_stream(scenario: &Scenario<'_>, v6: bool, tap: bool) -> Result<String> {
    on_stream(scenario, &secret_on_stream(scenario, v6, tap), v6, tap)
}

fn on_stream(scenario: &Scenario<'_>, configs: &Configs, v6: bool, tap: bool) -> Result<String> {
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), configs, scenario.server)?;
    server.wait_for("Listening for incoming TCP connection", SETUP_LIMIT)?;
    // openvpn accepts the first connection, and then stops listening.
    let alone = !matches!(scenario.server, Program::Adit(_));
    let before = if alone { Vec::new() } else { strangers(&pair, v6)? };
    let mut client = dial(&pair, scenario.folder(), configs, scenario.client)?;
    ready(&mut server, &mut client)?;
    let beside = if alone { Vec::new() } else { strangers(&pair, v6)? };
    let tunnel = tunnel_of(pair, server, client, if tap { "tap0" } else { "tun0" })?;
    tunnel.ping_all(3)?;
    if !alone {
        let began = [&tunnel.server, &tunnel.client].map(|end| end.count(READY));
        ensure(began == [1, 1], || tunnel.server.failure("disturbed by strangers").0)?;
    }
    let told = live_and_die(scenario, configs, tunnel)?;
    drop((before, beside));
    Ok(told)
}

/// Starts both ends, of which the first listens, and waits until the tunnel carries traffic.
pub(super) fn start_on_stream(
    scenario: &Scenario<'_>,
    configs: &Configs,
    pair: Pair,
) -> Result<Tunnel> {
    let mut server = serve(&pair, scenario.folder(), configs, scenario.server)?;
    server.wait_for("Listening for incoming TCP connection", SETUP_LIMIT)?;
    let mut client = dial(&pair, scenario.folder(), configs, scenario.client)?;
    ready(&mut server, &mut client)?;
    let tunnel = tunnel_of(pair, server, client, "tun0")?;
    tunnel.ping_all(3)?;
    Ok(tunnel)
}

/// Opens connections of other hosts: one that sends nothing, and one that has no key.
fn strangers(pair: &Pair, v6: bool) -> Result<Vec<TcpStream>> {
    let address = SocketAddr::new(End::Server.outer(v6), 1194);
    let connected = pair.client.thread(move || -> Result<Vec<TcpStream>> {
        let connect = || TcpStream::connect_timeout(&address, Duration::from_secs(5));
        let (silent, mut loud) = (connect()?, connect()?);
        for _ in 0..20 {
            // It is disconnected at the first invalid packet.
            let _ = loud.write_all(&[&[0, 100][..], &[0x38; 100]].concat());
        }
        Ok(vec![silent, loud])
    })?;
    connected.join().map_err(|_| "a thread panicked")?
}

pub(super) fn static_stream4(scenario: &Scenario<'_>) -> Result<String> {
    static_stream(scenario, false, false)
}

pub(super) fn static_stream6_tap(scenario: &Scenario<'_>) -> Result<String> {
    static_stream(scenario, true, true)
}

/// TLS over TCP, where the first end listens. `dialler_serves` is true if the end that dials is the TLS server.
fn tls_stream(
    scenario: &Scenario<'_>,
    v6: bool,
    wrapping: Wrapping,
    dialler_serves: bool,
) -> Result<String> {
    let mut configs = tls(scenario, v6, Addresses::OfFirst, wrapping);
    let family = if v6 { 6 } else { 4 };
    for lines in [&mut configs.server, &mut configs.client] {
        *lines = lines.replace(&format!("proto udp{family}\n"), "");
    }
    configs.server(&format!("proto tcp{family}-server"));
    configs.client(&format!("proto tcp{family}-client\nconnect-retry 1 2"));
    if dialler_serves {
        let (servers, clients) = (&mut configs.server, &mut configs.client);
        for (of_server, of_client) in [
            ("tls-server\ndh none\nreneg-sec 6", "tls-client\nremote-cert-tls server"),
            ("server.crt", "client.crt"),
            ("server.key", "client.key"),
        ] {
            *servers = servers.replace(of_server, of_client);
            *clients = clients.replace(of_client, of_server);
        }
    }
    on_stream(scenario, &configs, v6, false)
}

pub(super) fn tls_stream4(scenario: &Scenario<'_>) -> Result<String> {
    tls_stream(scenario, false, Wrapping::TlsCrypt, false)
}

pub(super) fn tls_stream6_own(scenario: &Scenario<'_>) -> Result<String> {
    tls_stream(scenario, true, Wrapping::TlsCryptV2, false)
}

pub(super) fn tls_stream4_dialler_serves(scenario: &Scenario<'_>) -> Result<String> {
    tls_stream(scenario, false, Wrapping::None, true)
}

/// One end waits, learns the other's address, and follows it to a new address.
pub(super) fn static_waits(scenario: &Scenario<'_>) -> Result<String> {
    let configs = secret(scenario, false, Addresses::OfFirst, true);
    let tunnel = start(scenario, &configs)?;
    tunnel.ping_all(3)?;
    tunnel.pair.move_client()?;
    let took = ping_until(&tunnel.pair.client, tunnel.server_inner.v4, RECOVERY)
        .map_err(|failure| format!("{failure}\n{}", tunnel.server.failure("after the move")))?;
    transfers(&tunnel)?;
    live_and_die(scenario, &configs, tunnel)
        .map(|told| format!("followed after {} ms, {told}", took.as_millis()))
}

fn with_tls(
    scenario: &Scenario<'_>,
    v6: bool,
    known: Addresses,
    wrapping: Wrapping,
) -> Result<String> {
    let configs = tls(scenario, v6, known, wrapping);
    let mut tunnel = start(scenario, &configs)?;
    tunnel.ping_all(3)?;
    for end in [&mut tunnel.server, &mut tunnel.client] {
        end.wait_for_nth(HANDSHAKE, 3, Duration::from_secs(30))?;
    }
    let began = [&tunnel.server, &tunnel.client].map(|end| end.count(READY));
    ensure(began == [1, 1], || tunnel.client.failure("began anew instead of a rekey").0)?;
    live_and_die(scenario, &configs, tunnel)
}

pub(super) fn tls4_bare(scenario: &Scenario<'_>) -> Result<String> {
    with_tls(scenario, false, Addresses::Both, Wrapping::None)
}

pub(super) fn tls6_auth(scenario: &Scenario<'_>) -> Result<String> {
    with_tls(scenario, true, Addresses::Both, Wrapping::TlsAuth)
}

pub(super) fn tls4_crypt(scenario: &Scenario<'_>) -> Result<String> {
    with_tls(scenario, false, Addresses::OfFirst, Wrapping::TlsCrypt)
}

pub(super) fn tls6_own(scenario: &Scenario<'_>) -> Result<String> {
    with_tls(scenario, true, Addresses::OfFirst, Wrapping::TlsCryptV2)
}

/// The ends do not negotiate a cipher, like two 2.5 peers. These directives take effect, and the cipher is CBC.
fn fallback(scenario: &Scenario<'_>, wrapping: Wrapping, ciphers: &str) -> Result<String> {
    let mut configs = tls(scenario, false, Addresses::Both, wrapping);
    configs.both(ciphers);
    let tunnel = start(scenario, &configs)?;
    live_and_die(scenario, &configs, tunnel)
}

pub(super) fn without_negotiation(scenario: &Scenario<'_>) -> Result<String> {
    fallback(scenario, Wrapping::TlsAuth, "cipher AES-256-CBC")
}

pub(super) fn own_without_negotiation(scenario: &Scenario<'_>) -> Result<String> {
    let ciphers = "cipher AES-256-CBC\ndata-ciphers-fallback AES-256-CBC";
    fallback(scenario, Wrapping::TlsCryptV2, ciphers)
}

/// The end that leaves sends an exit notice, and the other does not wait for a timeout.
pub(super) fn exit_notice(scenario: &Scenario<'_>) -> Result<String> {
    for configs in [
        secret(scenario, false, Addresses::Both, true),
        tls(scenario, false, Addresses::Both, Wrapping::TlsCrypt),
    ] {
        let mut configs = configs;
        configs.both("explicit-exit-notify 2");
        let mut tunnel = start(scenario, &configs)?;
        tunnel.ping_all(3)?;
        tunnel.client.signal(Signal::SIGTERM)?;
        tunnel.client.wait_exit(Duration::from_secs(10))?;
        tunnel.server.wait_for("remote-exit", Duration::from_secs(5))?;
        tunnel.client = dial(&tunnel.pair, scenario.folder(), &configs, scenario.client)?;
        tunnel.client.wait_for(READY, SETUP_LIMIT)?;
        ping_until(&tunnel.pair.client, tunnel.server_inner.v4, RECOVERY)?;
    }
    Ok(String::new())
}
