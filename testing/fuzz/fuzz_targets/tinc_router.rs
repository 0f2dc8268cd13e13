//! Fuzzes tinc's router with packets of the device and of nodes, in all modes. The first byte chooses. A node that gets a packet is reachable and
//! not its sender; an error goes to the sender of a packet that is no error.
#![cfg_attr(fuzzing, no_main)]

use std::sync::LazyLock;

use adit_engine::Instant;
use adit_tinc::config::{Mode, ServerConfig};
use adit_tinc::graph::{Graph, SubnetTable};
use adit_tinc::meta::{AddressToken, EdgeInfo, Options};
use adit_tinc::name::NodeName;
use adit_tinc::route::{Decision, Fragments, Router, Settings, Topology, View, tree_neighbours};
use adit_wire::ethernet::Ethernet;
use adit_wire::icmp_error::{is_error, is_host};
use adit_wire::ip::{ICMP, ICMPV6, Ip};

#[cfg(fuzzing)]
libfuzzer_sys::fuzz_target!(|bytes: &[u8]| run(bytes));

/// The longest frame that reaches bob, and carol behind him.
const MTU: u16 = 700;

struct Net {
    graph: Graph,
    subnets: SubnetTable,
    tree: Vec<NodeName>,
}

/// alice, whose router this is, bob, carol behind bob, and dave, who is unreachable.
static NET: LazyLock<Net> = LazyLock::new(|| {
    let mut graph = Graph::new(name("alice"));
    let mut subnets = SubnetTable::default();
    let edge = EdgeInfo {
        address: AddressToken::unspecified(),
        options: Options(Options::CLAMP_MSS | Options::INDIRECT),
        weight: 1,
        local: None,
    };
    for (one, other) in [("alice", "bob"), ("bob", "carol")] {
        graph.add_edge(&name(one), &name(other), edge.clone()).unwrap();
        graph.add_edge(&name(other), &name(one), edge.clone()).unwrap();
    }
    for (owner, number) in ["alice", "bob", "carol", "dave"].into_iter().zip(1..) {
        for subnet in [
            format!("10.{number}.0.0/16"),
            format!("fd00:{number}::/32"),
            format!("2:0:0:0:0:{number}"),
        ] {
            subnets.insert(&name(owner), subnet.parse().unwrap()).unwrap();
        }
    }
    graph.compute();
    let tree = tree_neighbours(&graph);
    Net { graph, subnets, tree }
});

fn name(text: &str) -> NodeName {
    text.parse().unwrap()
}

pub fn run(bytes: &[u8]) {
    let Some((choice, original)) = bytes.split_first() else { return };
    let net = &*NET;
    let view = Topology {
        graph: &net.graph,
        subnets: &net.subnets,
        tree: &net.tree,
        mtu: |_: &NodeName| MTU,
    };
    let mut settings = Settings::from(&ServerConfig::default());
    settings.decrement_ttl = choice & 0x10 != 0;
    (settings.mode, settings.is_tap) = match choice & 3 {
        0 => (Mode::Router, false),
        1 => (Mode::Router, true),
        2 => (Mode::Switch, true),
        _ => (Mode::Hub, true),
    };
    let from = name(["alice", "bob", "carol", "dave"][usize::from(choice >> 2 & 3)]);
    let from_device = from == *view.own();
    let has_frames = settings.mode != Mode::Router || (settings.is_tap && from_device);
    let mut router = Router::new(settings);
    let (mut packet, now) = (original.to_vec(), Instant::from_nanos(1_000_000_000_000));
    let decision = if from_device {
        router.from_device(&mut packet, &view, now)
    } else {
        router.from_node(&from, &mut packet, &view, now)
    };
    match decision {
        Decision::Node { to, .. } => reached(&view, to, &from),
        Decision::Fragments { to, plan, .. } => {
            reached(&view, to, &from);
            let payload = if has_frames && plan.ip_at == 0 { &packet[14..] } else { &packet[..] };
            let mut fragments = Fragments::new(payload, plan).unwrap();
            while let Some(fragment) = fragments.next_fragment() {
                assert!(fragment.len() <= plan.ip_at + plan.size);
            }
        }
        Decision::Many { nodes, .. } => {
            nodes.iter().for_each(|node| reached(&view, node, &from));
        }
        Decision::Reply(reply) => {
            let header = Ethernet::parse(original).filter(|_| has_frames);
            let at = header.map_or(0, |header| header.header_len);
            let ip = |bytes: &[u8]| Ip::parse(bytes.get(at..)?);
            if let (Some(asked), Some(answer)) = (ip(original), ip(reply)) {
                assert_eq!(asked.source, answer.destination);
                assert!(is_host(asked.source));
                let is_v4 = asked.source.is_ipv4();
                let is_icmp = asked.protocol == if is_v4 { ICMP } else { ICMPV6 };
                assert!(!is_icmp || !is_error(is_v4, original[at + asked.header_len]));
            }
        }
        Decision::Device | Decision::Drop(_) => {}
    }
}

fn reached(view: &impl View, to: &NodeName, from: &NodeName) {
    assert!(to != from && to != view.own() && view.path(to).is_some());
}
