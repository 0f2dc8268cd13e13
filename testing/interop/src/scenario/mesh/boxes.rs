//! NATs made with nftables, and a check that each behaves as its name says.

use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::time::Duration;

use super::testbed::{MeshTestbed, Nat};
use crate::failure::{Context, Result, ensure};
use crate::net::{Namespace, ip};
use crate::process::run_with_input;
use crate::traffic::when_free;

/// The range of ports that a NAT with sequential ports uses.
const SEQUENTIAL_PORTS: std::ops::Range<u32> = 20_000..21_000;

/// The time limit for a datagram to arrive.
const ARRIVAL: Duration = Duration::from_millis(300);

/// The number of attempts to send a datagram that must arrive. The first one may be lost while the next hop's address is resolved.
const ATTEMPTS: u32 = 5;

/// The ports of hosts that a machine behind a NAT sends to, and other ports that it may get packets from.
const CONTACTED: u16 = 7001;
const OTHER: u16 = 7002;

/// Puts a machine with the interface `device` behind a NAT. `net` is the inner network without its last octet.
pub(super) fn put_behind(
    nat_box: &Namespace,
    net: &str,
    space: &Namespace,
    device: &str,
    nat: Nat,
) -> Result<()> {
    add_lan(nat_box, "lan", net, space, device)?;
    nat_box.run("sysctl", &["-qw", "net.ipv4.ip_forward=1"])?;
    let (learns, forwards) = match nat {
        // Ports that the machine has used stay open to all hosts, or to the hosts to which it has sent.
        Nat::FullCone => (
            "set open { type inet_service; flags dynamic,timeout; timeout 5m; }
             chain learn {
                type filter hook forward priority filter - 1;
                iifname lan oifname wan update @open { udp sport }
             }",
            format!("udp dport @open dnat to {net}.2"),
        ),
        Nat::AddressRestricted => (
            "set contacts { type ipv4_addr . inet_service; flags dynamic,timeout; timeout 5m; }
             chain learn {
                type filter hook forward priority filter - 1;
                iifname lan oifname wan update @contacts { ip daddr . udp sport }
             }",
            format!("ip saddr . udp dport @contacts dnat to {net}.2"),
        ),
        Nat::Forwarded => ("", format!("udp dport 1194 dnat to {net}.2")),
        _ => ("", String::new()),
    };
    let forwards = if forwards.is_empty() { forwards } else { format!("iifname wan {forwards}") };
    // An unsolicited packet must not take the port that an answer will need.
    load(
        nat_box,
        &format!(
            "table ip box {{
                {learns}
                chain in {{ type nat hook prerouting priority dstnat; {forwards}; }}
                chain out {{ type nat hook postrouting priority srcnat; oifname wan {}; }}
                chain own {{ type filter hook input priority filter; iifname wan ct state new drop; }}
                chain forward {{
                    type filter hook forward priority filter; policy drop;
                    iifname lan accept
                    ct state established,related accept
                    ct status dnat accept
                }}
            }}",
            masquerade(nat)
        ),
    )
}

fn masquerade(nat: Nat) -> String {
    match nat {
        Nat::Symmetric => "masquerade random,fully-random".into(),
        Nat::SymmetricSequential => {
            let ports: Vec<String> = (0..)
                .zip(SEQUENTIAL_PORTS)
                .map(|(at, port): (u32, _)| format!("{at} : {port}"))
                .collect();
            let (count, ports) = (ports.len(), ports.join(", "));
            format!("meta l4proto udp masquerade to : numgen inc mod {count} map {{ {ports} }}")
        }
        _ => "masquerade".into(),
    }
}

/// Puts two machines behind one NAT. They reach each other only through its outer address, `outer`.
pub(super) fn put_both_behind(
    nat_box: &Namespace,
    outer: IpAddr,
    machines: [&Namespace; 2],
) -> Result<()> {
    for (net, (lan, space)) in
        ["10.0.0", "10.0.1"].into_iter().zip(["lan", "lan2"].into_iter().zip(machines))
    {
        add_lan(nat_box, lan, net, space, "veth0")?;
    }
    nat_box.run("sysctl", &["-qw", "net.ipv4.ip_forward=1"])?;
    load(
        nat_box,
        &format!(
            "table ip box {{
                chain in {{
                    type nat hook prerouting priority dstnat;
                    iifname != wan ip daddr {outer} udp dport 1194 dnat to 10.0.0.2:1194
                    iifname != wan ip daddr {outer} udp dport 1195 dnat to 10.0.1.2:1194
                }}
                chain out {{
                    type nat hook postrouting priority srcnat;
                    ip saddr 10.0.0.2 udp sport 1194 snat to {outer}:1194
                    ip saddr 10.0.1.2 udp sport 1194 snat to {outer}:1195
                    oifname wan masquerade
                }}
                chain own {{ type filter hook input priority filter; iifname wan ct state new drop; }}
                chain forward {{
                    type filter hook forward priority filter; policy drop;
                    oifname wan accept
                    ct state established,related accept
                    ct status dnat accept
                }}
            }}"
        ),
    )
}

fn add_lan(
    nat_box: &Namespace,
    lan: &str,
    net: &str,
    space: &Namespace,
    device: &str,
) -> Result<()> {
    let link = format!("link add {lan} type veth peer name {device} netns {}", space.name());
    let lines = [link, format!("addr add {net}.1/24 dev {lan}"), format!("link set {lan} up")];
    ip(Some(nat_box), lines.into_iter())?;
    let lines = [
        format!("addr add {net}.2/24 dev {device}"),
        format!("link set {device} up"),
        format!("route add default via {net}.1"),
    ];
    ip(Some(space), lines.into_iter())
}

fn load(space: &Namespace, rules: &str) -> Result<()> {
    let mut nft = space.command("nft");
    nft.args(["-f", "-"]);
    run_with_input(nft, rules).map(drop)
}

/// Randomly drops this percentage of the datagrams that arrive at a machine's device.
pub(super) fn set_loss(space: &Namespace, device: &str, percent: u32) -> Result<()> {
    let rules = format!(
        "table inet loss
         delete table inet loss
         table inet loss {{
            chain input {{
                type filter hook input priority -300;
                iifname {device} meta l4proto udp numgen random mod 100 < {percent} counter drop
            }}
         }}"
    );
    load(space, &rules)
}

/// Ends [`set_loss`]. Returns the number of dropped datagrams.
pub(super) fn end_loss(space: &Namespace) -> Result<u64> {
    let rules = space.run("nft", &["list", "table", "inet", "loss"])?;
    space.run("nft", &["delete", "table", "inet", "loss"])?;
    let count = rules.split_once("packets ").map(|(_, rest)| rest);
    let count = count.and_then(|rest| rest.split_whitespace().next());
    count.context("a counter")?.parse().context("a number")
}

/// A NAT's choice of ports and its filtering of senders, as seen from outside.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Behaviour {
    mapping: Mapping,
    filtering: Filtering,
}

/// The choice of the outer port for each new destination.
#[derive(Debug, PartialEq, Eq)]
enum Mapping {
    Same,
    Next,
    Any,
}

/// The senders whose packets pass, relative to the hosts to which the machine has sent.
#[derive(Debug, PartialEq, Eq)]
enum Filtering {
    Everyone,
    SameAddress,
    SamePort,
}

/// Returns the required behaviour of a kind of NAT.
fn expected(nat: Nat) -> Behaviour {
    let mapping = match nat {
        Nat::Symmetric => Mapping::Any,
        Nat::SymmetricSequential => Mapping::Next,
        _ => Mapping::Same,
    };
    let filtering = match nat {
        Nat::None | Nat::FullCone => Filtering::Everyone,
        Nat::AddressRestricted => Filtering::SameAddress,
        _ => Filtering::SamePort,
    };
    Behaviour { mapping, filtering }
}

/// Checks the behaviour of the NAT in front of a machine, from two machines with public addresses. No node may run yet.
pub(super) fn check(bed: &MeshTestbed, at: usize, nat: Nat, observers: [usize; 2]) -> Result<()> {
    let bind = |at: usize, port: u16| -> Result<UdpSocket> {
        let space = bed.machines[at].space.handle()?;
        let any = SocketAddr::from(([0; 4], port));
        // The ports are bound again for each machine.
        let socket = space.run(|| when_free(any, || UdpSocket::bind(any)))??;
        socket.set_read_timeout(Some(ARRIVAL))?;
        Ok(socket)
    };
    let address = |observer: usize| SocketAddr::from(([11, 0, 0, observer as u8 + 1], CONTACTED));
    let [one, other] = observers;
    let near = bind(one, CONTACTED)?;
    let near_other_port = bind(one, OTHER)?;
    let far = bind(other, CONTACTED)?;

    let inside = bind(at, 5000)?;
    let same_host = SocketAddr::new(address(one).ip(), OTHER);
    let first = seen(&inside, &near, address(one))?;
    let second = seen(&inside, &near_other_port, same_host)?;
    let third = seen(&inside, &far, address(other))?;
    let ports = [first, second, third].map(|seen| seen.port());
    let mapping = match ports {
        [one, two, three] if one == two && two == three => Mapping::Same,
        [one, two, three] if two == one + 1 && three == two + 1 => Mapping::Next,
        _ => Mapping::Any,
    };

    let inside = bind(at, 5001)?;
    let outer = seen(&inside, &near, address(one))?;
    let arrives = |from: &UdpSocket| -> Result<bool> {
        from.send_to(b"in", outer)?;
        Ok(inside.recv_from(&mut [0; 16]).is_ok())
    };
    ensure(arrives(&near)?, || format!("{nat:?}: no answer arrives"))?;
    let filtering = match (arrives(&near_other_port)?, arrives(&far)?) {
        (true, true) => Filtering::Everyone,
        (true, false) => Filtering::SameAddress,
        _ => Filtering::SamePort,
    };
    let found = Behaviour { mapping, filtering };
    ensure(found == expected(nat), || format!("{nat:?} is {found:?}: {ports:?}"))
}

/// Sends a datagram from inside until it arrives. Returns the sender's address, as the receiver sees it.
fn seen(inside: &UdpSocket, at: &UdpSocket, to: SocketAddr) -> Result<SocketAddr> {
    for _ in 0..ATTEMPTS {
        inside.send_to(b"out", to)?;
        if let Ok((_, sender)) = at.recv_from(&mut [0; 16]) {
            return Ok(sender);
        }
    }
    Err(format!("nothing arrives at {to}").into())
}
