//! The network process's connection to the plugin host.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::AsFd;
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use adit_linux::channel::Received;
use adit_linux::process::wait_for_end;
use adit_runtime::driver::watch;
use adit_runtime::fault::Fault;
use adit_runtime::say;
use tokio::io::Interest;
use tokio::sync::{Notify, mpsc};

use super::protocol::{
    MESSAGE_LIMIT, Message, NumberedRequest, Outcome, Pending, Processed, Request,
};
use crate::host_process::HostProcess;

/// The maximum number of calls that wait for the host.
pub(super) const MAX_QUEUED: usize = 1024;

/// The maximum number of messages without an answer that wait for the host, in addition.
const MAX_POSTED: usize = 4096;

/// The maximum number of unread events of one call. There are at most four kinds, and none is repeated usefully.
const MAX_EVENTS: usize = 8;

/// How long opening plugins may take: they may ask a slow directory service, or the operator.
const OPEN_LIMIT: Duration = Duration::from_secs(120);

/// How long the host may take to close the plugins.
const FAREWELL: Duration = Duration::from_secs(5);

/// An event of a call.
#[derive(Debug)]
pub(super) enum Event {
    Processed(Processed),
    Answer(Outcome),
    Pending(Pending),
    /// The host has ended.
    Ended,
}

#[derive(Debug)]
pub(super) struct Link {
    host: HostProcess,
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    mask: u32,
    /// The receivers of events, by request.
    waiting: HashMap<u64, mpsc::Sender<Event>>,
    /// Requests that have not been sent, oldest first.
    queue: VecDeque<Queued>,
    /// The request that the host processes.
    under_way: Option<u64>,
    /// Why the host is gone.
    lost: Option<String>,
    /// Messages that were dropped, because they were for no known call or a bound was reached.
    dropped: u64,
}

#[derive(Debug)]
struct Queued {
    id: u64,
    bytes: Vec<u8>,
    /// Whether a caller waits for the answer.
    awaited: bool,
}

/// The receiver of a call's events. When it is dropped before the final answer, the host forgets the call.
#[derive(Debug)]
pub(super) struct Waiter {
    link: Arc<Link>,
    id: u64,
    events: mpsc::Receiver<Event>,
    answered: bool,
}

impl Waiter {
    pub(super) fn id(&self) -> u64 {
        self.id
    }

    /// Waits for the next event. Cancel-safe.
    pub(super) async fn next(&mut self) -> Event {
        self.events.recv().await.unwrap_or(Event::Ended)
    }

    /// Records that the host has forgotten the call, because it has given its final answer.
    pub(super) fn answered(&mut self) {
        self.answered = true;
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.link.forget(self.id, self.answered);
    }
}

impl Link {
    /// Starts the host.
    pub(super) fn start(command: Command) -> Result<Self, Fault> {
        let failed = |e: io::Error| Fault::environment(format!("plugin host: start failed: {e}"));
        let host = HostProcess::start(command, MESSAGE_LIMIT).map_err(failed)?;
        Ok(Self { host, state: Mutex::default(), ended: Notify::new() })
    }

    /// Sends a request and waits for its result without a runtime: at the start, and between calls.
    pub(super) fn call_now(self: &Arc<Self>, request: Request) -> Result<Processed, Fault> {
        let mut waiter = self.send(request).map_err(Fault::environment)?;
        let until = Instant::now() + OPEN_LIMIT;
        loop {
            self.receive();
            match waiter.events.try_recv() {
                Ok(Event::Processed(result)) => {
                    waiter.answered();
                    return Ok(result);
                }
                Ok(_) => {}
                Err(mpsc::error::TryRecvError::Disconnected) => return Err(self.gone()),
                Err(mpsc::error::TryRecvError::Empty) => {
                    let left = until.saturating_duration_since(Instant::now());
                    self.wait(left).map_err(|e| {
                        Fault::environment(format!(
                            "plugin host: a plugin does not finish its initialization: {e}"
                        ))
                    })?;
                }
            }
        }
    }

    /// Waits for a message or the end of the host.
    fn wait(&self, patience: Duration) -> io::Result<()> {
        if self.host.wait(patience)? {
            self.lose();
        }
        Ok(())
    }

    /// Queues a request whose result a caller awaits. The error is a reason to refuse.
    pub(super) fn send(self: &Arc<Self>, request: Request) -> Result<Waiter, String> {
        let (sender, events) = mpsc::channel(MAX_EVENTS);
        let id = self.queue(request, Some(sender))?;
        Ok(Waiter { link: Arc::clone(self), id, events, answered: false })
    }

    /// Queues a request that has no result.
    pub(super) fn post(&self, request: Request) {
        // If it is dropped, the host keeps some memory or a file until it ends, and the drop is counted.
        let _ = self.queue(request, None);
    }

    fn queue(&self, request: Request, waiter: Option<mpsc::Sender<Event>>) -> Result<u64, String> {
        let mut state = self.state();
        if state.lost.is_some() {
            return Err("the plugin host has ended".into());
        }
        let limit = if waiter.is_some() { MAX_QUEUED } else { MAX_POSTED };
        let awaited = waiter.is_some();
        if state.queue.iter().filter(|queued| queued.awaited == awaited).count() >= limit {
            state.dropped = state.dropped.saturating_add(1);
            return Err(format!("{limit} calls wait for the plugins"));
        }
        let id = state.last.wrapping_add(1);
        let bytes = serde_json::to_vec(&NumberedRequest { id, request })
            .map_err(|e| format!("the call cannot be written: {e}"))?;
        if bytes.len() > MESSAGE_LIMIT {
            state.dropped = state.dropped.saturating_add(1);
            return Err("the arguments and the environment of the call are too long".into());
        }
        state.last = id;
        if let Some(waiter) = waiter {
            state.waiting.insert(id, waiter);
        }
        state.queue.push_back(Queued { id, bytes, awaited });
        self.pump(&mut state);
        Ok(id)
    }

    /// Sends the oldest request if the host is free.
    fn pump(&self, state: &mut State) {
        if state.under_way.is_some() {
            return;
        }
        while let Some(Queued { id, bytes, .. }) = state.queue.pop_front() {
            match self.host.channel().send(&bytes, &[]) {
                Ok(()) => {
                    state.under_way = Some(id);
                    return;
                }
                // The host reads before it is free, so there is room. If it is gone, its end is noticed.
                Err(e) => {
                    state.dropped = state.dropped.saturating_add(1);
                    if let Some(waiter) = state.waiting.remove(&id) {
                        let refused = Outcome::refused(format!("the call cannot be sent: {e}"));
                        let _ = waiter.try_send(Event::Answer(refused));
                    }
                }
            }
        }
    }

    /// Forgets a call that is no longer awaited.
    fn forget(&self, id: u64, answered: bool) {
        let mut state = self.state();
        state.waiting.remove(&id);
        let queued = state.queue.len();
        state.queue.retain(|queued| queued.id != id);
        let sent = state.queue.len() == queued;
        let gone = state.lost.is_some();
        drop(state);
        if sent && !answered && !gone {
            self.post(Request::Cancel { call: id });
        }
    }

    /// Processes the messages that have arrived.
    fn receive(&self) {
        loop {
            match self.host.channel().receive(MESSAGE_LIMIT) {
                Ok(Received::Message(bytes, _)) => self.dispatch(&bytes),
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return,
                Ok(Received::End) => return self.lose(),
                Err(e) => {
                    tracing::error!("plugin host: message lost: {e}");
                    return self.lose();
                }
            }
        }
    }

    fn dispatch(&self, bytes: &[u8]) {
        match serde_json::from_slice(bytes) {
            Ok(Message::Line { level: 0, text, .. }) => tracing::error!("{text}"),
            Ok(Message::Line { level: 1, text, .. }) => tracing::warn!("{text}"),
            Ok(Message::Line { verb, text, .. }) => say!(verb, "{text}"),
            Ok(Message::Processed { id, result }) => {
                let mut state = self.state();
                if state.under_way == Some(id) {
                    state.under_way = None;
                }
                let is_final = !matches!(result, Processed::Deferred);
                Self::tell(&mut state, id, Event::Processed(result), is_final);
                self.pump(&mut state);
            }
            Ok(Message::Answer { id, outcome }) => {
                Self::tell(&mut self.state(), id, Event::Answer(outcome), true);
            }
            Ok(Message::Pending { id, pending }) => {
                Self::tell(&mut self.state(), id, Event::Pending(pending), false);
            }
            Err(e) => tracing::error!("plugin host: invalid message: {e}"),
        }
    }

    /// Passes an event to the caller. After the final answer the call is forgotten, so there is no second one.
    fn tell(state: &mut State, id: u64, event: Event, is_final: bool) {
        let waiter =
            if is_final { state.waiting.remove(&id) } else { state.waiting.get(&id).cloned() };
        // Without a waiter the call was forgotten, or has no result.
        if waiter.is_some_and(|waiter| waiter.try_send(event).is_err()) {
            state.dropped = state.dropped.saturating_add(1);
        }
    }

    /// Ends all calls because the host has ended.
    fn lose(&self) {
        let mut state = self.state();
        state.lost.get_or_insert_with(|| {
            "plugin host: process ended: a plugin has crashed: see the messages above, and start again".into()
        });
        state.queue.clear();
        // Without their senders, the waiting calls see the end.
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        drop(waiting);
        self.ended.notify_waiters();
    }

    pub(super) fn mask(&self) -> u32 {
        self.state().mask
    }

    pub(super) fn set_mask(&self, mask: u32) {
        self.state().mask = mask;
    }

    pub(super) fn fault(&self) -> Option<Fault> {
        self.state().lost.clone().map(Fault::environment)
    }

    fn gone(&self) -> Fault {
        self.fault().unwrap_or_else(|| Fault::ours("plugin host: no answer"))
    }

    pub(super) async fn lost(&self) -> Fault {
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            // Take part in the next notification before looking.
            ended.as_mut().enable();
            if let Some(fault) = self.fault() {
                return fault;
            }
            ended.await;
        }
    }

    /// Starts the task that receives messages and notices the end of the host.
    pub(super) fn watch(this: &Arc<Self>) -> Result<(), Fault> {
        let failed = |e: io::Error| Fault::environment(format!("plugin host: not watched: {e}"));
        let open = |fd: &dyn AsFd| {
            fd.as_fd().try_clone_to_owned().and_then(|fd| watch(fd, Interest::READABLE))
        };
        let channel = open(this.host.channel()).map_err(failed)?;
        let process = open(this.host.process()).map_err(failed)?;
        let link = Arc::downgrade(this);
        tokio::spawn(async move {
            loop {
                let ended = tokio::select! {
                    biased;
                    ready = channel.readable() => match ready {
                        Ok(mut ready) => {
                            ready.clear_ready();
                            false
                        }
                        Err(_) => return,
                    },
                    _ = process.readable() => true,
                };
                let Some(link) = link.upgrade() else { return };
                // The last messages of a host that has ended are read first.
                link.receive();
                if ended {
                    link.lose();
                }
                if link.state().lost.is_some() {
                    return;
                }
            }
        });
        Ok(())
    }

    /// Tells the host that no request follows, and waits until it has closed the plugins.
    pub(super) fn finish(&self) {
        let _ = self.host.channel().finish();
        let until = Instant::now() + FAREWELL;
        loop {
            self.receive();
            let left = until.saturating_duration_since(Instant::now());
            match wait_for_end(self.host.process(), left.min(Duration::from_millis(20))) {
                Ok(true) | Err(_) => break,
                Ok(false) if left.is_zero() => {
                    tracing::warn!("plugin host: a plugin did not finish in time");
                    break;
                }
                Ok(false) => {}
            }
        }
        self.receive();
        let dropped = self.state().dropped;
        if dropped > 0 {
            tracing::warn!("plugin host: {dropped} messages dropped");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
