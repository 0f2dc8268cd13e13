//! Tests of the program and the webhook that get the events of a server.

use std::fs;
use std::net::TcpListener;

use adit_testbed::file;
use adit_testbed::identity_provider::IdentityProvider;
use serde_json::Value;

use crate::world::{Server, until};

const HOOK: &str = "#!/bin/sh
printf '%s %s\\n' \"$1\" \"$ADIT_EVENT\" >> \"${0%/*}/events\"
";

#[test]
fn a_program_and_a_webhook_get_the_events_of_a_server() {
    adit_testbed::needs_root!();
    let mut server = Server::new("");
    let folder = server.dir.path().join("vpn");
    let file = |name: &str, text: &str, mode: u32| {
        file::write(folder.join(name), text, mode).unwrap();
    };
    let listener = server.outside.run(|| TcpListener::bind("198.51.100.9:8443").unwrap());
    let webhook = IdentityProvider::start(listener.unwrap());
    file("hook.sh", HOOK, 0o755);
    file("hook-ca.pem", webhook.certificate(), 0o644);
    // Only the helper can read it.
    file("hook.header", "Authorization: Bearer s3cret\n", 0o600);
    server.edit_settings("# on-event = \"/etc/adit/on-event\"", "on-event = \"hook.sh\"");
    let section = format!(
        "[events]\nurl = \"{}/hook\"\nheader-file = \"hook.header\"\nca-file = \"hook-ca.pem\"\n",
        webhook.issuer()
    );
    server.edit_settings("# [events]\n", &section);
    let ns = server.client("ann", "--days 10");
    let mut running = server.run();

    let parse = |object: &str| -> Value { serde_json::from_str(object).unwrap() };
    // By the program, and by the webhook.
    let received = || -> [Vec<Value>; 2] {
        let text = fs::read_to_string(folder.join("events")).unwrap_or_default();
        let lines = text.lines().filter_map(|line| line.split_once(' '));
        let by_program = lines.map(|(name, object)| {
            let object = parse(object);
            assert_eq!(object["event"], name);
            object
        });
        let log = webhook.log();
        let requests = log.iter().map(|request| request.strip_prefix("/hook Bearer s3cret "));
        [by_program.collect(), requests.map(|object| parse(object.unwrap())).collect()]
    };
    let object = |name: &str| {
        let find =
            || received().map(|objects| objects.into_iter().find(|object| object["event"] == name));
        until(name, || find().iter().all(Option::is_some));
        let [by_program, by_webhook] = find();
        assert_eq!(by_program, by_webhook);
        by_program.unwrap()
    };

    let expires = object("certificate-expires");
    assert_eq!(expires["whose"], "ann", "{expires}");
    assert!((9..=10).contains(&expires["days_left"].as_i64().unwrap()), "{expires}");
    let mut client = server.connect(&ns, "ann");
    let connected = object("client-connected");
    assert_eq!(connected["name"], "ann", "{connected}");
    assert!(connected["from"].as_str().unwrap().starts_with("203.0.113.2:"), "{connected}");
    assert!(connected["addresses"][0].as_str().unwrap().starts_with("10.73.0."), "{connected}");

    assert!(server.adit("server client set ann --quota 1MB/day").0);
    until("the quota is used up", || {
        let mut ping = ns.command("ping").unwrap();
        let _ = ping
            .args(["-q", "-c", "60", "-i", "0.002", "-s", "8000", "-W", "1", "10.73.0.1"])
            .output();
        server.connected().is_empty()
    });
    let limit = object("limit-reached");
    assert_eq!(limit["name"], "ann", "{limit}");
    assert!(limit["reason"].as_str().unwrap().contains("quota"), "{limit}");
    let disconnected = object("client-disconnected");
    assert_eq!(disconnected["name"], "ann", "{disconnected}");
    assert!(disconnected["received"].as_u64().unwrap() > 100_000, "{disconnected}");
    client.end();

    assert!(server.adit("server client disable ann").0);
    let _refused = server.connect(&ns, "ann");
    assert_eq!(object("client-refused")["name"], "ann");
    server.edit_settings("\ndns = ", "\ncolour = 1\ndns = ");
    assert!(!server.adit("reload").0);
    assert!(object("reload-failed")["reason"].as_str().unwrap().contains("colour"));
    assert_eq!(running.end(), Some(0));
    assert!(!running.log().contains("s3cret"), "{}", running.log());
}
