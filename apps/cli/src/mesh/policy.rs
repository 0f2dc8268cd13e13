//! `adit mesh policy`: the policy that decides which members may reach each other.

use std::io::{self, Write};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use adit_app_mesh::{HOST, MAX_POLICY, Settings};
use adit_filter::ruleset::Members;
use adit_filter::{Context, Filter, IfName, IpRange, Nanos};
use adit_runtime::control::{MeshPolicy, MeshReport, MeshSigned, Request, Response};
use adit_runtime::fault::Fault;
use adit_runtime::filter::{KnownNames, mesh_policy, unknown};
use clap::{Args, Subcommand, ValueHint};

use super::{MeshSelector, admin, show, unexpected};
use crate::filter::{self, describe, trace};
use crate::{note, print, print_json};

/// The text that an editor shows if there is no policy yet.
const TEMPLATE: &str =
    "# The policy of the mesh. Its members enforce it; docs/mesh.md has examples.
table inet mesh {
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        icmp type echo-request accept
        icmpv6 type echo-request accept
        # ip saddr @group:web ip daddr @node:db tcp dport 5432 accept
    }
}
";

#[derive(Debug, Subcommand)]
pub(crate) enum Policy {
    /// Show the policy that is in force on this node
    #[command(after_help = "Example:
  sudo adit mesh policy show > policy.nft")]
    Show(show::Show),

    /// Check a file with rules, and change nothing
    #[command(after_help = "Example:
  adit mesh policy check policy.nft

Exit codes: 0 good, 2 errors in the file.")]
    Check(PolicyFile),

    /// Make a file the policy of the whole mesh
    #[command(after_help = "Examples:
  sudo adit mesh policy set policy.nft
  sudo adit mesh policy set - < policy.nft

Needs a machine with the key of an admin. Connections that the new rules do not
accept end.")]
    Set(PolicyFile),

    /// Edit the policy with $VISUAL or $EDITOR, and make the result the mesh's policy
    #[command(after_help = "Example:
  sudo adit mesh policy edit")]
    Edit(Plain),

    /// Remove the policy, so that all members reach each other
    #[command(after_help = "Example:
  sudo adit mesh policy clear")]
    Clear(Plain),

    /// Show whether a packet between members passes, and which rule decides
    #[command(after_help = "Examples:
  sudo adit mesh policy explain 'tcp web1 > db:5432'
  sudo adit mesh policy explain 'icmp laptop > db echo-request'
  sudo adit mesh policy explain 'tcp web1 > db:5432 ct established'

Exit codes: 0 the packet is accepted, 1 it is not, 2 errors in the description.")]
    Explain(Explain),
}

#[derive(Debug, Args)]
pub(crate) struct PolicyFile {
    /// The file; - for standard input
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    here: MeshSelector,
}

#[derive(Debug, Args)]
pub(crate) struct Plain {
    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    here: MeshSelector,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The packet as for `adit filter explain`, with names of members instead of addresses
    #[arg(required = true)]
    packet: Vec<String>,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    here: MeshSelector,
}

pub(super) fn run(verb: &Policy) -> Result<ExitCode, Fault> {
    match verb {
        Policy::Show(options) => show(options),
        Policy::Check(options) => check(options),
        Policy::Set(options) => set(options),
        Policy::Edit(options) => edit(options),
        Policy::Clear(options) => clear(options),
        Policy::Explain(options) => explain(options),
    }
}

fn current(here: &MeshSelector) -> Result<MeshPolicy, Fault> {
    match here.ask(&Request::MeshPolicy)? {
        Response::MeshPolicy(policy) => Ok(policy),
        _ => Err(unexpected()),
    }
}

fn show(options: &show::Show) -> Result<ExitCode, Fault> {
    let policy = current(&options.here)?;
    if options.json {
        print_json(&policy)?;
        return Ok(ExitCode::SUCCESS);
    }
    if let Some(problem) = &policy.problem {
        note(&format!("adit: {problem}\n"));
    }
    match (&policy.text, &policy.hash) {
        (Some(text), _) => print(text),
        (None, None) => note("adit: the mesh has no policy: members reach each other\n"),
        (None, Some(_)) => note("adit: no rules are in force yet, so no packets pass\n"),
    }
    Ok(ExitCode::SUCCESS)
}

fn check(options: &PolicyFile) -> Result<ExitCode, Fault> {
    let text = read(&options.file)?;
    let name = options.file.display().to_string();
    let checked = mesh_policy(&name, &text);
    let error = checked.as_ref().err().map(ToString::to_string);
    if let Ok(filter) = &checked {
        warn_of_unknown(&options.here, filter);
    }
    match &error {
        _ if options.json => {
            print_json(
                &serde_json::json!({ "file": name, "ok": error.is_none(), "error": error }),
            )?;
        }
        Some(error) => note(&format!("{error}\n")),
        None => print(&format!("{name}: good\n")),
    }
    Ok(if error.is_none() { ExitCode::SUCCESS } else { ExitCode::from(2) })
}

/// Warns about names that no member has, if a node runs here, because they look like mistakes.
fn warn_of_unknown(here: &MeshSelector, filter: &Filter) {
    let Ok(report) = show::report(here) else { return };
    let members = Member::all(&report);
    let known = KnownNames {
        nodes: members.iter().map(|member| member.name.to_owned()).collect(),
        groups: members.iter().flat_map(|member| member.groups.iter().cloned()).collect(),
        ..KnownNames::default()
    };
    unknown(filter, &known).iter().for_each(|problem| note(&format!("warning: {problem}\n")));
}

fn set(options: &PolicyFile) -> Result<ExitCode, Fault> {
    let text = read(&options.file)?;
    let signed = put(&options.here, &options.file.display().to_string(), text)?;
    admin::tell(&signed, options.json, IN_FORCE)
}

const IN_FORCE: &str = "the policy is in force: connected nodes have it within seconds, the others when they \
                        connect\n";

/// Checks a text, and makes it the policy of the mesh.
fn put(here: &MeshSelector, name: &str, text: String) -> Result<MeshSigned, Fault> {
    warn_of_unknown(here, &mesh_policy(name, &text)?);
    request(here, text)
}

fn request(here: &MeshSelector, text: String) -> Result<MeshSigned, Fault> {
    match here.ask(&Request::MeshSetPolicy { text })? {
        Response::MeshSigned(signed) => Ok(signed),
        _ => Err(unexpected()),
    }
}

fn clear(options: &Plain) -> Result<ExitCode, Fault> {
    let signed = request(&options.here, String::new())?;
    admin::tell(
        &signed,
        options.json,
        "the mesh no longer has a policy: members reach each other\n",
    )
}

fn edit(options: &Plain) -> Result<ExitCode, Fault> {
    let before = current(&options.here)?.text.unwrap_or_else(|| TEMPLATE.to_owned());
    let cannot = |error: io::Error| Fault::environment(format!("cannot edit the policy: {error}"));
    let mut file =
        tempfile::Builder::new().prefix("policy-").suffix(".nft").tempfile().map_err(cannot)?;
    file.write_all(before.as_bytes()).map_err(cannot)?;
    let editor = ["VISUAL", "EDITOR"].iter().find_map(|name| std::env::var(name).ok());
    let editor = editor.filter(|editor| !editor.trim().is_empty());
    let editor = editor.unwrap_or_else(|| "vi".to_owned());
    // Like other programs, lets the shell split the editor's options.
    let command = format!("{editor} \"$1\"");
    let status = Command::new("sh").args(["-c", &command, "sh"]).arg(file.path()).status();
    let status = status.map_err(cannot)?;
    if !status.success() {
        return Err(Fault::operator(format!("{editor} failed ({status}); nothing was changed")));
    }
    let text = read(file.path())?;
    if text == before {
        if options.json {
            print_json(&serde_json::json!({ "change": null }))?;
        } else {
            print("nothing was changed\n");
        }
        return Ok(ExitCode::SUCCESS);
    }
    match put(&options.here, "policy.nft", text) {
        Ok(signed) => admin::tell(&signed, options.json, IN_FORCE),
        Err(fault) => {
            let (_, path) = file.keep().map_err(|error| cannot(error.error))?;
            Err(Fault::operator(format!(
                "{fault}\nthe previous policy stays in force; your text is in {}: correct it and use adit mesh policy set",
                path.display()
            )))
        }
    }
}

fn read(path: &Path) -> Result<String, Fault> {
    filter::read(path, MAX_POLICY)
        .map_err(|error| Fault::operator(format!("cannot read {}: {error}", path.display())))
}

/// A member, as rules and packet descriptions name it.
struct Member<'a> {
    name: &'a str,
    groups: &'a [String],
    addresses: &'a [IpAddr],
    ranges: Vec<IpRange>,
}

impl<'a> Member<'a> {
    /// Returns this node and all others that have a name.
    fn all(report: &'a MeshReport) -> Vec<Self> {
        let own = (report.node.as_str(), &report.groups, &report.addresses, &report.subnets);
        let others = report.peers.iter().filter_map(|peer| {
            Some((peer.name.as_deref()?, &peer.groups, &peer.addresses, &peer.subnets))
        });
        std::iter::once(own)
            .chain(others)
            .map(|(name, groups, addresses, subnets)| {
                let hosts = addresses.iter().map(|address| IpRange::from(*address));
                let nets = subnets.iter().map(|net| IpRange::prefix(net.addr(), net.prefix_len()));
                Self { name, groups, addresses, ranges: hosts.chain(nets).collect() }
            })
            .collect()
    }
}

fn explain(options: &Explain) -> Result<ExitCode, Fault> {
    explain_packet(&options.here, &options.packet.join(" "), options.json)
}

/// Explains whether a packet between members passes, and which rule decides.
pub(crate) fn explain_packet(
    here: &MeshSelector,
    packet: &str,
    json: bool,
) -> Result<ExitCode, Fault> {
    let answer = |packet: &str, accepted: bool, page: &str| {
        if json {
            print_json(
                &serde_json::json!({ "packet": packet, "accepted": accepted, "trace": page }),
            )?;
        } else {
            print(page);
        }
        Ok(if accepted { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    };
    let report = show::report(here)?;
    let policy = current(here)?;
    let members = Member::all(&report);
    let words = with_addresses(packet, &members);
    let Some(described) = describe(&words) else { return Ok(ExitCode::from(2)) };
    let Some(text) = policy.text else {
        return match policy.hash {
            None => answer(
                &words,
                true,
                "the mesh has no policy: members reach each other\n=> accepted\n",
            ),
            Some(_) => answer(
                &words,
                false,
                "this node has no policy yet, so no packets pass\n=> dropped\n",
            ),
        };
    };
    let filter = mesh_policy("policy", &text)?;
    set_members(&filter, &members);
    let device = Settings::load(&here.paths()?)?.device;
    let (device, host) = (IfName::new(&device), IfName::new(HOST));
    // The sender applies the policy first, the receiver again.
    let ends = [("at the sender", host, device), ("at the receiver", device, host)];
    let (mut page, mut accepted) = (String::new(), true);
    for (end, iif, oif) in ends {
        let context = Context { iif, oif, ..described.context(Nanos::default()) };
        (page, accepted) = match trace(&filter, &described, &context) {
            Ok(traced) => traced,
            Err(dropped) => return answer(&words, false, &dropped),
        };
        if !accepted {
            page = format!("{end}:\n{page}");
            break;
        }
    }
    answer(&words, accepted, &format!("{words}\n{page}"))
}

fn set_members(filter: &Filter, members: &[Member<'_>]) {
    let groups = members.iter().flat_map(|member| member.groups);
    for group in groups {
        let is_in = |member: &&Member<'_>| member.groups.contains(group);
        let ranges: Vec<IpRange> =
            members.iter().filter(is_in).flat_map(|member| member.ranges.clone()).collect();
        filter.set_members(&Members::Group(group.clone()), &ranges);
    }
    for member in members {
        filter.set_members(&Members::Node(member.name.to_owned()), &member.ranges);
    }
}

/// Writes addresses instead of names. A TCP or UDP packet without a source port gets one.
fn with_addresses(packet: &str, members: &[Member<'_>]) -> String {
    let ports = packet.starts_with("tcp ") || packet.starts_with("udp ");
    let mut words = Vec::new();
    for (at, word) in packet.split_whitespace().enumerate() {
        let (name, port) =
            word.split_once(':').map_or((word, None), |(name, port)| (name, Some(port)));
        let member = members.iter().find(|member| member.name == name);
        let Some(address) = member.and_then(|member| member.addresses.first()) else {
            words.push(word.to_owned());
            continue;
        };
        let port = port.or((ports && at == 1).then_some("40000"));
        words.push(match (address, port) {
            (address, None) => address.to_string(),
            (IpAddr::V4(address), Some(port)) => format!("{address}:{port}"),
            (IpAddr::V6(address), Some(port)) => format!("[{address}]:{port}"),
        });
    }
    words.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_members_become_addresses() {
        let report = MeshReport {
            node: "web1".into(),
            addresses: vec!["100.87.0.2".parse().unwrap()],
            peers: vec![adit_runtime::control::MeshPeer {
                name: Some("db".into()),
                addresses: vec!["fd00::5".parse().unwrap()],
                ..Default::default()
            }],
            ..MeshReport::default()
        };
        let members = Member::all(&report);
        let words = |packet| with_addresses(packet, &members);
        assert_eq!(words("tcp web1 > db:5432 syn"), "tcp 100.87.0.2:40000 > [fd00::5]:5432 syn");
        assert_eq!(words("icmp web1 > 10.0.0.1"), "icmp 100.87.0.2 > 10.0.0.1");
    }

    #[test]
    fn the_template_is_a_policy() {
        mesh_policy("template", TEMPLATE).unwrap();
        let uncommented = TEMPLATE.replace("# ip saddr", "ip saddr");
        assert_ne!(uncommented, TEMPLATE);
        mesh_policy("template", &uncommented).unwrap();
    }
}
