//! A hundred nodes on one machine.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::super::{Scenario, ping_until};
use super::testbed::{LIMIT, MeshTestbed};
use crate::failure::{Context, Result, ensure};

/// The nodes, of which the first is the hub.
const NODES: usize = 100;

/// The nodes that are killed.
const KILLED: usize = 10;

/// The time in which idle traffic is counted.
const IDLE: Duration = Duration::from_secs(50);

/// The time after the last packet in the tunnel until its path is checked no more often than others, and a little more.
const CALM: Duration = Duration::from_secs(15);

/// All start at once, and each reaches others; ten are killed, come back, and are reached again.
pub(super) fn hundred(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::routed(scenario, NODES as u8)?;
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
    let addresses: Vec<IpAddr> = (0..NODES).map(|at| bed.ipv4(at)).collect::<Result<_>>()?;
    let longest = reach(&bed, &addresses, |_| true)?;
    sleep(CALM);
    let idle = idle_bytes(&bed)?;
    let [rss, pss, private] = ["Rss", "Pss", "Pss_Anon"].map(|figure| bed.memory_kib(figure));
    let (rss, pss, private) = (rss?, pss?, private?);
    let killed: Vec<usize> = (0..KILLED).map(|n| 5 + n * 9).collect();
    for at in &killed {
        bed.kill(*at)?;
    }
    reach(&bed, &addresses, |at| !killed.contains(&at))?;
    for at in &killed {
        bed.up(*at)?;
    }
    let again = reach(&bed, &addresses, |_| true)?;
    Ok(format!(
        "{} s until all run, first answers after at most {} ms, {} ms after {KILLED} were killed; for each idle \
         node {idle} bytes/s sent, {private} KiB of its own, PSS {pss} KiB, resident {rss} KiB",
        started.as_secs(),
        longest.as_millis(),
        again.as_millis()
    ))
}

/// Pings another node from each. Returns the longest time until the first answer.
fn reach(
    bed: &MeshTestbed,
    addresses: &[IpAddr],
    counts: impl Fn(usize) -> bool,
) -> Result<Duration> {
    let mut longest = Duration::ZERO;
    for at in (0..NODES).filter(|at| counts(*at)) {
        let to =
            (1..NODES).map(|step| (at + 31 * step) % NODES).find(|to| *to != at && counts(*to));
        let to = addresses.get(to.context("another node")?).context("an address")?;
        longest = longest.max(ping_until(&bed.machines[at].space, *to, LIMIT)?);
    }
    Ok(longest)
}

/// Returns the bytes that a node sends in a second without traffic, on average.
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
