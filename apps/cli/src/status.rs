//! `adit status`. The submodules contain `adit top`, `adit kick` and `adit reload`.

mod reload;
#[cfg(test)]
mod tests;
pub(crate) mod top;

use std::collections::BTreeMap;
use std::process::ExitCode;

use adit_app_server::Overview;
use adit_runtime::control::{
    BridgeReport, CertificateReport, FlowTotals, LoginReport, PeerReport, SharedProfile,
    StatusReport,
};
use adit_runtime::fault::Fault;
use adit_runtime::host::{self, Leftover};
use adit_runtime::paths::Paths;

use crate::args::Status;
use crate::filter_control::full_table;
use crate::text::{
    bytes, count, cut, date_from_now, rate, row, span, table, table_of_names, wrapped,
};
use crate::{note, paths, print, print_json};

pub(crate) use reload::{kick, reload};
pub(crate) use top::top;

/// The maximum length of a client's name in a line about its certificate.
const LONGEST_OWNER: usize = 18;

/// A certificate is mentioned from this many days before its expiry.
const SOON_DAYS: i64 = 30;

/// The drop reason for packets that IPv6 sends on every interface and whose loss has no effect.
const HARMLESS: &str = "local-scope";

pub(crate) fn once(options: &Status) -> Result<ExitCode, Fault> {
    let paths = paths(&options.location)?;
    let machine = adit_app_server::status(&paths)?;
    if options.json {
        print_json(&machine.reports)?;
        note(&left_behind(&machine, &paths));
        note(&kept_in(&host::leftovers()));
    } else {
        print(&page(&machine, &paths));
        print(&kept_in(&host::leftovers()));
    }
    let answered = machine.reports.iter().any(|report| report.problem.is_none());
    Ok(if answered { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Describes the kill switch that an ended client left.
fn kept_in(found: &[Leftover]) -> String {
    if found.contains(&Leftover::KillSwitch) {
        wrapped(
            "",
            "The kill switch of a client that has ended keeps all traffic in: adit connect --release \
         turns it off",
        )
    } else {
        String::new()
    }
}

fn left_behind(machine: &Overview, paths: &Paths) -> String {
    if machine.left_behind.is_empty() {
        return String::new();
    }
    let left = machine.left_behind.join(", ");
    wrapped("A server was killed and left behind: ", &left)
        + &format!("  undo it: {}, or start the server again\n", paths.command("doctor --fix"))
}

fn page(machine: &Overview, paths: &Paths) -> String {
    let left = left_behind(machine, paths);
    if machine.reports.is_empty() {
        return format!(
            "Nothing is running here. Start a server with: {}\n{left}",
            paths.command("server up")
        );
    }
    let mut pages: Vec<String> = machine.reports.iter().map(report).collect();
    if !left.is_empty() {
        pages.push(left);
    }
    pages.join("\n")
}

/// Returns the displayed name, such as `server`, `server openvpn-17` or `client laptop`.
fn name(report: &StatusReport) -> String {
    let instance = report.instance.as_str();
    let bare = match report.role.as_str() {
        role if role == instance => "",
        "client" => instance.strip_prefix("connect-").unwrap_or(instance),
        "postgres" => instance.strip_prefix("postgres-").unwrap_or(instance),
        "mesh" => instance.strip_prefix("mesh-").unwrap_or(instance),
        "tinc" => instance.strip_prefix("tinc-").unwrap_or(instance),
        _ => instance,
    };
    format!("{} {bare}", report.role).trim_end().to_owned()
}

fn title(report: &StatusReport) -> String {
    let name = name(report);
    if let Some(problem) = &report.problem {
        let process = match (report.pid, &report.user) {
            (0, None) => String::new(),
            (0, Some(user)) => format!(" (user {user})"),
            (pid, None) => format!(" (process {pid})"),
            (pid, Some(user)) => format!(" (process {pid}, user {user})"),
        };
        return wrapped("", &format!("{name}{process}: {problem}"));
    }
    format!("{name}: {}, process {}, up {}\n", report.state, report.pid, span(report.uptime_s))
}

fn report(report: &StatusReport) -> String {
    let mut text = title(report);
    if report.problem.is_some() {
        return text;
    }
    let own = env!("CARGO_PKG_VERSION");
    if !report.version.is_empty() && report.version != own {
        let versions =
            format!("it runs version {}, and this program is {own}: restart it", report.version);
        text.push_str(&wrapped("  note: ", &versions));
    }
    let place = match report.role.as_str() {
        "server" | "tinc" => "listens on",
        "bridge" => "joins",
        _ => "connects to",
    };
    // A node of a mesh has no endpoints; its paths are below.
    if !report.endpoints.is_empty() {
        text.push_str(&wrapped(&format!("  {place} "), &report.endpoints.join(", ")));
    }
    if let Some(tun) = &report.tun {
        let head = format!("  device {} mtu {}: ", tun.name, tun.mtu);
        text.push_str(&wrapped(&head, &tun.addresses.join(", ")));
    }
    if let Some(dns) = &report.dns {
        text.push_str(&wrapped("  DNS: ", &dns.to_string()));
    }
    if let Some(why) = &report.routing {
        text.push_str(&wrapped("  WARNING: routing incomplete, tried again: ", why));
    }
    text.push_str(&expiries(report));
    if let Some(logins) = &report.logins {
        text.push_str(&wrapped("  logins: ", &login_counts(logins)));
    }
    if let Some(file) = &report.filter {
        text.push_str(&format!("  filter: {file}\n"));
    }
    if let Some(flows) = &report.connections {
        text.push_str(&wrapped("  connections: ", &fill(flows)));
    }
    if report.workers > 0 {
        text.push_str(&format!("  workers: {}\n", report.workers));
    }
    text.push_str(&offloads(report));
    text.push_str(&drops(&report.drops));
    report.shared.iter().for_each(|profile| text.push_str(&shared(profile)));
    #[cfg(feature = "mesh")]
    if let Some(mesh) = &report.mesh {
        return text + &crate::mesh::show::in_status(mesh);
    }
    #[cfg(feature = "tinc")]
    if let Some(tinc) = &report.tinc {
        return text + &crate::tinc::status::in_status(tinc);
    }
    match (&report.bridge, &report.postgres) {
        (Some(bridge), _) => text.push_str(&ports(bridge)),
        #[cfg(feature = "postgres")]
        (_, Some(postgres)) => text.push_str(&crate::postgres::show::in_status(postgres)),
        _ => text.push_str(&peers(report)),
    }
    text
}

fn expiries(report: &StatusReport) -> String {
    let soon = |certificate: &CertificateReport| certificate.days_left < SOON_DAYS;
    let mut text = String::new();
    if let Some(own) = &report.certificate {
        let what = match own.whose.as_str() {
            "own" => "own certificate ends".to_owned(),
            "ca" => "authority's certificate ends".to_owned(),
            whose => format!("certificate of {} ends", cut(whose, LONGEST_OWNER)),
        };
        let warning = if soon(own) { "  <- renew it" } else { "" };
        text.push_str(&format!("  {what}: {}{warning}\n", date_from_now(own.not_after)));
    }
    if let Some(first) = &report.client_certificate {
        let whose = cut(&first.whose, LONGEST_OWNER);
        let warning = if soon(first) { " <- soon" } else { "" };
        let until = date_from_now(first.not_after);
        text.push_str(&format!("  first client to renew: {whose}, until {until}{warning}\n"));
    }
    text
}

/// Describes the logins of users; only those that occurred, except for the successful ones.
fn login_counts(logins: &LoginReport) -> String {
    let mut parts = vec![format!("{} accepted", logins.accepted)];
    for (count, what) in [
        (logins.failed, "failed"),
        (logins.paused, "refused during a pause after failures"),
        (logins.busy, "not verified"),
        (logins.limits_dropped, "limits dropped for lack of space"),
    ] {
        if count > 0 {
            parts.push(format!("{count} {what}"));
        }
    }
    parts.join(", ")
}

fn shared(profile: &SharedProfile) -> String {
    let [one, other] = &profile.addresses;
    let ago = span(crate::text::now().saturating_sub(profile.last));
    wrapped(
        "  warning: ",
        &format!(
            "{} is used from two addresses, {one} and {other} ({}, last {ago} ago): give each device its own profile",
            profile.name,
            count(profile.count as usize, "time")
        ),
    )
}

fn drops(drops: &BTreeMap<String, u64>) -> String {
    let mut lossy = drops.clone();
    let harmless = lossy.remove(HARMLESS);
    let mut text = String::new();
    if !lossy.is_empty() {
        text.push_str(&wrapped("  dropped packets: ", &pairs(&lossy)));
    }
    if let Some(harmless) = harmless {
        text.push_str(&format!(
            "  ignored: {harmless} link-local and multicast packets, normal on any interface\n"
        ));
    }
    text
}

/// Describes how full the table of connections is, and the connections that did not fit.
fn fill(flows: &FlowTotals) -> String {
    let mut parts = vec![format!("{} of {}", flows.now, flows.limit)];
    parts.extend(full_table(flows, 0));
    parts.join(", ")
}

fn ports(bridge: &BridgeReport) -> String {
    let mut text = match &bridge.rules_file {
        Some(file) => format!("  filter: {file}, rules: {}\n", bridge.rules),
        None => "  no rules: everything passes\n".to_owned(),
    };
    let mut rows = vec![row(["  PORT", "KIND", "FRAMES", "RECEIVED", "LARGE", "FORWARDED"])];
    for port in &bridge.ports {
        let kind = if port.present { port.kind.clone() } else { format!("{}, gone", port.kind) };
        rows.push(vec![
            format!("  {}", port.name),
            kind,
            port.frames.to_string(),
            bytes(port.bytes),
            port.large.to_string(),
            port.forwarded.to_string(),
        ]);
    }
    let dropping = bridge.ports.iter().filter(|port| !port.drops.is_empty());
    let lines = dropping
        .map(|port| wrapped(&format!("  dropped from {}: ", port.name), &pairs(&port.drops)));
    text.push_str(&table(&rows));
    text.extend(lines);
    text
}

fn offloads(report: &StatusReport) -> String {
    let off: Vec<&str> =
        report.offloads.iter().filter(|(_, on)| !**on).map(|(name, _)| name.as_str()).collect();
    let mut text = match (report.offloads.len(), off.len()) {
        (0, _) => return String::new(),
        (_, 0) => "  offloads: all in force".to_owned(),
        _ => format!("  offloads: without {}", off.join(", ")),
    };
    let average = |trains: &BTreeMap<u32, u64>| {
        let (packets, count) = trains.iter().fold((0.0, 0.0), |(packets, count), (size, n)| {
            (packets + f64::from(*size) * *n as f64, count + *n as f64)
        });
        if count > 0.0 { packets / count } else { 0.0 }
    };
    let (sent, received) = (average(&report.trains.sent), average(&report.trains.received));
    if sent > 0.0 || received > 0.0 {
        text.push_str(&format!(
            "\n  packets per system call: {sent:.1} sent, {received:.1} received"
        ));
        if report.trains.relayed_packets > 0 {
            text.push_str(&format!(", {:.1} relayed", average(&report.trains.relayed)));
        }
    }
    text.push('\n');
    text
}

fn pairs(counts: &BTreeMap<String, u64>) -> String {
    let pairs: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    pairs.join(", ")
}

fn no_session(report: &StatusReport) -> String {
    let none = if report.role == "server" { "no client is connected" } else { "no session" };
    format!("  {none}\n")
}

/// Formats the total bytes, and the rate if there is one.
fn flow(total: u64, now: u64) -> String {
    match now {
        0 => bytes(total),
        _ => format!("{} {}", bytes(total), rate(now)),
    }
}

fn since(peer: &PeerReport) -> u64 {
    crate::text::now().saturating_sub(peer.since)
}

/// Formats a line of figures for each session, and below it the details of its transport.
fn peers(report: &StatusReport) -> String {
    if report.peers.is_empty() {
        return no_session(report);
    }
    let mut rows = vec![row(["  NAME", "INSIDE", "CONNECTED", "RECEIVED", "SENT"])];
    for peer in &report.peers {
        rows.push(vec![
            format!("  {}", peer.name),
            peer.tunnel.first().cloned().unwrap_or_default(),
            span(since(peer)),
            flow(peer.rx_bytes, peer.rx_bps),
            flow(peer.tx_bytes, peer.tx_bps),
        ]);
    }
    let lines = table_of_names(rows);
    let mut lines = lines.lines();
    let mut text = format!("{}\n", lines.next().unwrap_or_default());
    for (line, peer) in lines.zip(&report.peers) {
        text.push_str(&format!("{line}\n{}", wrapped("    ", &details(peer))));
    }
    text
}

fn details(peer: &PeerReport) -> String {
    // The line above already shows the address if the peer has no name.
    let mut parts = if peer.name == peer.address {
        vec![format!("by {}", peer.transport)]
    } else {
        vec![format!("from {} by {}", peer.address, peer.transport)]
    };
    let user = peer.username.as_ref().filter(|user| **user != peer.name);
    parts.extend(user.map(|user| format!("user {user}")));
    parts.extend(peer.tunnel.iter().skip(1).map(|address| format!("inside {address}")));
    parts.push(format!("{}, key {} old", peer.cipher, span(peer.key_age_s)));
    parts.extend(path(peer));
    // Related words stay on one line.
    parts.join("; ")
}

/// Describes the path's MTU and the largest TCP segment inside.
fn path(peer: &PeerReport) -> Option<String> {
    match (peer.path_mtu, peer.mss) {
        (Some(mtu), Some(mss)) => Some(format!("path mtu {mtu} mss {mss}")),
        (Some(mtu), None) => Some(format!("path mtu {mtu}")),
        (None, Some(mss)) => Some(format!("mss {mss}")),
        (None, None) => None,
    }
}
