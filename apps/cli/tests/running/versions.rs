//! Tests of two versions of the program on one machine: one is the process, the other the command, or what is in the folder.

use std::fs;

use adit_testbed::other_version::OtherVersion;

use crate::world::{Server, TestProcess, answers, until};

/// A command of another version than the process: each end names the other, and what to do.
#[test]
fn a_command_of_another_version_names_the_process_and_the_remedy() {
    adit_testbed::needs_root!();
    let server = Server::new("");
    let mut running = server.run();
    let (socket, aside) =
        (server.dir.path().join("vpn/run/server.sock"), server.dir.path().join("aside"));
    let same = ("", "");
    let own = env!("CARGO_PKG_VERSION");
    let number = ("\"version\":\"", "\"version\":\"9.");
    let note = format!("it runs version 9.{own}, and this program is {own}: restart it");
    let restart = format!("does not run the version of this program ({own}); restart it");
    let (no_request, no_answer) =
        ("not a request of its version", "the answer is not of this version");
    for (line, request, answer, sentences) in [
        ("status", same, number, ["server: running", note.as_str()]),
        ("status", ("\"status\"", "\"survey\""), same, [no_request, &restart]),
        ("reload", ("\"reload\"", "\"renew\""), same, [no_request, &restart]),
        ("status", same, ("{\"status\":", "{\"survey\":"), [no_answer, &restart]),
        ("kick ann", same, ("{\"", "{\"x"), [no_answer, &restart]),
    ] {
        let other = OtherVersion::between(&socket, &aside, request, answer).unwrap();
        let (worked, said) = server.adit(line);
        drop(other);
        let said = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(worked, answer == number, "adit {line}: {said}");
        for sentence in sentences {
            assert!(said.contains(sentence), "adit {line}: {said}");
        }
        // The process goes on, and answers its own version.
        let (worked, said) = server.adit("status");
        assert!(worked && said.contains("server: running"), "{said}");
    }
    assert_eq!(running.end(), Some(0));
}

/// A newer version has changed the list of clients under a running server: sessions go on, and nothing is overwritten.
#[test]
fn a_running_server_keeps_its_sessions_and_the_list_of_a_newer_version() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let (ann, bob) = (server.client("ann", ""), server.client("bob", ""));
    let mut running = server.run();
    let client = server.connect(&ann, "ann");
    server.await_connected(&["ann"]);
    let list = server.dir.path().join("vpn/data/pki/clients.json");
    let ours = fs::read_to_string(&list).unwrap();
    let newer = "{\"version\":999,\"clients\":7}";
    fs::write(&list, newer).unwrap();
    let sentence = "written by a newer version of adit";
    for line in
        ["server client add carol -o carol.ovpn", "server client revoke ann", "server client list"]
    {
        let (worked, said) = server.adit(line);
        assert!(!worked && said.contains(sentence), "{line}: {said}");
        assert!(said.contains("run that version again; nothing was changed"), "{line}: {said}");
    }
    let second = server.connect(&bob, "bob");
    until("the log names the list", || running.log().contains(sentence));
    assert_eq!(server.connected(), ["ann"]);
    assert!(answers(&ann, "10.73.0.1"), "{}", client.log());
    assert_eq!(fs::read_to_string(&list).unwrap(), newer);
    assert!(!server.dir.path().join("carol.ovpn").exists());
    // The newer version is gone, and its list with it.
    fs::write(&list, ours).unwrap();
    server.await_connected(&["ann", "bob"]);
    let ended: Vec<TestProcess> = vec![client, second];
    drop(ended);
    assert_eq!(running.end(), Some(0));
}
