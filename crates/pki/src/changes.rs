//! Changes of a registered client that need no new certificate, and the profiles that the store keeps.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::path::PathBuf;
use std::time::SystemTime;

use ipnet::IpNet;
use zeroize::Zeroizing;

use crate::registry::{FormerCertificate, MAX_DELETED};
use crate::terms::{MAX_ALL_NETWORKS, overlap};
use crate::{
    Client, ClientName, ClientRate, ClientState, IssuedClient, Member, PkiError, Quota, Store,
    disk, issue,
};

/// A change of a client. Fields that are `None` keep their values.
#[derive(Clone, Debug, Default)]
pub struct ClientChange {
    /// The fixed IPv4 address, or `Some(None)` for one of the pool.
    pub address4: Option<Option<Ipv4Addr>>,
    /// The fixed IPv6 address, or `Some(None)` for one of the pool.
    pub address6: Option<Option<Ipv6Addr>>,
    /// The note; an empty one removes it.
    pub note: Option<String>,
    /// All networks behind the client.
    pub networks: Option<Vec<IpNet>>,
    /// All clients and groups that get no routes to these networks.
    pub hidden_from: Option<Vec<Member>>,
    /// The quota, or `Some(None)` for none.
    pub quota: Option<Option<Quota>>,
    /// The rate, or `Some(None)` for none.
    pub rate: Option<Option<ClientRate>>,
}

impl Store {
    /// Calls a function while no other process changes the store.
    pub fn locked<T>(&self, call: impl FnOnce() -> T) -> Result<T, PkiError> {
        let _lock = self.lock()?;
        Ok(call())
    }

    /// Changes the settings of a client.
    ///
    /// # Errors
    /// The client does not exist or is revoked, an address belongs to another client, a network overlaps one of another client, or a value
    /// is not allowed.
    pub fn change_client(
        &self,
        name: &str,
        change: &ClientChange,
        now: SystemTime,
    ) -> Result<Client, PkiError> {
        self.update_registry(now, |update| {
            let registry = &mut update.registry;
            let mut client = registry.find_unrevoked(name)?.clone();
            client.address4 = change.address4.unwrap_or(client.address4);
            client.address6 = change.address6.unwrap_or(client.address6);
            let addresses = [client.address4.map(IpAddr::V4), client.address6.map(IpAddr::V6)];
            for address in addresses.into_iter().flatten() {
                registry.check_address(name, address)?;
            }
            let terms = &mut client.terms;
            if let Some(note) = &change.note {
                let note = note.trim();
                terms.note = (!note.is_empty()).then(|| note.to_owned());
            }
            if let Some(networks) = &change.networks {
                terms.networks = networks.iter().map(IpNet::trunc).collect();
            }
            if let Some(members) = &change.hidden_from {
                terms.hidden_from.clone_from(members);
            }
            terms.quota = change.quota.unwrap_or(terms.quota);
            terms.rate = change.rate.unwrap_or(terms.rate);
            terms.check()?;
            check_networks(&registry.clients, &client)?;
            registry.find_mut(name)?.clone_from(&client);
            Ok(client)
        })
    }

    /// Gives a client another name. Its certificates, also later ones, keep the first name, so its profile stays valid.
    /// Users who are bound to the client stay bound to it.
    ///
    /// # Errors
    /// The client does not exist or is revoked, or the new name is taken.
    pub fn rename_client(
        &self,
        name: &str,
        new: &ClientName,
        now: SystemTime,
    ) -> Result<Client, PkiError> {
        let old: ClientName = name.parse()?;
        let renamed = self.update_registry(now, |update| {
            let registry = &mut update.registry;
            let client = registry.find_unrevoked(name)?;
            let own = client.certificate_name().clone();
            if *new == self.server().name {
                return Err(PkiError::BadName(new.to_string(), "it is the server's own"));
            }
            if registry.find(new.as_str()).is_some() {
                return Err(PkiError::Exists(new.to_string()));
            }
            if *new != own {
                registry.check_certificate_name(new)?;
            }
            // Users keep the old name until the client has the new one, so that a process killed in between locks no user out.
            self.add_bound_name(&old, new)?;
            let client = registry.find_mut(name)?;
            client.name = new.clone();
            client.identity = (own != *new).then_some(own);
            Ok(client.clone())
        })?;
        self.drop_bound_name(&old, new)?;
        Ok(renamed)
    }

    /// Removes a client. Only the serial numbers of its certificates remain, because they are revoked.
    ///
    /// # Errors
    /// The client does not exist, or it is the only one with which a user may log in: without it, the user could log in with any client.
    pub fn delete_client(&self, name: &str, now: SystemTime) -> Result<Client, PkiError> {
        let parsed: ClientName = name.parse()?;
        let removed = self.update_registry(now, |update| {
            let registry = &mut update.registry;
            let client = registry.find_mut(name)?.clone();
            let certificates = client.former.len().saturating_add(1);
            if registry.deleted.len().saturating_add(certificates) > MAX_DELETED {
                return Err(PkiError::DeletedFull(MAX_DELETED));
            }
            self.unbind_client(&parsed)?;
            registry.clients.retain(|other| other.name != client.name);
            let revoked = client.revoked.unwrap_or(issue::unix(now));
            let current = FormerCertificate { serial: client.serial.clone(), revoked };
            registry.deleted.extend(client.former.iter().cloned().chain([current]));
            for other in &mut registry.clients {
                other.terms.hidden_from.retain(|member| *member != Member::Client(parsed.clone()));
            }
            update.revocations = true;
            Ok(client)
        })?;
        self.forget_profiles(&removed)?;
        Ok(removed)
    }

    /// Returns whether the store keeps the profile of a client.
    pub fn keeps_profile(&self, client: &Client) -> bool {
        self.profile_path(&client.serial).exists()
    }

    /// Returns the profile of a client if the store keeps it.
    ///
    /// # Errors
    /// The client does not exist, or the profile cannot be read.
    pub fn kept_profile(&self, name: &str) -> Result<Option<Zeroizing<String>>, PkiError> {
        let client = self.client(name)?;
        match disk::read_text(&self.profile_path(&client.serial), self.open) {
            Ok(text) => Ok(Some(text)),
            Err(PkiError::Io { error, .. }) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Keeps the profile of a client whose operator wants that, or whose previous profile was kept, and removes the previous ones.
    pub(crate) fn keep_profile(&self, issued: &IssuedClient, keep: bool) -> Result<(), PkiError> {
        let former = issued.client.former.iter();
        let had = former.map(|old| self.profile_path(&old.serial)).any(|path| path.exists());
        if keep || had {
            let path = self.profile_path(&issued.client.serial);
            if let Some(folder) = path.parent() {
                disk::make_directory(folder, 0o700)?;
            }
            disk::write(&path, issued.profile.text().as_bytes(), 0o600)?;
        }
        for old in &issued.client.former {
            self.remove_profile(&old.serial)?;
        }
        Ok(())
    }

    /// Removes all profiles of a client that may not use them any more.
    pub(crate) fn forget_profiles(&self, client: &Client) -> Result<(), PkiError> {
        self.remove_profile(&client.serial)?;
        client.former.iter().try_for_each(|old| self.remove_profile(&old.serial))
    }

    fn remove_profile(&self, serial: &str) -> Result<(), PkiError> {
        let path = self.profile_path(serial);
        match std::fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(PkiError::io(&path, "remove", error))
            }
            _ => Ok(()),
        }
    }

    /// Returns the file of a kept profile. Its name is the serial number of the certificate in it, so that a profile is never taken for
    /// that of a later certificate.
    fn profile_path(&self, serial: &str) -> PathBuf {
        // Serial numbers are hex; anything else came from a damaged registry.
        let safe: String = serial.chars().filter(char::is_ascii_alphanumeric).collect();
        self.path("private/profiles").join(format!("{safe}.ovpn"))
    }
}

/// Refuses networks that overlap those of another client, unless that client is revoked.
fn check_networks(clients: &[Client], changed: &Client) -> Result<(), PkiError> {
    let others = clients
        .iter()
        .filter(|client| client.name != changed.name && client.state != ClientState::Revoked);
    let mut count = changed.terms.networks.len();
    for other in others {
        count = count.saturating_add(other.terms.networks.len());
        for theirs in &other.terms.networks {
            if let Some(ours) = changed.terms.networks.iter().find(|ours| overlap(ours, theirs)) {
                return Err(PkiError::NetworkTaken(*ours, *theirs, other.name.to_string()));
            }
        }
    }
    if count > MAX_ALL_NETWORKS {
        return Err(PkiError::BadSetting(
            "network",
            format!("all clients together have at most {MAX_ALL_NETWORKS}"),
        ));
    }
    Ok(())
}
