//! `adit demo`: server and client in two namespaces of this machine, real traffic, figures.

pub(crate) mod interrupt;
pub(crate) mod testbed;
pub(crate) mod traffic;
pub(crate) mod usage;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use serde::Serialize;

use super::doctor::{self, Level};
use crate::fault::Fault;
use interrupt::Interrupt;
use testbed::Testbed;
use traffic::Meter;

pub use testbed::end_with_parent;

/// Before the first ping arrives, ARP and neighbour discovery may lose some.
pub(crate) const PING_ATTEMPTS: u16 = 5;
pub(crate) const ROUND_TRIP_TIME: Duration = Duration::from_secs(1);
pub(crate) const TELL_EVERY: Duration = Duration::from_millis(250);
/// Slow start is over by then.
const WARM_UP: Duration = Duration::from_millis(300);

/// Options of `adit demo`.
#[derive(Clone, Debug)]
pub struct DemoOptions {
    /// Leave it up until the user interrupts.
    pub hold: bool,
    /// For each bulk transfer.
    pub duration: Duration,
    /// The program itself, which is server and client.
    pub program: PathBuf,
}

/// One ping that was answered.
#[derive(Clone, Debug, Serialize)]
pub struct Ping {
    /// Sent from this end: `client` or `server`.
    pub from: &'static str,
    /// To this address.
    pub to: IpAddr,
    /// Seconds until the answer.
    pub seconds: f64,
}

/// One bulk transfer.
#[derive(Clone, Debug, Serialize)]
pub struct Transfer {
    /// `TCP` or `UDP`.
    pub protocol: &'static str,
    /// From this end to the other: `client` or `server`.
    pub from: &'static str,
    /// Payload that arrived, Mb/s.
    pub megabits_per_second: f64,
    /// CPU-seconds of the server process per Gb of payload.
    pub server_cpu_per_gigabit: f64,
    /// CPU-seconds of the client process per Gb of payload.
    pub client_cpu_per_gigabit: f64,
    /// Share of the datagrams that did not arrive.
    pub lost: f64,
}

/// The figures.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DemoReport {
    /// Pings both ways.
    pub pings: Vec<Ping>,
    /// Bulk transfers both ways.
    pub transfers: Vec<Transfer>,
    /// Median round trip through the idle tunnel, seconds.
    pub round_trip_p50: f64,
    /// 99th percentile of the same.
    pub round_trip_p99: f64,
    /// Round trips measured.
    pub round_trips: usize,
    /// Resident memory of the server process at the end, bytes.
    pub server_memory: u64,
    /// Resident memory of the client process at the end, bytes.
    pub client_memory: u64,
}

/// Progress of the demo.
#[derive(Clone, Debug)]
pub enum Progress {
    /// This begins.
    Stage(String),
    /// The stage is done, with this result.
    Done(String),
    /// A transfer is under way: share of its time, Mb/s of the last moments.
    Bulk(f64, f64),
    /// All is measured.
    Figures(Box<DemoReport>),
    /// Everything is up until the user interrupts.
    Holding(Holding),
}

/// How to look around.
#[derive(Clone, Debug)]
pub struct Holding {
    /// Namespace of the server.
    pub server: String,
    /// Namespace of the client.
    pub client: String,
    /// The server's tunnel addresses.
    pub server_addresses: Vec<IpAddr>,
    /// The client's tunnel addresses.
    pub client_addresses: Vec<IpAddr>,
    /// Logs, keys and control sockets.
    pub folder: PathBuf,
}

/// Runs the demo and takes everything away again.
///
/// # Errors
/// Something is missing on this machine, an end failed, or the user interrupted.
pub fn run(options: &DemoOptions, tell: &mut dyn FnMut(Progress)) -> Result<(), Fault> {
    check_machine()?;
    let interrupt = Interrupt::catch()?;
    tell(Progress::Stage("keys, two namespaces, a cable".into()));
    let mut testbed = Testbed::new()?;
    tell(Progress::Done(format!("{}, {}", testbed.server.name(), testbed.client.name())));

    tell(Progress::Stage("server".into()));
    testbed.start_server(&options.program, &interrupt)?;
    tell(Progress::Done(format!("process {}, {}", testbed.server.pid(), list(&testbed.server))));
    tell(Progress::Stage("client".into()));
    testbed.start_client(&options.program, &interrupt)?;
    tell(Progress::Done(format!("process {}, {}", testbed.client.pid(), list(&testbed.client))));

    let mut report = DemoReport::default();
    pings(&testbed, &interrupt, &mut report, tell)?;
    round_trips(&testbed, &interrupt, &mut report, tell)?;
    for protocol in ["TCP", "UDP"] {
        for from in ["client", "server"] {
            let transfer = bulk(&testbed, options.duration, protocol, from, &interrupt, tell)?;
            report.transfers.push(transfer);
            testbed.check()?;
        }
    }
    report.server_memory = usage::memory(testbed.server.pid());
    report.client_memory = usage::memory(testbed.client.pid());
    tell(Progress::Figures(Box::new(report)));
    if options.hold {
        hold(&mut testbed, &interrupt, tell)?;
    }
    Ok(())
}

fn list(end: &testbed::End) -> String {
    end.addresses().map(|address| address.to_string()).collect::<Vec<_>>().join(", ")
}

/// Checks all requirements, and reports everything missing at once.
pub(crate) fn check_machine() -> Result<(), Fault> {
    let needed = doctor::for_a_tunnel();
    let missing: Vec<String> = needed
        .iter()
        .filter(|finding| finding.level == Level::Problem)
        .map(|finding| format!("\n  {}: {}", finding.what, finding.remedy.join("\n    or ")))
        .collect();
    if missing.is_empty() {
        return Ok(());
    }
    Err(Fault::environment(format!("the demo cannot run here:{}", missing.concat())))
}

fn pings(
    testbed: &Testbed,
    interrupt: &Interrupt,
    report: &mut DemoReport,
    tell: &mut dyn FnMut(Progress),
) -> Result<(), Fault> {
    let ways = [
        ("client", &testbed.client, testbed.server.addresses().collect::<Vec<_>>()),
        ("server", &testbed.server, testbed.client.addresses().collect::<Vec<_>>()),
    ];
    for (from, end, targets) in ways {
        for to in targets {
            tell(Progress::Stage(format!("ping from the {from} to {to}")));
            let time = ping(end, to, interrupt)?;
            tell(Progress::Done(format!("{:.2} ms", time.as_secs_f64() * 1000.0)));
            report.pings.push(Ping { from, to, seconds: time.as_secs_f64() });
        }
    }
    Ok(())
}

fn ping(end: &testbed::End, to: IpAddr, interrupt: &Interrupt) -> Result<Duration, Fault> {
    let mut problem = String::new();
    for sequence in 0..PING_ATTEMPTS {
        interrupt.check()?;
        match traffic::ping(&end.ns, to, sequence) {
            Ok(time) => return Ok(time),
            Err(error) => {
                problem = error.to_string();
                // An address that is still being set up refuses at once.
                thread::sleep(TELL_EVERY);
            }
        }
    }
    Err(Fault::environment(format!("{to} does not answer through the tunnel: {problem}")))
}

fn round_trips(
    testbed: &Testbed,
    interrupt: &Interrupt,
    report: &mut DemoReport,
    tell: &mut dyn FnMut(Progress),
) -> Result<(), Fault> {
    tell(Progress::Stage("round trips of small datagrams, idle tunnel".into()));
    let (client, server) = (&testbed.client, &testbed.server);
    let times = traffic::round_trips(
        &client.ns,
        &server.ns,
        server.ipv4,
        ROUND_TRIP_TIME,
        interrupt.flag(),
    )
    .map_err(|error| Fault::environment(format!("round trips: {error}")))?;
    interrupt.check()?;
    let at = |percent: usize| {
        let index = times.len().saturating_mul(percent) / 100;
        times.get(index).or(times.last()).map_or(0.0, Duration::as_secs_f64)
    };
    report.round_trip_p50 = at(50);
    report.round_trip_p99 = at(99);
    report.round_trips = times.len();
    if times.is_empty() {
        return Err(Fault::environment("no datagram came back through the tunnel"));
    }
    tell(Progress::Done(format!(
        "p50 {:.0} us, p99 {:.0} us",
        report.round_trip_p50 * 1e6,
        report.round_trip_p99 * 1e6
    )));
    Ok(())
}

/// One transfer with its figures.
fn bulk(
    testbed: &Testbed,
    duration: Duration,
    protocol: &'static str,
    from: &'static str,
    interrupt: &Interrupt,
    tell: &mut dyn FnMut(Progress),
) -> Result<Transfer, Fault> {
    let (sender, receiver) = match from {
        "client" => (&testbed.client, &testbed.server),
        _ => (&testbed.server, &testbed.client),
    };
    let to = if from == "client" { "server" } else { "client" };
    tell(Progress::Stage(format!("{protocol} {from} to {to}")));
    let meter = Meter::default();
    let pids = [testbed.server.pid(), testbed.client.pid()];
    let measured = thread::scope(|scope| {
        let running = scope.spawn(|| {
            let (source, address) = (sender.ipv4.into(), receiver.ipv4.into());
            match protocol {
                "TCP" => traffic::tcp(&sender.ns, &receiver.ns, address, &meter),
                _ => traffic::udp(&sender.ns, &receiver.ns, source, address, &meter),
            }
        });
        let measured = measure(&meter, pids, duration, interrupt, tell);
        meter.stop.store(true, Relaxed);
        let ended = running.join().unwrap_or_else(|_| Err(std::io::Error::other("panicked")));
        ended.map_err(|error| Fault::environment(format!("{protocol} {from} to {to}: {error}")))?;
        measured
    })?;
    let gigabits = measured.received as f64 * 8.0 / 1e9;
    let per_gigabit =
        |cpu: Duration| if gigabits > 0.0 { cpu.as_secs_f64() / gigabits } else { 0.0 };
    let [server_cpu, client_cpu] = measured.cpu;
    let (sent, received) = (meter.sent.load(Relaxed), meter.received.load(Relaxed));
    let lost = match protocol {
        "UDP" if sent > 0 => 1.0 - received as f64 / sent as f64,
        _ => 0.0,
    };
    let transfer = Transfer {
        protocol,
        from,
        megabits_per_second: gigabits * 1000.0 / measured.elapsed.as_secs_f64(),
        server_cpu_per_gigabit: per_gigabit(server_cpu),
        client_cpu_per_gigabit: per_gigabit(client_cpu),
        lost: lost.max(0.0),
    };
    tell(Progress::Done(format!("{:.0} Mb/s", transfer.megabits_per_second)));
    Ok(transfer)
}

/// The measured part of a transfer, after its warm-up.
pub(crate) struct Measured {
    pub received: u64,
    pub elapsed: Duration,
    /// Of the two processes.
    pub cpu: [Duration; 2],
}

/// Watches a running transfer after its warm-up.
pub(crate) fn measure(
    meter: &Meter,
    pids: [u32; 2],
    duration: Duration,
    interrupt: &Interrupt,
    tell: &mut dyn FnMut(Progress),
) -> Result<Measured, Fault> {
    thread::sleep(WARM_UP);
    let started = Instant::now();
    let first = meter.received.load(Relaxed);
    let cpu = pids.map(usage::cpu);
    let mut last = (first, started);
    while started.elapsed() < duration && !meter.stop.load(Relaxed) {
        interrupt.check()?;
        thread::sleep(TELL_EVERY.min(duration.saturating_sub(started.elapsed())));
        let (now, received) = (Instant::now(), meter.received.load(Relaxed));
        let megabits = received.saturating_sub(last.0) as f64 * 8.0 / 1e6;
        let seconds = now.duration_since(last.1).as_secs_f64().max(1e-6);
        last = (received, now);
        let share = started.elapsed().as_secs_f64() / duration.as_secs_f64();
        tell(Progress::Bulk(share.min(1.0), megabits / seconds));
    }
    let elapsed = started.elapsed();
    let received = meter.received.load(Relaxed).saturating_sub(first);
    let [server, client] = pids.map(usage::cpu);
    let [server_before, client_before] = cpu;
    let cpu = [server.saturating_sub(server_before), client.saturating_sub(client_before)];
    Ok(Measured { received, elapsed, cpu })
}

fn hold(
    testbed: &mut Testbed,
    interrupt: &Interrupt,
    tell: &mut dyn FnMut(Progress),
) -> Result<(), Fault> {
    tell(Progress::Holding(Holding {
        server: testbed.server.name().to_owned(),
        client: testbed.client.name().to_owned(),
        server_addresses: testbed.server.addresses().collect(),
        client_addresses: testbed.client.addresses().collect(),
        folder: testbed.folder.clone(),
    }));
    while !interrupt.came() {
        testbed.check()?;
        thread::sleep(TELL_EVERY);
    }
    Ok(())
}
