//! `adit status`, `adit top`.

use std::collections::BTreeMap;
use std::process::ExitCode;
use std::time::Duration;

use adit_daemon::control::{BridgeReport, PeerReport, StatusReport};
use adit_daemon::managed::{self, Places};

use crate::args::{Status, Top};
use crate::text::{bytes, date_from_now, rate, row, span, table};
use crate::{Done, places, print, print_json};

/// Certificates that end sooner are mentioned.
const SOON_DAYS: i64 = 30;

pub fn once(options: &Status) -> Done {
    let places = places(&options.place)?;
    let reports = managed::status(&places)?;
    if options.json {
        print_json(&reports)?;
    } else {
        print(&page(&reports, &places));
    }
    Ok(if reports.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

pub fn top(options: &Top) -> Done {
    let places = places(&options.place)?;
    loop {
        let reports = managed::status(&places)?;
        // Home, then each line's rest, then what is below: no flicker.
        let page = page(&reports, &places).replace('\n', "\x1b[K\n");
        print(&format!("\x1b[H{page}\x1b[J"));
        std::thread::sleep(Duration::from_secs(options.every));
    }
}

fn page(reports: &[StatusReport], places: &Places) -> String {
    if reports.is_empty() {
        return format!(
            "Nothing runs here. Start a server with: {}\n",
            places.command("server up")
        );
    }
    reports.iter().map(report).collect::<Vec<_>>().join("\n")
}

fn report(report: &StatusReport) -> String {
    let mut text = format!(
        "{} {}: {}, process {}, up {}\n",
        report.role,
        report.instance,
        report.state,
        report.pid,
        span(report.uptime_s)
    );
    let place = match report.role.as_str() {
        "server" => "listens on",
        "bridge" => "joins",
        _ => "connects to",
    };
    text.push_str(&format!("  {place} {}\n", report.endpoints.join(", ")));
    if let Some(tun) = &report.tun {
        let addresses = tun.addresses.join(", ");
        text.push_str(&format!("  device {} mtu {}: {addresses}\n", tun.name, tun.mtu));
    }
    if let Some(certificate) = &report.certificate {
        let warning = if certificate.days_left < SOON_DAYS { "  <- renew it" } else { "" };
        let end = date_from_now(certificate.not_after);
        text.push_str(&format!(
            "  nearest expiry: {} certificate, {end}{warning}\n",
            certificate.whose
        ));
    }
    if let Some(file) = &report.filter {
        text.push_str(&format!("  filter: {file}\n"));
    }
    if report.workers > 0 {
        text.push_str(&format!("  workers: {}\n", report.workers));
    }
    text.push_str(&offloads(report));
    if !report.drops.is_empty() {
        text.push_str(&format!("  dropped packets: {}\n", pairs(&report.drops)));
    }
    match (&report.bridge, &report.postgres) {
        (Some(bridge), _) => text.push_str(&ports(bridge)),
        (_, Some(postgres)) => text.push_str(&crate::postgres::show::in_status(postgres)),
        (None, None) => text.push_str(&peers(report)),
    }
    text
}

fn ports(bridge: &BridgeReport) -> String {
    let mut text = match &bridge.rules_file {
        Some(file) => format!(
            "  filter: {file}, rules: {}, connections: {} of {}\n",
            bridge.rules, bridge.flows, bridge.flows_limit
        ),
        None => "  no rules: everything passes\n".to_owned(),
    };
    let mut rows = vec![row([
        "  PORT",
        "KIND",
        "FRAMES",
        "RECEIVED",
        "SUPER-PACKETS",
        "PASSED ON",
        "DROPPED",
    ])];
    for port in &bridge.ports {
        let kind = if port.present { port.kind.clone() } else { format!("{}, gone", port.kind) };
        let drops = if port.drops.is_empty() { "-".into() } else { pairs(&port.drops) };
        rows.push(vec![
            format!("  {}", port.name),
            kind,
            port.frames.to_string(),
            bytes(port.bytes),
            port.large.to_string(),
            port.forwarded.to_string(),
            drops,
        ]);
    }
    text.push_str(&table(&rows));
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
        text.push_str(&format!("; packets a train: {sent:.1} sent, {received:.1} received"));
    }
    text.push('\n');
    text
}

fn pairs(counts: &BTreeMap<String, u64>) -> String {
    let pairs: Vec<String> = counts.iter().map(|(name, count)| format!("{name} {count}")).collect();
    pairs.join(", ")
}

fn peers(report: &StatusReport) -> String {
    if report.peers.is_empty() {
        let none = if report.role == "server" { "no client is connected" } else { "no session" };
        return format!("  {none}\n");
    }
    let mut rows = vec![row([
        "  NAME", "FROM", "BY", "INSIDE", "FOR", "RECEIVED", "SENT", "KEY", "CIPHER", "PATH",
    ])];
    for peer in &report.peers {
        let flow = |total: u64, now: u64| match now {
            0 => bytes(total),
            _ => format!("{} {}", bytes(total), rate(now)),
        };
        let since = crate::text::now().saturating_sub(peer.since);
        rows.push(vec![
            format!("  {}", peer.name),
            peer.address.clone(),
            peer.transport.clone(),
            peer.tunnel.first().cloned().unwrap_or_default(),
            span(since),
            flow(peer.rx_bytes, peer.rx_bps),
            flow(peer.tx_bytes, peer.tx_bps),
            span(peer.key_age_s),
            peer.cipher.clone(),
            path(peer),
        ]);
    }
    table(&rows)
}

/// The path's MTU and the largest TCP segment inside.
fn path(peer: &PeerReport) -> String {
    match (peer.path_mtu, peer.mss) {
        (Some(mtu), Some(mss)) => format!("mtu {mtu} mss {mss}"),
        (Some(mtu), None) => format!("mtu {mtu}"),
        (None, Some(mss)) => format!("mss {mss}"),
        (None, None) => "-".into(),
    }
}

#[cfg(test)]
mod tests {
    use adit_daemon::control::{CertificateReport, PortReport, TunReport};

    use super::*;

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
            bridge: Some(bridge),
            ..StatusReport::default()
        };
        let text = page(&[report], &Places::new(None).unwrap());
        for words in ["joins tap:ta, tap:tb", "fw.nft, rules: 4, connections: 1 of 9", "rules 2"] {
            assert!(text.contains(words), "{words}: {text}");
        }
        assert!(text.contains("tap, gone") && !text.contains("session"), "{text}");
    }

    #[test]
    fn a_page_shows_what_matters() {
        let places = Places::new(None).unwrap();
        assert!(page(&[], &places).contains("adit server up"));
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
                tunnel: vec!["10.9.9.2".into()],
                cipher: "AES-256-GCM".into(),
                rx_bytes: 1_500_000,
                rx_bps: 9_400_000_000,
                since: crate::text::now(),
                path_mtu: Some(1420),
                mss: Some(1328),
                ..PeerReport::default()
            }],
            drops: [("replayed".to_owned(), 3)].into(),
            filter: Some("/etc/adit/rules.nft".into()),
            offloads: [("udp-gso".to_owned(), true), ("tun-uso".to_owned(), false)].into(),
            certificate: Some(CertificateReport {
                whose: "laptop".into(),
                not_after: crate::text::now(),
                days_left: 0,
            }),
            ..StatusReport::default()
        };
        let page = page(&[report], &places);
        for said in [
            "up 1 h 2 min",
            "udp [::]:1194",
            "203.0.113.9:50000  tcp",
            "device adit0",
            "without tun-uso",
            "filter: /etc/adit/rules.nft\n",
            "replayed 3",
            "renew it",
            "laptop",
            "1.5 MB 9.4 Gb/s",
            "mtu 1420 mss 1328",
        ] {
            assert!(page.contains(said), "{said} is missing in:\n{page}");
        }
    }
}
