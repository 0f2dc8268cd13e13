//! Authorizes clients against the registry.

use std::collections::HashMap;
use std::os::unix::fs::MetadataExt;
use std::sync::{Arc, Mutex, PoisonError};

use adit_engine::{Identity, auth};
use adit_pki::{Client, ClientState, Store};

use super::init::pki_fault;
use adit_runtime::authorize::{Authorizer, ResponseFuture};
use adit_runtime::fault::Fault;
use adit_runtime::helper::files;

/// The reason given to a disabled client. It keeps trying, but rarely.
const DISABLED: &str = "the client is disabled";

/// The registry on disk. It is read again when the file has changed.
#[derive(Clone, Debug)]
pub(super) struct RegistryAuthorizer {
    store: Store,
    cached: Arc<Mutex<CachedRegistry>>,
}

#[derive(Debug, Default)]
struct CachedRegistry {
    /// The file's inode, size and modification time. The inode alone is almost sufficient, because every change
    /// replaces the file with a rename.
    version: Option<(u64, u64, i64, i64)>,
    clients: Arc<HashMap<String, Client>>,
}

impl RegistryAuthorizer {
    pub(super) fn new(store: Store) -> Self {
        Self { store, cached: Arc::default() }
    }

    /// Decides whether the owner of this certificate may have a session. Returns the reason if not.
    ///
    /// # Errors
    /// Fails if the registry cannot be read. In this case no client may connect.
    pub(super) fn decide(
        &self,
        name: &str,
        serial: &str,
    ) -> Result<Result<auth::ClientParams, String>, Fault> {
        let clients = self.clients()?;
        let Some(client) = clients.get(name) else {
            return Ok(Err("no such client is registered".into()));
        };
        if !client.serial.eq_ignore_ascii_case(serial) {
            let former = client.former.iter().any(|old| old.serial.eq_ignore_ascii_case(serial));
            return Ok(Err(if former {
                "its certificate was replaced by a newer one".into()
            } else {
                "its certificate is not the registered one".into()
            }));
        }
        Ok(match client.state {
            ClientState::Active => Ok(auth::ClientParams {
                ipv4: client.address4,
                ipv6: client.address6,
                groups: groups(client),
                ..auth::ClientParams::default()
            }),
            ClientState::Disabled => Err(DISABLED.into()),
            ClientState::Revoked => Err("the client is revoked".into()),
        })
    }

    /// Returns the current groups of a client, or none if it is not registered or the registry cannot be read.
    pub(super) fn groups(&self, name: &str) -> Vec<String> {
        match self.clients() {
            Ok(clients) => clients.get(name).map(groups).unwrap_or_default(),
            Err(_) => Vec::new(),
        }
    }

    /// Returns the active client whose certificate expires first, and the time. Returns `None` if there is none or the
    /// registry cannot be read.
    pub(super) fn nearest_expiry(&self) -> Option<(String, u64)> {
        let clients = self.clients().ok()?;
        let active = clients.values().filter(|client| client.state == ClientState::Active);
        let first = active.min_by_key(|client| client.expires)?;
        Some((first.name.to_string(), first.expires))
    }

    /// Returns the current registry.
    ///
    /// No lock is held while files are opened. The helper may have to open them, and its answers arrive on the control
    /// thread, which also needs the registry.
    fn clients(&self) -> Result<Arc<HashMap<String, Client>>, Fault> {
        let path = self.store.files().clients;
        let version = files::metadata(&path)
            .ok()
            .map(|meta| (meta.ino(), meta.size(), meta.mtime(), meta.mtime_nsec()));
        {
            let cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
            if version.is_some() && version == cached.version {
                return Ok(Arc::clone(&cached.clients));
            }
        }
        let clients = self.store.clients().map_err(pki_fault)?;
        let clients = clients.into_iter().map(|client| (client.name.to_string(), client)).collect();
        let clients = Arc::new(clients);
        let fresh = CachedRegistry { version, clients: Arc::clone(&clients) };
        *self.cached.lock().unwrap_or_else(PoisonError::into_inner) = fresh;
        Ok(clients)
    }
}

fn groups(client: &Client) -> Vec<String> {
    client.groups.iter().map(ToString::to_string).collect()
}

impl Authorizer for RegistryAuthorizer {
    fn authorize(&self, identity: Identity) -> ResponseFuture {
        let this = self.clone();
        Box::pin(async move {
            let judged = tokio::task::spawn_blocking(move || {
                this.decide(&identity.common_name, &identity.serial)
            });
            match judged.await {
                Ok(Ok(Ok(grant))) => auth::Response::Accept(grant),
                Ok(Ok(Err(reason))) if reason == DISABLED => auth::Response::Later(reason),
                Ok(Ok(Err(reason))) => auth::Response::Reject(reason),
                Ok(Err(fault)) => {
                    auth::Response::Reject(format!("the registry cannot be read: {fault}"))
                }
                Err(error) => auth::Response::Reject(format!("the registry check failed: {error}")),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::clients::{ClientRequest, add, disable, enable, open_store, renew, revoke};
    use super::super::init::{NewServer, init};
    use adit_runtime::paths::Paths;
    use std::fs;

    use super::*;

    /// Tests each check of the registry separately.
    #[test]
    fn only_the_current_certificate_of_an_active_client_is_let_in() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path())).unwrap();
        let choices = NewServer {
            host: Some("h".into()),
            network: Some("10.199.31.0/24".parse().unwrap()),
            ..NewServer::default()
        };
        init(&paths, &choices, false).unwrap();
        let wanted = ClientRequest {
            name: "a".into(),
            address: Some("10.199.31.77".parse().unwrap()),
            ..ClientRequest::default()
        };
        let serial = add(&paths, &wanted).unwrap().client.serial;
        let authority = RegistryAuthorizer::new(open_store(&paths).unwrap());
        let decide = |name: &str, serial: &str| authority.decide(name, serial).unwrap();

        assert_eq!(decide("a", &serial).unwrap().ipv4, wanted.address);
        assert!(decide("b", &serial).unwrap_err().contains("no such client"));
        assert!(decide("a", "00").unwrap_err().contains("not the registered"));
        disable(&paths, "a").unwrap();
        assert!(decide("a", &serial).unwrap_err().contains("disabled"));
        enable(&paths, "a").unwrap();
        decide("a", &serial).unwrap();
        let (renewed, _) =
            renew(&paths, &ClientRequest { name: "a".into(), ..ClientRequest::default() }).unwrap();
        assert!(decide("a", &serial).unwrap_err().contains("replaced"));
        let serial = renewed.client.serial;
        assert_eq!(decide("a", &serial).unwrap().ipv4, wanted.address);
        revoke(&paths, "a").unwrap();
        assert!(decide("a", &serial).unwrap_err().contains("revoked"));

        fs::write(authority.store.files().clients, "{").unwrap();
        assert!(authority.decide("a", &serial).is_err());
        fs::remove_file(authority.store.files().clients).unwrap();
        assert!(authority.decide("a", &serial).is_err());
    }
}
