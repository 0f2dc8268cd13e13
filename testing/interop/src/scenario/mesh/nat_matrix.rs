//! Tests every pair of ways in which machines are connected to the internet.

use std::time::Duration;

use super::super::{Scenario, ping_until};
use super::boxes;
use super::testbed::{LIMIT, MeshTestbed, Nat};
use crate::failure::{Failure, Result, ensure};
use crate::traffic::ping;
use crate::wait::{ScaledInstant, until};

/// The ways, each with its name in the table.
const WAYS: [(Nat, &str); 10] = [
    (Nat::None, "public"),
    (Nat::Forwarded, "port forwarded"),
    (Nat::FullCone, "full cone"),
    (Nat::AddressRestricted, "address-restricted"),
    (Nat::PortRestricted, "port-restricted"),
    (Nat::Double, "double NAT"),
    (Nat::SymmetricSequential, "symmetric, sequential ports"),
    (Nat::Symmetric, "symmetric, random ports"),
    (Nat::Ipv6, "IPv6 alone"),
    (Nat::NoUdp, "no UDP"),
];

/// The first machine of the matrix, after the hub and another relay.
const FIRST: usize = 2;

/// A port search takes 13 s. A node makes at most four a minute, including those for its standing neighbours.
const SETTLED: Duration = Duration::from_secs(80);

/// The required result for a pair.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Expected {
    Direct,
    /// A port search finds a direct path, but one in 50 searches fails.
    Search,
    Relay,
}

fn expected(a: Nat, b: Nat) -> Expected {
    let is_symmetric = |nat| matches!(nat, Nat::Symmetric | Nat::SymmetricSequential);
    // NATs that admit packets from every port of an address to which the machine has sent.
    let is_open =
        |nat| matches!(nat, Nat::None | Nat::Forwarded | Nat::FullCone | Nat::AddressRestricted);
    match (a, b) {
        (Nat::NoUdp, _) | (_, Nat::NoUdp) => Expected::Relay,
        (Nat::Ipv6, Nat::None | Nat::Ipv6) | (Nat::None, Nat::Ipv6) => Expected::Direct,
        (Nat::Ipv6, _) | (_, Nat::Ipv6) => Expected::Relay,
        _ if is_symmetric(a) && is_symmetric(b) => Expected::Relay,
        _ if is_symmetric(a) != is_symmetric(b) && !is_open(a) && !is_open(b) => Expected::Search,
        _ => Expected::Direct,
    }
}

/// Connects two machines of each way, and prints the path that each pair finds and the time that it took.
pub(super) fn nat_matrix(scenario: &Scenario<'_>) -> Result<String> {
    let machines: Vec<Nat> = WAYS.iter().chain(&WAYS).map(|(nat, _)| *nat).collect();
    let nats: Vec<Nat> = [Nat::None]
        .into_iter()
        .chain(machines.iter().copied())
        .chain([Nat::Hairpin, Nat::SameBox])
        .collect();
    let mut bed = MeshTestbed::new(scenario, &nats)?;
    for (at, nat) in (FIRST..).zip(&machines) {
        if !matches!(nat, Nat::Ipv6 | Nat::NoUdp) {
            boxes::check(&bed, at, *nat, [0, 1])?;
        }
    }
    bed.found()?;
    bed.join(1, &["--relay"])?;
    for at in FIRST..bed.machines.len() {
        bed.join(at, &[])?;
    }
    let mut cells = vec![vec![String::new(); WAYS.len()]; WAYS.len()];
    // A node searches for one port at a time, so run these pairs one after another.
    for search in [false, true] {
        let filled = |row: usize| fill(&bed, row, search);
        let rows: Vec<Result<Vec<(usize, String)>>> = if search {
            (0..WAYS.len()).map(filled).collect()
        } else {
            std::thread::scope(|scope| {
                let rows: Vec<_> =
                    (0..WAYS.len()).map(|row| scope.spawn(move || filled(row))).collect();
                let panicked = |_| Err(Failure::from("a thread panicked"));
                rows.into_iter().map(|row| row.join().unwrap_or_else(panicked)).collect()
            })
        };
        for (row, found) in cells.iter_mut().zip(rows) {
            for (column, cell) in found? {
                row[column] = cell;
            }
        }
    }
    let last = bed.machines.len() - 1;
    let behind_one = pair(&bed, last - 1, last, Expected::Direct)?;
    Ok(format!("{}\nbehind one NAT with hairpinning: {behind_one}", table(&cells)))
}

/// Connects the pairs of a row: either those that need a port search, or the others.
fn fill(bed: &MeshTestbed, row: usize, search: bool) -> Result<Vec<(usize, String)>> {
    let mut found = Vec::new();
    for (column, (b, name)) in WAYS.iter().enumerate().skip(row) {
        let (a, row_name) = WAYS[row];
        let expected = expected(a, *b);
        if (expected == Expected::Search) == search {
            let cell = pair(bed, FIRST + row, FIRST + WAYS.len() + column, expected);
            let cell = cell.map_err(|failure| format!("{row_name} to {name}: {failure}"))?;
            found.push((column, cell));
        }
    }
    Ok(found)
}

fn table(cells: &[Vec<String>]) -> String {
    let mut table = String::from("\n| |");
    WAYS.iter().for_each(|(_, name)| table.push_str(&format!(" {name} |")));
    table.push_str("\n|---|");
    WAYS.iter().for_each(|_| table.push_str("---|"));
    for ((_, name), row) in WAYS.iter().zip(cells) {
        table.push_str(&format!("\n| {name} |"));
        row.iter().for_each(|cell| table.push_str(&format!(" {cell} |")));
    }
    table
}

/// Connects two machines. Returns the path that they found, and the time until it carried data, unless they already had it as standing
/// neighbours.
fn pair(bed: &MeshTestbed, from: usize, to: usize, expected: Expected) -> Result<String> {
    let space = &bed.machines[from].space;
    let address = bed.ipv4(to)?;
    let both = |route: &str| -> Result<bool> {
        Ok(bed.route(from, to)? == route && bed.route(to, from)? == route)
    };
    let is_neighbour = bed.route(from, to)? != "none";
    let began = ScaledInstant::now();
    ping_until(space, address, LIMIT)?;
    let searched_in_vain = || -> Result<bool> {
        let report = bed.machines[from].json(&["path", &bed.machines[to].name])?;
        Ok(report["report"]["port_search"]["state"] == "not_found")
    };
    let mut took = None;
    if expected != Expected::Relay {
        until("the path is direct", SETTLED, || {
            ping(space, address, 56, 1)?;
            Ok(both("direct")? || (expected == Expected::Search && searched_in_vain()?))
        })?;
        took = Some(began.elapsed());
    }
    ensure(ping(space, address, 56, 3)? == 3, || "packets are lost".into())?;
    let is_direct = both("direct")?;
    ensure(expected != Expected::Relay || !is_direct, || "the path is direct".into())?;
    match took.filter(|_| is_direct) {
        Some(_) if is_neighbour => Ok("direct".into()),
        Some(took) => Ok(format!("direct, {} ms", took.as_millis())),
        None if both("relay")? => Ok("relay".into()),
        None => Err("one end has a direct path, and the other one has none".into()),
    }
}
