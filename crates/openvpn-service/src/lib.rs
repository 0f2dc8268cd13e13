//! Runs an OpenVPN server for `adit openvpn` and `adit server`. Connects the engine, the data plane, the device and
//! their events, and writes openvpn's log lines.

#![forbid(unsafe_code)]

pub mod compat_log;
pub mod handover;
mod log_events;
mod log_limits;
mod metrics;
mod release_memory;
mod report;
mod service;
mod sessions;
mod sockets;

use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::Transport;
use adit_engine::command::Counters;
use adit_openvpn::server::{Disconnect, ReloadableConfig, ServerConfig, ServerEvent};
use adit_openvpn::tls::ServerTls;
use tokio::sync::{mpsc, oneshot};

pub use adit_dataplane::{Relay, StreamOptions};
use adit_linux::udp::Fragmentation;
pub use log_events::EventLog;
pub use metrics::HandshakeStats;
pub use report::{server_drops, tun_report};
pub use service::Service;
pub use sessions::{Session, Sessions};
pub use sockets::{listen, unbound};

use adit_runtime::authorize::Authorizer;
use adit_runtime::control::{CertificateReport, LoginReport, ReloadReport};
use adit_runtime::driver::Endpoint;
use adit_runtime::fault::Fault;
use adit_runtime::filter::{KnownNames, LiveFilter};
use adit_runtime::host::HostPlan;
use adit_runtime::instance::{EndReason, Reaction};
use adit_runtime::metrics::{Config as MetricsConfig, Samples};
use adit_runtime::port_share::PortShare;
use adit_runtime::signals::Signal;

/// The maximum number of queued commands from [`Handle`]s.
pub const COMMAND_LIMIT: usize = 64;

/// One address to listen on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// The address and port; an unspecified IPv6 address accepts IPv4 too unless `v6only`.
    pub bind: SocketAddr,
    /// IPv6 only.
    pub v6only: bool,
    /// UDP or TCP.
    pub transport: Transport,
}

/// The options of a [`Service`].
pub struct Options {
    /// The engine's configuration.
    pub engine: ServerConfig,
    /// The addresses to listen on; at least one.
    pub listeners: Vec<Listener>,
    /// The device, addresses and routes.
    pub host: HostPlan,
    /// Authorizes clients (used when `engine.authorize` is set).
    pub authorizer: Arc<dyn Authorizer>,
    /// The treatment of packets between clients.
    pub relay: Relay,
    /// The rules for packets that pass through the tunnel.
    pub filter: Option<LiveFilter>,
    /// The limits of the table of MAC addresses behind clients, with a TAP device.
    pub mac_limits: MacLimits,
    /// The path of a control socket to open, which also names the instance.
    pub control: Option<PathBuf>,
    /// The address at which metrics are served.
    pub metrics: Option<MetricsConfig>,
    /// The buffers and marks of the sockets.
    pub socket: SocketTuning,
    /// The server that receives TCP connections that do not belong to the tunnel.
    pub port_share: Option<PortShare>,
    /// The number of threads that move packets.
    pub workers: u16,
    /// How sessions pass from one process to the next.
    pub hand_over: handover::Setup,
}

/// The limits of the table of MAC addresses behind clients, with a TAP device.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MacLimits {
    /// `max-routes-per-client`.
    pub per_client: usize,
    /// `stale-routes-check`: an address is forgotten after being silent for this long.
    pub age: Option<Duration>,
    /// Whether the authorizer must allow each address (`learn-address`).
    pub ask: bool,
}

impl Default for MacLimits {
    fn default() -> Self {
        Self { per_client: adit_dataplane::MACS_PER_PEER, age: None, ask: false }
    }
}

/// Socket options.
#[derive(Clone, Debug, Default)]
pub struct SocketTuning {
    /// `mark`.
    pub mark: Option<u32>,
    /// `bind-dev`.
    pub device: Option<String>,
    /// `rcvbuf`, in bytes; `None` selects adit's default.
    pub receive_buffer: Option<usize>,
    /// `sndbuf`, in bytes; `None` selects adit's default.
    pub send_buffer: Option<usize>,
    /// `mtu-disc`: fragmentation of the datagrams sent.
    pub fragmentation: Fragmentation,
    /// `passtos`: datagrams have the type of service of the packets that they carry.
    pub copies_tos: bool,
    /// The limits and options of TCP connections.
    pub streams: StreamOptions,
}

/// The sessions that a [`Handle::kick`] ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// All sessions with this common name.
    Name(String),
    /// The sessions with a certificate's serial number (lower-case hex).
    Serial(String),
    /// One session by its peer id.
    Peer(u32),
    /// One session by its number ([`adit_openvpn::server::ClientInfo::session`]).
    Session(u64),
    /// The sessions from this address and port outside the tunnel.
    Address(SocketAddr),
}

/// Controls a running [`Service`]; cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
}

/// Reads the sessions on the control thread.
type Visit = Box<dyn FnOnce(&Sessions) + Send>;

/// A command of a [`Handle`].
enum Command {
    /// Ends sessions; the response is their number.
    Kick(Selector, Disconnect, String, oneshot::Sender<usize>),
    /// Reads the sessions, with current counters.
    Visit(Visit),
    /// Replaces certificates, CRL and checks starting with the next handshake.
    SetTls(Box<ServerTls>),
    /// Replaces the options to push, the limits and the reserved addresses.
    SetOffer(Box<ReloadableConfig>),
    /// Replaces the host plan.
    SetHost(Box<HostPlan>),
}

impl Handle {
    /// Ends sessions; the reason is logged. Returns the number of sessions that ended.
    ///
    /// # Errors
    /// The service has ended.
    pub async fn kick(&self, who: Selector, reason: impl Into<String>) -> Result<usize, Fault> {
        // The client may reconnect where it still has the right to; its handshake is checked.
        self.disconnect(who, Disconnect::Restart, reason).await
    }

    /// Ends sessions, and tells the clients whether to connect again. Returns the number of sessions that ended.
    ///
    /// # Errors
    /// The service has ended.
    pub async fn disconnect(
        &self,
        who: Selector,
        disconnect: Disconnect,
        reason: impl Into<String>,
    ) -> Result<usize, Fault> {
        let (tx, rx) = oneshot::channel();
        self.send(Command::Kick(who, disconnect, reason.into(), tx)).await?;
        rx.await.map_err(|_| ended())
    }

    /// Reads the sessions, with current counters, on the control thread.
    ///
    /// # Errors
    /// The service has ended.
    pub async fn visit<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Sessions) -> T + Send + 'static,
    ) -> Result<T, Fault> {
        let (tx, rx) = oneshot::channel();
        // The caller may have stopped waiting.
        let visit = move |sessions: &Sessions| drop(tx.send(read(sessions)));
        self.send(Command::Visit(Box::new(visit))).await?;
        rx.await.map_err(|_| ended())
    }

    /// Replaces certificates, CRL and checks for handshakes that begin from now on.
    ///
    /// # Errors
    /// The service has ended.
    pub async fn set_tls(&self, tls: ServerTls) -> Result<(), Fault> {
        self.send(Command::SetTls(Box::new(tls))).await
    }

    /// Replaces the settings offered to sessions that begin from now on.
    ///
    /// # Errors
    /// The service has ended.
    pub async fn set_offer(&self, offer: ReloadableConfig) -> Result<(), Fault> {
        self.send(Command::SetOffer(Box::new(offer))).await
    }

    /// Replaces the host plan. Only the differences are applied, and traffic continues.
    ///
    /// # Errors
    /// The service has ended.
    pub async fn set_host(&self, plan: HostPlan) -> Result<(), Fault> {
        self.send(Command::SetHost(Box::new(plan))).await
    }

    async fn send(&self, command: Command) -> Result<(), Fault> {
        self.commands.send(command).await.map_err(|_| ended())
    }
}

fn ended() -> Fault {
    Fault::ours("the server has ended")
}

/// Callbacks to the owner of a [`Service`].
pub trait Hooks {
    /// Called with every event of the engine, in order.
    fn event(&mut self, event: &ServerEvent);

    /// Called when a session has ended, with the traffic of all of it. It is still among the sessions.
    fn ended(&mut self, session: &Session, traffic: Counters) {
        let _ = (session, traffic);
    }

    /// Handles `adit reload` or SIGHUP. Reads certificates, registry and CRL again. Sessions are ended through the
    /// handle.
    ///
    /// # Errors
    /// A file could not be read; the service continues with its previous settings.
    fn reload(&mut self, handle: &Handle) -> Result<Option<ServerTls>, Fault>;

    /// Logs an event. `sessions` are the sessions before the event.
    fn log_event(&mut self, event: &ServerEvent, sessions: &Sessions) {
        log_events::log_event(event, sessions);
    }

    /// Handles a signal.
    fn signal(&mut self, signal: Signal, sessions: &Sessions) -> Reaction {
        let _ = sessions;
        signal.into()
    }

    /// Called about once a second with the current counters of the sessions; may return new certificates or a new CRL.
    fn tick(&mut self, sessions: &Sessions) -> Option<ServerTls> {
        let _ = sessions;
        None
    }

    /// Called before [`Hooks::serving`] with the service's handle.
    fn started(&mut self, handle: &Handle) {
        let _ = handle;
    }

    /// Called when the data plane runs and clients can connect.
    fn serving(&mut self, device: Option<&str>, listening: &[Endpoint]) {
        let _ = (device, listening);
    }

    /// Receives names with their last addresses, about once a second and at the end, if [`Hooks::wants_leases`].
    fn leases(&mut self, leases: Vec<(String, Vec<ipnet::IpNet>)>) {
        let _ = leases;
    }

    /// Returns the groups that a client is in now, queried again at each reload, or `None` for those from its
    /// authorization.
    fn groups(&self, name: &str) -> Option<Vec<String>> {
        let _ = name;
        None
    }

    /// Returns all clients and groups to which the filter's rules can refer; `None` if they are not known.
    fn known(&self) -> Option<KnownNames> {
        None
    }

    /// Returns the rule file that the configuration now names, or `None` for the file named at the start.
    fn filter_file(&self) -> Option<PathBuf> {
        None
    }

    /// Returns whether [`Hooks::leases`] should be called.
    fn wants_leases(&self) -> bool {
        false
    }

    /// Returns the settings that the last [`Hooks::reload`] applied, and those that need a restart.
    fn reloaded(&mut self) -> ReloadReport {
        ReloadReport::default()
    }

    /// Returns the counters of users' logins, for `adit status`.
    fn logins(&self) -> Option<LoginReport> {
        None
    }

    /// Adds samples of its own to the metrics.
    fn measure(&self, samples: &mut Samples) {
        let _ = samples;
    }

    /// Returns the client certificate that expires first, for `adit status`.
    fn client_certificate(&self) -> Option<CertificateReport> {
        None
    }

    /// Returns our own certificate that expires first, for `adit status`.
    fn certificate(&self) -> Option<CertificateReport> {
        None
    }

    /// Called at the end, when the sessions have been handed over to the next process. Nothing that it needs may be
    /// undone.
    fn handed_over(&mut self) {}

    /// Called at the end, after the last session and before the host plan is undone.
    fn closing<'a>(&'a mut self, reason: &EndReason<Infallible>) -> ClosingFuture<'a> {
        let _ = reason;
        Box::pin(std::future::ready(()))
    }
}

/// The work of [`Hooks::closing`].
pub type ClosingFuture<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;
