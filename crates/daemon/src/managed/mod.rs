//! What the verbs of `adit` do: the managed server, its clients, `doctor` and `demo`.
//!
//! Everything here returns what it found or did as values; the `adit` binary prints them.

mod authority;
pub mod clients;
pub mod doctor;
mod failure;
mod firewall;
mod init;
mod machine;
mod places;
mod settings;
mod survey;
mod template;

pub use failure::Outcome;
pub use firewall::ForeignDrop;
pub use init::{Choices, Created, init};
pub use machine::running;
pub use places::Places;
pub use settings::{Listen, Nat, Reach, Settings};
pub use survey::{is_private, local_networks, outside_address};
