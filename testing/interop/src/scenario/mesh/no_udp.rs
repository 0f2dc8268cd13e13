//! Tests of machines whose network drops UDP.

use std::time::Duration;

use super::super::{Scenario, ping_until};
use super::testbed::{LIMIT, MeshTestbed, Nat, allow_udp, block_udp};
use crate::failure::{Result, ensure};
use crate::process::Daemon;
use crate::traffic::ping;
use crate::wait::until;

/// A machine's description of its path to another one.
const REASON: &str = "TCP to hub, because UDP gets no answer";

/// A node tries UDP every 30 s.
const BACK: Duration = Duration::from_secs(90);

fn is_over_tcp(bed: &MeshTestbed, from: usize, to: usize) -> Result<bool> {
    Ok(bed.peer(from, to)?["tcp"] == true)
}

/// Checks that packets pass between two machines through the hub, in both directions and of any size.
fn passes(bed: &MeshTestbed) -> Result<Duration> {
    let first = ping_until(&bed.machines[1].space, bed.ipv4(2)?, LIMIT)?;
    for (from, to) in [(1, 2), (2, 1)] {
        let (space, address) = (&bed.machines[from].space, bed.ipv4(to)?);
        for size in [56, 1300] {
            ensure(ping(space, address, size, 5)? == 5, || {
                format!("{from} to {to}: packets of {size} bytes are lost")
            })?;
        }
        ensure(bed.route(from, to)? == "relay", || format!("{from} to {to} is not relayed"))?;
    }
    Ok(first)
}

/// One and then two machines whose network drops UDP join and are reachable over TCP. Both use UDP again when it passes.
pub(super) fn no_udp(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::NoUdp, Nat::Symmetric])?;
    bed.join_all()?;
    let status = bed.machines[0].mesh(&["status"])?;
    ensure(status.contains("11.0.0.1 udp/1194, tcp/443"), || format!("no TCP port: {status}"))?;
    let first = passes(&bed)?;
    let over_tcp = [is_over_tcp(&bed, 1, 2)?, is_over_tcp(&bed, 2, 1)?];
    ensure(over_tcp == [true, false], || format!("over TCP: {over_tcp:?}"))?;
    for words in [&["peers"][..], &["path", "node3"], &["path", "hub"]] {
        let shown = bed.machines[1].mesh(words)?;
        ensure(shown.contains(REASON), || format!("{words:?}: {shown}"))?;
    }
    let before = bed.peer(1, 2)?["connected_s"].as_u64().unwrap_or_default();

    block_udp(&bed.boxes[1])?;
    let address = bed.ipv4(2)?;
    let cut = std::time::Instant::now();
    until("the other machine uses TCP as well", LIMIT, || {
        ping(&bed.machines[1].space, address, 56, 1)?;
        is_over_tcp(&bed, 2, 1)
    })?;
    let moved = cut.elapsed();
    passes(&bed)?;

    bed.boxes.iter().try_for_each(allow_udp)?;
    for (from, to) in [(1, 0), (1, 2), (2, 0), (2, 1)] {
        until("UDP is used again", BACK, || Ok(!is_over_tcp(&bed, from, to)?))?;
    }
    passes(&bed)?;
    let after = bed.peer(1, 2)?["connected_s"].as_u64().unwrap_or_default();
    let logs = [bed.log(1)?, bed.log(2)?].concat();
    ensure(after > before, || format!("the session ended: {after} s old\n{logs}"))?;
    Ok(format!(
        "the first answer over TCP after {} ms; TCP {:.1} s after UDP was cut, and UDP again",
        first.as_millis(),
        moved.as_secs_f64()
    ))
}

/// A node whose TCP port is in use by another program warns and continues.
pub(super) fn port_in_use(scenario: &Scenario<'_>) -> Result<String> {
    let mut bed = MeshTestbed::new(scenario, &[Nat::None])?;
    bed.join_all()?;
    let hub = &bed.machines[0];
    let words = ["up", "--mesh", "other", "--port", "1195", "--name", "hub"];
    let mut other = Daemon::spawn("other", hub.node_command(&words))?;
    other.wait_for("TCP port 443 on :: is in use by another program", LIMIT)?;
    other.wait_for("this machine is hub", LIMIT)?;
    let shown = |mesh: &str| hub.mesh(&["status", "--mesh", mesh]);
    ensure(shown("home")?.contains("tcp/443"), || "not the port's owner".into())?;
    let status = shown("other")?;
    ensure(status.contains("udp/1195") && !status.contains("tcp/443"), || {
        format!("announced nevertheless: {status}")
    })?;
    other.stop()?;
    Ok("a warning, and UDP".into())
}
