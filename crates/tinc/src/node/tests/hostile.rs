//! Nodes of the net and strangers that want to do harm, beyond the single rules of the protocol.

use std::net::SocketAddr;
use std::time::Duration;

use super::bench::{ACK, Bench, RemoteSession, address, ipv4, key, name};
use crate::aead::Cipher;
use crate::base64;
use crate::config::HostConfig;
use crate::keys::PublicKey;
use crate::node::{Event, Excess};
use crate::sptps::{CipherChoice, Datagram, Error, Params, Role, WindowSize, data_label};

fn two_neighbours() -> Bench {
    let mut bench = Bench::new();
    bench.join("bob");
    bench.join("carol");
    bench.forget();
    bench
}

/// Edges can make two neighbours each other's next hop. The search for the way to one of them once went in this circle until the stack was full.
#[test]
fn next_hops_in_a_circle_come_to_an_end() {
    let mut bench = Bench::new();
    bench.join("aaron");
    for indirect in ["bob", "carol"] {
        bench.join_with(indirect, "4 655 10 700000d");
    }
    // Ways without indirect edges, which are longer, and then lighter ones of the same length through the other neighbour.
    bench.edges("aaron", &[("aaron", "way"), ("way", "bob"), ("way", "carol")]);
    for (number, (from, to, weight)) in [
        ("carol", "p", -50),
        ("p", "carol", 1000),
        ("p", "bob", -50),
        ("bob", "p", 1000),
        ("bob", "q", -50),
        ("q", "bob", 1000),
        ("q", "carol", -50),
        ("carol", "q", 1000),
    ]
    .into_iter()
    .enumerate()
    {
        bench.say("aaron", &format!("12 f{number} {from} {to} 192.0.2.9 655 700000c {weight}"));
    }
    let next_hop = |who| bench.info(who).next_hop.unwrap().to_string();
    assert_eq!((next_hop("bob"), next_hop("carol")), ("carol".to_owned(), "bob".to_owned()));
    bench.packet("bob", &ipv4(100));
    bench.wait(10);
}

/// tinc accepts some lines that adit cannot read, and passes them on. The neighbour that does is innocent.
#[test]
fn a_line_that_another_node_made_up_does_not_end_the_connection() {
    let mut bench = two_neighbours();
    let long = "n".repeat(256);
    let words = "w ".repeat(1100);
    let rows = [
        "10 0x1 dave 10.9.0.0/16".to_owned(),
        "10 1 dave 10.9.0".to_owned(),
        "11 2 da-ve 10.9.0.0/16".to_owned(),
        "12 3 dave erin 192.0.2.9 655 1ffffffff 5".to_owned(),
        "12 4 dave erin 192.0.2.9 655 0 99999999999".to_owned(),
        "12 5 dave dave 192.0.2.9 655 0 5".to_owned(),
        "12 6 dave erin 192.0.2.9 655 0 5 10.0.0.1".to_owned(),
        format!("12 7 dave erin {} 655 0 5", "1".repeat(65)),
        format!("13 8 dave {long}"),
        format!("14 9 {long}"),
        format!("14 a dave {words}"),
        "15 bob alice -5".to_owned(),
        "16 bob alice AAAA 0 0 0 99999999999".to_owned(),
        "22 bob alice 192.0.2.9".to_owned(),
        "23 bob alice x".to_owned(),
    ];
    for (number, line) in (1..).zip(&rows) {
        bench.say("bob", line);
        assert_eq!(bench.take("carol"), [] as [&str; 0], "{line}");
        assert_eq!(bench.node.counters().refused_lines, number, "{line}");
    }
    let id = bench.id("bob");
    assert!(bench.is_open(id));
    let refused = |event: &&Event| matches!(event, Event::LineRefused { .. });
    assert_eq!(bench.events().iter().filter(refused).count(), 1, "reported once");
    assert!(!bench.node.graph().contains(&name("dave")));
    bench.say("bob", "17 9019");
    assert!(!bench.is_open(id), "what is between neighbours alone ends the connection");
}

/// Any node can ask for a session in the name of another one.
#[test]
fn a_request_in_anothers_name_does_not_end_a_session() {
    let mut bench = two_neighbours();
    bench.edges("bob", &[("bob", "dave")]);
    let mut session = bench.session("bob", "dave");
    let (_, kex) = start(&mut bench, "dave", CipherChoice::default());
    let forged = base64::encode(&kex);
    bench.say("carol", &format!("15 dave alice 15 {forged}"));
    assert!(bench.info("dave").session);
    let garbage = base64::encode(&[&[0, 0, 0, 1, 128][..], &[7; 64]].concat());
    bench.say("carol", &format!("16 dave alice {garbage} -1 -1 -1 0"));
    bench.send_record(&mut session, address("dave"), 0, &ipv4(50));
    assert_eq!(bench.delivered().len(), 1);
    bench.packet("dave", &ipv4(60));
    assert_eq!(bench.take_packets("bob").len(), 1);
    // The real node may ask for another session all the same.
    bench.forget();
    let mut next = bench.request_session("bob", "dave");
    assert!(bench.info("dave").session);
    bench.continue_session("bob", &mut next);
    assert!(next.sptps.is_established());
    bench.send_record(&mut next, address("dave"), 0, &ipv4(50));
    assert_eq!(bench.delivered().len(), 1);
    bench.send_record(&mut session, address("dave"), 0, &ipv4(50));
    assert_eq!(bench.delivered().len(), 0, "the former one is over");
}

#[test]
fn a_request_that_is_not_proved_in_time_has_no_effect() {
    let mut bench = two_neighbours();
    let mut session = bench.session("bob", "bob");
    bench.send_record(&mut session, address("bob"), 0, &ipv4(50));
    let mut late = bench.request_session("bob", "bob");
    bench.wait(10);
    let lines = bench.take("bob");
    let answer = lines.iter().find_map(|line| line.strip_prefix("16 alice bob ")).unwrap();
    let kex = base64::decode(answer.split(' ').next().unwrap().as_bytes()).unwrap();
    let mut sig = Vec::new();
    late.sptps.receive_handshake(&kex, &mut bench.random, &mut sig).unwrap();
    bench.answer("bob", &late, &sig[0]);
    assert_eq!(bench.node.counters().refused_handshakes, 1);
    bench.forget();
    bench.send_record(&mut session, address("bob"), 0, &ipv4(50));
    assert_eq!(bench.delivered().len(), 1);
}

/// The signature proves that the node itself asks, with another cipher, and so that it has given up the former session.
#[test]
fn a_request_with_another_cipher_ends_the_session() {
    let mut bench = two_neighbours();
    bench.session("bob", "bob");
    bench.forget();
    let (mut sptps, kex) = start(&mut bench, "bob", CipherChoice::Fixed(Cipher::Aes256Gcm));
    bench.say("bob", &format!("15 bob alice 15 {}", base64::encode(&kex)));
    let lines = bench.take("bob");
    let answer = lines.iter().find_map(|line| line.strip_prefix("16 alice bob ")).unwrap();
    let kex = base64::decode(answer.split(' ').next().unwrap().as_bytes()).unwrap();
    let mut sig = Vec::new();
    sptps.receive_handshake(&kex, &mut bench.random, &mut sig).unwrap();
    bench.say("bob", &format!("16 bob alice {} -1 -1 -1 0", base64::encode(&sig[0])));
    let error = Error::OtherCipher { own: Cipher::ChaCha20Poly1305, peer: Cipher::Aes256Gcm };
    assert!(bench.events().contains(&Event::HandshakeFailed { node: name("bob"), error }));
    assert!(!bench.info("bob").session);
}

/// Starts a session in a node's name. Returns it, and its first record.
fn start(bench: &mut Bench, from: &str, cipher: CipherChoice) -> (Datagram, Vec<u8>) {
    let (key, label) = (key(from), data_label(from, "alice"));
    let params = Params { role: Role::Initiator, key, peer: alice(), label, cipher };
    Datagram::start(params, WindowSize::DEFAULT, &mut bench.random)
}

fn alice() -> PublicKey {
    key("alice").public()
}

/// Records that are not authentic come from anyone. As long as authentic ones come as well, they do not restart a session.
#[test]
fn forged_records_do_not_restart_a_session_in_order() {
    let mut bench = two_neighbours();
    bench.edges("bob", &[("bob", "dave")]);
    let mut session = bench.session("bob", "dave");
    let restarts = |bench: &mut Bench, session: &mut RemoteSession, is_heard| {
        bench.wait(9);
        if is_heard {
            bench.send_record(session, address("dave"), 0, &ipv4(50));
        }
        bench.wait(2);
        bench.forget();
        let forged = [&name("alice").id().0[..], &name("dave").id().0, &[9; 40]].concat();
        bench.say("carol", &format!("21 {}", forged.len()));
        bench.send_raw("carol", &forged);
        bench.say("carol", "16 dave alice AAAA -1 -1 -1 0");
        bench.events().contains(&Event::SessionRestarted(name("dave")))
    };
    for _ in 0..4 {
        assert!(!restarts(&mut bench, &mut session, true));
    }
    assert_eq!(bench.node.counters().refused_records, 4);
    assert!(!restarts(&mut bench, &mut session, false), "heard a short while ago");
    assert!(restarts(&mut bench, &mut session, false));
}

/// Nothing that claims to come from this node itself is passed on or answered.
#[test]
fn messages_in_this_nodes_own_name_are_dropped() {
    let mut bench = two_neighbours();
    for line in [
        "15 alice carol 15 AAAA",
        "15 alice carol 19",
        "16 alice carol AAAA -1 -1 -1 0",
        "22 alice carol 192.0.2.9 655",
        "23 alice carol 1400",
    ] {
        bench.say("bob", line);
        assert_eq!((bench.take("bob").len(), bench.take("carol").len()), (0, 0), "{line}");
    }
    assert_eq!(bench.node.counters().refused_lines, 5);
    let forged = [&name("carol").id().0[..], &name("alice").id().0, &[9; 40]].concat();
    bench.say("bob", &format!("21 {}", forged.len()));
    bench.send_raw("bob", &forged);
    assert_eq!(bench.node.counters().not_relayed, 1);
    assert_eq!((bench.take_packets("carol").len(), bench.datagrams().len()), (0, 0));
}

/// Two nodes with different views of the net must not exchange a message without end.
#[test]
fn a_message_does_not_go_back_to_the_neighbour_it_came_from() {
    let mut bench = two_neighbours();
    bench.edges("bob", &[("bob", "dave"), ("bob", "erin")]);
    for line in [
        "15 erin dave 15 AAAA",
        "15 erin dave 19",
        "16 erin dave AAAA -1 -1 -1 0",
        "22 erin dave 192.0.2.9 655",
        "23 erin dave 1400",
    ] {
        bench.say("bob", line);
        assert_eq!(bench.take("bob"), [] as [&str; 0], "{line}");
    }
    assert_eq!(bench.node.counters().not_relayed, 5);
    bench.say("carol", "15 carol dave 19");
    assert_eq!(bench.take("bob"), ["15 carol dave 19"]);
}

/// The tables of a net in which a neighbour has filled its share are larger than the queue of a connection.
#[test]
fn a_new_neighbour_gets_as_much_as_its_queue_has_room_for() {
    let mut bench = Bench::new();
    bench.join("bob");
    let owners: Vec<String> = (0..50).map(|number| format!("{number:0>250}")).collect();
    for (number, owner) in owners.iter().enumerate() {
        for host in 0..300 {
            bench.say(
                "bob",
                &format!("10 {host:x} {owner} 10.{number}.{}.{}", host / 256, host % 256),
            );
        }
    }
    assert_eq!(bench.node.subnets().len(), 15_001);
    let id = bench.handshake("carol");
    bench.forget();
    let ack = bench.seal("carol", format!("{ACK}\n").as_bytes());
    bench.node.receive(bench.now, id, &ack);
    let sent = |bench: &mut Bench| bench.raw(id).len();
    let first = sent(&mut bench);
    assert!((4 << 20..5 << 20).contains(&first), "{first}");
    bench.node.set_backlog(id, first);
    let soon = bench.now + Duration::from_millis(20);
    assert!(bench.node.deadline() <= soon);
    bench.node.tick(soon);
    assert_eq!(sent(&mut bench), 0, "nothing has been read");
    bench.node.set_backlog(id, 0);
    bench.node.tick(soon);
    let rest = sent(&mut bench);
    assert!(rest > 100_000 && first + rest > 15_000 * 290, "{rest}");
    bench.node.set_backlog(id, 0);
    bench.node.tick(soon);
    assert_eq!(sent(&mut bench), 0);
    assert!(bench.is_open(id));
}

/// One line can change the whole graph, so the time for computing routes is limited, and not only the number of lines.
#[test]
fn routes_are_computed_within_a_budget() {
    let mut bench = two_neighbours();
    while bench.node.computing.take(bench.now, 1 << 16, super::super::COMPUTING) {}
    bench.edges("bob", &[("bob", "dave")]);
    assert!(!bench.info("dave").reachable, "not yet");
    assert!(bench.node.deadline() <= bench.now + Duration::from_millis(20));
    bench.wait(1);
    assert!(bench.info("dave").reachable);
    // A neighbour that connects a second time begins new sessions on both sides, so this does not wait.
    bench.session("carol", "carol");
    while bench.node.computing.take(bench.now, 1 << 16, super::super::COMPUTING) {}
    bench.handshake("carol");
    bench.say("carol", ACK);
    assert!(!bench.info("carol").session);
}

#[test]
fn a_large_graph_takes_more_of_the_budget() {
    let mut bench = two_neighbours();
    let before = bench.node.graph().size();
    bench.edges("bob", &[("bob", "dave")]);
    assert_eq!(bench.node.graph().size(), before + 3);
}

/// One stranger must not keep all nodes away.
#[test]
fn one_address_gets_half_of_the_connections() {
    let mut bench = Bench::new();
    let local = SocketAddr::from(([192, 0, 2, 1], 655));
    let stranger = |port| SocketAddr::from(([198, 51, 100, 7], port));
    let mut now = bench.now;
    let mut accepted = 0;
    for port in 0..600 {
        now = now + Duration::from_millis(100);
        accepted += u32::from(bench.node.accept(now, stranger(port), local).is_some());
        bench.node.tick(now);
    }
    assert!((25..=40).contains(&accepted), "{accepted} in a minute");
    bench.now = now;
    bench.handshake("bob");
    // A node that has proved who it is makes room for the next one behind the same address.
    let mut bench = Bench::new();
    for _ in 0..9 {
        bench.handshake("bob");
    }
}

/// Requests for sessions count as lines, because each costs the computation of keys.
#[test]
fn requests_for_sessions_are_limited() {
    let mut bench = two_neighbours();
    bench.edges("bob", &[("bob", "dave")]);
    while bench.node.limits.line(bench.now, &name("bob")) {}
    bench.request_session("bob", "dave");
    assert_eq!(bench.take("bob"), [] as [&str; 0]);
    let excess = Event::Excess { node: name("bob"), excess: Excess::Lines };
    assert!(bench.events().contains(&excess));
    bench.wait(1);
    assert!(bench.session("bob", "dave").sptps.is_established());
    bench.forget();
    while bench.node.limits.line(bench.now, &name("bob")) {}
    bench.say("bob", "16 dave alice AAAA -1 -1 -1 0");
    assert_eq!(bench.node.counters().refused_handshakes, 0);
}

/// Each learned key becomes a file, and with too many files the daemon does not start.
#[test]
fn no_key_is_learned_beyond_a_number_of_host_files() {
    let mut bench = two_neighbours();
    bench
        .node
        .hosts
        .extend((0..8192).map(|number| (name(&format!("host{number}")), HostConfig::default())));
    bench.edges("bob", &[("bob", "newcomer")]);
    bench.packet("newcomer", &ipv4(100));
    let newcomer = key("newcomer").public();
    bench.say("bob", &format!("15 newcomer alice 20 {newcomer}"));
    assert!(bench.node.host(&name("newcomer")).is_none());
    // Nor more than a number while the node runs, whatever becomes of the files.
    for (learned, expected) in [(4096, false), (4095, true)] {
        bench.node.hosts.retain(|node, _| *node == name("bob"));
        bench.node.learned_keys = learned;
        bench.wait(11);
        bench.packet("newcomer", &ipv4(100));
        bench.say("bob", &format!("15 newcomer alice 20 {newcomer}"));
        assert_eq!(bench.node.host(&name("newcomer")).is_some(), expected);
    }
}

/// An answer to a probe names no probe, so a node that forges source addresses could claim that of another node.
#[test]
fn the_address_of_another_node_is_not_confirmed() {
    let mut bench = two_neighbours();
    let mut bob = bench.session("bob", "bob");
    let mut carol = bench.session("carol", "carol");
    let answer = [&[2, 0, 18][..], &[0; 15]].concat();
    bench.send_record(&mut bob, address("bob"), 4, &answer);
    assert!(bench.info("bob").udp_confirmed);
    bench.send_record(&mut carol, address("bob"), 4, &answer);
    assert!(!bench.info("carol").udp_confirmed);
    bench.wait(31);
    assert!(!bench.info("bob").udp_confirmed);
    bench.send_record(&mut carol, address("bob"), 4, &answer);
    assert!(bench.info("carol").udp_confirmed, "the address is free");
}

/// New keys cost time.
#[test]
fn a_neighbour_does_not_renew_keys_all_the_time() {
    let mut bench = two_neighbours();
    let id = bench.id("bob");
    for _ in 0..4 {
        bench.rekey("bob");
        bench.say("bob", "8");
        assert_eq!(bench.take("bob"), ["9"]);
    }
    bench.wait(60);
    bench.rekey("bob");
    assert!(bench.is_open(id));
    bench.rekey("bob");
    assert!(!bench.is_open(id));
}

/// A packet must not cost a search through all that a node announces for its destination.
#[test]
fn subnets_with_the_same_addresses_are_limited() {
    let mut bench = two_neighbours();
    for weight in 0..1100 {
        bench.say("bob", &format!("10 {weight:x} dave 10.0.0.0/8#{weight}"));
    }
    assert_eq!(bench.node.subnets().of(&name("dave")).count(), 1024);
    assert_eq!(bench.info("bob").dropped_announcements, 76);
    bench.say("bob", "10 0 dave 10.0.0.0/9");
    assert_eq!(bench.node.subnets().of(&name("dave")).count(), 1025);
}

/// The share of a table is one limit, the number of lines another.
#[test]
fn lines_beyond_the_rate_are_dropped_and_attributed() {
    let mut bench = two_neighbours();
    while bench.node.limits.line(bench.now, &name("bob")) {}
    bench.say("bob", "10 1 dave 10.9.0.0/16");
    assert_eq!(bench.take("carol"), [] as [&str; 0]);
    assert!(!bench.node.graph().contains(&name("dave")));
    let excess = Event::Excess { node: name("bob"), excess: Excess::Lines };
    assert!(bench.events().contains(&excess));
    bench.say("carol", "10 1 dave 10.9.0.0/16");
    assert_eq!(bench.take("bob"), ["10 R dave 10.9.0.0/16"], "the same line from another one");
    bench.node.limits.edges = crate::node::limits::Share::new(0);
    bench.say("carol", "12 2 dave erin 192.0.2.9 655 0 1");
    bench.node.limits.edges = crate::node::limits::Share::new(9);
    bench.wait(1);
    bench.forget();
    bench.say("bob", "12 2 dave erin 192.0.2.9 655 0 1");
    assert_eq!(bench.take("carol"), ["12 R dave erin 192.0.2.9 655 0 1"]);
}
