//! Rekeys while datagrams flow both ways: two nodes of tinc as a control, one of each program, and two of adit.

use std::time::Duration;

use super::super::Scenario;
use super::bed::{Bed, Kind, NetSpec, NodeSpec, inner};
use super::nets::with_logs;
use crate::failure::{Result, ensure};
use crate::traffic::{Delivery, Stream};
use crate::wait::ScaledInstant;

/// The life of keys, in seconds. A node of tinc begins a session again only if it has not done so for ten seconds.
const KEY_EXPIRE: u64 = 12;

/// The number of lives for which the datagrams flow.
const LIVES: u64 = 13;

/// The length of the longest datagrams.
const LARGEST: usize = 1300;

/// The share of the datagrams that may be lost on a busy machine, as one in this many.
const MOST_LOST: u32 = 4;

/// The nodes: the one that connects, and the other.
const ANNA: usize = 0;
const BEN: usize = 1;

/// Runs the pairs at the same time. Each reports how often a session began again instead of getting new keys, and how many datagrams were
/// lost, for comparison with the control.
pub(super) fn rekeys(scenario: &Scenario<'_>) -> Result<String> {
    let pairs = [
        (Kind::V1_1, Kind::V1_1),
        (Kind::Adit, Kind::V1_1),
        (Kind::V1_1, Kind::Adit),
        (Kind::Adit, Kind::Adit),
    ];
    let mut beds = Vec::new();
    for (number, kinds) in pairs.into_iter().enumerate() {
        let mut spec = NetSpec::new(vec![
            NodeSpec::new("anna", kinds.0, &[BEN]),
            NodeSpec::new("ben", kinds.1, &[]),
        ]);
        spec.conf = format!("KeyExpire = {KEY_EXPIRE}\n");
        let folder = scenario.folder().join(number.to_string());
        std::fs::create_dir(&folder)?;
        let own = Scenario { folder, ..*scenario };
        let Some(bed) = Bed::new(&own, &spec)? else { return Ok("skipped".to_owned()) };
        beds.push(bed);
    }
    let counted = std::thread::scope(|scope| {
        let threads: Vec<_> =
            beds.iter_mut().map(|bed| scope.spawn(move || with_logs(bed, count))).collect();
        let joined = threads.into_iter().map(|thread| thread.join());
        joined.map(|done| done.map_err(|_| "a pair panicked")?).collect::<Result<Vec<Counts>>>()
    })?;
    let told: Vec<String> =
        pairs.iter().zip(&counted).map(|(pair, counts)| format!("{pair:?}: {counts:?}")).collect();
    Ok(told.join("; "))
}

#[derive(Debug)]
#[allow(dead_code, reason = "printed")]
struct Counts {
    rekeys: usize,
    restarts: usize,
    there: Lost,
    back: Lost,
}

#[derive(Debug)]
#[allow(dead_code, reason = "printed")]
struct Lost {
    sent: u32,
    lost: u32,
}

impl Lost {
    fn of(delivery: Delivery) -> Result<Self> {
        let lost = delivery.sent.saturating_sub(delivery.received);
        let is_good = lost <= delivery.sent / MOST_LOST;
        ensure(is_good && delivery.duplicated + delivery.corrupted == 0, || {
            format!("{delivery:?}")
        })?;
        Ok(Self { sent: delivery.sent, lost })
    }
}

fn count(bed: &mut Bed) -> Result<Counts> {
    bed.start_all()?;
    for (from, to) in [(ANNA, BEN), (BEN, ANNA)] {
        bed.wait_for_path(from, to, "directly with UDP", false)?;
    }
    let before = handshakes(bed);
    let stream =
        |from, to| Stream::start(bed.space(from)?, bed.space(to)?, inner(to, false), LARGEST);
    let (there, back) = (stream(ANNA, BEN)?, stream(BEN, ANNA)?);
    let began = ScaledInstant::now();
    while began.elapsed() < Duration::from_secs(KEY_EXPIRE * LIVES) {
        std::thread::sleep(Duration::from_secs(1));
    }
    let (there, back) = (Lost::of(there.finish()?)?, Lost::of(back.finish()?)?);
    let after = handshakes(bed);
    let (rekeys, restarts) = (after.0 - before.0, after.1 - before.1);
    ensure(rekeys + restarts >= 6, || format!("{rekeys} rekeys and {restarts} restarts"))?;
    Ok(Counts { rekeys, restarts, there, back })
}

/// Returns the number of rekeys, and of sessions that began again. A node of tinc logs their messages: a rekey has three in each direction.
fn handshakes(bed: &Bed) -> (usize, usize) {
    match bed.nodes.iter().position(|node| node.kind == Kind::V1_1) {
        Some(at) => {
            let requests = bed.count(at, ": 15 anna ben 15") + bed.count(at, ": 15 ben anna 15");
            (bed.count(at, ": 16 anna ben ") / 3, requests)
        }
        None => {
            let restarts =
                [(ANNA, "Session with ben: restarted"), (BEN, "Session with anna: restarted")];
            let restarts = restarts.iter().map(|(at, text)| bed.count(*at, text)).sum();
            (bed.count(ANNA, "Session with ben: new keys"), restarts)
        }
    }
}
