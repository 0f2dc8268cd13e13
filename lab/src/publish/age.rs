//! The age of figures, in commits.

use std::fmt;
use std::path::Path;

use adit_testbed::failure::Result;
use adit_testbed::process::output;

use crate::subject::git;

/// The code that determines the figures: the data path, the protocols' engines, and the peers' counterparts in the lab.
const MEASURED: [&str; 15] = [
    "crates/wire/src",
    "crates/crypto/src",
    "crates/filter/src",
    "crates/linux/src",
    "crates/engine/src",
    "crates/openvpn/src",
    "crates/dataplane/src",
    "crates/openvpn-data/src",
    "crates/bridge/src",
    "crates/mesh/src",
    "crates/postgres/src",
    "crates/postgres-client/src",
    "crates/tinc/src",
    "crates/tinc-data/src",
    "lab/src",
];

/// Commits since a revision.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Age {
    /// The number of all commits.
    pub(super) commits: usize,
    /// The number of commits that changed the measured code.
    pub(super) measured_code: usize,
}

impl fmt::Display for Age {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self { commits: 0, .. } => f.write_str("of this revision"),
            Self { commits, measured_code } => write!(
                f,
                "{commits} commits ago, {measured_code} of which changed what it measured"
            ),
        }
    }
}

/// Returns the age of a revision's figures in this checkout.
///
/// # Errors
/// git does not know the revision.
pub(super) fn of(root: &Path, revision: &str) -> Result<Age> {
    let since = |paths: &[&str]| -> Result<usize> {
        let mut command = git(root);
        command.args(["rev-list", "--count", &format!("{revision}..HEAD"), "--"]).args(paths);
        Ok(output(command)?.trim().parse().unwrap_or(usize::MAX))
    };
    Ok(Age { commits: since(&[])?, measured_code: since(&MEASURED)? })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// git counts no commits of a folder that does not exist, so figures would look newer than they are.
    #[test]
    fn all_folders_of_the_measured_code_exist() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        for folder in MEASURED {
            assert!(root.join(folder).is_dir(), "{folder}");
        }
    }
}
