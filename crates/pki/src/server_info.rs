//! A store's record of its server.

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::disk::{self, OpenFile};
use crate::{ClientName, PkiError, Remote};

/// The version of the layout of `server.json`. Files without a version have the first one.
const INFO_VERSION: u32 = 1;

/// A store's record of its server: the file `server.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ServerInfo {
    /// Common name of the server's certificate.
    pub name: ClientName,
    /// The server's address in new profiles.
    pub remote: Remote,
    /// End of the authority's validity and of revocation lists, seconds since 1970.
    pub ca_expires: u64,
    /// End of the validity of the server's certificate, seconds since 1970.
    pub server_expires: u64,
}

impl ServerInfo {
    pub(crate) fn write(&self, dir: &Path) -> Result<(), PkiError> {
        #[derive(Serialize)]
        struct Versioned<'a> {
            version: u32,
            #[serde(flatten)]
            info: &'a ServerInfo,
        }
        let path = dir.join("server.json");
        let mut content =
            serde_json::to_vec_pretty(&Versioned { version: INFO_VERSION, info: self })
                .map_err(|error| PkiError::Damaged(path.clone(), error.to_string()))?;
        content.push(b'\n');
        disk::write(&path, &content, 0o644)
    }

    pub(crate) fn read(dir: &Path, open: OpenFile) -> Result<Self, PkiError> {
        let path = dir.join("server.json");
        let content = disk::read(&path, open)?;
        disk::check_layout(&path, &content, INFO_VERSION)?;
        serde_json::from_slice(&content).map_err(|error| PkiError::Damaged(path, error.to_string()))
    }
}
