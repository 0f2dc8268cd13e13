//! The loop of a daemon.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::time::Duration;

use adit_engine::Instant;
use adit_runtime::clock::{now, unix_time};
use adit_runtime::control::{Request, Response, StatusReport};
use adit_runtime::fault::Fault;
use adit_runtime::instance::{EndReason, Instance};
use adit_runtime::metrics::{PeerSample, Samples};
use adit_runtime::say;
use adit_tinc::config::{ConfigOption, ServerConfig};
use adit_tinc::keys::PublicKey;
use adit_tinc::name::NodeName;
use adit_tinc::node::{Event as NodeEvent, Node, Output, Script};
use tokio::net::TcpStream;
use tokio::signal::unix::Signal as UnixSignal;
use tokio::sync::mpsc;

use super::address_cache::AddressCache;
use super::clients::{ClientEvent, ClientId, Clients};
use super::data::{Data, Ready};
use super::dial::DialOptions;
use super::guest::Guest;
use super::joins::Joins;
use super::log_lines;
use super::privileged::Privileged;
use super::report::Statistics;
use super::rows::Changes;
use super::scripts::Scripts;
use super::streams::{StreamEvent, Streams};
use super::system_names::SystemNames;
use crate::control::server;
use crate::net::Net;

/// The number of outputs that are performed before other events get their turn.
const MAX_OUTPUTS: usize = 100_000;

/// The number of times that the data plane is brought in line with the node before other events get their turn.
const MAX_ROUNDS: usize = 8;

/// A running daemon.
pub(super) struct Running {
    pub(super) net: Net,
    /// The variables of the command line.
    pub(super) options: Vec<ConfigOption>,
    pub(super) system_names: SystemNames,
    pub(super) server: ServerConfig,
    pub(super) node: Node,
    pub(super) data: Data,
    pub(super) streams: Streams,
    pub(super) dial: DialOptions,
    pub(super) joins: Joins,
    pub(super) privileged: Privileged,
    pub(super) address_cache: AddressCache,
    pub(super) accepted: mpsc::Receiver<(TcpStream, SocketAddr)>,
    pub(super) clients: Clients,
    pub(super) scripts: Scripts,
    pub(super) alarm: UnixSignal,
    pub(super) port: u16,
    /// When the daemon started, in seconds since 1970.
    pub(super) started: i64,
    pub(super) changes: Changes,
    pub(super) statistics: Statistics,
    pub(super) debug: u8,
    pub(super) guest: Guest,
    /// A client asked the daemon to end.
    pub(super) stopped: bool,
}

/// An event that wakes a daemon.
pub(super) enum Event {
    Packets(Ready),
    Stream(StreamEvent),
    Accepted(TcpStream, SocketAddr),
    Client(ClientEvent),
    Timer,
    Script,
    Alarm,
}

impl Instance for Running {
    type Event = Event;
    type Reason = Infallible;

    fn role(&self) -> &'static str {
        "tinc"
    }

    async fn next(&mut self) -> Result<Event, Fault> {
        if self.streams.has_waiting() {
            // While packets keep the loop busy, tokio asks the kernel only then whether it takes more.
            tokio::task::yield_now().await;
        }
        let wait = self.node.deadline().since(now());
        Ok(tokio::select! {
            ready = self.data.ready() => Event::Packets(ready),
            event = self.streams.next() => Event::Stream(event),
            Some((stream, from)) = self.accepted.recv() => Event::Accepted(stream, from),
            event = self.clients.next() => Event::Client(event),
            () = tokio::time::sleep(wait) => Event::Timer,
            () = self.scripts.next() => Event::Script,
            Some(()) = self.alarm.recv() => Event::Alarm,
        })
    }

    async fn handle(&mut self, event: Event) -> Result<Option<EndReason<Infallible>>, Fault> {
        let now = now();
        // Otherwise the node would drop packets for a queue that is empty by now.
        self.flush();
        match event {
            Event::Packets(ready) => self.data.read(ready, &mut self.node, now)?,
            Event::Stream(event) => self.stream(event, now),
            Event::Accepted(stream, from) => self.accept(stream, from, now),
            Event::Client(event) => {
                for (id, request) in self.clients.take(event) {
                    self.answer(id, request, now);
                }
            }
            Event::Timer => self.node.tick(now),
            Event::Script => {}
            Event::Alarm => {
                say!(1, "Got SIGALRM signal");
                self.node.retry(now);
            }
        }
        self.perform(now);
        Ok(self.stopped.then_some(EndReason::Asked))
    }

    async fn tick(&mut self) -> Result<Option<EndReason<Infallible>>, Fault> {
        let now = now();
        self.data.tick(&mut self.node, now);
        self.perform(now);
        if self.data.router.due().is_some_and(|due| now >= due) {
            self.data.refresh_stations();
            for subnet in self.data.router.expire(now) {
                self.node.remove_subnet(now, subnet);
            }
            self.perform(now);
        }
        self.expire_guest(now);
        self.expire_joins(now);
        self.address_cache.tick(&self.node, now);
        Ok(None)
    }

    fn reload(&mut self) -> bool {
        let reloaded = self.read_again();
        if let Err(fault) = &reloaded {
            adit_runtime::log::warning(&format!("nothing has changed: {fault}"));
        }
        reloaded.is_ok()
    }

    fn request(&mut self, request: Request) -> Response {
        match request {
            Request::Reload => match self.read_again() {
                Ok(()) => Response::Done { count: 0 },
                Err(fault) => Response::Error { message: fault.to_string() },
            },
            Request::TincAnnounce { networks } => self.announce(&networks),
            _ => Response::Error { message: "a node of tinc has no such request".into() },
        }
    }

    fn report(&mut self, report: &mut StatusReport) {
        self.data.count(&mut self.node, now());
        self.data.report(report);
        self.complete(report);
    }

    fn report_peers(&mut self, report: &mut StatusReport) {
        self.complete_nodes(report);
    }

    fn measure(&mut self, samples: &mut Samples) {
        self.measure_node(samples);
        self.data.measure(samples);
    }

    fn sample_peers(&mut self, after: Option<u64>) -> Vec<PeerSample> {
        if after.is_none() {
            self.data.count(&mut self.node, now());
        }
        self.nodes_after(after)
    }
}

impl Running {
    fn stream(&mut self, event: StreamEvent, now: Instant) {
        match event {
            StreamEvent::Connected(id, link) => match link.local_addr() {
                Ok(local) => {
                    if self.streams.serve_dialled(id, link) {
                        self.node.connected(now, id, local);
                    }
                }
                Err(_) => self.node.closed(now, id),
            },
            StreamEvent::Bytes(id, bytes) if self.joins.contains(id) => {
                self.join_received(id, &bytes, now);
            }
            StreamEvent::Bytes(id, bytes) => {
                let next_read = self.node.receive(now, id, &bytes);
                self.streams.pause(id, next_read);
            }
            StreamEvent::Closed(id, _) if self.joins.contains(id) => self.join_closed(id),
            StreamEvent::Closed(id, reason) => {
                if let Some(reason) = reason {
                    say!(3, "Connection {}: {reason}", id.0);
                }
                self.streams.close(id);
                self.node.closed(now, id);
            }
            StreamEvent::Resolved(node, addresses) => {
                if addresses.is_empty() {
                    say!(2, "Could not resolve the address of {node}");
                }
                self.node.resolved(now, &node, &addresses);
            }
        }
    }

    fn accept(&mut self, stream: TcpStream, from: SocketAddr, now: Instant) {
        let Ok(local) = stream.local_addr() else { return };
        say!(2, "Connection from {} port {}", from.ip(), from.port());
        match self.node.accept(now, from, local) {
            Some(id) => self.streams.serve(id, stream),
            None => self.streams.tarpit_stream(stream),
        }
    }

    /// Performs the node's outputs, in their order. Packets that it hands up may cause further ones, and so may a session that the data plane no
    /// longer carries.
    pub(super) fn perform(&mut self, now: Instant) {
        // The data plane has the new keys of a session before the peer may use them.
        self.data.reconcile(&mut self.node, now);
        for _ in 0..MAX_ROUNDS {
            self.perform_outputs(now);
            if !self.data.reconcile(&mut self.node, now) {
                break;
            }
        }
        self.flush();
    }

    /// Writes what waits for neighbours.
    fn flush(&mut self) {
        self.streams.flush(|id, bytes| self.node.set_backlog(id, bytes));
    }

    fn perform_outputs(&mut self, now: Instant) {
        for _ in 0..MAX_OUTPUTS {
            let Some(output) = self.node.pop() else { return };
            match output {
                Output::Resolve { node, host, port } => self.streams.resolve(node, host, port),
                Output::Dial { connection, address } => self.dial(connection, address),
                Output::Send { connection, bytes } => {
                    let waiting = self.streams.send(connection, &bytes);
                    self.node.set_backlog(connection, waiting);
                }
                Output::Close { connection, tarpit: true } => self.streams.tarpit(connection),
                Output::Close { connection, tarpit: false } => self.streams.close(connection),
                Output::Join { connection, address, key, rest } => {
                    self.join(connection, address, key, &rest, now);
                }
                Output::Datagram { to, socket, bytes, tos, .. } => {
                    if self.data.send(to, socket, &bytes, tos) {
                        self.node.too_big(now, to, bytes.len());
                    }
                    self.node.recycle(bytes);
                }
                Output::Record { to, bytes } => {
                    self.data.send_record(&to, &bytes, &mut self.node, now);
                    self.node.recycle(bytes);
                }
                Output::Packet { from, mut bytes } => {
                    self.data.route_from_node(&from, &mut bytes, &mut self.node, now);
                    self.node.recycle(bytes);
                }
                Output::Script(script) => {
                    self.withdraw_moved(&script, now);
                    self.scripts.push(now, &script);
                }
                Output::Event(event) => self.event(&event, now),
            }
        }
    }

    /// Withdraws a station that another node has announced, because it has moved there.
    fn withdraw_moved(&mut self, script: &Script, now: Instant) {
        if let Script::Subnet { up: true, node, subnet, .. } = script
            && node != self.node.name()
            && let Some(moved) = self.data.router.forget(subnet)
        {
            self.node.remove_subnet(now, moved);
        }
    }

    fn event(&mut self, event: &NodeEvent, now: Instant) {
        log_lines::log(event);
        self.statistics.record(event);
        match event {
            NodeEvent::Reachable { node, .. } => {
                let unix = i64::try_from(unix_time().0).unwrap_or(i64::MAX);
                self.changes.insert(node.clone(), unix);
                // Unreachable nodes may be forgotten; so are their times.
                if self.changes.len() > adit_tinc::graph::MAX_NODES {
                    let graph = self.node.graph();
                    self.changes.retain(|node, _| graph.route(node).is_some());
                }
            }
            NodeEvent::KeyLearned { node, key } => self.store_key(node, key),
            // On most paths, the search for the MTU needs only one probe then.
            NodeEvent::UdpConfirmed { address, .. } => {
                if let Some(longest) = self.data.sendable(*address) {
                    self.node.too_big(now, *address, longest.saturating_add(1));
                }
            }
            NodeEvent::Connected { .. } => self.address_cache.changed(),
            _ => {}
        }
    }

    fn store_key(&mut self, node: &NodeName, key: &PublicKey) {
        if let Err(error) = self.privileged.store_key(node, key) {
            let path = self.net.host_file(node);
            tracing::warn!(
                "the key of {node} is known until the daemon ends: {}: {error}",
                path.display()
            );
        }
    }

    /// Ends all connections, and runs the last scripts.
    pub(super) async fn shut_down(&mut self, limit: Duration) {
        let now = now();
        self.node.close_all(now);
        self.perform(now);
        self.address_cache.write(&self.node);
        // Other nodes decide how many scripts wait for changes of the net. The last script must run all the same.
        let each = limit / 2;
        if tokio::time::timeout(each, self.scripts.finish()).await.is_err() {
            self.scripts.give_up();
            tracing::warn!("the scripts took too long");
        }
        self.scripts.push_path(now, "tinc-down", &[]);
        if tokio::time::timeout(each, self.scripts.finish()).await.is_err() {
            tracing::warn!("the script tinc-down took too long");
        }
    }

    /// Sends an answer to a client.
    pub(super) fn reply(&mut self, id: ClientId, write: impl FnOnce(&mut Vec<u8>)) {
        let mut out = Vec::new();
        write(&mut out);
        self.clients.send(id, out);
    }

    /// Answers a request of an unknown type.
    pub(super) fn refuse(&mut self, id: ClientId) {
        self.reply(id, server::refuse);
    }
}
