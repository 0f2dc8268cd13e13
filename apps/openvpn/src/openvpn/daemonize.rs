//! Daemonising, the pid file and privileges: the steps that a process performs only once, even if it restarts.

use std::cell::Cell;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use adit_linux::notify::Notifier;
use adit_linux::privileges::{Capability, protect_memory};
use adit_linux::process::{daemonize, set_nice};
use adit_openvpn::config::{self, Options};

use super::environment::Environment;
use super::scripts;
use crate::config_files::route_names;
use crate::helper_duty::OPENVPN;
use crate::plugin_host::Plugins;
use crate::token_host::Tokens;
use adit_runtime::fault::Fault;
use adit_runtime::helper::{self, Running, files};
use adit_runtime::privileges::{self, PrivilegeOptions};
use adit_runtime::say;

/// The steps that have been performed.
#[derive(Debug, Default)]
pub(crate) struct Daemonizer {
    logging: bool,
    settled: bool,
    dropped: bool,
    /// Whether the process runs as another user than the one that started it.
    changed_user: bool,
    /// The helper process. It ends with this process.
    helper: Option<Running>,
    notifier: Option<Notifier>,
    /// Whether the service manager has been notified (`READY=1`).
    told_ready: Cell<bool>,
    pid_file: Option<PidFile>,
    /// The plugins, with the lines of the configuration that name them.
    plugins: Option<(Plugins, Vec<config::Plugin>)>,
    /// The tokens, with the lines of the configuration about them.
    tokens: Option<(Tokens, Box<config::Pkcs11>)>,
}

impl Daemonizer {
    /// Opens the plugins as root, or, after SIGHUP, opens them again.
    ///
    /// # Errors
    /// A plugin cannot be used, or others are configured than at the start.
    pub(crate) fn open_plugins(&mut self, options: &Options) -> Result<(), Fault> {
        let configured = &options.process.plugins;
        match &self.plugins {
            Some((plugins, former)) if former == configured => {
                plugins.reopen(Environment::new(options).pairs())
            }
            None if configured.is_empty() => Ok(()),
            None if !self.settled => {
                // Passwords of clients stay out of core dumps.
                let _ = protect_memory();
                let env = Environment::new(options).pairs();
                let plugins = Plugins::start(options, env, scripts::temporary(options))?;
                self.plugins = plugins.map(|plugins| (plugins, configured.clone()));
                Ok(())
            }
            _ => Err(Fault::operator(
                "plugin: the lines have changed since the start: restart the process to load other plugins",
            )),
        }
    }

    /// Returns the open plugins.
    pub(crate) fn opened_plugins(&self) -> Option<&Plugins> {
        self.plugins.as_ref().map(|(plugins, _)| plugins)
    }

    /// Returns the open plugins for one run of the tunnel. Call it once inside a runtime.
    ///
    /// # Errors
    /// The process of the plugins cannot be watched.
    pub(crate) fn plugins(&self) -> Result<Option<Plugins>, Fault> {
        let Some(plugins) = self.opened_plugins() else { return Ok(None) };
        plugins.watch()?;
        plugins.end_with_host();
        Ok(Some(plugins.clone()))
    }

    /// Loads the modules of tokens as root. After SIGHUP they stay, so that the PIN is not needed again.
    ///
    /// # Errors
    /// A module cannot be used, or others are configured than at the start.
    pub(crate) fn open_tokens(&mut self, options: &Options) -> Result<Option<Tokens>, Fault> {
        let configured = options.tls.pkcs11.as_ref();
        match (&self.tokens, configured) {
            (Some((tokens, former)), Some(configured))
                if former.providers == configured.providers
                    && former.pin_cache == configured.pin_cache => {}
            (None, None) => return Ok(None),
            (None, Some(configured)) if !self.settled => {
                // PINs stay out of core dumps.
                let _ = protect_memory();
                let tokens = Tokens::start(options)?;
                self.tokens = tokens.map(|tokens| (tokens, Box::new(configured.clone())));
            }
            _ => {
                return Err(Fault::operator(
                    "pkcs11-providers: the lines have changed since the start: restart the process to load other modules",
                ));
            }
        }
        Ok(self.tokens())
    }

    /// Returns the tokens.
    pub(crate) fn tokens(&self) -> Option<Tokens> {
        self.tokens.as_ref().map(|(tokens, _)| tokens.clone())
    }

    pub(crate) fn log_started(&mut self) {
        self.logging = true;
    }

    pub(crate) fn logging(&self) -> bool {
        self.logging
    }

    /// Goes to the background, unless a service manager waits for notifications, sets the priority, writes the pid file and starts the helper.
    pub(crate) fn settle(
        &mut self,
        options: &Options,
        args: &[String],
        piped: &[(PathBuf, Vec<u8>)],
    ) -> Result<(), Fault> {
        if std::mem::replace(&mut self.settled, true) {
            return Ok(());
        }
        let process = &options.process;
        // This is best effort. It keeps keys out of core dumps, but does not stop a user with a debugger.
        let _ = protect_memory();
        self.notifier = Notifier::from_env()
            .map_err(|e| Fault::environment(format!("cannot reach the service manager: {e}")))?;
        if process.nice != 0 {
            set_nice(process.nice)
                .map_err(|e| Fault::environment(format!("nice {}: {e}", process.nice)))?;
        }
        // As in openvpn, the process that the service manager has started stays the main one.
        if process.daemon.is_some() && self.notifier.is_none() {
            daemonize(true)
                .map_err(|e| Fault::environment(format!("cannot go to the background: {e}")))?;
        }
        if let Some(path) = &process.pid_file {
            self.pid_file = Some(PidFile::write(path)?);
        }
        // The helper is a child of the background process, which is still root.
        self.helper = helper::start(&OPENVPN, &(args, route_names()), piped)?;
        Ok(())
    }

    /// Removes files that must not remain after the process ends.
    pub(crate) fn leave(&mut self) {
        if let Some(notifier) = &self.notifier {
            let _ = notifier.stopping();
        }
        if let Some((plugins, _)) = self.plugins.take() {
            plugins.finish();
        }
        if let Some(pid_file) = self.pid_file.take() {
            pid_file.remove();
        }
    }

    /// Notifies the service manager before the first attempt to reach the peer, because a unit of `Type=notify` must
    /// not fail because a server is unreachable.
    pub(crate) fn waiting(&self) {
        if !self.told_ready.get() {
            self.tell("Pre-connection initialization successful");
        }
    }

    fn tell(&self, status: &str) {
        let Some(notifier) = &self.notifier else { return };
        // If the service manager is gone, there is no recipient for the message.
        let _ = if !self.told_ready.replace(true) {
            notifier.ready(status)
        } else {
            notifier.status(status)
        };
    }

    /// Changes to an unprivileged user, once. Must run before any thread is started. `needed` are the capabilities to
    /// keep if there is no helper.
    pub(crate) fn drop_privileges(
        &mut self,
        options: &Options,
        needed: &[Capability],
    ) -> Result<(), Fault> {
        let process = &options.process;
        let is_root = nix::unistd::geteuid().is_root();
        if let Some(root) = &process.chroot
            && !self.dropped
            && self.helper.is_none()
        {
            // Without the helper, the process could read no file outside the directory again.
            return Err(Fault::environment(format!(
                "chroot to '{}' failed: it needs root and the helper process; start the program as root, or \
                 remove chroot",
                root.display()
            )));
        }
        // The process was started without root, so the operator chose its privileges.
        if self.dropped || (!is_root && !process.mlock) {
            if !self.dropped && (process.user.is_some() || process.group.is_some()) {
                tracing::warn!("not started as root: 'user' and 'group' have no effect");
            }
            self.dropped |= !is_root;
            return Ok(());
        }
        if let Some((tokens, _)) = &self.tokens {
            tokens.become_user()?;
        }
        let wanted = PrivilegeOptions {
            user: process.user.clone(),
            group: process.group.clone(),
            root: process.chroot.clone(),
            lock_memory: process.mlock,
        };
        // Without a helper and without `user`, the process keeps the privileges to restart.
        let stays = [Capability::CAP_NET_ADMIN, Capability::CAP_NET_BIND_SERVICE];
        let needed = if wanted.user.is_some() { needed } else { &stays };
        let dropped = privileges::drop(&wanted, self.helper.is_some(), needed)?;
        self.dropped = true;
        self.changed_user = dropped.user.is_some();
        if let Some(root) = &process.chroot {
            say!(1, "chroot to '{}' and cd to '/' succeeded", root.display());
        }
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

    /// Returns whether privileges that a restart needs have been dropped.
    pub(crate) fn has_dropped(&self) -> bool {
        self.changed_user && self.helper.is_none()
    }

    /// Prints "Initialization Sequence Completed", for programs that wait for it.
    pub(crate) fn ready(&self) {
        say!(1, "Initialization Sequence Completed");
        self.tell("Initialization Sequence Completed");
    }
}

/// The pid file (`writepid`).
#[derive(Debug)]
struct PidFile {
    path: PathBuf,
    file: File,
}

impl PidFile {
    fn write(path: &Path) -> Result<Self, Fault> {
        let written = files::write_public(path)
            .and_then(|mut file| writeln!(file, "{}", std::process::id()).map(|()| file));
        let file = written.map_err(|e| {
            let path = path.display();
            Fault::operator(format!("writepid: cannot write '{path}': {e}: check the path"))
        })?;
        // The working directory may be different when the process ends.
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        Ok(Self { path, file })
    }

    /// Removes the file, unless another program has written its own there. If the process may no longer remove it, the
    /// file is emptied, because an empty file names no process.
    fn remove(self) {
        let ours = self.file.metadata().is_ok_and(|ours| {
            files::metadata(&self.path)
                .is_ok_and(|now| (now.dev(), now.ino()) == (ours.dev(), ours.ino()))
        });
        let id = format!("{}\n", std::process::id());
        if !ours || files::contents(&self.path).is_ok_and(|text| text != id.as_bytes()) {
            return;
        }
        if let Err(e) = files::remove(&self.path) {
            let emptied = self.file.set_len(0).is_ok();
            let then = if emptied { "it is emptied instead" } else { "it stays" };
            tracing::warn!("writepid: cannot remove '{}': {e}; {then}", self.path.display());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_pid_file_goes_with_its_process_and_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pid");
        let file = PidFile::write(&path).unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), format!("{}\n", std::process::id()));
        file.remove();
        assert!(!path.exists());

        let file = PidFile::write(&path).unwrap();
        fs::write(&path, "1\n").unwrap();
        file.remove();
        assert_eq!(fs::read_to_string(&path).unwrap(), "1\n", "written by another");

        let file = PidFile::write(&path).unwrap();
        fs::remove_file(&path).unwrap();
        fs::write(&path, format!("{}\n", std::process::id())).unwrap();
        file.remove();
        assert!(path.exists(), "another file");
    }
}
