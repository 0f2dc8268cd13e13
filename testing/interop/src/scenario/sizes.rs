//! Tests of packet sizes: fragments inside the tunnel, compression framing, and paths with a smaller MTU than their ends.

use std::time::Duration;

use super::Scenario;
use crate::case::Tunnel;
use crate::failure::{Failure, Result, ensure};
use crate::net::{End, Namespace, Pair, ip, wait_for_carriers};
use crate::peer::Program;
use crate::traffic::{ping, tcp};

const SOON: Duration = Duration::from_secs(10);
/// Enough bytes for a few hundred packets in each direction.
const BULK: usize = 300_000;

/// Checks pings of many sizes and TCP in both directions.
fn everything_passes(tunnel: &Tunnel) -> Result<()> {
    tunnel.ping_all(4)?;
    let (client, server) = (&tunnel.pair.client, &tunnel.pair.server);
    for size in [1100, 1240, 1250, 1260, 1300, 1400, 1472, 2600, 8000] {
        for (from, to) in [(client, tunnel.server_inner.v4), (server, tunnel.client_inner.v4)] {
            let got = ping(from, to, size, 2)?;
            // It continues until two answers have arrived; a third may be in transit.
            ensure(got >= 2, || {
                let what = format!("{got} of 2 pings of {size} bytes from {}", from.name());
                format!("{what}\n{}\n{}", tunnel.server.failure(""), tunnel.client.failure(""))
            })?;
        }
    }
    tcp(client, server, tunnel.server_inner.v4, BULK)?;
    tcp(server, client, tunnel.client_inner.newest(), BULK)?;
    Ok(())
}

/// `fragment`. Nothing larger is sent, and everything arrives.
fn fragments(scenario: &Scenario<'_>, lines: &str, limit: usize) -> Result<String> {
    let mut configs = scenario.configs();
    configs.both(lines);
    configs.server("disable-dco");
    configs.client("disable-dco");
    let tunnel = scenario.tunnel(&configs)?;
    // The veth pair drops packets that are longer than the limit.
    for namespace in [&tunnel.pair.server, &tunnel.pair.client] {
        let mtu = (limit + 28).to_string();
        namespace.run("ip", &["link", "set", "veth0", "mtu", &mtu])?;
        let rule = "add table inet t; add chain inet t o { type filter hook postrouting priority 0; }; \
                    add rule inet t o ip frag-off & 0x3fff != 0 counter drop";
        namespace.run("nft", &[rule])?;
    }
    everything_passes(&tunnel)?;
    Ok(String::new())
}

pub(super) fn fragment(scenario: &Scenario<'_>) -> Result<String> {
    fragments(scenario, "fragment 1300", 1300)
}

pub(super) fn fragment_of_all(scenario: &Scenario<'_>) -> Result<String> {
    fragments(scenario, "fragment 600 mtu\nmssfix 0\ncomp-lzo no", 572)
}

fn framed(scenario: &Scenario<'_>, server: &str, client: &str) -> Result<String> {
    let mut configs = scenario.configs();
    configs.server(server);
    configs.client(client);
    let tunnel = scenario.tunnel(&configs)?;
    everything_passes(&tunnel)?;
    Ok(String::new())
}

pub(super) fn comp_lzo_no(scenario: &Scenario<'_>) -> Result<String> {
    framed(scenario, "comp-lzo no", "comp-lzo no")
}

pub(super) fn compress(scenario: &Scenario<'_>) -> Result<String> {
    framed(scenario, "compress", "compress")
}

pub(super) fn compress_stub(scenario: &Scenario<'_>) -> Result<String> {
    framed(scenario, "compress stub", "compress stub")
}

pub(super) fn compress_stub_v2(scenario: &Scenario<'_>) -> Result<String> {
    framed(scenario, "compress stub-v2", "compress stub-v2")
}

/// Compression is configured, as in old files. openvpn does not compress by default, and adit never does.
pub(super) fn comp_lzo(scenario: &Scenario<'_>) -> Result<String> {
    framed(scenario, "comp-lzo", "comp-lzo adaptive")
}

pub(super) fn compress_lz4(scenario: &Scenario<'_>) -> Result<String> {
    framed(scenario, "compress lz4", "compress lz4")
}

/// The server pushes `compress lz4-v2` to a client whose own file does not have it.
pub(super) fn compress_lz4_v2(scenario: &Scenario<'_>) -> Result<String> {
    framed(scenario, "compress lz4-v2\npush \"compress lz4-v2\"", "")
}

/// The client's file has no compression directive, and the server pushes one.
pub(super) fn pushed_stub(scenario: &Scenario<'_>) -> Result<String> {
    framed(scenario, "comp-lzo no\npush \"comp-lzo no\"", "")
}

/// Options that openvpn's client refuses from a server, with a warning for each, before it continues.
pub(super) fn not_pushable(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.client("verb 4");
    for option in ["fragment 1300", "reneg-sec x", "keepalive 10", "mssfix 1000", "auth SHA512"] {
        configs.server(&format!("push \"{option}\""));
    }
    let mut tunnel = scenario.tunnel(&configs)?;
    let warning = match scenario.client {
        Program::Adit(_) => "\"fragment 1300\", which cannot be pushed",
        _ => "option 'fragment' cannot be used in this context ([PUSH-OPTIONS])",
    };
    tunnel.client.wait_for(warning, SOON)?;
    everything_passes(&tunnel)?;
    Ok(String::new())
}

/// openvpn compresses what it sends, and adit decompresses it; adit itself never compresses.
fn compressing(scenario: &Scenario<'_>, lines: &str) -> Result<String> {
    let mut configs = scenario.configs();
    let adit_serves = matches!(scenario.server, Program::Adit(_));
    let theirs = format!("allow-compression yes\n{lines}");
    if adit_serves {
        configs.server(lines);
        configs.client(&format!("{theirs}\npull-filter ignore comp"));
    } else {
        configs.client(&format!("{lines}\npull-filter ignore comp"));
        configs.server(&theirs);
    }
    let tunnel = scenario.tunnel(&configs)?;
    // Zeroes compress well; every answer is checked by ping.
    let pings = [
        (End::Client, tunnel.server_inner.v4.to_string()),
        (End::Server, tunnel.client_inner.v4.to_string()),
    ];
    for (from, to) in pings {
        for size in ["16", "1000", "1400"] {
            let mut command = tunnel.pair.namespace(from).command("ping");
            command.args([
                "-q", "-n", "-i", "0.05", "-c", "5", "-W", "2", "-p", "00", "-s", size, &to,
            ]);
            crate::process::output(command)?;
        }
    }
    everything_passes(&tunnel)?;
    Ok(String::new())
}

pub(super) fn compressed_lzo(scenario: &Scenario<'_>) -> Result<String> {
    compressing(scenario, "comp-lzo yes")
}

pub(super) fn compressed_lz4(scenario: &Scenario<'_>) -> Result<String> {
    compressing(scenario, "compress lz4")
}

pub(super) fn compressed_lz4_v2(scenario: &Scenario<'_>) -> Result<String> {
    compressing(scenario, "compress lz4-v2")
}

/// A large `tun-mtu`. The kernel fragments outer packets that exceed the MTU of the veth pair.
pub(super) fn jumbo(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.both("tun-mtu 9000");
    let tunnel = scenario.tunnel(&configs)?;
    let (client, to) = (&tunnel.pair.client, tunnel.server_inner.v4);
    for size in [1400, 5000, 8972] {
        let mut command = client.command("ping");
        let size = size.to_string();
        command.args(["-q", "-n", "-M", "do", "-c", "2", "-W", "2", "-s", &size, &to.to_string()]);
        crate::process::output(command)?;
    }
    everything_passes(&tunnel)?;
    Ok(String::new())
}

/// The narrowest link of [`narrow_line`].
const NARROW: u16 = 1400;

/// Creates two hosts with two routers between them, and a link of [`NARROW`] bytes between the routers. Neither host
/// can see it on its own veth pair. If `silent` is true, the routers drop packets that do not fit, without an error.
fn narrow_line(silent: bool) -> Result<(Pair, Vec<Namespace>)> {
    let mut all = Namespace::several(&["server", "client", "near", "far"])?;
    let routers = all.split_off(2);
    let [server, client] = all.try_into().map_err(|_| Failure("two hosts".to_owned()))?;
    let [near, far] = routers.as_slice() else { return Err("two routers".into()) };
    let lines = [
        format!(
            "link add veth0 netns {} type veth peer name hosts netns {}",
            server.name(),
            near.name()
        ),
        format!(
            "link add veth0 netns {} type veth peer name hosts netns {}",
            client.name(),
            far.name()
        ),
        format!(
            "link add line netns {} mtu {NARROW} type veth peer name line netns {} mtu {NARROW}",
            near.name(),
            far.name()
        ),
    ];
    ip(None, lines.into_iter())?;
    let set = |namespace: &Namespace, device: &str, address: &str| {
        let lines = [
            format!("address add {address} dev {device}"),
            format!("link set {device} mtu {} up", if device == "line" { NARROW } else { 1500 }),
        ];
        ip(Some(namespace), lines.into_iter())
    };
    set(&server, "veth0", "192.0.2.1/24")?;
    set(near, "hosts", "192.0.2.254/24")?;
    set(near, "line", "203.0.113.1/30")?;
    set(far, "line", "203.0.113.2/30")?;
    set(far, "hosts", "198.51.100.254/24")?;
    set(&client, "veth0", "198.51.100.2/24")?;
    let routes = [
        (&server, "default via 192.0.2.254"),
        (near, "default via 203.0.113.2"),
        (far, "default via 203.0.113.1"),
        (&client, "default via 198.51.100.254"),
    ];
    for (namespace, route) in routes {
        ip(Some(namespace), [format!("route add {route}")].into_iter())?;
    }
    for router in &routers {
        router.handle()?.set_sysctl("net.ipv4.ip_forward", "1")?;
        if silent {
            let rule = "add table ip t; add chain ip t o { type filter hook output priority 0; }; \
                        add rule ip t o icmp type destination-unreachable drop";
            router.run("nft", &[rule])?;
        }
    }
    wait_for_carriers(&[&server, &client, near, far])?;
    Ok((Pair { server, client }, routers))
}

/// adit finds the path MTU, with or without ICMP from routers, clamps TCP to it, and notifies the hosts behind it.
fn path(scenario: &Scenario<'_>, silent: bool) -> Result<String> {
    let (pair, _routers) = narrow_line(silent)?;
    let mut configs = scenario.configs();
    configs.both("disable-dco");
    // openvpn's own datagrams with the DF bit would be lost on a silent path, with or without adit.
    let mut tunnel =
        Tunnel::start(pair, scenario.folder(), &configs, scenario.server, scenario.client)?;
    let is_adit = |program: &Program| matches!(program, Program::Adit(_));
    let limit = Duration::from_secs(30);
    let found = format!("path MTU {NARROW}: TCP segments of at most ");
    if is_adit(scenario.server) {
        tunnel.server.wait_for(&found, limit)?;
    }
    if is_adit(scenario.client) {
        tunnel.client.wait_for(&found, limit)?;
    }
    let ends = [
        (is_adit(scenario.server), &tunnel.pair.server, tunnel.client_inner),
        (is_adit(scenario.client), &tunnel.pair.client, tunnel.server_inner),
    ];
    for (_, from, to) in ends.iter().filter(|(adit, ..)| *adit) {
        // A datagram with DF set is too large for the path once it is encapsulated. The host gets an ICMP error.
        for (address, cut) in std::iter::once((to.v4, 28)).chain(to.v6.map(|v6| (v6, 48))) {
            let size = (1390 - cut).to_string();
            let _ = from.run(
                "ping",
                &[
                    "-q",
                    "-n",
                    "-M",
                    "do",
                    "-c",
                    "3",
                    "-i",
                    "0.1",
                    "-W",
                    "1",
                    "-s",
                    &size,
                    &address.to_string(),
                ],
            );
            let route = from.run("ip", &["route", "get", &address.to_string()])?;
            let told = route.split_whitespace().skip_while(|word| *word != "mtu").nth(1);
            let told = told.and_then(|mtu| mtu.parse::<u16>().ok());
            ensure(told.is_some_and(|mtu| (1330..NARROW - 28).contains(&mtu)), || {
                format!("the host was not told: {route}")
            })?;
        }
    }
    let (client, server) = (&tunnel.pair.client, &tunnel.pair.server);
    tcp(client, server, tunnel.server_inner.v4, BULK)?;
    tcp(server, client, tunnel.client_inner.v4, BULK)?;
    tcp(client, server, tunnel.server_inner.newest(), BULK)?;
    tcp(server, client, tunnel.client_inner.newest(), BULK)?;
    Ok(String::new())
}

pub(super) fn narrow_path(scenario: &Scenario<'_>) -> Result<String> {
    path(scenario, false)
}

pub(super) fn narrow_path_without_icmp(scenario: &Scenario<'_>) -> Result<String> {
    path(scenario, true)
}

/// On a path with the same MTU as its veth pairs, nothing changes.
pub(super) fn wide_path(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = scenario.configs();
    configs.both("disable-dco");
    let mut tunnel = scenario.tunnel(&configs)?;
    for (program, daemon) in
        [(scenario.server, &mut tunnel.server), (scenario.client, &mut tunnel.client)]
    {
        if matches!(program, Program::Adit(_)) {
            // 1400, or 1396 if both ends support the epoch format.
            daemon.wait_for("path MTU 1500: TCP segments of at most 1", SOON)?;
        }
    }
    let (client, to) = (&tunnel.pair.client, tunnel.server_inner.v4.to_string());
    let mut command = client.command("ping");
    command.args(["-q", "-n", "-M", "do", "-c", "3", "-i", "0.1", "-W", "1", "-s", "1472", &to]);
    crate::process::output(command)?;
    Ok(String::new())
}
