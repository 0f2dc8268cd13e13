//! A key that is not in the process: the `openssl` command signs.

use std::path::PathBuf;
use std::sync::Arc;

use super::support::*;
use adit_openvpn::tls::*;

/// The key's file, and the forms that its holder makes.
#[derive(Debug)]
struct Openssl {
    dir: tempfile::TempDir,
    forms: &'static [&'static str],
}

impl KeyHolder for Openssl {
    fn makes(&self, form: SignatureForm) -> bool {
        self.forms.contains(&name(form))
    }

    fn sign(&self, form: SignatureForm, data: &[u8]) -> Result<Vec<u8>, String> {
        assert!(self.makes(form), "{form:?}");
        let path = |name: &str| -> PathBuf { self.dir.path().join(name) };
        std::fs::write(path("data"), data).unwrap();
        // The command signs only what could be a digest. To decrypt is the same operation.
        let operation = if form == SignatureForm::Raw { "-decrypt" } else { "-sign" };
        let mut args =
            vec!["pkeyutl", operation, "-inkey", "key", "-in", "data", "-out", "signature"];
        match form {
            SignatureForm::Ecdsa => {}
            SignatureForm::Pkcs1 => args.extend(["-pkeyopt", "rsa_padding_mode:pkcs1"]),
            SignatureForm::Raw => args.extend(["-pkeyopt", "rsa_padding_mode:none"]),
            SignatureForm::Pss(digest) => {
                let digest = match digest.name() {
                    "SHA256" => "digest:sha256",
                    "SHA384" => "digest:sha384",
                    _ => "digest:sha512",
                };
                args.extend(["-pkeyopt", "rsa_padding_mode:pss", "-pkeyopt", digest]);
                args.extend(["-pkeyopt", "rsa_pss_saltlen:digest"]);
            }
        }
        openssl(self.dir.path(), &args);
        Ok(std::fs::read(path("signature")).unwrap())
    }
}

fn name(form: SignatureForm) -> &'static str {
    match form {
        SignatureForm::Ecdsa => "ecdsa",
        SignatureForm::Pkcs1 => "pkcs1",
        SignatureForm::Pss(_) => "pss",
        SignatureForm::Raw => "raw",
    }
}

fn client(pair: &Pair, forms: &'static [&'static str]) -> CommonTlsOptions {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("key"), &pair.key).unwrap();
    let mut common = options(ca(), Some(pair));
    common.key = None;
    common.key_holder = Some(Arc::new(Openssl { dir, forms }));
    common
}

#[test]
fn a_holder_signs_in_each_form_and_version() {
    let ec = ca().client("/CN=ec");
    let large = ca().issue("/CN=ec", Kind::P384, CLIENT_EXT, &[]);
    let rsa = ca().issue("/CN=rsa", Kind::Rsa2048, CLIENT_EXT, &[]);
    let server = || server_tls(options(ca(), Some(&ca().server("/CN=server"))));
    let cases: [(&Pair, &'static [&'static str], TlsVersion); 8] = [
        (&ec, &["ecdsa"], TlsVersion::V1_3),
        (&ec, &["ecdsa"], TlsVersion::V1_2),
        (&large, &["ecdsa"], TlsVersion::V1_3),
        (&rsa, &["pss"], TlsVersion::V1_3),
        // The padding is made here.
        (&rsa, &["raw"], TlsVersion::V1_3),
        (&rsa, &["raw", "pkcs1"], TlsVersion::V1_3),
        (&rsa, &["pkcs1"], TlsVersion::V1_2),
        (&rsa, &["raw"], TlsVersion::V1_2),
    ];
    for (pair, forms, version) in cases {
        let mut common = client(pair, forms);
        (common.min_version, common.max_version) = (Some(version), Some(version));
        let outcome = connect(&client_tls(common), &server());
        assert!(outcome.is_up(), "{forms:?} {version:?}");
    }
}

#[test]
fn a_key_that_cannot_be_held_elsewhere_is_refused() {
    let ed = ca().issue("/CN=ed", Kind::Ed25519, CLIENT_EXT, &[]);
    let common = client(&ed, &["ecdsa"]);
    let error = ClientTls::new(ClientTlsOptions { common }).unwrap_err();
    assert!(error.to_string().contains("outside of this process"), "{error}");
}
