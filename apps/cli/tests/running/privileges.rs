//! Tests of the users and privileges of the network processes of a bridge, a PostgreSQL node and a check, even if no user or helper is
//! available.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use adit_linux::netns::NetNs;
use adit_testbed::file;

use crate::world::privileges::{assert_all_without_rights, assert_helper, can_read, status, tasks};
use crate::world::{self, ADIT, Server, TestProcess, address, alive, answers, helper_of, until};

/// Writes a rule set that includes another file.
fn write_rules(dir: &Path, verdict: &str) {
    let more = dir.join("more.nft");
    let text = format!(
        "table inet fw {{\n    chain forward {{\n        type filter hook forward priority 0; policy {verdict};\n    }}\n}}\n"
    );
    file::write(&more, text, 0o600).unwrap();
    file::write(dir.join("rules.nft"), format!("include \"{}\"\n", more.display()), 0o600).unwrap();
}

/// Two hosts and a bridge between them, with rules that only root can read.
struct Bridged {
    dir: tempfile::TempDir,
    left: NetNs,
    middle: NetNs,
    right: NetNs,
}

impl Bridged {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        file::set_mode(dir.path(), 0o700).unwrap();
        let [left, middle, right] = [(); 3].map(|()| NetNs::unnamed().unwrap());
        let this = Self { dir, left, middle, right };
        this.cable("a", &this.left, "10.5.0.1/24");
        this.cable("b", &this.right, "10.5.0.2/24");
        this
    }

    fn cable(&self, name: &str, host: &NetNs, net: &str) {
        self.middle.connect(name, host, "port").unwrap();
        address(host, "port", net);
    }

    fn start(&self, more: &[&str]) -> TestProcess {
        let line = ["bridge", "a", "b", "--rules", "rules.nft", "--dir", "run", "--workers", "2"];
        let line = [&line[..], more].concat();
        let running = world::start(&self.middle, &line, self.dir.path(), "bridge.log");
        until("the bridge is up", || running.log().contains("the bridge is up"));
        running
    }

    fn adit(&self, line: &str) -> (bool, String) {
        let mut command = self.middle.command(ADIT).unwrap();
        command.args(line.split_whitespace()).args(["--dir", "run"]).current_dir(&self.dir);
        let output = command.output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.success(), String::from_utf8(said).unwrap())
    }

    fn tables(&self) -> String {
        let output = self.middle.command("nft").unwrap().args(["list", "tables"]).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    }
}

#[test]
fn a_bridge_has_no_rights_and_its_helper_opens_ports_and_rules_again() {
    adit_testbed::needs_root!();
    let net = Bridged::new();
    write_rules(net.dir.path(), "accept");
    let mut bridge = net.start(&[]);
    let pid = bridge.child.id();
    assert_eq!(assert_all_without_rights(pid, "bridge-"), 2);
    let helper = helper_of(pid).expect("a helper");
    assert_helper(helper);
    assert!(!can_read(pid, &net.dir.path().join("rules.nft")));
    assert!(!can_read(pid, Path::new("/etc/shadow")));
    assert!(can_read(pid, Path::new("/etc/passwd")), "the test itself works");
    assert!(answers(&net.left, "10.5.0.2"));
    assert!(net.tables().contains("adit_bridge_"), "{}", net.tables());

    // Reload the rules with a signal, with a request, and with a mistake in them.
    write_rules(net.dir.path(), "drop");
    bridge.signal("HUP");
    until("the rules are in force", || !answers(&net.left, "10.5.0.2"));
    write_rules(net.dir.path(), "accept");
    let (reloaded, said) = net.adit("filter reload");
    assert!(reloaded, "{said}\n{}", bridge.log());
    until("the rules are in force", || answers(&net.left, "10.5.0.2"));
    write_rules(net.dir.path(), "perhaps");
    let (reloaded, said) = net.adit("reload");
    assert!(!reloaded && said.contains("more.nft:3:"), "{said}");

    // Remove a port and create it again.
    let gone = net.right.command("ip").unwrap().args(["link", "del", "port"]).status().unwrap();
    assert!(gone.success());
    until("the loss is noticed", || bridge.log().contains("is gone"));
    net.cable("b", &net.right, "10.5.0.2/24");
    until("it is opened again", || bridge.log().contains("b is back"));
    // The new port has another hardware address, and the neighbour keeps the old one for up to 45 seconds.
    let mut forget = net.left.command("ip").unwrap();
    assert!(forget.args(["neigh", "flush", "all"]).status().unwrap().success());
    until("frames pass", || answers(&net.left, "10.5.0.2"));
    assert_eq!(assert_all_without_rights(pid, "bridge-"), 2);
    assert!(!bridge.log().contains("refused"), "{}", bridge.log());

    let socket = fs::metadata(net.dir.path().join("run/run/a-b.sock")).unwrap();
    assert_eq!((socket.uid(), socket.mode() & 0o777), (0, 0o600));
    bridge.signal("KILL");
    bridge.child.wait().unwrap();
    until("the helper has ended", || !alive(helper));
    assert!(!net.tables().contains("adit"), "{}", net.tables());
}

#[test]
fn a_bridge_runs_as_the_user_that_is_asked_for_and_ends_without_its_helper() {
    adit_testbed::needs_root!();
    let net = Bridged::new();
    write_rules(net.dir.path(), "accept");
    let mut bridge = net.start(&["--user", "daemon"]);
    let (uid, gid) = adit_linux::privileges::find_user("daemon").unwrap();
    let fields = status(bridge.child.id());
    assert_eq!(fields["Uid"], [uid.to_string().as_str(); 4].join(" "));
    assert_eq!(fields["Gid"], [gid.to_string().as_str(); 4].join(" "));
    assert_eq!(fields["Groups"], gid.to_string());
    let helper = helper_of(bridge.child.id()).unwrap().to_string();
    assert!(Command::new("kill").args(["-9", &helper]).status().unwrap().success());
    until("the bridge ends", || bridge.child.try_wait().unwrap().is_some());
    assert_eq!(bridge.child.wait().unwrap().code(), Some(1));
    assert!(bridge.log().contains("helper: process ended"), "{}", bridge.log());
}

/// Creates the files of a node whose database does not exist, in directories that only root can read.
fn node(dir: &Path) -> PathBuf {
    let config = dir.join("node/postgres/vpn");
    fs::create_dir_all(&config).unwrap();
    fs::write(
        config.join("node.toml"),
        "database = \"postgres://192.0.2.9/vpn?sslmode=disable\"\nrole = \"r\"\nnode = 1\n\
         name = \"n\"\naddresses = [\"10.9.0.1/24\"]\ndevice = \"adit-vpn\"\npacket-size = 1400\n\
         durability = \"relaxed\"\n",
    )
    .unwrap();
    let key = config.join("node.key");
    // The base64 of 32 and of 64 zero bytes.
    let secrets = format!(
        "password = x\nnetwork-key = {}=\nidentity = {}==\n",
        "A".repeat(43),
        "A".repeat(86)
    );
    file::write(&key, secrets, 0o600).unwrap();
    key
}

fn device(ns: &NetNs) -> bool {
    let mut ip = ns.command("ip").unwrap();
    ip.args(["addr", "show", "dev", "adit-vpn"]).stderr(std::process::Stdio::null());
    let output = ip.output().unwrap();
    String::from_utf8_lossy(&output.stdout).contains("10.9.0.1/24")
}

#[test]
fn a_node_has_no_rights_and_owns_no_file() {
    adit_testbed::needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let ns = NetNs::unnamed().unwrap();
    let key = node(dir.path());
    for user in [None, Some("daemon")] {
        let mut line = vec!["postgres", "up", "-n", "vpn", "--dir", "node"];
        line.extend(user.iter().flat_map(|user| ["--user", user]));
        let log = format!("{}.log", user.unwrap_or("default"));
        let mut running = world::start(&ns, &line, dir.path(), &log);
        until("the node is up", || running.log().contains("node n of vpn"));
        let pid = running.child.id();
        assert_all_without_rights(pid, "none");
        let helper = helper_of(pid).expect("a helper");
        assert_helper(helper);
        assert!(!can_read(pid, &key));
        assert!(!can_read(pid, Path::new("/etc/shadow")));
        assert!(device(&ns));
        if let Some(user) = user {
            let (uid, _) = adit_linux::privileges::find_user(user).unwrap();
            assert_eq!(status(pid)["Uid"], [uid.to_string().as_str(); 4].join(" "));
            running.signal("KILL");
            running.child.wait().unwrap();
            until("the helper has ended", || !alive(helper));
        } else {
            assert_eq!(running.end(), Some(0), "{}", running.log());
            // The process only waits until the helper's channel closes, which happens before the helper exits.
            until("the helper has ended", || !alive(helper));
        }
        until("the device is gone", || !device(&ns));
        assert!(!running.log().contains("refused"), "{}", running.log());
    }
    fn owners(folder: &Path, all: &mut Vec<(PathBuf, u32)>) {
        for entry in fs::read_dir(folder).unwrap().flatten() {
            all.push((entry.path(), entry.metadata().unwrap().uid()));
            if entry.path().is_dir() {
                owners(&entry.path(), all);
            }
        }
    }
    let mut all = Vec::new();
    owners(dir.path(), &mut all);
    assert!(all.iter().any(|(path, _)| path.ends_with("positions")), "{all:?}");
    assert!(all.iter().all(|(_, owner)| *owner == 0), "{all:?}");
}

#[test]
fn a_check_has_no_rights() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let ns = server.client("laptop", "");
    let mut running = server.run();
    // The stopped server does not answer the check, which leaves time to observe.
    running.signal("STOP");
    let line = ["connect", "--check", "laptop.ovpn"];
    let mut check = world::start(&ns, &line, server.dir.path(), "check.log");
    until("the check waits for an answer", || check.log().contains("DNS"));
    let pid = check.child.id();
    assert_all_without_rights(pid, "plane-");
    assert_eq!(helper_of(pid), None);
    assert!(!can_read(pid, &server.dir.path().join("vpn/data/pki/private/ca.key")));
    running.signal("CONT");
    until("the check ends", || check.child.try_wait().unwrap().is_some());
    assert_eq!(check.child.wait().unwrap().code(), Some(0), "{}", check.log());
}

/// Returns the rules, the routes in all tables, nftables, and the files in which clients record their changes.
fn machine(ns: &NetNs) -> String {
    let lines = [
        "ip -4 rule",
        "ip -6 rule",
        "ip -4 route show table all",
        "ip -6 route show table all",
        "nft list ruleset",
        "cat /etc/resolv.conf",
    ];
    let mut text = String::new();
    for line in lines {
        let mut words = line.split(' ');
        let mut command = ns.command(words.next().unwrap()).unwrap();
        let output = command.args(words).output().unwrap();
        let output = String::from_utf8(output.stdout).unwrap();
        // Leave out the kernel's own entries, whose order varies.
        let own = |line: &&str| !line.contains("fe80") && !line.contains("multicast");
        let mut lines: Vec<&str> = output.lines().filter(own).collect();
        lines.sort_unstable();
        text.push_str(&lines.join("\n"));
    }
    text
}

/// Checks a profile while the server is stopped for a moment, to observe that the check has one capability and changes nothing.
fn checks_with_net_admin_alone(
    server: &Server,
    running: &mut TestProcess,
    ns: &NetNs,
    [profile, log]: [&str; 2],
) {
    let before = machine(ns);
    running.signal("STOP");
    let mut check = world::start(ns, &["connect", "--check", profile], server.dir.path(), log);
    until("the check waits for an answer", || check.log().contains("DNS"));
    let fields = status(check.child.id());
    for ids in ["Uid", "Gid", "Groups"] {
        assert!(!fields[ids].split(' ').any(|id| id == "0"), "{ids}: {}", fields[ids]);
    }
    // CAP_NET_ADMIN is bit 12.
    let net_admin = "0000000000001000";
    for set in ["CapPrm", "CapEff", "CapBnd"] {
        assert_eq!(fields[set], net_admin, "{set}");
    }
    assert_eq!((fields["NoNewPrivs"].as_str(), fields["Seccomp"].as_str()), ("1", "2"));
    assert_eq!(helper_of(check.child.id()), None);
    assert!(!can_read(check.child.id(), Path::new("/etc/shadow")));
    assert_eq!(machine(ns), before, "during the check");
    running.signal("CONT");
    until("the check ends", || check.child.try_wait().unwrap().is_some());
    assert_eq!(check.child.wait().unwrap().code(), Some(0), "{}", check.log());
    assert_eq!(machine(ns), before, "after the check");
}

#[test]
fn a_check_by_a_mark_or_past_a_kill_switch_keeps_one_right_and_changes_nothing() {
    let mut server = Server::new("--full-tunnel");
    let ns = server.client("laptop", "");
    let mut running = server.run();
    let profile = fs::read_to_string(server.dir.path().join("laptop.ovpn")).unwrap();
    let marked = profile.replace("client\n", "client\nmark 77\n");
    fs::write(server.dir.path().join("marked.ovpn"), marked).unwrap();
    checks_with_net_admin_alone(&server, &mut running, &ns, ["marked.ovpn", "1.log"]);

    let line = ["connect", "--dns", "off", "--kill-switch", "--dir", "run", "laptop.ovpn"];
    let mut client = world::start(&ns, &line, server.dir.path(), "kept.log");
    until("the tunnel is up", || client.log().contains("connected: 10.73.0."));
    assert_eq!(client.end(), Some(0));
    let gets_out = || {
        let mut ip = ns.command("ip").unwrap();
        ip.args(["route", "get", "192.0.2.1"]).stderr(std::process::Stdio::null());
        ip.stdout(std::process::Stdio::null()).status().unwrap().success()
    };
    assert!(!gets_out(), "the kill switch is on");
    checks_with_net_admin_alone(&server, &mut running, &ns, ["laptop.ovpn", "2.log"]);
    assert!(!gets_out());
    // The client's undo log is lost.
    let folder = fs::read_dir("/run/adit").unwrap().flatten().map(|entry| entry.path());
    let number = ns.run(|| adit_linux::netns::cookie().unwrap()).unwrap();
    let own = folder.filter(|path| path.to_string_lossy().ends_with(&format!("-{number}.routes")));
    let own: Vec<PathBuf> = own.collect();
    assert_eq!(own.len(), 1, "{own:?}");
    fs::remove_file(&own[0]).unwrap();
    checks_with_net_admin_alone(&server, &mut running, &ns, ["laptop.ovpn", "3.log"]);
    let adit = |line: &str| {
        let output = ns.command(ADIT).unwrap().args(line.split(' ')).output().unwrap();
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    assert!(adit("doctor").contains("the rules of a full tunnel keep traffic in"));
    let released = adit("connect --release");
    assert!(released.contains("removed the rule"), "{released}");
    assert!(gets_out());
    assert!(adit("doctor").contains("ok   leftovers"), "{}", adit("doctor"));
}

/// Starts a bridge with two TAP devices through another program.
fn started_by(program: &str, before: &[&str], more: &[&str]) -> (tempfile::TempDir, TestProcess) {
    let dir = tempfile::tempdir().unwrap();
    let line = [ADIT, "bridge", "tap:a", "tap:b", "--relay", "--dir", "run"];
    let line = [before, &line[..], more].concat();
    let ns = NetNs::unnamed().unwrap();
    let running = TestProcess::program(&ns, program, &line, dir.path(), "bridge.log");
    (dir, running)
}

fn fails_with(running: &mut TestProcess, words: &str) {
    until("it ends", || running.child.try_wait().unwrap().is_some());
    assert_ne!(running.child.wait().unwrap().code(), Some(0), "{}", running.log());
    assert!(running.log().contains(words), "{}", running.log());
}

/// Checks that the process is root without root's capabilities.
fn assert_root_with_few_rights(pid: u32) {
    for task in tasks(pid) {
        let fields = status(task);
        assert_eq!(fields["Uid"], "0 0 0 0");
        for set in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
            assert_eq!(fields[set], "0000000000000000", "{set}");
        }
        assert_eq!((fields["NoNewPrivs"].as_str(), fields["Seccomp"].as_str()), ("1", "2"));
    }
}

#[test]
fn without_the_right_to_change_the_user_the_default_is_left_out_and_a_wish_ends_the_start() {
    adit_testbed::needs_root!();
    let bounding = ["--bounding-set=-setuid"];
    let (_dir, bridge) = started_by("setpriv", &bounding, &[]);
    until("the bridge is up", || bridge.log().contains("the bridge is up"));
    assert!(bridge.log().contains("CAP_SETUID is missing: the process stays root"));
    assert_root_with_few_rights(bridge.child.id());
    assert!(helper_of(bridge.child.id()).is_some());

    let (_dir, mut bridge) = started_by("setpriv", &bounding, &["--user", "daemon"]);
    fails_with(&mut bridge, "giving up privileges");
}

#[test]
fn in_a_user_namespace_without_other_users_the_process_stays_that_root() {
    adit_testbed::needs_root!();
    let unshare = ["--user", "--map-root-user", "--net", "--"];
    let (_dir, bridge) = started_by("unshare", &unshare, &[]);
    until("the bridge is up", || bridge.log().contains("the bridge is up"));
    assert!(bridge.log().contains("this user namespace has no id"), "{}", bridge.log());
    assert_root_with_few_rights(bridge.child.id());
    assert!(helper_of(bridge.child.id()).is_some());

    let (_dir, mut bridge) = started_by("unshare", &unshare, &["--user", "daemon"]);
    fails_with(&mut bridge, "giving up privileges");
}

/// The program's file is no longer executable when the helper should start.
#[test]
fn where_no_helper_can_be_started_the_process_keeps_one_capability_and_says_so() {
    adit_testbed::needs_root!();
    let mut server = Server::new("--full-tunnel");
    let _running = server.run();
    let ns = server.client("laptop", "");
    let dir = server.dir.path();
    fs::create_dir(dir.join("noexec")).unwrap();
    // The profile comes through a pipe, for which the client waits before it starts its helper.
    let script = format!(
        "set -e; mount -t tmpfs none noexec; cp {ADIT} noexec/adit; mkfifo pipe
         noexec/adit connect pipe --dns off --device vpn0 --dir run-laptop &
         until grep -q adit /proc/$!/comm; do sleep 0.1; done
         mount -o remount,noexec noexec; cat laptop.ovpn > pipe; echo pid=$!; wait $!"
    );
    let arguments = ["--mount", "sh", "-c", &script];
    let running = TestProcess::program(&ns, "unshare", &arguments, dir, "laptop.log");
    server.await_connected(&["laptop"]);
    until("the tunnel carries", || answers(&ns, "10.73.0.1"));
    let log = running.log();
    assert!(log.contains("helper: start failed"), "{log}");
    let pid = log.lines().find_map(|line| line.strip_prefix("pid=")?.parse::<u32>().ok());
    let pid = pid.expect(&log);
    assert_eq!(helper_of(pid), None);
    let fields = status(pid);
    assert!(!fields["Uid"].split(' ').any(|id| id == "0"), "{}", fields["Uid"]);
    // Only CAP_NET_ADMIN, bit 12.
    assert_eq!(
        (fields["CapPrm"].as_str(), fields["CapBnd"].as_str()),
        ("0000000000001000", "0000000000001000")
    );
    assert_eq!((fields["NoNewPrivs"].as_str(), fields["Seccomp"].as_str()), ("1", "2"));
    assert!(Command::new("kill").arg(pid.to_string()).status().unwrap().success());
    until("it ends", || !alive(pid));
}

/// The program is started through the dynamic linker, which is /proc/self/exe in this case, so the program that is
/// started as the helper is not adit.
#[test]
fn a_helper_that_ends_at_once_ends_the_start() {
    adit_testbed::needs_root!();
    let linker = Command::new("ldd").arg(ADIT).output().unwrap();
    let text = String::from_utf8(linker.stdout).unwrap();
    let words = text.split_whitespace().find(|word| word.starts_with('/') && word.contains("/ld-"));
    let linker = words.expect("a program that is linked dynamically").to_owned();
    let (_dir, mut bridge) = started_by(&linker, &[], &[]);
    fails_with(&mut bridge, "helper: process ended");
}
