//! Reports each skipped check by name, so none is skipped silently.

use std::fs::File;
use std::io::Write;
use std::path::Path;

/// The variable that names the file in which the skipped checks of a whole run are collected, one per line.
pub const COLLECTED_IN: &str = "ADIT_SKIPPED";

/// Ends a test that needs root if it runs without root, and counts it as skipped.
#[macro_export]
macro_rules! needs_root {
    () => {
        if $crate::skip::without_root() {
            return;
        }
    };
}

/// Returns whether the process does not run as root, and in that case counts the calling test as skipped. For
/// [`needs_root!`].
///
/// # Panics
/// As [`skip`].
pub fn without_root() -> bool {
    let root = nix::unistd::geteuid().is_root();
    if !root {
        let thread = std::thread::current();
        skip(thread.name().unwrap_or("a test"), NEEDS_ROOT);
    }
    !root
}

/// The reason of [`needs_root!`].
pub const NEEDS_ROOT: &str = "needs root";

/// Reports that a check does not run, and why; the last line of `make test` lists all of them.
///
/// # Panics
/// The file in which they are collected cannot be written.
pub fn skip(check: &str, why: &str) {
    eprintln!("SKIPPED: {check}: {why}");
    if let Some(path) = std::env::var_os(COLLECTED_IN) {
        record(Path::new(&path), check, why).unwrap();
    }
}

/// Adds a line to the file that collects skipped checks, by a single write: the lines of concurrent processes stay
/// whole.
///
/// # Errors
/// It cannot be written.
pub fn record(file: &Path, check: &str, why: &str) -> std::io::Result<()> {
    let mut file = File::options().append(true).create(true).open(file)?;
    file.write_all(format!("{check}: {why}\n").as_bytes())
}
