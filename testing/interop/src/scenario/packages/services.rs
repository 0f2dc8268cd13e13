//! The units under a real systemd: they start, reload, survive an upgrade, and end with the package.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::super::frontends::processes;
use super::super::frontends::systemd::{GROUP, PROGRAM, TARGETS, remove_group};
use super::{Case, Machine, OLDER, VERSION};
use crate::failure::{Context, Failure, Result, ensure};
use crate::net::{Namespace, Pair};
use crate::pki::PkiTool;
use crate::postgres::{Cluster, Options};
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

/// The services of the test: one of each unit. A server is before its client.
const SERVICES: [&str; 9] = [
    "adit-server",
    "adit-connect@laptop",
    "adit-bridge@office",
    "adit-mesh@home",
    "adit-postgres@vpn",
    "adit-tinc@office",
    "adit-openvpn@plain",
    "adit-openvpn-server@old",
    "adit-openvpn-client@branch",
];

/// The log line of a tunnel of `adit openvpn`, and the number of tunnels.
const COMPLETED: &str = "Initialization Sequence Completed";
const TUNNELS: usize = 3;

/// The role that owns the database, and its password.
const ADMIN: &str = "admin";

/// A list of clients whose layout is newer than every version knows.
const NEWER: &str = "{\"version\":999,\"clients\":7}";

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

    /// Waits until the client and the tunnels of `adit openvpn` were established this many times.
    fn wait_connected(&self, times: usize) -> Result<()> {
        until("the tunnels", SOON, || {
            Ok(self.logged("laptop: connected")? >= times
                && self.logged(COMPLETED)? >= TUNNELS * times)
        })
        .map_err(|e| self.explain(&e.0).into())
    }

    /// Returns the main process of each service.
    fn pids(&self) -> Result<Vec<String>> {
        SERVICES.iter().map(|service| self.property(service, "MainPID")).collect()
    }

    /// Installs a package over the one before, and returns what is printed.
    fn install(&self, package: &Path) -> Result<String> {
        fs::copy(package, self.machine.path("tmp/adit.deb"))?;
        let line = "exec dpkg --install /tmp/adit.deb 2>&1";
        self.run(&["sh", "-c", line]).map_err(|e| self.explain(&e.0).into())
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

/// Writes the settings of a bridge, a mesh, and of servers and a client of `adit openvpn`.
fn configure(case: &Case<'_>, machine: &Machine) -> Result<()> {
    let write = |file: &str, content: &str| -> Result<()> {
        let path = machine.path(file);
        fs::create_dir_all(path.parent().context("no folder")?)?;
        fs::write(path, content).context(file)
    };
    fs::create_dir_all(machine.path("etc/adit/connect"))?;
    let settings = "ports = [\"one0\", \"two0\"]\nrules = \"office.nft\"\n";
    write("etc/adit/bridge/office.toml", settings)?;
    let rules =
        "table bridge f { chain c { type filter hook forward priority 0; policy accept; } }\n";
    write("etc/adit/bridge/office.nft", rules)?;
    write("etc/adit/mesh/home/mesh.toml", "port = 1197\ntcp-port = 0\n")?;
    let keys = "dev tun\nca ca.crt\n";
    for (folder, name, port) in
        [("etc/openvpn", "plain", 1196), ("etc/openvpn/server", "old", 1195)]
    {
        let network = port - 1100;
        let server = format!(
            "{keys}cert server.crt\nkey server.key\ndh none\nport {port}\n\
             server 10.{network}.0.0 255.255.255.0\n"
        );
        write(&format!("{folder}/{name}.conf"), &server)?;
    }
    let client = format!("{keys}cert client.crt\nkey client.key\nclient\nremote 192.0.2.1 1195\n");
    write("etc/openvpn/client/branch.conf", &client)?;
    for (folder, end) in [
        ("etc/openvpn", "server"),
        ("etc/openvpn/server", "server"),
        ("etc/openvpn/client", "client"),
    ] {
        for name in ["ca.crt".to_owned(), format!("{end}.crt"), format!("{end}.key")] {
            let from = case.env.pki.file(PkiTool::OpenSslEc, &name);
            fs::copy(from, machine.path(folder).join(&name)).context(name)?;
        }
    }
    Ok(())
}

/// Starts a database in the namespace of the system, and makes the system the first node of a network in it.
fn with_database(case: &Case<'_>, system: &Booted<'_>) -> Result<Cluster> {
    let options = Options { namespace: Some(system.namespace), ..Options::default() };
    let cluster = Cluster::start(&case.folder.join("pg"), &options)?;
    cluster.create(ADMIN, ADMIN, "CREATEROLE")?;
    let url = format!("postgres://{ADMIN}:{ADMIN}@192.0.2.1/{ADMIN}?sslmode=disable");
    let words = ["--network", "10.9.0.0/24", "--name", "hub", "--network-name", "vpn", "--offline"];
    system.run(&[&["adit", "postgres", "init", &url][..], &words[..]].concat())?;
    Ok(cluster)
}

/// Services start with their restrictions, reload, run the new program after an upgrade, and end when the package goes. A version
/// that cannot read newer state says so, and changes nothing.
pub(super) fn services(case: &Case<'_>) -> Result<String> {
    let Some(machine) = case.machine()? else { return Ok("SKIPPED".into()) };
    machine.dpkg("--install", &[case.deb("adit", OLDER)?])?;
    configure(case, &machine)?;
    ensure(units(&machine)? == SERVICES.len(), || "the package has another unit".into())?;
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
    let _database = with_database(case, &system)?;
    system.run(&["adit", "tinc", "-n", "office", "init", "hub"])?;
    for service in SERVICES {
        system.run(&["systemctl", "start", service]).map_err(|e| system.explain(&e.0))?;
    }
    system.wait_connected(1)?;
    for service in ["adit-server", "adit-bridge@office", "adit-tinc@office"] {
        system.run(&["systemctl", "reload", service]).map_err(|e| system.explain(&e.0))?;
    }
    // The paths are those of Debian's tinc@office.
    let pid = system.run(&["adit", "tinc", "-n", "office", "pid"])?;
    ensure(pid.trim() == system.property("adit-tinc@office", "MainPID")?, || {
        system.explain(&format!("another process answers: {pid}"))
    })?;
    let status = system.run(&["adit", "status"])?;
    let shown = status.contains("tinc office: running") && status.contains("node hub, mode router");
    ensure(shown, || format!("no node of the tinc net: {status}"))?;
    // The system has other findings.
    let findings = system.run(&["sh", "-c", "adit doctor || true"])?;
    let known = findings.contains("tinc-office: this node runs, and knows no other");
    ensure(known, || format!("no finding about the tinc net: {findings}"))?;
    let before = system.pids()?;
    system.install(&case.deb("adit", VERSION)?)?;
    system.wait_connected(2)?;
    let after = system.pids()?;
    for ((service, before), after) in SERVICES.iter().zip(&before).zip(&after) {
        ensure(before != after, || system.explain(&format!("{service} was not restarted")))?;
        let state = system.property(service, "ActiveState")?;
        ensure(state == "active", || system.explain(&format!("{service} is {state}")))?;
    }
    sessions_pass(&system)?;

    let clients = machine.path("var/lib/adit/pki/clients.json");
    fs::write(&clients, NEWER)?;
    let printed = system.install(&case.deb("adit", OLDER)?)?;
    let sentence = "adit: a service did not start again";
    ensure(printed.contains(sentence), || system.explain(&format!("no sentence: {printed}")))?;
    let reason = "clients.json: written by a newer version of adit";
    ensure(system.logged(reason)? > 0, || system.explain("no reason"))?;
    ensure(fs::read_to_string(&clients)? == NEWER, || "newer state was changed".into())?;

    system.run(&["dpkg", "--purge", "adit"]).map_err(|e| system.explain(&e.0))?;
    let left = processes(&pair.server, "/usr/bin/adit")?;
    ensure(left.is_empty(), || system.explain(&format!("processes are left: {left:?}")))?;
    Ok(String::new())
}

/// The sessions of servers pass to their next processes, and the clients do not notice.
fn sessions_pass(system: &Booted<'_>) -> Result<()> {
    let continued = "1 sessions of the former process continue";
    let connected =
        || Ok::<_, Failure>((system.logged("laptop: connected")?, system.logged(COMPLETED)?));
    let before = (connected()?, system.logged(continued)?);
    for (service, times) in [("adit-server", 1), ("adit-openvpn-server@old", 2)] {
        system.run(&["systemctl", "restart", service]).map_err(|e| system.explain(&e.0))?;
        ensure(system.logged(continued)? == before.1 + times, || {
            system.explain(&format!("the session of {service} has ended"))
        })?;
    }
    let ((laptops, tunnels), after) = (before.0, connected()?);
    // The server of `adit openvpn` says so itself.
    ensure(after == (laptops, tunnels + 1), || system.explain("a client came again"))
}

/// Returns the number of the package's units.
fn units(machine: &Machine) -> Result<usize> {
    let names = fs::read_dir(machine.path("usr/lib/systemd/system"))?
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    Ok(names.filter(|name| name.starts_with("adit-")).count())
}
