//! Privileges of a serving process: what it keeps, and what its helper does.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use adit_linux::privileges::{Capability, Privileges, Profile, Violation, protect_memory};

use super::helper_duty::{SERVER, ServerRequest};
use super::host_state::HostState;
use super::settings::{Nat, Settings};
use adit_runtime::fault::Fault;
use adit_runtime::helper::{self, Request, Running};
use adit_runtime::paths::Paths;
use adit_runtime::privileges;
use adit_runtime::say;

/// Disables core dumps and debuggers, because the memory contains keys.
pub(super) fn protect_secrets() {
    if let Err(error) = protect_memory() {
        tracing::warn!("memory protection: not available: keys may reach core dumps: {error}");
    }
}

/// The owner of the server's host state.
#[derive(Debug)]
pub(super) enum HostChanges {
    /// This process. Undone when it is dropped.
    Own(Box<HostState>),
    /// The helper, which undoes it when this process ends.
    Helper(Running),
}

impl HostChanges {
    /// Takes the instance's lock, undoes what a killed predecessor left, and prepares the machine.
    ///
    /// # Errors
    /// Another server runs, or something could not be changed.
    pub(super) fn prepare(paths: &Paths, settings: &Settings) -> Result<Self, Fault> {
        if let Some(running) = helper::start(&SERVER, &paths.dir, &[])? {
            let this = Self::Helper(running);
            this.ask(Request::own(&ServerRequest::Prepare)?)?;
            return Ok(this);
        }
        let mut host_state = claim(paths, std::process::id())?;
        host_state.prepare(settings)?;
        Ok(Self::Own(Box::new(host_state)))
    }

    /// Puts the firewall's rules in place again, of the running settings with this `nat`.
    ///
    /// # Errors
    /// nft refuses.
    pub(super) fn masquerade(&mut self, running: &Settings, nat: Nat) -> Result<(), Fault> {
        match self {
            Self::Own(host_state) => host_state.filter(&Settings { nat, ..running.clone() }),
            Self::Helper(_) => self.ask(Request::own(&ServerRequest::Masquerade(nat))?),
        }
    }

    /// Asks the helper to read the settings again, before this process does.
    ///
    /// # Errors
    /// They are wrong.
    pub(super) fn reload(&self) -> Result<(), Fault> {
        match self {
            Self::Own(_) => Ok(()),
            Self::Helper(_) => self.ask(Request::Reload),
        }
    }

    fn ask(&self, request: Request) -> Result<(), Fault> {
        match helper::current() {
            Some(helper) => Ok(helper.call(request, &[]).map(drop)?),
            None => Err(Fault::ours("helper: there is none")),
        }
    }

    /// Becomes the user of the settings, without capabilities, or keeps what changing the machine takes.
    /// Irreversible; before threads are started.
    ///
    /// # Errors
    /// Privileges could not be dropped; the server must not run with privileges that the operator believes dropped.
    pub(super) fn drop_privileges(&self, paths: &Paths, settings: &Settings) -> Result<(), Fault> {
        match self {
            Self::Own(_) => drop_all_but_needed(paths),
            Self::Helper(_) => privileges::become_user("server", settings.user.as_ref(), true, &[]),
        }
    }
}

/// Takes the instance's lock for the process `server`, and logs it if there was something to undo.
///
/// # Errors
/// Another server runs.
pub(crate) fn claim(paths: &Paths, server: u32) -> Result<HostState, Fault> {
    let (host_state, leftover) = HostState::claim(paths, server)?;
    if leftover {
        say!(1, "host state: restored after a killed server");
    }
    Ok(host_state)
}

/// Without a helper, drops every capability but the one for the network, and all system calls that a daemon which
/// starts programs does not make.
fn drop_all_but_needed(paths: &Paths) -> Result<(), Fault> {
    let mut keep = vec![Capability::CAP_NET_ADMIN];
    if !open_to_root(paths) {
        // A folder in a user's private home: without this even root stays outside.
        keep.push(Capability::CAP_DAC_OVERRIDE);
        say!(2, "the folders lie where only another user may go: file rights are kept");
    }
    let seccomp = Some((Profile::DaemonWithPrograms, Violation::Refuse));
    let privileges = Privileges { keep, seccomp, ..Privileges::default() };
    privileges.drop().map_err(|error| Fault::environment(error.to_string()))
}

/// Returns whether root without its power over file modes can read and write all required files.
fn open_to_root(paths: &Paths) -> bool {
    let folders = [&paths.config, &paths.data, &paths.run];
    let owned = folders.iter().all(|folder| fs::metadata(folder).is_ok_and(|m| m.uid() == 0));
    let passable = |folder: &Path| {
        fs::metadata(folder).is_ok_and(|meta| meta.uid() == 0 || meta.mode() & 0o001 != 0)
    };
    owned && folders.iter().all(|folder| folder.ancestors().all(passable))
}
