//! Parameters that a server's administrator sets for individual clients, and messages that change
//! or end sessions.

use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::auth::SessionParams;
use adit_engine::command::PeerRates;
use adit_engine::{Engine, Rate, Transport, auth};
use adit_openvpn::Reason;
use adit_openvpn::client::{ClientConfig, ClientEvent, TunnelConfig};
use adit_openvpn::data_format::{Framing, Input, Notice, Outbox};
use adit_openvpn::negotiate::ControlMessage;
use adit_openvpn::server::{
    ClientUpdate, Disconnect, Network4, ReloadableConfig, ServerConfig, ServerEvent, Topology,
};
use adit_openvpn::session::Settings;
use adit_sim::Impairment;
use ipnet::IpNet;
use proptest::prelude::*;

use crate::support::{World, client_config, client_tls_named, server_config};

const SECOND: Duration = Duration::from_secs(1);

fn registry() -> ServerConfig {
    ServerConfig { authorize: true, ..server_config(Settings::default()) }
}

fn named(name: &str) -> ClientConfig {
    ClientConfig { tls: client_tls_named(name), ..client_config(Settings::default()) }
}

fn net(text: &str) -> IpNet {
    text.parse().expect("a network")
}

fn behind(networks: &[&str]) -> auth::Response {
    auth::Response::Accept(auth::ClientParams {
        iroutes: networks.iter().map(|n| net(n)).collect(),
        ..auth::ClientParams::default()
    })
}

/// Connects a client, for which the registry returns this response.
fn join(w: &mut World, name: &str, reply: auth::Response) -> usize {
    w.reply = reply;
    let c = w.connect(named(name), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| w.is_up(c)), "{name}: {:?}", w.clients[c].events);
    c
}

/// Returns the prefixes of a client in the data plane.
fn routes(w: &World, name: &str) -> Vec<String> {
    let info = w.server.clients().find(|info| info.identity.common_name == name);
    let peer = info.expect("it is connected").peer;
    let model = w.plane.peers.get(&peer).expect("it is in the data plane");
    let mut routes: Vec<String> = model.routes.iter().map(ToString::to_string).collect();
    routes.sort();
    routes
}

fn tunnel(w: &World, c: usize) -> &TunnelConfig {
    let config = w.clients[c].events.iter().rev().find_map(|event| match event {
        ClientEvent::Up(config) | ClientEvent::Updated(config) => Some(config),
        _ => None,
    });
    config.expect("the client is up")
}

fn nets(w: &World, c: usize) -> Vec<String> {
    tunnel(w, c).routes4.iter().map(|route| route.net.to_string()).collect()
}

fn warned(w: &World, words: &str) -> bool {
    w.events.iter().any(|e| matches!(e, ServerEvent::Warning(_, text) if text.contains(words)))
}

fn told(w: &World, words: &str) -> usize {
    let says = |e: &&ServerEvent| matches!(e, ServerEvent::Told { message, .. } if message.contains(words));
    w.events.iter().filter(says).count()
}

fn stopped(w: &World, c: usize) -> Option<&Reason> {
    w.clients[c].events.iter().find_map(|event| match event {
        ClientEvent::Stopped(why) => Some(why),
        _ => None,
    })
}

#[test]
fn networks_behind_a_client_are_its_own_until_it_leaves() {
    let mut w = World::new(registry(), 1);
    let a = join(&mut w, "alice", behind(&["10.50.0.0/16", "fd50::/32"]));
    assert_eq!(routes(&w, "alice"), ["10.50.0.0/16", "10.9.0.2/32", "fd00::1000/128", "fd50::/32"]);
    // A part of it belongs to another client. The longest prefix decides, so no client loses a
    // route.
    join(&mut w, "bob", behind(&["10.50.7.0/24"]));
    assert_eq!(routes(&w, "alice").len(), 4);
    assert!(routes(&w, "bob").contains(&"10.50.7.0/24".into()));
    let mut out = Outbox::new();
    w.clients[a].engine.shutdown(w.now, &mut out);
    w.perform_client(a, out);
    let peer = w.server.clients().find(|i| i.identity.common_name == "alice").expect("alice").peer;
    let mut out = Outbox::new();
    w.server.kick(w.now, peer, Disconnect::Halt, "gone", &mut out);
    w.perform_server(out);
    join(&mut w, "carol", behind(&["10.50.0.0/16"]));
    assert!(routes(&w, "carol").contains(&"10.50.0.0/16".into()));
    assert!(!warned(&w, "was behind"), "there was no owner any more");
}

/// For each command, the test support checks that the addresses were reported before it.
#[test]
fn what_a_client_has_is_told_with_its_name_and_groups() {
    let mut w = World::new(registry(), 1);
    let groups = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<_>>();
    let grant = |iroute: &str, names: &[&str]| {
        let iroutes = vec![net(iroute)];
        auth::Response::Accept(auth::ClientParams {
            iroutes,
            groups: groups(names),
            ..auth::ClientParams::default()
        })
    };
    join(&mut w, "alice", grant("10.50.0.0/16", &["staff", "ops", "staff"]));
    join(&mut w, "bob", grant("10.50.0.0/16", &[]));
    let told: Vec<_> = w
        .events
        .iter()
        .filter_map(|event| match event {
            ServerEvent::Addresses(addresses) => Some(&**addresses),
            _ => None,
        })
        .collect();
    let [alice, without, bob] = &told[..] else { panic!("{told:?}") };
    assert_eq!((alice.name.as_str(), &alice.groups), ("alice", &groups(&["staff", "ops"])));
    assert!(alice.prefixes.contains(&net("10.50.0.0/16")));
    assert!(alice.prefixes.contains(&net("10.9.0.2/32")));
    assert_eq!((without.peer, &without.groups), (alice.peer, &alice.groups));
    assert!(!without.prefixes.contains(&net("10.50.0.0/16")), "before bob has it");
    assert_eq!((bob.name.as_str(), bob.groups.len()), ("bob", 0));
    let up = |name: &str| {
        w.events.iter().position(
            |e| matches!(e, ServerEvent::ClientUp(info) if info.identity.common_name == name),
        )
    };
    let first = w.events.iter().position(|e| matches!(e, ServerEvent::Addresses(_)));
    assert!(first < up("alice"));
}

#[test]
fn of_two_clients_with_the_same_network_behind_them_the_newest_has_it() {
    let mut w = World::new(registry(), 1);
    join(&mut w, "alice", behind(&["10.50.0.0/16", "10.51.0.0/16"]));
    join(&mut w, "bob", behind(&["10.50.0.0/16"]));
    assert!(!routes(&w, "alice").contains(&"10.50.0.0/16".into()), "one owner at a time");
    assert!(routes(&w, "alice").contains(&"10.51.0.0/16".into()));
    assert!(routes(&w, "bob").contains(&"10.50.0.0/16".into()));
    assert!(warned(&w, "10.50.0.0/16 was behind alice and is behind bob"), "{:?}", w.events);
}

#[test]
fn a_client_does_not_take_anothers_address_by_a_network_behind_it() {
    let mut w = World::new(registry(), 1);
    join(&mut w, "alice", behind(&[]));
    join(&mut w, "mallory", behind(&["10.9.0.2/32"]));
    assert!(routes(&w, "alice").contains(&"10.9.0.2/32".into()));
    assert!(!routes(&w, "mallory").contains(&"10.9.0.2/32".into()));
    assert!(warned(&w, "tunnel address of alice"));
}

fn at(address: &str) -> auth::ClientParams {
    let mask = "255.255.255.0".parse().expect("a mask");
    auth::ClientParams {
        ifconfig4: Some((address.parse().expect("ip"), mask)),
        ..auth::ClientParams::default()
    }
}

#[test]
fn a_fixed_address_is_taken_back_from_whom_it_was_lent_to() {
    let mut w = World::new(registry(), 1);
    let lent = join(&mut w, "guest", auth::Response::Accept(auth::ClientParams::default()));
    assert!(routes(&w, "guest").contains(&"10.9.0.2/32".into()));
    let fixed = join(&mut w, "owner", auth::Response::Accept(at("10.9.0.2")));
    assert_eq!(tunnel(&w, fixed).ipv4.map(|n| n.to_string()).as_deref(), Some("10.9.0.2/24"));
    w.reply = auth::Response::Accept(auth::ClientParams::default());
    assert!(w.run(30 * SECOND, |w| w.ups(lent) == 2), "{:?}", w.clients[lent].events);
    assert!(routes(&w, "guest").contains(&"10.9.0.3/32".into()), "{:?}", routes(&w, "guest"));
}

#[test]
fn two_that_claim_the_same_address_do_not_throw_each_other_out() {
    let mut w = World::new(registry(), 1);
    let first = join(&mut w, "alice", auth::Response::Accept(at("10.9.0.77")));
    let second = w.connect(named("bob"), Impairment::default(), 1);
    w.run(20 * SECOND, |_| false);
    assert!(!w.is_up(second) && w.ups(first) == 1);
    assert!(told(&w, "AUTH_FAILED,TEMP[backoff 30]") > 0, "{:?}", w.events);
    let why = |e: &ServerEvent| matches!(e, ServerEvent::Refused(_, _, why) if why.to_string().contains("in use by alice"));
    assert!(w.events.iter().any(why));
}

#[test]
fn an_address_by_ifconfig_push_goes_out_as_it_is_written() {
    let mut w = World::new(registry(), 1);
    let six = Some(("fd77::5/48".parse().expect("net"), "fd77::1".parse().ok()));
    let c = join(
        &mut w,
        "alice",
        auth::Response::Accept(auth::ClientParams { ifconfig6: six, ..at("10.20.0.5") }),
    );
    assert_eq!(tunnel(&w, c).ipv4.map(|n| n.to_string()).as_deref(), Some("10.20.0.5/24"));
    assert_eq!(tunnel(&w, c).ipv6.map(|n| n.to_string()).as_deref(), Some("fd77::5/48"));
    assert_eq!(tunnel(&w, c).gateway6, "fd77::1".parse().ok());
    assert_eq!(routes(&w, "alice"), ["10.20.0.5/32", "fd77::5/128"]);
}

#[test]
fn push_reset_and_push_remove_take_away_what_all_get() {
    let mut config = registry();
    config.push =
        ["route 10.1.0.0 255.255.0.0", "route 10.2.0.0 255.255.0.0", "dhcp-option DNS 1.1.1.1"]
            .map(str::to_owned)
            .into();
    let mut w = World::new(config, 1);
    let own = vec!["route 10.3.0.0 255.255.0.0".to_owned()];
    let reset =
        auth::ClientParams { push_reset: true, push: own.clone(), ..auth::ClientParams::default() };
    let c = join(&mut w, "alice", auth::Response::Accept(reset));
    assert_eq!(nets(&w, c), ["10.3.0.0/16"]);
    assert!(tunnel(&w, c).dns.is_empty());
    // The mandatory options are still pushed.
    assert!(tunnel(&w, c).ipv4.is_some() && tunnel(&w, c).gateway4.is_some());
    let push_remove = ["route 10.1", "ifconfig-ipv6", "route-gateway"].map(str::to_owned).into();
    let remove = auth::ClientParams { push_remove, push: own, ..auth::ClientParams::default() };
    let c = join(&mut w, "bob", auth::Response::Accept(remove));
    assert_eq!(nets(&w, c), ["10.2.0.0/16", "10.3.0.0/16"]);
    assert_eq!(
        (tunnel(&w, c).dns.lines().len(), tunnel(&w, c).ipv6, tunnel(&w, c).gateway4),
        (1, None, None)
    );
}

fn with_topology(topology: Topology) -> ServerConfig {
    let mut config = server_config(Settings::default());
    let [server, first, last] =
        ["10.9.0.1", "10.9.0.4", "10.9.0.251"].map(|a| a.parse().expect("ip"));
    let server = ipnet::Ipv4Net::new(server, 24).expect("net");
    config.network4 = Some(Network4 { topology, ..Network4::subnet(server, first, last) });
    config
}

#[test]
fn every_topology_gives_its_own_two_addresses() {
    for (topology, address, far, gateway) in [
        (Topology::Subnet, "10.9.0.4/24", None, "10.9.0.1"),
        (Topology::Net30, "10.9.0.6/32", Some("10.9.0.5"), "10.9.0.5"),
        (Topology::P2p, "10.9.0.4/32", Some("10.9.0.1"), "10.9.0.1"),
    ] {
        let mut w = World::new(with_topology(topology), 1);
        let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
        assert!(w.run(10 * SECOND, |w| w.is_up(c)), "{topology:?}: {:?}", w.clients[c].events);
        let tunnel = tunnel(&w, c);
        assert_eq!(tunnel.ipv4.map(|n| n.to_string()).as_deref(), Some(address), "{topology:?}");
        assert_eq!(tunnel.far4, far.and_then(|far| far.parse().ok()), "{topology:?}");
        assert_eq!(tunnel.gateway4, gateway.parse().ok(), "{topology:?}");
        assert_eq!(told(&w, &format!("topology {}", topology.name())), 1);
    }
}

#[test]
fn a_full_server_says_when_to_come_back_and_the_client_does() {
    let mut config = server_config(Settings::default());
    config.max_clients = 1;
    let mut w = World::new(config, 1);
    let first = w.connect(named("alice"), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| w.is_up(first)));
    let second = w.connect(named("bob"), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| told(w, "AUTH_FAILED,TEMP[backoff 30]") == 1), "{:?}", w.events);
    let peer = w.server.clients().next().expect("alice").peer;
    let mut out = Outbox::new();
    w.server.kick(w.now, peer, Disconnect::Halt, "room for others", &mut out);
    w.perform_server(out);
    let before = w.now;
    assert!(w.run(60 * SECOND, |w| w.is_up(second)), "{:?}", w.clients[second].events);
    let waited = w.now.since(before);
    assert!((29 * SECOND..40 * SECOND).contains(&waited), "{waited:?}");
    assert_eq!(stopped(&w, second), None, "a temporary failure does not end it");
}

/// A server cannot make its clients wait longer than the longest wait in their configuration.
#[test]
fn a_servers_wish_for_patience_ends_at_the_longest_wait_of_the_client() {
    let mut config = server_config(Settings::default());
    config.max_clients = 1;
    let mut w = World::new(config, 1);
    let first = w.connect(named("alice"), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| w.is_up(first)));
    let impatient = ClientConfig { connect_retry: (SECOND, 3 * SECOND), ..named("bob") };
    w.connect(impatient, Impairment::default(), 1);
    assert!(w.run(12 * SECOND, |w| told(w, "AUTH_FAILED,TEMP[backoff 30]") >= 3), "{:?}", w.events);
}

fn offer(push: &[&str]) -> ReloadableConfig {
    let push = push.iter().map(|&option| option.to_owned()).collect();
    ReloadableConfig { push, max_clients: 100, ..Default::default() }
}

fn change(w: &mut World, push: &[&str]) {
    let mut out = Outbox::new();
    w.server.set_offer(w.now, offer(push), &mut out);
    w.perform_server(out);
}

fn updates(w: &World, c: usize) -> usize {
    w.clients[c].events.iter().filter(|e| matches!(e, ClientEvent::Updated(_))).count()
}

#[test]
fn a_changed_offer_reaches_connected_clients_without_a_new_session() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| w.is_up(c)));
    assert_eq!(nets(&w, c), ["10.77.0.0/16"]);
    w.clients[c].traffic = true;
    change(&mut w, &["route 10.78.0.0 255.255.0.0", "dhcp-option DNS 10.9.0.1"]);
    assert!(w.run(5 * SECOND, |w| updates(w, c) == 1), "{:?}", w.clients[c].events);
    assert_eq!(
        (nets(&w, c), tunnel(&w, c).dns.lines().len()),
        (vec!["10.78.0.0/16".to_owned()], 1)
    );
    assert_eq!(tunnel(&w, c).ipv4.map(|n| n.to_string()).as_deref(), Some("10.9.0.2/24"));
    // Remove all changes again.
    change(&mut w, &[]);
    assert!(w.run(5 * SECOND, |w| updates(w, c) == 2));
    assert!(nets(&w, c).is_empty() && tunnel(&w, c).dns.is_empty());
    // An unchanged offer sends nothing.
    change(&mut w, &[]);
    w.run(5 * SECOND, |_| false);
    assert_eq!((updates(&w, c), w.ups(c)), (2, 1));
    assert_eq!((w.plane.failed, w.clients[c].plane.failed), (0, 0), "no packet was lost by it");
}

#[test]
fn an_update_of_many_parts_is_in_force_when_the_last_is_there() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let slow = Impairment { delay: Duration::from_millis(20), ..Impairment::default() };
    let c = w.connect(client_config(Settings::default()), slow, 1);
    assert!(w.run(10 * SECOND, |w| w.is_up(c)));
    let many: Vec<String> = (0..200).map(|n| format!("route 10.{n}.0.0 255.255.0.0")).collect();
    change(&mut w, &many.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(told(&w, "PUSH_UPDATE") > 3, "several messages");
    assert!(w.run(20 * SECOND, |w| updates(w, c) > 0), "{:?}", w.clients[c].events);
    assert_eq!((updates(&w, c), nets(&w, c).len()), (1, 200));
}

#[test]
fn what_cannot_change_in_a_session_waits_for_the_next_one() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| w.is_up(c)));
    change(&mut w, &["route 10.77.0.0 255.255.0.0", "explicit-exit-notify 3", "reneg-sec 60"]);
    w.run(5 * SECOND, |_| false);
    assert_eq!((told(&w, "PUSH_UPDATE"), updates(&w, c), w.ups(c)), (0, 0, 1));
}

/// The client's own networks survive a change of the options for all clients; a client's
/// `push-remove` still applies.
#[test]
fn an_update_keeps_what_is_particular_to_a_client() {
    let mut w = World::new(registry(), 1);
    let own = vec!["route 10.3.0.0 255.255.0.0".to_owned()];
    let remove = vec!["route 10.79".to_owned()];
    let grant =
        auth::ClientParams { push: own, push_remove: remove, ..auth::ClientParams::default() };
    let c = join(&mut w, "alice", auth::Response::Accept(grant));
    change(&mut w, &["route 10.78.0.0 255.255.0.0", "route 10.79.0.0 255.255.0.0"]);
    assert!(w.run(5 * SECOND, |w| updates(w, c) == 1));
    assert_eq!(nets(&w, c), ["10.78.0.0/16", "10.3.0.0/16"]);
}

/// A network moves to a connected client, is pushed to the others, and its rate changes; no session ends.
#[test]
fn the_parameters_of_one_client_change_within_its_session() {
    let mut w = World::new(registry(), 1);
    let alice = join(&mut w, "alice", behind(&["10.50.1.0/24"]));
    let bob = join(&mut w, "bob", behind(&[]));
    let update = |networks: &[&str], rate: Option<Rate>| ClientUpdate {
        iroutes: networks.iter().map(|n| net(n)).collect(),
        push_remove: Vec::new(),
        rates: PeerRates { received: rate, sent: None },
    };
    let limit = Some(Rate::per_second(1000));
    let apply = |w: &mut World, clients: &[(&str, ClientUpdate)], push: &[&str]| {
        let clients = clients.iter().map(|(name, new)| ((*name).to_owned(), new.clone()));
        let offer = ReloadableConfig { clients: clients.collect(), ..offer(push) };
        let mut out = Outbox::new();
        w.server.set_offer(w.now, offer, &mut out);
        w.perform_server(out);
    };
    let push = ["route 10.50.1.0 255.255.255.0"];
    let both = [("alice", update(&[], None)), ("bob", update(&["10.50.1.0/24"], limit))];
    apply(&mut w, &both, &push);
    assert!(w.run(5 * SECOND, |w| updates(w, alice) == 1), "{:?}", w.clients[alice].events);
    assert_eq!(routes(&w, "alice"), ["10.9.0.2/32", "fd00::1000/128"]);
    assert_eq!(routes(&w, "bob"), ["10.50.1.0/24", "10.9.0.3/32", "fd00::1001/128"]);
    assert_eq!((nets(&w, alice), nets(&w, bob)), (vec!["10.50.1.0/24".to_owned()], vec![]));
    let rates = |w: &World| {
        let info = w.server.clients().find(|info| info.identity.common_name == "bob");
        w.plane.peers[&info.unwrap().peer].rates.received
    };
    assert_eq!(rates(&w), limit);

    // A client that is not named keeps its parameters; one from which the route is hidden loses it.
    let hidden = ClientUpdate { push_remove: vec![push[0].to_owned()], ..update(&[], None) };
    apply(&mut w, &[("alice", hidden)], &push);
    assert!(w.run(5 * SECOND, |w| updates(w, alice) == 2));
    assert!(nets(&w, alice).is_empty());
    assert_eq!((rates(&w), routes(&w, "bob").len()), (limit, 3));
    assert_eq!((w.ups(alice), w.ups(bob)), (1, 1));
}

/// The registry knows a client under another name than its certificate.
#[test]
fn a_session_has_the_name_that_the_authorization_gives_it() {
    let mut w = World::new(registry(), 1);
    let grant = |name: &str| {
        let session = SessionParams { name: Some(name.to_owned()), ..SessionParams::default() };
        let session = Some(Box::new(session));
        auth::Response::Accept(auth::ClientParams { session, ..auth::ClientParams::default() })
    };
    join(&mut w, "alice", grant("desk"));
    let names = |w: &World| {
        let names = w.server.clients().map(|info| info.identity.common_name.clone());
        names.collect::<Vec<_>>()
    };
    assert_eq!(names(&w), ["desk"]);
    // A second session of the same name replaces the first, whatever the certificate says.
    join(&mut w, "bob", grant("desk"));
    assert_eq!(names(&w), ["desk"]);
}

/// A route to a network behind the client itself would send its packets in a circle.
#[test]
fn a_network_is_not_pushed_to_the_client_that_has_it() {
    let mut config = registry();
    config.push =
        ["route 10.50.1.0 255.255.255.0", "route 10.50.2.0 255.255.255.0", "route-ipv6 fd50::/64"]
            .map(str::to_owned)
            .into();
    let mut w = World::new(config, 1);
    let alice = join(&mut w, "alice", behind(&["10.50.1.0/24", "fd50::/64"]));
    let bob = join(&mut w, "bob", behind(&["10.50.0.0/16"]));
    assert_eq!(nets(&w, alice), ["10.50.2.0/24"]);
    assert!(tunnel(&w, alice).routes6.is_empty());
    assert_eq!(nets(&w, bob), ["10.50.1.0/24", "10.50.2.0/24"], "another network, if a larger one");
    assert_eq!(tunnel(&w, bob).routes6.len(), 1);
}

#[test]
fn compression_is_led_away_from_client_by_client() {
    for (at_client, pushed) in [
        (Framing::None, None),
        (Framing::LzoStub, Some("comp-lzo no")),
        (Framing::StubV2, Some("comp-lzo no")),
    ] {
        let mut config = server_config(Settings::default());
        config.compress_migrate = true;
        let mut w = World::new(config, 1);
        let settings = Settings { framing: at_client, ..Settings::default() };
        let c = w.connect(client_config(settings), Impairment::default(), 1);
        assert!(w.run(10 * SECOND, |w| w.is_up(c)), "{at_client:?}");
        let told = told(&w, "comp-lzo no") + told(&w, "compress");
        assert_eq!(told, usize::from(pushed.is_some()), "{at_client:?}: {:?}", w.events);
    }
}

/// A client gets no PUSH_REPLY, key or address before the final authorization response, however
/// often it requests them.
#[test]
fn cve_2020_15078_nothing_is_given_before_a_deferred_check_ends() {
    let mut w = World::new(registry(), 1);
    w.slow_registry = true;
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| !w.asked.is_empty()));
    // Meanwhile it requests its options every five seconds.
    w.run(30 * SECOND, |_| false);
    assert_eq!(told(&w, "PUSH_REPLY"), 0);
    assert!(w.plane.peers.is_empty() && w.server.clients().next().is_none());
    assert!(!w.is_up(c));
    let ticket = w.asked[0];
    w.to_server(Input::AuthResponse(ticket, auth::Response::Accept(auth::ClientParams::default())));
    assert!(w.run(10 * SECOND, |w| w.is_up(c)));
}

/// A refused client stays refused, whatever the responses to other requests and later responses to
/// the same request.
#[test]
fn cve_2022_0547_one_yes_does_not_outweigh_a_no() {
    let mut w = World::new(registry(), 1);
    w.slow_registry = true;
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| !w.asked.is_empty()));
    let ticket = w.asked[0];
    // The response to a request that was never made, or to another client's, has no effect on this
    // client.
    w.to_server(Input::AuthResponse(
        auth::RequestId(ticket.0 + 1),
        auth::Response::Accept(auth::ClientParams::default()),
    ));
    assert!(w.server.clients().next().is_none());
    w.to_server(Input::AuthResponse(ticket, auth::Response::Reject("no".into())));
    w.to_server(Input::AuthResponse(ticket, auth::Response::Accept(auth::ClientParams::default())));
    w.run(20 * SECOND, |_| false);
    assert!(!w.is_up(c) && w.plane.peers.is_empty());
    assert_eq!(told(&w, "PUSH_REPLY"), 0);
    assert!(matches!(stopped(&w, c), Some(Reason::AuthFailed(_))));
}

fn refused_with_replay(deaf: bool, gaps: &[u64]) -> (Duration, bool) {
    let mut w = World::new(registry(), 1);
    w.slow_registry = true;
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| !w.asked.is_empty()));
    // Keep all packets that it has in transit, to send them repeatedly.
    w.tick_client(c);
    let mut kept = w.capture(c);
    let mut out = Outbox::new();
    w.clients[c].engine.handle(w.now + 6 * SECOND, Input::Tick, &mut out);
    w.perform_client(c, out);
    kept.extend(w.capture(c));
    assert!(!kept.is_empty(), "there is something to send again");
    let ticket = w.asked[0];
    w.to_server(Input::AuthResponse(ticket, auth::Response::Reject("no".into())));
    let refused = w.now;
    if deaf {
        // It never acknowledges the refusal.
        let _ = w.clients[c].down.pop(w.now + 3600 * SECOND);
        w.clients[c].address.set_port(1);
    }
    let link = adit_engine::Link::datagram(
        Default::default(),
        None,
        SocketAddr::from(([198, 51, 100, 0], 40_000)),
    );
    for gap in gaps {
        w.now = w.now + Duration::from_millis(*gap);
        for packet in &kept {
            w.to_server(Input::ControlPacket(link, &mut packet.clone()));
        }
        w.to_server(Input::Tick);
        let gone = w.events.iter().any(|e| matches!(e, ServerEvent::Refused(..)));
        if gone {
            return (w.now.since(refused), w.plane.peers.is_empty());
        }
    }
    (Duration::MAX, false)
}

/// A client that received AUTH_FAILED is removed within seconds, whatever it sends.
#[test]
fn cve_2024_28882_a_refused_client_cannot_stay() {
    for deaf in [false, true] {
        let (stayed, clean) = refused_with_replay(deaf, &[200; 100]);
        assert!(stayed <= 6 * SECOND && clean, "{deaf}: {stayed:?}");
    }
}

/// A client that sends EXIT cannot stay either. The session ends with the message, and later
/// packets are unauthenticated.
#[test]
fn cve_2024_28882_an_exit_ends_the_session_at_once() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| w.is_up(c)));
    for message in [ControlMessage::Exit, ControlMessage::PushRequest, ControlMessage::Exit] {
        let mut out = Outbox::new();
        w.clients[c].engine.say(w.now, &message, &mut out);
        w.perform_client(c, out);
    }
    w.run(SECOND, |w| w.server.clients().next().is_none());
    assert_eq!(w.server.clients().count(), 0, "{:?}", w.events);
    let given = told(&w, "PUSH_REPLY");
    w.run(2 * SECOND, |_| false);
    assert_eq!(told(&w, "PUSH_REPLY"), given, "nothing is given after it");
    assert_eq!(w.downs(), ["remote-exit"]);
}

/// A message with control characters is dropped with a warning that contains none, and the session
/// continues.
#[test]
fn cve_2024_5594_messages_with_control_characters_are_dropped() {
    let mut w = World::new(server_config(Settings::default()), 1);
    let c = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| w.is_up(c)));
    for text in ["x\nFAKE LOG LINE", "\u{1b}[2J", "a\rb", "a\u{7}"] {
        let mut out = Outbox::new();
        w.clients[c].engine.say(w.now, &ControlMessage::Info(text.into()), &mut out);
        w.perform_client(c, out);
    }
    // The answer to a challenge that was never sent may be a secret, so it does not reach the log.
    let mut out = Outbox::new();
    w.clients[c].engine.say(w.now, &ControlMessage::ChallengeResponse("c2VjcmV0".into()), &mut out);
    w.perform_client(c, out);
    w.run(5 * SECOND, |_| false);
    let said: Vec<&String> = w
        .events
        .iter()
        .filter_map(|event| match event {
            ServerEvent::Warning(_, text) | ServerEvent::Note(_, text) => Some(text),
            _ => None,
        })
        .collect();
    assert_eq!(said.len(), 5, "{said:?}");
    assert!(said.iter().all(|text| !text.chars().any(char::is_control) && !text.contains("c2Vj")));
    assert_eq!((w.ups(c), w.server.clients().count()), (1, 1));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// The same test with random intervals.
    #[test]
    fn cve_2024_28882_at_any_rhythm(deaf: bool, gap in 1_u64..3000) {
        let steps = 8000 / gap + 4;
        let (stayed, clean) = refused_with_replay(deaf, &vec![gap; steps as usize]);
        prop_assert!(stayed <= 5 * SECOND + Duration::from_millis(gap), "{:?}", stayed);
        prop_assert!(clean);
    }
}

/// Returns two devices with one profile, the first of them connected.
fn first_of_two() -> (World, usize) {
    let mut w = World::new(server_config(Settings::default()), 1);
    let first = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(10 * SECOND, |w| w.is_up(first)));
    (w, first)
}

fn disputes(w: &World) -> Vec<(SocketAddr, SocketAddr, u32)> {
    let of = |event: &ServerEvent| match event {
        ServerEvent::UsedElsewhere(used) => Some((used.former, used.newer, used.count)),
        _ => None,
    };
    w.events.iter().filter_map(of).collect()
}

fn restarts(w: &World, c: usize) -> Vec<String> {
    let of = |event: &ClientEvent| match event {
        ClientEvent::Restarting(reason) => Some(reason.to_string()),
        _ => None,
    };
    w.clients[c].events.iter().filter_map(of).collect()
}

#[test]
fn a_device_whose_session_another_one_took_is_told_why_and_stays_away() {
    let (mut w, first) = first_of_two();
    let second = w.connect(client_config(Settings::default()), Impairment::default(), 2);
    assert!(w.run(10 * SECOND, |w| w.is_up(second)));
    assert!(
        w.run(10 * SECOND, |w| !restarts(w, first).is_empty()),
        "{:?}",
        w.clients[first].events
    );
    let reason = restarts(&w, first).remove(0);
    assert!(reason.contains("this profile is in use at 198.51.100.1;"), "{reason}");
    let (at_first, at_second) = (w.clients[first].address, w.clients[second].address);
    assert_eq!(disputes(&w), [(at_first, at_second, 1)]);
    // The first device stays away for a minute. After that, the waits of both devices grow.
    assert!(!w.run(58 * SECOND, |w| w.ups(first) > 1));
    assert!(w.run(5 * SECOND, |w| w.ups(first) > 1));
    assert!(w.run(10 * SECOND, |w| !restarts(w, second).is_empty()));
    assert!(!w.run(118 * SECOND, |w| w.ups(second) > 1));
    assert!(w.run(5 * SECOND, |w| w.ups(second) > 1));
    assert!(w.run(5 * SECOND, |w| disputes(w).len() == 3));
    assert_eq!(disputes(&w).last().map(|(.., count)| *count), Some(3));
    assert_eq!((w.server.clients().count(), w.plane.peers.len()), (1, 1));
}

/// In an earlier version, the work that the client's budget had delayed stayed due forever, and the
/// engine never returned.
#[test]
fn a_replaced_session_leaves_no_delayed_work() {
    let (mut w, first) = first_of_two();
    for _ in 0..4 {
        let mut out = Outbox::new();
        let asked = w.clients[first].engine.say(w.now, &ControlMessage::PushRequest, &mut out);
        assert!(asked);
        w.perform_client(first, out);
    }
    w.run(SECOND / 5, |_| false);
    // The messages about the replacement are lost, so the client acknowledges none.
    w.clients[first].address = "192.0.2.99:9".parse().unwrap();
    let second = w.connect(client_config(Settings::default()), Impairment::default(), 2);
    assert!(w.run(SECOND, |w| w.is_up(second)));
    assert!(w.server.counters().delayed > 0, "{:?}", w.server.counters());
    w.run(10 * SECOND, |_| false);
    assert_eq!((w.server.clients().count(), w.plane.peers.len()), (1, 1));
}

#[test]
fn a_device_that_moved_is_not_taken_for_two() {
    let (mut w, first) = first_of_two();
    // Packets to the old address are lost.
    let moved = w.connect(client_config(Settings::default()), Impairment::default(), 2);
    w.clients[first].address = "192.0.2.99:9".parse().unwrap();
    assert!(w.run(10 * SECOND, |w| w.is_up(moved)));
    w.run(30 * SECOND, |_| false);
    assert_eq!(disputes(&w), []);
    assert_eq!(told(&w, "AUTH_FAILED"), 0);
    assert_eq!((w.ups(moved), w.server.clients().count()), (1, 1));
    assert!(restarts(&w, moved).is_empty());
}

#[test]
fn with_duplicate_cn_no_client_is_sent_away() {
    let config = ServerConfig { duplicate_cn: true, ..server_config(Settings::default()) };
    let mut w = World::new(config, 1);
    let a = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    let b = w.connect(client_config(Settings::default()), Impairment::default(), 2);
    assert!(w.run(10 * SECOND, |w| w.is_up(a) && w.is_up(b)));
    w.run(30 * SECOND, |_| false);
    assert_eq!((w.server.clients().count(), disputes(&w).len()), (2, 0));
    assert!(restarts(&w, a).is_empty() && restarts(&w, b).is_empty());
}

#[test]
fn a_check_has_a_session_of_its_own_and_leaves_the_other_alone() {
    let mut w = World::new(registry(), 1);
    let grant = auth::ClientParams {
        ipv4: Some("10.9.0.77".parse().unwrap()),
        iroutes: vec![net("10.5.0.0/16")],
        ..auth::ClientParams::default()
    };
    let first = join(&mut w, "bob", auth::Response::Accept(grant));
    let check = w.connect(ClientConfig { check: true, ..named("bob") }, Impairment::default(), 2);
    assert!(w.run(10 * SECOND, |w| w.is_up(check)), "{:?}", w.clients[check].events);
    assert_eq!(w.downs(), Vec::<&str>::new());
    assert_eq!(w.server.clients().count(), 2);
    let of_checks: Vec<bool> = w.server.clients().map(|info| info.check).collect();
    assert!(of_checks.contains(&true) && of_checks.contains(&false));
    assert_ne!(tunnel(&w, check).ipv4, tunnel(&w, first).ipv4);
    let info = w.server.clients().find(|info| !info.check).unwrap();
    let model = &w.plane.peers[&info.peer];
    assert!(model.routes.contains(&net("10.5.0.0/16")), "its network is still behind it");
    // A second check replaces the first, and the session stays.
    let again = w.connect(ClientConfig { check: true, ..named("bob") }, Impairment::default(), 3);
    assert!(w.run(10 * SECOND, |w| w.is_up(again)));
    assert_eq!(w.downs(), ["replaced by a newer check"]);
    // The server ends a check that does not end on its own.
    assert!(w.run(70 * SECOND, |w| w.server.clients().count() == 1));
    assert_eq!(w.ups(first), 1);
    assert!(restarts(&w, first).is_empty());
    assert!(w.server.leases().all(|(name, _)| name == "bob"), "a check's address is not kept");
}

/// `server ... nopool` without `ifconfig-pool`: addresses come only from `ifconfig-push`.
#[test]
fn without_a_pool_a_client_has_the_address_of_its_file_or_none() {
    let server = "10.9.0.1/24".parse().expect("a network");
    let mut config = server_config(Settings::default());
    config.authorize = true;
    config.duplicate_cn = true;
    config.network4 =
        Some(Network4 { server, pool: None, topology: Topology::Subnet, netmask: None });
    let mut w = World::new(config, 1);
    let ip = |text: &str| text.parse::<std::net::Ipv4Addr>().expect("an address");
    w.reply = auth::Response::Accept(auth::ClientParams {
        ifconfig4: Some((ip("10.9.0.77"), ip("255.255.255.0"))),
        ..auth::ClientParams::default()
    });
    let first = w.connect(client_config(Settings::default()), Impairment::default(), 1);
    assert!(w.run(5 * SECOND, |w| w.is_up(first)));
    w.reply = auth::Response::Accept(auth::ClientParams {
        warnings: ["of its file".into()].into(),
        ..auth::ClientParams::default()
    });
    let second = w.connect(client_config(Settings::default()), Impairment::default(), 2);
    assert!(w.run(5 * SECOND, |w| w.is_up(second)));
    let mut given: Vec<_> =
        w.server.clients().map(|info| (info.ipv4, info.ipv6.is_some())).collect();
    given.sort();
    assert_eq!(given, [(None, true), (Some(ip("10.9.0.77")), true)]);
    let warnings: Vec<&str> = w
        .events
        .iter()
        .filter_map(|event| match event {
            ServerEvent::Warning(Some(_), text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert_eq!(warnings.len(), 2, "{warnings:?}");
    assert!(warnings[0] == "of its file" && warnings[1].contains("no pool"), "{warnings:?}");
}

/// Like OpenVPN, the server starts counting with the packet for which it creates a client. Over UDP
/// that is the packet after the reset and its answer.
#[test]
fn the_control_channel_counts_in_a_sessions_traffic() {
    for transport in [Transport::Udp, Transport::Tcp] {
        let mut w = World::new(server_config(Settings::default()), 1);
        let mut config = client_config(Settings::default());
        config.remotes[0].target.transport = transport;
        let c = w.connect(config, Impairment::default(), 1);
        let mut resets = (0, 0);
        if transport == Transport::Udp {
            assert!(w.run(SECOND, |w| w.clients[c].control.1 > 0));
            resets = w.clients[c].control;
        }
        assert!(w.run(5 * SECOND, |w| w.is_up(c)));
        let peer = *w.plane.peers.keys().next().expect("a peer");
        let check = |w: &World| {
            let (rx, tx) = w.clients[c].control;
            let traffic = w.server.control_traffic(peer).expect("a client");
            assert_eq!((traffic.rx_bytes, traffic.tx_bytes), (rx - resets.0, tx - resets.1));
            assert!(traffic.rx_packets > 2 && traffic.tx_packets > 2, "{traffic:?}");
            traffic
        };
        let before = check(&w);
        w.to_server(Input::Notice(Notice::KeyNearLimit(peer, 0)));
        assert!(w.run(5 * SECOND, |w| w.rekeys(c) == 1));
        w.run(5 * SECOND, |_| false);
        let after = check(&w);
        assert!(after.rx_bytes > before.rx_bytes + 500 && after.tx_bytes > before.tx_bytes + 500);
        // A packet that is not authentic is not counted. Over a stream it ends the session.
        if transport == Transport::Udp {
            w.stranger(w.clients[c].address, &[0x38; 14]);
            assert_eq!(check(&w), after);
        }
        let mut out = Outbox::new();
        let (server, now) = (&mut w.server, w.now);
        assert!(server.kick(now, peer, Disconnect::Restart, "kicked", &mut out));
        w.perform_server(out);
        let last = w.events.iter().find_map(|event| match event {
            ServerEvent::ClientDown(_, _, counters) => Some(*counters),
            _ => None,
        });
        let last = last.expect("its end");
        assert!(last.tx_bytes > after.tx_bytes && last.rx_bytes >= after.rx_bytes, "{last:?}");
        assert_eq!(w.server.control_traffic(peer), None);
    }
}
