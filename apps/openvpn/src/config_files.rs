//! Access of the network process to config files.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use adit_openvpn::config::{Disk, Files};
use adit_runtime::helper::{current, files::contents};

/// Config files, and the contents of those that can be read only once.
#[derive(Debug, Default)]
pub(crate) struct Configs {
    piped: std::cell::RefCell<Vec<(PathBuf, Vec<u8>)>>,
}

impl Configs {
    /// Returns the contents of files that were pipes.
    pub(crate) fn into_piped(self) -> Vec<(PathBuf, Vec<u8>)> {
        self.piped.into_inner()
    }
}

impl Files for Configs {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        if current().is_some() {
            return contents(path);
        }
        let plain = fs::metadata(path).is_ok_and(|data| data.is_file());
        let bytes = Disk.read(path)?;
        if !plain {
            self.piped.borrow_mut().push((path.to_owned(), bytes.clone()));
        }
        Ok(bytes)
    }
}
