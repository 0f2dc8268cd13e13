//! The rule files of the documentation behave as documented, also on a bridge with IPv6.

use std::sync::Arc;

use adit_filter::firewall::{Limits, Peers};
use adit_filter::packet::Layer;
use adit_filter::{Filter, Firewall, FrameContext, FrameVerdict, IfName, Nanos, lang};
use adit_wire::VnetHeader;

const FILTER: &str = include_str!("../../../docs/filter.md");
const EXAMPLE: &str = include_str!("../../../packaging/examples/simple-fw.nft");

/// Returns the rule files in a page.
fn examples(page: &str) -> Vec<&str> {
    let blocks = page.split("```nft\n").skip(1);
    blocks.map(|block| block.split("```").next().unwrap()).collect()
}

fn firewall(rules: &str) -> Arc<Firewall> {
    let none = &mut |_: &str| Err(std::io::ErrorKind::NotFound.into());
    let ruleset = lang::parse_hooked("example", rules, none).unwrap_or_else(|e| panic!("{e}"));
    Firewall::new(Filter::compile(ruleset).unwrap(), Limits::default(), [7; 16])
}

/// Evaluates packets in order and checks the results. Each packet has an origin (`lan` or `wan`), a description, and an
/// expected result: `passes`, `dropped` or `rejected`.
fn evaluated(rules: &str, packets: &[(&str, &str, &str)]) {
    let firewall = firewall(rules);
    let mut worker = firewall.worker();
    for (from, what, expected) in packets {
        let described = lang::describe(what).unwrap_or_else(|e| panic!("{what}: {e}"));
        assert_eq!(described.layer, Layer::Ethernet);
        let (lan, wan) = (IfName::new("lan0"), IfName::new("wan0"));
        let (iif, oif) = if *from == "lan" { (lan, wan) } else { (wan, lan) };
        let (vlan, vnet) = (None, VnetHeader::default());
        let place = FrameContext {
            layer: Layer::Ethernet,
            vlan,
            vnet,
            iif,
            oif,
            peers: Peers::default(),
            zone: 0,
        };
        let mut burst = worker.burst(Nanos(1_000_000_000));
        let became = match burst.evaluate(&described.bytes, &place) {
            FrameVerdict::Pass => "passes",
            FrameVerdict::Reply(_) => "rejected",
            _ => "dropped",
        };
        assert_eq!(became, *expected, "{from}: {what}\n{rules}");
    }
}

/// The packets that IPv6 needs, in both directions, before any other packet can be delivered.
const NEIGHBOURS: [(&str, &str, &str); 5] = [
    ("lan", "icmpv6 fe80::1 > ff02::1:ff00:2 nd-neighbor-solicit", "passes"),
    ("wan", "icmpv6 fe80::2 > fe80::1 nd-neighbor-advert", "passes"),
    ("lan", "icmpv6 fe80::1 > ff02::2 nd-router-solicit", "passes"),
    ("wan", "icmpv6 fe80::2 > ff02::1 nd-router-advert", "passes"),
    ("lan", "arp who-has 10.0.0.10 tell 10.0.0.1", "passes"),
];

#[test]
fn the_first_example_lets_through_what_it_names() {
    let rules = examples(FILTER)[0];
    evaluated(rules, &NEIGHBOURS);
    evaluated(
        rules,
        &[
            ("lan", "icmp 10.0.0.1 > 10.0.0.2 echo-request", "passes"),
            ("wan", "icmpv6 fd00::2 > fd00::1 echo-reply", "passes"),
            ("lan", "tcp 10.0.0.1:4000 > 10.0.0.2:7070 syn", "passes"),
            ("wan", "tcp [fd00::2]:7070 > [fd00::1]:4000 syn,ack", "passes"),
            ("lan", "udp [fd00::1]:5 > [fd00::2]:domain", "passes"),
            ("lan", "tcp 10.0.0.1:4000 > 10.0.0.2:22 syn", "dropped"),
            ("lan", "gre 10.0.0.1 > 10.0.0.2", "dropped"),
        ],
    );
}

#[test]
fn the_example_with_connections_carries_ipv6_over_a_bridge() {
    let rules = examples(FILTER)[1];
    evaluated(rules, &NEIGHBOURS);
    evaluated(
        rules,
        &[
            ("lan", "udp [fd00::1]:5 > [fd00::2]:domain", "passes"),
            ("wan", "udp [fd00::2]:domain > [fd00::1]:5", "passes"),
            ("wan", "udp [fd00::2]:domain > [fd00::1]:6", "rejected"),
            ("lan", "udp 10.0.0.1:5 > 10.0.0.2:ntp", "passes"),
            ("wan", "udp 10.0.0.2:ntp > 10.0.0.1:5", "passes"),
            ("lan", "tcp 10.0.0.1:4000 > 10.0.0.10:22 syn", "passes"),
            ("lan", "tcp 10.0.0.1:4000 > 10.0.0.9:22 syn", "rejected"),
            ("wan", "tcp 10.0.0.2:4000 > 10.0.0.10:22 syn", "rejected"),
            ("wan", "icmp 10.0.0.2 > 10.0.0.1 echo-request", "passes"),
            ("lan", "icmp 10.0.0.1 > 10.0.0.2 echo-reply", "passes"),
            ("lan", "icmpv6 fd00::1 > fd00::2 echo-request", "passes"),
        ],
    );
}

#[test]
fn the_example_with_clients_is_understood() {
    let firewall = firewall(examples(FILTER)[2]);
    let mut wanted: Vec<_> = firewall.filter().wanted().map(|who| format!("{who:?}")).collect();
    wanted.sort();
    let expected = [r#"Client("alice")"#, r#"Client("bob's laptop")"#, r#"Group("staff")"#];
    assert_eq!(wanted, expected);
    assert_eq!(examples(FILTER).len(), 3, "a new example needs a test");
}

#[test]
fn the_packaged_example_carries_both_families() {
    evaluated(EXAMPLE, &NEIGHBOURS);
}
