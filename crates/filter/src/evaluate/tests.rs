//! The semantics of nftables' rules, one feature per test.

use std::sync::Arc;

use super::*;
use crate::compile::{CompileError, IpRange};
use crate::lang::{describe, parse};
use crate::ruleset::{
    Chain, ChainId, Count, CounterId, Icmpx, Members, Rule, RuleVerdict, Ruleset, Statement, Table,
};

fn filter(text: &str) -> Arc<Filter> {
    let ruleset = parse("test", text, &mut |_| Err(std::io::ErrorKind::NotFound.into()));
    Arc::new(Filter::compile(ruleset.unwrap_or_else(|error| panic!("{error}"))).unwrap())
}

/// Compiles one base chain in a bridge table, which drops packets that no rule decides about.
fn chain(rules: &str) -> Arc<Filter> {
    filter(&format!(
        "table bridge t {{ chain c {{ type filter hook forward priority 0; policy drop; {rules} }} }}"
    ))
}

fn evaluated_at(
    evaluator: &mut Evaluator,
    now: u64,
    packet: &str,
    verdict_cache: Option<&mut VerdictCache>,
) -> Evaluation {
    let described = describe(packet).unwrap_or_else(|error| panic!("{error}"));
    let vnet = Default::default();
    let parsed = Packet::parse(&described.bytes, described.layer, None, &vnet).unwrap();
    let context = described.context(Nanos(now));
    let explained = evaluator.filter.explain(&parsed, &context);
    let evaluation = evaluator.evaluate(&parsed, &context, verdict_cache, &mut ());
    assert_eq!((explained.verdict, explained.by), (evaluation.verdict, evaluation.by), "explained");
    evaluation
}

fn decided(filter: &Arc<Filter>, packet: &str) -> Verdict {
    evaluated_at(&mut Evaluator::new(Arc::clone(filter)), 0, packet, None).verdict
}

const UDP: &str = "udp 10.0.0.1:4000 > 10.0.0.2:53";
const TCP: &str = "tcp 10.0.0.1:4000 > 10.0.0.2:80 syn";
const UDP6: &str = "udp [fd00::1]:4000 > [fd00::2]:53";
const ACCEPT: Verdict = Verdict::Accept;
const DROP: Verdict = Verdict::Drop;

#[test]
fn a_field_that_is_not_there_matches_neither_way() {
    for rule in ["tcp dport 53 accept", "tcp dport != 53 accept", "ip6 saddr != fd00::9 accept"] {
        assert_eq!(decided(&chain(rule), UDP), DROP, "{rule}");
    }
    assert_eq!(decided(&chain("udp dport != 54 accept"), UDP), ACCEPT);
}

#[test]
fn accept_ends_its_chain_only_and_drop_ends_all() {
    let two = |first: &str, second: &str| {
        let chain = |name: &str, priority: i32, rules: &str| {
            format!(
                "chain {name} {{ type filter hook forward priority {priority}; policy accept; {rules} }}"
            )
        };
        // The order in the file is reversed, but the priority decides.
        let second = chain("second", 5, second);
        filter(&format!("table inet t {{\n{second}\n{}\n}}", chain("first", -5, first)))
    };
    assert_eq!(decided(&two("accept", "drop"), UDP), DROP);
    assert_eq!(decided(&two("accept", ""), UDP), ACCEPT);
    let counted = two("drop", "counter accept");
    let mut evaluator = Evaluator::new(Arc::clone(&counted));
    assert_eq!(evaluated_at(&mut evaluator, 0, UDP, None).verdict, DROP);
    evaluator.flush();
    let handle = counted.ruleset().tables[0].chains[0].rules[0].handle;
    assert_eq!(counted.counts().rule(handle), Some(Count::default()), "never reached");
}

#[test]
fn bridge_tables_come_first_and_see_what_is_not_ip() {
    let base = "type filter hook forward priority";
    let rules = filter(&format!(
        "table ip a {{ chain c {{ {base} -100; policy drop; }} }}
         table bridge b {{ chain c {{ {base} 100; policy accept; ip daddr 10.0.0.3 reject; }} }}"
    ));
    let arp = "arp who-has 10.0.0.2 tell 10.0.0.1";
    assert_eq!(decided(&rules, arp), ACCEPT, "no table of IP sees it");
    assert_eq!(decided(&rules, UDP6), ACCEPT, "the table of IPv4 does not see it");
    assert_eq!(decided(&rules, UDP), DROP);
    let rejected = Verdict::Reject(Reject::Icmpx(Icmpx::PortUnreachable));
    assert_eq!(decided(&rules, "udp 10.0.0.1:1 > 10.0.0.3:2"), rejected);
}

#[test]
fn jump_comes_back_goto_does_not_and_return_goes_up() {
    let rules = |how: &str, inner: &str| {
        filter(&format!(
            "table bridge t {{
                chain inner {{ {inner} }}
                chain c {{ type filter hook forward priority 0; policy drop; {how} inner; accept }}
            }}"
        ))
    };
    assert_eq!(decided(&rules("jump", "tcp dport 1 drop"), UDP), ACCEPT);
    assert_eq!(decided(&rules("goto", "tcp dport 1 drop"), UDP), DROP, "the policy");
    assert_eq!(decided(&rules("jump", "return; drop"), UDP), ACCEPT);
    assert_eq!(decided(&rules("goto", "return; accept"), UDP), DROP, "the policy");
    assert_eq!(decided(&chain("return; accept"), UDP), DROP, "in a base chain, its policy");
}

#[test]
fn a_goto_within_a_jump_comes_back_to_where_the_jump_was() {
    let rules = filter(
        "table bridge t {
            chain last { tcp dport 1 drop }
            chain middle { goto last; drop }
            chain c { type filter hook forward priority 0; policy drop; jump middle; accept }
        }",
    );
    assert_eq!(decided(&rules, UDP), ACCEPT);
}

#[test]
fn counters_count_where_they_stand_in_segments_and_start_as_written() {
    let rules = filter(
        "table bridge t {
            counter all { packets 7 bytes 70 }
            chain c {
                type filter hook forward priority 0; policy accept;
                counter name all
                counter udp dport 99
                udp dport 99 counter
                udp dport 53 counter packets 1 bytes 2 accept
            }
        }",
    );
    let mut evaluator = Evaluator::new(Arc::clone(&rules));
    evaluated_at(&mut evaluator, 0, UDP, None);
    let length = describe(UDP).unwrap().bytes.len() as u64 - 14;
    assert_eq!(rules.counts().named(0, CounterId(0)).unwrap().packets, 7, "not yet flushed");
    evaluator.flush();
    let counts = rules.counts();
    let handles = rules.ruleset().tables[0].chains[0].rules.iter().map(|rule| rule.handle);
    let own: Vec<_> = handles.map(|handle| counts.rule(handle)).collect();
    let count = |packets, bytes| Some(Count { packets, bytes });
    assert_eq!(counts.named(0, CounterId(0)), count(8, 70 + length));
    assert_eq!(own, [None, count(1, length), count(0, 0), count(2, 2 + length)]);
}

#[test]
fn a_super_packet_counts_as_its_segments() {
    let rules = chain("counter accept");
    let mut evaluator = Evaluator::new(Arc::clone(&rules));
    let bytes = crate::testing::tcp(false, 1, 1, 16, &[7; 2500]);
    let bytes = crate::testing::ip(false, 6, &bytes);
    let vnet = adit_wire::VnetHeader {
        needs_csum: true,
        gso: adit_wire::Gso::TcpV4,
        ecn: false,
        hdr_len: 40,
        gso_size: 1000,
        csum_start: 20,
        csum_offset: 16,
    };
    let packet = Packet::parse(&bytes, crate::packet::Layer::Ip, None, &vnet).unwrap();
    evaluator.evaluate(&packet, &describe(UDP).unwrap().context(Nanos(0)), None, &mut ());
    drop(evaluator);
    let handle = rules.ruleset().tables[0].chains[0].rules[0].handle;
    let count = rules.counts().rule(handle).unwrap();
    assert_eq!(count, Count { packets: 3, bytes: bytes.len() as u64 }, "flushed when dropped");
}

const SECOND: u64 = 1_000_000_000;

#[test]
fn a_limit_lets_its_burst_pass_and_then_its_rate() {
    let rules = chain("limit rate 10/second burst 3 packets accept");
    let mut evaluator = Evaluator::new(rules);
    let mut passes = |now| evaluated_at(&mut evaluator, now, UDP, None).verdict == ACCEPT;
    assert_eq!([0, 0, 0, 0].map(&mut passes), [true, true, true, false]);
    assert!(!passes(SECOND / 10 - 1), "a tenth of a second for one packet");
    assert!(passes(SECOND / 10) && !passes(SECOND / 10));
    // However long it is idle, at most the burst is saved.
    assert_eq!([100; 4].map(|at| passes(at * SECOND)), [true, true, true, false]);
}

#[test]
fn a_limit_over_matches_what_a_limit_does_not() {
    let rules = chain("limit rate over 10/second burst 2 packets drop; accept");
    let mut evaluator = Evaluator::new(rules);
    let mut decided = |now| evaluated_at(&mut evaluator, now, UDP, None).verdict;
    assert_eq!([0, 0, 0].map(&mut decided), [ACCEPT, ACCEPT, DROP]);
}

#[test]
fn a_limit_of_bytes_holds_a_period_and_the_burst() {
    let length = describe(UDP).unwrap().bytes.len() as u64 - 14;
    // One second's bytes and a burst of the same size: two packets.
    let rules = chain(&format!("limit rate {length} bytes/second burst {length} bytes accept"));
    let mut evaluator = Evaluator::new(rules);
    let mut passes = |now| evaluated_at(&mut evaluator, now, UDP, None).verdict == ACCEPT;
    assert_eq!([0, 0, 0].map(&mut passes), [true, true, false]);
    assert!(!passes(SECOND - 1) && passes(SECOND));
}

#[test]
fn judges_share_a_limit() {
    let rules = chain("limit rate 1/minute burst 2 packets accept");
    let mut evaluators = [Evaluator::new(Arc::clone(&rules)), Evaluator::new(rules)];
    let mut decided = |at: usize| evaluated_at(&mut evaluators[at], 0, UDP, None).verdict;
    assert_eq!([0, 1, 0, 1].map(&mut decided), [ACCEPT, ACCEPT, DROP, DROP]);
}

#[test]
fn reject_with_a_protocol_matches_that_protocol_and_plain_reject_everything() {
    let reset = chain("reject with tcp reset; accept");
    assert_eq!(decided(&reset, TCP), Verdict::Reject(Reject::TcpReset));
    assert_eq!(decided(&reset, UDP), ACCEPT);
    let rules = |how| {
        let rule = |statements| Rule { handle: 1, line: 1, statements, comment: None };
        let base = crate::ruleset::Base { priority: 0, policy: crate::ruleset::Policy::Accept };
        let rules = vec![rule(vec![Statement::Reject(how)])];
        let chain = Chain { name: "c".into(), base: Some(base), rules, comment: None };
        Arc::new(Filter::compile(ruleset(vec![chain])).unwrap())
    };
    for (how, v4, v6) in [
        (Reject::Icmp(1), true, false),
        (Reject::Icmpv6(1), false, true),
        (Reject::Icmpx(Icmpx::NoRoute), true, true),
    ] {
        let rejected = |packet| decided(&rules(how), packet) == Verdict::Reject(how);
        assert_eq!((rejected(UDP), rejected(UDP6)), (v4, v6), "{how:?}");
    }
    let icmpx = Reject::Icmpx(Icmpx::NoRoute);
    for other in ["arp who-has 10.0.0.2 tell 10.0.0.1", "ether 0x8864", "ether 0x88b5"] {
        assert_eq!(decided(&rules(icmpx), other), Verdict::Reject(icmpx), "{other}");
        assert_eq!(decided(&rules(Reject::Icmp(1)), other), ACCEPT, "{other}");
        assert_eq!(decided(&rules(Reject::TcpReset), other), ACCEPT, "{other}");
    }
}

fn ruleset(chains: Vec<Chain>) -> Ruleset {
    let family = crate::ruleset::Family::Bridge;
    let (sets, counters) = (vec![], vec![]);
    let tables = vec![Table { family, name: "t".into(), sets, chains, counters }];
    Ruleset { tables, ..Ruleset::default() }
}

#[test]
fn a_verdict_map_decides_and_ends_the_rule_where_it_knows_nothing() {
    let rules = chain("udp dport vmap { 53 : accept, 54 : continue, 55-60 : drop }; accept");
    let to = |port: u16| decided(&rules, &format!("udp 10.0.0.1:1 > 10.0.0.2:{port}"));
    assert_eq!([53, 54, 57, 61].map(to), [ACCEPT, ACCEPT, DROP, ACCEPT]);
}

#[test]
fn members_of_a_client_come_and_go_for_known_flows_too() {
    let rules = chain("ip saddr @client:alice accept");
    let alice = Members::Client("alice".into());
    assert_eq!(rules.wanted().collect::<Vec<_>>(), [&alice]);
    let mut evaluator = Evaluator::new(Arc::clone(&rules));
    let mut verdict_cache = VerdictCache::default();
    let flow = "udp 10.0.0.1:4000 > 10.0.0.2:53 ct established";
    let mut decided = || evaluated_at(&mut evaluator, 0, flow, Some(&mut verdict_cache)).verdict;
    assert_eq!([decided(), decided()], [DROP, DROP]);
    let address = |text: &str| IpRange::from(text.parse::<std::net::IpAddr>().unwrap());
    assert!(rules.set_members(&alice, &[address("fd00::1"), address("10.0.0.1")]));
    assert_eq!([decided(), decided()], [ACCEPT, ACCEPT]);
    assert!(rules.set_members(&alice, &[IpRange::prefix("10.0.0.9".parse().unwrap(), 29)]));
    assert_eq!(decided(), DROP, "10.0.0.8 to 10.0.0.15");
    assert!(!rules.set_members(&Members::Group("alice".into()), &[]), "nobody asks");
}

#[test]
fn members_of_many_clients_come_at_once() {
    let rules = chain(
        "ip saddr @client:alice accept; ip6 saddr @client:bob accept; ip saddr @group:staff accept",
    );
    let address = |text: &str| IpRange::from(text.parse::<std::net::IpAddr>().unwrap());
    let who = |name: &str| Members::Client(name.into());
    rules.set_members(&Members::Group("staff".into()), &[address("10.0.0.7")]);
    let mut evaluator = Evaluator::new(Arc::clone(&rules));
    let mut verdict_cache = VerdictCache::default();
    let mut from = |source: &str, to: &str, verdict_cache: Option<&mut VerdictCache>| {
        let host = |address: &str| {
            if address.contains(':') { format!("[{address}]") } else { address.to_owned() }
        };
        let flow = format!("udp {}:4000 > {}:53 ct established", host(source), host(to));
        evaluated_at(&mut evaluator, 0, &flow, verdict_cache).verdict
    };
    assert_eq!(from("10.0.0.1", "10.0.0.2", Some(&mut verdict_cache)), DROP);
    let all = [
        (who("alice"), vec![address("10.0.0.1"), address("fd00::1")]),
        (who("bob"), vec![address("10.0.0.3"), address("fd00::3")]),
        (who("nobody"), vec![address("10.0.0.4")]),
    ];
    rules.set_all_members(&all.into());
    assert_eq!(from("10.0.0.1", "10.0.0.2", Some(&mut verdict_cache)), ACCEPT, "a known flow too");
    let v4 = ["10.0.0.3", "10.0.0.4", "10.0.0.7"].map(|source| from(source, "10.0.0.2", None));
    assert_eq!(v4, [DROP, DROP, ACCEPT], "who was not named keeps what was said before");
    assert_eq!(["fd00::1", "fd00::3"].map(|source| from(source, "fd00::2", None)), [DROP, ACCEPT]);
}

/// Evaluates the packet twice with one cache; returns whether the evaluation was cached.
fn remembers(rules: &str, first: &str) -> bool {
    let mut evaluator = Evaluator::new(chain(rules));
    let mut verdict_cache = VerdictCache::default();
    let before = evaluated_at(&mut evaluator, 0, first, Some(&mut verdict_cache));
    let remembered = verdict_cache != VerdictCache::default();
    assert_eq!(evaluated_at(&mut evaluator, 0, first, Some(&mut verdict_cache)), before);
    remembered
}

#[test]
fn a_flow_is_remembered_only_if_nothing_mattered_that_may_change() {
    let known = "udp 10.0.0.1:4000 > 10.0.0.2:53 in eth0 out eth1 ct established";
    for steady in [
        "udp dport 53 accept",
        "ct state established counter accept",
        "iifname eth0 ip saddr . udp dport { 10.0.0.1 . 53 } accept",
        "tcp flags syn drop; ip6 hoplimit 1 drop; accept",
        "udp dport 54 limit rate 1/second accept",
    ] {
        assert!(remembers(steady, known), "{steady}");
    }
    for unsteady in [
        "limit rate 1/second accept",
        "log prefix \"x\" accept",
        "ip ttl 64 accept",
        "meta length > 10 accept",
        "ether saddr 02:00:00:00:00:01 accept",
        "vlan id 5 accept",
        "meta pkttype broadcast drop",
    ] {
        assert!(!remembers(unsteady, known), "{unsteady}");
    }
    assert!(!remembers("accept", "icmp 10.0.0.1 > 10.0.0.2 echo-request ct established"));
    assert!(!remembers("accept", "udp 10.0.0.1:1 > 10.0.0.2:2 ct invalid"));
    assert!(!remembers("accept", "udp 10.0.0.1:1 > 10.0.0.2:2 ct untracked"));
}

#[test]
fn a_memo_holds_for_its_interfaces_state_direction_and_rules_only() {
    let text = "iifname eth0 ct state established ct direction original counter accept";
    let rules = chain(text);
    let mut evaluator = Evaluator::new(Arc::clone(&rules));
    let mut verdict_cache = VerdictCache::default();
    let flow = "udp 10.0.0.1:4000 > 10.0.0.2:53";
    let known = format!("{flow} in eth0 ct established");
    for _ in 0..3 {
        assert_eq!(
            evaluated_at(&mut evaluator, 0, &known, Some(&mut verdict_cache)).verdict,
            ACCEPT
        );
    }
    let kept = verdict_cache;
    for other in ["in eth1 ct established", "in eth0 ct new", "in eth0 ct established reply"] {
        verdict_cache = kept;
        let other = format!("{flow} {other}");
        assert_eq!(
            evaluated_at(&mut evaluator, 0, &other, Some(&mut verdict_cache)).verdict,
            DROP,
            "{other}"
        );
    }
    evaluator.flush();
    let handle = rules.ruleset().tables[0].chains[0].rules[0].handle;
    assert_eq!(rules.counts().rule(handle).unwrap().packets, 3, "remembered ones count");
    // Another evaluator of the same filter can use it, but not one of other rules.
    verdict_cache = kept;
    let mut second = Evaluator::new(Arc::clone(&rules));
    assert_eq!(evaluated_at(&mut second, 0, &known, Some(&mut verdict_cache)).verdict, ACCEPT);
    drop(second);
    assert_eq!(rules.counts().rule(handle).unwrap().packets, 4);
    assert_eq!(
        evaluated_at(&mut Evaluator::new(chain("drop")), 0, &known, Some(&mut verdict_cache))
            .verdict,
        DROP
    );
}

#[test]
fn what_is_logged_says_by_which_rule() {
    #[derive(Default)]
    struct Lines(Vec<(u32, String, Option<u16>, u32)>);
    impl LogSink for Lines {
        fn log(&mut self, rule: u32, log: &Log, _: &Packet<'_>) {
            self.0.push((rule, log.prefix.clone(), log.group, log.snaplen));
        }
    }
    let rules = chain("udp dport 54 log; log prefix \"seen \" group 3 snaplen 64 accept");
    let described = describe(UDP).unwrap();
    let vnet = Default::default();
    let packet = Packet::parse(&described.bytes, described.layer, None, &vnet).unwrap();
    let mut lines = Lines::default();
    let mut evaluator = Evaluator::new(Arc::clone(&rules));
    let evaluation = evaluator.evaluate(&packet, &described.context(Nanos(0)), None, &mut lines);
    let by = evaluation.by.unwrap();
    assert_eq!(lines.0, [(by, "seen ".to_owned(), Some(3), 64)]);
}

#[test]
fn an_explanation_shows_the_way_and_takes_nothing() {
    let rules = filter(
        "table bridge t {
            chain inner { ip ttl 1 drop }
            chain c {
                type filter hook forward priority 0; policy drop;
                tcp dport 80 accept
                udp dport 53 jump inner
                limit rate 1/hour burst 1 packets accept
            }
        }",
    );
    let described = describe(UDP).unwrap();
    let vnet = Default::default();
    let packet = Packet::parse(&described.bytes, described.layer, None, &vnet).unwrap();
    let context = described.context(Nanos(0));
    let trace = rules.explain(&packet, &context);
    assert_eq!(rules.explain(&packet, &context), trace, "no token was taken");
    let rule = |step: &Step| match step {
        Step::Rule { end, .. } => Some(end.clone()),
        _ => None,
    };
    let ends: Vec<RuleEnd> = trace.steps.iter().filter_map(rule).collect();
    let mismatch =
        |field, value| RuleEnd::NoMatch(Mismatch { statement: 0, values: vec![(field, value)] });
    use crate::ruleset::Field;
    let [first, jump, inner, last] = ends.as_slice() else { panic!("{ends:?}") };
    assert_eq!(*first, mismatch(Field::TcpDport, None));
    assert!(matches!(jump, RuleEnd::Verdict(RuleVerdict::Jump(_))));
    assert_eq!(*inner, mismatch(Field::IpTtl, Some(64)));
    assert_eq!(*last, RuleEnd::Verdict(RuleVerdict::Accept));
    assert!(matches!(trace.steps[0], Step::Base(_)));
    assert!(trace.steps.iter().any(|step| matches!(step, Step::Back(_))));
}

#[test]
fn rules_that_contradict_themselves_are_refused() {
    let jumping = |to: &[usize]| {
        let rule = |to: &usize| Rule {
            handle: 1,
            line: 1,
            statements: vec![Statement::Verdict(RuleVerdict::Jump(ChainId(*to)))],
            comment: None,
        };
        let rules = to.iter().map(rule).collect();
        Chain { name: format!("to{to:?}"), base: None, rules, comment: None }
    };
    let refused = |chains| Filter::compile(ruleset(chains)).err();
    assert!(matches!(refused(vec![jumping(&[0])]), Some(CompileError::Loop { .. })));
    assert!(matches!(
        refused(vec![jumping(&[1]), jumping(&[2]), jumping(&[0])]),
        Some(CompileError::Loop { .. })
    ));
    assert!(matches!(refused(vec![jumping(&[9])]), Some(CompileError::Missing { .. })));
    let deep = |count: usize| {
        let mut chains: Vec<Chain> = (1..count).map(|to| jumping(&[to])).collect();
        chains.push(jumping(&[]));
        refused(chains)
    };
    assert_eq!(deep(crate::compile::MAX_DEPTH + 1), None);
    assert!(matches!(deep(crate::compile::MAX_DEPTH + 2), Some(CompileError::TooDeep { .. })));
}

#[test]
fn the_least_and_the_greatest_values_are_found_among_many_rules() {
    let ports = [0, 1, 21, 22, 23, 65534, 65535];
    let mut rules = String::new();
    for _ in 0..4 {
        for port in ports {
            rules += &format!("udp dport != {port} counter\nudp dport >= {port} counter\n");
        }
        rules += "ip saddr != 255.255.255.255 counter\nip saddr <= 0.0.0.1 counter\n";
    }
    let rules = chain(&rules);
    for port in ports {
        for source in ["0.0.0.1", "255.255.255.254"] {
            let before = rules.counts();
            let packet = format!("udp {source}:1 > 10.0.0.2:{port}");
            evaluated_at(&mut Evaluator::new(Arc::clone(&rules)), 0, &packet, None);
            let counted = rules.counts();
            let handles = rules.ruleset().tables[0].chains[0].rules.iter().map(|rule| rule.handle);
            let new = |handle| {
                counted.rule(handle).unwrap().packets - before.rule(handle).unwrap().packets
            };
            let unequal = ports.len() - 1;
            let reached = ports.iter().filter(|other| port >= **other).count();
            let expected = unequal + reached + 1 + usize::from(source == "0.0.0.1");
            assert_eq!(handles.map(new).sum::<u64>(), 4 * expected as u64, "{packet}");
        }
    }
}

#[test]
fn memory_of_few_and_of_many_rules_is_bounded() {
    assert!(chain("udp dport 53 accept; tcp dport 80 accept").size() < 10 << 10);
    let mut rules = String::new();
    for at in 0..3000u32 {
        let [_, a, b, c] = at.wrapping_mul(2_654_435_761).to_be_bytes();
        rules += &format!("ip saddr 10.{a}.{b}.0/24 udp dport {} drop\n", u16::from(c) + 1024);
    }
    assert!(chain(&rules).size() < 2 << 20);
}
