//! Signals that interrupt a demo.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use tokio::signal::unix::{SignalKind, signal};

use crate::fault::Fault;

/// A flag that SIGINT, SIGTERM or SIGHUP sets.
#[derive(Clone, Debug)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Catches the signals for the rest of the process's lifetime.
    pub fn catch() -> Result<Self, Fault> {
        let fault = |error: std::io::Error| Fault::environment(format!("signals: {error}"));
        let flag = Arc::new(AtomicBool::new(false));
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        let runtime = runtime.map_err(fault)?;
        let entered = runtime.enter();
        let kinds = [SignalKind::interrupt(), SignalKind::terminate(), SignalKind::hangup()];
        let [mut int, mut term, mut hup] = {
            let mut caught = Vec::new();
            for kind in kinds {
                caught.push(signal(kind).map_err(fault)?);
            }
            <[_; 3]>::try_from(caught).map_err(|_| Fault::ours("three signals are three"))?
        };
        drop(entered);
        let shared = Arc::clone(&flag);
        thread::spawn(move || {
            runtime.block_on(async {
                loop {
                    tokio::select! {
                        _ = int.recv() => {}
                        _ = term.recv() => {}
                        _ = hup.recv() => {}
                    }
                    shared.store(true, Relaxed);
                }
            });
        });
        Ok(Self(flag))
    }

    /// Returns whether one of the signals has arrived.
    pub fn came(&self) -> bool {
        self.0.load(Relaxed)
    }

    /// Returns the flag that the signals set.
    pub fn flag(&self) -> &AtomicBool {
        &self.0
    }

    /// Fails if a signal has arrived.
    ///
    /// # Errors
    /// Fails if the user interrupted.
    pub fn check(&self) -> Result<(), Fault> {
        if self.came() { Err(Fault::environment("interrupted")) } else { Ok(()) }
    }
}
