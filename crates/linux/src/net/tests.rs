use super::*;
use ipnet::IpNet;
use std::net::IpAddr;

fn net(text: &str) -> IpNet {
    text.parse().unwrap()
}

fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}

/// Creates a namespace `left` with an interface `eth` (192.0.2.1/24, 2001:db8::1/64) whose other
/// end is in `right` (.2, ::2).
fn pair() -> (NetNs, NetNs) {
    let (left, right) = (NetNs::unnamed().unwrap(), NetNs::unnamed().unwrap());
    left.connect("eth", &right, "eth").unwrap();
    for (ns, v4, v6) in
        [(&left, "192.0.2.1/24", "2001:db8::1/64"), (&right, "192.0.2.2/24", "2001:db8::2/64")]
    {
        ns.configure(async |n| {
            let link = n.link("eth").await?.index;
            n.add_address(&Address::new(link, net(v4))).await?;
            n.add_address(&Address::new(link, net(v6))).await
        })
        .unwrap()
        .unwrap();
    }
    (left, right)
}

fn inside(ns: &NetNs, work: impl AsyncFnOnce(&Net) -> Result<(), NetError> + Send) {
    ns.configure(work).unwrap().unwrap();
}

#[test]
fn links_change_as_told() {
    adit_testbed::needs_root!();
    let (left, _right) = pair();
    inside(&left, async |n| {
        let link = n.link("eth").await?;
        assert!(link.up && link.mac.is_some() && link.mtu == 1500);
        n.set_mtu(link.index, 1400).await?;
        n.set_txqueuelen(link.index, 1234).await?;
        n.set_down(link.index).await?;
        let now = n.link_by_index(link.index).await?;
        let changed =
            Link { mtu: 1400, txqueuelen: 1234, up: false, running: false, ..link.clone() };
        assert_eq!(now, changed);
        assert!(n.links().await?.contains(&now));
        assert_eq!(n.set_mtu(link.index, 1).await.unwrap_err().kind(), NetErrorKind::Invalid);
        n.delete_link(link.index).await?;
        assert_eq!(n.link("eth").await.unwrap_err().kind(), NetErrorKind::NotFound);
        assert_eq!(n.set_up(link.index).await.unwrap_err().kind(), NetErrorKind::NotFound);
        Ok(())
    });
}

#[test]
fn addresses_come_and_go() {
    adit_testbed::needs_root!();
    let (left, _right) = pair();
    inside(&left, async |n| {
        let link = n.link("eth").await?.index;
        let plain = Address::new(link, net("198.51.100.7/24"));
        let v6 = Address::new(link, net("2001:db8:1::7/64"));
        let point = Address {
            remote: Some(ip("203.0.113.2")),
            ..Address::new(link, net("203.0.113.1/32"))
        };
        for address in [plain, v6, point] {
            n.add_address(&address).await?;
            assert!(n.addresses().await?.contains(&address), "{address:?}");
            let again = n.add_address(&address).await.unwrap_err();
            assert_eq!(again.kind(), NetErrorKind::Exists);
            n.delete_address(&address).await?;
            assert!(!n.addresses().await?.contains(&address));
            let again = n.delete_address(&address).await.unwrap_err();
            assert_eq!(again.kind(), NetErrorKind::NotFound, "{again}");
        }
        Ok(())
    });
}

#[test]
fn a_new_ipv6_address_can_be_bound_at_once() {
    adit_testbed::needs_root!();
    let (left, _right) = pair();
    let bound = left.run(|| std::net::UdpSocket::bind("[2001:db8::1]:0")).unwrap();
    assert!(bound.is_ok(), "{bound:?}");
}

#[test]
fn routes_by_gateway_and_by_interface() {
    adit_testbed::needs_root!();
    let (left, _right) = pair();
    inside(&left, async |n| {
        let link = n.link("eth").await?.index;
        for (to, via, hop) in [
            ("10.0.0.0/8", "192.0.2.2", "10.1.2.3"),
            ("2001:db8:9::/48", "2001:db8::2", "2001:db8:9::1"),
        ] {
            let by_gateway = Route { metric: Some(50), ..Route::via(net(to), ip(via)) };
            let by_link = Route { metric: Some(50), ..Route::dev(net(to), link) };
            n.add_route(&by_gateway).await?;
            let again = n.add_route(&by_gateway).await.unwrap_err();
            assert_eq!(again.kind(), NetErrorKind::Exists);
            let path = n.route_to(ip(hop)).await?;
            assert_eq!((path.gateway, path.link), (Some(ip(via)), link));
            assert!(path.source.is_some() && !path.local);
            n.replace_route(&by_link).await?;
            assert_eq!(n.route_to(ip(hop)).await?.gateway, None);
            let listed = Route { table: Some(MAIN_TABLE), ..by_link };
            assert!(n.routes().await?.contains(&listed), "{listed}");
            // Without a metric and an interface, the request matches any route to that network.
            n.delete_route(&Route { metric: None, link: None, ..by_link }).await?;
            let gone = n.delete_route(&by_link).await.unwrap_err();
            assert_eq!(gone.kind(), NetErrorKind::NotFound, "{gone}");
            let none = n.route_to(ip(hop)).await.unwrap_err();
            assert_eq!(none.kind(), NetErrorKind::Unreachable);
            assert!(none.to_string().contains("the network is unreachable"), "{none}");
        }
        Ok(())
    });
}

#[test]
fn the_default_route_is_the_one_with_the_lowest_metric() {
    adit_testbed::needs_root!();
    let (left, _right) = pair();
    inside(&left, async |n| {
        let link = n.link("eth").await?.index;
        assert_eq!(n.default_route(false).await?, None);
        assert_eq!(n.default_route(true).await?, None);
        let far = Route { metric: Some(200), ..Route::dev(net("0.0.0.0/0"), link) };
        let near = Route { metric: Some(100), ..Route::via(far.to, ip("192.0.2.2")) };
        let other = Route { metric: None, table: Some(1000), ..near };
        for route in [&far, &near, &other] {
            n.add_route(route).await?;
        }
        let found = n.default_route(false).await?.unwrap();
        let wanted = Route { link: Some(link), table: Some(MAIN_TABLE), ..near };
        assert_eq!(found, wanted);
        assert!(n.routes().await?.contains(&Route { link: Some(link), ..other }));
        n.delete_route(&other).await?;
        n.add_route(&Route::via(net("::/0"), ip("2001:db8::2"))).await?;
        assert_eq!(n.default_route(true).await?.unwrap().via, Some(ip("2001:db8::2")));
        Ok(())
    });
}

#[test]
fn unusual_routes() {
    adit_testbed::needs_root!();
    let (left, _right) = pair();
    inside(&left, async |n| {
        let link = n.link("eth").await?.index;
        let nowhere = Route::via(net("10.0.0.0/8"), ip("198.51.100.9"));
        let error = n.add_route(&nowhere).await.unwrap_err();
        assert_eq!(error.kind(), NetErrorKind::Unreachable, "{error}");
        n.add_route(&Route { link: Some(link), onlink: true, ..nowhere }).await?;
        assert_eq!(n.route_to(ip("10.9.9.9")).await?.gateway, nowhere.via);
        // Host bits are cleared; IPv4 may use an IPv6 gateway (RFC 5549).
        n.add_route(&Route {
            link: Some(link),
            ..Route::via(net("172.16.1.9/16"), ip("2001:db8::2"))
        })
        .await?;
        assert_eq!(n.route_to(ip("172.16.200.1")).await?.gateway, Some(ip("2001:db8::2")));
        n.add_route(&Route {
            source: Some(ip("192.0.2.1")),
            ..Route::dev(net("10.7.0.0/16"), link)
        })
        .await?;
        assert_eq!(n.route_to(ip("10.7.0.1")).await?.source, Some(ip("192.0.2.1")));
        let own = n.route_to(ip("192.0.2.1")).await?;
        assert!(own.local);
        Ok(())
    });
}

#[test]
fn a_handle_in_another_namespace() {
    adit_testbed::needs_root!();
    let (left, _right) = pair();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let there = Net::open_in(&left).unwrap();
        assert!(there.link("eth").await.unwrap().up);
        let here = Net::open().unwrap();
        assert!(!here.links().await.unwrap().contains(&there.link("eth").await.unwrap()));
    });
}

#[test]
fn rules_and_routes_without_a_hop_come_and_go() {
    adit_testbed::needs_root!();
    let (left, _right) = pair();
    inside(&left, async |n| {
        for (v6, all, hop) in
            [(false, "0.0.0.0/0", "198.51.100.9"), (true, "::/0", "2001:db8:9::1")]
        {
            let table = 44_399;
            let reject = Route {
                table: Some(table),
                metric: Some(u32::MAX),
                ..Route::without_hop(net(all), RouteKind::Unreachable)
            };
            n.add_route(&reject).await?;
            assert_eq!(n.add_route(&reject).await.unwrap_err().kind(), NetErrorKind::Exists);
            let listed = n.all_routes().await?;
            assert!(listed.iter().any(|r| r.table == Some(table)
                && r.kind == RouteKind::Unreachable
                && r.to == net(all)));
            assert!(n.routes().await?.iter().all(|r| r.table != Some(table)));
            let dhcp = Rule {
                v6,
                preference: 7000,
                from: None,
                to: None,
                not_mark: None,
                udp_ports: Some((68, 67)),
                table: MAIN_TABLE,
            };
            let all_else =
                Rule { preference: 7002, not_mark: Some(7), udp_ports: None, table, ..dhcp };
            let one =
                Rule { preference: 7001, to: Some(IpNet::from(ip(hop))), udp_ports: None, ..dhcp };
            for rule in [dhcp, one, all_else] {
                n.add_rule(&rule).await?;
                let again = n.add_rule(&rule).await.unwrap_err();
                assert_eq!(again.kind(), NetErrorKind::Exists, "{rule}");
            }
            let of = |listed: &[RuleInUse]| {
                let ours =
                    listed.iter().filter(|r| r.v6 == v6 && (7000..7010).contains(&r.preference));
                ours.map(|r| (r.preference, r.table, r.mark)).collect::<Vec<_>>()
            };
            let expected = [
                (7000, MAIN_TABLE, None),
                (7001, MAIN_TABLE, None),
                (7002, table, Some((7, u32::MAX))),
            ];
            assert_eq!(of(&n.rules().await?), expected);
            // Unmarked packets get an error at once.
            assert!(n.route_to(ip(if v6 { "2001:db8::2" } else { "192.0.2.2" })).await.is_err());
            for rule in [dhcp, one, all_else] {
                n.delete_rule(&rule).await?;
            }
            assert!(of(&n.rules().await?).is_empty());
            n.delete_route(&reject).await?;
        }
        Ok(())
    });
}

#[test]
fn changes_of_links_addresses_and_routes_are_heard() {
    adit_testbed::needs_root!();
    let (left, _right) = pair();
    inside(&left, async |n| {
        let link = n.link("eth").await?.index;
        let mut watch = NetWatch::open().unwrap();
        n.add_address(&Address::new(link, net("203.0.113.5/24"))).await?;
        n.add_route(&Route::via(net("0.0.0.0/0"), ip("192.0.2.2"))).await?;
        n.set_down(link).await?;
        let mut seen = Vec::new();
        let wanted = [NetChange::Link(link), NetChange::Route(net("0.0.0.0/0"), MAIN_TABLE)];
        let all = async {
            while !wanted.iter().all(|change| seen.contains(change)) {
                seen.push(watch.next().await);
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(20), all).await.expect("no changes");
        Ok(())
    });
}

#[test]
fn a_rate_limit_can_be_set_changed_and_removed() {
    adit_testbed::needs_root!();
    let (left, _right) = pair();
    inside(&left, async |n| {
        let link = n.link("eth").await?.index;
        for rate in [100, 1_000_000, 100_000_000] {
            n.set_rate_limit(link, rate, 1500).await?;
        }
        n.remove_rate_limit(link).await?;
        assert!(n.remove_rate_limit(link).await.is_err(), "there is none");
        assert!(n.set_rate_limit(u32::MAX >> 1, 1000, 1500).await.is_err());
        Ok(())
    });
}
