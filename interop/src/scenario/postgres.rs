//! `adit postgres`: machines that reach nothing but a database, and what becomes of their packets.

mod access;
mod bed;
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

use super::Scene;

/// The scenarios. Those of the last list take minutes and are run when asked for.
const SCENES: &[&[(&str, Scene)]] = &[
    itself::SCENES,
    access::SCENES,
    rows::SCENES,
    faults::SCENES,
    outages::SCENES,
    hostile::SCENES,
    leaves::SCENES,
    log::SCENES,
    settings::SCENES,
    pooler::SCENES,
    rekey::SCENES,
];

/// All of them.
pub(super) fn scenes() -> impl Iterator<Item = &'static (&'static str, Scene)> {
    SCENES.iter().flat_map(|scenes| scenes.iter())
}

/// Those that take minutes.
pub(super) fn long() -> impl Iterator<Item = &'static (&'static str, Scene)> {
    outages::LONG.iter().chain(scale::LONG)
}
