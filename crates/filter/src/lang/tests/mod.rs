use super::*;

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

/// Many forms, as people write them.
const FORMS: &str = include_str!("forms.nft");

#[test]
fn what_is_printed_reads_back() {
    let ruleset = good(FORMS);
    let printed = ruleset.to_string();
    assert_eq!(without_lines(ruleset), without_lines(good(&printed)), "{printed}");
}

mod errors;
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
    fn no_text_makes_the_parser_panic(text in "(table|chain|set|[a-z@${}();,.:/*&|!=<>\" \n0-9-]){0,60}") {
        let mut none = |_: &str| Err(io::ErrorKind::NotFound.into());
        let _ = parse("any", &text, &mut none);
    }
}
