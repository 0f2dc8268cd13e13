//! Tests of a server whose folder is read-only or full: each command says what to do, and nothing is lost.

use std::fs;

use crate::world::{ADIT, Server};

/// Makes the folder read-only.
const READ_ONLY: &str = "mount --bind vpn vpn && mount -o remount,bind,ro vpn";

/// Puts a copy of the folder on a file system that is full.
const FULL: &str = "cp -a vpn full && mount -t tmpfs -o size=256k tmpfs vpn && cp -a full/. vpn
(head -c 1M /dev/zero > vpn/fill) 2>/dev/null
rm -rf full";

#[test]
fn a_folder_that_cannot_be_written_is_reported_and_unchanged() {
    adit_testbed::needs_root!();
    let server = Server::new("");
    assert!(server.adit("server client add ann -o ann.ovpn").0);
    let before = fs::read_to_string(server.dir.path().join("vpn/data/pki/clients.json")).unwrap();
    for (prepare, remedies) in [
        (READ_ONLY, ["make that file system writable"; 2]),
        (FULL, ["make room on that file system", "free some space on that file system"]),
    ] {
        for line in ["server client add bob -o bob.ovpn", "server run"] {
            let script = format!(
                "{prepare}\n{ADIT} {line} --dir vpn\necho exit $?\ncat vpn/data/pki/clients.json"
            );
            let mut command = server.ns.command("unshare").unwrap();
            command.args(["--mount", "sh", "-c", &script]).current_dir(&server.dir);
            let output = command.output().unwrap();
            let text = String::from_utf8([output.stderr, output.stdout].concat()).unwrap();
            assert!(remedies.iter().any(|remedy| text.contains(remedy)), "{line}: {text}");
            assert!(text.contains("exit 1\n") && text.ends_with(&before), "{line}: {text}");
        }
        assert!(!server.dir.path().join("bob.ovpn").exists());
    }
    assert!(server.adit("server client add bob -o bob.ovpn").0);
}

#[test]
fn a_server_whose_folder_was_restored_in_part_names_the_missing_file() {
    adit_testbed::needs_root!();
    let server = Server::new("");
    let pki = server.dir.path().join("vpn/data/pki");
    for (missing, line) in [
        ("server.pem", "server run"),
        ("clients.json", "server run"),
        ("server.json", "server run"),
        ("private", "server client add ann -o ann.ovpn"),
    ] {
        let away = server.dir.path().join("away");
        fs::rename(pki.join(missing), &away).unwrap();
        let (worked, said) = server.adit(line);
        assert!(!worked && said.contains(missing), "{missing}: {said}");
        assert!(said.contains("from a backup"), "{missing}: {said}");
        fs::rename(&away, pki.join(missing)).unwrap();
    }
    assert!(server.adit("server client add ann -o ann.ovpn").0);
}
