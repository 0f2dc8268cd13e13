//! Sections 6.1 to 6.5 and 7: what is passed on, answered, stored and refused.

use super::bench::{ACK, Bench, address, name};
use crate::node::{Event, Excess, Output, Script};

/// Has bob send a line. Returns the answers to bob, and what carol gets.
fn flood(bench: &mut Bench, line: &str) -> (Vec<String>, Vec<String>) {
    bench.say("bob", line);
    (bench.take("bob"), bench.take("carol"))
}

fn two_neighbours() -> Bench {
    let mut bench = Bench::new();
    bench.join("bob");
    bench.join("carol");
    bench.forget();
    bench
}

fn none() -> (Vec<String>, Vec<String>) {
    (Vec::new(), Vec::new())
}

fn passed(line: &str) -> (Vec<String>, Vec<String>) {
    (Vec::new(), vec![line.to_owned()])
}

fn answered(line: &str) -> (Vec<String>, Vec<String>) {
    (vec![line.to_owned()], Vec::new())
}

/// Section 7.1: lines are passed on once, verbatim, to all but the sender.
#[test]
fn a_line_is_passed_on_once_as_it_came() {
    let mut bench = two_neighbours();
    let line = "12 1f dave erin somewhere http 700000c 5 fe80::1%eth0 655 more words";
    assert_eq!(flood(&mut bench, line), passed(&line.replace("1f", "R")));
    assert_eq!(flood(&mut bench, line), none(), "seen");
    assert_eq!(flood(&mut bench, &line.replace("1f", "20")), none(), "equal values");
    bench.say_bytes("bob", b"10 1 dave 10.9.0.0/16 and more");
    assert_eq!(bench.take("carol"), ["10 R dave 10.9.0.0/16 and more"], "with a newline");
}

/// Section 6.1.
#[test]
fn subnets_are_stored_answered_and_forgotten() {
    let mut bench = two_neighbours();
    assert_eq!(flood(&mut bench, "10 1 dave 10.9.0.0/16"), passed("10 R dave 10.9.0.0/16"));
    assert_eq!(flood(&mut bench, "10 2 dave 10.9.0.0/16"), none(), "known");
    assert!(bench.node.subnets().contains(&name("dave"), &"10.9.0.0/16".parse().unwrap()));
    assert_eq!(flood(&mut bench, "11 1 erin 10.9.0.0/16"), none(), "unknown node");
    assert_eq!(flood(&mut bench, "11 2 dave 10.9.0.0/16#3"), none(), "unknown subnet");
    assert_eq!(flood(&mut bench, "11 3 dave 10.9.0.0/16"), passed("11 R dave 10.9.0.0/16"));
    assert!(!bench.node.subnets().contains(&name("dave"), &"10.9.0.0/16".parse().unwrap()));
    assert_eq!(flood(&mut bench, "10 3 alice 10.8.0.0/16"), answered("11 R alice 10.8.0.0/16"));
    assert_eq!(flood(&mut bench, "10 4 alice 10.1.0.0/16"), none(), "our own");
    assert_eq!(flood(&mut bench, "11 4 alice 10.1.0.0/16"), answered("10 R alice 10.1.0.0/16"));
    assert_eq!(flood(&mut bench, "11 5 alice 10.2.0.0/16"), none());
}

/// Section 6.3.
#[test]
fn edges_are_stored_answered_and_updated() {
    let mut bench = two_neighbours();
    let edge = |n: u32, rest: &str| format!("12 {n} {rest}");
    let new = "dave erin 192.0.2.9 655 700000c 5";
    assert_eq!(flood(&mut bench, &edge(1, new)), passed(&format!("12 R {new}")));
    let heavier = "dave erin 192.0.2.9 655 700000c 6";
    assert_eq!(flood(&mut bench, &edge(2, heavier)), passed(&format!("12 R {heavier}")));
    assert_eq!(flood(&mut bench, &edge(3, heavier)), none());
    let own = format!("alice bob {} 655 700000c 5 192.0.2.1 655", address("bob").ip());
    assert_eq!(flood(&mut bench, &edge(4, &own)), none(), "our own edge comes back");
    let other = own.replace("c 5", "c 9");
    assert_eq!(flood(&mut bench, &edge(5, &other)), answered(&format!("12 R {own}")));
    assert_eq!(
        flood(&mut bench, &edge(6, "alice dave 192.0.2.9 655 0 1")),
        answered("13 R alice dave")
    );
}

/// Section 6.4.
#[test]
fn deleted_edges_are_passed_on_or_answered() {
    let mut bench = two_neighbours();
    bench.edges("bob", &[("bob", "dave")]);
    assert!(bench.info("dave").reachable);
    assert_eq!(flood(&mut bench, "13 1 nobody dave"), none());
    assert_eq!(flood(&mut bench, "13 2 bob erin"), none());
    assert_eq!(flood(&mut bench, "13 3 bob dave"), passed("13 R bob dave"));
    assert!(!bench.info("dave").reachable);
    let own = format!("12 R alice bob {} 655 700000c 5 192.0.2.1 655", address("bob").ip());
    assert_eq!(flood(&mut bench, "13 4 alice bob"), answered(&own));
}

/// Section 6.4: when a neighbour's other edges are gone, its edge to this node is deleted as well.
#[test]
fn the_edge_of_an_unreachable_node_to_this_one_is_deleted() {
    let mut bench = two_neighbours();
    // dave says that it is connected with alice; alice knows nothing of it, so only bob makes it reachable.
    bench.edges("bob", &[("bob", "dave")]);
    bench.say("bob", "12 1 dave alice 192.0.2.1 655 700000c 5");
    bench.forget();
    let (_, carol) = flood(&mut bench, "13 2 dave bob");
    assert_eq!(carol, ["13 R dave bob", "13 R dave alice"]);
}

/// Section 6.5: KEY_CHANGED is only passed on.
#[test]
fn key_changes_are_passed_on() {
    let mut bench = two_neighbours();
    assert_eq!(flood(&mut bench, "14 1 dave"), passed("14 R dave"));
    assert!(bench.node.graph().nodes().all(|node| node.as_str() != "dave"));
}

/// Section 7.5: one answer a second per contradiction and neighbour.
#[test]
fn contradictions_are_not_answered_at_line_rate() {
    let mut bench = two_neighbours();
    for number in 0..50 {
        bench.say("bob", &format!("13 {number:x} alice bob"));
    }
    assert_eq!(bench.take("bob").len(), 1);
    assert_eq!(bench.node.counters().contradictions, 50);
    bench.wait(1);
    bench.take("bob");
    bench.say("bob", "13 aaaa alice bob");
    assert_eq!(bench.take("bob").len(), 1);
}

/// Section 7.3: a second node with this name.
#[test]
fn another_node_with_this_name_is_noticed() {
    let mut bench = two_neighbours();
    for number in 0..101 {
        bench.say("bob", &format!("13 {number:x} alice bob"));
        bench.say("bob", &format!("12 {number:x} alice dave 192.0.2.9 655 0 1"));
    }
    bench.wait(6);
    assert!(bench.events().contains(&Event::NameConflict));
    assert!(bench.node.name_conflict_until().is_some());
    bench.forget();
    bench.say("bob", "13 aaaa alice bob");
    assert!(bench.take("bob").is_empty(), "no answers for a while");
    bench.wait(11);
    assert!(bench.node.name_conflict_until().is_none());
    // What other nodes were made to forget in the meantime.
    let lines = bench.take("carol");
    let own = ["10 R alice 10.1.0.0/16", "12 R alice bob ", "12 R alice carol "];
    for line in own {
        assert!(lines.iter().any(|it| it.starts_with(line)), "{line}: {lines:?}");
    }
}

/// Section 6.1: with StrictSubnets only the host files' subnets count, but all are passed on.
#[test]
fn strict_subnets_are_those_of_the_host_files() {
    let mut bench = Bench::with(|config| config.server.strict_subnets = true);
    bench.join("bob");
    bench.join("carol");
    bench.forget();
    let count = bench.node.subnets().len();
    assert_eq!(flood(&mut bench, "10 1 dave 10.99.0.0/16"), passed("10 R dave 10.99.0.0/16"));
    assert_eq!(flood(&mut bench, "10 2 dave 10.5.0.0/16"), none(), "in its host file");
    assert_eq!(flood(&mut bench, "11 3 dave 10.5.0.0/16"), passed("11 R dave 10.5.0.0/16"));
    assert_eq!(flood(&mut bench, "11 4 dave 10.98.0.0/16"), passed("11 R dave 10.98.0.0/16"));
    assert_eq!(bench.node.subnets().len(), count);
}

/// Sections 6.1, 6.3 and 7.4: a tunnel server keeps its neighbours apart.
#[test]
fn a_tunnel_server_passes_nothing_on() {
    let mut bench = Bench::with(|config| {
        config.server.tunnel_server = true;
        config.server.strict_subnets = true;
    });
    bench.join("bob");
    bench.handshake("carol");
    bench.forget();
    bench.say("carol", ACK);
    let lines = bench.take("carol");
    let edge = format!("12 R alice carol {} 655 700000c 5 192.0.2.1 655", address("carol").ip());
    assert_eq!(lines, ["10 R alice 10.1.0.0/16", &edge], "only its own subnets");
    bench.edges("carol", &[("alice", "carol")]);
    assert!(bench.node.graph().route(&name("carol")).is_some());
    for line in [
        "12 1 bob dave 192.0.2.9 655 700000c 1",
        "12 2 dave erin 192.0.2.9 655 700000c 1",
        "13 3 dave erin",
        "10 4 bob 10.77.0.0/16",
        "10 5 dave 10.5.0.0/16",
        "11 6 bob 10.3.0.0/16",
        "14 7 bob",
        "15 bob carol 19",
        "16 bob carol AAAA -1 -1 -1 0",
    ] {
        let (_, carol) = flood(&mut bench, line);
        assert!(carol.is_empty(), "{line}");
    }
    assert!(
        bench.node.graph().edge(&name("bob"), &name("dave")).is_some(),
        "the sender's own edge"
    );
    assert!(bench.node.graph().edge(&name("dave"), &name("erin")).is_none());
    assert!(!bench.node.subnets().contains(&name("bob"), &"10.77.0.0/16".parse().unwrap()));
}

/// Section 15.5: the scripts for nodes and their subnets.
#[test]
fn scripts_run_when_nodes_and_subnets_come_and_go() {
    let mut bench = two_neighbours();
    bench.say("bob", "10 1 dave 10.9.0.0/16");
    assert!(!bench.outputs().iter().any(|output| matches!(output, Output::Script(_))));
    let nodes = |bench: &mut Bench| -> Vec<String> {
        let scripts = bench.outputs().into_iter().filter_map(|output| match output {
            Output::Script(Script::Host { up, node, .. }) => Some(format!("{node} {up}")),
            Output::Script(Script::Subnet { up, node, subnet, .. }) => {
                Some(format!("{node} {subnet} {up}"))
            }
            _ => None,
        });
        scripts.collect()
    };
    bench.say("bob", "12 2 bob dave 192.0.2.9 655 700000c 5");
    bench.say("bob", "12 3 dave bob 192.0.2.9 655 700000c 5");
    assert_eq!(nodes(&mut bench), ["dave true", "dave 10.9.0.0/16 true"]);
    bench.say("bob", "10 4 dave 10.10.0.0/16");
    bench.say("bob", "11 5 dave 10.9.0.0/16");
    assert_eq!(nodes(&mut bench), ["dave 10.10.0.0/16 true", "dave 10.9.0.0/16 false"]);
    bench.say("bob", "13 6 bob dave");
    assert_eq!(nodes(&mut bench), ["dave false", "dave 10.10.0.0/16 false"]);
}

/// The topology of one neighbour is bounded, and it is named.
#[test]
fn a_second_node_with_a_known_identifier_is_refused_and_named() {
    let mut bench = two_neighbours();
    let (known, refused) = (name("n3e7ec863c4b1"), name("n79f62a3e7246"));
    assert_eq!(known.id(), refused.id());
    bench.say("bob", "12 1 n3e7ec863c4b1 bob 192.0.2.9 655 0 1");
    bench.say("bob", "12 2 n79f62a3e7246 bob 192.0.2.9 655 0 1");
    bench.say("bob", "10 3 n79f62a3e7246 10.44.0.0/16");
    let graph = bench.node.graph();
    assert!(graph.contains(&known) && !graph.contains(&refused));
    assert!(bench.events().contains(&Event::IdCollision { known, refused }));
}

#[test]
fn a_flood_of_edges_is_bounded_and_attributed() {
    let mut bench = two_neighbours();
    bench.node.limits.nodes = crate::node::limits::Share::new(8);
    for number in 0..20 {
        bench.say("bob", &format!("12 {number:x} n{number} bob 192.0.2.9 655 0 1"));
    }
    let known = bench.node.graph().nodes().filter(|node| node.as_str().starts_with('n')).count();
    assert_eq!(known, 8);
    let excess = Event::Excess { node: name("bob"), excess: Excess::Nodes };
    assert_eq!(bench.events().iter().filter(|event| **event == excess).count(), 1);
    assert_eq!(bench.info("bob").dropped_announcements, 12);
    assert_eq!(bench.take("carol").len(), 8, "and not passed on");
    bench.say("carol", "12 1 dave carol 192.0.2.9 655 0 1");
    assert!(bench.node.graph().contains(&name("dave")), "others have their own share");
    bench.forget();
    bench.node.limits.edges = crate::node::limits::Share::new(0);
    bench.node.limits.subnets = crate::node::limits::Share::new(0);
    assert_eq!(flood(&mut bench, "12 77 n1 n2 192.0.2.9 655 0 1"), none());
    assert_eq!(flood(&mut bench, "10 78 n1 10.44.0.0/16"), none());
    assert_eq!(bench.info("bob").dropped_announcements, 14);
}

/// A purge forgets what is not reachable, and what it held of it.
#[test]
fn a_purge_forgets_unreachable_nodes() {
    let mut bench = two_neighbours();
    bench.say("bob", "12 1 dave erin 192.0.2.9 655 0 1");
    bench.say("bob", "10 2 dave 10.9.0.0/16");
    bench.forget();
    bench.node.purge(bench.now);
    bench.pump();
    assert_eq!(bench.take("carol"), ["11 R dave 10.9.0.0/16", "13 R dave erin"]);
    assert!(
        !bench.node.graph().contains(&name("dave")) && !bench.node.graph().contains(&name("erin"))
    );
    assert!(!bench.node.by_id.contains_key(&name("dave").id()));
}
