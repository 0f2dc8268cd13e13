//! Tests of `adit mesh`: machines on one network and behind NATs, set up as a user would.

mod admin;
mod approval;
mod apps;
mod boxes;
mod channels;
mod chaos;
mod demo;
mod directory;
mod gateway;
mod guest;
mod hundred;
mod import_tinc;
mod nat_matrix;
mod no_udp;
mod policy;
mod soak;
mod tap;
mod testbed;

use std::time::Duration;

use nix::sys::signal::Signal;

use self::testbed::{LIMIT, MeshTestbed, Nat, mapped_ports, start_miniupnpd};
use super::{Scenario, ScenarioFn, ping_until};
use crate::failure::{Context, Result, ensure};
use crate::traffic::{ping, silent};
use crate::wait::until;

const SCENARIOS: &[(&str, ScenarioFn)] = &[
    ("one-network", one_network),
    ("behind-nat", behind_nat),
    ("behind-symmetric-nat", behind_symmetric_nat),
    ("searched-port", searched_port),
    ("nat-matrix", nat_matrix::nat_matrix),
    ("no-udp", no_udp::no_udp),
    ("tcp-port-in-use", no_udp::port_in_use),
    ("mapped-port", mapped_port),
    ("hub-killed", hub_killed),
    ("removed", removed),
    ("killed-and-restarted", killed_and_restarted),
    ("channels", channels::channels),
    ("channel-ports", channels::channel_ports),
    ("subnet", gateway::subnet),
    ("tap", tap::tap),
    ("tap-subnet", gateway::tap_subnet),
    ("exit", gateway::exit),
    ("openvpn-app", apps::openvpn_app),
    ("openvpn-app-exit", apps::exit),
    ("exit-policy", gateway::exit_policy),
    ("token", token),
    ("approval", approval::approval),
    ("names", names),
    ("policy", policy::policy),
    ("admin-recovered", admin::recovered),
    ("two-admins", admin::two_admins),
    ("directory", directory::directory),
    ("directory-withholds", directory::withholds),
    ("directory-tls", directory::tls),
    ("tinc-guest", guest::guest),
    ("import-tinc", import_tinc::import_tinc),
    ("demo", demo::demo),
];

const LONG: &[(&str, ScenarioFn)] =
    &[("hundred", hundred::hundred), ("chaos", chaos::chaos), ("soak", soak::soak)];

/// The time limit for a removal to reach connected nodes.
const REMOVAL: Duration = Duration::from_secs(2);

/// Returns all scenarios.
pub(super) fn scenarios() -> impl Iterator<Item = &'static (&'static str, ScenarioFn)> {
    SCENARIOS.iter()
}

/// Returns the scenarios that take minutes.
pub(super) fn long() -> impl Iterator<Item = &'static (&'static str, ScenarioFn)> {
    LONG.iter()
}

/// Runs the demo, and prints each step as it happens.
pub(super) fn show_demo(scenario: &Scenario<'_>) -> Result<()> {
    demo::show(scenario, &demo::Teller::aloud())
}

/// Runs the demo this many times. Returns the duration of its events.
pub(super) fn time_events<'a>(
    rounds: u16,
    scenario: impl Fn() -> Result<Scenario<'a>>,
) -> Result<String> {
    demo::time_events(rounds, scenario)
}

/// Three machines on one network reach each other over IPv4 and IPv6, and stopping the nodes undoes all changes.
fn one_network(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::None, Nat::None])?;
    bed.join_all()?;
    let mut longest = Duration::ZERO;
    for (from, to) in [(1, 0), (0, 1), (1, 2), (2, 1)] {
        for address in bed.addresses(to)? {
            longest = longest.max(ping_until(&bed.machines[from].space, address, LIMIT)?);
        }
    }
    let large = bed.addresses(2)?;
    let ipv4 = large.first().context("no address")?;
    ensure(ping(&bed.machines[1].space, *ipv4, 1300, 3)? == 3, || "large packets are lost".into())?;
    for at in 0..3 {
        bed.stop(at)?;
        let links = bed.machines[at].space.run("ip", &["-br", "link"])?;
        ensure(!links.contains("mesh-"), || format!("the device is left: {links}"))?;
    }
    Ok(format!("the first answer after at most {} ms", longest.as_millis()))
}

/// Two machines behind NATs find a direct path.
fn behind_nat(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::PortRestricted, Nat::PortRestricted])?;
    bed.join_all()?;
    let address = bed.ipv4(2)?;
    let first = ping_until(&bed.machines[1].space, address, LIMIT)?;
    bed.wait_for_route(1, 2, "direct")?;
    ensure(ping(&bed.machines[1].space, address, 56, 5)? == 5, || "packets are lost".into())?;
    let explained = bed.machines[1].mesh(&["path", &bed.machines[2].name])?;
    ensure(explained.contains("observed"), || format!("no observed address: {explained}"))?;
    Ok(format!("the first answer after {} ms, then a direct path", first.as_millis()))
}

/// Two machines behind symmetric NATs are relayed, and adit shows the reason.
fn behind_symmetric_nat(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::Symmetric, Nat::Symmetric, Nat::None])?;
    bed.found()?;
    // Two relays can see that the port depends on the destination; one cannot.
    bed.join(3, &["--relay"])?;
    bed.join(1, &[])?;
    bed.join(2, &[])?;
    let address = bed.ipv4(2)?;
    let first = ping_until(&bed.machines[1].space, address, LIMIT)?;
    ensure(ping(&bed.machines[1].space, address, 1300, 5)? == 5, || "packets are lost".into())?;
    let route = bed.route(1, 2)?;
    ensure(route == "relay", || format!("the route is {route}"))?;
    until("the reason is known", LIMIT, || {
        let explained = bed.machines[1].mesh(&["path", &bed.machines[2].name])?;
        Ok(explained.contains("both ends are behind symmetric NAT"))
    })?;
    Ok(format!("the first answer after {} ms, through the relay", first.as_millis()))
}

/// A machine behind a symmetric NAT and one behind a NAT that filters by port find a direct path by guessing ports.
fn searched_port(scenario: &Scenario<'_>) -> Result<String> {
    let nats = [Nat::Symmetric, Nat::PortRestricted, Nat::None];
    let mut bed = MeshTestbed::new(scenario, &nats)?;
    bed.found()?;
    bed.join(3, &["--relay"])?;
    bed.join(1, &[])?;
    bed.join(2, &[])?;
    let address = bed.ipv4(2)?;
    ping_until(&bed.machines[1].space, address, LIMIT)?;
    let search = || -> Result<String> {
        let report = bed.machines[2].json(&["path", &bed.machines[1].name])?;
        let search = &report["report"]["port_search"];
        ensure(search["state"] != "refused", || format!("no search: {report}"))?;
        Ok(format!("{} after {} probes", search["state"], search["probes"]))
    };
    until("the search has ended", LIMIT, || {
        // Send packets in both directions: the search is only for nodes with traffic.
        ping(&bed.machines[1].space, address, 56, 1)?;
        let state = search()?;
        Ok(state.contains("found"))
    })?;
    let found = search()?;
    // One in 50 searches makes 1,024 guesses in vain.
    if !found.contains("not") {
        for (from, to) in [(1, 2), (2, 1)] {
            bed.wait_for_route(from, to, "direct")?;
        }
    }
    ensure(ping(&bed.machines[1].space, address, 56, 5)? == 5, || "packets are lost".into())?;
    Ok(found)
}

/// Machines behind symmetric NATs find a direct path if one of the NATs maps ports on request.
fn mapped_port(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::Symmetric, Nat::Symmetric])?;
    let _miniupnpd = start_miniupnpd(&bed.boxes[0], scenario.folder())?;
    bed.join_all()?;
    bed.wait_for_line(1, "11.0.0.2:1194 forwards to UDP port 1194")?;
    ping_until(&bed.machines[1].space, bed.ipv4(2)?, LIMIT)?;
    for (from, to) in [(1, 2), (2, 1)] {
        bed.wait_for_route(from, to, "direct")?;
    }
    let peer = bed.peer(2, 1)?;
    ensure(peer["via"] == "11.0.0.2:1194", || format!("not to the mapped port: {peer}"))?;
    let is_mapped = || Ok(mapped_ports(&bed.boxes[0])?.contains("10.0.0.2:1194"));
    ensure(is_mapped()?, || "no rule maps the port".into())?;
    // Move to another access network and back.
    bed.machines[1].space.run("ip", &["route", "del", "default"])?;
    until("the port is given back", LIMIT, || Ok(!is_mapped()?))?;
    bed.machines[1].space.run("ip", &["route", "add", "default", "via", "10.0.0.1"])?;
    until("the port is mapped again", LIMIT, is_mapped)?;
    bed.stop(1)?;
    let left = mapped_ports(&bed.boxes[0])?;
    ensure(left.is_empty(), || format!("not given back: {left}"))?;
    Ok("a direct path to the mapped port, which was given back".into())
}

/// Machines with a direct path continue without the relay.
fn hub_killed(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::PortRestricted, Nat::PortRestricted])?;
    bed.join_all()?;
    let address = bed.ipv4(2)?;
    ping_until(&bed.machines[1].space, address, LIMIT)?;
    bed.wait_for_route(1, 2, "direct")?;
    bed.kill(0)?;
    ensure(ping(&bed.machines[1].space, address, 56, 20)? == 20, || "packets are lost".into())?;
    Ok("no packet was lost".into())
}

/// All members cut off a removed machine, and its node gives the reason when it exits.
fn removed(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::None, Nat::None])?;
    bed.join_all()?;
    let address = bed.ipv4(2)?;
    ping_until(&bed.machines[1].space, address, LIMIT)?;
    let name = bed.machines[2].name.clone();
    let refused = bed.machines[1].refused(&["remove", &name])?;
    ensure(refused.contains("no right"), || format!("an ordinary node removed it: {refused}"))?;
    bed.machines[0].mesh(&["remove", &name])?;
    bed.wait_for_line(2, "this node was removed from the mesh")?;
    for at in [0, 1] {
        let what = format!("{} has forgotten the node", bed.machines[at].name);
        until(&what, REMOVAL, || Ok(!bed.machines[at].mesh(&["peers"])?.contains(&name)))?;
        ensure(silent(&bed.machines[at].space, address)?, || "it still answers".into())?;
    }
    bed.ended(2)?;
    // Its files still contain the old roster.
    bed.up(2)?;
    ensure(silent(&bed.machines[1].space, address)?, || "it is back".into())?;
    Ok("cut off, and still after a restart".into())
}

/// A machine that was stopped or lost power is reachable again after its start, at the same addresses.
fn killed_and_restarted(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::None, Nat::PortRestricted])?;
    bed.join_all()?;
    let (address, before) = (bed.ipv4(2)?, bed.addresses(1)?);
    ping_until(&bed.machines[1].space, address, LIMIT)?;
    bed.stop(1)?;
    bed.up(1)?;
    ping_until(&bed.machines[1].space, address, LIMIT)?;
    let after = bed.addresses(1)?;
    ensure(after == before, || format!("addresses {before:?}, then {after:?}"))?;
    bed.kill(2)?;
    bed.up(2)?;
    let again = ping_until(&bed.machines[1].space, address, LIMIT)?;
    bed.kill(0)?;
    bed.up(0)?;
    let hub = bed.ipv4(0)?;
    ping_until(&bed.machines[2].space, hub, LIMIT)?;
    Ok(format!("reached again after {} ms", again.as_millis()))
}

/// A token works once, is refused with a reason, and disappears from the process list.
fn token(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::None, Nat::None])?;
    let first = bed.found()?;
    bed.join_with(1, &first)?;
    let used = bed.machines[2].join_refused(&first)?;
    ensure(used.contains("does not accept this invitation"), || used.clone())?;
    let damaged = bed.machines[2].join_refused(first.get(..60).context("a token")?)?;
    ensure(damaged.contains("copy all of it"), || damaged.clone())?;
    ensure(!bed.machines[2].dir.join("data").exists(), || "a refused node left files".into())?;
    let second = bed.invite(&[])?;
    bed.kill(0)?;
    let unreachable = bed.machines[2].join_refused(&second)?;
    ensure(unreachable.contains("does not answer"), || unreachable.clone())?;
    bed.up(0)?;
    bed.join_by_argument(2, &second)?;
    let shown = std::fs::read(format!("/proc/{}/cmdline", bed.pid(2)?))?;
    ensure(!String::from_utf8_lossy(&shown).contains("adit-mesh1-"), || {
        "the token is in the process list".into()
    })?;
    ping_until(&bed.machines[2].space, bed.ipv4(1)?, LIMIT)?;
    bed.signal(2, Signal::SIGTERM)?;
    bed.ended(2)?;
    Ok("each refused for its reason".into())
}

/// Programs find the nodes by name, and stopping the node restores the machine's DNS settings.
fn names(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::None])?;
    let resolv_conf = bed.machines[1].separate_etc()?.join("resolv.conf");
    let before = "nameserver 192.0.2.53\n";
    std::fs::write(&resolv_conf, before)?;
    bed.join_all()?;
    let hub = bed.ipv4(0)?.to_string();
    let of_hub = |name: &str| bed.machines[1].space.run("getent", &["ahostsv4", name]);
    let found = of_hub("hub.home.internal")?;
    ensure(found.starts_with(&hub), || format!("{hub}: {found}"))?;
    let back = bed.machines[1].space.run("getent", &["hosts", &hub])?;
    ensure(back.contains("hub.home.internal"), || back.clone())?;
    ensure(of_hub("nosuch.home.internal").is_err(), || "a node that does not exist".into())?;
    let first = bed.addresses(1)?;
    let first = first.first().context("no address")?.to_string();
    let written = std::fs::read_to_string(&resolv_conf)?;
    ensure(written.contains(&first), || format!("resolv.conf: {written}"))?;
    bed.stop(1)?;
    let after = std::fs::read_to_string(&resolv_conf)?;
    ensure(after == before, || format!("resolv.conf is not restored: {after}"))?;
    Ok("found by name, and undone".into())
}
