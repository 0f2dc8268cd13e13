use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{ClientName, GroupName, PkiError, Remote, disk};

/// Most clients one registry keeps.
pub(crate) const MAX_CLIENTS: usize = 65_536;
/// Most groups one client is in; as many as the protocol's engine takes.
pub const MAX_GROUPS: usize = 16;
/// Version of the file's layout.
const VERSION: u32 = 1;

/// What a client may do.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientState {
    /// Connect.
    Active,
    /// Nothing until it is enabled again.
    Disabled,
    /// Nothing ever again with this certificate.
    Revoked,
}

/// A certificate that was replaced and revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerCertificate {
    /// Serial number, lower-case hex.
    pub serial: String,
    /// When it was revoked, seconds since 1970.
    pub revoked: u64,
}

/// One client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// Name, which is the certificate's common name.
    pub name: ClientName,
    /// Serial number of the current certificate, lower-case hex.
    pub serial: String,
    /// When the client was added, seconds since 1970.
    pub created: u64,
    /// End of the current certificate's validity, seconds since 1970.
    pub expires: u64,
    /// What it may do.
    pub state: ClientState,
    /// When it was revoked, seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<u64>,
    /// The IPv4 address it always gets, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address4: Option<Ipv4Addr>,
    /// The IPv6 address it always gets, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address6: Option<Ipv6Addr>,
    /// The groups that a packet filter knows it by (`@group:NAME`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupName>,
    /// Where its profile finds the server; `None`: not known, of a profile from before this was kept.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<Remote>,
    /// Earlier certificates of this name, all revoked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<FormerCertificate>,
}

/// What the registry says about a certificate.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Let it in.
    Active,
    /// The client is disabled.
    Disabled,
    /// The client or this certificate of it is revoked.
    Revoked,
    /// Never issued under that name.
    Unknown,
}

/// The file `clients.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Registry {
    version: u32,
    /// Number of the revocation list that says what this registry says.
    pub(crate) crl_number: u64,
    pub(crate) clients: Vec<Client>,
}

impl Default for Registry {
    fn default() -> Self {
        Self { version: VERSION, crl_number: 1, clients: Vec::new() }
    }
}

impl Registry {
    pub(crate) fn read(path: &Path, open: disk::Open) -> Result<Self, PkiError> {
        let damaged = |why: String| PkiError::Damaged(path.to_owned(), why);
        let content = disk::read(path, open)?;
        let registry: Self =
            serde_json::from_slice(&content).map_err(|error| damaged(error.to_string()))?;
        if registry.version != VERSION {
            return Err(damaged(format!("layout version {}", registry.version)));
        }
        Ok(registry)
    }

    pub(crate) fn write(&self, path: &Path) -> Result<(), PkiError> {
        let mut content = serde_json::to_vec_pretty(self)
            .map_err(|error| PkiError::Damaged(path.to_owned(), error.to_string()))?;
        content.push(b'\n');
        disk::write(path, &content, 0o644)
    }

    pub(crate) fn find(&self, name: &str) -> Option<&Client> {
        self.clients.iter().find(|client| client.name.as_str() == name)
    }

    pub(crate) fn find_mut(&mut self, name: &str) -> Result<&mut Client, PkiError> {
        self.clients
            .iter_mut()
            .find(|client| client.name.as_str() == name)
            .ok_or_else(|| PkiError::Unknown(name.chars().take(80).collect()))
    }

    /// Every revoked serial with its time.
    pub(crate) fn revoked(&self) -> impl Iterator<Item = (&str, u64)> {
        self.clients.iter().flat_map(|client| {
            let current = client.revoked.map(|when| (client.serial.as_str(), when));
            let former = client.former.iter().map(|old| (old.serial.as_str(), old.revoked));
            current.into_iter().chain(former)
        })
    }

    pub(crate) fn admission(&self, name: &str, serial: &str) -> Admission {
        match self.find(name) {
            None => Admission::Unknown,
            Some(client) if client.serial == serial => match client.state {
                ClientState::Active => Admission::Active,
                ClientState::Disabled => Admission::Disabled,
                ClientState::Revoked => Admission::Revoked,
            },
            Some(client) if client.former.iter().any(|old| old.serial == serial) => {
                Admission::Revoked
            }
            Some(_) => Admission::Unknown,
        }
    }

    /// Refuses an address that another living client has.
    pub(crate) fn check_address(&self, name: &str, address: IpAddr) -> Result<(), PkiError> {
        let holder = self.clients.iter().find(|client| {
            client.name.as_str() != name
                && client.state != ClientState::Revoked
                && (client.address4.map(IpAddr::V4) == Some(address)
                    || client.address6.map(IpAddr::V6) == Some(address))
        });
        match holder {
            Some(client) => Err(PkiError::AddressTaken(address, client.name.to_string())),
            None => Ok(()),
        }
    }
}
