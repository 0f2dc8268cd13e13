//! Tunnels whose wire is a database.

mod adit;
mod content;
mod found;
mod rows;

use std::net::IpAddr;

use adit_testbed::failure::{Failure, Result};
use adit_testbed::process::Daemon;
use serde::{Deserialize, Serialize};
use tempfile::TempDir;

pub use found::Found;

use super::tunnels::end;
use super::{Toolchain, copy};
use crate::testbed::Database;

/// How packets pass through a database.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Scheme {
    /// The known attempt in its best form: a row and a notification per packet.
    RowNotify,
    /// The same with `synchronous_commit` off.
    RowNotifyAsync,
    /// The same with packets of at most 1400 bytes.
    RowNotify1400,
    /// The same with packets as large as adit's own, 7900 bytes.
    RowNotify7900,
    /// The known attempt's first form: one packet after the other, and a trigger.
    RowTrigger,
    /// The packet itself in the notification: nothing is stored.
    PacketInNotify,
    /// `adit postgres` as it is by itself.
    Strict,
    /// The same with packets of at most 1400 bytes.
    Strict1400,
    /// `adit postgres` with durability relaxed.
    Relaxed,
    /// The same with packets of at most 1400 bytes.
    Relaxed1400,
    /// `adit postgres` with durability volatile.
    Volatile,
    /// `adit postgres` with durability relaxed and everything readable in the tables.
    Readable,
}

impl Scheme {
    /// As plans call it.
    pub const fn name(self) -> &'static str {
        match self {
            Scheme::RowNotify => "row-notify",
            Scheme::RowNotifyAsync => "row-notify-async",
            Scheme::RowNotify1400 => "row-notify-1400",
            Scheme::RowNotify7900 => "row-notify-7900",
            Scheme::RowTrigger => "row-trigger",
            Scheme::PacketInNotify => "packet-in-notify",
            Scheme::Strict => "adit-postgres-strict",
            Scheme::Strict1400 => "adit-postgres-strict-1400",
            Scheme::Relaxed => "adit-postgres-relaxed",
            Scheme::Relaxed1400 => "adit-postgres-relaxed-1400",
            Scheme::Volatile => "adit-postgres-volatile",
            Scheme::Readable => "adit-postgres-full",
        }
    }

    /// Whether it is `adit postgres`.
    pub fn is_adit(self) -> bool {
        self.options().is_some()
    }

    /// How `adit postgres init` is to make the network; `None` where it is not adit's.
    fn options(self) -> Option<&'static [&'static str]> {
        match self {
            Scheme::RowNotify
            | Scheme::RowNotifyAsync
            | Scheme::RowNotify1400
            | Scheme::RowNotify7900
            | Scheme::RowTrigger
            | Scheme::PacketInNotify => None,
            Scheme::Strict => Some(&["--durability", "strict"]),
            Scheme::Strict1400 => Some(&["--durability", "strict", "--packet-size", "1400"]),
            Scheme::Relaxed => Some(&["--durability", "relaxed"]),
            Scheme::Relaxed1400 => Some(&["--durability", "relaxed", "--packet-size", "1400"]),
            Scheme::Volatile => Some(&["--durability", "volatile"]),
            Scheme::Readable => Some(&["--durability", "relaxed", "--audit", "full"]),
        }
    }
}

/// The program's version, and the server's.
///
/// # Errors
/// One of them is not here.
pub(super) fn version(scheme: Scheme) -> std::result::Result<String, String> {
    if let Some(why) = adit_testbed::postgres::missing() {
        return Err(why);
    }
    let program = match scheme.options() {
        None => copy::version()?,
        Some(_) => super::toolchain::here(&super::Subject::Adit(None))?,
    };
    let server = adit_testbed::postgres::programs().map_err(|Failure(why)| why)?.join("postgres");
    let server = super::toolchain::first_line(&server, &["--version"], "apt install postgresql")?;
    Ok(format!("{program}; {server}"))
}

/// Nodes that pass packets. Dropping this ends them.
#[derive(Debug)]
pub struct Nodes {
    scheme: Scheme,
    /// One for each host, in the order of the testbed's clients: the first two are the busy pair.
    pub daemons: Vec<Daemon>,
    /// Their addresses inside.
    pub inner: Vec<IpAddr>,
    /// Their configuration files, as `(name, text)`.
    pub configs: Vec<(String, String)>,
    /// What a reader should know.
    pub notes: Vec<String>,
    /// Where adit's have their files.
    places: Vec<adit::At>,
    folder: Option<TempDir>,
}

impl Nodes {
    fn none(scheme: Scheme) -> Nodes {
        Nodes {
            scheme,
            daemons: Vec::new(),
            inner: Vec::new(),
            configs: Vec::new(),
            notes: Vec::new(),
            places: Vec::new(),
            folder: None,
        }
    }

    /// Starts so many nodes; returns when the second answers all others.
    ///
    /// # Errors
    /// The scheme knows only two nodes, or they do not come up: with their logs.
    pub fn start(
        toolchain: &Toolchain,
        scheme: Scheme,
        database: &Database,
        count: usize,
        more: &[&str],
    ) -> Result<Nodes> {
        let nodes = match scheme.options() {
            None => rows::start(scheme, database, count),
            Some(options) => {
                adit::start(toolchain, scheme, database, count, &[options, more].concat())
            }
        }?;
        let all = database.testbed().clients.get(..count).unwrap_or_default();
        let to = nodes.inner.get(1).copied().ok_or("a tunnel has two ends")?;
        super::reach::all(all, to, super::start::SETUP_LIMIT).map_err(|f| nodes.blame(&f))?;
        Ok(nodes)
    }

    /// A failure with the nodes' last words.
    pub fn blame(&self, failure: &Failure) -> Failure {
        let logs = self.daemons.iter().take(2).map(|daemon| daemon.failure("log").0);
        Failure(format!("{failure}\n{}", logs.collect::<Vec<_>>().join("\n")))
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        end(self.daemons.drain(..).collect());
        self.folder = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subject::Subject;

    #[test]
    fn every_scheme_is_a_subject_of_its_name() {
        let schemes: Vec<Scheme> = Subject::NAMED.iter().filter_map(Subject::database).collect();
        assert_eq!(schemes.len(), 12);
        for scheme in schemes {
            assert_eq!(scheme.name().parse(), Ok(Subject::Database(scheme)));
            let adit = scheme.name().starts_with("adit");
            assert_eq!(scheme.is_adit(), adit, "{scheme:?}");
        }
        assert!("adit-postgres".parse::<Subject>().is_err());
    }
}
