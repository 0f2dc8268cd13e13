//! `adit server client`.

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;

use adit_pki::{ClientRate, Member, Quota};
use clap::{Args, Subcommand, ValueHint};
use ipnet::IpNet;

use super::Location;
use crate::complete;

#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum Client {
    /// Add a client and write its profile, for any OpenVPN program
    #[command(after_help = "Examples:
  sudo adit server client add laptop              writes laptop.ovpn, mode 0600
  sudo adit server client add phone --qr          hands it out by a QR code

The private key is only in the profile, unless --keep-profile is given. Hand the
profile over, then delete it.")]
    Add(ClientAdd),

    /// List the clients
    #[command(after_help = "Example:
  sudo adit server client list")]
    List(ClientList),

    /// Show the details of one client
    #[command(after_help = "Example:
  sudo adit server client show laptop
  sudo adit server client show laptop --profile   if the server keeps it")]
    Show(ClientShow),

    /// Revoke a client's certificate permanently, with immediate effect
    #[command(after_help = "Example:
  sudo adit server client revoke laptop")]
    Revoke(ClientName),

    /// Give a client a new certificate and profile, which replace the old ones
    #[command(after_help = "Example:
  sudo adit server client renew laptop --days 365
  sudo adit server client renew phone --qr")]
    Renew(ClientRenew),

    /// Change a client's addresses, note, networks, quota or rate, with immediate effect
    #[command(after_help = "Examples:
  sudo adit server client set laptop --address 10.87.31.77 --note \"Ann's\"
  sudo adit server client set office --network 192.168.1.0/24   routed to it
  sudo adit server client set phone --quota 20GB/month --rate down=20Mbit
  sudo adit server client set phone --quota none

An option that is not given changes nothing.")]
    Set(Box<ClientSet>),

    /// Give a client another name. Its certificate and its profile stay valid
    #[command(after_help = "Example:
  sudo adit server client rename laptop ann-laptop")]
    Rename(ClientRename),

    /// Remove a client. Its certificate is revoked, and nothing else of it remains
    #[command(after_help = "Example:
  sudo adit server client delete laptop")]
    Delete(ClientDelete),

    /// Set the groups of a client for the filter's rules (@group:NAME), with immediate effect
    #[command(after_help = "Examples:
  sudo adit server client group laptop staff ops
  sudo adit server client group laptop   removes it from all groups")]
    Group(ClientGroup),

    /// Refuse a client from now on, until it is enabled again. The client keeps trying, slowly
    #[command(after_help = "Example:
  sudo adit server client disable laptop")]
    Disable(ClientName),

    /// Accept a disabled client again. It returns within half a minute
    #[command(after_help = "Example:
  sudo adit server client enable laptop")]
    Enable(ClientEnable),

    /// End a client's session. The client may connect again
    #[command(after_help = "Example:
  sudo adit server client kick laptop")]
    Kick(ClientName),

    /// Print the lines that profiles need after a change of the host or port, without a new
    /// certificate
    #[command(after_help = "Examples:
  sudo adit server client remotes
  sudo adit server client remotes --done laptop   laptop's profile has them")]
    Remotes(ClientRemotes),
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

    /// A fixed address inside the tunnel, IPv4 or IPv6 (repeatable: one of each)
    #[arg(long, alias = "ip", value_name = "ADDR")]
    pub address: Vec<IpAddr>,

    /// Keep the profile, with its private key, on the server, to print it again
    #[arg(long)]
    pub keep_profile: bool,

    /// A group for filter rules (@group:NAME) (repeatable)
    #[arg(long, value_name = "NAME", add = complete::group())]
    pub group: Vec<String>,

    /// The file for the profile; - for stdout [default: NAME.ovpn on a terminal, else stdout]
    #[arg(long, short, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub output: Option<PathBuf>,

    #[command(flatten)]
    pub link: Link,

    #[command(flatten)]
    pub location: Location,
}

/// The options of a link that hands out a profile once.
#[derive(Debug, Args)]
#[command(next_help_heading = "A link instead of a file")]
pub(crate) struct Link {
    /// Hand the profile out once, over https, within ten minutes; then end
    #[arg(long, conflicts_with = "output")]
    pub link: bool,

    /// The same, with the link as a QR code for OpenVPN Connect
    #[arg(long, conflicts_with = "output")]
    pub qr: bool,

    /// The address and port of the link [default: port 8443 of every address]
    #[arg(long, value_name = "ADDR:PORT", conflicts_with = "output")]
    pub listen: Option<SocketAddr>,

    /// The link's certificate chain in PEM [default: one that only its fingerprint identifies]
    #[arg(long, value_name = "FILE", requires = "key", value_hint = ValueHint::FilePath)]
    pub cert: Option<PathBuf>,

    /// The key of this certificate in PEM
    #[arg(long, value_name = "FILE", requires = "cert", value_hint = ValueHint::FilePath)]
    pub key: Option<PathBuf>,
}

/// A value, or `none`, which removes the former one.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct OrNone<T>(pub Option<T>);

impl<T: FromStr> FromStr for OrNone<T> {
    type Err = T::Err;

    fn from_str(text: &str) -> Result<Self, T::Err> {
        if text == "none" { Ok(Self(None)) } else { text.parse().map(|value| Self(Some(value))) }
    }
}

#[derive(Debug, Args)]
pub(crate) struct ClientSet {
    /// The name of the client
    #[arg(add = complete::client())]
    pub name: String,

    /// A fixed address inside the tunnel, IPv4 or IPv6 (repeatable: one of each), or none. Its
    /// session ends
    #[arg(long, value_name = "ADDR")]
    pub address: Vec<OrNone<IpAddr>>,

    /// A note for you, shown by list and show; an empty one removes it
    #[arg(long, value_name = "TEXT")]
    pub note: Option<String>,

    /// A network behind the client, which the server routes to it (repeatable; these replace the
    /// former ones), or none
    #[arg(long, value_name = "NET")]
    pub network: Vec<OrNone<IpNet>>,

    /// A client (@client:NAME) or group (@group:NAME) that gets no route to these networks
    /// (repeatable; these replace the former ones), or none
    #[arg(long, value_name = "WHO")]
    pub hide_from: Vec<OrNone<Member>>,

    /// The most traffic in both directions: SIZE/day or SIZE/month (UTC), such as 20GB/month, or
    /// none
    #[arg(long, value_name = "QUOTA")]
    pub quota: Option<OrNone<Quota>>,

    /// The highest speed: 20Mbit, or up=5Mbit,down=20Mbit (up: from the client), or none
    #[arg(long, value_name = "RATE")]
    pub rate: Option<OrNone<ClientRate>>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ClientRename {
    /// The name of the client
    #[arg(add = complete::client())]
    pub name: String,

    /// The new name
    pub new_name: String,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct ClientDelete {
    /// The name of the client
    #[arg(add = complete::any_client())]
    pub name: String,

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
    pub link: Link,

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

    /// Print the client's profile, if the server keeps it
    #[arg(long, conflicts_with = "json")]
    pub profile: bool,

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
