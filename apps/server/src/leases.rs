//! The leases: the last address of each client, to keep it across restarts.

use std::collections::BTreeMap;
use std::fs;
use std::net::Ipv4Addr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use adit_runtime::helper::files;
use adit_runtime::paths::Paths;

/// The maximum number of recorded names. Other clients get any free address.
const MAX_LEASES: usize = 65_536;

/// How long changes are collected before they are written.
const DELAY: Duration = Duration::from_secs(2);

/// The file `leases.json`. Errors are only logged, because without it clients merely get new addresses.
#[derive(Clone, Debug)]
pub(super) struct Leases {
    path: PathBuf,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    addresses: BTreeMap<String, Ipv4Addr>,
    /// Whether a write is already scheduled.
    due: bool,
}

impl Leases {
    /// Returns the path of the leases.
    pub(super) fn file(paths: &Paths) -> PathBuf {
        paths.data.join("leases.json")
    }

    pub(super) fn open(paths: &Paths) -> Self {
        let path = Self::file(paths);
        let addresses = fs::read(&path)
            .ok()
            .and_then(|text| serde_json::from_slice(&text).ok())
            .unwrap_or_default();
        Self { path, state: Arc::new(Mutex::new(State { addresses, due: false })) }
    }

    pub(super) fn all(&self) -> BTreeMap<String, Ipv4Addr> {
        self.lock().addresses.clone()
    }

    /// Records an address. Call it inside a tokio runtime, because the file is written later.
    pub(super) fn remember(&self, name: &str, address: Ipv4Addr) {
        let mut state = self.lock();
        let known = state.addresses.contains_key(name);
        if state.addresses.get(name) == Some(&address)
            || (!known && state.addresses.len() >= MAX_LEASES)
        {
            return;
        }
        // An address has one owner: remove the previous one.
        state.addresses.retain(|_, other| *other != address);
        state.addresses.insert(name.to_owned(), address);
        if !state.due {
            state.due = true;
            let this = self.clone();
            tokio::spawn(async move {
                tokio::time::sleep(DELAY).await;
                let _ = tokio::task::spawn_blocking(move || this.save()).await;
            });
        }
    }

    /// Writes the pending changes.
    pub(super) fn save(&self) {
        let text = {
            let mut state = self.lock();
            if !std::mem::take(&mut state.due) {
                return;
            }
            serde_json::to_vec_pretty(&state.addresses)
        };
        let written = text
            .map_err(|error| error.to_string())
            .and_then(|text| files::replace(&self.path, &text).map_err(|e| e.to_string()));
        if let Err(error) = written {
            tracing::warn!("leases: not saved: {error}");
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
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
        leases.save();
        let again = Leases::open(&paths).all();
        assert_eq!(again.get("a"), None);
        assert_eq!(again.get("b"), Some(&address(3)));
        assert_eq!(again.get("c"), Some(&address(2)));
        fs::write(dir.path().join("data/leases.json"), "torn").unwrap();
        assert!(Leases::open(&paths).all().is_empty());
    }
}
