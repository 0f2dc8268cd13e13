//! The server role.

use std::convert::Infallible;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::command::Counters;
use adit_linux::plugin::Kind;
use adit_openvpn::config::{Options, Remap, ServerOptions, Source, Wrap};
use adit_openvpn::server::{ServerConfig, ServerEvent, Topology};
use adit_openvpn::tls::{Pem, ServerTls};
use ipnet::IpNet;

use super::authorization::{Chain, Check, PluginCheck};
use super::client::open_status;
use super::management::{self, ManagementCheck, ServerReports};
use super::pool_persist::PoolPersistFile;
use super::scripts::{self, Context, Script, Scripts};
use super::status::{ClientRow, Status, StatusFile};
use super::{Ask, Next, convert, daemonize::Daemonizer, hand_over, key_files, pool_persist};
use crate::plugin_host::{self, Plugins};
use crate::token_host::{self, Tokens};
use adit_openvpn_service::{
    ClosingFuture, Handle, Hooks, Listener, MacLimits, Options as ServiceOptions, Relay, Service,
    Session, Sessions, compat_log, handover,
};
use adit_runtime::authorize::CertificateOnly;
use adit_runtime::clock::unix_time;
use adit_runtime::control::{self, CertificateReport};
use adit_runtime::driver::Endpoint;
use adit_runtime::fault::Fault;
use adit_runtime::filter::LiveFilter;
use adit_runtime::helper::{self, files};
use adit_runtime::instance::{EndReason, Reaction};
use adit_runtime::port_share::PortShare;
use adit_runtime::programs;
use adit_runtime::say;
use adit_runtime::signals::{Signal, Signals};
use adit_runtime::worker_count;

/// Everything that is read and prompted for before the process leaves its terminal.
pub(super) struct PreparedServer {
    engine: ServerConfig,
    chain: Option<Chain>,
    listeners: Vec<Listener>,
    tls: key_files::TlsMaterial,
    status: Option<(StatusFile, Duration)>,
    lease_file: Option<PoolPersistFile>,
    filter: Option<LiveFilter>,
    workers: u16,
    management: Option<management::Handle>,
    hand_over: handover::Setup,
}

pub(super) fn prepare(
    options: &Options,
    role: &ServerOptions,
    ask: &mut dyn Ask,
    plugins: Option<&Plugins>,
    tokens: Option<&Tokens>,
    management: Option<management::Handle>,
) -> Result<PreparedServer, Fault> {
    let mut tls = key_files::TlsMaterial::read(&options.tls)?;
    // Clients of a server do not wait for a person.
    tls.open_token(&options.tls, tokens, false, ask)?;
    if let Err(fault) = tls.validity(unix_time().0) {
        tracing::warn!("WARNING: {fault}");
    }
    if let Some(folder) = &role.client_config_dir
        && let Err(e) = files::open(folder)
    {
        return Err(Fault::operator(format!(
            "client-config-dir: cannot read '{}': {e}: create the directory, or remove the line",
            folder.display()
        )));
    }
    let wrap = key_files::wrap(options)?;
    let net30 = role.network4.as_ref().is_some_and(|net| net.topology == Topology::Net30);
    let leases = role.pool_persist.as_ref().map(|persist| pool_persist::read(&persist.path, net30));
    let leases = leases.transpose()?.unwrap_or_default();
    let mut engine = convert::server_config(options, role, wrap, tls.server_asking(ask)?, leases);
    engine.checks.tokens = convert::token_policy(options, role)?;
    if let Some(directory) = &options.tls.crl_directory
        && let Err(e) = files::list(directory)
    {
        return Err(Fault::operator(format!(
            "crl-verify: cannot read the directory '{}': {e}: create it, or remove the line",
            directory.display()
        )));
    }
    let passwords = plugins.is_some_and(|plugins| plugins.wants(Kind::AuthUserPassVerify));
    engine.checks.require_username |= passwords && !role.username_optional;
    let plugin_check = plugin_check(options, role, plugins);
    let management_check = management_check(options, role, management.as_ref());
    let chain = Chain::of_server(options, role, &mut engine, plugin_check, management_check);
    let listeners = convert::listeners(options)?;
    let lease_file =
        role.pool_persist.as_ref().and_then(|persist| PoolPersistFile::open(persist, net30));
    let mut workers = worker_count::of_server(None, None)?;
    if scripts::setup(options).is_some() {
        workers = worker_count::leave_room(workers, programs::TASKS);
    }
    if plugins.is_some() {
        workers = worker_count::leave_room(workers, plugin_host::TASKS);
    }
    if tokens.is_some() {
        workers = worker_count::leave_room(workers, token_host::TASKS);
    }
    let open = |path: &PathBuf| LiveFilter::open(path, Some(workers.into()));
    let filter = role.filter.as_ref().map(open).transpose()?;
    let status = open_status(options);
    let hand_over = hand_over::setup(options, role, [plugins.is_some(), tokens.is_some()]);
    Ok(PreparedServer {
        engine,
        chain,
        listeners,
        tls,
        status,
        lease_file,
        filter,
        workers,
        management,
        hand_over,
    })
}

/// Returns the plugins as a check of clients.
fn plugin_check(
    options: &Options,
    role: &ServerOptions,
    plugins: Option<&Plugins>,
) -> Option<Arc<dyn Check>> {
    let patience = options.session.hand_window;
    let check = PluginCheck::new(plugins?.clone(), role.client_rules, patience);
    Some(Arc::new(check))
}

/// Returns the management client as a check of clients (`management-client-auth`).
fn management_check(
    options: &Options,
    role: &ServerOptions,
    handle: Option<&management::Handle>,
) -> Option<Arc<dyn Check>> {
    let decides = options.management.as_ref().is_some_and(|settings| settings.client_auth);
    let handle = handle.filter(|_| decides)?;
    Some(Arc::new(ManagementCheck::new(handle.clone(), role.client_rules)))
}

pub(super) async fn run(
    prepared: PreparedServer,
    options: &Options,
    role: &ServerOptions,
    ground: &mut Daemonizer,
) -> Result<Next, Fault> {
    let PreparedServer {
        engine,
        chain,
        listeners,
        tls,
        status,
        lease_file,
        filter,
        workers,
        management,
        hand_over,
    } = prepared;
    let (host, notes) = convert::server_plan(options, role)?;
    notes.iter().for_each(|note| tracing::warn!("{note}"));
    let max_clients = engine.max_clients;
    let mut service = Service::open(ServiceOptions {
        engine,
        listeners,
        host,
        authorizer: match &chain {
            Some(chain) => Arc::new(chain.clone()),
            None => Arc::new(CertificateOnly),
        },
        relay: if role.client_to_client { Relay::Direct } else { Relay::Kernel },
        mac_limits: MacLimits {
            per_client: role.client_rules.max_routes as usize,
            age: role.station_age,
            ask: chain.as_ref().is_some_and(Chain::judges_stations),
        },
        hand_over,
        port_share: role.port_share.as_ref().map(|to| PortShare::new(to.host.clone(), to.port)),
        control: own_control_socket(),
        metrics: super::metrics(options)?,
        filter,
        socket: convert::socket_tuning(options),
        workers,
    })?;
    let plugins = ground.plugins()?;
    let mut scripts = Scripts::new(options, plugins.clone(), management.clone());
    if let Some(scripts) = &mut scripts {
        service.apply_addresses().await?;
        scripts.server(service.device(), role);
        scripts.run(Script::Up(Context::Init)).await?;
    }
    service.apply().await?;
    if let Some(scripts) = &mut scripts {
        scripts.run(Script::RouteUp).await?;
    }
    if let Some(chain) = &chain {
        chain.set_environment(scripts::server_environment(options, service.device(), role));
    }
    // Clients cause all further programs but the last ones.
    match &scripts {
        Some(scripts) => scripts.drop_privileges().await?,
        None => programs::drop_privileges().await?,
    }
    // Addresses and routes of a server's device are removed with the device.
    ground.drop_privileges(options, &[])?;
    say!(3, "MULTI: multi_init called, max-clients={max_clients}");
    let mut owner = ServerHooks {
        ground,
        status,
        until_status: Duration::ZERO,
        rows: Vec::new(),
        crl: CrlFile::watch(options.tls.crl.as_ref()),
        tls,
        status_version: options.status.as_ref().map_or(1, |status| status.version),
        style: compat_log::Style {
            usage_checked: options.tls.peer_usage.is_some(),
            tls_auth: matches!(options.wrap, Wrap::TlsAuth { .. }),
        },
        leases: lease_file,
        last_leases: Vec::new(),
        management: management.map(|handle| ServerReports::new(handle, role)),
        scripts,
        chain,
        remap_usr1: options.process.remap_usr1,
        restarted_by: "SIGHUP",
    };
    let ended = service.run(&mut owner).await?;
    owner.close().await?;
    owner.write_status();
    if let Some(file) = &mut owner.leases {
        file.write(std::mem::take(&mut owner.last_leases));
    }
    if let Some(fault) = plugins.and_then(|plugins| plugins.fault()) {
        return Err(fault);
    }
    if let Some(fault) = owner.ground.tokens().and_then(|tokens| tokens.fault()) {
        return Err(fault);
    }
    if let Some(management) = &owner.management {
        management.ended(&ended);
    }
    Ok(match ended {
        EndReason::Restart => {
            say!(1, "{}[hard,] received, process restarting", owner.restarted_by);
            if owner.restarted_by == "SIGUSR1" { Next::Again } else { Next::Restart }
        }
        EndReason::Signal(Signal::Interrupt) => {
            say!(1, "SIGINT[hard,] received, process exiting");
            Next::Exit(ExitCode::SUCCESS)
        }
        EndReason::Signal(_) | EndReason::Asked => {
            say!(1, "SIGTERM[hard,] received, process exiting");
            Next::Exit(ExitCode::SUCCESS)
        }
    })
}

/// The directory of control sockets.
const RUN: &str = "/run/adit";

/// Returns the control socket for `adit status`, `kick`, `reload` and `filter`, named after the process, because a configuration has no
/// name.
pub(crate) fn control_socket(pid: u32) -> PathBuf {
    Path::new(RUN).join(format!("openvpn-{pid}.sock"))
}

/// Returns the control socket of this process. `None` if the folder is not writable and no helper can open it; the
/// tunnel works without it.
pub(super) fn own_control_socket() -> Option<PathBuf> {
    let folder = Path::new(RUN);
    let writable = fs::create_dir_all(folder).is_ok()
        && nix::unistd::access(folder, nix::unistd::AccessFlags::W_OK).is_ok();
    if writable {
        forget_dead_sockets(folder);
    } else if helper::current().is_none() {
        tracing::debug!("control socket: not opened: {} is not writable", folder.display());
        return None;
    }
    Some(control_socket(std::process::id()))
}

/// Removes the sockets of earlier processes, which were not allowed to remove them when they ended (`user`).
fn forget_dead_sockets(folder: &Path) {
    for path in control::list(folder).unwrap_or_default() {
        let ours = path.file_name().is_some_and(|n| n.to_string_lossy().starts_with("openvpn-"));
        let dead = |e: std::io::Error| e.kind() == ErrorKind::ConnectionRefused;
        if ours && UnixStream::connect(&path).is_err_and(dead) {
            // Another process that starts now may already have removed it.
            let _ = fs::remove_file(&path);
        }
    }
}

/// Applies `remap-usr1`.
pub(super) fn remapped(signal: Signal, remap: Option<Remap>) -> Signal {
    match (signal, remap) {
        (Signal::User1, Some(Remap::Hangup)) => Signal::Hangup,
        (Signal::User1, Some(Remap::Terminate)) => Signal::Terminate,
        (signal, _) => signal,
    }
}

/// With at most this many sessions, the rows are refreshed every second, so that the last status file is up to date. With more, they are
/// refreshed only when the file is written.
const ROWS_EVERY_TICK: usize = 100;

/// How often counters are read if there is no status file.
const NO_STATUS: Duration = Duration::from_secs(10);

struct ServerHooks<'a> {
    ground: &'a Daemonizer,
    status: Option<(StatusFile, Duration)>,
    until_status: Duration,
    rows: Vec<ClientRow>,
    crl: Option<CrlFile>,
    tls: key_files::TlsMaterial,
    status_version: u8,
    style: compat_log::Style,
    leases: Option<PoolPersistFile>,
    last_leases: Vec<(String, Vec<IpNet>)>,
    management: Option<ServerReports>,
    scripts: Option<Scripts>,
    /// The checks of clients, which take note of their sessions.
    chain: Option<Chain>,
    remap_usr1: Option<Remap>,
    /// The signal that restarts the server, for the log.
    restarted_by: &'static str,
}

impl Hooks for ServerHooks<'_> {
    fn event(&mut self, event: &ServerEvent) {
        let Some(chain) = &self.chain else { return };
        match event {
            ServerEvent::ClientUp(info) => chain.established(info.session),
            ServerEvent::Ending(session) => chain.ending(*session),
            ServerEvent::StationForgotten(station) => chain.station_forgotten(*station),
            _ => {}
        }
    }

    fn ended(&mut self, session: &Session, traffic: Counters) {
        if let Some(chain) = &self.chain {
            chain.ended(session.info.session, traffic);
        }
    }

    fn log_event(&mut self, event: &ServerEvent, sessions: &Sessions) {
        compat_log::server_event(event, sessions, self.style);
    }

    fn started(&mut self, handle: &Handle) {
        if let Some(management) = &self.management {
            management.started(handle);
        }
    }

    fn serving(&mut self, _device: Option<&str>, listening: &[Endpoint]) {
        listening.iter().for_each(|endpoint| compat_log::listening(*endpoint));
        self.ground.ready();
        if let Some(management) = &self.management {
            management.serving(listening);
        }
    }

    fn reload(&mut self, _handle: &Handle) -> Result<Option<ServerTls>, Fault> {
        self.tls.server().map(Some)
    }

    fn signal(&mut self, signal: Signal, sessions: &Sessions) -> Reaction {
        let signal = remapped(signal, self.remap_usr1);
        match signal {
            Signal::Terminate | Signal::Interrupt => Reaction::Stop,
            Signal::Hangup | Signal::User1 if self.ground.has_dropped() => {
                tracing::warn!(
                    "the privileges to open device and port again were dropped ('user'): only certificates are read \
                     again; restart the service for the rest"
                );
                Reaction::Reload
            }
            Signal::Hangup | Signal::User1 => {
                self.restarted_by = if signal == Signal::User1 { "SIGUSR1" } else { "SIGHUP" };
                Reaction::Restart
            }
            Signal::User2 => {
                self.rows = sessions.iter().map(row).collect();
                let status = Status::Server(self.rows.clone());
                status
                    .text(self.status_version, unix_time().0)
                    .lines()
                    .for_each(|line| say!(1, "{line}"));
                Reaction::Ignore
            }
        }
    }

    fn tick(&mut self, sessions: &Sessions) -> Option<ServerTls> {
        self.until_status = self.until_status.saturating_sub(Duration::from_secs(1));
        let due = self.until_status.is_zero();
        // Building a thousand unread rows per second would be visible in `top`.
        if due || sessions.len() <= ROWS_EVERY_TICK {
            self.rows = sessions.iter().map(row).collect();
        }
        if let Some(management) = &self.management {
            management.second(sessions);
        }
        if due {
            self.until_status = self.status.as_ref().map_or(NO_STATUS, |(_, every)| *every);
            self.write_status();
        }
        self.reread_crl()
    }

    fn leases(&mut self, leases: Vec<(String, Vec<IpNet>)>) {
        if let Some(file) = &mut self.leases {
            self.last_leases.clone_from(&leases);
            file.offer(leases);
        }
    }

    fn wants_leases(&self) -> bool {
        self.leases.is_some()
    }

    fn certificate(&self) -> Option<CertificateReport> {
        self.tls.nearest_expiry(unix_time().0)
    }

    fn closing<'a>(&'a mut self, reason: &EndReason<Infallible>) -> ClosingFuture<'a> {
        let signal = match reason {
            EndReason::Restart => "sighup",
            EndReason::Signal(Signal::Interrupt) => "sigint",
            _ => "sigterm",
        };
        Box::pin(async move {
            if let Some(chain) = &self.chain {
                chain.close().await;
            }
            let Some(scripts) = &mut self.scripts else { return };
            scripts.environment().set("signal", signal);
            let mut last = vec![Script::RoutePreDown];
            if scripts.down_pre() {
                last.push(Script::Down(Context::Init));
            }
            for script in last {
                // The host plan is undone in any case.
                if let Err(fault) = run_last(scripts, script).await {
                    tracing::error!("{fault}");
                }
            }
        })
    }
}

/// Runs a program at the end. A signal kills it.
async fn run_last(scripts: &mut Scripts, script: Script) -> Result<(), Fault> {
    // Those of the service have ended with it.
    let mut signals = Signals::new()?;
    scripts.run_last(script, &mut signals).await
}

impl ServerHooks<'_> {
    /// Runs `down` after the device is closed.
    async fn close(&mut self) -> Result<(), Fault> {
        match &mut self.scripts {
            Some(scripts) if !scripts.down_pre() => {
                run_last(scripts, Script::Down(Context::Init)).await
            }
            _ => Ok(()),
        }
    }

    fn write_status(&mut self) {
        let status = Status::Server(self.rows.clone());
        if let Some((file, _)) = &mut self.status
            && let Err(e) = file.write(&status, unix_time().0)
        {
            tracing::warn!("status: {e}");
        }
    }

    fn reread_crl(&mut self) -> Option<ServerTls> {
        let tls = &mut self.tls;
        self.crl.as_mut()?.reread(|pem| {
            tls.set_crl(pem);
            tls.server()
        })
    }
}

/// Returns the status of a server in one of openvpn's formats.
pub(super) fn status_of(sessions: &Sessions, version: u8) -> String {
    Status::Server(sessions.iter().map(row).collect()).text(version, unix_time().0)
}

fn row(session: &Session) -> ClientRow {
    let info = &session.info;
    ClientRow {
        name: info.identity.common_name.clone(),
        real: compat_log::real(info.link.remote()),
        ipv4: info.ipv4.map(|ip| ip.to_string()).unwrap_or_default(),
        ipv6: info.ipv6.map(|ip| ip.to_string()).unwrap_or_default(),
        networks: info.networks.iter().map(ToString::to_string).collect(),
        received: session.counters.rx_bytes,
        sent: session.counters.tx_bytes,
        since: info.since.0,
        heard: session.heard,
        username: info.username.clone(),
        client_id: info.session,
        peer_id: info.peer.0,
        cipher: info.cipher.name().to_owned(),
    }
}

/// A revocation list in a file that may change.
struct CrlFile {
    path: PathBuf,
    /// The stamp of the current list.
    seen: Option<Stamp>,
    /// The reason why the last attempt to load it failed.
    failure: Option<String>,
}

/// The time, size and inode. Copying over a file and renaming one each change at least one of them.
type Stamp = (i64, i64, u64, u64);

impl CrlFile {
    fn watch(source: Option<&Source>) -> Option<Self> {
        match source {
            Some(Source::File(path)) => {
                Some(Self { path: path.clone(), seen: Self::stamp(path), failure: None })
            }
            _ => None,
        }
    }

    /// Loads the list if its stamp has changed. A failure is retried at each call and logged once per reason, because a
    /// change of mode alone does not change the stamp.
    fn reread<T>(&mut self, load: impl FnOnce(Pem) -> Result<T, Fault>) -> Option<T> {
        let stamp = self.changed()?;
        let source = Source::File(self.path.clone());
        // If the new list is unusable, the previous one stays in force with its revocations.
        match key_files::read("crl-verify", &source).and_then(load) {
            Ok(loaded) => {
                say!(2, "CRL: loaded '{}' again", self.path.display());
                self.seen = stamp;
                self.failure = None;
                Some(loaded)
            }
            Err(fault) => {
                let reason = fault.to_string();
                if self.failure.as_ref() != Some(&reason) {
                    tracing::error!("CRL: the previous list stays in force: {reason}");
                    self.failure = Some(reason);
                }
                None
            }
        }
    }

    fn stamp(path: &Path) -> Option<Stamp> {
        let data = files::metadata(path).ok()?;
        Some((data.mtime(), data.mtime_nsec(), data.size(), data.ino()))
    }

    /// Returns the stamp of the file if it differs from that of the current list.
    fn changed(&mut self) -> Option<Option<Stamp>> {
        let fresh = Self::stamp(&self.path);
        if fresh == self.seen {
            self.failure = None;
            return None;
        }
        Some(fresh)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_of_dead_processes_go_and_others_stay() {
        use std::os::unix::net::UnixListener;
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        let _live = UnixListener::bind(path("openvpn-1.sock")).unwrap();
        drop(UnixListener::bind(path("openvpn-2.sock")).unwrap());
        drop(UnixListener::bind(path("server.sock")).unwrap());
        fs::write(path("openvpn-3.sock"), "").unwrap();
        forget_dead_sockets(dir.path());
        let left = ["openvpn-1.sock", "openvpn-2.sock", "server.sock", "openvpn-3.sock"];
        assert_eq!(left.map(|name| path(name).exists()), [true, false, true, true]);
    }

    #[test]
    fn one_signal_alone_can_mean_another() {
        let all = [
            (Signal::User1, Some(Remap::Hangup), Signal::Hangup),
            (Signal::User1, Some(Remap::Terminate), Signal::Terminate),
            (Signal::User1, None, Signal::User1),
            (Signal::User2, Some(Remap::Terminate), Signal::User2),
            (Signal::Hangup, Some(Remap::Terminate), Signal::Hangup),
        ];
        for (signal, remap, expected) in all {
            assert_eq!(remapped(signal, remap), expected);
        }
    }

    fn crl() -> (tempfile::TempDir, CrlFile) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("crl.pem");
        fs::write(&path, "one").unwrap();
        let crl = CrlFile::watch(Some(&Source::File(path))).unwrap();
        (dir, crl)
    }

    #[test]
    fn a_changed_list_is_read_once() {
        let (_dir, mut crl) = crl();
        let read = |crl: &mut CrlFile| crl.reread(|pem| Ok(pem.bytes.to_vec()));
        assert_eq!(read(&mut crl), None);
        fs::write(&crl.path, "another").unwrap();
        assert_eq!(read(&mut crl).as_deref(), Some(b"another".as_slice()));
        assert_eq!(read(&mut crl), None);
    }

    #[test]
    fn a_list_that_cannot_be_read_is_tried_again_until_it_can() {
        let (_dir, mut crl) = crl();
        fs::write(&crl.path, "half").unwrap();
        let refused = |_| Err::<(), _>(Fault::operator("half written"));
        assert_eq!(crl.reread(refused), None);
        assert!(crl.failure.is_some());
        // The file is unchanged but is accepted now, as after `chmod`.
        assert_eq!(crl.reread(|pem| Ok(pem.bytes.to_vec())).as_deref(), Some(b"half".as_slice()));
        fs::remove_file(&crl.path).unwrap();
        assert_eq!(crl.reread(|_| Ok(())), None, "one that is gone leaves the former in force");
        assert!(crl.failure.as_ref().is_some_and(|reason| reason.contains("No such file")));
    }
}
