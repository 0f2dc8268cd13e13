//! Bulk traffic while the control channel is busy, to measure how much throughput rekeys and control messages cost.
//!
//! Another client sends the messages in its session, and the server acknowledges each one; meanwhile the client of the
//! bulk traffic rekeys again and again.

use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use std::{fs, thread};

use adit_openvpn::client::ClientConfig;
use adit_testbed::failure::{Context, Failure, Result, ensure};
use adit_testbed::net::Namespace;
use adit_testbed::process::{Daemon, output};
use adit_testbed::traffic::ping;
use adit_testbed::tunnel::HANDSHAKE;
use tempfile::TempDir;

use super::trains::{self, Trains};
use crate::handshake_load::schedule::burst;
use crate::handshake_load::{ClientPool, Hosts, config, profile};
use crate::measure::Meter;
use crate::record::Measurement;
use crate::subject::{Subject, Toolchain, TunnelSpec, Tunnels};
use crate::testbed::Testbed;
use crate::work::{Route, Window, tcp_bulk};

/// The parameters of one trial.
#[derive(Debug, Clone)]
pub struct ControlSpec {
    /// The number of control messages a second of the other client; at 0 there is no such client.
    pub rate: f64,
    /// The interval between rekeys of the bulk client, in whole seconds; `None` for no rekeys.
    pub rekey_every: Option<u32>,
    /// The window in which arriving data counts.
    pub window: Window,
}

impl ControlSpec {
    /// Returns a trial with this many messages a second and a rekey every second; at 0 it has neither.
    pub fn of(rate: f64) -> Self {
        let window = Window { warmup: Duration::from_millis(500), length: Duration::from_secs(4) };
        Self { rate, rekey_every: (rate > 0.0).then_some(1), window }
    }
}

/// The time limit for a tunnel to become ready.
const TIMEOUT: Duration = Duration::from_secs(20);

/// Measures `up_mbps`, `down_mbps` and `sum_mbps` with both directions at once, `control_pps` (packets of the other
/// client's control channel in both directions) and the costs; for adit also the histograms `sent` and `received` of
/// the server's trains, by the minimum number of packets in a train.
///
/// # Errors
/// The subject does not speak OpenVPN, it did not become ready, or the other client lost its session.
pub fn control(
    toolchain: &Toolchain,
    testbed: &Testbed,
    subject: &Subject,
    spec: &ControlSpec,
) -> Result<Measurement> {
    let tunnel = Tunnel::start(toolchain, testbed, subject, spec)?;
    let outcome = measure(&tunnel, testbed, spec);
    outcome.map_err(|failure| Failure(format!("{failure}\n{}", tunnel.logs())))
}

fn measure(tunnel: &Tunnel, testbed: &Testbed, spec: &ControlSpec) -> Result<Measurement> {
    let client = testbed.clients.first().context("a testbed without a client")?;
    let pool = (spec.rate > 0.0).then(|| chatter(tunnel, testbed, client)).transpose()?;
    let route =
        |name: &str, from, to, to_address| Route { name: name.into(), from, to, to_address };
    let routes = [
        route("up 1", client, &testbed.server, tunnel.server_inner),
        route("down 1", &testbed.server, client, tunnel.client_inner),
    ];
    let mut meter = Meter::start(&tunnel.processes(), testbed)?;
    let talk = pool.as_ref().map(|pool| pool.send_control(spec.rate)).transpose()?;
    let began = Instant::now();
    let done = tcp_bulk(&routes, &spec.window, &mut |edge| meter.edge(edge))?;
    let talked = began.elapsed().as_secs_f64();
    let packets = talk.map_or(Ok(0), crate::handshake_load::client_pool::ControlTraffic::finish)?;
    let usage = meter.stop()?;
    let mut measurement = Measurement::default();
    usage.put(&mut measurement, done.mbps() * done.seconds / 1e3);
    let mbps = |direction: &str| {
        let flows = done.flows.iter().filter(|flow| flow.name.starts_with(direction));
        let bytes = flows.map(|flow| flow.bytes).sum::<u64>() as f64;
        bytes * 8.0 / 1e6 / done.seconds
    };
    measurement.set("up_mbps", mbps("up"));
    measurement.set("down_mbps", mbps("down"));
    measurement.set("sum_mbps", done.mbps());
    measurement.set("control_pps", packets as f64 / talked);
    measurement.notes.push(format!("rekeys of the bulk's client: {}", tunnel.rekeys()));
    // The age at which a key is replaced is slightly random, so a short trial may miss the first rekey.
    let watched = spec.window.warmup + spec.window.length;
    let due = spec.rekey_every.map(|every| 2 * Duration::from_secs(every.into()));
    if due.is_some_and(|due| due <= watched) && tunnel.rekeys() == 0 {
        measurement.invalid.push("the bulk's client has replaced no key".to_owned());
    }
    measurement.invalid.extend(done.invalid);
    measurement.flows = done.flows;
    measurement.histograms = tunnel.trains()?;
    Ok(measurement)
}

/// Starts the other client, which connects but sends no data.
fn chatter(tunnel: &Tunnel, testbed: &Testbed, client: &Namespace) -> Result<ClientPool> {
    let hosts = Hosts {
        sources: vec![testbed.client_outer(0, false)],
        sessions: 1,
        server: SocketAddr::new(testbed.server_outer(false), config::PORT),
    };
    let pool = ClientPool::open(
        client,
        {
            let chatter = tunnel.chatter.clone();
            move || Ok(chatter.clone())
        },
        hosts,
    )?;
    let ran = pool.run(burst(1), TIMEOUT)?;
    ensure(ran.up() == 1, || {
        format!("the client that talks does not come up: {:?}", ran.setbacks)
    })?;
    Ok(pool)
}

/// A tunnel with room for another client.
struct Tunnel {
    kind: Kind,
    chatter: ClientConfig,
    server_inner: IpAddr,
    client_inner: IpAddr,
}

enum Kind {
    /// A managed server. It reports the length of its trains.
    Managed(Box<Managed>),
    Other(Box<Tunnels>),
}

impl Tunnel {
    fn start(
        toolchain: &Toolchain,
        testbed: &Testbed,
        subject: &Subject,
        spec: &ControlSpec,
    ) -> Result<Self> {
        let rekey = match spec.rekey_every {
            Some(seconds) => format!("reneg-sec {seconds}"),
            None => "reneg-sec 0".to_owned(),
        };
        match subject {
            _ if *subject == Subject::ADIT || subject.revision().is_some() => {
                let adit = toolchain.adit(subject.revision())?;
                let managed = Managed::start(&adit, toolchain.scratch()?, testbed, &rekey)?;
                let chatter = profile::client(&managed.profile("chatter"))?;
                let client = testbed.clients.first().context("a testbed without a client")?;
                Ok(Self {
                    chatter,
                    server_inner: inner(&testbed.server)?,
                    client_inner: inner(client)?,
                    kind: Kind::Managed(Box::new(managed)),
                })
            }
            _ if *subject == Subject::OPENVPN => {
                let lines = TunnelSpec {
                    server_lines: vec!["reneg-sec 0".to_owned()],
                    client_lines: vec![rekey],
                    ..TunnelSpec::default()
                };
                let tunnels = toolchain.start(subject, testbed, &lines)?;
                Ok(Self {
                    chatter: config::client(toolchain.keys())?,
                    server_inner: tunnels.server_inner.v4,
                    client_inner: tunnels.client_inner.first().context("no client")?.v4,
                    kind: Kind::Other(Box::new(tunnels)),
                })
            }
            _ => Err(format!(
                "{subject}: the client that talks speaks OpenVPN over UDP, to adit and openvpn"
            )
            .into()),
        }
    }

    fn processes(&self) -> Vec<(&'static str, Vec<u32>)> {
        match &self.kind {
            Kind::Managed(managed) => {
                let [server, client] = &managed.daemons;
                vec![("server", vec![server.pid()]), ("client", vec![client.pid()])]
            }
            Kind::Other(tunnels) => tunnels.processes(),
        }
    }

    /// Returns the number of rekeys of the bulk client so far. openvpn logs each TLS handshake, adit each new key.
    fn rekeys(&self) -> usize {
        let client = match &self.kind {
            Kind::Managed(managed) => managed.daemons.last(),
            Kind::Other(tunnels) => tunnels.clients.first().and_then(|client| client.first()),
        };
        let of = |client: &Daemon| {
            let handshakes = client.count(HANDSHAKE).saturating_sub(1);
            handshakes.max(client.count("new data key"))
        };
        client.map_or(0, of)
    }

    fn logs(&self) -> String {
        match &self.kind {
            Kind::Managed(managed) => {
                managed.daemons.iter().map(|d| d.failure("log").0).collect::<Vec<_>>().join("\n")
            }
            Kind::Other(tunnels) => tunnels.logs(),
        }
    }

    fn trains(&self) -> Result<Trains> {
        match &self.kind {
            Kind::Managed(managed) => managed.trains(),
            Kind::Other(_) => Ok(Trains::new()),
        }
    }
}

/// adit's managed server with the running client `bulk` and the client `chatter`.
struct Managed {
    /// The server and the client. Declared first, so that the processes end before their folders are removed.
    daemons: [Daemon; 2],
    status: Command,
    folder: TempDir,
}

impl Managed {
    fn start(adit: &Path, folder: TempDir, testbed: &Testbed, rekey: &str) -> Result<Self> {
        let client = testbed.clients.first().context("a testbed without a client")?;
        let (at_server, at_client) = (folder.path().join("server"), folder.path().join("client"));
        fs::create_dir(&at_server)?;
        fs::create_dir(&at_client)?;
        let command = |host: &Namespace, words: &[&str], dir: &Path| {
            let mut command = host.command(&adit.to_string_lossy());
            command.args(words).arg("--dir").arg(dir);
            command
        };
        let host = testbed.server_outer(false).to_string();
        let init = ["server", "init", "--host", &host, "--nat", "off", "--network", "10.88.0.0/24"];
        output(command(&testbed.server, &init, &at_server))?;
        for name in ["bulk", "chatter"] {
            let words = ["server", "client", "add", name];
            let mut add = command(&testbed.server, &words, &at_server);
            add.arg("--output").arg(folder.path().join(format!("{name}.ovpn")));
            output(add)?;
        }
        let path = folder.path().join("bulk.ovpn");
        let text = fs::read_to_string(&path)?;
        fs::write(&path, format!("{rekey}\n{text}"))?;
        let server =
            Daemon::spawn("server", command(&testbed.server, &["server", "run"], &at_server))?;
        // At this verbosity the client logs its rekeys.
        let mut connect = command(client, &["connect", "--dns", "off", "-v"], &at_client);
        connect.arg(&path);
        let daemons = [server, Daemon::spawn("client", connect)?];
        let begun = Instant::now();
        while ping(client, IpAddr::from([10, 88, 0, 1]), 56, 1).unwrap_or(0) == 0 {
            ensure(begun.elapsed() < TIMEOUT, || {
                let [server, client] = daemons.each_ref().map(|d| d.failure("no ping passes").0);
                format!("{client}\n{server}")
            })?;
            thread::sleep(Duration::from_millis(50));
        }
        let status = command(&testbed.server, &["status"], &at_server);
        Ok(Self { daemons, status, folder })
    }

    fn profile(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.ovpn"))
    }

    /// Returns the server's trains since its start.
    fn trains(&self) -> Result<Trains> {
        let mut status = Command::new(self.status.get_program());
        status.args(self.status.get_args());
        trains::of(status, "server")
    }
}

/// Returns the address that a host has in the tunnel's network.
fn inner(host: &Namespace) -> Result<IpAddr> {
    let listing = host.run("ip", &["-o", "-4", "address", "show"])?;
    let addresses = listing.split_whitespace().filter_map(|word| word.split('/').next());
    let inner = addresses.filter(|word| word.starts_with("10.88.")).find_map(|w| w.parse().ok());
    inner.context(format!("no address of the tunnel in {}: {listing}", host.name()))
}
