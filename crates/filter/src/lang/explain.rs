//! Describes a packet's path through the rules for a human reader.

use std::fmt::Write;

use super::print::{family, verdict_text};
use super::print::{field_text, priority_text, reject_text, rule_text, statement_text, value_text};
use crate::evaluate::{Mismatch, RuleEnd, RuleLocation, Step, Trace, Verdict};
use crate::ruleset::{Chain, Policy, Rule, RuleVerdict, Ruleset, Statement, Table};

/// Describes a trace: each visited base chain, each rule with the statement that did not match,
/// jumps indented, and the verdict in the last line.
pub fn explain(ruleset: &Ruleset, trace: &Trace) -> String {
    let mut teller = Explainer { ruleset, out: String::new(), depth: 0, policy: None, by: None };
    for step in &trace.steps {
        teller.step(step);
    }
    if trace.steps.is_empty() {
        teller.line("no base chain sees this packet");
    }
    teller.verdict(trace);
    teller.out
}

struct Explainer<'a> {
    ruleset: &'a Ruleset,
    out: String,
    /// The number of chains that wait for a chain that they jumped to.
    depth: usize,
    policy: Option<RuleLocation>,
    by: Option<(RuleLocation, u32)>,
}

impl<'a> Explainer<'a> {
    fn line(&mut self, text: &str) {
        self.indented(0, text);
    }

    fn indented(&mut self, more: usize, text: &str) {
        let depth = self.depth.saturating_mul(4).saturating_add(more);
        self.out.extend(std::iter::repeat_n(' ', depth));
        self.out.push_str(text);
        self.out.push('\n');
    }

    fn chain(&self, place: RuleLocation) -> Option<(&'a Table, &'a Chain)> {
        let table = self.ruleset.tables.get(place.table)?;
        Some((table, table.chains.get(place.chain.0)?))
    }

    fn name(&self, place: RuleLocation) -> String {
        self.chain(place).map_or_else(String::new, |(_, chain)| chain.name.clone())
    }

    fn step(&mut self, step: &Step) {
        match step {
            Step::Base(place) => {
                self.depth = 0;
                self.policy = None;
                if let Some((table, chain)) = self.chain(*place) {
                    let priority = chain.base.map_or_else(String::new, |base| {
                        format!(", priority {}", priority_text(table.family, base))
                    });
                    let family = family(table.family);
                    self.line(&format!(
                        "base chain {} of table {family} {}{priority}",
                        chain.name, table.name
                    ));
                }
            }
            Step::Rule { place, index, handle, end } => {
                if let Some((table, chain)) = self.chain(*place)
                    && let Some(rule) = chain.rules.get(*index)
                {
                    self.rule(table, rule, end);
                }
                if matches!(end, RuleEnd::Verdict(_) | RuleEnd::Reject(_)) {
                    self.by = Some((*place, *handle));
                }
            }
            Step::Back(place) => {
                self.depth = self.depth.saturating_sub(1);
                let text = format!("back in chain {}", self.name(*place));
                self.indented(2, &text);
            }
            Step::Policy(place, policy) => {
                self.depth = 0;
                self.policy = Some(*place);
                let policy = match policy {
                    Policy::Accept => "accept",
                    Policy::Drop => "drop",
                };
                self.indented(2, &format!("no rule decides: policy {policy}"));
            }
        }
    }

    fn rule(&mut self, table: &Table, rule: &Rule, end: &RuleEnd) {
        let mut text = format!("line {}: {}", rule.line, rule_text(table, rule));
        if let Some(comment) = &rule.comment {
            let _ = write!(text, " comment \"{comment}\"");
        }
        self.indented(2, &text);
        match end {
            RuleEnd::NoMatch(mismatch) => {
                let why = mismatched(table, rule, mismatch);
                self.indented(6, &format!("no: {why}"));
            }
            RuleEnd::Undecided => self.indented(6, "yes, and on to the next rule"),
            RuleEnd::Reject(how) => self.indented(6, &format!("yes: {}", reject_text(*how))),
            RuleEnd::Verdict(verdict) => {
                let found = looked_up(table, rule);
                let verdict_name = verdict_text(table, *verdict);
                self.indented(6, &format!("yes: {verdict_name}{found}"));
                if let RuleVerdict::Jump(to) | RuleVerdict::Goto(to) = verdict {
                    if matches!(verdict, RuleVerdict::Jump(_)) {
                        self.depth = self.depth.saturating_add(1);
                    }
                    let name = table.chains.get(to.0).map_or("", |c| &c.name);
                    self.line(&format!("chain {name}"));
                }
            }
        }
    }

    fn verdict(&mut self, trace: &Trace) {
        self.depth = 0;
        let what = match trace.verdict {
            Verdict::Accept => "accepted".to_owned(),
            Verdict::Drop => "dropped".to_owned(),
            Verdict::Reject(how) => format!("rejected ({})", reject_text(how)),
        };
        let by = match (trace.by, self.by, self.policy) {
            (Some(handle), Some((place, last)), _) if handle == last => {
                let line = self
                    .chain(place)
                    .and_then(|(_, chain)| chain.rules.iter().find(|r| r.handle == handle))
                    .map_or(0, |rule| rule.line);
                format!("by line {line}, in chain {}", self.name(place))
            }
            (Some(handle), ..) => format!("by the rule with handle {handle}"),
            (None, _, Some(place)) => format!("by the policy of chain {}", self.name(place)),
            (None, ..) => "because nothing is against it".to_owned(),
        };
        self.line(&format!("=> {what} {by}"));
    }
}

/// Describes that a verdict map decided.
fn looked_up(table: &Table, rule: &Rule) -> String {
    let map = rule.statements.iter().find(|s| matches!(s, Statement::VerdictMap { .. }));
    let last = matches!(rule.statements.last(), Some(Statement::VerdictMap { .. }));
    match map {
        Some(map) if last => format!(", as `{}` says", statement_text(table, map)),
        _ => String::new(),
    }
}

/// Describes the first statement that did not match, with the packet's values.
fn mismatched(table: &Table, rule: &Rule, mismatch: &Mismatch) -> String {
    let statement = rule.statements.get(mismatch.statement);
    let text = statement.map_or_else(String::new, |s| statement_text(table, s));
    let (missing, known): (Vec<_>, Vec<_>) = mismatch.values.iter().partition(|v| v.1.is_none());
    if let Some((field, _)) = missing.first() {
        return format!("`{text}`, but the packet has no {}", field_text(*field));
    }
    let values = known.iter().filter_map(|(field, value)| {
        Some(format!("{} is {}", field_text(*field), value_text(field.kind(), (*value)?)))
    });
    let values = values.collect::<Vec<_>>().join(" and ");
    match statement {
        Some(Statement::Limit(limit)) if limit.over => {
            format!("`{text}`, but the rate is not reached")
        }
        Some(Statement::Limit(_)) => format!("`{text}`, but the rate is reached"),
        Some(Statement::Reject(_)) => format!("`{text}` cannot answer this packet"),
        Some(Statement::VerdictMap { .. }) => format!("`{text}` has no element: {values}"),
        _ => format!("`{text}`, but {values}"),
    }
}
