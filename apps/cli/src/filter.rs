//! `adit filter`: checks and explains rule files.

use std::fs::File;
use std::io::{self, Read};
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use adit_app_server::clients;
use adit_filter::lang::{self, Diagnostics, MAX_FILE, PacketDescription, Summary};
use adit_filter::packet::Packet;
use adit_filter::ruleset::{Members, Ruleset};
use adit_filter::{Context, IpRange, Nanos, Verdict};
use adit_runtime::fault::Fault;
use adit_wire::VnetHeader;
use clap::{Args, Subcommand, ValueHint};
use ipnet::IpNet;
use serde::Serialize;

use crate::args::Location;
use crate::filter_control as live;
use crate::{note, paths, print, print_json};

#[derive(Debug, Subcommand)]
#[command(disable_help_subcommand = true)]
pub(crate) enum Filter {
    /// Check a rule file and report its errors
    #[command(after_help = "Examples:
  adit filter check fw.nft
  adit filter check --json fw.nft | jq '.errors[].line'

Exit codes: 0 the file is valid, 2 it has errors. docs/filter.md describes the
language.")]
    Check(Check),

    /// Show which rule accepts or drops a packet, and why
    #[command(after_help = "Examples:
  adit filter explain fw.nft tcp 10.0.0.1:4000 '>' 10.0.0.2:80 syn in e1 out e2
  adit filter explain fw.nft 'udp [fd00::1]:5 > [fd00::2]:53 ct established'
  adit filter explain fw.nft 'icmp 10.8.0.2 > 10.0.0.1 8' --client al=10.8.0.2
  adit filter explain fw.nft 'arp who-has 10.0.0.2 tell 10.0.0.1 vlan 5'
  adit filter explain fw.nft hex:4500002800010000401166... tun
  sudo adit filter explain 'tcp web1 > db:5432'

Without a file, a node of a mesh answers with the mesh's policy and the names of
its members. Exit codes: 0 the packet is accepted, 1 it is not, 2 errors in the
file or description.")]
    Explain(Explain),

    /// Show the rules of a running server or bridge with their counters
    #[command(after_help = "Examples:
  sudo adit filter show
  sudo adit filter show --flows
  sudo adit filter show --json | jq '.counters[] | select(.packets > 0)'

The output is a rule file that can be loaded again; everything else is in
comments.")]
    Show(live::Show),

    /// Replace the rules of a running server or bridge atomically, without dropping tunnels
    #[command(after_help = "Examples:
  sudo adit filter reload           reads the current file again
  sudo adit filter reload fw.nft
  sudo adit filter reload eth1-eth2 fw.nft

If the new rules have an error, the old ones stay in force. Known connections
are evaluated again.")]
    Reload(live::Reload),

    /// End connections of a running server or bridge, so that their next packet is evaluated as a first one
    #[command(after_help = "Examples:
  sudo adit filter flush
  sudo adit filter flush --client alice
  sudo adit filter flush --address 10.8.0.0/24

Not needed after a reload, which ends connections that the rules now refuse.")]
    Flush(live::Flush),

    /// Change elements of a set in a running server or bridge, optionally for a limited time
    #[command(
        subcommand,
        after_help = "Examples:
  sudo adit filter element add blocked 192.0.2.7 timeout 1h
  sudo adit filter element del blocked 192.0.2.7"
    )]
    Element(live::Element),

    /// Write the packets of `log group` rules to a file for Wireshark
    #[command(after_help = "Examples:
  sudo adit filter capture denied.pcapng --group 1
  sudo adit filter capture - | wireshark -k -i -

Runs until Ctrl-C. Each packet has a comment with the rule's prefix and handle.")]
    Capture(live::Capture),
}

#[derive(Debug, Args)]
pub(crate) struct Check {
    /// The rule file; - for standard input
    #[arg(value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// Print the rule set as it was parsed
    #[arg(long, conflicts_with = "json")]
    print: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct Explain {
    /// The rule file, - for standard input; on a node of a mesh, only the packet in one word
    #[arg(value_name = "FILE", value_hint = ValueHint::FilePath)]
    file: PathBuf,
    /// The packet, as a list of words (see docs/filter.md)
    packet: Vec<String>,
    /// The addresses of @client:NAME, as if the client were connected
    #[arg(long, value_name = "NAME=ADDRESS[,...]")]
    client: Vec<String>,
    /// The addresses of @group:NAME, as if its clients were connected
    #[arg(long, value_name = "NAME=ADDRESS[,...]")]
    group: Vec<String>,

    #[cfg(feature = "mesh")]
    #[command(flatten)]
    here: crate::mesh::MeshSelector,
}

pub(crate) fn run(verb: Filter) -> Result<ExitCode, Fault> {
    match verb {
        Filter::Check(options) => check(&options),
        Filter::Explain(options) => explain(&options),
        Filter::Show(options) => live::show(&options),
        Filter::Reload(options) => live::reload(&options),
        Filter::Flush(options) => live::flush(&options),
        Filter::Element(verb) => live::element(&verb),
        Filter::Capture(options) => live::capture(&options),
    }
}

/// The output of `check --json`.
#[derive(Serialize)]
struct Report<'a> {
    file: &'a str,
    ok: bool,
    tables: usize,
    chains: usize,
    rules: usize,
    sets: usize,
    elements: usize,
    errors: Vec<Error<'a>>,
}

#[derive(Serialize)]
struct Error<'a> {
    file: &'a str,
    line: u32,
    column: u32,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    instead: Option<&'a str>,
}

fn check(options: &Check) -> Result<ExitCode, Fault> {
    let name = options.file.display().to_string();
    let read = parse(&options.file, true)?;
    if options.json {
        let empty = Ruleset::default();
        let counts = Summary::of(read.as_ref().unwrap_or(&empty));
        let errors = match &read {
            Ok(_) => Vec::new(),
            Err(diagnostics) => errors(diagnostics),
        };
        let Summary { tables, chains, rules, sets, elements, .. } = counts;
        let ok = read.is_ok();
        print_json(&Report { file: &name, ok, tables, chains, rules, sets, elements, errors })?;
        return Ok(if ok { ExitCode::SUCCESS } else { ExitCode::from(2) });
    }
    if let Ok(ruleset) = &read {
        warn_of_unknown(&options.location, ruleset);
    }
    match read {
        Ok(ruleset) if options.print => print(&ruleset.to_string()),
        Ok(ruleset) => print(&format!("{name}: {}\n", Summary::of(&ruleset))),
        Err(diagnostics) => {
            note(&format!("{diagnostics}\n"));
            return Ok(ExitCode::from(2));
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Explains a packet by the policy of a mesh.
#[cfg(feature = "mesh")]
fn explain_in_mesh(options: &Explain) -> Result<ExitCode, Fault> {
    let words = options.file.to_string_lossy();
    if !words.contains(char::is_whitespace) {
        return Err(Fault::operator(format!(
            "{words}: write the packet after the rule file; or, on a node of a mesh, the packet alone in quotes: \
             'tcp web1 > db:5432'"
        )));
    }
    crate::mesh::policy::explain_packet(&options.here, &words, false)
}

#[cfg(not(feature = "mesh"))]
fn explain_in_mesh(_: &Explain) -> Result<ExitCode, Fault> {
    Err(Fault::operator("write the packet after the rule file"))
}

fn explain(options: &Explain) -> Result<ExitCode, Fault> {
    if options.packet.is_empty() {
        return explain_in_mesh(options);
    }
    let ruleset = match parse(&options.file, false)? {
        Ok(ruleset) => ruleset,
        Err(diagnostics) => {
            note(&format!("{diagnostics}\n"));
            return Ok(ExitCode::from(2));
        }
    };
    let words = options.packet.join(" ");
    let Some(described) = describe(&words) else { return Ok(ExitCode::from(2)) };
    let filter = adit_filter::Filter::compile(ruleset)
        .map_err(|error| Fault::operator(format!("{}: {error}", options.file.display())))?;
    members(&filter, options)?;
    let trace = trace(&filter, &described, &described.context(Nanos::default()));
    let (page, accepted) = trace.unwrap_or_else(|dropped| (dropped, false));
    print(&page);
    Ok(if accepted { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Parses the description of a packet, and reports a mistake in it.
pub(crate) fn describe(words: &str) -> Option<PacketDescription> {
    lang::describe(words).map_err(|error| note(&format!("{error}\n"))).ok()
}

/// Returns the rules that a packet meets, as text, and whether they accept it.
///
/// # Errors
/// No rule sees such a packet; the text says so.
pub(crate) fn trace(
    filter: &adit_filter::Filter,
    described: &PacketDescription,
    context: &Context,
) -> Result<(String, bool), String> {
    let whole = VnetHeader::default();
    let packet = Packet::parse(&described.bytes, described.layer, None, &whole)
        .map_err(|why| format!("=> dropped before any rule: {why}\n"))?;
    let trace = filter.explain(&packet, context);
    Ok((lang::explain(filter.ruleset(), &trace), trace.verdict == Verdict::Accept))
}

/// Sets the members of the filter's clients and groups. Those without addresses on the command line are empty.
fn members(filter: &adit_filter::Filter, options: &Explain) -> Result<(), Fault> {
    let clients = options.client.iter().map(|text| (text, true));
    for (text, client) in clients.chain(options.group.iter().map(|text| (text, false))) {
        let bad = || {
            let option = if client { "client" } else { "group" };
            Fault::operator(format!("--{option} {text}: write NAME=ADDRESS, like alice=10.8.0.2"))
        };
        let (name, list) = text.split_once('=').ok_or_else(bad)?;
        let ranges: Option<Vec<IpRange>> = list.split(',').map(range).collect();
        let ranges = ranges.ok_or_else(bad)?;
        let who = if client { Members::Client } else { Members::Group }(name.to_owned());
        if !filter.set_members(&who, &ranges) {
            let at = if client { "client" } else { "group" };
            return Err(Fault::operator(format!("no rule refers to @{at}:{name}")));
        }
    }
    Ok(())
}

fn range(text: &str) -> Option<IpRange> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Some(address.into());
    }
    let net = text.parse::<IpNet>().ok()?;
    Some(IpRange::prefix(net.addr(), net.prefix_len()))
}

/// Warns about names that no client or group of this host's server has, which look like mistakes.
fn warn_of_unknown(location: &Location, ruleset: &Ruleset) {
    let known = paths(location).and_then(|paths| clients::names(&paths));
    let filter = adit_filter::Filter::compile(ruleset.clone());
    if let (Ok(known), Ok(filter)) = (known, filter) {
        let problems = adit_runtime::filter::unknown(&filter, &known);
        problems.iter().for_each(|problem| note(&format!("warning: {problem}\n")));
    }
}

fn errors(diagnostics: &Diagnostics) -> Vec<Error<'_>> {
    let list = diagnostics.list.iter();
    list.map(|d| Error {
        file: &d.file,
        line: d.line,
        column: d.column,
        message: &d.message,
        instead: d.hint.as_deref(),
    })
    .collect()
}

/// Parses a rule file and the files that it includes. With `hooked`, hooks must lead to its chains, as for rules that are applied.
///
/// # Errors
///
/// The outer error means that a file cannot be read. The inner error is a mistake in its text.
pub(crate) fn parse(file: &Path, hooked: bool) -> Result<Result<Ruleset, Diagnostics>, Fault> {
    let name = file.display().to_string();
    let text = read(file, MAX_FILE).map_err(|error| Fault::operator(format!("{name}: {error}")))?;
    let parse = if hooked { lang::parse_hooked } else { lang::parse };
    Ok(parse(&name, &text, &mut |path| read(Path::new(path), MAX_FILE)))
}

/// Reads a file, or standard input for `-`: one byte more than `limit` bytes at most, so that the excess can be reported.
pub(crate) fn read(path: &Path, limit: usize) -> io::Result<String> {
    let mut text = String::new();
    let most = limit as u64 + 1;
    if path == Path::new("-") {
        io::stdin().lock().take(most).read_to_string(&mut text)?;
    } else {
        File::open(path)?.take(most).read_to_string(&mut text)?;
    }
    Ok(text)
}
