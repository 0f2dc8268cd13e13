mod address_change;
mod faults;

use adit_linux::netns::NetNs;

use std::net::{IpAddr, UdpSocket};
use std::time::{Duration, Instant};

use adit_linux::net::{Address, MAIN_TABLE, Net, Route, RouteKind, RuleInUse};
use adit_linux::tun::{TunDevice, TunOffloads};
use ipnet::IpNet;
use nix::mount::MsFlags;
use nix::sched::CloneFlags;
use tokio::time::timeout;

use super::apply::{ApplyOutcome, Host};
use super::plan::{Device, Forward, HostPlan, PlannedRoute, Redirect, Via};
use super::policy_routing::{CaptureMode, is_ours};
use super::watch::HostEvent;

/// Creates a namespace with a default route, and the namespace behind it. Returns `None` without privileges.
fn world() -> Option<(NetNs, NetNs)> {
    let ns = NetNs::new("adit-host").ok()?;
    let other = NetNs::new("adit-host").ok()?;
    ns.connect("eth0", &other, "eth0").ok()?;
    ns.configure(async |net| {
        let link = net.link("eth0").await.unwrap().index;
        let address = "192.0.2.2/24".parse().unwrap();
        net.add_address(&Address::new(link, address)).await.unwrap();
        net.set_up(link).await.unwrap();
        let gateway = "192.0.2.1".parse().unwrap();
        net.add_route(&Route::via("0.0.0.0/0".parse().unwrap(), gateway)).await.unwrap();
    })
    .ok()?;
    Some((ns, other))
}

fn plan() -> HostPlan {
    let mut redirect = Redirect::parse(["def1"]).unwrap();
    redirect.gateway4 = Some("10.77.0.1".parse().unwrap());
    HostPlan {
        mtu: 1400,
        addresses: vec!["10.77.0.2/24".parse().unwrap(), "fd77::2/64".parse().unwrap()],
        routes: vec![
            PlannedRoute {
                net: "10.99.0.0/16".parse().unwrap(),
                via: Via::Tunnel(Some("10.77.0.1".parse().unwrap())),
                metric: Some(50),
            },
            PlannedRoute {
                net: "203.0.113.0/24".parse().unwrap(),
                via: Via::Outside,
                metric: None,
            },
        ],
        redirect: Some(redirect),
        remote: Some("198.51.100.7:1194".parse().unwrap()),
        ..HostPlan::default()
    }
}

#[test]
fn a_plan_is_applied_and_undone_to_the_last_route() {
    let Some((ns, _other)) = world() else { return };
    let listing = ns.run(|| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
        runtime.unwrap().block_on(async {
            let net = Net::open().unwrap();
            let all = async |net: &Net| {
                let mut routes = net.routes().await.unwrap();
                // Leave out the kernel's own routes and those of the loopback interface.
                routes.retain(|route| route.table == Some(MAIN_TABLE));
                routes.retain(|route| !route.to.to_string().starts_with("fe80"));
                routes.iter().map(|route| route.to.to_string()).collect::<Vec<_>>()
            };
            let before = all(&net).await;
            let opened = Host::open(&Device::Tun(None), TunOffloads::NONE, 1);
            let (mut host, device) = opened.unwrap();
            assert_eq!(host.device(), Some("tun0"));
            let notes = host.apply(&plan()).await.unwrap();
            assert_eq!(notes, ApplyOutcome::Changed(Vec::new()));
            assert_eq!(host.apply(&plan()).await.unwrap(), ApplyOutcome::Same);
            let during = all(&net).await;
            let mtu = net.link("tun0").await.unwrap().mtu;
            host.keep_reachable("198.51.100.99".parse().unwrap()).await;
            let detour = all(&net).await.contains(&"198.51.100.99/32".to_owned());
            assert!(detour, "another server must be reachable outside the tunnel");
            host.undo().await;
            let undone = all(&net).await;
            host.apply(&plan()).await.unwrap();
            host.close().await;
            remove(&net, device.unwrap()).await;
            let closed = all(&net).await;
            (before, during, undone, closed, mtu)
        })
    });
    let (before, mut during, undone, closed, mtu) = listing.unwrap();
    assert_eq!(mtu, 1400);
    during.retain(|net| !before.contains(net));
    during.sort();
    assert_eq!(
        during,
        [
            "0.0.0.0/1",
            "10.77.0.0/24",
            "10.99.0.0/16",
            "128.0.0.0/1",
            "198.51.100.7/32",
            "203.0.113.0/24",
            "fd77::/64",
        ]
    );
    assert_eq!(undone, before);
    assert_eq!(closed, before);
}

fn inside<T: Send>(ns: &NetNs, work: impl AsyncFnOnce(&Net) -> T + Send) -> T {
    ns.configure(work).unwrap()
}

async fn host(mark: bool) -> (Host, TunDevice) {
    let (mut host, device) = Host::open(&Device::Tun(None), TunOffloads::NONE, 1).unwrap();
    assert_eq!(host.prepare(None, mark).await.is_some(), mark);
    (host, device.unwrap())
}

/// Closes the device and waits until the kernel has removed it. A program that another test starts at the same time has
/// a copy of the descriptor until it calls `exec`. The device with its routes exists as long as any copy.
async fn remove(net: &Net, device: TunDevice) {
    let (name, index) = (device.name.clone(), device.ifindex);
    drop(device);
    let deadline = Instant::now() + Duration::from_secs(30);
    while net.link_by_index(index).await.is_ok() {
        assert!(Instant::now() < deadline, "{name} still exists");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn by_policy(flags: &str) -> HostPlan {
    let mut redirect = Redirect::parse(flags.split(' ')).unwrap();
    redirect.gateway4 = Some("10.77.0.1".parse().unwrap());
    HostPlan { redirect: Some(redirect), policy: true, ..plan() }
}

/// Adds native IPv6, with a route that DHCP or a router could use to bypass a tunnel.
async fn add_native(net: &Net) {
    let link = net.link("eth0").await.unwrap().index;
    let address = "2001:db8::2/64".parse().unwrap();
    net.add_address(&Address::new(link, address)).await.unwrap();
    let routes = [
        ("::/0", "2001:db8::1"),
        ("2001:db8:9::/48", "2001:db8::1"),
        ("203.0.112.0/24", "192.0.2.1"),
        ("0.0.0.0/1", "192.0.2.1"),
        ("8.8.8.8/32", "192.0.2.1"),
    ];
    for (to, via) in routes {
        net.add_route(&Route::via(to.parse().unwrap(), via.parse().unwrap())).await.unwrap();
    }
}

/// Returns the interface that unmarked packets to an address take, or `nowhere`.
async fn way(net: &Net, to: &str) -> String {
    match net.route_to(to.parse().unwrap()).await {
        Ok(path) => net.link_by_index(path.link).await.unwrap().name,
        Err(_) => "nowhere".into(),
    }
}

async fn ways(net: &Net) -> Vec<String> {
    let mut ways = Vec::new();
    for to in ["8.8.8.8", "1.1.1.1", "203.0.112.9", "192.0.2.1", "2001:db8:9::9", "2001:db8:a::1"] {
        ways.push(way(net, to).await);
    }
    ways
}

/// Returns the rules and routes, which are everything that a tunnel could leave behind.
async fn state(net: &Net) -> (Vec<RuleInUse>, Vec<Route>) {
    let mut routes = net.all_routes().await.unwrap();
    routes.retain(|route| !route.to.to_string().starts_with("fe80"));
    routes.sort_by_key(|route| (route.table, route.to, route.metric, route.link));
    (net.rules().await.unwrap(), routes)
}

#[test]
fn no_specific_route_leads_around_a_full_tunnel() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        add_native(net).await;
        let before = state(net).await;
        let (mut host, device) = host(true).await;
        assert_eq!(ways(net).await, ["eth0"; 6]);
        let mut plan = by_policy("def1");
        let (net6, via) = ("fd99::/48".parse().unwrap(), Via::Tunnel(None));
        plan.routes.push(PlannedRoute { net: net6, via, metric: None });
        assert_eq!(
            host.apply(&plan).await.unwrap(),
            ApplyOutcome::Changed(Vec::new()),
            "without notes"
        );
        let capture = host.capture();
        assert_eq!((capture.ipv4, capture.ipv6), (CaptureMode::Tunnel, CaptureMode::Blocked));
        let tunnel4 = ["tun0", "tun0", "tun0", "tun0", "nowhere", "nowhere"];
        assert_eq!(ways(net).await, tunnel4);
        // The tunnel's own IPv6 networks stay in it.
        for to in ["fd77::1", "fd99::1"] {
            assert_eq!(way(net, to).await, "tun0", "{to}");
        }
        // A route that is added later cannot bypass the tunnel either.
        let late = Route::via("1.1.1.1/32".parse().unwrap(), "192.0.2.1".parse().unwrap());
        net.add_route(&late).await.unwrap();
        assert_eq!(way(net, "1.1.1.1").await, "tun0");
        // Routes of another network can be added, and their traffic does not use the tunnel.
        let eth0 = net.link("eth0").await.unwrap().index;
        for (to, via) in [("0.0.0.0/0", "192.0.2.1"), ("::/0", "2001:db8::1")] {
            let gateway = Route::via(to.parse().unwrap(), via.parse().unwrap());
            for link in [None, Some(eth0)] {
                let route = Route { link, metric: Some(77), ..gateway };
                net.add_route(&route).await.unwrap();
                let listed = net.routes().await.unwrap();
                let added = |r: &&Route| r.metric == Some(77) && r.to == route.to;
                assert_eq!(listed.iter().find(added).unwrap().link, Some(eth0));
                net.delete_route(&route).await.unwrap();
            }
        }
        // The server needs no host route, because its packets are marked.
        let routes = net.routes().await.unwrap();
        assert!(routes.iter().all(|route| route.to != "198.51.100.7/32".parse().unwrap()));
        // The configuration has this route through `net_gateway`.
        assert_eq!(way(net, "203.0.113.5").await, "eth0");
        host.undo().await;
        assert_eq!(ways(net).await, ["nowhere"; 6], "no leak while it reconnects");
        assert!(matches!(
            host.apply(&by_policy("def1 ipv6")).await.unwrap(),
            ApplyOutcome::Changed(notes) if notes.is_empty()
        ));
        assert_eq!(ways(net).await, ["tun0"; 6]);
        assert!(host.capture().is_full());
        host.close().await;
        remove(net, device).await;
        net.delete_route(&late).await.unwrap();
        assert_eq!(state(net).await, before);
    });
}

#[test]
fn link_local_dhcp_and_marked_packets_stay_outside() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        add_native(net).await;
        let (mut host, device) = host(true).await;
        host.apply(&by_policy("def1 ipv6")).await.unwrap();
        let rules = net.rules().await.unwrap();
        let main = |v6: bool| {
            let ours = rules.iter().filter(|rule| rule.v6 == v6 && rule.preference < 32_766);
            ours.filter(|rule| rule.table == MAIN_TABLE).count()
        };
        assert_eq!((main(false), main(true)), (1, 2), "DHCP; DHCPv6 and fe80::/10");
        let connects = |mark: Option<u32>, from: &str, to: &str| {
            let socket = UdpSocket::bind(from).unwrap();
            if let Some(mark) = mark {
                socket2::SockRef::from(&socket).set_mark(mark).unwrap();
            }
            socket.connect(to).map(|()| socket.local_addr().unwrap().ip())
        };
        let ip = |text: &str| text.parse::<IpAddr>().unwrap();
        let mark = host.mark;
        assert_eq!(connects(mark, "0.0.0.0:0", "198.51.100.7:9").unwrap(), ip("192.0.2.2"));
        assert_eq!(connects(mark, "[::]:0", "[2001:db8:a::1]:9").unwrap(), ip("2001:db8::2"));
        assert_eq!(connects(None, "0.0.0.0:0", "198.51.100.7:9").unwrap(), ip("10.77.0.2"));
        assert_eq!(connects(None, "0.0.0.0:68", "192.0.2.1:67").unwrap(), ip("192.0.2.2"));
        assert_eq!(connects(None, "[::]:546", "[2001:db8::1]:547").unwrap(), ip("2001:db8::2"));
        assert_eq!(connects(None, "0.0.0.0:0", "192.0.2.1:67").unwrap(), ip("10.77.0.2"));
        host.close().await;
        remove(net, device).await;
    });
}

#[test]
fn private_networks_stay_outside_only_when_asked_for() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        let link = net.link("eth0").await.unwrap().index;
        let lan = Address::new(link, "192.168.1.7/24".parse().unwrap());
        net.add_address(&lan).await.unwrap();
        let (mut host, device) = host(true).await;
        host.apply(&by_policy("def1")).await.unwrap();
        assert_eq!(way(net, "192.168.1.1").await, "tun0");
        let exempt = HostPlan { allow_lan: true, ..by_policy("def1") };
        host.change(&exempt).await.unwrap();
        assert_eq!(way(net, "192.168.1.1").await, "eth0");
        assert_eq!(way(net, "192.0.2.9").await, "tun0", "public: a DHCP server could name any");
        host.change(&by_policy("def1")).await.unwrap();
        assert_eq!(way(net, "192.168.1.1").await, "tun0");
        host.close().await;
        remove(net, device).await;
    });
}

#[test]
fn a_tunnel_without_ipv6_that_blocks_it_leaves_ipv4_alone() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        add_native(net).await;
        let (mut host, device) = host(true).await;
        let blocking = HostPlan {
            redirect: None,
            block_ipv6: true,
            addresses: vec!["10.77.0.2/24".parse().unwrap()],
            ..plan()
        };
        host.apply(&blocking).await.unwrap();
        assert_eq!(ways(net).await[..4], ["eth0"; 4]);
        assert_eq!(ways(net).await[4..], ["nowhere", "nowhere"]);
        // If the tunnel carries IPv6, IPv6 continues to work.
        let socket = UdpSocket::bind("[::]:0").unwrap();
        assert!(socket.connect("[2001:db8:9::9]:9").is_err(), "an error at once");
        socket2::SockRef::from(&socket).set_mark(host.mark.unwrap()).unwrap();
        socket.connect("[2001:db8:9::9]:9").unwrap();
        host.close().await;
        remove(net, device).await;
        assert_eq!(ways(net).await[4..], ["eth0", "eth0"]);
    });
}

#[test]
fn a_kill_switch_outlives_its_client_and_is_taken_over_and_released() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        add_native(net).await;
        let before = state(net).await;
        let (mut host, device) = host(true).await;
        let kept = HostPlan { kill_switch: true, ..by_policy("def1") };
        host.apply(&kept).await.unwrap();
        let mark = host.mark;
        host.close().await;
        remove(net, device).await;
        assert_eq!(ways(net).await, ["nowhere"; 6]);
        let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
        assert!(socket.connect("8.8.8.8:53").is_err(), "an error at once");
        socket2::SockRef::from(&socket).set_mark(mark.unwrap()).unwrap();
        socket.connect("198.51.100.7:1194").unwrap();
        // The same process may connect again, as it does after SIGHUP.
        let (mut again, device) = self::host(true).await;
        again.apply(&by_policy("def1")).await.unwrap();
        assert_eq!(again.mark, mark);
        assert_eq!(way(net, "8.8.8.8").await, "tun0");
        again.close().await;
        remove(net, device).await;
        assert_eq!(ways(net).await, ["nowhere"; 6], "it stays on until it is released");
        super::undo_log::release(net).await;
        assert_eq!(state(net).await, before);
    });
}

#[test]
fn several_tunnels_have_tables_of_their_own_and_one_mark() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        let before = state(net).await;
        let (mut one, device1) = host(true).await;
        let (mut two, device2) = host(true).await;
        one.apply(&by_policy("def1")).await.unwrap();
        let second =
            HostPlan { addresses: vec!["10.78.0.2/24".parse().unwrap()], ..by_policy("def1") };
        two.apply(&HostPlan { routes: Vec::new(), ..second }).await.unwrap();
        assert_eq!(one.mark, two.mark);
        let rules = net.rules().await.unwrap();
        let mut tables: Vec<u32> = rules.iter().filter(|r| is_ours(r)).map(|r| r.table).collect();
        tables.sort_unstable();
        tables.dedup();
        assert_eq!(tables.len(), 2);
        assert_eq!(way(net, "8.8.8.8").await, "tun0");
        one.close().await;
        remove(net, device1).await;
        assert_eq!(way(net, "8.8.8.8").await, "tun1");
        two.close().await;
        remove(net, device2).await;
        assert_eq!(state(net).await, before);
    });
}

#[test]
fn a_mark_and_a_table_of_others_are_left_alone() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        let foreign = adit_linux::net::Rule {
            v6: false,
            preference: 7003,
            from: None,
            to: None,
            not_mark: Some(0xad17),
            udp_ports: None,
            table: 51_820,
        };
        net.add_rule(&foreign).await.unwrap();
        let theirs = Route {
            table: Some(0xad18),
            ..Route::without_hop("0.0.0.0/0".parse().unwrap(), RouteKind::Throw)
        };
        net.add_route(&theirs).await.unwrap();
        let before = state(net).await;
        let (mut host, device) = host(true).await;
        assert_eq!(host.mark, Some(0xad18));
        host.apply(&by_policy("def1")).await.unwrap();
        let rules = net.rules().await.unwrap();
        let ours: Vec<_> = rules.iter().filter(|rule| is_ours(rule)).collect();
        assert!(ours.iter().all(|rule| rule.table == 0xad19), "{ours:?}");
        host.close().await;
        remove(net, device).await;
        assert_eq!(state(net).await, before);
    });
}

#[test]
fn without_marks_routes_do_and_a_kill_switch_refuses() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        let (mut host, device) = host(false).await;
        let applied = host.apply(&by_policy("def1")).await.unwrap();
        let ApplyOutcome::Changed(notes) = applied else { panic!("{applied:?}") };
        assert!(notes.iter().any(|note| note.contains("policy routing is not available")));
        assert!(!notes.iter().any(|note| note.contains("IPv6 is not blocked")), "{notes:?}");
        let capture = host.capture();
        assert_eq!((capture.ipv4, capture.ipv6), (CaptureMode::ByRoutes, CaptureMode::Blocked));
        assert!(!capture.is_full());
        assert_eq!(way(net, "198.51.100.7").await, "eth0");
        assert_eq!(way(net, "8.8.8.8").await, "tun0");
        host.undo().await;
        let refused = HostPlan { kill_switch: true, ..by_policy("def1") };
        assert!(host.apply(&refused).await.is_err());
        host.close().await;
        remove(net, device).await;
    });
}

/// Waits for the host's next event, skipping the intermediate ones.
async fn event(host: &mut Host) -> HostEvent {
    timeout(Duration::from_secs(20), host.event()).await.expect("nothing was noticed")
}

#[test]
fn a_link_flap_puts_the_servers_route_back() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        let (mut host, device) = host(true).await;
        host.keep_reachable("198.51.100.7".parse().unwrap()).await;
        host.apply(&plan()).await.unwrap();
        host.keep_reachable("198.51.100.99".parse().unwrap()).await;
        let link = net.link("eth0").await.unwrap().index;
        let default = Route::via("0.0.0.0/0".parse().unwrap(), "192.0.2.1".parse().unwrap());
        assert_eq!(way(net, "198.51.100.7").await, "eth0");
        net.set_down(link).await.unwrap();
        assert!(matches!(event(&mut host).await, HostEvent::PathLost { .. }));
        assert_eq!(way(net, "198.51.100.7").await, "tun0", "as the kernel leaves it");
        net.set_up(link).await.unwrap();
        net.add_route(&default).await.unwrap();
        let back = event(&mut host).await;
        assert_eq!(back, HostEvent::PathChanged { sources: vec!["192.0.2.2".parse().unwrap()] });
        assert_eq!(way(net, "198.51.100.7").await, "eth0");
        assert_eq!(way(net, "198.51.100.99").await, "eth0");
        assert_eq!(way(net, "203.0.113.5").await, "eth0", "net_gateway");
        // There is another interface with another router, and a new address.
        let far = NetNs::unnamed().unwrap();
        ns.connect("eth1", &far, "eth1").unwrap();
        let other = net.link("eth1").await.unwrap().index;
        let address = "192.0.3.2/24".parse().unwrap();
        net.add_address(&Address::new(other, address)).await.unwrap();
        net.delete_route(&default).await.unwrap();
        let moved = Route::via("0.0.0.0/0".parse().unwrap(), "192.0.3.1".parse().unwrap());
        net.add_route(&moved).await.unwrap();
        let mut last = event(&mut host).await;
        let wanted = HostEvent::PathChanged { sources: vec!["192.0.3.2".parse().unwrap()] };
        while last != wanted {
            last = event(&mut host).await;
        }
        for server in ["198.51.100.7", "198.51.100.99", "203.0.113.5"] {
            assert_eq!(way(net, server).await, "eth1", "{server}");
        }
        host.close().await;
        remove(net, device).await;
        let main = net.routes().await.unwrap();
        let hosts = main.iter().filter(|route| route.to.to_string().starts_with("198.51.100"));
        assert_eq!(hosts.count(), 0);
    });
}

#[test]
fn filters_let_the_transports_replies_in_and_are_restored() {
    for filter in ["1", "2"] {
        let Some((ns, other)) = world() else { return };
        inside(&other, async |net| {
            let link = net.link("eth0").await.unwrap().index;
            for address in ["192.0.2.1/24", "198.51.100.7/32"] {
                net.add_address(&Address::new(link, address.parse().unwrap())).await.unwrap();
            }
        });
        // The router sends ARP requests with its own address.
        other.set_sysctl("net.ipv4.conf.all.arp_announce", "2").unwrap();
        ns.set_sysctl("net.ipv4.conf.all.rp_filter", filter).unwrap();
        let echo = other.run(|| UdpSocket::bind("198.51.100.7:1194").unwrap()).unwrap();
        echo.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let answered = |socket: &UdpSocket| {
            socket.send_to(b"there", "198.51.100.7:1194").unwrap();
            let mut buffer = [0; 9];
            let (_, from) = echo.recv_from(&mut buffer).unwrap();
            // The router has lost our entry, and sends another request.
            let mut flush = other.command("ip").unwrap();
            assert!(flush.args(["neigh", "flush", "all"]).status().unwrap().success());
            echo.send_to(b"back", from).unwrap();
            assert_eq!(socket.recv(&mut buffer).unwrap(), 4, "rp_filter {filter}");
        };
        inside(&ns, async |net| {
            let heed = || std::fs::read_to_string("/proc/sys/net/ipv4/conf/all/src_valid_mark");
            assert_eq!(heed().unwrap().trim(), "0");
            let (mut host, device) = host(true).await;
            assert_eq!(
                host.apply(&by_policy("def1")).await.unwrap(),
                ApplyOutcome::Changed(Vec::new())
            );
            let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
            socket2::SockRef::from(&socket).set_mark(host.mark.unwrap()).unwrap();
            socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            answered(&socket);
            // While the tunnel reconnects, its table leads nowhere.
            host.undo().await;
            answered(&socket);
            host.close().await;
            remove(net, device).await;
            assert_eq!(heed().unwrap().trim(), "0");
        });
    }
}

#[test]
fn a_kernel_setting_that_was_refused_is_tried_again_with_the_same_plan() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        let key = std::path::Path::new("/proc/sys/net/ipv4/ip_forward");
        let value = || std::fs::read_to_string(key).unwrap().trim().to_owned();
        let mount = |from, to: &std::path::Path, flags| {
            nix::mount::mount(from, to, None::<&str>, flags, None::<&str>).unwrap();
        };
        // Another mount namespace, in which the setting is read-only.
        nix::sched::unshare(CloneFlags::CLONE_NEWNS).unwrap();
        mount(None, std::path::Path::new("/"), MsFlags::MS_REC | MsFlags::MS_PRIVATE);
        mount(Some(key), key, MsFlags::MS_BIND);
        mount(None, key, MsFlags::MS_BIND | MsFlags::MS_REMOUNT | MsFlags::MS_RDONLY);
        let (mut host, device) = host(false).await;
        let forwards =
            HostPlan { forward: Some(Forward { internet: true, ..Forward::default() }), ..plan() };
        for attempt in 0..2 {
            let applied = match attempt {
                0 => host.apply(&forwards).await.unwrap(),
                _ => host.change(&forwards).await.unwrap(),
            };
            let ApplyOutcome::Changed(notes) = applied else { panic!("{applied:?}") };
            assert!(notes.iter().any(|note| note.contains("ip_forward")), "{notes:?}");
            assert_eq!(value(), "0");
        }
        nix::mount::umount(key).unwrap();
        assert_eq!(host.change(&forwards).await.unwrap(), ApplyOutcome::Changed(Vec::new()));
        assert_eq!(value(), "1");
        assert_eq!(host.change(&forwards).await.unwrap(), ApplyOutcome::Same);
        host.close().await;
        remove(net, device).await;
        assert_eq!(value(), "0");
    });
}

#[test]
fn a_route_that_existed_is_tried_again_with_the_same_plan() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        let (mut host, device) = host(false).await;
        let to: IpNet = "10.77.0.0/16".parse().unwrap();
        let link = net.link("eth0").await.unwrap().index;
        let theirs = Route { link: Some(link), ..Route::via(to, "192.0.2.1".parse().unwrap()) };
        net.add_route(&theirs).await.unwrap();
        let route = PlannedRoute { net: to, via: Via::Tunnel(None), metric: None };
        let plan = HostPlan { routes: vec![route], ..plan() };
        for attempt in 0..2 {
            let applied = match attempt {
                0 => host.apply(&plan).await.unwrap(),
                _ => host.change(&plan).await.unwrap(),
            };
            let ApplyOutcome::Changed(notes) = applied else { panic!("{applied:?}") };
            assert!(notes.iter().any(|note| note.contains("exists already")), "{notes:?}");
        }
        net.delete_route(&theirs).await.unwrap();
        assert_eq!(host.change(&plan).await.unwrap(), ApplyOutcome::Changed(Vec::new()));
        assert_eq!(host.change(&plan).await.unwrap(), ApplyOutcome::Same);
        let own = host.device().unwrap().to_owned();
        let own = net.link(&own).await.unwrap().index;
        let routes = net.routes().await.unwrap();
        assert!(routes.iter().any(|route| route.to == to && route.link == Some(own)), "{routes:?}");
        host.close().await;
        remove(net, device).await;
    });
}

#[test]
fn forwarding_is_turned_on_and_off_with_the_plan_and_at_the_end() {
    let Some((ns, _other)) = world() else { return };
    inside(&ns, async |net| {
        let keys = ["ipv4/ip_forward", "ipv6/conf/all/forwarding", "ipv6/conf/eth0/accept_ra"];
        let read = || {
            keys.map(|key| std::fs::read_to_string(format!("/proc/sys/net/{key}")).unwrap())
                .map(|value| value.trim().to_owned())
        };
        let former = read();
        assert_eq!(former, ["0", "0", "1"]);
        let (mut host, device) = host(false).await;
        let forwards =
            HostPlan { forward: Some(Forward { internet: true, ..Forward::default() }), ..plan() };
        host.apply(&forwards).await.unwrap();
        assert_eq!(read(), ["1", "1", "2"]);
        host.change(&plan()).await.unwrap();
        assert_eq!(read(), former);
        host.change(&forwards).await.unwrap();
        assert_eq!(read(), ["1", "1", "2"]);
        host.close().await;
        remove(net, device).await;
        assert_eq!(read(), former);
    });
}
