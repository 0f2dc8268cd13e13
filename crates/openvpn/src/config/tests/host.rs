//! Directives of the process, its sockets, keys and routes.

use super::*;
use crate::session::Frequency;

#[test]
fn files_that_are_read_later_are_inside_the_root_directory() {
    let files = "client-config-dir /etc/clients\ncrl-verify crl.pem\n";
    let options = server(&format!("cd /srv/vpn\nchroot jail\n{files}"));
    assert_eq!(options.process.chroot, Some("/srv/vpn/jail".into()));
    let within = |path: &str| PathBuf::from(format!("/srv/vpn/jail/{path}"));
    assert_eq!(as_server(&options).client_config_dir, Some(within("etc/clients")));
    assert_eq!(options.tls.crl, Some(Source::File(within("crl.pem"))));
    let revoked = server("cd /srv/vpn\nchroot jail\ncrl-verify /revoked dir\n");
    assert_eq!(revoked.tls.crl_directory, Some(within("revoked")));
    // The others are read before.
    assert_eq!(options.tls.ca, Some(Source::File("/srv/vpn/ca.crt".into())));
    let options = server(&format!("cd /srv/vpn\n{files}"));
    assert_eq!(as_server(&options).client_config_dir, Some("/etc/clients".into()));
    assert_eq!(options.tls.crl, Some(Source::File("/srv/vpn/crl.pem".into())));
}

#[test]
fn one_file_replaces_certificate_key_and_authority() {
    let base = "client\ndev tun\nremote a\nremote-cert-tls server\npkcs12 me.p12\n";
    let options = parse_file(base).unwrap();
    let file = |options: &Options| options.tls.pkcs12.clone().map(|pkcs12| pkcs12.file);
    assert_eq!(file(&options), Some(Source::File("me.p12".into())));
    assert!(options.tls.identity.is_none() && options.tls.ca.is_none());
    assert!(parse_file(&format!("{base}ca ca.crt\n")).is_ok());
    let more = parse_file(&format!("{base}extra-certs e\n")).unwrap();
    assert!(more.tls.pkcs12.is_some_and(|pkcs12| pkcs12.extra.is_some()));
    for more in ["cert c\n", "key k\n"] {
        let error = parse_file(&format!("{base}{more}")).unwrap_err();
        assert!(error.problem.contains("pkcs12"), "{error}");
    }
    let inline = base.replace("pkcs12 me.p12\n", "<pkcs12>\nMIIB\n</pkcs12>\n");
    assert!(matches!(file(&parse_file(&inline).unwrap()), Some(Source::Inline { .. })));
}

#[test]
fn sockets_names_and_routes_have_their_settings() {
    for (word, expected) in
        [("no", MtuDiscovery::No), ("maybe", MtuDiscovery::Maybe), ("yes", MtuDiscovery::Yes)]
    {
        let options = client(&format!("mtu-disc {word}\n"));
        assert_eq!(options.socket.mtu_discovery, Some(expected));
    }
    assert!(client_error("mtu-disc perhaps").problem.contains("perhaps"));
    let plain = client("");
    let dial = &as_client(&plain).dial;
    assert!(!dial.preresolve && !dial.persist_remote);
    let options = client("preresolve\npersist-remote-ip\npersist-local-ip\nroute-table 300\n");
    let dial = &as_client(&options).dial;
    assert!(dial.preresolve && dial.persist_remote);
    assert_eq!((options.routes.table, plain.routes.table), (Some(300), None));
    assert!(options.warnings.is_empty(), "{:?}", options.warnings);
    assert!(client_error("route-table 0").problem.contains("number"));
}

#[test]
fn a_server_limits_handshakes_to_the_configured_frequency() {
    let options = server("connect-freq 5 10\nconnect-freq-initial 200 20\n");
    let frequency = |count, seconds| Frequency { count, period: Duration::from_secs(seconds) };
    assert_eq!(options.session.connect_freq, Some(frequency(5, 10)));
    assert_eq!(options.session.connect_freq_initial, Some(frequency(200, 20)));
    assert_eq!(server("").session.connect_freq, None);
    for wrong in ["connect-freq 0 1", "connect-freq 1 0", "connect-freq 1", "connect-freq x 1"] {
        assert_eq!(server_error(wrong).directive, "connect-freq", "{wrong}");
    }
}

#[test]
fn stations_of_a_tap_device_may_get_addresses_from_elsewhere() {
    let bare = "mode server\ntls-server\nca a\ncert b\nkey c\ndh none\nport 1194\n";
    let options = parse_file(&format!("{bare}dev tap0\npush \"route-gateway dhcp\"\n")).unwrap();
    let server = as_server(&options);
    assert!(server.network4.is_none() && server.network6.is_none() && !server.bridged);
    let error = parse_file(&format!("{bare}dev tun0\n")).unwrap_err();
    assert!(error.problem.contains("no network"), "{error}");
}

#[test]
fn packets_need_not_be_remembered_across_restarts_with_tls() {
    assert!(server("replay-persist file\n").warnings[0].contains("replay-persist"));
    let secret = "dev tun\nsecret k\ncipher AES-256-CBC\nifconfig 10.1.0.1 10.1.0.2\n";
    let error = parse_file(&format!("{secret}replay-persist file\n")).unwrap_err();
    assert_eq!(error.directive, "replay-persist");
}

#[test]
fn routes_may_wait_for_the_connection() {
    let delay = |line: &str| client(&format!("{line}\n")).routes.delay;
    assert_eq!(delay("verb 3"), None);
    assert_eq!(delay("route-delay"), Some(Duration::ZERO));
    assert_eq!(delay("route-delay 7"), Some(Duration::from_secs(7)));
    // The second number is for Windows.
    assert_eq!(delay("route-delay 7 60"), Some(Duration::from_secs(7)));
    assert_eq!(client_error("route-delay soon\n").directive, "route-delay");
    assert_eq!(client_error("route-delay 7 late\n").directive, "route-delay");
    assert!(server("route-delay 7\n").warnings[0].contains("no effect on a server"));
}

#[test]
fn an_allowance_for_larger_frames_is_a_number() {
    assert_eq!(server_error("tun-mtu-extra x\n").directive, "tun-mtu-extra");
    assert!(client("errors-to-stderr\n").log.errors_to_stderr);
}

#[test]
fn a_secret_for_plugins_has_a_label_of_its_own() {
    let options = server("keying-material-exporter EXPORTER-test 32\n");
    let key = as_server(&options).exported_key.clone().unwrap();
    assert_eq!((key.label.as_str(), key.length), ("EXPORTER-test", 32));
    // The second label is that of the tunnel's own keys.
    for wrong in ["test 32", "EXPORTER-OpenVPN-datakeys 32", "EXPORTER-x 15", "EXPORTER-x 4096"] {
        let error = server_error(&format!("keying-material-exporter {wrong}\n"));
        assert_eq!(error.directive, "keying-material-exporter", "{wrong}");
    }
}

#[test]
fn a_server_with_several_addresses_answers_over_any_interface() {
    assert!(server("multihome\n").socket.multihome);
    let options = server("multihome same-interface\n");
    assert!(
        options.socket.multihome && options.warnings[0].contains("routes choose the interface")
    );
    assert_eq!(server_error("multihome other-interface\n").directive, "multihome");
}

#[test]
fn single_settings_reach_their_fields() {
    let options = client(
        "mlock\nnice 5\nmachine-readable-output\nmtu-test\nremap-usr1 SIGHUP\nblock-ipv6\nallow-recursive-routing\n\
         redirect-private def1\ntxqueuelen 500\nreneg-bytes 1000000\nreneg-pkts 5000\ntls-timeout 3\ntran-window 60\n\
         tls-ciphersuites TLS_AES_256_GCM_SHA384\nsyslog vpn\nsndbuf 65536\nrcvbuf 131072\nremote-cert-eku serverAuth\n",
    );
    let process = &options.process;
    assert!(process.mlock && process.nice == 5 && process.remap_usr1 == Some(Remap::Hangup));
    assert!(options.log.machine_readable && options.mtu_test);
    assert_eq!(options.log.to, LogTo::Syslog("vpn".into()));
    let routes = &options.routes;
    assert!(routes.block_ipv6 && routes.allow_recursive);
    assert_eq!(routes.redirect_private.as_deref(), Some(&["def1".to_owned()][..]));
    assert_eq!(options.device.tx_queue, Some(500));
    let (session, socket) = (&options.session, &options.socket);
    let renegotiation = &session.renegotiation;
    assert_eq!((renegotiation.bytes, renegotiation.packets), (1_000_000, 5000));
    assert_eq!(session.tls_timeout, Duration::from_secs(3));
    assert_eq!(session.tran_window, Duration::from_secs(60));
    assert_eq!((socket.send_buffer, socket.receive_buffer), (Some(65_536), Some(131_072)));
    let options = server("force-tls-key-material-export\n");
    assert!(options.session.force_exporter);
    let single = parse_file(
        "dev tun\ntls-server\nca a\ncert b\nkey c\ndh none\nifconfig 10.1.0.1 10.1.0.2\nsingle-session\n",
    );
    assert!(single.unwrap().session.single_session);
    let pool = parse_file(
        "dev tun\nmode server\ntls-server\nca a\ncert b\nkey c\ndh none\ntopology subnet\n\
         ifconfig 10.8.0.1 255.255.255.0\nifconfig-pool 10.8.0.2 10.8.0.9\n\
         ifconfig-ipv6 fd00::1/64 fd00::2\nifconfig-ipv6-pool fd00::1000/64\n",
    );
    assert!(as_server(&pool.unwrap()).network6.is_some());
}
