//! The arguments of `adit tinc`, which are tinc's.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};

#[derive(Debug, Args)]
#[command(disable_help_subcommand = true)]
pub(crate) struct Tinc {
    /// The net, whose files are in /etc/tinc/NET [default: that of the variable NETNAME, or the net in /etc/tinc itself]
    #[arg(short, long, value_name = "NET")]
    pub net: Option<String>,

    /// The directory with the net's files, instead of one in /etc/tinc
    #[arg(short, long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub config: Option<PathBuf>,

    /// The file with the daemon's process id and cookie [default: /run/tinc.NET.pid]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub pidfile: Option<PathBuf>,

    /// Do not ask questions
    #[arg(short, long)]
    pub batch: bool,

    /// Continue where a warning would end the command, and replace existing files
    #[arg(long)]
    pub force: bool,

    /// Print the version
    #[arg(long)]
    pub version: bool,

    #[command(subcommand)]
    pub command: Option<Command>,
}

/// A line of a script.
#[derive(Debug, Parser)]
#[command(no_binary_name = true, disable_help_subcommand = true)]
pub(crate) struct Line {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Create the files of a new node: its name, its keys, and a script to edit
    #[command(after_help = "Example:
  sudo adit tinc -n vpn init alice")]
    Init {
        /// The name of the node
        name: Option<String>,
    },

    /// Print the values of a variable
    #[command(after_help = "Examples:
  adit tinc -n vpn get Port
  adit tinc -n vpn get bob.Address")]
    Get {
        /// The variable, after the name of a node and a dot for one in its host file
        #[arg(value_name = "[NODE.]VARIABLE", required = true, trailing_var_arg = true)]
        words: Vec<String>,
    },

    /// Set a variable, and remove its other values
    #[command(after_help = "Examples:
  sudo adit tinc -n vpn set Mode switch
  sudo adit tinc -n vpn set bob.Address vpn.example.net")]
    Set {
        /// The variable and its value
        #[arg(
            value_name = "[NODE.]VARIABLE VALUE",
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true
        )]
        words: Vec<String>,
    },

    /// Add a value to a variable, or set one that can have only one
    #[command(after_help = "Examples:
  sudo adit tinc -n vpn add ConnectTo bob
  sudo adit tinc -n vpn add Subnet 192.168.1.0/24")]
    Add {
        /// The variable and its value
        #[arg(
            value_name = "[NODE.]VARIABLE VALUE",
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true
        )]
        words: Vec<String>,
    },

    /// Remove a variable, or one of its values
    #[command(after_help = "Example:
  sudo adit tinc -n vpn del ConnectTo bob")]
    Del {
        /// The variable, and perhaps the value to remove
        #[arg(
            value_name = "[NODE.]VARIABLE [VALUE]",
            required = true,
            trailing_var_arg = true,
            allow_hyphen_values = true
        )]
        words: Vec<String>,
    },

    /// Generate new keys. Old ones become comments
    #[command(after_help = "Example:
  sudo adit tinc -n vpn generate-keys

adit generates no RSA key, because only tinc 1.0 uses it.")]
    GenerateKeys {
        /// The length of an RSA key; not used
        #[arg(hide = true)]
        bits: Option<u32>,
    },

    /// Refused: RSA keys belong to tinc 1.0
    #[command(
        hide = true,
        after_help = "Example:
  sudo adit tinc -n vpn generate-ed25519-keys   in its place"
    )]
    GenerateRsaKeys {
        #[arg(hide = true)]
        bits: Option<u32>,
    },

    /// Generate a new key. Old ones become comments
    #[command(
        name = "generate-ed25519-keys",
        after_help = "Example:
  sudo adit tinc -n vpn generate-ed25519-keys"
    )]
    GenerateEd25519Keys,

    /// Print this node's host file, for the other nodes
    #[command(after_help = "Example:
  adit tinc -n vpn export | ssh bob adit tinc -n vpn import")]
    Export,

    /// Print all host files
    #[command(after_help = "Example:
  adit tinc -n vpn export-all > hosts.txt")]
    ExportAll,

    /// Write the host files in the input. --force replaces existing ones
    #[command(after_help = "Example:
  sudo adit tinc -n vpn import < hosts.txt")]
    Import,

    /// Print this node's host file, and write those in the input
    #[command(after_help = "Example:
  adit tinc -n vpn exchange < bob.txt > alice.txt")]
    Exchange,

    /// Print all host files, and write those in the input
    #[command(after_help = "Example:
  adit tinc -n vpn exchange-all < theirs.txt > ours.txt")]
    ExchangeAll,

    /// Invite a node, and print the URL that it needs to join
    #[command(after_help = "Example:
  sudo adit tinc -n vpn invite bob

The URL lets one node join, once. This node needs an Address in its host file.")]
    Invite {
        /// The name of the new node
        node: String,
    },

    /// Accept an invitation, and create the files of this node
    #[command(after_help = "Examples:
  sudo adit tinc join vpn.example.net/SECRET
  sudo adit tinc -n vpn join < invitation.txt

Without -n and -c, the invitation names the net.")]
    Join {
        /// The URL that the inviter printed; without it, a line of the input
        url: Option<String>,
    },

    /// Print a file, or the input, with this node's signature before it
    #[command(after_help = "Example:
  adit tinc -n vpn sign hosts.txt > hosts.signed")]
    Sign {
        /// The file
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
    },

    /// Check the signature of a file, or of the input, and print the file without it
    #[command(after_help = "Examples:
  adit tinc -n vpn verify alice hosts.signed > hosts.txt
  adit tinc -n vpn verify '*' hosts.signed   a signature of any known node")]
    Verify {
        /// The node that must have signed it; . for this one, * for any
        node: String,
        /// The file
        #[arg(value_hint = ValueHint::FilePath)]
        file: Option<PathBuf>,
    },

    /// Open a file of the configuration in the editor that VISUAL or EDITOR names
    #[command(after_help = "Examples:
  sudo adit tinc -n vpn edit tinc.conf
  sudo adit tinc -n vpn edit bob")]
    Edit {
        /// tinc.conf, a script, or the name of a node
        file: String,
    },

    /// Find mistakes in the configuration. --force corrects some
    #[command(after_help = "Example:
  sudo adit tinc -n vpn fsck")]
    Fsck,

    /// List the nets of this machine, or switch to one in a script
    #[command(after_help = "Example:
  adit tinc network")]
    Network {
        /// The net for the commands that follow
        name: Option<String>,
    },

    /// Print the version
    #[command(after_help = "Example:
  adit tinc version")]
    Version,

    /// Print the commands
    #[command(
        hide = true,
        after_help = "Example:
  adit tinc help"
    )]
    Help,

    /// Start the daemon, and wait until it is up
    #[command(after_help = "Examples:
  sudo adit tinc -n vpn start
  sudo adit tinc -n vpn start -d 2 --logfile")]
    Start {
        /// Options of tincd, which tincd --help lists
        #[arg(value_name = "OPTION", trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },

    /// Stop the daemon if it runs, and start it again
    #[command(after_help = "Example:
  sudo adit tinc -n vpn restart")]
    Restart {
        /// Options of tincd, which tincd --help lists
        #[arg(value_name = "OPTION", trailing_var_arg = true, allow_hyphen_values = true)]
        options: Vec<String>,
    },

    /// Stop the daemon
    #[command(after_help = "Example:
  sudo adit tinc -n vpn stop")]
    Stop,

    /// Make the daemon read its files again
    #[command(after_help = "Example:
  sudo adit tinc -n vpn reload")]
    Reload,

    /// Print the daemon's process id
    #[command(after_help = "Example:
  sudo adit tinc -n vpn pid")]
    Pid,

    /// Print what the daemon knows
    #[command(after_help = "Examples:
  sudo adit tinc -n vpn dump reachable nodes
  sudo adit tinc -n vpn dump nodes --json | jq '.[].name'
  sudo adit tinc -n vpn dump graph | dot -Tsvg > net.svg")]
    Dump {
        /// What to print
        #[arg(value_enum, required = true, num_args = 1..=2)]
        what: Vec<Dump>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },

    /// Print what the daemon knows about a node, a subnet or an address
    #[command(after_help = "Examples:
  sudo adit tinc -n vpn info bob
  sudo adit tinc -n vpn info 192.168.1.7 --json")]
    Info {
        /// A node, a subnet, or an address
        #[arg(value_name = "NODE|SUBNET|ADDRESS")]
        item: String,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },

    /// Make the daemon forget unreachable nodes
    #[command(after_help = "Example:
  sudo adit tinc -n vpn purge")]
    Purge,

    /// Set the daemon's debug level
    #[command(after_help = "Example:
  sudo adit tinc -n vpn debug 3")]
    Debug {
        /// From 0 to 5; -1 to only ask
        #[arg(allow_negative_numbers = true)]
        level: i32,
    },

    /// Make the daemon connect again at once
    #[command(after_help = "Example:
  sudo adit tinc -n vpn retry")]
    Retry,

    /// End the daemon's connection with a node
    #[command(after_help = "Example:
  sudo adit tinc -n vpn disconnect bob")]
    Disconnect {
        /// The node
        node: String,
    },

    /// Show the traffic with each node, as it changes
    #[command(after_help = "Examples:
  sudo adit tinc -n vpn top
  sudo adit tinc -n vpn top --json | jq '.[].received.bytes'

Without a terminal, it prints the counters once.")]
    Top {
        /// The seconds between two updates
        #[arg(long, value_name = "SECONDS", default_value_t = 1,
            value_parser = clap::value_parser!(u64).range(1..=3600))]
        every: u64,
        /// Print the counters once, as JSON
        #[arg(long)]
        json: bool,
    },

    /// Print the packets of the daemon's device in the format of pcap
    #[command(after_help = "Example:
  sudo adit tinc -n vpn pcap | tcpdump -n -r -")]
    Pcap {
        /// The number of bytes of each packet; 0 for all
        #[arg(default_value_t = 0, value_name = "BYTES")]
        length: u16,
    },

    /// Print the daemon's log lines
    #[command(after_help = "Example:
  sudo adit tinc -n vpn log 3")]
    Log {
        /// The level of the lines; without it, the daemon's
        level: Option<u8>,
    },
}

/// A word after `dump`.
#[derive(Copy, Clone, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Dump {
    /// Before nodes: only those that can be reached
    Reachable,
    /// All known nodes
    Nodes,
    /// All known connections between nodes
    Edges,
    /// All known subnets
    Subnets,
    /// This node's own connections
    Connections,
    /// A drawing of the net in Graphviz's language
    Graph,
    /// The same with both directions of each connection
    Digraph,
    /// Invitations that were not accepted yet
    Invitations,
}
