//! `adit-lab` measures adit and comparable programs, and individual parts of adit.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use adit_lab::{bench, compare, copy, profile, publish, relay, report, rows, run};
use clap::{Parser, Subcommand};

/// Compares adit with its peers, and reports how certain each result is.
///
/// Example: adit-lab run smoke
#[derive(Parser)]
#[command(name = "adit-lab", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Run a plan and write its report. Needs root
    #[command(after_help = "Example: sudo adit-lab run standard --out before")]
    Run(run::Arguments),
    /// Show the plans, the kinds of scenario with their axes, and the subjects that are available
    #[command(after_help = "Example: adit-lab list")]
    List,
    /// Write the report of a run again
    #[command(after_help = "Example: adit-lab report lab-results/standard-20260301-101500")]
    Report(report::Arguments),
    /// Write a run's figures into the tables of README.md and docs/benchmarks.md
    ///
    /// Example: adit-lab publish lab-results/standard-20260301-101500
    Publish(publish::Arguments),
    /// Report whether run B is slower than run A; exit code 1 if so
    #[command(after_help = "Example: adit-lab compare before after")]
    Compare(compare::Arguments),
    /// Show where the time goes: flame graph, call graph, and the difference to something else. Needs root
    ///
    /// One trial of a scenario, sampled by perf from its first process to its last.
    ///
    /// Example: adit-lab profile single-stream --against adit@HEAD~1
    Profile(profile::Arguments),
    /// Measure the engines and the data path in memory, without any I/O
    #[command(after_help = "Example: adit-lab bench --cipher AES-256-GCM --size 1400 --size super")]
    Bench(bench::Arguments),
    /// Run one end of a tunnel without cryptography, as the subject `copy` does. Needs root
    #[command(hide = true)]
    Copy(copy::Arguments),
    /// Join two TAP devices by a plain relay, as the subject `relay` does. Needs root
    #[command(hide = true)]
    Relay(relay::Arguments),
    /// Run one end of a tunnel with one row per packet, as `row-notify` and similar subjects do. Needs root
    #[command(hide = true)]
    RowNotify(rows::Arguments),
    /// Run a piece of the data path, for callgrind
    #[command(hide = true)]
    Piece(bench::PieceArguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().verb {
        Verb::Run(arguments) => run::run(&arguments),
        Verb::List => run::list(),
        Verb::Report(arguments) => report::run(&arguments),
        Verb::Publish(arguments) => publish::run(&arguments),
        Verb::Compare(arguments) => compare::run(&arguments),
        Verb::Profile(arguments) => profile::run(&arguments),
        Verb::Bench(arguments) => bench::run(&arguments),
        Verb::Copy(arguments) => copy::run(&arguments),
        Verb::Relay(arguments) => relay::run(&arguments),
        Verb::RowNotify(arguments) => rows::run(&arguments),
        Verb::Piece(arguments) => bench::run_piece(&arguments),
    };
    outcome.unwrap_or_else(|failure| {
        eprintln!("adit-lab: {failure}");
        // 1 is a valid result: trials failed, or B is slower.
        ExitCode::from(2)
    })
}
