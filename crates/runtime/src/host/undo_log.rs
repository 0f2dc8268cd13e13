//! The undo log of a tunnel: the changes that outlive a killed process.
//!
//! Addresses and routes of the tunnel disappear with its device, whatever ends the process. A route through another
//! interface (the one that keeps the server reachable) stays, and would lead nowhere once the host is on another
//! network. So each such route is recorded before it is added, and the next start removes those of processes that have
//! ended. The same holds for rules of policy routing and kernel settings. The rules of a kill switch stay until it is
//! released.

mod entry;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use adit_linux::net::{Net, Route, Rule};
use serde::{Deserialize, Serialize};

use super::owner::{StateFile, began, files, namespace};
use super::sysctl;
use entry::{RouteEntry, RuleEntry};

/// The directory of undo logs. It is in an in-memory file system, because a reboot removes the changes too.
const FOLDER: &str = "/run/adit";

/// The maximum number of undo logs that are read for one network namespace, so that a full directory does not delay
/// startup.
const UNDO_LOG_LIMIT: usize = 4096;

/// The suffix of an undo log's file name.
const SUFFIX: &str = ".routes";

/// The undo log of this process. The file is kept open, because after a change of user it could be neither opened nor
/// removed.
#[derive(Debug, Default)]
pub(super) struct UndoLog {
    file: Option<(File, PathBuf)>,
    page: Changes,
}

/// The changes of one process.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(super) struct Changes {
    /// The network namespace, because interface numbers have other meanings in other namespaces.
    namespace: u64,
    /// The start time of the process in clock ticks since boot, because process ids are reused.
    began: u64,
    routes: Vec<RouteEntry>,
    #[serde(default)]
    rules: Vec<RuleEntry>,
    /// The changed kernel settings below /proc/sys, with their former values.
    #[serde(default)]
    sysctls: Vec<(String, String)>,
    /// Whether this is a kill switch, whose rules and routes outlive the process.
    #[serde(default)]
    kept: bool,
    /// Whether the tunnel has ended. Its process may continue with another tunnel.
    #[serde(default)]
    closed: bool,
    /// The reason why the tunnel lacks rules and routes that it needs.
    #[serde(default)]
    problem: Option<String>,
}

impl Changes {
    /// Returns whether there is nothing left to undo.
    fn is_empty(&self) -> bool {
        self.routes.is_empty() && self.rules.is_empty() && self.sysctls.is_empty()
    }

    /// Returns the mark of packets that a kill switch lets out.
    pub(super) fn mark(&self) -> Option<u32> {
        self.rules.iter().find_map(|rule| rule.not_mark)
    }

    /// Returns whether this is the log of a kill switch.
    pub(super) fn is_kept(&self) -> bool {
        self.kept
    }

    /// Undoes the changes, the rules first, because a table without its rule is harmless. Rules, routes and kernel
    /// settings that a running tunnel also uses remain. Returns the undone changes.
    async fn undo(&self, net: &Net) -> Vec<String> {
        let mut undone = Vec::new();
        let in_use = alive(Path::new(FOLDER));
        let rules = self.rules.iter().rev();
        let free = rules.filter(|rule| !in_use.iter().any(|page| page.rules.contains(rule)));
        for rule in free.map(Rule::from) {
            if net.delete_rule(&rule).await.is_ok() {
                undone.push(format!("the rule {rule}"));
            }
        }
        let routes = self.routes.iter().rev();
        let free = routes.filter(|route| !in_use.iter().any(|page| page.routes.contains(route)));
        for route in free.filter_map(RouteEntry::route) {
            if net.delete_route(&route).await.is_ok() {
                undone.push(format!("the route {route}"));
            }
        }
        for (key, former) in self.sysctls.iter().rev() {
            let needed =
                in_use.iter().any(|page| page.sysctls.iter().any(|(known, _)| known == key));
            if !needed && sysctl::write(key, former).is_ok() {
                undone.push(format!("the setting {key}"));
            }
        }
        undone
    }
}

impl UndoLog {
    /// Opens this process's undo log, before privileges are dropped. A tunnel works without one.
    pub(super) fn open() -> Self {
        let file = Self::create(Path::new(FOLDER), std::process::id());
        Self { file: file.ok(), page: Changes::default() }
    }

    fn create(folder: &Path, pid: u32) -> io::Result<(File, PathBuf)> {
        fs::create_dir_all(folder)?;
        let namespace = namespace();
        // One process may have several tunnels, as in tests.
        for number in 0..64 {
            let path = folder.join(format!("{pid}-{number}-{namespace}{SUFFIX}"));
            let options = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
            match options {
                Ok(file) => return Ok((file, path)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::other("too many undo logs"))
    }

    pub(super) fn add(&mut self, route: &Route) {
        self.page.routes.push(route.into());
        self.save();
    }

    pub(super) fn add_rule(&mut self, rule: &Rule) {
        self.page.rules.push(rule.into());
        self.save();
    }

    pub(super) fn remove_rule(&mut self, rule: &Rule) {
        let gone = RuleEntry::from(rule);
        self.page.rules.retain(|entry| *entry != gone);
        self.save();
    }

    /// Changes a kernel setting, unless it already has the value, and records its former value. If another tunnel has
    /// changed the setting, records the former value from that tunnel's log.
    pub(super) fn set_sysctl(&mut self, key: &str, value: &str) -> io::Result<()> {
        if self.page.sysctls.iter().any(|(known, _)| known == key) {
            return Ok(());
        }
        let now = sysctl::read(key)?;
        let other = other_sysctl(Path::new(FOLDER), namespace(), key, self.path());
        if now == value && other.is_none() {
            return Ok(());
        }
        self.page.sysctls.push((key.to_owned(), other.unwrap_or(now)));
        self.save();
        // A setting that was refused is not ours, and is tried again.
        sysctl::write(key, value).inspect_err(|_| {
            self.page.sysctls.retain(|(known, _)| known != key);
            self.save();
        })
    }

    /// Restores these kernel settings, except for those that another tunnel needs.
    pub(super) fn restore_sysctls(&mut self, which: impl Fn(&str) -> bool) {
        let all = std::mem::take(&mut self.page.sysctls);
        let (sysctls, others) = all.into_iter().partition::<Vec<_>, _>(|(key, _)| which(key));
        self.page.sysctls = others;
        if sysctls.is_empty() {
            return;
        }
        // Write the log first, so that of two tunnels that end at the same time neither relies on the other to restore
        // a setting.
        self.save();
        for (key, former) in sysctls {
            let needed = other_sysctl(Path::new(FOLDER), namespace(), &key, self.path());
            if needed.is_none()
                && let Err(e) = sysctl::write(&key, &former)
            {
                tracing::warn!("{key}: not restored to {former}: {e}");
            }
        }
    }

    fn path(&self) -> Option<&Path> {
        self.file.as_ref().map(|(_, path)| path.as_path())
    }

    /// Records why the rules and routes are not those that the tunnel needs.
    pub(super) fn set_problem(&mut self, problem: Option<String>) {
        if self.page.problem != problem {
            self.page.problem = problem;
            self.save();
        }
    }

    /// Sets whether the recorded changes outlive this process.
    pub(super) fn keep(&mut self, kept: bool) {
        if self.page.kept != kept {
            self.page.kept = kept;
            self.save();
        }
    }

    pub(super) fn is_kept(&self) -> bool {
        self.page.kept
    }

    pub(super) fn remove(&mut self, route: &Route) {
        let gone = RouteEntry::from(route);
        self.page.routes.retain(|entry| *entry != gone);
        self.save();
    }

    fn save(&mut self) {
        self.replace_if_removed();
        let Some((file, _)) = &mut self.file else { return };
        self.page.namespace = namespace();
        self.page.began = began(std::process::id()).unwrap_or(0);
        let written = serde_json::to_vec(&self.page).map_err(io::Error::other).and_then(|bytes| {
            file.rewind()?;
            file.write_all(&bytes)?;
            file.set_len(bytes.len() as u64)
        });
        if let Err(e) = written {
            tracing::debug!("undo log: write failed: {e}");
        }
    }
}

impl UndoLog {
    /// Writes the log again if another program has removed it. Otherwise the next start could not undo the changes.
    fn replace_if_removed(&mut self) {
        let removed = |(file, _): &&(File, PathBuf)| file.metadata().is_ok_and(|m| m.nlink() == 0);
        let Some((_, path)) = self.file.as_ref().filter(removed) else { return };
        let folder = path.parent().unwrap_or(Path::new(FOLDER));
        match Self::create(folder, std::process::id()) {
            Ok(file) => self.file = Some(file),
            Err(e) => {
                tracing::warn!("{}: removed by another program, not replaced: {e}", path.display());
            }
        }
    }
}

impl Drop for UndoLog {
    fn drop(&mut self) {
        if self.page.kept && !self.page.is_empty() {
            self.page.closed = true;
            self.save();
            return;
        }
        if let Some((file, path)) = self.file.take() {
            // If the file cannot be removed any more, at least empty it.
            if self.page.is_empty() && fs::remove_file(path).is_err() {
                let _ = file.set_len(0);
            }
        }
    }
}

/// Undoes the changes of killed processes in this network namespace, except for kill switches.
pub(super) async fn clean_up(net: &Net) {
    for (path, page) in leftovers(Path::new(FOLDER), namespace()) {
        if !page.kept {
            for undone in page.undo(net).await {
                tracing::warn!("{undone}: removed: left by a killed process");
            }
            let _ = fs::remove_file(path);
        }
    }
}

/// Returns the undo logs of dead processes in this network namespace.
pub(super) fn dead() -> Vec<(PathBuf, Changes)> {
    leftovers(Path::new(FOLDER), namespace())
}

/// Returns the kill switches of ended processes in this network namespace.
pub(super) fn kill_switches_of_ended() -> Vec<(PathBuf, Changes)> {
    dead().into_iter().filter(|(_, page)| page.kept && !page.is_empty()).collect()
}

/// Returns the reasons why running tunnels in this network namespace lack rules and routes that they need.
pub(super) fn problems() -> Vec<String> {
    alive(Path::new(FOLDER)).into_iter().filter_map(|page| page.problem).collect()
}

/// Undoes all changes of dead processes in this network namespace, including kill switches.
pub(super) async fn release(net: &Net) -> Vec<String> {
    let mut undone = Vec::new();
    for (path, page) in dead() {
        undone.extend(page.undo(net).await);
        let _ = fs::remove_file(path);
    }
    undone
}

/// The rules in the undo logs of this network namespace.
pub(super) struct Claims(Vec<RuleEntry>);

impl Claims {
    pub(super) fn read() -> Self {
        let pages = pages(Path::new(FOLDER), namespace()).into_iter();
        Self(pages.flat_map(|undo_log| undo_log.page.rules).collect())
    }

    pub(super) fn contain(&self, rule: &Rule) -> bool {
        self.0.contains(&RuleEntry::from(rule))
    }
}

/// Returns the changes of running tunnels in this network namespace.
fn alive(folder: &Path) -> Vec<Changes> {
    let alive = pages(folder, namespace()).into_iter().filter(|undo_log| undo_log.alive);
    alive.map(|undo_log| undo_log.page).collect()
}

/// Returns the undo logs of dead processes in a namespace.
fn leftovers(folder: &Path, namespace: u64) -> Vec<(PathBuf, Changes)> {
    let dead = pages(folder, namespace).into_iter().filter(|undo_log| !undo_log.alive);
    dead.map(|undo_log| (undo_log.path, undo_log.page)).collect()
}

/// Returns the former value of a kernel setting that another running tunnel has set.
fn other_sysctl(folder: &Path, namespace: u64, key: &str, own: Option<&Path>) -> Option<String> {
    let others = pages(folder, namespace)
        .into_iter()
        .filter(|undo_log| undo_log.alive && own.is_none_or(|own| own != undo_log.path));
    let mut sysctls = others.flat_map(|undo_log| undo_log.page.sysctls);
    sysctls.find(|(known, _)| known == key).map(|(_, former)| former)
}

/// An undo log as found on disk.
struct LoadedLog {
    path: PathBuf,
    alive: bool,
    page: Changes,
}

/// Loads the undo logs of a namespace. Those of other namespaces, which may be many, are not opened.
fn pages(folder: &Path, namespace: u64) -> Vec<LoadedLog> {
    let mut found = Vec::new();
    for StateFile { path, pid } in files(folder, SUFFIX, namespace).take(UNDO_LOG_LIMIT) {
        let Ok(bytes) = fs::read(&path) else { continue };
        // If a process is killed while it writes, the tail of a longer old log may follow the new content.
        let page = serde_json::Deserializer::from_slice(&bytes).into_iter::<Changes>().next();
        let page = match page {
            Some(Ok(page)) => page,
            // The log is useless once its process has ended.
            None => Changes { namespace, ..Changes::default() },
            // The log's process is writing it. It may be in another namespace.
            Some(Err(_)) => continue,
        };
        if page.namespace != namespace {
            continue;
        }
        let running = began(pid).is_some_and(|began| page.began == 0 || began == page.began);
        let alive = running && !page.closed;
        found.push(LoadedLog { path, alive, page });
    }
    found
}

/// Parses a log and computes its undo actions, for the fuzzer.
pub(super) fn fuzz(bytes: &[u8]) {
    let page = serde_json::Deserializer::from_slice(bytes).into_iter::<Changes>().next();
    let Some(Ok(page)) = page else { return };
    for route in page.routes.iter().filter_map(RouteEntry::route) {
        let _ = route.to_string();
    }
    for entry in &page.rules {
        let rule = Rule::from(entry);
        let _ = rule.to_string();
        assert_eq!(&RuleEntry::from(&rule), entry);
    }
    for path in page.sysctls.iter().filter_map(|(key, _)| sysctl::path(key).ok()) {
        assert!(path.starts_with("/proc/sys/net"), "{}", path.display());
        assert!(!path.components().any(|part| part == std::path::Component::ParentDir));
    }
    let _ = (page.mark(), page.is_kept(), page.is_empty());
}

#[cfg(test)]
mod tests {
    use adit_linux::net::RouteKind;

    use super::*;

    /// A process id above the kernel's maximum.
    const DEAD: u32 = 4_194_305;

    fn keep(folder: &Path, pid: u32, route: &Route) {
        let file = UndoLog::create(folder, pid).unwrap();
        let mut undo_log = UndoLog { file: Some(file), page: Changes::default() };
        undo_log.add(route);
        // A killed process drops nothing.
        std::mem::forget(undo_log);
    }

    #[test]
    fn routes_of_the_dead_are_found_and_those_of_the_living_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let mut route = Route::dev("198.51.100.7/32".parse().unwrap(), 3);
        route.via = Some("192.0.2.1".parse().unwrap());
        keep(folder.path(), DEAD, &route);
        keep(folder.path(), std::process::id(), &route);
        let found = leftovers(folder.path(), namespace());
        assert_eq!(found.len(), 1);
        let (_, page) = &found[0];
        assert_eq!(page.routes[0].route().unwrap(), route);
        assert!(leftovers(folder.path(), namespace() + 1).is_empty());
    }

    #[test]
    fn every_kind_of_change_is_read_as_it_was_written() {
        let folder = tempfile::tempdir().unwrap();
        let everything = "0.0.0.0/0".parse().unwrap();
        let reject = Route {
            table: Some(44_311),
            metric: Some(u32::MAX),
            ..Route::without_hop(everything, RouteKind::Unreachable)
        };
        let throw = Route { kind: RouteKind::Throw, metric: None, ..reject };
        let rule = Rule {
            v6: true,
            preference: 7002,
            from: Some("2001:db8::/64".parse().unwrap()),
            to: Some("fe80::/10".parse().unwrap()),
            not_mark: Some(0xad17),
            udp_ports: Some((546, 547)),
            table: 44_311,
        };
        let file = UndoLog::create(folder.path(), DEAD).unwrap();
        let mut undo_log = UndoLog { file: Some(file), page: Changes::default() };
        undo_log.add(&reject);
        undo_log.add(&throw);
        undo_log.add_rule(&rule);
        undo_log.keep(true);
        std::mem::forget(undo_log);
        let (_, page) = leftovers(folder.path(), namespace()).remove(0);
        let routes: Vec<Route> = page.routes.iter().filter_map(RouteEntry::route).collect();
        assert_eq!(routes, [reject, throw]);
        assert_eq!(page.rules.iter().map(Rule::from).collect::<Vec<_>>(), [rule]);
        assert!(page.kept);
        assert_eq!(page.mark(), Some(0xad17));
    }

    #[test]
    fn an_undo_log_is_found_among_other_files_and_after_a_torn_write() {
        let folder = tempfile::tempdir().unwrap();
        for number in 0..UNDO_LOG_LIMIT + 8 {
            // The directory also contains control sockets, and undo logs of namespaces that no longer exist.
            fs::write(folder.path().join(format!("{number}.sock")), "").unwrap();
            let other = format!("{DEAD}-{number}-{}{SUFFIX}", namespace() + 1);
            fs::write(folder.path().join(other), "").unwrap();
        }
        keep(folder.path(), DEAD, &Route::dev("198.51.100.7/32".parse().unwrap(), 3));
        let path = folder.path().join(format!("{DEAD}-0-{}{SUFFIX}", namespace()));
        OpenOptions::new().append(true).open(path).unwrap().write_all(b"null}]}").unwrap();
        let found = leftovers(folder.path(), namespace());
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].1.routes.len(), 1);
    }

    #[test]
    fn an_undo_log_of_an_earlier_version_is_found_by_its_content() {
        let folder = tempfile::tempdir().unwrap();
        keep(folder.path(), DEAD, &Route::dev("198.51.100.7/32".parse().unwrap(), 3));
        let [now, then] =
            [format!("{DEAD}-0-{}{SUFFIX}", namespace()), format!("{DEAD}-0{SUFFIX}")];
        fs::rename(folder.path().join(now), folder.path().join(then)).unwrap();
        assert_eq!(leftovers(folder.path(), namespace()).len(), 1);
        assert_eq!(leftovers(folder.path(), namespace() + 1).len(), 0);
    }

    #[test]
    fn an_undo_log_that_was_removed_is_written_again() {
        let folder = tempfile::tempdir().unwrap();
        let file = UndoLog::create(folder.path(), std::process::id()).unwrap();
        let mut undo_log = UndoLog { file: Some(file), page: Changes::default() };
        let route = Route::dev("198.51.100.7/32".parse().unwrap(), 3);
        undo_log.add(&route);
        fs::remove_file(undo_log.path().unwrap()).unwrap();
        undo_log.keep(true);
        let found = pages(folder.path(), namespace());
        assert_eq!(found.len(), 1);
        assert!(found[0].alive && found[0].page.kept);
        assert_eq!(found[0].page.routes, [RouteEntry::from(&route)]);
    }

    #[test]
    fn an_orderly_end_leaves_no_undo_log() {
        let folder = tempfile::tempdir().unwrap();
        let file = UndoLog::create(folder.path(), DEAD).unwrap();
        let route = Route::dev("198.51.100.7/32".parse().unwrap(), 3);
        let mut undo_log = UndoLog { file: Some(file), page: Changes::default() };
        undo_log.add(&route);
        undo_log.remove(&route);
        drop(undo_log);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
