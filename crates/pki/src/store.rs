//! A managed server's directory.

use std::path::{Path, PathBuf};
use std::time::SystemTime;

use zeroize::Zeroizing;

use crate::disk::{self, Lock, OpenFile};
use crate::issue::{self, Authority, Purpose};
use crate::profile::ProfileContent;
use crate::registry::Registry;
use crate::{
    CertificateStatus, Client, ClientName, PkiError, Profile, Remote, ServerInfo, UserName,
};

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

/// A managed server's directory.
#[derive(Clone, Debug)]
pub struct Store {
    dir: PathBuf,
    pub(crate) server: ServerInfo,
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
        info.write(dir)?;
        Ok(info)
    }

    /// Opens the store in `dir/pki` for reading and, with sufficient rights, for changes.
    pub fn open(dir: &Path) -> Result<Self, PkiError> {
        Self::open_by(dir, disk::open_file)
    }

    /// Opens the store as [`Store::open`] does, but opens all files, now and later, with `open`.
    pub fn open_by(dir: &Path, open: OpenFile) -> Result<Self, PkiError> {
        let place = dir.join("pki");
        match ServerInfo::read(&place, open) {
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
        let mut info = ServerInfo::read(&self.dir, self.open)?;
        info.remote = remote;
        info.write(&self.dir)?;
        self.server = info;
        Ok(())
    }

    /// Issues a new certificate for the server under its name; profiles stay valid.
    pub fn renew_server(&mut self, days: u32, now: SystemTime) -> Result<(), PkiError> {
        let _lock = self.lock()?;
        let mut info = ServerInfo::read(&self.dir, self.open)?;
        let issued = self.authority()?.issue(info.name.as_str(), Purpose::Server, days, now)?;
        write_server_pair(&self.dir, &issued)?;
        info.server_expires = issued.expires;
        info.write(&self.dir)?;
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

    pub(crate) fn authority(&self) -> Result<Authority, PkiError> {
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
}

/// An update of the registry that has not been written yet.
pub(crate) struct RegistryUpdate {
    pub(crate) registry: Registry,
    /// Whether the revocation list must be created again.
    pub(crate) revocations: bool,
    pub(crate) now: SystemTime,
}

/// Writes key and certificate into one file, so that a killed process cannot leave a key with another key's
/// certificate.
fn write_server_pair(dir: &Path, issued: &issue::CertifiedKey) -> Result<(), PkiError> {
    let pair = Zeroizing::new([issued.cert.as_str(), issued.key.as_str()].concat());
    disk::write(&dir.join("server.pem"), pair.as_bytes(), 0o600)
}
