//! Keys on tokens.

use super::*;

const TOKEN: &str = "client\ndev tun\nremote vpn.example\nca ca\nremote-cert-tls server\n\
                     pkcs11-id 'SoftHSM\\x20project/v2/1/office/0A'\n";
const TOKEN_SERVER: &str = "dev tun\nserver 10.8.0.0 255.255.255.0\ntopology subnet\nca ca.crt\ndh none\n\
                            pkcs11-id 'a/b/1/c/01'\n";

fn token(more: &str) -> Pkcs11 {
    parse_file(&format!("{TOKEN}{more}")).unwrap().tls.pkcs11.unwrap()
}

fn refused(base: &str, more: &str) -> ConfigError {
    parse_file(&format!("{base}{more}")).unwrap_err()
}

#[test]
fn each_module_has_its_own_settings() {
    let modules = |more: &str| token(more).providers;
    let module =
        |name: &str, protected, private| Pkcs11Provider { module: name.into(), protected, private };
    assert_eq!(modules(""), [module("p11-kit-proxy.so", false, false)]);
    let two = "pkcs11-providers one.so ./two.so\npkcs11-protected-authentication 0 1\n\
               pkcs11-cert-private 1\n";
    assert_eq!(modules(two), [module("one.so", false, true), module("./two.so", true, false)]);
    let moved = modules("cd /etc/openvpn\npkcs11-providers one.so lib/two.so /usr/three.so\n");
    let names: Vec<&str> = moved.iter().map(|provider| provider.module.as_str()).collect();
    assert_eq!(names, ["one.so", "/etc/openvpn/lib/two.so", "/usr/three.so"]);
}

#[test]
fn a_key_on_a_token_takes_the_place_of_cert_and_key() {
    let plain = token("extra-certs e\n");
    assert_eq!(plain.query.unwrap().token_label(), Some("office"));
    assert_eq!((plain.pin_cache, plain.extra.is_some()), (None, true));
    assert_eq!(token("pkcs11-pin-cache 300\n").pin_cache, Some(Duration::from_secs(300)));
    assert_eq!(token("pkcs11-pin-cache -1\n").pin_cache, None);
    for line in ["cert c", "key k", "pkcs12 p"] {
        let directive = line.split(' ').next().unwrap();
        let error = refused(TOKEN, &format!("{line}\n"));
        assert_eq!(error.directive, directive);
        assert!(error.problem.contains("pkcs11-id"), "{error}");
    }
    let external = "management /run/m unix\nmanagement-external-key\n";
    assert_eq!(refused(TOKEN, external).directive, "management-external-key");
    let server = parse_file(TOKEN_SERVER).unwrap();
    assert!(server.tls.pkcs11.is_some() && server.tls.identity.is_none());
}

#[test]
fn the_certificate_is_named_or_chosen_but_not_both() {
    let asked = TOKEN.replace("pkcs11-id '", "pkcs11-id-management\nsetenv x '");
    let asked = parse_file(&asked).unwrap().tls.pkcs11.unwrap();
    assert_eq!(asked.query, None);
    assert_eq!(refused(TOKEN, "pkcs11-id-management\n").directive, "pkcs11-id-management");
}

#[test]
fn words_that_openvpn_does_not_know_are_refused() {
    for (line, part) in [
        ("pkcs11-id a/b", "--show-pkcs11-ids"),
        ("pkcs11-pin-cache soon", "soon"),
        ("pkcs11-protected-authentication 0 2", "\"2\""),
        ("pkcs11-cert-private yes", "\"yes\""),
        ("pkcs11-private-mode 10", "not a mode"),
        ("pkcs11-private-mode 1 g", "not hexadecimal"),
    ] {
        let error = refused(TOKEN, &format!("{line}\n"));
        assert_eq!(error.directive, line.split(' ').next().unwrap());
        assert!(error.to_string().contains(part), "{error}");
    }
}

#[test]
fn a_key_must_be_allowed_to_sign() {
    for mode in ["0", "1", "3", "f", "F 1"] {
        token(&format!("pkcs11-private-mode {mode}\n"));
    }
    for mode in ["2", "4", "8", "e", "1 6"] {
        let error = refused(TOKEN, &format!("pkcs11-private-mode {mode}\n"));
        assert!(error.problem.contains("does not sign"), "{error}");
    }
}

#[test]
fn a_server_that_forgets_its_pin_has_it_in_a_file() {
    let error = refused(TOKEN_SERVER, "pkcs11-pin-cache 300\n");
    assert_eq!(error.directive, "pkcs11-pin-cache");
    assert!(error.remedy.contains("askpass FILE"), "{error}");
    refused(TOKEN_SERVER, "pkcs11-pin-cache 300\naskpass\n");
    let with_file = format!("{TOKEN_SERVER}pkcs11-pin-cache 300\naskpass pin\n");
    assert!(parse_file(&with_file).unwrap().tls.pkcs11.is_some());
    assert!(parse_file(&format!("{TOKEN_SERVER}askpass\n")).is_ok());
}

#[test]
fn a_static_key_needs_no_token() {
    let peer = "dev tun\nsecret k\ncipher AES-256-CBC\nifconfig 10.1.0.1 10.1.0.2\n";
    assert_eq!(refused(peer, "pkcs11-id a/b/1/c/01\n").directive, "pkcs11-id");
}
