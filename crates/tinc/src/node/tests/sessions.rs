//! Section 9 and 6.6: sessions for packets, their handshakes, and keys over the net.

use std::time::Duration;

use super::bench::{Bench, address, ipv4, key, name};
use crate::aead::Cipher;
use crate::base64;
use crate::config::HostConfig;
use crate::node::Event;
use crate::node::peer::MAX_HELD_BY_ALL;

/// A neighbour bob, and dave behind it.
fn with_dave() -> Bench {
    let mut bench = Bench::new();
    bench.join("bob");
    bench.edges("bob", &[("bob", "dave")]);
    bench
}

/// Returns the first record in a REQ_KEY for a node.
fn request(bench: &mut Bench, through: &str, to: &str) -> Option<String> {
    let prefix = format!("15 alice {to} 15 ");
    let lines = bench.take(through);
    let request = lines.iter().find_map(|line| line.strip_prefix(&prefix))?;
    // An offer of AES-256-GCM may follow.
    request.split(' ').next().map(str::to_owned)
}

/// Section 9.1: a packet starts a session, and an unanswered request is repeated after ten seconds.
#[test]
fn a_packet_starts_a_session() {
    let mut bench = with_dave();
    bench.packet("dave", &ipv4(100));
    let kex = request(&mut bench, "bob", "dave").expect("a request");
    assert_eq!(base64::decode(kex.as_bytes()).unwrap().len(), 70);
    assert_eq!(bench.node.counters().no_session, 1);
    bench.packet("dave", &ipv4(100));
    bench.wait(9);
    bench.packet("dave", &ipv4(100));
    assert_eq!(request(&mut bench, "bob", "dave"), None, "not yet");
    bench.wait(1);
    bench.packet("dave", &ipv4(100));
    let second = request(&mut bench, "bob", "dave").expect("another request");
    assert_ne!(second, kex);
    let session = bench.answer_session("bob", "dave", &second);
    assert!(session.sptps.is_established() && bench.info("dave").session);
    assert!(bench.events().contains(&Event::SessionEstablished(name("dave"))));
}

/// Section 9.2: a request begins another session, and the answer travels in ANS_KEY. Section 11.5: an MTU_INFO follows. Unlike tinc's, the former
/// session ends only when the node has proved that the request is its own.
#[test]
fn a_request_is_answered_and_replaces_a_session() {
    let mut bench = with_dave();
    let first = bench.session("bob", "dave");
    assert!(bench.info("dave").session);
    let lines = bench.take("bob");
    assert!(lines.contains(&"23 alice dave 1518".to_owned()), "{lines:?}");
    let mut pending = bench.request_session("bob", "dave");
    assert!(bench.info("dave").session);
    bench.continue_session("bob", &mut pending);
    assert!(pending.sptps.is_established());
    drop(first);
}

/// Section 9.3: if both ask at once, the greater name remains the initiator.
#[test]
fn the_greater_name_wins_a_race() {
    let mut bench = with_dave();
    bench.edges("bob", &[("bob", "aaron")]);
    // alice is smaller than dave, and answers it.
    bench.packet("dave", &ipv4(100));
    bench.take("bob");
    let session = bench.session("bob", "dave");
    assert!(session.sptps.is_established());
    // alice is greater than aaron, and ignores it.
    bench.packet("aaron", &ipv4(100));
    let kex = request(&mut bench, "bob", "aaron").unwrap();
    bench.request_session("bob", "aaron");
    assert_eq!(bench.take("bob").iter().filter(|line| line.starts_with("16 ")).count(), 0);
    let session = bench.answer_session("bob", "aaron", &kex);
    assert!(session.sptps.is_established());
    // Once its own request is old, it answers.
    bench.wait(11);
    bench.request_session("bob", "aaron");
    assert!(bench.take("bob").iter().any(|line| line.starts_with("16 alice aaron ")));
}

/// Section 9.3: a node of tinc yields whatever its name is. If this node yields as well, it takes the answer to its own request.
#[test]
fn a_race_is_won_if_the_other_node_yields_too() {
    let mut bench = with_dave();
    bench.packet("dave", &ipv4(100));
    let kex = request(&mut bench, "bob", "dave").unwrap();
    // tinc's own request is on its way, and alice answers it. tinc cannot use the answer.
    bench.request_session("bob", "dave");
    assert!(bench.take("bob").iter().any(|line| line.starts_with("16 alice dave ")));
    let session = bench.answer_session("bob", "dave", &kex);
    assert!(session.sptps.is_established() && bench.info("dave").session);
    assert_eq!(bench.node.counters().refused_handshakes, 0);
}

/// Section 9.4: keys over the net, once, and only when asked for.
#[test]
fn a_missing_key_is_asked_for_and_never_replaced() {
    let mut bench = Bench::with(|config| {
        config.hosts.insert(name("dave"), HostConfig::default());
    });
    bench.join("bob");
    bench.edges("bob", &[("bob", "dave")]);
    let (dave, other) = (key("dave").public(), key("mallory").public());
    bench.say("bob", &format!("15 dave alice 20 {other}"));
    assert_eq!(bench.node.host(&name("dave")).unwrap().public_key, None, "nobody asked");
    bench.packet("dave", &ipv4(100));
    assert!(bench.take("bob").contains(&"15 alice dave 19".to_owned()));
    bench.say("bob", &format!("15 dave alice 20 {dave}"));
    assert!(bench.events().contains(&Event::KeyLearned { node: name("dave"), key: dave }));
    let kex = request(&mut bench, "bob", "dave").expect("the session starts at once");
    bench.say("bob", &format!("15 dave alice 20 {other}"));
    assert_eq!(bench.node.host(&name("dave")).unwrap().public_key, Some(dave));
    assert!(bench.answer_session("bob", "dave", &kex).sptps.is_established());
}

/// Section 9.4: the other side's key is asked for first.
#[test]
fn a_node_that_asks_for_the_key_is_asked_for_its_own() {
    let mut bench = with_dave();
    let own = key("alice").public();
    bench.say("bob", "15 dave alice 19");
    assert_eq!(bench.take("bob"), [format!("15 alice dave 20 {own}")]);
    bench.node.hosts.insert(name("dave"), HostConfig::default());
    bench.say("bob", "15 dave alice 19");
    let expected = ["15 alice dave 19".to_owned(), format!("15 alice dave 20 {own}")];
    assert_eq!(bench.take("bob"), expected);
    bench.node.hosts.insert(name("dave"), HostConfig::default());
    bench.wait(11);
    bench.request_session("bob", "dave");
    let lines = bench.take("bob");
    assert!(lines.contains(&"15 alice dave 19".to_owned()), "{lines:?}");
    assert!(!lines.iter().any(|it| it.starts_with("16 ")), "section 9.2: the request is dropped");
}

/// A damaged host file must not make its node one whose key anyone on the way may choose.
#[test]
fn a_key_that_cannot_be_read_is_not_replaced_by_one_from_the_net() {
    let damaged = || HostConfig { unusable_key: true, ..HostConfig::default() };
    let mut bench = Bench::with(|config| {
        config.hosts.insert(name("dave"), damaged());
    });
    bench.join("bob");
    bench.edges("bob", &[("bob", "dave")]);
    bench.packet("dave", &ipv4(100));
    assert!(!bench.take("bob").contains(&"15 alice dave 19".to_owned()));
    // It was asked for before the file was damaged.
    bench.node.hosts.insert(name("dave"), HostConfig::default());
    bench.wait(11);
    bench.packet("dave", &ipv4(100));
    assert!(bench.take("bob").contains(&"15 alice dave 19".to_owned()));
    bench.node.hosts.insert(name("dave"), damaged());
    bench.say("bob", &format!("15 dave alice 20 {}", key("dave").public()));
    assert_eq!(bench.node.host(&name("dave")).unwrap().public_key, None);
}

#[test]
fn learn_keys_can_be_switched_off() {
    let mut bench = Bench::with(|config| {
        config.server.learn_keys = false;
        config.hosts.remove(&name("dave"));
    });
    bench.join("bob");
    bench.edges("bob", &[("bob", "dave")]);
    bench.packet("dave", &ipv4(100));
    bench.say("bob", &format!("15 dave alice 20 {}", key("dave").public()));
    assert!(bench.node.host(&name("dave")).is_none());
}

/// Section 6.6 and 6.7: messages for others take the next hop, verbatim; those of unknown and unreachable nodes are ignored.
#[test]
fn requests_and_answers_for_others_are_passed_on() {
    let mut bench = with_dave();
    bench.join("carol");
    for line in
        ["15 dave carol", "15 dave carol 15 AAAA more", "15 dave carol 19", "15 dave carol 99"]
    {
        bench.say("bob", line);
        assert_eq!(bench.take("carol"), [line]);
    }
    let answer = "16 carol dave AAAA -1 -1 -1 0";
    bench.say("carol", answer);
    assert_eq!(bench.take("bob"), [answer]);
    bench.say("bob", "12 1 erin frank 192.0.2.9 655 0 1");
    bench.forget();
    for line in ["15 dave nobody 19", "15 nobody carol 19", "15 dave erin 19", "15 erin alice 19"] {
        bench.say("bob", line);
        assert_eq!((bench.take("bob"), bench.take("carol")), (vec![], vec![]), "{line}");
    }
    bench.say("bob", "15 dave alice");
    assert!(bench.take("bob").is_empty(), "section 17.1: tinc 1.0's request");
}

/// Section 6.7: the node that both reach by UDP appends the address at which it sees FROM.
#[test]
fn an_answer_gets_the_address_of_its_sender() {
    let mut bench = Bench::new();
    bench.join("bob");
    bench.join("carol");
    let mut session = bench.session("bob", "bob");
    bench.wait(6);
    bench.answer_probes(&mut session, address("bob"), 18);
    assert!(bench.info("bob").udp_confirmed);
    bench.forget();
    bench.say("carol", "16 carol bob AAAA -1 -1 -1 0");
    let carol = address("carol");
    assert_eq!(
        bench.take("bob"),
        [format!("16 carol bob AAAA -1 -1 -1 0 {} {}", carol.ip(), carol.port())]
    );
    bench.say("carol", "16 carol bob AAAA -1 -1 -1 0 198.51.100.1 7");
    assert_eq!(bench.take("bob"), ["16 carol bob AAAA -1 -1 -1 0 198.51.100.1 7"], "there is one");
    bench.say("bob", "16 bob carol AAAA -1 -1 -1 0");
    assert_eq!(bench.take("carol"), ["16 bob carol AAAA -1 -1 -1 0"], "carol is not confirmed");
}

/// Section 6.7: the recipient uses such an address once the session is established.
#[test]
fn the_reflexive_address_is_used_after_the_handshake() {
    let mut bench = with_dave();
    bench.packet("dave", &ipv4(100));
    let kex = request(&mut bench, "bob", "dave").unwrap();
    let garbage = base64::encode(&[0; 70]);
    bench.say("bob", &format!("16 dave alice {garbage} -1 -1 -1 0 198.51.100.1 7"));
    assert_eq!(bench.info("dave").address, Some(address("dave")));
    assert_eq!(bench.node.counters().refused_handshakes, 1);
    let session = bench.answer_session("bob", "dave", &kex);
    assert!(session.sptps.is_established());
    // The SIG of the initiator completes the session.
    let mut next = bench.request_session("bob", "dave");
    let lines = bench.take("bob");
    let kex = lines.iter().find_map(|line| line.strip_prefix("16 alice dave ")).unwrap();
    let kex = base64::decode(kex.split(' ').next().unwrap().as_bytes()).unwrap();
    let mut sig = Vec::new();
    next.sptps.receive_handshake(&kex, &mut bench.random, &mut sig).unwrap();
    let sig = base64::encode(&sig[0]);
    bench.say("bob", &format!("16 dave alice {sig} -1 -1 -1 0 198.51.100.1 7"));
    assert_eq!(bench.info("dave").address, "198.51.100.1:7".parse().ok());
    assert!(!bench.info("dave").udp_confirmed);
}

/// Section 9.6 and 4.9: what cannot be read starts the session again, at most every ten seconds.
#[test]
fn a_broken_session_starts_again() {
    let mut bench = with_dave();
    let mut session = bench.session("bob", "dave");
    bench.packet("dave", &ipv4(50));
    bench.answer_probes(&mut session, address("dave"), 18);
    assert!(bench.info("dave").udp_confirmed);
    bench.forget();
    let forged = |bench: &mut Bench, from| {
        let mut bytes = [&[0; 6][..], &name("dave").id().0, &[9; 40]].concat();
        bench.send_datagram(from, &mut bytes);
        request(bench, "bob", "dave").is_some()
    };
    assert!(!forged(&mut bench, address("dave")), "the session is new");
    bench.wait(19);
    assert!(!forged(&mut bench, address("dave")), "the node was heard a short while ago");
    bench.wait(1);
    assert!(!forged(&mut bench, address("erin")), "from an unknown address: only dropped");
    assert!(forged(&mut bench, address("dave")));
    assert!(bench.events().contains(&Event::SessionRestarted(name("dave"))));
    assert!(!forged(&mut bench, address("dave")));
    assert_eq!(bench.node.counters().refused_records, 4, "the last one may be of the new session");
}

/// Section 9.5: the peer's datagrams under new keys overtake its last SIG, and tinc does not hold them back.
#[test]
fn datagrams_that_overtake_a_rekey_do_not_end_the_session() {
    let mut bench = Bench::with(|config| config.server.key_expire = Duration::from_secs(12));
    bench.join("bob");
    bench.edges("bob", &[("bob", "dave")]);
    let mut session = bench.session("bob", "dave");
    bench.packet("dave", &ipv4(50));
    bench.answer_probes(&mut session, address("dave"), 18);
    assert!(bench.info("dave").udp_confirmed);
    bench.wait(14);
    let begun = bench.take("bob").iter().any(|line| line.starts_with("16 alice dave "));
    assert!(begun, "the rekey");
    bench.forget();
    let mut bytes = [&[0; 6][..], &name("dave").id().0, &[9; 40]].concat();
    bench.send_datagram(address("dave"), &mut bytes);
    assert_eq!(bench.node.counters().refused_records, 1);
    assert_eq!(request(&mut bench, "bob", "dave"), None);
    bench.wait(10);
    assert!(request(&mut bench, "bob", "dave").is_some(), "a rekey that is stuck is given up");
    assert_eq!(bench.node.counters().stuck_rekeys, 1);
}

/// Section 4.6 and 6.5: after KeyExpire the keys are renewed. Section 9.5: the initiator holds packets until a round trip after its last record.
#[test]
fn a_rekey_holds_packets_that_would_overtake_it() {
    let mut bench = Bench::with(|config| config.server.key_expire = Duration::from_secs(100));
    bench.join("bob");
    bench.edges("bob", &[("bob", "dave")]);
    bench.packet("dave", &ipv4(100));
    let kex = request(&mut bench, "bob", "dave").unwrap();
    let mut session = bench.answer_session("bob", "dave", &kex);
    bench.wait(99);
    bench.forget();
    bench.wait(1);
    let lines = bench.take("bob");
    let kex = lines.iter().find_map(|line| line.strip_prefix("16 alice dave ")).expect("a KEX");
    let kex = base64::decode(kex.split(' ').next().unwrap().as_bytes()).unwrap();
    let (mut first, mut second) = (Vec::new(), Vec::new());
    session.sptps.receive_handshake(&kex, &mut bench.random, &mut first).unwrap();
    for record in &first {
        bench.answer("bob", &session, record);
    }
    let sig = bench.take("bob").pop().unwrap();
    bench.now = bench.now + Duration::from_millis(300);
    bench.packet("dave", &ipv4(59));
    let mut packets = bench.take_packets("bob");
    assert_eq!(packets.len(), 1, "under the old keys up to the ACK");
    assert_eq!(session.sptps.open(&mut packets[0][12..]).unwrap().1.len(), 59);
    let sent = |bench: &mut Bench| bench.take_packets("bob").len();
    let sig = base64::decode(sig.split(' ').nth(3).unwrap().as_bytes()).unwrap();
    session.sptps.receive_handshake(&sig, &mut bench.random, &mut second).unwrap();
    for record in &second {
        bench.answer("bob", &session, record);
    }
    bench.continue_session("bob", &mut session);
    bench.packet("dave", &ipv4(60));
    bench.packet("dave", &ipv4(61));
    assert_eq!(sent(&mut bench), 0, "the ACK needs as long as the SIG and its answer");
    assert!(bench.node.deadline() <= bench.now + Duration::from_millis(300));
    bench.now = bench.now + Duration::from_millis(300);
    bench.node.tick(bench.now);
    bench.pump();
    let packets = bench.take_packets("bob");
    let lengths: Vec<usize> = packets
        .into_iter()
        .map(|mut bytes| session.sptps.open(&mut bytes[12..]).unwrap().1.len())
        .collect();
    assert_eq!(lengths, [60, 61], "in order, under the new keys");
    bench.packet("dave", &ipv4(62));
    assert_eq!(sent(&mut bench), 1);
}

/// tinc may handle a datagram before a message that came earlier: a neighbour's PONG shows that it has handled the ACK.
#[test]
fn a_neighbour_answers_a_ping_before_packets_follow_a_rekey() {
    let mut bench = Bench::with(|config| config.server.key_expire = Duration::from_secs(40));
    bench.join("bob");
    bench.packet("bob", &ipv4(100));
    let kex = request(&mut bench, "bob", "bob").unwrap();
    let mut session = bench.answer_session("bob", "bob", &kex);
    bench.find_mtu("bob", &mut session);
    bench.wait(9);
    bench.forget();
    bench.wait(1);
    bench.continue_session("bob", &mut session);
    let pings = |bench: &mut Bench| bench.take("bob").iter().filter(|line| *line == "8").count();
    assert_eq!(pings(&mut bench), 1);
    bench.datagrams();
    bench.wait_in_silence(4);
    // Neither a probe nor the answer to one is sent meanwhile.
    bench.node.peers.get_mut(&name("bob")).unwrap().udp.probe_at = bench.now;
    bench.packet("bob", &ipv4(60));
    bench.send_record(&mut session, address("bob"), 4, &[0; 18]);
    assert_eq!(bench.datagrams(), []);
    bench.say("bob", "9");
    let [(_, mut bytes)] = bench.datagrams().try_into().unwrap();
    assert_eq!(session.sptps.open(&mut bytes[12..]).unwrap().1.len(), 60);
    bench.packet("bob", &ipv4(61));
    assert_eq!(bench.datagrams().len(), 2, "a probe as well");
}

/// Section 4.7: no more than 96 records overtake a handshake record.
#[test]
fn a_rekey_is_not_overtaken_by_a_whole_window() {
    let mut bench = Bench::with(|config| {
        config.server.key_expire = Duration::from_secs(100);
        config.server.max_output_buffer_size = 1_000_000;
    });
    bench.join("bob");
    bench.edges("bob", &[("bob", "dave")]);
    bench.session("bob", "dave");
    bench.wait(115);
    bench.forget();
    for _ in 0..1300 {
        bench.packet("dave", &ipv4(60));
    }
    let sent = bench.take_packets("bob").len() as u64;
    assert!((90..=96).contains(&sent), "{sent}");
    assert_eq!(bench.node.counters().not_held, 1300 - sent - 1024);
    // Those for all nodes are limited as well: bob has all places but one.
    let held = &mut bench.node.peers.get_mut(&name("dave")).unwrap().held;
    let places = std::iter::repeat_n(Vec::new(), MAX_HELD_BY_ALL - 1);
    held.clear();
    bench.node.peers.get_mut(&name("bob")).unwrap().held.extend(places);
    bench.node.settling.insert(name("bob"));
    let before = bench.node.counters().not_held;
    for _ in 0..3 {
        bench.packet("dave", &ipv4(60));
    }
    assert_eq!(bench.node.counters().not_held, before + 2);
    bench.node.peers.get_mut(&name("bob")).unwrap().held.clear();
    bench.wait(10);
    assert!(request(&mut bench, "bob", "dave").is_some(), "a rekey that is stuck is given up");
}

/// Section 4.8: a session is replaced before its sequence numbers end.
#[test]
fn a_worn_session_is_replaced() {
    let mut bench = with_dave();
    let _session = bench.session("bob", "dave");
    bench.wait(10);
    bench.packet("dave", &ipv4(50));
    assert_eq!(request(&mut bench, "bob", "dave"), None);
    let session = bench.node.peers.get(&name("dave")).unwrap().session.as_ref().unwrap();
    session.sptps.set_seqno(1 << 31);
    bench.packet("dave", &ipv4(50));
    assert!(request(&mut bench, "bob", "dave").is_some(), "half of the numbers are used");
}

/// What an operator sees: every known node, sessions by their cipher, and when a node was heard.
#[test]
fn totals_and_the_time_of_the_last_record_are_known() {
    let mut bench = with_dave();
    let before = bench.node.totals();
    // alice, and six host files.
    assert_eq!((before.nodes, before.connections, before.unauthenticated), (7, 1, 0));
    assert!(before.sessions.is_empty());
    assert_eq!(bench.info("dave").heard, None);
    let mut session = bench.session("bob", "dave");
    bench.packet("dave", &ipv4(50));
    bench.answer_probes(&mut session, address("dave"), 18);
    assert_eq!(bench.info("dave").heard, Some(bench.now));
    bench.edges("bob", &[("bob", "zoe")]);
    let local = address("alice");
    bench.node.accept(bench.now, address("erin"), local).unwrap();
    let after = bench.node.totals();
    assert_eq!((after.nodes, after.connections, after.unauthenticated), (8, 2, 1));
    assert_eq!(after.sessions, [(Cipher::ChaCha20Poly1305, 1)].into());
}
