//! Protocols, addresses to listen on, and directives for streams.

use adit_engine::Transport::{Tcp, Udp};

use super::*;

fn listening(text: &str) -> Vec<(Option<String>, u16, adit_engine::Transport, Family)> {
    let options = server(text);
    let listen = options.socket.listen.iter();
    listen.map(|l| (l.host.clone(), l.port, l.transport, l.family)).collect()
}

#[test]
fn every_protocol_has_its_name() {
    for (name, transport, family) in [
        ("udp", Udp, Family::Any),
        ("udp4", Udp, Family::V4),
        ("udp6", Udp, Family::V6),
        ("tcp", Tcp, Family::Any),
        ("tcp4", Tcp, Family::V4),
        ("tcp6", Tcp, Family::V6),
        ("tcp-server", Tcp, Family::Any),
        ("tcp4-server", Tcp, Family::V4),
        ("tcp6-server", Tcp, Family::V6),
    ] {
        let found = listening(&format!("proto {name}\nport 443\n"));
        assert_eq!(found, [(None, 443, transport, family)], "{name}");
    }
    for name in ["tcp-client", "tcp4-client", "tcp6-client"] {
        let options = client(&format!("proto {name}\n"));
        assert_eq!(as_client(&options).dial.remotes[0].transport, Tcp);
        assert!(server_error(&format!("proto {name}\n")).problem.contains("does not dial"));
    }
    assert!(client_error("proto tcp-server\n").problem.contains("does not listen"));
    assert!(client_error("remote a 1 tcp4-server\n").problem.contains("does not listen"));
    assert!(server_error("local * 1 tcp-client\n").problem.contains("does not dial"));
    for unknown in ["udp-server", "tcp5", "sctp", "tcp-", "-server"] {
        assert!(client_error(&format!("proto {unknown}\n")).problem.contains("no protocol"));
    }
}

#[test]
fn a_server_listens_wherever_it_is_told_to() {
    let found = listening(
        "proto udp4\nport 1195\nlocal 192.0.2.1\nlocal * 443 tcp\nlocal [2001:db8::1] 443 tcp6\n\
         local 192.0.2.1 1195\nlocal * 53\n",
    );
    let host = |text: &str| Some(text.to_owned());
    assert_eq!(
        found,
        [
            (host("192.0.2.1"), 1195, Udp, Family::V4),
            (None, 443, Tcp, Family::Any),
            (host("2001:db8::1"), 443, Tcp, Family::V6),
            (None, 53, Udp, Family::V4),
        ],
        "the fourth line says what the first does"
    );
    assert_eq!(server_error("local a 99999\n").directive, "local");
    assert_eq!(server_error("local a 1 tcp x\n").directive, "local");
}

#[test]
fn the_command_line_takes_several_addresses_too() {
    let files = files(&[("server.conf", SERVER)]);
    let all = args("--config server.conf --local * 1194 udp --local * 443 tcp");
    let options = parse(&all, &files).unwrap();
    let found: Vec<_> = options.socket.listen.iter().map(|l| (l.port, l.transport)).collect();
    assert_eq!(found, [(1194, Udp), (443, Tcp)]);
}

#[test]
fn a_client_sends_from_one_address() {
    let error = client_error("local 192.0.2.1\nlocal 192.0.2.2\n");
    assert!(error.problem.contains("one address"), "{error}");
    assert!(client("proto udp\n").socket.listen.len() == 1);
    assert!(!client("proto tcp\n").socket.bind_streams, "stock's TCP clients take any port");
    for text in ["lport 5\n", "local 192.0.2.1\n", "bind\n", "port 5\n"] {
        assert!(client(text).socket.bind_streams, "{text}");
    }
    assert!(!client("nobind\nport 5\n").socket.bind_streams);
}

#[test]
fn each_remote_has_its_transport() {
    let options = client("remote b 443 tcp4\nremote c 1 udp6\nproto tcp\n");
    let of = |options: &Options| -> Vec<_> {
        let remotes = as_client(options).dial.remotes.iter();
        remotes.map(|r| (r.host.clone(), r.transport, r.family)).collect()
    };
    assert_eq!(
        of(&options),
        [
            ("vpn.example.org".into(), Tcp, Family::Any),
            ("b".into(), Tcp, Family::V4),
            ("c".into(), Udp, Family::V6),
        ]
    );
    let forced = client("remote b 443 tcp4\nproto-force tcp\n");
    assert_eq!(of(&forced), [("b".into(), Tcp, Family::V4)]);
    let error = client_error("proto-force tcp\n");
    assert_eq!(error.directive, "proto-force");
}

#[test]
fn what_streams_need_is_taken_and_said_to_the_clients() {
    let options = server("proto tcp\ntcp-nodelay\ntcp-queue-limit 256\n");
    assert_eq!(options.socket.queue_limit, 256);
    assert_eq!(server("").socket.queue_limit, 64);
    let Role::Server(role) = &options.role else { panic!("a server") };
    assert!(role.push.contains(&"socket-flags TCP_NODELAY".to_owned()), "{:?}", role.push);
    assert!(client("socket-flags TCP_NODELAY\n").warnings.is_empty());
    assert!(client_error("socket-flags TCP_CORK\n").problem.contains("TCP_CORK"));
    assert!(server_error("tcp-queue-limit 0\n").directive == "tcp-queue-limit");
}

#[test]
fn an_exit_notice_that_no_server_will_hear_is_said() {
    let warned = |text: &str| {
        client(text).warnings.iter().any(|warning| warning.contains("explicit-exit-notify"))
    };
    assert!(warned("proto tcp\nexplicit-exit-notify 2\n"));
    assert!(!warned("proto tcp\nremote b 1 udp\nexplicit-exit-notify 2\n"));
    assert!(!warned("explicit-exit-notify 2\n"));
}

#[test]
fn sockets_are_bound_to_a_device_on_every_side() {
    let secret = "dev tun\nsecret k\ncipher AES-256-CBC\nifconfig 10.1.0.1 10.1.0.2\n";
    for options in [client("bind-dev vrf-blue"), server("bind-dev vrf-blue")] {
        assert_eq!(options.socket.device.as_deref(), Some("vrf-blue"));
    }
    let peer = parse_file(&format!("{secret}bind-dev vrf-blue\n")).unwrap();
    assert_eq!(peer.socket.device.as_deref(), Some("vrf-blue"));
    for line in ["bind-dev", "bind-dev a-name-of-more-than-15", "bind-dev a/b"] {
        assert_eq!(client_error(line).directive, "bind-dev", "{line}");
    }
}

#[test]
fn names_are_looked_up_with_a_random_label_where_asked() {
    let random = |more: &str| as_client(&client(more)).dial.random_hostname;
    assert!(random("remote-random-hostname") && random("setenv REMOTE_RANDOM_HOSTNAME"));
    assert!(!random("") && !random("setenv REMOTE_RANDOM_HOSTNAME x"));
    let hint = client("ip-remote-hint 192.0.2.7\n");
    assert_eq!(hint.warnings.len(), 1, "{:?}", hint.warnings);
}

#[test]
fn variables_that_are_directives_are_taken() {
    assert!(client("setenv PUSH_PEER_INFO").session.push_peer_info);
    let options = client("setenv SERVER_POLL_TIMEOUT 4");
    assert_eq!(as_client(&options).dial.connect_timeout, Duration::from_secs(4));
    assert!(client_error("setenv SERVER_POLL_TIMEOUT soon").problem.contains("number"));
    // Other names are variables.
    assert_eq!(client("setenv-safe PUSH_PEER_INFO").environment.len(), 1);
}
