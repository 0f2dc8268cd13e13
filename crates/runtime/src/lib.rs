//! Turns an engine into a running program, with sockets, timers, name resolution, the TUN device and routes, privileges, logs and the
//! control socket. All apps are built on this crate, and it depends on none of them.
//!
//! [`driver`] connects a sans-IO engine to the data plane. Through [`control`], other processes inspect and control a
//! running one. [`background`] keeps programs running without a terminal. [`helper`] performs privileged operations for a process without privileges, [`host`] changes the host's
//! addresses and routes and undoes the changes, [`metrics`] serves counters to monitoring, [`programs`] runs the programs that a configuration names, and
//! [`filter`] manages the rules of a running filter.

#![forbid(unsafe_code)]

pub mod authorize;
pub mod background;
pub mod clock;
pub mod control;
pub mod demo;
pub mod driver;
pub mod expiry;
pub mod fault;
pub mod filter;
pub mod helper;
pub mod host;
pub mod instance;
pub mod lock;
pub mod log;
pub mod log_file;
pub mod metrics;
pub mod netinfo;
pub mod paths;
pub mod plane_backend;
pub mod port_share;
pub mod privileges;
pub mod programs;
pub mod progress;
pub mod prompts;
pub mod proxy;
pub mod random;
pub mod settings;
pub mod signals;
pub mod worker_count;

#[cfg(test)]
#[allow(dead_code, reason = "the tests use a part")]
#[path = "../../dataplane/tests/common/trivial.rs"]
mod trivial;

pub use adit_linux::terminal;
pub use adit_linux::zeroizing_alloc::ZeroizingAllocator;

/// Creates a tokio runtime without its own threads, so that privileges can still be dropped.
///
/// # Errors
/// Fails if the kernel refuses the runtime's resources.
pub fn async_runtime() -> Result<tokio::runtime::Runtime, fault::Fault> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(2)
        .build()
        .map_err(|e| fault::Fault::environment(format!("cannot start: {e}")))
}
