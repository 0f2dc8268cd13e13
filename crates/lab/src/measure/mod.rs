//! What processes and the machine cost while traffic flows: sampled every 100 ms, exact at the edges of the window.

use std::collections::BTreeMap;

use adit_interop::failure::Result;

use crate::bed::{Bed, Drops};
use crate::record::{Measurement, Sample};

/// The two ends of the window that counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// Everything before does not count.
    Begin,
    /// Everything after does not count.
    End,
}

/// Watches processes and counters from its start on.
#[derive(Debug)]
pub struct Meter {}

/// What the window cost.
#[derive(Debug, Clone, Default)]
pub struct Usage {
    /// Between the edges, or from start to stop where there were none.
    pub seconds: f64,
    /// By role.
    pub roles: BTreeMap<String, RoleUsage>,
    /// Of the whole time, not of the window alone.
    pub samples: Vec<Sample>,
    /// Share of the machine's time that the hypervisor took in the window, 0 to 1.
    pub steal: f64,
    /// In the window.
    pub drops: Drops,
}

/// What the processes of one role cost in the window.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct RoleUsage {
    /// CPU seconds in user mode.
    pub user: f64,
    /// CPU seconds in the kernel on the processes' behalf.
    pub system: f64,
    /// Seconds in which threads could have run and had no CPU.
    pub wait: f64,
    /// Context switches.
    pub switches: u64,
    /// Proportional set size at the stop, in KiB.
    pub pss_kib: u64,
    /// Open file descriptors at the stop.
    pub fds: u64,
    /// How many processes there were.
    pub processes: usize,
    /// How many of them ended before the stop.
    pub ended: usize,
}

impl Meter {
    /// Starts to sample: `processes` are roles (`server`, `client`, ...) and their process ids.
    ///
    /// # Errors
    /// A process is gone, or the kernel's counters cannot be read.
    pub fn start(processes: &[(&str, Vec<u32>)], bed: &Bed) -> Result<Meter> {
        let _ = (processes, bed);
        Err("not built yet".into())
    }

    /// An end of the window is now.
    ///
    /// # Errors
    /// The kernel's counters cannot be read.
    pub fn edge(&mut self, edge: Edge) -> Result<()> {
        let _ = edge;
        Ok(())
    }

    /// Ends the sampling.
    ///
    /// # Errors
    /// As [`Meter::edge`].
    pub fn stop(self) -> Result<Usage> {
        Err("not built yet".into())
    }
}

impl Usage {
    /// CPU seconds of all roles together in the window.
    #[must_use]
    pub fn cpu_seconds(&self) -> f64 {
        self.roles.values().map(|role| role.user + role.system).sum()
    }

    /// Writes the costs of the roles `server` and `client` per gigabit that arrived in the window (0: no traffic was
    /// counted, no ratios are written), the samples, the steal and what a reader should know.
    pub fn put(&self, measurement: &mut Measurement, gigabits: f64) {
        let _ = gigabits;
        measurement.steal = self.steal;
    }
}
