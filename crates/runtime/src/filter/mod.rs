//! The packet filter of a running process, with its rule file, the names of its clients, and the requests of `adit
//! filter`.
//!
//! ```text
//!   rule file ──► Live ──► Firewall ◄── workers
//!   clients   ──►  ▲
//!                  └── control socket: filter.show, filter.reload, filter.capture
//! ```

mod address_owners;
mod capture;
mod commands;
mod files;
mod log_line;
mod members;
mod mesh_policy;
mod report;
mod saved;
mod table_full;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use adit_engine::{PeerAddresses, PeerId};
use adit_filter::Nanos;
use adit_filter::elements::{Change, ElementError};
use adit_filter::firewall::{Firewall, Flush, Limits};
use adit_filter::lang::{self, SetElements, Summary};
use adit_filter::ruleset::Members as Who;
use ipnet::IpNet;

pub use adit_filter::Filter;
pub use commands::{capture, element, flush, reload, show};
pub use files::sources;
pub use files::{compile, parse, read};
pub use members::Members;
pub use mesh_policy::mesh_policy;
pub use saved::{SavedFilter, fuzz_saved};

use self::address_owners::AddressOwners;
use self::capture::Capture;
use self::log_line::Lines;
use self::table_full::TableFullLog;
use crate::clock::{now, unix_time};
use crate::control::{Request, Response, RuleFiles};
use crate::fault::Fault;
use crate::random;
use crate::say;

/// The current rules, with their file and the clients' addresses.
#[derive(Debug)]
pub struct LiveFilter {
    firewall: Arc<Firewall>,
    /// The configured rule file.
    configured: PathBuf,
    /// The file that contains the current rules.
    file: String,
    since: u64,
    reloads: u64,
    members: Members,
    owners: AddressOwners,
    capture: Capture,
    lines: Lines,
    full: TableFullLog,
}

/// The names that rules may contain.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KnownNames {
    /// The names of all clients, connected or not.
    pub clients: Vec<String>,
    /// The names of all nodes of the mesh.
    pub nodes: Vec<String>,
    /// The names of all groups that have clients or nodes.
    pub groups: Vec<String>,
}

impl LiveFilter {
    /// Reads the rules from a file and applies them, for `workers` threads if their number is known. A relative path is
    /// resolved in the current directory.
    ///
    /// # Errors
    /// Fails if the file cannot be read. Otherwise returns the errors in it, with file, line and column.
    pub fn open(path: &Path, workers: Option<usize>) -> Result<Self, Fault> {
        let path = std::path::absolute(path)
            .map_err(|e| Fault::operator(format!("filter {}: {e}", path.display())))?;
        let (files, ruleset) = read(&path)?;
        Ok(Self::new(start(compile(&files.name, ruleset)?, workers)?, path))
    }

    /// Wraps an existing firewall, with rules from this file.
    pub fn new(firewall: Arc<Firewall>, configured: PathBuf) -> Self {
        // Lines are fetched once a second. No line is so urgent that a worker must wake the control thread.
        firewall.logs().on_record(|| {});
        Self {
            firewall,
            file: configured.to_string_lossy().into_owned(),
            configured,
            since: unix_time().0,
            reloads: 0,
            members: Members::default(),
            owners: AddressOwners::default(),
            capture: Capture::default(),
            lines: Lines::default(),
            full: TableFullLog::default(),
        }
    }

    /// Returns the firewall that the workers use.
    pub fn firewall(&self) -> &Arc<Firewall> {
        &self.firewall
    }

    /// Returns the file that contains the current rules.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Sets the configured file, which is read at the next [`LiveFilter::reread`].
    pub fn configure(&mut self, path: &Path) {
        if let Ok(path) = std::path::absolute(path) {
            self.configured = path;
        }
    }

    /// Reads the configured file again. If it has errors, the old rules stay in force.
    ///
    /// # Errors
    /// Fails if the file cannot be read or has errors.
    pub fn reread(&mut self) -> Result<(), Fault> {
        let (files, ruleset) = read(&self.configured).map_err(kept)?;
        let filter = compile(&files.name, ruleset).map_err(kept)?;
        self.replace(filter, files.name);
        Ok(())
    }

    fn flush(&self, client: Option<&str>, address: Option<&str>) -> Result<usize, Fault> {
        let count = match (client, address) {
            (Some(_), Some(_)) => {
                return Err(Fault::operator("name a client or an address, not both"));
            }
            (Some(name), None) => {
                let nets = self.owners.of(name);
                if nets.is_empty() {
                    let message = format!("client {name:?} has had no address since the start");
                    return Err(Fault::operator(message));
                }
                self.firewall.flush(Flush::Client(name, &members::ranges(&nets)))
            }
            (None, Some(text)) => {
                let host = text.parse::<IpAddr>().map(IpNet::from);
                let net = text.parse::<IpNet>().or(host).map_err(|_| {
                    let message = format!("{text:?} is no address, like 10.8.0.2 or 10.8.0.0/24");
                    Fault::operator(message)
                })?;
                self.firewall.flush(Flush::Addresses(&members::ranges(&[net])))
            }
            (None, None) => self.firewall.flush(Flush::All),
        };
        say!(1, "filter: {count} connections ended: asked for by the control socket");
        Ok(usize::try_from(count).unwrap_or(usize::MAX))
    }

    fn change_elements(&mut self, delete: bool, text: &str) -> Result<usize, Fault> {
        let change = if delete { Change::Delete } else { Change::Add };
        let rules = self.firewall.filter();
        let named = lang::elements(rules.ruleset(), text)
            .map_err(|problems| Fault::operator(problems.to_string()))?;
        let set = lang::set_text(rules.ruleset(), &named);
        let moment = Nanos(now().as_nanos());
        let SetElements { table, set: id, elements } = named;
        let done = self.firewall.change_elements(table, id, change, elements, moment);
        done.map_err(|error| {
            let (what, element) = match &error {
                ElementError::Missing(one) => ("not deleted", Some(one)),
                ElementError::Overlaps(one) => ("not added", Some(one)),
                _ => ("not changed", None),
            };
            let element = element.map(|one| lang::element_text(rules.ruleset(), table, id, one));
            let element = element.map_or(String::new(), |text| format!("{text}: "));
            Fault::operator(format!("set {set} {what}: {element}{error}"))
        })
    }

    fn take(&mut self, files: &RuleFiles) -> Result<(), Fault> {
        let filter = compile(&files.name, parse(files)?)?;
        self.replace(filter, files.name.clone());
        Ok(())
    }

    /// Replaces the rules.
    pub fn replace(&mut self, filter: Filter, file: String) {
        // The firewall passes the members to the new filter before applying it.
        let summary = Summary::of(filter.ruleset());
        self.firewall.replace(filter);
        self.file = file;
        self.since = unix_time().0;
        self.reloads = self.reloads.saturating_add(1);
        say!(1, "filter: the rules of {} are in force: {summary}", self.file);
    }

    /// Records that a client has these addresses from now on. Call it before the client's first packet can pass. The
    /// connections of an address belong to the client that had it last, so they end if that was another client.
    pub fn put(&mut self, addresses: PeerAddresses) {
        let taken = self.owners.claim(&addresses.name, &addresses.prefixes);
        if !taken.is_empty() {
            self.firewall.flush(Flush::Addresses(&members::ranges(&taken)));
        }
        self.firewall.set_peer(addresses.peer.0, Some(&addresses.name));
        for net in self.members.alone(addresses.peer) {
            self.firewall.set_owner(net.addr(), net.prefix_len(), None);
        }
        for net in &addresses.prefixes {
            self.firewall.set_owner(net.addr(), net.prefix_len(), Some(&addresses.name));
        }
        let changed = self.members.put(addresses);
        self.publish(&changed);
    }

    /// Records that a client has disconnected. Its connections are kept until they expire, in case it returns.
    pub fn remove(&mut self, peer: PeerId) {
        self.firewall.set_peer(peer.0, None);
        for net in self.members.alone(peer) {
            self.firewall.set_owner(net.addr(), net.prefix_len(), None);
        }
        let changed = self.members.remove(peer);
        self.publish(&changed);
    }

    /// Updates the groups of each client; `None` leaves them unchanged.
    pub fn regroup(&mut self, groups: impl Fn(&str) -> Option<Vec<String>>) {
        let changed = self.members.regroup(groups);
        self.publish(&changed);
    }

    fn publish(&self, changed: &[Who]) {
        for who in changed {
            self.firewall.set_members(who, members::ranges(&self.members.of(who)));
        }
    }

    /// Returns warnings about names in the rules that no client or group has.
    pub fn unknown(&self, known: &KnownNames) -> Vec<String> {
        unknown(&self.firewall.filter(), known)
    }

    /// Writes lines to the log and removes expired connections. Called about once a second.
    pub fn tick(&mut self) {
        let moment = Nanos(now().as_nanos());
        self.firewall.sweep(moment);
        if let Some(line) = self.full.line(&self.firewall.tracker().stats(), moment) {
            tracing::warn!("{line}");
        }
        self.drain(moment);
    }

    /// Passes logged records to the log and the capture.
    fn drain(&mut self, moment: Nanos) {
        for record in self.firewall.logs().take() {
            match record.group {
                Some(_) => self.capture.keep(record),
                None => self.lines.write(&record),
            }
        }
        self.lines.tell(moment);
        self.capture.expire(&self.firewall, moment);
    }

    /// Answers the requests of `adit filter`. Returns `None` for any other request.
    pub fn answer(&mut self, request: &Request) -> Option<Response> {
        match request {
            Request::FilterShow { brief: true, .. } => {
                Some(Response::Filter(Box::new(self.identification())))
            }
            Request::FilterShow { flows, .. } => {
                Some(Response::Filter(Box::new(self.report(*flows))))
            }
            Request::FilterElement { delete, text } => {
                Some(done(self.change_elements(*delete, text)))
            }
            Request::FilterReload { files } => {
                let taken = match files {
                    Some(files) => self.take(files),
                    None => self.reread(),
                };
                Some(done(taken.map(|()| 1)))
            }
            Request::FilterFlush { client, address } => {
                Some(done(self.flush(client.as_deref(), address.as_deref())))
            }
            Request::FilterCapture { id, end } => {
                let moment = Nanos(now().as_nanos());
                self.drain(moment);
                Some(match self.capture.asked(&self.firewall, *id, *end, moment) {
                    Ok(batch) => Response::Capture(Box::new(batch)),
                    Err(message) => Response::Error { message },
                })
            }
            _ => None,
        }
    }
}

fn start(filter: Filter, workers: Option<usize>) -> Result<Arc<Firewall>, Fault> {
    let mut limits = Limits::default();
    limits.track.shards = workers.unwrap_or(limits.track.shards).max(1);
    Ok(Firewall::new(filter, limits, random::bytes()?))
}

fn done(result: Result<usize, Fault>) -> Response {
    match result {
        Ok(count) => Response::Done { count },
        Err(fault) => Response::Error { message: fault.to_string() },
    }
}

/// Returns warnings about names in the rules that no client or group has.
pub fn unknown(filter: &Filter, known: &KnownNames) -> Vec<String> {
    let mut problems: Vec<String> = filter
        .wanted()
        .filter_map(|who| match who {
            Who::Client(name) if !known.clients.contains(name) => Some(format!(
                "filter: the rules name @client:{name}, but no client of that name is registered"
            )),
            Who::Node(name) if !known.nodes.contains(name) => {
                Some(format!("filter: the rules name @node:{name}, but no node has that name"))
            }
            Who::Group(name) if !known.groups.contains(name) => {
                Some(format!("filter: the rules name @group:{name}, but it has no members"))
            }
            _ => None,
        })
        .collect();
    problems.sort();
    problems.dedup();
    problems
}

/// Returns the response of a process without a filter.
pub fn none() -> Response {
    Response::Error { message: NONE.into() }
}

const NONE: &str = "there is no filter here: write filter FILE into the configuration";

fn kept(fault: Fault) -> Fault {
    Fault::operator(format!("the former rules stay in force: {fault}"))
}

#[cfg(test)]
mod tests;
