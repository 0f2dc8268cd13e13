//! What a store does for its clients: certificates, renewals and revocations, groups and addresses.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::SystemTime;

use zeroize::Zeroizing;

use crate::disk;
use crate::issue::{self, Purpose};
use crate::profile::ProfileContent;
use crate::registry::{FormerCertificate, MAX_CLIENTS, MAX_GROUPS};
use crate::store::{RegistryUpdate, Store};
use crate::{Client, ClientName, ClientState, ClientTerms, GroupName, PkiError, Profile, Remote};

/// The default lifetime of a client's certificate, in days: the longest that some platforms accept.
pub(crate) const CLIENT_DAYS: u32 = 825;

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

impl Store {
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
            update.registry.find_unrevoked(new.name.as_str())?;
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
            let client = update.registry.find_unrevoked(name)?;
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
            let client = update.registry.find_unrevoked(name)?;
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
