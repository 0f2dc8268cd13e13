//! A managed server and its clients in namespaces of their own.
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod rights;

use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use adit_linux::net::{Address, Route};
use adit_linux::netns::NetNs;

pub const ADIT: &str = env!("CARGO_BIN_EXE_adit");
const PATIENCE: Duration = Duration::from_secs(30);

/// A process that does not outlive the test.
pub struct Running {
    pub child: Child,
    log: PathBuf,
}

impl Running {
    pub fn start(ns: &NetNs, arguments: &[&str], dir: &Path, log: &str) -> Self {
        Self::program(ns, ADIT, arguments, dir, log)
    }

    pub fn program(ns: &NetNs, program: &str, args: &[&str], dir: &Path, log: &str) -> Self {
        let log = dir.join(log);
        let output = File::options().create(true).append(true).open(&log).unwrap();
        let child = ns
            .command(program)
            .unwrap()
            .args(args)
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(output.try_clone().unwrap())
            .stderr(output)
            .spawn()
            .unwrap();
        Self { child, log }
    }

    pub fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub fn signal(&mut self, name: &str) {
        let pid = self.child.id().to_string();
        assert!(Command::new("kill").args(["-s", name, &pid]).status().unwrap().success());
    }

    /// Asks it to end and returns its exit code.
    pub fn end(&mut self) -> Option<i32> {
        self.signal("TERM");
        until("the process ends", || self.child.try_wait().unwrap().is_some());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        if std::thread::panicking() {
            eprintln!("--- {}:\n{}", self.log.display(), self.log());
        }
    }
}

/// The helper of a process, if it has one.
pub fn helper_of(pid: u32) -> Option<u32> {
    let parent = pid.to_string();
    fs::read_dir("/proc").unwrap().flatten().find_map(|entry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let text = fs::read_to_string(entry.path().join("status")).ok()?;
        let field = |name: &str| text.lines().find_map(|line| line.strip_prefix(name));
        let is_it = field("Name:")?.trim() == "adit-helper" && field("PPid:")?.trim() == parent;
        is_it.then_some(pid)
    })
}

/// Kills a process and its helper, which would undo at once what the other leaves: so the helper first.
pub fn kill_with_helper(running: &mut Running) {
    let pid = running.child.id();
    let helper = helper_of(pid).unwrap();
    let pids = [helper, pid].map(|pid| pid.to_string());
    assert!(Command::new("kill").arg("-9").args(pids).status().unwrap().success());
    running.child.wait().unwrap();
    until("the helper has ended", || !alive(helper));
}

/// Whether a process runs: a zombie only waits for its parent.
pub fn alive(pid: u32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|text| {
        !text.lines().any(|line| line.starts_with("State:") && line.contains('Z'))
    })
}

/// Waits until a condition holds; a test that waits longer has failed.
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < PATIENCE, "not in {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A created server in a namespace: `dir/vpn`, reachable at 192.0.2.1 by clients and connected to
/// an outside at 198.51.100.9.
pub struct Server {
    pub dir: tempfile::TempDir,
    pub ns: NetNs,
    pub outside: NetNs,
    clients: u8,
}

impl Server {
    pub fn new(options: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (ns, outside) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
        ns.connect("out", &outside, "in").unwrap();
        address(&ns, "out", "198.51.100.1/24");
        address(&outside, "in", "198.51.100.9/24");
        let this = Self { dir, ns, outside, clients: 0 };
        let made = this.adit(&format!(
            "server init --host 192.0.2.1 --network 10.73.0.0/24 --network6 fd73::/64 {options}"
        ));
        assert!(made.0, "{}", made.1);
        this
    }

    /// Runs `adit LINE --dir vpn` in the server's namespace; whether it went well, and its words.
    pub fn adit(&self, line: &str) -> (bool, String) {
        let output = self
            .ns
            .command(ADIT)
            .unwrap()
            .args(line.split_whitespace())
            .args(["--dir", "vpn"])
            .current_dir(&self.dir)
            .output()
            .unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    pub fn run(&self) -> Running {
        let arguments = ["server", "run", "--dir", "vpn"];
        let running = Running::start(&self.ns, &arguments, self.dir.path(), "server.log");
        until("the server can be asked", || self.adit("status").0);
        running
    }

    /// Adds a client with a namespace on the server's doorstep. Its profile is `NAME.ovpn`.
    pub fn client(&mut self, name: &str, options: &str) -> NetNs {
        let line = format!("server client add {name} -o {name}.ovpn {options}");
        let (made, said) = self.adit(&line);
        assert!(made, "{said}");
        let ns = NetNs::unnamed().unwrap();
        let cable = format!("c{}", self.clients);
        self.ns.connect(&cable, &ns, "up").unwrap();
        // Every cable a network of its own; the server's address lies on its loopback.
        let net = |host: u8| format!("203.0.113.{}/30", self.clients * 4 + host);
        if self.clients == 0 {
            address(&self.ns, "lo", "192.0.2.1/32");
        }
        address(&self.ns, &cable, &net(1));
        address(&ns, "up", &net(2));
        let gateway: Ipv4Addr = format!("203.0.113.{}", self.clients * 4 + 1).parse().unwrap();
        let route = Route::via("0.0.0.0/0".parse().unwrap(), gateway.into());
        ns.configure(async |net| net.add_route(&route).await).unwrap().unwrap();
        self.clients += 1;
        ns
    }

    pub fn connect(&self, ns: &NetNs, name: &str) -> Running {
        let (profile, run) = (format!("{name}.ovpn"), format!("run-{name}"));
        // /etc is the machine's own here.
        let arguments = ["connect", &profile, "--dns", "off", "--device", "vpn0", "--dir", &run];
        Running::start(ns, &arguments, self.dir.path(), &format!("{name}.log"))
    }

    /// Names of the connected clients.
    pub fn connected(&self) -> Vec<String> {
        let (_, text) = self.adit("status --json");
        let reports: serde_json::Value = serde_json::from_str(&text).unwrap_or_default();
        let peers = reports.get(0).and_then(|report| report["peers"].as_array().cloned());
        let names = peers.unwrap_or_default();
        names.iter().map(|peer| peer["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    pub fn await_connected(&self, names: &[&str]) {
        until(&format!("{names:?} are connected"), || {
            let mut have = self.connected();
            have.sort();
            have == names
        });
    }

    pub fn sysctl(&self, key: &str) -> String {
        let path = Path::new("/proc/sys").join(key);
        self.ns.run(|| fs::read_to_string(path).unwrap().trim().to_owned()).unwrap()
    }

    pub fn rules(&self) -> String {
        let output = self.ns.command("nft").unwrap().args(["list", "ruleset"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

pub fn address(ns: &NetNs, device: &str, net: &str) {
    let net = net.parse().unwrap();
    ns.configure(async |handle| {
        let link = handle.link(device).await?;
        handle.add_address(&Address::new(link.index, net)).await
    })
    .unwrap()
    .unwrap();
}

/// Whether an address answers pings from within a namespace, within a few tries.
pub fn answers(ns: &NetNs, address: &str) -> bool {
    let mut ping = ns.command("ping").unwrap();
    ping.args(["-c", "1", "-W", "1", address]).stdout(Stdio::null()).stderr(Stdio::null());
    (0..3).any(|_| ping.status().unwrap().success())
}
