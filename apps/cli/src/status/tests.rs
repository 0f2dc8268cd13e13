use adit_app_server::ReloadOutcome;
use adit_runtime::control::{PortReport, ReloadReport, TrainReport, TunReport};

use super::reload::reload_page;
use super::top::{sorted, top_page};
use super::*;
use crate::args::SortKey;
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
    let text = page(&machine, &Paths::new(None).unwrap());
    assert!(fits(&text), "{text}");
    let one_line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    for words in [
        "joins tap:ta, tap:tb",
        "fw.nft, rules: 4 ",
        "connections: 9 of 9, 4 made room for others, 3 refused for lack of space",
        "rules 2",
    ] {
        assert!(one_line.contains(words), "{words}: {text}");
    }
    assert!(text.contains("tap, gone") && !text.contains("session"), "{text}");
}

#[test]
fn a_page_shows_what_matters() {
    let paths = Paths::new(None).unwrap();
    assert!(page(&Overview::default(), &paths).contains("adit server up"));
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
    let page = page(&machine, &paths);
    assert!(fits(&page), "{page}");
    assert!(page.starts_with("server: running, process 42, up 1 h 2 min\n"), "{page}");
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    let top = top_page(&machine, &paths, SortKey::Rate);
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
        trains: TrainReport {
            sent: [(1, 1)].into(),
            received: [(2, 1)].into(),
            relayed: [(5, 2)].into(),
            relayed_packets: 11,
            ..Default::default()
        },
        offloads: [("udp-gso".to_owned(), true)].into(),
        ..StatusReport::default()
    };
    let machine = Overview { reports: vec![report], left_behind: Vec::new() };
    let paths = Paths::new(None).unwrap();
    for text in [page(&machine, &paths), top_page(&machine, &paths, SortKey::Name)] {
        assert!(fits(&text), "{text}");
        assert!(text.contains("a-laptop-w") && text.contains('~'), "{text}");
    }
    let text = page(&machine, &paths);
    for said in [
        "  first client to renew: a-laptop-with-a-v~, until 20",
        "(in 1 d) <- soon\n",
        "  own certificate ends: ",
        "  packets per system call: 1.0 sent, 2.0 received, 5.0 relayed\n",
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
    let order =
        |sort| sorted(&peers, sort).into_iter().map(|peer| peer.name.as_str()).collect::<String>();
    assert_eq!(order(SortKey::Name), "abc");
    assert_eq!(order(SortKey::Rate), "acb");
    assert_eq!(order(SortKey::Traffic), "bca");
    assert_eq!(order(SortKey::Received), "bca");
    assert_eq!(order(SortKey::Sent), "acb");
    assert_eq!(order(SortKey::Connected), "bca");
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
    let machine =
        Overview { reports: vec![report], left_behind: vec!["the nft table inet adit_x".into()] };
    let text = page(&machine, &Paths::new(None).unwrap());
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
    let reloaded = ReloadOutcome { role: "server".into(), instance: "server".into(), report };
    let text = reload_page(&reloaded, &Paths::new(None).unwrap());
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

#[test]
fn routes_that_the_kernel_refuses_are_told_in_text_and_json() {
    let why = "setting the route 0.0.0.0/0 by tun0 in table 44311: the interface is down";
    let mut report = StatusReport {
        role: "client".into(),
        instance: "connect-laptop".into(),
        routing: Some(why.into()),
        ..StatusReport::default()
    };
    let paths = Paths::new(None).unwrap();
    let text = |report: &StatusReport| {
        page(&Overview { reports: vec![report.clone()], left_behind: Vec::new() }, &paths)
    };
    let page = text(&report);
    assert!(fits(&page), "{page}");
    let words = page.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains(&format!("WARNING: routing incomplete, tried again: {why}")), "{page}");
    assert_eq!(serde_json::to_value(&report).unwrap()["routing"], why);
    report.routing = None;
    assert!(!text(&report).contains("routing"));
    assert!(serde_json::to_value(&report).unwrap().get("routing").is_none_or(|r| r.is_null()));
}

#[test]
fn logins_are_counted_and_users_are_named() {
    let peer = PeerReport {
        name: "laptop".into(),
        username: Some("alice".into()),
        ..PeerReport::default()
    };
    let report = StatusReport {
        role: "server".into(),
        instance: "server".into(),
        peers: vec![peer],
        logins: Some(LoginReport { accepted: 12, failed: 3, paused: 2, ..LoginReport::default() }),
        ..StatusReport::default()
    };
    let machine = Overview { reports: vec![report], left_behind: Vec::new() };
    let text = page(&machine, &Paths::new(None).unwrap());
    assert!(fits(&text), "{text}");
    let words = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let logins = "logins: 12 accepted, 3 failed, 2 refused during a pause after failures";
    assert!(words.contains(logins) && words.contains("; user alice;"), "{text}");
}
