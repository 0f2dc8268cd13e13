//! Section 11: probes, path MTU, UDP_INFO and MTU_INFO.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::SocketId;

use super::bench::{Bench, RemoteSession, address, ipv4, name};
use crate::base64;
use crate::config::AddressFamily;
use crate::node::{Event, Output};

fn with_bob() -> (Bench, RemoteSession) {
    let mut bench = Bench::new();
    bench.join("bob");
    let session = bench.session("bob", "bob");
    bench.forget();
    (bench, session)
}

/// Opens the probes among the datagrams: where they go, and their data.
fn probes(bench: &mut Bench, session: &mut RemoteSession) -> Vec<(SocketAddr, Vec<u8>)> {
    let mut probes = Vec::new();
    for (to, mut bytes) in bench.datagrams() {
        let (kind, data) = session.sptps.open(&mut bytes[12..]).unwrap();
        if kind == 4 {
            probes.push((to, data.to_vec()));
        }
    }
    probes
}

/// Section 11.1: a neighbour is probed once its last PING is five seconds old. Section 11.2: every two seconds, then every ten.
#[test]
fn a_neighbour_is_probed_without_traffic() {
    let (mut bench, mut session) = with_bob();
    bench.wait(4);
    assert!(probes(&mut bench, &mut session).is_empty());
    bench.wait(7);
    let sent = probes(&mut bench, &mut session);
    assert!((3..=4).contains(&sent.len()), "every two seconds: {}", sent.len());
    for (to, probe) in &sent {
        assert_eq!((*to, probe.len()), (address("bob"), 18));
        assert_eq!(probe[..14], [0; 14]);
    }
    bench.wait(2);
    bench.answer_probes(&mut session, address("bob"), 18);
    let confirmed = Event::UdpConfirmed { node: name("bob"), address: address("bob") };
    assert!(bench.events().contains(&confirmed));
    bench.forget();
    bench.wait(29);
    let sent = probes(&mut bench, &mut session);
    let requests = sent.iter().filter(|(_, probe)| probe[0] == 0).count();
    assert!((2..=3).contains(&requests), "every ten seconds: {requests}");
}

/// Section 11.2: the answer goes to where the probe came from, in the form that the node understands.
#[test]
fn probes_are_answered_where_they_came_from() {
    for minor in [7, 3, 2] {
        let mut bench = Bench::new();
        bench.join_with("bob", &format!("4 655 10 {:x}", minor << 24 | 0xc));
        let mut session = bench.session("bob", "bob");
        bench.forget();
        let mut probe = vec![0; 100];
        probe[14..].fill(7);
        if minor >= 4 {
            bench.send_record(&mut session, address("erin"), 4, &probe);
        } else {
            // Without identifiers only a confirmed address tells whose datagram it is.
            bench.node.by_address.insert(address("erin"), name("bob"));
            let mut bytes = Vec::new();
            session.sptps.seal(4, &probe, &mut bytes).unwrap();
            bench.send_datagram(address("erin"), &mut bytes);
        }
        let datagrams = bench.datagrams();
        let (to, bytes) = datagrams.last().unwrap();
        assert_eq!(*to, address("erin"));
        let mut record = if minor >= 4 { bytes[12..].to_vec() } else { bytes.clone() };
        let (kind, answer) = session.sptps.open(&mut record).unwrap();
        assert_eq!(kind, 4);
        if minor >= 3 {
            assert_eq!(answer, [&[2, 0, 100][..], &[0; 11], &[7; 4]].concat());
        } else {
            assert_eq!((answer[0], answer.len()), (1, 100));
            assert_eq!(answer[1..], probe[1..]);
        }
        assert_eq!(bench.info("bob").address, Some(address("erin")), "section 10.4, step 6");
    }
}

/// Section 11.2: probes have at least 18 bytes, and other kinds mean nothing.
#[test]
fn short_and_unknown_probes_get_no_answer() {
    let (mut bench, mut session) = with_bob();
    bench.send_record(&mut session, address("bob"), 4, &[0; 17]);
    bench.send_record(&mut session, address("bob"), 4, &[3; 18]);
    bench.send_record(&mut session, address("bob"), 4, &[]);
    assert!(bench.datagrams().is_empty());
    assert_eq!(bench.node.counters().refused_packets, 3);
    assert!(!bench.info("bob").udp_confirmed);
}

/// Section 11.2: a confirmed node learns the largest length that arrived, every nine seconds.
#[test]
fn the_largest_length_is_reported() {
    let (mut bench, mut session) = with_bob();
    bench.wait(7);
    bench.answer_probes(&mut session, address("bob"), 18);
    bench.send_record(&mut session, address("bob"), 0, &ipv4(700));
    bench.send_record(&mut session, address("bob"), 0, &ipv4(300));
    bench.wait(10);
    let sent = probes(&mut bench, &mut session);
    let reports: Vec<_> = sent.iter().filter(|(_, probe)| probe[0] == 2).collect();
    assert!(reports.iter().any(|(_, probe)| probe[1..3] == [2, 188]), "{sent:?}");
    bench.wait(20);
    let sent = probes(&mut bench, &mut session);
    assert!(sent.iter().all(|(_, probe)| probe[0] == 0), "nothing came");
}

/// Section 11.2: thirty seconds without an answer.
#[test]
fn a_silent_path_is_given_up() {
    let (mut bench, mut session) = with_bob();
    bench.wait(7);
    bench.answer_probes(&mut session, address("bob"), 18);
    assert!(bench.info("bob").udp_confirmed);
    bench.wait(29);
    assert!(bench.info("bob").udp_confirmed);
    bench.wait(2);
    assert!(!bench.info("bob").udp_confirmed);
    assert!(bench.events().contains(&Event::UdpLost(name("bob"))));
    assert_eq!(bench.info("bob").mtu.1, 0);
    bench.forget();
    bench.packet("bob", &ipv4(100));
    assert_eq!(bench.take_packets("bob").len(), 1, "over TCP again");
}

/// Section 8.3: a node that becomes unreachable has no address any more, and another one may have it.
#[test]
fn an_unreachable_node_has_no_address() {
    let (mut bench, mut session) = with_bob();
    bench.wait(7);
    bench.answer_probes(&mut session, address("bob"), 18);
    assert_eq!(bench.node.by_address.len(), 1);
    bench.node.closed(bench.now, bench.id("bob"));
    assert!(bench.node.by_address.is_empty());
}

/// A socket for both families sees IPv4 addresses in IPv6 form.
#[test]
fn ipv4_addresses_in_ipv6_form_are_the_same() {
    let (mut bench, mut session) = with_bob();
    bench.wait(7);
    bench.answer_probes(&mut session, address("bob"), 18);
    let SocketAddr::V4(v4) = address("bob") else { panic!() };
    let mapped = SocketAddr::from((v4.ip().to_ipv6_mapped(), v4.port()));
    bench.send_record(&mut session, mapped, 0, &ipv4(50));
    assert_eq!(bench.delivered().len(), 1);
    assert!(bench.info("bob").udp_confirmed);
    assert_eq!(bench.info("bob").address, Some(address("bob")));
}

/// Section 11.1: the path to a relay is found as well: to a static one, and to the next hop while the node itself is not confirmed.
#[test]
fn the_path_to_a_relay_is_probed() {
    for options in ["7000001", "700000c"] {
        let (mut bench, _bob) = with_bob();
        bench.say("bob", &format!("12 1 bob dave 192.0.2.99 655 {options} 5"));
        bench.say("bob", &format!("12 2 dave bob 192.0.2.98 655 {options} 5"));
        bench.session("bob", "dave");
        bench.forget();
        bench.packet("dave", &ipv4(50));
        let targets: Vec<SocketAddr> = bench.datagrams().into_iter().map(|(to, _)| to).collect();
        assert!(targets.contains(&address("bob")), "{options}: {targets:?}");
    }
}

/// `AddressFamily`: nor do datagrams go to addresses of the other family, of either kind.
#[test]
fn addresses_of_the_other_family_get_no_datagrams() {
    for (family, count) in [(AddressFamily::V4, 0), (AddressFamily::Any, 2)] {
        let mut bench = Bench::with(|config| config.server.address_family = family);
        bench.join("bob");
        bench.edges("bob", &[("bob", "dave")]);
        bench.say("bob", "12 1 erin dave 2001:db8::1 655 700000c 5");
        bench.say("bob", "12 2 dave erin 192.0.2.98 655 700000c 5 2001:db8::2 655");
        bench.session("bob", "dave");
        bench.forget();
        let mut targets = BTreeSet::new();
        for _ in 0..20 {
            bench.packet("dave", &ipv4(50));
            bench.wait(2);
            targets.extend(bench.datagrams().into_iter().map(|(to, _)| to));
        }
        assert_eq!(targets.iter().filter(|to| to.is_ipv6()).count(), count, "{targets:?}");
    }
}

/// Section 11.2: local discovery also probes an address that the node has in its own network.
#[test]
fn local_addresses_are_probed_too() {
    for enabled in [true, false] {
        let mut bench = Bench::with(|config| config.server.local_discovery = enabled);
        bench.join("bob");
        bench.say("bob", "12 99 bob alice 192.0.2.1 655 700000c 5 10.0.0.7 655");
        let mut session = bench.session("bob", "bob");
        bench.wait(7);
        let local: SocketAddr = "10.0.0.7:655".parse().unwrap();
        let sent = probes(&mut bench, &mut session);
        assert_eq!(sent.iter().any(|(to, _)| *to == local), enabled);
    }
}

/// Section 19, rule 6: a firewall in front of the node accepts answers only from the address that the node has sent to.
#[test]
fn datagrams_leave_from_the_socket_where_the_node_is_heard() {
    let (mut bench, mut session) = with_bob();
    let sockets = |bench: &mut Bench| {
        let outputs = bench.outputs().into_iter();
        let sockets = outputs.filter_map(|output| match output {
            Output::Datagram { to, socket, .. } if to == address("bob") => Some(socket),
            _ => None,
        });
        sockets.collect::<BTreeSet<_>>()
    };
    // Bob sends a record to another socket of this node.
    let hear = |bench: &mut Bench, session: &mut RemoteSession, socket, record: &[u8]| {
        let mut bytes = [[0; 6], name("bob").id().0].concat();
        session.sptps.seal(record[0], &record[1..], &mut bytes).unwrap();
        bench.node.datagram(bench.now, SocketId(socket), address("bob"), &mut bytes);
        bench.pump();
    };
    let (packet, request) = ([&[0][..], &ipv4(50)].concat(), [&[4][..], &[0; 18]].concat());
    let answer = [&[4, 2, 0, 18][..], &[0; 15]].concat();
    bench.packet("bob", &ipv4(50));
    assert_eq!(sockets(&mut bench), [None].into(), "not heard yet");
    hear(&mut bench, &mut session, 1, &request);
    assert_eq!(sockets(&mut bench), [Some(SocketId(1))].into(), "the answer to a probe");
    hear(&mut bench, &mut session, 1, &answer);
    assert!(bench.info("bob").udp_confirmed);
    bench.wait(11);
    bench.packet("bob", &ipv4(50));
    assert_eq!(sockets(&mut bench), [Some(SocketId(1))].into());
    hear(&mut bench, &mut session, 0, &packet);
    bench.packet("bob", &ipv4(50));
    bench.wait(11);
    assert_eq!(sockets(&mut bench), [Some(SocketId(0))].into());
    assert!(bench.info("bob").udp_confirmed, "the path is the same");
    // A new address may not have sent anything to this socket.
    let path = &mut bench.node.peers.get_mut(&name("bob")).unwrap().udp;
    path.set_address(address("bob"));
    assert_eq!(path.socket, Some(SocketId(0)));
    path.set_address(address("carol"));
    assert_eq!(path.socket, None);
}

/// Section 10.6: an unconfirmed node is tried at its last address every third time, else at those in edges.
#[test]
fn unconfirmed_addresses_take_turns() {
    let mut bench = Bench::new();
    bench.join("bob");
    bench.edges("bob", &[("bob", "dave")]);
    bench.session("bob", "dave");
    bench.say("bob", "22 dave alice 198.51.100.1 7");
    assert_eq!(bench.info("dave").address, Some("198.51.100.1:7".parse().unwrap()));
    bench.forget();
    let mut targets = Vec::new();
    for _ in 0..9 {
        bench.packet("dave", &ipv4(50));
        bench.wait(2);
        targets.extend(bench.datagrams().into_iter().map(|(to, _)| to));
    }
    targets.retain(|to| *to != address("bob"));
    let current = targets.iter().filter(|to| to.port() == 7).count();
    assert!((3..=4).contains(&current), "{targets:?}");
    assert!(targets.contains(&address("dave")));
}

/// A member can announce any address for a node: datagrams must not go to programs on this machine, or to groups.
#[test]
fn announced_addresses_of_this_machine_get_no_datagrams() {
    let mut bench = Bench::new();
    bench.join("bob");
    let local = "127.0.0.1 655";
    bench.say("bob", &format!("12 1 bob dave {local} 700000c 5"));
    bench.say("bob", &format!("12 2 dave bob 192.0.2.98 655 700000c 5 {local}"));
    assert_eq!(bench.info("dave").address, None);
    let mut session = bench.request_session("bob", "dave");
    let lines = bench.take("bob");
    let kex = lines.iter().find_map(|line| line.strip_prefix("16 alice dave ")).unwrap();
    let kex = base64::decode(kex.split(' ').next().unwrap().as_bytes()).unwrap();
    let mut sig = Vec::new();
    session.sptps.receive_handshake(&kex, &mut bench.random, &mut sig).unwrap();
    let sig = base64::encode(&sig[0]);
    bench.say("bob", &format!("16 dave alice {sig} -1 -1 -1 0 {local}"));
    assert!(bench.info("dave").session);
    bench.say("bob", &format!("22 dave alice {local}"));
    for host in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "::1", "ff02::1"] {
        bench.say("bob", &format!("22 dave alice {host} 655"));
    }
    assert_eq!(bench.info("dave").address, None);
    let other: SocketAddr = "198.51.100.4:655".parse().unwrap();
    bench.say("bob", "12 3 erin dave 198.51.100.4 655 700000c 5");
    bench.say("bob", "12 4 dave erin 192.0.2.98 655 700000c 5");
    bench.forget();
    let mut targets = BTreeSet::new();
    for _ in 0..20 {
        bench.packet("dave", &ipv4(50));
        bench.wait(2);
        targets.extend(bench.datagrams().into_iter().map(|(to, _)| to));
    }
    targets.remove(&address("bob"));
    assert_eq!(targets, [other].into());
}

/// Section 11.3: with traffic the MTU is searched; section 10.3, step 5: a datagram that is too long lowers the bound.
#[test]
fn the_path_mtu_is_found() {
    let (mut bench, mut session) = with_bob();
    let mut fixed = None;
    for _ in 0..300 {
        bench.packet("bob", &ipv4(20));
        for output in bench.outputs() {
            match output {
                Output::Datagram { to, mut bytes, dont_fragment, .. } => {
                    assert!(dont_fragment);
                    let len = bytes.len();
                    if len > 1400 + 33 {
                        bench.node.too_big(bench.now, to, len);
                        continue;
                    }
                    let (kind, data) = session.sptps.open(&mut bytes[12..]).unwrap();
                    if kind == 4 && data[0] == 0 {
                        let mut answer = vec![2];
                        answer.extend_from_slice(&u16::try_from(data.len()).unwrap().to_be_bytes());
                        answer.resize(18, 0);
                        bench.send_record(&mut session, address("bob"), 4, &answer);
                    }
                }
                Output::Event(Event::MtuFixed { mtu, .. }) => fixed = Some(mtu),
                _ => {}
            }
        }
        bench.now = bench.now + Duration::from_millis(100);
    }
    let mtu = fixed.expect("an MTU");
    assert!((1380..=1400).contains(&mtu), "{mtu}");
    assert_eq!(bench.node.mtu(&name("bob")), mtu);
}

/// Section 11.4.
#[test]
fn a_node_that_is_reached_over_tcp_says_where_it_is() {
    let mut bench = Bench::new();
    bench.join("bob");
    bench.edges("bob", &[("bob", "dave")]);
    bench.session("bob", "dave");
    let lines = bench.take("bob");
    assert!(lines.iter().any(|line| line.starts_with("22 alice dave ")), "{lines:?}");
    bench.request_session("bob", "dave");
    assert!(!bench.take("bob").iter().any(|line| line.starts_with("22 ")), "once in five seconds");
    bench.wait(6);
    bench.request_session("bob", "dave");
    assert!(bench.take("bob").iter().any(|line| line.starts_with("22 alice dave ")));
    let mut old = Bench::new();
    old.join_with("bob", "4 655 10 400000c");
    old.edges("bob", &[("bob", "dave")]);
    old.session("bob", "dave");
    assert!(!old.take("bob").iter().any(|line| line.starts_with("22") || line.starts_with("23")));
}

/// Section 11.4: a node on the way puts in what it knows, and passes the message on.
#[test]
fn addresses_and_sizes_are_passed_on() {
    let mut bench = Bench::new();
    bench.join("bob");
    bench.join("carol");
    bench.forget();
    let bob = address("bob");
    bench.say("bob", "22 bob carol unspec unspec");
    assert_eq!(bench.take("carol"), [format!("22 bob carol {} {}", bob.ip(), bob.port())]);
    bench.say("bob", "23 bob carol 1400");
    assert_eq!(bench.take("carol"), ["23 bob carol 1400"]);
    bench.say("bob", "23 bob carol 9000");
    assert_eq!(bench.take("carol"), ["23 bob carol 1518"], "at most 1,518");
    assert_eq!(bench.node.mtu(&name("bob")), 1518);
    for line in
        ["22 bob nobody unspec unspec", "22 nobody carol unspec unspec", "23 bob nobody 1400"]
    {
        bench.say("bob", line);
    }
    assert_eq!((bench.take("bob"), bench.take("carol")), (vec![], vec![]));
}

/// Section 11.4: nodes that use TCP alone, and those that are reached through a relay, have no address to pass on.
#[test]
fn useless_addresses_are_not_passed_on() {
    for (bob, carol, expected) in
        [("700000c", "700000c", 1), ("7000003", "700000c", 0), ("700000c", "7000003", 0)]
    {
        let mut bench = Bench::new();
        bench.join_with("bob", &format!("4 655 10 {bob}"));
        bench.join_with("carol", &format!("4 655 10 {carol}"));
        bench.forget();
        bench.say("bob", "22 bob carol unspec unspec");
        assert_eq!(bench.take("carol").len(), expected, "{bob} {carol}");
    }
    let mut bench = Bench::with(|config| config.server.own.tcp_only = true);
    bench.join("bob");
    bench.join("carol");
    bench.edges("bob", &[("bob", "dave")]);
    bench.edges("carol", &[("carol", "erin")]);
    bench.say("bob", "22 dave erin 192.0.2.9 655");
    assert!(bench.take("carol").is_empty());
    let mut bench = Bench::new();
    bench.join("bob");
    bench.join("carol");
    bench.say("bob", "12 1 bob dave 192.0.2.99 655 7000001 5");
    bench.say("bob", "12 2 dave bob 192.0.2.98 655 7000001 5");
    bench.forget();
    bench.say("bob", "22 dave carol 198.51.100.1 655");
    assert!(bench.take("carol").is_empty());
    assert_ne!(bench.info("dave").address, "198.51.100.1:655".parse().ok());
}

/// Section 11.5: a node on the way puts in the size that it has measured itself, or that of the way to the relay.
#[test]
fn measured_sizes_are_passed_on() {
    let mut bench = Bench::new();
    bench.join("bob");
    let mut session = bench.session("bob", "bob");
    bench.find_mtu("bob", &mut session);
    bench.join("carol");
    bench.edges("bob", &[("bob", "dave")]);
    let mtu = bench.info("bob").mtu.0;
    assert!(mtu < 1450, "{mtu}");
    for (line, expected) in [
        ("23 bob carol 1500", format!("23 bob carol {mtu}")),
        ("23 bob carol 600", format!("23 bob carol {mtu}")),
        ("23 dave carol 1500", format!("23 dave carol {mtu}")),
        ("23 dave carol 600", "23 dave carol 600".to_owned()),
    ] {
        bench.say("bob", line);
        assert_eq!(bench.take("carol"), [expected], "{line}");
    }
}

/// Section 11.5: sizes below 512 are tolerated, ignored and never sent.
#[test]
fn useless_sizes_are_ignored() {
    let mut bench = Bench::new();
    let id = bench.join("bob");
    bench.join("carol");
    bench.forget();
    for size in ["0", "511", "-5"] {
        bench.say("bob", &format!("23 bob carol {size}"));
    }
    assert!(bench.is_open(id));
    assert!(bench.take("carol").is_empty());
    assert_eq!(bench.node.mtu(&name("bob")), 1518);
    bench.say("bob", "23 bob alice 700");
    assert_eq!(bench.node.mtu(&name("bob")), 700, "until the node has measured it");
}
