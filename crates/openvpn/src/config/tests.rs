mod certificates;
mod corpus;
mod equivalents;
mod hooks;
mod host;
mod limits;
mod logins;
mod management;
mod pkcs11;
mod server_hooks;
mod transport;

use std::collections::HashMap;
mod peer;

use std::io;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use adit_crypto::{BlockCipher, Cipher};
use adit_engine::{Family, VlanAccept, VlanId, Vlans};
use proptest::prelude::*;

use super::*;
use crate::data_format::Framing;
use crate::negotiate::DataCipher;
use crate::negotiate::{Destination, FilterAction, Via};
use crate::server::Topology;
use crate::tls::CertProfile;

/// Files by name.
#[derive(Default)]
struct Memory(HashMap<PathBuf, Vec<u8>>);

impl Files for Memory {
    fn read(&self, path: &Path) -> io::Result<Vec<u8>> {
        self.0.get(path).cloned().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

fn files(list: &[(&str, &str)]) -> Memory {
    Memory(list.iter().map(|(name, text)| (name.into(), text.as_bytes().to_vec())).collect())
}

fn args(line: &str) -> Vec<String> {
    line.split_whitespace().map(str::to_owned).collect()
}

fn parse_file(text: &str) -> Result<Options, ConfigError> {
    parse(&args("x.conf"), &files(&[("x.conf", text)]))
}

const CLIENT: &str = "client\ndev tun\nremote vpn.example.org 1194\nca ca.crt\ncert c.crt\nkey c.key\n\
                      remote-cert-tls server\n";
const SERVER: &str = "dev tun\nserver 10.8.0.0 255.255.255.0\ntopology subnet\nca ca.crt\ncert s.crt\n\
                      key s.key\ndh none\n";

fn client(more: &str) -> Options {
    parse_file(&format!("{CLIENT}{more}")).unwrap()
}

fn server(more: &str) -> Options {
    parse_file(&format!("{SERVER}{more}")).unwrap()
}

fn client_error(more: &str) -> ConfigError {
    parse_file(&format!("{CLIENT}{more}")).unwrap_err()
}

fn server_error(more: &str) -> ConfigError {
    parse_file(&format!("{SERVER}{more}")).unwrap_err()
}

fn as_client(options: &Options) -> &ClientOptions {
    match &options.role {
        Role::Client(client) => client,
        other => panic!("{other:?}"),
    }
}

fn as_server(options: &Options) -> &ServerOptions {
    match &options.role {
        Role::Server(server) => server,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_small_client_gets_the_defaults_of_openvpn() {
    let options = client("");
    assert_eq!(
        options.session.ciphers,
        [Cipher::Aes256Gcm, Cipher::Aes128Gcm, Cipher::ChaCha20Poly1305]
    );
    assert_eq!(
        (options.session.auth.as_str(), options.session.occ_cipher.as_str()),
        ("SHA1", "BF-CBC")
    );
    assert_eq!(
        (options.session.tun_mtu, options.session.replay_window, options.log.verb),
        (1500, 64, 1)
    );
    assert_eq!(options.session.hand_window, Duration::from_secs(60));
    assert_eq!(options.session.renegotiation.after, Duration::from_secs(3600));
    assert_eq!(options.session.renegotiation.earliest, options.session.renegotiation.after);
    assert_eq!(options.session.keepalive.timeout, Duration::from_secs(120));
    assert_eq!(options.device.name, None);
    let client = as_client(&options);
    assert!(client.pull);
    assert_eq!(client.dial.remotes.len(), 1);
    assert_eq!(client.dial.connect_retry, (Duration::from_secs(1), Duration::from_secs(300)));
    assert_eq!(client.dial.resolv_retry, None);
    assert_eq!(options.socket.listen[0].port, 1194);
    assert!(options.warnings.is_empty(), "{:?}", options.warnings);
}

#[test]
fn the_server_helpers_expand() {
    let options = server("server-ipv6 fd00:1::/64\nkeepalive 10 60\nreneg-sec 1000\n");
    let server = as_server(&options);
    let network = server.network4.as_ref().unwrap();
    assert_eq!(network.server.to_string(), "10.8.0.1/24");
    assert_eq!(network.pool.unwrap(), (Ipv4Addr::new(10, 8, 0, 2), Ipv4Addr::new(10, 8, 0, 254)));
    let network = server.network6.as_ref().unwrap();
    assert_eq!(network.server.to_string(), "fd00:1::1/64");
    assert_eq!(network.first.to_string(), "fd00:1::1000");
    assert_eq!(options.session.keepalive.timeout, Duration::from_secs(120));
    assert_eq!(server.push_keepalive.unwrap().timeout, Duration::from_secs(60));
    assert_eq!(options.session.renegotiation.earliest, Duration::from_secs(900));
    assert_eq!(server.max_clients, 1024);
    assert!(options.session.float);
    let narrow = parse_file(&format!("{SERVER}server-ipv6 fd00:1::/112\n")).unwrap();
    assert_eq!(as_server(&narrow).network6.as_ref().unwrap().first.to_string(), "fd00:1::2");
}

#[test]
fn a_server_written_without_helpers_is_one() {
    let text = "mode server\ntls-server\ndev tun7\ntopology subnet\nifconfig 10.9.0.1 255.255.255.0\n\
                ifconfig-pool 10.9.0.10 10.9.0.20\nca a\ncert b\nkey c\n";
    let options = parse_file(text).unwrap();
    let network = as_server(&options).network4.clone().unwrap();
    assert_eq!(network.server.to_string(), "10.9.0.1/24");
    assert_eq!(network.pool.map(|(a, b)| (a.octets()[3], b.octets()[3])), Some((10, 20)));
    assert_eq!(options.device.name.as_deref(), Some("tun7"));
    let outside = text.replace("10.9.0.20", "10.9.1.20");
    assert!(parse_file(&outside).unwrap_err().problem.contains("10.9.1.20"));
    let own = text.replace("10.9.0.10 ", "10.9.0.1 ");
    assert!(parse_file(&own).unwrap_err().problem.contains("own address"));
}

#[test]
fn files_of_install_scripts_run_unchanged() {
    let old = parse_file(include_str!("fixtures/script-a-server-old.conf")).unwrap();
    let server = as_server(&old);
    assert_eq!(old.session.ciphers, [Cipher::Aes128Gcm]);
    assert_eq!(old.socket.listen[0].family, Family::V6);
    assert_eq!(old.wrap, Wrap::TlsCrypt(Source::File("tls-crypt.key".into())));
    assert_eq!(old.tls.groups.as_deref(), Some(&["prime256v1".to_owned()][..]));
    assert_eq!(server.pool_persist.as_ref().unwrap().path, PathBuf::from("ipp.txt"));
    assert_eq!(server.client_config_dir.as_deref(), Some(Path::new("/etc/openvpn/ccd")));
    assert_eq!(server.push.len(), 6);
    assert_eq!(old.process.user.as_deref(), Some("nobody"));
    assert_eq!(old.warnings, ["x.conf:16: tun-ipv6 has no effect: the tunnel always carries IPv6"]);

    let new = parse_file(include_str!("fixtures/script-a-server-new.conf")).unwrap();
    let key = Source::File("tls-crypt-v2.key".into());
    assert_eq!(new.wrap, Wrap::TlsCryptV2 { key, max_age: None, shared: None });
    assert_eq!(new.tls.peer_usage, Some(Usage::Client));
    assert!(as_server(&new).duplicate_cn);
    let management = new.management.as_ref().unwrap();
    assert!(matches!(management.place, ManagementPlace::Unix(_)), "{management:?}");
    assert_eq!(new.warnings.len(), 0, "{:?}", new.warnings);

    let options = parse_file(include_str!("fixtures/script-a-client.ovpn")).unwrap();
    let Wrap::TlsAuth { key: Source::Inline { directive, text }, direction } = &options.wrap else {
        panic!("{:?}", options.wrap)
    };
    assert_eq!((*directive, *direction), ("tls-auth", Some(1)));
    assert!(text.starts_with("-----BEGIN OpenVPN Static key V1-----\n"));
    assert!(text.ends_with("-----END OpenVPN Static key V1-----\n"));
    assert_eq!(options.session.exit_notify, Some(1));
    assert_eq!(options.socket.listen, []);
    assert!(as_client(&options).auth_nocache);
    // block-outside-dns
    assert_eq!(options.warnings.len(), 1, "{:?}", options.warnings);

    let options = parse_file(include_str!("fixtures/script-b-server.conf")).unwrap();
    assert_eq!(options.socket.listen[0].host.as_deref(), Some("192.0.2.1"));
    assert_eq!(options.tls.crl, Some(Source::File("crl.pem".into())));
    assert!(options.warnings[0].contains(": dh has no effect"), "{:?}", options.warnings);
    let options = parse_file(include_str!("fixtures/script-b-client.ovpn")).unwrap();
    assert_eq!(as_client(&options).dial.remotes[0].host, "192.0.2.1");
    assert!(options.warnings.is_empty(), "{:?}", options.warnings);
}

#[test]
fn the_command_line_of_the_systemd_unit() {
    let files = files(&[("s.conf", SERVER)]);
    let line = "--status /run/s.log --status-version 2 --suppress-timestamps --config s.conf";
    let options = parse(&args(line), &files).unwrap();
    let status = options.status.unwrap();
    assert_eq!((status.path.as_path(), status.version), (Path::new("/run/s.log"), 2));
    assert_eq!(status.every, Duration::from_secs(60));
    assert!(!options.log.timestamps);
}

#[test]
fn command_lines_without_a_file() {
    let line =
        "--client --dev tun --remote 192.0.2.1 443 udp4 --ca a --auth-user-pass --nobind --nice -5";
    let options = parse(&args(line), &files(&[])).unwrap();
    assert_eq!(as_client(&options).dial.remotes[0].family, Family::V4);
    assert_eq!(as_client(&options).auth_user_pass, Some(UserPass::Prompt));
    assert_eq!(options.process.nice, -5);
    let error = parse(&args("verb 3"), &files(&[])).unwrap_err();
    assert_eq!((error.file.as_str(), error.line), ("command line", 1));
    let error = parse(&args("--verb 3 x.conf"), &files(&[])).unwrap_err();
    assert_eq!((error.directive.as_str(), error.line), ("verb", 1));
    assert!(parse(&[], &files(&[])).is_err());
}

#[test]
fn errors_name_file_line_directive_and_remedy() {
    let error = client_error("verb three\n");
    assert_eq!((error.file.as_str(), error.line, error.directive.as_str()), ("x.conf", 8, "verb"));
    let error = client_error("remtoe a\n");
    assert_eq!(error.to_string(), "x.conf:8: remtoe: unknown directive\n  did you mean remote?");
    let error = client_error("<tls-crypt>\nabc\n");
    assert_eq!((error.line, error.directive.as_str()), (8, "tls-crypt"));
    let error = client_error("push \"route\n");
    assert_eq!(error.line, 8);
    assert!(error.problem.contains("not closed"));
    let error = parse(&args("--config none.conf"), &files(&[])).unwrap_err();
    assert!(error.problem.contains("none.conf"), "{error}");
    for (text, word) in [
        ("fragment 60\n", "68"),
        ("fragment 1300 max\n", "max"),
        ("fragment 1300\nproto tcp-client\n", "TCP"),
        ("fragment 1300\n<connection>\nremote h 1 tcp\n</connection>\n", "TCP"),
        ("plugin x.so 'a \"b'\n", "not closed"),
        ("up \"\"\n", "no program"),
        ("up \"/bin/true 'open\"\n", "not closed"),
        ("up /bin/true up\n", "too many"),
        ("secret static.key\n", "static key"),
        ("comp-lzo perhaps\n", "perhaps"),
        ("compress zstd\n", "zstd"),
        ("setenv GENERIC_CONFIG\n", "generic"),
        ("tls-server\n", "for servers"),
        ("lladdr 02:00:00:00:00:01\n", "dev tap"),
        ("route-gateway dhcp\n", "TAP"),
        ("dev tap\nlladdr 01:00:00:00:00:01\n", "not the address of a station"),
        ("dev tap\nlladdr 2:0:0:0:0\n", "not the address of a station"),
        ("dev tap\nifconfig 10.8.0.9 10.8.0.1\n", "not a netmask"),
        ("link-mtu 1500\ntun-mtu 1500\n", "tun-mtu"),
        ("dev lan0\n", "dev-type tap"),
        ("tls-version-max 1.1\n", "1.2"),
        ("data-ciphers ARIA-256-GCM\n", "AES-256-CBC"),
        ("duplicate-cn\n", "for servers"),
        ("cryptoapicert x\n", "Windows"),
        ("keepalive 10\n", "at least 2 arguments, and has 1"),
        ("dns-updown \"\"\n", "names no program"),
        ("dns server 1 address vpn.example\n", "not an address"),
        ("dhcp-option DNS nowhere\n", "not an address"),
        ("http-proxy 192.0.2.9 3128\n", "carries TCP only"),
        ("key-direction 2\n", "0 to 1"),
        ("nobind\nlport 5\n", "nobind"),
        ("tls-crypt a\ntls-auth b 1\n", "another"),
        ("connect-retry-max x\n", "number"),
        ("verb 1 2\n", "too many"),
        ("server 10.8.0.0 255.255.255.0\n", "server"),
        ("<verb>\n3\n</verb>\n", "block"),
    ] {
        let error = client_error(text);
        assert!(error.to_string().contains(word), "{text}: {error}");
        assert!(error.line >= 1, "{text}: {error}");
        assert!(!error.remedy.is_empty() || error.problem.contains("number"), "{text}: {error}");
    }
    for (text, word) in [
        ("remote a\n", "for clients"),
        ("push \"a,b\"\n", "comma"),
        ("server 10.8.0.1 255.255.255.0\n", "10.8.0.0"),
        ("server 10.0.0.0 255.0.0.0\n", "/8"),
        ("server 10.8.0.0 255.0.255.0\n", "netmask"),
        ("ifconfig-pool 10.8.0.5 10.8.0.9\n", "pool already"),
        ("keepalive 10 15\n", "twice"),
        ("keepalive 10 60\nping 5\n", "keepalive"),
        ("topology ring\n", "topology subnet"),
        ("ccd-exclusive\n", "client-config-dir"),
        ("iroute 10.0.0.0 255.0.0.0\n", "client-config-dir"),
        ("peer-fingerprint aa:bb\n", "SHA-256"),
        ("<peer-fingerprint>\n# none\n</peer-fingerprint>\n", "no peer"),
        ("redirect-gateway def1\n", "push"),
        ("crl-verify /etc/crls folder\n", "director"),
    ] {
        let error = server_error(text);
        assert!(error.to_string().contains(word), "{text}: {error}");
    }
}

#[test]
fn what_openvpn_tolerates_costs_a_warning() {
    let options = client("push \"route 10.0.0.0\"\ntopology net30\n");
    assert_eq!(options.warnings, ["x.conf:8: push has no effect on a client"]);
    let options = server("connect-retry 0\npull-filter ignore route\n");
    assert_eq!(options.warnings.len(), 2, "{:?}", options.warnings);
    // Clients would frame packets in another way than the server.
    for (option, word) in [("compress lz4", "not compressed"), ("comp-lzo no", "server itself")] {
        let options = server(&format!("push \"{option}\"\n"));
        assert!(options.warnings[0].contains(word), "{:?}", options.warnings);
        assert!(as_server(&options).push.is_empty(), "{option}");
    }
}

#[test]
fn what_is_missing_is_said() {
    for (gone, word) in [
        ("dev tun\n", "dev tun"),
        ("ca ca.crt\n", "ca FILE"),
        ("key c.key\n", "key FILE"),
        ("cert c.crt\n", "cert FILE"),
        ("remote vpn.example.org 1194\n", "remote HOST"),
        ("client\n", "client"),
    ] {
        let error = parse_file(&CLIENT.replacen(gone, "", 1)).unwrap_err();
        assert!(error.to_string().contains(word), "{gone}: {error}");
    }
    let lax = parse_file(&CLIENT.replace("remote-cert-tls server\n", "")).unwrap();
    assert!(lax.warnings[0].contains("No server certificate verification method"));
    let net30 = parse_file(&SERVER.replace("topology subnet\n", "")).unwrap();
    assert!(net30.warnings[0].contains("topology subnet"));
}

#[test]
fn unknown_directives_are_skipped_only_where_allowed() {
    let options = client(
        "setenv opt new-thing 1\nignore-unknown-option newer client-nat\nnewer\nclient-nat 1\n",
    );
    assert_eq!(options.warnings.len(), 3, "{:?}", options.warnings);
    assert!(options.warnings[0].starts_with("x.conf:8: new-thing: unknown directive"));
    // `ignore-unknown-option` has no effect on earlier lines.
    assert!(parse_file(&format!("newer\nignore-unknown-option newer\n{CLIENT}")).is_err());
    assert_eq!(client("setenv FORWARD_COMPATIBLE 1\nnewer\n").warnings.len(), 1);
    // FORWARD_COMPATIBLE does not allow known directives that are not supported.
    assert!(
        client_error("setenv FORWARD_COMPATIBLE 1\nclient-nat x\n").problem.contains("supported")
    );
    // `ignore-unknown-option` and `setenv opt` do not disable a known directive.
    let options =
        client("ignore-unknown-option data-ciphers\nsetenv opt data-ciphers AES-128-GCM\n");
    assert_eq!(options.session.ciphers, [Cipher::Aes128Gcm]);
}

#[test]
fn connections_have_their_own_remote() {
    let options = parse_file(&format!(
        "{}<connection>\nremote a 1 udp\nconnect-timeout 7\n</connection>\n<connection>\nremote b\nproto udp6\n\
         rport 2\n</connection>\n<connection>\nremote c 443 tcp\n</connection>\nrport 9\n",
        CLIENT.replace("remote vpn.example.org 1194\n", "")
    ))
    .unwrap();
    let client = as_client(&options);
    let seen: Vec<_> =
        client.dial.remotes.iter().map(|r| (r.host.as_str(), r.port, r.family)).collect();
    assert_eq!(seen, [("a", 1, Family::Any), ("b", 2, Family::V6), ("c", 443, Family::Any)]);
    assert_eq!(client.dial.remotes[2].transport, adit_engine::Transport::Tcp);
    assert_eq!(client.dial.remotes[0].wait, Some(Duration::from_secs(7)));
    let differ = "<connection>\nremote a\ntun-mtu 1400\n</connection>\n<connection>\nremote b\ntun-mtu 1300\n</connection>\n";
    assert!(client_error(differ).problem.contains("differ"));
    let keys = "<connection>\nremote a\n<tls-crypt>\n1\n</tls-crypt>\n</connection>\n\
                <connection>\nremote b\n<tls-crypt>\n2\n</tls-crypt>\n</connection>\n";
    assert!(client_error(keys).problem.contains("differ"));
    assert!(parse_file(&format!("{CLIENT}{}", keys.replace('2', "1"))).is_ok());
    let future = "ignore-unknown-option new\n<connection>\nremote a\nnew 1\n</connection>\n";
    assert_eq!(self::client(future).warnings.len(), 2);
    let misplaced = "<connection>\nremote a\ncipher AES-256-GCM\n</connection>\n";
    let error = client_error(misplaced);
    assert_eq!((error.line, error.directive.as_str()), (10, "cipher"));
    assert!(client_error("<connection>\nproto udp\n</connection>\n").problem.contains("no remote"));
}

#[test]
fn several_remotes_share_what_stands_outside() {
    let options = client(
        "remote b\nremote c 3 udp6\nremote [2001:db8::1] 4\nproto udp4\nrport 7\nremote-random\n",
    );
    let client = as_client(&options);
    let seen: Vec<_> =
        client.dial.remotes.iter().map(|r| (r.host.as_str(), r.port, r.family)).collect();
    assert_eq!(
        seen,
        [
            ("vpn.example.org", 1194, Family::V4),
            ("b", 7, Family::V4),
            ("c", 3, Family::V6),
            ("2001:db8::1", 4, Family::V4)
        ]
    );
    assert!(client.dial.remote_random);
}

#[test]
fn cd_moves_every_path_and_includes_follow_it() {
    let files = files(&[
        ("x.conf", "cd /etc/vpn\nconfig more.conf\nlog-append b.log\nlog a.log\n"),
        ("/etc/vpn/more.conf", CLIENT),
    ]);
    let options = parse(&args("x.conf"), &files).unwrap();
    assert_eq!(options.tls.ca, Some(Source::File("/etc/vpn/ca.crt".into())));
    assert_eq!(options.log.to, LogTo::Append("/etc/vpn/b.log".into()), "the first one");
    assert_eq!(options.process.directory.as_deref(), Some(Path::new("/etc/vpn")));
    // An error in the included file names that file.
    let files = self::files(&[("x.conf", "verb 3\nconfig y.conf\n"), ("y.conf", "\nbad\n")]);
    let error = parse(&args("x.conf"), &files).unwrap_err();
    assert_eq!((error.file.as_str(), error.line), ("y.conf", 2));
}

#[test]
fn files_that_include_each_other_end() {
    let files = files(&[("x.conf", "config x.conf\n")]);
    let error = parse(&args("x.conf"), &files).unwrap_err();
    assert!(error.problem.contains("include each other"), "{error}");
    // These files are included one after another, so they are not nested.
    let many = "config y.conf\n".repeat(200);
    let files = self::files(&[("x.conf", many.as_str()), ("y.conf", "verb 3\n")]);
    let error = parse(&args("x.conf"), &files).unwrap_err();
    assert!(error.problem.contains("more than 100"), "{error}");
}

#[test]
fn dos_line_ends_and_byte_order_marks_are_taken() {
    let text = format!("\u{feff}{}", CLIENT.replace('\n', "\r\n"));
    let options = parse_file(&format!("{text}<tls-crypt>\r\nabc\r\n</tls-crypt>\r\n")).unwrap();
    let Wrap::TlsCrypt(Source::Inline { text, .. }) = options.wrap else { panic!() };
    assert_eq!(text.as_str(), "abc\n");
    let mut bytes = CLIENT.as_bytes().to_vec();
    bytes.extend_from_slice(b"# gr\xfc\xdfe\n");
    let memory = Memory(HashMap::from([("x.conf".into(), bytes)]));
    assert!(parse(&args("x.conf"), &memory).is_ok());
}

#[test]
fn inline_blocks_and_the_old_mark_for_them() {
    let options = client(
        "tls-auth [inline] 1\n<tls-auth>\nk\n</tls-auth>\n<auth-user-pass>\nu\np\n</auth-user-pass>\n",
    );
    assert!(matches!(
        options.wrap,
        Wrap::TlsAuth { key: Source::Inline { .. }, direction: Some(1) }
    ));
    assert!(matches!(
        as_client(&options).auth_user_pass,
        Some(UserPass::Source(Source::Inline { .. }))
    ));
    // Debug output contains no secret.
    let shown = format!("{:?}", client("<tls-crypt>\nsesame\n</tls-crypt>\n"));
    assert!(!shown.contains("sesame"), "{shown}");
}

#[test]
fn routes_and_filters() {
    let options = client(
        "route 10.1.2.3 255.255.0.0 net_gateway 5\nroute remote_host\nroute-ipv6 2001:db8::/32\n\
         pull-filter ignore \"redirect-gateway\"\nredirect-gateway def1 ipv6\nroute-nopull\n",
    );
    let route = &options.routes.v4[0];
    assert_eq!(route.to, Destination::Net("10.1.0.0/16".parse().unwrap()));
    assert_eq!((route.via, route.metric), (Via::Outside, Some(5)));
    assert_eq!(options.routes.v4[1].to, Destination::RemoteHost);
    assert_eq!(options.routes.v6.len(), 1);
    assert_eq!(as_client(&options).pull_filters[0].action, FilterAction::Ignore);
    assert!(as_client(&options).route_nopull);
    assert_eq!(options.routes.redirect_gateway.unwrap(), ["def1", "ipv6"]);
}

#[test]
fn ciphers_that_are_not_supported_are_left_out_with_a_word() {
    let options =
        client("data-ciphers AES-256-GCM:ARIA-256-GCM:?BF-CBC:aes-192-gcm\ncipher AES-256-CBC\n");
    assert_eq!(options.session.ciphers, [Cipher::Aes256Gcm, Cipher::Aes192Gcm]);
    assert_eq!(options.warnings.len(), 2);
    assert!(options.warnings[0].contains("ARIA-256-GCM"));
    assert!(options.warnings[1].contains("cipher AES-256-CBC is not in data-ciphers"));
    assert_eq!(options.session.occ_cipher, "AES-256-CBC");
    let options = client("data-ciphers-fallback AES-128-GCM\ncipher AES-256-CBC\nauth sha-256\n");
    assert_eq!(
        (options.session.cipher_fallback, options.session.occ_cipher.as_str()),
        (Some(Cipher::Aes128Gcm.into()), "AES-128-GCM")
    );
    assert_eq!(options.session.auth, "SHA256");
}

#[test]
fn cbc_is_for_who_asks_for_it_by_name() {
    let cbc = DataCipher::Block(Some(BlockCipher::Aes256Cbc));
    let options = client("cipher AES-256-CBC\n");
    assert!(!options.session.ciphers.contains(&cbc) && options.session.cipher_fallback.is_none());
    let options = client("data-ciphers AES-256-GCM:AES-256-CBC\n");
    assert_eq!(options.session.ciphers, [DataCipher::Aead(Cipher::Aes256Gcm), cbc]);
    assert!(options.warnings.is_empty(), "{:?}", options.warnings);
    assert_eq!(client("data-ciphers-fallback aes-256-cbc\n").session.cipher_fallback, Some(cbc));
    let open = client("data-ciphers none\n");
    assert_eq!(open.session.ciphers, [DataCipher::Block(None)]);
    assert!(open.warnings[0].contains("READ"), "{:?}", open.warnings);
    for (text, directive, word) in [
        ("data-ciphers DES-EDE3-CBC:BF-CBC\n", "data-ciphers", "SWEET32"),
        ("data-ciphers-fallback DES-EDE3-CBC\n", "data-ciphers-fallback", "SWEET32"),
        ("auth none\ndata-ciphers AES-256-CBC\n", "auth", "authenticated"),
        ("auth none\ndata-ciphers-fallback AES-256-CBC\n", "auth", "authenticated"),
        ("data-ciphers none\nauth none\n", "auth", "authenticated"),
    ] {
        let error = client_error(text);
        assert_eq!(error.directive, directive, "{text}");
        assert!(error.to_string().contains(word), "{text}: {error}");
    }
    // AEAD ciphers need no digest.
    assert_eq!(client("auth none\n").session.auth, "none");
}

#[test]
fn topologies_lay_out_the_network_as_openvpn_does() {
    let laid = |text: &str| {
        let options = parse_file(&SERVER.replace("topology subnet\n", text)).unwrap();
        let server = as_server(&options).clone();
        let net = server.network4.clone().unwrap();
        let (first, last) = net.pool.unwrap();
        let ends = (net.server.addr().to_string(), first.to_string(), last.to_string());
        (net.topology, ends, server.push)
    };
    let ends = |a: &str, b: &str, c: &str| (a.to_owned(), b.to_owned(), c.to_owned());
    for (text, topology, range, routes) in [
        ("topology subnet\n", Topology::Subnet, ("10.8.0.2", "10.8.0.254"), &[][..]),
        ("topology net30\n", Topology::Net30, ("10.8.0.4", "10.8.0.251"), &["route 10.8.0.1"][..]),
        ("", Topology::Net30, ("10.8.0.4", "10.8.0.251"), &["route 10.8.0.1"][..]),
        ("topology p2p\n", Topology::P2p, ("10.8.0.4", "10.8.0.251"), &[][..]),
        (
            "topology p2p\nclient-to-client\n",
            Topology::P2p,
            ("10.8.0.4", "10.8.0.251"),
            &["route 10.8.0.0 255.255.255.0"][..],
        ),
    ] {
        let (found, addresses, push) = laid(text);
        assert_eq!((found, addresses), (topology, ends("10.8.0.1", range.0, range.1)), "{text}");
        let pushed: Vec<_> = push.iter().filter(|o| o.starts_with("route ")).collect();
        assert_eq!(pushed, routes, "{text}");
    }
}

#[test]
fn a_server_of_single_directives_has_its_own_pool() {
    let base = SERVER
        .replace("topology subnet\n", "")
        .replace("server 10.8.0.0 255.255.255.0\n", "mode server\ntls-server\n");
    let parse = |text: &str| parse_file(&format!("{base}{text}"));
    let net = |text: &str| as_server(&parse(text).unwrap()).network4.clone().unwrap();
    let subnet = net(
        "topology subnet\nifconfig 10.8.0.1 255.255.255.0\nifconfig-pool 10.8.0.9 10.8.0.20 255.255.255.0\n",
    );
    assert_eq!(subnet.netmask, "255.255.255.0".parse().ok());
    assert_eq!(subnet.server.to_string(), "10.8.0.1/24");
    let p2p = "topology p2p\nifconfig 10.8.0.1 10.8.0.2\nifconfig-pool 10.8.9.9 10.8.9.20\n";
    assert_eq!(net(p2p).server.to_string(), "10.8.0.1/32");
    let far = |text: &str| as_server(&parse(text).unwrap()).far4.map(|far| far.to_string());
    assert_eq!(far(p2p).as_deref(), Some("10.8.0.2"));
    assert_eq!(far("server 10.8.4.0 255.255.255.0\ntopology net30\n").as_deref(), Some("10.8.4.2"));
    assert_eq!(far("server 10.8.4.0 255.255.255.0\ntopology subnet\n"), None);
    let wrong = "topology subnet\nifconfig 10.8.0.1 10.8.0.2\nifconfig-pool 10.8.0.9 10.8.0.20\n";
    assert!(parse(wrong).unwrap_err().problem.contains("netmask"));
    let without = net("topology subnet\nifconfig 10.8.0.1 255.255.255.0\n");
    assert_eq!((without.pool, without.server.to_string()), (None, "10.8.0.1/24".to_owned()));
}

#[test]
fn what_administrators_say_of_single_clients() {
    let options = server(
        "client-config-dir ccd\nccd-exclusive\nmax-routes-per-client 7\n\
         ifconfig-push-constraint 10.8.0.0 255.255.255.0\n",
    );
    let server = as_server(&options);
    assert_eq!(server.client_config_dir.as_deref(), Some(Path::new("ccd")));
    assert!(server.ccd_exclusive);
    assert_eq!(
        (server.client_rules.max_routes, server.client_rules.constraint),
        (7, "10.8.0.0/24".parse().ok())
    );
    assert!(options.warnings.is_empty(), "{:?}", options.warnings);
    for line in [
        "ccd-exclusive\n",
        "client-config-dir ccd\n",
        "ifconfig-push-constraint 10.0.0.0 255.0.0.0\n",
    ] {
        assert!(client_error(line).problem.contains("for servers"), "{line}");
    }
    assert_eq!(client("max-routes-per-client 7\n").warnings.len(), 1);
}

#[test]
fn only_a_server_names_a_rule_file() {
    assert_eq!(as_server(&server("")).filter, None);
    let options = server("cd /etc/vpn\nfilter rules.nft\n");
    assert_eq!(as_server(&options).filter.as_deref(), Some(Path::new("/etc/vpn/rules.nft")));
    // This form also works in a file that openvpn reads.
    let options = server("setenv opt filter /etc/rules.nft\n");
    assert_eq!(as_server(&options).filter.as_deref(), Some(Path::new("/etc/rules.nft")));
    assert!(options.warnings.is_empty(), "{:?}", options.warnings);
    assert!(client_error("filter rules.nft\n").problem.contains("for servers"));
    let error = parse_file(&format!("{SERVER}filter\n")).unwrap_err();
    assert!(error.to_string().contains("filter FILE"), "{error}");
    let error = parse_file(&format!("{SERVER}filter-group staff\n")).unwrap_err();
    assert!(error.to_string().contains("client-config-dir"), "{error}");
}

#[test]
fn fingerprints_stand_in_for_an_authority() {
    let (one, other) = (["AB"; 32].join(":"), ["cd"; 32].join(":"));
    let without_ca = CLIENT.replace("ca ca.crt\n", "");
    let options = parse_file(&format!(
        "{without_ca}peer-fingerprint {one}\n<peer-fingerprint>\n# next\n{other}\n{one}\n\n</peer-fingerprint>\n"
    ))
    .unwrap();
    assert_eq!(options.tls.ca, None);
    assert_eq!(options.tls.peer_fingerprints, ["ab".repeat(32), "cd".repeat(32)]);
    let both = client(&format!("peer-fingerprint {one}\n"));
    assert!(both.tls.ca.is_some() && both.tls.peer_fingerprints.len() == 1);
    let server =
        parse_file(&format!("{}peer-fingerprint {one}\n", SERVER.replace("ca ca.crt\n", "")))
            .unwrap();
    assert_eq!((server.tls.ca, server.tls.peer_fingerprints.len()), (None, 1));
    let list = parse_file(&format!("{without_ca}peer-fingerprint {one}\ncrl-verify crl.pem\n"));
    assert!(list.unwrap_err().problem.contains("authority"));
    for wrong in
        [&one[3..], &one.replace(':', ""), &format!("{one}:00"), &one.replace('A', "G"), ""]
    {
        assert!(parse_file(&format!("{CLIENT}peer-fingerprint \"{wrong}\"\n")).is_err(), "{wrong}");
    }
}

#[test]
fn compression_means_stubs() {
    for (line, framing) in [
        ("comp-lzo\n", Framing::LzoStub),
        ("comp-lzo yes\n", Framing::LzoStub),
        ("comp-lzo adaptive\n", Framing::LzoStub),
        ("compress lzo\n", Framing::LzoStub),
        ("compress lz4\n", Framing::SwapStub),
        ("compress lz4-v2\n", Framing::StubV2),
    ] {
        let options = client(line);
        assert_eq!(options.session.framing, framing, "{line}");
        assert!(options.warnings[0].contains("never compressed"), "{:?}", options.warnings);
        let text = format!("{line}push \"{}\"\n", line.trim());
        assert!(
            as_server(&server(&text)).push.is_empty(),
            "{line}: the engine pushes the stub form"
        );
    }
    assert_eq!(client("comp-lzo no\n").session.framing, Framing::LzoStub);
    assert_eq!(client("compress\n").session.framing, Framing::SwapStub);
    assert_eq!(client("compress stub-v2\n").session.framing, Framing::StubV2);
    let migrating = server("compress migrate\n");
    assert_eq!(migrating.session.framing, Framing::None);
    assert!(as_server(&migrating).compress_migrate);
    assert!(!as_server(&server("compress migrate\ncompress stub-v2\n")).compress_migrate);
    assert_eq!(as_server(&server("comp-lzo no\npush \"comp-lzo no\"\n")).push, ["comp-lzo no"]);
}

/// adit must know every directive of openvpn.
#[test]
fn every_directive_of_openvpn_is_known() {
    // The lists contain only names, from `openvpn --help` (2.6) and the headings of the manual of
    // 2.7.
    let lists =
        [include_str!("fixtures/directives-2.6.txt"), include_str!("fixtures/directives-2.7.txt")];
    for name in lists.into_iter().flat_map(str::split_whitespace) {
        assert!(directives::find(name).is_some(), "{name}");
    }
}

proptest! {
    #[test]
    fn no_file_makes_the_parser_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let memory = Memory(HashMap::from([("x.conf".into(), bytes)]));
        let _ = parse(&args("x.conf"), &memory);
    }

    #[test]
    fn no_arguments_make_a_handler_panic(
        name in proptest::sample::select(directives::all().map(|spec| spec.name).collect::<Vec<_>>()),
        words in proptest::collection::vec("[-a-z0-9:./\"\\\\ ]{0,12}|[0-9]{1,20}|-[0-9]{1,20}|10\\.0\\.0\\.0|255\\.255\\.255\\.255|::/0", 0..5),
        server in any::<bool>(),
    ) {
        let base = if server { SERVER } else { CLIENT };
        let mut text = format!("{base}{name}");
        for word in words {
            text.push(' ');
            text.push_str(&word);
        }
        let _ = parse_file(&text);
    }
}

#[test]
fn tap_devices_are_told_from_tun_devices() {
    for (dev, kind, name) in [
        ("dev tap\n", DeviceKind::Tap, None),
        ("dev tap3\n", DeviceKind::Tap, Some("tap3")),
        ("dev tapestry\n", DeviceKind::Tap, Some("tapestry")),
        ("dev lan0\ndev-type tap\n", DeviceKind::Tap, Some("lan0")),
        ("dev tap3\ndev-type tun\n", DeviceKind::Tun, Some("tap3")),
        ("dev tun3\n", DeviceKind::Tun, Some("tun3")),
    ] {
        let device = client(dev).device;
        assert_eq!((device.kind, device.name.as_deref()), (kind, name), "{dev}");
    }
    let options = client("dev tap\nlladdr 02:00:00:00:0a:1\nifconfig 10.8.0.9 255.255.255.0\n");
    assert_eq!(options.device.mac, Some([2, 0, 0, 0, 10, 1]));
    let Role::Client(role) = &options.role else { panic!() };
    assert_eq!(role.ifconfig4, "10.8.0.9/24".parse().ok());
    assert!(options.warnings.is_empty(), "{:?}", options.warnings);
}

#[test]
fn a_tap_server_has_one_network_whatever_the_topology() {
    for topology in ["", "topology subnet\n", "topology net30\n", "topology p2p\n"] {
        let text = SERVER.replace("topology subnet\n", topology).replace("dev tun", "dev tap");
        let options = parse_file(&text).unwrap();
        let server = as_server(&options);
        let network = server.network4.clone().unwrap();
        let first = network.pool.map(|(first, _)| first.octets()[3]);
        assert_eq!((network.topology, first), (Topology::Subnet, Some(2)));
        assert!(options.warnings.is_empty(), "{:?}", options.warnings);
        assert!(!server.bridged);
    }
    let options = server("dev tap\nstale-routes-check 240\n");
    assert_eq!(as_server(&options).station_age, Some(Duration::from_secs(240)));
    assert_eq!(as_server(&server("stale-routes-check 240\n")).station_age, None, "of a TUN device");
}

#[test]
fn vlans_are_those_of_a_tap_server() {
    let vlans = |more: &str| as_server(&server(&format!("dev tap\n{more}"))).vlans;
    let vlan = |number| VlanId::new(number).unwrap();
    assert_eq!(vlans(""), None);
    assert_eq!(vlans("vlan-tagging\n"), Some(Vlans { accept: VlanAccept::All, native: vlan(1) }));
    for (word, accept) in [
        ("all", VlanAccept::All),
        ("tagged", VlanAccept::Tagged),
        ("untagged", VlanAccept::Untagged),
    ] {
        let text = format!("vlan-accept {word}\nvlan-pvid 4094\nvlan-tagging\n");
        assert_eq!(vlans(&text), Some(Vlans { accept, native: vlan(4094) }));
    }
    assert!(as_server(&server("dev tap\nvlan-tagging\n")).client_rules.vlans);
    assert!(!as_server(&server("dev tap\n")).client_rules.vlans);
    for (line, expected) in [
        ("vlan-tagging\nvlan-pvid 0", "1 to 4094"),
        ("vlan-tagging\nvlan-pvid 4095", "1 to 4094"),
        ("vlan-tagging\nvlan-pvid ten", "1 to 4094"),
        ("vlan-tagging\nvlan-accept some", "all, tagged or untagged"),
        ("vlan-pvid 7", "add vlan-tagging"),
        ("vlan-accept tagged", "add vlan-tagging"),
        ("vlan-tagging\ndev-type tun", "dev tap"),
    ] {
        let error = server_error(&format!("dev tap\n{line}\n")).to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
    assert!(client_error("dev tap\nvlan-tagging\n").problem.contains("server"));
}

#[test]
fn bridges_have_their_addresses_elsewhere() {
    let bridge = |line: &str| {
        let text = SERVER.replace("server 10.8.0.0 255.255.255.0", line);
        parse_file(&text.replace("dev tun", "dev tap"))
    };
    let options = bridge("server-bridge 10.8.0.4 255.255.255.0 10.8.0.50 10.8.0.60").unwrap();
    let server = as_server(&options);
    let network = server.network4.clone().unwrap();
    assert_eq!(network.server.to_string(), "10.8.0.4/24");
    assert_eq!(network.pool.map(|(a, b)| (a.octets()[3], b.octets()[3])), Some((50, 60)));
    assert!(server.bridged && server.push.is_empty());
    let dhcp = bridge("server-bridge").unwrap();
    assert_eq!(as_server(&dhcp).push, ["route-gateway dhcp"]);
    assert_eq!(as_server(&dhcp).network4, None);
    let nogw = bridge("server-bridge nogw").unwrap();
    assert!(as_server(&nogw).push.is_empty() && as_server(&nogw).bridged);
    assert!(as_server(&bridge("server-bridge\ntls-server").unwrap()).bridged);
    let own = bridge("server-bridge\nifconfig 10.8.0.3 255.255.255.0").unwrap();
    assert_eq!(as_server(&own).bridged_address, "10.8.0.3/24".parse().ok());
    for (line, expected) in [
        ("server-bridge gw", "server-bridge"),
        ("server-bridge 10.8.0.4 255.255.255.0", "server-bridge"),
        ("server-bridge 10.8.0.4 255.255.255.0 10.8.1.50 10.8.0.60", "10.8.1.50"),
        ("server-bridge 10.8.0.4 255.255.255.0 10.8.0.50 10.8.0.255", "10.8.0.255"),
        ("server-bridge 10.8.0.4 255.255.255.0 10.8.0.60 10.8.0.50", "behind"),
        ("server-bridge 10.8.0.4 255.255.255.0 10.8.0.1 10.8.0.50", "gateway"),
        ("server-bridge\nserver 10.9.0.0 255.255.255.0", "already"),
        ("server-bridge\nifconfig-pool 10.8.0.50 10.8.0.60", "already"),
        ("server-bridge\nstale-routes-check 0", "forgets"),
    ] {
        let error = bridge(line).unwrap_err().to_string();
        assert!(error.contains(expected), "{line}: {error}");
    }
    let tun = bridge("server-bridge\ndev-type tun").unwrap_err().to_string();
    assert!(tun.contains("dev tap"), "{tun}");
}

#[test]
fn a_proxy_stands_before_every_remote_and_takes_tcp_only() {
    let http = "proto tcp-client\nhttp-proxy proxy.lan 3128 login.txt basic\n\
                http-proxy-option AGENT test\nhttp-proxy-option CUSTOM-HEADER X-A b\n";
    let Some(Proxy::Http(http)) = as_client(&client(http)).dial.proxies.first().cloned() else {
        panic!("no HTTP proxy")
    };
    assert_eq!((http.host.as_str(), http.port, http.version.as_str()), ("proxy.lan", 3128, "1.0"));
    assert_eq!(http.headers, [("X-A".to_owned(), "b".to_owned())]);
    assert!(http.login.is_some() && http.agent.as_deref() == Some("test"));
    let socks = "proto tcp-client\nsocks-proxy 192.0.2.9\n";
    let Some(Proxy::Socks(socks)) = as_client(&client(socks)).dial.proxies.first().cloned() else {
        panic!("no SOCKS proxy")
    };
    let over_udp = client("socks-proxy 192.0.2.9\n");
    assert_eq!(as_client(&over_udp).dial.remotes[0].proxy, Some(0), "over UDP too");
    assert_eq!((socks.host.as_str(), socks.port, socks.login), ("192.0.2.9", 1080, None));
}

/// The example in OpenVPN's manual: directly over UDP, over TCP, and through proxies.
#[test]
fn a_connection_block_may_have_a_proxy_and_a_patience_of_its_own() {
    let text = "http-proxy-option AGENT all\n<connection>\nremote a 1194 udp\nconnect-timeout 3\n\
                </connection>\n<connection>\nremote a 443 tcp\n</connection>\n\
                <connection>\nremote a 443 tcp\nhttp-proxy p 8080\n</connection>\n\
                <connection>\nremote b 443 tcp\nhttp-proxy p 8080\n</connection>\n\
                <connection>\nremote b 1194 udp\nsocks-proxy s\n</connection>\n";
    let options = client(text);
    let parsed = as_client(&options);
    let waits: Vec<_> = parsed.dial.remotes.iter().map(|target| target.wait).collect();
    assert_eq!(waits, [Some(Duration::from_secs(3)), None, None, None, None]);
    let through: Vec<_> = parsed.dial.remotes.iter().map(|target| target.proxy).collect();
    assert_eq!(through, [None, None, Some(0), Some(0), Some(1)]);
    let [Proxy::Http(http), Proxy::Socks(socks)] = parsed.dial.proxies.as_slice() else {
        panic!("{:?}", parsed.dial.proxies)
    };
    assert_eq!((http.port, http.agent.as_deref(), socks.port), (8080, Some("all"), 1080));
    // The common proxy applies to blocks without a proxy of their own.
    let mixed = format!(
        "{}proto tcp\nsocks-proxy all\n",
        "<connection>\nremote a\n</connection>\n<connection>\nremote b\nhttp-proxy own 1\n</connection>\n"
    );
    let options = client(&mixed);
    let through: Vec<_> =
        as_client(&options).dial.remotes.iter().map(|target| target.proxy).collect();
    assert_eq!((through, as_client(&options).dial.proxies.len()), (vec![Some(0), Some(1)], 2));
    let udp = "<connection>\nremote a 1 udp\nhttp-proxy p 8080\n</connection>\n";
    assert!(client_error(udp).problem.contains("UDP"));
}

#[test]
fn a_proxys_credentials_are_written_as_in_openvpn() {
    let http = |line: &str| {
        let options = client(&format!("proto tcp-client\nhttp-proxy proxy 3128 {line}\n"));
        let [Proxy::Http(http)] = as_client(&options).dial.proxies.as_slice() else {
            panic!("{line}")
        };
        (http.scheme, http.login.clone())
    };
    let file = |name: &str| Some(UserPass::Source(Source::File(name.into())));
    let inline = "\n<http-proxy-user-pass>\nann\nsecret\n</http-proxy-user-pass>\n";
    assert_eq!(http(""), (ProxyScheme::Basic, None));
    assert_eq!(http("login.txt"), (ProxyScheme::Basic, file("login.txt")));
    assert_eq!(http("stdin basic"), (ProxyScheme::Basic, Some(UserPass::Prompt)));
    assert_eq!(http("auto"), (ProxyScheme::Auto, None));
    assert_eq!(http("auto-nct\nhttp-proxy-user-pass a.txt"), (ProxyScheme::AutoNct, file("a.txt")));
    let (scheme, login) = http(&format!("\"\" basic{inline}"));
    assert_eq!(scheme, ProxyScheme::Basic);
    assert!(matches!(login, Some(UserPass::Source(Source::Inline { .. }))), "{login:?}");
    let (_, login) = http(&format!("login.txt{inline}"));
    assert!(matches!(login, Some(UserPass::Source(Source::Inline { .. }))), "it wins: {login:?}");
}

#[test]
fn what_a_proxy_cannot_do_is_refused_by_name() {
    for (more, word) in [
        ("http-proxy proxy 3128\n", "UDP"),
        ("proto tcp\nhttp-proxy proxy 3128\nsocks-proxy other\n", "chain"),
        ("proto tcp\nhttp-proxy proxy 3128 login.txt ntlm2\n", "ntlm2"),
        ("proto tcp\nhttp-proxy proxy 0\n", "port 0"),
        ("proto tcp\nhttp-proxy proxy 3128\nhttp-proxy-option VERSION 2\n", "HTTP/1"),
        ("proto tcp\nhttp-proxy proxy 3128\nhttp-proxy-option COOKIE x\n", "COOKIE"),
        ("port-share web 443\n", "port-share"),
    ] {
        let error = client_error(more).to_string();
        assert!(error.contains(word), "{more}: {error}");
    }
    let shared = server("proto tcp-server\nport-share 127.0.0.1 8443\n");
    let shared = as_server(&shared).port_share.clone();
    assert_eq!(shared.map(|to| (to.host, to.port)), Some(("127.0.0.1".into(), 8443)));
    assert!(server_error("port-share 127.0.0.1 8443\n").to_string().contains("no TCP port"));
    let error = server_error("proto tcp-server\nport-share 127.0.0.1 8443 /tmp/x\n").to_string();
    assert!(error.contains("directory"), "{error}");
}

#[test]
fn routing_directives_of_adit_are_read() {
    let routes = |text: &str| client(text).routes;
    let plain = routes("");
    assert_eq!((plain.policy, plain.allow_lan), (None, false));
    assert_eq!((plain.kill_switch, plain.allow_recursive), (false, false));
    let all = routes("policy-routing on\nallow-lan\nkill-switch\nallow-recursive-routing\n");
    assert_eq!((all.policy, all.allow_lan), (Some(true), true));
    assert_eq!((all.kill_switch, all.allow_recursive), (true, true));
    assert_eq!(routes("policy-routing off\n").policy, Some(false));
    assert!(client_error("policy-routing maybe\n").problem.contains("maybe"));
    let mtu = |text: &str| client(text).session.tun_mtu_max;
    assert_eq!([mtu(""), mtu("tun-mtu-max 9000\n"), mtu("tun-mtu 9000\n")], [1600, 9000, 9000]);
}

#[test]
fn dns_settings_are_read_and_applied_when_asked() {
    let options = client("dns server -1 address 192.0.2.53\ndns search-domains corp.example\n");
    assert_eq!(options.routes.apply_dns, None);
    let settings = options.routes.dns.settings().unwrap();
    assert_eq!(settings.addresses, ["192.0.2.53:53".parse().unwrap()]);
    assert_eq!(client("dns-updown force\n").routes.apply_dns, Some(true));
    assert_eq!(client("dns-updown disable\n").routes.apply_dns, Some(false));
    let options = client("dns-updown force\ndns-updown \"/bin/dns a 'b c'\"\n");
    assert_eq!(options.routes.apply_dns, Some(false), "the program does it instead");
    let program = options.hooks.dns_updown.unwrap();
    assert_eq!((program.path.as_str(), program.args), ("/bin/dns", vec!["a".into(), "b c".into()]));
    assert_eq!(client("dns-updown /bin/dns\ndns-updown disable\n").hooks.dns_updown, None);
    client("dns-updown force\nchroot /jail\n");
    assert!(client_error("dns-updown /bin/dns\nchroot /jail\n").problem.contains("chroot"));
    let options = client("dhcp-option NTP 192.0.2.1\n");
    assert!(options.warnings.iter().any(|w| w.contains("not about DNS")), "{:?}", options.warnings);
}

/// A single argument is divided into words, as in openvpn; several are words already.
#[test]
fn plugins_have_arguments_and_a_bound() {
    let options = server(
        "plugin a.so\nplugin /b.so \"login login USERNAME 'a b'\"\ncd /etc\nplugin ./c.so \"x y\" z\n",
    );
    let plugin = |file: &str, args: &[&str], directory: Option<&str>| Plugin {
        file: file.into(),
        args: args.iter().map(|arg| (*arg).into()).collect(),
        directory: directory.map(Into::into),
    };
    assert_eq!(
        options.process.plugins,
        [
            plugin("a.so", &[], None),
            plugin("/b.so", &["login", "login", "USERNAME", "a b"], None),
            plugin("./c.so", &["x y", "z"], Some("/etc")),
        ]
    );
    let many = |count| parse_file(&format!("{SERVER}{}", "plugin x.so\n".repeat(count)));
    assert_eq!(many(16).unwrap().process.plugins.len(), 16);
    assert!(many(17).unwrap_err().problem.contains("more than 16"));
}
