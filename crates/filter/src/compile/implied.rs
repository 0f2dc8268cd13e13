//! The implicit conditions of a rule's `reject with`.

use crate::ruleset::{Field, Match, Members, Range, Reject, Ruleset, Set, Statement, Test};

/// Inserts these conditions at the beginning of the rule, as nft does, so that statements before `reject` (a counter, a
/// log) see only packets that can be rejected in this way.
pub(super) fn insert(ruleset: &mut Ruleset) {
    for table in &mut ruleset.tables {
        let sets = &table.sets;
        for rule in table.chains.iter_mut().flat_map(|chain| &mut chain.rules) {
            if let Some(implied) = implied(&rule.statements, sets) {
                rule.statements.insert(0, implied);
            }
        }
    }
}

/// Returns whether a comparison is with only this value, as in `tcp` or `{ tcp }`.
fn is_with(test: &Test, value: u128, sets: &[Set]) -> bool {
    let alone = Range::single(value);
    match test {
        Test::Within(ranges) => *ranges == [alone],
        Test::Set(id) => sets.get(id.0).is_some_and(|set| match (&set.name, &set.members) {
            (None, Members::Fixed(elements)) => {
                matches!(&**elements, [element] if element.key == [alone])
            }
            _ => false,
        }),
        _ => false,
    }
}

fn implied(statements: &[Statement], sets: &[Set]) -> Option<Statement> {
    use Field::*;
    let (Statement::Reject(how), before) = statements.split_last()? else { return None };
    let (field, value): (Field, u128) = match how {
        Reject::TcpReset => (MetaL4proto, 6),
        Reject::Icmp(_) => (MetaNfproto, 2),
        Reject::Icmpv6(_) => (MetaNfproto, 10),
        Reject::Icmpx(_) => return None,
    };
    let test = Test::Within(vec![Range::single(value)]);
    let says = |statement: &Statement| match statement {
        Statement::Match(one) => {
            let named = one.key.iter().any(|key| match how {
                Reject::TcpReset => matches!(key, TcpSport | TcpDport | TcpFlags),
                Reject::Icmp(_) => matches!(key, IpSaddr | IpDaddr | IcmpType),
                _ => matches!(key, Ip6Saddr | Ip6Daddr | Icmpv6Type),
            });
            named || (one.key == [field] && is_with(&one.test, value, sets) && !one.negate)
        }
        _ => false,
    };
    let acts = before.iter().any(|statement| !matches!(statement, Statement::Match(_)));
    let needed = acts && !before.iter().any(says);
    needed.then(|| Statement::Match(Match { key: vec![field], test, negate: false }))
}

#[cfg(test)]
mod tests {
    use crate::{Filter, lang};

    #[test]
    fn what_a_reject_asks_for_is_asked_first() {
        let rule = |text: &str| {
            let hook = "type filter hook forward priority 0;";
            let text = format!("table inet t {{\n chain c {{\n {hook}\n {text}\n }}\n}}\n");
            let none = &mut |_: &str| Err(std::io::ErrorKind::NotFound.into());
            let filter = Filter::compile(lang::parse("t", &text, none).unwrap()).unwrap();
            let table = &filter.ruleset().tables[0];
            lang::rule_text(table, &table.chains[0].rules[0])
        };
        let tcp = |text: &str| rule(text).starts_with("meta l4proto tcp");
        assert!(tcp("counter reject with tcp reset"));
        assert!(tcp("udp dport 53 log prefix \"x\" reject with tcp reset"));
        assert!(!tcp("reject with tcp reset"), "nothing before it that could tell");
        assert!(!tcp("tcp dport 22 counter reject with tcp reset"), "it says so itself");
        let set = rule("meta l4proto { tcp } counter reject with tcp reset");
        assert_eq!(set.matches("tcp").count(), 2, "{set}");
        assert!(tcp("meta l4proto { tcp, udp } counter reject with tcp reset"));
        assert!(rule("counter reject with icmp host-unreachable").starts_with("meta nfproto ipv4"));
        assert!(rule("counter reject with icmpv6 no-route").starts_with("meta nfproto ipv6"));
    }
}
