//! `adit-interop`: runs the interoperability tests against the real programs.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use adit_interop::case::{self, Outcome, TestEnv};
use adit_interop::many_clients::{self, Soak};
use adit_interop::matrix::{self, Case, Roles};
use adit_interop::modes::{self, Mode};
use adit_interop::nftdiff;
use adit_interop::runner::{self, Attempt, Ended, Job};
use adit_interop::scenario::{self, Test};
use adit_interop::{Failure, Result};
use adit_testbed::peer::Program;
use adit_testbed::pki::Pki;
use adit_testbed::sandbox::{self, Entered};
use clap::{Parser, Subcommand, ValueEnum};

const ROOTS: &str = "target/roots";

/// The length of tests that look for leaks.
const MINUTES: u64 = 30;

/// Interoperability with the real openvpn, in network namespaces of a sandbox. Needs root.
///
/// Example: adit-interop run --jobs 6 tls-crypt-v2
#[derive(Parser)]
#[command(name = "adit-interop", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run the tests whose names contain all the given words.
    Run(Run),
    /// Print the names of all tests.
    List,
    /// Run many openvpn clients at one adit, over UDP and TCP, and one that stops reading.
    ManyClients {
        /// Number of clients.
        #[arg(long, default_value_t = 200)]
        clients: usize,
    },
    /// Compare the kernel's nftables with adit: the same rules and packets must give the same verdicts and counters.
    NftDiff {
        /// The seed of the first rule set; each further one has the next seed.
        #[arg(long, default_value_t = 1)]
        seed: u64,
        /// Number of rule sets.
        #[arg(long, default_value_t = 40)]
        sets: u64,
        /// Number of packets through each.
        #[arg(long, default_value_t = 500)]
        packets: usize,
        /// Number of rule sets with differences after which it stops.
        #[arg(long, default_value_t = 3)]
        most: usize,
        /// Run the case in this file instead, and print it with the results of both.
        #[arg(long)]
        replay: Option<PathBuf>,
    },
    /// Show how a mesh is built, in network namespaces.
    DemoMesh {
        /// Repeat the demo this many times, and print only the durations of its events.
        #[arg(long, value_parser = clap::value_parser!(u16).range(1..=1000))]
        rounds: Option<u16>,
    },
    /// Let openvpn clients connect, transfer, rekey, leave or die: the server's resources must return to their initial
    /// values.
    Soak {
        /// Number of clients.
        #[arg(long, default_value_t = 50)]
        clients: usize,
        /// Length of the run.
        #[arg(long, default_value_t = MINUTES)]
        minutes: u64,
    },
}

#[derive(clap::Args)]
struct Run {
    /// Number of tests that run at once.
    #[arg(long, default_value_t = 8)]
    jobs: usize,
    /// The tests against other versions of openvpn, from the roots of scripts/roots.sh.
    #[arg(long, value_enum, default_value_t = OldVersions::WhereFetched)]
    old: OldVersions,
    /// Folder of these roots.
    #[arg(long, default_value = ROOTS)]
    roots: PathBuf,
    /// Run openvpn in adit's place; if a test fails then, adit is not at fault.
    #[arg(long)]
    control: bool,
    /// Run only the tests that take many minutes each.
    #[arg(long)]
    long: bool,
    /// Length of long/mesh/soak and of long/mesh/chaos.
    #[arg(long, default_value_t = MINUTES)]
    minutes: u64,
    /// Words that a test's name must contain.
    words: Vec<String>,
}

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum OldVersions {
    /// Run the tests whose root exists, and report the others as skipped.
    WhereFetched,
    /// A missing root is a failure.
    Required,
    /// Skip them.
    Skip,
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().verb {
        Verb::List => list(),
        Verb::Run(arguments) => run(&arguments),
        Verb::ManyClients { clients } => alone(|env, adit| {
            many_clients::simultaneous(env, "many-clients", adit, &Program::OpenVpn, clients)
        }),
        Verb::NftDiff { replay: Some(path), .. } => nft_diff(|| nftdiff::replay(&path)),
        Verb::NftDiff { seed, sets, packets, most, replay: None } => {
            let options = nftdiff::Options { seed, sets, frames: packets, most };
            nft_diff(|| {
                println!("nft-diff: {}", nftdiff::run(&options)?);
                Ok(())
            })
        }
        Verb::DemoMesh { rounds: None } => alone(scenario::demo_mesh),
        Verb::DemoMesh { rounds: Some(rounds) } => {
            alone(|env, adit| scenario::time_mesh(env, adit, rounds))
        }
        Verb::Soak { clients, minutes } => alone(|env, adit| {
            let soak = Soak { clients, length: Duration::from_secs(minutes * 60) };
            many_clients::soak(env, adit, &Program::OpenVpn, soak)
        }),
    };
    outcome.unwrap_or_else(|failure| {
        eprintln!("adit-interop: {failure}");
        ExitCode::FAILURE
    })
}

fn list() -> Result<ExitCode> {
    for test in tests(&Program::Adit("adit".into()), OldVersions::WhereFetched, Path::new(ROOTS))? {
        println!("{}", test.name);
    }
    Ok(ExitCode::SUCCESS)
}

fn run(arguments: &Run) -> Result<ExitCode> {
    let sandbox = match sandbox::enter()? {
        Entered::Ended(code) => return Ok(code),
        Entered::Inside(sandbox) => sandbox,
    };
    let started = Instant::now();
    let pki = Pki::make(&sandbox)?;
    let env = TestEnv { sandbox, pki, length: Duration::from_secs(arguments.minutes * 60) };
    let wanted = |test: &Test| arguments.words.iter().all(|word| test.name.contains(word.as_str()));
    let adit = if arguments.control { Program::OpenVpn } else { Program::adit()? };
    let all = if arguments.long {
        scenario::long(&adit)
    } else {
        tests(&adit, arguments.old, &arguments.roots)?
    };
    let mut tests: Vec<Test> = all.into_iter().filter(wanted).collect();
    if arguments.control {
        // These tests check adit's own messages.
        tests.retain(|test| {
            !["fault/", "many-clients/", "postgres/"].iter().any(|kind| test.name.starts_with(kind))
        });
    }
    if tests.is_empty() {
        return Err("no test has such a name: see adit-interop list".into());
    }
    let cases: Vec<Job<'_>> = tests
        .iter()
        .map(|test| Job { name: &test.name, run: Box::new(|| (test.run)(&env)) })
        .collect();
    let tally = runner::run(&cases, arguments.jobs, &report);
    println!("interop: {tally}, {} s", started.elapsed().as_secs());
    Ok(if tally.ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Runs a single long test.
fn alone(test: impl Fn(&TestEnv, &Program) -> Result<String>) -> Result<ExitCode> {
    let sandbox = match sandbox::enter()? {
        Entered::Ended(code) => return Ok(code),
        Entered::Inside(sandbox) => sandbox,
    };
    let pki = Pki::make(&sandbox)?;
    let env = TestEnv { sandbox, pki, length: Duration::from_secs(MINUTES * 60) };
    println!("{}", test(&env, &Program::adit()?)?);
    Ok(ExitCode::SUCCESS)
}

fn nft_diff(work: impl FnOnce() -> Result<()>) -> Result<ExitCode> {
    match sandbox::enter()? {
        Entered::Ended(code) => Ok(code),
        Entered::Inside(_) => work().map(|()| ExitCode::SUCCESS),
    }
}

fn report(ended: &Ended<'_>) {
    let (seconds, name) = (ended.took.as_secs_f64(), ended.name);
    let second = if ended.attempt == Attempt::Second { " (second attempt)" } else { "" };
    match &ended.outcome {
        Ok(what) => println!("ok    {seconds:5.1} s  {name}{second}  {what}"),
        Err(failure) => println!("FAIL  {seconds:5.1} s  {name}{second}\n    {failure}"),
    }
}

/// Returns every test, the controls first.
fn tests(adit: &Program, old: OldVersions, roots: &Path) -> Result<Vec<Test>> {
    let mut tests = Vec::new();
    // If these fail, the testbed or the machine is at fault, not adit.
    for loss in [0, 2] {
        let case = Case { loss, ..Case::plain(Roles::OpenVpnBoth) };
        tests.push(case_test(case.name(), case, adit, &Program::OpenVpn));
    }
    for case in matrix::pairwise() {
        tests.push(case_test(case.name(), case, adit, &Program::OpenVpn));
    }
    for mode in modes::pairwise() {
        tests.push(mode_test(mode, adit, &Program::OpenVpn));
    }
    tests.extend(scenario::all(adit, &Program::OpenVpn));
    // The last one: it compares round trips, and its limit grows with the work of other tests.
    tests.push(many_clients_test(adit));
    if old != OldVersions::Skip {
        for suite in SUITES {
            tests.extend(version_tests(suite, adit, old, roots)?);
        }
    }
    Ok(tests)
}

/// Debian's suites with another openvpn: 2.5, which does not have the exporter, and 2.7.
const SUITES: [&str; 2] = ["bullseye", "sid"];

fn version_tests(
    suite: &'static str,
    adit: &Program,
    old: OldVersions,
    roots: &Path,
) -> Result<Vec<Test>> {
    let Some(program) = Program::of_suite(roots, suite) else {
        let missing = format!("no openvpn of Debian {suite} under {}", roots.display());
        if old == OldVersions::Required {
            return Err(Failure(format!("{missing}: make roots")));
        }
        eprintln!("interop: {missing}: those tests are not part of this run (make interop-old)");
        return Ok(Vec::new());
    };
    let mut tests = Vec::new();
    for roles in [Roles::AditServes, Roles::OpenVpnServes] {
        for case in matrix::versions(roles) {
            let name = format!("{}/{}", roles.name().replace("openvpn", suite), case.what());
            tests.push(case_test(name, case, adit, &program));
        }
    }
    tests.extend(scenario::ever(adit, &program, suite));
    tests.extend(scenario::versions(adit, &program, suite));
    Ok(tests)
}

fn case_test(name: String, case: Case, adit: &Program, openvpn: &Program) -> Test {
    let (server, client) = case::programs(case.roles, adit, openvpn);
    let (server, client, unique) = (server.clone(), client.clone(), name.clone());
    let run = move |env: &TestEnv| {
        let outcome = case::run(env, &unique, &case, &server, &client)?;
        let Outcome { rekeys, delivery: [up, down] } = outcome;
        let (received, sent) = (up.received + down.received, up.sent + down.sent);
        Ok(format!("{rekeys} rekeys, {received} of {sent} datagrams"))
    };
    Test { name, run: Box::new(run) }
}

fn mode_test(mode: Mode, adit: &Program, openvpn: &Program) -> Test {
    let (server, client) = case::programs(mode.roles, adit, openvpn);
    let (server, client, name) = (server.clone(), client.clone(), mode.name());
    let unique = name.clone();
    let run = move |env: &TestEnv| modes::run(env, &unique, &mode, &server, &client);
    Test { name, run: Box::new(run) }
}

/// Enough clients to mix transports; `adit-interop many-clients` runs more.
const CLIENTS: usize = 16;

fn many_clients_test(adit: &Program) -> Test {
    let (adit, name) = (adit.clone(), format!("many-clients/{CLIENTS}-over-udp-and-tcp"));
    let unique = name.clone();
    let run = move |env: &TestEnv| {
        many_clients::simultaneous(env, &unique, &adit, &Program::OpenVpn, CLIENTS)
    };
    Test { name, run: Box::new(run) }
}
