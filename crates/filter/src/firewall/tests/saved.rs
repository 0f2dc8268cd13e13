//! Tests that counters, limits and added elements continue in another process.

use super::*;
use crate::lang;

const SECOND: u64 = 1_000_000_000;

const RULES: &str = "table inet vpn {
    set hosts { type ipv4_addr; flags timeout; elements = { 10.0.0.1 timeout 1h } }
    set nets { type ipv4_addr; flags interval; elements = { 10.1.0.0/16 } }
    counter named { }
    chain forward {
        type filter hook forward priority 0; policy drop;
        counter name named
        ip saddr @hosts counter accept
        ip saddr @nets counter packets 5 bytes 6 accept
        udp dport 7 counter
        udp dport 7 counter
        udp dport 9 limit rate 1/hour burst 2 packets accept
    }
}
";

fn compiled(text: &str) -> Filter {
    let mut no_includes = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    Filter::compile(lang::parse("rules.nft", text, &mut no_includes).unwrap()).unwrap()
}

fn add(firewall: &Firewall, text: &str, now: u64) {
    let rules = firewall.filter();
    let named = lang::elements(rules.ruleset(), text).unwrap();
    let (table, set) = (named.table, named.set);
    firewall.change_elements(table, set, Change::Add, named.elements, Nanos(now)).unwrap();
}

fn datagram(from: [u8; 4], port: u16) -> Vec<u8> {
    let mut udp = [4000u16.to_be_bytes(), port.to_be_bytes()].concat();
    // No checksum.
    udp.extend([0, 8, 0, 0]);
    crate::testing::v4_of(from.into(), [10, 9, 9, 9].into(), 1, 0x4000, 17, &udp)
}

fn passes(firewall: &Arc<Firewall>, from: [u8; 4], port: u16, now: u64) -> bool {
    firewall.worker().burst(Nanos(now)).evaluate(&datagram(from, port), &place()).passes()
}

/// Returns the packets of the named counter and of each rule with a counter.
fn packets(firewall: &Firewall) -> Vec<u64> {
    let (filter, counts) = (firewall.filter(), firewall.filter().counts());
    let named = counts.named(0, crate::ruleset::CounterId(0));
    let rules = filter.ruleset().tables[0].chains[0].rules.iter();
    let rules = rules.filter_map(|rule| counts.rule(rule.handle));
    named.into_iter().chain(rules).map(|count| count.packets).collect()
}

/// Returns what the rules show of their sets.
fn listed(firewall: &Firewall, now: u64) -> String {
    let elements = |table, set| firewall.elements(table, set, Nanos(now));
    lang::listing(firewall.filter().ruleset(), &|_| None, &elements)
}

fn next_process(former: &Firewall, rules: &str, now: u64) -> (Arc<Firewall>, Resumed) {
    let text = serde_json::to_vec(&former.save(Nanos(now))).unwrap();
    let next = firewall(compiled(rules));
    let resumed = next.resume(serde_json::from_slice(&text).unwrap(), Nanos(now));
    (next, resumed)
}

#[test]
fn counters_verdicts_and_limits_continue_for_rules_that_are_in_both() {
    let former = firewall(compiled(RULES));
    assert!(passes(&former, [10, 0, 0, 1], 53, SECOND));
    assert!(passes(&former, [10, 1, 2, 3], 53, SECOND));
    assert!(!passes(&former, [10, 2, 0, 1], 7, SECOND));
    for passed in [true, true, false] {
        assert_eq!(passes(&former, [10, 2, 0, 1], 9, SECOND), passed);
    }
    assert_eq!(packets(&former), [6, 1, 6, 1, 1]);
    let (next, _) = next_process(&former, RULES, 2 * SECOND);
    assert_eq!(packets(&next), packets(&former));
    let verdicts = |firewall: &Firewall| firewall.filter().verdicts();
    assert_eq!(verdicts(&next), verdicts(&former));
    assert!(!passes(&next, [10, 2, 0, 1], 9, 2 * SECOND), "the limit has no tokens");
    assert!(passes(&next, [10, 0, 0, 1], 53, 2 * SECOND));
    assert_eq!(packets(&next), [8, 2, 6, 1, 1]);
    // Another initial value, and one equal rule less.
    let other = RULES.replace("packets 5 bytes 6", "packets 9 bytes 9");
    let other = other.replacen("        udp dport 7 counter\n", "", 1);
    let (next, _) = next_process(&former, &other, 2 * SECOND);
    assert_eq!(packets(&next), [6, 1, 9, 1]);
    // The bucket of another clock is empty, not full for ever.
    let (next, _) = next_process(&former, RULES, 0);
    assert!(!passes(&next, [10, 2, 0, 1], 9, 0));
    assert!(passes(&next, [10, 2, 0, 1], 9, 3600 * SECOND));
}

#[test]
fn added_elements_continue_with_their_remaining_time() {
    let former = firewall(compiled(RULES));
    former.sweep(Nanos(0));
    add(
        &former,
        "hosts 10.0.0.2 timeout 1m comment \"ban\", 10.0.0.3, 10.0.0.4 timeout 5s",
        SECOND,
    );
    add(&former, "nets 10.3.0.0/16", SECOND);
    let (next, resumed) = next_process(&former, RULES, 11 * SECOND);
    assert_eq!((resumed.elements, resumed.elements_left_out), (3, 0), "one has expired");
    assert_eq!(listed(&next, 11 * SECOND), listed_without(&former, 11 * SECOND));
    assert!(passes(&next, [10, 0, 0, 2], 53, 12 * SECOND));
    assert!(passes(&next, [10, 3, 7, 7], 53, 12 * SECOND));
    assert!(!passes(&next, [10, 0, 0, 4], 53, 12 * SECOND));
    next.sweep(Nanos(61 * SECOND));
    assert!(!passes(&next, [10, 0, 0, 2], 53, 61 * SECOND));
    assert!(passes(&next, [10, 0, 0, 3], 53, 61 * SECOND));
    // Changes continue, and a reload keeps them.
    add(&next, "nets 10.4.0.0/16", 62 * SECOND);
    next.replace(compiled(RULES));
    assert!(passes(&next, [10, 4, 7, 7], 53, 62 * SECOND));
    assert!(passes(&next, [10, 3, 7, 7], 53, 62 * SECOND));
    next.sweep(Nanos(3600 * SECOND));
    assert!(
        !passes(&next, [10, 0, 0, 1], 53, 3600 * SECOND),
        "the file's element began in the former process"
    );
}

/// Returns what the rules show after expired elements are removed.
fn listed_without(firewall: &Firewall, now: u64) -> String {
    firewall.sweep(Nanos(now));
    listed(firewall, now)
}

#[test]
fn elements_of_other_sets_are_left_out_and_counted() {
    let former = firewall(compiled(RULES));
    add(&former, "hosts 10.0.0.2 timeout 1m", SECOND);
    add(&former, "nets 10.3.0.0/16", SECOND);
    for (from, to, left) in [
        ("set nets { type ipv4_addr;", "set nets { type ipv4_addr; size 1;", 1),
        (
            "set nets { type ipv4_addr; flags interval; elements = { 10.1.0.0/16 } }",
            "set nets { type inet_service; }",
            1,
        ),
        ("hosts", "other", 1),
        ("10.1.0.0/16", "10.0.0.0/8", 1),
        ("", "", 0),
    ] {
        let mut rules = RULES.replace(from, to);
        if to.contains("inet_service") {
            rules = rules.replace("ip saddr @nets", "udp dport @nets");
        }
        let (_, resumed) = next_process(&former, &rules, 2 * SECOND);
        assert_eq!((resumed.elements, resumed.elements_left_out), (2 - left, left), "{to}");
    }
}

#[test]
fn elements_that_a_set_cannot_have_are_left_out() {
    let former = firewall(compiled(RULES));
    add(&former, "hosts 10.0.0.2 timeout 1m", SECOND);
    let text = serde_json::to_string(&former.save(Nanos(SECOND))).unwrap();
    let resumed = |from: &str, to: &str| {
        assert!(text.contains(from), "{from}: {text}");
        let saved = serde_json::from_str(&text.replacen(from, to, 1)).ok()?;
        let resumed = firewall(compiled(RULES)).resume(saved, Nanos(SECOND));
        Some((resumed.elements, resumed.elements_left_out))
    };
    let key = r#""key":[167772162],"last":167772162"#;
    assert_eq!(resumed(key, key), Some((1, 0)));
    for to in [
        // A range in a set without ranges, one that ends before it begins, an address of 33 bits, and too many parts.
        r#""key":[167772162],"last":167772163"#,
        r#""key":[167772162],"last":167772161"#,
        r#""key":[4294967296],"last":4294967296"#,
        r#""key":[167772162,1],"last":167772162"#,
        r#""key":[],"last":167772162"#,
    ] {
        assert_eq!(resumed(key, to), Some((0, 1)), "{to}");
    }
    assert_eq!(resumed(r#""refused":0"#, r#""more":0"#), None);
}
