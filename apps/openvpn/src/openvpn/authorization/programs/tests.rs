//! Tests of the server's programs with a runner that answers as a test says.

use std::collections::VecDeque;

use adit_engine::auth::KeyMetadata;
use adit_engine::{CertificateFacts, Identity};
use adit_openvpn::config::{PasswordProgram, Program as Configured};
use adit_runtime::authorize::PendingSender;
use adit_runtime::programs::{Place, Scratch, ScratchWriter};

use super::*;
use crate::openvpn::authorization::Address;
use crate::openvpn::authorization::tests::facts_of;

const SECOND: Duration = Duration::from_secs(1);

/// A program's files, in the order of its call.
type Written = Vec<ScratchWriter>;

/// A runner that keeps the calls, and answers with prepared ends.
#[derive(Clone, Default)]
struct Fake(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    calls: Vec<Call>,
    files: Vec<Written>,
    ends: VecDeque<(ExitStatus, Vec<&'static str>)>,
}

impl Fake {
    /// Prepares the next end: the exit status, and what is in the files then.
    fn end(&self, status: u8, files: &[&'static str]) -> &Self {
        self.state().ends.push_back((ExitStatus::Code(status), files.to_vec()));
        self
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap()
    }

    fn call(&self) -> Call {
        self.state().calls.remove(0)
    }

    fn run(&self, call: Call) -> Finished {
        let mut state = self.state();
        let (status, contents) = state.ends.pop_front().expect("an end was prepared");
        let contents = contents.into_iter().map(str::as_bytes).chain(std::iter::repeat(&b""[..]));
        let made: Vec<_> = call
            .files
            .iter()
            .zip(contents)
            .map(|(_, content)| Scratch::detached(content))
            .collect();
        let (files, writers) = made.into_iter().unzip();
        state.files.push(writers);
        state.calls.push(call);
        Finished { status, files }
    }

    fn scripts(&self, change: impl FnOnce(&mut Hooks)) -> ClientPrograms {
        let mut options = Options { script_security: 3, ..Options::default() };
        change(&mut options.hooks);
        self.with_options(&options)
    }

    fn with_options(&self, options: &Options) -> ClientPrograms {
        let fake = self.clone();
        let run = move |call| -> RunFuture { Box::pin(std::future::ready(fake.run(call))) };
        ClientPrograms::with_runner(options, ClientRules::default(), 60 * SECOND, Box::new(run))
    }

    fn with_password(&self, via_file: bool) -> ClientPrograms {
        self.scripts(|hooks| {
            let program = program();
            hooks.auth_user_pass_verify = Some(PasswordProgram { program, via_file });
            hooks.client_cr_response =
                Some(Configured { path: "/response".into(), args: Vec::new() });
        })
    }
}

fn program() -> Configured {
    Configured { path: "/check".into(), args: vec!["own".into()] }
}

fn alice() -> Identity {
    Identity {
        common_name: "alice".into(),
        username: Some("alice".into()),
        password: Some("secret".to_owned().into()),
        peer_info: vec![("IV_SSO".into(), "crtext,webauth".into())],
        ..Identity::default()
    }
}

fn pending() -> Pending {
    Pending::new(PendingSender::none(), 60 * SECOND, 300 * SECOND)
}

/// Lets all tasks run until they wait for something.
async fn settle() {
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
}

fn value<'a>(call: &'a Call, name: &str) -> Option<&'a str> {
    call.env.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
}

fn refusal(verdict: Verdict) -> Rejection {
    match verdict {
        Verdict::Reject(rejection) => rejection,
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn passwords_are_nowhere_else() {
    let (fake, facts) = (Fake::default(), facts_of(alice()));
    fake.end(0, &[]).end(0, &[]);
    assert_eq!(fake.with_password(true).password(&facts, &pending()).await, Verdict::Accept);
    let call = fake.call();
    assert_eq!((call.program.path.as_str(), call.program.args[0].as_str()), ("/check", "own"));
    assert_eq!(value(&call, "script_type"), Some("user-pass-verify"));
    let shown = format!("{:?} {:?} {:?}", call.program, call.args, call.env);
    assert!(!shown.contains("secret"), "{shown}");
    let contents = call.files.iter().filter_map(|file| file.content.as_ref());
    assert_eq!(
        contents.map(|content| content.as_slice()).collect::<Vec<_>>(),
        [b"alice\nsecret\n"]
    );
    let places: Vec<Place> = call.files.iter().map(|file| file.place).collect();
    let variables = ["auth_control_file", "auth_failed_reason_file", "auth_pending_file"];
    assert_eq!(places[0], Place::Argument);
    assert_eq!(places[1..], variables.map(Place::Variable));
    fake.with_password(false).password(&facts, &pending()).await;
    let call = fake.call();
    assert_eq!(
        (value(&call, "username"), value(&call, "password")),
        (Some("alice"), Some("secret"))
    );
    assert!(call.files.iter().all(|file| file.content.is_none()));
    assert!(!format!("{:?}", call.args).contains("secret"));
    // Below script-security 3 the variable is missing, as in openvpn.
    fake.end(0, &[]);
    let mut options = Options { script_security: 2, ..Options::default() };
    let program = program();
    options.hooks.auth_user_pass_verify = Some(PasswordProgram { program, via_file: false });
    fake.with_options(&options).password(&facts, &pending()).await;
    let call = fake.call();
    assert_eq!((value(&call, "username"), value(&call, "password")), (Some("alice"), None));
}

/// Below script-security 2 no program runs, so none can accept.
#[tokio::test]
async fn programs_that_may_not_run_refuse() {
    let mut options = Options::default();
    assert!(options.script_security < 2);
    options.hooks.tls_verify = Some(program());
    options.hooks.client_connect = Some(program());
    let programs = ClientPrograms::new(&options, ClientRules::default(), SECOND);
    let certificates = vec![CertificateFacts::default()];
    let facts = facts_of(Identity { certificates, ..alice() });
    let refused = refusal(programs.verify_certificate(&facts, 0).await);
    assert!(refused.log.contains("script-security"), "{refused}");
    let refused = programs.connect(&facts, ClientParams::default()).await.unwrap_err();
    assert!(refused.log.contains("script-security"), "{refused}");
}

#[tokio::test]
async fn a_password_cannot_forge_a_line() {
    let fake = Fake::default();
    fake.end(0, &[]).end(0, &[]);
    let hostile = Identity {
        username: Some("root\nx".into()),
        password: Some("a\nb\r\0ä".to_owned().into()),
        ..alice()
    };
    let facts = facts_of(hostile);
    fake.with_password(true).password(&facts, &pending()).await;
    let call = fake.call();
    let content = call.files[0].content.as_ref().unwrap();
    assert_eq!(std::str::from_utf8(content).unwrap(), "root_x\na_b__ä\n");
    fake.with_password(false).password(&facts, &pending()).await;
    let call = fake.call();
    assert_eq!(
        (value(&call, "username"), value(&call, "password")),
        (Some("root_x"), Some("a_b__ä"))
    );
}

#[tokio::test]
async fn a_program_that_fails_refuses_with_its_text() {
    let (fake, facts) = (Fake::default(), facts_of(alice()));
    fake.end(1, &["", "", "locked\nmore"]).end(3, &[]);
    let scripts = fake.with_password(true);
    let refused = refusal(scripts.password(&facts, &pending()).await);
    assert_eq!(refused.peer.as_deref(), Some("locked"));
    assert_eq!(
        refused.log,
        "Failed running command (--auth-user-pass-verify): external program exited with error status: 1"
    );
    assert_eq!(refusal(scripts.password(&facts, &pending()).await).peer, None);
    // One that cannot be started, or is killed, has not accepted either.
    for status in [ExitStatus::TimedOut, ExitStatus::Signal(9), ExitStatus::NotStarted("x".into())]
    {
        fake.state().ends.push_back((status, Vec::new()));
        refusal(scripts.password(&facts, &pending()).await);
    }
}

/// Waits for a deferred answer, while `answer` has the program's files.
async fn deferred(
    fake: &Fake,
    answer: impl AsyncFnOnce(&ClientPrograms, &Arc<ClientFacts>, &Written),
) -> Verdict {
    let (programs, facts) = (fake.with_password(true), facts_of(alice()));
    let asked = tokio::spawn(programs.password(&facts, &pending()));
    settle().await;
    assert!(!asked.is_finished(), "it is deferred");
    let written = fake.state().files.remove(0);
    answer(&programs, &facts, &written).await;
    asked.await.unwrap()
}

#[tokio::test]
async fn a_deferred_answer_is_yes_or_no() {
    let fake = Fake::default();
    fake.end(2, &[]).end(2, &[]);
    let verdict = deferred(&fake, async |_, _, written| {
        written[1].write(b"2");
        settle().await;
        written[1].write(b"1");
    });
    assert_eq!(verdict.await, Verdict::Accept);
    let verdict = deferred(&fake, async |_, _, written| {
        written[2].write(b"not today");
        written[1].write(b"0");
    });
    assert_eq!(refusal(verdict.await).peer.as_deref(), Some("not today"));
    // An answer that was there at once counts at once.
    fake.end(2, &["", "1"]);
    let programs = fake.with_password(true);
    assert_eq!(programs.password(&facts_of(alice()), &pending()).await, Verdict::Accept);
}

#[tokio::test]
async fn a_request_for_more_time_must_be_understood_by_the_client() {
    let fake = Fake::default();
    fake.end(2, &["", "", "", "200\ncrtext\nCR_TEXT:E,R:code?"]);
    let (facts, pending) = (facts_of(alice()), pending());
    let asked = tokio::spawn(fake.with_password(true).password(&facts, &pending));
    settle().await;
    assert!(!asked.is_finished());
    let left = pending.remaining();
    assert!(left > 100 * SECOND && left <= 200 * SECOND, "{left:?}");
    for text in ["200\nopenurl\nOPEN_URL:https://x", "soon\ncrtext\nCR_TEXT:E,R:code?"] {
        fake.end(2, &["", "", "", text]);
        refusal(fake.with_password(true).password(&facts, &pending).await);
    }
}

#[tokio::test]
async fn a_response_to_a_challenge_goes_to_its_program_with_the_open_files() {
    let fake = Fake::default();
    fake.end(2, &[]).end(0, &[]);
    let verdict = deferred(&fake, async |programs, facts, written| {
        fake.state().calls.clear();
        programs.challenge_response(facts, "MTIz".into()).await;
        let call = fake.call();
        assert_eq!(call.program.path, "/response");
        assert_eq!(value(&call, "script_type"), Some("client-crresponse"));
        let path = written[1].path().display().to_string();
        assert_eq!(value(&call, "auth_control_file"), Some(path.as_str()));
        assert_eq!(call.files[0].content.as_ref().map(|text| text.to_vec()).unwrap(), b"MTIz");
        assert!(!format!("{:?}", call.env).contains("secret"));
        written[1].write(b"1");
    });
    assert_eq!(verdict.await, Verdict::Accept);
    // A program that fails refuses.
    fake.end(2, &[]).end(1, &[]);
    let verdict = deferred(&fake, async |programs, facts, _| {
        programs.challenge_response(facts, "x".into()).await;
    });
    assert!(refusal(verdict.await).log.contains("client-crresponse"));
    // Without an open check no program is run.
    fake.state().calls.clear();
    fake.with_password(true).challenge_response(&facts_of(alice()), "x".into()).await;
    assert!(fake.state().calls.is_empty());
}

#[tokio::test]
async fn client_connect_writes_settings_at_once_or_later_or_refuses() {
    let fake = Fake::default();
    let scripts = fake.scripts(|hooks| hooks.client_connect = Some(program()));
    let facts = facts_of(alice());
    let connect = |scripts: &ClientPrograms| scripts.connect(&facts, ClientParams::default());
    let route = "push \"route 10.6.0.0\"";
    for (status, files) in [(0, ["", route]), (0, ["1\n", route])] {
        fake.end(status, &files);
        assert_eq!(connect(&scripts).await.unwrap().push, ["route 10.6.0.0"]);
        let call = fake.call();
        let place = Place::ArgumentAndVariable("client_connect_config_file");
        // The runner reports the first file after the others.
        assert_eq!(call.files[0].place, Place::Variable("client_connect_deferred_file"));
        assert_eq!(call.files[1].place, place);
        assert_eq!(value(&call, "script_type"), Some("client-connect"));
    }
    for (status, files, problem) in [
        (1, ["", ""], "--client-connect"),
        (0, ["0", ""], "no"),
        (0, ["x", ""], "0, 1 or 2"),
        (0, ["", "disable"], "disable"),
        (0, ["", "up /bin/sh"], "up"),
        (0, ["", "push \"route\nifconfig-push"], "client-connect"),
    ] {
        fake.end(status, &files);
        let refused = connect(&scripts).await.unwrap_err();
        assert!(refused.log.contains(problem), "{problem}: {refused}");
        assert_eq!(refused.log.lines().count(), 1);
    }
    for (answer, accepted) in [(b"1", true), (b"0", false)] {
        fake.end(0, &["2", ""]);
        fake.state().files.clear();
        let asked = tokio::spawn(connect(&scripts));
        settle().await;
        assert!(!asked.is_finished(), "it is deferred");
        let written = fake.state().files.remove(0);
        written[1].write(route.as_bytes());
        // A shell truncates the file before it writes.
        written[0].write(b"");
        settle().await;
        assert!(!asked.is_finished(), "an empty file is no answer");
        written[0].write(answer);
        let params = asked.await.unwrap();
        assert_eq!(params.is_ok(), accepted);
        assert!(params.is_err() || params.is_ok_and(|params| params.push.len() == 1));
    }
}

#[tokio::test]
async fn further_programs_get_openvpns_arguments() {
    let fake = Fake::default();
    let scripts = fake.scripts(|hooks| {
        hooks.tls_verify = Some(program());
        hooks.export_cert = Some("/export".into());
        hooks.learn_address = Some(program());
        hooks.client_disconnect = Some(program());
        hooks.tls_crypt_v2_verify = Some(program());
    });
    for _ in 0..5 {
        fake.end(0, &[]);
    }
    let certificate = CertificateFacts {
        der: (*b"a certificate").into(),
        subject: "O=x, CN=alice".into(),
        ..CertificateFacts::default()
    };
    let metadata = KeyMetadata { kind: 1, content: vec![0, 255] };
    let facts = facts_of(Identity {
        certificates: vec![certificate],
        tls_crypt_v2_metadata: Some(metadata),
        ..alice()
    });
    assert_eq!(scripts.verify_certificate(&facts, 0).await, Verdict::Accept);
    let call = fake.call();
    assert_eq!(call.args, ["0", "O=x, CN=alice"]);
    assert_eq!(call.files[0].place, Place::Variable("peer_cert"));
    assert!(call.files[0].exported);
    let pem = call.files[0].content.clone().unwrap();
    let text = "-----BEGIN CERTIFICATE-----\nYSBjZXJ0aWZpY2F0ZQ==\n-----END CERTIFICATE-----\n";
    assert_eq!(std::str::from_utf8(&pem).unwrap(), text);
    assert_eq!(scripts.verify_certificate(&facts, 1).await, Verdict::NotMine);
    for (kind, args) in [
        (ChangeKind::Add, &["add", "10.8.0.2", "alice"][..]),
        (ChangeKind::Delete, &["delete", "10.8.0.2"]),
    ] {
        let address = Address::Net("10.8.0.2/32".parse().unwrap());
        let change = AddressChange { kind, address, primary: true };
        assert_eq!(scripts.learn(&facts, change).await, Verdict::Accept);
        assert_eq!(fake.call().args, args);
    }
    let traffic = Counters { rx_bytes: 5, tx_bytes: 6, ..Counters::default() };
    scripts.disconnected(&facts, traffic, 90 * SECOND).await;
    let call = fake.call();
    let told = ["bytes_received", "bytes_sent", "time_duration"].map(|name| value(&call, name));
    assert_eq!(told, [Some("5"), Some("6"), Some("90")]);
    assert_eq!(scripts.verify_key(&facts).await, Verdict::Accept);
    let call = fake.call();
    let names: Vec<&str> = call.env.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["script_type", "metadata_type"], "and no others");
    assert_eq!(call.files[0].content.as_ref().unwrap().as_slice(), [0, 255]);
    // Each of them refuses by its status.
    for _ in 0..3 {
        fake.end(1, &[]);
    }
    let refused = refusal(scripts.verify_certificate(&facts, 0).await);
    assert!(refused.log.starts_with("VERIFY SCRIPT ERROR: depth=0, O=x, CN=alice: "), "{refused}");
    refusal(scripts.verify_key(&facts).await);
    let change = AddressChange {
        kind: ChangeKind::Add,
        address: Address::Net("10.8.0.0/24".parse().unwrap()),
        primary: false,
    };
    refusal(scripts.learn(&facts, change).await);
    assert_eq!(fake.state().calls.last().unwrap().args[1], "10.8.0.0/24");
}
