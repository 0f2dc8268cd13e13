//! `adit demo`: runs a server and a client in two namespaces of this host, and measures real traffic between them.

mod testbed;

use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::Duration;

use serde::Serialize;

use super::doctor::{self, Level};
use adit_runtime::demo::ends::End;
use adit_runtime::demo::interrupt::Interrupt;
use adit_runtime::demo::traffic::{self, Meter};
use adit_runtime::demo::{
    DemoOptions, PING_ATTEMPTS, Step, TELL_EVERY, ping, round_trips, transfer, usage,
};
use adit_runtime::fault::Fault;
use testbed::Testbed;

/// An answered ping.
#[derive(Clone, Debug, Serialize)]
pub struct Ping {
    /// The sending end: `client` or `server`.
    pub from: &'static str,
    /// The destination address.
    pub to: IpAddr,
    /// The round-trip time in seconds.
    pub seconds: f64,
}

/// A bulk transfer.
#[derive(Clone, Debug, Serialize)]
pub struct Transfer {
    /// `TCP` or `UDP`.
    pub protocol: &'static str,
    /// The sending end: `client` or `server`.
    pub from: &'static str,
    /// The received payload in Mb/s.
    pub megabits_per_second: f64,
    /// The CPU-seconds of the server process per Gb of payload.
    pub server_cpu_per_gigabit: f64,
    /// The CPU-seconds of the client process per Gb of payload.
    pub client_cpu_per_gigabit: f64,
    /// The fraction of the datagrams that did not arrive.
    pub lost: f64,
}

/// The results of a demo.
#[derive(Clone, Debug, Default, Serialize)]
pub struct DemoReport {
    /// The pings in both directions.
    pub pings: Vec<Ping>,
    /// The bulk transfers in both directions.
    pub transfers: Vec<Transfer>,
    /// The median round-trip time through the idle tunnel in seconds.
    pub round_trip_p50: f64,
    /// The 99th percentile of the round-trip time in seconds.
    pub round_trip_p99: f64,
    /// The number of measured round trips.
    pub round_trips: usize,
    /// The resident memory of the server process at the end, in bytes.
    pub server_memory: u64,
    /// The resident memory of the client process at the end, in bytes.
    pub client_memory: u64,
}

/// Progress of the demo.
#[derive(Clone, Debug)]
pub enum Progress {
    /// A step begins, is in progress or is done.
    Step(Step),
    /// All measurements are complete.
    Figures(Box<DemoReport>),
    /// The demo keeps running until the user interrupts.
    Running(DemoEnvironment),
}

/// The data for exploring the demo while it runs.
#[derive(Clone, Debug)]
pub struct DemoEnvironment {
    /// The namespace of the server.
    pub server: String,
    /// The namespace of the client.
    pub client: String,
    /// The server's tunnel addresses.
    pub server_addresses: Vec<IpAddr>,
    /// The client's tunnel addresses.
    pub client_addresses: Vec<IpAddr>,
    /// The directory with logs, keys and control sockets.
    pub folder: PathBuf,
}

/// Runs the demo, and removes everything that it has created.
///
/// # Errors
/// Fails if this host lacks a requirement, an end failed, or the user interrupted.
pub fn run(options: &DemoOptions, tell: &mut dyn FnMut(Progress)) -> Result<(), Fault> {
    check_machine()?;
    let interrupt = Interrupt::catch()?;
    stage(tell, "keys, two namespaces, a cable".into());
    let mut testbed = Testbed::new()?;
    done(tell, format!("{}, {}", testbed.server.name(), testbed.client.name()));

    stage(tell, "server".into());
    testbed.start_server(&options.program, &interrupt)?;
    done(tell, format!("process {}, {}", testbed.server.pid(), list(&testbed.server)));
    stage(tell, "client".into());
    testbed.start_client(&options.program, &interrupt)?;
    done(tell, format!("process {}, {}", testbed.client.pid(), list(&testbed.client)));

    let mut report = DemoReport::default();
    pings(&testbed, &interrupt, &mut report, tell)?;
    stage(tell, "round trips of small datagrams, idle tunnel".into());
    let (p50, p99, count) = round_trips(&testbed.client, &testbed.server, &interrupt)?;
    (report.round_trip_p50, report.round_trip_p99, report.round_trips) = (p50, p99, count);
    done(tell, format!("p50 {:.0} us, p99 {:.0} us", p50 * 1e6, p99 * 1e6));
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
        wait_for_user(&mut testbed, &interrupt, tell)?;
    }
    Ok(())
}

fn stage(tell: &mut dyn FnMut(Progress), what: String) {
    tell(Progress::Step(Step::Stage(what)));
}

fn done(tell: &mut dyn FnMut(Progress), result: String) {
    tell(Progress::Step(Step::Done(result)));
}

fn list(end: &End) -> String {
    end.addresses().map(|address| address.to_string()).collect::<Vec<_>>().join(", ")
}

/// Checks all requirements of a demo, and reports everything missing at once.
///
/// # Errors
/// Returns the missing programs and privileges, with their remedies.
pub fn check_machine() -> Result<(), Fault> {
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
            stage(tell, format!("ping from the {from} to {to}"));
            let time = ping(end, to, PING_ATTEMPTS, interrupt)?;
            done(tell, format!("{:.2} ms", time.as_secs_f64() * 1000.0));
            report.pings.push(Ping { from, to, seconds: time.as_secs_f64() });
        }
    }
    Ok(())
}

/// Measures one transfer.
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
    let meter = Meter::default();
    let pids = [testbed.server.pid(), testbed.client.pid()];
    let what = format!("{protocol} {from} to {to}");
    let mut step = |step| tell(Progress::Step(step));
    let rates = transfer(&what, &meter, pids, duration, interrupt, &mut step, || {
        let (source, address) = (sender.ipv4.into(), receiver.ipv4.into());
        match protocol {
            "TCP" => traffic::tcp(&sender.ns, &receiver.ns, address, &meter),
            _ => traffic::udp(&sender.ns, &receiver.ns, source, address, &meter),
        }
    })?;
    let (sent, received) = (meter.sent.load(Relaxed), meter.received.load(Relaxed));
    let lost = match protocol {
        "UDP" if sent > 0 => 1.0 - received as f64 / sent as f64,
        _ => 0.0,
    };
    let [server_cpu_per_gigabit, client_cpu_per_gigabit] = rates.cpu_per_gigabit;
    Ok(Transfer {
        protocol,
        from,
        megabits_per_second: rates.megabits_per_second,
        server_cpu_per_gigabit,
        client_cpu_per_gigabit,
        lost: lost.max(0.0),
    })
}

fn wait_for_user(
    testbed: &mut Testbed,
    interrupt: &Interrupt,
    tell: &mut dyn FnMut(Progress),
) -> Result<(), Fault> {
    tell(Progress::Running(DemoEnvironment {
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
