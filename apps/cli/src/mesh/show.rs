//! The state of a node: `status`, `peers`, `path`.

use std::cmp::Reverse;
use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;
use std::thread::sleep;
use std::time::{Duration, Instant};

use adit_runtime::control::{
    MeshJoiner, MeshPath, MeshPeer, MeshReport, MeshTinc, Request, Response,
};
use adit_runtime::fault::Fault;
use clap::Args;
use ipnet::IpNet;

use super::{MeshSelector, unexpected};
use crate::args::SortKey;
use crate::text::{bytes, count, rate, row, span, table_of_names};
use crate::{note, print, print_json};

/// The time limit for reaching a node.
const PATIENCE: Duration = Duration::from_secs(10);

/// How often to check whether it is reached.
const LOOK: Duration = Duration::from_millis(100);

/// The options of the commands that show the mesh.
#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Print JSON instead of text
    #[arg(long)]
    pub(super) json: bool,

    #[command(flatten)]
    pub(super) here: MeshSelector,
}

/// The options of the commands that show one node.
#[derive(Debug, Args)]
pub(crate) struct Path {
    /// The node's name, or the beginning of its key's hash
    #[arg(value_name = "NAME")]
    name: String,

    /// Print JSON instead of text
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    here: MeshSelector,
}

pub(super) fn status(options: &Show) -> Result<ExitCode, Fault> {
    let report = report(&options.here)?;
    if options.json {
        print_json(&report)?;
    } else {
        print(&status_page(&report));
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) fn peers(options: &Show) -> Result<ExitCode, Fault> {
    let report = report(&options.here)?;
    if options.json {
        print_json(&report.peers)?;
    } else {
        print(&peers_table(&report));
    }
    Ok(ExitCode::SUCCESS)
}

/// Explains the paths to a node, once it is reached.
pub(super) fn path(options: &Path) -> Result<ExitCode, Fault> {
    let path = connected(options)?;
    if options.json {
        print_json(&path)?;
    } else {
        print(&format!("{}\n{}{}", reached(&path.peer), path.text, channels(&path.peer)));
    }
    Ok(end(&path.peer))
}

/// Returns the exit code. It tells scripts whether the node was reached.
fn end(peer: &MeshPeer) -> ExitCode {
    if is_reached(peer) { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

pub(super) fn is_reached(peer: &MeshPeer) -> bool {
    matches!(peer.route.as_str(), "direct" | "relay")
}

/// Waits until a node is reached and its round trip is known. Returns the last answer.
fn connected(options: &Path) -> Result<MeshPath, Fault> {
    let began = Instant::now();
    loop {
        let request = Request::MeshPath { name: options.name.clone() };
        let Response::MeshPath(path) = options.here.ask(&request)? else {
            return Err(unexpected());
        };
        let known = is_reached(&path.peer) && path.peer.rtt_ms.is_some();
        if known || began.elapsed() > PATIENCE {
            if !is_reached(&path.peer) {
                note(&format!(
                    "adit: {} does not answer: it may be off, or no relay has a session with it\n",
                    options.name
                ));
            }
            return Ok(*path);
        }
        sleep(LOOK);
    }
}

pub(super) fn report(here: &MeshSelector) -> Result<MeshReport, Fault> {
    let Response::Status(status) = here.ask(&Request::Status)? else { return Err(unexpected()) };
    status.mesh.ok_or_else(unexpected)
}

/// Returns the section of a node in `adit status`.
pub(crate) fn in_status(report: &MeshReport) -> String {
    let mut text = format!("  node {}: {}\n", report.node, addresses(&report.addresses));
    for line in peers_table(report).lines() {
        text.push_str(&format!("  {line}\n"));
    }
    text.push_str(&waiting(report, "  waiting: "));
    report.warnings.iter().for_each(|warning| text.push_str(&format!("  warning: {warning}\n")));
    text
}

fn status_page(report: &MeshReport) -> String {
    let id = report.id.get(..8).unwrap_or(&report.id);
    let mut text = format!("mesh       {} ({id}); this machine is {}\n", report.mesh, report.node);
    text.push_str(&format!("inside     {}\n", addresses(&report.addresses)));
    if report.ethernet {
        text.push_str(&format!("carries    Ethernet frames, on the device {}\n", report.device));
    }
    let reachable = reachable(report);
    let reachable = if reachable.is_empty() { vec!["no address".into()] } else { reachable };
    text.push_str(&format!("reachable  {}\n", reachable.join("\n           ")));
    text.push_str(&format!("NAT        {}\n", report.nat));
    if let Some(exit) = &report.exit {
        text.push_str(&format!("exit       {exit}\n"));
    }
    let subnets: Vec<String> = report.subnets.iter().map(ToString::to_string).collect();
    for (title, list) in [("groups", &report.groups), ("networks", &subnets)] {
        if !list.is_empty() {
            text.push_str(&format!("{title:<11}{}\n", list.join(", ")));
        }
    }
    let mut rights = Vec::new();
    let apps = format!("gateway for OpenVPN apps ({} connected)", report.connected_apps);
    if report.admin {
        rights.push("key of an admin");
    }
    if report.relay {
        rights.push("relays for others");
    }
    if report.gateway {
        rights.push("gateway");
    }
    if report.openvpn {
        rights.push(&apps);
    }
    if !rights.is_empty() {
        text.push_str(&format!("roles      {}\n", rights.join(", ")));
    }
    if let Some(tinc) = &report.tinc {
        text.push_str(&format!("tinc       {}\n", in_tinc(tinc)));
    }
    if let Some(directory) = &report.directory {
        text.push_str(&format!("directory  {}\n", super::directory::line(directory)));
    }
    let connected = report.peers.iter().filter(|peer| is_reached(peer)).count();
    text.push_str(&format!(
        "peers      {}, {connected} connected\n",
        count(report.peers.len(), "other node")
    ));
    text.push_str(&waiting(report, "waiting    "));
    report.warnings.iter().for_each(|warning| text.push_str(&format!("warning    {warning}\n")));
    text
}

/// Returns the line about the tinc net in which the node is a guest.
fn in_tinc(tinc: &MeshTinc) -> String {
    let list = |nets: &[IpNet]| nets.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let Some(node) = &tinc.node else {
        let state = if tinc.problem.is_some() { "no connection" } else { "starting" };
        return format!("guest in {}: {state}", tinc.net);
    };
    let nodes = count(tinc.reachable, "other node");
    let mut text = format!("guest in {} as {node}; {nodes}", tinc.net);
    for (what, nets) in [("reaches", &tinc.reached), ("announces", &tinc.announced)] {
        if !nets.is_empty() {
            text.push_str(&format!("\n           {what} {}", list(nets)));
        }
    }
    if !tinc.guests.is_empty() {
        text.push_str(&format!("\n           with other guests: {}", tinc.guests.join(", ")));
    }
    if tinc.left_out > 0 {
        text.push_str(&format!("\n           without {}", count(tinc.left_out, "further network")));
    }
    text
}

/// Returns the addresses at which others may reach this node, each with its ports.
pub(super) fn reachable(report: &MeshReport) -> Vec<String> {
    let tcp = report.tcp_port.map(|port| format!(", tcp/{port}")).unwrap_or_default();
    let at = |at: &SocketAddr| format!("{} udp/{}{tcp}", at.ip(), at.port());
    report.reachable.iter().map(at).collect()
}

/// Returns a line for each node that waits for approval.
fn waiting(report: &MeshReport, head: &str) -> String {
    let line = |joiner: &MeshJoiner| {
        format!(
            "{head}{} for {}: adit mesh approve {}\n",
            joiner.name,
            span(joiner.waits_s),
            joiner.name
        )
    };
    report.waiting.iter().map(line).collect()
}

/// Returns the section of a node in `adit top`: the traffic between it and each peer.
pub(crate) fn in_top(report: &MeshReport, sort: SortKey) -> String {
    let mut peers: Vec<&MeshPeer> = report.peers.iter().filter(|peer| is_reached(peer)).collect();
    match sort {
        SortKey::Name => {}
        SortKey::Rate => peers.sort_by_key(|it| Reverse(it.rx_bps.saturating_add(it.tx_bps))),
        SortKey::Traffic => {
            peers.sort_by_key(|it| Reverse(it.rx_bytes.saturating_add(it.tx_bytes)));
        }
        SortKey::Received => peers.sort_by_key(|it| Reverse((it.rx_bps, it.rx_bytes))),
        SortKey::Sent => peers.sort_by_key(|it| Reverse((it.tx_bps, it.tx_bytes))),
        SortKey::Connected => peers.sort_by_key(|it| Reverse(it.connected_s)),
    }
    let mut text = format!(
        "  node {}: {}, {} connected\n",
        report.node,
        count(report.peers.len(), "other node"),
        peers.len()
    );
    if !peers.is_empty() {
        let mut rows = vec![row(["  NODE", "PATH", "RTT", "RECEIVED", "", "SENT", ""])];
        rows.extend(peers.into_iter().map(|peer| {
            vec![
                format!("  {}", name(peer)),
                match (peer.route.as_str(), &peer.via) {
                    ("relay", Some(relay)) => format!("by {relay}"),
                    (route, _) => route.to_owned(),
                },
                peer.rtt_ms.map(|rtt| format!("{rtt:.1} ms")).unwrap_or_default(),
                bytes(peer.rx_bytes),
                rate(peer.rx_bps),
                bytes(peer.tx_bytes),
                rate(peer.tx_bps),
            ]
        }));
        text.push_str(&table_of_names(rows));
    }
    text.push_str(&waiting(report, "  waiting: "));
    report.warnings.iter().for_each(|warning| text.push_str(&format!("  warning: {warning}\n")));
    text
}

fn peers_table(report: &MeshReport) -> String {
    if report.peers.is_empty() {
        return "there is no other node yet; invite one with: sudo adit mesh invite\n".into();
    }
    let mut rows = vec![row(["NODE", "ADDRESS", "PATH", "RTT", "FOR"])];
    for peer in &report.peers {
        let address = peer.addresses.first().map(ToString::to_string).unwrap_or_default();
        rows.push(vec![
            name(peer),
            address,
            route(peer),
            peer.rtt_ms.map(|rtt| format!("{rtt:.1} ms")).unwrap_or_default(),
            peer.connected_s.map(span).unwrap_or_default(),
        ]);
    }
    table_of_names(rows)
}

fn name(peer: &MeshPeer) -> String {
    let short = || peer.key.get(..8).unwrap_or(&peer.key).to_owned();
    peer.name.clone().unwrap_or_else(short)
}

/// Returns the node to which this one has a TCP connection, if it reaches a peer that way.
fn over_tcp(peer: &MeshPeer) -> Option<String> {
    let first = match (peer.route.as_str(), &peer.via) {
        ("direct", _) => name(peer),
        ("relay", Some(relay)) => relay.clone(),
        _ => return None,
    };
    peer.tcp.then(|| format!("TCP to {first}, because UDP gets no answer"))
}

fn route(peer: &MeshPeer) -> String {
    let mark = match (peer.expired, peer.stale) {
        (true, _) => ", no routes",
        (false, true) => ", stale",
        (false, false) => "",
    };
    if let Some(way) = over_tcp(peer) {
        return way + mark;
    }
    let route = match (peer.route.as_str(), &peer.via) {
        ("direct", Some(to)) => format!("direct {to}"),
        ("relay", Some(relay)) => format!("relay {relay}"),
        ("leaf", _) => {
            format!("leaf of {}", peer.leaf_of.as_deref().unwrap_or("a gateway"))
        }
        ("none", _) => "-".into(),
        (other, _) => other.into(),
    };
    route + mark
}

/// Returns one line about how a node is reached.
fn reached(peer: &MeshPeer) -> String {
    let rtt = peer.rtt_ms.map(|rtt| format!(", {rtt:.1} ms")).unwrap_or_default();
    let way = over_tcp(peer).unwrap_or_else(|| match (peer.route.as_str(), &peer.via) {
        ("direct", Some(to)) => format!("direct, {to}"),
        ("relay", Some(relay)) => format!("through {relay}"),
        _ => "not reached".into(),
    });
    format!("{} ({}): {way}{rtt}", name(peer), addresses(&peer.addresses))
}

/// Returns the lines about the traffic of the data channels, or nothing without a session.
fn channels(peer: &MeshPeer) -> String {
    let (mut text, mut heading) = (String::new(), "channels");
    for (number, channel) in peer.channels.iter().enumerate() {
        let (received, sent) = (bytes(channel.received_bytes), bytes(channel.sent_bytes));
        text.push_str(&format!("{heading:<13}{number}: {received} received, {sent} sent\n"));
        heading = "";
    }
    text
}

pub(super) fn addresses(addresses: &[IpAddr]) -> String {
    addresses.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> MeshPeer {
        MeshPeer {
            name: Some("laptop".into()),
            key: "5f".repeat(32),
            addresses: vec!["100.87.0.2".parse().unwrap()],
            route: "direct".into(),
            via: Some("203.0.113.7:1194".into()),
            rtt_ms: Some(14.25),
            connected_s: Some(65),
            ..MeshPeer::default()
        }
    }

    #[test]
    fn a_peers_line_says_how_it_is_reached() {
        assert_eq!(reached(&peer()), "laptop (100.87.0.2): direct, 203.0.113.7:1194, 14.2 ms");
        let relayed = MeshPeer { route: "relay".into(), via: Some("hub".into()), ..peer() };
        assert_eq!(reached(&relayed), "laptop (100.87.0.2): through hub, 14.2 ms");
        let tcp = MeshPeer { tcp: true, ..relayed };
        let reason = "TCP to hub, because UDP gets no answer";
        assert_eq!(reached(&tcp), format!("laptop (100.87.0.2): {reason}, 14.2 ms"));
        assert_eq!(route(&tcp), reason);
        let hub = MeshPeer { name: Some("hub".into()), tcp: true, ..peer() };
        assert_eq!(route(&hub), reason);
        let lost = MeshPeer { route: "connecting".into(), via: None, rtt_ms: None, ..peer() };
        assert_eq!(reached(&lost), "laptop (100.87.0.2): not reached");
    }

    #[test]
    fn the_status_page_shows_what_this_node_is_and_what_waits() {
        let joiner = MeshJoiner { name: "new".into(), waits_s: 9, ..MeshJoiner::default() };
        let report = MeshReport {
            mesh: "home".into(),
            id: "7f3a".into(),
            node: "hub".into(),
            addresses: vec!["100.87.0.1".parse().unwrap()],
            subnets: vec!["192.168.7.0/24".parse().unwrap()],
            groups: vec!["web".into(), "db".into()],
            nat: "no NAT".into(),
            relay: true,
            gateway: true,
            exit: Some("gw".into()),
            peers: vec![peer()],
            waiting: vec![joiner],
            warnings: vec!["something".into()],
            ..MeshReport::default()
        };
        assert_eq!(
            status_page(&report),
            "mesh       home (7f3a); this machine is hub\n\
             inside     100.87.0.1\n\
             reachable  no address\n\
             NAT        no NAT\n\
             exit       gw\n\
             groups     web, db\n\
             networks   192.168.7.0/24\n\
             roles      relays for others, gateway\n\
             peers      1 other node, 1 connected\n\
             waiting    new for 9 s: adit mesh approve new\n\
             warning    something\n"
        );
    }

    #[test]
    fn the_status_page_shows_the_tinc_net_of_a_guest() {
        let nets = |texts: &[&str]| texts.iter().map(|text| text.parse().unwrap()).collect();
        let mut tinc = MeshTinc { net: "office".into(), ..MeshTinc::default() };
        assert_eq!(in_tinc(&tinc), "guest in office: starting");
        tinc.problem = Some("why".into());
        assert_eq!(in_tinc(&tinc), "guest in office: no connection");
        let tinc = MeshTinc {
            node: Some("gate".into()),
            reachable: 1,
            reached: nets(&["10.20.3.0/24"]),
            announced: nets(&["100.87.0.0/16", "fd00::/64"]),
            guests: vec!["gate2".into()],
            left_out: 2,
            ..tinc
        };
        let page = status_page(&MeshReport { tinc: Some(tinc), ..MeshReport::default() });
        let lines = "tinc       guest in office as gate; 1 other node\n           reaches 10.20.3.0/24\n           \
                     announces 100.87.0.0/16, fd00::/64\n           with other guests: gate2\n           \
                     without 2 further networks\n";
        assert!(page.contains(lines), "{page}");
    }

    #[test]
    fn a_stale_peer_and_one_without_routes_are_marked() {
        let stale = MeshPeer { stale: true, ..peer() };
        assert_eq!(route(&stale), "direct 203.0.113.7:1194, stale");
        let expired = MeshPeer { expired: true, ..stale };
        assert_eq!(route(&expired), "direct 203.0.113.7:1194, no routes");
    }

    #[test]
    fn top_sorts_connected_peers_and_fits_a_terminal() {
        let quiet = MeshPeer { name: Some("a".into()), ..peer() };
        let busy = MeshPeer {
            name: Some("z".into()),
            route: "relay".into(),
            via: Some("hub".into()),
            rx_bps: 999_900_000,
            tx_bps: 999_900_000,
            rx_bytes: 999_900_000_000,
            tx_bytes: 999_900_000_000,
            ..peer()
        };
        let off = MeshPeer { route: "none".into(), ..peer() };
        let joiner = MeshJoiner { name: "new".into(), waits_s: 9, ..MeshJoiner::default() };
        let report = MeshReport {
            node: "hub".into(),
            peers: vec![quiet, busy, off],
            waiting: vec![joiner],
            ..MeshReport::default()
        };
        let page = in_top(&report, SortKey::Rate);
        let lines: Vec<&str> = page.lines().collect();
        assert_eq!(lines[0], "  node hub: 3 other nodes, 2 connected");
        assert!(lines[2].starts_with("  z") && lines[2].contains("by hub"), "{page}");
        assert!(lines[3].starts_with("  a") && lines[3].contains("direct"), "{page}");
        assert!(lines[4].contains("new for 9 s: adit mesh approve new"), "{page}");
        assert!(lines.iter().all(|line| line.chars().count() <= 80), "{page}");
        assert!(in_top(&report, SortKey::Name).lines().nth(2).unwrap().starts_with("  a"));
    }

    #[test]
    fn a_path_shows_what_passed_through_each_channel() {
        use adit_runtime::control::MeshChannel;
        let channel =
            |n| MeshChannel { received_bytes: n, sent_bytes: 2 * n, ..MeshChannel::default() };
        let two = MeshPeer { channels: vec![channel(1_500_000), channel(40)], ..peer() };
        let lines = "channels     0: 1.5 MB received, 3 MB sent\n             1: 40 B received, 80 B sent\n";
        assert_eq!(channels(&two), lines);
        assert_eq!(channels(&peer()), "");
    }

    #[test]
    fn a_table_of_peers_fits_a_terminal() {
        let report = MeshReport { peers: vec![peer()], ..MeshReport::default() };
        let table = peers_table(&report);
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
        assert!(table.contains("direct 203.0.113.7:1194  14.2 ms"), "{table}");
        let leaf =
            MeshPeer { route: "leaf".into(), leaf_of: Some("hub".into()), via: None, ..peer() };
        let table = peers_table(&MeshReport { peers: vec![leaf], ..MeshReport::default() });
        assert!(table.contains("leaf of hub"), "{table}");
        let gateway = MeshReport { openvpn: true, connected_apps: 2, ..MeshReport::default() };
        let page = status_page(&gateway);
        assert!(page.contains("gateway for OpenVPN apps (2 connected)"), "{page}");
        assert!(peers_table(&MeshReport::default()).contains("adit mesh invite"));
        let tcp = MeshPeer { route: "relay".into(), via: Some("hub".into()), tcp: true, ..peer() };
        let table = peers_table(&MeshReport { peers: vec![tcp], ..MeshReport::default() });
        assert!(table.lines().all(|line| line.chars().count() <= 80), "{table}");
    }

    #[test]
    fn the_ports_of_a_node_are_shown_with_its_addresses() {
        let at = vec!["203.0.113.1:1194".parse().unwrap()];
        let mut report = MeshReport { reachable: at, tcp_port: Some(443), ..MeshReport::default() };
        assert_eq!(reachable(&report), ["203.0.113.1 udp/1194, tcp/443"]);
        report.tcp_port = None;
        assert_eq!(reachable(&report), ["203.0.113.1 udp/1194"]);
    }
}
