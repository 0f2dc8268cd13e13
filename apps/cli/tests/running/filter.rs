//! Tests of a managed server that filters its clients' traffic.

use std::fs;

use crate::world::{Server, answers, until};

const RULES: &str = "table inet vpn {
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        ip saddr @group:staff counter accept
        ip saddr @client:nobody accept
    }
}
";

fn write(server: &Server, rules: &str) {
    fs::write(server.dir.path().join("rules.nft"), rules).unwrap();
}

#[test]
fn groups_decide_who_may_reach_what_and_change_at_once() {
    adit_testbed::needs_root!();
    let mut server = Server::new("--filter rules.nft");
    write(&server, RULES);
    let a = server.client("alice", "--ip 10.73.0.5 --group staff");
    let b = server.client("bob", "--ip 10.73.0.6");
    let running = server.run();
    let _clients = [server.connect(&a, "alice"), server.connect(&b, "bob")];
    server.await_connected(&["alice", "bob"]);
    assert!(running.log().contains("@client:nobody"), "{}", running.log());
    until("staff reach the server", || answers(&a, "10.73.0.1"));
    // Clients are isolated, except for packets that a rule accepts, and the kernel allows these
    // too.
    assert!(answers(&a, "10.73.0.6"));
    assert!(!answers(&b, "10.73.0.5") && !answers(&b, "10.73.0.1"));
    assert!(server.rules().contains("clients are kept apart"));

    let (shown, said) = server.adit("filter show");
    assert!(shown && said.contains("# @group:staff: 10.73.0.5/32"), "{said}");
    assert!(said.contains("# @client:nobody: nobody\n") && !said.contains("packets 0"), "{said}");
    let sessions = server.sessions();
    let (moved, said) = server.adit("server client group bob staff");
    assert!(moved && said == "bob is in: staff\n", "{said}");
    assert!(answers(&b, "10.73.0.1") && answers(&b, "10.73.0.5"));
    assert!(server.adit("server client list").1.contains("staff"));
    assert!(server.adit("server client group alice").0);
    assert!(!answers(&a, "10.73.0.1"));
    assert_eq!(server.sessions(), sessions, "no client lost the tunnel");
}

#[test]
fn other_rules_take_effect_as_a_whole_or_not_at_all() {
    adit_testbed::needs_root!();
    let mut server = Server::new("--filter rules.nft");
    write(&server, RULES);
    let a = server.client("alice", "--group staff");
    let running = server.run();
    let _client = server.connect(&a, "alice");
    server.await_connected(&["alice"]);
    until("staff reach the server", || answers(&a, "10.73.0.1"));
    let sessions = server.sessions();
    write(&server, &RULES.replace("counter accept", "frobnicate"));
    for verb in ["filter reload", "filter reload rules.nft", "reload"] {
        let (reloaded, said) = server.adit(verb);
        assert!(!reloaded && said.contains("rules.nft:5:31:"), "{verb}: {said}");
        assert!(answers(&a, "10.73.0.1"), "{verb}");
    }
    write(&server, &RULES.replace("@group:staff counter accept", "@group:staff counter drop"));
    let (reloaded, said) = server.adit("filter reload");
    assert!(reloaded && said.contains("rules.nft"), "{said}");
    assert!(!answers(&a, "10.73.0.1"));
    // Clients and rules are independent, so a change of clients does not affect these rules.
    write(&server, RULES);
    assert!(server.adit("server client group alice staff ops").0);
    assert!(server.adit("server client add carol --ip 10.73.0.99 -o carol.ovpn").0);
    assert!(!answers(&a, "10.73.0.1"));
    assert!(server.adit("reload").0, "{}", running.log());
    assert!(answers(&a, "10.73.0.1"));
    assert_eq!(server.sessions(), sessions, "no tunnel dropped");
}

#[test]
fn elements_change_while_it_runs_and_connections_can_be_ended() {
    let mut server = Server::new("--filter rules.nft");
    let rules = RULES.replace(
        "    chain forward",
        "    set open { type ipv4_addr; flags interval, timeout; }\n    chain forward",
    );
    let rules = rules.replace("ip saddr @client:nobody", "ip saddr @open");
    write(&server, &rules);
    let a = server.client("alice", "--ip 10.73.0.5");
    let _running = server.run();
    let _client = server.connect(&a, "alice");
    server.await_connected(&["alice"]);
    // Until the client's routes are set up, its pings take another path.
    until("the rules keep alice out", || !answers(&a, "10.73.0.1"));
    let (added, said) = server.adit("filter element add open 10.73.0.4/31 timeout 1h");
    assert!(added && said.ends_with(": 1 element added or renewed\n"), "{said}");
    until("the element lets alice in", || answers(&a, "10.73.0.1"));
    let (_, said) = server.adit("filter show");
    assert!(said.contains("10.73.0.4/31 timeout 1h expires 59m"), "{said}");
    assert!(said.contains("# elements added to sets: 1 of 262144"), "{said}");
    assert!(server.adit("filter reload").0);
    assert!(answers(&a, "10.73.0.1"), "a reload keeps it");
    let (ended, said) = server.adit("filter flush --client alice");
    let ended_some = said.split(": ").nth(1).is_some_and(|count| !count.starts_with('0'));
    assert!(ended && ended_some && said.contains("ended"), "{said}");
    let (ended, said) = server.adit("filter flush --client mallory");
    assert!(!ended && said.contains("\"mallory\" has had no address"), "{said}");
    let (ended, said) = server.adit("filter flush --address 10.99.0.0/16");
    assert!(ended && said.ends_with(": 0 connections ended\n"), "{said}");
    let (ended, said) = server.adit("filter flush --address nonsense");
    assert!(!ended && said.contains("is no address"), "{said}");
    assert!(server.adit("filter element del inet vpn open { 10.73.0.4/31 }").0);
    assert!(!answers(&a, "10.73.0.1"), "an open connection ends with its right");
    for (words, why) in [
        ("del open 10.73.0.4/31", "set inet vpn open not deleted: 10.73.0.4/31: there is no such"),
        ("add opem 10.0.0.1", "did you mean `open`?"),
        ("add open 10.0.0.1 timeout soon", "expected a duration"),
    ] {
        let (done, said) = server.adit(&format!("filter element {words}"));
        assert!(!done && said.contains(why), "{words}: {said}");
    }
}

#[test]
fn a_server_does_not_start_with_rules_that_it_does_not_understand() {
    adit_testbed::needs_root!();
    let server = Server::new("--filter rules.nft");
    let (started, said) = server.adit("server run");
    assert!(!started && said.contains("cannot read the rules"), "{said}");
    write(&server, &RULES.replace("hook forward", "hook input"));
    let (started, said) = server.adit("server run");
    assert!(!started && said.contains("rules.nft:3:"), "{said}");
    assert_eq!(server.rules(), "", "and leaves the machine as it was");
    let (shown, said) = server.adit("filter show");
    assert!(!shown && said.contains("nothing with a filter runs here"), "{said}");
}
