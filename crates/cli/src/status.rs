//! `adit status`, `adit top`, `adit kick`, `adit reload`.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use adit_daemon::control::{
    BridgeReport, CertificateReport, FlowTotals, PeerReport, ReloadReport, SharedProfile,
    StatusReport,
};
use adit_daemon::managed::{self, Overview, Places, Reloaded};

use crate::args::{Kick, Reload, Sort, Status, Top};
use crate::text::{
    bytes, count, cut, date_from_now, rate, row, span, table, table_of_names, wrapped,
};
use crate::{Done, note, places, print, print_json};

/// At most so much of a client's name stands in a line about its certificate.
const LONGEST_OWNER: usize = 18;

/// Certificates that end sooner are mentioned.
const SOON_DAYS: i64 = 30;

/// What IPv6 sends on any interface: no loss that anything would notice.
const HARMLESS: &str = "local-scope";

pub fn once(options: &Status) -> Done {
    let places = places(&options.place)?;
    let machine = managed::status(&places)?;
    if options.json {
        print_json(&machine.reports)?;
        note(&left_behind(&machine, &places));
    } else {
        print(&page(&machine, &places));
    }
    let answered = machine.reports.iter().any(|report| report.problem.is_none());
    Ok(if answered { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

pub fn top(options: &Top) -> Done {
    let places = places(&options.place)?;
    loop {
        let machine = managed::status(&places)?;
        // Home, then each line's rest, then what is below: no flicker.
        let page = top_page(&machine, &places, options.sort).replace('\n', "\x1b[K\n");
        print(&format!("\x1b[H{page}\x1b[J"));
        std::thread::sleep(Duration::from_secs(options.every));
    }
}

pub fn kick(options: &Kick) -> Done {
    let ended = managed::kick(&places(&options.place)?, &options.name)?;
    let text = format!("{}: {} ended; it may connect again", options.name, count(ended, "session"));
    print(&wrapped("", &text));
    Ok(ExitCode::SUCCESS)
}

pub fn reload(options: &Reload) -> Done {
    let places = places(&options.place)?;
    let reloaded = managed::reload(&places, options.name.as_deref())?;
    print(&reload_page(&reloaded, &places));
    Ok(ExitCode::SUCCESS)
}

fn reload_page(reloaded: &Reloaded, places: &Places) -> String {
    if reloaded.role == "bridge" {
        return format!("The bridge {} has read its rules again.\n", reloaded.instance);
    }
    let ReloadReport { applied, pending, outdated, endpoints } = &reloaded.report;
    let mut text = String::from("The server has read its files again; no tunnel was dropped.\n");
    if !applied.is_empty() {
        text.push_str(&wrapped("applied now:                 ", &applied.join(", ")));
    }
    if !pending.is_empty() {
        text.push_str(&wrapped("not applied until a restart: ", &pending.join(", ")));
    }
    if !outdated.is_empty() {
        text.push_str(&wrapped("profiles out of date:        ", &outdated.join(", ")));
        text.push_str(&new_lines(endpoints, places));
    }
    text
}

/// What to do about profiles that name another host or other ports.
pub fn new_lines(endpoints: &[String], places: &Places) -> String {
    let mut text = String::from(
        "\nIn these profiles replace the lines that begin with proto, remote or\n\
         server-poll-timeout by:\n",
    );
    endpoints.iter().for_each(|line| text.push_str(&format!("  {line}\n")));
    text.push_str(&format!(
        "and note it here:           {}\n\
         Or make a new profile, with a new key and certificate:\n\
         \x20                           {}\n",
        places.command("server client remotes --done NAME"),
        places.command("server client renew NAME")
    ));
    text
}

fn left_behind(machine: &Overview, places: &Places) -> String {
    if machine.left_behind.is_empty() {
        return String::new();
    }
    let left = machine.left_behind.join(", ");
    wrapped("A server was killed and left behind: ", &left)
        + &format!("  undo it: {}, or start the server again\n", places.command("doctor --fix"))
}

fn page(machine: &Overview, places: &Places) -> String {
    let left = left_behind(machine, places);
    if machine.reports.is_empty() {
        return format!(
            "Nothing runs here. Start a server with: {}\n{left}",
            places.command("server up")
        );
    }
    let mut pages: Vec<String> = machine.reports.iter().map(report).collect();
    if !left.is_empty() {
        pages.push(left);
    }
    pages.join("\n")
}

/// `server`, `server openvpn-17`, `client laptop`.
fn name(report: &StatusReport) -> String {
    let instance = report.instance.as_str();
    let bare = match report.role.as_str() {
        role if role == instance => "",
        "client" => instance.strip_prefix("connect-").unwrap_or(instance),
        "postgres" => instance.strip_prefix("postgres-").unwrap_or(instance),
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
    let place = match report.role.as_str() {
        "server" => "listens on",
        "bridge" => "joins",
        _ => "connects to",
    };
    text.push_str(&wrapped(&format!("  {place} "), &report.endpoints.join(", ")));
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
    match (&report.bridge, &report.postgres) {
        (Some(bridge), _) => text.push_str(&ports(bridge)),
        (_, Some(postgres)) => text.push_str(&crate::postgres::show::in_status(postgres)),
        (None, None) => text.push_str(&peers(report)),
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

fn shared(profile: &SharedProfile) -> String {
    let [one, other] = &profile.addresses;
    let ago = span(crate::text::now().saturating_sub(profile.last));
    wrapped(
        "  warning: ",
        &format!(
            "{} is used from two addresses, {one} and {other} ({}, last {ago} ago): give each device \
             a profile of its own",
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

/// How full the table of connections is, and what did not fit.
fn fill(flows: &FlowTotals) -> String {
    let mut parts = vec![format!("{} of {}", flows.now, flows.limit)];
    let counts = [
        (flows.evicted, "made room for others"),
        (flows.refused_full, "refused for lack of room"),
        (flows.refused_source, "refused of sources with too many that have no answer"),
    ];
    parts.extend(
        counts
            .iter()
            .filter(|(count, _)| *count > 0)
            .map(|(count, what)| format!("{count} {what}")),
    );
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

/// Bytes so far, and the rate where there is one.
fn flow(total: u64, now: u64) -> String {
    match now {
        0 => bytes(total),
        _ => format!("{} {}", bytes(total), rate(now)),
    }
}

fn since(peer: &PeerReport) -> u64 {
    crate::text::now().saturating_sub(peer.since)
}

/// A line of figures for each session, and beneath it how it is carried.
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
    let mut parts = vec![format!("from {} by {}", peer.address, peer.transport)];
    parts.extend(peer.tunnel.iter().skip(1).map(|address| format!("inside {address}")));
    parts.push(format!("{}, key {} old", peer.cipher, span(peer.key_age_s)));
    parts.extend(path(peer));
    // Words that belong together stay on one line.
    parts.join("; ")
}

/// The path's MTU and the largest TCP segment inside.
fn path(peer: &PeerReport) -> Option<String> {
    match (peer.path_mtu, peer.mss) {
        (Some(mtu), Some(mss)) => Some(format!("path mtu {mtu} mss {mss}")),
        (Some(mtu), None) => Some(format!("path mtu {mtu}")),
        (None, Some(mss)) => Some(format!("mss {mss}")),
        (None, None) => None,
    }
}

fn top_page(machine: &Overview, places: &Places, sort: Sort) -> String {
    if machine.reports.is_empty() {
        return page(machine, places);
    }
    let pages: Vec<String> =
        machine.reports.iter().map(|report| top_report(report, sort)).collect();
    pages.join("\n")
}

/// The title, the totals, and a line for each session.
fn top_report(report: &StatusReport, sort: Sort) -> String {
    let mut text = title(report);
    if report.problem.is_some() {
        return text;
    }
    text.push_str(&drops(&report.drops));
    match (&report.bridge, &report.postgres) {
        (Some(bridge), _) => return text + &ports(bridge),
        (_, Some(postgres)) => return text + &crate::postgres::show::in_status(postgres),
        (None, None) => {}
    }
    if report.peers.is_empty() {
        return text + &no_session(report);
    }
    let sum = |of: fn(&PeerReport) -> u64| report.peers.iter().map(of).fold(0, u64::saturating_add);
    text.push_str(&format!(
        "  {}: received {}, {}; sent {}, {}\n",
        count(report.peers.len(), "session"),
        bytes(sum(|peer| peer.rx_bytes)),
        rate(sum(|peer| peer.rx_bps)),
        bytes(sum(|peer| peer.tx_bytes)),
        rate(sum(|peer| peer.tx_bps))
    ));
    let mut rows = vec![row(["  NAME", "INSIDE", "RECEIVED", "", "SENT", "", "CONNECTED"])];
    for peer in sorted(&report.peers, sort) {
        rows.push(vec![
            format!("  {}", peer.name),
            peer.tunnel.first().cloned().unwrap_or_default(),
            bytes(peer.rx_bytes),
            rate(peer.rx_bps),
            bytes(peer.tx_bytes),
            rate(peer.tx_bps),
            span(since(peer)),
        ]);
    }
    text + &table_of_names(rows)
}

fn sorted(peers: &[PeerReport], sort: Sort) -> Vec<&PeerReport> {
    let mut sorted: Vec<&PeerReport> = peers.iter().collect();
    sorted.sort_by_key(|peer| peer.name.clone());
    match sort {
        Sort::Name => {}
        Sort::Rate => {
            sorted.sort_by_key(|peer| Reverse(peer.rx_bps.saturating_add(peer.tx_bps)));
        }
        Sort::Traffic => {
            sorted.sort_by_key(|peer| Reverse(peer.rx_bytes.saturating_add(peer.tx_bytes)));
        }
        Sort::Connected => sorted.sort_by_key(|peer| Reverse(since(peer))),
    }
    sorted
}

#[cfg(test)]
mod tests {
    use adit_daemon::control::{PortReport, TrainReport, TunReport};

    use super::*;
    use crate::text::WIDTH;

    fn fits(text: &str) -> bool {
        text.lines().all(|line| line.chars().count() <= WIDTH)
    }

    #[test]
    fn a_bridges_ports_are_shown_with_what_they_dropped() {
        let port = |name: &str| PortReport {
            name: name.into(),
            kind: "tap".into(),
            present: name == "ta",
            frames: 7,
            drops: [("rules".to_owned(), 2)].into(),
            ..PortReport::default()
        };
        let bridge = BridgeReport {
            rules_file: Some("fw.nft".into()),
            rules: 4,
            flows: 1,
            flows_limit: 9,
            ports: vec![port("ta"), port("tb")],
            ..BridgeReport::default()
        };
        let report = StatusReport {
            role: "bridge".into(),
            endpoints: vec!["tap:ta".into(), "tap:tb".into()],
            connections: Some(FlowTotals {
                now: 9,
                limit: 9,
                evicted: 4,
                refused_full: 3,
                ..FlowTotals::default()
            }),
            bridge: Some(bridge),
            ..StatusReport::default()
        };
        let machine = Overview { reports: vec![report], left_behind: Vec::new() };
        let text = page(&machine, &Places::new(None).unwrap());
        assert!(fits(&text), "{text}");
        let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for words in [
            "joins tap:ta, tap:tb",
            "fw.nft, rules: 4 ",
            "connections: 9 of 9, 4 made room for others, 3 refused for lack of room",
            "rules 2",
        ] {
            assert!(one_line.contains(words), "{words}: {text}");
        }
        assert!(text.contains("tap, gone") && !text.contains("session"), "{text}");
    }

    #[test]
    fn a_page_shows_what_matters() {
        let places = Places::new(None).unwrap();
        assert!(page(&Overview::default(), &places).contains("adit server up"));
        let report = StatusReport {
            role: "server".into(),
            instance: "server".into(),
            state: "running".into(),
            pid: 42,
            uptime_s: 3725,
            endpoints: vec!["udp [::]:1194".into()],
            tun: Some(TunReport {
                name: "adit0".into(),
                mtu: 1500,
                addresses: vec!["10.9.9.1/24".into()],
            }),
            peers: vec![PeerReport {
                name: "laptop".into(),
                address: "203.0.113.9:50000".into(),
                transport: "tcp".into(),
                tunnel: vec!["10.9.9.2".into(), "fd73:1234:5678:9abc::1000".into()],
                cipher: "AES-256-GCM".into(),
                rx_bytes: 1_500_000,
                rx_bps: 9_400_000_000,
                since: crate::text::now(),
                path_mtu: Some(1420),
                mss: Some(1328),
                ..PeerReport::default()
            }],
            drops: [("replayed".to_owned(), 3), ("local-scope".to_owned(), 7)].into(),
            shared: vec![SharedProfile {
                name: "laptop".into(),
                addresses: ["198.51.100.10".into(), "198.51.100.20".into()],
                count: 3,
                last: crate::text::now(),
            }],
            filter: Some("/etc/adit/rules.nft".into()),
            offloads: [("udp-gso".to_owned(), true), ("tun-uso".to_owned(), false)].into(),
            certificate: Some(CertificateReport {
                whose: "laptop".into(),
                not_after: crate::text::now(),
                days_left: 0,
            }),
            ..StatusReport::default()
        };
        let machine = Overview { reports: vec![report], left_behind: Vec::new() };
        let page = page(&machine, &places);
        assert!(fits(&page), "{page}");
        assert!(page.starts_with("server: running, process 42, up 1 h 2 min\n"), "{page}");
        let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
        let top = top_page(&machine, &places, Sort::Rate);
        assert!(fits(&top), "{top}");
        assert!(top.contains("1 session: received 1.5 MB, 9.4 Gb/s; sent 0 B, 0 b/s"), "{top}");
        for said in [
            "up 1 h 2 min",
            "udp [::]:1194",
            "from 203.0.113.9:50000 by tcp",
            "inside fd73:1234:5678:9abc::1000",
            "ignored: 7 link-local",
            "used from two addresses, 198.51.100.10 and 198.51.100.20 (3 times",
            "device adit0",
            "without tun-uso",
            "filter: /etc/adit/rules.nft ",
            "replayed 3",
            "renew it",
            "laptop",
            "1.5 MB 9.4 Gb/s",
            "mtu 1420 mss 1328",
        ] {
            assert!(words.contains(said), "{said} is missing in:\n{page}");
        }
    }

    #[test]
    fn long_names_and_busy_clients_stay_within_eighty_columns() {
        let peer = |name: &str| PeerReport {
            name: name.into(),
            address: "[2001:db8:1234:5678:9abc:def0:1234:5678]:50000".into(),
            transport: "udp".into(),
            tunnel: vec!["10.255.255.254".into(), "fd12:3456:789a:bcde:f012:3456:789a:bcde".into()],
            cipher: "CHACHA20-POLY1305".into(),
            rx_bytes: 123_400_000_000,
            tx_bytes: 123_400_000_000,
            rx_bps: 99_900_000,
            tx_bps: 99_900_000,
            since: crate::text::now() - 90_061,
            key_age_s: 3725,
            path_mtu: Some(1500),
            mss: Some(1400),
            ..PeerReport::default()
        };
        let peers = vec![peer("a-laptop-with-a-very-long-name@example.net"), peer("b")];
        let report = StatusReport {
            role: "server".into(),
            peers,
            client_certificate: Some(CertificateReport {
                whose: "a-laptop-with-a-very-long-name@example.net".into(),
                not_after: crate::text::now() + 86_400,
                days_left: 1,
            }),
            certificate: Some(CertificateReport {
                whose: "own".into(),
                not_after: crate::text::now() + 86_400 * 999,
                days_left: 999,
            }),
            endpoints: vec!["udp [2001:db8:1234:5678:9abc:def0:1234:5678]:1194".into(); 3],
            trains: TrainReport { sent: [(1, 1)].into(), received: [(2, 1)].into() },
            offloads: [("udp-gso".to_owned(), true)].into(),
            ..StatusReport::default()
        };
        let machine = Overview { reports: vec![report], left_behind: Vec::new() };
        let places = Places::new(None).unwrap();
        for text in [page(&machine, &places), top_page(&machine, &places, Sort::Name)] {
            assert!(fits(&text), "{text}");
            assert!(text.contains("a-laptop-w") && text.contains('~'), "{text}");
        }
        let text = page(&machine, &places);
        for said in [
            "  first client to renew: a-laptop-with-a-v~, until 20",
            "(in 1 d) <- soon\n",
            "  own certificate ends: ",
            "  packets per system call: 1.0 sent, 2.0 received\n",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
        for former in ["server server", "a train", "nearest expiry", "FOR", " BY "] {
            assert!(!text.contains(former), "{former}: {text}");
        }
    }

    #[test]
    fn top_sorts_as_it_is_told() {
        let peer = |name: &str, rx_bytes, tx_bps, since| PeerReport {
            name: name.into(),
            rx_bytes,
            tx_bps,
            since,
            ..PeerReport::default()
        };
        let peers = [peer("b", 9, 1, 100), peer("a", 5, 7, 300), peer("c", 7, 3, 200)];
        let order = |sort| {
            sorted(&peers, sort).into_iter().map(|peer| peer.name.as_str()).collect::<String>()
        };
        assert_eq!(order(Sort::Name), "abc");
        assert_eq!(order(Sort::Rate), "acb");
        assert_eq!(order(Sort::Traffic), "bca");
        assert_eq!(order(Sort::Connected), "bca");
    }

    #[test]
    fn who_cannot_be_asked_is_named_with_process_and_user() {
        let report = StatusReport {
            role: "openvpn".into(),
            instance: "openvpn-17".into(),
            pid: 17,
            user: Some("root".into()),
            problem: Some("permission denied: run as root".into()),
            ..StatusReport::default()
        };
        let machine = Overview {
            reports: vec![report],
            left_behind: vec!["the nft table inet adit_x".into()],
        };
        let text = page(&machine, &Places::new(None).unwrap());
        assert_eq!(
            text,
            "openvpn openvpn-17 (process 17, user root): permission denied: run as root\n\n\
             A server was killed and left behind: the nft table inet adit_x\n  \
             undo it: adit doctor --fix, or start the server again\n"
        );
    }

    #[test]
    fn a_reload_says_what_took_effect_what_waits_and_whose_profiles_are_old() {
        let report = ReloadReport {
            applied: vec!["dns".into()],
            pending: vec!["listen".into(), "workers".into()],
            outdated: vec!["laptop".into()],
            endpoints: vec!["proto udp".into(), "remote vpn.example.net 443".into()],
        };
        let reloaded = Reloaded { role: "server".into(), instance: "server".into(), report };
        let text = reload_page(&reloaded, &Places::new(None).unwrap());
        assert!(fits(&text), "{text}");
        for said in [
            "applied now:                 dns\n",
            "not applied until a restart: listen, workers\n",
            "profiles out of date:        laptop\n",
            "\n  remote vpn.example.net 443\n",
            "adit server client remotes --done NAME",
        ] {
            assert!(text.contains(said), "{said}: {text}");
        }
    }
}
