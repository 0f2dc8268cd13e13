//! Hosts that can reach only one other host, which has a PostgreSQL server on disk.

use std::io::{Seek, Write};
use std::path::{Path, PathBuf};
use std::time::Instant;

use adit_testbed::failure::{Context, Failure, Result, ensure};
use adit_testbed::file;
use adit_testbed::postgres::{Cluster, Options};
use nix::sys::statfs::{TMPFS_MAGIC, statfs};
use tempfile::TempDir;

use super::{LinkMode, Testbed};
use crate::stats::median;

/// The maximum number of idle nodes besides a busy pair.
pub const MOST_IDLE: u16 = 10;
/// The role that the subjects begin with. It may create roles and owns the trial's database.
pub const ROLE: &str = "lab";
/// The role's password. The server requires it on TCP.
pub(super) const PASSWORD: &str = "lab";
/// The directory of the cluster unless `ADIT_LAB_DISK` names another. It is on disk, because `/tmp` may be in memory.
const PLACE: &str = "/var/tmp";

/// A star whose central host has a cluster, kept for the whole run. Each trial has a new database in it, and finds the
/// write-ahead log files of earlier trials, as on a server in use.
#[derive(Debug)]
pub struct Database {
    // Declared first, so that the server ends before its host and its folder are removed.
    cluster: Cluster,
    testbed: Testbed,
    folder: TempDir,
    trial: u32,
}

impl Database {
    /// Creates hosts and cluster, with the server's default settings.
    ///
    /// # Errors
    /// PostgreSQL is not installed, or there is no disk for the cluster.
    pub fn new() -> Result<Self> {
        let place = std::env::var_os("ADIT_LAB_DISK").map_or_else(|| PLACE.into(), PathBuf::from);
        let kind = statfs(&place).context(place.display())?.filesystem_type();
        ensure(kind != TMPFS_MAGIC, || {
            format!("{}: in memory: name a folder on disk with ADIT_LAB_DISK", place.display())
        })?;
        let testbed = Testbed::star(2 + MOST_IDLE, LinkMode::Offload)?;
        let folder = tempfile::Builder::new().prefix("adit-lab-pg-").tempdir_in(place)?;
        passable(folder.path())?;
        let options =
            Options { namespace: Some(&testbed.server), measured: true, ..Options::default() };
        let cluster = Cluster::start(&folder.path().join("cluster"), &options)?;
        cluster.sql(
            "postgres",
            &format!("CREATE ROLE {ROLE} LOGIN CREATEROLE PASSWORD '{PASSWORD}'"),
        )?;
        Ok(Self { cluster, testbed, folder, trial: 0 })
    }

    /// Creates a database for a new trial, and drops the previous one.
    ///
    /// # Errors
    /// The server refuses.
    pub fn renew(&mut self) -> Result<()> {
        let last = self.name();
        self.trial += 1;
        let name = self.name();
        for sql in [
            format!("DROP DATABASE IF EXISTS {last} WITH (FORCE)"),
            format!("CREATE DATABASE {name} OWNER {ROLE}"),
            // A trial must not pay for pending writes of an earlier one.
            "CHECKPOINT".to_owned(),
        ] {
            self.cluster.sql("postgres", &sql)?;
        }
        Ok(())
    }

    /// Returns the name of the trial's database.
    pub fn name(&self) -> String {
        format!("trial{}", self.trial)
    }

    /// Returns the hosts. The server's host has the cluster, and the clients are the nodes.
    pub fn testbed(&self) -> &Testbed {
        &self.testbed
    }

    /// Returns the cluster.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the URL by which a node reaches the trial's database as [`ROLE`], without TLS; further parameters can be
    /// appended after `&`.
    pub fn url(&self) -> String {
        let url = self.cluster.url(self.testbed.server_outer(false), ROLE, PASSWORD, &self.name());
        format!("{url}?sslmode=disable")
    }

    /// Queries one number from the trial's database.
    ///
    /// # Errors
    /// The server refuses, or the result is not a number.
    pub fn number(&self, sql: &str) -> Result<u64> {
        let number = self.cluster.number(&self.name(), sql)?;
        u64::try_from(number).map_err(|_| Failure(format!("{sql}: {number} is below 0")))
    }

    /// Returns the total bytes of write-ahead log written so far.
    ///
    /// # Errors
    /// As [`Database::number`].
    pub fn log_bytes(&self) -> Result<u64> {
        self.number("SELECT pg_wal_lsn_diff(pg_current_wal_insert_lsn(), '0/0')::bigint")
    }

    /// Returns the bytes of the trial's database on disk, without the log.
    ///
    /// # Errors
    /// As [`Database::number`].
    pub fn disk_bytes(&self) -> Result<u64> {
        self.number("SELECT pg_database_size(current_database())")
    }

    /// Returns the size of the log files on disk, in bytes.
    ///
    /// # Errors
    /// As [`Database::number`].
    pub fn log_files(&self) -> Result<u64> {
        self.number("SELECT coalesce(sum(size), 0)::bigint FROM pg_ls_waldir()")
    }

    /// Returns the time that the disk takes to write a page of the log, in milliseconds, as the median of several
    /// writes in the cluster's folder.
    ///
    /// # Errors
    /// A write failed.
    pub fn flush_ms(&self) -> Result<f64> {
        const WRITES: usize = 51;
        let mut file = tempfile::tempfile_in(self.folder.path())?;
        let mut times = Vec::with_capacity(WRITES);
        for _ in 0..WRITES {
            // The log is written in the same way, within a file of full length, so that only the data is written.
            file.rewind()?;
            file.write_all(&[1; 8192])?;
            let began = Instant::now();
            file.sync_data()?;
            times.push(began.elapsed().as_secs_f64() * 1e3);
        }
        median(&times).context("no times")
    }

    /// Returns the server's processes, except for the short-lived autovacuum workers.
    ///
    /// # Errors
    /// The server is not running.
    pub fn pids(&self) -> Result<Vec<u32>> {
        let mut pids = self.cluster.pids()?;
        pids.retain(|pid| {
            let title = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            !title.is_empty() && !String::from_utf8_lossy(&title).contains("autovacuum worker")
        });
        Ok(pids)
    }
}

/// Lets the server's user traverse a folder of root's.
fn passable(folder: &Path) -> Result<()> {
    file::set_mode(folder, 0o711)
}
