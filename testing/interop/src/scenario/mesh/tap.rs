//! A mesh of Ethernet frames.

use std::net::IpAddr;
use std::time::Duration;

use adit_linux::packet::PacketSocket;

use super::super::bridge::{MARK, experiments_within, frame, tap_into};
use super::super::{Scenario, ping_until};
use super::testbed::{LIMIT, MeshTestbed, Nat};
use crate::failure::{Context, Result, ensure};
use crate::net::{Namespace, ip};
use crate::traffic::{ping, silent, tcp};
use crate::wait::until;

/// The device of each node.
const DEVICE: &str = "mesh-home";

/// How often a frame is sent again until it arrives.
const AGAIN: Duration = Duration::from_millis(300);

/// Three machines form one Ethernet network together with a network that is bridged behind one of them. Roles for IP
/// packets are refused, the policy filters, and no member can pose as another one.
pub(super) fn tap(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::PortRestricted, Nat::PortRestricted])?;
    refusals(&mut bed)?;
    // Without a packet that asks for it, each has a session with all others.
    bed.wait_for_route(1, 2, "direct")?;
    let mut longest = Duration::ZERO;
    for (from, to) in [(1, 0), (0, 1), (1, 2), (2, 1)] {
        for address in bed.addresses(to)? {
            longest = longest.max(ping_until(&bed.machines[from].space, address, LIMIT)?);
        }
    }
    let far = bed.ipv4(2)?;
    ensure(ping(&bed.machines[1].space, far, 1400, 3)? == 3, || "large packets are lost".into())?;
    tcp(&bed.machines[1].space, &bed.machines[2].space, far, 4 << 20)?;
    frames_cross(&bed)?;
    poses_as_another(&bed)?;
    policy(&bed)?;
    bridged(&bed)?;
    bed.stop(1)?;
    let links = bed.machines[1].space.run("ip", &["-br", "link"])?;
    ensure(!links.contains("mesh-"), || format!("the device is left: {links}"))?;
    Ok(format!("the first answer after at most {} ms", longest.as_millis()))
}

/// Makes the machines members. Options that do not fit frames are refused by name.
fn refusals(bed: &mut MeshTestbed) -> Result<()> {
    let refuses = |bed: &MeshTestbed, at: usize, words: &[&str], part: &str| {
        let refused = bed.machines[at].refused(words)?;
        ensure(refused.contains(part), || format!("{words:?}: {refused}"))
    };
    refuses(bed, 0, &["up", "--tap", "--gateway"], "leave out --gateway")?;
    refuses(bed, 0, &["up", "--tap", "--openvpn-gateway"], "leave out --openvpn")?;
    let token = bed.found_with(&["--tap"])?;
    refuses(bed, 0, &["invite", "--gateway"], "leave out --gateway")?;
    refuses(bed, 0, &["invite", "--openvpn", "phone"], "leave out --openvpn")?;
    refuses(bed, 0, &["set", "hub", "--gateway", "on"], "leave out --gateway")?;
    bed.join_only(1, &token)?;
    refuses(bed, 1, &["up", "--exit", "hub"], "leave out --exit")?;
    refuses(bed, 1, &["up", "--tap"], "--tap is for a new one")?;
    bed.up(1)?;
    bed.join(2, &[])?;
    let status = bed.machines[1].mesh(&["status"])?;
    ensure(status.contains("carries    Ethernet frames"), || status.clone())
}

/// A broadcast of a protocol other than IP reaches each other member exactly once.
fn frames_cross(bed: &MeshTestbed) -> Result<()> {
    let sockets = sockets(bed)?;
    let mut broadcast = frame(&[]);
    broadcast.splice(..6, [0xff; 6]);
    for (from, sender) in sockets.iter().enumerate() {
        for (to, receiver) in sockets.iter().enumerate().filter(|(to, _)| *to != from) {
            until(&format!("a frame of {from} reaches {to}"), LIMIT, || {
                sender.send(&[0; 10], &broadcast)?;
                Ok(!experiments_within(receiver, 1, MARK, AGAIN)?.is_empty())
            })?;
        }
        // Copies of earlier ones may still arrive.
        drain(&sockets)?;
    }
    Ok(())
}

fn sockets(bed: &MeshTestbed) -> Result<Vec<PacketSocket>> {
    bed.machines.iter().map(|machine| tap_into(&machine.space, DEVICE)).collect()
}

fn drain(sockets: &[PacketSocket]) -> Result<()> {
    sockets.iter().try_for_each(|socket| {
        while !experiments_within(socket, 1, MARK, Duration::from_millis(100))?.is_empty() {}
        Ok(())
    })
}

/// A member's ARP packet with another member's address is dropped by the others, and counted.
fn poses_as_another(bed: &MeshTestbed) -> Result<()> {
    let sender = tap_into(&bed.machines[1].space, DEVICE)?;
    let (IpAddr::V4(hub), IpAddr::V4(victim)) = (bed.ipv4(0)?, bed.ipv4(2)?) else {
        return Err("no IPv4 address".into());
    };
    let station = [2, 0, 0, 0, 9, 3];
    let arp = |claimed: std::net::Ipv4Addr| {
        let head = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff];
        let fields = [8, 6, 0, 1, 8, 0, 6, 4, 0, 2];
        let parts = [&head[..], &station, &fields, &station, &claimed.octets(), &[0; 6]];
        [&parts.concat()[..], &victim.octets()].concat()
    };
    let before = bed.machines[2].drops("source-spoofed")?;
    until("the frame is dropped", LIMIT, || {
        sender.send(&[0; 10], &arp(hub))?;
        Ok(bed.machines[2].drops("source-spoofed")? > before)
    })?;
    let neighbours = bed.machines[2].space.run("ip", &["neigh"])?;
    ensure(!neighbours.contains("02:00:00:00:09:03"), || neighbours.clone())?;
    ping_until(&bed.machines[2].space, hub.into(), LIMIT).map(drop)
}

/// The policy of the mesh holds for the packets in frames.
fn policy(bed: &MeshTestbed) -> Result<()> {
    let rules = "table inet mesh {
        chain forward {
            type filter hook forward priority filter; policy drop;
            ct state established,related accept
            ip saddr @node:hub accept
        }
    }";
    bed.machines[0].mesh_with_input(&["policy", "set", "-"], rules)?;
    let far = bed.ipv4(2)?;
    until("the policy drops packets", LIMIT, || silent(&bed.machines[1].space, far))?;
    ping_until(&bed.machines[0].space, far, LIMIT)?;
    bed.machines[0].mesh(&["policy", "clear"])?;
    ping_until(&bed.machines[1].space, far, LIMIT).map(drop)
}

/// Another machine reaches a host in a network that is bridged with the device of a node, which has no address there.
fn bridged(bed: &MeshTestbed) -> Result<()> {
    let (site, printer) = (&bed.machines[2].space, Namespace::new("printer")?);
    let lines = [
        format!("link add site type veth peer name eth0 netns {}", printer.name()),
        "link add br0 type bridge".to_owned(),
        "link set site master br0".to_owned(),
        format!("link set {DEVICE} master br0"),
        "link set site up".to_owned(),
        "link set br0 up".to_owned(),
    ];
    ip(Some(site), lines.into_iter())?;
    let lines = ["addr add 192.168.77.5/24 dev eth0".to_owned(), "link set eth0 up".to_owned()];
    ip(Some(&printer), lines.into_iter())?;
    let own = format!("addr add 192.168.77.9/24 dev {DEVICE}");
    ip(Some(&bed.machines[1].space), [own].into_iter())?;
    let inside: IpAddr = "192.168.77.5".parse().context("an address")?;
    ping_until(&bed.machines[1].space, inside, LIMIT)?;
    let back: IpAddr = "192.168.77.9".parse().context("an address")?;
    ping_until(&printer, back, LIMIT)?;
    tcp(&bed.machines[1].space, &printer, inside, 1 << 20).map(drop)
}
