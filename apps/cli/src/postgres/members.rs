//! `init`, `join`, `invite`, `remove` and `rekey`, which manage a network's members, and `expire`, which applies its retention.

use std::io::{self, IsTerminal, Read};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use adit_app_postgres::{InitOptions, InitOutcome, Invitation, JoinOptions, Paths};
use adit_runtime::fault::Fault;
use adit_runtime::terminal;
use clap::{Args, ValueHint};
use ipnet::{IpNet, Ipv4Net, Ipv6Net};
use zeroize::Zeroizing;

use super::NodeSelector;
use super::settings::NetworkSettings;
use crate::args::{network, time};
use crate::{note, print};

#[derive(Debug, Args)]
pub(crate) struct Init {
    /// The database: postgres://USER@HOST/DATABASE or host=... dbname=..., or - to read one of these from stdin
    #[arg(value_name = "URL")]
    pub database: SecretWord,

    /// The network in which the nodes have addresses
    #[arg(long, value_name = "CIDR", value_parser = network::<Ipv4Net>)]
    pub network: Option<Ipv4Net>,

    /// The IPv6 network in which the nodes have addresses
    #[arg(long, value_name = "CIDR", value_parser = network::<Ipv6Net>)]
    pub network6: Option<Ipv6Net>,

    /// The name of this node [default: this machine's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    #[command(flatten)]
    pub settings: NetworkSettings,

    /// Create an auditor's key, which can read every packet later, in this new file
    #[arg(long, value_name = "NEWKEYFILE", value_hint = ValueHint::FilePath)]
    pub auditor: Option<PathBuf>,

    /// The tablespace in which the database stores the packets
    #[arg(long, value_name = "NAME")]
    pub tablespace: Option<String>,

    /// A network behind this node (repeatable)
    #[arg(long, value_name = "CIDR")]
    pub route: Vec<IpNet>,

    /// How long the invitation for the next node is valid
    #[arg(long, value_name = "TIME", value_parser = time)]
    pub valid: Option<Duration>,

    /// Make the first invitation usable while no node runs; see `invite --offline`
    #[arg(long)]
    pub offline: bool,

    /// Only print the SQL that the command would execute
    #[arg(long)]
    pub dry_run: bool,

    /// The name of the network on this machine and in the roles' names [default: the database's name]
    #[arg(short, long, value_name = "NAME")]
    pub network_name: Option<String>,

    /// Keep all files below this directory instead of in /etc/adit, /var/lib/adit and /run/adit
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Join {
    /// The URL that `init` or `invite` printed; - (the default) reads it from stdin, or asks for it on a terminal
    #[arg(value_name = "URL", default_value = "-")]
    pub invitation: SecretWord,

    /// The name of this node [default: this machine's name]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,

    /// A network behind this node (repeatable)
    #[arg(long, value_name = "CIDR")]
    pub route: Vec<IpNet>,

    /// The name of the network on this machine [default: the network's own name]
    #[arg(short, long, value_name = "NAME")]
    pub network_name: Option<String>,

    /// Keep all files below this directory instead of in /etc/adit, /var/lib/adit and /run/adit
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub dir: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub(crate) struct Invite {
    /// How long the invitation is valid
    #[arg(long, value_name = "TIME", value_parser = time, default_value = "1d")]
    pub valid: Duration,

    /// Make the invitation usable while no node runs, by keeping the network's key in the database, encrypted with the
    /// token's key
    #[arg(long)]
    pub offline: bool,

    #[command(flatten)]
    pub here: NodeSelector,
}

#[derive(Debug, Args)]
pub(crate) struct Remove {
    /// The node's name
    pub name: String,

    /// Do not ask for confirmation on a terminal
    #[arg(long, short)]
    pub yes: bool,

    /// Do not replace the network's key, although the node knows it
    #[arg(long)]
    pub keep_key: bool,

    #[command(flatten)]
    pub here: NodeSelector,
}

#[derive(Debug, Args)]
pub(crate) struct Rekey {
    #[command(flatten)]
    pub here: NodeSelector,
}

#[derive(Debug, Args)]
pub(crate) struct Expire {
    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub here: NodeSelector,
}

/// An argument that contains a secret and is never shown again.
#[derive(Clone)]
pub(crate) struct SecretWord(Zeroizing<String>);

impl std::str::FromStr for SecretWord {
    type Err = std::convert::Infallible;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        Ok(Self(Zeroizing::new(text.to_owned())))
    }
}

impl std::fmt::Debug for SecretWord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("SecretWord(..)")
    }
}

impl SecretWord {
    /// Returns the argument. For `-` reads it from stdin, on a terminal without echo.
    pub(crate) fn invitation(self) -> Result<Zeroizing<String>, Fault> {
        if self.0.as_str() != "-" || !io::stdin().is_terminal() {
            return self.read();
        }
        let typed = terminal::ask_hidden("The invitation (it is not shown): ");
        let typed = typed.map_err(|error| {
            Fault::environment(format!("cannot ask for the invitation: {error}"))
        })?;
        Ok(Zeroizing::new(typed.trim().to_owned()))
    }

    /// Returns the argument, or stdin for `-`.
    pub(crate) fn read(self) -> Result<Zeroizing<String>, Fault> {
        if self.0.as_str() != "-" {
            return Ok(self.0);
        }
        if io::stdin().is_terminal() {
            note("The database's URL, then Enter and Ctrl-D: ");
        }
        let mut text = Zeroizing::new(String::new());
        io::stdin()
            .lock()
            .take(64 << 10)
            .read_to_string(&mut text)
            .map_err(|error| Fault::operator(format!("cannot read the URL from stdin: {error}")))?;
        Ok(Zeroizing::new(text.trim().to_owned()))
    }
}

pub(super) fn init(options: Init) -> Result<ExitCode, Fault> {
    let url = options.database.read()?;
    let asked = InitOptions {
        network4: options.network,
        network6: options.network6,
        name: options.name,
        network_name: options.network_name,
        settings: options.settings.change(),
        auditor: options.auditor,
        tablespace: options.tablespace,
        routes: options.route,
        valid: options.valid,
        offline: options.offline,
    };
    match adit_app_postgres::init(options.dir.as_deref(), &url, &asked, options.dry_run)? {
        InitOutcome::Would(statements) => print(&statements),
        InitOutcome::There { paths, settings, notes } => {
            warn(&notes);
            print(&format!(
                "This machine is already {} in the network {}; nothing was changed.\nStart it: {}\nAnother node: {}\n",
                settings.name,
                paths.name(),
                paths.command("up"),
                paths.command("invite")
            ));
        }
        InitOutcome::New { paths, invitation, done, notes, .. } => {
            let mut text = String::from("Made:\n");
            for line in done {
                text.push_str(&format!("  {line}\n"));
            }
            text.push_str(&format!("  its files in {}\n", paths.config().display()));
            print(&text);
            warn(&notes);
            print(&format!("\nStart it:\n  sudo {}\n", paths.command("up")));
            hand_over(&invitation);
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn join(options: Join) -> Result<ExitCode, Fault> {
    let on_the_line = options.invitation.0.as_str() != "-";
    let invitation = options.invitation.invitation()?;
    if on_the_line {
        note(
            "adit: warning: the invitation was in the command line, which shells, sudo and audit logs keep; it works once. Use: \
             adit postgres join -\n",
        );
    }
    let asked = JoinOptions {
        name: options.name,
        network_name: options.network_name,
        routes: options.route,
    };
    let joined =
        adit_app_postgres::join(options.dir.as_deref(), &invitation, &asked, &mut |text| {
            note(&format!("adit: {text}\n"));
        })?;
    warn(&joined.notes);
    let addresses: Vec<String> =
        joined.settings.addresses.iter().map(ToString::to_string).collect();
    print(&format!(
        "This machine is {} in the network {}, with {}.\nIts files are in {}.\nStart it:\n  sudo {}\n",
        joined.settings.name,
        joined.paths.name(),
        addresses.join(" and "),
        joined.paths.config().display(),
        joined.paths.command("up")
    ));
    Ok(ExitCode::SUCCESS)
}

pub(super) fn invite(options: &Invite) -> Result<ExitCode, Fault> {
    let paths = options.here.paths()?;
    let invitation = adit_app_postgres::invite(&paths, options.valid, options.offline)?;
    warn(&invitation.notes);
    hand_over(&invitation);
    Ok(ExitCode::SUCCESS)
}

pub(super) fn remove(options: &Remove) -> Result<ExitCode, Fault> {
    let paths: Paths = options.here.paths()?;
    if !options.yes && !confirmed(&options.name, paths.name())? {
        print("Nothing was changed.\n");
        return Ok(ExitCode::FAILURE);
    }
    adit_app_postgres::remove(&paths, &options.name)?;
    print(&format!("{} is out of the network {}.\n", options.name, paths.name()));
    if options.keep_key {
        print(&format!(
            "Its machine still knows the network's key, which is worth something to anyone who also controls the database. A new \
             key:\n  sudo {}\n",
            paths.command("rekey")
        ));
        return Ok(ExitCode::SUCCESS);
    }
    let renewed = adit_app_postgres::rekey(&paths).inspect_err(|_| {
        note(&format!(
            "adit: {} is removed, but the network still has the key that it knows. Once this is corrected: {}\n",
            options.name,
            paths.command("rekey")
        ));
    })?;
    tell_of(&paths, &renewed);
    Ok(ExitCode::SUCCESS)
}

pub(super) fn rekey(options: &Rekey) -> Result<ExitCode, Fault> {
    let paths = options.here.paths()?;
    let renewed = adit_app_postgres::rekey(&paths)?;
    tell_of(&paths, &renewed);
    Ok(ExitCode::SUCCESS)
}

fn tell_of(paths: &Paths, renewed: &adit_app_postgres::RekeyReport) {
    warn(&renewed.notes);
    let auditor = if renewed.auditor { ", and the auditor" } else { "" };
    print(&format!(
        "The network {} has a new key, generation {}, for: {}{auditor}.\nNodes that run take it within seconds, others \
         when they start. Earlier invitations are no longer valid.\n",
        paths.name(),
        renewed.generation,
        renewed.nodes.join(", ")
    ));
}

/// Asks for confirmation on a terminal. A script needs none.
fn confirmed(node: &str, network: &str) -> Result<bool, Fault> {
    if !io::stdin().is_terminal() {
        return Ok(true);
    }
    note(&format!("Remove {node} from the network {network} permanently? [y/N] "));
    let mut answer = String::new();
    io::stdin().read_line(&mut answer).map_err(|error| {
        Fault::operator(format!("cannot read the answer: {error}; or use --yes"))
    })?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

pub(super) fn expire(options: &Expire) -> Result<ExitCode, Fault> {
    let expired = adit_app_postgres::expire(&options.here.paths()?)?;
    if options.json {
        let dropped: Vec<_> = expired
            .dropped
            .iter()
            .map(|(leaf, bytes)| serde_json::json!({ "leaf": leaf, "bytes": bytes }))
            .collect();
        let value = serde_json::json!({ "dropped": dropped, "leaves": expired.leaves, "bytes": expired.bytes });
        crate::print_json(&value)?;
        return Ok(ExitCode::SUCCESS);
    }
    for (leaf, bytes) in &expired.dropped {
        print(&format!("dropped {leaf}, {}\n", megabytes(*bytes)));
    }
    if expired.dropped.is_empty() {
        print("Nothing exceeds the retention.\n");
    }
    print(&format!("{} tables are left, {}\n", expired.leaves, megabytes(expired.bytes)));
    Ok(ExitCode::SUCCESS)
}

fn megabytes(bytes: u64) -> String {
    format!("{}.{} MB", bytes / 1_000_000, bytes % 1_000_000 / 100_000)
}

fn warn(notes: &[String]) {
    for line in notes {
        note(&format!("adit: note: {line}\n"));
    }
}

/// Shows the secret to the user who requested it. No other code shows it.
fn hand_over(invitation: &Invitation) {
    let hours = invitation.valid.as_secs().div_ceil(3600);
    let online = if invitation.offline { "" } else { ", while a node is up" };
    print(&format!(
        "\nOn the next machine (works once, within {hours} h{online}):\n  sudo adit postgres join -\nand there, when it asks (keep \
         it secret until then):\n  {}\n",
        invitation.url.as_str()
    ));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_word_is_not_shown() {
        let word: SecretWord = "postgres://u:geheim@h/d".parse().unwrap();
        assert_eq!(format!("{word:?}"), "SecretWord(..)");
        assert_eq!(word.read().unwrap().as_str(), "postgres://u:geheim@h/d");
    }
}
