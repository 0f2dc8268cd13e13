//! The last login in the browser with each client's certificate: its user, groups and time. The file `sso-logins.json`
//! keeps them, so that users need not log in again after a restart.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};

use adit_runtime::helper::files;
use adit_runtime::paths::Paths;
use serde::{Deserialize, Serialize};

/// The maximum size of the file that is read, in bytes.
const MAX_FILE: u64 = 64 * 1024 * 1024;
/// The maximum number of logins that are kept: as many as there may be clients. A further one replaces the oldest.
const MAX_LOGINS: usize = 65_536;

/// The logins by the name of the client.
#[derive(Debug)]
pub(crate) struct SsoLogins {
    path: PathBuf,
    /// Held while the file is written, so that the newest content is the last one.
    writing: Mutex<()>,
    /// The control thread needs it, and the helper's answers arrive there: it is never held while the file is written.
    state: Mutex<BTreeMap<String, SsoLogin>>,
}

/// A login in the browser.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SsoLogin {
    /// The user.
    pub(crate) user: String,
    /// The groups that the provider named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(crate) groups: Vec<String>,
    /// The time, in seconds since 1970.
    pub(crate) at: u64,
}

impl SsoLogins {
    /// Returns the path of the file.
    pub(crate) fn file(paths: &Paths) -> PathBuf {
        paths.data.join("sso-logins.json")
    }

    pub(crate) fn open(paths: &Paths) -> Self {
        let path = Self::file(paths);
        let small = fs::metadata(&path).is_ok_and(|meta| meta.len() <= MAX_FILE);
        let text = small.then(|| fs::read(&path).ok()).flatten();
        let state = match text.map(|text| serde_json::from_slice(&text)) {
            None => BTreeMap::new(),
            Some(Ok(state)) => state,
            Some(Err(error)) => {
                tracing::warn!("single sign-on: {}: not read: {error}", path.display());
                BTreeMap::new()
            }
        };
        Self { path, writing: Mutex::default(), state: Mutex::new(state) }
    }

    /// Returns the last login with a client's certificate.
    pub(crate) fn get(&self, client: &str) -> Option<SsoLogin> {
        self.state().get(client).cloned()
    }

    /// Records a login, and forgets those before `oldest`. It writes the file, so it belongs on a thread that may block.
    pub(crate) fn record(&self, client: &str, login: SsoLogin, oldest: u64) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let text = {
            let mut state = self.state();
            state.retain(|_, known| known.at >= oldest);
            if state.len() >= MAX_LOGINS && !state.contains_key(client) {
                let first = state.iter().min_by_key(|(_, known)| known.at);
                if let Some(name) = first.map(|(name, _)| name.clone()) {
                    state.remove(&name);
                }
            }
            state.insert(client.to_owned(), login);
            serde_json::to_vec(&*state).map_err(|error| error.to_string())
        };
        let written = text
            .and_then(|text| files::replace(&self.path, &text).map_err(|error| error.to_string()));
        if let Err(error) = written {
            // After a restart the user logs in again.
            tracing::warn!("single sign-on: {}: not written: {error}", self.path.display());
        }
    }

    fn state(&self) -> MutexGuard<'_, BTreeMap<String, SsoLogin>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::folders;

    fn login(user: &str, at: u64) -> SsoLogin {
        SsoLogin { user: user.into(), groups: vec!["staff".into()], at }
    }

    #[test]
    fn logins_survive_a_restart_and_old_ones_are_forgotten() {
        let dir = tempfile::tempdir().unwrap();
        let paths = folders(&dir);
        let logins = SsoLogins::open(&paths);
        assert_eq!(logins.get("laptop"), None);
        logins.record("laptop", login("alice", 1000), 0);
        logins.record("phone", login("bob", 2000), 1000);
        let logins = SsoLogins::open(&paths);
        assert_eq!(logins.get("laptop"), Some(login("alice", 1000)));
        logins.record("phone", login("alice", 3000), 1001);
        assert_eq!(logins.get("laptop"), None);
        assert_eq!(SsoLogins::open(&paths).get("phone"), Some(login("alice", 3000)));
        fs::write(SsoLogins::file(&paths), "{").unwrap();
        assert_eq!(SsoLogins::open(&paths).get("phone"), None);
    }

    #[test]
    fn the_oldest_login_makes_room() {
        let dir = tempfile::tempdir().unwrap();
        let logins = SsoLogins::open(&folders(&dir));
        for n in 0..MAX_LOGINS {
            logins.state().insert(format!("c{n}"), login("alice", 10 + n as u64));
        }
        logins.record("new", login("bob", 5), 0);
        assert_eq!(logins.state().len(), MAX_LOGINS);
        assert!(logins.get("c0").is_none() && logins.get("new").is_some());
        logins.record("new", login("bob", 6), 0);
        assert_eq!(logins.state().len(), MAX_LOGINS);
    }
}
