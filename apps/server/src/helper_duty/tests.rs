//! Tests each check of a managed server's helper with a request in which everything else is
//! allowed.

use std::fs;
use std::path::Path;

use adit_pki::ClientChange;
use adit_runtime::helper::{DeviceRequest, Request, SocketRequest, WriteMode};
use adit_runtime::host::{Device, DnsPlan, HostPlan, PlannedRoute, Redirect, Transport, Via};
use adit_runtime::worker_count::MAX_WORKERS;

use serde_json::json;

use super::*;
use crate::clients::{self, ClientRequest};
use crate::{NewServer, init};

/// A configured server and its policy.
struct Setup {
    dir: tempfile::TempDir,
    paths: Paths,
}

impl Setup {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let rules = dir.path().join("rules.nft");
        fs::write(&rules, format!("include \"{}/more.nft\"\n", dir.path().display())).unwrap();
        let hook = "type filter hook forward priority 0;";
        let more = format!("table inet vpn {{ chain c {{ {hook} }} }}\n");
        fs::write(dir.path().join("more.nft"), more).unwrap();
        let paths = Paths::new(Some(dir.path())).unwrap();
        let choices = NewServer {
            host: Some("vpn.example".into()),
            network: Some("10.73.0.0/24".parse().unwrap()),
            network6: Some("fd73::/64".parse().unwrap()),
            listen: vec![
                "udp/192.0.2.5:443".parse().unwrap(),
                "tcp/192.0.2.5:444".parse().unwrap(),
            ],
            filter: Some(rules),
            ..NewServer::default()
        };
        init(&paths, &choices, false).unwrap();
        Self { dir, paths }
    }

    fn duty(&self) -> ServerHelper {
        let duty = ServerDuty { dir: Some(self.dir.path().to_owned()), ..ServerDuty::default() };
        ServerHelper { duty, running: None }
    }

    fn policy(&self) -> Policy {
        self.duty().policy(&[], 1).unwrap()
    }

    fn plan(&self) -> HostPlan {
        engine_config::host_plan(&self.duty().settings().unwrap().1, &[])
    }
}

fn apply(policy: &Policy, plan: HostPlan) -> Result<(), String> {
    policy.check(&Request::Apply(Box::new(plan)))
}

fn own(request: ServerRequest) -> Request {
    Request::own(&request).unwrap()
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

#[test]
fn a_servers_plan_is_the_settings_one_in_every_part() {
    let setup = Setup::new();
    let policy = setup.policy();
    apply(&policy, setup.plan()).unwrap();
    policy.check(&Request::Change(Box::new(setup.plan()))).unwrap();
    let changes: [fn(&mut HostPlan); 15] = [
        |plan| plan.device = Device::Tun(None),
        |plan| plan.mtu -= 1,
        |plan| plan.mac = Some([2; 6]),
        |plan| plan.tx_queue_len = Some(1),
        |plan| plan.addresses = vec!["10.73.0.2/24".parse().unwrap()],
        |plan| plan.addresses.truncate(1),
        |plan| plan.far4 = Some([10, 73, 0, 9].into()),
        |plan| plan.routes.push(route("10.9.0.0/16")),
        |plan| plan.redirect = Some(Redirect::parse(["def1"]).unwrap()),
        |plan| plan.remote = Some("192.0.2.1:1194".parse().unwrap()),
        |plan| plan.policy ^= true,
        |plan| plan.allow_lan ^= true,
        |plan| plan.block_ipv6 ^= true,
        |plan| plan.kill_switch ^= true,
        |plan| plan.dns = Some(dns()),
    ];
    for (at, change) in changes.into_iter().enumerate() {
        let mut plan = setup.plan();
        change(&mut plan);
        assert!(apply(&policy, plan).unwrap_err().contains("plan: "), "{at}");
    }
}

#[test]
fn a_servers_device_is_the_settings_one() {
    let setup = Setup::new();
    let policy = setup.policy();
    let opening = DeviceRequest { device: setup.plan().device, offloads: [true; 3], queues: 16 };
    policy.check(&Request::Open(opening.clone())).unwrap();
    let other = Device::Tun(Some("tun9".into()));
    for odd in [
        DeviceRequest { device: other, ..opening.clone() },
        DeviceRequest { device: Device::Null, ..opening.clone() },
        DeviceRequest { queues: 0, ..opening.clone() },
        DeviceRequest { queues: MAX_WORKERS + 1, ..opening },
    ] {
        assert!(policy.check(&Request::Open(odd.clone())).is_err(), "{odd:?}");
    }
}

#[test]
fn a_server_listens_where_the_settings_say_and_dials_nowhere() {
    let setup = Setup::new();
    let policy = setup.policy();
    let plain = wish;
    let udp = plain("192.0.2.5:443");
    policy.check(&Request::Datagrams(SocketRequest { count: 16, ..udp.clone() })).unwrap();
    policy.check(&Request::Listen(plain("192.0.2.5:444"))).unwrap();
    for odd in [
        SocketRequest { mark: Some(7), ..udp.clone() },
        SocketRequest { device: Some("eth9".into()), ..udp.clone() },
        SocketRequest { count: 0, ..udp.clone() },
        SocketRequest { count: MAX_WORKERS + 1, ..udp.clone() },
        SocketRequest { buffers: (Some(usize::MAX), None), ..udp.clone() },
        SocketRequest { buffers: (None, Some(usize::MAX)), ..udp.clone() },
        plain("192.0.2.5:444"),
        plain("192.0.2.5:445"),
        plain("192.0.2.6:443"),
        plain("0.0.0.0:443"),
        plain("0.0.0.0:0"),
    ] {
        assert!(policy.check(&Request::Datagrams(odd.clone())).is_err(), "{odd:?}");
    }
    for odd in ["192.0.2.5:443", "192.0.2.5:22", "192.0.2.6:444"] {
        assert!(policy.check(&Request::Listen(plain(odd))).is_err(), "{odd}");
    }
    for odd in ["192.0.2.5:444", "0.0.0.0:0", "127.0.0.1:0"] {
        assert!(policy.check(&Request::Stream(plain(odd))).is_err(), "{odd}");
    }
    assert!(policy.check(&Request::KeepReachable("192.0.2.1".parse().unwrap())).is_err());
}

#[test]
fn a_servers_files_are_each_for_their_purpose_and_its_authoritys_key_for_none() {
    let setup = Setup::new();
    let policy = setup.policy();
    let (dir, data) = (setup.dir.path(), &setup.paths.data);
    let readable = [
        setup.paths.settings_file(),
        data.join("pki/server.json"),
        data.join("pki/ca.crt"),
        data.join("pki/server.pem"),
        data.join("pki/crl.pem"),
        data.join("pki/tls-crypt-v2.key"),
        data.join("pki/users.json"),
        dir.join("rules.nft"),
        dir.join("more.nft"),
    ];
    for path in &readable {
        policy.check(&Request::Read(path.clone())).unwrap();
    }
    let (leases, control) = (data.join("leases.json"), setup.paths.control_socket());
    policy.check(&Request::Replace(leases.clone())).unwrap();
    policy.check(&Request::Commit(leases.clone())).unwrap();
    let used = data.join("used-codes.json");
    let token = data.join("token.key");
    for path in [&used, &token] {
        policy.check(&Request::Replace(path.clone())).unwrap();
        policy.check(&Request::Commit(path.clone())).unwrap();
        assert!(policy.check(&Request::Read(path.clone())).is_err(), "{path:?}");
    }
    policy.check(&Request::Control(control.clone())).unwrap();
    policy.check(&Request::Remove(control.clone())).unwrap();

    let key = data.join("pki/private/ca.key");
    assert!(key.exists(), "the test itself works");
    let write = |path: &Path| Request::Write { path: path.to_owned(), begin: WriteMode::Append };
    for path in [key.as_path(), Path::new("/etc/shadow"), &dir.join("vpn"), &control] {
        assert!(policy.check(&Request::Read(path.to_owned())).is_err(), "{path:?}");
    }
    for path in readable.iter().chain([&leases, &used, &token, &key]) {
        assert!(policy.check(&write(path)).is_err(), "{path:?}");
        assert!(policy.check(&Request::Remove(path.clone())).is_err(), "{path:?}");
        assert!(policy.check(&Request::Control(path.clone())).is_err(), "{path:?}");
        assert!(policy.check(&Request::List(path.clone())).is_err(), "{path:?}");
    }
    for path in readable.iter().chain([&control, &key]) {
        assert!(policy.check(&Request::Replace(path.clone())).is_err(), "{path:?}");
        assert!(policy.check(&Request::Commit(path.clone())).is_err(), "{path:?}");
    }
    let folder = Request::List(data.join("pki"));
    assert!(policy.check(&folder).is_err());
}

#[test]
fn only_a_managed_server_prepares_the_machine_and_only_as_its_settings_say() {
    let setup = Setup::new();
    let policy = setup.policy();
    policy.check(&own(ServerRequest::Prepare)).unwrap();
    policy.check(&own(ServerRequest::Masquerade(Nat::Auto))).unwrap();
    assert!(
        policy.check(&own(ServerRequest::Masquerade(Nat::Off))).unwrap_err().contains("masquerade")
    );
    let path = setup.paths.settings_file();
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text.replace("nat = \"auto\"", "nat = \"off\"")).unwrap();
    let policy = setup.policy();
    policy.check(&own(ServerRequest::Masquerade(Nat::Off))).unwrap();
    assert!(policy.check(&own(ServerRequest::Masquerade(Nat::Auto))).is_err());
    for odd in [json!({}), json!("open-both"), json!({"masquerade": "all"}), json!({"prepare": 1})]
    {
        assert!(policy.check(&Request::Own(odd.clone())).is_err(), "{odd}");
    }
    let begin =
        Request::Begin { duty: "server".into(), arguments: Default::default(), piped: Vec::new() };
    assert!(policy.check(&begin).is_err(), "there is one beginning");
}

/// The network process cannot route other networks into the tunnel than those in the registry.
#[test]
fn the_routes_are_those_to_the_networks_behind_clients() {
    let setup = Setup::new();
    let wanted = ClientRequest { name: "office".into(), ..ClientRequest::default() };
    clients::add(&setup.paths, &wanted).unwrap();
    let with = |net: &str| HostPlan { routes: vec![route(net)], ..setup.plan() };
    assert!(apply(&setup.policy(), with("172.29.9.0/24")).is_err());
    let networks = Some(vec!["172.29.9.0/24".parse().unwrap()]);
    let change = ClientChange { networks, ..ClientChange::default() };
    clients::set(&setup.paths, "office", &change).unwrap();
    apply(&setup.policy(), with("172.29.9.0/24")).unwrap();
    assert!(apply(&setup.policy(), with("172.29.0.0/16")).is_err());
    assert!(apply(&setup.policy(), setup.plan()).is_err());
}

/// The files of a provider are readable where the settings name them, and only there.
#[test]
fn the_files_of_a_provider_are_those_of_the_settings() {
    let setup = Setup::new();
    let (secret, ca) = (setup.paths.config.join("oidc.secret"), Path::new("/etc/sso-ca.pem"));
    let may = |path: &Path| setup.policy().check(&Request::Read(path.to_owned())).is_ok();
    assert!(!may(&secret) && !may(ca));
    let path = setup.paths.settings_file();
    let section = "[oidc]\nissuer = \"https://sso.example.net\"\nclient-id = \"adit\"\n\
                   client-secret-file = \"oidc.secret\"\nca-file = \"/etc/sso-ca.pem\"\n";
    fs::write(&path, fs::read_to_string(&path).unwrap() + section).unwrap();
    assert!(may(&secret) && may(ca) && !may(Path::new("/etc/shadow")));
    let logins = setup.paths.data.join("sso-logins.json");
    setup.policy().check(&Request::Replace(logins.clone())).unwrap();
    assert!(setup.policy().check(&Request::Replace(secret)).is_err());
    assert!(!may(&logins));
}

/// The network process must be able to name an included file that contains a mistake.
#[test]
fn rules_with_a_mistake_stay_readable() {
    let setup = Setup::new();
    fs::write(setup.dir.path().join("more.nft"), "table inet vpn { frobnicate }\n").unwrap();
    let policy = setup.policy();
    policy.check(&Request::Read(setup.dir.path().join("more.nft"))).unwrap();
}

#[test]
fn the_command_line_overrides_where_metrics_are_served_and_a_webhooks_files_can_be_read() {
    let setup = Setup::new();
    let file = setup.paths.settings_file();
    let text = fs::read_to_string(&file).unwrap();
    let sections = text
        .replace(
            "# metrics = \"unix:/run/adit/server.metrics\"",
            "metrics = \"unix:/run/a.metrics\"",
        )
        .replace("# [events]\n", "[events]\nurl = \"https://a/\"\nheader-file = \"hook.header\"\n");
    fs::write(&file, sections).unwrap();
    let (of_settings, of_command) =
        (PathBuf::from("/run/a.metrics"), PathBuf::from("/run/b.metrics"));
    let policy = setup.policy();
    assert!(policy.control.contains(&of_settings) && !policy.control.contains(&of_command));
    assert!(policy.readable.contains(&setup.paths.config.join("hook.header")));
    let mut server = setup.duty();
    server.duty.metrics = Some("unix:/run/b.metrics".parse().unwrap());
    let policy = server.policy(&[], 1).unwrap();
    assert!(policy.control.contains(&of_command) && !policy.control.contains(&of_settings));
}
