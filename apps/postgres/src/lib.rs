//! `adit postgres`: a network that transports packets in a database. `adit-postgres` contains the engines. This crate contains the
//! connections to the database, the files of a node, and the commands.

#![forbid(unsafe_code)]

mod admin;
mod change;
pub mod demo;
mod expire;
mod fields;
mod init;
mod invite;
mod join;
mod keys;
pub mod log;
mod member;
pub mod node;
mod paths;
mod register;
mod rekey;
mod remove;
mod settings;
pub mod status;

pub use adit_postgres::{Audit, Durability};
pub use adit_postgres_client::mask_secrets;
pub use change::{SettingsChange, SettingsChanged, add_auditor, remove_auditor, set};
pub use expire::{ExpireReport, expire};
pub use init::{InitOptions, InitOutcome, init};
pub use invite::{Invitation, VALID, invite};
pub use join::{JoinOptions, JoinOutcome, join};
pub use paths::Paths;
pub use rekey::{RekeyReport, rekey};
pub use remove::remove;
pub use settings::{Secrets, Settings};
