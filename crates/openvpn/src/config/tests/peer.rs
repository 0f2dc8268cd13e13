//! Point-to-point tunnels.

use adit_crypto::{BlockCipher, Digest};
use adit_engine::Transport;

use super::*;
use crate::config::{PeerKeys, PeerOptions};
use crate::p2p::Ifconfig4;

const STATIC: &str = "dev tun\nremote 192.0.2.1\nifconfig 10.1.0.1 10.1.0.2\ncipher AES-256-CBC\n";
const TLS: &str = "dev tun\nifconfig 10.1.0.1 10.1.0.2\nca ca\ncert cert\nkey key\n\
                   remote-cert-tls server\n";

fn peer(options: &Options) -> &PeerOptions {
    match &options.role {
        Role::Peer(peer) => peer,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_static_key_as_openvpns_manual_has_it() {
    let options = parse_file(&format!("{STATIC}secret static.key 1\nping 10\nfloat\n")).unwrap();
    let peer = peer(&options);
    let PeerKeys::Static { key, direction, suite } = &peer.keys else { panic!("{peer:?}") };
    assert_eq!(*key, Source::File("static.key".into()));
    assert_eq!(*direction, Some(1));
    assert_eq!(suite.cipher, Some(BlockCipher::Aes256Cbc));
    assert_eq!(suite.digest, Some(Digest::Sha1));
    let (local, far) = ("10.1.0.1".parse().unwrap(), "10.1.0.2".parse().unwrap());
    assert_eq!(peer.tunnel_addrs.ipv4, Some(Ifconfig4::Pair(local, far)));
    assert_eq!(peer.dial.remotes.len(), 1);
    assert_eq!(options.socket.listen[0].port, 1194);
    assert!(options.session.float);
    assert_eq!(options.warnings.len(), 1, "{:?}", options.warnings);
    assert!(options.warnings[0].contains("forward secrecy"));
}

#[test]
fn a_static_key_in_the_file_with_key_direction_and_subnet() {
    let text = "dev tun\nmode p2p\n<secret>\nkey\n</secret>\nkey-direction 0\nlocal 192.0.2.7\n\
                topology subnet\nifconfig 10.1.0.1 255.255.255.0\nifconfig-ipv6 fd00::1/64 fd00::2\n\
                cipher none\nallow-deprecated-insecure-static-crypto\n";
    let options = parse_file(text).unwrap();
    let peer = peer(&options);
    let PeerKeys::Static { key, direction, suite } = &peer.keys else { panic!("{peer:?}") };
    assert!(matches!(key, Source::Inline { directive: "secret", .. }));
    assert_eq!((*direction, suite.cipher, suite.digest), (Some(0), None, Some(Digest::Sha1)));
    assert_eq!(peer.tunnel_addrs.ipv4, Some(Ifconfig4::Net("10.1.0.1/24".parse().unwrap())));
    let ipv6 = ("fd00::1/64".parse().unwrap(), Some("fd00::2".parse().unwrap()));
    assert_eq!(peer.tunnel_addrs.ipv6, Some(ipv6));
    assert!(peer.dial.remotes.is_empty());
    assert_eq!(options.warnings.len(), 2, "cipher none: {:?}", options.warnings);
}

#[test]
fn tls_without_a_server_is_between_two_points() {
    let options = parse_file(&format!("{TLS}tls-server\ndh none\nkeepalive 10 60\n")).unwrap();
    assert_eq!(peer(&options).keys, PeerKeys::TlsServer);
    assert_eq!(
        options.session.keepalive.timeout,
        Duration::from_secs(60),
        "not doubled as on a server"
    );
    let options = parse_file(&format!("{TLS}tls-client\nremote 192.0.2.1\nnobind\n")).unwrap();
    assert_eq!(peer(&options).keys, PeerKeys::TlsClient);
    assert!(options.socket.listen.is_empty());
}

#[test]
fn between_two_points_cipher_is_for_a_peer_that_does_not_negotiate() {
    let cbc = DataCipher::Block(Some(BlockCipher::Aes256Cbc));
    let parse = |text: &str| parse_file(&format!("{TLS}{text}")).unwrap().session.cipher_fallback;
    for end in ["tls-server\ndh none\n", "tls-client\nremote 192.0.2.1\n"] {
        assert_eq!(parse(end), None);
        assert_eq!(parse(&format!("{end}cipher AES-256-CBC\n")), Some(cbc));
        let other = format!("{end}cipher AES-256-CBC\ndata-ciphers-fallback AES-128-GCM\n");
        assert_eq!(parse(&other), Some(Cipher::Aes128Gcm.into()));
        // Ciphers that are too weak or not authenticated are not enabled. The ends may still agree on another one.
        assert_eq!(parse(&format!("{end}cipher BF-CBC\n")), None);
        assert_eq!(parse(&format!("{end}cipher AES-256-CBC\nauth none\n")), None);
    }
    // With pushed options, `cipher` is only announced to the peer.
    assert_eq!(parse("client\nremote 192.0.2.1\ncipher AES-256-CBC\n"), None);
}

#[test]
fn an_end_that_dials_may_go_through_a_proxy() {
    let socks = parse_file(&format!("{STATIC}secret k\nsocks-proxy 192.0.2.9\n")).unwrap();
    assert!(matches!(peer(&socks).dial.proxies.as_slice(), [Proxy::Socks(_)]));
    let text = format!("{TLS}tls-client\nremote a\nproto tcp-client\nhttp-proxy proxy 3128 auto\n");
    let http = parse_file(&format!("{text}remote-random-hostname\n")).unwrap();
    assert!(matches!(peer(&http).dial.proxies.as_slice(), [Proxy::Http(_)]));
    assert!(peer(&http).dial.random_hostname);
}

#[test]
fn what_belongs_elsewhere_is_refused_by_name() {
    let refused = |base: &str, text: &str, word: &str| {
        let error = parse_file(&format!("{base}{text}")).unwrap_err();
        assert!(error.to_string().contains(word), "{text}: {error}");
        assert!(!error.remedy.is_empty(), "{text}: {error}");
        let name = text.lines().last().unwrap_or_default().split(' ').next().unwrap_or_default();
        assert!(error.directive == name || name == "ifconfig", "{text}: {error}");
    };
    for (text, word) in [
        ("push \"route 10.2.0.0 255.255.0.0\"\n", "two points"),
        ("auth-user-pass\n", "two points"),
        ("client-to-client\n", "two points"),
        ("duplicate-cn\n", "two points"),
        ("ifconfig-pool 10.1.0.5 10.1.0.9\n", "two points"),
        ("client-config-dir ccd\n", "two points"),
        ("filter rules.nft\n", "two points"),
        ("port-share 192.0.2.9 443\n", "two points"),
        ("pull-filter ignore \"route\"\n", "two points"),
    ] {
        refused(&format!("{TLS}tls-server\n"), text, word);
        refused(&format!("{STATIC}secret k\n"), text, word);
    }
    refused(&format!("{TLS}tls-server\n"), "socks-proxy 192.0.2.9\n", "waits");
    let listens = format!("{TLS}tls-server\nremote 192.0.2.1\nproto tcp-server\n");
    refused(&listens, "http-proxy proxy 3128\n", "waits");
    refused(&format!("{STATIC}secret k\n"), "http-proxy proxy 3128\n", "UDP");
    refused(&format!("{TLS}tls-client\nremote a\n"), "tls-server\n", "tls-client");
    refused(&format!("{TLS}tls-server\n"), "nobind\n", "without remote");
    refused(&format!("{STATIC}secret k\n"), "tls-client\n", "without TLS");
    refused(&format!("{STATIC}secret k\n"), "client\n", "static key");
    refused(&format!("{STATIC}secret k\n"), "pull\n", "static key");
    refused(&format!("{STATIC}secret k\n"), "server 10.8.0.0 255.255.255.0\n", "static key");
    for text in [
        "ca ca\n",
        "tls-auth ta.key 1\n",
        "tls-crypt tc.key\n",
        "reneg-sec 60\n",
        "replay-persist f\n",
    ] {
        refused(&format!("{STATIC}secret k\n"), text, "without TLS");
    }
    refused("dev tun\nremote a\nifconfig 10.1.0.1 10.1.0.2\n", "secret k\n", "BF-CBC");
    refused("dev tun\nremote a\nsecret k\n", "cipher AES-256-GCM\n", "static key");
    refused(&format!("{STATIC}secret k\n"), "auth WHIRLPOOL\n", "WHIRLPOOL");
    refused(&format!("{STATIC}secret k\n"), "auth none\n", "pass for the peer");
    refused(&format!("{STATIC}secret k\n"), "ifconfig 10.1.0.1 255.255.255.0\n", "netmask");
    refused(&format!("{STATIC}secret k\n"), "ifconfig 10.1.0.1 10.1.0.1\n", "same address");
    let subnet = format!("{STATIC}secret k\ntopology subnet\n");
    refused(&subnet, "ifconfig 10.1.0.1 10.1.0.2\n", "netmask");
}

#[test]
fn a_server_stays_a_server_and_a_client_a_client() {
    assert!(matches!(server("").role, Role::Server(_)));
    assert!(matches!(client("").role, Role::Client(_)));
    let text = format!("{TLS}tls-client\npull\nremote 192.0.2.1\n");
    assert!(matches!(parse_file(&text).unwrap().role, Role::Client(_)));
    let neither = parse_file("dev tun\nifconfig 10.1.0.1 10.1.0.2\n").unwrap_err();
    assert!(neither.remedy.contains("secret FILE"), "{neither}");
}

#[test]
fn over_tcp_one_end_listens_and_the_other_dials() {
    let base = STATIC.replace("remote 192.0.2.1\n", "secret k\n");
    let options = parse_file(&format!("{base}proto tcp-server\nport 4000\n")).unwrap();
    let end = peer(&options);
    assert_eq!((end.accepts.as_deref(), end.dial.remotes.len()), (Some(&[][..]), 0));
    let listen = &options.socket.listen[0];
    assert_eq!((listen.transport, listen.port), (Transport::Tcp, 4000));

    let text = format!("{base}proto tcp6-server\nremote fd00::7\nremote 192.0.2.1 4000\n");
    let options = parse_file(&text).unwrap();
    let from = ["fd00::7".parse().unwrap(), "192.0.2.1".parse().unwrap()];
    assert_eq!(peer(&options).accepts.as_deref(), Some(&from[..]));

    let options = parse_file(&format!("{STATIC}secret k\nproto tcp-client\n")).unwrap();
    let end = peer(&options);
    assert_eq!((end.accepts.as_deref(), end.dial.remotes[0].transport), (None, Transport::Tcp));
    let both = format!("{base}remote a 1194 udp\nremote a 443 tcp4-client\n");
    let options = parse_file(&both).unwrap();
    assert_eq!(peer(&options).dial.remotes[1].transport, Transport::Tcp);
}

#[test]
fn an_end_that_does_not_fit_tcp_is_refused_by_name() {
    let base = STATIC.replace("remote 192.0.2.1\n", "secret k\n");
    for (text, name, word) in [
        ("proto tcp\nremote a\n", "proto", "does not say which"),
        ("proto tcp\n", "proto", "does not say which"),
        ("remote a 1194 tcp\n", "remote", "does not say which"),
        ("proto tcp-client\n", "proto", "no remote to dial"),
        ("proto tcp-server\nremote 192.0.2.1\nnobind\n", "nobind", "found at its port"),
        ("proto tcp-server\nremote peer.example\n", "remote", "no address"),
        ("proto tcp-server\nremote 192.0.2.1 1194 tcp-client\n", "proto", "only listens"),
        ("proto tcp-server\nremote 192.0.2.1 1194 udp\n", "proto", "only listens"),
        ("proto tcp-server\nfragment 1200\n", "fragment", "UDP"),
    ] {
        let error = parse_file(&format!("{base}{text}")).unwrap_err();
        assert_eq!(error.directive, name, "{text}: {error}");
        assert!(error.to_string().contains(word) && !error.remedy.is_empty(), "{text}: {error}");
    }
    let told = parse_file(&format!("{base}proto tcp-server\nexplicit-exit-notify\n")).unwrap();
    assert!(told.warnings.iter().any(|w| w.contains("notice enough")), "{:?}", told.warnings);
}

#[test]
fn with_a_tap_device_ifconfig_names_a_network() {
    let base = STATIC.replace("dev tun", "dev tap").replace("ifconfig 10.1.0.1 10.1.0.2\n", "");
    let text = format!("{base}secret k\nifconfig 10.1.0.1 255.255.255.0\n");
    let net = Ifconfig4::Net("10.1.0.1/24".parse().unwrap());
    assert_eq!(peer(&parse_file(&text).unwrap()).tunnel_addrs.ipv4, Some(net));
    let error = parse_file(&format!("{base}secret k\nifconfig 10.1.0.1 10.1.0.2\n")).unwrap_err();
    assert!(error.to_string().contains("dev tap"), "{error}");
    assert!(!error.remedy.contains("topology"), "{error}");
}
