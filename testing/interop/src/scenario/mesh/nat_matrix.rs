//! Every pair of the ways in which machines are connected to the internet.

use std::time::Duration;

use super::super::{Scenario, ping_until};
use super::testbed::{LIMIT, MeshTestbed, Nat};
use crate::failure::{Result, ensure};
use crate::traffic::ping;
use crate::wait::until;

/// The ways, each with the word for it in the table.
const WAYS: [(Nat, &str); 7] = [
    (Nat::None, "public"),
    (Nat::Forwarded, "port forwarded"),
    (Nat::PortRestricted, "NAT"),
    (Nat::Double, "double NAT"),
    (Nat::Symmetric, "symmetric NAT"),
    (Nat::Ipv6, "IPv6 alone"),
    (Nat::NoUdp, "no UDP"),
];

/// A search for a port takes 13 s.
const SETTLED: Duration = Duration::from_secs(25);

/// Returns whether a pair must find a direct path; `None` if it may.
fn must_be_direct(a: Nat, b: Nat) -> Option<bool> {
    let is_open = |nat| matches!(nat, Nat::None | Nat::Forwarded);
    match (a, b) {
        (Nat::NoUdp, _) | (_, Nat::NoUdp) => Some(false),
        (Nat::Ipv6, b) => Some(matches!(b, Nat::None | Nat::Ipv6)),
        (a, Nat::Ipv6) => Some(a == Nat::None),
        (Nat::Symmetric, Nat::Symmetric) => Some(false),
        // Of 50 searches for a port, one is in vain.
        (Nat::Symmetric, b) if !is_open(b) => None,
        (a, Nat::Symmetric) if !is_open(a) => None,
        _ => Some(true),
    }
}

/// Two machines of each way, and the path that each pair finds.
pub(super) fn nat_matrix(scenario: &Scenario<'_>) -> Result<String> {
    let machines: Vec<Nat> = WAYS.iter().chain(&WAYS).map(|(nat, _)| *nat).collect();
    let nats: Vec<Nat> = [Nat::None].into_iter().chain(machines).collect();
    let mut bed = MeshTestbed::new(scenario, &nats)?;
    bed.found()?;
    bed.join(1, &["--relay"])?;
    for at in 2..bed.machines.len() {
        bed.join(at, &[])?;
    }
    let mut table = String::from("\n| |");
    WAYS.iter().for_each(|(_, name)| table.push_str(&format!(" {name} |")));
    table.push_str("\n|---|");
    WAYS.iter().for_each(|_| table.push_str("---|"));
    for (row, (a, name)) in WAYS.iter().enumerate() {
        table.push_str(&format!("\n| {name} |"));
        for (column, (b, _)) in WAYS.iter().enumerate() {
            let cell = if column < row {
                String::new()
            } else {
                pair(&bed, (2 + row, *a), (2 + WAYS.len() + column, *b))?
            };
            table.push_str(&format!(" {cell} |"));
        }
    }
    Ok(table)
}

fn pair(bed: &MeshTestbed, (from, a): (usize, Nat), (to, b): (usize, Nat)) -> Result<String> {
    let space = &bed.machines[from].space;
    let address = bed.ipv4(to)?;
    ping_until(space, address, LIMIT)?;
    let expected = must_be_direct(a, b);
    let both = |route: &str| Ok(bed.route(from, to)? == route && bed.route(to, from)? == route);
    let is_settled = || -> Result<bool> {
        ping(space, address, 56, 1)?;
        both("direct")
    };
    if expected != Some(false) {
        let direct = until("the path is direct", SETTLED, is_settled);
        if expected == Some(true) {
            direct?;
        }
    }
    ensure(ping(space, address, 56, 3)? == 3, || format!("{from} to {to}: packets are lost"))?;
    let path = if both("direct")? { "direct" } else { "relay" };
    ensure(expected != Some(false) || path == "relay", || format!("{from} to {to} is {path}"))?;
    Ok(path.to_owned())
}
