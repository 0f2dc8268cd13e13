//! Tests that the intended readers can open rows, and that no altered row opens.

use std::net::IpAddr;

use proptest::prelude::*;

use super::*;
use crate::limits::{PACKET_RANGE, PADDING};
use crate::row::{Columns, Row, TAG_LEN, columns, copy, decode};
use crate::{Audit, EpochNo, Seq, StreamId};

const HASH: [u8; 32] = [0x5a; 32];
const STREAM: StreamId = StreamId(3);
const EPOCH: EpochNo = EpochNo(2);

fn secret() -> EpochSecret {
    EpochSecret::new([0xa5; 32])
}

fn sealer(audit: Audit) -> Sealer {
    Sealer::new(&secret(), audit, STREAM, EPOCH, HASH).unwrap()
}

fn opener(audit: Audit) -> Opener {
    Opener::new(&secret(), audit, STREAM, EPOCH, HASH).unwrap()
}

/// Builds a TCP segment over IPv4 of `len` bytes, at least 40.
fn packet(len: usize) -> Vec<u8> {
    let mut packet: Vec<u8> = (0..len).map(|at| at as u8).collect();
    packet[..2].copy_from_slice(&[0x45, 0]);
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[6..10].copy_from_slice(&[0x40, 0, 64, 6]);
    packet[12..20].copy_from_slice(&[10, 9, 0, 1, 10, 9, 0, 2]);
    packet
}

fn rows(mut bytes: &[u8]) -> Vec<Row<'_>> {
    let mut rows = Vec::new();
    while let Some((fields, rest)) = copy::split_row(bytes) {
        rows.push(decode::row(fields).unwrap());
        bytes = rest;
    }
    assert_eq!(bytes, b"", "something follows the rows");
    rows
}

fn sealed(audit: Audit, packets: &[Vec<u8>]) -> Vec<u8> {
    let (mut sealer, mut out) = (sealer(audit), Vec::new());
    for (seq, packet) in (1..).zip(packets) {
        sealer.seal_into(Seq(seq), packet, &mut out).unwrap();
    }
    sealer.end_batch(&mut out);
    out
}

fn open(audit: Audit, row: &Row<'_>) -> Result<Vec<u8>, OpenError> {
    let mut out = b"before".to_vec();
    let opened = opener(audit).open(row, &mut out);
    assert_eq!(&out[..6], b"before");
    match opened {
        Ok(len) => assert_eq!(out.len(), 6 + len),
        Err(_) => assert_eq!(out.len(), 6, "nothing is left of a refused row"),
    }
    opened.map(|_| out.split_off(6))
}

#[test]
fn every_policy_delivers_what_was_sent() {
    for &audit in Audit::ALL {
        let packets: Vec<_> = [40, 255, 256, 257, 1400, *PACKET_RANGE.end()].map(packet).into();
        let bytes = sealed(audit, &packets);
        let rows = rows(&bytes);
        assert_eq!(rows.len(), packets.len());
        for (row, packet) in rows.iter().zip(&packets) {
            assert_eq!(row.columns, columns(audit, packet), "{audit}");
            assert_eq!(open(audit, row).as_ref(), Ok(packet), "{audit}");
        }
    }
}

#[test]
fn a_payload_is_in_the_clear_under_full_only_and_padded_under_none_only() {
    let packet = packet(300);
    for &audit in Audit::ALL {
        let bytes = sealed(audit, std::slice::from_ref(&packet));
        let payload = rows(&bytes)[0].payload;
        assert_eq!(payload == packet, audit == Audit::Full, "{audit}");
        let len = if audit == Audit::None { 2 * PADDING } else { 300 };
        assert_eq!(payload.len(), len, "{audit}");
        let clear = bytes.windows(50).any(|window| window == &packet[100..150]);
        assert_eq!(clear, audit == Audit::Full, "{audit}");
    }
}

#[test]
fn a_row_altered_anywhere_is_refused() {
    type Alter = fn(&mut Row<'_>);
    let other: IpAddr = [10, 9, 0, 3].into();
    assert_ne!(other, IpAddr::from([10, 9, 0, 1]));
    let alterations: [(&str, Alter, OpenError); 22] = [
        ("seq", |row| row.seq = Seq(2), OpenError::Forged),
        ("seq below zero", |row| row.seq = Seq(-1), OpenError::Forged),
        ("epoch", |row| row.epoch = EpochNo(1), OpenError::Misplaced),
        ("stream", |row| row.stream = StreamId(4), OpenError::Misplaced),
        ("len", |row| row.columns.len = Some(1401), OpenError::Forged),
        ("no len", |row| row.columns.len = None, OpenError::Forged),
        ("sport", |row| row.columns.sport = Some(1), OpenError::Forged),
        ("no sport", |row| row.columns.sport = None, OpenError::Forged),
        ("dport", |row| row.columns.dport = Some(1), OpenError::Forged),
        ("no dport", |row| row.columns.dport = None, OpenError::Forged),
        ("proto", |row| row.columns.proto = Some(17), OpenError::Forged),
        ("no proto", |row| row.columns.proto = None, OpenError::Forged),
        ("flags", |row| row.columns.flags = Some(2), OpenError::Forged),
        ("no flags", |row| row.columns.flags = None, OpenError::Forged),
        ("src", |row| row.columns.src = Some([10, 9, 0, 3].into()), OpenError::Forged),
        ("no src", |row| row.columns.src = None, OpenError::Forged),
        ("dst", |row| row.columns.dst = Some([10, 9, 0, 3].into()), OpenError::Forged),
        ("dst of six", |row| row.columns.dst = Some("a09:2::".parse().unwrap()), OpenError::Forged),
        ("tag", |row| row.tag = &[0; 16], OpenError::Forged),
        ("a shorter tag", |row| row.tag = &row.tag[..15], OpenError::Forged),
        ("a shorter payload", |row| row.payload = &row.payload[1..], OpenError::Forged),
        ("an endless payload", |row| row.payload = &[0; 1 << 16], OpenError::TooLong),
    ];
    for audit in [Audit::Full, Audit::Headers] {
        let bytes = sealed(audit, &[packet(1400)]);
        let row = rows(&bytes)[0];
        assert!(open(audit, &row).is_ok());
        for (what, alter, refused) in alterations {
            let mut altered = row;
            alter(&mut altered);
            assert_ne!(altered, row, "{what}");
            assert_eq!(open(audit, &altered), Err(refused), "{what}, {audit}");
        }
    }
}

/// A column that the policy leaves null must not be filled in, because a reader of the log would believe it.
#[test]
fn a_column_that_should_be_null_is_refused() {
    let packet = packet(300);
    for audit in [Audit::Metadata, Audit::None] {
        let bytes = sealed(audit, std::slice::from_ref(&packet));
        let row = rows(&bytes)[0];
        let all = columns(Audit::Headers, &packet);
        let null = Columns { len: row.columns.len, ..Columns::default() };
        for filled in [
            Columns { len: all.len.map(|len| len + 1), ..null },
            Columns { sport: all.sport, ..null },
            Columns { dport: all.dport, ..null },
            Columns { proto: all.proto, ..null },
            Columns { flags: all.flags, ..null },
            Columns { src: all.src, ..null },
            Columns { dst: all.dst, ..null },
            Columns { sport: Some(0), ..null },
        ] {
            let altered = Row { columns: filled, ..row };
            assert_eq!(open(audit, &altered), Err(OpenError::Forged), "{filled:?}, {audit}");
        }
    }
}

#[test]
fn every_altered_bit_of_payload_and_tag_is_seen() {
    for &audit in Audit::ALL {
        let bytes = sealed(audit, &[packet(60)]);
        let row = rows(&bytes)[0];
        for bit in 0..row.payload.len() * 8 {
            let mut payload = row.payload.to_vec();
            payload[bit / 8] ^= 1 << (bit % 8);
            let altered = Row { payload: &payload, ..row };
            assert_eq!(
                open(audit, &altered),
                Err(OpenError::Forged),
                "payload, bit {bit}, {audit}"
            );
        }
        for bit in 0..TAG_LEN * 8 {
            let mut tag = row.tag.to_vec();
            tag[bit / 8] ^= 1 << (bit % 8);
            let altered = Row { tag: &tag, ..row };
            assert_eq!(open(audit, &altered), Err(OpenError::Forged), "tag, bit {bit}, {audit}");
        }
    }
}

/// The chain is only for `verify`, and does not prevent a packet from being delivered.
#[test]
fn a_chain_value_is_no_part_of_a_packet() {
    let bytes = sealed(Audit::Headers, &[packet(60)]);
    let row = rows(&bytes)[0];
    for chain in [None, Some(&[1; 32][..]), Some(&[][..])] {
        assert!(open(Audit::Headers, &Row { chain, ..row }).is_ok());
    }
}

#[test]
fn other_secrets_records_policies_streams_and_epochs_open_nothing() {
    let bytes = sealed(Audit::Headers, &[packet(300)]);
    let row = rows(&bytes)[0];
    let other = EpochSecret::new([0xa4; 32]);
    let open = |secret: &EpochSecret, audit, stream, epoch, hash| {
        let opener = Opener::new(secret, audit, stream, epoch, hash).unwrap();
        // Open the row where an attacker would insert it.
        opener.open(&Row { stream, epoch, ..row }, &mut Vec::new())
    };
    let (headers, forged) = (Audit::Headers, Err(OpenError::Forged));
    assert_eq!(open(&secret(), headers, STREAM, EPOCH, HASH), Ok(300));
    assert_eq!(open(&other, headers, STREAM, EPOCH, HASH), forged, "secret");
    assert_eq!(open(&secret(), headers, STREAM, EPOCH, [0; 32]), forged, "record");
    assert_eq!(open(&secret(), headers, StreamId(4), EPOCH, HASH), forged, "stream");
    assert_eq!(open(&secret(), headers, STREAM, EpochNo(3), HASH), forged, "epoch");
    for audit in [Audit::Full, Audit::Metadata, Audit::None] {
        assert_eq!(open(&secret(), audit, STREAM, EPOCH, HASH), forged, "{audit}");
    }
}

/// Seals a row like a modified program that has the epoch's secret.
fn lying(audit: Audit, columns: Columns, packet: &[u8]) -> Result<Vec<u8>, OpenError> {
    let key = secret().packet_key(audit, &HASH).unwrap();
    let mut payload = packet.to_vec();
    let aad = aad::of(audit, STREAM, EPOCH, Seq(1), &columns);
    let tag = match audit {
        Audit::Full => key.seal(1, &[packet, &aad].concat(), &mut []).unwrap(),
        _ => key.seal(1, &aad, &mut payload).unwrap(),
    };
    let (seq, chain) = (Seq(1), None);
    let row =
        Row { seq, epoch: EPOCH, stream: STREAM, columns, tag: &tag, chain, payload: &payload };
    open(audit, &row)
}

#[test]
fn a_sender_that_logs_another_packet_than_it_sends_is_refused() {
    let packet = packet(300);
    for &audit in Audit::ALL {
        let truth = columns(audit, &packet);
        assert_eq!(lying(audit, truth, &packet).as_ref(), Ok(&packet), "{audit}");
        for lie in [
            Columns { len: Some(301), ..truth },
            Columns { sport: Some(53), ..truth },
            Columns { dport: Some(53), ..truth },
            Columns { proto: Some(17), ..truth },
            Columns { flags: Some(0x10), ..truth },
            Columns { src: Some([10, 9, 0, 9].into()), ..truth },
            Columns { dst: Some([10, 9, 0, 9].into()), ..truth },
        ] {
            assert_eq!(lying(audit, lie, &packet), Err(OpenError::Untrue), "{lie:?}, {audit}");
        }
    }
    let nothing = Columns::default();
    assert_eq!(
        lying(Audit::None, nothing, b"no packet"),
        Err(OpenError::Untrue),
        "no length of its own"
    );
}

#[test]
fn what_cannot_be_sealed_leaves_buffer_and_number_alone() {
    for &audit in Audit::ALL {
        let (mut sealer, mut out) = (sealer(audit), Vec::new());
        sealer.seal_into(Seq(5), &packet(60), &mut out).unwrap();
        let (before, packet) = (out.clone(), packet(60));
        for seq in [-1, 0, 4, 5, 7, i64::MAX] {
            let refused = sealer.seal_into(Seq(seq), &packet, &mut out);
            assert_eq!(refused, Err(SealError::OutOfOrder), "{seq} after 5, {audit}");
        }
        let long = self::packet(PACKET_RANGE.end() + 1);
        assert_eq!(sealer.seal_into(Seq(6), &long, &mut out), Err(SealError::TooLong), "{audit}");
        if audit == Audit::None {
            assert_eq!(sealer.seal_into(Seq(6), b"no packet", &mut out), Err(SealError::NotIp));
        }
        assert_eq!(out, before);
        sealer.left = 0;
        assert_eq!(
            sealer.seal_into(Seq(6), &packet, &mut out),
            Err(SealError::Exhausted),
            "{audit}"
        );
        sealer.left = 1;
        assert_eq!(sealer.seal_into(Seq(6), &packet, &mut out), Ok(()), "{audit}");
        assert_eq!(rows(&out).len(), 2);
    }
    let mut first = sealer(Audit::Full);
    assert_eq!(first.seal_into(Seq(-1), &packet(60), &mut Vec::new()), Err(SealError::OutOfOrder));
}

/// Returns whether all chain values of an epoch's batches are correct, as `verify` checks them.
fn chained(rows: &[Row<'_>]) -> bool {
    let mut chain = Chain::new(&secret(), Audit::Headers, STREAM, EPOCH, HASH).unwrap();
    let mut right = true;
    for row in rows {
        chain.add(row.seq, &row.columns, row.payload, row.tag.try_into().unwrap());
        if let Some(claimed) = row.chain {
            right &= chain.check(claimed);
        }
    }
    right && chain.open_rows() == 0
}

/// Seals three batches of three, one and four rows, in one buffer.
fn batches() -> Vec<u8> {
    let (mut sealer, mut out) = (sealer(Audit::Headers), Vec::new());
    let mut seq = 1;
    for rows in [3, 1, 4] {
        for _ in 0..rows {
            sealer.seal_into(Seq(seq), &packet(100 + seq as usize), &mut out).unwrap();
            seq += 1;
        }
        assert!(sealer.end_batch(&mut out).is_some());
    }
    assert_eq!((sealer.end_batch(&mut out), sealer.last()), (None, Some(Seq(8))));
    out
}

#[test]
fn the_chain_is_on_the_last_row_of_each_batch_and_delivers_it_all() {
    let bytes = batches();
    let rows = rows(&bytes);
    let ends: Vec<bool> = rows.iter().map(|row| row.chain.is_some()).collect();
    assert_eq!(ends, [false, false, true, true, false, false, false, true]);
    assert!(chained(&rows));
    for (at, row) in rows.iter().enumerate() {
        assert_eq!(open(Audit::Headers, row), Ok(packet(101 + at)));
    }
}

#[test]
fn the_chain_shows_rows_and_batches_removed_repeated_and_exchanged() {
    let bytes = batches();
    let rows = rows(&bytes);
    for at in 0..rows.len() {
        let mut without = rows.clone();
        without.remove(at);
        assert!(!chained(&without) || at == rows.len() - 1, "row {at} removed");
        let mut twice = rows.clone();
        twice.insert(at, rows[at]);
        assert!(!chained(&twice), "row {at} twice");
        for other in at + 1..rows.len() {
            let mut exchanged = rows.clone();
            exchanged.swap(at, other);
            assert!(!chained(&exchanged), "rows {at} and {other} exchanged");
        }
    }
    let (first, second, third) = (&rows[..3], &rows[3..4], &rows[4..]);
    assert!(chained(&[first, second, third].concat()));
    for (what, rows) in [
        ("the first removed", [second, third].concat()),
        ("the second removed", [first, third].concat()),
        ("two exchanged", [first, third, second].concat()),
        ("the second twice", [first, second, second, third].concat()),
        ("the last cut off in its middle", rows[..7].to_vec()),
    ] {
        assert!(!chained(&rows), "{what}");
    }
    // The chain alone does not reveal that the end is missing. The next epoch's record does.
    assert!(chained(&[first, second].concat()));
}

#[test]
fn a_batch_with_another_tag_or_value_is_one_finding() {
    let bytes = batches();
    let rows = rows(&bytes);
    let mut chain = Chain::new(&secret(), Audit::Headers, STREAM, EPOCH, HASH).unwrap();
    assert_eq!(chain.value(), HASH);
    let mut findings = Vec::new();
    for (at, row) in rows.iter().enumerate() {
        let tag: &[u8; 16] = if at == 1 { &[0; 16] } else { row.tag.try_into().unwrap() };
        chain.add(row.seq, &row.columns, row.payload, tag);
        if let Some(claimed) = row.chain {
            findings.push(chain.check(claimed));
        }
    }
    assert_eq!(findings, [false, true, true]);
    assert_eq!(chain.value(), rows[7].chain.unwrap());
    assert!(!chain.check(rows[7].chain.unwrap()), "a batch without rows");
    chain.add(Seq(9), &Columns::default(), &[], &[0; 16]);
    assert!(!chain.check(&[]), "no value");
}

/// The same tags with different columns, payloads or positions give a different value.
#[test]
fn the_chain_is_over_all_of_a_row() {
    let bytes = batches();
    let rows = rows(&bytes);
    let value = |row: Row<'_>, stream, epoch| {
        let mut chain = Chain::new(&secret(), Audit::Headers, stream, epoch, HASH).unwrap();
        chain.add(row.seq, &row.columns, row.payload, row.tag.try_into().unwrap());
        chain.close().unwrap()
    };
    let row = Row { chain: None, ..rows[3] };
    let right = value(row, STREAM, EPOCH);
    let mut payload = row.payload.to_vec();
    payload[60] ^= 1;
    let columns = Columns { dport: Some(4444), ..row.columns };
    let (head, _) = row.payload.split_at(row.payload.len() - 1);
    for (what, value) in [
        ("columns", value(Row { columns, ..row }, STREAM, EPOCH)),
        ("payload", value(Row { payload: &payload, ..row }, STREAM, EPOCH)),
        ("length", value(Row { payload: head, ..row }, STREAM, EPOCH)),
        ("stream", value(row, StreamId(4), EPOCH)),
        ("epoch", value(row, STREAM, EpochNo(3))),
    ] {
        assert_ne!(value, right, "{what}");
    }
}

#[test]
fn the_chain_starts_at_the_epochs_record_and_needs_its_secret() {
    let bytes = batches();
    let rows = rows(&bytes);
    let value = |secret: [u8; 32], hash| {
        let mut chain =
            Chain::new(&EpochSecret::new(secret), Audit::Headers, STREAM, EPOCH, hash).unwrap();
        for row in &rows[..3] {
            chain.add(row.seq, &row.columns, row.payload, row.tag.try_into().unwrap());
        }
        chain.close().unwrap()
    };
    let right = rows[2].chain.unwrap();
    assert_eq!(value([0xa5; 32], HASH), right);
    assert_ne!(value([0xa4; 32], HASH), right);
    assert_ne!(value([0xa5; 32], [0; 32]), right);
}

#[test]
fn a_secret_is_not_printed() {
    assert_eq!(format!("{:?}", secret()), "EpochSecret(..)");
    let text = format!("{:?} {:?}", sealer(Audit::Full), opener(Audit::Full));
    assert!(!text.contains("165"), "a byte of the secret: {text}");
}

/// The size of the largest tuple on a page of 8 KiB, according to `MaxHeapTupleSize` in `access/htup_details.h`.
const MAX_TUPLE: usize = 8192 - 24 - 8;

/// Returns the size of a row on a page, as in `heap_compute_data_size` of `access/heaptuple.c`, with bytea columns
/// whose storage is PLAIN (a length of 4 bytes at a multiple of 4) and inet columns (a length of one byte).
fn tuple_len(row: &Row<'_>) -> usize {
    let align = |len: usize, to: usize| len.next_multiple_of(to);
    let columns = &row.columns;
    let mut data = 8 + 8 + 4 + 4;
    data += 4 * [columns.len, columns.sport, columns.dport].iter().flatten().count();
    data += 2 * [columns.proto, columns.flags].iter().flatten().count();
    for address in [columns.src, columns.dst].iter().flatten() {
        data += 1 + if address.is_ipv4() { 2 + 4 } else { 2 + 16 };
    }
    for bytes in [Some(row.tag), row.chain, Some(row.payload)].into_iter().flatten() {
        data = align(data, 4) + 4 + bytes.len();
    }
    // The header has 23 bytes, and a bit for each of 14 columns if one of them is null.
    align(23 + 2, 8) + data
}

#[test]
fn the_longest_row_fits_a_page() {
    let len = *PACKET_RANGE.end();
    let mut v6 = vec![0; len];
    v6[0] = 0x60;
    v6[4..6].copy_from_slice(&(len as u16 - 40).to_be_bytes());
    v6[6] = 6;
    for &audit in Audit::ALL {
        let bytes = sealed(audit, &[v6.clone()]);
        let row = rows(&bytes)[0];
        assert!(row.chain.is_some() && open(audit, &row).is_ok());
        let taken = tuple_len(&row);
        assert!(taken <= MAX_TUPLE, "{taken} bytes under {audit}");
    }
}

proptest! {
    #[test]
    fn any_bytes_come_back(
        bytes in proptest::collection::vec(any::<u8>(), 0..=2000),
        seq in 1..i64::MAX,
        which in 0..3usize,
    ) {
        let audit = [Audit::Full, Audit::Headers, Audit::Metadata][which];
        let (mut sealer, mut out) = (sealer(audit), Vec::new());
        sealer.seal_into(Seq(seq), &bytes, &mut out).unwrap();
        sealer.end_batch(&mut out);
        prop_assert!(out.len() <= bytes.len() + copy::MAX_OVERHEAD);
        let rows = rows(&out);
        prop_assert_eq!(open(audit, &rows[0]), Ok(bytes));
    }

    #[test]
    fn a_forged_row_is_never_delivered(
        seq in any::<i64>(), tag in proptest::collection::vec(any::<u8>(), 0..20),
        payload in proptest::collection::vec(any::<u8>(), 0..300), which in 0..4usize,
    ) {
        let audit = Audit::ALL[which];
        let columns = columns(audit, &payload);
        let row = Row { seq: Seq(seq), epoch: EPOCH, stream: STREAM, columns, tag: &tag, chain: None, payload: &payload };
        prop_assert_eq!(open(audit, &row), Err(OpenError::Forged));
    }
}
