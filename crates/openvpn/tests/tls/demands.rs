//! Requirements on a certificate's signer and key usage, and optional revocation lists.

use adit_openvpn::tls::CertificateProblem as Problem;
use adit_openvpn::tls::*;

use super::support::*;

const SUB_CA: &str = "basicConstraints=critical,CA:TRUE\nkeyUsage=keyCertSign,cRLSign\n";

/// Returns the fingerprint that openssl prints, in the format of the options.
fn fingerprint(cert: &str, sha1: bool) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("cert"), cert).unwrap();
    let kind = if sha1 { "-sha1" } else { "-sha256" };
    let text = openssl(dir.path(), &["x509", "-fingerprint", kind, "-noout", "-in", "cert"]);
    let (_, hex) = text.trim().split_once('=').unwrap();
    hex.replace(':', "").to_lowercase()
}

fn signed_by(base: &CommonTlsOptions, fingerprints: Vec<String>, sha1: bool) -> CommonTlsOptions {
    let mut common = base.clone();
    common.verify.issuer = Some(IssuerHash { sha1, fingerprints });
    common
}

#[test]
fn the_signer_must_be_the_one_named_whether_it_is_the_root_or_not() {
    let root = Ca::new("/CN=Root", Kind::P256);
    let sub = root.intermediate("/CN=Sub", Kind::P256, SUB_CA);
    let direct = root.server("/CN=direct");
    let below = sub.server("/CN=below");
    let chain = [below.cert.as_str(), sub.pair.cert.as_str()].concat();
    let base = options(&root, None);
    for sha1 in [true, false] {
        let [root, sub, leaf] =
            [&root.pair.cert, &sub.pair.cert, &direct.cert].map(|cert| fingerprint(cert, sha1));
        let verdict = |fingerprints: &[&String], cert: &str, key: &str| {
            let fingerprints = fingerprints.iter().map(|text| (*text).clone()).collect();
            client_verdict(signed_by(&base, fingerprints, sha1), cert, key)
        };
        verdict(&[&root], &direct.cert, &direct.key).unwrap();
        verdict(&[&sub], &chain, &below.key).unwrap();
        verdict(&[&leaf, &sub, &root], &chain, &below.key).unwrap();
        // Neither the certificate's own fingerprint nor that of a higher authority is accepted.
        for (wrong, cert, key) in [
            (&leaf, &direct.cert, &direct.key),
            (&sub, &direct.cert, &direct.key),
            (&root, &chain, &below.key),
        ] {
            let refused = verdict(&[wrong], cert, key);
            assert!(refused.as_ref().unwrap_err().to_string().contains("verify-hash"));
            assert_eq!(problem(refused), Problem::Fingerprint);
        }
        // The other kind of hash gives a different fingerprint.
        let other = fingerprint(&base_cert(&base), !sha1);
        assert!(verdict(&[&other], &direct.cert, &direct.key).is_err());
    }
}

fn base_cert(common: &CommonTlsOptions) -> String {
    String::from_utf8(common.ca.as_ref().unwrap().bytes.to_vec()).unwrap()
}

#[test]
fn an_intermediate_from_the_ca_file_counts_as_the_signer() {
    let root = Ca::new("/CN=Root", Kind::P256);
    let sub = root.intermediate("/CN=Sub", Kind::P256, SUB_CA);
    let pair = sub.server("/CN=server");
    let mut base = options(&root, None);
    base.ca = Some(Pem::new("ca", [root.pair.cert.as_str(), &sub.pair.cert].concat()));
    let sub = fingerprint(&sub.pair.cert, false);
    client_verdict(signed_by(&base, vec![sub], false), &pair.cert, &pair.key).unwrap();
    let root = fingerprint(&root.pair.cert, false);
    let refused = client_verdict(signed_by(&base, vec![root], false), &pair.cert, &pair.key);
    assert_eq!(problem(refused), Problem::Fingerprint);
}

#[test]
fn one_of_the_named_key_usages_must_be_there_as_a_whole() {
    let issue = |usage: &str| ca().issue("/CN=server", Kind::P256, usage, &[]);
    let both = issue("keyUsage=digitalSignature,keyEncipherment\n");
    let one = issue("keyUsage=digitalSignature\n");
    let none = issue("basicConstraints=CA:FALSE\n");
    let verdict = |wanted: &[u8], pair: &Pair| {
        let mut common = options(ca(), None);
        common.verify.key_usage = Some(wanted.to_vec());
        client_verdict(common, &pair.cert, &pair.key)
    };
    // 80 is digitalSignature, 20 keyEncipherment, 08 keyAgreement.
    for (wanted, pair, good) in [
        (&[0xa0][..], &both, true),
        (&[0x80], &both, true),
        (&[0x88, 0x20], &both, true),
        (&[0x88], &both, false),
        (&[0xa0], &one, false),
        (&[0xa0, 0x80], &one, true),
        (&[], &one, true),
        (&[], &none, false),
        (&[0x80], &none, false),
    ] {
        let verdict = verdict(wanted, pair);
        assert_eq!(verdict.is_ok(), good, "{wanted:02x?}: {verdict:?}");
        if !good {
            assert!(verdict.as_ref().unwrap_err().to_string().contains("remote-cert-ku"));
            assert_eq!(problem(verdict), Problem::KeyUsage);
        }
    }
}

#[test]
fn a_list_that_may_be_missing_holds_where_it_is_there() {
    let (one, other) = (Ca::new("/CN=One", Kind::P256), Ca::new("/CN=Other", Kind::P256));
    let (good, bad) = (one.server("/CN=good"), one.server("/CN=bad"));
    let foreign = other.server("/CN=foreign");
    let mut common = options(&one, None);
    common.ca = Some(Pem::new("dir", [one.pair.cert.as_str(), &other.pair.cert].concat()));
    common.known_crl = Some(Pem::new("dir", one.crl(&[&bad])));
    client_verdict(common.clone(), &good.cert, &good.key).unwrap();
    assert_eq!(problem(client_verdict(common.clone(), &bad.cert, &bad.key)), Problem::Revoked);
    client_verdict(common.clone(), &foreign.cert, &foreign.key).unwrap();
    // If a list is configured explicitly, all authorities need one.
    common.crl = common.known_crl.take();
    let refused = client_verdict(common.clone(), &foreign.cert, &foreign.key);
    assert_eq!(problem(refused), Problem::CrlMissing);
    common.known_crl = Some(Pem::new("dir", other.crl(&[])));
    client_verdict(common, &foreign.cert, &foreign.key).unwrap();
}
