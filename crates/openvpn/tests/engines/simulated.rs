//! Client and server engines on a simulated network.

use std::time::Duration;

use adit_engine::auth;
use adit_openvpn::Reason;
use adit_openvpn::client::{ClientConfig, ClientEvent, TunnelConfig};
use adit_openvpn::data_format::{Notice, Outbox};
use adit_openvpn::keys::{ServerKey, StaticKey};
use adit_openvpn::server::{Disconnect, ServerEvent};
use adit_openvpn::session::{Renegotiation, Settings};
use adit_openvpn::wrap::WrapConfig;
use adit_sim::{Impairment, Loss};

use crate::support::{self, World, client_config, client_tls_named, server_config};

const SECOND: Duration = Duration::from_secs(1);

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

fn delay(ms: u64) -> Impairment {
    Impairment { delay: Duration::from_millis(ms), ..Impairment::default() }
}

fn rekey_every(seconds: u64) -> Settings {
    let renegotiation = Renegotiation {
        after: Duration::from_secs(seconds),
        earliest: Duration::from_secs(seconds),
        ..Renegotiation::default()
    };
    Settings { renegotiation, ..Settings::default() }
}

fn tunnel(w: &World, c: usize) -> &TunnelConfig {
    let config = w.clients[c].events.iter().rev().find_map(|event| match event {
        ClientEvent::Up(config) => Some(config),
        _ => None,
    });
    config.expect("the client is up")
}

fn stopped(w: &World, c: usize) -> Option<&Reason> {
    w.clients[c].events.iter().find_map(|event| match event {
        ClientEvent::Stopped(why) => Some(why),
        _ => None,
    })
}

/// Returns a world with one connected client.
fn connected() -> (World, usize) {
    let mut w = World::new(server_config(Settings::default()), 1);
    let c = w.connect(client_config(Settings::default()), delay(10), 1);
    assert!(w.run(5 * SECOND, |w| w.is_up(c)));
    (w, c)
}

#[test]
fn a_client_connects_and_gets_its_options() {
    let (w, c) = connected();
    let tunnel = tunnel(&w, c);
    assert_eq!(tunnel.ipv4.map(|net| net.to_string()).as_deref(), Some("10.9.0.2/24"));
    assert_eq!(tunnel.ipv6.map(|net| net.to_string()).as_deref(), Some("fd00::1000/64"));
    assert_eq!(tunnel.gateway4.map(|ip| ip.to_string()).as_deref(), Some("10.9.0.1"));
    assert_eq!(tunnel.routes4.len(), 1);
    let info = w.server.clients().next().expect("a session");
    assert_eq!(info.identity.common_name, "client");
    let (peer, model) = w.plane.peers.iter().next().expect("a peer in the data plane");
    assert_eq!(*peer, info.peer);
    assert_eq!(model.routes.len(), 2, "one address of each family, and nothing else, is its own");
}

#[test]
fn handshakes_complete_within_a_minute_in_a_thousand_bad_networks() {
    let mut slow = Vec::new();
    for seed in 0..1000 {
        let loss = f64::from((seed % 11) as u32) / 100.0;
        let mut w = World::new(server_config(Settings::default()), seed);
        let c = w.connect(client_config(Settings::default()), rough(loss), seed);
        if !w.run(60 * SECOND, |w| w.is_up(c)) {
            slow.push((seed, loss));
        }
    }
    assert!(slow.is_empty(), "not up after 60 s: {slow:?}");
}

#[test]
fn at_a_tenth_lost_nearly_every_handshake_takes_less_than_15_seconds() {
    let up = |seed| {
        let mut w = World::new(server_config(Settings::default()), seed);
        let c = w.connect(client_config(Settings::default()), rough(0.1), seed);
        w.run(15 * SECOND, |w| w.is_up(c))
    };
    let failed = (0..1000).filter(|&seed| !up(5000 + seed)).count();
    assert!(failed <= 1, "{failed} of 1000");
}

/// Tests renegotiations by each end, on networks of different quality.
#[test]
fn a_rekey_under_traffic_delivers_every_packet_that_the_link_delivered() {
    let never = rekey_every(0);
    for seed in 0..12 {
        let often = rekey_every(20 + seed % 7);
        let (server, client) = match seed % 3 {
            0 => (often, never.clone()),
            1 => (never.clone(), often),
            // Both ends renegotiate at once.
            _ => (often.clone(), often),
        };
        let mut w = World::new(server_config(server), seed);
        let impairment = rough(f64::from((seed % 4) as u32) / 50.0);
        let c = w.connect(client_config(client), impairment, seed);
        assert!(w.run(60 * SECOND, |w| w.is_up(c)), "seed {seed}");
        // Packets that arrive before the server's answer cannot be opened, because there is no peer
        // yet.
        w.clients[c].traffic = true;
        assert!(
            w.run(300 * SECOND, |w| w.rekeys(c) >= 6),
            "seed {seed}: {:?}",
            w.clients[c].events
        );
        assert_eq!(w.ups(c), 1, "seed {seed}: a rekey restarted the session");
        for (side, plane) in [("server", &w.plane), ("client", &w.clients[c].plane)] {
            assert!(plane.opened > 4_000, "seed {seed}: only {} at the {side}", plane.opened);
            assert_eq!(plane.failed, 0, "seed {seed}: not opened at the {side}");
        }
    }
}

#[test]
fn a_limit_of_the_key_brings_the_next_one() {
    let (mut w, c) = connected();
    let peer = tunnel(&w, c).peer.expect("a peer");
    w.to_client(c, adit_engine::Input::Notice(Notice::KeyNearLimit(peer, 0)));
    assert!(w.run(5 * SECOND, |w| w.rekeys(c) == 1));
    let server_peer = *w.plane.peers.keys().next().expect("a peer");
    w.run(70 * SECOND, |_| false);
    w.clients[c].traffic = true;
    w.run(SECOND, |_| false);
    w.to_server(adit_engine::Input::Notice(Notice::KeyNearLimit(server_peer, 1)));
    assert!(w.run(5 * SECOND, |w| w.rekeys(c) == 2));
}

#[test]
fn a_client_that_moves_keeps_its_session() {
    let (mut w, c) = connected();
    w.clients[c].traffic = true;
    w.run(SECOND, |_| false);
    w.rebind(c);
    let floated = |w: &World| w.events.iter().any(|e| matches!(e, ServerEvent::Floated(..)));
    assert!(w.run(SECOND, floated));
    let peer = *w.plane.peers.keys().next().expect("a peer");
    w.to_server(adit_engine::Input::Notice(Notice::KeyNearLimit(peer, 0)));
    assert!(w.run(10 * SECOND, |w| w.rekeys(c) == 1), "control packets find the new address");
    assert_eq!(w.ups(c), 1);
}

#[test]
fn exit_notices_end_the_other_side_at_once() {
    let settings = Settings { exit_notify: Some(2), ..Settings::default() };
    let mut w = World::new(server_config(settings.clone()), 3);
    let c = w.connect(client_config(settings), delay(10), 3);
    assert!(w.run(5 * SECOND, |w| w.is_up(c)));
    let mut out = Outbox::new();
    w.clients[c].engine.shutdown(w.now, &mut out);
    w.perform_client(c, out);
    let quick = Duration::from_millis(200);
    assert!(w.run(quick, |w| stopped(w, c).is_some()), "the notice is acknowledged");
    assert_eq!(stopped(&w, c), Some(&Reason::EndRequested));
    assert_eq!(w.downs(), ["remote-exit"]);
    assert!(w.plane.peers.is_empty() && w.clients[c].plane.peers.is_empty());

    let d = w.connect(client_config(Settings::default()), delay(10), 4);
    assert!(w.run(5 * SECOND, |w| w.is_up(d)));
    let mut out = Outbox::new();
    w.server.shutdown(w.now, &mut out);
    w.perform_server(out);
    let restarts = |w: &World| {
        w.clients[d].events.iter().any(|event| matches!(event, ClientEvent::Restarting(_)))
    };
    assert!(w.run(SECOND, restarts), "a server that ends says so");
}

#[test]
fn an_exit_notice_in_band_ends_a_session() {
    let (mut w, _) = connected();
    let peer = *w.plane.peers.keys().next().expect("a peer");
    let mut message = adit_openvpn::session::OCC_MAGIC.to_vec();
    message.push(6);
    w.to_server(adit_engine::Input::Notice(Notice::InBand(peer, message)));
    assert_eq!(w.downs(), ["remote-exit"]);
}

#[test]
fn a_newcomer_of_the_same_name_replaces_the_session_only_when_authenticated() {
    let (mut w, first) = connected();
    let second = w.connect(client_config(Settings::default()), delay(10), 2);
    assert!(w.run(5 * SECOND, |w| {
        let replaced = !w.downs().is_empty();
        assert!(!replaced || w.plane.peers.len() == 1);
        w.is_up(second)
    }));
    assert_eq!(w.downs(), ["replaced by a new session of the same name"]);
    assert_eq!(tunnel(&w, first).ipv4, tunnel(&w, second).ipv4, "the name keeps its address");
}

#[test]
fn names_are_separate_and_addresses_are_not_shared() {
    let (mut w, first) = connected();
    let other =
        ClientConfig { tls: client_tls_named("other"), ..client_config(Settings::default()) };
    let second = w.connect(other, delay(10), 2);
    assert!(w.run(5 * SECOND, |w| w.is_up(second)));
    assert_eq!(w.server.clients().count(), 2);
    assert_ne!(tunnel(&w, first).ipv4, tunnel(&w, second).ipv4);
}

#[test]
fn the_registry_decides_before_anything_is_pushed() {
    let mut config = server_config(Settings::default());
    config.authorize = true;
    let mut w = World::new(config, 5);
    w.reply = auth::Response::Reject("disabled".into());
    let c = w.connect(client_config(Settings::default()), delay(10), 5);
    assert!(w.run(10 * SECOND, |w| stopped(w, c).is_some()));
    assert!(matches!(stopped(&w, c), Some(Reason::AuthFailed(_))));
    assert!(w.plane.peers.is_empty());
    let pushed = w.clients[c].events.iter().any(|event| matches!(event, ClientEvent::Pushed(_)));
    assert!(!pushed);
    assert!(
        w.run(10 * SECOND, |w| w.server.handshakes() == 0),
        "the refused handshake is forgotten"
    );
}

#[test]
fn a_kicked_client_comes_back_or_stays_away_as_told() {
    for (disconnect, comes_back) in [(Disconnect::Restart, true), (Disconnect::Halt, false)] {
        let (mut w, c) = connected();
        let peer = *w.plane.peers.keys().next().expect("a peer");
        let mut out = Outbox::new();
        assert!(w.server.kick(w.now, peer, disconnect, "kicked", &mut out));
        assert!(!w.server.kick(w.now, peer, disconnect, "kicked", &mut out));
        w.perform_server(out);
        assert_eq!(w.downs(), ["kicked"]);
        assert_eq!(w.run(10 * SECOND, |w| w.ups(c) == 2), comes_back);
        assert_eq!(stopped(&w, c).is_some(), !comes_back);
    }
}

#[test]
fn a_silent_server_is_left_and_found_again() {
    let (mut w, c) = connected();
    let peer = tunnel(&w, c).peer.expect("a peer");
    w.to_client(c, adit_engine::Input::Notice(Notice::PeerSilent(peer)));
    assert!(w.run(10 * SECOND, |w| w.ups(c) == 2));
    assert_eq!(w.plane.peers.len(), 1, "the former session was replaced");
}

fn path_changed(w: &mut World, c: usize, stale: bool) {
    let mut out = Outbox::new();
    w.clients[c].engine.path_changed(w.now, stale, &mut out);
    w.perform_client(c, out);
}

#[test]
fn a_change_of_the_network_ends_the_wait_between_two_attempts() {
    let mut config = client_config(Settings::default());
    config.connect_retry = (60 * SECOND, 60 * SECOND);
    let mut w = World::new(server_config(Settings::default()), 6);
    let c = w.connect(config, delay(10), 6);
    assert!(w.run(5 * SECOND, |w| w.is_up(c)));
    let peer = tunnel(&w, c).peer.expect("a peer");
    w.to_client(c, adit_engine::Input::Notice(Notice::PeerSilent(peer)));
    assert!(!w.run(30 * SECOND, |w| w.ups(c) == 2));
    path_changed(&mut w, c, false);
    assert!(w.run(2 * SECOND, |w| w.ups(c) == 2));
}

#[test]
fn a_change_of_the_network_begins_an_attempt_again_and_leaves_a_session_alone() {
    let (mut w, c) = connected();
    path_changed(&mut w, c, false);
    // A datagram socket has no bound address.
    path_changed(&mut w, c, true);
    assert!(!w.run(10 * SECOND, |w| w.ups(c) == 2));
    let late = w.connect(client_config(Settings::default()), delay(3000), 7);
    assert!(!w.run(SECOND, |w| w.is_up(late)));
    path_changed(&mut w, late, false);
    let restarts = |w: &World| {
        let restarting = |event: &&ClientEvent| matches!(event, ClientEvent::Restarting(_));
        w.clients[late].events.iter().filter(restarting).count()
    };
    assert_eq!(restarts(&w), 1);
    assert!(w.run(120 * SECOND, |w| w.is_up(late)));
}

#[test]
fn a_pushed_mtu_is_capped() {
    for (max, pushed, used) in [(1600, 9000, 1600), (9000, 9000, 9000), (1600, 1400, 1400)] {
        let server = Settings { tun_mtu: pushed, ..Settings::default() };
        let mut w = World::new(server_config(server), 6);
        let settings = Settings { tun_mtu_max: max, ..Settings::default() };
        let c = w.connect(client_config(settings), delay(10), 6);
        assert!(w.run(5 * SECOND, |w| w.is_up(c)));
        assert_eq!(tunnel(&w, c).mtu, Some(used));
        let warned = w.clients[c].events.iter().any(
            |event| matches!(event, ClientEvent::Warning(text) if text.contains("tun-mtu-max")),
        );
        assert_eq!(warned, pushed > used);
    }
}

#[test]
fn an_address_that_no_host_can_have_ends_the_attempt_and_not_the_client() {
    let mut config = server_config(Settings::default());
    config.push.push("ifconfig-ipv6 ff02::1/64 fe80::1".into());
    let mut w = World::new(config, 6);
    let c = w.connect(client_config(Settings::default()), delay(10), 6);
    let attempts = |w: &World| {
        let events = w.clients[c].events.iter();
        events.filter(|event| matches!(event, ClientEvent::Connecting(_))).count()
    };
    assert!(w.run(60 * SECOND, |w| attempts(w) >= 2), "{:?}", w.clients[c].events);
    assert!(!w.is_up(c) && stopped(&w, c).is_none());
    let named = w.clients[c].events.iter().any(
        |event| matches!(event, ClientEvent::Restarting(why) if why.to_string().contains("ifconfig-ipv6 ff02::1/64")),
    );
    assert!(named, "{:?}", w.clients[c].events);
}

#[test]
fn a_session_ends_with_its_time() {
    let mut config = server_config(Settings::default());
    config.push.push("session-timeout 100".into());
    let mut w = World::new(config, 6);
    let c = w.connect(client_config(Settings::default()), delay(10), 6);
    assert!(w.run(5 * SECOND, |w| w.is_up(c)));
    assert!(!w.run(99 * SECOND, |w| stopped(w, c).is_some()));
    assert!(w.run(2 * SECOND, |w| stopped(w, c).is_some()));
    assert_eq!(stopped(&w, c), Some(&Reason::SessionTimeout));
}

#[test]
fn a_server_that_pushes_ping_exit_ends_its_silent_clients() {
    let mut config = server_config(Settings::default());
    config.push.extend(["ping 10".into(), "ping-exit 60".into()]);
    let mut w = World::new(config, 6);
    let c = w.connect(client_config(Settings::default()), delay(10), 6);
    assert!(w.run(5 * SECOND, |w| w.is_up(c)));
    let peer = tunnel(&w, c).peer.expect("a peer");
    w.to_client(c, adit_engine::Input::Notice(Notice::PeerSilent(peer)));
    assert_eq!(stopped(&w, c), Some(&Reason::PingExit));
}

#[test]
fn a_full_server_refuses_for_now() {
    let mut config = server_config(Settings::default());
    config.max_clients = 1;
    let mut w = World::new(config, 7);
    let first = w.connect(client_config(Settings::default()), delay(10), 7);
    assert!(w.run(5 * SECOND, |w| w.is_up(first)));
    let other =
        ClientConfig { tls: client_tls_named("other"), ..client_config(Settings::default()) };
    let second = w.connect(other, delay(10), 8);
    assert!(!w.run(5 * SECOND, |w| w.is_up(second)));
    assert_eq!(stopped(&w, second), None, "it may try again");
    let peer = *w.plane.peers.keys().next().expect("a peer");
    let mut out = Outbox::new();
    w.server.kick(w.now, peer, Disconnect::Halt, "room", &mut out);
    w.perform_server(out);
    assert!(w.run(60 * SECOND, |w| w.is_up(second)));
}

#[test]
fn long_pushes_come_in_several_parts() {
    let mut config = server_config(Settings::default());
    config.push = (0..200).map(|n| format!("route 10.{n}.0.0 255.255.0.0")).collect();
    let mut w = World::new(config, 9);
    let c = w.connect(client_config(Settings::default()), rough(0.05), 9);
    assert!(w.run(60 * SECOND, |w| w.is_up(c)));
    assert_eq!(tunnel(&w, c).routes4.len(), 200);
}

#[test]
fn no_common_cipher_is_said_to_the_client() {
    use adit_crypto::Cipher;
    let only = |cipher| Settings { ciphers: vec![cipher], ..Settings::default() };
    let mut w = World::new(server_config(only(Cipher::Aes256Gcm.into())), 9);
    let c = w.connect(client_config(only(Cipher::ChaCha20Poly1305.into())), delay(10), 9);
    assert!(w.run(10 * SECOND, |w| stopped(w, c).is_some()));
    let Some(Reason::AuthFailed(words)) = stopped(&w, c) else { panic!("{:?}", stopped(&w, c)) };
    assert!(words.contains("cipher negotiation failed"), "{words}");
}

/// Returns the format of the key in use, the same at both ends, and whether the key is from a rekey.
fn protection(w: &World, client: usize) -> (adit_openvpn::data_format::Protection, bool) {
    let at_server = w.plane.peers.values().next().and_then(|peer| peer.primary.as_ref());
    let at_client = w.clients[client].plane.peers.values().next().and_then(|p| p.primary.as_ref());
    let (at_server, at_client) = (at_server.expect("a key"), at_client.expect("a key"));
    assert_eq!(at_server.protection, at_client.protection);
    (at_server.protection, at_server.key_id.min(at_client.key_id) > 0)
}

#[test]
fn data_formats_are_agreed_upon_and_survive_rekeys() {
    use adit_crypto::{BlockCipher, Cipher, Digest};
    use adit_openvpn::data_format::{BlockSuite, Protection};
    use adit_openvpn::negotiate::DataCipher;
    let cbc = DataCipher::Block(Some(BlockCipher::Aes256Cbc));
    let suite = BlockSuite { cipher: Some(BlockCipher::Aes256Cbc), digest: Some(Digest::Sha512) };
    let with = |ciphers: &[DataCipher], fallback| Settings {
        ciphers: ciphers.to_vec(),
        cipher_fallback: fallback,
        auth: "SHA512".into(),
        ..Settings::default()
    };
    let gcm = DataCipher::Aead(Cipher::Aes256Gcm);
    for (server, client, expected) in [
        (with(&[gcm], None), with(&[gcm], None), Protection::Epoch(Cipher::Aes256Gcm)),
        (with(&[gcm, cbc], None), with(&[cbc], None), Protection::Block(suite)),
        (with(&[cbc], None), with(&[gcm], Some(cbc)), Protection::Block(suite)),
    ] {
        let mut w = World::new(server_config(server), 9);
        let names_cbc = client.cipher_fallback.is_some();
        let client = Settings {
            occ_cipher: if names_cbc { "AES-256-CBC".into() } else { "BF-CBC".into() },
            ..client
        };
        let mut config = client_config(client);
        config.settings.renegotiation.after = Duration::from_secs(60);
        config.settings.renegotiation.earliest = Duration::from_secs(60);
        let c = w.connect(config, delay(10), 9);
        assert!(w.run(10 * SECOND, |w| w.is_up(c)));
        assert_eq!(protection(&w, c), (expected, false));
        // Without traffic, an end uses its new key after a fixed time.
        assert!(w.run(300 * SECOND, |w| protection(w, c).1));
        assert_eq!(protection(&w, c), (expected, true));
    }
}

#[test]
fn every_wrapping_carries_handshakes_and_rekeys_through_loss() {
    let key = || StaticKey::new(std::array::from_fn(|n| n as u8));
    let server_key = ServerKey::new(&[42; ServerKey::LEN]);
    let client_key = server_key.client_key(key(), None).expect("a wrapped key");
    let auth = |direction| WrapConfig::TlsAuth {
        key: key(),
        direction,
        digest: adit_crypto::Digest::Sha1,
    };
    use adit_openvpn::keys::Direction::{Inverse, Normal};
    let wrappings = [
        (auth(None), auth(None)),
        (auth(Some(Normal)), auth(Some(Inverse))),
        (WrapConfig::TlsCrypt { key: key() }, WrapConfig::TlsCrypt { key: key() }),
        (
            WrapConfig::tls_crypt_v2_server(server_key),
            WrapConfig::TlsCryptV2Client { key: client_key },
        ),
    ];
    for (n, (server, client)) in wrappings.into_iter().enumerate() {
        for seed in 0..6 {
            let with = |wrap: &WrapConfig| Settings { wrap: wrap.clone(), ..rekey_every(30) };
            let mut w = World::new(server_config(with(&server)), seed);
            let c = w.connect(client_config(with(&client)), rough(0.05), seed);
            assert!(w.run(60 * SECOND, |w| w.is_up(c)), "wrapping {n}, seed {seed}");
            assert!(w.run(200 * SECOND, |w| w.rekeys(c) >= 3), "wrapping {n}, seed {seed}");
            assert_eq!(w.ups(c), 1, "wrapping {n}, seed {seed}");
        }
    }
}

#[test]
fn a_hundred_clients_reconnect_in_a_storm() {
    let mut config = server_config(Settings::default());
    config.duplicate_cn = true;
    config.max_clients = 200;
    let mut w = World::new(config, 11);
    for n in 0..100 {
        w.connect(client_config(Settings::default()), rough(0.02), n);
    }
    assert!(w.run(60 * SECOND, |w| (0..100).all(|c| w.is_up(c))));
    assert_eq!(w.plane.peers.len(), 100);
    assert_eq!(w.server.handshakes(), 0);
}

#[test]
fn the_end_of_a_former_link_does_not_end_the_session() {
    let (mut w, c) = connected();
    let stale = adit_engine::Link::stream(7, support::server_address());
    w.to_client(c, adit_engine::Input::LinkDown(stale));
    w.run(5 * SECOND, |_| false);
    assert_eq!(w.ups(c), 1);
    let restarted = |w: &World| {
        w.clients[c].events.iter().any(|event| matches!(event, ClientEvent::Restarting(_)))
    };
    assert!(!restarted(&w));
    let own = adit_engine::Link::datagram(Default::default(), None, support::server_address());
    w.to_client(c, adit_engine::Input::LinkDown(own));
    assert!(restarted(&w));
}

#[test]
fn a_token_that_expired_gives_way_to_the_password() {
    let mut config = server_config(Settings::default());
    config.authorize = true;
    config.push.push("auth-token abc".into());
    let mut w = World::new(config, 12);
    let credentials = adit_openvpn::client::Credentials {
        username: "alice".into(),
        password: "secret".to_owned().into(),
    };
    let client =
        ClientConfig { credentials: Some(credentials), ..client_config(Settings::default()) };
    let c = w.connect(client, delay(10), 12);
    assert!(w.run(5 * SECOND, |w| w.is_up(c)));
    assert_eq!(w.password.as_deref(), Some("secret"));
    let peer = *w.plane.peers.keys().next().expect("a peer");
    let mut out = Outbox::new();
    w.server.kick(w.now, peer, Disconnect::Restart, "kicked", &mut out);
    w.reply = auth::Response::Reject("expired".into());
    w.perform_server(out);
    let gave_way = |w: &World| {
        w.clients[c].events.iter().any(
            |event| matches!(event, ClientEvent::Restarting(why) if why.to_string().contains("auth-token")),
        )
    };
    assert!(w.run(10 * SECOND, gave_way), "{:?}", w.clients[c].events);
    assert_eq!(w.password.as_deref(), Some("abc"));
    w.reply = auth::Response::Accept(Default::default());
    assert!(w.run(10 * SECOND, |w| w.ups(c) == 2));
    assert_eq!(w.password.as_deref(), Some("secret"));
}
