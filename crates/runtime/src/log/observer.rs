//! A second reader of the log in addition to its target.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU8, Ordering};

use tracing::Level;

use super::clean;

type Observer = dyn Fn(Level, u64, &str) + Send + Sync;

static OBSERVER: OnceLock<Box<Observer>> = OnceLock::new();

/// Passes each written line to `observer` as well, with its level and `verb`. Only the first call has an effect.
///
/// The observer runs on the thread that logs, while the log is locked: it must neither log nor wait.
pub fn observe(observer: impl Fn(Level, u64, &str) + Send + Sync + 'static) {
    // A second observer would be a mistake in this program, and the first one continues to work.
    let _ = OBSERVER.set(Box::new(observer));
}

/// The maximum level of lines that are observed even if they are not written.
static OBSERVED: AtomicU8 = AtomicU8::new(0);

/// Passes lines up to this level to the observer even if they are not written.
pub fn set_observed(verb: u8) {
    OBSERVED.store(verb, Ordering::Relaxed);
    super::set_wanted(super::verbosity().0);
}

pub(super) fn observed() -> u8 {
    OBSERVED.load(Ordering::Relaxed)
}

pub(super) fn notify(level: Level, verb: u64, message: &str) {
    if let Some(observer) = OBSERVER.get() {
        observer(level, verb, &clean(message));
    }
}
