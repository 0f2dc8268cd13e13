//! Tests of the managed server in its intended environment, on a host between clients and an outside network.

use std::fs;
use std::process::Command;

use adit_linux::netns::NetNs;

use crate::world::{self, ADIT, Server, TestProcess, address, answers, kill_with_helper, until};

const FORWARD4: &str = "net/ipv4/ip_forward";
const FORWARD6: &str = "net/ipv6/conf/all/forwarding";

fn forwarding(server: &Server, value: &str) {
    for key in [FORWARD4, FORWARD6] {
        server.ns.set_sysctl(&key.replace('/', "."), value).unwrap();
    }
}

#[test]
fn what_a_server_changes_it_undoes_and_after_kill_the_next_start_does() {
    adit_testbed::needs_root!();
    let server = Server::new("");
    forwarding(&server, "0");
    let assert_running = || {
        assert_eq!((server.sysctl(FORWARD4), server.sysctl(FORWARD6)), ("1".into(), "1".into()));
        assert!(server.rules().contains("clients are kept apart"), "{}", server.rules());
        assert!(server.rules().contains("masquerade"));
    };
    let assert_undone = || {
        assert_eq!((server.sysctl(FORWARD4), server.sysctl(FORWARD6)), ("0".into(), "0".into()));
        assert_eq!(server.rules(), "");
    };
    let mut first = server.run();
    assert_running();
    let (second, said) = server.adit("server run");
    assert!(!second && said.contains("is already running"), "{said}");
    assert_eq!(first.end(), Some(0), "{}", first.log());
    assert_undone();

    let mut killed = server.run();
    killed.signal("KILL");
    killed.child.wait().unwrap();
    // The helper undoes the changes at once.
    until("it is undone", || server.sysctl(FORWARD4) == "0" && server.rules().is_empty());
    assert_undone();

    let mut killed = server.run();
    kill_with_helper(&mut killed);
    assert_running();
    let mut next = server.run();
    assert!(next.log().contains("host state: restored after a killed server"), "{}", next.log());
    assert_running();
    assert_eq!(next.end(), Some(0));
    assert_undone();
}

#[test]
fn a_serving_process_has_given_up_what_it_does_not_need() {
    adit_testbed::needs_root!();
    let server = Server::new("");
    let running = server.run();
    let pid = running.child.id();
    let tasks: Vec<_> = fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten().collect();
    assert!(tasks.len() > 1, "the data plane has threads of its own");
    for task in tasks {
        let status = fs::read_to_string(task.path().join("status")).unwrap();
        let line = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap_or_default().trim().to_owned()
        };
        for set in ["CapEff:", "CapPrm:", "CapBnd:"] {
            assert_eq!(line(set), "0000000000000000", "{set} {status}");
        }
        for ids in ["Uid:", "Gid:"] {
            assert!(!line(ids).split_whitespace().any(|id| id == "0"), "{ids} {status}");
        }
        assert_eq!((line("NoNewPrivs:"), line("Seccomp:")), ("1".into(), "2".into()));
    }
}

#[test]
fn a_serving_process_does_without_the_authoritys_key() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let ns = server.client("laptop", "");
    fs::remove_dir_all(server.dir.path().join("vpn/data/pki/private")).unwrap();
    let _running = server.run();
    let _client = server.connect(&ns, "laptop");
    server.await_connected(&["laptop"]);
    let (reloaded, said) = server.adit("reload");
    assert!(reloaded, "{said}");
    assert_eq!(server.connected(), ["laptop"]);
}

#[test]
fn a_server_has_the_workers_that_its_settings_say() {
    adit_testbed::needs_root!();
    let mut server = Server::new("--workers 3");
    let ns = server.client("laptop", "");
    let _running = server.run();
    let _client = server.connect(&ns, "laptop");
    server.await_connected(&["laptop"]);
    until("the server answers", || answers(&ns, "10.73.0.1"));
    let (_, said) = server.adit("status");
    assert!(said.contains("workers: 3"), "{said}");
    let (started, said) = server.adit("server run --workers 65");
    assert!(!started && said.contains("choose 1 to 64"), "{said}");
}

#[test]
fn a_server_that_cannot_start_leaves_the_machine_as_it_was() {
    adit_testbed::needs_root!();
    let server = Server::new("");
    forwarding(&server, "0");
    let taken = server.ns.run(|| std::net::UdpSocket::bind("[::]:1194").unwrap()).unwrap();
    let (started, said) = server.adit("server run");
    assert!(!started && said.contains("1194"), "{said}");
    assert_eq!(server.sysctl(FORWARD4), "0");
    assert_eq!(server.rules(), "");
    drop(taken);
}

#[test]
fn a_client_reaches_the_outside_by_masquerade_and_loses_it_when_revoked() {
    adit_testbed::needs_root!();
    let mut server = Server::new("--route 198.51.100.0/24");
    let _running = server.run();
    let ns = server.client("laptop", "");
    let client = server.connect(&ns, "laptop");
    server.await_connected(&["laptop"]);
    // The outside network has no route to the tunnel, so only masqueraded packets are answered.
    until("the outside answers", || answers(&ns, "198.51.100.9"));
    assert!(answers(&ns, "10.73.0.1") && answers(&ns, "fd73::1"), "{}", client.log());

    let (revoked, said) = server.adit("server client revoke laptop");
    assert!(revoked && said.contains("its session ended"), "{said}");
    assert_eq!(server.connected(), Vec::<String>::new());
    assert!(!answers(&ns, "10.73.0.1"));
    std::thread::sleep(std::time::Duration::from_secs(3));
    assert_eq!(server.connected(), Vec::<String>::new(), "it came back");
}

#[test]
fn kick_disable_enable_and_renew_act_on_a_connected_client() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let _running = server.run();
    let ns = server.client("laptop", "--ip 10.73.0.77");
    let _client = server.connect(&ns, "laptop");
    server.await_connected(&["laptop"]);
    until("its fixed address answers", || answers(&server.ns, "10.73.0.77"));

    let (_, said) = server.adit("server client kick laptop");
    assert!(said.contains("its session ended"), "{said}");
    server.await_connected(&["laptop"]);

    let (_, said) = server.adit("server client disable laptop");
    assert!(said.contains("its session ended"), "{said}");
    server.await_connected(&[]);
    assert!(server.adit("server client enable laptop").0);
    server.await_connected(&["laptop"]);

    fs::remove_file(server.dir.path().join("laptop.ovpn")).unwrap();
    let (renewed, said) = server.adit("server client renew laptop -o laptop.ovpn");
    assert!(renewed && said.contains("ended"), "{said}");
    server.await_connected(&[]);
}

#[test]
fn clients_are_kept_apart_unless_the_settings_let_them_meet() {
    adit_testbed::needs_root!();
    for together in [false, true] {
        let mut server = Server::new("");
        if together {
            server.edit_settings("client-to-client = false", "client-to-client = true");
        }
        let _running = server.run();
        let (a, b) = (server.client("a", "--ip 10.73.0.5"), server.client("b", "--ip 10.73.0.6"));
        let _clients = [server.connect(&a, "a"), server.connect(&b, "b")];
        server.await_connected(&["a", "b"]);
        until("the server answers both", || answers(&a, "10.73.0.1") && answers(&b, "10.73.0.1"));
        assert_eq!(answers(&a, "10.73.0.6"), together);
        assert_eq!(answers(&b, "10.73.0.5"), together);
    }
}

#[test]
fn a_reload_drops_no_tunnel_and_takes_over_what_it_can() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let mut running = server.run();
    let ns = server.client("laptop", "");
    let _client = server.connect(&ns, "laptop");
    server.await_connected(&["laptop"]);
    let before = server.sessions();
    server.edit_settings("nat = \"auto\"", "nat = \"off\"");
    assert!(server.rules().contains("masquerade"));
    let (reloaded, said) = server.adit("reload");
    assert!(reloaded, "{said}");
    assert!(!server.rules().contains("masquerade"));
    assert_eq!(server.sessions(), before);

    // Pushed options reach a connected client, and are withdrawn again, within the session.
    server.edit_settings("routes = []", "routes = [\"198.51.100.0/24\"]");
    let (reloaded, said) = server.adit("reload");
    assert!(reloaded, "{said}");
    until("the new route is there", || route(&ns, "198.51.100.9").contains("vpn0"));
    assert_eq!(server.sessions(), before);
    assert!(answers(&ns, "10.73.0.1"));
    server.edit_settings("routes = [\"198.51.100.0/24\"]", "routes = []");
    assert!(server.adit("reload").0);
    until("the route is gone again", || !route(&ns, "198.51.100.9").contains("vpn0"));
    assert_eq!(server.sessions(), before);

    fs::write(server.dir.path().join("vpn/server.toml"), "host = 7").unwrap();
    let (reloaded, said) = server.adit("reload");
    assert!(!reloaded && said.contains("line 1"), "{said}");
    assert_eq!(server.sessions(), before);
    assert_eq!(running.end(), Some(0));
}

fn route(ns: &NetNs, to: &str) -> String {
    let output = ns.command("ip").unwrap().args(["route", "get", to]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// A network behind one client is reached by another client and by the server, moves to another client without ending a
/// session, and is hidden from a client.
#[test]
fn networks_behind_clients_are_routed_pushed_and_moved_within_the_sessions() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    server.edit_settings("client-to-client = false", "client-to-client = true");
    let _running = server.run();
    let (office, phone) = (server.client("office", ""), server.client("phone", ""));
    let _clients = [server.connect(&office, "office"), server.connect(&phone, "phone")];
    server.await_connected(&["office", "phone"]);
    address(&office, "lo", "172.29.1.1/24");
    let before = server.sessions();
    let (set, said) = server.adit("server client set office --network 172.29.1.0/24");
    assert!(set && said.contains("172.29.1.0/24"), "{said}");
    until("the network behind office answers the server", || answers(&server.ns, "172.29.1.1"));
    until("the other client has the route", || route(&phone, "172.29.1.9").contains("vpn0"));
    assert!(!route(&office, "172.29.1.9").contains("vpn0"), "its own network");
    assert!(server.rules().contains("172.29.1.0/24"), "{}", server.rules());
    let (set, said) = server.adit("server client set phone --network 172.29.0.0/16");
    assert!(!set && said.contains("behind client office"), "{said}");
    let (set, said) = server.adit("server client set phone --network 10.73.0.64/26");
    assert!(!set && said.contains("overlaps network 10.73.0.0/24"), "{said}");

    let (set, said) = server.adit("server client set office --hide-from @client:phone");
    assert!(set, "{said}");
    until("the route is hidden", || !route(&phone, "172.29.1.9").contains("vpn0"));
    assert!(answers(&server.ns, "172.29.1.1"));
    assert!(server.adit("server client set office --network none --hide-from none").0);
    assert!(!answers(&server.ns, "172.29.1.1"));
    address(&phone, "lo", "172.29.1.1/24");
    assert!(server.adit("server client set phone --network 172.29.1.0/24").0);
    until("the network behind phone answers", || answers(&server.ns, "172.29.1.1"));
    assert_eq!(server.sessions(), before, "no session ended");
}

/// A client is renamed, gets another address, is slowed down, has a quota that ends its session, and is deleted; another client's session
/// continues all the time.
#[test]
fn a_client_changes_and_ends_while_others_stay_connected() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let mut running = server.run();
    let (laptop, other) = (server.client("laptop", ""), server.client("other", ""));
    let mut client = server.connect(&laptop, "laptop");
    server.await_connected(&["laptop"]);
    let _other = server.connect(&other, "other");
    server.await_connected(&["laptop", "other"]);
    until("the first address answers", || answers(&server.ns, "10.73.0.2"));

    let (renamed, said) = server.adit("server client rename laptop desk");
    assert!(renamed && said.contains("is now desk") && said.contains("session ended"), "{said}");
    server.await_connected(&["desk", "other"]);
    until("it has the same address", || answers(&server.ns, "10.73.0.2"));
    let (_, said) = server.adit("server client show desk");
    assert!(said.contains("certificate of laptop"), "{said}");

    let (set, said) = server.adit("server client set desk --address 10.73.0.77 --address fd73::77");
    assert!(set && said.contains("10.73.0.77, fd73::77"), "{said}");
    until("the fixed addresses answer", || {
        answers(&server.ns, "10.73.0.77") && answers(&server.ns, "fd73::77")
    });

    let flood = || {
        let mut ping = server.ns.command("ping").unwrap();
        ping.args(["-q", "-c", "60", "-i", "0.002", "-s", "8000", "-W", "1", "10.73.0.77"]);
        let _ = ping.output();
    };
    assert!(server.adit("server client set desk --rate down=10kbit").0);
    until("packets beyond the rate are dropped", || {
        flood();
        server.adit("status --json").1.contains("\"rate-limited\"")
    });
    assert!(server.adit("server client set desk --rate none").0);
    until("the address answers at full speed", || answers(&server.ns, "10.73.0.77"));

    let (set, said) = server.adit("server client set desk --quota 1MB/month --note Ann");
    assert!(set && said.contains("1 MB a month"), "{said}");
    until("the quota is used up", || {
        flood();
        server.connected() == ["other"]
    });
    until("the client is told", || client.log().contains("the quota of 1 MB a month is used up"));
    let (_, said) = server.adit("server client list");
    assert!(said.contains("desk") && said.contains("Ann"), "{said}");
    assert!(server.adit("server client set desk --quota none").0);
    // The client itself would try again after 20 seconds.
    client.end();
    let _client = server.connect(&laptop, "laptop");
    server.await_connected(&["desk", "other"]);

    let (deleted, said) = server.adit("server client delete desk");
    assert!(deleted && said.contains("its session ended"), "{said}");
    server.await_connected(&["other"]);
    let (_, said) = server.adit("server client list");
    assert!(!said.contains("desk") && !said.contains("laptop"), "{said}");
    assert_eq!(running.end(), Some(0));
    let data = server.dir.path().join("vpn/data");
    for file in ["leases.json", "usage.json"] {
        let text = fs::read_to_string(data.join(file)).unwrap_or_default();
        assert!(!text.contains("laptop") && !text.contains("desk"), "{file}: {text}");
    }
}

/// A client with a profile from before the backup connects to the restored server, with the same address.
#[test]
fn a_restored_server_takes_its_old_clients() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let mut running = server.run();
    let ns = server.client("laptop", "");
    let _client = server.connect(&ns, "laptop");
    server.await_connected(&["laptop"]);
    fs::write(server.dir.path().join("phrase"), "correct horse battery\n").unwrap();
    let (made, said) = server.adit("server backup vpn.backup --passphrase-file phrase");
    assert!(made && said.contains("1 client and 0 users"), "{said}");
    let (restored, said) = server.adit("server restore vpn.backup --passphrase-file phrase");
    assert!(!restored && said.contains("the server is running"), "{said}");
    assert_eq!(running.end(), Some(0));
    fs::remove_dir_all(server.dir.path().join("vpn")).unwrap();
    fs::write(server.dir.path().join("wrong"), "battery horse correct\n").unwrap();
    let (restored, said) = server.adit("server restore vpn.backup --passphrase-file wrong");
    assert!(!restored && said.contains("the passphrase is wrong"), "{said}");
    let (restored, said) = server.adit("server restore vpn.backup --passphrase-file phrase");
    assert!(restored && said.contains("restored: 1 client and 0 users"), "{said}");
    let _running = server.run();
    server.await_connected(&["laptop"]);
    until("the client's address answers", || answers(&server.ns, "10.73.0.2"));
}

/// curl fetches the profile through the link once; a wrong link, and the right one afterwards, get nothing.
#[test]
fn a_link_hands_out_a_profile_once() {
    adit_testbed::needs_root!();
    let server = Server::new("");
    address(&server.ns, "lo", "192.0.2.1/32");
    let arguments = ["server", "client", "add", "phone", "--qr", "--dir", "vpn"];
    let mut adding = world::start(&server.ns, &arguments, server.dir.path(), "add.log");
    until("the link is there", || adding.log().contains("waiting 10 min"));
    let log = adding.log();
    let mut lines = log.lines().map(str::trim);
    let link = lines.find(|line| line.starts_with("https://192.0.2.1:8443/")).unwrap();
    assert!(log.contains(&format!("openvpn://import-profile/{link}")), "{log}");
    let curl = |arguments: &[&str], link: &str| {
        let mut curl = server.ns.command("curl").unwrap();
        curl.args(["-sk", "--max-time", "20"]).args(arguments).arg(link);
        let output = curl.output().expect("curl is missing: apt-get install curl");
        String::from_utf8(output.stdout).unwrap()
    };
    let status = ["-o", "/dev/null", "-w", "%{http_code}"];
    assert_eq!(curl(&status, &format!("{link}x")), "404");
    assert_eq!(curl(&status, "https://192.0.2.1:8443/"), "404");
    let head = curl(&["-I"], link);
    assert!(head.starts_with("HTTP/1.1 200") && head.contains("x-openvpn-profile"), "{head}");
    let profile = curl(&[], link);
    assert!(profile.contains("<key>") && profile.contains("remote 192.0.2.1 1194"), "{profile}");
    // Nothing listens any more.
    until("the command ends", || adding.child.try_wait().unwrap().is_some());
    assert!(adding.child.wait().unwrap().success());
    assert_eq!(curl(&status, link), "000");
    let log = adding.log();
    assert!(log.contains("was fetched from 192.0.2.1"), "{log}");
    assert!(log.contains("requests with a wrong link: 2"), "{log}");
    let (_, said) = server.adit("server client list");
    assert!(said.contains("phone"), "{said}");
}

/// Ctrl-C ends a link. The client exists by then, which the audit log shows.
#[test]
fn an_interrupted_link_is_in_the_audit_log() {
    adit_testbed::needs_root!();
    let server = Server::new("");
    let arguments = ["server", "client", "add", "phone", "--qr", "--dir", "vpn"];
    let mut adding = world::start(&server.ns, &arguments, server.dir.path(), "add.log");
    until("the link is there", || adding.log().contains("waiting 10 min"));
    adding.signal("INT");
    until("the command ends", || adding.child.try_wait().unwrap().is_some());
    assert_eq!(adding.child.wait().unwrap().code(), Some(1));
    let log = adding.log();
    assert!(log.contains("the profile was not fetched; a new certificate and link: "), "{log}");
    let (_, acts) = server.adit("server audit");
    let act = acts.lines().find(|line| line.contains("client add phone"));
    assert!(act.is_some_and(|line| line.ends_with("done")), "{acts}");
}

#[test]
fn a_client_that_crashed_comes_back_to_its_fixed_address() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let _running = server.run();
    let ns = server.client("laptop", "--ip 10.73.0.9");
    let mut first = server.connect(&ns, "laptop");
    server.await_connected(&["laptop"]);
    first.signal("KILL");
    first.child.wait().unwrap();
    let _second = server.connect(&ns, "laptop");
    until("its address answers again", || answers(&server.ns, "10.73.0.9"));
    assert_eq!(server.connected(), ["laptop"]);
}

#[test]
fn an_address_in_use_is_not_given_away() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let _running = server.run();
    let ns = server.client("first", "");
    let _client = server.connect(&ns, "first");
    server.await_connected(&["first"]);
    // The pool begins here.
    let (added, said) = server.adit("server client add second --ip 10.73.0.2 -o second.ovpn");
    assert!(!added && said.contains("first currently has the address"), "{said}");
    let (added, said) = server.adit("server client add second --ip 10.73.0.3 -o second.ovpn");
    assert!(added, "{said}");
    let other = server.client("third", "");
    let _client = server.connect(&other, "third");
    server.await_connected(&["first", "third"]);
    assert!(answers(&server.ns, "10.73.0.4"), "the reserved address was not spared");
}

#[test]
fn up_goes_the_whole_way_and_is_safe_to_repeat() {
    adit_testbed::needs_root!();
    let server = Server::new("");
    address(&server.ns, "lo", "192.0.2.1/32");
    let arguments = ["server", "up", "--client", "laptop", "--dir", "vpn"];
    let up = || world::start(&server.ns, &arguments, server.dir.path(), "up.log");
    let mut first = up();
    until("the self-test passed", || first.log().contains("Self-test passed"));
    assert!(server.dir.path().join("laptop.ovpn").exists());
    let mut again = up();
    until("the second ends", || again.child.try_wait().unwrap().is_some());
    assert!(again.child.wait().unwrap().success());
    assert!(first.log().contains("is already running"), "{}", first.log());
    assert_eq!(first.end(), Some(0));
}

#[test]
fn an_openvpn_client_connects_with_the_same_profile() {
    adit_testbed::needs_root!();
    if Command::new("openvpn").arg("--version").output().is_err() {
        panic!("openvpn is missing: apt-get install openvpn");
    }
    let mut server = Server::new("");
    let _running = server.run();
    let ns = server.client("stock", "");
    let arguments = ["--config", "stock.ovpn", "--dev", "vpn0", "--dev-type", "tun"];
    let client = TestProcess::program(&ns, "openvpn", &arguments, server.dir.path(), "stock.log");
    until("stock is up", || client.log().contains("Initialization Sequence Completed"));
    assert!(answers(&ns, "10.73.0.1") && answers(&ns, "fd73::1"), "{}", client.log());
    let (revoked, said) = server.adit("server client revoke stock");
    assert!(revoked && said.contains("its session ended"), "{said}");
    assert!(!answers(&ns, "10.73.0.1"));
}

#[test]
fn where_no_udp_passes_a_profile_leads_to_the_tcp_port() {
    adit_testbed::needs_root!();
    let mut server = Server::new("--listen tcp/443 --listen udp/1194");
    let ns = server.client("ann", "");
    let path = server.dir.path().join("ann.ovpn");
    let profile = fs::read_to_string(&path).unwrap();
    let paths = "proto udp\nremote 192.0.2.1 1194\nremote 192.0.2.1 443 tcp\n";
    assert!(profile.contains(paths), "{profile}");
    fs::write(&path, profile.replace("server-poll-timeout 10", "server-poll-timeout 2")).unwrap();
    let mut running = server.run();
    let block = "add table inet block; add chain inet block input { type filter hook input priority \
                 -300; }; add rule inet block input iifname c0 udp dport 1194 drop";
    let mut nft = server.ns.command("nft").unwrap();
    assert!(nft.arg(block).status().unwrap().success());
    let check = ns
        .command(ADIT)
        .unwrap()
        .args(["connect", "--check", "ann.ovpn"])
        .current_dir(server.dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8(check.stdout).unwrap();
    assert!(check.status.success(), "{said}");
    let mut client = server.connect(&ns, "ann");
    server.await_connected(&["ann"]);
    assert!(answers(&ns, "10.73.0.1") && answers(&ns, "fd73::1"), "{}", client.log());
    let (_, status) = server.adit("status");
    for place in ["udp [::]:1194", "tcp [::]:443", " by tcp;"] {
        assert!(status.contains(place), "{place} is missing in:\n{status}");
    }
    // The client exits in an orderly way, so the server is notified at once.
    client.end();
    server.await_connected(&[]);
    assert_eq!(running.end(), Some(0));
}
