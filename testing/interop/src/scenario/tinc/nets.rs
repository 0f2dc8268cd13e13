//! Nets of several nodes: adit, tinc 1.1 and tinc 1.0 together, with relays, partitions, and nodes that start at once or have one name.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::super::Scenario;
use super::SOON;
use super::bed::{Bed, Kind, NetSpec, NodeSpec, apart, inner};
use crate::failure::{Context, Result, ensure};
use crate::traffic::{ping, silent};
use crate::wait::{ScaledInstant, until};

/// The number of times that two nodes start at once, and in the long form.
const STARTS: usize = 5;
const MANY_STARTS: usize = 100;

/// The time in which a pair of nodes that started at once exchanges packets both ways. Two nodes of tinc that wait for each other's session
/// try again after ten seconds.
const AT_ONCE: Duration = Duration::from_secs(8);

/// Lines with which nodes notice soon that others are gone.
const QUICK: &str = "PingInterval = 2\nPingTimeout = 2\n";

/// Returns an error of a net with the logs of its nodes.
pub(super) fn with_logs<T>(bed: &mut Bed, work: impl FnOnce(&mut Bed) -> Result<T>) -> Result<T> {
    work(bed).map_err(|failure| bed.blame(&failure))
}

/// Six nodes in a row, of which only neighbours reach each other: tinc 1.0 at both ends, then tinc 1.1, and two of adit in the middle. All
/// exchange packets; the row breaks in the middle and heals.
pub(super) fn six(scenario: &Scenario<'_>) -> Result<String> {
    let kinds = [Kind::V1_0, Kind::V1_1, Kind::Adit, Kind::Adit, Kind::V1_1, Kind::V1_0];
    let node = |(at, kind): (usize, Kind)| {
        let next: &[usize] = if at + 1 < kinds.len() { &[at + 1] } else { &[] };
        NodeSpec::new(&format!("n{at}"), kind, next)
    };
    let mut spec = NetSpec::new(kinds.into_iter().enumerate().map(node).collect());
    spec.only_neighbours = true;
    spec.conf = QUICK.to_owned();
    let Some(mut bed) = Bed::new(scenario, &spec)? else { return Ok("skipped".to_owned()) };
    with_logs(&mut bed, |bed| row(bed, kinds.len()))
}

fn row(bed: &mut Bed, count: usize) -> Result<String> {
    let pairs = || (0..count).flat_map(|a| (a + 1..count).map(move |b| (a, b)));
    let far = || pairs().filter(|(a, b)| b - a > 1).flat_map(|(a, b)| apart(a, b));
    bed.set_rules(&far().collect::<Vec<_>>())?;
    bed.start_all()?;
    let all_reach = |bed: &Bed| -> Result<()> {
        for (a, b) in pairs() {
            bed.wait_for_ping(a, b, false)?;
            bed.wait_for_ping(b, a, true)?;
        }
        Ok(())
    };
    all_reach(bed)?;
    same_topology(bed, SOON)?;
    let middle = count / 2;
    let cut = far().chain(apart(middle - 1, middle));
    bed.set_rules(&cut.collect::<Vec<_>>())?;
    until("both sides notice the partition", SOON, || {
        let one = bed.reachability(middle - 1, count - 1)? == "unreachable";
        Ok(one && bed.reachability(middle, 0)? == "unreachable")
    })?;
    ensure(silent(bed.space(0)?, inner(count - 1, false))?, || "packets cross the cut".into())?;
    bed.wait_for_ping(0, middle - 1, false)?;
    bed.wait_for_ping(count - 1, middle, false)?;
    bed.set_rules(&far().collect::<Vec<_>>())?;
    let began = ScaledInstant::now();
    bed.wait_for_ping(0, count - 1, false)?;
    let healed = began.elapsed();
    all_reach(bed)?;
    same_topology(bed, SOON)?;
    Ok(format!("{} pairs; one net again after {} ms", pairs().count(), healed.as_millis()))
}

/// Waits until all nodes with a control socket list the same edges.
pub(super) fn same_topology(bed: &Bed, limit: Duration) -> Result<()> {
    let able: Vec<usize> =
        (0..bed.nodes.len()).filter(|at| bed.nodes[*at].kind != Kind::V1_0).collect();
    let mut seen = BTreeSet::new();
    let same = until("all nodes know the same edges", limit, || {
        seen = able.iter().map(|at| edges(bed, *at)).collect::<Result<_>>()?;
        Ok(seen.len() == 1)
    });
    same.map_err(|failure| format!("{failure}: {seen:#?}").into())
}

/// Returns the edges that a node knows: their ends and weights.
fn edges(bed: &Bed, at: usize) -> Result<Vec<String>> {
    let listed = bed.tinc(at, &["dump", "edges"])?;
    let short = |line: &str| {
        let words: Vec<&str> = line.split_whitespace().collect();
        format!("{:?} {:?}", words.get(..3), words.last())
    };
    let mut edges: Vec<String> = listed.lines().map(short).collect();
    edges.sort();
    Ok(edges)
}

/// Two nodes that connect to each other start at the same time: one connection remains, and packets pass soon.
pub(super) fn start_at_once(scenario: &Scenario<'_>) -> Result<String> {
    starts(scenario, STARTS)
}

/// Does so a hundred times.
pub(super) fn start_at_once_often(scenario: &Scenario<'_>) -> Result<String> {
    starts(scenario, MANY_STARTS)
}

fn starts(scenario: &Scenario<'_>, times: usize) -> Result<String> {
    // The names decide which of two requests for a session counts, so adit has the smaller one, the greater one, and both.
    let nodes = vec![
        NodeSpec::new("alice", Kind::Adit, &[1]),
        NodeSpec::new("bob", Kind::V1_1, &[0, 2]),
        NodeSpec::new("carol", Kind::Adit, &[1, 3]),
        NodeSpec::new("dave", Kind::Adit, &[2]),
    ];
    let Some(mut bed) = Bed::new(scenario, &NetSpec::new(nodes))? else {
        return Ok("skipped".to_owned());
    };
    let mut longest = Duration::ZERO;
    for time in 0..times {
        let took = with_logs(&mut bed, at_once);
        longest = longest.max(took.map_err(|failure| format!("start {}: {failure}", time + 1))?);
        for at in 0..bed.nodes.len() {
            bed.end(at, Signal::SIGKILL)?;
        }
    }
    Ok(format!(
        "{times} starts, packets between all neighbours after at most {} ms",
        longest.as_millis()
    ))
}

/// Starts all nodes of a row at once. Returns the time until all neighbours exchange packets.
fn at_once(bed: &mut Bed) -> Result<Duration> {
    let count = bed.nodes.len();
    (0..count).try_for_each(|at| bed.spawn(at))?;
    for at in 0..count {
        bed.daemon(at)?.wait_for("Ready", SOON)?;
    }
    let began = ScaledInstant::now();
    for at in 1..count {
        for (from, to) in [(at - 1, at), (at, at - 1)] {
            until(&format!("node {from} reaches node {to}"), AT_ONCE, || {
                Ok(ping(bed.space(from)?, inner(to, false), 56, 1)? == 1)
            })?;
        }
    }
    let took = began.elapsed();
    for (at, neighbours) in [1, 2, 2, 1].into_iter().enumerate() {
        until("one connection with each neighbour remains", SOON, || {
            let listed = bed.tinc(at, &["dump", "connections"])?;
            Ok(listed.lines().filter(|line| !line.starts_with("<control>")).count() == neighbours)
        })?;
    }
    Ok(took)
}

/// How long two nodes have one name.
const CONFLICT: Duration = Duration::from_secs(3);

/// The number of bytes that each node may send a second during a conflict.
const CONFLICT_RATE: u64 = 20_000;

/// Two nodes, one of them of adit, have one name and key, at opposite ends of a net. The others remain a net, the traffic is bounded, and when one of the two has
/// gone the other is reached by all.
pub(super) fn name_twice(scenario: &Scenario<'_>) -> Result<String> {
    let mut told = Vec::new();
    // Two nodes of tinc answer each other as fast as they can, until both stop for ten seconds.
    for (number, first) in [Kind::V1_1, Kind::Adit].into_iter().enumerate() {
        let mut twin = NodeSpec::new("bob", Kind::Adit, &[2]);
        twin.twin_of = Some(0);
        let nodes = vec![
            NodeSpec::new("bob", first, &[1]),
            NodeSpec::new("carol", Kind::Adit, &[2]),
            NodeSpec::new("dave", Kind::V1_1, &[]),
            twin,
        ];
        let folder = scenario.folder().join(number.to_string());
        std::fs::create_dir(&folder)?;
        let own = Scenario { folder, ..*scenario };
        let Some(mut bed) = Bed::new(&own, &NetSpec::new(nodes))? else {
            return Ok("skipped".to_owned());
        };
        told.push(with_logs(&mut bed, conflict)?);
    }
    Ok(told.join("; "))
}

fn conflict(bed: &mut Bed) -> Result<String> {
    let (first, carol, dave, twin) = (0, 1, 2, 3);
    for at in [first, carol, dave] {
        bed.start(at)?;
    }
    bed.wait_for_ping(first, dave, false)?;
    bed.start(twin)?;
    until("the second node is connected", SOON, || {
        Ok(bed.tinc(dave, &["dump", "connections"])?.contains("bob"))
    })?;
    let (before, began) = (bed.bytes_sent()?, Instant::now());
    while began.elapsed() < CONFLICT {
        bed.wait_for_ping(carol, dave, false)?;
        bed.wait_for_ping(dave, carol, false)?;
        std::thread::sleep(Duration::from_millis(500));
    }
    let seconds = began.elapsed().as_secs().max(1);
    let rate = (bed.bytes_sent()? - before) / seconds / bed.nodes.len() as u64;
    ensure(rate < CONFLICT_RATE, || format!("{rate} bytes per second and node"))?;
    bed.end(twin, Signal::SIGKILL)?;
    for at in [carol, dave] {
        bed.wait_for_ping(at, first, false)?;
        bed.wait_for_ping(first, at, false)?;
    }
    let kind = bed.nodes.get(first).context("the first")?.kind;
    Ok(format!("{kind:?} and adit: {rate} bytes per second and node"))
}
