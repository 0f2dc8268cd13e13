//! Certificates that `tls-cert-profile legacy` and `insecure` accept, and the requirements of
//! `ns-cert-type`.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use adit_openvpn::tls::CertificateProblem as Problem;
use adit_openvpn::tls::*;

use super::support::*;

fn with(ca: &Ca, profile: CertProfile) -> CommonTlsOptions {
    CommonTlsOptions { profile, ..options(ca, None) }
}

/// Returns our server's verdict on an openssl client with this certificate.
fn server_verdict(
    common: CommonTlsOptions,
    client: &Pair,
    version: &str,
) -> Result<PeerIdentity, TlsError> {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [("c.crt", &client.cert), ("c.key", &client.key)] {
        std::fs::write(dir.path().join(name), text).unwrap();
    }
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let mut peer = Command::new("openssl")
        .args(["s_client", version, "-connect", &address, "-cert", "c.crt", "-key", "c.key"])
        .args(["-cipher", "DEFAULT:@SECLEVEL=0"])
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
    let mut session = TlsSession::server(&server_tls(common)).unwrap();
    let until = Instant::now() + Duration::from_secs(20);
    let verdict = loop {
        stream.write_all(&session.pull(usize::MAX)).unwrap();
        if let Some(identity) = session.peer().filter(|_| !session.is_handshaking()) {
            break Ok(identity.clone());
        }
        assert!(Instant::now() < until, "neither accepted nor refused");
        let mut buffer = [0; 4096];
        if let Ok(n) = stream.read(&mut buffer)
            && let Err(error) = session.feed(&buffer[..n])
        {
            break Err(error);
        }
    };
    let _ = peer.kill();
    let _ = peer.wait();
    verdict
}

#[test]
fn keys_of_1024_bits_are_accepted_by_the_legacy_profile_alone() {
    let weak = Ca::new("/CN=Weak root", Kind::Rsa1024);
    let own = weak.server("/CN=server");
    let client = weak.issue("/CN=old", Kind::Rsa1024, CLIENT_EXT, &[]);
    let server = |profile| CommonTlsOptions { profile, ..options(&weak, Some(&own)) };
    for version in ["-tls1_2", "-tls1_3"] {
        for profile in [CertProfile::Legacy, CertProfile::Insecure] {
            let identity = server_verdict(server(profile), &client, version).unwrap();
            assert_eq!(identity.common_name, "old");
            assert_eq!(identity.weakness, "an RSA key of 1024 bits");
        }
    }
    // A weak authority causes a warning.
    let warnings = server_tls(server(CertProfile::Legacy)).warnings().to_vec();
    assert!(warnings[0].contains("1024 bits, which can be broken"), "{warnings:?}");
    let refused = ServerTls::new(ServerTlsOptions {
        common: server(CertProfile::Preferred),
        client_certificates: ClientCertificates::Require,
    });
    assert!(refused.unwrap_err().to_string().contains("2048 is the least"));
    // A client's weak key under a strong authority.
    let client = ca().issue("/CN=old", Kind::Rsa1024, CLIENT_EXT, &[]);
    let strong = ca().server("/CN=server");
    let server = |profile| CommonTlsOptions { profile, ..options(ca(), Some(&strong)) };
    server_verdict(server(CertProfile::Legacy), &client, "-tls1_3").unwrap();
    let refused = server_verdict(server(CertProfile::Preferred), &client, "-tls1_3");
    assert_eq!(problem(refused), Problem::WeakKey);
}

#[test]
fn a_signature_with_a_weak_key_must_be_right() {
    // Two authorities have the same name, and the other's signature does not verify.
    let [weak, other] = [(); 2].map(|()| Ca::new("/CN=Weak root", Kind::Rsa1024));
    let pair = other.server("/CN=server");
    let verdict = client_verdict(with(&weak, CertProfile::Legacy), &pair.cert, &pair.key);
    assert_eq!(problem(verdict), Problem::UnknownCa);
    client_verdict(with(&other, CertProfile::Legacy), &pair.cert, &pair.key).unwrap();
}

#[test]
fn sha1_signatures_are_accepted_by_the_insecure_profile_alone() {
    let root = Ca::new("/CN=Root", Kind::Rsa2048);
    let pair = root.issue("/CN=server", Kind::P256, SERVER_EXT, &["-sha1"]);
    let verdict = |profile| client_verdict(with(&root, profile), &pair.cert, &pair.key);
    for profile in [CertProfile::Legacy, CertProfile::Preferred] {
        assert_eq!(problem(verdict(profile)), Problem::WeakSignature);
    }
    assert_eq!(verdict(CertProfile::Insecure).unwrap().weakness, "a SHA-1 signature");
}

#[test]
fn the_netscape_type_stands_in_for_an_extended_key_usage() {
    const PLAIN: &str = "basicConstraints=CA:FALSE\n";
    let verdict = |ext: &str, demand| {
        let pair = ca().issue("/CN=server", Kind::P256, &format!("{PLAIN}{ext}"), &[]);
        let mut common = options(ca(), None);
        common.verify.netscape = demand;
        client_verdict(common, &pair.cert, &pair.key)
    };
    let server = Some(RemoteCertTls::Server);
    verdict("nsCertType=server\n", server).unwrap();
    verdict("nsCertType=server,client\n", server).unwrap();
    verdict("extendedKeyUsage=serverAuth\n", server).unwrap();
    for ext in ["nsCertType=client\n", ""] {
        verdict(ext, None).unwrap();
        assert_eq!(problem(verdict(ext, server)), Problem::ExtendedKeyUsage, "{ext}");
    }
}

#[test]
fn a_certificate_of_another_authority_is_warned_of() {
    let other = Ca::new("/CN=Other", Kind::P256);
    let own = other.client("/CN=client");
    let warnings = client_tls(options(ca(), Some(&own))).warnings().to_vec();
    assert!(
        warnings.iter().any(|w| w.contains("is not signed by an authority in")),
        "{warnings:?}"
    );
    let own = ca().client("/CN=client");
    assert_eq!(client_tls(options(ca(), Some(&own))).warnings(), [""; 0]);
    // The path may also contain intermediates that the peer sends.
    let sub = ca().intermediate("/CN=Sub", Kind::P256, "basicConstraints=critical,CA:TRUE\n");
    let below = sub.client("/CN=below");
    let mut common = options(ca(), Some(&below));
    common.extra_certs = Some(sub.pem());
    assert_eq!(client_tls(common).warnings(), [""; 0]);
}
