//! A systemd of its own for a machine: pid 1 of a pid namespace, in a group of processes of its own.

use std::fs;
use std::path::Path;

use nix::sys::signal::Signal;

use super::units::UNITS;
use super::{SOON, processes};
use crate::failure::{Context, Result, ensure};
use crate::net::Namespace;
use crate::process::Daemon;
use crate::skip::skip;
use crate::wait::until;

/// Where systems mount the groups of processes of version 2.
const HIERARCHIES: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];

/// The beginning of the names of groups.
pub(in super::super) const GROUP: &str = "adit-interop-";

/// Starts systemd. `$1` is the name of its group.
const START: &str = r#"set -e
[ -d /run/groups ] || { mkdir /run/groups && mount -t cgroup2 cgroup2 /run/groups; }
mkdir "/run/groups/$1"
echo $$ > "/run/groups/$1/cgroup.procs"
exec unshare --cgroup --uts --pid --fork --kill-child --mount --propagation private sh -c '
    set -e
    mount -t proc proc /proc
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
    exec env -i container=machine PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin \
        SYSTEMD_UNIT_PATH=/etc/units:/etc/systemd/system SYSTEMD_GENERATOR_PATH=/none SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/none \
        /lib/systemd/systemd --system  --unit=machine.target --log-target=console --show-status=no'
"#;

/// The beginning of systemd's command line. That of the process that starts it does not have it.
pub(in super::super) const PROGRAM: &str = "/lib/systemd/systemd --system --unit=machine.target";

/// The units that Debian's refer to, without what they would start on a whole system.
pub(in super::super) const TARGETS: [&str; 9] = [
    "basic",
    "machine",
    "multi-user",
    "network",
    "network-online",
    "shutdown",
    "sysinit",
    "timers",
    "umount",
];

/// The services of Debian's openvpn.
const SERVICES: [&str; 4] =
    ["openvpn.service", "openvpn@.service", "openvpn-server@.service", "openvpn-client@.service"];

/// A running systemd.
pub(super) struct Systemd {
    daemon: Daemon,
    group: String,
    /// Its id outside its own namespace.
    pid: String,
}

impl Systemd {
    /// Starts systemd on a machine with the units of Debian's openvpn, whose output goes to `/var/log/openvpn/unit.log`. `None`
    /// if it cannot run here; then the check is counted as skipped.
    pub(super) fn start(
        check: &str,
        root: &Path,
        machine: &Namespace,
        etc: &Path,
    ) -> Result<Option<Self>> {
        let units = etc.join("units");
        fs::create_dir_all(&units)?;
        for name in TARGETS {
            let text = "[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\n";
            fs::write(units.join(format!("{name}.target")), text)?;
        }
        fs::write(etc.join("machine-id"), "5d7d0cf57ba14be6a3a07a0a0c0c7d01\n")?;
        for name in SERVICES {
            let from = root.join(UNITS).join(name);
            fs::copy(&from, units.join(name)).context(from.display())?;
            let settings = units.join(format!("{name}.d"));
            fs::create_dir_all(&settings)?;
            let text = "[Service]\nStandardOutput=append:/var/log/openvpn/unit.log\nStandardError=inherit\n";
            fs::write(settings.join("log.conf"), text)?;
        }
        // The name of the sandbox is unique on the host.
        let sandbox = etc.ancestors().nth(2).and_then(Path::file_name).unwrap_or_default();
        let group = format!("{GROUP}{}-{}", sandbox.to_string_lossy(), machine.name());
        sweep();
        let mut command = machine.command("sh");
        command.args(["-c", START, "sh", &group]);
        let daemon = Daemon::spawn("systemd", command)?;
        let mut this = Self { daemon, group, pid: String::new() };
        let started = until("systemd answers", SOON, || {
            if this.daemon.ended()?.is_some() {
                return Err("it has ended".into());
            }
            if let [pid] = processes(machine, PROGRAM)?.as_slice() {
                this.pid.clone_from(pid);
            }
            Ok(!this.pid.is_empty()
                && this.systemctl(machine, &["is-active", "machine.target"]).is_ok())
        });
        match started {
            Ok(()) => Ok(Some(this)),
            Err(failure) => {
                let failure = this.daemon.failure(&failure.0).0;
                skip(check, &format!("systemd cannot run here: {}", failure.replace('\n', ";")));
                Ok(None)
            }
        }
    }

    /// Runs a program in systemd's namespaces.
    pub(super) fn run(&self, machine: &Namespace, words: &[&str]) -> Result<String> {
        let inside = ["-t", &self.pid, "--mount", "--pid", "--cgroup"];
        machine.run("nsenter", &[&inside[..], words].concat())
    }

    /// Runs `systemctl`.
    pub(super) fn systemctl(&self, machine: &Namespace, words: &[&str]) -> Result<String> {
        self.run(machine, &[&["systemctl"], words].concat())
    }

    /// Returns a property of a unit.
    pub(super) fn property(&self, machine: &Namespace, unit: &str, name: &str) -> Result<String> {
        let shown = self.systemctl(machine, &["show", "--value", "-p", name, unit])?;
        Ok(shown.trim().to_owned())
    }

    /// Checks a property.
    pub(super) fn expect(
        &self,
        machine: &Namespace,
        unit: &str,
        name: &str,
        expected: &str,
    ) -> Result<()> {
        let value = self.property(machine, unit, name)?;
        ensure(value == expected, || {
            self.explain(machine, &format!("{unit}: {name} is {value}, and not {expected}"))
        })
    }

    /// Adds to a failure the units that have failed, and the logs.
    pub(super) fn explain(&self, machine: &Namespace, what: &str) -> String {
        let failed = ["show", "--state=failed", "-p", "Id,Result,ExecMainStatus", "*"];
        let failed = self.systemctl(machine, &failed).unwrap_or_else(|e| e.0);
        let log = machine.run("cat", &["/var/log/openvpn/unit.log"]);
        let log = log.unwrap_or_else(|e| e.0);
        format!("{what}\n{failed}\n{log}\n{}", self.daemon.failure("meanwhile"))
    }
}

impl Drop for Systemd {
    fn drop(&mut self) {
        // Its processes end with it, and an empty group can be removed.
        let _ = self.daemon.signal(Signal::SIGKILL);
        remove_group(&self.group);
    }
}

/// Removes the group of a systemd that was killed.
pub(in super::super) fn remove_group(group: &str) {
    let _ = until("the end of systemd's group", SOON, || {
        let folders = HIERARCHIES.map(|folder| Path::new(folder).join(group));
        folders.iter().for_each(|folder| remove(folder));
        Ok(!folders.iter().any(|folder| folder.exists()))
    });
}

/// Removes the groups that runs have left which were killed: their sandboxes are gone. A group of a living one may be empty for a moment, before
/// its service is in it.
fn sweep() {
    let names = |folder: &Path| {
        let entries = fs::read_dir(folder).into_iter().flatten().flatten();
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect::<Vec<_>>()
    };
    let sandboxes = names(&std::env::temp_dir());
    for folder in HIERARCHIES.map(Path::new) {
        for name in names(folder) {
            let Some(owner) = name.strip_prefix(GROUP) else { continue };
            if !sandboxes.iter().any(|sandbox| owner.starts_with(&format!("{sandbox}-"))) {
                remove(&folder.join(&name));
            }
        }
    }
}

/// Removes a group and those in it, as far as they have no processes.
fn remove(group: &Path) {
    let inside = fs::read_dir(group).into_iter().flatten().flatten();
    inside.map(|entry| entry.path()).filter(|path| path.is_dir()).for_each(|path| remove(&path));
    let _ = fs::remove_dir(group);
}
