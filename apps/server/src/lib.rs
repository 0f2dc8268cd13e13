//! The commands for the managed server, its clients and users, `doctor` and `demo`.
//!
//! All functions return their results as values; the `adit` binary prints them.

#![forbid(unsafe_code)]

pub mod audit;
mod authorizer;
pub mod backup;
mod client_changes;
pub mod clients;
pub mod demo;
pub mod doctor;
mod engine_config;
mod event_settings;
mod events;
mod firewall;
mod helper_duty;
mod host_state;
mod http;
mod init;
mod leases;
mod leftover;
mod login;
mod oidc_settings;
pub mod pam;
mod privileges;
mod processes;
pub mod profile_link;
mod saved_map;
mod selftest;
mod serve;
mod settings;
mod settings_keys;
mod single_sign_on;
mod sites;
mod status;
#[cfg(test)]
mod testing;
mod up;
mod usage;
pub mod users;
mod webhook;

#[doc(hidden)]
pub use login::fuzz_single_sign_on;

pub use event_settings::EventSettings;
pub use helper_duty::SERVER;
pub use host_state::running;
pub use init::{InitOutcome, NewServer, init};
pub use oidc_settings::OidcSettings;
pub use serve::{OnReady, ReadyReport, RunOptions, check, hand_over, run};
pub use settings::{Listen, Login, Nat, Reach, Settings};
pub use settings_keys::{EVENT_KEYS, KEYS, OIDC_KEYS};
pub use status::{Overview, ReloadOutcome, kick, reload, status};
pub use up::{Step, UpOptions, up};
