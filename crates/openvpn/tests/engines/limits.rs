//! Sessions and programs that end because of `inactive`, `session-timeout`, `ping-exit` or
//! `tls-exit`.

use std::time::Duration;

use adit_crypto::{BlockCipher, Digest};
use adit_engine::auth::Inactive;
use adit_engine::command::{Keepalive, Traffic};
use adit_engine::{Transport, auth};
use adit_openvpn::Reason;
use adit_openvpn::client::ClientEvent;
use adit_openvpn::data_format::BlockSuite;
use adit_openvpn::keys::StaticKey;
use adit_openvpn::p2p::{Ifconfig4, PeerConfig, PeerTls, RemotePolicy, StaticConfig, TunnelAddrs};
use adit_openvpn::session::{Limits, Settings};
use adit_sim::{Impairment, Loss};

use crate::points::{self, A, B};
use crate::support::{
    World, client_config, client_tls, foreign_client_tls, server_config, server_tls,
};

const SECOND: Duration = Duration::from_secs(1);

fn delay() -> Impairment {
    Impairment { delay: Duration::from_millis(10), ..Impairment::default() }
}

fn nothing_arrives() -> Impairment {
    Impairment { loss: Loss::Random(1.0), ..delay() }
}

fn with(limits: Limits) -> Settings {
    let keepalive = Keepalive { interval: 2 * SECOND, timeout: 20 * SECOND };
    Settings { limits, keepalive, ..Settings::default() }
}

fn inactive(seconds: u64, bytes: u64) -> Limits {
    let after = Duration::from_secs(seconds);
    Limits { inactive: Some(Inactive { after, bytes }), ..Limits::default() }
}

fn session(seconds: u64) -> Limits {
    Limits { session: Some(Duration::from_secs(seconds)), ..Limits::default() }
}

fn exits() -> Limits {
    Limits { exit_when_silent: true, exit_on_tls_failure: true, ..Limits::default() }
}

/// Returns counters for this many packets of 100 bytes, with a ping for each.
fn traffic(packets: u64) -> Traffic {
    Traffic {
        packets: 2 * packets,
        bytes: packets * (100 + 24 + 16 + 24),
        in_band_packets: packets,
        in_band_bytes: packets * 16,
    }
}

fn stopped(w: &World, c: usize) -> Option<&Reason> {
    w.clients[c].events.iter().find_map(|event| match event {
        ClientEvent::Stopped(why) => Some(why),
        _ => None,
    })
}

/// Returns a world with one connected client.
fn connected(server: Settings, client: Settings, push: &[&str]) -> (World, usize) {
    let mut config = server_config(server);
    config.push.extend(push.iter().map(|option| (*option).to_owned()));
    let mut w = World::new(config, 1);
    let mut config = client_config(client);
    config.keepalive = config.settings.keepalive;
    let c = w.connect(config, delay(), 1);
    assert!(w.run(5 * SECOND, |w| w.is_up(c)));
    (w, c)
}

#[test]
fn a_client_through_which_nothing_passes_says_good_bye_and_ends() {
    let plain = || Settings { exit_notify: Some(1), ..Settings::default() };
    let own = Settings { exit_notify: Some(1), ..with(inactive(60, 150)) };
    for (server, client, push) in
        [(plain(), own, None), (plain(), plain(), Some("inactive 60 150"))]
    {
        let (mut w, c) = connected(server, client, push.as_slice());
        assert!(!w.run(50 * SECOND, |w| stopped(w, c).is_some()));
        // One packet is too little traffic, but is still counted later.
        w.clients[c].plane.traffic = traffic(1);
        assert!(!w.run(5 * SECOND, |w| stopped(w, c).is_some()));
        w.clients[c].plane.traffic = traffic(2);
        assert!(!w.run(60 * SECOND, |w| stopped(w, c).is_some()), "enough: {push:?}");
        assert!(w.run(10 * SECOND, |w| stopped(w, c).is_some()), "{push:?}");
        assert_eq!(stopped(&w, c), Some(&Reason::Inactive));
        assert_eq!(w.downs(), ["remote-exit"], "{push:?}");
    }
}

#[test]
fn no_peer_is_asked_for_traffic_without_a_rule() {
    let (mut w, c) = connected(Settings::default(), Settings::default(), &[]);
    w.clients[c].plane.traffic_read = 0;
    w.run(300 * SECOND, |_| false);
    assert_eq!((w.clients[c].plane.traffic_read, w.plane.traffic_read), (0, 0));
    assert!(w.downs().is_empty() && stopped(&w, c).is_none());
}

#[test]
fn a_server_ends_the_sessions_of_those_who_say_nothing() {
    let (mut w, c) = connected(with(inactive(60, 0)), Settings::default(), &[]);
    assert!(w.run(70 * SECOND, |w| !w.downs().is_empty()));
    assert_eq!(w.downs(), ["inactive: too little passed through the tunnel"]);
    assert!(stopped(&w, c).is_none());
}

#[test]
fn a_session_of_a_server_has_its_time_and_the_client_comes_back() {
    let (mut w, c) = connected(with(session(100)), Settings::default(), &[]);
    w.plane.traffic = traffic(100);
    assert!(!w.run(99 * SECOND, |w| !w.downs().is_empty()));
    assert!(w.run(2 * SECOND, |w| !w.downs().is_empty()));
    assert_eq!(w.downs(), ["session-timeout is over"]);
    assert!(w.run(10 * SECOND, |w| w.ups(c) == 2), "it is told, and comes again at once");
}

#[test]
fn one_client_may_have_other_times_than_all() {
    for (grant, ends) in [
        (
            auth::ClientParams {
                session_timeout: Some(30 * SECOND),
                ..auth::ClientParams::default()
            },
            true,
        ),
        (
            auth::ClientParams {
                session_timeout: Some(Duration::ZERO),
                ..auth::ClientParams::default()
            },
            false,
        ),
    ] {
        let mut config = server_config(with(session(60)));
        config.authorize = true;
        let mut w = World::new(config, 1);
        w.reply = auth::Response::Accept(grant);
        let c = w.connect(client_config(Settings::default()), delay(), 1);
        assert!(w.run(5 * SECOND, |w| w.is_up(c)));
        assert_eq!(w.run(31 * SECOND, |w| !w.downs().is_empty()), ends);
        assert_eq!(w.run(60 * SECOND, |w| w.downs().len() > 1), ends);
    }
}

#[test]
fn a_client_has_its_own_time_too_also_before_it_is_up() {
    let (mut w, c) = connected(Settings::default(), with(session(50)), &[]);
    assert!(w.run(51 * SECOND, |w| stopped(w, c).is_some()));
    assert_eq!(stopped(&w, c), Some(&Reason::SessionTimeout));

    let mut w = World::new(server_config(Settings::default()), 1);
    let c = w.connect(client_config(with(session(50))), nothing_arrives(), 1);
    assert!(!w.run(49 * SECOND, |w| stopped(w, c).is_some()));
    assert!(w.run(2 * SECOND, |w| stopped(w, c).is_some()));
    assert_eq!(stopped(&w, c), Some(&Reason::SessionTimeout));
}

#[test]
fn ping_exit_counts_from_the_first_packet_on() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let mut config = client_config(with(exits()));
    config.keepalive = config.settings.keepalive;
    let c = w.connect(config, nothing_arrives(), 1);
    assert!(!w.run(19 * SECOND, |w| stopped(w, c).is_some()));
    assert!(w.run(2 * SECOND, |w| stopped(w, c).is_some()));
    assert_eq!(stopped(&w, c), Some(&Reason::PingExit));

    // Once the client is connected, the data plane detects silence. The pushed value replaces the
    // configured one.
    for (push, stops) in [("ping 5", true), ("ping-restart 20", false)] {
        let (mut w, c) = connected(Settings::default(), with(exits()), &[push]);
        let peer = *w.clients[c].plane.peers.keys().next().expect("a peer");
        w.to_client(c, adit_engine::Input::Notice(adit_engine::Notice::PeerSilent(peer)));
        assert_eq!(stopped(&w, c).is_some(), stops, "{push}");
    }
}

#[test]
fn tls_exit_ends_a_client_whose_handshake_fails_and_no_other() {
    for (limits, ends) in [(exits(), true), (Limits::default(), false)] {
        let mut w = World::new(server_config(Settings::default()), 1);
        let mut config = client_config(with(limits));
        config.tls = foreign_client_tls("alice");
        let c = w.connect(config, delay(), 1);
        w.run(30 * SECOND, |w| stopped(w, c).is_some());
        match stopped(&w, c) {
            Some(Reason::TlsExit(why)) if ends => assert!(!why.to_string().is_empty()),
            other => assert!(!ends && other.is_none(), "{other:?}"),
        }
    }
    let (mut w, c) = connected(Settings::default(), with(exits()), &["reneg-sec 60"]);
    w.run(600 * SECOND, |_| false);
    assert!(stopped(&w, c).is_none(), "a good handshake is no failure");
}

/// Returns pairs of point-to-point ends of both kinds, with these settings at the first end.
fn points(settings: &Settings) -> [[points::Config; 2]; 2] {
    let remote_policy = RemotePolicy::new(vec![points::remote(Transport::Udp)]);
    let pair = |a: &str, b: &str| Ifconfig4::Pair(a.parse().unwrap(), b.parse().unwrap());
    let tunnel_addrs = TunnelAddrs { ipv4: Some(pair("10.1.0.1", "10.1.0.2")), ipv6: None };
    let plain = with(Limits::default());
    let secret = |settings: &Settings| {
        points::Config::Static(Box::new(StaticConfig {
            settings: settings.clone(),
            key: StaticKey::new([7; 256]),
            direction: None,
            suite: BlockSuite { cipher: Some(BlockCipher::Aes256Cbc), digest: Some(Digest::Sha1) },
            remote_policy: remote_policy.clone(),
            tunnel_addrs,
        }))
    };
    let tls = |tls, settings: &Settings| {
        points::Config::Peer(Box::new(PeerConfig {
            settings: settings.clone(),
            tls,
            force_cookie: false,
            remote_policy: remote_policy.clone(),
            tunnel_addrs,
        }))
    };
    let (client, server) = (PeerTls::Client(client_tls()), PeerTls::Server(server_tls()));
    [[secret(settings), secret(&plain)], [tls(client, settings), tls(server, &plain)]]
}

#[test]
fn each_of_two_points_ends_by_its_own_rules() {
    let cases =
        [(inactive(60, 0), Reason::Inactive, 60), (session(50), Reason::SessionTimeout, 50)];
    for (limits, expected, seconds) in cases {
        for configs in points(&with(limits)) {
            let mut w = points::World::new(configs, &delay(), 1);
            assert!(w.run(20 * SECOND, |w| w.both_up(1)));
            let short = Duration::from_secs(seconds - 15);
            assert!(!w.run(short, |w| w.stopped(A).is_some()), "{expected:?}");
            assert!(w.run(20 * SECOND, |w| w.stopped(A).is_some()), "{expected:?}");
            assert_eq!(w.stopped(A), Some(&expected));
            assert_eq!(w.stopped(B), None);
        }
    }
}

#[test]
fn traffic_keeps_two_points_together() {
    for configs in points(&with(inactive(60, 0))) {
        let mut w = points::World::new(configs, &delay(), 1);
        assert!(w.run(20 * SECOND, |w| w.both_up(1)));
        for packets in 1..20 {
            w.nodes[A].plane.traffic = traffic(packets);
            assert!(!w.run(50 * SECOND, |w| w.stopped(A).is_some()));
        }
    }
}

#[test]
fn a_point_with_ping_exit_ends_with_the_other_or_without_it() {
    for was_there in [true, false] {
        for configs in points(&with(exits())) {
            let mut w = points::World::new(configs, &delay(), 1);
            if was_there {
                assert!(w.run(20 * SECOND, |w| w.both_up(1)));
            }
            w.kill(B);
            assert!(!w.run(15 * SECOND, |w| w.stopped(A).is_some()));
            assert!(w.run(10 * SECOND, |w| w.stopped(A).is_some()), "was there: {was_there}");
            assert_eq!(w.stopped(A), Some(&Reason::PingExit));
        }
    }
}

/// `ping-timer-rem` asks for this.
#[test]
fn an_end_that_waits_counts_silence_only_once_it_knows_the_other() {
    let [secret, [client, server]] = points(&with(exits()));
    for configs in [secret, [server, client]] {
        let mut configs = configs;
        match &mut configs[A] {
            points::Config::Static(config) => config.remote_policy.remotes.clear(),
            points::Config::Peer(config) => {
                config.remote_policy.remotes.clear();
                config.settings = with(exits());
            }
        }
        let mut w = points::World::new(configs, &delay(), 1);
        w.kill(B);
        assert!(!w.run(100 * SECOND, |w| w.stopped(A).is_some()));
        w.revive(B);
        assert!(w.run(20 * SECOND, |w| w.both_up(1)));
        w.kill(B);
        assert!(w.run(25 * SECOND, |w| w.stopped(A).is_some()));
        assert_eq!(w.stopped(A), Some(&Reason::PingExit));
    }
}
