//! The file that lets a node reach the others after a restart: their endpoints, and the addresses of its invitation. It also contains the
//! times of the last roster comparisons.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;

use adit_engine::UnixTime;
use adit_mesh::session::KeyHash;
use adit_runtime::fault::{Fault, file_fault};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use serde::{Deserialize, Serialize};

/// The content of the file. It may be lost, because other nodes can still reach this one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Reach {
    /// Addresses by the hash of the member's key, in base64.
    #[serde(default)]
    hints: BTreeMap<String, Vec<SocketAddr>>,
    /// The same for TCP.
    #[serde(default)]
    tcp_hints: BTreeMap<String, Vec<SocketAddr>>,
    /// Signed endpoints, in base64.
    #[serde(default)]
    endpoints: Vec<String>,
    /// The times when the roster was last compared, by the hash of the member's key, in base64.
    #[serde(default)]
    compared: BTreeMap<String, u64>,
}

impl Reach {
    /// Reads the file; an absent one is empty.
    ///
    /// # Errors
    /// The file cannot be read.
    pub(crate) fn load(path: &Path) -> Result<Self, Fault> {
        let text = match fs::read(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Self::default()),
            text => text.map_err(|error| file_fault("cannot read", path, &error))?,
        };
        Ok(serde_json::from_slice(&text).unwrap_or_else(|error| {
            tracing::warn!("{}: {error}; it is written again", path.display());
            Self::default()
        }))
    }

    /// Adds addresses at which a member may be reached, over UDP and over TCP.
    pub(crate) fn hint(&mut self, member: &KeyHash, udp: &[SocketAddr], tcp: &[SocketAddr]) {
        self.hints.insert(BASE64.encode(member), udp.to_vec());
        self.tcp_hints.insert(BASE64.encode(member), tcp.to_vec());
    }

    pub(crate) fn hints(&self) -> Vec<(KeyHash, Vec<SocketAddr>)> {
        decoded(&self.hints)
    }

    pub(crate) fn tcp_hints(&self) -> Vec<(KeyHash, Vec<SocketAddr>)> {
        decoded(&self.tcp_hints)
    }

    pub(crate) fn endpoints(&self) -> Vec<Vec<u8>> {
        self.endpoints.iter().filter_map(|endpoint| BASE64.decode(endpoint).ok()).collect()
    }

    pub(crate) fn set_endpoints(&mut self, endpoints: Vec<Vec<u8>>) {
        self.endpoints = endpoints.into_iter().map(|endpoint| BASE64.encode(endpoint)).collect();
    }

    pub(crate) fn compared(&self) -> Vec<(KeyHash, UnixTime)> {
        let decoded = self.compared.iter().filter_map(|(key, at)| {
            Some((BASE64.decode(key).ok()?.try_into().ok()?, UnixTime(*at)))
        });
        decoded.collect()
    }

    pub(crate) fn set_compared(&mut self, compared: &[(KeyHash, UnixTime)]) {
        self.compared = compared.iter().map(|(key, at)| (BASE64.encode(key), at.0)).collect();
    }

    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut text = serde_json::to_vec(self).unwrap_or_default();
        text.push(b'\n');
        text
    }
}

fn decoded(hints: &BTreeMap<String, Vec<SocketAddr>>) -> Vec<(KeyHash, Vec<SocketAddr>)> {
    let decoded = hints.iter().filter_map(|(key, addresses)| {
        let key = BASE64.decode(key).ok()?.try_into().ok()?;
        Some((key, addresses.clone()))
    });
    decoded.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_a_damaged_file_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("reach.json");
        assert_eq!(Reach::load(&path).unwrap(), Reach::default());
        let mut reach = Reach::default();
        let [address, tcp] = ["192.0.2.1:1194", "192.0.2.1:443"].map(|it| it.parse().unwrap());
        reach.hint(&[7; 32], &[address], &[tcp]);
        reach.set_endpoints(vec![vec![1, 2, 3]]);
        reach.set_compared(&[([7; 32], UnixTime(9))]);
        fs::write(&path, reach.encode()).unwrap();
        let read = Reach::load(&path).unwrap();
        assert_eq!(read.hints(), [([7; 32], vec![address])]);
        assert_eq!(read.tcp_hints(), [([7; 32], vec![tcp])]);
        assert_eq!(read.endpoints(), [[1, 2, 3]]);
        assert_eq!(read.compared(), [([7; 32], UnixTime(9))]);
        fs::write(&path, "{").unwrap();
        assert_eq!(Reach::load(&path).unwrap(), Reach::default());
    }
}
