//! Tests of `adit postgres`, on machines that can reach only a database and exchange packets through it.

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

/// Returns all scenarios but the long ones.
pub(super) fn scenarios() -> impl Iterator<Item = &'static (&'static str, ScenarioFn)> {
    SCENARIOS.iter().flat_map(|scenarios| scenarios.iter())
}

/// Returns the scenarios that take minutes.
pub(super) fn long() -> impl Iterator<Item = &'static (&'static str, ScenarioFn)> {
    outages::LONG.iter().chain(scale::LONG)
}
