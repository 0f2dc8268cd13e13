//! The interface with real sockets.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use adit_runtime::driver::{DialGate, Passage};

use super::super::scripts::{Context, Script, Scripts};
use super::*;

struct Config(String);

impl adit_openvpn::config::Files for Config {
    fn read(&self, _: &Path) -> std::io::Result<Vec<u8>> {
        Ok(self.0.clone().into_bytes())
    }
}

/// Opens the interface of a point-to-point end in a folder.
fn open(folder: &Path, more: &str) -> (Management, PathBuf) {
    let (options, path) = options(folder, more);
    (Management::open(&options).unwrap().unwrap(), path)
}

fn options(folder: &Path, more: &str) -> (Options, PathBuf) {
    let path = folder.join("management");
    let text = format!(
        "dev tun\nsecret k\ncipher AES-256-CBC\nifconfig 10.1.0.1 10.1.0.2\nremote 192.0.2.1 1194\n\
         management {} unix\n{more}",
        path.display()
    );
    (adit_openvpn::config::parse(&["x.conf".into()], &Config(text)).unwrap(), path)
}

/// Opens the interface of a server whose clients the management client decides about.
pub(super) fn open_server(folder: &Path) -> (Management, PathBuf) {
    let path = folder.join("management");
    let text = format!(
        "dev tun\nserver 10.8.0.0 255.255.255.0\nca a\ncert b\nkey c\ndh none\nmanagement {} unix\n\
         management-client-auth\n",
        path.display()
    );
    let options = adit_openvpn::config::parse(&["x.conf".into()], &Config(text)).unwrap();
    (Management::open(&options).unwrap().unwrap(), path)
}

/// A management client.
pub(super) struct Talk(BufReader<UnixStream>);

impl Talk {
    pub(super) fn new(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        Self(BufReader::new(stream))
    }

    pub(super) fn line(&mut self) -> String {
        let mut line = String::new();
        self.0.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    pub(super) fn ask(&mut self, command: &str) -> String {
        writeln!(self.0.get_mut(), "{command}").unwrap();
        self.line()
    }

    /// Returns the lines of a notification about a client.
    pub(super) fn notification(&mut self) -> Vec<String> {
        let mut lines = vec![self.line()];
        while lines.last().is_some_and(|line| line != ">CLIENT:ENV,END") {
            let line = self.line();
            assert!(!line.is_empty(), "the conversation has ended: {lines:?}");
            lines.push(line);
        }
        lines
    }

    fn hears_nothing(&mut self) {
        let stream = self.0.get_mut();
        stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
        let mut line = String::new();
        assert!(self.0.read_line(&mut line).is_err(), "{line}");
        let stream = self.0.get_mut();
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    }
}

pub(super) async fn serve<T: Send + 'static>(
    management: &mut Management,
    client: impl FnOnce() -> T + Send + 'static,
) -> T {
    let talked = tokio::task::spawn_blocking(client);
    management.serve_while(talked).await.unwrap()
}

#[tokio::test]
async fn further_clients_wait_until_the_first_leaves() {
    let dir = tempfile::tempdir().unwrap();
    let (mut management, path) = open(dir.path(), "");
    serve(&mut management, move || {
        let mut first = Talk::new(&path);
        assert!(first.line().starts_with(">INFO:"));
        let mut second = Talk::new(&path);
        second.hears_nothing();
        assert!(first.ask("pid").starts_with("SUCCESS: pid="));
        drop(first);
        assert!(second.line().starts_with(">INFO:"));
        assert_eq!(second.ask("hold"), "SUCCESS: hold=0");
        // The conversation ends on request, too.
        assert_eq!(second.ask("quit"), "");
        assert!(Talk::new(&path).line().starts_with(">INFO:"));
    })
    .await;
}

#[tokio::test]
async fn a_restart_of_the_program_keeps_the_conversation() {
    let dir = tempfile::tempdir().unwrap();
    let (mut management, path) = open(dir.path(), "");
    let mut talk = serve(&mut management, move || {
        let mut talk = Talk::new(&path);
        talk.line();
        talk.ask("state on");
        talk
    })
    .await;
    management.handle().state(&StateName::Reconnecting.into());
    serve(&mut management, move || {
        assert!(talk.line().starts_with(">STATE:"));
        assert!(talk.ask("pid").starts_with("SUCCESS: pid="));
    })
    .await;
}

#[tokio::test]
async fn log_lines_and_states_of_any_thread_reach_the_client() {
    let dir = tempfile::tempdir().unwrap();
    let (mut management, path) = open(dir.path(), "");
    let handle = management.handle();
    serve(&mut management, move || {
        let mut talk = Talk::new(&path);
        talk.line();
        talk.ask("log on");
        talk.ask("state on");
        handle.0.log.push(1, tracing::Level::WARN, 1, "a line");
        assert_eq!(talk.line(), ">LOG:1,W,a line");
        handle.state(&StateName::Wait.into());
        assert!(talk.line().ends_with(",WAIT,,,,,,"));
    })
    .await;
}

#[test]
fn the_program_holds_until_it_is_released() {
    let dir = tempfile::tempdir().unwrap();
    let (mut management, path) = open(dir.path(), "management-hold\n");
    let client = std::thread::spawn(move || {
        let mut talk = Talk::new(&path);
        talk.line();
        assert_eq!(talk.line(), ">HOLD:Waiting for hold release:0");
        assert_eq!(talk.ask("hold release"), "SUCCESS: hold release succeeded");
    });
    assert!(management.hold().unwrap().is_none());
    client.join().unwrap();
}

#[test]
fn passwords_are_asked_for_there() {
    use super::super::key_files::Ask;
    let dir = tempfile::tempdir().unwrap();
    let (mut management, path) = open(dir.path(), "management-query-passwords\n");
    assert!(management.asks_passwords());
    let client = std::thread::spawn(move || {
        let mut talk = Talk::new(&path);
        talk.line();
        assert_eq!(talk.line(), ">PASSWORD:Need 'Auth' username/password");
        talk.ask("username Auth alice");
        talk.ask("password Auth secret");
        assert_eq!(talk.line(), ">PASSWORD:Need 'HTTP Proxy' password");
        talk.ask("password \"HTTP Proxy\" other");
        assert_eq!(talk.line(), ">PASSWORD:Need 'Private Key' password");
        talk.ask("password \"Private Key\" third");
        assert_eq!(talk.line(), ">PASSWORD:Verification Failed: 'Private Key'");
    });
    let mut ask = management.ask_there();
    let login = ask.login("Auth", None).unwrap();
    assert_eq!((login.username.as_str(), login.password.as_str()), ("alice", "secret"));
    let login = ask.login("HTTP Proxy", Some("bob".into())).unwrap();
    assert_eq!((login.username.as_str(), login.password.as_str()), ("bob", "other"));
    assert_eq!(ask.key_password().unwrap().as_str(), "third");
    assert!(ask.key_refused("wrong").is_err());
    management.close();
    client.join().unwrap();
}

#[tokio::test]
async fn an_attempt_to_connect_waits_for_its_answers() {
    let dir = tempfile::tempdir().unwrap();
    let more = "management-query-remote\nmanagement-query-proxy\nremote 192.0.2.2 1195\n";
    let (mut management, path) = open(dir.path(), more);
    let target = Target { host: "192.0.2.1".into(), port: 1194, ..Target::default() };
    let second = Target { host: "192.0.2.2".into(), port: 1195, ..Target::default() };
    let gate = management.handle().gate_of(vec![target.clone(), second], true, true);
    let decided = gate.decide(&target).unwrap();
    let client = tokio::task::spawn_blocking(move || {
        let mut talk = Talk::new(&path);
        talk.line();
        assert_eq!(talk.line(), ">REMOTE:192.0.2.1,1194,udp");
        talk.ask("remote SKIP");
        assert_eq!(talk.line(), ">REMOTE:192.0.2.2,1195,udp");
        talk.ask("remote MOD vpn.example 443");
        assert_eq!(talk.line(), ">PROXY:1,UDP,vpn.example");
        talk.ask("proxy NONE");
    });
    let passage = management.serve_while(decided).await;
    let elsewhere = Target { host: "vpn.example".into(), port: 443, ..Target::default() };
    assert_eq!(passage, Passage { target: elsewhere, proxy: Some(None) });
    client.await.unwrap();
}

#[tokio::test]
async fn up_and_down_are_reported_to_those_who_want_to_know() {
    let dir = tempfile::tempdir().unwrap();
    let (quiet, _) = options(dir.path(), "");
    let (options, _) = options(dir.path(), "management-up-down\n");
    let (mut management, path) = open(dir.path(), "management-up-down\n");
    let handle = management.handle();
    assert!(Scripts::new(&quiet, None, Some(handle.clone())).is_none());
    let mut scripts = Scripts::new(&options, None, Some(handle)).unwrap();
    serve(&mut management, move || {
        let mut talk = Talk::new(&path);
        talk.line();
        // There is no program to wait for.
        assert!(scripts.start(Script::Up(Context::Init)).is_none());
        assert!(scripts.start(Script::RouteUp).is_none());
        scripts.environment().set("signal", "sigusr1");
        assert!(scripts.start(Script::Down(Context::Restart)).is_none());
        let mut block = || {
            let lines = std::iter::from_fn(|| Some(talk.line()));
            lines.take_while(|line| line != ">UPDOWN:ENV,END").collect::<Vec<_>>()
        };
        let up = block();
        assert_eq!(up[0], ">UPDOWN:UP");
        assert!(up.contains(&">UPDOWN:ENV,script_context=init".to_owned()), "{up:?}");
        let down = block();
        assert_eq!(down[0], ">UPDOWN:DOWN");
        assert_eq!(down[1..], up[1..]);
    })
    .await;
}

#[test]
fn as_many_log_lines_are_kept_as_management_log_cache_says() {
    let dir = tempfile::tempdir().unwrap();
    let (management, _) = open(dir.path(), "management-log-cache 2\n");
    let log = &management.handle.0.log;
    for n in 0..5 {
        log.push(n, tracing::Level::INFO, 1, "line");
    }
    assert_eq!(log.last(usize::MAX), ["3,I,line", "4,I,line"]);
}

#[tokio::test]
async fn the_configurations_echo_reaches_the_client() {
    let dir = tempfile::tempdir().unwrap();
    let more = "echo forget-passwords\n";
    let (mut management, path) = open(dir.path(), more);
    let (options, _) = options(dir.path(), more);
    assert!(management.begin(&options).unwrap().is_none());
    serve(&mut management, move || {
        let mut talk = Talk::new(&path);
        talk.line();
        assert!(talk.ask("echo all").ends_with(",forget-passwords"));
        assert_eq!(talk.line(), "END");
    })
    .await;
}

/// Returns the commands to a running client after a management client has come and gone.
async fn after_a_conversation(more: &str) -> Vec<ClientCommand> {
    let dir = tempfile::tempdir().unwrap();
    let (mut management, path) = open(dir.path(), more);
    let mut commands = management.handle().commands();
    serve(&mut management, move || {
        Talk::new(&path).line();
        // The end of the first conversation is over when the second begins.
        Talk::new(&path).line();
    })
    .await;
    std::iter::from_fn(|| commands.try_recv().ok()).collect()
}

#[tokio::test]
async fn passwords_are_forgotten_at_the_end_of_a_conversation_where_that_is_asked_for() {
    let forgets = |commands: Vec<ClientCommand>| {
        commands.iter().any(|command| matches!(command, ClientCommand::ForgetLogin))
    };
    assert!(!forgets(after_a_conversation("").await));
    assert!(forgets(after_a_conversation("management-forget-disconnect\n").await));
}

/// `management-signal`
#[tokio::test]
async fn the_end_of_a_conversation_restarts_the_tunnel_where_that_is_asked_for() {
    // Other tests of this process may send the same signal, so only its arrival is checked.
    let mut restarts = Signals::new().unwrap();
    after_a_conversation("management-signal\n").await;
    let restart = async { while restarts.next().await != Signal::User1 {} };
    tokio::time::timeout(Duration::from_secs(30), restart).await.unwrap();
}
