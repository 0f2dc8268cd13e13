//! What the verbs of `adit` do: the managed server, its clients, `doctor` and `demo`.
//!
//! Everything here returns what it found or did as values; the `adit` binary prints them.

mod authorizer;
pub mod clients;
pub mod demo;
pub mod doctor;
mod engine_config;
mod firewall;
mod helper_scope;
mod host_state;
mod init;
mod leases;
mod leftover;
mod netinfo;
mod paths;
mod privileges;
mod processes;
mod selftest;
mod serve;
mod settings;
mod settings_keys;
mod status;
mod up;

pub(crate) use helper_scope::HelperScope;
pub(crate) use host_state::HostState;
pub use host_state::running;
pub use init::{Created, NewServer, init};
pub(crate) use netinfo::local_networks;
pub use paths::Paths;
pub(crate) use paths::{make_folder, shell_word, write_whole};
pub(crate) use privileges::claim;
pub use serve::{OnReady, Ready, run};
pub(crate) use settings::checked_device;
pub use settings::{Listen, Nat, Reach, Settings};
pub use settings_keys::{KEYS, Key};
pub use status::{Overview, Reloaded, kick, reload, status};
pub use up::{Step, UpOptions, up};
