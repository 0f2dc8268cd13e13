//! What a rule set must keep so that judging it needs no doubt.

use crate::compile::{MAX_DEPTH, MAX_PARTS, set_of};
use crate::ruleset::{
    Chain, ChainId, Counter, Members, Ruleset, Set, Statement, Table, Test, Verdict,
};

/// Why a rule set cannot be compiled. The language refuses such files with line and column first.
#[derive(Clone, Debug, Eq, PartialEq, thiserror::Error)]
pub enum CompileError {
    /// A chain, set or counter that its table does not have.
    #[error("table {table:?}: a rule names a {what} that does not exist")]
    Missing {
        /// The table.
        table: String,
        /// What is missing.
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
    /// A set where a map is needed, or the other way round.
    #[error("table {table:?}: a map is used as a set, or a set as a map")]
    NotAMap {
        /// The table.
        table: String,
    },
    /// Chains that come back to themselves.
    #[error("table {table:?}: chain {chain:?} can reach itself")]
    Loop {
        /// The table.
        table: String,
        /// The chain.
        chain: String,
    },
    /// More than [`MAX_DEPTH`] jumps in a row.
    #[error("table {table:?}: more than {MAX_DEPTH} jumps in a row below chain {chain:?}")]
    TooDeep {
        /// The table.
        table: String,
        /// The chain.
        chain: String,
    },
}

pub(crate) fn check(ruleset: &Ruleset) -> Result<(), CompileError> {
    for table in &ruleset.tables {
        for set in &table.sets {
            elements(table, set)?;
        }
        for chain in &table.chains {
            for statement in chain.rules.iter().flat_map(|rule| &rule.statements) {
                names(table, statement)?;
            }
        }
        jumps(table)?;
    }
    Ok(())
}

fn missing(table: &Table, what: &'static str) -> CompileError {
    CompileError::Missing { table: table.name.clone(), what }
}

fn parts(table: &Table, equal: bool) -> Result<(), CompileError> {
    equal.then_some(()).ok_or_else(|| CompileError::Parts { table: table.name.clone() })
}

fn target(table: &Table, verdict: Verdict) -> Result<(), CompileError> {
    match verdict {
        Verdict::Jump(chain) | Verdict::Goto(chain) => {
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

/// The chains to which a chain's rules can go, by themselves or by a map.
fn targets(table: &Table, chain: &Chain) -> Vec<ChainId> {
    let mut found = Vec::new();
    let mut add = |verdict: Verdict| match verdict {
        Verdict::Jump(chain) | Verdict::Goto(chain) => found.push(chain),
        _ => {}
    };
    for statement in chain.rules.iter().flat_map(|rule| &rule.statements) {
        match statement {
            Statement::Verdict(verdict) => add(*verdict),
            Statement::VerdictMap { map, .. } => {
                if let Some(Members::Fixed(elements)) =
                    table.sets.get(map.0).map(|set| &set.members)
                {
                    elements.iter().filter_map(|element| element.verdict).for_each(&mut add);
                }
            }
            _ => {}
        }
    }
    found.sort_unstable_by_key(|chain| chain.0);
    found.dedup();
    found
}

/// Every chain's height over the chains that it reaches, lowest first: what is left over is a circle.
fn jumps(table: &Table) -> Result<(), CompileError> {
    let to: Vec<Vec<ChainId>> = table.chains.iter().map(|chain| targets(table, chain)).collect();
    let mut heights: Vec<Option<usize>> = vec![None; to.len()];
    let name = |at: usize| table.chains.get(at).map_or(String::new(), |chain| chain.name.clone());
    loop {
        let mut found = Vec::new();
        for (at, to) in to.iter().enumerate() {
            let height = |chain: &ChainId| heights.get(chain.0).copied().flatten();
            let all: Option<Vec<usize>> = to.iter().map(height).collect();
            if let (Some(None), Some(all)) = (heights.get(at), all) {
                let highest = all.into_iter().max().map_or(0, |height| height.saturating_add(1));
                if highest > MAX_DEPTH {
                    return Err(CompileError::TooDeep {
                        table: table.name.clone(),
                        chain: name(at),
                    });
                }
                found.push((at, highest));
            }
        }
        if found.is_empty() {
            break;
        }
        for (at, height) in found {
            if let Some(slot) = heights.get_mut(at) {
                *slot = Some(height);
            }
        }
    }
    match heights.iter().position(Option::is_none) {
        Some(at) => Err(CompileError::Loop { table: table.name.clone(), chain: name(at) }),
        None => Ok(()),
    }
}
