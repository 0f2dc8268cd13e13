use std::path::Path;

use nix::unistd::{Gid, Uid, chdir, chroot, setgroups, setresgid, setresuid};

use super::{PrivilegeError, step, verify_ids};

/// Changes the root directory, the group and the user of this process for good, as far as they are given. The working
/// directory is then the root directory. Supplementary groups are dropped with the group, and all capabilities with the
/// user. Unlike after [`super::Privileges::drop`], the programs that the process starts may gain privileges, for example
/// through `sudo`.
///
/// # Errors
/// A step failed. The process must not continue.
pub fn change_identity(
    root: Option<&Path>,
    group: Option<Gid>,
    user: Option<Uid>,
) -> Result<(), PrivilegeError> {
    if let Some(root) = root {
        step("changing the root directory", chroot(root))?;
        step("entering the root directory", chdir("/"))?;
    }
    if let Some(group) = group {
        step("setting supplementary groups", setgroups(&[group]))?;
        step("setting the group", setresgid(group, group, group))?;
    }
    if let Some(user) = user {
        step("setting the user", setresuid(user, user, user))?;
        let superuser = Uid::from_raw(0);
        if !user.is_root() && setresuid(superuser, superuser, superuser).is_ok() {
            return Err(PrivilegeError::StillThere("the user root"));
        }
    }
    verify_ids(user, group)
}
