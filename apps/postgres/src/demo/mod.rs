//! `adit postgres demo`: runs a temporary database and two machines that share nothing else, and shows real traffic, the resulting rows,
//! and measurements.

mod cluster;
mod setup;

use std::net::IpAddr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use serde::Serialize;

use adit_runtime::demo::ends::End;
use adit_runtime::demo::interrupt::Interrupt;
use adit_runtime::demo::traffic::{self, Meter};
use adit_runtime::demo::{
    DemoOptions, PING_ATTEMPTS, Step, TELL_EVERY, ping, round_trips, transfer, usage,
};
use adit_runtime::fault::Fault;
use setup::{DATABASE, DemoSetup, NAMES};

/// A user's command, or a query, with its output.
#[derive(Clone, Debug)]
pub struct CommandOutput {
    /// The command line.
    pub command: String,
    /// The output.
    pub output: String,
}

/// The progress of the demo.
#[derive(Clone, Debug)]
pub enum Progress {
    /// A step begins, is in progress or is done.
    Step(Step),
    /// A command has run.
    Command(CommandOutput),
    /// All measurements are complete.
    Figures(Box<Report>),
    /// The demo keeps running until the user interrupts.
    Running(DemoEnvironment),
}

/// The data for exploring the demo while it runs.
#[derive(Clone, Debug)]
pub struct DemoEnvironment {
    /// The namespaces.
    pub namespaces: [String; 2],
    /// The tunnel's IPv4 addresses.
    pub addresses: [IpAddr; 2],
    /// The directory of the database's socket: the host for `psql`.
    pub socket: PathBuf,
    /// The database.
    pub database: &'static str,
    /// The directory with all files of the demo, and a directory for each machine.
    pub folder: PathBuf,
    /// The machines' names.
    pub names: [&'static str; 2],
}

/// A bulk transfer.
#[derive(Clone, Debug, Serialize)]
pub struct Transfer {
    /// The machine that sends.
    pub from: &'static str,
    /// The machine that receives.
    pub to: &'static str,
    /// The received payload in Mb/s.
    pub megabits_per_second: f64,
    /// The CPU-seconds of the sending node per Gb of payload, without those of the database.
    pub sender_cpu_per_gigabit: f64,
    /// The CPU-seconds of the receiving node per Gb of payload, without those of the database.
    pub receiver_cpu_per_gigabit: f64,
}

/// The results of a demo.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Report {
    /// The version of the server.
    pub database: String,
    /// The bulk TCP transfers in both directions.
    pub transfers: Vec<Transfer>,
    /// The median round-trip time through the idle tunnel in seconds.
    pub round_trip_p50: f64,
    /// The 99th percentile of the round-trip time in seconds.
    pub round_trip_p99: f64,
    /// The number of measured round trips.
    pub round_trips: usize,
    /// The number of rows in the tables at the end.
    pub rows: u64,
    /// The size of the tables in bytes.
    pub bytes: u64,
    /// The resident memory of both nodes in bytes.
    pub memory: [u64; 2],
}

type OnProgress<'a> = &'a mut dyn FnMut(Progress);

/// Runs the demo, and removes everything that it has created. Both nodes run `options.program`.
///
/// # Errors
/// Fails if this host lacks a requirement, a part of the demo failed, or the user interrupted.
pub fn run(options: &DemoOptions, tell: OnProgress<'_>) -> Result<(), Fault> {
    cluster::programs()?;
    let interrupt = Interrupt::catch()?;
    stage(tell, "a database in a temporary folder, two machines without a connection");
    let mut world = DemoSetup::new(&options.program, &interrupt)?;
    let mut report = Report { database: world.cluster.version()?, ..Report::default() };
    done(tell, &report.database);
    create_network(&world, tell)?;
    interrupt.check()?;
    stage(tell, "adit postgres up, on both");
    world.up(&interrupt)?;
    let [east, west] = &world.ends;
    done(tell, &format!("{}: {}, {}: {}", NAMES[0], list(east), NAMES[1], list(west)));
    pings(&world, &interrupt, tell)?;
    stage(tell, "round trips, no other traffic");
    let [east, west] = &world.ends;
    let (p50, p99, count) = round_trips(east, west, &interrupt)?;
    (report.round_trip_p50, report.round_trip_p99, report.round_trips) = (p50, p99, count);
    let [p50, p99] = [p50, p99].map(|seconds| seconds * 1e3);
    done(tell, &format!("p50 {p50:.2} ms, p99 {p99:.2} ms: two commits, flushed to disk"));
    queries(&world, tell)?;
    for (from, to) in [(0, 1), (1, 0)] {
        let transfer = bulk(&world, options.duration, [from, to], &interrupt, tell)?;
        report.transfers.push(transfer);
        world.check()?;
    }
    show_totals(&world, &mut report, tell)?;
    report.memory = [usage::memory(world.ends[0].pid()), usage::memory(world.ends[1].pid())];
    tell(Progress::Figures(Box::new(report)));
    if options.hold {
        wait_for_user(&mut world, &interrupt, tell)?;
    }
    Ok(())
}

fn stage(tell: OnProgress<'_>, what: &str) {
    tell(Progress::Step(Step::Stage(what.to_owned())));
}

fn done(tell: OnProgress<'_>, what: &str) {
    tell(Progress::Step(Step::Done(what.to_owned())));
}

fn list(end: &End) -> String {
    end.addresses().map(|address| address.to_string()).collect::<Vec<_>>().join(", ")
}

/// Runs `init` and `join` as a user would type them, except for the directories.
fn create_network(world: &DemoSetup, tell: OnProgress<'_>) -> Result<(), Fault> {
    let url = world.url();
    let words =
        ["init", &url, "--network", "10.9.0.0/24", "--network6", "fd09::/64", "--name", NAMES[0]];
    // The nodes are started once both have joined.
    let words = [&words[..], &["--offline"]].concat();
    let told = world.adit(0, &words)?;
    show(tell, NAMES[0], &words, &told);
    let invitation = told
        .split(|c: char| c.is_whitespace() || matches!(c, '\'' | '"'))
        .find(|word| word.starts_with("postgres") && word.contains('#'))
        .ok_or_else(|| {
            Fault::ours(format!("init named no command for the next machine: {told}"))
        })?;
    let words = ["join", invitation, "--name", NAMES[1]];
    let told = world.adit(1, &words)?;
    show(tell, NAMES[1], &words, &told);
    Ok(())
}

fn show(tell: OnProgress<'_>, machine: &str, words: &[&str], output: &str) {
    let quoted = words.iter().map(|word| {
        if word.contains(['#', '?', '&']) { format!("'{word}'") } else { (*word).to_owned() }
    });
    let command = format!("{machine}$ adit postgres {}", quoted.collect::<Vec<_>>().join(" "));
    tell(Progress::Command(CommandOutput { command, output: output.to_owned() }));
}

fn pings(world: &DemoSetup, interrupt: &Interrupt, tell: OnProgress<'_>) -> Result<(), Fault> {
    let [east, west] = &world.ends;
    for (from, end, other) in [(NAMES[0], east, west), (NAMES[1], west, east)] {
        for to in other.addresses() {
            stage(tell, &format!("ping from {from} to {to}"));
            // Nodes that have just started may still be opening their streams.
            let time = ping(end, to, PING_ATTEMPTS.saturating_mul(2), interrupt)?;
            done(tell, &format!("{:.2} ms", time.as_secs_f64() * 1000.0));
        }
    }
    Ok(())
}

/// A query that shows the last packets as rows.
const PACKETS: &str = r#"SELECT ts::time(3), "from", "to", proto, src, dst, len FROM adit.log
  WHERE proto IN (1, 58) ORDER BY ts DESC LIMIT 4"#;
/// A query that shows the totals.
const SUMS: &str = r#"SELECT "from", "to", count(*) AS packets, pg_size_pretty(sum(len)) AS sent,
  round(avg(len)) AS mean_len FROM adit.log GROUP BY 1, 2"#;

fn queries(world: &DemoSetup, tell: OnProgress<'_>) -> Result<(), Fault> {
    query(world, PACKETS, tell)
}

fn query(world: &DemoSetup, sql: &str, tell: OnProgress<'_>) -> Result<(), Fault> {
    let output = world.cluster.table(DATABASE, sql)?;
    tell(Progress::Command(CommandOutput { command: format!("{DATABASE}=# {sql};"), output }));
    Ok(())
}

/// Shows the totals of the tables, their verification, and their size.
fn show_totals(world: &DemoSetup, report: &mut Report, tell: OnProgress<'_>) -> Result<(), Fault> {
    query(world, SUMS, tell)?;
    let told = world.adit(1, &["verify"])?;
    show(tell, NAMES[1], &["verify"], &told);
    let number = |sql: &str| -> Result<u64, Fault> {
        Ok(world.cluster.sql(DATABASE, sql)?.trim().parse().unwrap_or(0))
    };
    report.rows = number("SELECT count(*) FROM adit.packet")?;
    report.bytes = number("SELECT bytes FROM adit.usage()")?;
    Ok(())
}

/// Measures one TCP transfer.
fn bulk(
    world: &DemoSetup,
    duration: Duration,
    [from, to]: [usize; 2],
    interrupt: &Interrupt,
    tell: OnProgress<'_>,
) -> Result<Transfer, Fault> {
    let ours = || Fault::ours("there are two machines");
    let (sender, receiver) =
        (world.ends.get(from).ok_or_else(ours)?, world.ends.get(to).ok_or_else(ours)?);
    let [from, to] = [from, to].map(|at| NAMES.get(at).copied().unwrap_or_default());
    let meter = Meter::default();
    let what = format!("TCP from {from} to {to}");
    let pids = [sender.pid(), receiver.pid()];
    let mut step = |step| tell(Progress::Step(step));
    let rates = transfer(&what, &meter, pids, duration, interrupt, &mut step, || {
        traffic::tcp(&sender.ns, &receiver.ns, receiver.ipv4.into(), &meter)
    })?;
    let [sender_cpu_per_gigabit, receiver_cpu_per_gigabit] = rates.cpu_per_gigabit;
    let megabits_per_second = rates.megabits_per_second;
    Ok(Transfer { from, to, megabits_per_second, sender_cpu_per_gigabit, receiver_cpu_per_gigabit })
}

fn wait_for_user(
    world: &mut DemoSetup,
    interrupt: &Interrupt,
    tell: OnProgress<'_>,
) -> Result<(), Fault> {
    let [east, west] = &world.ends;
    tell(Progress::Running(DemoEnvironment {
        namespaces: [east.name().to_owned(), west.name().to_owned()],
        addresses: [east.ipv4.into(), west.ipv4.into()],
        socket: world.folder.join("db"),
        database: DATABASE,
        folder: world.folder.clone(),
        names: NAMES,
    }));
    while !interrupt.came() {
        world.check()?;
        thread::sleep(TELL_EVERY);
    }
    Ok(())
}
