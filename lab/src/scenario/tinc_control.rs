//! Bulk traffic in a tinc net while another node announces and withdraws subnets, to measure what its messages cost.
//!
//! The other node is this program's own, and a neighbour of the server, which passes each message on to the client. One tunnel carries all
//! slices of a trial. In every second pair of slices the order is reversed, so a drift of the machine affects the slices with messages as
//! much as those without.

use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant as Clock};

use adit_engine::{Instant, Random};
use adit_testbed::failure::{Context, Result, ensure};
use adit_tinc::config::{Entries, HostConfig, ServerConfig};
use adit_tinc::keys::PrivateKey;
use adit_tinc::name::NodeName;
use adit_tinc::node::{ConnectionId, Node, NodeConfig, Output};
use nix::sys::signal::Signal;

use super::runner::Runner;
use super::trial_run::{Direction, MeasuredCost, TrialRun};
use crate::plan::Settings;
use crate::record::Measurement;
use crate::subject::{MemberPath, Subject};
use crate::work::{Window, tcp_bulk};

/// The number of slices with messages, and of those without.
const SLICES: u32 = 4;

/// The time in which the other node becomes a neighbour.
const READY: Duration = Duration::from_secs(20);

/// How long the other node waits for bytes.
const WAIT: Duration = Duration::from_millis(1);

/// The name of the other node.
const GUEST: &str = "guest";

/// The sums of the slices of one state.
#[derive(Debug, Default)]
struct Sums {
    gigabits: f64,
    seconds: f64,
    server_cpu: f64,
}

impl Sums {
    fn add(&mut self, cost: &MeasuredCost) {
        self.gigabits += cost.gigabits();
        self.seconds += cost.measured.seconds;
        self.server_cpu += cost.usage.roles.get("server").map_or(0.0, |role| role.cpu());
    }

    fn mbps(&self) -> f64 {
        self.gigabits * 1e3 / self.seconds
    }
}

/// Measures `sum_mbps` (with messages), `cost_percent` (the throughput that the messages cost), `control_pps` (messages) and
/// `server_cpu_s_per_gb` (with messages).
pub(super) fn run(
    runner: &mut Runner,
    settings: &Settings,
    subject: &Subject,
) -> Result<Measurement> {
    let testbed = runner.testbed(&Settings { clients: 1, ..settings.clone() })?;
    let run = runner.start_members(testbed, settings, subject, MemberPath::Direct)?;
    measure(&run, settings).map_err(|failure| run.broken(&failure))
}

fn measure(run: &TrialRun, settings: &Settings) -> Result<Measurement> {
    let guest = Guest::start(run, settings.rate)?;
    let window = Window { warmup: settings.warmup, length: settings.length / SLICES };
    let mut routes = run.routes(Direction::Up, 1);
    routes.extend(run.routes(Direction::Down, 1));
    let (mut with, mut without) = (Sums::default(), Sums::default());
    let mut talked = Duration::ZERO;
    let mut measurement = Measurement::default();
    for slice in 0..2 * SLICES {
        // ABBA
        let talks = matches!(slice % 4, 1 | 2);
        guest.talks.store(talks, Relaxed);
        let began = Clock::now();
        let cost = run.measure_cost(|edge| tcp_bulk(&routes, &window, edge))?;
        measurement.invalid.extend(cost.measured.invalid.iter().cloned());
        if talks {
            talked += began.elapsed();
        }
        if talks { &mut with } else { &mut without }.add(&cost);
    }
    let sent = guest.finish()?;
    ensure(without.gigabits > 0.0 && with.gigabits > 0.0, || "nothing was transferred".to_owned())?;
    measurement.set("sum_mbps", with.mbps());
    measurement.set("cost_percent", (1.0 - with.mbps() / without.mbps()) * 100.0);
    measurement.set("server_cpu_s_per_gb", with.server_cpu / with.gigabits);
    measurement.set("control_pps", sent as f64 / talked.as_secs_f64());
    measurement.notes.extend(run.tunnels.notes.iter().cloned());
    Ok(measurement)
}

/// The other node, on a thread of its own.
struct Guest {
    talks: Arc<AtomicBool>,
    stop: Arc<AtomicBool>,
    sent: Arc<AtomicU64>,
    thread: JoinHandle<Result<()>>,
}

impl Guest {
    /// Tells the server about the node, and connects it. It sends `rate` messages a second while `talks` is set.
    fn start(run: &TrialRun, rate: u32) -> Result<Self> {
        let folder = run.tunnels.folder().context("a tunnel without files")?.join("server");
        let server = server_host(&folder)?;
        let key = Arc::new(PrivateKey::from_seed(&[7; 32]));
        let line = format!("Ed25519PublicKey = {}\n", key.public());
        fs::write(folder.join("hosts").join(GUEST), line)?;
        for daemon in &run.tunnels.server {
            daemon.signal(Signal::SIGHUP)?;
        }
        let [talks, stop] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
        let sent = Arc::new(AtomicU64::new(0));
        let (ready, is_ready) = mpsc::channel();
        let host = run.testbed.clients.first().context("a testbed without a client")?;
        let thread = {
            let (talks, stop, sent) = (Arc::clone(&talks), Arc::clone(&stop), Arc::clone(&sent));
            host.thread(move || {
                let mut talker = Talker::new(key, server)?;
                let (mut next, mut reported) = (Clock::now(), false);
                while !stop.load(Relaxed) {
                    talker.step()?;
                    if talker.is_neighbour() && !reported {
                        reported = true;
                        // The receiver may have given up.
                        let _ = ready.send(());
                    }
                    if !talks.load(Relaxed) || rate == 0 {
                        next = Clock::now();
                    } else if Clock::now() >= next && talker.is_neighbour() {
                        next += Duration::from_secs(1) / rate;
                        talker.talk()?;
                        sent.fetch_add(1, Relaxed);
                    }
                }
                Ok(())
            })?
        };
        let guest = Self { talks, stop, sent, thread };
        if is_ready.recv_timeout(READY).is_err() {
            guest.finish()?;
            return Err("the node that announces subnets did not become a neighbour".into());
        }
        Ok(guest)
    }

    /// Ends the node. Returns the number of its messages.
    fn finish(self) -> Result<u64> {
        self.stop.store(true, Relaxed);
        self.thread.join().unwrap_or_else(|_| Err("the other node panicked".into()))?;
        Ok(self.sent.load(Relaxed))
    }
}

/// Reads the server's host file.
fn server_host(folder: &Path) -> Result<HostConfig> {
    let path = folder.join("hosts/server");
    let text = fs::read_to_string(&path).context(path.display())?;
    let (host, _) = HostConfig::read(Entries::default(), "hosts/server", &text).context("host")?;
    ensure(host.public_key.is_some(), || "tinc 1.0 does not speak the protocol of 1.1".to_owned())?;
    Ok(host)
}

/// A node with one connection.
struct Talker {
    node: Node,
    connection: Option<(ConnectionId, TcpStream)>,
    began: Clock,
    /// Whether the subnet is announced.
    announced: bool,
}

impl Talker {
    fn new(key: Arc<PrivateKey>, server: HostConfig) -> Result<Self> {
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
        Ok(Self { node, connection: None, began, announced: false })
    }

    fn at(began: Clock) -> Instant {
        let passed = u64::try_from(began.elapsed().as_nanos()).unwrap_or(u64::MAX);
        Instant::from_nanos(1_000_000_000_000_u64.saturating_add(passed))
    }

    fn is_neighbour(&self) -> bool {
        self.node.neighbours().next().is_some()
    }

    /// Announces or withdraws the subnet.
    fn talk(&mut self) -> Result<()> {
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

    /// Receives for a moment, and lets time pass.
    fn step(&mut self) -> Result<()> {
        let now = Self::at(self.began);
        if self.node.deadline() <= now {
            self.node.tick(now);
            self.perform(now)?;
        }
        let Some((id, stream)) = &mut self.connection else {
            std::thread::sleep(WAIT);
            return Ok(());
        };
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer) {
            Ok(0) => return Err("the server closed the other node's connection".into()),
            Ok(len) => {
                let id = *id;
                self.node.receive(now, id, buffer.get(..len).unwrap_or_default());
                self.perform(now)?;
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    fn perform(&mut self, now: Instant) -> Result<()> {
        while let Some(output) = self.node.pop() {
            match output {
                Output::Dial { connection, address } => match TcpStream::connect(address) {
                    Ok(stream) => {
                        stream.set_read_timeout(Some(WAIT))?;
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
