//! Tests of the program that a server runs for each event.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::Value;

use crate::world::{Server, until};

const HOOK: &str = "#!/bin/sh
printf '%s %s\\n' \"$1\" \"$ADIT_EVENT\" >> \"${0%/*}/events\"
";

#[test]
fn a_program_gets_the_events_of_a_server() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let folder = server.dir.path().join("vpn");
    let hook = folder.join("hook.sh");
    fs::write(&hook, HOOK).unwrap();
    fs::set_permissions(&hook, fs::Permissions::from_mode(0o755)).unwrap();
    let file = folder.join("server.toml");
    let settings = fs::read_to_string(&file).unwrap() + "\non-event = \"hook.sh\"\n";
    fs::write(&file, &settings).unwrap();
    let ns = server.client("ann", "");
    let mut running = server.run();
    let events = || -> Vec<(String, Value)> {
        let text = fs::read_to_string(folder.join("events")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        lines
            .map(|(name, object)| (name.to_owned(), serde_json::from_str(object).unwrap()))
            .collect()
    };
    let find = |name: &str| events().into_iter().find(|(event, _)| event == name);
    let object = |name: &str| {
        until(name, || find(name).is_some());
        find(name).unwrap().1
    };

    let mut client = server.connect(&ns, "ann");
    let connected = object("client-connected");
    assert_eq!(connected["name"], "ann", "{connected}");
    assert!(connected["from"].as_str().unwrap().starts_with("203.0.113.2:"), "{connected}");
    assert_eq!(connected["event"], "client-connected");
    assert!(connected["addresses"][0].as_str().unwrap().starts_with("10.73.0."), "{connected}");
    client.end();
    assert_eq!(object("client-disconnected")["name"], "ann");
    assert!(server.adit("server client disable ann").0);
    let _refused = server.connect(&ns, "ann");
    assert_eq!(object("client-refused")["name"], "ann");
    fs::write(&file, settings + "colour = 1\n").unwrap();
    assert!(!server.adit("reload").0);
    assert!(object("reload-failed")["reason"].as_str().unwrap().contains("colour"));
    assert_eq!(running.end(), Some(0));
}
