//! The runner process, and the trusted side's connection to it.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use adit_linux::channel::{Channel, Received};
use adit_linux::privileges::{change_identity, find_group, find_user};
use nix::unistd::{AccessFlags, Pid};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::{mpsc, oneshot};
use tokio::time::{MissedTickBehavior, interval};

use super::child::{self, Identity, StartError};
use super::protocol::{
    self, Configured, Event, FileContent, MESSAGE_LIMIT, Order, PlainCall, Request,
};
use super::scratch::TemporaryFile;
use super::{ExitStatus, MAX_QUEUED, MAX_RUNNING, NAME, Program, Setup};
use crate::driver::watch;
use crate::fault::Fault;

/// How long the trusted side waits for the runner's answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// How often the files of deferred calls are examined.
const POLL: Duration = Duration::from_millis(100);

/// The number of messages that always have room, because each call has one at its end.
pub(super) const RESERVED: usize = MAX_RUNNING + MAX_QUEUED;

/// The maximum number of messages that wait for the network process. Beyond it, changes of files wait too, and lines are
/// lost.
const OUTGOING: usize = 2 * RESERVED;

/// The maximum number of refused requests that are logged. Further ones are counted.
const REFUSALS_LOGGED: u64 = 20;

/// The trusted side's connection to the runner.
#[derive(Debug)]
pub(crate) struct Control(Channel);

impl Control {
    /// Starts the runner. Returns also the descriptor over which the network process sends its calls.
    ///
    /// # Errors
    /// The process cannot be started, or the setup is wrong.
    pub(crate) fn start(setup: &Setup) -> Result<(Self, OwnedFd), Fault> {
        let failed =
            |e: io::Error| Fault::environment(format!("programs: runner not started: {e}"));
        let (ours, theirs) = Channel::pair(MESSAGE_LIMIT).map_err(failed)?;
        let (calls, served) = Channel::pair(MESSAGE_LIMIT).map_err(failed)?;
        // Its end is noticed on the channel.
        Command::new("/proc/self/exe")
            .arg0(NAME)
            .env_clear()
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .spawn()
            .map_err(failed)?;
        let control = Self(ours);
        control.send(setup, Some(OwnedFd::from(served)))?;
        Ok((control, calls.into()))
    }

    /// Replaces the settings. The user and the root directory stay once they are in force.
    ///
    /// # Errors
    /// A program cannot be run, or the runner is gone.
    pub(crate) fn configure(&self, setup: &Setup) -> Result<(), Fault> {
        self.send(setup, None)
    }

    fn send(&self, setup: &Setup, calls: Option<OwnedFd>) -> Result<(), Fault> {
        let failed = |e: io::Error| Fault::environment(format!("programs: runner: {e}"));
        let bytes = serde_json::to_vec(&Order::Configure(setup.clone()))
            .map_err(|e| Fault::ours(format!("programs: setup not passed: {e}")))?;
        let descriptors: Vec<_> = calls.iter().map(AsFd::as_fd).collect();
        self.0.send(&bytes, &descriptors).map_err(failed)?;
        let until = Instant::now() + PATIENCE;
        let answer = loop {
            match self.0.receive(MESSAGE_LIMIT) {
                Ok(Received::Message(bytes, _)) => break bytes,
                Ok(Received::End) => return Err(failed(io::ErrorKind::BrokenPipe.into())),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let left = until.saturating_duration_since(Instant::now());
                    self.0.wait(false, left).map_err(failed)?;
                }
                Err(e) => return Err(failed(e)),
            }
        };
        let Configured { problems } = serde_json::from_slice(&answer)
            .map_err(|e| Fault::ours(format!("programs: runner: invalid answer: {e}")))?;
        match problems.first() {
            None => Ok(()),
            Some((program, problem)) => Err(Fault::operator(format!(
                "the program '{}' cannot be run: {problem}: check its path and mode",
                program.path
            ))),
        }
    }
}

/// Runs the runner if this process was started as one.
pub fn main(arguments: &[OsString]) -> Option<ExitCode> {
    let name = arguments.first().map(Path::new)?;
    (name == Path::new(NAME)).then(|| match start() {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            let _ = writeln!(io::stderr(), "{NAME}: {fault}");
            fault.exit_code()
        }
    })
}

fn start() -> Result<(), Fault> {
    let failed = |what: &'static str| {
        move |e: io::Error| Fault::environment(format!("programs: {what}: {e}"))
    };
    let control = io::stdin().as_fd().try_clone_to_owned().and_then(Channel::from_fd);
    let control = control
        .map_err(|_| Fault::operator(format!("{NAME}: this program is started by adit alone")))?;
    detach().map_err(failed("cannot leave the terminal"))?;
    crate::async_runtime()?.block_on(async {
        let _signals = outlive_signals().map_err(failed("cannot take signals"))?;
        serve(control).await.map_err(failed("runner failed"))
    })
}

/// Leaves the terminal, because its Ctrl-C is for the network process, which decides about running programs. No
/// descriptor that this process has inherited passes to a program.
fn detach() -> io::Result<()> {
    // This fails only for a group leader, which a newly started process is not.
    let _ = nix::unistd::setsid();
    let _ = nix::sys::prctl::set_name(c"adit-runner");
    // Passwords pass through this process.
    nix::sys::prctl::set_dumpable(false)?;
    nix::unistd::dup2_stdin(File::open("/dev/null")?)?;
    adit_linux::descriptors::close_on_exec_from(3)
}

/// Catches the signals that a service manager sends to all processes, because the runner must end only when the network
/// process ends. They are caught rather than ignored, because programs would inherit ignored signals.
fn outlive_signals() -> io::Result<Vec<unix::Signal>> {
    let kinds = [
        SignalKind::interrupt(),
        SignalKind::terminate(),
        SignalKind::hangup(),
        SignalKind::quit(),
        SignalKind::user_defined1(),
        SignalKind::user_defined2(),
    ];
    kinds.into_iter().map(unix::signal).collect()
}

/// Serves both channels until the network process ends.
pub(super) async fn serve(control: Channel) -> io::Result<()> {
    let readable = watched(&control, Interest::READABLE)?;
    let (order, mut descriptors) = loop {
        match control.receive(MESSAGE_LIMIT) {
            Ok(Received::Message(bytes, descriptors)) => break (bytes, descriptors),
            Ok(Received::End) => return Ok(()),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                readable.readable().await?.clear_ready();
            }
            Err(e) => return Err(e),
        }
    };
    let calls = descriptors.pop().ok_or(io::ErrorKind::InvalidInput)?;
    let calls = Channel::from_fd(calls)?;
    let calls_readable = watched(&calls, Interest::READABLE)?;
    let (outgoing, mut messages) = mpsc::channel(OUTGOING);
    let (done, mut ended) = mpsc::channel(MAX_RUNNING);
    let mut runner = Runner::new(outgoing, done);
    runner.order(&control, &order);
    // The helper process may end before the network process.
    let mut controlled = true;
    let mut poll = interval(POLL);
    poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        let open = tokio::select! {
            biased;
            Some(message) = messages.recv() => send(&calls, &message).await,
            Some((id, status)) = ended.recv() => {
                runner.ended(id, status);
                true
            }
            ready = readable.readable(), if controlled => {
                ready?.clear_ready();
                controlled = runner.orders(&control);
                true
            }
            ready = calls_readable.readable() => {
                ready?.clear_ready();
                runner.requests(&calls)
            }
            _ = poll.tick(), if !runner.watched.is_empty() => {
                runner.poll();
                true
            }
        };
        if !open {
            runner.end();
            return Ok(());
        }
    }
}

fn watched(channel: &Channel, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    watch(channel.as_fd().try_clone_to_owned()?, interest)
}

/// Sends a message to the network process. Returns false if that is gone.
async fn send(calls: &Channel, message: &Event) -> bool {
    let Ok(bytes) = serde_json::to_vec(message) else { return true };
    while let Err(e) = calls.send(&bytes, &[]) {
        if e.kind() != io::ErrorKind::WouldBlock || writable(calls).await.is_err() {
            return false;
        }
    }
    true
}

/// Waits until a channel has room for a message.
pub(super) async fn writable(channel: &Channel) -> io::Result<()> {
    watched(channel, Interest::WRITABLE)?.writable().await?.retain_ready();
    Ok(())
}

/// The state of the runner.
struct Runner {
    setup: Setup,
    /// Whether the configured user is in force.
    dropped: bool,
    /// The configured user and group, if this process keeps its own for the privileged programs.
    identity: Option<Identity>,
    outgoing: mpsc::Sender<Event>,
    done: mpsc::Sender<(u64, ExitStatus)>,
    queue: VecDeque<(u64, PlainCall)>,
    running: HashMap<u64, Running>,
    /// The files of calls that have ended, until they are released.
    kept: HashMap<u64, Vec<TemporaryFile>>,
    /// The calls whose files are examined for changes.
    watched: BTreeSet<u64>,
    /// The number of programs that the system's limits allow, once it is known.
    limit: usize,
    refused: u64,
    /// /dev/null, which need not exist in another root directory.
    null: Option<File>,
}

/// A running program.
struct Running {
    group: Option<Pid>,
    stop: Option<oneshot::Sender<()>>,
    files: Vec<TemporaryFile>,
}

impl Runner {
    fn new(outgoing: mpsc::Sender<Event>, done: mpsc::Sender<(u64, ExitStatus)>) -> Self {
        Self {
            setup: Setup::default(),
            dropped: false,
            identity: None,
            outgoing,
            done,
            queue: VecDeque::new(),
            running: HashMap::new(),
            kept: HashMap::new(),
            watched: BTreeSet::new(),
            limit: MAX_RUNNING,
            refused: 0,
            null: File::open("/dev/null").ok(),
        }
    }

    /// Handles the orders that have arrived. Returns false if no more can come.
    fn orders(&mut self, control: &Channel) -> bool {
        loop {
            match control.receive(MESSAGE_LIMIT) {
                Ok(Received::Message(bytes, _)) => self.order(control, &bytes),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Ok(Received::End) | Err(_) => return false,
            }
        }
    }

    /// Takes over new settings and answers with the programs that cannot be run.
    fn order(&mut self, control: &Channel, bytes: &[u8]) {
        let problems = match serde_json::from_slice(bytes) {
            Ok(Order::Configure(setup)) => self.configure(setup),
            Err(e) => {
                let program = Program { path: String::new(), args: Vec::new() };
                vec![(program, format!("invalid setup: {e}"))]
            }
        };
        let answer = serde_json::to_vec(&Configured { problems }).unwrap_or_default();
        // The trusted side waits for it, so there is room.
        let _ = control.send(&answer, &[]);
    }

    fn configure(&mut self, setup: Setup) -> Vec<(Program, String)> {
        // In another root directory, the path would mean another directory.
        let directory = setup.directory.clone().filter(|_| !self.dropped || setup.root.is_none());
        self.setup = setup;
        let entered = directory.map_or(Ok(()), |directory| {
            std::env::set_current_dir(&directory)
                .map_err(|e| format!("working directory {}: {e}", directory.display()))
        });
        let root = self.setup.root.as_deref().filter(|_| !self.dropped);
        let problem = |program: &Program| {
            let problem = match &entered {
                Err(problem) => problem.clone(),
                Ok(()) => inexecutable(&program.path, root)?,
            };
            Some((program.clone(), problem))
        };
        self.setup.programs.iter().filter_map(problem).collect()
    }

    /// Handles the requests that have arrived. Returns false if the network process is gone.
    fn requests(&mut self, calls: &Channel) -> bool {
        loop {
            match calls.receive(MESSAGE_LIMIT) {
                Ok(Received::Message(bytes, _)) => match protocol::parse(&bytes) {
                    Ok(request) => self.request(request),
                    Err(why) => self.refuse(&why),
                },
                Ok(Received::End) => return false,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return true,
                Err(e) => self.refuse(&e.to_string()),
            }
        }
    }

    fn request(&mut self, request: Request) {
        match request {
            Request::Run { id, call } => self.run(id, call),
            Request::Watch(id) => {
                if self.kept.contains_key(&id) {
                    self.watched.insert(id);
                }
            }
            Request::Release(id) => {
                self.kept.remove(&id);
                self.watched.remove(&id);
            }
            Request::Kill(id) => match self.running.get_mut(&id) {
                Some(running) => drop(running.stop.take().map(|stop| stop.send(()))),
                None => {
                    if let Some(place) = self.queue.iter().position(|(queued, _)| *queued == id) {
                        self.queue.remove(place);
                        self.fail(id, "it was stopped before its start".into());
                    }
                }
            },
            Request::DropPrivileges(id) => {
                let outcome = self.drop_privileges();
                self.tell(Event::Dropped { id, outcome });
            }
        }
    }

    fn run(&mut self, id: u64, call: PlainCall) {
        if let Err(why) = call.check(&self.setup) {
            self.refuse(&format!("{}: {why}", call.program.path));
            return self.fail(id, why);
        }
        if self.running.contains_key(&id) || self.kept.contains_key(&id) {
            return self.refuse("a call has the number of another");
        }
        if self.queue.len() >= MAX_QUEUED {
            return self.fail(id, format!("{MAX_QUEUED} programs wait to be run"));
        }
        self.queue.push_back((id, call));
        self.start_queued();
    }

    fn start_queued(&mut self) {
        while self.running.len() < self.limit {
            let Some((id, call)) = self.queue.pop_front() else { return };
            let privileged = self.setup.privileged.contains(&call.program);
            let identity = self.identity.filter(|_| !privileged);
            let files = match child::create_files(&call, &self.setup, identity) {
                Ok(files) => files,
                Err(why) => {
                    self.fail(id, why);
                    continue;
                }
            };
            let null = self.null.as_ref();
            match child::start(&call, &files, null, &self.outgoing, identity) {
                Ok(started) => {
                    let (stop, stopped) = oneshot::channel();
                    let running = Running { group: started.group(), stop: Some(stop), files };
                    self.running.insert(id, running);
                    let done = self.done.clone();
                    tokio::spawn(async move {
                        let status = started.wait(stopped).await;
                        // The receiver is gone only at the end.
                        let _ = done.send((id, status)).await;
                    });
                }
                // The end of a running program makes room.
                Err(StartError::TooMany) if !self.running.is_empty() => {
                    self.limit = self.running.len();
                    self.queue.push_front((id, call));
                }
                Err(StartError::TooMany) => {
                    self.fail(id, "the system allows no more processes: raise TasksMax".into());
                }
                Err(StartError::Failed(why)) => self.fail(id, why),
            }
        }
    }

    fn ended(&mut self, id: u64, status: ExitStatus) {
        let mut files = self.running.remove(&id).map_or_else(Vec::new, |running| running.files);
        let contents: Vec<FileContent> = files.iter_mut().map(TemporaryFile::read).collect();
        if !files.is_empty() {
            self.kept.insert(id, files);
        }
        self.tell(Event::Finished { id, status, files: contents });
        // Fewer programs run, so the limit may allow one more.
        self.limit = self.limit.saturating_add(1).min(MAX_RUNNING);
        self.start_queued();
    }

    fn fail(&self, id: u64, why: String) {
        let status = ExitStatus::NotStarted(why);
        self.tell(Event::Finished { id, status, files: Vec::new() });
    }

    fn refuse(&mut self, why: &str) {
        self.refused = self.refused.saturating_add(1);
        if self.refused <= REFUSALS_LOGGED && self.outgoing.capacity() > RESERVED {
            let text = format!("programs: request refused: {}", crate::log::clean(why));
            self.tell(Event::Line { warning: true, text });
        }
    }

    fn tell(&self, event: Event) {
        // The network process has at most MAX_RUNNING + MAX_QUEUED calls, so this fails only if it breaks that rule.
        let _ = self.outgoing.try_send(event);
    }

    /// Reports the files that have changed. The first file of a call has the answer; whatever the program wrote before
    /// the answer is reported before it.
    fn poll(&mut self) {
        for id in &self.watched {
            let Some(files) = self.kept.get_mut(id) else { continue };
            if self.outgoing.capacity() <= RESERVED + files.len() {
                return;
            }
            let changed =
                |(index, file): (usize, &mut TemporaryFile)| Some((index, file.changed()?));
            let changes: Vec<_> = files.iter_mut().enumerate().filter_map(changed).collect();
            for (index, file) in changes.into_iter().rev() {
                let _ = self.outgoing.try_send(Event::Changed { id: *id, index, file });
            }
        }
    }

    /// Becomes the configured user, in the configured root directory, for good. If there are privileged programs, only
    /// the others become that user.
    fn drop_privileges(&mut self) -> Result<(), String> {
        if std::mem::replace(&mut self.dropped, true) {
            return Ok(());
        }
        let Setup { user, group, root, privileged, .. } = &self.setup;
        let user = user.as_deref().map(find_user).transpose().map_err(|e| e.to_string())?;
        let group = group.as_deref().map(find_group).transpose().map_err(|e| e.to_string())?;
        let group = group.or(user.map(|(_, own)| own));
        let user = user.map(|(user, _)| user);
        match (privileged.is_empty(), root) {
            (true, root) => {
                change_identity(root.as_deref(), group, user).map_err(|e| e.to_string())
            }
            (false, None) => {
                self.identity = Some(Identity { user, group });
                Ok(())
            }
            (false, Some(_)) => {
                Err("a privileged program cannot be outside a root directory".into())
            }
        }
    }

    /// Kills the programs that still run. Their files are removed with this value.
    fn end(&mut self) {
        self.running.values().filter_map(|running| running.group).for_each(child::kill);
    }
}

/// Returns the reason why a program cannot be executed, as openvpn reports it at the start. Some programs run before the
/// root directory changes, and others afterwards.
fn inexecutable(path: &str, root: Option<&Path>) -> Option<String> {
    let inside = root.map(|root| root.join(path.trim_start_matches('/')));
    let problem = |path: &Path| match nix::unistd::access(path, AccessFlags::X_OK) {
        Ok(()) if path.is_dir() => Some("it is a directory".to_owned()),
        Ok(()) => None,
        Err(e) => Some(io::Error::from(e).to_string()),
    };
    let outside = problem(Path::new(path))?;
    inside.map_or(Some(outside), |inside| problem(&inside))
}

#[cfg(test)]
mod tests {
    use super::super::Variables;
    use super::*;

    fn call() -> PlainCall {
        PlainCall {
            program: Program { path: "/bin/true".into(), args: Vec::new() },
            args: Vec::new(),
            env: Vec::new(),
            files: Vec::new(),
            timeout: None,
        }
    }

    fn runner() -> (Runner, mpsc::Receiver<Event>) {
        let (outgoing, sent) = mpsc::channel(OUTGOING);
        let mut runner = Runner::new(outgoing, mpsc::channel(1).0);
        let programs = [call().program].into();
        runner.setup = Setup { programs, variables: Variables::default(), ..Setup::default() };
        (runner, sent)
    }

    fn failures(sent: &mut mpsc::Receiver<Event>) -> Vec<String> {
        let mut texts = Vec::new();
        while let Ok(event) = sent.try_recv() {
            if let Event::Finished { status: ExitStatus::NotStarted(why), .. } = event {
                texts.push(why);
            }
        }
        texts
    }

    #[test]
    fn calls_beyond_the_queue_fail() {
        let (mut runner, mut sent) = runner();
        runner.limit = 0;
        let queued = MAX_QUEUED as u64;
        (0..queued).for_each(|id| runner.run(id, call()));
        assert!(failures(&mut sent).is_empty());
        runner.run(queued, call());
        assert!(failures(&mut sent)[0].contains("wait"));
        runner.request(Request::Kill(7));
        assert!(failures(&mut sent)[0].contains("before its start"));
        runner.run(queued + 1, call());
        assert!(failures(&mut sent).is_empty(), "there is room again");
    }

    #[test]
    fn refused_requests_are_counted() {
        let (mut runner, mut sent) = runner();
        let other = Program { path: "/bin/sh".into(), args: Vec::new() };
        for id in 0..REFUSALS_LOGGED + 5 {
            runner.run(id, PlainCall { program: other.clone(), ..call() });
        }
        assert_eq!(runner.refused, REFUSALS_LOGGED + 5);
        let mut logged = 0;
        while let Ok(event) = sent.try_recv() {
            logged += u64::from(matches!(event, Event::Line { warning: true, .. }));
        }
        assert_eq!(logged, REFUSALS_LOGGED);
    }

    #[test]
    fn a_program_that_cannot_be_executed_is_found_at_the_start() {
        let (mut runner, _sent) = runner();
        let program = |path: &str| Program { path: path.into(), args: Vec::new() };
        let setup = Setup {
            programs: ["/bin/true", "/etc/passwd", "/etc", "/none"].map(program).into(),
            ..Setup::default()
        };
        let problems = runner.configure(setup);
        let problems: Vec<_> =
            problems.iter().map(|(program, why)| format!("{} {why}", program.path)).collect();
        assert_eq!(problems.len(), 3, "{problems:?}");
        assert!(problems[0].starts_with("/etc it is a directory"), "{problems:?}");
        assert!(problems[1].contains("Permission denied"), "{problems:?}");
        assert!(problems[2].contains("No such file"), "{problems:?}");
        let setup = Setup { directory: Some("/none".into()), ..runner.setup.clone() };
        assert!(runner.configure(setup).iter().all(|(_, why)| why.contains("working directory")));
    }
}
