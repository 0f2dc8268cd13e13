//! Drops privileges, so that the network process runs as a separate user without capabilities.

use std::path::PathBuf;

use adit_linux::privileges::{
    self, Capability, PrivilegeError, Privileges, Profile, Violation, find_group, find_user,
};

use crate::fault::Fault;
use crate::helper::files;
use crate::say;

/// The system user that packages create, and the one that every system has.
const USERS: [&str; 2] = ["adit", "nobody"];

/// The privilege options of the configuration.
#[derive(Clone, Debug, Default)]
pub struct PrivilegeOptions {
    /// The user, or `None` for the first existing one of `USERS`.
    pub user: Option<String>,
    /// The group, or `None` for the user's own.
    pub group: Option<String>,
    /// `chroot`.
    pub root: Option<PathBuf>,
    /// `mlock`.
    pub lock_memory: bool,
}

/// The result of dropping privileges.
#[derive(Clone, Debug, Default)]
pub struct DroppedPrivileges {
    /// The user that the process runs as now, if it was changed.
    pub user: Option<String>,
    /// The group, if it was configured by name.
    pub group: Option<String>,
    /// The remaining capabilities.
    pub kept: Vec<Capability>,
}

/// Drops all privileges except `needed`, or all of them if there is a helper process. This is irreversible, and must
/// happen before threads start.
///
/// # Errors
/// Fails if the user does not exist or a privilege could not be dropped. The process must not continue.
pub fn drop(
    wanted: &PrivilegeOptions,
    helped: bool,
    needed: &[Capability],
) -> Result<DroppedPrivileges, Fault> {
    let kept = if helped { Vec::new() } else { needed.to_vec() };
    // CAP_NET_RAW is kept only for a bridge's packet sockets.
    let profile =
        if kept.contains(&Capability::CAP_NET_RAW) { Profile::Bridge } else { Profile::Daemon };
    let mut privileges = Privileges {
        keep: kept.clone(),
        root: wanted.root.clone(),
        lock_memory: wanted.lock_memory,
        seccomp: Some((profile, Violation::Refuse)),
        ..Privileges::default()
    };
    let mut dropped = DroppedPrivileges { kept, ..DroppedPrivileges::default() };
    if nix::unistd::geteuid().is_root() {
        choose_user(wanted, &mut privileges, &mut dropped)?;
    } else if wanted.user.is_some() || wanted.group.is_some() {
        tracing::warn!("not started as root: 'user' and 'group' have no effect");
    }
    privileges.drop().map_err(|e| Fault::environment(e.to_string()))?;
    if wanted.root.is_some() {
        files::leave_to_helper();
    }
    Ok(dropped)
}

/// Does the same as [`drop`], for a program in which the operator can choose only the user.
///
/// # Errors
/// See [`drop`].
pub fn become_user(
    program: &str,
    user: Option<&String>,
    helped: bool,
    needed: &[Capability],
) -> Result<(), Fault> {
    let wanted = PrivilegeOptions { user: user.cloned(), ..PrivilegeOptions::default() };
    if let Some(user) = drop(&wanted, helped, needed)?.user {
        say!(1, "the {program} runs as the user {user}");
    }
    Ok(())
}

fn choose_user(
    wanted: &PrivilegeOptions,
    privileges: &mut Privileges,
    dropped: &mut DroppedPrivileges,
) -> Result<(), Fault> {
    let operator = |e: PrivilegeError| Fault::operator(e.to_string());
    let (name, (user, own_group)) = match &wanted.user {
        Some(name) => (name.clone(), find_user(name).map_err(operator)?),
        None => {
            let known = |name: &&str| Some(((*name).to_owned(), find_user(name).ok()?));
            let Some(found) = USERS.iter().find_map(known) else {
                tracing::warn!("user: none of {USERS:?} exists: the process stays root");
                return Ok(());
            };
            found
        }
    };
    let group = wanted.group.as_deref().map(find_group).transpose().map_err(operator)?;
    let group = group.unwrap_or(own_group);
    // A configured user must exist and be usable, or the start fails. The default user is used if possible.
    if wanted.user.is_none()
        && let Some(why) = privileges::obstacle(user, group)
    {
        tracing::warn!(
            "user: cannot become {name}: {why}: the process stays root, with few privileges"
        );
        return Ok(());
    }
    privileges.user = Some(user);
    privileges.group = Some(group);
    dropped.user = Some(name);
    dropped.group.clone_from(&wanted.group);
    Ok(())
}

/// Raises the descriptor limit, because streams and sockets use a descriptor each and the usual limit of 1024 is meant
/// for programs that use `select`.
pub fn raise_descriptor_limit() {
    use nix::sys::resource::{Resource, getrlimit, setrlimit};
    if let Ok((soft, hard)) = getrlimit(Resource::RLIMIT_NOFILE)
        && soft < hard
        && let Err(e) = setrlimit(Resource::RLIMIT_NOFILE, hard, hard)
    {
        tracing::debug!("open files: limit stays at {soft}: {e}");
    }
}
