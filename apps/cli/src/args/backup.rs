//! `adit server backup` and `adit server restore`.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::Location;

#[derive(Debug, Args)]
pub(crate) struct Backup {
    /// The file to write; - for stdout
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,

    /// Read the passphrase from the first line of this file instead of asking for it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub passphrase_file: Option<PathBuf>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct Restore {
    /// The file that `adit server backup` wrote
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,

    /// Read the passphrase from the first line of this file instead of asking for it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub passphrase_file: Option<PathBuf>,

    /// Replace the keys, clients and settings of the server that is here already, for good
    #[arg(long)]
    pub replace: bool,

    #[command(flatten)]
    pub location: Location,
}
