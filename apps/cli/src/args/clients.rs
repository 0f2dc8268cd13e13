//! `adit server client`.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::Location;
use crate::complete;

#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum Client {
    /// Add a client and write its profile, for any OpenVPN program
    #[command(after_help = "Examples:
  sudo adit server client add laptop              writes laptop.ovpn, mode 0600
  sudo adit server client add phone | qrencode -t ansiutf8

The private key is only in the profile. Hand the profile over, then delete it.")]
    Add(ClientAdd),

    /// List the clients
    #[command(after_help = "Example:
  sudo adit server client list")]
    List(ClientList),

    /// Show the details of one client
    #[command(after_help = "Example:
  sudo adit server client show laptop")]
    Show(ClientShow),

    /// Revoke a client's certificate permanently, with immediate effect
    #[command(after_help = "Example:
  sudo adit server client revoke laptop")]
    Revoke(ClientName),

    /// Give a client a new certificate and profile, which replace the old ones
    #[command(after_help = "Example:
  sudo adit server client renew laptop --days 365")]
    Renew(ClientRenew),

    /// Set the groups of a client for the filter's rules (@group:NAME), with immediate effect
    #[command(after_help = "Examples:
  sudo adit server client group laptop staff ops
  sudo adit server client group laptop   removes it from all groups")]
    Group(ClientGroup),

    /// Refuse a client from now on, until it is enabled again. The client keeps trying, slowly
    #[command(after_help = "Example:
  sudo adit server client disable laptop")]
    Disable(ClientName),

    /// Print the lines that profiles need after a change of the host or port, without a new
    /// certificate
    #[command(after_help = "Examples:
  sudo adit server client remotes
  sudo adit server client remotes --done laptop   laptop's profile has them")]
    Remotes(ClientRemotes),

    /// Accept a disabled client again. It returns within half a minute
    #[command(after_help = "Example:
  sudo adit server client enable laptop")]
    Enable(ClientEnable),

    /// End a client's session. The client may connect again
    #[command(after_help = "Example:
  sudo adit server client kick laptop")]
    Kick(ClientName),
}

#[derive(Debug, Args)]
pub(crate) struct ClientAdd {
    /// The name: letters, digits, dots, dashes, underscores and @
    pub name: String,

    /// The days until the certificate expires [default: 825]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub days: Option<u32>,

    /// Ask for a password to protect the private key
    #[arg(long)]
    pub password: bool,

    /// A fixed address inside the tunnel
    #[arg(long, value_name = "ADDR")]
    pub ip: Option<Ipv4Addr>,

    /// A group for filter rules (@group:NAME) (repeatable)
    #[arg(long, value_name = "NAME", add = complete::group())]
    pub group: Vec<String>,

    /// The file for the profile; - for stdout [default: NAME.ovpn on a terminal, else stdout]
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ClientGroup {
    /// The name of the client
    #[arg(add = complete::client())]
    pub name: String,

    /// The client's new groups; if none are given, it is removed from all groups
    #[arg(value_name = "GROUP", add = complete::group())]
    pub groups: Vec<String>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ClientRenew {
    /// The name of the client
    #[arg(add = complete::client())]
    pub name: String,

    /// The days until the certificate expires [default: 825]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub days: Option<u32>,

    /// Ask for a password to protect the private key
    #[arg(long)]
    pub password: bool,

    /// The file for the profile; - for stdout [default: NAME.ovpn on a terminal, else stdout]
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ClientList {
    /// Print JSON instead of a table
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ClientShow {
    /// The name of the client
    #[arg(add = complete::any_client())]
    pub name: String,

    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ClientRemotes {
    /// A client whose profile has been updated with the lines (repeatable)
    #[arg(long, value_name = "NAME", add = complete::client())]
    pub done: Vec<String>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ClientName {
    /// The name of the client
    #[arg(add = complete::client())]
    pub name: String,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ClientEnable {
    /// The name of the client
    #[arg(add = complete::disabled_client())]
    pub name: String,

    #[command(flatten)]
    pub location: Location,
}
