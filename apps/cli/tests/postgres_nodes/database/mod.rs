//! Runs `adit postgres` as a user does, with a database cluster for it.

use std::process::{Command, Output};

use adit_testbed::postgres::{Cluster, Options, missing, scratch};

pub(crate) const ADIT: &str = env!("CARGO_BIN_EXE_adit");

/// Returns `adit postgres` without the database variables of the test's own environment.
pub(crate) fn postgres() -> Command {
    let mut command = Command::new(ADIT);
    command.arg("postgres").env("HOME", "/nonexistent");
    for name in ["PGSERVICE", "PGHOST", "PGPASSWORD", "PGUSER", "PGDATABASE"] {
        command.env_remove(name);
    }
    command
}

/// Returns the output of a command on both streams.
pub(crate) fn text(output: &Output) -> String {
    let both = [output.stdout.as_slice(), output.stderr.as_slice()].concat();
    String::from_utf8(both).unwrap()
}

/// Returns the output of a command after checking that it succeeded.
pub(crate) fn good(words: &[&str], output: &Output) -> String {
    assert!(output.status.success(), "{words:?}: {}", text(output));
    text(output)
}

/// Checks that a command failed with this message.
pub(crate) fn refused(words: &[&str], output: &Output, said: &str) {
    let text = text(output);
    assert!(!output.status.success() && text.contains(said), "{words:?}: {text}");
}

/// Returns the URL for the next machine in the output.
pub(crate) fn invitation(printed: &str) -> String {
    printed.split_whitespace().find(|word| word.contains("#adit1-")).unwrap().to_owned()
}

/// Creates a cluster in a separate directory. Returns `None` if PostgreSQL is not installed, in
/// which case the test is skipped.
pub(crate) fn cluster() -> Option<(tempfile::TempDir, Cluster)> {
    if let Some(why) = missing() {
        let thread = std::thread::current();
        adit_testbed::skip::skip(thread.name().unwrap_or("postgres"), &why);
        return None;
    }
    let folder = scratch().unwrap();
    let cluster = Cluster::start(&folder.path().join("pg"), &Options::default()).unwrap();
    Some((folder, cluster))
}
