//! Two ends in memory: the sessions of two nodes of `adit-tinc`, which both a data plane and the node itself use.

use adit_dataplane::loopback::LoopbackOutput;
use adit_dataplane::{DropReason, HandedUp, Relay, Unpeered, Upcall};
use adit_engine::command::{Float, InnerMtu, KeySlot, Splice, SpliceId, SpliceLabel};
use adit_engine::{Instant, Link, Notice, PeerId, Random, SocketId};
use adit_tinc::keys::PrivateKey;
use adit_tinc::name::NodeId;
use adit_tinc::sptps::{CipherChoice, Datagram, Params, Role, WindowSize, data_label};
use adit_tinc_data::packet::{OVERHEAD, Packets};
use adit_tinc_data::{Command, DataKey, LoopbackPlane, PeerSpec, Upcalls};
use adit_wire::{Gso, VnetHeader};

/// The time in an end in switch mode.
const NOW: u64 = 700;

const PEER: PeerId = PeerId(7);
const ALICE: NodeId = NodeId([1; 6]);
const BOB: NodeId = NodeId([2; 6]);

struct End {
    plane: LoopbackPlane,
    upcalls: Upcalls,
    session: Datagram,
    own: NodeId,
    other: NodeId,
    relayed: bool,
    packets: Packets,
}

fn link(host: u8) -> Link {
    Link::datagram(SocketId(0), None, ([192, 0, 2, host], 655).into())
}

/// Returns the sessions of two nodes.
fn sessions(random: &mut Random) -> (Datagram, Datagram) {
    let params = |role, own: u8, other: u8| {
        let key = |seed: u8| std::sync::Arc::new(PrivateKey::from_seed(&[seed; 32]));
        Params {
            role,
            key: key(own),
            peer: key(other).public(),
            label: data_label("alice", "bob"),
            cipher: CipherChoice::default(),
        }
    };
    let window = WindowSize::new(16).unwrap();
    let (mut alice, kex) = Datagram::start(params(Role::Initiator, 1, 2), window, random);
    let (mut bob, bob_kex) = Datagram::start(params(Role::Responder, 2, 1), window, random);
    exchange(&mut alice, &mut bob, vec![kex], vec![bob_kex], random);
    (alice, bob)
}

/// Exchanges handshake records until there are no more.
fn exchange(
    alice: &mut Datagram,
    bob: &mut Datagram,
    mut to_bob: Vec<Vec<u8>>,
    mut to_alice: Vec<Vec<u8>>,
    random: &mut Random,
) {
    while !to_bob.is_empty() || !to_alice.is_empty() {
        for record in std::mem::take(&mut to_bob) {
            bob.receive_handshake(&record, random, &mut to_alice).unwrap();
        }
        for record in std::mem::take(&mut to_alice) {
            alice.receive_handshake(&record, random, &mut to_bob).unwrap();
        }
    }
}

impl End {
    fn new(session: Datagram, [own, other]: [NodeId; 2], [host, far]: [u8; 2]) -> Self {
        let (plane, upcalls) =
            LoopbackPlane::new(Relay::Kernel, false, true, || Instant::from_nanos(1)).unwrap();
        let end =
            Self { plane, upcalls, session, own, other, relayed: false, packets: Packets::Ip };
        let spec = PeerSpec { float: Float::Refuse, ..PeerSpec::plain(link(far)) };
        let net = |host: u8| format!("10.{host}.0.0/16").parse().unwrap();
        let plane = end.plane.plane();
        plane.hand_up(false);
        plane.set_unpeered_routes(Unpeered::Host, &[net(host)]);
        plane.apply(Command::AddPeer(PEER, spec));
        plane.apply(Command::SetRoutes(PEER, vec![net(far)]));
        end.install();
        end
    }

    /// Creates an end in switch mode. The longest frame to the other end is 1200 bytes.
    fn with_frames(session: Datagram, [own, other]: [NodeId; 2], [host, far]: [u8; 2]) -> Self {
        let (plane, upcalls) =
            LoopbackPlane::ethernet(Relay::Kernel, false, || Instant::from_nanos(NOW)).unwrap();
        let end =
            Self { plane, upcalls, session, own, other, relayed: false, packets: Packets::Frames };
        let spec = PeerSpec { float: Float::Refuse, ..PeerSpec::plain(link(far)) };
        let plane = end.plane.plane();
        plane.hand_up(false);
        plane.apply(Command::AddPeer(PEER, spec));
        let mtu = InnerMtu { mss4: 1000, mss6: 1000, largest: 1200 };
        plane.apply(Command::SetMtu(PEER, mtu));
        plane.set_stations(None, &[mac(host)]);
        plane.set_stations(Some(PEER), &[mac(far)]);
        end.install();
        end
    }

    /// Installs the session as it is now.
    fn install(&self) {
        let session = self.session.share().unwrap();
        let (own, peer, relayed) = (self.own, self.other, self.relayed);
        let key = DataKey { session, own, peer, relayed, packets: self.packets };
        self.plane.plane().apply(Command::InstallKey(PEER, KeySlot::Primary, Box::new(key)));
    }

    fn seal(&mut self, packet: &[u8]) -> Vec<u8> {
        let (mut copy, mut out) = (packet.to_vec(), Vec::new());
        self.plane.seal(&VnetHeader::default(), &mut copy, |train, _| out.push(train.to_vec()));
        assert_eq!(out.len(), 1);
        out.remove(0)
    }

    /// Opens a datagram from the other end. Returns the packets for the device.
    fn open(&mut self, datagram: &[u8]) -> Vec<Vec<u8>> {
        let far = if self.own == ALICE { 2 } else { 1 };
        let mut packets = Vec::new();
        self.plane.open(&link(far), datagram.len(), &mut datagram.to_vec(), |what| {
            if let LoopbackOutput::Tun(write) = what {
                packets.extend(write.packets().map(<[u8]>::to_vec));
            }
        });
        packets
    }

    /// Seals a record as the node does.
    fn seal_in_node(&mut self, kind: u8, data: &[u8]) -> Vec<u8> {
        let mut datagram = [NodeId::DIRECT.0, self.own.0].concat();
        self.session.seal(kind, data, &mut datagram).unwrap();
        datagram
    }

    fn upcalls(&mut self) -> Vec<Upcall<adit_tinc_data::Tinc>> {
        let mut upcalls = Vec::new();
        self.upcalls.drain(|upcall| {
            if !matches!(upcall, Upcall::Notice(Notice::KeyFirstUse(..))) {
                upcalls.push(upcall);
            }
        });
        upcalls
    }

    fn dropped(&self, reason: DropReason) -> u64 {
        self.plane.plane().totals().dropped(reason)
    }

    fn handed_up(&self) -> Vec<HandedUp> {
        let mut taken = Vec::new();
        self.plane.plane().take_handed_up(|one| taken.push(one));
        taken
    }
}

fn ends() -> (End, End) {
    let (alice, bob) = sessions(&mut Random::new([3; 32]));
    (End::new(alice, [ALICE, BOB], [1, 2]), End::new(bob, [BOB, ALICE], [2, 1]))
}

/// Returns a packet from the first network to the second one.
fn packet(from: u8, to: u8, fill: u8) -> Vec<u8> {
    let mut packet = vec![fill; 120];
    let header = [0x45, 0, 0, 120, 0, 0, 0, 0, 64, 253, 0, 0, 10, from, 0, 1, 10, to, 0, 1];
    packet[..20].copy_from_slice(&header);
    packet
}

#[test]
fn the_plane_and_the_node_understand_each_other() {
    let (mut alice, mut bob) = ends();
    let (there, back) = (packet(1, 2, 5), packet(2, 1, 6));
    let sealed = alice.seal(&there);
    assert_eq!(sealed.len(), there.len() + OVERHEAD);
    assert_eq!(sealed[..16], [&[0; 6][..], &ALICE.0, &2_u32.to_be_bytes()].concat());
    assert_eq!(bob.open(&sealed), std::slice::from_ref(&there));
    assert_eq!(alice.open(&bob.seal(&back)), std::slice::from_ref(&back));
    // A packet that one of them sealed is a packet for the other.
    let mut sealed = alice.seal(&there);
    assert_eq!(bob.session.open(&mut sealed[12..]), Ok((0, &there[..])));
    let sealed = alice.seal_in_node(0, &there);
    assert_eq!(bob.open(&sealed), [there]);
    assert!(alice.upcalls().is_empty() && bob.upcalls().is_empty());
    let counters = bob.plane.plane().counters(PEER).unwrap();
    assert_eq!((counters.rx_packets, counters.rx_bytes), (2, 2 * (120 + OVERHEAD as u64)));
    assert_eq!(bob.plane.plane().longest_received(PEER), Some(120 + OVERHEAD as u16));
}

/// No number is used twice, and no record is accepted twice, whichever of the two seals and opens.
#[test]
fn the_plane_and_the_node_share_their_numbers() {
    let (mut alice, mut bob) = ends();
    let number = |datagram: &[u8]| u32::from_be_bytes(datagram[12..16].try_into().unwrap());
    let numbers: Vec<u32> = (0..6)
        .map(|round| match round % 2 {
            0 => number(&alice.seal(&packet(1, 2, 0))),
            _ => number(&alice.seal_in_node(0, &packet(1, 2, 0))),
        })
        .collect();
    assert_eq!(numbers, (2..8).collect::<Vec<_>>());
    let (mut one, other) = (alice.seal(&packet(1, 2, 1)), alice.seal(&packet(1, 2, 2)));
    assert_eq!(bob.open(&other).len(), 1);
    assert!(bob.session.open(&mut other.clone()[12..]).is_err());
    assert!(bob.session.open(&mut one.clone()[12..]).is_ok());
    assert!(bob.open(&one).is_empty());
    assert_eq!(bob.dropped(DropReason::Replayed), 1);
    // A repetition costs no cryptography, so its tag does not matter.
    *one.last_mut().unwrap() ^= 1;
    assert!(bob.open(&one).is_empty());
    assert_eq!(bob.dropped(DropReason::Replayed), 2);
}

#[test]
fn the_window_is_that_of_the_session() {
    let (mut alice, mut bob) = ends();
    let sealed: Vec<_> = (0..200).map(|fill| alice.seal(&packet(1, 2, fill))).collect();
    let mut open = |at: usize| bob.open(&sealed[at]).len();
    assert_eq!((open(0), open(100), open(100)), (1, 1, 0));
    assert_eq!((open(127), open(1)), (1, 1), "128 records behind");
    assert_eq!((open(130), open(2), open(3)), (1, 0, 1));
    let (mut alice, mut bob) = ends();
    let sealed: Vec<_> = (0..200).map(|fill| alice.seal(&packet(1, 2, fill))).collect();
    let opened: Vec<usize> = (190..196).map(|at| bob.open(&sealed[at]).len()).collect();
    assert_eq!(opened, [0, 0, 0, 0, 1, 1], "too far ahead, until they come in a row");
}

#[test]
fn records_that_are_no_packets_are_messages() {
    let (mut alice, mut bob) = ends();
    let probe = vec![0; 1400];
    let sealed = alice.seal_in_node(4, &probe);
    assert!(bob.open(&sealed).is_empty());
    let record = [&[4][..], &probe].concat();
    assert_eq!(bob.upcalls(), [Upcall::Notice(Notice::InBand(PEER, record))]);
    // Neither a frame nor an empty packet is an IP packet.
    for (kind, data) in [(2, vec![9; 60]), (0, vec![]), (0, vec![0x55; 20])] {
        let sealed = alice.seal_in_node(kind, &data);
        assert!(bob.open(&sealed).is_empty());
        let record = [&[kind][..], &data].concat();
        assert_eq!(bob.upcalls(), [Upcall::Notice(Notice::InBand(PEER, record))]);
    }
    let sealed = alice.seal_in_node(0x45, &packet(1, 2, 0)[1..]);
    assert!(bob.open(&sealed).is_empty() && bob.upcalls().is_empty());
    assert_eq!(bob.dropped(DropReason::BadFraming), 1);
}

#[test]
fn what_is_not_a_direct_datagram_of_the_peer_is_the_control_planes() {
    let (mut alice, mut bob) = ends();
    let sealed = alice.seal(&packet(1, 2, 0));
    let mut relayed = sealed.clone();
    relayed[..6].copy_from_slice(&BOB.0);
    let mut foreign = sealed.clone();
    foreign[6..12].copy_from_slice(&[9; 6]);
    for datagram in [&relayed[..], &foreign, &sealed[..9], &[7]] {
        assert!(bob.open(datagram).is_empty());
        assert_eq!(bob.upcalls(), [Upcall::ControlPacket(link(1), datagram.to_vec())]);
    }
    // In one buffer, each comes up or not on its own.
    let train = [&relayed[..], &sealed, &foreign].concat();
    let mut packets = 0;
    bob.plane.open(&link(1), sealed.len(), &mut train.clone(), |_| packets += 1);
    assert_eq!((packets, bob.upcalls().len()), (1, 2));
    assert!(bob.open(&sealed[..32]).is_empty());
    assert_eq!(bob.dropped(DropReason::Short), 1);
}

#[test]
fn altered_datagrams_are_refused() {
    let (mut alice, mut bob) = ends();
    let sealed = alice.seal(&packet(1, 2, 0));
    for at in 12..sealed.len() {
        let mut altered = sealed.clone();
        altered[at] ^= 1;
        assert!(bob.open(&altered).is_empty(), "{at}");
        assert!(bob.handed_up().contains(&HandedUp::Unreadable(PEER)), "{at}");
    }
    assert_eq!(bob.dropped(DropReason::BadTag), sealed.len() as u64 - 12);
    assert_eq!(bob.open(&sealed).len(), 1, "refused ones change nothing");
}

#[test]
fn after_a_rekey_late_records_are_opened_with_their_own_key() {
    let mut random = Random::new([4; 32]);
    let (mut alice, mut bob) = ends();
    let late = alice.seal(&packet(1, 2, 1));
    let before = alice.session.share().unwrap();
    let kex = alice.session.rekey(&mut random).unwrap();
    assert!(alice.session.share().is_none(), "the order of records matters now");
    exchange(&mut alice.session, &mut bob.session, vec![kex], vec![], &mut random);
    assert!(!before.is_same(&alice.session.share().unwrap()));
    assert!(alice.session.share().unwrap().is_same(&alice.session.share().unwrap()));
    alice.install();
    let sealed = alice.seal(&packet(1, 2, 2));
    assert!(bob.open(&sealed).is_empty(), "under the old keys");
    bob.install();
    assert_eq!(bob.open(&sealed).len(), 1);
    assert_eq!(bob.open(&late).len(), 1);
    assert_eq!(alice.open(&bob.seal(&packet(2, 1, 3))).len(), 1);
}

#[test]
fn a_super_packet_leaves_as_one_train() {
    let (mut alice, mut bob) = ends();
    let mut packet = vec![0x61; 28 + 40_000];
    let len = u16::try_from(packet.len()).unwrap().to_be_bytes();
    packet[..28].copy_from_slice(&[
        0x45, 0, len[0], len[1], 0, 1, 0x40, 0, 64, 17, 0, 0, 10, 1, 0, 1, 10, 2, 0, 1, 0x12, 0x34,
        0, 80, 0, 0, 0, 0,
    ]);
    let vnet = VnetHeader {
        needs_csum: true,
        gso: Gso::UdpL4,
        gso_size: 1000,
        csum_start: 20,
        csum_offset: 6,
        ..VnetHeader::default()
    };
    let mut trains = Vec::new();
    alice.plane.seal(&vnet, &mut packet, |train, segment| trains.push((train.to_vec(), segment)));
    assert_eq!((trains.len(), trains[0].1), (1, 1028 + OVERHEAD));
    let mut arrived = 0;
    for (mut train, segment) in trains {
        bob.plane.open(&link(1), segment, &mut train, |what| {
            if let LoopbackOutput::Tun(write) = what {
                arrived += write.packets().count();
            }
        });
    }
    assert_eq!(arrived, 40);
}

fn ends_with_frames() -> (End, End) {
    let (alice, bob) = sessions(&mut Random::new([5; 32]));
    let alice = End::with_frames(alice, [ALICE, BOB], [1, 2]);
    (alice, End::with_frames(bob, [BOB, ALICE], [2, 1]))
}

/// Returns the address of a station, which begins like the record of a probe.
fn mac(number: u8) -> [u8; 6] {
    [4, 0, 0, 0, 0, number]
}

fn frame(from: u8, to: [u8; 6], len: usize) -> Vec<u8> {
    let mut frame = [&to[..], &mac(from), &[0x88, 0xb5]].concat();
    frame.resize(len, 7);
    frame
}

/// Passes a frame from the device to an end, which must hand it up.
fn comes_up(end: &mut End, frame: &[u8]) {
    let (mut copy, mut sealed) = (frame.to_vec(), 0);
    end.plane.seal(&VnetHeader::default(), &mut copy, |_, _| sealed += 1);
    assert_eq!((sealed, end.handed_up()), (0, vec![HandedUp::FromDevice(frame.to_vec())]));
}

#[test]
fn frames_travel_as_records_of_their_type() {
    let (mut alice, mut bob) = ends_with_frames();
    let there = frame(1, mac(2), 200);
    let mut sealed = alice.seal(&there);
    assert_eq!(sealed.len(), there.len() + OVERHEAD);
    assert_eq!(bob.open(&sealed.clone()), std::slice::from_ref(&there));
    let session = &mut ends_with_frames().1.session;
    assert_eq!(session.open(&mut sealed[12..]), Ok((2, &there[..])), "the same keys");
    let sealed = alice.seal_in_node(2, &there);
    assert_eq!(bob.open(&sealed), [there]);
    assert!(alice.upcalls().is_empty() && bob.upcalls().is_empty());
    // All other records are the node's: also those with a packet of router mode, or a compressed frame.
    for (kind, data) in [(4, vec![0; 99]), (0, packet(1, 2, 0)), (3, vec![0x50; 20])] {
        let sealed = alice.seal_in_node(kind, &data);
        assert!(bob.open(&sealed).is_empty(), "{kind}");
        let record = [&[kind][..], &data].concat();
        assert_eq!(bob.upcalls(), [Upcall::Notice(Notice::InBand(PEER, record))]);
    }
}

#[test]
fn a_frame_of_the_device_goes_to_a_known_station_from_a_known_one() {
    let (mut alice, _) = ends_with_frames();
    alice.seal(&frame(1, mac(2), 1200));
    for other in [
        frame(1, mac(2), 1201),
        frame(1, mac(9), 100),
        frame(1, mac(1), 100),
        frame(1, [0xff; 6], 100),
        frame(1, [0x33, 0x33, 0, 0, 0, 1], 100),
        frame(9, mac(2), 100),
        frame(2, mac(2), 100),
    ] {
        comes_up(&mut alice, &other);
    }
    // A group is no station, also if a node says so.
    alice.plane.plane().set_stations(Some(PEER), &[mac(2), [0xff; 6]]);
    comes_up(&mut alice, &frame(1, [0xff; 6], 100));
    alice.seal(&frame(1, mac(2), 100));
    alice.plane.plane().apply(Command::DelKey(PEER, KeySlot::Primary));
    comes_up(&mut alice, &frame(1, mac(2), 100));
    alice.install();
    alice.seal(&frame(1, mac(2), 100));
    alice.plane.plane().apply(Command::DelPeer(PEER));
    comes_up(&mut alice, &frame(1, mac(2), 100));
}

#[test]
fn a_station_that_moves_takes_its_frames_along() {
    let (mut alice, mut bob) = ends_with_frames();
    let sealed = bob.seal(&frame(2, mac(1), 100));
    assert_eq!(alice.open(&sealed).len(), 1);
    let late = [bob.seal(&frame(2, mac(1), 100)), bob.seal(&frame(2, mac(1), 100))];
    assert_eq!(alice.plane.plane().station_heard(mac(1)), Some(Instant::from_nanos(NOW)));
    assert_eq!(alice.plane.plane().station_heard(mac(2)), None, "it is behind another node");
    // The station is behind bob now.
    alice.plane.plane().set_stations(Some(PEER), &[mac(1), mac(2)]);
    assert_eq!(alice.plane.plane().station_heard(mac(1)), None);
    assert!(alice.open(&late[0]).is_empty());
    let up = HandedUp::FromPeer(PEER, frame(2, mac(1), 100));
    assert_eq!(alice.handed_up(), [up]);
    // And back.
    alice.plane.plane().set_stations(None, &[mac(1)]);
    assert_eq!(alice.open(&late[1]).len(), 1);
    alice.plane.plane().set_stations(None, &[]);
    comes_up(&mut alice, &frame(1, mac(2), 100));
}

#[test]
fn frames_of_a_node_that_are_not_for_this_host_come_up() {
    let (mut alice, mut bob) = ends_with_frames();
    for to in [mac(2), mac(9), [0xff; 6]] {
        let other = frame(1, to, 100);
        // As a relay or a broadcast of the node would.
        let sealed = alice.seal_in_node(2, &other);
        let expected = if to == mac(2) { vec![] } else { vec![HandedUp::FromPeer(PEER, other)] };
        assert_eq!(bob.open(&sealed).len(), usize::from(to == mac(2)));
        assert_eq!(bob.handed_up(), expected);
    }
    let sealed = alice.seal_in_node(2, &[4; 13]);
    assert!(bob.open(&sealed).is_empty());
    assert_eq!(bob.dropped(DropReason::NotEthernet), 1, "too short for a header");
}

#[test]
fn the_mss_leaves_room_for_a_vlan_tag() {
    // A SYN whose MSS is 1460.
    let syn = [
        0x45, 0, 0, 44, 0, 0, 0, 0, 64, 6, 0, 0, 10, 1, 0, 1, 10, 2, 0, 1, 0x12, 0x34, 0, 80, 0, 0,
        0, 0, 0, 0, 0, 0, 0x60, 2, 0, 0, 0, 0, 0, 0, 2, 4, 0x05, 0xb4,
    ];
    for (tag, expected) in [(&[][..], 1000_u16), (&[0x81, 0, 0, 5], 996)] {
        let (mut alice, mut bob) = ends_with_frames();
        let from = |from: u8, to: u8| [&mac(to)[..], &mac(from), tag, &[8, 0], &syn].concat();
        let mut sealed = alice.seal(&from(1, 2));
        let session = &mut ends_with_frames().1.session;
        let (_, sent) = session.open(&mut sealed[12..]).unwrap();
        assert_eq!(sent[sent.len() - 2..], expected.to_be_bytes());
        let sealed = bob.seal_in_node(2, &from(2, 1));
        let received = alice.open(&sealed).remove(0);
        assert_eq!(received[received.len() - 2..], expected.to_be_bytes());
    }
}

/// The node whose address relayed datagrams come from.
const HOP: PeerId = PeerId(9);

/// Returns an end that is reached through a relay at host 3 only.
fn behind_a_relay(session: Datagram, [own, other]: [NodeId; 2], hosts: [u8; 2]) -> End {
    let mut end = End::new(session, [own, other], hosts);
    end.relayed = true;
    let hop = PeerSpec { float: Float::Refuse, ..PeerSpec::plain(link(3)) };
    let label = SpliceLabel::Nodes([own.0, other.0].concat().try_into().unwrap());
    let id = SpliceId { from: HOP, label };
    let plane = end.plane.plane();
    plane.apply(Command::AddPeer(HOP, hop));
    plane.apply(Command::SetRelay(PEER, HOP));
    plane.apply(Command::AddSplice(Splice { ends_here: true, ..Splice::new(id, PEER) }));
    end.install();
    end
}

fn open_from(end: &mut End, host: u8, datagram: &[u8]) -> Vec<Vec<u8>> {
    let mut packets = Vec::new();
    end.plane.open(&link(host), datagram.len(), &mut datagram.to_vec(), |what| match what {
        LoopbackOutput::Tun(write) => packets.extend(write.packets().map(<[u8]>::to_vec)),
        other => panic!("{other:?}"),
    });
    packets
}

#[test]
fn both_ends_of_a_relayed_session_seal_and_open() {
    let (alice, bob) = sessions(&mut Random::new([3; 32]));
    let mut alice = behind_a_relay(alice, [ALICE, BOB], [1, 2]);
    let mut bob = behind_a_relay(bob, [BOB, ALICE], [2, 1]);
    let (there, back) = (packet(1, 2, 5), packet(2, 1, 6));
    let sealed = alice.seal(&there);
    assert_eq!(sealed[..12], [BOB.0, ALICE.0].concat());
    assert_eq!(open_from(&mut bob, 3, &sealed), [there]);
    assert!(open_from(&mut bob, 3, &sealed).is_empty());
    assert_eq!(bob.dropped(DropReason::Replayed), 1);
    assert_eq!(open_from(&mut alice, 3, &bob.seal(&back)), [back]);
    assert_eq!(alice.plane.plane().counters(PEER).unwrap().rx_packets, 1);
    let mut altered = alice.seal(&packet(1, 2, 7));
    *altered.last_mut().unwrap() ^= 1;
    assert!(open_from(&mut bob, 3, &altered).is_empty());
    assert!(bob.handed_up().contains(&HandedUp::Unreadable(PEER)));
    assert!(alice.upcalls().is_empty() && bob.upcalls().is_empty());
}

#[test]
fn other_datagrams_than_those_of_the_relayed_session_come_up() {
    let (alice, bob) = sessions(&mut Random::new([3; 32]));
    let mut alice = behind_a_relay(alice, [ALICE, BOB], [1, 2]);
    let mut bob = behind_a_relay(bob, [BOB, ALICE], [2, 1]);
    let sealed = alice.seal(&packet(1, 2, 5));
    let mut direct = sealed.clone();
    direct[..6].fill(0);
    let mut from_another = sealed.clone();
    from_another[6] ^= 1;
    let mut to_another = sealed.clone();
    to_another[0] ^= 1;
    for (host, datagram) in [(3, &direct), (3, &from_another), (3, &to_another), (1, &sealed)] {
        assert!(open_from(&mut bob, host, datagram).is_empty(), "{host}");
        let [Upcall::ControlPacket(at, bytes) | Upcall::Unauthenticated(at, bytes)] =
            &bob.upcalls()[..]
        else {
            panic!("{host}")
        };
        assert_eq!((at, bytes), (&link(host), datagram));
    }
    // Around a rekey there is no key.
    bob.plane.plane().apply(Command::DelKey(PEER, KeySlot::Primary));
    assert!(open_from(&mut bob, 3, &sealed).is_empty());
    assert_eq!(bob.upcalls(), [Upcall::ControlPacket(link(3), sealed.clone())]);
    bob.install();
    assert_eq!(open_from(&mut bob, 3, &sealed).len(), 1);
    // Nor does a key of a direct session open them.
    bob.relayed = false;
    bob.install();
    let sealed = alice.seal(&packet(1, 2, 6));
    assert!(open_from(&mut bob, 3, &sealed).is_empty());
    assert_eq!(bob.upcalls(), [Upcall::ControlPacket(link(3), sealed)]);
}
