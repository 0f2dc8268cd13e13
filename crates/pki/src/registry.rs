use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{ClientName, ClientTerms, GroupName, PkiError, Remote, disk};

/// The maximum number of clients in one registry.
pub(crate) const MAX_CLIENTS: usize = 65_536;
/// The maximum number of certificates of deleted clients, which stay on the revocation list.
pub(crate) const MAX_DELETED: usize = 65_536;
/// The maximum number of groups for one client: as many as the protocol's engine accepts.
pub const MAX_GROUPS: usize = 16;
/// The version of the file's layout.
const VERSION: u32 = 1;

/// Whether a client may connect.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ClientState {
    /// It may connect.
    Active,
    /// It may not connect until it is enabled again.
    Disabled,
    /// It may never connect again with this certificate.
    Revoked,
}

/// A certificate that was replaced and revoked.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FormerCertificate {
    /// Serial number, lower-case hex.
    pub serial: String,
    /// The time of revocation, in seconds since 1970.
    pub revoked: u64,
}

/// One client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Client {
    /// The name.
    pub name: ClientName,
    /// The common name of the client's certificates, if it was renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub identity: Option<ClientName>,
    /// Serial number of the current certificate, lower-case hex.
    pub serial: String,
    /// The time when the client was added, in seconds since 1970.
    pub created: u64,
    /// End of the current certificate's validity, seconds since 1970.
    pub expires: u64,
    /// Whether it may connect.
    pub state: ClientState,
    /// The time of revocation, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub revoked: Option<u64>,
    /// The client's fixed IPv4 address, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address4: Option<Ipv4Addr>,
    /// The client's fixed IPv6 address, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address6: Option<Ipv6Addr>,
    /// The groups that contain the client in packet filters (`@group:NAME`).
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub groups: Vec<GroupName>,
    /// The operator's settings.
    #[serde(flatten)]
    pub terms: ClientTerms,
    /// The server's address in its profile, or `None` if it is unknown because the profile is older than this field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remote: Option<Remote>,
    /// Earlier certificates of this name, all revoked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub former: Vec<FormerCertificate>,
}

impl Client {
    /// Returns the common name of the client's certificates: the name with which the client was added.
    pub fn certificate_name(&self) -> &ClientName {
        self.identity.as_ref().unwrap_or(&self.name)
    }
}

/// The registry's answer to a query about a certificate.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CertificateStatus {
    /// The client may connect.
    Active,
    /// The client is disabled.
    Disabled,
    /// The client, or this certificate of the client, is revoked.
    Revoked,
    /// No certificate with that serial number was issued under that name.
    Unknown,
}

/// The file `clients.json`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Registry {
    version: u32,
    /// The number of the revocation list with the same contents.
    pub(crate) crl_number: u64,
    pub(crate) clients: Vec<Client>,
    /// The certificates of deleted clients, all revoked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) deleted: Vec<FormerCertificate>,
}

impl Default for Registry {
    fn default() -> Self {
        Self { version: VERSION, crl_number: 1, clients: Vec::new(), deleted: Vec::new() }
    }
}

impl Registry {
    pub(crate) fn read(path: &Path, open: disk::OpenFile) -> Result<Self, PkiError> {
        let damaged = |why: String| PkiError::Damaged(path.to_owned(), why);
        let content = disk::read(path, open)?;
        disk::check_layout(path, &content, VERSION)?;
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

    /// Returns a client that is not revoked.
    pub(crate) fn find_unrevoked(&mut self, name: &str) -> Result<&mut Client, PkiError> {
        let client = self.find_mut(name)?;
        if client.state == ClientState::Revoked {
            return Err(PkiError::Revoked(name.to_owned()));
        }
        Ok(client)
    }

    /// Refuses a name that the certificates of another client have.
    pub(crate) fn check_certificate_name(&self, name: &ClientName) -> Result<(), PkiError> {
        let has = |client: &&Client| client.name != *name && client.certificate_name() == name;
        match self.clients.iter().find(has) {
            Some(client) => Err(PkiError::NameReserved(name.to_string(), client.name.to_string())),
            None => Ok(()),
        }
    }

    /// Returns the serial number and revocation time of every revoked certificate.
    pub(crate) fn revoked(&self) -> impl Iterator<Item = (&str, u64)> {
        let deleted = self.deleted.iter().map(|old| (old.serial.as_str(), old.revoked));
        let known = self.clients.iter().flat_map(|client| {
            let current = client.revoked.map(|when| (client.serial.as_str(), when));
            let former = client.former.iter().map(|old| (old.serial.as_str(), old.revoked));
            current.into_iter().chain(former)
        });
        known.chain(deleted)
    }

    /// Returns the status of a certificate, by the name in it.
    pub(crate) fn admission(&self, name: &str, serial: &str) -> CertificateStatus {
        let owner = self.clients.iter().find(|client| client.certificate_name().as_str() == name);
        match owner {
            None => CertificateStatus::Unknown,
            Some(client) if client.serial == serial => match client.state {
                ClientState::Active => CertificateStatus::Active,
                ClientState::Disabled => CertificateStatus::Disabled,
                ClientState::Revoked => CertificateStatus::Revoked,
            },
            Some(client) if client.former.iter().any(|old| old.serial == serial) => {
                CertificateStatus::Revoked
            }
            Some(_) => CertificateStatus::Unknown,
        }
    }

    /// Refuses an address that belongs to another client, unless that client is revoked.
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
