//! Tests of several channels to one remote end.

use std::collections::BTreeMap;

use adit_dataplane::{DropReason, Relay};
use adit_engine::command::{
    Counters, Float, KeySlot, MAX_CHANNELS, PeerSpec, Splice, SpliceId, SpliceLabel,
};
use adit_engine::{Command, Notice, PeerId};

use crate::common::{End, key, layout, link, packet, spec};

/// The ids of the near end's channels, which the far end writes into packets, and the reverse.
const NEAR: [u32; 4] = [1, 2, 3, 4];
const FAR: [u32; 4] = [11, 12, 13, 14];

/// The last byte of the tunnel address at the near end, and at the far end.
const HERE: u8 = 2;
const THERE: u8 = 1;

/// Creates an end with a channel for each id, in that order.
fn end(ids: &[u32], theirs: &[u32], is_far: bool) -> End {
    end_of(End::frozen, ids, theirs, is_far)
}

fn end_of(new: fn(Relay, bool) -> End, ids: &[u32], theirs: &[u32], is_far: bool) -> End {
    let end = new(Relay::Kernel, false);
    let (host, net) = if is_far { (HERE, "10.8.0.2/32") } else { (THERE, "10.8.0.1/32") };
    for (number, (id, wire_id)) in ids.iter().zip(theirs).enumerate() {
        let channel_of = (number > 0).then_some(PeerId(ids[0]));
        let layout = layout(*wire_id);
        let spec = PeerSpec { layout, float: Float::Accept, channel_of, ..spec(link(host, 1194)) };
        end.apply(Command::AddPeer(PeerId(*id), spec));
        let key = key(number as u8 + 1, 0, is_far);
        end.apply(Command::InstallKey(PeerId(*id), KeySlot::Primary, key));
    }
    end.apply(Command::SetRoutes(PeerId(ids[0]), vec![net.parse().unwrap()]));
    end
}

/// Creates two ends with this many channels between them.
fn ends(channels: usize) -> (End, End) {
    (
        end(&NEAR[..channels], &FAR[..channels], false),
        end(&FAR[..channels], &NEAR[..channels], true),
    )
}

/// Builds a packet of a TCP flow from a port at the near end, or an answer, with the ends exchanged.
fn tcp(port: u16, number: u16, is_answer: bool) -> Vec<u8> {
    let (from, to) = if is_answer { (THERE, HERE) } else { (HERE, THERE) };
    let mut tcp = packet(from, to, 0);
    tcp[9] = 6;
    tcp[10..12].fill(0);
    let sum = adit_wire::checksum::Sum::new().bytes(&tcp[..20]).finish();
    tcp[10..12].copy_from_slice(&sum.to_be_bytes());
    let (near, far) = (port.to_be_bytes(), 443u16.to_be_bytes());
    let ports = if is_answer { [far, near] } else { [near, far] };
    tcp[20..24].copy_from_slice(ports.as_flattened());
    tcp[32] = 0x50;
    tcp[40..42].copy_from_slice(&number.to_be_bytes());
    tcp
}

fn counters(end: &End, id: u32) -> Counters {
    end.memory.plane().counters(PeerId(id)).unwrap()
}

/// Seals a packet. Returns the datagram, and the number of the channel that it took.
fn seal(end: &mut End, ids: &[u32], packet: &[u8]) -> (usize, Vec<u8>) {
    let sent = |end: &End| ids.iter().map(|id| counters(end, *id).tx_packets).collect::<Vec<_>>();
    let before = sent(end);
    let sealed = end.seal_one(packet);
    let after = sent(end);
    let grown: Vec<usize> = (0..ids.len()).filter(|at| after[*at] > before[*at]).collect();
    assert_eq!(grown.len(), 1, "one channel");
    (grown[0], sealed)
}

#[test]
fn flows_of_a_tap_device_spread_too() {
    let link_layer = |from: u8, to: u8, packet: &[u8]| {
        [&[2, 0, 0, 0, 0, to, 2, 0, 0, 0, 0, from, 8, 0][..], packet].concat()
    };
    let (mut near, mut far) = (
        end_of(End::ethernet, &NEAR[..2], &FAR[..2], false),
        end_of(End::ethernet, &FAR[..2], &NEAR[..2], true),
    );
    let mut of_channel = [0; 2];
    // The station at the far end becomes known to the near one.
    let hello = far.seal_one(&link_layer(THERE, HERE, &tcp(1000, 0, true)));
    assert_eq!(near.open(link(THERE, 1194), &hello).len(), 1);
    for port in 1000..1064 {
        let frame = link_layer(HERE, THERE, &tcp(port, 0, false));
        let (channel, sealed) = seal(&mut near, &NEAR[..2], &frame);
        of_channel[channel] += 1;
        assert_eq!(far.open(link(HERE, 1194), &sealed), [frame]);
        let answer = link_layer(THERE, HERE, &tcp(port, 1, true));
        let (back, sealed) = seal(&mut far, &FAR[..2], &answer);
        assert_eq!(back, channel, "both directions take one channel");
        assert_eq!(near.open(link(THERE, 1194), &sealed), [answer]);
    }
    assert!(of_channel.iter().all(|flows| *flows > 10), "{of_channel:?}");
    assert_eq!((near.all_drops(), far.all_drops()), (0, 0));
}

#[test]
fn a_flow_keeps_its_channel_and_flows_spread() {
    for channels in [2, 3, 4] {
        let (mut near, mut far) = ends(channels);
        let mut of_channel = vec![0; channels];
        for port in 1000..1064 {
            let (channel, sealed) = seal(&mut near, &NEAR[..channels], &tcp(port, 0, false));
            of_channel[channel] += 1;
            assert_eq!(far.open(link(HERE, 1194), &sealed), [tcp(port, 0, false)]);
            for number in 1..4 {
                let (again, _) = seal(&mut near, &NEAR[..channels], &tcp(port, number, false));
                assert_eq!(again, channel);
            }
            let (answer, sealed) = seal(&mut far, &FAR[..channels], &tcp(port, 0, true));
            assert_eq!(answer, channel, "the other direction");
            assert_eq!(near.open(link(THERE, 1194), &sealed), [tcp(port, 0, true)]);
        }
        assert!(of_channel.iter().all(|flows| *flows > 64 / channels / 3), "{of_channel:?}");
        assert_eq!((near.all_drops(), far.all_drops()), (0, 0));
    }
}

#[test]
fn packets_of_a_flow_arrive_in_order_however_much_the_channels_differ_in_delay() {
    let (mut near, mut far) = ends(4);
    let mut in_flight: BTreeMap<usize, Vec<Vec<u8>>> = BTreeMap::new();
    for number in 0..20 {
        for port in 1000..1032 {
            let (channel, sealed) = seal(&mut near, &NEAR, &tcp(port, number, false));
            in_flight.entry(channel).or_default().push(sealed);
        }
    }
    assert_eq!(in_flight.len(), 4);
    let mut last: BTreeMap<u16, u16> = BTreeMap::new();
    // The last channel is the fastest.
    for sealed in in_flight.values().rev().flatten() {
        for packet in far.open(link(HERE, 1194), sealed) {
            let of = |at: usize| u16::from_be_bytes([packet[at], packet[at + 1]]);
            let former = last.insert(of(20), of(40));
            assert_eq!(former.map_or(0, |former| former + 1), of(40), "port {}", of(20));
        }
    }
    assert!(last.len() == 32 && last.values().all(|number| *number == 19));
}

#[test]
fn a_channel_without_a_key_costs_only_its_own_flows() {
    let (mut near, mut far) = ends(4);
    let channels: Vec<usize> =
        (1000..1032).map(|port| seal(&mut near, &NEAR, &tcp(port, 0, false)).0).collect();
    for (lost, id) in NEAR.into_iter().enumerate() {
        near.apply(Command::DelKey(PeerId(id), KeySlot::Primary));
        for (port, channel) in (1000..1032).zip(&channels) {
            let sealed = near.seal(&tcp(port, 1, false));
            assert_eq!(sealed.len(), usize::from(*channel > lost), "channel {channel}");
            for sealed in sealed {
                assert_eq!(far.open(link(HERE, 1194), &sealed).len(), 1);
            }
        }
    }
    let flows = |lost: usize| channels.iter().filter(|channel| **channel <= lost).count() as u64;
    assert_eq!(near.dropped(DropReason::NoKey), (0..4).map(flows).sum::<u64>());
}

#[test]
fn each_channel_has_a_replay_window_of_its_own() {
    let (mut near, mut far) = ends(2);
    let mut sealed: BTreeMap<usize, Vec<u8>> = BTreeMap::new();
    for port in 1000..1032 {
        let (channel, packet) = seal(&mut near, &NEAR[..2], &tcp(port, 0, false));
        sealed.entry(channel).or_insert(packet);
    }
    for (at, packet) in sealed.values().enumerate() {
        // Both packets have the first packet id of their keys.
        assert_eq!(far.open(link(HERE, 1194), packet).len(), 1);
        assert_eq!(far.open(link(HERE, 1194), packet).len(), 0);
        assert_eq!(far.dropped(DropReason::Replayed), at as u64 + 1);
    }
    assert_eq!(sealed.len(), 2);
}

#[test]
fn all_channels_have_the_first_ones_routes_in_both_directions() {
    let (mut near, mut far) = ends(4);
    far.apply(Command::SetRoutes(PeerId(FAR[0]), vec!["10.8.0.9/32".parse().unwrap()]));
    for port in 1000..1032 {
        let (_, sealed) = seal(&mut near, &NEAR, &tcp(port, 0, false));
        assert_eq!(far.open(link(HERE, 1194), &sealed).len(), 0);
    }
    assert_eq!(far.dropped(DropReason::SourceSpoofed), 32);
    assert!(far.seal(&tcp(1000, 0, true)).is_empty());
    assert_eq!(far.dropped(DropReason::NoRoute), 1);
    far.apply(Command::SetRoutes(PeerId(FAR[0]), vec!["10.8.0.2/32".parse().unwrap()]));
    for port in 1000..1032 {
        let (_, sealed) = seal(&mut near, &NEAR, &tcp(port, 0, false));
        assert_eq!(far.open(link(HERE, 1194), &sealed).len(), 1);
    }
}

#[test]
fn flows_of_a_removed_channel_take_the_others_until_the_first_one_goes() {
    let (mut near, _) = ends(4);
    near.apply(Command::DelPeer(PeerId(NEAR[2])));
    let left = [NEAR[0], NEAR[1], NEAR[3]];
    let mut seen = [0; 3];
    (1000..1032).for_each(|port| seen[seal(&mut near, &left, &tcp(port, 0, false)).0] += 1);
    assert!(seen.iter().all(|flows| *flows > 0), "{seen:?}");
    near.apply(Command::DelPeer(PeerId(NEAR[1])));
    near.apply(Command::DelPeer(PeerId(NEAR[3])));
    for port in 1000..1032 {
        assert_eq!(seal(&mut near, &NEAR[..1], &tcp(port, 0, false)).0, 0);
    }
    let (mut near, _) = ends(4);
    near.apply(Command::DelPeer(PeerId(NEAR[0])));
    assert!((1000..1032).all(|port| near.seal(&tcp(port, 0, false)).is_empty()));
    assert_eq!(near.dropped(DropReason::NoRoute), 32);
}

#[test]
fn the_number_of_channels_is_bounded() {
    let mut end = End::frozen(Relay::Kernel, false);
    let add = |end: &End, id: u32| {
        let channel_of = (id > 1).then_some(PeerId(1));
        let spec = PeerSpec { channel_of, layout: layout(id), ..spec(link(THERE, 1194)) };
        end.apply(Command::AddPeer(PeerId(id), spec));
    };
    let most = MAX_CHANNELS as u32;
    (1..=most).for_each(|id| add(&end, id));
    assert_eq!(end.notices().len(), 0);
    add(&end, most + 1);
    let refused = Notice::PeerGone(PeerId(most + 1), Counters::default());
    assert_eq!(end.notices(), std::slice::from_ref(&refused));
    assert!(end.memory.plane().counters(PeerId(most + 1)).is_none());
    add(&end, most);
    assert_eq!(end.notices().len(), 0, "in place of the former one");
    end.apply(Command::DelPeer(PeerId(2)));
    end.notices();
    add(&end, most + 1);
    assert_eq!(end.notices().len(), 0, "there is room again");
}

#[test]
fn the_address_remains_the_first_channels_wherever_all_of_them_go() {
    let (mut relay, _) = ends(3);
    let receiver = PeerId(30);
    relay.apply(Command::AddPeer(receiver, spec(link(100, 1194))));
    let id = SpliceId { from: PeerId(NEAR[0]), label: SpliceLabel::PeerId(77) };
    relay.apply(Command::AddSplice(Splice::new(id, receiver)));
    let other = End::frozen(Relay::Kernel, false);
    other
        .apply(Command::AddPeer(PeerId(5), PeerSpec { layout: layout(77), ..spec(link(9, 1194)) }));
    other.apply(Command::InstallKey(PeerId(5), KeySlot::Primary, key(6, 0, false)));
    other.apply(Command::SetRoutes(PeerId(5), vec!["0.0.0.0/0".parse().unwrap()]));
    let mut other = other;
    let mut is_relayed = |relay: &mut End, from| {
        let sealed = other.seal_one(&packet(HERE, THERE, 1));
        relay.relay_buffer(link(from, 1194), sealed.len(), &sealed).len() == 1
    };
    assert!(is_relayed(&mut relay, THERE));
    for at in [50, 51] {
        for channel in &NEAR[..3] {
            relay.apply(Command::SetLink(PeerId(*channel), link(at, 1194)));
            assert_eq!(relay.memory.plane().link(PeerId(*channel)), Some(link(at, 1194)));
        }
        assert!(is_relayed(&mut relay, at) && !is_relayed(&mut relay, THERE));
    }
    relay.apply(Command::DelPeer(PeerId(NEAR[1])));
    assert!(is_relayed(&mut relay, 51));
}

#[test]
fn a_channel_that_floats_takes_no_address() {
    let (near, far) = ends(2);
    let (mut near, mut far) = (near, far);
    for (number, id) in FAR[..2].iter().enumerate() {
        let channel_of = (number > 0).then_some(PeerId(FAR[0]));
        let layout = layout(NEAR[number]);
        far.apply(Command::AddPeer(
            PeerId(*id),
            PeerSpec { layout, channel_of, ..spec(link(HERE, 1194)) },
        ));
        let key = key(number as u8 + 1, 0, true);
        far.apply(Command::InstallKey(PeerId(*id), KeySlot::Primary, key));
    }
    far.apply(Command::SetRoutes(PeerId(FAR[0]), vec!["10.8.0.2/32".parse().unwrap()]));
    far.apply(Command::AddPeer(PeerId(30), spec(link(60, 1194))));
    let further = (1000..1032).find_map(|port| {
        let (channel, sealed) = seal(&mut near, &NEAR[..2], &tcp(port, 0, false));
        (channel == 1).then_some((port, sealed))
    });
    let (port, sealed) = further.unwrap();
    assert_eq!(far.open(link(60, 1194), &sealed).len(), 1);
    assert_eq!(far.dropped(DropReason::WrongAddress), 1, "the address of another peer");
    let (_, sealed) = seal(&mut near, &NEAR[..2], &tcp(port, 1, false));
    far.open(link(61, 1194), &sealed);
    let at = |far: &End, id: u32| far.memory.plane().link(PeerId(id));
    assert_eq!(at(&far, FAR[1]), Some(link(61, 1194)));
    assert_eq!(at(&far, FAR[0]), Some(link(HERE, 1194)));
    // Nothing is left of it, so another peer may take the address.
    far.apply(Command::AddPeer(PeerId(31), spec(link(61, 1194))));
    far.apply(Command::DelPeer(PeerId(FAR[1])));
    let (_, sealed) = seal(&mut near, &NEAR[..2], &tcp(port, 2, false));
    assert_eq!(far.open(link(61, 1194), &sealed).len(), 0);
}

#[test]
fn floods_reach_each_remote_end_once() {
    let mut switch = End::ethernet(Relay::Direct, false);
    for (id, channel_of) in [(1, None), (2, Some(PeerId(1))), (3, None), (4, Some(PeerId(3)))] {
        let at = if id < 3 { link(1, 1194) } else { link(3, 1194) };
        let spec = PeerSpec { layout: layout(id), channel_of, ..spec(at) };
        switch.apply(Command::AddPeer(PeerId(id), spec));
        switch.apply(Command::InstallKey(PeerId(id), KeySlot::Primary, key(id as u8, 0, true)));
    }
    let mut frame = vec![0xff; 6];
    frame.extend([2, 0, 0, 0, 0, 9, 0x08, 0x06]);
    frame.extend([0; 28]);
    assert_eq!(switch.seal(&frame).len(), 2, "from the device");
    // From a peer, on its further channel.
    let mut client = End::ethernet(Relay::Kernel, true);
    client.apply(Command::AddPeer(
        PeerId(0),
        PeerSpec { layout: layout(2), ..spec(link(200, 1194)) },
    ));
    client.apply(Command::InstallKey(PeerId(0), KeySlot::Primary, key(2, 0, false)));
    let sealed = client.seal_one(&frame);
    let (device, peers) = switch.open_buffer(link(1, 1194), sealed.len(), &sealed);
    assert_eq!((device.len(), peers), (1, vec![(PeerId(3), frame)]));
}
