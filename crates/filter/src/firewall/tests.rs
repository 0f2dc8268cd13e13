use super::*;

use crate::evaluate::IfName;
use crate::packet::Layer;
use crate::ruleset::{Base, Chain, Family, Policy, Rule, Ruleset, Statement, Table};
use crate::testing::{ether, ip, udp};

mod saved;
mod verdicts;

/// Builds a table with one base chain.
fn rules(policy: Policy, rules: Vec<Vec<Statement>>) -> Filter {
    let rules = rules.into_iter().zip(1..).map(|(statements, handle)| Rule {
        handle,
        line: handle,
        statements,
        comment: None,
    });
    let chain = Chain {
        name: "forward".into(),
        base: Some(Base { priority: 0, policy }),
        rules: rules.collect(),
        comment: None,
    };
    let table = Table {
        family: Family::Inet,
        name: "filter".into(),
        sets: Vec::new(),
        chains: vec![chain],
        counters: Vec::new(),
    };
    Filter::compile(Ruleset { tables: vec![table], ..Ruleset::default() }).unwrap()
}

fn place() -> FrameContext {
    let (iif, oif) = (IfName::new("a"), IfName::new("b"));
    FrameContext {
        layer: Layer::Ip,
        vlan: None,
        vnet: VnetHeader::default(),
        iif,
        oif,
        peers: Peers::default(),
        zone: 0,
    }
}

fn firewall(filter: Filter) -> Arc<Firewall> {
    Firewall::new(filter, Limits::default(), [7; 16])
}

#[test]
fn other_rules_are_in_force_from_the_next_burst_on() {
    let firewall = firewall(rules(Policy::Accept, vec![]));
    let (mut worker, packet) = (firewall.worker(), ip(false, 17, &udp(false, b"hello")));
    let mut burst = worker.burst(Nanos(1));
    assert!(burst.evaluate(&packet, &place()).passes());
    firewall.replace(rules(Policy::Drop, vec![]));
    assert!(
        burst.evaluate(&packet, &place()).passes(),
        "the burst is judged by what it began with"
    );
    drop(burst);
    assert!(!worker.burst(Nanos(2)).evaluate(&packet, &place()).passes());
    let stats = firewall.stats();
    assert_eq!((stats.passed, stats.dropped), (2, vec![(Drop::Rules, 1)]));
    assert_eq!(stats.passed_bytes, 2 * packet.len() as u64);
}

#[test]
fn what_cannot_be_judged_is_dropped_whatever_the_rules_say() {
    let firewall = firewall(rules(Policy::Accept, vec![]));
    let mut packet = ip(false, 17, &udp(false, b"hello"));
    packet[10] ^= 1;
    assert!(!firewall.worker().burst(Nanos(1)).evaluate(&packet, &place()).passes());
    let why = Drop::Malformed(Malformed::Network);
    assert_eq!(firewall.stats().dropped, [(why, 1)]);
}

#[test]
fn every_reason_has_a_counter_of_its_own() {
    let totals = Totals::default();
    // More workers than there are parts.
    for _ in 0..20 {
        let mut pending = totals.pending();
        Drop::ALL.into_iter().for_each(|why| pending.drop(why));
        totals.add(&mut pending);
    }
    let stats = totals.read(Default::default(), Default::default(), 0);
    assert_eq!(stats.dropped, Drop::ALL.map(|why| (why, 20)));
    assert_eq!((stats.passed, stats.answers, stats.answers_suppressed), (0, 0, 0));
}

#[test]
fn senders_are_told_at_a_rate_that_all_workers_share() {
    let reject = Statement::Reject(Reject::Icmpx(crate::ruleset::Icmpx::PortUnreachable));
    let reset = Statement::Reject(Reject::TcpReset);
    let firewall = firewall(rules(Policy::Accept, vec![vec![reset], vec![reject]]));
    let mut workers = [firewall.worker(), firewall.worker()];
    let datagram = ip(false, 17, &udp(false, b"hello"));
    let segment = ip(false, 6, &crate::testing::tcp(false, 1, 0, 2, &[]));
    let told = |workers: &mut [Worker], packet: &[u8], now, times| {
        let mut told = 0;
        for worker in workers {
            let mut burst = worker.burst(Nanos(now));
            let answered =
                |_: &u32| matches!(burst.evaluate(packet, &place()), FrameVerdict::Reply(_));
            told += (0..times).filter(answered).count();
        }
        told
    };
    assert_eq!(told(&mut workers, &datagram, 5, ERRORS_PER_SECOND), ERRORS_PER_SECOND as usize);
    // Resets have a separate limit.
    let resets = RESETS_PER_SECOND - 10;
    assert_eq!(told(&mut workers, &segment, 6, resets), RESETS_PER_SECOND as usize);
    assert_eq!(told(&mut workers[..1], &datagram, 1_500_000_000, 1), 1, "the next second");
    assert_eq!(told(&mut workers[1..], &datagram, 900_000_000, 1), 1, "a burst that began before");
    drop(workers);
    let stats = firewall.stats();
    let answers = u64::from(ERRORS_PER_SECOND + RESETS_PER_SECOND) + 2;
    let suppressed = u64::from(ERRORS_PER_SECOND + RESETS_PER_SECOND - 20);
    assert_eq!((stats.answers, stats.answers_suppressed), (answers, suppressed));
}

#[test]
fn records_wait_in_bounds_and_wake_once() {
    let log = |group| Statement::Log(crate::ruleset::Log { group, ..Default::default() });
    let firewall = firewall(rules(Policy::Accept, vec![vec![log(None)], vec![log(Some(3))]]));
    let woken = Arc::new(std::sync::atomic::AtomicUsize::new(0));
    let (mut worker, packet) = (firewall.worker(), ip(false, 17, &udp(false, &[9; 1000])));
    let pass = |worker: &mut Worker| {
        assert!(worker.burst(Nanos(5)).evaluate(&packet, &place()).passes());
    };
    pass(&mut worker);
    assert!(firewall.logs().take().is_empty(), "nobody asked");
    let counter = Arc::clone(&woken);
    firewall.logs().on_record(move || {
        counter.fetch_add(1, Ordering::Relaxed);
    });
    firewall.logs().add_reader();
    pass(&mut worker);
    pass(&mut worker);
    let records = firewall.logs().take();
    let seen: Vec<_> = records.iter().map(|r| (r.rule, r.group, r.bytes.len())).collect();
    let (line, whole) = ((1, None, 128), (2, Some(3), packet.len()));
    assert_eq!(seen, [line, whole, line, whole]);
    assert_eq!(woken.load(Ordering::Relaxed), 1);
    (0..5000).for_each(|_| pass(&mut worker));
    assert!(firewall.logs().take().len() <= 4096 && firewall.logs().lost() > 0);
    firewall.logs().remove_reader();
    pass(&mut worker);
    assert_eq!(firewall.logs().take().len(), 1, "lines only");
}

#[test]
fn a_checksum_to_come_cannot_write_over_what_was_judged() {
    let firewall = firewall(rules(Policy::Accept, vec![]));
    let datagram = ip(false, 17, &udp(false, &[0; 40]));
    let segment = ip(true, 6, &crate::testing::tcp(true, 1, 0, 2, &[0; 40]));
    let raw = ip(false, 132, &[0; 40]);
    let mut worker = firewall.worker();
    let mut passes = |packet: &[u8], csum_start: u16, csum_offset: u16| {
        let vnet = VnetHeader { needs_csum: true, csum_start, csum_offset, ..place().vnet };
        worker.burst(Nanos(1)).evaluate(packet, &FrameContext { vnet, ..place() }).passes()
    };
    // The checksum is the packet's own or an inner packet's.
    assert!(passes(&datagram, 20, 6) && passes(&segment, 40, 16) && passes(&raw, 20, 8));
    assert!(passes(&datagram, 28, 6) && passes(&segment, 60, 2));
    // The port that the rules read, an address, and a checksum over bytes other than its own.
    for (start, offset) in [(20, 2), (16, 0), (0, 22), (16, 10), (20, 7), (20, 5)] {
        assert!(!passes(&datagram, start, offset), "{start} {offset}");
    }
    for (start, offset) in [(40, 2), (40, 13), (40, 19), (8, 0), (36, 20)] {
        assert!(!passes(&segment, start, offset), "{start} {offset}");
    }
    assert!(!passes(&raw, 20, 2) && !passes(&raw, 12, 0));
    let malformed = Drop::Malformed(Malformed::Offload);
    assert_eq!(firewall.stats().dropped, [(malformed, 13)]);
}

#[test]
fn ip_where_no_rule_looks_is_dropped() {
    let firewall = firewall(rules(Policy::Accept, vec![]));
    let packet = ip(false, 17, &udp(false, b"x"));
    let snap = |kind: u16, oui: u8| {
        let mut body = vec![0xaa, 0xaa, 3, 0, 0, oui];
        body.extend(kind.to_be_bytes());
        body.extend(&packet);
        ether(&[body.len() as u16], &body)
    };
    let mut worker = firewall.worker();
    let mut passes = |frame: &[u8]| {
        let place = FrameContext { layer: Layer::Ethernet, ..place() };
        worker.burst(Nanos(1)).evaluate(frame, &place).passes()
    };
    assert!(passes(&ether(&[0x88a8, 0x8100, 0x0800], &packet)));
    assert!(!passes(&ether(&[0x88a8, 0x8100, 0x8100, 0x0800], &packet)));
    for kind in [0x0800, 0x0806, 0x86dd, 0x8100] {
        assert!(!passes(&snap(kind, 0)), "{kind:x}");
    }
    // Other protocols, another organisation's numbers, spanning tree, PPPoE discovery.
    assert!(passes(&snap(0x809b, 0)) && passes(&snap(0x0800, 1)));
    assert!(passes(&ether(&[38], &[0x42; 38])) && passes(&ether(&[0x8863], &[0; 46])));
    for old in [0x9100, 0x9200, 0x9300] {
        let mut tagged = 5u16.to_be_bytes().to_vec();
        tagged.extend(0x0800u16.to_be_bytes());
        tagged.extend(&packet);
        assert!(!passes(&ether(&[old], &tagged)), "{old:x}");
    }
    let hidden = Drop::Malformed(Malformed::Hidden);
    assert_eq!(firewall.stats().dropped, [(hidden, 8)]);
}

#[test]
fn a_source_route_is_dropped_whatever_the_rules_say() {
    let firewall = firewall(rules(Policy::Accept, vec![]));
    let mut worker = firewall.worker();
    let mut passes = |options: &[u8]| {
        let mut packet = ip(false, 17, &udp(false, b"hello"));
        packet.splice(20..20, options.iter().copied());
        packet[0] = 0x40 | (5 + options.len() as u8 / 4);
        let len = packet.len() as u16;
        packet[2..4].copy_from_slice(&len.to_be_bytes());
        crate::testing::fix_v4(&mut packet);
        worker.burst(Nanos(1)).evaluate(&packet, &place()).passes()
    };
    assert!(!passes(&[131, 7, 4, 10, 9, 9, 9, 0]), "loose");
    assert!(!passes(&[137, 7, 4, 10, 9, 9, 9, 0]), "strict");
    assert!(!passes(&[1, 148, 4, 0, 0, 131, 3, 4]), "behind others");
    // Router alert, the end of the list, and bytes that are no longer options.
    assert!(passes(&[148, 4, 0, 0]) && passes(&[0, 131, 7, 4]) && passes(&[7, 0, 131, 7]));
    assert!(passes(&[7, 4, 131, 7]) && passes(&[7, 1, 131, 7]) && passes(&[7, 200, 131, 7]));
    let dropped = Drop::Malformed(Malformed::SourceRoute);
    assert_eq!(firewall.stats().dropped, [(dropped, 3)]);
    assert_eq!(dropped.name(), "source-route");
}

#[test]
fn only_the_packets_own_sum_is_taken_for_right() {
    let text =
        "table inet t { chain c { type filter hook forward priority 0; ct state invalid drop\n } }";
    let none = &mut |_: &str| Err(std::io::ErrorKind::NotFound.into());
    let filter = Filter::compile(crate::lang::parse("t", text, none).unwrap()).unwrap();
    let firewall = firewall(filter);
    let mut worker = firewall.worker();
    let mut wrong = ip(false, 6, &crate::testing::tcp(false, 1, 0, 2, &[0; 40]));
    wrong[36] ^= 1;
    let mut passes = |needs_csum, csum_start, csum_offset| {
        let vnet = VnetHeader { needs_csum, csum_start, csum_offset, ..place().vnet };
        worker.burst(Nanos(1)).evaluate(&wrong, &FrameContext { vnet, ..place() }).passes()
    };
    assert!(passes(true, 20, 16), "it is still to be filled in");
    assert!(!passes(false, 0, 0));
    assert!(!passes(true, 40, 16), "a sum further back vouches for nothing");
}

#[test]
fn rules_that_come_later_know_the_members_of_before() {
    let text = |who: &str| {
        format!(
            "table inet t {{ chain f {{ type filter hook forward priority 0; policy drop
            ip saddr @{who} accept\n}} }}"
        )
    };
    let filter = |who: &str| {
        let none = &mut |_: &str| Err(std::io::ErrorKind::NotFound.into());
        Filter::compile(crate::lang::parse("rules", &text(who), none).unwrap()).unwrap()
    };
    let firewall = firewall(filter("client:alice"));
    let packet = ip(false, 17, &udp(false, b"hello"));
    let passes = || firewall.worker().burst(Nanos(1)).evaluate(&packet, &place()).passes();
    let address = IpRange::from(IpAddr::V4(crate::testing::V4_A));
    // No rule refers to the group yet.
    for who in [Members::Client("alice".into()), Members::Group("staff".into())] {
        firewall.set_members(&who, vec![address]);
    }
    assert!(passes());
    for (who, known) in [("group:staff", true), ("client:bob", false), ("client:alice", true)] {
        firewall.replace(filter(who));
        assert_eq!(passes(), known, "{who}");
    }
    firewall.set_members(&Members::Client("alice".into()), Vec::new());
    firewall.replace(filter("client:alice"));
    assert!(!passes(), "who is gone stays gone");
}

#[test]
fn a_super_packet_is_no_longer_than_it_says() {
    let firewall = firewall(rules(Policy::Accept, vec![]));
    let mut worker = firewall.worker();
    let mut passes = |packet: &[u8], gso: Gso| {
        let vnet = VnetHeader { gso, gso_size: 500, ..place().vnet };
        worker.burst(Nanos(1)).evaluate(packet, &FrameContext { vnet, ..place() }).passes()
    };
    for (v6, gso) in [(false, Gso::TcpV4), (true, Gso::TcpV6)] {
        let mut packet = ip(v6, 6, &crate::testing::tcp(v6, 1, 0, 16, &[7; 2000]));
        assert!(passes(&packet, gso));
        // Padding of a plain frame is not evaluated; here it would be sent as segments.
        packet.extend([7; 500]);
        assert!(passes(&packet, Gso::None) && !passes(&packet, gso));
    }
    let malformed = Drop::Malformed(Malformed::Offload);
    assert_eq!(firewall.stats().dropped, [(malformed, 2)]);
}

/// Returns the context of TCP between two hosts of a bridge; `iif` is the side that the packets come from.
fn crossing(iif: &str, oif: &str) -> FrameContext {
    FrameContext { iif: IfName::new(iif), oif: IfName::new(oif), ..place() }
}

#[test]
fn a_forged_answer_from_the_same_port_opens_nothing_and_bounds_follow_the_file() {
    let parse = |text: &str| {
        let none = &mut |_: &str| Err(std::io::ErrorKind::NotFound.into());
        Filter::compile(crate::lang::parse("t", text, none).unwrap()).unwrap()
    };
    let text = "define adit_flows = 10\ntable inet f { chain c { type filter hook forward priority 0; policy drop;
        ct state vmap { established : accept, invalid : drop }; udp dport 53 accept; } }\n";
    let firewall = firewall(parse(text));
    let passes = |from: [u8; 4], ports: [u16; 2], to: [u8; 4], place: &FrameContext| {
        let mut l4 = [ports[0].to_be_bytes(), ports[1].to_be_bytes()].concat();
        l4.extend([0, 8, 0, 0]);
        let packet = crate::testing::v4_of(from.into(), to.into(), 1, 0, 17, &l4);
        firewall.worker().burst(Nanos(1)).evaluate(&packet, place).passes()
    };
    let (there, back) = (crossing("eth1", "eth2"), crossing("eth2", "eth1"));
    let server = [10, 0, 0, 53];
    for number in 0..10 {
        let client = [172, 16, 0, number];
        assert!(passes(client, [7, 53], server, &there));
        assert!(!passes(server, [53, 7], client, &there), "forged");
        assert!(passes(server, [53, 7], client, &back));
    }
    assert!(passes([172, 16, 1, 1], [7, 53], server, &there), "in the place of another");
    assert_eq!((firewall.stats().track.limit, firewall.stats().track.flows), (10, 10));
    firewall.replace(parse(&text.replace("= 10", "= 20")));
    assert!(passes([172, 16, 1, 2], [7, 53], server, &there));
    assert_eq!(firewall.stats().track.flows, 11);
    assert_eq!(firewall.stats().track.limit, 20);
    firewall.replace(parse(&text.replace("define adit_flows = 10", "")));
    assert_eq!(firewall.stats().track.limit, 262_144);
}

mod again {
    //! Flows are evaluated again when rules or members change.

    use super::*;
    use crate::testing::v4_of;

    fn parse(text: &str) -> Filter {
        let none = &mut |_: &str| Err(std::io::ErrorKind::NotFound.into());
        Filter::compile(crate::lang::parse("t", text, none).unwrap()).unwrap()
    }

    fn base(rules: &str) -> String {
        format!(
            "table inet f {{ chain c {{ type filter hook forward priority 0; policy drop;
             ct state {{ established, related }} accept\n {rules}\n }} }}\n"
        )
    }

    const ALICE: [u8; 4] = [10, 8, 0, 2];
    const SERVER: [u8; 4] = [10, 0, 0, 1];

    fn datagram(from: ([u8; 4], u16), to: ([u8; 4], u16)) -> Vec<u8> {
        let mut l4 = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
        l4.extend([0, 8, 0, 0]);
        v4_of(from.0.into(), to.0.into(), 1, 0, 17, &l4)
    }

    fn segment(from: ([u8; 4], u16), to: ([u8; 4], u16), flags: u8, seq: u32, ack: u32) -> Vec<u8> {
        let mut l4 = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
        l4.extend(seq.to_be_bytes());
        l4.extend(ack.to_be_bytes());
        l4.extend([0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
        v4_of(from.0.into(), to.0.into(), 1, 0, 6, &l4)
    }

    struct World {
        firewall: Arc<Firewall>,
        worker: Worker,
    }

    impl World {
        fn new(rules: &str) -> Self {
            let firewall = firewall(parse(&base(rules)));
            let worker = firewall.worker();
            Self { firewall, worker }
        }

        fn rules(&self, rules: &str) {
            self.firewall.replace(parse(&base(rules)));
        }

        /// Returns whether a packet passes from the tunnel to the host, or back. The checksum is guaranteed.
        fn passes(&mut self, bytes: &[u8], back: bool) -> bool {
            let needs_csum = bytes[9] != 1;
            let csum_offset = if bytes[9] == 6 { 16 } else { 6 };
            let vnet =
                VnetHeader { needs_csum, csum_start: 20, csum_offset, ..VnetHeader::default() };
            let place = if back { crossing("host", "tun0") } else { crossing("tun0", "host") };
            let place = FrameContext { vnet, ..place };
            self.worker.burst(Nanos(5_000_000_000)).evaluate(bytes, &place).passes()
        }

        fn members(&self, name: &str, addresses: &[[u8; 4]]) {
            let ranges = addresses.iter().map(|a| IpAddr::from(*a).into()).collect();
            self.firewall.set_members(&Members::Client(name.into()), ranges);
        }

        fn flows(&self) -> u64 {
            self.firewall.stats().track.flows
        }
    }

    #[test]
    fn a_flow_whose_rule_is_gone_ends_and_another_loses_nothing() {
        for back_first in [false, true] {
            let mut world = World::new("udp dport { 53, 123 } accept");
            let there = |port| datagram((ALICE, 7), (SERVER, port));
            let back = |port| datagram((SERVER, port), (ALICE, 7));
            for port in [53, 123] {
                assert!(world.passes(&there(port), false) && world.passes(&back(port), true));
            }
            world.rules("udp dport 53 accept");
            // The next packet may be in either direction.
            if back_first {
                assert!(world.passes(&back(53), true) && !world.passes(&back(123), true));
            }
            assert!(world.passes(&there(53), false) && world.passes(&back(53), true));
            assert!(!world.passes(&there(123), false) && !world.passes(&back(123), true));
            let track = world.firewall.stats().track;
            assert_eq!((track.flows, track.withdrawn), (1, 1));
            world.rules("drop");
            assert!(!world.passes(&back(53), true));
            assert_eq!(world.flows(), 0);
        }
    }

    #[test]
    fn a_connection_of_tcp_is_judged_by_the_packet_that_would_open_it() {
        let open = "tcp flags & (fin|syn|rst|ack) == syn tcp dport 22 ct state new accept";
        let mut world = World::new(open);
        let (a, b) = ((ALICE, 4000), (SERVER, 22));
        assert!(world.passes(&segment(a, b, 2, 100, 0), false));
        assert!(world.passes(&segment(b, a, 18, 500, 101), true));
        assert!(world.passes(&segment(a, b, 16, 101, 501), false));
        // A length, an exhausted rate and a log do not matter; interfaces and addresses do.
        for rules in [
            "ip saddr 10.8.0.0/24 limit rate 1/hour burst 1 packets accept",
            "iifname \"tun0\" oifname \"host\" log prefix \"x\" accept",
            "limit rate over 1/hour burst 1 packets drop\n tcp dport 22 accept",
        ] {
            world.rules(rules);
            world.passes(&datagram((ALICE, 9), (SERVER, 9)), false);
            assert!(world.passes(&segment(b, a, 16, 501, 101), true), "{rules}");
            assert!(world.passes(&segment(a, b, 16, 101, 501), false), "{rules}");
        }
        assert_eq!(world.firewall.stats().track.withdrawn, 1, "that of the datagrams");
        world.rules("iifname \"host\" accept\n tcp dport 80 accept");
        assert!(!world.passes(&segment(a, b, 16, 101, 501), false));
        assert_eq!(world.firewall.stats().track.withdrawn, 2);
    }

    #[test]
    fn an_error_about_a_flow_that_ended_is_related_no_more() {
        let mut world = World::new("udp dport 53 accept");
        let there = datagram((ALICE, 7), (SERVER, 53));
        assert!(world.passes(&there, false));
        let mut error = vec![3, 3, 0, 0, 0, 0, 0, 0];
        error.extend(&there);
        let sum = crate::testing::naive_checksum(&error).to_be_bytes();
        error[2..4].copy_from_slice(&sum);
        let error = v4_of([10, 0, 0, 254].into(), ALICE.into(), 1, 0, 1, &error);
        assert!(world.passes(&error, true));
        world.rules("udp dport 54 accept");
        assert!(!world.passes(&error, true));
        assert_eq!(world.flows(), 0);
    }

    #[test]
    fn a_client_that_leaves_a_set_loses_its_flows_and_one_that_comes_back_has_them() {
        let mut world = World::new("ip saddr @client:alice udp dport 53 accept");
        let (there, back) =
            (datagram((ALICE, 7), (SERVER, 53)), datagram((SERVER, 53), (ALICE, 7)));
        world.members("alice", &[ALICE]);
        assert!(world.passes(&there, false) && world.passes(&back, true));
        // Disconnected and reconnected with the same rights: nothing changes.
        world.members("alice", &[]);
        world.members("alice", &[ALICE]);
        assert!(world.passes(&back, true));
        assert_eq!(world.firewall.stats().track.withdrawn, 0);
        // The address now belongs to another client.
        world.members("alice", &[]);
        world.members("bob", &[ALICE]);
        assert!(!world.passes(&there, false) && !world.passes(&back, true));
        assert_eq!(world.flows(), 0);
    }

    #[test]
    fn what_only_a_policy_accepts_does_not_keep_a_flow_where_a_rule_has_to() {
        let open = base("udp dport 53 accept").replace("policy drop", "policy accept");
        let firewall = firewall(parse(&open));
        let mut worker = firewall.worker();
        let mut passes = |bytes: &[u8]| {
            let place = crossing("tun0", "tun0");
            worker.burst(Nanos(5)).evaluate_explicit(bytes, &place).passes()
        };
        let (there, back) =
            (datagram((ALICE, 7), (SERVER, 53)), datagram((SERVER, 53), (ALICE, 7)));
        assert!(passes(&there) && passes(&back));
        firewall.replace(parse(&open.replace("udp dport 53 accept", "")));
        assert!(!passes(&there) && !passes(&back));
    }

    #[test]
    fn flows_belong_to_the_client_behind_the_peer() {
        let firewall = firewall(parse(
            "table inet t { chain c { type filter hook forward priority 0; policy drop; \
             ct state established,related accept; \
             iifname tun0 ip saddr @client:alice udp dport 53 accept } }",
        ));
        firewall.set_members(&Members::Client("alice".into()), vec![IpAddr::from(ALICE).into()]);
        let mut worker = firewall.worker();
        let (there, back) =
            (datagram((ALICE, 7), (SERVER, 53)), datagram((SERVER, 53), (ALICE, 7)));
        let mut from = |peer| {
            let place = FrameContext {
                peers: Peers { from: Some(peer), to: None },
                ..crossing("tun0", "host")
            };
            worker.burst(Nanos(5)).evaluate(&there, &place).passes()
        };
        firewall.set_peer(1, Some("alice"));
        firewall.set_peer(70_000, Some("bob"));
        assert!(from(1));
        let mut worker = firewall.worker();
        let mut to = |peer| {
            let place = FrameContext {
                peers: Peers { from: None, to: Some(peer) },
                ..crossing("host", "tun0")
            };
            worker.burst(Nanos(5)).evaluate(&back, &place).passes()
        };
        assert!(!to(70_000), "his network holds her address, but he has asked nothing");
        assert!(to(1));
        // Alice reconnected with another session and the same rights, so the flow continues. The old session may still
        // exist.
        firewall.set_peer(2, Some("alice"));
        firewall.set_peer(1, None);
        assert!(to(2) && !to(1));
        // Flows are selected by address as long as the peers are unknown.
        assert_eq!(firewall.flush(Flush::Client("bob", &[IpAddr::from(ALICE).into()])), 0);
        assert_eq!(firewall.flush(Flush::Client("alice", &[])), 1);
        assert!(!to(2));
    }

    #[test]
    fn flows_of_an_address_can_be_ended() {
        let mut world = World::new("accept");
        let others = [10, 8, 0, 3];
        for from in [ALICE, others] {
            for port in 1..=300 {
                assert!(world.passes(&datagram((from, port), (SERVER, 53)), false));
            }
        }
        assert!(world.passes(&datagram((SERVER, 9), (ALICE, 9)), true));
        let one = |address: [u8; 4]| vec![IpAddr::from(address).into()];
        assert_eq!(world.firewall.flush(Flush::Addresses(&one(ALICE))), 301);
        assert_eq!(world.flows(), 300);
        let of_alice = world.firewall.tracker().flows(Nanos(6_000_000_000), 0).0;
        assert!(of_alice.iter().all(|flow| flow.source.0 != IpAddr::from(ALICE)));
        assert_eq!(world.firewall.flush(Flush::All), 300);
        assert_eq!((world.flows(), world.firewall.stats().track.withdrawn), (0, 601));
        assert!(world.passes(&datagram((ALICE, 1), (SERVER, 53)), false), "it may start again");
    }

    #[test]
    fn the_first_packet_of_any_flow_can_be_made() {
        // Each protocol, both families, with and without link headers and tags, in both directions.
        let mut made = 0;
        for v6 in [false, true] {
            for (protocol, l4) in [
                (17, udp(v6, b"x")),
                (6, crate::testing::tcp(v6, 1, 0, 2, b"")),
                (132, vec![0x0f, 0xa0, 0, 80, 0, 0, 0, 0, 0, 0, 0, 0]),
                (47, vec![0; 8]),
            ] {
                let packet = ip(v6, protocol, &l4);
                let frames = [
                    packet.clone(),
                    ether(&[if v6 { 0x86dd } else { 0x0800 }], &packet),
                    ether(&[0x88a8, 0x8100, if v6 { 0x86dd } else { 0x0800 }], &packet),
                ];
                for (layer, frame) in
                    [Layer::Ip, Layer::Ethernet, Layer::Ethernet].iter().zip(&frames)
                {
                    let vnet = VnetHeader { needs_csum: true, ..VnetHeader::default() };
                    let parsed = Packet::parse(frame, *layer, None, &vnet).unwrap();
                    let tracker = Tracker::new(Default::default(), [7; 16]);
                    let mut burst = tracker.burst(Nanos(1));
                    let tracked = burst.look(&parsed, Crossing::Up.into());
                    assert!(burst.confirm(&tracked, &parsed));
                    let known = burst.look(&parsed, Crossing::Up.into());
                    let ends = burst.ends(&known).unwrap();
                    let mut bytes = [0; MAX_FIRST];
                    let len = first_packet(&ends, &parsed, known.direction, &mut bytes).unwrap();
                    let first =
                        Packet::parse(&bytes[..len], *layer, None, &VnetHeader::default()).unwrap();
                    let (a, b) = (first.ip().unwrap(), parsed.ip().unwrap());
                    assert_eq!(
                        (a.source, a.destination, a.protocol),
                        (b.source, b.destination, b.protocol)
                    );
                    assert_eq!(first.vlans(), parsed.vlans());
                    made += 1;
                }
            }
        }
        assert_eq!(made, 24);
    }
}

/// Counters and limits across a reload.
mod carried {
    use super::*;
    use crate::lang;

    fn filter(rules: &str) -> Filter {
        let text = format!(
            "table inet t {{\n counter named {{ }}\n chain c {{\n type filter hook forward priority 0;\n{rules}\n }}\n}}\n"
        );
        let mut none = |_: &str| Err(std::io::ErrorKind::NotFound.into());
        Filter::compile(lang::parse("t", &text, &mut none).unwrap()).unwrap()
    }

    fn counts(firewall: &Firewall) -> Vec<u64> {
        let filter = firewall.filter();
        let counts = filter.counts();
        (1..5).filter_map(|handle| counts.rule(handle)).map(|count| count.packets).collect()
    }

    fn evaluate(worker: &mut Worker, now: u64) -> bool {
        let packet = ip(false, 17, &udp(false, b"hello"));
        worker.burst(Nanos(now)).evaluate(&packet, &place()).passes()
    }

    #[test]
    fn counters_of_rules_that_stay_go_on_wherever_they_stand() {
        let both = "meta l4proto udp counter\ncounter\ncounter\ncounter name named";
        let firewall = firewall(filter(both));
        let mut worker = firewall.worker();
        assert!(evaluate(&mut worker, 1));
        let mut burst = worker.burst(Nanos(1));
        let packet = ip(false, 17, &udp(false, b"hello"));
        assert!(burst.evaluate(&packet, &place()).passes());
        // Counts that a worker has not flushed are not lost with the previous rules.
        firewall.replace(filter(
            "ip ttl 64 counter\nmeta l4proto udp counter\ncounter\ncounter name named",
        ));
        drop(burst);
        assert_eq!(counts(&firewall), [0, 2, 2]);
        assert!(evaluate(&mut worker, 1));
        assert_eq!(counts(&firewall), [1, 3, 3]);
        let named = |firewall: &Firewall| {
            firewall.filter().counts().named(0, crate::ruleset::CounterId(0)).unwrap().packets
        };
        assert_eq!(named(&firewall), 3);
        // A changed initial value in the file takes effect, and so does a changed rule.
        firewall.replace(filter("meta l4proto udp counter packets 100 bytes 5\ncounter"));
        assert_eq!(counts(&firewall), [100, 3]);
        firewall.replace(filter("meta l4proto udp counter packets 100 bytes 5\ncounter"));
        assert!(evaluate(&mut worker, 1));
        assert_eq!(counts(&firewall), [101, 4]);
        assert_eq!(named(&firewall), 3, "no rule counts into it");
    }

    #[test]
    fn a_reload_refills_no_bucket() {
        let limited = "limit rate 1/hour burst 2 packets accept\ndrop";
        let firewall = firewall(filter(limited));
        let mut worker = firewall.worker();
        assert!(evaluate(&mut worker, 1) && evaluate(&mut worker, 1) && !evaluate(&mut worker, 1));
        firewall.replace(filter(limited));
        assert!(!evaluate(&mut worker, 1), "its tokens are spent");
        firewall.replace(filter("limit rate 1/hour burst 3 packets accept\ndrop"));
        assert!(evaluate(&mut worker, 1), "another limit is another bucket");
    }
}
