//! Conversations as in openvpn's notes on its management interface.

use adit_runtime::signals::Signal;

use super::super::history::StateName;
use super::super::input::MAX_LINE;
use super::super::question::RemoteChoice;
use super::*;
use crate::client::ClientCommand;

fn settings(mode: Mode) -> Settings {
    Settings {
        mode,
        banner: "OpenVPN 2.6.14 adit",
        status_version: 1,
        password: None,
        hold: false,
        client_auth: true,
        auth_retry: AuthRetry::None,
        remotes: vec![
            ("vpn.example.com".into(), 1194, "udp"),
            ("vpn.example.net".into(), 443, "tcp-client"),
        ],
    }
}

struct Talk(Session);

impl Talk {
    fn with(settings: Settings) -> Self {
        Self(Session::new(settings, Arc::new(LogCache::new(250))))
    }

    /// Connects, and checks the greeting.
    fn new(mode: Mode) -> Self {
        let mut talk = Self::with(settings(mode));
        talk.0.connected();
        assert_eq!(
            talk.read(),
            [">INFO:OpenVPN Management Interface Version 5 -- type 'help' for more info"]
        );
        talk
    }

    /// Returns the lines that have been sent since the last call.
    fn read(&mut self) -> Vec<String> {
        let text = self.read_all();
        let lines = text.strip_suffix("\r\n").unwrap_or(&text);
        if text.is_empty() { Vec::new() } else { lines.split("\r\n").map(str::to_owned).collect() }
    }

    fn read_all(&mut self) -> String {
        let mut bytes = Vec::new();
        while !self.0.output().is_empty() {
            let part = self.0.output().to_vec();
            self.0.sent(part.len());
            bytes.extend(part);
        }
        String::from_utf8(bytes).unwrap()
    }

    fn ask(&mut self, command: &str) -> Vec<String> {
        self.0.input(format!("{command}\n").as_bytes());
        self.read()
    }

    fn one(&mut self, command: &str) -> String {
        let lines = self.ask(command);
        assert_eq!(lines.len(), 1, "{lines:?}");
        lines.concat()
    }
}

#[test]
fn certificates_on_tokens_are_shown_by_their_numbers() {
    let mut talk = Talk::new(Mode::Client);
    assert_eq!(talk.ask("pkcs11-id-count"), [">PKCS11ID-COUNT:0"]);
    let identity = |id: &str| Identity { id: id.into(), blob: "MIIB".into() };
    talk.0.set_identities(vec![identity("a/b/c/d/01"), identity("a/b/c/d\\x20e/02")]);
    assert_eq!(talk.ask("pkcs11-id-count"), [">PKCS11ID-COUNT:2"]);
    let second = ">PKCS11ID-ENTRY:'1', ID:'a/b/c/d\\x20e/02', BLOB:'MIIB'";
    assert_eq!(talk.ask("pkcs11-id-get 1"), [second]);
    assert_eq!(talk.ask("pkcs11-id-get 9"), [">PKCS11ID-ENTRY:'9'"]);
}

#[test]
fn nothing_acts_before_the_password() {
    let password = Some(Zeroizing::new("secret".to_owned()));
    let mut talk = Talk::with(Settings { password, ..settings(Mode::Client) });
    talk.0.connected();
    assert_eq!(talk.read_all(), "ENTER PASSWORD:");
    talk.0.state(1, &StateName::Wait.into());
    talk.0.notify(">FATAL:x");
    assert_eq!(talk.read_all(), "");
    talk.0.input(b"signal SIGTERM\n");
    assert_eq!(talk.read_all(), "ERROR: bad password\r\nENTER PASSWORD:");
    assert_eq!(talk.0.action(), None);
    talk.0.input(b"secret\npid\n");
    let answer = talk.read();
    assert_eq!(answer[0], "SUCCESS: password is correct");
    assert!(
        answer[1].starts_with(">INFO:") && answer[2].starts_with("SUCCESS: pid="),
        "{answer:?}"
    );
}

#[test]
fn a_client_has_three_tries_for_the_password() {
    let password = Some(Zeroizing::new("secret".to_owned()));
    let mut talk = Talk::with(Settings { password, ..settings(Mode::Client) });
    talk.0.connected();
    talk.0.input(b"a\nsecret1\nc\nsecret\nsignal SIGTERM\n");
    let text = talk.read_all();
    assert_eq!(text.matches("ERROR: bad password").count(), 3, "{text}");
    assert!(talk.0.is_closing() && talk.0.action().is_none() && !talk.0.wants_input());
    assert!(!text.contains("SUCCESS"), "{text}");
}

#[test]
fn commands_have_openvpns_answers() {
    let mut talk = Talk::new(Mode::Client);
    for (command, answer) in [
        ("nonsense", "ERROR: unknown command, enter 'help' for more options"),
        ("bytecount", "ERROR: the 'bytecount' command requires 1 parameter"),
        ("bytecount 5", "SUCCESS: bytecount interval changed"),
        ("log", "ERROR: the 'log' command requires at least 1 parameter"),
        ("log maybe", "ERROR: log parameter must be 'on' or 'off' or some number n or 'all'"),
        ("state on", "SUCCESS: real-time state notification set to ON"),
        ("echo off", "SUCCESS: real-time echo notification set to OFF"),
        ("hold", "SUCCESS: hold=0"),
        ("hold on", "SUCCESS: hold flag set to ON"),
        ("hold", "SUCCESS: hold=1"),
        ("hold maybe", "ERROR: bad hold command parameter"),
        ("hold release", "SUCCESS: hold release succeeded"),
        ("signal SIGKILL", "ERROR: signal 'SIGKILL' is not a known signal type"),
        ("status 4", "ERROR: bad status format version number"),
        ("auth-retry", "SUCCESS: auth-retry=none"),
        ("auth-retry interact", "SUCCESS: auth-retry parameter changed"),
        ("auth-retry", "SUCCESS: auth-retry=interact"),
        ("forget-passwords", "SUCCESS: Passwords were forgotten"),
        ("cr-response MTIz", "SUCCESS: command succeeded"),
        ("verb 16", "ERROR: verb level is out of range"),
        ("mute x", "ERROR: mute level is out of range"),
        ("env-filter 2", "SUCCESS: env_filter_level=2"),
        ("net", "ERROR: Sorry, this command is currently only implemented on Windows"),
        ("nclients", "SUCCESS: nclients=0"),
        ("kill a", "ERROR: The 'kill' command is not supported by the current daemon mode"),
        ("load-stats", "SUCCESS: nclients=0,bytesin=0,bytesout=0"),
        ("remote ACCEPT", "ERROR: remote command failed"),
        ("needok x ok", "ERROR: no needok-confirmation is currently needed at this time"),
        ("password Auth x", "ERROR: no password is currently needed at this time"),
    ] {
        assert_eq!(talk.one(command), answer, "{command}");
    }
    let wrong = talk.ask("auth-retry sometimes");
    assert_eq!(wrong.last().unwrap(), "ERROR: bad auth-retry parameter");
    let actions: Vec<_> = std::iter::from_fn(|| talk.0.action()).collect();
    let expected = [
        ClientCommand::AuthRetry(AuthRetry::Interact),
        ClientCommand::ForgetLogin,
        ClientCommand::Respond("MTIz".into()),
    ];
    assert_eq!(actions, expected.map(Action::Client));
    assert!(talk.ask("").is_empty());
    let version = talk.ask("version");
    assert_eq!(version, ["OpenVPN Version: OpenVPN 2.6.14 adit", "Management Version: 5", "END"]);
    let help = talk.ask("help");
    assert_eq!(help.first().unwrap(), "Management Interface for OpenVPN 2.6.14 adit");
    assert_eq!(help.last().unwrap(), "END");
    assert!(talk.one("username \"Auth").starts_with("ERROR: "));
}

#[test]
fn states_are_kept_and_reported() {
    let mut talk = Talk::new(Mode::Client);
    for (unix, name) in [(1, StateName::Connecting), (2, StateName::Wait), (3, StateName::Auth)] {
        talk.0.state(unix, &name.into());
    }
    assert_eq!(talk.ask("state"), ["3,AUTH,,,,,,", "END"]);
    assert_eq!(talk.ask("state 2"), ["2,WAIT,,,,,,", "3,AUTH,,,,,,", "END"]);
    let all = talk.ask("state on all");
    assert_eq!(all[0], "SUCCESS: real-time state notification set to ON");
    assert_eq!(all[1..], ["1,CONNECTING,,,,,,", "2,WAIT,,,,,,", "3,AUTH,,,,,,", "END"]);
    talk.0.state(4, &StateName::GetConfig.into());
    assert_eq!(talk.read(), [">STATE:4,GET_CONFIG,,,,,,"]);
    talk.ask("state off");
    talk.0.state(5, &StateName::AddRoutes.into());
    assert!(talk.read().is_empty());
}

#[test]
fn echo_texts_are_kept_and_reported() {
    let mut talk = Talk::new(Mode::Client);
    talk.0.echo(1_101_519_562, "forget-passwords");
    assert_eq!(talk.ask("echo all"), ["1101519562,forget-passwords", "END"]);
    talk.ask("echo on");
    talk.0.echo(1_101_519_562, "a\r\n>STATE:b");
    assert_eq!(talk.read(), [">ECHO:1101519562,a__>STATE:b"]);
}

#[test]
fn log_lines_are_kept_and_reported_once() {
    let mut talk = Talk::new(Mode::Client);
    let log = Arc::clone(&talk.0.log);
    let add = |text: &str| log.push(7, tracing::Level::WARN, 1, text);
    add("one");
    assert_eq!(talk.ask("log all"), ["7,W,one", "END"]);
    add("two");
    let on = talk.ask("log on all");
    assert_eq!(on, ["SUCCESS: real-time log notification set to ON", "7,W,one", "7,W,two", "END"]);
    talk.0.take_log();
    assert!(talk.read().is_empty(), "the earlier lines are shown already");
    add("three");
    talk.0.take_log();
    talk.0.take_log();
    assert_eq!(talk.read(), [">LOG:7,W,three"]);
}

#[test]
fn traffic_is_reported_every_few_seconds() {
    let mut talk = Talk::new(Mode::Client);
    let totals = Totals { link_read: 10, link_written: 20, ..Totals::default() };
    talk.ask("bytecount 2");
    let seen: Vec<_> = (0..5)
        .map(|_| {
            talk.0.traffic(totals);
            talk.read().concat()
        })
        .collect();
    assert_eq!(seen, ["", ">BYTECOUNT:10,20", "", ">BYTECOUNT:10,20", ""]);
    talk.ask("bytecount 0");
    (0..5).for_each(|_| talk.0.traffic(totals));
    assert!(talk.read().is_empty());
    let status = talk.ask("status");
    assert_eq!(status[0], "OpenVPN STATISTICS");
    assert!(status.contains(&"TCP/UDP read bytes,10".to_owned()), "{status:?}");
    assert_eq!(status.last().unwrap(), "END");
}

#[test]
fn a_password_is_asked_for_and_entered() {
    let mut talk = Talk::new(Mode::Client);
    let login = Question::Login { kind: "Auth".into(), password_only: false, challenge: None };
    let mut answer = talk.0.ask(login);
    assert_eq!(talk.read(), [">PASSWORD:Need 'Auth' username/password"]);
    talk.ask("exit");
    talk.0.disconnected();
    // The next client gets the question too.
    talk.0.connected();
    assert_eq!(talk.read()[1], ">PASSWORD:Need 'Auth' username/password");
    assert_eq!(
        talk.one("username \"Auth\" foo"),
        "SUCCESS: 'Auth' username entered, but not yet verified"
    );
    talk.one("password \"Auth\" \"b a\\\"r\"");
    let Answer::Login { username, password } = answer.try_recv().unwrap() else { panic!() };
    assert_eq!((username.as_str(), password.as_str()), ("foo", "b a\"r"));
}

#[test]
fn a_server_is_chosen() {
    let mut talk = Talk::new(Mode::Client);
    let ask = |talk: &mut Talk| {
        let (host, protocol) = ("vpn.example.com".into(), "udp");
        let answer = talk.0.ask(Question::Remote { host, port: 1194, protocol });
        assert_eq!(talk.read(), [">REMOTE:vpn.example.com,1194,udp"]);
        answer
    };
    let mut answer = ask(&mut talk);
    for wrong in ["remote MOD", "remote MOD a 0", "remote SKIP 0", "remote SKIP x", "remote X"] {
        assert_eq!(talk.one(wrong), "ERROR: remote command failed", "{wrong}");
    }
    assert_eq!(
        talk.one("remote MOD vpn.otherexample.com 1234"),
        "SUCCESS: remote command succeeded"
    );
    let other = RemoteChoice::Modify("vpn.otherexample.com".into(), 1234);
    assert_eq!(answer.try_recv(), Ok(Answer::Remote(other)));
    let mut answer = ask(&mut talk);
    talk.one("remote SKIP 2");
    assert_eq!(answer.try_recv(), Ok(Answer::Remote(RemoteChoice::Skip(2))));
    assert_eq!(talk.ask("remote-entry-count"), ["2", "END"]);
    assert_eq!(
        talk.ask("remote-entry-get all"),
        ["0,vpn.example.com,1194,udp,enabled", "1,vpn.example.net,443,tcp-client,enabled", "END"]
    );
    assert_eq!(talk.ask("remote-entry-get 1"), ["1,vpn.example.net,443,tcp-client,enabled", "END"]);
    assert_eq!(talk.ask("remote-entry-get 7 9"), ["END"]);
}

#[test]
fn a_server_answers_requests_in_order() {
    let mut talk = Talk::new(Mode::Server);
    talk.0.input(b"status 2\nkill Test-Client\npid\n");
    assert_eq!(talk.0.action(), Some(Action::Ask(Request::Status(2))));
    assert!(talk.read().is_empty() && !talk.0.wants_input(), "the other commands wait");
    talk.0.reply(Reply::Status("TITLE,x\nEND\n".into()));
    assert_eq!(talk.read(), ["TITLE,x", "END"]);
    assert_eq!(talk.0.action(), Some(Action::Ask(Request::KillName("Test-Client".into()))));
    talk.0.reply(Reply::Killed(2));
    let lines = talk.read();
    assert_eq!(lines[0], "SUCCESS: common name 'Test-Client' found, 2 client(s) killed");
    assert!(lines[1].starts_with("SUCCESS: pid="));
    assert!(talk.0.wants_input());
}

#[test]
fn sessions_are_killed_by_name_address_and_number() {
    let mut talk = Talk::new(Mode::Server);
    let mut ask = |command: &str, reply| {
        talk.0.input(format!("{command}\n").as_bytes());
        let Some(Action::Ask(request)) = talk.0.action() else { panic!("{command}") };
        talk.0.reply(reply);
        (request, talk.read().concat())
    };
    let address = Request::KillAddress("1.2.3.4:4000".parse().unwrap());
    let killed = "SUCCESS: 1 client(s) at address 1.2.3.4:4000 killed".to_owned();
    assert_eq!(ask("kill 1.2.3.4:4000", Reply::Killed(1)), (address.clone(), killed));
    let none = "ERROR: client at address 1.2.3.4:4000 not found".to_owned();
    assert_eq!(ask("kill 1.2.3.4:4000", Reply::Killed(0)), (address, none));
    let (_, text) = ask("kill nobody", Reply::Unavailable);
    assert_eq!(text, "ERROR: common name 'nobody' not found");
    let (request, text) = ask("client-kill 7 \"HALT,stop it\"", Reply::Killed(1));
    let reason = "stop it".to_owned();
    assert_eq!(request, Request::KillSession { number: 7, halt: true, reason });
    assert_eq!(text, "SUCCESS: client-kill command succeeded");
    let (request, _) = ask("client-kill 7", Reply::Killed(0));
    assert!(matches!(request, Request::KillSession { halt: false, .. }));
    let (_, text) = ask("nclients", Reply::Load { clients: 3, received: 4, sent: 5 });
    assert_eq!(text, "SUCCESS: nclients=3");
    let (_, text) = ask("load-stats", Reply::Load { clients: 3, received: 4, sent: 5 });
    assert_eq!(text, "SUCCESS: nclients=3,bytesin=4,bytesout=5");
    assert_eq!(talk.one("kill 1.2.3.4:"), "ERROR: kill parse");
    assert_eq!(talk.one("kill 1.2.3.4:99999"), "ERROR: port number is out of range: 99999");
    assert_eq!(talk.one("kill x:7"), "ERROR: error parsing IP address: x");
    assert_eq!(talk.one("client-kill x"), "ERROR: cannot parse CID");
}

#[test]
fn the_lines_after_a_command_belong_to_it() {
    let mut talk = Talk::new(Mode::Server);
    assert!(
        talk.ask("client-auth 0 0\npush \"route 10.0.0.0 255.0.0.0\"\nsignal SIGTERM").is_empty()
    );
    assert_eq!(talk.one("END"), "ERROR: client-auth command failed");
    assert_eq!(talk.0.action(), None);
    let reply = talk.one("pk-sig");
    assert_eq!(reply, "ERROR: The pk-sig command is not currently available");
    let sign = Question::Sign { data: "AAAA".into(), algorithm: "ECDSA".into() };
    let mut answer = talk.0.ask(sign);
    assert_eq!(talk.read(), [">RSA_SIGN:AAAA"]);
    // Too many lines, too long lines.
    talk.ask("rsa-sig");
    for _ in 0..MAX_BLOCK_LINES + 5 {
        talk.ask("AAAA");
    }
    assert_eq!(talk.one("END"), "ERROR: rsa-sign command failed");
    talk.ask("pk-sig");
    talk.ask(&"A".repeat(MAX_LINE + 1));
    assert_eq!(talk.one("END"), "ERROR: pk-sign command failed");
    assert!(answer.try_recv().is_err());
    talk.ask("rsa-sig\nBB\nCC");
    assert_eq!(talk.one("END"), "SUCCESS: rsa-sign command succeeded");
    assert_eq!(answer.try_recv(), Ok(Answer::Signature("BBCC".into())));
}

#[test]
fn a_signal_is_for_the_process() {
    let mut talk = Talk::new(Mode::Client);
    assert_eq!(talk.one("signal SIGUSR1"), "SUCCESS: signal SIGUSR1 thrown");
    assert_eq!(talk.0.action(), Some(Action::Signal(Signal::User1)));
    // While the program holds, there is nothing to restart.
    let _held = talk.0.ask(Question::Hold(0));
    talk.read();
    for signal in ["SIGUSR1", "SIGUSR2", "SIGHUP"] {
        let ignored = format!("ERROR: signal '{signal}' is currently ignored");
        let hold = ">HOLD:Waiting for hold release:0".to_owned();
        assert_eq!(talk.ask(&format!("signal {signal}")), [ignored, hold]);
    }
    assert_eq!(talk.0.action(), None);
    assert_eq!(talk.one("signal SIGTERM"), "SUCCESS: signal SIGTERM thrown");
}

#[test]
fn a_client_that_does_not_read_is_disconnected() {
    let mut talk = Talk::new(Mode::Client);
    talk.ask("state on");
    let state = State { detail: "x".repeat(1000), ..StateName::Exiting.into() };
    let mut count = 0;
    while !talk.0.is_overflown() {
        talk.0.state(1, &state);
        count += 1;
    }
    assert!(count > MAX_OUTPUT / 1100 && count < MAX_OUTPUT / 900, "{count}");
    assert!(talk.0.output().is_empty() && !talk.0.wants_input());
    assert_eq!(talk.0.counters.overflown, 1);
    talk.0.disconnected();
    talk.0.connected();
    assert!(!talk.0.is_overflown());
}

#[test]
fn commands_of_a_client_that_does_not_read_wait() {
    let mut talk = Talk::new(Mode::Client);
    for _ in 0..1000 {
        talk.0.input(b"help\n");
    }
    assert!(talk.0.output().len() < 2 * PAUSE, "{}", talk.0.output().len());
    assert!(!talk.0.wants_input());
    talk.read();
    assert!(talk.0.wants_input());
}

#[test]
fn a_test_of_many_lines_is_bounded() {
    let mut talk = Talk::new(Mode::Client);
    let lines = talk.ask("test 2");
    assert_eq!(lines[1], "[1] The purpose of this command is to generate large amounts of output.");
    talk.0.input(b"test 99999999999\n");
    assert!(talk.0.is_overflown());
}

#[test]
fn a_long_line_is_refused_and_counted() {
    let mut talk = Talk::new(Mode::Client);
    assert_eq!(talk.one(&"x".repeat(MAX_LINE + 1)), "ERROR: the line is too long");
    assert_eq!(talk.0.counters.long_lines, 1);
    assert!(talk.one("pid").starts_with("SUCCESS"));
}

#[test]
fn clients_of_a_server_are_accepted_and_denied() {
    let mut talk = Talk::new(Mode::Server);
    let variables = [
        ("common_name".to_owned(), "a\nEND".to_owned()),
        ("IV_SSO".to_owned(), "crtext".to_owned()),
    ];
    let ask = |talk: &mut Talk, kind: &str, key| {
        let extend = Box::new(|_: std::time::Duration, info: Option<String>| info.is_some());
        let verdict = talk.0.ask_about(kind, key, &variables, extend).unwrap();
        (verdict, talk.read())
    };
    let (mut verdict, asked) = ask(&mut talk, "CONNECT", (0, 1));
    assert_eq!(
        asked,
        [
            ">CLIENT:CONNECT,0,1",
            ">CLIENT:ENV,common_name=a_END",
            ">CLIENT:ENV,IV_SSO=crtext",
            ">CLIENT:ENV,END"
        ]
    );
    assert_eq!(
        talk.one("client-pending-auth 0 1 \"CR_TEXT:R,E:PIN please\" 60"),
        "SUCCESS: client-pending-auth command succeeded"
    );
    assert_eq!(
        talk.one(&format!("client-pending-auth 0 1 {} 60", "x".repeat(2000))),
        "ERROR: client-pending-auth command failed. Extra parameter might be too long"
    );
    assert_eq!(talk.one("client-deny 0 x reason"), "ERROR: cannot parse KID");
    assert_eq!(talk.one("client-auth-nt 0 0"), "ERROR: client-auth command failed");
    assert!(talk.ask("client-auth 0 1\npush \"route 10.0.0.0 255.0.0.0\"").is_empty());
    assert_eq!(talk.one("END"), "SUCCESS: client-auth command succeeded");
    let lines = vec!["push \"route 10.0.0.0 255.0.0.0\"".to_owned()];
    assert_eq!(verdict.try_recv(), Ok(ClientVerdict::Accept(lines)));
    let (mut verdict, _) = ask(&mut talk, "REAUTH", (0, 2));
    let denied = talk.one("client-deny 0 2 \"not today\" \"come back\"");
    assert_eq!(denied, "SUCCESS: client-deny command succeeded");
    let peer = Some("come back".to_owned());
    assert_eq!(verdict.try_recv(), Ok(ClientVerdict::Deny { log: "not today".into(), peer }));
}

#[test]
fn a_server_that_asks_nobody_takes_no_verdicts() {
    let mut talk = Talk::with(Settings { client_auth: false, ..settings(Mode::Server) });
    talk.0.connected();
    talk.read();
    for (command, name) in [
        ("client-auth-nt 0 0", "client-auth"),
        ("client-deny 0 0 x", "client-deny"),
        ("client-auth 0 0", "client-auth"),
        ("remote ACCEPT", "remote"),
        ("proxy NONE", "proxy"),
        ("remote-entry-count", "remote-entry-count"),
    ] {
        let reply =
            format!("ERROR: The '{name}' command is not supported by the current daemon mode");
        assert_eq!(talk.one(command), reply);
    }
}
