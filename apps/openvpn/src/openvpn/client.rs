//! The client role.

use std::fmt::Display;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::command::Counters;
use adit_engine::{Link, Random};
use adit_linux::privileges::Capability;
use adit_openvpn::Reason;
use adit_openvpn::client::{ClientEvent, TunnelConfig};
use adit_openvpn::config::{ClientOptions, DialOptions, Options, PeerKeys, Role};
use adit_openvpn::data_format::BlockSuite;
use adit_openvpn::negotiate::DnsOptions;

use super::authorization::{Chain, ServerCheck};
use super::login::{self, LoginSource};
use super::management::{self, ClientReports};
use super::scripts::Scripts;
use super::status::{Status, StatusFile, Totals};
use super::{Ask, Next, convert, daemonize::Daemonizer, key_files, p2p};
use crate::client::{self, Client, Hooks, HostReport, Kind, ListenSocket, Traffic};
use crate::token_host::Tokens;
use adit_openvpn_service::compat_log;
use adit_runtime::authorize::Authorizer;
use adit_runtime::clock::unix_time;
use adit_runtime::control::CertificateReport;
use adit_runtime::driver::{AddressBook, DialSettings, Dialled, Endpoint};
use adit_runtime::fault::Fault;
use adit_runtime::host::{ApplyOutcome, DnsInUse, HostPlan};
use adit_runtime::instance::{EndReason, Reaction};
use adit_runtime::random::seed;
use adit_runtime::say;
use adit_runtime::signals::Signal;

/// Everything that is read and prompted for before the process leaves its terminal.
pub(super) struct PreparedClient {
    pub(super) engine: Kind,
    pub(super) dial: DialSettings,
    pub(super) listen: Option<ListenSocket>,
    pub(super) early: Option<HostPlan>,
    pub(super) status: Option<(StatusFile, Duration)>,
    pub(super) certificate: Option<CertificateReport>,
    pub(super) management: Option<management::Handle>,
    pub(super) authorizer: Arc<dyn Authorizer>,
}

pub(super) fn prepare(
    options: &Options,
    role: &ClientOptions,
    ask: &mut dyn Ask,
    tokens: Option<&Tokens>,
) -> Result<PreparedClient, Fault> {
    let mut tls = key_files::TlsMaterial::read(&options.tls)?;
    tls.open_token(&options.tls, tokens, true, ask)?;
    let now = unix_time().0;
    if let Err(fault) = tls.validity(now) {
        // Only warn, as OpenVPN does, because the clock may be set while the program retries.
        tracing::warn!("WARNING: {fault}");
    }
    let wrap = key_files::wrap(options)?;
    preresolve(options, &role.dial);
    let order = order(&role.dial)?;
    let dial = convert::dial_settings(options, &role.dial, ask)?;
    let credentials = login::first_login(role, ask)?;
    let client_tls = tls.client_asking(ask)?;
    let mut engine = convert::client_config(options, role, wrap, client_tls, credentials, &order)?;
    let login: Arc<dyn Authorizer> = Arc::new(LoginSource::new(role));
    let chain = Chain::of_client(options, None);
    engine.auth.verify_server = chain.is_some();
    let authorizer: Arc<dyn Authorizer> = match chain {
        Some(chain) => Arc::new(ServerCheck { chain, login }),
        None => login,
    };
    Ok(PreparedClient {
        engine: engine.into(),
        dial,
        listen: None,
        early: None,
        status: open_status(options),
        certificate: tls.nearest_expiry(now),
        management: None,
        authorizer,
    })
}

/// Looks up the names of the remotes now, if the configuration requests it or `chroot` makes it impossible later.
pub(super) fn preresolve(options: &Options, dial: &DialOptions) {
    if dial.preresolve || (options.process.chroot.is_some() && !dial.random_hostname) {
        let problems = AddressBook::preresolve(&dial.remotes);
        problems.iter().for_each(|problem| tracing::warn!("{problem}"));
    }
}

/// Returns the order of the remotes, shuffled with `remote-random`.
pub(crate) fn order(dial: &DialOptions) -> Result<Vec<usize>, Fault> {
    let mut order: Vec<usize> = (0..dial.remotes.len()).collect();
    if dial.remote_random {
        let mut random = Random::new(seed()?);
        for last in (1..order.len()).rev() {
            let bound = u32::try_from(last).unwrap_or(u32::MAX).saturating_add(1);
            order.swap(last, random.below(bound) as usize);
        }
    }
    Ok(order)
}

/// Opens the status file. As in OpenVPN, a failure does not prevent the tunnel.
pub(super) fn open_status(options: &Options) -> Option<(StatusFile, Duration)> {
    let status = options.status.as_ref().filter(|status| !status.every.is_zero())?;
    match StatusFile::open(&status.path, status.version) {
        Ok(file) => Some((file, status.every)),
        Err(e) => {
            let path = status.path.display();
            tracing::warn!("Note: cannot open {path} for WRITE: {e}; there will be no status file");
            None
        }
    }
}

pub(super) async fn run(
    prepared: PreparedClient,
    options: &Options,
    retry_max: Option<u32>,
    ground: &mut Daemonizer,
) -> Result<Next, Fault> {
    let PreparedClient { engine, dial, listen, early, status, certificate, management, authorizer } =
        prepared;
    let gate = management.as_ref().map(|handle| handle.gate(options));
    let plugins = ground.plugins()?;
    let commands = management.as_ref().map(management::Handle::commands);
    let client = Client::open(client::Options {
        engine,
        dial,
        listen,
        early,
        device: convert::bare_plan(options).device,
        // The addresses of a point-to-point tunnel do not depend on whether the other end is up.
        persist_tun: options.device.persist || matches!(options.role, Role::Peer(_)),
        control: super::server::own_control_socket(),
        metrics: super::metrics(options)?,
        allow_recursive: options.routes.allow_recursive,
        authorizer,
        allow_names: matches!(&options.role, Role::Client(client) if client.allow_names),
        copies_tos: options.socket.copies_tos,
        tick: Duration::from_secs(1),
        gate,
        scripts: Scripts::of_client(options, plugins.clone(), management.clone()),
        commands,
    })?;
    // Routes come with the server's options, and are removed on exit.
    ground.drop_privileges(options, &[Capability::CAP_NET_ADMIN])?;
    let mut owner = ClientHooks {
        options,
        ground,
        status,
        certificate,
        until_status: Duration::ZERO,
        traffic: Traffic::default(),
        // OpenVPN's name for a peer without a certificate.
        server: if matches!(options.role, Role::Peer(_)) { "UNDEF".into() } else { String::new() },
        link: None,
        descriptor: -1,
        management: management.map(|handle| ClientReports::new(handle, options)),
    };
    let ended = client.run(&mut owner).await?;
    owner.write_status();
    if let Some(fault) = plugins.and_then(|plugins| plugins.fault()) {
        return Err(fault);
    }
    if let Some(fault) = owner.ground.tokens().and_then(|tokens| tokens.fault()) {
        return Err(fault);
    }
    if let Some(management) = &owner.management {
        management.ended(&ended, options.session.exit_notify.is_some());
    }
    Ok(conclude(ended, options.session.exit_notify.is_some(), retry_max))
}

fn conclude(ended: EndReason<Reason>, notified: bool, retry_max: Option<u32>) -> Next {
    let exit = |code: u8| Next::Exit(ExitCode::from(code));
    match ended {
        EndReason::Restart => {
            say!(1, "SIGHUP[hard,] received, process restarting");
            Next::Restart
        }
        EndReason::Signal(_) if notified => {
            say!(1, "SIGTERM[soft,exit-with-notification] received, process exiting");
            exit(0)
        }
        EndReason::Signal(signal) => {
            let name = if signal == Signal::Interrupt { "SIGINT" } else { "SIGTERM" };
            say!(1, "{name}[hard,] received, process exiting");
            exit(0)
        }
        EndReason::Asked | EndReason::Stopped(Reason::EndRequested | Reason::Checked) => {
            say!(1, "SIGTERM[soft,exit] received, process exiting");
            exit(0)
        }
        EndReason::Stopped(Reason::AuthFailed(_)) => {
            say!(1, "SIGTERM[soft,auth-failure] received, process exiting");
            exit(1)
        }
        EndReason::Stopped(Reason::SessionTimeout) => {
            say!(1, "Session timeout, exiting");
            say!(1, "SIGTERM[soft,session-timeout] received, process exiting");
            exit(0)
        }
        EndReason::Stopped(Reason::Inactive) => {
            say!(1, "Inactivity timeout (--inactive), exiting");
            say!(1, "SIGTERM[soft,inactive] received, process exiting");
            exit(0)
        }
        EndReason::Stopped(Reason::TlsExit(reason)) => {
            tracing::error!("TLS Error: TLS handshake failed: {reason}");
            say!(1, "SIGTERM[soft,tls-error] received, process exiting");
            exit(1)
        }
        EndReason::Stopped(Reason::PingExit) => {
            say!(1, "Inactivity timeout (--ping-exit), exiting");
            say!(1, "SIGTERM[soft,ping-exit] received, process exiting");
            exit(0)
        }
        EndReason::Stopped(Reason::Halted(_)) => {
            say!(1, "SIGTERM[soft,server-pushed-halt] received, process exiting");
            exit(1)
        }
        EndReason::Stopped(Reason::RetriesExhausted) => {
            let rounds = retry_max.unwrap_or_default();
            tracing::error!(
                "All connections have been connect-retry-max ({rounds}) times unsuccessful, exiting"
            );
            tracing::error!("Exiting due to fatal error");
            exit(1)
        }
        EndReason::Stopped(reason) => {
            tracing::error!("{reason}");
            tracing::error!("Exiting due to fatal error");
            exit(1)
        }
    }
}

struct ClientHooks<'a> {
    options: &'a Options,
    ground: &'a Daemonizer,
    status: Option<(StatusFile, Duration)>,
    certificate: Option<CertificateReport>,
    until_status: Duration,
    traffic: Traffic,
    server: String,
    link: Option<Link>,
    descriptor: i32,
    management: Option<ClientReports>,
}

impl Hooks for ClientHooks<'_> {
    fn event(&mut self, event: &ClientEvent) {
        if let Some(management) = &mut self.management {
            management.event(event);
        }
        match event {
            ClientEvent::Connecting(target) => {
                self.ground.waiting();
                say!(4, "Connecting to {target}");
            }
            ClientEvent::ServerAnswered(link, session) => {
                self.link = Some(*link);
                compat_log::initial_packet(String::new, link.remote(), *session);
            }
            ClientEvent::Unreachable(link, errno) => {
                compat_log::unreachable(link.remote(), *errno, self.descriptor);
            }
            ClientEvent::Authenticated { server, tls, .. } => {
                self.server.clone_from(&server.common_name);
                let checked = self.options.tls.peer_usage.is_some();
                let remote = self.link.map(|link| link.remote());
                compat_log::authenticated(server, checked, tls, remote);
            }
            ClientEvent::Pushed(message) => {
                say!(3, "PUSH: Received control message: '{message}'");
            }
            ClientEvent::Up(tunnel) => self.offered_dns(&tunnel.dns),
            ClientEvent::Updated(tunnel) => {
                say!(3, "PUSH_UPDATE: the session's options are changed");
                self.offered_dns(&tunnel.dns);
            }
            ClientEvent::Reverified { server, tls } => {
                compat_log::authenticated(server, self.options.tls.peer_usage.is_some(), tls, None);
            }
            ClientEvent::Rekeyed { key_id, cipher } => {
                say!(2, "Data Channel: cipher '{}', key-id: {key_id}", cipher.name());
            }
            ClientEvent::Restarting(reason) => {
                compat_log::restarting(
                    reason,
                    &self.server,
                    self.options.session.hand_window.as_secs(),
                );
            }
            ClientEvent::Stopped(Reason::AuthFailed(words)) => {
                let words = if words.is_empty() { String::new() } else { format!(",{words}") };
                say!(1, "AUTH: Received control message: AUTH_FAILED{words}");
            }
            ClientEvent::Stopped(Reason::Halted(words)) => {
                say!(1, "Connection halted by the server ('{words}')");
            }
            ClientEvent::Stopped(_)
            | ClientEvent::Echo(_)
            | ClientEvent::AuthPending(_)
            | ClientEvent::ServerInfo(_)
            | ClientEvent::Token(_) => {}
            ClientEvent::Note(text) => say!(3, "{text}"),
            ClientEvent::Path(path) => match mtu_test_line(path, self.options.mtu_test) {
                Some(line) => say!(1, "{line}"),
                None => say!(3, "{path}"),
            },
            ClientEvent::Warning(text) => tracing::warn!("{text}"),
        }
    }

    fn dialling(&mut self, remote: SocketAddr) {
        compat_log::dialling(remote);
        if let Some(management) = &mut self.management {
            management.dialling();
        }
    }

    fn dialled(&mut self, dialled: &Dialled) {
        compat_log::dialled(dialled);
        if let Some(management) = &mut self.management {
            management.dialled(dialled);
        }
        self.descriptor = dialled.descriptor;
    }

    fn listening(&mut self, bound: Endpoint) {
        self.ground.waiting();
        compat_log::listening(bound);
    }

    fn dial_failed(&mut self, reason: &str) {
        tracing::warn!("{reason}");
    }

    fn plan(&mut self, tunnel: &TunnelConfig) -> Result<(HostPlan, Vec<String>), Fault> {
        match &self.options.role {
            Role::Peer(peer) => p2p::plan(self.options, &peer.tunnel_addrs, tunnel.remote),
            _ => convert::client_plan(self.options, tunnel),
        }
    }

    fn dns(&mut self, in_use: &DnsInUse, logged: bool) {
        if !logged && self.options.routes.apply_dns == Some(true) {
            say!(1, "DNS: {in_use}");
        }
    }

    fn up(&mut self, tunnel: &TunnelConfig, report: &HostReport<'_>) {
        if let Some(management) = &self.management {
            management.up(tunnel);
        }
        let peer = match &self.options.role {
            Role::Peer(peer) => Some(peer),
            _ => None,
        };
        if let Some(PeerKeys::Static { suite, .. }) = peer.map(|peer| &peer.keys) {
            return self.static_up(tunnel, suite);
        }
        if let (Some(device), ApplyOutcome::Same, None) = (report.device, report.applied, peer) {
            say!(1, "Preserving previous TUN/TAP instance: {device}");
        }
        self.ground.ready();
        let cipher = tunnel.cipher.map_or("", |cipher| cipher.name());
        let peer = tunnel.peer.map_or(0, |peer| peer.0);
        say!(2, "Data Channel: cipher '{cipher}', peer-id: {peer}");
    }

    fn signal(&mut self, signal: Signal) -> Reaction {
        match super::server::remapped(signal, self.options.process.remap_usr1) {
            Signal::Terminate | Signal::Interrupt => {
                if self.options.session.exit_notify.is_some() {
                    say!(1, "SIGTERM received, sending exit notification to peer");
                }
                Reaction::Stop
            }
            Signal::Hangup if self.ground.has_dropped() => {
                tracing::warn!(
                    "the privileges to open the device again were dropped ('user'): connecting again with the previous \
                     configuration; restart the program to read it again"
                );
                Reaction::Reload
            }
            Signal::Hangup => Reaction::Restart,
            Signal::User1 => Reaction::Reload,
            Signal::User2 => {
                self.current().text(1, unix_time().0).lines().for_each(|line| say!(1, "{line}"));
                Reaction::Ignore
            }
        }
    }

    fn tick(&mut self, traffic: &Traffic) -> client::Next {
        self.traffic = *traffic;
        let totals = self.totals();
        if let Some(management) = &mut self.management {
            management.second(totals);
        }
        self.until_status = self.until_status.saturating_sub(Duration::from_secs(1));
        if let (Some((_, every)), true) = (&self.status, self.until_status.is_zero()) {
            self.until_status = *every;
            self.write_status();
        }
        client::Next::GoOn
    }

    fn certificate(&self) -> Option<CertificateReport> {
        self.certificate.clone()
    }
}

impl ClientHooks<'_> {
    /// Describes the DNS settings of the tunnel, and whether they are applied.
    fn offered_dns(&self, dns: &DnsOptions) {
        let head = match self.options.routes.apply_dns {
            Some(true) => "DNS: settings",
            _ => "DNS: settings, not applied without dns-updown force",
        };
        dns.lines().iter().for_each(|line| say!(3, "{head}: {line}"));
    }

    /// Logs that the other end of a tunnel with a static key has answered.
    fn static_up(&self, tunnel: &TunnelConfig, suite: &BlockSuite) {
        if let Some(remote) = tunnel.remote {
            say!(1, "Peer Connection Initiated with {}", compat_log::address(remote));
        }
        self.ground.ready();
        let cipher = suite.cipher.map_or("none", |cipher| cipher.name());
        let auth = suite.digest.map_or("none", |digest| digest.name());
        say!(2, "Data Channel: cipher '{cipher}', auth '{auth}'");
    }

    fn current(&self) -> Status {
        Status::Client(self.totals())
    }

    fn totals(&self) -> Totals {
        // The data plane counts bytes on the wire. The TUN device receives fewer, because each
        // packet has 8 bytes of header and 16 of tag.
        let inside = |bytes: u64, packets: u64| bytes.saturating_sub(packets.saturating_mul(24));
        let Counters { rx_packets, rx_bytes, tx_packets, tx_bytes } = self.traffic.data;
        let link = self.traffic.data.plus(self.traffic.control);
        Totals {
            tun_read: inside(tx_bytes, tx_packets),
            tun_written: inside(rx_bytes, rx_packets),
            link_read: link.rx_bytes,
            link_written: link.tx_bytes,
        }
    }

    fn write_status(&mut self) {
        let status = self.current();
        if let Some((file, _)) = &mut self.status
            && let Err(e) = file.write(&status, unix_time().0)
        {
            tracing::warn!("status: {e}");
        }
    }
}

/// Returns the line that `mtu-test` asks for about the path MTU that was found.
fn mtu_test_line(path: &impl Display, asked: bool) -> Option<String> {
    asked.then(|| format!("NOTE: Empirical MTU test completed: {path}"))
}

#[cfg(test)]
mod tests {
    use adit_engine::Target;

    use super::*;

    #[test]
    fn remote_random_shuffles_the_remotes_and_loses_none() {
        let remotes: Vec<Target> =
            (0..40).map(|n| Target { host: format!("192.0.2.{n}"), ..Target::default() }).collect();
        let dial = |remote_random| DialOptions {
            remotes: remotes.clone(),
            remote_random,
            ..DialOptions::default()
        };
        let configured: Vec<usize> = (0..40).collect();
        assert_eq!(order(&dial(false)).unwrap(), configured);
        let mut shuffled = order(&dial(true)).unwrap();
        // By chance, one of 40! orders is that of the configuration.
        assert_ne!(shuffled, configured);
        assert_ne!(shuffled, order(&dial(true)).unwrap());
        shuffled.sort_unstable();
        assert_eq!(shuffled, configured);
    }

    /// `mtu-test`
    #[test]
    fn the_path_mtu_is_a_result_only_where_a_test_was_asked_for() {
        assert_eq!(mtu_test_line(&"1400 bytes", false), None);
        let line = mtu_test_line(&"1400 bytes", true);
        assert_eq!(line.as_deref(), Some("NOTE: Empirical MTU test completed: 1400 bytes"));
    }
}
