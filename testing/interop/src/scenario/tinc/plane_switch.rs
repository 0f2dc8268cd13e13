//! Bulk traffic of frames through the data plane of adit: to another node of adit and to the real tinc 1.1, over a rekey, and to a station that moves from
//! one to the other.

use std::net::IpAddr;

use serde_json::Value;

use super::super::Scenario;
use super::SOON;
use super::bed::{Bed, Kind, Mode, NetSpec, NodeSpec, inner};
use crate::failure::{Context, Result, ensure};
use crate::net::ip;
use crate::traffic::{self, Stream, ping};
use crate::wait::until;

/// The nodes.
const ALICE: usize = 0;
const BOB: usize = 1;
const CAROL: usize = 2;

/// The bytes of a transfer by TCP.
const BYTES: usize = 4 << 20;

/// The length of the longest datagrams in a stream.
const LARGEST: usize = 1300;

/// The number of datagrams that a train of bulk traffic has at least, on average.
const TRAIN: f64 = 8.0;

/// A station that moves.
const STATION: IpAddr = IpAddr::V4(std::net::Ipv4Addr::new(10, 9, 0, 77));
const STATION_MAC: &str = "02:00:00:00:00:77";

/// What a daemon logs when a session has new keys.
const NEW_KEYS: &str = "Session with bob: new keys";

/// Returns the trains that a node of adit has sent, and the datagrams in them.
pub(super) fn trains(bed: &Bed, at: usize) -> Result<(f64, f64)> {
    let report: Value = bed.status(at)?;
    let trains = &report["trains"];
    let sent = trains["sent"].as_object().context("no trains")?.values();
    let sent: u64 = sent.filter_map(Value::as_u64).sum();
    Ok((sent as f64, trains["sent_packets"].as_f64().context("no packets")?))
}

/// Transfers bytes by TCP from a node of adit until most packets of a transfer have left by the plane, in trains. Around a rekey, and before the path MTU
/// is known, they take the long way. Returns the average length of the trains.
pub(super) fn transfer_in_trains(
    bed: &Bed,
    from: usize,
    to: usize,
    address: IpAddr,
) -> Result<f64> {
    let (mut packets, mut mean) = (0.0, 0.0);
    until("a transfer in trains", SOON, || {
        let before = trains(bed, from)?;
        traffic::tcp(bed.space(from)?, bed.space(to)?, address, BYTES)?;
        let after = trains(bed, from)?;
        packets = after.1 - before.1;
        mean = packets / (after.0 - before.0).max(1.0);
        Ok(packets > BYTES as f64 / 1500.0 / 2.0 && mean > TRAIN)
    })
    .map_err(|failure| format!("{failure}: {packets} packets, {mean:.1} in a train").into())
    .map(|()| mean)
}

/// Moves the station behind a node's device, or away from it.
fn set_station(bed: &Bed, at: usize, present: bool) -> Result<()> {
    let own = format!("02:00:00:00:00:{:02x}", at + 1);
    let (mac, verb) = if present { (STATION_MAC, "add") } else { (own.as_str(), "del") };
    let lines =
        [format!("link set vpn address {mac}"), format!("addr {verb} {STATION}/24 dev vpn")];
    ip(Some(bed.space(at)?), lines.into_iter())
}

/// All stations forget each other's addresses, so that they ask for them by broadcast and multicast.
fn forget_neighbours(bed: &Bed) -> Result<()> {
    [ALICE, BOB, CAROL]
        .into_iter()
        .try_for_each(|at| bed.space(at)?.run("ip", &["neigh", "flush", "dev", "vpn"]).map(drop))
}

/// All stations look for each other's addresses again.
fn resolve_again(bed: &Bed) -> Result<()> {
    forget_neighbours(bed)?;
    for (from, to) in [(ALICE, BOB), (BOB, CAROL), (CAROL, ALICE)] {
        bed.wait_for_ping(from, to, false)?;
        bed.wait_for_ping(from, to, true)?;
    }
    Ok(())
}

/// Two nodes of adit and one of tinc, in switch mode.
pub(super) fn plane_switch(scenario: &Scenario<'_>) -> Result<String> {
    let nodes = vec![
        NodeSpec::new("alice", Kind::Adit, &[]),
        NodeSpec::new("bob", Kind::Adit, &[ALICE]),
        NodeSpec::new("carol", Kind::V1_1, &[ALICE]),
    ];
    let mode = Mode::Switch;
    let spec = NetSpec { mode, conf: "KeyExpire = 5\n".to_owned(), ..NetSpec::new(nodes) };
    let Some(mut bed) = Bed::new(scenario, &spec)? else { return Ok("skipped".to_owned()) };
    // Those that connect to alice need not try again.
    [ALICE, BOB, CAROL].into_iter().try_for_each(|at| bed.start(at))?;
    run(&bed).map_err(|failure| bed.blame(&failure))
}

fn run(bed: &Bed) -> Result<String> {
    resolve_again(bed)?;
    let there = transfer_in_trains(bed, ALICE, BOB, inner(BOB, false))?;
    let back = transfer_in_trains(bed, BOB, ALICE, inner(ALICE, true))?;
    let to_tinc = transfer_in_trains(bed, ALICE, CAROL, inner(CAROL, false))?;
    traffic::tcp(bed.space(CAROL)?, bed.space(ALICE)?, inner(ALICE, false), BYTES)?;
    let (alice, bob) = (bed.space(ALICE)?, bed.space(BOB)?);
    let stream = Stream::start(alice, bob, inner(BOB, false), LARGEST)?;
    let seen = bed.count(ALICE, NEW_KEYS);
    until("a rekey", SOON, || Ok(bed.count(ALICE, NEW_KEYS) > seen))?;
    resolve_again(bed)?;
    let delivery = stream.finish()?;
    let lost = delivery.sent.saturating_sub(delivery.received);
    let is_good = lost <= delivery.sent / 20 && delivery.duplicated + delivery.corrupted == 0;
    ensure(is_good && delivery.sent > 0, || format!("a stream over a rekey: {delivery:?}"))?;
    let mut moved = Vec::new();
    for (from, to) in [(None, BOB), (Some(BOB), CAROL), (Some(CAROL), BOB)] {
        if let Some(from) = from {
            set_station(bed, from, false)?;
        }
        set_station(bed, to, true)?;
        forget_neighbours(bed)?;
        // The first frame of the station tells all nodes where it is.
        until("an answer to the station", SOON, || {
            Ok(ping(bed.space(to)?, inner(ALICE, false), 56, 1)? == 1)
        })?;
        moved.push(transfer_in_trains(bed, ALICE, to, STATION)?);
    }
    resolve_again(bed)?;
    let moved: Vec<String> = moved.iter().map(|mean| format!("{mean:.0}")).collect();
    Ok(format!(
        "{there:.0} and {back:.0} packets a train, to tinc {to_tinc:.0}, to a station that moves {}; {} datagrams in a stream",
        moved.join(", "),
        delivery.sent
    ))
}
