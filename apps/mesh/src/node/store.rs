//! The files that the running node writes.

use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_engine::Instant;
use adit_mesh::node::Node;
use adit_mesh::roster::{Change, ChangeHash};
use adit_runtime::clock::now;
use adit_runtime::fault::Fault;
use adit_runtime::helper::files;

use crate::Paths;
use crate::reach::Reach;
use crate::roster_file::RosterFile;
use crate::state::encode_invitations;

/// The minimum time between two writes of endpoints. Endpoints are needed only after a restart.
const ENDPOINTS_INTERVAL: Duration = Duration::from_secs(1);

/// The files of a running node.
#[derive(Debug)]
pub(super) struct Store {
    roster: RosterFile,
    reach: Reach,
    reach_file: PathBuf,
    invitations_file: PathBuf,
    state: PathBuf,
    /// The time when changed endpoints are written.
    endpoints_at: Option<Instant>,
    endpoints_written: Option<Instant>,
}

impl Store {
    pub(super) fn new(paths: &Paths, roster: RosterFile, reach: Reach) -> Self {
        Self {
            roster,
            reach,
            reach_file: paths.reach_file(),
            invitations_file: paths.invitations_file(),
            state: paths.folders.state.clone(),
            endpoints_at: None,
            endpoints_written: None,
        }
    }

    /// Returns the folder of the files.
    pub(super) fn state(&self) -> &Path {
        &self.state
    }

    /// Appends changes to the roster.
    ///
    /// # Errors
    /// The file system refuses. The node must then end, because it must not send changes that it has not stored.
    pub(super) fn append(&mut self, node: &Node, hashes: &[ChangeHash]) -> Result<(), Fault> {
        let changes: Vec<&Change> =
            hashes.iter().filter_map(|hash| node.changes().get(hash)).collect();
        self.roster.append(&changes)
    }

    pub(super) fn invitations_changed(&self, node: &Node) {
        replace(&self.invitations_file, &encode_invitations(node.invitations()));
    }

    pub(super) fn endpoints_changed(&mut self) {
        let next = self.endpoints_written.map_or_else(now, |at| at + ENDPOINTS_INTERVAL);
        self.endpoints_at.get_or_insert(next);
    }

    /// Writes the endpoints if that is due.
    pub(super) fn write_due(&mut self, node: &Node) {
        if self.endpoints_at.is_some_and(|at| at <= now()) {
            self.flush(node);
        }
    }

    /// Writes the endpoints if they have changed.
    pub(super) fn flush(&mut self, node: &Node) {
        if self.endpoints_at.take().is_some() {
            self.endpoints_written = Some(now());
            self.reach.set_endpoints(node.endpoints());
            self.reach.set_compared(node.compared());
            replace(&self.reach_file, &self.reach.encode());
        }
    }
}

fn replace(path: &Path, bytes: &[u8]) {
    if let Err(error) = files::replace(path, bytes) {
        tracing::warn!("cannot write {}: {error}", path.display());
    }
}
