use super::support::*;
use adit_openvpn::tls::CertificateProblem as Problem;
use adit_openvpn::tls::*;

fn judge(pair: &Pair) -> Result<PeerIdentity, TlsError> {
    client_verdict(options(ca(), None), &pair.cert, &pair.key)
}

fn judge_at(pair: &Pair, offset: i64) -> Result<PeerIdentity, TlsError> {
    let mut common = options(ca(), None);
    common.time = clock(offset);
    client_verdict(common, &pair.cert, &pair.key)
}

#[test]
fn a_common_name_without_alternative_names_is_enough() {
    let server = ca().server("/C=US/ST=CA/O=x, y\\\\z/OU=a+OU=b/CN=Tést/emailAddress=a@b.c");
    let identity = judge(&server).unwrap();
    // `openvpn` logs this certificate in the same form, in which commas are kept and backslashes
    // are doubled.
    assert_eq!(
        identity.subject,
        "C=US, ST=CA, O=x, y\\\\z, OU=a + OU=b, CN=Tést, emailAddress=a@b.c"
    );
    assert_eq!(identity.common_name, "Tést");
    std::fs::write(ca().path().join("identity.crt"), &server.cert).unwrap();
    let shown = openssl(
        ca().path(),
        &["x509", "-in", "identity.crt", "-noout", "-serial", "-fingerprint", "-sha256"],
    );
    let shown = shown.to_lowercase().replace(':', "");
    assert!(shown.contains(&format!("serial={}", identity.serial)), "{shown} {}", identity.serial);
    assert!(shown.contains(&identity.fingerprint), "{shown}");
}

#[test]
fn version_1_is_refused_with_the_remedy() {
    let pair = ca().issue("/CN=server", Kind::P256, "", &[]);
    let Err(TlsError::Certificate(error)) = judge(&pair) else { panic!() };
    assert_eq!(error.problem, Problem::Version);
    assert!(error.to_string().contains("-extfile"), "{error}");
    let error = ServerTls::new(ServerTlsOptions {
        common: options(ca(), Some(&pair)),
        ..Default::default()
    })
    .unwrap_err();
    assert!(error.to_string().starts_with("own.crt: it is an X.509 version 1"), "{error}");
}

#[test]
fn an_intermediate_of_version_1_is_refused_as_such() {
    let sub = ca().intermediate("/CN=Old", Kind::P256, "");
    let pair = sub.server("/CN=server");
    let chain = [pair.cert.as_str(), sub.pair.cert.as_str()].concat();
    let verdict = client_verdict(options(ca(), None), &chain, &pair.key);
    assert_eq!(problem(verdict), Problem::Version);
}

#[test]
fn sha1_is_refused_with_the_remedy() {
    let ca = Ca::new("/CN=RSA CA", Kind::Rsa2048);
    let pair = ca.issue("/CN=server", Kind::P256, SERVER_EXT, &["-sha1"]);
    let Err(TlsError::Certificate(error)) =
        client_verdict(options(&ca, None), &pair.cert, &pair.key)
    else {
        panic!()
    };
    assert_eq!(error.problem, Problem::WeakSignature);
    assert!(error.to_string().contains("SHA-256"), "{error}");
    let tls = server_tls(options(&ca, Some(&pair)));
    assert!(tls.warnings()[0].contains("SHA-1"), "{:?}", tls.warnings());
}

#[test]
fn small_rsa_keys_are_refused_in_a_chain_and_in_a_ca() {
    let ext = "basicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign\n";
    let weak = ca().intermediate("/CN=Weak", Kind::Rsa1024, ext);
    let pair = weak.server("/CN=server");
    let chain = [pair.cert.as_str(), weak.pair.cert.as_str()].concat();
    let verdict = client_verdict(options(ca(), None), &chain, &pair.key);
    assert_eq!(problem(verdict), Problem::WeakKey);
    let weak = Ca::new("/CN=Weak root", Kind::Rsa1024);
    let error = ClientTls::new(ClientTlsOptions { common: options(&weak, None) }).unwrap_err();
    assert!(error.to_string().contains("1024 bits"), "{error}");
}

#[test]
fn validity_periods_hold_on_both_sides() {
    let pair = ca().server("/CN=server");
    assert!(judge_at(&pair, 99 * DAY).is_ok());
    assert_eq!(problem(judge_at(&pair, 101 * DAY)), Problem::Expired);
    assert_eq!(problem(judge_at(&pair, -DAY)), Problem::NotYetValid);
    let mut common = options(ca(), Some(&pair));
    common.time = clock(101 * DAY);
    assert!(server_tls(common).warnings()[0].contains("expired"));
}

#[test]
fn a_certificate_from_the_future_is_refused_by_its_own_date() {
    // The authority is older than the certificate, so only the certificate's own date can be the
    // reason for refusal.
    let issuer = rcgen_ca(2020);
    let (cert, key) = issuer.leaf(|params| {
        params.not_before = rcgen::date_time_ymd(2030, 1, 1);
        params.not_after = rcgen::date_time_ymd(2040, 1, 1);
    });
    let mut common = CommonTlsOptions { ca: Some(issuer.pem()), ..Default::default() };
    common.time = at(2025);
    assert_eq!(problem(client_verdict(common.clone(), &cert, &key)), Problem::NotYetValid);
    common.time = at(2035);
    client_verdict(common.clone(), &cert, &key).unwrap();
    common.time = at(2045);
    assert_eq!(problem(client_verdict(common, &cert, &key)), Problem::Expired);
}

#[test]
fn one_that_was_let_in_before_is_refused_when_its_time_or_that_of_its_authority_is_over() {
    let seconds = |year| rcgen::date_time_ymd(year, 7, 1).unix_timestamp() as u64;
    // One authority is valid until 2120, and one until 2030.
    for (founded, last, refusal) in
        [(2020, 2035, Problem::Expired), (1930, 2029, Problem::CaNotValidNow)]
    {
        let issuer = rcgen_ca(founded);
        let (cert, key) = issuer.leaf(|_| {});
        let hands = std::sync::Arc::new(HandSet(seconds(2025).into()));
        let common = CommonTlsOptions {
            ca: Some(issuer.pem()),
            time: Some(hands.clone()),
            ..Default::default()
        };
        let client = client_tls(common);
        let first = client_verdict_again(&client, &cert, &key).unwrap();
        hands.0.store(seconds(last), std::sync::atomic::Ordering::Relaxed);
        assert_eq!(client_verdict_again(&client, &cert, &key).unwrap(), first);
        let over = if founded == 2020 { 2045 } else { 2031 };
        hands.0.store(seconds(over), std::sync::atomic::Ordering::Relaxed);
        assert_eq!(problem(client_verdict_again(&client, &cert, &key)), refusal);
        hands.0.store(seconds(2019), std::sync::atomic::Ordering::Relaxed);
        assert_eq!(problem(client_verdict_again(&client, &cert, &key)), Problem::NotYetValid);
    }
}

#[test]
fn an_authority_from_the_future_is_refused_by_its_own_date() {
    let issuer = rcgen_ca(2030);
    let (cert, key) = issuer.leaf(|_| {});
    let mut common = CommonTlsOptions { ca: Some(issuer.pem()), ..Default::default() };
    common.time = at(2025);
    assert_eq!(problem(client_verdict(common.clone(), &cert, &key)), Problem::CaNotValidNow);
    common.time = at(2035);
    client_verdict(common, &cert, &key).unwrap();
}

#[test]
fn an_expired_authority_does_not_hide_that_the_issuer_is_another() {
    let pair =
        Ca::new("/CN=Other", Kind::P256).issue("/CN=x", Kind::P256, SERVER_EXT, &["-days", "9000"]);
    assert_eq!(problem(judge_at(&pair, 3700 * DAY)), Problem::UnknownCa);
}

#[test]
fn chains_with_any_bit_flipped_are_refused_without_a_panic() {
    let pair = ca().server("/C=US/O=x/CN=server");
    let der =
        <rustls::pki_types::CertificateDer<'_> as rustls::pki_types::pem::PemObject>::from_pem_slice(
            pair.cert.as_bytes(),
        )
        .unwrap();
    for at in 0..der.len() {
        let mut bad = der.to_vec();
        bad[at] ^= 1 << (at % 8);
        let verdict = client_verdict_der(options(ca(), None), bad, &pair.key);
        assert!(verdict.is_err(), "byte {at}: {verdict:?}");
    }
}

#[test]
fn an_expired_authority_is_refused_though_the_certificate_is_not() {
    let pair = ca().issue("/CN=server", Kind::P256, SERVER_EXT, &["-days", "9000"]);
    assert!(judge_at(&pair, 3600 * DAY).is_ok());
    assert_eq!(problem(judge_at(&pair, 3700 * DAY)), Problem::CaNotValidNow);
}

#[test]
fn a_foreign_authority_is_unknown_even_under_the_same_name() {
    let other = Ca::new("/CN=Other", Kind::P256);
    let pair = other.server("/CN=server");
    assert_eq!(problem(judge(&pair)), Problem::UnknownCa);
    let twin = Ca::new("/C=US/O=Adit tests/CN=Test CA", Kind::P256);
    let pair = twin.server("/CN=server");
    assert_eq!(problem(judge(&pair)), Problem::UnknownCa);
}

#[test]
fn several_authorities_and_text_around_them() {
    let other = Ca::new("/CN=Other", Kind::P256);
    let pair = other.server("/CN=server");
    let mut common = options(ca(), None);
    let text = format!(
        "# comment\r\n{}\nCertificate:\n  Data: 1\n{}trailer",
        ca().pair.cert.replace('\n', "\r\n"),
        other.pair.cert
    );
    common.ca = Some(Pem::new("bundle", text));
    client_verdict(common, &pair.cert, &pair.key).unwrap();
}

#[test]
fn extended_key_usage_of_the_other_role_is_refused_even_without_remote_cert_tls() {
    let client = ca().client("/CN=client");
    assert_eq!(problem(judge(&client)), Problem::ExtendedKeyUsage);
}

#[test]
fn remote_cert_tls_demands_both_usages() {
    let mut common = options(ca(), None);
    common.verify.remote_cert_tls = Some(RemoteCertTls::Server);
    let no_eku = ca().issue(
        "/CN=server",
        Kind::P256,
        "basicConstraints=CA:FALSE\nkeyUsage=digitalSignature\n",
        &[],
    );
    judge(&no_eku).unwrap();
    let verdict = client_verdict(common.clone(), &no_eku.cert, &no_eku.key);
    assert_eq!(problem(verdict), Problem::ExtendedKeyUsage);
    let no_ku = ca().issue(
        "/CN=server",
        Kind::P256,
        "basicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth\n",
        &[],
    );
    judge(&no_ku).unwrap();
    let verdict = client_verdict(common.clone(), &no_ku.cert, &no_ku.key);
    assert_eq!(problem(verdict), Problem::KeyUsage);
    let good = ca().server("/CN=server");
    client_verdict(common, &good.cert, &good.key).unwrap();
}

#[test]
fn a_key_usage_that_forbids_tls_is_refused() {
    let pair = ca().issue("/CN=server", Kind::P256, "keyUsage=dataEncipherment\n", &[]);
    assert_eq!(problem(judge(&pair)), Problem::KeyUsage);
}

#[test]
fn a_ca_certificate_is_no_end_entitys_own() {
    let ext = "basicConstraints=critical,CA:TRUE\nkeyUsage=digitalSignature,keyCertSign\n";
    let pair = ca().issue("/CN=server", Kind::P256, ext, &[]);
    assert_eq!(problem(judge(&pair)), Problem::IsCa);
}

#[test]
fn critical_extensions_that_are_unknown_are_refused() {
    let ext = format!("{SERVER_EXT}1.2.3.4=critical,ASN1:NULL\n");
    let pair = ca().issue("/CN=server", Kind::P256, &ext, &[]);
    assert_eq!(problem(judge(&pair)), Problem::CriticalExtension);
}

const SUB_CA: &str = "basicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign,cRLSign\n";

#[test]
fn intermediates_come_from_the_peer_or_from_the_ca_file() {
    let sub = ca().intermediate("/CN=Sub", Kind::P384, SUB_CA);
    let pair = sub.server("/CN=server");
    assert_eq!(problem(judge(&pair)), Problem::UnknownCa);
    let chain = [pair.cert.as_str(), sub.pair.cert.as_str()].concat();
    client_verdict(options(ca(), None), &chain, &pair.key).unwrap();
    let mut common = options(ca(), None);
    common.ca = Some(Pem::new("bundle", [ca().pair.cert.as_str(), &sub.pair.cert].concat()));
    client_verdict(common, &pair.cert, &pair.key).unwrap();
    // Our own end sends this certificate from `extra-certs`.
    let mut server = options(ca(), Some(&pair));
    server.extra_certs = Some(Pem::new("extra", sub.pair.cert.as_str()));
    let client = ca().client("/CN=client");
    assert!(connect(&client_tls(options(ca(), Some(&client))), &server_tls(server)).is_up());
}

#[test]
fn a_path_length_constraint_holds() {
    let ext = SUB_CA.replace("CA:TRUE", "CA:TRUE,pathlen:0");
    let sub = ca().intermediate("/CN=Sub", Kind::P256, &ext);
    let subsub = sub.intermediate("/CN=SubSub", Kind::P256, SUB_CA);
    let pair = subsub.server("/CN=server");
    let chain = [&*pair.cert, &*subsub.pair.cert, &*sub.pair.cert].concat();
    let verdict = client_verdict(options(ca(), None), &chain, &pair.key);
    assert_eq!(problem(verdict), Problem::Constraint);
}

#[test]
fn long_chains_are_not_read() {
    let pair = ca().server("/CN=server");
    let chain = |extra: usize| [pair.cert.clone(), ca().pair.cert.repeat(extra)].concat();
    client_verdict(options(ca(), None), &chain(7), &pair.key).unwrap();
    let verdict = client_verdict(options(ca(), None), &chain(8), &pair.key);
    assert_eq!(problem(verdict), Problem::ChainTooLarge);
}

#[test]
fn large_chains_are_not_read() {
    // The chain has few certificates with many bytes.
    let bulk = "00".repeat(34_000);
    let ext = format!("{SERVER_EXT}1.2.3.4=DER:{bulk}\n");
    let pair = ca().issue("/CN=server", Kind::P256, &ext, &[]);
    assert_eq!(problem(judge(&pair)), Problem::ChainTooLarge);
}

#[test]
fn a_handshake_of_more_than_64_kib_is_cut_off() {
    let issuer = rcgen_ca(2020);
    let (cert, key) = issuer.leaf(|params| {
        let bulk = vec![0; 64_300];
        params.custom_extensions = vec![rcgen::CustomExtension::from_oid_content(&[1, 2, 3], bulk)];
    });
    let common = CommonTlsOptions { ca: Some(issuer.pem()), ..Default::default() };
    let Err(TlsError::Protocol(text)) = client_verdict(common, &cert, &key) else { panic!() };
    assert!(text.contains("more than 65536 bytes"), "{text}");
}

/// An authority may sign a value that looks like two attributes. The text of a subject must not
/// confuse the two.
#[test]
fn a_common_name_that_reads_as_two_attributes_is_not_taken_for_them() {
    for (subject, wanted, fits) in [
        ("/CN=x, O=y", "CN=x, O=y", false),
        ("/CN=x + O=y", "CN=x + O=y", false),
        ("/CN=x, 2.5.4.10=y", "CN=x, 2.5.4.10=y", false),
        ("/CN=x/O=y", "CN=x, O=y", true),
        ("/O=x, Inc./CN=a=b", "O=x, Inc., CN=a=b", true),
    ] {
        let pair = ca().server(subject);
        let mut common = options(ca(), None);
        common.verify.name = Some((wanted.into(), NameType::Subject));
        let verdict = client_verdict(common, &pair.cert, &pair.key);
        if fits {
            assert_eq!(verdict.unwrap().subject, wanted);
        } else {
            assert_eq!(problem(verdict), Problem::NameMismatch, "{subject}");
        }
    }
}

#[test]
fn names_are_compared_as_the_directive_says() {
    let pair = ca().server("/C=US/O=x/CN=vpn-1.example.org");
    for (wanted, kind, fits) in [
        ("vpn-1.example.org", NameType::Name, true),
        ("vpn-1", NameType::Name, false),
        ("vpn-", NameType::NamePrefix, true),
        ("vpn-2", NameType::NamePrefix, false),
        ("C=US, O=x, CN=vpn-1.example.org", NameType::Subject, true),
        ("CN=vpn-1.example.org", NameType::Subject, false),
        ("VPN-1.example.org", NameType::Name, false),
    ] {
        let mut common = options(ca(), None);
        common.verify.name = Some((wanted.into(), kind));
        let verdict = client_verdict(common, &pair.cert, &pair.key);
        if fits {
            verdict.unwrap();
        } else {
            assert_eq!(problem(verdict), Problem::NameMismatch, "{wanted}");
        }
    }
}

#[test]
fn fields_of_a_certificate_name_its_owner() {
    let ext = format!("{SERVER_EXT}subjectAltName=email:one@example.org,email:two@example.org\n");
    let subject = "/OU=a/CN=vpn/OU=b/emailAddress=root@example.org";
    let pair = ca().issue(subject, Kind::P256, &ext, &[]);
    let named = |fields: &[NameField], name: &str| {
        let mut common = options(ca(), None);
        common.verify.name_fields = fields.to_vec();
        // The name that the fields make is the one that the directive compares.
        common.verify.name = Some((name.into(), NameType::Name));
        client_verdict(common, &pair.cert, &pair.key)
    };
    let attribute = |name: &str| NameField::attribute(name).unwrap();
    assert_eq!(named(&[], "vpn").unwrap().common_name, "vpn");
    for (fields, name) in [
        (vec![attribute("emailAddress")], "root@example.org"),
        (vec![attribute("OU")], "b"),
        (vec![NameField::SubjectMail], "two@example.org"),
        (vec![attribute("CN"), attribute("OU")], "vpn_b"),
    ] {
        assert_eq!(named(&fields, name).unwrap().common_name, name, "{fields:?}");
        assert_eq!(problem(named(&fields, "vpn")), Problem::NameMismatch);
    }
    let serial = named(&[], "vpn").unwrap().serial;
    assert_eq!(named(&[NameField::Serial], &serial).unwrap().common_name, serial);
    for missing in [attribute("UID"), NameField::IssuerMail] {
        assert_eq!(problem(named(&[attribute("CN"), missing], "vpn_")), Problem::BadName);
    }
    assert_eq!(NameField::attribute("bogus"), None);
}

/// With one TLS library, `x509-username-field` had no effect: the common name was compared in the field's place.
#[test]
fn cve_2026_63650_a_common_name_does_not_stand_for_another_field() {
    let pair = ca().issue("/OU=right/CN=wrong", Kind::P256, SERVER_EXT, &[]);
    let serial = judge(&pair).unwrap().serial;
    let posing = ca().issue(&format!("/CN={serial}"), Kind::P256, SERVER_EXT, &[]);
    let named = |pair: &Pair, field: &NameField, name: &str| {
        let mut common = options(ca(), None);
        common.verify.name_fields = vec![field.clone()];
        common.verify.name = Some((name.into(), NameType::Name));
        client_verdict(common, &pair.cert, &pair.key)
    };
    assert_eq!(named(&pair, &NameField::Serial, &serial).unwrap().common_name, serial);
    assert_eq!(problem(named(&posing, &NameField::Serial, &serial)), Problem::NameMismatch);
    let unit = NameField::attribute("OU").unwrap();
    named(&pair, &unit, "right").unwrap();
    assert_eq!(problem(named(&pair, &unit, "wrong")), Problem::NameMismatch);
}

#[test]
fn the_facts_of_a_chain_are_those_that_openssl_prints() {
    let ext = "basicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign\n";
    let intermediate = ca().intermediate("/CN=Between", Kind::P256, ext);
    let ext = format!("{CLIENT_EXT}subjectAltName=DNS:x,email:a@example.org\n");
    let pair = intermediate.issue("/C=DE/O=x/CN=alice", Kind::P256, &ext, &[]);
    let chain = [pair.cert.as_str(), intermediate.pair.cert.as_str()].concat();
    let chain = Pair { cert: chain, key: pair.key.clone() };
    let client = client_tls(options(ca(), Some(&chain)));
    let server = server_tls(options(ca(), Some(&ca().server("/CN=server"))));
    let outcome = connect(&client, &server);
    assert!(outcome.is_up(), "{:?}", outcome.server_error);
    let facts = outcome.server.certificate_facts();
    let subjects: Vec<&str> = facts.iter().map(|facts| facts.subject.as_str()).collect();
    assert_eq!(subjects.len(), 3, "{subjects:?}");
    assert_eq!((subjects[0], subjects[1]), ("C=DE, O=x, CN=alice", "CN=Between"));
    let own = &facts[0];
    let attributes = [("C", "DE"), ("O", "x"), ("CN", "alice")];
    assert_eq!(own.attributes, attributes.map(|(name, value)| (name.into(), value.into())));
    assert_eq!(own.email.as_deref(), Some("a@example.org"));
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("c.pem"), &pair.cert).unwrap();
    let prints = |what: &str| openssl(dir.path(), &["x509", "-in", "c.pem", "-noout", what]);
    assert!(
        prints("-serial")
            .trim()
            .eq_ignore_ascii_case(&format!("serial={}", own.serial_hex.replace(':', "")))
    );
    let fingerprint = |hash: &str| {
        let text = openssl(dir.path(), &["x509", "-in", "c.pem", "-noout", "-fingerprint", hash]);
        text.trim().rsplit_once('=').unwrap().1.to_lowercase()
    };
    assert_eq!(
        (fingerprint("-sha1"), fingerprint("-sha256")),
        (own.sha1.clone(), own.sha256.clone())
    );
    let number = own.serial_decimal.parse::<u128>();
    if let Ok(number) = number {
        assert_eq!(format!("{number:x}"), own.serial_hex.replace(':', "").trim_start_matches('0'));
    }
    assert!(own.serial_decimal.bytes().all(|b| b.is_ascii_digit()));
    assert!(outcome.client.certificate_facts().len() == 2 && !own.der.is_empty());
}

/// CVE-2026-84790: a NUL within a name ended the name early, so one client was mistaken for
/// another.
#[test]
fn cve_2026_84790_hostile_names_are_refused() {
    let issuer = rcgen_ca(2020);
    let common = CommonTlsOptions { ca: Some(issuer.pem()), time: at(2025), ..Default::default() };
    let judge = |pairs: &[(rcgen::DnType, &str)]| {
        let (cert, key) = issuer.leaf(|params| {
            params.distinguished_name = rcgen::DistinguishedName::new();
            for (kind, value) in pairs {
                params.distinguished_name.push(kind.clone(), *value);
            }
        });
        client_verdict(common.clone(), &cert, &key)
    };
    use rcgen::DnType::{CommonName, OrganizationName, OrganizationalUnitName};
    assert_eq!(judge(&[(CommonName, "good")]).unwrap().subject, "CN=good");
    // Units that are valid group names become groups. Other units do not invalidate the
    // certificate.
    let unit = |unit: &str| judge(&[(OrganizationalUnitName, unit), (CommonName, "good")]).unwrap();
    assert_eq!(unit("staff").units, ["staff"]);
    for odd in ["the staff", "a/b", "-x", "a\nb", "", &"x".repeat(65)] {
        assert!(unit(odd).units.is_empty(), "{odd:?}");
    }
    for bad in [
        &[(CommonName, "admin\0.evil")][..],
        &[(OrganizationName, "x\0"), (CommonName, "good")],
        &[(CommonName, "a\nb")],
        &[(CommonName, "")],
        &[(OrganizationName, "no common name")],
        &[(CommonName, "x".repeat(65).as_str())],
    ] {
        assert_eq!(problem(judge(bad)), Problem::BadName, "{bad:?}");
    }
    let identity = judge(&[(OrganizationName, "a\r\nb\u{2028}"), (CommonName, "good")]).unwrap();
    assert_eq!(identity.subject, "O=a\\0D\\0Ab\\{2028}, CN=good");
}

#[test]
fn the_revocation_list_decides() {
    let ca = Ca::new("/CN=Revoking CA", Kind::P256);
    let (good, bad) = (ca.server("/CN=good"), ca.server("/CN=bad"));
    let mut common = options(&ca, None);
    common.crl = Some(Pem::new("crl.pem", ca.crl(&[&bad])));
    client_verdict(common.clone(), &good.cert, &good.key).unwrap();
    assert_eq!(problem(client_verdict(common.clone(), &bad.cert, &bad.key)), Problem::Revoked);
    let mut without = common.clone();
    without.crl = None;
    client_verdict(without, &bad.cert, &bad.key).unwrap();
    // After the date of its next update, the list admits no client.
    common.time = clock(11 * DAY);
    assert!(client_tls(common.clone()).warnings()[0].contains("expired"));
    assert_eq!(problem(client_verdict(common, &good.cert, &good.key)), Problem::CrlExpired);
}

/// `openssl ca -gencrl` creates such lists by default, and OpenVPN accepts them.
#[test]
fn a_revocation_list_of_version_1_decides_too() {
    for kind in [Kind::P256, Kind::Rsa2048] {
        let ca = Ca::new("/CN=Old CA", kind);
        let (good, bad) = (ca.server("/CN=good"), ca.server("/CN=bad"));
        let twin = Ca::new("/CN=Old CA", kind);
        for reason in [false, true] {
            let mut common = options(&ca, None);
            let verdict = |list: String, pair: &Pair| {
                let common =
                    CommonTlsOptions { crl: Some(Pem::new("crl.pem", list)), ..common.clone() };
                client_verdict(common, &pair.cert, &pair.key)
            };
            let list = ca.crl_of_old(&[&bad], reason);
            verdict(list.clone(), &good).unwrap();
            assert_eq!(problem(verdict(list.clone(), &bad)), Problem::Revoked);
            // The list has the authority's name, but not its signature.
            let forged = twin.crl_of_old(&[&bad], reason);
            assert_eq!(problem(verdict(forged, &good)), Problem::CrlMissing);
            common.crl = Some(Pem::new("crl.pem", list));
            common.time = clock(11 * DAY);
            assert_eq!(problem(client_verdict(common, &good.cert, &good.key)), Problem::CrlExpired);
        }
    }
}

#[test]
fn a_missing_revocation_list_admits_no_client() {
    let (one, other) = (Ca::new("/CN=One", Kind::P256), Ca::new("/CN=Other", Kind::P256));
    let pair = one.server("/CN=server");
    let mut common = options(&one, None);
    common.crl = Some(Pem::new("crl.pem", other.crl(&[])));
    assert_eq!(problem(client_verdict(common.clone(), &pair.cert, &pair.key)), Problem::CrlMissing);
    // A list with the authority's name but not its signature.
    let twin = Ca::new("/CN=One", Kind::P256);
    common.crl = Some(Pem::new("crl.pem", twin.crl(&[])));
    assert_eq!(problem(client_verdict(common.clone(), &pair.cert, &pair.key)), Problem::CrlMissing);
    for useless in ["", "text", &one.pair.cert] {
        common.crl = Some(Pem::new("crl.pem", useless));
        let error = ClientTls::new(ClientTlsOptions { common: common.clone() }).unwrap_err();
        assert!(error.to_string().contains("no revocation list"), "{error}");
    }
}

#[test]
fn an_intermediate_needs_a_list_too() {
    let root = Ca::new("/CN=Root", Kind::P256);
    let sub = root.intermediate("/CN=Sub", Kind::P256, SUB_CA);
    let pair = sub.server("/CN=server");
    let chain = [pair.cert.as_str(), sub.pair.cert.as_str()].concat();
    let mut common = options(&root, None);
    common.crl = Some(Pem::new("crl.pem", sub.crl(&[])));
    assert_eq!(problem(client_verdict(common.clone(), &chain, &pair.key)), Problem::CrlMissing);
    common.crl = Some(Pem::new("crl.pem", [sub.crl(&[]), root.crl(&[])].concat()));
    client_verdict(common.clone(), &chain, &pair.key).unwrap();
    common.crl = Some(Pem::new("crl.pem", [sub.crl(&[]), root.crl(&[&sub.pair])].concat()));
    assert_eq!(problem(client_verdict(common, &chain, &pair.key)), Problem::Revoked);
}

/// Lists of version 1 are checked separately from the others, and together they must cover the
/// chain.
#[test]
fn an_intermediate_needs_a_list_of_either_version() {
    let root = Ca::new("/CN=Root", Kind::P256);
    let verdict_of = |ext: &str, lists: &dyn Fn(&Ca) -> String| {
        let sub = root.intermediate("/CN=Sub", Kind::P256, ext);
        let pair = sub.server("/CN=server");
        let chain = [pair.cert.as_str(), sub.pair.cert.as_str()].concat();
        let crl = Some(Pem::new("crl.pem", lists(&sub)));
        client_verdict(CommonTlsOptions { crl, ..options(&root, None) }, &chain, &pair.key)
    };
    let old = |ca: &Ca, revoked: &[&Pair]| ca.crl_of_old(revoked, false);
    for alone in [&|sub: &Ca| old(sub, &[]) as String, &|_: &Ca| old(&root, &[])]
        as [&dyn Fn(&Ca) -> String; 2]
    {
        assert_eq!(problem(verdict_of(SUB_CA, alone)), Problem::CrlMissing);
    }
    verdict_of(SUB_CA, &|sub| [old(sub, &[]), old(&root, &[])].concat()).unwrap();
    verdict_of(SUB_CA, &|sub| [sub.crl(&[]), old(&root, &[])].concat()).unwrap();
    verdict_of(SUB_CA, &|sub| [old(sub, &[]), root.crl(&[])].concat()).unwrap();
    let revoked = verdict_of(SUB_CA, &|sub| [sub.crl(&[]), old(&root, &[&sub.pair])].concat());
    assert_eq!(problem(revoked), Problem::Revoked);
    let no_signer = SUB_CA.replace(",cRLSign", "");
    let unsigned = verdict_of(&no_signer, &|sub| [old(sub, &[]), root.crl(&[])].concat());
    assert_eq!(problem(unsigned), Problem::CrlMissing);
}

#[test]
fn a_server_wants_a_client_certificate_as_configured() {
    let (server, client) = (ca().server("/CN=server"), ca().client("/CN=client"));
    let make = |client_certificates| {
        let common = options(ca(), Some(&server));
        ServerTls::new(ServerTlsOptions { common, client_certificates }).unwrap()
    };
    let with = client_tls(options(ca(), Some(&client)));
    let without = client_tls(options(ca(), None));
    let wrong = Ca::new("/CN=Other", Kind::P256).client("/CN=client");
    let wrong = client_tls(options(ca(), Some(&wrong)));
    for version in [TlsVersion::V1_2, TlsVersion::V1_3] {
        let mut common = options(ca(), None);
        common.max_version = Some(version);
        let pair = connect(&client_tls(common), &make(ClientCertificates::Require));
        let Some(TlsError::Certificate(error)) = pair.server_error else {
            panic!("{:?}", pair.server_error)
        };
        assert_eq!(error.problem, Problem::Missing);
    }
    assert!(connect(&with, &make(ClientCertificates::Require)).is_up());
    let pair = connect(&without, &make(ClientCertificates::Optional));
    assert!(pair.is_up() && pair.server.peer().is_none());
    let pair = connect(&with, &make(ClientCertificates::Optional));
    assert!(pair.is_up() && pair.server.peer().is_some());
    let pair = connect(&wrong, &make(ClientCertificates::Optional));
    assert!(matches!(pair.server_error, Some(TlsError::Certificate(_))));
    let pair = connect(&wrong, &make(ClientCertificates::None));
    assert!(pair.is_up() && pair.server.peer().is_none());
}

#[test]
fn a_client_certificate_is_held_to_the_same_checks() {
    let server = ca().server("/CN=server");
    let tls = server_tls(options(ca(), Some(&server)));
    // A server's certificate is not valid for a client.
    let pair = connect(&client_tls(options(ca(), Some(&ca().server("/CN=x")))), &tls);
    let Some(TlsError::Certificate(error)) = pair.server_error else { panic!() };
    assert_eq!(error.problem, Problem::ExtendedKeyUsage);
}

#[test]
fn material_that_cannot_be_used_is_named() {
    let server = ca().server("/CN=server");
    let other = ca().server("/CN=other");
    let refused = |edit: &dyn Fn(&mut CommonTlsOptions)| {
        let mut common = options(ca(), Some(&server));
        edit(&mut common);
        ServerTls::new(ServerTlsOptions { common, ..Default::default() }).unwrap_err().to_string()
    };
    let pem = |text: &str| Some(Pem::new("FILE", text));
    let cut = &server.cert[..200];
    for (edit, expected) in [
        (
            &(|o: &mut CommonTlsOptions| o.ca = None) as &dyn Fn(&mut CommonTlsOptions),
            "ca: missing",
        ),
        (&|o| o.cert = None, "cert: missing"),
        (&|o| o.key = None, "key: missing"),
        (&|o| o.key = pem(&other.key), "not that of the certificate in own.crt"),
        (&|o| o.key = pem(&server.cert), "FILE: no private key in it (only CERTIFICATE)"),
        (&|o| o.cert = pem(cut), "FILE: the block CERTIFICATE has no end"),
        (&|o| o.cert = pem(&server.cert.replace("MI", "M!")), "is not base64"),
        (&|o| o.cert = pem("\u{1}\u{2}"), "is it DER?"),
        (&|o| o.ca = pem(&server.cert), "is not a CA's certificate"),
        (&|o| o.groups = Some("brainpoolP256r1".into()), "these are: X25519MLKEM768"),
    ] {
        let text = refused(edit);
        assert!(text.contains(expected), "{expected}: {text}");
    }
}

struct RcgenCa {
    params: rcgen::CertificateParams,
    key: rcgen::KeyPair,
    pem: String,
}

/// Creates an authority that is valid for a century from `year`, with rcgen because openssl's
/// command line refuses it.
fn rcgen_ca(year: i32) -> RcgenCa {
    let mut params = rcgen::CertificateParams::default();
    params.not_before = rcgen::date_time_ymd(year, 1, 1);
    params.not_after = rcgen::date_time_ymd(year + 100, 1, 1);
    params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
    let key = rcgen::KeyPair::generate().unwrap();
    let pem = params.self_signed(&key).unwrap().pem();
    RcgenCa { params, key, pem }
}

impl RcgenCa {
    fn pem(&self) -> Pem {
        Pem::new("ca", self.pem.as_str())
    }

    fn leaf(&self, edit: impl FnOnce(&mut rcgen::CertificateParams)) -> (String, String) {
        let mut params = rcgen::CertificateParams::default();
        params.not_before = rcgen::date_time_ymd(2020, 1, 1);
        params.not_after = rcgen::date_time_ymd(2040, 1, 1);
        edit(&mut params);
        let key = rcgen::KeyPair::generate().unwrap();
        let issuer = rcgen::Issuer::from_params(&self.params, &self.key);
        (params.signed_by(&key, &issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// Returns a clock that always shows the middle of `year`.
fn at(year: i32) -> Option<std::sync::Arc<dyn rustls::time_provider::TimeProvider>> {
    let then = rcgen::date_time_ymd(year, 7, 1).unix_timestamp();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    clock(then - i64::try_from(now.as_secs()).unwrap())
}

fn pinned(pair: &Pair) -> String {
    judge(pair).unwrap().fingerprint
}

/// Returns a server's certificate that none of our authorities signed, and its fingerprint.
fn stranger() -> (Pair, String) {
    let ca = Ca::new("/CN=Nobody", Kind::P256);
    let pair = ca.server("/CN=stranger");
    let fingerprint =
        client_verdict(options(&ca, None), &pair.cert, &pair.key).unwrap().fingerprint;
    (pair, fingerprint)
}

fn of_fingerprint(fingerprint: &str) -> CommonTlsOptions {
    CommonTlsOptions {
        ca: None,
        peer_fingerprints: vec![fingerprint.to_owned()],
        ..options(ca(), None)
    }
}

#[test]
fn a_fingerprint_alone_admits_what_no_authority_signed_and_nothing_else() {
    let (pair, fingerprint) = stranger();
    let identity = client_verdict(of_fingerprint(&fingerprint), &pair.cert, &pair.key).unwrap();
    assert_eq!((identity.common_name.as_str(), identity.fingerprint), ("stranger", fingerprint));
    let (other, _) = stranger();
    let fingerprint = &pinned(&ca().server("/CN=server"));
    let refused = client_verdict(of_fingerprint(fingerprint), &other.cert, &other.key);
    assert_eq!(problem(refused), Problem::Fingerprint);
}

#[test]
fn with_an_authority_both_it_and_the_fingerprint_must_agree() {
    let good = ca().server("/CN=server");
    let with = |fingerprint: String| CommonTlsOptions {
        peer_fingerprints: vec![fingerprint],
        ..options(ca(), None)
    };
    assert!(client_verdict(with(pinned(&good)), &good.cert, &good.key).is_ok());
    // A signed certificate with another fingerprint.
    let other = ca().server("/CN=server");
    let refused = client_verdict(with(pinned(&good)), &other.cert, &other.key);
    assert_eq!(problem(refused), Problem::Fingerprint);
    // A certificate whose fingerprint is configured, but which is not signed.
    let (pair, fingerprint) = stranger();
    let refused = client_verdict(with(fingerprint), &pair.cert, &pair.key);
    assert_eq!(problem(refused), Problem::UnknownCa);
}

#[test]
fn what_else_is_demanded_is_demanded_of_a_pinned_certificate_too() {
    let (pair, fingerprint) = stranger();
    let mut common = of_fingerprint(&fingerprint);
    common.verify.name = Some(("somebody".into(), NameType::Name));
    assert_eq!(problem(client_verdict(common, &pair.cert, &pair.key)), Problem::NameMismatch);
    let mut common = of_fingerprint(&fingerprint);
    common.verify.remote_cert_tls = Some(RemoteCertTls::Client);
    assert_eq!(problem(client_verdict(common, &pair.cert, &pair.key)), Problem::ExtendedKeyUsage);
    // As in OpenVPN, the certificate's dates are not checked, because the fingerprint identifies
    // it.
    let mut common = of_fingerprint(&fingerprint);
    common.time = clock(100 * 365 * 86_400);
    assert!(client_verdict(common, &pair.cert, &pair.key).is_ok());
    let none = CommonTlsOptions { ca: None, ..options(ca(), None) };
    assert!(
        ClientTls::new(ClientTlsOptions { common: none }).is_err(),
        "neither CA nor fingerprint"
    );
}

#[test]
fn a_pinned_certificate_of_version_1_is_refused_with_the_remedy() {
    let pair = ca().issue("/CN=server", Kind::P256, "", &[]);
    std::fs::write(ca().path().join("v1.crt"), &pair.cert).unwrap();
    let shown =
        openssl(ca().path(), &["x509", "-in", "v1.crt", "-noout", "-fingerprint", "-sha256"]);
    let fingerprint = shown.trim().rsplit('=').next().unwrap().replace(':', "").to_lowercase();
    let refused = client_verdict(of_fingerprint(&fingerprint), &pair.cert, &pair.key);
    assert_eq!(problem(refused), Problem::Version);
}
