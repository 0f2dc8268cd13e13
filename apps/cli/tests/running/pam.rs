//! Tests of users whose passwords PAM checks, with openvpn as their client.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use adit_linux::netns::NetNs;

use crate::world::{ADIT, Server, TestProcess, answers, until};

const UP: &str = "Initialization Sequence Completed";

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

fn server(login: &str) -> Server {
    let server = Server::new("");
    let dir = server.dir.path();
    let (check, service) = (dir.join("check"), dir.join("pam.d"));
    fs::write(&check, CHECK.replace("DIR", dir.to_str().unwrap())).unwrap();
    fs::set_permissions(&check, fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir(&service).unwrap();
    let rules = format!(
        "auth required pam_exec.so expose_authtok quiet {}\naccount required pam_permit.so\n",
        check.display()
    );
    fs::write(service.join("vpn"), rules).unwrap();
    let file = dir.join("vpn/server.toml");
    let text = fs::read_to_string(&file).unwrap();
    let text = text.replace("login = \"certificate\"", &format!("login = \"{login}\""));
    fs::write(&file, text.replace("pam-service = \"adit\"", "pam-service = \"vpn\"")).unwrap();
    server
}

/// Runs the server, for which the folder `pam.d` is PAM's.
fn run(server: &Server) -> TestProcess {
    let script = format!(
        "mount --make-rprivate / && mount --bind pam.d /etc/pam.d && exec {ADIT} server run --dir vpn"
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
    let mut server = server("pam");
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

/// The certificate is checked first, and a user who is registered here can be bound and disabled.
#[test]
fn pam_and_a_certificate_are_both_needed() {
    adit_testbed::needs_root!();
    let mut server = server("certificate+pam");
    let (laptop, phone) = (server.client("laptop", ""), server.client("phone", ""));
    assert!(server.adit("server user add alice --no-password --client laptop").0);
    let running = run(&server);
    let mut bound = openvpn(&server, &phone, "phone.ovpn", ("alice", "correct horse"));
    until("alice is refused", || bound.child.try_wait().unwrap().is_some());
    let line = "user alice: the user may not use this client's certificate";
    until("the refusal is logged", || running.log().contains(line));
    let mut alice = openvpn(&server, &laptop, "laptop.ovpn", ("alice", "correct horse"));
    until("alice is up", || alice.log().contains(UP));
    assert_eq!(server.connected(), ["laptop"]);
    assert!(server.adit("server user disable alice").0);
    until("alice is refused again", || alice.child.try_wait().unwrap().is_some());
    assert!(server.connected().is_empty());
}
