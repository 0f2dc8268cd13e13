//! Tests of Ethernet frames with `dev tap`: between two ends, among several, and with bridges and the hosts behind them.

use std::fs;
use std::net::IpAddr;
use std::time::Duration;

use super::server_hooks::script;
use super::{Scenario, ping_until};
use crate::case::{Configs, InnerAddrs, READY, SETUP_LIMIT, dial, inner_addrs_on, serve};
use crate::failure::{Context, Result, ensure};
use crate::net::{Namespace, Pair, Star, ip};
use crate::peer::Program;
use crate::process::Daemon;
use crate::traffic::{ping, silent, tcp};
use crate::wait::{ScaledInstant, until};

pub(super) const DEVICE: &str = "tap0";
const TIMEOUT: Duration = Duration::from_secs(5);

/// Creates the plain configurations with a TAP device.
pub(super) fn configs(scenario: &Scenario<'_>) -> Configs {
    let mut configs = scenario.configs();
    for text in [&mut configs.server, &mut configs.client] {
        *text = text.replace("dev tun\n", "dev tap\n");
    }
    configs
}

/// Creates the same with another line in place of the server's networks.
pub(super) fn bridged(scenario: &Scenario<'_>, helper: &str) -> Configs {
    let mut configs = configs(scenario);
    let networks = "server 10.88.0.0 255.255.255.0\nserver-ipv6 fd88::/64";
    configs.server = configs.server.replace(networks, helper);
    configs
}

fn address(text: &str) -> Result<IpAddr> {
    text.parse().context(text)
}

/// Checks pings of both sizes and a stream, in both directions and both families.
pub(super) fn everything_passes(ends: [(&Namespace, InnerAddrs); 2]) -> Result<()> {
    for ((from, _), (to, inner)) in [(ends[0], ends[1]), (ends[1], ends[0])] {
        for address in std::iter::once(inner.v4).chain(inner.v6) {
            ping_until(from, address, TIMEOUT)?;
            for size in [56, 3000] {
                let got = ping(from, address, size, 4)?;
                ensure(got >= 4, || format!("{got} of 4 pings of {size} bytes to {address}"))?;
            }
            tcp(from, to, address, 3_000_000)?;
        }
    }
    Ok(())
}

/// A server and a client with frames between them, and a hardware address of the client's choice.
pub(super) fn frames(scenario: &Scenario<'_>) -> Result<String> {
    const MAC: &str = "02:ad:17:00:00:07";
    let mut configs = configs(scenario);
    configs.client(&format!("lladdr {MAC}"));
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    client.wait_for(READY, SETUP_LIMIT)?;
    let both = || format!("{}\n{}", server.failure(""), client.failure(""));
    let ends = [&pair.server, &pair.client];
    let inner = [inner_addrs_on(ends[0], DEVICE)?, inner_addrs_on(ends[1], DEVICE)?];
    everything_passes([(ends[0], inner[0]), (ends[1], inner[1])])
        .map_err(|failure| format!("{failure}\n{}", both()))?;
    // ARP and neighbour discovery found it.
    let neighbours = ends[0].run("ip", &["neighbour", "show", "dev", DEVICE])?;
    let found = neighbours.lines().filter(|line| line.contains(MAC)).count();
    ensure(found >= 2, || format!("{MAC} is not a neighbour twice:\n{neighbours}"))?;
    Ok(format!("{found} neighbours"))
}

/// Starts a server and its clients at a switch; returns the addresses of the clients.
fn start_clients(
    scenario: &Scenario<'_>,
    configs: &Configs,
    star: &Star,
) -> Result<(Daemon, Vec<Daemon>, Vec<InnerAddrs>)> {
    let path = |name: &str| scenario.folder().join(name);
    fs::write(path("server.conf"), &configs.server)?;
    fs::write(path("client.conf"), &configs.client)?;
    let command = scenario.server.command(&star.server, &path("server.conf"));
    let mut server = Daemon::spawn("server", command)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let (mut clients, mut inner) = (Vec::new(), Vec::new());
    for namespace in &star.clients {
        let command = scenario.client.command(namespace, &path("client.conf"));
        let mut client = Daemon::spawn("client", command)?;
        client
            .wait_for(READY, SETUP_LIMIT)
            .map_err(|e| format!("{e}\n{}", server.failure("meanwhile")))?;
        inner.push(inner_addrs_on(namespace, DEVICE)?);
        clients.push(client);
    }
    Ok((server, clients, inner))
}

/// A program learns of stations: of new ones, of one that moves to another client, and of those that are gone. The
/// frames of one that it refuses do not pass. All this is as with openvpn.
pub(super) fn stations_learned(scenario: &Scenario<'_>) -> Result<String> {
    let theirs = learned(scenario, &Program::OpenVpn)?;
    let ours = learned(scenario, scenario.server)?;
    ensure(theirs == ours, || format!("openvpn: {theirs:#?}, adit: {ours:#?}"))?;
    Ok(ours.join(", "))
}

/// Returns the arguments of the program, each once, in order.
fn learned(scenario: &Scenario<'_>, server: &Program) -> Result<Vec<String>> {
    const ROAMING: &str = "02:ad:17:00:00:07";
    const REFUSED: &str = "02:ad:17:00:00:09";
    let mut configs = configs(scenario);
    let log = scenario.folder().join("learned");
    let _ = fs::remove_file(&log);
    let learn = script(
        scenario,
        "learn",
        &format!("echo \"$*\" >> $OUT/learned\n[ \"${{2%@*}}\" != {REFUSED} ]"),
    )?;
    // openvpn looks for lost stations in a part of its table at a time, and a table of one part is searched each second.
    configs
        .server(&format!("duplicate-cn\nhash-size 1 1\nscript-security 2\nlearn-address {learn}"));
    let star = Star::new(3)?;
    let path = |name: &str| scenario.folder().join(name);
    fs::write(path("server.conf"), &configs.server)?;
    let mut server = Daemon::spawn("server", server.command(&star.server, &path("server.conf")))?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let gateway = address("10.88.0.1")?;
    let mut clients = Vec::new();
    for (at, (namespace, mac)) in star.clients.iter().zip([ROAMING, ROAMING, REFUSED]).enumerate() {
        let file = path(&format!("client{at}.conf"));
        fs::write(&file, format!("{}lladdr {mac}\n", configs.client))?;
        let mut client = Daemon::spawn("client", scenario.client.command(namespace, &file))?;
        client
            .wait_for(READY, SETUP_LIMIT)
            .map_err(|e| format!("{e}\n{}", server.failure("meanwhile")))?;
        if mac == REFUSED {
            ensure(silent(namespace, gateway)?, || "a refused station passes".to_owned())?;
        } else {
            ping_until(namespace, gateway, TIMEOUT * 4)?;
        }
        clients.push(client);
    }
    // The client that has the station now leaves before the others.
    for at in [1, 0, 2] {
        if let Some(client) = clients.get_mut(at) {
            client.stop()?;
        }
    }
    // openvpn looks for lost stations now and then.
    until("the station is deleted", TIMEOUT * 20, || {
        Ok(fs::read_to_string(&log)?.contains(&format!("delete {ROAMING}")))
    })
    .map_err(|e| format!("{e}\n{}", fs::read_to_string(&log).unwrap_or_default()))?;
    server.stop()?;
    let mut lines: Vec<String> = Vec::new();
    for line in fs::read_to_string(&log)?.lines() {
        if !lines.iter().any(|known| known == line) {
            lines.push(line.to_owned());
        }
    }
    Ok(lines)
}

/// Three clients find each other by broadcast and multicast, exchange traffic, and one leaves.
pub(super) fn client_to_client(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = configs(scenario);
    configs.server("duplicate-cn\nclient-to-client");
    let star = Star::new(3)?;
    let (server, mut clients, inner) = start_clients(scenario, &configs, &star)?;
    for (from, namespace) in star.clients.iter().enumerate() {
        for (_, other) in inner.iter().enumerate().filter(|(to, _)| *to != from) {
            ping_until(namespace, other.v4, TIMEOUT)?;
            ping_until(namespace, other.newest(), TIMEOUT)?;
            let got = ping(namespace, other.v4, 3000, 2)?;
            ensure(got == 2, || format!("{from}: {got} of 2 large pings to {}", other.v4))?;
        }
    }
    let [first, second, _] = star.clients.as_slice() else { return Err("three".into()) };
    let [_, at_second, at_third] = inner.as_slice() else { return Err("three".into()) };
    tcp(first, second, at_second.v4, 3_000_000)?;
    tcp(first, &star.server, address("10.88.0.1")?, 3_000_000)?;
    if let Some(mut third) = clients.pop() {
        third.stop()?;
    }
    std::thread::sleep(Duration::from_millis(500));
    ensure(silent(first, at_third.v4)?, || "the third answers after its end".to_owned())?;
    ensure(ping(first, at_second.v4, 56, 4)? == 4, || {
        server.failure("the third took the others with it").0
    })?;
    Ok(String::new())
}

/// Without `client-to-client` only the server is reachable.
pub(super) fn isolated_clients(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = configs(scenario);
    configs.server("duplicate-cn");
    let star = Star::new(2)?;
    let (_server, _clients, inner) = start_clients(scenario, &configs, &star)?;
    let [first, second] = star.clients.as_slice() else { return Err("two".into()) };
    for client in [first, second] {
        ping_until(client, address("10.88.0.1")?, TIMEOUT)?;
        ping_until(&star.server, inner[0].v4, TIMEOUT)?;
    }
    ensure(silent(first, inner[1].v4)?, || "the other client answers".to_owned())?;
    Ok(String::new())
}

/// Puts the TAP device of a namespace into a bridge with a veth pair to a host, and gives the host its
/// addresses.
fn bridge_to(
    namespace: &Namespace,
    label: &str,
    bridge: &[&str],
    host: &[&str],
) -> Result<Namespace> {
    let other = Namespace::new(label)?;
    let veth = format!("type veth peer name lan netns {}", other.name());
    let lines = [
        "link add br0 up type bridge stp_state 0 forward_delay 0 mcast_snooping 0".to_owned(),
        format!("link add lan up master br0 {veth}"),
        format!("link set {DEVICE} up master br0"),
    ];
    let own = bridge.iter().map(|address| format!("address add {address} dev br0 nodad"));
    ip(Some(namespace), lines.into_iter().chain(own))?;
    let theirs = host.iter().map(|address| format!("address add {address} dev lan nodad"));
    ip(Some(&other), std::iter::once("link set lan up".to_owned()).chain(theirs))?;
    Ok(other)
}

/// A client receives an address in a network to which the server is bridged, and reaches a host in it.
pub(super) fn bridge_with_pool(scenario: &Scenario<'_>) -> Result<String> {
    let line = "server-bridge 10.88.0.1 255.255.255.0 10.88.0.50 10.88.0.60";
    let configs = bridged(scenario, line);
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let host = ["10.88.0.9/24", "fd88::9/64"];
    let host = bridge_to(&pair.server, "lan", &["10.88.0.1/24", "fd88::1/64"], &host)?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    client.wait_for(READY, SETUP_LIMIT)?;
    let both = || format!("{}\n{}", server.failure(""), client.failure(""));
    let inner = inner_addrs_on(&pair.client, DEVICE)?;
    ensure(inner.v4 == address("10.88.0.50")?, || format!("{} is not the pool's first", inner.v4))?;
    let added = format!("address add fd88::50/64 dev {DEVICE} nodad");
    ip(Some(&pair.client), std::iter::once(added))?;
    let inner = InnerAddrs { v6: Some(address("fd88::50")?), ..inner };
    for (other, v4, v6) in [(&host, "10.88.0.9", "fd88::9"), (&pair.server, "10.88.0.1", "fd88::1")]
    {
        let at = InnerAddrs { v4: address(v4)?, v6: Some(address(v6)?) };
        everything_passes([(&pair.client, inner), (other, at)])
            .map_err(|failure| format!("{failure}\n{}", both()))?;
    }
    let alone =
        pair.server.run("ip", &["-o", "address", "show", "dev", DEVICE, "scope", "global"])?;
    ensure(alone.is_empty(), || format!("the bridged device has an address: {alone}"))?;
    Ok(String::new())
}

/// Two networks are joined by bridges at both ends, without addresses.
pub(super) fn bridges_at_both_ends(scenario: &Scenario<'_>) -> Result<String> {
    let configs = bridged(scenario, "server-bridge nogw");
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let here = bridge_to(&pair.server, "here", &[], &["10.88.0.9/24", "fd88::9/64"])?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    client.wait_for(READY, SETUP_LIMIT)?;
    let there = bridge_to(&pair.client, "there", &[], &["10.88.0.19/24", "fd88::19/64"])?;
    let both = || format!("{}\n{}", server.failure(""), client.failure(""));
    let at =
        |v4, v6| Ok::<_, crate::Failure>(InnerAddrs { v4: address(v4)?, v6: Some(address(v6)?) });
    let ends = [(&here, at("10.88.0.9", "fd88::9")?), (&there, at("10.88.0.19", "fd88::19")?)];
    everything_passes(ends).map_err(|failure| format!("{failure}\n{}", both()))?;
    Ok(String::new())
}

/// A client with a TUN device at a server with a TAP device logs the mismatch.
pub(super) fn against_tun(scenario: &Scenario<'_>) -> Result<String> {
    let mut configs = configs(scenario);
    configs.client = configs.client.replace("dev tap\n", "dev tun\n");
    let pair = Pair::new()?;
    let mut server = serve(&pair, scenario.folder(), &configs, scenario.server)?;
    server.wait_for(READY, SETUP_LIMIT)?;
    let mut client = dial(&pair, scenario.folder(), &configs, scenario.client)?;
    client.wait_for(READY, SETUP_LIMIT)?;
    let warning = "'dev-type' is used inconsistently";
    // Either end may log the warning, and its log may lag behind the other's readiness.
    let started = ScaledInstant::now();
    while ![&server, &client].iter().any(|end| end.log().contains(warning)) {
        let failure = || format!("{}\n{}", server.failure(""), client.failure(""));
        ensure(started.elapsed() < SETUP_LIMIT, failure)?;
        std::thread::sleep(Duration::from_millis(50));
    }
    Ok(String::new())
}
