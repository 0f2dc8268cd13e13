//! The ends of sessions: the message about it is repeated until the client has it, and nothing else of the session is
//! left.

use std::time::Duration;

use adit_engine::auth::{Rejection, Response};
use adit_engine::{Engine, PeerId};
use adit_openvpn::Reason;
use adit_openvpn::client::{ClientConfig, ClientEvent};
use adit_openvpn::data_format::{Input, Notice, Outbox};
use adit_openvpn::server::{ClientChecks, Disconnect, Network4, ServerConfig};
use adit_openvpn::session::Settings;
use adit_sim::Impairment;

use crate::support::{World, client_config, client_tls_named, server_config};

const SECOND: Duration = Duration::from_secs(1);

fn named(name: &str) -> ClientConfig {
    ClientConfig { tls: client_tls_named(name), ..client_config(Settings::default()) }
}

fn join(w: &mut World, name: &str) -> usize {
    let delay = Duration::from_millis(10);
    let c = w.connect(named(name), Impairment { delay, ..Impairment::default() }, 1);
    w.clients[c].address.set_port(40_000 + c as u16);
    assert!(w.run(10 * SECOND, |w| w.is_up(c)), "{:?}", w.clients[c].events);
    c
}

/// Ends the session of the client with this name.
fn kick(w: &mut World, name: &str, disconnect: Disconnect) {
    let of = w.server.clients().find(|info| info.identity.common_name == name);
    let peer: PeerId = of.expect("a session").peer;
    let mut out = Outbox::new();
    assert!(w.server.kick(w.now, peer, disconnect, "maintenance", &mut out));
    w.perform_server(out);
}

/// Loses everything that is on its way to a client.
fn lose(w: &mut World, c: usize) {
    let later = w.now + 3600 * SECOND;
    while w.clients[c].down.pop(later).is_some() {}
}

fn has_heard(w: &World, c: usize, disconnect: Disconnect) -> bool {
    w.clients[c].events.iter().any(|event| match (disconnect, event) {
        (Disconnect::Restart, ClientEvent::Restarting(reason)) => {
            matches!(reason, Reason::ServerRestart(..))
        }
        (Disconnect::Halt, ClientEvent::Stopped(reason)) => matches!(reason, Reason::Halted(..)),
        _ => false,
    })
}

#[test]
fn the_last_message_is_repeated_until_the_client_has_it() {
    for disconnect in [Disconnect::Restart, Disconnect::Halt] {
        let mut w = World::new(server_config(Settings::default()), 1);
        let c = join(&mut w, "alice");
        kick(&mut w, "alice", disconnect);
        lose(&mut w, c);
        assert_eq!(w.downs().len(), 1, "the session ends at once");
        assert!(w.plane.peers.is_empty() && w.server.clients().count() == 0);
        assert!(!w.run(SECOND / 20, |w| has_heard(w, c, disconnect)));
        assert!(w.run(4 * SECOND, |w| has_heard(w, c, disconnect)), "{:?}", w.clients[c].events);
        assert_eq!(w.downs().len(), 1);
        assert_eq!(w.server.handshakes(), 0);
    }
}

/// AUTH_FAILED is lost once, and the client has it nevertheless.
#[test]
fn a_client_that_is_rejected_in_a_renegotiation_is_told_despite_loss() {
    let checks = ClientChecks { reauthorize: true, ..ClientChecks::default() };
    let config = ServerConfig { authorize: true, checks, ..server_config(Settings::default()) };
    let mut w = World::new(config, 1);
    let c = join(&mut w, "alice");
    w.reply = Response::Reject(Rejection::with_text("disabled", "ask the operator"));
    let peer = *w.plane.peers.keys().next().expect("a peer");
    w.to_server(Input::Notice(Notice::KeyNearLimit(peer, 0)));
    assert!(w.run(10 * SECOND, |w| !w.downs().is_empty()));
    lose(&mut w, c);
    assert!(w.plane.peers.is_empty(), "no packet passes any more");
    let refused = |e: &ClientEvent| matches!(e, ClientEvent::Stopped(Reason::AuthFailed(text)) if text == "ask the operator");
    let told = |w: &World| w.clients[c].events.iter().any(refused);
    assert!(!w.run(SECOND / 20, told));
    assert!(w.run(4 * SECOND, told), "{:?}", w.clients[c].events);
    assert_eq!(w.downs(), ["disabled"]);
    assert!(w.run(10 * SECOND, |w| w.server.deadline().is_none()), "nothing is left");
}

#[test]
fn a_client_that_is_gone_is_forgotten() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let c = join(&mut w, "alice");
    let mut out = Outbox::new();
    w.clients[c].engine.shutdown(w.now, &mut out);
    kick(&mut w, "alice", Disconnect::Restart);
    let first = w.clients[c].control.1;
    w.run(5 * SECOND, |_| false);
    let then = w.clients[c].control.1;
    assert!(then > first, "it was repeated");
    w.run(60 * SECOND, |_| false);
    assert_eq!(w.clients[c].control.1, then);
    assert_eq!(w.server.deadline(), None);
}

/// A client that has not acknowledged the message takes neither a place nor an address.
#[test]
fn an_ended_session_makes_room_at_once() {
    let only = [10, 9, 0, 2].into();
    let mut config = ServerConfig { max_clients: 1, ..server_config(Settings::default()) };
    config.network4.as_mut().expect("a network").pool = Some((only, only));
    let mut w = World::new(config, 1);
    let alice = join(&mut w, "alice");
    kick(&mut w, "alice", Disconnect::Halt);
    lose(&mut w, alice);
    join(&mut w, "bob");
    assert_eq!(w.server.clients().map(|info| info.ipv4).collect::<Vec<_>>(), [Some(only)]);
    assert!(w.run(5 * SECOND, |w| has_heard(w, alice, Disconnect::Halt)));
    assert_eq!(w.server.clients().count(), 1);
}

#[test]
fn the_number_of_clients_that_are_told_is_bounded() {
    const MOST: usize = 256;
    let network = Network4::subnet(
        "10.9.0.1/22".parse().expect("a network"),
        [10, 9, 0, 2].into(),
        [10, 9, 3, 254].into(),
    );
    let config = ServerConfig {
        max_clients: 1000,
        network4: Some(network),
        ..server_config(Settings::default())
    };
    let mut w = World::new(config, 1);
    let names: Vec<String> = (0..=MOST).map(|n| format!("client{n}")).collect();
    let clients: Vec<usize> = names.iter().map(|name| join(&mut w, name)).collect();
    for (name, c) in names.iter().zip(&clients) {
        kick(&mut w, name, Disconnect::Halt);
        lose(&mut w, *c);
    }
    assert_eq!(w.server.counters().ended_unconfirmed, 1);
    w.run(5 * SECOND, |_| false);
    let heard = clients.iter().filter(|c| has_heard(&w, **c, Disconnect::Halt)).count();
    assert_eq!(heard, MOST);
    assert_eq!(w.server.deadline(), None);
}
