//! A stream of announcements: a node that passes them on reads several at a time.

use std::thread::sleep;
use std::time::{Duration, Instant};

use super::super::Scenario;
use super::super::bridge::tap_into;
use super::SOON;
use super::bed::{Bed, Kind, Mode, NetSpec, NodeSpec, machine};
use super::nets::with_logs;
use crate::failure::{Context, Result, ensure};
use crate::wait::until;

/// The node whose stations come, its neighbour, and the neighbour of that one.
const ALICE: usize = 0;
const MIDDLE: usize = 1;
const ZOE: usize = 2;

/// The stations that come to alice, and the time between two of them.
const STATIONS: u8 = 200;
const PAUSE: Duration = Duration::from_millis(5);

/// The reads of a connection at once and in a second, as docs/tinc.md has them; and what other messages there may be.
const AT_ONCE: f64 = 10.0;
const IN_A_SECOND: f64 = 20.0;
const OTHERS: f64 = 15.0;

/// Each new station is announced at once, and passed on with others.
pub(super) fn announcements(scenario: &Scenario<'_>) -> Result<String> {
    let nodes = vec![
        NodeSpec::new("alice", Kind::Adit, &[MIDDLE]),
        NodeSpec::new("middle", Kind::Adit, &[]),
        NodeSpec::new("zoe", Kind::Adit, &[MIDDLE]),
    ];
    let mut spec = NetSpec { mode: Mode::Switch, ..NetSpec::new(nodes) };
    spec.only_neighbours = true;
    let Some(mut bed) = Bed::new(scenario, &spec)? else { return Ok("skipped".to_owned()) };
    with_logs(&mut bed, |bed| {
        // Those that connect to the middle need not try again.
        [MIDDLE, ALICE, ZOE].into_iter().try_for_each(|at| bed.start(at))?;
        passed_on(bed)
    })
}

fn passed_on(bed: &Bed) -> Result<String> {
    let stations = tap_into(bed.space(ALICE)?, "vpn")?;
    bed.wait_for_path(ALICE, MIDDLE, "directly with UDP", false)?;
    bed.wait_for_path(ZOE, MIDDLE, "directly with UDP", false)?;
    let counter = |from, to| {
        let (from, to) = (machine(from), machine(to));
        format!("iifname {from} oifname {to} tcp flags & psh == psh counter")
    };
    bed.set_rules(&[counter(ALICE, MIDDLE), counter(MIDDLE, ZOE)])?;
    let began = Instant::now();
    for station in 0..STATIONS {
        let (to, from) = ([2, 0, 0, 0, 0, MIDDLE as u8 + 1], [2, 0, 0, 0, 9, station]);
        let frame = [&to[..], &from, &[0x88, 0xb5], &[0; 50]].concat();
        stations.send(&[0; 10], &frame)?;
        sleep(PAUSE);
    }
    until("zoe knows all stations", SOON, || {
        let known = bed.tinc(ZOE, &["dump", "subnets"])?;
        let known = known.lines().filter(|line| line.starts_with("02:00:00:00:09:"));
        Ok(known.count() == usize::from(STATIONS))
    })?;
    let most = AT_ONCE + IN_A_SECOND * began.elapsed().as_secs_f64() + OTHERS;
    let sent = bed.counters("packets")?;
    let (from_alice, to_zoe) = (sent.first().context("a count")?, sent.last().context("a count")?);
    ensure(*to_zoe as f64 <= most, || {
        format!("{to_zoe} segments to zoe after {from_alice} of alice, and at most {most:.0}")
    })?;
    Ok(format!("{from_alice} segments of alice, {to_zoe} to zoe"))
}
