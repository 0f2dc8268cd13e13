//! Tests of users who log in in a browser, with openvpn and adit as their clients and a provider in a namespace.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpListener;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use adit_linux::netns::NetNs;
use adit_testbed::file;
use adit_testbed::identity_provider::{Approval, IdentityProvider};
use serde_json::json;

use crate::world::{Server, TestProcess, answers, until};

const UP: &str = "Initialization Sequence Completed";

/// A server whose users log in with a provider outside.
struct World {
    server: Server,
    provider: IdentityProvider,
}

impl World {
    fn new(options: &str) -> Self {
        if Command::new("openvpn").arg("--version").output().is_err() {
            panic!("openvpn is missing: apt-get install openvpn");
        }
        let server = Server::new(options);
        let listener = server.outside.run(|| TcpListener::bind("198.51.100.9:8443").unwrap());
        let provider = IdentityProvider::start(listener.unwrap());
        let vpn = server.dir.path().join("vpn");
        fs::write(vpn.join("sso-ca.pem"), provider.certificate()).unwrap();
        // Only the helper can read it.
        file::write(vpn.join("oidc.secret"), "s3cret\n", 0o600).unwrap();
        provider.change(|behaviour| behaviour.secret = Some("s3cret".into()));
        server.edit_settings("\nlogin = \"certificate\"", "\nlogin = \"certificate+oidc\"");
        let section = format!(
            "[oidc]\nissuer = \"{}\"\nclient-id = \"adit\"\nclient-secret-file = \"oidc.secret\"\n\
             ca-file = \"sso-ca.pem\"\n",
            provider.issuer()
        );
        server.edit_settings("# [oidc]\n", &section);
        Self { server, provider }
    }

    fn openvpn(&self, ns: &NetNs, log: &str, more: &[&str]) -> TestProcess {
        let arguments = ["--config", "laptop.ovpn", "--dev", "vpn0", "--dev-type", "tun"];
        let arguments = [&arguments, more].concat();
        TestProcess::program(ns, "openvpn", &arguments, self.server.dir.path(), log)
    }
}

#[test]
fn an_openvpn_client_logs_in_in_the_browser() {
    adit_testbed::needs_root!();
    let mut world = World::new("--filter rules.nft");
    world.server.accept_only("@group:staff");
    let ns = world.server.client("laptop", "");
    world.provider.change(|behaviour| behaviour.claims = json!({ "groups": ["staff"] }));
    let (fine, said) = world.server.adit("doctor");
    assert!(said.contains("offers the device flow"), "{fine} {said}");
    let mut running = world.server.run();

    // The keys are exchanged again often, and the server must not ask again.
    let mut client = world.openvpn(&ns, "laptop.log", &["--reneg-sec", "5"]);
    let url = format!("WEB_AUTH::{}/go?login=1", world.provider.issuer());
    until("the client shows the URL", || client.log().contains(&url));
    assert!(!client.log().contains(UP) && world.server.connected().is_empty());
    world.provider.change(|behaviour| behaviour.approval = Approval::Approved);
    until("the client is up", || client.log().contains(UP));
    until("staff reach the server", || answers(&ns, "10.73.0.1"));
    let (_, status) = world.server.adit("status --json");
    let report: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(report[0]["peers"][0]["username"], "alice", "{status}");
    world.provider.change(|behaviour| behaviour.approval = Approval::Denied);
    let exchanges = || client.log().matches("Control Channel: TLS").count();
    until("the keys are exchanged again", || exchanges() >= 3);
    assert!(answers(&ns, "10.73.0.1"), "{}", running.log());

    // A token replaces the browser when the client connects again, and when the server was restarted.
    client.signal("USR1");
    until("the client is up again", || client.log().matches(UP).count() == 2);
    assert_eq!(running.end(), Some(0));
    let running = world.server.run();
    until("the client is up after a restart", || client.log().matches(UP).count() == 3);
    until("staff reach the server again", || answers(&ns, "10.73.0.1"));
    assert_eq!(world.provider.requests("/device"), 1, "{:?}", world.provider.log());
    for secret in ["s3cret", "device-1", "SESS_ID_adit"] {
        assert!(!running.log().contains(secret), "{secret} is in the log: {}", running.log());
    }

    // A user who is registered here can be disabled here.
    let add = "server user add alice --no-password";
    assert!(world.server.adit(add).0);
    assert!(world.server.adit("server user disable alice").0);
    until("the session has ended", || world.server.connected().is_empty());
    let line = "user alice: the user is disabled";
    until("the user is refused", || running.log().contains(line));
}

/// The person who sees what an app shows, through openvpn's management interface.
struct Person(BufReader<UnixStream>);

impl Person {
    fn at(path: &Path) -> Self {
        let mut stream = None;
        until("the app listens", || {
            stream = UnixStream::connect(path).ok();
            stream.is_some()
        });
        let stream = stream.unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
        Self(BufReader::new(stream))
    }

    /// Waits for a line that begins with this text.
    fn sees(&mut self, start: &str) -> String {
        loop {
            let mut line = String::new();
            let count = self.0.read_line(&mut line).expect("the app says no more");
            assert!(count > 0, "the app has ended before {start}");
            if line.starts_with(start) {
                return line.trim_end().to_owned();
            }
        }
    }

    /// Enters a user name and a password when the app asks for them.
    fn enters(&mut self, name: &str, password: &str) {
        self.sees(">PASSWORD:Need 'Auth'");
        let lines = format!("username \"Auth\" \"{name}\"\npassword \"Auth\" \"{password}\"\n");
        self.0.get_mut().write_all(lines.as_bytes()).unwrap();
    }
}

/// An app that announces no method for the URL.
#[test]
fn a_client_that_cannot_show_the_url_is_told_so_or_asked_by_a_challenge() {
    adit_testbed::needs_root!();
    let mut world = World::new("");
    let ns = world.server.client("laptop", "");
    let running = world.server.run();
    let profile = world.server.dir.path().join("laptop.ovpn");
    let text = fs::read_to_string(&profile).unwrap();
    assert!(text.contains("setenv IV_SSO"), "{text}");
    let without: Vec<&str> = text.lines().filter(|line| !line.contains("IV_SSO")).collect();
    fs::write(&profile, without.join("\n") + "\n").unwrap();
    let mut client = world.openvpn(&ns, "laptop.log", &[]);
    until("the client is refused", || client.child.try_wait().unwrap().is_some());
    assert!(client.log().contains("asks for a login in the browser"), "{}", client.log());
    until("the server logs it", || running.log().contains("IV_SSO"));
    assert_eq!(world.provider.requests("/device"), 0);

    // With the line of the guide it asks for a user name, and can show a challenge.
    let text = fs::read_to_string(&profile).unwrap();
    fs::write(&profile, format!("auth-user-pass\n{text}")).unwrap();
    let socket = world.server.dir.path().join("app.sock");
    let management = ["--management", socket.to_str().unwrap(), "unix"];
    let more = ["--management-query-passwords", "--auth-retry", "interact"];
    let client = world.openvpn(&ns, "asked.log", &[&management[..], &more].concat());
    let mut person = Person::at(&socket);
    person.enters("alice", "x");
    let asked = person.sees(">PASSWORD:Verification Failed: 'Auth' ['CRV1:R,E:");
    let url = format!("{}/go?login=1", world.provider.issuer());
    assert!(asked.contains(&format!(":YWxpY2U=:Log in at {url} and then answer OK")), "{asked}");
    let state = asked.split(':').nth(4).unwrap();
    world.provider.change(|behaviour| behaviour.approval = Approval::Approved);
    person.enters("alice", &format!("CRV1::{state}::OK"));
    until("the client is up", || client.log().contains(UP));
    world.server.await_connected(&["laptop"]);
    until("the server answers", || answers(&ns, "10.73.0.1"));
    assert_eq!(world.provider.requests("/device"), 1);
}

#[test]
fn an_adit_client_logs_in_in_the_browser_and_waits_for_a_provider_that_is_away() {
    adit_testbed::needs_root!();
    let mut world = World::new("");
    let ns = world.server.client("laptop", "");
    let away = adit_testbed::identity_provider::Mistake::Unavailable;
    world.provider.change(|behaviour| {
        (behaviour.mistake, behaviour.approval) = (Some(away), Approval::Approved);
    });
    let running = world.server.run();
    let (_, said) = world.server.adit("doctor");
    assert!(said.contains("503"), "{said}");
    let client = world.server.connect(&ns, "laptop");
    until("the server says why", || running.log().contains("single sign-on"));
    until("the client says why", || client.log().contains("does not work at the moment"));
    world.provider.change(|behaviour| behaviour.mistake = None);
    until("the client shows the URL", || client.log().contains("/go?login="));
    world.server.await_connected(&["laptop"]);
    until("the server answers", || answers(&ns, "10.73.0.1"));
}
