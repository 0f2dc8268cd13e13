//! The key of an admin on this machine, and its successor while a rotation waits for approvals.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use adit_crypto::sign::SigningKey;
use adit_mesh::roster::{Action, Changes, Roster};
use adit_mesh::session::KeyHash;
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::helper::files;
use zeroize::Zeroizing;

use super::state::{decode_key, encode_key};

/// The keys in `admin.key`, one per line.
#[derive(Debug)]
pub(crate) struct AdminKeys {
    path: PathBuf,
    current: Option<SigningKey>,
    /// The key that replaces it once the replacement is valid.
    next: Option<SigningKey>,
}

impl AdminKeys {
    /// Reads the file, which most machines do not have. If there are two keys, the current one is in the roster.
    ///
    /// # Errors
    /// The file cannot be read, or its content is not valid.
    pub(crate) fn load(path: &Path, changes: &Changes) -> Result<Self, Fault> {
        let mut keys = read(path)?.into_iter();
        let (current, next) = (keys.next(), keys.next());
        let mut this = Self { path: path.to_owned(), current, next };
        if this.next.is_some() {
            this.advance(&Roster::evaluate(changes))?;
        }
        Ok(this)
    }

    /// Returns a copy of the current key.
    ///
    /// # Errors
    /// The cryptographic library failed.
    pub(crate) fn current(&self) -> Result<Option<SigningKey>, Fault> {
        self.current.as_ref().map(copy).transpose()
    }

    /// Stores a new key in addition to the current one. Returns the hashes of both.
    ///
    /// If the node stored a successor but exited before signing the rotation, that successor is used instead of the new key.
    ///
    /// # Errors
    /// There is no current key, its replacement is signed already, or the file cannot be written.
    pub(crate) fn prepare(
        &mut self,
        new: SigningKey,
        changes: &Changes,
    ) -> Result<(KeyHash, KeyHash), Fault> {
        let Some(current) = &self.current else {
            return Err(Fault::operator(
                "this machine has no admin.key to replace: do it on one that has, or after adit mesh admin recover",
            ));
        };
        if self.next.as_ref().is_some_and(|next| is_signed(changes, &next.public_hash())) {
            return Err(Fault::operator(
                "this machine's key is already being replaced: other admins must approve it",
            ));
        }
        let next = self.next.take().unwrap_or(new);
        write(&self.path, &[current, &next])?;
        let hashes = (current.public_hash(), next.public_hash());
        self.next = Some(next);
        Ok(hashes)
    }

    /// Forgets the successor, whose rotation was not signed.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn give_up(&mut self) -> Result<(), Fault> {
        self.next = None;
        self.current.as_ref().map_or(Ok(()), |current| write(&self.path, &[current]))
    }

    /// If the successor is in the roster, makes it the current key and returns a copy of it.
    ///
    /// # Errors
    /// The file cannot be written.
    pub(crate) fn advance(&mut self, roster: &Roster) -> Result<Option<SigningKey>, Fault> {
        let counts = |next: &mut SigningKey| roster.admins().contains(&next.public_hash());
        let Some(next) = self.next.take_if(counts) else { return Ok(None) };
        write(&self.path, &[&next])?;
        let copied = copy(&next)?;
        self.current = Some(next);
        Ok(Some(copied))
    }
}

/// Reads the keys in a file, or none if the file does not exist.
///
/// # Errors
/// The file cannot be read, or its content is not valid.
pub(crate) fn read(path: &Path) -> Result<Vec<SigningKey>, Fault> {
    let text = match fs::read_to_string(path) {
        Ok(text) => Zeroizing::new(text),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(file_fault("cannot read", path, &error)),
    };
    let keys: Option<Vec<SigningKey>> = text.lines().map(decode_key).collect();
    keys.filter(|keys| matches!(keys.len(), 1 | 2)).ok_or_else(|| {
        Fault::environment(format!(
            "{}: not the key of an admin; put back a copy of the file, or move it away and use: adit mesh admin recover",
            path.display()
        ))
    })
}

fn write(path: &Path, keys: &[&SigningKey]) -> Result<(), Fault> {
    let mut text = Zeroizing::new(String::with_capacity(128));
    keys.iter().for_each(|key| encode_key(key, &mut text));
    files::replace(path, text.as_bytes()).map_err(|error| file_fault("cannot write", path, &error))
}

/// Returns whether a change makes this key the successor of another one.
fn is_signed(changes: &Changes, new: &KeyHash) -> bool {
    let names_it = |action: &Action| matches!(action, Action::Rotate(it) if it.new == *new);
    changes.in_causal_order().iter().any(|change| names_it(change.action()))
}

fn copy(key: &SigningKey) -> Result<SigningKey, Fault> {
    SigningKey::from_seed(key.seed()).map_err(|error| Fault::ours(error.to_string()))
}

#[cfg(test)]
mod tests {
    use adit_engine::UnixTime;
    use adit_mesh::roster::{Change, ChangeHash, Genesis, Label, Layer, Rotation};

    use super::*;

    const OLD: u8 = 1;
    const NEW: u8 = 2;
    const OTHER: u8 = 3;

    fn key(seed: u8) -> SigningKey {
        SigningKey::from_seed(&[seed; 32]).unwrap()
    }

    fn hash(seed: u8) -> KeyHash {
        key(seed).public_hash()
    }

    /// Returns a mesh of two admins in which changing an admin's key takes `threshold` of them.
    fn mesh(threshold: u8) -> Changes {
        Changes::new(Genesis {
            name: Label::new("home").unwrap(),
            admins: vec![hash(OLD), hash(OTHER)],
            threshold,
            ranges: vec!["100.87.0.0/16".parse().unwrap()],
            random: [7; 32],
            layer: Layer::Ip,
        })
        .unwrap()
    }

    fn sign(changes: &mut Changes, signer: u8, action: Action) -> ChangeHash {
        let body = changes.draft(hash(signer), UnixTime(1_800_000_000), action).unwrap();
        let change = Change::sign(changes.mesh(), &key(signer), body).unwrap();
        let change_hash = change.hash();
        changes.insert(change).unwrap();
        change_hash
    }

    fn rotation() -> Action {
        Action::Rotate(Rotation { old: hash(OLD), new: hash(NEW), last: None })
    }

    fn in_file(path: &Path) -> Vec<KeyHash> {
        read(path).unwrap().iter().map(SigningKey::public_hash).collect()
    }

    fn file_with_the_old_key() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.key");
        write(&path, &[&key(OLD)]).unwrap();
        (dir, path)
    }

    #[test]
    fn the_successor_is_stored_until_it_counts_and_the_old_key_goes_then() {
        let (_dir, path) = file_with_the_old_key();
        let mut changes = mesh(2);
        let mut keys = AdminKeys::load(&path, &changes).unwrap();
        assert_eq!(keys.prepare(key(NEW), &changes).unwrap(), (hash(OLD), hash(NEW)));
        assert_eq!(in_file(&path), [hash(OLD), hash(NEW)]);
        let change = sign(&mut changes, OLD, rotation());
        assert!(keys.advance(&Roster::evaluate(&changes)).unwrap().is_none(), "unapproved");
        assert_eq!(in_file(&path), [hash(OLD), hash(NEW)]);
        let refused = keys.prepare(key(9), &changes).unwrap_err().to_string();
        assert!(refused.contains("already being replaced"), "{refused}");
        sign(&mut changes, OTHER, Action::Approve(change));
        let advanced = keys.advance(&Roster::evaluate(&changes)).unwrap();
        assert_eq!(advanced.map(|key| key.public_hash()), Some(hash(NEW)));
        assert_eq!(in_file(&path), [hash(NEW)]);
    }

    #[test]
    fn a_key_that_was_approved_while_the_node_was_down_is_the_current_one() {
        let (_dir, path) = file_with_the_old_key();
        let mut changes = mesh(1);
        write(&path, &[&key(OLD), &key(NEW)]).unwrap();
        sign(&mut changes, OLD, rotation());
        let keys = AdminKeys::load(&path, &changes).unwrap();
        assert_eq!(keys.current().unwrap().map(|key| key.public_hash()), Some(hash(NEW)));
        assert_eq!(in_file(&path), [hash(NEW)]);
    }

    #[test]
    fn a_rotation_that_ended_before_it_was_signed_goes_on_with_the_same_key() {
        let (_dir, path) = file_with_the_old_key();
        let changes = mesh(1);
        write(&path, &[&key(OLD), &key(NEW)]).unwrap();
        let mut keys = AdminKeys::load(&path, &changes).unwrap();
        assert_eq!(keys.prepare(key(9), &changes).unwrap(), (hash(OLD), hash(NEW)));
        assert_eq!(in_file(&path), [hash(OLD), hash(NEW)]);
    }

    #[test]
    fn a_successor_that_is_given_up_leaves_the_old_key() {
        let (_dir, path) = file_with_the_old_key();
        let changes = mesh(1);
        let mut keys = AdminKeys::load(&path, &changes).unwrap();
        keys.prepare(key(NEW), &changes).unwrap();
        keys.give_up().unwrap();
        assert_eq!(in_file(&path), [hash(OLD)]);
    }

    #[test]
    fn a_machine_without_a_key_replaces_none_and_a_damaged_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("admin.key");
        let mut keys = AdminKeys::load(&path, &mesh(1)).unwrap();
        let refused = keys.prepare(key(NEW), &mesh(1)).unwrap_err().to_string();
        assert!(refused.contains("no admin.key to replace") && !path.exists(), "{refused}");
        for wrong in ["", "AAAA\n"] {
            fs::write(&path, wrong).unwrap();
            let refused = AdminKeys::load(&path, &mesh(1)).unwrap_err().to_string();
            assert!(refused.contains("not the key of an admin"), "{wrong:?}: {refused}");
        }
    }
}
