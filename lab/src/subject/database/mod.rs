//! Tunnels whose wire is a database.

mod adit;
mod content;
mod found;
mod rows;

use std::net::IpAddr;

use adit_testbed::failure::{Failure, Result};
use adit_testbed::process::Daemon;
use tempfile::TempDir;

pub use found::StoredPackets;

use super::tunnels::end;
use super::{Toolchain, copy};
use crate::testbed::Database;

/// A scheme for passing packets through a database. It is a row of `SCHEMES`, and reports list the schemes in the same
/// order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Scheme(usize);

/// The programs at both ends.
#[derive(Clone, Copy)]
enum DatabasePrograms {
    /// The well-known VPN through PostgreSQL: `adit-lab row-notify`.
    Rows(Rows),
    /// `adit postgres` in a network that `init` creates with these options.
    Adit(&'static [&'static str]),
}

/// Options of `adit-lab row-notify`.
#[derive(Clone, Copy)]
struct Rows {
    form: &'static str,
    synchronous_commit: &'static str,
    mtu: &'static str,
}

/// The form with a row and a notification per packet.
const ROW: Rows = Rows { form: "row", synchronous_commit: "on", mtu: "1500" };

/// All schemes, as plans call them.
const SCHEMES: [(&str, DatabasePrograms); 12] = [
    ("row-notify", DatabasePrograms::Rows(ROW)),
    ("row-notify-async", DatabasePrograms::Rows(Rows { synchronous_commit: "off", ..ROW })),
    ("row-notify-1400", DatabasePrograms::Rows(Rows { mtu: "1400", ..ROW })),
    // The packets are as large as adit's.
    ("row-notify-7900", DatabasePrograms::Rows(Rows { mtu: "7900", ..ROW })),
    // Its first form, with one packet after the other, and a trigger.
    ("row-trigger", DatabasePrograms::Rows(Rows { form: "trigger", ..ROW })),
    // The packet itself in the notification, so nothing is stored.
    ("packet-in-notify", DatabasePrograms::Rows(Rows { form: "notify", ..ROW })),
    ("adit-postgres-strict", DatabasePrograms::Adit(&["--durability", "strict"])),
    (
        "adit-postgres-strict-1400",
        DatabasePrograms::Adit(&["--durability", "strict", "--packet-size", "1400"]),
    ),
    ("adit-postgres-relaxed", DatabasePrograms::Adit(&["--durability", "relaxed"])),
    (
        "adit-postgres-relaxed-1400",
        DatabasePrograms::Adit(&["--durability", "relaxed", "--packet-size", "1400"]),
    ),
    ("adit-postgres-volatile", DatabasePrograms::Adit(&["--durability", "volatile"])),
    // All content is readable in the tables.
    ("adit-postgres-full", DatabasePrograms::Adit(&["--durability", "relaxed", "--audit", "full"])),
];

impl Scheme {
    pub(super) fn all() -> impl Iterator<Item = Self> {
        (0..SCHEMES.len()).map(Scheme)
    }

    /// Returns the name that plans use.
    pub const fn name(self) -> &'static str {
        SCHEMES[self.0].0
    }

    const fn ends(self) -> DatabasePrograms {
        SCHEMES[self.0].1
    }

    /// Returns whether the scheme is `adit postgres`.
    pub fn is_adit(self) -> bool {
        matches!(self.ends(), DatabasePrograms::Adit(_))
    }
}

/// Returns the program's version, and the server's.
///
/// # Errors
/// One of them is not installed.
pub(super) fn version(scheme: Scheme) -> std::result::Result<String, String> {
    if let Some(why) = adit_testbed::postgres::missing() {
        return Err(why);
    }
    let program = match scheme.ends() {
        DatabasePrograms::Rows(_) => copy::version()?,
        DatabasePrograms::Adit(_) => super::toolchain::here(&super::Subject::ADIT)?,
    };
    let server = adit_testbed::postgres::programs().map_err(|Failure(why)| why)?.join("postgres");
    let server = super::toolchain::first_line(&server, &["--version"], "apt install postgresql")?;
    Ok(format!("{program}; {server}"))
}

/// The running nodes. They end when this is dropped.
#[derive(Debug)]
pub struct Nodes {
    scheme: Scheme,
    /// One process for each host, in the order of the testbed's clients: the first two are the busy pair.
    pub daemons: Vec<Daemon>,
    /// The nodes' addresses in the tunnel.
    pub inner: Vec<IpAddr>,
    /// Their configuration files, as `(name, text)`.
    pub configs: Vec<(String, String)>,
    /// Notes for the reader.
    pub notes: Vec<String>,
    /// The directories of adit's nodes.
    places: Vec<adit::NodeLocation>,
    folder: Option<TempDir>,
}

impl Nodes {
    fn none(scheme: Scheme) -> Self {
        Self {
            scheme,
            daemons: Vec::new(),
            inner: Vec::new(),
            configs: Vec::new(),
            notes: Vec::new(),
            places: Vec::new(),
            folder: None,
        }
    }

    /// Starts this many nodes; returns when the second answers all others.
    ///
    /// # Errors
    /// The scheme supports only two nodes, or the nodes did not become ready; the error includes their logs.
    pub fn start(
        toolchain: &Toolchain,
        scheme: Scheme,
        database: &Database,
        count: usize,
        more: &[&str],
    ) -> Result<Self> {
        let nodes = match scheme.ends() {
            DatabasePrograms::Rows(rows) => rows::start(scheme, rows, database, count),
            DatabasePrograms::Adit(options) => {
                adit::start(toolchain, scheme, database, count, &[options, more].concat())
            }
        }?;
        let all = database.testbed().clients.get(..count).unwrap_or_default();
        let to = nodes.inner.get(1).copied().ok_or("a tunnel has two ends")?;
        super::reach::all(all, to, super::start::SETUP_LIMIT).map_err(|f| nodes.blame(&f))?;
        Ok(nodes)
    }

    /// Returns a failure with the ends of the nodes' logs.
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
        let schemes: Vec<Scheme> =
            Subject::named().filter_map(|subject| subject.database()).collect();
        assert_eq!(schemes.len(), 12);
        for scheme in schemes {
            assert_eq!(scheme.name().parse(), Ok(Subject::Database(scheme)));
            let adit = scheme.name().starts_with("adit");
            assert_eq!(scheme.is_adit(), adit, "{scheme:?}");
        }
        assert!("adit-postgres".parse::<Subject>().is_err());
    }
}
