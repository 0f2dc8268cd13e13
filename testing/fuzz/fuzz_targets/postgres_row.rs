//! Fuzzes a row of a COPY as a malicious database would send it, after a byte that chooses the audit policy. Its
//! payload also serves as a packet to be logged.
#![cfg_attr(fuzzing, no_main)]

use adit_postgres::row::{columns, copy, decode};
use adit_postgres::seal::{Chain, EpochSecret, Opener, Sealer};
use adit_postgres::{Audit, Seq};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

const HASH: [u8; 32] = [1; 32];

pub fn run(bytes: &[u8]) {
    let Some((&choice, bytes)) = bytes.split_first() else { return };
    let audit = Audit::ALL[usize::from(choice) % Audit::ALL.len()];
    let Some((fields, rest)) = copy::split_row(bytes) else { return };
    assert!(rest.len() < bytes.len());
    let Ok(row) = decode::row(fields) else { return };

    let secret = EpochSecret::new([2; 32]);
    let opener = Opener::new(&secret, audit, row.stream, row.epoch, HASH).expect("an opener");
    let mut out = Vec::new();
    assert!(opener.open(&row, &mut out).is_err(), "a forgery was delivered");
    assert!(out.is_empty());
    let mut chain = Chain::new(&secret, audit, row.stream, row.epoch, HASH).expect("a chain");
    if let Ok(tag) = row.tag.try_into() {
        chain.add(row.seq, &row.columns, row.payload, tag);
    }
    assert!(!chain.check(row.chain.unwrap_or_default()), "a forged chain");

    // The same bytes as a packet, correctly sealed.
    let mut sealer = Sealer::new(&secret, audit, row.stream, row.epoch, HASH).expect("a sealer");
    let told = columns(audit, row.payload);
    if sealer.seal_into(Seq(1), row.payload, &mut out).is_err() {
        return;
    }
    sealer.end_batch(&mut out).expect("a batch of one row");
    let (fields, rest) = copy::split_row(&out).expect("a row");
    let sealed = decode::row(fields).expect("a row");
    assert_eq!((sealed.columns, rest.len()), (told, 0));
    let mut opened = Vec::new();
    let len = opener.open(&sealed, &mut opened).expect("an authentic row");
    assert_eq!(opened, row.payload[..len]);
}
