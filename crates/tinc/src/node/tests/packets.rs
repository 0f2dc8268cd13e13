//! Sections 10 and 6.8 to 6.9: packets, relays, and packets over TCP.

use super::bench::{Bench, RemoteSession, address, ipv4, name};
use crate::base64;
use crate::config::Mode;
use crate::node::Output;

/// A neighbour bob with a confirmed address and a session, which carries packets of up to `widest` bytes.
fn with_bob(widest: usize) -> (Bench, RemoteSession) {
    let mut bench = Bench::new();
    bench.join("bob");
    let mut session = bench.session("bob", "bob");
    bench.forget();
    confirm(&mut bench, &mut [("bob", &mut session)], widest);
    (bench, session)
}

/// Lets nodes answer probes until their paths are known.
pub(super) fn confirm(bench: &mut Bench, nodes: &mut [(&str, &mut RemoteSession)], widest: usize) {
    for _ in 0..40 {
        for (who, session) in &mut *nodes {
            bench.packet(who, &ipv4(20));
            bench.answer_probes(session, address(who), widest);
        }
        bench.wait(1);
    }
    for (who, session) in nodes {
        bench.answer_probes(session, address(who), widest);
        assert!(bench.info(who).udp_confirmed);
    }
    bench.forget();
}

/// Section 10.2 and 10.3: a packet goes by UDP, directly; a longer one than what is proven goes over TCP.
#[test]
fn packets_that_fit_go_by_udp_and_others_over_tcp() {
    let (mut bench, mut session) = with_bob(1000);
    let min = usize::from(bench.info("bob").mtu.1);
    assert!((900..=1000).contains(&min), "{min}");
    bench.packet("bob", &ipv4(min));
    let datagrams = bench.datagrams();
    let [(to, bytes)] = &datagrams[..] else { panic!("{datagrams:?}") };
    assert_eq!((*to, bytes.len()), (address("bob"), min + 33), "33 bytes more than the packet");
    let mut record = bytes[12..].to_vec();
    assert_eq!(session.sptps.open(&mut record).unwrap(), (0, &ipv4(min)[..]));
    bench.packet("bob", &ipv4(min + 1));
    assert!(bench.datagrams().is_empty());
    let expected = [&[0; 12][..], &[8, 0], &ipv4(min + 1)].concat();
    assert_eq!(bench.take("bob"), [format!("17 {}", min + 15)]);
    assert_eq!(bench.take_packets("bob"), [expected], "with an Ethernet header");
    bench.packet("bob", &[0x60; 1500]);
    assert_eq!(bench.take_packets("bob")[0][12..14], [0x86, 0xdd]);
}

/// Section 12.5: PriorityInheritance copies the type of service of packets to their datagrams, and no other.
#[test]
fn datagrams_inherit_the_type_of_service_if_they_are_to() {
    let (mut v4, mut v6) = (ipv4(60), vec![0x60; 60]);
    v4[1] = 0xb8;
    v6[..2].copy_from_slice(&[0x6b, 0x80]);
    let frame = |kind: [u8; 2], packet: &[u8]| [&[2; 12][..], &kind, packet].concat();
    let frames = [frame([8, 0], &v4), frame([0x86, 0xdd], &v6), frame([0x88, 0xb5], &v4)];
    let rows = [
        (Mode::Router, vec![v4, v6, ipv4(60)], [Some(0xb8), Some(0xb8), Some(0)]),
        (Mode::Switch, frames.to_vec(), [Some(0xb8), Some(0xb8), None]),
    ];
    for (mode, packets, expected) in rows {
        for inherits in [false, true] {
            let mut bench = Bench::with(|config| {
                config.server.mode = mode;
                config.server.priority_inheritance = inherits;
            });
            bench.join("bob");
            let mut session = bench.session("bob", "bob");
            bench.forget();
            confirm(&mut bench, &mut [("bob", &mut session)], 1000);
            let mut sent = |packet: &[u8]| {
                bench.packet("bob", packet);
                let outputs = bench.outputs().into_iter().filter_map(|output| match output {
                    Output::Datagram { tos, .. } => Some(tos),
                    _ => None,
                });
                outputs.collect::<Vec<_>>()
            };
            for (packet, tos) in packets.iter().zip(expected) {
                assert_eq!(sent(packet), [tos.filter(|_| inherits)], "{mode:?}");
            }
        }
    }
}

/// Section 10.1: the MTU constant.
#[test]
fn longer_packets_than_1518_bytes_are_never_sent() {
    let (mut bench, mut session) = with_bob(1518);
    bench.packet("bob", &ipv4(1519));
    bench.packet("bob", &[]);
    assert_eq!(bench.node.counters().too_long, 2);
    bench.packet("bob", &ipv4(1518));
    assert_eq!(bench.datagrams().len() + bench.take_packets("bob").len(), 1);
    bench.send_record(&mut session, address("bob"), 0, &ipv4(1519));
    assert!(bench.delivered().is_empty());
    bench.send_record(&mut session, address("bob"), 0, &ipv4(1518));
    assert_eq!(bench.delivered(), [("bob".to_owned(), ipv4(1518))]);
}

/// Section 10.1: the types of records in router mode.
#[test]
fn a_router_takes_ip_packets_and_strips_frames() {
    let (mut bench, mut session) = with_bob(1000);
    let mut receive = |kind, data: &[u8]| {
        bench.send_record(&mut session, address("bob"), kind, data);
        bench.delivered().into_iter().map(|(_, packet)| packet).collect::<Vec<_>>()
    };
    let none: Vec<Vec<u8>> = Vec::new();
    assert_eq!(receive(0, &ipv4(60)), [ipv4(60)]);
    assert_eq!(receive(0, &[0x60; 60]), [vec![0x60; 60]]);
    assert_eq!(receive(0, &[0x50; 60]), none, "neither IPv4 nor IPv6");
    assert_eq!(receive(0, &[]), none);
    let frame = [&[0; 12][..], &[8, 0], &ipv4(60)].concat();
    assert_eq!(receive(2, &frame), [ipv4(60)]);
    assert_eq!(receive(2, &frame[..14]), none);
    for kind in [1, 3, 5, 6, 8, 64, 127] {
        assert_eq!(receive(kind, &ipv4(60)), none, "type {kind}");
    }
    assert_eq!(bench.node.counters().refused_packets, 10);
}

/// Section 10.1: a switch refuses packets without an Ethernet header.
#[test]
fn a_switch_sends_and_takes_frames() {
    let mut bench = Bench::with(|config| config.server.mode = Mode::Switch);
    bench.join("bob");
    let mut session = bench.session("bob", "bob");
    let frame = [&[2; 12][..], &[8, 0], &ipv4(60)].concat();
    bench.packet("bob", &frame);
    assert_eq!(bench.take_packets("bob"), std::slice::from_ref(&frame), "over TCP as it is");
    bench.forget();
    bench.send_record(&mut session, address("bob"), 2, &frame);
    bench.send_record(&mut session, address("bob"), 0, &ipv4(60));
    bench.send_record(&mut session, address("bob"), 2, &frame[..13]);
    assert_eq!(bench.delivered(), [("bob".to_owned(), frame)]);
    assert_eq!(bench.node.counters().refused_packets, 2);
}

/// Section 6.8: a packet over TCP has the announced length, and is not sealed again.
#[test]
fn packets_arrive_over_tcp() {
    let mut bench = Bench::new();
    let id = bench.join("bob");
    let frame = [&[0; 12][..], &[8, 0], &ipv4(60)].concat();
    bench.say("bob", "17 74");
    bench.say_bytes("bob", &frame);
    assert_eq!(bench.delivered(), [("bob".to_owned(), ipv4(60))]);
    bench.say("bob", "8");
    assert_eq!(bench.take("bob"), ["9"], "lines follow");
    bench.say("bob", "17 75");
    bench.say_bytes("bob", &frame);
    assert!(!bench.is_open(id));
}

/// Section 6.9: the bytes of a datagram are outside the records, also if they arrive in portions or with the line.
#[test]
fn datagrams_over_tcp_are_outside_the_records() {
    for portion in [1, 7, 40, 1000] {
        let mut bench = Bench::new();
        bench.join("bob");
        bench.edges("bob", &[("bob", "dave")]);
        let mut session = bench.session("bob", "dave");
        bench.forget();
        let mut datagram = [name("alice").id().0, name("dave").id().0].concat();
        session.sptps.seal(0, &ipv4(60), &mut datagram).unwrap();
        let mut bytes = bench.seal("bob", format!("21 {}\n", datagram.len()).as_bytes());
        bytes.extend_from_slice(&datagram);
        let ping = bench.seal("bob", b"8\n");
        bytes.extend_from_slice(&ping);
        for portion in bytes.chunks(portion) {
            bench.send_raw("bob", portion);
        }
        assert_eq!(bench.delivered(), [("dave".to_owned(), ipv4(60))]);
        assert_eq!(bench.take("bob").last().unwrap(), "9");
    }
}

/// Section 10.3: without UDP a sealed packet goes to the next hop, in a message that it understands.
#[test]
fn sealed_packets_travel_over_tcp_as_the_next_hop_can() {
    for (minor, kind) in [(7, "21"), (6, "15")] {
        let mut bench = Bench::new();
        bench.join_with("bob", &format!("4 655 10 {:x}", minor << 24 | 0xc));
        bench.edges("bob", &[("bob", "dave")]);
        let mut session = bench.session("bob", "dave");
        bench.forget();
        bench.packet("dave", &ipv4(60));
        let lines = bench.take("bob");
        let line = lines.iter().find(|line| line.starts_with(kind)).expect("the packet");
        let mut bytes = match kind {
            "21" => {
                assert_eq!(*line, format!("21 {}", 60 + 33));
                bench.take_packets("bob").remove(0)
            }
            _ => {
                let text = line.strip_prefix("15 alice dave 21 ").unwrap();
                [&[0; 12][..], &base64::decode(text.as_bytes()).unwrap()].concat()
            }
        };
        assert_eq!(session.sptps.open(&mut bytes[12..]).unwrap(), (0, &ipv4(60)[..]));
        // The same in the other direction.
        let mut record = Vec::new();
        session.sptps.seal(0, &ipv4(70), &mut record).unwrap();
        bench.forget();
        bench.say("bob", &format!("15 dave alice 21 {}", base64::encode(&record)));
        assert_eq!(bench.delivered(), [("dave".to_owned(), ipv4(70))]);
    }
}

/// Section 6.6: at most 2,048 characters: a datagram of 1,536 bytes.
#[test]
fn a_packet_that_fits_no_message_is_dropped() {
    let mut bench = Bench::with(|config| config.server.mode = Mode::Switch);
    bench.join_with("bob", "4 655 10 600000c");
    bench.edges("bob", &[("bob", "dave")]);
    bench.session("bob", "dave");
    bench.forget();
    bench.packet("dave", &[2; 1515]);
    assert!(bench.take("bob").iter().any(|line| line.starts_with("15 alice dave 21 ")));
    bench.packet("dave", &[2; 1516]);
    assert!(!bench.take("bob").iter().any(|line| line.starts_with("15 alice dave 21 ")));
    assert_eq!(bench.node.counters().too_long, 1);
}

/// Section 10.3: a datagram through a static relay carries the destination's identifier.
#[test]
fn a_node_behind_an_indirect_edge_is_reached_through_its_relay() {
    let (mut bench, _bob) = with_bob(1000);
    bench.say("bob", "12 1 bob dave 192.0.2.99 655 7000001 5");
    bench.say("bob", "12 2 dave bob 192.0.2.98 655 7000001 5");
    let mut session = bench.session("bob", "dave");
    bench.forget();
    bench.packet("dave", &ipv4(500));
    let datagrams = bench.datagrams();
    let (to, mut bytes) = datagrams.into_iter().find(|(_, bytes)| bytes.len() == 533).unwrap();
    assert_eq!(to, address("bob"));
    assert_eq!(bytes[..6], name("dave").id().0);
    assert_eq!(bytes[6..12], name("alice").id().0);
    assert_eq!(session.sptps.open(&mut bytes[12..]).unwrap(), (0, &ipv4(500)[..]));
    // An answer through the relay, from its confirmed address. Section 11.5: the sender learns the MTU.
    bench.wait(6);
    bench.forget();
    let mut answer = [name("alice").id().0, name("dave").id().0].concat();
    session.sptps.seal(0, &ipv4(80), &mut answer).unwrap();
    let mut unknown = answer.clone();
    bench.send_datagram(address("erin"), &mut unknown);
    assert!(bench.delivered().is_empty(), "section 10.4: the address of no node");
    assert_eq!(bench.node.counters().unknown_senders, 1);
    bench.send_datagram(address("bob"), &mut answer);
    assert_eq!(bench.delivered(), [("dave".to_owned(), ipv4(80))]);
}

/// Section 10.4, steps 3 to 5: a relay only rewrites the identifiers, and answers the one question where its datagrams should go.
#[test]
fn datagrams_for_others_are_relayed() {
    let (mut bench, mut bob) = with_bob(1000);
    bench.join("carol");
    let mut carol = bench.session("carol", "carol");
    confirm(&mut bench, &mut [("bob", &mut bob), ("carol", &mut carol)], 1000);
    let record = [9; 121];
    let datagram =
        |to: &str, from: &str| [&name(to).id().0[..], &name(from).id().0, &record].concat();
    bench.send_datagram(address("bob"), &mut datagram("carol", "bob"));
    let relayed: Vec<_> =
        bench.datagrams().into_iter().filter(|(_, bytes)| bytes.ends_with(&record)).collect();
    assert_eq!(relayed, [(address("carol"), datagram("carol", "bob"))]);
    bench.send_datagram(address("erin"), &mut datagram("carol", "bob"));
    bench.send_datagram(address("bob"), &mut datagram("nobody", "bob"));
    bench.send_datagram(address("bob"), &mut datagram("bob", "carol"));
    bench.send_datagram(address("bob"), &mut datagram("carol", "bob")[..20]);
    assert!(bench.datagrams().iter().all(|(_, bytes)| !bytes.ends_with(&record)));
    let counters = bench.node.counters();
    assert_eq!((counters.relayed, counters.unknown_senders, counters.not_relayed), (1, 1, 3));
    // Too long for carol's path: over TCP.
    let long = [&name("carol").id().0[..], &name("bob").id().0, &[9; 1400]].concat();
    bench.send_datagram(address("bob"), &mut long.clone());
    assert_eq!(bench.take_packets("carol"), [long]);
    // And one that came over TCP goes by UDP.
    let bytes = bench.seal("bob", b"21 133\n");
    bench.send_raw("bob", &[bytes, datagram("carol", "bob")].concat());
    assert!(bench.datagrams().contains(&(address("carol"), datagram("carol", "bob"))));
}

/// Section 17.1: packets for tinc 1.0 go to the next hop, unsealed.
#[test]
fn packets_for_old_nodes_go_to_the_next_hop() {
    let mut bench = Bench::new();
    bench.join("bob");
    bench.say("bob", "12 1 bob old 192.0.2.99 655 c 5");
    bench.say("bob", "12 2 old bob 192.0.2.98 655 c 5");
    bench.forget();
    bench.packet("old", &ipv4(60));
    assert_eq!(bench.take("bob"), ["17 74"]);
    assert_eq!(bench.take_packets("bob").len(), 1);
    bench.node.config.legacy_nodes = false;
    bench.packet("old", &ipv4(60));
    assert!(bench.take("bob").is_empty());
}

/// Section 10.3: TCPONLY on either side.
#[test]
fn with_tcp_only_nothing_goes_by_udp() {
    for (own, peer) in [(true, "4 655 10 7000004"), (false, "4 655 10 7000003")] {
        let mut bench = Bench::with(|config| config.server.own.tcp_only = own);
        bench.join_with("bob", peer);
        bench.edges("bob", &[("bob", "dave")]);
        bench.say("bob", "12 aa bob dave 192.0.2.99 655 7000003 5");
        bench.say("bob", "12 ab dave bob 192.0.2.98 655 7000003 5");
        bench.session("bob", "dave");
        bench.wait(7);
        bench.packet("bob", &ipv4(60));
        bench.packet("dave", &ipv4(60));
        bench.wait(7);
        let outputs = bench.outputs();
        assert!(!outputs.iter().any(|output| matches!(output, Output::Datagram { .. })));
        assert_eq!(bench.take_packets("bob").len(), 2);
    }
}

#[test]
fn packets_to_nowhere_are_counted() {
    let mut bench = Bench::new();
    bench.packet("dave", &ipv4(60));
    bench.packet("alice", &ipv4(60));
    assert_eq!(bench.node.counters().unreachable, 2);
    let mut short = [1; 11];
    bench.send_datagram(address("bob"), &mut short);
    assert_eq!(bench.node.counters().unknown_senders, 1);
    bench.node.recycle(vec![1; 5000]);
    assert!(bench.node.buffer().is_empty());
}
