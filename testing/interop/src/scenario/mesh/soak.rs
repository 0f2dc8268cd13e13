//! Looks for leaks: nodes join, leave, are killed and removed for half an hour.

use std::net::IpAddr;
use std::path::Path;
use std::time::{Duration, Instant};

use adit_testbed::laptop::HostState;

use super::super::{Scenario, ping_until};
use super::testbed::{LIMIT, MeshTestbed, Nat};
use crate::failure::{Context, Result, ensure};

/// The number of nodes, the first ones, that run throughout and whose resources are watched.
const STEADY: usize = 3;
const KILLED: usize = 3;
const STOPPED: usize = 4;
/// The machine that joins, is removed, and joins again as a new node.
const GUEST: usize = 5;

const MACHINES: [Nat; 5] =
    [Nat::None, Nat::PortRestricted, Nat::PortRestricted, Nat::None, Nat::PortRestricted];

/// The number of rounds after which a node has made all its permanent allocations.
const WARM: u32 = 2;

/// The number of readings of the hub's memory during the run, which show whether it keeps growing.
const SAMPLES: u32 = 8;

/// The permitted growth of a node's memory in KiB: partially used pages, and deeper stacks.
const MORE: u64 = 512;

/// The permitted memory in KiB, and bytes in the roster file, for each change of the mesh.
const MEMORY_PER_CHANGE: u64 = 4;
const FILE_PER_CHANGE: u64 = 512;

/// The resources that a node uses.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Resources {
    fds: usize,
    threads: usize,
    /// Its anonymous memory, in KiB.
    memory: u64,
    files: usize,
    /// The total length of its files.
    bytes: u64,
}

/// Runs for the requested time.
pub(super) fn soak(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &MACHINES)?;
    bed.found()?;
    for at in 1..GUEST {
        bed.join(at, &[])?;
    }
    let addresses: Vec<IpAddr> = (0..GUEST).map(|at| bed.ipv4(at)).collect::<Result<_>>()?;
    let began = Instant::now();
    let (mut rounds, mut warm, mut samples) = (0, Vec::new(), Vec::new());
    while rounds < WARM + 2 || began.elapsed() < scenario.env.length {
        round(&mut bed, &addresses).map_err(|failure| format!("round {rounds}: {failure}"))?;
        rounds += 1;
        if rounds == WARM {
            warm = observe(&mut bed)?;
        }
        if began.elapsed() >= scenario.env.length / SAMPLES * (samples.len() as u32 + 1) {
            samples.push(resources(bed.pid(0)?, &bed.machines[0].dir)?.memory);
        }
    }
    // Each round admits a node and removes it.
    let changes = u64::from(2 * (rounds - WARM));
    let end = observe(&mut bed)?;
    let mut told =
        format!("{rounds} rounds, {changes} changes; KiB of the hub meanwhile: {samples:?}");
    for (at, ((before, state), (after, later))) in warm.iter().zip(&end).enumerate() {
        told.push_str(&format!("; node {at}: {before:?}, at the end {after:?}"));
        ensure(
            (before.fds, before.threads, before.files) == (after.fds, after.threads, after.files),
            || told.clone(),
        )?;
        let most = before.memory + before.memory / 10 + MORE + MEMORY_PER_CHANGE * changes;
        ensure(after.memory <= most, || format!("{told}: more than {most} KiB"))?;
        let most = before.bytes + FILE_PER_CHANGE * changes;
        ensure(after.bytes <= most, || format!("{told}: more than {most} bytes in files"))?;
        let differences = state.changes(later);
        ensure(differences.is_empty(), || format!("{told}: node {at}:{differences}"))?;
    }
    for at in 0..GUEST {
        ensure(!bed.log(at)?.contains("panicked"), || format!("machine {at} panicked"))?;
    }
    Ok(told)
}

fn observe(bed: &mut MeshTestbed) -> Result<Vec<(Resources, HostState)>> {
    // By then, sessions with a node that has left are gone, and nodes have released memory, as they do every 30 s.
    std::thread::sleep(Duration::from_secs(40));
    let resources = |bed: &mut MeshTestbed, at| -> Result<_> {
        Ok((
            resources(bed.pid(at)?, &bed.machines[at].dir)?,
            HostState::of(&bed.machines[at].space)?,
        ))
    };
    (0..STEADY).map(|at| resources(bed, at)).collect()
}

/// Kills one node, stops another, and makes a third one join and removes it. Checks that all running nodes reach each other.
fn round(bed: &mut MeshTestbed, addresses: &[IpAddr]) -> Result<()> {
    bed.kill(KILLED)?;
    let token = bed.invite(&[])?;
    bed.join_with(GUEST, &token)?;
    bed.up(KILLED)?;
    bed.stop(STOPPED)?;
    let guest = bed.ipv4(GUEST)?;
    for at in 0..STEADY {
        ping_until(&bed.machines[at].space, guest, LIMIT)?;
        ping_until(&bed.machines[GUEST].space, *addresses.get(at).context("an address")?, LIMIT)?;
    }
    bed.up(STOPPED)?;
    let name = bed.machines[GUEST].name.clone();
    bed.machines[0].mesh(&["remove", &name])?;
    bed.wait_for_line(GUEST, "this node was removed from the mesh")?;
    bed.ended(GUEST)?;
    bed.forget(GUEST)?;
    for from in 0..GUEST {
        let to = (from + 1) % GUEST;
        let space = &bed.machines[from].space;
        ping_until(space, *addresses.get(to).context("an address")?, LIMIT)?;
    }
    Ok(())
}

/// Returns the resources that a node's process and its children use.
fn resources(pid: u32, dir: &Path) -> Result<Resources> {
    let mut found = Resources { fds: 0, threads: 0, memory: 0, files: 0, bytes: 0 };
    let children = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"))?;
    let children = children.split_whitespace().map(str::to_owned);
    for pid in children.chain([pid.to_string()]) {
        let process = Path::new("/proc").join(pid);
        let status = std::fs::read_to_string(process.join("status"))?;
        let field = |name: &str| -> Result<u64> {
            let line = status.lines().find_map(|line| line.strip_prefix(name)).context(name)?;
            let number = line.trim_start_matches(':').split_whitespace().next();
            number.context(name)?.parse().context(name)
        };
        found.fds += std::fs::read_dir(process.join("fd"))?.count();
        found.threads += usize::try_from(field("Threads")?).context("threads")?;
        found.memory += field("RssAnon")?;
    }
    let mut open = vec![dir.to_owned()];
    while let Some(folder) = open.pop() {
        for entry in std::fs::read_dir(folder)? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                open.push(entry.path());
            } else {
                found.files += 1;
                found.bytes += metadata.len();
            }
        }
    }
    Ok(found)
}
