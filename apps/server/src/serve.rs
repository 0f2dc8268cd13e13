//! `adit server run`: prepares the host, runs the service, and undoes its changes to the host.

mod hooks;
mod reload;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::PeerId;
use adit_linux::notify::Notifier;
use adit_pki::{Client, Store};
use ipnet::IpNet;

use super::authorizer::{RegistryAuthorizer, SessionOwner};
use super::clients::open_store;
use super::engine_config;
use super::events::{self, Events};
use super::host_state::running;
use super::init::pki_fault;
use super::leases::Leases;
use super::privileges::{self, HostChanges};
use super::settings::Settings;
use super::sites::SiteRules;
use super::webhook::Webhook;
use adit_openvpn_service::{Handle, MacLimits, Options, Selector, Service, SocketTuning, handover};
use adit_runtime::control::{self, ReloadReport, Request, Response};
use adit_runtime::fault::Fault;
use adit_runtime::filter::LiveFilter;
use adit_runtime::log;
use adit_runtime::metrics::Config as MetricsConfig;
use adit_runtime::netinfo;
use adit_runtime::paths::Paths;
use adit_runtime::worker_count;

/// The report of a server that is ready.
#[derive(Clone, Debug)]
pub struct ReadyReport {
    /// The TUN device.
    pub device: String,
    /// The running settings.
    pub settings: Settings,
    /// The result of the self-test over loopback: the time until the answer, or the error.
    pub self_test: Result<Duration, String>,
}

/// A callback that is called once, on a separate thread, when the server is ready.
pub type OnReady = Box<dyn FnOnce(ReadyReport) + Send>;

/// Checks whether there is a server that could run.
///
/// # Errors
/// The settings are wrong, or the keys are missing or cannot be read.
pub fn check(paths: &Paths) -> Result<(), Fault> {
    open_store(paths)?;
    Settings::read(&paths.settings_file()).map(drop)
}

/// The options of a running server.
#[derive(Clone, Debug, Default)]
pub struct RunOptions {
    /// Adds to the log.
    pub verbose: u8,
    /// The number of threads that move packets. Overrides the settings.
    pub workers: Option<u16>,
    /// Where metrics are served. Overrides the settings.
    pub metrics: Option<MetricsConfig>,
}

/// Runs the server until it is stopped, and undoes its changes to the host.
///
/// # Errors
/// Fails if the server could not start, or failed later.
pub fn run(paths: &Paths, options: RunOptions, on_ready: Option<OnReady>) -> Result<(), Fault> {
    log::start(log::Settings::friendly(options.verbose.saturating_add(1)))
        .map_err(|error| Fault::environment(format!("cannot log: {error}")))?;
    privileges::protect_secrets();
    let settings = Settings::read(&paths.settings_file())?;
    let workers = worker_count::of_server(options.workers, settings.workers)?;
    let store = open_store(paths)?;
    let programs = events::setup(paths, &settings)?;
    let clients = store.clients().map_err(pki_fault)?;
    let behind = SiteRules::of(&settings).networks(&clients);
    // Before the helper starts, which must not inherit the descriptors.
    let hand_over = handover::Setup::from_env(continuity(&settings));
    let take_over = hand_over.inherited.is_some();
    let mut host_state =
        HostChanges::prepare(paths, &settings, &behind, options.metrics.clone(), take_over)?;
    adit_runtime::programs::start(&programs.unwrap_or_default())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::environment(format!("cannot start: {error}")))?;
    let metrics = options.metrics.or_else(|| settings.metrics.clone());
    let start = Start { settings, workers, metrics, store, on_ready, hand_over };
    runtime.block_on(start.serve(paths, &mut host_state))
}

/// What a server starts with, besides its folders.
struct Start {
    settings: Settings,
    workers: u16,
    metrics: Option<MetricsConfig>,
    store: Store,
    on_ready: Option<OnReady>,
    hand_over: handover::Setup,
}

impl Start {
    async fn serve(self, paths: &Paths, host_state: &mut HostChanges) -> Result<(), Fault> {
        let Self { settings, workers, metrics, store, on_ready, hand_over } = self;
        let leases = Leases::open(paths);
        let authority = RegistryAuthorizer::new(store.clone(), paths, settings.login)?;
        let rules = SiteRules::of(&settings);
        let clients = store.clients().map_err(pki_fault)?;
        rules.warn_of_conflicts(&clients);
        let behind = rules.networks(&clients);
        authority.set_sites(rules.clone());
        authority.sso.configure(paths, &settings)?;
        authority.set_pam_service(&settings.pam_service);
        let webhook = Webhook::open(paths, &settings)?;
        let options = Options {
            engine: engine_config::config(&settings, &store, &rules, &leases.all())?,
            listeners: engine_config::listeners(&settings.listen, netinfo::has_ipv6()),
            host: engine_config::host_plan(&settings, &behind),
            authorizer: Arc::new(authority.clone()),
            relay: engine_config::relay(&settings),
            filter: filter_file(paths, &settings)
                .map(|path| LiveFilter::open(&path, Some(workers.into())))
                .transpose()?,
            mac_limits: MacLimits::default(),
            control: Some(paths.control_socket()),
            metrics,
            socket: SocketTuning::default(),
            port_share: None,
            workers,
            hand_over,
        };
        let service = Service::start(options).await?;
        let notifier = Notifier::from_env().ok().flatten();
        host_state.drop_privileges(paths, &settings)?;
        let events = Events::start(paths, &settings, webhook);
        let mut owner = ServerHooks {
            paths: paths.clone(),
            events,
            warned_on: 0,
            running: settings,
            store,
            authority,
            leases: leases.clone(),
            sessions: HashMap::new(),
            users: HashMap::new(),
            registered: names_in_certificates(&clients),
            behind,
            handle: None,
            counted: HashMap::new(),
            host_state,
            on_ready,
            notifier,
            reloaded: ReloadReport::default(),
        };
        let ended = service.run(&mut owner).await;
        owner.events.finish().await;
        leases.saved.save();
        owner.authority.usage.saved.save();
        ended.map(drop)
    }
}

/// Returns the settings on which sessions depend, so that they continue only in a process with the same ones.
fn continuity(settings: &Settings) -> String {
    let Settings { listen, network, network6, device, client_to_client, mtu, login, .. } = settings;
    let names = login.uses_certificate();
    format!("{listen:?} {network} {network6:?} {device} {client_to_client} {mtu:?} {names}")
}

/// Asks the running server to leave its sessions to the next process, which the service manager starts, and waits until
/// it has ended. Returns the number of sessions.
///
/// # Errors
/// No server runs, or it has to end its sessions; the error says why.
pub fn hand_over(paths: &Paths) -> Result<usize, Fault> {
    const PATIENCE: Duration = Duration::from_secs(15);
    // This may be a newer program, which the next process will run.
    check(paths)?;
    let settings = continuity(&Settings::read(&paths.settings_file())?);
    let request = Request::HandOver { version: handover::VERSION, settings };
    match control::request(&paths.control_socket(), &request)? {
        Response::Done { count } => {
            let until = std::time::Instant::now() + PATIENCE;
            while running(paths).is_some() && std::time::Instant::now() < until {
                std::thread::sleep(Duration::from_millis(10));
            }
            Ok(count)
        }
        Response::Error { message } => {
            Err(Fault::environment(format!("the sessions end and begin again: {message}")))
        }
        _ => Err(Fault::ours("the server gave an unexpected answer")),
    }
}

/// Returns the path of the rule file. A relative path is relative to the settings file.
pub(super) fn filter_file(paths: &Paths, settings: &Settings) -> Option<PathBuf> {
    settings.filter.as_ref().map(|path| paths.config.join(path))
}

/// Returns the names in the certificates of clients.
fn names_in_certificates(clients: &[Client]) -> HashSet<String> {
    clients.iter().map(|client| client.certificate_name().to_string()).collect()
}

/// Ends sessions for these reasons.
fn end_sessions(handle: &Handle, ends: Vec<(u32, String)>) {
    let handle = handle.clone();
    tokio::spawn(async move {
        for (peer, reason) in ends {
            let _ = handle.kick(Selector::Peer(peer), reason).await;
        }
    });
}

/// The traffic of a session that is part of its client's quota.
#[derive(Copy, Clone, Debug)]
struct Counted {
    /// The bytes so far.
    bytes: u64,
    /// Whether the client had a quota when these were read. Otherwise they are not part of it.
    counts: bool,
}

/// The hooks of the running service. They also read files again on `adit reload`.
struct ServerHooks<'a> {
    paths: Paths,
    events: Events,
    /// The day, counted since 1970, on which certificates were looked at for [`events::Event::CertificateExpires`].
    warned_on: u64,
    /// The current settings.
    running: Settings,
    store: Store,
    authority: RegistryAuthorizer,
    leases: Leases,
    /// The owner of each session.
    sessions: HashMap<PeerId, SessionOwner>,
    /// For each client whose user has logged in, the session and the user.
    users: HashMap<String, (PeerId, String)>,
    /// The names in the certificates of all registered clients.
    registered: HashSet<String>,
    /// The networks behind clients that the server routes.
    behind: Vec<IpNet>,
    handle: Option<Handle>,
    /// The traffic of each session that is counted already.
    counted: HashMap<PeerId, Counted>,
    host_state: &'a mut HostChanges,
    on_ready: Option<OnReady>,
    /// The service manager, if one started us.
    notifier: Option<Notifier>,
    /// The result of the last reload.
    reloaded: ReloadReport,
}
