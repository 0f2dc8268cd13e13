//! What the verbs of `adit` do: the managed server, its clients, `doctor` and `demo`.
//!
//! Everything here returns what it found or did as values; the `adit` binary prints them.

mod authority;
mod bounds;
pub mod clients;
pub mod demo;
pub mod doctor;
mod engine;
mod failure;
mod firewall;
mod init;
mod leases;
mod leftover;
mod machine;
mod places;
mod processes;
mod rights;
mod selftest;
mod serve;
mod settings;
mod status;
mod survey;
mod template;
mod up;

pub(crate) use bounds::Bounds;
pub use failure::Outcome;
pub use init::{Choices, Created, init};
pub(crate) use machine::Machine;
pub use machine::running;
pub use places::Places;
pub(crate) use places::{make_folder, shell_word, write_whole};
pub(crate) use rights::claim;
pub use serve::{OnReady, Ready, run};
pub(crate) use settings::checked_device;
pub use settings::{Listen, Nat, Reach, Settings};
pub use status::{Overview, Reloaded, kick, reload, status};
pub(crate) use survey::{kernel_random, local_networks};
pub use template::{KEYS, Key};
pub use up::{Step, UpOptions, up};
