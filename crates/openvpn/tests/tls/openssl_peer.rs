//! Handshakes with OpenSSL itself at the other end, over loopback TCP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::support::*;
use adit_openvpn::tls::*;

const LABEL: &str = "EXPORTER-OpenVPN-datakeys";

struct Peer(Child);

impl Drop for Peer {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Runs the session over `stream` until `done`.
fn drive(
    session: &mut TlsSession,
    stream: &mut TcpStream,
    mut done: impl FnMut(&mut TlsSession) -> bool,
) {
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    let mut buffer = [0; 700];
    loop {
        let out = session.pull(usize::MAX);
        stream.write_all(&out).unwrap();
        if done(session) {
            return;
        }
        assert!(Instant::now() < until, "no end: {session:?}");
        match stream.read(&mut buffer) {
            Ok(0) => panic!("closed: {session:?}"),
            Ok(n) => session.feed(&buffer[..n]).unwrap(),
            Err(_) => {}
        }
    }
}

fn exported(session: &TlsSession) -> String {
    let mut out = [0; 64];
    session.export(LABEL.as_bytes(), &mut out).unwrap();
    out.iter().map(|byte| format!("{byte:02X}")).collect()
}

#[test]
fn openssl_as_client_gets_the_same_keys() {
    let (server, client) = (ca().server("/CN=server"), ca().client("/CN=client"));
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [("c.crt", &client.cert), ("c.key", &client.key), ("ca", &ca().pair.cert)] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    for version in ["-tls1_2", "-tls1_3"] {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let mut peer = Peer(
            Command::new("openssl")
                .args([
                    "s_client", version, "-connect", &address, "-cert", "c.crt", "-key", "c.key",
                ])
                .args(["-CAfile", "ca", "-verify_return_error", "-keymatexport", LABEL])
                .args(["-keymatexportlen", "64", "-ign_eof"])
                .current_dir(dir.path())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        );
        let (mut stream, _) = listener.accept().unwrap();
        let mut session = TlsSession::server(&server_tls(options(ca(), Some(&server)))).unwrap();
        peer.0.stdin.as_mut().unwrap().write_all(b"from openssl\n").unwrap();
        let mut message = None;
        drive(&mut session, &mut stream, |session| {
            message = message.take().or(session.read().unwrap());
            message.is_some()
        });
        assert_eq!(message.unwrap().as_slice(), b"from openssl\n");
        assert_eq!(session.peer().unwrap().common_name, "client");
        let keys = exported(&session);
        drop(stream);
        let mut shown = String::new();
        peer.0.stdout.take().unwrap().read_to_string(&mut shown).unwrap();
        assert!(shown.contains(&keys), "{version}: {keys} in {shown}");
        assert!(
            !shown.contains("Session Ticket arrived") && !shown.contains("TLS session ticket:")
        );
        assert!(shown.contains("Verify return code: 0 (ok)"), "{shown}");
    }
}

#[test]
fn openssl_as_server_gets_the_same_keys() {
    let (server, client) = (ca().server("/CN=server"), ca().client("/CN=client"));
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [("s.crt", &server.cert), ("s.key", &server.key), ("ca", &ca().pair.cert)] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    for version in ["-tls1_2", "-tls1_3"] {
        // The port was free a moment ago. openssl cannot choose a port and report it.
        let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let address = format!("127.0.0.1:{port}");
        let mut peer = Peer(
            Command::new("openssl")
                .args(["s_server", version, "-accept", &address, "-cert", "s.crt", "-key", "s.key"])
                .args(["-CAfile", "ca", "-Verify", "1", "-verify_return_error", "-naccept", "1"])
                .args(["-keymatexport", LABEL, "-keymatexportlen", "64"])
                .current_dir(dir.path())
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::null())
                .spawn()
                .unwrap(),
        );
        let mut stream = (0..100)
            .find_map(|_| {
                std::thread::sleep(Duration::from_millis(50));
                TcpStream::connect(&address).ok()
            })
            .expect("openssl s_server listens");
        let mut session = TlsSession::client(&client_tls(options(ca(), Some(&client)))).unwrap();
        session.write(b"to openssl\n").unwrap();
        let (lines, heard) = std::sync::mpsc::channel();
        let stdout = BufReader::new(peer.0.stdout.take().unwrap());
        let listener = std::thread::spawn(move || {
            stdout.lines().map_while(Result::ok).for_each(|line| lines.send(line).unwrap());
        });
        // openssl prints its keys only if the handshake is complete before its input arrives.
        let mut shown = Vec::new();
        drive(&mut session, &mut stream, |_| {
            shown.extend(heard.try_iter());
            shown.iter().any(|line| line == "to openssl")
        });
        peer.0.stdin.as_mut().unwrap().write_all(b"from openssl\n").unwrap();
        let mut message = None;
        drive(&mut session, &mut stream, |session| {
            message = message.take().or(session.read().unwrap());
            message.is_some()
        });
        assert_eq!(message.unwrap().as_slice(), b"from openssl\n");
        let keys = exported(&session);
        drop((stream, peer));
        listener.join().unwrap();
        shown.extend(heard.try_iter());
        assert!(shown.iter().any(|line| line.contains(&keys)), "{version}: {keys} in {shown:#?}");
    }
}
