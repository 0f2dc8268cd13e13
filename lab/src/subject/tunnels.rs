//! The request of a trial to a subject, and the result: a tunnel that carries traffic.

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use adit_testbed::process::Daemon;
use adit_testbed::tunnel::InnerAddrs;
use nix::sys::signal::Signal;
use tempfile::TempDir;

use super::wired::BridgeHost;

/// The path between two members of a mesh that are clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberPath {
    /// They can reach each other's outer address.
    Direct,
    /// They can reach only the server.
    Relay,
}

impl fmt::Display for MemberPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Direct => "direct",
            Self::Relay => "relay",
        })
    }
}

/// The required properties of a tunnel. If a subject lacks one, its start fails and names it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TunnelSpec {
    /// The data channel's cipher by its OpenVPN name; tinc, wireguard-go, `copy` and `bare` have no choice and ignore
    /// it.
    pub cipher: String,
    /// Whether the tunnel's packets travel over IPv6.
    pub outer_v6: bool,
    /// The MTU inside the tunnel in bytes; `None` leaves each program at its default.
    pub inner_mtu: Option<u32>,
    /// The path by which the clients must reach each other, if they must. Only meshes support it
    /// ([`super::Subject::is_mesh`]); the others ignore it.
    pub members: Option<MemberPath>,
    /// Additional lines for the server's config file; only subjects with OpenVPN's protocol accept them.
    pub server_lines: Vec<String>,
    /// Additional lines for every client's config file; only subjects with OpenVPN's protocol accept them.
    pub client_lines: Vec<String>,
}

impl Default for TunnelSpec {
    fn default() -> Self {
        Self {
            cipher: "AES-256-GCM".to_owned(),
            outer_v6: false,
            inner_mtu: None,
            members: None,
            server_lines: Vec::new(),
            client_lines: Vec::new(),
        }
    }
}

/// Tunnels that carry traffic, one for each client of a testbed. Dropping this ends all their processes.
#[derive(Debug)]
pub struct Tunnels {
    /// The processes at the server; none for `bare`.
    pub server: Vec<Daemon>,
    /// The processes at each client, in the order of the testbed's clients.
    pub clients: Vec<Vec<Daemon>>,
    /// The server's addresses in the tunnel.
    pub server_inner: InnerAddrs,
    /// The addresses in the tunnel of each client, in the order of the testbed's clients.
    pub client_inner: Vec<InnerAddrs>,
    /// The exact config files as `(name, text)`, without keys, which are in separate files or left out. Contains the
    /// command lines of programs that take no file.
    pub configs: Vec<(String, String)>,
    /// Notes for the reader: the MTU inside, the cipher if it is not the requested one, an old version.
    pub notes: Vec<String>,
    /// The config files and keys. They are removed after the processes have ended.
    pub(super) folder: Option<TempDir>,
    /// A host between the others, if there is one.
    pub(super) between: Option<BridgeHost>,
}

/// The time limit for a process to end after the signal.
const LEAVE: Duration = Duration::from_millis(300);

impl Tunnels {
    /// Returns the process ids by role, as [`crate::record::Sample`] names these: `server`, `client`.
    pub fn processes(&self) -> Vec<(&'static str, Vec<u32>)> {
        let server: Vec<u32> = self.server.iter().map(Daemon::pid).collect();
        let client: Vec<u32> = self.clients.iter().flatten().map(Daemon::pid).collect();
        let roles = [("server", server), ("client", client)];
        roles.into_iter().filter(|(_, pids)| !pids.is_empty()).collect()
    }

    /// Returns the folder of the config files and keys, if there is one.
    pub(crate) fn folder(&self) -> Option<&Path> {
        Some(self.folder.as_ref()?.path())
    }

    /// Returns the last log lines of the processes, for a report of a failure.
    pub fn logs(&self) -> String {
        let daemons = self.server.iter().chain(self.clients.iter().flatten().take(2));
        daemons.map(|daemon| daemon.failure("log").0).collect::<Vec<_>>().join("\n")
    }
}

impl Drop for Tunnels {
    fn drop(&mut self) {
        end(self.clients.drain(..).flatten().chain(self.server.drain(..)).collect());
        self.folder = None;
        self.between = None;
    }
}

/// Ends all processes at once: sends the signal, waits for them together, then kills the rest.
pub(super) fn end(mut daemons: Vec<Daemon>) {
    for daemon in &daemons {
        // This fails only if the process has already ended.
        let _ = daemon.signal(Signal::SIGTERM);
    }
    let last = Instant::now() + LEAVE;
    for daemon in &mut daemons {
        let _ = daemon.wait_exit(last.saturating_duration_since(Instant::now()));
    }
    for daemon in &daemons {
        let _ = daemon.signal(Signal::SIGKILL);
    }
    let pids: BTreeSet<u32> = daemons.iter().map(Daemon::pid).collect();
    drop(daemons);
    forget_ledgers(Path::new("/run/adit"), &pids);
}

/// Removes the undo logs that killed processes of adit leave for the next start in their namespace. The namespace is
/// removed as well, and in a long run every start would read all of them.
fn forget_ledgers(folder: &Path, pids: &BTreeSet<u32>) {
    let Ok(entries) = std::fs::read_dir(folder) else { return };
    for path in entries.flatten().map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let pid = name.strip_suffix(".routes").and_then(|name| name.split_once('-'));
        if pid.is_some_and(|(pid, _)| pid.parse().is_ok_and(|pid| pids.contains(&pid))) {
            // The process may already have removed it.
            let _ = std::fs::remove_file(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_ledgers_of_its_own_processes_go() {
        let folder = tempfile::tempdir().unwrap();
        for name in ["12-0.routes", "123-0.routes", "12-1.routes", "12-0.other"] {
            std::fs::write(folder.path().join(name), "").unwrap();
        }
        forget_ledgers(folder.path(), &BTreeSet::from([12]));
        let left = std::fs::read_dir(folder.path()).unwrap().flatten();
        let left: BTreeSet<_> =
            left.map(|entry| entry.file_name().into_string().unwrap()).collect();
        assert_eq!(left, BTreeSet::from(["12-0.other".to_owned(), "123-0.routes".to_owned()]));
    }

    #[test]
    fn processes_that_do_not_listen_are_ended_too() {
        let daemon = |script: &str| {
            let mut command = std::process::Command::new("sh");
            command.args(["-c", script]);
            Daemon::spawn("sh", command).unwrap()
        };
        let mut deaf = daemon("trap '' TERM; echo ready; while :; do sleep 1; done");
        deaf.wait_for("ready", Duration::from_secs(10)).unwrap();
        let daemons = vec![deaf, daemon("exec sleep 60")];
        let pids: Vec<u32> = daemons.iter().map(Daemon::pid).collect();
        end(daemons);
        for pid in pids {
            assert!(!Path::new(&format!("/proc/{pid}")).exists());
        }
    }
}
