//! Tests of `adit postgres` as a user calls it, without a database.

use std::io::Read;
use std::net::TcpListener;
use std::process::{Command, Stdio};

const ADIT: &str = env!("CARGO_BIN_EXE_adit");

/// A server that accepts connections and never answers, so that the command waits and can be observed.
#[test]
fn secrets_on_the_command_line_are_not_to_be_seen_while_it_runs() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let dir = tempfile::tempdir().unwrap();
    let url = format!("postgres://admin:geheimnis@127.0.0.1:{port}/vpn");
    let mut child = Command::new(ADIT)
        .args(["postgres", "init", &url, "--network", "10.9.0.0/24", "--dir"])
        .arg(dir.path())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // By the time of the first byte on the connection, start-up is complete.
    let (mut line, _) = silent.accept().unwrap();
    line.read_exact(&mut [0; 8]).unwrap();
    let seen = std::fs::read(format!("/proc/{}/cmdline", child.id())).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    let seen = String::from_utf8(seen).unwrap();
    assert!(!seen.contains("geheimnis"), "{seen:?}");
    assert!(seen.contains("admin:xxxxxxxxx@127.0.0.1"), "{seen:?}");
    assert!(seen.contains("\0--network\x0010.9.0.0/24\0"), "{seen:?}");
}

/// A database that accepts connections and never answers: a terminal shows that the command waits.
#[test]
fn a_terminal_shows_that_the_database_is_awaited() {
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = silent.local_addr().unwrap().port();
    let dir = tempfile::tempdir().unwrap();
    let url = format!("postgres://admin:geheimnis@127.0.0.1:{port}/vpn?connect_timeout=3");
    let line =
        format!("postgres init '{url}' --network 10.9.0.0/24 --dir {}", dir.path().display());
    let command = format!("exec {ADIT} {line}");
    let terminal = Command::new("script")
        .args(["--quiet", "--return", "--command", &command, "/dev/null"])
        .env("SHELL", "/bin/sh")
        .stdin(Stdio::null())
        .output()
        .unwrap();
    let shown = String::from_utf8_lossy(&terminal.stdout);
    assert!(shown.contains("\r\x1b[K... connecting to the database ("), "{shown:?}");
    assert!(shown.contains("\r\x1b[Kadit: "), "{shown:?}");
    let pipe = Command::new("sh").args(["-c", &command]).stdin(Stdio::null()).output().unwrap();
    let said = String::from_utf8_lossy(&pipe.stderr);
    assert!(said.starts_with("adit: ") && !said.contains(['\r', '\x1b']), "{said:?}");
}

#[test]
fn no_error_repeats_a_secret() {
    let dir = tempfile::tempdir().unwrap();
    for database in [
        "postgres://admin:geheimnis@127.0.0.1:1/vpn",
        "postgres://admin:geheimnis@[::1/vpn",
        "postgres://admin:geheimnis@h/vpn?sslmode=none",
        "postgres://admin:geheimnis@h/vpn?nonsense=geheimnis",
        "postgres://admin:geheimnis@h:geheimnis@x/vpn?sslmode",
        "postgres://admin:%geheimnis@h/vpn",
        "mysql://admin:geheimnis@h/vpn",
        "password=geheimnis host",
        "host=127.0.0.1 port=1 password='geheimnis",
        "host=127.0.0.1 port=1 password=geheimnis",
    ] {
        let output = Command::new(ADIT)
            .args(["postgres", "init", database, "--network", "10.9.0.0/24", "--dir"])
            .arg(dir.path())
            .env_remove("PGSERVICE")
            .output()
            .unwrap();
        let said = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success(), "{database}");
        assert!(said.starts_with("adit: ") && !said.contains("geheimnis"), "{database}: {said}");
    }
}
