use std::path::Path;
use std::process::Command;

use super::support::{connect, pump};
use adit_openvpn::tls::*;
use zeroize::Zeroizing;

fn easyrsa(dir: &Path, args: &[&str]) {
    let program = ["/usr/share/easy-rsa/easyrsa", "/usr/bin/easyrsa"]
        .into_iter()
        .find(|path| Path::new(path).exists())
        .expect("the tests need Easy-RSA (apt install easy-rsa)");
    let output = Command::new(program)
        .args(["--batch"])
        .args(args)
        .env("EASYRSA_PKI", dir.join("pki"))
        .current_dir(dir)
        .output()
        .unwrap();
    assert!(
        output.status.success(),
        "easyrsa {args:?}: {}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
}

fn options(dir: &Path, name: &str) -> CommonTlsOptions {
    let read = |path: String| {
        let bytes = std::fs::read(dir.join("pki").join(&path)).unwrap();
        Some(Pem::new(path, bytes))
    };
    CommonTlsOptions {
        ca: read("ca.crt".into()),
        cert: read(format!("issued/{name}.crt")),
        key: read(format!("private/{name}.key")),
        ..Default::default()
    }
}

#[test]
fn a_pki_of_easy_rsa_works_with_passwords_and_revocation() {
    for algorithm in ["rsa", "ec"] {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path();
        let run = |args: &[&str]| {
            easyrsa(
                dir,
                &[&[&*format!("--use-algo={algorithm}"), "--keysize=2048"], args].concat(),
            );
        };
        run(&["init-pki"]);
        run(&["--req-cn=Easy CA", "build-ca", "nopass"]);
        run(&["build-server-full", "server", "nopass"]);
        run(&["build-client-full", "alice", "nopass"]);
        run(&["--passout=pass:secret", "build-client-full", "bob"]);
        run(&["gen-crl"]);

        let server = |crl: bool| {
            let mut common = options(dir, "server");
            common.verify.remote_cert_tls = Some(RemoteCertTls::Client);
            common.crl =
                crl.then(|| Pem::new("crl", std::fs::read(dir.join("pki/crl.pem")).unwrap()));
            ServerTls::new(ServerTlsOptions { common, ..Default::default() }).unwrap()
        };
        let client = |name: &str, password: Option<&str>| {
            let mut common = options(dir, name);
            common.verify.remote_cert_tls = Some(RemoteCertTls::Server);
            common.verify.name = Some(("server".into(), NameType::Name));
            common.key_password = password.map(|text| Zeroizing::new(text.into()));
            ClientTls::new(ClientTlsOptions { common })
        };
        for (name, password) in [("alice", None), ("bob", Some("secret"))] {
            let mut pair = connect(&client(name, password).unwrap(), &server(true));
            assert!(pair.is_up(), "{:?} {:?}", pair.client_error, pair.server_error);
            assert_eq!(pair.server.peer().unwrap().common_name, name);
            pair.server.write(b"options").unwrap();
            pump(&mut pair, 500);
            assert_eq!(pair.client.read().unwrap().unwrap().as_slice(), b"options");
        }
        assert!(client("bob", Some("wrong")).unwrap_err().is_password());
        assert!(client("bob", None).unwrap_err().is_password());

        run(&["revoke", "alice"]);
        run(&["gen-crl"]);
        // Easy-RSA moves revoked certificates.
        let kept = dir.join("pki/revoked");
        let serial =
            std::fs::read_dir(kept.join("certs_by_serial")).unwrap().next().unwrap().unwrap();
        std::fs::copy(serial.path(), dir.join("pki/issued/alice.crt")).unwrap();
        let key =
            std::fs::read_dir(kept.join("private_by_serial")).unwrap().next().unwrap().unwrap();
        std::fs::copy(key.path(), dir.join("pki/private/alice.key")).unwrap();
        let alice = client("alice", None).unwrap();
        assert!(connect(&alice, &server(false)).is_up());
        let pair = connect(&alice, &server(true));
        let Some(TlsError::Certificate(error)) = pair.server_error else {
            panic!("{:?}", pair.server_error)
        };
        assert_eq!(error.problem, CertificateProblem::Revoked);
        assert!(connect(&client("bob", Some("secret")).unwrap(), &server(true)).is_up());
    }
}
