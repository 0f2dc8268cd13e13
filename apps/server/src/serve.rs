//! `adit server run`: prepares the host, runs the service, and undoes its changes to the host.

use std::collections::{HashMap, HashSet};
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::PeerId;
use adit_engine::command::Counters;
use adit_linux::notify::Notifier;
use adit_openvpn::server::{ClientInfo, ServerEvent};
use adit_openvpn::tls::ServerTls;
use adit_pki::{Client, Quota, Store};
use ipnet::IpNet;

use super::authorizer::{RegistryAuthorizer, SessionOwner};
use super::clients::{self, open_store};
use super::engine_config;
use super::events::{self, Event, Events};
use super::host_state::running;
use super::init::pki_fault;
use super::leases::Leases;
use super::privileges::{self, HostChanges};
use super::selftest;
use super::settings::{Login, Settings};
use super::sites::SiteRules;
use super::webhook::Webhook;
use adit_openvpn_service::{
    Handle, Hooks, MacLimits, Options, Selector, Service, Session, Sessions, SocketTuning, handover,
};
use adit_runtime::clock::unix_time;
use adit_runtime::control::{
    self, CertificateReport, LoginReport, ReloadReport, Request, Response,
};
use adit_runtime::driver::Endpoint;
use adit_runtime::fault::Fault;
use adit_runtime::filter::{KnownNames, LiveFilter};
use adit_runtime::log;
use adit_runtime::metrics::{Config as MetricsConfig, Samples};
use adit_runtime::netinfo;
use adit_runtime::paths::Paths;
use adit_runtime::say;
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
    let Settings {
        listen, network, network6, device, client_to_client, mtu, login, filter, ..
    } = settings;
    let (names, filtered) = (login.uses_certificate(), filter.is_some());
    format!(
        "{listen:?} {network} {network6:?} {device} {client_to_client} {mtu:?} {names} {filtered}"
    )
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

/// Returns the settings that a reload has applied.
fn applied(old: &Settings, fresh: &Settings) -> Vec<String> {
    let filter = old.filter.is_some() && fresh.filter.is_some() && old.filter != fresh.filter;
    let changed = [
        ("host", old.host != fresh.host),
        ("full-tunnel or routes", old.reach != fresh.reach),
        ("dns", old.dns != fresh.dns),
        ("nat", old.nat != fresh.nat),
        ("login", old.login != fresh.login && !needs_restart(old.login, fresh.login)),
        ("max-clients", old.max_clients != fresh.max_clients),
        ("[oidc]", old.oidc != fresh.oidc),
        ("filter", filter),
    ];
    changed.into_iter().filter(|(_, changed)| *changed).map(|(key, _)| key.to_owned()).collect()
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

/// Returns whether a change of `login` needs a restart. Sessions are named after certificates or after users, not both.
fn needs_restart(old: Login, fresh: Login) -> bool {
    old.uses_certificate() != fresh.uses_certificate()
}

/// Announces the server after the self-test, which needs the running service and therefore runs on a separate thread.
fn announce(settings: &Settings, store: &Store, device: String, on_ready: OnReady) {
    let settings = settings.clone();
    let key = clients::server_key(store);
    tokio::task::spawn_blocking(move || {
        let self_test = match key {
            Ok(key) => selftest::knock_everywhere(&settings.listen, &key),
            Err(fault) => Err(fault.to_string()),
        };
        on_ready(ReadyReport { device, settings, self_test });
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
    /// The day, counted since 1970, on which certificates were looked at for [`Event::CertificateExpires`].
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

impl Hooks for ServerHooks<'_> {
    fn event(&mut self, event: &ServerEvent) {
        match event {
            ServerEvent::ClientUp(client) => {
                let identity = &client.identity;
                self.began(client);
                self.report_connected(client);
                if let Some(address) = client.ipv4.filter(|_| !client.check) {
                    // A renamed client keeps its address.
                    let known = self.authority.known_client(&identity.common_name);
                    let known = known.filter(|_| self.authority.login().uses_certificate());
                    let name = known.as_ref().map(|client| client.certificate_name().as_str());
                    self.leases.remember(name.unwrap_or(&identity.common_name), address);
                }
            }
            ServerEvent::Resumed(client, traffic) => {
                self.began(client);
                let bytes = traffic.rx_bytes.saturating_add(traffic.tx_bytes);
                // The former process has counted these.
                if let Some(counted) = self.counted.get_mut(&client.peer) {
                    counted.bytes = bytes;
                }
            }
            ServerEvent::Refused(link, identity, reason) => {
                self.events.send(&Event::ClientRefused {
                    name: log::clean(&identity.common_name),
                    from: link.remote().to_string(),
                    reason: log::clean(&reason.to_string()),
                });
            }
            ServerEvent::ClientDown(peer, reason, traffic) => {
                self.counted.remove(peer);
                let owner = self.sessions.remove(peer);
                let name = owner.map(|owner| owner.name).unwrap_or_default();
                self.events.send(&Event::ClientDisconnected {
                    name: log::clean(&name),
                    reason: log::clean(&reason.to_string()),
                    received: traffic.rx_bytes,
                    sent: traffic.tx_bytes,
                });
                if self.users.get(&name).is_some_and(|(session, _)| session == peer) {
                    self.users.remove(&name);
                }
            }
            _ => {}
        }
    }

    fn ended(&mut self, session: &Session, traffic: Counters) {
        self.count(session, traffic, unix_time().0);
    }

    fn handed_over(&mut self) {
        self.host_state.leave();
    }

    fn started(&mut self, handle: &Handle) {
        self.handle = Some(handle.clone());
    }

    fn tick(&mut self, sessions: &Sessions) -> Option<ServerTls> {
        let now = unix_time().0;
        for session in sessions.iter() {
            self.count(session, session.counters, now);
        }
        let ends = self.sessions.iter().filter_map(|(peer, owner)| {
            let (_, client) = self.quota(&owner.name)?;
            Some((peer.0, self.authority.quota_reached(&client)?))
        });
        let ends: Vec<(u32, String)> = ends.collect();
        for (peer, reason) in &ends {
            let owner = self.sessions.get(&PeerId(*peer));
            self.events.send(&Event::LimitReached {
                name: log::clean(owner.map(|owner| owner.name.as_str()).unwrap_or_default()),
                reason: log::clean(reason),
            });
        }
        self.report_expiry(now / 86_400);
        if let Some(handle) = self.handle.as_ref().filter(|_| !ends.is_empty()) {
            end_sessions(handle, ends);
        }
        None
    }

    fn serving(&mut self, device: Option<&str>, listening: &[Endpoint]) {
        let device = device.unwrap_or(&self.running.device).to_owned();
        let paths: Vec<String> = listening.iter().map(ToString::to_string).collect();
        let paths = paths.join(", ");
        say!(1, "the server is up: device {device}, listening on {paths}");
        if let Some(notifier) = &self.notifier {
            // If this fails, only the service manager is affected.
            let _ = notifier.ready(&format!("serving on {paths}"));
        }
        if let Some(on_ready) = self.on_ready.take() {
            announce(&self.running, &self.store, device, on_ready);
        }
    }

    fn certificate(&self) -> Option<CertificateReport> {
        let server = self.store.server();
        let (whose, not_after) = if server.ca_expires < server.server_expires {
            ("ca", server.ca_expires)
        } else {
            ("own", server.server_expires)
        };
        let day = |unix: u64| i64::try_from(unix / 86_400).unwrap_or(i64::MAX);
        let days_left = day(not_after).saturating_sub(day(unix_time().0));
        Some(CertificateReport { whose: whose.into(), not_after, days_left })
    }

    fn client_certificate(&self) -> Option<CertificateReport> {
        let (whose, not_after) = self.authority.nearest_expiry()?;
        let day = |unix: u64| i64::try_from(unix / 86_400).unwrap_or(i64::MAX);
        let days_left = day(not_after).saturating_sub(day(unix_time().0));
        Some(CertificateReport { whose, not_after, days_left })
    }

    fn measure(&self, samples: &mut Samples) {
        self.events.measure(samples);
    }

    fn reloaded(&mut self) -> ReloadReport {
        std::mem::take(&mut self.reloaded)
    }

    fn groups(&self, name: &str) -> Option<Vec<String>> {
        let user = self.users.get(name).map(|(_, user)| user.as_str());
        Some(self.authority.groups(name, user))
    }

    fn logins(&self) -> Option<LoginReport> {
        self.authority.login_report()
    }

    fn known(&self) -> Option<KnownNames> {
        // Only the provider knows its groups, and only PAM its users.
        if matches!(self.running.login, Login::CertificateOidc | Login::Pam) {
            return None;
        }
        clients::known(&self.store, self.running.login).ok()
    }

    fn filter_file(&self) -> Option<PathBuf> {
        filter_file(&self.paths, &self.running)
    }

    fn reload(&mut self, handle: &Handle) -> Result<Option<ServerTls>, Fault> {
        self.read_again(handle).inspect_err(|fault| {
            self.events.send(&Event::ReloadFailed { reason: log::clean(&fault.to_string()) });
        })
    }
}

impl ServerHooks<'_> {
    fn report_connected(&mut self, client: &ClientInfo) {
        let addresses = [client.ipv4.map(IpAddr::V4), client.ipv6.map(IpAddr::V6)];
        self.events.send(&Event::ClientConnected {
            name: log::clean(&client.identity.common_name),
            user: client.username.as_deref().map(log::clean),
            from: client.link.remote().to_string(),
            addresses: addresses.into_iter().flatten().map(|address| address.to_string()).collect(),
        });
    }

    /// Reports the certificates that expire soon, once a day.
    fn report_expiry(&mut self, today: u64) {
        const SOON: i64 = 14;
        if std::mem::replace(&mut self.warned_on, today) == today {
            return;
        }
        for report in [self.certificate(), self.client_certificate()].into_iter().flatten() {
            if report.days_left < SOON {
                let (whose, days_left) = (report.whose, report.days_left);
                self.events.send(&Event::CertificateExpires { whose, days_left });
            }
        }
    }

    fn read_again(&mut self, handle: &Handle) -> Result<Option<ServerTls>, Fault> {
        // First end the sessions of clients that are no longer admitted, even if other files are unreadable.
        self.end_unwelcome(handle);
        self.host_state.reload()?;
        self.store = open_store(&self.paths)?;
        let tls = engine_config::tls(&self.store, self.running.login)?;
        self.reload_settings(handle)?;
        self.forget_deleted()?;
        Ok(Some(tls))
    }
}

impl ServerHooks<'_> {
    /// Records a session with its owner.
    fn began(&mut self, client: &ClientInfo) {
        let identity = &client.identity;
        let name = identity.common_name.clone();
        // Without passwords, what the client sent as a user name has no meaning.
        let user = client.username.as_deref().filter(|_| self.authority.login().has_users());
        if let Some(user) = user
            && !(client.check && self.users.contains_key(&name))
        {
            self.users.insert(name.clone(), (client.peer, user.to_owned()));
        }
        let user = user.map(|user| self.authority.session_user(user));
        let counts = self.quota(&name).is_some();
        let owner = SessionOwner { name, serial: identity.serial.clone(), user };
        self.sessions.insert(client.peer, owner);
        self.counted.insert(client.peer, Counted { bytes: 0, counts });
    }

    /// Returns a client's quota and the name under which its traffic is counted.
    fn quota(&self, name: &str) -> Option<(Quota, Arc<Client>)> {
        let (client, quota) = self.authority.known_quota(name)?;
        self.authority.login().uses_certificate().then_some((quota, client))
    }

    /// Adds the traffic of a session since the last call to its client's quota.
    fn count(&mut self, session: &Session, traffic: Counters, now: u64) {
        let Some((quota, client)) = self.quota(&session.info.identity.common_name) else { return };
        let total = traffic.rx_bytes.saturating_add(traffic.tx_bytes);
        let Some(counted) = self.counted.get_mut(&session.info.peer) else { return };
        let bytes = total.saturating_sub(counted.bytes);
        counted.bytes = total;
        // The traffic from before the client had a quota does not count.
        if std::mem::replace(&mut counted.counts, true) {
            let name = client.certificate_name().as_str();
            self.authority.usage.add(name, quota, bytes, now);
        }
    }

    /// Removes the leases and the counted traffic of clients that were deleted.
    fn forget_deleted(&mut self) -> Result<(), Fault> {
        let known = names_in_certificates(&self.store.clients().map_err(pki_fault)?);
        let gone: HashSet<&str> = self
            .registered
            .iter()
            .map(String::as_str)
            .filter(|name| !known.contains(*name))
            .collect();
        if !gone.is_empty() {
            self.leases.saved.retain(|name| !gone.contains(name));
            self.authority.usage.saved.retain(|name| !gone.contains(name));
        }
        self.registered = known;
        Ok(())
    }

    /// Ends the sessions that the registry no longer admits.
    fn end_unwelcome(&self, handle: &Handle) {
        let mut ends = Vec::new();
        for (peer, owner) in &self.sessions {
            match self.authority.decide_session(owner) {
                Ok(Ok(())) => {}
                Ok(Err(reason)) => ends.push((peer.0, reason)),
                Err(fault) => {
                    // New clients are refused now. Ending all sessions because of an unreadable file would be worse.
                    tracing::warn!("sessions: not checked again: {fault}");
                    return;
                }
            }
        }
        end_sessions(handle, ends);
    }

    /// Applies the settings that can change without dropping tunnels, and lists those that need a restart.
    fn reload_settings(&mut self, handle: &Handle) -> Result<(), Fault> {
        let fresh = Settings::read(&self.paths.settings_file())?;
        let old = &self.running;
        let keeps_login = needs_restart(old.login, fresh.login);
        let login = if keeps_login { old.login } else { fresh.login };
        let applied_now = Settings { login, ..fresh.clone() };
        let running = Settings {
            reach: fresh.reach.clone(),
            dns: fresh.dns.clone(),
            nat: fresh.nat,
            login,
            oidc: fresh.oidc.clone(),
            max_clients: fresh.max_clients,
            host: fresh.host.clone(),
            // A different file is applied at once. Adding or removing the filter needs a restart.
            filter: old.filter.as_ref().and(fresh.filter.clone().or(old.filter.clone())),
            ..old.clone()
        };
        let rules = SiteRules::of(&running);
        let clients = self.store.clients().map_err(pki_fault)?;
        rules.warn_of_conflicts(&clients);
        let behind = rules.networks(&clients);
        let offer = engine_config::offer(&applied_now, &self.store, &rules, &self.leases.all())?;
        self.authority.sso.configure(&self.paths, &applied_now)?;
        let differs = [
            ("listen", fresh.listen != old.listen),
            ("network", fresh.network != old.network),
            ("network6", fresh.network6 != old.network6),
            ("device", fresh.device != old.device),
            ("client-to-client", fresh.client_to_client != old.client_to_client),
            ("mtu", fresh.mtu != old.mtu),
            ("login", keeps_login),
            ("workers", fresh.workers != old.workers),
            ("pam-service", fresh.pam_service != old.pam_service),
            ("on-event", fresh.on_event != old.on_event),
            ("[events]", fresh.events != old.events),
            ("user", fresh.user != old.user),
            ("metrics", fresh.metrics != old.metrics),
            ("filter", fresh.filter.is_some() != old.filter.is_some()),
        ];
        let pending: Vec<&str> =
            differs.iter().filter(|(_, differs)| *differs).map(|(key, _)| *key).collect();
        for key in &pending {
            tracing::warn!("{key}: not applied: restart required");
        }
        self.reloaded = ReloadReport {
            applied: applied(old, &fresh),
            pending: pending.into_iter().map(str::to_owned).collect(),
            outdated: clients::outdated(&self.store, &fresh)?,
            endpoints: clients::endpoints(&fresh),
        };
        if fresh.reach != old.reach || fresh.dns != old.dns {
            say!(
                1,
                "connected clients that can take them get the new routes and name servers now (adit, \
                 openvpn from 2.7), the others when they connect again"
            );
        }
        if fresh.nat != old.nat || behind != self.behind {
            self.host_state.load_rules(old, fresh.nat, &behind)?;
        }
        self.authority.set_sites(rules);
        if login != old.login {
            self.authority.set_login(login);
            self.end_unwelcome(handle);
        }
        self.running = running;
        let plan =
            (behind != self.behind).then(|| engine_config::host_plan(&self.running, &behind));
        self.behind = behind;
        let handle = handle.clone();
        tokio::spawn(async move {
            // These fail only when the service ends, and then they are not needed.
            if let Some(plan) = plan {
                let _ = handle.set_host(plan).await;
            }
            let _ = handle.set_offer(offer).await;
        });
        Ok(())
    }
}
