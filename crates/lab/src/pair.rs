//! One TCP stream through a tunnel, subjects in turns: the bench that the README's table comes from.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;
use std::time::{Duration, Instant};

use adit_interop::cell::{Configs, Tunnel};
use adit_interop::failure::{Context, Failure, Result};
use adit_interop::matrix::Wrapping;
use adit_interop::net::{CABLE, Namespace, Offload, Pair};
use adit_interop::peer::Program;
use adit_interop::pki::{Maker, Pki};
use adit_interop::process::Daemon;
use adit_interop::traffic::ping_median_ms;
use adit_interop::world::{self, Entered, World};
use clap::ValueEnum;
use serde::Serialize;

use crate::statistics::{median, table};

/// What to measure.
#[derive(clap::Args, Clone, Serialize)]
pub struct Arguments {
    /// SERVER/CLIENT, each adit or openvpn; repeatable, measured in turns. The last one is what the others are compared with.
    #[arg(long = "subject", default_values = ["adit/adit", "openvpn/openvpn"])]
    subjects: Vec<Subject>,
    /// What the cable's ends leave to each other; repeatable.
    #[arg(long = "mode", value_enum, default_values = ["offload"])]
    modes: Vec<Mode>,
    /// How many rounds; in each round every subject runs once.
    #[arg(long, default_value_t = 5)]
    pairs: usize,
    /// How long the stream runs in each direction, in seconds.
    #[arg(long, default_value_t = 5)]
    seconds: u32,
    /// The data channel's cipher.
    #[arg(long, default_value = "AES-256-GCM")]
    cipher: String,
    /// Where to write all figures as JSON.
    #[arg(long)]
    json: Option<PathBuf>,
}

/// Who serves and who dials.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
struct Subject {
    server: Who,
    client: Who,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
enum Who {
    Adit,
    Openvpn,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum, Serialize)]
#[serde(rename_all = "kebab-case")]
enum Mode {
    /// veth as it is: super-packets cross the cable whole.
    Offload,
    /// Sender's offloads off, receiver's GRO on: as over a network card.
    WireGro,
    /// All offloads off.
    Wire,
}

impl std::fmt::Display for Mode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Mode::Offload => "offload",
            Mode::WireGro => "wire-gro",
            Mode::Wire => "wire",
        })
    }
}

impl FromStr for Subject {
    type Err = String;

    fn from_str(text: &str) -> std::result::Result<Subject, String> {
        let who = |word: &str| match word {
            "adit" => Ok(Who::Adit),
            "openvpn" => Ok(Who::Openvpn),
            _ => Err(format!("{text}: write SERVER/CLIENT, each adit or openvpn")),
        };
        let (server, client) = text.split_once('/').unwrap_or((text, text));
        Ok(Subject { server: who(server)?, client: who(client)? })
    }
}

impl std::fmt::Display for Subject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let name = |who| match who {
            Who::Adit => "adit",
            Who::Openvpn => "openvpn",
        };
        write!(f, "{}/{}", name(self.server), name(self.client))
    }
}

/// The figures of one subject in one round.
#[derive(Debug, Clone, Serialize)]
struct Figures {
    mode: Mode,
    round: usize,
    subject: String,
    /// Mb/s from client to server.
    up_mbps: f64,
    /// Mb/s from server to client.
    down_mbps: f64,
    /// User and system time of the server's process for each Gb that arrived, both directions together.
    server_cpu_per_gb: f64,
    /// The same of the client's process.
    client_cpu_per_gb: f64,
    /// Median round trip through the idle tunnel.
    ping_ms: f64,
    /// Resident memory before the transfers, with one client.
    server_idle_kib: u64,
    /// Resident memory ten seconds after the start or at the end of the transfers, whichever is later.
    server_rss_kib: u64,
    client_rss_kib: u64,
    /// The largest Ethernet frame that tcpdump saw on the cable in a short look before the measurement.
    largest_frame: u64,
}

/// Runs the bench and prints its tables.
pub fn run(arguments: &Arguments) -> Result<ExitCode> {
    let world = match world::enter()? {
        Entered::Ended(code) => return Ok(code),
        Entered::Inside(world) => world,
    };
    let bed = Bed::new(world)?;
    let mut all = Vec::new();
    for mode in &arguments.modes {
        for round in 1..=arguments.pairs {
            for subject in &arguments.subjects {
                let figures = bed.measure(*mode, round, *subject, arguments)?;
                eprintln!(
                    "{} round {round}: {subject}: up {:.0} down {:.0} Mb/s",
                    mode, figures.up_mbps, figures.down_mbps
                );
                all.push(figures);
            }
        }
        println!("{}", summary(*mode, arguments, &all));
    }
    let line: Vec<String> = std::env::args().collect();
    println!("$ {}", line.join(" "));
    if let Some(path) = &arguments.json {
        let report = BTreeMap::from([("figures", &all)]);
        let text = serde_json::to_string_pretty(&report).context("JSON")?;
        std::fs::write(path, text).context(path.display())?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes tunnels to measure.
pub struct Bed {
    world: World,
    pki: Pki,
}

impl Bed {
    /// With certificates of its own.
    pub fn new(world: World) -> Result<Bed> {
        Ok(Bed { pki: Pki::make(&world)?, world })
    }

    /// adit at both ends of an unimpaired cable.
    pub fn adit_tunnel(&self, name: &str) -> Result<Tunnel> {
        let subject = Subject { server: Who::Adit, client: Who::Adit };
        self.tunnel(&self.world.folder(name)?, Mode::Offload, subject, "AES-256-GCM")
    }

    fn measure(
        &self,
        mode: Mode,
        round: usize,
        subject: Subject,
        arguments: &Arguments,
    ) -> Result<Figures> {
        let name = format!("{mode}-{round}-{}", subject.to_string().replace('/', "-"));
        let folder = self.world.folder(&name)?;
        let started = Instant::now();
        let tunnel = self.tunnel(&folder, mode, subject, &arguments.cipher)?;
        let inner = tunnel.server_inner.v4;
        let ping_ms = ping_median_ms(&tunnel.pair.client, inner, 100)?;
        let server_idle_kib = tunnel.server.rss_kib()?;
        let mut iperf = tunnel.pair.server.command("iperf3");
        iperf.args(["--server", "--forceflush"]);
        let mut iperf = Daemon::spawn("iperf3 server", iperf)?;
        iperf.wait_for("Server listening", Duration::from_secs(5))?;
        let largest_frame = largest_frame(&tunnel.pair, inner)?;
        let (server_before, client_before) =
            (tunnel.server.cpu_seconds()?, tunnel.client.cpu_seconds()?);
        let seconds = arguments.seconds;
        let up = stream(&tunnel.pair.client, inner, seconds, false)?;
        let down = stream(&tunnel.pair.client, inner, seconds, true)?;
        let gigabits = (up.bytes + down.bytes) * 8.0 / 1e9;
        let server_cpu = tunnel.server.cpu_seconds()? - server_before;
        let client_cpu = tunnel.client.cpu_seconds()? - client_before;
        std::thread::sleep(Duration::from_secs(10).saturating_sub(started.elapsed()));
        Ok(Figures {
            mode,
            round,
            subject: subject.to_string(),
            up_mbps: up.mbps,
            down_mbps: down.mbps,
            server_cpu_per_gb: server_cpu / gigabits,
            client_cpu_per_gb: client_cpu / gigabits,
            ping_ms,
            server_idle_kib,
            server_rss_kib: tunnel.server.rss_kib()?,
            client_rss_kib: tunnel.client.rss_kib()?,
            largest_frame,
        })
    }

    fn tunnel(&self, folder: &Path, mode: Mode, subject: Subject, cipher: &str) -> Result<Tunnel> {
        let pair = Pair::new()?;
        pair.set_offload(match mode {
            Mode::Offload => Offload::All,
            Mode::WireGro => Offload::WireGro,
            Mode::Wire => Offload::Wire,
        })?;
        let mut configs = Configs::new(&self.pki, Maker::OpenSslEc, false);
        configs.wrap(&self.pki, Wrapping::TlsCrypt);
        configs.both(&format!("data-ciphers {cipher}"));
        // The kernel's offload, where a machine has it, is another program than openvpn.
        if subject.server == Who::Openvpn {
            configs.server("disable-dco");
        }
        if subject.client == Who::Openvpn {
            configs.client("disable-dco");
        }
        let program = |who| match who {
            Who::Adit => Program::adit(),
            Who::Openvpn => Ok(Program::Stock),
        };
        let (server, client) = (program(subject.server)?, program(subject.client)?);
        Tunnel::start(pair, folder, &configs, &server, &client)
    }
}

/// What iperf3 measured.
pub struct Measured {
    /// What arrived, per second.
    pub mbps: f64,
    /// What arrived, in all.
    pub bytes: f64,
}

/// One TCP stream of iperf3, from the client or (`reverse`) to it.
pub fn stream(client: &Namespace, to: IpAddr, seconds: u32, reverse: bool) -> Result<Measured> {
    let (to, seconds) = (to.to_string(), seconds.to_string());
    let mut arguments = vec!["--client", &to, "--time", &seconds, "--json"];
    if reverse {
        arguments.push("--reverse");
    }
    let said = client.run("iperf3", &arguments)?;
    let report: serde_json::Value = serde_json::from_str(&said).context("iperf3's JSON")?;
    let received = |key: &str| {
        let value = report.pointer(&format!("/end/sum_received/{key}"));
        value.and_then(serde_json::Value::as_f64).ok_or_else(|| Failure(format!("iperf3: {said}")))
    };
    Ok(Measured { mbps: received("bits_per_second")? / 1e6, bytes: received("bytes")? })
}

/// The largest frame that crosses the cable while a stream runs for a second.
fn largest_frame(pair: &Pair, to: IpAddr) -> Result<u64> {
    // At the sender's end, on the way out: the receiver's tap sees what its GRO has merged already.
    let mut command = pair.client.command("tcpdump");
    command.args(["-i", CABLE, "-n", "-e", "-s", "64", "-c", "3000", "-l", "-Q", "out", "udp"]);
    let mut tcpdump = Daemon::spawn("tcpdump", command)?;
    tcpdump.wait_for("listening on", Duration::from_secs(5))?;
    stream(&pair.client, to, 1, false)?;
    // It may still wait for its 3000th frame; what it has seen by now is enough.
    let lengths = tcpdump.log();
    let lengths = lengths.split("length ").skip(1).filter_map(|rest| {
        rest.split(|c: char| !c.is_ascii_digit()).next().and_then(|word| word.parse().ok())
    });
    lengths.max().ok_or_else(|| tcpdump.failure("saw no frame"))
}

/// The medians of one mode as a table.
fn summary(mode: Mode, arguments: &Arguments, all: &[Figures]) -> String {
    let of = |subject: &Subject, figure: fn(&Figures) -> f64| {
        let name = subject.to_string();
        let these = all.iter().filter(|f| f.mode == mode && f.subject == name);
        median(these.map(figure)).unwrap_or(f64::NAN)
    };
    let sum: fn(&Figures) -> f64 = |f| f.up_mbps + f.down_mbps;
    let reference = arguments.subjects.last().map_or(f64::NAN, |subject| of(subject, sum));
    #[allow(clippy::cast_precision_loss)]
    let rows = arguments.subjects.iter().map(|subject| {
        vec![
            subject.to_string(),
            format!("{:.0}", of(subject, |f| f.up_mbps)),
            format!("{:.0}", of(subject, |f| f.down_mbps)),
            format!("{:.0}", of(subject, sum)),
            format!("{:.2}", of(subject, sum) / reference),
            format!("{:.3}", of(subject, |f| f.server_cpu_per_gb + f.client_cpu_per_gb)),
            format!("{:.3}", of(subject, |f| f.ping_ms)),
            format!("{:.1}", of(subject, |f| f.server_idle_kib as f64) / 1024.0),
            format!("{:.1}", of(subject, |f| f.server_rss_kib as f64) / 1024.0),
            format!("{:.1}", of(subject, |f| f.client_rss_kib as f64) / 1024.0),
            format!("{:.0}", of(subject, |f| f.largest_frame as f64)),
        ]
    });
    let head = [
        "server/client",
        "up Mb/s",
        "down Mb/s",
        "sum",
        "ratio",
        "CPU-s/Gb",
        "ping ms",
        "idle MB",
        "server MB",
        "client MB",
        "frame B",
    ];
    let rows: Vec<Vec<String>> = rows.collect();
    let (rounds, cipher) = (arguments.pairs, &arguments.cipher);
    format!("{mode}, {cipher}, medians of {rounds} rounds\n\n{}", table(&head, &rows))
}
