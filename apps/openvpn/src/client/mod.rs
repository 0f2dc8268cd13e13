//! A running client with its engine, data plane, device and routes, for `adit openvpn` and `adit connect`.

mod engines;
mod hooks;
mod named_routes;
mod network;
mod report;
mod steps;
#[cfg(test)]
mod tests;
mod tunnel;

use std::collections::VecDeque;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use adit_dataplane::{PlaneConfig, Relay};
use adit_engine::command::Counters;
use adit_engine::{Instant, PeerId};
use adit_linux::tcp::TcpListener;
use adit_linux::tun::TunDevice;
use adit_linux::udp::UdpSocket;
use adit_openvpn::Reason;
use adit_openvpn::client::{ClientEngine, ClientEvent, TunnelConfig};
use adit_openvpn::config::AuthRetry;
use adit_openvpn::data_format::Command;
use adit_openvpn::p2p::{PeerEngine, StaticEngine};
use adit_openvpn::session::PathReport;
use adit_openvpn_data::OpenVpnFormat;

use adit_openvpn_service::HandshakeStats;
use adit_runtime::authorize::Authorizer;
use adit_runtime::clock::{WallClock, now, unix_time};
use adit_runtime::control::{self, Request, Response, StatusReport};
use adit_runtime::driver::{Backend, DialGate, DialSettings, Driver, Event, Sockets};
use adit_runtime::fault::{Blame, Fault};
use adit_runtime::host::{ApplyOutcome, Device, DnsChange, HostEvent, HostHandle, HostPlan};
use adit_runtime::instance::{self, Controls, EndReason, Instance, Reaction};
use adit_runtime::log;
use adit_runtime::metrics;
use adit_runtime::plane_backend::{PlaneBackend, gates, tun_offloads};
use adit_runtime::programs::Finished;
use adit_runtime::random::seed;
use adit_runtime::say;
use adit_runtime::signals::{Signal, Signals};
use adit_runtime::worker_count;
use tokio::sync::mpsc;

use crate::openvpn::scripts::Scripts;
use engines::DrivenEngine;
pub(crate) use engines::Kind;
pub(crate) use hooks::{Hooks, HostReport, Next, Traffic};
use network::Network;
use steps::{Delayed, Hooked, Step};

/// The time limit for an orderly shutdown.
const FAREWELL: Duration = Duration::from_secs(8);

/// The options of a [`Client`].
pub(crate) struct Options {
    /// The engine, with its configuration.
    pub engine: Kind,
    /// The options of sockets.
    pub dial: DialSettings,
    /// The socket to wait on, if there is no server to dial.
    pub listen: Option<ListenSocket>,
    /// The device.
    pub device: Device,
    /// The plan to apply at once, or `None` if nothing is applied before the tunnel is up.
    pub early: Option<HostPlan>,
    /// `persist-tun`: keep addresses and routes during a reconnect.
    pub persist_tun: bool,
    /// The control socket to open.
    pub control: Option<std::path::PathBuf>,
    /// Where metrics are served.
    pub metrics: Option<metrics::Config>,
    /// `allow-recursive-routing`: packets of the transport may enter the tunnel.
    pub allow_recursive: bool,
    /// `allow-pull-fqdn`: look up names in the server's routes.
    pub allow_names: bool,
    /// `passtos`: datagrams have the type of service of the packets that they carry.
    pub copies_tos: bool,
    /// How often counters are read and [`Hooks::tick`] is called.
    pub tick: Duration,
    /// Decides on attempts to connect.
    pub gate: Option<Arc<dyn DialGate>>,
    /// Answers the engine's questions, such as those for a password.
    pub authorizer: Arc<dyn Authorizer>,
    /// The programs to run when the state changes.
    pub scripts: Option<Scripts>,
    /// Commands to the running client.
    pub commands: Option<mpsc::Receiver<ClientCommand>>,
}

/// The maximum number of commands that wait.
pub(crate) const COMMAND_LIMIT: usize = 16;

/// A command to a running client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ClientCommand {
    /// Ask for the user name and password again before they are next sent.
    ForgetLogin,
    /// `auth-retry`.
    AuthRetry(AuthRetry),
    /// The response to a challenge of the server (CR_RESPONSE), in base64.
    Respond(String),
}

/// The socket that waits for the peer.
#[derive(Debug)]
pub(crate) enum ListenSocket {
    /// A socket that receives datagrams.
    Datagrams(UdpSocket),
    /// A listener that accepts connections.
    Streams(TcpListener),
}

/// A client with its device open that is not connected yet.
pub(crate) struct Client {
    options: Options,
    host: HostHandle,
    tun: Option<TunDevice>,
    control: Option<control::Server>,
    metrics: Option<metrics::Listener>,
}

impl Client {
    /// Opens the device. Call it inside a tokio runtime; drop privileges (except CAP_NET_ADMIN, for addresses and
    /// routes) between this call and [`Client::run`], which starts threads.
    ///
    /// # Errors
    /// A file, socket or device could not be opened; the error names the remedy.
    pub(crate) fn open(options: Options) -> Result<Self, Fault> {
        let control = match options.control.as_deref().map(control::Server::open).transpose() {
            // The tunnel works without a control socket, but if the socket is in use, the tunnel is up already.
            Err(fault) if fault.blame() != Blame::Operator => {
                tracing::warn!("{fault}");
                None
            }
            other => other?,
        };
        let (host, tun) =
            HostHandle::open(&options.device, tun_offloads(), worker_count::of_client()?)?;
        let metrics = options.metrics.as_ref().map(metrics::Listener::open).transpose()?;
        Ok(Self { options, host, tun, control, metrics })
    }

    /// Connects and stays connected until the client is stopped or the engine gives up, then undoes its changes to the
    /// machine.
    ///
    /// # Errors
    /// The client failed.
    pub(crate) async fn run(self, hooks: &mut dyn Hooks) -> Result<EndReason<Reason>, Fault> {
        match self.options.engine.clone() {
            Kind::Client(config) => {
                let engine = ClientEngine::new(*config, seed()?, now(), unix_time());
                self.drive(engine, hooks).await
            }
            Kind::Static(config) => self.drive(StaticEngine::new(*config), hooks).await,
            Kind::Peer(config) => {
                let engine = PeerEngine::new(*config, seed()?, now(), unix_time());
                self.drive(engine.map_err(|e| Fault::operator(e.to_string()))?, hooks).await
            }
        }
    }

    async fn drive<E: DrivenEngine>(
        self,
        engine: E,
        hooks: &mut dyn Hooks,
    ) -> Result<EndReason<Reason>, Fault> {
        let Self { mut options, mut host, tun, control, metrics } = self;
        host.clean_up_dns().await;
        // A listening socket is already open.
        options.dial.mark = host.prepare(options.dial.mark, options.listen.is_none()).await;
        let hooked = match options.scripts.take() {
            Some(scripts) => Some(Hooked::open(scripts, options.early.as_ref(), &mut host).await?),
            None => None,
        };
        if let (Some(plan), None) = (&options.early, &hooked) {
            notes(host.apply(plan).await?);
        }
        let streams = options.dial.streams;
        let sockets = match options.listen {
            Some(ListenSocket::Datagrams(socket)) => Sockets::server([vec![socket]]),
            Some(ListenSocket::Streams(listener)) => {
                Sockets::server([]).with_streams(vec![listener])
            }
            None => Sockets::client(options.dial),
        };
        if let Some(bound) = sockets.endpoints().first() {
            hooks.listening(*bound);
        }
        let config = PlaneConfig {
            tun,
            sockets: sockets.all(),
            relay: Relay::Kernel,
            gates: gates(),
            client: true,
            ethernet: options.device.is_ethernet(),
        };
        let (plane, upcalls) = adit_openvpn_data::start(config, None, now)
            .map_err(|e| worker_count::not_started(&e))?;
        if options.copies_tos {
            plane.copy_tos();
        }
        let planes = PlaneBackend::new(plane, upcalls, streams);
        let mut driver = Driver::new(engine, planes, sockets, options.authorizer)?;
        if let Some(gate) = options.gate {
            driver.set_gate(gate);
        }
        let mut controls =
            Controls { signals: Signals::new()?, socket: control, notifier: None, metrics };
        let mut running = Running {
            hooks,
            driver,
            host,
            commands: options.commands,
            role: options.engine.role(),
            fixed_cipher: options.engine.fixed_cipher(),
            persist_tun: options.persist_tun,
            tick: options.tick,
            wall: WallClock::new(),
            tunnel: None,
            peer: None,
            since: 0,
            key_since: now(),
            path: PathReport::default(),
            server: String::new(),
            stream: false,
            network: Network::new(options.allow_recursive),
            allow_names: options.allow_names,
            relay: None,
            proxy: None,
            tls: String::new(),
            routing: None,
            past: Counters::default(),
            past_control: Counters::default(),
            handshakes: HandshakeStats::default(),
            connecting_since: now(),
            session: Counters::default(),
            in_band: (0, 0),
            packets: log::Traffic::default(),
            hooked,
            steps: VecDeque::new(),
            delayed: None,
            answered: None,
        };
        let ended = running.serve(&mut controls).await;
        running.close(ended, &mut controls.signals).await
    }
}

/// Logs the parts of a plan that were left out.
fn notes(applied: ApplyOutcome) {
    if let ApplyOutcome::Changed(notes) = applied {
        notes.iter().for_each(|note| tracing::warn!("{note}"));
    }
}

/// Waits for a command, or forever.
async fn next_command(commands: &mut Option<mpsc::Receiver<ClientCommand>>) -> ClientCommand {
    if let Some(commands) = commands
        && let Some(command) = commands.recv().await
    {
        return command;
    }
    std::future::pending().await
}

/// Waits until a given time, or forever.
async fn until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// A running client.
struct Running<'a, E: DrivenEngine> {
    hooks: &'a mut dyn Hooks,
    driver: Driver<E, PlaneBackend<OpenVpnFormat>>,
    host: HostHandle,
    commands: Option<mpsc::Receiver<ClientCommand>>,
    /// The name of the role in `adit status`.
    role: &'static str,
    /// The cipher, if none is negotiated.
    fixed_cipher: &'static str,
    persist_tun: bool,
    tick: Duration,
    wall: WallClock,
    tunnel: Option<TunnelConfig>,
    peer: Option<PeerId>,
    since: u64,
    key_since: Instant,
    path: PathReport,
    server: String,
    /// Whether the socket that was dialled last is a stream.
    stream: bool,
    /// The state of the network, as far as it affects the transport.
    network: Network,
    allow_names: bool,
    /// The proxy's address for datagrams, if it relays them.
    relay: Option<SocketAddr>,
    /// The destination of the last dialled stream: the server, or the proxy in front of it.
    proxy: Option<IpAddr>,
    tls: String,
    /// The reason why the machine's rules and routes differ from those that the tunnel requires.
    routing: Option<String>,
    /// Traffic of previous sessions.
    past: Counters,
    /// Control channel traffic up to the end of the previous session.
    past_control: Counters,
    handshakes: HandshakeStats,
    /// When the attempt to connect began.
    connecting_since: Instant,
    /// Traffic of the current session.
    session: Counters,
    /// The number of pings and messages among its received packets, and their bytes inside the encryption.
    in_band: (u64, u64),
    /// Traffic counters for the log.
    packets: log::Traffic,
    /// The configuration's programs, if there are any.
    hooked: Option<Hooked>,
    /// The next steps, which wait while a program runs.
    steps: VecDeque<Step>,
    /// The steps that wait for the end of `route-delay`.
    delayed: Option<Delayed>,
    /// The address of the server that answered last.
    answered: Option<SocketAddr>,
}

/// The reasons to wake up the client.
enum Wake {
    /// The check of the connection after a path change is due.
    CheckStream,
    /// A command.
    Command(ClientCommand),
    /// An event of the machine.
    Host(HostEvent),
    /// An event of the driver.
    Driver(Box<Event<ClientEvent>>),
    /// The end of a program.
    ProgramEnded(Finished),
    /// The end of `route-delay`.
    DelayIsOver,
}

impl<E: DrivenEngine> Instance for Running<'_, E> {
    type Event = Wake;
    type Reason = Reason;

    fn role(&self) -> &'static str {
        self.role
    }

    fn tick_interval(&self) -> Duration {
        self.tick
    }

    async fn next(&mut self) -> Result<Wake, Fault> {
        tokio::select! {
            biased;
            () = until(self.check_due()) => Ok(Wake::CheckStream),
            command = next_command(&mut self.commands) => Ok(Wake::Command(command)),
            event = self.host.event() => event.map(Wake::Host),
            finished = Hooked::ended(&mut self.hooked) => Ok(Wake::ProgramEnded(finished)),
            () = Delayed::due(self.delayed.as_ref()) => Ok(Wake::DelayIsOver),
            event = self.driver.next(), if self.steps.len() < steps::MAX_STEPS => {
                event.map(Box::new).map(Wake::Driver)
            }
        }
    }

    async fn handle(&mut self, wake: Wake) -> Result<Option<EndReason<Reason>>, Fault> {
        match wake {
            Wake::CheckStream => self.check_stream(),
            Wake::Command(command) => {
                self.driver.act(|engine, now, out| engine.command(now, command, out));
            }
            Wake::Host(event) => self.host_event(&event),
            Wake::Driver(event) => self.steps.push_back(Step::Event(event)),
            Wake::ProgramEnded(finished) => self.program_ended(&finished)?,
            Wake::DelayIsOver => self.delay_is_over(),
        }
        Ok(self.advance().await?.map(EndReason::Stopped))
    }

    async fn tick(&mut self) -> Result<Option<EndReason<Reason>>, Fault> {
        if let Some(unix) = self.wall.wall_clock_jump() {
            self.driver.act(|engine, now, _| engine.set_unix_time(now, unix));
        }
        self.refresh();
        self.packets.tick(now(), self.driver.backend().plane());
        self.network_tick();
        let traffic = self.traffic();
        match self.hooks.tick(&traffic) {
            Next::GoOn => {}
            Next::Send(packet) => self.send(packet),
            Next::End => return Ok(Some(EndReason::Asked)),
        }
        Ok(self.advance().await?.map(EndReason::Stopped))
    }

    fn signal(&mut self, signal: Signal) -> Reaction {
        self.hooks.signal(signal)
    }

    fn reload(&mut self) -> bool {
        self.driver.act(|engine, now, out| engine.restart(now, out));
        true
    }

    fn request(&mut self, _: Request) -> Response {
        Response::Error { message: "this is a client: it supports only status and stop".into() }
    }

    fn report(&mut self, report: &mut StatusReport) {
        self.complete(report);
    }

    fn report_peers(&mut self, report: &mut StatusReport) {
        report.peers = self.peer_report().into_iter().collect();
    }

    fn measure(&mut self, samples: &mut metrics::Samples) {
        self.handshakes.measure(0, samples);
        self.driver.measure(samples);
        self.driver.backend().measure(samples);
    }

    fn sample_peers(&mut self, after: Option<u64>) -> Vec<metrics::PeerSample> {
        match after {
            None => self.peer_sample().into_iter().collect(),
            Some(_) => Vec::new(),
        }
    }
}

impl<E: DrivenEngine> Running<'_, E> {
    async fn serve(&mut self, controls: &mut Controls) -> Result<EndReason<Reason>, Fault> {
        let ended = instance::run(self, controls).await?;
        if matches!(ended, EndReason::Signal(_) | EndReason::Asked) {
            self.send_exit_notice().await?;
        }
        Ok(ended)
    }

    async fn send_exit_notice(&mut self) -> Result<(), Fault> {
        self.driver.act(|engine, now, out| engine.shutdown(now, out));
        let last = async {
            loop {
                let event = self.driver.next().await?;
                if self.handle_event(event).await?.is_some() {
                    return Ok(());
                }
            }
        };
        // Do not wait for a server that acknowledges nothing.
        tokio::time::timeout(FAREWELL, last).await.unwrap_or(Ok(()))
    }

    async fn handle_event(&mut self, event: Event<ClientEvent>) -> Result<Option<Reason>, Fault> {
        let event = match event {
            Event::Dialling(remote) => {
                self.hooks.dialling(remote);
                self.proxy = Some(remote.ip());
                // The packets of this stream must not enter the tunnel that they are to carry.
                self.host.keep_reachable(remote.ip()).await;
                return Ok(None);
            }
            Event::Dialled(dialled) => {
                self.stream = dialled.link.is_stream();
                self.relay = Some(dialled.hop).filter(|hop| *hop != dialled.link.remote());
                self.network_dialled(&dialled);
                self.hooks.dialled(&dialled);
                self.host.keep_reachable(dialled.hop.ip()).await;
                return Ok(None);
            }
            Event::DialFailed(reason) => {
                self.hooks.dial_failed(&reason);
                return Ok(None);
            }
            // A client has one connection.
            Event::StreamOpened(..) => return Ok(None),
            // Routes and hooks need the packets' destination, not the local relay to the proxy.
            Event::Engine(ClientEvent::Up(mut tunnel)) => {
                tunnel.remote = self.relay.or(tunnel.remote);
                ClientEvent::Up(tunnel)
            }
            Event::Engine(event) => event,
        };
        self.hooks.event(&event);
        match event {
            ClientEvent::Connecting(server) => {
                self.connecting_since = now();
                self.server = server;
            }
            ClientEvent::ServerAnswered(link, _) => self.server_answered(link.remote()),
            ClientEvent::Authenticated { tls, server, certificates } => {
                self.tls = tls;
                self.authenticated(&server.common_name, &certificates);
            }
            ClientEvent::Up(tunnel) => {
                self.handshakes.succeeded(Some(now().since(self.connecting_since)));
                self.up(*tunnel).await?;
            }
            ClientEvent::Updated(tunnel) => self.updated(*tunnel).await?,
            ClientEvent::Rekeyed { .. } => {
                self.handshakes.rekeyed();
                self.key_since = now();
            }
            ClientEvent::Path(path) => self.path = path,
            ClientEvent::Restarting(reason) => {
                if self.peer.is_none() {
                    self.handshakes.failed(reason.name());
                }
                self.down(&reason).await;
            }
            ClientEvent::Stopped(stop) => return Ok(Some(stop)),
            ClientEvent::Unreachable(..)
            | ClientEvent::Reverified { .. }
            | ClientEvent::Pushed(_)
            | ClientEvent::Echo(_)
            | ClientEvent::AuthPending(_)
            | ClientEvent::ServerInfo(_)
            | ClientEvent::Token(_)
            | ClientEvent::Note(_)
            | ClientEvent::Warning(_) => {}
        }
        Ok(None)
    }

    fn host_event(&mut self, event: &HostEvent) {
        match event {
            HostEvent::PathChanged { sources } => self.path_is_back(sources),
            HostEvent::PathLost { alternative } => self.path_is_lost(*alternative),
            HostEvent::Routing(problem) => self.routing.clone_from(problem),
            HostEvent::Dns(event) => {
                let logged = event.change != DnsChange::AppliedAgain;
                match event.change {
                    DnsChange::AppliedAgain => tracing::warn!(
                        "DNS: another program replaced /etc/resolv.conf: the tunnel's servers are put \
                         back, and its new content is restored at the end"
                    ),
                    DnsChange::Lost => tracing::warn!("DNS: now {}", event.in_use),
                    DnsChange::Back => say!(1, "DNS: now {}", event.in_use),
                }
                self.hooks.dns(&event.in_use, logged);
            }
        }
    }

    /// Adds the traffic of a session that ends to the total.
    fn keep_traffic(&mut self) {
        self.refresh();
        let ended = std::mem::take(&mut self.session);
        self.in_band = (0, 0);
        self.past = self.past.plus(ended);
        self.past_control = self.driver.control_traffic();
        self.peer = None;
    }

    fn send(&self, packet: Vec<u8>) {
        if let Some(peer) = self.peer {
            self.driver.backend().apply(Command::SendData(peer, packet));
        }
    }

    fn refresh(&mut self) {
        let plane = self.driver.backend().plane();
        if let Some(counters) = self.peer.and_then(|peer| plane.counters(peer)) {
            self.session = counters;
        }
        if let Some(in_band) = self.peer.and_then(|peer| plane.in_band_received(peer)) {
            self.in_band = in_band;
        }
    }

    fn traffic(&self) -> Traffic {
        let (packets, bytes) = self.in_band;
        Traffic {
            data: self.past.plus(self.session),
            control: self.driver.control_traffic(),
            tunnel_packets: self.session.rx_packets.saturating_sub(packets),
            tunnel_bytes: self.session.rx_bytes.saturating_sub(bytes),
        }
    }
}
