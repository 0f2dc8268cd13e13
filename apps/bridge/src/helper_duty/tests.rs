//! Tests the requests that a bridge's helper carries out, and those that it refuses.

use std::fs;

use adit_runtime::helper::{DeviceRequest, Request, SocketRequest, WriteMode};
use adit_runtime::host::Device;

use super::*;

fn own(request: PortRequest) -> Request {
    Request::own(&request).unwrap()
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
fn a_bridge_opens_its_ports_and_its_rules_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let (rules, more) = (dir.path().join("rules.nft"), dir.path().join("more.nft"));
    fs::write(&rules, format!("include \"{}\"\n", more.display())).unwrap();
    fs::write(&more, "table inet fw { }\n").unwrap();
    let control = dir.path().join("a-b.sock");
    let duty = BridgeDuty {
        ports: ["a".into(), "tap:b".into()],
        rules: Some(rules.clone()),
        workers: 1,
        mtu: None,
        share_with_host: false,
        metrics: None,
        carry_link: false,
        control: control.clone(),
    };
    let switch = own(PortRequest::Switch { side: PortSide::B, on: false });
    let derive = |duty| BridgeHelper { duty, opener: None }.policy(&[], 1).unwrap();
    derive(BridgeDuty { carry_link: true, ..duty.clone() }).check(&switch).unwrap();
    let policy = derive(duty);
    for request in [
        own(PortRequest::OpenBoth),
        own(PortRequest::OpenAgain(PortSide::A)),
        own(PortRequest::OpenAgain(PortSide::B)),
        Request::Read(rules.clone()),
        Request::Read(more),
        Request::Control(control.clone()),
        Request::Remove(control.clone()),
        Request::Reload,
    ] {
        policy.check(&request).unwrap();
    }
    let opening = DeviceRequest { device: Device::Tun(None), offloads: [true; 3], queues: 1 };
    for request in [
        Request::Open(opening),
        switch,
        Request::Apply(Box::default()),
        Request::Read("/etc/shadow".into()),
        Request::Read(control),
        Request::Write { path: rules.clone(), begin: WriteMode::Append },
        Request::Replace(rules.clone()),
        Request::Remove(rules),
        Request::Control("/run/adit/server.sock".into()),
        Request::Datagrams(wish("0.0.0.0:0")),
        Request::Listen(wish("0.0.0.0:0")),
        Request::Stream(wish("0.0.0.0:0")),
        Request::own(&"prepare").unwrap(),
        Request::KeepReachable("192.0.2.1".parse().unwrap()),
    ] {
        assert!(policy.check(&request).is_err(), "{request:?}");
    }
}
