//! Bulk traffic while the control channel is busy: what a hundred control messages a second cost the throughput.
//!
//! Two sources at once: the bulk client replaces its key every second, and another client comes again and again
//! with full handshakes, paced so that its control packets alone make up the rate.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as Clock};

use adit_engine::{Engine, Input, Link, Outbox, Output, UnixTime};
use adit_interop::failure::{Context, Failure, Result, ensure};
use adit_interop::net::{Namespace, Pair};
use adit_interop::peer::Program;
use adit_interop::process::{Daemon, output};
use adit_interop::traffic::ping;
use adit_interop::world::{self, Entered};
use adit_openvpn::client::{ClientConfig, ClientEngine, ClientEvent};
use adit_openvpn::keys::ClientKey;
use adit_openvpn::session::Settings;
use adit_openvpn::tls::{ClientTls, ClientTlsOptions, CommonTlsOptions, Pem};
use adit_openvpn::wrap::WrapConfig;

use crate::handshakes::client_config;
use crate::pair::stream;
use crate::statistics::{median, table};

/// How much of it.
///
/// Example: adit-lab control-load --rate 100
#[derive(clap::Args)]
pub struct Arguments {
    /// Control packets of the other client per second, in both directions together.
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// Rounds; in each the bulk runs once without and once with the load.
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// How long the stream runs in each direction, in seconds.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
}

/// The server's address in the tunnel.
const INNER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 88, 0, 1));
const OUTER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 1194);
const PATIENCE: Duration = Duration::from_secs(20);

/// One run of the bulk.
struct Measured {
    loaded: bool,
    mbps: f64,
    control_per_second: f64,
}

/// Runs the rounds and prints the medians and the histograms of train lengths.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let world = match world::enter()? {
        Entered::Ended(code) => return Ok(code),
        Entered::Inside(world) => world,
    };
    let bed = Bed::new(world.folder("server")?, world.folder("client")?)?;
    let mut server = bed.adit(&bed.pair.server)?;
    server.args(["server", "run", "--dir"]).arg(&bed.server_dir);
    let server = Daemon::spawn("server", server)?;
    let mut all = Vec::new();
    for _ in 0..arguments.pairs {
        for loaded in [false, true] {
            let measured = bed.measure(loaded, arguments).map_err(|failure| {
                Failure(format!("{failure}\n{}", server.failure("the server's log")))
            })?;
            all.push(measured);
        }
    }
    let of = |loaded: bool, figure: fn(&Measured) -> f64| {
        median(all.iter().filter(|m| m.loaded == loaded).map(figure)).unwrap_or(f64::NAN)
    };
    let quiet = of(false, |m| m.mbps);
    let row = |name: &str, loaded: bool| {
        let (mbps, control) = (of(loaded, |m| m.mbps), of(loaded, |m| m.control_per_second));
        let cost = format!("{:.1} %", 100.0 * (1.0 - mbps / quiet));
        vec![name.to_owned(), format!("{mbps:.0}"), cost, format!("{control:.0}")]
    };
    let rows = [row("quiet", false), row("loaded", true)];
    println!("adit/adit, medians of {} rounds, sum of both directions\n", arguments.pairs);
    println!("{}", table(&["control channel", "Mb/s", "cost", "packets/s"], &rows));
    println!("{}", bed.trains()?);
    println!("$ {}", std::env::args().collect::<Vec<_>>().join(" "));
    Ok(ExitCode::SUCCESS)
}

struct Bed {
    pair: Pair,
    server_dir: PathBuf,
    client_dir: PathBuf,
}

impl Bed {
    /// A managed server with two clients: `bulk` and `chatter`.
    fn new(server_dir: PathBuf, client_dir: PathBuf) -> Result<Bed> {
        let bed = Bed { pair: Pair::new()?, server_dir, client_dir };
        let mut init = bed.adit(&bed.pair.server)?;
        init.args(["server", "init", "--host", "192.0.2.1", "--nat", "off"]);
        init.args(["--network", "10.88.0.0/24", "--dir"]).arg(&bed.server_dir);
        output(init)?;
        for name in ["bulk", "chatter"] {
            let mut add = bed.adit(&bed.pair.server)?;
            add.args(["server", "client", "add", name, "--dir"]).arg(&bed.server_dir);
            add.arg("--output").arg(bed.profile(name));
            output(add)?;
        }
        Ok(bed)
    }

    fn profile(&self, name: &str) -> PathBuf {
        self.client_dir.join(format!("{name}.ovpn"))
    }

    fn adit(&self, namespace: &Namespace) -> Result<Command> {
        match Program::adit()? {
            Program::Adit(path) => Ok(namespace.command(&path.to_string_lossy())),
            _ => Err("adit is not adit".into()),
        }
    }

    fn measure(&self, loaded: bool, arguments: &Arguments) -> Result<Measured> {
        let bulk = fs::read_to_string(self.profile("bulk"))?;
        let profile = self.profile("now");
        let often = if loaded { "reneg-sec 1\n" } else { "" };
        fs::write(&profile, format!("{often}{bulk}"))?;
        let mut client = self.adit(&self.pair.client)?;
        client.args(["connect", "--dir"]).arg(&self.client_dir).arg(&profile);
        let mut client = Daemon::spawn("client", client)?;
        let begun = Clock::now();
        while ping(&self.pair.client, INNER, 56, 1).unwrap_or(0) == 0 {
            ensure(begun.elapsed() < PATIENCE, || client.failure("does not come up").0)?;
        }
        let chatter = loaded.then(|| Chatter::start(self, arguments.rate)).transpose()?;
        let started = Clock::now();
        let mut sum = 0.0;
        for reverse in [false, true] {
            let mut iperf = self.pair.server.command("iperf3");
            iperf.args(["--server", "--one-off", "--forceflush"]);
            let mut iperf = Daemon::spawn("iperf3 server", iperf)?;
            iperf.wait_for("Server listening", PATIENCE)?;
            sum += stream(&self.pair.client, INNER, arguments.seconds, reverse)?.mbps;
        }
        let elapsed = started.elapsed().as_secs_f64();
        let packets = chatter.map_or(Ok(0), Chatter::finish)?;
        client.stop()?;
        Ok(Measured { loaded, mbps: sum, control_per_second: f64::from(packets) / elapsed })
    }

    /// The server's histograms of train lengths.
    fn trains(&self) -> Result<String> {
        let mut status = self.adit(&self.pair.server)?;
        status.args(["status", "--json", "--dir"]).arg(&self.server_dir);
        let said = output(status)?;
        let report: serde_json::Value = serde_json::from_str(&said).context("adit's status")?;
        let trains = report.pointer("/0/trains").context(said)?;
        let histogram = |key: &str| -> Result<BTreeMap<u32, u64>> {
            serde_json::from_value(trains.get(key).cloned().unwrap_or_default()).context(key)
        };
        let (sent, received) = (histogram("sent")?, histogram("received")?);
        let lengths: Vec<u32> = sent.keys().chain(received.keys()).copied().collect();
        let lengths = std::collections::BTreeSet::from_iter(lengths);
        let count =
            |of: &BTreeMap<u32, u64>, length| of.get(length).copied().unwrap_or(0).to_string();
        let rows: Vec<Vec<String>> = lengths
            .iter()
            .map(|length| {
                vec![format!("{length} and more"), count(&sent, length), count(&received, length)]
            })
            .collect();
        Ok(table(&["packets in a train (server)", "sent", "received"], &rows))
    }
}

/// A client that shakes hands again and again.
struct Chatter {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Result<u32>>,
}

impl Chatter {
    fn start(bed: &Bed, rate: u32) -> Result<Chatter> {
        let config = config_of(&bed.profile("chatter"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let thread = bed.pair.client.thread(move || {
            let (started, mut packets, mut turn) = (Clock::now(), 0, 0_u8);
            while !stopped.load(Ordering::Relaxed) {
                turn = turn.wrapping_add(1);
                packets += shake(&config, turn, &stopped)?;
                let due = Duration::from_secs_f64(f64::from(packets) / f64::from(rate));
                std::thread::sleep(due.saturating_sub(started.elapsed()));
            }
            Ok(packets)
        })?;
        Ok(Chatter { stop, thread })
    }

    /// How many control packets it sent and received.
    fn finish(self) -> Result<u32> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| Err("the chatter panicked".into()))
    }
}

fn now() -> adit_engine::Instant {
    adit_engine::Instant::from_nanos(adit_linux::clock::boottime())
}

/// One handshake from a port of its own, to the moment when the client would come up.
fn shake(config: &ClientConfig, turn: u8, stop: &AtomicBool) -> Result<u32> {
    let socket = UdpSocket::bind("0.0.0.0:0")?;
    socket.connect(OUTER)?;
    let link = Link::datagram(Default::default(), None, OUTER);
    let unix = UnixTime(adit_linux::clock::unix_time());
    let mut client = ClientEngine::new(config.clone(), [turn; 32], now(), unix);
    let mut packets = 0;
    let mut buffer = vec![0; 4096];
    let mut received: Option<usize> = None;
    let begun = Clock::now();
    while !stop.load(Ordering::Relaxed) && begun.elapsed() < PATIENCE {
        let mut out = Outbox::new();
        match received.take().and_then(|length| buffer.get_mut(..length)) {
            Some(frame) => client.handle(now(), Input::Frame(link, frame), &mut out),
            None => client.handle(now(), Input::Tick, &mut out),
        }
        let mut up = false;
        while let Some(output) = out.pop() {
            match output {
                Output::Send(_, frame) => {
                    socket.send(&frame)?;
                    packets += 1;
                }
                Output::Dial(_) => client.handle(now(), Input::LinkUp(link), &mut out),
                Output::Event(ClientEvent::Up(_)) => up = true,
                _ => {}
            }
        }
        if up {
            return Ok(packets);
        }
        let wait = client.deadline().map_or(PATIENCE, |(at, _)| at.since(now()));
        socket.set_read_timeout(Some(wait.clamp(Duration::from_millis(1), PATIENCE)))?;
        if let Ok(length) = socket.recv(&mut buffer) {
            received = Some(length);
            packets += 1;
        }
    }
    ensure(stop.load(Ordering::Relaxed), || "the chatter got no handshake through".to_owned())?;
    Ok(packets)
}

/// A client's configuration from the inline parts of a profile.
fn config_of(profile: &Path) -> Result<ClientConfig> {
    let text = fs::read_to_string(profile).context(profile.display())?;
    let part = |tag: &str| -> Result<&str> {
        let (_, after) = text.split_once(&format!("<{tag}>")).context(tag)?;
        Ok(after.split_once(&format!("</{tag}>")).context(tag)?.0)
    };
    let pem = |tag: &str| -> Result<Option<Pem>> { Ok(Some(Pem::new(tag, part(tag)?.as_bytes()))) };
    let common = CommonTlsOptions {
        ca: pem("ca")?,
        cert: pem("cert")?,
        key: pem("key")?,
        ..CommonTlsOptions::default()
    };
    let tls = ClientTls::new(ClientTlsOptions { common }).context("the profile")?;
    let key = ClientKey::parse(part("tls-crypt-v2")?).context("the profile's tls-crypt-v2")?;
    let wrap = WrapConfig::TlsCryptV2Client { key };
    Ok(client_config(Settings { wrap, ..Settings::default() }, tls))
}
