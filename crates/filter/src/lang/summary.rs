//! A rule set in one line, for logs and `adit filter check`.

use std::fmt;

use crate::ruleset::{Family, Members, Policy, Ruleset};

/// The contents of a rule set, and the treatment of packets that no rule decides about.
#[derive(Copy, Clone, Debug, Default, Eq, PartialEq)]
pub struct Summary {
    /// The number of tables.
    pub tables: usize,
    /// The number of chains, including base chains.
    pub chains: usize,
    /// The number of rules in all chains.
    pub rules: usize,
    /// The number of sets and maps.
    pub sets: usize,
    /// The number of elements in the file.
    pub elements: usize,
    /// Whether a base chain evaluates IPv4, and whether one evaluates IPv6.
    pub sees: [bool; 2],
    /// Whether a base chain's policy is `drop`.
    pub drops: bool,
}

impl Summary {
    /// Counts the contents of a rule set.
    pub fn of(ruleset: &Ruleset) -> Self {
        let tables = &ruleset.tables;
        let chains = || tables.iter().flat_map(|table| &table.chains);
        let sets = || tables.iter().flat_map(|table| &table.sets);
        let elements = sets().map(|set| match &set.members {
            Members::Fixed(list) => list.len(),
            Members::Client(_) | Members::Node(_) | Members::Group(_) => 0,
        });
        let sees = |families: [Family; 3]| {
            let hooked = |table: &&crate::ruleset::Table| {
                families.contains(&table.family)
                    && table.chains.iter().any(|chain| chain.base.is_some())
            };
            tables.iter().find(hooked).is_some()
        };
        Self {
            tables: tables.len(),
            chains: chains().count(),
            rules: chains().map(|chain| chain.rules.len()).sum(),
            sets: sets().count(),
            elements: elements.sum(),
            sees: [Family::Ip, Family::Ip6].map(|own| sees([own, Family::Inet, Family::Bridge])),
            drops: chains().filter_map(|c| c.base).any(|base| base.policy == Policy::Drop),
        }
    }
}

impl fmt::Display for Summary {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let many = |count: usize, what: &str| {
            let s = if count == 1 { "" } else { "s" };
            format!("{count} {what}{s}")
        };
        let Self { tables, chains, rules, sets, elements, sees, drops } = *self;
        write!(f, "{}, {}, ", many(tables, "table"), many(chains, "chain"))?;
        f.write_str(&many(rules, "rule"))?;
        if sets > 0 {
            write!(f, ", {} with {}", many(sets, "set"), many(elements, "element"))?;
        }
        if sees == [false; 2] {
            return f.write_str("; no chain has a hook: every packet passes");
        }
        let policy =
            if drops { "; what no rule accepts is dropped" } else { "; what no rule drops passes" };
        f.write_str(policy)?;
        match sees {
            [false, true] => f.write_str("; IPv4 passes: no chain sees it"),
            [true, false] => f.write_str("; IPv6 passes: no chain sees it"),
            _ => Ok(()),
        }
    }
}
