//! The host state of a running server, with its changes to the host and their undo log.
//!
//! Every change is recorded in `server.undo.json` before it is made. When the server ends, it undoes the changes in the
//! file. After `kill -9`, the next start undoes them first.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use super::firewall;
use super::settings::{Nat, Reach, Settings};
use adit_runtime::fault::{Fault, file_fault};
use adit_runtime::lock::{self, LockFile, Taken};
use adit_runtime::paths::{Paths, make_folder, write_whole};

const FORWARD4: &str = "net/ipv4/ip_forward";
const FORWARD6: &str = "net/ipv6/conf/all/forwarding";

/// The undo log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Undo {
    /// The host's boot id at the time of the changes, because a reboot undoes them.
    boot: String,
    /// The nft table to remove.
    table: Option<String>,
    /// The changed kernel settings with their previous values, in the order of the changes.
    sysctls: Vec<(String, String)>,
}

/// The changes of a running server. Dropping it undoes them.
#[derive(Debug)]
pub(crate) struct HostState {
    paths: Paths,
    undo: Undo,
    sysctl_root: PathBuf,
    /// Whether another process continues with the changes.
    left: bool,
    _lock: LockFile,
}

impl HostState {
    /// Takes the instance's lock for the process `server` and undoes the changes of a killed predecessor.
    ///
    /// The flag is true if there was something to undo.
    pub(crate) fn claim(paths: &Paths, server: u32) -> Result<(Self, bool), Fault> {
        Self::claim_below(paths, server, Path::new("/proc/sys"))
    }

    /// Takes the instance's lock for the process `server` and continues with the changes of its predecessor, which its
    /// clients need.
    pub(crate) fn take_over(paths: &Paths, server: u32) -> Result<Self, Fault> {
        Ok(Self::open_below(paths, server, Path::new("/proc/sys"))?.0)
    }

    /// Leaves the changes to the process that continues with them.
    pub(crate) fn leave(&mut self) {
        self.left = true;
    }

    fn claim_below(paths: &Paths, server: u32, sysctl_root: &Path) -> Result<(Self, bool), Fault> {
        let (mut host_state, found) = Self::open_below(paths, server, sysctl_root)?;
        host_state.undo_all();
        Ok((host_state, found))
    }

    /// Takes the lock and reads the undo log. The flag is true if there is something to undo.
    fn open_below(paths: &Paths, server: u32, sysctl_root: &Path) -> Result<(Self, bool), Fault> {
        make_folder(&paths.run, 0o755)?;
        let lock = lock(paths, server)?;
        let leftover = match fs::read_to_string(paths.undo_file()) {
            Ok(text) => Some(parse_undo(&text, &paths.undo_file())?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => return Err(file_fault("cannot read", &paths.undo_file(), &error)),
        };
        let boot = boot_id();
        let leftover = leftover.filter(|undo| undo.boot == boot);
        let found = leftover.is_some();
        let host_state = Self {
            paths: paths.clone(),
            undo: leftover.unwrap_or(Undo { boot, ..Undo::default() }),
            sysctl_root: sysctl_root.to_owned(),
            left: false,
            _lock: lock,
        };
        Ok((host_state, found))
    }

    /// Sets up forwarding and the firewall before the first packet can arrive. `behind` are the networks behind clients.
    pub(crate) fn prepare(&mut self, settings: &Settings, behind: &[IpNet]) -> Result<(), Fault> {
        self.forward(settings)?;
        match self.filter(settings, behind) {
            Err(fault) if settings.nat == Nat::Off && settings.client_to_client => {
                tracing::warn!("firewall: rules not loaded: {fault}");
                Ok(())
            }
            other => other,
        }
    }

    /// Enables forwarding for the address families that the tunnel carries. If that fails (in many containers /proc/sys
    /// is read-only), a server that need not reach other networks still works.
    pub(crate) fn forward(&mut self, settings: &Settings) -> Result<(), Fault> {
        if settings.network6.is_some() && self.sysctl_root.join(FORWARD6).exists() {
            let done = self.keep_router_advertisements().and_then(|()| self.set(FORWARD6, "1"));
            if let Err(fault) = done {
                tracing::warn!("forwarding: IPv6 not enabled: {fault}");
            }
        }
        let alone = matches!(&settings.reach, Reach::Networks(routes) if routes.is_empty());
        match self.set(FORWARD4, "1") {
            Err(fault) if alone => {
                tracing::warn!("forwarding: IPv4 not enabled: {fault}");
                Ok(())
            }
            other => other,
        }
    }

    /// Keeps router advertisements working. A forwarding host ignores them unless `accept_ra` is 2, and would lose a
    /// default route that it got from them.
    fn keep_router_advertisements(&mut self) -> Result<(), Fault> {
        if self.get(FORWARD6).as_deref() == Some("1") {
            return Ok(());
        }
        let folder = self.sysctl_root.join("net/ipv6/conf");
        let names = fs::read_dir(folder).into_iter().flatten().flatten();
        let mut names: Vec<String> =
            names.filter_map(|entry| entry.file_name().into_string().ok()).collect();
        names.sort();
        for name in names.iter().filter(|name| !matches!(name.as_str(), "lo" | "all")) {
            let key = format!("net/ipv6/conf/{name}/accept_ra");
            if self.get(&key).as_deref() == Some("1") {
                self.set(&key, "2")?;
            }
        }
        Ok(())
    }

    /// Loads the server's nft table, which replaces its previous one.
    pub(crate) fn filter(&mut self, settings: &Settings, behind: &[IpNet]) -> Result<(), Fault> {
        let table = firewall::table_name(&self.paths.instance);
        self.undo.table = Some(table.clone());
        self.remember()?;
        firewall::load(&firewall::ruleset(&table, settings, behind))
    }

    fn get(&self, key: &str) -> Option<String> {
        let text = fs::read_to_string(self.sysctl_root.join(key)).ok()?;
        Some(text.trim().to_owned())
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), Fault> {
        let path = self.sysctl_root.join(key);
        let former = fs::read_to_string(&path)
            .map_err(|error| file_fault("cannot read", &path, &error))?
            .trim()
            .to_owned();
        if former == value {
            return Ok(());
        }
        self.undo.sysctls.push((key.to_owned(), former));
        self.remember()?;
        let Err(error) = fs::write(&path, value) else { return Ok(()) };
        self.undo.sysctls.pop();
        self.remember()?;
        let fault = file_fault("cannot change", &path, &error);
        Err(match error.kind() {
            io::ErrorKind::ReadOnlyFilesystem => Fault::environment(format!(
                "{fault}; this container may not change it: set it outside with sysctl -w \
                 {}={value}",
                key.replace('/', ".")
            )),
            _ => fault,
        })
    }

    fn remember(&self) -> Result<(), Fault> {
        let text = serde_json::to_vec(&self.undo)
            .map_err(|error| Fault::ours(format!("cannot encode the undo file: {error}")))?;
        write_whole(&self.paths.undo_file(), 0o600, &text)
    }

    /// Undoes all changes, the latest first. Changes that cannot be undone are left and reported.
    pub(super) fn undo_all(&mut self) {
        for (key, former) in self.undo.sysctls.drain(..).rev() {
            let path = self.sysctl_root.join(&key);
            // The settings of a removed device no longer exist.
            if path.exists()
                && let Err(error) = fs::write(&path, &former)
            {
                tracing::warn!("{}: not restored to {former}: {error}", path.display());
            }
        }
        if let Some(table) = self.undo.table.take()
            && let Err(fault) = firewall::load(&firewall::removal(&table))
        {
            tracing::warn!("nft table {table}: not removed: {fault}");
        }
        match fs::remove_file(self.paths.undo_file()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("{}: not removed: {error}", self.paths.undo_file().display());
            }
            _ => {}
        }
    }
}

impl Drop for HostState {
    fn drop(&mut self) {
        if !self.left {
            self.undo_all();
        }
    }
}

fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default().trim().to_owned()
}

/// Parses an undo file. Only root can write it, but it contains the names of files to write to, so names that lead
/// elsewhere are refused.
fn parse_undo(text: &str, path: &Path) -> Result<Undo, Fault> {
    let undo: Undo = serde_json::from_str(text).map_err(|error| {
        Fault::environment(format!(
            "{} is damaged ({error}); undo its changes by hand and remove it",
            path.display()
        ))
    })?;
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-.@:/".contains(c);
    let safe_key = |key: &str| {
        key.starts_with("net/ipv") && key.chars().all(plain) && !key.split('/').any(|p| p == "..")
    };
    let safe_table = |name: &str| name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    if undo.sysctls.iter().all(|(key, _)| safe_key(key))
        && undo.table.as_deref().is_none_or(safe_table)
    {
        return Ok(undo);
    }
    Err(Fault::environment(format!(
        "{} names things that our servers do not change; check it and remove it",
        path.display()
    )))
}

fn lock(paths: &Paths, server: u32) -> Result<LockFile, Fault> {
    let path = paths.lock_file();
    match lock::take(&path, server).map_err(|error| file_fault("cannot lock", &path, &error))? {
        Taken::Ours(lock) => Ok(lock),
        Taken::Held(holder) => Err(Fault::environment(format!(
            "the server is already running (process {holder}); show it with: {}",
            paths.command("status")
        ))),
    }
}

/// Returns the process that holds an instance's lock, if one runs.
pub fn running(paths: &Paths) -> Option<u32> {
    lock::holder(&paths.lock_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn world() -> (tempfile::TempDir, Paths, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path())).unwrap();
        let root = dir.path().join("sys");
        for (key, value) in [
            (FORWARD4, "0"),
            (FORWARD6, "0"),
            ("net/ipv6/conf/eth0/accept_ra", "1"),
            ("net/ipv6/conf/eth1/accept_ra", "0"),
            ("net/ipv6/conf/lo/accept_ra", "1"),
        ] {
            let path = root.join(key);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, format!("{value}\n")).unwrap();
        }
        (dir, paths, root)
    }

    fn read(root: &Path, key: &str) -> String {
        fs::read_to_string(root.join(key)).unwrap().trim().to_owned()
    }

    fn settings() -> Settings {
        let text = "host = \"h\"\nnetwork = \"10.9.9.0/24\"\nnetwork6 = \"fd12::/64\"\n";
        Settings::parse(text, Path::new("server.toml")).unwrap()
    }

    #[test]
    fn forwarding_is_switched_on_and_back() {
        let (_dir, paths, root) = world();
        let (mut host_state, leftover) =
            HostState::claim_below(&paths, std::process::id(), &root).unwrap();
        assert!(!leftover);
        host_state.forward(&settings()).unwrap();
        assert_eq!(read(&root, FORWARD4), "1");
        assert_eq!(read(&root, FORWARD6), "1");
        assert_eq!(read(&root, "net/ipv6/conf/eth0/accept_ra"), "2");
        assert_eq!(read(&root, "net/ipv6/conf/eth1/accept_ra"), "0");
        assert_eq!(read(&root, "net/ipv6/conf/lo/accept_ra"), "1");
        drop(host_state);
        assert_eq!(read(&root, FORWARD4), "0");
        assert_eq!(read(&root, FORWARD6), "0");
        assert_eq!(read(&root, "net/ipv6/conf/eth0/accept_ra"), "1");
        assert!(!paths.undo_file().exists());
    }

    #[test]
    fn what_is_left_stays_on_and_the_next_process_undoes_it() {
        let (_dir, paths, root) = world();
        let claim = || HostState::open_below(&paths, std::process::id(), &root).unwrap().0;
        let mut former = claim();
        former.forward(&settings()).unwrap();
        former.leave();
        drop(former);
        assert_eq!(read(&root, FORWARD4), "1");
        let mut next = claim();
        next.forward(&settings()).unwrap();
        assert_eq!(read(&root, FORWARD4), "1");
        drop(next);
        assert_eq!(read(&root, FORWARD4), "0");
        assert_eq!(read(&root, "net/ipv6/conf/eth0/accept_ra"), "1");
        assert!(!paths.undo_file().exists());
    }

    #[test]
    fn what_was_on_before_stays_on() {
        let (_dir, paths, root) = world();
        fs::write(root.join(FORWARD4), "1\n").unwrap();
        let (mut host_state, _) =
            HostState::claim_below(&paths, std::process::id(), &root).unwrap();
        host_state.forward(&settings()).unwrap();
        drop(host_state);
        assert_eq!(read(&root, FORWARD4), "1");
    }

    #[test]
    fn a_killed_server_is_undone_by_the_next() {
        let (_dir, paths, root) = world();
        let (mut host_state, _) =
            HostState::claim_below(&paths, std::process::id(), &root).unwrap();
        host_state.forward(&settings()).unwrap();
        // As after kill -9, the lock is free and the destructor never ran.
        let undo = fs::read(paths.undo_file()).unwrap();
        drop(host_state);
        for key in [FORWARD4, FORWARD6] {
            fs::write(root.join(key), "1").unwrap();
        }
        fs::write(paths.undo_file(), undo).unwrap();

        let (host_state, leftover) =
            HostState::claim_below(&paths, std::process::id(), &root).unwrap();
        assert!(leftover);
        assert_eq!(read(&root, FORWARD4), "0");
        assert_eq!(read(&root, FORWARD6), "0");
        drop(host_state);
    }

    #[test]
    fn a_reboot_undid_everything() {
        let (_dir, paths, root) = world();
        fs::create_dir_all(&paths.run).unwrap();
        let undo =
            format!("{{\"boot\":\"another\",\"table\":null,\"sysctls\":[[\"{FORWARD4}\",\"7\"]]}}");
        fs::write(paths.undo_file(), undo).unwrap();
        let (host_state, leftover) =
            HostState::claim_below(&paths, std::process::id(), &root).unwrap();
        assert!(!leftover);
        assert_eq!(read(&root, FORWARD4), "0");
        drop(host_state);
    }

    #[test]
    fn a_second_server_is_refused_and_told_who_runs() {
        let (_dir, paths, root) = world();
        assert_eq!(running(&paths), None);
        let (host_state, _) = HostState::claim_below(&paths, std::process::id(), &root).unwrap();
        let fault = HostState::claim_below(&paths, std::process::id(), &root).unwrap_err();
        assert!(fault.to_string().contains(&std::process::id().to_string()), "{fault}");
        assert_eq!(running(&paths), Some(std::process::id()));
        drop(host_state);
        assert_eq!(running(&paths), None);
    }

    #[test]
    fn what_cannot_be_switched_on_matters_only_where_it_is_needed() {
        let (_dir, paths, root) = world();
        // A directory cannot be opened for writing, just as root cannot open files in a read-only /proc/sys for
        // writing.
        fs::remove_file(root.join(FORWARD4)).unwrap();
        fs::create_dir(root.join(FORWARD4)).unwrap();
        let (mut host_state, _) =
            HostState::claim_below(&paths, std::process::id(), &root).unwrap();
        host_state.forward(&settings()).unwrap();
        let far = Settings { reach: Reach::Full, ..settings() };
        assert!(host_state.forward(&far).is_err());
    }

    /// Loads real rules in a separate namespace, kills the server without cleanup, and checks that the next start
    /// undoes the changes.
    #[test]
    fn rules_are_loaded_and_a_killed_servers_are_removed() {
        adit_testbed::needs_root!();
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths::new(Some(dir.path())).unwrap();
        let table = firewall::table_name(&paths.instance);
        let listing = || firewall::listing().unwrap().to_string();
        let ns = adit_linux::netns::NetNs::unnamed().unwrap();
        ns.run(|| {
            fs::write("/proc/sys/net/ipv4/ip_forward", "0").unwrap();
            let (mut host_state, _) = HostState::claim(&paths, std::process::id()).unwrap();
            host_state.forward(&settings()).unwrap();
            host_state.filter(&settings(), &[]).unwrap();
            // Load them twice, as a reload does. The second set replaces the first.
            let behind = ["192.168.1.0/24", "192.168.2.0/24", "fd50::/64"];
            let behind = behind.map(|net| net.parse().unwrap());
            host_state.filter(&settings(), &behind).unwrap();
            let rules = listing();
            assert!(rules.contains(&table), "{rules}");
            assert_eq!(rules.matches("clients are kept apart").count(), 1);
            assert_eq!(rules.matches("masquerade").count(), 2);
            assert_eq!(read(Path::new("/proc/sys"), FORWARD4), "1");

            // As after kill -9, no destructor runs and the lock is released.
            std::mem::forget(host_state);
            fs::remove_file(paths.lock_file()).unwrap();

            let (host_state, leftover) = HostState::claim(&paths, std::process::id()).unwrap();
            assert!(leftover);
            assert!(!listing().contains(&table));
            assert_eq!(read(Path::new("/proc/sys"), FORWARD4), "0");
            drop(host_state);
        })
        .unwrap();
    }

    #[test]
    fn an_undo_file_cannot_write_elsewhere() {
        let (_dir, paths, root) = world();
        fs::create_dir_all(&paths.run).unwrap();
        for text in [
            r#"{"boot":"","table":null,"sysctls":[["../../etc/passwd","x"]]}"#,
            r#"{"boot":"","table":null,"sysctls":[["net/ipv4/../../kernel/x","x"]]}"#,
            r#"{"boot":"","table":"x; flush ruleset","sysctls":[]}"#,
            "{",
        ] {
            fs::write(paths.undo_file(), text).unwrap();
            assert!(HostState::claim_below(&paths, std::process::id(), &root).is_err(), "{text}");
        }
    }
}
