//! Tests of several processes on one host, and of two devices with the same profile.

use std::fs;

use adit_linux::netns::NetNs;

use crate::world::{self, ADIT, Server, TestProcess, alive, answers, helper_of, until};

/// Runs `adit LINE` in a namespace. Returns the exit code and all output.
fn adit(server: &Server, ns: &NetNs, line: &str) -> (Option<i32>, String) {
    let output = ns
        .command(ADIT)
        .unwrap()
        .args(line.split_whitespace())
        .current_dir(server.dir.path())
        .output()
        .unwrap();
    let said = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

#[test]
fn a_check_leaves_a_running_session_of_the_same_profile_alone() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let ns = server.client("ann", "");
    let elsewhere = server.client("other", "");
    let running = server.run();
    let client = server.connect(&ns, "ann");
    server.await_connected(&["ann"]);
    let before = server.sessions();
    // A client with its own directory for the socket is found with the same `--dir`.
    let (_, said) = adit(&server, &ns, "status --dir run-ann");
    assert!(said.contains("client ann: running"), "{said}");
    // A second session from the same machine, and one from another device.
    for place in [&ns, &elsewhere] {
        let (code, said) = adit(&server, place, "connect --check ann.ovpn");
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("ok    data") && said.contains("ok    MTU"), "{said}");
        until("the check is gone", || server.sessions() == before);
        assert!(answers(&ns, "10.73.0.1"));
    }
    assert!(!client.log().contains("retrying"), "{}", client.log());
    assert!(!running.log().contains("replaced"), "{}", running.log());
    until("the server logs it", || running.log().contains("ann: connection check from"));
}

/// A server that does not support checks would end the session for a second one, so the check stops before that.
#[test]
fn a_check_against_openvpns_server_stops_before_it_replaces_a_session() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let ns = server.client("ann", "");
    let pki = server.dir.path().join("vpn/data/pki");
    let config = format!(
        "dev tun7\nserver 10.75.0.0 255.255.255.0\ntopology subnet\nlocal 192.0.2.1\nport 1194\nproto udp\nkeepalive 10 60\n\
         dh none\nverb 3\nca {0}/ca.crt\ncert {0}/server.crt\nkey {0}/private/server.key\n\
         tls-crypt-v2 {0}/private/tls-crypt-v2-server.key\n",
        pki.display()
    );
    let files = std::process::Command::new("find").arg(&pki).output().unwrap();
    let files = String::from_utf8(files.stdout).unwrap();
    let path = |words: &[&str]| {
        let found = files.lines().find(|line| words.iter().all(|word| line.contains(word)));
        found.unwrap_or_else(|| panic!("{words:?} in {files}")).to_owned()
    };
    let config = config
        .replace(&format!("{}/ca.crt", pki.display()), &path(&["ca.crt"]))
        .replace(&format!("{}/server.crt", pki.display()), &path(&["server.pem"]))
        .replace(&format!("{}/private/server.key", pki.display()), &path(&["server.pem"]))
        .replace(
            &format!("{}/private/tls-crypt-v2-server.key", pki.display()),
            &path(&["tls-crypt-v2"]),
        );
    fs::write(server.dir.path().join("stock.conf"), config).unwrap();
    let args = ["--config", "stock.conf"];
    let stock = TestProcess::program(&server.ns, "openvpn", &args, server.dir.path(), "stock.log");
    until("openvpn serves", || stock.log().contains("Initialization Sequence Completed"));
    let client = server.connect(&ns, "ann");
    until("the tunnel is up", || client.log().contains("connected: 10.75.0."));
    let (code, said) = adit(&server, &ns, "connect --check ann.ovpn");
    assert_eq!(code, Some(0), "{said}");
    assert!(
        said.contains("ok    TLS") && said.contains("not tried: auth, push, data, MTU"),
        "{said}"
    );
    assert!(!stock.log().contains("will cause previous active sessions"), "{}", stock.log());
    assert!(answers(&ns, "10.75.0.1"), "{}", client.log());
}

#[test]
fn two_devices_with_one_profile_are_told_and_do_not_fight() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let (one, other) = (server.client("ann", ""), server.client("second", ""));
    let running = server.run();
    let first = server.connect(&one, "ann");
    server.await_connected(&["ann"]);
    let arguments =
        ["connect", "ann.ovpn", "--dns", "off", "--device", "vpn0", "--dir", "run-second"];
    let second = world::start(&other, &arguments, server.dir.path(), "second.log");
    until("the second is connected", || second.log().contains("connected: 10.73.0."));
    until("the first is told", || first.log().contains("this profile is in use at 203.0.113.6"));
    let (_, said) = server.adit("status");
    assert!(said.contains("ann is used from two addresses, 203.0.113.2 and"), "{said}");
    let (_, said) = server.adit("doctor");
    assert!(said.contains("two devices use the profile of ann"), "{said}");
    until("the server logs it", || running.log().contains("ann: two devices use this profile"));
    // The first device stays away for a minute, so the second keeps its tunnel.
    std::thread::sleep(std::time::Duration::from_secs(5));
    assert!(answers(&other, "10.73.0.1"));
    assert_eq!(first.log().matches("connected: 10.73.0.").count(), 1, "{}", first.log());
    assert!(!second.log().contains("retrying"), "{}", second.log());
}

#[test]
fn status_sees_a_drop_in_and_names_one_that_is_stopped() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let ns = server.client("ann", "");
    let _running = server.run();
    let arguments = ["openvpn", "--config", "ann.ovpn", "--dev", "tun7"];
    let mut client = world::start(&ns, &arguments, server.dir.path(), "ann.log");
    until("the tunnel is up", || client.log().contains("Initialization Sequence Completed"));
    let pid = client.child.id();
    let (code, said) = adit(&server, &ns, "status");
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains(&format!("client openvpn-{pid}: running, process {pid}")), "{said}");
    // A process in another server's directory is not shown.
    assert!(!server.adit("status").1.contains(&format!("process {pid}")));
    client.signal("STOP");
    until("it is stopped", || {
        let (_, said) = adit(&server, &ns, "status");
        said.contains(&format!("kill -CONT {pid}"))
    });
    client.signal("CONT");
    until("it answers again", || {
        adit(&server, &ns, "status").1.contains(&format!("running, process {pid}"))
    });
    assert_eq!(client.end(), Some(0));
}

#[test]
fn a_server_of_another_folder_is_seen_too() {
    adit_testbed::needs_root!();
    let server = Server::new("");
    let running = server.run();
    let pid = running.child.id();
    let (_, said) = adit(&server, &server.ns, "status");
    assert!(said.contains(&format!("server: running, process {pid}")), "{said}");
    let second = world::start(
        &server.ns,
        &["server", "run", "--dir", "vpn"],
        server.dir.path(),
        "second.log",
    );
    until("it is refused", || {
        second.log().contains(&format!("is already running (process {pid})"))
    });
}

#[test]
fn what_a_killed_server_left_is_named_and_undone_by_the_doctor() {
    adit_testbed::needs_root!();
    let server = Server::new("");
    server.ns.set_sysctl("net.ipv4.ip_forward", "0").unwrap();
    let mut running = server.run();
    let undo = server.dir.path().join("vpn/run/server.undo.json");
    let (text, rules) = (fs::read_to_string(&undo).unwrap(), server.rules());
    let helper = helper_of(running.child.id()).unwrap();
    running.signal("KILL");
    running.child.wait().unwrap();
    // The helper outlives the process and undoes all changes. After that, the test kills the helper too.
    until("the helper has ended", || !alive(helper));
    until("it is undone", || {
        server.adit("doctor --fix");
        server.rules().is_empty() && !undo.exists()
    });
    fs::write(server.dir.path().join("rules.nft"), rules).unwrap();
    let mut nft = server.ns.command("nft").unwrap();
    assert!(nft.args(["-f", "rules.nft"]).current_dir(&server.dir).status().unwrap().success());
    server.ns.set_sysctl("net.ipv4.ip_forward", "1").unwrap();
    fs::write(&undo, text).unwrap();
    for verb in ["status", "doctor"] {
        let (_, said) = server.adit(verb);
        let words: String = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("left behind: the nft table inet adit_vpn"), "{verb}: {said}");
        assert!(words.contains("net.ipv4.ip_forward (it was 0)"), "{verb}: {said}");
    }
    server.adit("doctor --fix");
    assert_eq!((server.sysctl("net/ipv4/ip_forward").as_str(), server.rules().as_str()), ("0", ""));
    assert!(!server.adit("status").1.contains("left behind"));
}

#[test]
fn a_reload_says_what_it_did_and_whose_profiles_are_old() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let ns = server.client("ann", "");
    let _running = server.run();
    let _client = server.connect(&ns, "ann");
    server.await_connected(&["ann"]);
    let (ok, said) = server.adit("reload");
    assert!(ok && !said.contains("restart") && !said.contains("out of date"), "{said}");
    server.edit_settings("[\"udp/1194\"]", "[\"udp/443\"]");
    server.edit_settings("dns = []", "dns = [\"9.9.9.9\"]");
    let (ok, said) = server.adit("reload");
    assert!(ok, "{said}");
    for line in [
        "applied now:                 dns",
        "not applied until a restart: listen",
        "profiles out of date:        ann",
        "  remote 192.0.2.1 443",
    ] {
        assert!(said.contains(line), "{line}: {said}");
    }
    let (_, said) = server.adit("server client remotes");
    assert!(said.starts_with("proto udp\nremote 192.0.2.1 443\n"), "{said}");
    assert!(said.contains("out of date: ann"), "{said}");
    let (ok, said) = server.adit("server client remotes --done ann");
    assert!(ok && !said.contains("out of date"), "{said}");
    let (_, said) = server.adit("kick ann");
    assert!(said.contains("ann: 1 session ended"), "{said}");
    server.await_connected(&["ann"]);
}

#[test]
fn a_bridge_shows_the_mistakes_in_its_rules_as_the_check_does() {
    let dir = tempfile::tempdir().unwrap();
    let rules = "table inet f { chain forward { type filter hook forward priority 0; tcp dprot 7 accept } }\n";
    fs::write(dir.path().join("bad.nft"), rules).unwrap();
    fs::write(
        dir.path().join("s.conf"),
        "dev null\nserver 10.1.0.0 255.255.255.0\ntopology subnet\ndh none\nca x\ncert x\nkey x\nfilter bad.nft\n",
    )
    .unwrap();
    let said = |arguments: &[&str]| {
        let mut command = std::process::Command::new(ADIT);
        let output = command.args(arguments).current_dir(&dir).output().unwrap();
        assert_eq!(output.status.code(), Some(2));
        String::from_utf8([output.stdout, output.stderr].concat()).unwrap()
    };
    let text = said(&["bridge", "tap:a", "tap:b", "--rules", "bad.nft"]);
    assert!(!text.contains("\\x0a"), "{text}");
    let lines: Vec<&str> = text.lines().collect();
    let at = lines.iter().position(|line| line.contains("bad.nft:1:")).expect(&text);
    let (code, caret) = (lines[at + 1], lines[at + 2]);
    let column = caret.find("^^^^^").expect(&text);
    assert_eq!(&code[column..column + 5], "dprot", "{text}");
}

#[test]
fn a_disabled_client_is_told_and_comes_back_when_it_is_enabled() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let ns = server.client("ann", "");
    let _running = server.run();
    let mut client = server.connect(&ns, "ann");
    server.await_connected(&["ann"]);
    let (_, said) = server.adit("server client disable ann");
    assert!(said.contains("locked out until it is enabled; its session ended"), "{said}");
    until("it is told", || client.log().contains("the client is disabled: retrying"));
    assert_eq!(client.child.try_wait().unwrap(), None, "{}", client.log());
    assert!(server.adit("server client enable ann").0);
    server.await_connected(&["ann"]);
    // A revoked certificate is final, so the client does not retry.
    assert!(server.adit("server client revoke ann").0);
    until("it is told", || client.log().contains("ask for a new profile"));
    assert!(!client.log().contains("password"), "{}", client.log());
}

#[test]
fn a_server_that_does_not_answer_is_hinted_at_before_a_minute_is_over() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let ns = server.client("ann", "");
    let file = server.dir.path().join("ann.ovpn");
    let profile = fs::read_to_string(&file).unwrap();
    let (before, rest) = profile.split_once("<tls-crypt-v2>").unwrap();
    let (_, after) = rest.split_once("</tls-crypt-v2>").unwrap();
    fs::write(&file, format!("{before}{after}")).unwrap();
    let _running = server.run();
    let client = server.connect(&ns, "ann");
    until("there is a hint", || client.log().contains("192.0.2.1:1194: no answer for 5 s"));
}

/// The lines that each level of `verb` adds.
const STEPS: [(u8, &str); 8] = [
    (4, "Option: ann.ovpn:1: client"),
    (5, "packets: R "),
    (6, "READ ["),
    (7, "key 0 installed: primary"),
    (8, "WRITE DATA "),
    (9, "replay window "),
    (10, "timer: "),
    (11, "input: control packet: "),
];

#[test]
fn each_step_of_verb_says_more_than_the_one_below() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let ns = server.client("ann", "");
    let _running = server.run();
    for verb in 3..=11 {
        let (number, log) = (verb.to_string(), format!("verb-{verb}.log"));
        let arguments =
            ["openvpn", "--config", "ann.ovpn", "--dev", "tun7", "--verb", number.as_str()];
        let mut client = world::start(&ns, &arguments, server.dir.path(), &log);
        until("the tunnel is up", || client.log().contains("Initialization Sequence Completed"));
        let has = |client: &TestProcess, line: &str| client.log().contains(line);
        let (wanted, more): (Vec<_>, Vec<_>) = STEPS.iter().partition(|(step, _)| *step <= verb);
        until("each line is there", || {
            answers(&ns, "10.73.0.1");
            wanted.iter().all(|(_, line)| has(&client, line))
        });
        for (_, line) in more {
            assert!(!has(&client, line), "{line:?} at verb {verb}: {}", client.log());
        }
        assert_eq!(client.end(), Some(0));
    }
}

/// Unsupported or doubtful TLS settings are reported when the configuration is read, not when a peer is refused.
#[test]
fn doubts_about_certificates_and_tls_reach_the_log() {
    adit_testbed::needs_root!();
    let dir = tempfile::tempdir().unwrap();
    let ns = NetNs::unnamed().unwrap();
    for name in ["one", "other"] {
        let made = std::process::Command::new(ADIT)
            .args(["server", "init", "--host", "h", "--dir", name])
            .current_dir(&dir)
            .output()
            .unwrap();
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    }
    let pki = dir.path().join("one/data/pki");
    let config = format!(
        "dev null\nserver 10.75.0.0 255.255.255.0\ntopology subnet\ndh none\nca other/data/pki/ca.crt\n\
         cert {0}\nkey {0}\ntls-cipher TLS-DHE-RSA-WITH-AES-256-CBC-SHA\ntls-groups X25519:brainpoolP256r1\n",
        pki.join("server.pem").display()
    );
    fs::write(dir.path().join("s.conf"), config).unwrap();
    let arguments = ["openvpn", "--config", "s.conf"];
    let mut server = world::start(&ns, &arguments, dir.path(), "s.log");
    until("it serves", || server.log().contains("Initialization Sequence Completed"));
    for said in [
        "our certificate is not signed by an authority in other/data/pki/ca.crt",
        "TLS 1.2 is not offered, TLS 1.3 is",
        "tls-groups: not supported and left out: brainpoolP256r1",
    ] {
        assert_eq!(server.log().matches(said).count(), 1, "{said}: {}", server.log());
    }
    assert_eq!(server.end(), Some(0));
}

#[test]
fn a_private_address_is_pointed_out_where_a_server_is_made() {
    adit_testbed::needs_root!();
    let (home, router) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
    home.connect("eth0", &router, "lan").unwrap();
    world::address(&home, "eth0", "192.168.1.50/24");
    let gateway = std::net::Ipv4Addr::new(192, 168, 1, 1);
    let route = adit_linux::net::Route::via("0.0.0.0/0".parse().unwrap(), gateway.into());
    home.configure(async |net| net.add_route(&route).await).unwrap().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let output = home
        .command(ADIT)
        .unwrap()
        .args(["server", "init", "--dir", "vpn"])
        .current_dir(&dir)
        .output()
        .unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("clients will dial 192.168.1.50, a private address"), "{said}");
    assert!(words.contains("Forward the port on the router"), "{said}");
    assert!(said.lines().all(|line| line.chars().count() <= 80), "{said}");
}

#[test]
fn a_second_server_takes_a_free_port_and_writes_nothing_where_it_cannot_start() {
    adit_testbed::needs_root!();
    let server = Server::new("");
    let _running = server.run();
    let init = "server init --host h --network 10.75.0.0/24 --network6 fd75::/64 --dir second";
    let (code, said) = adit(&server, &server.ns, init);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("h on udp/1195"), "{said}");
    let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("udp/1194 is taken by adit"), "{said}");
    let up = "server up --host h --network 10.76.0.0/24 --listen udp/1194 --dir third";
    let (code, said) = adit(&server, &server.ns, up);
    assert_eq!(code, Some(1), "{said}");
    assert!(said.contains("udp/1194 is taken") && said.contains("nothing was written"), "{said}");
    assert!(!server.dir.path().join("third").exists());
}
