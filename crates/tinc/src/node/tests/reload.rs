//! Section 15.3: changes of the configuration while a node runs; section 8.5: the choice of connections.

use std::time::Duration;

use super::bench::{ACK, Bench, address, key, name};
use crate::base64;
use crate::config::{Address, Forwarding, HostConfig, ServerConfig};
use crate::node::{CloseReason, ConnectionId, Event, Output, Script};
use crate::subnet::Subnet;

fn subnet(text: &str) -> Subnet {
    text.parse().unwrap()
}

/// Returns the nodes that are dialled, with the connections.
fn dialled(bench: &mut Bench) -> Vec<(String, ConnectionId)> {
    bench.pump();
    let ids: Vec<ConnectionId> = bench
        .outputs()
        .into_iter()
        .filter_map(|output| match output {
            Output::Dial { connection, .. } => Some(connection),
            _ => None,
        })
        .collect();
    ids.into_iter().map(|id| (bench.node.dialled(id).unwrap().to_string(), id)).collect()
}

fn at(host: &str) -> Vec<Address> {
    vec![Address { host: host.to_owned(), port: None }]
}

/// A node whose host files of bob and carol have addresses.
fn with_addresses(connect_to: &[&str]) -> Bench {
    Bench::with(|config| {
        config.server.connect_to = connect_to.iter().map(|node| name(node)).collect();
        for (node, host) in [("bob", "198.51.100.2"), ("carol", "198.51.100.3")] {
            config.hosts.get_mut(&name(node)).unwrap().addresses = at(host);
        }
    })
}

fn configured(bench: &mut Bench, change: impl FnOnce(&mut ServerConfig)) {
    let mut server = bench.node.config.clone();
    change(&mut server);
    bench.node.configure(bench.now, &server);
}

#[test]
fn nodes_with_a_host_file_are_listed_before_they_are_reached() {
    let bench = Bench::new();
    assert!(bench.node.graph().nodes().all(|node| *node != name("bob")));
    let infos = bench.node.node_infos();
    let bob = infos.iter().find(|info| info.name == name("bob")).expect("bob has a host file");
    assert!(!bob.reachable);
}

#[test]
fn a_new_connect_to_begins_at_once_and_an_old_one_ends() {
    let mut bench = with_addresses(&["bob"]);
    bench.node.tick(bench.now);
    let first = dialled(&mut bench);
    assert_eq!(first.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["bob"]);
    configured(&mut bench, |server| server.connect_to = vec![name("bob"), name("carol")]);
    let second = dialled(&mut bench);
    assert_eq!(second.iter().map(|(node, _)| node.as_str()).collect::<Vec<_>>(), ["carol"]);
    assert!(bench.is_open(first[0].1), "bob's attempt goes on");
    configured(&mut bench, |server| server.connect_to = vec![name("carol")]);
    assert!(!bench.is_open(first[0].1) && bench.is_open(second[0].1));
    for _ in 0..100 {
        bench.wait_in_silence(1);
        assert!(dialled(&mut bench).iter().all(|(node, _)| node == "carol"));
    }
    // One that the other node opened remains.
    let mut bench = with_addresses(&["bob"]);
    let id = bench.join("bob");
    configured(&mut bench, |server| server.connect_to = Vec::new());
    assert!(bench.is_open(id));
}

#[test]
fn a_retry_does_not_wait_for_the_next_round() {
    let mut bench = with_addresses(&["bob"]);
    let fail = |bench: &mut Bench| {
        let dials = dialled(bench);
        dials.iter().for_each(|(_, id)| bench.node.closed(bench.now, *id));
        dials.len()
    };
    let mut rounds = 0;
    for _ in 0..60 {
        bench.wait_in_silence(1);
        rounds += fail(&mut bench);
    }
    assert!((3..=5).contains(&rounds), "{rounds}: the pauses are 5, 10, 15 and 20 s");
    bench.wait_in_silence(1);
    let extra = fail(&mut bench);
    bench.node.retry(bench.now);
    assert_eq!(fail(&mut bench), 1, "at once, after {extra}");
    let due = bench.node.outgoing[&name("bob")].due().unwrap();
    assert!(due.since(bench.now) <= Duration::from_secs(6), "and the pauses are short again");
}

#[test]
fn settings_that_may_change_are_taken_over() {
    let mut bench = Bench::new();
    let other = |seconds| Duration::from_secs(seconds);
    let wanted = ServerConfig {
        auto_connect: true,
        key_expire: other(1),
        learn_keys: false,
        legacy_nodes: false,
        local_discovery: false,
        max_connection_burst: 3,
        max_output_buffer_size: 4,
        max_timeout: other(5),
        mtu_info_interval: other(6),
        ping_interval: other(7),
        ping_timeout: other(8),
        udp_discovery: false,
        udp_discovery_interval: other(9),
        udp_discovery_keepalive_interval: other(10),
        udp_discovery_timeout: other(11),
        udp_info_interval: other(12),
        own: HostConfig { weight: Some(13), ..bench.node.config.own.clone() },
        connect_to: vec![name("bob")],
        ..bench.node.config.clone()
    };
    bench.node.configure(bench.now, &wanted);
    assert_eq!(bench.node.config, wanted);
    // The rest needs a restart.
    let other = ServerConfig {
        mode: crate::config::Mode::Hub,
        forwarding: Forwarding::Off,
        strict_subnets: true,
        tunnel_server: true,
        own: HostConfig { tcp_only: true, ..wanted.own.clone() },
        ..wanted.clone()
    };
    bench.node.configure(bench.now, &other);
    assert_eq!(bench.node.config, wanted);
}

/// In switch mode the node announces stations by itself, and in a mesh the driver announces subnets.
#[test]
fn a_reload_keeps_subnets_that_are_in_no_file() {
    let mut bench = Bench::new();
    bench.join("bob");
    bench.node.add_subnet(bench.now, subnet("2:0:0:0:0:1"));
    bench.pump();
    bench.forget();
    let hosts = bench.node.hosts.clone();
    bench.node.reload(bench.now, hosts.clone(), &[subnet("10.1.0.0/16")]);
    bench.pump();
    assert_eq!(bench.take("bob"), [] as [&str; 0]);
    bench.node.reload(bench.now, hosts.clone(), &[]);
    bench.node.reload(bench.now, hosts, &[]);
    bench.pump();
    assert_eq!(bench.take("bob"), ["11 R alice 10.1.0.0/16"]);
    assert!(bench.node.subnets().contains(&name("alice"), &subnet("2:0:0:0:0:1")));
}

/// Section 7.4: with StrictSubnets the host files' subnets count, also those of a changed file.
#[test]
fn a_reload_replaces_the_subnets_of_host_files_if_they_alone_count() {
    for strict in [true, false] {
        let mut bench = Bench::with(|config| config.server.strict_subnets = strict);
        bench.join("bob");
        bench.edges("bob", &[("bob", "dave")]);
        let mut hosts = bench.node.hosts.clone();
        hosts.get_mut(&name("dave")).unwrap().subnets = vec![subnet("10.55.0.0/16")];
        hosts.remove(&name("erin"));
        bench.node.reload(bench.now, hosts, &[subnet("10.1.0.0/16")]);
        bench.pump();
        let has = |owner: &str, it: &str| bench.node.subnets().contains(&name(owner), &subnet(it));
        assert_eq!(has("dave", "10.55.0.0/16"), strict);
        assert!(!has("dave", "10.5.0.0/16") && !has("erin", "10.6.0.0/16"));
        assert_eq!(has("carol", "10.4.0.0/16"), strict, "an unchanged file");
        let scripts = bench.outputs().into_iter().filter_map(|output| match output {
            Output::Script(Script::Subnet { up, subnet, .. }) => Some((up, subnet.to_string())),
            _ => None,
        });
        let expected = [(false, "10.5.0.0/16".to_owned()), (true, "10.55.0.0/16".to_owned())];
        assert_eq!(scripts.collect::<Vec<_>>(), if strict { &expected[..] } else { &[] });
    }
}

/// Section 15.3: a changed file ends the connection, and so does one that vanished; an unchanged one does not.
#[test]
fn each_changed_host_file_ends_its_connection() {
    let changes: [fn(&mut HostConfig); 4] = [
        |_| {},
        |host| host.addresses = at("198.51.100.9"),
        |host| host.public_key = Some(key("mallory").public()),
        |host| host.subnets.clear(),
    ];
    for (number, change) in changes.into_iter().enumerate() {
        let closes = number > 0;
        let mut bench = Bench::new();
        let (id, other) = (bench.join("bob"), bench.join("carol"));
        let mut hosts = bench.node.hosts.clone();
        change(hosts.get_mut(&name("bob")).unwrap());
        bench.node.reload(bench.now, hosts, &[subnet("10.1.0.0/16")]);
        bench.pump();
        assert_eq!(bench.is_open(id), !closes);
        assert!(bench.is_open(other));
        assert_eq!(bench.close_reason(), closes.then_some(CloseReason::HostChanged));
    }
}

/// Section 14.4: the new node may connect as soon as its host file exists.
#[test]
fn an_added_host_may_connect() {
    let mut bench = Bench::new();
    let local = "192.0.2.1:655".parse().unwrap();
    let refused = |bench: &mut Bench| {
        let id = bench.node.accept(bench.now, address("newton"), local).unwrap();
        bench.node.receive(bench.now, id, b"0 newton 17.7\n");
        bench.pump();
        !bench.is_open(id)
    };
    assert!(refused(&mut bench));
    let host = HostConfig { public_key: Some(key("newton").public()), ..HostConfig::default() };
    bench.node.add_host(bench.now, &name("newton"), host.clone());
    let id = bench.join("newton");
    bench.node.add_host(bench.now, &name("newton"), host.clone());
    assert!(bench.is_open(id), "the same key");
    let other = HostConfig { public_key: Some(key("mallory").public()), ..host.clone() };
    bench.node.add_host(bench.now, &name("newton"), other);
    assert!(!bench.is_open(id), "a key that came over the net is replaced");
    bench.node.add_host(bench.now, &name("alice"), host);
    assert!(bench.node.host(&name("alice")).is_none());
}

/// Section 8.5, of a node that joined by an invitation: it asks the nodes that it chooses for their keys, and then connects.
#[test]
fn a_chosen_node_without_a_key_is_asked_for_it_first() {
    for learns in [true, false] {
        let mut bench = Bench::with(|config| {
            config.server.learn_keys = learns;
            config.server.auto_connect = true;
            config.hosts.retain(|node, _| *node == name("bob"));
        });
        bench.join("bob");
        bench.edges("bob", &[("bob", "dave")]);
        bench.wait_in_silence(6);
        assert!(dialled(&mut bench).is_empty());
        let asked = bench.take("bob").contains(&"15 alice dave 19".to_owned());
        assert_eq!(asked, learns);
        bench.say("bob", &format!("15 dave alice 20 {}", key("dave").public()));
        bench.wait_in_silence(6);
        let chosen: Vec<String> = dialled(&mut bench).into_iter().map(|(node, _)| node).collect();
        let expected: &[&str] = if learns { &["dave"] } else { &[] };
        assert_eq!(chosen, expected);
    }
}

/// A member can announce any address for a node: AutoConnect must not connect to this machine.
#[test]
fn announced_addresses_of_this_machine_are_not_dialled() {
    let mut bench = Bench::with(|config| {
        config.server.auto_connect = true;
        config.server.learn_keys = false;
        config.hosts.retain(|node, _| *node == name("bob") || *node == name("dave"));
    });
    bench.join("bob");
    let hosts = ["127.0.0.1", "0.0.0.0", "255.255.255.255", "224.0.0.1", "::1", "198.51.100.4"];
    for (number, host) in hosts.into_iter().enumerate() {
        bench.say("bob", &format!("12 a{number} p{number} dave {host} 655 700000c 5"));
        bench.say("bob", &format!("12 b{number} dave p{number} 192.0.2.98 655 700000c 5"));
    }
    bench.edges("bob", &[("bob", "p0")]);
    let mut addresses = Vec::new();
    for _ in 0..60 {
        bench.wait(1);
        for output in bench.outputs() {
            if let Output::Dial { connection, address } = output {
                addresses.push(address.to_string());
                bench.node.closed(bench.now, connection);
                bench.pump();
            }
        }
    }
    assert!(addresses.len() >= 3, "{addresses:?}");
    assert!(addresses.iter().all(|address| address == "198.51.100.4:655"), "{addresses:?}");
}

#[test]
fn a_node_whose_key_cannot_be_read_is_not_chosen() {
    let mut bench = Bench::with(|config| {
        config.server.auto_connect = true;
        config.hosts.retain(|node, _| *node == name("bob"));
        let host = HostConfig { unusable_key: true, ..HostConfig::default() };
        config.hosts.insert(name("dave"), host);
    });
    bench.join("bob");
    bench.edges("bob", &[("bob", "dave"), ("bob", "carol")]);
    bench.wait_in_silence(30);
    let asked = bench.take("bob");
    assert!(asked.contains(&"15 alice carol 19".to_owned()), "{asked:?}");
    assert!(!asked.contains(&"15 alice dave 19".to_owned()), "{asked:?}");
}

/// Section 8.5: tinc 1.0 cannot be connected to.
#[test]
fn an_old_node_is_not_chosen() {
    let mut bench = Bench::with(|config| config.server.auto_connect = true);
    bench.join("bob");
    bench.say("bob", "12 1 bob dave 192.0.2.99 655 c 5");
    bench.say("bob", "12 2 dave bob 192.0.2.98 655 c 5");
    bench.wait_in_silence(30);
    assert!(dialled(&mut bench).is_empty());
    assert!(!bench.take("bob").iter().any(|line| line.starts_with("15 alice dave")));
}

#[test]
fn without_auto_connect_no_more_connections_are_chosen() {
    let mut bench = Bench::with(|config| {
        config.server.auto_connect = true;
        config.hosts.get_mut(&name("bob")).unwrap().addresses = at("198.51.100.2");
    });
    bench.node.tick(bench.now);
    bench.node.tick(bench.node.deadline());
    let dials = dialled(&mut bench);
    assert_eq!(dials.len(), 1);
    configured(&mut bench, |server| server.auto_connect = false);
    bench.node.closed(bench.now, dials[0].1);
    bench.wait_in_silence(60);
    assert!(dialled(&mut bench).is_empty());
}

/// Section 6.6: with Forwarding off, a datagram in a message is passed on as it came.
#[test]
fn datagrams_in_messages_are_relayed_if_packets_are_forwarded() {
    for forwarding in [Forwarding::Internal, Forwarding::Off, Forwarding::Kernel] {
        let mut bench = Bench::with(|config| config.server.forwarding = forwarding);
        bench.join("bob");
        bench.join("carol");
        let line = format!("15 bob carol 21 {}", base64::encode(&[9; 100]));
        bench.forget();
        bench.say("bob", &line);
        let verbatim = bench.take("carol").contains(&line);
        assert_eq!(verbatim, forwarding != Forwarding::Internal);
        assert_eq!(bench.take_packets("carol").len(), usize::from(!verbatim));
    }
}

/// Section 5.4: IndirectData of the node itself, and of the neighbour.
#[test]
fn indirect_data_is_an_option_of_the_edge() {
    for (own, theirs) in [(false, false), (true, false), (false, true)] {
        let mut bench = Bench::with(|config| {
            config.server.own.indirect_data = own;
            config.hosts.get_mut(&name("bob")).unwrap().indirect_data = theirs;
        });
        bench.handshake("bob");
        let expected = if own || theirs { "4 655 0 700000d" } else { "4 655 0 700000c" };
        assert_eq!(bench.take("bob"), [expected]);
    }
}

/// A connection through a command has no address of its own.
#[test]
fn a_connection_without_a_local_address_has_none_in_its_edge() {
    for (local, expected) in [("192.0.2.1:7", Some("192.0.2.1:655")), ("0.0.0.0:0", None)] {
        let mut bench = with_addresses(&["bob"]);
        bench.node.tick(bench.now);
        let (_, id) = dialled(&mut bench).remove(0);
        bench.node.connected(bench.now, id, local.parse().unwrap());
        bench.pump();
        bench.finish_handshake("bob", id);
        bench.say("bob", ACK);
        let edge = bench.node.graph().edge(&name("alice"), &name("bob")).expect("an edge");
        let local = edge.local.as_ref().and_then(|local| local.socket());
        assert_eq!(local, expected.map(|local| local.parse().unwrap()));
        assert!(bench.events().iter().any(|event| matches!(event, Event::Connected { .. })));
    }
}
