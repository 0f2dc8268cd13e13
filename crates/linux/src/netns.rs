//! Network namespaces for tests, the demo and the lab.
//!
//! A namespace that is created here has its loopback interface up and is removed when its [`NetNs`]
//! is dropped.
#![allow(unsafe_code)]

use std::fs::{self, File};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;

use nix::mount::{MntFlags, MsFlags};
use nix::sched::CloneFlags;

use crate::net::Net;

/// The directory where `ip netns` looks up names.
const DIRECTORY: &str = "/run/netns";

/// The calling thread's own namespace.
const OWN: &str = "/proc/thread-self/ns/net";

/// Returns the cookie of the calling thread's network namespace. No other namespace has the same cookie until a reboot. The kernel reuses
/// the inode of /proc/thread-self/ns/net once the namespace is gone.
///
/// # Errors
///
/// Fails on Linux before 5.14.
pub fn cookie() -> io::Result<u64> {
    let socket = std::os::unix::net::UnixDatagram::unbound()?;
    let mut cookie = 0_u64;
    let mut size: libc::socklen_t = 8;
    // SAFETY: the kernel writes at most `size` bytes at the pointer, which are those of `cookie`.
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_NETNS_COOKIE,
            (&raw mut cookie).cast(),
            &raw mut size,
        )
    };
    if result == 0 { Ok(cookie) } else { Err(io::Error::last_os_error()) }
}

/// A network namespace.
#[derive(Debug)]
pub struct NetNs {
    file: File,
    /// Its mount point, if it has a name and this handle must remove it.
    mounted: Option<PathBuf>,
    name: Option<String>,
}

impl NetNs {
    /// Creates a namespace with a unique name (`PREFIX-PID-N`), so that `ip netns exec NAME` works.
    /// Needs CAP_SYS_ADMIN.
    pub fn new(prefix: &str) -> io::Result<Self> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("{prefix}-{}-{count}", std::process::id());
        let path = Path::new(DIRECTORY).join(&name);
        let mut this = Self::unnamed()?;
        fs::create_dir_all(DIRECTORY).map_err(|e| context("making /run/netns", e))?;
        fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(|e| context(&format!("naming the namespace {name}"), e))?;
        let own = format!("/proc/self/fd/{}", this.file.as_raw_fd());
        let bind = nix::mount::mount(
            Some(own.as_str()),
            &path,
            None::<&str>,
            MsFlags::MS_BIND,
            None::<&str>,
        );
        if let Err(e) = bind {
            let _ = fs::remove_file(&path);
            return Err(context(&format!("mounting {}", path.display()), e.into()));
        }
        this.mounted = Some(path);
        this.name = Some(name);
        Ok(this)
    }

    /// Creates a namespace without a name. Only its holder and the processes inside can reach it.
    pub fn unnamed() -> io::Result<Self> {
        let file = thread::spawn(|| {
            nix::sched::unshare(CloneFlags::CLONE_NEWNET)?;
            File::open(OWN)
        })
        .join()
        .map_err(|_| io::Error::other("the namespace's thread panicked"))?
        .map_err(|e| context("making a network namespace (run as root)", e))?;
        let this = Self { file, mounted: None, name: None };
        this.configure(async |net| net.set_up(1).await)?
            .map_err(|e| context("bringing up loopback", e.into()))?;
        Ok(this)
    }

    /// Returns the namespace of the calling thread.
    pub fn current() -> io::Result<Self> {
        Ok(Self { file: File::open(OWN)?, mounted: None, name: None })
    }

    /// Opens an existing namespace by the name that `ip netns` shows. Dropping the handle does not
    /// remove it.
    pub fn open(name: &str) -> io::Result<Self> {
        let path = Path::new(DIRECTORY).join(name);
        let file = File::open(&path).map_err(|e| context(&path.display().to_string(), e))?;
        Ok(Self { file, mounted: None, name: Some(name.to_owned()) })
    }

    /// Removes the namespaces with this prefix that processes left behind when they ended without running `drop` (`kill
    /// -9`). Returns how many there were.
    pub fn sweep(prefix: &str) -> io::Result<usize> {
        let entries = match fs::read_dir(DIRECTORY) {
            Ok(entries) => entries,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(0),
            Err(e) => return Err(e),
        };
        let mut removed = 0;
        for entry in entries {
            let entry = entry?;
            let name = entry.file_name();
            let pid = name
                .to_str()
                .and_then(|name| name.strip_prefix(prefix)?.strip_prefix('-'))
                .and_then(|rest| rest.split_once('-')?.0.parse::<u32>().ok());
            if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
                unmount(&entry.path());
                removed += 1;
            }
        }
        Ok(removed)
    }

    /// Returns the name under /run/netns, if it has one.
    pub fn name(&self) -> Option<&str> {
        self.name.as_deref()
    }

    /// Moves the calling thread into the namespace. Threads that it starts later are inside too;
    /// other threads stay where they are, so this cannot move a whole process.
    pub fn enter(&self) -> io::Result<()> {
        nix::sched::setns(&self.file, CloneFlags::CLONE_NEWNET)
            .map_err(|e| context("entering a network namespace", e.into()))
    }

    /// Runs a closure in a new thread inside, and waits for it. A panic propagates to the caller.
    pub fn run<T: Send>(&self, work: impl FnOnce() -> T + Send) -> io::Result<T> {
        thread::scope(|scope| {
            let inside = scope.spawn(|| {
                self.enter()?;
                Ok(work())
            });
            inside.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    }

    /// Runs an async closure inside, with a netlink handle, on a separate runtime.
    pub fn configure<T: Send>(&self, work: impl AsyncFnOnce(&Net) -> T + Send) -> io::Result<T> {
        self.run(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let net = Net::open()?;
                Ok(work(&net).await)
            })
        })?
    }

    /// Creates a command that will run inside.
    pub fn command(&self, program: impl AsRef<std::ffi::OsStr>) -> io::Result<Command> {
        let mut command = Command::new(program);
        self.prepare(&mut command)?;
        Ok(command)
    }

    /// Makes a command run inside. (It sees the host's /sys, not one mounted for the namespace.)
    pub fn prepare(&self, command: &mut Command) -> io::Result<()> {
        let file = self.file.try_clone()?;
        // SAFETY: between fork and exec the closure makes one system call on a descriptor that it
        // owns; it allocates nothing and takes no lock.
        unsafe {
            command.pre_exec(move || {
                nix::sched::setns(&file, CloneFlags::CLONE_NEWNET).map_err(io::Error::from)
            });
        }
        Ok(())
    }

    /// Connects this namespace to another by a pair of virtual Ethernet interfaces, both up.
    pub fn connect(&self, name: &str, other: &Self, other_name: &str) -> io::Result<()> {
        let pair = self.configure(async |net| {
            net.add_veth(name, other_name, other).await?;
            net.set_up(net.link(name).await?.index).await
        })?;
        pair.map_err(|e| context("making a veth pair", e.into()))?;
        let up =
            other.configure(async |net| net.set_up(net.link(other_name).await?.index).await)?;
        up.map_err(|e| context("making a veth pair", e.into()))
    }

    /// Sets a kernel parameter of the namespace (such as `net.ipv4.ip_forward`).
    pub fn set_sysctl(&self, key: &str, value: &str) -> io::Result<()> {
        let path = Path::new("/proc/sys").join(key.replace('.', "/"));
        self.run(|| fs::write(&path, value))?
            .map_err(|e| context(&format!("setting {key} to {value}"), e))
    }
}

impl AsFd for NetNs {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for NetNs {
    fn drop(&mut self) {
        if let Some(path) = &self.mounted {
            unmount(path);
        }
    }
}

fn unmount(path: &Path) {
    // There is no caller to report to; if the name remains, the next sweep finds it.
    let _ = nix::mount::umount2(path, MntFlags::MNT_DETACH);
    let _ = fs::remove_file(path);
}

fn context(step: &str, e: io::Error) -> io::Error {
    io::Error::new(e.kind(), format!("{step}: {e}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_named_namespace_lives_as_long_as_its_value() {
        adit_testbed::needs_root!();
        let ns = NetNs::new("adit-test").unwrap();
        let path = Path::new(DIRECTORY).join(ns.name().unwrap());
        assert!(path.exists());
        let again = NetNs::open(ns.name().unwrap()).unwrap();
        let same = |ns: &NetNs| rustix::fs::fstat(&ns.file).map(|s| (s.st_dev, s.st_ino)).unwrap();
        assert_eq!(same(&again), same(&ns));
        assert_ne!(same(&ns), same(&NetNs::current().unwrap()));
        drop(again);
        assert!(path.exists());
        drop(ns);
        assert!(!path.exists());
    }

    #[test]
    fn threads_and_commands_run_inside() {
        adit_testbed::needs_root!();
        let ns = NetNs::unnamed().unwrap();
        let own = fs::read_link(OWN).unwrap();
        let inside = ns.run(|| fs::read_link(OWN).unwrap()).unwrap();
        assert_ne!(own, inside);
        assert_eq!(fs::read_link(OWN).unwrap(), own);
        let output = ns.command("readlink").unwrap().arg("/proc/self/ns/net").output().unwrap();
        assert_eq!(String::from_utf8(output.stdout).unwrap().trim(), inside.to_str().unwrap());
    }

    #[test]
    fn connected_namespaces_reach_each_other() {
        adit_testbed::needs_root!();
        let (a, b) = (NetNs::new("adit-test").unwrap(), NetNs::unnamed().unwrap());
        a.connect("left", &b, "right").unwrap();
        let right = b.configure(async |net| net.link("right").await).unwrap().unwrap();
        assert!(right.up);
        assert!(a.connect("left", &b, "other").unwrap_err().to_string().contains("exists"));
    }

    #[test]
    fn sysctls_are_the_namespaces_own() {
        adit_testbed::needs_root!();
        let ns = NetNs::unnamed().unwrap();
        let key = "/proc/sys/net/ipv4/ip_default_ttl";
        let outside = fs::read_to_string(key).unwrap();
        ns.set_sysctl("net.ipv4.ip_default_ttl", "77").unwrap();
        assert_eq!(ns.run(|| fs::read_to_string(key).unwrap()).unwrap().trim(), "77");
        assert_eq!(fs::read_to_string(key).unwrap(), outside);
        assert!(ns.set_sysctl("net.no.such", "1").is_err());
    }

    #[test]
    fn no_namespace_has_the_number_of_another_that_is_gone() {
        adit_testbed::needs_root!();
        let own = cookie().unwrap();
        assert_eq!(cookie().unwrap(), own);
        let mut seen = vec![own];
        for _ in 0..8 {
            let number = NetNs::unnamed().unwrap().run(|| cookie().unwrap()).unwrap();
            assert!(!seen.contains(&number), "{number} of {seen:?}");
            seen.push(number);
        }
    }

    #[test]
    fn a_sweep_removes_only_what_the_dead_left() {
        adit_testbed::needs_root!();
        let alive = NetNs::new("adit-sweep").unwrap();
        // No process has this id, which is above the kernel's highest limit (2^22).
        let dead = Path::new(DIRECTORY).join("adit-sweep-4194305-0");
        fs::write(&dead, "").unwrap();
        assert_eq!(NetNs::sweep("adit-sweep").unwrap(), 1);
        assert!(!dead.exists());
        assert!(Path::new(DIRECTORY).join(alive.name().unwrap()).exists());
    }
}
