//! Traffic in memory: formats, bulk transfers, loss, reordering and key changes.

use crate::common::*;
use adit_dataplane::loopback::LoopbackOutput;
use adit_dataplane::{DropReason, Histogram, Relay, Totals};
use adit_engine::command::{InnerMtu, KeySlot, PeerRates, Splice, SpliceId, SpliceLabel};
use adit_engine::{Command, Notice, PeerId, Rate};
use adit_wire::{Gso, VnetHeader};
use proptest::prelude::*;

/// Returns a TCP super-packet as a TUN device hands it out.
fn super_packet(payload: usize, size: u16) -> (VnetHeader, Vec<u8>) {
    let len = 40 + payload;
    let mut packet = vec![0x61u8; len];
    packet[..20].copy_from_slice(&[
        0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 8, 0, 2, 10, 8, 0, SERVER,
    ]);
    packet[2..4].copy_from_slice(&(len as u16).to_be_bytes());
    packet[20..40].copy_from_slice(&[
        0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0, 0, 0, 0,
    ]);
    let vnet = VnetHeader {
        needs_csum: true,
        gso: Gso::TcpV4,
        ecn: false,
        hdr_len: 40,
        gso_size: size,
        csum_start: 20,
        csum_offset: 16,
    };
    (vnet, packet)
}

#[test]
fn a_super_packet_arrives_as_one() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    let (vnet, packet) = super_packet(60_000, 1400);
    let mut trains = Vec::new();
    client.memory.seal(&vnet, &mut packet.clone(), |train, segment| {
        trains.push((train.to_vec(), segment));
    });
    assert_eq!(trains.len(), 1, "43 datagrams fit into one train");
    let mut writes = Vec::new();
    for (mut train, segment) in trains {
        server.memory.open(&link(2, 1000), segment, &mut train, |what| {
            if let LoopbackOutput::Tun(write) = what {
                let mut bytes = write.header().to_vec();
                write.bodies().for_each(|body| bytes.extend_from_slice(body));
                writes.push((VnetHeader::decode(write.vnet()), bytes));
            }
        });
    }
    assert_eq!(writes.len(), 1);
    assert_eq!(writes[0].0, vnet);
    assert_eq!(writes[0].1[40..], packet[40..]);
    let totals = server.memory.plane().totals();
    assert_eq!((totals.received.packets, totals.received.batches), (43, 1));
}

/// One end rekeys while packets flow both ways, with the commands in any order that the protocol allows: both ends install the new key for
/// receiving before either sends under it.
#[test]
fn a_rekey_under_traffic_loses_nothing() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    let (mut up, mut down) = (Vec::new(), Vec::new());
    let (mut sent, mut arrived) = (0, 0);
    for generation in 1..=7u8 {
        for step in 0..40 {
            match step {
                5 => server.apply(Command::InstallKey(
                    PeerId(2),
                    KeySlot::Secondary,
                    key(2, generation, true),
                )),
                9 => client.apply(Command::InstallKey(
                    PeerId(0),
                    KeySlot::Secondary,
                    key(2, generation, false),
                )),
                13 => client.apply(Command::SwapKeys(PeerId(0))),
                25 => server.apply(Command::SwapKeys(PeerId(2))),
                _ => {}
            }
            up.push(client.seal_one(&packet(2, SERVER, step)));
            down.push(server.seal_one(&packet(SERVER, 2, step)));
            sent += 2;
            // Delays a few packets, so that both keys are in flight at once.
            if step % 4 == 3 {
                for sealed in up.drain(..).rev() {
                    arrived += server.open(link(2, 1000), &sealed).len();
                }
                for sealed in down.drain(..) {
                    arrived += client.open(link(200, 1194), &sealed).len();
                }
            }
        }
        server.apply(Command::DelKey(PeerId(2), KeySlot::Secondary));
        client.apply(Command::DelKey(PeerId(0), KeySlot::Secondary));
    }
    assert_eq!((arrived, server.all_drops(), client.all_drops()), (sent, 0, 0));
    let used: Vec<u8> = server
        .notices()
        .into_iter()
        .filter_map(|n| if let Notice::KeyFirstUse(_, id) = n { Some(id) } else { None })
        .collect();
    assert_eq!(used, [0, 1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn without_a_key_packets_are_dropped_and_counted() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    client.apply(Command::DelKey(PeerId(0), KeySlot::Primary));
    assert!(client.seal(&packet(2, SERVER, 1)).is_empty());
    assert_eq!(client.dropped(DropReason::NoKey), 1);
    server.apply(Command::SwapKeys(PeerId(2)));
    assert!(server.seal(&packet(SERVER, 2, 1)).is_empty());
    assert_eq!(server.dropped(DropReason::NoKey), 1);
}

#[test]
fn syns_are_clamped_in_both_directions() {
    let (mut server, [mut client]) = world(Relay::Kernel, [2]);
    let mtu = InnerMtu { mss4: 1300, mss6: 1280, largest: 0 };
    server.apply(Command::SetMtu(PeerId(2), mtu));
    let mut syn = vec![0u8; 44];
    syn[..20].copy_from_slice(&[0x45, 0, 0, 44, 0, 0, 0, 0, 64, 6, 0, 0, 10, 8, 0, 2, 10, 8, 0, 1]);
    syn[32..34].copy_from_slice(&[0x60, 2]);
    syn[40..44].copy_from_slice(&[2, 4, 5, 0xb4]);
    let sealed = client.seal_one(&syn);
    let out = server.open(link(2, 1000), &sealed);
    assert_eq!(out[0][42..44], 1300u16.to_be_bytes(), "received");
    syn[15] = SERVER;
    syn[19] = 2;
    let sealed = server.seal_one(&syn);
    let out = client.open(link(200, 1194), &sealed);
    assert_eq!(out[0][42..44], 1300u16.to_be_bytes(), "sent");
}

/// A limit in one direction neither affects the other direction nor stops pings, and a forged packet does not use it up.
#[test]
fn packets_beyond_a_peers_rate_are_dropped_and_counted() {
    let (mut server, [mut client]) = world_of(End::frozen, Relay::Kernel, [2]);
    let one = packet(2, SERVER, 1).len() as u64;
    let limit = Some(Rate::per_second(10 * one));
    let received = PeerRates { received: limit, sent: None };
    server.apply(Command::SetRates(PeerId(2), received));
    for _ in 0..100 {
        let mut forged = client.seal_one(&packet(2, SERVER, 1));
        *forged.last_mut().unwrap() ^= 1;
        assert!(server.open(link(2, 1000), &forged).is_empty());
    }
    let up = |server: &mut End, client: &mut End| {
        let sealed = client.seal_one(&packet(2, SERVER, 1));
        server.open(link(2, 1000), &sealed).len()
    };
    let passed: usize = (0..30).map(|_| up(&mut server, &mut client)).sum();
    assert_eq!((passed, server.dropped(DropReason::RateLimited)), (10, 20));
    assert_eq!(server.received(2), 30, "they were received, so the peer is alive");
    assert_eq!(server.seal(&packet(SERVER, 2, 1)).len(), 1);

    let sent = PeerRates { received: None, sent: limit };
    server.apply(Command::SetRates(PeerId(2), sent));
    assert_eq!(up(&mut server, &mut client), 1);
    let passed: usize = (0..30).map(|_| server.seal(&packet(SERVER, 2, 1)).len()).sum();
    assert_eq!((passed, server.dropped(DropReason::RateLimited)), (10, 40));
    server.apply(Command::SetRates(PeerId(2), PeerRates::default()));
    assert_eq!(server.seal(&packet(SERVER, 2, 1)).len(), 1);
}

proptest! {
    /// Whatever the link does, each packet arrives at most once and unchanged, and every packet that came within the
    /// window arrives.
    #[test]
    fn loss_duplicates_and_reorder(
        fates in proptest::collection::vec((0u8..10, 0usize..40), 1..150),
    ) {
        let (mut server, [mut client]) = world(Relay::Kernel, [2]);
        let mut wire: Vec<(usize, usize, Vec<u8>)> = Vec::new();
        for (i, (fate, delay)) in fates.iter().enumerate() {
            let mut inner = packet(2, SERVER, 0);
            inner[60..64].copy_from_slice(&(i as u32).to_be_bytes());
            let sealed = client.seal_one(&inner);
            match fate {
                0 => {}
                1 => wire.extend([(i, i, sealed.clone()), (i + delay, i, sealed)]),
                2..4 => wire.push((i + delay, i, sealed)),
                _ => wire.push((i, i, sealed)),
            }
        }
        wire.sort_by_key(|(at, _, _)| *at);
        let mut delivered = Vec::new();
        let mut expected: Vec<u32> = wire.iter().map(|(_, i, _)| *i as u32).collect();
        for (_, _, sealed) in &wire {
            for inner in server.open(link(2, 1000), sealed) {
                delivered.push(u32::from_be_bytes(inner[60..64].try_into().unwrap()));
            }
        }
        delivered.sort_unstable();
        expected.sort_unstable();
        expected.dedup();
        prop_assert_eq!(delivered, expected);
    }

    /// Datagrams that the kernel delivers one by one, and that are joined afterwards, have the fate of those in a train.
    #[test]
    fn gaps_between_datagrams_are_not_read(
        kinds in proptest::collection::vec(0u8..9, 1..60),
        cut in prop_oneof![Just(0usize), 0usize..132],
        last in 0usize..132,
        gap in 1usize..50,
        splices in any::<bool>(),
    ) {
        let servers = [(); 2].map(|()| {
            let (server, [client, _]) = world_of(End::frozen, Relay::Direct, [2, 3]);
            if splices {
                let id = SpliceId { from: PeerId(2), label: SpliceLabel::PeerId(77) };
                server.apply(Command::AddSplice(Splice::new(id, PeerId(3))));
            }
            (server, client)
        });
        let [(mut near, mut client), (mut far, _)] = servers;
        let mut datagrams: Vec<Vec<u8>> = Vec::new();
        for kind in kinds {
            let to = if kind == 0 { 3 } else { SERVER };
            let mut sealed = client.seal_one(&packet(2, to, kind));
            match kind {
                1 => sealed = datagrams.last().cloned().unwrap_or(sealed),
                2 => sealed[40] ^= 1,
                3 => sealed[0] = 2,
                4 => sealed[0] = 9,
                5 => sealed[1] = 7,
                6 => sealed[2..4].copy_from_slice(&77u16.to_be_bytes()),
                _ => {}
            }
            datagrams.push(sealed);
        }
        datagrams.iter_mut().for_each(|one| one.truncate(one.len() - cut));
        let len = datagrams[0].len();
        if let Some(end) = datagrams.last_mut() {
            end.truncate(len.saturating_sub(last).max(1));
        }
        let train = datagrams.concat();
        // What is between two datagrams looks like the next bytes of one.
        let behind = client.seal_one(&packet(2, SERVER, 0)).split_off(len.min(4)).repeat(2);
        let apart = datagrams.join(&behind[..gap]);
        let expected = near.open_buffer(link(2, 1000), len, &train);
        let got = far.open_apart(link(2, 1000), (len, len + gap), &apart);
        prop_assert_eq!(got, expected);
        let totals = [&near, &far].map(|end| end.memory.plane().totals());
        let received = totals.each_ref().map(|totals| totals.received.batches);
        prop_assert_eq!(received, [1, datagrams.len() as u64], "trains and single datagrams");
        let others = totals.map(|totals| Totals { received: Histogram::default(), ..totals });
        prop_assert_eq!(format!("{:?}", others[0]), format!("{:?}", others[1]));
        prop_assert_eq!(far.upcalls_taken(), near.upcalls_taken());
    }
}

#[test]
fn a_destination_without_a_route_is_reported_if_the_plane_is_asked_for_it() {
    let (mut server, [_client]) = world(Relay::Kernel, [2]);
    server.notices();
    assert!(server.seal(&packet(SERVER, 77, 1)).is_empty());
    assert!(server.notices().is_empty());
    server.memory.plane().report_unrouted();
    for _ in 0..3 {
        assert!(server.seal(&packet(SERVER, 77, 1)).is_empty());
    }
    assert_eq!(server.notices(), [Notice::Unrouted([10, 8, 0, 77].into())], "once");
    assert_eq!(server.dropped(DropReason::NoRoute), 4);
    let mut multicast = packet(SERVER, 77, 1);
    multicast[16..20].copy_from_slice(&[224, 0, 0, 1]);
    assert!(server.seal(&multicast).is_empty());
    assert!(server.notices().is_empty());
}
