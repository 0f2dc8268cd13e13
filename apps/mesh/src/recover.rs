//! Shows the recovery phrase of an admin's key, and restores the key on a member.

use adit_crypto::sign::SigningKey;
use adit_mesh::roster::Roster;
use adit_runtime::fault::Fault;
use zeroize::Zeroizing;

use super::admin_keys;
use super::phrase::{key_of, phrase_of};
use super::roster_file::RosterFile;
use super::state::store_key;
use super::{Paths, short};

/// Returns the phrases of the keys in this machine's `admin.key`: one phrase, or two while the key is being replaced.
///
/// # Errors
/// This machine has no admin key.
pub fn phrases(paths: &Paths) -> Result<Vec<Zeroizing<String>>, Fault> {
    let keys = admin_keys::read(&paths.admin_key_file())?;
    if keys.is_empty() {
        return Err(Fault::operator(format!(
            "{} does not exist: this machine has no key of an admin; the first one of the mesh has it",
            paths.admin_key_file().display()
        )));
    }
    keys.iter().map(phrase_of).collect()
}

/// Restores an admin's key on this machine, which is a member of the mesh. Returns the beginning of the key's hash.
///
/// # Errors
/// The phrase has a mistake or does not belong to an admin's key of this mesh, or this machine has another admin key. Nothing is changed.
pub fn recover(paths: &Paths, phrase: &str) -> Result<String, Fault> {
    let key = key_of(phrase)?;
    let roster = Roster::evaluate(&RosterFile::peek(&paths.roster_file())?);
    let is_admin = |key: &SigningKey| roster.admins().contains(&key.public_hash());
    if !is_admin(&key) {
        return Err(Fault::operator(format!(
            "this phrase belongs to no admin of the mesh {}: it is another mesh's, or the key was replaced or revoked",
            paths.name()
        )));
    }
    let file = paths.admin_key_file();
    let others = admin_keys::read(&file)?;
    if others.iter().any(|other| other.seed() == key.seed()) {
        // The file may also contain the key's successor, which must not be lost.
        return Ok(short(&key.public_hash()));
    }
    if others.iter().any(is_admin) {
        return Err(Fault::operator(format!(
            "this machine has the key of another admin; first move {} away",
            file.display()
        )));
    }
    store_key(&file, &key)?;
    Ok(short(&key.public_hash()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::state::{encode_key, new_key};
    use crate::testing::found_mesh;

    fn machine() -> (tempfile::TempDir, Paths) {
        let dir = tempfile::tempdir().unwrap();
        let paths = found_mesh(dir.path(), false);
        (dir, paths)
    }

    #[test]
    fn a_lost_key_is_restored_from_its_phrase_and_another_meshs_is_refused() {
        let (_dir, paths) = machine();
        let before = std::fs::read(paths.admin_key_file()).unwrap();
        let phrase = phrases(&paths).unwrap().remove(0);
        std::fs::remove_file(paths.admin_key_file()).unwrap();
        assert!(phrases(&paths).unwrap_err().to_string().contains("no key of an admin"));
        let (_other_dir, other) = machine();
        let foreign = phrases(&other).unwrap().remove(0);
        let refused = recover(&paths, &foreign).unwrap_err().to_string();
        assert!(refused.contains("another mesh's") && !paths.admin_key_file().exists());
        recover(&paths, &phrase).unwrap();
        assert_eq!(std::fs::read(paths.admin_key_file()).unwrap(), before);
        recover(&paths, &phrase).unwrap();
    }

    #[test]
    fn the_successor_of_a_key_that_is_being_replaced_is_not_lost() {
        let (_dir, paths) = machine();
        let phrase = phrases(&paths).unwrap().remove(0);
        let mut file = Zeroizing::new(std::fs::read_to_string(paths.admin_key_file()).unwrap());
        encode_key(&new_key().unwrap(), &mut file);
        std::fs::write(paths.admin_key_file(), file.as_bytes()).unwrap();
        recover(&paths, &phrase).unwrap();
        assert_eq!(std::fs::read(paths.admin_key_file()).unwrap(), file.as_bytes());
    }
}
