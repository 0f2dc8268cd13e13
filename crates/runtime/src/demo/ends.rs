//! The ends of a demo, each a namespace with a process. If a demo is killed, the next start cleans up.

use std::fs::{self, File};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use adit_linux::net::Address;
use adit_linux::netns::NetNs;
use ipnet::IpNet;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::interrupt::Interrupt;
use crate::fault::{Fault, file_fault};

/// The environment variable with the parent's process id. [`end_with_parent`] reads it.
const PARENT: &str = "ADIT_END_WITH_PARENT";

const START_PATIENCE: Duration = Duration::from_secs(20);
const END_PATIENCE: Duration = Duration::from_secs(5);
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// The time limit for the helper of an ended process.
const HELPER_PATIENCE: Duration = Duration::from_secs(1);
/// The number of log lines that an error message quotes.
const QUOTED_LINES: usize = 12;

/// One end of the tunnel.
#[derive(Debug)]
pub struct End {
    /// The end's namespace.
    pub ns: NetNs,
    /// The end's IPv4 address in the tunnel.
    pub ipv4: Ipv4Addr,
    /// The end's IPv6 address in the tunnel, if there is one.
    pub ipv6: Option<Ipv6Addr>,
    /// The process in the namespace.
    pub process: Option<Child>,
    /// The output of the process.
    pub log: PathBuf,
}

impl End {
    /// Returns the process id, or 0 if the process does not run.
    pub fn pid(&self) -> u32 {
        self.process.as_ref().map_or(0, Child::id)
    }

    /// Returns the name for `ip netns exec`.
    pub fn name(&self) -> &str {
        self.ns.name().unwrap_or_default()
    }

    /// Returns the end's addresses in the tunnel.
    pub fn addresses(&self) -> impl Iterator<Item = IpAddr> + use<> {
        let six = self.ipv6.map(IpAddr::V6);
        std::iter::once(IpAddr::V4(self.ipv4)).chain(six)
    }

    /// Checks that the process runs.
    ///
    /// # Errors
    /// Fails with the output of the process if it has ended.
    pub fn alive(&mut self, what: &str) -> Result<(), Fault> {
        let Some(process) = &mut self.process else { return Ok(()) };
        match process.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => {
                let what = format!("the {what} ended ({status})");
                Err(Fault::environment(format!("{what}; its output:\n{}", self.last_words())))
            }
            Err(error) => Err(Fault::environment(format!("the {what}: {error}"))),
        }
    }

    /// Returns the end of the process's output.
    pub fn last_words(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let from = lines.len().saturating_sub(QUOTED_LINES);
        lines.iter().skip(from).map(|line| format!("  {line}\n")).collect()
    }

    /// Asks the process to end, kills it if it does not, and waits for its helper process.
    pub fn end(&mut self) {
        let Some(mut process) = self.process.take() else { return };
        let Ok(pid) = i32::try_from(process.id()).map(Pid::from_raw) else { return };
        // The helper process ends on its own after its network process, and may still write output until then.
        let helpers = children(process.id());
        let _ = kill(pid, Signal::SIGTERM);
        let asked = Instant::now();
        while asked.elapsed() < END_PATIENCE && matches!(process.try_wait(), Ok(None)) {
            std::thread::sleep(LOOK_EVERY);
        }
        let _ = process.kill();
        let _ = process.wait();
        let ended = Instant::now();
        while helpers.iter().any(|pid| runs(*pid)) && ended.elapsed() < HELPER_PATIENCE {
            std::thread::sleep(LOOK_EVERY);
        }
    }
}

/// Returns the processes that a process has started, or none if the kernel does not list them.
fn children(pid: u32) -> Vec<u32> {
    let listed = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children"));
    listed.unwrap_or_default().split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Returns whether a process exists and has not ended.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // The name before the state may contain any characters.
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with(['Z', 'X']))
}

/// Starts a process that writes to a log and ends with this one.
///
/// # Errors
/// Fails if the log or the program cannot be opened.
pub fn spawn(mut command: Command, log: &Path) -> Result<Child, Fault> {
    let open = || File::options().create(true).append(true).open(log);
    let output = open().and_then(|file| Ok((file.try_clone()?, file)));
    let (out, errors) = output.map_err(|error| file_fault("cannot open", log, &error))?;
    command
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(errors)
        .env(PARENT, std::process::id().to_string())
        // Ctrl-C must only reach this process, which ends its children in the correct order.
        .process_group(0);
    command.spawn().map_err(|error| {
        let program = command.get_program().to_string_lossy().into_owned();
        Fault::environment(format!("cannot start {program}: {error}"))
    })
}

/// Waits until `ready` returns true. Fails if the process ends, the user interrupts, or the time limit expires.
pub fn wait(
    interrupt: &Interrupt,
    what: &str,
    end: &mut End,
    mut ready: impl FnMut(&mut End) -> bool,
) -> Result<(), Fault> {
    let started = Instant::now();
    while started.elapsed() < START_PATIENCE {
        interrupt.check()?;
        end.alive(what)?;
        if ready(end) {
            return Ok(());
        }
        std::thread::sleep(LOOK_EVERY);
    }
    let seconds = START_PATIENCE.as_secs();
    Err(Fault::environment(format!(
        "the {what} was not up after {seconds} s; its output:\n{}",
        end.last_words()
    )))
}

/// Gives a device in a namespace an address that is usable at once, without duplicate address detection.
pub fn address(ns: &NetNs, device: &str, net: IpNet) -> io::Result<()> {
    ns.configure(async |handle| {
        let link = handle.link(device).await?;
        handle.add_address(&Address::new(link.index, net)).await
    })?
    .map_err(io::Error::from)
}

/// Returns the addresses of a device in a namespace.
pub fn device_addresses(ns: &NetNs, device: &str) -> Vec<IpAddr> {
    let found = ns.run(|| {
        let interfaces = nix::ifaddrs::getifaddrs().into_iter().flatten();
        let ours = interfaces.filter(|interface| interface.interface_name == device);
        ours.filter_map(|interface| {
            let address = interface.address?;
            let four = address.as_sockaddr_in().map(|a| IpAddr::V4(a.ip()));
            four.or_else(|| address.as_sockaddr_in6().map(|a| IpAddr::V6(a.ip())))
        })
        .collect()
    });
    found.unwrap_or_default()
}

/// Returns the fault for a namespace that cannot be created, with the remedy.
pub fn namespace_fault(error: io::Error) -> Fault {
    let hint = match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "; run as root: sudo adit demo (in a container: --privileged)"
        }
        _ => "",
    };
    Fault::environment(format!("cannot make the demo's namespaces: {error}{hint}"))
}

/// Removes the namespaces, and the directories in `root`, that killed demos left behind. Their names begin with
/// `prefix` and the id of a process that no longer exists.
pub fn sweep(prefix: &str, root: &Path) {
    let _ = NetNs::sweep(prefix);
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let pid = name.to_str().and_then(|name| {
            name.strip_prefix(prefix)?.strip_prefix('-')?.split('-').next()?.parse::<u32>().ok()
        });
        if pid.is_some_and(|pid| !Path::new("/proc").join(pid.to_string()).exists()) {
            let _ = fs::remove_dir_all(entry.path());
        }
    }
}

/// Makes a process that a demo started end together with the demo, even if the demo is killed. Call it first in `main`.
pub fn end_with_parent() {
    let Some(parent) = std::env::var_os(PARENT) else { return };
    let _ = nix::sys::prctl::set_pdeathsig(Signal::SIGTERM);
    // The parent may have ended before that call.
    let still = nix::unistd::getppid().to_string();
    if parent.to_str() != Some(&still) {
        std::process::exit(1);
    }
}
