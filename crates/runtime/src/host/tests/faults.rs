//! After a change that the kernel refuses, no packet may leave outside the tunnel.

use super::*;
use crate::host::kernel::Operation;

/// The error of a failed operation.
const EIO: i32 = 5;
/// The error of a kernel without the feature.
const EOPNOTSUPP: i32 = 95;

/// Returns a plan with a private network on the access link, and with permission for it.
fn with_lan() -> HostPlan {
    HostPlan { allow_lan: true, ..by_policy("def1") }
}

fn kill_switch() -> HostPlan {
    HostPlan { kill_switch: true, ..by_policy("def1 ipv6") }
}

async fn joins_a_lan(net: &Net) {
    let link = net.link("eth0").await.unwrap().index;
    let lan = Address::new(link, "192.168.1.7/24".parse().unwrap());
    net.add_address(&lan).await.unwrap();
}

fn leaks(ways: &[String]) -> bool {
    ways.iter().any(|way| way == "eth0")
}

/// Replaces each plan with each other one. One operation fails, or all that follow it fail as well
/// (which also tests every intermediate state), or all of one kind fail.
#[test]
fn a_refused_change_at_any_step_keeps_traffic_in_and_is_repeated() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        add_native(net).await;
        joins_a_lan(net).await;
        let before = state(net).await;
        // The kernel filters by source, so the routers have rules too.
        std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "2").unwrap();
        let plans = [by_policy("def1"), by_policy("def1 ipv6"), with_lan()];
        let (mut host, device) = host(true).await;
        let mut steps = 0;
        for from in &plans {
            for to in plans.iter().filter(|to| *to != from) {
                let applied = host.apply(from).await.unwrap();
                assert!(
                    applied == ApplyOutcome::Same || applied == ApplyOutcome::Changed(Vec::new())
                );
                assert_eq!(host.change(to).await.unwrap(), ApplyOutcome::Changed(Vec::new()));
                let complete = state(net).await;
                for lasting in [false, true] {
                    for index in 0.. {
                        host.change(from).await.unwrap();
                        assert!(host.unfinished.is_none());
                        host.net.faults.set(move |number, _| {
                            (number == index || lasting && number > index).then_some(EIO)
                        });
                        host.change(to).await.unwrap();
                        let place = format!("operation {index}, lasting {lasting}, {to:?}");
                        assert!(!leaks(&ways(net).await), "{place}: {:?}", ways(net).await);
                        if !to.allow_lan && !lasting {
                            assert_ne!(way(net, "192.168.1.1").await, "eth0", "{place}");
                        }
                        // The network changes while the kernel still refuses.
                        host.look().await;
                        assert!(!leaks(&ways(net).await), "{place}, again: {:?}", ways(net).await);
                        let operations = host.net.faults.clear();
                        host.look().await;
                        assert!(host.unfinished.is_none(), "{place}: {:?}", host.unfinished);
                        let policy = |state: (Vec<RuleInUse>, Vec<Route>)| {
                            let (rules, mut routes) = state;
                            routes.retain(|route| route.table.is_some_and(|t| t > 255));
                            (rules.len(), routes)
                        };
                        assert_eq!(policy(state(net).await), policy(complete.clone()), "{place}");
                        // The plan's own routes in the main table are added once.
                        host.apply(from).await.unwrap();
                        steps += 1;
                        if index >= operations {
                            break;
                        }
                    }
                }
            }
        }
        assert!(steps > 100, "{steps}");
        host.close().await;
        remove(net, device).await;
        assert_eq!(state(net).await, before);
    });
}

#[test]
fn a_refused_change_of_the_network_is_told_logged_and_repeated() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        add_native(net).await;
        let (mut host, device) = host(true).await;
        host.apply(&kill_switch()).await.unwrap();
        host.net.faults.set(|_, operation| match operation {
            Operation::AddRule(_) | Operation::AddRoute(_) => Some(EIO),
            _ => None,
        });
        host.look().await;
        assert_eq!(ways(net).await, ["tun0"; 6], "what is in force stays");
        assert!(host.capture().is_full());
        let HostEvent::Routing(Some(why)) = event(&mut host).await else { panic!("not told") };
        assert!(why.contains("Input/output error"), "{why}");
        let written = crate::host::unfinished();
        assert!(written.contains(&why), "doctor reads it: {written:?}");
        host.net.faults.clear();
        // The change is tried again after a pause.
        while event(&mut host).await != HostEvent::Routing(None) {}
        assert_eq!(crate::host::unfinished(), Vec::<String>::new());
        host.close().await;
        remove(net, device).await;
        assert_eq!(ways(net).await, ["nowhere"; 6], "the kill switch holds");
        super::super::undo_log::release(net).await;
    });
}

#[test]
fn an_exempt_network_whose_route_stays_is_closed_or_said_and_tried_again_at_once() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        joins_a_lan(net).await;
        let before = state(net).await;
        let lan = "192.168.1.0/24".parse().unwrap();
        for closes in [true, false] {
            let (mut host, device) = host(true).await;
            host.apply(&with_lan()).await.unwrap();
            assert_eq!(way(net, "192.168.1.1").await, "eth0");
            host.net.faults.set(move |_, operation| match operation {
                Operation::DeleteRoute(route) if route.kind == RouteKind::Throw => Some(EIO),
                Operation::AddRoute(route) if route.to == lan && !closes => Some(EIO),
                _ => None,
            });
            host.change(&by_policy("def1")).await.unwrap();
            let way_then = if closes { "nowhere" } else { "eth0" };
            assert_eq!(way(net, "192.168.1.1").await, way_then);
            let pause = host.unfinished.as_ref().unwrap().retry - tokio::time::Instant::now();
            assert!(pause <= Duration::from_millis(250), "{pause:?}");
            assert!(matches!(event(&mut host).await, HostEvent::Routing(Some(_))));
            // The network becomes exempt again, and finally is not.
            host.change(&with_lan()).await.unwrap();
            assert_eq!(way(net, "192.168.1.1").await, "eth0");
            host.change(&by_policy("def1")).await.unwrap();
            host.net.faults.clear();
            while event(&mut host).await != HostEvent::Routing(None) {}
            assert_eq!(way(net, "192.168.1.1").await, "tun0");
            host.close().await;
            remove(net, device).await;
            assert_eq!(state(net).await, before);
        }
    });
}

#[test]
fn a_kill_switch_without_an_undo_log_is_found_and_released_and_a_running_tunnel_is_left_alone() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        use super::super::{orphan_rules, undo_log};
        add_native(net).await;
        std::fs::write("/proc/sys/net/ipv4/conf/all/rp_filter", "2").unwrap();
        let before = state(net).await;
        for round in 0..20 {
            let (mut host, device) = host(true).await;
            host.apply(&kill_switch()).await.unwrap();
            assert_eq!(orphan_rules::rules(net).await, [], "{round}: it runs");
            host.close().await;
            remove(net, device).await;
            assert_eq!(orphan_rules::rules(net).await, [], "{round}: its undo log names it");
            let kept = undo_log::kill_switches_of_ended();
            assert_eq!(kept.len(), 1, "{round}");
            for (path, _) in kept {
                std::fs::remove_file(path).unwrap();
            }
            assert_eq!(orphan_rules::rules(net).await.len(), 2, "{round}: both families");
            assert_eq!(undo_log::release(net).await, Vec::<String>::new());
            // Another tunnel runs at the same time, with its own table and rules.
            let (mut running, device) = self::host(true).await;
            running.apply(&by_policy("def1 ipv6")).await.unwrap();
            assert!(orphan_rules::release(net).await.len() >= 8);
            assert_eq!(orphan_rules::rules(net).await, []);
            assert_eq!(ways(net).await, ["tun0"; 6]);
            running.close().await;
            remove(net, device).await;
            assert_eq!(state(net).await, before, "{round}");
        }
    });
}

#[test]
fn what_an_earlier_kill_switch_wrote_down_is_not_taken_from_the_next_tunnel() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        use super::super::undo_log;
        add_native(net).await;
        let before = state(net).await;
        let (mut host, device) = host(true).await;
        host.apply(&kill_switch()).await.unwrap();
        let kept: Vec<Route> = net.all_routes().await.unwrap();
        host.close().await;
        remove(net, device).await;
        // An administrator removes the rules and the table manually. The undo log still contains
        // them.
        for v6 in [false, true] {
            for rule in net.rules_of(v6).await.unwrap() {
                let rule = adit_linux::net::Rule {
                    v6,
                    preference: rule.preference,
                    from: None,
                    to: None,
                    not_mark: None,
                    udp_ports: None,
                    table: rule.table,
                };
                if (7000..8000).contains(&rule.preference) {
                    net.delete_rule(&rule).await.unwrap();
                }
            }
        }
        for route in kept.iter().filter(|route| route.table == Some(0xad17)) {
            // The route into the device has disappeared with the device.
            let _ = net.delete_route(route).await;
        }
        assert_eq!(state(net).await, before);
        assert_eq!(undo_log::kill_switches_of_ended().len(), 1);
        // The next tunnel gets the same numbers.
        let (mut next, device) = self::host(true).await;
        next.apply(&by_policy("def1 ipv6")).await.unwrap();
        assert_eq!(ways(net).await, ["tun0"; 6]);
        assert_eq!(undo_log::kill_switches_of_ended().len(), 0, "it took over");
        next.close().await;
        remove(net, device).await;
        assert_eq!(ways(net).await, ["nowhere"; 6], "the kill switch is still on");
        undo_log::release(net).await;
        assert_eq!(state(net).await, before);
    });
}

#[test]
fn pauses_between_attempts_grow_up_to_a_limit() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        let (mut host, device) = host(true).await;
        host.apply(&by_policy("def1")).await.unwrap();
        host.net
            .faults
            .set(|_, operation| matches!(operation, Operation::AddRule(_)).then_some(EIO));
        let mut pauses = Vec::new();
        for _ in 0..12 {
            let before = tokio::time::Instant::now();
            host.look().await;
            pauses.push(host.unfinished.as_ref().unwrap().retry - before);
        }
        assert!(pauses[0] >= Duration::from_millis(250), "{pauses:?}");
        assert!(pauses[3] >= Duration::from_secs(2), "{pauses:?}");
        assert!(pauses[8..].iter().all(|pause| *pause >= Duration::from_secs(30)), "{pauses:?}");
        assert!(pauses[11] < Duration::from_secs(60), "{pauses:?}");
        host.net.faults.clear();
        host.close().await;
        remove(net, device).await;
    });
}

#[test]
fn a_first_change_that_is_refused_leaves_nothing_behind() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        add_native(net).await;
        let before = state(net).await;
        for index in 0.. {
            let (mut host, device) = host(true).await;
            let plan = HostPlan { kill_switch: true, ..by_policy("def1 ipv6") };
            // If the kernel keeps refusing, the kill switch does not fall back to routes.
            let mut refused = false;
            host.net.faults.set(move |number, operation| {
                let change = !matches!(
                    operation,
                    Operation::List | Operation::DeleteRule(_) | Operation::DeleteRoute(_)
                );
                refused |= number >= index;
                (refused && change).then_some(EIO)
            });
            let applied = host.apply(&plan).await;
            let operations = host.net.faults.clear();
            if applied.is_ok() || index > operations {
                assert!(index > 5, "{index}");
                host.undo_log.keep(false);
                host.close().await;
                remove(net, device).await;
                break;
            }
            host.close().await;
            remove(net, device).await;
            super::super::undo_log::release(net).await;
            assert_eq!(state(net).await, before, "operation {index}");
        }
    });
}

fn without_rules(host: &Host, of_ipv6_alone: bool) {
    host.net.faults.set(move |_, operation| match operation {
        Operation::AddRule(rule) if rule.v6 || !of_ipv6_alone => Some(EOPNOTSUPP),
        _ => None,
    });
}

#[test]
fn ipv6_is_kept_in_without_rules_for_the_tunnels_life() {
    for of_ipv6_alone in [false, true] {
        let Some((ns, _other)) = world() else { return };
        inside(&ns, async |net| {
            add_native(net).await;
            let before = state(net).await;
            let (mut host, device) = host(true).await;
            without_rules(&host, of_ipv6_alone);
            // IPv6 carries the tunnel.
            let plan = HostPlan {
                remote: Some("[2001:db8:a::7]:1194".parse().unwrap()),
                ..by_policy("def1")
            };
            host.keep_reachable("2001:db8:a::7".parse().unwrap()).await;
            let ApplyOutcome::Changed(notes) = host.apply(&plan).await.unwrap() else { panic!() };
            assert!(notes.iter().any(|n| n.contains("policy routing is not available")));
            assert!(!notes.iter().any(|n| n.contains("IPv6 is not blocked")), "{notes:?}");
            assert_eq!(host.capture().ipv6, CaptureMode::Blocked);
            assert!(!host.capture().is_full(), "more specific IPv4 routes lead around it");
            let outside =
                ["2001:db8:9::9", "2001:db8:a::1", "2001:db8::77", "2620:fe::fe", "fc00::1"];
            let all = async || {
                let mut all = Vec::new();
                for to in outside {
                    all.push(way(net, to).await);
                }
                all
            };
            assert_eq!(all().await, ["nowhere"; 5]);
            assert_eq!(way(net, "2001:db8:a::7").await, "eth0", "the transport");
            // A router advertises another route.
            let gateway = "fe80::99".parse().unwrap();
            let eth0 = net.link("eth0").await.unwrap().index;
            let late =
                Route { link: Some(eth0), ..Route::via("2620:fe::/48".parse().unwrap(), gateway) };
            net.add_route(&late).await.unwrap();
            while way(net, "2620:fe::fe").await != "nowhere" {
                // There is no event for the client, but the wait lets the host process the change.
                let _ = timeout(Duration::from_millis(100), host.event()).await;
            }
            // IPv6 stays blocked while the tunnel reconnects, to another server too.
            host.undo().await;
            assert_eq!(all().await, ["nowhere"; 5]);
            host.keep_reachable("2001:db8:b::7".parse().unwrap()).await;
            assert_eq!(way(net, "2001:db8:a::7").await, "eth0");
            assert_eq!(way(net, "2001:db8:b::7").await, "eth0");
            // In another network, only the transport has a route.
            net.delete_route(&Route {
                link: Some(eth0),
                ..Route::via("::/0".parse().unwrap(), "2001:db8::1".parse().unwrap())
            })
            .await
            .unwrap();
            let other = Route { link: Some(eth0), ..Route::via("::/0".parse().unwrap(), gateway) };
            net.add_route(&other).await.unwrap();
            host.look().await;
            assert_eq!(way(net, "2001:db8:b::7").await, "eth0");
            let path = net.route_to("2001:db8:b::7".parse().unwrap()).await.unwrap();
            assert_eq!(path.gateway, Some(gateway));
            assert_eq!(all().await, ["nowhere"; 5]);
            for route in [other, late] {
                net.delete_route(&route).await.unwrap();
            }
            host.close().await;
            remove(net, device).await;
            let native = Route::via("::/0".parse().unwrap(), "2001:db8::1".parse().unwrap());
            net.add_route(&native).await.unwrap();
            assert_eq!(state(net).await, before);
        });
    }
}

#[test]
fn block_ipv6_without_rules_keeps_ipv6_in_and_leaves_ipv4_alone() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        add_native(net).await;
        let before = state(net).await;
        let (mut host, device) = host(true).await;
        without_rules(&host, false);
        let blocking = HostPlan { redirect: None, block_ipv6: true, routes: Vec::new(), ..plan() };
        let ApplyOutcome::Changed(notes) = host.apply(&blocking).await.unwrap() else { panic!() };
        assert_eq!(notes, Vec::<String>::new());
        assert_eq!(ways(net).await[..4], ["eth0"; 4]);
        assert_eq!(ways(net).await[4..], ["nowhere", "nowhere"]);
        host.change(&HostPlan { block_ipv6: false, ..blocking }).await.unwrap();
        assert_eq!(ways(net).await[4..], ["eth0", "eth0"]);
        host.close().await;
        remove(net, device).await;
        assert_eq!(state(net).await, before);
    });
}

#[test]
fn without_rules_a_refused_route_is_said_and_repeated() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        add_native(net).await;
        let (mut host, device) = host(true).await;
        host.net.faults.set(|_, operation| match operation {
            Operation::AddRule(_) => Some(EOPNOTSUPP),
            Operation::AddRoute(route) if route.kind == RouteKind::Unreachable => {
                (route.table.is_none() && route.to.to_string() == "8000::/1").then_some(EIO)
            }
            _ => None,
        });
        let ApplyOutcome::Changed(notes) = host.apply(&by_policy("def1")).await.unwrap() else {
            panic!()
        };
        assert!(notes.iter().any(|note| note.contains("IPv6 is not blocked")), "{notes:?}");
        assert_eq!(host.capture().ipv6, CaptureMode::No);
        assert!(matches!(event(&mut host).await, HostEvent::Routing(Some(_))));
        without_rules(&host, false);
        // Events about the path to the server may precede it.
        while event(&mut host).await != HostEvent::Routing(None) {}
        assert_eq!(host.capture().ipv6, CaptureMode::Blocked);
        assert_eq!(ways(net).await[4..], ["nowhere", "nowhere"]);
        host.close().await;
        remove(net, device).await;
    });
}

#[test]
fn strict_filters_are_restored_when_the_last_of_two_tunnels_ends() {
    let Some((ns, _other)) = world() else { return };
    ns.set_sysctl("net.ipv4.conf.all.rp_filter", "1").unwrap();
    inside(&ns, async |_net| {
        let heed = || {
            let path = "/proc/sys/net/ipv4/conf/all/src_valid_mark";
            std::fs::read_to_string(path).unwrap().trim().to_owned()
        };
        for first_ends_first in [true, false] {
            assert_eq!(heed(), "0");
            let (mut one, device1) = host(true).await;
            let (mut two, device2) = host(true).await;
            one.apply(&by_policy("def1")).await.unwrap();
            let addresses = vec!["10.78.0.2/24".parse().unwrap()];
            let second = HostPlan { addresses, routes: Vec::new(), ..by_policy("def1") };
            two.apply(&second).await.unwrap();
            assert_eq!(heed(), "1");
            let (former, latter) = if first_ends_first { (one, two) } else { (two, one) };
            former.close().await;
            assert_eq!(heed(), "1", "the other tunnel needs it");
            latter.close().await;
            assert_eq!(heed(), "0");
            drop((device1, device2));
        }
    });
}

#[test]
fn the_metric_of_a_route_reaches_the_kernel() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        let (mut host, device) = host(true).await;
        let via = Via::Tunnel(Some("10.77.0.1".parse().unwrap()));
        let route = |net: &str, metric| PlannedRoute { net: net.parse().unwrap(), via, metric };
        let routes = vec![route("10.98.0.0/16", Some(70)), route("10.99.0.0/16", None)];
        host.apply(&HostPlan { routes, ..plan() }).await.unwrap();
        let listed = net.routes().await.unwrap();
        let metric = |to: &str| {
            let to = to.parse().unwrap();
            listed.iter().find(|route| route.to == to).map(|route| route.metric)
        };
        assert_eq!(metric("10.98.0.0/16"), Some(Some(70)));
        assert!(matches!(metric("10.99.0.0/16"), Some(None | Some(0))));
        host.close().await;
        remove(net, device).await;
    });
}
