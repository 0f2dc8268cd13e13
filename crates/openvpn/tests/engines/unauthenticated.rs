//! The server's handling of unauthenticated packets, alone and interleaved with packets of other
//! clients.

use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::{Engine, Link, auth};
use adit_openvpn::Reason;
use adit_openvpn::client::{ClientConfig, ClientEvent};
use adit_openvpn::data_format::{Input, Notice, Outbox};
use adit_openvpn::keys::{Metadata, ServerKey, StaticKey};
use adit_openvpn::packet::{Control, Opcode, SessionId};
use adit_openvpn::server::{ServerConfig, ServerEvent};
use adit_openvpn::session::Settings;
use adit_openvpn::wrap::{WrapConfig, Wrapper};
use adit_sim::Impairment;

use crate::support::{
    self, World, client_config, client_tls_named, foreign_client_tls, server_address, server_config,
};

const SECOND: Duration = Duration::from_secs(1);

fn with(wrap: &WrapConfig) -> Settings {
    Settings { wrap: wrap.clone(), ..Settings::default() }
}

fn crypt() -> WrapConfig {
    WrapConfig::TlsCrypt { key: StaticKey::new([3; StaticKey::LEN]) }
}

fn crypt_v2() -> (WrapConfig, WrapConfig) {
    let key = ServerKey::new(&[42; ServerKey::LEN]);
    let client = key.client_key(StaticKey::new([3; StaticKey::LEN]), None).expect("a key");
    (WrapConfig::tls_crypt_v2_server(key), WrapConfig::TlsCryptV2Client { key: client })
}

/// Returns the server's and the client's half of every wrapping.
fn wrappings() -> Vec<(WrapConfig, WrapConfig)> {
    vec![(WrapConfig::None, WrapConfig::None), (crypt(), crypt()), crypt_v2()]
}

fn address(n: u32) -> SocketAddr {
    let [a, b, c, d] = (0x0b00_0000 + n).to_be_bytes();
    SocketAddr::from(([a, b, c, d], 5000))
}

/// Returns a client's reset with a wrapping.
fn reset(wrap: &WrapConfig, session: u64) -> Vec<u8> {
    let opcode = match wrap {
        WrapConfig::TlsCryptV2Client { .. } => Opcode::HardResetClientV3,
        _ => Opcode::HardResetClientV2,
    };
    let mut wrapper = Wrapper::client(wrap).expect("a client's wrapping");
    sealed_reset(&mut wrapper, opcode, session)
}

fn sealed_reset(wrapper: &mut Wrapper, opcode: Opcode, session: u64) -> Vec<u8> {
    let control = Control {
        opcode,
        key_id: 0,
        session: SessionId(session.to_be_bytes()),
        acks: Default::default(),
        remote: None,
        message: Some(0),
        payload: &[],
    };
    let mut packet = Vec::new();
    wrapper.seal(&control, adit_engine::UnixTime(1), &mut packet).expect("a packet");
    packet
}

#[test]
fn a_reset_is_answered_once_never_again_and_with_at_most_twice_its_bytes() {
    for (server, client) in wrappings() {
        let mut w = World::new(server_config(with(&server)), 1);
        let packet = reset(&client, 77);
        let answers = w.stranger(address(1), &packet);
        assert_eq!(answers.len(), 1);
        assert!(answers[0].len() <= 2 * packet.len(), "{} for {}", answers[0].len(), packet.len());
        assert_eq!(w.server.deadline(), None, "nothing is left to send");
        w.now = w.now + 300 * SECOND;
        w.to_server(Input::Tick);
        assert_eq!(w.server.counters().resets_answered, 1);
    }
}

#[test]
fn a_flood_of_resets_leaves_nothing_behind() {
    for (server, client) in wrappings() {
        let mut w = World::new(server_config(with(&server)), 1);
        let packet = reset(&client, 77);
        let mut answered = 0;
        for n in 0..20_000 {
            answered += w.stranger(address(n), &packet).len();
        }
        assert!(answered > 10_000, "strangers from everywhere are answered: {answered}");
        assert_eq!(w.server.handshakes(), 0);
        assert_eq!(w.server.deadline(), None);
        assert!(w.events.is_empty() && w.plane.peers.is_empty());
    }
}

#[test]
fn a_flood_from_one_network_is_answered_sparingly_and_locks_no_other_network_out() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let flood = |w: &mut World| {
        let answers = (0..5_000u64)
            .map(|n| w.stranger(address(1), &reset(&WrapConfig::None, n + 1)).len())
            .sum::<usize>();
        assert!(answers <= 600, "{answers}");
    };
    flood(&mut w);
    assert!(w.server.counters().resets_limited > 4_000);
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 2);
    assert!(w.run(SECOND, |w| w.is_up(c)), "a real client connects");
    flood(&mut w);
}

#[test]
fn a_packet_that_brings_no_cookie_of_ours_starts_nothing() {
    for (server, client) in wrappings() {
        let mut w = World::new(server_config(with(&server)), 1);
        let mut wrapper = Wrapper::client(&client).expect("a client's wrapping");
        let carries_key = matches!(client, WrapConfig::TlsCryptV2Client { .. });
        let control = Control {
            opcode: if carries_key { Opcode::ControlWkcV1 } else { Opcode::ControlV1 },
            key_id: 0,
            session: SessionId([7; 8]),
            acks: adit_openvpn::packet::Acks::from_slice(&[0]).expect("one fits"),
            remote: Some(SessionId([9; 8])),
            message: Some(1),
            payload: b"\x16\x03\x01",
        };
        let mut packet = Vec::new();
        wrapper.seal(&control, adit_engine::UnixTime(1), &mut packet).expect("a packet");
        assert!(w.stranger(address(1), &packet).is_empty());
        assert_eq!(w.server.counters().cookies_bad, 1);
        assert_eq!(w.server.handshakes(), 0);
    }
}

#[test]
fn a_returned_cookie_from_another_address_starts_nothing() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    // The reset is sent, the answer arrives, and the third packet arrives from another address.
    w.tick_client(c);
    let first = w.capture(c);
    let answers = w.stranger(w.clients[c].address, &first[0]);
    let link = Link::datagram(Default::default(), None, server_address());
    w.to_client(c, Input::ControlPacket(link, &mut answers[0].clone()));
    let third = w.capture(c);
    assert!(!third.is_empty());
    for packet in &third {
        assert!(w.stranger(address(9), packet).is_empty());
    }
    assert_eq!(w.server.handshakes(), 0);
    let own = w.clients[c].address;
    third.iter().for_each(|packet| drop(w.stranger(own, packet)));
    assert_eq!(w.server.handshakes(), 1, "from its own address it does");
}

#[test]
fn malformed_packets_cost_a_counter() {
    for (server, client) in wrappings() {
        let mut w = World::new(server_config(with(&server)), 1);
        let good = reset(&client, 77);
        for len in 0..good.len() {
            assert!(w.stranger(address(1), &good[..len]).is_empty(), "cut to {len}");
        }
        for opcode in 0..32u8 {
            let mut packet = good.clone();
            packet[0] = opcode << 3;
            w.stranger(address(1), &packet);
        }
        w.stranger(address(1), &[0xff; 1500]);
        assert_eq!(w.server.handshakes(), 0);
        assert!(w.server.counters().unauthenticated_bad > 20);
        let named = |event: &&ServerEvent| matches!(event, ServerEvent::Unauthentic(_));
        let wrapped = !matches!(client, WrapConfig::None);
        assert_eq!(w.events.iter().filter(named).count(), if wrapped { 5 } else { 0 });
    }
}

#[test]
fn old_clients_with_their_own_key_are_remembered_within_bounds_or_refused() {
    let (server, client) = crypt_v2();
    // Clients of version 2.5 do not announce early negotiation in the packet id.
    let old = |session: u64| {
        let mut wrapper = Wrapper::client(&client).expect("a client's wrapping");
        wrapper.set_next_id(1);
        sealed_reset(&mut wrapper, Opcode::HardResetClientV3, session)
    };
    let mut w = World::new(server_config(with(&server)), 1);
    let answers = (1..100).map(|n| w.stranger(address(1), &old(n)).len()).sum::<usize>();
    assert_eq!(answers, 16, "the places of one network");
    assert_eq!(w.stranger(address(2), &old(1)).len(), 1, "another network has its own");
    assert_eq!(w.server.counters().half_open_refused, 99 - 16);

    let mut config = server_config(with(&server));
    config.force_cookie = true;
    let mut w = World::new(config, 1);
    assert!(w.stranger(address(1), &old(1)).is_empty());
    assert_eq!(w.server.counters().half_open_refused, 1);
}

/// A server that was started again remembers no packets (`replay-persist`), and needs not.
#[test]
fn a_replayed_capture_of_a_whole_session_does_nothing() {
    for (server, client) in wrappings() {
        let wrapped = !matches!(server, WrapConfig::None);
        let mut w = World::new(server_config(with(&server)), 1);
        let c = w.connect(client_config(with(&client)), Impairment::default(), 1);
        let own = w.clients[c].address;
        let link = Link::datagram(Default::default(), None, server_address());
        let mut captured = Vec::new();
        w.tick_client(c);
        for _ in 0..20 {
            let sent = w.capture(c);
            for packet in &sent {
                for mut answer in w.stranger(own, packet) {
                    w.to_client(c, Input::ControlPacket(link, &mut answer));
                }
            }
            captured.extend(sent);
        }
        assert_eq!(w.server.clients().count(), 1);
        let since = w.events.len();
        let bad = w.server.counters().session_bad;
        for packet in &captured {
            w.stranger(own, packet);
            w.stranger(address(5), packet);
        }
        assert_eq!(w.server.clients().count(), 1);
        assert_eq!(w.server.handshakes(), 0);
        let told = &w.events[since..];
        let named = |event: &ServerEvent| matches!(event, ServerEvent::Unauthentic(_));
        assert!(told.iter().all(named), "{told:?}");
        if wrapped {
            assert!(w.server.counters().session_bad > bad);
        }
        let mut again = World::new(server_config(with(&server)), 2);
        for packet in &captured {
            again.stranger(own, packet);
        }
        assert_eq!((again.server.clients().count(), again.server.handshakes()), (0, 0));
    }
}

#[test]
fn a_stranger_at_a_clients_address_does_not_end_its_session() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(SECOND, |w| w.is_up(c)));
    let own = w.clients[c].address;
    // A reset with another session id arrives, as from a client that has restarted, but the
    // handshake does not continue.
    w.stranger(own, &reset(&WrapConfig::None, 99));
    // An impostor has a certificate from another authority.
    let foreign =
        ClientConfig { tls: foreign_client_tls("client"), ..client_config(Settings::default()) };
    let impostor = w.connect(foreign, Impairment::default(), 2);
    w.run(30 * SECOND, |_| false);
    assert!(!w.is_up(impostor));
    let refused = w.events.iter().any(|event| matches!(event, ServerEvent::HandshakeFailed(..)));
    assert!(refused, "{:?}", w.events);
    assert!(w.downs().is_empty());
    assert_eq!(w.server.clients().count(), 1);
}

#[test]
fn another_certificate_in_a_renegotiation_ends_the_session() {
    for name in ["somebody else", "client"] {
        let mut w = World::new(server_config(Settings::default()), 1);
        let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
        assert!(w.run(SECOND, |w| w.is_up(c)));
        w.clients[c].engine.set_tls(client_tls_named(name));
        let peer = *w.plane.peers.keys().next().expect("a peer");
        w.to_server(Input::Notice(Notice::KeyNearLimit(peer, 0)));
        w.run(5 * SECOND, |w| !w.downs().is_empty());
        let first = w.downs().first().cloned();
        assert!(first.is_some_and(|reason| reason.contains("another identity")), "{name}");
    }
}

#[test]
fn a_client_listens_to_its_server_only() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    w.tick_client(c);
    let sent = w.capture(c);
    let answer = w.stranger(w.clients[c].address, &sent[0]).remove(0);
    // The correct answer from the wrong address, and an answer that does not acknowledge the reset,
    // are refused.
    let elsewhere = Link::datagram(Default::default(), None, address(1));
    w.to_client(c, Input::ControlPacket(elsewhere, &mut answer.clone()));
    let link = Link::datagram(Default::default(), None, server_address());
    let unasked = Control {
        opcode: Opcode::HardResetServerV2,
        key_id: 0,
        session: SessionId([5; 8]),
        acks: Default::default(),
        remote: None,
        message: Some(0),
        payload: &[],
    };
    let mut bytes = Vec::new();
    unasked.encode(&mut bytes);
    w.to_client(c, Input::ControlPacket(link, &mut bytes));
    let answered = |w: &World| {
        w.clients[c].events.iter().any(|event| matches!(event, ClientEvent::ServerAnswered(..)))
    };
    assert!(!answered(&w));
    w.to_client(c, Input::ControlPacket(link, &mut answer.clone()));
    assert!(answered(&w));
}

/// With `float`, the first answer may come from another address of the server if it proves that the
/// server received the client's reset. Later packets go to that address.
#[test]
fn a_client_that_floats_takes_its_first_answer_from_anywhere() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let settings = Settings { float: true, ..Settings::default() };
    let c = w.connect(client_config(settings), Impairment::default(), 1);
    w.tick_client(c);
    let sent = w.capture(c);
    let answer = w.stranger(w.clients[c].address, &sent[0]).remove(0);
    let answers = |w: &World| {
        let said = |event: &&ClientEvent| matches!(event, ClientEvent::ServerAnswered(..));
        w.clients[c].events.iter().filter(said).count()
    };
    let [elsewhere, third] = [1, 2].map(|n| Link::datagram(Default::default(), None, address(n)));
    let mut forged = answer.clone();
    // Alter our session id, which the answer echoes.
    let at = forged.len().checked_sub(5).expect("an answer with its number behind the id");
    forged[at] ^= 1;
    w.to_client(c, Input::ControlPacket(third, &mut forged));
    assert_eq!(answers(&w), 0, "a wrong echo");
    w.to_client(c, Input::ControlPacket(elsewhere, &mut answer.clone()));
    assert_eq!(answers(&w), 1);
    let mut out = Outbox::new();
    w.clients[c].engine.handle(w.now + 6 * SECOND, Input::Tick, &mut out);
    let mut sent = 0;
    while let Some(output) = out.pop() {
        if let adit_engine::Output::Send(link, _) = output {
            assert_eq!(link.remote(), elsewhere.remote());
            sent += 1;
        }
    }
    assert!(sent > 0);
    // One answer is enough.
    w.to_client(c, Input::ControlPacket(third, &mut answer.clone()));
    assert_eq!(answers(&w), 1);
}

/// Returns a world in which one client waits for the registry.
fn waiting_for_the_registry() -> (World, usize) {
    let mut config = server_config(Settings::default());
    config.authorize = true;
    let mut w = World::new(config, 1);
    w.slow_registry = true;
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(SECOND, |w| !w.asked.is_empty()));
    w.run(SECOND, |_| false);
    (w, c)
}

/// Returns the first packet of a renegotiation.
fn soft_reset(session: [u8; 8]) -> Vec<u8> {
    let control = Control {
        opcode: Opcode::SoftResetV1,
        key_id: 1,
        session: SessionId(session),
        acks: Default::default(),
        remote: None,
        message: Some(0),
        payload: &[],
    };
    let mut packet = Vec::new();
    control.encode(&mut packet);
    packet
}

#[test]
fn no_client_renegotiates_before_the_registry_has_answered() {
    let (mut w, c) = waiting_for_the_registry();
    let (client, server) = w.session_ids;
    let own = w.clients[c].address;
    assert!(w.stranger(own, &soft_reset(client)).is_empty(), "the client's reset goes unanswered");
    let link = Link::datagram(Default::default(), None, server_address());
    w.to_client(c, Input::ControlPacket(link, &mut soft_reset(server)));
    assert!(w.capture(c).is_empty(), "and so does the server's");
    let ticket = w.asked.remove(0);
    w.to_server(Input::AuthResponse(ticket, auth::Response::Accept(Default::default())));
    assert!(w.run(10 * SECOND, |w| w.is_up(c)), "{:?} {:?}", w.events, w.clients[c].events);
    assert!(w.asked.is_empty(), "asked once");
    assert_eq!(w.server.clients().count(), 1);
}

#[test]
fn a_refused_client_does_not_renegotiate_either() {
    let (mut w, c) = waiting_for_the_registry();
    let own = w.clients[c].address;
    let client = w.session_ids.0;
    w.clients[c].address.set_port(9);
    let ticket = w.asked.remove(0);
    w.to_server(Input::AuthResponse(ticket, auth::Response::Reject("no".into())));
    assert!(w.stranger(own, &soft_reset(client)).is_empty());
}

#[test]
fn a_registry_that_never_answers_holds_no_handshake_for_ever() {
    let (mut w, _) = waiting_for_the_registry();
    let ticket = w.asked.remove(0);
    w.clients.clear();
    w.run(70 * SECOND, |_| false);
    assert_eq!(w.server.handshakes(), 0, "{:?}", w.server.deadline());
    let failed = w.events.iter().any(|event| {
        matches!(event, ServerEvent::HandshakeFailed(_, why) if *why == Reason::AuthorizationTimeout)
    });
    assert!(failed, "{:?}", w.events);
    w.to_server(Input::AuthResponse(ticket, auth::Response::Accept(Default::default())));
    assert_eq!(w.server.clients().count(), 0, "an answer that comes too late changes nothing");
}

#[test]
fn a_push_that_cannot_be_sent_leaves_no_peer_and_no_lease_behind() {
    let mut config = server_config(Settings::default());
    let route = |n: u32| format!("route 10.{}.{}.0 255.255.255.0", n >> 8 & 255, n & 255);
    config.push = (0..8000).map(route).collect();
    let pool = config.network4.as_mut().expect("a pool");
    pool.pool = pool.pool.map(|(first, _)| (first, first));
    let mut w = World::new(config, 1);
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    w.run(30 * SECOND, |_| false);
    assert!(!w.is_up(c));
    assert!(w.plane.peers.is_empty(), "{:?}", w.events);
    let offer = adit_openvpn::server::ReloadableConfig { max_clients: 5, ..Default::default() };
    w.server.set_offer(w.now, offer, &mut Outbox::new());
    assert!(w.run(400 * SECOND, |w| w.is_up(c)), "its address is free again: {:?}", w.events);
}

#[test]
fn a_client_that_leaves_in_a_renegotiation_without_answer_does_not_spin() {
    let settings = Settings { exit_notify: Some(5), ..Settings::default() };
    let mut w = World::new(server_config(settings.clone()), 1);
    let c = w.connect(client_config(settings), Impairment::default(), 1);
    assert!(w.run(SECOND, |w| w.is_up(c)));
    let peer = *w.clients[c].plane.peers.keys().next().expect("a peer");
    w.rebind(c);
    w.to_client(c, Input::Notice(Notice::KeyNearLimit(peer, 0)));
    w.run(59 * SECOND, |_| false);
    let mut out = Outbox::new();
    w.clients[c].engine.shutdown(w.now, &mut out);
    w.perform_client(c, out);
    let stopped = |w: &World| {
        w.clients[c].events.iter().any(|event| matches!(event, ClientEvent::Stopped(_)))
    };
    assert!(w.run(10 * SECOND, stopped));
}

/// Returns a packet of the client without wrapping.
fn plain(opcode: Opcode, key_id: u8, session: [u8; 8], message: Option<u32>) -> Control<'static> {
    let (acks, session) = (Default::default(), SessionId(session));
    Control { opcode, key_id, session, acks, remote: None, message, payload: &[] }
}

fn bytes(control: &Control<'_>) -> Vec<u8> {
    let mut packet = Vec::new();
    control.encode(&mut packet);
    packet
}

fn connected() -> (World, usize) {
    let mut w = World::new(server_config(Settings::default()), 1);
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(SECOND, |w| w.is_up(c)));
    w.run(SECOND, |_| false);
    (w, c)
}

#[test]
fn only_a_clients_very_first_packet_is_a_reset() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let reset = plain(Opcode::HardResetClientV2, 0, [7; 8], Some(0));
    let acks = adit_openvpn::packet::Acks::from_slice(&[0]).expect("one fits");
    let later = Control { message: Some(1), ..plain(Opcode::HardResetClientV2, 0, [7; 8], None) };
    let acking = Control { acks, remote: Some(SessionId([8; 8])), ..reset };
    for wrong in [later, acking, plain(Opcode::HardResetClientV2, 1, [7; 8], Some(0))] {
        assert!(w.stranger(address(1), &bytes(&wrong)).is_empty(), "{wrong:?}");
    }
    assert_eq!(w.server.counters().unauthenticated_bad, 3);
    let reset = plain(Opcode::HardResetClientV2, 0, [7; 8], Some(0));
    assert_eq!(w.stranger(address(1), &bytes(&reset)).len(), 1);
}

#[test]
fn unwrapping_keys_of_strangers_is_limited() {
    let (server, client) = crypt_v2();
    let mut w = World::new(server_config(with(&server)), 1);
    let mut wrapper = Wrapper::client(&client).expect("a client's wrapping");
    let control = Control {
        remote: Some(SessionId([9; 8])),
        acks: adit_openvpn::packet::Acks::from_slice(&[0]).expect("one fits"),
        ..plain(Opcode::ControlWkcV1, 0, [7; 8], Some(1))
    };
    let mut packet = Vec::new();
    wrapper.seal(&control, adit_engine::UnixTime(1), &mut packet).expect("a packet");
    (0..90_000).for_each(|_| drop(w.stranger(address(1), &packet)));
    let counters = w.server.counters();
    assert!(counters.unauthenticated_unchecked >= 30_000, "{counters:?}");
    assert_eq!(counters.unauthenticated_unchecked + counters.cookies_bad, 90_000);
}

/// Returns the cookie in the answer to a reset, with which an attacker can start a handshake
/// without a wrapping.
fn cookie(w: &mut World, from: SocketAddr, session: u64) -> Option<SessionId> {
    let reset = plain(Opcode::HardResetClientV2, 0, session.to_be_bytes(), Some(0));
    let answers = w.stranger(from, &bytes(&reset));
    answers.first().map(|answer| SessionId(answer[1..9].try_into().expect("eight bytes")))
}

/// Returns a third packet, which returns a cookie.
fn third(cookie: SessionId, session: u64) -> Vec<u8> {
    bytes(&Control {
        acks: adit_openvpn::packet::Acks::from_slice(&[0]).expect("one fits"),
        remote: Some(cookie),
        ..plain(Opcode::AckV1, 0, session.to_be_bytes(), None)
    })
}

/// Returns the next control packet, which ends the handshake.
fn garbage(session: u64) -> Vec<u8> {
    let control = plain(Opcode::ControlV1, 0, session.to_be_bytes(), Some(1));
    bytes(&Control { payload: b"this is no TLS at all", ..control })
}

fn started(w: &World) -> usize {
    let started = |event: &&ServerEvent| matches!(event, ServerEvent::HandshakeStarted(..));
    w.events.iter().filter(started).count()
}

#[test]
fn one_cookie_starts_one_handshake() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let cookie = cookie(&mut w, address(1), 7).expect("an answer");
    for _ in 0..5_000 {
        w.stranger(address(1), &third(cookie, 7));
        w.stranger(address(1), &garbage(7));
    }
    assert_eq!((started(&w), w.server.handshakes()), (1, 0));
    let counters = w.server.counters();
    assert_eq!(counters.cookies_used, 4_999);
    assert_eq!(counters.starts_limited, 0, "that alone refuses them");
    // After this time, the cookie has expired.
    w.now = w.now + 91 * SECOND;
    w.stranger(address(1), &third(cookie, 7));
    assert_eq!(started(&w), 1);
    let same = w.connect(client_config(Settings::default()), Impairment::default(), 2);
    assert!(w.run(SECOND, |w| w.is_up(same)));
}

#[test]
fn a_network_starts_so_many_handshakes_in_ten_seconds_however_many_cookies_it_has() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let mut cookies = Vec::new();
    for session in 0..2_000 {
        cookies.extend(cookie(&mut w, address(1), session).map(|cookie| (cookie, session)));
        w.now = w.now + Duration::from_millis(20);
    }
    assert!(cookies.len() > 1_500, "{}", cookies.len());
    for (cookie, session) in &cookies {
        w.stranger(address(1), &third(*cookie, *session));
        w.stranger(address(1), &garbage(*session));
    }
    assert_eq!((started(&w), w.server.handshakes()), (500, 0));
    let counters = w.server.counters();
    assert_eq!(counters.starts_limited, cookies.len() as u64 - 500);
    assert_eq!((counters.cookies_used, counters.handshakes_refused), (0, 0));
    // A cookie that was refused for that reason is still valid.
    let (refused, session) = cookies[cookies.len() - 1];
    w.now = w.now + 10 * SECOND;
    w.stranger(address(1), &third(refused, session));
    assert_eq!(started(&w), 501);
    w.stranger(address(1), &garbage(session));
    // Another network has its own budget.
    let other = cookie(&mut w, address(2), 7).expect("an answer");
    w.stranger(address(2), &third(other, 7));
    assert_eq!(started(&w), 502);
}

#[test]
fn garbage_in_the_name_of_a_client_does_not_lock_it_out() {
    for (server, client) in [(crypt(), crypt()), crypt_v2()] {
        let mut w = World::new(server_config(with(&server)), 1);
        let c = w.connect(client_config(with(&client)), Impairment::default(), 2);
        let victim = w.clients[c].address;
        let mut forged = reset(&client, 1);
        forged[20] ^= 1;
        (0..600).for_each(|_| drop(w.stranger(victim, &forged)));
        assert_eq!(w.server.counters().unauthenticated_bad, 600);
        assert!(w.run(Duration::from_millis(500), |w| w.is_up(c)), "{:?}", w.clients[c].events);
        assert_eq!(w.server.counters().resets_limited, 0);
    }
}

#[test]
fn without_a_wrapping_forged_resets_use_up_no_start_of_their_victim() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 2);
    let victim = w.clients[c].address;
    w.tick_client(c);
    let first = w.capture(c);
    let answers = w.stranger(victim, &first[0]);
    for session in 1..=5_000 {
        cookie(&mut w, victim, session);
        // The attacker also sends invalid cookies.
        w.stranger(victim, &third(SessionId([9; 8]), session));
    }
    let counters = w.server.counters();
    assert!(counters.resets_limited > 4_000 && counters.cookies_bad == 5_000, "{counters:?}");
    let link = Link::datagram(Default::default(), None, server_address());
    w.to_client(c, Input::ControlPacket(link, &mut answers[0].clone()));
    assert!(w.run(Duration::from_millis(500), |w| w.is_up(c)), "{:?}", w.clients[c].events);
    assert_eq!(w.server.counters().starts_limited, 0);
}

#[test]
fn handshakes_from_one_site_of_ipv6_leave_room_for_others() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let host =
        |site: u16, link: u16| SocketAddr::from(([0x2001, 0xdb8, site, link, 0, 0, 0, 1], 5000));
    let begin = |w: &mut World, from: SocketAddr| {
        let session = 7;
        let cookie = cookie(w, from, session).expect("an answer");
        w.stranger(from, &third(cookie, session));
        w.server.handshakes()
    };
    let mut under_way = 0;
    for link in 0..4_096 {
        under_way = begin(&mut w, host(0, link));
        // Space the packets out, so that the rate of starts is not the limit.
        w.now = w.now + Duration::from_millis(12);
    }
    assert!((100..1_000).contains(&under_way), "{under_way}");
    assert!(w.server.counters().handshakes_refused > 3_000, "{:?}", w.server.counters());
    w.now = w.now + Duration::from_millis(1);
    assert_eq!(begin(&mut w, address(1)), under_way + 1, "IPv4");
    assert_eq!(begin(&mut w, host(1, 0)), under_way + 2, "another /48");
}

#[test]
fn handshakes_from_one_network_are_bounded_and_end_with_the_hand_window() {
    let mut w = World::new(server_config(Settings::default()), 1);
    for n in 0..600u32 {
        let session = u64::from(n + 1).to_be_bytes();
        let reset = plain(Opcode::HardResetClientV2, 0, session, Some(0));
        let answers = w.stranger(address(1), &bytes(&reset));
        let cookie: [u8; 8] = answers[0][1..9].try_into().expect("eight bytes");
        let third = Control {
            acks: adit_openvpn::packet::Acks::from_slice(&[0]).expect("one fits"),
            remote: Some(SessionId(cookie)),
            ..plain(Opcode::AckV1, 0, session, None)
        };
        w.stranger(address(1), &bytes(&third));
        w.now = w.now + Duration::from_millis(40);
    }
    assert_eq!(w.server.handshakes(), 512);
    assert_eq!(w.server.counters().handshakes_refused, 88);
    w.run(61 * SECOND, |_| false);
    assert_eq!((w.server.handshakes(), w.server.deadline()), (0, None));
}

#[test]
fn on_a_perfect_link_no_packet_is_taken_for_a_replay() {
    for (server, client) in wrappings() {
        let mut w = World::new(server_config(with(&server)), 1);
        let c = w.connect(client_config(with(&client)), Impairment::default(), 1);
        assert!(w.run(SECOND, |w| w.is_up(c)));
        let peer = *w.plane.peers.keys().next().expect("a peer");
        w.to_server(Input::Notice(Notice::KeyNearLimit(peer, 0)));
        assert!(w.run(SECOND, |w| w.rekeys(c) == 1));
        assert_eq!((w.clients[c].engine.dropped(), w.server.counters().session_bad), (0, 0));
    }
}

#[test]
fn both_session_ids_must_be_right() {
    let (mut w, c) = connected();
    let (client, server) = w.session_ids;
    let acks = adit_openvpn::packet::Acks::from_slice(&[1]).expect("one fits");
    let ack = Control { acks, ..plain(Opcode::AckV1, 0, client, None) };
    let own = w.clients[c].address;
    let send = |w: &mut World, remote| {
        w.stranger(own, &bytes(&Control { remote: Some(SessionId(remote)), ..ack }));
        w.server.counters().session_bad
    };
    assert_eq!(send(&mut w, server), 0);
    assert_eq!(send(&mut w, [9; 8]), 1);
    let link = Link::datagram(Default::default(), None, server_address());
    let send = |w: &mut World, session| {
        let ack = Control { session: SessionId(session), remote: Some(SessionId(client)), ..ack };
        w.to_client(c, Input::ControlPacket(link, &mut bytes(&ack)));
        w.clients[c].engine.dropped()
    };
    assert_eq!(send(&mut w, server), 0);
    assert_eq!(send(&mut w, [9; 8]), 1);
}

#[test]
fn renegotiations_come_in_their_order_and_one_at_a_time() {
    // Disable dynamic tls-crypt, so that the test can read the packets.
    let client = client_config(Settings { dynamic_tls_crypt: false, ..Settings::default() });
    let mut w = World::new(server_config(Settings::default()), 1);
    let c = w.connect(client, Impairment::default(), 1);
    assert!(w.run(SECOND, |w| w.is_up(c)));
    w.run(SECOND, |_| false);
    let server = w.session_ids.1;
    let link = Link::datagram(Default::default(), None, server_address());
    let answers = |w: &mut World, key_id, id| {
        let reset = plain(Opcode::SoftResetV1, key_id, server, Some(id));
        w.to_client(c, Input::ControlPacket(link, &mut bytes(&reset)));
        w.capture(c).len()
    };
    for key_id in [2, 3, 7] {
        assert_eq!(answers(&mut w, key_id, 0), 0, "key id {key_id}");
    }
    assert_ne!(answers(&mut w, 1, 0), 0);
    assert_eq!(answers(&mut w, 2, 0), 0, "the one before is not complete");
    assert_ne!(answers(&mut w, 1, 0), 0, "a repetition is acknowledged again");
    assert_eq!(w.clients[c].engine.dropped(), 4);
    answers(&mut w, 1, 1);
    let failed = w.clients[c]
        .events
        .iter()
        .any(|event| matches!(event, ClientEvent::Warning(why) if why.contains("a second reset")));
    assert!(failed, "{:?}", w.clients[c].events);
    assert!(
        w.run(5 * SECOND, |w| w.rekeys(c) == 1),
        "another negotiation: {:?}",
        w.clients[c].events
    );
}

#[test]
fn another_user_name_in_a_renegotiation_ends_the_session() {
    let mut config = server_config(Settings::default());
    // The base64 of "mallory".
    config.push.extend(["auth-token abc".into(), "auth-token-user bWFsbG9yeQ==".into()]);
    let mut w = World::new(config, 1);
    let credentials = adit_openvpn::client::Credentials {
        username: "alice".into(),
        password: "secret".to_owned().into(),
    };
    let client =
        ClientConfig { credentials: Some(credentials), ..client_config(Settings::default()) };
    let c = w.connect(client, Impairment::default(), 1);
    assert!(w.run(SECOND, |w| w.is_up(c)));
    let peer = *w.plane.peers.keys().next().expect("a peer");
    w.to_server(Input::Notice(Notice::KeyNearLimit(peer, 0)));
    w.run(5 * SECOND, |w| !w.downs().is_empty());
    assert!(w.downs().first().is_some_and(|reason| reason.contains("another identity")));
}

#[test]
fn another_server_in_a_renegotiation_ends_the_session() {
    let (mut w, c) = connected();
    w.server.set_tls(support::server_tls_named("another server"));
    let peer = *w.plane.peers.keys().next().expect("a peer");
    w.to_server(Input::Notice(Notice::KeyNearLimit(peer, 0)));
    let restarted = |w: &World| {
        w.clients[c].events.iter().any(|event| {
            matches!(event, ClientEvent::Restarting(why) if why.to_string().contains("another certificate"))
        })
    };
    assert!(w.run(5 * SECOND, restarted), "{:?}", w.clients[c].events);
}

#[test]
fn the_end_of_a_handshake_takes_no_place_that_a_session_moved_to() {
    let (mut w, c) = connected();
    let client = w.session_ids.0;
    // An attacker who saw the client's session id uses it from the client's next address.
    let reset = plain(Opcode::HardResetClientV2, 0, client, Some(0));
    let answers = w.stranger(address(1), &bytes(&reset));
    let third = Control {
        acks: adit_openvpn::packet::Acks::from_slice(&[0]).expect("one fits"),
        remote: Some(SessionId(answers[0][1..9].try_into().expect("eight bytes"))),
        ..plain(Opcode::AckV1, 0, client, None)
    };
    w.stranger(address(1), &bytes(&third));
    assert_eq!(w.server.handshakes(), 1);
    let peer = *w.plane.peers.keys().next().expect("a peer");
    let link = Link::datagram(Default::default(), None, address(1));
    w.to_server(Input::Notice(Notice::Floated(peer, link)));
    w.clients[c].address = address(1);
    w.run(61 * SECOND, |_| false);
    assert_eq!(w.server.handshakes(), 0);
    w.to_server(Input::Notice(Notice::KeyNearLimit(peer, 0)));
    assert!(w.run(5 * SECOND, |w| w.rekeys(c) == 1), "the server still hears it there");
}

#[test]
fn addresses_are_strangers_again_when_their_sessions_end() {
    let (mut w, c) = connected();
    assert_eq!(w.plane.admitted.len(), 1);
    let peer = *w.plane.peers.keys().next().expect("a peer");
    let elsewhere = Link::datagram(Default::default(), None, address(1));
    w.to_server(Input::Notice(Notice::Floated(peer, elsewhere)));
    assert_eq!(w.plane.admitted.iter().collect::<Vec<_>>(), [&elsewhere]);
    w.to_server(Input::Notice(Notice::PeerSilent(peer)));
    assert!(w.plane.admitted.is_empty());
    assert_eq!(w.server.clients().count(), 0);
    assert!(w.run(60 * SECOND, |w| w.ups(c) == 1));
}

const DAY: u64 = 24 * 60 * 60;

/// Returns a server that refuses keys older than 90 days, with tls-crypt for other clients, and a
/// client's key of this age.
fn expiring(days: Option<u64>) -> (WrapConfig, WrapConfig) {
    let key = ServerKey::new(&[42; ServerKey::LEN]);
    // The world's clock begins here.
    let made = days.map(|days| Metadata::Timestamp(1_800_000_000 - days * DAY));
    let client = key.client_key(StaticKey::new([3; StaticKey::LEN]), made.as_ref()).expect("a key");
    let server = WrapConfig::TlsCryptV2Server {
        key,
        max_age: Some(Duration::from_secs(90 * DAY)),
        shared: Some(Box::new(crypt())),
    };
    (server, WrapConfig::TlsCryptV2Client { key: client })
}

#[test]
fn a_server_with_both_kinds_of_keys_lets_both_kinds_of_clients_in_and_rekeys_them() {
    let (server, young) = expiring(Some(89));
    let mut w = World::new(ServerConfig { duplicate_cn: true, ..server_config(with(&server)) }, 1);
    let both = [&young, &crypt()]
        .map(|wrap| w.connect(client_config(with(wrap)), Impairment::default(), 1));
    assert!(w.run(5 * SECOND, |w| both.iter().all(|&c| w.is_up(c))), "{:?}", w.events);
    for c in both {
        let peer = w.clients[c].plane.peers.keys().copied().next().expect("a peer");
        w.to_client(c, Input::Notice(Notice::KeyNearLimit(peer, 0)));
    }
    assert!(w.run(20 * SECOND, |w| both.iter().all(|&c| w.rekeys(c) == 1)), "{:?}", w.events);
}

#[test]
fn a_key_that_is_too_old_or_of_no_age_starts_nothing_and_is_named_a_few_times() {
    for (age, word) in [(Some(91), "older"), (None, "time stamp")] {
        let (server, client) = expiring(age);
        let mut w = World::new(server_config(with(&server)), 1);
        let c = w.connect(client_config(with(&client)), Impairment::default(), 1);
        assert!(!w.run(20 * SECOND, |w| w.is_up(c)));
        let named = |event: &ServerEvent| matches!(event, ServerEvent::HandshakeFailed(_, why) if why.to_string().contains(word));
        assert!(w.events.iter().any(named), "{:?}", w.events);
        assert_eq!((w.server.handshakes(), w.server.counters().resets_answered), (0, 0));
        assert!(w.server.counters().keys_expired > 0);
        // Within a second of a flood, a few senders are logged and all are counted.
        w.events.clear();
        w.now = w.now + 5 * SECOND;
        let before = w.server.counters().keys_expired;
        for n in 0..500 {
            assert!(w.stranger(address(n), &reset(&client, 77)).is_empty());
        }
        assert_eq!(w.server.counters().keys_expired - before, 500);
        assert!((1..=5).contains(&w.events.iter().filter(|event| named(event)).count()));
        // An altered packet proves nothing about a key.
        let mut altered = reset(&client, 77);
        altered[20] ^= 1;
        w.stranger(address(1), &altered);
        assert_eq!(w.server.counters().keys_expired - before, 500);
        // A stream is closed, and the reason is reported once.
        let link = Link::stream(7, address(3));
        w.events.clear();
        w.to_server(Input::LinkUp(link));
        w.to_server(Input::ControlPacket(link, &mut reset(&client, 78)));
        assert_eq!(w.hung_up, [link]);
        assert_eq!(w.events.iter().filter(|event| named(event)).count(), 1, "{:?}", w.events);
    }
}

#[test]
fn a_key_that_becomes_too_old_ends_no_session() {
    let (server, client) = expiring(Some(89));
    let mut w = World::new(server_config(with(&server)), 1);
    let c = w.connect(client_config(with(&client)), Impairment::default(), 1);
    assert!(w.run(5 * SECOND, |w| w.is_up(c)));
    w.server.set_unix_time(w.now, adit_engine::UnixTime(1_800_000_000 + 2 * DAY));
    let peer = w.clients[c].plane.peers.keys().copied().next().expect("a peer");
    w.to_client(c, Input::Notice(Notice::KeyNearLimit(peer, 0)));
    assert!(w.run(20 * SECOND, |w| w.rekeys(c) == 1), "{:?}", w.clients[c].events);
    assert!(w.downs().is_empty());
}
