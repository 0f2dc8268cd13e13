//! `adit-lab`: measures adit beside its peers, and parts of adit alone.
//!
//! Every verb prints the command line that reproduces it. Figures of one run compare with each other; those of different
//! runs or machines do not.
#![forbid(unsafe_code)]

mod control_load;
mod growth;
mod pair;
mod statistics;

use std::process::ExitCode;

use adit_lab::{bench, copy, profile};
use clap::{Parser, Subcommand};

/// Measures adit beside its peers.
///
/// Example: adit-lab pair --mode offload --pairs 5
#[derive(Parser)]
#[command(name = "adit-lab", version)]
struct Arguments {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// One TCP stream through a tunnel between two namespaces, adit and openvpn in turns. Needs root.
    Pair(pair::Arguments),
    /// A piece of the data path, for callgrind.
    #[command(hide = true)]
    Piece(bench::PieceArguments),
    /// One end of a tunnel without cryptography: the ceiling. Needs root.
    Copy(copy::Arguments),
    /// The same with adit at both ends while the control channel is busy, and how long the trains were. Needs root.
    ControlLoad(control_load::Arguments),
    /// Memory of both ends after ten and after a hundred gigabytes. Needs root.
    Growth(growth::Arguments),
    /// Engines and data path without any I/O.
    Bench(bench::Arguments),
    /// Where the time goes: flame graph, call graph, and the difference to something else. Needs root.
    Profile(profile::Arguments),
}

fn main() -> ExitCode {
    let outcome = match Arguments::parse().verb {
        Verb::Pair(arguments) => pair::run(&arguments),
        Verb::Piece(arguments) => bench::run_piece(&arguments),
        Verb::Copy(arguments) => copy::run(&arguments),
        Verb::ControlLoad(arguments) => control_load::run(&arguments),
        Verb::Growth(arguments) => growth::run(&arguments),
        Verb::Bench(arguments) => bench::run(&arguments),
        Verb::Profile(arguments) => profile::run(&arguments),
    };
    outcome.unwrap_or_else(|failure| {
        eprintln!("adit-lab: {failure}");
        ExitCode::FAILURE
    })
}
