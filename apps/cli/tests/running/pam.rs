//! Tests of users whose passwords PAM checks, with openvpn as their client.

use std::fs;
use std::path::Path;
use std::process::Command;

use adit_linux::netns::NetNs;
use adit_testbed::file;

use crate::world::{ADIT, Server, TestProcess, answers, until};

const UP: &str = "Initialization Sequence Completed";

/// The hash of `correct horse` in `/etc/shadow`.
const HASH: &str = "$6$adittest$TEgmubpchgdks5jsgrZFL0sxdaSbRLq4bLF/cF.PMVsIgesXrBUjPk5HPy28iPZaMpHN2HSDPAkUE.4dOq6ET.";

/// The program of PAM's service. It gets the password on stdin.
const CHECK: &str = "#!/bin/sh
password=$(tr -d '\\0')
echo \"$PAM_USER from $PAM_RHOST\" >> DIR/asked
case $PAM_USER in
slow) while ! [ -e DIR/go ]; do sleep 0.1; done ;;
crash) kill -9 $PPID ;;
esac
[ \"$password\" = 'correct horse' ]
";

/// The rules of the service `vpn`, which ask the program [`CHECK`].
fn by_program(dir: &Path) -> String {
    let check = dir.join("check");
    file::write(&check, CHECK.replace("DIR", dir.to_str().unwrap()), 0o755).unwrap();
    let check = check.display();
    format!(
        "auth required pam_exec.so expose_authtok quiet {check}\naccount required pam_permit.so\n"
    )
}

/// The same by `/etc/passwd` and `/etc/shadow`, in which alice has a password and bob an account that has expired.
fn by_shadow(etc: &Path) -> String {
    for (name, lines) in [
        ("passwd", "NAME:x:4242:4242::/nonexistent:/usr/sbin/nologin"),
        ("shadow", "NAME:HASH:19000:0:99999:7::EXPIRES:"),
    ] {
        let mut text = fs::read_to_string(etc.join(name)).unwrap();
        for (user, expires) in [("alice", ""), ("bob", "19001")] {
            let line = lines.replace("NAME", user).replace("HASH", HASH);
            text += &format!("{}\n", line.replace("EXPIRES", expires));
        }
        fs::write(etc.join(name), text).unwrap();
    }
    "auth required pam_unix.so\naccount required pam_unix.so\n".to_owned()
}

/// Creates a server with a folder `etc` in place of the machine's.
fn server(login: &str, rules: impl FnOnce(&Path, &Path) -> String) -> Server {
    let server = Server::new("");
    let dir = server.dir.path();
    let etc = dir.join("etc");
    let copied = Command::new("cp").args(["-a", "/etc"]).arg(&etc).status();
    assert!(copied.unwrap().success());
    fs::create_dir_all(etc.join("pam.d")).unwrap();
    fs::write(etc.join("pam.d/vpn"), rules(dir, &etc)).unwrap();
    server.edit_settings("\nlogin = \"certificate\"", &format!("\nlogin = \"{login}\""));
    server.edit_settings("pam-service = \"adit\"", "pam-service = \"vpn\"");
    server
}

/// Runs the server in its own `/etc`.
fn run(server: &Server) -> TestProcess {
    let script = format!(
        "mount --make-rprivate / && mount --bind etc /etc && exec {ADIT} server run --dir vpn"
    );
    let arguments = ["-m", "sh", "-c", &script];
    let running =
        TestProcess::program(&server.ns, "unshare", &arguments, server.dir.path(), "server.log");
    until("the server can be asked", || server.adit("status").0);
    running
}

fn openvpn(server: &Server, ns: &NetNs, profile: &str, login: (&str, &str)) -> TestProcess {
    let (file, log) = (format!("{}.login", login.0), format!("{}.log", login.0));
    fs::write(server.dir.path().join(&file), format!("{}\n{}\n", login.0, login.1)).unwrap();
    let arguments =
        ["--config", profile, "--dev", "vpn0", "--dev-type", "tun", "--auth-user-pass", &file];
    TestProcess::program(ns, "openvpn", &arguments, server.dir.path(), &log)
}

#[test]
fn pam_checks_passwords_in_a_process_for_each() {
    adit_testbed::needs_root!();
    let mut server = server("pam", |dir, _| by_program(dir));
    let namespaces = ["one", "two", "three"].map(|name| server.client(name, ""));
    assert!(server.adit("server user profile alice -o alice.ovpn").0);
    let running = run(&server);
    let [one, two, three] = &namespaces;

    // Neither a module that blocks nor one that crashes affects another login.
    let slow = openvpn(&server, one, "alice.ovpn", ("slow", "correct horse"));
    let crash = openvpn(&server, two, "alice.ovpn", ("crash", "correct horse"));
    let asked = || fs::read_to_string(server.dir.path().join("asked")).unwrap_or_default();
    until("PAM is asked about both", || asked().contains("slow") && asked().contains("crash"));
    let mut wrong = openvpn(&server, three, "alice.ovpn", ("bob", "wrong horse"));
    until("bob is refused", || wrong.child.try_wait().unwrap().is_some());
    assert!(wrong.log().contains("AUTH_FAILED"), "{}", wrong.log());
    until("the refusal is logged", || running.log().contains("user bob: PAM refuses the user"));
    let alice = openvpn(&server, three, "alice.ovpn", ("alice", "correct horse"));
    until("alice is up", || alice.log().contains(UP));
    until("the server answers", || answers(three, "10.73.0.1"));
    assert_eq!(server.connected(), ["alice"]);
    until("the crash is logged", || running.log().contains("crashed: signal 9"));
    assert!(!crash.log().contains(UP));
    drop(crash);
    fs::write(server.dir.path().join("go"), "").unwrap();
    until("the slow user is up", || slow.log().contains(UP));
    server.await_connected(&["alice", "slow"]);

    assert!(asked().contains("alice from 203.0.113.10"), "{}", asked());
    assert!(!running.log().contains("horse"), "a password is in the log: {}", running.log());
    let left = fs::read_dir(server.dir.path().join("vpn/run")).unwrap().flatten();
    let left: Vec<_> = left.map(|entry| entry.file_name()).collect();
    assert!(!left.iter().any(|name| name.to_string_lossy().contains("tmp")), "{left:?}");
}

/// The certificate is checked first, and a user who is registered here can be bound and disabled. The passwords are those
/// of `/etc/shadow`.
#[test]
fn pam_and_a_certificate_are_both_needed() {
    adit_testbed::needs_root!();
    let mut server = server("certificate+pam", |_, etc| by_shadow(etc));
    let (laptop, phone) = (server.client("laptop", ""), server.client("phone", ""));
    assert!(server.adit("server user add alice --no-password --client laptop").0);
    let running = run(&server);
    let mut bound = openvpn(&server, &phone, "phone.ovpn", ("alice", "correct horse"));
    until("alice is refused", || bound.child.try_wait().unwrap().is_some());
    let line = "user alice: the user may not use this client's certificate";
    until("the refusal is logged", || running.log().contains(line));
    for (name, password) in [("alice", "wrong horse"), ("bob", "correct horse")] {
        let mut refused = openvpn(&server, &laptop, "laptop.ovpn", (name, password));
        until("the user is refused", || refused.child.try_wait().unwrap().is_some());
        let line = format!("user {name}: PAM refuses the user");
        until("the refusal is logged", || running.log().contains(&line));
    }
    let mut alice = openvpn(&server, &laptop, "laptop.ovpn", ("alice", "correct horse"));
    until("alice is up", || alice.log().contains(UP));
    assert_eq!(server.connected(), ["laptop"]);
    assert!(server.adit("server user disable alice").0);
    until("alice is refused again", || alice.child.try_wait().unwrap().is_some());
    assert!(server.connected().is_empty());
}
