//! Checks of a rule set's consistency, so that evaluation needs none.

use crate::compile::{MAX_DEPTH, MAX_PARTS, MAX_VISITS, set_of};
use crate::ruleset::{
    Chain, ChainId, Counter, Members, RuleVerdict, Ruleset, Set, Statement, Table, Test,
};

/// The reason why a rule set cannot be compiled. The parser rejects such files earlier, with line
/// and column.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CompileError {
    /// A chain, set or counter that its table does not have.
    #[error("table {table:?}: a rule names a {what} that does not exist")]
    Missing {
        /// The table.
        table: String,
        /// The missing item.
        what: &'static str,
    },
    /// A key with more or fewer parts than the set's or the comparison's.
    #[error("table {table:?}: a key does not have as many parts as what it is compared with")]
    Parts {
        /// The table.
        table: String,
    },
    /// A concatenation of more than [`MAX_PARTS`] parts.
    #[error("table {table:?}: a concatenation has more than {MAX_PARTS} parts")]
    TooManyParts {
        /// The table.
        table: String,
    },
    /// A set where a map is needed, or a map where a set is.
    #[error("table {table:?}: a map is used as a set, or a set as a map")]
    NotAMap {
        /// The table.
        table: String,
    },
    /// Chains that jump in a loop.
    #[error("table {table:?}: chain {chain:?} can reach itself")]
    Loop {
        /// The table.
        table: String,
        /// The chain.
        chain: String,
    },
    /// More than [`MAX_DEPTH`] nested jumps.
    #[error("table {table:?}: more than {MAX_DEPTH} jumps in a row below chain {chain:?}")]
    TooDeep {
        /// The table.
        table: String,
        /// The chain.
        chain: String,
    },
    /// Jumps that fan out so that one packet could visit more than [`MAX_VISITS`] rules.
    #[error(
        "table {table:?}: by the jumps of chain {chain:?} one packet could visit more than \
         {MAX_VISITS} rules; let fewer rules jump, or jump by a verdict map, which takes one way"
    )]
    TooFar {
        /// The table.
        table: String,
        /// The chain.
        chain: String,
    },
}

pub(crate) fn check(ruleset: &Ruleset) -> Result<(), CompileError> {
    let mut visits = 0;
    for table in &ruleset.tables {
        for set in &table.sets {
            elements(table, set)?;
        }
        for chain in &table.chains {
            for statement in chain.rules.iter().flat_map(|rule| &rule.statements) {
                names(table, statement)?;
            }
        }
        jumps(table, &mut visits)?;
    }
    Ok(())
}

fn missing(table: &Table, what: &'static str) -> CompileError {
    CompileError::Missing { table: table.name.clone(), what }
}

fn parts(table: &Table, equal: bool) -> Result<(), CompileError> {
    equal.then_some(()).ok_or_else(|| CompileError::Parts { table: table.name.clone() })
}

fn target(table: &Table, verdict: RuleVerdict) -> Result<(), CompileError> {
    match verdict {
        RuleVerdict::Jump(chain) | RuleVerdict::Goto(chain) => {
            table.chains.get(chain.0).map(|_| ()).ok_or_else(|| missing(table, "chain"))
        }
        _ => Ok(()),
    }
}

fn elements(table: &Table, set: &Set) -> Result<(), CompileError> {
    parts(table, !set.key.is_empty())?;
    let Members::Fixed(elements) = &set.members else {
        return parts(table, set.key.len() == 1);
    };
    for element in elements {
        parts(table, element.key.len() == set.key.len())?;
        match element.verdict {
            Some(verdict) if set.map => target(table, verdict)?,
            None if !set.map => {}
            _ => return Err(CompileError::NotAMap { table: table.name.clone() }),
        }
    }
    Ok(())
}

fn names(table: &Table, statement: &Statement) -> Result<(), CompileError> {
    let (key, map) = match statement {
        Statement::Match(one) => (&one.key, false),
        Statement::VerdictMap { key, .. } => (key, true),
        Statement::Counter(Counter::Named(id)) => {
            return table.counters.get(id.0).map(|_| ()).ok_or_else(|| missing(table, "counter"));
        }
        Statement::Verdict(verdict) => return target(table, *verdict),
        _ => return Ok(()),
    };
    if key.len() > MAX_PARTS {
        return Err(CompileError::TooManyParts { table: table.name.clone() });
    }
    let compared = match statement {
        Statement::Match(one) => match &one.test {
            Test::Within(ranges) => Some(ranges.len()),
            Test::Masked { .. } | Test::AnyOf(_) => Some(1),
            Test::Set(_) => None,
        },
        _ => None,
    };
    if let Some(id) = set_of(statement) {
        let set = table.sets.get(id.0).ok_or_else(|| missing(table, "set"))?;
        if set.map != map {
            return Err(CompileError::NotAMap { table: table.name.clone() });
        }
        return parts(table, set.key.len() == key.len());
    }
    parts(table, compared == Some(key.len()))
}

/// The cost of a packet below a chain.
#[derive(Copy, Clone, Default)]
struct ChainCost {
    /// The number of nested jumps.
    height: usize,
    /// The number of visited rules.
    visits: usize,
}

/// Returns the target chain of a verdict, and whether evaluation returns from it.
fn way(verdict: RuleVerdict) -> Option<(ChainId, bool)> {
    match verdict {
        RuleVerdict::Jump(chain) => Some((chain, true)),
        RuleVerdict::Goto(chain) => Some((chain, false)),
        _ => None,
    }
}

/// Returns the target chains of a verdict map, each once.
fn ways_of_map(set: &Set) -> Vec<(ChainId, bool)> {
    let Members::Fixed(elements) = &set.members else { return Vec::new() };
    let mut found: Vec<_> = elements.iter().filter_map(|element| way(element.verdict?)).collect();
    found.sort_unstable_by_key(|(chain, back)| (chain.0, *back));
    found.dedup();
    found
}

/// Returns the cost of a packet below `chain`; `None` while the cost of a chain that it reaches is
/// unknown.
fn below(
    chain: &Chain,
    maps: &[Vec<(ChainId, bool)>],
    known: &[Option<ChainCost>],
) -> Option<ChainCost> {
    let mut all = ChainCost::default();
    for rule in chain.rules.iter().rev() {
        // The rules after it, if it does not match.
        let (rest, mut most) = (all.visits, all.visits);
        for statement in &rule.statements {
            let (own, map);
            let ways = match statement {
                Statement::Verdict(verdict) => {
                    own = way(*verdict);
                    own.as_slice()
                }
                Statement::VerdictMap { map: id, .. } => {
                    map = maps.get(id.0);
                    map.map_or(&[][..], Vec::as_slice)
                }
                _ => &[],
            };
            for (target, comes_back) in ways {
                let there = known.get(target.0).copied().flatten()?;
                all.height = all.height.max(there.height.saturating_add(1));
                let rest = if *comes_back { rest } else { 0 };
                most = most.max(there.visits.saturating_add(rest));
            }
        }
        all.visits = most.saturating_add(1);
    }
    Some(all)
}

/// Bounds the cost of each chain, lowest first: chains that are left over form a loop. Adds the
/// cost of all base chains to `visits`.
fn jumps(table: &Table, visits: &mut usize) -> Result<(), CompileError> {
    let maps: Vec<_> = table.sets.iter().map(ways_of_map).collect();
    let mut known: Vec<Option<ChainCost>> = vec![None; table.chains.len()];
    let names = |chain: &Chain| (table.name.clone(), chain.name.clone());
    loop {
        let mut found = Vec::new();
        for (at, chain) in table.chains.iter().enumerate() {
            if !matches!(known.get(at), Some(None)) {
                continue;
            }
            let Some(below) = below(chain, &maps, &known) else { continue };
            if below.height > MAX_DEPTH {
                let (table, chain) = names(chain);
                return Err(CompileError::TooDeep { table, chain });
            }
            if chain.base.is_some() {
                *visits = visits.saturating_add(below.visits);
            }
            if below.visits.max(*visits) > MAX_VISITS {
                let (table, chain) = names(chain);
                return Err(CompileError::TooFar { table, chain });
            }
            found.push((at, below));
        }
        if found.is_empty() {
            break;
        }
        for (at, below) in found {
            if let Some(slot) = known.get_mut(at) {
                *slot = Some(below);
            }
        }
    }
    let circle = table.chains.iter().zip(&known).find(|(_, known)| known.is_none());
    match circle.map(|(chain, _)| names(chain)) {
        Some((table, chain)) => Err(CompileError::Loop { table, chain }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn checked(text: &str) -> Result<(), CompileError> {
        let none = &mut |_: &str| Err(io::ErrorKind::NotFound.into());
        check(&crate::lang::parse("rules", text, none).unwrap())
    }

    /// Builds `levels` chains below a base chain, each with `rules` rules that continue in the next
    /// chain.
    fn fan(levels: usize, rules: usize, go: &str) -> String {
        let mut text = String::from("table inet t {\n");
        for level in 0..levels {
            let rule = match level {
                0 => "counter\n".to_owned(),
                _ => format!("{go} c{}\n", level - 1),
            };
            text += &format!("chain c{level} {{\n{}}}\n", rule.repeat(rules));
        }
        let last = levels - 1;
        text + &format!("chain base {{ type filter hook forward priority 0\n{go} c{last}\n}}\n}}\n")
    }

    #[test]
    fn jumps_may_not_fan_out_to_more_than_a_packet_can_pay() {
        // 10^5 + ... rules, and ten times as many.
        assert_eq!(checked(&fan(5, 10, "jump")), Ok(()));
        let far =
            |chain: &str| Err(CompileError::TooFar { table: "t".into(), chain: chain.into() });
        assert_eq!(checked(&fan(7, 10, "jump")), far("c5"));
        assert_eq!(checked(&fan(15, 4, "jump")), far("c9"));
        // A `goto` does not return, and visits one chain of each level.
        assert_eq!(checked(&fan(15, 4, "ip daddr 10.0.0.1 goto")), Ok(()));
    }

    #[test]
    fn a_map_takes_one_way_for_all_its_elements() {
        let element = |at: usize| format!("{at} : jump c4, ");
        let elements = |count| (0..count).map(element).collect::<String>();
        let with = |rule: String| fan(5, 10, "jump").replace("counter", &rule);
        let fanned = with(format!("tcp dport vmap {{ {} }}", elements(0) + "1 : drop"));
        assert_eq!(checked(&fanned), Ok(()));
        let base = |count| {
            let rule = format!("tcp dport vmap {{ {} }}", elements(count));
            fan(5, 10, "jump").replace("\njump c4\n}\n}", &format!("\n{rule}\n}}\n}}"))
        };
        assert_eq!(checked(&base(1)), checked(&base(1000)));
    }

    #[test]
    fn all_base_chains_together_have_one_bound() {
        let one = fan(6, 9, "jump");
        assert_eq!(checked(&one), Ok(()));
        let second = one.replace("table inet t", "table inet u");
        let far = CompileError::TooFar { table: "u".into(), chain: "base".into() };
        assert_eq!(checked(&(one + &second)), Err(far));
    }
}
