//! Directives that mean the same as others, whose effects other tests show.

use super::*;

const PLAIN_SERVER: &str = "dev tun\nca a\ncert b\nkey c\ndh none\n";
const SECRET: &str = "dev tun\nsecret k\ncipher AES-256-CBC\nifconfig 10.1.0.1 10.1.0.2\n";

/// Returns everything that a configuration sets, without the lines themselves and the warnings about them.
fn meaning(text: &str) -> String {
    let options = parse_file(text).unwrap_or_else(|error| panic!("{text}: {error}"));
    format!("{:#?}", Options { warnings: Vec::new(), directives: Vec::new(), ..options })
}

#[test]
fn older_and_shorter_forms_mean_the_same() {
    let checked = format!("{SERVER}script-security 2\nauth-user-pass-verify /bin/check via-file\n");
    let net = "server 10.8.0.0 255.255.255.0\n";
    for (base, one, other) in [
        (CLIENT, "ecdh-curve prime256v1:X25519", "tls-groups prime256v1:X25519"),
        (CLIENT, "udp-mtu 1500", "link-mtu 1500"),
        (CLIENT, "max-packet-size 1000", "mssfix 1000 mtu"),
        (CLIENT, "remote-cert-eku serverAuth", "remote-cert-tls server"),
        (CLIENT, "tls-auth ta.key\nkey-direction 1", "tls-auth ta.key 1"),
        (SECRET, "secret k\nkey-direction 0", "secret k 0"),
        (&checked, "client-cert-not-required", "verify-client-cert none"),
        (SERVER, "tcp-nodelay", "push \"socket-flags TCP_NODELAY\""),
        (PLAIN_SERVER, &format!("{net}ifconfig-pool-linear"), &format!("{net}topology p2p")),
        (
            "dev tun\nremote a\nca a\ncert b\nkey c\nremote-cert-tls server\n",
            "client",
            "pull\ntls-client",
        ),
    ] {
        let [one, other] = [one, other].map(|lines| meaning(&format!("{base}{lines}\n")));
        assert_eq!(one, other);
    }
}

/// `mode server` with the lines that `server` replaces.
#[test]
fn the_helper_of_servers_stands_for_single_lines() {
    let whole = "mode server\ntls-server\ntopology subnet\nifconfig 10.8.0.1 255.255.255.0\n\
                 ifconfig-pool 10.8.0.2 10.8.0.254\n";
    let options = parse_file(&format!("{PLAIN_SERVER}{whole}")).unwrap();
    let short = server("");
    assert_eq!(as_server(&options).network4, as_server(&short).network4);
    assert_eq!(as_server(&options).push, as_server(&short).push);
    assert!(parse_file(&format!("{PLAIN_SERVER}{}", whole.replace("mode server\n", ""))).is_err());
}

/// `compat-mode` means what these lines say.
#[test]
fn an_older_version_offers_its_cipher() {
    let cbc = "cipher AES-256-CBC\n";
    let (compatible, named) = (
        client(&format!("compat-mode 2.3\n{cbc}")),
        client(&format!(
            "{cbc}data-ciphers DEFAULT:AES-256-CBC\ndata-ciphers-fallback AES-256-CBC\n"
        )),
    );
    assert_eq!(compatible.session.ciphers, named.session.ciphers);
    assert_eq!(compatible.session.cipher_fallback, named.session.cipher_fallback);
}

/// Lines that ask for what is always done change nothing.
#[test]
fn what_is_always_done_may_be_asked_for() {
    let secret = "allow-deprecated-insecure-static-crypto";
    for (base, line) in [
        (SECRET, secret),
        (SECRET, "ifconfig-nowarn"),
        (SECRET, "ping-timer-rem"),
        (SECRET, "mute-replay-warnings"),
        (SECRET, "persist-local-ip"),
        (SECRET, "tun-mtu-extra 32"),
        (SECRET, "dev-node /dev/net/tun"),
        (CLIENT, "socket-flags TCP_NODELAY"),
    ] {
        let with = format!("{base}{line}\n");
        assert_eq!(meaning(&with), meaning(base), "{line}");
        assert_eq!(
            parse_file(&with).unwrap().warnings,
            parse_file(base).unwrap().warnings,
            "{line}"
        );
    }
}
