//! The network process's side: calls of programs.

use std::collections::HashMap;
use std::future::Future;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::task::{Context, Poll};

use adit_linux::channel::{Channel, Received};
use tokio::io::Interest;
use tokio::sync::{Notify, oneshot, watch};
use zeroize::Zeroizing;

use super::protocol::{Base64, Event, FileContent, MESSAGE_LIMIT, PlainCall, Request};
use super::runner::{Control, writable};
use super::{Call, ExitStatus, MAX_QUEUED, MAX_RUNNING, Setup};
use crate::fault::Fault;
use crate::helper;

/// The maximum number of calls that have not ended.
const MAX_CALLS: usize = MAX_RUNNING + MAX_QUEUED;

static RUNNER: OnceLock<Runner> = OnceLock::new();

/// The process's runner.
#[derive(Debug)]
struct Runner {
    shared: Arc<Shared>,
    /// The trusted side's connection, if there is no helper process.
    control: Option<Control>,
}

/// Starts a runner, or passes the settings of a configuration that was read again to it. If there is a helper process,
/// it does both. Call it before privileges are dropped.
///
/// # Errors
/// The process cannot be started, or a program cannot be run.
pub fn start(setup: &Setup) -> Result<(), Fault> {
    match RUNNER.get() {
        Some(Runner { control: Some(control), .. }) => control.configure(setup),
        Some(Runner { control: None, .. }) => Ok(()),
        None if setup.programs.is_empty() || helper::current().is_some() => Ok(()),
        None => {
            let (control, calls) = Control::start(setup)?;
            let shared = Shared::new(calls)?;
            let _ = RUNNER.set(Runner { shared, control: Some(control) });
            Ok(())
        }
    }
}

/// Takes over the connection to a runner that the helper process has started.
///
/// # Errors
/// The descriptor is not a channel.
pub(crate) fn install(calls: OwnedFd) -> Result<(), Fault> {
    let shared = Shared::new(calls)?;
    let _ = RUNNER.set(Runner { shared, control: None });
    Ok(())
}

/// Returns the fault of a configuration that names its first program when it is read again.
pub(crate) fn no_runner() -> Fault {
    Fault::operator(
        "the configuration names programs now, and named none at the start: restart the process to let it run them",
    )
}

/// Runs a program. It is started when the future is polled first, and then runs to its end even if the future is dropped.
pub fn run(call: Call) -> Running {
    match RUNNER.get() {
        Some(runner) => runner.shared.run(call),
        None => Running::ended(ExitStatus::NotStarted("no runner was started".into())),
    }
}

/// Lets the following programs run as the configured user, in the configured root directory.
///
/// # Errors
/// The runner could not become that user. The process must not continue.
pub async fn drop_privileges() -> Result<(), Fault> {
    match RUNNER.get() {
        Some(runner) => runner.shared.drop_privileges().await,
        None => Ok(()),
    }
}

/// Waits until no program runs that was called. Set a time limit.
pub async fn finish() {
    if let Some(runner) = RUNNER.get() {
        runner.shared.finish().await;
    }
}

/// A running program. Resolves to its end.
pub struct Running {
    id: u64,
    shared: Option<Arc<Shared>>,
    /// Ends the wait for work that is not a program.
    stop: Option<Arc<Notify>>,
    ended: Pin<Box<dyn Future<Output = Finished> + Send>>,
}

impl Running {
    /// Returns a program that has ended already, such as one that may not run.
    pub fn ended(status: ExitStatus) -> Self {
        let ended = std::future::ready(Finished { status, files: Vec::new() });
        Self { id: 0, shared: None, stop: None, ended: Box::pin(ended) }
    }

    /// Returns work that counts as a program, such as the call of a plugin before one. Killing it ends the wait for it.
    pub fn of(work: impl Future<Output = Finished> + Send + 'static) -> Self {
        let stop = Arc::new(Notify::new());
        let stopped = Arc::clone(&stop);
        let ended = async move {
            tokio::select! {
                biased;
                finished = work => finished,
                () = stopped.notified() => Finished::failed("it took too long"),
            }
        };
        Self { id: 0, shared: None, stop: Some(stop), ended: Box::pin(ended) }
    }

    /// Kills the program and the programs that it has started. The future still resolves.
    pub fn kill(&self) {
        if let Some(stop) = &self.stop {
            stop.notify_one();
        }
        if let Some(shared) = &self.shared {
            shared.post(Request::Kill(self.id));
        }
    }
}

impl std::fmt::Debug for Running {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running").field("id", &self.id).finish_non_exhaustive()
    }
}

impl Future for Running {
    type Output = Finished;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Finished> {
        self.ended.as_mut().poll(cx)
    }
}

/// The end of a call.
#[derive(Debug)]
pub struct Finished {
    /// How the program ended.
    pub status: ExitStatus,
    /// The call's files, in the order of the call; none if the program was not started.
    pub files: Vec<Scratch>,
}

impl Finished {
    fn failed(why: impl Into<String>) -> Self {
        Self { status: ExitStatus::NotStarted(why.into()), files: Vec::new() }
    }
}

/// A file of a call that has ended. The files of a call are removed when the last of them is dropped.
#[derive(Debug)]
pub struct Scratch {
    contents: watch::Receiver<FileContent>,
    /// `None` for a file of a test, which belongs to no call.
    held: Option<Arc<Held>>,
}

impl Scratch {
    /// Creates a file that belongs to no call, for tests of callers.
    #[doc(hidden)]
    pub fn detached(content: &[u8]) -> (Self, ScratchWriter) {
        let path = PathBuf::from(format!("/detached/{content:p}"));
        let bytes = Base64(Zeroizing::new(content.to_vec()));
        let content = FileContent { path, bytes, truncated: false };
        let (writer, contents) = watch::channel(content);
        (Self { contents, held: None }, ScratchWriter(writer))
    }

    /// Returns the path that the program got.
    pub fn path(&self) -> PathBuf {
        self.contents.borrow().path.clone()
    }

    /// Returns the file's content, at most [`super::MAX_FILE`] bytes of it.
    pub fn content(&self) -> Vec<u8> {
        self.contents.borrow().bytes.0.to_vec()
    }

    /// Returns whether the file is longer than [`super::MAX_FILE`].
    pub fn is_truncated(&self) -> bool {
        self.contents.borrow().truncated
    }

    /// Waits for the next change of the file and returns its content. Cancel-safe. Never returns if the runner is gone.
    pub async fn changed(&mut self) -> Vec<u8> {
        if let Some(held) = &self.held
            && !held.watched.swap(true, Relaxed)
        {
            held.shared.post(Request::Watch(held.id));
        }
        if self.contents.changed().await.is_err() {
            std::future::pending::<()>().await;
        }
        self.contents.borrow_and_update().bytes.0.to_vec()
    }
}

/// Writes to a file of [`Scratch::detached`], as a program would.
#[doc(hidden)]
#[derive(Debug)]
pub struct ScratchWriter(watch::Sender<FileContent>);

impl ScratchWriter {
    /// Replaces the content.
    pub fn write(&self, content: &[u8]) {
        self.0.send_modify(|file| file.bytes = Base64(Zeroizing::new(content.to_vec())));
    }

    /// Returns the path that the program got.
    pub fn path(&self) -> PathBuf {
        self.0.borrow().path.clone()
    }
}

/// Keeps the files of a call.
#[derive(Debug)]
struct Held {
    id: u64,
    shared: Arc<Shared>,
    watched: AtomicBool,
}

impl Drop for Held {
    fn drop(&mut self) {
        self.shared.state().watched.remove(&self.id);
        self.shared.post(Request::Release(self.id));
    }
}

/// The connection to the runner.
#[derive(Debug)]
pub(super) struct Shared {
    channel: Channel,
    next: AtomicU64,
    /// Whether a task receives.
    receiving: AtomicBool,
    state: Mutex<State>,
    /// Wakes the tasks that wait for the end of all calls.
    idle: Notify,
}

#[derive(Debug, Default)]
struct State {
    waiting: HashMap<u64, Waiter>,
    /// The files of calls that have ended.
    watched: HashMap<u64, Vec<watch::Sender<FileContent>>>,
    /// Messages for which there was no room yet. There are at most three for each call.
    unsent: Vec<Request>,
    lost: bool,
}

/// The waiter for an answer.
#[derive(Debug)]
enum Waiter {
    Call(oneshot::Sender<Finished>),
    Dropped(oneshot::Sender<Result<(), String>>),
}

impl Shared {
    pub(super) fn new(calls: OwnedFd) -> Result<Arc<Self>, Fault> {
        let channel = Channel::from_fd(calls)
            .map_err(|e| Fault::ours(format!("programs: no channel to the runner: {e}")))?;
        Ok(Arc::new(Self {
            channel,
            next: AtomicU64::new(1),
            receiving: AtomicBool::new(false),
            state: Mutex::default(),
            idle: Notify::new(),
        }))
    }

    pub(super) fn run(self: &Arc<Self>, call: Call) -> Running {
        let id = self.next.fetch_add(1, Relaxed);
        let (tx, rx) = oneshot::channel();
        let shared = Arc::clone(self);
        let call = PlainCall::from(call);
        let ended = async move {
            match shared.ask(id, Request::Run { id, call }, Waiter::Call(tx)).await {
                Ok(()) => rx.await.unwrap_or_else(|_| Finished::failed(GONE)),
                Err(why) => Finished::failed(why),
            }
        };
        Running { id, shared: Some(Arc::clone(self)), stop: None, ended: Box::pin(ended) }
    }

    pub(super) async fn drop_privileges(self: &Arc<Self>) -> Result<(), Fault> {
        let id = self.next.fetch_add(1, Relaxed);
        let (tx, rx) = oneshot::channel();
        let asked = self.ask(id, Request::DropPrivileges(id), Waiter::Dropped(tx)).await;
        let outcome = match asked {
            Ok(()) => rx.await.unwrap_or_else(|_| Err(GONE.into())),
            Err(why) => Err(why),
        };
        outcome.map_err(|why| Fault::environment(format!("programs: {why}")))
    }

    /// Waits until no call is waiting.
    pub(super) async fn finish(&self) {
        loop {
            let idle = self.idle.notified();
            if self.state().waiting.is_empty() {
                return;
            }
            idle.await;
        }
    }

    /// Sends a request whose answer goes to `waiter`.
    async fn ask(
        self: &Arc<Self>,
        id: u64,
        request: Request,
        waiter: Waiter,
    ) -> Result<(), String> {
        let bytes = serde_json::to_vec(&request).map_err(|e| e.to_string())?;
        if bytes.len() > MESSAGE_LIMIT {
            return Err("its variables and files are too large".into());
        }
        {
            let mut state = self.state();
            if state.lost {
                return Err(GONE.into());
            }
            if state.waiting.len() >= MAX_CALLS {
                return Err(format!("{MAX_CALLS} programs run or wait"));
            }
            state.waiting.insert(id, waiter);
        }
        let sent = self.send(&bytes).await;
        if let Err(e) = sent {
            self.state().waiting.remove(&id);
            self.idle.notify_waiters();
            return Err(format!("runner: {e}"));
        }
        Ok(())
    }

    async fn send(self: &Arc<Self>, bytes: &[u8]) -> io::Result<()> {
        self.receive_in_background()?;
        self.flush();
        while let Err(e) = self.channel.send(bytes, &[]) {
            if e.kind() != io::ErrorKind::WouldBlock {
                return Err(e);
            }
            writable(&self.channel).await?;
        }
        Ok(())
    }

    /// Sends a request without an answer, now or together with the next message.
    fn post(&self, request: Request) {
        self.state().unsent.push(request);
        self.flush();
    }

    /// Sends the messages for which there was no room before.
    fn flush(&self) {
        let mut state = self.state();
        while let Some(request) = state.unsent.first() {
            let bytes = serde_json::to_vec(request).unwrap_or_default();
            match self.channel.send(&bytes, &[]) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                _ => drop(state.unsent.remove(0)),
            }
        }
    }

    /// Receives in a task of the current runtime. Each runtime has its own, because a process that reads its
    /// configuration again starts another runtime.
    fn receive_in_background(self: &Arc<Self>) -> io::Result<()> {
        if self.receiving.swap(true, Relaxed) {
            return Ok(());
        }
        let receiver = Receiver(Arc::clone(self));
        let runtime = tokio::runtime::Handle::try_current().map_err(io::Error::other)?;
        let readable = self.channel.as_fd().try_clone_to_owned();
        let readable = readable.and_then(|fd| crate::driver::watch(fd, Interest::READABLE))?;
        runtime.spawn(async move {
            while let Ok(mut ready) = readable.readable().await {
                ready.clear_ready();
                if !receiver.0.receive() {
                    return;
                }
            }
        });
        Ok(())
    }

    /// Handles the messages that have arrived. Returns false if no more can come.
    fn receive(self: &Arc<Self>) -> bool {
        loop {
            match self.channel.receive(MESSAGE_LIMIT) {
                Ok(Received::Message(bytes, _)) => match serde_json::from_slice(&bytes) {
                    Ok(event) => self.dispatch(event),
                    Err(e) => tracing::error!("programs: invalid message of the runner: {e}"),
                },
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    self.flush();
                    return true;
                }
                Ok(Received::End) => {
                    tracing::error!("programs: {GONE}: restart the process");
                    break;
                }
                Err(e) => {
                    tracing::error!("programs: message lost: {e}");
                    break;
                }
            }
        }
        self.lose();
        false
    }

    fn dispatch(self: &Arc<Self>, event: Event) {
        match event {
            Event::Finished { id, status, files } => self.finished(id, status, files),
            Event::Changed { id, index, file } => {
                if let Some(sender) = self.state().watched.get(&id).and_then(|all| all.get(index)) {
                    sender.send_replace(file);
                }
            }
            Event::Dropped { id, outcome } => {
                let waiter = self.state().waiting.remove(&id);
                if let Some(Waiter::Dropped(waiter)) = waiter {
                    drop(waiter.send(outcome));
                }
                self.idle.notify_waiters();
            }
            Event::Line { warning: true, text } => tracing::warn!("{text}"),
            Event::Line { warning: false, text } => crate::say!(1, "{text}"),
        }
    }

    fn finished(self: &Arc<Self>, id: u64, status: ExitStatus, files: Vec<FileContent>) {
        let waiter = self.state().waiting.remove(&id);
        self.idle.notify_waiters();
        let files = if files.is_empty() { Vec::new() } else { self.keep(id, files) };
        let finished = Finished { status, files };
        // If the caller has lost interest, this removes the files.
        if let Some(Waiter::Call(waiter)) = waiter {
            drop(waiter.send(finished));
        }
    }

    /// Keeps the files of a call until the last of the returned values is dropped.
    fn keep(self: &Arc<Self>, id: u64, files: Vec<FileContent>) -> Vec<Scratch> {
        let (senders, contents): (Vec<_>, Vec<_>) = files.into_iter().map(watch::channel).unzip();
        self.state().watched.insert(id, senders);
        let held = Arc::new(Held { id, shared: Arc::clone(self), watched: AtomicBool::new(false) });
        let scratch = |contents| Scratch { contents, held: Some(Arc::clone(&held)) };
        contents.into_iter().map(scratch).collect()
    }

    /// Fails all calls, because the runner is gone.
    fn lose(&self) {
        let waiting = {
            let mut state = self.state();
            state.lost = true;
            state.unsent.clear();
            state.watched.clear();
            std::mem::take(&mut state.waiting)
        };
        for waiter in waiting.into_values() {
            match waiter {
                Waiter::Call(waiter) => drop(waiter.send(Finished::failed(GONE))),
                Waiter::Dropped(waiter) => drop(waiter.send(Err(GONE.into()))),
            }
        }
        self.idle.notify_waiters();
    }

    /// Ends the connection, as the end of the process does.
    #[cfg(test)]
    pub(super) fn disconnect(&self) {
        let _ = self.channel.finish();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const GONE: &str = "the runner of programs has ended";

/// Marks that a task receives, until the task ends or its runtime is dropped.
struct Receiver(Arc<Shared>);

impl Drop for Receiver {
    fn drop(&mut self) {
        self.0.receiving.store(false, Relaxed);
    }
}
