//! Control packets that an attacker on the path injects into a session without a wrapping.

use std::time::Duration;

use adit_openvpn::client::{ClientConfig, ClientEvent};
use adit_openvpn::data_format::{Input, Notice};
use adit_openvpn::keys::StaticKey;
use adit_openvpn::packet::{Control, Opcode, SessionId};
use adit_openvpn::server::{ServerConfig, ServerEvent};
use adit_openvpn::session::Settings;
use adit_openvpn::wrap::{WrapConfig, Wrapper};
use adit_sim::{Impairment, Loss, Pipe};

use crate::support::{self, World, client_config, server_config};

const SECOND: Duration = Duration::from_secs(1);
const GARBAGE: &[u8] = b"twenty bytes of junk";

/// Returns a session with traffic, with or without dynamic tls-crypt for renegotiations.
fn connected(wrap: &WrapConfig, dynamic: bool) -> (World, usize) {
    let settings =
        Settings { wrap: wrap.clone(), dynamic_tls_crypt: dynamic, ..Settings::default() };
    with_configs(server_config(settings.clone()), client_config(settings))
}

fn with_configs(server: ServerConfig, client: ClientConfig) -> (World, usize) {
    let mut w = World::new(server, 1);
    let c = w.connect(client, Impairment::default(), 1);
    assert!(w.run(SECOND, |w| w.is_up(c)));
    w.clients[c].traffic = true;
    w.run(2 * SECOND, |_| false);
    (w, c)
}

/// Returns a session whose keys live for 150 s without a new negotiation.
fn with_short_lived_keys() -> (World, usize) {
    let settings =
        Settings { tran_window: 150 * SECOND, dynamic_tls_crypt: false, ..Settings::default() };
    let client = client_config(settings.clone());
    let mut w = World::new(server_config(settings), 1);
    let c = w.connect(client, Impairment::default(), 1);
    assert!(w.run(SECOND, |w| w.is_up(c)));
    (w, c)
}

/// One end of a session.
#[derive(Copy, Clone, Debug, PartialEq)]
enum At {
    Client,
    Server,
}

/// Delivers a control packet to one end, with the other end as its apparent sender.
fn inject(w: &mut World, c: usize, at: At, opcode: Opcode, key_id: u8, id: u32) {
    let (client, server) = w.session_ids;
    let control = Control {
        opcode,
        key_id,
        session: SessionId(if at == At::Client { server } else { client }),
        acks: Default::default(),
        remote: None,
        message: Some(id),
        payload: if opcode == Opcode::ControlV1 { GARBAGE } else { &[] },
    };
    let mut bytes = Vec::new();
    control.encode(&mut bytes);
    deliver(w, c, at, &mut bytes);
}

fn deliver(w: &mut World, c: usize, at: At, bytes: &mut [u8]) {
    match at {
        At::Client => {
            let link = w.client_link(c);
            w.to_client(c, Input::ControlPacket(link, bytes));
        }
        At::Server => {
            let link = w.server_link(c);
            w.to_server(Input::ControlPacket(link, bytes));
        }
    }
}

fn failures(w: &World, c: usize) -> usize {
    let failed = |text: &String| text.contains("key negotiation failed");
    let client = w.clients[c].events.iter();
    let client = client.filter(|e| matches!(e, ClientEvent::Warning(text) if failed(text)));
    let server = w.events.iter();
    let server = server.filter(|e| matches!(e, ServerEvent::Warning(_, text) if failed(text)));
    client.count() + server.count()
}

/// Returns the numbers of data packets that arrived at the client and at the server.
fn arrived(w: &World, c: usize) -> (u64, u64) {
    (w.clients[c].plane.opened, w.plane.opened)
}

#[track_caller]
fn data_passes(w: &mut World, c: usize) {
    let before = arrived(w, c);
    w.run(SECOND, |_| false);
    let after = arrived(w, c);
    assert!(after.0 > before.0 + 50 && after.1 > before.1 + 50, "{before:?} {after:?}");
}

#[track_caller]
fn session_stands(w: &World, c: usize) {
    assert!(w.downs().is_empty(), "{:?}", w.downs());
    assert_eq!((w.ups(c), w.server.clients().count()), (1, 1), "{:?}", w.clients[c].events);
}

/// Injects a packet with each possible next id, because an attacker who reads the traffic knows it.
fn inject_next(w: &mut World, c: usize, at: At, opcode: Opcode, key_id: u8) {
    let before = failures(w, c);
    for id in 0..40 {
        inject(w, c, at, opcode, key_id, id);
        if failures(w, c) > before {
            return;
        }
    }
    panic!("nothing failed");
}

#[test]
fn an_injected_packet_ends_no_session_and_a_new_negotiation_follows() {
    for dynamic in [true, false] {
        for at in [At::Client, At::Server] {
            let reset = match at {
                At::Client => Opcode::HardResetServerV2,
                At::Server => Opcode::HardResetClientV2,
            };
            for opcode in [Opcode::ControlV1, Opcode::SoftResetV1, reset] {
                let (mut w, c) = connected(&WrapConfig::None, dynamic);
                let what = format!("dynamic {dynamic}, at {at:?}, {opcode:?}");
                inject_next(&mut w, c, at, opcode, 0);
                session_stands(&w, c);
                assert!(w.run(5 * SECOND, |w| w.rekeys(c) == 1), "{what}: a new negotiation");
                session_stands(&w, c);
                data_passes(&mut w, c);
                // The next negotiation takes place as scheduled.
                let peer = *w.plane.peers.keys().next().expect("a peer");
                w.run(60 * SECOND, |_| false);
                w.to_server(Input::Notice(Notice::KeyNearLimit(peer, 1)));
                assert!(w.run(5 * SECOND, |w| w.rekeys(c) == 2), "{what}: the one after");
                data_passes(&mut w, c);
                session_stands(&w, c);
            }
        }
    }
}

#[test]
fn an_injected_packet_ends_the_negotiation_under_way_alone() {
    for at in [At::Client, At::Server] {
        let (mut w, c) = connected(&WrapConfig::None, false);
        let peer = *w.plane.peers.keys().next().expect("a peer");
        w.to_server(Input::Notice(Notice::KeyNearLimit(peer, 0)));
        // The first packets of a renegotiation are in transit.
        w.run(Duration::from_millis(1), |_| false);
        for id in 0..3 {
            inject(&mut w, c, at, Opcode::ControlV1, 1, id);
        }
        data_passes(&mut w, c);
        session_stands(&w, c);
        assert!(w.run(200 * SECOND, |w| w.rekeys(c) > 0), "{at:?}: {:?}", w.clients[c].events);
        data_passes(&mut w, c);
        session_stands(&w, c);
    }
}

#[test]
fn an_injected_request_to_renegotiate_ends_nothing() {
    for at in [At::Client, At::Server] {
        let (mut w, c) = connected(&WrapConfig::None, false);
        inject(&mut w, c, at, Opcode::SoftResetV1, 1, 0);
        w.run(200 * SECOND, |_| false);
        session_stands(&w, c);
        data_passes(&mut w, c);
        assert!(w.rekeys(c) > 0, "{at:?}: one that was real followed");
    }
}

/// Without a new negotiation, keys live only for the transition window.
#[test]
fn a_session_that_can_negotiate_no_more_ends_in_time() {
    let (mut w, c) = with_short_lived_keys();
    w.run(SECOND, |_| false);
    let start = w.now;
    // All packets in the client's negotiations are lost.
    let deaf = Impairment { loss: Loss::Random(1.0), ..Impairment::default() };
    let line = std::mem::replace(&mut w.clients[c].up, Pipe::new(deaf, [1; 32]));
    inject_next(&mut w, c, At::Client, Opcode::ControlV1, 0);
    let restarted =
        |w: &World| w.clients[c].events.iter().any(|e| matches!(e, ClientEvent::Restarting(_)));
    w.run(400 * SECOND, restarted);
    let lived = w.now.since(start);
    assert!((149 * SECOND..=160 * SECOND).contains(&lived), "{lived:?}");
    // The client reconnects on its own.
    w.clients[c].up = line;
    assert!(w.run(20 * SECOND, |w| w.ups(c) == 2), "{:?}", w.clients[c].events);
}

/// With a wrapping, only the peer can have violated the protocol, so it loses its session.
#[test]
fn under_tls_crypt_a_violation_ends_the_session() {
    let wrap = WrapConfig::TlsCrypt { key: StaticKey::new([3; StaticKey::LEN]) };
    let (mut w, c) = connected(&wrap, false);
    w.tick_client(c);
    let (client, _) = w.session_ids;
    let mut wrapper = Wrapper::client(&wrap).expect("a wrapper");
    // Use ids beyond those that the client has used.
    wrapper.set_next_id(1000);
    for id in 0..40 {
        let control = Control {
            opcode: Opcode::ControlV1,
            key_id: 0,
            session: SessionId(client),
            acks: Default::default(),
            remote: None,
            message: Some(id),
            payload: GARBAGE,
        };
        let mut bytes = Vec::new();
        wrapper.seal(&control, adit_engine::UnixTime(1_900_000_000), &mut bytes).expect("sealed");
        deliver(&mut w, c, At::Server, &mut bytes);
    }
    w.run(SECOND, |w| !w.downs().is_empty());
    assert_eq!(w.downs().len(), 1, "{:?}", w.server.counters());
}

/// Another holder of a certificate from the same authority completes a renegotiation in place of
/// the peer.
#[test]
fn a_renegotiation_of_another_identity_ends_no_session_that_anyone_can_write_into() {
    let identities = ["someone else", "client"];
    let settings = Settings { dynamic_tls_crypt: false, ..Settings::default() };
    let server = server_config(settings.clone());
    let client = client_config(settings);
    for name in identities {
        let (mut w, c) = with_configs(server.clone(), client.clone());
        let peer = *w.plane.peers.keys().next().expect("a peer");
        w.clients[c].engine.set_tls(support::client_tls_named(name));
        w.to_server(Input::Notice(Notice::KeyNearLimit(peer, 0)));
        assert!(w.run(5 * SECOND, |w| failures(w, c) > 0), "{name}");
        data_passes(&mut w, c);
        session_stands(&w, c);
        assert_eq!(w.rekeys(c), 0, "no key of another identity is installed");
        let identity = |w: &World| w.server.clients().map(|info| info.identity.clone()).next();
        let before = identity(&w);
        // The client itself negotiates again.
        w.clients[c].engine.set_tls(client.tls.clone());
        assert!(w.run(200 * SECOND, |w| w.rekeys(c) > 0), "{name}: {:?}", w.clients[c].events);
        assert_eq!(identity(&w), before);
        data_passes(&mut w, c);
        session_stands(&w, c);
    }
    let (mut w, c) = with_configs(server.clone(), client);
    let peer = *w.plane.peers.keys().next().expect("a peer");
    w.server.set_tls(support::server_tls_named("another server"));
    w.to_server(Input::Notice(Notice::KeyNearLimit(peer, 0)));
    assert!(w.run(5 * SECOND, |w| failures(w, c) > 0), "{:?}", w.clients[c].events);
    assert_eq!(w.rekeys(c), 0);
    session_stands(&w, c);
    w.server.set_tls(server.tls);
    assert!(w.run(200 * SECOND, |w| w.rekeys(c) > 0), "{:?}", w.clients[c].events);
    data_passes(&mut w, c);
    session_stands(&w, c);
}

/// Such a client keeps its session only for as long as keys live without a successful negotiation.
#[test]
fn a_client_that_stays_another_identity_ends_in_time() {
    let (mut w, c) = with_short_lived_keys();
    w.clients[c].engine.set_tls(support::client_tls_named("someone else"));
    let peer = *w.plane.peers.keys().next().expect("a peer");
    w.to_server(Input::Notice(Notice::KeyNearLimit(peer, 0)));
    assert!(w.run(400 * SECOND, |w| !w.downs().is_empty()), "{:?}", w.events);
}
