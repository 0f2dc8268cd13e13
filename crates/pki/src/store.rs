use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use crate::disk::{self, Lock, OpenFile};
use crate::issue::{self, Authority, Purpose};
use crate::profile::ProfileContent;
use crate::registry::{FormerCertificate, MAX_CLIENTS, MAX_GROUPS, Registry};
use crate::{
    CertificateStatus, Client, ClientName, ClientState, ClientTerms, GroupName, PkiError, Profile,
    Remote, UserName,
};

/// The default lifetime of a client's certificate, in days: the longest that some platforms accept.
pub(crate) const CLIENT_DAYS: u32 = 825;

/// The version of the layout of `server.json`. Files without a version have the first one.
const INFO_VERSION: u32 = 1;

/// The parameters of a new store.
#[derive(Clone)]
pub struct InitOptions {
    /// Common name of the server's certificate. Profiles pin it, and it follows the rules of [`ClientName`].
    pub server_name: ClientName,
    /// The server's address for clients.
    pub remote: Remote,
    /// Lifetime of the authority's certificate, in days.
    pub ca_days: u32,
    /// Lifetime of the server's certificate, in days.
    pub server_days: u32,
    /// The `OpenVPN tls-crypt-v2 server key` in PEM.
    pub tls_crypt_v2_server_key: Zeroizing<String>,
}

impl InitOptions {
    /// Creates options with a lifetime of twenty years for the authority and ten for the server.
    pub fn new(
        server_name: ClientName,
        remote: Remote,
        tls_crypt_v2_server_key: Zeroizing<String>,
    ) -> Self {
        Self { server_name, remote, ca_days: 7300, server_days: 3650, tls_crypt_v2_server_key }
    }
}

// Written by hand because the options hold a key.
impl std::fmt::Debug for InitOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("InitOptions")
            .field("server_name", &self.server_name)
            .field("remote", &self.remote)
            .finish_non_exhaustive()
    }
}

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

/// Paths of the files that the network-facing process reads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Files {
    /// The authority's certificate.
    pub ca: PathBuf,
    /// The server's certificate, in the same file as `key`.
    pub cert: PathBuf,
    /// The server's key and certificate, mode 0600.
    pub key: PathBuf,
    /// The revocation list.
    pub crl: PathBuf,
    /// The tls-crypt-v2 server key, mode 0600.
    pub tls_crypt_v2: PathBuf,
    /// The registry. A changed modification time means that it must be read again.
    pub clients: PathBuf,
    /// The users, mode 0600. Absent until the first user is added.
    pub users: PathBuf,
}

/// A client to be added or renewed.
#[derive(Clone)]
pub struct NewClient {
    /// Name.
    pub name: ClientName,
    /// Lifetime of its certificate in days; `None`: 825.
    pub days: Option<u32>,
    /// Encrypts the key in the profile.
    pub password: Option<Zeroizing<String>>,
    /// Fixed IPv4 address. If this is `None`, a renewal keeps the previous address.
    pub address4: Option<Ipv4Addr>,
    /// Fixed IPv6 address, as `address4`.
    pub address6: Option<Ipv6Addr>,
    /// Its groups. If this is empty, a renewal keeps the previous groups.
    pub groups: Vec<GroupName>,
    /// The `OpenVPN tls-crypt-v2 client key` in PEM, made for this client from [`Store::tls_crypt_v2_server_key`].
    pub tls_crypt_v2_client_key: Zeroizing<String>,
    /// Further lines of the profile.
    pub options: Vec<&'static str>,
    /// Whether the store keeps the profile, with its private key. A renewal keeps the new profile if the previous one was kept.
    pub keep_profile: bool,
}

impl NewClient {
    /// Creates a client with the default lifetime, no password and no fixed address.
    pub fn new(name: ClientName, tls_crypt_v2_client_key: Zeroizing<String>) -> Self {
        Self {
            name,
            days: None,
            password: None,
            address4: None,
            address6: None,
            groups: Vec::new(),
            tls_crypt_v2_client_key,
            options: Vec::new(),
            keep_profile: false,
        }
    }
}

// Written by hand because the client holds a password and a key.
impl std::fmt::Debug for NewClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("NewClient").field("name", &self.name).finish_non_exhaustive()
    }
}

/// A client with the profile made for it. The store keeps the profile only if [`NewClient::keep_profile`] says so.
#[derive(Clone, Debug)]
pub struct IssuedClient {
    /// The client as registered.
    pub client: Client,
    /// The profile for the client.
    pub profile: Profile,
}

/// A managed server's directory.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
    server: ServerInfo,
    pub(crate) open: OpenFile,
}

impl Store {
    /// Returns whether [`Store::open`] would find a store in `dir`.
    pub fn exists(dir: &Path) -> bool {
        dir.join("pki/server.json").exists()
    }

    /// Creates the authority, the server's certificate and an empty registry in `dir/pki`, either all of them or none.
    pub fn init(dir: &Path, options: &InitOptions, now: SystemTime) -> Result<Self, PkiError> {
        options.remote.check()?;
        let place = dir.join("pki");
        if Self::exists(dir) {
            return Err(PkiError::AlreadyInitialised(place));
        }
        disk::make_directory(dir, 0o755)?;
        let _lock = Lock::take(&dir.join(".pki.lock"))?;
        if Self::exists(dir) {
            return Err(PkiError::AlreadyInitialised(place));
        }
        if place.exists() {
            return Err(PkiError::Incomplete(place.join("server.json")));
        }
        let building = dir.join(".pki.new");
        if building.exists() {
            // A directory without its final name is an unused remnant of an attempt that was killed.
            std::fs::remove_dir_all(&building)
                .map_err(|error| PkiError::io(&building, "remove", error))?;
        }
        disk::make_directory(&building, 0o755)?;
        disk::make_directory(&building.join("private"), 0o700)?;
        let server = Self::build(&building, options, now)?;
        std::fs::rename(&building, &place)
            .and_then(|()| adit_linux::file::sync_directory(dir))
            .map_err(|error| PkiError::io(&place, "write", error))?;
        Ok(Self { dir: place, server, open: disk::open_file })
    }

    fn build(dir: &Path, options: &InitOptions, now: SystemTime) -> Result<ServerInfo, PkiError> {
        let ca_name = format!("adit CA {}", issue::hex(&issue::random::<4>()?));
        let ca = issue::authority(&ca_name, options.ca_days, now)?;
        let authority = Authority::new(&ca.cert, &ca.key)?;
        let server = authority.issue(
            options.server_name.as_str(),
            Purpose::Server,
            options.server_days.min(options.ca_days),
            now,
        )?;
        let registry = Registry::default();
        let crl =
            authority.revocation_list(registry.crl_number, registry.revoked(), ca.expires, now)?;
        let info = ServerInfo {
            name: options.server_name.clone(),
            remote: options.remote.clone(),
            ca_expires: ca.expires,
            server_expires: server.expires,
        };
        disk::write(&dir.join("private/ca.key"), ca.key.as_bytes(), 0o600)?;
        disk::write(&dir.join("ca.crt"), ca.cert.as_bytes(), 0o644)?;
        write_server_pair(dir, &server)?;
        disk::write(
            &dir.join("tls-crypt-v2.key"),
            options.tls_crypt_v2_server_key.as_bytes(),
            0o600,
        )?;
        disk::write(&dir.join("crl.pem"), crl.as_bytes(), 0o644)?;
        registry.write(&dir.join("clients.json"))?;
        write_info(dir, &info)?;
        Ok(info)
    }

    /// Opens the store in `dir/pki` for reading and, with sufficient rights, for changes.
    pub fn open(dir: &Path) -> Result<Self, PkiError> {
        Self::open_by(dir, disk::open_file)
    }

    /// Opens the store as [`Store::open`] does, but opens all files, now and later, with `open`.
    pub fn open_by(dir: &Path, open: OpenFile) -> Result<Self, PkiError> {
        let place = dir.join("pki");
        match read_info(&place, open) {
            Ok(server) => Ok(Self { dir: place, server, open }),
            Err(PkiError::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
                Err(if place.exists() {
                    PkiError::Incomplete(place.join("server.json"))
                } else {
                    PkiError::NotInitialised(dir.to_owned())
                })
            }
            Err(error) => Err(error),
        }
    }

    /// Returns the server's name, address and expiry as they were at [`Store::open`].
    pub fn server(&self) -> &ServerInfo {
        &self.server
    }

    /// Returns the paths that the network-facing process reads.
    pub fn files(&self) -> Files {
        Files {
            ca: self.path("ca.crt"),
            cert: self.path("server.pem"),
            key: self.path("server.pem"),
            crl: self.path("crl.pem"),
            tls_crypt_v2: self.path("tls-crypt-v2.key"),
            clients: self.path("clients.json"),
            users: self.path("users.json"),
        }
    }

    /// Returns the `OpenVPN tls-crypt-v2 server key` in PEM.
    pub fn tls_crypt_v2_server_key(&self) -> Result<Zeroizing<String>, PkiError> {
        disk::read_text(&self.path("tls-crypt-v2.key"), self.open)
    }

    /// Returns all clients, in the order in which they were added.
    pub fn clients(&self) -> Result<Vec<Client>, PkiError> {
        Ok(self.registry()?.clients)
    }

    /// Returns one client.
    pub fn client(&self, name: &str) -> Result<Client, PkiError> {
        let registry = self.registry()?;
        registry
            .find(name)
            .cloned()
            .ok_or_else(|| PkiError::Unknown(name.chars().take(80).collect()))
    }

    /// Returns whether the certificate `serial` (lower-case hex) of `name` may connect. Reads the registry again; a
    /// registry that cannot be read is an error, never an admission.
    pub fn admission(&self, name: &str, serial: &str) -> Result<CertificateStatus, PkiError> {
        Ok(self.registry()?.admission(name, serial))
    }

    /// Issues a certificate to a new client, or to a client whose previous certificate was revoked.
    pub fn add_client(&self, new: &NewClient, now: SystemTime) -> Result<IssuedClient, PkiError> {
        let issued = self.update_registry(now, |update| {
            let former = update.registry.find(new.name.as_str());
            if former.is_some_and(|client| client.state != ClientState::Revoked) {
                return Err(PkiError::Exists(new.name.to_string()));
            }
            if former.is_none() && update.registry.clients.len() >= MAX_CLIENTS {
                return Err(PkiError::Full(MAX_CLIENTS));
            }
            self.issue_to(new, update)
        })?;
        self.keep_profile(&issued, new.keep_profile)?;
        Ok(issued)
    }

    /// Gives a client a new certificate, key and profile, and revokes the previous certificate.
    pub fn renew_client(&self, new: &NewClient, now: SystemTime) -> Result<IssuedClient, PkiError> {
        let issued = self.update_registry(now, |update| {
            let client = update.registry.find_mut(new.name.as_str())?;
            if client.state == ClientState::Revoked {
                return Err(PkiError::Revoked(new.name.to_string()));
            }
            self.issue_to(new, update)
        })?;
        self.keep_profile(&issued, new.keep_profile)?;
        Ok(issued)
    }

    /// Revokes a client permanently. Revoking a client again is not an error.
    pub fn revoke_client(&self, name: &str, now: SystemTime) -> Result<Client, PkiError> {
        let revoked = self.update_registry(now, |update| {
            let when = issue::unix(now);
            let client = update.registry.find_mut(name)?;
            if client.state != ClientState::Revoked {
                client.state = ClientState::Revoked;
                client.revoked = Some(when);
                update.revocations = true;
            }
            Ok(client.clone())
        })?;
        self.forget_profiles(&revoked)?;
        Ok(revoked)
    }

    /// Allows a client to connect, or forbids it, until the next such call.
    pub fn set_enabled(
        &self,
        name: &str,
        enabled: bool,
        now: SystemTime,
    ) -> Result<Client, PkiError> {
        self.update_registry(now, |update| {
            let client = update.registry.find_mut(name)?;
            if client.state == ClientState::Revoked {
                return Err(PkiError::Revoked(name.to_owned()));
            }
            client.state = if enabled { ClientState::Active } else { ClientState::Disabled };
            Ok(client.clone())
        })
    }

    /// Sets a client's groups to exactly these. A name that occurs twice counts once.
    ///
    /// # Errors
    /// The client does not exist or is revoked, or there are more than [`MAX_GROUPS`] groups.
    pub fn set_groups(
        &self,
        name: &str,
        groups: &[GroupName],
        now: SystemTime,
    ) -> Result<Client, PkiError> {
        let groups = unique_groups(groups)?;
        self.update_registry(now, |update| {
            let client = update.registry.find_mut(name)?;
            if client.state == ClientState::Revoked {
                return Err(PkiError::Revoked(name.to_owned()));
            }
            client.groups = groups;
            Ok(client.clone())
        })
    }

    /// Records that a client's profile was edited and now contains this address.
    pub fn set_client_remote(
        &self,
        name: &str,
        remote: Remote,
        now: SystemTime,
    ) -> Result<Client, PkiError> {
        self.update_registry(now, |update| {
            let client = update.registry.find_mut(name)?;
            client.remote = Some(remote);
            Ok(client.clone())
        })
    }

    /// Makes the profile of a user who logs in without a certificate. `tls_crypt_v2` is the `OpenVPN tls-crypt-v2 client
    /// key` in PEM, and `options` are further lines.
    pub fn user_profile(
        &self,
        name: &UserName,
        tls_crypt_v2: &str,
        options: &[&str],
    ) -> Result<Profile, PkiError> {
        Ok(Profile::new(&ProfileContent {
            name,
            remotes: std::slice::from_ref(&self.server.remote),
            server_name: self.server.name.as_str(),
            ca: &disk::read_text(&self.path("ca.crt"), self.open)?,
            pair: None,
            tls_crypt_v2,
            options,
        }))
    }

    /// Changes the server's address in new profiles.
    pub fn set_remote(&mut self, remote: Remote) -> Result<(), PkiError> {
        remote.check()?;
        let _lock = self.lock()?;
        let mut info = read_info(&self.dir, self.open)?;
        info.remote = remote;
        write_info(&self.dir, &info)?;
        self.server = info;
        Ok(())
    }

    /// Issues a new certificate for the server under its name; profiles stay valid.
    pub fn renew_server(&mut self, days: u32, now: SystemTime) -> Result<(), PkiError> {
        let _lock = self.lock()?;
        let mut info = read_info(&self.dir, self.open)?;
        let issued = self.authority()?.issue(info.name.as_str(), Purpose::Server, days, now)?;
        write_server_pair(&self.dir, &issued)?;
        info.server_expires = issued.expires;
        write_info(&self.dir, &info)?;
        self.server = info;
        Ok(())
    }

    /// Writes the revocation list again if a process was killed after it changed the registry. The other methods that
    /// change the store do the same.
    pub fn repair(&self, now: SystemTime) -> Result<(), PkiError> {
        self.update_registry(now, |_| Ok(()))
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.join(name)
    }

    fn registry(&self) -> Result<Registry, PkiError> {
        Registry::read(&self.path("clients.json"), self.open)
    }

    pub(crate) fn lock(&self) -> Result<Lock, PkiError> {
        Lock::take(&self.path("private/lock"))
    }

    fn authority(&self) -> Result<Authority, PkiError> {
        let cert = disk::read_text(&self.path("ca.crt"), self.open)?;
        let key = disk::read_text(&self.path("private/ca.key"), self.open)?;
        Authority::new(&cert, &key)
    }

    /// Applies `edit` to the registry under the lock. The registry is authoritative and is written first; the
    /// revocation list is derived from it, and is created again if the process was killed in between.
    pub(crate) fn update_registry<T>(
        &self,
        now: SystemTime,
        edit: impl FnOnce(&mut RegistryUpdate) -> Result<T, PkiError>,
    ) -> Result<T, PkiError> {
        let _lock = self.lock()?;
        let registry = self.registry()?;
        let before = registry.clone();
        let mut update = RegistryUpdate { registry, revocations: false, now };
        let result = edit(&mut update)?;
        let RegistryUpdate { mut registry, revocations, .. } = update;
        if revocations {
            registry.crl_number = registry.crl_number.saturating_add(1);
        }
        if registry != before {
            registry.write(&self.path("clients.json"))?;
        }
        if revocations || self.listed_number() != Some(registry.crl_number) {
            let list = self.authority()?.revocation_list(
                registry.crl_number,
                registry.revoked(),
                self.server.ca_expires,
                now,
            )?;
            disk::write(&self.path("crl.pem"), list.as_bytes(), 0o644)?;
        }
        Ok(result)
    }

    /// Returns the number of the revocation list that is on disk.
    fn listed_number(&self) -> Option<u64> {
        let content = disk::read(&self.path("crl.pem"), self.open).ok()?;
        let (_, pem) = x509_parser::pem::parse_x509_pem(&content).ok()?;
        let (_, list) = x509_parser::parse_x509_crl(&pem.contents).ok()?;
        list.crl_number()?.try_into().ok()
    }

    fn issue_to(
        &self,
        new: &NewClient,
        update: &mut RegistryUpdate,
    ) -> Result<IssuedClient, PkiError> {
        let registry = &mut update.registry;
        let name = new.name.as_str();
        if new.name == self.server.name {
            return Err(PkiError::BadName(name.to_owned(), "it is the server's own"));
        }
        for address in new.address4.map(IpAddr::V4).into_iter().chain(new.address6.map(IpAddr::V6))
        {
            registry.check_address(name, address)?;
        }
        registry.check_certificate_name(&new.name)?;
        let identity = registry.find(name).and_then(|client| client.identity.clone());
        let groups = unique_groups(&new.groups)?;
        let days = new.days.unwrap_or(CLIENT_DAYS);
        let common_name = identity.as_ref().map_or(name, ClientName::as_str);
        let issued = self.authority()?.issue(common_name, Purpose::Client, days, update.now)?;
        let key = match &new.password {
            Some(password) => issue::encrypt_key(&issued.key, password)?,
            None => issued.key.clone(),
        };
        let when = issue::unix(update.now);
        let mut client = Client {
            name: new.name.clone(),
            identity,
            serial: issued.serial,
            created: when,
            expires: issued.expires,
            state: ClientState::Active,
            revoked: None,
            address4: new.address4,
            address6: new.address6,
            groups,
            terms: ClientTerms::default(),
            remote: Some(self.server.remote.clone()),
            former: Vec::new(),
        };
        match registry.find_mut(name) {
            Ok(old) => {
                client.former = std::mem::take(&mut old.former);
                let revoked = old.revoked.unwrap_or(when);
                client.former.push(FormerCertificate { serial: old.serial.clone(), revoked });
                if old.state != ClientState::Revoked {
                    client.created = old.created;
                    client.state = old.state;
                    client.address4 = new.address4.or(old.address4);
                    client.address6 = new.address6.or(old.address6);
                    client.terms.clone_from(&old.terms);
                    if client.groups.is_empty() {
                        client.groups.clone_from(&old.groups);
                    }
                }
                *old = client.clone();
                update.revocations = true;
            }
            Err(_) => registry.clients.push(client.clone()),
        }
        let profile = Profile::new(&ProfileContent {
            name: &new.name,
            remotes: std::slice::from_ref(&self.server.remote),
            server_name: self.server.name.as_str(),
            ca: &disk::read_text(&self.path("ca.crt"), self.open)?,
            pair: Some((&issued.cert, &key)),
            tls_crypt_v2: &new.tls_crypt_v2_client_key,
            options: &new.options,
        });
        Ok(IssuedClient { client, profile })
    }
}

pub(crate) fn unique_groups(groups: &[GroupName]) -> Result<Vec<GroupName>, PkiError> {
    let mut all: Vec<GroupName> = Vec::new();
    for group in groups {
        if !all.contains(group) {
            all.push(group.clone());
        }
    }
    match all.len() {
        0..=MAX_GROUPS => Ok(all),
        _ => Err(PkiError::BadSetting("groups", format!("a client has at most {MAX_GROUPS}"))),
    }
}

/// An update of the registry that has not been written yet.
pub(crate) struct RegistryUpdate {
    pub(crate) registry: Registry,
    /// Whether the revocation list must be created again.
    pub(crate) revocations: bool,
    now: SystemTime,
}

/// Writes key and certificate into one file, so that a killed process cannot leave a key with another key's
/// certificate.
fn write_server_pair(dir: &Path, issued: &issue::CertifiedKey) -> Result<(), PkiError> {
    let pair = Zeroizing::new([issued.cert.as_str(), issued.key.as_str()].concat());
    disk::write(&dir.join("server.pem"), pair.as_bytes(), 0o600)
}

fn write_info(dir: &Path, info: &ServerInfo) -> Result<(), PkiError> {
    #[derive(Serialize)]
    struct Versioned<'a> {
        version: u32,
        #[serde(flatten)]
        info: &'a ServerInfo,
    }
    let path = dir.join("server.json");
    let mut content = serde_json::to_vec_pretty(&Versioned { version: INFO_VERSION, info })
        .map_err(|error| PkiError::Damaged(path.clone(), error.to_string()))?;
    content.push(b'\n');
    disk::write(&path, &content, 0o644)
}

fn read_info(dir: &Path, open: OpenFile) -> Result<ServerInfo, PkiError> {
    let path = dir.join("server.json");
    let content = disk::read(&path, open)?;
    disk::check_layout(&path, &content, INFO_VERSION)?;
    serde_json::from_slice(&content).map_err(|error| PkiError::Damaged(path, error.to_string()))
}
