//! Tests of a hundred nodes on one machine.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use super::super::{Scenario, ping_until};
use super::testbed::{LIMIT, MeshTestbed};
use crate::failure::{Context, Result, ensure};
use crate::wait::until;

/// The number of nodes; the first is the hub.
const NODES: usize = 100;

/// The number of nodes to kill.
const KILLED: usize = 10;

/// Each node reaches the nodes at these distances in number: a sample of all pairs.
const DISTANCES: [usize; 5] = [1, 7, 31, 47, 73];

/// The time after which started nodes are idle.
const SETTLED: Duration = Duration::from_secs(60);

/// The time during which idle traffic is counted.
const IDLE: Duration = Duration::from_secs(60);

/// All nodes start at once and reach each other by name. Ten random nodes are killed and restarted, and are reachable again.
pub(super) fn hundred(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::routed(scenario, NODES as u8)?;
    for machine in &mut bed.machines {
        machine.separate_etc()?;
    }
    bed.found()?;
    let token = bed.invite(&["--uses", "100"])?;
    for at in 1..NODES {
        bed.join_only(at, &token)?;
    }
    let began = Instant::now();
    for at in 1..NODES {
        bed.spawn(at)?;
    }
    for at in 1..NODES {
        bed.wait_until_up(at)?;
    }
    let started = began.elapsed();
    let addresses: Vec<IpAddr> = (0..NODES).map(|at| address(&bed, at)).collect::<Result<_>>()?;
    // Each node has only its standing sessions.
    sleep(SETTLED);
    let idle = idle_bytes(&bed)?;
    let longest = reach(&bed, &addresses, &[])?;
    let [rss, pss, private] = ["Rss", "Pss", "Pss_Anon"].map(|figure| bed.memory_kib(figure));
    let (rss, pss, private) = (rss?, pss?, private?);
    let killed = choose()?;
    for at in &killed {
        bed.kill(*at)?;
    }
    // The hub may be among them.
    let without = reach(&bed, &addresses, &killed);
    without.map_err(|failure| format!("without {killed:?}: {failure}"))?;
    for at in &killed {
        bed.up(*at)?;
    }
    let again = reach(&bed, &addresses, &[]);
    let again = again.map_err(|failure| format!("after {killed:?} are back: {failure}"))?;
    Ok(format!(
        "{} s until all run, first answers after at most {} ms, {} ms after {killed:?} were killed; for each idle node \
         {idle} bytes/s sent, {private} KiB of its own, PSS {pss} KiB, resident {rss} KiB",
        started.as_secs(),
        longest.as_millis(),
        again.as_millis()
    ))
}

/// Returns a member's IPv4 address. The hub is busy while all others connect to it.
fn address(bed: &MeshTestbed, at: usize) -> Result<IpAddr> {
    let mut found = Err("it was not queried".into());
    until("a node answers", LIMIT, || {
        found = bed.ipv4(at);
        Ok(found.is_ok())
    })?;
    found
}

/// Returns ten random nodes.
fn choose() -> Result<Vec<usize>> {
    let nanos = SystemTime::now().duration_since(UNIX_EPOCH).context("the clock")?.subsec_nanos();
    let mut seed = u64::from(nanos) | 1;
    let mut chosen = Vec::new();
    while chosen.len() < KILLED {
        // Xorshift (Marsaglia, 2003).
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        let at = usize::try_from(seed % NODES as u64).context("a number")?;
        if !chosen.contains(&at) {
            chosen.push(at);
        }
    }
    Ok(chosen)
}

/// Makes each node look up and ping five others, except those that are down. Returns the longest time until a first answer.
fn reach(bed: &MeshTestbed, addresses: &[IpAddr], stopped: &[usize]) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    let runs = |at: &usize| !stopped.contains(at);
    for at in (0..NODES).filter(runs) {
        for to in DISTANCES.map(|distance| (at + distance) % NODES).iter().filter(|to| runs(to)) {
            let (space, name) = (&bed.machines[at].space, &bed.machines[*to].name);
            let address = *addresses.get(*to).context("an address")?;
            let found = space.run("getent", &["ahostsv4", &format!("{name}.home.internal")])?;
            ensure(found.starts_with(&address.to_string()), || {
                format!("{}: {name} is {address}, and not {found}", bed.machines[at].name)
            })?;
            longest = longest.max(ping_until(space, address, LIMIT)?);
        }
    }
    Ok(longest)
}

/// Returns the average number of bytes that an idle node sends per second.
fn idle_bytes(bed: &MeshTestbed) -> Result<u64> {
    let sent = || -> Result<u64> {
        let mut all: u64 = 0;
        for machine in &bed.machines {
            let text = machine.space.run("cat", &["/sys/class/net/wan/statistics/tx_bytes"])?;
            all = all.saturating_add(text.trim().parse::<u64>().context("a number")?);
        }
        Ok(all)
    };
    let before = sent()?;
    let began = Instant::now();
    sleep(IDLE);
    let took = began.elapsed().as_secs().max(1);
    let bytes = sent()?.saturating_sub(before);
    let each = bytes / took / NODES as u64;
    ensure(each > 0, || "no node sends anything".into())?;
    Ok(each)
}
