use super::support::*;
use adit_openvpn::tls::*;

const LABEL: &[u8] = b"EXPORTER-OpenVPN-datakeys";

fn exported(session: &TlsSession) -> [u8; 256] {
    let mut out = [0; 256];
    session.export(LABEL, &mut out).unwrap();
    out
}

#[test]
fn every_kind_of_key_shakes_hands_in_both_versions() {
    for kind in [Kind::Rsa2048, Kind::Rsa4096, Kind::P256, Kind::P384, Kind::Ed25519] {
        let ca = Ca::new("/CN=Matrix CA", kind);
        let server = ca.issue("/CN=server", kind, SERVER_EXT, &[]);
        let client = ca.issue("/CN=client", kind, CLIENT_EXT, &[]);
        for version in [TlsVersion::V1_2, TlsVersion::V1_3] {
            let mut options_client = options(&ca, Some(&client));
            options_client.max_version = Some(version);
            options_client.min_version = Some(version);
            options_client.verify.remote_cert_tls = Some(RemoteCertTls::Server);
            let mut options_server = options(&ca, Some(&server));
            options_server.verify.remote_cert_tls = Some(RemoteCertTls::Client);
            let mut pair = connect(&client_tls(options_client), &server_tls(options_server));
            assert!(
                pair.is_up(),
                "{kind:?} {version:?}: {:?} {:?}",
                pair.client_error,
                pair.server_error
            );
            assert_eq!(pair.client.peer().unwrap().common_name, "server");
            assert_eq!(pair.server.peer().unwrap().common_name, "client");
            assert_eq!(exported(&pair.client), exported(&pair.server));
            assert_ne!(exported(&pair.client), [0; 256]);
            let mut other = [0; 256];
            pair.client.export(b"another label", &mut other).unwrap();
            assert_ne!(other, exported(&pair.client));
            let word = if version == TlsVersion::V1_2 { "TLSv1.2, " } else { "TLSv1.3, " };
            assert!(pair.client.description().starts_with(word), "{}", pair.client.description());
            assert_eq!(pair.client.description(), pair.server.description());
            pair.client.write(b"hello").unwrap();
            pump(&mut pair, 7);
            assert_eq!(pair.server.read().unwrap().unwrap().as_slice(), b"hello");
        }
    }
}

fn up() -> Outcome {
    let (server, client) = (ca().server("/CN=server"), ca().client("/CN=client"));
    let pair = connect(
        &client_tls(options(ca(), Some(&client))),
        &server_tls(options(ca(), Some(&server))),
    );
    assert!(pair.is_up());
    pair
}

#[test]
fn the_hybrid_group_comes_first_and_can_be_chosen_away() {
    let pair = up();
    assert_eq!(
        pair.client.description(),
        "TLSv1.3, cipher TLSv1.3 TLS_AES_256_GCM_SHA384, group X25519MLKEM768"
    );
    let (server, client) = (ca().server("/CN=server"), ca().client("/CN=client"));
    let mut common = options(ca(), Some(&client));
    common.groups = Some("brainpoolP256r1:prime256v1".into());
    let tls = client_tls(common);
    assert!(tls.warnings()[0].contains("brainpoolP256r1"), "{:?}", tls.warnings());
    let pair = connect(&tls, &server_tls(options(ca(), Some(&server))));
    assert!(
        pair.server.description().ends_with("group secp256r1"),
        "{}",
        pair.server.description()
    );
}

#[test]
fn the_largest_curve_is_taken_where_an_end_has_no_other() {
    let (server, client) = (ca().server("/CN=server"), ca().client("/CN=client"));
    for version in [TlsVersion::V1_2, TlsVersion::V1_3] {
        for at_server in [false, true] {
            let mut ends = [options(ca(), Some(&server)), options(ca(), Some(&client))];
            ends.iter_mut().for_each(|end| end.max_version = Some(version));
            ends[usize::from(!at_server)].groups = Some("secp521r1".into());
            let [server, client] = ends;
            let pair = connect(&client_tls(client), &server_tls(server));
            let description = pair.server.description();
            assert!(description.ends_with("group secp521r1"), "{description}");
        }
    }
}

#[test]
fn suites_go_by_the_names_of_openssl_and_of_iana() {
    let (server, client) = (ca().server("/CN=server"), ca().client("/CN=client"));
    for name in [
        "ECDHE-ECDSA-CHACHA20-POLY1305",
        "TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256",
        "TLS-ECDHE-ECDSA-WITH-CHACHA20-POLY1305-SHA256",
        "DHE-RSA-AES256-SHA:ecdhe-ecdsa-chacha20-poly1305:!aNULL:@SECLEVEL=1",
    ] {
        let mut common = options(ca(), Some(&client));
        common.max_version = Some(TlsVersion::V1_2);
        common.tls12_ciphers = Some(name.into());
        let pair = connect(&client_tls(common), &server_tls(options(ca(), Some(&server))));
        assert_eq!(
            pair.server.description(),
            "TLSv1.2, cipher TLSv1.2 ECDHE-ECDSA-CHACHA20-POLY1305, group X25519"
        );
    }
    let mut common = options(ca(), Some(&client));
    common.tls13_ciphers = Some("TLS_AES_128_GCM_SHA256".into());
    let pair = connect(&client_tls(common), &server_tls(options(ca(), Some(&server))));
    assert!(pair.server.description().contains("TLS_AES_128_GCM_SHA256"));
    let mut common = options(ca(), Some(&client));
    common.tls12_ciphers = Some("DHE-RSA-AES256-SHA".into());
    // TLS 1.3 has its own suites.
    let tls = client_tls(common.clone());
    assert!(tls.warnings()[0].contains("TLS 1.2 is not offered"), "{:?}", tls.warnings());
    let pair = connect(&tls, &server_tls(options(ca(), Some(&server))));
    assert!(pair.server.description().starts_with("TLSv1.3"), "{}", pair.server.description());
    common.max_version = Some(TlsVersion::V1_2);
    let error = ClientTls::new(ClientTlsOptions { common }).unwrap_err();
    assert_eq!(error.origin(), "tls-cipher");
    let mut common = options(ca(), Some(&client));
    common.tls13_ciphers = Some("TLS_NONE".into());
    let error = ClientTls::new(ClientTlsOptions { common }).unwrap_err();
    assert!(error.to_string().contains("these are: TLS_AES"), "{error}");
}

#[test]
fn versions_without_overlap_name_the_cause() {
    let (server, client) = (ca().server("/CN=server"), ca().client("/CN=client"));
    let mut old = options(ca(), Some(&client));
    old.max_version = Some(TlsVersion::V1_2);
    let mut new = options(ca(), Some(&server));
    new.min_version = Some(TlsVersion::V1_3);
    let pair = connect(&client_tls(old.clone()), &server_tls(new));
    assert!(
        matches!(pair.server_error, Some(TlsError::Incompatible(_))),
        "{:?}",
        pair.server_error
    );
    assert!(matches!(pair.client_error, Some(TlsError::Refused(_))), "{:?}", pair.client_error);
    old.min_version = Some(TlsVersion::V1_3);
    let error = ClientTls::new(ClientTlsOptions { common: old }).unwrap_err();
    assert_eq!(error.origin(), "tls-version-min");
}

#[test]
fn one_message_is_one_record_however_it_is_cut() {
    for piece in [1, 3, 100, 1 << 20] {
        let mut pair = up();
        let messages = [b"first".to_vec(), vec![7; 2048], vec![8; 5000], b"last".to_vec()];
        for message in &messages {
            pair.client.write(message).unwrap();
        }
        pump(&mut pair, piece);
        for message in &messages {
            assert_eq!(pair.server.read().unwrap().unwrap().as_slice(), message);
        }
        assert_eq!(pair.server.read().unwrap(), None);
    }
}

#[test]
fn what_is_written_during_the_handshake_follows_it_record_by_record() {
    let (server, client) = (ca().server("/CN=server"), ca().client("/CN=client"));
    let mut pair = Outcome {
        client: TlsSession::client(&client_tls(options(ca(), Some(&client)))).unwrap(),
        server: TlsSession::server(&server_tls(options(ca(), Some(&server)))).unwrap(),
        client_error: None,
        server_error: None,
    };
    pair.client.write(b"one").unwrap();
    pair.client.write(b"two").unwrap();
    let mut early = [0; 16];
    assert!(pair.client.export(LABEL, &mut early).is_err());
    assert!(pair.client.peer().is_none());
    pump(&mut pair, 1);
    assert!(pair.is_up());
    assert_eq!(pair.server.read().unwrap().unwrap().as_slice(), b"one");
    assert_eq!(pair.server.read().unwrap().unwrap().as_slice(), b"two");
}

#[test]
fn a_peer_that_is_not_read_cannot_fill_memory() {
    let mut pair = up();
    for _ in 0..33 {
        pair.client.write(&[0; 1000]).unwrap();
    }
    pump(&mut pair, 1 << 20);
    assert!(matches!(pair.server_error, Some(TlsError::Protocol(_))), "{:?}", pair.server_error);
    for _ in 0..32 {
        assert!(pair.server.read().unwrap().is_some());
    }
    assert!(pair.server.read().is_err(), "what came whole is read, then the error shows");
}

#[test]
fn too_long_a_message_or_too_much_unpulled_is_the_callers_error() {
    let mut pair = up();
    assert!(matches!(pair.client.write(&[0; MAX_MESSAGE + 1]), Err(TlsError::Misuse(_))));
    let refused = (0..100).any(|_| pair.client.write(&[0; MAX_MESSAGE]).is_err());
    assert!(refused);
    assert!(pair.client.outgoing_len() < 256 * 1024);
}

#[test]
fn garbage_is_the_peers_fault_and_stays_an_error() {
    let server = ca().server("/CN=server");
    let tls = server_tls(options(ca(), Some(&server)));
    for garbage in
        [&b"GET / HTTP/1.1\r\n\r\n"[..], &[0; 5], &[0x16, 3, 1, 0, 2, 1, 1], &[0xff; 40000]]
    {
        let mut session = TlsSession::server(&tls).unwrap();
        let first =
            session.feed(garbage).err().or_else(|| session.feed(&[0; 40000]).err()).unwrap();
        assert!(matches!(first, TlsError::Protocol(_) | TlsError::Incompatible(_)), "{first:?}");
        assert_eq!(session.feed(b"").unwrap_err(), first);
        assert_eq!(session.write(b"x").unwrap_err(), first);
    }
}

#[test]
fn a_record_that_cannot_be_is_refused_by_its_header() {
    let server = ca().server("/CN=server");
    let mut session = TlsSession::server(&server_tls(options(ca(), Some(&server)))).unwrap();
    session.feed(&[0x16, 3, 1, 0xff]).unwrap();
    let error = session.feed(&[0xff]).unwrap_err();
    assert!(matches!(error, TlsError::Protocol(_)), "{error:?}");
}

#[test]
fn a_handshake_message_without_end_is_cut_off() {
    let server = ca().server("/CN=server");
    let mut session = TlsSession::server(&server_tls(options(ca(), Some(&server)))).unwrap();
    // A ClientHello that announces 65000 bytes, followed by endless padding records.
    let mut record = vec![0x16, 3, 1, 0x40, 0x00, 1, 0x00, 0xfd, 0xe8];
    record.resize(5 + 0x4000, 0);
    let mut fed = 0;
    let error = loop {
        if let Err(error) = session.feed(&record) {
            break error;
        }
        fed += record.len();
        assert!(fed < 80 * 1024);
    };
    assert!(matches!(error, TlsError::Protocol(_)), "{error:?}");
}

#[test]
fn an_alert_can_be_pulled_after_the_error() {
    let (server, client) = (ca().server("/CN=server"), ca().client("/CN=client"));
    let mut common = options(ca(), Some(&server));
    common.time = clock(200 * DAY);
    let pair = connect(&client_tls(options(ca(), Some(&client))), &server_tls(common));
    assert!(matches!(pair.server_error, Some(TlsError::Certificate(_))), "{:?}", pair.server_error);
    let Some(TlsError::Refused(alert)) = pair.client_error else {
        panic!("{:?}", pair.client_error)
    };
    assert!(alert.contains("CertificateExpired"), "{alert}");
}

#[test]
fn no_ticket_is_sent_and_no_session_resumed() {
    let mut pair = up();
    // A ticket would be among the server's bytes after the handshake.
    assert!(!pair.server.wants_write() && !pair.client.wants_write());
    pair.server.write(b"x").unwrap();
    let record = pair.server.pull(usize::MAX);
    assert_eq!(record.len(), 5 + 1 + 1 + 16, "header, byte, content type, tag");
}
