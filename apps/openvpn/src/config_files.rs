//! Access of the network process to config files.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{Ipv4Addr, ToSocketAddrs};
use std::path::{Path, PathBuf};

use std::sync::{Mutex, PoisonError};

use adit_openvpn::config::{Disk, Files};
use adit_runtime::helper::{current, files::contents};

/// The maximum number of names whose addresses are kept.
const NAMES_LIMIT: usize = 256;

/// The addresses of the names in routes that this process looked up. The helper gets them when it starts, because its own
/// look-ups could have other results, and then the two processes would disagree about the routes.
static NAMES: Mutex<BTreeMap<String, Vec<Ipv4Addr>>> = Mutex::new(BTreeMap::new());

/// Returns the addresses of the names in routes.
pub(crate) fn route_names() -> BTreeMap<String, Vec<Ipv4Addr>> {
    NAMES.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Looks up a name's IPv4 addresses, in a fixed order.
pub(crate) fn look_up(name: &str) -> io::Result<Vec<Ipv4Addr>> {
    let found = (name, 0).to_socket_addrs()?;
    let mut addresses: Vec<Ipv4Addr> = found
        .filter_map(|address| match address {
            std::net::SocketAddr::V4(address) => Some(*address.ip()),
            std::net::SocketAddr::V6(_) => None,
        })
        .collect();
    addresses.sort_unstable();
    addresses.dedup();
    if addresses.is_empty() {
        return Err(io::Error::new(io::ErrorKind::NotFound, "it has no IPv4 address"));
    }
    Ok(addresses)
}

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

    fn look_up(&self, name: &str) -> io::Result<Vec<Ipv4Addr>> {
        if let Some(known) = route_names().get(name) {
            return Ok(known.clone());
        }
        let found = look_up(name)?;
        let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
        if names.len() < NAMES_LIMIT {
            names.insert(name.to_owned(), found.clone());
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_keeps_its_addresses_and_one_without_has_none() {
        let files = Configs::default();
        assert_eq!(files.look_up("localhost").unwrap(), [Ipv4Addr::LOCALHOST]);
        assert_eq!(route_names()["localhost"], [Ipv4Addr::LOCALHOST]);
        assert!(files.look_up("missing.invalid").is_err());
        assert!(!route_names().contains_key("missing.invalid"));
    }
}
