//! Tests each check of a node's helper with a request in which everything else is allowed.

use std::fs;

use adit_runtime::helper::{DeviceRequest, Request, SocketRequest, WriteMode};
use adit_runtime::host::{Device, DnsPlan, Redirect, Transport};

use super::*;

fn apply(policy: &Policy, plan: HostPlan) -> Result<(), String> {
    policy.check(&Request::Apply(Box::new(plan)))
}

fn route(net: &str) -> PlannedRoute {
    PlannedRoute { net: net.parse().unwrap(), via: Via::Tunnel(None), metric: None }
}

fn dns() -> DnsPlan {
    DnsPlan {
        servers: vec!["10.9.0.1:53".parse().unwrap()],
        search: Vec::new(),
        domains: Vec::new(),
        dnssec: None,
        transport: Transport::Plain,
    }
}

fn wish(bind: &str) -> SocketRequest {
    SocketRequest {
        bind: bind.parse().unwrap(),
        bound: true,
        v6only: false,
        count: 1,
        mark: None,
        device: None,
        buffers: (Some(1 << 20), None),
        icmp_errors: true,
    }
}

/// Creates a node's files, and the duty of `adit postgres up` for them.
fn node() -> (tempfile::TempDir, NodeDuty) {
    let dir = tempfile::tempdir().unwrap();
    let paths = Paths::new(Some(dir.path()), "vpn").unwrap();
    paths.create().unwrap();
    let settings = "database = \"postgres://db.example/vpn?sslmode=verify-full&sslrootcert=/etc/ca.crt&\
        sslcert=/etc/node.crt&sslkey=/etc/node.key\"\nrole = \"r\"\nnode = 1\nname = \"n\"\n\
        addresses = [\"10.9.0.1/24\", \"fd09::1/64\"]\nsubnets = [\"192.168.7.0/24\"]\n\
        device = \"adit-vpn\"\npacket-size = 1400\n\
        durability = \"relaxed\"\n";
    fs::write(paths.settings_file(), settings).unwrap();
    let duty = NodeDuty {
        dir: Some(dir.path().to_owned()),
        name: "vpn".into(),
        device: None,
        packet_size: None,
        routes: true,
        metrics: None,
    };
    (dir, duty)
}

fn node_plan() -> HostPlan {
    HostPlan {
        device: Device::Tun(Some("adit-vpn".into())),
        mtu: 1400,
        addresses: vec!["10.9.0.1/24".parse().unwrap(), "fd09::1/64".parse().unwrap()],
        routes: vec![route("192.168.8.0/24"), route("2001:db8::/48"), route("10.10.0.7/32")],
        ..HostPlan::default()
    }
}

#[test]
fn a_nodes_plan_is_the_settings_one_with_routes_to_other_nodes() {
    let (_dir, duty) = node();
    let derive = |duty: &NodeDuty| duty.policy(&[], 1).unwrap();
    let policy = derive(&duty);
    apply(&policy, node_plan()).unwrap();
    apply(&policy, HostPlan { routes: Vec::new(), ..node_plan() }).unwrap();
    let changes: [fn(&mut HostPlan); 9] = [
        |plan| plan.device = Device::Tun(None),
        |plan| plan.mtu = 1500,
        |plan| plan.addresses.truncate(1),
        |plan| plan.addresses = vec!["10.9.0.2/24".parse().unwrap()],
        |plan| plan.redirect = Some(Redirect::parse(["def1"]).unwrap()),
        |plan| plan.kill_switch = true,
        |plan| plan.dns = Some(dns()),
        |plan| plan.routes[0].via = Via::Outside,
        |plan| plan.routes[0].metric = Some(1),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut plan = node_plan();
        change(&mut plan);
        assert!(apply(&policy, plan).unwrap_err().contains("plan: "), "{at}");
    }
    // This node's own networks, and networks that would take traffic from them.
    for net in ["192.168.7.0/24", "192.168.7.9/32", "192.168.0.0/16", "10.9.0.7/32", "0.0.0.0/0"] {
        let plan = HostPlan { routes: vec![route(net)], ..node_plan() };
        assert!(apply(&policy, plan).unwrap_err().contains(net), "{net}");
    }
    let bare = derive(&NodeDuty { routes: false, ..duty.clone() });
    assert!(apply(&bare, node_plan()).unwrap_err().contains("--no-routes"));
    apply(&bare, HostPlan { routes: Vec::new(), ..node_plan() }).unwrap();
    let other = derive(&NodeDuty { device: Some("tun9".into()), packet_size: Some(1300), ..duty });
    assert!(apply(&other, node_plan()).is_err());
    let device = Device::Tun(Some("tun9".into()));
    apply(&other, HostPlan { device, mtu: 1300, ..node_plan() }).unwrap();
}

#[test]
fn a_node_without_a_packet_size_of_its_own_may_follow_the_networks() {
    let (_dir, duty) = node();
    let paths = Paths::new(duty.dir.as_deref(), "vpn").unwrap();
    let settings = fs::read_to_string(paths.settings_file()).unwrap();
    fs::write(paths.settings_file(), settings.replace("packet-size = 1400\n", "")).unwrap();
    let policy = duty.policy(&[], 1).unwrap();
    for mtu in [7900, 1280, 1400] {
        apply(&policy, HostPlan { mtu, ..node_plan() }).unwrap();
    }
    for mtu in [0, 1279, 7901, 65_535] {
        let refused = apply(&policy, HostPlan { mtu, ..node_plan() }).unwrap_err();
        assert!(refused.contains("plan: "), "{mtu}: {refused}");
    }
}

#[test]
fn a_node_reads_certificates_and_replaces_its_pins_and_the_networks_keys_alone() {
    let (_dir, duty) = node();
    let policy = duty.policy(&[], 1).unwrap();
    let paths = Paths::new(duty.dir.as_deref(), "vpn").unwrap();
    for request in [
        Request::Read("/etc/ca.crt".into()),
        Request::Read("/etc/node.crt".into()),
        Request::Read("/etc/node.key".into()),
        Request::Replace(paths.pins_file()),
        Request::Commit(paths.pins_file()),
        Request::Replace(paths.ring_file()),
        Request::Commit(paths.ring_file()),
        Request::Control(paths.control_socket()),
        Request::Remove(paths.control_socket()),
    ] {
        policy.check(&request).unwrap();
    }
    for request in [
        Request::Read(paths.secrets_file()),
        Request::Read("/etc/shadow".into()),
        Request::Read(paths.ring_file()),
        Request::Replace(paths.secrets_file()),
        Request::Replace(paths.settings_file()),
        Request::Replace(paths.positions_file()),
        Request::Remove(paths.pins_file()),
        Request::Control(paths.lock_file()),
        Request::Write { path: paths.pins_file(), begin: WriteMode::Empty },
        Request::Stream(wish("0.0.0.0:0")),
        Request::Datagrams(wish("0.0.0.0:0")),
        Request::own(&"open-both").unwrap(),
        Request::own(&"prepare").unwrap(),
        Request::KeepReachable("192.0.2.1".parse().unwrap()),
    ] {
        assert!(policy.check(&request).is_err(), "{request:?}");
    }
    let opening = DeviceRequest {
        device: Device::Tun(Some("adit-vpn".into())),
        offloads: [true; 3],
        queues: 1,
    };
    policy.check(&Request::Open(opening.clone())).unwrap();
    let other = DeviceRequest { device: Device::Tun(Some("adit0".into())), ..opening };
    assert!(policy.check(&Request::Open(other)).is_err());
}
