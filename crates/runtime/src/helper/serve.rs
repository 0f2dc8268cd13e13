//! The helper process.

use std::collections::HashSet;
use std::fs::File;
use std::io::{self, Read, Write};
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use adit_linux::channel::{Channel, Received};
use adit_linux::privileges::{Capability, Privileges, Violation, protect_memory};
use adit_linux::tun::TunOffloads;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::signal::unix::{self, SignalKind};
use tokio::sync::Semaphore;
use tracing::Level;

use super::policy::Policy;
use super::protocol::{
    self, Answer, DeviceRequest, HelperMessage, MESSAGE_LIMIT, NumberedRequest, Problem, Request,
};
use super::{AnswerWithFds, Duty, DutyKind, root_files, sockets};
use crate::driver::watch;
use crate::fault::Fault;
use crate::host::{Host, HostEvent};
use crate::log;
use crate::programs;

/// The capabilities that the helper keeps, as far as it was started with them.
const CAPABILITIES: [Capability; 6] = [
    // For devices, addresses, routes, nft and marks.
    Capability::CAP_NET_ADMIN,
    // For sockets bound to a device, on kernels before 5.7.
    Capability::CAP_NET_RAW,
    // For ports below 1024.
    Capability::CAP_NET_BIND_SERVICE,
    // For files in other users' directories, which the configuration may name.
    Capability::CAP_DAC_OVERRIDE,
    // For files that keep their owner when they are replaced.
    Capability::CAP_CHOWN,
    Capability::CAP_FOWNER,
];

/// The maximum number of refused requests that are logged. Further ones are counted.
const REFUSALS_LOGGED: u64 = 20;

/// The maximum number of servers that a client may keep reachable at a time.
const REMOTES_LIMIT: usize = 1024;

/// The maximum number of file requests that may wait while a file system hangs.
const FILES_WAITING: usize = 256;

/// The number of threads that open files, so that a file that hangs does not delay routes.
const FILE_THREADS: usize = 1;

pub(super) fn main(kinds: &[DutyKind]) -> ExitCode {
    match run(kinds) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            let _ = writeln!(io::stderr(), "{}: {fault}", super::NAME);
            fault.exit_code()
        }
    }
}

fn run(kinds: &[DutyKind]) -> Result<(), Fault> {
    let failed =
        |what: &'static str| move |e: io::Error| Fault::environment(format!("helper: {what}: {e}"));
    let channel = io::stdin().as_fd().try_clone_to_owned().and_then(Channel::from_fd);
    let channel = Arc::new(channel.map_err(|_| {
        Fault::operator(format!("{}: this program is started by adit alone", super::NAME))
    })?);
    detach().map_err(failed("cannot leave the terminal"))?;
    forward_log(&channel);
    // Read the parent's id before the parent can end, because later it would be another process.
    let parent = nix::unistd::getppid().as_raw().unsigned_abs();
    let (id, duty, piped) = beginning(&channel, kinds)?;
    let began = duty.policy(&piped, parent).and_then(|policy| {
        // The programs may need privileges that this process drops now.
        let runner = policy.programs.as_ref().map(programs::Control::start).transpose()?;
        Ok((policy, runner))
    });
    let (begun, outcome) = match began {
        Ok(begun) => (Some(begun), Ok(Answer::Done)),
        Err(fault) => (None, Err(Problem::Fault(fault))),
    };
    drop_privileges(&*duty)?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(FILE_THREADS)
        .build()
        .map_err(failed("cannot start"))?;
    runtime.block_on(async {
        let _signals = outlive_signals().map_err(failed("cannot take signals"))?;
        let watched = channel
            .as_fd()
            .try_clone_to_owned()
            .and_then(|fd| watch(fd, Interest::READABLE | Interest::WRITABLE));
        let sender =
            Arc::new(MessageSender { channel, watched: watched.map_err(failed("no channel"))? });
        let Some((policy, runner)) = begun else {
            sender.answer(id, outcome, Vec::new()).await;
            return Ok(());
        };
        let (runner, calls) = runner.unzip();
        sender.answer(id, outcome, calls.into_iter().collect()).await;
        let files = Arc::new(Semaphore::new(FILES_WAITING));
        let mut server = Server {
            sender,
            duty,
            piped,
            policy,
            files,
            host: None,
            network_process: parent,
            remotes: HashSet::new(),
            mark: None,
            refused: 0,
            runner,
        };
        server.serve().await;
        // The network process is gone. If it was killed, there are changes to undo. After an orderly end there are
        // none.
        if let Some(host) = server.host.take() {
            host.abandon().await;
        }
        let refused = server.refused;
        // A command's own changes are undone when its duty is dropped.
        drop(server);
        if refused > 0 {
            tracing::warn!("helper: {refused} requests refused in all");
        }
        Ok(())
    })
}

/// Detaches from the terminal, because its Ctrl-C is for the network process, and from the channel on standard input,
/// which started programs would inherit.
fn detach() -> io::Result<()> {
    // This fails only for a group leader, which a newly started process is not.
    let _ = nix::unistd::setsid();
    let _ = nix::sys::prctl::set_name(c"adit-helper");
    protect_memory()?;
    Ok(nix::unistd::dup2_stdin(File::open("/dev/null")?)?)
}

/// Catches the signals that a service manager sends to both processes, because the helper must end only when the
/// network process ends. They are caught rather than ignored, because started programs would inherit ignored signals.
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

/// Sends log lines to the network process, which writes the log. Without a network process they go to standard error.
fn forward_log(channel: &Arc<Channel>) {
    let channel = Arc::clone(channel);
    log::forward(move |level, verb, text| {
        let code = match level {
            Level::ERROR => 0,
            Level::WARN => 1,
            _ => 2,
        };
        let line = HelperMessage::Line { level: code, verb, text: text.to_owned() };
        let sent = serde_json::to_vec(&line).map_err(io::Error::other);
        let sent = sent.and_then(|bytes| channel.send(&bytes, &[]));
        if sent.is_err() && code < 2 {
            let _ = writeln!(io::stderr(), "{}: {text}", super::NAME);
        }
    });
}

type PipedFiles = Vec<(PathBuf, Vec<u8>)>;

/// Waits for the first request.
fn beginning(
    channel: &Channel,
    kinds: &[DutyKind],
) -> Result<(u64, Box<dyn Duty>, PipedFiles), Fault> {
    let odd = |what: String| Fault::ours(format!("helper: first request: {what}"));
    let (bytes, descriptors) = loop {
        match channel.receive(MESSAGE_LIMIT) {
            Ok(Received::Message(bytes, descriptors)) => break (bytes, descriptors),
            Ok(Received::End) => return Err(odd("none came".into())),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                channel
                    .wait(false, std::time::Duration::from_secs(60))
                    .map_err(|e| odd(e.to_string()))?;
            }
            Err(e) => return Err(odd(e.to_string())),
        }
    };
    let NumberedRequest { id, request } = protocol::parse(&bytes).map_err(odd)?;
    let Request::Begin { duty, arguments, piped } = request else {
        return Err(odd("another one".into()));
    };
    let kind = kinds.iter().find(|kind| kind.name == duty);
    let kind = kind.ok_or_else(|| odd(format!("unknown command {duty:?}")))?;
    let duty = (kind.read)(arguments).map_err(|e| odd(e.to_string()))?;
    if piped.len() != descriptors.len() {
        return Err(odd("descriptors are missing".into()));
    }
    let mut contents = Vec::new();
    for (path, descriptor) in piped.into_iter().zip(descriptors) {
        let mut bytes = Vec::new();
        File::from(descriptor).read_to_end(&mut bytes).map_err(|e| odd(e.to_string()))?;
        contents.push((path, bytes));
    }
    Ok((id, duty, contents))
}

/// Drops all but a few capabilities, and all system calls but those of a daemon that starts programs or opens ports.
fn drop_privileges(duty: &dyn Duty) -> Result<(), Fault> {
    let held = adit_linux::privileges::held().map_err(|e| Fault::environment(e.to_string()))?;
    let keep = CAPABILITIES.into_iter().filter(|capability| held.contains(capability)).collect();
    let seccomp = Some((duty.profile(), Violation::Refuse));
    let privileges = Privileges { keep, seccomp, ..Privileges::default() };
    privileges.drop().map_err(|e| Fault::environment(e.to_string()))
}

/// The sending side of the channel to the network process.
struct MessageSender {
    channel: Arc<Channel>,
    watched: AsyncFd<OwnedFd>,
}

impl MessageSender {
    async fn answer(&self, id: u64, outcome: Result<Answer, Problem>, descriptors: Vec<OwnedFd>) {
        let borrowed: Vec<_> = descriptors.iter().map(AsFd::as_fd).collect();
        self.send(&HelperMessage::Answer { id, outcome }, &borrowed).await;
    }

    async fn send(&self, told: &HelperMessage, descriptors: &[BorrowedFd<'_>]) {
        let Ok(bytes) = serde_json::to_vec(told) else { return };
        while let Err(e) = self.channel.send(&bytes, descriptors) {
            if e.raw_os_error() == Some(nix::libc::EMSGSIZE) {
                let HelperMessage::Answer { id, .. } = told else { return };
                let told = HelperMessage::Answer { id: *id, outcome: Err(Problem::of(&e)) };
                // The error answer is short enough, and the original one was not sent.
                let _ = serde_json::to_vec(&told).map(|bytes| self.channel.send(&bytes, &[]));
                return;
            }
            if e.kind() != io::ErrorKind::WouldBlock {
                // The receiving side notices the end of the network process.
                return;
            }
            let Ok(mut ready) = self.watched.writable().await else { return };
            ready.clear_ready();
        }
    }
}

struct Server {
    sender: Arc<MessageSender>,
    duty: Box<dyn Duty>,
    piped: PipedFiles,
    policy: Policy,
    files: Arc<Semaphore>,
    host: Option<Host>,
    /// The id of the network process.
    network_process: u32,
    /// The servers that are kept reachable.
    remotes: HashSet<IpAddr>,
    /// The mark of the transport's sockets.
    mark: Option<u32>,
    refused: u64,
    /// The connection to the runner of programs.
    runner: Option<programs::Control>,
}

/// Waits for an event of the host, if there is a device.
async fn wait_for_event(host: &mut Option<Host>) -> HostEvent {
    match host {
        Some(host) => host.event().await,
        None => std::future::pending().await,
    }
}

impl Server {
    /// Serves requests in order until the network process ends.
    async fn serve(&mut self) {
        loop {
            match self.sender.channel.receive(MESSAGE_LIMIT) {
                // Only the first request has descriptors.
                Ok(Received::Message(bytes, _)) => self.take(&bytes).await,
                Ok(Received::End) => return,
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    tokio::select! {
                        biased;
                        ready = self.sender.watched.readable() => match ready {
                            Ok(mut ready) => ready.clear_ready(),
                            Err(e) => return tracing::error!("helper: channel failed: {e}"),
                        },
                        event = wait_for_event(&mut self.host) => {
                            self.sender.send(&HelperMessage::Event(event), &[]).await;
                        }
                    }
                }
                Err(e) => self.refuse(&e.to_string()),
            }
        }
    }

    fn refuse(&mut self, why: &str) {
        self.refused = self.refused.saturating_add(1);
        if self.refused <= REFUSALS_LOGGED {
            tracing::error!("helper: request refused: {why}");
        }
    }

    async fn take(&mut self, bytes: &[u8]) {
        let NumberedRequest { id, request } = match protocol::parse(bytes) {
            Ok(asked) => asked,
            Err(why) => return self.refuse(&why),
        };
        if let Err(why) = self.policy.check(&request) {
            self.refuse(&why);
            return self.sender.answer(id, Err(Problem::Refused(why)), Vec::new()).await;
        }
        if let Some(work) = file_work(&request) {
            let sender = Arc::clone(&self.sender);
            let Ok(place) = Arc::clone(&self.files).try_acquire_owned() else {
                self.refuse("too many files wait to be opened");
                let busy = Problem::System(nix::libc::EAGAIN);
                return sender.answer(id, Err(busy), Vec::new()).await;
            };
            tokio::spawn(async move {
                let done = tokio::task::spawn_blocking(work).await;
                let done = done.unwrap_or_else(|e| Err(Fault::ours(e.to_string()).into()));
                drop(place);
                reply(&sender, id, done).await;
            });
            return;
        }
        let done = self.carry_out(request).await;
        reply(&self.sender, id, done).await;
    }

    async fn carry_out(&mut self, request: Request) -> Result<AnswerWithFds, Problem> {
        let plain = |answer| Ok((answer, Vec::new()));
        let system = |e: io::Error| Problem::of(&e);
        match request {
            Request::Reload => {
                let mut policy = self.duty.policy(&self.piped, self.network_process)?;
                self.configure_programs(policy.programs.as_ref())?;
                policy.inherit(&self.policy);
                self.policy = policy;
                self.policy.allow_mark(self.mark);
                plain(Answer::Done)
            }
            Request::Prepare { may_mark } => {
                let own = self.policy.mark();
                self.mark = self.host()?.prepare(own, may_mark).await;
                self.policy.allow_mark(self.mark);
                plain(Answer::Mark(self.mark))
            }
            Request::Capture => plain(Answer::Capture(self.host()?.capture())),
            Request::Open(opening) => self.open(&opening).await,
            Request::Apply(plan) => {
                let applied = self.host()?.apply(&plan).await?;
                self.tell_dns().await;
                plain(Answer::Applied(applied))
            }
            Request::Change(plan) => {
                let applied = self.host()?.change(&plan).await?;
                self.tell_dns().await;
                plain(Answer::Applied(applied))
            }
            Request::Undo => {
                self.host()?.undo().await;
                self.tell_dns().await;
                self.remotes.clear();
                plain(Answer::Done)
            }
            Request::Close => {
                if let Some(host) = self.host.take() {
                    host.close().await;
                }
                plain(Answer::Done)
            }
            Request::TakeOver(device, opened) => {
                if let Some(former) = self.host.take() {
                    former.abandon().await;
                }
                self.host = Some(Host::take_over(&device, &opened.into())?);
                plain(Answer::Done)
            }
            Request::Leave => {
                if let Some(host) = self.host.take() {
                    host.leave();
                }
                self.duty.leave();
                plain(Answer::Done)
            }
            Request::KeepReachable(address) => self.keep_reachable(address).await,
            Request::Control(path) => {
                let listener = crate::control::bind(&path)?;
                Ok((Answer::Done, vec![OwnedFd::from(listener)]))
            }
            Request::Datagrams(wish) => {
                Ok((Answer::Done, sockets::make_datagrams(&wish).map_err(system)?))
            }
            Request::Listen(wish) => {
                Ok((Answer::Done, vec![sockets::make_listener(&wish).map_err(system)?]))
            }
            Request::Stream(wish) => {
                Ok((Answer::Done, vec![sockets::make_stream(&wish).map_err(system)?]))
            }
            Request::Own(request) => self.duty.carry_out(request, self.network_process).await,
            Request::Begin { .. }
            | Request::Read(_)
            | Request::List(_)
            | Request::Write { .. }
            | Request::Replace(_)
            | Request::Commit(_)
            | Request::Remove(_) => Err(Problem::Refused("not now".into())),
        }
    }

    /// Passes the programs of a configuration that was read again to their runner. One that is started now would lack
    /// privileges.
    fn configure_programs(&self, setup: Option<&programs::Setup>) -> Result<(), Fault> {
        match (&self.runner, setup) {
            (Some(runner), Some(setup)) => runner.configure(setup),
            (Some(runner), None) => runner.configure(&programs::Setup::default()),
            (None, Some(_)) => Err(programs::no_runner()),
            (None, None) => Ok(()),
        }
    }

    /// Reports the DNS servers in use, before the answer.
    async fn tell_dns(&self) {
        if let Some(host) = &self.host {
            self.sender.send(&HelperMessage::Dns(host.dns_in_use().clone()), &[]).await;
        }
    }

    fn host(&mut self) -> Result<&mut Host, Problem> {
        self.host.as_mut().ok_or_else(|| Problem::Refused("no device is open".into()))
    }

    async fn keep_reachable(&mut self, address: IpAddr) -> Result<AnswerWithFds, Problem> {
        if self.remotes.len() >= REMOTES_LIMIT && !self.remotes.contains(&address) {
            self.refuse("too many servers are kept reachable");
            return Err(Problem::Refused("too many servers are kept reachable".into()));
        }
        self.host()?.keep_reachable(address).await;
        self.remotes.insert(address);
        Ok((Answer::Done, Vec::new()))
    }

    async fn open(&mut self, opening: &DeviceRequest) -> Result<AnswerWithFds, Problem> {
        if let Some(former) = self.host.take() {
            former.abandon().await;
        }
        let [csum, tso, uso] = opening.offloads;
        let offloads = TunOffloads { csum, tso, uso };
        let (host, device) = Host::open(&opening.device, offloads, opening.queues.into())?;
        host.clean_up_dns().await;
        self.host = Some(host);
        let Some(device) = device else { return Ok((Answer::Device(None), Vec::new())) };
        // The helper closes the descriptors as soon as they are sent, so the device disappears together with the
        // network process.
        let (parts, descriptors) = device.into_parts();
        Ok((Answer::Device(Some(parts.into())), descriptors))
    }
}

async fn reply(sender: &MessageSender, id: u64, done: Result<AnswerWithFds, Problem>) {
    match done {
        Ok((answer, descriptors)) => sender.answer(id, Ok(answer), descriptors).await,
        Err(problem) => sender.answer(id, Err(problem), Vec::new()).await,
    }
}

/// A file operation. It runs on a separate thread because a file system may block it.
type FileWork = Box<dyn FnOnce() -> Result<AnswerWithFds, Problem> + Send>;

/// Returns the file operation of a request, if it is a file request.
fn file_work(request: &Request) -> Option<FileWork> {
    let one = |opened: io::Result<File>| match opened {
        Ok(file) => Ok((Answer::Done, vec![OwnedFd::from(file)])),
        Err(e) => Err(Problem::of(&e)),
    };
    let none = |done: io::Result<()>| match done {
        Ok(()) => Ok((Answer::Done, Vec::new())),
        Err(e) => Err(Problem::of(&e)),
    };
    Some(match request.clone() {
        Request::Read(path) => Box::new(move || one(root_files::read(&path))),
        Request::List(path) => Box::new(move || match root_files::list(&path) {
            Ok(names) => Ok((Answer::Names(names), Vec::new())),
            Err(e) => Err(Problem::of(&e)),
        }),
        Request::Write { path, begin } => {
            Box::new(move || one(root_files::write(&path, begin, root_files::PRIVATE)))
        }
        Request::Replace(path) => Box::new(move || one(root_files::fresh(&path))),
        Request::Commit(path) => Box::new(move || none(root_files::commit(&path))),
        Request::Remove(path) => Box::new(move || none(std::fs::remove_file(&path))),
        _ => return None,
    })
}
