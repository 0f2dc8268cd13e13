//! The explanation of a verdict. `adit filter explain` prints it.

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
        /// The rule's table and chain.
        place: RuleLocation,
        /// The rule's index in the chain.
        index: usize,
        /// The rule's handle.
        handle: u32,
        /// The result of the rule.
        end: RuleEnd,
    },
    /// A chain ended or returned; evaluation continues in the chain that jumped to it.
    Back(RuleLocation),
    /// No rule of a base chain decided; its policy did.
    Policy(RuleLocation, Policy),
}

/// A chain of a table.
#[derive(Copy, Clone, Debug, Eq, PartialEq)]
pub struct RuleLocation {
    /// The index into [`crate::ruleset::Ruleset::tables`].
    pub table: usize,
    /// The chain.
    pub chain: ChainId,
}

/// The result of a rule's evaluation.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum RuleEnd {
    /// A statement did not match.
    NoMatch(Mismatch),
    /// All statements were executed without a decision.
    Undecided,
    /// The rule decided, jumped or returned.
    Verdict(RuleVerdict),
    /// The rule rejected the packet.
    Reject(Reject),
}

/// The first statement of a rule that did not match.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct Mismatch {
    /// The index into the rule's statements.
    pub statement: usize,
    /// The fields that the statement compares, with their values in the packet or `None` if missing. Empty for a limit.
    pub values: Vec<(Field, Option<u128>)>,
}
