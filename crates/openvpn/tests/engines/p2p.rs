//! Point-to-point ends on a simulated link.

use std::time::Duration;

use adit_crypto::{BlockCipher, Cipher, Digest};
use adit_engine::command::Keepalive;
use adit_engine::{Link, PeerId, SocketId, Transport, UnixTime};
use adit_openvpn::Reason;
use adit_openvpn::client::ClientEvent;
use adit_openvpn::data_format::{BlockSuite, Input, Notice};
use adit_openvpn::keys::{Direction, Metadata, ServerKey, StaticKey};
use adit_openvpn::p2p::{Ifconfig4, PeerConfig, PeerTls, RemotePolicy, StaticConfig, TunnelAddrs};
use adit_openvpn::session::{Renegotiation, Settings};
use adit_openvpn::wrap::WrapConfig;
use adit_sim::{Impairment, Loss};

use crate::points::{self, A, B, Config, Packet, World, address};
use crate::support;

const SECOND: Duration = Duration::from_secs(1);

fn line() -> Impairment {
    Impairment { delay: Duration::from_millis(10), ..Impairment::default() }
}

fn rough(loss: f64) -> Impairment {
    Impairment {
        loss: Loss::Random(loss),
        duplicate: 0.05,
        reorder: 0.1,
        reorder_by: Duration::from_millis(60),
        delay: Duration::from_millis(25),
        jitter: Duration::from_millis(10),
    }
}

fn settings() -> Settings {
    let keepalive = Keepalive { interval: 2 * SECOND, timeout: 10 * SECOND };
    Settings { keepalive, ..Settings::default() }
}

fn rekey_every(seconds: u64) -> Settings {
    let renegotiation = Renegotiation {
        after: Duration::from_secs(seconds),
        earliest: Duration::from_secs(seconds),
        ..Renegotiation::default()
    };
    Settings { renegotiation, ..settings() }
}

fn key(byte: u8) -> StaticKey {
    StaticKey::new(std::array::from_fn(|n| byte ^ (n as u8)))
}

fn remote_policy() -> RemotePolicy {
    RemotePolicy::new(vec![points::remote(Transport::Udp)])
}

fn any_remote() -> RemotePolicy {
    RemotePolicy::new(Vec::new())
}

fn tunnel_addrs() -> TunnelAddrs {
    let pair = |a: &str, b: &str| Ifconfig4::Pair(a.parse().unwrap(), b.parse().unwrap());
    TunnelAddrs { ipv4: Some(pair("10.1.0.1", "10.1.0.2")), ipv6: None }
}

fn secret(direction: Option<Direction>, remote_policy: RemotePolicy) -> StaticConfig {
    StaticConfig {
        settings: settings(),
        key: key(1),
        direction,
        suite: BlockSuite { cipher: Some(BlockCipher::Aes256Cbc), digest: Some(Digest::Sha1) },
        remote_policy,
        tunnel_addrs: tunnel_addrs(),
    }
}

fn fixed(config: StaticConfig) -> Config {
    Config::Static(Box::new(config))
}

fn statics() -> [Config; 2] {
    [
        fixed(secret(Some(Direction::Normal), remote_policy())),
        fixed(secret(Some(Direction::Inverse), remote_policy())),
    ]
}

fn tls(server: bool, settings: Settings, remote_policy: RemotePolicy) -> Config {
    let tls = if server {
        PeerTls::Server(support::server_tls())
    } else {
        PeerTls::Client(support::client_tls())
    };
    Config::Peer(Box::new(PeerConfig {
        settings,
        tls,
        force_cookie: false,
        remote_policy,
        tunnel_addrs: tunnel_addrs(),
    }))
}

fn pair(settings: &Settings) -> [Config; 2] {
    [tls(true, settings.clone(), remote_policy()), tls(false, settings.clone(), remote_policy())]
}

fn up(configs: [Config; 2]) -> World {
    let mut w = World::new(configs, &line(), 1);
    assert!(
        w.run(15 * SECOND, |w| w.both_up(1)),
        "{:?} {:?}",
        w.nodes[A].events,
        w.nodes[B].events
    );
    w
}

// Tests with static keys.

#[test]
fn a_static_key_needs_no_word_but_a_packet() {
    let mut w = up(statics());
    assert_eq!(w.tunnel(A).remote, Some(address(B)));
    assert_eq!(w.tunnel(A).gateway4, Some("10.1.0.2".parse().unwrap()));
    assert!(w.passes());
    assert!(!w.run(60 * SECOND, |w| !w.restarts(A).is_empty()), "{:?}", w.restarts(A));
}

#[test]
fn without_a_direction_both_ends_use_one_key() {
    let mut w = up([fixed(secret(None, remote_policy())), fixed(secret(None, remote_policy()))]);
    assert!(w.passes());
}

#[test]
fn ends_with_the_same_direction_or_another_key_never_hear_each_other() {
    let same = || fixed(secret(Some(Direction::Normal), remote_policy()));
    let mut other = secret(Some(Direction::Inverse), remote_policy());
    other.key = key(2);
    for configs in [[same(), same()], [same(), fixed(other)]] {
        let mut w = World::new(configs, &line(), 1);
        assert!(!w.run(60 * SECOND, |w| w.ups(A) + w.ups(B) > 0));
        assert!(w.nodes[A].plane.refused > 5);
    }
}

#[test]
fn an_end_without_remote_learns_where_the_other_is_and_follows_it() {
    let mut listening = secret(Some(Direction::Inverse), any_remote());
    listening.settings.keepalive.timeout = Duration::ZERO;
    let [dialling, _] = statics();
    let mut w = up([dialling, fixed(listening)]);
    assert_eq!(w.tunnel(B).remote, Some(address(A)));
    assert!(w.passes());
    // The port changes, as after a NAT has lost its mapping.
    w.nodes[A].address.set_port(4000);
    w.traffic(A);
    assert!(w.run(SECOND, |w| {
        w.nodes[B].events.iter().any(|e| matches!(e, ClientEvent::Note(n) if n.contains(":4000")))
    }));
    assert!(w.passes());
}

#[test]
fn a_configured_peer_that_does_not_float_is_heard_at_its_address_alone() {
    let mut w = up(statics());
    w.nodes[A].address.set_port(4000);
    let before = w.nodes[B].plane.delivered.len();
    w.traffic(A);
    w.run(SECOND, |_| false);
    assert_eq!(w.nodes[B].plane.delivered.len(), before);
    // The same test with `float`.
    let mut floating = secret(Some(Direction::Inverse), remote_policy());
    floating.settings.float = true;
    let [a, _] = statics();
    let mut w = up([a, fixed(floating)]);
    w.nodes[A].address.set_port(4000);
    let before = w.nodes[B].plane.delivered.len();
    w.traffic(A);
    w.run(SECOND, |_| false);
    assert!(w.nodes[B].plane.delivered.len() > before);
}

#[test]
fn a_static_peer_that_dies_is_missed_and_heard_again() {
    let mut w = up(statics());
    w.kill(B);
    assert!(w.run(30 * SECOND, |w| !w.restarts(A).is_empty()));
    assert!(w.restarts(A)[0].contains("ping-restart"));
    // The end keeps trying, and restarts each time.
    assert!(w.run(60 * SECOND, |w| w.restarts(A).len() >= 3), "{:?}", w.restarts(A));
    w.revive(B);
    assert!(w.run(15 * SECOND, |w| w.ups(A) >= 2 && w.ups(B) >= 2));
    assert!(w.passes());
}

/// The replay window survives every restart of the engine.
#[test]
fn a_captured_static_packet_is_never_delivered_again() {
    let mut w = up(statics());
    for _ in 0..5 {
        assert!(w.passes());
    }
    let captured = w.nodes[A].sent.clone();
    let replay = |w: &mut World| {
        let before = w.nodes[B].plane.delivered.len();
        for packet in captured.clone() {
            w.deliver(B, address(A), packet.clone());
            w.deliver(B, "203.0.113.9:9".parse().unwrap(), packet);
        }
        assert_eq!(w.nodes[B].plane.delivered.len(), before);
    };
    replay(&mut w);
    w.kill(A);
    assert!(w.run(30 * SECOND, |w| !w.restarts(B).is_empty()));
    replay(&mut w);
    let ups = w.ups(B);
    w.run(5 * SECOND, |_| false);
    assert_eq!(w.ups(B), ups, "a replay passed for the peer");
}

#[test]
fn a_static_end_that_says_goodbye_is_not_waited_for() {
    let mut leaving = secret(Some(Direction::Normal), remote_policy());
    leaving.settings.exit_notify = Some(3);
    let [_, other] = statics();
    let mut w = up([fixed(leaving), other]);
    w.act(A, |end, now, out| end.shutdown(now, out));
    assert!(w.run(2 * SECOND, |w| w.stopped(A) == Some(&Reason::EndRequested)));
    assert!(w.run(SECOND, |w| w.restarts(B) == ["remote-exit"]), "{:?}", w.restarts(B));
    let notice =
        |packet: &&Packet| matches!(packet, Packet::Data(data) if !data.message.is_empty());
    assert_eq!(w.nodes[A].sent.iter().filter(notice).count(), 3);
}

#[test]
fn without_exit_notify_nothing_is_said() {
    let mut w = up(statics());
    w.act(A, |end, now, out| end.shutdown(now, out));
    assert_eq!(w.stopped(A), Some(&Reason::EndRequested));
    w.run(SECOND, |_| false);
    assert!(w.nodes[B].plane.messages.is_empty());
}

// Tests with TLS.

#[test]
fn tls_ends_agree_on_cipher_and_peer_id() {
    let mut server = settings();
    server.ciphers = vec![Cipher::ChaCha20Poly1305.into(), Cipher::Aes256Gcm.into()];
    let configs = [tls(true, server, remote_policy()), tls(false, settings(), remote_policy())];
    let mut w = up(configs);
    assert_eq!(w.tunnel(A).cipher, Some(Cipher::ChaCha20Poly1305.into()));
    assert_eq!(w.tunnel(B).cipher, Some(Cipher::ChaCha20Poly1305.into()));
    let ids = w.nodes[A].plane.wire_ids();
    assert!(matches!(ids.as_slice(), [Some(1..=0xff_ffff)]), "{ids:?}");
    assert_eq!(ids, w.nodes[B].plane.wire_ids());
    assert!(w.passes());
}

#[test]
fn every_wrapping_connects_and_rekeys_on_a_bad_line() {
    let master = ServerKey::new(&[9; ServerKey::LEN]);
    let issued = master.client_key(key(5), None);
    let auth = |direction| WrapConfig::TlsAuth { key: key(3), direction, digest: Digest::Sha256 };
    let wrappings = [
        (WrapConfig::None, WrapConfig::None),
        (auth(None), auth(None)),
        (auth(Some(Direction::Normal)), auth(Some(Direction::Inverse))),
        (WrapConfig::TlsCrypt { key: key(4) }, WrapConfig::TlsCrypt { key: key(4) }),
        (
            WrapConfig::tls_crypt_v2_server(master.clone()),
            WrapConfig::TlsCryptV2Client { key: issued.expect("a key") },
        ),
    ];
    for (n, (server, client)) in wrappings.into_iter().enumerate() {
        for seed in 0..6 {
            let with = |wrap: &WrapConfig| Settings { wrap: wrap.clone(), ..rekey_every(20) };
            let configs = [
                tls(true, with(&server), remote_policy()),
                tls(false, with(&client), remote_policy()),
            ];
            let mut w = World::new(configs, &rough(0.05), seed);
            assert!(w.run(60 * SECOND, |w| w.both_up(1)), "wrapping {n}, seed {seed}");
            let rekeyed = w.run(300 * SECOND, |w| w.rekeys(A) >= 4 && w.rekeys(B) >= 4);
            assert!(rekeyed, "wrapping {n}, seed {seed}: {:?}", w.nodes[B].events);
            assert!(w.restarts(A).is_empty() && w.restarts(B).is_empty(), "{n} {seed}");
        }
    }
}

#[test]
fn handshakes_complete_in_many_bad_networks_whichever_end_knows_the_other() {
    for seed in 0..300 {
        let loss = f64::from((seed % 11) as u32) / 100.0;
        let (a, b) = match seed % 3 {
            0 => (remote_policy(), remote_policy()),
            1 => (any_remote(), remote_policy()),
            // Only the server knows the other end's address, so the server begins with an invitation.
            _ => (remote_policy(), any_remote()),
        };
        let configs = [tls(true, settings(), a), tls(false, settings(), b)];
        let mut w = World::new(configs, &rough(loss), seed);
        assert!(w.run(60 * SECOND, |w| w.both_up(1)), "seed {seed}: {:?}", w.nodes[B].events);
    }
}

#[test]
fn a_client_that_dies_and_comes_back_replaces_its_session_at_once() {
    for server in [remote_policy(), any_remote()] {
        let mut w = up([tls(true, settings(), server), tls(false, settings(), remote_policy())]);
        w.kill(B);
        w.run(SECOND, |_| false);
        w.revive(B);
        assert!(w.run(3 * SECOND, |w| w.both_up(2)), "{:?}", w.nodes[A].events);
        assert!(w.restarts(A).is_empty(), "the server was at its place all the time");
        assert!(w.passes());
    }
}

#[test]
fn with_a_single_session_a_peer_comes_back_only_after_silence() {
    let single = Settings { single_session: true, ..settings() };
    let mut w = up([tls(true, single, any_remote()), tls(false, settings(), remote_policy())]);
    w.kill(B);
    w.run(SECOND, |_| false);
    w.revive(B);
    assert!(!w.run(3 * SECOND, |w| w.ups(B) >= 2), "{:?}", w.nodes[A].events);
    assert!(w.restarts(A).is_empty(), "its session is not disturbed");
    assert!(w.run(60 * SECOND, |w| w.both_up(2)));
    assert!(w.restarts(A)[0].contains("ping-restart"), "{:?}", w.restarts(A));
    assert!(w.passes());
}

#[test]
fn a_server_that_dies_and_comes_back_invites_its_client() {
    let mut w = up(pair(&settings()));
    w.kill(A);
    w.run(SECOND, |_| false);
    w.revive(A);
    assert!(w.run(3 * SECOND, |w| w.both_up(2)), "{:?}", w.nodes[B].events);
    assert!(w.restarts(B).is_empty(), "{:?}", w.restarts(B));
    assert!(w.passes());
}

#[test]
fn a_server_that_knows_no_remote_is_found_again_after_silence() {
    let mut w = up([tls(true, settings(), any_remote()), tls(false, settings(), remote_policy())]);
    w.kill(A);
    w.run(SECOND, |_| false);
    w.revive(A);
    assert!(w.run(30 * SECOND, |w| w.both_up(2)));
    assert!(w.restarts(B)[0].contains("ping-restart"), "{:?}", w.restarts(B));
}

#[test]
fn an_invitation_is_believed_at_most_every_few_seconds_and_ends_nothing() {
    let mut w = up(pair(&settings()));
    let invitation = w.nodes[A].sent.iter().find_map(|packet| match packet {
        Packet::Control(bytes) if bytes[0] >> 3 == 8 && bytes.len() == 14 => Some(bytes.clone()),
        _ => None,
    });
    let invitation = invitation.expect("the server began with one");
    for n in 0..50 {
        let mut forged = invitation.clone();
        forged[1] ^= n + 1;
        w.deliver(B, address(A), Packet::Control(forged));
    }
    assert_eq!(handshakes(&w, B), 1);
    // From another address, the packet is not processed.
    w.run(10 * SECOND, |_| false);
    let before = handshakes(&w, B);
    w.deliver(B, "203.0.113.9:1194".parse().unwrap(), Packet::Control(invitation));
    assert_eq!(handshakes(&w, B), before);
    w.run(120 * SECOND, |_| false);
    assert!(w.restarts(B).is_empty() && w.restarts(A).is_empty());
    assert!(w.passes());
}

#[test]
fn a_stranger_costs_a_listening_server_nothing_and_disturbs_no_session() {
    let mut w = up([tls(true, settings(), any_remote()), tls(false, settings(), remote_policy())]);
    let resets: Vec<Vec<u8>> = w.nodes[B]
        .sent
        .iter()
        .filter_map(|packet| match packet {
            Packet::Control(bytes) if bytes[0] >> 3 == 7 => Some(bytes.clone()),
            _ => None,
        })
        .collect();
    for n in 0..200_u8 {
        let mut forged = resets[0].clone();
        forged[1] = n;
        let from = std::net::SocketAddr::from(([198, 51, 100, n], 1194));
        w.deliver(A, from, Packet::Control(forged));
    }
    match w.nodes[A].end.as_ref() {
        Some(points::End::Peer(engine)) => assert_eq!(engine.handshakes(), 0),
        _ => unreachable!(),
    }
    assert!(w.passes());
}

fn handshakes(w: &World, n: usize) -> usize {
    match w.nodes[n].end.as_ref() {
        Some(points::End::Peer(engine)) => engine.handshakes(),
        _ => 0,
    }
}

/// Returns an unwrapped reset, with the id that it answers, if any.
fn reset(opcode: u8, session: [u8; 8], answers: Option<[u8; 8]>) -> Vec<u8> {
    let mut packet = vec![opcode << 3];
    packet.extend(session);
    match answers {
        Some(remote) => {
            packet.extend([1, 0, 0, 0, 0]);
            packet.extend(remote);
        }
        None => packet.push(0),
    }
    packet.extend([0; 4]);
    packet
}

#[test]
fn an_answer_to_a_handshake_that_is_over_is_no_invitation() {
    let mut w = up(pair(&settings()));
    let echo = reset(8, *b"another!", Some(*b"over now"));
    w.deliver(B, address(A), Packet::Control(echo));
    assert_eq!(handshakes(&w, B), 0);
    // Without an acknowledged id, the same reset is accepted.
    w.deliver(B, address(A), Packet::Control(reset(8, *b"another!", None)));
    assert_eq!(handshakes(&w, B), 0, "its id is known already");
    w.deliver(B, address(A), Packet::Control(reset(8, *b"a third!", None)));
    assert_eq!(handshakes(&w, B), 1);
    // It leads to a handshake with the real server, and further ones are ignored for some time.
    assert!(w.run(SECOND, |w| w.both_up(2)));
    w.deliver(B, address(A), Packet::Control(reset(8, *b"a fourth", None)));
    assert_eq!(handshakes(&w, B), 0);
    w.run(6 * SECOND, |_| false);
    w.deliver(B, address(A), Packet::Control(reset(8, *b"a fifth!", None)));
    assert_eq!(handshakes(&w, B), 1);
}

#[test]
fn under_a_wrapping_only_who_has_the_key_can_invite() {
    let wrapped = Settings { wrap: WrapConfig::TlsCrypt { key: key(4) }, ..settings() };
    let mut w = up(pair(&wrapped));
    w.deliver(B, address(A), Packet::Control(reset(8, *b"another!", None)));
    assert_eq!(handshakes(&w, B), 0);
}

#[test]
fn a_cookie_that_was_not_given_begins_nothing() {
    let mut w = up([tls(true, settings(), any_remote()), tls(false, settings(), remote_policy())]);
    let mut cookie = vec![5 << 3];
    cookie.extend(*b"stranger");
    cookie.extend([1, 0, 0, 0, 0]);
    cookie.extend(*b"made up!");
    w.deliver(A, "198.51.100.1:1194".parse().unwrap(), Packet::Control(cookie));
    assert_eq!(handshakes(&w, A), 0);
}

/// Without a wrapping, any sender can begin a handshake and abandon it.
#[test]
fn strangers_who_hold_handshakes_open_do_not_keep_the_peer_out() {
    for one_address in [false, true] {
        let mut w =
            up([tls(true, settings(), any_remote()), tls(false, settings(), remote_policy())]);
        for n in 0..40_u8 {
            let host = if one_address { 1 } else { n };
            let from = std::net::SocketAddr::from(([198, 51, 100, host], 1194));
            let session = [n; 8];
            w.deliver(A, from, Packet::Control(reset(7, session, None)));
            let Some((_, answer)) = w.strays.pop() else { continue };
            let mut cookie = vec![5 << 3];
            cookie.extend(session);
            cookie.extend([1, 0, 0, 0, 0]);
            cookie.extend(&answer[1..9]);
            w.deliver(A, from, Packet::Control(cookie));
        }
        let held = handshakes(&w, A);
        // One of them has the peer's address.
        assert!(if one_address { held == 2 } else { (39..=40).contains(&held) }, "{held}");
        assert!(w.passes());
        w.kill(B);
        w.revive(B);
        assert!(w.run(3 * SECOND, |w| w.both_up(2)), "{:?}", w.nodes[A].events);
        assert_eq!(handshakes(&w, A), 0, "the one that could took the place");
    }
}

/// Begins a handshake from a proven address and abandons it. Returns the third packet.
fn hold(w: &mut World, from: std::net::SocketAddr, session: [u8; 8]) -> Option<Vec<u8>> {
    w.deliver(A, from, Packet::Control(reset(7, session, None)));
    let (_, answer) = w.strays.pop()?;
    let mut cookie = vec![5 << 3];
    cookie.extend(session);
    cookie.extend([1, 0, 0, 0, 0]);
    cookie.extend(&answer[1..9]);
    w.deliver(A, from, Packet::Control(cookie.clone()));
    Some(cookie)
}

#[test]
fn handshakes_of_many_strangers_push_none_out_that_is_young() {
    let mut w = up([tls(true, settings(), any_remote()), tls(false, settings(), remote_policy())]);
    let host = |n: u8| std::net::SocketAddr::from(([198, 51, 100, n], 1194));
    let first = hold(&mut w, host(0), [200; 8]).expect("an answer");
    (1..200).for_each(|n| drop(hold(&mut w, host(n), [n; 8])));
    assert_eq!(handshakes(&w, A), 64);
    // The first handshake still exists, so its packet belongs to it and does not begin another one.
    let dropped = w.nodes[A].end.as_ref().map(points::End::dropped);
    w.deliver(A, host(0), Packet::Control(first));
    assert_eq!(w.nodes[A].end.as_ref().map(points::End::dropped), dropped);
    // Later the oldest handshakes are evicted.
    w.run(6 * SECOND, |_| false);
    w.kill(B);
    w.revive(B);
    assert!(w.run(3 * SECOND, |w| w.both_up(2)), "{:?}", w.nodes[A].events);
}

#[test]
fn one_cookie_starts_one_handshake_between_two_points_too() {
    let mut w = up([tls(true, settings(), any_remote()), tls(false, settings(), remote_policy())]);
    let from = std::net::SocketAddr::from(([198, 51, 100, 1], 1194));
    let third = hold(&mut w, from, [7; 8]).expect("an answer");
    let failed = |w: &World| {
        let said = |e: &&ClientEvent| matches!(e, ClientEvent::Note(text) if text.contains("handshake with"));
        w.nodes[A].events.iter().filter(said).count()
    };
    for _ in 0..1_000 {
        let mut garbage = vec![4 << 3];
        garbage.extend([7; 8]);
        garbage.extend([0, 0, 0, 0, 1]);
        garbage.extend(b"this is no TLS at all");
        w.deliver(A, from, Packet::Control(garbage));
        w.deliver(A, from, Packet::Control(third.clone()));
    }
    assert_eq!((failed(&w), handshakes(&w, A)), (1, 0));
    assert!(w.passes());
}

#[test]
fn garbage_in_the_peers_name_does_not_lock_it_out() {
    let wrapped = Settings { wrap: WrapConfig::TlsCrypt { key: key(4) }, ..settings() };
    let mut w =
        up([tls(true, wrapped.clone(), any_remote()), tls(false, wrapped, remote_policy())]);
    w.kill(B);
    let mut forged = vec![7 << 3];
    forged.extend([0x5a; 53]);
    for _ in 0..2_000 {
        w.deliver(A, address(B), Packet::Control(forged.clone()));
    }
    w.revive(B);
    assert!(w.run(Duration::from_millis(500), |w| w.both_up(2)), "{:?}", w.nodes[A].events);
}

/// Replays a whole control channel, from the same address and from another.
#[test]
fn a_captured_handshake_replayed_gives_no_session_and_ends_none() {
    for server in [remote_policy(), any_remote()] {
        let mut w = up([tls(true, settings(), server), tls(false, settings(), remote_policy())]);
        assert!(w.passes());
        for n in [A, B] {
            let captured = w.nodes[n].sent.clone();
            let delivered = w.nodes[1 - n].plane.delivered.len();
            for packet in captured {
                w.deliver(1 - n, address(n), packet.clone());
                w.deliver(1 - n, "203.0.113.9:1194".parse().unwrap(), packet);
            }
            assert_eq!(w.nodes[1 - n].plane.delivered.len(), delivered);
        }
        w.run(SECOND, |_| false);
        assert!(w.restarts(A).is_empty() && w.restarts(B).is_empty());
        assert_eq!((w.ups(A), w.ups(B)), (1, 1));
        assert!(w.passes());
    }
}

#[test]
fn ends_of_the_same_role_do_not_connect() {
    for server in [true, false] {
        let configs =
            [tls(server, settings(), remote_policy()), tls(server, settings(), remote_policy())];
        let mut w = World::new(configs, &line(), 1);
        assert!(!w.run(120 * SECOND, |w| w.ups(A) + w.ups(B) > 0));
        // Neither end stays with one address forever, because names are resolved again.
        assert!(!w.restarts(A).is_empty());
    }
}

#[test]
fn ends_without_a_common_cipher_say_so_and_do_not_connect() {
    let only = |cipher| Settings { ciphers: vec![cipher], ..settings() };
    let configs = [
        tls(true, only(Cipher::Aes256Gcm.into()), remote_policy()),
        tls(false, only(Cipher::ChaCha20Poly1305.into()), remote_policy()),
    ];
    let mut w = World::new(configs, &line(), 1);
    assert!(!w.run(20 * SECOND, |w| w.ups(A) + w.ups(B) > 0));
    let said = |e: &ClientEvent| matches!(e, ClientEvent::Warning(w) if w.contains("data-ciphers"));
    assert!(w.nodes[A].events.iter().any(said) && w.nodes[B].events.iter().any(said));
}

#[test]
fn an_end_that_says_goodbye_by_control_is_not_waited_for() {
    let leaving = Settings { exit_notify: Some(1), ..settings() };
    for n in [A, B] {
        let mut w = up(pair(&leaving));
        w.act(n, |end, now, out| end.shutdown(now, out));
        assert!(w.run(2 * SECOND, |w| w.stopped(n) == Some(&Reason::EndRequested)));
        assert!(w.run(SECOND, |w| w.restarts(1 - n) == ["remote-exit"]));
        // The end can come back.
        w.kill(n);
        w.revive(n);
        assert!(w.run(10 * SECOND, |w| w.both_up(2)), "{n}: {:?}", w.nodes[1 - n].events);
    }
}

#[test]
fn only_the_peers_own_address_is_listened_to_unless_it_floats() {
    let mut w = World::new(pair(&settings()), &line(), 1);
    w.nodes[B].address.set_port(4000);
    assert!(!w.run(60 * SECOND, |w| w.ups(A) > 0));
    let floating = Settings { float: true, ..settings() };
    let configs = [tls(true, floating, remote_policy()), tls(false, settings(), remote_policy())];
    let mut w = World::new(configs, &line(), 1);
    w.nodes[B].address.set_port(4000);
    assert!(w.run(10 * SECOND, |w| w.ups(A) > 0));
}

#[test]
fn a_notice_about_a_former_session_does_not_touch_the_present_one() {
    let mut w = up(pair(&settings()));
    w.kill(B);
    w.revive(B);
    assert!(w.run(5 * SECOND, |w| w.both_up(2)));
    w.feed(A, Input::Notice(Notice::PeerSilent(PeerId(0))));
    assert!(w.restarts(A).is_empty());
    w.feed(A, Input::Notice(Notice::PeerSilent(PeerId(1))));
    assert_eq!(w.restarts(A).len(), 1);
}

/// At both ends, the identity in a renegotiation must be the admitted one.
#[test]
fn another_certificate_in_a_renegotiation_ends_the_session() {
    for n in [A, B] {
        let mut w = up(pair(&rekey_every(20)));
        let other = match n {
            A => PeerTls::Server(support::server_tls()),
            _ => PeerTls::Client(support::client_tls()),
        };
        match w.nodes[n].end.as_mut() {
            Some(points::End::Peer(engine)) => engine.set_tls(other),
            _ => unreachable!(),
        }
        assert!(w.run(30 * SECOND, |w| !w.restarts(1 - n).is_empty()));
        assert!(w.restarts(1 - n)[0].contains("another certificate"), "{:?}", w.restarts(1 - n));
    }
}

#[test]
fn rounds_of_failed_attempts_end_where_the_configuration_says() {
    let limited = RemotePolicy { connect_retry_max: Some(2), ..remote_policy() };
    let mut w = World::new(
        [tls(false, settings(), limited), tls(true, settings(), remote_policy())],
        &line(),
        1,
    );
    w.kill(B);
    assert!(w.run(300 * SECOND, |w| w.stopped(A) == Some(&Reason::RetriesExhausted)));
    let link = Link::datagram(SocketId(1), None, address(B));
    w.feed(A, Input::LinkUp(link));
    assert_eq!(
        w.nodes[A].events.iter().filter(|e| matches!(e, ClientEvent::Stopped(_))).count(),
        1
    );
}

/// Without a wrapping, anyone who reads the traffic can forge control packets.
#[test]
fn an_injected_packet_ends_no_session_between_two_points() {
    for dynamic in [true, false] {
        for at in [A, B] {
            let settings = Settings { dynamic_tls_crypt: dynamic, ..settings() };
            let mut w = up(pair(&settings));
            w.run(2 * SECOND, |_| false);
            let other = 1 - at;
            let session: Vec<u8> = w.nodes[other]
                .sent
                .iter()
                .rev()
                .find_map(|packet| match packet {
                    Packet::Control(bytes) => Some(bytes[1..9].to_vec()),
                    Packet::Data(_) => None,
                })
                .expect("control packets were sent");
            for id in 0..40_u8 {
                let mut packet = vec![4 << 3];
                packet.extend(&session);
                packet.extend([0, 0, 0, 0, id]);
                packet.extend(b"this is no TLS at all");
                w.deliver(at, address(other), Packet::Control(packet));
            }
            let failed = |e: &ClientEvent| matches!(e, ClientEvent::Warning(text) if text.contains("key negotiation failed"));
            assert!(w.nodes[at].events.iter().any(failed), "{:?}", w.nodes[at].events);
            assert!(w.passes());
            let rekeyed = |w: &World| {
                let rekeyed = |e: &ClientEvent| matches!(e, ClientEvent::Rekeyed { .. });
                w.nodes.iter().all(|node| node.events.iter().any(rekeyed))
            };
            assert!(w.run(10 * SECOND, rekeyed), "{dynamic} {at}: a new negotiation");
            assert!(w.passes());
            assert!(w.both_up(1) && !w.both_up(2), "the session is the same");
        }
    }
}

const DAY: u64 = 24 * 60 * 60;

/// Returns a server that refuses keys older than 90 days, and a client whose key has this age.
fn expiring(days: Option<u64>) -> [Config; 2] {
    let master = ServerKey::new(&[42; ServerKey::LEN]);
    let made = days.map(|days| Metadata::Timestamp(points::UNIX.0 - days * DAY));
    let client = master.client_key(key(3), made.as_ref()).expect("a key");
    let server = WrapConfig::TlsCryptV2Server {
        key: master,
        max_age: Some(Duration::from_secs(90 * DAY)),
        shared: None,
    };
    let with = |wrap| Settings { wrap, ..settings() };
    [
        tls(true, with(server), any_remote()),
        tls(false, with(WrapConfig::TlsCryptV2Client { key: client }), remote_policy()),
    ]
}

#[test]
fn a_key_that_is_too_old_or_of_no_age_starts_nothing_between_two_points() {
    for (age, word) in [(Some(91), "older"), (None, "time stamp")] {
        let mut w = World::new(expiring(age), &line(), 1);
        assert!(!w.run(120 * SECOND, |w| w.ups(A) + w.ups(B) > 0));
        let named = |e: &&ClientEvent| matches!(e, ClientEvent::Warning(why) if why.contains(word));
        assert!(w.nodes[A].events.iter().any(|e| named(&e)), "{:?}", w.nodes[A].events);
        assert_eq!(handshakes(&w, A), 0);
        assert!(w.nodes[A].sent.is_empty(), "it is not answered");
        // A flood of the same packet is logged only a few times.
        let reset = w.nodes[B].sent.iter().find_map(|packet| match packet {
            Packet::Control(bytes) => Some(bytes.clone()),
            Packet::Data(_) => None,
        });
        let reset = reset.expect("the client has begun");
        w.nodes[A].events.clear();
        for _ in 0..1000 {
            w.deliver(A, address(B), Packet::Control(reset.clone()));
        }
        assert!(w.nodes[A].events.len() <= 20, "{}", w.nodes[A].events.len());
    }
}

#[test]
fn a_key_that_becomes_too_old_ends_no_session_between_two_points() {
    let mut w = up(expiring(Some(89)));
    match w.nodes[A].end.as_mut() {
        Some(points::End::Peer(engine)) => {
            engine.set_unix_time(w.now, UnixTime(points::UNIX.0 + 2 * DAY));
        }
        _ => unreachable!(),
    }
    w.feed(B, Input::Notice(Notice::KeyNearLimit(PeerId(0), 0)));
    assert!(
        w.run(20 * SECOND, |w| w.rekeys(A) == 1 && w.rekeys(B) == 1),
        "{:?}",
        w.nodes[A].events
    );
    assert!(w.restarts(A).is_empty() && w.restarts(B).is_empty());
    assert!(w.passes());
}

// Changes of the network at an end whose host moves.

fn path_changed(w: &mut World, n: usize, stale: bool) {
    w.act(n, |end, now, out| end.path_changed(now, stale, out));
}

/// Returns an end with a fixed address, and one that moves, so that its address changes.
fn mobile_pairs() -> [[Config; 2]; 3] {
    [
        [
            fixed(secret(Some(Direction::Inverse), any_remote())),
            fixed(secret(Some(Direction::Normal), remote_policy())),
        ],
        [tls(true, settings(), any_remote()), tls(false, settings(), remote_policy())],
        [tls(false, settings(), any_remote()), tls(true, settings(), remote_policy())],
    ]
}

#[test]
fn an_end_that_gets_another_address_keeps_its_tunnel() {
    for (n, configs) in mobile_pairs().into_iter().enumerate() {
        let mut w = up(configs);
        assert!(w.passes());
        for port in [4000, 5000] {
            w.nodes[B].address.set_port(port);
            // A datagram socket has no bound address, so it is never stale.
            path_changed(&mut w, B, port == 5000);
            // The driver sends a ping.
            w.traffic(B);
            let moved = |e: &ClientEvent| matches!(e, ClientEvent::Note(text) if text.contains(&format!(":{port}")));
            assert!(w.run(SECOND, |w| w.nodes[A].events.iter().any(moved)), "{n}");
            assert!(w.passes(), "{n}");
        }
        // Control packets arrive too.
        if n > 0 {
            w.feed(A, Input::Notice(Notice::KeyNearLimit(PeerId(0), 0)));
            assert!(w.run(5 * SECOND, |w| w.rekeys(A) == 1 && w.rekeys(B) == 1), "{n}");
        }
        assert!(w.restarts(A).is_empty() && w.restarts(B).is_empty(), "{n}");
        assert!(!w.run(120 * SECOND, |w| w.ups(A) + w.ups(B) > 2), "{n}");
    }
}

#[test]
fn a_change_of_the_network_ends_the_wait_of_a_point() {
    for (n, [a, b]) in mobile_pairs().into_iter().enumerate() {
        let slow = match b {
            Config::Static(mut config) => {
                config.remote_policy.connect_retry = (300 * SECOND, 300 * SECOND);
                Config::Static(config)
            }
            Config::Peer(mut config) => {
                config.remote_policy.connect_retry = (300 * SECOND, 300 * SECOND);
                Config::Peer(config)
            }
        };
        let mut w = up([a, slow]);
        // The network is down for so long that the end abandons the session.
        w.kill(A);
        assert!(w.run(60 * SECOND, |w| w.restarts(B).len() == 1), "{n}");
        w.revive(A);
        assert!(!w.run(100 * SECOND, |w| w.ups(B) == 2), "{n}: it waits");
        path_changed(&mut w, B, false);
        // With a static key, the next ping from each end is sufficient.
        let soon = if n == 0 { 5 * SECOND } else { SECOND };
        assert!(w.run(soon, |w| w.both_up(2)), "{n}: {:?}", w.nodes[B].events);
        assert!(w.passes(), "{n}");
    }
}

#[test]
fn a_change_of_the_network_begins_a_handshake_between_two_points_again() {
    for configs in mobile_pairs().into_iter().skip(1) {
        let mut w = World::new(configs, &line(), 1);
        w.kill(A);
        assert!(!w.run(20 * SECOND, |w| w.ups(B) == 1));
        assert!(w.restarts(B).is_empty(), "the first attempt is under way");
        w.revive(A);
        path_changed(&mut w, B, false);
        assert_eq!(w.restarts(B), ["the network changed"]);
        assert!(w.run(SECOND, |w| w.both_up(1)), "{:?}", w.nodes[B].events);
        assert!(w.passes());
    }
}

/// Two ends that dial each other listen only during an attempt. If their waits grew, they could
/// miss each other forever.
#[test]
fn two_ends_that_lost_each_other_for_long_meet_again_whatever_their_rhythm() {
    for shift in (0..300).step_by(37) {
        for (n, configs) in [statics(), pair(&settings())].into_iter().enumerate() {
            let mut w = up(configs);
            let dead = Impairment { loss: Loss::Random(1.0), ..line() };
            w.nodes.iter_mut().for_each(|node| node.out.set_impairment(dead.clone()));
            // One of them restarts in the middle of the outage.
            w.run(300 * SECOND + Duration::from_secs(shift), |_| false);
            w.kill(B);
            w.revive(B);
            w.run(1000 * SECOND, |_| false);
            w.nodes.iter_mut().for_each(|node| node.out.set_impairment(line()));
            let (a, b) = (w.ups(A), w.ups(B));
            let met = w.run(90 * SECOND, |w| w.ups(A) > a && w.ups(B) > b);
            assert!(met, "{n}, {shift} s: {:?}", w.restarts(A));
        }
    }
}

/// An end that is not answered repeats its first packet after half of `tls-timeout`, and then ever less often.
#[test]
fn the_first_retransmission_comes_after_half_of_tls_timeout() {
    let sent_within = |seconds: u64, tls_timeout: Duration| {
        let with = || Settings { tls_timeout, ..settings() };
        let configs = [tls(true, with(), any_remote()), tls(false, with(), remote_policy())];
        let mut w = World::new(configs, &line(), 1);
        w.kill(A);
        w.run(Duration::from_secs(seconds), |_| false);
        w.nodes[B].sent.len()
    };
    for (tls_timeout, before, after) in [(4 * SECOND, 1, 3), (8 * SECOND, 3, 5)] {
        assert_eq!(sent_within(before, tls_timeout), 1, "{tls_timeout:?}");
        assert_eq!(sent_within(after, tls_timeout), 2, "{tls_timeout:?}");
    }
}
