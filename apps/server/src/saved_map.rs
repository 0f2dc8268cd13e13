//! A map that a file keeps across restarts.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use adit_runtime::helper::files;
use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::runtime::Handle;

/// A map from names, written as JSON. Errors are only logged, because the server can do without the file.
#[derive(Debug)]
pub(super) struct SavedMap<V> {
    /// The subject of log lines.
    what: &'static str,
    path: PathBuf,
    /// How long changes are collected before they are written.
    delay: Duration,
    state: Arc<Mutex<State<V>>>,
}

#[derive(Debug)]
struct State<V> {
    entries: BTreeMap<String, V>,
    /// Whether there are changes that are not written yet.
    changed: bool,
    /// Whether a write is already scheduled.
    due: bool,
}

impl<V> Clone for SavedMap<V> {
    fn clone(&self) -> Self {
        Self { path: self.path.clone(), state: Arc::clone(&self.state), ..*self }
    }
}

impl<V: Serialize + DeserializeOwned + Send + 'static> SavedMap<V> {
    /// Reads the file. The map is empty if the file is missing or damaged.
    pub(super) fn open(what: &'static str, path: PathBuf, delay: Duration) -> Self {
        let read = fs::read(&path).and_then(|text| Ok(serde_json::from_slice(&text)?));
        let entries = read.unwrap_or_else(|error: io::Error| {
            if error.kind() != io::ErrorKind::NotFound {
                tracing::warn!("{what}: {} not read: {error}", path.display());
            }
            BTreeMap::new()
        });
        let state = State { entries, changed: false, due: false };
        Self { what, path, delay, state: Arc::new(Mutex::new(state)) }
    }

    /// Reads the map.
    pub(super) fn read<T>(&self, read: impl FnOnce(&BTreeMap<String, V>) -> T) -> T {
        read(&self.lock().entries)
    }

    /// Changes the map; `edit` returns whether it did. Inside a tokio runtime the file is written later, elsewhere only by [`Self::save`].
    pub(super) fn change(&self, edit: impl FnOnce(&mut BTreeMap<String, V>) -> bool) {
        let mut state = self.lock();
        if !edit(&mut state.entries) {
            return;
        }
        state.changed = true;
        if state.due {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            state.due = true;
            let this = self.clone();
            runtime.spawn(async move {
                tokio::time::sleep(this.delay).await;
                let _ = tokio::task::spawn_blocking(move || this.save()).await;
            });
        }
    }

    /// Removes all names for which `keep` does not hold.
    pub(super) fn retain(&self, keep: impl Fn(&str) -> bool) {
        self.change(|entries| {
            let before = entries.len();
            entries.retain(|name, _| keep(name));
            entries.len() != before
        });
    }

    /// Writes the pending changes.
    pub(super) fn save(&self) {
        let text = {
            let mut state = self.lock();
            state.due = false;
            if !std::mem::take(&mut state.changed) {
                return;
            }
            serde_json::to_vec_pretty(&state.entries)
        };
        let written = text
            .map_err(|error| error.to_string())
            .and_then(|text| files::replace(&self.path, &text).map_err(|e| e.to_string()));
        if let Err(error) = written {
            tracing::warn!("{}: not saved: {error}", self.what);
        }
    }

    fn lock(&self) -> MutexGuard<'_, State<V>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
