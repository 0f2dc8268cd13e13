//! Fuzzes fragments of an authentic but malicious peer, and packets that are fragmented and
//! reassembled.
#![cfg_attr(fuzzing, no_main)]

use adit_engine::Instant;
use adit_openvpn_data::fragment::{FragmentResult, Reassembler, HEADER, MAX_FRAGMENTS, Origin, Fragments};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

pub fn run(bytes: &[u8]) {
    let Some((&choice, rest)) = bytes.split_first() else { return };
    if choice & 1 == 0 { texts(rest) } else { packet(rest) }
}

fn origin(packet_id: u64) -> Origin {
    Origin { key: 0, packet_id, now: Instant::from_nanos(1) }
}

/// Receives fragments: a length, a step of the packet id, the bytes.
fn texts(mut bytes: &[u8]) {
    let (mut reassembler, mut out, mut id) = (Reassembler::default(), Vec::new(), 0);
    while let Some((&[len, step], rest)) = bytes.split_first_chunk() {
        let (text, rest) = rest.split_at(usize::from(len).min(rest.len()));
        bytes = rest;
        id += u64::from(step) * u64::from(step);
        let mut text = text.to_vec();
        if reassembler.push(&mut text, origin(id), &mut out) == FragmentResult::Complete {
            assert!(!out.is_empty() && out.len() <= 65_536);
        }
    }
}

/// Fragments a packet to a size. It is reassembled unchanged, whether its fragments arrive in order
/// or reversed.
fn packet(bytes: &[u8]) {
    let Some((size, packet)) = bytes.split_first_chunk::<2>() else { return };
    let most = usize::from(u16::from_be_bytes(*size));
    let mut text = [&[0; HEADER], packet].concat();
    let mut sequence = 0;
    let Some(mut pieces) = Fragments::new(&mut text, most, &mut sequence) else { return };
    assert!(pieces.count() <= MAX_FRAGMENTS);
    let mut cut = Vec::new();
    while let Some(piece) = pieces.next() {
        assert!(piece.len() <= most + HEADER);
        cut.push(piece.to_vec());
    }
    for turned in [false, true] {
        let mut reassembler = Reassembler::default();
        let mut whole = None;
        for (id, piece) in cut.iter().enumerate() {
            let mut out = Vec::new();
            match reassembler.push(&mut piece.clone(), origin(id as u64), &mut out) {
                FragmentResult::Whole(packet) => whole = Some(packet.to_vec()),
                FragmentResult::Complete => whole = Some(out),
                FragmentResult::Waiting => assert_eq!(whole, None),
                FragmentResult::Bad => panic!("our own piece"),
            }
        }
        assert_eq!(whole.as_deref(), Some(packet), "turned: {turned}");
        cut.reverse();
    }
}
