//! `adit server run`: prepares the host, runs the service, and undoes its changes to the host.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::PeerId;
use adit_linux::notify::Notifier;
use adit_openvpn::server::{ClientInfo, ServerEvent};
use adit_openvpn::tls::ServerTls;
use adit_pki::Store;

use super::authorizer::{RegistryAuthorizer, SessionOwner};
use super::clients::{self, open_store};
use super::engine_config;
use super::leases::Leases;
use super::pam;
use super::privileges::{self, HostChanges};
use super::selftest;
use super::settings::{Login, Settings};
use adit_openvpn_service::{Handle, Hooks, MacLimits, Options, Selector, Service, SocketTuning};
use adit_runtime::clock::unix_time;
use adit_runtime::control::{CertificateReport, LoginReport, ReloadReport};
use adit_runtime::driver::Endpoint;
use adit_runtime::fault::Fault;
use adit_runtime::filter::{KnownNames, LiveFilter};
use adit_runtime::log;
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

/// Runs the server until it is stopped, and undoes its changes to the host. `verbose` raises the log level; `workers`
/// overrides the settings.
///
/// # Errors
/// Fails if the server could not start, or failed later.
pub fn run(
    paths: &Paths,
    verbose: u8,
    workers: Option<u16>,
    on_ready: Option<OnReady>,
) -> Result<(), Fault> {
    log::start(log::Settings::friendly(verbose.saturating_add(1)))
        .map_err(|error| Fault::environment(format!("cannot log: {error}")))?;
    privileges::protect_secrets();
    let settings = Settings::read(&paths.settings_file())?;
    let workers = worker_count::of_server(workers, settings.workers)?;
    let store = open_store(paths)?;
    let programs = pam::setup(paths, &settings)?;
    let mut host_state = HostChanges::prepare(paths, &settings)?;
    adit_runtime::programs::start(&programs.unwrap_or_default())?;
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Fault::environment(format!("cannot start: {error}")))?;
    runtime.block_on(serve(paths, settings, workers, store, &mut host_state, on_ready))
}

async fn serve(
    paths: &Paths,
    settings: Settings,
    workers: u16,
    store: Store,
    host_state: &mut HostChanges,
    on_ready: Option<OnReady>,
) -> Result<(), Fault> {
    let leases = Leases::open(paths);
    let authority = RegistryAuthorizer::new(store.clone(), paths, settings.login)?;
    authority.sso.configure(paths, &settings)?;
    authority.set_pam_service(&settings.pam_service);
    let options = Options {
        engine: engine_config::config(&settings, &store, &leases.all())?,
        listeners: engine_config::listeners(&settings.listen, netinfo::has_ipv6()),
        host: engine_config::host_plan(&settings),
        authorizer: Arc::new(authority.clone()),
        relay: engine_config::relay(&settings),
        filter: filter_file(paths, &settings)
            .map(|path| LiveFilter::open(&path, Some(workers.into())))
            .transpose()?,
        mac_limits: MacLimits::default(),
        control: Some(paths.control_socket()),
        socket: SocketTuning::default(),
        port_share: None,
        workers,
    };
    let service = Service::start(options).await?;
    let notifier = Notifier::from_env().ok().flatten();
    host_state.drop_privileges(paths, &settings)?;
    let mut owner = ServerHooks {
        paths: paths.clone(),
        running: settings,
        store,
        authority,
        leases: leases.clone(),
        sessions: HashMap::new(),
        users: HashMap::new(),
        host_state,
        on_ready,
        notifier,
        reloaded: ReloadReport::default(),
    };
    let ended = service.run(&mut owner).await;
    leases.save();
    ended.map(drop)
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

/// The hooks of the running service. They also read files again on `adit reload`.
struct ServerHooks<'a> {
    paths: Paths,
    /// The current settings.
    running: Settings,
    store: Store,
    authority: RegistryAuthorizer,
    leases: Leases,
    /// The owner of each session.
    sessions: HashMap<PeerId, SessionOwner>,
    /// For each client whose user has logged in, the session and the user.
    users: HashMap<String, (PeerId, String)>,
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
                if let Some(address) = client.ipv4.filter(|_| !client.check) {
                    self.leases.remember(&identity.common_name, address);
                }
            }
            ServerEvent::ClientDown(peer, ..) => {
                let owner = self.sessions.remove(peer);
                let name = owner.map(|owner| owner.name).unwrap_or_default();
                if self.users.get(&name).is_some_and(|(session, _)| session == peer) {
                    self.users.remove(&name);
                }
            }
            _ => {}
        }
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
        // First end the sessions of clients that are no longer admitted, even if other files are unreadable.
        self.end_unwelcome(handle);
        self.host_state.reload()?;
        self.store = open_store(&self.paths)?;
        let tls = engine_config::tls(&self.store, self.running.login)?;
        self.reload_settings(handle)?;
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
        let owner = SessionOwner { name, serial: identity.serial.clone(), user };
        self.sessions.insert(client.peer, owner);
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
        let handle = handle.clone();
        tokio::spawn(async move {
            for (peer, reason) in ends {
                let _ = handle.kick(Selector::Peer(peer), reason).await;
            }
        });
    }

    /// Applies the settings that can change without dropping tunnels, and lists those that need a restart.
    fn reload_settings(&mut self, handle: &Handle) -> Result<(), Fault> {
        let fresh = Settings::read(&self.paths.settings_file())?;
        let old = &self.running;
        let keeps_login = needs_restart(old.login, fresh.login);
        let login = if keeps_login { old.login } else { fresh.login };
        let applied_now = Settings { login, ..fresh.clone() };
        let offer = engine_config::offer(&applied_now, &self.store)?;
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
            ("user", fresh.user != old.user),
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
        if fresh.nat != old.nat {
            self.host_state.masquerade(old, fresh.nat)?;
        }
        if login != old.login {
            self.authority.set_login(login);
            self.end_unwelcome(handle);
        }
        self.running = Settings {
            reach: fresh.reach,
            dns: fresh.dns,
            nat: fresh.nat,
            login,
            oidc: fresh.oidc,
            max_clients: fresh.max_clients,
            host: fresh.host,
            // A different file is applied at once. Adding or removing the filter needs a restart.
            filter: old.filter.as_ref().and(fresh.filter.or(old.filter.clone())),
            ..old.clone()
        };
        let handle = handle.clone();
        tokio::spawn(async move {
            // This fails only when the service ends, and then it is not needed.
            let _ = handle.set_offer(offer).await;
        });
        Ok(())
    }
}
