//! `adit postgres verify`, `export` and `tail`. They read past packets.
//!
//! A node reads the packets addressed to it with its own keys. An auditor's role may read all streams, and the
//! auditor's key opens their content.

mod export;
mod open;
mod pages;
mod tail;
mod time;
mod verify;
mod view;

pub use export::{ExportOptions, ExportReport, export};
pub use tail::{TailOptions, tail};
pub use verify::{VerifyReport, verify};

use std::fmt;
use std::path::PathBuf;

use adit_postgres::key::AuditorKey;
use adit_postgres_client::{Environment, Target};
use zeroize::Zeroizing;

use super::member::Member;
use super::paths::Paths;
use adit_runtime::fault::Fault;

/// Access to the log: the database, the keys, and the streams to read.
#[derive(Debug)]
pub struct LogAccess {
    target: Target,
    keys: Keys,
    /// The sender to which the log is restricted.
    from: Option<String>,
    /// The receiver to which the log is restricted.
    to: Option<String>,
    /// The stream to which the log is restricted.
    stream: Option<i32>,
}

/// The keys that open packets.
enum Keys {
    Node(Box<Member>),
    Auditor(Box<AuditorKey>),
    None,
}

impl fmt::Debug for Keys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node(_) => "Node(..)",
            Self::Auditor(_) => "Auditor(..)",
            Self::None => "None",
        })
    }
}

impl LogAccess {
    /// Selects a node's own log.
    ///
    /// # Errors
    /// Fails if the node's files are missing or wrong.
    pub fn of_node(paths: &Paths) -> Result<Self, Fault> {
        let member = Member::load(paths)?;
        let target = member.target()?;
        let keys = Keys::Node(Box::new(member));
        Ok(Self { target, keys, from: None, to: None, stream: None })
    }

    /// Opens the log for a role that may read everything. `key` is the auditor's file.
    ///
    /// # Errors
    /// Fails if the URL or the file is invalid.
    pub fn of_auditor(url: &str, key: Option<PathBuf>) -> Result<Self, Fault> {
        let target = Target::of_reader(url, &Environment::of_process())?;
        let keys = match key {
            None => Keys::None,
            Some(path) => {
                let text = std::fs::read_to_string(&path).map(Zeroizing::new).map_err(|error| {
                    Fault::operator(format!("cannot read {}: {error}", path.display()))
                })?;
                let key = AuditorKey::from_text(&text)
                    .map_err(|error| Fault::operator(format!("{}: {error}", path.display())))?;
                Keys::Auditor(Box::new(key))
            }
        };
        Ok(Self { target, keys, from: None, to: None, stream: None })
    }

    /// Restricts the log to streams from and to these nodes, and to the stream with this number.
    #[must_use]
    pub fn restricted_to(
        self,
        from: Option<String>,
        to: Option<String>,
        stream: Option<i32>,
    ) -> Self {
        Self { from, to, stream, ..self }
    }
}
