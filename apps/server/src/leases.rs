//! The leases: the last address of each client, to keep it across restarts.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::time::Duration;

use adit_runtime::paths::Paths;

use super::saved_map::SavedMap;

/// The maximum number of recorded names. Other clients get any free address.
const MAX_LEASES: usize = 65_536;

/// How long changes are collected before they are written.
const DELAY: Duration = Duration::from_secs(2);

/// The file `leases.json`. Without it, clients merely get new addresses.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    pub(super) saved: SavedMap<Ipv4Addr>,
}

impl Leases {
    /// Returns the path of the leases.
    pub(super) fn file(paths: &Paths) -> PathBuf {
        paths.data.join("leases.json")
    }

    pub(super) fn open(paths: &Paths) -> Self {
        Self { saved: SavedMap::open("leases", Self::file(paths), DELAY) }
    }

    pub(super) fn all(&self) -> BTreeMap<String, Ipv4Addr> {
        self.saved.read(Clone::clone)
    }

    /// Records an address.
    pub(super) fn remember(&self, name: &str, address: Ipv4Addr) {
        self.saved.change(|addresses| {
            let known = addresses.contains_key(name);
            if addresses.get(name) == Some(&address) || (!known && addresses.len() >= MAX_LEASES) {
                return false;
            }
            // An address has one owner: remove the previous one.
            addresses.retain(|_, other| *other != address);
            addresses.insert(name.to_owned(), address);
            true
        });
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn addresses_survive_a_restart_and_have_one_owner() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path())).unwrap();
        paths.create().unwrap();
        let leases = Leases::open(&paths);
        let address = |last| Ipv4Addr::new(10, 9, 9, last);
        leases.remember("a", address(2));
        leases.remember("b", address(3));
        leases.remember("c", address(2));
        leases.saved.save();
        let again = Leases::open(&paths).all();
        assert_eq!(again.get("a"), None);
        assert_eq!(again.get("b"), Some(&address(3)));
        assert_eq!(again.get("c"), Some(&address(2)));
        fs::write(dir.path().join("data/leases.json"), "torn").unwrap();
        assert!(Leases::open(&paths).all().is_empty());
    }
}
