//! A PostgreSQL database as the directory of the mesh: its set-up, and a node's choice of it.

mod init;
mod sql;

use std::fs;
use std::io;
use std::path::PathBuf;

use adit_mesh::session::{KeyHash, MeshId};
use adit_postgres_client::operator::{block_on, open_typed, refuse_pooler, statement_fault};
use adit_postgres_client::{Environment, Target, pooler};
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::paths::write_whole;
use serde::{Deserialize, Serialize};
use zeroize::Zeroizing;

use super::Paths;
use super::admin_keys;
use super::roster_file::RosterFile;
use super::state::load_key;

pub use init::{DirectoryInit, InitOptions, init_directory, use_hint};
pub(crate) use sql::{APPEND, LISTEN, READ, READ_LIMIT, SUMMARY, SUMMARY_LIMIT, check_identity};

/// The database that a node uses, as stored in `directory.json`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DirectoryConfig {
    /// The database's URL, without role and password.
    pub(crate) database: String,
    pub(crate) role: String,
    pub(crate) password: Zeroizing<String>,
}

/// The file.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Raw {
    database: String,
    role: String,
    password: String,
}

impl DirectoryConfig {
    /// Reads the file. Without one, the node's own file is the only directory.
    ///
    /// # Errors
    /// The file cannot be read, or has invalid content.
    pub(crate) fn load(paths: &Paths) -> Result<Option<Self>, Fault> {
        let path = paths.directory_file();
        let text = match fs::read_to_string(&path) {
            Ok(text) => Zeroizing::new(text),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(file_fault("cannot read", &path, &error)),
        };
        let raw: Raw = serde_json::from_str(&text).map_err(|error| {
            // The error names a position but no content.
            let (line, column) = (error.line(), error.column());
            Fault::environment(format!(
                "{}: damaged at line {line}, column {column}; set the directory again: sudo {}",
                path.display(),
                paths.command("directory postgres URL")
            ))
        })?;
        let password = Zeroizing::new(raw.password);
        Ok(Some(Self { database: raw.database, role: raw.role, password }))
    }

    /// Writes the file, readable only by its owner.
    ///
    /// # Errors
    /// The file system refuses.
    pub(crate) fn store(&self, paths: &Paths) -> Result<(), Fault> {
        let raw = Raw {
            database: self.database.clone(),
            role: self.role.clone(),
            password: self.password.to_string(),
        };
        let mut text = Zeroizing::new(String::new());
        text.push_str(&serde_json::to_string(&raw).map_err(|e| Fault::ours(e.to_string()))?);
        text.push('\n');
        let _wiped = Zeroizing::new(raw.password);
        write_whole(&paths.directory_file(), 0o600, text.as_bytes())
    }

    /// Returns the database with the node's role.
    ///
    /// # Errors
    /// The URL is wrong.
    pub(crate) fn target(&self) -> Result<Target, Fault> {
        Target::of_node(&self.database, &self.role, &self.password)
    }

    /// Returns the files that are read for each connection.
    ///
    /// # Errors
    /// The URL is wrong.
    pub(crate) fn files(&self) -> Result<Vec<PathBuf>, Fault> {
        Target::files_of_node(&self.database, &self.role)
    }
}

/// The database that a node will use from its next start on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryChosen {
    /// The database's URL, without role and password.
    pub database: String,
    /// The node's role.
    pub role: String,
    /// Notes for an operator.
    pub notes: Vec<String>,
}

/// Makes a database the node's directory, with the role that was created for this node.
///
/// # Errors
/// The database cannot be reached, has no directory of this mesh, or the role may not append this node's changes.
pub fn use_directory(paths: &Paths, url: &str) -> Result<DirectoryChosen, Fault> {
    let mesh = *RosterFile::peek(&paths.roster_file())?.mesh();
    let own = load_key(&paths.node_key_file())?.public_hash();
    let target = Target::of_operator(url, &Environment::of_process())?;
    let checked = async {
        let (client, target) = open_typed(&target, "mesh directory").await?;
        refuse_pooler(pooler::shares_session(&client, &target).await)?;
        check_identity(&client, &mesh).await?;
        let row = client.query_one(sql::IS_OWN, &[&own.as_slice()]).await;
        let is_own: bool =
            row.and_then(|row| row.try_get(0)).map_err(|error| statement_fault(&error))?;
        if is_own {
            return Ok(target);
        }
        Err(Fault::operator(format!(
            "the role {:?} is not made for this node; on a machine of the mesh, as the owner of the database: adit mesh \
             directory postgres URL --init --node {} --passfile FILE; or here: adit mesh directory postgres URL --init",
            target.user(),
            name_of(paths)?
        )))
    };
    let target = block_on(checked)?;
    let password = target.password().cloned().unwrap_or_default();
    let config =
        DirectoryConfig { database: target.to_url(), role: target.user().to_owned(), password };
    config.store(paths)?;
    Ok(DirectoryChosen {
        database: config.database,
        role: config.role,
        notes: target.warnings().to_vec(),
    })
}

/// Makes the node's own file its only directory again. Returns whether it had another one.
///
/// # Errors
/// The file system refuses.
pub fn use_file(paths: &Paths) -> Result<bool, Fault> {
    match fs::remove_file(paths.directory_file()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(file_fault("cannot remove", &paths.directory_file(), &error)),
    }
}

/// Returns this node's name, or the beginning of its key's hash.
fn name_of(paths: &Paths) -> Result<String, Fault> {
    let own = load_key(&paths.node_key_file())?.public_hash();
    let roster = adit_mesh::roster::Roster::evaluate(&RosterFile::peek(&paths.roster_file())?);
    let name = roster.member(&own).and_then(|member| member.name.as_ref());
    Ok(name.map_or_else(|| super::short(&own), ToString::to_string))
}

/// Returns the keys that this machine signs with.
fn own_signers(paths: &Paths) -> Result<Vec<KeyHash>, Fault> {
    let mut signers = vec![load_key(&paths.node_key_file())?.public_hash()];
    let admin = admin_keys::read(&paths.admin_key_file())?;
    signers.extend(admin.iter().map(adit_crypto::sign::SigningKey::public_hash));
    Ok(signers)
}

/// Returns the mesh's part of role names.
fn tag(mesh: &MeshId) -> String {
    super::short(mesh)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn the_database_is_kept_for_the_owner_alone_and_its_password_is_in_no_error() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path()), "home").unwrap();
        paths.create().unwrap();
        assert_eq!(DirectoryConfig::load(&paths).unwrap(), None);
        let config = DirectoryConfig {
            database: "postgres://db.example/mesh".into(),
            role: "adit_mesh_1".into(),
            password: Zeroizing::new("geheim".into()),
        };
        config.store(&paths).unwrap();
        let path = paths.directory_file();
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(DirectoryConfig::load(&paths).unwrap(), Some(config));
        for damaged in ["{\"password\":\"geheim\"", "{\"password\":\"geheim\",\"x\":1}", ""] {
            fs::write(&path, damaged).unwrap();
            let fault = DirectoryConfig::load(&paths).unwrap_err().to_string();
            assert!(fault.contains("damaged") && !fault.contains("geheim"), "{fault}");
        }
        assert!(use_file(&paths).unwrap());
        assert!(!use_file(&paths).unwrap());
    }
}
