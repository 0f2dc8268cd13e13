//! A Debian system that has booted: its systemd is pid 1 of a pid namespace, in a group of processes of its own.

use std::fs;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::super::frontends::processes;
use super::super::frontends::systemd::{GROUP, PROGRAM, TARGETS, remove_group};
use super::{Case, Machine};
use crate::failure::{Context, Result, ensure};
use crate::net::Namespace;
use crate::process::Daemon;
use crate::sandbox::text;
use crate::skip::skip;
use crate::wait::until;

/// The time within which a service reacts.
pub(super) const SOON: Duration = Duration::from_secs(30);

/// Boots a system. `$1` is its root, and `$2` the name of its group of processes.
const BOOT: &str = r#"set -e
mkdir "$1/groups"
mount -t cgroup2 cgroup2 "$1/groups"
mkdir "$1/groups/$2"
echo $$ > "$1/groups/$2/cgroup.procs"
exec unshare --cgroup --uts --pid --fork --kill-child --mount --propagation private sh -c '
    set -e
    mount -t proc proc "$1/proc"
    mount -t sysfs -o ro sysfs "$1/sys"
    mount -t cgroup2 cgroup2 "$1/sys/fs/cgroup"
    exec chroot "$1" env -i container=machine PATH=/usr/sbin:/usr/bin:/sbin:/bin \
        SYSTEMD_UNIT_PATH=/etc/units:/etc/systemd/system:/usr/lib/systemd/system SYSTEMD_GENERATOR_PATH=/none \
        SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/none \
        /lib/systemd/systemd --system  --unit=machine.target --log-target=console --show-status=no
' sh "$1"
"#;

/// The log of all services.
const LOG: &str = "var/log/services.log";

/// A system that has booted.
pub(super) struct Booted<'a> {
    machine: &'a Machine,
    pub(super) namespace: &'a Namespace,
    daemon: Daemon,
    group: String,
    pid: String,
}

impl<'a> Booted<'a> {
    /// Boots a system, whose services write into one log. `None` if systemd cannot run here; then the check is counted as skipped.
    pub(super) fn start(
        case: &Case<'_>,
        machine: &'a Machine,
        namespace: &'a Namespace,
        services: &[&str],
    ) -> Result<Option<Self>> {
        let units = machine.path("etc/units");
        fs::create_dir_all(&units)?;
        // The whole system would start much else.
        for name in TARGETS.iter().chain(&["network-pre"]) {
            let target = "[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\n";
            fs::write(units.join(format!("{name}.target")), target)?;
        }
        for service in services {
            let name = match service.split_once('@') {
                Some((template, _)) => format!("{template}@.service"),
                None => format!("{service}.service"),
            };
            let settings = units.join(format!("{name}.d"));
            fs::create_dir_all(&settings)?;
            let log = format!("[Service]\nStandardOutput=append:/{LOG}\nStandardError=inherit\n");
            fs::write(settings.join("log.conf"), log)?;
        }
        // The name of the sandbox is unique on the host.
        let sandbox = case.folder.parent().and_then(|folder| folder.file_name());
        let sandbox = sandbox.unwrap_or_default().to_string_lossy();
        let group = format!("{GROUP}{sandbox}-{}", namespace.name());
        let mut command = namespace.command("sh");
        command.args(["-c", BOOT, "sh", text(&machine.root), &group]);
        let daemon = Daemon::spawn("systemd", command)?;
        let mut this = Self { machine, namespace, daemon, group, pid: String::new() };
        let booted = until("systemd answers", SOON, || {
            ensure(this.daemon.ended()?.is_none(), || "it has ended".into())?;
            if let [pid] = processes(namespace, PROGRAM)?.as_slice() {
                this.pid.clone_from(pid);
            }
            Ok(!this.pid.is_empty()
                && this.run(&["systemctl", "is-active", "machine.target"]).is_ok())
        });
        if let Err(failure) = booted {
            let failure = this.daemon.failure(&failure.0).0;
            skip("packages/systemd", &format!("no systemd here: {}", failure.replace('\n', ";")));
            return Ok(None);
        }
        Ok(Some(this))
    }

    /// Runs a program in the system.
    pub(super) fn run(&self, words: &[&str]) -> Result<String> {
        let enter = ["-t", &self.pid, "--mount", "--pid", "--cgroup", "chroot"];
        let (program, arguments) = words.split_first().context("no program")?;
        let inside = self.machine.words(program);
        self.namespace.run("nsenter", &[&enter[..], &inside, arguments].concat())
    }

    /// Returns a property of a service.
    pub(super) fn property(&self, service: &str, name: &str) -> Result<String> {
        Ok(self.run(&["systemctl", "show", "--value", "-p", name, service])?.trim().to_owned())
    }

    /// Counts the lines of the services' log that contain a text.
    pub(super) fn logged(&self, text: &str) -> Result<usize> {
        let log = fs::read_to_string(self.machine.path(LOG))?;
        Ok(log.lines().filter(|line| line.contains(text)).count())
    }

    /// Installs a package over the one before, and returns what is printed.
    pub(super) fn install(&self, package: &Path) -> Result<String> {
        // From Debian 13 on, another file system may be mounted at /tmp.
        fs::copy(package, self.machine.path("root/adit.deb"))?;
        let line = "exec dpkg --install /root/adit.deb 2>&1";
        self.run(&["sh", "-c", line]).map_err(|e| self.explain(&e.0).into())
    }

    /// Adds the log to a failure.
    pub(super) fn explain(&self, what: &str) -> String {
        let log = fs::read_to_string(self.machine.path(LOG)).unwrap_or_default();
        format!("{what}\n{log}\n{}", self.daemon.failure("meanwhile"))
    }
}

impl Drop for Booted<'_> {
    fn drop(&mut self) {
        // Its processes end with it.
        let _ = self.daemon.signal(Signal::SIGKILL);
        remove_group(&self.group);
    }
}
