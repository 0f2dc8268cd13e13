use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;

use crate::registry::{Registry, admission_of};
use crate::{Admission, Client, PkiError, Store};

/// The registry held in memory by the process that faces the network, read again when it changes.
///
/// Ten thousand clients that reconnect at once must not each cost a reading of ten thousand entries.
#[derive(Debug)]
pub struct Roster {
    path: PathBuf,
    stamp: Stamp,
    clients: HashMap<String, Client>,
}

/// Every change lands by rename: another inode, another time.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Stamp {
    inode: u64,
    seconds: i64,
    nanoseconds: i64,
    size: u64,
}

impl Roster {
    /// Reads the registry of `store`.
    pub fn new(store: &Store) -> Result<Self, PkiError> {
        let path = store.files().clients;
        let stamp = stamp(&path)?;
        let clients = read(&path)?;
        Ok(Self { path, stamp, clients })
    }

    /// Reads the registry again if it changed; `true` if so. After an error the former content stays, and
    /// the next call tries again.
    pub fn refresh(&mut self) -> Result<bool, PkiError> {
        // Taken first: a change between the two is seen next time.
        let stamp = stamp(&self.path)?;
        if stamp == self.stamp {
            return Ok(false);
        }
        self.clients = read(&self.path)?;
        self.stamp = stamp;
        Ok(true)
    }

    /// As [`Store::admission`], as of the last reading.
    pub fn admission(&self, name: &str, serial: &str) -> Admission {
        self.client(name).map_or(Admission::Unknown, |client| admission_of(client, serial))
    }

    /// One client.
    pub fn client(&self, name: &str) -> Option<&Client> {
        self.clients.get(name)
    }

    /// All clients, in no order.
    pub fn clients(&self) -> impl Iterator<Item = &Client> {
        self.clients.values()
    }
}

fn stamp(path: &std::path::Path) -> Result<Stamp, PkiError> {
    let meta = std::fs::metadata(path).map_err(|error| PkiError::io(path, "read", error))?;
    Ok(Stamp {
        inode: meta.ino(),
        seconds: meta.mtime(),
        nanoseconds: meta.mtime_nsec(),
        size: meta.size(),
    })
}

fn read(path: &std::path::Path) -> Result<HashMap<String, Client>, PkiError> {
    let clients = Registry::read(path)?.clients;
    Ok(clients.into_iter().map(|client| (client.name.to_string(), client)).collect())
}
