//! Frames in switch mode: with VLAN tags, and of stations that are quiet.

use std::collections::BTreeSet;
use std::time::Duration;

use super::super::Scenario;
use super::super::bridge::{experiments_within, tap_into};
use super::SOON;
use super::bed::{Bed, Kind, Mode, NetSpec, NodeSpec};
use super::nets::with_logs;
use super::plane_switch::trains;
use crate::failure::{Result, ensure};
use crate::net::ip;
use crate::wait::{ScaledInstant, until};

/// The nodes: two of adit, and one of tinc.
const ALICE: usize = 0;
const BOB: usize = 1;
const CAROL: usize = 2;

/// VLANs, with and without a priority, and a priority alone.
const TAGS: [u16; 3] = [7, 0xa007, 0xa000];

/// The lengths of frames: the last one is too long for a datagram.
const LENGTHS: [usize; 3] = [64, 1400, 1518];

/// Marks the frames of these tests.
const MARK: &[u8] = b"adit-interop-tag";

/// How long the ends wait for frames before they are sent again.
const QUIET: Duration = Duration::from_millis(300);

/// The time between two looks at the stations, and the least number of looks: two lives of a quiet one.
const PAUSE: Duration = Duration::from_millis(500);
const LOOKS: u64 = 4 * EXPIRE;

/// The seconds after which a quiet station is forgotten.
const EXPIRE: u64 = 2;

/// A quiet station, and a configured one, both behind bob.
const QUIET_STATION: &str = "02:00:00:00:00:77";
const CONFIGURED: &str = "02:00:00:00:00:78";

/// Two nodes of adit and one of tinc.
fn bed(scenario: &Scenario<'_>, conf: &str) -> Result<Option<Bed>> {
    let mut bob = NodeSpec::new("bob", Kind::Adit, &[ALICE]);
    bob.host = format!("Subnet = {CONFIGURED}\n");
    let nodes = vec![
        NodeSpec::new("alice", Kind::Adit, &[]),
        bob,
        NodeSpec::new("carol", Kind::V1_1, &[ALICE]),
    ];
    let spec = NetSpec { mode: Mode::Switch, conf: conf.to_owned(), ..NetSpec::new(nodes) };
    Bed::new(scenario, &spec)
}

/// Frames with VLAN tags and priorities reach the station that they are for as they were sent, also those that are longer than the path allows.
pub(super) fn vlan_tags(scenario: &Scenario<'_>) -> Result<String> {
    let Some(mut bed) = bed(scenario, "")? else { return Ok("skipped".to_owned()) };
    with_logs(&mut bed, |bed| {
        // Those that connect to alice need not try again.
        [ALICE, BOB, CAROL].into_iter().try_for_each(|at| bed.start(at))?;
        tagged(bed)
    })
}

fn tagged(bed: &Bed) -> Result<String> {
    let sockets = [ALICE, BOB, CAROL].map(|at| tap_into(bed.space(at)?, "vpn"));
    let sockets = sockets.into_iter().collect::<Result<Vec<_>>>()?;
    let ways = [(ALICE, BOB), (BOB, ALICE), (ALICE, CAROL), (CAROL, ALICE)];
    for (from, to) in ways {
        bed.wait_for_path(from, to, "directly with UDP", false)?;
    }
    for other in ["bob", "carol"] {
        until("the path MTU", SOON, || {
            bed.wait_for_ping(ALICE, BOB, false)?;
            bed.wait_for_ping(ALICE, CAROL, false)?;
            Ok(bed.count(ALICE, &format!("Fixing PMTU of {other}")) > 0)
        })?;
    }
    let (_, before) = trains(bed, ALICE)?;
    for (from, to) in ways {
        let kinds = TAGS.iter().flat_map(|tag| LENGTHS.iter().map(move |len| (*tag, *len)));
        let sent: BTreeSet<Vec<u8>> =
            kinds.map(|(tag, len)| tagged_frame((from, to), tag, len)).collect();
        let mut arrived = BTreeSet::new();
        until("all frames arrive", SOON, || {
            for frame in &sent {
                sockets[from].send(&[0; 10], frame)?;
            }
            arrived.extend(experiments_within(&sockets[to], sent.len(), MARK, QUIET)?);
            Ok(sent.is_subset(&arrived))
        })
        .map_err(|failure| format!("{failure}: from {from} to {to}, {:?}", heads(&arrived)))?;
        ensure(arrived == sent, || format!("altered: {:?}", heads(&arrived)))?;
    }
    let (_, after) = trains(bed, ALICE)?;
    let least = (2 * TAGS.len() * (LENGTHS.len() - 1)) as f64;
    ensure(after - before >= least, || {
        format!("{} datagrams by the data plane, and not {least}", after - before)
    })?;
    Ok(format!("{} kinds of frames", TAGS.len() * LENGTHS.len()))
}

/// Builds a frame of this length between the devices of two nodes.
fn tagged_frame((from, to): (usize, usize), tag: u16, len: usize) -> Vec<u8> {
    let station = |at: usize| [2, 0, 0, 0, 0, at as u8 + 1];
    let head = [&station(to)[..], &station(from), &[0x81, 0], &tag.to_be_bytes(), &[0x88, 0xb5]];
    let mut bytes = [&head.concat(), MARK].concat();
    bytes.resize(len, 0x55);
    bytes
}

/// Returns the first bytes and the lengths of frames.
fn heads(frames: &BTreeSet<Vec<u8>>) -> Vec<(usize, &[u8])> {
    frames.iter().map(|frame| (frame.len(), frame.get(..20).unwrap_or_default())).collect()
}

/// A quiet station is forgotten, also by tinc; one whose frames the data plane carries is not, nor is a configured one.
pub(super) fn quiet_stations(scenario: &Scenario<'_>) -> Result<String> {
    let conf = format!("MACExpire = {EXPIRE}\n");
    let Some(mut bed) = bed(scenario, &conf)? else { return Ok("skipped".to_owned()) };
    with_logs(&mut bed, |bed| {
        // Those that connect to alice need not try again.
        [ALICE, BOB, CAROL].into_iter().try_for_each(|at| bed.start(at))?;
        expire(bed)
    })
}

fn expire(bed: &Bed) -> Result<String> {
    let owned = |mac: &str| {
        let listed = bed.tinc(CAROL, &["dump", "subnets"])?;
        Ok(listed.lines().any(|line| line == format!("{mac} owner bob")))
    };
    for mac in [QUIET_STATION, CONFIGURED] {
        // The station asks all others for an address.
        let lines = [
            format!("link add link vpn name other address {mac} type macvlan mode bridge"),
            "addr add 10.9.0.99/24 dev other".to_owned(),
            "link set other up".to_owned(),
        ];
        ip(Some(bed.space(BOB)?), lines.into_iter())?;
        until("carol knows the station", SOON, || {
            let words = ["-c", "1", "-W", "1", "-I", "other", "10.9.0.1"];
            // Without an answer, it ends with an error.
            let _ = bed.space(BOB)?.run("ping", &words);
            owned(mac)
        })?;
        ip(Some(bed.space(BOB)?), std::iter::once("link del other".to_owned()))?;
    }
    let own = format!("02:00:00:00:00:{:02x}", BOB + 1);
    until("carol knows bob's device", SOON, || {
        bed.wait_for_ping(BOB, ALICE, false)?;
        owned(&own)
    })?;
    // The data plane carries what bob sends from now on.
    let began = ScaledInstant::now();
    let (mut is_forgotten, mut looks) = (false, 0);
    while !is_forgotten || looks < LOOKS {
        ensure(began.elapsed() < SOON, || "the quiet station is not forgotten".to_owned())?;
        bed.wait_for_ping(BOB, ALICE, false)?;
        std::thread::sleep(PAUSE);
        ensure(owned(&own)?, || "a station that sends is forgotten".to_owned())?;
        is_forgotten = !owned(QUIET_STATION)?;
        looks += 1;
    }
    ensure(owned(CONFIGURED)?, || "a configured station is forgotten".to_owned())?;
    Ok(format!("{looks} looks"))
}
