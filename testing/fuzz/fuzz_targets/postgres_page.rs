//! Fuzzes a reader that knows two epochs with pages of COPY rows from a malicious database. Three bytes come first: the audit policy, the
//! end of a page, the rows' age. Each row is delivered at most once and in order.
#![cfg_attr(fuzzing, no_main)]

use std::collections::BTreeSet;

use adit_engine::Instant;
use adit_postgres::receiver::{AgedRow, Delivery, Epoch, Position, Query, Receiver};
use adit_postgres::routes::{Peer, Routes};
use adit_postgres::row::{Row, copy, decode};
use adit_postgres::seal::{EpochSecret, Opener};
use adit_postgres::{Audit, EpochNo, Generation, LeafNo, NodeId, Seq, StreamId};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

const STREAM: StreamId = StreamId(7);

fn opener(audit: Audit, epoch: i32) -> Opener {
    let secret = EpochSecret::new([2; 32]);
    Opener::new(&secret, audit, STREAM, EpochNo(epoch), [1; 32]).expect("an opener")
}

fn epoch(audit: Audit, no: i32) -> Epoch {
    let first_seq = Seq(i64::from(no) * 100);
    Epoch {
        no: EpochNo(no),
        leaf: LeafNo(1),
        first_seq,
        generation: Generation::FIRST,
        age_ms: 0,
        open: opener(audit, no),
    }
}

/// Creates routes by which 10.9.0.1 sends to 10.9.0.2.
fn routes() -> Routes {
    let peer = Peer {
        node: NodeId(1),
        outgoing: StreamId(8),
        incoming: STREAM,
        addresses: vec![[10, 9, 0, 1].into()],
        subnets: vec![],
    };
    Routes::new(&[[10, 9, 0, 2].into()], &[], &[peer])
}

pub fn run(bytes: &[u8]) {
    let [choice, end, age, rest @ ..] = bytes else { return };
    let audit = Audit::ALL[usize::from(*choice) % Audit::ALL.len()];
    let (end, age_ms) = (usize::from(*end) + 1, i64::from(*age) * 16);
    let mut rows: Vec<Row<'_>> = Vec::new();
    let mut rest = rest;
    while let Some((fields, behind)) = copy::split_row(rest) {
        rows.extend(decode::row(fields).ok());
        rest = behind;
    }

    let now = Instant::from_nanos(1_000_000_000);
    let mut receiver = Receiver::new(now, STREAM, Position::default(), [0; 32]);
    let (routes, mut out) = (routes(), Delivery::default());
    let mut pages = rows.chunks(end);
    let (mut packets, mut epochs) = (0, 0);
    for _ in 0..1000 {
        let before = receiver.position();
        match receiver.query(now) {
            None => match pages.len() {
                0 => break,
                _ => receiver.wake(LeafNo(1)),
            },
            Some(Query::Epochs { .. }) => {
                epochs += 1;
                receiver.epochs(now, (epochs <= 2).then(|| epoch(audit, epochs)), 1);
            }
            Some(Query::Page { newest_first: true, .. }) => {
                receiver.page(now, [], &routes, &mut out)
            }
            Some(Query::Page { .. }) => {
                let page = pages.next().unwrap_or_default();
                let dated = page.iter().map(|row| AgedRow { row: *row, age_ms });
                out.clear();
                receiver.page(now, dated, &routes, &mut out);
                packets += out.packets().count();
                assert!(out.packets().all(|packet| packet.len() >= 20));
            }
            Some(Query::Skip { .. }) => receiver.skipped(rows.last().map(|row| row.seq)),
        }
        assert!(receiver.position() >= before, "the position never goes back");
    }
    let authentic = rows.iter().filter(|row| {
        let mut packet = Vec::new();
        opener(audit, row.epoch.0).open(row, &mut packet).is_ok()
    });
    let different: BTreeSet<_> = authentic.map(|row| (row.epoch, row.seq)).collect();
    assert!(packets <= different.len(), "a packet was delivered twice");
    assert_eq!(receiver.stats().packets, packets as u64);
}
