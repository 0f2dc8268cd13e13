//! Tests of the helper, and of the network process without privileges.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use adit_linux::netns::NetNs;
use adit_testbed::file;

use crate::world::privileges::{
    assert_all_without_rights, assert_helper, assert_without_rights, can_read, status,
};
use crate::world::{self, Server, TestProcess, alive, answers, helper_of, kill_with_helper, until};

fn kill(pids: &[u32]) {
    let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
    assert!(Command::new("kill").arg("-9").args(pids).status().unwrap().success());
}

/// Returns the routes in the main table, and the rules that select other tables.
fn routes(ns: &NetNs) -> String {
    let listed = [["-4", "route"], ["-6", "route"], ["-4", "rule"], ["-6", "rule"]].map(|what| {
        let output = ns.command("ip").unwrap().args(what).output().unwrap();
        String::from_utf8(output.stdout).unwrap()
    });
    // The kernel adds its own IPv6 routes at any time.
    let all = listed.iter().flat_map(|text| text.lines());
    all.filter(|line| !line.contains("fe80::")).collect::<Vec<_>>().join("\n")
}

/// Connects a client, and waits until its tunnel carries all traffic.
fn connected(server: &Server, ns: &NetNs) -> TestProcess {
    // An earlier client may have used the same log, and its routes may still exist.
    let log = server.dir.path().join("laptop.log");
    let count =
        || fs::read_to_string(&log).unwrap_or_default().matches("connected: 10.73.0.").count();
    let former = count();
    let client = server.connect(ns, "laptop");
    until("the tunnel's routes are there", || count() > former);
    server.await_connected(&["laptop"]);
    until("the tunnel carries", || answers(ns, "10.73.0.1"));
    client
}

#[test]
fn a_client_has_no_rights_and_its_helper_undoes_what_a_killed_one_leaves() {
    adit_testbed::needs_root!();
    let mut server = Server::new("--full-tunnel");
    let _running = server.run();
    let ns = server.client("laptop", "");
    let before = routes(&ns);
    let mut client = connected(&server, &ns);
    let pid = client.child.id();
    assert_without_rights(pid);
    let helper = helper_of(pid).expect("a helper");
    assert_helper(helper);
    assert_ne!(routes(&ns), before);

    client.signal("KILL");
    client.child.wait().unwrap();
    until("the helper undid it and ended", || routes(&ns) == before && !alive(helper));

    let mut client = connected(&server, &ns);
    assert_eq!(client.end(), Some(0), "{}", client.log());
    assert_eq!(routes(&ns), before, "an orderly end waits for the helper's");
}

#[test]
fn a_client_ends_without_its_helper_and_the_next_start_undoes_what_both_left() {
    adit_testbed::needs_root!();
    let mut server = Server::new("--full-tunnel");
    let _running = server.run();
    let ns = server.client("laptop", "");
    let before = routes(&ns);
    let mut client = connected(&server, &ns);
    let helper = helper_of(client.child.id()).unwrap();
    kill(&[helper]);
    until("the client ends", || client.child.try_wait().unwrap().is_some());
    assert_eq!(client.child.wait().unwrap().code(), Some(1));
    assert!(client.log().contains("helper: process ended"), "{}", client.log());

    let mut client = connected(&server, &ns);
    kill_with_helper(&mut client);
    let left = routes(&ns);
    assert_ne!(left, before, "there is something to undo");
    let mut client = connected(&server, &ns);
    assert_eq!(client.end(), Some(0));
    assert_eq!(routes(&ns), before);
}

#[test]
fn a_serving_process_cannot_read_the_authoritys_key() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let ns = server.client("laptop", "");
    // Only the modes of the server's own directories protect it.
    file::set_mode(server.dir.path(), 0o755).unwrap();
    let running = server.run();
    let _client = server.connect(&ns, "laptop");
    server.await_connected(&["laptop"]);
    let pid = running.child.id();
    let workers = assert_all_without_rights(pid, "plane-");
    assert!(workers > 0);
    assert_helper(helper_of(pid).unwrap());
    let data = server.dir.path().join("vpn/data");
    for file in ["pki/private/ca.key", "pki/server.pem", "pki/tls-crypt-v2.key"] {
        assert!(fs::read(data.join(file)).is_ok());
        assert!(!can_read(pid, &data.join(file)), "{file}");
    }
    assert!(!can_read(pid, Path::new("/etc/shadow")));
    assert!(can_read(pid, Path::new("/etc/passwd")), "the test itself works");
    until("leases are written", || data.join("leases.json").exists());
    let leases = fs::metadata(data.join("leases.json")).unwrap();
    assert_eq!((leases.uid(), leases.mode() & 0o777), (0, 0o600));
    let (reloaded, said) = server.adit("reload");
    assert!(reloaded, "{said}");
}

/// Starts an `adit openvpn` server with the keys of a managed one, in directories that only root
/// can read.
fn openvpn_server(server: &Server, more: &str) -> TestProcess {
    let config = format!(
        "dev tun\nserver 10.73.0.0 255.255.255.0\ntopology subnet\nkeepalive 1 5\nport 1194\n\
         proto udp6\nca vpn/data/pki/ca.crt\ncert vpn/data/pki/server.pem\nkey vpn/data/pki/server.pem\n\
         tls-crypt-v2 vpn/data/pki/tls-crypt-v2.key\ndh none\ncrl-verify vpn/data/pki/crl.pem\n\
         data-ciphers AES-256-GCM:CHACHA20-POLY1305\nremote-cert-tls client\n\
         client-config-dir ccd\nifconfig-pool-persist ipp.txt 1\nlog server.txt\nstatus status.txt 1\n\
         writepid pid\nverb 3\n{more}"
    );
    let dir = server.dir.path();
    fs::write(dir.join("server.conf"), config).unwrap();
    fs::create_dir_all(dir.join("ccd")).unwrap();
    file::set_mode(dir.join("ccd"), 0o700).unwrap();
    world::start(&server.ns, &["openvpn", "--config", "server.conf"], dir, "server.out")
}

fn log(server: &Server) -> String {
    fs::read_to_string(server.dir.path().join("server.txt")).unwrap_or_default()
}

#[test]
fn signals_lists_client_files_and_leases_work_without_rights() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let ns = server.client("laptop", "");
    server.client("other", "");
    let dir = server.dir.path().to_owned();
    file::set_mode(&dir, 0o700).unwrap();
    let mut running = openvpn_server(&server, "");
    let started = |times: usize| {
        until("it serves", || {
            log(&server).matches("Initialization Sequence Completed").count() == times
        });
    };
    started(1);
    let pid = running.child.id();
    let named = || fs::read_to_string(dir.join("pid")).unwrap_or_default();
    assert_eq!(named(), format!("{pid}\n"));
    for task in fs::read_dir(format!("/proc/{pid}/task")).unwrap().flatten() {
        assert_without_rights(task.file_name().to_str().unwrap().parse().unwrap());
    }
    file::write(dir.join("ccd/laptop"), "ifconfig-push 10.73.0.77 255.255.255.0\n", 0o600).unwrap();
    let client = server.connect(&ns, "laptop");
    until("the client's file counts", || answers(&server.ns, "10.73.0.77"));

    // SIGHUP makes the process read the configuration and its files again, and open the device,
    // port and log again.
    fs::rename(dir.join("server.txt"), dir.join("server.old")).unwrap();
    let text = fs::read_to_string(dir.join("server.conf")).unwrap();
    let text = text.replace("10.73.0.0", "10.74.0.0").replace("server.txt", "server2.txt");
    fs::write(dir.join("server.conf"), text).unwrap();
    fs::write(dir.join("ccd/laptop"), "ifconfig-push 10.74.0.77 255.255.255.0\n").unwrap();
    running.signal("HUP");
    until("the client is back in the new network", || answers(&server.ns, "10.74.0.77"));
    let rotated = fs::metadata(dir.join("server2.txt")).unwrap();
    assert_eq!((rotated.uid(), rotated.mode() & 0o777), (0, 0o600));
    assert_without_rights(pid);
    assert_eq!(named(), format!("{pid}\n"), "the process is the same after SIGHUP");

    // SIGUSR1 starts again with the same configuration, whatever its file contains by now.
    fs::write(dir.join("server.conf"), "no configuration\n").unwrap();
    running.signal("USR1");
    let log = || fs::read_to_string(dir.join("server2.txt")).unwrap();
    until("it serves again", || log().matches("Initialization Sequence Completed").count() >= 2);
    until("the client is back", || answers(&server.ns, "10.74.0.77"));

    // The client now gets an address from the pool.
    fs::remove_file(dir.join("ccd/laptop")).unwrap();
    running.signal("USR1");
    until("leases are written", || {
        fs::read_to_string(dir.join("ipp.txt")).is_ok_and(|text| text.contains("laptop"))
    });
    // Only root can read the revocation list.
    let (revoked, said) = server.adit("server client revoke other");
    assert!(revoked, "{said}");
    until("the list is loaded again", || log().contains("CRL: loaded"));
    let crl = dir.join("vpn/data/pki/crl.pem");
    file::set_mode(&crl, 0o600).unwrap();
    let loads = log().matches("CRL: loaded").count();
    let (revoked, said) = server.adit("server client revoke laptop");
    assert!(revoked, "{said}");
    until("it is loaded once more", || log().matches("CRL: loaded").count() > loads);
    drop(client);

    for file in ["ipp.txt", "status.txt", "server2.txt"] {
        let data = fs::metadata(dir.join(file)).unwrap();
        assert_eq!((data.uid(), data.mode() & 0o777), (0, 0o600), "{file}");
    }
    let data = fs::metadata(dir.join("pid")).unwrap();
    assert_eq!((data.uid(), data.mode() & 0o777), (0, 0o644));
    assert_eq!(running.end(), Some(0));
    assert!(!dir.join("pid").exists(), "{}", log());
    assert!(!log().contains("refused"), "{}", log());
}

#[test]
fn the_configurations_user_and_a_configuration_from_a_pipe_are_taken() {
    adit_testbed::needs_root!();
    let server = Server::new("");
    let dir = server.dir.path();
    let mut running = openvpn_server(&server, "user daemon\n");
    until("it serves", || log(&server).contains("Initialization Sequence Completed"));
    let daemon = adit_linux::privileges::find_user("daemon").unwrap();
    let (uid, gid) = (daemon.0.to_string(), daemon.1.to_string());
    let pid = running.child.id();
    assert_eq!(status(pid)["Uid"], [uid.as_str(); 4].join(" "));
    assert_eq!(status(pid)["Gid"], [gid.as_str(); 4].join(" "), "the user's own group");
    assert_eq!(status(pid)["Groups"], gid);
    assert_eq!(running.end(), Some(0));

    fs::remove_file(dir.join("server.txt")).unwrap();
    let mut piped = TestProcess::program(
        &server.ns,
        "bash",
        &["-c", &format!("exec {} openvpn --config <(cat server.conf)", world::ADIT)],
        dir,
        "piped.out",
    );
    until("it serves", || log(&server).contains("Initialization Sequence Completed"));
    assert_eq!(status(piped.child.id())["Uid"], [uid.as_str(); 4].join(" "));
    assert_eq!(piped.end(), Some(0));
}

/// Ctrl-C on a terminal, and SIGTERM to a service, reach both processes.
#[test]
fn the_helper_outlives_signals_that_are_meant_for_all() {
    adit_testbed::needs_root!();
    let mut server = Server::new("--full-tunnel");
    let _running = server.run();
    let ns = server.client("laptop", "");
    let before = routes(&ns);
    let mut client = connected(&server, &ns);
    let helper = helper_of(client.child.id()).unwrap().to_string();
    for signal in ["INT", "TERM", "HUP", "USR1", "USR2", "QUIT"] {
        assert!(Command::new("kill").args(["-s", signal, &helper]).status().unwrap().success());
    }
    assert!(answers(&ns, "10.73.0.1"));
    assert_eq!(client.end(), Some(0), "{}", client.log());
    assert_eq!(routes(&ns), before);
}

#[test]
fn the_helper_is_of_no_use_by_itself() {
    let output = Command::new(world::ADIT).arg0("adit-helper").output().unwrap();
    assert_eq!(output.status.code(), Some(2));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("started by adit alone"), "{said}");
}
