//! Section 5: connections between neighbours.

use std::net::SocketAddr;
use std::time::Duration;

use super::bench::{ACK, Bench, address, key, name};
use crate::config::{Address, AddressFamily, HostConfig};
use crate::legacy::VersionError;
use crate::meta::MessageError;
use crate::node::{CloseReason, ConnectionId, Event, Node, Output};
use crate::sptps::{CipherChoice, Params, Received, Role, Stream, meta_label};

fn local() -> SocketAddr {
    SocketAddr::from(([192, 0, 2, 1], 655))
}

/// Accepts a connection that begins with these bytes. Returns how it ended, and whether it went into the tarpit.
fn refused(bench: &mut Bench, first: &[u8]) -> (Option<CloseReason>, bool) {
    let id = bench.node.accept(bench.now, address("bob"), local()).unwrap();
    bench.node.receive(bench.now, id, first);
    bench.pump();
    let outputs = bench.outputs();
    let answered = outputs.iter().any(|output| matches!(output, Output::Send { .. }));
    assert!(!answered, "a stranger gets no answer: {outputs:?}");
    let tarpit = outputs.contains(&Output::Close { connection: id, tarpit: true });
    let reason = outputs.into_iter().find_map(|output| match output {
        Output::Event(Event::Disconnected { reason, .. }) => Some(reason),
        _ => None,
    });
    assert_eq!(bench.is_open(id), reason.is_none());
    (reason, tarpit)
}

/// Section 5.2: a responder says nothing before it accepts the initiator's name, key and versions, and 5.6: it keeps others in the tarpit.
#[test]
fn only_known_nodes_with_a_key_get_an_answer() {
    let mut bench = Bench::with(|config| {
        config.hosts.insert(name("nokey"), HostConfig::default());
    });
    let rows = [
        ("0 bob 16.7\n", CloseReason::Version(VersionError::Major(name("bob"), 16))),
        ("0 alice 17.7\n", CloseReason::OwnName),
        ("0 stranger 17.7\n", CloseReason::UnknownNode(name("stranger"))),
        ("0 nokey 17.7\n", CloseReason::Version(VersionError::UnknownKey(name("nokey")))),
        ("0 bob 17\n", CloseReason::Version(VersionError::Rollback(name("bob")))),
        ("0 bob 17.1\n", CloseReason::Version(VersionError::OwnKeyUnknown(name("bob")))),
        ("0 ^cookie 0\n", CloseReason::Control),
    ];
    for (line, reason) in rows {
        assert_eq!(refused(&mut bench, line.as_bytes()), (Some(reason), true), "{line}");
        bench.now = bench.now + Duration::from_secs(2);
    }
    let (reason, tarpit) = refused(&mut bench, b"GET / HTTP/1.1\r\n\r\n");
    assert!(matches!(reason, Some(CloseReason::Id(_))) && tarpit);
}

/// Section 14.4: the driver serves a joining node.
#[test]
fn a_joining_node_is_handed_over_with_its_bytes() {
    let mut bench = Bench::new();
    let id = bench.node.accept(bench.now, address("bob"), local()).unwrap();
    let joiner = key("joiner").public();
    let line = format!("0 ?{joiner} 17.1\nrest");
    bench.node.receive(bench.now, id, line.as_bytes());
    let (address, rest) = (address("bob"), b"rest".to_vec());
    let join = Output::Join { connection: id, address, key: joiner, rest };
    assert_eq!(bench.node.pop(), Some(join));
    assert!(!bench.is_open(id));
}

/// Section 5.3 and 5.4: the session begins with the byte after the identification, and the first record is ACK.
#[test]
fn the_first_record_is_an_ack() {
    let mut bench = Bench::new();
    bench.handshake("bob");
    assert_eq!(bench.take("bob"), ["4 655 0 700000c"]);
    let mut bench = Bench::with(|config| {
        config.udp_port = 700;
        config.server.own.tcp_only = true;
        config.server.own.weight = Some(33);
        config.server.own.clamp_mss = Some(false);
        let bob = config.hosts.get_mut(&name("bob")).unwrap();
        bob.weight = Some(77);
    });
    bench.handshake("bob");
    assert_eq!(bench.take("bob"), ["4 700 77 7000003"], "the host file's weight takes precedence");
    bench.handshake("carol");
    assert_eq!(bench.take("carol"), ["4 700 33 7000003"]);
}

/// Section 5.4, before ACK: any other request is fatal.
#[test]
fn before_ack_nothing_else_is_allowed() {
    for line in ["8", "10 1 bob 10.0.0.0/8", "7"] {
        let mut bench = Bench::new();
        let id = bench.handshake("bob");
        bench.say("bob", line);
        assert!(!bench.is_open(id), "{line}");
        assert_eq!(bench.close_reason(), Some(CloseReason::OutOfTurn));
    }
    let mut bench = Bench::new();
    let id = bench.join("bob");
    bench.say("bob", ACK);
    assert!(!bench.is_open(id), "a second ACK");
}

/// Section 5.4: all that is known is sent after ACK, then the edge is flooded to all, also to the new neighbour.
#[test]
fn a_new_neighbour_gets_the_topology_and_then_its_edge() {
    let mut bench = Bench::new();
    bench.join("bob");
    bench.edges("bob", &[("bob", "carol")]);
    bench.say("bob", "10 5 carol 10.9.0.0/16#3");
    bench.forget();
    bench.handshake("dave");
    bench.take("dave");
    bench.now = bench.now + Duration::from_millis(1);
    bench.say("dave", "4 700 21 600000d");
    let edge = format!("12 R alice dave {} 700 600000d 10 192.0.2.1 655", address("dave").ip());
    let carol = address("carol").ip();
    let bob = address("bob").ip();
    let expected = [
        "10 R alice 10.1.0.0/16".to_owned(),
        format!("12 R alice bob {bob} 655 700000c 5 192.0.2.1 655"),
        "12 R bob alice 192.0.2.1 655 700000c 5".to_owned(),
        format!("12 R bob carol {carol} 655 700000c 5"),
        "10 R carol 10.9.0.0/16#3".to_owned(),
        format!("12 R carol bob {bob} 655 700000c 5"),
        edge.clone(),
    ];
    assert_eq!(bench.take("dave"), expected);
    assert_eq!(bench.take("bob"), [edge], "and all others get the edge");
}

/// Section 5.4: options are merged, and the host file's ClampMSS overrides.
#[test]
fn the_host_file_decides_about_mss_clamping() {
    let mut bench = Bench::with(|config| {
        let bob = config.hosts.get_mut(&name("bob")).unwrap();
        (bob.clamp_mss, bob.indirect_data) = (Some(false), true);
    });
    bench.handshake("bob");
    bench.say("bob", ACK);
    let edge = bench.take("bob").pop().unwrap();
    assert!(edge.contains(" 7000005 "), "{edge}");
}

/// Section 5.4: PMTU in the host file bounds the path MTU.
#[test]
fn the_host_file_bounds_the_path_mtu() {
    let mut bench = Bench::with(|config| {
        config.hosts.get_mut(&name("bob")).unwrap().pmtu = Some(1300);
    });
    bench.join("bob");
    bench.join("carol");
    assert_eq!(["bob", "carol"].map(|who| bench.node.mtu(&name(who))), [1300, 1518]);
}

/// Section 5.5: the number of the message decides, further words are ignored, and malformed lines are fatal, except for those that the neighbour may
/// only have passed on.
#[test]
fn an_invalid_line_ends_the_connection() {
    let rows: [(&[u8], MessageError); 4] = [
        (b"", MessageError::NoNumber),
        (b"x\n", MessageError::NoNumber),
        (b"5 1\n", MessageError::Unexpected(5)),
        (b"21 11\n", MessageError::Field(21, "length")),
    ];
    for (record, error) in rows {
        let mut bench = Bench::new();
        let id = bench.join("bob");
        bench.say_bytes("bob", record);
        assert_eq!(bench.close_reason(), Some(CloseReason::Message(error)));
        assert!(!bench.is_open(id));
    }
    let mut bench = Bench::new();
    bench.join("bob");
    bench.say("bob", "8 and more");
    bench.say_bytes("bob", b"8");
    assert_eq!(bench.take("bob"), ["9", "9"], "also without a newline");
}

/// Section 5.6.
#[test]
fn a_handshake_must_end_within_ping_timeout() {
    let mut bench = Bench::new();
    let silent = bench.node.accept(bench.now, address("bob"), local()).unwrap();
    let half = bench.handshake("carol");
    bench.wait(4);
    assert!(bench.is_open(silent) && bench.is_open(half));
    bench.wait(2);
    assert!(!bench.is_open(silent) && !bench.is_open(half));
    assert_eq!(bench.close_reason(), Some(CloseReason::HandshakeTimeout));
}

/// Section 5.6: only PONG counts.
#[test]
fn a_neighbour_that_does_not_answer_a_ping_is_dropped() {
    let mut bench = Bench::new();
    let id = bench.join("bob");
    bench.wait_in_silence(59);
    assert!(!bench.take("bob").contains(&"8".to_owned()));
    bench.wait_in_silence(2);
    assert!(bench.take("bob").contains(&"8".to_owned()));
    bench.say("bob", "9");
    bench.wait_in_silence(61);
    assert!(bench.take("bob").contains(&"8".to_owned()) && bench.is_open(id));
    for _ in 0..5 {
        bench.say("bob", "8");
        bench.wait_in_silence(1);
    }
    bench.wait_in_silence(1);
    assert!(!bench.is_open(id));
    assert_eq!(bench.close_reason(), Some(CloseReason::NoPong));
}

/// Section 5.6: bursts of ten, one more a second; loopback is exempt.
#[test]
fn inbound_connections_are_limited() {
    let mut bench = Bench::new();
    let from = |last| SocketAddr::from(([198, 51, 100, last], 1000));
    for last in 0..10 {
        assert!(bench.node.accept(bench.now, from(last), local()).is_some());
    }
    assert!(bench.node.accept(bench.now, from(11), local()).is_none());
    let loopback = SocketAddr::from(([127, 0, 0, 1], 1000));
    assert!(bench.node.accept(bench.now, loopback, local()).is_some());
    let later = bench.now + Duration::from_secs(1);
    assert!(bench.node.accept(later, from(12), local()).is_some());
    assert!(bench.node.accept(later, from(13), local()).is_none());
    assert_eq!(bench.node.counters().refused_connections, 2);
    let accepted = (0..200).filter(|_| bench.node.accept(later, loopback, local()).is_some());
    assert_eq!(accepted.count(), super::super::MAX_UNAUTHENTICATED - 12);
}

/// Section 5.6: after a suspension all connections are closed.
#[test]
fn a_suspension_ends_all_connections() {
    let mut bench = Bench::new();
    let id = bench.join("bob");
    bench.wait(1);
    bench.now = bench.now + Duration::from_secs(60);
    bench.node.tick(bench.now);
    bench.pump();
    assert!(bench.is_open(id));
    bench.take("bob");
    bench.say("bob", "9");
    bench.now = bench.now + Duration::from_secs(63);
    bench.node.tick(bench.now);
    bench.pump();
    assert!(!bench.is_open(id));
    assert_eq!(bench.close_reason(), Some(CloseReason::Suspended));
}

/// Section 5.7: the newer connection stays, and no DEL_EDGE is flooded for the old one.
#[test]
fn a_second_connection_replaces_the_first() {
    let mut bench = Bench::new();
    bench.join("carol");
    let first = bench.join("bob");
    let session = bench.session("bob", "bob");
    assert!(session.sptps.is_established() && bench.info("bob").session);
    bench.forget();
    let second = bench.handshake("bob");
    bench.say("bob", ACK);
    assert!(!bench.is_open(first) && bench.is_open(second));
    assert!(!bench.info("bob").session, "the session for packets starts again");
    let lines = bench.take("carol");
    assert!(lines.iter().all(|line| !line.starts_with("13 R alice bob")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("12 R alice bob")));
}

/// Creates a node that dials another one, which connects at the same time. Returns both connections, up to the node's ACK on the second one.
fn connected_at_once(who: &str) -> (Bench, ConnectionId, ConnectionId) {
    let mut bench = Bench::with(|config| {
        config.server.connect_to = vec![name(who)];
        let host = config.hosts.get_mut(&name(who)).unwrap();
        host.addresses = vec![Address { host: "198.51.100.7".to_owned(), port: None }];
    });
    bench.node.tick(bench.now);
    let dialled = std::iter::from_fn(|| bench.node.pop()).find_map(|output| match output {
        Output::Dial { connection, .. } => Some(connection),
        _ => None,
    });
    let accepted = bench.handshake(who);
    assert!(bench.take(who).iter().any(|line| line.starts_with("4 655")));
    (bench, dialled.expect("a dial"), accepted)
}

/// Answers a connection that the node opened. Returns whether its ACK came.
fn answer(bench: &mut Bench, id: ConnectionId, who: &str) -> bool {
    let params = Params {
        role: Role::Responder,
        key: key(who),
        peer: key("alice").public(),
        label: meta_label("alice", who),
        cipher: CipherChoice::default(),
    };
    bench.node.connected(bench.now, id, local());
    assert_eq!(bench.raw(id), b"0 alice 17.7\n");
    let mut out = format!("0 {who} 17.7\n").into_bytes();
    let mut stream = Stream::start(params, &mut bench.random, &mut out);
    while !out.is_empty() {
        bench.node.receive(bench.now, id, &std::mem::take(&mut out));
        let bytes = bench.raw(id);
        let mut input = &bytes[..];
        while let Some(received) = stream.receive(&mut input, &mut bench.random, &mut out).unwrap()
        {
            if matches!(received, Received::Record(_, line) if line.starts_with(b"4 655")) {
                return true;
            }
        }
    }
    false
}

/// Section 5.7: of two connections that were opened at once, that of the node with the greater name remains. The other one gets no ACK.
#[test]
fn of_two_connections_at_once_that_of_the_greater_name_remains() {
    let (mut bench, dialled, accepted) = connected_at_once("bob");
    assert!(!answer(&mut bench, dialled, "bob"));
    assert!(!bench.is_open(dialled) && bench.is_open(accepted));
    assert_eq!(bench.close_reason(), Some(CloseReason::Simultaneous));
    let (mut bench, dialled, accepted) = connected_at_once("aaron");
    assert!(answer(&mut bench, dialled, "aaron"));
    assert!(bench.is_open(dialled) && !bench.is_open(accepted));
}

/// A node that lost the older connection without a sign of it connects again: its newer connection counts, of whichever side the older one is.
#[test]
fn connections_at_different_times_are_not_simultaneous() {
    let (mut bench, dialled, accepted) = connected_at_once("bob");
    bench.say("bob", ACK);
    assert!(!bench.is_open(dialled) && bench.is_open(accepted), "the attempt ends");
    let mut bench = Bench::new();
    let first = bench.join("bob");
    let second = bench.join("bob");
    assert!(!bench.is_open(first) && bench.is_open(second), "both are the other node's");
    let (mut bench, dialled, _) = connected_at_once("aaron");
    assert!(answer(&mut bench, dialled, "aaron"));
    bench.now = bench.now + Duration::from_secs(5);
    let later = bench.handshake("aaron");
    bench.say("aaron", ACK);
    assert!(bench.is_open(later), "the first one is five seconds old");
}

/// Section 5.8: losing a neighbour floods both of its edges.
#[test]
fn a_lost_neighbour_is_reported() {
    let mut bench = Bench::new();
    bench.join("carol");
    let id = bench.join("bob");
    bench.say("bob", "7");
    assert!(!bench.is_open(id));
    assert_eq!(bench.take("carol"), ["13 R alice bob", "13 R bob alice"]);
    let mut bench = Bench::new();
    bench.join("carol");
    let id = bench.join("bob");
    bench.edges("carol", &[("carol", "bob")]);
    bench.node.closed(bench.now, id);
    bench.pump();
    assert_eq!(bench.take("carol"), ["13 R alice bob"], "it is reachable by another way");
}

/// Returns the addresses that a node dials, each refused, and the times in seconds since the start.
fn dialled(bench: &mut Bench, seconds: u64) -> Vec<(String, u64)> {
    let start = bench.now;
    let mut all = Vec::new();
    while bench.now.since(start) < Duration::from_secs(seconds) {
        bench.node.tick(bench.now);
        while let Some(output) = bench.node.pop() {
            match output {
                Output::Dial { connection, address } => {
                    all.push((address.to_string(), bench.now.since(start).as_secs()));
                    bench.node.closed(bench.now, connection);
                }
                Output::Resolve { node, host, port } => {
                    all.push((host, bench.now.since(start).as_secs()));
                    let found = SocketAddr::from(([203, 0, 113, 9], port));
                    bench.node.resolved(bench.now, &node, &[found]);
                }
                _ => {}
            }
        }
        bench.now = bench.node.deadline();
    }
    all
}

/// Section 5.6: after each failed round five seconds more, at most MaxTimeout.
#[test]
fn rounds_over_all_addresses_come_at_growing_intervals() {
    let mut bench = Bench::with(|config| {
        config.server.connect_to = vec![name("bob")];
        config.server.max_timeout = Duration::from_secs(12);
        let bob = config.hosts.get_mut(&name("bob")).unwrap();
        bob.port = 700;
        bob.addresses = vec![
            Address { host: "198.51.100.7".to_owned(), port: None },
            Address { host: "bob.example".to_owned(), port: Some(655) },
        ];
    });
    bench.node.set_recent_addresses(&name("bob"), &[SocketAddr::from(([198, 51, 100, 9], 1))]);
    let start = bench.now;
    let all = dialled(&mut bench, 60);
    let round = ["198.51.100.9:1", "198.51.100.7:700", "bob.example", "203.0.113.9:655"];
    for (at, (address, _)) in all.iter().enumerate() {
        assert_eq!(address, round[at % 4]);
    }
    let starts: Vec<u64> = all.iter().step_by(4).map(|(_, at)| *at).collect();
    let pauses: Vec<u64> = starts.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(pauses.len() >= 4, "{starts:?}");
    for (pause, expected) in pauses.iter().zip([5, 10, 12, 12]) {
        assert!((expected..=expected + 2).contains(pause), "{pauses:?}");
    }
    // Section 7.5: nodes that failed at once do not all try again at once.
    let due = bench.node.outgoing[&name("bob")].due().unwrap();
    assert_ne!(due.since(start).subsec_millis(), 0);
    // Once a neighbour has answered a ping, the next round comes at once.
    for answers in [false, true] {
        let id = bench.join("bob");
        if answers {
            bench.say("bob", "9");
        }
        bench.node.closed(bench.now, id);
        let due = bench.node.outgoing[&name("bob")].due().unwrap();
        assert_eq!(due.since(bench.now) <= Duration::from_secs(1), answers);
    }
}

/// `AddressFamily`: addresses of the other family are not dialled, wherever they come from.
#[test]
fn only_addresses_of_the_configured_family_are_dialled() {
    let addresses = ["198.51.100.9:1", "[2001:db8::9]:1"].map(|text| text.parse().unwrap());
    for (family, expected) in [
        (AddressFamily::V4, vec!["198.51.100.9:1", "198.51.100.7:655", "bob.example"]),
        (AddressFamily::V6, vec!["[2001:db8::9]:1", "[2001:db8::7]:655", "bob.example"]),
    ] {
        let mut bench = Bench::with(|config| {
            config.server.connect_to = vec![name("bob")];
            config.server.address_family = family;
            let hosts = ["198.51.100.7", "2001:db8::7", "bob.example"];
            let hosts = hosts.map(|host| Address { host: host.to_owned(), port: None });
            config.hosts.get_mut(&name("bob")).unwrap().addresses = hosts.to_vec();
        });
        bench.node.set_recent_addresses(&name("bob"), &addresses);
        let mut all: Vec<String> =
            dialled(&mut bench, 1).into_iter().map(|(address, _)| address).collect();
        // The name has an IPv4 address.
        let resolved = all.split_off(expected.len());
        assert_eq!(all, expected);
        assert_eq!(resolved.is_empty(), family == AddressFamily::V6, "{resolved:?}");
    }
}

/// Section 5.2: the answering node must be the dialled one.
#[test]
fn another_node_at_the_dialled_address_is_refused() {
    let mut bench = Bench::with(|config| {
        config.server.connect_to = vec![name("bob")];
        let bob = config.hosts.get_mut(&name("bob")).unwrap();
        bob.addresses = vec![Address { host: "198.51.100.7".to_owned(), port: None }];
    });
    let dial = |bench: &mut Bench| -> ConnectionId {
        bench.node.tick(bench.now);
        bench.pump();
        let id = bench.outputs().into_iter().find_map(|output| match output {
            Output::Dial { connection, .. } => Some(connection),
            _ => None,
        });
        id.expect("a dial")
    };
    let id = dial(&mut bench);
    bench.node.connected(bench.now, id, local());
    assert_eq!(
        bench.node.pop(),
        Some(Output::Send { connection: id, bytes: b"0 alice 17.7\n".to_vec() })
    );
    bench.node.receive(bench.now, id, b"0 carol 17.7\n");
    bench.pump();
    assert_eq!(bench.close_reason(), Some(CloseReason::OtherNode(name("carol"), name("bob"))));
    bench.now = bench.now + Duration::from_secs(10);
    let id = dial(&mut bench);
    bench.join("bob");
    assert!(!bench.is_open(id), "the node connected by itself, so the attempt ends");
    bench.say("bob", "9");
    assert!(bench.node.disconnect(bench.now, &name("bob")));
    bench.pump();
    assert_eq!(bench.close_reason(), Some(CloseReason::Requested));
    assert!(!bench.node.disconnect(bench.now, &name("bob")));
    // It is kept all the same.
    let again = dialled(&mut bench, 10);
    assert!(again.first().is_some_and(|(_, at)| (5..=6).contains(at)), "{again:?}");
    // So is one that is being opened.
    bench.now = bench.now + Duration::from_secs(30);
    let id = dial(&mut bench);
    assert!(bench.node.disconnect(bench.now, &name("bob")));
    assert!(!bench.is_open(id));
    let again = dialled(&mut bench, 60);
    assert!(again.first().is_some_and(|(_, at)| *at >= 5), "{again:?}");
}

/// Section 5.9: packets are dropped more and more from half of the queue's length on, and messages never.
#[test]
fn a_full_queue_drops_packets_but_no_messages() {
    let mut bench = Bench::new();
    let id = bench.join("bob");
    let sent = |bench: &mut Bench, backlog| {
        bench.node.set_backlog(id, backlog);
        for _ in 0..100 {
            bench.packet("bob", &super::bench::ipv4(100));
        }
        bench.take_packets("bob").len()
    };
    assert_eq!(sent(&mut bench, 0), 100);
    assert_eq!(sent(&mut bench, 15_180 / 2 - 200), 100);
    let some = sent(&mut bench, 15_180 * 3 / 4);
    assert!((20..80).contains(&some), "{some}");
    assert_eq!(sent(&mut bench, 15_180), 0);
    bench.forget();
    bench.say("bob", "8");
    assert_eq!(bench.take("bob"), ["9"]);
    assert!(bench.node.counters().queue_full >= 100);
}

/// A neighbour that reads nothing while others send is given up.
#[test]
fn a_queue_of_messages_is_bounded() {
    let mut bench = Bench::new();
    let id = bench.join("bob");
    bench.node.set_backlog(id, super::super::MAX_QUEUE + 1);
    bench.say("bob", "8");
    assert_eq!(bench.close_reason(), Some(CloseReason::QueueFull));
}

/// A reload closes connections with nodes whose host file changed, and announces the subnets that changed (section 15.3).
#[test]
fn a_reload_announces_changes_and_closes_changed_nodes() {
    let mut bench = Bench::new();
    let (bob, carol) = (bench.join("bob"), bench.join("carol"));
    let mut hosts = bench.node.hosts.clone();
    hosts.remove(&name("bob"));
    bench.node.reload(bench.now, hosts, &["10.7.0.0/16".parse().unwrap()]);
    bench.pump();
    assert!(!bench.is_open(bob) && bench.is_open(carol));
    let lines = bench.take("carol");
    let subnets: Vec<&String> =
        lines.iter().filter(|it| it.starts_with("1") && it.contains('/')).collect();
    assert_eq!(subnets, ["11 R alice 10.1.0.0/16", "10 R alice 10.7.0.0/16"]);
    bench.node.close_all(bench.now);
    assert!(!bench.is_open(carol));
    let _: &Node = &bench.node;
}

/// A scrape of the metrics takes the reachable nodes in slices.
#[test]
fn reachable_nodes_are_described_in_the_order_of_their_identifiers() {
    let mut bench = Bench::new();
    bench.join("bob");
    bench.edges("bob", &[("bob", "dave"), ("dave", "carol"), ("erin", "frank")]);
    let mut expected = ["bob", "carol", "dave"].map(|node| (name(node).id(), name(node)));
    expected.sort();
    let mut after = None;
    for (id, node) in expected {
        let first = bench.node.reachable_after(after).next().expect("a node");
        assert_eq!((first.id, &first.name), (id, &node));
        after = Some(id);
    }
    assert!(bench.node.reachable_after(after).next().is_none());
    assert_eq!(
        bench.node.reachable_after(None).count(),
        3,
        "neither alice nor those behind no edge"
    );
}

/// A stream of announcements is read at intervals. What a session or a packet waits for is not.
#[test]
fn only_messages_that_can_wait_delay_the_next_read() {
    let mut bench = Bench::new();
    let id = bench.join("bob");
    let mut next_read = |lines: &[&str]| {
        let records = lines.iter().map(|line| bench.seal("bob", format!("{line}\n").as_bytes()));
        let bytes = records.collect::<Vec<_>>().concat();
        let delays = (0..20).map(|_| bench.node.receive(bench.now, id, &[]).since(bench.now));
        let delayed = delays.last().unwrap();
        assert!(!delayed.is_zero(), "it has been read often");
        bench.node.receive(bench.now, id, &bytes).since(bench.now)
    };
    let can_wait = [
        "8",
        "10 1 dave 10.9.0.0/16",
        "11 1 dave 10.9.0.0/16",
        "12 1 dave erin 192.0.2.9 655 700000c 5",
        "13 1 dave erin",
        "14 1 dave",
        "22 bob alice 192.0.2.9 655",
        "23 bob alice 1400",
    ];
    for line in can_wait {
        assert!(!next_read(&[line]).is_zero(), "{line}");
    }
    for line in ["9", "15 bob alice 15 AAAA", "16 bob alice AAAA -1 -1 -1 0"] {
        assert!(next_read(&[line]).is_zero(), "{line}");
    }
    assert!(next_read(&["17 4", "abc"]).is_zero(), "a packet");
    assert!(next_read(&[can_wait[1], "9", can_wait[2]]).is_zero(), "together");
    assert!(next_read(&["21 12"]).is_zero(), "before a datagram");
    for _ in 0..12 {
        let piece = bench.node.receive(bench.now, id, &[0]);
        assert_eq!(piece, bench.now, "a piece of the datagram");
    }
    assert!(bench.node.neighbours().next().is_some(), "still connected");
}
