//! Nodes whose packets another layer carries. Section 19: the layer shares the numbers, and handshake records wait until it has stopped.

use std::time::Duration;

use adit_engine::SocketId;

use super::bench::{Bench, RemoteSession, address, ipv4, name};
use crate::aead::Cipher;
use crate::config::Mode;
use crate::meta::Options;
use crate::node::mtu::PathMtu;
use crate::node::{DirectPath, Event, Output, Traffic, UdpEndpoint};

/// A neighbour bob, to which packets go directly.
fn with_bob(change: impl FnOnce(&mut crate::node::NodeConfig)) -> (Bench, RemoteSession) {
    let mut bench = Bench::with(change);
    bench.join("bob");
    let mut session = bench.session("bob", "bob");
    bench.find_mtu("bob", &mut session);
    (bench, session)
}

fn path(bench: &Bench) -> Option<DirectPath> {
    bench.node.direct_path(bench.now, &name("bob"))
}

/// Returns whether bob's path was reported as changed.
fn changed(bench: &mut Bench) -> bool {
    let changes = bench.node.take_changed_paths();
    changes.all || changes.nodes.contains(&name("bob"))
}

/// Another layer carries bob's packets from now on, or no longer.
fn carry(bench: &mut Bench, carried: bool) {
    bench.node.set_carried(bench.now, &name("bob"), carried);
    bench.pump();
}

fn records(bench: &mut Bench) -> Vec<Vec<u8>> {
    let outputs = bench.outputs();
    let records = outputs.into_iter().filter_map(|output| match output {
        Output::Record { to, bytes } => {
            assert_eq!(to, name("bob"));
            Some(bytes)
        }
        Output::Datagram { .. } => panic!("a record of its own"),
        _ => None,
    });
    records.collect()
}

#[test]
fn a_direct_path_needs_all_that_packets_need() {
    let (mut bench, _session) = with_bob(|_| {});
    assert!(changed(&mut bench) && !changed(&mut bench));
    let found = path(&bench).unwrap();
    assert_eq!((found.own, found.peer), (name("alice").id(), name("bob").id()));
    assert_eq!((found.mtu, found.clamp_mss), (bench.info("bob").mtu.1, true));
    let confirmed = UdpEndpoint { address: address("bob"), socket: Some(SocketId(0)) };
    assert_eq!(bench.node.confirmed_address(&name("bob")), Some(confirmed));
    assert_eq!(bench.node.reachable().collect::<Vec<_>>(), [&name("bob")]);
    assert!(bench.node.direct_path(bench.now, &name("alice")).is_none());
    assert!(bench.node.direct_path(bench.now, &name("dave")).is_none());
    let expired = bench.now + bench.node.config.key_expire * 2;
    assert!(bench.node.direct_path(expired, &name("bob")).is_none(), "it is time for new keys");
    bench.node.config.own.tcp_only = true;
    assert!(path(&bench).is_none());
    bench.node.config.own.tcp_only = false;
    bench.node.config.mode = Mode::Hub;
    assert!(path(&bench).is_none());
    bench.node.config.mode = Mode::Switch;
    assert!(path(&bench).is_some());
    bench.node.config.mode = Mode::Router;
    let now = bench.now;
    let mut peer = |change: &dyn Fn(&mut crate::node::peer::Peer)| {
        change(bench.node.peers.get_mut(&name("bob")).unwrap());
        let found = bench.node.direct_path(now, &name("bob"));
        found.is_some()
    };
    assert!(!peer(&|peer| peer.udp.confirmed = false));
    assert!(peer(&|peer| peer.udp.confirmed = true));
    assert!(!peer(&|peer| peer.deferred.push((Vec::new(), None))));
    assert!(peer(&|peer| peer.deferred.clear()));
    assert!(!peer(&|peer| {
        // The largest length is known, but not yet that it is.
        let min = peer.mtu.min;
        peer.mtu = PathMtu::new(None, now);
        peer.mtu.min = min;
    }));
}

#[test]
fn the_options_of_the_edge_decide_about_a_direct_path() {
    let (mut bench, _session) = with_bob(|_| {});
    let (alice, bob) = (name("alice"), name("bob"));
    let mut edge = bench.node.graph.edge(&alice, &bob).unwrap().clone();
    let options = edge.options.0;
    let mut found = |options| {
        edge.options = Options(options);
        bench.node.graph.add_edge(&alice, &bob, edge.clone()).unwrap();
        bench.node.graph.compute();
        bench.node.direct_path(bench.now, &bob).is_some()
    };
    assert!(found(options));
    assert!(!found(options | Options::TCP_ONLY));
    assert!(!found(options & !Options::PMTU_DISCOVERY));
    assert!(!found(options & 0xff_ffff | 3 << 24), "version 1.1.3");
    assert!(found(options & !Options::CLAMP_MSS));
}

#[test]
fn records_of_a_carried_node_are_left_to_the_other_layer() {
    let (mut bench, mut session) = with_bob(|_| {});
    carry(&mut bench, true);
    bench.packet("bob", &ipv4(50));
    let packet = [&[0][..], &ipv4(50)].concat();
    assert!(records(&mut bench).contains(&packet));
    // A probe that the other layer opened is answered.
    let mut probe = [4_u8; 1 + 100];
    probe[1] = 0;
    bench.node.carried_record(bench.now, &name("bob"), &probe);
    bench.pump();
    let answer = [&[4, 2, 0, 100][..], &[0; 11], &[4; 4]].concat();
    assert_eq!(records(&mut bench), std::slice::from_ref(&answer));
    // A packet over TCP is not the other layer's.
    bench.packet("bob", &ipv4(1500));
    assert!(!records(&mut bench).iter().any(|record| record.len() > 1000));
    assert_eq!(bench.take_packets("bob").len(), 1);
    // The other layer gives a record back.
    bench.node.send_record(bench.now, &name("bob"), &answer);
    bench.pump();
    let (to, mut bytes) = bench.datagrams().pop().unwrap();
    assert_eq!(to, address("bob"));
    assert_eq!(session.sptps.open(&mut bytes[12..]), Ok((4, &answer[1..])));
}

#[test]
fn carried_traffic_counts_and_keeps_the_path() {
    let (mut bench, _session) = with_bob(|_| {});
    carry(&mut bench, true);
    let before = bench.info("bob").traffic;
    let more = Traffic { packets_in: 5, bytes_in: 500, packets_out: 7, bytes_out: 900 };
    bench.now = bench.now + Duration::from_secs(20);
    bench.node.carried_traffic(bench.now, &name("bob"), more, 700);
    bench.pump();
    let after = bench.info("bob").traffic;
    assert_eq!(bench.info("bob").heard, Some(bench.now));
    assert_eq!(after.packets_in - before.packets_in, 5);
    assert_eq!(after.bytes_in - before.bytes_in, 500);
    assert_eq!(after.packets_out - before.packets_out, 7);
    assert_eq!(after.bytes_out - before.bytes_out, 900);
    let sent = records(&mut bench);
    assert!(sent.iter().any(|record| record[..2] == [4, 0]), "a probe: {sent:?}");
    assert!(sent.iter().any(|record| record[..4] == [4, 2, 2, 188]), "the largest: {sent:?}");
    bench.now = bench.now + Duration::from_secs(20);
    bench.node.carried_traffic(bench.now, &name("bob"), Traffic::default(), 700);
    bench.pump();
    assert!(records(&mut bench).is_empty(), "without traffic, the path need not live");
    assert_eq!(bench.info("bob").heard, Some(bench.now - Duration::from_secs(20)));
}

/// The peer renews the keys while packets flow. Its KEX waits until no record can overtake the answer.
#[test]
fn a_handshake_record_waits_for_the_other_layer() {
    let (mut bench, mut session) = with_bob(|_| {});
    let before = path(&bench).unwrap();
    carry(&mut bench, true);
    changed(&mut bench);
    let kex = session.sptps.rekey(&mut bench.random).unwrap();
    bench.answer("bob", &session, &kex);
    assert!(changed(&mut bench) && path(&bench).is_none());
    assert!(!bench.take("bob").iter().any(|line| line.starts_with("16 ")), "no answer yet");
    carry(&mut bench, false);
    bench.continue_session("bob", &mut session);
    bench.wait(1);
    assert!(bench.events().contains(&Event::KeysRenewed(name("bob"))));
    assert!(changed(&mut bench));
    let after = path(&bench).unwrap();
    assert!(!after.is_same(&before) && after.is_same(&path(&bench).unwrap()));
}

/// Anyone can send a record in a node's name.
#[test]
fn a_forged_handshake_record_does_not_stop_the_other_layer() {
    let (mut bench, _session) = with_bob(|_| {});
    carry(&mut bench, true);
    bench.say("bob", "16 bob alice AAAAAAIA -1 -1 -1 0");
    assert!(path(&bench).is_some());
    assert_eq!(bench.node.counters().refused_handshakes, 1);
}

/// With another node of adit, the other layer carries on over a rekey of either side, and gets the new keys of the same session at each step.
#[test]
fn a_rekey_of_a_node_of_adit_stops_nothing() {
    for own in [true, false] {
        let mut bench = Bench::with(|config| config.server.key_expire = Duration::from_secs(40));
        bench.join("bob");
        let mut session = bench.session_of_adit("bob", "bob");
        bench.find_mtu("bob", &mut session);
        assert_eq!(bench.info("bob").cipher, Some(Cipher::Aes256Gcm));
        carry(&mut bench, true);
        let (mut last, mut keys) = (path(&bench).unwrap(), 0);
        if own {
            bench.wait(20);
            assert!(path(&bench).is_some(), "although it is time for new keys");
        } else {
            let kex = session.sptps.rekey(&mut bench.random).unwrap();
            bench.answer("bob", &session, &kex);
        }
        changed(&mut bench);
        while bench.answer_handshakes("bob", &mut session) {
            let next = path(&bench).expect("carried during the rekey");
            assert!(last.is_continued_by(&next));
            assert!(next.is_same(&last) || changed(&mut bench), "the layer is told");
            keys += usize::from(!next.is_same(&last));
            last = next;
        }
        assert!(keys >= 2, "the peer's keys, and this side's: {keys}");
        assert!(bench.events().contains(&Event::KeysRenewed(name("bob"))));
        assert_eq!(bench.node.counters().refused_handshakes, 0);
    }
}

#[test]
fn only_a_few_handshake_records_wait() {
    let (mut bench, mut session) = with_bob(|_| {});
    carry(&mut bench, true);
    let kex = session.sptps.rekey(&mut bench.random).unwrap();
    for _ in 0..5 {
        bench.answer("bob", &session, &kex);
    }
    assert_eq!(bench.node.counters().refused_handshakes, 1, "the last one has no place");
}

#[test]
fn the_own_rekey_waits_for_the_other_layer() {
    let (mut bench, mut session) =
        with_bob(|config| config.server.key_expire = Duration::from_secs(100));
    carry(&mut bench, true);
    bench.wait(120);
    assert!(path(&bench).is_none() && changed(&mut bench));
    assert!(!bench.take("bob").iter().any(|line| line.starts_with("16 ")));
    carry(&mut bench, false);
    bench.continue_session("bob", &mut session);
    assert!(bench.events().contains(&Event::KeysRenewed(name("bob"))));
}

/// A request replaces the session, and what waited of the old one.
#[test]
fn a_new_session_forgets_what_waited() {
    let (mut bench, mut session) = with_bob(|_| {});
    let before = path(&bench).unwrap();
    carry(&mut bench, true);
    let kex = session.sptps.rekey(&mut bench.random).unwrap();
    bench.answer("bob", &session, &kex);
    let session = bench.session("bob", "bob");
    assert!(session.sptps.is_established());
    assert!(changed(&mut bench) && !path(&bench).unwrap().is_same(&before));
    carry(&mut bench, false);
    assert!(!bench.take("bob").iter().any(|line| line.starts_with("16 ")));
    assert_eq!(bench.node.counters().refused_handshakes, 0);
}

#[test]
fn a_forgery_that_the_other_layer_saw_starts_a_new_session() {
    let (mut bench, _session) = with_bob(|_| {});
    carry(&mut bench, true);
    let heard = Traffic { packets_in: 1, ..Traffic::default() };
    bench.node.carried_traffic(bench.now, &name("bob"), heard, 100);
    bench.wait(19);
    bench.node.carried_forgery(bench.now, &name("bob"));
    bench.pump();
    assert!(!bench.events().contains(&Event::SessionRestarted(name("bob"))), "it is in order");
    bench.wait(1);
    bench.node.carried_forgery(bench.now, &name("bob"));
    bench.pump();
    assert!(bench.events().contains(&Event::SessionRestarted(name("bob"))));
    assert_eq!(bench.node.counters().refused_records, 2);
    assert!(changed(&mut bench) && path(&bench).is_none());
    bench.node.carried_forgery(bench.now, &name("bob"));
    bench.pump();
    assert!(bench.events().is_empty(), "the new one is given time");
}

#[test]
fn a_narrower_path_is_no_direct_path_until_it_is_known() {
    let (mut bench, _session) = with_bob(|_| {});
    carry(&mut bench, true);
    changed(&mut bench);
    let mtu = path(&bench).unwrap().mtu;
    bench.node.too_big(bench.now, address("bob"), usize::from(mtu) + 33);
    assert!(changed(&mut bench));
    assert!(path(&bench).is_none_or(|path| path.mtu < mtu));
}

/// dave is reached through bob, which is his only neighbour.
fn with_dave_behind_bob() -> (Bench, RemoteSession, RemoteSession) {
    let (mut bench, bob) = with_bob(|_| {});
    bench.edges("bob", &[("bob", "dave")]);
    let dave = bench.session("bob", "dave");
    bench.forget();
    bench.node.take_changed_paths();
    (bench, bob, dave)
}

fn relayed_path(bench: &Bench) -> Option<DirectPath> {
    bench.node.direct_path(bench.now, &name("dave"))
}

#[test]
fn a_path_through_a_relay_is_offered_when_packets_take_it() {
    let (mut bench, _bob, mut dave) = with_dave_behind_bob();
    let offered = |bench: &mut Bench| {
        let changes = bench.node.take_changed_paths();
        (changes.nodes.contains(&name("dave")), changes.transits.len())
    };
    bench.wait(1);
    assert_eq!(offered(&mut bench), (false, 0), "without packets");
    bench.packet("dave", &ipv4(100));
    assert_eq!(offered(&mut bench), (true, 0));
    let mut datagram = [name("alice").id().0, name("dave").id().0].concat();
    dave.sptps.seal(0, &ipv4(80), &mut datagram).unwrap();
    let mut forged = datagram.clone();
    *forged.last_mut().unwrap() ^= 1;
    bench.send_datagram(address("bob"), &mut datagram);
    assert_eq!(offered(&mut bench), (true, 1));
    bench.node.set_carried(bench.now, &name("dave"), true);
    bench.packet("dave", &ipv4(100));
    bench.send_datagram(address("bob"), &mut forged);
    assert_eq!(bench.node.take_changed_paths().transits.len(), 0, "forged");
    bench.packet("dave", &ipv4(100));
    assert!(!offered(&mut bench).0, "it is carried");
}

#[test]
fn a_path_through_a_relay_needs_all_that_packets_need() {
    let (mut bench, _bob, _dave) = with_dave_behind_bob();
    let found = relayed_path(&bench).unwrap();
    assert_eq!(found.relay, Some(name("bob")));
    assert_eq!((found.own, found.peer), (name("alice").id(), name("dave").id()));
    assert_eq!(found.mtu, bench.info("bob").mtu.1);
    let direct = path(&bench).unwrap();
    assert!(direct.relay.is_none());
    // dave's own path is narrower than that to the relay.
    bench.say("bob", "23 dave alice 900");
    let narrower = relayed_path(&bench).unwrap();
    assert!(changed_of(&mut bench, "dave") && narrower.mtu == 900 && !narrower.is_same(&found));
    let mut peer = |who: &str, change: &dyn Fn(&mut crate::node::peer::Peer)| {
        change(bench.node.peers.get_mut(&name(who)).unwrap());
        bench.node.direct_path(bench.now, &name("dave")).is_some()
    };
    assert!(!peer("bob", &|peer| peer.udp.confirmed = false));
    assert!(peer("bob", &|peer| peer.udp.confirmed = true));
    assert!(!peer("dave", &|peer| peer.udp.confirmed = true), "the direct path is being measured");
    assert!(peer("dave", &|peer| peer.udp.confirmed = false));
    assert!(!peer("dave", &|peer| peer.deferred.push((Vec::new(), None))));
    assert!(peer("dave", &|peer| peer.deferred.clear()));
    let now = bench.now;
    let mut peer = |change: &dyn Fn(&mut crate::node::peer::Peer)| {
        change(bench.node.peers.get_mut(&name("bob")).unwrap());
        bench.node.direct_path(now, &name("dave")).is_some()
    };
    assert!(!peer(&|peer| {
        let min = peer.mtu.min;
        peer.mtu = PathMtu::new(None, now);
        peer.mtu.min = min;
    }));
}

/// The edge between bob and dave has the option that datagrams to dave go through bob.
#[test]
fn a_path_through_a_static_relay_is_refused_if_only_direct_ones_are_wanted() {
    let (mut bench, _bob) = with_bob(|_| {});
    bench.say("bob", "12 1 bob dave 192.0.2.99 655 7000001 5");
    bench.say("bob", "12 2 dave bob 192.0.2.98 655 7000001 5");
    let _dave = bench.session("bob", "dave");
    let found = relayed_path(&bench).unwrap();
    assert_eq!((found.relay, found.mtu), (Some(name("bob")), bench.info("bob").mtu.1));
    bench.node.config.direct_only = true;
    assert!(relayed_path(&bench).is_none());
    let (mut bench, _bob, _dave) = with_dave_behind_bob();
    bench.node.config.direct_only = true;
    assert!(relayed_path(&bench).is_some(), "the relay only stands in");
}

fn changed_of(bench: &mut Bench, who: &str) -> bool {
    bench.node.take_changed_paths().nodes.contains(&name(who))
}

/// Packets to a neighbour without a path by UDP go over its connection, not through a relay.
#[test]
fn a_neighbour_is_not_carried_through_a_relay() {
    let (mut bench, _bob) = with_bob(|_| {});
    bench.join("dave");
    bench.edges("bob", &[("bob", "dave")]);
    bench.session("dave", "dave");
    assert!(relayed_path(&bench).is_none());
}

/// What another layer got through a relay counts and is answered like what the node got.
#[test]
fn records_through_a_relay_are_not_those_of_an_address() {
    let (mut bench, _bob, _dave) = with_dave_behind_bob();
    bench.node.set_carried(bench.now, &name("dave"), true);
    let mut probe = [4_u8; 1 + 100];
    probe[1] = 0;
    bench.node.carried_record(bench.now, &name("dave"), &probe);
    bench.pump();
    assert!(bench.datagrams().is_empty(), "no answer");
    assert_eq!(bench.node.counters().refused_packets, 1);
    let ids = [name("alice").id().0, name("dave").id().0].concat().try_into().unwrap();
    let transit = crate::node::Transit { hop: name("bob"), ids };
    bench.take("bob");
    bench.now = bench.now + Duration::from_secs(20);
    bench.node.relayed_traffic(bench.now, &transit, 50);
    bench.pump();
    let lines = bench.take("bob");
    assert!(lines.iter().any(|line| line.starts_with("23 alice dave ")), "{lines:?}");
    assert!(lines.iter().any(|line| line.starts_with("22 alice dave ")), "{lines:?}");
    assert_eq!(bench.node.counters().relayed, 0);
}
