//! A sandbox: mount, pid and network namespaces around the whole run.
//!
//! The program starts itself again as pid 1 of a pid namespace. Everything that it creates (daemons, namespaces,
//! mounts, files) belongs to that process, and the kernel removes it when the process ends: by success, panic, Ctrl-C
//! or kill -9. Names and ports inside need not be unique on the host, and two runs do not see each other.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use crate::failure::{Context, Result, ensure};
use crate::process::run;

const MARK: &str = "ADIT_SANDBOX";
/// The prefix of the names of the folders on the host; the id of the creating process follows.
const PREFIX: &str = "adit-sandbox-";

/// The sandbox of this process.
#[derive(Debug, Clone)]
pub struct Sandbox {
    dir: PathBuf,
}

/// The result of [`enter`].
pub enum Entered {
    /// This process is inside.
    Inside(Sandbox),
    /// The copy inside has ended with this code, with which the caller must end too.
    Ended(ExitCode),
}

/// Enters a sandbox, by running this program again with the same arguments inside it.
///
/// # Errors
/// The process does not run as root, or the kernel or container allows no namespaces.
pub fn enter() -> Result<Entered> {
    match std::env::var_os(MARK) {
        Some(dir) => inside(PathBuf::from(dir)).map(Entered::Inside),
        None => outside().map(Entered::Ended),
    }
}

fn outside() -> Result<ExitCode> {
    ensure(nix::unistd::geteuid().is_root(), || {
        "network namespaces and TUN devices need root: run this with sudo".to_owned()
    })?;
    sweep();
    let prefix = format!("{PREFIX}{}-", std::process::id());
    let dir = tempfile::Builder::new().prefix(&prefix).tempdir()?;
    // If this process is killed, so is unshare, and with it (--kill-child) pid 1 and everything inside.
    let status = Command::new("setpriv")
        .args(["--pdeathsig", "KILL", "unshare", "--mount", "--pid", "--fork", "--kill-child"])
        .args(["--mount-proc", "--net", "--"])
        .arg(std::env::current_exe()?)
        .args(std::env::args_os().skip(1))
        .env(MARK, dir.path())
        .status()
        .context("starting unshare (util-linux)")?;
    let code = status.code().unwrap_or_else(|| status.signal().map_or(1, |signal| 128 + signal));
    Ok(ExitCode::from(u8::try_from(code).unwrap_or(1)))
}

/// Removes the empty folders that killed runs used as mount points. The process id in the name shows whether a run is
/// still alive.
fn sweep() {
    let Ok(entries) = fs::read_dir(std::env::temp_dir()) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-'));
        let dead = |(pid, _): (&str, &str)| {
            pid.parse::<u32>().is_ok() && !Path::new("/proc").join(pid).exists()
        };
        if pid.is_some_and(dead) {
            // A folder that is not empty is not from a sandbox; one that no longer exists needs no removal.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

fn inside(dir: PathBuf) -> Result<Sandbox> {
    run("mount", &["-t", "tmpfs", "-o", "mode=0755", "tmpfs", text(&dir)])?;
    // Names of namespaces, control sockets and undo logs: none of them concerns the host.
    run("mount", &["-t", "tmpfs", "-o", "mode=0755", "tmpfs", "/run"])?;
    fs::create_dir("/run/netns")?;
    run("ip", &["link", "set", "lo", "up"])?;
    Ok(Sandbox { dir })
}

impl Sandbox {
    /// Creates a folder of the sandbox, in memory. A folder of the same name, left by a first attempt, is removed.
    ///
    /// # Errors
    /// The file system refuses.
    pub fn folder(&self, name: &str) -> Result<PathBuf> {
        let path = self.dir.join(name);
        if path.exists() {
            fs::remove_dir_all(&path).context(path.display())?;
        }
        fs::create_dir(&path).context(path.display())?;
        Ok(path)
    }
}

/// Returns a path as text; this crate creates all paths here.
pub fn text(path: &Path) -> &str {
    path.to_str().unwrap_or_default()
}
