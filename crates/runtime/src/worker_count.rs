//! The number of data plane workers.

use std::fs;
use std::io;
use std::num::NonZero;
use std::path::Path;
use std::thread::available_parallelism;

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

use crate::fault::Fault;
use crate::helper;

/// The environment variable with the number of workers, for server and client.
const VARIABLE: &str = "ADIT_WORKERS";

/// The maximum number of workers that may be configured, because each has a socket for every port, a device queue and
/// buffers.
pub const MAX_WORKERS: u16 = 64;

/// The maximum number of workers that a server chooses on its own. Further workers gain little, because all feed one
/// network stack.
const MAX_BY_DEFAULT: u16 = 16;

/// The number of cores up to which a server has one worker. With two cores, a second worker competes with the programs
/// that receive the packets, and slightly slows down a single stream.
const SMALL_MACHINE: u16 = 2;

/// Returns the number of a server's workers. It comes from the command line, `ADIT_WORKERS`, the settings, or the
/// number of cores within limits, in this order of precedence.
///
/// # Errors
/// Fails if the number is out of range.
pub fn of_server(command: Option<u16>, settings: Option<u16>) -> Result<u16, Fault> {
    let chosen = match command {
        Some(workers) => Some(workers),
        None => from_environment()?.or(settings),
    };
    match chosen {
        Some(workers) => checked(workers).map_err(Fault::operator),
        // This counts the cores that the scheduler and a cgroup's quota allow.
        None => {
            let cores = by_default(available_parallelism().map_or(1, NonZero::get));
            Ok(within(cores, task_limit()))
        }
    }
}

/// Returns fewer workers, but at least one, if limits leave no room for this many further tasks. A number from the
/// environment stays as it is.
pub fn leave_room(workers: u16, tasks: u16) -> u16 {
    if std::env::var_os(VARIABLE).is_some() {
        return workers;
    }
    within(workers, task_limit().map(|limit| limit.saturating_sub(tasks.into())))
}

/// Returns the number of a client's workers. It is one unless `ADIT_WORKERS` is set, because all packets belong to one
/// peer, which sends from one core by design.
///
/// # Errors
/// Fails if the number is out of range.
pub fn of_client() -> Result<u16, Fault> {
    Ok(from_environment()?.unwrap_or(1))
}

/// Returns a fault for a data plane whose threads cannot be started.
pub fn not_started(error: &io::Error) -> Fault {
    let remedy = match error.kind() {
        io::ErrorKind::WouldBlock => {
            ": its user has as many processes and threads as LimitNPROC or TasksMax allows, and those of other \
             programs of that user count: add a user 'adit', or raise the limit"
        }
        _ => "",
    };
    Fault::environment(format!("cannot start the data plane: {error}{remedy}"))
}

/// Checks a number of workers.
pub fn checked(workers: u16) -> Result<u16, String> {
    match workers {
        1..=MAX_WORKERS => Ok(workers),
        _ => Err(format!("{workers} workers: out of range; choose 1 to {MAX_WORKERS}")),
    }
}

fn from_environment() -> Result<Option<u16>, Fault> {
    match std::env::var_os(VARIABLE) {
        None => Ok(None),
        Some(text) => parse(&text.to_string_lossy()).map(Some),
    }
}

fn parse(text: &str) -> Result<u16, Fault> {
    let number = text.trim().parse().map_err(|_| {
        Fault::operator(format!(
            "{VARIABLE}={text}: not a number of workers; choose 1 to {MAX_WORKERS}, or unset it"
        ))
    })?;
    checked(number).map_err(|said| Fault::operator(format!("{VARIABLE}: {said}")))
}

fn by_default(cores: usize) -> u16 {
    match u16::try_from(cores).unwrap_or(u16::MAX) {
        0..=SMALL_MACHINE => 1,
        cores => cores.min(MAX_BY_DEFAULT),
    }
}

/// The number of tasks besides the workers: the control thread, and threads that wait for files and names.
const OWN_TASKS: u64 = 1 + 2;

/// Returns fewer workers, but at least one, if limits leave no room for their tasks.
fn within(workers: u16, tasks: Option<u64>) -> u16 {
    let others = OWN_TASKS + u64::from(helper::TASKS);
    let room = tasks.map(|tasks| tasks.saturating_sub(others).max(1));
    room.and_then(|room| u16::try_from(room).ok()).map_or(workers, |room| workers.min(room))
}

/// Returns the maximum number of tasks of this process, from `RLIMIT_NPROC` (`LimitNPROC=` of a unit) and the process
/// controllers of its cgroups (`TasksMax=`). Returns `None` if there is no limit.
fn task_limit() -> Option<u64> {
    let by_user = getrlimit(Resource::RLIMIT_NPROC).ok().map(|(soft, _)| soft);
    let by_user = by_user.filter(|limit| *limit != RLIM_INFINITY);
    let groups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let by_group = group_limit(Path::new("/sys/fs/cgroup"), &groups);
    by_user.into_iter().chain(by_group).min()
}

/// Returns the lowest `pids.max` of the cgroups in the text of `/proc/self/cgroup` and of their ancestors.
fn group_limit(root: &Path, groups: &str) -> Option<u64> {
    let folders = groups.lines().filter_map(|line| {
        let mut parts = line.splitn(3, ':');
        let (_, controllers, path) = (parts.next()?, parts.next()?, parts.next()?);
        let path = Path::new(path.trim_start_matches('/')).to_owned();
        match controllers {
            // Version 2 has one tree for all.
            "" => Some((root.to_owned(), path)),
            _ if controllers.split(',').any(|name| name == "pids") => {
                Some((root.join("pids"), path))
            }
            _ => None,
        }
    });
    let limits = folders.flat_map(|(root, path)| {
        let limit = |folder: &Path| {
            let text = fs::read_to_string(root.join(folder).join("pids.max")).ok()?;
            text.trim().parse::<u64>().ok()
        };
        path.ancestors().filter_map(limit).collect::<Vec<_>>()
    });
    limits.min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_machine_gets_one_and_a_large_one_not_all() {
        let cores = [0, 1, 2, 3, 4, 16, 17, 128, 100_000];
        assert_eq!(cores.map(by_default), [1, 1, 1, 3, 4, 16, 16, 16, 16]);
    }

    #[test]
    fn tasks_besides_the_workers_have_room() {
        let limits = [None, Some(0), Some(6), Some(7), Some(8), Some(11), Some(22), Some(90_000)];
        assert_eq!(limits.map(|limit| within(16, limit)), [16, 1, 1, 1, 2, 5, 16, 16]);
        assert_eq!(within(1, Some(11)), 1);
    }

    #[test]
    fn cgroups_of_both_versions_are_asked_and_those_above_them() {
        let dir = tempfile::tempdir().unwrap();
        let set = |folder: &str, limit: &str| {
            let folder = dir.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join("pids.max"), limit).unwrap();
        };
        set("system.slice/vpn.service", "max\n");
        set("system.slice", "12\n");
        set("pids/a/b", "9\n");
        set("pids/a", "max\n");
        let limit = |groups: &str| group_limit(dir.path(), groups);
        assert_eq!(limit("0::/system.slice/vpn.service\n"), Some(12));
        assert_eq!(limit("4:cpu,cpuacct:/x\n3:pids:/a/b\n0::/\n"), Some(9));
        assert_eq!(limit("3:pids:/a/b\n0::/system.slice\n"), Some(9));
        assert_eq!(limit("3:pids:/a\n"), None);
        assert_eq!(limit("garbage\n::\n0::/none\n"), None);
    }

    #[test]
    fn a_number_that_cannot_be_is_refused_with_the_remedy() {
        assert_eq!(parse(" 3 ").unwrap(), 3);
        for text in ["", "0", "65", "-1", "many", "99999"] {
            let fault = parse(text).unwrap_err();
            assert_eq!(fault.blame(), crate::fault::Blame::Operator);
            assert!(fault.to_string().contains("choose 1 to 64"), "{text}: {fault}");
            assert!(fault.to_string().starts_with("ADIT_WORKERS"), "{text}: {fault}");
        }
        assert!(of_server(Some(0), None).is_err());
        assert_eq!(of_server(Some(5), Some(7)).unwrap(), 5, "the command line goes before");
    }
}
