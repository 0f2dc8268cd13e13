//! Tests of the clients `adit connect` and `adit openvpn` with a managed server.

use std::fs;
use std::process::Command;

use adit_linux::netns::NetNs;

use crate::world::{self, ADIT, Server, TestProcess, answers, kill_with_helper, until};

/// Returns the routes of a namespace's main table, as iproute2 prints them.
fn routes(ns: &NetNs) -> String {
    let output = ns.command("ip").unwrap().args(["-4", "route"]).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

/// Returns the exit code and the text of `connect --check`.
fn check(server: &Server, ns: &NetNs, profile: &str) -> (Option<i32>, String) {
    let output = ns
        .command(ADIT)
        .unwrap()
        .args(["connect", "--check", profile])
        .current_dir(server.dir.path())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

fn openvpn(server: &Server, ns: &NetNs, options: &[&str]) -> TestProcess {
    let arguments = [&["openvpn", "--config", "ann.ovpn", "--dev", "tun7"], options].concat();
    world::start(ns, &arguments, server.dir.path(), "ann.log")
}

/// Returns the number of times that a line occurs in the log.
fn count(running: &TestProcess, line: &str) -> usize {
    running.log().matches(line).count()
}

const UP: &str = "Initialization Sequence Completed";

#[test]
fn check_names_the_stage_that_fails() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let ns = server.client("ann", "");
    let file = |name: &str| server.dir.path().join(name);
    let profile = fs::read_to_string(file("ann.ovpn")).unwrap();
    let other = profile.replace("remote 192.0.2.1", "remote 192.0.2.99");
    let (before, rest) = profile.split_once("<tls-crypt-v2>").unwrap();
    let (_, after) = rest.split_once("</tls-crypt-v2>").unwrap();
    let bare = format!("{before}{after}");
    fs::write(file("silent.ovpn"), other.replace("client\n", "client\nserver-poll-timeout 2\n"))
        .unwrap();
    fs::write(file("bare.ovpn"), bare.replace("client\n", "client\nserver-poll-timeout 2\n"))
        .unwrap();
    fs::write(file("name.ovpn"), profile.replace("verify-x509-name adit", "verify-x509-name x"))
        .unwrap();
    fs::write(file("broken.ovpn"), profile.replace("nobind", "nobinding")).unwrap();

    let mut running = server.run();
    let (code, text) = check(&server, &ns, "ann.ovpn");
    assert_eq!(code, Some(0), "{text}");
    let stages = ["profile", "DNS", "reply", "wrapping key", "TLS", "auth", "push", "data", "MTU"];
    for stage in stages {
        assert!(text.lines().any(|line| line.starts_with(&format!("ok    {stage}"))), "{text}");
    }
    for (profile, stage, code) in [
        ("silent.ovpn", "FAIL  reply", 1),
        ("bare.ovpn", "FAIL  reply", 1),
        ("name.ovpn", "FAIL  TLS", 1),
        ("broken.ovpn", "FAIL  profile", 2),
    ] {
        let (got, text) = check(&server, &ns, profile);
        assert!(text.contains(stage), "{profile}: {text}");
        assert_eq!(got, Some(code), "{profile}: {text}");
    }
    assert!(server.adit("server client revoke ann").0);
    let (code, text) = check(&server, &ns, "ann.ovpn");
    assert!(text.contains("FAIL  TLS") && text.contains("Revoked"), "{text}");
    assert_eq!(code, Some(1));
    assert_eq!(running.end(), Some(0));
}

/// Returns the policy routing rules and the routes in all tables of a namespace, for both address families.
pub(crate) fn routing(ns: &NetNs) -> String {
    let words = [
        &["-4", "rule"][..],
        &["-6", "rule"],
        &["-4", "route", "show", "table", "all"],
        &["-6", "route", "show", "table", "all"],
    ];
    let text = words.map(|words| {
        let output = ns.command("ip").unwrap().args(words).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    // The kernel lists neighbours' lifetimes and its own multicast routes in any order.
    let mut lines: Vec<&str> = text.iter().flat_map(|text| text.lines()).collect();
    lines.retain(|line| !line.contains("fe80") && !line.contains("multicast"));
    lines.sort_unstable();
    lines.join("\n")
}

#[test]
fn a_client_leaves_the_machine_as_it_was_and_after_kill_the_next_start_does() {
    adit_testbed::needs_root!();
    let mut server = Server::new("--full-tunnel");
    let ns = server.client("ann", "");
    let _running = server.run();
    let before = routing(&ns);

    let mut client = server.connect(&ns, "ann");
    until("the tunnel is up", || client.log().contains("connected: 10.73.0."));
    assert!(answers(&ns, "10.73.0.1"));
    let during = routing(&ns);
    for line in
        ["not from all fwmark 0xad17 lookup 44311", "unreachable default", "default dev vpn"]
    {
        assert!(during.contains(line), "{during}");
    }
    assert!(!routes(&ns).contains("192.0.2.1 "), "the server needs no route of its own");
    assert_eq!(client.end(), Some(0), "{}", client.log());
    assert_eq!(routing(&ns), before);

    let mut killed = server.connect(&ns, "ann");
    until("the tunnel is up again", || count(&killed, "connected: 10.73.0.") == 2);
    kill_with_helper(&mut killed);
    assert_ne!(routing(&ns), before, "killed processes cannot undo their rules");
    let mut next = server.connect(&ns, "ann");
    until("the tunnel is up once more", || count(&next, "connected: 10.73.0.") == 3);
    assert!(next.log().contains("left by a killed process"), "{}", next.log());
    assert_eq!(next.end(), Some(0));
    assert_eq!(routing(&ns), before);
}

#[test]
fn as_openvpn_a_client_has_half_routes_that_the_next_start_removes_after_kill() {
    adit_testbed::needs_root!();
    let mut server = Server::new("--full-tunnel");
    let ns = server.client("ann", "");
    let _running = server.run();
    let before = routing(&ns);
    let mut killed = openvpn(&server, &ns, &[]);
    until("the tunnel is up", || count(&killed, UP) == 1);
    let during = routes(&ns);
    for route in ["0.0.0.0/1", "128.0.0.0/1", "192.0.2.1 "] {
        assert!(during.contains(route), "{during}");
    }
    kill_with_helper(&mut killed);
    assert!(routes(&ns).contains("192.0.2.1 "), "killed processes cannot undo this one");
    let mut next = openvpn(&server, &ns, &[]);
    until("the tunnel is up once more", || count(&next, UP) == 2);
    assert!(next.log().contains("left by a killed process"), "{}", next.log());
    assert_eq!(next.end(), Some(0));
    assert_eq!(routing(&ns), before);
}

/// Returns whether an unmarked packet to the server is refused at once, in both families.
fn nothing_leaves(ns: &NetNs) -> bool {
    ["192.0.2.1", "2001:db8::1"].iter().all(|to| {
        let output = ns.command("ip").unwrap().args(["route", "get", to]).output().unwrap();
        !output.status.success()
    })
}

#[test]
fn a_kill_switch_holds_after_the_end_and_after_kill_until_it_is_released() {
    adit_testbed::needs_root!();
    let mut server = Server::new("--full-tunnel");
    let ns = server.client("ann", "");
    let _running = server.run();
    let before = routing(&ns);
    let connect = |options: &[&str]| {
        let own = ["connect", "--dns", "off", "--dir", "run-ann"];
        let arguments = [&own, options, &["ann.ovpn"]].concat();
        world::start(&ns, &arguments, server.dir.path(), "ann.log")
    };
    let adit = |words: &[&str]| {
        let output = ns.command(ADIT).unwrap().args(words).output().unwrap();
        let said = [output.stdout, output.stderr].concat();
        (output.status.code(), String::from_utf8(said).unwrap())
    };
    let mut ended = connect(&["--kill-switch"]);
    until("the tunnel is up", || count(&ended, "connected: 10.73.0.") == 1);
    assert!(answers(&ns, "10.73.0.1"));
    assert_eq!(ended.end(), Some(0));
    assert!(ended.log().contains("adit connect --release"), "{}", ended.log());
    assert!(nothing_leaves(&ns));
    let (_, status) = adit(&["status"]);
    assert!(status.contains("kill switch of a client that has ended"), "{status}");
    // Another client still connects, and stays connected.
    let mut killed = connect(&[]);
    until("the tunnel is up again", || count(&killed, "connected: 10.73.0.") == 2);
    assert!(answers(&ns, "10.73.0.1"));
    assert!(killed.log().contains("kill switch of an earlier connection"), "{}", killed.log());
    killed.signal("KILL");
    killed.child.wait().unwrap();
    until("the helper has ended", || adit(&["doctor"]).1.contains("kill switch"));
    assert!(nothing_leaves(&ns));
    let (code, said) = adit(&["connect", "--release"]);
    assert_eq!((code, said.contains("removed the rule")), (Some(0), true), "{said}");
    assert_eq!(routing(&ns), before);
    assert!(!adit(&["status"]).1.contains("kill switch"));
    assert!(adit(&["connect", "--release"]).1.contains("nothing to release"));
}

/// Runs a command of `ip` in a namespace. Returns whether it succeeded.
fn ip(ns: &NetNs, line: &str) -> bool {
    ns.command("ip").unwrap().args(line.split(' ')).status().unwrap().success()
}

/// Returns the standard output of adit, run in a namespace.
fn said(ns: &NetNs, line: &str) -> String {
    let output = ns.command(ADIT).unwrap().args(line.split(' ')).output().unwrap();
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn routes_that_the_kernel_refuses_are_in_status_and_doctor_until_they_are_there() {
    let mut server = Server::new("--full-tunnel");
    let ns = server.client("ann", "");
    let _running = server.run();
    let client = server.connect(&ns, "ann");
    until("the tunnel is up", || client.log().contains("connected: 10.73.0."));
    assert!(!said(&ns, "status").contains("routing"), "{}", said(&ns, "status"));
    assert!(said(&ns, "doctor").contains("ok   routing     no tunnel waits for rules or routes\n"));
    // The kernel removes the routes into an interface that is down, and refuses new ones.
    assert!(ip(&ns, "link set vpn0 down"));
    until("status says so", || said(&ns, "status").contains("WARNING: routing incomplete"));
    assert!(nothing_leaves(&ns));
    let status = said(&ns, "status");
    let words = status.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        words.contains(
            "WARNING: routing incomplete, tried again: setting the route 0.0.0.0/0 by vpn0 in table \
             44311: the interface is down (Network is down"
        ),
        "{status}"
    );
    let json: serde_json::Value = serde_json::from_str(&said(&ns, "status --json")).unwrap();
    let why = json[0]["routing"].as_str().unwrap();
    assert!(why.starts_with("setting the route 0.0.0.0/0 by vpn0 in table 44311: "), "{why}");
    let doctor = said(&ns, "doctor");
    assert!(doctor.contains("WARN routing     the kernel refuses rules or routes of a tunnel"));
    let json: serde_json::Value = serde_json::from_str(&said(&ns, "doctor --json")).unwrap();
    let all = json.as_array().unwrap();
    let finding = all.iter().find(|finding| finding["check"] == "routing").unwrap();
    assert_eq!((&finding["level"], &finding["fixable"]), (&"warning".into(), &false.into()));
    assert!(finding["what"].as_str().unwrap().contains(why), "{finding}");
    assert!(finding["remedy"][0].as_str().unwrap().contains("adit status"), "{finding}");
    for text in [&status, &doctor] {
        assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    }
    assert!(ip(&ns, "link set vpn0 up"));
    until("the routes are back", || answers(&ns, "10.73.0.1"));
    until("the log says so", || client.log().contains("routing: update complete"));
    assert!(client.log().contains("routing: update failed: setting the route"));
    assert!(!said(&ns, "status").contains("routing"));
    assert!(said(&ns, "doctor").contains("ok   routing"));
}

#[test]
fn route_metric_is_the_metric_of_the_kernels_routes() {
    let mut server = Server::new("--route 10.99.0.0/16");
    let ns = server.client("ann", "");
    let profile = server.dir.path().join("ann.ovpn");
    let more = "route-metric 77\nroute 10.98.0.0 255.255.0.0\n\
                route 10.97.0.0 255.255.0.0 vpn_gateway 5\nroute-ipv6 fd98::/64\n";
    let text = fs::read_to_string(&profile).unwrap();
    fs::write(&profile, text.replace("client\n", &format!("client\n{more}"))).unwrap();
    let _running = server.run();
    let starts: [&dyn Fn() -> TestProcess; 2] =
        [&|| server.connect(&ns, "ann"), &|| openvpn(&server, &ns, &[])];
    for start in starts {
        let mut client = start();
        until("the last route is there", || routing(&ns).contains("fd98::/64"));
        let routes = routing(&ns);
        for (to, metric) in
            [("10.99.0.0/16 ", 77), ("10.98.0.0/16 ", 77), ("10.97.0.0/16 ", 5), ("fd98::/64 ", 77)]
        {
            let line = routes.lines().find(|line| line.starts_with(to));
            let line = line.unwrap_or_else(|| panic!("{to} is missing:\n{routes}"));
            let words: Vec<&str> = line.split_whitespace().collect();
            let at =
                words.iter().position(|word| *word == "metric").unwrap_or_else(|| panic!("{line}"));
            assert_eq!(words[at + 1], metric.to_string(), "{line}");
        }
        assert_eq!(client.end(), Some(0), "{}", client.log());
    }
}

#[test]
fn a_connecting_process_has_given_up_what_it_does_not_need() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let ns = server.client("ann", "");
    let _running = server.run();
    let client = server.connect(&ns, "ann");
    until("the tunnel is up", || client.log().contains("connected: 10.73.0."));
    let status = fs::read_to_string(format!("/proc/{}/status", client.child.id())).unwrap();
    for line in ["CapEff:\t0000000000000000", "NoNewPrivs:\t1", "Seccomp:\t2"] {
        assert!(status.contains(line), "{status}");
    }
}

#[test]
fn a_port_where_nothing_listens_is_named_and_costs_no_time() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let ns = server.client("ann", "");
    let mut client = openvpn(&server, &ns, &["--verb", "1", "--suppress-timestamps"]);
    let refused = "read UDPv4 [ECONNREFUSED]: Connection refused (fd=";
    // The second refusal arrives a second later. A thread that looped on a socket with an error would have used the
    // whole second.
    until("two refusals", || count(&client, refused) == 2);
    let stat = fs::read_to_string(format!("/proc/{}/stat", client.child.id())).unwrap();
    let ticks: Vec<u64> = stat.split(' ').skip(13).take(2).map(|t| t.parse().unwrap()).collect();
    assert!(ticks.iter().sum::<u64>() < 50, "{stat}");
    let _running = server.run();
    until("the tunnel is up", || count(&client, UP) == 1);
    assert_eq!(client.end(), Some(0));
}

#[test]
fn as_openvpn_it_obeys_openvpns_signals() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let ns = server.client("ann", "");
    let _running = server.run();
    let options = ["--verb", "3", "--status", "ann.status", "1", "--suppress-timestamps"];
    let mut client = openvpn(&server, &ns, &options);
    until("the tunnel is up", || count(&client, UP) == 1);
    assert!(answers(&ns, "10.73.0.1"));
    for line in [
        "UDPv4 link local: (not bound)",
        "UDPv4 link remote: [AF_INET]192.0.2.1:1194",
        "TLS: Initial packet from [AF_INET]192.0.2.1:1194, sid=",
        "VERIFY OK: depth=1, ",
        "VERIFY OK: depth=0, CN=adit-server",
        "Control Channel: TLSv1.3, cipher TLSv1.3 TLS_AES_256_GCM_SHA384, peer certificate: 256 bits EC",
        "[adit-server] Peer Connection Initiated with [AF_INET]192.0.2.1:1194",
        "PUSH: Received control message: 'PUSH_REPLY,",
        "TUN/TAP device tun7 opened",
        "Data Channel: cipher 'AES-256-GCM', peer-id: ",
    ] {
        assert!(client.log().lines().any(|l| l.starts_with(line)), "{line}\n{}", client.log());
    }
    client.signal("USR2");
    until("statistics", || client.log().contains("OpenVPN STATISTICS\nUpdated,"));
    client.signal("USR1");
    until("up again after SIGUSR1", || count(&client, UP) == 2);
    assert_eq!(count(&client, "SIGUSR1[hard,] received, process restarting"), 1);
    client.signal("HUP");
    until("up again after SIGHUP", || count(&client, UP) == 3);
    assert_eq!(count(&client, "SIGHUP[hard,] received, process restarting"), 1);
    assert_eq!(count(&client, "TUN/TAP device tun7 opened"), 2);
    assert!(answers(&ns, "10.73.0.1"));
    let status = server.dir.path().join("ann.status");
    until("the status file has traffic", || {
        let text = fs::read_to_string(&status).unwrap();
        text.starts_with("OpenVPN STATISTICS\nUpdated,")
            && text.ends_with("END\n")
            && !text.contains("TCP/UDP read bytes,0\n")
    });
    assert_eq!(client.end(), Some(0));
    let log = client.log();
    assert!(log.trim_end().ends_with("received, process exiting"), "{log}");
}

#[test]
fn as_openvpn_it_becomes_another_user_and_still_cleans_up() {
    adit_testbed::needs_root!();
    let mut server = Server::new("--full-tunnel");
    let ns = server.client("ann", "");
    let _running = server.run();
    let before = routes(&ns);
    let options = ["--user", "nobody", "--group", "nogroup", "--verb", "3"];
    let mut client = openvpn(&server, &ns, &options);
    until("the tunnel is up", || count(&client, UP) == 1);
    let status = fs::read_to_string(format!("/proc/{}/status", client.child.id())).unwrap();
    assert!(!status.contains("Uid:\t0"), "{status}");
    assert!(status.contains("CapEff:\t0000000000000000"), "{status}");
    assert!(routes(&ns).contains("192.0.2.1 "));
    // The client's helper reads the files again.
    client.signal("HUP");
    until("it connects again", || count(&client, UP) == 2);
    assert_eq!(count(&client, "SIGHUP[hard,] received, process restarting"), 1);
    assert_eq!(client.end(), Some(0));
    assert_eq!(routes(&ns), before);
}

#[test]
fn a_missing_file_is_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let config = "port 11941\nproto udp4\nlocal 127.0.0.1\ndev null\ndh none\nca no.crt\n\
                  cert no.crt\nkey no.key\nserver 10.74.0.0 255.255.255.0\ntopology subnet\n";
    fs::write(dir.path().join("s.conf"), config).unwrap();
    let output = Command::new(ADIT)
        .args(["openvpn", "--config", "s.conf"])
        .current_dir(dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(said.contains("--ca fails with 'no.crt': No such file or directory"), "{said}");
    // The exit code is that of openvpn's fatal errors.
    assert_eq!(output.status.code(), Some(1));
}
