//! Bulk traffic through a node of adit that relays it, of other nodes of adit and of tinc 1.1; over rekeys, and restarts of the relay and of an end.

use nix::sys::signal::Signal;
use serde_json::Value;

use super::super::Scenario;
use super::SOON;
use super::bed::{Bed, Kind, NetSpec, NodeSpec, apart, inner};
use super::nets::with_logs;
use crate::failure::{Context, Result, ensure};
use crate::traffic::{self, Stream};
use crate::wait::until;

/// The nodes: two ends, which do not reach each other, and the relay.
const LEFT: usize = 0;
const RELAY: usize = 1;
const RIGHT: usize = 2;

/// The bytes of a transfer by TCP.
const BYTES: usize = 4 << 20;

/// The length of the longest datagrams in a stream.
const LARGEST: usize = 1200;

/// The number of datagrams that a train of bulk traffic between two nodes of adit has at least, on average.
const TRAIN: f64 = 4.0;

/// What a daemon logs when a session has new keys.
const NEW_KEYS: &str = "Session with right: new keys";

/// Returns the trains of a kind that a node of adit has sent or passed on, and the datagrams in them.
fn trains(bed: &Bed, at: usize, kind: &str) -> Result<(f64, f64)> {
    let trains = &bed.status(at)?["trains"];
    let counts = trains[kind].as_object().context("no trains")?.values();
    let count: u64 = counts.filter_map(Value::as_u64).sum();
    let packets = trains[format!("{kind}_packets")].as_f64().context("no packets")?;
    Ok((count as f64, packets))
}

/// Transfers bytes between the ends until most packets of a transfer have passed through the plane of the relay. Returns the average length of its trains.
fn transfer_through_plane(bed: &Bed, from: usize, to: usize) -> Result<f64> {
    let (mut packets, mut mean) = (0.0, 0.0);
    until("a transfer through the relay's data plane", SOON, || {
        let before = trains(bed, RELAY, "relayed")?;
        traffic::tcp(bed.space(from)?, bed.space(to)?, inner(to, false), BYTES)?;
        let after = trains(bed, RELAY, "relayed")?;
        packets = after.1 - before.1;
        mean = packets / (after.0 - before.0).max(1.0);
        Ok(packets > BYTES as f64 / 1500.0 / 2.0)
    })
    .map_err(|failure| format!("{failure}: {packets} packets").into())
    .map(|()| mean)
}

fn net(scenario: &Scenario<'_>, ends: Kind) -> Result<Option<Bed>> {
    let nodes = vec![
        NodeSpec::new("left", ends, &[RELAY]),
        NodeSpec::new("relay", Kind::Adit, &[]),
        NodeSpec::new("right", ends, &[RELAY]),
    ];
    let mut spec = NetSpec::new(nodes);
    spec.conf = "KeyExpire = 10\nPingInterval = 2\nPingTimeout = 2\n".to_owned();
    Bed::new(scenario, &spec)
}

/// The ends are nodes of adit.
pub(super) fn relay(scenario: &Scenario<'_>) -> Result<String> {
    let Some(mut bed) = net(scenario, Kind::Adit)? else { return Ok("skipped".to_owned()) };
    with_logs(&mut bed, |bed| {
        begin(bed)?;
        let there = transfer_through_plane(bed, LEFT, RIGHT)?;
        let back = transfer_through_plane(bed, RIGHT, LEFT)?;
        let before = trains(bed, LEFT, "sent")?;
        until("a transfer in trains of the sender", SOON, || {
            let _ = transfer_through_plane(bed, LEFT, RIGHT)?;
            let after = trains(bed, LEFT, "sent")?;
            let mean = (after.1 - before.1) / (after.0 - before.0).max(1.0);
            Ok(mean > TRAIN && after.1 - before.1 > BYTES as f64 / 1500.0 / 2.0)
        })?;
        let stream =
            Stream::start(bed.space(LEFT)?, bed.space(RIGHT)?, inner(RIGHT, false), LARGEST)?;
        let seen = bed.count(LEFT, NEW_KEYS);
        until("a rekey", SOON, || Ok(bed.count(LEFT, NEW_KEYS) > seen))?;
        let delivery = stream.finish()?;
        let lost = delivery.sent.saturating_sub(delivery.received);
        let is_good = lost <= delivery.sent / 20 && delivery.duplicated + delivery.corrupted == 0;
        ensure(is_good && delivery.sent > 0, || format!("a stream over a rekey: {delivery:?}"))?;
        for restarted in [RELAY, RIGHT] {
            bed.end(restarted, Signal::SIGKILL)?;
            bed.start(restarted)?;
            bed.wait_for_ping(LEFT, RIGHT, false)?;
            transfer_through_plane(bed, LEFT, RIGHT)?;
        }
        Ok(format!("{there:.0} and {back:.0} packets a train"))
    })
}

/// The ends are nodes of tinc 1.1.
pub(super) fn relay_of_tinc(scenario: &Scenario<'_>) -> Result<String> {
    let Some(mut bed) = net(scenario, Kind::V1_1)? else { return Ok("skipped".to_owned()) };
    with_logs(&mut bed, |bed| {
        begin(bed)?;
        let there = transfer_through_plane(bed, LEFT, RIGHT)?;
        transfer_through_plane(bed, RIGHT, LEFT)?;
        Ok(format!("{there:.0} packets a train"))
    })
}

/// Starts the nodes, and waits until the ends exchange packets.
fn begin(bed: &mut Bed) -> Result<()> {
    bed.set_rules(&apart(LEFT, RIGHT))?;
    bed.start_all()?;
    bed.wait_for_ping(LEFT, RIGHT, false)?;
    bed.wait_for_ping(RIGHT, LEFT, false)
}
