//! `adit postgres`: a network whose wire is a database. The engines are `adit-postgres`; here are the database's
//! connections, the files of a node, and what the verbs do.

pub mod database;
pub mod node;
mod places;
mod settings;

pub use places::Places;
pub use settings::{Secrets, Settings};
