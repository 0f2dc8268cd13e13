//! A mesh from its first machine to the removal of a member: what `make demo-mesh` shows.

use std::io::{self, Write};
use std::time::{Duration, Instant};

use super::super::{Scenario, ping_until};
use super::REMOVAL;
use super::testbed::{LIMIT, MeshTestbed, Nat};
use crate::failure::{Context, Result, ensure};
use crate::net::Namespace;
use crate::process::run_with_input;
use crate::traffic::silent;
use crate::wait::until;

/// The machines after the hub: two behind NAT boxes of the usual kind, one behind a symmetric one, and a second relay.
const MACHINES: &[Nat] = &[Nat::PortRestricted, Nat::PortRestricted, Nat::Symmetric, Nat::None];
const LAPTOP: usize = 1;
const DESK: usize = 2;
const PHONE: usize = 3;
const RELAY: usize = 4;

/// Prints what happens, when it happens.
pub(super) struct Teller {
    pub(super) is_silent: bool,
}

impl Teller {
    /// Prints what begins, and its result when it is done.
    fn step(&self, what: &str, work: impl FnOnce() -> Result<String>) -> Result<()> {
        if !self.is_silent {
            print!("{what:<45}");
            io::stdout().flush()?;
        }
        let result = work()?;
        if !self.is_silent {
            println!("{result}");
        }
        Ok(())
    }
}

/// Runs the demo as a test.
pub(super) fn demo(scenario: &Scenario<'_>) -> Result<String> {
    show(scenario, &Teller { is_silent: true })?;
    Ok("every step".into())
}

/// Runs the demo.
pub(super) fn show(scenario: &Scenario<'_>, teller: &Teller) -> Result<()> {
    let mut bed = MeshTestbed::new(scenario, MACHINES)?;
    for (at, name) in [(LAPTOP, "laptop"), (DESK, "desk"), (PHONE, "phone"), (RELAY, "relay")] {
        bed.machines[at].name = name.into();
    }
    bed.machines[LAPTOP].separate_etc()?;
    let mut token = String::new();
    teller.step("hub: adit mesh up", || {
        let began = Instant::now();
        token = bed.found()?;
        Ok(format!("a mesh with one node, {}", ms(began.elapsed())))
    })?;
    let kinds = [
        (RELAY, "relay: adit mesh join, with a public address"),
        (LAPTOP, "laptop: adit mesh join, behind NAT"),
        (DESK, "desk: adit mesh join, behind another NAT"),
        (PHONE, "phone: adit mesh join, behind symmetric NAT"),
    ];
    for (at, what) in kinds {
        let terms: &[&str] = if at == RELAY { &["--relay"] } else { &[] };
        let token = bed.invite(terms)?;
        teller.step(what, || {
            let began = Instant::now();
            bed.join_with(at, &token)?;
            Ok(format!("member and running, {}", ms(began.elapsed())))
        })?;
    }
    drop(token);
    paths(&bed, teller)?;
    losses(&mut bed, teller)?;
    removal(&mut bed, teller)
}

/// All reach each other, directly where the NAT boxes allow it.
fn paths(bed: &MeshTestbed, teller: &Teller) -> Result<()> {
    let laptop = &bed.machines[LAPTOP].space;
    teller.step("laptop: ping desk.home.internal", || {
        let began = Instant::now();
        let ping = ["-c1", "-W1", "desk.home.internal"];
        until("the answer", LIMIT, || Ok(laptop.run("ping", &ping).is_ok()))?;
        Ok(format!("first answer after {}", ms(began.elapsed())))
    })?;
    teller.step("  through both NATs, without a relay", || {
        let began = Instant::now();
        bed.wait_for_route(LAPTOP, DESK, "direct")?;
        let peer = bed.peer(LAPTOP, DESK)?;
        let via = peer["via"].as_str().context("an address")?;
        Ok(format!("direct, {via}, after {}", ms(began.elapsed())))
    })?;
    let phone = bed.ipv4(PHONE)?;
    teller.step("laptop: ping phone", || {
        let first = ping_until(laptop, phone, LIMIT)?;
        Ok(format!("after {}, {}", ms(first), route(bed, PHONE)?))
    })
}

/// The direct path is lost, then the relay that takes its place.
fn losses(bed: &mut MeshTestbed, teller: &Teller) -> Result<()> {
    let desk = bed.ipv4(DESK)?;
    cut(&bed.boxes[0])?;
    teller.step("the direct path is cut", || {
        let gap = ping_until(&bed.machines[LAPTOP].space, desk, LIMIT)?;
        bed.wait_for_route(LAPTOP, DESK, "relay")?;
        Ok(format!("back after {}, {}", ms(gap), route(bed, DESK)?))
    })?;
    let peer = bed.peer(LAPTOP, DESK)?;
    let at = if peer["via"] == "hub" { 0 } else { RELAY };
    let name = bed.machines[at].name.clone();
    bed.kill(at)?;
    teller.step(&format!("the relay is killed: {name}"), || {
        let gap = ping_until(&bed.machines[LAPTOP].space, desk, LIMIT)?;
        Ok(format!("back after {}", ms(gap)))
    })?;
    teller.step(&format!("{name}: adit mesh up"), || {
        let began = Instant::now();
        bed.up(at)?;
        until("it has sessions", LIMIT, || Ok(bed.route(LAPTOP, at)? == "direct"))?;
        until("it has sessions", LIMIT, || Ok(bed.route(at, LAPTOP)? == "direct"))?;
        Ok(format!("connected again, {}", ms(began.elapsed())))
    })
}

/// A member is removed.
fn removal(bed: &mut MeshTestbed, teller: &Teller) -> Result<()> {
    let phone = bed.ipv4(PHONE)?;
    ping_until(&bed.machines[LAPTOP].space, phone, LIMIT)?;
    teller.step("hub: adit mesh remove phone", || {
        let began = Instant::now();
        bed.machines[0].mesh(&["remove", "phone"])?;
        let laptop = &bed.machines[LAPTOP];
        until("the others forget it", REMOVAL, || Ok(!laptop.mesh(&["peers"])?.contains("phone")))?;
        let took = began.elapsed();
        ensure(silent(&laptop.space, phone)?, || "it still answers".into())?;
        Ok(format!("unreachable after {}", ms(took)))
    })?;
    bed.wait_for_line(PHONE, "this node was removed from the mesh")
}

fn route(bed: &MeshTestbed, to: usize) -> Result<String> {
    let peer = bed.peer(LAPTOP, to)?;
    let via = peer["via"].as_str().unwrap_or_default();
    Ok(match peer["route"].as_str() {
        Some("relay") => format!("through {via}"),
        Some("direct") => "direct".into(),
        other => other.unwrap_or_default().into(),
    })
}

/// Makes the NAT box of the laptop drop what goes to and comes from the one of the desk.
fn cut(nat_box: &Namespace) -> Result<()> {
    let rules = "table ip cut {
        chain forward {
            type filter hook forward priority -10;
            ip daddr 11.0.0.3 drop
            ip saddr 11.0.0.3 drop
        }
    }";
    let mut nft = nat_box.command("nft");
    nft.args(["-f", "-"]);
    run_with_input(nft, rules).map(drop)
}

fn ms(time: Duration) -> String {
    format!("{} ms", time.as_millis())
}
