use adit_runtime::helper::{DeviceRequest, Request, SocketRequest, WriteMode};
use adit_runtime::host::{Device, PlannedRoute, Redirect};

use super::*;

const CLIENT: &str = "client\ndev tun7\nremote vpn.example 1194\nca ca.crt\ncert c.crt\nkey c.key\n\
                      auth-user-pass login\nlog log.txt\nstatus status.txt\nwritepid pid\nmark 7\n\
                      bind-dev eth9\n";

fn derive(text: &str) -> Policy {
    let arguments = vec!["--config".into(), "x.conf".into()];
    let duty = OpenvpnDuty { arguments, names: BTreeMap::new() };
    duty.policy(&[("x.conf".into(), text.as_bytes().to_vec())], 1).unwrap()
}

fn plan() -> HostPlan {
    HostPlan {
        device: Device::Tun(Some("tun7".into())),
        addresses: vec!["10.8.0.2/24".parse().unwrap()],
        routes: vec![route("10.9.0.0/16")],
        redirect: Some(Redirect::parse(["def1"]).unwrap()),
        remote: Some("192.0.2.1:1194".parse().unwrap()),
        ..HostPlan::default()
    }
}

fn route(net: &str) -> PlannedRoute {
    PlannedRoute { net: net.parse().unwrap(), via: Via::Tunnel(None), metric: None }
}

fn apply(policy: &Policy, plan: HostPlan) -> Result<(), String> {
    policy.check(&Request::Apply(Box::new(plan)))
}

/// Tests each check, in a request of which everything else is allowed.
#[test]
fn a_plan_is_refused_for_one_thing_alone() {
    let pulling = derive(CLIENT);
    apply(&pulling, plan()).unwrap();
    pulling.check(&Request::Change(Box::new(plan()))).unwrap();
    let with = |change: fn(&mut HostPlan)| {
        let mut plan = plan();
        change(&mut plan);
        apply(&pulling, plan).unwrap_err()
    };
    assert!(with(|plan| plan.device = Device::Tun(None)).contains("device"));
    assert!(with(|plan| plan.mac = Some([2; 6])).contains("device"));
    assert!(with(|plan| plan.tx_queue_len = Some(1)).contains("device"));
    assert!(with(|plan| plan.rate = Some(1000)).contains("device"));
    assert!(with(|plan| plan.mtu = 67).contains("MTU"));
    assert!(with(|plan| plan.table = Some(7)).contains("table"));
    for odd in ["127.0.0.1/8", "0.0.0.0/0", "224.0.0.1/4"] {
        let mut plan = plan();
        plan.addresses = vec![odd.parse().unwrap()];
        assert!(apply(&pulling, plan).unwrap_err().contains("address"), "{odd}");
    }
    assert!(with(|plan| plan.far4 = Some([127, 0, 0, 1].into())).contains("address"));
    assert!(with(|plan| plan.remote = Some(([224, 0, 0, 1], 1).into())).contains("server"));
    let text = format!("{CLIENT}ifconfig-noexec\n");
    assert!(apply(&derive(&text), plan()).unwrap_err().contains("ifconfig-noexec"));
    let noexec = derive(&format!("{CLIENT}route-noexec\n"));
    assert!(apply(&noexec, plan()).unwrap_err().contains("route-noexec"));
    let alone = HostPlan { redirect: None, ..plan() };
    assert!(apply(&noexec, alone).unwrap_err().contains("route-noexec"));
    apply(&noexec, HostPlan { redirect: None, routes: Vec::new(), ..plan() }).unwrap();
}

#[test]
fn without_the_servers_routes_only_our_own_are_set() {
    let own = derive(&format!("{CLIENT}route-nopull\nroute 10.9.0.0 255.255.0.0\n"));
    assert!(apply(&own, plan()).unwrap_err().contains("all traffic"));
    let plain = HostPlan { redirect: None, ..plan() };
    apply(&own, plain.clone()).unwrap();
    let other = HostPlan { routes: vec![route("10.7.0.0/16")], ..plain.clone() };
    assert!(apply(&own, other).unwrap_err().contains("10.7.0.0/16"));
    let redirecting = derive(&format!(
        "{CLIENT}route-nopull\nredirect-gateway def1\nroute remote_host 255.255.255.255 net_gateway\n\
         route vpn_gateway\n"
    ));
    let words = vec![route("192.0.2.1/32"), route("10.8.0.1/32")];
    apply(&redirecting, HostPlan { routes: words, ..plan() }).unwrap();
    let other = HostPlan { routes: vec![route("192.0.2.2/32")], ..plan() };
    assert!(apply(&redirecting, other).unwrap_err().contains("192.0.2.2"));
}

#[test]
fn a_plan_that_follows_from_the_configuration_must_be_that_one() {
    let server = "dev tun\nserver 10.8.0.0 255.255.255.0\ntopology subnet\nca a\ncert b\nkey c\n\
                  dh none\nroute 10.66.0.0 255.255.0.0\n";
    let point = "dev tun\nsecret k\ncipher AES-256-CBC\nifconfig 10.1.0.1 10.1.0.2\n\
                 route remote_host 255.255.255.255 net_gateway\nremote 192.0.2.1\n";
    for text in [server, point] {
        let policy = derive(text);
        let files = FileRecorder {
            piped: &[("x".into(), text.into())],
            names: None,
            read: Default::default(),
        };
        let args = ["--config".to_owned(), "x".to_owned()];
        let options = &config::parse(&args, &files).unwrap();
        let remote = Some("192.0.2.1:1194".parse().unwrap());
        let wanted = openvpn::configured_plan(options, remote).unwrap();
        apply(&policy, wanted.clone()).unwrap();
        apply(&policy, openvpn::configured_plan(options, None).unwrap()).unwrap();
        let mut more = wanted.clone();
        more.routes.push(route("0.0.0.0/1"));
        assert!(apply(&policy, more).is_err());
        let other = HostPlan { addresses: vec!["10.8.0.77/24".parse().unwrap()], ..wanted };
        assert!(apply(&policy, other).is_err());
    }
}

#[test]
fn files_are_those_of_the_configuration_each_for_its_purpose() {
    let policy = derive(CLIENT);
    for path in ["ca.crt", "c.crt", "c.key", "login"] {
        policy.check(&Request::Read(path.into())).unwrap();
    }
    let write = |path: &str| Request::Write { path: path.into(), begin: WriteMode::Append };
    policy.check(&write("log.txt")).unwrap();
    policy.check(&write("status.txt")).unwrap();
    let pid = std::path::absolute("pid").unwrap();
    policy.check(&Request::Remove(pid.clone())).unwrap();
    policy.check(&Request::Read(pid)).unwrap();
    for request in [
        Request::Read("/etc/shadow".into()),
        Request::Read("log.txt".into()),
        write("c.key"),
        write("pid"),
        write("/etc/passwd"),
        Request::Remove("log.txt".into()),
        Request::Remove("c.key".into()),
        Request::Replace("log.txt".into()),
        Request::Commit("c.key".into()),
        Request::List(".".into()),
        Request::Control("/run/adit/server.sock".into()),
        Request::Control("/etc/cron.d/x".into()),
    ] {
        assert!(policy.check(&request).is_err(), "{request:?}");
    }
}

#[test]
fn a_servers_folders_are_open_to_names_of_clients_alone() {
    let policy = derive(
        "dev tun\nserver 10.8.0.0 255.255.255.0\nca a\ncert b\nkey c\ndh none\n\
         client-config-dir /etc/ccd\nifconfig-pool-persist /var/ipp.txt\ncapath /etc/authorities\n\
         crl-verify /etc/revoked dir\n",
    );
    let read = |path: &str| policy.check(&Request::Read(path.into()));
    read("/etc/ccd/alice").unwrap();
    read("/etc/authorities/9d66eef0.0").unwrap();
    read("/etc/revoked/42").unwrap();
    policy.check(&Request::List("/etc/revoked".into())).unwrap();
    read("/var/ipp.txt").unwrap();
    policy.check(&Request::Replace("/var/ipp.txt".into())).unwrap();
    policy.check(&Request::Commit("/var/ipp.txt".into())).unwrap();
    for path in [
        "/etc/ccd/.hidden",
        "/etc/ccd/../shadow",
        "/etc/ccd/a/b",
        "/etc/ccd/a/../../shadow",
        "/etc/ccd/..",
        "/etc/authorities/../shadow",
        "/etc/revoked/42.pem",
        "/etc/revoked/../42",
        "/etc/authorities/a/b",
        "/etc/shadow",
    ] {
        assert!(read(path).is_err(), "{path}");
    }
    let fixed = derive(
        "dev tun
server 10.8.0.0 255.255.255.0
ca a
cert b
key c
dh none
\
         ifconfig-pool-persist /var/ipp.txt 0
",
    );
    assert!(fixed.check(&Request::Replace("/var/ipp.txt".into())).is_err(), "it is only read");
}

fn wish(bind: &str) -> SocketRequest {
    SocketRequest {
        bind: bind.parse().unwrap(),
        bound: true,
        v6only: false,
        count: 1,
        mark: Some(7),
        device: Some("eth9".into()),
        buffers: (Some(1 << 20), None),
        icmp_errors: true,
    }
}

#[test]
fn sockets_have_the_configurations_mark_device_and_address() {
    let client = derive(CLIENT);
    let udp = |wish| client.check(&Request::Datagrams(wish));
    udp(wish("0.0.0.0:0")).unwrap();
    client.check(&Request::Stream(wish("[::]:0"))).unwrap();
    udp(SocketRequest { mark: None, device: None, ..wish("127.0.0.1:0") }).unwrap();
    for odd in [
        SocketRequest { mark: Some(8), ..wish("0.0.0.0:0") },
        SocketRequest { device: Some("eth8".into()), ..wish("0.0.0.0:0") },
        SocketRequest { count: 0, ..wish("0.0.0.0:0") },
        SocketRequest { count: 2, ..wish("0.0.0.0:0") },
        SocketRequest { buffers: (Some(usize::MAX), None), ..wish("0.0.0.0:0") },
        SocketRequest { buffers: (None, Some(usize::MAX)), ..wish("0.0.0.0:0") },
        wish("0.0.0.0:22"),
        wish("192.0.2.99:0"),
    ] {
        assert!(udp(odd.clone()).is_err(), "{odd:?}");
    }
    assert!(client.check(&Request::Listen(wish("0.0.0.0:0"))).is_err(), "it listens nowhere");

    let server = derive(
        "dev tun\nserver 10.8.0.0 255.255.255.0\nca a\ncert b\nkey c\ndh none\nport 443\n\
         proto tcp-server\nlocal 192.0.2.5\nmark 7\nbind-dev eth9\n",
    );
    server.check(&Request::Listen(wish("192.0.2.5:443"))).unwrap();
    assert!(server.check(&Request::Listen(wish("192.0.2.5:444"))).is_err());
    assert!(server.check(&Request::Listen(wish("192.0.2.6:443"))).is_err());
    assert!(server.check(&Request::Datagrams(wish("192.0.2.5:443"))).is_err());
    assert!(server.check(&Request::Stream(wish("192.0.2.5:0"))).is_err(), "it dials nowhere");
}

#[test]
fn the_socket_of_the_management_interface_may_be_removed_if_it_is_our_own() {
    let path = PathBuf::from("/run/vpn/management");
    let ours = derive(&format!("{CLIENT}management /run/vpn/management unix\n"));
    ours.check(&Request::Remove(path.clone())).unwrap();
    assert!(ours.check(&Request::Remove("/run/vpn/other".into())).is_err());
    let theirs =
        derive(&format!("{CLIENT}management /run/vpn/management unix\nmanagement-client\n"));
    assert!(theirs.check(&Request::Remove(path)).is_err());
}

#[test]
fn devices_and_servers_are_the_configurations() {
    let policy = derive(CLIENT);
    let opening =
        DeviceRequest { device: Device::Tun(Some("tun7".into())), offloads: [true; 3], queues: 1 };
    policy.check(&Request::Open(opening.clone())).unwrap();
    let other = DeviceRequest { device: Device::Tun(Some("tun8".into())), ..opening.clone() };
    assert!(policy.check(&Request::Open(other)).is_err());
    assert!(policy.check(&Request::Open(DeviceRequest { queues: 0, ..opening.clone() })).is_err());
    assert!(policy.check(&Request::Open(DeviceRequest { queues: 65, ..opening })).is_err());
    policy.check(&Request::KeepReachable("192.0.2.1".parse().unwrap())).unwrap();
    assert!(policy.check(&Request::KeepReachable("224.0.0.1".parse().unwrap())).is_err());
    let begin =
        Request::Begin { duty: "openvpn".into(), arguments: Default::default(), piped: Vec::new() };
    assert!(policy.check(&begin).is_err(), "there is one beginning");
    for own in ["prepare", "open-both"] {
        assert!(policy.check(&Request::own(&own).unwrap()).is_err(), "{own} is another command's");
    }
    let server = derive(
        "dev tun
server 10.8.0.0 255.255.255.0
ca a
cert b
key c
dh none
",
    );
    assert!(server.check(&Request::KeepReachable("192.0.2.1".parse().unwrap())).is_err());
}

/// `up` runs while the device has addresses and no routes yet.
#[test]
fn a_configured_plan_is_permitted_without_its_routes() {
    let text = "dev tun7\nsecret k\ncipher AES-256-CBC\nifconfig 10.1.0.1 10.1.0.2\nremote 192.0.2.1\n\
                route 10.5.0.0 255.255.0.0\n";
    let policy = derive(text);
    let options = config::parse(
        &["x.conf".into()],
        &FileRecorder {
            piped: &[("x.conf".into(), text.as_bytes().to_vec())],
            names: None,
            read: Default::default(),
        },
    );
    let whole = openvpn::configured_plan(&options.unwrap(), None).unwrap();
    assert_eq!(whole.routes.len(), 1);
    apply(&policy, whole.clone()).unwrap();
    let bare = whole.before_routes();
    assert!(bare.routes.is_empty() && bare.addresses == whole.addresses);
    apply(&policy, bare.clone()).unwrap();
    let other = HostPlan { addresses: Vec::new(), ..bare };
    assert!(apply(&policy, other).unwrap_err().contains("does not follow"));
}

#[test]
fn programs_are_permitted_with_script_security_alone() {
    let text = format!("{CLIENT}up /etc/openvpn/up.sh\n");
    assert_eq!(derive(&text).programs, None);
    let allowed = derive(&format!("{text}script-security 2\n")).programs.unwrap();
    let paths: Vec<_> = allowed.programs.iter().map(|program| program.path.as_str()).collect();
    assert_eq!(paths, ["/etc/openvpn/up.sh"]);
    assert!(allowed.variables.permit("dev", "tun0") && !allowed.variables.permit("PATH", "/tmp"));
}

#[test]
fn names_in_routes_have_the_addresses_that_the_network_process_found() {
    let text = "dev tun\nserver 10.8.0.0 255.255.255.0\ntopology subnet\nca a\ncert b\nkey c\n\
                dh none\nroute gateway.invalid\n";
    let arguments = vec!["--config".to_owned(), "x.conf".to_owned()];
    let piped: [(PathBuf, Vec<u8>); 1] = [("x.conf".into(), text.into())];
    let names = BTreeMap::from([("gateway.invalid".to_owned(), vec![[192, 0, 2, 7].into()])]);
    let duty = OpenvpnDuty { arguments: arguments.clone(), names: names.clone() };
    let policy = duty.policy(&piped, 1).unwrap();
    let files = FileRecorder { piped: &piped, names: Some(&names), read: Default::default() };
    let options = config::parse(&arguments, &files).unwrap();
    let wanted = openvpn::configured_plan(&options, None).unwrap();
    assert!(wanted.routes.iter().any(|route| route.net == "192.0.2.7/32".parse().unwrap()));
    apply(&policy, wanted).unwrap();
}
