//! The privileges of a serving process, and the work of its helper.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use adit_linux::privileges::{Capability, Privileges, Profile, Violation, protect_memory};
use ipnet::IpNet;

use super::helper_duty::{SERVER, ServerDuty, ServerRequest};
use super::host_state::HostState;
use super::settings::{Nat, Settings};
use adit_runtime::fault::Fault;
use adit_runtime::helper::{self, Request, Running};
use adit_runtime::metrics::Config as MetricsConfig;
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
    /// This process. The changes are undone when it is dropped.
    Own(Box<HostState>),
    /// The helper. It undoes the changes when this process ends.
    Helper(Running),
}

impl HostChanges {
    /// Takes the instance's lock, undoes the changes of a killed predecessor, and prepares the host. `behind` are the
    /// networks behind clients; a helper reads them itself. `metrics` overrides the settings. With `take_over`, the changes of
    /// the predecessor remain, because its sessions continue.
    ///
    /// # Errors
    /// Fails if another server runs, or a change failed.
    pub(super) fn prepare(
        paths: &Paths,
        settings: &Settings,
        behind: &[IpNet],
        metrics: Option<MetricsConfig>,
        take_over: bool,
    ) -> Result<Self, Fault> {
        let duty = ServerDuty { dir: paths.dir.clone(), metrics };
        if let Some(running) = helper::start(&SERVER, &duty, &[])? {
            let this = Self::Helper(running);
            let request = if take_over { ServerRequest::TakeOver } else { ServerRequest::Prepare };
            this.ask(Request::own(&request)?)?;
            return Ok(this);
        }
        let mut host_state = claim(paths, std::process::id(), take_over)?;
        host_state.prepare(settings, behind)?;
        Ok(Self::Own(Box::new(host_state)))
    }

    /// Leaves the changes to the process that continues the sessions. The service has asked a helper to do so.
    pub(super) fn leave(&mut self) {
        if let Self::Own(host_state) = self {
            host_state.leave();
        }
    }

    /// Loads the firewall rules again, for the running settings with this `nat`, and for these networks behind clients.
    ///
    /// # Errors
    /// Fails if nft refuses the rules.
    pub(super) fn load_rules(
        &mut self,
        running: &Settings,
        nat: Nat,
        behind: &[IpNet],
    ) -> Result<(), Fault> {
        match self {
            Self::Own(host_state) => {
                host_state.filter(&Settings { nat, ..running.clone() }, behind)
            }
            Self::Helper(_) => self.ask(Request::own(&ServerRequest::Masquerade(nat))?),
        }
    }

    /// Makes the helper read the settings again, before this process does.
    ///
    /// # Errors
    /// Fails if the settings are wrong.
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

    /// Becomes the configured user without capabilities, or keeps the privileges that are needed to change the host.
    /// This is irreversible, and must happen before threads start.
    ///
    /// # Errors
    /// Fails if privileges could not be dropped. The server must not run with privileges that the operator believes to
    /// be dropped.
    pub(super) fn drop_privileges(&self, paths: &Paths, settings: &Settings) -> Result<(), Fault> {
        match self {
            Self::Own(_) => drop_all_but_needed(paths),
            Self::Helper(_) => privileges::become_user("server", settings.user.as_ref(), true, &[]),
        }
    }
}

/// Takes the instance's lock for the process `server`. With `take_over`, continues with the changes of its predecessor.
/// Otherwise undoes them, and logs that.
///
/// # Errors
/// Fails if another server runs.
pub(crate) fn claim(paths: &Paths, server: u32, take_over: bool) -> Result<HostState, Fault> {
    if take_over {
        return HostState::take_over(paths, server);
    }
    let (host_state, leftover) = HostState::claim(paths, server)?;
    if leftover {
        say!(1, "host state: restored after a killed server");
    }
    Ok(host_state)
}

/// Without a helper, drops every capability except those that are needed, and all system calls except those of a daemon
/// that starts programs.
fn drop_all_but_needed(paths: &Paths) -> Result<(), Fault> {
    let mut keep = vec![Capability::CAP_NET_ADMIN];
    if !open_to_root(paths) {
        // The directory is in a user's private home. Without this capability, even root has no access to it.
        keep.push(Capability::CAP_DAC_OVERRIDE);
        say!(2, "the directories are accessible only to another user: CAP_DAC_OVERRIDE is kept");
    }
    let seccomp = Some((Profile::DaemonWithPrograms, Violation::Refuse));
    let privileges = Privileges { keep, seccomp, ..Privileges::default() };
    privileges.drop().map_err(|error| Fault::environment(error.to_string()))
}

/// Returns whether root without the capability to override file modes can read and write all required files.
fn open_to_root(paths: &Paths) -> bool {
    let folders = [&paths.config, &paths.data, &paths.run];
    let owned = folders.iter().all(|folder| fs::metadata(folder).is_ok_and(|m| m.uid() == 0));
    let passable = |folder: &Path| {
        fs::metadata(folder).is_ok_and(|meta| meta.uid() == 0 || meta.mode() & 0o001 != 0)
    };
    owned && folders.iter().all(|folder| folder.ancestors().all(passable))
}
