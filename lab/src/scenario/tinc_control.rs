//! Bulk traffic in a tinc net while another node announces and withdraws subnets, to measure what its messages cost.
//!
//! The other node is this program's own, and a neighbour of the server, which passes each message on to the client.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant as Clock};

use adit_engine::{Instant, Random};
use adit_testbed::failure::{Context, Result, ensure};
use adit_tinc::config::{Entries, HostConfig, ServerConfig};
use adit_tinc::keys::PrivateKey;
use adit_tinc::name::NodeName;
use adit_tinc::node::{ConnectionId, Node, NodeConfig, Output};
use nix::sys::signal::Signal;

use super::polled::{self, Poller};
use super::runner::Runner;
use super::trains::{self, Trains};
use super::trial_run::TrialRun;
use crate::plan::Settings;
use crate::record::Measurement;
use crate::subject::{MemberPath, Subject};

/// The time in which the other node becomes a neighbour.
const READY: Duration = Duration::from_secs(20);

/// How long the other node waits for bytes before it becomes a neighbour.
const WAIT: Duration = Duration::from_millis(1);

/// The name of the other node.
const GUEST: &str = "guest";

/// Measures the cost of messages; see [`polled::measure`].
pub(super) fn run(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
) -> Result<Measurement> {
    let testbed = runner.testbed(&Settings { clients: 1, ..settings.clone() })?;
    let run = runner.start_members(testbed, settings, subject, MemberPath::Direct)?;
    let is_adit = subject.to_string().starts_with("adit");
    let adit = is_adit.then(|| runner.toolchain().adit(None)).transpose()?;
    Guest::join(&run, adit)
        .and_then(|guest| polled::measure(&run, settings, guest))
        .map_err(|failure| run.broken(&failure))
}

/// Reads the server's host file.
fn server_host(folder: &Path) -> Result<HostConfig> {
    let path = folder.join("hosts/server");
    let text = fs::read_to_string(&path).context(path.display())?;
    let (host, _) = HostConfig::read(Entries::default(), "hosts/server", &text).context("host")?;
    ensure(host.public_key.is_some(), || "tinc 1.0 does not speak the protocol of 1.1".to_owned())?;
    Ok(host)
}

/// The other node, with one connection.
struct Guest {
    node: Node,
    connection: Option<(ConnectionId, TcpStream)>,
    began: Clock,
    /// Whether the subnet is announced.
    announced: bool,
    /// The program that reports the server's trains, if the server is adit.
    adit: Option<PathBuf>,
}

impl Guest {
    /// Tells the server about the node, and connects it.
    fn join(run: &TrialRun, adit: Option<PathBuf>) -> Result<Self> {
        let folder = run.tunnels.folder().context("a tunnel without files")?.join("server");
        let server = server_host(&folder)?;
        let key = Arc::new(PrivateKey::from_seed(&[7; 32]));
        let line = format!("Ed25519PublicKey = {}\n", key.public());
        fs::write(folder.join("hosts").join(GUEST), line)?;
        for daemon in &run.tunnels.server {
            daemon.signal(Signal::SIGHUP)?;
        }
        let host = run.testbed.clients.first().context("a testbed without a client")?;
        // The connection remains in the host's network wherever it is used.
        let joining = host.thread(move || {
            let mut guest = Self::new(key, server, adit)?;
            while guest.node.neighbours().next().is_none() {
                ensure(guest.began.elapsed() < READY, || {
                    "the node that announces subnets did not become a neighbour".to_owned()
                })?;
                guest.step()?;
                thread::sleep(WAIT);
            }
            Ok(guest)
        })?;
        joining.join().unwrap_or_else(|_| Err("the other node panicked".into()))
    }

    fn new(key: Arc<PrivateKey>, server: HostConfig, adit: Option<PathBuf>) -> Result<Self> {
        let name: NodeName = GUEST.parse().context("a name")?;
        let other: NodeName = "server".parse().context("a name")?;
        let mut own = ServerConfig {
            auto_connect: false,
            learn_keys: false,
            legacy_nodes: false,
            ..ServerConfig::default()
        };
        own.own.tcp_only = true;
        own.connect_to = vec![other.clone()];
        let config =
            NodeConfig { name, key, server: own, hosts: [(other, server)].into(), udp_port: 655 };
        let began = Clock::now();
        let node = Node::new(config, Self::at(began), Random::new([8; 32]));
        Ok(Self { node, connection: None, began, announced: false, adit })
    }

    fn at(began: Clock) -> Instant {
        let passed = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(1_000_000_000_000_u64.saturating_add(passed))
    }

    /// Handles what has arrived, and lets time pass.
    fn step(&mut self) -> Result<()> {
        let now = Self::at(self.began);
        if self.node.deadline() <= now {
            self.node.tick(now);
            self.perform(now)?;
        }
        let mut buffer = [0; 4096];
        while let Some((id, stream)) = &mut self.connection {
            match stream.read(&mut buffer) {
                Ok(0) => return Err("the server closed the other node's connection".into()),
                Ok(len) => {
                    let id = *id;
                    self.node.receive(now, id, buffer.get(..len).unwrap_or_default());
                    self.perform(now)?;
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn perform(&mut self, now: Instant) -> Result<()> {
        while let Some(output) = self.node.pop() {
            match output {
                Output::Dial { connection, address } => match TcpStream::connect(address) {
                    Ok(stream) => {
                        stream.set_nonblocking(true)?;
                        let local = stream.local_addr()?;
                        self.connection = Some((connection, stream));
                        self.node.connected(now, connection, local);
                    }
                    Err(_) => self.node.closed(now, connection),
                },
                Output::Send { connection, bytes } => {
                    if let Some((id, stream)) = &mut self.connection
                        && *id == connection
                    {
                        stream.write_all(&bytes)?;
                    }
                }
                Output::Close { connection, .. } => {
                    self.connection.take_if(|(id, _)| *id == connection);
                }
                // It has no device, and sends nothing by UDP.
                _ => {}
            }
        }
        Ok(())
    }
}

impl Poller for Guest {
    const METRICS: [&'static str; 2] = ["control_pps", "cpu_us_per_message"];

    /// Announces or withdraws the subnet.
    fn request(&mut self) -> Result<()> {
        self.step()?;
        let now = Self::at(self.began);
        let subnet = "10.200.0.0/24".parse().context("a subnet")?;
        self.announced = !self.announced;
        if self.announced {
            self.node.add_subnet(now, subnet);
        } else {
            self.node.remove_subnet(now, subnet);
        }
        self.perform(now)
    }

    fn trains(&mut self) -> Result<Trains> {
        // In slices without messages, the server's PINGs wait.
        self.step()?;
        let Some(adit) = &self.adit else { return Ok(Trains::new()) };
        let mut status = Command::new(adit);
        status.arg("status");
        trains::of(status, "tinc-server")
    }
}
