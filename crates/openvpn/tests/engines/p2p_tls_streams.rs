//! TLS over TCP in point-to-point mode, in virtual time. The listening end may have either TLS
//! role.

use std::time::Duration;

use adit_engine::Transport;
use adit_engine::command::Keepalive;
use adit_openvpn::client::ClientEvent;
use adit_openvpn::data_format::Outbox;
use adit_openvpn::keys::{Direction, StaticKey};
use adit_openvpn::p2p::{PeerConfig, PeerTls, RemotePolicy, TunnelAddrs};
use adit_openvpn::session::{Renegotiation, Settings};
use adit_openvpn::wrap::WrapConfig;

use crate::connections::{D, DELAY, L, SECOND, World, from};
use crate::points::{self, Config, Packet};
use crate::support;

fn settings() -> Settings {
    let keepalive = Keepalive { interval: 2 * SECOND, timeout: 10 * SECOND };
    Settings { keepalive, ..Settings::default() }
}

/// Returns the two ends; `server` is the index of the TLS server.
fn pair(server: usize, settings: &Settings) -> [Config; 2] {
    [L, D].map(|n| end(n, n == server, settings.clone()))
}

fn end(n: usize, server: bool, settings: Settings) -> Config {
    let mut remote_policy = RemotePolicy::new(Vec::new());
    if n == L {
        remote_policy.accepts = Some(Vec::new());
    } else {
        remote_policy.remotes.push(points::remote(Transport::Tcp));
    }
    let tls = if server {
        PeerTls::Server(support::server_tls())
    } else {
        PeerTls::Client(support::client_tls())
    };
    let tunnel_addrs = TunnelAddrs::default();
    Config::Peer(Box::new(PeerConfig {
        settings,
        tls,
        force_cookie: false,
        remote_policy,
        tunnel_addrs,
    }))
}

fn up(server: usize) -> World {
    World::up_with(pair(server, &settings()))
}

#[test]
fn each_listener_and_each_wrapping_connects_and_rekeys() {
    let renegotiation =
        Renegotiation { after: 20 * SECOND, earliest: 20 * SECOND, ..Renegotiation::default() };
    let key = StaticKey::new(std::array::from_fn(|n| n as u8));
    let auth = |direction| WrapConfig::TlsAuth {
        key: key.clone(),
        digest: adit_crypto::Digest::Sha256,
        direction: Some(direction),
    };
    for server in [L, D] {
        for wrapped in [false, true] {
            let mut configs = pair(server, &Settings { renegotiation, ..settings() });
            if wrapped {
                for (config, direction) in
                    configs.iter_mut().zip([Direction::Normal, Direction::Inverse])
                {
                    let Config::Peer(config) = config else { unreachable!() };
                    config.settings.wrap = auth(direction);
                }
            }
            let mut w = World::up_with(configs);
            assert!(w.passes(), "{server}");
            let rekeys = |w: &World, n: usize| {
                w.nodes[n]
                    .events
                    .iter()
                    .filter(|e| matches!(e, ClientEvent::Rekeyed { .. }))
                    .count()
            };
            assert!(w.run(60 * SECOND, |w| rekeys(w, L) >= 2 && rekeys(w, D) >= 2));
            assert!(w.passes());
            assert_eq!((w.restarts(L), w.restarts(D), w.connections.len()), (0, 0, 1));
        }
    }
}

#[test]
fn a_connection_that_breaks_at_any_moment_is_made_again() {
    for server in [L, D] {
        for millis in (0..200).step_by(3) {
            let mut w = World::new(pair(server, &settings()));
            w.run(Duration::from_millis(millis), |_| false);
            for _ in 0..3 {
                let id = *w.connections.keys().next_back().expect("dialled");
                w.run(Duration::from_millis(millis % 17), |_| false);
                w.breaks(id);
            }
        }
    }
}

#[test]
fn either_end_may_die_and_come_back() {
    for server in [L, D] {
        for (n, quietly) in [(D, false), (D, true), (L, false)] {
            let mut w = up(server);
            w.kill(n, quietly);
            w.run(3 * SECOND, |_| false);
            w.revive(n);
            let again = w.run(5 * SECOND, |w| w.ups(n) == 2);
            assert!(again, "{server} {n} {quietly}: {:?}", w.nodes[n].events);
            w.run(4 * DELAY, |_| false);
            assert!(w.passes(), "{server} {n} {quietly}");
            assert_eq!(w.connections.len(), 1, "the former one is hung up on");
        }
    }
}

#[test]
fn strangers_neither_end_a_session_nor_stay() {
    for server in [L, D] {
        let mut w = up(server);
        let peers = w.common();
        let captured: Vec<Packet> = w.nodes[D].sent.clone();
        for n in 0..100_u8 {
            let id = w.stranger(n);
            match n % 3 {
                0 => {}
                1 => w.deliver(L, id, &Packet::Control(vec![n; 60])),
                _ => w.deliver(L, id, &captured[usize::from(n) % captured.len()].clone()),
            }
            w.run(DELAY, |_| false);
            assert!(w.connections.contains_key(&peers), "{n}");
            assert!(w.connections.len() < 20, "strangers are bounded");
            assert!(n % 3 != 1 || !w.connections.contains_key(&id), "nonsense ends a stream");
        }
        w.run(70 * SECOND, |_| false);
        assert_eq!(w.connections.len(), 1, "no connection waits for ever");
        assert_eq!([w.ups(L), w.ups(D), w.restarts(L), w.restarts(D)], [1, 1, 0, 0]);
        assert!(w.passes());
    }
}

#[test]
fn strangers_that_came_first_do_not_keep_the_peer_out() {
    for server in [L, D] {
        let mut w = World::new(pair(server, &settings()));
        let dialler = w.nodes[D].engine.take();
        w.run(SECOND, |_| false);
        for n in 0..40 {
            w.stranger(50 + n);
        }
        w.nodes[D].engine = dialler;
        assert!(w.run(2 * SECOND, |w| w.ups(L) == 1 && w.ups(D) == 1), "{server}");
        assert!(w.passes());
    }
}

#[test]
fn who_may_not_connect_is_hung_up_on() {
    let mut configs = pair(L, &settings());
    let Config::Peer(choosy) = &mut configs[L] else { unreachable!() };
    choosy.remote_policy.accepts = Some(vec![from(9).ip()]);
    let mut w = World::up_with(configs);
    let id = w.stranger(10);
    assert!(!w.connections.contains_key(&id));
    assert!(w.passes());
}

#[test]
fn an_end_that_leaves_hangs_up_and_says_nothing_more() {
    for n in [L, D] {
        let leaving = Settings { exit_notify: Some(3), ..settings() };
        let mut w = World::up_with(pair(L, &leaving));
        w.stranger(50);
        let (mut out, now) = (Outbox::new(), w.now);
        w.nodes[n].engine.as_mut().expect("alive").shutdown(now, &mut out);
        w.perform(n, out);
        let stopped = |e: &ClientEvent| matches!(e, ClientEvent::Stopped(_));
        assert!(w.nodes[n].events.iter().any(stopped));
        assert_eq!(w.connections.len(), usize::from(n == D), "the stranger is the listener's");
        assert_eq!(w.restarts(1 - n), 1);
    }
}

#[test]
fn a_connection_whose_address_is_gone_is_replaced_at_once_and_another_is_kept() {
    for n in [D, L] {
        for mut w in [up(L), up(D)] {
            w.path_changed(n, false);
            assert!(!w.run(5 * SECOND, |w| w.restarts(L) + w.restarts(D) > 0));
            w.path_changed(n, true);
            // The dialling end waits only if it cannot know the reason.
            let soon = if n == D { SECOND } else { 3 * SECOND };
            assert!(
                w.run(soon, |w| w.ups(L) == 2 && w.ups(D) == 2),
                "{n}: {:?}",
                w.nodes[n].events
            );
            assert_eq!(w.restarts(n), 1, "{n}");
            assert!(w.passes(), "{n}");
        }
    }
}
