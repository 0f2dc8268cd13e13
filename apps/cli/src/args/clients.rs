//! `adit server client`.

use std::net::Ipv4Addr;
use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::Location;
use crate::complete;

#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum Client {
    /// Make a client and its profile, for any OpenVPN client
    #[command(after_help = "Examples:
  sudo adit server client add laptop              writes laptop.ovpn, mode 0600
  sudo adit server client add phone | qrencode -t ansiutf8

The private key is in the profile only: hand it over, then delete it.")]
    Add(ClientAdd),

    /// List the clients
    #[command(after_help = "Example:
  sudo adit server client list")]
    List(ClientList),

    /// Show all about one client
    #[command(after_help = "Example:
  sudo adit server client show laptop")]
    Show(ClientShow),

    /// Revoke a client's certificate for good, at once
    #[command(after_help = "Example:
  sudo adit server client revoke laptop")]
    Revoke(ClientName),

    /// Give a client a new certificate and profile; the old one ends
    #[command(after_help = "Example:
  sudo adit server client renew laptop --days 365")]
    Renew(ClientRenew),

    /// Say which groups a client is in, for the filter's rules (@group:NAME); at once
    #[command(after_help = "Examples:
  sudo adit server client group laptop staff ops
  sudo adit server client group laptop   takes it out of all groups")]
    Group(ClientGroup),

    /// Lock a client out, at once, until it is enabled again; it goes on trying, slowly
    #[command(after_help = "Example:
  sudo adit server client disable laptop")]
    Disable(ClientName),

    /// Print the lines that profiles need after a change of host or port, without a new certificate
    #[command(after_help = "Examples:
  sudo adit server client remotes
  sudo adit server client remotes --done laptop   its profile has got them")]
    Remotes(ClientRemotes),

    /// Let a disabled client in again; it comes back within half a minute
    #[command(after_help = "Example:
  sudo adit server client enable laptop")]
    Enable(ClientEnable),

    /// End a client's session; it may connect again
    #[command(after_help = "Example:
  sudo adit server client kick laptop")]
    Kick(ClientName),
}

#[derive(Debug, Args)]
pub(crate) struct ClientAdd {
    /// Letters, digits, dot, dash, underscore, @
    pub name: String,

    /// Days until the certificate ends [default: 825]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub days: Option<u32>,

    /// Ask for a password that protects the private key
    #[arg(long)]
    pub password: bool,

    /// A fixed address inside the tunnel
    #[arg(long, value_name = "ADDR")]
    pub ip: Option<Ipv4Addr>,

    /// A group that filter rules can name (@group:NAME); repeatable
    #[arg(long, value_name = "NAME", add = complete::group())]
    pub group: Vec<String>,

    /// Write the profile here; - is stdout [default: NAME.ovpn on a terminal, else stdout]
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ClientGroup {
    /// Name of the client
    #[arg(add = complete::client())]
    pub name: String,

    /// The groups it is in from now on; none: it is in no group
    #[arg(value_name = "GROUP", add = complete::group())]
    pub groups: Vec<String>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ClientRenew {
    /// Name of the client
    #[arg(add = complete::client())]
    pub name: String,

    /// Days until the certificate ends [default: 825]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=36500))]
    pub days: Option<u32>,

    /// Ask for a password that protects the private key
    #[arg(long)]
    pub password: bool,

    /// Write the profile here; - is stdout [default: NAME.ovpn on a terminal, else stdout]
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ClientList {
    /// JSON instead of a table
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ClientShow {
    /// Name of the client
    #[arg(add = complete::any_client())]
    pub name: String,

    /// JSON instead of text
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ClientRemotes {
    /// This client's profile has got the lines; repeatable
    #[arg(long, value_name = "NAME", add = complete::client())]
    pub done: Vec<String>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ClientName {
    /// Name of the client
    #[arg(add = complete::client())]
    pub name: String,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ClientEnable {
    /// Name of the client
    #[arg(add = complete::disabled_client())]
    pub name: String,

    #[command(flatten)]
    pub location: Location,
}
