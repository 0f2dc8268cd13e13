//! A net of the real tinc 1.1 becomes a mesh, by the commands that `adit mesh import-tinc` prints.

use std::net::IpAddr;

use adit_tinc::keys::PrivateKey;

use super::super::{Scenario, ping_until};
use super::guest::{Tinc, route_scripts};
use super::testbed::{LIMIT, MeshTestbed, Nat};
use crate::failure::{Context, Result, ensure};
use crate::net::ip;
use crate::wait::until;

const NAMES: [&str; 3] = ["alice", "bob", "carol"];

/// Returns the address of a machine in its network.
fn inside(at: usize) -> IpAddr {
    [10, 1 + u8::try_from(at).unwrap_or_default(), 0, 1].into()
}

/// Three nodes that all know each other, each with a network.
fn net(bed: &MeshTestbed) -> Result<Vec<Tinc>> {
    let keys: Vec<PrivateKey> = (1..4).map(|seed| PrivateKey::from_seed(&[seed; 32])).collect();
    let mut nodes = Vec::new();
    for (at, name) in NAMES.iter().enumerate() {
        let machine = &bed.machines[at];
        let own = inside(at);
        ip(Some(&machine.space), [format!("addr add {own}/24 dev lo")].into_iter())?;
        let to = if at == 0 { "" } else { "ConnectTo = alice\n" };
        let conf = format!(
            "Name = {name}\nAddressFamily = ipv4\nInterface = tinc0\n{to}Compression = 0\n"
        );
        let scripts = route_scripts(name, &format!("src {own}"));
        let folder = machine.dir.join("tinc");
        let node = Tinc::new(folder, &conf, &keys[at], &scripts)?;
        for (other, (name, key)) in NAMES.iter().zip(&keys).enumerate() {
            // Only alice can be reached by the others.
            let address = if other == 0 { "Address = 11.0.0.1\n" } else { "" };
            node.host(name, key, &format!("{address}Subnet = 10.{}.0.0/24\n", other + 1))?;
        }
        nodes.push(node);
    }
    Ok(nodes)
}

/// Returns whether a machine's packets to another one's network leave through a device.
fn leads_through(bed: &MeshTestbed, from: usize, to: usize, device: &str) -> Result<bool> {
    let route = bed.machines[from].space.run("ip", &["route", "get", &inside(to).to_string()]);
    Ok(route.is_ok_and(|route| route.contains(&format!("dev {device} "))))
}

const PAIRS: [(usize, usize); 4] = [(0, 1), (1, 2), (2, 1), (2, 0)];

fn all_reach_each_other(bed: &MeshTestbed, device: &str) -> Result<()> {
    for (from, to) in PAIRS {
        let what = format!("{from} reaches the network of {to} through {device}");
        until(&what, LIMIT, || leads_through(bed, from, to, device))?;
        ping_until(&bed.machines[from].space, inside(to), LIMIT)?;
    }
    Ok(())
}

/// Traffic goes over tinc until it is stopped, and over the mesh afterwards.
pub(super) fn import_tinc(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::None, Nat::None])?;
    let mut nodes = net(&bed)?;
    for (node, machine) in nodes.iter_mut().zip(&bed.machines) {
        if !node.start(&machine.space)? {
            return Ok("skipped".to_owned());
        }
    }
    all_reach_each_other(&bed, "tinc0")?;

    let folder = nodes[0].folder.to_string_lossy().into_owned();
    let words = ["import-tinc", folder.as_str(), "--mesh", "home"];
    let hub = &bed.machines[0];
    let shown = hub.mesh(&[&words[..], &["--dry-run"]].concat())?;
    for part in [
        "this machine is alice",
        "tokens     lead to 11.0.0.1:1194",
        "bob     -      10.2.0.0/24",
        "tinc.conf:4: Compression: packets are not compressed",
        "tinc-up: a mesh sets addresses and routes itself",
        "Nothing was changed",
    ] {
        ensure(shown.contains(part), || format!("{part}: {shown}"))?;
    }
    ensure(!hub.dir.join("data").exists(), || "a dry run left files".to_owned())?;
    let made = hub.json(&words)?;
    let again = hub.refused(&words)?;
    ensure(again.contains("already in the mesh home"), || again.clone())?;
    bed.up(0)?;
    for (at, name) in NAMES.iter().enumerate().skip(1) {
        let tokens = made["tokens"].as_array().context("no tokens")?;
        let token = tokens.iter().find(|token| token["name"] == *name);
        let token = token.and_then(|token| token["token"].as_str()).context("no token")?;
        bed.join_with(at, token)?;
        let status = bed.machines[at].json(&["status"])?;
        let expected = format!("10.{}.0.0/24", at + 1);
        ensure(status["node"] == *name && status["subnets"][0] == expected.as_str(), || {
            format!("{status}")
        })?;
    }
    ping_until(&bed.machines[1].space, bed.ipv4(2)?, LIMIT)?;
    // Both run, and the networks are still reached through tinc.
    all_reach_each_other(&bed, "tinc0")?;

    for (node, machine) in nodes.iter().zip(&bed.machines) {
        node.run(&machine.space, &["stop"])?;
    }
    all_reach_each_other(&bed, "mesh-home")?;
    Ok("over tinc until it was stopped, and over the mesh afterwards".to_owned())
}
