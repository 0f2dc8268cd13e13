//! Ciphers of nets of several nodes: one that is configured everywhere, and one that two nodes agree on through a node of tinc.

use super::super::Scenario;
use super::SOON;
use super::bed::{Bed, Kind, NetSpec, NodeSpec, apart};
use super::nets::{same_topology, with_logs};
use crate::failure::{Context, Result, ensure};
use crate::wait::until;

const AES: &str = "AES-256-GCM";

/// Returns the cipher of a node's session with another one.
fn cipher(bed: &Bed, at: usize, with: &str) -> Result<String> {
    let status = bed.status(at)?;
    let mut nodes = status["tinc"]["nodes"].as_array().into_iter().flatten();
    let node = nodes.find(|node| node["name"] == with).context("no such node")?;
    Ok(node["cipher"].as_str().unwrap_or("none").to_owned())
}

/// Four nodes in a row with `SPTPSCipher = aes-256-gcm`: their connections and all their sessions use it. One that has it for its neighbour alone,
/// and not for itself, gets no connection.
pub(super) fn configured(scenario: &Scenario<'_>) -> Result<String> {
    let names = ["alice", "bob", "carol", "dave"];
    let node = |(at, name): (usize, &&str)| {
        let next: Vec<usize> = (at + 1..names.len()).take(1).collect();
        let mut node = NodeSpec::new(name, Kind::Adit, &next);
        node.host = "SPTPSCipher = aes-256-gcm\n".to_owned();
        node
    };
    let spec = NetSpec::new(names.iter().enumerate().map(node).collect());
    let Some(mut bed) = Bed::new(scenario, &spec)? else { return Ok("skipped".to_owned()) };
    with_logs(&mut bed, |bed| all_use_aes(bed, &names))
}

fn all_use_aes(bed: &mut Bed, names: &[&str]) -> Result<String> {
    bed.start_all()?;
    let pairs = || (0..names.len()).flat_map(|a| (0..names.len()).map(move |b| (a, b)));
    let pairs = || pairs().filter(|(a, b)| a != b);
    for (from, to) in pairs() {
        bed.wait_for_ping(from, to, to % 2 == 0)?;
        let cipher = cipher(bed, from, names[to])?;
        ensure(cipher == AES, || format!("{} with {}: {cipher}", names[from], names[to]))?;
    }
    same_topology(bed, SOON)?;
    // Dave expects tinc's cipher of carol from now on.
    bed.tinc(3, &["set", "carol.SPTPSCipher", "chacha20-poly1305"])?;
    bed.daemon(3)?.stop()?;
    bed.start(3)?;
    until("carol refuses dave", SOON, || {
        let told = |at| bed.count(at, "SPTPSCipher") > 0;
        Ok(told(2) || told(3))
    })?;
    ensure(bed.reachability(0, 3)? == "unreachable", || "dave is connected".to_owned())?;
    Ok(format!("{} pairs", pairs().count()))
}

/// Two nodes of adit whose handshake a node of tinc passes on, which appends the address at which it sees the sender.
pub(super) fn offered_through_tinc(scenario: &Scenario<'_>) -> Result<String> {
    let (alice, relay, zoe) = (0, 1, 2);
    let nodes = vec![
        NodeSpec::new("alice", Kind::Adit, &[relay]),
        NodeSpec::new("relay", Kind::V1_1, &[]),
        NodeSpec::new("zoe", Kind::Adit, &[relay]),
    ];
    let Some(mut bed) = Bed::new(scenario, &NetSpec::new(nodes))? else {
        return Ok("skipped".to_owned());
    };
    with_logs(&mut bed, |bed| {
        // Both look for the direct path only after the handshake.
        bed.set_rules(&apart(alice, zoe))?;
        bed.start_all()?;
        for at in [alice, zoe] {
            bed.wait_for_path(at, relay, "directly with UDP", false)?;
            bed.wait_for_path(relay, at, "directly with UDP", false)?;
        }
        bed.wait_for_ping(alice, zoe, false)?;
        for (at, other) in [(alice, "zoe"), (zoe, "alice")] {
            let cipher = cipher(bed, at, other)?;
            ensure(cipher == AES, || format!("with {other}: {cipher}"))?;
        }
        let log = bed.daemon(relay)?.log();
        let appended = |line: &&str| {
            let offer = line.split_once(" 901 -1 ");
            line.contains(": 16 ") && offer.is_some_and(|(_, rest)| rest.contains(" 11.0."))
        };
        let line = log.lines().find(appended).context("no address behind an offer")?.to_owned();
        bed.set_rules(&[])?;
        bed.wait_for_path(alice, zoe, "directly with UDP", false)?;
        bed.wait_for_path(zoe, alice, "directly with UDP", false)?;
        ensure(cipher(bed, alice, "zoe")? == AES, || "another cipher".to_owned())?;
        let words: Vec<&str> = line.rsplitn(3, ' ').collect();
        Ok(format!("appended {} {}", words.get(1).unwrap_or(&""), words.first().unwrap_or(&"")))
    })
}
