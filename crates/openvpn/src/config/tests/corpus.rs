//! Configurations in the style of providers, installers, appliances and panels. The tables say which of them start,
//! which cause which warnings, and which are refused and why. Names, addresses and keys are our own.

use super::*;

/// The outcome for a configuration.
enum Outcome {
    /// The program starts, with one warning about each of these directives, in this order, and no others.
    Starts(&'static [&'static str]),
    /// The configuration is refused because of this directive, with this word in the reason or the remedy.
    Refused(&'static str, &'static str),
}

use Outcome::{Refused, Starts};

/// Returns the directive that a warning concerns, which is the first word after the location or, without a location, of
/// the text.
fn about(warning: &str) -> &str {
    let text = warning
        .strip_prefix("x.conf:")
        .map_or(warning, |rest| rest.split_once(": ").map_or(rest, |(_, text)| text));
    text.split([' ', ':']).next().unwrap_or(text)
}

fn check(kind: &str, base: &str, rows: &[(&str, &str, Outcome)]) {
    let mut wrong = Vec::new();
    for (name, lines, outcome) in rows {
        // A bar separates lines, so that each row stays readable.
        let text = format!("{base}\n{}\n", lines.replace(" | ", "\n"));
        let found = match (parse_file(&text), outcome) {
            (Ok(options), Starts(warnings)) => {
                let found: Vec<&str> = options.warnings.iter().map(|text| about(text)).collect();
                if found == *warnings {
                    continue;
                }
                format!("warns of {found:?}: {:#?}", options.warnings)
            }
            (Err(error), Refused(directive, word)) => {
                if error.directive == *directive && error.to_string().contains(word) {
                    continue;
                }
                format!("is refused otherwise: {error}")
            }
            (Ok(options), Refused(..)) => format!("starts, with {:?}", options.warnings),
            (Err(error), Starts(_)) => format!("is refused: {error}"),
        };
        wrong.push(format!("{kind} \"{name}\" {found}"));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// The lines that nearly every provider's profile contains. Each row adds more lines.
const PROFILE: &str = "client\ndev tun\nremote 203.0.113.7 1194\nresolv-retry infinite\nnobind\npersist-key\n\
                       persist-tun\nremote-cert-tls server\n<ca>\nCA\n</ca>";
/// The same lines without a check of the server's certificate.
const BARE: &str = "client\ndev tun\nremote vpn.example 1194\nnobind\n<ca>\nCA\n</ca>";

#[test]
fn client_profiles() {
    #[rustfmt::skip]
    check("profile", PROFILE, &[
        ("password, MTU as one large provider writes it", "proto udp | tun-mtu 1500 | tun-mtu-extra 32 | mssfix 1450 | reneg-sec 0 | auth-user-pass | cipher AES-256-CBC | auth SHA512 | ping 15 | ping-restart 0 | ping-timer-rem | comp-lzo no | verify-x509-name CN=s1.example | remote-random | pull | fast-io | key-direction 1 | <tls-auth> | K | </tls-auth>",
            Starts(&["fast-io", "cipher"])),
        ("the same over TCP", "proto tcp | tun-mtu-extra 32 | auth-user-pass | cipher AES-256-GCM",
            Starts(&[])),
        ("Windows and Linux from one generator", "auth-user-pass | route-method exe | route-delay 2 | block-outside-dns | register-dns | dhcp-renew | dhcp-release | ip-win32 dynamic | tap-sleep 1 | show-net-up | win-sys env | service done | pause-exit",
            Starts(&["route-method", "block-outside-dns", "register-dns", "dhcp-renew", "dhcp-release", "ip-win32", "tap-sleep", "show-net-up", "win-sys", "service", "pause-exit"])),
        ("Windows lines marked optional", "auth-user-pass | setenv opt block-outside-dns | setenv opt windows-driver wintun",
            Starts(&["block-outside-dns", "windows-driver"])),
        ("an adapter's name of Windows", "auth-user-pass | dev-node MyTap", Starts(&["dev-node"])),
        ("mobile generator", "auth-user-pass | setenv CLIENT_CERT 0 | setenv FORWARD_COMPATIBLE 1 | setenv PUSH_PEER_INFO | setenv UV_PLATFORM any | server-poll-timeout 4 | ignore-unknown-option block-ipv4 | block-ipv4",
            Starts(&["block-ipv4"])),
        ("unknown line after the mark for newer versions", "auth-user-pass | setenv FORWARD_COMPATIBLE 1 | something-of-2-9 x",
            Starts(&["something-of-2-9"])),
        ("unknown line without it", "auth-user-pass | something-of-2-9 x", Refused("something-of-2-9", "unknown directive")),
        ("many routes allowed", "auth-user-pass | max-routes 500", Starts(&["max-routes"])),
        ("a client-side script without its hook", "auth-user-pass | script-security 2 | down-pre | up-restart", Starts(&[])),
        ("DNS by script", "auth-user-pass | script-security 2 | up /etc/openvpn/update-resolv-conf | down /etc/openvpn/update-resolv-conf", Starts(&[])),
        ("old TLS list, unknown suites", "auth-user-pass | tls-cipher TLS-DHE-RSA-WITH-AES-256-CBC-SHA:TLS-RSA-WITH-AES-128-CBC-SHA", Starts(&[])),
        ("old TLS version", "auth-user-pass | tls-version-min 1.0", Starts(&["tls-version-min"])),
        ("negotiation with one name that does not exist here", "auth-user-pass | ncp-ciphers AES-256-GCM:AES-256-CBC:BF-CBC | cipher AES-256-CBC", Starts(&["data-ciphers"])),
        ("negotiation with no name that exists here", "auth-user-pass | data-ciphers BF-CBC:DES-EDE3-CBC", Refused("data-ciphers", "SWEET32")),
        ("no negotiation", "auth-user-pass | ncp-disable | cipher AES-128-CBC | auth SHA1", Starts(&["ncp-disable", "cipher"])),
        ("Blowfish by name", "auth-user-pass | cipher BF-CBC | keysize 128", Starts(&["keysize", "cipher"])),
        ("a cipher that does not exist", "auth-user-pass | cipher AES-257-CBC", Starts(&["cipher"])),
        ("cipher and fallback", "auth-user-pass | cipher AES-256-CBC | data-ciphers-fallback AES-256-CBC", Starts(&[])),
        ("for servers of 2.3", "auth-user-pass | compat-mode 2.3.18 | cipher AES-256-CBC", Starts(&["compat-mode"])),
        ("for servers of 2.4", "auth-user-pass | compat-mode 2.4.0 | cipher AES-256-CBC", Starts(&["compat-mode"])),
        ("compression of old servers", "auth-user-pass | comp-lzo", Starts(&["comp-lzo"])),
        ("compression, new word", "auth-user-pass | compress lz4-v2 | allow-compression yes", Starts(&["compress", "allow-compression"])),
        ("framing alone", "auth-user-pass | compress | comp-noadapt", Starts(&["comp-noadapt"])),
        ("compression that does not exist", "auth-user-pass | compress zstd", Refused("compress", "zstd")),
        ("providers of OpenSSL", "auth-user-pass | providers legacy default", Starts(&["providers"])),
        ("a provider of a token", "auth-user-pass | providers pkcs11", Refused("providers", "cert and key")),
        ("link sizes of old versions", "auth-user-pass | link-mtu 1400", Starts(&["link-mtu"])),
        ("packet sizes of 2.6", "auth-user-pass | max-packet-size 1250", Starts(&[])),
        ("smaller packets", "auth-user-pass | max-packet-size 1000", Starts(&["max-packet-size"])),
        ("both sizes", "auth-user-pass | tun-mtu 1500 | link-mtu 1500", Refused("link-mtu", "tun-mtu")),
        ("tokens left by an export", "auth-user-pass | auth-token-user YWxpY2U= | auth-token SESS_x", Starts(&["auth-token-user", "auth-token"])),
        ("replay words", "auth-user-pass | mute-replay-warnings | replay-window 512 | no-replay", Starts(&["no-replay"])),
        ("addresses kept", "auth-user-pass | persist-remote-ip | persist-local-ip", Starts(&[])),
        ("buffers", "auth-user-pass | sndbuf 393216 | rcvbuf 393216 | bcast-buffers 256 | txqueuelen 1000", Starts(&["bcast-buffers"])),
        ("random numbers", "auth-user-pass | prng SHA256 32 | use-prediction-resistance", Starts(&["prng", "use-prediction-resistance"])),
        ("router firmware", "auth-user-pass | route-noexec | ifconfig-nowarn | verb 4 | mute 3 | syslog | writepid /run/vpn.pid | float | tmp-dir /tmp", Starts(&[])),
        ("a line repeated warns once", "auth-user-pass | bcast-buffers 5 | bcast-buffers 5", Starts(&["bcast-buffers"])),
        ("two wrappings", "auth-user-pass | tls-crypt a.key | tls-crypt-v2 b.key", Refused("tls-crypt-v2", "another")),
        ("a server's limit of keys' ages", "auth-user-pass | tls-crypt-v2 b.key | tls-crypt-v2-max-age 90", Starts(&["tls-crypt-v2-max-age"])),
        ("a certificate in the profile", "<cert> | C | </cert> | <key> | K | </key> | <tls-crypt> | T | </tls-crypt> | tls-cert-profile preferred", Starts(&[])),
        ("weak certificates allowed", "auth-user-pass | tls-cert-profile insecure", Starts(&["tls-cert-profile"])),
        ("Suite B", "auth-user-pass | tls-cert-profile suiteb", Starts(&["tls-cert-profile"])),
        ("two servers in blocks", "auth-user-pass | <connection> | remote a.example 443 tcp | </connection> | <connection> | remote b.example 1194 udp | explicit-exit-notify 2 | </connection>", Starts(&["remote"])),
        ("a token with the key", "pkcs11-providers /usr/lib/x.so | pkcs11-id 'A\\x20B/C/1/D/0A' | pkcs11-pin-cache 300", Starts(&[])),
        ("a token by its URI", "pkcs11-id 'pkcs11:token=office;id=%01' | pkcs11-protected-authentication 1", Starts(&[])),
        ("a token with a name of its own", "pkcs11-providers /usr/lib/x.so | pkcs11-id x", Refused("pkcs11-id", "--show-pkcs11-ids")),
        ("a token for nothing", "auth-user-pass | pkcs11-providers /usr/lib/x.so", Starts(&["pkcs11-providers"])),
        ("a key file of PKCS#12", "pkcs12 me.p12", Starts(&[])),
        ("a second factor", "auth-user-pass | static-challenge \"Code\" 1", Starts(&[])),
        ("front end with management", "auth-user-pass | management-query-passwords", Refused("management-query-passwords", "management")),
        ("a directory to be confined to", "auth-user-pass | chroot /var/empty", Starts(&[])),
        ("a rate limit", "auth-user-pass | shaper 100000", Starts(&[])),
        ("a rate limit that stops everything", "auth-user-pass | shaper 10", Refused("shaper", "100 to")),
        ("a word forgotten", "auth-user-pass | keepalive 10", Refused("keepalive", "at least 2 arguments, and has 1")),
        ("echo for a front end", "auth-user-pass | echo hello there", Starts(&[])),
        ("nothing to prove who this is", "", Refused("", "cert and key, or auth-user-pass")),
    ]);
    #[rustfmt::skip]
    check("profile", BARE, &[
        ("checked by the Netscape type", "auth-user-pass | ns-cert-type server", Starts(&["ns-cert-type"])),
        ("checked by nothing", "auth-user-pass", Starts(&["WARNING"])),
        ("checked by an old name", "auth-user-pass | tls-remote server", Refused("tls-remote", "verify-x509-name")),
        ("checked by name alone", "auth-user-pass | verify-x509-name server name", Starts(&[])),
    ]);
}

/// The lines that an installer from around 2020 writes. Each row adds more lines.
const INSTALLED: &str = "port 1194\nproto udp\ndev tun\nca ca.crt\ncert server.crt\nkey server.key\ntopology subnet\n\
                         server 10.8.0.0 255.255.255.0\nkeepalive 10 120\nuser nobody\ngroup nogroup\n\
                         persist-key\npersist-tun\nverb 3";

#[test]
fn server_files() {
    #[rustfmt::skip]
    check("server", INSTALLED, &[
        ("installer without DH", "dh none | ecdh-curve prime256v1 | tls-crypt tls-crypt.key | crl-verify crl.pem | auth SHA256 | cipher AES-128-GCM | ncp-ciphers AES-128-GCM | tls-server | tls-version-min 1.2 | status /var/log/openvpn/status.log | push \"dhcp-option DNS 9.9.9.9\" | push \"redirect-gateway def1 bypass-dhcp\"", Starts(&[])),
        ("installer with DH", "dh dh.pem | tls-auth ta.key 0 | cipher AES-256-CBC | explicit-exit-notify | ifconfig-pool-persist ipp.txt", Starts(&["dh", "cipher"])),
        ("compression pushed", "dh none | comp-lzo | push \"comp-lzo yes\"", Starts(&["comp-lzo", "push"])),
        ("compression pushed alone", "dh none | push \"compress lz4-v2\"", Starts(&["push"])),
        ("an IPv6 address for all", "dh none | server-ipv6 fd42:42:42:42::/112 | tun-ipv6 | push tun-ipv6 | push \"ifconfig-ipv6 fd42:42:42:42::2/64 fd42:42:42:42::1\" | push \"route-ipv6 2000::/3\" | push \"redirect-gateway ipv6\"", Starts(&["tun-ipv6", "push"])),
        ("the same without a network", "dh none | push \"ifconfig-ipv6 fddd::2/64 fddd::1\"", Starts(&[])),
        ("an IPv4 address for all", "dh none | push \"ifconfig 10.8.0.9 255.255.255.0\"", Starts(&["push"])),
        ("a fragment size for all", "dh none | push \"fragment 1300\"", Starts(&["push"])),
        ("another topology for all", "dh none | push \"topology net30\"", Starts(&["push"])),
        ("its own topology for all", "dh none | push \"topology subnet\"", Starts(&[])),
        ("a cipher for all", "dh none | push \"cipher AES-256-CBC\"", Starts(&["push"])),
        ("a peer id for all", "dh none | push \"peer-id 4\"", Starts(&["push"])),
        ("tables and buffers", "dh none | hash-size 1024 1024 | bcast-buffers 4096 | tcp-queue-limit 256 | max-routes-per-client 64 | connect-freq 10 60 | script-security 3", Starts(&["hash-size", "bcast-buffers"])),
        ("a directive of 2.3", "dh none | ifconfig-pool-linear", Starts(&["ifconfig-pool-linear"])),
        ("options compared", "dh none | opt-verify | disable-occ", Starts(&["disable-occ", "opt-verify"])),
        ("no kernel offload", "dh none | disable-dco | fast-io | no-name-remapping", Starts(&["fast-io", "no-name-remapping"])),
        ("password by script", "dh none | script-security 3 | auth-user-pass-verify /etc/openvpn/check.sh via-env | verify-client-cert none | username-as-common-name", Starts(&[])),
        ("password by script, in an unknown way", "dh none | auth-user-pass-verify /etc/openvpn/check.sh via-pipe", Refused("auth-user-pass-verify", "via-file")),
        ("password by plugin", "dh none | plugin /usr/lib/openvpn/openvpn-plugin-auth-pam.so login", Starts(&[])),
        ("no client certificates", "dh none | client-cert-not-required", Refused("client-cert-not-required", "certificate")),
        ("firewall by script", "dh none | script-security 2 | client-connect /etc/openvpn/up.sh | client-disconnect '/etc/openvpn/down.sh -v' | learn-address /etc/openvpn/learn.sh", Starts(&[])),
        ("panel with management", "dh none | management 127.0.0.1 7505", Starts(&[])),
        ("controller with management", "dh none | management /run/ovpn.sock unix | management-client-auth", Starts(&[])),
        ("a controller that is missing", "dh none | management-client-auth", Refused("management-client-auth", "no management interface")),
        ("site to site", "dh none | client-config-dir ccd | route 192.168.9.0 255.255.255.0 | push \"route 192.168.1.0 255.255.255.0\" | client-to-client", Starts(&[])),
        ("a client's line in the server's file", "dh none | iroute 192.168.9.0 255.255.255.0", Refused("iroute", "client-config-dir")),
        ("both protocols by lines of 2.7", "dh none | local * 443 tcp | local * 1194 udp", Starts(&[])),
        ("duplicates and addresses", "dh none | duplicate-cn | ifconfig-pool-persist ipp.txt", Starts(&["ifconfig-pool-persist"])),
        ("a table of routes of 2.7", "dh none | route-table 5", Starts(&[])),
        ("VLANs", "dh none | dev tap | vlan-tagging | vlan-accept tagged", Starts(&[])),
        ("VLANs without frames", "dh none | vlan-tagging", Refused("vlan-tagging", "dev tap")),
        ("a directory of revoked serial numbers", "dh none | crl-verify /etc/crls dir", Starts(&[])),
        ("all tls-crypt-v2", "dh none | tls-crypt-v2 server-v2.key force-cookie", Starts(&[])),
        ("own keys and a shared one", "dh none | tls-crypt a.key | tls-crypt-v2 b.key", Starts(&[])),
        ("own keys and an older shared one", "dh none | tls-crypt-v2 b.key | tls-auth a.key 0", Starts(&[])),
        ("a key direction where none belongs", "dh none | tls-crypt a.key 0", Starts(&["tls-crypt"])),
        ("two shared keys", "dh none | tls-auth a.key 0 | tls-crypt b.key", Refused("tls-crypt", "another")),
        ("own keys that expire", "dh none | tls-crypt-v2 b.key | tls-crypt-v2-max-age 90", Starts(&[])),
        ("keys that expire and are not there", "dh none | tls-crypt a.key | tls-crypt-v2-max-age 90", Starts(&["tls-crypt-v2-max-age"])),
        ("keys that expire at once", "dh none | tls-crypt-v2 b.key | tls-crypt-v2-max-age 0", Refused("tls-crypt-v2-max-age", "1 to")),
        ("a client's directive that is ignored", "dh none | pull-filter ignore route", Starts(&["pull-filter"])),
        ("a client's directive that is refused", "dh none | redirect-gateway def1", Refused("redirect-gateway", "push")),
        ("no pool", "dh none | server 10.8.0.0 255.255.255.0 nopool | client-config-dir ccd", Starts(&["there"])),
        ("no pool and no files", "dh none | server 10.8.0.0 255.255.255.0 nopool", Starts(&["there"])),
        ("a pool of its own", "dh none | server 10.8.0.0 255.255.255.0 nopool | ifconfig-pool 10.8.0.10 10.8.0.20", Starts(&[])),
        ("a pool twice", "dh none | ifconfig-pool 10.8.0.10 10.8.0.20", Refused("ifconfig-pool", "nopool")),
        ("certificates tracked", "dh none | x509-track +CN", Starts(&[])),
        ("statistics by memory", "dh none | memstats /run/stats", Starts(&["memstats"])),
        ("a server of a mesh", "dh none | remote-cert-tls client | verify-client-cert require", Starts(&[])),
    ]);
}

#[test]
fn files_of_single_clients() {
    let rules = as_server(&parse_file(&format!("{INSTALLED}\ndh none\n")).unwrap()).client_rules;
    let rows = [
        (
            "addresses and networks",
            "ifconfig-push 10.8.0.9 255.255.255.0 | iroute 192.168.9.0 255.255.255.0",
            Starts(&[]),
        ),
        ("its own topology", "push \"topology subnet\"", Starts(&[])),
        ("another topology", "push \"topology net30\"", Starts(&["push"])),
        ("an address pushed", "push \"ifconfig 10.8.0.9 255.255.255.0\"", Starts(&["push"])),
        ("an IPv6 address pushed", "push \"ifconfig-ipv6 fddd::2/64 fddd::1\"", Starts(&[])),
        ("a fragment size pushed", "push \"fragment 1300\"", Starts(&["push"])),
        (
            "what is negotiated",
            "push \"cipher AES-256-CBC\" | push \"peer-id 4\"",
            Starts(&["push", "push"]),
        ),
        ("a token pushed", "push \"auth-token x\"", Starts(&[])),
        ("a token with a comma", "push \"auth-token x,y\"", Refused("push", "comma")),
        ("compression pushed", "push \"compress lz4-v2\"", Starts(&["push"])),
        (
            "a comma",
            "push \"ifconfig 10.8.0.9 255.255.255.0,route 10.0.0.0\"",
            Refused("push", "comma"),
        ),
        (
            "a directive without effect",
            "tun-ipv6 | bcast-buffers 1024",
            Starts(&["tun-ipv6", "bcast-buffers"]),
        ),
        ("a directive of the server's", "verb 4", Refused("verb", "no place")),
        ("a directive that is refused anywhere", "plugin x.so", Refused("plugin", "no place")),
        ("unknown", "something-of-2-9", Refused("something-of-2-9", "no place")),
    ];
    for (name, lines, outcome) in rows {
        let text = lines.replace(" | ", "\n");
        match (ClientFile::parse("x.conf", text.as_bytes(), &rules), outcome) {
            (Ok(file), Starts(warnings)) => {
                let found: Vec<&str> = file.grant.warnings.iter().map(|text| about(text)).collect();
                assert_eq!(found, warnings, "{name}: {:?}", file.grant.warnings);
            }
            (Err(error), Refused(directive, word)) => {
                assert_eq!(error.directive, directive, "{name}");
                assert!(error.to_string().contains(word), "{name}: {error}");
            }
            (result, _) => panic!("{name}: {result:?}"),
        }
    }
    let many = "push \"peer-id 4\"\n".repeat(100);
    let file = ClientFile::parse("x.conf", many.as_bytes(), &rules).unwrap();
    assert!(file.grant.push.is_empty() && file.grant.warnings.len() < 10);
}

/// Options pushed by a server's file and by a client's file are evaluated by the same rules, so a line can be moved
/// from one to the other.
#[test]
fn pushed_options_are_judged_alike_in_both_files() {
    for lines in ["", "server-ipv6 fd00::/64\n", "compress\n", "comp-lzo no\n"] {
        let base = format!("{INSTALLED}\ndh none\n{lines}");
        let rules = as_server(&parse_file(&base).unwrap()).client_rules;
        let usual = as_server(&parse_file(&base).unwrap()).push.len();
        for option in [
            "route 10.1.0.0 255.255.0.0",
            "ifconfig 10.8.0.9 255.255.255.0",
            "ifconfig-ipv6 fd00::9/64",
            "topology subnet",
            "topology net30",
            "fragment 1300",
            "cipher AES-256-GCM",
            "peer-id 4",
            "key-derivation tls-ekm",
            "protocol-flags cc-exit",
            "push-continuation 1",
            "comp-lzo",
            "comp-lzo no",
            "comp-lzo yes",
            "compress",
            "compress stub-v2",
            "compress lz4",
            "dhcp-option DNS 9.9.9.9",
            "a,b",
            "something-of-2-9 x",
        ] {
            let line = format!("push \"{option}\"\n");
            let own = ClientFile::parse("x.conf", line.as_bytes(), &rules);
            match (parse_file(&format!("{base}{line}")), own) {
                (Ok(all), Ok(own)) => {
                    let pushed = as_server(&all).push.len() - usual;
                    assert_eq!(pushed, own.grant.push.len(), "{lines}{option}");
                    let warned = all.warnings.iter().any(|text| text.contains(option));
                    assert_eq!(warned, !own.grant.warnings.is_empty(), "{lines}{option}");
                }
                (Err(all), Err(own)) => assert_eq!(all.problem, own.problem, "{lines}{option}"),
                (all, own) => panic!("{lines}{option}: {:?}, {own:?}", all.map(|o| o.warnings)),
            }
        }
    }
}

#[test]
fn directives_of_older_versions_take_effect() {
    let link = |lines: &str| parse_file(&format!("{PROFILE}\nauth-user-pass\n{lines}")).unwrap();
    // openvpn 2.6.14 prints these values with `verb 4`.
    for (lines, tun_mtu) in [
        ("link-mtu 1500\n", 1475),
        ("udp-mtu 1500\n", 1475),
        ("link-mtu 1500\ncipher AES-256-GCM\n", 1451),
        ("link-mtu 1500\ncipher AES-256-CBC\n", 1447),
        ("link-mtu 1500\ncipher AES-256-CBC\nauth SHA256\n", 1435),
        ("link-mtu 1500\nauth SHA512\nproto tcp-client\n", 1429),
        ("link-mtu 1500\ncomp-lzo\n", 1475),
    ] {
        assert_eq!(link(lines).session.tun_mtu, tun_mtu, "{lines}");
    }
    let sized = link("max-packet-size 1000\n").session.mssfix.unwrap();
    assert_eq!((sized.size, sized.outer), (1000, true));
    assert_eq!(link("ns-cert-type server\n").tls.netscape_usage, Some(Usage::Server));
    let cbc = DataCipher::Block(Some(BlockCipher::Aes256Cbc));
    let old = link("compat-mode 2.4.3\ncipher AES-256-CBC\n");
    assert!(old.session.ciphers.contains(&cbc) && old.session.cipher_fallback.is_none());
    let older = link("compat-mode 2.3\ncipher AES-256-CBC\n");
    assert!(older.session.ciphers.contains(&cbc) && older.session.cipher_fallback == Some(cbc));
    assert!(!link("compat-mode 2.5.0\ncipher AES-256-CBC\n").session.ciphers.contains(&cbc));
    assert_eq!(link("echo a b\n").echo, ["a b"]);
    assert!(!link("comp-lzo\nallow-compression no\n").session.decompress);
    assert!(link("comp-lzo\n").session.decompress);
    assert_eq!(link("").tls.profile, CertProfile::Legacy);
    assert_eq!(link("tls-cert-profile preferred\n").tls.profile, CertProfile::Preferred);
    let linear = parse_file(&format!(
        "{}\nifconfig-pool-linear\n",
        INSTALLED.replace("topology subnet\n", "")
    ));
    assert_eq!(as_server(&linear.unwrap()).network4.as_ref().unwrap().topology, Topology::P2p);
}

#[test]
fn the_log_is_known_where_the_rest_is_refused() {
    let target = |text: &str| log_target(&args("--config x.conf"), &files(&[("x.conf", text)]));
    assert_eq!(target("log /var/log/a\nnonsense\n"), Some(LogTo::File("/var/log/a".into())));
    assert_eq!(target("cd /x\nlog-append a\npush \"\n"), Some(LogTo::Append("/x/a".into())));
    assert_eq!(target("daemon vpn\nnonsense\n"), Some(LogTo::Syslog("vpn".into())));
    assert_eq!(target("nonsense\n"), None);
    let line = args("--log b --config none");
    assert_eq!(log_target(&line, &files(&[])), Some(LogTo::File("b".into())));
}

#[test]
fn directives_are_shown_without_secrets() {
    let text = format!("{PROFILE}\nauth-user-pass\nauth-token abc\nsetenv UV_PIN 1234\n");
    let shown = parse_file(&text).unwrap().directives;
    assert!(shown.contains(&"x.conf:3: remote 203.0.113.7 1194".to_owned()), "{shown:?}");
    assert!(shown.contains(&"x.conf:9: ca [inline]".to_owned()), "{shown:?}");
    let all = shown.join("\n");
    assert!(
        !all.contains("abc") && !all.contains("1234") && all.contains("setenv UV_PIN"),
        "{all}"
    );
}

/// The files that `adit-interop run server-files` starts.
#[test]
fn server_files_of_all_kinds_parse_or_are_refused_by_name() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testing/interop/servers");
    let (mut parsed, mut refused) = (0_usize, Vec::new());
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap().replace("@DIR@", "/etc/openvpn");
        match parse_file(&text) {
            Ok(options) => {
                assert!(matches!(options.role, Role::Server(_)), "{}", path.display());
                parsed += 1;
            }
            Err(error) => {
                let row = directives::find(&error.directive);
                let by_name =
                    row.is_some_and(|row| matches!(row.support, directives::Support::Refused(..)));
                assert!(by_name, "{error}");
                refused.push(error.directive);
            }
        }
    }
    assert!(parsed + refused.len() >= 80 && parsed >= 40, "{parsed}, and not {refused:?}");
}
