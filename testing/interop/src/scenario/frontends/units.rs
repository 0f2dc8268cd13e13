//! Debian's service files: their command lines, word for word, with the restrictions that systemd would apply.

use std::fs;
use std::net::{IpAddr, Ipv4Addr};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use super::super::{Scenario, new_user};
use super::systemd::Systemd;
use super::{SOON, SystemLog, add_user, furnish, processes, unpacked};
use crate::case::{READY, SETUP_LIMIT};
use crate::failure::{Context, Result, ensure};
use crate::net::{Namespace, Pair};
use crate::pki::PkiTool;
use crate::process::Daemon;
use crate::traffic::ping;
use crate::wait::{ScaledInstant, until};

/// The server's address in the tunnel of the sample files.
const SERVER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 8, 0, 1));

/// The folder with Debian's service files.
pub(super) const UNITS: &str = "lib/systemd/system";

/// The folder with Debian's sample files.
const SAMPLES: &str = "usr/share/doc/openvpn/examples/sample-config-files";

/// The socket on which a unit notifies its manager, in /etc because the test and the unit both see that folder.
const NOTIFY: &str = "notify";

/// Confines a unit's program: `$1` is its working directory, `$2` the limit of processes if there is one, `$3` the capabilities. The devices are
/// those of the machine.
const CONFINE: &str = r#"set -e
directory=$1 processes=$2 capabilities=$3
shift 3
mount --rbind /usr /usr
mount -o remount,bind,ro /usr
for folder in /home /root; do mount -t tmpfs -o ro,mode=0000 tmpfs "$folder"; done
for folder in /tmp /var/tmp; do mount -t tmpfs -o mode=1777 tmpfs "$folder"; done
cd "$directory"
[ -z "$processes" ] || prlimit --nproc="$processes" --pid $$
exec setpriv --bounding-set="-all,$capabilities" --inh-caps=-all "$@"
"#;

/// A unit of Debian's package.
struct Unit(Vec<(String, String)>);

impl Unit {
    /// Reads a template for an instance.
    fn read(root: &Path, template: &str, instance: &str) -> Result<Self> {
        let path = root.join(UNITS).join(template);
        let text = fs::read_to_string(&path).context(path.display())?;
        let text = text.replace("%i", instance).replace("%t", "/run");
        let settings = text.lines().filter_map(|line| line.split_once('='));
        Ok(Self(settings.map(|(key, value)| (key.into(), value.into())).collect()))
    }

    fn get(&self, key: &str) -> Result<&str> {
        let found = self.0.iter().find(|(name, _)| name == key);
        found.map(|(_, value)| value.as_str()).context(format!("the unit has no {key}"))
    }

    /// Starts the program.
    fn start(&self, namespace: &Namespace) -> Result<Daemon> {
        for (key, expected) in [
            ("Type", "notify"),
            ("PrivateTmp", "true"),
            ("ProtectSystem", "true"),
            ("ProtectHome", "true"),
            ("KillMode", "process"),
        ] {
            let value = self.get(key)?;
            ensure(value == expected, || format!("another unit: {key}={value}"))?;
        }
        let capabilities = self.get("CapabilityBoundingSet")?.split_whitespace();
        let capabilities: Vec<String> = capabilities
            .map(|name| format!("+{}", name.trim_start_matches("CAP_").to_lowercase()))
            .collect();
        // It limits tasks instead, which needs systemd's groups of processes.
        let processes = self.get("LimitNPROC").unwrap_or_default();
        let mut command = namespace.command("env");
        let path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin";
        command.args(["-i", path, &format!("NOTIFY_SOCKET=/etc/{NOTIFY}"), "unshare", "--mount"]);
        command.args(["--propagation", "private", "sh", "-c", CONFINE, "sh"]);
        command.args([self.get("WorkingDirectory")?, processes, &capabilities.join(",")]);
        command.args(self.get("ExecStart")?.split_whitespace());
        Daemon::spawn("unit", command)
    }
}

/// What a unit tells its manager.
struct Notices {
    socket: UnixDatagram,
    text: String,
}

impl Notices {
    fn listen(etc: &Path) -> Result<Self> {
        let socket = UnixDatagram::bind(etc.join(NOTIFY))?;
        socket.set_read_timeout(Some(std::time::Duration::from_millis(100)))?;
        Ok(Self { socket, text: String::new() })
    }

    fn wait(&mut self, line: &str, unit: &Daemon) -> Result<()> {
        let limit = ScaledInstant::now() + SETUP_LIMIT;
        let mut buffer = [0; 4096];
        while !self.text.lines().any(|known| known == line) {
            ensure(ScaledInstant::now() < limit, || {
                unit.failure(&format!("no {line}, but: {}", self.text)).0
            })?;
            if let Ok(length) = self.socket.recv(&mut buffer) {
                self.text += &String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
                self.text.push('\n');
            }
        }
        Ok(())
    }
}

/// One end: a machine with a unit.
struct End {
    etc: PathBuf,
    notices: Notices,
    log: SystemLog,
}

impl End {
    /// Prepares a machine whose unit finds the sample file and the keys in `folder` of /etc.
    fn prepare(
        scenario: &Scenario<'_>,
        root: &Path,
        namespace: &mut Namespace,
        role: &str,
        folder: &str,
    ) -> Result<Self> {
        let etc = scenario.folder().join(role);
        let program = if role == "server" { scenario.server } else { scenario.client };
        let log = furnish(namespace, &etc, program, root)?;
        add_user(&etc, "adit", new_user())?;
        let notices = Notices::listen(&etc)?;
        let keys = etc.join(folder);
        fs::create_dir_all(&keys)?;
        for name in ["ca.crt".to_owned(), format!("{role}.crt"), format!("{role}.key")] {
            fs::copy(scenario.env.pki.file(PkiTool::EasyRsa, &name), keys.join(&name))
                .context(&name)?;
        }
        let samples = root.join(SAMPLES);
        fs::copy(samples.join("../sample-keys/dh2048.pem"), keys.join("dh2048.pem"))
            .context("dh2048.pem")?;
        let name = format!("{role}.conf");
        fs::copy(samples.join(&name), keys.join(&name)).context(&name)?;
        let hosts = etc.join("hosts");
        fs::write(&hosts, "127.0.0.1 localhost\n192.0.2.1 my-server-1\n")?;
        // From the package's tmpfiles.d.
        for name in ["openvpn", "openvpn-client", "openvpn-server"] {
            namespace.run("mkdir", &["-p", &format!("/run/{name}")])?;
        }
        Ok(Self { etc, notices, log })
    }
}

/// Checks that a unit that was stopped has left neither a process nor a device.
fn check_gone(namespace: &Namespace) -> Result<()> {
    until("the unit's processes are gone", SOON, || {
        Ok(processes(namespace, "openvpn")?.is_empty() && processes(namespace, "adit")?.is_empty())
    })?;
    let links = namespace.run("ip", &["-o", "link"])?;
    ensure(!links.contains("tun0"), || format!("the device is still there: {links}"))
}

/// Debian's sample files under openvpn-server@.service and openvpn-client@.service: the client is ready although the server is
/// away, both reload by SIGHUP, and leave nothing.
pub(in super::super) fn server_and_client(scenario: &Scenario<'_>) -> Result<String> {
    let check = "units/server-and-client";
    let Some(root) = unpacked(check, "frontends") else { return Ok("SKIPPED".into()) };
    let mut pair = Pair::new()?;
    let mut server = End::prepare(scenario, &root, &mut pair.server, "server", "openvpn/server")?;
    let mut client = End::prepare(scenario, &root, &mut pair.client, "client", "openvpn/client")?;
    let server_unit = Unit::read(&root, "openvpn-server@.service", "server")?;
    let client_unit = Unit::read(&root, "openvpn-client@.service", "client")?;
    let mut dialling = client_unit.start(&pair.client)?;
    client.notices.wait("READY=1", &dialling)?;
    let mut serving = server_unit.start(&pair.server)?;
    server.notices.wait("READY=1", &serving)?;
    let with_server = |e, serving: &Daemon| format!("{e}\n{}", serving.failure("meanwhile"));
    dialling.wait_for(READY, SETUP_LIMIT).map_err(|e| with_server(e, &serving))?;
    let line = dialling.wait_for(READY, SOON)?;
    ensure(line == READY, || format!("not bare: {line}"))?;
    ensure(ping(&pair.client, SERVER, 56, 4)? == 4, || serving.failure("no ping").0)?;
    let status = "/var/log/openvpn/openvpn-status.log";
    pair.server.run("test", &["-e", status]).map_err(|_| serving.failure("no status file"))?;
    // A reload of the server: it notifies its clients, which come back.
    serving.signal(Signal::SIGHUP)?;
    serving.wait_for_nth(READY, 2, SETUP_LIMIT)?;
    dialling.wait_for_nth(READY, 2, SETUP_LIMIT).map_err(|e| with_server(e, &serving))?;
    ensure(ping(&pair.client, SERVER, 56, 4)? > 0, || serving.failure("no ping").0)?;
    dialling.signal(Signal::SIGHUP)?;
    dialling.wait_for_nth(READY, 3, SETUP_LIMIT).map_err(|e| with_server(e, &serving))?;
    for (unit, namespace) in [(&mut dialling, &pair.client), (&mut serving, &pair.server)] {
        unit.signal(Signal::SIGTERM)?;
        let status = unit.wait_exit(SOON)?;
        ensure(status.success(), || unit.failure(&format!("ended with {status}")).0)?;
        check_gone(namespace)?;
    }
    Ok(String::new())
}

/// openvpn@.service: with `--daemon`, the process stays the one that systemd started, and its log goes to the system log.
pub(in super::super) fn daemon(scenario: &Scenario<'_>) -> Result<String> {
    let check = "units/daemon";
    let Some(root) = unpacked(check, "frontends") else { return Ok("SKIPPED".into()) };
    let mut pair = Pair::new()?;
    let mut server = End::prepare(scenario, &root, &mut pair.server, "server", "openvpn")?;
    let unit = Unit::read(&root, "openvpn@.service", "server")?;
    let mut serving = unit.start(&pair.server)?;
    server.notices.wait("READY=1", &serving)?;
    let pid_file = unit.get("PIDFile")?;
    let pid = pair.server.run("cat", &[pid_file])?;
    let main = server.notices.text.lines().find_map(|line| line.strip_prefix("MAINPID="));
    let main = main.map_or(serving.pid().to_string(), str::to_owned);
    ensure(pid.trim() == main, || format!("{pid_file} is {pid:?}, and the process {main}"))?;
    until("the log", SOON, || Ok(server.log.text().contains(READY)))?;
    let log = server.log.text();
    ensure(log.contains(&format!("ovpn-server[{main}]: ")), || format!("another name: {log}"))?;
    let status = "/var/log/openvpn/openvpn-status.log";
    pair.server.run("test", &["-e", status]).map_err(|_| format!("no status file: {log}"))?;
    let pid: i32 = main.parse().context("a process id")?;
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), Signal::SIGTERM)?;
    serving.wait_exit(SOON)?;
    check_gone(&pair.server)?;
    ensure(server.etc.exists(), || "no /etc".into())?;
    Ok(String::new())
}

/// The same units under a real systemd: `systemctl` starts, signals, kills and stops them.
pub(in super::super) fn under_systemd(scenario: &Scenario<'_>) -> Result<String> {
    let check = "units/systemd";
    let Some(root) = unpacked(check, "frontends") else { return Ok("SKIPPED".into()) };
    let mut pair = Pair::new()?;
    let server = End::prepare(scenario, &root, &mut pair.server, "server", "openvpn/server")?;
    let client = End::prepare(scenario, &root, &mut pair.client, "client", "openvpn/client")?;
    let Some(servers) = Systemd::start(check, &root, &pair.server, &server.etc)? else {
        return Ok("SKIPPED".into());
    };
    let Some(clients) = Systemd::start(check, &root, &pair.client, &client.etc)? else {
        return Ok("SKIPPED".into());
    };
    let (serving, dialling) = ("openvpn-server@server.service", "openvpn-client@client.service");
    let explain = |what: &str| {
        format!("{}\n{}", servers.explain(&pair.server, what), clients.explain(&pair.client, ""))
    };
    let start = |systemd: &Systemd, machine: &Namespace, unit: &str| {
        systemd.systemctl(machine, &["start", unit]).map_err(|e| explain(&e.0))?;
        systemd.expect(machine, unit, "ActiveState", "active")
    };
    // systemctl waits until a unit is ready. The client's server is away.
    start(&clients, &pair.client, dialling)?;
    start(&servers, &pair.server, serving)?;
    let connected = || {
        until("the tunnel", SETUP_LIMIT, || Ok(ping(&pair.client, SERVER, 56, 1)? == 1))
            .map_err(|e| explain(&e.0))
    };
    connected()?;
    let main = servers.property(&pair.server, serving, "MainPID")?;
    servers.systemctl(&pair.server, &["kill", "--kill-who=main", "-s", "HUP", serving])?;
    // Its log has a second line.
    until("the reload", SETUP_LIMIT, || {
        let log = pair.server.run("cat", &["/var/log/openvpn/unit.log"])?;
        Ok(log.matches(READY).count() == 2)
    })
    .map_err(|e| explain(&e.0))?;
    connected()?;
    servers.expect(&pair.server, serving, "MainPID", &main)?;
    // A crash: systemd starts it again, and the client comes back.
    servers.systemctl(&pair.server, &["kill", "--kill-who=main", "-s", "KILL", serving])?;
    until("the restart", SETUP_LIMIT, || {
        Ok(servers.property(&pair.server, serving, "NRestarts")? == "1"
            && servers.property(&pair.server, serving, "ActiveState")? == "active")
    })
    .map_err(|e| explain(&e.0))?;
    clients.systemctl(&pair.client, &["restart", dialling]).map_err(|e| explain(&e.0))?;
    connected()?;
    for (systemd, machine, unit) in
        [(&clients, &pair.client, dialling), (&servers, &pair.server, serving)]
    {
        systemd.systemctl(machine, &["stop", unit]).map_err(|e| explain(&e.0))?;
        systemd.expect(machine, unit, "ActiveState", "inactive")?;
        systemd.expect(machine, unit, "Result", "success")?;
        check_gone(machine).map_err(|e| explain(&e.0))?;
    }
    // openvpn@.service finds its files one level up.
    for name in ["ca.crt", "server.crt", "server.key", "dh2048.pem", "server.conf"] {
        let folder = server.etc.join("openvpn");
        fs::copy(folder.join("server").join(name), folder.join(name)).context(name)?;
    }
    let unit = "openvpn@server.service";
    start(&servers, &pair.server, unit)?;
    let main = servers.property(&pair.server, unit, "MainPID")?;
    let written = pair.server.run("cat", &["/run/openvpn/server.pid"])?;
    ensure(written.trim() == main, || explain(&format!("{main} has written {written}")))?;
    servers.systemctl(&pair.server, &["stop", unit]).map_err(|e| explain(&e.0))?;
    servers.expect(&pair.server, unit, "Result", "success")?;
    check_gone(&pair.server)?;
    Ok(String::new())
}
