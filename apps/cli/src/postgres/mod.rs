//! `adit postgres`.

mod demo;
mod log;
mod members;
mod settings;
pub(crate) mod show;
mod up;

use std::path::PathBuf;
use std::process::ExitCode;

use adit_app_postgres::Paths;
use adit_runtime::fault::Fault;
use clap::{Args, Subcommand, ValueHint};

#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum Postgres {
    /// Create a network in a database, with this machine as its first node
    #[command(after_help = "Examples:
  sudo adit postgres init postgres://admin@db.example/vpn --network 10.9.0.0/24
  sudo adit postgres init service=vpn --network 10.9.0.0/24 --audit none
  sudo adit postgres init - --network 10.9.0.0/24 < url   the URL from a file

The database (PostgreSQL 15 or later) must exist (createdb vpn), and the role
must be allowed to create roles (CREATEROLE). Passwords come from ~/.pgpass, a
service file, PGPASSWORD or a prompt. Without sslmode, a connection to any other
machine uses TLS. Safe to repeat.")]
    Init(Box<members::Init>),

    /// Make this machine a node, with the output of `init` or `invite` on another machine
    #[command(after_help = "Examples:
  sudo adit postgres join - --route 192.168.7.0/24 < invitation")]
    Join(members::Join),

    /// Run this machine's node, which exchanges packets with the others through the database
    #[command(after_help = "Examples:
  sudo adit postgres up
  sudo adit postgres up -n vpn   if this machine is in several networks")]
    Up(up::Up),

    /// Show the database, the running node, and the progress of each stream
    #[command(after_help = "Example:
  sudo adit postgres status --json

The exit code is 1 if the node is not running or the database does not answer.")]
    Status(show::Show),

    /// Show the other nodes with their addresses, streams, keys, rates over a second, and drops
    #[command(after_help = "Example:
  sudo adit postgres peers")]
    Peers(show::Show),

    /// Create an invitation for one more node, which works once
    #[command(after_help = "Example:
  sudo adit postgres invite --valid 1h

Only the machine that ran `init` may invite.")]
    Invite(members::Invite),

    /// Remove a node permanently, with immediate effect, and give the others a new network key. Its packets stay in the
    /// log
    #[command(after_help = "Example:
  sudo adit postgres remove laptop")]
    Remove(members::Remove),

    /// Give the network a new key, for example after a node's files may have been copied
    #[command(after_help = "Example:
  sudo adit postgres rekey

Running nodes take the key within seconds without losing packets, others when
they start. Open invitations become invalid. `remove` also gives a new key.")]
    Rekey(members::Rekey),

    /// Change the network's retention, audit policy, durability or packet size
    #[command(after_help = "Examples:
  sudo adit postgres set --retention 20GB --retention-age 90d
  sudo adit postgres set --audit none

The node that created the network signs the settings; running nodes apply them
without a restart.")]
    Set(settings::Set),

    /// Add or remove the auditor, who can read all traffic from then on
    #[command(subcommand)]
    #[command(after_help = "Examples:
  sudo adit postgres auditor add auditor.key
  sudo adit postgres auditor remove")]
    Auditor(settings::Auditor),

    /// Drop the packets that exceed the network's retention, together with their keys
    #[command(after_help = "Example:
  sudo adit postgres expire

Every running node does the same automatically.")]
    Expire(members::Expire),

    /// Check that no row of the log is missing, altered or added
    #[command(after_help = "Examples:
  sudo adit postgres verify                   rows addressed to this node
  adit postgres verify --url postgres://auditor@db.example/vpn --key auditor.key

Without a key, it checks only numbers, signatures and the order of the records.
Expired rows are named but are not a finding. Exits with 1 if it has findings.")]
    Verify(log::Verify),

    /// Write the logged packets as a capture for Wireshark
    #[command(after_help = "Examples:
  sudo adit postgres export --since 10m --pcapng - | tcpdump -r -
  adit postgres export --since 2h --from berlin --pcapng berlin.pcapng")]
    Export(log::Export),

    /// Print a line for each packet
    #[command(after_help = "Example:
  sudo adit postgres tail -f")]
    Tail(log::Tail),

    /// Demonstrate a network with a temporary database and two otherwise isolated machines, and show their packets as
    /// rows
    #[command(after_help = "Examples:
  sudo adit postgres demo
  sudo adit postgres demo --hold   leave it up to look around, until Ctrl-C

Needs root, /dev/net/tun and PostgreSQL's programs (apt install postgresql). It
does not touch the host's clusters, and removes everything that it made.")]
    Demo(crate::args::Demo),
}

/// Selects the node of a network.
#[derive(Debug, Args)]
pub(crate) struct NodeSelector {
    /// The name of the network on this machine, if it is in several
    #[arg(short, long, value_name = "NAME")]
    pub network_name: Option<String>,

    /// Use files below this directory instead of in /etc/adit, /var/lib/adit and /run/adit
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

impl NodeSelector {
    /// Returns the paths of that node's files.
    pub(crate) fn paths(&self) -> Result<Paths, Fault> {
        Paths::find(self.dir.as_deref(), self.network_name.as_deref())
    }
}

pub(crate) fn run(verb: Postgres) -> Result<ExitCode, Fault> {
    match verb {
        Postgres::Init(options) => members::init(*options),
        Postgres::Join(options) => members::join(options),
        Postgres::Up(options) => options.run(),
        Postgres::Status(options) => show::status(&options),
        Postgres::Peers(options) => show::peers(&options),
        Postgres::Invite(options) => members::invite(&options),
        Postgres::Remove(options) => members::remove(&options),
        Postgres::Rekey(options) => members::rekey(&options),
        Postgres::Set(options) => settings::set(&options),
        Postgres::Auditor(verb) => settings::auditor(&verb),
        Postgres::Expire(options) => members::expire(&options),
        Postgres::Verify(options) => log::verify(options),
        Postgres::Export(options) => log::export(options),
        Postgres::Tail(options) => log::tail(options),
        Postgres::Demo(options) => demo::run(&options),
    }
}
