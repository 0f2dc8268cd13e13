//! Answers of a node's data plane in router mode: to packets that are too long for the path, and from the address that a node has sent to.

use super::super::Scenario;
use super::SOON;
use super::bed::{Bed, Kind, NetSpec, NodeSpec, inner, machine};
use super::nets::with_logs;
use super::plane_switch::transfer_in_trains;
use crate::failure::{Context, Result, ensure};
use crate::net::ip;
use crate::wait::until;

/// The nodes.
const ALICE: usize = 0;
const BOB: usize = 1;

/// The MTU of the network between the nodes.
const NARROW: u32 = 1400;

/// Lengths of the headers of a ping by IPv4 and IPv6.
const PING4: u32 = 20 + 8;
const PING6: u32 = 40 + 8;

/// A host that must not fragment learns the path MTU by ICMP, and packets of this length pass.
pub(super) fn too_big(scenario: &Scenario<'_>) -> Result<String> {
    let nodes =
        vec![NodeSpec::new("alice", Kind::Adit, &[BOB]), NodeSpec::new("bob", Kind::Adit, &[])];
    let Some(mut bed) = Bed::new(scenario, &NetSpec::new(nodes))? else {
        return Ok("skipped".to_owned());
    };
    with_logs(&mut bed, |bed| {
        for at in [ALICE, BOB] {
            let line = format!("link set wan mtu {NARROW}");
            ip(Some(bed.space(at)?), std::iter::once(line))?;
        }
        bed.start_all()?;
        learnt(bed)
    })
}

fn learnt(bed: &Bed) -> Result<String> {
    bed.wait_for_path(ALICE, BOB, "directly with UDP", false)?;
    until("the path MTU", SOON, || {
        bed.wait_for_ping(ALICE, BOB, false)?;
        Ok(bed.count(ALICE, "Fixing PMTU of bob") > 0)
    })?;
    let info = bed.tinc(ALICE, &["info", "bob"])?;
    let mtu = info.lines().find_map(|line| line.strip_prefix("PMTU:")).context("no PMTU")?;
    let mtu: u32 = mtu.trim().parse().context("PMTU")?;
    for (v6, headers) in [(false, PING4), (true, PING6)] {
        let to = inner(BOB, v6).to_string();
        let ping = |bytes: u32| {
            let size = (bytes - headers).to_string();
            // It ends with an error if nothing is answered.
            let words = ["-M", "do", "-c", "2", "-i", "0.2", "-W", "1", "-s", &size, &to];
            let mut command = bed.space(ALICE)?.command("ping");
            let ran = command.args(words).output()?;
            Ok::<_, crate::failure::Failure>(
                String::from_utf8_lossy(&[ran.stdout, ran.stderr].concat()).into_owned(),
            )
        };
        let told = ping(mtu + 1)?;
        let expected = if v6 {
            format!("Packet too big: mtu={mtu}")
        } else {
            format!("Frag needed and DF set (mtu = {mtu})")
        };
        ensure(told.contains(&expected), || format!("{expected}: {told}"))?;
        let told = ping(mtu)?;
        ensure(told.contains(" 2 received"), || format!("{mtu} bytes: {told}"))?;
    }
    Ok(format!("{mtu} bytes"))
}

/// A node with two addresses answers from the second one, to which the other node sends; the other node's firewall accepts nothing else.
pub(super) fn second_address(scenario: &Scenario<'_>) -> Result<String> {
    let mut told = Vec::new();
    for (number, kind) in [Kind::Adit, Kind::V1_1].into_iter().enumerate() {
        let nodes =
            vec![NodeSpec::new("alice", Kind::Adit, &[]), NodeSpec::new("bob", kind, &[ALICE])];
        let folder = scenario.folder().join(number.to_string());
        std::fs::create_dir(&folder)?;
        let own = Scenario { folder, ..*scenario };
        let Some(mut bed) = Bed::new(&own, &NetSpec::new(nodes))? else {
            return Ok("skipped".to_owned());
        };
        told.push(with_logs(&mut bed, answers)?);
    }
    Ok(told.join("; "))
}

fn answers(bed: &mut Bed) -> Result<String> {
    let (first, second) = ("11.0.1.2", "11.0.1.3");
    let line = format!("addr add {second}/24 dev wan");
    ip(Some(bed.space(ALICE)?), std::iter::once(line))?;
    for address in [first, second] {
        bed.tinc(ALICE, &["add", "ListenAddress", address])?;
    }
    bed.tinc(BOB, &["set", "alice.Address", second])?;
    let (alice, bob) = (machine(ALICE), machine(BOB));
    let udp = format!("iifname {alice} oifname {bob} meta l4proto udp");
    bed.set_rules(&[format!("{udp} ct state new counter drop")])?;
    bed.start_all()?;
    bed.wait_for_path(BOB, ALICE, "directly with UDP", false)?;
    bed.wait_for_path(ALICE, BOB, "directly with UDP", false)?;
    let mean = transfer_in_trains(bed, ALICE, BOB, inner(BOB, false))?;
    Ok(format!("{mean:.0} packets a train"))
}
