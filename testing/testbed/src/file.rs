//! Files with a mode.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use crate::failure::{Context as _, Result};

/// Writes a file, and sets its mode.
///
/// # Errors
/// Names the file.
pub fn write(path: impl AsRef<Path>, contents: impl AsRef<[u8]>, mode: u32) -> Result<()> {
    let path = path.as_ref();
    fs::write(path, contents).context(path.display())?;
    set_mode(path, mode)
}

/// Sets the mode of a file or folder.
///
/// # Errors
/// Names it.
pub fn set_mode(path: impl AsRef<Path>, mode: u32) -> Result<()> {
    let path = path.as_ref();
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).context(path.display())
}
