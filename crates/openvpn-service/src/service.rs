mod events;
mod hand_over;
mod requests;

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use adit_dataplane::{FilterConfig, PlaneConfig};
use adit_engine::Transport;
use adit_linux::tcp::TcpStream;
use adit_linux::tun::TunDevice;
use adit_openvpn::server::{Disconnect, MAX_HANDSHAKES, ServerEngine, ServerEvent};
use adit_openvpn_data::OpenVpnFormat;
use tokio::sync::mpsc;

use super::handover::State;
use super::log_events::log_overdue;
use super::metrics::{HandshakeStats, sample_peers};
use super::release_memory::MemoryRelease;
use super::report::{server_drops, tun_report};
use super::sessions::Sessions;
use super::sockets::{bind, datagram_options, listen};
use super::{Command, Handle, Hooks, MacLimits, Options, Selector};
use adit_runtime::authorize::Authorizer;
use adit_runtime::clock::{WallClock, now, unix_time};
use adit_runtime::control::{self, Request, Response, SharedProfile, StatusReport, TunReport};
use adit_runtime::driver::{Driver, Endpoint, Event, Sockets};
use adit_runtime::fault::Fault;
use adit_runtime::filter;
use adit_runtime::host::HostHandle;
use adit_runtime::instance::{self, Controls, EndReason, Instance, Reaction};
use adit_runtime::log::{self, LogLimiter};
use adit_runtime::metrics::{Listener, PeerSample, Samples, table};
use adit_runtime::plane_backend::{PlaneBackend, fill_totals, gates, tun_offloads};
use adit_runtime::privileges;
use adit_runtime::random::seed;
use adit_runtime::signals::{Signal, Signals};
use adit_runtime::worker_count;
use hand_over::HandOver;

/// The time allowed for sending the last packets (exit notices).
const LAST_PACKETS: Duration = Duration::from_millis(50);

/// The maximum number of workers that share the control thread's allocation arena. More would contend for it, because
/// packets that a full stream did not accept are kept on the heap.
const ONE_ARENA: u16 = 2;

/// A server that is listening and whose device is up.
pub struct Service {
    options: Options,
    sockets: Sockets,
    host: HostHandle,
    tun: Option<TunDevice>,
    control: Option<control::Server>,
    metrics: Option<Listener>,
    /// The sessions of a former process.
    inherited: Option<(State, Vec<Option<TcpStream>>)>,
}

impl Service {
    /// Opens the sockets and the device and applies the host plan. Call it inside a tokio runtime with I/O and time;
    /// drop privileges between this and [`Service::run`], which starts the threads.
    ///
    /// # Errors
    /// A resource could not be opened; the error names the remedy.
    pub async fn start(options: Options) -> Result<Self, Fault> {
        let mut service = Self::open(options)?;
        service.apply().await?;
        Ok(service)
    }

    /// Opens the sockets and the device without applying the host plan. Call it like [`Service::start`].
    ///
    /// # Errors
    /// See [`Service::start`].
    pub fn open(mut options: Options) -> Result<Self, Fault> {
        let control = options.control.as_deref().map(control::Server::open).transpose()?;
        let metrics = options.metrics.as_ref().map(Listener::open).transpose()?;
        privileges::raise_descriptor_limit();
        if options.workers <= ONE_ARENA {
            adit_linux::memory::share_one_arena();
        }
        adit_crypto::gather_entropy().map_err(|e| Fault::environment(e.to_string()))?;
        let (streams, datagrams): (Vec<_>, Vec<_>) =
            options.listeners.iter().partition(|l| l.transport == Transport::Tcp);
        let mut inherited = options.hand_over.inherited.take();
        let bound = datagrams.into_iter().enumerate().map(|(id, listener)| {
            let taken = inherited.as_mut().and_then(|inherited| {
                inherited.datagrams(id, &datagram_options(listener, &options))
            });
            taken.map_or_else(|| bind(listener, &options), Ok)
        });
        let bound = bound.collect::<Result<Vec<_>, _>>()?;
        let listening = streams.into_iter().enumerate().map(|(number, listener)| {
            let taken = inherited.as_mut().and_then(|it| it.listener(number, listener.bind));
            taken.map_or_else(|| listen(listener, &options.socket), Ok)
        });
        let sockets = Sockets::server(bound)
            .with_streams(listening.collect::<Result<Vec<_>, _>>()?)
            .with_share(options.port_share.clone());
        let (host, tun, inherited) = match inherited {
            Some(mut inherited) => {
                let (parts, tun) = inherited.device().map_err(|e| {
                    Fault::environment(format!("the device of the former process: {e}"))
                })?;
                let host = HostHandle::take_over(&options.host.device, &parts)?;
                (host, Some(tun), Some(inherited.into_parts()))
            }
            None => {
                let device = &options.host.device;
                let (host, tun) = HostHandle::open(device, tun_offloads(), options.workers)?;
                (host, tun, None)
            }
        };
        Ok(Self { options, sockets, host, tun, control, metrics, inherited })
    }

    /// Returns the device's name.
    pub fn device(&self) -> Option<&str> {
        self.host.device()
    }

    /// Applies the part of the host plan that precedes routes.
    ///
    /// # Errors
    /// The device cannot be set up.
    pub async fn apply_addresses(&mut self) -> Result<(), Fault> {
        let plan = self.options.host.before_routes();
        notes(self.host.apply(&plan).await?).iter().for_each(|note| tracing::warn!("{note}"));
        Ok(())
    }

    /// Applies the whole host plan.
    ///
    /// # Errors
    /// The device cannot be set up.
    pub async fn apply(&mut self) -> Result<(), Fault> {
        let applied = self.host.change(&self.options.host).await?;
        notes(applied).iter().for_each(|note| tracing::warn!("{note}"));
        Ok(())
    }

    /// Serves until SIGTERM, SIGINT or a request to stop, then undoes the host plan. Returns the reason for the end.
    ///
    /// # Errors
    /// The server failed.
    pub async fn run(self, hooks: &mut dyn Hooks) -> Result<EndReason<Infallible>, Fault> {
        let Self { mut options, sockets, mut host, tun, control, metrics, inherited } = self;
        let mut handed_over = false;
        let handed = &mut handed_over;
        let hand_over = HandOver::prepare(&mut options.hand_over, tun.as_ref(), &sockets);
        let (sender, commands) = mpsc::channel(super::COMMAND_LIMIT);
        let served = async {
            let mut controls =
                Controls { signals: Signals::new()?, socket: control, notifier: None, metrics };
            let engine = ServerEngine::new(options.engine.clone(), seed()?, now(), unix_time())
                .map_err(|e| Fault::operator(e.to_string()))?;
            let config = PlaneConfig {
                tun,
                // The sessions of a former process come before their packets.
                sockets: if inherited.is_some() { Vec::new() } else { sockets.all() },
                relay: options.relay,
                gates: gates(),
                client: false,
                ethernet: options.host.device.is_ethernet(),
            };
            let device = host.device().unwrap_or("tun").to_owned();
            let filtered = options.filter.as_ref().map(|live| {
                let firewall = Arc::clone(live.firewall());
                FilterConfig { firewall, device }
            });
            let wanted = options.workers;
            let (plane, upcalls) = adit_openvpn_data::start(config, filtered, now)
                .map_err(|e| worker_count::not_started(&e))?;
            if plane.workers() < usize::from(wanted) {
                tracing::warn!(
                    "workers: {} of {wanted} started: the system allows no more threads; raise LimitNPROC \
                     and TasksMax of the unit, or set ADIT_WORKERS",
                    plane.workers()
                );
            }
            configure(&plane, &options);
            let planes = PlaneBackend::new(plane, upcalls, options.socket.streams);
            let (listening, all) = (sockets.endpoints(), sockets.all());
            let driver = Driver::new(engine, planes, sockets, Arc::clone(&options.authorizer))?;
            let report = tun_report(&host);
            let mut running = Running {
                hooks: &mut *hooks,
                handle: Handle { commands: sender },
                commands,
                host: &mut host,
                driver,
                sessions: Sessions::default(),
                handshakes: HandshakeStats::default(),
                log_limiter: LogLimiter::default(),
                packets: log::Traffic::default(),
                rest: MemoryRelease::default(),
                wall: WallClock::new(),
                listening,
                tun: report,
                filter: options.filter.take(),
                authorizer: Arc::clone(&options.authorizer),
                shared: BTreeMap::new(),
                hand_over,
            };
            running.warn_of_unknown();
            running.hooks.started(&running.handle);
            if let Some((state, streams)) = inherited {
                running.take_over(state, streams, &all, options.socket.streams);
            }
            let device = running.tun.as_ref().map(|tun| tun.name.as_str());
            running.hooks.serving(device, &running.listening);
            let ended = instance::run(&mut running, &mut controls).await;
            // The next server may open its control socket while the last packets are sent.
            drop(controls);
            *handed = running.finish().await;
            ended
        }
        .await;
        if let Ok(reason) = &served {
            hooks.closing(reason).await;
        }
        if handed_over {
            hooks.handed_over();
            host.leave().await;
        } else {
            host.close().await;
        }
        served
    }
}

/// Applies the options of a server to its data plane.
fn configure(plane: &adit_openvpn_data::Plane, options: &Options) {
    let MacLimits { per_client, age, ask } = options.mac_limits;
    plane.limit_macs(per_client, age);
    if ask {
        plane.ask_about_stations();
    }
    if let Some(vlans) = options.engine.vlans {
        plane.sort_into_vlans(vlans);
    }
    if options.socket.copies_tos {
        plane.copy_tos();
    }
}

/// A running server.
struct Running<'a> {
    hooks: &'a mut dyn Hooks,
    handle: Handle,
    commands: mpsc::Receiver<Command>,
    host: &'a mut HostHandle,
    driver: Driver<ServerEngine, PlaneBackend<OpenVpnFormat>>,
    sessions: Sessions,
    handshakes: HandshakeStats,
    log_limiter: LogLimiter,
    /// Traffic counters for the log.
    packets: log::Traffic,
    rest: MemoryRelease,
    wall: WallClock,
    listening: Vec<Endpoint>,
    tun: Option<TunReport>,
    filter: Option<filter::LiveFilter>,
    authorizer: Arc<dyn Authorizer>,
    /// Profiles that two devices use, by name.
    shared: BTreeMap<String, SharedProfile>,
    hand_over: HandOver,
}

/// A reason to wake the server.
enum Wake {
    /// A command of a [`Handle`].
    Command(Command),
    /// An event of the driver.
    Driver(Event<ServerEvent>),
}

impl Instance for Running<'_> {
    type Event = Wake;
    type Reason = Infallible;

    fn role(&self) -> &'static str {
        "server"
    }

    async fn next(&mut self) -> Result<Wake, Fault> {
        tokio::select! {
            biased;
            Some(command) = self.commands.recv() => Ok(Wake::Command(command)),
            fault = self.host.lost() => Err(fault),
            event = self.driver.next() => event.map(Wake::Driver),
        }
    }

    async fn handle(&mut self, wake: Wake) -> Result<Option<EndReason<Infallible>>, Fault> {
        match wake {
            Wake::Command(Command::SetHost(plan)) => self.set_host(&plan).await,
            Wake::Command(command) => self.command(command),
            Wake::Driver(event) => self.driver_events(event),
        }
        Ok(None)
    }

    async fn tick(&mut self) -> Result<Option<EndReason<Infallible>>, Fault> {
        if let Some(unix) = self.wall.wall_clock_jump() {
            self.driver.act(|engine, now, _| engine.set_unix_time(now, unix));
        }
        self.refresh();
        self.packets.tick(now(), self.driver.backend().plane());
        self.tell_overdue();
        self.leases();
        if let Some(filter) = &mut self.filter {
            filter.tick();
        }
        if let Some(tls) = self.hooks.tick(&self.sessions) {
            self.set_tls(tls);
        }
        self.give_memory_back();
        Ok(None)
    }

    fn signal(&mut self, signal: Signal) -> Reaction {
        self.refresh();
        self.hooks.signal(signal, &self.sessions)
    }

    fn reload(&mut self) -> bool {
        let reloaded = self.reload_all();
        if let Err(fault) = &reloaded {
            log::error(&format!("not reloaded: {fault}"));
        }
        reloaded.is_ok()
    }

    fn request(&mut self, request: Request) -> Response {
        let refused = |fault: Fault| Response::Error { message: fault.to_string() };
        match request {
            Request::Kick { name, serial, peer } => {
                let who = name
                    .map(Selector::Name)
                    .or(serial.map(Selector::Serial))
                    .or(peer.map(Selector::Peer));
                match who {
                    Some(who) => {
                        Response::Done {
                            // The client may reconnect where it still has the right to; its handshake is checked.
                            count: self.kick(&who, Disconnect::Restart, "kicked by the operator"),
                        }
                    }
                    None => Response::Error {
                        message: "no client matches: give a name, serial number or peer id".into(),
                    },
                }
            }
            Request::Reload => match self.reload_all() {
                Ok(()) => Response::Reloaded(Box::new(self.hooks.reloaded())),
                Err(fault) => refused(fault),
            },
            Request::ReloadClients => match self.reload_clients() {
                Ok(()) => Response::Done { count: self.sessions.len() },
                Err(fault) => refused(fault),
            },
            Request::HandOver { version, settings } => self.may_hand_over(version, &settings),
            request => self.ask_filter(&request),
        }
    }

    fn sessions(&self) -> usize {
        self.sessions.len()
    }

    fn report(&mut self, report: &mut StatusReport) {
        report.endpoints = self.listening.iter().map(ToString::to_string).collect();
        report.tun.clone_from(&self.tun);
        report.certificate = self.hooks.certificate();
        report.client_certificate = self.hooks.client_certificate();
        report.shared = self.shared.values().cloned().collect();
        report.logins = self.hooks.logins();
        report.filter = self.filter.as_ref().map(|filter| filter.file().to_owned());
        report.connections = self.filter.as_ref().map(filter::LiveFilter::connections);
        fill_totals(report, self.driver.backend().plane());
        let accept_failed = ("accept-failed", self.driver.accept_shortages());
        let reasons = server_drops(&self.driver.engine().counters()).into_iter();
        let reasons = reasons.chain([accept_failed]);
        let occurred = reasons.filter(|(_, count)| *count > 0);
        report.drops.extend(occurred.map(|(name, count)| (name.to_owned(), count)));
    }

    fn report_peers(&mut self, report: &mut StatusReport) {
        self.refresh();
        report.peers = self.sessions.iter().map(|session| session.report(now())).collect();
    }

    fn measure(&mut self, samples: &mut Samples) {
        let engine = self.driver.engine();
        self.handshakes.measure(engine.counters().renegotiations_failed, samples);
        samples.count(&table::QUEUE_LENGTH, ["handshakes"], engine.handshakes() as u64);
        samples.count(&table::QUEUE_LIMIT, ["handshakes"], MAX_HANDSHAKES as u64);
        self.driver.measure(samples);
        self.driver.backend().measure(samples);
        self.hooks.measure(samples);
        if let Some(filter) = &self.filter {
            filter.measure(samples);
        }
    }

    fn sample_peers(&mut self, after: Option<u64>) -> Vec<PeerSample> {
        sample_peers(&self.sessions, after)
    }
}

impl Running<'_> {
    fn tell_overdue(&mut self) {
        log_overdue(&mut self.log_limiter, now());
    }

    /// Releases memory after many clients have disconnected.
    fn give_memory_back(&mut self) {
        let busy = self.sessions.len() + self.driver.engine().handshakes();
        if self.rest.is_due(busy) {
            match busy {
                0 => self.driver.backend().plane().release_memory(),
                _ => self.driver.backend().plane().shrink(),
            }
            self.driver.act(|engine, now, _| engine.release_memory(now));
            self.driver.release_memory();
            self.sessions.release_memory();
            adit_linux::memory::trim();
        }
    }

    fn leases(&mut self) {
        if self.hooks.wants_leases() {
            let leases = self.driver.engine().leases();
            self.hooks.leases(leases.map(|(name, nets)| (name.to_owned(), nets)).collect());
        }
    }

    fn refresh(&mut self) {
        let (plane, engine) = (self.driver.backend().plane(), self.driver.engine());
        self.sessions.refresh(now(), unix_time().0, |peer| {
            let data = plane.counters(peer)?;
            Some(engine.control_traffic(peer).map_or(data, |control| data.plus(control)))
        });
    }

    /// Sends an exit notice to the clients, except for the `remaining` ones whose sessions continue in another process.
    async fn end(&mut self, remaining: usize) {
        self.driver.act(|engine, now, out| engine.shutdown(now, out));
        // The disconnect reports the final counters of each session immediately or not at all.
        let last = async {
            while self.sessions.len() > remaining {
                match self.driver.next().await {
                    Ok(event) => self.driver_event(event),
                    Err(_) => break,
                }
            }
        };
        let _ = tokio::time::timeout(Duration::from_secs(1), last).await;
        while let Some(event) = self.driver.perform() {
            self.driver_event(event);
        }
        self.leases();
        tokio::time::sleep(LAST_PACKETS).await;
    }
}

fn notes(applied: adit_runtime::host::ApplyOutcome) -> Vec<String> {
    match applied {
        adit_runtime::host::ApplyOutcome::Changed(notes) => notes,
        adit_runtime::host::ApplyOutcome::Same => Vec::new(),
    }
}
