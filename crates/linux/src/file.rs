//! Atomic replacement of files.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Replaces `path` with `content` and exactly this mode, through a file next to it whose name has `suffix` appended.
///
/// # Errors
/// The file or its directory cannot be written; `path` is then unchanged.
pub fn replace(path: &Path, content: &[u8], mode: u32, suffix: &str) -> io::Result<()> {
    let directory = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    let mut temporary = path.as_os_str().to_owned();
    temporary.push(suffix);
    let temporary = PathBuf::from(temporary);
    let _ = std::fs::remove_file(&temporary);
    let written = (|| {
        let mut file =
            OpenOptions::new().write(true).create_new(true).mode(mode).open(&temporary)?;
        // The umask may have cleared bits of the mode.
        file.set_permissions(std::fs::Permissions::from_mode(mode))?;
        file.write_all(content)?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)
    })();
    if let Err(error) = written {
        let _ = std::fs::remove_file(&temporary);
        return Err(error);
    }
    sync_directory(directory)
}

/// Makes renames in `directory` survive a power failure.
///
/// # Errors
/// The directory cannot be opened or synchronised.
pub fn sync_directory(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
