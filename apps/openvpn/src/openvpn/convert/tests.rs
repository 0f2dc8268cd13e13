use adit_openvpn::config::{Files, parse};

use super::*;

struct One(String);

impl Files for One {
    fn read(&self, _: &std::path::Path) -> std::io::Result<Vec<u8>> {
        Ok(self.0.clone().into_bytes())
    }
}

fn parsed(text: String) -> Options {
    parse(&["x.conf".into()], &One(text)).unwrap()
}

fn client(more: &str) -> Options {
    parsed(format!(
        "client\ndev tun\nremote 192.0.2.1\nca a\ncert b\nkey c\nremote-cert-tls server\n{more}"
    ))
}

fn server(more: &str) -> Options {
    parsed(format!(
        "dev tun\nserver 10.8.0.0 255.255.255.0\ntopology subnet\nca a\ncert b\nkey c\ndh none\n{more}"
    ))
}

fn dialled(options: &Options) -> DialSettings {
    let Role::Client(role) = &options.role else { panic!("{:?}", options.role) };
    dial_settings(options, &role.dial, &mut key_files::Terminal).unwrap()
}

fn planned_client(more: &str) -> HostPlan {
    client_plan(&client(more), &TunnelConfig::default()).unwrap().0
}

#[test]
fn ipv6_packets_of_a_tap_device_go_to_the_far_end() {
    let far: IpAddr = "fd00::1".parse().unwrap();
    let route = |via, metric| PlannedRoute { net: "fd01::/64".parse().unwrap(), via, metric };
    let tunnel = route(Via::Tunnel(Some(far)), Some(7));
    assert_eq!(by_station(tunnel.clone(), true).via, Via::Gateway(far));
    assert_eq!(by_station(tunnel, false).via, Via::Tunnel(Some(far)));
    let on_link = route(Via::Tunnel(Some(far)), Some(0));
    assert_eq!(by_station(on_link, true).via, Via::Tunnel(Some(far)));
    assert_eq!(by_station(route(Via::Tunnel(None), None), true).via, Via::Tunnel(None));
}

#[test]
fn a_pushed_network_takes_no_addresses_of_others() {
    let confined = |ipv4: &str, far4: Option<&str>, ipv6: &str, nopull| {
        let tunnel = TunnelConfig {
            ipv4: ipv4.parse().ok(),
            far4: far4.and_then(|far| far.parse().ok()),
            ipv6: ipv6.parse().ok(),
            ..TunnelConfig::default()
        };
        let mut notes = Vec::new();
        let PushedAddresses { ipv4, far4, ipv6 } =
            PushedAddresses::confine(&tunnel, nopull, &mut notes);
        let text = [
            ipv4.map(|net| net.to_string()),
            far4.map(|far| far.to_string()),
            ipv6.map(|net| net.to_string()),
        ];
        (text.map(Option::unwrap_or_default).join(" "), notes.len())
    };
    let of = |text: &str, notes| (text.to_owned(), notes);
    for nopull in [false, true] {
        assert_eq!(confined("1.2.3.4/1", None, "", nopull), of("1.2.3.4/32  ", 1));
        assert_eq!(confined("8.8.8.8/7", None, "", nopull), of("8.8.8.8/32  ", 1));
        assert_eq!(confined("10.8.0.2/8", None, "", nopull), of("10.8.0.2/8  ", 0));
        assert_eq!(confined("10.8.0.2/24", None, "fd00::2/64", nopull).1, 0);
        assert_eq!(confined("100.64.0.2/10", None, "", nopull).1, 0);
        assert_eq!(confined("10.8.0.2/32", Some("10.8.0.1"), "", nopull).1, 0);
        assert_eq!(confined("", None, "2000::1/3", nopull), of("  2000::1/128", 1));
    }
    assert_eq!(confined("8.8.8.9/24", None, "2001:db8::2/64", false).1, 0);
    assert_eq!(
        confined("8.8.8.9/24", None, "2001:db8::2/64", true),
        of("8.8.8.9/32  2001:db8::2/128", 2)
    );
    assert_eq!(confined("10.8.0.2/32", Some("8.8.8.8"), "", true), of("10.8.0.2/32  ", 1));
}

#[test]
fn a_port_of_both_families_is_bound_once_for_each() {
    let listener =
        |bind: &str, transport| Listener { bind: bind.parse().unwrap(), v6only: false, transport };
    let mut listeners = [
        listener("0.0.0.0:1194", Transport::Tcp),
        listener("[::]:1194", Transport::Tcp),
        listener("[::]:1194", Transport::Udp),
        listener("[::]:443", Transport::Tcp),
    ];
    leave_ipv4_to_others(&mut listeners);
    assert_eq!(listeners.map(|l| l.v6only), [false, true, false, false]);
}

#[test]
fn a_clients_sockets_are_as_configured() {
    let plain = dialled(&client(""));
    assert_eq!((plain.local, plain.port, plain.bind_streams), (None, 1194, false));
    assert_eq!((plain.receive_buffer, plain.send_buffer), (None, None));
    let set = dialled(&client("rcvbuf 131072\nsndbuf 65536\nlport 5000\n"));
    assert_eq!((set.receive_buffer, set.send_buffer), (Some(131_072), Some(65_536)));
    assert_eq!(set.port, 5000);
    // OpenVPN's TCP clients take any port unless one is asked for.
    assert!(dialled(&client("proto tcp\nbind\n")).bind_streams);
    assert_eq!(dialled(&client("tcp-queue-limit 256\n")).streams.queue_limit, 256);
    // Each attempt has the same local address, which is what `persist-local-ip` asks for.
    let kept = dialled(&client("local 192.0.2.7\npersist-local-ip\n"));
    assert_eq!(kept.local, Some("192.0.2.7".parse().unwrap()));
}

#[test]
fn a_servers_sockets_are_as_configured() {
    let of = |more: &str| {
        let found = listeners(&server(more)).unwrap();
        found.iter().map(|at| (at.bind.to_string(), at.v6only)).collect::<Vec<_>>()
    };
    assert_eq!(of("lport 5000\n"), [("0.0.0.0:5000".to_owned(), false)]);
    assert_eq!(of("proto udp6\n"), [("[::]:1194".to_owned(), false)]);
    assert_eq!(of("proto udp6\nbind ipv6only\n"), [("[::]:1194".to_owned(), true)]);
    let tuning = socket_tuning(&server("rcvbuf 131072\nsndbuf 65536\ntcp-queue-limit 256\n"));
    assert_eq!((tuning.receive_buffer, tuning.send_buffer), (Some(131_072), Some(65_536)));
    assert_eq!(tuning.streams.queue_limit, 256);
}

#[test]
fn remotes_have_their_ports_and_the_transport_that_is_forced() {
    let remotes = |more: &str| {
        let options = client(more);
        let Role::Client(role) = &options.role else { panic!("{:?}", options.role) };
        let of = role.dial.remotes.iter();
        of.map(|to| (to.host.clone(), to.port, to.transport)).collect::<Vec<_>>()
    };
    let first = ("192.0.2.1".to_owned(), 1194, Transport::Udp);
    let second = ("192.0.2.2".to_owned(), 443, Transport::Tcp);
    assert_eq!(remotes("remote 192.0.2.2 443 tcp\n"), [first, second.clone()]);
    assert_eq!(remotes("remote 192.0.2.2 443 tcp\nproto-force tcp\n"), [second]);
    assert_eq!(remotes("rport 5001\n"), [("192.0.2.1".to_owned(), 5001, Transport::Udp)]);
}

#[test]
fn the_device_is_as_configured() {
    let plan = bare_plan(&client("txqueuelen 500\nroute-table 300\n"));
    assert_eq!((plan.tx_queue_len, plan.table, plan.mtu), (Some(500), Some(300), 1500));
    // openvpn 2.6.14 prints this value with `verb 4`.
    for line in ["link-mtu 1500\n", "udp-mtu 1500\n"] {
        assert_eq!(bare_plan(&client(line)).mtu, 1475, "{line}");
    }
}

#[test]
fn redirect_private_and_block_ipv6_are_planned_without_the_server() {
    let plain = planned_client("");
    assert!(plain.redirect.is_none() && !plain.block_ipv6);
    let redirect = planned_client("redirect-private def1\n").redirect.unwrap();
    assert!(redirect.private && redirect.def1);
    assert!(!planned_client("redirect-gateway def1\n").redirect.unwrap().private);
    assert!(planned_client("block-ipv6\n").block_ipv6);
}
