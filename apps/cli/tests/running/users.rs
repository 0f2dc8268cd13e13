//! Tests of users who log in to a managed server with passwords and one-time codes, with openvpn as their client.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use adit_linux::netns::NetNs;
use adit_pki::TotpSecret;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::world::{ADIT, Server, TestProcess, answers, until};

const UP: &str = "Initialization Sequence Completed";

/// Creates a server whose users log in.
pub(crate) fn server(login: &str, options: &str) -> Server {
    if Command::new("openvpn").arg("--version").output().is_err() {
        panic!("openvpn is missing: apt-get install openvpn");
    }
    let server = Server::new(options);
    server.edit_settings("login = \"certificate\"", &format!("login = \"{login}\""));
    server
}

/// Runs a command that reads a password.
pub(crate) fn with_password(server: &Server, line: &str, password: &str) -> String {
    let mut command = server.ns.command(ADIT).unwrap();
    command.args(line.split_whitespace()).args(["--password-stdin", "--dir", "vpn"]);
    command.current_dir(&server.dir).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
    writeln!(child.stdin.take().unwrap(), "{password}").unwrap();
    let output = child.wait_with_output().unwrap();
    let said = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{said}");
    said
}

fn credentials(server: &Server, user: &str, password: &str) {
    fs::write(server.dir.path().join("login.txt"), format!("{user}\n{password}\n")).unwrap();
}

/// Starts openvpn with the credentials of [`credentials`].
fn openvpn(server: &Server, ns: &NetNs, name: &str, log: &str) -> TestProcess {
    let profile = format!("{name}.ovpn");
    let arguments = [
        "--config",
        &profile,
        "--dev",
        "vpn0",
        "--dev-type",
        "tun",
        "--auth-user-pass",
        "login.txt",
    ];
    TestProcess::program(ns, "openvpn", &arguments, server.dir.path(), log)
}

fn ends_refused(client: &mut TestProcess) {
    until("the client is refused", || client.child.try_wait().unwrap().is_some());
    assert!(client.log().contains("AUTH_FAILED"), "{}", client.log());
    assert!(!client.log().contains(UP), "{}", client.log());
}

#[test]
fn an_openvpn_client_logs_in_with_a_password_file() {
    adit_testbed::needs_root!();
    let mut server = server("certificate+password", "");
    with_password(&server, "server user add alice", "correct horse");
    let ns = server.client("laptop", "");
    let running = server.run();

    credentials(&server, "alice", "wrong horse");
    ends_refused(&mut openvpn(&server, &ns, "laptop", "wrong.log"));
    credentials(&server, "mallory", "correct horse");
    ends_refused(&mut openvpn(&server, &ns, "laptop", "unknown.log"));
    for line in ["user alice: wrong password", "user mallory: no such user"] {
        let line = format!("laptop (203.0.113.2): authentication failed: {line}");
        until("the server logs it", || running.log().contains(&line));
        assert_eq!(running.log().matches(&line).count(), 1, "{line}: {}", running.log());
    }
    assert!(!running.log().contains("horse"), "a password is in the log: {}", running.log());

    credentials(&server, "alice", "correct horse");
    let mut client = openvpn(&server, &ns, "laptop", "right.log");
    until("the client is up", || client.log().contains(UP));
    until("the server answers", || answers(&ns, "10.73.0.1"));
    let report = server.status();
    assert_eq!(report["peers"][0]["username"], "alice", "{report}");
    assert_eq!(report["logins"]["accepted"], 1, "{report}");
    assert_eq!(report["logins"]["failed"], 2, "{report}");
    assert!(server.adit("server user show alice").1.contains("connected"));

    let (disabled, said) = server.adit("server user disable alice");
    assert!(disabled && said.contains("its session ended"), "{said}");
    until("it is refused", || client.child.try_wait().unwrap().is_some());
    assert!(client.log().contains("AUTH_FAILED"), "{}", client.log());
    assert_eq!(server.connected(), Vec::<String>::new());
    until("the server logs it", || running.log().contains("user alice: the user is disabled"));

    assert!(server.adit("server user enable alice").0);
    let again = openvpn(&server, &ns, "laptop", "again.log");
    until("the client is up again", || again.log().contains(UP));
    // A new password ends the session, and the old one is of no use any more.
    with_password(&server, "server user passwd alice", "battery staple");
    until("the session has ended", || server.connected().is_empty());
    until("the old password is refused", || again.log().contains("AUTH_FAILED"));
}

/// Without certificates, a session has the name of its user.
#[test]
fn an_openvpn_client_logs_in_with_a_password_alone() {
    adit_testbed::needs_root!();
    let mut server = server("password", "--filter rules.nft");
    server.accept_only("@client:alice");
    with_password(&server, "server user add alice", "correct horse");
    with_password(&server, "server user add bob", "correct horse");
    // The client has the name of another user, and its certificate is not asked for.
    let (ns, other) = (server.client("bob", ""), server.client("laptop", ""));
    let (made, said) = server.adit("server user profile alice -o alice.ovpn");
    assert!(made && said.contains("no private key"), "{said}");
    let running = server.run();

    credentials(&server, "alice", "wrong horse");
    ends_refused(&mut openvpn(&server, &ns, "alice", "wrong.log"));
    until("the server logs it", || running.log().contains("user alice: wrong password"));

    credentials(&server, "alice", "correct horse");
    let mut client = openvpn(&server, &ns, "alice", "right.log");
    until("the client is up", || client.log().contains(UP));
    until("the server answers", || answers(&ns, "10.73.0.1"));
    assert_eq!(server.connected(), ["alice"]);

    // The certificate of a client gives its session no other name.
    credentials(&server, "bob", "correct horse");
    let second = openvpn(&server, &other, "laptop", "laptop.log");
    until("the second client is up", || second.log().contains(UP));
    server.await_connected(&["alice", "bob"]);
    assert!(!answers(&other, "10.73.0.1"), "bob passes the filter");

    server.edit_settings("login = \"password\"", "login = \"certificate\"");
    assert!(server.adit("reload").0);
    let line = "login: not applied: restart required";
    until("the server logs it", || running.log().contains(line));
    server.await_connected(&["alice", "bob"]);
    server.edit_settings("login = \"certificate\"", "login = \"password\"");

    // When a client is refused, it reads the file again.
    credentials(&server, "alice", "correct horse");
    let (disabled, said) = server.adit("server user disable alice");
    assert!(disabled && said.contains("its session ended"), "{said}");
    until("alice is refused", || client.child.try_wait().unwrap().is_some());
    server.await_connected(&["bob"]);
}

#[test]
fn a_user_may_be_bound_to_clients_and_has_groups() {
    adit_testbed::needs_root!();
    let mut server = server("certificate+password", "--filter rules.nft");
    server.accept_only("@group:staff");
    let (laptop, phone) = (server.client("laptop", ""), server.client("phone", ""));
    let add = "server user add alice --client laptop --group staff";
    with_password(&server, add, "correct horse");
    let running = server.run();
    credentials(&server, "alice", "correct horse");
    ends_refused(&mut openvpn(&server, &phone, "phone", "phone.log"));
    let line = "user alice: the user may not use this client's certificate";
    until("the server logs it", || running.log().contains(line));

    let client = openvpn(&server, &laptop, "laptop", "laptop.log");
    until("the client is up", || client.log().contains(UP));
    until("staff reach the server", || answers(&laptop, "10.73.0.1"));
    assert!(server.adit("server user group alice").0);
    assert!(!answers(&laptop, "10.73.0.1"));
    assert!(server.adit("server user group alice ops staff").0);
    assert!(answers(&laptop, "10.73.0.1"));
    assert_eq!(client.log().matches(UP).count(), 1, "the session ended: {}", client.log());
}

/// A connection to openvpn's management interface.
struct Management {
    stream: UnixStream,
    seen: String,
}

impl Management {
    fn connect(server: &Server) -> Self {
        let path = server.dir.path().join("management");
        let mut stream = None;
        until("the management interface accepts", || {
            stream = UnixStream::connect(&path).ok();
            stream.is_some()
        });
        let stream = stream.unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
        Self { stream, seen: String::new() }
    }

    /// Waits for a text, and forgets everything up to its end.
    fn expect(&mut self, text: &str) {
        until(text, || {
            let mut bytes = [0; 4096];
            if let Ok(count) = self.stream.read(&mut bytes) {
                self.seen.push_str(&String::from_utf8_lossy(&bytes[..count]));
            }
            self.seen.contains(text)
        });
        let end = self.seen.find(text).unwrap() + text.len();
        self.seen.drain(..end);
    }

    /// Makes the client connect again with what it has.
    fn reconnect(&mut self) {
        writeln!(self.stream, "signal SIGUSR1").unwrap();
    }

    /// Answers the request for the password and the code.
    fn log_in(&mut self, password: &str, code: &str) {
        self.expect(">PASSWORD:Need 'Auth' username/password SC:1,One-time code");
        let answer = format!("SCRV1:{}:{}", STANDARD.encode(password), STANDARD.encode(code));
        write!(self.stream, "username \"Auth\" alice\npassword \"Auth\" \"{answer}\"\n").unwrap();
    }
}

#[test]
fn an_openvpn_client_answers_the_challenge_through_its_management_interface() {
    adit_testbed::needs_root!();
    let mut server = server("certificate+password+code", "");
    let said = with_password(&server, "server user add alice --totp", "correct horse");
    let secret = said.lines().find_map(|line| line.strip_prefix("secret:")).unwrap();
    let secret = TotpSecret::try_from(secret.trim().to_owned()).unwrap();
    let lines = said.lines().filter_map(|line| line.strip_prefix("  "));
    let words = lines.flat_map(str::split_whitespace).map(str::to_owned);
    let mut recovery: Vec<String> = words.collect();
    assert_eq!(recovery.len(), 8, "{said}");
    // The step of each code is greater than that of the one before, within the tolerance.
    let code = |ahead: u64| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
        secret.code_at(now + ahead)
    };
    let ns = server.client("laptop", "");
    let profile = fs::read_to_string(server.dir.path().join("laptop.ovpn")).unwrap();
    assert!(profile.contains("\nstatic-challenge \"One-time code\" 1\n"), "{profile}");
    let mut running = server.run();
    let arguments = [
        "--config",
        "laptop.ovpn",
        "--dev",
        "vpn0",
        "--dev-type",
        "tun",
        "--auth-retry",
        "interact",
        "--management",
        "management",
        "unix",
        "--management-query-passwords",
    ];
    let client = TestProcess::program(&ns, "openvpn", &arguments, server.dir.path(), "laptop.log");
    let mut management = Management::connect(&server);
    management.log_in("correct horse", "000");
    management.expect(">PASSWORD:Verification Failed: 'Auth'");
    until("the server logs it", || running.log().contains("user alice: wrong one-time code"));
    management.log_in("wrong horse", &code(0));
    management.expect(">PASSWORD:Verification Failed: 'Auth'");
    management.log_in("correct horse", &code(0));
    until("the client is up", || client.log().contains(UP));
    until("the server answers", || answers(&ns, "10.73.0.1"));

    // A token replaces the login when the client connects again.
    management.reconnect();
    until("the client is up again", || client.log().matches(UP).count() == 2);

    assert!(!running.log().contains("was used before"), "{}", running.log());

    // A server with another key does not accept the token, and the client asks again.
    assert_eq!(running.end(), Some(0));
    fs::remove_file(server.dir.path().join("vpn/data/token.key")).unwrap();
    let running = server.run();
    management.reconnect();
    management.log_in("correct horse", &recovery.swap_remove(0));
    until("the client is up with another token", || client.log().matches(UP).count() == 3);
    until("the server logs it", || running.log().contains("the token from the last login"));

    // A new password ends the session, and the client asks again.
    with_password(&server, "server user passwd alice", "battery staple");
    management.log_in("battery staple", &recovery.swap_remove(0));
    until("the client is up once more", || client.log().matches(UP).count() == 4);
    let changed = "user alice: the user's password or codes were changed";
    until("the server logs it", || running.log().contains(changed));
    assert!(server.adit("server user show alice").1.contains("on, 6 recovery"));
}
