//! The start of a node: its files, its place on this machine, and its data plane.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::num::NonZeroU16;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;

use adit_dataplane::{PlaneConfig, StreamOptions};
use adit_dns::zone::Zone;
use adit_engine::Transport;
use adit_linux::privileges::Capability;
use adit_linux::udp::{UdpOptions, UdpSocket, steer};
use adit_mesh::node::{Node, NodeConfig, RelayLimits};
use adit_mesh::roster::Layer;
use adit_mesh::session::Policy;
use adit_openvpn_data::packet::SENDER;
use adit_runtime::authorize::CertificateOnly;
use adit_runtime::clock::{WallClock, now, unix_time};
use adit_runtime::control::{MeshInvitation, MeshReport};
use adit_runtime::driver::{Driver, Sockets, bind_problem};
use adit_runtime::fault::Fault;
use adit_runtime::helper::{self, sockets};
use adit_runtime::host::{ApplyOutcome, HostHandle, HostPlan};
use adit_runtime::instance::{self, Controls};
use adit_runtime::log::LogLimiter;
use adit_runtime::metrics::Config as MetricsConfig;
use adit_runtime::plane_backend::{PlaneBackend, gates, tun_offloads};
use adit_runtime::{log, netinfo, privileges, worker_count};
use ipnet::IpNet;
use tokio::task::LocalSet;

use super::addresses::OwnAddresses;
use super::apps::AppServer;
use super::directory::NodeDirectory;
use super::ethernet;
use super::guest::{self, TincGuest};
use super::helper_duty::{MESH, MeshDuty};
use super::host_plan::{self, Conflict};
use super::memory_release::MemoryRelease;
use super::metrics::NodeStats;
use super::names::{self, Names};
use super::policy::{self, NodePolicy};
use super::rates::Rates;
use super::store::Store;
use super::{RETRY, Running};
use crate::admin_keys::AdminKeys;
use crate::directory::DirectoryConfig;
use crate::guest::GuestProcess;
use crate::port_mapping::PortMapping;
use crate::reach::Reach;
use crate::roster_file::RosterFile;
use crate::state::State;
use crate::{Paths, Settings};

/// The options of `adit mesh up` that are not stored in the node's files.
#[derive(Clone, Debug, Default)]
pub struct UpOptions {
    /// The UDP port. Overrides the settings.
    pub port: Option<u16>,
    /// Whether to resolve the mesh's names, and change the machine's DNS settings accordingly.
    pub names: bool,
    /// The gateway for the internet. Overrides the settings.
    pub exit: Option<String>,
    /// The user to run as, or `None` for `adit`, or `nobody` if that user does not exist.
    pub user: Option<String>,
    /// Where metrics are served. Overrides the settings.
    pub metrics: Option<MetricsConfig>,
    /// Adds to the log.
    pub verbose: u8,
    /// An invitation for the next machine, to be created once the node runs.
    pub invite: Option<MeshInvitation>,
    /// Whether this build of adit has a daemon of tinc.
    pub has_tinc: bool,
}

/// The information about a running node.
#[derive(Clone, Debug)]
pub struct UpReport {
    /// The node.
    pub node: MeshReport,
    /// The token of [`UpOptions::invite`].
    pub token: Option<String>,
}

/// The maximum number of workers that share the control thread's allocation arena, as for a server.
const ONE_ARENA: u16 = 2;

/// Called once the node is running.
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
    settings.metrics = options.metrics.clone().or(settings.metrics);
    let state = State::open(paths)?;
    ethernet::check_settings(&settings, &state.changes)?;
    if settings.tinc.is_some() {
        guest::check(state.changes.genesis().layer, options.has_tinc)?;
    }
    let directory = DirectoryConfig::load(paths)?;
    paths.create()?;
    let duty = MeshDuty {
        dir: paths.folders.dir().map(Path::to_owned),
        name: paths.name().to_owned(),
        port: options.port,
        names: options.names,
        exit: options.exit.clone(),
        metrics: options.metrics.clone(),
    };
    // The helper ends last, when everything is undone.
    let helper = helper::start(&MESH, &duty, &[])?;
    let guest = settings.tinc.as_ref();
    let guest = guest.map(|tinc| GuestProcess::start(tinc, options.verbose)).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::environment(format!("cannot start: {error}")))?;
    let start = Start { paths, options, settings, directory, guest, is_helped: helper.is_some() };
    LocalSet::new().block_on(&runtime, start.serve(state, on_up))
}

/// Returns the options of the node's sockets.
pub(super) fn socket_options(address: SocketAddr, mark: Option<u32>) -> UdpOptions {
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

/// The parameters of a node's start, besides its state.
struct Start<'a> {
    paths: &'a Paths,
    options: &'a UpOptions,
    settings: Settings,
    directory: Option<DirectoryConfig>,
    guest: Option<GuestProcess>,
    /// Whether a helper performs privileged operations.
    is_helped: bool,
}

impl Start<'_> {
    async fn serve(self, state: State, on_up: OnUp<'_>) -> Result<(), Fault> {
        adit_crypto::gather_entropy().map_err(|error| Fault::environment(error.to_string()))?;
        privileges::raise_descriptor_limit();
        let workers = worker_count::of_server(None, self.settings.workers)?;
        if workers <= ONE_ARENA {
            adit_linux::memory::share_one_arena();
        }
        let options = self.options;
        let mut controls =
            Controls::open(&self.paths.control_socket(), self.settings.metrics.as_ref())?;
        let mut running = self.run(state, workers).await?;
        running.accept_streams();
        running.open_channel_sockets(workers);
        running.watch_addresses();
        running.set_exit();
        running.update_apps();
        running.announce_to_tinc();
        let token = match &options.invite {
            Some(invitation) => Some(running.invite(invitation)?.token),
            None => None,
        };
        running.store.flush(running.driver.engine());
        on_up(&UpReport { node: running.mesh_report(), token });
        controls.ready(&format!("node of the mesh {}", running.mesh));
        let ended = instance::run(&mut running, &mut controls).await;
        controls.stopping();
        running.store.flush(running.driver.engine());
        running.end().await;
        ended.map(drop)
    }

    /// Prepares this machine, drops the privileges, and starts the data plane.
    async fn run(self, state: State, workers: u16) -> Result<Running, Fault> {
        let Self { paths, options, settings, directory, guest, is_helped } = self;
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
        let (node, files) = make_node(state, &settings, workers, stored.clone())?;
        let Files { roster, reach, admin } = files;
        let mut plan = host_plan::plan(
            &settings,
            node.roster(),
            &node.key_hash(),
            node.changes(),
            conflict.as_ref(),
            &BTreeSet::new(),
        );
        let mut refused = notes(host.apply(&plan).await?);
        let zone = names::zone(node.roster(), node.changes(), conflict.is_none());
        let names = if options.names { serve_names(zone, &plan).await } else { None };
        if names.is_some() {
            plan.dns = host_plan::dns(&plan, node.changes());
            refused.extend(notes(host.change(&plan).await?));
        }
        // Without a helper, the process keeps the capability to change routes.
        let kept = [Capability::CAP_NET_ADMIN];
        privileges::become_user("node", options.user.as_ref(), is_helped, &kept)?;
        let policy = NodePolicy::new(paths, &settings, workers, stored, &node)?;
        let (plane, upcalls) = adit_openvpn_data::start(config, policy.filter_config(), now)
            .map_err(|error| Fault::environment(format!("cannot start the data plane: {error}")))?;
        plane.report_unrouted();
        plane.guard_sources(ethernet::guarded(node.changes()));
        let backend = PlaneBackend::new(plane, upcalls, StreamOptions::default());
        let driver = Driver::new(node, backend, sockets, Arc::new(CertificateOnly))?;
        let directory = NodeDirectory::start(directory, driver.engine())?;
        let tinc = settings.tinc.clone().zip(guest);
        let tinc = tinc.map(|(settings, guest)| TincGuest::new(settings, guest)).transpose()?;
        let port_mapping = NonZeroU16::new(port).filter(|_| settings.port_mapping);
        Ok(Running {
            driver,
            host,
            addresses: OwnAddresses::new(port, settings.device.clone()),
            directory,
            tinc,
            port_mapping: port_mapping.map(PortMapping::start),
            mapped: Vec::new(),
            store: Store::new(paths, roster, reach),
            settings,
            mark,
            mesh: paths.name().to_owned(),
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
            log_limiter: LogLimiter::default(),
            rates: Rates::default(),
            stats: NodeStats::default(),
            memory_release: MemoryRelease::default(),
            wall: WallClock::new(),
            removed: false,
            tcp_port: None,
            tcp_problem: None,
        })
    }
}

/// The files of the state that the running node writes.
struct Files {
    roster: RosterFile,
    reach: Reach,
    admin: AdminKeys,
}

/// Creates the node from its state.
fn make_node(
    state: State,
    settings: &Settings,
    workers: u16,
    policy_text: Option<String>,
) -> Result<(Node, Files), Fault> {
    let State { key, admin, roster, changes, invitations, reach } = state;
    let config = NodeConfig {
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
        policy_text,
        compared: reach.compared(),
        max_age: settings.max_age,
    };
    let node = Node::new(config, adit_runtime::random::seed()?, now(), unix_time())
        .map_err(|error| Fault::ours(error.to_string()))?;
    Ok((node, Files { roster, reach, admin }))
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
