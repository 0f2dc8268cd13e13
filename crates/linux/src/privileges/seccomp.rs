//! Allow-lists of system calls.
//!
//! The lists contain the calls of a running daemon with tokio, glibc, aws-lc and rtnetlink, including older and newer
//! variants. For calls with many functions, `arguments.rs` states which are allowed. `tests/process.rs` runs a daemon
//! under these lists, and tests each argument.

mod arguments;

use std::collections::BTreeMap;
use std::io;

use seccompiler::{BackendError, BpfProgram, SeccompAction, SeccompFilter};

use self::arguments::Rules;

/// The system calls that stay allowed, for the calling thread and those that it starts.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Profile {
    /// Moving packets between open descriptors. No files, sockets, threads or programs can be opened or started.
    DataPlane,
    /// A daemon: files, sockets (IP, Unix and netlink only), threads and narrower filters for them; no processes and no
    /// programs.
    Daemon,
    /// The calls of [`Profile::Daemon`], and packet sockets to reopen a port that reappears.
    Bridge,
    /// The calls of [`Profile::Daemon`], and those to start programs. Programs inherit the filter, so a program that
    /// needs more fails.
    DaemonWithPrograms,
}

/// The effect of a call that is not allowed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Violation {
    /// The call fails with `EPERM`.
    Refuse,
    /// The kernel ends the process (`SIGSYS`).
    Kill,
}

/// Memory, time, signals, and open descriptors.
const BASE: &[libc::c_long] = &[
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_mprotect,
    libc::SYS_madvise,
    libc::SYS_membarrier,
    libc::SYS_futex,
    libc::SYS_sched_yield,
    libc::SYS_sched_getaffinity,
    libc::SYS_getcpu,
    libc::SYS_gettid,
    libc::SYS_getpid,
    libc::SYS_exit,
    libc::SYS_exit_group,
    libc::SYS_rt_sigaction,
    libc::SYS_rt_sigprocmask,
    libc::SYS_rt_sigreturn,
    libc::SYS_sigaltstack,
    libc::SYS_tgkill,
    libc::SYS_restart_syscall,
    libc::SYS_clock_gettime,
    libc::SYS_clock_getres,
    libc::SYS_clock_nanosleep,
    libc::SYS_nanosleep,
    libc::SYS_gettimeofday,
    libc::SYS_getrandom,
    libc::SYS_getrusage,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_readv,
    libc::SYS_writev,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_eventfd2,
    libc::SYS_sendto,
    libc::SYS_sendmsg,
    libc::SYS_sendmmsg,
    libc::SYS_recvfrom,
    libc::SYS_recvmsg,
    libc::SYS_recvmmsg,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_shutdown,
    libc::SYS_ioctl,
];

/// Threads, files, sockets.
const DAEMON: &[libc::c_long] = &[
    libc::SYS_clone3,
    libc::SYS_clone,
    libc::SYS_set_robust_list,
    libc::SYS_rseq,
    libc::SYS_set_tid_address,
    libc::SYS_prctl,
    libc::SYS_sched_setaffinity,
    libc::SYS_getuid,
    libc::SYS_geteuid,
    libc::SYS_getgid,
    libc::SYS_getegid,
    libc::SYS_getppid,
    libc::SYS_uname,
    libc::SYS_sysinfo,
    libc::SYS_times,
    libc::SYS_umask,
    libc::SYS_getpriority,
    libc::SYS_prlimit64,
    libc::SYS_mlock,
    libc::SYS_mlock2,
    libc::SYS_munlock,
    libc::SYS_timerfd_create,
    libc::SYS_timerfd_settime,
    libc::SYS_signalfd4,
    libc::SYS_rt_sigtimedwait,
    libc::SYS_pread64,
    libc::SYS_pwrite64,
    libc::SYS_lseek,
    libc::SYS_openat,
    libc::SYS_openat2,
    libc::SYS_newfstatat,
    libc::SYS_fstat,
    libc::SYS_statx,
    libc::SYS_statfs,
    libc::SYS_fstatfs,
    libc::SYS_faccessat,
    libc::SYS_faccessat2,
    libc::SYS_readlinkat,
    libc::SYS_getdents64,
    libc::SYS_getcwd,
    libc::SYS_mkdirat,
    libc::SYS_unlinkat,
    libc::SYS_renameat,
    libc::SYS_renameat2,
    libc::SYS_linkat,
    libc::SYS_symlinkat,
    libc::SYS_fchmod,
    libc::SYS_fchmodat,
    libc::SYS_fchown,
    libc::SYS_fchownat,
    libc::SYS_utimensat,
    libc::SYS_ftruncate,
    libc::SYS_fallocate,
    libc::SYS_fsync,
    libc::SYS_fdatasync,
    libc::SYS_flock,
    libc::SYS_inotify_init1,
    libc::SYS_inotify_add_watch,
    libc::SYS_inotify_rm_watch,
    libc::SYS_dup,
    libc::SYS_dup3,
    libc::SYS_pipe2,
    libc::SYS_socket,
    libc::SYS_socketpair,
    libc::SYS_bind,
    libc::SYS_listen,
    libc::SYS_accept4,
    libc::SYS_accept,
    libc::SYS_connect,
    libc::SYS_pselect6,
    // Narrower filters for threads.
    libc::SYS_seccomp,
];

/// Starting and reaping programs, and the calls that their loaders need.
const PROGRAMS: &[libc::c_long] = &[
    libc::SYS_execve,
    libc::SYS_wait4,
    libc::SYS_waitid,
    libc::SYS_kill,
    libc::SYS_pidfd_open,
    libc::SYS_pidfd_send_signal,
    libc::SYS_setsid,
    libc::SYS_setpgid,
    libc::SYS_getpgid,
    libc::SYS_chdir,
    libc::SYS_fchdir,
    libc::SYS_close_range,
    libc::SYS_capget,
    libc::SYS_capset,
    libc::SYS_getgroups,
];

/// Calls that exist only on this architecture, by list.
#[cfg(target_arch = "x86_64")]
const LEGACY: [&[libc::c_long]; 3] = [
    &[libc::SYS_poll, libc::SYS_epoll_wait, libc::SYS_time, libc::SYS_arch_prctl],
    &[
        libc::SYS_open,
        libc::SYS_stat,
        libc::SYS_lstat,
        libc::SYS_access,
        libc::SYS_readlink,
        libc::SYS_mkdir,
        libc::SYS_rmdir,
        libc::SYS_unlink,
        libc::SYS_rename,
        libc::SYS_chmod,
        libc::SYS_dup2,
        libc::SYS_pipe,
        libc::SYS_select,
        libc::SYS_getrlimit,
    ],
    &[libc::SYS_vfork, libc::SYS_fork, libc::SYS_getpgrp],
];
#[cfg(not(target_arch = "x86_64"))]
const LEGACY: [&[libc::c_long]; 3] = [&[], &[], &[]];

/// Installs a filter for the calling thread and for the threads and programs that it starts from now on. Also sets no_new_privs. Several
/// filters add up: each call must pass all of them.
pub fn apply(profile: Profile, violation: Violation) -> io::Result<()> {
    if profile != Profile::DataPlane {
        install(&without_clone3().map_err(io::Error::other)?)?;
    }
    install(&compile(profile, violation).map_err(io::Error::other)?)
}

fn install(program: &BpfProgram) -> io::Result<()> {
    seccompiler::apply_filter(program).map_err(|e| match e {
        seccompiler::Error::Prctl(e) | seccompiler::Error::Seccomp(e) => e,
        other => io::Error::other(other),
    })
}

/// Applies a narrower filter to the calling thread, which moves packets, if the process has dropped its privileges and
/// has a filter. Otherwise nothing changes.
pub fn confine_worker() -> io::Result<()> {
    use rustix::thread::{SecureComputingMode, no_new_privs, secure_computing_mode};
    if no_new_privs()? && secure_computing_mode()? == SecureComputingMode::Filter {
        apply(Profile::DataPlane, Violation::Refuse)?;
    }
    Ok(())
}

/// Makes `clone3` unknown, because filters cannot see its flags: the C library falls back to `clone`.
fn without_clone3() -> Result<BpfProgram, BackendError> {
    let rules = Rules::from([(libc::SYS_clone3, vec![])]);
    let unknown = SeccompAction::Errno(libc::ENOSYS as u32);
    let target = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, SeccompAction::Allow, unknown, target)?.try_into()
}

fn compile(profile: Profile, violation: Violation) -> Result<BpfProgram, BackendError> {
    let lists: &[&[libc::c_long]] = match profile {
        Profile::DataPlane => &[BASE, LEGACY[0]],
        Profile::Daemon | Profile::Bridge => &[BASE, LEGACY[0], DAEMON, LEGACY[1]],
        Profile::DaemonWithPrograms => &[BASE, LEGACY[0], DAEMON, LEGACY[1], PROGRAMS, LEGACY[2]],
    };
    let mut rules: BTreeMap<i64, Vec<_>> =
        lists.iter().copied().flatten().map(|call| (*call, vec![])).collect();
    arguments::narrow(profile, &mut rules)?;
    let refused = match violation {
        Violation::Refuse => SeccompAction::Errno(libc::EPERM as u32),
        Violation::Kill => SeccompAction::KillProcess,
    };
    let target = std::env::consts::ARCH.try_into()?;
    SeccompFilter::new(rules, refused, SeccompAction::Allow, target)?.try_into()
}
