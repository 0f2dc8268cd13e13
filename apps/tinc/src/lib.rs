//! `adit tinc`: the commands of tinc 1.1.
//!
//! The commands read and write the same files as tinc's, print the same lines and return the same exit codes, so that scripts and
//! habits keep working. Those that concern a running daemon speak the protocol of its control socket ([`control`]), no matter
//! whether the daemon is tinc's or adit's.
//!
//! Each command is a function that gets the [`Net`] and a [`Console`]. It returns an error if tinc would exit with 1.

#![forbid(unsafe_code)]

mod conf_file;
mod console;
pub mod control;
pub mod daemon;
mod edit;
mod exchange;
mod fsck;
mod init;
mod invite;
mod join;
mod keys;
mod launch;
mod net;
pub mod report;
mod sign;
#[cfg(test)]
mod testing;
mod variables;

pub use console::Console;
pub use edit::{edit, net_names, networks};
pub use exchange::{export, export_all, import};
pub use fsck::fsck;
pub use init::init;
pub use invite::{Invitation, invitations, invite};
pub use join::join;
pub use keys::generate_ed25519;
pub use launch::{restart, start, stop};
pub use net::{ALL_NETS, Net, NetOptions};
pub use sign::{sign, verify};
pub use variables::{Change, change, get};

/// Returns whether a text can be a node's name.
pub fn is_node_name(text: &str) -> bool {
    text.parse::<adit_tinc::name::NodeName>().is_ok()
}

/// The version that scripts of tinc users expect, with adit's own.
pub const VERSION: &str = concat!("1.1 (adit ", env!("CARGO_PKG_VERSION"), ", protocol 17.7)");

/// The reason why RSA keys are refused.
pub const NO_RSA: &str = "RSA keys belong to tinc 1.0's protocol, which adit does not speak. Use generate-ed25519-keys; nodes of \
                          tinc 1.0 are reached through a node of tinc 1.1";
