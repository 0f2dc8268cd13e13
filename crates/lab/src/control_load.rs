//! Bulk traffic while the control channel is busy: what a hundred control messages a second cost the throughput.
//!
//! The messages are those of another client on its session, each acknowledged by the server. With `--storm` there
//! are two harder sources: the bulk client replaces its key every second, and the other client comes again and again
//! with full handshakes, paced so that its control packets make up the rate.

use std::collections::BTreeMap;
use std::fs;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant as Clock};

use adit_engine::{Engine, Input, Link, Outbox, Output, Target, UnixTime};
use adit_interop::failure::{Context, Failure, Result, ensure};
use adit_interop::net::{Namespace, Pair};
use adit_interop::peer::Program;
use adit_interop::process::{Daemon, output};
use adit_interop::traffic::ping;
use adit_interop::world::{self, Entered};
use adit_openvpn::client::{ClientConfig, ClientEngine, ClientEvent, Remote};
use adit_openvpn::keys::ClientKey;
use adit_openvpn::negotiate::ControlMessage;
use adit_openvpn::session::Settings;
use adit_openvpn::tls::{ClientTls, ClientTlsOptions, CommonTlsOptions, Pem};
use adit_openvpn::wrap::WrapConfig;

use crate::pair::stream;
use crate::statistics::{median, table};

/// How much of it.
///
/// Example: adit-lab control-load --rate 100
#[derive(clap::Args)]
pub struct Arguments {
    /// Control messages of the other client per second; with `--storm` its packets in both directions together.
    #[arg(long, default_value_t = 100)]
    rate: u32,
    /// Handshakes and rekeys instead of messages.
    #[arg(long)]
    storm: bool,
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
        let often = if loaded && arguments.storm { "reneg-sec 1\n" } else { "" };
        fs::write(&profile, format!("{often}{bulk}"))?;
        let mut client = self.adit(&self.pair.client)?;
        client.args(["connect", "--dir"]).arg(&self.client_dir).arg(&profile);
        let mut client = Daemon::spawn("client", client)?;
        let begun = Clock::now();
        while ping(&self.pair.client, INNER, 56, 1).unwrap_or(0) == 0 {
            ensure(begun.elapsed() < PATIENCE, || client.failure("does not come up").0)?;
        }
        let chatter = loaded.then(|| Chatter::start(self, arguments)).transpose()?;
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

/// A client that keeps the control channel busy.
struct Chatter {
    stop: Arc<AtomicBool>,
    thread: std::thread::JoinHandle<Result<u32>>,
}

impl Chatter {
    fn start(bed: &Bed, arguments: &Arguments) -> Result<Chatter> {
        let config = config_of(&bed.profile("chatter"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let stopped = Arc::clone(&stop);
        let (rate, storm) = (f64::from(arguments.rate), arguments.storm);
        let thread = bed.pair.client.thread(move || {
            if storm { shake_hands(&config, rate, &stopped) } else { talk(&config, rate, &stopped) }
        })?;
        Ok(Chatter { stop, thread })
    }

    /// How many control packets it sent and received.
    fn finish(self) -> Result<u32> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap_or_else(|_| Err("the chatter panicked".into()))
    }
}

/// Full handshakes, one after the other.
fn shake_hands(config: &ClientConfig, rate: f64, stop: &AtomicBool) -> Result<u32> {
    let (started, mut packets, mut turn) = (Clock::now(), 0, 0_u8);
    while !stop.load(Ordering::Relaxed) {
        turn = turn.wrapping_add(1);
        let mut visitor = Visitor::new(config, turn)?;
        visitor.come_up(stop)?;
        packets += visitor.packets;
        let due = Duration::from_secs_f64(f64::from(packets) / rate);
        std::thread::sleep(due.saturating_sub(started.elapsed()));
    }
    Ok(packets)
}

/// One handshake, then messages on its session.
fn talk(config: &ClientConfig, rate: f64, stop: &AtomicBool) -> Result<u32> {
    let mut visitor = Visitor::new(config, 1)?;
    visitor.come_up(stop)?;
    visitor.packets = 0;
    let (started, mut said) = (Clock::now(), 0_u32);
    while !stop.load(Ordering::Relaxed) {
        let due = Duration::from_secs_f64(f64::from(said) / rate);
        match due.checked_sub(started.elapsed()) {
            Some(wait) if !wait.is_zero() => visitor.turn(wait)?,
            _ => {
                let message = ControlMessage::Info(format!("message {said}"));
                let mut out = Outbox::new();
                let sent = visitor.client.say(now(), &message, &mut out);
                ensure(sent, || "the chatter lost its session".to_owned())?;
                visitor.perform(out)?;
                said += 1;
            }
        }
    }
    Ok(visitor.packets)
}

fn now() -> adit_engine::Instant {
    adit_engine::Instant::from_nanos(adit_linux::clock::boottime())
}

/// A client engine with a socket of its own and no data plane.
struct Visitor {
    client: ClientEngine,
    socket: UdpSocket,
    link: Link,
    buffer: Vec<u8>,
    /// Control packets sent and received.
    packets: u32,
    up: bool,
}

impl Visitor {
    fn new(config: &ClientConfig, seed: u8) -> Result<Visitor> {
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        socket.connect(OUTER)?;
        let unix = UnixTime(adit_linux::clock::unix_time());
        Ok(Visitor {
            client: ClientEngine::new(config.clone(), [seed; 32], now(), unix),
            socket,
            link: Link::datagram(Default::default(), None, OUTER),
            buffer: vec![0; 4096],
            packets: 0,
            up: false,
        })
    }

    /// Runs to the moment when the client would come up.
    fn come_up(&mut self, stop: &AtomicBool) -> Result<()> {
        let begun = Clock::now();
        while !self.up && !stop.load(Ordering::Relaxed) {
            ensure(begun.elapsed() < PATIENCE, || {
                "the chatter got no handshake through".to_owned()
            })?;
            let wait = self.client.deadline().map_or(PATIENCE, |(at, _)| at.since(now()));
            self.turn(wait)?;
        }
        Ok(())
    }

    /// Waits for a packet, for so long at most, and lets the client work.
    fn turn(&mut self, wait: Duration) -> Result<()> {
        self.socket.set_read_timeout(Some(wait.clamp(Duration::from_millis(1), PATIENCE)))?;
        let received = self.socket.recv(&mut self.buffer).ok();
        let mut out = Outbox::new();
        match received.and_then(|length| self.buffer.get_mut(..length)) {
            Some(frame) => {
                self.packets += 1;
                self.client.handle(now(), Input::Frame(self.link, frame), &mut out);
            }
            None => self.client.handle(now(), Input::Tick, &mut out),
        }
        self.perform(out)
    }

    fn perform(&mut self, mut out: Outbox<ClientEvent>) -> Result<()> {
        while let Some(output) = out.pop() {
            match output {
                Output::Send(_, frame) => {
                    self.socket.send(&frame)?;
                    self.packets += 1;
                }
                Output::Dial(_) => self.client.handle(now(), Input::LinkUp(self.link), &mut out),
                Output::Event(ClientEvent::Up(_)) => self.up = true,
                _ => {}
            }
        }
        Ok(())
    }
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
    let target = Target {
        host: "vpn.example".into(),
        port: 1194,
        transport: Default::default(),
        family: Default::default(),
    };
    let settings = Settings { wrap, ..Settings::default() };
    Ok(ClientConfig::new(settings, tls, vec![Remote { target }]))
}
