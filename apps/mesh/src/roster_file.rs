//! The file of the roster's changes, to which one process appends.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use adit_mesh::roster::{Change, Changes, Genesis, Log, LogEncoder, LogError};
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::paths::write_whole;
use rustix::fs::{FlockOperation, flock};

/// The maximum length of the file.
const MAX_LEN: u64 = 512 << 20;

/// The open and locked file.
#[derive(Debug)]
pub(crate) struct RosterFile {
    path: PathBuf,
    file: File,
    encoder: LogEncoder,
    /// The length of the valid part.
    len: u64,
}

impl RosterFile {
    /// Writes a new file with all changes of a set.
    ///
    /// # Errors
    /// The file system refuses. No file remains.
    pub(crate) fn create(path: &Path, changes: &Changes) -> Result<(), Fault> {
        let bytes = encode(changes.genesis(), changes)
            .map_err(|error| Fault::ours(format!("the roster cannot be written: {error}")))?;
        write_whole(path, 0o600, &bytes)
    }

    /// Opens and locks a file. Truncates an incomplete record that a crash left at its end.
    ///
    /// # Errors
    /// The file cannot be read, is damaged, or belongs to another process.
    pub(crate) fn open(path: &Path) -> Result<(Self, Changes), Fault> {
        let open = OpenOptions::new().read(true).write(true).mode(0o600).open(path);
        let mut file = open.map_err(|error| file_fault("cannot open", path, &error))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            Fault::operator(format!(
                "another process uses {}: this node is already running; show it with: adit mesh status",
                path.display()
            ))
        })?;
        let log = read(&mut file, path)?;
        if log.torn > 0 {
            tracing::warn!(
                "{}: {} bytes at the end were not written completely, and are removed",
                path.display(),
                log.torn
            );
        }
        let len = log.valid_len as u64;
        let mut this = Self { path: path.to_owned(), file, encoder: log.encoder, len };
        this.cut().map_err(|error| file_fault("cannot repair", path, &error))?;
        Ok((this, log.changes))
    }

    /// Reads the changes of a file that another process may use.
    ///
    /// # Errors
    /// The file cannot be read, or is damaged.
    pub(crate) fn peek(path: &Path) -> Result<Changes, Fault> {
        let mut file = File::open(path).map_err(|error| file_fault("cannot open", path, &error))?;
        Ok(read(&mut file, path)?.changes)
    }

    /// Appends changes. They are on the disk when this returns.
    ///
    /// # Errors
    /// The file system refuses. The file is unchanged.
    pub(crate) fn append(&mut self, changes: &[&Change]) -> Result<(), Fault> {
        let mut encoder = self.encoder.clone();
        let mut bytes = Vec::new();
        for change in changes {
            let record = encoder.append(change);
            bytes.extend(record.map_err(|error| Fault::ours(error.to_string()))?);
        }
        let written = self.file.write_all(&bytes).and_then(|()| self.file.sync_data());
        if let Err(error) = written {
            // A part of it may have been written.
            let _ = self.cut();
            return Err(file_fault("cannot append to", &self.path, &error));
        }
        self.encoder = encoder;
        self.len = self.len.saturating_add(bytes.len() as u64);
        Ok(())
    }

    /// Truncates the file to its valid part.
    fn cut(&mut self) -> io::Result<()> {
        self.file.set_len(self.len)?;
        self.file.seek(SeekFrom::Start(self.len)).map(drop)
    }
}

fn encode(genesis: &Genesis, changes: &Changes) -> Result<Vec<u8>, LogError> {
    let (mut encoder, mut bytes) = LogEncoder::create(genesis)?;
    for change in changes.in_causal_order() {
        bytes.extend(encoder.append(change)?);
    }
    Ok(bytes)
}

fn read(file: &mut File, path: &Path) -> Result<Log, Fault> {
    let mut bytes = Vec::new();
    file.take(MAX_LEN)
        .read_to_end(&mut bytes)
        .map_err(|error| file_fault("cannot read", path, &error))?;
    Log::decode(&bytes).map_err(|error| {
        let remedy = match error {
            LogError::Newer(_) => ": run that version again; nothing was changed",
            _ => "; move the file away and join the mesh again, or put back a copy of it",
        };
        Fault::environment(format!("{}: {error}{remedy}", path.display()))
    })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use adit_crypto::sign::SigningKey;
    use adit_engine::UnixTime;
    use adit_mesh::roster::{Action, Label, Layer, NodeInfo};

    use super::*;

    fn changes() -> (Changes, SigningKey) {
        let key = SigningKey::from_seed(&[1; 32]).unwrap();
        let genesis = Genesis {
            name: Label::new("home").unwrap(),
            admins: vec![key.public_hash()],
            threshold: 1,
            ranges: Vec::new(),
            random: [7; 32],
            layer: Layer::Ip,
        };
        (Changes::new(genesis).unwrap(), key)
    }

    fn admit(changes: &mut Changes, key: &SigningKey, n: u8) -> Change {
        let node = NodeInfo::named(Label::new(&format!("node{n}")).unwrap());
        let action = Action::Admit { key: [n; 32], node };
        let body = changes.draft(key.public_hash(), UnixTime(1_800_000_000), action);
        let change = Change::sign(changes.mesh(), key, body.unwrap()).unwrap();
        changes.insert(change.clone()).unwrap();
        change
    }

    #[test]
    fn appended_changes_are_read_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("roster");
        let (mut changes, key) = changes();
        admit(&mut changes, &key, 1);
        RosterFile::create(&path, &changes).unwrap();
        let (mut file, read) = RosterFile::open(&path).unwrap();
        assert_eq!(read.digest(), changes.digest());
        let (two, three) = (admit(&mut changes, &key, 2), admit(&mut changes, &key, 3));
        file.append(&[&two, &three]).unwrap();
        let refused = RosterFile::open(&path).unwrap_err().to_string();
        assert!(refused.contains("is already running"), "{refused}");
        drop(file);
        assert_eq!(RosterFile::open(&path).unwrap().1.digest(), changes.digest());
    }

    #[test]
    fn a_file_of_a_newer_version_is_neither_opened_nor_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("roster");
        let (changes, _) = changes();
        RosterFile::create(&path, &changes).unwrap();
        let newer = String::from_utf8_lossy(&fs::read(&path).unwrap()).replacen("/1\n", "/2\n", 1);
        fs::write(&path, &newer).unwrap();
        for refused in [RosterFile::open(&path).map(drop), RosterFile::peek(&path).map(drop)] {
            let refused = refused.unwrap_err().to_string();
            assert!(refused.contains("newer version of adit (log 2,"), "{refused}");
            assert!(refused.contains("run that version again"), "{refused}");
        }
        assert_eq!(fs::read_to_string(&path).unwrap(), newer);
    }

    #[test]
    fn what_a_crash_left_is_cut_off_and_the_rest_remains() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("roster");
        let (mut changes, key) = changes();
        RosterFile::create(&path, &changes).unwrap();
        let whole = fs::read(&path).unwrap();
        let change = admit(&mut changes, &key, 1);
        let (mut file, _) = RosterFile::open(&path).unwrap();
        file.append(&[&change]).unwrap();
        drop(file);
        let longer = fs::read(&path).unwrap();
        for len in whole.len()..longer.len() {
            fs::write(&path, &longer[..len]).unwrap();
            let (mut file, read) = RosterFile::open(&path).unwrap();
            assert_eq!(read.len(), 0, "{len}");
            file.append(&[&change]).unwrap();
            drop(file);
            assert_eq!(fs::read(&path).unwrap(), longer);
        }
    }
}
