//! The server that the clients connect to, and the cost of running it.

use std::fs;
use std::path::Path;

use adit_testbed::failure::{Context, Result};
use adit_testbed::net::Namespace;
use adit_testbed::peer::Program;
use adit_testbed::process::Daemon;
use adit_testbed::tunnel::{READY, SETUP_LIMIT};

use super::config;

/// A running server.
#[derive(Debug)]
pub struct Server {
    daemon: Daemon,
    config: String,
}

impl Server {
    /// Starts `program` in `namespace` with the keys in `keys`; its config file is written to `folder`. Returns when
    /// the server is ready.
    ///
    /// # Errors
    /// The server did not become ready; the error includes its log.
    pub fn start(
        program: &Program,
        namespace: &Namespace,
        folder: &Path,
        keys: &Path,
    ) -> Result<Self> {
        let config = config::server(keys, program.may_offload());
        let path = folder.join("storm-server.conf");
        fs::write(&path, &config).context(path.display())?;
        let name = format!("server ({})", program.label());
        let mut daemon = Daemon::spawn(&name, program.command(namespace, &path))?;
        daemon.wait_for(READY, SETUP_LIMIT)?;
        Ok(Self { daemon, config })
    }

    /// Returns the process.
    pub fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    /// Returns the exact config file.
    pub fn config(&self) -> &str {
        &self.config
    }

    /// Returns the CPU time since its start, in seconds.
    ///
    /// # Errors
    /// The process has ended; the error includes its log.
    pub fn cpu(&self) -> Result<f64> {
        // Accurate to the nanosecond, unlike /proc/PID/stat, which counts ticks of 10 ms.
        let mut nanos = 0_u64;
        let tasks = format!("/proc/{}/task", self.daemon.pid());
        let gone = || self.daemon.failure("it is gone").0;
        for task in fs::read_dir(&tasks).map_err(|_| gone())?.flatten() {
            let path = task.path().join("schedstat");
            // A thread may end between the listing and the reading.
            let text = fs::read_to_string(path).unwrap_or_default();
            nanos += text.split(' ').next().and_then(|n| n.parse::<u64>().ok()).unwrap_or(0);
        }
        Ok(nanos as f64 / 1e9)
    }

    /// Returns its private memory in KiB, without mapped files, because their share depends on which other processes
    /// map them.
    ///
    /// # Errors
    /// The process has ended; the error includes its log.
    pub fn memory_kib(&self) -> Result<u64> {
        let text = fs::read_to_string(format!("/proc/{}/smaps_rollup", self.daemon.pid()))
            .map_err(|_| self.daemon.failure("it is gone"))?;
        let line = text.lines().find_map(|line| line.strip_prefix("Pss_Anon:")).unwrap_or_default();
        line.trim().trim_end_matches(" kB").parse().context("Pss_Anon of smaps_rollup")
    }
}
