//! Dropping privileges irrevocably: another user, few capabilities.
//!
//! The order of a daemon: open what needs root (TUN, low ports, key files), then call [`Privileges::drop`], then start threads. The kernel
//! keeps capabilities and filters per thread, and only threads started afterwards inherit them, so `drop` refuses to run while there are
//! others. Every error here must end the process: otherwise it would run with privileges that the operator believes dropped.

mod identity;
mod seccomp;

pub use caps::Capability;
pub use identity::change_identity;
pub use seccomp::{Profile, Violation, apply as apply_seccomp, confine_worker};

use std::collections::HashSet;
use std::fmt;
use std::io;
use std::path::PathBuf;

use caps::CapSet;
use nix::sys::prctl;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Gid, Group, Pid, Uid, User};

use crate::process;

/// The minimum amount of memory that must be lockable if all memory is locked.
const LOCKED_MEMORY: u64 = 100 << 20;

/// The privileges that remain.
#[derive(Clone, Debug, Default)]
pub struct Privileges {
    /// The user to switch to, or `None` for no change.
    pub user: Option<Uid>,
    /// The group to switch to. `None` selects the primary group of `user`, or no change without a user. With a user or
    /// a group, supplementary groups are dropped.
    pub group: Option<Gid>,
    /// The capabilities to keep (for example `CAP_NET_ADMIN` to change routes). All others are dropped, including from
    /// the bounding set, so that no program started later regains them.
    pub keep: Vec<Capability>,
    /// The directory that becomes the root directory and the working directory. It confines the process only if `user`
    /// changes or no capability remains, as `chroot(2)` says.
    pub root: Option<PathBuf>,
    /// Whether to keep all memory, now and later, out of swap.
    pub lock_memory: bool,
    /// The system calls to allow, and the effect of any other call.
    pub seccomp: Option<(Profile, Violation)>,
}

/// The reason why privileges could not be dropped. The process must not continue.
#[derive(Debug)]
pub enum PrivilegeError {
    /// No such user.
    NoUser(String),
    /// No such group.
    NoGroup(String),
    /// Other threads are running and would keep their privileges (a bug in adit: a wrong order at start-up).
    Threads(usize),
    /// A capability that must be kept is not held by the process.
    Missing(Capability),
    /// Memory must be locked, but the limit is this many bytes and cannot be raised.
    LockLimit(u64),
    /// A step failed.
    Step(&'static str, io::Error),
    /// Every step succeeded, but the process still has the privileges.
    StillThere(&'static str),
}

impl fmt::Display for PrivilegeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoUser(name) => write!(
                f,
                "there is no user {name:?}: make one (useradd --system {name}) or name another"
            ),
            Self::NoGroup(name) => write!(
                f,
                "there is no group {name:?}: make one (groupadd --system {name}) or name another"
            ),
            Self::Threads(n) => {
                write!(f, "internal error: rights are given up while {n} threads run")
            }
            Self::Missing(capability) => write!(
                f,
                "the process lacks {capability}, which it needs later: start it as root, or give \
                 it the capability (AmbientCapabilities= in a systemd unit)"
            ),
            Self::LockLimit(most) => write!(
                f,
                "memory cannot be locked: the limit is {most} bytes and {LOCKED_MEMORY} are needed; \
                 set LimitMEMLOCK=infinity in the unit (`ulimit -l unlimited` in a shell)"
            ),
            Self::Step(step, e) => write!(f, "giving up privileges: {step}: {e}"),
            Self::StillThere(what) => write!(f, "giving up privileges: {what} could not be lost"),
        }
    }
}

impl std::error::Error for PrivilegeError {}

/// Looks up a user by name or number: its id and its primary group.
pub fn find_user(name: &str) -> Result<(Uid, Gid), PrivilegeError> {
    let step = |e: nix::Error| PrivilegeError::Step("looking up the user", e.into());
    let mut user = User::from_name(name).map_err(step)?;
    if let (None, Ok(id)) = (&user, name.parse()) {
        user = User::from_uid(Uid::from_raw(id)).map_err(step)?;
    }
    user.map(|user| (user.uid, user.gid)).ok_or_else(|| PrivilegeError::NoUser(name.to_owned()))
}

/// Looks up a group by name or number.
pub fn find_group(name: &str) -> Result<Gid, PrivilegeError> {
    let step = |e: nix::Error| PrivilegeError::Step("looking up the group", e.into());
    let mut group = Group::from_name(name).map_err(step)?;
    if let (None, Ok(id)) = (&group, name.parse()) {
        group = Group::from_gid(Gid::from_raw(id)).map_err(step)?;
    }
    group.map(|group| group.gid).ok_or_else(|| PrivilegeError::NoGroup(name.to_owned()))
}

/// Returns the capabilities that the process holds.
pub fn held() -> Result<HashSet<Capability>, PrivilegeError> {
    caps_step("reading", caps::read(None, CapSet::Permitted))
}

/// Returns the reason why the process cannot become this user and group: missing privileges, or a user namespace that
/// does not map them.
pub fn obstacle(user: Uid, group: Gid) -> Option<String> {
    let held = held().unwrap_or_default();
    for needed in [Capability::CAP_SETUID, Capability::CAP_SETGID] {
        if !held.contains(&needed) {
            return Some(format!("{needed} is missing"));
        }
    }
    let maps = [("uid_map", user.as_raw()), ("gid_map", group.as_raw())];
    for (map, id) in maps {
        let text = std::fs::read_to_string(format!("/proc/self/{map}")).unwrap_or_default();
        if !text.is_empty() && !text.lines().any(|line| maps_id(line, id)) {
            return Some(format!("this user namespace has no id {id} ({map})"));
        }
    }
    let groups = std::fs::read_to_string("/proc/self/setgroups").unwrap_or_default();
    (groups.trim() == "deny").then(|| "this user namespace forbids setgroups".to_owned())
}

/// Returns whether a line of a map (first id inside, first outside, count) contains an id.
fn maps_id(line: &str, id: u32) -> bool {
    let mut numbers = line.split_whitespace().map(str::parse::<u64>);
    let (Some(Ok(first)), Some(Ok(_)), Some(Ok(count))) =
        (numbers.next(), numbers.next(), numbers.next())
    else {
        return false;
    };
    (first..first.saturating_add(count)).contains(&u64::from(id))
}

/// Keeps secrets from disks and debuggers: no core dumps, no ptrace by the same user. Call it before anything else; a
/// change of user undoes it, so [`Privileges::drop`] does it again.
pub fn protect_memory() -> io::Result<()> {
    prctl::set_dumpable(false)?;
    Ok(setrlimit(Resource::RLIMIT_CORE, 0, 0)?)
}

impl Privileges {
    /// Drops all other privileges, irrevocably. The calling thread must be the only one.
    pub fn drop(&self) -> Result<(), PrivilegeError> {
        let threads =
            process::threads().map_err(|e| PrivilegeError::Step("counting threads", e))?;
        if threads != 1 {
            return Err(PrivilegeError::Threads(threads));
        }
        let keep: HashSet<_> = self.keep.iter().copied().collect();
        let permitted = caps_step("reading", caps::read(None, CapSet::Permitted))?;
        if let Some(missing) = keep.difference(&permitted).next() {
            return Err(PrivilegeError::Missing(*missing));
        }
        if self.lock_memory {
            lock_memory(&keep)?;
        }
        let group = match (self.group, self.user) {
            (None, Some(user)) => Some(primary_group(user)?),
            (group, _) => group,
        };
        let could_bound = permitted.contains(&Capability::CAP_SETPCAP);
        if could_bound {
            drop_bounding(&keep)?;
        }
        if let Some(root) = &self.root {
            step("changing the root directory", nix::unistd::chroot(root))?;
            step("changing to the root directory", nix::unistd::chdir("/"))?;
        }
        let with_parent = ParentDeath::read()?;
        self.change_user(group, !keep.is_empty())?;
        drop_capabilities(&keep)?;
        with_parent.restore()?;
        step("setting no_new_privs", prctl::set_no_new_privs())?;
        protect_memory().map_err(|e| PrivilegeError::Step("forbidding core dumps", e))?;
        self.verify(&keep, could_bound)?;
        verify_ids(self.user, group)?;
        match self.seccomp {
            Some((profile, violation)) => seccomp::apply(profile, violation)
                .map_err(|e| PrivilegeError::Step("installing the system call filter", e)),
            None => Ok(()),
        }
    }

    fn change_user(
        &self,
        group: Option<Gid>,
        keep_capabilities: bool,
    ) -> Result<(), PrivilegeError> {
        if self.user.is_some() && keep_capabilities {
            step("keeping capabilities", prctl::set_keepcaps(true))?;
        }
        if let Some(group) = group {
            step("setting supplementary groups", nix::unistd::setgroups(&[group]))?;
            step("setting the group", nix::unistd::setresgid(group, group, group))?;
        }
        if let Some(user) = self.user {
            step("setting the user", nix::unistd::setresuid(user, user, user))?;
            step("resetting keepcaps", prctl::set_keepcaps(false))?;
        }
        Ok(())
    }

    fn verify(&self, keep: &HashSet<Capability>, could_bound: bool) -> Result<(), PrivilegeError> {
        let root = Uid::from_raw(0);
        let changed = self.user.is_some_and(|user| user != root);
        if changed
            && !keep.contains(&Capability::CAP_SETUID)
            && nix::unistd::setresuid(root, root, root).is_ok()
        {
            return Err(PrivilegeError::StillThere("the user root"));
        }
        let mut sets = vec![CapSet::Permitted, CapSet::Effective, CapSet::Inheritable];
        // Without CAP_SETPCAP, the bounding set could not be reduced; no_new_privs then makes it irrelevant.
        if could_bound {
            sets.push(CapSet::Bounding);
        }
        for set in sets {
            if !caps_step("reading", caps::read(None, set))?.is_subset(keep) {
                return Err(PrivilegeError::StillThere("a capability"));
            }
        }
        Ok(())
    }
}

/// The signal that the process requested for the death of its parent. The kernel clears the request when the user
/// changes.
struct ParentDeath {
    signal: Option<Signal>,
    parent: Pid,
}

impl ParentDeath {
    fn read() -> Result<Self, PrivilegeError> {
        let parent = nix::unistd::getppid();
        let signal = step("reading the parent death signal", prctl::get_pdeathsig())?;
        Ok(Self { signal, parent })
    }

    fn restore(self) -> Result<(), PrivilegeError> {
        let Some(signal) = self.signal else { return Ok(()) };
        step("setting the parent death signal", prctl::set_pdeathsig(signal))?;
        // The parent may have ended while no signal was requested.
        if nix::unistd::getppid() != self.parent {
            step("following the parent", nix::sys::signal::raise(signal))?;
        }
        Ok(())
    }
}

fn primary_group(user: Uid) -> Result<Gid, PrivilegeError> {
    let found = step("looking up the user", User::from_uid(user))?;
    found.map(|user| user.gid).ok_or_else(|| PrivilegeError::NoUser(user.to_string()))
}

/// Verifies that all three ids of the user and of the group are the new ones, and that no other groups remain.
fn verify_ids(user: Option<Uid>, group: Option<Gid>) -> Result<(), PrivilegeError> {
    if let Some(user) = user {
        let ids = step("reading the user", nix::unistd::getresuid())?;
        if [ids.real, ids.effective, ids.saved] != [user; 3] {
            return Err(PrivilegeError::StillThere("the former user"));
        }
    }
    if let Some(group) = group {
        let ids = step("reading the group", nix::unistd::getresgid())?;
        if [ids.real, ids.effective, ids.saved] != [group; 3] {
            return Err(PrivilegeError::StillThere("the former group"));
        }
        let others = step("reading supplementary groups", nix::unistd::getgroups())?;
        if others.iter().any(|other| *other != group) {
            return Err(PrivilegeError::StillThere("a supplementary group"));
        }
    }
    Ok(())
}

fn drop_bounding(keep: &HashSet<Capability>) -> Result<(), PrivilegeError> {
    caps_step("raising", caps::raise(None, CapSet::Effective, Capability::CAP_SETPCAP))?;
    let bounding = caps_step("reading", caps::read(None, CapSet::Bounding))?;
    for capability in bounding.difference(keep) {
        caps_step("bounding", caps::drop(None, CapSet::Bounding, *capability))?;
    }
    Ok(())
}

fn drop_capabilities(keep: &HashSet<Capability>) -> Result<(), PrivilegeError> {
    caps_step("clearing ambient", caps::clear(None, CapSet::Ambient))?;
    caps_step("clearing inheritable", caps::clear(None, CapSet::Inheritable))?;
    // The effective set comes first, because it must never exceed the permitted one.
    caps_step("setting effective", caps::set(None, CapSet::Effective, keep))?;
    caps_step("setting permitted", caps::set(None, CapSet::Permitted, keep))
}

fn lock_memory(keep: &HashSet<Capability>) -> Result<(), PrivilegeError> {
    // Without the capability to exceed the limit, a low limit would make allocations fail at run time.
    if !keep.contains(&Capability::CAP_IPC_LOCK) {
        let name = Resource::RLIMIT_MEMLOCK;
        if setrlimit(name, RLIM_INFINITY, RLIM_INFINITY).is_err() {
            let (_, most) = step("reading the limit of locked memory", getrlimit(name))?;
            if most < LOCKED_MEMORY {
                return Err(PrivilegeError::LockLimit(most));
            }
            step("raising the limit of locked memory", setrlimit(name, most, most))?;
        }
    }
    let all = rustix::mm::MlockAllFlags::CURRENT | rustix::mm::MlockAllFlags::FUTURE;
    rustix::mm::mlockall(all).map_err(|e| PrivilegeError::Step("locking memory", e.into()))
}

fn step<T>(name: &'static str, result: nix::Result<T>) -> Result<T, PrivilegeError> {
    result.map_err(|e| PrivilegeError::Step(name, e.into()))
}

fn caps_step<T>(
    name: &'static str,
    result: Result<T, caps::errors::CapsError>,
) -> Result<T, PrivilegeError> {
    result.map_err(|e| {
        PrivilegeError::Step("changing capabilities", io::Error::other(format!("{name}: {e}")))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn users_and_groups_by_name_and_number() {
        let nobody = find_user("nobody").unwrap();
        assert_eq!(find_user(&nobody.0.to_string()).unwrap(), nobody);
        assert_eq!(find_user("root").unwrap().0.as_raw(), 0);
        assert_eq!(find_group("root").unwrap().as_raw(), 0);
        assert_eq!(find_group("0").unwrap().as_raw(), 0);
        let error = find_user("no-such-user").unwrap_err();
        assert!(matches!(error, PrivilegeError::NoUser(_)), "{error}");
        let error = find_group("no-such-group").unwrap_err();
        assert!(error.to_string().contains("groupadd"), "{error}");
    }

    #[test]
    fn former_ids_are_noticed() {
        let (user, group) = (nix::unistd::getuid(), nix::unistd::getgid());
        let other = |id: u32| id.wrapping_add(1);
        let error = verify_ids(Some(Uid::from_raw(other(user.as_raw()))), None).unwrap_err();
        assert!(error.to_string().contains("former user"), "{error}");
        let error = verify_ids(None, Some(Gid::from_raw(other(group.as_raw())))).unwrap_err();
        assert!(error.to_string().contains("former group"), "{error}");
        verify_ids(Some(user), None).unwrap();
    }

    #[test]
    fn a_user_namespaces_map_is_understood() {
        assert!(maps_id("         0          0 4294967295", 65534));
        assert!(maps_id("1000 5 10", 1009) && !maps_id("1000 5 10", 1010));
        assert!(!maps_id("0 1000 1", 65534) && !maps_id("", 0) && !maps_id("a b c", 0));
        let obstacle = obstacle(Uid::from_raw(u32::MAX), Gid::from_raw(0));
        assert!(obstacle.is_some(), "an id that no map has");
    }

    #[test]
    fn dropping_while_other_threads_run_is_refused() {
        // The test harness has several threads.
        let error = Privileges::default().drop().unwrap_err();
        assert!(matches!(error, PrivilegeError::Threads(n) if n > 1), "{error}");
    }
}
