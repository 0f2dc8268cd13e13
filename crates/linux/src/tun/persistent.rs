//! Devices that outlive the process that creates them.

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::fs::OFlags;

use super::{TunError, TunMode, checked_name, open_and_set};

/// Creates a device that stays when it is closed. The owner and the members of the group may open it without privileges.
/// With the name `tun` or `tap`, the kernel chooses the next free number. Returns the device's name.
///
/// # Errors
/// Fails as [`super::TunDevice::open`] does.
pub fn make_persistent(
    name: &str,
    mode: TunMode,
    owner: Option<u32>,
    group: Option<u32>,
) -> Result<String, TunError> {
    let (fd, name) = attach(name, mode)?;
    if let Some(owner) = owner {
        set(&fd, libc::TUNSETOWNER, owner, "setting its owner (TUNSETOWNER)")?;
    }
    if let Some(group) = group {
        set(&fd, libc::TUNSETGROUP, group, "setting its group (TUNSETGROUP)")?;
    }
    set(&fd, libc::TUNSETPERSIST, 1, "making it persistent (TUNSETPERSIST)")?;
    Ok(name)
}

/// Removes a persistent device, unless another process has it open. Returns its name.
///
/// # Errors
/// Fails as [`super::TunDevice::open`] does.
pub fn remove_persistent(name: &str, mode: TunMode) -> Result<String, TunError> {
    let (fd, name) = attach(name, mode)?;
    set(&fd, libc::TUNSETPERSIST, 0, "removing it (TUNSETPERSIST)")?;
    Ok(name)
}

fn attach(name: &str, mode: TunMode) -> Result<(OwnedFd, String), TunError> {
    let kind = match mode {
        TunMode::Tun => libc::IFF_TUN,
        TunMode::Tap => libc::IFF_TAP,
    } | libc::IFF_NO_PI;
    let pattern = match name {
        "tun" => "tun%d",
        "tap" => "tap%d",
        name => checked_name(name)?,
    };
    let open = |kind| open_and_set(pattern, kind, OFlags::RDWR | OFlags::CLOEXEC);
    match open(kind) {
        // A device that was created with several queues.
        Err(TunError::OtherKind(_)) => open(kind | libc::IFF_MULTI_QUEUE),
        attached => attached,
    }
}

fn set(fd: &OwnedFd, request: libc::Ioctl, value: u32, step: &'static str) -> Result<(), TunError> {
    // SAFETY: these requests take their argument by value; the descriptor is ours and open.
    let rc = unsafe { libc::ioctl(fd.as_raw_fd(), request, libc::c_ulong::from(value)) };
    if rc < 0 { Err(TunError::Os(step, io::Error::last_os_error())) } else { Ok(()) }
}
