//! What a killed process leaves behind on other interfaces than its own.
//!
//! Addresses and routes of the tunnel go with its device, whatever ends the process. A route by
//! another interface (the one that keeps the server reachable) stays, and would lead nowhere once
//! the machine is on another network. So each is written down before it is added, and the next
//! start removes those of processes that are gone.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Seek, Write};
use std::net::IpAddr;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use adit_linux::net::{Net, Route};
use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Where ledgers are kept. A memory file system: a reboot undoes routes and ledgers alike.
const FOLDER: &str = "/run/adit";

/// Ledgers looked at, so that a folder full of them does not hold up a start.
const LEDGER_LIMIT: usize = 256;

/// The routes of this process that must be removed one by one. Held open, since after a change of
/// user the file could be neither opened nor removed.
#[derive(Debug, Default)]
pub(super) struct Ledger {
    file: Option<(File, PathBuf)>,
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    net: IpNet,
    via: Option<IpAddr>,
    link: Option<u32>,
    metric: Option<u32>,
}

#[derive(Debug, Default, Serialize, Deserialize)]
struct Page {
    /// Inode of the network namespace: the same numbers mean other interfaces elsewhere.
    namespace: u64,
    /// When the process began, in clock ticks since boot: process ids are used again.
    began: u64,
    routes: Vec<Entry>,
}

impl From<&Route> for Entry {
    fn from(route: &Route) -> Self {
        Self { net: route.to, via: route.via, link: route.link, metric: route.metric }
    }
}

impl Entry {
    fn route(&self) -> Option<Route> {
        let link = self.link?;
        let mut route = Route::dev(self.net, link);
        route.via = self.via;
        route.metric = self.metric;
        Some(route)
    }
}

impl Ledger {
    /// Opens this process's ledger before rights are dropped. Where it cannot be kept the tunnel
    /// works all the same.
    pub(super) fn open() -> Self {
        let file = Self::create(Path::new(FOLDER), std::process::id());
        Self { file: file.ok(), entries: Vec::new() }
    }

    fn create(folder: &Path, pid: u32) -> io::Result<(File, PathBuf)> {
        fs::create_dir_all(folder)?;
        // One process may hold several tunnels (tests do).
        for number in 0..64 {
            let path = folder.join(format!("{pid}-{number}.routes"));
            let options = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
            match options {
                Ok(file) => return Ok((file, path)),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(e),
            }
        }
        Err(io::Error::other("too many ledgers"))
    }

    pub(super) fn add(&mut self, route: &Route) {
        self.entries.push(route.into());
        self.save();
    }

    pub(super) fn remove(&mut self, route: &Route) {
        let gone = Entry::from(route);
        self.entries.retain(|entry| *entry != gone);
        self.save();
    }

    fn save(&mut self) {
        let Some((file, _)) = &mut self.file else { return };
        let page = Page {
            namespace: namespace(),
            began: began(std::process::id()).unwrap_or(0),
            routes: self.entries.clone(),
        };
        let written = serde_json::to_vec(&page).map_err(io::Error::other).and_then(|bytes| {
            file.rewind()?;
            file.write_all(&bytes)?;
            file.set_len(bytes.len() as u64)
        });
        if let Err(e) = written {
            tracing::debug!("the ledger of routes cannot be written: {e}");
        }
    }
}

impl Drop for Ledger {
    fn drop(&mut self) {
        if let Some((file, path)) = self.file.take() {
            // What cannot be removed any more says at least nothing.
            if self.entries.is_empty() && fs::remove_file(path).is_err() {
                let _ = file.set_len(0);
            }
        }
    }
}

/// Removes the routes that killed processes left in this network namespace.
pub(super) async fn clean_up(net: &Net) {
    for (path, routes) in leftovers(Path::new(FOLDER), namespace()) {
        for route in routes.iter().filter_map(Entry::route) {
            if net.delete_route(&route).await.is_ok() {
                tracing::warn!("removed the route {route}, which a killed process had left");
            }
        }
        let _ = fs::remove_file(path);
    }
}

/// Ledgers of dead processes that belong to a namespace.
fn leftovers(folder: &Path, namespace: u64) -> Vec<(PathBuf, Vec<Entry>)> {
    let Ok(entries) = fs::read_dir(folder) else { return Vec::new() };
    let mut found = Vec::new();
    for entry in entries.filter_map(Result::ok).take(LEDGER_LIMIT) {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        let pid = name.strip_suffix(".routes").and_then(|name| name.split('-').next());
        let Some(pid) = pid.and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        let page: Page = match fs::read(&path).map(|bytes| serde_json::from_slice(&bytes)) {
            Ok(Ok(page)) => page,
            // Empty, or of another version: of no use once its process is gone.
            _ => Page { namespace, ..Page::default() },
        };
        let alive = began(pid).is_some_and(|began| page.began == 0 || began == page.began);
        if !alive && page.namespace == namespace {
            found.push((path, page.routes));
        }
    }
    found
}

fn namespace() -> u64 {
    // The calling thread's, which is what counts for netlink.
    fs::metadata("/proc/thread-self/ns/net").map_or(0, |data| data.ino())
}

/// Field 22 of /proc/PID/stat; `None` for a process that is gone, though its parent may not have
/// noticed.
fn began(pid: u32) -> Option<u64> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name in parentheses may contain anything.
    let (_, rest) = stat.rsplit_once(')')?;
    let mut fields = rest.split_ascii_whitespace();
    if fields.next().is_none_or(|state| matches!(state, "Z" | "X")) {
        return None;
    }
    fields.nth(18)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Above the kernel's highest process id.
    const DEAD: u32 = 4_194_305;

    fn keep(folder: &Path, pid: u32, route: &Route) {
        let file = Ledger::create(folder, pid).unwrap();
        let mut ledger = Ledger { file: Some(file), entries: Vec::new() };
        ledger.add(route);
        // Killed: nothing is dropped.
        std::mem::forget(ledger);
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
        let (_, entries) = &found[0];
        assert_eq!(entries[0].route().unwrap(), route);
        assert!(leftovers(folder.path(), namespace() + 1).is_empty());
    }

    #[test]
    fn a_process_that_nobody_has_waited_for_is_gone() {
        use std::process::{Command, Stdio};
        let mut child =
            Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        assert!(began(child.id()).is_some());
        drop(child.stdin.take());
        // Its end closes the pipe, a moment before it is a zombie.
        io::Read::read_to_end(&mut child.stdout.take().unwrap(), &mut Vec::new()).unwrap();
        while began(child.id()).is_some() {
            std::thread::yield_now();
        }
        child.wait().unwrap();
    }

    #[test]
    fn an_orderly_end_leaves_no_ledger() {
        let folder = tempfile::tempdir().unwrap();
        let file = Ledger::create(folder.path(), DEAD).unwrap();
        let route = Route::dev("198.51.100.7/32".parse().unwrap(), 3);
        let mut ledger = Ledger { file: Some(file), entries: Vec::new() };
        ledger.add(&route);
        ledger.remove(&route);
        drop(ledger);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }
}
