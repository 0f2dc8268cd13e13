//! The thread of a client pool, with its engines, sockets and timers.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, HashMap, VecDeque};
use std::net::{IpAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

use adit_engine::{Engine, Instant, Link, UnixTime};
use adit_linux::clock;
use adit_linux::poll::{Events, Interest, Poller};
use adit_openvpn::client::{ClientConfig, ClientEngine, ClientEvent};
use adit_openvpn::data_format::{Input, Outbox, Output};
use adit_openvpn::negotiate::ControlMessage;
use adit_testbed::failure::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};

use super::arrivals::{Arrival, LoadOutcome, count};
use super::client_pool::Hosts;
use super::pushed::AppliedConfig;
use super::schedule::burst;

/// A command from another thread.
pub(super) type PoolCommand = Box<dyn FnOnce(&mut ClientLoop) + Send>;

/// The state of a client.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ClientState {
    Coming,
    Up,
    /// The client is disconnecting; its slot already belongs to another client.
    Leaving,
}

struct Client {
    config: ClientConfig,
    engine: ClientEngine,
    socket: UdpSocket,
    slot: usize,
    /// Its index in the schedule; `None` once it has connected.
    arrival: Option<usize>,
    state: ClientState,
    applied: Option<AppliedConfig>,
    deadline: Option<Instant>,
}

/// Makes the configuration of the next client.
type ConfigSource = Box<dyn FnMut() -> Result<ClientConfig>>;

/// The state of the thread.
pub(super) struct ClientLoop {
    next_config: ConfigSource,
    /// The configurations of the next clients, made in advance.
    configs: VecDeque<ClientConfig>,
    hosts: Hosts,
    link: Link,
    poller: Poller,
    events: Events,
    clients: BTreeMap<u64, Client>,
    next_token: u64,
    /// The timers, earliest first; obsolete entries are skipped.
    timers: BinaryHeap<Reverse<(Instant, u64)>>,
    free: VecDeque<usize>,
    /// Connected clients, the longest connected first; obsolete entries are skipped.
    up: VecDeque<u64>,
    coming: usize,
    /// The last client that received each address.
    holders: HashMap<IpAddr, u64>,
    buffer: Vec<u8>,
    /// The number of control packets sent and received.
    packets: u64,
    run: Run,
}

/// The current run.
#[derive(Default)]
struct Run {
    start: Instant,
    arrivals: Vec<Arrival>,
    setbacks: BTreeMap<String, u64>,
    told: Vec<AppliedConfig>,
    shared: Vec<String>,
}

impl Run {
    /// Returns the number of clients that took longer than this to connect, or have been waiting for longer.
    fn late(&self, than: Duration) -> usize {
        let passed = now().since(self.start);
        let late = |arrival: &&Arrival| match arrival.latency {
            Some(latency) => latency > than,
            None => arrival.intended + than < passed,
        };
        self.arrivals.iter().filter(late).count()
    }
}

fn now() -> Instant {
    Instant::from_nanos(clock::boottime())
}

/// This thread's CPU time in seconds.
fn cpu() -> Result<f64> {
    let usage = getrusage(UsageWho::RUSAGE_THREAD)?;
    let seconds =
        |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Ok(seconds(usage.user_time()) + seconds(usage.system_time()))
}

/// The longest wait while nothing is due.
const IDLE: Duration = Duration::from_millis(20);

impl ClientLoop {
    /// Creates the loop without clients.
    pub(super) fn new(
        next: impl FnMut() -> Result<ClientConfig> + 'static,
        hosts: Hosts,
    ) -> Result<Self> {
        // Consecutive slots belong to different hosts.
        let slots = hosts.sources.len() * hosts.sessions;
        Ok(Self {
            link: Link::datagram(Default::default(), None, hosts.server),
            next_config: Box::new(next),
            configs: VecDeque::new(),
            hosts,
            poller: Poller::new()?,
            events: Events::new(),
            clients: BTreeMap::new(),
            next_token: 0,
            timers: BinaryHeap::new(),
            free: (0..slots).collect(),
            up: VecDeque::new(),
            coming: 0,
            holders: HashMap::new(),
            buffer: vec![0; 4096],
            packets: 0,
            run: Run::default(),
        })
    }

    /// Executes commands and serves the clients' timers and packets, until the sending half is dropped.
    pub(super) fn live(&mut self, inbox: &Receiver<PoolCommand>) -> Result<()> {
        loop {
            // The wait is short, so that connected clients acknowledge packets promptly.
            match inbox.recv_timeout(Duration::from_millis(2)) {
                Ok(work) => work(self),
                Err(RecvTimeoutError::Timeout) => self.turn(Duration::ZERO)?,
                Err(RecvTimeoutError::Disconnected) => return Ok(()),
            }
        }
    }

    /// See [`super::ClientPool::run`]; with `limit`, ends as soon as more than this many clients took longer than this.
    pub(super) fn run(
        &mut self,
        schedule: &[Duration],
        timeout: Duration,
        limit: Option<(Duration, f64)>,
    ) -> Result<LoadOutcome> {
        self.prepare(schedule.len())?;
        let before = cpu()?;
        let arrival = |at: &Duration| Arrival { intended: *at, latency: None };
        let arrivals = schedule.iter().map(arrival).collect();
        self.run = Run { start: now(), arrivals, ..Run::default() };
        let start = self.run.start;
        let end = start + schedule.last().copied().unwrap_or_default() + timeout;
        let mut next = 0;
        let mut look = start + IDLE;
        loop {
            while let Some(at) = schedule.get(next)
                && start + *at <= now()
                && self.admit(next)?
            {
                next += 1;
            }
            if next == schedule.len() && self.coming == 0 || now() >= end {
                break;
            }
            if let Some((late, too_many)) = limit
                && now() >= look
            {
                if count(self.run.late(late)) > too_many {
                    break;
                }
                look = now() + IDLE;
            }
            let due = schedule.get(next).map_or(end, |at| start + *at);
            // An overdue client waits for a slot, which only a packet or a timer can free.
            let wait = if due > now() { due.since(now()) } else { IDLE };
            self.turn(wait.min(IDLE))?;
        }
        let seconds = now().since(start).as_secs_f64();
        self.give_up();
        let run = std::mem::take(&mut self.run);
        let Run { arrivals, told, shared, setbacks, .. } = run;
        let setbacks = setbacks.into_iter().collect();
        Ok(LoadOutcome { arrivals, setbacks, told, shared, cpu: cpu()? - before, seconds })
    }

    /// Makes the configurations of this many clients in advance, so that making certificates is not measured.
    fn prepare(&mut self, clients: usize) -> Result<()> {
        while self.configs.len() < clients {
            self.configs.push_back((self.next_config)()?);
        }
        Ok(())
    }

    /// Starts one client. Returns false if no slot is free.
    fn admit(&mut self, arrival: usize) -> Result<bool> {
        let Some(slot) = self.slot()? else { return Ok(false) };
        let source = slot.checked_rem(self.hosts.sources.len());
        let source = source.and_then(|at| self.hosts.sources.get(at)).context("no hosts")?;
        let socket = UdpSocket::bind((*source, 0)).context(format!("a socket of {source}"))?;
        socket.connect(self.hosts.server)?;
        socket.set_nonblocking(true)?;
        let token = self.next_token;
        self.next_token += 1;
        self.poller.add(&socket, token, Interest::READ)?;
        let mut seed = [7; 32];
        seed.iter_mut().zip(clock::boottime().to_be_bytes()).for_each(|(to, from)| *to = from);
        seed.iter_mut().skip(8).zip(token.to_be_bytes()).for_each(|(to, from)| *to = from);
        let unix = UnixTime(clock::unix_time());
        let config = self.configs.pop_front().context("more clients than were announced")?;
        let engine = ClientEngine::new(config.clone(), seed, now(), unix);
        let client = Client {
            config,
            engine,
            socket,
            slot,
            arrival: Some(arrival),
            state: ClientState::Coming,
            applied: None,
            deadline: None,
        };
        self.clients.insert(token, client);
        self.coming += 1;
        self.step(token, None);
        Ok(true)
    }

    /// Returns a free slot, if necessary the one of the client that has been connected longest.
    fn slot(&mut self) -> Result<Option<usize>> {
        if let Some(slot) = self.free.pop_front() {
            return Ok(Some(slot));
        }
        while let Some(token) = self.up.pop_front() {
            let holder = self.clients.get(&token).filter(|client| client.state == ClientState::Up);
            if let Some(slot) = holder.map(|client| client.slot) {
                self.dismiss(token);
                return Ok(Some(slot));
            }
        }
        Ok(None)
    }

    /// Starts the disconnect of a client.
    fn dismiss(&mut self, token: u64) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        client.state = ClientState::Leaving;
        let mut out = Outbox::new();
        client.engine.shutdown(now(), &mut out);
        self.perform(token, out);
    }

    /// Handles packets and timers that are due, after waiting for at most this long.
    fn turn(&mut self, wait: Duration) -> Result<()> {
        let timer = self.timers.peek().map(|Reverse((at, _))| at.since(now()));
        let wait = timer.map_or(wait, |timer| timer.min(wait));
        self.poller.wait_precisely(&mut self.events, wait)?;
        let ready: Vec<u64> = self.events.iter().map(|event| event.token).collect();
        for token in ready {
            self.receive(token);
        }
        while let Some(Reverse((at, token))) = self.timers.peek().copied()
            && at <= now()
        {
            self.timers.pop();
            if self.clients.get(&token).is_some_and(|client| client.deadline == Some(at)) {
                self.step(token, None);
            }
        }
        Ok(())
    }

    /// Hands a client its packets.
    fn receive(&mut self, token: u64) {
        let mut buffer = std::mem::take(&mut self.buffer);
        // An error is either "no more packets" or an ICMP error, which this read has cleared.
        while let Some(client) = self.clients.get(&token)
            && let Ok(length) = client.socket.recv(&mut buffer)
        {
            self.packets += 1;
            self.step(token, buffer.get_mut(..length));
        }
        self.buffer = buffer;
    }

    fn step(&mut self, token: u64, frame: Option<&mut [u8]>) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        let input = frame.map_or(Input::Tick, |frame| Input::ControlPacket(self.link, frame));
        let mut out = Outbox::new();
        client.engine.handle(now(), input, &mut out);
        self.perform(token, out);
    }

    fn perform(&mut self, token: u64, mut out: Outbox<ClientEvent>) {
        while let Some(output) = out.pop() {
            let Some(client) = self.clients.get_mut(&token) else { return };
            match output {
                // A packet that does not fit into the socket buffer is lost, as on any path.
                Output::Send(_, frame) => {
                    let _ = client.socket.send(&frame);
                    self.packets += 1;
                }
                Output::Dial(_) => {
                    client.engine.handle(now(), Input::LinkUp(self.link), &mut out);
                }
                Output::Event(event) => self.on_event(token, event),
                _ => {}
            }
        }
        let Some(client) = self.clients.get_mut(&token) else { return };
        let deadline = client.engine.deadline().map(|(at, _)| at);
        if deadline != client.deadline {
            client.deadline = deadline;
            self.timers.extend(deadline.map(|at| Reverse((at, token))));
        }
    }

    fn on_event(&mut self, token: u64, event: ClientEvent) {
        let Some(client) = self.clients.get_mut(&token) else { return };
        match event {
            ClientEvent::Up(config) => {
                let late = now().since(self.run.start);
                if let Some(arrival) = client.arrival.take()
                    && let Some(arrival) = self.run.arrivals.get_mut(arrival)
                {
                    arrival.latency = Some(late.saturating_sub(arrival.intended));
                }
                let applied = AppliedConfig::of(format!("client {token}"), &config);
                client.applied = Some(applied.clone());
                if client.state == ClientState::Coming {
                    client.state = ClientState::Up;
                    self.coming -= 1;
                    self.up.push_back(token);
                }
                self.record_config(token, applied);
            }
            ClientEvent::Restarting(reason) => {
                if client.state == ClientState::Up {
                    client.state = ClientState::Coming;
                    self.coming += 1;
                }
                *self.run.setbacks.entry(reason.to_string()).or_default() += 1;
            }
            ClientEvent::Stopped(reason) => {
                if client.state != ClientState::Leaving {
                    *self.run.setbacks.entry(reason.to_string()).or_default() += 1;
                }
                self.remove(token);
            }
            _ => {}
        }
    }

    /// Records the configuration of a client that has connected, and whether another connected client has the same
    /// address.
    fn record_config(&mut self, token: u64, applied: AppliedConfig) {
        for address in applied.addresses() {
            let other = self.holders.insert(address, token).filter(|other| *other != token);
            let other = other.and_then(|other| self.clients.get(&other));
            // A client that is disconnecting or reconnecting may have lost its address already.
            if let Some(other) = other.filter(|other| other.state == ClientState::Up)
                && let Some(held) = &other.applied
                && held.addresses().any(|held| held == address)
            {
                let shared = format!("{address}: {}, {}", held.client, applied.client);
                self.run.shared.push(shared);
            }
        }
        self.run.told.push(applied);
    }

    /// Removes a client without an exit message.
    fn remove(&mut self, token: u64) {
        let Some(client) = self.clients.remove(&token) else { return };
        if client.state == ClientState::Coming {
            self.coming -= 1;
        }
        if client.state != ClientState::Leaving {
            self.free.push_back(client.slot);
        }
    }

    /// See [`super::ClientPool::send_control`].
    pub(super) fn send_control(&mut self, rate: f64, stop: &AtomicBool) -> Result<u64> {
        let token = self.tokens(ClientState::Up).first().copied().context("no client is up")?;
        let (start, before) = (now(), self.packets);
        let mut said = 0_u32;
        while !stop.load(Ordering::Relaxed) {
            let due = start + Duration::from_secs_f64(f64::from(said) / rate);
            if due > now() {
                self.turn(due.since(now()).min(IDLE))?;
                continue;
            }
            let message = ControlMessage::Info(format!("message {said}"));
            let mut out = Outbox::new();
            let client = self.clients.get_mut(&token).context("the client that talks is gone")?;
            let sent = client.engine.say(now(), &message, &mut out);
            ensure(sent, || "the client that talks has lost its session".to_owned())?;
            self.perform(token, out);
            said += 1;
        }
        Ok(self.packets - before)
    }

    fn tokens(&self, state: ClientState) -> Vec<u64> {
        let of_stage = self.clients.iter().filter(|(_, client)| client.state == state);
        of_stage.map(|(token, _)| *token).collect()
    }

    /// Drops clients that are not connected.
    fn give_up(&mut self) {
        self.tokens(ClientState::Coming).into_iter().for_each(|token| self.remove(token));
    }

    pub(super) fn drop_all(&mut self) -> usize {
        let all: Vec<u64> = self.clients.keys().copied().collect();
        all.iter().for_each(|token| self.remove(*token));
        self.up.clear();
        all.len()
    }

    /// See [`super::ClientPool::reconnect_all`].
    pub(super) fn reconnect_all(&mut self, timeout: Duration) -> Result<LoadOutcome> {
        let up = self.clients.values().filter(|client| client.state == ClientState::Up);
        let configs: VecDeque<ClientConfig> = up.map(|client| client.config.clone()).collect();
        self.drop_all();
        let schedule = burst(configs.len());
        self.configs = configs;
        self.run(&schedule, timeout, None)
    }

    pub(super) fn disconnect_all(&mut self) -> Result<usize> {
        self.give_up();
        let up = self.tokens(ClientState::Up);
        for token in &up {
            let slot = self.clients.get(token).map(|client| client.slot);
            self.dismiss(*token);
            self.free.extend(slot);
        }
        self.up.clear();
        let end = now() + Duration::from_secs(2);
        while !self.clients.is_empty() && now() < end {
            self.turn(IDLE)?;
        }
        self.drop_all();
        Ok(up.len())
    }

    pub(super) fn applied(&self) -> Vec<AppliedConfig> {
        let up = self.clients.values().filter(|client| client.state == ClientState::Up);
        up.filter_map(|client| client.applied.clone()).collect()
    }
}
