//! Tests of the verdicts that base chains count.

use super::*;

fn compiled(text: &str) -> Filter {
    let mut no_includes = |_: &str| Err(std::io::ErrorKind::NotFound.into());
    let ruleset = crate::lang::parse("rules.nft", text, &mut no_includes).unwrap();
    Filter::compile(ruleset).unwrap()
}

/// Returns accepted and dropped packets, first those without a chain, then by chain.
fn verdicts(firewall: &Firewall) -> Vec<[u64; 2]> {
    let all = firewall.filter().verdicts();
    assert!(all.first().is_some_and(|first| first.chain.is_none()));
    all.iter().map(|one| [one.accepted, one.dropped]).collect()
}

const TWO: &str = "table ip first {
    chain helper { udp dport 7 drop; }
    chain early { type filter hook forward priority -5; jump helper; ct state established accept; }
}
table ip second {
    chain late { type filter hook forward priority 5; policy drop; udp dport 53 accept; udp sport 53 accept; }
}";

fn datagram(from: (u8, u16), to: (u8, u16)) -> Vec<u8> {
    let mut udp = [from.1.to_be_bytes(), to.1.to_be_bytes()].concat();
    // No checksum.
    udp.extend([0, 8, 0, 0]);
    let host = |number| [10, 0, 0, number].into();
    crate::testing::v4_of(host(from.0), host(to.0), 1, 0x4000, 17, &udp)
}

#[test]
fn each_packet_counts_once_in_the_last_chain_that_evaluated_it() {
    let firewall = firewall(compiled(TWO));
    let mut worker = firewall.worker();
    let mut pass = |packet: &[u8]| {
        let mut burst = worker.burst(Nanos(1));
        burst.evaluate(packet, &place()).passes()
    };
    assert!(!pass(&datagram((1, 9), (2, 7))), "a rule that the first chain jumps to");
    assert!(!pass(&datagram((1, 9), (2, 80))), "the second chain's policy");
    assert!(pass(&datagram((1, 9), (2, 53))));
    assert_eq!(verdicts(&firewall), [[0, 0], [0, 1], [1, 1]]);
    // Packets of a known flow are counted as well, although they are not evaluated again.
    for _ in 0..3 {
        assert!(pass(&datagram((2, 53), (1, 9))));
    }
    assert_eq!(verdicts(&firewall), [[0, 0], [0, 1], [4, 1]]);
    // No chain evaluates IPv6.
    assert!(pass(&ip(true, 17, &udp(true, b"hello"))));
    assert_eq!(verdicts(&firewall), [[1, 0], [0, 1], [4, 1]]);
}

#[test]
fn the_verdicts_of_a_chain_continue_with_other_rules_under_its_name() {
    let firewall = firewall(compiled(TWO));
    let mut worker = firewall.worker();
    let mut pass = |packet: &[u8]| worker.burst(Nanos(1)).evaluate(packet, &place()).passes();
    assert!(pass(&datagram((1, 9), (2, 53))) && pass(&ip(true, 17, &udp(true, b"hello"))));
    let other = TWO.replace("ip first", "ip other").replace("dport 53", "dport 54");
    firewall.replace(compiled(&other));
    assert!(pass(&datagram((1, 9), (2, 54))));
    assert_eq!(verdicts(&firewall), [[1, 0], [0, 0], [2, 0]]);
}
