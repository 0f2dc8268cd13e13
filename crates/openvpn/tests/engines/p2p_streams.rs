//! A static key over TCP in virtual time, with an end that listens, one that dials, and
//! unauthenticated senders.

use std::time::Duration;

use adit_crypto::{BlockCipher, Digest};
use adit_engine::command::Keepalive;
use adit_engine::{Link, PeerId, Transport};
use adit_openvpn::client::ClientEvent;
use adit_openvpn::data_format::{BlockSuite, Input, Notice, Outbox};
use adit_openvpn::keys::{Direction, StaticKey};
use adit_openvpn::p2p::{RemotePolicy, StaticConfig, TunnelAddrs};
use adit_openvpn::session::Settings;

use crate::connections::{D, DELAY, L, SECOND, World, from};
use crate::points::{self, Config};

const PEER: PeerId = PeerId(0);

fn listener() -> StaticConfig {
    let mut remote_policy = RemotePolicy::new(Vec::new());
    remote_policy.accepts = Some(Vec::new());
    config(Direction::Normal, remote_policy)
}

fn dialler() -> StaticConfig {
    config(Direction::Inverse, RemotePolicy::new(vec![points::remote(Transport::Tcp)]))
}

fn config(direction: Direction, remote_policy: RemotePolicy) -> StaticConfig {
    let keepalive = Keepalive { interval: 2 * SECOND, timeout: 10 * SECOND };
    StaticConfig {
        settings: Settings { keepalive, ..Settings::default() },
        key: StaticKey::new(std::array::from_fn(|n| n as u8)),
        direction: Some(direction),
        suite: BlockSuite { cipher: Some(BlockCipher::Aes256Cbc), digest: Some(Digest::Sha256) },
        remote_policy,
        tunnel_addrs: TunnelAddrs::default(),
    }
}

fn fixed(config: StaticConfig) -> Config {
    Config::Static(Box::new(config))
}

fn up() -> World {
    World::up_with([fixed(listener()), fixed(dialler())])
}

#[test]
fn a_connection_is_up_once_something_authentic_came() {
    let mut w = up();
    assert!(w.passes());
    w.run(100 * SECOND, |_| false);
    assert_eq!((w.restarts(L), w.restarts(D)), (0, 0));
    // This also works without pings, because the dialling end sends the first packet.
    let quiet = |mut config: StaticConfig| {
        config.settings.keepalive = Keepalive::default();
        config
    };
    let mut w = World::up_with([fixed(quiet(listener())), fixed(quiet(dialler()))]);
    assert!(w.passes());
}

#[test]
fn a_connection_that_breaks_at_any_moment_is_made_again() {
    for millis in 0..150 {
        let mut w = World::new([fixed(listener()), fixed(dialler())]);
        w.run(Duration::from_millis(millis), |_| false);
        for _ in 0..5 {
            let id = *w.connections.keys().next_back().expect("dialled");
            w.traffic(D);
            w.run(Duration::from_millis(millis % 17), |_| false);
            w.breaks(id);
        }
    }
}

#[test]
fn either_end_may_die_and_come_back() {
    for (n, quietly) in [(D, false), (D, true), (L, false)] {
        let mut w = up();
        w.kill(n, quietly);
        w.run(3 * SECOND, |_| false);
        w.revive(n);
        let again = w.run(5 * SECOND, |w| w.nodes[n].engine.is_some() && w.ups(n) == 2);
        assert!(again, "{n} {quietly}: {:?}", w.nodes[n].events);
        assert!(w.passes(), "{n} {quietly}");
        let silence = |e: &ClientEvent| matches!(e, ClientEvent::Restarting(why) if why.to_string().contains("ping-restart"));
        assert!(!w.nodes[1 - n].events.iter().any(silence), "neither end waited for silence");
        // An end that does not notice the other's death has not restarted.
        assert_eq!(w.restarts(1 - n) == 0, quietly, "{n} {quietly}: {:?}", w.nodes[1 - n].events);
        assert_eq!(w.connections.len(), 1, "the former one is hung up on");
    }
}

#[test]
fn an_end_that_dies_in_silence_is_missed() {
    let mut w = up();
    w.kill(D, true);
    assert!(w.run(15 * SECOND, |w| w.restarts(L) == 1));
    w.run(60 * SECOND, |_| false);
    assert_eq!(w.restarts(L), 1, "silence counts only after the peer has come");
}

#[test]
fn no_second_connection_ends_an_authenticated_one() {
    let mut w = up();
    let peers = w.common();
    let captured = w.nodes[D].sent.clone();
    for n in 0..200_u8 {
        let id = w.stranger(n);
        match n % 4 {
            0 => {}
            1 => w.cut(id),
            // A packet with another key, or an old packet with the right key.
            2 => w.deliver(L, id, &w.nodes[L].sent[0].clone()),
            _ => w.deliver(L, id, &captured[usize::from(n) % captured.len()].clone()),
        }
        assert!(w.connections.contains_key(&peers), "{n}");
        assert!(w.connections.len() < 20, "strangers are bounded");
    }
    assert!(w.passes());
    w.run(70 * SECOND, |_| false);
    assert_eq!(w.connections.len(), 1, "no connection waits for ever");
    assert_eq!([w.ups(L), w.ups(D), w.restarts(L), w.restarts(D)], [1, 1, 0, 0]);
    assert!(w.passes());
}

#[test]
fn a_stranger_that_came_first_does_not_keep_the_peer_out() {
    for strangers in [1, 3, 40] {
        let mut w = World::new([fixed(listener()), fixed(dialler())]);
        let dialler = w.nodes[D].engine.take();
        w.run(SECOND, |_| false);
        let first = w.stranger(50);
        for n in 1..strangers {
            w.stranger(50 + n);
        }
        w.nodes[D].engine = dialler;
        assert!(w.run(2 * SECOND, |w| w.ups(L) == 1 && w.ups(D) == 1), "{strangers}");
        assert!(!w.connections.contains_key(&first), "its place was taken");
        assert!(w.passes());
    }
}

/// Both ends wait for the other's first packet. The peer's connection waits behind an unauthenticated one, and still gets its turn.
#[test]
fn a_silent_stranger_holds_a_silent_peer_up_for_a_minute_at_most() {
    let mut config = listener();
    config.settings.keepalive = Keepalive::default();
    let mut w = World::new([fixed(config), fixed(dialler())]);
    w.nodes[D].engine = None;
    w.run(SECOND, |_| false);
    let stranger = w.stranger(50);
    w.run(100 * SECOND, |_| false);
    assert!(w.connections.contains_key(&stranger), "alone it may stay");
    let silent = w.stranger(51);
    w.run(SECOND, |_| false);
    assert!(!w.connections.contains_key(&stranger));
    assert_eq!(w.nodes[L].plane.link(PEER), w.connections[&silent].at[L]);
}

#[test]
fn a_captured_packet_is_never_delivered_on_a_new_connection() {
    let mut w = up();
    for _ in 0..5 {
        assert!(w.passes());
    }
    let captured = w.nodes[D].sent.clone();
    let replay = |w: &mut World| {
        for data in &captured {
            let before = w.nodes[L].plane.delivered.len();
            let ups = w.ups(L);
            let id = w.stranger(77);
            w.deliver(L, id, data);
            w.run(DELAY, |_| false);
            assert_eq!((w.nodes[L].plane.delivered.len(), w.ups(L)), (before, ups));
            assert!(!w.connections.contains_key(&id), "it is hung up on");
        }
    };
    replay(&mut w);
    // Captured packets are replayed while the peer is absent, when its loss is detected, and when
    // it has returned.
    w.kill(D, false);
    replay(&mut w);
    w.run(30 * SECOND, |_| false);
    replay(&mut w);
    w.revive(D);
    assert!(w.run(5 * SECOND, |w| w.ups(L) == 2));
    replay(&mut w);
    assert!(w.passes());
}

#[test]
fn who_may_not_connect_is_hung_up_on() {
    let mut choosy = listener();
    choosy.remote_policy.accepts = Some(vec![from(9).ip()]);
    let mut w = World::up_with([fixed(choosy), fixed(dialler())]);
    let id = w.stranger(10);
    assert!(!w.connections.contains_key(&id));
    let engine = w.nodes[L].engine.as_ref().expect("alive");
    assert_eq!(engine.dropped(), 1);
    assert!(w.passes());
}

#[test]
fn notices_that_come_late_do_not_name_a_connection_that_is_gone() {
    let mut w = up();
    let link = w.nodes[L].plane.link(PEER);
    let gone = Link::stream(999, from(3));
    w.feed(L, Input::Notice(Notice::Floated(PEER, gone)));
    assert_eq!(w.nodes[L].plane.link(PEER), link);
    w.cut(w.common());
    let ups = w.ups(L);
    w.feed(L, Input::Notice(Notice::PeerActive(PEER)));
    assert_eq!(w.ups(L), ups, "no peer is connected");
    assert!(w.run(5 * SECOND, |w| w.ups(L) > ups));
}

#[test]
fn an_end_that_leaves_hangs_up_and_says_nothing_more() {
    let leaving = |mut config: StaticConfig| {
        config.settings.exit_notify = Some(3);
        config
    };
    for n in [L, D] {
        let mut w = World::up_with([fixed(leaving(listener())), fixed(leaving(dialler()))]);
        w.stranger(50);
        let mut out = Outbox::new();
        let now = w.now;
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
        let mut w = up();
        w.path_changed(n, false);
        assert!(!w.run(5 * SECOND, |w| w.restarts(L) + w.restarts(D) > 0));
        w.path_changed(n, true);
        // The dialling end waits only if it cannot know the reason.
        let soon = if n == D { SECOND } else { 3 * SECOND };
        assert!(w.run(soon, |w| w.ups(L) == 2 && w.ups(D) == 2), "{n}: {:?}", w.nodes[n].events);
        assert_eq!(w.restarts(n), 1, "{n}");
        assert!(w.passes(), "{n}");
    }
}
