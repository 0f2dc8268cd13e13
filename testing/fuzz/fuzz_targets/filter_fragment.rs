//! Fuzzes fragments, each preceded by two bytes: its length, and how many seconds later it arrives.
#![cfg_attr(fuzzing, no_main)]

use std::time::Duration;

use adit_filter::Nanos;
use adit_filter::fragment::{Limits, Outcome, Reassembler};
use adit_filter::packet::{Layer, Packet};
use adit_wire::VnetHeader;

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(mut bytes: &[u8]) {
    let limits = Limits {
        packets: 3,
        bytes: 4000,
        source_bytes: 2000,
        pieces: 8,
        hold: Duration::from_secs(30),
    };
    let mut reassembler = Reassembler::new(limits);
    let (mut now, none) = (Nanos(0), VnetHeader::default());
    while let Some((&[len, later], rest)) = bytes.split_first_chunk() {
        let (piece, rest) = rest.split_at(usize::from(len).min(rest.len()));
        bytes = rest;
        now = now.after(Duration::from_secs(later.into()));
        let Ok(packet) = Packet::parse(piece, Layer::Ip, None, &none) else { continue };
        if let Outcome::Whole(all) = reassembler.push(&packet, &none, 0, now) {
            let pieces = all.pieces().count();
            assert!((2..=limits.pieces).contains(&pieces));
            assert!(all.whole().len() < all.pieces().map(<[u8]>::len).sum());
            if let Ok(whole) = Packet::parse(all.whole(), Layer::Ip, None, &none) {
                assert!(!whole.is_fragment());
                assert_eq!(whole.bytes.len(), all.whole().len());
            }
        }
        let stats = reassembler.stats();
        assert!(stats.packets <= limits.packets && stats.bytes <= limits.bytes);
    }
    reassembler.expire(now.after(limits.hold));
    assert_eq!((reassembler.stats().packets, reassembler.stats().bytes), (0, 0));
}
