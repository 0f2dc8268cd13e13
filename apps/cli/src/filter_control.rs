//! `adit filter show`, `reload`, `flush`, `element` and `capture`: access to the rules of a running server or bridge.

use std::collections::BTreeMap;
use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use adit_runtime::control::{FilterReport, FlowReport, FlowTotals};
use adit_runtime::fault::Fault;
use adit_runtime::filter;
use clap::{Args, Subcommand, ValueHint};

use crate::args::Location;
use crate::text::{bytes, row, span, table};
use crate::{note, paths, print, print_json};

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The name of the server or bridge in `adit status` [default: the only one with a filter]
    #[arg(add = crate::complete::process())]
    pub name: Option<String>,

    /// Also list connections
    #[arg(long)]
    pub flows: bool,

    /// Print JSON instead of text
    #[arg(long)]
    pub json: bool,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct Reload {
    /// The name of the server or bridge, or the file if there is no process with this name
    #[arg(value_name = "NAME", add = crate::complete::process())]
    pub name: Option<String>,

    /// The file with the new rules [default: the file with the current rules]
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: Option<PathBuf>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct Flush {
    /// The name of the server or bridge [default: the only one with a filter]
    pub name: Option<String>,

    /// End only the connections of this client, which need not be connected
    #[arg(long, value_name = "NAME", conflicts_with = "address")]
    pub client: Option<String>,

    /// End only the connections from or to this address or network
    #[arg(long, value_name = "ADDRESS[/LENGTH]")]
    pub address: Option<String>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Element {
    /// Add elements to a set, either all or none
    #[command(after_help = "Examples:
  sudo adit filter element add blocked 192.0.2.7 timeout 1h
  sudo adit filter element add inet filter blocked 192.0.2.7, 192.0.2.9
  sudo adit filter element add --name office nets 10.1.0.0/16
  sudo adit filter element add hosts '10.0.0.1 . 22 comment \"jump host\"'

Elements are written as for nft's `add element`. A timeout needs `flags timeout`
in the set. An element that exists already gets the new timeout. Added elements
survive a reload, but not a restart.")]
    Add(Elements),

    /// Delete elements from a set, either all or none
    #[command(
        visible_alias = "delete",
        after_help = "Examples:
  sudo adit filter element del blocked 192.0.2.7
  sudo adit filter element del inet filter blocked '{ 192.0.2.7, 192.0.2.9 }'

A reload restores the elements of the rule file."
    )]
    Del(Elements),
}

#[derive(Debug, Args)]
pub(crate) struct Elements {
    /// The name of the server or bridge [default: the only one with a filter]
    #[arg(long, value_name = "NAME", add = crate::complete::process())]
    pub name: Option<String>,

    /// The set and the elements as in a rule file, with or without braces: [FAMILY TABLE] SET ELEMENT, ...
    #[arg(required = true, value_name = "SET ELEMENT", num_args = 1..)]
    pub words: Vec<String>,

    #[command(flatten)]
    pub location: Location,
}

#[derive(Debug, Args)]
pub(crate) struct Capture {
    /// The file for the packets, as pcapng; - for stdout
    #[arg(value_hint = ValueHint::FilePath)]
    pub file: PathBuf,

    /// The name of the server or bridge [default: the only one with a filter]
    #[arg(add = crate::complete::process())]
    pub name: Option<String>,

    /// Write only the packets that rules log to this group
    #[arg(long, value_name = "N")]
    pub group: Option<u16>,

    #[command(flatten)]
    pub location: Location,
}

pub(crate) fn show(options: &Show) -> Result<ExitCode, Fault> {
    let run = paths(&options.location)?.run;
    let report = filter::show(&run, options.name.as_deref(), options.flows)?;
    if options.json {
        print_json(&report)?;
    } else {
        print(&page(&report, crate::text::now()));
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn reload(options: &Reload) -> Result<ExitCode, Fault> {
    let run = paths(&options.location)?.run;
    let (name, file) = name_and_file(options, &run);
    let report = filter::reload(&run, name, file)?;
    print(&format!(
        "{}: the rules of {} are in force; known connections are evaluated again\n",
        report.instance, report.file
    ));
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn flush(options: &Flush) -> Result<ExitCode, Fault> {
    let run = paths(&options.location)?.run;
    let (client, address) = (options.client.as_deref(), options.address.as_deref());
    let (instance, count) = filter::flush(&run, options.name.as_deref(), client, address)?;
    let s = if count == 1 { "" } else { "s" };
    print(&format!("{instance}: {count} connection{s} ended\n"));
    Ok(ExitCode::SUCCESS)
}

pub(crate) fn element(verb: &Element) -> Result<ExitCode, Fault> {
    let (delete, options) = match verb {
        Element::Add(options) => (false, options),
        Element::Del(options) => (true, options),
    };
    let run = paths(&options.location)?.run;
    let text = options.words.join(" ");
    let (instance, count) = filter::element(&run, options.name.as_deref(), delete, &text)?;
    let s = if count == 1 { "" } else { "s" };
    let done = if delete { "deleted" } else { "added or renewed" };
    print(&format!("{instance}: {count} element{s} {done}\n"));
    Ok(ExitCode::SUCCESS)
}

/// Describes the flows that did not fit into the table of connections. `shares` is the number of those that were
/// evicted because their source exceeded its share.
pub(crate) fn full_table(flows: &FlowTotals, shares: u64) -> Vec<String> {
    let counts = [
        (flows.evicted, "made room for others"),
        (shares, "of these, from sources with more than their share"),
        (flows.refused_full, "refused for lack of space"),
        (flows.refused_source, "refused from sources with too many unanswered ones"),
    ];
    let counts = counts.into_iter().filter(|(count, _)| *count > 0);
    counts.map(|(count, what)| format!("{count} {what}")).collect()
}

/// Distinguishes a process's name from a file. `adit filter reload fw.nft` means the file, unless a process has that
/// name.
fn name_and_file<'o>(options: &'o Reload, run: &Path) -> (Option<&'o str>, Option<&'o Path>) {
    match (&options.name, &options.file) {
        (Some(file), None) if !run.join(format!("{file}.sock")).exists() => {
            (None, Some(Path::new(file)))
        }
        (name, file) => (name.as_deref(), file.as_deref()),
    }
}

pub(crate) fn capture(options: &Capture) -> Result<ExitCode, Fault> {
    let run = paths(&options.location)?.run;
    let mut out = target(&options.file)?;
    let name = options.name.as_deref();
    let (written, lost) = filter::capture(&run, name, options.group, &mut *out)?;
    let lost =
        if lost > 0 { format!(", {lost} were lost: too many at once") } else { String::new() };
    let packets = if written == 1 { "packet" } else { "packets" };
    note(&format!("{written} {packets} captured{lost}\n"));
    Ok(ExitCode::SUCCESS)
}

/// Opens the file for packets. Only its owner may read it, because packets are private.
fn target(path: &Path) -> Result<Box<dyn Write>, Fault> {
    if path == Path::new("-") {
        return Ok(Box::new(io::stdout()));
    }
    let opened = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path);
    let file = opened
        .map_err(|error| Fault::operator(format!("cannot write to {}: {error}", path.display())))?;
    Ok(Box::new(file))
}

/// Formats the rules so that they can be loaded again, with all other information as comments.
fn page(report: &FilterReport, now: u64) -> String {
    let age = span(now.saturating_sub(report.since));
    let mut text = format!("# {}: {}, in force for {age}", report.instance, report.file);
    if report.reloads > 0 {
        let times = match report.reloads {
            1 => "once".to_owned(),
            count => format!("{count} times"),
        };
        text.push_str(&format!(", replaced {times} since the start"));
    }
    text.push('\n');
    text.push_str(&report.rules);
    if !text.ends_with('\n') {
        text.push('\n');
    }
    let flows = &report.flows;
    text.push_str(&format!("# connections: {} of {}", flows.now, flows.limit));
    text.push_str(&listed(&flows.states));
    text.push('\n');
    let counts = full_table(flows, flows.evicted_share);
    if flows.withdrawn > 0 {
        text.push_str(&format!(
            "# ended by other rules or clients, or on request: {}\n",
            flows.withdrawn
        ));
    }
    if !counts.is_empty() {
        text.push_str(&format!("# full table: {}\n", counts.join(", ")));
    }
    let added = &report.elements;
    if added.now > 0 || added.expired > 0 || added.refused > 0 {
        text.push_str(&format!(
            "# elements added to sets: {} of {}; {} expired, {} refused for lack of space\n",
            added.now, added.limit, added.expired, added.refused
        ));
    }
    if !report.drops.is_empty() {
        text.push_str(&format!("# dropped packets{}\n", listed(&report.drops)));
    }
    for (name, addresses) in &report.members {
        let addresses = if addresses.is_empty() { "nobody".into() } else { addresses.join(", ") };
        text.push_str(&format!("# {name}: {addresses}\n"));
    }
    if !report.lost.is_empty() {
        text.push_str(&format!("# lost{}\n", listed(&report.lost)));
    }
    if let Some(list) = &report.list {
        text.push_str(&connections(list));
    }
    text
}

fn listed(counts: &BTreeMap<String, u64>) -> String {
    let pairs: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    if pairs.is_empty() { String::new() } else { format!(": {}", pairs.join(", ")) }
}

fn connections(list: &[FlowReport]) -> String {
    let mut rows = vec![row(["#", "FROM", "TO", "STATE", "FOR", "LEFT", "PACKETS", "BYTES"])];
    for flow in list {
        let [there, back] = flow.packets;
        let [out, home] = flow.bytes;
        let end = |address: &str, at: usize| match flow.clients.get(at) {
            Some(client) if !client.is_empty() => format!("{address} ({client})"),
            _ => address.to_owned(),
        };
        let source = match flow.vlans.as_slice() {
            [] => flow.source.clone(),
            ids => format!(
                "{} vlan {}",
                flow.source,
                ids.iter().map(u16::to_string).collect::<Vec<_>>().join(".")
            ),
        };
        rows.push(vec![
            format!("# {}", flow.protocol),
            end(&source, 0),
            end(&flow.destination, 1),
            flow.state.clone(),
            span(flow.age_s),
            span(flow.left_s),
            format!("{there} {back}"),
            format!("{} {}", bytes(out), bytes(home)),
        ]);
    }
    table(&rows)
}

#[cfg(test)]
mod tests {
    use adit_runtime::control::FlowTotals;

    use super::*;

    #[test]
    fn what_is_shown_is_a_rule_file_with_comments() {
        let report = FilterReport {
            instance: "server".into(),
            file: "/etc/adit/rules.nft".into(),
            since: 1000,
            reloads: 2,
            rules: "table inet t {\n}\n".into(),
            flows: FlowTotals {
                now: 3,
                limit: 262_144,
                states: [("established".to_owned(), 2), ("udp".to_owned(), 1)].into(),
                evicted: 12,
                evicted_share: 7,
                withdrawn: 3,
                ..FlowTotals::default()
            },
            drops: [("rules".to_owned(), 7)].into(),
            members: [
                ("@client:alice".to_owned(), vec!["10.8.0.2/32".to_owned()]),
                ("@group:staff".to_owned(), vec![]),
            ]
            .into(),
            list: Some(vec![FlowReport {
                protocol: "tcp".into(),
                source: "10.8.0.2:4000".into(),
                destination: "10.8.0.1:80".into(),
                vlans: vec![10, 20],
                clients: vec!["alice".into(), String::new()],
                state: "established".into(),
                age_s: 61,
                left_s: 432_000,
                packets: [3, 2],
                bytes: [1500, 120],
            }]),
            ..FilterReport::default()
        };
        let page = page(&report, 1060);
        let rules: Vec<&str> = page.lines().filter(|line| !line.starts_with('#')).collect();
        assert_eq!(rules, ["table inet t {", "}"]);
        for said in [
            "# server: /etc/adit/rules.nft, in force for 1 min",
            "replaced 2 times",
            "# connections: 3 of 262144: established 2, udp 1\n",
            "# dropped packets: rules 7\n",
            "# @client:alice: 10.8.0.2/32\n",
            "# @group:staff: nobody\n",
            "# tcp",
            "10.8.0.2:4000 vlan 10.20",
            "# full table: 12 made room for others, 7 of these, from sources with more than their share",
            "# ended by other rules or clients, or on request: 3\n",
        ] {
            assert!(page.contains(said), "{said} is missing in:\n{page}");
        }
    }

    #[test]
    fn a_single_word_is_a_name_where_one_runs_and_a_file_elsewhere() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("server.sock"), "").unwrap();
        let asked = |name: &str, file: Option<&str>| {
            let options = Reload {
                name: Some(name.into()),
                file: file.map(Into::into),
                location: Location::default(),
            };
            let (name, file) = name_and_file(&options, dir.path());
            (name.map(str::to_owned), file.map(Path::to_owned))
        };
        assert_eq!(asked("server", None), (Some("server".into()), None));
        assert_eq!(asked("fw.nft", None), (None, Some("fw.nft".into())));
        let both = (Some("x".into()), Some("fw.nft".into()));
        assert_eq!(asked("x", Some("fw.nft")), both);
    }
}
