//! Background, pid file, user: what the process does once, however often it restarts.

use std::io::Write;
use std::path::{Path, PathBuf};

use adit_linux::notify::Notifier;
use adit_linux::privileges::{Capability, protect_memory};
use adit_linux::process::{daemonize, set_nice};
use adit_openvpn::config::Options;

use crate::fault::Fault;
use crate::helper::{self, Duty, Running, files};
use crate::rights::{self, Wanted};
use crate::say;

/// What was done already.
#[derive(Debug, Default)]
pub(crate) struct Ground {
    logging: bool,
    settled: bool,
    dropped: bool,
    /// Another user than the one who started it.
    changed_user: bool,
    /// Ends with this process.
    helper: Option<Running>,
    notifier: Option<Notifier>,
}

impl Ground {
    pub(crate) fn log_started(&mut self) {
        self.logging = true;
    }

    pub(crate) fn logging(&self) -> bool {
        self.logging
    }

    /// Goes to the background, takes the priority, writes the pid file, starts the helper.
    pub(crate) fn settle(
        &mut self,
        options: &Options,
        duty: &Duty,
        piped: &[(PathBuf, Vec<u8>)],
    ) -> Result<(), Fault> {
        if std::mem::replace(&mut self.settled, true) {
            return Ok(());
        }
        let process = &options.process;
        // Best effort: a debugger's user knows what they do; everybody else's keys stay out of cores.
        let _ = protect_memory();
        self.notifier = Notifier::from_env()
            .map_err(|e| Fault::environment(format!("cannot reach the service manager: {e}")))?;
        if process.nice != 0 {
            set_nice(process.nice)
                .map_err(|e| Fault::environment(format!("nice {}: {e}", process.nice)))?;
        }
        if process.daemon.is_some() {
            daemonize(true)
                .map_err(|e| Fault::environment(format!("cannot go to the background: {e}")))?;
        }
        if let Some(path) = &process.pid_file {
            write_pid(path)?;
        }
        // Of the process in the background, and still root.
        self.helper = helper::start(duty.clone(), piped)?;
        Ok(())
    }

    /// Becomes a user of its own, once. Must run before any thread is started. `needed` are the
    /// capabilities without a helper.
    pub(crate) fn drop_privileges(
        &mut self,
        options: &Options,
        needed: &[Capability],
    ) -> Result<(), Fault> {
        let process = &options.process;
        let is_root = nix::unistd::geteuid().is_root();
        // Started without rights: as few as they are, they are the operator's choice.
        if self.dropped || (!is_root && !process.mlock) {
            if !self.dropped && (process.user.is_some() || process.group.is_some()) {
                tracing::warn!("not started as root: 'user' and 'group' have no effect");
            }
            self.dropped |= !is_root;
            return Ok(());
        }
        let wanted = Wanted {
            user: process.user.clone(),
            group: process.group.clone(),
            lock_memory: process.mlock,
        };
        // Without a helper and without `user` the process stays able to start again.
        let stays = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_BIND_SERVICE];
        let needed = if wanted.user.is_some() { needed } else { &stays };
        let dropped = rights::drop(&wanted, self.helper.is_some(), needed)?;
        self.dropped = true;
        self.changed_user = dropped.user.is_some();
        if let Some(name) = &dropped.group {
            say!(1, "GID set to {name}");
        }
        if let Some(name) = &dropped.user {
            say!(1, "UID set to {name}");
        }
        if !dropped.kept.is_empty() {
            let names: Vec<String> = dropped.kept.iter().map(ToString::to_string).collect();
            say!(1, "Capabilities retained: {}", names.join(" "));
        }
        Ok(())
    }

    /// Whether rights are gone that a restart would need.
    pub(crate) fn has_dropped(&self) -> bool {
        self.changed_user && self.helper.is_none()
    }

    /// "Initialization Sequence Completed", for whoever waits for it.
    pub(crate) fn ready(&self) {
        say!(1, "Initialization Sequence Completed");
        if let Some(notifier) = &self.notifier {
            // A manager that is gone does not want to know.
            let _ = notifier.ready("Initialization Sequence Completed");
        }
        adit_linux::memory::forget_code();
    }
}

fn write_pid(path: &Path) -> Result<(), Fault> {
    let written =
        files::write_public(path).and_then(|mut file| writeln!(file, "{}", std::process::id()));
    written.map_err(|e| {
        Fault::operator(format!("writepid: cannot write '{}': {e}: check the path", path.display()))
    })
}
