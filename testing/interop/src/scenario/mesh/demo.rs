//! The demo of `make demo-mesh`: a mesh from its first machine to the removal of a member.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::net::IpAddr;
use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::super::Scenario;
use super::REMOVAL;
use super::testbed::{LIMIT, MeshTestbed, Nat};
use crate::failure::{Context, Result, ensure};
use crate::net::Namespace;
use crate::process::run_with_input;
use crate::traffic::silent;
use crate::wait::{ScaledInstant, until};

/// The machines after the hub: two behind the usual kind of NAT, one behind a symmetric one, and a second relay.
const MACHINES: &[Nat] = &[Nat::PortRestricted, Nat::PortRestricted, Nat::Symmetric, Nat::None];
const LAPTOP: usize = 1;
const DESK: usize = 2;
const PHONE: usize = 3;
const RELAY: usize = 4;

/// Prints events as they happen, and records how long they took.
pub(super) struct Teller {
    is_silent: bool,
    /// Whether other tests compete for the machine's time.
    is_a_test: bool,
    times: RefCell<BTreeMap<&'static str, Duration>>,
}

impl Teller {
    /// Returns an instance that prints.
    pub(super) fn aloud() -> Self {
        Self { is_silent: false, is_a_test: false, times: RefCell::default() }
    }

    fn silent(is_a_test: bool) -> Self {
        Self { is_silent: true, is_a_test, times: RefCell::default() }
    }

    fn took(&self, event: &'static str, time: Duration) {
        self.times.borrow_mut().insert(event, time);
    }

    /// Prints the name of a step, runs it, and prints its result.
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
    show(scenario, &Teller::silent(true))?;
    Ok("every step".into())
}

/// Runs the demo this many times. Returns the median, the shortest and the longest time of each event.
pub(super) fn time_events<'a>(
    rounds: u16,
    scenario: impl Fn() -> Result<Scenario<'a>>,
) -> Result<String> {
    let mut all: BTreeMap<&'static str, Vec<Duration>> = BTreeMap::new();
    for _ in 0..rounds {
        let teller = Teller::silent(false);
        show(&scenario()?, &teller)?;
        for (event, time) in teller.times.into_inner() {
            all.entry(event).or_default().push(time);
        }
    }
    let mut table =
        format!("{:<60} {:>8} {:>8} {:>8}  ms, of {rounds} rounds", "", "median", "least", "most");
    for (event, mut times) in all {
        times.sort();
        let at = |index: usize| times.get(index).map_or(0, Duration::as_millis);
        let (median, most) = (at(times.len() / 2), at(times.len().saturating_sub(1)));
        table.push_str(&format!("\n{event:<60} {median:>8} {:>8} {most:>8}", at(0)));
    }
    Ok(table)
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
            let running = began.elapsed();
            // The first and the last member that take part from here on.
            let peer = [
                (RELAY, 0, "join to first answer, on one network"),
                (DESK, LAPTOP, "join to first answer, behind two NATs"),
            ];
            if let Some((_, to, event)) = peer.into_iter().find(|(joined, ..)| *joined == at) {
                first_answer(&bed.machines[at].space, bed.ipv4(to)?)?;
                teller.took(event, began.elapsed());
            }
            Ok(format!("member and running, {}", ms(running)))
        })?;
    }
    drop(token);
    paths(&bed, teller)?;
    losses(&mut bed, teller)?;
    removal(&mut bed, teller)
}

/// Checks that all members reach each other, directly where the NATs allow it.
fn paths(bed: &MeshTestbed, teller: &Teller) -> Result<()> {
    let laptop = &bed.machines[LAPTOP].space;
    teller.step("laptop: ping desk.home.internal", || {
        let began = Instant::now();
        let ping = ["-c1", "-W1", "desk.home.internal"];
        until("the answer", LIMIT, || Ok(laptop.run("ping", &ping).is_ok()))?;
        Ok(format!("answer after {}", ms(began.elapsed())))
    })?;
    teller.step("  through both NATs, without a relay", || {
        bed.wait_for_route(LAPTOP, DESK, "direct")?;
        bed.wait_for_route(DESK, LAPTOP, "direct")?;
        let peer = bed.peer(LAPTOP, DESK)?;
        let via = peer["via"].as_str().context("an address")?;
        Ok(format!("direct, {via}"))
    })?;
    let phone = bed.ipv4(PHONE)?;
    teller.step("laptop: ping phone", || {
        let first = first_answer(laptop, phone)?;
        Ok(format!("after {}, {}", ms(first), route(bed, PHONE)?))
    })
}

/// Cuts the direct path, then kills the relay that takes its place.
fn losses(bed: &mut MeshTestbed, teller: &Teller) -> Result<()> {
    let desk = bed.ipv4(DESK)?;
    cut(&bed.boxes[0])?;
    teller.step("the direct path is cut", || {
        let gap = first_answer(&bed.machines[LAPTOP].space, desk)?;
        teller.took("loss of the direct path to the next answer", gap);
        bed.wait_for_route(LAPTOP, DESK, "relay")?;
        Ok(format!("back after {}, {}", ms(gap), route(bed, DESK)?))
    })?;
    let peer = bed.peer(LAPTOP, DESK)?;
    let at = if peer["via"] == "hub" { 0 } else { RELAY };
    let name = bed.machines[at].name.clone();
    let began = Instant::now();
    bed.signal(at, Signal::SIGKILL)?;
    teller.step(&format!("the relay is killed: {name}"), || {
        first_answer(&bed.machines[LAPTOP].space, desk)?;
        let gap = began.elapsed();
        teller.took("loss of the relay to the next answer", gap);
        Ok(format!("back after {}", ms(gap)))
    })?;
    let log = bed.log(LAPTOP)?;
    // On a busy machine, a session may time out.
    ensure(teller.is_a_test || !log.contains("desk: disconnected"), || {
        format!("a session was lost:\n{log}")
    })?;
    bed.killed(at)?;
    teller.step(&format!("{name}: adit mesh up"), || {
        let began = Instant::now();
        bed.up(at)?;
        until("it has sessions", LIMIT, || Ok(bed.route(LAPTOP, at)? == "direct"))?;
        until("it has sessions", LIMIT, || Ok(bed.route(at, LAPTOP)? == "direct"))?;
        Ok(format!("connected again, {}", ms(began.elapsed())))
    })
}

/// Removes a member.
fn removal(bed: &mut MeshTestbed, teller: &Teller) -> Result<()> {
    let phone = bed.ipv4(PHONE)?;
    first_answer(&bed.machines[LAPTOP].space, phone)?;
    teller.step("hub: adit mesh remove phone", || {
        let began = Instant::now();
        bed.machines[0].mesh(&["remove", "phone"])?;
        let laptop = &bed.machines[LAPTOP];
        until("the others forget it", REMOVAL, || Ok(!laptop.mesh(&["peers"])?.contains("phone")))?;
        let took = began.elapsed();
        teller.took("removal of a member until another one has forgotten it", took);
        ensure(silent(&laptop.space, phone)?, || "it still answers".into())?;
        Ok(format!("unreachable after {}", ms(took)))
    })?;
    bed.wait_for_line(PHONE, "this node was removed from the mesh")
}

/// Sends an echo request every 20 ms until one is answered.
fn first_answer(from: &Namespace, to: IpAddr) -> Result<Duration> {
    let (began, limit) = (Instant::now(), ScaledInstant::now());
    // Count answers, not requests.
    let words = ["-q", "-i", "0.02", "-c", "1", "-w", "5", &to.to_string()];
    while from.run("ping", &words).is_err() {
        ensure(limit.elapsed() < LIMIT, || format!("no ping to {to} in {} s", LIMIT.as_secs()))?;
    }
    Ok(began.elapsed())
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

/// Makes the laptop's NAT drop all packets to and from the desk's NAT.
pub(super) fn cut(nat_box: &Namespace) -> Result<()> {
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
