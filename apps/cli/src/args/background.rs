//! The arguments of commands for programs in the background.

use std::path::PathBuf;

use clap::{Args, ValueHint};

use super::Location;
use crate::complete;

/// The option for the time that a command waits for what it starts in the background.
#[derive(Debug, Args)]
pub(crate) struct Patience {
    /// How many seconds to wait until the tunnel or server is up; 0: do not wait
    #[arg(long, value_name = "SECONDS", default_value_t = 30,
        value_parser = clap::value_parser!(u64).range(0..=3600))]
    pub wait: u64,
}

#[derive(Debug, Args)]
pub(crate) struct UpProfile {
    /// An OpenVPN profile (.ovpn), or the name of one that `adit list` shows
    #[arg(value_hint = ValueHint::FilePath)]
    pub profile: PathBuf,

    /// The profile's name [default: that of its file]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// Replace the profile of the same name
    #[arg(long)]
    pub replace: bool,

    /// Keep the answers to the profile's questions in files that only root can read
    #[arg(long)]
    pub save_password: bool,

    /// Also connect whenever the machine starts (systemd)
    #[arg(long)]
    pub boot: bool,

    #[command(flatten)]
    pub patience: Patience,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct DownProfile {
    /// The name of the profile
    #[arg(add = complete::profile())]
    pub name: PathBuf,

    /// Also no longer connect when the machine starts (systemd)
    #[arg(long)]
    pub boot: bool,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ListProfiles {
    /// Print a JSON list instead of a table
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct LogOptions {
    /// Print new lines as they are written, until Ctrl-C
    #[arg(long, short)]
    pub follow: bool,

    /// The number of lines to begin with
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50,
        value_parser = clap::value_parser!(u32).range(0..=1_000_000))]
    pub lines: u32,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ProfileLog {
    /// The name of the profile
    #[arg(add = complete::profile())]
    pub name: PathBuf,

    #[command(flatten)]
    pub log: LogOptions,
}

#[derive(Debug, Args)]
pub(crate) struct StartServer {
    #[command(flatten)]
    pub patience: Patience,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ServerStatus {
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct AuditOptions {
    /// The number of acts to show, the last ones
    #[arg(long, short = 'n', value_name = "N", default_value_t = 50,
        value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub lines: u32,

    /// Print a JSON list instead of a table
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub location: Location,
}
