//! A running OpenVPN server: engine, data plane, device and events joined, for `adit openvpn` and `adit server`;
//! and the log lines of openvpn.

#![forbid(unsafe_code)]

pub mod compat_log;
mod log_events;
mod log_limits;
mod release_memory;
mod service;
mod sessions;
mod sockets;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use adit_engine::Transport;
use adit_openvpn::server::{ReloadableConfig, ServerConfig, ServerEvent};
use adit_openvpn::tls::ServerTls;
use tokio::sync::{mpsc, oneshot};

pub use adit_dataplane::{Relay, StreamOptions};
pub use service::{Service, tun_report};
pub use sessions::{Session, Sessions};
pub use sockets::{listen, unbound};

use adit_runtime::authorize::Authorizer;
use adit_runtime::control::{CertificateReport, ReloadReport};
use adit_runtime::driver::Endpoint;
use adit_runtime::fault::Fault;
use adit_runtime::filter::{KnownNames, LiveFilter};
use adit_runtime::host::HostPlan;
use adit_runtime::instance::Reaction;
use adit_runtime::port_share::PortShare;
use adit_runtime::signals::Signal;

/// The number of commands from [`Handle`]s that may wait.
pub const COMMAND_LIMIT: usize = 64;

/// One address to listen on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Address and port; an unspecified IPv6 address takes IPv4 as well unless `v6only`.
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
    /// Device, addresses, routes.
    pub host: HostPlan,
    /// Authorizes clients (used when `engine.authorize` is set).
    pub authorizer: Arc<dyn Authorizer>,
    /// Packets between clients.
    pub relay: Relay,
    /// Rules for what passes through the tunnel.
    pub filter: Option<LiveFilter>,
    /// Limits of the table of MAC addresses behind clients, with a TAP device.
    pub mac_limits: MacLimits,
    /// A control socket to open, and its name.
    pub control: Option<PathBuf>,
    /// Buffers and marks of the sockets.
    pub socket: SocketTuning,
    /// The server that receives TCP connections that are not the tunnel's.
    pub port_share: Option<PortShare>,
    /// Threads that move packets.
    pub workers: u16,
}

/// Limits of the table of MAC addresses behind clients, with a TAP device.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MacLimits {
    /// `max-routes-per-client`.
    pub per_client: usize,
    /// `stale-routes-check`: forgotten after this long in silence.
    pub age: Option<Duration>,
}

impl Default for MacLimits {
    fn default() -> Self {
        Self { per_client: adit_dataplane::MACS_PER_PEER, age: None }
    }
}

/// Socket options.
#[derive(Clone, Debug, Default)]
pub struct SocketTuning {
    /// `mark`.
    pub mark: Option<u32>,
    /// `bind-dev`.
    pub device: Option<String>,
    /// `rcvbuf`, bytes; `None`: ours.
    pub receive_buffer: Option<usize>,
    /// `sndbuf`, bytes; `None`: ours.
    pub send_buffer: Option<usize>,
    /// Limits and options of TCP connections.
    pub streams: StreamOptions,
}

/// Which sessions a [`Handle::kick`] ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// All of this common name.
    Name(String),
    /// The sessions with a certificate's serial number (lower-case hex).
    Serial(String),
    /// One session by its peer id.
    Peer(u32),
}

/// Steers a running [`Service`]; cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
}

/// A command of a [`Handle`].
#[derive(Debug)]
enum Command {
    /// End sessions; answers with how many.
    Kick(Selector, String, oneshot::Sender<usize>),
    /// Other certificates, CRL, checks from the next handshake on.
    SetTls(Box<ServerTls>),
    /// Other options to push, limits, reserved addresses.
    SetOffer(Box<ReloadableConfig>),
}

impl Handle {
    /// Ends sessions; the reason goes to the log. Returns how many ended.
    ///
    /// # Errors
    /// The service has ended.
    pub async fn kick(&self, who: Selector, reason: impl Into<String>) -> Result<usize, Fault> {
        let (tx, rx) = oneshot::channel();
        self.send(Command::Kick(who, reason.into(), tx)).await?;
        rx.await.map_err(|_| ended())
    }

    /// Takes over certificates, CRL and checks for handshakes that begin from now on.
    ///
    /// # Errors
    /// The service has ended.
    pub async fn set_tls(&self, tls: ServerTls) -> Result<(), Fault> {
        self.send(Command::SetTls(Box::new(tls))).await
    }

    /// Takes over what sessions that begin from now on are offered.
    ///
    /// # Errors
    /// The service has ended.
    pub async fn set_offer(&self, offer: ReloadableConfig) -> Result<(), Fault> {
        self.send(Command::SetOffer(Box::new(offer))).await
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

    /// Handles `adit reload` or SIGHUP: reads certificates, registry and CRL again. Kicks go by the handle.
    ///
    /// # Errors
    /// Something could not be read; the service continues with its former settings.
    fn reload(&mut self, handle: &Handle) -> Result<Option<ServerTls>, Fault>;

    /// Puts an event into the log. `sessions` are those before the event.
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

    /// Called when the data plane runs and clients can connect.
    fn serving(&mut self, device: Option<&str>, listening: &[Endpoint]) {
        let _ = (device, listening);
    }

    /// Receives names with their last addresses, about once a second and at the end, if [`Hooks::wants_leases`].
    fn leases(&mut self, leases: Vec<(String, Vec<ipnet::IpNet>)>) {
        let _ = leases;
    }

    /// Returns the groups that a client is in now, queried again at each reload; `None`: those from its authorization.
    fn groups(&self, name: &str) -> Option<Vec<String>> {
        let _ = name;
        None
    }

    /// Returns all clients and groups that the filter's rules can mean; `None` where that is not known.
    fn known(&self) -> Option<KnownNames> {
        None
    }

    /// Returns the rule file that the configuration names now; `None`: the one from the start.
    fn filter_file(&self) -> Option<PathBuf> {
        None
    }

    /// Returns whether [`Hooks::leases`] is of use.
    fn wants_leases(&self) -> bool {
        false
    }

    /// Returns the settings that the last [`Hooks::reload`] applied, and those that need a restart.
    fn reloaded(&mut self) -> ReloadReport {
        ReloadReport::default()
    }

    /// Returns the client certificate that expires first, for `adit status`.
    fn client_certificate(&self) -> Option<CertificateReport> {
        None
    }

    /// Returns our own certificate that expires first, for `adit status`.
    fn certificate(&self) -> Option<CertificateReport> {
        None
    }
}
