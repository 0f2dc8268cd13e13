//! What the verbs of `adit` do: the managed server, its clients, `doctor` and `demo`.
//!
//! Everything here returns what it found or did as values; the `adit` binary prints them.

mod failure;
mod places;
mod settings;
mod template;

pub use failure::Outcome;
pub use places::Places;
pub use settings::{Listen, Nat, Reach, Settings};
