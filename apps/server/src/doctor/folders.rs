//! Checks whether the folders that adit changes can be written.

use std::path::Path;
use std::{fs, io};

use super::Finding;

const CHECK: &str = "folders";

/// The length of the file with which a folder is tried, bytes: as long as most files in it.
const TRIAL: usize = 4096;

/// Writes a file into each folder that exists, as adit saves all others. Returns a finding for each that fails, or one for all.
pub(super) fn folders(folders: &[&Path]) -> Vec<Finding> {
    let existing: Vec<&Path> = folders.iter().copied().filter(|path| path.exists()).collect();
    let failed: Vec<Finding> = existing
        .iter()
        .filter_map(|path| attempt(path).err().map(|error| explain(path, &error)))
        .collect();
    if !failed.is_empty() || existing.is_empty() {
        return failed;
    }
    let names: Vec<String> = existing.iter().map(|path| path.display().to_string()).collect();
    vec![Finding::ok(CHECK, format!("can write into {}", names.join(", ")))]
}

fn attempt(folder: &Path) -> io::Result<()> {
    let path = folder.join(format!(".adit-doctor-{}", std::process::id()));
    adit_linux::file::replace(&path, &[0; TRIAL], 0o600, ".new")?;
    fs::remove_file(&path)
}

fn explain(folder: &Path, error: &io::Error) -> Finding {
    let shown = folder.display();
    let (what, remedy) = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => (
            format!("{shown} is full: nothing can be saved in it"),
            [format!("free some space: df -h {shown}"), format!("or some files: df -i {shown}")],
        ),
        io::ErrorKind::ReadOnlyFilesystem => (
            format!("{shown} is read-only: nothing can be saved in it"),
            [format!("the mount: findmnt -T {shown}"), "why it is read-only: dmesg".to_owned()],
        ),
        _ => (
            format!("{shown} cannot be written: {error}"),
            [format!("look what is there: ls -ld {shown}"), format!("and: lsattr -d {shown}")],
        ),
    };
    remedy.into_iter().fold(Finding::problem(CHECK, what), Finding::remedy)
}

#[cfg(test)]
mod tests {
    use super::super::Level;
    use super::*;

    #[test]
    fn a_folder_that_can_be_written_is_fine_and_stays_empty() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let findings = folders(&[dir.path(), &missing]);
        assert!(matches!(findings.as_slice(), [one] if one.level == Level::Fine), "{findings:?}");
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert_eq!(folders(&[&missing]), []);
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_a_problem() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let dir = tempfile::tempdir().unwrap();
        let findings = folders(&[file.path(), dir.path()]);
        assert!(
            matches!(findings.as_slice(), [one] if one.level == Level::Problem),
            "{findings:?}"
        );
    }

    #[test]
    fn the_reason_is_named() {
        let what = |kind: io::ErrorKind| explain(Path::new("/keys"), &kind.into()).what;
        assert!(what(io::ErrorKind::StorageFull).starts_with("/keys is full"));
        assert!(what(io::ErrorKind::QuotaExceeded).starts_with("/keys is full"));
        assert!(what(io::ErrorKind::ReadOnlyFilesystem).starts_with("/keys is read-only"));
    }
}
