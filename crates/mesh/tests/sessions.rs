//! Tests of sessions between nodes on a simulated network.

mod support;

use std::collections::HashSet;
use std::time::Duration;

use adit_crypto::sha256;
use adit_engine::command::{Keepalive, Traffic};
use adit_engine::{Engine, Instant, Link, Random};
use adit_mesh::join::{Admission, JoinCounters, Joiner, Responder};
use adit_mesh::roster::{Action, Change, Changes, Genesis, Label, Layer, NodeInfo, Roster};
use adit_mesh::session::{Event, Policy, Protocol, Reason, SessionNumber, keys};
use adit_mesh::token::{Invitation, Invitations, JoinSecret, Terms, Token};
use adit_openvpn::data_format::{Input, Notice, Outbox, Output};
use adit_openvpn::keys::Role;
use adit_openvpn::records::{Dial, RecordEvent, RecordListener, RecordSession, RecordSettings};
use adit_openvpn::tls::{CertificateProblem, SelfSigned, TlsError};
use adit_sim::{Impairment, Loss};
use support::{MESH, UNIX, World, link, policy, signing_key};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_secs(60);
const HOUR: Duration = Duration::from_secs(3600);

/// Returns two nodes, of which the first has connected to the second.
fn connected(policy: Policy) -> World {
    let mut w = World::new(2, policy, 1);
    w.connect(0, 1, false).unwrap();
    assert!(w.run(SECOND, |w| w.are_connected(0, 1)), "{:?}", w.nodes[0].events);
    w
}

fn ends(w: &World, node: usize) -> Vec<&Reason> {
    let ended = w.nodes[node].events.iter().filter_map(|event| match event {
        Event::Ended(_, _, reason) => Some(reason),
        _ => None,
    });
    ended.collect()
}

#[test]
fn two_nodes_have_matching_channels() {
    let w = connected(Policy { channels: 3, ..policy() });
    let (a, b) = (w.channels(0, 1), w.channels(1, 0));
    assert_eq!((a.len(), b.len()), (3, 3));
    for (ours, theirs) in a.iter().zip(&b) {
        let (ours_peer, theirs_peer) = (w.peer(0, *ours), w.peer(1, *theirs));
        assert_eq!((ours_peer.wire_id, theirs_peer.wire_id), (theirs.0, ours.0));
        assert_eq!(ours_peer.sealing(), theirs_peer.opening());
        assert_eq!(ours_peer.opening(), theirs_peer.sealing());
        assert!(!ours_peer.floats && !theirs_peer.floats);
    }
}

#[test]
fn the_smaller_number_of_channels_counts_and_the_other_ids_are_free_again() {
    for (first, second) in [(4, 2), (2, 4)] {
        let mut w = World::with_policies(
            vec![Policy { channels: first, ..policy() }, Policy { channels: second, ..policy() }],
            1,
        );
        w.connect(0, 1, false).unwrap();
        assert!(w.run(SECOND, |w| w.are_connected(0, 1)));
        assert_eq!((w.channels(0, 1).len(), w.channels(1, 0).len()), (2, 2));
        assert_eq!((w.nodes[0].peers.len(), w.nodes[1].peers.len()), (2, 2));
    }
}

#[test]
fn only_the_first_of_a_sessions_channels_has_keepalive_times() {
    let w = connected(Policy { channels: 3, ..policy() });
    for (node, channels) in [(0, w.channels(0, 1)), (1, w.channels(1, 0))] {
        let peers: Vec<_> = channels.iter().map(|channel| w.peer(node, *channel)).collect();
        let first = Some(channels[0]);
        let firsts: Vec<_> = peers.iter().map(|peer| peer.channel_of).collect();
        assert_eq!(firsts, [None, first, first]);
        assert_eq!(peers[0].keepalive, policy().keepalive);
        assert!(peers[1..].iter().all(|peer| peer.keepalive == Keepalive::default()));
    }
}

#[test]
fn each_worker_gets_as_many_channels_of_a_session_as_any_other() {
    for (channels, workers) in [(1, 4), (2, 2), (4, 4), (3, 4), (4, 2), (2, 1)] {
        for seed in 0..20 {
            let policy = Policy { channels, workers, ..policy() };
            let mut w = World::with_policies(vec![policy; 2], seed);
            w.connect(0, 1, false).unwrap();
            assert!(w.run(SECOND, |w| w.are_connected(0, 1)));
            for ids in [w.channels(0, 1), w.channels(1, 0)] {
                let mut of_worker = vec![0; workers];
                ids.iter().for_each(|id| of_worker[id.0 as usize % workers] += 1);
                assert_eq!(ids.len(), channels);
                assert_eq!(of_worker.iter().max(), Some(&channels.div_ceil(workers)), "{ids:?}");
            }
        }
    }
}

#[test]
fn sessions_have_one_channel_when_ids_are_scarce() {
    let mut w = World::new(8, Policy { channels: 7, workers: 7, ..policy() }, 1);
    // Half of the 40 ids are in use after three sessions.
    let expected = [7, 7, 7, 1, 1, 1, 1];
    for (peer, expected) in (1..8).zip(expected) {
        w.connect(0, peer, false).unwrap();
        assert!(w.run(SECOND, |w| w.are_connected(0, peer)));
        assert_eq!((w.channels(0, peer).len(), w.channels(peer, 0).len()), (expected, expected));
    }
    let mut w = World::new(8, Policy { channels: 7, workers: 7, ..policy() }, 1);
    for (peer, expected) in (1..8).zip(expected) {
        w.connect(peer, 0, false).unwrap();
        assert!(w.run(SECOND, |w| w.are_connected(0, peer)));
        assert_eq!(w.channels(0, peer).len(), expected, "the end that accepts");
    }
}

#[test]
fn a_session_is_idle_when_no_channel_has_traffic_and_its_end_ends_all() {
    for busy in 0..3 {
        let mut w = connected(Policy { channels: 3, ..policy() });
        let channels = [w.channels(0, 1)[busy], w.channels(1, 0)[busy]];
        for packets in 1..30 {
            w.run(MINUTE, |_| false);
            for (node, channel) in channels.into_iter().enumerate() {
                let traffic = Traffic { packets, ..Traffic::default() };
                w.nodes[node].traffic_of.insert(channel, traffic);
            }
        }
        assert!(w.are_connected(0, 1), "traffic on channel {busy}: {:?}", ends(&w, 0));
        assert_eq!(w.nodes[0].peers.len(), 3);
        w.run(15 * MINUTE, |_| false);
        // The end that notices it first notifies the other one.
        assert!(!w.are_connected(0, 1));
        assert!([0, 1].iter().any(|node| ends(&w, *node) == [&Reason::Idle]));
        assert!(w.nodes.iter().all(|node| node.peers.is_empty()), "all channels are removed");
    }
}

#[test]
fn no_two_channels_directions_or_generations_share_a_key() {
    let mut w = connected(Policy { channels: 4, ..policy() });
    let number = w.number(0, 1).unwrap();
    w.nodes[0].engine.set_standing(number, true);
    let number = w.number(1, 0).unwrap();
    w.nodes[1].engine.set_standing(number, true);
    w.run(3 * HOUR + 10 * MINUTE, |_| false);
    assert!(w.are_connected(0, 1), "{:?}", ends(&w, 0));
    let installed = &w.nodes[0].sealing_keys;
    assert_eq!(installed.len(), 4 * 4, "each channel has a new key every hour");
    let all: HashSet<_> = installed.iter().chain(&w.nodes[1].sealing_keys).collect();
    assert_eq!(all.len(), 2 * 4 * 4);
    // The other end opens with the same ones.
    let opening: HashSet<_> = w.nodes[1].opening_keys.iter().collect();
    assert_eq!(opening, installed.iter().collect());
}

#[test]
fn handshakes_survive_loss_duplication_and_reordering() {
    for seed in 0..200 {
        let slow = Policy { hand_window: MINUTE, ..policy() };
        let mut w = World::new(2, slow, seed);
        w.impair(Impairment {
            loss: Loss::Random(f64::from((seed % 11) as u32) / 100.0),
            duplicate: 0.1,
            reorder: 0.1,
            reorder_by: Duration::from_millis(60),
            delay: Duration::from_millis(25),
            jitter: Duration::from_millis(10),
        });
        w.connect(0, 1, false).unwrap();
        assert!(w.run(MINUTE, |w| w.are_connected(0, 1)), "seed {seed}");
        let number = w.number(0, 1).unwrap();
        assert!(w.send(0, number, b"hello") && w.send(0, number, &[7; 20_000]));
        let both = |w: &World| w.records(1) == [b"hello".to_vec(), vec![7; 20_000]];
        assert!(w.run(MINUTE, both), "seed {seed}");
    }
}

#[test]
fn of_two_attempts_at_once_the_smaller_nodes_remains() {
    for seed in 0..60 {
        let mut w = World::new(2, policy(), seed);
        w.impair(Impairment {
            delay: Duration::from_millis(10 + seed % 7),
            jitter: Duration::from_millis(seed % 5),
            ..Impairment::default()
        });
        w.connect(0, 1, false).unwrap();
        w.run(Duration::from_millis(seed % 20), |_| false);
        w.connect(1, 0, false).unwrap();
        w.run(5 * SECOND, |_| false);
        assert!(w.are_connected(0, 1), "seed {seed}: {:?}", w.nodes[0].events);
        let smaller = usize::from(w.key(1) < w.key(0));
        assert_eq!(w.role(smaller, 1 - smaller), Role::Client, "seed {seed}");
        for node in [0, 1] {
            assert_eq!(w.nodes[node].engine.len(), 1, "seed {seed}: one session is left");
            assert_eq!(w.nodes[node].peers.len(), 1, "seed {seed}");
        }
    }
}

#[test]
fn an_attempt_without_an_answer_gives_way() {
    let mut w = World::new(2, policy(), 1);
    let smaller = usize::from(w.key(1) < w.key(0));
    // Packets of the larger node pass; those of the smaller one pass only as answers.
    w.connect(smaller, 1 - smaller, false).unwrap();
    w.lose_all_in_flight();
    w.connect(1 - smaller, smaller, false).unwrap();
    assert!(w.run(Duration::from_millis(500), |w| w.are_connected(0, 1)));
    assert_eq!(w.role(smaller, 1 - smaller), Role::Server);
    assert_eq!(ends(&w, smaller), [&Reason::Superseded]);
}

#[test]
fn a_restarted_node_replaces_its_session() {
    let mut w = connected(policy());
    w.run(MINUTE, |_| false);
    w.restart(0);
    w.connect(0, 1, false).unwrap();
    assert!(w.run(SECOND, |w| w.are_connected(0, 1)));
    assert_eq!(ends(&w, 1), [&Reason::Replaced]);
    assert_eq!((w.nodes[1].engine.len(), w.nodes[1].peers.len()), (1, 1));
}

#[test]
fn a_key_that_is_no_members_is_refused_and_gets_no_channel() {
    let mut w = World::new(2, policy(), 1);
    let (a, b) = (w.key(0), w.key(1));
    let (now, mut out) = (w.now, Outbox::new());
    w.nodes[1].engine.expel(now, &a, &mut out);
    w.connect(0, 1, false).unwrap();
    w.run(SECOND, |_| false);
    assert_eq!(ends(&w, 1), [&Reason::NotMember]);
    assert_eq!(ends(&w, 0), [&Reason::Closed], "the other end knows at once");
    for node in [0, 1] {
        assert!(w.nodes[node].engine.is_empty() && w.nodes[node].sealing_keys.is_empty());
    }
    w.nodes[0].engine.expel(now, &b, &mut out);
    assert_eq!(w.connect(0, 1, false), Err(Reason::NotMember), "nor is it dialled");
}

#[test]
fn an_expelled_member_loses_its_session_at_once() {
    let mut w = connected(policy());
    let (now, key, mut out) = (w.now, w.key(0), Outbox::new());
    w.nodes[1].engine.expel(now, &key, &mut out);
    w.perform(1, out);
    assert_eq!(ends(&w, 1), [&Reason::Expelled]);
    assert!(w.nodes[1].peers.is_empty());
    w.run(SECOND, |_| false);
    assert_eq!(ends(&w, 0), [&Reason::Closed]);
    w.connect(0, 1, false).unwrap();
    w.run(SECOND, |_| false);
    assert!(!w.are_connected(0, 1));
}

#[test]
fn a_session_for_joining_accepts_any_key_and_has_no_data_key() {
    let mut w = World::new(2, policy(), 1);
    let (now, a, b) = (w.now, w.key(0), w.key(1));
    let mut out = Outbox::new();
    w.nodes[0].engine.expel(now, &b, &mut out);
    w.nodes[1].engine.expel(now, &a, &mut out);
    let number = w.nodes[0].engine.join(now, b, link(1), &mut out).unwrap();
    w.perform(0, out);
    w.run(SECOND, |_| false);
    assert!(w.send(0, number, b"secret"));
    w.run(SECOND, |_| false);
    assert_eq!(w.records(1), [b"secret".to_vec()]);
    for node in [0, 1] {
        let established = w.nodes[node].events.iter().find_map(|event| match event {
            Event::Established { peer, protocol: Protocol::Join, channels, .. } => {
                Some((*peer, channels.clone()))
            }
            _ => None,
        });
        assert_eq!(established, Some((w.key(1 - node), Vec::new())));
        assert!(w.nodes[node].sealing_keys.is_empty() && w.nodes[node].peers.is_empty());
    }
    w.run(policy().join_lasts, |_| false);
    assert_eq!(ends(&w, 0).first(), Some(&&Reason::JoinTimeout));
    assert!(w.nodes[1].engine.is_empty());
}

#[test]
fn sessions_for_joining_of_one_address_are_bounded_until_they_end() {
    let mut w = World::new(2, policy(), 1);
    let inviter = w.key(1);
    let join = |w: &mut World| {
        let mut out = Outbox::new();
        w.nodes[0].engine.join(w.now, inviter, link(1), &mut out).unwrap();
        w.perform(0, out);
        w.run(SECOND / 10, |_| false);
        w.nodes[1].engine.len()
    };
    let open = (0..200).map(|_| join(&mut w)).max();
    // An address may take one place for every seven free ones of 1,024.
    assert_eq!(open, Some(128));
    w.run(policy().join_lasts, |_| false);
    assert!(w.nodes[1].engine.is_empty());
    assert_eq!(join(&mut w), 1);
}

#[test]
fn a_node_joins_over_a_session_and_can_then_have_one_as_a_member() {
    let admin = signing_key(7);
    let genesis = Genesis {
        name: Label::new("home").unwrap(),
        admins: vec![admin.public_hash()],
        threshold: 1,
        ranges: Vec::new(),
        random: [7; 32],
        layer: Layer::Ip,
    };
    let mut changes = Changes::new(genesis).unwrap();
    for number in 0..400_u16 {
        let key = sha256(&[&number.to_be_bytes()]);
        let mut node = NodeInfo::named(Label::new(&format!("node{number}")).unwrap());
        node.groups = (10..26).map(|it| Label::new(&it.to_string().repeat(30)).unwrap()).collect();
        let body = changes.draft(admin.public_hash(), UNIX, Action::Admit { key, node });
        let change = Change::sign(changes.mesh(), &admin, body.unwrap()).unwrap();
        changes.insert(change).unwrap();
    }
    let mesh = *changes.mesh();
    let mut w = World::new(2, policy(), 1);
    w.restart_in(0, mesh);
    w.restart_in(1, mesh);
    let (now, a, b) = (w.now, w.key(0), w.key(1));
    let secret = JoinSecret::generate(&mut Random::new([3; 32]));
    let mut invitations = Invitations::new(mesh);
    let secret_hash = secret.hash(&mesh);
    let invitation = Invitation { secret_hash, uses: 1, until: UNIX, terms: Terms::default() };
    invitations.add(invitation, UNIX).unwrap();
    let address = "203.0.113.7:1194".parse().unwrap();
    let token = Token::new(mesh, b, secret, vec![address]).unwrap();

    let mut out = Outbox::new();
    w.nodes[0].engine.expel(now, &b, &mut out);
    w.nodes[1].engine.expel(now, &a, &mut out);
    w.nodes[0].engine.join(now, *token.inviter(), link(1), &mut out).unwrap();
    w.perform(0, out);
    w.run(SECOND, |_| false);
    let [(ours, inviter), (theirs, joiner)] = [0, 1].map(|node| {
        let mut events = w.nodes[node].events.iter();
        let established = events.find_map(|event| match event {
            Event::Established { session, peer, protocol: Protocol::Join, .. } => {
                Some((*session, *peer))
            }
            _ => None,
        });
        established.expect("a session for joining")
    });
    let name = Label::new("laptop").unwrap();
    let (mut joining, request) = Joiner::begin(&token, &inviter, a, name).unwrap();
    assert!(w.send(0, ours, &request));
    w.run(SECOND, |_| false);
    let mut responder = Responder::new(joiner);
    let mut roster = Roster::evaluate(&changes);
    let mut admission = Admission {
        key: &admin,
        changes: &mut changes,
        roster: &mut roster,
        invitations: &mut invitations,
        counters: &mut JoinCounters::default(),
        inviter: None,
        now: UNIX,
    };
    responder.receive(&w.records(1)[0], &mut admission, |_| true).unwrap();
    let mut pauses = 0;
    while !responder.send(&changes, |record| w.send(1, theirs, record)) {
        pauses += 1;
        w.run(SECOND, |_| false);
    }
    assert!(pauses > 0, "the answer is longer than the session's queue");
    w.run(5 * SECOND, |_| false);
    let results = w.records(0).into_iter().map(|it| joining.receive(&it, UNIX).unwrap());
    let joined = results.last().flatten().expect("the whole roster");
    assert_eq!(joined.changes.digest(), changes.digest());

    for (node, roster, peer) in [(0, joined.roster, b), (1, roster, a)] {
        assert!(roster.member(&a).is_some());
        w.nodes[node].engine.admit(peer);
    }
    w.connect(0, 1, false).unwrap();
    assert!(w.run(SECOND, |w| w.are_connected(0, 1)), "{:?}", ends(&w, 0));
}

/// A client with the key of node 0 that sends any hello under any protocol.
fn hostile_client(w: &mut World, protocol: Protocol, hello: &[u8]) -> Option<Reason> {
    let key = w.key(1);
    let identity = SelfSigned::new(&signing_key(0)).unwrap();
    let dial = Dial {
        link: link(1),
        wrap: keys::wrap_key(&MESH, &key).unwrap(),
        tls: identity.client(key, protocol.name().as_bytes()).unwrap(),
        hello,
    };
    let (mut random, mut out) = (Random::new([9; 32]), Outbox::<()>::new());
    let now = w.now;
    let mut client =
        RecordSession::connect(now, UNIX, dial, &settings(), &mut random, &mut out).unwrap();
    for _ in 0..10 {
        while let Some(output) = out.pop() {
            if let Output::Send(_, mut packet) = output {
                w.input(1, Input::ControlPacket(link(0), &mut packet));
            }
        }
        for mut packet in w.take_sent(1) {
            let _ = client.packet(now, &mut packet, &mut out);
        }
    }
    ends(w, 1).first().map(|reason| (*reason).clone())
}

fn settings() -> RecordSettings {
    RecordSettings {
        hand_window: 10 * SECOND,
        rekey_after: HOUR,
        keepalive: Default::default(),
        ethernet: false,
        tun_mtu: 1500,
        replay_window: 64,
    }
}

#[test]
fn a_hello_must_fit_its_protocol() {
    let refused = |protocol, hello: &[u8]| {
        let mut w = World::new(2, policy(), 1);
        let reason = hostile_client(&mut w, protocol, hello);
        assert_eq!(
            w.nodes[1].sealing_keys.is_empty(),
            reason.is_some() || protocol == Protocol::Join
        );
        reason
    };
    assert_eq!(refused(Protocol::Mesh, &[1, 0, 0, 1]), None);
    assert_eq!(refused(Protocol::Join, &[0]), None);
    assert_eq!(refused(Protocol::Mesh, &[0]), Some(Reason::WrongHello));
    assert_eq!(refused(Protocol::Join, &[1, 0, 0, 1]), Some(Reason::WrongHello));
    let bad = refused(Protocol::Mesh, &[1, 0, 0]);
    assert!(matches!(bad, Some(Reason::BadHello(_))), "{bad:?}");
}

/// An impostor that knows the mesh and the hash of the node that it impersonates.
#[test]
fn a_node_that_is_not_the_expected_one_is_refused() {
    let mut w = World::new(2, policy(), 1);
    let wrap = keys::wrap_key(&MESH, &w.key(1)).unwrap();
    let impostor = SelfSigned::new(&signing_key(9)).unwrap();
    let tls = impostor.server(&[Protocol::Mesh.name().as_bytes()]).unwrap();
    let mut random = Random::new([9; 32]);
    let mut listener = RecordListener::new(wrap, tls, &settings(), &mut random).unwrap();
    let mut session: Option<RecordSession> = None;
    w.connect(0, 1, false).unwrap();
    let (now, mut out) = (w.now, Outbox::<()>::new());
    for _ in 0..10 {
        for mut packet in w.take_sent(0) {
            match &mut session {
                Some(session) => drop(session.packet(now, &mut packet, &mut out)),
                None => {
                    let started = listener.packet(now, UNIX, link(0), &mut packet, &mut out);
                    session = started.map(|(session, _): (_, Vec<RecordEvent>)| session);
                }
            }
        }
        while let Some(output) = out.pop() {
            if let Output::Send(_, mut packet) = output {
                w.input(0, Input::ControlPacket(link(1), &mut packet));
            }
        }
    }
    let ended = ends(&w, 0);
    let [Reason::Failed(adit_openvpn::Reason::Tls(TlsError::Certificate(error)))] = ended[..]
    else {
        panic!("{ended:?}");
    };
    assert_eq!(error.problem, CertificateProblem::Fingerprint);
    assert!(w.nodes[0].sealing_keys.is_empty());
}

#[test]
fn a_stranger_without_the_mesh_id_gets_no_answer() {
    let mut w = World::new(2, policy(), 1);
    w.restart_in(0, [0x55; 16]);
    w.connect(0, 1, false).unwrap();
    w.run(15 * SECOND, |_| false);
    assert_eq!(w.nodes[1].sent, 0);
    assert!(w.nodes[1].engine.is_empty() && w.nodes[1].engine.counters().refused > 1);
    let reason = adit_openvpn::Reason::HandshakeTimeout;
    assert_eq!(ends(&w, 0), [&Reason::Failed(reason)]);
}

#[test]
fn a_flood_of_resets_creates_no_state() {
    let mut w = World::new(2, policy(), 1);
    w.connect(0, 1, false).unwrap();
    let reset = w.take_sent(0).remove(0);
    for n in 0..5000_u16 {
        let [a, b] = n.to_be_bytes();
        let remote = ([10, 1, a, b], 5000).into();
        let from = Link::datagram(Default::default(), None, remote);
        w.input(1, Input::ControlPacket(from, &mut reset.clone()));
    }
    assert!(w.nodes[1].engine.is_empty() && w.nodes[1].engine.due().is_none());
    assert_eq!(w.nodes[1].sent, 5000, "each is answered once");
    assert!(w.nodes[1].events.is_empty());
}

#[test]
fn an_idle_session_ends_and_a_standing_one_does_not() {
    let mut w = connected(policy());
    w.run(9 * MINUTE, |_| false);
    assert!(w.are_connected(0, 1));
    w.run(4 * MINUTE, |_| false);
    assert!(!w.are_connected(0, 1) && w.nodes[0].peers.is_empty() && w.nodes[1].peers.is_empty());
    assert!([0, 1].iter().any(|node| ends(&w, *node) == [&Reason::Idle]));

    let mut w = connected(policy());
    for node in [0, 1] {
        let number = w.number(node, 1 - node).unwrap();
        w.nodes[node].engine.set_standing(number, true);
    }
    w.run(30 * MINUTE, |_| false);
    assert!(w.are_connected(0, 1));
}

#[test]
fn traffic_and_records_keep_a_session_and_pings_do_not() {
    let mut w = connected(policy());
    for n in 1..30 {
        w.run(MINUTE, |_| false);
        w.traffic(Traffic { packets: n, in_band_packets: 0, ..Traffic::default() });
    }
    assert!(w.are_connected(0, 1));
    for n in 1..30 {
        w.run(MINUTE, |_| false);
        w.traffic(Traffic { packets: 29 + n, in_band_packets: n, ..Traffic::default() });
    }
    assert!(!w.are_connected(0, 1));

    let mut w = connected(policy());
    for _ in 0..6 {
        w.run(5 * MINUTE, |_| false);
        let number = w.number(0, 1).unwrap();
        assert!(w.send(0, number, b"digest"));
    }
    assert!(w.are_connected(0, 1));
}

#[test]
fn a_silent_peer_and_a_dead_link_end_their_sessions() {
    let mut w = connected(policy());
    let channel = w.channels(0, 1)[0];
    w.input(0, Input::Notice(Notice::PeerSilent(channel)));
    assert_eq!(ends(&w, 0), [&Reason::Silent]);
    let mut w = connected(policy());
    w.input(0, Input::LinkDown(link(1)));
    assert_eq!(ends(&w, 0), [&Reason::LinkDown]);
}

#[test]
fn ids_are_not_used_again_before_the_data_plane_has_removed_their_channel() {
    let mut w = World::new(2, policy(), 1);
    w.nodes[0].keeps_removed = true;
    for _ in 0..support::IDS {
        w.connect(0, 1, false).unwrap();
        assert!(w.run(SECOND, |w| w.are_connected(0, 1)));
        let number = w.number(0, 1).unwrap();
        let (now, mut out) = (w.now, Outbox::new());
        w.nodes[0].engine.disconnect(now, number, &mut out);
        w.perform(0, out);
        w.run(SECOND, |_| false);
    }
    assert_eq!(w.connect(0, 1, false), Err(Reason::NoFreeId));
    w.remove_kept(0);
    assert!(w.connect(0, 1, false).is_ok());
}

#[test]
fn attempts_are_bounded_and_leave_nothing_behind() {
    let mut w = World::new(2, policy(), 1);
    let (now, mut out) = (w.now, Outbox::new());
    let key = |n: u32| {
        let mut key = [0; 32];
        key[..4].copy_from_slice(&n.to_be_bytes());
        key
    };
    let engine = &mut w.nodes[0].engine;
    let begun = (0..300).filter(|n| engine.join(now, key(*n), link(1), &mut out).is_ok()).count();
    assert_eq!(begun, 256);
    assert_eq!(engine.counters().attempts_refused, 44);
    w.perform(0, out);
    w.run(15 * SECOND, |_| false);
    assert!(w.nodes[0].engine.is_empty() && w.nodes[0].engine.due().is_none());
}

#[test]
fn a_session_follows_its_path() {
    let mut w = World::new(3, Policy { channels: 3, ..policy() }, 1);
    w.connect(0, 1, true).unwrap();
    assert!(w.run(SECOND, |w| w.are_connected(0, 1)));
    let number = w.number(0, 1).unwrap();
    let (now, mut out) = (w.now, Outbox::new());
    w.nodes[0].engine.set_link(now, number, link(2), &mut out);
    assert!(w.nodes[0].engine.send(now, number, b"by another path", &mut out));
    w.perform(0, out);
    for channel in w.channels(0, 1) {
        assert_eq!(w.peer(0, channel).link, link(2));
    }
    // Anything that arrived at the third node would be relayed to the second.
    w.forward(2, 1);
    assert!(w.run(5 * SECOND, |w| w.records(1) == [b"by another path".to_vec()]));
}

#[test]
fn connecting_twice_is_one_session() {
    let mut w = connected(policy());
    let number = w.number(0, 1).unwrap();
    assert_eq!(w.connect(0, 1, false), Ok(number));
    assert_ne!(number, SessionNumber(0));
    assert_eq!(w.nodes[0].engine.len(), 1);
    let _: Instant = w.now;
}

#[test]
fn records_are_not_printed() {
    let mut w = connected(policy());
    let number = w.number(0, 1).unwrap();
    assert!(w.send(0, number, &[77; 9]));
    w.run(SECOND, |_| false);
    let text = format!("{:?}", w.nodes[1].events);
    assert!(text.contains("Record(9 bytes)") && !text.contains("77, 77"), "{text}");
}

/// Reports streams from an address to a node. Returns how many of them are kept.
fn accept_streams(w: &mut World, host: u8, ids: std::ops::Range<u64>) -> usize {
    let (now, mut kept) = (w.now, 0);
    for id in ids {
        let mut out = Outbox::new();
        let stream = Link::stream(id, ([192, 0, 2, host], 40_000).into());
        w.nodes[0].engine.handle(now, Input::LinkUp(stream), &mut out);
        kept += usize::from(!matches!(out.pop(), Some(Output::Hangup(_))));
    }
    kept
}

#[test]
fn streams_without_a_session_are_limited_by_address_and_in_time() {
    let mut w = World::new(1, policy(), 1);
    let first = accept_streams(&mut w, 9, 0..1000);
    assert!((20..60).contains(&first), "{first}");
    assert_eq!(w.nodes[0].engine.counters().streams_refused, 1000 - first as u64);
    let others: usize = (10..100)
        .map(|host| {
            accept_streams(&mut w, host, u64::from(host) * 1000..u64::from(host) * 1000 + 1000)
        })
        .sum();
    assert!(others >= 90 && first + others <= 256, "{others}");
    // None of them sends anything.
    let (later, mut out) = (w.now + SECOND * 5, Outbox::new());
    w.nodes[0].engine.handle(later, Input::Tick, &mut out);
    let closed = std::iter::from_fn(|| out.pop());
    assert_eq!(closed.filter(|it| matches!(it, Output::Hangup(_))).count(), first + others);
    assert_eq!(w.nodes[0].engine.counters().streams_silent, (first + others) as u64);
    assert_eq!(accept_streams(&mut w, 9, 500_000..500_001), 1, "there is room again");
}

#[test]
fn a_stream_whose_first_packet_is_no_reset_of_the_mesh_is_closed() {
    let mut w = World::new(1, policy(), 1);
    let now = w.now;
    let mut garbage = vec![0x38; 100];
    let mut other_kind = vec![0x20; 100];
    for (packet, id) in [(&mut garbage, 1), (&mut other_kind, 2)] {
        assert_eq!(accept_streams(&mut w, 9, id..id + 1), 1);
        let stream = Link::stream(id, ([192, 0, 2, 9], 40_000).into());
        let mut out = Outbox::new();
        w.nodes[0].engine.handle(now, Input::ControlPacket(stream, packet), &mut out);
        assert!(matches!(out.pop(), Some(Output::Hangup(link)) if link == stream));
        assert!(w.nodes[0].engine.is_empty());
    }
    assert_eq!(w.nodes[0].engine.counters().refused, 2);
}
