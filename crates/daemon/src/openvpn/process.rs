//! Background, pid file, user: what the process does once, however often it restarts.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;

use adit_linux::notify::Notifier;
use adit_linux::privileges::{
    Capability, Privileges, Profile, Violation, find_group, find_user, protect_memory,
};
use adit_linux::process::{daemonize, set_nice};
use adit_openvpn::config::Options;

use crate::fault::Fault;
use crate::say;

/// What was done already.
#[derive(Debug, Default)]
pub(crate) struct Ground {
    logging: bool,
    settled: bool,
    dropped: bool,
    notifier: Option<Notifier>,
}

impl Ground {
    pub(crate) fn log_started(&mut self) {
        self.logging = true;
    }

    pub(crate) fn logging(&self) -> bool {
        self.logging
    }

    /// Goes to the background, takes the priority, writes the pid file.
    pub(crate) fn settle(&mut self, options: &Options) -> Result<(), Fault> {
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
        match &process.pid_file {
            Some(path) => write_pid(path),
            None => Ok(()),
        }
    }

    /// Becomes `user` and `group`, once. Must run before any thread is started.
    pub(crate) fn drop_privileges(
        &mut self,
        options: &Options,
        keep: &[Capability],
    ) -> Result<(), Fault> {
        let process = &options.process;
        if self.dropped || (process.user.is_none() && process.group.is_none() && !process.mlock) {
            return Ok(());
        }
        let operator = |e: adit_linux::privileges::PrivilegeError| Fault::operator(e.to_string());
        let user = process.user.as_deref().map(find_user).transpose().map_err(operator)?;
        let group = process.group.as_deref().map(find_group).transpose().map_err(operator)?;
        let is_root = nix::unistd::geteuid().is_root();
        if !is_root && (user.is_some() || group.is_some()) {
            tracing::warn!("not started as root: 'user' and 'group' have no effect");
            return Ok(());
        }
        // `mlock` alone changes nothing about who the process is: what a restart needs stays.
        let stays = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_BIND_SERVICE];
        let keep = if user.is_some() { keep } else { &stays };
        let privileges = Privileges {
            user: user.map(|(user, _)| user),
            group,
            keep: keep.to_vec(),
            lock_memory: process.mlock,
            seccomp: Some((Profile::Daemon, Violation::Refuse)),
        };
        privileges.drop().map_err(|e| Fault::environment(e.to_string()))?;
        self.dropped = true;
        if let Some(name) = &process.group {
            say!(1, "GID set to {name}");
        }
        if let Some(name) = &process.user {
            say!(1, "UID set to {name}");
        }
        if !keep.is_empty() {
            let names: Vec<String> = keep.iter().map(ToString::to_string).collect();
            say!(1, "Capabilities retained: {}", names.join(" "));
        }
        Ok(())
    }

    /// Whether rights are gone that a restart would need.
    pub(crate) fn has_dropped(&self) -> bool {
        self.dropped
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
    let written = OpenOptions::new()
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .and_then(|mut file| writeln!(file, "{}", std::process::id()));
    written.map_err(|e| {
        Fault::operator(format!("writepid: cannot write '{}': {e}: check the path", path.display()))
    })
}
