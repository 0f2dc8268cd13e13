//! Tests of `adit openvpn` as scripts, service managers and front ends use it.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use adit_testbed::wait::ScaledInstant;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

const ADIT: &str = env!("CARGO_BIN_EXE_adit");
/// The time limit for operations that usually take moments.
const PATIENCE: Duration = Duration::from_secs(30);

fn openvpn(dir: &Path, line: &str) -> Command {
    let mut command = Command::new(ADIT);
    command.arg("openvpn").args(line.split_whitespace()).current_dir(dir).stdin(Stdio::null());
    command
}

fn run(dir: &Path, line: &str) -> (i32, String) {
    let Output { status, stdout, stderr } = openvpn(dir, line).output().unwrap();
    let text = [stdout, stderr].concat();
    (status.code().unwrap(), String::from_utf8(text).unwrap())
}

/// A process that is killed at the end of the test.
struct TestProcess(Child);

impl Drop for TestProcess {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn tools_find_a_version_and_lists() {
    let dir = tempfile::tempdir().unwrap();
    let (code, text) = run(dir.path(), "--version");
    let version = text.split_whitespace().nth(1).unwrap();
    let numbers: Vec<u32> = version.split('.').map(|part| part.parse().unwrap()).collect();
    assert!(code == 0 && text.starts_with("OpenVPN 2.6.") && numbers.len() == 3, "{text}");
    for (mode, line) in [
        ("--show-ciphers", "AES-256-GCM  (256 bit key"),
        ("--show-digests", "SHA512 512 bit digest size"),
        ("--show-tls", "TLS_AES_256_GCM_SHA384"),
        ("--show-curves", "secp256r1"),
        ("--show-groups", "secp521r1"),
        ("--show-gateway", "ROUTE_GATEWAY "),
        ("--show-engines", "no cryptographic engines"),
        ("--help", "TCP"),
    ] {
        let (code, text) = run(dir.path(), mode);
        assert!(code == 0 && text.contains(line), "{mode}: {text}");
    }
    let (code, text) = run(dir.path(), "--genkey secret test.key");
    assert_eq!(code, 0, "{text}");
    let line = "--test-crypto --secret test.key --cipher AES-256-CBC";
    let (code, text) = run(dir.path(), line);
    assert!(code == 0 && text.contains("crypto self-test mode SUCCEEDED."), "{text}");
    for (line, problem) in [
        ("--test-crypto", "You must define key file (--secret)"),
        ("--mktun", "You must define TUN/TAP device (--dev)"),
    ] {
        let (code, text) = run(dir.path(), line);
        assert!(code == 1 && text.contains(problem), "{code} {text}");
    }
}

/// Installers, controllers and monitors call `openvpn` by its name, and cut the version out of what it prints.
#[test]
fn tools_that_call_openvpn_find_its_version() {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::symlink(ADIT, dir.path().join("openvpn")).unwrap();
    let path = format!("{}:/usr/bin:/bin", dir.path().display());
    for (line, expected) in [
        ("openvpn --version | head -n 1 | awk '{print $2}'", "2.6.14"),
        ("openvpn --version | head -1 | cut -d ' ' -f 2", "2.6.14"),
        ("openvpn --version | grep -oE '^OpenVPN [0-9]+\\.[0-9]+\\.[0-9]+ '", "OpenVPN 2.6.14"),
        ("openvpn --version | sed -n 's/^OpenVPN \\([0-9]*\\.[0-9]*\\).*/\\1/p'", "2.6"),
        ("openvpn --version | grep -c '^library versions: '", "1"),
        ("openvpn --version | grep -o enable_management=yes", "enable_management=yes"),
        ("openvpn --help | head -n 1 | cut -c 1-8", "OpenVPN"),
        ("openvpn --show-ciphers | head -n 1 > /dev/null && echo shown", "shown"),
    ] {
        let done = Command::new("sh").args(["-c", line]).env("PATH", &path).output().unwrap();
        let (out, err) = (String::from_utf8(done.stdout), String::from_utf8(done.stderr));
        assert_eq!((out.unwrap().trim(), err.unwrap().as_str()), (expected, ""), "{line}");
    }
}

#[test]
fn every_fault_ends_with_1_and_an_options_error_reaches_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let (code, text) = run(dir.path(), "--log vpn.log --dev null --nonsense");
    assert!(code == 1 && text.contains("Options error: "), "{code} {text}");
    let log = fs::read_to_string(dir.path().join("vpn.log")).unwrap();
    assert!(log.contains("Options error: ") && log.contains("nonsense"), "{log}");
    fs::write(dir.path().join("x.conf"), "log-append later.log\ndev null\nremoet a\n").unwrap();
    let (code, _) = run(dir.path(), "x.conf");
    let log = fs::read_to_string(dir.path().join("later.log")).unwrap();
    assert!(code == 1 && log.contains("did you mean remote?"), "{log}");
    let line = "--dev null --tls-server --ca none --cert none --key none --log /nonexistent/x";
    let (code, text) = run(dir.path(), line);
    assert!(code == 1 && text.contains("cannot be written to /nonexistent/x"), "{text}");
    let line = "--dev null --tls-server --ca none --cert none --key none --dh no.pem";
    let (code, text) = run(dir.path(), line);
    assert!(code == 1 && text.contains("fails with"), "{text}");
}

/// Errors are in the log on standard output, unless `errors-to-stderr` sends them to standard error.
#[test]
fn errors_go_where_errors_to_stderr_says() {
    let dir = tempfile::tempdir().unwrap();
    let line = "--dev null --remote 127.0.0.1 --ifconfig 10.9.9.1 10.9.9.2 --secret missing.key --cipher AES-256-CBC";
    for (option, apart) in [("", false), (" --errors-to-stderr", true)] {
        let output = openvpn(dir.path(), &format!("{line}{option}")).output().unwrap();
        let [stdout, stderr] =
            [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
        assert!(stdout.contains("OpenVPN 2.6."), "{stdout}");
        let error = "Exiting due to fatal error";
        assert_eq!((stdout.contains(error), stderr.contains(error)), (!apart, apart), "{stderr}");
    }
}

#[test]
fn a_client_is_ready_before_its_server_answers_and_leaves_no_pid_file() {
    let dir = tempfile::tempdir().unwrap();
    let (code, text) = run(dir.path(), "--genkey secret static.key");
    assert_eq!(code, 0, "{text}");
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    // Nothing listens there: it is an address for documentation, which never answers.
    let line = "--dev null --proto tcp-client --remote 127.0.0.1 1 --ifconfig 10.9.9.1 10.9.9.2 --secret static.key \
                --cipher AES-256-CBC --auth SHA256 --writepid vpn.pid --verb 6 --log vpn.log --bcast-buffers 3";
    let mut command = openvpn(dir.path(), line);
    command.env("NOTIFY_SOCKET", dir.path().join("notify")).stdout(Stdio::null());
    let running = TestProcess(command.spawn().unwrap());
    let mut told = [0; 500];
    let len = manager.recv(&mut told).expect("READY=1 is told without a server");
    let told = String::from_utf8_lossy(&told[..len]).into_owned();
    let pid = running.0.id();
    assert!(told.starts_with("READY=1\nSTATUS=Pre-connection"), "{told}");
    assert!(told.contains(&format!("MAINPID={pid}")), "{told}");
    let pid_file = dir.path().join("vpn.pid");
    assert_eq!(fs::read_to_string(&pid_file).unwrap(), format!("{pid}\n"));

    kill(Pid::from_raw(pid.cast_signed()), Signal::SIGTERM).unwrap();
    let mut running = running;
    let until = ScaledInstant::now() + PATIENCE;
    let status = loop {
        if let Some(status) = running.0.try_wait().unwrap() {
            break status;
        }
        assert!(ScaledInstant::now() < until, "it does not end");
        std::thread::sleep(Duration::from_millis(20));
    };
    let log = fs::read_to_string(dir.path().join("vpn.log")).unwrap();
    assert_eq!(status.code(), Some(0), "{log}");
    // A process that lacks the permission to remove the file empties it.
    assert!(fs::read_to_string(&pid_file).unwrap_or_default().is_empty(), "{log}");
    assert_eq!(log.matches("bcast-buffers has no effect").count(), 1, "{log}");
    assert!(log.contains("Option: command line:1: dev null"), "{log}");
}
