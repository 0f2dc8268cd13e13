//! Requirements on the other end's certificate.

use super::*;
use crate::tls::{ClientCertificates, IssuerHash};

fn hash(bytes: usize) -> String {
    vec!["AB"; bytes].join(":")
}

#[test]
fn the_signers_hash_has_the_kinds_of_openvpn() {
    let sha256 = Some(IssuerHash { sha1: false, fingerprints: vec!["ab".repeat(32)] });
    let line = client(&format!("verify-hash {} SHA256\n", hash(32)));
    assert_eq!(line.tls.issuer, sha256);
    assert!(line.warnings.iter().any(|w| w.contains("peer-fingerprint")), "{:?}", line.warnings);
    let block = client(&format!("<verify-hash>\n# ours\n{}\n</verify-hash>\n", hash(32)));
    assert_eq!(block.tls.issuer, sha256);
    for line in [format!("verify-hash {}\n", hash(20)), format!("verify-hash {} SHA1\n", hash(20))]
    {
        let options = client(&format!("{line}{line}"));
        let issuer = options.tls.issuer.unwrap();
        assert_eq!((issuer.sha1, issuer.fingerprints.len()), (true, 2));
        assert!(options.warnings.iter().any(|w| w.contains("SHA256")), "{:?}", options.warnings);
    }
}

#[test]
fn hashes_that_cannot_be_meant_are_refused() {
    let fingerprint = format!("peer-fingerprint {}\nverify-hash {}\n", hash(32), hash(20));
    let mixed = format!("verify-hash {}\nverify-hash {} SHA256\n", hash(20), hash(32));
    for (line, word) in [
        (format!("verify-hash {}", hash(32)), "SHA-1 fingerprint"),
        (format!("verify-hash {} SHA256", hash(20)), "SHA-256 fingerprint"),
        (format!("verify-hash {} MD5", hash(16)), "not known"),
        ("<verify-hash>\n</verify-hash>".into(), "no peer"),
        (fingerprint, "peer-fingerprint"),
        (mixed, "other kind"),
    ] {
        let error = client_error(&line);
        assert_eq!(error.directive, "verify-hash", "{line}");
        assert!(error.to_string().contains(word), "{line}: {error}");
    }
}

#[test]
fn key_usages_are_written_in_hex() {
    assert_eq!(client("remote-cert-ku a0 0x88 8").tls.key_usage, Some(vec![0xa0, 0x88, 8]));
    assert_eq!(client("remote-cert-ku").tls.key_usage, Some(Vec::new()));
    assert_eq!(client("").tls.key_usage, None);
    for value in ["0", "100", "digitalSignature", "-1", "1 zz"] {
        let error = client_error(&format!("remote-cert-ku {value}"));
        assert!(error.problem.contains("key usage"), "{value}: {error}");
    }
}

#[test]
fn a_directory_stands_in_for_a_file_of_authorities() {
    let text = "client\ndev tun\nremote a\ncd /etc/x\ncapath certs\ncert c\nkey k\ncrl-verify l\n";
    let options = parse_file(text).unwrap();
    assert_eq!(options.tls.ca_path, Some("/etc/x/certs".into()));
    assert_eq!(options.tls.ca, None);
    let both = client("capath certs\n");
    assert!(both.tls.ca.is_some() && both.tls.ca_path.is_some());
}

#[test]
fn clients_without_certificates_need_what_proves_them_otherwise() {
    for word in ["none", "optional"] {
        let error = server_error(&format!("verify-client-cert {word}\n"));
        assert_eq!(error.directive, "verify-client-cert");
        assert!(error.problem.contains("auth-user-pass-verify"), "{error}");
        assert!(error.remedy.contains("peer-fingerprint"), "{error}");
    }
    let certificates = server("verify-client-cert require\n").tls.client_certificates;
    assert_eq!(certificates, ClientCertificates::Require);
    let error = server_error("client-cert-not-required\n");
    assert_eq!(error.directive, "client-cert-not-required");
    assert!(server_error("verify-client-cert maybe\n").problem.contains("not known"));
    assert!(client_error("verify-client-cert require\n").problem.contains("servers"));
}
