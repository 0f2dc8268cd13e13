//! `adit mesh`: a machine as a node of a mesh.
//!
//! Everything here returns its findings and results as values; the `adit` binary prints them.

#![forbid(unsafe_code)]

mod admin_keys;
mod directory;
mod found;
pub mod guest;
mod import_tinc;
mod join;
mod join_streams;
pub mod node;
mod paths;
mod phrase;
mod port_mapping;
mod reach;
mod recover;
mod roster_file;
mod settings;
mod state;
#[cfg(test)]
mod testing;

pub use adit_dataplane::HOST;
pub use adit_mesh::node::MAX_POLICY;
pub use adit_mesh::roster::Layer;
pub use adit_postgres_client::mask_secrets;
pub use directory::{
    DirectoryChosen, DirectoryInit, InitOptions, init_directory, use_directory, use_file, use_hint,
};
pub use found::{Founded, NewMesh, found};
pub use import_tinc::{Import, ImportOptions, ImportPlan, ImportedMember, ImportedToken};
pub use join::{JoinOutcome, NewNode, Waiting, join};
pub use paths::{DEFAULT_NAME, Paths};
pub use phrase::WORDS;
pub use recover::{phrases, recover};
pub use settings::Settings;

/// The beginning of a key's hash in hex, in groups. It is so long that no one can find another key with the same beginning.
pub fn fingerprint(hash: &[u8]) -> String {
    let groups = hash
        .chunks(2)
        .take(8)
        .map(|group| group.iter().map(|byte| format!("{byte:02x}")).collect());
    groups.collect::<Vec<String>>().join(" ")
}

/// The beginning of a key's hash in hex, by which people tell keys apart.
pub fn short(hash: &[u8]) -> String {
    hash.iter().take(4).map(|byte| format!("{byte:02x}")).collect()
}
