//! The call graph of a recording: callers, callees, and the share of samples of each call.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use adit_testbed::failure::{Context, Result};

use crate::table::table;

/// The number of functions shown.
const FUNCTIONS: usize = 40;
/// The number of callers and callees shown for each function.
const NEIGHBOURS: usize = 5;
/// The share of samples below which a call is left out of the drawing.
const DRAWN: f64 = 0.01;

/// Samples by function and by call.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Calls {
    total: u64,
    /// The samples of each function by name: in the function itself, and in it or its callees.
    functions: BTreeMap<String, (u64, u64)>,
    /// The samples of each call, by caller and callee.
    edges: BTreeMap<(String, String), u64>,
}

impl Calls {
    /// Sums up folded stacks: lines of `outer;inner;innermost samples`.
    pub(super) fn read(folded: &str) -> Result<Self> {
        let mut calls = Self::default();
        for line in folded.lines().filter(|line| !line.is_empty()) {
            let (stack, count) =
                line.rsplit_once(' ').context(format!("no folded stack: {line}"))?;
            let count: u64 = count.parse().context(format!("no folded stack: {line}"))?;
            calls.add(&stack.split(';').collect::<Vec<_>>(), count);
        }
        Ok(calls)
    }

    /// Adds a stack. A function that occurs in it more than once counts the stack's samples once.
    fn add(&mut self, stack: &[&str], count: u64) {
        self.total += count;
        let functions: BTreeSet<&str> = stack.iter().copied().collect();
        for name in functions {
            self.functions.entry(name.to_owned()).or_default().1 += count;
        }
        if let Some(last) = stack.last() {
            self.functions.entry((*last).to_owned()).or_default().0 += count;
        }
        let edges: BTreeSet<(&str, &str)> =
            stack.iter().copied().zip(stack.iter().skip(1).copied()).collect();
        for (caller, callee) in edges {
            *self.edges.entry((caller.to_owned(), callee.to_owned())).or_default() += count;
        }
    }

    fn percent(&self, count: u64) -> f64 {
        count as f64 * 100.0 / self.total.max(1) as f64
    }

    /// Ranks functions by the samples in them or below them, highest first.
    fn ranked(&self) -> Vec<(&str, u64, u64)> {
        let mut all: Vec<_> = self
            .functions
            .iter()
            .map(|(name, (own, total))| (name.as_str(), *own, *total))
            .collect();
        all.sort_by(|a, b| b.2.cmp(&a.2).then(b.1.cmp(&a.1)).then(a.0.cmp(b.0)));
        all
    }

    /// Returns a table of the busiest functions, then each with its callers and callees.
    pub(super) fn markdown(&self) -> String {
        let ranked = self.ranked();
        // The start of a thread and its main loop are left out, because everything passes through
        // them.
        let passed = |own: u64, total: u64| self.percent(total) > 98.0 && self.percent(own) < 2.0;
        let shown = ranked.iter().filter(|(_, own, total)| !passed(*own, *total)).take(FUNCTIONS);
        let mut by_self = ranked.clone();
        by_self.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        by_self.truncate(FUNCTIONS);
        let rows: Vec<Vec<String>> = by_self
            .iter()
            .filter(|(_, own, _)| *own > 0)
            .map(|(name, own, total)| {
                let cell = |count| format!("{:.1}", self.percent(count));
                vec![format!("`{name}`"), cell(*own), cell(*total)]
            })
            .collect();
        let mut text = format!("# Where the time went\n\n{} samples.\n\n", self.total);
        text += &table(&["function", "itself %", "with callees %"], &rows);
        text += "\n# Who calls whom\n";
        for (name, own, total) in shown {
            let (own, total) = (self.percent(*own), self.percent(*total));
            // Writing into a string cannot fail.
            let _ = write!(
                text,
                "\n## `{name}`\n\n{total:.1} % of all samples, {own:.1} % in itself.\n\n"
            );
            text +=
                &self.neighbours("called by", |caller, callee| (callee == *name).then_some(caller));
            text += &self.neighbours("calls", |caller, callee| (caller == *name).then_some(callee));
        }
        text
    }

    fn neighbours<'c>(
        &'c self,
        what: &str,
        of: impl Fn(&'c str, &'c str) -> Option<&'c str>,
    ) -> String {
        let mut found: Vec<(&str, u64)> = self
            .edges
            .iter()
            .filter_map(|((caller, callee), count)| Some((of(caller, callee)?, *count)))
            .collect();
        found.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        let lines = found.iter().take(NEIGHBOURS);
        let list: String = lines
            .map(|(name, count)| format!("- {what} `{name}`: {:.1} %\n", self.percent(*count)))
            .collect();
        list
    }

    /// Returns the graph for Graphviz, without rare calls.
    pub(super) fn dot(&self) -> String {
        let mut text = String::from("digraph calls {\n  node [shape=box, fontname=monospace];\n");
        let least = (self.total as f64 * DRAWN) as u64;
        let quoted = |name: &str| format!("\"{}\"", name.replace(['"', '\\'], "'"));
        for (name, own, total) in self.ranked().into_iter().filter(|(_, _, total)| *total > least) {
            let (own, total) = (self.percent(own), self.percent(total));
            let _ = writeln!(
                text,
                "  {0} [label=\"{1}\\n{total:.1} %, itself {own:.1} %\"];",
                quoted(name),
                name.replace(['"', '\\'], "'")
            );
        }
        for ((caller, callee), count) in self.edges.iter().filter(|(_, count)| **count > least) {
            let percent = self.percent(*count);
            let _ = writeln!(
                text,
                "  {} -> {} [label=\"{percent:.1} %\", penwidth={:.1}];",
                quoted(caller),
                quoted(callee),
                1.0 + percent / 20.0
            );
        }
        text + "}\n"
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLDED: &str = "adit;main;worker;seal 60\nadit;main;worker 10\nadit;main;open;open 30\n";

    #[test]
    fn shares_are_summed_by_function_and_by_call() {
        let calls = Calls::read(FOLDED).unwrap();
        assert_eq!(calls.total, 100);
        assert_eq!(calls.functions["worker"], (10, 70));
        assert_eq!(calls.functions["seal"], (60, 60));
        assert_eq!(calls.functions["main"], (0, 100));
        assert_eq!(calls.functions["open"], (30, 30), "recursion does not count twice");
        let edge = |a: &str, b: &str| calls.edges[&(a.to_owned(), b.to_owned())];
        assert_eq!(
            (edge("main", "worker"), edge("worker", "seal"), edge("open", "open")),
            (70, 60, 30)
        );
    }

    #[test]
    fn the_table_names_callers_and_callees() {
        let text = Calls::read(FOLDED).unwrap().markdown();
        let worker = text.split("## `worker`").nth(1).unwrap();
        assert!(worker.contains("70.0 % of all samples, 10.0 % in itself"), "{text}");
        assert!(worker.contains("- called by `main`: 70.0 %\n- calls `seal`: 60.0 %\n"), "{text}");
        let first = text.lines().find(|line| line.starts_with("| `")).unwrap();
        assert!(
            first.contains("`seal`") && first.contains("60.0"),
            "the busiest comes first: {first}"
        );
    }

    #[test]
    fn the_drawing_leaves_out_what_hardly_happened() {
        let dot = Calls::read(&format!("{FOLDED}adit;rare 1\n")).unwrap().dot();
        assert!(dot.contains("\"main\" -> \"worker\"") && !dot.contains("rare"), "{dot}");
    }

    #[test]
    fn what_is_no_folded_stack_is_named() {
        assert!(Calls::read("main;seal\n").unwrap_err().0.contains("main;seal"));
    }
}
