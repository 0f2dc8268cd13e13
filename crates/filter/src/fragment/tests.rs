use std::time::Duration;

use adit_wire::{Gso, VnetHeader};
use proptest::prelude::*;

use super::{FragmentDrop, FragmentStats, Limits, Outcome, Reassembler};
use crate::Nanos;
use crate::packet::{Layer, Packet};
use crate::testing::{V6_A, V6_B, ether, fix_v4, ip, piece, pieces, udp, v6_of};

const NONE: VnetHeader = VnetHeader {
    needs_csum: false,
    gso: Gso::None,
    ecn: false,
    hdr_len: 0,
    gso_size: 0,
    csum_start: 0,
    csum_offset: 0,
};

fn at(seconds: u64) -> Nanos {
    Nanos(seconds * 1_000_000_000)
}

fn push_at(reassembler: &mut Reassembler, bytes: &[u8], zone: u32, now: Nanos) -> Outcome {
    let packet = Packet::parse(bytes, Layer::Ip, None, &NONE).expect("a packet");
    reassembler.push(&packet, &NONE, zone, now)
}

fn push(reassembler: &mut Reassembler, bytes: &[u8]) -> Outcome {
    push_at(reassembler, bytes, 0, Nanos(0))
}

fn dropped(outcome: Outcome) -> Option<FragmentDrop> {
    if let Outcome::Dropped(why) = outcome { Some(why) } else { None }
}

fn held(outcome: Outcome) -> bool {
    matches!(outcome, Outcome::Held)
}

fn whole(outcome: Outcome) -> Option<Vec<u8>> {
    if let Outcome::Whole(all) = outcome { Some(all.whole().to_vec()) } else { None }
}

/// Builds a datagram with `len` bytes of payload for each family.
fn datagrams(len: usize) -> [Vec<u8>; 2] {
    let payload: Vec<u8> = (0..len).map(|at| (at * 7) as u8).collect();
    [false, true].map(|v6| ip(v6, 17, &udp(v6, &payload)))
}

/// Returns the packet as the reassembler writes it: an IPv4 header keeps its id.
fn with_id(packet: &[u8], id: u16) -> Vec<u8> {
    let mut packet = packet.to_vec();
    if packet[0] >> 4 == 4 {
        packet[4..6].copy_from_slice(&id.to_be_bytes());
        fix_v4(&mut packet);
    }
    packet
}

fn body_at(packet: &[u8]) -> usize {
    if packet[0] >> 4 == 4 { 20 } else { 40 }
}

#[test]
fn what_is_no_piece_is_left_alone() {
    let mut reassembler = Reassembler::new(Limits::default());
    for packet in datagrams(8) {
        assert!(matches!(push(&mut reassembler, &packet), Outcome::NotAPiece));
    }
    let atomic = v6_of(V6_A, V6_B, &[(44, &[0; 7])], 17, &udp(true, b"x"));
    assert!(matches!(push(&mut reassembler, &atomic), Outcome::NotAPiece));
    assert_eq!(reassembler.stats(), FragmentStats::default());
}

#[test]
fn pieces_for_other_stations_are_of_another_packet() {
    let [packet, _] = datagrams(100);
    let framed = |at: usize, mac: usize| {
        let mut frame = ether(&[0x0800], &pieces(&packet, 9, &[24])[at]);
        frame[mac] ^= 4;
        frame
    };
    for mac in [0, 5, 6, 11] {
        let mut reassembler = Reassembler::new(Limits::default());
        let mut push = |frame: &[u8]| {
            let packet = Packet::parse(frame, Layer::Ethernet, None, &NONE).unwrap();
            reassembler.push(&packet, &NONE, 0, at(0))
        };
        assert!(held(push(&framed(0, 1))));
        assert!(held(push(&framed(1, mac))), "rules saw the stations of the first piece only");
        assert!(whole(push(&framed(1, 1))).is_some());
    }
}

#[test]
fn pieces_become_whole_in_any_order_and_leave_in_theirs() {
    for packet in datagrams(100) {
        let cut = pieces(&packet, 9, &[24, 64]);
        for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
            let mut reassembler = Reassembler::new(Limits::default());
            assert!(held(push(&mut reassembler, &cut[order[0]])));
            assert!(held(push(&mut reassembler, &cut[order[1]])));
            let Outcome::Whole(all) = push(&mut reassembler, &cut[order[2]]) else { panic!() };
            assert_eq!(all.whole(), with_id(&packet, 9));
            assert!(all.pieces().eq(cut.iter().map(Vec::as_slice)));
            assert_eq!(all.vlan_beside(), None);
            let stats = reassembler.stats();
            assert_eq!(stats, FragmentStats { held: 3, whole: 1, ..FragmentStats::default() });
        }
    }
}

#[test]
fn link_headers_and_extension_headers_stay() {
    let rest = udp(true, &[3; 64]);
    let mut chain = vec![0u8; 7];
    chain[0] = 0;
    let part = |offset: usize, more: bool| {
        let data = &rest[offset..if more { 40 } else { rest.len() }];
        let word = (offset as u16 | u16::from(more)).to_be_bytes();
        let fragment = [0, word[0], word[1], 0, 0, 0, 5];
        let piece = v6_of(V6_A, V6_B, &[(0, &chain), (60, &chain), (44, &fragment)], 17, data);
        ether(&[0x8100, 0x86dd], &piece)
    };
    let mut reassembler = Reassembler::new(Limits::default());
    for (offset, more) in [(0, true), (40, false)] {
        let frame = part(offset, more);
        let packet = Packet::parse(&frame, Layer::Ethernet, Some(0x6009), &NONE).unwrap();
        if let Outcome::Whole(all) = reassembler.push(&packet, &NONE, 0, Nanos(0)) {
            let want = v6_of(V6_A, V6_B, &[(0, &chain), (60, &chain)], 17, &rest);
            assert_eq!(all.whole(), ether(&[0x8100, 0x86dd], &want));
            assert_eq!(all.vlan_beside(), Some(0x6009));
            let whole = Packet::parse(all.whole(), Layer::Ethernet, all.vlan_beside(), &NONE);
            assert!(whole.unwrap().checksum_ok());
            return;
        }
    }
    panic!("never whole");
}

#[test]
fn only_pieces_of_one_packet_come_together() {
    for packet in datagrams(48) {
        let body = &packet[body_at(&packet)..];
        let first = piece(&packet, 1, 0, &body[..32], true);
        let last = piece(&packet, 1, 32, &body[32..], false);
        let joins = |bytes: &[u8], zone| {
            let mut reassembler = Reassembler::new(Limits::default());
            assert!(held(push(&mut reassembler, &first)));
            !held(push_at(&mut reassembler, bytes, zone, Nanos(0)))
        };
        assert!(joins(&last, 0));
        assert!(!joins(&last, 1), "another zone");
        assert!(!joins(&piece(&packet, 2, 32, &body[32..], false), 0), "another id");
        let changed = |at: usize| {
            let mut other = packet.clone();
            other[at] ^= 1;
            piece(&other, 1, 32, &body[32..], false)
        };
        let (source, destination) = if body_at(&packet) == 20 { (15, 19) } else { (23, 39) };
        assert!(!joins(&changed(source), 0), "another source");
        assert!(!joins(&changed(destination), 0), "another destination");
        // IPv6 allows fragments to differ in the next header (RFC 8200 4.5).
        let protocol = if body_at(&packet) == 20 { 9 } else { 6 };
        assert_eq!(joins(&changed(protocol), 0), body_at(&packet) == 40, "another protocol");
    }
}

#[test]
fn networks_behind_tags_are_kept_apart() {
    let [packet, _] = datagrams(48);
    let cut = pieces(&packet, 1, &[32]);
    let joins = |first: (&[u16], Option<u16>, u8), last: (&[u16], Option<u16>, u8)| {
        let mut reassembler = Reassembler::new(Limits::default());
        let mut any = false;
        for (piece, (types, beside, id)) in cut.iter().zip([first, last]) {
            let mut frame = ether(types, piece);
            if types.len() > 1 {
                // The innermost tag's id.
                let at = 14 + (types.len() - 2) * 4 + 1;
                frame[at] = id;
            }
            let packet = Packet::parse(&frame, Layer::Ethernet, beside, &NONE).unwrap();
            any |= whole(reassembler.push(&packet, &NONE, 0, Nanos(0))).is_some();
        }
        any
    };
    let plain: &[u16] = &[0x0800];
    let (once, twice): (&[u16], &[u16]) = (&[0x8100, 0x0800], &[0x88a8, 0x8100, 0x0800]);
    assert!(joins((plain, None, 0), (plain, None, 0)));
    assert!(joins((plain, Some(7), 0), (plain, Some(0xe007), 0)), "priorities may differ");
    assert!(!joins((plain, Some(7), 0), (plain, Some(8), 0)));
    assert!(!joins((plain, Some(7), 0), (plain, None, 0)));
    assert!(joins((once, None, 3), (once, None, 3)));
    assert!(!joins((once, None, 3), (once, None, 4)));
    assert!(!joins((once, None, 3), (plain, None, 0)));
    assert!(joins((twice, None, 3), (twice, None, 3)));
    assert!(!joins((twice, None, 3), (twice, None, 4)));
}

#[test]
fn overlaps_refuse_the_packet_until_its_time_is_over() {
    for packet in datagrams(100) {
        let body = &packet[body_at(&packet)..];
        let part =
            |from: usize, to: usize| piece(&packet, 1, from, &body[from..to], to < body.len());
        for (from, to) in [(16, 40), (0, 40), (16, 32), (32, 48), (24, 32), (32, 40), (24, 40)] {
            let mut reassembler = Reassembler::new(Limits::default());
            assert!(held(push(&mut reassembler, &part(0, 16))));
            assert!(held(push(&mut reassembler, &part(24, 40))), "with a gap");
            assert!(held(push(&mut reassembler, &part(40, 48))), "neighbours do not overlap");
            let mut overlapping = part(from, to);
            if (from, to) == (24, 40) {
                // The same position with other bytes.
                *overlapping.last_mut().unwrap() ^= 1;
            }
            let why = dropped(push(&mut reassembler, &overlapping));
            assert_eq!(why, Some(FragmentDrop::Overlap), "{from}..{to}");
            assert_eq!(reassembler.stats().bytes, 0, "nothing of it is kept");
            for (from, to) in [(0, 24), (24, 40), (40, 108)] {
                let why = dropped(push_at(&mut reassembler, &part(from, to), 0, at(29)));
                assert_eq!(why, Some(FragmentDrop::Refused));
            }
            assert!(held(push_at(&mut reassembler, &part(0, 24), 0, at(30))), "its time is over");
            let stats = reassembler.stats();
            assert_eq!((stats.overlap, stats.refused, stats.packets), (1, 3, 1));
        }
    }
}

#[test]
fn an_exact_repetition_is_only_dropped() {
    for packet in datagrams(100) {
        let cut = pieces(&packet, 1, &[48]);
        let mut reassembler = Reassembler::new(Limits::default());
        assert!(held(push(&mut reassembler, &cut[0])));
        assert_eq!(dropped(push(&mut reassembler, &cut[0])), Some(FragmentDrop::Duplicate));
        assert!(whole(push(&mut reassembler, &cut[1])).is_some());
        assert_eq!(reassembler.stats().duplicate, 1);
    }
}

#[test]
fn pieces_agree_about_the_end() {
    for packet in datagrams(100) {
        let part =
            |from: usize, to: usize, more| piece(&packet, 1, from, &vec![1; to - from], more);
        for (first, second) in [
            ((48, 56, false), (64, 72, true)),
            ((48, 56, false), (56, 60, false)),
            ((64, 72, true), (48, 56, false)),
            ((64, 72, false), (48, 56, false)),
        ] {
            let mut reassembler = Reassembler::new(Limits::default());
            assert!(held(push(&mut reassembler, &part(first.0, first.1, first.2))));
            let why = dropped(push(&mut reassembler, &part(second.0, second.1, second.2)));
            assert_eq!(why, Some(FragmentDrop::Ends), "{first:?} {second:?}");
            let why = dropped(push(&mut reassembler, &part(0, 24, true)));
            assert_eq!(why, Some(FragmentDrop::Refused));
            assert_eq!(reassembler.stats().ends, 1);
        }
    }
}

#[test]
fn pieces_that_cannot_be_are_dropped_alone() {
    for packet in datagrams(100) {
        let mut reassembler = Reassembler::new(Limits::default());
        let body = &packet[body_at(&packet)..];
        let uneven = piece(&packet, 1, 0, &body[..30], true);
        assert_eq!(dropped(push(&mut reassembler, &uneven)), Some(FragmentDrop::Uneven));
        let empty = piece(&packet, 1, 16, &[], true);
        assert_eq!(dropped(push(&mut reassembler, &empty)), Some(FragmentDrop::Empty));
        let room = if body_at(&packet) == 20 { 65_515 - 65_504 } else { 65_535 - 65_528 };
        let last = if body_at(&packet) == 20 { 65_504 } else { 65_528 };
        let long = piece(&packet, 1, last, &vec![0; room + 1], false);
        assert_eq!(dropped(push(&mut reassembler, &long)), Some(FragmentDrop::TooLong));
        assert_eq!(reassembler.stats().packets, 0, "none of them began a packet");
        let longest = piece(&packet, 1, last, &vec![0; room], false);
        assert!(held(push(&mut reassembler, &longest)));
        let mut rest = pieces(&packet, 2, &[48]);
        assert!(held(push(&mut reassembler, &rest.remove(0))));
        let parsed = Packet::parse(&rest[0], Layer::Ip, None, &NONE).unwrap();
        for vnet in [
            VnetHeader { needs_csum: true, ..NONE },
            VnetHeader { gso: Gso::UdpL4, gso_size: 8, ..NONE },
        ] {
            let why = dropped(reassembler.push(&parsed, &vnet, 0, Nanos(0)));
            assert_eq!(why, Some(FragmentDrop::Offload));
        }
        assert!(whole(push(&mut reassembler, &rest[0])).is_some(), "its packet was not refused");
        let stats = reassembler.stats();
        assert_eq!((stats.uneven, stats.empty, stats.too_long, stats.offload), (1, 1, 1, 2));
    }
}

#[test]
fn options_of_the_first_piece_count_against_the_longest() {
    let [packet, _] = datagrams(100);
    let mut reassembler = Reassembler::new(Limits { source_bytes: 1 << 20, ..Limits::default() });
    // With a header of 20 bytes in all fragments but the first, the packet fits; with the first fragment's options it
    // does not.
    let mut first = piece(&packet, 1, 0, &[0, 1, 0, 2, 255, 255, 0, 0], true);
    first.splice(20..20, [1; 40]);
    first[0] = 0x4f;
    first[3] += 40;
    fix_v4(&mut first);
    let middle = piece(&packet, 1, 8, &vec![0; 65_496], true);
    let last = piece(&packet, 1, 65_504, &[0; 11], false);
    assert!(held(push(&mut reassembler, &middle)));
    assert!(held(push(&mut reassembler, &last)));
    assert_eq!(dropped(push(&mut reassembler, &first)), Some(FragmentDrop::TooLong));
    assert_eq!(dropped(push(&mut reassembler, &last)), Some(FragmentDrop::Refused));
    assert_eq!(reassembler.stats().bytes, 0);
}

#[test]
fn a_packet_has_so_many_pieces() {
    for packet in datagrams(200) {
        let cut = pieces(&packet, 1, &[24, 48, 72, 96]);
        let mut reassembler = Reassembler::new(Limits { pieces: 3, ..Limits::default() });
        for piece in &cut[..3] {
            assert!(held(push(&mut reassembler, piece)));
        }
        assert_eq!(dropped(push(&mut reassembler, &cut[3])), Some(FragmentDrop::TooMany));
        assert_eq!(dropped(push(&mut reassembler, &cut[4])), Some(FragmentDrop::Refused));
        assert_eq!(reassembler.stats().too_many, 1);
    }
}

#[test]
fn a_source_has_so_many_bytes() {
    for packet in datagrams(200) {
        let cost = pieces(&packet, 0, &[104])[0].len() + super::PIECE_COST;
        let limits = Limits { source_bytes: 2 * cost, ..Limits::default() };
        let mut reassembler = Reassembler::new(limits);
        assert!(held(push(&mut reassembler, &pieces(&packet, 1, &[104])[0])));
        assert!(held(push(&mut reassembler, &pieces(&packet, 2, &[104])[0])));
        let third = &pieces(&packet, 3, &[104])[0];
        assert_eq!(dropped(push(&mut reassembler, third)), Some(FragmentDrop::SourceFull));
        let mut other = packet.clone();
        other[15] ^= 1;
        assert!(held(push(&mut reassembler, &pieces(&other, 1, &[104])[0])), "another source");
        if body_at(&packet) == 40 {
            let mut neighbour = packet.clone();
            neighbour[23] ^= 1;
            let why = dropped(push(&mut reassembler, &pieces(&neighbour, 1, &[104])[0]));
            assert_eq!(why, Some(FragmentDrop::SourceFull), "of the same /64");
        }
        let last = &pieces(&packet, 1, &[104])[1];
        assert_eq!(dropped(push(&mut reassembler, last)), Some(FragmentDrop::SourceFull));
        let third = &pieces(&packet, 3, &[104])[0];
        assert!(held(push(&mut reassembler, third)), "what it was refused is free again");
    }
}

#[test]
fn the_oldest_makes_room() {
    for packet in datagrams(200) {
        let first = |id| pieces(&packet, id, &[104]).remove(0);
        let last = |id| pieces(&packet, id, &[104]).remove(1);
        let cost = first(0).len() + super::PIECE_COST;
        for limits in [
            Limits { packets: 2, ..Limits::default() },
            Limits { bytes: 2 * cost + cost / 2, ..Limits::default() },
        ] {
            let mut reassembler = Reassembler::new(limits);
            for id in 1..=3 {
                assert!(held(push(&mut reassembler, &first(id))));
            }
            let stats = reassembler.stats();
            assert_eq!((stats.packets, stats.bytes, stats.evicted), (2, 2 * cost, 1));
            assert!(whole(push(&mut reassembler, &last(3))).is_some());
            assert!(held(push(&mut reassembler, &last(1))), "its first piece is gone");
        }
        let mut reassembler = Reassembler::new(Limits { bytes: cost - 1, ..Limits::default() });
        assert_eq!(dropped(push(&mut reassembler, &first(1))), Some(FragmentDrop::Full));
        let mut reassembler = Reassembler::new(Limits { packets: 0, ..Limits::default() });
        assert_eq!(dropped(push(&mut reassembler, &first(1))), Some(FragmentDrop::Full));
        assert_eq!(reassembler.stats().full, 1);
    }
}

#[test]
fn refusals_are_remembered_within_a_bound() {
    let [packet, _] = datagrams(200);
    let mut reassembler = Reassembler::new(Limits { packets: 4, ..Limits::default() });
    for id in 0..100 {
        assert!(held(push(&mut reassembler, &pieces(&packet, id, &[104])[0])));
        let overlapping = &pieces(&packet, id, &[48])[0];
        assert_eq!(dropped(push(&mut reassembler, overlapping)), Some(FragmentDrop::Overlap));
        assert!(reassembler.packets.len() <= 4 && reassembler.refused.len() <= 4);
    }
    let newest = &pieces(&packet, 99, &[104])[1];
    assert_eq!(dropped(push(&mut reassembler, newest)), Some(FragmentDrop::Refused));
}

#[test]
fn packets_have_so_much_time() {
    for packet in datagrams(200) {
        let cut = pieces(&packet, 1, &[48, 104]);
        let mut reassembler = Reassembler::new(Limits::default());
        assert!(held(push_at(&mut reassembler, &cut[0], 0, at(5))));
        assert!(held(push_at(&mut reassembler, &cut[1], 0, at(20))));
        // The first fragment decides.
        assert!(held(push_at(&mut reassembler, &cut[2], 0, at(35))));
        assert_eq!(reassembler.stats().late, 1);
        reassembler.expire(at(35).after(Duration::from_secs(29)));
        assert_eq!(reassembler.stats().packets, 1);
        reassembler.expire(at(35).after(Duration::from_secs(30)));
        let stats = reassembler.stats();
        assert_eq!((stats.packets, stats.bytes, stats.late), (0, 0, 2));
        assert!(reassembler.sources.is_empty() && reassembler.packets.is_empty());
    }
}

/// Generates a packet, its cuts, and the order in which the fragments arrive.
fn shuffled() -> impl Strategy<Value = (Vec<u8>, Vec<Vec<u8>>)> {
    (any::<bool>(), 16usize..3000, proptest::collection::vec(3usize..400, 1..12)).prop_flat_map(
        |(v6, len, cuts)| {
            let packet = datagrams(len)[usize::from(v6)].clone();
            let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut * 8).collect();
            cuts.push(8);
            cuts.sort_unstable();
            let cut = pieces(&packet, 77, &cuts);
            (Just(packet), Just(cut).prop_shuffle())
        },
    )
}

proptest! {
    #[test]
    fn any_cut_in_any_order_comes_together((packet, cut) in shuffled()) {
        let mut reassembler = Reassembler::new(Limits::default());
        let (last, rest) = cut.split_last().unwrap();
        for piece in rest {
            prop_assert!(held(push(&mut reassembler, piece)));
        }
        let all = whole(push(&mut reassembler, last)).expect("whole");
        prop_assert_eq!(&all, &with_id(&packet, 77));
        let parsed = Packet::parse(&all, Layer::Ip, None, &NONE).expect("parses");
        prop_assert!(!parsed.is_fragment() && parsed.checksum_ok());
        prop_assert_eq!(reassembler.stats().bytes, 0);
    }

    #[test]
    fn nothing_comes_of_overlaps(
        (packet, cut) in shuffled(), at in 0usize..300, len in 1usize..40, place in any::<prop::sample::Index>(),
    ) {
        // One extra fragment somewhere. It overlaps an existing one. It must not be able to replace others, because the filter cannot
        // decide which are right, and those that arrived first are complete.
        let body = packet.len() - body_at(&packet);
        let start = 8 * (at % (body / 8)).max(3);
        let end = (start + len * 8).min(body);
        prop_assume!(start < end);
        let bounds = |bytes: &Vec<u8>| {
            let packet = Packet::parse(bytes, Layer::Ip, None, &NONE).expect("a packet");
            let fragment = packet.ip().and_then(|ip| ip.fragment).expect("a piece");
            let from = fragment.offset as usize;
            [from, from + packet.bytes.len() - fragment.data]
        };
        let bounds: Vec<usize> = cut.iter().flat_map(bounds).collect();
        prop_assume!(!bounds.contains(&start) || !bounds.contains(&end));
        let extra = piece(&packet, 77, start, &vec![0xee; end - start], end < body);
        // It must not replace some of them exactly, because it could complete the packet before they arrive.
        let bound = |offset: usize| {
            cut.iter().any(|bytes| {
                let parsed = Packet::parse(bytes, Layer::Ip, None, &NONE).unwrap();
                parsed.ip().unwrap().fragment.unwrap().offset as usize == offset
            })
        };
        prop_assume!(!bound(start) || !(bound(end) || end == body));
        let mut sent = cut.clone();
        // Not after the last fragment, because the packet is complete by then and the extra fragment would begin
        // another packet.
        sent.insert(place.index(cut.len()), extra);
        let mut reassembler = Reassembler::new(Limits::default());
        for bytes in &sent {
            let Ok(parsed) = Packet::parse(bytes, Layer::Ip, None, &NONE) else { continue };
            prop_assert!(whole(reassembler.push(&parsed, &NONE, 0, Nanos(0))).is_none());
        }
    }

    #[test]
    fn bounds_hold_whatever_comes(
        pushed in proptest::collection::vec(
            (any::<bool>(), 0u32..6, 0usize..20, 1usize..12, any::<bool>(), 0u8..4, 0u64..8), 1..200,
        ),
    ) {
        let limits = Limits {
            packets: 3, bytes: 2000, source_bytes: 900, pieces: 4, hold: Duration::from_secs(30),
        };
        let mut reassembler = Reassembler::new(limits);
        let mut now = 0;
        for (v6, id, offset, len, more, source, later) in pushed {
            now += later;
            let mut packet = datagrams(0)[usize::from(v6)].clone();
            packet[15] = source;
            let data = vec![0xab; len * 8 - usize::from(!more)];
            let bytes = piece(&packet, id, offset * 8, &data, more);
            let Ok(parsed) = Packet::parse(&bytes, Layer::Ip, None, &NONE) else { continue };
            if let Outcome::Whole(all) = reassembler.push(&parsed, &NONE, 0, at(now)) {
                let bytes = all.pieces().map(<[u8]>::len).sum::<usize>();
                prop_assert!(all.whole().len() <= bytes);
            }
            let stats = reassembler.stats();
            prop_assert!(stats.packets <= 3 && stats.bytes <= 2000);
            prop_assert!(reassembler.sources.values().all(|bytes| *bytes > 0 && *bytes <= 900));
            prop_assert_eq!(reassembler.sources.values().sum::<usize>(), stats.bytes);
            let cost = reassembler.packets.values().map(super::PartialPacket::cost).sum::<usize>();
            prop_assert_eq!(cost, stats.bytes);
            prop_assert_eq!(
                reassembler.packets.len(), reassembler.held.len() + reassembler.refused.len()
            );
            prop_assert!(reassembler.refused.len() <= 3);
        }
        reassembler.expire(at(now + 30));
        prop_assert!(reassembler.packets.is_empty() && reassembler.sources.is_empty());
    }
}
