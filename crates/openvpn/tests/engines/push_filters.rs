//! A server pushes options that its client filters, in every form that the protocol allows.

use std::time::Duration;

use adit_openvpn::client::{ClientEvent, TunnelConfig};
use adit_openvpn::negotiate::{FilterAction, PullFilter, PullFilters};
use adit_openvpn::session::Settings;
use adit_sim::Impairment;

use crate::support::{World, client_config, server_config};

const SECOND: Duration = Duration::from_secs(1);

/// Returns the tunnel of a client with these filters, after a server has pushed these options.
fn tunnel(push: &[&str], filters: PullFilters) -> (World, TunnelConfig) {
    let mut server = server_config(Settings::default());
    server.push = push.iter().map(|option| (*option).to_owned()).collect();
    let mut client = client_config(Settings::default());
    client.pull_filters = filters;
    let mut w = World::new(server, 1);
    let c = w.connect(client, Impairment::default(), 1);
    assert!(w.run(5 * SECOND, |w| w.is_up(c)), "{:?}", w.clients[c].events);
    let up = w.clients[c].events.iter().find_map(|event| match event {
        ClientEvent::Up(config) => Some((**config).clone()),
        _ => None,
    });
    (w, up.expect("a tunnel"))
}

const HOSTILE: [&str; 8] = [
    r#""route" 10.0.0.0 255.0.0.0"#,
    "route\u{a0}10.0.0.0 255.0.0.0",
    "\"route\"\t10.0.0.0 255.0.0.0",
    "'redirect-gateway' def1",
    r#""dhcp-option" DNS 6.6.6.6"#,
    r#"'dns' server 1 address 6.6.6.6"#,
    r#""route-ipv6" 2000::/3"#,
    r#""auth-token" TOPSECRET"#,
];

#[test]
fn quoted_options_do_not_pass_route_nopull() {
    // A tab is a control character, so the whole message is refused.
    let push: Vec<_> = HOSTILE.into_iter().filter(|option| !option.contains('\t')).collect();
    let (w, up) = tunnel(&push, PullFilters { filters: Vec::new(), route_nopull: true });
    assert!(up.routes4.is_empty() && up.routes6.is_empty(), "{up:?}");
    assert!(up.redirect_gateway.is_none() && up.dns.is_empty(), "{up:?}");
    assert!(up.ipv4.is_some(), "the rest is taken");
    let events = format!("{:?}", w.clients[0].events);
    assert!(!events.contains("TOPSECRET"), "{events}");
}

#[test]
fn quoted_options_do_not_pass_a_pull_filter() {
    let ignore = |prefix| PullFilter::new(FilterAction::Ignore, prefix);
    let filters = PullFilters {
        filters: vec![
            PullFilter::new(FilterAction::Accept, "route 10.7."),
            ignore("route "),
            ignore("redirect-gateway"),
        ],
        route_nopull: false,
    };
    let push = ["'route' 10.7.0.0 255.255.0.0", HOSTILE[0], HOSTILE[1], HOSTILE[3], "ping 10"];
    let (_, up) = tunnel(&push, filters);
    let routes: Vec<_> = up.routes4.iter().map(|route| route.net.to_string()).collect();
    assert_eq!(routes, ["10.7.0.0/16"]);
    assert_eq!(up.redirect_gateway, None);
}

#[test]
fn a_fragment_that_is_pushed_is_ignored_with_a_warning() {
    let (w, _) = tunnel(&["fragment 1300"], PullFilters::default());
    let warnings: Vec<_> = w.clients[0]
        .events
        .iter()
        .filter_map(|event| match event {
            ClientEvent::Warning(text) => Some(text.as_str()),
            _ => None,
        })
        .collect();
    assert!(warnings.iter().any(|text| text.contains("\"fragment 1300\"")), "{warnings:?}");
}
