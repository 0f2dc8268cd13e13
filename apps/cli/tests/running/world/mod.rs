//! A managed server and its clients, each in its own namespace.
#![allow(dead_code, unused_imports, reason = "each test file uses a part of it")]

pub(crate) mod privileges;
pub(crate) mod terminal;

use std::fs;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::Output;

use adit_linux::net::Route;
use adit_linux::netns::NetNs;
pub(crate) use adit_testbed::test_process::{
    TestProcess, address, alive, answers, helper_of, kill_with_helper, until,
};

pub(crate) const ADIT: &str = env!("CARGO_BIN_EXE_adit");

/// Starts `adit`.
pub(crate) fn start(ns: &NetNs, arguments: &[&str], dir: &Path, log: &str) -> TestProcess {
    TestProcess::program(ns, ADIT, arguments, dir, log)
}

/// A server in a namespace, with its files in `dir/vpn`. Clients reach it at 192.0.2.1, and it is connected to an
/// outside network with 198.51.100.9.
pub(crate) struct Server {
    pub dir: tempfile::TempDir,
    pub ns: NetNs,
    pub outside: NetNs,
    clients: u8,
}

impl Server {
    /// Writes `rules.nft`, with which only these clients reach anything.
    pub(crate) fn accept_only(&self, clients: &str) {
        let rules = format!(
            "table inet vpn {{
    chain forward {{
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        ip saddr {clients} accept
    }}
}}
"
        );
        fs::write(self.dir.path().join("rules.nft"), rules).unwrap();
    }

    pub(crate) fn new(options: &str) -> Self {
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

    /// Runs `adit LINE --dir vpn` in the server's namespace. Returns whether it succeeded, and its output.
    pub(crate) fn adit(&self, line: &str) -> (bool, String) {
        let output = self.output(line);
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    fn output(&self, line: &str) -> Output {
        let mut command = self.ns.command(ADIT).unwrap();
        command.args(line.split_whitespace()).args(["--dir", "vpn"]).current_dir(&self.dir);
        command.output().unwrap()
    }

    pub(crate) fn run(&self) -> TestProcess {
        let arguments = ["server", "run", "--dir", "vpn"];
        let running = start(&self.ns, &arguments, self.dir.path(), "server.log");
        until("the server can be asked", || self.adit("status").0);
        running
    }

    /// Adds a client with its own namespace, which is connected to the server. Its profile is `NAME.ovpn`.
    pub(crate) fn client(&mut self, name: &str, options: &str) -> NetNs {
        let line = format!("server client add {name} -o {name}.ovpn {options}");
        let (made, said) = self.adit(&line);
        assert!(made, "{said}");
        let ns = NetNs::unnamed().unwrap();
        let cable = format!("c{}", self.clients);
        self.ns.connect(&cable, &ns, "up").unwrap();
        // Every veth pair is a separate network. The server's address is on its loopback interface.
        let net = |host: u8| format!("203.0.113.{}/30", self.clients * 4 + host);
        if self.clients == 0 {
            address(&self.ns, "lo", "192.0.2.1/32");
        }
        address(&self.ns, &cable, &net(1));
        address(&ns, "up", &net(2));
        keep_in(&ns);
        let gateway: Ipv4Addr = format!("203.0.113.{}", self.clients * 4 + 1).parse().unwrap();
        let route = Route::via("0.0.0.0/0".parse().unwrap(), gateway.into());
        ns.configure(async |net| net.add_route(&route).await).unwrap().unwrap();
        self.clients += 1;
        ns
    }

    pub(crate) fn connect(&self, ns: &NetNs, name: &str) -> TestProcess {
        let (profile, run) = (format!("{name}.ovpn"), format!("run-{name}"));
        // The namespace shares the host's own /etc.
        let arguments = ["connect", &profile, "--dns", "off", "--device", "vpn0", "--dir", &run];
        start(ns, &arguments, self.dir.path(), &format!("{name}.log"))
    }

    /// Replaces a text in the settings, which have it.
    pub(crate) fn edit_settings(&self, from: &str, to: &str) {
        let file = self.dir.path().join("vpn/server.toml");
        let text = fs::read_to_string(&file).unwrap();
        assert!(text.contains(from), "{text}");
        fs::write(&file, text.replace(from, to)).unwrap();
    }

    /// Returns the status of the server as JSON.
    pub(crate) fn status(&self) -> serde_json::Value {
        let (_, text) = self.adit("status --json");
        let reports: serde_json::Value = serde_json::from_str(&text).unwrap();
        reports[0].clone()
    }

    /// Returns the ids of the sessions.
    pub(crate) fn sessions(&self) -> Vec<u64> {
        let status = self.status();
        let peers = status["peers"].as_array().unwrap();
        peers.iter().map(|peer| peer["id"].as_u64().unwrap()).collect()
    }

    /// Returns the names of the connected clients.
    pub(crate) fn connected(&self) -> Vec<String> {
        let stdout = self.output("status --json").stdout;
        let reports: serde_json::Value = serde_json::from_slice(&stdout).unwrap_or_default();
        let peers = reports.get(0).and_then(|report| report["peers"].as_array().cloned());
        let names = peers.unwrap_or_default();
        names.iter().map(|peer| peer["name"].as_str().unwrap_or_default().to_owned()).collect()
    }

    pub(crate) fn await_connected(&self, names: &[&str]) {
        until(&format!("{names:?} are connected"), || {
            let mut have = self.connected();
            have.sort();
            have == names
        });
    }

    pub(crate) fn sysctl(&self, key: &str) -> String {
        let path = Path::new("/proc/sys").join(key);
        self.ns.run(|| fs::read_to_string(path).unwrap().trim().to_owned()).unwrap()
    }

    pub(crate) fn rules(&self) -> String {
        let output = self.ns.command("nft").unwrap().args(["list", "ruleset"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

/// Blocks packets to the tunnel's network outside the tunnel. Without this, they would reach the server, which answers
/// or forwards them, before a client has its routes.
fn keep_in(ns: &NetNs) {
    let rules = "table inet bed { chain out { type filter hook output priority 0; \
         oifname \"up\" ip daddr 10.73.0.0/24 drop; oifname \"up\" ip6 daddr fd73::/64 drop; }; }";
    assert!(ns.command("nft").unwrap().arg(rules).status().unwrap().success());
}
