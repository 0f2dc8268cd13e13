//! `adit mesh admin`: the rights to change the mesh.

use std::process::ExitCode;
use std::time::Duration;

use adit_app_mesh::{phrases, recover};
use adit_runtime::control::{
    MeshAdminRequest, MeshAdmins, MeshInviter, MeshSigned, MeshSigner, Request, Response,
};
use adit_runtime::fault::Fault;
use clap::{Args, Subcommand};
use ipnet::IpNet;

use super::members::read_secret;
use super::{MeshSelector, show, unexpected};
use crate::{print, print_json};

/// The words of a phrase in one line of 80 columns.
const WORDS_PER_LINE: usize = 6;

/// How many characters of a hash people see to tell keys apart.
const SHORT: usize = 8;

#[derive(Debug, Subcommand)]
pub(crate) enum Admin {
    /// Show the admins, the inviters, and the changes that wait for approvals
    #[command(after_help = "Example:
  sudo adit mesh admin show")]
    Show(show::Show),

    /// Show this machine's admin key as 24 words, to be kept on paper
    #[command(after_help = "Example:
  sudo adit mesh admin phrase

Anyone who has these words can admit and remove nodes.")]
    Phrase(show::Show),

    /// Restore an admin key on this machine from its 24 words
    #[command(after_help = "Examples:
  sudo adit mesh admin recover          asks for the words
  sudo adit mesh admin recover < words

This machine must be a node of the mesh.")]
    Recover(show::Show),

    /// Make a node an admin, or let it invite others within limits
    #[command(after_help = "Examples:
  sudo adit mesh admin grant desk --admin
  sudo adit mesh admin grant web1 --inviter --group web --count 20 --valid 30d

The node then signs with its own key.")]
    Grant(Grant),

    /// Set how many admins must approve important changes
    #[command(after_help = "Example:
  sudo adit mesh admin threshold 2

Important changes are those to rights, to the policy and to this number, and
removals of admins. One admin is enough to admit or remove a node.")]
    Threshold(Threshold),

    /// Approve a change of another admin
    #[command(after_help = "Example:
  sudo adit mesh admin approve 7f3ac210

`adit mesh admin show` lists the changes that wait.")]
    Approve(One),

    /// Revoke an admin key that belongs to no node, such as a lost or stolen one
    #[command(after_help = "Example:
  sudo adit mesh admin revoke 7f3ac210

What the key has signed before remains valid. For the key of a node, use
`adit mesh remove`.")]
    Revoke(One),

    /// Replace this machine's admin key with a new one
    #[command(after_help = "Example:
  sudo adit mesh admin rotate

The previous phrase is then useless.")]
    Rotate(show::Show),
}

#[derive(Debug, Args)]
pub(crate) struct Grant {
    /// The node's name, or the beginning of its key's hash
    #[arg(value_name = "NAME")]
    name: String,

    /// Grant the right to do everything
    #[arg(long, conflicts_with = "inviter", required_unless_present = "inviter")]
    admin: bool,

    /// Grant the right to invite nodes, within the limits below; anything that they do not list is
    /// forbidden
    #[arg(long)]
    inviter: bool,

    /// A group that the invited nodes may be in; repeatable
    #[arg(long, value_name = "NAME", requires = "inviter")]
    group: Vec<String>,

    /// A network within which the invited nodes may have networks; repeatable
    #[arg(long, value_name = "CIDR", requires = "inviter")]
    subnet: Vec<IpNet>,

    /// Let the invited nodes relay for others
    #[arg(long, requires = "inviter")]
    relay: bool,

    /// Let the invited nodes carry all traffic of others
    #[arg(long, requires = "inviter")]
    gateway: bool,

    /// Let it invite OpenVPN apps, as leaves of its own node
    #[arg(long, requires = "inviter")]
    openvpn: bool,

    /// The number of nodes that it may invite
    #[arg(long, value_name = "N", requires = "inviter", default_value_t = 100)]
    count: u32,

    /// How long it may invite [default: unlimited]
    #[arg(long, value_name = "TIME", requires = "inviter", value_parser = crate::args::time)]
    valid: Option<Duration>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    here: MeshSelector,
}

#[derive(Debug, Args)]
pub(crate) struct Threshold {
    /// The number of admins
    #[arg(value_name = "N", value_parser = clap::value_parser!(u8).range(1..))]
    admins: u8,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    here: MeshSelector,
}

#[derive(Debug, Args)]
pub(crate) struct One {
    /// The beginning of the hash, as `adit mesh admin show` prints it
    #[arg(value_name = "HASH")]
    hash: String,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    here: MeshSelector,
}

pub(super) fn run(verb: Admin) -> Result<ExitCode, Fault> {
    match verb {
        Admin::Show(options) => admins(&options),
        Admin::Phrase(options) => phrase(&options),
        Admin::Recover(options) => restore(&options),
        Admin::Grant(options) => grant(options),
        Admin::Threshold(Threshold { admins, json, here }) => {
            let done = format!("important changes take {admins} admins\n");
            sign(&here, MeshAdminRequest::Threshold { admins }, json, &done)
        }
        Admin::Approve(One { hash, json, here }) => {
            let request = MeshAdminRequest::Approve { change: hash };
            sign(&here, request, json, "the change is approved\n")
        }
        Admin::Revoke(One { hash, json, here }) => {
            let request = MeshAdminRequest::Revoke { key: hash };
            sign(&here, request, json, "the key is revoked\n")
        }
        Admin::Rotate(options) => {
            let done = format!(
                "this machine has a new key; write its phrase down: sudo {}\n",
                options.here.paths()?.command("admin phrase")
            );
            sign(&options.here, MeshAdminRequest::Rotate, options.json, &done)
        }
    }
}

fn sign(
    here: &MeshSelector,
    request: MeshAdminRequest,
    json: bool,
    done: &str,
) -> Result<ExitCode, Fault> {
    match here.ask(&Request::MeshAdmin(request))? {
        Response::MeshSigned(signed) => tell(&signed, json, done),
        _ => Err(unexpected()),
    }
}

/// Prints that a change was signed, and `done` or the approvals that it still needs.
pub(super) fn tell(signed: &MeshSigned, json: bool, done: &str) -> Result<ExitCode, Fault> {
    if json {
        print_json(signed)?;
    } else if signed.is_waiting {
        print(&format!(
            "signed, and waits for other admins: adit mesh admin approve {}\n",
            short(&signed.change)
        ));
    } else {
        print(done);
    }
    Ok(ExitCode::SUCCESS)
}

fn grant(options: Grant) -> Result<ExitCode, Fault> {
    let Grant {
        name,
        inviter,
        group,
        subnet,
        relay,
        gateway,
        openvpn,
        count,
        valid,
        json,
        here,
        ..
    } = options;
    let until = valid.map(|time| crate::text::now().saturating_add(time.as_secs()));
    let done = format!("{name} {}\n", if inviter { "may invite nodes" } else { "is an admin" });
    let limits =
        MeshInviter { groups: group, subnets: subnet, relay, gateway, openvpn, count, until };
    let request = MeshAdminRequest::Grant { name, inviter: inviter.then_some(limits) };
    sign(&here, request, json, &done)
}

fn phrase(options: &show::Show) -> Result<ExitCode, Fault> {
    let phrases = phrases(&options.here.paths()?)?;
    if options.json {
        let texts: Vec<&str> = phrases.iter().map(|phrase| phrase.as_str()).collect();
        print_json(&serde_json::json!({ "phrases": texts }))?;
        return Ok(ExitCode::SUCCESS);
    }
    phrases.iter().for_each(|phrase| print(&on_paper(phrase)));
    if phrases.len() > 1 {
        print("The second key replaces the first one once other admins have approved it.\n");
    }
    Ok(ExitCode::SUCCESS)
}

/// Returns the phrase with an explanation of its purpose.
pub(super) fn on_paper(phrase: &str) -> String {
    let words: Vec<&str> = phrase.split(' ').collect();
    let mut text =
        "Write these words down: if this machine is lost, they are the key of the mesh\n\
                    (on another node: adit mesh admin recover):\n"
            .to_owned();
    for line in words.chunks(WORDS_PER_LINE) {
        text.push_str(&format!("  {}\n", line.join(" ")));
    }
    text
}

fn restore(options: &show::Show) -> Result<ExitCode, Fault> {
    let paths = options.here.paths()?;
    let phrase = read_secret("phrase", "The 24 words, in one line: ")?;
    let key = recover(&paths, &phrase)?;
    let restart = paths.control_socket().exists();
    if options.json {
        print_json(&serde_json::json!({ "key": key, "restart": restart }))?;
        return Ok(ExitCode::SUCCESS);
    }
    let next = if restart {
        format!("; restart the node to use it: systemctl restart adit-mesh@{}", paths.name())
    } else {
        String::new()
    };
    print(&format!("this machine has the key {key} of an admin{next}\n"));
    Ok(ExitCode::SUCCESS)
}

fn admins(options: &show::Show) -> Result<ExitCode, Fault> {
    let Response::MeshAdmins(admins) = options.here.ask(&Request::MeshAdmins)? else {
        return Err(unexpected());
    };
    if options.json {
        print_json(&admins)?;
    } else {
        print(&page(&admins));
    }
    Ok(ExitCode::SUCCESS)
}

fn page(admins: &MeshAdmins) -> String {
    let mut text = String::new();
    let mut lines = |title: &str, all: Vec<String>| {
        for (at, line) in all.iter().enumerate() {
            text.push_str(&format!("{:<11}{line}\n", if at == 0 { title } else { "" }));
        }
    };
    lines("admins", admins.admins.iter().map(signer).collect());
    let needed = match admins.threshold {
        1 => "1: each admin decides alone".to_owned(),
        count => format!("{count} admins must agree on important changes"),
    };
    lines("threshold", vec![needed]);
    let limited = |it: &MeshSigner| {
        let limits = it.limits.as_ref().map(limits).unwrap_or_default();
        format!("{}: {limits}", signer(it))
    };
    lines("inviters", admins.inviters.iter().map(limited).collect());
    let waiting = admins.waiting.iter().map(|it| {
        format!(
            "{}  {}; {} of {} approve",
            short(&it.change),
            it.what,
            it.approved_by.len(),
            admins.threshold
        )
    });
    lines("waiting", waiting.collect());
    lines("warnings", admins.warnings.clone());
    text
}

fn signer(signer: &MeshSigner) -> String {
    let name = signer.name.as_deref().map(|name| format!(" ({name})")).unwrap_or_default();
    let here = if signer.here { ", on this machine" } else { "" };
    format!("{}{name}{here}", short(&signer.key))
}

fn limits(limits: &MeshInviter) -> String {
    let mut all = vec![format!("at most {} nodes", limits.count)];
    if !limits.groups.is_empty() {
        all.push(format!("groups {}", limits.groups.join(", ")));
    }
    if !limits.subnets.is_empty() {
        let nets: Vec<String> = limits.subnets.iter().map(ToString::to_string).collect();
        all.push(format!("networks in {}", nets.join(", ")));
    }
    let flags =
        [(limits.relay, "relays"), (limits.gateway, "gateways"), (limits.openvpn, "OpenVPN apps")];
    all.extend(flags.into_iter().filter(|(has, _)| *has).map(|(_, what)| what.to_owned()));
    if let Some(until) = limits.until {
        let left = until.saturating_sub(crate::text::now());
        all.push(format!("for {}", crate::text::span(left)));
    }
    all.join("; ")
}

fn short(hash: &str) -> &str {
    hash.get(..SHORT).unwrap_or(hash)
}

#[cfg(test)]
mod tests {
    use adit_runtime::control::MeshWaiting;

    use super::*;

    #[test]
    fn a_phrase_fits_80_columns() {
        let longest = vec!["absolute"; 24].join(" ");
        assert!(on_paper(&longest).lines().all(|line| line.len() <= 80));
    }

    #[test]
    fn the_page_shows_who_may_do_what_and_what_waits() {
        let key = |byte: &str| byte.repeat(32);
        let own = MeshSigner { key: key("ab"), here: true, ..MeshSigner::default() };
        let inviter = MeshSigner {
            key: key("cd"),
            name: Some("web1".into()),
            limits: Some(MeshInviter {
                groups: vec!["web".into()],
                count: 5,
                ..Default::default()
            }),
            ..MeshSigner::default()
        };
        let waits = MeshWaiting {
            change: key("ef"),
            what: "makes desk an admin".into(),
            approved_by: vec![key("ab")],
        };
        let admins = MeshAdmins {
            admins: vec![own],
            threshold: 2,
            inviters: vec![inviter],
            waiting: vec![waits],
            warnings: Vec::new(),
        };
        assert_eq!(
            page(&admins),
            "admins     abababab, on this machine\n\
             threshold  2 admins must agree on important changes\n\
             inviters   cdcdcdcd (web1): at most 5 nodes; groups web\n\
             waiting    efefefef  makes desk an admin; 1 of 2 approve\n"
        );
    }
}
