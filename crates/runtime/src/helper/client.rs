//! The network process's client of the helper process.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::ThreadId;
use std::time::{Duration, Instant};

use adit_linux::channel::{Channel, Received};
use tokio::io::Interest;
use tokio::sync::{Notify, oneshot};

use super::protocol::{Answer, HelperMessage, MESSAGE_LIMIT, NumberedRequest, Problem, Request};
use crate::driver::watch;
use crate::fault::Fault;
use crate::host::{DnsInUse, HostEvent};

/// The maximum number of requests without an answer.
const PENDING_LIMIT: usize = 1024;

/// The maximum number of unread events. Beyond it, the oldest are dropped.
const EVENTS: usize = 16;

/// How long a call waits for its answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// How long an orderly shutdown waits for the helper to exit.
const FAREWELL: Duration = Duration::from_secs(5);

/// The connection to the helper.
#[derive(Debug)]
pub struct Helper {
    channel: Channel,
    /// The control thread. It started the helper and receives its messages.
    control: ThreadId,
    next: AtomicU64,
    pending: Mutex<HashMap<u64, Waiter>>,
    /// Host events that have not been taken yet.
    events: Mutex<VecDeque<HostEvent>>,
    /// Wakes the task that waits for an event.
    happened: Notify,
    lost: AtomicBool,
    /// Wakes the tasks that wait for the helper's end.
    ended: Notify,
    dns: Mutex<DnsInUse>,
}

/// The waiter for an answer.
#[derive(Debug)]
enum Waiter {
    /// A thread, which may be the receiving one.
    Thread(mpsc::Sender<Result<(Answer, Vec<OwnedFd>), Problem>>),
    /// A task.
    Task(oneshot::Sender<Result<(Answer, Vec<OwnedFd>), Problem>>),
}

impl Helper {
    pub(super) fn new(channel: Channel) -> Self {
        Self {
            channel,
            control: std::thread::current().id(),
            next: AtomicU64::new(1),
            pending: Mutex::default(),
            events: Mutex::default(),
            happened: Notify::new(),
            lost: AtomicBool::new(false),
            ended: Notify::new(),
            dns: Mutex::default(),
        }
    }

    /// Sends a request and waits for the answer. If the control thread calls it, it receives messages itself. For other
    /// threads, the control thread's [`Watcher`] receives.
    pub fn call(
        &self,
        request: Request,
        fds: &[BorrowedFd<'_>],
    ) -> Result<(Answer, Vec<OwnedFd>), Problem> {
        let (tx, rx) = mpsc::channel();
        let id = self.send(request, fds, Waiter::Thread(tx))?;
        let late = || Problem::of(&io::Error::from_raw_os_error(nix::libc::ETIMEDOUT));
        if std::thread::current().id() != self.control {
            return rx.recv_timeout(PATIENCE).unwrap_or_else(|_| {
                self.pending().remove(&id);
                Err(late())
            });
        }
        let until = Instant::now() + PATIENCE;
        loop {
            self.receive();
            if let Ok(outcome) = rx.try_recv() {
                return outcome;
            }
            let left = until.saturating_duration_since(Instant::now());
            if self.channel.wait(false, left).is_err() {
                self.pending().remove(&id);
                return Err(late());
            }
        }
    }

    /// Sends a request and waits for the answer while a [`Watcher`] receives. There is no time limit, because routes
    /// and programs have their own.
    pub async fn ask(&self, request: Request) -> Result<(Answer, Vec<OwnedFd>), Problem> {
        let (tx, rx) = oneshot::channel();
        self.send(request, &[], Waiter::Task(tx))?;
        rx.await.unwrap_or_else(|_| Err(gone()))
    }

    fn send(
        &self,
        request: Request,
        fds: &[BorrowedFd<'_>],
        waiter: Waiter,
    ) -> Result<u64, Problem> {
        let id = self.next.fetch_add(1, Relaxed);
        let bytes = serde_json::to_vec(&NumberedRequest { id, request })
            .map_err(|e| Fault::ours(format!("helper: a request cannot be written: {e}")))?;
        if bytes.len() > MESSAGE_LIMIT {
            let long = "helper: the request is too large: there are too many routes";
            return Err(Fault::peer(long).into());
        }
        {
            let mut pending = self.pending();
            if self.lost.load(Relaxed) {
                return Err(gone());
            }
            if pending.len() >= PENDING_LIMIT {
                return Err(Fault::environment("helper: too many requests wait").into());
            }
            pending.insert(id, waiter);
        }
        let until = Instant::now() + PATIENCE;
        let sent = loop {
            match self.channel.send(&bytes, fds) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                    let left = until.saturating_duration_since(Instant::now());
                    if let Err(e) = self.channel.wait(true, left) {
                        break Err(e);
                    }
                }
                sent => break sent,
            }
        };
        match sent {
            Ok(()) => Ok(id),
            Err(e) => {
                self.pending().remove(&id);
                Err(match e.kind() {
                    io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => gone(),
                    _ => Problem::of(&e),
                })
            }
        }
    }

    /// Processes the messages that have arrived.
    fn receive(&self) {
        loop {
            match self.channel.receive(MESSAGE_LIMIT) {
                Ok(Received::Message(bytes, descriptors)) => self.dispatch(&bytes, descriptors),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Ok(Received::End) => return self.lose(),
                Err(e) => {
                    tracing::error!("helper: message lost: {e}");
                    return self.lose();
                }
            }
        }
    }

    fn dispatch(&self, bytes: &[u8], descriptors: Vec<OwnedFd>) {
        match serde_json::from_slice(bytes) {
            Ok(HelperMessage::Answer { id, outcome }) => {
                let outcome = outcome.map(|answer| (answer, descriptors));
                // A request that has timed out is no longer in the table.
                match self.pending().remove(&id) {
                    Some(Waiter::Thread(waiter)) => drop(waiter.send(outcome)),
                    Some(Waiter::Task(waiter)) => drop(waiter.send(outcome)),
                    None => {}
                }
            }
            Ok(HelperMessage::Dns(in_use)) => *locked(&self.dns) = in_use,
            Ok(HelperMessage::Event(event)) => {
                if let HostEvent::Dns(change) = &event {
                    *locked(&self.dns) = change.in_use.clone();
                }
                let mut events = locked(&self.events);
                // The latest events describe the current state, so drop the oldest.
                if events.len() >= EVENTS {
                    events.pop_front();
                }
                events.push_back(event);
                drop(events);
                self.happened.notify_one();
            }
            Ok(HelperMessage::Line { level, verb, text }) => match level {
                0 => tracing::error!("{text}"),
                1 => tracing::warn!("{text}"),
                _ => crate::say!(verb, "{text}"),
            },
            Err(e) => tracing::error!("helper: invalid message: {e}"),
        }
    }

    /// Returns the DNS servers in use.
    pub fn dns_in_use(&self) -> DnsInUse {
        locked(&self.dns).clone()
    }

    /// Fails all pending requests because the helper is gone.
    fn lose(&self) {
        let waiting = {
            let mut pending = self.pending();
            self.lost.store(true, Relaxed);
            std::mem::take(&mut *pending)
        };
        for waiter in waiting.into_values() {
            match waiter {
                Waiter::Thread(waiter) => drop(waiter.send(Err(gone()))),
                Waiter::Task(waiter) => drop(waiter.send(Err(gone()))),
            }
        }
        self.ended.notify_waiters();
    }

    /// Waits for the next host event. Cancel-safe; needs a [`Watcher`].
    pub async fn event(&self) -> HostEvent {
        loop {
            let next = locked(&self.events).pop_front();
            match next {
                Some(event) => return event,
                None => self.happened.notified().await,
            }
        }
    }

    /// Returns when the helper has ended. Cancel-safe; needs a [`Watcher`].
    pub async fn lost(&self) -> Fault {
        loop {
            let ended = self.ended.notified();
            if self.lost.load(Relaxed) {
                return Fault::environment(
                    "helper: process ended: without it routes and addresses can neither be changed \
                     nor undone; start again",
                );
            }
            ended.await;
        }
    }

    /// Tells the helper that no more requests follow, and waits until it has undone every change.
    pub(super) fn finish(&self) {
        let _ = self.channel.finish();
        let until = Instant::now() + FAREWELL;
        while !self.lost.load(Relaxed) {
            self.receive();
            let left = until.saturating_duration_since(Instant::now());
            if !self.lost.load(Relaxed) && self.channel.wait(false, left).is_err() {
                tracing::warn!("helper: did not finish in time");
                return;
            }
        }
    }

    fn pending(&self) -> MutexGuard<'_, HashMap<u64, Waiter>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

fn gone() -> Problem {
    Problem::Fault(Fault::environment("helper: process ended"))
}

/// Receives messages from the helper in a task on the control thread, until it is dropped.
#[derive(Debug)]
pub struct Watcher(tokio::task::JoinHandle<()>);

impl Watcher {
    /// Starts the receiving task. Call it inside a tokio runtime.
    ///
    /// # Errors
    /// Fails if the channel cannot be watched.
    pub fn start(helper: &'static Helper) -> Result<Self, Fault> {
        let watched = helper.channel.as_fd().try_clone_to_owned();
        let watched = watched.and_then(|fd| watch(fd, Interest::READABLE));
        let watched =
            watched.map_err(|e| Fault::environment(format!("helper: cannot be watched: {e}")))?;
        Ok(Self(tokio::spawn(async move {
            while !helper.lost.load(Relaxed) {
                let Ok(mut ready) = watched.readable().await else { return };
                ready.clear_ready();
                helper.receive();
            }
        })))
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        self.0.abort();
    }
}
