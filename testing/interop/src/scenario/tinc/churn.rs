//! A net of sixty nodes, a third of them of tinc, in which nodes end and start all the time.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

use adit_engine::Random;
use nix::sys::signal::Signal;

use super::super::Scenario;
use super::bed::{Bed, Kind, NetSpec, NodeSpec, inner};
use super::nets::{same_topology, with_logs};
use crate::failure::{Context, Result, ensure};
use crate::net::Namespace;
use crate::traffic::ping;
use crate::wait::ScaledInstant;

/// The number of nodes. Every third one is of tinc.
const NODES: usize = 60;

/// The number of nodes that each one connects to.
const CONNECTIONS: usize = 3;

/// Every how many nodes one keeps running. These are observed.
const OBSERVED: usize = 5;

/// The time for which a node is away, and the time between two of them.
const AWAY: Duration = Duration::from_secs(2);
const PAUSE: Duration = Duration::from_secs(3);

/// The longest time for which two running nodes may not reach each other.
const LONGEST_GAP: Duration = Duration::from_secs(10);

/// The number of bytes by TCP that a node may send a second: the control traffic.
const CONTROL_RATE: u64 = 20_000;

/// The time until a net of this size is complete at first and at the end.
const COMPLETE: Duration = Duration::from_secs(60);

/// Restarts nodes for as long as `--minutes` says: the others always reach each other, and the control traffic is bounded.
pub(super) fn sixty(scenario: &Scenario<'_>) -> Result<String> {
    let mut random = Random::new([60; 32]);
    let mut below = |bound: usize| random.below(u32::try_from(bound).unwrap_or(1)) as usize;
    let mut nodes = Vec::new();
    for at in 0..NODES {
        let mut connect_to: Vec<usize> = Vec::new();
        while connect_to.len() < CONNECTIONS {
            let to = below(NODES);
            if to != at && !connect_to.contains(&to) {
                connect_to.push(to);
            }
        }
        let kind = if at % 3 == 0 { Kind::V1_1 } else { Kind::Adit };
        nodes.push(NodeSpec::new(&format!("n{at:02}"), kind, &connect_to));
    }
    let mut spec = NetSpec::new(nodes);
    spec.conf = "LocalDiscovery = no\n".to_owned();
    let Some(mut bed) = Bed::new(scenario, &spec)? else { return Ok("skipped".to_owned()) };
    bed.set_rules(&["meta l4proto tcp counter".to_owned()])?;
    with_logs(&mut bed, |bed| {
        bed.start_all()?;
        same_topology(bed, COMPLETE)?;
        disturb(bed, scenario.env.length, &mut below)
    })
}

fn disturb(
    bed: &mut Bed,
    length: Duration,
    below: &mut impl FnMut(usize) -> usize,
) -> Result<String> {
    let observed: Vec<usize> = (0..NODES).step_by(OBSERVED).collect();
    let others: Vec<usize> = (0..NODES).filter(|at| at % OBSERVED != 0).collect();
    let stop = Arc::new(AtomicBool::new(false));
    let mut watched = Vec::new();
    for (number, from) in observed.iter().enumerate() {
        for distance in [1, observed.len() / 2] {
            let to = observed[(number + distance) % observed.len()];
            watched.push(watch(Arc::clone(bed.space(*from)?), to, Arc::clone(&stop)));
        }
    }
    let (before, began, mut restarts) = (tcp_bytes(bed)?, ScaledInstant::now(), 0_u32);
    while began.elapsed() < length {
        let at = others[below(others.len())];
        bed.end(at, if restarts % 2 == 0 { Signal::SIGKILL } else { Signal::SIGTERM })?;
        sleep(AWAY);
        bed.start(at)?;
        restarts += 1;
        sleep(PAUSE);
    }
    let seconds = began.elapsed().as_secs().max(1);
    let rate = (tcp_bytes(bed)? - before) / seconds / NODES as u64;
    stop.store(true, Ordering::Relaxed);
    let mut longest = Duration::ZERO;
    for thread in watched {
        longest = longest.max(thread.join().map_err(|_| "an observer panicked")??);
    }
    ensure(longest <= LONGEST_GAP, || {
        format!("two running nodes did not reach each other for {} ms", longest.as_millis())
    })?;
    ensure(rate <= CONTROL_RATE, || format!("{rate} bytes per second and node by TCP"))?;
    same_topology(bed, COMPLETE)?;
    Ok(format!(
        "{restarts} restarts in {seconds} s: {rate} bytes per second and node by TCP, no answer for at most {} ms",
        longest.as_millis()
    ))
}

/// Pings a node again and again. Returns the longest time without an answer.
fn watch(from: Arc<Namespace>, to: usize, stop: Arc<AtomicBool>) -> JoinHandle<Result<Duration>> {
    std::thread::spawn(move || {
        let (mut last, mut longest) = (ScaledInstant::now(), Duration::ZERO);
        while !stop.load(Ordering::Relaxed) {
            if ping(&from, inner(to, false), 56, 1)? == 1 {
                longest = longest.max(last.elapsed());
                last = ScaledInstant::now();
                sleep(Duration::from_millis(500));
            }
        }
        Ok(longest.max(last.elapsed()))
    })
}

/// Returns the number of bytes that passed the router by TCP.
fn tcp_bytes(bed: &Bed) -> Result<u64> {
    bed.counters("bytes")?.first().copied().context("no counter")
}
