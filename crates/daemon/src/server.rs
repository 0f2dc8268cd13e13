//! A running server: engine, data plane, device and events joined, for `adit openvpn` and `adit server`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use adit_openvpn::server::{ServerConfig, ServerEvent};
use adit_openvpn::tls::ServerTls;
use tokio::sync::{mpsc, oneshot};

use crate::ask::Authorizer;
use crate::control::StatusReport;
use crate::fault::Fault;
use crate::host::HostPlan;

/// How many commands of [`Handle`]s may wait.
pub const COMMAND_LIMIT: usize = 64;

/// One address to listen on.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Listener {
    /// Address and port; an unspecified IPv6 address takes IPv4 as well unless `v6only`.
    pub bind: SocketAddr,
    /// IPv6 only.
    pub v6only: bool,
}

/// What happens to a packet from one client to another.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum Relay {
    /// It goes to the TUN like everything else; the kernel's routes and firewall decide.
    #[default]
    Kernel,
    /// `client-to-client`: straight to the other client.
    Direct,
    /// Dropped and counted.
    Deny,
}

/// What a [`Service`] is built from.
pub struct Options {
    /// The engine's configuration.
    pub engine: ServerConfig,
    /// Where to listen; at least one.
    pub listeners: Vec<Listener>,
    /// Device, addresses, routes.
    pub host: HostPlan,
    /// Who may come in (asked when `engine.authorize` is set).
    pub authorizer: Arc<dyn Authorizer>,
    /// Packets between clients.
    pub relay: Relay,
    /// A control socket to open, and its name.
    pub control: Option<PathBuf>,
}

/// Which sessions a [`Handle::kick`] ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selector {
    /// All of this common name.
    Name(String),
    /// Those of a certificate (serial number, lower-case hex).
    Serial(String),
    /// One session by its peer id.
    Peer(u32),
}

/// Steers a running [`Service`]; cheap to clone.
#[derive(Clone, Debug)]
pub struct Handle {
    commands: mpsc::Sender<Command>,
}

/// What a [`Handle`] asks for.
#[derive(Debug)]
pub(crate) enum Command {
    /// End sessions; answers with how many.
    Kick(Selector, String, oneshot::Sender<usize>),
    /// Other certificates, CRL, checks from the next handshake on.
    SetTls(Box<ServerTls>),
    /// How is it going.
    Status(oneshot::Sender<StatusReport>),
    /// Tell the clients and end.
    Stop(String),
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

    /// How it is going.
    ///
    /// # Errors
    /// The service has ended.
    pub async fn status(&self) -> Result<StatusReport, Fault> {
        let (tx, rx) = oneshot::channel();
        self.send(Command::Status(tx)).await?;
        rx.await.map_err(|_| ended())
    }

    /// Tells the clients and ends.
    ///
    /// # Errors
    /// The service has ended already.
    pub async fn stop(&self, reason: impl Into<String>) -> Result<(), Fault> {
        self.send(Command::Stop(reason.into())).await
    }

    async fn send(&self, command: Command) -> Result<(), Fault> {
        self.commands.send(command).await.map_err(|_| ended())
    }
}

fn ended() -> Fault {
    Fault::ours("the server has ended")
}

/// What the owner of a [`Service`] hears and decides.
pub trait Hooks {
    /// Every event of the engine, in order.
    fn event(&mut self, event: &ServerEvent);

    /// `adit reload` or SIGHUP: read certificates, registry and CRL again. Kicks go by the handle.
    ///
    /// # Errors
    /// What could not be read; the service goes on with what it had.
    fn reload(&mut self, handle: &Handle) -> Result<Option<ServerTls>, Fault>;
}

/// A server that listens, with its device up.
pub struct Service {
    handle: Handle,
    commands: mpsc::Receiver<Command>,
    options: Options,
}

impl Service {
    /// Opens sockets and device and applies the host plan. Call inside a tokio runtime with I/O and
    /// time; drop privileges between this and [`Service::run`].
    ///
    /// # Errors
    /// What could not be opened, with the remedy.
    pub async fn start(options: Options) -> Result<Self, Fault> {
        let (tx, commands) = mpsc::channel(COMMAND_LIMIT);
        Ok(Self { handle: Handle { commands: tx }, commands, options })
    }

    /// A handle to steer it.
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }

    /// The name of the TUN device, `None` with `dev null`.
    pub fn device(&self) -> Option<&str> {
        None
    }

    /// Serves until [`Handle::stop`], SIGTERM or SIGINT, then undoes the host plan.
    ///
    /// # Errors
    /// What ended it otherwise.
    pub async fn run(mut self, hooks: &mut dyn Hooks) -> Result<(), Fault> {
        while let Some(command) = self.commands.recv().await {
            if let Command::Stop(_) = command {
                break;
            }
            let _ = (&self.options.relay, &hooks);
        }
        Err(Fault::ours("the server engine is not joined yet"))
    }
}
