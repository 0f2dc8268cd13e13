//! `adit server backup` and `restore`: the whole state of a server in one sealed file.
//!
//! A restore writes everything into a folder next to the state and checks it there. Renaming this folder marks the point from which the
//! restore must be completed. Until it is, no command opens the state, and the same restore can be repeated.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::time::SystemTime;

use adit_pki::{PkiError, Store, sealed};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use zeroize::{Zeroize, ZeroizeOnDrop, Zeroizing};

use super::host_state::running;
use super::init::pki_fault;
use super::leases::Leases;
use super::login::{SsoLogins, Tokens, UsedCodes};
use super::settings::Settings;
use super::usage::Usage;
use adit_runtime::clock::unix_time;
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::filter;
use adit_runtime::paths::{Paths, make_folder, write_whole};

/// The version of the content's layout.
const VERSION: u32 = 1;
/// The maximum size of a backup and of its content, in bytes.
const MAX_SIZE: u64 = 512 * 1024 * 1024;
/// The maximum number of files in a backup: a few, and a profile for each client.
const MAX_FILES: usize = 100_000;
/// The folder in which a restore is prepared.
const PREPARED: &str = ".restore.new";
/// The folder of a restore that must be completed.
const COMMITTED: &str = ".restore";

/// The content of a backup.
#[derive(Serialize, Deserialize)]
struct Content {
    layout: u32,
    /// The version of the program that made it.
    program: String,
    /// The time in seconds since 1970.
    made: u64,
    /// The files in the folder of the settings, by their relative paths.
    config: BTreeMap<String, StoredFile>,
    /// The files in the folder of the state, by their relative paths.
    data: BTreeMap<String, StoredFile>,
}

#[derive(Serialize, Deserialize, Zeroize, ZeroizeOnDrop)]
struct StoredFile {
    mode: u32,
    /// In base64.
    content: String,
}

/// A summary of what a backup contains.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BackupSummary {
    /// The time when it was made, in seconds since 1970.
    pub made: u64,
    /// The number of clients in the registry.
    pub clients: usize,
    /// The number of users.
    pub users: usize,
    /// Files that the settings name outside of their own folder, which are not part of a backup.
    pub left_out: Vec<PathBuf>,
}

/// Returns the sealed state of a server, which may be running.
///
/// # Errors
/// Fails if there is no server, a file cannot be read, or the passphrase is too short.
pub fn backup(paths: &Paths, passphrase: &str) -> Result<(Vec<u8>, BackupSummary), Fault> {
    let store = super::clients::open_store(paths)?;
    let settings = Settings::read(&paths.settings_file())?;
    let (config, left_out) = config_files(paths, &settings)?;
    // No command changes the registry meanwhile.
    let content = store.locked(|| -> Result<Content, Fault> {
        let mut data = BTreeMap::new();
        collect(&paths.data, Path::new("pki"), &mut data)?;
        for path in state_files(paths) {
            if let Some(file) = stored(&path)? {
                data.insert(relative(&path, &paths.data), file);
            }
        }
        Ok(Content {
            layout: VERSION,
            program: env!("CARGO_PKG_VERSION").into(),
            made: unix_time().0,
            config,
            data,
        })
    });
    let content = content.map_err(pki_fault)??;
    let made = content.made;
    let text = serde_json::to_vec(&content).map(Zeroizing::new);
    let text = text.map_err(|error| Fault::ours(format!("cannot encode the state: {error}")))?;
    let summary = BackupSummary {
        made,
        clients: store.clients().map_err(pki_fault)?.len(),
        users: store.users().map_err(pki_fault)?.len(),
        left_out,
    };
    Ok((sealed::seal(passphrase, &text).map_err(pki_fault)?, summary))
}

/// Replaces a server's state with that of a backup, completely or not at all. With `replace`, an existing server's state is lost.
///
/// # Errors
/// Fails if the server runs, there is a server already, the passphrase is wrong, or the backup is damaged or from a later version.
pub fn restore(
    paths: &Paths,
    file: &[u8],
    passphrase: &str,
    replace: bool,
) -> Result<BackupSummary, Fault> {
    if let Some(pid) = running(paths) {
        return Err(Fault::environment(format!(
            "the server is running (process {pid}); stop it first"
        )));
    }
    let exists = paths.settings_file().exists() || paths.data.join("pki").exists();
    if exists && !replace && !is_interrupted(paths) {
        return Err(Fault::operator(format!(
            "there is a server in {} already; --replace replaces its keys, clients and settings for good",
            paths.data.display()
        )));
    }
    let content = open(file, passphrase)?;
    paths.create()?;
    let prepared = paths.data.join(PREPARED);
    remove_folder(&prepared)?;
    make_folder(&prepared, 0o700)?;
    let summary = prepare(&content, &prepared)?;
    let committed = paths.data.join(COMMITTED);
    remove_folder(&committed)?;
    fs::rename(&prepared, &committed)
        .and_then(|()| adit_linux::file::sync_directory(&paths.data))
        .map_err(|error| file_fault("cannot rename", &prepared, &error))?;
    complete(paths, &content, &committed)?;
    let store = Store::open(&paths.data).map_err(pki_fault)?;
    store.repair(SystemTime::now()).map_err(pki_fault)?;
    Ok(summary)
}

/// Refuses to use a state whose restore was interrupted.
///
/// # Errors
/// A restore was interrupted.
pub(super) fn check_complete(paths: &Paths) -> Result<(), Fault> {
    if is_interrupted(paths) {
        return Err(Fault::environment(format!(
            "{}: a restore was interrupted, and parts of the state are missing; repeat it: {}",
            paths.data.display(),
            paths.command("server restore FILE")
        )));
    }
    Ok(())
}

fn is_interrupted(paths: &Paths) -> bool {
    paths.data.join(COMMITTED).exists()
}

/// Opens a backup and checks that this program can restore it.
fn open(file: &[u8], passphrase: &str) -> Result<Content, Fault> {
    let text = sealed::open(passphrase, file).map_err(pki_fault)?;
    let damaged = |why: String| Fault::operator(format!("the backup cannot be restored: {why}"));
    // A later layout may have other fields.
    #[derive(Deserialize)]
    struct Layout {
        layout: u32,
        program: String,
    }
    let Layout { layout, program } =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    if layout != VERSION {
        return Err(damaged(format!(
            "adit {program} made it, with layout {layout}; install that version or a later one"
        )));
    }
    let content: Content =
        serde_json::from_slice(&text).map_err(|error| damaged(error.to_string()))?;
    if content.config.len().saturating_add(content.data.len()) > MAX_FILES {
        return Err(damaged(format!("it has more than {MAX_FILES} files")));
    }
    let names = content.config.keys().chain(content.data.keys());
    if let Some(bad) = names.into_iter().find(|name| !is_plain(name)) {
        return Err(damaged(format!("{bad:?} leads out of the folder")));
    }
    Ok(content)
}

/// Writes the state into a folder, and checks that it is a server's.
fn prepare(content: &Content, folder: &Path) -> Result<BackupSummary, Fault> {
    for (part, files) in [("config", &content.config), ("data", &content.data)] {
        for (name, file) in files {
            write(&folder.join(part).join(name), file)?;
        }
    }
    Settings::read(&folder.join("config/server.toml"))?;
    let store = Store::open(&folder.join("data")).map_err(pki_fault)?;
    let count = |counted: Result<usize, PkiError>| counted.map_err(pki_fault);
    Ok(BackupSummary {
        made: content.made,
        clients: count(store.clients().map(|clients| clients.len()))?,
        users: count(store.users().map(|users| users.len()))?,
        left_out: Vec::new(),
    })
}

/// Moves the prepared state into place. Each step can be repeated.
fn complete(paths: &Paths, content: &Content, committed: &Path) -> Result<(), Fault> {
    let former = paths.data.join("pki");
    let new = committed.join("data/pki");
    if new.exists() {
        remove_folder(&former)?;
        fs::rename(&new, &former).map_err(|error| file_fault("cannot rename", &new, &error))?;
    }
    for path in state_files(paths) {
        match content.data.get(&relative(&path, &paths.data)) {
            Some(file) => write(&path, file)?,
            // It belongs to the state that is replaced.
            None => match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(file_fault("cannot remove", &path, &error));
                }
                _ => {}
            },
        }
    }
    for (name, file) in &content.config {
        write(&paths.config.join(name), file)?;
    }
    remove_folder(committed)
}

/// Returns the files of the state outside of `pki`.
fn state_files(paths: &Paths) -> [PathBuf; 5] {
    [
        Leases::file(paths),
        Usage::file(paths),
        UsedCodes::file(paths),
        Tokens::file(paths),
        SsoLogins::file(paths),
    ]
}

type Files = BTreeMap<String, StoredFile>;

/// Returns the settings with the files in the same folder that they name, and the names of those elsewhere.
fn config_files(paths: &Paths, settings: &Settings) -> Result<(Files, Vec<PathBuf>), Fault> {
    let mut named: Vec<PathBuf> = Vec::new();
    if let Some(path) = &settings.filter {
        let path = paths.config.join(path);
        named.extend(filter::sources(&path));
        named.push(path);
    }
    named.extend(settings.request_files().map(|path| paths.config.join(path)));
    named.sort();
    named.dedup();
    let (mut files, mut left_out) = (BTreeMap::new(), Vec::new());
    for path in std::iter::once(paths.settings_file()).chain(named) {
        let name = path.strip_prefix(&paths.config).ok().and_then(|name| name.to_str());
        match name.filter(|name| is_plain(name)) {
            Some(name) => {
                if let Some(file) = stored(&path)? {
                    files.insert(name.to_owned(), file);
                }
            }
            None => left_out.push(path),
        }
    }
    Ok((files, left_out))
}

/// Collects all files of a folder, except locks and the files of writes that are not complete.
fn collect(base: &Path, folder: &Path, files: &mut Files) -> Result<(), Fault> {
    let path = base.join(folder);
    let failed = |error: io::Error| file_fault("cannot read", &path, &error);
    for entry in fs::read_dir(&path).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let kind = entry.file_type().map_err(failed)?;
        let name = entry.file_name();
        let inner = folder.join(&name);
        let text = name.to_string_lossy();
        if kind.is_dir() {
            collect(base, &inner, files)?;
        } else if kind.is_file()
            && text != "lock"
            && !text.ends_with(".new")
            && let Some(file) = stored(&base.join(&inner))?
        {
            files.insert(inner.to_string_lossy().into_owned(), file);
        }
    }
    Ok(())
}

/// Reads a file, if it exists.
fn stored(path: &Path) -> Result<Option<StoredFile>, Fault> {
    let failed = |error: io::Error| file_fault("cannot read", path, &error);
    let file = match fs::File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(failed(error)),
    };
    let mode = file.metadata().map_err(failed)?.mode() & 0o777;
    let mut content = Zeroizing::new(Vec::new());
    file.take(MAX_SIZE).read_to_end(&mut content).map_err(failed)?;
    Ok(Some(StoredFile { mode, content: STANDARD.encode(&*content) }))
}

/// Writes a file, with the folders that lead to it. Only root can read those that did not exist, except for the registry's own.
fn write(path: &Path, file: &StoredFile) -> Result<(), Fault> {
    let content = STANDARD.decode(file.content.as_bytes()).map(Zeroizing::new);
    let content = content.map_err(|error| {
        Fault::operator(format!("the backup cannot be restored: {}: {error}", path.display()))
    })?;
    if let Some(folder) = path.parent()
        && !folder.exists()
    {
        make_folder(folder, 0o700)?;
        if folder.file_name().is_some_and(|name| name == "pki") {
            let mode = fs::Permissions::from_mode(0o755);
            fs::set_permissions(folder, mode)
                .map_err(|error| file_fault("cannot change", folder, &error))?;
        }
    }
    write_whole(path, file.mode & 0o755, &content)
}

fn remove_folder(path: &Path) -> Result<(), Fault> {
    match fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(file_fault("cannot remove", path, &error))
        }
        _ => Ok(()),
    }
}

fn relative(path: &Path, base: &Path) -> String {
    path.strip_prefix(base).unwrap_or(path).to_string_lossy().into_owned()
}

/// Returns whether a path in a backup stays in its folder.
fn is_plain(name: &str) -> bool {
    let path = Path::new(name);
    !name.is_empty() && path.components().all(|part| matches!(part, Component::Normal(_)))
}

/// Reads a backup from a file.
///
/// # Errors
/// The file cannot be read, or is too large.
pub fn read_file(path: &Path) -> Result<Vec<u8>, Fault> {
    let failed = |error: io::Error| file_fault("cannot read", path, &error);
    let mut content = Vec::new();
    let file = fs::File::open(path).map_err(failed)?;
    file.take(MAX_SIZE.saturating_add(1)).read_to_end(&mut content).map_err(failed)?;
    if content.len() as u64 > MAX_SIZE {
        return Err(Fault::operator(format!("{}: too large for a backup", path.display())));
    }
    Ok(content)
}

#[cfg(test)]
mod tests {
    use adit_pki::CertificateStatus;

    use super::*;
    use crate::clients::{self, ClientRequest};
    use crate::testing;
    use crate::users::{self, UserRequest};

    const PASSPHRASE: &str = "correct horse battery";

    fn paths(dir: &tempfile::TempDir) -> Paths {
        Paths::new(Some(dir.path())).unwrap()
    }

    /// Creates a server with a client, a user, rules and a lease, and returns its backup.
    fn server(dir: &tempfile::TempDir) -> (Paths, String, Vec<u8>) {
        let (paths, _) = testing::server(dir);
        let wanted = ClientRequest { name: "laptop".into(), ..ClientRequest::default() };
        let serial = clients::add(&paths, &wanted).unwrap().client.serial;
        users::add(&paths, &UserRequest::new("alice"), "correct horse").unwrap();
        fs::write(Leases::file(&paths), r#"{"laptop":"10.199.31.2"}"#).unwrap();
        let rules = "table inet vpn { chain c { type filter hook forward priority 0; } }\n";
        fs::write(paths.config.join("rules.nft"), rules).unwrap();
        let text = fs::read_to_string(paths.settings_file()).unwrap();
        let text = text.lines().filter(|line| !line.contains("filter")).collect::<Vec<_>>();
        let text = text.join("\n") + "\nfilter = \"rules.nft\"\n";
        fs::write(paths.settings_file(), text).unwrap();
        let (sealed, summary) = backup(&paths, PASSPHRASE).unwrap();
        assert_eq!((summary.clients, summary.users), (1, 1));
        assert!(summary.left_out.is_empty());
        (paths, serial, sealed)
    }

    fn files(folder: &Path) -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
        let mut found = BTreeMap::new();
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                found.extend(files(&path));
            } else if !path.ends_with("lock") && !path.ends_with(".pki.lock") {
                let mode = fs::metadata(&path).unwrap().mode();
                found.insert(path.clone(), (mode, fs::read(&path).unwrap()));
            }
        }
        found
    }

    #[test]
    fn a_restored_server_is_the_same_with_the_same_modes() {
        let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (from, serial, sealed) = server(&old);
        let to = paths(&new);
        let summary = restore(&to, &sealed, PASSPHRASE, false).unwrap();
        assert_eq!((summary.clients, summary.users), (1, 1));
        let relative = |paths: &Paths| -> BTreeMap<PathBuf, (u32, Vec<u8>)> {
            let base = paths.config.clone();
            let all = files(&base).into_iter();
            all.map(|(path, file)| (path.strip_prefix(&base).unwrap().to_owned(), file)).collect()
        };
        assert_eq!(relative(&from), relative(&to));
        let mode = |path: &str| fs::metadata(to.data.join(path)).unwrap().mode() & 0o777;
        assert_eq!((mode("pki"), mode("pki/private"), mode("")), (0o755, 0o700, 0o700));
        let store = clients::open_store(&to).unwrap();
        assert_eq!(store.admission("laptop", &serial).unwrap(), CertificateStatus::Active);
        // The authority's key is there: another client can be added.
        let wanted = ClientRequest { name: "phone".into(), ..ClientRequest::default() };
        clients::add(&to, &wanted).unwrap();
    }

    #[test]
    fn an_existing_server_is_replaced_only_on_request_and_then_completely() {
        let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (_, serial, sealed) = server(&old);
        let (to, _) = testing::server(&new);
        let wanted = ClientRequest { name: "other".into(), ..ClientRequest::default() };
        clients::add(&to, &wanted).unwrap();
        fs::write(Usage::file(&to), "{}").unwrap();
        let before = files(&to.config);
        let fault = restore(&to, &sealed, PASSPHRASE, false).unwrap_err().to_string();
        assert!(fault.contains("--replace"), "{fault}");
        for (passphrase, file) in [("wrong passphrase", &sealed[..]), (PASSPHRASE, &sealed[..99])] {
            assert!(restore(&to, file, passphrase, true).is_err());
        }
        assert_eq!(files(&to.config), before, "a refusal changes nothing");
        restore(&to, &sealed, PASSPHRASE, true).unwrap();
        let store = clients::open_store(&to).unwrap();
        assert!(store.client("other").is_err() && !Usage::file(&to).exists());
        assert_eq!(store.admission("laptop", &serial).unwrap(), CertificateStatus::Active);
    }

    /// As if the process had been killed after each of its steps.
    #[test]
    fn an_interrupted_restore_is_no_server_until_it_is_repeated() {
        let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (_, _, sealed) = server(&old);
        let to = paths(&new);
        restore(&to, &sealed, PASSPHRASE, false).unwrap();
        fs::create_dir(to.data.join(COMMITTED)).unwrap();
        for missing in ["data/pki", "data/leases.json", "server.toml"] {
            let path = to.config.join(missing);
            let _ = fs::remove_dir_all(&path).or_else(|_| fs::remove_file(&path));
            let fault = clients::open_store(&to).unwrap_err().to_string();
            assert!(fault.contains("restore was interrupted"), "{fault}");
            let again = crate::init(&to, &crate::NewServer::default(), false);
            assert!(again.unwrap_err().to_string().contains("interrupted"));
        }
        restore(&to, &sealed, PASSPHRASE, false).unwrap();
        assert!(clients::show(&to, "laptop").is_ok() && to.settings_file().exists());
        assert!(!to.data.join(COMMITTED).exists());
    }

    /// Each file is refused for one reason, and leaves nothing behind.
    #[test]
    fn a_backup_that_cannot_be_restored_changes_nothing() {
        let (old, new) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let (_, _, sealed) = server(&old);
        let text = sealed::open(PASSPHRASE, &sealed).unwrap();
        let content = |edit: &dyn Fn(&mut serde_json::Value)| {
            let mut value: serde_json::Value = serde_json::from_slice(&text).unwrap();
            edit(&mut value);
            sealed::seal(PASSPHRASE, &serde_json::to_vec(&value).unwrap()).unwrap()
        };
        let to = paths(&new);
        let file = serde_json::json!({"mode": 384, "content": ""});
        type Edit<'a> = &'a dyn Fn(&mut serde_json::Value);
        let edits: [(Edit<'_>, &str); 7] = [
            (&|v| v["layout"] = 2.into(), "later one"),
            (&|v| v["data"]["../../x"] = file.clone(), "leads out"),
            (&|v| v["config"]["/etc/x"] = file.clone(), "leads out"),
            (&|v| v["config"]["server.toml"] = file.clone(), "host"),
            (&|v| v["data"]["pki/clients.json"] = file.clone(), "clients.json"),
            (&|v| v["data"] = serde_json::json!({}), "no server"),
            (&|v| v["data"]["pki/ca.crt"]["content"] = "?".into(), "ca.crt"),
        ];
        for (edit, why) in edits {
            let fault = restore(&to, &content(edit), PASSPHRASE, false).unwrap_err().to_string();
            assert!(fault.contains(why), "{why}: {fault}");
            assert!(!to.settings_file().exists() && !Store::exists(&to.data));
            assert!(!is_interrupted(&to));
        }
        restore(&to, &sealed, PASSPHRASE, false).unwrap();
    }
}
