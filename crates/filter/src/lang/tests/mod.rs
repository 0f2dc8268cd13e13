use super::*;
use crate::ruleset::{Count, CounterId};

fn good(text: &str) -> Ruleset {
    let mut none = |_: &str| Err(io::ErrorKind::NotFound.into());
    parse("test.nft", text, &mut none).unwrap_or_else(|e| panic!("{e}"))
}

#[test]
fn the_four_rules() {
    let ruleset = good(
        "#!/usr/sbin/nft -f
flush ruleset
table inet filter {
    chain forward {
        type filter hook forward priority filter; policy drop;
        meta l4proto { icmp, ipv6-icmp } accept
        tcp dport 7070 accept
        tcp sport 7070 accept
        meta l4proto udp counter accept
    }
}
",
    );
    assert_eq!(ruleset.tables.len(), 1);
    assert_eq!(ruleset.tables[0].chains[0].rules.len(), 4);
}

fn without_lines(mut ruleset: Ruleset) -> Ruleset {
    for rule in ruleset.tables.iter_mut().flat_map(|t| &mut t.chains).flat_map(|c| &mut c.rules) {
        rule.line = 0;
    }
    ruleset
}

/// Many forms of rules that users write.
const FORMS: &str = include_str!("forms.nft");

#[test]
fn what_is_printed_reads_back() {
    let ruleset = good(FORMS);
    let printed = ruleset.to_string();
    assert_eq!(without_lines(ruleset), without_lines(good(&printed)), "{printed}");
}

mod errors;
mod hooks;
mod nft;
mod random;

use proptest::prelude::*;

proptest! {
    #[test]
    fn any_rule_set_reads_back_as_it_is_printed(ruleset in random::rulesets(false)) {
        let printed = ruleset.to_string();
        let mut none = |_: &str| Err(io::ErrorKind::NotFound.into());
        let read = parse("printed", &printed, &mut none);
        prop_assert!(read.is_ok(), "{}\n{}", read.unwrap_err(), printed);
        prop_assert_eq!(without_lines(read.unwrap()), ruleset, "{}", printed);
    }

    #[test]
    fn whatever_is_understood_reads_back_as_it_is_printed(
        cuts in prop::collection::vec((0..FORMS.len(), 0..40_usize, any::<bool>()), 1..4)
    ) {
        let mut bytes = FORMS.as_bytes().to_vec();
        for (at, length, double) in cuts {
            let from = at.min(bytes.len());
            let to = (from + length).min(bytes.len());
            if double {
                let piece = bytes[from..to].to_vec();
                bytes.splice(from..from, piece);
            } else {
                bytes.drain(from..to);
            }
        }
        let text = String::from_utf8(bytes).unwrap();
        let mut none = |_: &str| Err(io::ErrorKind::NotFound.into());
        if let Ok(ruleset) = parse("cut", &text, &mut none) {
            let printed = ruleset.to_string();
            prop_assert_eq!(without_lines(good(&printed)), without_lines(ruleset));
        }
    }

    #[test]
    fn no_text_makes_the_parser_panic(text in "(table|chain|set|[a-z@${}();,.:/*&|!=<>\" \n0-9-]){0,60}") {
        let mut none = |_: &str| Err(io::ErrorKind::NotFound.into());
        let _ = parse("any", &text, &mut none);
    }
}

#[test]
fn the_examples_of_the_reference_are_good() {
    let reference = include_str!("../../../../../docs/filter.md");
    let blocks: Vec<&str> =
        reference.split("```nft\n").skip(1).filter_map(|b| b.split("```").next()).collect();
    assert_eq!(blocks.len(), 3);
    for block in blocks {
        assert_eq!(good(block).tables.len(), 1, "{block}");
    }
}

#[test]
fn counts_are_listed_as_they_are() {
    let ruleset = good(
        "table ip t { counter n { packets 1 bytes 2 }
            chain c { tcp dport 22 counter accept; counter name n; counter packets 7 bytes 8; } }",
    );
    let live = |whose: CounterOwner| match whose {
        CounterOwner::Rule(1) => Some(Count { packets: 3, bytes: 4 }),
        CounterOwner::Named { table: 0, counter: CounterId(0) } => {
            Some(Count { packets: 5, bytes: 6 })
        }
        _ => None,
    };
    assert_eq!(
        listing(&ruleset, &live, &|_, _| None),
        "table ip t {
\tcounter n {
\t\tpackets 5 bytes 6
\t}
\tchain c {
\t\ttcp dport 22 counter packets 3 bytes 4 accept # handle 1
\t\tcounter name \"n\" # handle 2
\t\tcounter packets 7 bytes 8 # handle 3
\t}
}
"
    );
    // A listing is a rule file, too.
    assert_eq!(good(&listing(&ruleset, &live, &|_, _| None)).tables[0].chains[0].rules.len(), 3);
}
