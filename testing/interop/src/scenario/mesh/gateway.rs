//! Tests of nodes that forward to a network behind them, and to the internet.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use super::super::{Scenario, ping_until};
use super::testbed::{LIMIT, MeshTestbed, Nat, add_to_internet};
use crate::failure::{Context, Failure, Result, ensure};
use crate::net::{Namespace, ip};
use crate::traffic::silent;
use crate::wait::until;

/// A host behind a node is reachable although it has no route back. Stopping the nodes removes the route and the forwarding.
pub(super) fn subnet(scenario: &Scenario<'_>) -> Result<String> {
    behind_a_node(scenario, &[])
}

/// The same in a mesh of Ethernet frames.
pub(super) fn tap_subnet(scenario: &Scenario<'_>) -> Result<String> {
    behind_a_node(scenario, &["--tap"])
}

fn behind_a_node(scenario: &Scenario<'_>, options: &[&str]) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::None, Nat::None])?;
    bed.found_with(options)?;
    bed.join(1, &[])?;
    let printer = Namespace::new("printer")?;
    let site = &bed.machines[2].space;
    let link = format!("link add site type veth peer name eth0 netns {}", printer.name());
    let lines = [link, "addr add 192.168.77.1/24 dev site".into(), "link set site up".into()];
    ip(Some(site), lines.into_iter())?;
    let lines = ["addr add 192.168.77.5/24 dev eth0".to_owned(), "link set eth0 up".to_owned()];
    ip(Some(&printer), lines.into_iter())?;
    bed.join(2, &["--subnet", "192.168.77.0/24"])?;
    let inside: IpAddr = "192.168.77.5".parse().context("an address")?;
    ping_until(&bed.machines[1].space, inside, LIMIT)?;
    let seen = until_seen(&bed.machines[1].space, &printer, inside)?;
    ensure(seen.to_string() == "192.168.77.1", || format!("the host sees {seen}"))?;
    let routes = bed.machines[1].space.run("ip", &["route"])?;
    let through = match options {
        [] => String::new(),
        _ => format!("via {} ", bed.ipv4(2)?),
    };
    let route = format!("192.168.77.0/24 {through}dev mesh-home");
    ensure(routes.contains(&route), || routes.clone())?;
    // The node has an address in the network, which leads to it through the mesh: no path goes there.
    until("a probe is kept out of the mesh", LIMIT, || {
        ping_until(&bed.machines[1].space, inside, LIMIT)?;
        Ok(bed.machines[1].drops("recursive")? > 0)
    })?;
    let peer = bed.peer(1, 2)?;
    ensure(peer["via"] == "11.0.0.3:1194", || format!("the path is {peer}"))?;
    bed.stop(1)?;
    let routes = bed.machines[1].space.run("ip", &["route"])?;
    ensure(!routes.contains("192.168.77"), || format!("the route is left: {routes}"))?;
    bed.stop(2)?;
    ensure_forwards_nothing(&bed.machines[2].space)?;
    Ok("reached, and undone".into())
}

/// A machine behind NAT reaches the internet only through a gateway. After its node has stopped, it reaches the
/// internet as before.
pub(super) fn exit(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::PortRestricted, Nat::None])?;
    bed.found()?;
    bed.join_only(1, &bed.invite(&[])?)?;
    bed.join(2, &["--group", "web"])?;
    let web = Namespace::new("web")?;
    let address = add_to_internet(&bed, &web, 99)?;
    let [own, gateway] = ["11.0.0.2", "11.0.0.3"];
    let laptop = |bed: &MeshTestbed| until_seen(&bed.machines[1].space, &web, address);
    ensure(laptop(&bed)?.to_string() == own, || "not outside at first".into())?;

    bed.machines[0].mesh(&["set", "node3", "--gateway", "on"])?;
    let changed = || Ok(bed.machines[2].json(&["status"])?["gateway"] == true);
    until("the node is a gateway", LIMIT, changed)?;
    let groups = &bed.machines[2].json(&["status"])?["groups"];
    ensure(groups[0] == "web", || format!("its groups are now {groups}"))?;
    let refused = bed.machines[2].refused(&["set", "node3", "--relay", "on"])?;
    ensure(refused.contains("no right"), || refused.clone())?;

    bed.up_with(1, &["--exit", "hub"])?;
    bed.wait_for_line(1, "hub is not a gateway of the mesh; these are: node3")?;
    ensure_unreachable(&bed, &web, address)?;
    let status = bed.machines[1].mesh(&["status"])?;
    let is_told = status.contains("exit       hub") && status.contains("is not reachable");
    ensure(is_told, || status.clone())?;
    bed.stop(1)?;

    bed.up_with(1, &["--exit", "node3"])?;
    let through = || Ok(laptop(&bed)?.to_string() == gateway);
    until("the web sees the gateway", LIMIT, through)?;
    bed.wait_for_route(1, 2, "direct")?;
    // The local network, with its router, stays reachable.
    let router: IpAddr = "10.0.0.1".parse().context("an address")?;
    let space = &bed.machines[1].space;
    let by = space.run("ip", &["route", "get", &router.to_string()])?;
    ensure(by.contains("dev veth0"), || format!("the router by {by}"))?;

    bed.kill(2)?;
    ensure_unreachable(&bed, &web, address)?;
    ensure_forwards_nothing(&bed.machines[2].space)?;
    bed.up(2)?;
    until("the web sees the gateway again", LIMIT, || Ok(laptop(&bed)?.to_string() == gateway))?;

    bed.stop(1)?;
    ensure(laptop(&bed)?.to_string() == own, || "not outside at the end".into())?;
    ensure(silent(&bed.machines[1].space, "100.87.0.1".parse().context("an address")?)?, || {
        "the mesh answers without a node".into()
    })?;
    Ok("through the gateway, and nowhere without it".into())
}

/// The mesh's policy also applies to packets to the internet through a gateway.
pub(super) fn exit_policy(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::PortRestricted, Nat::None])?;
    bed.found()?;
    bed.join_only(1, &bed.invite(&[])?)?;
    bed.join(2, &["--gateway"])?;
    let web = Namespace::new("web")?;
    let address = add_to_internet(&bed, &web, 99)?;
    bed.up_with(1, &["--exit", "node3"])?;
    let through = |bed: &MeshTestbed| -> Result<bool> {
        let seen = seen(&bed.machines[1].space, &web, address)?;
        Ok(seen.is_some_and(|sender| sender.to_string() == "11.0.0.3"))
    };
    until("the web sees the gateway", LIMIT, || through(&bed))?;
    let accept = |bed: &MeshTestbed, port: u16| {
        let rules = format!(
            "table inet mesh {{
                chain forward {{
                    type filter hook forward priority filter; policy drop;
                    ct state established,related accept
                    ip saddr @node:node2 ip daddr 11.0.0.99 udp dport {port} accept
                }}
            }}"
        );
        bed.machines[0].mesh_with_input(&["policy", "set", "-"], &rules)
    };
    accept(&bed, 8)?;
    until("the policy drops it", LIMIT, || Ok(!through(&bed)?))?;
    ensure_unreachable(&bed, &web, address)?;
    let asked = bed.machines[1].mesh(&["policy", "explain", "udp node2 > 11.0.0.99:7"]);
    ensure(asked.is_err(), || "the dropped packet is said to pass".into())?;
    accept(&bed, 7)?;
    until("the policy accepts it", LIMIT, || through(&bed))?;
    Ok("what the policy accepts leaves through the gateway, and nothing else".into())
}

/// Checks that nothing from the laptop bypasses the gateway while the gateway does not serve it.
fn ensure_unreachable(bed: &MeshTestbed, web: &Namespace, address: IpAddr) -> Result<()> {
    for _ in 0..5 {
        let outside = seen(&bed.machines[1].space, web, address)?;
        ensure(outside.is_none(), || format!("without the gateway the web sees {outside:?}"))?;
    }
    Ok(())
}

fn ensure_forwards_nothing(space: &Namespace) -> Result<()> {
    let keys = ["net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"];
    let rules = space.run("nft", &["list", "ruleset"])?;
    ensure(rules.trim().is_empty(), || format!("rules are left: {rules}"))?;
    for key in keys {
        let value = space.run("sysctl", &["-n", key])?;
        ensure(value.trim() == "0", || format!("{key} is {value}"))?;
    }
    Ok(())
}

/// Returns the sender address of a machine's datagram, as a host sees it; `None` if none arrives.
fn seen(from: &Namespace, host: &Namespace, address: IpAddr) -> Result<Option<IpAddr>> {
    let to = SocketAddr::new(address, 7);
    let (ready, wait) = std::sync::mpsc::channel();
    let receiver = host.thread(move || -> Result<Option<IpAddr>> {
        let socket = crate::traffic::when_free(to, || UdpSocket::bind(to))?;
        socket.set_read_timeout(Some(Duration::from_millis(250)))?;
        let _ = ready.send(());
        Ok(socket.recv_from(&mut [0; 16]).ok().map(|(_, sender)| sender.ip()))
    })?;
    wait.recv().context("the receiver")?;
    let sender = from.thread(move || -> Result<()> {
        // Without a route, nothing is received either.
        let _ = UdpSocket::bind("0.0.0.0:0").and_then(|socket| socket.send_to(b"who", to));
        Ok(())
    })?;
    let panicked = |_| Failure::from("a thread panicked");
    sender.join().map_err(panicked)??;
    receiver.join().map_err(panicked)?
}

pub(super) fn until_seen(from: &Namespace, host: &Namespace, address: IpAddr) -> Result<IpAddr> {
    let mut found = None;
    until("a datagram arrives", LIMIT, || {
        found = seen(from, host, address)?;
        Ok(found.is_some())
    })?;
    found.context("a sender")
}
