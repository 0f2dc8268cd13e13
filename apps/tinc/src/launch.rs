//! `start` and `restart`: the daemon as another process of this program.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use adit_linux::process::{open_process, wait_for_end};
use adit_runtime::fault::Fault;

use crate::console::Console;
use crate::control::Kind;
use crate::control::client::{Client, PidFile};
use crate::net::Net;

/// How long a daemon may take to end. Its last scripts alone may take four seconds.
const PATIENCE: Duration = Duration::from_secs(30);

/// The name under which this program is the daemon.
const DAEMON: &str = "tincd";

/// Starts the daemon of a net unless it runs, and waits until it is up. `words` are further options for it.
///
/// # Errors
/// Fails if the daemon does. It has reported the reason then.
pub fn start(net: &Net, words: &[String], console: &mut Console<'_>) -> Result<(), Fault> {
    if let Some(file) = PidFile::read(net).ok().filter(PidFile::is_alive) {
        let of = net.name.as_ref().map(|name| format!(" for net `{name}'")).unwrap_or_default();
        console.note(&format!("A tincd is already running{of} with pid {}.", file.pid));
        return Ok(());
    }
    let mut command = Command::new("/proc/self/exe");
    command.arg0(DAEMON).args(arguments(net)).args(words);
    let status = command
        .status()
        .map_err(|error| Fault::environment(format!("Could not start {DAEMON}: {error}")))?;
    if status.success() { Ok(()) } else { Err(Fault::operator(format!("Error starting {DAEMON}"))) }
}

/// Stops the daemon of a net if it runs, and starts it again.
///
/// # Errors
/// As [`start`], or if the daemon does not end.
pub fn restart(net: &Net, words: &[String], console: &mut Console<'_>) -> Result<(), Fault> {
    // As in tinc, a daemon that does not run is a remark.
    match stop(net) {
        Ok(true) => {}
        Ok(false) => {
            return Err(Fault::environment(
                "The daemon did not end in time; it was not started again",
            ));
        }
        Err(fault) => console.note(&fault.to_string()),
    }
    start(net, words, console)
}

/// Stops the daemon of a net, and waits until its process has ended. Returns whether it has.
///
/// # Errors
/// Fails if no daemon runs, or if it does not answer.
pub fn stop(net: &Net) -> Result<bool, Fault> {
    let mut client = Client::connect(net)?;
    let process = u32::try_from(client.pid).ok().and_then(|pid| open_process(pid).ok());
    // A daemon that ends may not answer.
    let _ = client.call(Kind::Stop, "");
    client.wait_for_end();
    // Without a descriptor, the process has ended, or the kernel is too old.
    Ok(process.is_none_or(|process| wait_for_end(&process, PATIENCE).unwrap_or(false)))
}

/// Returns the options that select a net.
fn arguments(net: &Net) -> Vec<OsString> {
    let name = net.name.clone().unwrap_or_else(|| ".".to_owned());
    let words: [OsString; 6] = [
        "-n".into(),
        name.into(),
        "-c".into(),
        net.config.clone().into(),
        "--pidfile".into(),
        net.pid_file.clone().into(),
    ];
    words.into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Folder;

    #[test]
    fn a_daemon_that_runs_is_not_started_again() {
        let folder = Folder::new();
        folder.write("../pid", &format!("{} COOKIE 127.0.0.1 port 655\n", std::process::id()));
        let said = folder.run(b"", false, |net, console| start(net, &[], console));
        let expected = format!("A tincd is already running with pid {}.\n", std::process::id());
        assert_eq!((said.notes, said.error), (expected, None));
    }
}
