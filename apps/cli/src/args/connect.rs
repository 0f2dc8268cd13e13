//! The arguments of `adit connect`.

use std::path::PathBuf;

use clap::{Args, ValueEnum, ValueHint};

use super::ServeMetrics;

/// A setting that is on or off.
#[derive(Debug, Copy, Clone, PartialEq, Eq, ValueEnum)]
pub(crate) enum Switch {
    On,
    Off,
}

#[derive(Debug, Args)]
pub(crate) struct Connect {
    /// An OpenVPN profile (.ovpn)
    #[arg(value_hint = ValueHint::FilePath, required_unless_present = "release")]
    pub profile: Option<PathBuf>,

    /// Try every stage, report the one that fails, and exit, without affecting running sessions
    #[arg(long)]
    pub check: bool,

    /// With --check, try all stages even if the server ends another session with this profile
    #[arg(long, requires = "check")]
    pub full: bool,

    /// With --check, print the report as JSON
    #[arg(long, requires = "check")]
    pub json: bool,

    /// Do not change this machine's routes
    #[arg(long)]
    pub no_routes: bool,

    /// Keep private networks to which this machine is connected outside the tunnel
    #[arg(long)]
    pub allow_lan: bool,

    /// Block traffic outside the tunnel, even after the client has ended for any reason
    #[arg(long)]
    pub kill_switch: bool,

    /// Turn off the kill switch of a client that has ended, and undo the changes of killed clients
    #[arg(long, conflicts_with_all = ["profile", "check", "kill_switch"])]
    pub release: bool,

    /// Whether to apply the server's DNS settings
    #[arg(long, value_enum, value_name = "on|off", default_value_t = Switch::On, hide_possible_values = true)]
    pub dns: Switch,

    /// The name of the tunnel's network device
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,

    #[command(flatten)]
    pub serve: ServeMetrics,

    /// Print more log lines (repeatable)
    #[arg(long, short, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// Keep the control socket in this directory instead of /run/adit
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}
