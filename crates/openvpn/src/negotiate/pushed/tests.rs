use proptest::prelude::*;

use super::super::{
    Destination, PullFilter, PushAssembler, PushError, PushPart, Via, fuzz_filters,
};
use super::*;

fn items(text: &str) -> Result<Option<Vec<ReplyItem>>, PushError> {
    PushAssembler::default().add(PushPart::lex(text))
}

fn parse(text: &str) -> Result<PushedOptions, PushRefused> {
    filtered(text, &PullFilters::default())
}

fn filtered(text: &str, filters: &PullFilters) -> Result<PushedOptions, PushRefused> {
    let items = items(text).unwrap().unwrap();
    PushedOptions::from_reply(items, filters).map(|(pushed, _)| pushed)
}

/// Captured from openvpn 2.6.14.
const STOCK: &str = "redirect-gateway def1,dhcp-option DNS 1.1.1.1,tun-ipv6,route-gateway 10.8.0.1,\
    topology subnet,ping 10,ping-restart 60,ifconfig-ipv6 fd00:9::1000/64 fd00:9::1,\
    ifconfig 10.8.0.2 255.255.255.0,peer-id 0,cipher AES-256-GCM,\
    protocol-flags cc-exit tls-ekm dyn-tls-crypt,tun-mtu 1500";

#[test]
fn what_an_openvpn_server_pushes() {
    let pushed = parse(STOCK).unwrap();
    assert_eq!(pushed.ipv4, Some("10.8.0.2/24".parse().unwrap()));
    assert_eq!(pushed.ipv6, Some("fd00:9::1000/64".parse().unwrap()));
    assert_eq!(pushed.gateway4, Some(Ipv4Addr::new(10, 8, 0, 1)));
    assert_eq!(pushed.gateway6, Some("fd00:9::1".parse().unwrap()));
    assert_eq!(pushed.redirect_gateway.as_deref(), Some(&["def1".to_owned()][..]));
    assert_eq!(pushed.dns.lines(), ["dhcp-option DNS 1.1.1.1"]);
    assert_eq!(
        (pushed.ping, pushed.ping_timeout),
        (Some(Duration::from_secs(10)), Some(Duration::from_secs(60)))
    );
    assert_eq!(
        (pushed.peer_id, pushed.cipher, pushed.tun_mtu),
        (Some(0), Some(adit_crypto::Cipher::Aes256Gcm.into()), Some(1500))
    );
    assert!(pushed.cc_exit && pushed.tls_ekm && pushed.dyn_tls_crypt);
    assert!(pushed.notes.is_empty(), "{:?}", pushed.notes);
}

#[test]
fn routes_with_words_are_resolved_later() {
    let pushed = parse(
        "route 10.1.0.0 255.255.0.0,route 192.0.2.9 255.255.255.255 net_gateway,\
         route remote_host 255.255.255.255 net_gateway 7,route 10.2.0.0 255.255.0.0 10.8.0.9,\
         route-ipv6 2000::/3,route-metric 50,route-gateway 10.8.0.1",
    )
    .unwrap();
    let context = pushed.route_context(Some("203.0.113.5".parse().unwrap()));
    let routes: Vec<_> =
        pushed.routes4.iter().filter_map(|route| route.resolve(&context)).collect();
    let seen: Vec<_> =
        routes.iter().map(|r| (r.net.to_string(), r.via, r.outside, r.metric)).collect();
    let gateway = Some(Ipv4Addr::new(10, 8, 0, 9));
    assert_eq!(
        seen,
        [
            ("10.1.0.0/16".to_owned(), None, false, Some(50)),
            ("192.0.2.9/32".to_owned(), None, true, Some(50)),
            ("203.0.113.5/32".to_owned(), None, true, Some(7)),
            ("10.2.0.0/16".to_owned(), gateway, false, Some(50)),
        ]
    );
    assert_eq!(pushed.routes6.len(), 1);
    // If the server is reached over IPv6, there is no IPv4 host to route to.
    let context = pushed.route_context(Some("2001:db8::1".parse().unwrap()));
    assert_eq!(pushed.routes4.iter().filter_map(|route| route.resolve(&context)).count(), 3);
    let vpn = parse("route vpn_gateway,route 10.0.0.0 255.0.0.0 vpn_gateway").unwrap();
    assert_eq!(vpn.routes4[0].to, Destination::VpnGateway);
    assert_eq!(vpn.routes4[1].via, Via::Tunnel);
    assert_eq!(vpn.routes4[0].resolve(&vpn.route_context(None)), None);
}

#[test]
fn other_data_formats_are_taken() {
    let pushed = parse("cipher AES-256-CBC,protocol-flags cc-exit tls-ekm aead-epoch").unwrap();
    assert_eq!(pushed.cipher.map(|cipher| cipher.name()), Some("AES-256-CBC"));
    assert!(pushed.epoch && pushed.tls_ekm && pushed.cc_exit && !pushed.dyn_tls_crypt);
    assert!(!parse("protocol-flags cc-exit tls-ekm").unwrap().epoch);
}

#[test]
fn what_changes_the_wire_ends_the_session() {
    for option in [
        "comp-lzo perhaps",
        "compress zstd",
        "cipher BF-CBC",
        "cipher ARIA-256-GCM",
        "protocol-flags cc-exit tls-ekm something-new",
        "key-derivation other",
    ] {
        let refused = parse(option).unwrap_err();
        assert!(matches!(refused, PushRefused::Unsupported { .. }), "{option}: {refused}");
    }
    for (option, framing, notes) in [
        ("comp-lzo no", Framing::LzoStub, 0),
        ("comp-lzo", Framing::LzoStub, 1),
        ("comp-lzo adaptive", Framing::LzoStub, 1),
        ("compress lzo", Framing::LzoStub, 1),
        ("compress", Framing::SwapStub, 0),
        ("compress stub", Framing::SwapStub, 0),
        ("compress lz4", Framing::SwapStub, 1),
        ("compress stub-v2", Framing::StubV2, 0),
        ("compress lz4-v2", Framing::StubV2, 1),
    ] {
        let pushed = parse(option).unwrap();
        assert_eq!((pushed.framing, pushed.notes.len()), (Some(framing), notes), "{option}");
    }
}

#[test]
fn malformed_essentials_are_refused() {
    for option in [
        "ifconfig 10.8.0.2",
        "ifconfig x y",
        "ifconfig-ipv6 x",
        "topology subnet,ifconfig 10.8.0.6 10.8.0.5",
        "topology subnet,ifconfig 10.8.0.6 255.0.255.0",
        "ifconfig 0.0.0.0 255.255.255.0",
        "ifconfig 127.0.0.1 255.0.0.0",
        "ifconfig 224.0.0.1 255.255.255.0",
        "ifconfig 255.255.255.255 10.8.0.5",
        "ifconfig-ipv6 ::/64",
        "ifconfig-ipv6 ::1/128",
        "ifconfig-ipv6 ff02::1/64",
        "peer-id -1",
        "peer-id 16777216",
        "ping x",
        "ping-restart",
        "tun-mtu 99999",
        "tun-mtu 100",
        "auth-token",
        "auth-token-user !",
        "topology ring",
        "explicit-exit-notify x",
    ] {
        assert!(matches!(parse(option), Err(PushRefused::Malformed { .. })), "{option}");
    }
    assert_eq!(parse("peer-id 16777215").unwrap().peer_id, None);
}

#[test]
fn what_openvpn_refuses_from_a_server_ends_no_session() {
    for option in ["fragment x", "keepalive 10", "keepalive x y", "reneg-sec x", "mssfix x"] {
        let pushed = parse(option).unwrap_or_else(|refused| panic!("{option}: {refused}"));
        let reported = pushed.notes.len() + usize::from(pushed.fragment.is_some());
        assert_eq!(reported, 1, "{option}");
        assert_eq!((pushed.ping, pushed.ping_timeout, pushed.reneg_sec), (None, None, None));
    }
}

#[test]
fn a_server_says_when_clients_end() {
    let seconds = Duration::from_secs;
    let pushed = parse("inactive 60 1000,session-timeout 3600,ping-exit 90").unwrap();
    let inactive = pushed.inactive.unwrap();
    assert_eq!((inactive.after, inactive.bytes), (seconds(60), 1000));
    assert_eq!(pushed.session_timeout, Some(seconds(3600)));
    assert_eq!((pushed.ping_timeout, pushed.exit_on_timeout), (Some(seconds(90)), true));
    assert_eq!(parse("inactive 60").unwrap().inactive.unwrap().bytes, 0);
    for option in ["inactive", "inactive x", "inactive 60 x"] {
        assert!(matches!(parse(option), Err(PushRefused::Malformed { .. })), "{option}");
    }
}

#[test]
fn what_is_harmless_and_unknown_costs_a_note() {
    let pushed = parse(
        "client-nat snat x,new-thing a b,route 10.0.0.0 255.0.255.0,redirect-gateway DEF1 up,verb 9",
    )
    .unwrap();
    assert_eq!(pushed.notes.len(), 4, "{:?}", pushed.notes);
    assert!(pushed.routes4.is_empty());
    assert_eq!(pushed.redirect_gateway.as_deref(), Some(&["def1".to_owned()][..]));
    // A server cannot run commands, set variables or write log files.
    let pushed =
        parse("up /bin/sh,setenv LD_PRELOAD x,log /etc/passwd,script-security 3,config x").unwrap();
    assert_eq!(pushed.notes.len(), 5);
    assert_eq!(PushedOptions { notes: Vec::new(), ..pushed }, PushedOptions::default());
}

#[test]
fn a_server_sets_only_variables_with_a_prefix() {
    let pushed =
        parse("setenv-safe SITE a,setenv-safe SITE b,setenv-safe X=Y c,setenv-safe").unwrap();
    assert_eq!(pushed.environment, [("OPENVPN_SITE".to_owned(), "b".to_owned())]);
    assert_eq!(pushed.notes.len(), 2, "{:?}", pushed.notes);
    let many: Vec<String> = (0..100).map(|n| format!("setenv-safe N{n} x")).collect();
    let pushed = parse(&many.join(",")).unwrap();
    assert_eq!(pushed.environment.len(), 64);
    let long = format!("setenv-safe {} x", "N".repeat(65));
    assert!(parse(&long).unwrap().environment.is_empty());
}

#[test]
fn options_for_programs_are_kept_as_written() {
    let pushed =
        parse("dhcp-option DNS 10.8.0.1,dhcp-option NTP 10.8.0.9,dhcp-option DOMAIN a.b").unwrap();
    let foreign =
        ["dhcp-option DNS 10.8.0.1", "dhcp-option NTP 10.8.0.9", "dhcp-option DOMAIN a.b"];
    assert_eq!(pushed.dns.dhcp.foreign, foreign);
    let many = vec!["dhcp-option NTP 10.8.0.9"; 100].join(",");
    let pushed = parse(&many).unwrap();
    assert_eq!(pushed.dns.dhcp.foreign.len(), 64);
    let merged = pushed.dns.merged(&pushed.dns);
    assert_eq!(merged.dhcp.foreign.len(), 64);
    let long = format!("dhcp-option X {}", "y".repeat(300));
    assert!(parse(&long).unwrap().dns.dhcp.foreign.is_empty());
}

#[test]
fn a_net30_pair_is_two_ends_and_no_network() {
    let pushed = parse("topology net30,ifconfig 10.8.0.6 10.8.0.5,route 10.8.0.1").unwrap();
    assert_eq!(pushed.ipv4, Some("10.8.0.6/32".parse().unwrap()));
    let far = Some(Ipv4Addr::new(10, 8, 0, 5));
    assert_eq!((pushed.far4, pushed.gateway4), (far, far));
}

#[test]
fn two_addresses_without_a_network_are_a_link_of_their_own() {
    for topology in ["topology p2p,", "topology net30,", ""] {
        let pushed = parse(&format!("{topology}ifconfig 10.8.0.6 10.9.0.5")).unwrap();
        assert_eq!(pushed.ipv4, Some("10.8.0.6/32".parse().unwrap()), "{topology}");
        assert_eq!(
            (pushed.far4, pushed.gateway4),
            (pushed.gateway4, Some(Ipv4Addr::new(10, 9, 0, 5)))
        );
    }
}

#[test]
fn filters_come_first_and_in_order() {
    let filter = PullFilter::new;
    let filters = PullFilters {
        filters: vec![
            filter(FilterAction::Accept, "route 10.1."),
            filter(FilterAction::Ignore, "route "),
            filter(FilterAction::Ignore, "comp-lzo"),
        ],
        route_nopull: false,
    };
    let pushed =
        filtered("route 10.1.0.0 255.255.0.0,route 10.2.0.0 255.255.0.0,comp-lzo yes", &filters)
            .unwrap();
    assert_eq!(pushed.routes4.len(), 1);
    assert_eq!(pushed.notes.len(), 2);
    let reject = PullFilters {
        filters: vec![filter(FilterAction::Reject, "redirect")],
        route_nopull: false,
    };
    assert!(matches!(filtered(STOCK, &reject), Err(PushRefused::Filtered(_))));
    let nopull = PullFilters { filters: Vec::new(), route_nopull: true };
    let pushed = filtered(STOCK, &nopull).unwrap();
    assert_eq!((pushed.redirect_gateway, pushed.dns.is_empty()), (None, true));
    assert!(pushed.ipv4.is_some() && pushed.gateway4.is_some());
}

#[test]
fn tokens_stay_out_of_logs() {
    let pushed = parse("auth-token SESS_ID_secret,auth-token-user dXNlcg==").unwrap();
    assert_eq!(pushed.auth_token.as_ref().map(|token| token.as_str()), Some("SESS_ID_secret"));
    assert_eq!(pushed.auth_token_user.as_deref(), Some("user"));
    assert!(!format!("{pushed:?}").contains("secret"));
    let filters = PullFilters {
        filters: vec![PullFilter::new(FilterAction::Ignore, "auth-token")],
        route_nopull: false,
    };
    let pushed = filtered("auth-token SESS_ID_secret", &filters).unwrap();
    assert!(!pushed.notes[0].contains("secret"), "{:?}", pushed.notes);
}

proptest! {
    #[test]
    fn no_options_make_the_parser_panic(text in "\\PC{0,120}") {
        if let Ok(Some(items)) = items(&text) {
            let _ = PushedOptions::from_reply(items, &PullFilters::default());
        }
    }

    #[test]
    fn known_words_with_any_arguments(
        word in "ifconfig|ifconfig-ipv6|route|route-ipv6|route-gateway|peer-id|cipher|ping|tun-mtu|auth-token-user|protocol-flags|topology|redirect-gateway|compress|explicit-exit-notify|route-metric",
        args in "( ([0-9]{1,20}|-[0-9]{1,10}|10\\.8\\.0\\.[0-9]{1,3}|255\\.255\\.255\\.252|::/[0-9]{1,3}|[a-zA-Z!=\"\\\\]{0,9})){0,4}",
    ) {
        if let Ok(Some(items)) = items(&format!("{word}{args}")) {
            let _ = PushedOptions::from_reply(items, &PullFilters::default());
        }
    }
}

#[test]
fn a_logged_bundle_has_no_token() {
    let logged = |text| PushPart::<ReplyItem>::lex(text).to_string();
    assert_eq!(
        logged("ping 10,auth-token SESS_ID_secret,auth-token-user dXNlcg==,echo forget"),
        "ping 10,auth-token ...,auth-token-user dXNlcg==,echo ..."
    );
    assert_eq!(logged("\"auth-token\" SECRET, route\t10.0.0.0"), "auth-token ...,route 10.0.0.0");
    let (pushed, kept) = PushedOptions::from_reply(
        items("\"auth-token\" SECRET,ping 10").unwrap().unwrap(),
        &PullFilters::default(),
    )
    .unwrap();
    assert_eq!(pushed.auth_token.as_ref().map(|token| token.as_str()), Some("SECRET"));
    assert_eq!(kept, [PushedOption::parse("ping 10").unwrap()]);
}

/// Returns the ways in which a server may spell an option of this name.
fn spellings(name: &str, args: &str) -> Vec<String> {
    vec![
        format!("{name} {args}"),
        format!("\"{name}\" {args}"),
        format!("'{name}' {args}"),
        format!("'{name}'{args}"),
        format!("{name}\t{args}"),
        format!("{name}\u{a0}{args}"),
        format!("\u{3000}{name} {args}"),
        format!("{name}   \"{args}\""),
        format!("? {name} {args}"),
        format!("\"{name} {args}"),
        format!("{name}\\ {args}"),
        format!("\\\"{name}\" {args}"),
        format!("{} {args}", name.to_uppercase()),
    ]
}

const FILTERED: [(&str, &str); 7] = [
    ("route", "10.0.0.0 255.0.0.0"),
    ("route-ipv6", "2000::/3"),
    ("redirect-gateway", "def1"),
    ("redirect-private", "def1"),
    ("block-ipv6", ""),
    ("dhcp-option", "DNS 6.6.6.6"),
    ("dns", "server 1 address 6.6.6.6"),
];

#[test]
fn no_spelling_passes_a_filter() {
    for (name, args) in FILTERED {
        for option in spellings(name, args) {
            let nopull = PullFilters { filters: Vec::new(), route_nopull: true };
            let ignore = PullFilters {
                filters: vec![PullFilter::new(FilterAction::Ignore, name)],
                route_nopull: false,
            };
            for filters in [nopull, ignore] {
                let text = format!("{option},ping 10").replace('\t', " \" \" ");
                let pushed = filtered(&text, &filters).unwrap();
                let only_ping = PushedOptions {
                    ping: Some(Duration::from_secs(10)),
                    notes: pushed.notes.clone(),
                    ..PushedOptions::default()
                };
                assert_eq!(pushed, only_ping, "{option}");
                assert_eq!(pushed.notes.len(), 1, "{option}: {:?}", pushed.notes);
            }
        }
    }
}

proptest! {
    /// An option of a filtered kind never appears in the result of a reply or of later updates.
    #[test]
    fn filters_are_a_mask(
        choice: u8,
        picked in proptest::collection::vec((0..FILTERED.len(), 0..13_usize, 0..3_usize), 0..12),
    ) {
        let mut text = String::from("ping 10");
        for (kind, spelling, separator) in picked {
            let (name, args) = FILTERED[kind];
            text.push_str([",", ",", "\n"][separator]);
            text.push_str(&spellings(name, args)[spelling].replace('\t', " "));
        }
        fuzz_filters(&[&[choice], text.as_bytes()].concat());
    }

    #[test]
    fn filters_are_a_mask_for_any_text(choice: u8, text in "([a-z?\\-\"'\\\\ ,\n\u{a0}#]|route |dns |block-ipv6){0,60}") {
        fuzz_filters(&[&[choice], text.as_bytes()].concat());
    }
}

#[test]
fn routes_to_names_are_kept_apart_within_a_bound() {
    let pushed = parse(
        "ifconfig 10.8.0.2 255.255.255.0,topology subnet,route www.example.org 255.255.255.255 net_gateway,\
         route files.example.org 255.0.255.0,route files.example.org 255.255.255.255 no-gateway,route a/b",
    )
    .unwrap();
    assert_eq!(pushed.named_routes, [["www.example.org", "255.255.255.255", "net_gateway"]]);
    assert!(pushed.routes4.is_empty());
    assert_eq!(pushed.notes.len(), 3, "{:?}", pushed.notes);
    let many: Vec<String> = (0..100).map(|n| format!("route h{n}.example")).collect();
    let pushed = parse(&many.join(",")).unwrap();
    assert_eq!(pushed.named_routes.len(), 16);
    assert_eq!(pushed.notes.len(), 84);
}
