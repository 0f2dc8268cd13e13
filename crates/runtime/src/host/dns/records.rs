//! Records of DNS settings, to undo the settings of killed processes.

use std::fs;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::back_ends::{self, Link};
use super::plan::BackEnd;
use crate::host::owner::{StateFile, began, files, namespace};

/// The directory of the records. It is in an in-memory file system, because a reboot removes the settings too.
const FOLDER: &str = "run/adit";

/// The maximum number of records that are read for one network namespace, so that a directory full of them does not
/// delay startup.
const LIMIT: usize = 256;

/// The suffix of a record's name.
const SUFFIX: &str = ".dns";

#[derive(Debug, Serialize, Deserialize)]
struct DnsChanges {
    /// The inode of the network namespace.
    namespace: u64,
    /// The time when the process started.
    began: u64,
    back_end: BackEnd,
    device: String,
    index: u32,
}

/// Records the settings that are about to be changed. If that fails, the tunnel still works.
pub(super) fn write(root: &Path, back_end: BackEnd, link: &Link) -> Option<PathBuf> {
    let folder = root.join(FOLDER);
    fs::create_dir_all(&folder).ok()?;
    let pid = std::process::id();
    let path = folder.join(format!("{pid}-{}-{}{SUFFIX}", link.index, namespace()));
    let page = DnsChanges {
        namespace: namespace(),
        began: began(pid).unwrap_or(0),
        back_end,
        device: link.name.clone(),
        index: link.index,
    };
    let bytes = serde_json::to_vec(&page).ok()?;
    let mut options = fs::OpenOptions::new();
    let mut file = options.write(true).create(true).truncate(true).mode(0o600).open(&path).ok()?;
    std::io::Write::write_all(&mut file, &bytes).ok()?;
    Some(path)
}

/// Returns whether a record of a dead process exists.
pub(super) fn is_left(root: &Path) -> bool {
    !dead(root).is_empty()
}

/// Returns the records of dead processes in this network namespace.
fn dead(root: &Path) -> Vec<(PathBuf, DnsChanges)> {
    let namespace = namespace();
    let mut found = Vec::new();
    for StateFile { path, pid } in files(&root.join(FOLDER), SUFFIX, namespace).take(LIMIT) {
        let page = fs::read(&path).ok();
        let page = page.and_then(|bytes| serde_json::from_slice::<DnsChanges>(&bytes).ok());
        let Some(page) = page.filter(|page| page.namespace == namespace) else { continue };
        if began(pid) != Some(page.began) {
            found.push((path, page));
        }
    }
    found
}

/// Undoes the settings in the records of dead processes.
pub(super) async fn clean_up(root: &Path) {
    for (path, page) in dead(root) {
        let link = Link { name: page.device, index: page.index };
        match back_ends::undo(page.back_end, &link).await {
            Ok(()) => tracing::warn!(
                "{}: DNS settings for {} removed: left by a killed process",
                page.back_end,
                link.name
            ),
            // The settings may have disappeared with the device.
            Err(e) => tracing::debug!("DNS settings of a killed process: {e}"),
        }
        let _ = fs::remove_file(path);
    }
}
