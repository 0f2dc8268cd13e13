//! The units under a real systemd: they start, reload, survive an upgrade, and end with the package.

use std::fs;
use std::os::unix::fs::symlink;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::super::frontends::processes;
use super::super::frontends::systemd::{GROUP, PROGRAM, TARGETS, remove_group};
use super::{Case, Machine, OLDER, VERSION};
use crate::failure::{Context, Result, ensure};
use crate::net::{Namespace, Pair};
use crate::pki::PkiTool;
use crate::process::Daemon;
use crate::sandbox::text;
use crate::skip::skip;
use crate::wait::until;

/// The time within which a service reacts.
const SOON: Duration = Duration::from_secs(30);

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
    exec chroot "$1" env -i container=machine PATH=/usr/sbin:/usr/bin:/sbin:/bin SYSTEMD_UNIT_PATH=/etc/units \
        SYSTEMD_GENERATOR_PATH=/none SYSTEMD_ENVIRONMENT_GENERATOR_PATH=/none \
        /lib/systemd/systemd --system  --unit=machine.target --log-target=console --show-status=no
' sh "$1"
"#;

/// The services of the test.
const SERVICES: [&str; 4] =
    ["adit-server", "adit-connect@laptop", "adit-bridge@office", "adit-openvpn-server@old"];

/// The log of all services.
const LOG: &str = "var/log/services.log";

/// A system that has booted.
struct Booted<'a> {
    machine: &'a Machine,
    namespace: &'a Namespace,
    daemon: Daemon,
    group: String,
    pid: String,
}

impl<'a> Booted<'a> {
    /// Boots a system. `None` if systemd cannot run here; then the check is counted as skipped.
    fn start(
        case: &Case<'_>,
        machine: &'a Machine,
        namespace: &'a Namespace,
    ) -> Result<Option<Self>> {
        let units = machine.path("etc/units");
        fs::create_dir_all(&units)?;
        // The whole system would start much else.
        for name in TARGETS.iter().chain(&["network-pre"]) {
            let target = "[Unit]\nDefaultDependencies=no\nAllowIsolate=yes\n";
            fs::write(units.join(format!("{name}.target")), target)?;
        }
        for service in SERVICES {
            let name = match service.split_once('@') {
                Some((template, _)) => format!("{template}@.service"),
                None => format!("{service}.service"),
            };
            symlink(format!("/usr/lib/systemd/system/{name}"), units.join(&name))?;
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
            skip("packages/services", &format!("no systemd here: {}", failure.replace('\n', ";")));
            return Ok(None);
        }
        Ok(Some(this))
    }

    /// Runs a program in the system.
    fn run(&self, words: &[&str]) -> Result<String> {
        let enter = ["-t", &self.pid, "--mount", "--pid", "--cgroup", "chroot"];
        let (program, arguments) = words.split_first().context("no program")?;
        let inside = self.machine.words(program);
        self.namespace.run("nsenter", &[&enter[..], &inside, arguments].concat())
    }

    /// Returns a property of a service.
    fn property(&self, service: &str, name: &str) -> Result<String> {
        Ok(self.run(&["systemctl", "show", "--value", "-p", name, service])?.trim().to_owned())
    }

    /// Counts the lines of the services' log that contain a text.
    fn logged(&self, text: &str) -> Result<usize> {
        let log = fs::read_to_string(self.machine.path(LOG))?;
        Ok(log.lines().filter(|line| line.contains(text)).count())
    }

    /// Adds the log to a failure.
    fn explain(&self, what: &str) -> String {
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

/// Writes the settings of a bridge and of an openvpn server.
fn configure(case: &Case<'_>, machine: &Machine) -> Result<()> {
    let (bridge, openvpn) = (machine.path("etc/adit/bridge"), machine.path("etc/openvpn/server"));
    for folder in [&bridge, &openvpn, &machine.path("etc/adit/connect")] {
        fs::create_dir_all(folder)?;
    }
    let settings = "ports = [\"one0\", \"two0\"]\nrules = \"office.nft\"\n";
    fs::write(bridge.join("office.toml"), settings)?;
    let rules =
        "table bridge f { chain c { type filter hook forward priority 0; policy accept; } }\n";
    fs::write(bridge.join("office.nft"), rules)?;
    let configuration = "port 1195\ndev tun\nserver 10.99.0.0 255.255.255.0\n\
         ca ca.crt\ncert server.crt\nkey server.key\ndh none\n";
    fs::write(openvpn.join("old.conf"), configuration)?;
    for name in ["ca.crt", "server.crt", "server.key"] {
        let from = case.env.pki.file(PkiTool::OpenSslEc, name);
        fs::copy(from, openvpn.join(name)).context(name)?;
    }
    Ok(())
}

/// Services start with their restrictions, reload, run the new program after an upgrade, and end when the package goes.
pub(super) fn services(case: &Case<'_>) -> Result<String> {
    let Some(machine) = case.machine()? else { return Ok("SKIPPED".into()) };
    machine.dpkg("--install", &[case.deb("adit", OLDER)?])?;
    configure(case, &machine)?;
    let pair = Pair::new()?;
    for (port, other) in [("one0", "one1"), ("two0", "two1")] {
        pair.server.run("ip", &["link", "add", port, "type", "veth", "peer", "name", other])?;
    }
    let Some(system) = Booted::start(case, &machine, &pair.server)? else {
        return Ok("SKIPPED".into());
    };
    system.run(&["adit", "server", "init", "--host", "192.0.2.1"])?;
    let profile = "/etc/adit/connect/laptop.ovpn";
    system.run(&["adit", "server", "client", "add", "laptop", "-o", profile])?;
    for service in SERVICES {
        system.run(&["systemctl", "start", service]).map_err(|e| system.explain(&e.0))?;
    }
    let connected = |times: usize| {
        until("the client", SOON, || Ok(system.logged("laptop: connected")? >= times))
            .map_err(|e| system.explain(&e.0))
    };
    connected(1)?;
    for service in ["adit-server", "adit-bridge@office"] {
        system.run(&["systemctl", "reload", service]).map_err(|e| system.explain(&e.0))?;
    }
    let pids = || -> Result<Vec<String>> {
        SERVICES.iter().map(|service| system.property(service, "MainPID")).collect()
    };
    let before = pids()?;

    let package = case.deb("adit", VERSION)?;
    fs::copy(&package, machine.path("tmp/adit.deb"))?;
    system.run(&["dpkg", "--install", "/tmp/adit.deb"]).map_err(|e| system.explain(&e.0))?;
    connected(2)?;
    let after = pids()?;
    for ((service, before), after) in SERVICES.iter().zip(&before).zip(&after) {
        ensure(before != after, || system.explain(&format!("{service} was not restarted")))?;
        let state = system.property(service, "ActiveState")?;
        ensure(state == "active", || system.explain(&format!("{service} is {state}")))?;
    }
    system.run(&["dpkg", "--purge", "adit"]).map_err(|e| system.explain(&e.0))?;
    let left = processes(&pair.server, "/usr/bin/adit")?;
    ensure(left.is_empty(), || system.explain(&format!("processes are left: {left:?}")))?;
    Ok(String::new())
}
