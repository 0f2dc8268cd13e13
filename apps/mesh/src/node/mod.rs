//! The running node.

mod addresses;
mod admin;
mod apps;
mod directory;
mod ethernet;
mod helper_duty;
mod host_plan;
mod memory_release;
mod names;
mod policy;
mod rates;
mod report;
mod requests;
mod store;
mod streams;

use std::convert::Infallible;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use adit_dataplane::{PlaneConfig, StreamOptions};
use adit_dns::zone::Zone;
use adit_engine::{Instant, Transport};
use adit_linux::privileges::Capability;
use adit_linux::udp::{UdpOptions, UdpSocket, steer};
use adit_mesh::node::{Node, NodeConfig, NodeEvent, RelayLimits};
use adit_mesh::path::Route;
use adit_mesh::roster::Layer;
use adit_mesh::session::{KeyHash, Policy, Reason};
use adit_openvpn_data::OpenVpnFormat;
use adit_openvpn_data::packet::SENDER;
use adit_openvpn_service::server_drops;
use adit_runtime::authorize::CertificateOnly;
use adit_runtime::clock::{WallClock, now, unix_time};
use adit_runtime::control::{MeshInvitation, MeshReport, Request, Response, StatusReport};
use adit_runtime::driver::{Driver, Event, Sockets, bind_problem};
use adit_runtime::fault::Fault;
use adit_runtime::helper::{self, sockets};
use adit_runtime::host::{ApplyOutcome, DnsChange, HostEvent, HostHandle, HostPlan};
use adit_runtime::instance::{self, Controls, EndReason, Instance};
use adit_runtime::plane_backend::{PlaneBackend, fill_totals, gates, tun_offloads};
use adit_runtime::{log, netinfo, privileges, say, worker_count};
use ipnet::IpNet;
use tokio::task::LocalSet;

use self::addresses::OwnAddresses;
use self::apps::AppServer;
use self::directory::{DirectoryEvent, NodeDirectory, next_event};
pub use self::helper_duty::MESH;
use self::helper_duty::MeshDuty;
use self::host_plan::Conflict;
use self::memory_release::MemoryRelease;
use self::names::Names;
use self::policy::NodePolicy;
use self::rates::Rates;
use self::report::hex;
use self::store::Store;
use super::admin_keys::AdminKeys;
use super::directory::DirectoryConfig;
use super::port_mapping::PortMapping;
use super::state::State;
use super::{Paths, Settings, short};

/// The options of `adit mesh up` that are not stored in the node's files.
#[derive(Clone, Debug, Default)]
pub struct UpOptions {
    /// The UDP port, which overrides the settings.
    pub port: Option<u16>,
    /// Whether to resolve the mesh's names, and change the machine's DNS settings accordingly.
    pub names: bool,
    /// The gateway for the internet, which overrides the settings.
    pub exit: Option<String>,
    /// The user to run as, or `None` for `adit`, or `nobody` if that user does not exist.
    pub user: Option<String>,
    /// Adds to the log.
    pub verbose: u8,
    /// An invitation for the next machine, to be created once the node runs.
    pub invite: Option<MeshInvitation>,
}

/// The time after which changes are tried again that the kernel refused.
const RETRY: Duration = Duration::from_secs(15);

/// The information about a node once it runs.
#[derive(Clone, Debug)]
pub struct UpReport {
    /// The node.
    pub node: MeshReport,
    /// The token of [`UpOptions::invite`].
    pub token: Option<String>,
}

/// The maximum number of workers that share the control thread's allocation arena, as for a server.
const ONE_ARENA: u16 = 2;

/// Called once the node runs.
pub type OnUp<'a> = &'a mut dyn FnMut(&UpReport);

/// Runs a node until it is asked to stop.
pub fn up(paths: &Paths, options: &UpOptions, on_up: OnUp<'_>) -> ExitCode {
    match start(paths, options, on_up) {
        Ok(()) => ExitCode::SUCCESS,
        Err(fault) => {
            log::error(&fault.to_string());
            fault.exit_code()
        }
    }
}

fn start(paths: &Paths, options: &UpOptions, on_up: OnUp<'_>) -> Result<(), Fault> {
    log::start(log::Settings::friendly(options.verbose.saturating_add(1)))
        .map_err(|error| Fault::environment(format!("cannot log: {error}")))?;
    // Keep keys out of core dumps. If that fails, the mesh works anyway.
    let _ = adit_linux::privileges::protect_memory();
    let mut settings = Settings::load(paths)?;
    settings.port = options.port.unwrap_or(settings.port);
    settings.exit = options.exit.clone().or(settings.exit);
    let state = State::open(paths)?;
    ethernet::check_settings(&settings, &state.changes)?;
    let directory = DirectoryConfig::load(paths)?;
    paths.create()?;
    let duty = MeshDuty {
        dir: paths.dir().map(Path::to_owned),
        name: paths.name.clone(),
        port: options.port,
        names: options.names,
        exit: options.exit.clone(),
    };
    // The helper ends last, when everything is undone.
    let helper = helper::start(&MESH, &duty, &[])?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::environment(format!("cannot start: {error}")))?;
    let files = (state, directory);
    let local = LocalSet::new();
    local.block_on(&runtime, serve(paths, options, settings, files, helper.is_some(), on_up))
}

/// Returns the options of the node's sockets.
fn socket_options(address: SocketAddr, mark: Option<u32>) -> UdpOptions {
    let mut udp = UdpOptions::new(address);
    udp.gro = gates().udp_gro;
    udp.fwmark = mark;
    udp
}

/// Binds the node's port, once for each worker.
fn bind(port: u16, workers: u16, mark: Option<u32>) -> Result<Vec<UdpSocket>, Fault> {
    let at =
        |ip: IpAddr| sockets::udp_group(&socket_options(SocketAddr::new(ip, port), mark), workers);
    let group = match at(Ipv6Addr::UNSPECIFIED.into()) {
        Err(error) if error.kind() != std::io::ErrorKind::AddrInUse => {
            at(Ipv4Addr::UNSPECIFIED.into())
        }
        group => group,
    };
    let group = group.map_err(|error| {
        let any = SocketAddr::new(Ipv6Addr::UNSPECIFIED.into(), port);
        let problem = bind_problem(Transport::Udp, any, None, &error);
        Fault::environment(format!("{problem}; or choose another port for the mesh with --port"))
    })?;
    if let Err(error) = steer(&group, &SENDER) {
        tracing::debug!("peers are spread over the workers by their addresses: {error}");
    }
    Ok(group)
}

async fn serve(
    paths: &Paths,
    options: &UpOptions,
    settings: Settings,
    (state, directory): (State, Option<DirectoryConfig>),
    helped: bool,
    on_up: OnUp<'_>,
) -> Result<(), Fault> {
    adit_crypto::gather_entropy().map_err(|error| Fault::environment(error.to_string()))?;
    privileges::raise_descriptor_limit();
    let workers = worker_count::of_server(None, settings.workers)?;
    if workers <= ONE_ARENA {
        adit_linux::memory::share_one_arena();
    }
    let mut controls = Controls::open(&paths.control_socket())?;
    let conflict =
        Conflict::find(&state.changes, &netinfo::local_networks_except(&settings.device));
    conflict.iter().for_each(|conflict| tracing::warn!("{conflict}"));
    let layer = state.changes.genesis().layer;
    let device = host_plan::device(&settings, layer);
    let (mut host, tun) = HostHandle::open(&device, tun_offloads(), workers)?;
    // Marked packets stay outside a full tunnel.
    let mark = match &settings.exit {
        Some(_) => host.prepare(None, true).await,
        None => None,
    };
    let group = bind(settings.port, workers, mark)?;
    let port = group.first().map_or(settings.port, |socket| socket.local_addr().port());
    let sockets = Sockets::server([group]);
    let config = PlaneConfig {
        tun,
        sockets: sockets.all(),
        relay: ethernet::relay(layer),
        gates: gates(),
        client: false,
        ethernet: layer == Layer::Ethernet,
    };
    let stored = policy::stored(paths)?;
    let apps = AppServer::open(paths)?;
    let State { key, admin, roster, changes, invitations, reach } = state;
    let node = NodeConfig {
        key,
        admin: admin.current()?,
        changes,
        invitations,
        endpoints: reach.endpoints(),
        hints: reach.hints(),
        stream_hints: reach.tcp_hints(),
        policy: Policy {
            channels: settings.channels_of(workers),
            workers: workers.into(),
            ..Policy::default()
        },
        relay_limits: RelayLimits::default(),
        policy_text: stored.clone(),
        compared: reach.compared(),
        max_age: settings.max_age,
    };
    let node = Node::new(node, adit_runtime::random::seed()?, now(), unix_time())
        .map_err(|error| Fault::ours(error.to_string()))?;
    let plan_of = |conflict| {
        host_plan::plan(&settings, node.roster(), &node.key_hash(), node.changes(), conflict)
    };
    let mut plan = plan_of(conflict.as_ref());
    let mut refused = notes(host.apply(&plan).await?);
    let zone = names::zone(node.roster(), node.changes(), conflict.is_none());
    let names = if options.names { serve_names(zone, &plan).await } else { None };
    if names.is_some() {
        plan.dns = host_plan::dns(&plan, node.changes());
        refused.extend(notes(host.change(&plan).await?));
    }
    // Without a helper, the process keeps the capability to change routes.
    privileges::become_user("node", options.user.as_ref(), helped, &[Capability::CAP_NET_ADMIN])?;
    let policy = NodePolicy::new(paths, &settings, workers, stored, &node)?;
    let (plane, upcalls) = adit_openvpn_data::start(config, policy.filter_config(), now)
        .map_err(|error| Fault::environment(format!("cannot start the data plane: {error}")))?;
    plane.report_unrouted();
    plane.guard_sources(ethernet::guarded(node.changes()));
    let backend = PlaneBackend::new(plane, upcalls, StreamOptions::default());
    let driver = Driver::new(node, backend, sockets, Arc::new(CertificateOnly))?;
    let directory = NodeDirectory::start(directory, driver.engine())?;
    let port_mapping = NonZeroU16::new(port).filter(|_| settings.port_mapping);
    let port_mapping = port_mapping.map(PortMapping::start);
    let mut running = Running {
        driver,
        host,
        addresses: OwnAddresses::new(port, settings.device.clone()),
        directory,
        port_mapping,
        mapped: Vec::new(),
        store: Store::new(paths, roster, reach),
        settings,
        mark,
        mesh: paths.name.clone(),
        names,
        policy,
        exit_problem: None,
        apps,
        retry_at: (!refused.is_empty()).then(|| now() + RETRY),
        refused,
        trust_problems: Vec::new(),
        admin_keys: admin,
        conflict,
        packets: log::Traffic::default(),
        rates: Rates::default(),
        memory_release: MemoryRelease::default(),
        wall: WallClock::new(),
        removed: false,
        tcp_port: None,
        tcp_problem: None,
    };
    running.accept_streams();
    running.watch_addresses();
    running.set_exit();
    running.update_apps();
    let token = match &options.invite {
        Some(invitation) => Some(running.invite(invitation)?.token),
        None => None,
    };
    running.store.flush(running.driver.engine());
    on_up(&UpReport { node: running.mesh_report(), token });
    controls.ready(&format!("node of the mesh {}", paths.name));
    let ended = instance::run(&mut running, &mut controls).await;
    controls.stopping();
    running.store.flush(running.driver.engine());
    running.end().await;
    ended.map(drop)
}

/// Starts the DNS server, if possible.
async fn serve_names(zone: Zone, plan: &HostPlan) -> Option<Names> {
    let own: Vec<IpAddr> = plan.addresses.iter().map(IpNet::addr).collect();
    let started = Names::start(zone, &own).await;
    started
        .inspect_err(|error| {
            tracing::warn!(
                "the names of the mesh are not answered: port 53 of this node's addresses: {error}; without names, start \
                 it with --dns off"
            );
        })
        .ok()
}

fn notes(outcome: ApplyOutcome) -> Vec<String> {
    let ApplyOutcome::Changed(notes) = outcome else { return Vec::new() };
    notes.iter().for_each(|note| tracing::warn!("{note}"));
    notes
}

/// A running node.
struct Running {
    driver: Driver<Node, PlaneBackend<OpenVpnFormat>>,
    host: HostHandle,
    addresses: OwnAddresses,
    directory: Option<NodeDirectory>,
    port_mapping: Option<PortMapping>,
    /// The port mapping's addresses, as last passed to the node.
    mapped: Vec<SocketAddr>,
    store: Store,
    settings: Settings,
    /// The mark of the node's sockets.
    mark: Option<u32>,
    mesh: String,
    names: Option<Names>,
    policy: NodePolicy,
    /// The reason why there is no gateway although the settings name one.
    exit_problem: Option<String>,
    /// The server for OpenVPN apps.
    apps: AppServer,
    /// The last plan's changes that the kernel refused, as logged.
    refused: Vec<String>,
    /// The time at which these are tried again.
    retry_at: Option<Instant>,
    /// The logged problems with comparisons.
    trust_problems: Vec<String>,
    admin_keys: AdminKeys,
    /// The reason why this machine has no IPv4 address in the mesh.
    conflict: Option<Conflict>,
    packets: log::Traffic,
    memory_release: MemoryRelease,
    rates: Rates,
    wall: WallClock,
    removed: bool,
    /// The TCP port at which this node accepts connections.
    tcp_port: Option<NonZeroU16>,
    /// The reason why it does not accept connections although it should.
    tcp_problem: Option<String>,
}

/// An event that wakes the node.
enum Wake {
    Host(HostEvent),
    Directory(DirectoryEvent),
    Driver(Event<NodeEvent>),
}

fn host_event(event: &HostEvent) {
    match event {
        // Check the node's own addresses.
        HostEvent::PathChanged { .. } | HostEvent::PathLost { .. } => {}
        HostEvent::Routing(Some(problem)) => tracing::warn!("routes: {problem}"),
        HostEvent::Routing(None) => say!(1, "routes: complete again"),
        HostEvent::Dns(event) => match event.change {
            DnsChange::AppliedAgain => tracing::warn!(
                "DNS: another program replaced /etc/resolv.conf: the names of the mesh are put back"
            ),
            DnsChange::Lost => tracing::warn!("DNS: now {}", event.in_use),
            DnsChange::Back => say!(1, "DNS: now {}", event.in_use),
        },
    }
}

impl Instance for Running {
    type Event = Wake;
    type Reason = Infallible;

    fn role(&self) -> &'static str {
        "mesh"
    }

    async fn next(&mut self) -> Result<Self::Event, Fault> {
        tokio::select! {
            biased;
            event = self.host.event() => event.map(Wake::Host),
            event = next_event(&mut self.directory) => Ok(Wake::Directory(event)),
            event = self.driver.next() => event.map(Wake::Driver),
        }
    }

    async fn handle(&mut self, wake: Wake) -> Result<Option<EndReason<Infallible>>, Fault> {
        let mut next = match wake {
            Wake::Driver(event) => Some(event),
            Wake::Host(event) => {
                host_event(&event);
                self.driver.perform()
            }
            Wake::Directory(event) => {
                self.directory_event(event);
                self.driver.perform()
            }
        };
        while let Some(event) = next {
            match event {
                Event::Engine(event) => self.event(event).await?,
                Event::StreamOpened(to, opened) => self.stream_opened(to, opened),
                Event::Dialling(_) | Event::Dialled(_) | Event::DialFailed(_) => {}
            }
            next = self.driver.perform();
        }
        self.store.write_due(self.driver.engine());
        if self.removed {
            return Err(Fault::operator(format!(
                "this node was removed from the mesh {}; to join it again, remove {} and ask for an invitation",
                self.mesh,
                self.store.state().display()
            )));
        }
        Ok(None)
    }

    async fn tick(&mut self) -> Result<Option<EndReason<Infallible>>, Fault> {
        if let Some(unix) = self.wall.wall_clock_jump() {
            self.driver.act(|node, now, _| node.set_unix_time(now, unix));
        }
        if self.retry_at.is_some_and(|at| at <= now()) {
            self.roster_changed().await;
        }
        self.watch_addresses();
        self.packets.tick(now(), self.driver.backend().plane());
        self.sample_rates();
        self.store.write_due(self.driver.engine());
        self.policy.tick();
        self.tick_apps();
        self.directory_tick();
        self.release_memory();
        Ok(None)
    }

    fn reload(&mut self) {
        say!(1, "nothing is read again but by a restart");
    }

    fn request(&mut self, request: Request) -> Response {
        self.answer(request)
    }

    fn sessions(&self) -> usize {
        self.driver.engine().connections()
    }

    fn report(&mut self, report: &mut StatusReport) {
        fill_totals(report, self.driver.backend().plane());
        self.policy.report(report);
        if let Some(counters) = self.driver.engine().app_counters() {
            let drops = server_drops(&counters).into_iter().filter(|(_, count)| *count > 0);
            report.drops.extend(drops.map(|(name, count)| (name.to_owned(), count)));
        }
        report.mesh = Some(self.mesh_report());
    }
}

impl Running {
    async fn event(&mut self, event: NodeEvent) -> Result<(), Fault> {
        match event {
            NodeEvent::Added(hashes) => {
                self.store.append(self.driver.engine(), &hashes)?;
                self.advance_admin_key()?;
                self.changes_added(&hashes);
            }
            NodeEvent::Roster => self.roster_changed().await,
            NodeEvent::Invitations => self.store.invitations_changed(self.driver.engine()),
            NodeEvent::Endpoints | NodeEvent::Compared => self.store.endpoints_changed(),
            NodeEvent::Trust => self.trust_changed(),
            NodeEvent::Policy => {
                self.policy.changed(self.driver.engine(), self.driver.backend().plane());
            }
            NodeEvent::Connected { peer, via, stream } => {
                let (name, via) = (self.name(&peer), via.map(|relay| self.name(&relay)));
                match via {
                    Some(relay) => say!(1, "{name}: connected through {relay}"),
                    None if stream => say!(1, "{name}: connected over TCP"),
                    None => say!(1, "{name}: connected"),
                }
            }
            NodeEvent::Disconnected { peer, reason: reason @ (Reason::Idle | Reason::Closed) } => {
                say!(2, "{}: disconnected: {reason}", self.name(&peer));
            }
            NodeEvent::Disconnected { peer, reason } => {
                say!(1, "{}: disconnected: {reason}", self.name(&peer));
            }
            NodeEvent::Path { peer, route } => {
                let name = self.name(&peer);
                match route {
                    Route::Direct { to, .. } => say!(1, "{name}: direct path to {to}"),
                    Route::Stream { to, .. } => say!(1, "{name}: TCP connection to {to}"),
                    Route::Relay(relay) => say!(1, "{name}: through {}", self.name(&relay)),
                }
            }
            NodeEvent::OpenSockets { peer, count } => {
                let any = SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), 0);
                let udp = socket_options(any, self.mark);
                let sockets = self.driver.open_sockets(&udp, count);
                self.driver.act(|node, now, out| node.sockets_opened(now, &peer, sockets, out));
            }
            NodeEvent::OpenStream(to) => self.open_stream(to),
            NodeEvent::CloseSockets(sockets) => self.driver.close_sockets(&sockets),
            NodeEvent::App(event) => self.apps.log(&event),
            NodeEvent::Admitted(key) => say!(1, "{} joined the mesh", self.name(&key)),
            NodeEvent::NotAdmitted(reason) => say!(1, "a node could not join: {reason}"),
            NodeEvent::Waiting(key) => {
                if let Some(joiner) = self.joiners().into_iter().find(|it| it.key == hex(&key)) {
                    tracing::warn!(
                        "{} wants to join, with the key {}: admit it with: adit mesh approve {}",
                        joiner.name,
                        joiner.fingerprint,
                        joiner.name
                    );
                }
            }
            NodeEvent::Removed => self.removed = true,
        }
        Ok(())
    }

    /// Samples the traffic between this node and each peer.
    fn sample_rates(&mut self) {
        let (node, plane) = (self.driver.engine(), self.driver.backend().plane());
        let connected = node.peers().filter(|key| !node.channels(key).is_empty());
        let counters = connected.map(|key| {
            let channels = node.channels(&key).iter();
            (key, channels.filter_map(|channel| plane.counters(*channel)).collect())
        });
        self.rates.sample(now(), counters);
    }

    /// Logs which peers have become stale or lost their routes, and which have recovered.
    fn trust_changed(&mut self) {
        let problems = self.trust_problems();
        for problem in problems.iter().filter(|it| !self.trust_problems.contains(it)) {
            tracing::warn!("{problem}");
        }
        for problem in self.trust_problems.iter().filter(|it| !problems.contains(it)) {
            say!(1, "no longer: {problem}");
        }
        self.trust_problems = problems;
    }

    /// Sets this machine's addresses and routes again.
    async fn roster_changed(&mut self) {
        let node = self.driver.engine();
        let mut plan = host_plan::plan(
            &self.settings,
            node.roster(),
            &node.key_hash(),
            node.changes(),
            self.conflict.as_ref(),
        );
        if let Some(names) = &self.names {
            let has_ipv4 = self.conflict.is_none();
            names.set_zone(names::zone(node.roster(), node.changes(), has_ipv4));
            plan.dns = host_plan::dns(&plan, node.changes());
        }
        self.policy.members_changed(self.driver.engine());
        self.set_exit();
        self.update_apps();
        self.accept_streams();
        let refused = match self.host.change(&plan).await {
            // The kernel refused no part of this plan before; otherwise it would be tried again.
            Ok(ApplyOutcome::Same) => Vec::new(),
            Ok(ApplyOutcome::Changed(notes)) => notes,
            Err(fault) => vec![fault.to_string()],
        };
        for note in refused.iter().filter(|note| !self.refused.contains(note)) {
            tracing::warn!("{note}");
        }
        self.retry_at = (!refused.is_empty()).then(|| now() + RETRY);
        self.refused = refused;
    }

    /// Sets the node's exit gateway from the settings. If the gateway is gone, no packets leave the machine, inside or outside the mesh.
    fn set_exit(&mut self) {
        let exit = host_plan::exit(&self.settings, self.driver.engine().roster());
        let (exit, problem) = match exit {
            Ok(exit) => (exit, None),
            Err(fault) => (None, Some(format!("the internet is not reachable: {fault}"))),
        };
        if let Some(problem) = &problem
            && self.exit_problem.as_ref() != Some(problem)
        {
            tracing::warn!("{problem}");
        }
        self.exit_problem = problem;
        self.driver.act(|node, _, out| node.set_exit(exit, out));
    }

    /// Passes the addresses of this machine's interfaces and port mappings to the node, if they have changed.
    fn watch_addresses(&mut self) {
        let node = self.driver.engine();
        let own = node.roster().member(&node.key_hash());
        let inside: Vec<IpAddr> = own
            .into_iter()
            .flat_map(|own| own.ipv4.map(IpAddr::from).into_iter().chain([own.ipv6.into()]))
            .collect();
        let own = self.addresses.changed(&inside);
        self.keep_out_own_packets();
        let mapped = self.port_mapping.as_ref().map(PortMapping::external_addresses);
        let mapped = mapped.unwrap_or_default();
        if own.is_some() || mapped != self.mapped {
            self.mapped.clone_from(&mapped);
            let own = self.addresses.current().to_vec();
            self.driver.act(|node, now, out| node.set_addresses(now, own, mapped, out));
        }
    }

    /// Releases the memory that the last packets and handshakes needed, once the node is idle.
    fn release_memory(&mut self) {
        let totals = self.driver.backend().plane().totals();
        let packets = totals.tun_read.packets.saturating_add(totals.tun_written.packets);
        if self.memory_release.is_due(packets) {
            self.driver.backend().plane().release_memory();
            self.driver.act(|node, now, _| node.release_memory(now));
            self.driver.release_memory();
            adit_linux::memory::trim();
        }
    }

    /// Returns the name of a member, or the beginning of its key's hash.
    fn name(&self, key: &KeyHash) -> String {
        let member = self.driver.engine().roster().member(key);
        let name = member.and_then(|member| member.name.as_ref());
        name.map_or_else(|| short(key), ToString::to_string)
    }

    /// Ends the sessions, and undoes everything that the node did to this machine.
    async fn end(mut self) {
        self.driver.act(Node::close);
        while self.driver.perform().is_some() {}
        // Let the data plane's threads send the last packets.
        tokio::time::sleep(Duration::from_millis(50)).await;
        drop(self.driver);
        if let Some(port_mapping) = self.port_mapping {
            port_mapping.release().await;
        }
        self.host.close().await;
    }
}
