//! Programs in a runner that is a task of the test.

use std::fs;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use adit_linux::channel::{Channel, Received};
use adit_testbed::wait;
use tempfile::TempDir;
use zeroize::Zeroizing;

use super::client::Shared;
use super::protocol::{MESSAGE_LIMIT, Order};
use super::*;

const SOON: Duration = Duration::from_secs(30);

struct Bed {
    folder: TempDir,
    shared: Arc<Shared>,
    control: Channel,
    runner: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Bed {
    /// Starts a runner that may run `sh` with any of these scripts.
    fn new(scripts: &[&str]) -> Self {
        // As in the runner process.
        adit_linux::descriptors::close_on_exec_from(3).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let setup = Setup {
            programs: scripts.iter().map(|script| shell(script)).collect(),
            variables: Variables { prefixes: ["X_".into()].into(), ..Variables::default() },
            temporary: folder.path().to_owned(),
            ..Setup::default()
        };
        let (control, theirs) = Channel::pair(MESSAGE_LIMIT).unwrap();
        let (calls, served) = Channel::pair(MESSAGE_LIMIT).unwrap();
        let order = serde_json::to_vec(&Order::Configure(setup)).unwrap();
        control.send(&order, &[served.as_fd()]).unwrap();
        drop(served);
        let runner = tokio::spawn(runner::serve(theirs));
        let shared = Shared::new(calls.into()).unwrap();
        Self { folder, shared, control, runner }
    }

    /// Replaces the setup, and waits until it is in force.
    async fn configure(&self, setup: Setup) {
        let order = serde_json::to_vec(&Order::Configure(setup)).unwrap();
        self.control.send(&order, &[]).unwrap();
        let mut answers = 0;
        until("both setups are answered", || {
            answers +=
                u32::from(matches!(self.control.receive(MESSAGE_LIMIT), Ok(Received::Message(..))));
            answers == 2
        })
        .await;
    }

    fn run(&self, call: Call) -> Running {
        self.shared.run(call)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Returns the number of files in the directory.
    fn count(&self) -> usize {
        fs::read_dir(self.folder.path()).unwrap().count()
    }
}

fn shell(script: &str) -> Program {
    Program { path: "/bin/sh".into(), args: vec!["-c".into(), script.into()] }
}

fn call(script: &str) -> Call {
    Call {
        program: shell(script),
        args: Vec::new(),
        env: Vec::new(),
        files: Vec::new(),
        timeout: Some(SOON * 4),
    }
}

fn argument() -> ScratchFile {
    ScratchFile::argument(None)
}

async fn status(script: &str) -> ExitStatus {
    Bed::new(&[script]).run(call(script)).await.status
}

fn not_started(status: &ExitStatus) -> &str {
    match status {
        ExitStatus::NotStarted(why) => why,
        other => panic!("{other}"),
    }
}

/// Waits for a condition while programs run.
async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = wait::ScaledInstant::now();
    while !condition() {
        assert!(deadline.elapsed() < SOON, "{what}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

#[tokio::test]
async fn a_program_ends_with_its_status() {
    assert_eq!(status("exit 0").await, ExitStatus::Code(0));
    assert_eq!(status("exit 3").await, ExitStatus::Code(3));
    assert_eq!(status("kill -9 $$").await, ExitStatus::Signal(9));
    assert_eq!(status("echo to stdout; echo to stderr >&2").await, ExitStatus::Code(0));
}

#[tokio::test]
async fn a_program_gets_exactly_its_arguments_variables_and_descriptors() {
    let script = "echo \"$@\" > \"$2\"; env >> \"$2\"; ls /proc/self/fd >> \"$2\"; cat >> \"$2\"";
    let bed = Bed::new(&[script]);
    let mut call = call(script);
    call.args = vec!["zero".into(), "one 'two'".into()];
    call.env = vec![("X_A".into(), "b c=d".into())];
    call.files = vec![argument()];
    let finished = bed.run(call).await;
    assert_eq!(finished.status, ExitStatus::Code(0));
    let text = String::from_utf8(finished.files[0].content()).unwrap();
    let mut lines: Vec<&str> = text.lines().collect();
    assert!(lines.remove(0).starts_with("one 'two' /"), "{text}");
    // The shell sets these itself.
    lines.retain(|line| !["PWD=", "_=", "SHLVL=", "OLDPWD="].iter().any(|v| line.starts_with(v)));
    // `ls` opens the directory as descriptor 3.
    assert_eq!(lines, ["X_A=b c=d", "0", "1", "2", "3"]);
}

#[tokio::test]
async fn a_program_that_cannot_be_executed_is_not_started() {
    let folder = tempfile::tempdir().unwrap();
    let file = |name: &str, text: &str, mode| {
        let path = folder.path().join(name);
        fs::write(&path, text).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        path
    };
    let end = async |path: &Path| {
        let program = Program { path: path.to_str().unwrap().into(), args: Vec::new() };
        let bed = Bed::new(&[]);
        bed.configure(Setup { programs: [program.clone()].into(), ..Setup::default() }).await;
        bed.run(Call { program, ..call("") }).await.status
    };
    let missing = end(&folder.path().join("missing")).await;
    assert!(not_started(&missing).contains("No such file"), "{missing}");
    let plain = end(&file("plain", "#!/bin/sh\n", 0o600)).await;
    assert!(not_started(&plain).contains("Permission denied"), "{plain}");
    let directory = end(folder.path()).await;
    assert!(not_started(&directory).contains("Permission denied"), "{directory}");
    let without_interpreter = end(&file("text", "exit 0\n", 0o755)).await;
    assert!(not_started(&without_interpreter).contains("format"), "{without_interpreter}");
    // As with openvpn, the operator answers for the modes of programs.
    let writable = end(&file("writable", "#!/bin/sh\nexit 4\n", 0o777)).await;
    assert_eq!(writable, ExitStatus::Code(4));
}

#[tokio::test]
async fn only_named_programs_and_permitted_variables_pass() {
    let bed = Bed::new(&["exit 0"]);
    let other = bed.run(call("exit 1")).await.status;
    assert!(not_started(&other).contains("does not name it"), "{other}");
    let mut preload = call("exit 0");
    preload.env = vec![("LD_PRELOAD".into(), "/tmp/x.so".into())];
    let preload = bed.run(preload).await.status;
    assert!(not_started(&preload).contains("LD_PRELOAD"), "{preload}");
    let mut nul = call("exit 0");
    nul.env = vec![("X_A".into(), "a\0b".into())];
    let nul = bed.run(nul).await.status;
    assert!(not_started(&nul).contains("nul"), "{nul}");
    let mut large = call("exit 0");
    large.args = vec!["x".repeat(MESSAGE_LIMIT)];
    let large = bed.run(large).await.status;
    assert!(not_started(&large).contains("too large"), "{large}");
}

#[tokio::test]
async fn an_endless_program_is_killed_with_its_children_when_its_time_is_over() {
    let script = "sleep 1000 & echo $! > \"$0\"; wait";
    let bed = Bed::new(&[script]);
    let mut endless = call(script);
    endless.files = vec![argument()];
    endless.timeout = Some(Duration::from_millis(500));
    let finished = bed.run(endless).await;
    assert_eq!(finished.status, ExitStatus::TimedOut);
    let child = String::from_utf8(finished.files[0].content()).unwrap();
    let child = PathBuf::from(format!("/proc/{}/cmdline", child.trim()));
    // A process that is not waited for yet has no command line.
    until("the child is killed", || fs::read(&child).unwrap_or_default().is_empty()).await;
}

#[tokio::test]
async fn a_program_is_killed_on_demand() {
    let script = "echo > \"$0/started\"; sleep 1000";
    let bed = Bed::new(&[script]);
    let mut endless = call(script);
    endless.args = vec![bed.folder.path().to_str().unwrap().into()];
    let mut running = bed.run(endless);
    tokio::select! {
        finished = &mut running => panic!("{finished:?}"),
        () = until("the program runs", || bed.path("started").exists()) => {}
    }
    running.kill();
    assert_eq!(running.await.status, ExitStatus::Signal(9));
}

#[tokio::test]
async fn output_without_end_delays_no_other_program() {
    let bed = Bed::new(&["yes", "exit 5"]);
    let mut verbose = call("yes");
    verbose.timeout = Some(Duration::from_secs(1));
    let (verbose, other) = tokio::join!(bed.run(verbose), bed.run(call("exit 5")));
    assert_eq!(verbose.status, ExitStatus::TimedOut);
    assert_eq!(other.status, ExitStatus::Code(5));
}

/// A program may leave another one running, which keeps the pipe for output open.
#[tokio::test]
async fn a_program_ends_although_its_child_goes_on() {
    let script = "read line < \"$0/pipe\" & exit 6";
    let bed = Bed::new(&[script]);
    let pipe = bed.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut leaves = call(script);
    leaves.args = vec![bed.folder.path().to_str().unwrap().into()];
    assert_eq!(bed.run(leaves).await.status, ExitStatus::Code(6));
    fs::OpenOptions::new().write(true).open(&pipe).unwrap().write_all(b"go\n").unwrap();
}

#[tokio::test]
async fn a_hundred_programs_run_and_more_wait() {
    let script = "echo > \"$0/$$\"; read line < \"$0/pipe\"; exit 0";
    let bed = Bed::new(&[script]);
    let pipe = bed.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut all = tokio::task::JoinSet::new();
    for _ in 0..MAX_RUNNING + 20 {
        let mut waits = call(script);
        waits.args = vec![bed.folder.path().to_str().unwrap().into()];
        all.spawn(bed.run(waits));
    }
    until("all that may run are running", || bed.count() == MAX_RUNNING + 1).await;
    // No further one starts meanwhile.
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(bed.count(), MAX_RUNNING + 1);
    let mut ended = 0;
    while ended < MAX_RUNNING + 20 {
        // Programs that have opened the pipe by now end when it is closed again.
        let opened = fs::OpenOptions::new().read(true).write(true).open(&pipe);
        tokio::time::sleep(Duration::from_millis(20)).await;
        drop(opened);
        while let Ok(Some(finished)) =
            tokio::time::timeout(Duration::from_millis(20), all.join_next()).await
        {
            assert_eq!(finished.unwrap().status, ExitStatus::Code(0));
            ended += 1;
        }
    }
    assert_eq!(bed.count(), MAX_RUNNING + 20 + 1, "each of them ran");
}

#[tokio::test]
async fn files_come_back_and_are_removed_with_their_values() {
    let script = "cat \"$X_IN\" > \"$1\"; rm \"$X_GONE\"; stat -c %a \"$1\" >> \"$1\"";
    let bed = Bed::new(&[script]);
    let mut reads = call(script);
    reads.args = vec!["zero".into()];
    let secret = Some(Zeroizing::new(b"alice\nsecret\n".to_vec()));
    reads.files = vec![
        ScratchFile::variable("X_IN", secret),
        argument(),
        ScratchFile::variable("X_GONE", None),
    ];
    let finished = bed.run(reads).await;
    assert_eq!(finished.status, ExitStatus::Code(0));
    assert_eq!(finished.files[1].content(), b"alice\nsecret\n600\n");
    assert!(finished.files[2].content().is_empty());
    assert_eq!(bed.count(), 2, "one was removed by the program");
    drop(finished);
    until("the files are removed", || bed.count() == 0).await;
}

#[tokio::test]
async fn a_deferred_answer_arrives_when_it_is_written() {
    let script = "(read line < \"$0/pipe\"; echo 1 > \"$X_ANSWER\") & exit 2";
    let bed = Bed::new(&[script]);
    let pipe = bed.path("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    let mut defers = call(script);
    defers.args = vec![bed.folder.path().to_str().unwrap().into()];
    defers.files = vec![ScratchFile::variable("X_ANSWER", None)];
    let mut finished = bed.run(defers).await;
    assert_eq!(finished.status, ExitStatus::Code(2));
    let answer = &mut finished.files[0];
    assert!(answer.content().is_empty());
    fs::OpenOptions::new().write(true).open(&pipe).unwrap().write_all(b"go\n").unwrap();
    let mut content = answer.changed().await;
    while content.is_empty() {
        // The shell creates the file before it writes.
        content = answer.changed().await;
    }
    assert_eq!((content, answer.is_truncated()), (b"1\n".to_vec(), false));
}

#[tokio::test]
async fn a_file_that_cannot_be_created_is_named() {
    let bed = Bed::new(&["exit 0"]);
    bed.configure(Setup {
        programs: [shell("exit 0")].into(),
        temporary: "/no/such/directory".into(),
        ..Setup::default()
    })
    .await;
    let mut wants = call("exit 0");
    wants.files = vec![argument()];
    let status = bed.run(wants).await.status;
    assert!(not_started(&status).contains("/no/such/directory"), "{status}");
}

#[tokio::test]
async fn programs_end_with_the_network_process() {
    let script = "echo $$ > \"$0/pid\"; exec sleep 1000";
    let bed = Bed::new(&[script]);
    let mut endless = call(script);
    endless.args = vec![bed.folder.path().to_str().unwrap().into()];
    let running = tokio::spawn(bed.run(endless));
    let written = || fs::read_to_string(bed.path("pid")).unwrap_or_default();
    until("the program runs", || written().ends_with('\n')).await;
    let process = PathBuf::from(format!("/proc/{}/cmdline", written().trim()));
    assert!(!fs::read(&process).unwrap().is_empty());
    running.abort();
    let _ = running.await;
    let Bed { folder, shared, control, runner } = bed;
    shared.disconnect();
    runner.await.unwrap().unwrap();
    until("the program is killed", || fs::read(&process).unwrap_or_default().is_empty()).await;
    drop((control, folder));
}

#[tokio::test]
async fn calls_fail_when_the_runner_has_ended() {
    let bed = Bed::new(&["sleep 5"]);
    let running = bed.run(call("sleep 5"));
    let ended = async {
        tokio::time::sleep(Duration::from_millis(200)).await;
        bed.runner.abort();
    };
    let (finished, ()) = tokio::join!(running, ended);
    assert!(not_started(&finished.status).contains("runner"), "{finished:?}");
    let again = bed.run(call("sleep 5")).await.status;
    assert!(not_started(&again).contains("runner"), "{again}");
}

#[tokio::test]
async fn a_file_may_be_argument_and_variable_and_in_the_directory_for_certificates() {
    let script =
        "[ \"$0\" = \"$X_BOTH\" ] && [ -z \"$1\" ] && printf found > \"$0\" && cat \"$X_PEM\"";
    let bed = Bed::new(&[]);
    let export = bed.path("export");
    fs::create_dir(&export).unwrap();
    bed.configure(Setup {
        programs: [shell(script)].into(),
        variables: Variables { prefixes: ["X_".into()].into(), ..Variables::default() },
        temporary: bed.folder.path().to_owned(),
        export: Some(export.clone()),
        ..Setup::default()
    })
    .await;
    let mut both = call(script);
    both.files = vec![
        ScratchFile::new(Place::ArgumentAndVariable("X_BOTH"), None),
        ScratchFile::variable("X_PEM", None).exported(),
    ];
    let finished = bed.run(both).await;
    assert!(finished.status.is_success(), "{}", finished.status);
    let paths: Vec<PathBuf> = finished.files.iter().map(Scratch::path).collect();
    assert_eq!(finished.files[0].content(), b"found");
    assert_eq!(paths[0].parent(), Some(bed.folder.path()));
    assert_eq!(paths[1].parent(), Some(export.as_path()));
    assert!(paths.iter().all(|path| path.exists()));
}

#[tokio::test]
async fn only_privileged_programs_keep_the_privileges() {
    adit_testbed::needs_root!();
    let (plain, kept) = ("id -u > \"$0\"; id -G >> \"$0\"", "id -u > \"$0\"");
    let bed = Bed::new(&[]);
    // The unprivileged user must reach its file.
    fs::set_permissions(bed.folder.path(), fs::Permissions::from_mode(0o711)).unwrap();
    let setup = Setup {
        programs: [shell(plain), shell(kept)].into(),
        privileged: [shell(kept)].into(),
        temporary: bed.folder.path().to_owned(),
        user: Some("nobody".into()),
        ..Setup::default()
    };
    bed.configure(setup).await;
    let run = async |script| {
        let mut call = call(script);
        call.files = vec![argument()];
        let finished = bed.run(call).await;
        assert!(finished.status.is_success(), "{}", finished.status);
        String::from_utf8(finished.files[0].content()).unwrap()
    };
    assert!(run(plain).await.starts_with("0\n"));
    bed.shared.drop_privileges().await.unwrap();
    let nobody = nix::unistd::User::from_name("nobody").unwrap().unwrap();
    assert_eq!(run(plain).await, format!("{}\n{}\n", nobody.uid, nobody.gid));
    assert_eq!(run(kept).await, "0\n");
}
