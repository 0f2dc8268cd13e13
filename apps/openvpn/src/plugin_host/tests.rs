//! The host as a process, with the test plugin.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;

use adit_testbed::wait;
use tempfile::TempDir;

use super::link::MAX_QUEUED;
use super::*;

const HOST: &str = "ADIT_TEST_PLUGIN_HOST";

/// Is the host for the other tests, which start this program again.
#[test]
fn the_host_of_other_tests() {
    if std::env::var_os(HOST).is_some() {
        std::process::exit(i32::from(process::run().is_err()));
    }
}

pub(crate) struct Fixture {
    dir: TempDir,
    interface: u8,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self::of(2)
    }

    pub(crate) fn of(interface: u8) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
        fs::create_dir(dir.path().join("tmp")).unwrap();
        fs::set_permissions(dir.path().join("tmp"), fs::Permissions::from_mode(0o777)).unwrap();
        Self { dir, interface }
    }

    fn path(&self, name: &str) -> String {
        self.dir.path().join(name).to_str().unwrap().to_owned()
    }

    fn plugin(&self, definitions: &[&str], words: &str) -> PluginFile {
        let object =
            adit_testbed::plugin::build(self.dir.path(), self.interface, definitions).unwrap();
        let own = [format!("log={}", self.path("log")), format!("go={}", self.path("go"))];
        let words = words.split_whitespace().map(str::to_owned);
        PluginFile {
            file: object.to_str().unwrap().to_owned(),
            args: own.into_iter().chain(words).collect(),
            directory: None,
        }
    }

    fn open(&self, plugins: Vec<PluginFile>, user: Option<&str>) -> Result<Plugins, Fault> {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command
            .args(["--exact", "plugin_host::tests::the_host_of_other_tests", "--nocapture"])
            .env(HOST, "1")
            .stdout(Stdio::null());
        let request = OpenRequest {
            plugins,
            env: vec![("verb".into(), "3".into())],
            directory: Some(self.dir.path().to_owned()),
            folder: self.dir.path().join("tmp"),
            user: user.map(str::to_owned),
            group: None,
        };
        Plugins::start_as(command, request)
    }

    /// Starts a host with one plugin.
    pub(crate) fn start(&self, words: &str) -> Plugins {
        let plugins = self.open(vec![self.plugin(&[], words)], None).unwrap();
        plugins.watch().unwrap();
        plugins
    }

    pub(crate) fn go(&self) {
        fs::write(self.path("go"), "").unwrap();
    }

    pub(crate) fn log(&self) -> Vec<String> {
        let text = fs::read_to_string(self.path("log")).unwrap_or_default();
        text.lines().map(str::to_owned).collect()
    }

    pub(crate) fn is_logged(&self, line: &str) -> bool {
        self.log().iter().any(|other| other == line)
    }

    /// Returns the number of files for answers.
    fn files(&self) -> usize {
        fs::read_dir(self.path("tmp")).unwrap().count()
    }
}

/// Waits without blocking the runtime.
pub(crate) async fn until(what: &str, seen: impl Fn() -> bool) {
    let begun = wait::ScaledInstant::now();
    while !seen() {
        assert!(begun.elapsed() < Duration::from_secs(30), "not in time: {what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn call(kind: Kind) -> Call {
    let env = vec![("common_name".to_owned(), "alice".to_owned())];
    Call { client: 5, ..Call::new(kind, vec!["first".into()], env) }
}

async fn ask(plugins: &Plugins, kind: Kind) -> Outcome {
    plugins.call(call(kind), &mut |_| {}).await
}

#[track_caller]
fn refused(outcome: &Outcome, text: &str) -> Option<String> {
    let Outcome::Refused { log, peer } = outcome else { panic!("accepted: {outcome:?}") };
    assert!(log.contains(text), "{log}");
    peer.clone()
}

const PASSWORD: Kind = Kind::AuthUserPassVerify;

#[tokio::test]
async fn plugins_accept_and_refuse_with_arguments_environment_and_reason() {
    let fixture = Fixture::new();
    let plugins = fixture.start("mask=0x71 on=4:refuse on=5:reason");
    assert_eq!(ask(&plugins, Kind::Up).await, Outcome::accepted());
    assert!(fixture.is_logged("open env verb=3"));
    assert!(fixture.is_logged("call 0 arg 1=first"));
    assert!(fixture.is_logged("call 0 env common_name=alice"));
    assert_eq!(refused(&ask(&plugins, Kind::TlsVerify).await, "PLUGIN_TLS_VERIFY failed"), None);
    let reason = refused(&ask(&plugins, PASSWORD).await, "failed with status 1");
    assert_eq!(reason.as_deref(), Some("the account is locked"));
    // It does not want this one.
    assert!(!plugins.wants(Kind::Down));
    assert_eq!(ask(&plugins, Kind::Down).await, Outcome::accepted());
    assert!(!fixture.log().iter().any(|line| line.starts_with("call 1 ")));
    plugins.finish();
    assert_eq!(fixture.log().last().unwrap(), "close");
    assert_eq!(fixture.files(), 0);
}

#[tokio::test]
async fn a_deferred_password_check_is_answered_later_and_delays_no_other_call() {
    for (action, accepts) in [("defer1", true), ("defer0", false), ("twice", false)] {
        let fixture = Fixture::new();
        let plugins = fixture.start(&format!("mask=0x21 on=5:{action}"));
        let asked = tokio::spawn({
            let plugins = plugins.clone();
            async move { ask(&plugins, PASSWORD).await }
        });
        until("the call is made", || fixture.is_logged("call 5 arg 1=first")).await;
        assert_eq!(ask(&plugins, Kind::Up).await, Outcome::accepted());
        assert!(!asked.is_finished());
        fixture.go();
        let outcome = asked.await.unwrap();
        assert_eq!(matches!(outcome, Outcome::Accepted { .. }), accepts, "{action}");
        // The second answer changes nothing and harms nothing.
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(ask(&plugins, Kind::Up).await, Outcome::accepted());
        assert_eq!(fixture.files(), 0);
    }
}

#[tokio::test]
async fn a_plugin_may_ask_for_time_and_give_a_reason() {
    let fixture = Fixture::new();
    let plugins = fixture.start("mask=0x20 on=5:defer1pending");
    let (sender, mut requests) = tokio::sync::mpsc::unbounded_channel();
    let asked = tokio::spawn(async move {
        plugins.call(call(PASSWORD), &mut |pending| drop(sender.send(pending))).await
    });
    let wanted = Pending {
        timeout: 30,
        method: "openurl".into(),
        extra: "OPEN_URL:https://example.org/".into(),
    };
    assert_eq!(requests.recv().await, Some(wanted));
    fixture.go();
    assert_eq!(asked.await.unwrap(), Outcome::accepted());
    assert_eq!(requests.recv().await, None, "one request");

    let fixture = Fixture::new();
    let plugins = fixture.start("mask=0x20 on=5:defer0reason");
    fixture.go();
    let reason = refused(&ask(&plugins, PASSWORD).await, "auth_control_file");
    assert_eq!(reason.as_deref(), Some("too late"));
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_a_refusal_and_leaves_no_files() {
    let fixture = Fixture::new();
    let plugins = fixture.start("mask=0x21 on=5:defer");
    let short = Call { limit: Duration::from_millis(200), ..call(PASSWORD) };
    refused(&plugins.call(short, &mut |_| {}).await, "no answer within");
    until("the files are removed", || fixture.files() == 0).await;
    // A caller that goes away has the same effect.
    let asked = tokio::spawn({
        let plugins = plugins.clone();
        async move { ask(&plugins, PASSWORD).await }
    });
    until("the files are there", || fixture.files() == 3).await;
    asked.abort();
    until("the files are removed", || fixture.files() == 0).await;
}

#[tokio::test]
async fn a_crash_refuses_all_calls_and_is_reported() {
    let fixture = Fixture::new();
    let plugins = fixture.start("mask=0x21 on=0:crash on=5:defer");
    let waiting = tokio::spawn({
        let plugins = plugins.clone();
        async move { ask(&plugins, PASSWORD).await }
    });
    until("the files are there", || fixture.files() == 3).await;
    assert!(plugins.fault().is_none());
    refused(&ask(&plugins, Kind::Up).await, "has ended");
    refused(&waiting.await.unwrap(), "has ended");
    let fault = plugins.lost().await;
    assert!(fault.to_string().contains("a plugin has crashed"), "{fault}");
    assert_eq!(plugins.fault(), Some(fault));
    refused(&ask(&plugins, PASSWORD).await, "has ended");
}

#[tokio::test]
async fn a_crash_is_noticed_although_a_child_of_the_plugin_lives() {
    let fixture = Fixture::new();
    let plugins = fixture.start("mask=0x21 on=0:crash on=5:defer1");
    let waiting = tokio::spawn({
        let plugins = plugins.clone();
        async move { ask(&plugins, PASSWORD).await }
    });
    until("the files are there", || fixture.files() == 3).await;
    refused(&ask(&plugins, Kind::Up).await, "has ended");
    refused(&waiting.await.unwrap(), "has ended");
    // The child, which has a copy of the channel, ends.
    fixture.go();
}

#[tokio::test]
async fn a_plugin_that_blocks_is_refused_after_a_time_and_used_again_afterwards() {
    let fixture = Fixture::new();
    let plugins = fixture.start("mask=0x21 on=0:block");
    let short = |kind| Call { limit: Duration::from_millis(300), ..call(kind) };
    let (mut one, mut two) = (|_: Pending| {}, |_: Pending| {});
    let (blocked, behind) = tokio::join!(
        plugins.call(short(Kind::Up), &mut one),
        plugins.call(short(PASSWORD), &mut two)
    );
    refused(&blocked, "no answer within");
    refused(&behind, "no answer within");
    fixture.go();
    assert_eq!(ask(&plugins, PASSWORD).await, Outcome::accepted());
    // The call that was given up before its turn was not made.
    assert_eq!(fixture.log().iter().filter(|line| line.starts_with("call 5 uid")).count(), 1);
}

/// The variable with the directory of a host whose network process this program plays.
const KILLED: &str = "ADIT_TEST_PLUGIN_DIR";

/// Is the network process of the next test: calls a plugin that blocks, and waits to be killed.
#[tokio::test]
async fn the_network_process_of_another_test() {
    if let Some(notes) = std::env::var_os(KILLED) {
        let fixture = Fixture::new();
        let plugins = fixture.start("mask=0x21 on=0:block");
        plugins.notify(call(Kind::Up));
        let called = || fixture.log().iter().any(|line| line.starts_with("call 0 "));
        until("the plugin is called", called).await;
        fs::write(notes, fixture.path("")).unwrap();
        std::future::pending::<()>().await;
    }
}

#[tokio::test]
async fn a_plugin_that_blocks_ends_soon_after_the_network_process() {
    let dir = tempfile::tempdir().unwrap();
    let notes = dir.path().join("notes");
    let mut network_process = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "plugin_host::tests::the_network_process_of_another_test", "--nocapture"])
        .env(KILLED, &notes)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    // The file exists before it is written.
    let written = || fs::read_to_string(&notes).is_ok_and(|text| !text.is_empty());
    until("the plugin blocks", written).await;
    let host = children(network_process.id());
    assert_eq!(host.len(), 1);
    network_process.kill().unwrap();
    network_process.wait().unwrap();
    let left = fs::read_to_string(&notes).unwrap();
    until("the host has ended", || !Path::new(&format!("/proc/{}", host[0])).exists()).await;
    fs::remove_dir_all(left).unwrap();
}

/// Returns the processes that a process has started.
fn children(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    // A thread may have ended in the meantime.
    let lists =
        tasks.filter_map(|task| fs::read_to_string(task.unwrap().path().join("children")).ok());
    lists
        .flat_map(|list| list.split(' ').filter_map(|id| id.parse().ok()).collect::<Vec<_>>())
        .collect()
}

#[tokio::test]
async fn waiting_calls_are_bounded() {
    let fixture = Fixture::new();
    let plugins = fixture.start("mask=0x21 on=0:block");
    plugins.notify(call(Kind::Up));
    for _ in 0..MAX_QUEUED {
        plugins.notify(call(PASSWORD));
    }
    refused(&ask(&plugins, PASSWORD).await, "calls wait for the plugins");
    fixture.go();
    until("all are made", || {
        fixture.log().iter().filter(|line| line.starts_with("call 5 uid")).count() == MAX_QUEUED
    })
    .await;
    assert_eq!(ask(&plugins, PASSWORD).await, Outcome::accepted());
}

#[tokio::test]
async fn connect_calls_return_a_clients_configuration() {
    let route = |net: &str| format!("push \"route {net} 255.255.0.0\"\n");
    let accepted = |config: &[String]| Outcome::Accepted { config: config.to_vec() };
    let listed = [route("10.9.0.0"), "iroute 10.8.0.0 255.255.0.0".into()];
    for (action, kind, wanted) in [
        ("on=9:list", Kind::ClientConnectV2, accepted(&listed)),
        ("on=9:defer on=14:again", Kind::ClientConnectV2, accepted(&listed)),
        ("on=6:connect", Kind::ClientConnect, accepted(&[route("10.7.0.0")])),
        ("on=6:connectdefer1", Kind::ClientConnect, accepted(&[route("10.6.0.0")])),
        // A list is for the second version of the call alone.
        ("on=6:list", Kind::ClientConnect, accepted(&[])),
    ] {
        let fixture = Fixture::new();
        fixture.go();
        let plugins = fixture.start(&format!("mask=0x4240 {action}"));
        assert_eq!(ask(&plugins, kind).await, wanted, "{action}");
        assert_eq!(fixture.files(), 0, "{action}");
    }
    for (action, kind, reason) in [
        ("on=9:refuse", Kind::ClientConnectV2, "CONNECT_V2 failed"),
        ("on=9:defer on=14:refuse", Kind::ClientConnectV2, "DEFER_V2 failed"),
        ("on=9:long", Kind::ClientConnectV2, "too long a list"),
        ("on=9:circle", Kind::ClientConnectV2, "too long a list"),
        ("on=6:connectdefer0", Kind::ClientConnect, "contains 0"),
    ] {
        let fixture = Fixture::new();
        fixture.go();
        let plugins = fixture.start(&format!("mask=0x4240 {action}"));
        refused(&ask(&plugins, kind).await, reason);
    }
}

#[tokio::test]
async fn cve_2022_0547_all_plugins_must_accept_and_only_one_may_defer() {
    for (first, second, reason) in [
        ("ok", "ok", None),
        ("ok", "refuse", Some("failed with status 1")),
        ("refuse", "ok", Some("failed with status 1")),
        ("refuse", "defer1", Some("failed with status 1")),
        ("defer1", "refuse", Some("failed with status 1")),
        ("defer1", "defer1", Some("2 plugins answer")),
        ("defer1", "ok", None),
        ("ok", "defer1", None),
    ] {
        let fixture = Fixture::new();
        fixture.go();
        let two =
            [first, second].map(|action| fixture.plugin(&[], &format!("mask=0x20 on=5:{action}")));
        let plugins = fixture.open(two.to_vec(), None).unwrap();
        plugins.watch().unwrap();
        let outcome = ask(&plugins, PASSWORD).await;
        match reason {
            Some(reason) => drop(refused(&outcome, reason)),
            None => assert_eq!(outcome, Outcome::accepted(), "{first} {second}"),
        }
        let calls = fixture.log().iter().filter(|line| line.starts_with("call 5 uid")).count();
        assert_eq!(calls, 2, "{first} {second}");
    }
}

/// Only the first request may name files, so that a compromised network process cannot have others loaded.
#[tokio::test]
async fn files_are_named_once() {
    let fixture = Fixture::new();
    let plugins = fixture.start("mask=0x21");
    let other = fixture.plugin(&["POINT=3"], "mask=2");
    let request = OpenRequest { plugins: vec![other], ..OpenRequest::default() };
    let result = plugins.link.call_now(Request::Open(Box::new(request))).unwrap();
    assert!(matches!(result, Processed::Failed(_)), "{result:?}");
    assert_eq!(fixture.log().iter().filter(|line| line.starts_with("open 2")).count(), 1);
    assert_eq!(ask(&plugins, PASSWORD).await, Outcome::accepted());
}

#[tokio::test]
async fn other_calls_cannot_be_deferred() {
    let fixture = Fixture::new();
    let plugins = fixture.start("mask=0x10 on=4:defer");
    refused(&ask(&plugins, Kind::TlsVerify).await, "cannot be deferred");
}

#[test]
fn unusable_plugins_are_named() {
    let fixture = Fixture::new();
    let opened = |plugin: PluginFile| fixture.open(vec![plugin], None).unwrap_err().to_string();
    // Names are relative to the directory of `cd`.
    let relative = PluginFile { args: vec!["log=relative".into()], ..fixture.plugin(&[], "") };
    drop(fixture.open(vec![relative], None).unwrap());
    assert!(Path::new(&fixture.path("relative")).exists());
    let missing = PluginFile { file: "/no/where.so".into(), args: vec![], directory: None };
    let error = opened(missing);
    assert!(error.contains("plugin '/no/where.so': it cannot be loaded"), "{error}");
    let error = opened(fixture.plugin(&[], "mask=0x800"));
    assert!(error.contains("OPENVPN_PLUGIN_ENABLE_PF"), "{error}");
    let error = opened(fixture.plugin(&[], "mask=1 open=list"));
    assert!(error.contains("returns directives"), "{error}");
    let error = opened(fixture.plugin(&[], "mask=1 open=fail"));
    assert!(error.contains("its initialization failed"), "{error}");
}

#[tokio::test]
async fn plugins_are_opened_again_and_clients_have_an_end() {
    let fixture = Fixture::new();
    let plugins = fixture.start("mask=0x21");
    assert_eq!(ask(&plugins, PASSWORD).await, Outcome::accepted());
    plugins.end_client(5);
    assert_eq!(ask(&plugins, PASSWORD).await, Outcome::accepted());
    plugins.reopen(vec![("verb".into(), "4".into())]).unwrap();
    assert_eq!(ask(&plugins, PASSWORD).await, Outcome::accepted());
    let log = fixture.log();
    let starts = ["open 2", "new ", "end ", "close"];
    let counts = starts.map(|start| log.iter().filter(|line| line.starts_with(start)).count());
    assert_eq!(counts, [2, 3, 2, 1]);
    assert!(fixture.is_logged("open env verb=4"));
}

#[tokio::test]
async fn the_host_becomes_the_configured_user() {
    adit_testbed::needs_root!();
    let fixture = Fixture::new();
    let two = [fixture.plugin(&[], "mask=0x21"), fixture.plugin(&["POINT=4"], "mask=0x2")];
    let plugins = fixture.open(two.to_vec(), Some("nobody")).unwrap();
    plugins.watch().unwrap();
    let nobody = adit_linux::privileges::find_user("nobody").unwrap().0;
    assert_eq!(ask(&plugins, Kind::Up).await, Outcome::accepted());
    assert!(fixture.is_logged("call 0 uid=0 client=client-0"));
    assert!(!plugins.wants(Kind::Down));
    assert!(!fixture.is_logged(&format!("open 2 uid={nobody}")));
    plugins.become_user(Vec::new()).await.unwrap();
    assert!(plugins.wants(Kind::Down));
    assert!(fixture.is_logged(&format!("open 2 uid={nobody}")));
    assert_eq!(ask(&plugins, PASSWORD).await, Outcome::accepted());
    assert!(fixture.is_logged(&format!("call 5 uid={nobody} client=client-0")));
}

#[tokio::test]
async fn a_challenges_answer_reaches_the_plugin_with_the_files_of_the_check() {
    let fixture = Fixture::new();
    let plugins = fixture.start("mask=0x8020 on=5:defer on=15:defer1now");
    let asked = tokio::spawn({
        let plugins = plugins.clone();
        async move { ask(&plugins, PASSWORD).await }
    });
    until("the files are there", || fixture.files() == 3).await;
    let answer = Call { args: vec!["c2VjcmV0".into()], ..call(Kind::ClientCrResponse) };
    assert_eq!(plugins.call(answer, &mut |_| {}).await, Outcome::accepted());
    assert!(fixture.is_logged("call 15 arg 1=c2VjcmV0"));
    assert_eq!(asked.await.unwrap(), Outcome::accepted());
}

#[test]
fn a_static_build_refuses_plugins_by_name() {
    check_build("auth.so", true).unwrap();
    let refusal = check_build("auth.so", false).unwrap_err().to_string();
    assert!(refusal.starts_with("plugin 'auth.so': ") && refusal.contains("glibc"), "{refusal}");
}
