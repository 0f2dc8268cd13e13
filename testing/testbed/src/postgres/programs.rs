//! Finds PostgreSQL's programs on Debian and other systems.

use std::path::{Path, PathBuf};

use crate::failure::{Context, Result};

/// The oldest version that adit works with.
const OLDEST: u32 = 15;
/// Debian's folder, which has a subfolder for each version.
const DEBIAN: &str = "/usr/lib/postgresql";

/// The variable that names a root with another version of the server, created by scripts/postgres-roots.sh.
pub const ROOT: &str = "ADIT_POSTGRES_ROOT";

/// Returns the root that [`ROOT`] names, and the folder of the server's programs in it.
///
/// # Errors
/// The root has no server.
pub(super) fn root() -> Result<Option<(PathBuf, PathBuf)>> {
    let Some(root) = std::env::var_os(ROOT).map(PathBuf::from) else { return Ok(None) };
    let root = root.canonicalize().context(root.display())?;
    let version = newest(&root.join(DEBIAN.trim_start_matches('/')));
    let version = version.context(format!("no PostgreSQL server in {}", root.display()))?;
    Ok(Some((root, PathBuf::from(format!("{DEBIAN}/{version}/bin")))))
}

/// Returns the folder of `postgres`, `initdb` and `psql`: the newest under Debian's folder, or else one in `PATH`.
///
/// # Errors
/// There is none, or all are older than adit supports.
pub fn programs() -> Result<PathBuf> {
    let debian =
        newest(Path::new(DEBIAN)).map(|version| PathBuf::from(format!("{DEBIAN}/{version}/bin")));
    let path = std::env::var_os("PATH").unwrap_or_default();
    debian
        .into_iter()
        .chain(std::env::split_paths(&path))
        .find(|folder| ["postgres", "initdb", "psql"].iter().all(|name| folder.join(name).exists()))
        .context(format!(
            "no PostgreSQL {OLDEST} or newer here: apt install postgresql (or: make setup)"
        ))
}

/// Returns the newest supported version that names one of the folders.
fn newest(folder: &Path) -> Option<u32> {
    let versions = std::fs::read_dir(folder).ok()?.flatten().filter_map(|entry| {
        let version = entry.file_name().to_str()?.parse::<u32>().ok()?;
        (version >= OLDEST && entry.path().join("bin/postgres").exists()).then_some(version)
    });
    versions.max()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn takes_the_newest_that_has_a_server_and_none_that_is_too_old() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(newest(folder.path()), None);
        for version in ["9", "14", "15", "17", "common"] {
            let bin = folder.path().join(version).join("bin");
            std::fs::create_dir_all(&bin).unwrap();
            std::fs::write(bin.join("postgres"), "").unwrap();
        }
        // This version has only a client.
        std::fs::create_dir_all(folder.path().join("18/bin")).unwrap();
        assert_eq!(newest(folder.path()), Some(17));
        std::fs::remove_dir_all(folder.path().join("17")).unwrap();
        std::fs::remove_dir_all(folder.path().join("15")).unwrap();
        assert_eq!(newest(folder.path()), None);
    }
}
