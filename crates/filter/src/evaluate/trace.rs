//! The explanation of a verdict, which `adit filter explain` prints.

use crate::evaluate::Verdict;
use crate::ruleset::{ChainId, Field, Policy, Reject, RuleVerdict};

/// The path of a packet through the rules.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Trace {
    /// The steps, in order.
    pub steps: Vec<Step>,
    /// The verdict.
    pub verdict: Verdict,
    /// The rule that decided; `None` if a policy did.
    pub by: Option<u32>,
}

/// One step of the path.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum Step {
    /// A base chain begins.
    Base(RuleLocation),
    /// A rule was visited.
    Rule {
        /// Its table and chain.
        place: RuleLocation,
        /// Its index in the chain.
        index: usize,
        /// Its handle.
        handle: u32,
        /// The end of the rule.
        end: RuleEnd,
    },
    /// A chain ended or returned: the one that jumped to it continues.
    Back(RuleLocation),
    /// No rule of a base chain decided.
    Policy(RuleLocation, Policy),
}

/// A chain of a table.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct RuleLocation {
    /// Index into [`crate::ruleset::Ruleset::tables`].
    pub table: usize,
    /// The chain.
    pub chain: ChainId,
}

/// The end of a rule's evaluation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RuleEnd {
    /// A statement did not match.
    NoMatch(Mismatch),
    /// All statements were executed and none decided.
    Undecided,
    /// It decided, jumped or returned.
    Verdict(RuleVerdict),
    /// It rejected.
    Reject(Reject),
}

/// The first statement of a rule that did not match.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mismatch {
    /// Index into the rule's statements.
    pub statement: usize,
    /// The fields that it compares and their values in the packet, `None` if missing. Empty for a limit.
    pub values: Vec<(Field, Option<u128>)>,
}
