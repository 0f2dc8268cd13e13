//! What a serving process may still do: its network, its own files, and nft at the end.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use adit_linux::privileges::{Capability, Privileges, Profile, Violation, protect_memory};

use super::failure::Outcome;
use super::places::Places;
use crate::fault::Fault;
use crate::say;

/// No core dumps, no debugger: there are keys in memory.
pub(super) fn protect_secrets() {
    if let Err(error) = protect_memory() {
        tracing::warn!("keys may reach core dumps: {error}");
    }
}

/// Gives up every capability but the one for the network, and all system calls that a daemon with
/// programs to start does not make. Irreversible; before threads are started.
///
/// # Errors
/// It could not be done; going on would be running with rights that the operator believes gone.
pub(super) fn drop_all_but_needed(places: &Places) -> Outcome<()> {
    let mut keep = vec![Capability::CAP_NET_ADMIN];
    if !open_to_root(places) {
        // A folder in somebody's private home: without this even root stays outside.
        keep.push(Capability::CAP_DAC_OVERRIDE);
        say!(2, "the folders lie where only another user may go: file rights are kept");
    }
    let seccomp = Some((Profile::DaemonWithPrograms, Violation::Refuse));
    let privileges = Privileges { keep, seccomp, ..Privileges::default() };
    privileges.drop().map_err(|error| Fault::environment(error.to_string()))
}

/// Whether plain root, without its power over file modes, reads and writes what it must.
fn open_to_root(places: &Places) -> bool {
    let folders = [&places.config, &places.data, &places.run];
    let owned = folders.iter().all(|folder| fs::metadata(folder).is_ok_and(|m| m.uid() == 0));
    let passable = |folder: &Path| {
        fs::metadata(folder).is_ok_and(|meta| meta.uid() == 0 || meta.mode() & 0o001 != 0)
    };
    owned && folders.iter().all(|folder| folder.ancestors().all(passable))
}
