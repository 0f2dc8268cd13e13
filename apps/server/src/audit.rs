//! The audit log: who changed a server, its clients and users, and when.
//!
//! `audit.log` in the data folder has one line of JSON for each act. It contains names, but neither arguments nor messages, so that no
//! secret can get there. When it is full, it becomes the older file.

use std::fs;
use std::path::{Path, PathBuf};

use adit_runtime::clock::unix_time;
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::lock::{self, Taken};
use adit_runtime::log;
use adit_runtime::log_file::{self, LogFile};
use adit_runtime::paths::Paths;
use serde::{Deserialize, Serialize};

/// The maximum length of a name in the log in characters.
const NAME_LIMIT: usize = 80;

/// How often the lock is tried, each time for a tenth of a second.
const TRIES: u32 = 20;

/// The login uid of a process that no person has started (proc_pid_loginuid(5)).
const NO_LOGIN: u32 = u32::MAX;

/// An act.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Act {
    /// The time in seconds since 1970.
    pub time: u64,
    /// The command, such as `server client add`.
    pub verb: String,
    /// The client or user, if the command has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Whether the command succeeded.
    pub ok: bool,
    /// The user id of the process.
    pub uid: u32,
    /// The user that became root by sudo, as sudo reports it. Root can set it to any name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sudo_user: Option<String>,
    /// The user id with which the person logged in, as the kernel knows it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub login_uid: Option<u32>,
}

impl Act {
    /// Describes an act of this process.
    pub fn new(verb: &str, name: Option<&str>, ok: bool) -> Self {
        let login = fs::read_to_string("/proc/self/loginuid").unwrap_or_default();
        Self {
            time: unix_time().0,
            verb: verb.to_owned(),
            name: name.map(short),
            ok,
            uid: nix::unistd::getuid().as_raw(),
            sudo_user: std::env::var("SUDO_USER").ok().map(|user| short(&user)),
            login_uid: login.trim().parse().ok().filter(|uid| *uid != NO_LOGIN),
        }
    }
}

fn short(name: &str) -> String {
    log::clean(&name.chars().take(NAME_LIMIT).collect::<String>())
}

fn file(paths: &Paths) -> PathBuf {
    paths.data.join("audit.log")
}

/// Appends an act to the log of the server with these paths. Without a server, nothing is written.
///
/// # Errors
/// The log cannot be written.
pub fn record(paths: &Paths, act: &Act) -> Result<(), Fault> {
    if !paths.data.is_dir() {
        return Ok(());
    }
    let path = file(paths);
    let mut line = serde_json::to_vec(act)
        .map_err(|error| Fault::ours(format!("an act cannot be encoded: {error}")))?;
    line.push(b'\n');
    let _lock = locked(&paths.data.join("audit.lock"))?;
    let mut log = LogFile::open(&path).map_err(|error| file_fault("cannot open", &path, &error))?;
    log.append(&line).map_err(|error| file_fault("cannot write", &path, &error))
}

/// Waits for other commands that write to the log.
fn locked(path: &Path) -> Result<lock::LockFile, Fault> {
    for _ in 0..TRIES {
        let taken = lock::take(path, std::process::id());
        if let Taken::Ours(lock) = taken.map_err(|error| file_fault("cannot lock", path, &error))? {
            return Ok(lock);
        }
    }
    Err(Fault::environment(format!("{} is locked by another process", path.display())))
}

/// Returns the last acts, the latest last. Lines that are not acts are left out.
///
/// # Errors
/// The log cannot be read.
pub fn acts(paths: &Paths, count: usize) -> Result<Vec<Act>, Fault> {
    let path = file(paths);
    let mut text = Vec::new();
    match log_file::print(&path, count, false, &mut text, || {}) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(|error| file_fault("cannot read", &path, &error))?,
    }
    let lines = text.split(|byte| *byte == b'\n');
    Ok(lines.filter_map(|line| serde_json::from_slice(line).ok()).collect())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn paths(dir: &tempfile::TempDir) -> Paths {
        Paths::new(Some(dir.path())).unwrap()
    }

    #[test]
    fn acts_are_kept_in_their_order_and_only_root_reads_them() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(&dir);
        record(&paths, &Act::new("server init", None, true)).unwrap();
        assert!(!file(&paths).exists(), "there is no server");
        fs::create_dir(&paths.data).unwrap();
        for name in ["ann", "bob\n{\"verb\":\"forged\"}", &"x".repeat(200)] {
            record(&paths, &Act::new("server client add", Some(name), name == "ann")).unwrap();
        }
        assert_eq!(fs::metadata(file(&paths)).unwrap().permissions().mode() & 0o777, 0o600);
        let all = acts(&paths, 10).unwrap();
        let names: Vec<&str> = all.iter().filter_map(|act| act.name.as_deref()).collect();
        assert_eq!(names[0], "ann");
        assert_eq!(names[1], "bob\\x0a{\"verb\":\"forged\"}");
        assert_eq!((names[2].len(), names.len()), (NAME_LIMIT, 3));
        assert_eq!((all[0].ok, all[1].ok), (true, false));
        assert_eq!(all[0].uid, nix::unistd::getuid().as_raw());
        assert_eq!(acts(&paths, 1).unwrap()[0].name, all[2].name);
    }

    #[test]
    fn the_log_is_bounded_and_commands_at_once_lose_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths(&dir);
        fs::create_dir(&paths.data).unwrap();
        let writers: Vec<_> = (0..4)
            .map(|writer| {
                let paths = paths.clone();
                std::thread::spawn(move || {
                    for _ in 0..5 {
                        let name = format!("client-{writer}");
                        record(&paths, &Act::new("server client add", Some(&name), true)).unwrap();
                    }
                })
            })
            .collect();
        writers.into_iter().for_each(|writer| writer.join().unwrap());
        assert_eq!(acts(&paths, 100).unwrap().len(), 20);
        // The file is full.
        fs::write(file(&paths), vec![b'x'; 1 << 20]).unwrap();
        record(&paths, &Act::new("reload", None, true)).unwrap();
        assert_eq!(acts(&paths, 100).unwrap().len(), 1);
        assert!(fs::metadata(file(&paths)).unwrap().len() < 1000);
    }
}
