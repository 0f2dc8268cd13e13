//! Connects a sans-IO engine to sockets, timers, names and the data plane.
//!
//! [`Driver::next`] is the main loop. It performs the engine's outputs in order until one of them is an event for the
//! caller, and otherwise waits for an input for the engine. The caller acts on the event (addresses, routes) before the
//! driver performs the outputs after it. Thus a tunnel is configured before the packet that lets the peer use it is
//! sent.

mod backend;
mod dial;
mod gate;
mod outside_resolver;
mod resolve;
mod sockets;
mod streams;
mod timer;
mod trace;

use std::collections::{HashMap, VecDeque};
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use adit_engine::command::Counters;
use adit_engine::{Engine, Input, Instant, Link, Outbox, Output, SocketId, Target, auth};
use adit_linux::tcp::{TcpConnectOptions, TcpListener};
use adit_linux::udp::UdpOptions;
use tokio::io::Interest;
use tokio::io::unix::{AsyncFd, AsyncFdReadyGuard};
use tokio::sync::mpsc;

pub use backend::{Backend, Upcall};
pub use gate::{DialGate, Passage, PassageFuture};
pub use outside_resolver::OutsideResolver;
use resolve::Lookup;
pub use resolve::resolve;
pub use resolve::{AddressBook, CachedAddresses, ResolveRetry};
pub use sockets::bind_problem;
pub use sockets::{DialSettings, Dialled, Endpoint, Sockets};
use streams::{Connection, ProxyTarget, StreamEvent, Streams};
use timer::BootTimer;

use crate::authorize::{AnsweredRequest, Authorizer, PendingSender, answer};
use crate::clock::now;
use crate::fault::Fault;
use crate::metrics::{AuthStats, Samples, table};

/// The maximum number of unanswered authorization requests. Further peers are refused. The same bound holds for answers,
/// including extensions of time, that wait for the engine.
pub const QUESTION_LIMIT: usize = 1024;

/// The number of times that the driver polls the data plane's queues before all other inputs have their turn.
const LOOKS: u32 = 4;

/// How long the engine processes inputs without a break. Then the caller's other inputs and other tasks, such as those
/// of the control socket, have their turn, even if many packets wait or each takes long.
const TURN: Duration = Duration::from_millis(5);

/// The result of [`Driver::next`].
#[derive(Debug)]
pub enum Event<E> {
    /// The engine emitted an event.
    Engine(E),
    /// A stream to this server is about to be opened.
    Dialling(SocketAddr),
    /// A socket for a server is open.
    Dialled(Dialled),
    /// A server could not be dialled.
    DialFailed(String),
    /// The stream of [`Driver::open_stream`] to this address is open, or could not be opened.
    StreamOpened(SocketAddr, Result<Link, String>),
}

/// An engine connected to sockets, timers, name resolution and the data plane.
pub struct Driver<E: Engine, B: Backend<Format = E::Format>> {
    engine: E,
    outbox: Outbox<E::Event, E::Format>,
    backend: B,
    wakeup: AsyncFd<OwnedFd>,
    timer: BootTimer,
    sockets: Sockets,
    streams: Streams,
    next_stream: u64,
    /// The address to connect a stream to, once the caller has received [`Event::Dialling`].
    connect_to: Option<SocketAddr>,
    /// The time limit for the connection to the dialled server.
    connect_limit: Duration,
    /// The server behind the dialled proxy.
    proxy_target: Option<ProxyTarget>,
    book: AddressBook,
    /// The target and address dialled last.
    dialled_last: Option<(Target, SocketAddr)>,
    /// The resolver for server names.
    resolver: OutsideResolver,
    lookup: Option<Lookup>,
    looked_up: (mpsc::Sender<LookedUp>, mpsc::Receiver<LookedUp>),
    /// The decision about the attempt to connect, and its result.
    gate: Option<Arc<dyn DialGate>>,
    decision: Option<Lookup>,
    decided: (mpsc::Sender<Passage>, mpsc::Receiver<Passage>),
    /// The proxy that the gate chose instead of that of the target.
    proxy_instead: Option<Option<Arc<crate::proxy::Proxy>>>,
    authorizer: Arc<dyn Authorizer>,
    answers: (mpsc::Sender<AnsweredRequest>, mpsc::Receiver<AnsweredRequest>),
    /// The unanswered requests, with their kinds and times.
    open_questions: HashMap<auth::RequestId, (&'static str, Instant)>,
    auth_stats: AuthStats,
    upcalls: VecDeque<Upcall<E::Format>>,
    /// Whether the data plane has signalled. Because a wakeup costs more than most packets, it does so only once until
    /// the driver is about to sleep.
    called: bool,
    looks: u32,
    /// When the current turn began: see [`TURN`].
    turn_began: Instant,
    events: VecDeque<Event<E::Event>>,
    send_errors: SendErrors,
    /// The counters of the control channel's packets.
    control: Counters,
    ticked: bool,
    /// The deadline that was logged last.
    sleeps_until: Option<Option<Instant>>,
}

type LookedUp = (Target, Result<Vec<SocketAddr>, String>);

/// The numbers of control channel packets that the kernel refused to send.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct SendErrors {
    /// The send buffer was full.
    pub full: u64,
    /// There was another error, such as no route, a refusal, or an interface that is down.
    pub other: u64,
}

impl<E: Engine, B: Backend<Format = E::Format>> Driver<E, B> {
    /// Creates a driver. The backend already has the `sockets`.
    ///
    /// # Errors
    /// Fails if no timer or descriptor is available.
    pub fn new(
        engine: E,
        backend: B,
        mut sockets: Sockets,
        authorizer: Arc<dyn Authorizer>,
    ) -> Result<Self, Fault> {
        let mut streams = Streams::listen(sockets.take_listeners())
            .map_err(|e| Fault::environment(format!("cannot watch the listeners: {e}")))?;
        if let Some(share) = sockets.take_share() {
            streams.share(share);
        }
        let wakeup = backend
            .wakeup()
            .and_then(|fd| watch(fd, Interest::READABLE))
            .map_err(|e| Fault::environment(format!("cannot watch the data plane: {e}")))?;
        let settings = sockets.dial_settings();
        let resolver = OutsideResolver::by(settings.mark, settings.device.clone());
        let book = AddressBook::saved_addresses().persistent(settings.persist_remote);
        let timer = BootTimer::new()
            .map_err(|e| Fault::environment(format!("cannot make a timer: {e}")))?;
        Ok(Self {
            engine,
            outbox: Outbox::new(),
            backend,
            wakeup,
            timer,
            sockets,
            streams,
            next_stream: 1,
            connect_to: None,
            connect_limit: Duration::ZERO,
            proxy_target: None,
            book,
            dialled_last: None,
            resolver,
            lookup: None,
            looked_up: mpsc::channel(4),
            gate: None,
            decision: None,
            decided: mpsc::channel(1),
            proxy_instead: None,
            authorizer,
            answers: mpsc::channel(QUESTION_LIMIT),
            open_questions: HashMap::new(),
            auth_stats: AuthStats::default(),
            upcalls: VecDeque::new(),
            called: false,
            looks: 0,
            turn_began: now(),
            events: VecDeque::new(),
            send_errors: SendErrors::default(),
            control: Counters::default(),
            ticked: false,
            sleeps_until: None,
        })
    }

    /// Returns the engine.
    pub fn engine(&self) -> &E {
        &self.engine
    }

    /// Returns the data plane.
    pub fn backend(&self) -> &B {
        &self.backend
    }

    /// Consumes the driver and returns the data plane, so that it can be ended.
    pub fn into_backend(self) -> B {
        self.backend
    }

    /// Returns the resolver for other look-ups.
    pub fn resolver(&mut self) -> &mut OutsideResolver {
        &mut self.resolver
    }

    /// Returns the counters of the control channel's sent and received packets.
    pub fn control_traffic(&self) -> Counters {
        self.control
    }

    /// Returns the counts of packets that could not be sent.
    pub fn send_errors(&self) -> SendErrors {
        self.send_errors
    }

    /// Returns the number of times that a connection could not be accepted for lack of descriptors or memory.
    pub fn accept_shortages(&self) -> u64 {
        self.streams.accept_failures()
    }

    /// Adds the driver's metrics.
    pub fn measure(&self, samples: &mut Samples) {
        self.auth_stats.measure(samples);
        samples.count(&table::QUEUE_LENGTH, ["auth-requests"], self.open_questions.len() as u64);
        samples.count(&table::QUEUE_LIMIT, ["auth-requests"], QUESTION_LIMIT as u64);
    }

    /// Calls the engine for a purpose other than an input (shutdown, kick, restart). [`Self::next`] performs the
    /// resulting outputs.
    pub fn act<R>(
        &mut self,
        act: impl FnOnce(&mut E, Instant, &mut Outbox<E::Event, E::Format>) -> R,
    ) -> R {
        act(&mut self.engine, now(), &mut self.outbox)
    }

    /// Opens sockets for the engine, each with its own port. Returns those that could be opened.
    pub fn open_sockets(&mut self, options: &UdpOptions, count: usize) -> Vec<SocketId> {
        self.sockets.open(options, count, &self.backend)
    }

    /// Closes sockets of [`Self::open_sockets`].
    pub fn close_sockets(&mut self, sockets: &[SocketId]) {
        sockets.iter().for_each(|id| self.sockets.hang_up(*id, &self.backend));
    }

    /// Opens an additional stream within a time limit. [`Event::StreamOpened`] reports the result to the caller; the engine gets no input.
    pub fn open_stream(&mut self, options: TcpConnectOptions, limit: Duration) {
        self.streams.open(options, limit);
    }

    /// Accepts streams at another listener as well.
    ///
    /// # Errors
    /// Fails if the listener cannot be watched.
    pub fn listen(&mut self, listener: TcpListener) -> std::io::Result<()> {
        self.streams.add_listener(listener)
    }

    /// Tells the engine that a stream has ended.
    pub fn lose_stream(&mut self, link: Link) {
        self.end_stream(link);
    }

    /// Gives the streams that are accepted from now on higher ids than this one's.
    pub fn follow_stream(&mut self, link: Link) {
        let next = link.stream_id().map_or(0, |id| id.saturating_add(1));
        self.next_stream = self.next_stream.max(next);
    }

    /// Shrinks the queues to their contents.
    pub fn release_memory(&mut self) {
        self.upcalls.shrink_to_fit();
        self.open_questions.shrink_to_fit();
        self.events.shrink_to_fit();
        self.outbox.shrink_to_fit();
    }

    /// Performs all pending outputs without waiting, up to the first event.
    pub fn perform(&mut self) -> Option<Event<E::Event>> {
        if let Some(event) = self.events.pop_front() {
            return Some(event);
        }
        // The caller has received the address, so that it can keep the server reachable outside the tunnel.
        if let Some(remote) = self.connect_to.take() {
            self.connect(remote);
        }
        while let Some(output) = self.outbox.pop() {
            match output {
                Output::Send(link, frame) => self.send(link, &frame),
                Output::Plane(op) => {
                    trace::command(&op);
                    self.backend.apply(op);
                }
                Output::Dial(target) => self.dial(target),
                Output::Hangup(link) => self.hang_up(link),
                Output::AuthRequest(ticket, question) => {
                    if self.open_questions.len() >= QUESTION_LIMIT {
                        let reply =
                            auth::Response::Reject("too many peers wait for authorization".into());
                        self.feed(Input::AuthResponse(ticket, reply));
                        continue;
                    }
                    let pending = PendingSender::new(ticket, self.answers.0.clone());
                    let (kind, asked) = (AuthStats::kind(&question), now());
                    let mut answer = answer(&*self.authorizer, question, pending);
                    // Most responses are ready at once. For the others, a task polls again with its own waker.
                    let mut nobody = Context::from_waker(Waker::noop());
                    if let Poll::Ready(reply) = answer.as_mut().poll(&mut nobody) {
                        self.auth_stats.record(kind, &reply, now().since(asked));
                        self.feed(Input::AuthResponse(ticket, reply));
                        continue;
                    }
                    self.open_questions.insert(ticket, (kind, asked));
                    let tx = self.answers.0.clone();
                    tokio::spawn(async move {
                        let reply = answer.await;
                        // This fails only if the driver no longer exists.
                        let _ = tx.send((ticket, reply)).await;
                    });
                }
                Output::Event(event) => return Some(Event::Engine(event)),
            }
        }
        None
    }

    /// Runs until there is an event. It is cancel-safe, so nothing is lost if the future is dropped.
    ///
    /// # Errors
    /// Fails if the timer or the data plane's descriptor failed, or the data plane has ended.
    pub async fn next(&mut self) -> Result<Event<E::Event>, Fault> {
        let broken =
            |e: std::io::Error| Fault::environment(format!("cannot wait for packets: {e}"));
        loop {
            if let Some(event) = self.perform() {
                return Ok(event);
            }
            if let Some(fault) = self.backend.failure() {
                return Err(fault);
            }
            if now().since(self.turn_began) >= TURN {
                // The next turn begins here, so that the engine makes progress even if the caller drops this future each time.
                self.turn_began = now();
                tokio::task::yield_now().await;
            }
            // Packets and timers take turns. A flood of packets must not delay timers, and an engine whose deadline
            // stays in the past must not delay packets.
            let deadline = self.engine.due();
            self.ticked = !self.ticked && deadline.is_some_and(|at| at <= now());
            if self.ticked {
                if trace::timers() {
                    trace::fires(self.engine.deadline());
                }
                self.feed(Input::Tick);
                continue;
            }
            if let Some(upcall) = self.upcalls.pop_front() {
                self.take(upcall);
                continue;
            }
            if self.look_again() {
                continue;
            }
            let deadline = self.engine.due();
            if trace::timers() && self.sleeps_until != Some(deadline) {
                self.sleeps_until = Some(deadline);
                trace::sleeps(now(), self.engine.deadline());
            }
            self.timer.arm(deadline).map_err(broken)?;
            tokio::select! {
                biased;
                Some((ticket, reply)) = self.answers.1.recv() => self.answered(ticket, reply),
                Some((target, found)) = self.looked_up.1.recv() => self.found(target, found),
                Some(passage) = self.decided.1.recv() => self.pass(passage),
                fired = self.timer.fired() => fired.map_err(broken)?,
                arrived = arrived(&self.wakeup, &mut self.streams) => match arrived {
                    ReadyInput::Packets(ready) => {
                        // Clear the flag before the queues are emptied, so that a later packet wakes this task again.
                        ready.map_err(broken)?.clear_ready();
                        self.called = true;
                    }
                    ReadyInput::Stream(event) => self.stream(event),
                },
                () = tokio::task::yield_now(), if self.called => {}
            }
        }
    }

    /// Takes upcalls that have arrived in the meantime. Returns `false` if there are none, or if it is the turn of
    /// other inputs.
    fn look_again(&mut self) -> bool {
        if let Ok((ticket, reply)) = self.answers.1.try_recv() {
            self.answered(ticket, reply);
            return true;
        }
        if !self.called || self.looks >= LOOKS {
            self.looks = 0;
            return false;
        }
        self.looks += 1;
        self.backend.drain_silently(&mut |upcall| self.upcalls.push_back(upcall));
        if self.upcalls.is_empty() {
            // The task is about to sleep. Earlier upcalls are in the queues, and later ones will wake it.
            self.called = false;
            self.backend.drain(&mut |upcall| self.upcalls.push_back(upcall));
        }
        !self.upcalls.is_empty()
    }

    fn answered(&mut self, ticket: auth::RequestId, reply: auth::Response) {
        if !matches!(reply, auth::Response::Pending { .. })
            && let Some((kind, asked)) = self.open_questions.remove(&ticket)
        {
            self.auth_stats.record(kind, &reply, now().since(asked));
        }
        self.feed(Input::AuthResponse(ticket, reply));
    }

    fn feed(&mut self, input: Input<'_, E::Format>) {
        if !trace::inputs() {
            self.engine.handle(now(), input, &mut self.outbox);
            return;
        }
        let (kind, started, before) = (trace::kind(&input), now(), self.outbox.len());
        self.engine.handle(started, input, &mut self.outbox);
        let outputs = self.outbox.len().saturating_sub(before);
        trace::handled(kind, outputs, now().since(started));
    }

    fn take(&mut self, upcall: Upcall<E::Format>) {
        match upcall {
            Upcall::ControlPacket(link, mut frame) => {
                trace::read(&link, &frame);
                self.control.received(frame.len());
                self.feed(Input::ControlPacket(link, &mut frame));
            }
            Upcall::Notice(notice) => {
                trace::notice(&notice);
                self.feed(Input::Notice(notice));
            }
            Upcall::StreamEnded(link, why) => {
                tracing::debug!("{}: TCP connection closed: {why}", link.remote());
                self.end_stream(link);
            }
        }
    }

    fn end_stream(&mut self, link: Link) {
        self.feed(Input::LinkDown(link));
        // The engine closes only streams that it knows, and may have forgotten this one.
        self.backend.remove_stream(link);
    }

    fn stream(&mut self, event: StreamEvent) {
        match event {
            StreamEvent::Accepted(stream, peer) => {
                let link = self.stream_link(peer);
                match self.backend.add_stream(link, stream) {
                    Ok(()) => self.feed(Input::LinkUp(link)),
                    Err(e) => tracing::debug!("{peer}: TCP connection rejected: {e}"),
                }
            }
            StreamEvent::Connected(Ok(Connection::Stream(stream))) => self.connected(stream),
            StreamEvent::Connected(Ok(Connection::Relay(mut relay))) => {
                let ended = relay.ended();
                let dialled = self.sockets.dial_by(relay, &self.backend);
                if let (Ok(dialled), Some(ended)) = (&dialled, ended) {
                    self.streams.watch_relay(dialled.link, ended);
                }
                self.dialled(dialled);
            }
            StreamEvent::Opened(to, stream) => {
                let opened = stream.and_then(|stream| {
                    let link = self.stream_link(to);
                    let added = self.backend.add_stream(link, stream);
                    added.map(|()| link).map_err(|e| format!("{to}: TCP connection rejected: {e}"))
                });
                self.events.push_back(Event::StreamOpened(to, opened));
            }
            StreamEvent::RelayEnded(link) => self.feed(Input::LinkDown(link)),
            StreamEvent::Connected(Err(problem)) => self.dial_failed(problem),
        }
    }

    fn stream_link(&mut self, peer: SocketAddr) -> Link {
        let id = self.next_stream;
        self.next_stream = self.next_stream.wrapping_add(1);
        Link::stream(id, peer)
    }

    fn send(&mut self, link: Link, frame: &[u8]) {
        trace::write(&link, frame);
        if link.is_stream() {
            if self.backend.send_control(link, frame) {
                self.control.sent(frame.len());
            } else {
                // A stream never sends a packet twice, so the session cannot continue without this one.
                self.send_errors.full += 1;
                self.end_stream(link);
            }
            return;
        }
        let Some(socket) = link.socket().and_then(|id| self.sockets.get(id)) else { return };
        match socket.send_to(link.remote(), link.local(), frame) {
            Ok(()) => self.control.sent(frame.len()),
            // The reliability layer sends the packet again.
            Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => self.send_errors.full += 1,
            Err(e) => {
                self.send_errors.other += 1;
                tracing::debug!("{}: send failed: {e}", link.remote());
            }
        }
    }

    fn hang_up(&mut self, link: Link) {
        match link.socket() {
            Some(id) => self.sockets.hang_up(id, &self.backend),
            None => self.backend.remove_stream(link),
        }
    }
}

/// A source of input that is ready.
enum ReadyInput<'a> {
    Packets(std::io::Result<AsyncFdReadyGuard<'a, OwnedFd>>),
    Stream(StreamEvent),
}

/// Waits for input from both sources fairly, so that a flood of packets does not delay connections and connections do
/// not delay packets.
async fn arrived<'a>(wakeup: &'a AsyncFd<OwnedFd>, streams: &mut Streams) -> ReadyInput<'a> {
    tokio::select! {
        ready = wakeup.readable() => ReadyInput::Packets(ready),
        event = streams.next() => ReadyInput::Stream(event),
    }
}

/// Registers a descriptor with the runtime.
pub fn watch(fd: OwnedFd, interest: Interest) -> std::io::Result<AsyncFd<OwnedFd>> {
    // tokio deprecates the safe constructor, because a type could return a different descriptor each time. An `OwnedFd`
    // is one descriptor for its whole life, which is what the unsafe constructor requires.
    #[allow(deprecated)]
    AsyncFd::with_interest(fd, interest)
}

/// The first socket id of dialled sockets. Listeners have smaller ids.
pub const FIRST_DIALLED: SocketId = SocketId(0x8000);

#[cfg(test)]
mod tests;
