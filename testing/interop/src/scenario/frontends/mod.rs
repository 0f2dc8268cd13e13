//! Programs that start `openvpn`, and scripts that it runs, with adit in openvpn's place.

pub(super) mod background;
pub(super) mod guides;
pub(super) mod network_manager;
pub(super) mod resolvers;
pub(super) mod systemd;
pub(super) mod units;

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use crate::failure::{Context, Result};
use crate::file;
use crate::net::Namespace;
use crate::peer::Program;
use crate::process::{Daemon, run};
use crate::skip::skip;
use crate::wait::until;

/// The time within which a program reacts.
const SOON: Duration = Duration::from_secs(20);

/// The folder in which scripts/frontends.sh unpacks Debian's packages.
const ROOTS: &str = "target/roots";

/// Gives a namespace with its own /etc, /run and /var/lib also its own /dev, /sys and /var/log, the packages in the root `$1`,
/// and the program `$2` as /usr/sbin/openvpn (if it is not empty).
const FURNISH: &str = r#"set -e
mkdir /run/dev
mount -t tmpfs -o mode=0755 tmpfs /run/dev
mkdir /run/dev/net
for device in null zero full random urandom tty net/tun; do
    touch "/run/dev/$device"
    mount --bind "/dev/$device" "/run/dev/$device"
done
ln -s /proc/self/fd /run/dev/fd
ln -s /etc/log /run/dev/log
mount --move /run/dev /dev
mount -o remount,bind,ro /sys
mount -t tmpfs -o mode=0755 tmpfs /var/log
mkdir /var/log/openvpn
mkdir /run/layer /run/layer/new /run/layer/work
layers="lowerdir=$1/usr:/usr,upperdir=/run/layer/new,workdir=/run/layer/work"
mount -t overlay overlay -o "$layers" /usr
for folder in bin sbin lib; do
    [ ! -d "$1/$folder" ] || cp -a "$1/$folder/." "/usr/$folder/"
done
cp -an "$1/etc/." /etc/
[ -z "$2" ] || mount --bind "$2" /usr/sbin/openvpn
"#;

/// Returns the folder with unpacked packages. Without it, counts the check as skipped.
fn unpacked(check: &str, name: &str) -> Option<PathBuf> {
    let root = Path::new(ROOTS).join(name).canonicalize().ok();
    if root.is_none() {
        skip(check, "no programs of Debian: scripts/frontends.sh fetches them");
    }
    root
}

/// Makes a namespace a machine of its own, on which `openvpn` is `program`. `etc` becomes a copy of /etc, to which the caller
/// may add files. Returns what programs send to its system log.
fn furnish(
    namespace: &mut Namespace,
    etc: &Path,
    program: &Program,
    root: &Path,
) -> Result<SystemLog> {
    fs::create_dir_all(etc)?;
    let folder = etc.display().to_string();
    run("cp", &["-an", "/etc/.", &folder])?;
    // Nothing that this machine starts starts there.
    let _ = fs::remove_dir_all(etc.join("systemd/system"));
    // It may be a link into /run.
    let _ = fs::remove_file(etc.join("resolv.conf"));
    fs::write(etc.join("resolv.conf"), "nameserver 192.0.2.1\n")?;
    let log = SystemLog::listen(&etc.join("log"))?;
    namespace.separate_files(etc)?;
    let program = match program {
        Program::Adit(path) => path.canonicalize().context(path.display())?,
        _ => PathBuf::new(),
    };
    let (root, program) = (root.display().to_string(), program.display().to_string());
    namespace.run("sh", &["-c", FURNISH, "sh", &root, &program])?;
    Ok(log)
}

/// The system log of a machine.
struct SystemLog(Arc<Mutex<Vec<String>>>);

impl SystemLog {
    fn listen(path: &Path) -> Result<Self> {
        let socket = UnixDatagram::bind(path).context(path.display())?;
        file::set_mode(path, 0o666)?;
        socket.set_read_timeout(Some(Duration::from_millis(100)))?;
        let lines = Arc::new(Mutex::new(Vec::new()));
        let weak = Arc::downgrade(&lines);
        thread::spawn(move || {
            let mut buffer = [0; 8192];
            while let Some(lines) = weak.upgrade() {
                if let Ok(length) = socket.recv(&mut buffer) {
                    let line = String::from_utf8_lossy(buffer.get(..length).unwrap_or_default());
                    lines.lock().unwrap_or_else(PoisonError::into_inner).push(line.into_owned());
                }
            }
        });
        Ok(Self(lines))
    }

    /// Returns all lines so far.
    fn text(&self) -> String {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).join("\n")
    }
}

/// The message bus, without policies: all its users are trusted here.
const BUS: &str = "<busconfig><type>system</type><listen>unix:path=/run/dbus/system_bus_socket</listen>\
     <auth>EXTERNAL</auth><policy context=\"default\"><allow user=\"*\"/><allow own=\"*\"/>\
     <allow send_destination=\"*\" eavesdrop=\"true\"/><allow receive_sender=\"*\"/></policy></busconfig>";

/// Starts the message bus of a machine.
fn start_bus(machine: &Namespace, etc: &Path) -> Result<Daemon> {
    fs::write(etc.join("bus.conf"), BUS)?;
    machine.run("mkdir", &["-p", "/run/dbus"])?;
    let mut bus = machine.command("dbus-daemon");
    bus.args(["--config-file=/etc/bus.conf", "--nofork", "--nopidfile"]);
    let bus = Daemon::spawn("dbus-daemon", bus)?;
    until("the message bus", SOON, || {
        Ok(machine.run("test", &["-S", "/run/dbus/system_bus_socket"]).is_ok())
    })?;
    Ok(bus)
}

/// Adds a user and a group of the same name, which the package of a program would create.
fn add_user(etc: &Path, name: &str, number: u32) -> Result<()> {
    for (file, line) in [
        ("passwd", format!("{name}:x:{number}:{number}::/:/usr/sbin/nologin\n")),
        ("group", format!("{name}:x:{number}:\n")),
    ] {
        let path = etc.join(file);
        let text = fs::read_to_string(&path).context(path.display())?;
        if !text.lines().any(|known| known.starts_with(&format!("{name}:"))) {
            fs::write(&path, text + &line)?;
        }
    }
    Ok(())
}

/// Returns the ids of the processes in a namespace whose command line contains a text.
pub(super) fn processes(namespace: &Namespace, text: &str) -> Result<Vec<String>> {
    let pids = run("ip", &["netns", "pids", namespace.name()])?;
    let contains = |pid: &&str| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        String::from_utf8_lossy(&line).replace('\0', " ").contains(text)
    };
    Ok(pids.split_whitespace().filter(contains).map(str::to_owned).collect())
}
