use std::time::Duration;

use adit_app_server::Overview;
use adit_runtime::control::{
    BridgeReport, MeshPeer, MeshReport, NodeReport, PeerReport, PortReport, PostgresReport,
    StatusReport, TincNode, TincReport,
};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::{KeyCode, KeyModifiers};

use super::draw::draw;
use super::view::{HISTORY, Mode, Step, View};
use crate::args::SortKey;

fn peer(id: u32, name: &str, rx_bytes: u64) -> PeerReport {
    PeerReport {
        id,
        name: name.into(),
        address: "192.0.2.7:1194".into(),
        transport: "udp".into(),
        tunnel: vec![format!("10.8.0.{id}")],
        cipher: "AES-256-GCM".into(),
        since: crate::text::now().saturating_sub(60),
        rx_bytes,
        ..PeerReport::default()
    }
}

fn server(peers: Vec<PeerReport>) -> Overview {
    let report = StatusReport {
        role: "server".into(),
        instance: "server".into(),
        state: "running".into(),
        pid: 7,
        uptime_s: 60,
        peers,
        ..StatusReport::default()
    };
    Overview { reports: vec![report], ..Overview::default() }
}

/// A view with three clients, of which bob is the busiest.
fn view() -> View {
    let mut view = View::new(SortKey::Rate, false);
    view.update(
        &server(vec![peer(2, "alice", 0), peer(3, "bob", 0), peer(4, "carol", 0)]),
        Duration::ZERO,
    );
    let second = Duration::from_secs(1);
    view.update(
        &server(vec![peer(2, "alice", 100), peer(3, "bob", 125_000), peer(4, "carol", 0)]),
        second,
    );
    view
}

fn press(view: &mut View, keys: &[KeyCode]) -> Step {
    keys.iter().fold(Step::Continue, |_, key| view.key(*key, KeyModifiers::NONE))
}

/// Returns what a terminal of 80 columns and 24 lines shows.
fn screen(view: &View) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(80, 24)).unwrap();
    terminal.draw(|frame| draw(view, frame)).unwrap();
    let buffer = terminal.backend().buffer();
    let cells = buffer.content().chunks(80);
    cells
        .map(|line| line.iter().map(|cell| cell.symbol()).collect::<String>().trim_end().to_owned())
        .collect()
}

fn names(view: &View) -> Vec<&str> {
    view.visible().iter().map(|row| row.name.as_str()).collect()
}

#[test]
fn a_terminal_of_80_columns_shows_instances_rates_sessions_and_keys() {
    let screen = screen(&view());
    assert_eq!(screen[0], "server: running, up 1 min");
    assert!(
        screen[1].starts_with("all: received") && screen[1].contains("1.0 Mb/s"),
        "{screen:#?}"
    );
    assert!(screen[1].contains('█'), "{screen:#?}");
    assert!(screen[3].starts_with("NAME") && screen[3].contains("RATE ▾"), "{screen:#?}");
    assert!(screen[4].starts_with("bob") && screen[4].contains("10.8.0.3"), "{screen:#?}");
    assert!(screen[4].contains("125") && screen[4].contains("1 min"), "{screen:#?}");
    assert!(screen[23].contains("q quit") && screen[23].contains("/ filter"), "{screen:#?}");
}

#[test]
fn without_sessions_or_instances_the_screen_says_so() {
    let mut view = View::new(SortKey::Rate, true);
    assert_eq!(screen(&view)[0], "Nothing is running here");
    view.update(&server(Vec::new()), Duration::ZERO);
    assert_eq!(screen(&view)[4], "no session");
    let many = Overview { reports: vec![StatusReport::default(); 9], ..Overview::default() };
    view.update(&many, Duration::ZERO);
    assert_eq!(screen(&view)[4], "and 5 other instances");
}

#[test]
fn keys_sort_select_and_quit() {
    let mut view = view();
    assert_eq!(names(&view), ["bob", "alice", "carol"]);
    press(&mut view, &[KeyCode::Char('s'); 5]);
    assert_eq!((view.sort, names(&view)), (SortKey::Name, vec!["alice", "bob", "carol"]));
    press(&mut view, &[KeyCode::Down, KeyCode::Down]);
    assert_eq!(view.selected().unwrap().name, "bob");
    // The selection follows its row.
    press(&mut view, &[KeyCode::Char('s')]);
    assert_eq!((view.position(), view.selected().unwrap().name.as_str()), (Some(0), "bob"));
    press(&mut view, &[KeyCode::End, KeyCode::Down, KeyCode::PageDown]);
    assert_eq!(view.position(), Some(2));
    press(&mut view, &[KeyCode::Home, KeyCode::Up]);
    assert_eq!(view.position(), Some(0));
    assert_eq!(press(&mut view, &[KeyCode::Char('q')]), Step::Quit);
    assert_eq!(press(&mut view, &[KeyCode::Esc]), Step::Quit);
    assert_eq!(view.key(KeyCode::Char('c'), KeyModifiers::CONTROL), Step::Quit);
}

#[test]
fn letters_choose_an_order_at_once() {
    let mut view = view();
    let second = Duration::from_secs(1);
    let sent = PeerReport { tx_bytes: 9000, ..peer(4, "carol", 0) };
    view.update(&server(vec![peer(2, "alice", 300), peer(3, "bob", 125_100), sent]), second);
    for (key, sort, first) in [
        ('i', SortKey::Received, "alice"),
        ('o', SortKey::Sent, "carol"),
        ('T', SortKey::Traffic, "bob"),
        ('n', SortKey::Name, "alice"),
        ('t', SortKey::Rate, "carol"),
    ] {
        press(&mut view, &[KeyCode::Char(key)]);
        assert_eq!((view.sort, names(&view)[0]), (sort, first), "{key}");
    }
}

#[test]
fn a_filter_hides_what_does_not_match_until_it_is_cleared() {
    let mut view = view();
    press(
        &mut view,
        &[KeyCode::Char('/'), KeyCode::Char('A'), KeyCode::Char('l'), KeyCode::Char('q')],
    );
    assert_eq!((view.filter.as_str(), names(&view).len()), ("Alq", 0));
    assert!(screen(&view).contains(&"nothing matches the filter".to_owned()));
    press(&mut view, &[KeyCode::Backspace]);
    assert_eq!(screen(&view)[23], "filter: Al_");
    press(&mut view, &[KeyCode::Enter]);
    assert_eq!((view.mode, names(&view)), (Mode::List, vec!["alice"]));
    assert!(screen(&view)[23].ends_with("filter: Al"));
    // Esc clears the filter, and only then quits.
    assert_eq!(press(&mut view, &[KeyCode::Esc]), Step::Continue);
    assert_eq!(names(&view).len(), 3);
    let long = vec![KeyCode::Char('x'); 1000];
    press(&mut view, &[KeyCode::Char('/')]);
    press(&mut view, &long);
    assert_eq!(view.filter.len(), 64);
}

#[test]
fn enter_shows_one_session_until_it_ends() {
    let mut view = view();
    press(&mut view, &[KeyCode::Enter]);
    let shown = screen(&view);
    assert_eq!(shown[3], "bob");
    for line in ["  from                  192.0.2.7:1194 by udp", "  instance              server"]
    {
        assert!(shown.contains(&line.to_owned()), "{shown:#?}");
    }
    assert!(shown.iter().any(|line| line.starts_with("this: received")), "{shown:#?}");
    press(&mut view, &[KeyCode::Esc]);
    assert_eq!(view.mode, Mode::List);
    press(&mut view, &[KeyCode::Enter]);
    view.update(&server(vec![peer(2, "alice", 0)]), Duration::from_secs(1));
    assert_eq!(view.mode, Mode::List);
    press(&mut view, &[KeyCode::Char('?')]);
    assert!(screen(&view)[3].starts_with("Up, Down"));
}

#[test]
fn names_of_peers_never_control_the_terminal() {
    let mut view = View::new(SortKey::Name, false);
    let hostile = "eve\u{1b}[2J\u{9b}\u{202e}\n";
    let odd = PeerReport { tls: hostile.into(), ..peer(2, hostile, 0) };
    view.update(&server(vec![odd]), Duration::ZERO);
    press(&mut view, &[KeyCode::Enter]);
    for mode in [Mode::Details, Mode::List] {
        view.mode = mode;
        let text = screen(&view).join("");
        assert!(!text.chars().any(|c| c.is_control() || c == '\u{202e}'), "{text:?}");
        assert!(text.contains("eve\\x1b[2J"), "{text}");
    }
}

#[test]
fn members_ports_and_nodes_are_rows_too() {
    let member = MeshPeer {
        name: Some("hub".into()),
        key: "00ff".into(),
        route: "relay".into(),
        via: Some("node2".into()),
        rtt_ms: Some(1.5),
        ..MeshPeer::default()
    };
    let reports = vec![
        StatusReport {
            role: "mesh".into(),
            mesh: Some(MeshReport { peers: vec![member], ..MeshReport::default() }),
            ..StatusReport::default()
        },
        StatusReport {
            role: "bridge".into(),
            bridge: Some(BridgeReport {
                ports: vec![PortReport { name: "eth1".into(), bytes: 5, ..PortReport::default() }],
                ..BridgeReport::default()
            }),
            ..StatusReport::default()
        },
        StatusReport {
            role: "postgres".into(),
            postgres: Some(PostgresReport {
                nodes: vec![NodeReport { name: "n1".into(), ..NodeReport::default() }],
                ..PostgresReport::default()
            }),
            ..StatusReport::default()
        },
    ];
    let mut view = View::new(SortKey::Name, false);
    view.update(&Overview { reports, ..Overview::default() }, Duration::ZERO);
    assert_eq!(names(&view), ["eth1", "hub", "n1"]);
    press(&mut view, &[KeyCode::Down, KeyCode::Down, KeyCode::Enter]);
    let shown = screen(&view);
    assert!(shown.contains(&"  path                  relay node2".to_owned()), "{shown:#?}");
    assert!(shown.contains(&"  round trip            1.5 ms".to_owned()), "{shown:#?}");
}

/// A terminal of 80 columns without colour.
#[test]
fn the_nodes_of_a_tinc_net_fit_a_narrow_screen() {
    let node = |name: &str, path: &str, subnets: &[&str]| TincNode {
        name: name.into(),
        reachable: path != "none",
        since: crate::text::now().saturating_sub(120),
        path: path.into(),
        subnets: subnets.iter().map(ToString::to_string).collect(),
        rx_bytes: 2_500_000,
        ..TincNode::default()
    };
    let bob = TincNode {
        address: Some("192.0.2.7:655".into()),
        cipher: Some("AES-256-GCM".into()),
        rtt_us: Some(1500),
        ..node("bob", "udp", &["10.2.0.0/16", "fd00:2::/64"])
    };
    let carol = TincNode { via: Some("bob".into()), ..node("carol", "relay", &["10.3.0.0/16"]) };
    let tinc =
        TincReport { nodes: vec![bob, carol, node("dave", "none", &[])], ..TincReport::default() };
    let report = StatusReport {
        role: "tinc".into(),
        instance: "tinc-office".into(),
        state: "running".into(),
        uptime_s: 60,
        tinc: Some(Box::new(tinc)),
        ..StatusReport::default()
    };
    let mut view = View::new(SortKey::Name, false);
    view.update(&Overview { reports: vec![report], ..Overview::default() }, Duration::ZERO);
    let shown = screen(&view);
    assert_eq!(shown[0], "tinc office: running, up 1 min");
    assert!(shown[4].starts_with("bob") && shown[4].ends_with(" 2 min"), "{shown:#?}");
    assert!(shown[4].contains(" 10.2.0.0/16 ") && shown[4].contains("2.5 MB"), "{shown:#?}");
    // A node that cannot be reached is not connected.
    assert!(shown[6].starts_with("dave") && !shown[6].contains("min"), "{shown:#?}");
    press(&mut view, &[KeyCode::Enter]);
    let shown = screen(&view);
    for line in [
        "  inside                10.2.0.0/16 fd00:2::/64",
        "  path                  udp",
        "  cipher                AES-256-GCM",
        "  round trip            1500 µs",
    ] {
        assert!(shown.contains(&line.to_owned()), "{line}: {shown:#?}");
    }
    press(&mut view, &[KeyCode::Down]);
    assert!(screen(&view).contains(&"  path                  relay through bob".to_owned()));
}

#[test]
fn a_history_is_bounded_and_a_new_session_has_no_negative_rate() {
    let mut view = View::new(SortKey::Rate, false);
    for round in 0..2 * HISTORY as u64 {
        view.update(&server(vec![peer(2, "a", round * 1000)]), Duration::from_secs(1));
    }
    let history = view.history(view.visible()[0]).unwrap();
    assert_eq!((history.received.len(), history.now()), (HISTORY, (8000, 0)));
    view.update(&server(vec![peer(2, "a", 0)]), Duration::from_secs(1));
    assert_eq!(view.rates(view.visible()[0]), (0, 0));
}

#[test]
fn a_session_that_ends_does_not_hide_the_traffic_of_the_others() {
    let mut view = view();
    view.update(&server(vec![peer(2, "alice", 1100)]), Duration::from_secs(1));
    assert_eq!(view.total.now(), (8000, 0));
}

#[test]
fn drops_are_counted_without_those_that_have_no_effect() {
    let mut machine = server(Vec::new());
    let drops = &mut machine.reports[0].drops;
    drops.extend([("local-scope".to_owned(), 9), ("filtered".to_owned(), 2)]);
    let mut view = View::new(SortKey::Rate, false);
    view.update(&machine, Duration::ZERO);
    assert_eq!(screen(&view)[0], "server: running, up 1 min, 2 packets dropped");
}

#[test]
fn many_rows_are_shown_in_pages() {
    let clients = (0..100).map(|id| peer(id, &format!("client{id:03}"), 0)).collect();
    let mut view = View::new(SortKey::Name, false);
    view.update(&server(clients), Duration::ZERO);
    press(&mut view, &[KeyCode::Down; 20]);
    // 24 lines less the instance, two rates, the heading and the keys.
    let shown = screen(&view);
    assert!(shown[4].starts_with("client019"), "{shown:#?}");
    press(&mut view, &[KeyCode::Up]);
    let shown = screen(&view);
    assert!(shown[4].starts_with("client000") && shown[22].starts_with("client018"), "{shown:#?}");
}

#[test]
fn a_screen_of_any_size_can_be_drawn() {
    let mut view = view();
    press(&mut view, &[KeyCode::Down]);
    for (width, height) in [(0, 0), (1, 1), (7, 2), (80, 3), (20, 5), (5, 24), (300, 100)] {
        for mode in [Mode::List, Mode::Filter, Mode::Details, Mode::Help] {
            view.mode = mode;
            let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
            terminal.draw(|frame| draw(&view, frame)).unwrap();
        }
    }
}

#[test]
fn a_narrow_list_shows_the_first_address_and_the_details_show_all() {
    let addresses = vec!["10.8.0.2".to_owned(), "fd6c:36e6:93be::1000".to_owned()];
    let client = PeerReport { tunnel: addresses, ..peer(2, "alice", 0) };
    let mut view = View::new(SortKey::Name, false);
    view.update(&server(vec![client]), Duration::ZERO);
    assert!(screen(&view)[4].contains(" 10.8.0.2 ") && !screen(&view)[4].contains("fd6c"));
    press(&mut view, &[KeyCode::Enter]);
    let inside = "  inside                10.8.0.2 fd6c:36e6:93be::1000".to_owned();
    assert!(screen(&view).contains(&inside), "{:#?}", screen(&view));
}

#[test]
fn a_long_value_goes_on_beneath_itself() {
    let client = PeerReport { tls: "a suite, ".repeat(9), ..peer(2, "alice", 0) };
    let mut view = View::new(SortKey::Name, false);
    view.update(&server(vec![client]), Duration::ZERO);
    press(&mut view, &[KeyCode::Enter]);
    let rest = format!("{:24}suite, a suite, a suite,", "");
    assert!(screen(&view).contains(&rest), "{:#?}", screen(&view));
}
