use std::time::Duration;

use proptest::prelude::*;

use super::variables::{VARIABLES, Variable};
use super::*;
use crate::aead::Cipher;
use crate::sptps::WindowSize;
use crate::testing::alice;

fn entries(text: &str) -> Entries {
    let mut entries = Entries::default();
    entries.add_file("tinc.conf", text).unwrap();
    entries
}

fn server(text: &str) -> ServerConfig {
    let (config, warnings) = ServerConfig::read(&entries(text)).unwrap();
    assert_eq!(warnings, []);
    config
}

fn server_error(text: &str) -> String {
    ServerConfig::read(&entries(text)).unwrap_err().to_string()
}

fn host(text: &str) -> Result<(HostConfig, Vec<Warning>), ConfigError> {
    HostConfig::read(Entries::default(), "hosts/alice", text)
}

/// Specification 15.2.
#[test]
fn lines_are_read_with_and_without_an_equals_sign() {
    let text = "# a comment\n\nMODE=switch  \nconnectto bob\n\tConnectTo\t=\tcarol\r\nPort =0\n\
        -----BEGIN RSA PRIVATE KEY-----\nMode = hub\n-----END RSA PRIVATE KEY-----\nInterface = a=b c\n";
    let config = server(text);
    assert_eq!(config.mode, Mode::Switch);
    assert_eq!(
        config.connect_to.iter().map(NodeName::as_str).collect::<Vec<_>>(),
        ["bob", "carol"]
    );
    assert_eq!(config.own.port, 0);
    assert_eq!(config.interface.as_deref(), Some("a=b c"));
}

#[test]
fn a_line_that_is_none_is_refused_with_its_number() {
    let add = |text: &str| Entries::default().add_file("tinc.conf", text).unwrap_err().to_string();
    assert_eq!(add("\nMode\n"), "tinc.conf:2: Mode: the variable has no value");
    assert_eq!(add("Mode =\n"), "tinc.conf:1: Mode: the variable has no value");
    assert_eq!(add("A = \u{fffd}\n"), "tinc.conf:1: A: the line is not UTF-8");
    let many = "ConnectTo = a\n".repeat(MAX_ENTRIES + 1);
    assert_eq!(add(&many), "tinc.conf:16385: ConnectTo: more than 16384 lines");
}

#[test]
fn comments_and_blocks_may_have_other_encodings() {
    let text =
        decode(b"# B\xfcro\nMode = hub\n-----BEGIN X-----\n\xff\n-----END X-----\n".to_vec());
    assert_eq!(server(&text).mode, Mode::Hub);
}

#[test]
fn a_block_without_an_end_reaches_to_the_end_of_the_file() {
    let (config, warnings) =
        ServerConfig::read(&entries("Mode = hub\n-----BEGIN X-----\nPingTimeout = 7\n")).unwrap();
    assert_eq!((config.mode, config.ping_timeout), (Mode::Hub, Duration::from_secs(5)));
    let expected = "tinc.conf:2: -----BEGIN X-----: ignored: the block has no '-----END' line";
    assert_eq!(texts(&warnings), [expected]);
}

#[test]
fn a_host_file_from_the_net_has_no_block_without_an_end() {
    let text = "Port = 7\n-----BEGIN X-----\nSubnet = 10.2.0.0/16\n";
    let error = HostConfig::read(Entries::default(), "hosts/bob", text).unwrap_err().to_string();
    assert_eq!(error, "hosts/bob:2: -----BEGIN X-----: the block has no '-----END' line");
}

fn texts(warnings: &[Warning]) -> Vec<String> {
    warnings.iter().map(ToString::to_string).collect()
}

fn server_warnings(text: &str) -> (ServerConfig, Vec<String>) {
    let (config, warnings) = ServerConfig::read(&entries(text)).unwrap();
    (config, texts(&warnings))
}

#[test]
fn what_follows_a_number_has_no_effect() {
    let (config, warnings) = server_warnings(
        "PingInterval = 30 # seconds\nPingTimeout = 7s\nCompression = 9 # max\nFWMark = +3\nWeight = -5 x\n",
    );
    assert_eq!(
        warnings,
        [
            "tinc.conf:3: Compression: ignored: adit sends and receives packets uncompressed, which every node accepts"
        ]
    );
    assert!(server_warnings("Compression = 0\n").1.is_empty());
    assert_eq!(config.ping_interval, Duration::from_secs(30));
    assert_eq!(config.ping_timeout, Duration::from_secs(7));
    assert_eq!((config.own.compression, config.fwmark, config.own.weight), (9, 3, Some(-5)));
    assert_eq!(server("FWMark = -1").fwmark, u32::MAX, "tinc passes these bits on");
}

/// tinc starts with each of these as well.
#[test]
fn a_value_that_is_none_gets_the_default() {
    for (line, warning) in [
        ("PingInterval = soon", "ignored: 'soon' is not supported: write a number"),
        ("PingInterval = -", "ignored: '-' is not supported: write a number"),
        ("TCPOnly = 1", "ignored: '1' is not supported: write yes or no"),
        ("StrictSubnets = yes # all", "ignored: 'yes # all' is not supported: write yes or no"),
        ("ExperimentalProtocol = on", "ignored: 'on' is not supported: write yes or no"),
        ("ConnectTo = b-c", "ignored: a node's name consists of letters, digits and '_'"),
        (
            "BroadcastSubnet = x",
            "ignored: 'x' is not a subnet: write an IPv4, IPv6 or MAC address, and perhaps /PREFIX and #WEIGHT",
        ),
        ("Address = a 1 2", "ignored: 'a 1 2' is not supported: write HOST or HOST PORT"),
        ("Ed25519PublicKey = x", "ignored: a public key is 43 letters, digits, '+' and '/'"),
    ] {
        let (config, warnings) = server_warnings(line);
        assert_eq!(config, ServerConfig::default(), "{line}");
        let name = line.split(' ').next().unwrap();
        assert_eq!(warnings, [format!("tinc.conf:1: {name}: {warning}")]);
    }
}

#[test]
fn a_number_out_of_range_is_limited() {
    let limited = |line: &str| {
        let (config, warnings) = server_warnings(line);
        let [warning] = &warnings[..] else { panic!("{line}: {warnings:?}") };
        let (_, used) = warning.split_once(" is out of range: ").expect("a limit");
        (config, used.to_owned())
    };
    let (config, used) = limited("KeyExpire = 0");
    assert_eq!((config.key_expire, used.as_str()), (Duration::from_secs(1), "1 is used"));
    let (config, used) = limited("PingInterval = -7");
    assert_eq!((config.ping_interval, used.as_str()), (Duration::from_secs(1), "1 is used"));
    let (config, used) = limited("PMTU = 400");
    assert_eq!((config.own.pmtu, used.as_str()), (Some(512), "512 is used"));
    let (config, used) = limited("ReplayWindow = 100000");
    assert_eq!(
        (Some(config.replay_window), used.as_str()),
        (WindowSize::new(8192), "8192 is used")
    );
    let (config, used) = limited("MaxTimeout = 99999999999999999999");
    assert_eq!(config.max_timeout.as_secs(), 2_147_483_647);
    assert_eq!(used, "2147483647 is used");
    for refused in
        ["MaxTimeout = 0", "ReplayWindow = -1", "UDPSndBuf = -1", "MaxConnectionBurst = 0"]
    {
        assert!(server_error(refused).contains("is not supported: write a number"), "{refused}");
    }
    assert!(server_error("Compression = 13").ends_with("write a level from 0 to 12"));
}

/// No host file of another node stops the start of this one.
#[test]
fn mistakes_in_the_file_of_another_node_skip_their_lines() {
    let key = alice().public();
    let read = |text: &str| {
        let (host, warnings) =
            HostConfig::read_other(Entries::default(), "hosts/bob", text, |_| {});
        (host, texts(&warnings))
    };
    for (line, warning) in [
        ("Subnet", "1: Subnet: ignored: the variable has no value"),
        ("Subnet = \u{fffd}", "1: Subnet: ignored: the line is not UTF-8"),
        (
            "Subnet = 10.0.0.1/16",
            "1: Subnet: ignored: the address has bits after its prefix: write 10.0.0.0/16",
        ),
        ("Port = foo", "1: Port: ignored: 'foo' is not supported: write a port from 0 to 65535"),
        (
            "Address = a 1 # x",
            "1: Address: ignored: 'a 1 # x' is not supported: write HOST or HOST PORT",
        ),
        (
            "Compression = 13",
            "1: Compression: ignored: '13' is not supported: write a level from 0 to 12",
        ),
        (
            "SPTPSCipher = x",
            "1: SPTPSCipher: ignored: 'x' is not supported: write aes-256-gcm or chacha20-poly1305",
        ),
        (
            "SPTPSKex = x",
            "1: SPTPSKex: ignored: not supported: adit supports only tinc's own key exchange: remove the line",
        ),
    ] {
        let (host, warnings) =
            read(&format!("{line}\nSubnet = 10.2.0.0/16\nEd25519PublicKey = {key}\n"));
        assert_eq!(warnings, [format!("hosts/bob:{warning}")]);
        let expected = HostConfig {
            subnets: vec!["10.2.0.0/16".parse().unwrap()],
            public_key: Some(key),
            ..HostConfig::default()
        };
        assert_eq!(host, expected, "{line}");
    }
    let (_, warnings) = read(&"Port\n".repeat(2 * MAX_ENTRIES));
    assert_eq!(warnings.len(), MAX_ENTRIES, "the warnings are bounded");
    let (host, warnings) = read(&"Subnet = 10.2.0.0/16\n".repeat(MAX_ENTRIES + 2));
    assert_eq!(host.subnets.len(), MAX_ENTRIES);
    assert_eq!(warnings, ["hosts/bob:16385: Subnet: ignored: more than 16384 lines"]);
}

#[test]
fn a_key_that_cannot_be_read_is_none_and_is_not_learned() {
    let damaged = "-----BEGIN ED25519 PUBLIC KEY-----\nAAAA\n-----END ED25519 PUBLIC KEY-----\n";
    for (text, unusable) in [
        ("Ed25519PublicKey = xx\n", true),
        ("Ed25519PublicKey\n", true),
        (damaged, true),
        ("-----BEGIN ED25519 PUBLIC KEY-----\n", true),
        ("Port = 5\n", false),
        ("-----BEGIN RSA PUBLIC KEY-----\nabc\n", false),
    ] {
        let (host, warnings) =
            HostConfig::read_other(Entries::default(), "hosts/bob", text, |_| {});
        assert_eq!((host.public_key, host.unusable_key), (None, unusable), "{text} {warnings:?}");
    }
}

#[test]
fn the_name_is_required_and_checked() {
    let name = |text: &str| entries(text).name(|_| None, "my.host").map_err(|e| e.to_string());
    assert_eq!(name("Mode = hub\nname = alice\n").unwrap().as_str(), "alice");
    assert_eq!(name("Name = $HOST\n").unwrap().as_str(), "my_host");
    let missing = "tinc.conf: Name: the variable is missing: add a line 'Name = VALUE'";
    assert_eq!(name("Mode = hub\n").unwrap_err(), missing);
    let bad = "tinc.conf:1: Name: a node's name consists of letters, digits and '_'";
    assert_eq!(name("Name = a-b\n").unwrap_err(), bad);
}

/// The defaults are those of specification 15.4.
#[test]
fn an_empty_file_has_the_defaults_of_the_manual() {
    let config = server("");
    assert_eq!(config, ServerConfig::default());
    let seconds = Duration::from_secs;
    assert_eq!((config.ping_interval, config.ping_timeout), (seconds(60), seconds(5)));
    assert_eq!((config.key_expire, config.mac_expire), (seconds(3600), seconds(600)));
    assert_eq!(config.replay_window, WindowSize::DEFAULT);
    assert!(config.auto_connect && config.local_discovery && config.udp_discovery);
    assert!(!config.strict_subnets && !config.direct_only && !config.own.tcp_only);
    assert_eq!(config.own.port, 655);
}

#[test]
fn every_variable_reaches_its_setting() {
    let text = "AddressFamily = ipv6\nAutoConnect = no\nBindToAddress = * 700\nBindToAddress = 192.0.2.1\n\
        BindToInterface = eth0\nBroadcast = direct\nBroadcastSubnet = 10.255.255.255\nClampMSS = no\n\
        Compression = 0\nDecrementTTL = yes\nDevice = /dev/net/tun\nDeviceStandby = yes\nDeviceType = tap\n\
        DirectOnly = yes\nEd25519PrivateKeyFile = k\nExperimentalProtocol = yes\nForwarding = kernel\n\
        FWMark = 7\nIndirectData = yes\nInvitationExpire = 60\nKeyExpire = 61\nLearnKeys = no\n\
        LegacyNodes = no\nListenAddress = ::1\nLocalDiscovery = no\nMACExpire = 62\nMaxConnectionBurst = 3\nMaxOutputBufferSize = 1000\n\
        MaxTimeout = 63\nMTUInfoInterval = 64\nPingInterval = 65\nPingTimeout = 66\nPMTU = 1400\n\
        PMTUDiscovery = no\nPriorityInheritance = yes\nReplayWindow = 64\nSubnet = 10.1.0.0/16\n\
        TCPOnly = yes\nTunnelServer = yes\nUDPDiscovery = no\nUDPDiscoveryInterval = 67\n\
        UDPDiscoveryKeepaliveInterval = 68\nUDPDiscoveryTimeout = 69\nUDPInfoInterval = 70\n\
        UDPRcvBuf = 0\nUDPSndBuf = 2\nWeight = -5\n";
    let config = server(text);
    let default = ServerConfig::default();
    let seconds = |value: u64| Duration::from_secs(value);
    assert_eq!(config.address_family, AddressFamily::V6);
    let any = BindAddress { address: None, port: Some(700) };
    let one = BindAddress { address: Some("192.0.2.1".parse().unwrap()), port: None };
    assert_eq!(config.bind_to_address, [any, one]);
    assert_eq!(config.broadcast, Broadcast::Direct);
    assert_eq!(config.broadcast_subnets.len(), 1);
    assert_eq!(config.device_type, Some(DeviceType::Tap));
    assert_eq!(config.forwarding, Forwarding::Kernel);
    assert_eq!(config.listen_address.len(), 1);
    let times = [
        (config.invitation_expire, 60),
        (config.key_expire, 61),
        (config.mac_expire, 62),
        (config.max_timeout, 63),
        (config.mtu_info_interval, 64),
        (config.ping_interval, 65),
        (config.ping_timeout, 66),
        (config.udp_discovery_interval, 67),
        (config.udp_discovery_keepalive_interval, 68),
        (config.udp_discovery_timeout, 69),
        (config.udp_info_interval, 70),
    ];
    assert!(times.iter().all(|(time, expected)| *time == seconds(*expected)), "{times:?}");
    assert!(config.strict_subnets && config.tunnel_server, "the latter implies the former");
    assert!(config.decrement_ttl && config.direct_only && config.priority_inheritance);
    assert!(!config.auto_connect && !config.local_discovery && !config.udp_discovery);
    assert!(!config.learn_keys && !config.legacy_nodes);
    assert_eq!((config.fwmark, config.max_connection_burst), (7, 3));
    assert_eq!(
        (config.udp_rcv_buf, config.udp_snd_buf, config.max_output_buffer_size),
        (0, 2, 1000)
    );
    assert_eq!(config.replay_window, WindowSize::new(64).unwrap());
    assert_eq!((config.own.pmtu, config.own.weight), (Some(1400), Some(-5)));
    assert_eq!((config.own.clamp_mss, config.own.pmtu_discovery), (Some(false), Some(false)));
    assert!(config.own.tcp_only && config.own.indirect_data);
    assert_ne!(config.device_standby, default.device_standby);
}

#[test]
fn a_supported_variable_without_a_setting_would_be_noticed() {
    // No value suits all variables, so each must refuse one of these, or change a setting.
    for Variable { name, support, value: form, .. } in VARIABLES {
        if *support != Support::Yes || *name == "Name" {
            continue;
        }
        let values = ["2", "no", "yes", "off", "hub", "a", "dummy", "-\u{e4}", "none x", "0.0.0.0"];
        let noticed =
            |value: &&str| match ServerConfig::read(&entries(&format!("{name} = {value}"))) {
                Ok((config, warnings)) => {
                    let is_skipped = *form == Value::Optional && !warnings.is_empty();
                    config != ServerConfig::default() || is_skipped
                }
                Err(_) => true,
            };
        assert!(values.iter().any(noticed), "{name}");
    }
}

#[test]
fn an_invalid_value_is_refused_with_what_to_write() {
    let errors = [
        (
            "Mode = route",
            "tinc.conf:1: Mode: 'route' is not supported: write router, switch or hub",
        ),
        (
            "DeviceType = vde",
            "tinc.conf:1: DeviceType: 'vde' is not supported: write tun, tap or dummy",
        ),
        (
            "ExperimentalProtocol = no",
            "tinc.conf:1: ExperimentalProtocol: 'no' is not supported: write yes, or remove the line",
        ),
        (
            "BindToAddress = host",
            "tinc.conf:1: BindToAddress: 'host' is not supported: write an IP address or *, and perhaps a port",
        ),
        (
            "Subnet = 10.0.0.1/8",
            "tinc.conf:1: Subnet: the address has bits after its prefix: write 10.0.0.0/8",
        ),
    ];
    for (text, error) in errors {
        assert_eq!(server_error(text), error);
    }
}

#[test]
fn a_variable_without_effect_warns_and_a_dangerous_one_is_refused() {
    let text = "Colour = red\nCipher = none\nMode = hub\nmode = switch\n";
    let (config, warnings) = ServerConfig::read(&entries(text)).unwrap();
    assert_eq!(config.mode, Mode::Hub, "the first line counts");
    let warnings: Vec<String> = warnings.iter().map(ToString::to_string).collect();
    assert_eq!(
        warnings,
        [
            "tinc.conf:1: Colour: ignored: there is no such variable",
            "tinc.conf:2: Cipher: ignored: it belongs to tinc 1.0's protocol, which adit does not speak",
            "tinc.conf:4: mode: ignored: the variable is already set",
        ]
    );
    assert_eq!(
        server_error("SPTPSCipher = aes-128-gcm"),
        "tinc.conf:1: SPTPSCipher: 'aes-128-gcm' is not supported: write aes-256-gcm or chacha20-poly1305"
    );
    for (value, cipher) in
        [("aes-256-gcm", Cipher::Aes256Gcm), ("chacha20-poly1305", Cipher::ChaCha20Poly1305)]
    {
        let (bob, _) = host(&format!("SPTPSCipher = {value}\n")).unwrap();
        assert_eq!(bob.cipher, Some(cipher));
    }
    assert_eq!(
        server_error("SPTPSKex = x25519-mlkem768"),
        "tinc.conf:1: SPTPSKex: not supported: adit supports only tinc's own key exchange: remove the line"
    );
    let (_, warnings) = host("PingTimeout = 7\n").unwrap();
    assert_eq!(warnings[0].reason, WarningReason::WrongFile);
}

#[test]
fn options_of_the_command_line_take_precedence() {
    let option = |text: &str| text.parse::<ConfigOption>();
    let mut entries = Entries::default();
    entries.add_option(&option("Mode=switch").unwrap()).unwrap();
    entries.add_file("tinc.conf", "Mode = hub\nConnectTo = bob\n").unwrap();
    entries.add_file("hosts/alice", "Port = 700\n").unwrap();
    let (config, warnings) = ServerConfig::read(&entries).unwrap();
    assert_eq!((config.mode, config.own.port, warnings.len()), (Mode::Switch, 700, 1));
    let other = option("bob.Port = 701").unwrap();
    assert_eq!(other.host.as_ref().map(NodeName::as_str), Some("bob"));
    let mut options = Entries::default();
    options.add_option(&other).unwrap();
    let (bob, _) = HostConfig::read(options, "hosts/bob", "Port = 702\n").unwrap();
    assert_eq!(bob.port, 701);
    let bad = option("Mode").unwrap_err().to_string();
    assert_eq!(bad, "command line: Mode: write VARIABLE=VALUE or HOST.VARIABLE=VALUE");
    assert!(option("b-c.Port=1").is_err());
}

/// Specification 3.2: the variable wins over the block.
#[test]
fn a_host_file_has_its_key_as_a_variable_or_a_block() {
    let key = alice().public();
    let other = crate::testing::bob().public();
    let block =
        format!("-----BEGIN ED25519 PUBLIC KEY-----\n{other}\n-----END ED25519 PUBLIC KEY-----\n");
    let read = |text: &str| host(text).map(|(host, _)| host.public_key).map_err(|e| e.to_string());
    assert_eq!(read(&format!("Ed25519PublicKey = {key}\n")), Ok(Some(key)));
    assert_eq!(read(&block), Ok(Some(other)));
    assert_eq!(read(&format!("{block}Ed25519PublicKey = {key}\n")), Ok(Some(key)));
    assert_eq!(read("Port = 7\n"), Ok(None));
    let damaged = block.replace(&other.to_string(), "AAAA");
    assert_eq!(
        read(&damaged).unwrap_err(),
        "hosts/alice: the key's block has 3 bytes instead of 32"
    );
    assert!(
        read("Ed25519PublicKey = AAAA\n")
            .unwrap_err()
            .starts_with("hosts/alice:1: Ed25519PublicKey: ")
    );
}

#[test]
fn a_host_file_names_addresses_and_subnets() {
    let text = "Address = vpn.example.org\nAddress = 2001:db8::1 700\nSubnet = 10.1.0.0/16\nSubnet = fd00::/8#5\n";
    let (host, warnings) = host(text).unwrap();
    assert_eq!(warnings, []);
    let address = |host: &str, port| Address { host: host.to_owned(), port };
    assert_eq!(
        host.addresses,
        [address("vpn.example.org", None), address("2001:db8::1", Some(700))]
    );
    assert_eq!(
        host.subnets.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["10.1.0.0/16", "fd00::/8#5"]
    );
    assert!(self::host("Address = a 0\n").is_err() && self::host("Address = a 1 2\n").is_err());
    assert!(self::host("PMTU = 100\n").is_err());
}

/// Specification 16.
#[test]
fn proxies_are_read_in_all_their_forms() {
    let read = |value: &str| server(&format!("Proxy = {value}")).proxy;
    let host = || "proxy".to_owned();
    assert_eq!(read("none"), None);
    assert_eq!(read("none x"), None, "like tinc");
    assert_eq!(read("socks4 proxy 1080"), Some(Proxy::Socks4(host(), 1080, None)));
    let user = || "user".to_owned();
    assert_eq!(read("SOCKS4 proxy 1080 user"), Some(Proxy::Socks4(host(), 1080, Some(user()))));
    assert_eq!(read("socks5 proxy 1080"), Some(Proxy::Socks5(host(), 1080, None)));
    let login = Some((user(), "pass".to_owned()));
    assert_eq!(read("socks5 proxy 1080 user pass"), Some(Proxy::Socks5(host(), 1080, login)));
    assert_eq!(read("http proxy 3128"), Some(Proxy::Http(host(), 3128)));
    assert_eq!(read("exec nc $A  1"), Some(Proxy::Exec("nc $A  1".to_owned())));
    for bad in
        ["socks4a proxy 1080", "socks5 proxy 1080 user", "http proxy", "http proxy 0", "exec"]
    {
        let error = server_error(&format!("Proxy = {bad}"));
        assert!(error.contains("is not supported: write"), "{error}");
    }
}

proptest! {
    #[test]
    fn no_file_panics(text in "([A-Za-z]{0,12}[ =]{0,3}[ -~]{0,20}\n){0,8}", name in 0..VARIABLES.len(), value: String) {
        let text = format!("{text}{} = {value}\n", VARIABLES[name].name);
        let _ = HostConfig::read(Entries::default(), "hosts/a", &text);
        let _ = HostConfig::read_other(Entries::default(), "hosts/a", &text, |_| {});
        let mut entries = Entries::default();
        if entries.add_file("tinc.conf", &text).is_ok() {
            let _ = ServerConfig::read(&entries);
            let _ = entries.name(|_| Some(value.clone()), &value);
        }
        let _ = text.parse::<ConfigOption>();
    }
}
