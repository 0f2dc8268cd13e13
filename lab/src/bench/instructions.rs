//! Runs the pieces of `adit-icount` in this program, to count their instructions as a trial.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::ExitCode;

use adit_icount::{count, piece};
use adit_testbed::failure::Result;

/// Does a piece of the data path a fixed number of times, for callgrind to count.
#[derive(Debug, Clone, clap::Args)]
pub struct PieceArguments {
    /// The name of the piece.
    name: String,
    /// The number of repetitions.
    #[arg(long)]
    times: u32,
}

/// Runs the work of one piece.
///
/// # Errors
/// No piece has this name.
pub fn run_piece(arguments: &PieceArguments) -> Result<ExitCode> {
    piece::run(piece::find(&arguments.name)?, arguments.times)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the names of the pieces that can be counted.
pub fn piece_names() -> Vec<&'static str> {
    piece::ALL.iter().map(|piece| piece.name).collect()
}

/// Returns the number of instructions that each of these pieces takes once. `binary` must be a release build of the lab
/// (or of `adit-icount`), because counts of a debug build are meaningless. Counts repeat exactly, so one round is
/// enough.
///
/// # Errors
/// No piece has one of the names, valgrind is not installed, or the program failed under it.
pub fn instruction_counts(binary: &Path, names: &[&str]) -> Result<BTreeMap<String, u64>> {
    let pieces: std::result::Result<Vec<_>, String> =
        names.iter().map(|name| piece::find(name)).collect();
    Ok(count::instruction_counts(binary, &pieces?)?)
}
