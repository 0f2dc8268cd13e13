//! The command line as a clap definition, from which help, completions and man pages are generated.

mod background;
mod backup;
mod clients;
mod connect;
mod server;
mod users;

use std::ffi::OsString;
use std::net::IpAddr;
use std::path::PathBuf;
use std::str::FromStr;
#[cfg(any(feature = "mesh", feature = "postgres"))]
use std::time::Duration;

use clap::builder::styling::{AnsiColor, Styles};
use clap::{Args, Parser, Subcommand, ValueEnum, ValueHint};
use clap_complete::Shell;

pub(crate) use background::{
    AuditOptions, DownProfile, ListProfiles, LogOptions, ProfileLog, ServerStatus, StartServer,
    UpProfile,
};
pub(crate) use backup::{Backup, Restore};
pub(crate) use clients::{
    Client, ClientAdd, ClientGroup, ClientList, ClientRemotes, ClientRenew, ClientSet, ClientShow,
    Link, OrNone,
};
pub(crate) use connect::{Connect, Switch};
pub(crate) use server::{Choices, HandOver, Init, Server, Up};
pub(crate) use users::{User, UserAdd, UserBind, UserGroup, UserPassword, UserProfile, UserTotp};

use crate::complete;

const STYLES: Styles = Styles::styled()
    .header(AnsiColor::Green.on_default().bold())
    .usage(AnsiColor::Green.on_default().bold())
    .literal(AnsiColor::Cyan.on_default().bold())
    .placeholder(AnsiColor::Cyan.on_default());

/// A VPN for Linux in one memory-safe binary that speaks OpenVPN's protocol.
#[derive(Debug, Parser)]
#[command(
    name = "adit",
    version,
    styles = STYLES,
    max_term_width = 100,
    subcommand_required = true,
    arg_required_else_help = true,
    disable_help_subcommand = true,
    after_help = "Examples:
  sudo adit server up --client laptop   a VPN server, and a profile for a client
  sudo adit up laptop.ovpn              that client, in the background
  sudo adit connect laptop.ovpn         the same at a terminal, until Ctrl-C
  sudo adit demo                        see it work between two namespaces

Exit codes: 0 done, 1 failed, 2 usage or configuration."
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub verb: Verb,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Verb {
    /// Set up and run a VPN server, and manage its clients
    #[command(
        subcommand,
        after_help = "Example:
  sudo adit server up --client laptop"
    )]
    Server(Server),

    /// Connect to a server with an OpenVPN profile
    #[command(after_help = "Examples:
  sudo adit connect laptop.ovpn
  sudo adit connect --check laptop.ovpn   try every stage, name what fails
  sudo adit connect --kill-switch laptop.ovpn
  sudo adit connect --release             let traffic out again")]
    Connect(Connect),

    /// Connect with an OpenVPN profile in the background, and stay connected after the terminal is closed
    #[command(after_help = "Examples:
  sudo adit up laptop.ovpn          copies the profile to /etc/adit/connect
  sudo adit up laptop               the same profile, later
  sudo adit up --boot laptop        also whenever the machine starts

Exit codes: 0 the tunnel is up, 1 it is not, 2 the profile is wrong.")]
    Up(UpProfile),

    /// Disconnect a client in the background
    #[command(after_help = "Example:
  sudo adit down laptop")]
    Down(DownProfile),

    /// List the profiles of clients in the background, and their state
    #[command(after_help = "Examples:
  sudo adit list
  sudo adit list --json | jq -r '.[] | select(.state == \"up\") | .name'")]
    List(ListProfiles),

    /// Print the log of a client in the background
    #[command(after_help = "Examples:
  sudo adit logs laptop
  sudo adit logs -f laptop   and what follows, until Ctrl-C")]
    Logs(ProfileLog),

    /// Show running instances with their peers, rates, drops by reason, key ages and offloads
    #[command(after_help = "Examples:
  sudo adit status
  sudo adit status --json | jq '.[].peers[].name'")]
    Status(Status),

    /// Show sessions and their rates on the whole terminal, or print them once elsewhere
    #[command(after_help = "Examples:
  sudo adit top --every 2
  sudo adit top --sort traffic
  sudo adit top | head -20    one page; a terminal shows it until q is pressed")]
    Top(Top),

    #[cfg(feature = "bridge")]
    /// Bridge two interfaces, and forward all frames or those that rules accept
    #[command(after_help = "Examples:
  sudo adit bridge eth1 eth2 --rules fw.nft
  sudo adit bridge tap:private tap:public --relay

The bridge is transparent: stations on both sides see each other as on one
cable, and the host's own stack sees none of the frames. It runs until stopped.")]
    Bridge(crate::bridge::Bridge),

    /// Not part of this build
    #[cfg(not(feature = "bridge"))]
    #[command(hide = true, disable_help_flag = true)]
    Bridge(LeftOut),

    /// Check rule files, and find out which rule applies to a packet
    #[command(
        subcommand,
        after_help = "Examples:
  adit filter check fw.nft
  adit filter explain fw.nft 'tcp 10.0.0.1:4000 > 10.0.0.2:80 syn'
  sudo adit filter show"
    )]
    Filter(crate::filter::Filter),

    #[cfg(feature = "mesh")]
    /// Connect machines directly to each other, without a server
    #[command(
        subcommand,
        after_help = "Examples:
  sudo adit mesh up     on the first machine; it prints a token for the next one
  sudo adit mesh join   on the others, which ask for the token
  ping 100.87.0.1"
    )]
    Mesh(crate::mesh::Mesh),

    /// Not part of this build
    #[cfg(not(feature = "mesh"))]
    #[command(hide = true, disable_help_flag = true)]
    Mesh(LeftOut),

    #[cfg(feature = "postgres")]
    /// Connect machines through a common PostgreSQL database, in which every packet is a row
    #[command(
        subcommand,
        after_help = "Examples:
  sudo adit postgres init postgres://admin@db.example/vpn --network 10.9.0.0/24
  sudo adit postgres join -   on other machines, with the URL that init printed
  sudo adit postgres up"
    )]
    Postgres(crate::postgres::Postgres),

    /// Not part of this build
    #[cfg(not(feature = "postgres"))]
    #[command(hide = true, disable_help_flag = true)]
    Postgres(LeftOut),

    #[cfg(feature = "tinc")]
    /// Manage a net of tinc 1.1: its files, keys and invitations, and a running daemon
    #[command(after_help = "Examples:
  adit tinc -n vpn init alice
  adit tinc -n vpn add ConnectTo bob
  sudo adit tinc -n vpn dump nodes

The commands are those of tinc. adit behaves the same if it is called as tinc.
Without a command, it reads commands from its input, one a line.")]
    Tinc(crate::tinc::Tinc),

    /// Not part of this build
    #[cfg(not(feature = "tinc"))]
    #[command(hide = true, disable_help_flag = true)]
    Tinc(LeftOut),

    /// Behave like `openvpn`, with its options, config files and log lines
    #[command(
        disable_help_flag = true,
        disable_version_flag = true,
        after_help = "Example:
  sudo adit openvpn --config client.ovpn

All arguments are openvpn's. adit behaves the same if it is called as openvpn."
    )]
    Openvpn {
        /// The options of openvpn
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
        options: Vec<OsString>,
    },

    /// Make a server read its settings, rules, clients and certificates again, without dropping tunnels
    #[command(after_help = "Examples:
  sudo adit reload                the server of `adit server`
  sudo adit reload openvpn-1234   another process, by its name in `adit status`

It prints which changes took effect, which need a restart, and which clients'
profiles are out of date.")]
    Reload(Reload),

    /// End a client's sessions on every server on this machine. The client may connect again
    #[command(after_help = "Example:
  sudo adit kick laptop")]
    Kick(Kick),

    /// Check this machine for problems that would prevent a VPN from working, and show how to fix them
    #[command(after_help = "Examples:
  sudo adit doctor
  sudo adit doctor --fix   and repair what can be repaired safely")]
    Doctor(Doctor),

    /// Run a server and a client in two network namespaces of this machine, and measure traffic
    #[command(after_help = "Examples:
  sudo adit demo
  sudo adit demo --hold   leave it up to look around, until Ctrl-C

Needs root and /dev/net/tun. Removes everything that it made when it ends.")]
    Demo(Demo),

    /// Print a shell's completion script for commands, options, and names of clients, groups and processes
    #[command(after_help = "Examples:
  adit completions bash > /etc/bash_completion.d/adit
  adit completions zsh > /usr/local/share/zsh/site-functions/_adit
  adit completions fish > /etc/fish/completions/adit.fish

The script calls this program, so print it again after an upgrade. Names of
clients are completed only for root, who may read the registry.")]
    Completions {
        /// The shell
        shell: Shell,
    },

    /// Write the man pages to a directory
    #[command(after_help = "Example:
  adit man /usr/local/share/man/man1

If the folder is named man1, server.toml(5) and adit-filter(7) go into man5 and
man7 next to it; otherwise all pages go into the folder itself.")]
    Man {
        /// The directory to write to
        #[arg(value_hint = ValueHint::DirPath)]
        dir: PathBuf,
    },
}

/// The arguments of a command that this build does not include.
#[cfg(not(all(feature = "bridge", feature = "mesh", feature = "postgres", feature = "tinc")))]
#[derive(Debug, Args)]
pub(crate) struct LeftOut {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    _arguments: Vec<OsString>,
}

/// Parses a network with its prefix length. Since users often forget the length, the error explains it.
pub(crate) fn network<N: FromStr>(text: &str) -> Result<N, String> {
    text.parse().map_err(|_| match text.parse::<IpAddr>() {
        Ok(IpAddr::V4(_)) => format!("the prefix length is missing; write for example {text}/24"),
        Ok(IpAddr::V6(_)) => format!("the prefix length is missing; write for example {text}/64"),
        Err(_) => "write a network with its prefix length, such as 10.87.31.0/24".into(),
    })
}

/// The option for the metrics of a running instance. Where there is a settings file, the option overrides it.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct ServeMetrics {
    /// Serve metrics for Prometheus at unix:PATH or a port of this machine such as 127.0.0.1:9190
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<adit_runtime::metrics::Config>,
}

/// The option for the directories of an instance.
#[derive(Debug, Clone, Default, Args)]
pub(crate) struct Location {
    /// Keep settings, keys and sockets in this directory instead of /etc/adit, /var/lib/adit and /run/adit
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Status {
    /// Print a JSON list instead of tables
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct Top {
    /// The seconds between two updates
    #[arg(long, value_name = "SECONDS", default_value_t = 1,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub every: u64,

    /// The order of the sessions
    #[arg(long, value_enum, default_value_t = SortKey::Rate)]
    pub sort: SortKey,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Copy, Clone, PartialEq, Eq, ValueEnum)]
pub(crate) enum SortKey {
    /// By bits per second, the busiest first
    Rate,
    /// By total bytes
    Traffic,
    /// By bits per second received
    Received,
    /// By bits per second sent
    Sent,
    /// By duration, the longest first
    Connected,
    /// By name
    Name,
}

#[derive(Debug, Args)]
pub(crate) struct Reload {
    /// The name of the process in `adit status` [default: the server]
    #[arg(add = complete::process())]
    pub name: Option<String>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct Kick {
    /// The name of the client
    #[arg(add = complete::session())]
    pub name: String,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct Doctor {
    /// Apply the fixes that are safe
    #[arg(long)]
    pub fix: bool,

    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct Demo {
    /// Keep the demo running until Ctrl-C, and show how to explore it
    #[arg(long)]
    pub hold: bool,

    /// The seconds for each of the four bulk transfers
    #[arg(long, value_name = "N", default_value_t = 3,
        value_parser = clap::value_parser!(u64).range(1..=3600))]
    pub seconds: u64,

    /// Print the results as JSON
    #[arg(long)]
    pub json: bool,
}

/// Parses a duration such as `90s`, `10m`, `12h` or `30d`.
#[cfg(any(feature = "mesh", feature = "postgres"))]
pub(crate) fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len()));
    let unit = match unit {
        "s" => 1,
        "m" => 60,
        "h" => 3600,
        "d" => 86_400,
        _ => return Err("write a time like 90s, 10m, 12h or 30d".into()),
    };
    let seconds = number.parse::<u32>().ok().and_then(|number| number.checked_mul(unit));
    let seconds = seconds.filter(|seconds| *seconds > 0);
    seconds
        .map(|s| Duration::from_secs(s.into()))
        .ok_or_else(|| "write a time like 90s, 10m, 12h or 30d".into())
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_definition_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_verb_shows_an_example() {
        fn walk(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Example") && help.contains("  "), "{path} has no example");
            command.get_subcommands().for_each(|verb| walk(verb, &path));
        }
        walk(&Cli::command(), "");
    }

    #[test]
    #[cfg(feature = "mesh")]
    fn every_verb_of_the_mesh_prints_json() {
        fn walk(command: &clap::Command, path: &str) {
            let path = format!("{path} {}", command.get_name());
            let has_json = command.get_arguments().any(|it| it.get_long() == Some("json"));
            assert!(command.has_subcommands() || has_json, "{path} has no --json");
            command.get_subcommands().for_each(|verb| walk(verb, &path));
        }
        walk(Cli::command().find_subcommand("mesh").unwrap(), "adit");
    }

    #[test]
    fn the_manuals_name_every_verb_and_option() {
        fn check(command: &clap::Command, page: &str, manual: &str) {
            for option in command.get_arguments().filter_map(clap::Arg::get_long) {
                let option = format!("--{option}");
                let ends =
                    |rest: &str| !rest.starts_with(|c: char| c.is_alphanumeric() || c == '-');
                let named = manual.split(&option).skip(1).any(ends);
                assert!(named, "{page} does not name {} {option}", command.get_name());
            }
            for verb in command.get_subcommands() {
                let name = verb.get_name();
                assert!(manual.contains(&format!("{name} ")), "{page} does not name {name}");
                check(verb, page, manual);
            }
        }
        let cli = Cli::command();
        for (verb, page, manual) in [
            ("server", "server.md", include_str!("../../../docs/server.md")),
            ("connect", "client.md", include_str!("../../../docs/client.md")),
        ] {
            check(cli.find_subcommand(verb).unwrap(), page, manual);
        }
    }

    /// Splits a command line at spaces outside of double quotes, up to a comment, pipe or redirection.
    fn shell_words(line: &str) -> Vec<String> {
        let (mut words, mut quoted) = (vec![String::new()], false);
        for c in line.chars() {
            match c {
                '"' => quoted = !quoted,
                '#' | '|' | '>' if !quoted => break,
                ' ' if !quoted => words.push(String::new()),
                c => words.last_mut().unwrap().push(c),
            }
        }
        words.retain(|word| !word.is_empty());
        words
    }

    #[test]
    fn the_commands_of_the_guides_are_valid() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guides");
        let mut commands = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).unwrap();
            for line in text.lines().filter_map(|line| line.trim().strip_prefix("$ ")) {
                let line = line.strip_prefix("sudo ").unwrap_or(line);
                // `adit openvpn` parses its own arguments.
                if !line.starts_with("adit ") || line.starts_with("adit openvpn") {
                    continue;
                }
                commands += 1;
                let parsed = Cli::try_parse_from(shell_words(line));
                assert!(parsed.is_ok(), "{}: {line}: {:?}", path.display(), parsed.err());
            }
        }
        assert!(commands >= 40, "{commands} commands");
    }

    #[test]
    fn examples_and_notes_fit_a_terminal() {
        fn walk(command: &clap::Command) {
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            let wide = help.lines().find(|line| line.chars().count() > 80);
            assert_eq!(wide, None, "{}", command.get_name());
            command.get_subcommands().for_each(walk);
        }
        walk(&Cli::command());
    }

    fn parse(line: &str) -> Result<Cli, clap::Error> {
        Cli::try_parse_from(line.split_whitespace())
    }

    #[test]
    fn the_help_of_invite_says_who_may() {
        let help = Cli::try_parse_from(["adit", "postgres", "invite", "--help"]).unwrap_err();
        assert!(help.to_string().contains("Only the machine that ran `init` may invite"), "{help}");
    }

    #[test]
    fn reads_what_the_guide_shows() {
        for line in [
            "adit server up --client laptop",
            "adit server up --host h --full-tunnel --dns 9.9.9.9 --dns 2620:fe::fe",
            "adit server init --listen udp/1194 --listen tcp/10.0.0.1:443 --dry-run",
            "adit server init --network 10.3.0.0/24 --network6 fd00::/64 --route 10.9.0.0/16",
            "adit server run --dir /tmp/x --metrics unix:/run/adit/server.metrics",
            "adit server up --metrics 127.0.0.1:9190",
            "adit server client add a --days 30 --password --ip 10.3.0.9 -o -",
            "adit server user add alice --totp --group staff --client laptop",
            "adit server user add alice --password-stdin",
            "adit server user add alice --no-password",
            "adit server user list --json",
            "adit server user totp alice --off",
            "adit server user bind alice",
            "adit server user profile alice -o -",
            "adit server client list --json",
            "adit server client add a --group staff --group ops",
            "adit server client group a staff ops",
            "adit server up --filter rules.nft",
            "adit filter show server --flows --json",
            "adit filter reload fw.nft --dir /tmp/x",
            "adit filter reload server fw.nft",
            "adit filter capture - --group 3",
            "adit filter element add blocked 10.0.0.1 timeout 1h",
            "adit filter element delete --name office inet t blocked { 10.0.0.1, 10.0.0.2 }",
            "adit connect --check --json x.ovpn",
            "adit status --json",
            "adit doctor --fix",
            "adit demo --hold",
            "adit bridge eth1 eth2 --rules fw.nft --workers 2 --name office",
            "adit bridge tap:private tap:public --relay --mtu 9000",
            "adit bridge --settings /etc/adit/bridge/office.toml -v",
            "adit bridge a b --relay --routed --address a=10.0.1.1/24 --neighbour 10.0.1.5=02:00:00:00:00:05",
            "adit bridge eth1 tap:in --relay --routed --address eth1=10.0.1.1/24 --address in=fd00::1/64",
            "adit completions zsh",
        ] {
            parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
        }
    }

    #[test]
    fn a_mistake_is_a_usage_error_that_says_what_to_write() {
        for (line, said) in [
            ("adit server init --listen sctp/443", "write udp/1194 or tcp/443"),
            ("adit server init --full-tunnel --route 10.0.0.0/8", "cannot be used with"),
            ("adit server client add x --days 0", "1..=36500"),
            ("adit sevrer", "server"),
            ("adit server init --network 10.9.0.0", "write for example 10.9.0.0/24"),
            ("adit server init --route fd00::", "write for example fd00::/64"),
            ("adit bridge eth1 eth2", "--relay"),
            ("adit bridge eth1 tap:a/b --relay", "tap:private"),
            ("adit bridge eth1 --relay", "PORT"),
            ("adit bridge eth1 eth2", "--rules"),
            ("adit bridge eth1 eth2 --relay --routed", "--address"),
            ("adit bridge eth1 eth2 --relay --address eth1=10.0.1.1/24", "--routed"),
            ("adit bridge eth1 eth2 --relay --routed --address 10.0.1.1/24", "eth1=10.0.1.1/24"),
            (
                "adit bridge a b --relay --routed --address a=10.0.1.1/24 --route 10.0.0.0/8",
                "via 10.0.2.254",
            ),
            ("adit connect --json x", "--check"),
            ("adit bridge eth1 eth2 --settings x", "cannot be used with"),
            ("adit bridge --relay", "PORT"),
            ("adit bridge a b --relay --neighbour 10.0.1.5=02:00:00:00:00:05", "--routed"),
        ] {
            let error = parse(line).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{line}");
            assert!(error.to_string().contains(said), "{line}: {error}");
        }
    }
}
