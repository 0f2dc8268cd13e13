//! Checks that packets reach a rule set's chains.
//!
//! A truncated file, or one without its `type filter hook forward` line, is valid and lets every packet pass. A
//! firewall must not accept it by accident, so it is refused unless it states that this is intended.

use super::lex::{Span, SyntaxError};
use super::raw_ruleset::RawRuleset;
use crate::ruleset::{Members, RuleVerdict, Ruleset, Statement, Table};

/// The definition in a file that asks for acceptance although some or all chains are not reachable from a hook.
pub const ALLOW_UNHOOKED: &str = "adit_allow_unhooked";

const HINT: &str = "`type filter hook forward priority filter;` in the chain, or a jump to it; if it is meant, \
                    `define adit_allow_unhooked = 1` on a line of its own";

/// Returns an error for each chain of a table that no base chain leads to, at the chain's position.
pub(super) fn unreached(draft: &RawRuleset) -> Vec<SyntaxError> {
    let reached = reached(&draft.table);
    let chains = draft.table.chains.iter().zip(&draft.chains).zip(reached);
    let lost = chains.filter(|(_, reached)| !reached);
    lost.map(|((chain, note), _)| {
        let message = format!(
            "no hook leads to chain `{}` of table `{}`: no packet would come to it",
            chain.name, draft.table.name
        );
        SyntaxError::new(note.at, message).hint(HINT)
    })
    .collect()
}

/// Returns a single error in place of `unreached`, if no chain has a hook.
pub(super) fn without_a_base(ruleset: &Ruleset, unreached: Vec<SyntaxError>) -> Vec<SyntaxError> {
    let mut chains = ruleset.tables.iter().flat_map(|table| &table.chains);
    if chains.any(|chain| chain.base.is_some()) {
        return unreached;
    }
    let start = Span { file: 0, line: 1, column: 1, length: 1 };
    let at = unreached.first().map_or(start, |first| first.at);
    vec![SyntaxError::new(at, "no chain has a hook: every packet would pass").hint(HINT)]
}

/// Returns, by chain, whether it is a base chain or reached from one by jumps, gotos and verdict maps.
fn reached(table: &Table) -> Vec<bool> {
    let mut reached = vec![false; table.chains.len()];
    let bases = table.chains.iter().enumerate().filter(|(_, chain)| chain.base.is_some());
    let mut open: Vec<usize> = bases.map(|(at, _)| at).collect();
    while let Some(at) = open.pop() {
        match reached.get_mut(at) {
            Some(known @ false) => *known = true,
            _ => continue,
        }
        let rules = table.chains.get(at).map_or(&[][..], |chain| &chain.rules);
        for statement in rules.iter().flat_map(|rule| &rule.statements) {
            match statement {
                Statement::Verdict(verdict) => open.extend(target(*verdict)),
                Statement::VerdictMap { map, .. } => {
                    let map = table.sets.get(map.0).map(|set| &set.members);
                    let Some(Members::Fixed(elements)) = map else { continue };
                    open.extend(elements.iter().filter_map(|one| target(one.verdict?)));
                }
                _ => {}
            }
        }
    }
    reached
}

const fn target(verdict: RuleVerdict) -> Option<usize> {
    match verdict {
        RuleVerdict::Jump(chain) | RuleVerdict::Goto(chain) => Some(chain.0),
        _ => None,
    }
}
