use super::support::*;
use adit_openvpn::tls::*;
use zeroize::Zeroizing;

/// Loads `key` as the key of `pair`.
fn load(pair: &Pair, key: &str, password: Option<&str>) -> Result<ClientTls, TlsConfigError> {
    let mut common = options(ca(), Some(pair));
    common.key = Some(Pem::new("secret.key", key));
    common.key_password = password.map(|password| Zeroizing::new(password.to_owned()));
    ClientTls::new(ClientTlsOptions { common })
}

fn convert(pair: &Pair, args: &[&str]) -> String {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("in"), &pair.key).unwrap();
    let mut all = args.to_vec();
    all.extend(["-in", "in", "-out", "out"]);
    openssl(dir.path(), &all);
    std::fs::read_to_string(dir.path().join("out")).unwrap()
}

#[test]
fn every_form_that_openssl_writes_loads() {
    let ec = ca().client("/CN=ec");
    let rsa = ca().issue("/CN=rsa", Kind::Rsa2048, CLIENT_EXT, &[]);
    for (pair, args, label) in [
        (&ec, &["ec"][..], "BEGIN EC PRIVATE KEY"),
        (&rsa, &["rsa", "-traditional"], "BEGIN RSA PRIVATE KEY"),
        (&ec, &["pkcs8", "-topk8", "-nocrypt"], "BEGIN PRIVATE KEY"),
    ] {
        let key = convert(pair, args);
        assert!(key.contains(label), "{key}");
        load(pair, &key, None).unwrap();
        load(pair, &key, Some("not needed")).unwrap();
        load(pair, &format!("Bag Attributes\n  x: y\n{}{key}", pair.cert), None).unwrap();
    }
}

#[test]
fn encrypted_keys_open_with_their_password_only() {
    let ec = ca().client("/CN=ec");
    let rsa = ca().issue("/CN=rsa", Kind::Rsa2048, CLIENT_EXT, &[]);
    let pass = ["-passout", "pass:pässword 1"];
    for (pair, args, label) in [
        (&ec, &["pkcs8", "-topk8"][..], "BEGIN ENCRYPTED PRIVATE KEY"),
        (&rsa, &["pkcs8", "-topk8", "-v2", "aes-128-cbc"], "BEGIN ENCRYPTED PRIVATE KEY"),
        (&ec, &["pkcs8", "-topk8", "-v2", "aes-192-cbc"], "BEGIN ENCRYPTED PRIVATE KEY"),
        (&ec, &["pkcs8", "-topk8", "-v2", "des3"], "BEGIN ENCRYPTED PRIVATE KEY"),
        (&ec, &["pkcs8", "-topk8", "-v2", "aes-256-cbc", "-v2prf", "hmacWithSHA1"], "ENCRYPTED"),
        (&ec, &["pkcs8", "-topk8", "-v2", "aes-256-cbc", "-v2prf", "hmacWithSHA512"], "ENCRYPTED"),
        (&ec, &["pkcs8", "-topk8", "-scrypt"], "BEGIN ENCRYPTED PRIVATE KEY"),
        (&rsa, &["rsa", "-traditional", "-des3"], "DEK-Info: DES-EDE3-CBC"),
        (&rsa, &["rsa", "-traditional", "-aes128"], "DEK-Info: AES-128-CBC"),
        (&rsa, &["rsa", "-traditional", "-aes192"], "DEK-Info: AES-192-CBC"),
        (&ec, &["ec", "-aes256"], "DEK-Info: AES-256-CBC"),
        (&ec, &["ec", "-des3"], "DEK-Info: DES-EDE3-CBC"),
    ] {
        let key = convert(pair, &[args, &pass].concat());
        assert!(key.contains(label), "{key}");
        load(pair, &key, Some("pässword 1")).unwrap_or_else(|error| panic!("{args:?}: {error}"));
        for (password, words) in [(Some("wrong"), "does not open"), (None, "askpass")] {
            let error = load(pair, &key, password).unwrap_err();
            assert!(error.is_password() && error.to_string().contains(words), "{args:?}: {error}");
            assert_eq!(error.origin(), "secret.key");
        }
    }
}

#[test]
fn a_wrong_password_is_never_a_key() {
    // One in 256 wrong passwords results in valid padding, but must still be refused.
    let ec = ca().client("/CN=ec");
    let key = convert(&ec, &["ec", "-aes128", "-passout", "pass:right"]);
    for n in 0..600 {
        let error = load(&ec, &key, Some(&format!("wrong {n}"))).unwrap_err();
        assert!(error.is_password(), "{n}: {error}");
    }
}

#[test]
fn encryption_that_is_not_supported_names_the_way_out() {
    let ec = ca().client("/CN=ec");
    let rsa = ca().issue("/CN=rsa", Kind::Rsa2048, CLIENT_EXT, &[]);
    for (pair, args) in [
        (&ec, &["pkcs8", "-topk8", "-v1", "PBE-SHA1-3DES"][..]),
        (&ec, &["pkcs8", "-topk8", "-v2", "camellia-256-cbc"]),
        (&rsa, &["rsa", "-traditional", "-camellia256"]),
    ] {
        let key = convert(pair, &[args, &["-passout", "pass:x"]].concat());
        let error = load(pair, &key, Some("x")).unwrap_err();
        assert!(!error.is_password(), "{error}");
        assert!(error.to_string().contains("openssl pkcs8 -topk8"), "{error}");
    }
}

#[test]
fn secrets_are_not_in_debug_output() {
    let ec = ca().client("/CN=ec");
    let mut common = options(ca(), Some(&ec));
    common.key_password = Some(Zeroizing::new("hunter2".into()));
    let text = format!("{common:?} {:?}", client_tls(common.clone()));
    assert!(!text.contains("hunter2") && !text.contains("PRIVATE"), "{text}");
}

mod hostile {
    use super::*;
    use proptest::prelude::*;

    /// Generates text that resembles PEM.
    fn nearly_pem() -> impl Strategy<Value = Vec<u8>> {
        let line = prop_oneof![
            "-----(BEGIN|END) (CERTIFICATE|X509 CRL|(EC |RSA |ENCRYPTED )?PRIVATE KEY)-----",
            "Proc-Type: 4,ENCRYPTED",
            "DEK-Info: (AES-128-CBC|DES-EDE3-CBC|X),?[0-9A-F]{0,33}",
            "[A-Za-z0-9+/=]{0,64}",
            "\\PC{0,20}",
        ];
        prop::collection::vec(line, 0..12).prop_map(|lines| lines.join("\n").into_bytes())
    }

    proptest! {
        #[test]
        fn files_of_any_content_are_refused_without_a_panic(
            bytes in prop_oneof![nearly_pem(), prop::collection::vec(any::<u8>(), 0..300)],
        ) {
            let pair = ca_pair();
            let with = |edit: &dyn Fn(&mut CommonTlsOptions, Option<Pem>)| {
                let mut common = options(ca(), Some(pair));
                common.key_password = Some(Zeroizing::new("x".into()));
                edit(&mut common, Some(Pem::new("file", bytes.clone())));
                ClientTls::new(ClientTlsOptions { common })
            };
            for result in [
                with(&|o, pem| o.ca = pem),
                with(&|o, pem| o.cert = pem),
                with(&|o, pem| o.key = pem),
                with(&|o, pem| o.crl = pem),
            ] {
                prop_assert!(result.is_err());
            }
        }
    }

    fn ca_pair() -> &'static Pair {
        static PAIR: std::sync::OnceLock<Pair> = std::sync::OnceLock::new();
        PAIR.get_or_init(|| ca().client("/CN=client"))
    }
}
