//! Tests with bad lines, changing addresses, suspended machines and interfaces that go down, all at once.

use std::net::IpAddr;
use std::thread::sleep;
use std::time::{Duration, Instant};

use adit_testbed::line::Conditions;
use nix::sys::signal::Signal;

use super::super::{Scenario, ping_until};
use super::boxes::{end_loss, set_loss};
use super::testbed::{LIMIT, MeshTestbed, Nat, outer};
use crate::failure::{Context, Result, ensure};
use crate::net::{Namespace, ip};
use crate::traffic::{ping, silent};
use crate::wait::until;

/// The machines after the hub: two behind NATs, one with a bad line, and one whose address and link change.
const MACHINES: [Nat; 4] = [Nat::PortRestricted, Nat::PortRestricted, Nat::Line, Nat::None];
const LOSSY: usize = 1;
const SUSPENDED: usize = 2;
const BAD_LINE: usize = 3;
const MOVING: usize = 4;

/// How long a machine is suspended: longer than every timeout of a session.
const SUSPENSION: Duration = Duration::from_secs(18);

/// How long a link is down.
const DOWN: Duration = Duration::from_secs(3);

const BAD: Conditions =
    Conditions { loss: 10, delay: Duration::from_millis(5), jitter: Duration::from_millis(40) };

/// Counts sent and lost packets.
#[derive(Debug, Default)]
struct Counts {
    rounds: u32,
    dropped: u64,
    lost: u64,
    overtook: u64,
}

/// Causes all disturbances at once, repeatedly, for the requested time.
pub(super) fn chaos(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &MACHINES)?;
    bed.join_all()?;
    let addresses: Vec<IpAddr> =
        (0..=MACHINES.len()).map(|at| bed.ipv4(at)).collect::<Result<_>>()?;
    let began = Instant::now();
    let mut counts = Counts::default();
    while counts.rounds == 0 || began.elapsed() < scenario.env.length {
        ensure_whole(&mut bed, &addresses)?;
        let round = storm(&mut bed, &addresses, &mut counts);
        round.map_err(|failure| format!("round {}: {failure}", counts.rounds))?;
        counts.rounds += 1;
    }
    let ended = Instant::now();
    ensure_whole(&mut bed, &addresses)?;
    for at in 0..bed.machines.len() {
        ensure(!bed.log(at)?.contains("panicked"), || format!("machine {at} panicked"))?;
    }
    ensure(counts.dropped > 0 && counts.lost > 0 && counts.overtook > 0, || {
        format!("the lines were not bad: {counts:?}")
    })?;
    Ok(format!("all paths are direct again after {} ms; {counts:?}", ended.elapsed().as_millis()))
}

/// Waits until each member knows all others and reaches them directly.
fn ensure_whole(bed: &mut MeshTestbed, addresses: &[IpAddr]) -> Result<()> {
    for from in 0..bed.machines.len() {
        let others = (0..bed.machines.len()).filter(|to| *to != from);
        for to in others {
            let (name, other) = (&bed.machines[from].name, &bed.machines[to].name);
            let space = &bed.machines[from].space;
            let address = *addresses.get(to).context("an address")?;
            let reached = ping_until(space, address, LIMIT);
            reached.map_err(|failure| format!("{name} to {other}: {failure}"))?;
            until(&format!("{name} has a direct path to {other}"), LIMIT, || {
                ping(space, address, 56, 1)?;
                Ok(bed.route(from, to)? == "direct")
            })?;
        }
    }
    Ok(())
}

fn storm(bed: &mut MeshTestbed, addresses: &[IpAddr], counts: &mut Counts) -> Result<()> {
    let line = |bed: &MeshTestbed, conditions| -> Result<()> {
        bed.line.as_ref().context("no line")?.set(conditions);
        Ok(())
    };
    line(bed, BAD)?;
    set_loss(&bed.machines[LOSSY].space, "veth0", 15)?;
    bed.signal(SUSPENDED, Signal::SIGSTOP)?;
    let suspended = Instant::now();

    // The moving machine gets another address, and returns to its own in the next round.
    let numbers = if counts.rounds.is_multiple_of(2) { [5, 105] } else { [105, 5] };
    let [former, new] = numbers.map(outer);
    let moving = &bed.machines[MOVING].space;
    let lines = [format!("addr del {former}/24 dev wan"), format!("addr add {new}/24 dev wan")];
    ip(Some(moving), lines.into_iter())?;
    talk(bed, addresses, Duration::from_secs(4))?;
    // So does the machine behind the NAT, in its own network.
    let numbers = if counts.rounds.is_multiple_of(2) { [2, 3] } else { [3, 2] };
    change_inner_address(&bed.machines[LOSSY].space, numbers)?;
    talk(bed, addresses, Duration::from_secs(4))?;

    let moving = &bed.machines[MOVING].space;
    moving.run("ip", &["link", "set", "wan", "down"])?;
    sleep(DOWN);
    moving.run("ip", &["link", "set", "wan", "up"])?;
    while suspended.elapsed() < SUSPENSION {
        talk(bed, addresses, Duration::from_secs(1))?;
    }
    bed.signal(SUSPENDED, Signal::SIGCONT)?;
    counts.dropped += end_loss(&bed.machines[LOSSY].space)?;
    line(bed, Conditions::default())?;
    let so_far = bed.line.as_ref().context("no line")?.counts();
    (counts.lost, counts.overtook) = (so_far.lost, so_far.overtook);
    Ok(())
}

fn change_inner_address(space: &Namespace, [former, new]: [u8; 2]) -> Result<()> {
    let lines = [
        format!("addr del 10.0.0.{former}/24 dev veth0"),
        format!("addr add 10.0.0.{new}/24 dev veth0"),
        "route replace default via 10.0.0.1".to_owned(),
    ];
    ip(Some(space), lines.into_iter())
}

/// Sends packets between machines for a time; many are lost.
fn talk(bed: &MeshTestbed, addresses: &[IpAddr], time: Duration) -> Result<()> {
    let began = Instant::now();
    let pairs = [(0, MOVING), (LOSSY, BAD_LINE), (MOVING, LOSSY), (BAD_LINE, SUSPENDED)];
    for (from, to) in pairs.into_iter().cycle() {
        if began.elapsed() >= time {
            break;
        }
        // Whether it answers does not matter yet.
        silent(&bed.machines[from].space, *addresses.get(to).context("an address")?)?;
        sleep(Duration::from_millis(100));
    }
    Ok(())
}
