//! `tls-crypt-v2-verify`: what a client gets before its key is accepted, and what it costs the server.

use std::time::Duration;

use adit_engine::auth::{ClientParams, Response};
use adit_engine::{Transport, auth};
use adit_openvpn::client::ClientConfig;
use adit_openvpn::data_format::{Input, Outbox};
use adit_openvpn::keys::{Metadata, ServerKey, StaticKey};
use adit_openvpn::server::{ClientChecks, ServerConfig, ServerEvent};
use adit_openvpn::session::Settings;
use adit_openvpn::wrap::WrapConfig;
use adit_sim::Impairment;

use crate::support::{World, client_config, client_tls_named, server_config};

const SECOND: Duration = Duration::from_secs(1);

fn delay() -> Impairment {
    Impairment { delay: Duration::from_millis(10), ..Impairment::default() }
}

fn settings(wrap: WrapConfig) -> Settings {
    Settings { wrap, ..Settings::default() }
}

fn server_key() -> ServerKey {
    ServerKey::new(&[7; ServerKey::LEN])
}

/// A server that asks about keys.
fn verifying(wrap: WrapConfig) -> ServerConfig {
    let checks = ClientChecks { verify_key: true, ..ClientChecks::default() };
    ServerConfig { checks, ..server_config(settings(wrap)) }
}

/// A client with a key of its own.
fn client(name: &str, metadata: Option<&[u8]>, transport: Transport) -> ClientConfig {
    let metadata = metadata.map(|content| Metadata::User(content.to_vec()));
    let key = server_key().client_key(StaticKey::new([9; StaticKey::LEN]), metadata.as_ref());
    let wrap = WrapConfig::TlsCryptV2Client { key: key.expect("a key") };
    let mut config = ClientConfig { tls: client_tls_named(name), ..client_config(settings(wrap)) };
    config.remotes[0].target.transport = transport;
    config
}

/// A world in which one client waits for the verification of its key.
fn waiting(transport: Transport) -> (World, usize) {
    let mut w = World::new(verifying(WrapConfig::tls_crypt_v2_server(server_key())), 1);
    w.slow_keys = true;
    w.wiretap = Some(Default::default());
    let c = w.connect(client("alice", Some(b"tag"), transport), delay(), 1);
    assert!(w.run(10 * SECOND, |w| w.keys.len() == 1));
    (w, c)
}

fn answer(w: &mut World, response: Response) {
    let ticket = w.asked.pop().expect("a request waits");
    w.to_server(Input::AuthResponse(ticket, response));
}

fn accept() -> Response {
    Response::Accept(ClientParams::default())
}

/// Returns the number of bytes that the server has sent to a client.
fn sent(w: &World, c: usize) -> u64 {
    w.clients[c].control.1
}

fn started(w: &World) -> usize {
    w.events.iter().filter(|e| matches!(e, ServerEvent::HandshakeStarted(..))).count()
}

fn failures(w: &World) -> Vec<String> {
    let failures = w.events.iter().filter_map(|event| match event {
        ServerEvent::HandshakeFailed(_, reason) => Some(reason.to_string()),
        _ => None,
    });
    failures.collect()
}

#[test]
fn nothing_is_sent_before_the_key_is_accepted() {
    for transport in [Transport::Udp, Transport::Tcp] {
        let (mut w, c) = waiting(transport);
        let before = sent(&w, c);
        // Over datagrams, the answer to the reset proves the address. It does not depend on the key's metadata.
        assert_eq!(before == 0, transport == Transport::Tcp);
        w.run(20 * SECOND, |_| false);
        assert_eq!((sent(&w, c), started(&w), w.keys.len()), (before, 0, 1), "{transport:?}");
        let asked = &w.keys[0];
        let metadata = asked.tls_crypt_v2_metadata.as_ref();
        assert_eq!(metadata.map(|m| (m.kind, m.content.as_slice())), Some((0, &b"tag"[..])));
        assert_eq!(asked.remote, Some(w.clients[c].address));
        assert!(asked.common_name.is_empty() && asked.certificates.is_empty());
        answer(&mut w, accept());
        assert!(w.run(10 * SECOND, |w| w.is_up(c)), "{:?}", w.clients[c].events);
        assert_eq!((started(&w), w.clients[c].dialled.len()), (1, 1), "one attempt");
        assert_eq!(failures(&w), Vec::<String>::new());
    }
}

/// The packets that arrived meanwhile are used, so that the client need not send them again.
#[test]
fn an_answer_that_takes_a_while_costs_no_retransmission() {
    let (mut w, c) = waiting(Transport::Udp);
    w.run(SECOND / 2, |_| false);
    answer(&mut w, accept());
    assert!(w.run(SECOND / 4, |w| w.is_up(c)), "{:?}", w.clients[c].events);
}

#[test]
fn a_client_whose_key_is_rejected_gets_no_reply_and_is_forgotten() {
    for transport in [Transport::Udp, Transport::Tcp] {
        let (mut w, c) = waiting(transport);
        let before = sent(&w, c);
        answer(&mut w, Response::Reject("revoked".into()));
        assert_eq!(failures(&w), ["revoked"]);
        assert_eq!((w.server.handshakes(), w.server.pending_streams()), (0, 0));
        assert_eq!(w.hung_up.len(), usize::from(transport == Transport::Tcp));
        w.run(SECOND / 2, |_| false);
        assert_eq!((sent(&w, c), started(&w)), (before, 0));
        if transport == Transport::Udp {
            // What the client repeats is not asked about again: its cookie has been used.
            w.run(20 * SECOND, |_| false);
            assert_eq!((sent(&w, c), w.keys.len()), (before, 1));
        }
    }
}

/// Nothing is asked before the sender has proved its address.
#[test]
fn a_reset_alone_asks_nothing() {
    let mut w = World::new(verifying(WrapConfig::tls_crypt_v2_server(server_key())), 1);
    w.slow_keys = true;
    let c = w.connect(client("alice", Some(b"tag"), Transport::Udp), delay(), 1);
    assert!(w.run(10 * SECOND, |w| w.server.counters().resets_answered == 1));
    let mut out = Outbox::new();
    w.clients[c].engine.shutdown(w.now, &mut out);
    w.run(20 * SECOND, |_| false);
    assert!(w.keys.is_empty() && w.server.handshakes() == 0);
}

#[test]
fn clients_without_metadata_are_not_asked_about() {
    let shared = WrapConfig::TlsCrypt { key: StaticKey::new([3; StaticKey::LEN]) };
    let wrap = WrapConfig::TlsCryptV2Server {
        key: server_key(),
        max_age: None,
        shared: Some(Box::new(shared.clone())),
    };
    let mut w = World::new(verifying(wrap.clone()), 1);
    let plain = ClientConfig { tls: client_tls_named("bob"), ..client_config(settings(shared)) };
    for config in [plain, client("carol", None, Transport::Udp)] {
        let c = w.connect(config, delay(), 1);
        assert!(w.run(10 * SECOND, |w| w.is_up(c)), "{:?}", w.clients[c].events);
    }
    assert!(w.keys.is_empty());
    let c = w.connect(client("alice", Some(b"tag"), Transport::Udp), delay(), 1);
    assert!(w.run(10 * SECOND, |w| w.is_up(c)), "{:?}", w.clients[c].events);
    assert_eq!(w.keys.len(), 1);
    // A server that verifies no keys asks nothing.
    let mut w = World::new(server_config(settings(wrap)), 1);
    let c = w.connect(client("alice", Some(b"tag"), Transport::Udp), delay(), 1);
    assert!(w.run(10 * SECOND, |w| w.is_up(c)) && w.keys.is_empty());
}

#[test]
fn a_verification_without_an_answer_delays_no_other_client_and_ends() {
    let (mut w, alice) = waiting(Transport::Udp);
    let bob = w.connect(client("bob", Some(b"tag"), Transport::Udp), delay(), 2);
    assert!(w.run(10 * SECOND, |w| w.keys.len() == 2));
    answer(&mut w, accept());
    assert!(w.run(SECOND, |w| w.is_up(bob)), "{:?}", w.clients[bob].events);
    let late: auth::RequestId = w.asked[0];
    let mut out = Outbox::new();
    w.clients[alice].engine.shutdown(w.now, &mut out);
    assert!(w.run(70 * SECOND, |w| !failures(w).is_empty()));
    assert!(failures(&w)[0].contains("hand-window"), "{:?}", failures(&w));
    assert_eq!(w.server.handshakes(), 0);
    w.to_server(Input::AuthResponse(late, accept()));
    assert_eq!((started(&w), w.server.clients().count()), (1, 1));
}

#[test]
fn the_packets_that_wait_are_bounded() {
    let (mut w, c) = waiting(Transport::Udp);
    // The rest of the client's first message waits.
    w.run(SECOND / 10, |_| false);
    let wiretap = w.wiretap.as_ref().expect("one");
    let packet = wiretap.packet(true, 0).expect("a packet").to_vec();
    let link = w.server_link(c);
    let long = [packet.clone(), vec![0; 2048]].concat();
    w.to_server(Input::ControlPacket(link, &mut long.clone()));
    assert_eq!(w.server.counters().held_excess, 1, "too long");
    for _ in 0..10 {
        w.to_server(Input::ControlPacket(link, &mut packet.clone()));
    }
    assert!((7..=11).contains(&w.server.counters().held_excess), "{:?}", w.server.counters());
    answer(&mut w, accept());
    assert!(w.run(10 * SECOND, |w| w.is_up(c)), "{:?}", w.clients[c].events);
}

/// One network cannot use up the verifications, and the rest of it is refused.
#[test]
fn the_verifications_of_a_network_are_bounded() {
    let mut w = World::new(verifying(WrapConfig::tls_crypt_v2_server(server_key())), 1);
    w.slow_keys = true;
    let at = |n: u16| std::net::SocketAddr::from(([203, 0, 113, 5], 1000 + n));
    for n in 0..60 {
        let c = w.connect(client("alice", Some(b"tag"), Transport::Udp), delay(), n.into());
        w.clients[c].address = at(n);
    }
    w.run(5 * SECOND, |_| false);
    assert_eq!(w.keys.len(), 32);
    assert_eq!(w.server.counters().handshakes_refused, 28);
    assert_eq!(w.server.handshakes(), 32);
    let c = w.connect(client("bob", Some(b"tag"), Transport::Udp), delay(), 99);
    assert!(w.run(5 * SECOND, |w| w.keys.len() == 33), "another network");
    answer(&mut w, accept());
    assert!(w.run(5 * SECOND, |w| w.is_up(c)));
}
