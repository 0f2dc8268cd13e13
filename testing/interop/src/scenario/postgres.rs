//! `adit postgres`: machines that reach nothing but a database, and the fate of their packets.

mod access;
mod faults;
mod flow;
mod hostile;
mod itself;
mod leaves;
mod log;
mod outages;
mod pooler;
mod rekey;
mod rows;
mod scale;
mod settings;
mod testbed;

use super::ScenarioFn;

/// The scenarios. Those of the last list take minutes and are run on request.
const SCENARIOS: &[&[(&str, ScenarioFn)]] = &[
    itself::SCENARIOS,
    access::SCENARIOS,
    rows::SCENARIOS,
    faults::SCENARIOS,
    outages::SCENARIOS,
    hostile::SCENARIOS,
    leaves::SCENARIOS,
    log::SCENARIOS,
    settings::SCENARIOS,
    pooler::SCENARIOS,
    rekey::SCENARIOS,
];

/// Returns all of them.
pub(super) fn scenarios() -> impl Iterator<Item = &'static (&'static str, ScenarioFn)> {
    SCENARIOS.iter().flat_map(|scenarios| scenarios.iter())
}

/// Returns those that take minutes.
pub(super) fn long() -> impl Iterator<Item = &'static (&'static str, ScenarioFn)> {
    outages::LONG.iter().chain(scale::LONG)
}
