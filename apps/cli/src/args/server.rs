//! `adit server`, without the commands for clients, users, backups and the background.

use std::net::IpAddr;
use std::path::PathBuf;

use adit_app_server::{Listen, Nat};
use clap::{Args, Subcommand, ValueEnum, ValueHint};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use super::{
    AuditOptions, Backup, Client, Location, LogOptions, Restore, ServeMetrics, ServerStatus,
    StartServer, User, network,
};

#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum Server {
    /// Create missing settings and keys, check this machine, run the server and test it, all in one command
    #[command(after_help = "Examples:
  sudo adit server up --client laptop
  sudo adit server up --host vpn.example.net --full-tunnel --dns 9.9.9.9

Safe to repeat: existing files are kept, and a running server keeps running.")]
    Up(Up),

    /// Create settings, certificate authority and keys, without changing existing ones
    #[command(after_help = "Examples:
  sudo adit server init --host vpn.example.net
  sudo adit server init --dry-run   only show the settings that it would choose")]
    Init(Init),

    /// Run the server until it is stopped, and undo its changes to this machine
    #[command(after_help = "Example:
  sudo adit server run")]
    Run(Run),

    /// Run the server in the background: as adit-server.service, or under a supervisor where there is no systemd
    #[command(after_help = "Example:
  sudo adit server start")]
    Start(StartServer),

    /// Stop the server, in the background or not
    #[command(after_help = "Example:
  sudo adit server stop")]
    Stop(Location),

    /// Show whether the server runs and what keeps it running. Exit code 0 if it runs
    #[command(after_help = "Examples:
  sudo adit server status
  sudo adit server status --json")]
    Status(ServerStatus),

    /// Print the log of the server in the background
    #[command(after_help = "Examples:
  sudo adit server logs
  sudo adit server logs -f -n 5")]
    Logs(LogOptions),

    /// Leave the sessions of the running server to the process that the service manager starts next
    #[command(after_help = "Example, as adit-server.service has it:
  ExecStop=-/usr/bin/adit server hand-over --if-restarting %n

Sockets, device and sessions pass to the next process through the service
manager's file descriptor store. If they cannot, for example because the version
or the settings have changed too much, the server keeps running, and the command
fails with the reason.")]
    HandOver(HandOver),

    /// Start the server whenever the machine starts (systemd)
    #[command(after_help = "Example:
  sudo adit server enable")]
    Enable(Location),

    /// No longer start the server when the machine starts
    #[command(after_help = "Example:
  sudo adit server disable")]
    Disable(Location),

    /// Show who changed the server, its clients and users, and when
    #[command(after_help = "Examples:
  sudo adit server audit
  sudo adit server audit --json | jq -r '.[].verb'")]
    Audit(AuditOptions),

    /// Add, list and manage clients
    #[command(
        subcommand,
        after_help = "Example:
  sudo adit server client add laptop"
    )]
    Client(Client),

    /// Add, list and manage users, who log in with a password and possibly a one-time code
    #[command(
        subcommand,
        after_help = "Example:
  sudo adit server user add alice --totp"
    )]
    User(User),

    /// Write the whole state of the server into one file, sealed under a passphrase
    #[command(after_help = "Examples:
  sudo adit server backup vpn.backup
  sudo adit server backup - --passphrase-file phrase | ssh host 'cat > vpn'

The server may keep running.")]
    Backup(Backup),

    /// Restore the state of a server from a backup, completely or not at all
    #[command(after_help = "Example:
  sudo adit server restore vpn.backup")]
    Restore(Restore),
}

#[derive(Debug, Clone, Args)]
pub(crate) struct HandOver {
    #[command(flatten)]
    pub location: Location,
    /// Do nothing unless systemd is restarting this unit
    #[arg(long, value_name = "UNIT")]
    pub if_restarting: Option<String>,
    /// The server is this process of `adit openvpn`
    #[arg(long, value_name = "PID", conflicts_with = "dir")]
    pub process: Option<u32>,
}

#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Choices {
    /// The port to listen on: udp/PORT, tcp/PORT or udp/ADDRESS:PORT (repeatable) [default: udp/1194]
    #[arg(long, value_name = "udp/PORT")]
    pub listen: Vec<Listen>,

    /// The name or address that clients dial [default: the address of this machine's default route]
    #[arg(long, value_name = "NAME")]
    pub host: Option<String>,

    /// The network inside the tunnel [default: a random free /24 in 10.0.0.0/8]
    #[arg(long, value_name = "CIDR", value_parser = network::<Ipv4Net>)]
    pub network: Option<Ipv4Net>,

    /// The IPv6 network inside the tunnel [default: a random ULA /64]
    #[arg(long, value_name = "CIDR", value_parser = network::<Ipv6Net>)]
    pub network6: Option<Ipv6Net>,

    /// Make clients send all traffic through the tunnel [default: only traffic to the tunnel's network]
    #[arg(long, conflicts_with = "route")]
    pub full_tunnel: bool,

    /// A network behind the server that clients reach through the tunnel (repeatable)
    #[arg(long, value_name = "CIDR", value_parser = network::<IpNet>)]
    pub route: Vec<IpNet>,

    /// A name server for the clients (repeatable)
    #[arg(long, value_name = "ADDR")]
    pub dns: Vec<IpAddr>,

    /// Whether to masquerade clients' traffic with this machine's address [default: auto]
    #[arg(long, value_name = "auto|off")]
    pub nat: Option<NatChoice>,

    /// The number of threads that move packets [default: the number of cores, but one on 2 cores and at most 16]
    #[arg(long, value_name = "N")]
    pub workers: Option<u16>,

    /// The file with rules for packets in the tunnel; see `adit filter --help`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub filter: Option<PathBuf>,
}

#[derive(Debug, Copy, Clone, ValueEnum)]
pub enum NatChoice {
    /// Masquerade packets that leave on a device other than the tunnel's
    Auto,
    /// Do not masquerade; the network behind the server needs a route back to the clients
    Off,
}

impl From<NatChoice> for Nat {
    fn from(choice: NatChoice) -> Self {
        match choice {
            NatChoice::Auto => Self::Auto,
            NatChoice::Off => Self::Off,
        }
    }
}

#[derive(Debug, Args)]
pub(crate) struct Init {
    #[command(flatten)]
    pub choices: Choices,

    /// Only show what the command would write
    #[arg(long)]
    pub dry_run: bool,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct Run {
    /// Print more log lines (repeatable)
    #[arg(long, short, action = clap::ArgAction::Count)]
    pub verbose: u8,

    /// The number of threads that move packets, instead of the number in the settings
    #[arg(long, value_name = "N")]
    pub workers: Option<u16>,

    #[command(flatten)]
    pub serve: ServeMetrics,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct Up {
    /// Also add a client with this name, if it does not exist
    #[arg(long, value_name = "NAME")]
    pub client: Option<String>,

    /// Print more log lines (repeatable)
    #[arg(long, short, action = clap::ArgAction::Count)]
    pub verbose: u8,

    #[command(flatten)]
    pub choices: Choices,

    #[command(flatten)]
    pub serve: ServeMetrics,

    #[command(flatten)]
    pub location: Location,
}
