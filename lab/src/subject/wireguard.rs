//! wireguard-go, preferably a recent one from a private root.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};

use adit_testbed::failure::{Context, Result, ensure};
use adit_testbed::net::Namespace;
use adit_testbed::process::{Daemon, output, run};
use adit_testbed::tunnel::InnerAddrs;

use super::start::{
    Processes, SETUP_LIMIT, address_lines, endpoint, inner, inners, ip_batch, no_lines,
    wait_for_device,
};
use super::toolchain::{Toolchain, first_line};
use super::{TunnelSpec, Tunnels, reach, revision};
use crate::testbed::Testbed;

const INSTALL: &str = "scripts/lab-deps.sh fetches a recent one";
const PORT: u16 = 51820;

/// Returns the program in the private root that `scripts/lab-deps.sh` fetches, or else the system's.
fn program() -> PathBuf {
    let root = revision::workspace().ok();
    let fetched = root.map(|root| root.join("target/roots/sid/usr/bin/wireguard-go"));
    // A binary for another architecture, or for a newer C library than the system's, does not start.
    let starts = |path: &PathBuf| run(&path.to_string_lossy(), &["--version"]).is_ok();
    fetched.filter(starts).unwrap_or_else(|| "wireguard-go".into())
}

/// Returns the first line of `wireguard-go --version`; `wg` must also be installed.
pub(super) fn version() -> std::result::Result<String, String> {
    let tools = "apt install wireguard-tools, or: scripts/lab-deps.sh";
    first_line(Path::new("wg"), &["--version"], tools)?;
    let line = first_line(&program(), &["--version"], INSTALL)?;
    Ok(if is_old(&line) { format!("{line} (old: {INSTALL})") } else { line })
}

/// Returns whether wireguard-go is from before 2023. Such versions have neither UDP GSO nor TUN offloads, and are
/// several times slower.
fn is_old(version: &str) -> bool {
    let year = version.rsplit_once(".20").and_then(|(_, rest)| rest.get(..2)?.parse::<u32>().ok());
    year.is_some_and(|year| year < 23)
}

/// Starts a daemon on every host, configured by `wg setconf`.
pub(super) fn start(
    toolchain: &Toolchain,
    testbed: &Testbed,
    spec: &TunnelSpec,
) -> Result<Tunnels> {
    no_lines(spec, "wireguard-go")?;
    let folder = toolchain.scratch()?;
    let keys = keys(testbed.clients.len() + 1)?;
    let confs = confs(testbed, spec, &keys)?;
    let program = program();
    let devices = Devices::new();
    let command = |number: usize, host: &Namespace| {
        let mut command = host.command(&program.to_string_lossy());
        command.args(["-f", &devices.name(number)]);
        command
    };
    let mut processes = Processes::default();
    processes.server.push(Daemon::spawn("server", command(0, &testbed.server))?);
    processes.dial(testbed, |index, host| Ok(command(index + 1, host)))?;
    let hosts = std::iter::once(&testbed.server).chain(&testbed.clients);
    let daemons = processes.server.iter_mut().chain(processes.clients.iter_mut().flatten());
    for (number, ((host, daemon), conf)) in hosts.zip(daemons).zip(&confs).enumerate() {
        let device = devices.name(number);
        let path = folder.path().join(format!("{device}.conf"));
        fs::write(&path, conf).context(path.display())?;
        wait_for_device(daemon, host, &device)?;
        wait_for_socket(daemon, &device)?;
        configure(host, &device, inner(number)?, &path, spec)?;
    }
    let server_inner = inner(0)?;
    reach::all(&testbed.clients, server_inner.v4, SETUP_LIMIT).map_err(|f| processes.blame(f))?;
    let mut tunnels = processes.into_tunnels(server_inner, inners(testbed)?);
    let names = ["server.conf", "client1.conf"].into_iter().zip(&confs);
    tunnels.configs = names.map(|(name, conf)| (name.to_owned(), without_keys(conf))).collect();
    tunnels.notes = vec!["wireguard's only cipher: ChaCha20-Poly1305".to_owned()];
    if spec.inner_mtu.is_none() {
        tunnels.notes.push("MTU inside the tunnel: the program's default, 1420".to_owned());
    }
    if version().is_ok_and(|version| is_old(&version)) {
        tunnels.notes.push(format!("this wireguard-go is old and slow: {INSTALL}"));
    }
    tunnels.folder = Some(folder);
    Ok(tunnels)
}

/// The names of the devices. All hosts share the folder of the control sockets, which are named after the devices, so
/// no two tunnels of a run may have the same name.
#[derive(Debug, Clone, Copy)]
struct Devices(u32);

impl Devices {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        Self(NEXT.fetch_add(1, Ordering::Relaxed))
    }

    /// Returns the name of a host's device; the server is number 0. The name has at most 15 bytes for up to 10 million
    /// tunnels.
    fn name(self, number: usize) -> String {
        format!("wg{}-{number}", self.0)
    }
}

/// Configures keys and peers from the file, then addresses, then sets the device up.
fn configure(
    host: &Namespace,
    device: &str,
    inner: InnerAddrs,
    conf: &Path,
    spec: &TunnelSpec,
) -> Result<()> {
    let mut setconf = host.command("wg");
    setconf.args(["setconf", device]).arg(conf);
    output(setconf)?;
    let mtu = spec.inner_mtu.map(|mtu| format!("mtu {mtu} ")).unwrap_or_default();
    let address = address_lines(inner, device);
    ip_batch(host, &format!("{address}link set dev {device} {mtu}up\n"))
}

fn wait_for_socket(daemon: &Daemon, device: &str) -> Result<()> {
    let socket = PathBuf::from(format!("/var/run/wireguard/{device}.sock"));
    for _ in 0..500 {
        if std::os::unix::net::UnixStream::connect(&socket).is_ok() {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    Err(daemon.failure(&format!("{}: no answer after 10 s", socket.display())))
}

/// Returns `(private, public)` keys as `wg` writes them.
fn keys(count: usize) -> Result<Vec<(String, String)>> {
    let script = format!(
        "for i in $(seq {count}); do k=$(wg genkey) && echo \"$k $(echo \"$k\" | wg pubkey)\" || exit 1; done"
    );
    let listing = run("sh", &["-c", &script])?;
    let pair = |line: &str| {
        line.split_once(' ').map(|(private, public)| (private.to_owned(), public.to_owned()))
    };
    let keys: Vec<_> = listing.lines().filter_map(pair).collect();
    ensure(keys.len() == count, || format!("wg made {} of {count} keys", keys.len()))?;
    Ok(keys)
}

/// Returns the files for `wg setconf`: the server's, then those of the clients.
fn confs(testbed: &Testbed, spec: &TunnelSpec, keys: &[(String, String)]) -> Result<Vec<String>> {
    let allowed = |inner: InnerAddrs| {
        let v6 = inner.v6.map(|v6| format!(", {v6}/128")).unwrap_or_default();
        format!("{}/32{v6}", inner.v4)
    };
    let [(server_private, server_public), clients @ ..] = keys else {
        return Err("wg made no keys".into());
    };
    let mut server = format!("[Interface]\nPrivateKey = {server_private}\nListenPort = {PORT}\n");
    let mut confs = Vec::new();
    let outer = endpoint(testbed.server_outer(spec.outer_v6), PORT);
    let to_server = allowed(inner(0)?);
    for (number, (private, public)) in (1..).zip(clients) {
        // Writing to a String cannot fail.
        let peer = allowed(inner(number)?);
        let _ = write!(server, "\n[Peer]\nPublicKey = {public}\nAllowedIPs = {peer}\n");
        confs.push(format!(
            "[Interface]\nPrivateKey = {private}\n\n[Peer]\nPublicKey = {server_public}\n\
             AllowedIPs = {to_server}\nEndpoint = {outer}\n"
        ));
    }
    confs.insert(0, server);
    Ok(confs)
}

fn without_keys(conf: &str) -> String {
    let kept = conf.lines().map(|line| match line.split_once(" = ") {
        Some((name @ ("PrivateKey" | "PublicKey"), _)) => format!("{name} = ...\n"),
        _ => format!("{line}\n"),
    });
    kept.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn knows_old_versions_by_their_date() {
        assert!(is_old("wireguard-go v0.0.20220316"));
        assert!(!is_old("wireguard-go v0.0.20230223"));
        assert!(!is_old("wireguard-go v0.0.20250522"));
        assert!(!is_old("wireguard-go unknown"));
    }

    #[test]
    fn a_report_holds_no_keys() {
        let conf = "[Interface]\nPrivateKey = secret=\nListenPort = 1\n[Peer]\nPublicKey = p=\n";
        let shown = without_keys(conf);
        assert!(!shown.contains("secret") && shown.contains("ListenPort = 1"), "{shown}");
    }
}
