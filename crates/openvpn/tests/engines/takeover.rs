//! Sessions that continue in another server: no client notices more than a renegotiation.

use std::time::Duration;

use adit_engine::command::Counters;
use adit_engine::{Engine, PeerId, Transport, UnixTime};
use adit_openvpn::client::ClientConfig;
use adit_openvpn::data_format::{Input, Notice, Outbox};
use adit_openvpn::keys::{ServerKey, StaticKey};
use adit_openvpn::server::{SavedServer, ServerConfig, ServerEngine, ServerEvent};
use adit_openvpn::session::Settings;
use adit_openvpn::wrap::WrapConfig;
use adit_sim::Impairment;
use proptest::prelude::*;

use crate::support::{PlaneModel, World, client_config, client_tls_named, server_config};

const SECOND: Duration = Duration::from_secs(1);

fn join(w: &mut World, settings: &Settings, name: &str) -> usize {
    let config = ClientConfig { tls: client_tls_named(name), ..client_config(settings.clone()) };
    let delay = Duration::from_millis(10);
    let c = w.connect(config, Impairment { delay, ..Impairment::default() }, 1);
    assert!(w.run(10 * SECOND, |w| w.is_up(c)), "{:?}", w.clients[c].events);
    c
}

/// Replaces the server by another one, which gets the sessions as text. Returns the text and the peers.
fn take_over(w: &mut World, config: ServerConfig) -> (String, Vec<PeerId>) {
    w.server.pause();
    assert!(w.run(5 * SECOND, |w| w.server.is_quiet()), "an exchange goes on");
    let mut saved = w.server.save(usize::MAX);
    saved.set_traffic(|_| Some(Counters { rx_bytes: 5, ..Counters::default() }));
    let text = serde_json::to_string(&saved).expect("text");
    let unix = UnixTime(1_800_000_100);
    w.server = ServerEngine::new(config, [9; 32], w.now, unix).expect("a server");
    let former = std::mem::take(&mut w.plane);
    w.plane = PlaneModel { traffic: former.traffic, ..PlaneModel::default() };
    let saved: SavedServer = serde_json::from_str(&text).expect("a saved server");
    let mut out = Outbox::new();
    let peers = w.server.restore(w.now, saved, &mut out);
    w.perform_server(out);
    for (id, peer) in former.peers {
        let Some(own) = w.plane.peers.get_mut(&id) else { continue };
        assert_eq!((own.link, own.wire_id, &own.routes), (peer.link, peer.wire_id, &peer.routes));
        (own.primary, own.secondary) = (peer.primary, peer.secondary);
    }
    (text, peers.into_iter().map(|(peer, _)| peer).collect())
}

fn wrappings() -> Vec<(Settings, Settings)> {
    let key = || StaticKey::new([7; StaticKey::LEN]);
    let both = |wrap: WrapConfig| {
        let settings = Settings { wrap, ..Settings::default() };
        (settings.clone(), settings)
    };
    let auth = |direction| WrapConfig::TlsAuth {
        key: key(),
        direction,
        digest: adit_crypto::Digest::Sha256,
    };
    let server = ServerKey::new(&[5; ServerKey::LEN]);
    let own = server.client_key(key(), None).expect("a client's key");
    vec![
        both(WrapConfig::None),
        both(auth(None)),
        both(WrapConfig::TlsCrypt { key: key() }),
        (
            Settings { wrap: WrapConfig::tls_crypt_v2_server(server), ..Settings::default() },
            Settings { wrap: WrapConfig::TlsCryptV2Client { key: own }, ..Settings::default() },
        ),
    ]
}

#[test]
fn sessions_continue_and_renegotiate_within_a_minute() {
    for (server, client) in wrappings() {
        let wrap = format!("{:?}", server.wrap);
        let mut w = World::new(server_config(server.clone()), 1);
        let clients = ["alice", "bob"].map(|name| join(&mut w, &client, name));
        clients.iter().for_each(|&c| w.clients[c].traffic = true);
        let before: Vec<_> = w.server.clients().map(|info| (info.peer, info.session)).collect();
        let (_, peers) = take_over(&mut w, server_config(server.clone()));
        assert_eq!(peers.len(), 2, "{wrap}: {:?}", w.events);
        let mut after: Vec<_> = w.server.clients().map(|info| (info.peer, info.session)).collect();
        after.sort();
        let mut before = before;
        before.sort();
        assert_eq!(after, before, "{wrap}");
        let failed = (w.plane.failed, w.clients[clients[0]].plane.failed);
        w.run(62 * SECOND, |_| false);
        for &c in &clients {
            assert_eq!((w.ups(c), w.rekeys(c)), (1, 1), "{wrap}: {:?}", w.clients[c].events);
        }
        assert_eq!((w.plane.failed, w.clients[clients[0]].plane.failed), failed, "{wrap}");
        // Another change of processes, and the next one that hurries before the renegotiations.
        for _ in 0..2 {
            let (_, peers) = take_over(&mut w, server_config(server.clone()));
            assert_eq!(peers.len(), 2, "{wrap}");
        }
        w.run(62 * SECOND, |_| false);
        for &c in &clients {
            assert_eq!((w.ups(c), w.rekeys(c)), (1, 2), "{wrap}: {:?}", w.clients[c].events);
        }
        assert!(w.downs().is_empty(), "{wrap}: {:?}", w.downs());
        // New clients get ids and addresses that are free.
        let carol = join(&mut w, &client, "carol");
        assert_eq!(w.server.clients().count(), 3);
        assert!(w.is_up(carol));
    }
}

#[test]
fn the_traffic_so_far_is_part_of_the_event() {
    let mut w = World::new(server_config(Settings::default()), 2);
    join(&mut w, &Settings::default(), "alice");
    w.run(SECOND, |_| false);
    let control = w.server.clients().next().map(|info| info.peer);
    let control = control.and_then(|peer| w.server.control_traffic(peer)).expect("a client");
    take_over(&mut w, server_config(Settings::default()));
    let resumed = w.events.iter().find_map(|event| match event {
        ServerEvent::Resumed(info, traffic) => Some((info.identity.common_name.clone(), *traffic)),
        _ => None,
    });
    let (name, traffic) = resumed.expect("an event");
    assert_eq!(name, "alice");
    assert_eq!(traffic.rx_bytes, control.rx_bytes + 5);
}

#[test]
fn a_session_in_the_middle_of_an_exchange_stays_behind() {
    let mut w = World::new(server_config(Settings::default()), 3);
    let c = join(&mut w, &Settings::default(), "alice");
    let peer = w.server.clients().next().expect("a client").peer;
    w.to_server(Input::Notice(Notice::KeyNearLimit(peer, 0)));
    assert!(!w.server.is_quiet(), "{:?}", w.server.deadline());
    let saved = w.server.save(usize::MAX);
    assert_eq!(saved.peers().count(), 0);
    let mut out = Outbox::new();
    w.server.shutdown(w.now, &mut out);
    w.perform_server(out);
    assert_eq!(w.downs().len(), 1);
    assert_eq!(w.ups(c), 1);
}

#[test]
fn a_paused_server_leaves_handshakes_to_the_next_one() {
    let mut w = World::new(server_config(Settings::default()), 4);
    w.server.pause();
    let config = client_config(Settings::default());
    let c = w.connect(config, Impairment::default(), 1);
    assert!(!w.run(3 * SECOND, |w| w.is_up(c)));
    assert_eq!(w.server.handshakes(), 0);
    take_over(&mut w, server_config(Settings::default()));
    assert!(w.run(10 * SECOND, |w| w.is_up(c)), "{:?}", w.clients[c].events);
}

#[test]
fn a_session_that_does_not_fit_the_configuration_is_left_out() {
    let (v2, client) = wrappings().pop().expect("tls-crypt-v2");
    let mut w = World::new(server_config(v2), 5);
    join(&mut w, &client, "alice");
    let auth = wrappings().swap_remove(1).0;
    let mut w2 = World::new(server_config(auth.clone()), 5);
    join(&mut w2, &auth, "bob");
    // Keys that clients bring do not depend on the configuration.
    assert_eq!(take_over(&mut w, server_config(Settings::default())).1.len(), 1);
    assert_eq!(take_over(&mut w2, server_config(Settings::default())).1.len(), 0);
    let warned = w2.events.iter().any(|event| match event {
        ServerEvent::Warning(None, text) => text.contains("bob: the session was not taken over"),
        _ => false,
    });
    assert!(warned, "{:?}", w2.events);
}

#[test]
fn the_same_session_is_taken_over_once() {
    let mut w = World::new(server_config(Settings::default()), 6);
    join(&mut w, &Settings::default(), "alice");
    let (text, _) = take_over(&mut w, server_config(Settings::default()));
    let saved: SavedServer = serde_json::from_str(&text).expect("a saved server");
    let mut out = Outbox::new();
    assert_eq!(w.server.restore(w.now, saved, &mut out), []);
}

#[test]
fn beyond_the_room_the_newest_sessions_over_streams_stay_behind() {
    let mut w = World::new(server_config(Settings::default()), 9);
    let delay = Duration::from_millis(10);
    let joins = |w: &mut World, name: &str, transport| {
        let mut config =
            ClientConfig { tls: client_tls_named(name), ..client_config(Settings::default()) };
        config.remotes[0].target.transport = transport;
        let c = w.connect(config, Impairment { delay, ..Impairment::default() }, 1);
        assert!(w.run(10 * SECOND, |w| w.is_up(c)), "{:?}", w.clients[c].events);
    };
    // One over UDP is the newest of all.
    for name in ["alice", "bob", "carol"] {
        joins(&mut w, name, Transport::Tcp);
    }
    joins(&mut w, "dave", Transport::Udp);
    let streams = w.server.clients().filter(|client| client.link.is_stream());
    let mut streams: Vec<_> = streams.map(|client| (client.session, client.peer)).collect();
    streams.sort();
    let oldest: Vec<PeerId> = streams.iter().take(2).map(|(_, peer)| *peer).collect();
    w.server.pause();
    assert!(w.run(5 * SECOND, |w| w.server.is_quiet()), "an exchange goes on");
    let saved = w.server.save(2);
    let passed: Vec<bool> = saved.links().map(|link| link.is_stream()).collect();
    assert_eq!(passed, [true, true, false], "the oldest first, and all over UDP");
    assert_eq!(saved.peers().take(2).collect::<Vec<_>>(), oldest);
    assert_eq!(w.server.stream_sessions(), 1);
    // The one that stays behind gets a message.
    let mut out = Outbox::new();
    w.server.shutdown(w.now, &mut out);
    w.perform_server(out);
    assert_eq!(w.downs().len(), 1);
    assert_eq!(w.hung_up.len(), 1);
    assert_eq!(w.server.stream_sessions(), 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever is changed in the text, it is refused or restored without a panic.
    #[test]
    fn a_damaged_text_does_no_harm(at in 0.0..1.0_f64, byte in any::<u8>()) {
        use std::sync::OnceLock;
        static TEXT: OnceLock<String> = OnceLock::new();
        let text = TEXT.get_or_init(|| {
            let mut w = World::new(server_config(Settings::default()), 7);
            join(&mut w, &Settings::default(), "alice");
            take_over(&mut w, server_config(Settings::default())).0
        });
        let mut bytes = text.clone().into_bytes();
        let at = (at * bytes.len() as f64) as usize % bytes.len();
        bytes[at] = byte;
        if let Ok(saved) = serde_json::from_slice::<SavedServer>(&bytes) {
            let mut w = World::new(server_config(Settings::default()), 8);
            let mut out = Outbox::new();
            w.server.restore(w.now, saved, &mut out);
            w.perform_server(out);
            w.run(SECOND, |_| false);
        }
    }
}
